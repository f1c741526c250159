"""From parts to one exact total: what a part is, how parts are added, and the proof that nothing was missed.

A part is a contiguous run of whole chunks. It gives a :class:`Partial`: the packed integer triangle, the number of rows
and the chunks it covers. Coverage is checked at every addition and against the table at the end, so a lost or repeated
chunk is an error and not a plausible matrix.

A moment that does not fit a process is summed in bands, each in a pass of its own over the table. Rows are bounded
whole in every pass, over all columns, so a band holds the bits that the whole moment has there. A row that changed
between two passes would count with several values, which no sensitivity covers: every pass must read the same chunks.

**Keys.** Every key by which rows are dithered is secret, new for each attempt at a release, and drawn from the kernel;
:mod:`dpdist.rows.dither` has the argument. Where each row is summed once, each unit draws a key of its own in the
process that sums it, and no other process ever has it. Where a row is summed several times, in bands of the moment or
in rounds of products, all units of the attempt need the same dithers: there one key is drawn in this process, and is an
argument of the tasks that no repr and no log shows. A sum under it carries its fingerprint, and is added to no sum
under another key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from dpdist.errors import DataError, DpdistError
from dpdist.moment.gram import Arithmetic, gram_sum
from dpdist.noise.entropy import SYSTEM
from dpdist.rows.bounding import COMPILED_VALUES, DITHERED, RowBound
from dpdist.rows.chunks import ChunkReader, Rows
from dpdist.rows.dither import BUNCH, DitherKey, Dithers
from dpdist.rows.table import Sizes, Table
from dpdist.runtime.local import Secret
from dpdist.triangle import Band

Value = TypeVar("Value", np.int64, np.float64)
_PIECE_BYTES = 512 << 10
"""float64 bytes of the rows that are read, checked and bounded at once: half of a core's second-level cache."""
_BLOCK_ROWS = 1024
"""Rows whose Gram matrix is added at once, or more where a piece holds more: enough for BLAS to reach its rate."""


def drawn() -> bytes:
    """Draw a secret key, 32 bytes."""
    return SYSTEM.words(4).tobytes()


def partition_of_own_key(task: MomentTask) -> Partial[np.int64]:
    """Sum one partition, whose rows are in no other sum of the attempt, dithered by a key that nobody else has."""
    if task.bound.rule != DITHERED:
        return partition_moment(task)
    return replace(partition_moment(task.keyed(drawn())), key="")


def common_key(bound: RowBound) -> Secret | None:
    """Return a new key for all sums of one attempt in which a row occurs; None where rows are not dithered."""
    return Secret(drawn()) if bound.rule == DITHERED else None


def key_here(bound: RowBound) -> DitherKey | None:
    """Return a new key for rows that are summed in this process, and only here; None where rows are not dithered."""
    return DitherKey(drawn()) if bound.rule == DITHERED else None


@dataclass(frozen=True)
class Partial(Generic[Value]):
    """A sum over some chunks; private.

    ``values`` are exact integers: packed ``sum z z^T``; in a pass that only multiplies the digits of ``sum z (z^T V)``,
    (digits, d, k) (:mod:`dpdist.moment.operator`); in one that counts norms the counts of the bins.
    """

    values: npt.NDArray[Value]
    rows: int
    covered: tuple[tuple[int, int], ...]  # sorted, disjoint, non-adjacent half-open runs of chunk indices
    band: Band | None = None  # the rows of the triangle that values hold; None in a pass that multiplies or counts
    fingerprint: int = 0  # sum over the chunks of a hash of index and checksum: the same of two passes that read alike
    key: str = field(default="", repr=False)  # fingerprint of the dithers' key, where other sums of the rows have it

    def __sizeof__(self) -> int:
        # the scheduler asks for it: it adds sums where most of their bytes are, and watches the memory of workers
        return object.__sizeof__(self) + self.values.nbytes


@dataclass(frozen=True)
class MomentTask:
    """Some chunks of one table, and the band they are summed for: all of it public but the key, which is added last."""

    table: Table
    bound: RowBound
    chunks: range
    band: Band
    key: DitherKey | None = None

    def cut(self, chunks: range) -> MomentTask:
        """Return the same of other chunks."""
        return replace(self, chunks=chunks)

    def keyed(self, secret: bytes) -> MomentTask:
        """Return the same with the secret key by which its rows are dithered."""
        if self.key is not None or self.bound.rule != DITHERED:
            raise AssertionError("a key is for rows that are dithered, by no other one")
        return replace(self, key=DitherKey(secret))


def require_summable(table: Sizes, bound: RowBound) -> None:
    """Check that a table can be summed exactly under a bound; it looks at their shapes only."""
    if bound.columns != table.columns:
        raise DataError(f"The bound is for {bound.columns} columns, {table} has {table.columns}.")
    if table.added_rows > bound.total_rows:
        raise DataError(
            f"{table} has more rows than 64-bit integers can sum at {bound.grid_bits} grid bits: take fewer grid bits.",
            parameter="grid_bits",
        )


def moment_task(table: Table, bound: RowBound, band: Band | None = None) -> MomentTask:
    """Return the sum of all chunks of a table, for a band or the whole moment; dithered rows need a key besides."""
    require_summable(table, bound)
    return MomentTask(table, bound, range(table.chunks), band or Band.whole(bound.width))


def partition_moment(task: MomentTask) -> Partial[np.int64]:
    """Sum one band of one partition; rows that are added equally often are summed once, and multiplied."""
    total: Partial[np.int64] | None = None
    for weight, chunks in groupby(task.chunks, task.table.weight_of):
        numbers = list(chunks)
        part = _summed(task.cut(range(numbers[0], numbers[-1] + 1)))
        if weight != 1:
            np.multiply(part.values, weight, out=part.values)
        total = part if total is None else add_partials(total, part)
    return _summed(task) if total is None else total


def _summed(task: MomentTask) -> Partial[np.int64]:
    """Sum one band of one partition, every row once."""
    arithmetic = None if worth_compiling(task.table) else Arithmetic.FLOAT64
    sums = gram_sum(task.band, task.bound.norm_bound, arithmetic, task.bound.largest)
    integers = sums.arithmetic is not Arithmetic.FLOAT64
    most = block_rows(task.table.rows, task.bound)
    if integers:  # they are gathered anyway: bounded rows need not leave the cache
        most = min(most, piece_rows(task.bound.width))
    blocks = BoundedBlocks(task, most)
    if integers and task.key is not None:
        for rows, dithers in blocks.pieces(stored_rows(task.table, sums.at_once)):
            if dithers is not None:
                sums.add_dithered(rows, task.bound, dithers)
    else:
        for block in blocks:
            sums.add(block)
    return blocks.partial(sums.total(), task.band)


def worth_compiling(table: Sizes) -> bool:
    """Say whether machine code saves more time on a table than it takes to load."""
    return table.rows * table.columns >= COMPILED_VALUES


def piece_rows(width: int) -> int:
    """Return the most rows of so many entries that are read, checked and bounded, or counted, at once."""
    return max(1, _PIECE_BYTES // (8 * width))


def stored_rows(table: Table, at_once: int) -> int:
    """Return the most rows that are read and checked at once, where integers of so many are multiplied."""
    part, _ = table.located(0)  # every table has a chunk, and the parts of one are of one type or nearly
    rows = _PIECE_BYTES // (table.columns * np.dtype(part.dtype).itemsize)
    whole = at_once if rows >= at_once else BUNCH  # of rows that are multiplied, or whose dithers are made, together
    return max(1, rows - rows % whole if rows > whole else rows)


def block_rows(rows: int, bound: RowBound) -> int:
    """Return the most rows whose Gram matrix is added at once: no more than float64 adds exactly, or than there are."""
    return min(max(_BLOCK_ROWS, piece_rows(bound.width)), bound.exact_rows, rows)


class BoundedBlocks:
    """The bounded rows of a partition, block by block, and what was read for them: complete after the iteration.

    Iterating yields (r, width) integer-valued float64 in one buffer that is used again, and raises DataError if a
    chunk is missing, short or altered.
    """

    def __init__(self, task: MomentTask, most: int) -> None:
        self._task, self._most = task, most
        self._rows = self._fingerprint = 0

    def partial(self, values: npt.NDArray[np.int64], band: Band | None = None) -> Partial[np.int64]:
        """Return a sum of the rows."""
        covered = ((self._task.chunks.start, self._task.chunks.stop),)
        key = "" if self._task.key is None else self._task.key.fingerprint
        return Partial(values, self._rows, covered, band, self._fingerprint, key)

    def pieces(self, most: int) -> Iterator[tuple[Rows, Dithers | None]]:
        """Yield the rows as they are stored, at most so many, and their dithers; each is valid until the next."""
        reader = ChunkReader(self._task.table, most)
        for index in self._task.chunks:
            dithers = self._dithers(index)
            for piece in reader.read(index):
                yield piece, dithers
                if dithers is not None:
                    dithers = dithers.behind(piece.shape[0])
                self._rows += piece.shape[0]
            self._fingerprint += hash_of(index, reader.checksum)

    def __iter__(self) -> Iterator[npt.NDArray[np.float64]]:
        bound = self._task.bound
        buffer = np.empty((self._most, bound.width))
        compiled = worth_compiling(self._task.table)
        filled = 0
        for piece, dithers in self.pieces(piece_rows(bound.width)):
            start = 0
            while start < piece.shape[0]:
                some = piece[start : start + buffer.shape[0] - filled]
                behind = None if dithers is None else dithers.behind(start)
                bound.apply(some, buffer[filled:], behind, compiled=compiled)
                start += some.shape[0]
                filled += some.shape[0]
                if filled == buffer.shape[0]:
                    yield buffer
                    filled = 0
        if filled:
            yield buffer[:filled]

    def _dithers(self, index: int) -> Dithers | None:
        """Return the dithers from the first row of a chunk on: by its number in its own part of the table."""
        if self._task.key is None:
            return None
        part, place = self._task.table.located(index)
        key = self._task.key if part.period is None else self._task.key.of_period(part.period)
        return Dithers(key, part.first_row(place))


def hash_of(index: int, checksum: int) -> int:
    """Return the part of a chunk in the fingerprint of a :class:`Partial`."""
    return int.from_bytes(hashlib.sha256(f"{index} {checksum}".encode()).digest(), "big")


def add_partials(total: Partial[Value], part: Partial[Value]) -> Partial[Value]:
    """Add a partial over other chunks to a total, in the total's own memory: only the result may be used afterwards."""
    if part.band != total.band:
        raise DpdistError("Sums of different rows of the moment met; the release was stopped before any noise.")
    if part.key != total.key:
        raise DpdistError("Sums of rows that were rounded by different keys met; nothing was drawn.")
    covered = _union([*total.covered, *part.covered])
    values = total.values if total.values.flags.writeable else total.values.copy()  # as it came from another process
    values += part.values
    return Partial(values, total.rows + part.rows, covered, total.band, total.fingerprint + part.fingerprint, total.key)


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


def complete(table: Table, total: Partial[Value] | None = None) -> Partial[Value]:
    """Check that a total covers the table once."""
    if total is None or total.covered != ((0, table.chunks),) or total.rows != table.rows:
        raise DpdistError(
            f"The sums do not cover the {table.chunks} chunks of {table} once: the release was stopped before "
            "any noise."
        )
    return total
