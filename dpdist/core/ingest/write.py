"""Files -> rows.zarr: the source is surveyed, then tasks write whole chunks; the table appears complete or not at all.

Memory stays at a few blocks of about 8 MiB for files of any size. Rows are stored in the narrowest type that holds the
values exactly. NaN, infinities and missing values are refused by file and row, because later steps must not fail on
the content of a row.

A task reads the fragments that hold its rows, so a fragment on a boundary is read twice. Chunks do not depend on who
writes them. If the process dies, the same ingest resumes with the existing chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from dpdist.core._version import __version__
from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest import copies, survey
from dpdist.core.ingest.readers.base import (
    ChoiceRequiredError,
    Choices,
    Places,
    Rows,
    UncutError,
    changed,
    fits,
    require_exact,
    schema_says_columns,
)
from dpdist.core.ingest.readers.source import Entry, Source
from dpdist.core.ingest.sources import Opener, SourceLocation, Sources, digest_of, opened_sources, origin_of, state_of
from dpdist.core.ingest.survey import Job, Part, Run, SourceSurvey
from dpdist.core.ingest.together import Gathered
from dpdist.core.naming import parameter
from dpdist.core.parallel import available_cores
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.progress import Steps
from dpdist.core.rows.automatic import by_option, in_schema, row_is_unit
from dpdist.core.rows.dataset import RowsTable, head_of, open_ingested, require_space, shape_of
from dpdist.core.rows.persons import Watch
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import UNITS, Shape
from dpdist.core.rows.units import UNIT_BYTES, Digests, KeptRows, Numbers, Unit, among, kept_rows, whole_numbers
from dpdist.core.rows.writing import RowsWriter
from dpdist.core.storage import atomic
from dpdist.core.storage.arrays import CHECKSUM_BYTES, ROOT, attributes_of
from dpdist.core.storage.store import AnyStore, Store, store_at
from dpdist.core.text import OfRows, counted, listed, random_token

LARGE = 256 << 20  # bytes of a source from which workers pay off
WORK = "work"  # prefix of temporary objects, until the table is complete
_KEPT = f"{WORK}/kept"  # one bit per row of the sources, if some are left out
SECRET, _SECRET_BYTES = f"{WORK}/secret", 64


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
    identity: Callable[[], tuple[str, str]] | None = None,
) -> RowsTable:
    """Write files of rows into a new rows.zarr; ``elsewhere`` offers workers, ``identity`` is called last."""
    target = store_at(target)
    target.require_new("rows")
    named = unit
    if choices.schema is not None:
        unit = _of_schema(choices.schema, columns, unit, period)
    try:
        with opened_sources(source, target.scratch_folder, choices) as sources, ExitStack() as stack:
            # before the origin: see _identity
            states = [state_of(entry.location) for entry in sources.entries]
            sizes = [survey.size_of(entry) for entry in sources.entries]
            origin, enter = None, stack.enter_context
            if period is not None:  # the period records its files, and is not resumed
                staging = enter(target.staged("rows", private=True)).absolute()
                elsewhere = None
            else:
                origin = origin_of(source, columns=columns, compress=compress, unit=named, choices=choices)
                staging = enter(target.staged("rows", resume=_identity(source, origin, states, budget))).absolute()
            head = partial(
                head_of, budget=budget, ledger_id=ledger_id, period=period, unit=unit, schema=choices.schema,
                origin=origin,
            )  # fmt: skip
            table = Ingest(
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

            def last() -> bytes:
                written = table.written(states, elsewhere, progress, compress=compress)
                return head(*written, identity=None if identity is None else identity())

            complete(staging, last)
    except ChoiceRequiredError as error:
        question = error.asked(source, target)
    else:
        return open_ingested(target)
    raise DataError(question)


def _of_schema(schema: Schema, columns: Sequence[str] | None, unit: Unit | None, period: str | None) -> Unit | None:
    if columns is not None:
        raise schema_says_columns()
    if period is None and unit is not None:
        raise UsageError(
            'The schema declares the privacy unit: kind = "privacy unit". Leave the option out.',
            parameter="privacy_unit",
        )
    if period is None or unit == schema.unit:
        return schema.unit
    if unit is None or schema.unit is None or replace(unit, max_periods=None) != schema.unit:
        raise UsageError(
            "The schema declares another privacy unit than the folder of periods. Begin another folder.",
            parameter="schema",
        )
    return unit


def require_same_origin(rows: Store, origin: Mapping[str, object]) -> None:
    """Refuse existing rows unless they have this origin."""
    attributes = attributes_of(rows)
    if attributes is not None and attributes.get("origin") == origin:
        return
    if attributes is None:
        raise DataError(f"{rows} exists already, and is not a table of dpdist. Choose another path for the rows.")
    if "collection" in origin:
        raise DataError(
            f"{rows} exists already, and was not ingested from this collection with these options, as far as Dask can "
            "tell: it cannot compare all graphs. Open the existing rows with dpdist.open_rows, or choose another path."
        )
    raise DataError(
        f"{rows} exists already, and was not ingested from these files in their current state with these options. "
        "Choose another path for the rows."
    )


def _identity(
    source: SourceLocation, origin: dict[str, object], states: Sequence[str], budget: PrivacyLoss | None
) -> bytes:
    """Return the identity of an ingest, which decides whether it resumes one that died."""
    # The states precede the origin and are compared again at the end, so a change in between is found.
    location = str(source.absolute() if isinstance(source, Path) else source.address)
    declared = None if budget is None else budget.to_json()
    return digest_of([__version__, location, origin, states, declared]).encode()


def complete(staging: Store, build: Callable[[], bytes]) -> None:
    """Write the rows, then the head as the last object, and remove temporary objects."""
    if not staging.exists(ROOT):
        staging.put(ROOT, build())
        staging.flush([ROOT])
    staging.drop(WORK)


@contextmanager
def writing() -> Iterator[None]:
    """Turn the OSError of a worker into a DataError."""
    fault = None
    try:
        yield
    except OSError as error:
        fault = error.strerror
    if fault is not None:
        raise DataError(
            f"Writing the rows on a worker failed: {fault}. Nothing was left behind. Resolve this and try again."
        )


def secret_of(staging: Store) -> bytes:
    """Return the key of choices per privacy unit; it is removed when the table is complete."""
    if not staging.exists(SECRET) or len(staging.get(SECRET)) != _SECRET_BYTES:
        staging.put(SECRET, (random_token() + random_token()).encode("ascii")[:_SECRET_BYTES])
        staging.flush([SECRET])
    return staging.get(SECRET)


@dataclass(frozen=True)
class Ingest:
    """An ingest in progress; see :func:`ingest`."""

    source: object  # its name in messages
    sources: Sources
    sizes: Sequence[int]
    choices: Choices
    columns: Sequence[str] | None
    unit: Unit | None
    watch: Watch | None
    staging: Store
    say: Callable[[str], None]
    may_be_empty: bool
    names: tuple[str, ...] | None = None  # of the columns of blocks, which may be equal; files may be copies

    def written(
        self, states: Sequence[str], elsewhere: Any, progress: Steps | None, *, compress: bool
    ) -> tuple[Shape, tuple[str, ...]]:
        """Write all rows; return the shape and column names of the table."""
        entries, schema = self.sources.entries, self.choices.schema
        elsewhere = elsewhere if self._pays(elsewhere) else None
        with ExitStack() as stack:
            remote: list[Run] = []

            secret_of(self.staging)  # marks the table as incomplete
            rows = done = 0

            def report_rows(count: int) -> None:
                nonlocal done
                done += count
                if progress is not None and rows:
                    progress(done, rows)

            def run(job: Job, tasks: Sequence[Any]) -> list[Any]:
                if elsewhere is None or len(tasks) < 2:
                    return [job(self.sources.opener, task, report_rows) for task in tasks]
                if not remote:
                    remote.append(stack.enter_context(elsewhere.connected(self.staging, self.choices)))
                return remote[0](job, tasks)

            columns, unit = (self.columns, self.unit) if schema is None else (schema.features, None)
            labels = self._labels()
            result = survey.survey_source(
                self.source, self.sources, columns, run,
                sizes=self.sizes, unit=None if labels else unit, may_be_empty=self.may_be_empty,
            )  # fmt: skip
            # copies of named rows are found by the names, and a privacy unit is bounded wherever its rows are
            compared = self.unit is None and not survey.require_unique_samples(self.sources, result.filled)
            if self.names is not None:
                result, compared = result._replace(names=self.names), False
            together = self.unit is not None and self.unit.max_rows is None
            selection = None if self.unit is None or together else self._select_rows(result, self.unit, labels)
            rows = result.rows if selection is None else selection.count
            self._report(result, result.rows - rows)
            shape = shape_of(rows, len(result.names), result.dtype.name, compress=compress)
            existing = existing_chunks(self.staging, shape)
            high = shape.chunk_rows
            require_space(self.staging, shape, rows - sum(min(high, rows - index * high) for index in existing))
            if together:
                self._write_together(result, labels, shape, states, existing, report_rows)
                self._require_unchanged(states)
                return shape, result.names
            tasks = write_tasks(result.parts, shape, selection, survey.PIECE if elsewhere is not None else None)
            if elsewhere is not None and len(tasks) == 1 and rows * shape.row_bytes > survey.PIECE:
                self.say(
                    f"{self.source} cannot be read in parts, so one process reads it. Several files are "
                    "read in parallel."
                )
            tasks = [task for task in tasks if not existing.issuperset(range(task.first, task.stop))]
            lengths = copies.of_equal_length(_kept_lengths(result.parts, selection), entries) if compared else {}
            write = Write(
                entries, states, self.staging, shape, result.keep, result.names, existing, selection is not None,
                frozenset(lengths),
            )  # fmt: skip
            marks = run(write, tasks)
            copies.require_none(
                lengths, [] if existing else marks, entries, partial(self._kept_blocks, result, selection),
                np.dtype(shape.dtype), write.weights,
            )  # fmt: skip
        self._require_unchanged(states)
        return shape, result.names

    def _require_unchanged(self, states: Sequence[str]) -> None:
        # an earlier pass read the privacy unit of each row: changed files would break its bound
        for entry, state in zip(self.sources.entries, states, strict=True):
            if state_of(entry.location) != state:
                raise changed(entry.shown)

    def _pays(self, elsewhere: Any) -> bool:
        """Whether to read on workers; if nobody named some, only a large source."""
        if elsewhere is None or elsewhere.named:
            return elsewhere is not None
        return available_cores() > 1 and sum(self.sizes) >= LARGE

    def _report(self, result: SourceSurvey, left_out: int) -> None:
        guesses, absent = result.said
        for text in absent:
            self.say(OfRows(text))
        if guesses:
            first, *other_guesses = guesses
            self.say(first + (f" So is that of {counted(len(other_guesses), 'other file')}." if other_guesses else ""))
        head, schema = result.head, self.choices.schema
        if schema is not None and (names := schema.uncentred):
            self.say(
                f"Missing values of {listed(names)} count as the centre: a release needs "
                f"{parameter('scale', 'private')} or a public {parameter('centre')}."
            )
        if self.unit is not None:
            kept = "all rows of each, which are protected together"
            if self.unit.max_rows is not None:
                kept = f"at most {counted(self.unit.max_rows, 'row')} each"
            self.say(f"The privacy unit is {self.unit.column}, with {kept}.")
            if not self.may_be_empty and self.unit.max_rows is not None:
                self.say(OfRows(f"Rows left out beyond these: {left_out}."))
        elif head.beside:
            named = survey.units_named(head)
            self.say(f"The privacy unit is the row. Declare another with {named}.")
        elif message := row_is_unit(self.source, head.asked, by_option if schema is None else in_schema, schema):
            self.say(message)

    def _kept_blocks(self, result: SourceSurvey, selection: KeptRows | None, number: int) -> Generator[Rows]:
        """Yield the kept rows of a file."""
        row = sum(part.rows for part in result.parts if part.source < number)
        with self.sources.named(number) as source, closing(source.rows(result.keep)) as blocks:
            for block in blocks:
                yield block if selection is None else block[selection.among(row, len(block))]
                row += len(block)

    def _write_together(
        self, result: SourceSurvey, labels: Sequence[str], shape: Shape, states: Sequence[str],
        existing: frozenset[int], on_rows: Callable[[int], object],
    ) -> None:  # fmt: skip
        """Write all rows in this process, those of each privacy unit together."""
        scratch_dir, key = self.staging.scratch_folder, secret_of(self.staging)
        atomic.require_space(scratch_dir, UNIT_BYTES * shape.rows, "numbers of privacy units")
        units = self._units(result.filled, key, labels, self._unit_column(result, labels))
        with ExitStack() as stack:
            gathered = Gathered(units, shape, key, scratch_dir, stack)
            write = Write(
                self.sources.entries, states, self.staging, shape, result.keep, result.names, existing, False,
                frozenset(),
            )  # fmt: skip
            write.copy(self.sources.opener, WriteTask(0, 0, 0, 0, _merged(result.parts)), gathered, on_rows)
            writer = RowsWriter(self.staging, shape, stored=existing)
            self.staging.put(UNITS, gathered.write(writer, "privacy unit" if self.unit is None else self.unit.column))
        self.staging.flush([*writer.keys, UNITS])

    def _unit_column(self, result: SourceSurvey, labels: Sequence[str]) -> int | None:
        """Return the index of the column of whole numbers that is the unit; None if digests are."""
        if self.unit is None or self.choices.schema is not None or labels:
            return None
        return result.head.names.index(self.unit.column)

    def _select_rows(self, result: SourceSurvey, unit: Unit, labels: Sequence[str]) -> KeptRows:
        """Choose the rows to keep of each privacy unit, and store the choice."""
        rows, scratch_dir, watch = result.rows, self.staging.scratch_folder, self.watch
        atomic.require_space(scratch_dir, UNIT_BYTES * rows, "numbers of privacy units")
        key, schema = secret_of(self.staging), self.choices.schema
        column = self._unit_column(result, labels)
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
        """Yield the privacy unit of every row: a number in a column, or a keyed digest."""
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
        """Return the labels that form the privacy unit; none if a column or schema does."""
        if self.unit is None or self.choices.schema is not None:
            return ()
        first, head = survey.first_head(self.sources)
        requested = tuple(part.strip() for part in self.unit.column.split(","))
        if not head.labels or self.unit.column in head.names:
            if set(requested) <= set(head.labels):
                raise UsageError(
                    f"{self.unit.column} is both a column and a row label of {self.sources.entries[first].shown}. "
                    "Rename the column.",
                    parameter="privacy_unit",
                )
            return ()
        for number, entry in enumerate(self.sources.entries):
            with self.sources.named(number) as source:
                labels = source.head.labels
            if unknown := [label for label in requested if label not in labels]:
                raise UsageError(
                    f"{entry.shown} has no row label {listed(unknown)}. There are: {listed(labels)}.",
                    parameter="privacy_unit",
                )
        return requested


def _kept_lengths(parts: Sequence[Part], selection: KeptRows | None) -> Counter[int]:
    """Return the number of kept rows of each file."""
    lengths, row = Counter[int](), 0
    for part in parts:
        lengths[part.source] += part.rows if selection is None else selection.counted(row, part.rows)
        row += part.rows
    return lengths


def existing_chunks(staging: Store, shape: Shape) -> frozenset[int]:
    """Return the intact chunks of an ingest that died."""
    sound = set()
    for key, _ in staging.list("c"):
        content = staging.get(key)
        stored, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
        if stored and google_crc32c.value(stored).to_bytes(CHECKSUM_BYTES, "little") == checksum:
            sound.add(int(key.split("/")[1]))
    return frozenset(index for index in sound if index * shape.chunk_rows < shape.rows)


class WriteTask(NamedTuple):
    """The chunks that a task writes."""

    first: int  # number of the first chunk
    stop: int  # number after the last chunk
    target: int  # index of the first row of the parts in the table
    row: int  # and in the rows of all sources
    parts: list[Part]  # fragments that hold the rows; first and last may hold others


def write_tasks(parts: Sequence[Part], shape: Shape, selection: KeptRows | None, size: int | None) -> list[WriteTask]:
    """Group the chunks of a table into tasks of about ``size`` bytes; None: one task."""
    high, chunks = shape.chunk_rows, -(-shape.rows // shape.chunk_rows)
    rows = starts = np.cumsum([0, *(part.rows for part in parts)])
    if selection is not None:
        counts = [selection.counted(int(row), part.rows) for row, part in zip(rows, parts, strict=False)]
        starts = np.cumsum([0, *counts])
    ends = [len(parts)]
    if size is not None:
        groups = survey.grouped(parts, [part.rows * shape.row_bytes for part in parts])
        ends = np.cumsum([len(group) for group in groups]).tolist()
    tasks, first = [], 0
    for end in ends:
        stop = chunks if end == len(parts) else -(-int(starts[end]) // high)
        if stop <= first:
            continue
        begin, last = first * high, min(stop * high, shape.rows)
        a = int(np.searchsorted(starts, begin, "right")) - 1
        b = int(np.searchsorted(starts, last, "left"))
        tasks.append(WriteTask(first, stop, int(starts[a]), int(rows[a]), _merged(parts[a:b])))
        first = stop
    return tasks


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Merge consecutive fragments of a file, to open it once."""
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
    alike: frozenset[int]  # files that may be copies, by their numbers of rows
    name = "write"
    label = "Ingesting"

    @property
    def weights(self) -> copies.Words:
        """Secret weights of the columns."""
        return copies.weights_of(secret_of(self.staging), self.shape.columns)

    def __call__(self, opener: Opener, task: WriteTask, on_rows: Callable[[int], object]) -> dict[int, int]:
        """Write the missing chunks of a task, and return the marks of rows by file."""
        # A worker that was given up may still write into an object store. So check before whether the table is
        # complete or a file changed, and afterwards whether the table is still being built.
        if self.staging.exists(ROOT):
            return {}
        try:
            return self._write(opener, task, on_rows)
        finally:
            if not self.staging.exists(SECRET) and not self.staging.exists(ROOT):
                self.staging.drop("")

    def _write(self, opener: Opener, task: WriteTask, on_rows: Callable[[int], object]) -> dict[int, int]:
        writer = RowsWriter(self.staging, self.shape, task.first, task.stop, self.existing)
        marks = self.copy(opener, task, writer, on_rows)
        self.staging.flush(writer.keys)
        return marks

    def copy(
        self, opener: Opener, task: WriteTask, writer: RowsWriter | Gathered, on_rows: Callable[[int], object]
    ) -> dict[int, int]:
        """Pass the rows of a task to a writer, and return the marks of rows by file."""
        weights = self.weights if self.alike else None
        marks = dict[int, int]()
        target, row = task.target, task.row
        for part in task.parts:
            count = part.rows if not self.filtered else int(self._kept_mask(row, part.rows).sum())
            if isinstance(writer, RowsWriter) and not writer.lacks(target, target + count):
                on_rows(writer.skip(target + count))
            else:
                with opener.named(self.entries[part.source]):
                    for taken in self._copied(opener, part, target, row, writer):
                        on_rows(len(taken))
                        if weights is not None and part.source in self.alike:
                            mark = copies.mark_of(taken, np.dtype(self.shape.dtype), weights)
                            marks[part.source] = marks.get(part.source, 0) + mark
            target, row = target + count, row + part.rows
        return marks

    def _copied(
        self, opener: Opener, part: Part, target: int, row: int, writer: RowsWriter | Gathered
    ) -> Iterator[Rows]:
        """Yield the rows of a part that are written."""
        source, row_count = opener.opened(self.entries[part.source]), 0
        dtype = np.dtype(self.shape.dtype)
        writer.before = self._change_check(source, part)
        try:
            with closing(source.rows(self.keep, part.fragment)) as blocks:
                for block in blocks:
                    if source.choices.schema is None:  # a schema refuses or drops non-finite values
                        require_exact(source.path, part.first + row_count, block, dtype, self.names)
                    if row_count + block.shape[0] > part.rows or not fits(block, dtype):
                        raise changed(source.path)
                    selected = block[self._kept_mask(row + row_count, block.shape[0])] if self.filtered else block
                    yield writer.append(selected, target)
                    row_count, target = row_count + block.shape[0], target + len(selected)
                    if writer.full:
                        return
        except UncutError:
            raise changed(source.path) from None
        if row_count != part.rows:
            raise changed(source.path)

    def _change_check(self, source: Source, part: Part) -> Callable[[], None]:
        """Return a check that the file of a part has not changed."""
        location = self.entries[part.source].location
        look: Callable[[], object] = partial(state_of, location)
        before: object = self.states[part.source]
        if not isinstance(location, Path) or location.is_dir():  # versions of a store differ between libraries
            look = look if part.fragment is None else partial(source.state, *part.fragment)
            before = look()

        def require_same() -> None:
            if look() != before:
                raise changed(source.path)

        return require_same

    def _kept_mask(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        first = start // 8
        return among(self.staging.get_range(_KEPT, first, -(-(start + count) // 8) - first), start - 8 * first, count)
