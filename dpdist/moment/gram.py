"""Integer Gram matrices of bounded rows: pure functions, no Dask and no files.

The entries of ``Z^T Z`` are integers, and ``|z_a z_b| <= S`` for every row, so any partial sum over r rows stays
below ``r S``. While that is at most 2^53, float64 BLAS is exact in whatever order, blocking or fused operation it
uses; beyond it the sum moves to int64. Hence the same bits from every chunking and every processor.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpdist.triangle import Triangle, packed

Block = npt.NDArray[np.float64]


class GramSum:
    """Adds ``Z^T Z`` of many blocks exactly.

    Parameters
    ----------
    width
        Columns of a block.
    exact_rows
        Rows whose Gram matrix float64 adds exactly, ``floor(2^53 / S)``; at least 1.
    """

    def __init__(self, width: int, exact_rows: int) -> None:
        self._exact_rows = exact_rows
        self._product = np.empty((width, width))
        self._floats = np.zeros((width, width))
        self._float_rows = 0
        self._total = np.zeros(width * (width + 1) // 2, dtype=np.int64)

    def add(self, block: Block) -> None:
        """Add the Gram matrix of integer-valued rows, shape (r, width) with r at most ``exact_rows``."""
        rows = block.shape[0]
        if rows > self._exact_rows:
            raise ValueError("a block of more rows than float64 adds exactly")
        if self._float_rows + rows > self._exact_rows:
            self._flush()
        np.matmul(block.T, block, out=self._product)
        self._floats += self._product
        self._float_rows += rows

    def _flush(self) -> None:
        self._total += packed(self._floats)
        self._floats[:] = 0
        self._float_rows = 0

    def total(self) -> Triangle:
        """Return the packed sum of everything added, int64."""
        self._flush()
        return self._total
