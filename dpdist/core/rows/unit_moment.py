"""Bounds all rows of a privacy unit together: their second moment has at most the norm B.

**Map.** The rows of a unit u are clipped one by one to the norm C, as any rows, and rounded to integer rows z, each
with its constant if there is one. Let ``G_u = sum z z^T`` be the sum over all rows of u, however many. If its norm is
larger than ``B = 4^b``, which is C² in lattice units, all clipped rows of u, and their constants, are multiplied by one
factor f < 1 and rounded again, with the same dithers. If the norm is still too large, f is made smaller; at last the
integers are zero. Which norm depends on the mechanism: the Frobenius norm for `gaussian`, the trace for the others.

**Theorem.** Let two tables differ in the rows of one unit: they are exchanged for others (replace-one), or there is one
unit more (add-remove). Given the dithers, the sums of all ``z z^T`` differ by ``G_u - G_v``, or ``G_u``, where both are
positive semidefinite with norm at most B. For the Frobenius norm

    |G_u - G_v|² = |G_u|² + |G_v|² - 2 tr(G_u G_v) <= 2 B²,    |G_u| <= B,

because the trace of the product of two positive semidefinite matrices is not negative. Both are attained: by one row of
norm C each, orthogonal to the other, and by one row. If ``tr G_u <= B``, then ``G_u = sum_i p_i B a_i a_i^T`` with unit
vectors ``a_i`` and ``sum p_i <= 1`` (its eigenvectors, and a zero row for the rest), and G_v likewise with ``q_j`` and
``b_j``. So ``G_u - G_v = sum_ij p_i q_j (B a_i a_i^T - B b_j b_j^T)`` is a mean of changes by single rows of norm C,
and any norm of it is at most the sensitivity for one row: nuclear 2 B, Frobenius sqrt(2) B, and the l1 norm of the
triangle. (With ``|G_u| <= B`` instead, a nuclear norm would reach ``sqrt(d) B``.) So noise is that for tables in which
each unit has one row of norm C. ∎

The rows of a unit are mapped to integers without the other units, except for the dithers, whose distribution is the
same at every position (:mod:`dpdist.core.rows.dither`). Nothing else of the map depends on the table: not on the number
of units, the number of their rows or the partition of the work, as no unit is divided.

**Verification.** The norm is that of the integers that are summed, so neither the factor nor any float weakens the
guarantee. ``|z| <= 2^b`` is verified for each row. If the trace, the sum of all ``|z|²``, is at most B, so is the norm;
sums below 2^53 are exact in float64. Otherwise the Frobenius norm is computed from the products of pairs of rows, or
from G_u, whichever are fewer. Products of two rows are at most ``4^b <= 2^48``, and sums of products at most the trace:
all are exact if the trace is below 2^53, and a unit with a larger one is shortened. The at most 2^28 squares that are
added have a relative error of at most 2^-24, and 2^-20 is added to the result. So no unit with a larger norm passes,
and nothing overflows, whatever the rows: 2^25 equal rows, entries that cancel, or values of all sizes.

**What is released** is the moment of all rows with weights: ``w_u = f²`` for each row of u. Units within the bound have
the weight 1, busy ones less. The constants have the same factor, so that with a mean the sum of the weights is released
too: means, covariances and tables are those of weighted rows, and n is the sum of the weights. Numbers beside
categories leave room for these and for the constant, so the weight of a unit of one row is 1 but for some that rounding
makes too long.

*Bias.* Integers are unbiased given f: ``E z z^T`` is that of the shortened rows plus 1/4 on the diagonal, also for the
constant, which ``floor(f c + v3)`` rounds, with at most 1/4 as well (v3 is the third dither of the row; for f = 1 the
constant is exact). f depends on the first rounding, by a relative deviation of at most 2^-b, and the bias of this is
about 4^-b. f is cut to 20 bits, so that no processor's order of summation shows.

*Very many rows.* m rows of zeros round to a moment of norm ``m sqrt(d) / 4`` steps², so a unit of more than about
``4^(b+1) / sqrt(d)`` rows, 420,000 at 10 grid bits and 100 columns, becomes zero, whatever its rows are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpdist.core.rows.bounding import EXACT, MARGIN, RowBound, compiled_kernel
from dpdist.core.rows.dither import ALONE, Dithers, Units

Block = npt.NDArray[np.float64]
Starts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_ATTEMPTS = 8
_DIGITS = 20
"""Bits of a factor."""


class Measure(Protocol):
    """Writes upper bounds on the norms of the moments of chosen units, exact up to the limit in the trace."""

    def __call__(self, chosen: Flags, norms: Block) -> None:
        """Write the norms of the chosen units."""
        ...


def ends_of(starts: Starts, rows: int) -> Starts:
    """Return where units end."""
    return np.concatenate((starts[1:], np.array([rows])))


def settle(starts: Starts, rows: int, bound: RowBound, place: Callable[[Units], object], measure: Measure) -> None:
    """Place the integers of units, (r,) rows that begin at ``starts``, with factors by which all keep their bound."""
    limit, room = float(bound.norm_bound), 1 - 2.0 ** (2 - bound.grid_bits)  # a moment deviates by 2^-b
    factors, norms, over = np.ones(starts.size), np.empty(starts.size), np.ones(starts.size, np.bool_)
    place(ALONE._replace(constant=bound.constant))
    for attempt in range(_ATTEMPTS + 1):
        measure(over, norms)
        over = norms > limit
        if not over.any():
            return
        shares = np.minimum(room * limit / norms[over], 1.0 if attempt == 0 else 0.5)
        factors[over] = 0.0 if attempt == _ATTEMPTS - 1 else _cut(factors[over] * np.sqrt(shares))
        lengths = ends_of(starts, rows) - starts
        place(Units(np.repeat(factors, lengths), np.repeat(~over, lengths), bound.constant))
    raise AssertionError("the moment of a privacy unit exceeds the norm bound")


def _cut(factors: Block) -> Block:
    """Return factors rounded down to some bits."""
    digits, exponents = np.frexp(factors)
    cut: Block = np.ldexp(np.floor(np.ldexp(digits, _DIGITS)), exponents - _DIGITS)
    return cut


def bounded_units(
    rows: npt.NDArray[np.generic], starts: Starts, bound: RowBound, dithers: Dithers, *, compiled: bool = True
) -> Block:
    """Return the integers of whole units, (r, width)."""
    out = np.empty((rows.shape[0], bound.width))

    def measure(chosen: Flags, norms: Block) -> None:
        moment_norms(out, starts, chosen, norms, float(bound.norm_bound), trace=bound.unit_norm == "trace")

    settle(
        starts, rows.shape[0], bound,
        lambda units: bound.round(rows, out, dithers, units, compiled=compiled), measure,
    )  # fmt: skip
    return out


def moment_norms(
    values: Block, starts: Starts, chosen: Flags, norms: Block, limit: float = -1.0, *, trace: bool
) -> None:
    """Write the norms of the moments of chosen units: of the rows (r, width) from one start to the next.

    Up to the limit it is the trace, and otherwise the trace or an upper bound on the Frobenius norm.
    """
    ends = ends_of(starts, len(values))
    if values.size >= _FEW and compiled_kernel() is not None:
        from dpdist.core.rows import unit_kernel  # noqa: PLC0415 - numba takes time to import

        scratch = np.empty((values.shape[1], values.shape[1]))
        unit_kernel.moment_norms(values, starts, ends, chosen, norms, limit, trace, scratch)
        return
    with np.errstate(all="ignore"):
        for unit in np.flatnonzero(chosen):
            z = values[starts[unit] : ends[unit]]
            norms[unit] = np.einsum("ij,ij->", z, z)
            if not (trace or norms[unit] <= limit):
                products = z @ z.T if len(z) < z.shape[1] else z.T @ z
                norms[unit] = _checked(norms[unit], np.sqrt(np.einsum("ij,ij->", products, products)), limit)


_FEW = 1 << 14
"""Values from which loading machine code, some milliseconds once it is cached, may pay off."""


def _checked(trace: float, norm: float, limit: float) -> float:
    """Return an upper bound on a norm: more than the limit if the sums may be inexact."""
    if not norm < np.inf:
        return np.inf
    return norm * MARGIN if trace < EXACT else max(norm * MARGIN, 2 * limit)
