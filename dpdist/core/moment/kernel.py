"""Gram matrices of integers of 16 or 8 bits in machine code, on x86-64 processors.

One instruction multiplies the 16-bit integers of two rows of 8 or 16 columns, and adds both products to 32-bit
integers, modulo 2^32. In any order of additions, the result is the sum modulo 2^32: the sum itself, if its magnitude is
below 2^31. To ensure that, the number of rows that are added at once is limited, so that the sum of squares of each
column of a tile is below 2^31 (:mod:`dpdist.core.moment.gram`). The squares are added first (:func:`_exact`), in a few
hundredths of the time.

Columns are arranged in panels of 16. A panel contains pairs of rows, so factors are adjacent. A tile of the result
stays in registers while all rows are read. The code is written in LLVM's language, because LLVM does not find these
instructions in loops over integers.

The instruction for 8-bit integers takes four rows. On a coarse grid, most rows of a wide table such as images have no
integer below -128 or above 127. They are moved to the front of the panels, four to a line, followed by the others
(:func:`_regrouped`). One factor is signed and the other unsigned: b is represented as b + 128. So the sums of a row of
the tile, that of column a, start with -128 times the sum of all a, modulo 2^32; and the number of rows that are
multiplied at once is limited so that every sum fits in 32 bits.

The rows with small integers are private, and so is the number of rows that are added at once: neither is published, and
the sum does not depend on them. They change the time, as does the number of clipped rows, but a single row hardly does:
if a third of the rows are large, both ways take nearly the same time, and a row slows only the rows in the same panels,
by at most 1.3 % (measured).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types

from dpdist.core.llvm import I16, I32, I64, emitted, function, load, loop, plus, repeated, same, store
from dpdist.core.machine_code import compiled

Panels = npt.NDArray[np.int32]
"""(panels, pairs of rows, 16): 16-bit integers of two rows in 32 bits, with the first row in the lower half."""
Multiply = Callable[[Panels, int, int, int, int, npt.NDArray[np.int64], npt.NDArray[np.int32]], None]
"""Adds ``A^T A`` of pairs of rows to 64-bit integers, entries (i, j) with i <= j < e or e <= i; overwrites the panels.

Arguments: the panels; their pairs of rows; the number of pairs, and of 8-bit rows, whose sums always fit in 32 bits; e;
the 64-bit integers; and a buffer (:func:`room_for`).
"""
PANEL = 16  # columns of a panel: 64 bytes, a cache line
HEIGHT = 8  # the target has a multiple of this number of rows, and as many columns as the panels
_FEWEST_PANELS = 16  # narrower rows seldom have small integers, and finding them takes much of the time that they save
_LINE = 4 * PANEL
_16, _LOW = np.int32(16), np.int32(0xFFFF)  # 32-bit integers, because numba would otherwise compute in 64 bits
_SIGNS = -0x7F7F7F80  # sign bits of four 8-bit integers; flipping them adds 128
_WORDS = ir.VectorType(I32, PANEL)


@dataclass(frozen=True)
class _Tile:
    """Code that adds a tile of ``A^T B`` of two panels or more to 64-bit integers."""

    feature: str
    lanes: int
    height: int
    width: int

    def dot(self, build: Any, total: Any, left: Any, right: Any, *, eight: bool) -> Any:
        """Emit total + left . right for all lanes; with 8 bits, right is unsigned."""
        sums, pairs = ir.VectorType(I32, self.lanes), ir.VectorType(I16, 2 * self.lanes)
        if eight:
            dot = function(build, "llvm.x86.avx512.vpdpbusd.512", sums, sums, sums, sums)
            return build.call(dot, [total, right, left])
        if self.feature == "avx512vnni":
            dot = function(build, "llvm.x86.avx512.vpdpwssd.512", sums, sums, sums, sums)
            return build.call(dot, [total, left, right])
        products = function(build, "llvm.x86.avx2.pmadd.wd", sums, pairs, pairs)
        return build.add(total, build.call(products, [build.bitcast(left, pairs), build.bitcast(right, pairs)]))

    def emit(
        self, build: Any, left: Any, right: Any, pairs: Any, panel: Any, target_start: Any, line: Any, begin: Any,
        *, eight: bool,
    ) -> None:  # fmt: skip
        """Emit the loop over lines of two 16-bit rows or four 8-bit rows, and the addition."""
        sums, wide = ir.VectorType(I32, self.lanes), ir.VectorType(I64, self.lanes)
        vectors = self.width // self.lanes
        first = [same(sums, 0)] * self.height
        if eight:
            first = [repeated(build, sums, load(build, build.add(begin, I64(4 * i)), I32)) for i in range(self.height)]
        with loop(build, pairs, [total for total in first for _ in range(vectors)]) as (pair, totals, added):
            offset = build.mul(pair, I64(4 * PANEL))
            factors = []
            for j in range(vectors):
                panels, within = divmod(j * self.lanes, PANEL)
                address = plus(build, right, offset, build.mul(panel, I64(panels)), I64(4 * within))
                factor = load(build, address, sums)
                factors.append(build.xor(factor, same(sums, _SIGNS)) if eight else factor)
            for i in range(self.height):
                number = repeated(build, sums, load(build, plus(build, left, offset, I64(4 * i)), I32))
                for total, factor in zip(totals[i * vectors :], factors, strict=False):
                    added.append(self.dot(build, total, number, factor, eight=eight))
        for index, new in enumerate(added):
            i, j = divmod(index, vectors)
            address = plus(build, target_start, build.mul(line, I64(i)), I64(8 * self.lanes * j))
            store(build, build.add(load(build, address, wide, 8), build.sext(new, wide)), address, 8)

    def callable(self) -> Any:
        """Return a function for compiled code with the arguments of :meth:`emit`, for 16 bits if begin is 0."""

        def tile(build: Any, left: Any, right: Any, pairs: Any, panel: Any, target: Any, line: Any, begin: Any) -> None:
            arguments = (left, right, pairs, panel, target, line, begin)
            if self.feature == "avx512vnni":
                with build.if_else(build.icmp_signed("!=", begin, I64(0))) as (of_8_bits, of_16_bits):
                    with of_8_bits:
                        self.emit(build, *arguments, eight=True)
                    with of_16_bits:
                        self.emit(build, *arguments, eight=False)
            else:  # AVX2 adds products of 8-bit integers in 16 bits, where they overflow
                self.emit(build, *arguments, eight=False)

        return emitted(tile)


_VNNI_48 = _Tile("avx512vnni", 16, 8, 48).callable()
_VNNI_32 = _Tile("avx512vnni", 16, 8, 32).callable()
_VNNI_16 = _Tile("avx512vnni", 16, 8, 16).callable()
_VNNI_TALL = _Tile("avx512vnni", 16, 16, 16).callable()
_NARROW = _Tile("avx2", 8, 4, 16)
_AVX2 = _NARROW.callable()


def _emit_squares(build: Any, panel: Any, pairs: Any) -> Any:
    """Emit a test of a panel: the sign bit of the result is set if the sum of squares of a column is 2^31 or more."""
    sums = ir.VectorType(I32, _NARROW.lanes)
    halves = range(0, PANEL, _NARROW.lanes)
    zeros = [same(sums, 0)] * (2 * len(halves))
    with loop(build, pairs, zeros, counts_first=True) as (pair, carried, new):
        for start, total, overflow in zip(halves, carried[::2], carried[1::2], strict=True):
            word = load(build, build.add(_line(build, panel, pair), I64(4 * start)), sums)
            # adds at most 2^31 to a sum below 2^31, so an overflow sets the sign bit, which is kept
            added = _NARROW.dot(build, total, word, word, eight=False)
            new += [added, build.or_(overflow, added)]
    joined = function(build, f"llvm.vector.reduce.or.v{_NARROW.lanes}i32", I32, sums)
    return build.call(joined, [reduce(build.or_, new[1::2])])


def _line(build: Any, address: Any, number: Any) -> Any:
    return build.add(address, build.mul(number, I64(_LINE)))


def _emit_flags(build: Any, panel: Any, pairs: Any, flags: Any) -> Any:
    """Emit the loop over the pairs of a panel that sets bits for rows with an integer of more than 8 bits."""
    with loop(build, pairs) as (pair, _, _):
        word, flag_line = load(build, _line(build, panel, pair), _WORDS), _line(build, flags, pair)
        low = build.and_(build.add(build.and_(word, same(_WORDS, 0xFFFF)), same(_WORDS, 0x80)), same(_WORDS, 0xFF00))
        high = build.and_(build.add(word, same(_WORDS, 0x80 << 16)), same(_WORDS, -1 << 24))
        store(build, build.or_(load(build, flag_line, _WORDS), build.or_(low, high)), flag_line)


def _emit_any(build: Any, address: Any) -> Any:
    """Emit the bits that are set in any word of a line."""
    return build.call(function(build, "llvm.vector.reduce.or.v16i32", I32, _WORDS), [load(build, address, _WORDS)])


def _emit_gather(together: int, build: Any, panel: Any, order: Any, lines: Any, out: Any, begin: Any) -> None:
    """Emit the loop that writes lines of a panel, each of ``together`` rows, in the given order.

    For four 8-bit rows, -128 times the sum of each column is written to the line at begin.
    """
    with loop(build, lines, [same(_WORDS, 0)]) as (number, (total,), new):
        parts = []
        for i in range(together):
            at = build.mul(build.add(build.mul(number, I64(together)), I64(i)), I64(4))
            row = load(build, build.add(order, at), I32)
            shift = build.mul(build.and_(row, I32(1)), I32(16))
            word = load(build, _line(build, panel, build.zext(build.lshr(row, I32(1)), I64)), _WORDS)
            word = build.lshr(word, repeated(build, _WORDS, shift))
            bits = 32 // together
            parts.append(build.shl(build.and_(word, same(_WORDS, (1 << bits) - 1)), same(_WORDS, bits * i)))
        words = reduce(build.or_, parts)
        store(build, words, _line(build, out, number))
        new.append(total)
        if together == 4:
            dot = function(build, "llvm.x86.avx512.vpdpbusd.512", _WORDS, _WORDS, _WORDS, _WORDS)
            new[0] = build.call(dot, [total, same(_WORDS, 0x01010101), words])
    if together == 4:
        store(build, build.mul(new[0], same(_WORDS, -128)), begin)


_squares, _any = emitted(_emit_squares, types.int32), emitted(_emit_any, types.int32)
_flag_large, _FOUR, _TWO = map(emitted, (_emit_flags, partial(_emit_gather, 4), partial(_emit_gather, 2)))


@njit(inline="always")  # type: ignore[untyped-decorator]
def _split(panels: Any, pairs: int, flags: Any, order: Any) -> int:
    """Write the indices of the 8-bit rows, and of the others from the end; return the number of 8-bit rows."""
    flags[:pairs] = 0
    for p in range(panels.shape[0]):
        _flag_large(panels.ctypes.data + panels.strides[0] * p, pairs, flags.ctypes.data)
    few, last = 0, 2 * pairs
    for pair in range(pairs):
        bits = _any(flags.ctypes.data + flags.strides[0] * pair)
        for half in range(2):
            if bits >> (16 * half) & 0xFF00:
                last -= 1
                order[last] = 2 * pair + half
            else:
                order[few] = 2 * pair + half
                few += 1
    return few


@njit(inline="always")  # type: ignore[untyped-decorator]
def _regrouped(panels: Any, pairs: int, most: int, room: Any) -> int:
    """Move the 8-bit rows to the front of the panels, four to a line, followed by pairs of the others."""
    if 2 * pairs > most or panels.shape[0] < _FEWEST_PANELS:
        return 0
    columns = panels.shape[0]
    lines, order = room[columns : columns + pairs], room[columns + pairs :].reshape(-1)
    few: int = _split(panels, pairs, lines, order) & ~3
    if 3 * few < 2 * pairs:
        return 0
    fours, twos = few >> 2, (2 * pairs - few) >> 1
    for p in range(columns):
        panel = panels.ctypes.data + panels.strides[0] * p
        if twos:
            _TWO(panel, order.ctypes.data + 4 * few, twos, lines.ctypes.data, 0)
        _FOUR(panel, order.ctypes.data, fours, panel, room.ctypes.data + _LINE * p)
        for i in range(twos):
            for j in range(PANEL):
                panels[p, fours + i, j] = lines[i, j]
    return fours


@njit(inline="always")  # type: ignore[untyped-decorator]
def _exact(factors: int, panel: int, pairs: int, least: int, at_once: Any) -> None:
    """Write for each panel how many pairs may be added at once, so that the sums of squares fit in 32 bits.

    The numbers are powers of two, and at least ``least``, so the smallest of several panels is right for all of them.
    """
    most = 1
    while most < pairs:
        most *= 2
    tried = most
    for p in range(at_once.size):
        while tried > least:
            fits = True
            for first in range(0, pairs, tried):
                if _squares(factors + panel * p + 4 * PANEL * first, min(tried, pairs - first)) < 0:
                    fits = False
                    break
            if fits:
                break
            tried >>= 1
        at_once[p] = tried
        tried = min(most, 4 * tried)  # most panels are similar


@njit  # type: ignore[untyped-decorator]
def _multiply_lines(factors: int, panel: int, lines: int, exact: Any, ends: int, sums: Any, begins: int) -> None:
    """Add the product of the lines of each panel: of two 16-bit rows, or of four 8-bit rows if begins is not 0."""
    line, target = 8 * sums.shape[1], sums.ctypes.data
    height, width = sums.shape
    for column in range(0, width, 48):
        right = factors + column // PANEL * panel
        row = 0
        while row < height:
            # skip panels below the diagonal
            skipped = max(0, row - column) // PANEL if row < ends else 0
            vectors = min(3, ((ends if row < ends else width) - column) // PANEL) - skipped
            if row < ends and (row >= column + 48 or vectors < 1):
                if ends == width:
                    break
                row = ends
                continue
            tall = vectors == 1 and row + PANEL <= min(height, column)
            left = factors + row // PANEL * panel + row % PANEL * 4
            at = target + row * line + (column + PANEL * skipped) * 8
            begin = begins + 4 * row if begins else 0
            at_once = exact[row // PANEL]
            for p in range(column // PANEL + skipped, column // PANEL + skipped + vectors):
                at_once = min(at_once, exact[p])
            for first in range(0, lines, at_once):
                count, offset = min(at_once, lines - first), 4 * PANEL * first
                left_factors, right_factors = left + offset, right + skipped * panel + offset
                if vectors == 3:
                    _VNNI_48(left_factors, right_factors, count, panel, at, line, begin)
                elif vectors == 2:
                    _VNNI_32(left_factors, right_factors, count, panel, at, line, begin)
                elif tall:
                    _VNNI_TALL(left_factors, right_factors, count, panel, at, line, begin)
                else:
                    _VNNI_16(left_factors, right_factors, count, panel, at, line, begin)
            row += PANEL if tall else 8


@njit(inline="always")  # type: ignore[untyped-decorator]
def _last(room: Any, panels: int) -> Any:
    """Return the last numbers of the buffer, one for each panel."""
    return room.reshape(-1)[room.size - panels :]


def _multiply_vnni(panels: Any, pairs: int, least: int, small: int, ends: int, sums: Any, room: Any) -> None:
    factors, panel = panels.ctypes.data, panels.strides[0]
    exact = _last(room, panels.shape[0])
    fours = _regrouped(panels, pairs, small, room)
    if fours:
        exact[:] = fours
        _multiply_lines(factors, panel, fours, exact, ends, sums, room.ctypes.data)
        factors, pairs = factors + 4 * PANEL * fours, pairs - 2 * fours
    if pairs:
        _exact(factors, panel, pairs, least, exact)
        _multiply_lines(factors, panel, pairs, exact, ends, sums, 0)


def _multiply_avx2(panels: Any, pairs: int, least: int, _small: int, ends: int, sums: Any, room: Any) -> None:
    panel, line = 4 * PANEL * panels.shape[1], 8 * sums.shape[1]
    factors, target = panels.ctypes.data, sums.ctypes.data
    height, width = sums.shape
    exact = _last(room, panels.shape[0])
    _exact(factors, panel, pairs, least, exact)
    for column in range(0, width, PANEL):
        right = factors + column // PANEL * panel
        for row in range(0, height, 4):
            if row < ends and (row >= column + PANEL or column == ends):
                continue
            left = factors + row // PANEL * panel + row % PANEL * 4
            at = target + row * line + column * 8
            at_once = min(exact[row // PANEL], exact[column // PANEL])
            for first in range(0, pairs, at_once):
                offset = 4 * PANEL * first
                _AVX2(left + offset, right + offset, min(at_once, pairs - first), panel, at, line, 0)


_MULTIPLY = {"avx512vnni": _multiply_vnni, "avx2": _multiply_avx2}


def room_for(panels: int, pairs: int) -> tuple[int, int]:
    """Return the shape of an int32 buffer; compiled code frees arrays that are referenced only by address."""
    small = panels + pairs + -(-2 * pairs // PANEL) if panels >= _FEWEST_PANELS else 0
    return small + -(-panels // PANEL), PANEL


@cache
def multiply_with(feature: str) -> Multiply:
    """Return the product with the instructions of a processor feature, ``avx512vnni`` or ``avx2``."""
    signature = "void(int32[:, :, ::1], int64, int64, int64, int64, int64[:, ::1], int32[:, ::1])"
    multiply: Multiply = compiled(_MULTIPLY[feature], signature, nogil=True)
    return multiply


def _pack(block: Any, start: int, filled: int, panels: Any) -> None:
    columns = block.shape[1] - start
    full_panels = columns // PANEL
    row = 0
    while row < block.shape[0]:
        pair, second = (filled + row) >> 1, (filled + row) & 1
        if not second and row + 1 < block.shape[0]:
            low, high = block[row, start:], block[row + 1, start:]
            for p in range(full_panels):
                out = panels[p, pair]
                for j in range(PANEL):
                    out[j] = np.int32(high[p * PANEL + j]) << _16 | np.int32(low[p * PANEL + j]) & _LOW
            for j in range(full_panels * PANEL, columns):
                panels[full_panels, pair, j % PANEL] = np.int32(high[j]) << _16 | np.int32(low[j]) & _LOW
            row += 2
        else:  # the second row of a pair, or a single last one, whose pair is filled with zeros
            for j in range(columns):
                value = np.int32(block[row, start + j])
                if second:
                    panels[j // PANEL, pair, j % PANEL] |= value << _16
                else:
                    panels[j // PANEL, pair, j % PANEL] = value & _LOW
            row += 1


@cache
def packing() -> Callable[[npt.NDArray[np.float64], int, int, Panels], None]:
    """Return a function that writes columns of a C-ordered block of integers into panels, after ``filled`` rows."""
    signature = "void(float64[:, ::1], int64, int64, int32[:, :, ::1])"
    pack: Callable[[npt.NDArray[np.float64], int, int, Panels], None] = compiled(_pack, signature, nogil=True)
    return pack
