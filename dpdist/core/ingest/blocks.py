"""A table in memory or on Dask -> rows.zarr. Its blocks become private files, which are then ingested like any other.

The process that computes a block writes its file next to the rows, and each block is computed once. So rows are written
twice, and take twice the space until the table is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

from dpdist.core.errors import DataError
from dpdist.core.ingest import survey
from dpdist.core.ingest.collection import CURE, BlockReader, Collection
from dpdist.core.ingest.readers import base
from dpdist.core.ingest.readers.base import Choices, NoRowsError, Places
from dpdist.core.ingest.readers.source import Entry
from dpdist.core.ingest.remote import StoredFile
from dpdist.core.ingest.sources import Opener, Sources, state_of
from dpdist.core.ingest.workers import Workers
from dpdist.core.ingest.write import SECRET, WORK, Ingest, complete, secret_of, writing
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.progress import Progress, steps
from dpdist.core.rows.automatic import by_option, in_schema, row_is_unit
from dpdist.core.rows.dataset import RowsTable, head_of, open_ingested
from dpdist.core.rows.schema import Schema
from dpdist.core.runtime.checks import ClientInfo, guarded
from dpdist.core.runtime.cluster import AnyCluster, chosen
from dpdist.core.runtime.collections import executor_for, map_blocks
from dpdist.core.runtime.sums import DaskExecutor
from dpdist.core.storage.store import FolderStore, Store

_BLOCKS = f"{WORK}/blocks"


def ingest_collection(
    collection: Collection,
    target: Store,
    *,
    budget: PrivacyLoss | None,
    columns: Sequence[str] | None,
    compress: bool,
    cluster: AnyCluster | None,
    progress: Progress | None,
    schema: Schema | None = None,
    say: Callable[[str], None] | None = None,
) -> RowsTable:
    """Write a table in memory or on Dask into a new rows.zarr."""
    target.require_new("rows")
    site = chosen(cluster)
    progress = progress or site.progress
    survey.require_publishable(f"The {collection.kind}", collection.names)
    original, unit = collection, None if schema is None else schema.unit
    if (
        say is not None
        and unit is None
        and (message := row_is_unit(collection, collection.asked, in_schema if collection.framed else _by_file, schema))
    ):
        say(message)
    if schema is not None:
        collection = collection.fitted(schema, columns)
        columns = schema.features
    keep = survey.kept_columns(collection.names, columns, None)
    if len(keep) < 2:
        raise DataError(
            f"{len(keep)} column(s) of {collection} are kept. A table needs two or more: keep more columns."
        )
    if columns is None:
        collection.require_no_index()
    collection.require_numbers(keep)
    origin = original.origin(columns=None if schema else columns, compress=compress, schema=schema)
    names = tuple(collection.names[index] for index in keep)
    wrong = ""
    # never resumed: a graph may read other data later, and blocks of both could count a person twice
    with target.staged("rows", private=True) as relative:
        staging = relative.absolute()
        secret_of(staging)  # marks the table as incomplete
        with executor_for(site, progress) if collection.lazy else nullcontext() as executor:
            if executor is not None:
                executor.require_visible(staging)
            entries = _write_blocks(collection, keep, staging, executor, progress)
            choices = Choices(schema=schema)
            with closing(Opener(target.scratch_folder, choices)) as opener:
                table = Ingest(
                    collection, Sources(entries, opener), [survey.size_of(entry) for entry in entries], choices, None,
                    unit, None, staging, lambda _: None, may_be_empty=False, names=names,
                )  # fmt: skip
                states = [state_of(entry.location) for entry in entries]
                workers = Workers(None, progress, executor)

                def last() -> bytes:
                    shape, _ = table.written(
                        states, workers, steps(progress, "Ingesting in this process"), compress=compress
                    )
                    return head_of(shape, names, budget, unit=unit, origin=origin, schema=schema)

                try:
                    complete(staging, last)
                except NoRowsError:
                    wrong = f"There are no rows in {collection}. Add some."
                except DataError as error:  # no block was a file of the user
                    wrong = str(error).replace(base.CURE[1:], CURE[1:])
                if wrong:
                    raise DataError(wrong)
    return open_ingested(target)


def _by_file(name: str) -> str:
    """Return how to declare the privacy unit of a table that takes no schema."""
    return f"write the table to a file, ingest that, and {by_option(name)}"


def _write_blocks(
    collection: Collection, keep: Places, staging: Store, executor: DaskExecutor | None, progress: Progress | None
) -> list[Entry]:
    """Write each block on the worker that computes it, or here, and return the files in order."""
    blocks = collection.blocks(keep)
    lengths, write = collection.lengths or [None] * len(blocks), _WriteBlock(collection.reader(keep), staging)
    tasks: list[Any] = [(write, number, *block) for number, block in enumerate(zip(lengths, blocks, strict=True))]
    if collection.lazy:
        map_blocks(executor, tasks, progress, "Writing blocks")
    else:
        for task in tasks:
            guarded(ClientInfo.current(), *task)
    return [write.entry(number) for number in range(len(blocks))]


@dataclass(frozen=True)
class _WriteBlock:
    """Writes the file of a block."""

    reader: BlockReader
    staging: Store

    def _key(self, number: int) -> str:
        return f"{_BLOCKS}/{number:08}{self.reader.suffix}"

    def entry(self, number: int) -> Entry:
        """Return the file."""
        key, store = self._key(number), self.staging
        location = store.address(key) if isinstance(store, FolderStore) else StoredFile(store, key)
        return Entry(location, self.reader.where(number))

    def __call__(self, number: int, length: int | None, block: Any) -> None:
        """Write it."""
        with writing():
            self.staging.put(self._key(number), self.reader.content(block, number, length))
        if not self.staging.exists(SECRET):  # a worker that was given up writes on
            self.staging.drop(_BLOCKS)
