"""Bytes and lines from a place in a file on, on a disk or in a store, for readers of pieces of one file.

A cut in text is safe if it is no line end within quotes, and from the middle of a file nobody can tell what is quoted.
So a range vouches for the lines that begin in it: each closes the quotes that it opens, and has them around whole cells
only. If all ranges do, then the first line begins outside of quotes, and with it each line after another.
"""

from __future__ import annotations

import io
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpdist._util.paths import read_plain_range
from dpdist.ingest.readers.base import PIECE, attempt

_BESIDE = np.zeros(256, dtype=bool)
"""The bytes that stand before a quote that opens a cell, or the second of two, and after one that closes it."""
_BESIDE[list(b',\r\n"')] = True


def read_range(path: Any, start: int, length: int) -> bytes:
    """Return so many bytes of a file or object; DataError if it has not so many.

    Parameters
    ----------
    path
        A :class:`~dpdist.ingest.readers.base.Location`.
    start, length
        In bytes.
    """
    read = partial(read_plain_range, path) if isinstance(path, Path) else path.range
    found: bytes = attempt(path, partial(read, start, length))
    return found


class _Range(io.RawIOBase):
    def __init__(self, path: Any, start: int, stop: int) -> None:
        self._path, self._place, self._stop = path, start, stop

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._stop - self._place)
        if size:
            buffer[:size] = read_range(self._path, self._place, size)
            self._place += size
        return size


def opened_range(path: Any, start: int, stop: int) -> io.BufferedReader:
    """Open a range of bytes as a file of its own; about 8 MiB are asked for at once."""
    return io.BufferedReader(_Range(path, start, stop), max(1, min(PIECE, stop - start)))


def cut(size: int, length: int) -> list[tuple[int, int]]:
    """Return ranges of a length that are so many bytes together; the last one may be shorter."""
    return [(start, min(start + length, size)) for start in range(0, size, length)]


def scanned(path: Any, start: int, stop: int, size: int, longest: int) -> tuple[bool, int]:
    """Say whether the lines that begin in a range are beyond doubt, and where the first one begins; -1: none does.

    Parameters
    ----------
    path
        Where the text is.
    start, stop
        The range, in bytes; of the last line what is behind it is read, too.
    size, longest
        Bytes of the file, and of a line at most.
    """
    place = max(start - 1, 0)
    with opened_range(path, place, stop) as file:
        while start and (line := file.readline(longest)):  # one that began before
            place += len(line)
            if line.endswith(b"\n"):
                break
        if place == stop:
            return True, -1
        rest = b""
        while more := file.read(longest - len(rest)):
            lines, end, rest = (rest + more).rpartition(b"\n")
            if len(rest) == longest or not _sound(lines + end):
                return False, place
    if rest:
        with opened_range(path, stop, min(size, stop + longest)) as behind:
            rest += behind.readline()
    return len(rest) <= longest and _sound(rest), place


def _sound(lines: bytes) -> bool:
    """Say whether whole lines are UTF-8, and their cells quoted as a whole and in one line, or not at all."""
    if not lines.isascii():
        text = None
        with suppress(UnicodeDecodeError):
            text = lines.decode()
        if text is None:
            return False
    if b'"' not in lines:
        return True
    letters = np.frombuffer(b"\n%b\n" % lines, dtype=np.uint8)
    quotes = np.flatnonzero(letters == ord('"'))
    if len(quotes) % 2 or not (_BESIDE[letters[quotes[::2] - 1]].all() and _BESIDE[letters[quotes[1::2] + 1]].all()):
        return False
    ends = np.flatnonzero((letters == ord("\n")) | (letters == ord("\r")))
    return not (np.searchsorted(quotes, ends) % 2).any()


def ends_before(path: Any, place: int) -> int:
    """Return how many lines end before the start of a line: by a line feed, a carriage return, or both."""
    found, held = 0, b""
    with opened_range(path, 0, place) as file:
        while piece := held + file.read(PIECE):
            held = b"\r" if len(piece) > 1 and piece.endswith(b"\r") else b""  # a line feed may follow
            whole = piece[: len(piece) - len(held)]
            found += whole.count(b"\n") + whole.count(b"\r") - whole.count(b"\r\n")
    return found
