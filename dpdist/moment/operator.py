"""The exact moment as mechanisms see it: its integers, a float64 matrix, bands, or only products with a few vectors.

**Products are exact sums.** Rows z are integer vectors, and so is what they are multiplied with, once its g fractional
bits are shifted out (:func:`dpdist.mechanisms.power.on_grid`): ``V``, columns of norm at most 2^g. So ``Y = z^T V`` and
the sum of all ``z Y`` are integers, and how the rows are cut into blocks, partitions and workers changes no bit of it.
Float64 computes them exactly, whatever BLAS does, because all magnitudes that are added stay below 2^53:

* ``Y``: by Cauchy and Schwarz ``sum |z_i V_ij| <= |z| |V_j| <= sqrt(2) 2^b 2^g < 2^(b+g+1)``, with b grid bits of the
  rows and an appended constant of at most 2^b; b + g + 1 is at most 49.
* ``Y`` is cut into digits of h bits, ``Y = sum_p 2^(p h) Y_p``, the last one with the sign and what is left. The
  entries of ``z Y_p`` of the r rows of a block add up to at most ``r 2^b 2^h``, and h is so small that this is at most
  2^53. Digit by digit they are added to 64-bit integers, and h is so small that those of all n rows fit: ``n 2^b 2^h <
  2^63``.

h follows from n, b, d and g (:class:`Digits`) and from no partition, so the sums of each digit are the same integers
however the rows are cut, and so is the float64 product that is made of them in one fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.errors import DataError, DpdistError
from dpdist.mechanisms.power import GRID_BITS
from dpdist.moment.total import BoundedBlocks, MomentTask, Partial, block_rows
from dpdist.rows.bounding import RowBound
from dpdist.rows.table import Sizes
from dpdist.triangle import Band, Triangle, unpacked

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MomentMatrix:
    """An exact moment that is held in memory. Private."""

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
    """A moment that is not in this process's memory: the mechanism was chosen because it does not ask for it."""

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise DpdistError("The moment of this release is not in one place, and its mechanism asked for it.")

    triangle = matrix = bands = times = _refused


@dataclass(frozen=True)
class MomentBands(_Elsewhere):
    """An exact moment that is only ever held band by band: summed on the workers, forgotten when it is noisy."""

    sums: Callable[[], Iterator[Partial[np.int64]]]

    def bands(self) -> Iterator[tuple[Band, Triangle]]:
        """Yield one band after the other, and hold none when the next one comes."""
        first: tuple[str, int] | None = None
        for partial in self.sums():
            key, fingerprint = first = first or (partial.key, partial.fingerprint)
            if partial.key != key:
                raise DpdistError("The bands of one moment were rounded by different keys; the release was stopped.")
            if partial.fingerprint != fingerprint:
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
    """An exact moment that is never formed: only its products are computed, wherever the rows are."""

    product: Callable[[Matrix], Matrix]

    def times(self, vectors: Matrix) -> Matrix:
        """Return the product with (d, k) vectors, (d, k) float64."""
        return self.product(vectors)


@dataclass(frozen=True)
class Digits:
    """How products of rows and vectors are cut into digits, so that they are added exactly: from public numbers."""

    bits: int
    count: int

    @classmethod
    def of(cls, table: Sizes, bound: RowBound) -> Digits:
        """Return those of a table that can be summed under a bound."""
        entry = bound.grid_bits
        in_block = 53 - entry - (block_rows(table.rows, bound) - 1).bit_length()
        in_total = 62 - entry - table.rows.bit_length()
        bits = min(in_block, in_total)
        if bits < 1:
            raise AssertionError("rows that can be summed leave room for their products")
        return cls(bits, -(-(entry + GRID_BITS + 1) // bits))

    def cut(self, product: Matrix) -> Iterator[Matrix]:
        """Yield the digits of integers, the lowest first."""
        for _ in range(self.count - 1):
            rest = np.floor(np.ldexp(product, -self.bits))
            yield product - np.ldexp(rest, self.bits)
            product = rest
        yield product

    def joined(self, sums: npt.NDArray[np.int64]) -> Matrix:
        """Return what the sums of the digits, (count, d, k), are the digits of, without the fractional bits."""
        total = np.zeros(sums.shape[1:])
        for place in reversed(range(self.count)):
            total += np.ldexp(sums[place].astype(np.float64), place * self.bits - GRID_BITS)
        return total


@dataclass(frozen=True)
class ProductTask:
    """One partition, and the vectors its moment is multiplied with, (d, k): public by the mechanism's guarantee."""

    partition: MomentTask
    vectors: Matrix

    def cut(self, chunks: range) -> ProductTask:
        """Return the same of other chunks."""
        return ProductTask(self.partition.cut(chunks), self.vectors)

    def keyed(self, secret: bytes) -> ProductTask:
        """Return the same with the secret key by which its rows are dithered."""
        return ProductTask(self.partition.keyed(secret), self.vectors)


def partition_product(task: ProductTask) -> Partial[np.int64]:
    """Return the digits of ``sum z (z^T V)`` over one partition, exactly: d k each where the moment has d² entries."""
    table, bound = task.partition.table, task.partition.bound
    if table.weights:
        raise AssertionError("rows that are added unequally often are summed, and not multiplied with vectors")
    vectors = np.ldexp(task.vectors, GRID_BITS)
    if not np.array_equal(vectors, np.rint(vectors)) or not (np.square(vectors).sum(axis=0) <= 4.0**GRID_BITS).all():
        raise AssertionError("vectors that a moment is multiplied with lie on their grid, and none is longer than 1")
    digits = Digits.of(table, bound)
    total = np.zeros((digits.count, *vectors.shape), dtype=np.int64)
    blocks = BoundedBlocks(task.partition, block_rows(table.rows, bound))
    for block in blocks:
        for place, digit in enumerate(digits.cut(block @ vectors)):
            total[place] += (block.T @ digit).astype(np.int64)
    return blocks.partial(total)
