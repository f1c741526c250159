"""What is checked of every source and of every row, wherever they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from dpdist.errors import DataError
from dpdist.ingest.readers.base import Rows
from dpdist.ingest.sources import Remote, Source, SourceLocation, attempt, files_of


def changed(path: SourceLocation) -> DataError:
    """Return what is said of a file that changed meanwhile."""
    return DataError(f"{path} changed while it was read. Ingest it when it is complete.")


def state_of(place: SourceLocation) -> object:
    """Return size and times of all files of a source, or what a store says of it: a write changes that."""

    def found() -> object:
        if isinstance(place, Remote):
            return place.version()
        stats = [path.stat() for path in files_of(place)]
        return [(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats]

    return attempt(place, found)


def digest_of(state: object) -> str:
    """Return a digest of a state, hexadecimal."""
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


def watching(source: Source, known: str | None, part: tuple[int, int] | None) -> Callable[[], None]:
    """Return what raises when a source is not any more what it was.

    Parameters
    ----------
    source
        The source.
    known
        Digest of the state in which it was found at first; None: that in which it is now.
    part
        The rows that are read, where it is a folder of which other parts do not matter; None: all of it.
    """
    look: Callable[[], object] = partial(state_of, source.path)
    if part is not None and not (isinstance(source.path, Path) and source.path.is_file()):
        look, known = partial(source.state, *part), None
        before: object = look()
    else:
        look = lambda: digest_of(state_of(source.path))  # noqa: E731
        before = look() if known is None else known

    def require_same() -> None:
        if look() != before:
            raise changed(source.path)

    return require_same


def require_finite(path: SourceLocation, start: int, block: Rows, names: tuple[str, ...]) -> None:
    """Refuse a value that is not finite, by its row and column; the first row of the block is number ``start``."""
    if block.dtype.kind == "f" and not np.isfinite(block).all():
        row, place = np.argwhere(~np.isfinite(block))[0]
        raise DataError(
            f"{path}, row {start + row} (counting from 0), column {names[place]!r}: the value is not finite. "
            "Mend it in the file and ingest again."
        )
