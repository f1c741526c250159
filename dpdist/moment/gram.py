"""Integer Gram matrices of bounded rows: pure functions, no Dask and no files.

The entries of ``Z^T Z`` are integers, and ``|z_a z_b| <= S`` for every row, S the verified bound of its squared norm.
There are two ways to add them exactly, whatever is added first:

* float64 BLAS, while r rows have ``r S`` at most 2^53, in whatever order, blocking or fused operation it uses: no
  partial sum exceeds that;
* products of 16-bit integers in 32-bit ones (:mod:`dpdist.moment.kernel`), while neither of the two columns of the
  rows has squares that sum to more than 2^31 - 1. By Cauchy and Schwarz the sum of their products is at most the larger
  of both sums. It is added modulo 2^32, and is the only integer in the range of 32 bits that is equal to the result.
  One more may overflow: 512 rows of ``2^11 e_j`` sum to 2^31, which 32 bits hold as -2^31. The squares are those of the
  rows themselves. ``floor((2^31 - 1) / S)`` rows may always be added, which are 7 at 14 grid bits, and so may any two
  rows whose entries 16 bits hold, up to 2^15 - 1: an entry is at most ``sqrt(S)``, or what the bound says of single
  entries. Of rows whose entries 8 bits hold up to 131,071 are added at once: each adds at most 128².

Then the sum moves to int64. Hence the same bits from every chunking, every processor and both ways.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpdist.rows.bounding import RowBound
from dpdist.rows.dither import Dithering, Dithers
from dpdist.triangle import Band, Triangle, packed

if TYPE_CHECKING:
    from dpdist.rows.dither_kernel import Packing

Block = npt.NDArray[np.float64]
_LARGEST_16, _LARGEST_32 = 2**15 - 1, 2**31 - 1
SMALL_ROWS = _LARGEST_32 // 128**2
"""Rows whose entries 8 bits hold of which 32 bits hold the sum; with one more, as many entries of -128 sum to 2^31."""
_NARROW = 256  # columns up to which NumPy's product costs as much as one triangle
_PAIRS = 256  # pairs of rows that are multiplied together: the panels of a tile then stay in a core's own caches
_PANEL_BYTES = 256 << 10
"""Of narrow rows there are more, up to a quarter of a second-level cache: every call takes its time."""


class Arithmetic(Enum):
    """What rows are multiplied with, the fastest first; its value is the feature of the processor that it needs."""

    VNNI = "avx512vnni"
    AVX2 = "avx2"
    FLOAT64 = ""


@cache
def available() -> tuple[Arithmetic, ...]:
    """Return what this processor has, the fastest first; numba may refuse a NumPy that is newer than itself."""
    try:
        from dpdist._util.machine_code import features  # noqa: PLC0415 - numba takes time to import
    except ImportError:
        return (Arithmetic.FLOAT64,)
    found = features()
    return tuple(each for each in Arithmetic if each is Arithmetic.FLOAT64 or each.value in found)


def integer_rows(norm_bound: int, largest: int | None = None) -> int:
    """Return of how many rows 32 bits always hold the sum, two at least; 0 if 16 bits do not hold a row.

    The squared norm of a row is at most S, and its largest entry, if it is not said, at most ``sqrt(S)``.
    """
    if (math.isqrt(norm_bound) if largest is None else largest) > _LARGEST_16:
        return 0
    return max(2, _LARGEST_32 // norm_bound)


def fastest(norm_bound: int, largest: int | None = None) -> Arithmetic:
    """Return what multiplies rows fastest here, narrow ones too, which float64 would have to round first."""
    return available()[0] if integer_rows(norm_bound, largest) else Arithmetic.FLOAT64


class GramSum(ABC):
    """Adds ``Z^T Z`` of many blocks exactly, or a band of its rows."""

    arithmetic = Arithmetic.FLOAT64
    at_once = 1  # rows that are multiplied together; float64 multiplies a block as it comes

    @abstractmethod
    def add(self, block: Block) -> None:
        """Add the product of integer-valued rows, C-ordered (r, size)."""

    def add_dithered(self, *_: Any, **__: Any) -> None:
        """Add the product of stored rows that are rounded without bias, under a bound and by dithers, as integers."""
        raise TypeError("float64 multiplies bounded rows")

    @abstractmethod
    def total(self) -> Triangle:
        """Return the packed sum of everything added, int64."""


def gram_sum(
    band: Band, norm_bound: int, arithmetic: Arithmetic | None = None, largest: int | None = None
) -> GramSum:  # fmt: skip
    """Return what adds products here, or by some arithmetic; the bounds are those of :func:`integer_rows`."""
    arithmetic = arithmetic or fastest(norm_bound, largest)
    if arithmetic is Arithmetic.FLOAT64:
        return _Floats(band, 2**53 // norm_bound)
    return _Integers(band, integer_rows(norm_bound, largest), arithmetic)


class _Floats(GramSum):
    """Multiplies by float64 BLAS, which adds so many rows exactly."""

    def __init__(self, band: Band, exact_rows: int) -> None:
        if exact_rows < 1:
            raise ValueError("float64 does not hold the product of a row exactly")
        self._dsyrk: Any = None
        if band.height == band.size > _NARROW:
            from scipy.linalg.blas import dsyrk  # noqa: PLC0415 - SciPy takes its time, and most sums do without

            self._dsyrk = dsyrk
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
        if self._dsyrk is not None:
            # one triangle, added in place: half the work, and no pass over d x d entries for every block
            self._floats = self._dsyrk(1.0, block.T, beta=1.0, c=self._floats, lower=1, overwrite_c=1)
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


class _Integers(GramSum):
    """Multiplies 16-bit integers; a block may have any number of rows, and is multiplied when there are enough."""

    def __init__(self, band: Band, exact_rows: int, arithmetic: Arithmetic) -> None:
        from dpdist._util.machine_code import aligned_zeros  # noqa: PLC0415 - numba takes time to import
        from dpdist.moment import kernel  # noqa: PLC0415

        if exact_rows < 2:
            raise ValueError("16-bit integers do not hold a row")
        self.arithmetic, self._band = arithmetic, band
        self._multiply = kernel.multiply_with(arithmetic.value)
        self._pack = kernel.packing()
        panels = -(-band.width // kernel.PANEL)
        self._pairs = max(_PAIRS, _PANEL_BYTES // (4 * kernel.PANEL * panels))
        self.at_once = 2 * self._pairs
        self._always_exact = exact_rows // 2
        # one pair more than is used: panels a power of two apart would share the lines of the caches
        self._panels = aligned_zeros((panels, self._pairs + 1, kernel.PANEL), np.int32)
        self._room = aligned_zeros(kernel.room_for(panels, self._pairs), np.int32)
        self._packing: Packing | None = None
        self._packed_by: RowBound | None = None
        self._halves = 0  # of pairs that are taken: a row's is that of its number where it is dithered by pairs
        height = -(-band.height // kernel.HEIGHT) * kernel.HEIGHT
        self._sums = aligned_zeros((height, panels * kernel.PANEL), np.int64)
        # where half of the last panel is empty, its columns are summed as rows: all rows would be multiplied by zeros
        half = height == panels * kernel.PANEL - kernel.HEIGHT and band.width <= height
        self._ends = (panels - half) * kernel.PANEL

    def add(self, block: Block) -> None:
        start = 0
        while start < block.shape[0]:
            some = block[start : start + self._left()]
            self._pack(some, self._band.start, self._halves, self._panels)
            start += some.shape[0]
            self._fill(some.shape[0])

    def add_dithered(self, rows: npt.NDArray[np.generic], bound: RowBound, dithers: Dithers) -> None:
        if self._packing is None or (self._packed_by is not bound and self._packed_by != bound):
            from dpdist.rows.dither_kernel import Packing  # noqa: PLC0415 - numba takes time to import

            rule = Dithering(bound.columns, bound.grid_bits)
            self._packing, self._packed_by = Packing(rule, bound.affine, self._band.start, bound.constant), bound
        if self._left() < rows.shape[0] <= self.at_once:  # in one call rather than in two
            self._flush()
        start = 0
        while start < rows.shape[0]:
            odd = (dithers.first_row + start) % 2
            join = odd == 1 and self._halves % 2 == 1
            if self._halves % 2 != odd:  # half a pair stays empty
                self._fill(1)
            some = rows[start : start + self._left()]
            self._packing.pack(some, dithers.behind(start), self._panels, self._halves // 2, join=join)
            start += some.shape[0]
            self._fill(some.shape[0])

    def _left(self) -> int:
        """Return how many rows fit, at least one."""
        return self.at_once - self._halves

    def _fill(self, halves: int) -> None:
        self._halves += halves
        if self._halves == self.at_once:
            self._flush()

    def _flush(self) -> None:
        if self._halves:
            pairs = (self._halves + 1) // 2
            self._multiply(self._panels, pairs, self._always_exact, SMALL_ROWS, self._ends, self._sums, self._room)
            self._halves = 0

    def total(self) -> Triangle:
        self._flush()
        height, width, ends = self._band.height, self._band.width, self._ends
        if ends < width:
            self._sums[:ends, ends:width] += self._sums[ends:width, :ends].T
            self._sums[ends:, :ends] = 0
        return packed(self._sums[:height, :width])
