"""Tight sensitivities of the second moment, per norm and neighbouring relation.

Every row z is an integer vector with ``sum(z**2) <= bound``, verified. Replacing a row changes the moment by
``v v^T - w w^T``, adding or removing one by ``v v^T``. With ``|v|², |w|² <= S``:

* Frobenius: ``|v v^T - w w^T|_F² = |v|⁴ + |w|⁴ - 2 (v.w)² <= 2 S²``, attained by orthogonal rows; ``S²`` for one row.
* nuclear: ``|v v^T - w w^T|_* = sqrt((|v|² + |w|²)² - 4 (v.w)²) <= 2 S``, attained likewise; ``S`` for one row.

Rows with a constant last entry c (private centring) obey the same bounds with ``S = 4^b + c²``; for c up to
the clip norm, orthogonal augmented rows exist (``x.y = -c²``), so the bounds stay tight.
"""

from __future__ import annotations

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

    Raises
    ------
    UsageError
        If size or bound is not positive.
    """

    size: int
    bound: int
    neighbours: Neighbours

    def __post_init__(self) -> None:
        if self.size < 1 or self.bound < 1:
            raise UsageError("A second moment needs at least one column and a positive norm bound.")

    @property
    def entries(self) -> int:
        """Number of entries of the upper triangle, the diagonal included."""
        return self.size * (self.size + 1) // 2

    @property
    def frobenius_squared(self) -> int:
        """Square of the Frobenius sensitivity, exact."""
        return self.bound**2 * (2 if self.neighbours is Neighbours.REPLACE_ONE else 1)

    @property
    def nuclear(self) -> int:
        """Nuclear-norm sensitivity, exact."""
        return self.bound * (2 if self.neighbours is Neighbours.REPLACE_ONE else 1)
