"""The exact moment as mechanisms see it: its integers, a float64 matrix, or only products with a few vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist.errors import DpdistError
from dpdist.moment.total import MomentTask, Partial, bounded_blocks
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


@dataclass(frozen=True)
class MomentProducts:
    """An exact moment that is never formed: only its products are computed, wherever the rows are.

    Parameters
    ----------
    product
        Takes (d, k) vectors and returns the moment times them.
    """

    product: Callable[[Matrix], Matrix]

    def triangle(self) -> Triangle:
        """Refuse: a mechanism that works from products asks for nothing else."""
        raise DpdistError("This release works from products; the moment itself is not formed.")

    def matrix(self) -> Matrix:
        """Refuse: a mechanism that works from products asks for nothing else."""
        raise DpdistError("This release works from products; the moment itself is not formed.")

    def times(self, vectors: Matrix) -> Matrix:
        """Return the product with (d, k) vectors, (d, k) float64."""
        return self.product(vectors)


@dataclass(frozen=True)
class ProductTask:
    """One partition, and the vectors its moment is multiplied with, (d, k): public by the mechanism's guarantee."""

    partition: MomentTask
    vectors: Matrix


def partition_product(task: ProductTask) -> Partial:
    """Return ``sum z (z^T V)`` over one partition, in float64: d k numbers where the moment has d².

    Raises
    ------
    DataError
        If a chunk is missing, short or altered.
    """
    total = np.zeros_like(task.vectors)
    rows = 0
    for block in bounded_blocks(task.partition):
        total += block.T @ (block @ task.vectors)
        rows += block.shape[0]
    chunks = task.partition.chunks
    return Partial(total, rows, ((chunks.start, chunks.stop),))
