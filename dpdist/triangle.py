"""The packed upper triangle of a symmetric integer matrix: how moments and noise travel between the rooms."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Triangle = npt.NDArray[np.int64]
"""Row by row: entry (i, j), i <= j, stands at ``i size - i(i-1)/2 + (j - i)``."""
_LARGEST = float(np.nextafter(2.0**63, 0))


def packed(matrix: npt.NDArray[np.generic]) -> Triangle:
    """Pack the upper triangle of a (d, d) matrix of integers row by row, shape (d(d+1)/2,), int64."""
    size = matrix.shape[0]
    out = np.empty(size * (size + 1) // 2, dtype=np.int64)
    start = 0
    for i in range(size):
        out[start : start + size - i] = matrix[i, i:]
        start += size - i
    return out


def unpacked(triangle: Triangle, size: int) -> npt.NDArray[np.int64]:
    """Return the symmetric (size, size) matrix of a packed triangle."""
    out = np.empty((size, size), dtype=np.int64)
    start = 0
    for i in range(size):
        row = triangle[start : start + size - i]
        out[i, i:] = row
        out[i:, i] = row
        start += size - i
    return out


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
