"""Removing what dead processes left beside a folder, or in it; :mod:`dpdist.storage.atomic` says how it is named.

Three things must hold together, because a name alone proves nothing. Nobody holds its lock: a live builder does. It is
this user's, to the last file, and there is no link in it. And nobody else could have given it its name: neither its
folder nor one above it can be changed by others, who could call anything of this user's a leftover.
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

from dpdist.errors import DataError
from dpdist.storage.atomic import lock


def clean(target: Path, age: float) -> list[Path]:
    """Remove leftovers of attempts at a path that nobody touched for ``age`` seconds; return them."""
    target = target.absolute()
    removed = list(_removed(target.parent, re.escape(target.name), age, _remove))
    with suppress(OSError):
        about = target.lstat()
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
            removed += _removed(target, ".+", age, _remove_file)  # of a file in it that was replaced
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
        about = parent.lstat()
        others = about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX
        if others or about.st_uid not in {0, os.geteuid()} or not stat.S_ISDIR(about.st_mode):
            raise DataError(
                f"Others can change {parent}, and could have called anything a leftover. Remove by hand what is none "
                "of yours, or let only you change that folder."
            )


def _is_litter(about: os.stat_result, age: float) -> bool:
    """Say whether it is a folder or the only name of a file, of this user, and old enough."""
    plain = stat.S_ISDIR(about.st_mode) or (stat.S_ISREG(about.st_mode) and about.st_nlink == 1)
    return plain and about.st_uid == os.geteuid() and time.time() - about.st_mtime >= age


def _remove(path: Path, age: float) -> bool:
    return _remove_folder(path, age) if path.is_dir() and not path.is_symlink() else _remove_file(path, age)


def _remove_file(path: Path, age: float) -> bool:
    with suppress(OSError):
        if _is_litter(path.lstat(), age):
            path.unlink()  # an error if it is a folder
            return True
    return False


def _remove_folder(path: Path, age: float) -> bool:
    """Remove a folder that nobody holds, if all in it is litter on one disk; say whether it was removed."""
    try:
        handle = lock(path)  # a live builder holds it
    except OSError:
        return False
    try:
        held = os.fstat(handle)
        renamed = not os.path.samestat(held, path.lstat())  # into place, meanwhile
        if renamed or not all(about.st_dev == held.st_dev and _is_litter(about, age) for about in _all_in(path)):
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
        yield from (Path(folder, name).lstat() for name in (*folders, *names))  # a link may be among both
