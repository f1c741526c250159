"""Bounds rows in one compiled pass.

It gives the bits of the NumPy path of :mod:`dpdist.rows.bounding`, or leaves the row to it. Each entry undergoes the
same IEEE operations in the same order: LLVM does not contract or reorder them without permission, which it has only for
the sum of squares. As a sum of integers, it is exact below 2^53 in every order, and otherwise at least 2^53, infinite
or NaN in every order; such rows are scaled into range first. Rows that remain above the bound because a factor was
rounded up are left to NumPy.
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
    """Write a large row to out with its largest entry in [radius, 2 radius), or zeros; return its squared norm."""
    largest, other = 0.0, 0.0
    for j in range(row.size):
        value = np.float64(row[j])
        if centre.size:
            value -= centre[j]
        if scale.size:
            value /= scale[j]
        out[j] = value
        largest = max(largest, abs(value))
        other += value * 0.0  # NaN if an entry is infinite or NaN
    if other != 0.0:
        out[:] = 0.0
        return 0.0
    # a power of two: exact, except for subnormal results, which are truncated to zero
    factor = math.ldexp(2.0 * radius, -math.frexp(largest)[1])
    squares = np.int64(0)
    for j in range(row.size):
        z = np.trunc(out[j] * factor)
        out[j] = z
        squares += np.int64(z) * np.int64(z)
    return float(squares)


def _bound_rows(  # noqa: C901, PLR0912 - LLVM fuses and vectorises these loops only in one function
    rows: Any, centre: Any, scale: Any, steps: float, radius: float, out: Any, unfinished: Any
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
            unfinished[count] = i
            count += 1
    return count


bound_rows = compiled(_bound_rows, error_model="numpy")
"""``bound_rows(rows, centre, scale, steps, radius, out, unfinished)`` bounds rows into out.

It returns the number of unfinished rows, and writes their indices to ``unfinished`` (int64, as long as rows). Empty
arrays mean no centre and no scale. It is compiled for each dtype at its first use, and cached on disk.
"""
