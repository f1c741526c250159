"""Gram matrices of integers of 16 bits or 8 in machine code, on processors of x86-64.

One instruction multiplies the 16-bit integers of two rows of 8 or 16 columns, and adds both products to 32-bit ones,
modulo 2^32. So the result, in whatever order it was added, is the sum modulo 2^32: the sum itself if that is below 2^31
in magnitude. It is, for so many rows at once that no column of a tile has squares that sum to 2^31
(:mod:`dpdist.moment.gram`). The squares are added up first (:func:`_exact`), in a few hundredths of the time.

Columns stand in panels of 16. A panel holds two rows after two rows, so factors lie side by side. A tile of the result
stays in registers while all rows are read. It is written in LLVM's language, which does not find these instructions in
loops over integers.

Of 8-bit integers the instruction takes four rows. On a coarse grid most rows of a wide table have no integer below -128
or above 127, such as images. They are put in front of the panels, four to a line, and the others behind them
(:func:`_regrouped`). One factor has a sign and the other has none: it is b + 128 for b. So the sums of a row of the
tile, that of column a, begin with -128 times the sum of all a, modulo 2^32 too; and so few rows are multiplied at once
that 32 bits hold their sum, whatever they are.

Which rows these are is private, and so is how many rows are added at once: neither is told, and the sum is the same.
They change the time, as does how many rows are clipped, but no single row does by much: where a third of the rows are
such, both ways take nearly as long, and a row slows only those that stand in the panels with it, by 1.3 % at most
(measured).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from dpdist._util.machine_code import compiled

Panels = npt.NDArray[np.int32]
"""(panels, pairs of rows, 16): the 16-bit integers of two rows in one of 32 bits, that of the first row below."""
Multiply = Callable[[Panels, int, int, int, int, npt.NDArray[np.int64], npt.NDArray[np.int32]], None]
"""Adds ``A^T A`` of pairs of rows to 64-bit integers, entries (i, j) with i <= j < e or e <= i; the panels are lost.

Takes the panels; their pairs of rows; of how many pairs, and rows of 8 bits, 32 bits hold any sum; e; the 64-bit
integers; and room for the meantime (:func:`room_for`).
"""
PANEL = 16  # columns of a panel: 64 bytes, a line of the cache
HEIGHT = 8  # what is added to has a multiple of so many rows, and as many columns as the panels
_FEWEST_PANELS = 16  # in narrower rows integers are seldom so small, and to look for them takes much of what they save
_LINE = 4 * PANEL
_16, _LOW = np.int32(16), np.int32(0xFFFF)  # of 32 bits themselves, or numba would compute in 64
_SIGNS = -0x7F7F7F80  # the sign of four integers of 8 bits: without it they are 128 more, from 0 to 255
_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_WORDS = ir.VectorType(_I32, PANEL)


@dataclass(frozen=True)
class _Tile:
    """What adds a tile of ``A^T B`` of two panels or more to 64-bit integers."""

    feature: str
    lanes: int
    height: int
    width: int

    def dot(self, build: Any, total: Any, left: Any, right: Any, *, eight: bool) -> Any:
        """Emit total + left . right for all lanes; of 8 bits, right has no sign."""
        sums, pairs = ir.VectorType(_I32, self.lanes), ir.VectorType(_I16, 2 * self.lanes)
        if eight:
            dot = _function(build, "llvm.x86.avx512.vpdpbusd.512", ir.FunctionType(sums, [sums] * 3))
            return build.call(dot, [total, right, left])
        if self.feature == "avx512vnni":
            dot = _function(build, "llvm.x86.avx512.vpdpwssd.512", ir.FunctionType(sums, [sums] * 3))
            return build.call(dot, [total, left, right])
        products = _function(build, "llvm.x86.avx2.pmadd.wd", ir.FunctionType(sums, [pairs] * 2))
        return build.add(total, build.call(products, [build.bitcast(left, pairs), build.bitcast(right, pairs)]))

    def emit(self, build: Any, arguments: Any, *, eight: bool) -> None:
        """Emit the loop over the rows, two of 16 bits or four of 8, and the addition; all arguments are int64."""
        left, right, pairs, panel, place, line, begin = arguments
        sums, wide = ir.VectorType(_I32, self.lanes), ir.VectorType(_I64, self.lanes)
        vectors = self.width // self.lanes
        first = [ir.Constant(sums, [0] * self.lanes)] * self.height
        if eight:
            first = [self._same(build, build.add(begin, _I64(4 * i))) for i in range(self.height)]
        with _loop(build, pairs, [total for total in first for _ in range(vectors)]) as (pair, totals, added):
            here = build.mul(pair, _I64(4 * PANEL))
            factors = []
            for j in range(vectors):
                panels, within = divmod(j * self.lanes, PANEL)
                address = _plus(build, right, here, build.mul(panel, _I64(panels)), _I64(4 * within))
                factor = _load(build, address, sums)
                factors.append(build.xor(factor, ir.Constant(sums, [_SIGNS] * self.lanes)) if eight else factor)
            for i in range(self.height):
                same = self._same(build, _plus(build, left, here, _I64(4 * i)))
                for total, factor in zip(totals[i * vectors :], factors, strict=False):
                    added.append(self.dot(build, total, same, factor, eight=eight))
        for index, new in enumerate(added):
            i, j = divmod(index, vectors)
            address = _plus(build, place, build.mul(line, _I64(i)), _I64(8 * self.lanes * j))
            target = build.inttoptr(address, wide.as_pointer())
            build.store(build.add(build.load(target, align=8), build.sext(new, wide)), target, align=8)

    def _same(self, build: Any, address: Any) -> Any:
        """Emit a vector with 32 bits of memory in all lanes."""
        sums = ir.VectorType(_I32, self.lanes)
        one = _load(build, address, _I32)
        first = build.insert_element(ir.Constant(sums, ir.Undefined), one, _I32(0))
        return build.shuffle_vector(first, first, ir.Constant(sums, [0] * self.lanes))

    def callable(self) -> Any:
        """Return it as a function for compiled code, with the arguments of :meth:`emit`: of 16 bits if begin is 0."""

        def emit(context: Any, build: Any, _signature: Any, arguments: Any) -> Any:
            if self.feature == "avx512vnni":
                with build.if_else(build.icmp_signed("!=", arguments[-1], _I64(0))) as (of_8_bits, of_16_bits):
                    with of_8_bits:
                        self.emit(build, arguments, eight=True)
                    with of_16_bits:
                        self.emit(build, arguments, eight=False)
            else:  # AVX2 multiplies 8 bits too, but adds two products in 16 bits, which do not hold them
                self.emit(build, arguments, eight=False)
            return context.get_dummy_value()

        @intrinsic  # type: ignore[untyped-decorator]
        def tile(
            _context: Any, _left: Any, _right: Any, _pairs: Any, _panel: Any, _place: Any, _line: Any, _begin: Any
        ) -> Any:
            return types.void(*[types.int64] * 7), emit

        return tile


@contextmanager
def _loop(
    build: Any, count: Any, first: Sequence[Any] = (), *, counts_first: bool = False
) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """Emit a loop of so many rounds, at least one, whose body is the block.

    It gives the number of the round, the values that it carries, and a list that takes those of the next round.
    """
    before, loop, after = build.basic_block, build.append_basic_block(), build.append_basic_block()
    build.branch(loop)
    build.position_at_end(loop)
    number, carried, following = build.phi(_I64), [build.phi(value.type) for value in first], list[Any]()
    one_more = build.add(number, _I64(1)) if counts_first else None
    yield number, carried, following
    one_more = one_more or build.add(number, _I64(1))
    for phi, begin, new in zip((number, *carried), (_I64(0), *first), (one_more, *following), strict=True):
        phi.add_incoming(begin, before)
        phi.add_incoming(new, loop)
    build.cbranch(build.icmp_signed("<", one_more, count), loop, after)
    build.position_at_end(after)


def _function(build: Any, name: str, kind: Any) -> Any:
    return build.module.globals.get(name) or ir.Function(build.module, kind, name)


def _plus(build: Any, *terms: Any) -> Any:
    return reduce(build.add, terms)


def _load(build: Any, address: Any, kind: Any) -> Any:
    return build.load(build.inttoptr(address, kind.as_pointer()), align=4)


_VNNI_48 = _Tile("avx512vnni", 16, 8, 48).callable()
_VNNI_32 = _Tile("avx512vnni", 16, 8, 32).callable()
_VNNI_16 = _Tile("avx512vnni", 16, 8, 16).callable()
_VNNI_TALL = _Tile("avx512vnni", 16, 16, 16).callable()
_NARROW = _Tile("avx2", 8, 4, 16)
_AVX2 = _NARROW.callable()


def _emit_squares(build: Any, panel: Any, pairs: Any) -> Any:
    """Emit the sum of squares of each column of a panel: the first of 32 bits is set where one is 2^31 or more."""
    sums = ir.VectorType(_I32, _NARROW.lanes)
    halves = range(0, PANEL, _NARROW.lanes)
    zeros = [ir.Constant(sums, [0] * _NARROW.lanes)] * (2 * len(halves))
    with _loop(build, pairs, zeros, counts_first=True) as (pair, carried, new):
        for start, total, seen in zip(halves, carried[::2], carried[1::2], strict=True):
            word = _load(build, build.add(_line(build, panel, pair), _I64(4 * start)), sums)
            # below 2^31 so far, and at most 2^31 more: where that is too much, the sign of 32 bits shows it, and is
            # kept
            added = _NARROW.dot(build, total, word, word, eight=False)
            new += [added, build.or_(seen, added)]
    joined = _function(build, f"llvm.vector.reduce.or.v{_NARROW.lanes}i32", ir.FunctionType(_I32, [sums]))
    return build.call(joined, [reduce(build.or_, new[1::2])])


@intrinsic  # type: ignore[untyped-decorator]
def _squares(_context: Any, _panel: Any, _pairs: Any) -> Any:
    def emit(_c: Any, build: Any, _signature: Any, arguments: Any) -> Any:
        return _emit_squares(build, *arguments)

    return types.int32(types.int64, types.int64), emit


def _all(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * PANEL)


def _store(build: Any, value: Any, address: Any) -> None:
    build.store(value, build.inttoptr(address, value.type.as_pointer()), align=4)


def _line(build: Any, address: Any, number: Any) -> Any:
    return build.add(address, build.mul(number, _I64(_LINE)))


def _emit_found(build: Any, panel: Any, pairs: Any, found: Any) -> Any:
    """Emit the loop over the pairs of a panel that adds bits to its line, in the half of a row that needs 16 bits."""
    with _loop(build, pairs) as (pair, _, _):
        word, place = _load(build, _line(build, panel, pair), _WORDS), _line(build, found, pair)
        low = build.and_(build.add(build.and_(word, _all(0xFFFF)), _all(0x80)), _all(0xFF00))
        high = build.and_(build.add(word, _all(0x80 << 16)), _all(-1 << 24))
        _store(build, build.or_(_load(build, place, _WORDS), build.or_(low, high)), place)


@intrinsic  # type: ignore[untyped-decorator]
def _found(_context: Any, _panel: Any, _pairs: Any, _lines: Any) -> Any:
    def emit(context: Any, build: Any, _signature: Any, arguments: Any) -> Any:
        _emit_found(build, *arguments)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), emit


@intrinsic  # type: ignore[untyped-decorator]
def _any(_context: Any, _place: Any) -> Any:
    def emit(_c: Any, build: Any, _signature: Any, arguments: Any) -> Any:
        joined = _function(build, "llvm.vector.reduce.or.v16i32", ir.FunctionType(_I32, [_WORDS]))
        return build.call(joined, [_load(build, arguments[0], _WORDS)])

    return types.int32(types.int64), emit


def _emit_gather(build: Any, together: int, panel: Any, order: Any, lines: Any, out: Any, begin: Any) -> None:
    """Emit the loop that writes lines of a panel, each of so many rows, whose numbers stand in order.

    Of four rows, 8 bits each, -128 times the sum of all of a column goes to the line at begin.
    """
    with _loop(build, lines, [_all(0)]) as (number, (total,), new):
        parts = []
        for i in range(together):
            at = build.mul(build.add(build.mul(number, _I64(together)), _I64(i)), _I64(4))
            row = _load(build, build.add(order, at), _I32)
            shift = build.mul(build.and_(row, _I32(1)), _I32(16))
            one = build.insert_element(ir.Constant(_WORDS, ir.Undefined), shift, _I32(0))
            word = _load(build, _line(build, panel, build.zext(build.lshr(row, _I32(1)), _I64)), _WORDS)
            word = build.lshr(word, build.shuffle_vector(one, one, _all(0)))
            bits = 32 // together
            parts.append(build.shl(build.and_(word, _all((1 << bits) - 1)), _all(bits * i)))
        words = reduce(build.or_, parts)
        _store(build, words, _line(build, out, number))
        new.append(total)
        if together == 4:
            dot = _function(build, "llvm.x86.avx512.vpdpbusd.512", ir.FunctionType(_WORDS, [_WORDS] * 3))
            new[0] = build.call(dot, [total, _all(0x01010101), words])
    if together == 4:
        _store(build, build.mul(new[0], _all(-128)), begin)


def _gathers(together: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def gather(_context: Any, _panel: Any, _order: Any, _lines: Any, _out: Any, _begin: Any) -> Any:
        def emit(context: Any, build: Any, _signature: Any, arguments: Any) -> Any:
            _emit_gather(build, together, *arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), emit

    return gather


_FOUR, _TWO = _gathers(4), _gathers(2)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _split(panels: Any, pairs: int, found: Any, order: Any) -> int:
    """Write the numbers of rows that 8 bits hold, and those of the others from the end on; return how many they are."""
    found[:pairs] = 0
    for p in range(panels.shape[0]):
        _found(panels.ctypes.data + panels.strides[0] * p, pairs, found.ctypes.data)
    few, last = 0, 2 * pairs
    for pair in range(pairs):
        bits = _any(found.ctypes.data + found.strides[0] * pair)
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
    """Put rows that 8 bits hold in front of the panels, four to a line, and the pairs of the others behind them."""
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
    """Write for each panel how many pairs may be added at once: 32 bits hold the sums of squares of its columns.

    At least the least number. They are powers of two, so of several panels the least of theirs holds for all.
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
        tried = min(most, 4 * tried)  # most panels are alike


@njit  # type: ignore[untyped-decorator]
def _multiply_lines(factors: int, panel: int, lines: int, exact: Any, ends: int, sums: Any, begins: int) -> None:
    """Add the product of so many lines of each panel: of two rows of 16 bits, or of four of 8 if begins is not 0."""
    line, place = 8 * sums.shape[1], sums.ctypes.data
    height, width = sums.shape
    for column in range(0, width, 48):
        right = factors + column // PANEL * panel
        row = 0
        while row < height:
            # below the diagonal nothing is needed: of its block only the panels from that of the row on
            skipped = max(0, row - column) // PANEL if row < ends else 0
            vectors = min(3, ((ends if row < ends else width) - column) // PANEL) - skipped
            if row < ends and (row >= column + 48 or vectors < 1):
                if ends == width:
                    break
                row = ends
                continue
            tall = vectors == 1 and row + PANEL <= min(height, column)
            left = factors + row // PANEL * panel + row % PANEL * 4
            at = place + row * line + (column + PANEL * skipped) * 8
            begin = begins + 4 * row if begins else 0
            at_once = exact[row // PANEL]
            for p in range(column // PANEL + skipped, column // PANEL + skipped + vectors):
                at_once = min(at_once, exact[p])
            for first in range(0, lines, at_once):
                some, here = min(at_once, lines - first), 4 * PANEL * first
                one, other = left + here, right + skipped * panel + here
                if vectors == 3:
                    _VNNI_48(one, other, some, panel, at, line, begin)
                elif vectors == 2:
                    _VNNI_32(one, other, some, panel, at, line, begin)
                elif tall:
                    _VNNI_TALL(one, other, some, panel, at, line, begin)
                else:
                    _VNNI_16(one, other, some, panel, at, line, begin)
            row += PANEL if tall else 8


@njit(inline="always")  # type: ignore[untyped-decorator]
def _last(room: Any, panels: int) -> Any:
    """Return the last numbers in it, one for each panel."""
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
    factors, place = panels.ctypes.data, sums.ctypes.data
    height, width = sums.shape
    exact = _last(room, panels.shape[0])
    _exact(factors, panel, pairs, least, exact)
    for column in range(0, width, PANEL):
        right = factors + column // PANEL * panel
        for row in range(0, height, 4):
            if row < ends and (row >= column + PANEL or column == ends):
                continue
            left = factors + row // PANEL * panel + row % PANEL * 4
            at = place + row * line + column * 8
            at_once = min(exact[row // PANEL], exact[column // PANEL])
            for first in range(0, pairs, at_once):
                here = 4 * PANEL * first
                _AVX2(left + here, right + here, min(at_once, pairs - first), panel, at, line, 0)


_MULTIPLY = {"avx512vnni": _multiply_vnni, "avx2": _multiply_avx2}


def room_for(panels: int, pairs: int) -> tuple[int, int]:
    """Return the shape of the room, int32, that it takes: compiled code would free what only addresses lead to."""
    small = panels + pairs + -(-2 * pairs // PANEL) if panels >= _FEWEST_PANELS else 0
    return small + -(-panels // PANEL), PANEL


@cache
def multiply_with(feature: str) -> Multiply:
    """Return the product by the instructions of a feature that this processor has, ``avx512vnni`` or ``avx2``."""
    signature = "void(int32[:, :, ::1], int64, int64, int64, int64, int64[:, ::1], int32[:, ::1])"
    found: Multiply = compiled(_MULTIPLY[feature], signature, nogil=True)
    return found


def _pack(block: Any, start: int, filled: int, panels: Any) -> None:
    columns = block.shape[1] - start
    whole = columns // PANEL
    row = 0
    while row < block.shape[0]:
        pair, second = (filled + row) >> 1, (filled + row) & 1
        if not second and row + 1 < block.shape[0]:
            low, high = block[row, start:], block[row + 1, start:]
            for p in range(whole):
                out = panels[p, pair]
                for j in range(PANEL):
                    out[j] = np.int32(high[p * PANEL + j]) << _16 | np.int32(low[p * PANEL + j]) & _LOW
            for j in range(whole * PANEL, columns):
                panels[whole, pair, j % PANEL] = np.int32(high[j]) << _16 | np.int32(low[j]) & _LOW
            row += 2
        else:  # the second row of a pair, or a last one alone: zeros stand for what is not there yet
            for j in range(columns):
                value = np.int32(block[row, start + j])
                if second:
                    panels[j // PANEL, pair, j % PANEL] |= value << _16
                else:
                    panels[j // PANEL, pair, j % PANEL] = value & _LOW
            row += 1


@cache
def packing() -> Callable[[npt.NDArray[np.float64], int, int, Panels], None]:
    """Return what writes the columns of a block from one on, C-ordered integers, behind so many rows of panels."""
    signature = "void(float64[:, ::1], int64, int64, int32[:, :, ::1])"
    found: Callable[[npt.NDArray[np.float64], int, int, Panels], None] = compiled(_pack, signature, nogil=True)
    return found
