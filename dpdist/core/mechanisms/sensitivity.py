"""Tight sensitivities of the second moment, per norm and neighbouring relation.

Every row z is an integer vector with ``sum(z**2) <= bound``, verified. Replacing a row changes the moment by
``v v^T - w w^T``, adding or removing one by ``v v^T``. With ``|v|², |w|² <= S``:

* Frobenius: ``|v v^T - w w^T|_F² = |v|⁴ + |w|⁴ - 2 (v.w)² <= 2 S²``, attained by orthogonal rows; ``S²`` for one row.
* nuclear: ``|v v^T - w w^T|_* = sqrt((|v|² + |w|²)² - 4 (v.w)²) <= 2 S``, also attained; ``S`` for one row.
* l1 of the triangle, d columns: ``sum_{i<=j} |D_ij| <= sqrt((d+2)² + 4 floor(d/2) ceil(d/2)) S / 2``, attained. The
  square of the factor of S is ``d²/2 + d + 1`` for even d and ``d²/2 + d + 3/4`` for odd d. For one row
  ``(|v|_1² + |v|_2²) / 2 <= (d + 1) S / 2``, attained by equal entries.
* One column, d = 1: the change is the number ``v² - w²`` between -S and S. So all three are S under both relations.

**Proof for the triangle, d >= 2.** Write ``2 T(D) = sum_ij |D_ij| + sum_i |D_ii|``, twice the norm.
``D = v v^T - w w^T`` has at most one positive and one negative eigenvalue, and neither exceeds S in magnitude (Weyl).
So ``D = m a a^T - n b b^T`` with orthonormal a, b and m, n in [0, S]. T is a norm, hence convex in (m, n), hence
largest at a corner. At (S, 0) and (0, S) it is at most ``(d + 1) S / 2``, less than the claim. At (S, S),
``tr D = 0`` and ``|D|_F² = 2 S²``. Let the p columns with ``D_ii >= 0`` be P, the other q be Q, and x, y, z the
Frobenius norms of the blocks PP, QQ and PQ: ``x² + y² + 2 z² = 2 S²``. The block PP is ``S (a_P a_P^T - b_P b_P^T)``,
so it has at most one positive eigenvalue, and its trace t is at most that eigenvalue, so at most x. The block QQ has
the trace -t, so similarly ``t <= y``. By Cauchy-Schwarz in every block, for each r between 0 and 1, ::

    2 T(D) <= p x + q y + 2 sqrt(pq) z + 2 t <= (p + 2r) x + (q + 2 - 2r) y + 2 sqrt(pq) z
           <= S sqrt(2) sqrt((p + 2r)² + (q + 2 - 2r)² + 2 pq).

If p and q differ by at most 2, take ``r = (q - p + 2) / 4``: both brackets are ``(d + 2)/2`` and the bound is
``S sqrt((d+2)² + 4 pq)``, largest where p and q are halves of d. If ``p > q + 2``, take r = 0: the bound is
``S sqrt(2 (d² + 4q + 4))``, and ``4q < 2d - 4`` makes it less than ``S sqrt(2d² + 4d)``, less than the claim; if
``q > p + 2``, r = 1 gives the same. ∎ *Attained:* let u and u' be the unit vectors that are constant on one half of the
columns and zero on the other, and ``(cos h, sin h)`` proportional to ``(d + 2, 2 sqrt(pq))``. The matrix
``S (cos h (u u^T - u' u'^T) + sin h (u u'^T + u' u^T))`` has the eigenvalues S and -S, so it is such a D, and all
inequalities are equalities.

**Integers.** The bounds hold for integer rows in particular. Rows ``2^b e_1`` and ``2^b e_2`` attain the Frobenius and
the nuclear bound on the lattice. The l1 norm of an integer matrix is an integer, so its bound is rounded down.

**Several rows of one privacy unit.** If a unit may own up to M rows (:mod:`dpdist.core.rows.units`), all of them change
at once: the moment changes by ``P - Q`` with P and Q sums of at most M matrices ``v v^T``, and Q = 0 under add-remove.
Both are positive semidefinite with trace at most M S, and their Frobenius norms are at most their traces. So

* Frobenius: ``|P - Q|_F² = |P|_F² + |Q|_F² - 2 tr PQ <= 2 (M S)²``, as ``tr PQ >= 0``; ``(M S)²`` for P alone.
* nuclear: ``|P - Q|_* <= tr P + tr Q <= 2 M S``; ``M S`` for P alone.
* l1 of the triangle: M times the bound of one row, by the triangle inequality over pairs of rows (zero rows complete
  the shorter side).
* One column: P and Q are numbers in [0, M S], and all three are M S.

Each is M times that of one row, and attained by M equal rows against M equal others.

**All rows of a privacy unit.** If the moment of all rows of a unit is bounded, the sensitivities are those of one row:
:mod:`dpdist.core.rows.unit_moment` has the proof. The Frobenius bound suffices for the Frobenius sensitivity only; a
bound on the trace for all three.

Rows with a constant last entry c (private centring) satisfy the same bounds with ``S = 4^b + c²``. For c up to the clip
norm and at least two other columns, orthogonal augmented rows exist (``x.y = -c²``), so the Frobenius and the nuclear
bound are tight. The bound for the triangle is not, as the last entry of the diagonal never changes.

**Declared sensitivities.** For other symmetric matrices than second moments (:mod:`dpdist.literature.matrix`) the user
declares how far two neighbouring matrices M and M' can be apart, in at least one norm. A bound in one norm implies one
in each other norm, since a norm is largest at an extreme point of the unit ball of another:

* Frobenius at most nuclear (at ``v v^T``), and at most sqrt(2) times l1 of the triangle (at ``E_ij + E_ji``);
* nuclear at most sqrt(d) times Frobenius (at d equal eigenvalues), and at most twice l1 of the triangle;
* l1 of the triangle at most (d+1)/2 times nuclear (at v of equal entries), and at most sqrt(d(d+3))/2 times Frobenius
  (Cauchy-Schwarz, as the square counts each entry off the diagonal twice).

The matrix is rounded to multiples of a public unit u, each entry to the nearest. So ``D = rnd(M/u) - rnd(M'/u)``
differs from ``(M - M')/u`` by a symmetric matrix with entries of at most 1, whose norms are at most d (Frobenius),
``d sqrt(d)`` (nuclear) and ``d(d+1)/2`` (l1 of the triangle). These are added to the declared ones over u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dpdist.core.errors import UsageError
from dpdist.core.privacy.guarantee import Neighbours

UnitNorm = Literal["", "frobenius", "trace"]
"""Norm of the moment of a privacy unit that is bounded, if all rows of the unit are kept; empty: rows are."""


@dataclass(frozen=True)
class LatticeQuery:
    """The shape of the integer second moment: columns, norm bound, neighbours and rows per privacy unit."""

    size: int
    bound: int
    neighbours: Neighbours
    rows: int = 1
    together: bool = False  # whether all rows of a privacy unit are bounded together, by one norm of their moment

    def __post_init__(self) -> None:
        if self.size < 1 or self.bound < 1 or self.rows < 1:
            raise UsageError("A second moment needs at least one column and a positive norm bound.")

    @property
    def entries(self) -> int:
        return self.size * (self.size + 1) // 2

    @property
    def _signs(self) -> int:
        """The number of eigenvalues of a change that can attain the bound: one of either sign, or one."""
        return 2 if self.neighbours is Neighbours.REPLACE_ONE and self.size > 1 else 1

    @property
    def frobenius_squared(self) -> int:
        """Square of the Frobenius sensitivity, exact."""
        return (self.rows * self.bound) ** 2 * self._signs

    @property
    def nuclear(self) -> int:
        """Nuclear-norm sensitivity, exact."""
        return self.rows * self.bound * self._signs

    @property
    def triangle_l1(self) -> int:
        """Sensitivity in the l1 norm of the triangle, including the diagonal, rounded down to an integer."""
        if self._signs == 2:
            half = self.size // 2
            square = (self.size + 2) ** 2 + 4 * half * (self.size - half)
            return self.rows * math.isqrt(square * self.bound**2 // 4)
        return self.rows * ((self.size + 1) * self.bound // 2)


NORMS = ("frobenius", "nuclear", "l1")


def ceil_sqrt(square: Fraction) -> int:
    """Return the least integer whose square is at least ``square``."""
    return math.isqrt(math.ceil(square) - 1) + 1 if square > 0 else 0


def implied_squares(declared: dict[str, Fraction], size: int) -> dict[str, Fraction]:
    """Return the square of the sensitivity in each norm, from the declared ones; proofs in the module docstring."""
    pair = 2 if size > 1 else 1  # of E_ij + E_ji, which one column does not have
    factors: dict[str, dict[str, Fraction | int]] = {
        "frobenius": {"frobenius": 1, "nuclear": 1, "l1": pair},
        "nuclear": {"frobenius": size, "nuclear": 1, "l1": pair**2},
        "l1": {"frobenius": Fraction(size * (size + 3), 4), "nuclear": Fraction((size + 1) ** 2, 4), "l1": 1},
    }
    return {norm: min(Fraction(factors[norm][name]) * value**2 for name, value in declared.items()) for norm in NORMS}


@dataclass(frozen=True)
class DeclaredQuery(LatticeQuery):
    """A symmetric integer matrix whose sensitivities follow from declared ones; ``bound`` has no meaning."""

    frobenius: int = 0
    nuclear_norm: int = 0
    l1: int = 0

    @classmethod
    def of(cls, declared: dict[str, Fraction], size: int, unit: Fraction, neighbours: Neighbours) -> DeclaredQuery:
        """Return the query for a matrix in multiples of ``unit``, with the rounding of both neighbours."""
        in_units = {norm: ceil_sqrt(square / unit**2) for norm, square in implied_squares(declared, size).items()}
        return cls(
            size, 1, neighbours,
            frobenius=in_units["frobenius"] + size,
            nuclear_norm=in_units["nuclear"] + ceil_sqrt(Fraction(size) ** 3),
            l1=in_units["l1"] + size * (size + 1) // 2,
        )  # fmt: skip

    @property
    def frobenius_squared(self) -> int:
        return self.frobenius**2

    @property
    def nuclear(self) -> int:
        """Bound on ``tr P + tr Q``, semidefinite integer matrices with D = P - Q: see `wishart`."""
        return self.nuclear_norm + self.size * (self.size + 2)

    @property
    def triangle_l1(self) -> int:
        return self.l1
