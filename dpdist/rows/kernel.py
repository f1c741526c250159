"""The bounding of rows in one compiled pass.

It gives the bits of the NumPy path of :mod:`dpdist.rows.bounding` or leaves the row to it. Per entry it does the same
IEEE operations in the same order: LLVM neither contracts nor reorders them unless told to, and it is told so only for
the sum of squares. That sum is of integers, so below 2^53 it is exact in every order, and at or above 2^53, infinite
or NaN in every order otherwise; such rows are brought into range first. Rows that a rounded factor left above the bound
are not finished here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from dpdist._util.machine_code import compiled

_EXACT = 2.0**53


@njit(fastmath={"reassoc"})  # type: ignore[untyped-decorator]
def _plus_square(total: float, value: float) -> float:
    return total + value * value


@njit  # type: ignore[untyped-decorator]
def _into_range(row: Any, centre: Any, scale: Any, radius: float, out: Any) -> float:
    """Write a row beyond the fast range into out, its largest entry in [radius, 2 radius); zeros if it is not finite.

    Return its squared norm, an integer sum below 2^63, rounded to float64.
    """
    largest, other = 0.0, 0.0
    for j in range(row.size):
        value = np.float64(row[j])
        if centre.size:
            value -= centre[j]
        if scale.size:
            value /= scale[j]
        out[j] = value
        largest = max(largest, abs(value))
        other += value * 0.0  # NaN as soon as one entry is infinite or NaN
    if other != 0.0:
        out[:] = 0.0
        return 0.0
    # a power of two: exact, but for entries that become subnormal, which truncation makes zero
    factor = math.ldexp(2.0 * radius, -math.frexp(largest)[1])
    squares = np.int64(0)
    for j in range(row.size):
        z = np.trunc(out[j] * factor)
        out[j] = z
        squares += np.int64(z) * np.int64(z)
    return float(squares)


def _bound_rows(  # noqa: C901, PLR0912 - one function, because LLVM joins and vectorises these loops only so
    rows: Any, centre: Any, scale: Any, steps: float, radius: float, out: Any, left: Any
) -> int:
    limit = radius * radius
    count = 0
    for i in range(rows.shape[0]):
        squares = 0.0
        if centre.size or scale.size:
            for j in range(rows.shape[1]):
                out[i, j] = rows[i, j]
            if centre.size:
                for j in range(rows.shape[1]):
                    out[i, j] -= centre[j]
            if scale.size:
                for j in range(rows.shape[1]):
                    out[i, j] /= scale[j]
            for j in range(rows.shape[1]):
                z = np.trunc(out[i, j] * steps)
                out[i, j] = z
                squares = _plus_square(squares, z)
        else:
            for j in range(rows.shape[1]):
                z = np.trunc(np.float64(rows[i, j]) * steps)
                out[i, j] = z
                squares = _plus_square(squares, z)
        if not squares < _EXACT:
            squares = _into_range(rows[i], centre, scale, radius, out[i])
        if squares > limit:
            factor = radius / np.sqrt(squares)
            squares = 0.0
            for j in range(rows.shape[1]):
                z = np.trunc(out[i, j] * factor)
                out[i, j] = z
                squares = _plus_square(squares, z)
        if not squares <= limit:
            left[count] = i
            count += 1
    return count


bound_rows = compiled(_bound_rows, error_model="numpy")
"""``bound_rows(rows, centre, scale, steps, radius, out, left)`` bounds rows into out and counts those it left undone.

``left`` (int64, as long as rows) then starts with their indices. Empty arrays stand for no centre and no scale. It is
compiled when it first meets a dtype, and kept on disk for later processes.
"""
