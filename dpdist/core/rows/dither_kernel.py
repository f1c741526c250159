"""Unbiased rounding in machine code, with the bits of :mod:`dpdist.core.rows.dither`.

Stored rows are converted to integers in bunches of 32, in buffers that fit a core's caches. All float64 operations are
those of NumPy, in the same order, and LLVM fuses none of them.

The loops are plain numba, compiled for the dtype of the rows only, and inlined into the two functions called from
Python: each separately compiled function costs a quarter of a second on a new machine. Four parts are written as
vectors of 16 in LLVM's intermediate representation, as plain numba was slower on two cores with AVX2 (2.6 ns instead of
1.25 per entry of 784 columns, and 3.6 s more to compile):

* ChaCha (:func:`_emit_group`): 16 words of 16 blocks stay in registers. Arrays would be loaded and stored at every
  step, 0.9 ns per entry.
* the squared norm (:func:`_emit_squared_norm`): 16 sums stay in registers, in the order of NumPy.
* rounding two rows of 16 columns to one word per column (:func:`_emit_panel`), the layout of the Gram matrix of 16-bit
  integers (:mod:`dpdist.core.moment.kernel`). The integer is the low half of a float64, moved with its sign. LLVM finds
  the instructions that add four bytes, or multiply two pairs of 16 bits, in no loop.
* the sums of squares that verify each row (:func:`_emit_norms`).

Rows that are not finite, whose squared norm overflows, or that are too long after rounding (one in 100,000 on the
sphere) are first set to zero, and then rounded in NumPy.

Machine code gets addresses and counts no references. It allocates nothing: the caller in Python keeps all buffers alive
until it returns (:class:`_Prepared`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit

from dpdist.core.llvm import I16, I32, I64, emitted, function, load, loop, repeated, same, store
from dpdist.core.machine_code import aligned_zeros, compiled, features
from dpdist.core.rows.dither import ALONE, BUNCH, FRACTION, Affine, Dithering, Dithers, Drawn, Units, blocks_of

_ROUNDS, LANES, _PAIRS = 8, 16, BUNCH // 2
LINE = 4 * LANES
"""Bytes of a line of 16 words."""
_BLOCK = _PAIRS * LINE
"""Bytes of the words, or integers, of 16 columns of a bunch: one line per pair of rows."""
_TOGETHER = 8
"""Bunches whose dithers are drawn together for rows rounded in NumPy."""
_FLOATS_OF = 2048
"""Entries that are shifted before they are rounded: a third of the L1 cache."""
_16, _LOW = np.int32(16), np.int32(0xFFFF)
_AS_STORED = {np.dtype(dtype) for dtype in ("f4", "f8", "i1", "i2", "i4", "u1", "u2")}
"""Types read as stored; others are converted to float64 by NumPy."""
_DOUBLE = ir.DoubleType()
SUMS, _FLOATS = (ir.VectorType(kind, LANES) for kind in (I32, _DOUBLE))


def _times(build: Any, value: Any, factor: int) -> Any:
    return build.mul(value, I64(factor))


def _emit_group(build: Any, state: Any, first: Any, out: Any) -> None:
    """Emit ChaCha of 16 blocks, one per lane, with 12 lines of common state; store the words in 16 lines."""
    rotate = function(build, "llvm.fshl.v16i32", SUMS, SUMS, SUMS, SUMS)

    def at(address: Any, line: int) -> Any:
        return build.add(address, I64(LINE * line))

    wide = ir.VectorType(I64, LANES)
    numbers = build.add(repeated(build, wide, first), ir.Constant(wide, list(range(LANES))))
    counters = [build.trunc(number, SUMS) for number in (numbers, build.lshr(numbers, same(wide, 32)))]
    counters += [same(SUMS, 0)] * 2
    x = [load(build, at(state, i), SUMS, LINE) for i in range(12)] + counters

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for left, right, changed, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[left] = build.add(x[left], x[right])
            mixed = build.xor(x[changed], x[left])
            x[changed] = build.call(rotate, [mixed, mixed, same(SUMS, bits)])

    for _ in range(_ROUNDS // 2):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    for i, after in enumerate(x):  # the state is read again: both do not fit the registers
        before = load(build, at(state, i), SUMS, LINE) if i < 12 else counters[i - 12]
        store(build, build.add(after, before), at(out, i), LINE)


def _emit_squared_norm(build: Any, t: Any, panels: Any, norm: Any) -> None:
    """Emit the sum of squares of the panels of a row, added in 16 lanes, whose halves are then added."""
    with loop(build, panels, [same(_FLOATS, 0.0)]) as (panel, (total,), following):
        values = load(build, build.add(t, _times(build, panel, 8 * LANES)), _FLOATS, LINE)
        following.append(build.fadd(total, build.fmul(values, values)))
    (lanes,) = following
    for count in (8, 4, 2, 1):
        halves = (ir.Constant(ir.VectorType(I32, count), list(range(i, i + count))) for i in (0, count))
        lanes = build.fadd(*(build.shuffle_vector(lanes, lanes, half) for half in halves))
    store(build, build.extract_element(lanes, I32(0)), norm, 8)


def _emit_dither(build: Any, word: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """Emit the sums of one number with the two lower bytes of each word, and of another with the two upper ones."""
    if "avx512vnni" in features():
        dot = function(build, "llvm.x86.avx512.vpdpbusd.512", SUMS, SUMS, SUMS, SUMS)
        return (
            build.call(dot, [low, word, same(SUMS, 0x00000101)]),
            build.call(dot, [high, word, same(SUMS, 0x01010000)]),
        )
    bytes_ = same(SUMS, 0x00FF00FF)
    both = build.add(build.and_(word, bytes_), build.and_(build.lshr(word, same(SUMS, 8)), bytes_))
    return (
        build.add(low, build.and_(both, same(SUMS, 0xFFFF))),
        build.add(high, build.lshr(both, same(SUMS, 16))),
    )


def emit_dot(build: Any, total: Any, left: Any, right: Any) -> Any:
    """Emit the sum of a number and the products of two pairs of 16-bit integers, in each lane."""
    if "avx512vnni" in features():
        return build.call(function(build, "llvm.x86.avx512.vpdpwssd.512", SUMS, SUMS, SUMS, SUMS), [total, left, right])
    half = ir.VectorType(I32, LANES // 2)
    pairs = ir.VectorType(I16, LANES)
    dot = function(build, "llvm.x86.avx2.pmadd.wd", half, pairs, pairs)
    products = []
    for start in (0, LANES // 2):
        lanes = ir.Constant(half, list(range(start, start + LANES // 2)))
        parts = [build.bitcast(build.shuffle_vector(vector, vector, lanes), pairs) for vector in (left, right)]
        products.append(build.call(dot, parts))
    return build.add(total, build.shuffle_vector(*products, ir.Constant(SUMS, list(range(LANES)))))


def _emit_panel(
    build: Any, t: Any, line: Any, factors: Any, words: Any, mask: Any, out: Any, sums: Any, pairs: Any
) -> None:
    """Emit the loop over pairs of rows that rounds 16 of their columns and adds up the squares."""
    # Addresses of lines of 64 bytes: 16 columns of the first row, float64, and the distance to the next row in bytes;
    # the factor of each of 32 rows to the finer grid, and its v3; words, one line per pair; a mask, one line; the
    # output, one line of integers per pair; two lines per pair with sums of squares of the even row, and of both.
    keep = load(build, mask, SUMS, LINE)
    with loop(build, pairs) as (pair, _, _):
        # rounds to the nearest integer, minus half of the largest sum of two dithers, in the low bits of the float64
        magic = same(_FLOATS, 1.5 * 2.0**52 - (1 << FRACTION >> 1))
        even, half = ir.Constant(SUMS, list(range(0, 2 * LANES, 2))), same(SUMS, 0xFFFF)
        y = []
        for odd in range(2):
            address = build.add(factors, build.add(_times(build, pair, 16), I64(8 * odd)))
            factor, third = (
                repeated(build, _FLOATS, load(build, build.add(address, I64(8 * BUNCH * i)), _DOUBLE, 8))
                for i in range(2)
            )
            row = build.add(t, build.mul(build.add(_times(build, pair, 2), I64(odd)), line))
            x = build.fadd(build.fmul(load(build, row, _FLOATS, LINE), factor), third)
            wide = build.bitcast(build.fadd(x, magic), ir.VectorType(I32, 2 * LANES))
            y.append(build.shuffle_vector(wide, wide, even))
        offset = _times(build, pair, LINE)
        word = load(build, build.add(words, offset), SUMS, LINE)
        low, high = _emit_dither(build, word, *y)
        low = build.and_(build.lshr(low, same(SUMS, FRACTION)), half)
        high = build.and_(build.shl(high, same(SUMS, 16 - FRACTION)), same(SUMS, 0xFFFF0000))
        both = build.and_(build.or_(low, high), keep)
        store(build, both, build.add(out, offset), 4)
        for i, factor in enumerate((build.and_(both, half), both)):
            total = build.add(sums, build.add(_times(build, offset, 2), I64(LINE * i)))
            store(build, emit_dot(build, load(build, total, SUMS, LINE), factor, both), total, LINE)


def _emit_norms(build: Any, sums: Any, pairs: Any, norms: Any) -> None:
    """Emit the loop over pairs that adds up the lanes of their sums of squares and writes one norm per row."""
    with loop(build, pairs) as (pair, _, _):
        address = build.add(sums, _times(build, pair, 2 * LINE))
        lines = [load(build, build.add(address, I64(LINE * i)), SUMS, LINE) for i in range(2)]
        # both at once: eight lanes belong to the even row, and eight to the sum of both
        halves = ([*range(i, i + 8), *range(LANES + i, LANES + i + 8)] for i in (0, 8))
        total = build.add(*(build.shuffle_vector(*lines, ir.Constant(SUMS, half)) for half in halves))
        for count in (4, 2, 1):
            order = ir.Constant(SUMS, [lane ^ count for lane in range(LANES)])
            total = build.add(total, build.shuffle_vector(total, total, order))
        even, both = (build.extract_element(total, I32(lane)) for lane in (0, 8))
        for odd, norm in enumerate((even, build.sub(both, even))):
            store(build, norm, build.add(norms, build.add(_times(build, pair, 8), I64(4 * odd))), 4)


_group, _squared_norm, _panel, _norms = map(emitted, (_emit_group, _emit_squared_norm, _emit_panel, _emit_norms))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _fill(bunch: int, state: Any, words: Any) -> None:
    """Write the words of a bunch, (panels, pairs, 16)."""
    for panel in range(words.shape[0]):
        first = LANES * (bunch * words.shape[0] + panel)
        _group(state.ctypes.data, first, words.ctypes.data + _BLOCK * panel)


@njit(error_model="numpy", inline="always")  # type: ignore[untyped-decorator]
def _shorten_numbers(row: Any, numbers: Any, columns: int, radius: float, most: float, norms: Any) -> None:
    """Shorten the numbers of a shifted row to a norm, in the room that the others leave; ``norms`` has a spare row."""
    for j in range(columns):
        norms[LANES + j] = 0.0 if numbers[j] != 0.0 else row[j]
    _squared_norm(norms.ctypes.data + 8 * LANES, row.size >> 4, norms.ctypes.data)
    room = min(max(radius * radius - norms[0], 0.0), most * most)
    for j in range(columns):
        norms[LANES + j] = row[j] if numbers[j] != 0.0 else 0.0
    _squared_norm(norms.ctypes.data + 8 * LANES, row.size >> 4, norms.ctypes.data)
    if room < norms[0] < math.inf:
        shrink = math.sqrt(room / norms[0])
        for j in range(columns):
            if numbers[j] != 0.0:
                row[j] *= shrink


@njit(error_model="numpy", inline="always")  # type: ignore[untyped-decorator]
def _prepared(
    rows: Any, begin: int, before: int, affine: Any, by: Any, words: Any, t: Any, norms: Any, factors: Any
) -> None:
    """Write shifted rows of a bunch to t, after ``before`` others, and their factors: NaN if they are not finite."""
    radius, inner, inverse, fine, most = by
    count, columns = rows.shape
    for i in range(count):
        for j in range(columns):
            t[before + i, j] = rows[i, j]
        if affine.size:
            for j in range(columns):
                t[before + i, j] = (t[before + i, j] - affine[0, j]) / affine[1, j]
        if affine.shape[0] == 3:
            _shorten_numbers(t[before + i], affine[2], columns, radius, most, norms)
        _squared_norm(
            t.ctypes.data + (before + i) * t.strides[0], t.shape[1] >> 4, factors.ctypes.data + 8 * (begin + i)
        )
    for number in range(begin, begin + count):  # after all norms, so that roots and quotients are those of vectors
        square = factors[0, number]
        factor = inverse if square <= radius * radius else inner / math.sqrt(square)
        factors[0, number] = factor * fine if square < math.inf else math.nan
    for number in range(begin, begin + count):
        block = columns + (number & 1)
        word = words[block >> 4, number >> 1, block & 15]
        factors[1, number] = np.float64(word >> np.uint32(12)) * 2.0**-20 + 2.0**-21


@njit(inline="always")  # type: ignore[untyped-decorator]
def _moved(buffer: Any, begin: int, stop: int, start: int, panels: Any, target: int, join: bool) -> None:
    """Copy rows of a bunch from column ``start`` on; ``join`` keeps the even row next to a first odd row."""
    within, first = start & 15, start >> 4
    for pair in range(begin >> 1, (stop + 1) >> 1):
        mask, retained = np.int32(-1), np.int32(0)
        if 2 * pair < begin:
            mask, retained = ~_LOW, _LOW if join else np.int32(0)
        if 2 * pair + 1 >= stop:
            mask &= _LOW
        to = target + pair - (begin >> 1)
        for q in range(panels.shape[0]):
            if within == 0:
                for lane in range(LANES):  # as one vector
                    panels[q, to, lane] = panels[q, to, lane] & retained | buffer[first + q, pair, lane] & mask
                continue
            for lane in range(LANES):
                column = within + lane
                value = buffer[first + q + (column >> 4), pair, column & 15] & mask
                panels[q, to, lane] = panels[q, to, lane] & retained | value


@njit(inline="always")  # type: ignore[untyped-decorator]
def _zeroed(block: Any, panels: int, pair: int, retained: Any) -> None:
    """Keep only one row of a pair."""
    for panel in range(panels):
        for lane in range(LANES):
            block[panel, pair, lane] &= retained


@njit(inline="always")  # type: ignore[untyped-decorator]
def _all(settled: Any) -> bool:
    """Say whether there are rows, all of them settled."""
    for flag in settled:
        if not flag:
            return False
    return bool(settled.size > 0)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _shorten_units(lower: int, upper: int, shrink: Any, factors: Any) -> None:
    """Multiply the factors of rows of a bunch by those of their units, if there are any."""
    for i in range(lower, upper if shrink.size else lower):
        factors[0, i] *= shrink[i - lower]


@njit(inline="always")  # type: ignore[untyped-decorator]
def _unsettled(settled: Any, begin: int, stop: int) -> tuple[int, int]:
    """Return the range of some rows of a bunch without settled ones at its ends, which begins and ends with a pair."""
    if not settled.size:
        return begin, stop
    first, last = begin, stop
    while begin < stop and settled[begin - first]:
        begin += 1
    while begin < stop and settled[stop - 1 - first]:
        stop -= 1
    return max(first, begin & ~1), min(last, (stop + 1) & ~1) if begin < stop else 0


@njit(inline="always")  # type: ignore[untyped-decorator]
def _write_constants(
    block: Any, columns: int, offset: int, constant: int, begin: int, stop: int, shrink: Any, factors: Any, norms: Any
) -> None:  # fmt: skip
    """Write the constants of rows of a bunch, multiplied by the factors of their units, if there are any."""
    for pair in range(begin >> 1, (stop + 1) >> 1):
        word = np.int32(constant) << _16 | np.int32(constant)
        if shrink.size:
            word = np.int32(0)
        for i in range(max(2 * pair, begin), min(2 * pair + 2, stop)):
            own = constant
            if shrink.size:
                own = math.floor(shrink[i - begin] * constant + factors[1, i])
                word |= np.int32(own) << (np.int32(i & 1) * _16)
            norms[i - begin] += np.float64(own * own)
        block[columns >> 4, offset + pair, columns & 15] = word


def _pack_rows(
    rows: Any, first_row: int, affine: Any, by: Any, limit: float, state: Any, words: Any, t: Any, norms: Any,
    factors: Any, unfinished: Any, shrink: Any, settled: Any, mask: Any, sums: Any, squares: Any, buffer: Any,
    start: int, constant: int, panels: Any, slot: int, join: bool, packed: Any,
) -> int:  # fmt: skip
    count, columns = rows.shape
    line, following, undone = t.strides[0], 0, 0
    while following < count:
        done, bunch, begin = following, (first_row + following) >> 5, (first_row + following) & 31
        stop = min(begin + count - done, BUNCH)
        following += stop - begin
        left, stop = _unsettled(settled[done:following], begin, stop)
        done, begin = done + left - begin, left
        if begin >= stop:
            continue
        target, first, last = slot + ((first_row + done) >> 1) - (first_row >> 1), begin >> 1, (stop + 1) >> 1
        straight = start == 0 and begin & 1 == 0 and stop & 1 == 0
        block, offset = buffer, 0  # of the pairs of the bunch in the block
        if straight:
            block, offset = panels, target - first
        _fill(bunch, state, words)
        sums[:] = 0
        for low in range(begin & ~1, stop, t.shape[0]):
            lower, upper = max(low, begin), min(low + t.shape[0], stop)
            batch = rows[done + lower - begin : done + upper - begin]
            _prepared(batch, lower, lower - low, affine, by, words, t, norms, factors)
            _shorten_units(lower, upper, shrink[done + lower - begin :], factors)
            pair, pairs = low >> 1, (upper - low + 1) >> 1
            for panel in range(mask.shape[0]):
                _panel(
                    t.ctypes.data + 8 * LANES * panel, line, factors.ctypes.data + 16 * pair,
                    words.ctypes.data + panel * _BLOCK + pair * LINE, mask.ctypes.data + panel * LINE,
                    block.ctypes.data + panel * block.strides[0] + (offset + pair) * LINE,
                    sums.ctypes.data + 2 * pair * LINE, pairs,
                )  # fmt: skip
        _norms(sums.ctypes.data + 2 * first * LINE, last - first, squares.ctypes.data + 8 * first)
        for i in range(begin, stop):
            packed[done + i - begin] = squares[i]
            if not (factors[0, i] > 0.0 and squares[i] <= limit):
                unfinished[undone] = done + i - begin
                undone += 1
                _zeroed(
                    block, mask.shape[0], offset + (i >> 1), _LOW if i & 1 else ~_LOW
                )  # until it is rounded in NumPy
        if constant:
            _write_constants(block, columns, offset, constant, begin, stop, shrink[done:], factors, packed[done:])
        if not straight:
            _moved(buffer, begin, stop, start, panels, target, join and done == 0)
    return undone


def _round_rows(
    rows: Any, first_row: int, affine: Any, by: Any, limit: float, state: Any, words: Any, t: Any, norms: Any,
    factors: Any, unfinished: Any, shrink: Any, settled: Any, constant: int, out: Any,
) -> int:  # fmt: skip
    count, columns = rows.shape
    done, undone, byte, half, inverse = 0, 0, np.uint32(255), float(1 << FRACTION >> 1), 1.0 / (1 << FRACTION)
    while done < count:
        bunch, begin = (first_row + done) >> 5, (first_row + done) & 31
        stop = min(begin + count - done, BUNCH)
        if _all(settled[done : done + stop - begin]):
            done += stop - begin
            continue
        _fill(bunch, state, words)
        for i in range(begin, stop):
            row = done + i - begin
            if _all(settled[row : row + 1]):
                continue
            _prepared(rows[row : row + 1], i, 0, affine, by, words, t, norms, factors)
            if constant:
                out[row, columns] = constant
            if shrink.size:
                factors[0, i] *= shrink[row]
                if constant:
                    out[row, columns] = math.floor(shrink[row] * constant + factors[1, i])
            factor, third, shift, square = factors[0, i], factors[1, i], np.uint32(16 * (i & 1)), 0.0
            for j in range(columns):
                word = words[j >> 4, i >> 1, j & 15] >> shift
                dither = np.float64((word & byte) + (word >> np.uint32(FRACTION) & byte))
                z = np.floor((np.rint(t[0, j] * factor + third) + dither - half) * inverse)
                out[row, j] = z
                square += z * z  # integers: exact in any order below 2^53
            if not (factor > 0.0 and square <= limit):
                unfinished[undone] = row
                undone += 1
        done += stop - begin
    return undone


_pack: Callable[..., int] = compiled(_pack_rows, error_model="numpy", nogil=True)
_round: Callable[..., int] = compiled(_round_rows, error_model="numpy", nogil=True)
"""Compiled for each dtype at its first use, and cached on disk.

They return the number of unfinished rows, and write their indices; :meth:`_Prepared.rounded` rounds these in NumPy.
"""


class _Prepared:
    """Parameters and buffers of rounding, prepared once for many rows; for one thread at a time."""

    def __init__(self, rule: Dithering, affine: Affine) -> None:
        self._rule = rule
        padded = -(-rule.columns // LANES) * LANES
        vectors = (affine.centre, affine.scale, affine.numbers)
        shifts = 3 if affine.numbers is not None else 0 if affine.centre is affine.scale is None else 2
        self._affine = affine
        self._by_affine = aligned_zeros((shifts, padded), np.float64)
        for i, vector in enumerate(vectors[:shifts]):
            self._by_affine[i] = i == 1  # neutral default and padding: 0 is subtracted, and 1 divides
            if vector is not None:
                self._by_affine[i, : rule.columns] = vector
        self._by = (
            rule.inner * affine.clip_norm, rule.inner, 1 / affine.clip_norm, 2.0 ** (rule.grid_bits + FRACTION),
            affine.numbers_norm,
        )  # fmt: skip
        self._state = aligned_zeros((12, LANES), np.uint32)
        self._key = b""
        self._state[:4] = np.frombuffer(b"expand 32-byte k", "<u4")[:, None]
        at_once = max(2, min(BUNCH, _FLOATS_OF // padded & ~1))
        self._buffers = (
            aligned_zeros((blocks_of(rule.columns) // LANES, _PAIRS, LANES), np.uint32),
            aligned_zeros((at_once, padded), np.float64), aligned_zeros((LANES + padded,), np.float64),
            aligned_zeros((2, BUNCH), np.float64),
        )  # fmt: skip

    def arguments(
        self, rows: npt.NDArray[np.generic], dithers: Dithers, units: Units
    ) -> tuple[npt.NDArray[np.int64], tuple[Any, ...]]:
        """Return the array of unfinished indices, and the first arguments of compiled code."""
        if rows.ndim != 2 or rows.shape[1] != self._rule.columns or dithers.first_row < 0:
            raise AssertionError("rows must have a number, and the columns of their rule")
        if dithers.key.key is not self._key:
            self._key = dithers.key.key
            self._state[4:] = np.frombuffer(self._key, "<u4")[:, None]
        if rows.dtype not in _AS_STORED:
            rows = rows.astype(np.float64)
        rows = np.require(rows, requirements=["C", "A"]).view()
        rows.flags.writeable = False  # a writeable array would be compiled separately
        limit, unfinished = 4.0**self._rule.grid_bits, np.empty(len(rows), np.int64)
        if units.factors.size not in {0, len(rows)} or units.settled.size != units.factors.size:
            raise AssertionError("each row of a unit has a factor")
        return unfinished, (
            rows, dithers.first_row, self._by_affine, self._by, limit, self._state, *self._buffers, unfinished,
            *units[:2],
        )  # fmt: skip

    def rounded(
        self, rows: npt.NDArray[np.generic], dithers: Dithers, unfinished: npt.NDArray[np.int64], units: Units
    ) -> npt.NDArray[np.float64]:
        """Round unfinished rows in NumPy; those that are not finite become zero."""
        t = self._affine.shifted(rows[unfinished])
        z = np.zeros(t.shape)
        finite = np.flatnonzero(np.isfinite(t).all(axis=1))
        bunches = (dithers.first_row + unfinished[finite]) // (_TOGETHER * BUNCH)
        for group in np.split(finite, np.flatnonzero(np.diff(bunches)) + 1):
            if group.size:
                first, last = int(unfinished[group[0]]), int(unfinished[group[-1]])
                drawn = dithers.behind(first).drawn(last - first + 1, self._rule.columns)
                chosen = Drawn(drawn.entries[unfinished[group] - first], drawn.thirds[unfinished[group] - first])
                shrink = units.factors[unfinished[group]] if units.factors.size else units.factors
                z[group] = self._rule.rounded(t[group], chosen, self._affine, shrink)
        return z


class Packing(_Prepared):
    """Rounds rows to panels of 16-bit integers (:data:`dpdist.core.moment.kernel.Panels`), two rows in a slot."""

    def __init__(self, rule: Dithering, affine: Affine, start: int, constant: int) -> None:
        super().__init__(rule, affine)
        # no entry moves by 1.51 steps, so two squared norms fit a word, and an entry half of one; the integers in the
        # panels are verified
        if rule.grid_bits > 15 or 2 * (rule.radius + 1.51 * math.sqrt(rule.columns)) ** 2 >= 2**32:
            raise AssertionError("the rows do not fit 16-bit integers")
        self._start, self._constant = start, constant
        width = rule.columns + (constant != 0)
        if not (0 <= start < width and 0 <= constant < 2**15):
            raise AssertionError("a band must have columns, and a constant must fit 16 bits")
        self._panels = -(-(width - start) // LANES)
        self.norms = np.empty(0)
        """Squared norms of the integers of the last rows, with their constants; for bands that start at column 0."""
        mask = aligned_zeros((-(-rule.columns // LANES), LANES), np.int32)
        mask.reshape(-1)[: rule.columns] = -1
        self._more = (
            mask, aligned_zeros((_PAIRS, 2, LANES), np.int32), aligned_zeros((BUNCH,), np.uint32),
            aligned_zeros((-(-width // LANES) + 1, _PAIRS, LANES), np.int32),
        )  # fmt: skip

    def pack(
        self, rows: npt.NDArray[np.generic], dithers: Dithers, panels: npt.NDArray[np.int32], slot: int, *, join: bool,
        units: Units = ALONE,
    ) -> None:  # fmt: skip
        """Pack rows from a slot on; ``join`` keeps the even row of a first odd one."""
        pairs = (dithers.first_row % 2 + rows.shape[0] + 1) // 2
        fit = panels.shape[::2] == (self._panels, LANES) and panels.dtype == np.int32 and panels.flags.c_contiguous
        if not fit or not 0 <= slot <= panels.shape[1] - pairs:
            raise AssertionError("the panels have no room for the rows")
        unfinished, arguments = self.arguments(rows, dithers, units)
        if len(rows) > self.norms.size:
            self.norms = np.empty(2 * panels.shape[1])
        more = (*self._more, self._start, self._constant, panels, slot, join, self.norms)
        unfinished = unfinished[: _pack(*arguments, *more)]
        if unfinished.size:
            numbers = dithers.first_row + unfinished
            halves = panels.view(np.int16).reshape(*panels.shape, 2)
            slots = slot + (numbers >> 1) - (dithers.first_row >> 1)
            values = halves[:, slots, :, numbers & 1].reshape(unfinished.size, -1)  # zeros, and the constant
            width = self._rule.columns - self._start
            values[:, :width] = self.rounded(rows, dithers, unfinished, units)[:, self._start :]
            halves[:, slots, :, numbers & 1] = values.reshape(unfinished.size, -1, LANES)
            self.norms[unfinished] = np.einsum("ij,ij->i", values, values, dtype=np.float64)


def round_rows(
    rule: Dithering, rows: npt.NDArray[np.generic], affine: Affine, dithers: Dithers, out: npt.NDArray[np.float64],
    units: Units = ALONE,
) -> None:  # fmt: skip
    """Round rows into out, (r, columns), with a column for the constant of units."""
    if out.shape != (rows.shape[0], rows.shape[1] + (units.constant != 0)):
        raise AssertionError("the output has no room for the rows")
    prepared = _Prepared(rule, affine)
    unfinished, arguments = prepared.arguments(rows, dithers, units)
    unfinished = unfinished[: _round(*arguments, units.constant, out)]
    if unfinished.size:
        out[unfinished, : rule.columns] = prepared.rounded(rows, dithers, unfinished, units)
