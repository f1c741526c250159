"""Integer Gram matrices of bounded rows: pure functions, no Dask and no files.

The entries of ``Z^T Z`` are integers, and ``|z_a z_b| <= S`` for every row, S the verified bound of its squared norm.
So any partial sum over r rows stays within ``r S``, and there are two ways to add it exactly, whatever is added first:

* float64 BLAS, while ``r S`` is at most 2^53, in whatever order, blocking or fused operation it uses;
* products of 16-bit integers in 32-bit ones (:mod:`dpdist.moment.kernel`), while ``r S`` is at most 2^31 - 1. These are
  added modulo 2^32, and the sum is the only integer in their range that is equal to it modulo 2^32. One row more may
  overflow: 512 rows of ``2^11 e_j`` sum to 2^31, which 32 bits hold as -2^31. An entry of a row is at most ``sqrt(S)``,
  which 16 bits hold up to 2^15 - 1.

Then the sum moves to int64. Hence the same bits from every chunking, every processor and both ways.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg.blas import dsyrk

from dpdist.triangle import Band, Triangle, packed

Block = npt.NDArray[np.float64]
_LARGEST_16, _LARGEST_32 = 2**15 - 1, 2**31 - 1
_AT_ONCE = 512
"""Rows that are multiplied at once as integers, at most: the panels of a tile then stay in a core's own caches."""
_FEWEST = 64
"""With fewer rows at once, as from 13 grid bits on, adding to int64 takes more than integers save."""
_NARROWEST = 24
"""With fewer columns, most of a tile is empty, and BLAS is as fast."""


class Arithmetic(Enum):
    """What rows are multiplied with, the fastest first; its value is the feature of the processor that it needs."""

    VNNI = "avx512vnni"
    AVX2 = "avx2"
    FLOAT64 = ""


@cache
def available() -> tuple[Arithmetic, ...]:
    """Return what this processor has, the fastest first.

    Only float64 where numba cannot be imported: it refuses a NumPy that is newer than itself.
    """
    try:
        from dpdist._util.machine_code import features  # noqa: PLC0415 - numba takes time to import
    except ImportError:
        return (Arithmetic.FLOAT64,)
    found = features()
    return tuple(each for each in Arithmetic if each is Arithmetic.FLOAT64 or each.value in found)


def integer_rows(norm_bound: int) -> int:
    """Return how many rows of a squared norm of at most S 16-bit integers multiply exactly at once: 0 if none."""
    return min(_AT_ONCE, _LARGEST_32 // norm_bound) if norm_bound <= _LARGEST_16**2 else 0


def fastest(columns: int, norm_bound: int) -> Arithmetic:
    """Return what multiplies rows of a squared norm of at most S fastest here."""
    worth = columns >= _NARROWEST and integer_rows(norm_bound) >= _FEWEST
    return available()[0] if worth else Arithmetic.FLOAT64


class GramSum:
    """Adds ``Z^T Z`` of many blocks exactly, or a band of its rows.

    Parameters
    ----------
    band
        Which rows of the triangle; its size is the number of columns of a block.
    norm_bound
        S, which the squared norm of no row exceeds.
    arithmetic
        What multiplies, one of :func:`available`; the rest would end the process. None: the fastest one.

    Raises
    ------
    ValueError
        If that arithmetic does not hold a single row exactly.
    """

    def __init__(self, band: Band, norm_bound: int, arithmetic: Arithmetic | None = None) -> None:
        self.arithmetic = arithmetic or fastest(band.width, norm_bound)
        self._sum: _Sum
        if self.arithmetic is Arithmetic.FLOAT64:
            self._sum = _Floats(band, 2**53 // norm_bound)
        else:
            self._sum = _Integers(band, integer_rows(norm_bound), self.arithmetic)

    def add(self, block: Block) -> None:
        """Add the product of integer-valued rows, C-ordered (r, size).

        Raises
        ------
        ValueError
            If there are more rows than float64 adds exactly, ``floor(2^53 / S)``, and float64 is what multiplies.
        """
        self._sum.add(block)

    def total(self) -> Triangle:
        """Return the packed sum of everything added, int64."""
        return self._sum.total()


class _Sum(Protocol):
    def add(self, block: Block) -> None: ...

    def total(self) -> Triangle: ...


class _Floats:
    """Multiplies by float64 BLAS, which adds so many rows exactly."""

    def __init__(self, band: Band, exact_rows: int) -> None:
        if exact_rows < 1:
            raise ValueError("float64 does not hold the product of a row exactly")
        self._band = band
        self._exact_rows = exact_rows
        # as BLAS wants it; of the whole triangle only the lower one is filled
        self._floats = np.zeros((band.width, band.height), order="F")
        self._float_rows = 0
        self._total = np.zeros(band.entries, dtype=np.int64)

    def add(self, block: Block) -> None:
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
        self._flush()
        return self._total


class _Integers:
    """Multiplies 16-bit integers; a block may have any number of rows, and is multiplied when there are enough."""

    def __init__(self, band: Band, exact_rows: int, arithmetic: Arithmetic) -> None:
        from dpdist.moment import kernel  # noqa: PLC0415 - numba takes time to import

        if exact_rows < 1:
            raise ValueError("16-bit integers do not hold a row, or 32-bit ones its product")
        self._band = band
        self._exact_rows = exact_rows
        self._multiply = kernel.multiply_with(arithmetic.value)
        self._pack = kernel.pack()
        width = -(-band.width // kernel.WIDTH) * kernel.WIDTH
        # one pair more than is used: panels a power of two apart would share the lines of the caches
        self._panels = np.zeros((width // kernel.PANEL, (exact_rows + 1) // 2 + 1, kernel.PANEL), dtype=np.int32)
        self._filled = 0
        self._sums = np.zeros((-(-band.height // kernel.HEIGHT) * kernel.HEIGHT, width), dtype=np.int64)

    def add(self, block: Block) -> None:
        start = 0
        while start < block.shape[0]:
            some = block[start : start + self._exact_rows - self._filled]
            self._pack(some, self._band.start, self._filled, self._panels)
            start += some.shape[0]
            self._filled += some.shape[0]
            if self._filled == self._exact_rows:
                self._flush()

    def _flush(self) -> None:
        if not self._filled:
            return
        self._multiply(self._panels, (self._filled + 1) // 2, self._sums)
        self._filled = 0

    def total(self) -> Triangle:
        self._flush()
        return packed(self._sums[: self._band.height, : self._band.width])
