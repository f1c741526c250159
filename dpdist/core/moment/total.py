"""Partial sums, their addition to one exact total, and the proof that every chunk is included once.

A partition is a contiguous range of whole chunks. Its :class:`Partial` contains the packed integer triangle, the number
of rows and the chunks it covers. Coverage is checked at every addition, and against the table at the end, so a lost or
repeated chunk is an error and not a plausible matrix.

A moment that does not fit in memory is summed in bands, each in a separate computation over the table. Rows are always
bounded as a whole, over all columns, so a band has the same bits as the whole moment. A row that changed between two
bands would count with several values, which no sensitivity covers: all bands must read the same chunks.

**Keys.** Every key of dithers is secret, new for each attempt at a release, and drawn from the kernel;
:mod:`dpdist.core.rows.dither` contains the argument. If each row is summed once, each task draws its own key in the
process that sums it, and no other process ever has it. If a row is summed several times, in bands of the moment or in
rounds of products, all tasks of the attempt need the same dithers: one key is drawn in this process, and passed to the
tasks in an argument that no repr and no log shows. A sum with it has its fingerprint, and is not added to a sum with
another key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, DpdistError
from dpdist.core.moment.gram import Instructions, gram_sum
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.rows.bounding import COMPILED_VALUES, RowBound
from dpdist.core.rows.chunks import ChunkReader, Rows
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.dither import BUNCH, DitherKey, Dithers
from dpdist.core.rows.table import Sizes, Table
from dpdist.core.rows.unit_moment import Starts
from dpdist.core.rows.unit_rows import UnitBatches
from dpdist.core.runtime.local import Secret
from dpdist.core.triangle import Band

Value = TypeVar("Value", np.int64, np.float64)
_PIECE_BYTES = 512 << 10
"""float64 bytes of a batch of rows that is read, checked and bounded: half of a core's second-level cache."""
_BLOCK_ROWS = 1024
"""Rows in a block, or more if a batch has more: enough for BLAS to reach its rate."""


def draw_key() -> bytes:
    """Draw a secret key, 32 bytes."""
    return SYSTEM.words(4).tobytes()


def partition_of_own_key(task: MomentTask) -> Partial[np.int64]:
    """Sum one partition, whose rows are in no other sum of the attempt, with a key that no other process has."""
    return replace(partition_moment(task.with_key(draw_key())), key="")


def common_key() -> Secret:
    """Return a new key for all sums of one attempt."""
    return Secret(draw_key())


@dataclass(frozen=True)
class Partial(Generic[Value]):
    """A sum over some chunks. Private.

    ``values`` are exact integers: packed ``sum z z^T``, the digits of ``sum z (z^T V)``, (digits, d, k)
    (:mod:`dpdist.core.moment.operator`), or the counts of bins.
    """

    values: npt.NDArray[Value]
    rows: int
    covered: tuple[tuple[int, int], ...]  # sorted, disjoint, non-adjacent half-open ranges of chunk indices
    band: Band | None = None  # None for products and counts
    fingerprint: int = 0  # sum of hashes of index and checksum: equal for equal chunks
    key: str = field(default="", repr=False)  # fingerprint of a key that other sums share

    def __sizeof__(self) -> int:
        # Dask uses the size to place additions, and to monitor the memory of workers
        return object.__sizeof__(self) + self.values.nbytes


@dataclass(frozen=True)
class MomentTask:
    """Chunks of a table, and the band to sum: public except for the key, which is added last."""

    table: Table
    bound: RowBound
    chunks: range
    band: Band
    key: DitherKey | None = None

    def for_task(self, chunks: range) -> MomentTask:
        """Return the task for other chunks."""
        return replace(self, chunks=chunks)

    def with_key(self, secret: bytes) -> MomentTask:
        """Return the task with the secret key of the dithers."""
        if self.key is not None:
            raise AssertionError("a task has only one key")
        return replace(self, key=DitherKey(secret))


def require_summable(table: Sizes, bound: RowBound) -> None:
    """Check, from the shapes, that a table can be summed exactly with a bound."""
    if bound.columns != table.columns:
        raise DataError(f"The bound is for {bound.columns} columns, {table} has {table.columns}.")
    if table.added_rows > bound.total_rows:
        raise DataError(
            f"{table} has more rows than 64-bit integers can sum at {bound.grid_bits} grid bits. Choose fewer grid "
            "bits.",
            parameter="grid_bits",
        )


def moment_task(table: Table, bound: RowBound, band: Band | None = None) -> MomentTask:
    """Return the task of all chunks of a table, for a band or the whole moment, without the key that it needs."""
    require_summable(table, bound)
    return MomentTask(table, bound, range(table.chunks), band or Band.whole(bound.width))


def partition_moment(task: MomentTask) -> Partial[np.int64]:
    """Sum one band of one partition; rows of equal weight are summed, and the sum is multiplied."""
    total: Partial[np.int64] | None = None
    for weight, chunks in groupby(task.chunks, task.table.weight_of):
        numbers = list(chunks)
        part = _summed(task.for_task(range(numbers[0], numbers[-1] + 1)))
        if weight != 1:
            np.multiply(part.values, weight, out=part.values)
        total = part if total is None else add_partials(total, part)
    return _summed(task) if total is None else total


def _summed(task: MomentTask) -> Partial[np.int64]:
    """Sum one band of one partition without weights."""
    if task.bound.unit_norm:
        return _summed_units(task)
    instructions = None if worth_compiling(task.table) else Instructions.FLOAT64
    sums = gram_sum(task.band, task.bound.norm_bound, instructions, task.bound.largest)
    integers = sums.instructions is not Instructions.FLOAT64
    batch_rows = block_rows(task.table.rows, task.bound)
    if integers:  # rows are collected in panels anyway: keep batches in the cache
        batch_rows = min(batch_rows, piece_rows(task.bound.width))
    blocks = BoundedBlocks(task, batch_rows)
    if integers:
        for rows, dithers in blocks.batches(stored_rows(task.table, sums.at_once)):
            sums.add_dithered(rows, task.bound, dithers)
    else:
        for block in blocks:
            sums.add(block)
    return blocks.partial(sums.total(), task.band)


def _summed_units(task: MomentTask) -> Partial[np.int64]:
    """Sum one band of the privacy units that begin in one partition."""
    instructions = None if worth_compiling(task.table) else Instructions.FLOAT64
    sums = gram_sum(task.band, task.bound.norm_bound, instructions, task.bound.largest, units=True)
    blocks = BoundedBlocks(task, 0)
    integers = sums.instructions is not Instructions.FLOAT64
    limit = sums.at_once - 1 if integers else stored_rows(task.table, 1)  # they may begin with an odd row
    for rows, starts, dithers in blocks.units(limit):
        sums.add_units(rows, starts, task.bound, dithers)
    return blocks.partial(sums.total(), task.band)


def worth_compiling(table: Sizes) -> bool:
    """Return whether machine code saves more time on a table than it takes to load."""
    return table.rows * table.columns >= COMPILED_VALUES


def piece_rows(width: int) -> int:
    """Return the rows of ``width`` entries in a batch that is read, checked and bounded, or counted."""
    return max(1, _PIECE_BYTES // (8 * width))


def stored_rows(table: Table, at_once: int) -> int:
    """Return the rows in a batch of stored rows, a multiple of those that are multiplied at once."""
    part, _ = table.located(0)  # every table has a chunk, and its parts have similar types
    rows = _PIECE_BYTES // (table.columns * np.dtype(part.dtype).itemsize)
    together = at_once if rows >= at_once else BUNCH  # rows that are multiplied, or dithered, at once
    return max(1, rows - rows % together if rows > together else rows)


def block_rows(rows: int, bound: RowBound) -> int:
    """Return the rows in a block: no more than float64 adds exactly, and than the table has."""
    return min(max(_BLOCK_ROWS, piece_rows(bound.width)), bound.exact_rows, rows)


class BoundedBlocks:
    """Bounded rows of a partition, in blocks; after the iteration, also their number and fingerprint.

    Iterating yields (r, width) integer-valued float64 in a buffer that is reused, and raises DataError if a chunk is
    missing, short or altered.
    """

    def __init__(self, task: MomentTask, rows_per_block: int) -> None:
        self._task, self._most = task, rows_per_block
        self._rows = self._fingerprint = 0

    def partial(self, values: npt.NDArray[np.int64], band: Band | None = None) -> Partial[np.int64]:
        """Return the partial sum of the rows."""
        covered = ((self._task.chunks.start, self._task.chunks.stop),)
        key = "" if self._task.key is None else self._task.key.fingerprint
        return Partial(values, self._rows, covered, band, self._fingerprint, key)

    def batches(self, limit: int) -> Iterator[tuple[Rows, Dithers]]:
        """Yield batches of at most ``limit`` stored rows, and their dithers; a batch is valid until the next one."""
        reader = ChunkReader(self._task.table, limit, self._task.bound.centre)
        for index in self._task.chunks:
            dithers = self._dithers(index)
            for batch in reader.read(index):
                yield batch, dithers
                dithers = dithers.behind(batch.shape[0])
                self._rows += batch.shape[0]
            self._fingerprint += hash_of(index, reader.checksum)

    def units(self, limit: int) -> Iterator[tuple[Rows, Starts, Dithers]]:
        """Yield the units that begin in the chunks, in batches of about ``limit`` stored rows, and their dithers."""
        table = self._task.table
        if not isinstance(table, RowsTable) or self._task.key is None:
            raise AssertionError("periods have no units whose rows are all kept")
        batches = UnitBatches(table, self._task.chunks, limit, self._task.bound.centre)
        for first, rows, starts in batches:
            yield rows, starts, Dithers(self._task.key, first)
            self._rows += rows.shape[0]
        for index, checksum in batches.checksums:
            self._fingerprint += hash_of(index, checksum)

    def __iter__(self) -> Iterator[npt.NDArray[np.float64]]:
        bound = self._task.bound
        buffer = np.empty((self._most, bound.width))
        compiled = worth_compiling(self._task.table)
        filled = 0
        for batch, dithers in self.batches(piece_rows(bound.width)):
            start = 0
            while start < batch.shape[0]:
                rows = batch[start : start + buffer.shape[0] - filled]
                bound.apply(rows, buffer[filled:], dithers.behind(start), compiled=compiled)
                start += rows.shape[0]
                filled += rows.shape[0]
                if filled == buffer.shape[0]:
                    yield buffer
                    filled = 0
        if filled:
            yield buffer[:filled]

    def _dithers(self, index: int) -> Dithers:
        """Return the dithers from the first row of a chunk on, by its index in its part of the table."""
        if self._task.key is None:
            raise AssertionError("rows are dithered with a key")
        part, chunk = self._task.table.located(index)
        key = self._task.key if part.period is None else self._task.key.of_period(part.period)
        return Dithers(key, part.first_row(chunk))


def hash_of(index: int, checksum: int) -> int:
    """Return the term of a chunk in the fingerprint of a :class:`Partial`."""
    return int.from_bytes(hashlib.sha256(f"{index} {checksum}".encode()).digest(), "big")


def add_partials(total: Partial[Value], part: Partial[Value]) -> Partial[Value]:
    """Add a partial over other chunks to a total in place: afterwards, only the result is valid."""
    if part.band != total.band:
        raise DpdistError(
            "Sums of different bands of the moment were added; the release was stopped before any noise was drawn."
        )
    if part.key != total.key:
        raise DpdistError("Sums of rows that were rounded with different keys were added; no noise was drawn.")
    covered = _union([*total.covered, *part.covered])
    values = total.values if total.values.flags.writeable else total.values.copy()  # of another process
    values += part.values
    return Partial(values, total.rows + part.rows, covered, total.band, total.fingerprint + part.fingerprint, total.key)


def _union(runs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(runs):
        if merged and start < merged[-1][1]:
            raise DpdistError(f"Chunk {start} was added twice; the release was stopped before any noise was drawn.")
        if merged and start == merged[-1][1]:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


def complete(table: Table, total: Partial[Value] | None = None) -> Partial[Value]:
    """Return a total after checking that it covers the table once."""
    if total is None or total.covered != ((0, table.chunks),) or total.rows != table.rows:
        raise DpdistError(
            f"The sums do not cover the {table.chunks} chunks of {table} once; the release was stopped before "
            "any noise was drawn."
        )
    return total
