"""The exact moment as mechanisms see it: its integers, a float64 matrix, bands, or only products with a few vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist.errors import DataError, DpdistError
from dpdist.moment.total import BoundedBlocks, MomentTask, Partial
from dpdist.triangle import Band, Triangle, unpacked

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

    def bands(self) -> Iterator[tuple[Band, Triangle]]:
        """Yield the one band that is all of it."""
        yield Band.whole(self.size), self.packed

    def matrix(self) -> Matrix:
        """Return the symmetric matrix as float64, (d, d)."""
        return unpacked(self.packed, self.size).astype(np.float64)

    def times(self, vectors: Matrix) -> Matrix:
        """Return the product with (d, k) vectors, (d, k) float64."""
        return self.matrix() @ vectors


class _Elsewhere:
    """The part of a moment that is not in this process's memory: whatever is not overridden is refused."""

    def triangle(self) -> Triangle:
        """Refuse: the mechanism was chosen because it does not ask for it."""
        raise DpdistError("The moment of this release is not formed in one place.")

    def matrix(self) -> Matrix:
        """Refuse: the mechanism was chosen because it does not ask for it."""
        raise DpdistError("The moment of this release is not formed in one place.")

    def bands(self) -> Iterator[tuple[Band, Triangle]]:
        """Refuse: the mechanism was chosen because it does not ask for it."""
        raise DpdistError("The moment of this release is not formed, not even in bands.")

    def times(self, vectors: Matrix) -> Matrix:
        """Refuse: the mechanism was chosen because it does not ask for it."""
        raise DpdistError(f"The moment of this release is not multiplied with {vectors.shape[1]} vectors.")


@dataclass(frozen=True)
class MomentBands(_Elsewhere):
    """An exact moment that is only ever held band by band: summed on the workers, forgotten when it is noisy.

    Parameters
    ----------
    sums
        Starts a new pass over the table for every band, and yields the bands from the first row to the last.
    """

    sums: Callable[[], Iterator[Partial[np.int64]]]

    def bands(self) -> Iterator[tuple[Band, Triangle]]:
        """Yield one band after the other, and hold none when the next one comes.

        Raises
        ------
        DataError
            If a later pass over the table read other rows than the first one did.
        """
        first: int | None = None
        for partial in self.sums():
            first = partial.fingerprint if first is None else first
            if partial.fingerprint != first:
                raise DataError(
                    "The rows changed while they were summed, so the release was stopped and nothing of it kept. Leave "
                    "them as they are and run the same command again, or ingest them anew."
                )
            if partial.band is None:
                raise AssertionError("a sum of a moment says of which band it is")
            band, values = partial.band, partial.values
            del partial  # no band is held when the next one comes
            yield band, values
            del values


@dataclass(frozen=True)
class MomentProducts(_Elsewhere):
    """An exact moment that is never formed: only its products are computed, wherever the rows are.

    Parameters
    ----------
    product
        Takes (d, k) vectors and returns the moment times them.
    """

    product: Callable[[Matrix], Matrix]

    def times(self, vectors: Matrix) -> Matrix:
        """Return the product with (d, k) vectors, (d, k) float64."""
        return self.product(vectors)


@dataclass(frozen=True)
class ProductTask:
    """One partition, and the vectors its moment is multiplied with, (d, k): public by the mechanism's guarantee."""

    partition: MomentTask
    vectors: Matrix


def partition_product(task: ProductTask) -> Partial[np.float64]:
    """Return ``sum z (z^T V)`` over one partition, in float64: d k numbers where the moment has d².

    Raises
    ------
    DataError
        If a chunk is missing, short or altered.
    """
    total = np.zeros_like(task.vectors)
    blocks = BoundedBlocks(task.partition)
    for block in blocks:
        total += block.T @ (block @ task.vectors)
    return Partial(total, blocks.rows, blocks.covered)
