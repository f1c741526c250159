"""A store of private data for the time of a computation: a file without a name, which ends with the process."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import FileIO, RawIOBase
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any, cast

from dpdist.core.storage.atomic import Content
from dpdist.core.storage.store import FolderStore


@dataclass(frozen=True)
class NamelessStore(FolderStore):
    """Objects one after another in a file of the folder for temporary files, which a killed process leaves nowhere."""

    path: Path = field(default_factory=lambda: Path(gettempdir()))
    file: IO[bytes] = field(default_factory=TemporaryFile)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)  # where an object begins, and its size

    def put(self, key: str, content: Content) -> None:
        """Write an object."""
        start = self.file.seek(0, os.SEEK_END)
        self.file.writelines(content if isinstance(content, Iterator) else [content])
        self.file.flush()
        self.places[key] = start, self.file.tell() - start

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a range of bytes of an object; OSError if it is shorter."""
        first, size = self.places[key]
        if start + length > size:
            raise OSError(errno.EINVAL, "it is shorter")
        return os.pread(self.file.fileno(), length, first + start)

    def opened(self, key: str) -> FileIO:
        """Open an object for reading into buffers."""
        return cast("FileIO", _Object(self.file.fileno(), *self.places[key]))


class _Object(RawIOBase):
    """A sequential reader of an object."""

    def __init__(self, handle: int, start: int, size: int) -> None:
        self._handle, self._next, self._end = handle, start, start + size

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, unless the object ends before."""
        view = memoryview(buffer).cast("B")[: self._end - self._next]
        filled = 0
        while filled < len(view) and (count := os.preadv(self._handle, [view[filled:]], self._next + filled)):
            filled += count
        self._next += filled
        return filled
