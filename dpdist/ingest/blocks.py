"""A table that Python code holds -> rows.zarr: each block is written by whoever computes it.

It comes to nobody else but, from its beginning, the rows of a chunk that it shares with the block before. Where the
blocks alone tell their lengths and types, each is computed twice: first for these, then for its rows. Both times must
give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from dpdist._util.progress import Progress
from dpdist.errors import DataError
from dpdist.ingest.collection import Collection, Reader
from dpdist.ingest.readers.base import Places, fits, require_exact
from dpdist.ingest.survey import kept_places, require_publishable
from dpdist.ingest.write import WORK, secret_of, writing
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows.dataset import RowsTable, head_of, open_ingested, require_space, shape_of
from dpdist.rows.schema import Schema
from dpdist.rows.table import Shape
from dpdist.rows.writing import RowsWriter
from dpdist.runtime.checks import ClientInfo, guarded
from dpdist.runtime.cluster import Cluster, chosen
from dpdist.runtime.collections import executor_for, first_rows, map_blocks
from dpdist.runtime.sums import DaskExecutor
from dpdist.storage.arrays import ROOT
from dpdist.storage.store import Store


def ingest_collection(
    found: Collection,
    target: Store,
    *,
    budget: PrivacyLoss | None,
    columns: Sequence[str] | None,
    compress: bool,
    cluster: Cluster | None,
    progress: Progress | None,
    schema: Schema | None = None,
) -> RowsTable:
    """Write a table that Python code holds into a new rows.zarr."""
    target.require_new("rows")
    where = chosen(cluster)
    require_publishable(f"The {found.kind}", found.names)
    given = found
    if schema is not None:
        found = found.fitted(schema, columns)
        columns = schema.features
    keep = kept_places(found.names, columns, None)
    if len(keep) < 2:
        raise DataError(f"{len(keep)} column(s) of {found} are kept, and a table needs two or more.")
    if columns is None:
        found.require_no_index()
    found.require_numbers(keep)
    origin = given.origin(columns=None if schema else columns, compress=compress, schema=schema)
    # never resumed: a graph may read other things later, and with blocks of both a person could be in a table twice
    with target.staged("rows", private=True) as aside:
        with executor_for(where) if found.lazy else nullcontext() as executor:
            if executor is not None:
                executor.require_visible(aside.absolute())
            blocks = _Blocks(found, keep, aside.absolute(), executor, progress or where.progress)
            shape = blocks.write(compress=compress)
        unit, names = None if schema is None else schema.unit, tuple(found.names[place] for place in keep)
        aside.put(ROOT, head_of(shape, names, budget, unit=unit, origin=origin, schema=schema))
        aside.drop(WORK)
    return open_ingested(target)


class _Piece(NamedTuple):
    """Rows of a block, from its beginning."""

    block: int
    rows: int


@dataclass(frozen=True)
class _Blocks:
    """Writes the chunks of a table where its blocks are computed."""

    found: Collection
    keep: Places
    aside: Store
    executor: DaskExecutor | None
    progress: Progress | None

    @cached_property
    def blocks(self) -> list[Any]:
        """What is computed."""
        return self.found.blocks(self.keep)

    def run(self, tasks: Sequence[tuple[Callable[..., Any], ...]], label: str) -> list[Any]:
        """Call the first of each task with the others, where the blocks among them are computed."""
        if self.found.lazy:
            return map_blocks(self.executor, tasks, self.progress, label)
        return [guarded(ClientInfo.current(), *task) for task in tasks]

    def write(self, *, compress: bool) -> Shape:
        """Write all rows, and return what table they are."""
        reader = self.found.reader(self.keep, secret_of(self.aside))
        lengths, digests, dtype = self._looked(reader)
        if not sum(lengths):
            raise DataError(f"There are no rows in {self.found}.")
        shape = shape_of(sum(lengths), len(self.keep), dtype, compress=compress)
        require_space(self.aside, shape, shape.rows)
        tasks: list[Any] = []
        for first, stop, start, pieces in _units(lengths, shape):
            write = _Write(reader, self.aside, shape, first, stop, start, pieces, digests[pieces[0].block])
            blocks = [(self.blocks[number], rows, lengths[number]) for number, rows in pieces]
            tasks.append((write, *(block if rows == all_ else first_rows(block, rows) for block, rows, all_ in blocks)))
        seen: dict[_Piece, str] = {}
        for told in self.run(tasks, "Ingesting"):
            for piece, digest in told.items():
                if seen.setdefault(piece, digest) != digest:
                    raise _changed(reader, piece.block)
        return shape

    def _looked(self, reader: Reader) -> tuple[list[int], list[str | None], str]:
        lengths, dtype = self.found.lengths, self.found.dtype
        if lengths is not None and dtype is not None:
            return list(lengths), [None] * len(lengths), dtype
        tasks: list[Any] = [(partial(_look, reader, number), block) for number, block in enumerate(self.blocks)]
        found = self.run(tasks, "Surveying blocks")
        kinds = [np.dtype(kind) for rows, kind, _ in found if rows] or [np.dtype(np.uint8)]
        return [rows for rows, _, _ in found], [digest for _, _, digest in found], np.result_type(*kinds).name


def _units(lengths: Sequence[int], shape: Shape) -> Iterator[tuple[int, int, int, list[_Piece]]]:
    """Yield of each block in which chunks begin these chunks, its first row, and the rows of blocks that they need."""
    high, start, first = shape.chunk_rows, 0, 0
    for number, length in enumerate(lengths):
        end = start + length
        stop = -(-end // high)
        if stop > first:
            pieces, lacking, other = [_Piece(number, length)], min(stop * high, shape.rows) - end, number + 1
            while lacking:
                if rows := min(lacking, lengths[other]):
                    pieces.append(_Piece(other, rows))
                lacking, other = lacking - rows, other + 1
            yield first, stop, start, pieces
            first = stop
        start = end


def _digest(reader: Reader) -> Any:
    """Begin a digest of rows: of a key, because it is the result of a task."""
    return blake2b(digest_size=16, key=reader.secret)


def _look(reader: Reader, number: int, block: Any) -> tuple[int, str, str]:
    rows, kinds, digest = 0, set[np.dtype[Any]](), _digest(reader)
    for part in reader.rows(block, number):
        rows += len(part)
        kinds.add(part.dtype)
        digest.update(part.data)
    return rows, np.result_type(*kinds or {np.dtype(np.uint8)}).name, digest.hexdigest()


@dataclass(frozen=True)
class _Write:
    """Writes the chunks that begin in the first of some blocks."""

    reader: Reader
    aside: Store
    shape: Shape
    first: int
    stop: int
    start: int
    pieces: Sequence[_Piece]
    digest: str | None

    def __call__(self, *blocks: Any) -> dict[_Piece, str]:
        """Write them; return digests of the rows of which another task has a copy."""
        writer, target = RowsWriter(self.aside, self.shape, self.first, self.stop), self.start
        found: dict[_Piece, str] = {}
        with writing():
            for piece, block in zip(self.pieces, blocks, strict=True):
                # of the first block the rows before its first chunk are another task's; it has none of what is behind
                own = piece == self.pieces[0]
                shared = self.first * self.shape.chunk_rows - self.start if own else piece.rows
                rows, whole, copy = 0, _digest(self.reader), _digest(self.reader)
                for part in self.reader.rows(block, piece.block):
                    require_exact(self.reader.where(piece.block), rows, part, self.shape.dtype, self.reader.names)
                    if rows + len(part) > piece.rows or not fits(part, np.dtype(self.shape.dtype)):
                        raise _changed(self.reader, piece.block)
                    whole.update(part.data)
                    copy.update(part[: max(0, shared - rows)].data)
                    writer.append(part, target)
                    rows, target = rows + len(part), target + len(part)
                if rows != piece.rows or (own and self.digest not in {None, whole.hexdigest()}):
                    raise _changed(self.reader, piece.block)
                found[_Piece(piece.block, shared)] = copy.hexdigest()
        return found


def _changed(reader: Reader, number: int) -> DataError:
    return DataError(
        f"{reader.where(number)} has other rows than were announced or found before. Its graph must compute the same "
        "each time: seed what is random, or write the collection to files first."
    )
