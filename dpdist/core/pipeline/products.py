"""Products of a released second moment that does not fit into memory, by tiles, on any number of workers.

Tiles do not depend on the number of workers, so a release gives the same products to the bit on processors of one kind.
A release is public, so workers may cache its rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import zarr

from dpdist.core import triangle
from dpdist.core.runtime.cluster import AnyCluster, chosen
from dpdist.core.runtime.local import Computation, Executor
from dpdist.core.storage.arrays import ROOT
from dpdist.core.storage.store import Store

Matrix = npt.NDArray[np.float64]
RowBlocks = tuple[tuple[int, Matrix], ...]
"""Blocks of a product: the index of the first row, and the rows."""


@dataclass(frozen=True)
class ProductTask:
    """Rows of a released second moment, and the vectors to multiply them with; all public."""

    release: Store
    rows: range
    vectors: Matrix
    keep: bool

    def for_task(self, rows: range) -> ProductTask:
        """Return the task for other rows, which start at a tile boundary."""
        return replace(self, rows=rows)


def tile_rows(size: int, count: int) -> list[range]:
    """Split the rows of a (size, size) matrix into at most ``count`` runs of tiles of similar length.

    Examples
    --------
    >>> tile_rows(2500, 2)
    [range(0, 1024), range(1024, 2500)]
    """
    tiles = -(-size // triangle.TILE)
    ends = [min(size, triangle.TILE * (tiles * (i + 1) // count)) for i in range(count)]
    return [range(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True) if a < b]


def rows_product(task: ProductTask) -> RowBlocks:
    """Multiply rows of a second moment, one row of tiles at a time."""
    read = _cached_rows if task.keep else _read_rows
    starts = range(task.rows.start, task.rows.stop, triangle.TILE)
    return tuple((i, read(task.release, i, min(i + triangle.TILE, task.rows.stop)) @ task.vectors) for i in starts)


joined = operator.add
"""Joins blocks of a product, in any order."""


def stacked(parts: RowBlocks) -> Matrix:
    """Return the product from its blocks, in any order."""
    return np.concatenate([rows for _, rows in sorted(parts, key=lambda part: part[0])])


def _read_rows(release: Store, start: int, stop: int) -> Matrix:
    array = zarr.open_array(release.for_zarr(), path="second_moment", mode="r", zarr_format=3)
    return np.asarray(array[start:stop], dtype=np.float64)


_cached_rows = lru_cache(maxsize=1024)(_read_rows)


@contextmanager
def multiplied(release: Store, size: int, cluster: AnyCluster | None) -> Iterator[Callable[[Matrix], Matrix]]:
    """Yield a function that multiplies a released second moment by vectors."""
    with chosen(cluster).connected() as executor:
        yield _release_product(release, size, executor)


def _release_product(release: Store, size: int, executor: Executor) -> Callable[[Matrix], Matrix]:
    """Return a function that multiplies a released second moment by vectors."""
    resources = executor.resources()
    runs = tile_rows(size, resources.slots)
    keep = size * size * 8 <= resources.memory // 2  # any process may receive any rows
    executor.require_visible(release, ROOT)

    def product(vectors: Matrix) -> Matrix:
        task = ProductTask(release, range(size), vectors, keep)
        computation = Computation("multiply", rows_product, task, runs, joined)
        return executor.reduce(computation, stacked, label=None)

    return product
