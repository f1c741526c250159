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

from dpdist.core.llvm import I64, emitted, load, loop, same, store
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

    The rows are 16-bit integers in the lower halves of words, in some lines each.
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


_products = emitted(_emit_products)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _unpack(panels: Any, half: int, row: Any) -> None:
    """Write a row of panels to the lower halves of words."""
    for q in range(panels.shape[0]):
        for lane in range(LANES):  # as one vector
            word = panels[q, half >> 1, lane]
            row[q * LANES + lane] = (word >> 16 if half & 1 else word) & 0xFFFF


def _packed_norms(
    panels: Any, starts: Any, ends: Any, chosen: Any, norms: Any, limit: float, of_trace: bool, rows: Any, sums: Any
) -> None:  # fmt: skip
    lines, first, size = rows.shape[1] // LANES, rows.ctypes.data, rows.strides[0]
    for unit in range(starts.size):
        if not chosen[unit]:
            continue
        start, stop, trace, square = starts[unit], ends[unit], 0.0, 0.0
        for i in range(stop - start):
            _unpack(panels, start + i, rows[i])
            _products(first + i * size, first + i * size, lines, sums.ctypes.data)
            trace += sums[0]
        norms[unit] = trace
        if of_trace or trace <= limit:
            continue
        for i in range(stop - start):
            for j in range(0, i + 1, _TOGETHER):  # rows behind the unit are of others, and their sums are not used
                _products(first + i * size, first + j * size, lines, sums.ctypes.data)
                for k in range(min(_TOGETHER, i + 1 - j)):  # at most 2^30 each, as of any two rows
                    product = np.float64(sums[k * LANES // _TOGETHER])
                    square += product * product * (1.0 if j + k == i else 2.0)
        norms[unit] = math.sqrt(square) * MARGIN


moment_norms: Any = compiled(_moment_norms, error_model="numpy", nogil=True, fastmath={"reassoc", "contract"})
packed_norms: Any = compiled(_packed_norms, error_model="numpy", nogil=True)
"""Of rows in panels of 16-bit integers (:mod:`dpdist.core.moment.kernel`), whose units begin at halves of slots."""
