"""Write a folder next to its place and rename it: a reader sees all of it or nothing, whatever dies on the way."""

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

from dpdist._util import interruption
from dpdist._util.paths import read_plain
from dpdist._util.text import random_token
from dpdist.errors import DataError, ResumableError

_FLUSHED_AT_ONCE = 8
_IDENTITY = ".identity"


def require_new(target: Path, what: str) -> None:
    """Refuse to write over something."""
    if os.path.lexists(target):
        raise DataError(f"{target} exists already. Choose another place for the {what}.")
    parent = target.absolute().parent
    if not parent.is_dir():
        raise DataError(f"The folder {parent} does not exist. Create it first, then write the {what} there.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise DataError(f"The folder {parent} is not writable. Change its permissions or write the {what} elsewhere.")


def make_public_folder(path: Path) -> None:
    """Make a folder, and those it stands in, that others may look into and only its owner may change."""
    if not path.is_dir():
        make_public_folder(path.absolute().parent)
        path.mkdir(0o755, exist_ok=True)


def require_space(folder: Path, size: int, what: str) -> None:
    """Refuse to write more than there is room for: a few bytes may announce any number of rows.

    How much was announced is not said, because the number of rows may be private.
    """
    free = shutil.disk_usage(folder).free
    if size > free:
        raise DataError(
            f"The {what} need more than the {free >> 20} MiB that are free at {folder}. Free some space there, or "
            "write them elsewhere."
        )


def require_folder(target: Path) -> None:
    """Refuse a folder that is neither there nor can be made, with those above it."""
    nearest = target.absolute()
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    if not nearest.is_dir():
        raise DataError(f"{nearest} exists and is no folder. Choose another place for {target}.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise DataError(f"The folder {nearest} is not writable. Change its permissions, or choose another place.")


def sync_tree(root: Path) -> None:
    """Flush every file and folder under root, and root itself, to the disk: several at a time, as disks can."""
    with ThreadPoolExecutor(_FLUSHED_AT_ONCE) as pool:
        for folder, _, names in os.walk(root):
            for _ in pool.map(sync, [Path(folder), *(Path(folder) / name for name in names)]):
                pass


def flush(root: Path, paths: Iterable[Path]) -> None:
    """Flush files, and the folders they stand in up to root, to the disk."""
    folders: set[Path] = set()
    for path in paths:
        sync(path)
        folders.update(path.relative_to(root).parents)
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        sync(root / folder)


def sync(path: Path) -> None:
    """Flush one file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def staged(target: Path, what: str, *, private: bool = False, resume: bytes | None = None) -> Iterator[Path]:
    """Give a locked folder beside target to build in; it is renamed to target when the block ends, or else removed.

    It is flushed as a whole. With ``resume``, which says what is built in it, the builder flushes it file by file, so
    that the end costs the same whatever its size, and all of it is private. It stays if the process dies or raises
    ResumableError; the next builder of the same gets it, and waits for one that lives.
    """
    require_new(target, what)
    try:
        with ExitStack() as stack:
            aside = locked_anew(target, stack) if resume is None else _taken_up(target, what, resume, stack)
            try:
                remove_abandoned(target)
                yield aside
                if resume is None:
                    _set_modes(aside, private=private)
                    sync_tree(aside)
                else:
                    for litter in aside.glob(".*.partial"):  # of workers that died while they wrote
                        litter.unlink(missing_ok=True)
                    sync(aside)
                require_new(target, what)
                with interruption.sealed(aside):
                    (aside / _IDENTITY).unlink(missing_ok=True)
                    aside.rename(target)
                sync(target.absolute().parent)
            except BaseException as error:
                if resume is None or not isinstance(error, ResumableError):
                    remove(aside, target)
                raise
    except OSError as error:
        raise DataError(
            f"Writing the {what} {target} failed: {error.strerror}. Nothing was left behind; mend it and try again."
        ) from None


def _taken_up(target: Path, what: str, identity: bytes, stack: ExitStack) -> Path:
    """Lock the folder in which the same was begun, or make one; what was begun of something else is removed."""
    while (begun := _begun(target, identity)) is not None:
        with suppress(FileNotFoundError):
            handle = lock(begun, wait=True)
            stack.callback(os.close, handle)
            if os.path.samestat(os.fstat(handle), begun.lstat()):
                stack.enter_context(interruption.aside(begun))
                return begun
        require_new(target, what)  # whoever held it may have finished it
    aside = locked_anew(target, stack)
    _write_new(aside / _IDENTITY, identity)
    sync(aside / _IDENTITY)
    sync(aside)
    return aside


def _begun(target: Path, identity: bytes) -> Path | None:
    """Return a folder beside target that says that the same is built in it, and that nobody else can have made."""
    for folder in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        with suppress(OSError):
            about = folder.lstat()
            own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077
            if own and read_plain(folder / _IDENTITY, len(identity)) == identity:
                return folder
    return None


def make_once(there: Callable[[], bool], make: Callable[[], object]) -> bool:
    """Make what is not there; should another process make it meanwhile, that is taken.

    Return whether it was made now.
    """
    if there():
        return False
    try:
        make()
    except DataError:
        if not there():
            raise
        return False
    return True


@contextmanager
def scratch(scratch_dir: Path, name: str, size: int = 0) -> Iterator[Path]:
    """Give an empty folder that only its owner can enter, for private rows that pass through the disk; then remove it.

    As in :func:`staged`, what a killed process left of that name is recognised and removed by the next one.
    """
    remove_abandoned(scratch_dir / name)
    require_space(scratch_dir, size, "rows, which are unpacked first,")
    with ExitStack() as stack:
        aside = locked_anew(scratch_dir / name, stack)
        stack.callback(remove, aside, scratch_dir / name)
        yield aside


def _set_modes(root: Path, *, private: bool) -> None:
    """Say who may read and write a folder and what is in it, whatever the umask was.

    What is private belongs to its owner alone. What is public others may read, unless the umask kept it from them, and
    nobody else may ever write.
    """
    folders, files = (0o700, 0o600) if private else (0o755 & ~_umask(), 0o644 & ~_umask())
    for folder, _, names in os.walk(root):
        Path(folder).chmod(folders)
        for name in names:
            Path(folder, name).chmod(files)


def _umask() -> int:
    """Return the umask, which the system tells only to whoever sets one."""
    found = os.umask(0o077)
    os.umask(found)
    return found


def locked_anew(target: Path, stack: ExitStack) -> Path:
    """Make a folder beside target, for its owner alone, which is locked until a stack is closed."""
    while True:  # again, should a cleaner take it in the instant between making and locking it
        aside = _aside_of(target)
        stack.enter_context(interruption.aside(aside))
        aside.mkdir(0o700)
        with suppress(FileNotFoundError, BlockingIOError):
            stack.callback(os.close, lock(aside))
            if aside.exists():
                return aside


def remove(aside: Path, target: Path) -> None:
    """Remove a folder that was built in, if it is still there.

    Workers that were not stopped yet may write into it by its name: it gets another one first.
    """
    gone = _aside_of(target)
    with suppress(OSError):
        aside.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _aside_of(target: Path) -> Path:
    """Return a new path beside a target, which :func:`remove_abandoned` knows."""
    return target.with_name(f".{target.name}.{random_token()[:8]}.partial")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder against every other process that asks to hold it, waiting for it if need be."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        yield  # whoever reads the folder says what is wrong with it
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            raise DataError(
                f"{folder} cannot be locked: {error.strerror}. Its file system has no locks (flock), without which two "
                "runs at once could each create a ledger for it: put it where there are."
            ) from None
        yield
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes, what: str, *, private: bool = False) -> None:
    """Replace the content of a file in one step, flushed; a private one nobody but its owner can read."""
    aside = _aside_of(path)
    try:
        with interruption.aside(aside), ExitStack() as stack:
            stack.callback(aside.unlink, missing_ok=True)
            put_in_place(path, aside, content, 0o600 if private else 0o644 & ~_umask())
    except OSError as error:
        raise DataError(f"Writing the {what} {path} failed: {error.strerror}. Nothing was changed.") from None


def put_in_place(path: Path, aside: Path, content: bytes, mode: int) -> None:
    """Write a new file aside, flush it, and rename it to path in one step: it is durable when this returns."""
    _write_new(aside, content)
    aside.chmod(mode)
    sync(aside)
    aside.replace(path)
    sync(path.parent)


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that must not be there yet, for its owner alone."""
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:  # noqa: PTH123 - of a handle
        file.write(content)


def lock(folder: Path, *, wait: bool = False) -> int:
    """Lock a folder and return its handle; BlockingIOError if another process holds it, unless that is waited for."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)  # a pipe of that name would never open
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(handle)
        raise
    return handle


def remove_abandoned(target: Path) -> None:
    """Remove what processes that were killed left while they made something there."""
    for litter in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        # a live builder holds the lock; one that has just ended takes its folder away itself
        with suppress(OSError):
            handle = lock(litter)
            shutil.rmtree(litter, ignore_errors=True)
            os.close(handle)
