"""The last steps of an ingest: rows are written piece by piece, and chunks that pieces share are put together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpdist.ingest.looking import PIECE, Found, Span, grouped
from dpdist.ingest.readers.base import Places, Rows, changed, fits, require_finite
from dpdist.ingest.sources import Source
from dpdist.ingest.states import watching
from dpdist.ingest.steps import WORK, Hands, Run, Step, put_plan
from dpdist.rows.table import Shape
from dpdist.rows.units import KeptRows, among
from dpdist.rows.writing import FRAGMENTS, RowsWriter, join_chunk, shared_chunks
from dpdist.storage.arrays import ROOT
from dpdist.storage.store import Store

_KEPT = f"{WORK}/kept"
"""A bit for every row of the sources, where not all are kept."""
_JOINED = 16
"""Chunks that one unit puts together."""


class Piece(NamedTuple):
    """Consecutive rows that one unit writes.

    Attributes
    ----------
    first, kept
        Number of the first row in the table, and how many they are there.
    row
        Number of the first row among those of all sources.
    spans
        Where they are.
    """

    first: int
    kept: int
    row: int
    spans: list[Span]


def cut_into_pieces(found: Sequence[Found], row_bytes: int, kept: KeptRows | None) -> list[Piece]:
    """Cut the rows of all sources into pieces, each as long as one unit takes on, or as its file allows.

    Parameters
    ----------
    found
        What was found of each source.
    row_bytes
        Bytes of a row of the table.
    kept
        Which rows are kept; None: all.
    """
    spans = [span for number, each in enumerate(found) for span in _spans(number, each, row_bytes)]
    pieces, first, row = [], 0, 0
    for group in grouped(spans, [span.rows * row_bytes for span in spans]):
        rows = sum(span.rows for span in group)
        count = rows if kept is None else kept.counted(row, rows)
        pieces.append(Piece(first, count, row, group))
        first, row = first + count, row + rows
    return pieces


def _spans(number: int, found: Found, row_bytes: int) -> Iterable[Span]:
    if found.survey is None:
        return
    rows = found.survey.rows
    if found.spans or found.ends is None or rows * row_bytes <= PIECE:
        yield from found.spans or [Span(number, None, None, 0, rows)]
        return
    start = 0
    while start < rows:
        at = int(np.searchsorted(found.ends, start + max(1, PIECE // row_bytes)))
        stop = int(found.ends[min(at, len(found.ends) - 1)])
        yield Span(number, start, stop, start, stop - start)
        start = stop


def put_pieces(
    aside: Store, shape: Shape, names: Sequence[str], keep: Places, pieces: Sequence[Piece], kept: KeptRows | None
) -> str:
    """Put aside what is to be written, and return its digest."""
    if kept is not None:
        aside.put(_KEPT, kept.bits)
        aside.flush([_KEPT])
    plan = {"shape": astuple(shape), "names": names, "keep": keep, "some": kept is not None, "pieces": pieces}
    return put_plan(aside, Write.follows, plan)


class OfPieces(Step):
    """A step that follows the plan of pieces, each of which begins with its first row and how many it has."""

    follows = "pieces"

    @property
    def shape(self) -> Shape:
        """The table."""
        return Shape(*self.planned["shape"])


class Write(OfPieces):
    """Writes the chunks within a piece, and fragments at its ends."""

    name, label = "write", "Ingesting"

    def piece(self, unit: int) -> Piece:
        """Return a piece."""
        first, kept, row, spans = self.planned["pieces"][unit]
        return Piece(first, kept, row, [Span(*each) for each in spans])

    def do(self, unit: int, hands: Hands) -> Any:
        """Write one piece."""
        piece = self.piece(unit)
        guard = _Guard()
        writer = RowsWriter(self.aside, self.shape, piece.first, piece.first + piece.kept, guard.before)
        row = piece.row
        for span in piece.spans:
            self._copy(span, row, hands, writer, guard)
            row += span.rows
        writer.flush()
        self.aside.flush(writer.keys)

    def _copy(self, span: Span, row: int, hands: Hands, writer: RowsWriter, guard: _Guard) -> None:
        plan, dtype = self.planned, np.dtype(self.planned["shape"][2])
        source = hands.opened(span.source)
        part = None if span.cut or span.start is None or span.stop is None else (span.start, span.stop)
        guard.same = watching(source, hands.known(span.source), part)
        found = 0
        with closing(_blocks(source, tuple(plan["keep"]), span)) as blocks:
            for block in blocks:
                if source.choices.schema is None:  # else what is not finite was refused, or its row is dropped
                    require_finite(source.path, span.first + found, block, plan["names"])
                if found + block.shape[0] > span.rows or not fits(block, dtype):
                    raise changed(source.path)
                wanted = block[self._kept(row + found, block.shape[0])] if plan["some"] else block
                writer.append(wanted)
                found += block.shape[0]
                hands.told(wanted.shape[0])
        if found != span.rows:
            raise changed(source.path)
        guard.before()

    def _kept(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        first = start // 8
        return among(self.aside.get_range(_KEPT, first, -(-(start + count) // 8) - first), start - 8 * first, count)


class _Guard:
    """What is asked before anything is written: whether the file that is read is still what it was."""

    def __init__(self) -> None:
        self.same: Any = bool

    def before(self) -> None:
        """Ask."""
        self.same()


def _blocks(source: Source, keep: Places, span: Span) -> Generator[Rows]:
    if span.start is None or span.stop is None:
        return source.blocks(keep)
    return (source.piece if span.cut else source.part)(keep, span.start, span.stop)


class Join(OfPieces):
    """Puts chunks together of which several pieces wrote fragments."""

    name, label = "join", "Joining chunks"

    def shared(self) -> list[tuple[int, list[int]]]:
        """Return these chunks, and where their fragments begin."""
        starts = [first for first, kept, *_ in self.planned["pieces"] if kept]
        return list(shared_chunks(self.shape, starts).items())

    @property
    def units(self) -> int:
        """How many units put them together."""
        return -(-len(self.shared()) // _JOINED)

    def do(self, unit: int, hands: Hands) -> Any:  # noqa: ARG002 - no source is read
        """Put some of them together."""
        some = self.shared()[unit * _JOINED : (unit + 1) * _JOINED]
        self.aside.flush([join_chunk(self.aside, self.shape, index, begins) for index, begins in some])


def write_pieces(aside: Store, sources: str, plan: str, compute: Run) -> None:
    """Write all pieces, and the chunks that they share.

    Parameters
    ----------
    aside
        What is being built.
    sources, plan
        Digests of the sources and of the pieces, which were put aside.
    compute
        What computes units.

    Raises
    ------
    DpdistError
        What is wrong with the first row of all with which something is.
    """
    write, join = Write(aside, sources, plan), Join(aside, sources, plan)
    write.run(len(write.planned["pieces"]), compute)
    join.run(join.units, compute)


def complete(aside: Store, build: Callable[[], bytes]) -> None:
    """Complete a table that is built.

    Parameters
    ----------
    aside
        Where it is built.
    build
        Writes all its rows and returns its head, the last of its objects: when it is there, nothing else is to be done.
    """
    if not aside.exists(ROOT):
        aside.put(ROOT, build())
        aside.flush([ROOT])
    aside.drop(WORK)
    aside.drop(FRAGMENTS)
