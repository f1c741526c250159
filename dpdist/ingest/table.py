"""Files -> rows.zarr: all files are surveyed first, then their rows are written piece by piece, or nothing is.

Memory stays at a few pieces of about 8 MiB, whatever the size of the files. Rows are stored in the narrowest type
that holds the values as they are; NaN, infinities and missing values are refused here, by file and row, because the
later steps must not fail on a row's content.

What is long is done in units (:mod:`dpdist.ingest.steps`), here in their order or on workers in any. They are the same
whoever computes them, and so is every byte of the table. What a process that died has finished, the same ingest takes
up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from dpdist._util.cores import available_cores
from dpdist._util.progress import Steps
from dpdist._util.text import counted, listed
from dpdist._version import __version__
from dpdist.errors import DataError, UsageError
from dpdist.ingest.judging import Judged, judged
from dpdist.ingest.looking import PIECE, Found, look_over, size_of
from dpdist.ingest.origin import origin_of
from dpdist.ingest.pieces import Write, complete, cut_into_pieces, put_pieces, write_pieces
from dpdist.ingest.readers.base import AskError, Places, changed
from dpdist.ingest.sources import Choices, Source, SourceLocation, opened_sources
from dpdist.ingest.states import digest_of, state_of
from dpdist.ingest.steps import Crew, Elsewhere, Here, forget_faults, put_sources, secret_of
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows.dataset import RowsTable, head_of, open_ingested, require_space, shape_of
from dpdist.rows.persons import Watch
from dpdist.rows.schema import Schema
from dpdist.rows.table import Shape
from dpdist.rows.units import UNIT_BYTES, Digests, KeptRows, Numbers, Unit, kept_rows, whole_numbers
from dpdist.storage import atomic
from dpdist.storage.store import AnyStore, Store, store_at

LARGE = 256 << 20
"""Bytes of a source from which on workers are worth their start."""


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
    elsewhere: Elsewhere | None = None,
) -> RowsTable:
    """Write files of rows into a new rows.zarr.

    Parameters
    ----------
    source
        A file or Zarr store of a kind in :data:`dpdist.ingest.sources.KINDS`, or a folder of them, read in the order of
        their names and all with the same columns; or the address of one in an object store. Integers and floats up to
        64 bits keep their type (bool becomes uint8, float16 becomes float32, big-endian native). Whole numbers in CSV
        take the narrowest integer type that holds all of them, other numbers in CSV float64. Several types together
        take the one NumPy promotes them to.
    target
        Where the table of shape (n, d), n >= 1 and d >= 2, shall appear; must not exist.
    budget
        The budget to declare for the table, or None.
    columns
        Names of the columns to keep, in this order; all by default. Columns without names are c0, c1, and so on.
    compress
        Whether to compress the chunks: less to read from a slow disk, more work for the processor.
    progress
        Called with the rows done and the rows in all, after every piece.
    ledger_id, period
        For rows of one period: the ledger of all periods, and the name. Such files, and so the table, may be without
        rows.
    unit
        The privacy unit: of each, only the first rows are kept, as many as it says. Its column is not stored.
    watch
        Of rows of one period with a privacy unit: whose rows are left out.
    choices
        Which array of a file that holds several, what to put where a genotype is missing, whether the first line
        of text names the columns, and what the columns mean. A schema says also which are kept, and the privacy unit.
    say
        Told what was guessed of the files, and when workers were asked for in vain.
    elsewhere
        The workers that may be asked; None: this process does all.

    Returns
    -------
    RowsTable
        The new table, opened.

    Raises
    ------
    UsageError
        If columns names one that is not there, or one twice; if a choice is for other kinds of files; if the
        package that reads a kind of file is not installed.
    RefusedError
        If the source is a table of dpdist: its budget would be doubled.
    DataError
        If target exists or cannot be written; if a file is missing, damaged, of another kind or with other columns
        than the first; if a value is missing, NaN, infinite or not a number. The message names the file and the
        row, never a value, and nothing is left behind. If a file can be taken in several ways it names the options
        to choose from.
    ResumableError
        If the workers were lost; what they finished is kept for the same ingest.
    """
    target = store_at(target)
    target.require_new("rows")
    named = unit
    if choices.schema is not None:
        unit = _of_schema(choices.schema, columns, unit, period)
    try:
        with opened_sources(source, target.scratch_folder, choices) as sources:
            states = [state_of(each.path) for each in sources]  # before the origin: see _identity
            task = _Ingest(source, sources, states, choices, columns, unit, watch, may_be_empty=period is not None)
            head = partial(head_of, budget=budget, ledger_id=ledger_id, period=period, unit=unit, schema=choices.schema)
            if period is not None:  # that it is of these files is remembered with the period, which is made in one go
                with target.staged("rows", private=True) as aside:
                    task.build(aside.absolute(), head, _crew(task, progress, None), compress=compress, say=say)
            else:
                origin = origin_of(source, columns=columns, compress=compress, unit=named, choices=choices)
                with target.resumed("rows", _identity(source, origin, states)) as aside:
                    task.build(
                        aside.absolute(), partial(head, origin=origin), _crew(task, progress, elsewhere),
                        compress=compress, say=say,
                    )  # fmt: skip
    except AskError as error:
        question = error.asked(source, target)
    else:
        return open_ingested(target)
    raise DataError(question)


def _of_schema(schema: Schema, columns: Sequence[str] | None, unit: Unit | None, period: str | None) -> Unit | None:
    """Return the privacy unit of a schema; refuse what it says already."""
    if columns is not None:
        raise UsageError(
            'The schema says which columns are kept: leave the others out there, with kind = "ignored".',
            parameter="columns",
        )
    if period is not None and unit != schema.unit:
        if schema.unit is None or unit is None or replace(unit, max_periods=None) != schema.unit:
            raise UsageError(
                "The schema says whose row it is otherwise than the folder of periods. Begin another folder.",
                parameter="schema",
            )
        return unit
    if period is None and unit is not None:
        raise UsageError(
            'The schema says whose row it is: kind = "privacy unit", and max_rows.', parameter="privacy_unit"
        )
    return schema.unit


def _identity(source: SourceLocation, origin: dict[str, object], states: Sequence[object]) -> bytes:
    """Return by what an ingest that goes on after a process has died is known to be the same.

    The states are those that the end of this ingest is held against. What changes between them and the origin is found
    then; the other way round, finished pieces could be of another state.
    """
    place = str(source.absolute() if isinstance(source, Path) else source.address)
    return digest_of([__version__, PIECE, place, origin, states]).encode()


def _crew(task: _Ingest, progress: Steps | None, elsewhere: Elsewhere | None) -> Crew:
    """Return who ingests: workers where they are named, or where they are worth their start."""
    here = Here(task.sources, task.states, progress)
    if elsewhere is not None and not elsewhere.named:
        elsewhere = elsewhere if available_cores() > 1 and sum(task.sizes) >= LARGE else None
    return Crew(here, elsewhere)


@dataclass(frozen=True)
class _Ingest:
    """What is ingested.

    Parameters
    ----------
    source, columns, unit, watch, choices
        As of :func:`ingest`.
    sources, states
        The files, and what :func:`state_of` said of each at first.
    may_be_empty
        Whether there may be no rows.
    """

    source: SourceLocation
    sources: Sequence[Source]
    states: Sequence[object]
    choices: Choices
    columns: Sequence[str] | None
    unit: Unit | None
    watch: Watch | None
    may_be_empty: bool

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes of each of the sources, asked once."""
        return [size_of(each) for each in self.sources]

    def build(
        self,
        aside: Store,
        head: Callable[..., bytes],
        crew: Crew,
        *,
        compress: bool,
        say: Callable[[str], None] | None,
    ) -> None:
        """Build the table."""

        def build() -> bytes:
            with closing(crew):
                shape, names = self._write(aside, crew, compress=compress, say=say)
            # which rows of a unit come first was found in an earlier pass: other files would break the bound M
            for each, state in zip(self.sources, self.states, strict=True):
                if state_of(each.path) != state:
                    raise changed(each.path)
            return head(shape, names)

        complete(aside, build)

    def _write(
        self, aside: Store, crew: Crew, *, compress: bool, say: Callable[[str], None] | None
    ) -> tuple[Shape, tuple[str, ...]]:
        forget_faults(aside)
        digest = put_sources(aside, self.sources, self.states, self.choices)
        about: list[Found] = []

        def look(names: tuple[str, ...], keep: Places) -> list[Found]:
            about.extend(
                look_over(
                    aside, digest, self.sources, self.sizes, names, keep, crew.run, may_be_empty=self.may_be_empty
                )
            )
            return about

        schema = self.choices.schema
        columns, unit = (self.columns, self.unit) if schema is None else (schema.features, None)
        unit = None if self._labels else unit
        for each in self.sources if self.unit is None else ():
            if each.repeated is not None:
                raise DataError(each.repeated)
        found = judged(self.source, self.sources, columns, unit=unit, look=look)
        if say is not None and (guessed := [each.guess for each in about if each.guess]):
            say(guessed[0] + (f" So is that of {counted(len(guessed) - 1, 'other file')}." if guessed[1:] else ""))
        kept = None if self.unit is None else self._kept(aside, found, self.unit)
        shape = shape_of(
            found.rows if kept is None else kept.count, len(found.names), found.dtype.name, compress=compress
        )
        pieces = cut_into_pieces(about, shape.row_bytes, kept)
        if say is not None and crew.asked and len(pieces) == 1 and found.rows * shape.row_bytes > PIECE:
            say(f"{self.source} cannot be read in parts: one process reads it. Files beside one another can be.")
        plan = put_pieces(aside, shape, found.names, found.keep, pieces, kept)
        write = Write(aside, digest, plan)
        done = sum(pieces[number].kept for number in write.finished())
        require_space(aside, shape, shape.rows - done)
        crew.here.begin(done, shape.rows)
        write_pieces(aside, digest, plan, crew.run)
        return shape, found.names

    def _kept(self, aside: Store, found: Judged, unit: Unit) -> KeptRows:
        atomic.require_space(aside.scratch_folder, UNIT_BYTES * found.rows, "numbers of privacy units")
        key, beside = secret_of(aside), aside.scratch_folder
        named, schema = self._labels, self.choices.schema
        units: Iterator[Numbers | Digests]
        if schema is not None or named:
            units = _digests(found.filled, key if self.watch is None else self.watch.key, named)
        else:
            units = _units(found.filled, self.sources[0].names.index(unit.column))
        if self.watch is None:
            return kept_rows(units, found.rows, unit, beside, key)
        names = len(named) if schema is None else len(schema.unit_columns)
        kept = kept_rows(self.watch.watched(units, found.rows, names), found.rows, unit, beside, key)
        self.watch.leave_out(kept)
        return kept

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        """What of that beside the rows says whose they are; nothing where a column or a schema does.

        Raises
        ------
        UsageError
            If not every file has it, or a column is called so too.
        """
        first = self.sources[0]
        if self.unit is None or self.choices.schema is not None or not first.labels:
            return ()
        asked = tuple(part.strip() for part in self.unit.column.split(","))
        if self.unit.column in first.names:
            if set(asked) <= set(first.labels):
                raise UsageError(
                    f"{self.unit.column} is a column of {first.path} and a label of its rows too: rename the column.",
                    parameter="privacy_unit",
                )
            return ()
        for each in self.sources:
            if unknown := [label for label in asked if label not in each.labels]:
                raise UsageError(
                    f"There is no {listed(unknown)} in {each.path} that says whose row it is. There are: "
                    f"{listed(each.labels)}.",
                    parameter="privacy_unit",
                )
        return asked


def _units(sources: Sequence[Source], place: int) -> Iterator[Numbers]:
    """Yield the privacy unit of every row, in order."""
    for each in sources:
        row = 0
        with closing(each.blocks((place,))) as blocks:
            for block in blocks:
                yield whole_numbers(each.path, row, block[:, 0], each.kept_as(place))
                row += block.shape[0]


def _digests(sources: Sequence[Source], key: bytes, labels: Sequence[str]) -> Iterator[Digests]:
    """Yield the privacy unit of every row, in order, under a key that nobody else will know."""
    for each in sources:
        with closing(each.units(key, labels)) as blocks:
            for block in blocks:
                yield np.ascontiguousarray(block).view("S16")[:, 0]
