"""Files -> rows.zarr: the source is surveyed, then each task writes whole chunks of the table, or nothing appears.

Memory stays at a few blocks of about 8 MiB, whatever the size of the files. Rows are stored in the narrowest type that
holds the values as they are; NaN, infinities and missing values are refused, by file and row, because the later steps
must not fail on a row's content.

A task reads the fragments that hold the rows of its chunks, so a fragment on a border is read twice. The chunks are the
same whoever writes them. If the process dies, the same ingest goes on with the chunks that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from dpdist._util.parallel import available_cores
from dpdist._util.progress import Steps
from dpdist._util.text import counted, listed, random_token
from dpdist._version import __version__
from dpdist.errors import DataError, UsageError
from dpdist.ingest import survey
from dpdist.ingest.readers.base import (
    AskError,
    Choices,
    Places,
    UncutError,
    changed,
    fits,
    require_exact,
    schema_says_columns,
)
from dpdist.ingest.readers.source import Entry, Source
from dpdist.ingest.remote import location_of
from dpdist.ingest.sources import Opener, SourceLocation, Sources, digest_of, opened_sources, origin_of, state_of
from dpdist.ingest.survey import Job, Part, Run, SourceSurvey
from dpdist.naming import parameter
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows.dataset import RowsTable, head_of, open_ingested, require_space, shape_of
from dpdist.rows.persons import Watch
from dpdist.rows.schema import Schema
from dpdist.rows.table import Shape
from dpdist.rows.units import UNIT_BYTES, Digests, KeptRows, Numbers, Unit, among, kept_rows, whole_numbers
from dpdist.rows.writing import RowsWriter
from dpdist.storage import atomic
from dpdist.storage.arrays import CHECKSUM_BYTES, ROOT, attributes_of
from dpdist.storage.store import AnyStore, Store, store_at

LEFT_OUT = "Rows left out beyond these:"  # how a sentence begins that tells a number of rows, which may be private
LARGE = 256 << 20  # bytes of a source from which on workers are worth their start
WORK = "work"  # prefix of what a table has beside its chunks until it is complete
_KEPT = f"{WORK}/kept"  # a bit for every row of the sources, where not all are kept
_SECRET, _SECRET_BYTES = f"{WORK}/secret", 64


def ingest(
    source: SourceLocation,
    target: AnyStore,
    *,
    budget: PrivacyLoss | None = None,
    columns: Sequence[str] | None = None,
    compress: bool = False,
    progress: Steps | None = None,
    ledger_id: str | None = None,
    period: str | None = None,
    unit: Unit | None = None,
    watch: Watch | None = None,
    choices: Choices = Choices(),  # noqa: B008 - frozen
    say: Callable[[str], None] | None = None,
    elsewhere: Any = None,
) -> RowsTable:
    """Write files of rows into a new rows.zarr; elsewhere are the workers that may be asked."""
    target = store_at(target)
    target.require_new("rows")
    named = unit
    if choices.schema is not None:
        unit = _of_schema(choices.schema, columns, unit, period)
    try:
        with opened_sources(source, target.scratch_folder, choices) as sources, ExitStack() as stack:
            states = [
                state_of(location_of(entry.location)) for entry in sources.entries
            ]  # before the origin: see _identity
            sizes = [survey.size_of(entry) for entry in sources.entries]
            if elsewhere is not None and not elsewhere.named and (available_cores() < 2 or sum(sizes) < LARGE):
                elsewhere = None
            origin, enter = None, stack.enter_context
            if period is not None:  # that it is of these files is remembered with the period, which is made in one go
                staging = enter(target.staged("rows", private=True)).absolute()
                elsewhere = None
            else:
                origin = origin_of(source, columns=columns, compress=compress, unit=named, choices=choices)
                staging = enter(target.staged("rows", resume=_identity(source, origin, states, budget))).absolute()
            head = partial(
                head_of, budget=budget, ledger_id=ledger_id, period=period, unit=unit, schema=choices.schema,
                origin=origin,
            )  # fmt: skip
            table = _Ingest(
                source,
                sources,
                sizes,
                choices,
                columns,
                unit,
                watch,
                staging,
                say or (lambda _: None),
                period is not None,
            )
            complete(staging, lambda: head(*table.written(states, elsewhere, progress, compress=compress)))
    except AskError as error:
        question = error.asked(source, target)
    else:
        return open_ingested(target)
    raise DataError(question)


def _of_schema(schema: Schema, columns: Sequence[str] | None, unit: Unit | None, period: str | None) -> Unit | None:
    if columns is not None:
        raise schema_says_columns()
    if period is None and unit is not None:
        raise UsageError(
            'The schema says whose row it is: kind = "privacy unit", and max_rows.', parameter="privacy_unit"
        )
    if period is None or unit == schema.unit:
        return schema.unit
    if unit is None or schema.unit is None or replace(unit, max_periods=None) != schema.unit:
        raise UsageError(
            "The schema says whose row it is otherwise than the folder of periods. Begin another folder.",
            parameter="schema",
        )
    return unit


def require_same_origin(rows: Store, origin: Mapping[str, object]) -> None:
    """Refuse to take what stands at a place for the table that would be ingested."""
    attributes = attributes_of(rows)
    if attributes is not None and attributes.get("origin") == origin:
        return
    if attributes is None:
        raise DataError(f"{rows} exists already, and was not made by dpdist. Choose another place for the rows.")
    if "collection" in origin:
        raise DataError(
            f"{rows} exists already, and was not ingested from this collection with these options, as far as Dask can "
            "tell: a graph that it cannot compare has another name each time that it is made. Open the rows that are "
            "there with dpdist.open_rows, or choose another place."
        )
    raise DataError(
        f"{rows} exists already, and was not ingested from these files, as they are now, with these options. "
        "Choose another place for the rows."
    )


def _identity(
    source: SourceLocation, origin: dict[str, object], states: Sequence[str], budget: PrivacyLoss | None
) -> bytes:
    """Return by what an ingest that goes on after a process has died is known to be the same.

    The states are those that the end of this ingest is held against. What changes between them and the origin is found
    then; the other way round, chunks could be of another state.
    """
    location = str(source.absolute() if isinstance(source, Path) else source.address)
    declared = None if budget is None else budget.to_json()
    return digest_of([__version__, location, origin, states, declared]).encode()


def complete(staging: Store, build: Callable[[], bytes]) -> None:
    """Complete a table: write its rows, then its head, the last of its objects, and remove what was beside them."""
    if not staging.exists(ROOT):
        staging.put(ROOT, build())
        staging.flush([ROOT])
    staging.drop(WORK)


@contextmanager
def writing() -> Iterator[None]:
    """Turn what a disk says on a worker into a DataError."""
    fault = None
    try:
        yield
    except OSError as error:
        fault = error.strerror
    if fault is not None:
        raise DataError(
            f"Writing the rows on a worker failed: {fault}. Nothing was left behind; mend it and try again."
        )


def secret_of(staging: Store) -> bytes:
    """Return what keys whatever is chosen of privacy units: the same until the table is complete, and then gone."""
    if not staging.exists(_SECRET) or len(staging.get(_SECRET)) != _SECRET_BYTES:
        staging.put(_SECRET, (random_token() + random_token()).encode("ascii")[:_SECRET_BYTES])
        staging.flush([_SECRET])
    return staging.get(_SECRET)


@dataclass(frozen=True)
class _Ingest:
    """The rows of a table that is built; see :func:`ingest`."""

    source: SourceLocation
    sources: Sources
    sizes: Sequence[int]
    choices: Choices
    columns: Sequence[str] | None
    unit: Unit | None
    watch: Watch | None
    staging: Store
    say: Callable[[str], None]
    may_be_empty: bool

    def written(
        self, states: Sequence[str], elsewhere: Any, progress: Steps | None, *, compress: bool
    ) -> tuple[Shape, tuple[str, ...]]:
        """Write all rows; return the shape of the table, and the names of its columns."""
        entries, schema = self.sources.entries, self.choices.schema
        with ExitStack() as stack:
            remote: list[Run] = []

            secret_of(self.staging)  # as long as it is there, the table is built
            rows = done = 0

            def report_rows(count: int) -> None:
                nonlocal done
                done += count
                if progress is not None and rows:
                    progress(done, rows)

            def run(job: Job, units: Sequence[Any]) -> list[Any]:
                if elsewhere is None or len(units) < 2:
                    return [job(self.sources.opener, unit, report_rows) for unit in units]
                if not remote:
                    remote.append(stack.enter_context(elsewhere.connected(self.staging, self.choices)))
                return remote[0](job, units)

            columns, unit = (self.columns, self.unit) if schema is None else (schema.features, None)
            labels = self._labels()
            result = survey.survey_source(
                self.source, self.sources, columns, run,
                sizes=self.sizes, unit=None if labels else unit, may_be_empty=self.may_be_empty,
            )  # fmt: skip
            if self.unit is None:
                survey.require_unique_samples(self.sources, result.filled)
            selection = None if self.unit is None else self._select_rows(result, self.unit, labels)
            rows = result.rows if selection is None else selection.count
            self._report(result, result.rows - rows)
            shape = shape_of(rows, len(result.names), result.dtype.name, compress=compress)
            existing = existing_chunks(self.staging, shape)
            high = shape.chunk_rows
            require_space(self.staging, shape, rows - sum(min(high, rows - index * high) for index in existing))
            units = write_tasks(result.parts, shape, selection, survey.PIECE if elsewhere is not None else None)
            if elsewhere is not None and len(units) == 1 and rows * shape.row_bytes > survey.PIECE:
                self.say(
                    f"{self.source} cannot be read in parts: one process reads it. Files beside one another can be."
                )
            units = [unit for unit in units if not existing.issuperset(range(unit.first, unit.stop))]
            run(
                Write(entries, states, self.staging, shape, result.keep, result.names, existing, selection is not None),
                units,
            )
        # which rows of a unit come first was found in an earlier pass: other files would break the bound M
        for entry, state in zip(entries, states, strict=True):
            if state_of(location_of(entry.location)) != state:
                raise changed(entry.shown)
        return shape, result.names

    def _report(self, result: SourceSurvey, left_out: int) -> None:
        if result.guesses:
            first, *other_guesses = result.guesses
            self.say(first + (f" So is that of {counted(len(other_guesses), 'other file')}." if other_guesses else ""))
        head, schema = result.head, self.choices.schema
        if schema is not None and schema.dropping:
            self.say(
                f"Rows that lack {listed(schema.dropping)} are dropped: a release of these rows takes "
                f"{parameter('scale', 'private')} or a public {parameter('centre')}."
            )
        if self.unit is not None:
            limit = counted(self.unit.max_rows, "row")
            self.say(f"Whoever is named by {self.unit.column} is protected with {limit} at most.")
            if not self.may_be_empty:
                self.say(f"{LEFT_OUT} {left_out}.")
        elif set(head.labels) - set(head.samples):
            named = survey.units_named(head)
            self.say(f"Each row is protected by itself, as one person's; another unit is named by {named}.")

    def _select_rows(self, result: SourceSurvey, unit: Unit, labels: Sequence[str]) -> KeptRows:
        """Find the rows that are kept of each privacy unit, and put them aside."""
        rows, scratch_dir, watch = result.rows, self.staging.scratch_folder, self.watch
        atomic.require_space(scratch_dir, UNIT_BYTES * rows, "numbers of privacy units")
        key, schema = secret_of(self.staging), self.choices.schema
        column = None if schema is not None or labels else result.head.names.index(unit.column)
        units = self._units(result.filled, key if watch is None else watch.key, labels, column)
        if watch is not None:
            units = watch.watched(units, rows, len(labels) if schema is None else len(schema.unit_columns))
        selection = kept_rows(units, rows, unit, scratch_dir, key)
        if watch is not None:
            watch.leave_out(selection)
        self.staging.put(_KEPT, selection.bits)
        self.staging.flush([_KEPT])
        return selection

    def _units(
        self, filled: Sequence[int], key: bytes, labels: Sequence[str], column: int | None
    ) -> Iterator[Numbers | Digests]:
        """Yield the privacy unit of every row, in order: a number in a column, or a digest under a key."""
        for number in filled:
            with self.sources.named(number) as source:
                rows, row = source.units(key, labels) if column is None else source.rows((column,)), 0
                with closing(rows):
                    for block in rows:
                        if column is None:
                            yield np.ascontiguousarray(block).view("S16")[:, 0]
                        else:
                            yield whole_numbers(source.path, row, block[:, 0])
                        row += block.shape[0]

    def _labels(self) -> tuple[str, ...]:
        """Return the labels beside the rows that say whose they are; none where a column or a schema does."""
        if self.unit is None or self.choices.schema is not None:
            return ()
        first, head = survey.first_head(self.sources)
        requested = tuple(part.strip() for part in self.unit.column.split(","))
        if not head.labels or self.unit.column in head.names:
            if set(requested) <= set(head.labels):
                raise UsageError(
                    f"{self.unit.column} is a column of {self.sources.entries[first].shown}, and a label of its rows "
                    "too: rename the column.",
                    parameter="privacy_unit",
                )
            return ()
        for number, entry in enumerate(self.sources.entries):
            with self.sources.named(number) as source:
                labels = source.head.labels
            if unknown := [label for label in requested if label not in labels]:
                raise UsageError(
                    f"There is no {listed(unknown)} in {entry.shown} that says whose row it is. There are: "
                    f"{listed(labels)}.",
                    parameter="privacy_unit",
                )
        return requested


def existing_chunks(staging: Store, shape: Shape) -> frozenset[int]:
    """Return the chunks that an ingest that died has written; one whose checksum differs is none."""
    sound = set()
    for key, _ in staging.list("c"):
        content = staging.get(key)
        stored, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
        if stored and google_crc32c.value(stored).to_bytes(CHECKSUM_BYTES, "little") == checksum:
            sound.add(int(key.split("/")[1]))
    return frozenset(index for index in sound if index * shape.chunk_rows < shape.rows)


class WriteTask(NamedTuple):
    """Chunks that one task writes."""

    first: int  # number of the first chunk
    stop: int  # and of that behind the last one
    target: int  # the first row of the parts, in the table
    row: int  # and among the rows of all sources
    parts: list[Part]  # fragments that hold the rows; of the first and the last perhaps not all


def write_tasks(parts: Sequence[Part], shape: Shape, selection: KeptRows | None, size: int | None) -> list[WriteTask]:
    """Cut the chunks of a table into units of about so many bytes of rows; None: one unit."""
    high, chunks = shape.chunk_rows, -(-shape.rows // shape.chunk_rows)
    rows = starts = np.cumsum([0, *(part.rows for part in parts)])
    if selection is not None:
        counts = [selection.counted(int(row), part.rows) for row, part in zip(rows, parts, strict=False)]
        starts = np.cumsum([0, *counts])
    ends = [len(parts)]
    if size is not None:
        groups = survey.grouped(parts, [part.rows * shape.row_bytes for part in parts])
        ends = np.cumsum([len(group) for group in groups]).tolist()
    units, first = [], 0
    for end in ends:
        stop = chunks if end == len(parts) else -(-int(starts[end]) // high)
        if stop <= first:
            continue
        begin, last = first * high, min(stop * high, shape.rows)
        a = int(np.searchsorted(starts, begin, "right")) - 1
        b = int(np.searchsorted(starts, last, "left"))
        units.append(WriteTask(first, stop, int(starts[a]), int(rows[a]), _merged(parts[a:b])))
        first = stop
    return units


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Put fragments of one file that follow one another together: it is opened once for them."""
    merged: list[Part] = []
    for part in parts:
        before = merged[-1] if merged else None
        if before and before.source == part.source and before.fragment and part.fragment:
            fragment = (before.fragment[0], part.fragment[1])
            merged[-1] = before._replace(fragment=fragment, rows=before.rows + part.rows)
        else:
            merged.append(part)
    return merged


@dataclass(frozen=True)
class Write:
    """Writes chunks."""

    entries: Sequence[Entry]
    states: Sequence[str]
    staging: Store
    shape: Shape
    keep: Places
    names: Sequence[str]
    existing: frozenset[int]
    filtered: bool
    name = "write"
    label = "Ingesting"

    def __call__(self, opener: Opener, task: WriteTask, on_rows: Callable[[int], object]) -> None:
        """Write the chunks of a unit that are not there.

        Who was given up writes on: into an object store, where nobody can keep him from it. So he looks whether the
        table is complete, and whether a file changed, before he writes, and afterwards whether it is still built.
        """
        if self.staging.exists(ROOT):
            return
        try:
            self._write(opener, task, on_rows)
        finally:
            if not self.staging.exists(_SECRET) and not self.staging.exists(ROOT):
                self.staging.drop("")

    def _write(self, opener: Opener, task: WriteTask, on_rows: Callable[[int], object]) -> None:
        writer = RowsWriter(self.staging, self.shape, task.first, task.stop, self.existing)
        target, row = task.target, task.row
        for part in task.parts:
            count = part.rows if not self.filtered else int(self._kept_mask(row, part.rows).sum())
            if not writer.lacks(target, target + count):
                on_rows(writer.skip(target + count))
            else:
                with opener.named(self.entries[part.source]):
                    self._copy(opener, part, target, row, writer, on_rows)
            target, row = target + count, row + part.rows
        self.staging.flush(writer.keys)

    def _copy(
        self, opener: Opener, part: Part, target: int, row: int, writer: RowsWriter, on_rows: Callable[[int], object]
    ) -> None:
        source, row_count = opener.opened(self.entries[part.source]), 0
        dtype = np.dtype(self.shape.dtype)
        writer.before = self._change_check(source, part)
        try:
            with closing(source.rows(self.keep, part.fragment)) as blocks:
                for block in blocks:
                    if source.choices.schema is None:  # else what is not finite was refused, or its row is dropped
                        require_exact(source.path, part.first + row_count, block, dtype, self.names)
                    if row_count + block.shape[0] > part.rows or not fits(block, dtype):
                        raise changed(source.path)
                    selected = block[self._kept_mask(row + row_count, block.shape[0])] if self.filtered else block
                    on_rows(writer.append(selected, target))
                    row_count, target = row_count + block.shape[0], target + len(selected)
                    if writer.full:
                        return
        except UncutError:
            raise changed(source.path) from None
        if row_count != part.rows:
            raise changed(source.path)

    def _change_check(self, source: Source, part: Part) -> Callable[[], None]:
        """Return what raises when a file is not any more what it was."""
        location = location_of(self.entries[part.source].location)
        look: Callable[[], object] = partial(state_of, location)
        before: object = self.states[part.source]
        if (
            not isinstance(location, Path) or location.is_dir()
        ):  # what a store says may be another text with another library
            look = look if part.fragment is None else partial(source.state, *part.fragment)
            before = look()

        def require_same() -> None:
            if look() != before:
                raise changed(source.path)

        return require_same

    def _kept_mask(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        first = start // 8
        return among(self.staging.get_range(_KEPT, first, -(-(start + count) // 8) - first), start - 8 * first, count)
