"""Columns in, rows out, for files that store column after column: through a private file beside the rows.

Each block of columns is written row by row. So the rows of a piece are one stretch of bytes in every block, and neither
writing nor reading needs more memory than :data:`WINDOW`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np

from dpdist.ingest.readers.base import PIECE, Location, Rows, each
from dpdist.storage.atomic import scratch

WINDOW = 4 * PIECE
"""Bytes of a block, and of a piece: the wider both, the longer the stretches."""


def width_for(rows: int, dtype: np.dtype[np.generic]) -> int:
    """Return how many columns make a block."""
    return max(1, WINDOW // (rows * dtype.itemsize))


def turned(
    path: Location, beside: Path, blocks: Iterator[Rows], shape: tuple[int, int], dtype: np.dtype[np.generic]
) -> Generator[Rows]:
    """Yield the rows of a table that comes in blocks of columns."""
    n, d = shape
    with scratch(beside, "unpacked", n * d * dtype.itemsize) as folder:
        widths = []
        with (folder / "X").open("wb") as out:
            for block in each(path, blocks):
                out.write(np.ascontiguousarray(block, dtype=dtype).data)
                widths.append(block.shape[1])
        step = max(1, WINDOW // (d * dtype.itemsize))
        with (folder / "X").open("rb", buffering=0) as file:
            for start in range(0, n, step):
                piece = np.empty((min(step, n - start), d), dtype=dtype)
                first = 0
                for width in widths:
                    part = np.empty((len(piece), width), dtype=dtype)
                    file.seek((first * n + start * width) * dtype.itemsize)
                    file.readinto(part.data)  # our own file, and complete
                    piece[:, first : first + width] = part
                    first += width
                yield piece
