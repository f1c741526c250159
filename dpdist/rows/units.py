"""Privacy units: somebody may own several rows, and of everybody's rows at most M are kept, the first in order.

**Theorem.** Let two sources differ in the rows of one unit only, however many these are and wherever they stand. Then
the kept tables differ in at most M rows, all of that unit; the kept rows of every other unit are the same.

*Proof.* A row is kept when fewer than M rows of its own unit stand before it. That number does not depend on rows of
other units, nor on where these stand; so of each other unit the same rows are kept, and of the one at most M. ∎

So sums over kept rows are as private for a whole unit as the sensitivity of M rows says
(:mod:`dpdist.mechanisms.sensitivity`), under add-remove: one unit more or fewer. Under replace-one the number of kept
rows is public, and the kept rows of one unit are exchanged for as many others.

Two units must never be taken for one, or the rows of the one would decide which of the other are kept. So a unit is a
whole number that is read exactly; whatever may have been rounded is refused. Or it is a keyed digest of its name, 128
bits of BLAKE2b: two of N units have the same with probability N² 2^-129 at most, less than 2^-69 for a billion. The key
is drawn for each ingest and dies with its process, so nobody who chooses names knows which would agree.

Memory: one bit per row of the source, and about 64 bytes for every 256th unit; the rest is in nameless temporary files
of 16 bytes per row, 24 with digests, which are gone when the process is. Units are stored nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from dpdist._util.ids import random_token
from dpdist._util.text import counted
from dpdist.errors import DataError, UsageError
from dpdist.naming import parameter
from dpdist.privacy.persons import MOST_PERIODS

_BITS = 8
"""Of the hash that deals rows out to files: 256 of them."""
_PIECE = 1 << 17
"""Rows of a part that are looked at together: 2 MiB."""

Numbers = npt.NDArray[np.int64]
Digests = npt.NDArray[np.bytes_]
"""Of 16 bytes each."""
UNIT_BYTES = 24
"""Bytes that a temporary file takes of a row, at most."""


@dataclass(frozen=True)
class Unit:
    """The privacy unit of a table.

    Parameters
    ----------
    column
        Name of the source's column that says whose row it is; it is not stored with the rows.
    max_rows
        M: how many rows of each unit are kept at most; where rows come in periods, of each period.
    max_periods
        K: in how many periods rows of each unit are kept at most (:mod:`dpdist.rows.persons`); None: rows do not come
        in periods.

    Raises
    ------
    UsageError
        If M or K is not positive, or too large.
    """

    column: str
    max_rows: int
    max_periods: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_rows <= 2**20:
            raise UsageError(f"The rows kept of each privacy unit are from 1 to {2**20}.", parameter="max_rows")
        if self.max_periods is not None and not 1 <= self.max_periods <= MOST_PERIODS:
            raise UsageError(f"The periods of each privacy unit are from 1 to {MOST_PERIODS}.", parameter="max_periods")

    @property
    def most(self) -> str:
        """How many rows it has at most, as part of a sentence."""
        if self.max_periods is None:
            return f"{self.max_rows} at most"
        return f"{self.max_rows} a period in {counted(self.max_periods, 'period')} at most"

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def whole_numbers(
    path: Path, start: int, values: npt.NDArray[np.number], kept_as: np.dtype[np.generic] | None = None
) -> Numbers:
    """Return units as int64, exactly.

    Parameters
    ----------
    path, start
        The file they are from, and the number of the first row, for messages.
    values
        Shape (r,).
    kept_as
        Their type in the file, where they were widened since; None: that of the values.

    Raises
    ------
    DataError
        If one is not a whole number, or so large that it may have been rounded when it was read.
    """
    kind = values.dtype if kept_as is None else kept_as
    if kind.kind == "f":
        # from here on, two whole numbers that differ may be one float of this type: 2^53, 2^24 or 2^11
        exact = 2.0 ** (np.finfo(kind.name).nmant + 1)
        with np.errstate(invalid="ignore"):
            sound = (np.abs(values) < exact) & (values == np.trunc(values))
    else:
        sound = values <= np.iinfo(np.int64).max
    if not sound.all():
        raise DataError(
            f"{path}, row {start + int(np.argmin(sound))} (counting from 0): the privacy unit must be a whole number, "
            "and in CSV and columns of floats below 2^53, in columns of float32 below 2^24, of float16 below 2^11: two "
            "units that are rounded to one would not be protected apart. Store them as integers and ingest again."
        )
    return values.astype(np.int64)


class KeptRows:
    """Which rows of a source are kept, a bit for each."""

    def __init__(self, rows: int) -> None:
        self._bits = np.zeros(-(-rows // 8), dtype=np.uint8)
        self.count = 0
        """How many are kept: under replace-one public, otherwise private."""

    def add(self, rows: Numbers) -> None:
        """Keep rows by their numbers, each once."""
        np.bitwise_or.at(self._bits, rows >> 3, (1 << (rows & 7)).astype(np.uint8))
        self.count += rows.size

    def leave_out(self, others: KeptRows) -> None:
        """Keep none of the rows of others, of the same source."""
        self._bits &= ~others._bits
        self.count = self.counted(0, 8 * self._bits.size)

    def among(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        """Say of so many rows from one on which are kept."""
        return among(self.bits, start, count)

    @property
    def bits(self) -> memoryview:
        """The bits, the first row in the lowest one of the first byte."""
        return self._bits.data

    def counted(self, start: int, count: int) -> int:
        """Return how many of so many rows from one on are kept."""
        places = range(start, start + count, _PIECE)
        return sum(int(self.among(at, min(_PIECE, start + count - at)).sum()) for at in places)


def among(bits: bytes | memoryview, start: int, count: int) -> npt.NDArray[np.bool_]:
    """Say of so many rows from one on which are kept, by the bits of :class:`KeptRows`."""
    first, last = start // 8, -(-(start + count) // 8)
    found = np.unpackbits(np.frombuffer(bits, dtype=np.uint8)[first:last], bitorder="little").astype(np.bool_)
    return found[start - 8 * first :][:count]


def first_rows(units: Iterable[Numbers | Digests], rows: int, most: int, beside: Path) -> KeptRows:
    """Find the first ``most`` rows of every unit, in order.

    The rows are first dealt out to files by a hash of their unit, so that each file's units fit into memory. Its key
    is drawn afresh, so that no source can be made to put all into one file; the result does not depend on it.

    Parameters
    ----------
    units
        The unit of every row, in order, in pieces of one type: int64, or digests of 16 bytes.
    rows
        Their number.
    most
        M.
    beside
        A folder on the disk that shall hold the files.
    """
    kept = KeptRows(rows)
    key = np.uint64(int(random_token()[:16], 16) | 1)
    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile(dir=beside)) for _ in range(1 << _BITS)]
        row = 0
        kind: np.dtype[Any] = np.dtype(np.int64)
        for piece in units:
            kind = piece.dtype
            numbered = np.empty(piece.size, dtype=[("row", np.int64), ("unit", kind)])
            numbered["row"], numbered["unit"] = np.arange(row, row + piece.size), piece
            row += piece.size
            part = (piece.view(np.uint64)[:: kind.itemsize // 8] * key) >> np.uint64(64 - _BITS)
            order = np.argsort(part, kind="stable")
            ends = np.searchsorted(part[order], np.arange(len(files) + 1))
            for i, file in enumerate(files):
                file.write(np.ascontiguousarray(numbered[order[ends[i] : ends[i + 1]]]).data)
        if row != rows:
            raise DataError("The source changed while it was read. Ingest it when it is complete.")
        for file in files:
            file.seek(0)
            for found in _first(file, most, kind):
                kept.add(found)
    return kept


def first_of_each(units: Digests, most: int) -> npt.NDArray[np.bool_]:
    """Say which rows are among the first ``most`` of their unit, in memory; shape (r,), as the units.

    Examples
    --------
    >>> first_of_each(np.array([b"b", b"a", b"b", b"b"]), 2).tolist()
    [True, True, True, False]
    """
    order = np.argsort(units, kind="stable")
    _, starts, counts = np.unique(units[order], return_index=True, return_counts=True)
    kept = np.empty(units.size, dtype=np.bool_)
    kept[order] = np.arange(units.size) - np.repeat(starts, counts) < most
    return kept


def _first(file: IO[bytes], most: int, kind: np.dtype[Any]) -> Iterator[Numbers]:
    """Yield the numbers of the rows of one file that are kept."""
    known = np.empty(0, dtype=kind)
    before = np.empty(0, dtype=np.int64)
    record = np.dtype([("row", np.int64), ("unit", kind)])
    while content := file.read(record.itemsize * _PIECE):
        found = np.frombuffer(content, dtype=record)
        rows, units = found["row"], found["unit"]
        order = np.argsort(units, kind="stable")
        unique, starts, counts = np.unique(units[order], return_index=True, return_counts=True)
        place = np.searchsorted(known, unique)
        old = place < known.size
        old[old] = known[place[old]] == unique[old]
        earlier = np.zeros(unique.size, dtype=np.int64)
        earlier[old] = before[place[old]]
        rank = np.arange(units.size) - np.repeat(starts, counts) + np.repeat(earlier, counts)
        yield rows[order][rank < most]
        before[place[old]] += counts[old]
        known = np.insert(known, place[~old], unique[~old])
        before = np.insert(before, place[~old], counts[~old])


def unit_from(column: str | None, max_rows: int | None, max_periods: int | None = None) -> Unit | None:
    """Make a privacy unit from what was given, or None.

    Raises
    ------
    UsageError
        If only one of the two was given, or the number is out of range.
    """
    if column is None and max_rows is None:
        return None
    if column is None or max_rows is None:
        raise UsageError(
            f"A privacy unit needs both: its column ({parameter('privacy_unit')}) and its rows.", parameter="max_rows"
        )
    return Unit(column, max_rows, max_periods)
