"""Work of hours in a folder beside its place: what a killed process has finished of it, the same command takes up.

It differs from :func:`dpdist.storage.atomic.staged` in two things. What is put there is private from the start and
flushed by whoever puts it, piece by piece, so that the end of the work costs the same whatever its size. And the folder
says what is built in it, so that it is found again.

Removing what dead processes left beside a place, or in it; :mod:`dpdist.storage.atomic` says how it is named.

Three things must hold together, because a name alone proves nothing. Nobody holds its lock: a live builder does. It is
this user's, to the last file, and there is no link in it. And nobody else could have given it its name: neither its
folder nor one above it can be changed by others, who could call anything of this user's a leftover.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dpdist._util import interruption
from dpdist._util.paths import read_plain
from dpdist.errors import DataError, ResumableError
from dpdist.storage.atomic import lock, locked_anew, remove, remove_abandoned, require_new, sync


def clean(target: Path, age: float) -> list[Path]:
    """Remove what was left of attempts at a place that nobody touched for so many seconds; return it."""
    target = target.absolute()
    found = []
    for path in _named_so(target.parent, re.escape(target.name)):
        _require_own(target.parent)
        if (_folder_removed if path.is_dir() and not path.is_symlink() else _file_removed)(path, age):
            found.append(path)
    with suppress(OSError):
        if _is_own(target.lstat()) and stat.S_ISDIR(target.lstat().st_mode):
            for path in _named_so(target, ".+"):  # of a file of it that was replaced
                _require_own(target)
                if _file_removed(path, age):
                    found.append(path)
    return found


def _named_so(folder: Path, name: str) -> Iterator[Path]:
    with suppress(OSError):
        yield from (
            path for path in sorted(folder.iterdir()) if re.fullmatch(rf"\.{name}\.[0-9a-f]{{8}}\.partial", path.name)
        )


def _require_own(folder: Path) -> None:
    for each in (folder, *folder.parents):
        about = each.lstat()
        others = about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX
        if others or about.st_uid not in {0, os.geteuid()} or not stat.S_ISDIR(about.st_mode):
            raise DataError(
                f"Others can change {each}, and could have called anything a leftover. Remove by hand what is none of "
                "yours, or let only you change that folder."
            )


def _is_own(about: os.stat_result) -> bool:
    return about.st_uid == os.geteuid()


def _file_removed(path: Path, age: float) -> bool:
    """Remove a file, if it is this user's own and nothing else; say whether it was."""
    with suppress(OSError):
        about = path.lstat()
        if stat.S_ISREG(about.st_mode) and about.st_nlink == 1 and _is_own(about) and _older(about, age):
            path.unlink()
            return True
    return False


def _folder_removed(path: Path, age: float) -> bool:
    """Remove a folder that nobody holds, if all of it is this user's own; say whether it was."""
    try:
        handle = lock(path)  # a live builder holds it
    except OSError:
        return False
    try:
        held = os.fstat(handle)
        if not os.path.samestat(held, path.lstat()) or not _all_own(path, held.st_dev, age):
            return False  # or it was renamed into place meanwhile
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()
    except OSError:
        return False
    finally:
        os.close(handle)


def _all_own(root: Path, device: int, age: float) -> bool:
    """Say whether a folder holds files and folders of this user only, of one disk, and all of them are old enough."""

    def broken(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=broken):
        for path in (Path(folder), *(Path(folder, name) for name in (*folders, *names))):  # a link may be among both
            about = path.lstat()
            known = stat.S_ISDIR(about.st_mode) or (stat.S_ISREG(about.st_mode) and about.st_nlink == 1)
            if not (known and _is_own(about) and about.st_dev == device and _older(about, age)):
                return False
    return True


def _older(about: os.stat_result, age: float) -> bool:
    return time.time() - about.st_mtime >= age


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
