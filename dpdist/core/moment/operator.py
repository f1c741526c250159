"""The exact moment for mechanisms: its integers, a float64 matrix, bands, or only products with a few vectors.

**Products are exact sums.** Rows z are integer vectors, and so are the vectors that they are multiplied by, after a
shift by their g fractional bits (:func:`on_grid`): ``V``, columns of norm at most 2^g. So ``Y =
z^T V`` and the sum of all ``z Y`` are integers, with the same bits for all blocks, partitions and workers. Float64
computes them exactly with any BLAS, because all sums stay below 2^53:

* ``Y``: by Cauchy and Schwarz ``sum |z_i V_ij| <= |z| |V_j| <= sqrt(2) 2^b 2^g < 2^(b+g+1)``, with b grid bits of the
  rows and an appended constant of at most 2^b; b + g + 1 is at most 49.
* ``Y`` is divided into digits of h bits, ``Y = sum_p 2^(p h) Y_p``, where the last digit contains the sign and the
  remaining bits. The entries of ``z Y_p`` of the r rows of a block sum to at most ``r 2^b 2^h``, and h is so small that
  this is at most 2^53. The digits are added to 64-bit integers, and h is so small that those of all n rows fit: ``n 2^b
  2^h < 2^63``.

h follows from n, b, d and g (:class:`Digits`), and not from the partitions. So the sums of each digit are the same
integers for all partitions, and so is the float64 product, which is computed from them in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, DpdistError
from dpdist.core.moment.total import BoundedBlocks, MomentTask, Partial, block_rows
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.table import Sizes
from dpdist.core.triangle import Band, Triangle, unpacked

Matrix = npt.NDArray[np.float64]
GRID_BITS = 24
"""Fractional bits of V: far finer than any noise, and coarse enough for exact sums in float64."""


def on_grid(frame: Matrix) -> Matrix:
    """Return a (d, k) frame scaled by 1 - h and rounded to multiples of ``2^-GRID_BITS``: spectral norm at most 1."""
    share = 1 - math.sqrt(frame.size) * 2.0**-GRID_BITS
    rounded: Matrix = np.ldexp(np.rint(np.ldexp(share * frame, GRID_BITS)), -GRID_BITS)
    return rounded


@dataclass(frozen=True)
class MomentMatrix:
    """An exact moment in memory. Private."""

    packed: Triangle
    size: int

    def triangle(self) -> Triangle:
        """Return the packed integers."""
        return self.packed

    def bands(self) -> Iterator[tuple[Band, Triangle]]:
        """Yield the whole moment as one band."""
        yield Band.whole(self.size), self.packed

    def matrix(self) -> Matrix:
        """Return the symmetric matrix as float64, (d, d)."""
        return unpacked(self.packed, self.size).astype(np.float64)

    def times(self, vectors: Matrix) -> Matrix:
        """Return the product with (d, k) vectors, (d, k) float64."""
        return self.matrix() @ vectors


class _Distributed:
    """A moment that is not in memory: its mechanism does not need it."""

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise DpdistError("The moment of this release is not in memory, and its mechanism requires it.")

    triangle = matrix = bands = times = _refused


@dataclass(frozen=True)
class MomentBands(_Distributed):
    """An exact moment whose bands are summed on the workers, and released from memory when they are noisy."""

    sums: Callable[[], Iterator[Partial[np.int64]]]

    def bands(self) -> Iterator[tuple[Band, Triangle]]:
        """Yield one band after the other, with only one in memory."""
        first: tuple[str, int] | None = None
        for partial in self.sums():
            key, fingerprint = first = first or (partial.key, partial.fingerprint)
            if partial.key != key:
                raise DpdistError("The bands of one moment were rounded by different keys; the release was stopped.")
            if partial.fingerprint != fingerprint:
                raise DataError(
                    "The rows changed while they were summed, so the release was stopped and nothing was kept. Leave "
                    "them unchanged and run the same command again, or ingest them again."
                )
            if partial.band is None:
                raise AssertionError("a sum of a moment has a band")
            band, values = partial.band, partial.values
            del partial  # release it before the next band
            yield band, values
            del values


@dataclass(frozen=True)
class MomentProducts(_Distributed):
    """An exact moment that is never formed: the workers compute only its products."""

    product: Callable[[Matrix], Matrix]

    def times(self, vectors: Matrix) -> Matrix:
        """Return the product with (d, k) vectors, (d, k) float64."""
        return self.product(vectors)


@dataclass(frozen=True)
class Digits:
    """Division of products into digits that can be added exactly; it depends on public numbers only."""

    bits: int
    count: int

    @classmethod
    def of(cls, table: Sizes, bound: RowBound) -> Digits:
        """Return the digits for a table and a bound."""
        entry = bound.grid_bits
        in_block = 53 - entry - (block_rows(table.rows, bound) - 1).bit_length()
        in_total = 62 - entry - table.rows.bit_length()
        bits = min(in_block, in_total)
        if bits < 1:
            raise AssertionError("the products of rows that can be summed have a digit")
        return cls(bits, -(-(entry + GRID_BITS + 1) // bits))

    def split(self, product: Matrix) -> Iterator[Matrix]:
        """Yield the digits of integers, the lowest first."""
        for _ in range(self.count - 1):
            quotient = np.floor(np.ldexp(product, -self.bits))
            yield product - np.ldexp(quotient, self.bits)
            product = quotient
        yield product

    def joined(self, sums: npt.NDArray[np.int64]) -> Matrix:
        """Return the product from the sums of its digits, (count, d, k), without fractional bits."""
        total = np.zeros(sums.shape[1:])
        for index in reversed(range(self.count)):
            total += np.ldexp(sums[index].astype(np.float64), index * self.bits - GRID_BITS)
        return total


@dataclass(frozen=True)
class ProductTask:
    """A partition, and the vectors, (d, k), that its moment is multiplied by: public by the mechanism's guarantee."""

    partition: MomentTask
    vectors: Matrix

    def for_task(self, chunks: range) -> ProductTask:
        """Return the task for other chunks."""
        return ProductTask(self.partition.for_task(chunks), self.vectors)

    def with_key(self, secret: bytes) -> ProductTask:
        """Return the task with the secret key of the dithers."""
        return ProductTask(self.partition.with_key(secret), self.vectors)


def partition_product(task: ProductTask) -> Partial[np.int64]:
    """Return the exact digits of ``sum z (z^T V)`` over one partition: d k entries each, instead of d²."""
    table, bound = task.partition.table, task.partition.bound
    if table.weights:
        raise AssertionError("products support no weights")
    vectors = np.ldexp(task.vectors, GRID_BITS)
    if not np.array_equal(vectors, np.rint(vectors)) or not (np.square(vectors).sum(axis=0) <= 4.0**GRID_BITS).all():
        raise AssertionError("the vectors must be on the grid, with norms of at most 1")
    digits = Digits.of(table, bound)
    total = np.zeros((digits.count, *vectors.shape), dtype=np.int64)
    blocks = BoundedBlocks(task.partition, block_rows(table.rows, bound))
    for block in blocks:
        for index, digit in enumerate(digits.split(block @ vectors)):
            total[index] += (block.T @ digit).astype(np.int64)
    return blocks.partial(total)
