"""Removing what dead processes left beside a place, or in it; :mod:`dpdist.storage.atomic` says how it is named.

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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dpdist.errors import DataError
from dpdist.storage.atomic import lock


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
