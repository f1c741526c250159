"""Paths as callers name them: text, or anything that stands for a path."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dpdist.errors import DataError, UsageError

AnyPath = str | os.PathLike[str]
_PIECE = 1 << 16
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_address(text: str) -> bool:
    """Say whether text is the address of something in a store, such as ``s3://bucket/folder``, and no path."""
    return _ADDRESS.match(text) is not None


def local(path: AnyPath) -> Path:
    """Return a path on this machine."""
    text = os.fspath(path)
    if is_address(text):
        raise UsageError(
            f"{text} is an address of a kind that is not read and written in place, or this is a file or folder of "
            "this machine: copy it here, and name the copy."
        )
    return Path(text)


def require_plain(root: Path, inner: AnyPath) -> None:
    """Refuse what is no plain file or folder within a folder that may come from anybody.

    A link leads to what whoever made it could not read himself, and a pipe or device gives bytes without end.
    """
    path = root
    for name in Path(inner).parts:
        path = path / name
        try:
            mode = path.lstat().st_mode
        except OSError:
            return
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise not_plain(path)


def not_plain(path: AnyPath) -> DataError:
    """Return what is said of a link, pipe or device within a folder that may come from anybody."""
    return DataError(
        f"{path} is a link or no file, and only plain files are read within a folder of this kind. Copy "
        "the folder with what its links lead to (cp -rL)."
    )


def read_plain(path: Path, most: int) -> bytes:
    """Return the bytes of a file that may come from anybody: it is no pipe or device, and not longer than so many."""
    with _opened_plain(path) as (file, size):
        content = file.read(min(size, most) + 1)  # as much memory as there is to read, and not as may be
        while len(content) <= most and (more := file.read(_PIECE)):  # it has grown since
            content += more
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is of more than {most >> 20} MiB")
    return content


def read_plain_range(path: Path, start: int, length: int) -> bytes:
    """Return so many bytes of a file that may come from anybody, from a place in it."""
    with _opened_plain(path) as (file, size):
        if start + length > size:
            raise OSError(errno.EINVAL, "it is shorter")
        file.seek(start)
        content = file.read(length)
    if len(content) < length:
        raise OSError(errno.EINVAL, "it is shorter")
    return content


@contextmanager
def _opened_plain(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """Open a file that may come from anybody, and say how long it is."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123 - of a handle
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        yield file, about.st_size
