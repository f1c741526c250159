"""Removal of staging paths that dead processes left, named as in :mod:`dpdist.core.storage.atomic`.

A name alone proves nothing, so three conditions must hold. No process holds the lock, as a live builder does. This user
owns every file, and there are no links. No other user could have given the name: neither the folder nor a parent is
writable by others, who could rename any file of this user to look like a leftover.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from dpdist.core.errors import DataError
from dpdist.core.storage.atomic import lock


def clean(target: Path, age: float) -> list[Path]:
    """Remove and return leftovers at a path that are older than ``age`` seconds."""
    target = target.absolute()
    removed = list(_removed(target.parent, re.escape(target.name), age, _remove))
    with suppress(OSError):
        status = target.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            removed += _removed(target, ".+", age, _remove_file)  # from replacing a file in it
    return removed


def _removed(folder: Path, name: str, age: float, remove: Callable[[Path, float], bool]) -> Iterator[Path]:
    paths: list[Path] = []
    with suppress(OSError):
        paths = sorted(
            path for path in folder.iterdir() if re.fullmatch(rf"\.{name}\.[0-9a-f]{{8}}\.partial", path.name)
        )
    if paths:
        _require_own(folder)
    yield from (path for path in paths if remove(path, age))


def _require_own(folder: Path) -> None:
    for parent in (folder, *folder.parents):
        status = parent.lstat()
        shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if shared or status.st_uid not in {0, os.geteuid()} or not stat.S_ISDIR(status.st_mode):
            raise DataError(
                f"Other users can change {parent}, and could have given any file the name of a leftover, so nothing "
                "was removed. Remove leftovers by hand, or make that folder writable by you alone."
            )


def _is_litter(status: os.stat_result, age: float) -> bool:
    """Return whether it is a folder or a file without other links, of this user, and old enough."""
    plain = stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)
    return plain and status.st_uid == os.geteuid() and time.time() - status.st_mtime >= age


def _remove(path: Path, age: float) -> bool:
    return _remove_folder(path, age) if path.is_dir() and not path.is_symlink() else _remove_file(path, age)


def _remove_file(path: Path, age: float) -> bool:
    with suppress(OSError):
        if _is_litter(path.lstat(), age):
            path.unlink()  # an error if it is a folder
            return True
    return False


def _remove_folder(path: Path, age: float) -> bool:
    """Remove an unlocked folder if all its contents are litter on one device; return whether it was removed."""
    try:
        handle = lock(path)  # a live builder holds it
    except OSError:
        return False
    try:
        locked = os.fstat(handle)
        renamed = not os.path.samestat(locked, path.lstat())  # published meanwhile
        if renamed or not all(status.st_dev == locked.st_dev and _is_litter(status, age) for status in _all_in(path)):
            return False
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()
    except OSError:
        return False
    finally:
        os.close(handle)


def _all_in(root: Path) -> Iterator[os.stat_result]:
    def broken(error: OSError) -> None:
        raise error

    yield root.lstat()
    for folder, folders, names in os.walk(root, onerror=broken):
        yield from (Path(folder, name).lstat() for name in (*folders, *names))  # both lists may contain links
