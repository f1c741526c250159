"""Tight sensitivities of the second moment, per norm and neighbouring relation.

Every row z is an integer vector with ``sum(z**2) <= bound``, verified. Replacing a row changes the moment by
``v v^T - w w^T``, adding or removing one by ``v v^T``. With ``|v|², |w|² <= S``:

* Frobenius: ``|v v^T - w w^T|_F² = |v|⁴ + |w|⁴ - 2 (v.w)² <= 2 S²``, attained by orthogonal rows; ``S²`` for one row.
* nuclear: ``|v v^T - w w^T|_* = sqrt((|v|² + |w|²)² - 4 (v.w)²) <= 2 S``, attained likewise; ``S`` for one row.
* l1 of the triangle, d columns: ``sum_{i<=j} |D_ij| <= sqrt(d + d(d-1)/4) |D|_F <= sqrt(d(d+3)/2) S`` by
  Cauchy-Schwarz, a few per cent above the truth (:mod:`dpdist.mechanisms.laplace`); for one row
  ``(|v|_1² + |v|_2²) / 2 <= (d + 1) S / 2``, attained by equal entries.

**Several rows of one unit.** Where somebody may own up to M rows (:mod:`dpdist.rows.units`), all of these change at
once: the moment changes by ``P - Q`` with P and Q sums of at most M matrices ``v v^T``, and Q = 0 under add-remove.
Both are positive semidefinite with trace at most M S, and their Frobenius norms are at most their traces. So

* Frobenius: ``|P - Q|_F² = |P|_F² + |Q|_F² - 2 tr PQ <= 2 (M S)²``, as ``tr PQ >= 0``; ``(M S)²`` for P alone.
* nuclear: ``|P - Q|_* <= tr P + tr Q <= 2 M S``; ``M S`` for P alone.
* l1 of the triangle: the Cauchy-Schwarz bound from the Frobenius norm; for P alone M times the bound of one row.

Each is M times that of one row, and attained: M equal rows of full norm, against M equal ones orthogonal to them.

Rows with a constant last entry c (private centring) obey the same bounds with ``S = 4^b + c²``; for c up to
the clip norm, orthogonal augmented rows exist (``x.y = -c²``), so the bounds stay tight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpdist.errors import UsageError
from dpdist.privacy.guarantee import Neighbours


@dataclass(frozen=True)
class LatticeQuery:
    """The integer second moment a mechanism protects.

    Parameters
    ----------
    size
        Number of columns of a row, the constant one included: the matrix is ``size x size``.
    bound
        Largest squared Euclidean norm of an integer row, verified row by row.
    neighbours
        The neighbouring relation.
    rows
        M: how many rows neighbours may differ in, all of one privacy unit.

    Raises
    ------
    UsageError
        If size, bound or rows is not positive.
    """

    size: int
    bound: int
    neighbours: Neighbours
    rows: int = 1

    def __post_init__(self) -> None:
        if self.size < 1 or self.bound < 1 or self.rows < 1:
            raise UsageError("A second moment needs at least one column and a positive norm bound.")

    @property
    def entries(self) -> int:
        """Number of entries of the upper triangle, the diagonal included."""
        return self.size * (self.size + 1) // 2

    @property
    def frobenius_squared(self) -> int:
        """Square of the Frobenius sensitivity, exact."""
        return (self.rows * self.bound) ** 2 * (2 if self.neighbours is Neighbours.REPLACE_ONE else 1)

    @property
    def nuclear(self) -> int:
        """Nuclear-norm sensitivity, exact."""
        return self.rows * self.bound * (2 if self.neighbours is Neighbours.REPLACE_ONE else 1)

    @property
    def triangle_l1(self) -> int:
        """Bound of the l1 norm of a change of the triangle, diagonal included: an integer, rounded down (see above)."""
        if self.neighbours is Neighbours.REPLACE_ONE:
            return math.isqrt(self.size * (self.size + 3) // 2 * (self.rows * self.bound) ** 2)
        return (self.size + 1) * self.rows * self.bound // 2
