"""The survey of a source: its columns, its fragments and their rows, and the type that holds all of them.

Files that announce rows and types are only opened; text is read once for it. Whoever surveys, this process or workers,
finds the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dpdist._util.text import counted, has_control, listed, random_token, repeated
from dpdist.errors import DataError, UsageError
from dpdist.ingest.readers.base import AskError, NoRowsError, Places, UncutError, changed, only_columns
from dpdist.ingest.readers.source import Entry, Fragment, Head, Source, Survey
from dpdist.ingest.readers.text import FRAGMENT
from dpdist.ingest.remote import Remote, location_of
from dpdist.ingest.sources import Opener, SourceLocation, Sources, require_distinct
from dpdist.naming import parameter
from dpdist.rows.units import Unit

PIECE = 128 << 20  # bytes that one task takes on, about
_MOST_FILES = 256  # files that one task surveys
_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")


class Part(NamedTuple):
    """A fragment of one of the files, with rows."""

    source: int  # number of the file
    fragment: Fragment  # None: the whole file
    first: int  # number of its first row in the file
    rows: int


class SourceSurvey(NamedTuple):
    """A source as its survey found it."""

    names: tuple[str, ...]  # of the columns that are kept
    keep: Places  # where these are in each file
    parts: list[Part]  # fragments with rows, in order
    dtype: np.dtype[np.generic]  # holds all rows
    guesses: list[str]  # what was guessed of files, for people to read
    head: Head  # of the first file that names columns

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(part.rows for part in self.parts)

    @property
    def filled(self) -> list[int]:
        """Numbers of the files that have rows."""
        return list(dict.fromkeys(part.source for part in self.parts))


class _FileSurvey(NamedTuple):
    """What one task found of a file, or of a fragment of text."""

    survey: Survey | None = None
    ends: npt.NDArray[np.int64] | None = None
    guess: str | None = None
    uncut: bool = False


class Job(Protocol):
    """What all units of a step of an ingest share."""

    name: str
    label: str

    def __call__(self, opener: Opener, task: Any, on_rows: Callable[[int], object]) -> Any:
        """Compute a unit, and tell of the rows that were written."""
        ...


Run = Callable[[Job, Sequence[Any]], list[Any]]  # computes units, and returns their results in order


@dataclass(frozen=True)
class SurveyFiles:
    """Opens files, and reads text for its rows and types."""

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
        """SurveyFiles at some of them."""
        return [self._survey_file(opener, number, fragment) for number, fragment in task]

    def _survey_file(self, opener: Opener, number: int, fragment: Fragment) -> _FileSurvey:
        guess = None
        with opener.named(self.entries[number]) as source:
            try:
                head = source.head
                if fragment is None or not fragment[0]:
                    guess = head.guess and opener.with_shown_name(head.guess, self.entries[number])
                    require_alike(source, self.like, self.entries[0].shown)
                survey = source.survey(self.keep, fragment)
            except NoRowsError:
                return _FileSurvey(guess=guess)
            except UncutError:
                return _FileSurvey(guess=guess, uncut=True)
            return _FileSurvey(survey, None if fragment is not None else self._ends(source, survey), guess)

    def _ends(self, source: Source, survey: Survey) -> npt.NDArray[np.int64] | None:
        if survey.rows * len(self.keep) * np.dtype(survey.dtype).itemsize <= PIECE:
            return None
        try:
            ends = source.fragments(self.keep).ends
        except DataError:  # too much of it is read at once: a reader that starts at the beginning has other ways
            return None
        return None if len(ends) < 2 else ends


def require_alike(source: Source, head: Head, first: object) -> None:
    """Refuse a file that has other columns than the first one, or others that are called alike: DataError."""
    if source.head.names != head.names:
        raise DataError(f"{source.path} has other columns than {first}. Give all files the same, in one order.")
    if source.head.meaning != head.meaning:
        raise DataError(
            f"{source.path} has other columns than {first}, though they are called alike: they count other alleles, or "
            "are of another variable, other coordinates or units. Write the files alike, or ingest one of them."
        )


def survey_source(
    location: SourceLocation,
    sources: Sources,
    columns: Sequence[str] | None,
    run: Run,
    *,
    sizes: Sequence[int],
    unit: Unit | None = None,
    may_be_empty: bool = False,
) -> SourceSurvey:
    """Survey files before anything is made of them."""
    number, head = first_head(sources)
    require_publishable(sources.entries[number].shown, head.names)
    keep = kept_columns(head.names, columns, unit)
    if len(keep) < 2:
        raise DataError(
            f"{location} gives {len(keep)} column(s), and a table needs two or more. Are the cells of a CSV file "
            "separated by commas, and enough columns kept?"
        )
    parts, surveys, guesses = _survey_files(sources.entries, sizes, head, keep, run)
    if not parts and not may_be_empty:
        if len(sources) > 1:
            raise NoRowsError(f"No file of {location} has rows. Add some.")
        with sources.named(0) as first:
            first.survey(keep)
            raise changed(first.path)
    if columns is None and parts:
        _require_no_index(sources.entries[number].shown, head, keep)
    require_distinct(sources.entries[number] for number in dict.fromkeys(part.source for part in parts))
    dtype = _common_dtype(surveys) if surveys else np.dtype(np.uint8)
    return SourceSurvey(tuple(head.names[index] for index in keep), keep, parts, dtype, guesses, head)


def first_head(sources: Sources) -> tuple[int, Head]:
    """Return the first file that names columns: one of several may be empty."""
    for number in range(len(sources)):
        try:
            with sources.named(number) as source:
                return number, source.head
        except NoRowsError:
            if number == len(sources) - 1:
                raise
    raise AssertionError("there is a file")


def _survey_files(
    entries: Sequence[Entry], sizes: Sequence[int], head: Head, keep: Places, run: Run
) -> tuple[list[Part], list[Survey], list[str]]:
    fragments: list[tuple[int, Fragment]] = []
    for number, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
        location = location_of(entry.location)
        fetched = isinstance(location, Remote) and location.web  # as a whole, by each task that reads a part
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
    parts, surveys, guesses, first = list[Part](), list[Survey](), list[str](), 0
    for (number, fragment), result in sorted(by_fragment.items(), key=lambda item: (item[0][0], item[0][1] or ())):
        guesses += [result.guess] if result.guess else []
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
    return parts, surveys, guesses


def size_of(entry: Entry) -> int:
    """Return the bytes of a source; what a place does not tell counts as much as a task takes on."""
    location = location_of(entry.location)
    try:
        if isinstance(location, Path) and location.is_dir():
            return sum(path.stat().st_size for path in location.rglob("*"))
        return int(location.stat().st_size)
    except Exception:  # noqa: BLE001 - whatever a store raises; whoever reads it says what is wrong
        return PIECE


def grouped(items: Iterable[Any], sizes: Iterable[int]) -> list[list[Any]]:
    """Put consecutive items together, as much as one task takes on.

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


def require_unique_samples(sources: Sources, filled: Sequence[int]) -> None:
    """Refuse samples that have several rows, in one file or in several: each row would be protected alone."""
    key = blake2b(random_token().encode()).digest()
    known_samples = np.empty(0, "V16")
    owners = np.empty(0, np.int64)
    for number in filled:
        with sources.named(number) as source:
            head = source.head
            if not head.samples:
                continue
            digests = np.concatenate([*source.units(key, head.samples)]).view("V16")[:, 0]
        people = np.unique(digests)
        twice = np.isin(known_samples, people)
        other_files = listed(sorted({sources.entries[owner].shown for owner in owners[twice]}))
        where = sources.entries[number].shown
        if len(people) < len(digests) or other_files:
            repetition = (
                f"{counted(int(twice.sum()), 'sample')} that {other_files} names, too"
                if other_files
                else "a sample twice"
            )
            raise DataError(
                f"{where} names {repetition}: one person would have several rows. Leave the repetition out, name the samples "
                f"apart if they are different people, or say whose each row is, by {parameter('max_rows')} "
                f"and {units_named(head)}."
            )
        known_samples = np.concatenate([known_samples, people])
        owners = np.append(owners, np.full(len(people), number))


def units_named(head: Head) -> str:
    """Return how a privacy unit is given by the labels of a file; by its samples where there are no others."""
    labels = [label for label in head.labels if label not in head.samples]
    if len(labels) > 1:
        return f"{parameter('privacy_unit')} of {listed(labels)}"
    return parameter("privacy_unit", ",".join(labels or head.samples))


def _require_no_index(where: object, head: Head, keep: Places) -> None:
    """Ask whether columns that may be an index are kept; no value decides, for rows may have been filtered."""
    indexes = [column for column in head.indexes if column in keep]
    if not indexes:
        return
    quoted = listed(repr(head.names[column]) for column in indexes)
    other_names = [head.names[column] for column in keep if column not in indexes]
    all_names = [head.names[column] for column in keep]
    raise AskError(
        f"{where}: {quoted} {'is' if len(indexes) == 1 else 'are'} without a name, or the index of a data frame, and would "
        "be summed like a measurement.",
        [only_columns(other_names, "leaves it out")] * (len(other_names) > 1)
        + [only_columns(all_names, "keeps it as a column")],
    )


def require_publishable(where: object, names: tuple[str, ...]) -> None:
    """Refuse names of columns that cannot be published, or that several columns have: DataError."""
    for index, name in enumerate(names):
        if has_control(name):
            raise DataError(
                f"{where}: the name of column {index + 1} (counting from 1) holds a control character. Names are "
                "published, and shown on terminals: rename the column."
            )
    if twice := repeated(names):
        raise DataError(f"{where} has several columns of one name: {listed(twice)}. Rename them.")


def kept_columns(names: tuple[str, ...], columns: Sequence[str] | None, unit: Unit | None) -> tuple[int, ...]:
    """Return the places of the columns to keep; that of the privacy unit is not one of them."""
    if unit is not None and unit.column not in names:
        raise UsageError(f"There is no column {unit.column}. There are: {listed(names)}.", parameter="privacy_unit")
    if unit is not None and columns is not None and unit.column in columns:
        raise UsageError(
            f"The privacy unit {unit.column} cannot be one of the columns that are kept.", parameter="columns"
        )
    if columns is None:
        return tuple(index for index, name in enumerate(names) if unit is None or name != unit.column)
    indexes = {name: index for index, name in enumerate(names)}
    if unknown := [name for name in columns if name not in indexes]:
        raise UsageError(
            f"There is no column {listed(map(repr, unknown))}. There are: {listed(map(repr, names))}. A name with a "
            "comma in it stands in double quotes.",
            parameter="columns",
        )
    if len(set(columns)) < len(columns):
        raise UsageError("A column is named twice; name each column once.", parameter="columns")
    return tuple(indexes[name] for name in columns)


def _common_dtype(surveys: Sequence[Survey]) -> np.dtype[np.generic]:
    """Return the type that holds the rows of all files.

    Whole numbers written as text are judged together: two files that need uint8 and int8 may both fit int8.
    """
    dtypes = [np.dtype(survey.dtype) for survey in surveys if survey.span is None]
    spans = [survey.span for survey in surveys if survey.span is not None]
    if spans:
        low, high = min(low for low, _ in spans), max(high for _, high in spans)
        infos = [np.iinfo(name) for name in _INTEGERS]
        dtypes.append(next(info.dtype for info in infos if info.min <= low and high <= info.max))
    return np.result_type(*dtypes)
