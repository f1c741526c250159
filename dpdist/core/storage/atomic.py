"""Atomic folders and files: written to a staging path next to the target, flushed, then renamed."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dpdist.core import interruption
from dpdist.core.errors import DataError, ResumableError, UsageError
from dpdist.core.paths import read_plain
from dpdist.core.text import random_token

ABANDONED_SECONDS = 86400.0
"""Least age in seconds of an abandoned staging path."""
MOST_AT_ONCE = 512 << 20
"""Largest object in bytes that is read at once: metadata, seals, or a chunk of a release."""
Content = bytes | memoryview | Iterator[bytes | memoryview]
"""The bytes of an object; an iterator gives many in parts."""
_FLUSHED_AT_ONCE = 8
_FOLDERS = {"rows", "release", "model", "scores"}
_FILES = {"csv", "tsv", "txt", "parquet", "feather", "arrow", "json", "npy", "npz", "xlsx", "html", "png", "pdf"}
_IDENTITY = ".identity"


def require_new(target: Path, noun: str) -> None:
    """Refuse a target that exists or cannot be created."""
    if os.path.lexists(target):
        raise DataError(f"{target} exists already. Choose another path for the {noun}.")
    parent = target.absolute().parent
    if not parent.is_dir():
        raise DataError(f"The folder {parent} does not exist. Create it, then run the same command again.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise DataError(f"The folder {parent} is not writable. Change its permissions, or write the {noun} elsewhere.")


def require_folder_name(address: str, noun: str) -> None:
    """Refuse a folder that is named like a file: no program for such files reads it."""
    stem, dot, ending = address.rpartition(".")
    if noun in _FOLDERS and dot and ending.lower() in _FILES:
        raise UsageError(
            f"{address} would be a folder in the format Zarr, and no .{ending} file. Name the {noun} {stem}.zarr."
        )


def make_public_folder(path: Path) -> None:
    """Create a folder and its parents, readable by others and writable by the owner only."""
    if not path.is_dir():
        make_public_folder(path.absolute().parent)
        path.mkdir(0o755, exist_ok=True)


def require_space(folder: Path, size: int, noun: str) -> None:
    """Refuse to write more than the free space, without stating the size, which may be private."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise DataError(
            f"The {noun} need more than the {free >> 20} MiB that are free in {folder}. Free some space, or write "
            "them elsewhere."
        )


def require_folder(target: Path) -> None:
    """Refuse a folder that does not exist and cannot be created."""
    nearest = target.absolute()
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    if not nearest.is_dir():
        raise DataError(f"{nearest} is not a folder. Choose another path for {target}.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise DataError(f"The folder {nearest} is not writable. Change its permissions, or choose another path.")


def sync_tree(root: Path) -> None:
    """Flush a folder and everything in it to disk, several files at a time."""
    with ThreadPoolExecutor(_FLUSHED_AT_ONCE) as pool:
        for folder, _, names in os.walk(root):
            for _ in pool.map(sync, [Path(folder), *(Path(folder) / name for name in names)]):
                pass


def flush(root: Path, paths: Iterable[Path]) -> None:
    """Flush files, and their parent folders up to root, to disk."""
    folders: set[Path] = set()
    for path in paths:
        sync(path)
        folders.update(path.relative_to(root).parents)
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        sync(root / folder)


def sync(path: Path) -> None:
    """Flush one file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def staged(target: Path, noun: str, *, private: bool = False, resume: bytes | None = None) -> Iterator[Path]:
    """Yield a locked staging folder next to target; flush and rename it to target at the end, or remove it on an error.

    With ``resume``, which identifies the content, the caller flushes each file, so that the end takes the same time for
    any size, and everything is private. The folder is kept if the process dies or raises ResumableError. The next
    builder of the same content gets it, after waiting for a live one.
    """
    require_new(target, noun)
    try:
        with ExitStack() as stack:
            staging = create_locked(target, stack) if resume is None else _resumed_or_new(target, noun, resume, stack)
            try:
                remove_abandoned(target)
                yield staging
                if resume is None:
                    _set_modes(staging, private=private)
                    sync_tree(staging)
                else:
                    for litter in staging.glob(".*.partial"):  # of workers that died while writing
                        litter.unlink(missing_ok=True)
                    sync(staging)
                require_new(target, noun)
                with interruption.publishing(staging):
                    (staging / _IDENTITY).unlink(missing_ok=True)
                    staging.rename(target)
                sync(target.absolute().parent)
            except BaseException as error:
                if resume is None or not isinstance(error, ResumableError):
                    remove(staging, target)
                raise
    except OSError as error:
        raise DataError(
            f"Writing the {noun} {target} failed: {error.strerror}. Nothing was left behind. Fix the cause, then run "
            "the same command again."
        ) from None


def _resumed_or_new(target: Path, noun: str, identity: bytes, stack: ExitStack) -> Path:
    """Lock the unfinished staging folder of the same content, or create one."""
    while (unfinished := _unfinished(target, identity)) is not None:
        with suppress(FileNotFoundError):
            handle = lock(unfinished, wait=True)
            stack.callback(os.close, handle)
            if os.path.samestat(os.fstat(handle), unfinished.lstat()):
                stack.enter_context(interruption.staging(unfinished))
                return unfinished
        require_new(target, noun)  # another process may have finished it
    staging = create_locked(target, stack)
    write_new(staging / _IDENTITY, identity)
    sync(staging / _IDENTITY)
    sync(staging)
    return staging


def _unfinished(target: Path, identity: bytes) -> Path | None:
    for folder in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        with suppress(OSError):
            status = folder.lstat()
            private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
            if private and read_plain(folder / _IDENTITY, len(identity)) == identity:
                return folder
    return None


def make_once(exists: Callable[[], bool], make: Callable[[], object]) -> bool:
    """Create something unless it exists, also if another process creates it first; return whether it was created."""
    if exists():
        return False
    try:
        make()
    except DataError:
        if not exists():
            raise
        return False
    return True


@contextmanager
def scratch(scratch_dir: Path, name: str, size: int = 0) -> Iterator[Path]:
    """Yield an empty private folder for temporary rows, then remove it, and folders that killed processes left."""
    remove_abandoned(scratch_dir / name)
    require_space(scratch_dir, size, "rows, which are unpacked first,")
    with ExitStack() as stack:
        staging = create_locked(scratch_dir / name, stack)
        stack.callback(remove, staging, scratch_dir / name)
        yield staging


def _set_modes(root: Path, *, private: bool) -> None:
    """Set the permissions of a folder and its contents: owner only, or readable by others as the umask allows."""
    folders, files = (0o700, 0o600) if private else (0o755 & ~_umask(), 0o644 & ~_umask())
    for folder, _, names in os.walk(root):
        Path(folder).chmod(folders)
        for name in names:
            Path(folder, name).chmod(files)


def _umask() -> int:
    """Return the umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def create_locked(target: Path, stack: ExitStack) -> Path:
    """Create a private staging folder next to target, locked until the stack is closed."""
    while True:  # a cleaner may remove it before it is locked
        staging = _staging_path(target)
        stack.enter_context(interruption.staging(staging))
        staging.mkdir(0o700)
        with suppress(FileNotFoundError, BlockingIOError):
            stack.callback(os.close, lock(staging))
            if staging.exists():
                return staging


def remove(staging: Path, target: Path) -> None:
    """Remove a staging folder if it exists; it is renamed first, because workers may still write to its path."""
    renamed = _staging_path(target)
    with suppress(OSError):
        staging.rename(renamed)
        shutil.rmtree(renamed, ignore_errors=True)


def _staging_path(target: Path) -> Path:
    """Return a new path next to a target, in the form that :func:`remove_abandoned` recognises."""
    return target.with_name(f".{target.name}.{random_token()[:8]}.partial")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock (flock) on a folder, waiting for it; a missing folder is not locked."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        yield  # reading the folder will report the error
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            raise DataError(
                f"{folder} cannot be locked: {error.strerror}. Its file system does not support flock, without which "
                "two runs at once could each create a ledger for it. Move it to a file system that does."
            ) from None
        yield
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes, noun: str, *, private: bool = False) -> None:
    """Atomically replace a file, durably; only its owner can read a private one."""
    staging = _staging_path(path)
    try:
        with interruption.staging(staging), ExitStack() as stack:
            stack.callback(staging.unlink, missing_ok=True)
            replace_durably(path, staging, content, 0o600 if private else 0o644 & ~_umask())
    except OSError as error:
        raise DataError(f"Writing the {noun} {path} failed: {error.strerror}. Nothing was changed.") from None


def replace_durably(path: Path, staging: Path, content: bytes, mode: int) -> None:
    """Write a staging file, flush it and rename it to path; the result is durable."""
    write_new(staging, content)
    staging.chmod(mode)
    sync(staging)
    staging.replace(path)
    sync(path.parent)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that did not exist, readable by its owner only."""
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:  # noqa: PTH123 - a handle
        file.write(content)


def lock(folder: Path, *, wait: bool = False) -> int:
    """Lock a folder and return its handle; BlockingIOError if it is locked, unless ``wait``."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)  # opening a pipe would block
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(handle)
        raise
    return handle


def remove_abandoned(target: Path) -> None:
    """Remove the staging paths that killed processes left next to a target."""
    for litter in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        # a live builder holds the lock, and one that has just ended removes its folder
        with suppress(OSError):
            handle = lock(litter)
            shutil.rmtree(litter, ignore_errors=True)
            os.close(handle)
