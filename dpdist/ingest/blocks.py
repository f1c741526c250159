"""A table that Python code holds -> rows.zarr: each block is written by whoever computes it, and comes to nobody else.

Where the blocks alone tell their lengths and types, each is computed twice: first for these, then for its rows. Both
times must give the same bits. The rest is as with files: rows are written by :mod:`dpdist.rows.writing`, and what is
wrong with one is put aside by :mod:`dpdist.ingest.steps`, because Dask would log an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any

import numpy as np

from dpdist._util.ids import random_token
from dpdist._util.progress import Progress
from dpdist._version import __version__
from dpdist.errors import DataError
from dpdist.ingest.collection import CURE, Collection, Layout, pieces_of
from dpdist.ingest.judging import kept_places, require_publishable
from dpdist.ingest.origin import collection_origin
from dpdist.ingest.pieces import Join, OfPieces, complete
from dpdist.ingest.readers.base import Places, Rows, fits, require_finite
from dpdist.ingest.states import digest_of
from dpdist.ingest.steps import WORK, Step, forget_faults, on_a_worker, put_plan, secret_of
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows.dataset import RowsTable, head_of, open_ingested, require_space, shape_of
from dpdist.rows.schema import Schema
from dpdist.rows.table import Shape
from dpdist.rows.writing import RowsWriter
from dpdist.runtime.checks import Asker, guarded
from dpdist.runtime.cluster import Cluster, chosen
from dpdist.runtime.collections import computing, each_block
from dpdist.runtime.sums import OnDask
from dpdist.storage.store import Store

_PROCESS = random_token()
"""What a graph reads may be another later, and with blocks of both a person could be in a table twice: so only
the process that began an ingest of a graph goes on with it."""


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
    """Write a table that Python code holds into a new rows.zarr.

    Parameters
    ----------
    found
        The table.
    target, budget, columns, compress
        As of :func:`dpdist.ingest.table.ingest`.
    cluster
        Where to compute; None: where its owner does.
    progress
        Told how many blocks are done, and how many there are, of each of its steps.
    schema
        What the columns of a DataFrame mean; None: they are numbers.

    Raises
    ------
    UsageError, DataError, ResumableError
        As :func:`dpdist.ingest.table.ingest`. The messages name the block and its row.
    """
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
    origin = collection_origin(given, columns=None if schema else columns, compress=compress, schema=schema)
    process = [_PROCESS, os.getpid()] if found.lazy else []
    with target.resumed("rows", digest_of([__version__, origin, process]).encode()) as aside:

        def build() -> bytes:
            with computing(where) if found.lazy else nullcontext() as engine:
                task = _Blocks(found, keep, aside.absolute(), engine, progress or where.progress)
                shape = task.write(compress=compress)
            unit = None if schema is None else schema.unit
            names = tuple(found.names[place] for place in keep)
            return head_of(shape, names, budget, unit=unit, origin=origin, schema=schema)

        complete(aside, build)
    return open_ingested(target)


class _Held:
    """What a unit works with: its block."""

    def __init__(self, block: Any) -> None:
        self.block = block

    def said(self, text: str) -> str:
        """Return a message as it is."""
        return text


def _do(step: Step, unit: int, block: Any) -> None:
    hands: Any = _Held(block)
    with on_a_worker():
        step.done(unit, hands)


@dataclass(frozen=True)
class _Blocks:
    """Computes the units of the steps where the blocks are computed."""

    found: Collection
    keep: Places
    aside: Store
    engine: OnDask | None
    progress: Progress | None

    @cached_property
    def blocks(self) -> list[Any]:
        """The blocks."""
        return self.found.blocks(self.keep)

    def run(self, step: Step, units: Sequence[int]) -> None:
        """Compute units of a step."""
        blocks = [None] * (max(units) + 1) if isinstance(step, Join) else self.blocks
        if self.found.lazy:
            numbered = [(unit, blocks[unit]) for unit in units]
            each_block(self.engine, partial(_do, step), numbered, self.progress, step.label)
            return
        for unit in units:
            guarded(Asker.here(), _do, step, unit, blocks[unit])

    def write(self, *, compress: bool) -> Shape:
        """Write all rows, and return what table they are."""
        forget_faults(self.aside)
        about = {"table": str(self.found), "layout": self.found.layout(self.keep, secret_of(self.aside)).packed}
        plan = put_plan(self.aside, LookAtBlock.follows, about)
        if self.engine is not None:
            self.engine.require_visible(self.aside, f"{WORK}/{LookAtBlock.follows}")
        lengths, digests, dtype = self._looked(plan)
        if not sum(lengths):
            raise DataError(f"There are no rows in {self.found}.")
        shape = shape_of(sum(lengths), len(self.keep), dtype, compress=compress)
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        pieces = list(zip(starts, lengths, digests, strict=True))
        plan = put_plan(self.aside, WriteBlock.follows, {**about, "shape": astuple(shape), "pieces": pieces})
        write, join = WriteBlock(self.aside, "", plan), Join(self.aside, "", plan)
        require_space(self.aside, shape, shape.rows - sum(lengths[unit] for unit in write.finished()))
        write.run(len(lengths), self.run)
        join.run(join.units, self.run)
        return shape

    def _looked(self, plan: str) -> tuple[list[int], list[str | None], str]:
        """Return rows and digest of every block, and the type of all."""
        lengths, dtype = self.found.lengths, self.found.dtype
        if lengths is not None and dtype is not None:
            return list(lengths), [None] * len(lengths), dtype
        look, count = LookAtBlock(self.aside, "", plan), len(self.blocks)
        look.run(count, self.run)
        said = [look.found(unit) for unit in range(count)]
        kinds = [np.dtype(kind) for rows, kind, _ in said if rows] or [np.dtype(np.uint8)]
        return [rows for rows, _, _ in said], [digest for _, _, digest in said], np.result_type(*kinds).name


class LookAtBlock(Step):
    """Finds rows, type and digest of a block."""

    name, label, follows = "look", "Surveying blocks", "blocks"

    def do(self, unit: int, hands: Any) -> Any:
        """Look at one block."""
        seen = _Seen()
        kinds = {piece.dtype for piece in seen.pieces(hands.block, unit, self.planned)}
        return [seen.rows, np.result_type(*kinds or {np.dtype(np.uint8)}).name, seen.digest]


class WriteBlock(OfPieces):
    """Writes the chunks within a block, and fragments at its ends."""

    name, label = "write", "Ingesting"

    def do(self, unit: int, hands: Any) -> Any:
        """Write one block."""
        plan, shape = self.planned, self.shape
        first, rows, digest = plan["pieces"][unit]
        writer, seen = RowsWriter(self.aside, shape, first, first + rows), _Seen()
        for piece in seen.pieces(hands.block, unit, plan):
            if seen.rows > rows or not fits(piece, np.dtype(shape.dtype)):
                raise _changed(unit, plan)
            writer.append(piece)
        if seen.rows != rows or (digest is not None and seen.digest != digest):
            raise _changed(unit, plan)
        writer.flush()
        self.aside.flush(writer.keys)


class _Seen:
    """What passes of a block."""

    def __init__(self) -> None:
        self.rows, self._digest = 0, blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """Digest of all rows, hexadecimal."""
        return self._digest.hexdigest()

    def pieces(self, block: Any, unit: int, plan: Any) -> Iterator[Rows]:
        """Yield the rows of a block, each held to what a table may hold."""
        where = f"Block {unit} (counting from 0) of {plan['table']}"
        layout = Layout.unpacked(plan["layout"])
        for piece in pieces_of(block, where, layout):
            if layout.schema is None:  # else what is not finite was refused, or its row is dropped
                require_finite(where, self.rows, piece, layout.names, CURE)
            self._digest.update(piece.dtype.name.encode())
            self._digest.update(piece.data)
            self.rows += len(piece)
            yield piece


def _changed(unit: int, plan: Any) -> DataError:
    return DataError(
        f"Block {unit} (counting from 0) of {plan['table']} has other rows than were announced or found before. Its "
        "graph must compute the same each time: seed what is random, or write the collection to files first."
    )
