"""Work of hours in a folder beside its place: what a killed process has finished of it, the same command takes up.

It differs from :func:`dpdist.storage.atomic.staged` in two things. What is put there is private from the start and
flushed by whoever puts it, piece by piece, so that the end of the work costs the same whatever its size. And the folder
says what is built in it, so that it is found again.
"""

from __future__ import annotations

import glob
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dpdist._util import interruption
from dpdist._util.paths import read_plain
from dpdist.errors import DataError, ResumableError
from dpdist.storage.atomic import lock, locked_anew, remove, remove_abandoned, require_new, sync

_IDENTITY = ".identity"
_MOST = 1 << 28


@contextmanager
def resumed(target: Path, what: str, identity: bytes) -> Iterator[Path]:
    """Give a folder beside target to build in: the one that a killed builder of the same left, or a new one.

    On success it is renamed to target, as it is. It stays if the process dies or raises ResumableError, and is removed
    on any other error. Another process that builds the same is waited for.
    """
    require_new(target, what)
    try:
        with ExitStack() as stack:
            aside = _taken_up(target, what, identity, stack)
            remove_abandoned(target)
            try:
                yield aside
                for litter in aside.glob(".*.partial"):  # of workers that died while they wrote
                    litter.unlink(missing_ok=True)
                sync(aside)
                require_new(target, what)
                with interruption.sealed(aside):
                    (aside / _IDENTITY).unlink()
                    aside.rename(target)
                sync(target.absolute().parent)
            except ResumableError:
                raise
            except BaseException:
                remove(aside, target)
                raise
    except OSError as error:
        raise DataError(
            f"Writing the {what} {target} failed: {error.strerror}. Nothing was left behind; mend it and try again."
        ) from None


def _taken_up(target: Path, what: str, identity: bytes, stack: ExitStack) -> Path:
    """Lock the folder in which the same was begun, or make one; what was begun of something else is removed."""
    while (found := _begun(target, identity)) is not None:
        if _locked(found, stack):
            stack.enter_context(interruption.aside(found))
            return found
        require_new(target, what)  # whoever held it may have finished it
    aside = locked_anew(target, stack)
    with open(os.open(aside / _IDENTITY, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:  # noqa: PTH123 - of a handle
        file.write(identity)
    sync(aside / _IDENTITY)
    sync(aside)
    return aside


def _begun(target: Path, identity: bytes) -> Path | None:
    """Return a folder beside target that says that the same is built in it, and that nobody else can have made."""
    for found in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        with suppress(OSError):
            about = found.lstat()
            own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077
            if own and read_plain(found / _IDENTITY, _MOST) == identity:
                return found
    return None


def _locked(folder: Path, stack: ExitStack) -> bool:
    """Lock a folder when nobody holds it any more; say whether it is still there then."""
    try:
        handle = lock(folder, wait=True)
    except FileNotFoundError:
        return False
    stack.callback(os.close, handle)
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), folder.lstat())
    return False


def flush(root: Path, paths: Iterator[Path]) -> None:
    """Flush files to the disk, and the folders that they stand in, up to one."""
    folders: set[Path] = set()
    for path in paths:
        sync(path)
        folders.update(path.relative_to(root).parents)
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        sync(root / folder)


def drop(folder: Path) -> None:
    """Remove a folder of what is being built, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)
