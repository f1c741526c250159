"""The survey of a source: its columns, its fragments and their rows, and the type that holds all rows.

Files that state rows and types are only opened; text is read once. Workers and this process get the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest.other_kinds import NESTED, renaming
from dpdist.core.ingest.readers.base import (
    ChoiceRequiredError,
    NoRowsError,
    Places,
    UncutError,
    changed,
    no_numbers,
    only_columns,
)
from dpdist.core.ingest.readers.source import Entry, Fragment, Head, Source, Survey
from dpdist.core.ingest.readers.text import FRAGMENT
from dpdist.core.ingest.sources import Opener, Sources
from dpdist.core.naming import parameter
from dpdist.core.rows.units import Unit, no_column
from dpdist.core.text import counted, has_control, listed, random_token, repeated, visible

PIECE = 128 << 20  # bytes per task, about
_OPENED = {".nc": "open_dataset", ".zarr": "open_zarr"}
_MOST_FILES = 256  # files per task of the survey
_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")


class Part(NamedTuple):
    """A fragment with rows."""

    source: int  # number of the file
    fragment: Fragment  # None: the whole file
    first: int  # index of its first row in the file
    rows: int


class SourceSurvey(NamedTuple):
    """The result of a survey."""

    names: tuple[str, ...]  # of the kept columns
    keep: Places  # their indices in each file
    parts: list[Part]  # fragments with rows, in order
    dtype: np.dtype[np.generic]  # holds all rows
    said: tuple[list[str], list[str]]  # messages about guesses, and about chunks that are not stored
    head: Head  # of the first file with columns

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(part.rows for part in self.parts)

    @property
    def filled(self) -> list[int]:
        """Numbers of the files with rows."""
        return list(dict.fromkeys(part.source for part in self.parts))


class _FileSurvey(NamedTuple):
    """The survey of a file, or of a fragment of text."""

    survey: Survey | None = None
    ends: npt.NDArray[np.int64] | None = None
    guess: str | None = None
    absent: str | None = None
    uncut: bool = False


class Job(Protocol):
    """The function of all tasks of a step of an ingest."""

    name: str
    label: str

    def __call__(self, opener: Opener, task: Any, on_rows: Callable[[int], object]) -> Any:
        """Compute a task, and report written rows."""
        ...


Run = Callable[[Job, Sequence[Any]], list[Any]]  # computes tasks, and returns their results in order


@dataclass(frozen=True)
class SurveyFiles:
    """Opens files; reads text for its rows and types."""

    entries: Sequence[Entry]
    like: Head
    keep: Places
    name = "look"
    label = "Surveying files"

    def __call__(
        self,
        opener: Opener,
        task: Sequence[tuple[int, Fragment]],
        on_rows: Callable[[int], object],  # noqa: ARG002 - none
    ) -> list[_FileSurvey]:
        """Survey the files of a task."""
        return [self._survey_file(opener, number, fragment) for number, fragment in task]

    def _survey_file(self, opener: Opener, number: int, fragment: Fragment) -> _FileSurvey:
        guess = absent = None
        with opener.named(self.entries[number]) as source:
            try:
                head = source.head
                if fragment is None or not fragment[0]:
                    guess, absent = (
                        text and opener.with_shown_name(text, self.entries[number])
                        for text in (head.guess, head.absent)
                    )
                    require_alike(source, self.like, self.entries[0].shown)
                survey = source.survey(self.keep, fragment)
            except NoRowsError:
                return _FileSurvey(guess=guess, absent=absent)
            except UncutError:
                return _FileSurvey(guess=guess, uncut=True)
            return _FileSurvey(survey, None if fragment is not None else self._ends(source, survey), guess, absent)

    def _ends(self, source: Source, survey: Survey) -> npt.NDArray[np.int64] | None:
        if survey.rows * len(self.keep) * np.dtype(survey.dtype).itemsize <= PIECE:
            return None
        try:
            ends = source.fragments(self.keep).ends
        except DataError:  # too large to cut: reading from the start still works
            return None
        return None if len(ends) < 2 else ends


def require_alike(source: Source, head: Head, first: object) -> None:
    """Refuse a file whose columns differ from those of the first, in name or meaning."""
    if source.head.names != head.names:
        raise DataError(
            f"{source.path} has other columns than {first}. Give all files the same columns, in the same order."
        )
    if source.head.meaning != head.meaning:
        raise DataError(
            f"{source.path} has other columns than {first} under the same names: another counted allele, variable, "
            "coordinate or unit. Write the files alike, or ingest one of them."
        )


def survey_source(
    location: object,
    sources: Sources,
    columns: Sequence[str] | None,
    run: Run,
    *,
    sizes: Sequence[int],
    unit: Unit | None = None,
    may_be_empty: bool = False,
) -> SourceSurvey:
    """Survey all files of a source."""
    number, head = first_head(sources)
    require_publishable(sources.entries[number].shown, head.names)
    keep = kept_columns(head.names, columns, unit)
    if len(keep) < 2:
        kinds = {head.names[each]: str(head.kinds[each]) for each in keep if head.kinds}
        if nested := {name: kind for name, kind in kinds.items() if kind.startswith(NESTED)}:
            raise no_numbers(location, nested, [])
        raise DataError(
            f"{location} gives {len(keep)} column(s). A table needs two or more: keep more columns, and separate the "
            "cells of a CSV file by commas."
        )
    parts, surveys, said = _survey_files(sources.entries, sizes, head, keep, run)
    if not parts and not may_be_empty:
        if len(sources) > 1:
            raise NoRowsError(f"No file of {location} has rows. Add some.")
        with sources.named(0) as first:
            first.survey(keep)
            raise changed(first.path)
    if columns is None and parts:
        _require_no_index(sources.entries[number].shown, head, keep)
    dtype = _common_dtype(surveys) if surveys else np.dtype(np.uint8)
    return SourceSurvey(tuple(head.names[index] for index in keep), keep, parts, dtype, said, head)


def first_head(sources: Sources) -> tuple[int, Head]:
    """Return the first file with columns: others may be empty."""
    last = len(sources) - 1
    for number in range(last):
        with suppress(NoRowsError), sources.named(number) as source:
            return number, source.head
    with sources.named(last) as source:
        return last, source.head


def _survey_files(
    entries: Sequence[Entry], sizes: Sequence[int], head: Head, keep: Places, run: Run
) -> tuple[list[Part], list[Survey], tuple[list[str], list[str]]]:
    fragments: list[tuple[int, Fragment]] = []
    for number, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
        location = entry.location
        fetched = not isinstance(location, Path) and location.web  # whole, by each task that reads a part
        long = size > FRAGMENT and not fetched and location.name.lower().endswith(".csv")
        starts = range(0, size, FRAGMENT) if long else ()
        fragments += [(number, (start, min(start + FRAGMENT, size))) for start in starts] or [(number, None)]
    survey_files = SurveyFiles(entries, head._replace(kinds=None), keep)

    def run_tasks(fragments: Sequence[tuple[int, Fragment]]) -> dict[tuple[int, Fragment], _FileSurvey]:
        weights = [sizes[number] if fragment is None else fragment[1] - fragment[0] for number, fragment in fragments]
        results = [result for group in run(survey_files, grouped(fragments, weights)) for result in group]
        return dict(zip(fragments, results, strict=True))

    by_fragment = run_tasks(fragments)
    uncut = sorted({number for (number, _), result in by_fragment.items() if result.uncut})
    by_fragment = {key: result for key, result in by_fragment.items() if key[0] not in uncut}
    by_fragment |= run_tasks([(number, None) for number in uncut])
    parts, surveys, guesses, absent, first = list[Part](), list[Survey](), list[str](), list[str](), 0
    for (number, fragment), result in sorted(by_fragment.items(), key=lambda item: (item[0][0], item[0][1] or ())):
        guesses += [result.guess] if result.guess else []
        absent += [result.absent] if result.absent else []
        first = 0 if fragment is None or not fragment[0] else first
        if result.survey is None or not result.survey.rows:
            continue
        surveys.append(result.survey)
        if result.ends is None:
            parts.append(Part(number, fragment, first, result.survey.rows))
        else:
            begins = [0, *result.ends[:-1].tolist()]
            parts += [Part(number, (a, b), a, b - a) for a, b in zip(begins, result.ends.tolist(), strict=True)]
        first += result.survey.rows
    return parts, surveys, (guesses, absent)


def size_of(entry: Entry) -> int:
    """Return the bytes of a source; those of one task if unknown."""
    location = entry.location
    try:
        if isinstance(location, Path) and location.is_dir():
            return sum(path.stat().st_size for path in location.rglob("*"))
        return int(location.stat().st_size)
    except Exception:  # noqa: BLE001 - stores raise anything; reading reports the error
        return PIECE


def grouped(items: Iterable[Any], sizes: Iterable[int]) -> list[list[Any]]:
    """Group consecutive items into tasks.

    Examples
    --------
    >>> grouped("abcd", [PIECE // 2, PIECE, 1, 2])
    [['a', 'b'], ['c', 'd']]
    """
    groups: list[list[Any]] = []
    size = PIECE
    for item, item_size in zip(items, sizes, strict=True):
        if size >= PIECE or len(groups[-1]) >= _MOST_FILES:
            groups.append([])
            size = 0
        groups[-1].append(item)
        size += item_size
    return groups


def require_unique_samples(sources: Sources, filled: Sequence[int]) -> bool:
    """Refuse samples with several rows, which would each be protected alone; return whether every file names its rows.

    Names that only count the rows, from 0, are compared with those of files where they do more.
    """
    key = blake2b(random_token().encode()).digest()
    known_samples = np.empty(0, "V16")
    owners = np.empty(0, np.int64)
    counting, named = set[int](), True
    for number in filled:
        with sources.named(number) as source:
            head = source.head
            if not head.samples or head.numbered:
                named = False
            if not head.samples:
                continue
            digests = np.concatenate([*source.units(key, head.samples)]).view("V16")[:, 0]
        people = np.unique(digests)
        twice = np.isin(known_samples, people)
        if head.numbered:
            twice &= ~np.isin(owners, list(counting))
            counting.add(number)
        other_files = listed(sorted({sources.entries[owner].shown for owner in owners[twice]}))
        where = sources.entries[number].shown
        if len(people) < len(digests) or other_files:
            repetition = (
                f"{counted(int(twice.sum()), 'sample')} of {other_files} again" if other_files else "a sample twice"
            )
            suffix, (label, *_) = PurePath(where).suffix.lower(), head.samples
            cure = ""
            if head.guess and suffix in _OPENED:  # a coordinate, which may be of years or places
                cure = f" If {label!r} names no persons, leave it out: xarray.{_OPENED[suffix]}({where!r})."

                cure += f"drop_vars({label!r}).to_netcdf('NEW.nc')."
            raise DataError(
                f"{where} names {repetition}: one person would have several rows. Remove the repetition, rename "
                f"samples of different people, or declare a privacy unit with {parameter('max_rows', 'M')} and "
                f"{units_named(head)}.{cure}"
            )
        known_samples = np.concatenate([known_samples, people])
        owners = np.append(owners, np.full(len(people), number))
    return named


def units_named(head: Head) -> str:
    """Return the option that declares a privacy unit by the labels of a file, or else by its samples."""
    if len(head.beside) > 1:
        return f"{parameter('privacy_unit')} of {listed(head.beside)}"
    return parameter("privacy_unit", ",".join(head.beside or head.samples))


def _require_no_index(where: object, head: Head, keep: Places) -> None:
    """Ask whether to keep columns that may be an index; values cannot tell, as rows may have been filtered."""
    indexes = [column for column in head.indexes if column in keep]
    if not indexes:
        return
    quoted = listed(repr(head.names[column]) for column in indexes)
    it = "it" if len(indexes) == 1 else "them"
    other_names = [head.names[column] for column in keep if column not in indexes]
    all_names = [head.names[column] for column in keep]
    raise ChoiceRequiredError(
        f"{where}: {quoted} {'has' if len(indexes) == 1 else 'have'} no name, or may be an index or a count of the "
        "rows, and would be summed like a measurement.",
        [only_columns(other_names, f"leaves {it} out")] * (len(other_names) > 1)
        + [only_columns(all_names, f"keeps {it}")],
    )


def require_publishable(where: object, names: tuple[str, ...]) -> None:
    """Refuse column names that look the same, or hold characters that cannot be seen."""
    for index, name in enumerate(names):
        if has_control(name):
            raise DataError(
                f"{where}: the name of column {index + 1} (counting from 1) holds a control or invisible character. "
                "Names are published and shown on terminals: rename the column."
            )
    if twice := repeated(map(visible, names)):
        raise DataError(f"{where} has several columns with the same name: {listed(twice)}. {renaming(where)}")


def kept_columns(names: tuple[str, ...], columns: Sequence[str] | None, unit: Unit | None) -> tuple[int, ...]:
    """Return the indices of the columns to keep, without the privacy unit."""
    if unit is not None and unit.column not in names:
        raise no_column(unit.column, names)
    if unit is not None and columns is not None and unit.column in columns:
        raise UsageError(
            f"The privacy unit {unit.column} is not summed, so it cannot be a column to keep. Leave it out.",
            parameter="columns",
        )
    if columns is None:
        return tuple(index for index, name in enumerate(names) if unit is None or name != unit.column)
    indexes = {name: index for index, name in enumerate(names)}
    if unknown := [name for name in columns if name not in indexes]:
        raise UsageError(
            f"There is no column {listed(map(repr, unknown))}. There are: {listed(map(repr, names))}. Put a name "
            "with a comma in double quotes.",
            parameter="columns",
        )
    if len(set(columns)) < len(columns):
        raise UsageError("A column is named twice. Name each column once.", parameter="columns")
    return tuple(indexes[name] for name in columns)


def _common_dtype(surveys: Sequence[Survey]) -> np.dtype[np.generic]:
    """Return the type that holds the rows of all files; integers in text are ranged together (uint8, int8 -> int8)."""
    dtypes = [np.dtype(survey.dtype) for survey in surveys if survey.span is None]
    spans = [survey.span for survey in surveys if survey.span is not None]
    if spans:
        low, high = min(low for low, _ in spans), max(high for _, high in spans)
        infos = [np.iinfo(name) for name in _INTEGERS]
        dtypes.append(next(info.dtype for info in infos if info.min <= low and high <= info.max))
    return np.result_type(*dtypes)
