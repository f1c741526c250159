"""The first steps of an ingest: where text can be cut, and what every file holds, found on whoever is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpdist.errors import DataError
from dpdist.ingest.readers.base import Places, joined
from dpdist.ingest.sources import NoRowsError, Source, Survey
from dpdist.ingest.steps import Hands, Run, Step, put_plan
from dpdist.storage.store import Store

PIECE = 128 << 20
"""Bytes that one unit takes on, about: it is the same whoever computes, so that a second run finds the same pieces."""
_MOST_FILES = 256
"""Files that one unit looks at."""


class Span(NamedTuple):
    """Rows of one file that are read by themselves.

    Attributes
    ----------
    source
        Number of the file.
    start, stop
        None: the whole file. Else the rows, or where ``cut``, the bytes.
    first, rows
        Number of the first row in the file, and how many they are.
    cut
        Whether they are a piece of text.
    """

    source: int
    start: int | None
    stop: int | None
    first: int
    rows: int
    cut: bool = False


class Found(NamedTuple):
    """What was found of a file.

    Attributes
    ----------
    survey
        Its rows and type; None where it has no rows, which a file of a period may.
    guess
        What was guessed of it, or None.
    spans
        Pieces of text that it is read in, or none.
    ends
        Numbers of rows between which it can be read in parts, or None.
    """

    survey: Survey | None
    guess: str | None
    spans: list[Span]
    ends: npt.NDArray[np.int64] | None


class Scan(Step):
    """Looks at ranges of bytes of text, for where lines end."""

    name, label, follows = "scan", "Looking for lines", "ranges"

    def do(self, unit: int, hands: Hands) -> Any:
        """Look at one range."""
        number, start, stop = self.planned[unit]
        return hands.opened(number).scan(start, stop).hex()


class Look(Step):
    """Surveys files, or pieces of them."""

    name, label, follows = "look", "Surveying files", "files"

    def do(self, unit: int, hands: Hands) -> Any:
        """Survey some of them."""
        plan = self.planned
        names, keep = tuple(plan["names"]), tuple(plan["keep"])
        found = []
        for number, cut in plan["units"][unit]:
            source = hands.opened(number)
            if cut is None or cut[0] == 0:
                require_names(source, names, plan["first"])
            if cut is not None:
                survey: Survey | None = source.piece_survey(keep, *cut)
            else:
                survey = survey_of(source, keep, may_be_empty=plan["period"])
            ends = None if cut is not None or survey is None else _ends_of(source, keep, survey, plan["large"])
            guess = source.guess if cut is None or cut[0] == 0 else None
            found.append((None if survey is None else (survey.rows, survey.dtype.name, survey.span), guess, ends))
        return found


def _ends_of(source: Source, keep: Places, survey: Survey, large: int) -> list[int] | None:
    if survey.rows * len(keep) * survey.dtype.itemsize <= large:
        return None
    try:
        runs = source.runs(keep)
    except DataError:  # too much of it is read at once: a reader that starts at the beginning has other ways
        return None
    return None if runs is None else runs.ends.tolist()


def survey_of(source: Source, keep: Places, *, may_be_empty: bool) -> Survey | None:
    """Return what a file holds, or None for one without rows: of a period, whether it had one row may be private."""
    try:
        return source.survey(keep)
    except NoRowsError:
        if not may_be_empty:
            raise
    return None


def require_names(source: Source, names: tuple[str, ...], first: object) -> None:
    """Refuse a file that has other columns than the first one: DataError."""
    if source.names != names:
        raise DataError(f"{source.path} has other columns than {first}. Give all files the same, in one order.")


def look_over(
    aside: Store,
    digest: str,
    sources: Sequence[Source],
    sizes: Sequence[int],
    names: tuple[str, ...],
    keep: Places,
    compute: Run,
    *,
    may_be_empty: bool,
) -> list[Found]:
    """Return what is found of every source.

    Parameters
    ----------
    aside, digest
        What is being built, and the digest of the sources that were put aside there.
    sources
        The same, open.
    sizes
        What :func:`size_of` says of each.
    names, keep
        All columns of the first, and the places of those that are kept.
    compute
        What computes units.
    may_be_empty
        Whether files may be without rows.

    Raises
    ------
    DpdistError
        What is wrong with the first file with which something is.
    """
    cuts = _cut(aside, digest, sources, sizes, compute)
    spans = [(number, cut) for number in range(len(sources)) for cut in cuts.get(number, [None])]
    units = grouped(spans, [sizes[number] if cut is None else cut[1] - cut[0] for number, cut in spans])
    plan = {
        "names": names, "first": str(sources[0].path), "keep": keep, "period": may_be_empty, "large": PIECE,
        "units": units,
    }  # fmt: skip
    step = Look(aside, digest, put_plan(aside, Look.follows, plan))
    step.run(len(units), compute)
    told = [each for unit in range(len(units)) for each in step.found(unit)]
    by_source: dict[int, list[tuple[Any, Any]]] = {}
    for (number, cut), said in zip(spans, told, strict=True):
        by_source.setdefault(number, []).append((cut, said))
    return [_found(number, sources[number], keep, by_source[number]) for number in range(len(sources))]


def _found(number: int, source: Source, keep: Places, told: list[tuple[Any, Any]]) -> Found:
    surveys = [None if said[0] is None else _survey(*said[0]) for _, said in told]
    guess, ends = told[0][1][1:]
    if told[0][0] is None:
        return Found(surveys[0], guess, [], None if ends is None else np.array(ends, dtype=np.int64))
    spans, first = [], 0
    for (start, stop), (rows, _, _) in ((cut, said[0]) for cut, said in told):
        spans.append(Span(number, start, stop, first, rows, cut=True))
        first += rows
    whole = joined([each for each in surveys if each is not None])
    return Found(source.survey(keep) if whole is None else whole, guess, [each for each in spans if each.rows], None)


def _survey(rows: int, dtype: str, span: list[int] | None) -> Survey:
    return Survey(rows, np.dtype(dtype), None if span is None else (span[0], span[1]))


def _cut(
    aside: Store, digest: str, sources: Sequence[Source], sizes: Sequence[int], compute: Run
) -> dict[int, list[tuple[int, int]]]:
    """Return where text is cut, of the files that are long enough and can be."""
    ranges = {
        number: found
        for number, source in enumerate(sources)
        if sizes[number] > PIECE and (found := _ranges(source)) is not None
    }
    if not ranges:
        return {}
    units = [(number, start, stop) for number, each in ranges.items() for start, stop in each]
    step = Scan(aside, digest, put_plan(aside, Scan.follows, units))
    step.run(len(units), compute)
    said: dict[int, list[bytes]] = {}
    for unit, (number, _, _) in enumerate(units):
        said.setdefault(number, []).append(bytes.fromhex(step.found(unit)))
    cuts = {number: sources[number].pieces(scans) for number, scans in said.items()}
    return {number: found for number, found in cuts.items() if found is not None and len(found) > 1}


def _ranges(source: Source) -> list[tuple[int, int]] | None:
    try:
        return source.ranges(PIECE)
    except DataError:  # whoever surveys the file says what is wrong, when its turn has come
        return None


def size_of(source: Source) -> int:
    """Return the bytes of a source; what a place does not tell counts as much as a unit takes on."""
    try:
        if isinstance(source.path, Path) and source.path.is_dir():
            return sum(path.stat().st_size for path in source.path.rglob("*"))
        return int(source.path.stat().st_size)
    except Exception:  # noqa: BLE001 - whatever a store raises; whoever reads it says what is wrong
        return PIECE


def grouped(items: Iterable[Any], sizes: Iterable[int]) -> list[list[Any]]:
    """Put consecutive items together, as much as one unit takes on.

    Examples
    --------
    >>> grouped("abcd", [PIECE // 2, PIECE, 1, 2])
    [['a', 'b'], ['c', 'd']]
    """
    found: list[list[Any]] = []
    size = PIECE
    for item, each in zip(items, sizes, strict=True):
        if size >= PIECE or len(found[-1]) >= _MOST_FILES:
            found.append([])
            size = 0
        found[-1].append(item)
        size += each
    return found
