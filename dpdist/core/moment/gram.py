"""Integer Gram matrices of bounded rows: pure functions, without Dask or files.

The entries of ``Z^T Z`` are integers, and ``|z_a z_b| <= S`` for every row, where S is the verified bound on its
squared norm. There are two ways to add them exactly, in any order:

* float64 BLAS, for r rows with ``r S`` at most 2^53, with any order, blocking or fused operations: no partial sum
  exceeds that;
* products of 16-bit integers in 32-bit ones (:mod:`dpdist.core.moment.kernel`), if the sum of squares of each of the
  two columns is at most 2^31 - 1. By Cauchy and Schwarz the sum of their products is at most the larger of the two
  sums. It is added modulo 2^32, and is the only integer in the range of 32 bits that is equal to the result. One more
  may overflow: 512 rows of ``2^11 e_j`` sum to 2^31, which 32 bits represent as -2^31. The squares are those of the
  actual rows. ``floor((2^31 - 1) / S)`` rows may always be added, which is 7 at 14 grid bits, and so may any two rows
  whose entries fit in 16 bits, up to 2^15 - 1: an entry is at most ``sqrt(S)``, or the bound on single entries. Up to
  131,071 rows with entries of 8 bits are added at once: each adds at most 128².

The sum is then added to int64. Hence the bits are the same for every chunking, every processor and both ways.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from enum import Enum
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpdist.core.rows.bounding import MARGIN, RowBound
from dpdist.core.rows.dither import Dithering, Dithers, Units
from dpdist.core.rows.unit_moment import Flags, Starts, bounded_units, ends_of, settle
from dpdist.core.triangle import Band, Triangle, packed

if TYPE_CHECKING:
    from dpdist.core.rows.dither_kernel import Packing

Block = npt.NDArray[np.float64]
_LARGEST_16, _LARGEST_32 = 2**15 - 1, 2**31 - 1
SMALL_ROWS = _LARGEST_32 // 128**2
"""Rows with entries of 8 bits whose sum fits in 32 bits; with one more, entries of -128 sum to 2^31."""
_NARROW = 256  # most columns for which NumPy's product is as fast as that of one triangle
_PAIRS = 256  # pairs of rows that are multiplied at once: the panels of a tile then stay in a core's own caches
_UNIT_ROWS = 128
"""Rows of a small privacy unit, whose pairs of rows are multiplied one by one."""
_PANEL_BYTES = 256 << 10
"""Size of more pairs of narrow rows, a quarter of a second-level cache, because every call has an overhead."""
_UNIT_BYTES = 512 << 10
"""Their size with privacy units, for which more is called."""


class Instructions(Enum):
    """Instructions that multiply rows, the fastest first; the value is the required feature of the processor."""

    VNNI = "avx512vnni"
    AVX2 = "avx2"
    FLOAT64 = ""


@cache
def available() -> tuple[Instructions, ...]:
    """Return the instructions of this processor, the fastest first."""
    try:
        from dpdist.core.machine_code import features  # noqa: PLC0415 - slow to import
    except ImportError:  # numba refuses a NumPy that is newer
        return (Instructions.FLOAT64,)
    supported = features()
    return tuple(
        instructions
        for instructions in Instructions
        if instructions is Instructions.FLOAT64 or instructions.value in supported
    )


def integer_rows(norm_bound: int, largest: int | None = None) -> int:
    """Return the number of rows, at least 2, whose sum always fits in 32 bits; 0 if a row does not fit in 16 bits.

    The squared norm of a row is at most ``norm_bound``, and its largest entry at most ``largest``, by default its root.
    """
    if (math.isqrt(norm_bound) if largest is None else largest) > _LARGEST_16:
        return 0
    return max(2, _LARGEST_32 // norm_bound)


def fastest(norm_bound: int, largest: int | None = None) -> Instructions:
    """Return the fastest instructions on this processor, integer for narrow rows too: float64 must round them first."""
    return available()[0] if integer_rows(norm_bound, largest) else Instructions.FLOAT64


class GramSum(ABC):
    """Exact sum of ``Z^T Z``, or of a band of its rows, over blocks."""

    instructions = Instructions.FLOAT64
    at_once = 1  # rows that are multiplied together; float64 multiplies whole blocks

    @abstractmethod
    def add(self, block: Block) -> None:
        """Add the product of integer-valued rows, (r, size) in C order."""

    def add_dithered(self, *_: Any, **__: Any) -> None:
        """Add the product of stored rows, which are bounded and rounded with dithers."""
        raise TypeError("float64 multiplies bounded rows")

    def add_units(self, rows: npt.NDArray[np.generic], starts: Starts, bound: RowBound, dithers: Dithers) -> None:
        """Add the product of stored rows of whole privacy units, which are bounded together."""
        block = bounded_units(rows, starts, bound, dithers, compiled=self.instructions is not Instructions.FLOAT64)
        step = max(1, bound.exact_rows)
        for start in range(0, len(block), step):
            self.add(block[start : start + step])

    @abstractmethod
    def total(self) -> Triangle:
        """Return the packed sum, int64."""


def gram_sum(
    band: Band, norm_bound: int, instructions: Instructions | None = None, largest: int | None = None, *,
    units: bool = False,
) -> GramSum:  # fmt: skip
    """Return a sum in some instructions, by default the fastest; the bounds are those of :func:`integer_rows`."""
    instructions = instructions or fastest(norm_bound, largest)
    if instructions is Instructions.FLOAT64:
        return _Floats(band, 2**53 // norm_bound)
    return _Integers(band, integer_rows(norm_bound, largest), instructions, _UNIT_BYTES if units else _PANEL_BYTES)


class _Floats(GramSum):
    """Multiplies with float64 BLAS, which is exact for ``exact_rows`` rows."""

    def __init__(self, band: Band, exact_rows: int) -> None:
        if exact_rows < 1:
            raise ValueError("float64 does not hold the product of a row exactly")
        self._dsyrk: Any = None
        if band.height == band.size > _NARROW:
            from scipy.linalg.blas import dsyrk  # noqa: PLC0415 - slow to import

            self._dsyrk = dsyrk
        self._band = band
        self._exact_rows = exact_rows
        # in the order of BLAS; of a whole triangle, only the lower part is filled
        self._floats = np.zeros((band.width, band.height), order="F")
        self._float_rows = 0
        self._total = np.zeros(band.entries, dtype=np.int64)

    def add(self, block: Block) -> None:
        rows = block.shape[0]
        if rows > self._exact_rows:
            raise ValueError("a block has more rows than float64 adds exactly")
        if self._float_rows + rows > self._exact_rows:
            self._flush()
        band = self._band
        if self._dsyrk is not None:
            # one triangle, added in place: half the operations, and d x d entries are not copied for every block
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
    """Multiplies 16-bit integers; rows of blocks are collected until they fill the panels."""

    def __init__(self, band: Band, exact_rows: int, instructions: Instructions, panel_bytes: int) -> None:
        from dpdist.core.machine_code import aligned_zeros  # noqa: PLC0415 - slow to import
        from dpdist.core.moment import kernel  # noqa: PLC0415

        if exact_rows < 2:
            raise ValueError("16-bit integers do not hold a row")
        self.instructions, self._band = instructions, band
        self._multiply = kernel.multiply_with(instructions.value)
        self._pack = kernel.packing()
        panels = -(-band.width // kernel.PANEL)
        self._pairs = max(_PAIRS, panel_bytes // (4 * kernel.PANEL * panels))
        self.at_once = 2 * self._pairs
        self._always_exact = exact_rows // 2
        # one unused pair: panels at distances that are powers of two would share cache lines
        self._panels = aligned_zeros((panels, self._pairs + 1, kernel.PANEL), np.int32)
        self._room = aligned_zeros(kernel.room_for(panels, self._pairs), np.int32)
        self._packing: Packing | None = None
        self._packed_by: RowBound | None = None
        self._halves = 0  # that are filled; the parity of a row that is dithered by pairs determines its half
        height = -(-band.height // kernel.HEIGHT) * kernel.HEIGHT
        self._sums = aligned_zeros((height, panels * kernel.PANEL), np.int64)
        # if half of the last panel is empty, its columns are summed as rows, to avoid multiplications by zero
        half = height == panels * kernel.PANEL - kernel.HEIGHT and band.width <= height
        self._ends = (panels - half) * kernel.PANEL

    def add(self, block: Block) -> None:
        start = 0
        while start < block.shape[0]:
            rows = block[start : start + self._free()]
            self._pack(rows, self._band.start, self._halves, self._panels)
            start += rows.shape[0]
            self._fill(rows.shape[0])

    def add_units(self, rows: npt.NDArray[np.generic], starts: Starts, bound: RowBound, dithers: Dithers) -> None:
        if self._band.height != self._band.size:  # the norm is that of all columns
            super().add_units(rows, starts, bound, dithers)
            return
        ends, begin = ends_of(starts, len(rows)), 0
        large = np.flatnonzero(ends - starts > _UNIT_ROWS)
        while begin < starts.size:  # as many small units as fit the panels, or a large one
            first = int(starts[begin])
            stop = int(np.searchsorted(ends, first + self.at_once - 1, side="right"))
            if large.size:
                stop = min([stop, *large[large >= begin][:1]])
            add = self._add_packed if stop > begin else self._add_large
            stop = max(stop, begin + 1)
            add(rows[first : ends[stop - 1]], starts[begin:stop] - first, bound, dithers.behind(first))
            begin = stop

    def _add_large(self, rows: npt.NDArray[np.generic], starts: Starts, bound: RowBound, dithers: Dithers) -> None:
        """Add one unit, whose rows may not fit the panels."""
        packing, odd, step = self._packing_for(bound), dithers.first_row % 2, self.at_once - 2
        self._flush()
        others, self._sums = self._sums, np.zeros_like(self._sums)

        def place(units: Units) -> None:
            self._sums[:] = 0
            for start in range(0, len(rows), step):
                part = slice(start, start + step)
                own = units._replace(factors=units.factors[part], settled=units.settled[part])
                packing.pack(rows[part], dithers.behind(start), self._panels, 0, join=False, units=own)
                self._halves = odd + len(rows[part])
                self._flush()

        def measure(chosen: Flags, norms: Block) -> None:
            moment = np.triu(self._square())
            norms[chosen] = norm = float(moment.trace())
            if bound.unit_norm != "trace" and norm > bound.norm_bound:
                floats = moment.astype(np.float64)
                square = 2 * np.vdot(floats, floats) - np.vdot(floats.diagonal(), floats.diagonal())
                norms[chosen] = math.sqrt(square) * MARGIN

        settle(starts, len(rows), bound, place, measure)
        self._sums += others

    def _add_packed(self, rows: npt.NDArray[np.generic], starts: Starts, bound: RowBound, dithers: Dithers) -> None:
        """Add small units, which fit the panels together."""
        from dpdist.core.rows import unit_kernel  # noqa: PLC0415 - slow to import

        packing, odd, trace = self._packing_for(bound), dithers.first_row % 2, bound.unit_norm == "trace"
        self._flush()
        ends, limit = ends_of(starts, len(rows)), float(bound.norm_bound)

        def measure(chosen: Flags, norms: Block) -> None:
            where = (packing.norms, odd, starts, ends, chosen, norms, limit, trace)
            unit_kernel.packed_norms(self._panels, *where, *self._unpacked)

        settle(
            starts, len(rows), bound,
            lambda units: packing.pack(rows, dithers, self._panels, 0, join=False, units=units), measure,
        )  # fmt: skip
        self._fill(odd + len(rows))

    @cached_property
    def _unpacked(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The rows of a unit, and rows behind the last, which are multiplied with it; and four products of a row."""
        from dpdist.core.machine_code import aligned_zeros  # noqa: PLC0415 - slow to import

        panels, _, lanes = self._panels.shape
        lines = (panels + 1) // 2
        return aligned_zeros((_UNIT_ROWS + 4, lines * lanes), np.int32), aligned_zeros((lanes,), np.int32)

    def _packing_for(self, bound: RowBound) -> Packing:
        if self._packing is None or (self._packed_by is not bound and self._packed_by != bound):
            from dpdist.core.rows.dither_kernel import Packing  # noqa: PLC0415 - slow to import

            rule = Dithering(bound.columns, bound.grid_bits)
            self._packing, self._packed_by = Packing(rule, bound.affine, self._band.start, bound.constant), bound
        return self._packing

    def add_dithered(self, rows: npt.NDArray[np.generic], bound: RowBound, dithers: Dithers) -> None:
        packing = self._packing_for(bound)
        if self._free() < rows.shape[0] <= self.at_once:  # in one call instead of two
            self._flush()
        start = 0
        while start < rows.shape[0]:
            odd = (dithers.first_row + start) % 2
            join = odd == 1 and self._halves % 2 == 1
            if self._halves % 2 != odd:  # the other half stays empty
                self._fill(1)
            batch = rows[start : start + self._free()]
            packing.pack(batch, dithers.behind(start), self._panels, self._halves // 2, join=join)
            start += batch.shape[0]
            self._fill(batch.shape[0])

    def _free(self) -> int:
        """Return how many more rows fit, at least one."""
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

    def _square(self) -> npt.NDArray[np.int64]:
        """Return the band of sums up to now, whose entries below the diagonal are arbitrary."""
        height, width, ends = self._band.height, self._band.width, self._ends
        if ends < width:
            self._sums[:ends, ends:width] += self._sums[ends:width, :ends].T
            self._sums[ends:, :ends] = 0
        return self._sums[:height, :width]

    def total(self) -> Triangle:
        self._flush()
        return packed(self._square())
