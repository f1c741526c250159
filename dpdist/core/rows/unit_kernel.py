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

from dpdist.core.llvm import I32, I64, emitted, load, loop, same, store
from dpdist.core.machine_code import compiled
from dpdist.core.rows.bounding import EXACT, MARGIN
from dpdist.core.rows.dither_kernel import LANES, LINE, SUMS, emit_dot


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


def _emit_product(build: Any, left: Any, right: Any, lines: Any, out: Any) -> None:
    """Emit the sum of products of two rows of 16-bit integers, each in the lower half of a word of some lines."""
    with loop(build, lines, [same(SUMS, 0)]) as (line, (total,), following):
        words = [load(build, build.add(row, build.mul(line, I64(LINE))), SUMS, LINE) for row in (left, right)]
        following.append(emit_dot(build, total, *words))
    (total,) = following
    for count in (8, 4, 2, 1):
        order = ir.Constant(SUMS, [lane ^ count for lane in range(LANES)])
        total = build.add(total, build.shuffle_vector(total, total, order))
    store(build, build.extract_element(total, I32(0)), out, 4)


_product = emitted(_emit_product)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _unpack(panels: Any, half: int, row: Any) -> None:
    """Write a row of panels to the lower halves of words."""
    for q in range(panels.shape[0]):
        for lane in range(LANES):  # as one vector
            word = panels[q, half >> 1, lane]
            row[q * LANES + lane] = (word >> 16 if half & 1 else word) & 0xFFFF


def _packed_norms(
    panels: Any, starts: Any, ends: Any, chosen: Any, norms: Any, limit: float, of_trace: bool, rows: Any, product: Any
) -> None:  # fmt: skip
    lines = rows.shape[1] // LANES
    for unit in range(starts.size):
        if not chosen[unit]:
            continue
        start, stop, trace, square = starts[unit], ends[unit], 0.0, 0.0
        for i in range(stop - start):
            _unpack(panels, start + i, rows[i])
            row = rows.ctypes.data + i * rows.strides[0]
            _product(row, row, lines, product.ctypes.data)  # at most 2^30, as that of any two rows
            trace += product[0]
            square += np.float64(product[0]) * np.float64(product[0])
        norms[unit] = trace
        if of_trace or trace <= limit:
            continue
        for i in range(1, stop - start):
            for j in range(i):
                row = rows.ctypes.data
                _product(row + i * rows.strides[0], row + j * rows.strides[0], lines, product.ctypes.data)
                square += 2.0 * np.float64(product[0]) * np.float64(product[0])
        norms[unit] = math.sqrt(square) * MARGIN


moment_norms: Any = compiled(_moment_norms, error_model="numpy", nogil=True, fastmath={"reassoc", "contract"})
packed_norms: Any = compiled(_packed_norms, error_model="numpy", nogil=True)
"""Of rows in panels of 16-bit integers (:mod:`dpdist.core.moment.kernel`), whose units begin at halves of slots."""
