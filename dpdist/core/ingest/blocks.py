"""A table in memory or on Dask -> rows.zarr. The worker that computes a block writes it.

Only the first rows of a block go to another task, if they complete a chunk of the block before. If lengths and types
are unknown, each block is computed twice: first for these, then for its rows. Both must give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.errors import DataError
from dpdist.core.ingest.collection import Collection, Reader
from dpdist.core.ingest.readers.base import Places, fits, require_exact
from dpdist.core.ingest.survey import kept_columns, require_publishable
from dpdist.core.ingest.write import WORK, secret_of, writing
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.progress import Progress
from dpdist.core.rows.automatic import by_option, in_schema, row_is_unit
from dpdist.core.rows.dataset import RowsTable, head_of, open_ingested, require_space, shape_of
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import Shape
from dpdist.core.rows.writing import RowsWriter
from dpdist.core.runtime.checks import ClientInfo, guarded
from dpdist.core.runtime.cluster import Cluster, chosen
from dpdist.core.runtime.collections import executor_for, first_rows, map_blocks
from dpdist.core.runtime.sums import DaskExecutor
from dpdist.core.storage.arrays import ROOT
from dpdist.core.storage.store import Store


def ingest_collection(
    collection: Collection,
    target: Store,
    *,
    budget: PrivacyLoss | None,
    columns: Sequence[str] | None,
    compress: bool,
    cluster: Cluster | None,
    progress: Progress | None,
    schema: Schema | None = None,
    say: Callable[[str], None] | None = None,
) -> RowsTable:
    """Write a table in memory or on Dask into a new rows.zarr."""
    target.require_new("rows")
    site = chosen(cluster)
    require_publishable(f"The {collection.kind}", collection.names)
    original, unit = collection, None if schema is None else schema.unit
    if (
        say is not None
        and unit is None
        and (message := row_is_unit(collection, collection.asked, _declared(collection)))
    ):
        say(message)
    if schema is not None:
        collection = collection.fitted(schema, columns)
        columns = schema.features
    keep = kept_columns(collection.names, columns, None)
    if len(keep) < 2:
        raise DataError(
            f"{len(keep)} column(s) of {collection} are kept. A table needs two or more: keep more columns."
        )
    if columns is None:
        collection.require_no_index()
    collection.require_numbers(keep)
    origin = original.origin(columns=None if schema else columns, compress=compress, schema=schema)
    # never resumed: a graph may read other data later, and blocks of both could count a person twice
    with target.staged("rows", private=True) as staging:
        with executor_for(site) if collection.lazy else nullcontext() as executor:
            if executor is not None:
                executor.require_visible(staging.absolute())
            blocks = _Blocks(collection, keep, staging.absolute(), executor, progress or site.progress)
            shape = blocks.write(compress=compress)
        names = tuple(collection.names[index] for index in keep)
        staging.put(ROOT, head_of(shape, names, budget, unit=unit, origin=origin, schema=schema))
        staging.drop(WORK)
    return open_ingested(target)


def _declared(collection: Collection) -> Callable[[str], str]:
    """Return how to declare the privacy unit of a table: in a schema, unless it takes none with one."""
    if collection.framed and not collection.lazy:
        return in_schema
    return lambda name: f"write the table to a file, ingest that, and {by_option(name)}"


class _Prefix(NamedTuple):
    """The first rows of a block."""

    block: int
    rows: int


@dataclass(frozen=True)
class _Blocks:
    """Writes chunks on the workers that compute the blocks."""

    collection: Collection
    keep: Places
    staging: Store
    executor: DaskExecutor | None
    progress: Progress | None

    @cached_property
    def blocks(self) -> list[Any]:
        return self.collection.blocks(self.keep)

    def run(self, tasks: Sequence[tuple[Callable[..., Any], ...]], label: str) -> list[Any]:
        """Call the first item of each task with the others, on the workers that compute its blocks."""
        if self.collection.lazy:
            return map_blocks(self.executor, tasks, self.progress, label)
        return [guarded(ClientInfo.current(), *task) for task in tasks]

    def write(self, *, compress: bool) -> Shape:
        """Write all rows and return the shape of the table."""
        reader = self.collection.reader(self.keep, secret_of(self.staging))
        lengths, digests, dtype = self._survey_blocks(reader)
        if not sum(lengths):
            raise DataError(f"There are no rows in {self.collection}. Add some.")
        shape = shape_of(sum(lengths), len(self.keep), dtype, compress=compress)
        require_space(self.staging, shape, shape.rows)
        tasks: list[Any] = []
        for first, stop, start, prefixes in _chunk_tasks(lengths, shape):
            write = _Write(reader, self.staging, shape, first, stop, start, prefixes, digests[prefixes[0].block])
            blocks = [(self.blocks[number], rows, lengths[number]) for number, rows in prefixes]
            tasks.append((write, *(block if rows == all_ else first_rows(block, rows) for block, rows, all_ in blocks)))
        first_digests: dict[_Prefix, str] = {}
        for digests_of_task in self.run(tasks, "Ingesting"):
            for prefix, digest in digests_of_task.items():
                if first_digests.setdefault(prefix, digest) != digest:
                    raise _changed(reader, prefix.block)
        return shape

    def _survey_blocks(self, reader: Reader) -> tuple[list[int], list[str | None], str]:
        lengths, dtype = self.collection.lengths, self.collection.dtype
        if lengths is not None and dtype is not None:
            return list(lengths), [None] * len(lengths), dtype
        tasks: list[Any] = [(partial(_survey_block, reader, number), block) for number, block in enumerate(self.blocks)]
        surveys = self.run(tasks, "Surveying blocks")
        kinds = [np.dtype(kind) for rows, kind, _ in surveys if rows] or [np.dtype(np.uint8)]
        return [rows for rows, _, _ in surveys], [digest for _, _, digest in surveys], np.result_type(*kinds).name


def _chunk_tasks(lengths: Sequence[int], shape: Shape) -> Iterator[tuple[int, int, int, list[_Prefix]]]:
    """Yield first and last chunk, first row and needed rows for each block in which a chunk begins."""
    high, start, first = shape.chunk_rows, 0, 0
    for number, length in enumerate(lengths):
        end = start + length
        stop = -(-end // high)
        if stop > first:
            prefixes, lacking, other = [_Prefix(number, length)], min(stop * high, shape.rows) - end, number + 1
            while lacking:
                if rows := min(lacking, lengths[other]):
                    prefixes.append(_Prefix(other, rows))
                lacking, other = lacking - rows, other + 1
            yield first, stop, start, prefixes
            first = stop
        start = end


def _digest(reader: Reader) -> Any:
    """Begin a digest of rows, keyed because task results travel."""
    return blake2b(digest_size=16, key=reader.secret)


def _survey_block(reader: Reader, number: int, block: Any) -> tuple[int, str, str]:
    rows, kinds, digest = 0, set[np.dtype[Any]](), _digest(reader)
    for part in reader.rows(block, number):
        rows += len(part)
        kinds.add(part.dtype)
        digest.update(part.data)
    return rows, np.result_type(*kinds or {np.dtype(np.uint8)}).name, digest.hexdigest()


@dataclass(frozen=True)
class _Write:
    """Writes the chunks that begin in the first block."""

    reader: Reader
    staging: Store
    shape: Shape
    first: int
    stop: int
    start: int
    prefixes: Sequence[_Prefix]
    digest: str | None

    def __call__(self, *blocks: Any) -> dict[_Prefix, str]:
        """Write them and return digests of the rows that another task also reads."""
        writer, target = RowsWriter(self.staging, self.shape, self.first, self.stop), self.start
        shared_digests: dict[_Prefix, str] = {}
        with writing():
            for prefix, block in zip(self.prefixes, blocks, strict=True):
                # rows of the first block before its first chunk belong to another task
                is_first = prefix == self.prefixes[0]
                shared = self.first * self.shape.chunk_rows - self.start if is_first else prefix.rows
                rows, full_digest, shared_digest = 0, _digest(self.reader), _digest(self.reader)
                for batch in self.reader.rows(block, prefix.block):
                    require_exact(self.reader.where(prefix.block), rows, batch, self.shape.dtype, self.reader.names)
                    if rows + len(batch) > prefix.rows or not fits(batch, np.dtype(self.shape.dtype)):
                        raise _changed(self.reader, prefix.block)
                    full_digest.update(batch.data)
                    shared_digest.update(batch[: max(0, shared - rows)].data)
                    writer.append(batch, target)
                    rows, target = rows + len(batch), target + len(batch)
                if rows != prefix.rows or (is_first and self.digest not in {None, full_digest.hexdigest()}):
                    raise _changed(self.reader, prefix.block)
                shared_digests[_Prefix(prefix.block, shared)] = shared_digest.hexdigest()
        return shared_digests


def _changed(reader: Reader, number: int) -> DataError:
    return DataError(
        f"{reader.where(number)} differs from its metadata or from an earlier computation. Its graph must return the "
        "same rows each time: seed random numbers, or write the collection to files first."
    )
