"""Paths, and files from untrusted folders."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dpdist.core.errors import DataError, UsageError

AnyPath = str | os.PathLike[str]
_CHUNK = 1 << 16
_LONGEST = 255  # bytes of a name in a folder, on Linux
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_address(text: str) -> bool:
    """Return whether text is an address such as ``s3://bucket/folder`` rather than a path."""
    return _ADDRESS.match(text) is not None


def text_of(path: object) -> str:
    """Return a path or an address as text; UsageError if it is none."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise UsageError(f"A path or an address is needed, not a value of type {type(path).__name__}.")
    names = () if is_address(text) else os.fsencode(text).split(b"/")
    if not text or "\0" in text or any(len(name) > _LONGEST for name in names):
        raise UsageError("A path is empty, contains a null character, or has a name that is too long. Correct it.")
    return text


def local(path: AnyPath) -> Path:
    """Return a path on this machine."""
    text = text_of(path)
    if is_address(text):
        raise UsageError(
            f"{text} is an address, and a file or folder on this machine is needed here. Copy it to this machine and "
            "pass the path of the copy."
        )
    return Path(text)


def require_plain(root: Path, inner: AnyPath) -> None:
    """Refuse anything but plain files and folders in an untrusted folder."""
    # a link could expose files that its author cannot read, and a pipe or device could yield bytes without end
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
    """Return the error for a link, pipe or device in an untrusted folder."""
    return DataError(
        f"{path} is not a plain file: it is a link, pipe or device, and dpdist does not read those. Copy the folder "
        "with cp -rL, which replaces links by the files they point to."
    )


def read_plain(path: Path, limit: int) -> bytes:
    """Return the bytes of an untrusted file; OSError if it is longer than ``limit`` or not a plain file."""
    with _opened_plain(path) as (file, size):
        content = file.read(min(size, limit) + 1)  # reserves memory for the file, not for the limit
        while len(content) <= limit and (chunk := file.read(_CHUNK)):  # it has grown since
            content += chunk
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit >> 20} MiB")
    return content


def read_plain_range(path: Path, start: int, length: int) -> bytes:
    """Return ``length`` bytes of an untrusted file from the offset ``start``."""
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
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123 - a handle
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        yield file, status.st_size
