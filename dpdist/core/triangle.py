"""The packed upper triangle of a symmetric integer matrix, in which moments and noise are passed.

A matrix that does not fit in the memory of a process is passed in bands: consecutive rows of the triangle, contiguous
in packed form. The rows of a triangle of size d from row i are the first rows of a triangle of size d - i, so a band
needs no special arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Triangle = npt.NDArray[np.int64]
"""Row by row: entry (i, j), i <= j, has index ``i size - i(i-1)/2 + (j - i)``."""
TILE = 1024
"""Side of the square tiles of a stored release; bands end at tiles."""
_LARGEST = float(np.nextafter(2.0**63, 0))


@dataclass(frozen=True)
class Band:
    """The rows of the upper triangle of a (size, size) matrix from ``start`` up to ``stop``."""

    start: int
    stop: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop <= self.size:
            raise ValueError("a band holds at least one row of its triangle")

    @classmethod
    def whole(cls, size: int) -> Band:
        """Return the band of the whole triangle."""
        return cls(0, size, size)

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    @property
    def width(self) -> int:
        """Length of the first row; each row is one shorter than the previous one."""
        return self.size - self.start

    @property
    def entries(self) -> int:
        """Number of packed entries."""
        return self.height * self.width - self.height * (self.height - 1) // 2

    @property
    def diagonal(self) -> npt.NDArray[np.intp]:
        """Positions of the diagonal entries in the packed band, shape (height,)."""
        return diagonal_positions(self.width)[: self.height]

    def tiles(self) -> Iterator[tuple[range, range]]:
        """Yield the rows and columns of each tile of the band, which must start at a tile."""
        for row in range(self.start, self.stop, TILE):
            for column in range(row, self.size, TILE):
                yield range(row, min(row + TILE, self.stop)), range(column, min(column + TILE, self.size))

    def block(self, values: Triangle, rows: range, columns: range) -> npt.NDArray[np.int64]:
        """Return a rectangle of the symmetric matrix from the packed band."""
        block = np.empty((len(rows), len(columns)), dtype=np.int64)
        starts = self.diagonal
        for i, row in enumerate(rows):
            first = max(row, columns.start)
            begin = starts[row - self.start] + first - row
            block[i, first - columns.start :] = values[begin : begin + columns.stop - first]
        square = min(len(rows), len(columns)) if rows.start == columns.start else 0
        for i in range(1, square):
            block[i, :i] = block[:i, i]
        return block


def packed(matrix: npt.NDArray[np.generic]) -> Triangle:
    """Pack the upper triangle of a matrix of integers row by row, int64."""
    rows, size = matrix.shape
    triangle = np.empty(Band(0, rows, size).entries, dtype=np.int64)
    start = 0
    for i in range(rows):
        triangle[start : start + size - i] = matrix[i, i:]
        start += size - i
    return triangle


def unpacked(triangle: Triangle, size: int) -> npt.NDArray[np.int64]:
    """Return the symmetric (size, size) matrix of a packed triangle."""
    matrix = np.empty((size, size), dtype=np.int64)
    start = 0
    for i in range(size):
        row = triangle[start : start + size - i]
        matrix[i, i:] = row
        matrix[i:, i] = row
        start += size - i
    return matrix


def rounded(matrix: npt.NDArray[np.float64]) -> Triangle:
    """Round the symmetric part of a (d, d) matrix of lattice units to the lattice and pack it.

    Rounding a released number and clipping it to int64 are post-processing, so the guarantee is preserved. A refusal
    that depended on the released number would be a leak.
    """
    return packed(np.clip(np.rint((matrix + matrix.T) / 2), -_LARGEST, _LARGEST))


def diagonal_positions(size: int) -> npt.NDArray[np.intp]:
    """Positions of the diagonal entries in a packed triangle, shape (size,)."""
    i = np.arange(size, dtype=np.intp)
    return i * size - i * (i - 1) // 2
