"""What the files of a table are, together: their columns, and the type that holds all their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from dpdist._util.text import has_control, listed, repeated
from dpdist.errors import DataError, UsageError
from dpdist.ingest.looking import Found, require_names, survey_of
from dpdist.ingest.readers.base import AskError, Places, only_columns
from dpdist.ingest.sources import Source, SourceLocation, Survey
from dpdist.rows.units import Unit

_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")


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


Looking = Callable[[tuple[str, ...], Places], Sequence[Found]]
"""Finds what every file holds, by the names that all have and the places of the columns that are kept."""


def judged(
    source: SourceLocation,
    sources: Sequence[Source],
    columns: Sequence[str] | None,
    *,
    unit: Unit | None = None,
    look: Looking | None = None,
) -> Judged:
    """Judge files before anything is made of them.

    Parameters
    ----------
    source
        As the user named it.
    sources
        The files.
    columns, unit
        As of :func:`dpdist.ingest.table.ingest`.
    look
        Looks at the files; None: they are looked at here.

    Raises
    ------
    UsageError, DataError
        As :func:`dpdist.ingest.table.ingest`.
    """
    names = sources[0].names
    require_publishable(sources[0].path, names)
    keep = kept_places(names, columns, unit)
    if len(keep) < 2:
        raise DataError(
            f"{source} gives {len(keep)} column(s), and a table needs two or more. Are the cells of a CSV file "
            "separated by commas, and enough columns kept?"
        )
    found = [_looked(each, sources[0], keep) for each in sources] if look is None else look(names, keep)
    surveys = [(each, about.survey) for each, about in zip(sources, found, strict=True) if about.survey is not None]
    dtype = _common_dtype([survey for _, survey in surveys]) if surveys else np.dtype(np.uint8)
    if columns is None and surveys:
        _require_no_index(surveys[0][0], keep, names)
    filled, lengths = [each for each, _ in surveys], [survey.rows for _, survey in surveys]
    return Judged(tuple(names[at] for at in keep), keep, filled, lengths, dtype)


def _looked(source: Source, first: Source, keep: Places) -> Found:
    require_names(source, first.names, first.path)
    return Found(survey_of(source, keep, may_be_empty=False), None, [], None)


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


def require_publishable(where: object, names: tuple[str, ...]) -> None:
    """Refuse names of columns that cannot be published, or that several columns have: DataError."""
    for place, name in enumerate(names):
        if has_control(name):
            raise DataError(
                f"{where}: the name of column {place + 1} (counting from 1) holds a control character. Names are "
                "published, and shown on terminals: rename the column."
            )
    if twice := repeated(names):
        raise DataError(f"{where} has several columns of one name: {listed(twice)}. Rename them.")


def kept_places(names: tuple[str, ...], columns: Sequence[str] | None, unit: Unit | None) -> tuple[int, ...]:
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
