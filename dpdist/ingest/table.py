"""Files -> rows.zarr: all files are surveyed first, then their rows are written piece by piece, or nothing is.

Memory stays at a few pieces of about 8 MiB, whatever the size of the files. Rows are stored in the narrowest type
that holds the values as they are; NaN, infinities and missing values are refused here, by file and row, because the
later steps must not fail on a row's content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from dpdist._util.progress import Steps
from dpdist._util.text import counted, has_control, listed
from dpdist.errors import DataError, UsageError
from dpdist.ingest.origin import origin_of
from dpdist.ingest.readers.base import AskError, Places, Rows, fits, only_columns
from dpdist.ingest.sources import (
    Choices,
    NoRowsError,
    Remote,
    Source,
    SourceLocation,
    Survey,
    attempt,
    files_of,
    opened_sources,
)
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows.dataset import RowsTable, created, open_ingested
from dpdist.rows.units import Numbers, Unit, first_rows, whole_numbers
from dpdist.storage.atomic import require_space
from dpdist.storage.store import AnyStore, Store, store_at

_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")


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
    choices: Choices = Choices(),  # noqa: B008 - frozen
    say: Callable[[str], None] | None = None,
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
    choices
        Which array of a file that holds several, what to put where a genotype is missing, and whether the first line
        of text names the columns.
    say
        Told what was guessed of the files.

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
    """
    target = store_at(target)
    target.require_new("rows")
    try:
        _ingest(source, target, budget, columns, compress, progress, ledger_id, period, unit, choices, say)
    except AskError as error:
        question = error.asked(source, target)
    else:
        return open_ingested(target)
    raise DataError(question)


def _ingest(
    source: SourceLocation,
    target: Store,
    budget: PrivacyLoss | None,
    columns: Sequence[str] | None,
    compress: bool,
    progress: Steps | None,
    ledger_id: str | None,
    period: str | None,
    unit: Unit | None,
    choices: Choices,
    say: Callable[[str], None] | None,
) -> None:
    with opened_sources(source, target.scratch_folder, choices) as sources:
        origin = (  # that of a period is remembered with its source
            origin_of(source, columns=columns, compress=compress, unit=unit, choices=choices)
            if period is None
            else None
        )
        before = [_state(each.path) for each in sources]
        found = judged(source, sources, columns, unit=unit, period=period)
        if say is not None and (guessed := [each.guess for each in sources if each.guess]):
            say(guessed[0] + (f" So is that of {counted(len(guessed) - 1, 'other file')}." if guessed[1:] else ""))
        kept, total = None, found.rows
        if unit is not None:
            require_space(target.scratch_folder, 16 * total, "numbers of privacy units")
            units = _units(found.filled, sources[0].names.index(unit.column))
            kept = first_rows(units, total, unit.max_rows, target.scratch_folder)
            total = kept.count
        with created(
            target,
            rows=total,
            dtype=found.dtype.name,
            names=found.names,
            budget=budget,
            compress=compress,
            ledger_id=ledger_id,
            period=period,
            unit=unit,
            origin=origin,
        ) as writer:
            start = 0
            for path, block in _checked(found):
                if not fits(block, found.dtype):
                    raise changed(path)
                writer.append(block if kept is None else block[kept.among(start, block.shape[0])])
                start += block.shape[0]
                if progress is not None:
                    progress(writer.rows, total)
            # which rows of a unit come first was found in an earlier pass: other files would break the bound M
            for each, state in zip(sources, before, strict=True):
                if _state(each.path) != state:
                    raise changed(each.path)


class Judged(NamedTuple):
    """What the files of a table are, together.

    Attributes
    ----------
    names, keep
        Of the columns that are kept, and their places in each file.
    filled, lengths
        The files that have rows, and how many each has.
    dtype
        The type that holds the rows of all files.
    """

    names: tuple[str, ...]
    keep: Places
    filled: list[Source]
    lengths: list[int]
    dtype: np.dtype[np.generic]

    @property
    def rows(self) -> int:
        """Rows of all of them."""
        return sum(self.lengths)


def judged(
    source: SourceLocation,
    sources: Sequence[Source],
    columns: Sequence[str] | None,
    *,
    unit: Unit | None = None,
    period: str | None = None,
) -> Judged:
    """Judge files before anything is made of them.

    Raises
    ------
    UsageError, DataError
        As :func:`ingest`.
    """
    names = _common_names(sources)
    keep = _kept(names, columns, unit)
    if len(keep) < 2:
        raise DataError(
            f"{source} gives {len(keep)} column(s), and a table needs two or more. Are the cells of a CSV file "
            "separated by commas, and enough columns kept?"
        )
    found = [(each, survey) for each in sources if (survey := _survey(each, keep, period)) is not None]
    filled, surveys = [each for each, _ in found], [survey for _, survey in found]
    dtype = _common_dtype(surveys) if surveys else np.dtype(np.uint8)
    if columns is None and filled:
        _require_no_index(filled[0], keep, names)
    return Judged(tuple(names[at] for at in keep), keep, filled, [survey.rows for survey in surveys], dtype)


def _require_no_index(source: Source, keep: tuple[int, ...], names: tuple[str, ...]) -> None:
    """Ask whether a column without a name that counts the rows shall be kept.

    Values of private rows decide that, as they decide every refusal of ingest. It is told to whoever holds the file,
    before there are rows, a ledger or a release. What a release publishes does not depend on it. Once the columns are
    named, no value is looked at.

    Raises
    ------
    AskError
        If it counts from 0 or 1 on.
    """
    place = source.unnamed
    if place not in keep:
        return
    row, first = 0, -1
    with closing(source.blocks((place,))) as blocks:
        for block in blocks:
            values = block[:, 0]
            first = int(values[0]) if row == 0 and values[0] in {0, 1} else first
            if first < 0 or not np.array_equal(values, np.arange(row + first, row + first + values.size)):
                return
            row += values.size
    others = [names[other] for other in keep if other != place]
    raise AskError(
        f"{source.path}: a column without a name counts the rows, from {first} on. It looks like an index, and would "
        "be summed like a measurement.",
        [
            only_columns(others, "leaves it out"),
            only_columns([names[other] for other in keep], f"keeps it, as {names[place]}"),
        ],
    )


def changed(path: SourceLocation) -> DataError:
    """Return what is said of a file that changed meanwhile."""
    return DataError(f"{path} changed while it was read. Ingest it when it is complete.")


def _checked(found: Judged) -> Iterator[tuple[SourceLocation, Rows]]:
    """Yield all rows in pieces, each with its file, after a look at every value."""
    for each in found.filled:
        row = 0
        with closing(each.blocks(found.keep)) as blocks:
            for block in blocks:
                require_finite(each.path, row, block, found.names)
                row += block.shape[0]
                yield each.path, block


def _state(place: SourceLocation) -> object:
    """Return size and times of all files of a source, or what a store says of it: a write changes that."""

    def found() -> object:
        if isinstance(place, Remote):
            return place.version()
        stats = [path.stat() for path in files_of(place)]
        return [(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats]

    return attempt(place, found)


def _survey(source: Source, keep: tuple[int, ...], period: str | None) -> Survey | None:
    """Return what a file holds, or None for one without rows: of a period, whether it had one row may be private."""
    try:
        return source.survey(keep)
    except NoRowsError:
        if period is None:
            raise
    return None


def _common_names(sources: Sequence[Source]) -> tuple[str, ...]:
    first = sources[0]
    for each in sources:
        if each.names != first.names:
            raise DataError(f"{each.path} has other columns than {first.path}. Give all files the same, in one order.")
    for place, name in enumerate(first.names):
        if has_control(name):
            raise DataError(
                f"{first.path}: the name of column {place + 1} (counting from 1) holds a control character. Names are "
                "published, and shown on terminals: rename the column."
            )
    if len(set(first.names)) < len(first.names):
        twice = listed(sorted({name for name in first.names if first.names.count(name) > 1}))
        raise DataError(f"{first.path} has several columns of one name: {twice}. Rename them.")
    return first.names


def _units(sources: Sequence[Source], place: int) -> Iterator[Numbers]:
    """Yield the privacy unit of every row, in order."""
    for each in sources:
        row = 0
        with closing(each.blocks((place,))) as blocks:
            for block in blocks:
                yield whole_numbers(each.path, row, block[:, 0], each.kept_as(place))
                row += block.shape[0]


def _kept(names: tuple[str, ...], columns: Sequence[str] | None, unit: Unit | None) -> tuple[int, ...]:
    """Return the places of the columns to keep; that of the privacy unit is not one of them."""
    if unit is not None and unit.column not in names:
        raise UsageError(f"There is no column {unit.column}. There are: {listed(names)}.", parameter="privacy_unit")
    if unit is not None and columns is not None and unit.column in columns:
        raise UsageError(
            f"The privacy unit {unit.column} cannot be one of the columns that are kept.", parameter="columns"
        )
    if columns is None:
        return tuple(place for place, name in enumerate(names) if unit is None or name != unit.column)
    places = {name: place for place, name in enumerate(names)}
    if unknown := [name for name in columns if name not in places]:
        raise UsageError(f"There is no column {listed(unknown)}. There are: {listed(names)}.", parameter="columns")
    if len(set(columns)) < len(columns):
        raise UsageError("A column is named twice; name each column once.", parameter="columns")
    return tuple(places[name] for name in columns)


def _common_dtype(surveys: Sequence[Survey]) -> np.dtype[np.generic]:
    """Return the type that holds the rows of all files.

    Whole numbers written as text are judged together: two files that need uint8 and int8 may both fit int8.
    """
    dtypes = [survey.dtype for survey in surveys if survey.span is None]
    spans = [survey.span for survey in surveys if survey.span is not None]
    if spans:
        low, high = min(low for low, _ in spans), max(high for _, high in spans)
        infos = [np.iinfo(name) for name in _INTEGERS]
        dtypes.append(next(info.dtype for info in infos if info.min <= low and high <= info.max))
    return np.result_type(*dtypes)


def require_finite(path: SourceLocation, start: int, block: Rows, names: tuple[str, ...]) -> None:
    """Refuse a value that is not finite, by its row and column; the first row of the block is number ``start``."""
    if block.dtype.kind == "f" and not np.isfinite(block).all():
        row, place = np.argwhere(~np.isfinite(block))[0]
        raise DataError(
            f"{path}, row {start + row} (counting from 0), column {names[place]!r}: the value is not finite. "
            "Mend it in the file and ingest again."
        )
