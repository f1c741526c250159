"""Rows of an array as a table: its chunks are slices of it, or the blocks of a Dask array, and are read in place.

A first pass, the survey, reads every chunk once: it records the checksum of each, keyed sums that recognise the rows
(:mod:`dpdist.core.ledger.register`), and what must be known before anything is charged. Later passes read the chunks
again and compare them with the checksums, so a lazy array that returns other rows is an error. All results are private.

NaN and infinity are found by the survey. Where they count as the centre of their column, a chunk has NaN in such cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError
from dpdist.core.frames import sum_duplicates
from dpdist.core.ledger.fingerprints import KEPT, Fingerprints, Order, row_digests
from dpdist.core.moment.total import piece_rows
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.columns import DTYPES
from dpdist.core.rows.dataset import RowsTable

Values = npt.NDArray[np.float64]
Rows = npt.NDArray[np.generic]
_PIECE_BYTES = 8 << 20
"""Bytes, as float64, of the rows read from disk at once, and of a chunk."""
_ALIKE = 1e-6
_ROUNDING = 1e-6  # of float32 rows, too
"""A mean this small relative to the root mean square indicates that the column mean was subtracted."""


def dense(rows: Any) -> Rows:
    """Return rows as a C-ordered NumPy array; types other than the stored ones become float64."""
    if isinstance(rows, np.ma.MaskedArray):
        raise DataError("A block of X is a masked array. Fill masked entries by a public rule (X.filled).")
    array = np.ascontiguousarray(sum_duplicates(rows).toarray() if hasattr(rows, "tocsr") else rows)
    usual = array.dtype.name in DTYPES and array.dtype.isnative
    return array if usual else array.astype(np.float64)


def with_centre(rows: Rows, centre: Sequence[float] | Values | float | None) -> Rows:
    """Return rows with their centre, if it is known, in place of NaN and infinity."""
    finite = np.isfinite(rows)
    return rows if centre is None or finite.all() else np.where(finite, rows, centre)


def piece_of(data: Any) -> int:
    """Return the rows that are read at once: about 8 MiB, and whole chunks of a Zarr array or HDF5 file."""
    step = max(1, _PIECE_BYTES // (8 * max(1, int(data.shape[1]))))
    chunk = getattr(data, "chunks", None)
    return max(1, step // chunk[0]) * chunk[0] if chunk else step


def batches(data: Any, rows: range) -> Iterator[tuple[slice, Rows]]:
    """Yield slices of an array with their rows, about 8 MiB at a time."""
    step = piece_of(data)
    for start in range(rows.start, rows.stop, step):
        index = slice(start, min(start + step, rows.stop))
        yield index, dense(data[index])


@dataclass(frozen=True)
class ArrayChunks:
    """The chunks of an array: a :class:`dpdist.core.rows.table.Reference`."""

    starts: tuple[int, ...]  # first row of each chunk, and n
    checksums: tuple[int, ...]
    width: int
    missing: bool  # whether NaN and infinity count as the centre
    data: Any = field(repr=False)  # the array, or one block of it on a worker, or None
    offset: int = 0  # the first row of the data

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.checksums)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the rows as float64."""
        return 8 * self.width * self.starts[-1]

    @property
    def buffer_bytes(self) -> int:
        """Memory in bytes for reading them."""
        return 2 * _PIECE_BYTES

    def first_row(self, index: int) -> int:
        """Return the number of the first row of a chunk; n for the index after the last chunk."""
        return self.starts[index]

    def chunk_of(self, row: int) -> int:
        """Return the index of the chunk of a row."""
        return int(np.searchsorted(np.array(self.starts), row, side="right")) - 1

    def reading(self) -> ArrayReader:
        """Return a reader."""
        return ArrayReader(self)


class ArrayReader:
    """Reads chunks of an array: a :class:`dpdist.core.rows.table.ChunkBatches`."""

    def __init__(self, chunks: ArrayChunks) -> None:
        self._chunks = chunks
        self.checksum = 0

    def read(self, index: int, piece_rows: int) -> Iterator[Rows]:
        """Yield the rows of a chunk; DataError if they are not those of the survey."""
        chunks, checksum = self._chunks, 0
        start, stop = (row - chunks.offset for row in chunks.starts[index : index + 2])
        wrong = chunks.data.shape[0] < stop
        for _, rows in batches(chunks.data, range(start, stop)) if not wrong else ():
            checksum = google_crc32c.extend(checksum, rows.reshape(-1).view(np.uint8))
            for first in range(0, len(rows), piece_rows):
                part = rows[first : first + piece_rows]
                yield with_centre(part, np.nan) if chunks.missing and part.dtype.kind == "f" else part
        if wrong or checksum != chunks.checksums[index]:
            raise DataError(
                "X returned different rows on the second read, as a lazy array does that draws random numbers or whose "
                "files changed. The first pass is charged, and nothing was released. Compute or store X before "
                "fitting."
            )
        self.checksum = checksum


@dataclass(frozen=True, kw_only=True)
class ArrayTable(RowsTable):
    """The rows of an array as a table; its ledger is in memory."""

    chunked: ArrayChunks
    missing: bool = False

    def __str__(self) -> str:
        return "X"

    @property
    def published_as(self) -> str:
        """Its ledger, of which each release has one: whether the rows of two releases are equal is private."""
        return str(self.ledger_id)

    @property
    def centring(self) -> bool:
        """Whether a missing cell counts as the centre of its column."""
        return self.missing

    def of_block(self, number: int, block: Any) -> ArrayTable:
        """Return the table with one block, on the worker that has it."""
        return replace(self, reference=replace(self.chunked, data=block, offset=self.chunked.starts[number]))


@dataclass(frozen=True)
class Survey:
    """What the first pass finds in some chunks. Private."""

    rows: int
    fingerprints: Fingerprints  # recognise the rows in the register
    finite: bool  # whether every value is a finite number
    reaching: int  # rows whose norm, after the public shift and scale, is the clip norm to six digits
    beyond: int  # rows with a larger norm
    sums: Values  # (d,): column sums of the rows
    squares: Values  # (d,): column sums of squares
    chunks: Mapping[int, tuple[int, int]]  # rows and checksum of each chunk
    orders: Mapping[int, Order]  # of the rows of each chunk

    @property
    def order(self) -> tuple[int, int]:
        """What identifies the order of all rows, whatever the chunks."""
        low = high = start = 0
        for _, order in sorted(self.orders.items()):
            first, second = order.placed_after(start)
            low, high, start = (low + first) % 2**64, (high + second) % 2**64, start + order.rows
        return low, high

    def __sizeof__(self) -> int:
        # Dask's scheduler uses it to place additions and to watch the memory of workers
        return object.__sizeof__(self) + self.fingerprints.nbytes

    @property
    def clipped_by_data(self) -> bool:
        """Whether only the longest row has the clip norm; many such rows indicate a public rule."""
        return self.reaching == 1 and not self.beyond

    @property
    def standardised_by_data(self) -> bool:
        """Whether every nonzero column has mean zero and variance one, as by a ``StandardScaler``."""
        used = self.squares > 0
        return self.centred_by_data and bool((np.abs(self.squares[used] / self.rows - 1) <= _ROUNDING).all())

    @property
    def centred_by_data(self) -> bool:
        """Whether every nonzero column has mean zero, as after subtracting the column means."""
        used = self.squares > 0
        sums, squares = self.sums[used], self.squares[used]
        if not (used.any() and np.isfinite(squares).all()):
            return False
        return bool((np.abs(sums) <= _ROUNDING * np.sqrt(squares) * self.rows**0.5).all())


@dataclass(frozen=True)
class Surveyor:
    """Surveys chunks of an array, or a block."""

    bound: RowBound
    key: bytes = field(repr=False)  # Dask logs the arguments of a task that fails

    def of_block(self, block: Any, number: int) -> Survey:
        """Survey a block, (r, d), which is one chunk."""
        return self.of_chunks(block, [(number, 0, block.shape[0])])

    def of_chunks(self, data: Any, chunks: Sequence[tuple[int, int, int]]) -> Survey:
        """Survey chunks, given by number, first row and end."""
        running, found, step = _Running(self), dict[int, tuple[int, int]](), piece_rows(self.bound.columns)
        orders = dict[int, Order]()
        for number, start, stop in chunks:
            checksum, orders[number] = 0, Order()
            for _, rows in batches(data, range(start, stop)):
                checksum = google_crc32c.extend(checksum, rows.reshape(-1).view(np.uint8))
                for first in range(0, len(rows), step):
                    running.add(rows[first : first + step], orders[number])
            found[number] = stop - start, checksum
        return running.survey(found, orders)


class _Running:
    """The sums of a survey, in batches that fit the cache."""

    def __init__(self, surveyor: Surveyor) -> None:
        self._bound, self._key = surveyor.bound, surveyor.key
        width = self._bound.columns
        self._prints, self._pending = [Fingerprints.of(np.empty((0, width)), self._key)], 0
        self._finite, self._reaching, self._beyond = True, 0, 0
        self._sums, self._squares = np.zeros(width), np.zeros(width)

    def add(self, rows: Rows, order: Order) -> None:
        """Add a batch, (r, d), of a chunk whose rows have an order."""
        values = rows.astype(np.float64)
        digests = row_digests(values, self._key)
        order.add(digests)
        self._prints.append(Fingerprints.of_digests(digests))
        self._pending += len(values)
        if self._pending >= KEPT:  # a union for every batch would be slow
            self._prints, self._pending = [Fingerprints.union(self._prints)], 0
        with np.errstate(all="ignore"):  # a warning of overflow would reveal something about the data
            self._finite &= bool(np.isfinite(values).all())
            self._sums += values.sum(axis=0)
            self._squares += np.einsum("ij,ij->j", values, values)
            self._bound.shifted(rows, values)
            values = values[:, list(self._bound.numbers)] if self._bound.whole else values
            norms = np.sqrt(np.einsum("ij,ij->i", values, values)) / self._bound.clip_norm
            self._reaching += int((np.abs(norms - 1) <= _ALIKE).sum())
            self._beyond += int((norms > 1 + _ALIKE).sum())

    def survey(self, chunks: Mapping[int, tuple[int, int]], orders: Mapping[int, Order]) -> Survey:
        """Return what was found in some chunks."""
        return Survey(
            sum(rows for rows, _ in chunks.values()), Fingerprints.union(self._prints), self._finite, self._reaching,
            self._beyond, self._sums, self._squares, chunks, orders,
        )  # fmt: skip


def add_surveys(total: Survey, part: Survey) -> Survey:
    """Add the survey of other chunks."""
    with np.errstate(all="ignore"):
        sums, squares = total.sums + part.sums, total.squares + part.squares
    return Survey(
        total.rows + part.rows, Fingerprints.union([total.fingerprints, part.fingerprints]),
        total.finite and part.finite, total.reaching + part.reaching, total.beyond + part.beyond, sums, squares,
        {**total.chunks, **part.chunks}, {**total.orders, **part.orders},
    )  # fmt: skip


def chunks_of(data: Any) -> list[tuple[int, int, int]]:
    """Cut an array into chunks: number, first row and end of each."""
    step, rows = piece_of(data), int(data.shape[0])
    return [(number, start, min(start + step, rows)) for number, start in enumerate(range(0, rows, step))]


def chunk_references(survey: Survey, data: Any, *, missing: bool) -> ArrayChunks:
    """Return the chunks of an array as the survey found them."""
    counts = [survey.chunks[number] for number in range(len(survey.chunks))]
    starts = tuple(np.cumsum([0, *(rows for rows, _ in counts)]).tolist())
    return ArrayChunks(starts, tuple(checksum for _, checksum in counts), len(survey.sums), missing, data)


def known_rows(data: Any) -> int | None:
    """Return the number of rows; None if it is unknown before they are computed."""
    rows = data.shape[0]
    return None if math.isnan(rows) else int(rows)
