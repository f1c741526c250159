"""Norms of the moments of privacy units in machine code: see :mod:`dpdist.core.rows.unit_moment`.

Sums are of integers, and exact in any order; of squares of products, and of rows that are not rounded, in that of the
processor.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit

from dpdist.core.llvm import I32, I64, emitted, load, loop, repeated, same, store
from dpdist.core.machine_code import compiled
from dpdist.core.rows.bounding import EXACT, MARGIN
from dpdist.core.rows.dither_kernel import LANES, LINE, SUMS, emit_dot

_TOGETHER = 4
"""Rows that are multiplied by a row at once."""


@njit(inline="always")  # type: ignore[untyped-decorator]
def _trace(z: Any) -> float:
    total = 0.0
    for i in range(z.shape[0]):
        for k in range(z.shape[1]):
            total += z[i, k] * z[i, k]
    return total


@njit(inline="always")  # type: ignore[untyped-decorator]
def _square_by_pairs(z: Any) -> float:
    total = 0.0
    for i in range(z.shape[0]):
        for j in range(i + 1):
            product = 0.0
            for k in range(z.shape[1]):
                product += z[i, k] * z[j, k]
            total += product * product * (1.0 if i == j else 2.0)
    return total


@njit(inline="always")  # type: ignore[untyped-decorator]
def _square_by_columns(z: Any, gram: Any) -> float:
    gram[:] = 0.0
    for i in range(z.shape[0]):
        for k in range(z.shape[1]):
            for m in range(k + 1):
                gram[k, m] += z[i, k] * z[i, m]
    total = 0.0
    for k in range(z.shape[1]):
        for m in range(k + 1):
            total += gram[k, m] * gram[k, m] * (1.0 if k == m else 2.0)
    return total


def _moment_norms(
    values: Any, starts: Any, ends: Any, chosen: Any, norms: Any, limit: float, of_trace: bool, gram: Any
) -> None:  # fmt: skip
    for unit in range(starts.size):
        if not chosen[unit]:
            continue
        z = values[starts[unit] : ends[unit]]
        norms[unit] = trace = _trace(z)
        if of_trace or trace <= limit:
            continue
        norm = math.sqrt(_square_by_pairs(z) if z.shape[0] <= z.shape[1] else _square_by_columns(z, gram)) * MARGIN
        if not norm < math.inf:
            norms[unit] = math.inf
        else:
            norms[unit] = norm if trace < EXACT else max(norm, 2 * limit)


def _emit_products(build: Any, left: Any, right: Any, lines: Any, out: Any) -> None:
    """Emit the sums of products of a row with four others, one after the other; the sums are in lanes 0, 4, 8 and 12.

    The rows are 16-bit integers, in some lines each.
    """
    with loop(build, lines, [same(SUMS, 0)] * _TOGETHER) as (line, totals, following):
        offset = build.mul(line, I64(LINE))
        own = load(build, build.add(left, offset), SUMS, LINE)
        for i, total in enumerate(totals):
            other = build.add(build.add(right, offset), build.mul(lines, I64(LINE * i)))
            following.append(emit_dot(build, total, own, load(build, other, SUMS, LINE)))
    first, second, third, fourth = following

    def halved(a: Any, b: Any, width: int) -> Any:
        """Add the halves of runs of lanes of two vectors, which then fill one."""
        lanes = [start + lane for start in range(0, 2 * LANES, width) for lane in range(width // 2)]
        halves = (ir.Constant(SUMS, [lane + shift for lane in lanes]) for shift in (0, width // 2))
        return build.add(*(build.shuffle_vector(a, b, half) for half in halves))

    total = halved(halved(first, second, 16), halved(third, fourth, 16), 8)
    for count in (2, 1):
        order = ir.Constant(SUMS, [lane ^ count for lane in range(LANES)])
        total = build.add(total, build.shuffle_vector(total, total, order))
    store(build, total, out, LINE)


def _emit_merged(build: Any, low: Any, high: Any, step: Any, shift: Any, keep: Any, lines: Any, out: Any) -> None:
    """Emit the loop that writes halves of words of two panels to lines; ``keep`` masks those of the second one."""
    shifts, mask = (repeated(build, SUMS, build.trunc(number, I32)) for number in (shift, keep))
    with loop(build, lines) as (line, _, _):
        offset = build.mul(line, step)
        first, second = (build.lshr(load(build, build.add(panel, offset), SUMS, LINE), shifts) for panel in (low, high))
        second = build.and_(build.shl(second, same(SUMS, 16)), mask)
        both = build.or_(build.and_(first, same(SUMS, 0xFFFF)), second)
        store(build, both, build.add(out, build.mul(line, I64(LINE))), LINE)


_products, _merged = emitted(_emit_products), emitted(_emit_merged)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _unpack(panels: Any, half: int, row: int) -> None:
    """Write a row of panels to an address, two of its 16-bit integers to a word."""
    first, step = panels.ctypes.data + LINE * (half >> 1), panels.strides[0]
    shift, lines = 16 * (half & 1), panels.shape[0] >> 1
    if lines:
        _merged(first, first + step, 2 * step, shift, -1, lines, row)
    if panels.shape[0] & 1:  # the last panel is the lower half of a line alone
        last = first + 2 * step * lines
        _merged(last, last, 0, shift, 0, 1, row + LINE * lines)


def _packed_norms(
    panels: Any, squares: Any, first: int, starts: Any, ends: Any, chosen: Any, norms: Any, limit: float,
    of_trace: bool, rows: Any, sums: Any,
) -> None:  # fmt: skip
    lines, address, size = rows.shape[1] // LANES, rows.ctypes.data, rows.strides[0]
    for unit in range(starts.size):
        if not chosen[unit]:
            continue
        start, count, trace, square = starts[unit], ends[unit] - starts[unit], 0.0, 0.0
        for i in range(start, start + count):
            trace += squares[i]
        norms[unit] = trace
        if of_trace or trace <= limit:
            continue
        for i in range(count):
            _unpack(panels, first + start + i, address + i * size)
        for i in range(count):
            own = squares[start + i]
            square += own * own
            for j in range(0, i, _TOGETHER):  # rows from the own one on are multiplied as well, and not used
                _products(address + i * size, address + j * size, lines, sums.ctypes.data)
                for k in range(min(_TOGETHER, i - j)):  # at most 2^30 each, as of any two rows
                    product = np.float64(sums[k * LANES // _TOGETHER])
                    square += 2.0 * product * product
        norms[unit] = math.sqrt(square) * MARGIN


moment_norms: Any = compiled(_moment_norms, error_model="numpy", nogil=True, fastmath={"reassoc", "contract"})
packed_norms: Any = compiled(_packed_norms, error_model="numpy", nogil=True)
"""Of rows in panels of 16-bit integers (:mod:`dpdist.core.moment.kernel`) with squared norms; the first is a half."""
