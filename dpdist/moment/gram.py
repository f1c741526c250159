"""Integer Gram matrices of bounded rows: pure functions, no Dask and no files.

The entries of ``Z^T Z`` are integers, and ``|z_a z_b| <= S`` for every row, so any partial sum over r rows stays
below ``r S``. While that is at most 2^53, float64 BLAS is exact in whatever order, blocking or fused operation it
uses; beyond it the sum moves to int64. Hence the same bits from every chunking and every processor.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg.blas import dsyrk

from dpdist.triangle import Band, Triangle, packed

Block = npt.NDArray[np.float64]


class GramSum:
    """Adds ``Z^T Z`` of many blocks exactly, or a band of its rows.

    Parameters
    ----------
    band
        Which rows of the triangle; its size is the number of columns of a block.
    exact_rows
        Rows whose Gram matrix float64 adds exactly, ``floor(2^53 / S)``; at least 1.
    """

    def __init__(self, band: Band, exact_rows: int) -> None:
        self._band = band
        self._exact_rows = exact_rows
        # as BLAS wants it; of the whole triangle only the lower one is filled
        self._floats = np.zeros((band.width, band.height), order="F")
        self._float_rows = 0
        self._total = np.zeros(band.entries, dtype=np.int64)

    def add(self, block: Block) -> None:
        """Add the product of integer-valued rows, C-ordered (r, size) with r at most ``exact_rows``."""
        rows = block.shape[0]
        if rows > self._exact_rows:
            raise ValueError("a block of more rows than float64 adds exactly")
        if self._float_rows + rows > self._exact_rows:
            self._flush()
        band = self._band
        if band.height == band.size:
            # one triangle, added in place: half the work, and no pass over d x d entries for every block
            self._floats = dsyrk(1.0, block.T, beta=1.0, c=self._floats, lower=1, overwrite_c=1)
        else:
            floats = self._floats.T
            floats += block[:, band.start : band.stop].T @ block[:, band.start :]
        self._float_rows += rows

    def _flush(self) -> None:
        self._total += packed(self._floats.T)
        self._floats[:] = 0
        self._float_rows = 0

    def total(self) -> Triangle:
        """Return the packed sum of everything added, int64."""
        self._flush()
        return self._total
