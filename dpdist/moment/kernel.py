"""Gram matrices of 16-bit integers in machine code, on processors of x86-64.

One instruction takes two rows of 8 or 16 columns: it multiplies their 16-bit integers, and adds both products to
32-bit ones, all of it modulo 2^32. So what comes out is the sum modulo 2^32, in whatever order it was added: the sum
itself if that is below 2^31 in magnitude. :mod:`dpdist.moment.gram` sees to that, and to the 16 bits.

Columns stand in panels of 16. A panel holds two rows after two rows, so what is multiplied lies side by side, as the
left factor and as the right one. A tile of the result stays in registers while all rows are read. It is written in the
language of LLVM, which does not find these instructions in loops over integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dpdist._util.machine_code import compiled

Panels = npt.NDArray[np.int32]
"""(panels, pairs of rows, 16): the 16-bit integers of two rows in one of 32 bits, that of the first row below."""
Multiply = Callable[[Panels, int, int, npt.NDArray[np.int64]], None]
"""Adds ``A^T A`` of so many pairs of rows, so many at once in 32 bits, to 64-bit integers: entries (i, j), i <= j."""
PANEL = 16
"""Columns of a panel: 64 bytes, a line of the cache."""
HEIGHT = 8
"""What is added to has a multiple of so many rows, and as many columns as the panels."""
_16, _LOW = np.int32(16), np.int32(0xFFFF)  # of 32 bits themselves, or numba would compute in 64
_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)


@dataclass(frozen=True)
class _Tile:
    """What adds a tile of ``A^T B`` of two panels or more to 64-bit integers.

    Parameters
    ----------
    feature
        Of the processor, whose instruction adds products of pairs.
    lanes
        Pairs that it takes at once.
    height, width
        Of the tile; a height that divides PANEL, and a width that is a multiple of it.
    """

    feature: str
    lanes: int
    height: int
    width: int

    def dot(self, build: Any, total: Any, left: Any, right: Any) -> Any:
        """Emit total + left . right for all lanes."""
        sums, pairs = ir.VectorType(_I32, self.lanes), ir.VectorType(_I16, 2 * self.lanes)
        if self.feature == "avx512vnni":
            dot = _function(build, "llvm.x86.avx512.vpdpwssd.512", ir.FunctionType(sums, [sums] * 3))
            return build.call(dot, [total, left, right])
        products = _function(build, "llvm.x86.avx2.pmadd.wd", ir.FunctionType(sums, [pairs] * 2))
        return build.add(total, build.call(products, [build.bitcast(left, pairs), build.bitcast(right, pairs)]))

    def emit(self, build: Any, left: Any, right: Any, pairs: Any, panel: Any, place: Any, line: Any) -> None:
        """Emit the loop over the rows, and the addition.

        Parameters
        ----------
        left, right
            The addresses of the first pair of the left and of the right factor.
        pairs
            How many pairs of rows there are, at least one.
        panel
            Bytes from one panel to the next.
        place, line
            The address of the tile, and bytes from one of its rows to the next.
        """
        sums, wide = ir.VectorType(_I32, self.lanes), ir.VectorType(_I64, self.lanes)
        vectors = self.width // self.lanes
        before, loop, after = build.basic_block, build.append_basic_block(), build.append_basic_block()
        build.branch(loop)
        build.position_at_end(loop)
        pair = build.phi(_I64)
        totals = [build.phi(sums) for _ in range(self.height * vectors)]
        here = build.mul(pair, _I64(4 * PANEL))
        factors = []
        for j in range(vectors):
            panels, within = divmod(j * self.lanes, PANEL)
            address = _plus(build, right, here, build.mul(panel, _I64(panels)), _I64(4 * within))
            factors.append(build.load(build.inttoptr(address, sums.as_pointer()), align=4))
        added = []
        for i in range(self.height):
            address = _plus(build, left, here, _I64(4 * i))
            one = build.load(build.inttoptr(address, _I32.as_pointer()), align=4)
            first = build.insert_element(ir.Constant(sums, ir.Undefined), one, _I32(0))
            same = build.shuffle_vector(first, first, ir.Constant(sums, [0] * self.lanes))
            added += [self.dot(build, totals[i * vectors + j], same, factors[j]) for j in range(vectors)]
        following = build.add(pair, _I64(1))
        pair.add_incoming(_I64(0), before)
        pair.add_incoming(following, loop)
        for total, new in zip(totals, added, strict=True):
            total.add_incoming(ir.Constant(sums, [0] * self.lanes), before)
            total.add_incoming(new, loop)
        build.cbranch(build.icmp_signed("<", following, pairs), loop, after)
        build.position_at_end(after)
        for index, new in enumerate(added):
            i, j = divmod(index, vectors)
            address = _plus(build, place, build.mul(line, _I64(i)), _I64(8 * self.lanes * j))
            target = build.inttoptr(address, wide.as_pointer())
            build.store(build.add(build.load(target, align=8), build.sext(new, wide)), target, align=8)

    def callable(self) -> Any:
        """Return it as a function for compiled code, with the arguments of :meth:`emit`, all int64."""

        def emit(context: Any, build: Any, _signature: Any, arguments: Any) -> Any:
            self.emit(build, *arguments)
            return context.get_dummy_value()

        @intrinsic  # type: ignore[untyped-decorator]
        def tile(_context: Any, _left: Any, _right: Any, _pairs: Any, _panel: Any, _place: Any, _line: Any) -> Any:
            return types.void(*[types.int64] * 6), emit

        return tile


def _function(build: Any, name: str, kind: Any) -> Any:
    return build.module.globals.get(name) or ir.Function(build.module, kind, name)


def _plus(build: Any, *terms: Any) -> Any:
    return reduce(build.add, terms)


_VNNI_48 = _Tile("avx512vnni", 16, 8, 48).callable()
_VNNI_32 = _Tile("avx512vnni", 16, 8, 32).callable()
_VNNI_16 = _Tile("avx512vnni", 16, 8, 16).callable()
_VNNI_TALL = _Tile("avx512vnni", 16, 16, 16).callable()
_AVX2 = _Tile("avx2", 8, 4, 16).callable()


def _multiply_vnni(panels: Any, pairs: int, at_once: int, sums: Any) -> None:
    panel, line = 4 * PANEL * panels.shape[1], 8 * sums.shape[1]
    factors, place = panels.ctypes.data, sums.ctypes.data
    height, width = sums.shape
    for column in range(0, width, 48):
        right = factors + column // PANEL * panel
        row = 0
        while row < min(height, column + 48):
            # below the diagonal nothing is needed: of its block only the panels from that of the row on
            skipped = max(0, row - column) // PANEL
            vectors = min(3, (width - column) // PANEL) - skipped
            if vectors < 1:
                break
            tall = vectors == 1 and row + PANEL <= min(height, column)
            left = factors + row // PANEL * panel + row % PANEL * 4
            at = place + row * line + (column + PANEL * skipped) * 8
            for first in range(0, pairs, at_once):
                some, here = min(at_once, pairs - first), 4 * PANEL * first
                one, other = left + here, right + skipped * panel + here
                if vectors == 3:
                    _VNNI_48(one, other, some, panel, at, line)
                elif vectors == 2:
                    _VNNI_32(one, other, some, panel, at, line)
                elif tall:
                    _VNNI_TALL(one, other, some, panel, at, line)
                else:
                    _VNNI_16(one, other, some, panel, at, line)
            row += PANEL if tall else 8


def _multiply_avx2(panels: Any, pairs: int, at_once: int, sums: Any) -> None:
    panel, line = 4 * PANEL * panels.shape[1], 8 * sums.shape[1]
    factors, place = panels.ctypes.data, sums.ctypes.data
    for column in range(0, sums.shape[1], 16):
        right = factors + column // PANEL * panel
        for row in range(0, min(sums.shape[0], column + 16), 4):
            left = factors + row // PANEL * panel + row % PANEL * 4
            at = place + row * line + column * 8
            for first in range(0, pairs, at_once):
                here = 4 * PANEL * first
                _AVX2(left + here, right + here, min(at_once, pairs - first), panel, at, line)


_MULTIPLY = {"avx512vnni": _multiply_vnni, "avx2": _multiply_avx2}


@cache
def multiply_with(feature: str) -> Multiply:
    """Return the product by the instructions of a feature that this processor has, ``avx512vnni`` or ``avx2``."""
    signature = "void(int32[:, :, ::1], int64, int64, int64[:, ::1])"
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
def pack() -> Callable[[npt.NDArray[np.float64], int, int, Panels], None]:
    """Return what writes the columns of a block from one on, C-ordered integers, behind the rows that panels hold."""
    found: Callable[[npt.NDArray[np.float64], int, int, Panels], None] = compiled(
        _pack, "void(float64[:, ::1], int64, int64, int32[:, :, ::1])", nogil=True
    )
    return found
