"""The packed upper triangle of a symmetric integer matrix: how moments and noise travel between the rooms.

A matrix that does not fit a process travels in bands: rows of the triangle, which lie in its packed entries one after
the other. From row i on, the rows of a triangle of size d are the first rows of a triangle of size d - i, so a band
needs no arithmetic of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Triangle = npt.NDArray[np.int64]
"""Row by row: entry (i, j), i <= j, stands at ``i size - i(i-1)/2 + (j - i)``."""
TILE = 1024
"""Side of the square tiles a released matrix is stored in; bands are cut where tiles are."""
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
        """Return the band that is all of the triangle."""
        return cls(0, size, size)

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    @property
    def width(self) -> int:
        """Length of the first row; each next one is shorter by one."""
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
        """Yield rows and columns of the tiles of the triangle that the band covers; it must start where a tile does."""
        for row in range(self.start, self.stop, TILE):
            for column in range(row, self.size, TILE):
                yield range(row, min(row + TILE, self.stop)), range(column, min(column + TILE, self.size))

    def block(self, values: Triangle, rows: range, columns: range) -> npt.NDArray[np.int64]:
        """Return a rectangle of the symmetric matrix out of the packed band."""
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

    Rounding a released number, or cutting it off where int64 ends, is post-processing, so a guarantee about the real
    number carries over. A refusal that depended on the released number would be a leak.
    """
    return packed(np.clip(np.rint((matrix + matrix.T) / 2), -_LARGEST, _LARGEST))


def diagonal_positions(size: int) -> npt.NDArray[np.intp]:
    """Positions of the diagonal entries in a packed triangle, shape (size,)."""
    i = np.arange(size, dtype=np.intp)
    return i * size - i * (i - 1) // 2
