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
from dpdist.ingest.survey import Job, Part, Run, Surveyed
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
            states = [state_of(location_of(each.place)) for each in sources.entries]  # before the origin: see _identity
            sizes = [survey.size_of(each) for each in sources.entries]
            if elsewhere is not None and not elsewhere.named and (available_cores() < 2 or sum(sizes) < LARGE):
                elsewhere = None
            origin, begun = None, stack.enter_context
            if period is not None:  # that it is of these files is remembered with the period, which is made in one go
                aside = begun(target.staged("rows", private=True)).absolute()
                elsewhere = None
            else:
                origin = origin_of(source, columns=columns, compress=compress, unit=named, choices=choices)
                aside = begun(target.staged("rows", resume=_identity(source, origin, states, budget))).absolute()
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
                aside,
                say or (lambda _: None),
                period is not None,
            )
            complete(aside, lambda: head(*table.written(states, elsewhere, progress, compress=compress)))
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
    place = str(source.absolute() if isinstance(source, Path) else source.address)
    declared = None if budget is None else budget.to_json()
    return digest_of([__version__, place, origin, states, declared]).encode()


def complete(aside: Store, build: Callable[[], bytes]) -> None:
    """Complete a table: write its rows, then its head, the last of its objects, and remove what was beside them."""
    if not aside.exists(ROOT):
        aside.put(ROOT, build())
        aside.flush([ROOT])
    aside.drop(WORK)


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


def secret_of(aside: Store) -> bytes:
    """Return what keys whatever is chosen of privacy units: the same until the table is complete, and then gone."""
    if not aside.exists(_SECRET) or len(aside.get(_SECRET)) != _SECRET_BYTES:
        aside.put(_SECRET, (random_token() + random_token()).encode("ascii")[:_SECRET_BYTES])
        aside.flush([_SECRET])
    return aside.get(_SECRET)


@dataclass(frozen=True)
class _Ingest:
    """The rows of a table that is built; see :func:`ingest`."""

    place: SourceLocation
    sources: Sources
    sizes: Sequence[int]
    choices: Choices
    columns: Sequence[str] | None
    unit: Unit | None
    watch: Watch | None
    aside: Store
    say: Callable[[str], None]
    may_be_empty: bool

    def written(
        self, states: Sequence[str], elsewhere: Any, progress: Steps | None, *, compress: bool
    ) -> tuple[Shape, tuple[str, ...]]:
        """Write all rows; return the shape of the table, and the names of its columns."""
        entries, schema = self.sources.entries, self.choices.schema
        with ExitStack() as stack:
            away: list[Run] = []

            secret_of(self.aside)  # as long as it is there, the table is built
            rows = done = 0

            def told(count: int) -> None:
                nonlocal done
                done += count
                if progress is not None and rows:
                    progress(done, rows)

            def run(job: Job, units: Sequence[Any]) -> list[Any]:
                if elsewhere is None or len(units) < 2:
                    return [job(self.sources.opener, unit, told) for unit in units]
                if not away:
                    away.append(stack.enter_context(elsewhere.connected(self.aside, self.choices)))
                return away[0](job, units)

            columns, unit = (self.columns, self.unit) if schema is None else (schema.features, None)
            labels = self._labels()
            found = survey.surveyed(
                self.place, self.sources, columns, run,
                sizes=self.sizes, unit=None if labels else unit, may_be_empty=self.may_be_empty,
            )  # fmt: skip
            if self.unit is None:
                survey.require_each_once(self.sources, found.filled)
            kept = None if self.unit is None else self._kept(found, self.unit, labels)
            rows = found.rows if kept is None else kept.count
            self._tell(found, found.rows - rows)
            shape = shape_of(rows, len(found.names), found.dtype.name, compress=compress)
            there = chunks_there(self.aside, shape)
            high = shape.chunk_rows
            require_space(self.aside, shape, rows - sum(min(high, rows - at * high) for at in there))
            units = units_of(found.parts, shape, kept, survey.PIECE if elsewhere is not None else None)
            if elsewhere is not None and len(units) == 1 and rows * shape.row_bytes > survey.PIECE:
                self.say(
                    f"{self.place} cannot be read in parts: one process reads it. Files beside one another can be."
                )
            units = [unit for unit in units if not there.issuperset(range(unit.first, unit.stop))]
            run(Write(entries, states, self.aside, shape, found.keep, found.names, there, kept is not None), units)
        # which rows of a unit come first was found in an earlier pass: other files would break the bound M
        for entry, state in zip(entries, states, strict=True):
            if state_of(location_of(entry.place)) != state:
                raise changed(entry.shown)
        return shape, found.names

    def _tell(self, found: Surveyed, left_out: int) -> None:
        if found.guesses:
            first, *more = found.guesses
            self.say(first + (f" So is that of {counted(len(more), 'other file')}." if more else ""))
        head, schema = found.head, self.choices.schema
        if schema is not None and schema.dropping:
            self.say(
                f"Rows that lack {listed(schema.dropping)} are dropped: a release of these rows takes "
                f"{parameter('scale', 'private')} or a public {parameter('centre')}."
            )
        if self.unit is not None:
            most = counted(self.unit.max_rows, "row")
            self.say(f"Whoever is named by {self.unit.column} is protected with {most} at most.")
            if not self.may_be_empty:
                self.say(f"{LEFT_OUT} {left_out}.")
        elif set(head.labels) - set(head.samples):
            named = survey.units_named(head)
            self.say(f"Each row is protected by itself, as one person's; another unit is named by {named}.")

    def _kept(self, found: Surveyed, unit: Unit, labels: Sequence[str]) -> KeptRows:
        """Find the rows that are kept of each privacy unit, and put them aside."""
        rows, scratch_dir, watch = found.rows, self.aside.scratch_folder, self.watch
        atomic.require_space(scratch_dir, UNIT_BYTES * rows, "numbers of privacy units")
        key, schema = secret_of(self.aside), self.choices.schema
        place = None if schema is not None or labels else found.head.names.index(unit.column)
        units = self._units(found.filled, key if watch is None else watch.key, labels, place)
        if watch is not None:
            units = watch.watched(units, rows, len(labels) if schema is None else len(schema.unit_columns))
        kept = kept_rows(units, rows, unit, scratch_dir, key)
        if watch is not None:
            watch.leave_out(kept)
        self.aside.put(_KEPT, kept.bits)
        self.aside.flush([_KEPT])
        return kept

    def _units(
        self, filled: Sequence[int], key: bytes, labels: Sequence[str], place: int | None
    ) -> Iterator[Numbers | Digests]:
        """Yield the privacy unit of every row, in order: a number in a column, or a digest under a key."""
        for number in filled:
            with self.sources.named(number) as source:
                rows, row = source.units(key, labels) if place is None else source.rows((place,)), 0
                with closing(rows):
                    for block in rows:
                        if place is None:
                            yield np.ascontiguousarray(block).view("S16")[:, 0]
                        else:
                            yield whole_numbers(source.path, row, block[:, 0])
                        row += block.shape[0]

    def _labels(self) -> tuple[str, ...]:
        """Return the labels beside the rows that say whose they are; none where a column or a schema does."""
        if self.unit is None or self.choices.schema is not None:
            return ()
        first, head = survey.first_head(self.sources)
        asked = tuple(part.strip() for part in self.unit.column.split(","))
        if not head.labels or self.unit.column in head.names:
            if set(asked) <= set(head.labels):
                raise UsageError(
                    f"{self.unit.column} is a column of {self.sources.entries[first].shown}, and a label of its rows "
                    "too: rename the column.",
                    parameter="privacy_unit",
                )
            return ()
        for number, entry in enumerate(self.sources.entries):
            with self.sources.named(number) as source:
                known = source.head.labels
            if unknown := [label for label in asked if label not in known]:
                raise UsageError(
                    f"There is no {listed(unknown)} in {entry.shown} that says whose row it is. There are: "
                    f"{listed(known)}.",
                    parameter="privacy_unit",
                )
        return asked


def chunks_there(aside: Store, shape: Shape) -> frozenset[int]:
    """Return the chunks that an ingest that died has written; one whose checksum differs is none."""
    sound = set()
    for key, _ in aside.list("c"):
        content = aside.get(key)
        stored, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
        if stored and google_crc32c.value(stored).to_bytes(CHECKSUM_BYTES, "little") == checksum:
            sound.add(int(key.split("/")[1]))
    return frozenset(index for index in sound if index * shape.chunk_rows < shape.rows)


class WriteUnit(NamedTuple):
    """Chunks that one task writes."""

    first: int  # number of the first chunk
    stop: int  # and of that behind the last one
    target: int  # the first row of the parts, in the table
    row: int  # and among the rows of all sources
    parts: list[Part]  # fragments that hold the rows; of the first and the last perhaps not all


def units_of(parts: Sequence[Part], shape: Shape, kept: KeptRows | None, size: int | None) -> list[WriteUnit]:
    """Cut the chunks of a table into units of about so many bytes of rows; None: one unit."""
    high, chunks = shape.chunk_rows, -(-shape.rows // shape.chunk_rows)
    rows = starts = np.cumsum([0, *(part.rows for part in parts)])
    if kept is not None:
        counts = [kept.counted(int(row), part.rows) for row, part in zip(rows, parts, strict=False)]
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
        units.append(WriteUnit(first, stop, int(starts[a]), int(rows[a]), _merged(parts[a:b])))
        first = stop
    return units


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Put fragments of one file that follow one another together: it is opened once for them."""
    found: list[Part] = []
    for part in parts:
        before = found[-1] if found else None
        if before and before.source == part.source and before.fragment and part.fragment:
            fragment = (before.fragment[0], part.fragment[1])
            found[-1] = before._replace(fragment=fragment, rows=before.rows + part.rows)
        else:
            found.append(part)
    return found


@dataclass(frozen=True)
class Write:
    """Writes chunks."""

    entries: Sequence[Entry]
    states: Sequence[str]
    aside: Store
    shape: Shape
    keep: Places
    names: Sequence[str]
    there: frozenset[int]
    some: bool
    name = "write"
    label = "Ingesting"

    def __call__(self, opener: Opener, unit: WriteUnit, told: Callable[[int], object]) -> None:
        """Write the chunks of a unit that are not there.

        Who was given up writes on: into an object store, where nobody can keep him from it. So he looks whether the
        table is complete, and whether a file changed, before he writes, and afterwards whether it is still built.
        """
        if self.aside.exists(ROOT):
            return
        try:
            self._write(opener, unit, told)
        finally:
            if not self.aside.exists(_SECRET) and not self.aside.exists(ROOT):
                self.aside.drop("")

    def _write(self, opener: Opener, unit: WriteUnit, told: Callable[[int], object]) -> None:
        writer = RowsWriter(self.aside, self.shape, unit.first, unit.stop, self.there)
        target, row = unit.target, unit.row
        for part in unit.parts:
            count = part.rows if not self.some else int(self._kept(row, part.rows).sum())
            if not writer.lacks(target, target + count):
                told(writer.skip(target + count))
            else:
                with opener.named(self.entries[part.source]):
                    self._copy(opener, part, target, row, writer, told)
            target, row = target + count, row + part.rows
        self.aside.flush(writer.keys)

    def _copy(
        self, opener: Opener, part: Part, target: int, row: int, writer: RowsWriter, told: Callable[[int], object]
    ) -> None:
        source, found = opener.opened(self.entries[part.source]), 0
        dtype = np.dtype(self.shape.dtype)
        writer.before = self._watched(source, part)
        try:
            with closing(source.rows(self.keep, part.fragment)) as blocks:
                for block in blocks:
                    if source.choices.schema is None:  # else what is not finite was refused, or its row is dropped
                        require_exact(source.path, part.first + found, block, dtype, self.names)
                    if found + block.shape[0] > part.rows or not fits(block, dtype):
                        raise changed(source.path)
                    wanted = block[self._kept(row + found, block.shape[0])] if self.some else block
                    told(writer.append(wanted, target))
                    found, target = found + block.shape[0], target + len(wanted)
                    if writer.full:
                        return
        except UncutError:
            raise changed(source.path) from None
        if found != part.rows:
            raise changed(source.path)

    def _watched(self, source: Source, part: Part) -> Callable[[], None]:
        """Return what raises when a file is not any more what it was."""
        place = location_of(self.entries[part.source].place)
        look: Callable[[], object] = partial(state_of, place)
        before: object = self.states[part.source]
        if not isinstance(place, Path) or place.is_dir():  # what a store says may be another text with another library
            look = look if part.fragment is None else partial(source.state, *part.fragment)
            before = look()

        def require_same() -> None:
            if look() != before:
                raise changed(source.path)

        return require_same

    def _kept(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        first = start // 8
        return among(self.aside.get_range(_KEPT, first, -(-(start + count) // 8) - first), start - 8 * first, count)
