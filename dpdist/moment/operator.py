"""The exact moment as mechanisms see it: its integers, a float64 matrix, or only products with a few vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist.triangle import Triangle, unpacked

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MomentMatrix:
    """An exact moment that is held in memory. Private.

    Parameters
    ----------
    packed
        Packed triangle, int64.
    size
        d, of the (d, d) matrix.
    """

    packed: Triangle
    size: int

    def triangle(self) -> Triangle:
        """Return the packed integers."""
        return self.packed

    def matrix(self) -> Matrix:
        """Return the symmetric matrix as float64, (d, d)."""
        return unpacked(self.packed, self.size).astype(np.float64)

    def times(self, vectors: Matrix) -> Matrix:
        """Return the product with (d, k) vectors, (d, k) float64."""
        return self.matrix() @ vectors
