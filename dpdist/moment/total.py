"""From partitions to one exact total: the plan of a pass, its tasks, and the proof that nothing was missed.

A task takes a contiguous run of whole chunks and returns a :class:`Partial`: the packed integer triangle, the number
of rows and the chunks it covers. Partials are added pairwise into new arrays, never in place, because a scheduler may
hand the same partial to two tasks or run one twice. Coverage is checked at every addition and against the
table at the end, so a lost or repeated chunk is an error and not a plausible matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.errors import DataError, DpdistError
from dpdist.moment.gram import GramSum
from dpdist.rows.bounding import RowBound
from dpdist.rows.dataset import ChunkReader, RowsTable, partitions

_BLOCK_BYTES = 24 << 20
"""Size of the float64 working buffer: a few thousand rows, so that adding d x d products costs little."""


@dataclass(frozen=True)
class Partial:
    """A sum over some chunks.

    Attributes
    ----------
    values
        Packed ``sum z z^T``, int64, exact; or, in a pass that only multiplies, ``sum z (z^T V)``, (d, k) float64.
    rows
        Number of rows in it.
    covered
        Sorted, disjoint, non-adjacent half-open runs of chunk indices.
    """

    values: npt.NDArray[Any]
    rows: int
    covered: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class MomentTask:
    """One partition of one table: what a worker needs to know, all of it public."""

    table: RowsTable
    bound: RowBound
    chunks: range


@dataclass(frozen=True)
class MomentPlan:
    """A pass over the table: partitions grouped by the worker that should add them up.

    Attributes
    ----------
    groups
        One group of tasks per worker; groups and tasks are contiguous runs of chunks.
    """

    table: RowsTable
    bound: RowBound
    groups: tuple[tuple[MomentTask, ...], ...]


def require_summable(table: RowsTable, bound: RowBound) -> None:
    """Check that a table can be summed exactly under a bound; it looks at their shapes only.

    Raises
    ------
    DataError
        If the sum of so many rows could leave 64-bit integers, or the bound is for other columns.
    """
    if bound.columns != table.columns:
        raise DataError(f"The bound is for {bound.columns} columns, {table.path} has {table.columns}.")
    if table.rows > bound.total_rows:
        raise DataError(
            f"{table.path} has more rows than 64-bit integers can sum at {bound.grid_bits} grid bits: "
            "take fewer grid bits (--grid-bits)."
        )


def plan(table: RowsTable, bound: RowBound, workers: int, per_worker: int = 4) -> MomentPlan:
    """Cut a table into a few partitions per worker, whatever its length.

    Raises
    ------
    DataError
        As :func:`require_summable`.
    """
    require_summable(table, bound)
    groups = []
    for run in partitions(table.chunks, workers):
        cut = partitions(len(run), per_worker)
        groups.append(tuple(MomentTask(table, bound, run[part.start : part.stop]) for part in cut))
    return MomentPlan(table, bound, tuple(groups))


def partition_moment(task: MomentTask) -> Partial:
    """Sum one partition: read each chunk into one buffer, bound its rows in place, add their Gram matrix.

    Raises
    ------
    DataError
        If a chunk is missing, short or altered.
    """
    sums = GramSum(task.bound.width, task.bound.exact_rows)
    rows = 0
    for block in bounded_blocks(task):
        sums.add(block)
        rows += block.shape[0]
    return Partial(sums.total(), rows, ((task.chunks.start, task.chunks.stop),))


def bounded_blocks(task: MomentTask) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the bounded rows of a partition, (r, width) integer-valued float64, in one buffer that is used again.

    Raises
    ------
    DataError
        If a chunk is missing, short or altered.
    """
    table, bound = task.table, task.bound
    block_rows = max(1, min(table.chunk_rows, bound.exact_rows, _BLOCK_BYTES // (8 * bound.width)))
    buffer = np.empty((block_rows, bound.width))
    reader = ChunkReader(table)
    for index in task.chunks:
        chunk = reader.read(index)
        for start in range(0, chunk.shape[0], block_rows):
            yield bound.apply(chunk[start : start + block_rows], buffer)


def add_partials(partials: Sequence[Partial]) -> Partial:
    """Add partials over disjoint chunks into a new one.

    Raises
    ------
    DpdistError
        If two of them cover the same chunk: it would count twice.
    """
    total = partials[0].values.copy()
    for partial in partials[1:]:
        total += partial.values
    return Partial(total, sum(p.rows for p in partials), _union(run for p in partials for run in p.covered))


def _union(runs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(runs):
        if merged and start < merged[-1][1]:
            raise DpdistError(f"Chunk {start} came twice into one sum; the release was stopped before any noise.")
        if merged and start == merged[-1][1]:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


def complete(table: RowsTable, partials: Sequence[Partial]) -> Partial:
    """Add the last partials and check that together they cover the table once.

    Raises
    ------
    DpdistError
        If a chunk is missing or came twice.
    """
    total = add_partials(partials) if partials else None
    if total is None or total.covered != ((0, table.chunks),) or total.rows != table.rows:
        raise DpdistError(
            f"The sums do not cover the {table.chunks} chunks of {table.path} once: the release was stopped before "
            "any noise."
        )
    return total
