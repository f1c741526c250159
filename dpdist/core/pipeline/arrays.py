"""From rows in memory to a private release, on the road of every other release.

Rows of privacy units are first sorted, as by an ingest (:mod:`dpdist.core.ingest.together`), because a unit must not be
divided: into temporary files without a name, which end with the process.

The rows are a table (:mod:`dpdist.core.moment.arrays`), and its ledger is in memory (:mod:`dpdist.core.ledger.memory`);
the register of this process decides what its rows afford (:mod:`dpdist.core.ledger.register`). The same release of the
same rows is returned again, and not charged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from dpdist.core.errors import DataError, RefusedError
from dpdist.core.frames import is_a
from dpdist.core.ingest.collection import whole_rows
from dpdist.core.ingest.together import Gathered
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.memory import MemoryStorage
from dpdist.core.ledger.register import REGISTER, Asked, Budget, Register
from dpdist.core.ledger.state import Part, State
from dpdist.core.mechanisms.base import IndependentEntries
from dpdist.core.moment.arrays import (
    ArrayTable,
    Survey,
    Surveyor,
    add_surveys,
    chunk_references,
    chunks_of,
    known_rows,
)
from dpdist.core.moment.histograms import ColumnCounting
from dpdist.core.moment.layout import layout_of
from dpdist.core.moment.total import draw_key, piece_rows
from dpdist.core.naming import parameter
from dpdist.core.parallel import available_cores, threaded
from dpdist.core.pipeline.clip_norm import draw_stages
from dpdist.core.pipeline.release import compute
from dpdist.core.privacy import checks
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release import archive, stages
from dpdist.core.release.advice import choice_refused, count_refused, require_centre_of_dropped
from dpdist.core.release.artefact import Heading, Release
from dpdist.core.release.bounds import Dimensions, bound_of, by_schema, require_schema
from dpdist.core.release.opening import open_release
from dpdist.core.release.plan import Plan, has_centre, planned, proved
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.release.transaction import commit_once
from dpdist.core.release.trusted import Answer, MomentTransaction, stands_at
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.dataset import partitions, shape_of
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import UNITS
from dpdist.core.rows.unit_rows import largest_unit
from dpdist.core.rows.units import Digests, Numbers, Unit
from dpdist.core.rows.writing import RowsWriter
from dpdist.core.runtime.checks import forbid_core_dumps
from dpdist.core.runtime.cluster import Cluster, computed
from dpdist.core.runtime.local import Executor, LocalExecutor
from dpdist.core.storage.nameless import NamelessStore
from dpdist.core.storage.store import FolderStore, Store

MISSING_CURE = (
    "Fill such values by a public rule, or pass missing='centre' (with scale='private' or a public centre) to replace "
    "such cells by the centre of their column."
)
_X = FolderStore(Path("X"))  # the name of the rows; nothing is stored there
_WORTH_A_THREAD = 1 << 20
"""Values that justify starting another thread."""


@dataclass(frozen=True)
class Groups:
    """The privacy unit of each row."""

    name: str
    values: Numbers | Digests  # (n,)

    @property
    def unit(self) -> Unit:
        """The unit: all its rows are kept."""
        return Unit(self.name)

    @property
    def largest(self) -> int:
        """The number of rows of the largest unit. Private."""
        return int(np.unique(self.values, return_counts=True)[1].max())

    def digest(self, order: tuple[int, int], key: bytes) -> str:
        """Return a keyed digest of the units of all rows, and of the order of the rows."""
        content = b"".join(word.to_bytes(8, "little") for word in order) + self.values.tobytes()
        return blake2b(content, key=key[:64], digest_size=16).hexdigest()


@dataclass(frozen=True)
class ArrayRows:
    """Rows in memory, or read from it in slices, and what is public of them."""

    data: Any  # (n, d): a Dask array, a NumPy array, a sparse matrix, or an object whose slices are one of the latter
    names: tuple[str, ...]
    dtype: str
    missing: bool  # whether NaN and infinity count as the centre
    schema: Schema | None = None  # that made them; the guarantee does not depend on it
    groups: Groups | None = None  # the privacy unit of each row; None: each row is one

    @property
    def lazy(self) -> bool:
        """Whether they are a Dask array, whose blocks are the chunks."""
        return is_a(self.data, "dask", "Array")

    def require_groups(self, rows: int) -> None:
        """Refuse another number of privacy units than of rows."""
        if self.groups is not None and self.groups.values.size != rows:
            raise DataError("groups and X have different lengths: pass a privacy unit for each row.")

    def survey(self, bound: RowBound, key: bytes) -> Survey:
        """Read all rows once."""
        surveyor = Surveyor(bound, key)
        if self.lazy:
            from dpdist.core.runtime.collections import reduce_blocks  # noqa: PLC0415 - optional dependency

            nbytes = 1 << 20  # of fingerprints
            found: Survey = reduce_blocks(whole_rows(self.data), surveyor.of_block, add_surveys, nbytes)
            return found
        chunks = chunks_of(self.data)
        values = self.data.shape[0] * self.data.shape[1]
        threads = max(1, min(available_cores(), values // _WORTH_A_THREAD, len(chunks)))
        runs = [chunks[run.start : run.stop] for run in partitions(len(chunks), threads)]
        with threaded(threads) as thread_map:
            surveys: list[Survey] = list(thread_map(partial(surveyor.of_chunks, self.data), runs))
        return reduce(add_surveys, surveys)

    def executor(self) -> Executor:
        """Return what computes on the rows."""
        if self.lazy and self.groups is None:
            from dpdist.core.runtime.collections import BlocksExecutor  # noqa: PLC0415 - optional dependency

            return BlocksExecutor(whole_rows(self.data))
        return LocalExecutor()


@dataclass(frozen=True)
class ArrayTransaction(MomentTransaction):
    """A release of rows in memory, which is kept as packed bytes and published nowhere."""

    ledger: MemoryStorage
    won: list[Part] = field(default_factory=list)  # what was committed by this call

    @property
    def place(self) -> str:
        """Nowhere."""
        return ""

    def commit(self, drawn: Callable[[str], Iterable[bytes]]) -> None:
        """Draw and commit once."""
        if commit_once(Ledger(self.ledger), self.release_id, drawn):
            self.won.append(self.part)

    def reserve(self) -> State:
        """Charge the release; no target can be in its way."""
        return self.charge(self.account())

    def stored(self, heading: Heading, answer: Answer) -> Iterator[bytes]:
        """Yield the bytes that are committed."""
        return archive.packed(heading, answer)

    def published(self) -> Release:
        """Return the committed release; idempotent."""
        with self.committed() as content:
            return archive.unpacked_release(content.read())


@dataclass(frozen=True)
class Paying:
    """Who pays for a release of rows in memory."""

    limit: PrivacyLoss | None = None  # of the joint cost of these rows; None: the account, or the cost of the release
    account: Budget | None = None


def release_array(
    rows: ArrayRows,
    request: ReleaseRequest,
    paying: Paying,
    *,
    target: Store | None = None,
    on_survey: Callable[[Survey], None] = lambda _: None,
    register: Register = REGISTER,
) -> tuple[Release, bool]:
    """Return the release of rows in memory, and whether it was drawn now; ``target`` is where it will be published."""
    forbid_core_dumps()  # this process will hold the exact total in memory
    known = known_rows(rows.data)
    if known == 0:
        raise DataError("X has no rows, so there is nothing to release.")
    if request.for_reproduction:
        raise RefusedError("Rows in memory cannot be released for reproduction: ingest them, and use the command line.")
    schema, columns = rows.schema, len(rows.names)
    require_schema(request, schema)
    size = Dimensions(columns, schema=schema, together=rows.groups is not None)
    if known is not None:
        rows.require_groups(known)
    early = known is not None and register.all_under(request.neighbours)  # a private n is printed nowhere
    if known is not None and early:
        _require_possible(_plan(request, size, known), known)  # before a row is read
    survey = _surveyed(rows, request, size, register.key)
    plan = _plan(request, size, survey.rows)
    if survey.rows > plan.bound.total_rows:
        raise DataError(
            f"X has more rows than 64-bit integers can sum at {plan.bound.grid_bits} grid bits. Pass a smaller "
            "grid_bits."
        )
    dataset = register.identity(survey.fingerprints, rows.dtype, rows.names)
    chunks = chunk_references(survey, None if rows.lazy else rows.data, missing=rows.missing)
    table = ArrayTable(
        rows=survey.rows, columns=columns, dtype=rows.dtype, chunk_rows=max(1, survey.rows), store=_X,
        dataset_id=dataset, names=rows.names, budget=None, schema=schema, missing=rows.missing,
        reference=chunks, chunked=chunks, variant=_variant(rows, survey.order, register.key),
        unit=None if rows.groups is None else rows.groups.unit,
    )  # fmt: skip
    require_centre_of_dropped(table.schema, centred=has_centre(plan))
    release_id = plan.release_id(table)
    unit = None if rows.groups is None else rows.groups.name
    asked = Asked(survey.fingerprints, dataset, release_id, paying.limit, paying.account, unit)
    charged = register.known(asked)
    if target is not None and stands_at(target, release_id):
        _require_own(target, release_id, charged)
    on_survey(survey)
    if charged is None:
        register.require_relation(asked, request.neighbours)
        if not early:
            _require_possible(plan, survey.rows)
        checks.warn(proved(plan.guarantee).loss, request.neighbours, survey.rows)
        charged = register.charge(
            asked, survey.rows, proved(plan.guarantee), lambda ledger: _transaction(plan, table, ledger).reserve()
        )
    return _drawn_once(rows, _transaction(plan, table, charged), register)


def _variant(rows: ArrayRows, order: tuple[int, int], key: bytes) -> str | None:
    """Return what distinguishes releases of the same rows: their schema, and the privacy unit of each row.

    Rows and units are compared in their order, as rows in another one belong to other units.
    """
    schema = None if rows.schema is None else rows.schema.digest
    return schema if rows.groups is None else f"{schema or ''} {rows.groups.digest(order, key)}"


@contextmanager
def _together(rows: ArrayRows, table: Any) -> Iterator[Any]:
    """Store the rows of privacy units together, for the time of their release, in files that have no name."""
    if rows.groups is None:
        yield table
        return
    shape = shape_of(table.rows, table.columns, table.dtype)
    store, start = NamelessStore(), 0
    with store.file, ExitStack() as stack:
        gathered = Gathered([rows.groups.values], shape, draw_key() + draw_key(), store.path, stack)
        for batch in _batches(rows, table):
            gathered.append(batch, start)
            start += len(batch)
        store.put(UNITS, gathered.write(RowsWriter(store, shape), rows.groups.name))
        yield replace(table, store=store, reference=None, chunk_rows=shape.chunk_rows)


def _batches(rows: ArrayRows, table: ArrayTable) -> Iterator[Any]:
    """Yield all rows in their order, as the survey found them; the blocks of a Dask array are computed one by one."""
    tables: Iterable[ArrayTable] = [table] * table.chunks
    if rows.lazy:
        blocks = whole_rows(rows.data).blocks.ravel()
        tables = (table.of_block(number, computed(block)) for number, block in enumerate(blocks))
    for number, part in enumerate(tables):
        reader = ChunkReader(part, piece_rows(table.columns))
        yield from reader.read(number)


def _transaction(plan: Plan, table: ArrayTable, ledger: MemoryStorage) -> ArrayTransaction:
    return ArrayTransaction(plan, replace(table, ledger_id=Ledger(ledger).ledger_id), ledger, _X)


def _require_own(target: Store, release_id: str, charged: MemoryStorage | None) -> None:
    """Refuse a target with a release of this name that was not drawn from these rows in this process."""
    head = open_release(target).ledger_head
    if charged is None or head is None or not Ledger(charged).remembers(release_id, head):
        raise DataError(
            f"{target} contains the release {release_id} of other rows, or of another process. Nothing was drawn or "
            f"charged. Choose another path, or another {parameter('name')}."
        )


def _surveyed(rows: ArrayRows, request: ReleaseRequest, size: Dimensions, key: bytes) -> Survey:
    """Read all rows once, and refuse those that cannot be released."""
    survey = rows.survey(bound_of(by_schema(request, size), size, RowBound.grid_bits), key)
    if not survey.rows:
        raise DataError("X has no rows, so there is nothing to release.")
    if not survey.finite and not rows.missing:
        raise DataError(f"X contains NaN or infinity. {MISSING_CURE} Nothing was released or charged.")
    rows.require_groups(survey.rows)
    if rows.groups is not None and rows.groups.largest > largest_unit(size.columns):
        raise DataError(
            f"A {rows.groups.name} has more than {largest_unit(size.columns)} rows, too many to be bounded together in "
            "memory. Leave some of them out of X and groups. Nothing was charged."
        )
    return survey


def _plan(request: ReleaseRequest, size: Dimensions, rows: int) -> Plan:
    """Plan a release of so many rows, which the plan does not use if their number is private."""
    return planned(request, replace(size, rows=rows if request.neighbours is Neighbours.REPLACE_ONE else None))


def _require_possible(plan: Plan, rows: int) -> None:
    """Refuse what cannot work for so many rows, before any is charged."""
    request, size = plan.request, plan.dimensions
    if "scale" in plan.stages:
        stages.require_seen(request, ColumnCounting.of(size.columns, size.schema), rows, together=size.together)
    refused = choice_refused(request, size.columns, rows, together=size.together) or count_refused(plan, rows)
    if refused:
        raise RefusedError(f"{refused} Nothing was spent.")
    loss = proved(plan.guarantee).loss
    checks.require_small_delta(loss, request.neighbours, rows, accepted=request.accept_large_delta)


def _drawn_once(rows: ArrayRows, transaction: ArrayTransaction, register: Register) -> tuple[Release, bool]:
    """Draw a charged release unless it was drawn; return it, and whether it was drawn now."""
    plan = transaction.plan
    if transaction.reserve() in {State.RESERVED, State.STAGED}:
        executor = rows.executor()
        workers, threads, memory = executor.resources()
        with _together(rows, transaction.table) as table:
            following = replace(transaction, table=table)
            layout = layout_of(
                table, plan.bound, workers, memory, threads=threads, fewer_threads=executor.limits_threads,
                divisible=isinstance(plan.moment, IndependentEntries),
            )  # fmt: skip
            if plan.stages:
                draw_stages(executor, following)
                following = replace(following, realised=stages.resolved(following).realised)
            compute(executor, following, Cluster(), layout)
    release, fresh = transaction.published(), Part.RELEASE in transaction.won
    if fresh:
        register.keep(transaction.ledger)
    return release, fresh
