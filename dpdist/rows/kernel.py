"""The bounding of ordinary rows in one compiled pass, for narrow tables; only with the extra ``fast`` (numba).

It gives the bits of the NumPy path of :mod:`dpdist.rows.bounding` or leaves the row to it. Per entry it does the same
IEEE operations in the same order: LLVM neither contracts nor reorders them unless told to, and it is told so only for
the sum of squares. That sum is of integers, so below 2^53 it is exact in every order, and at or above 2^53, infinite
or NaN in every order otherwise; such rows, and those a rounded factor left above the bound, are not finished here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_EXACT = 2.0**53


@njit(fastmath={"reassoc"})  # type: ignore[untyped-decorator]
def _plus_square(total: float, value: float) -> float:
    return total + value * value


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
        if limit < squares < _EXACT:
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


def _compiled() -> Any:
    try:
        return njit(error_model="numpy", cache=True)(_bound_rows)
    except RuntimeError:  # numba finds no folder that it may keep the machine code in
        return njit(error_model="numpy")(_bound_rows)


bound_rows = _compiled()
"""``bound_rows(rows, centre, scale, steps, radius, out, left)`` bounds rows into out and counts those it left undone.

``left`` (int64, as long as rows) then starts with their indices. Empty arrays stand for no centre and no scale. It is
compiled when it first meets a dtype, and kept on disk for later processes.
"""
