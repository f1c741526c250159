"""Privacy units: a person may own several rows, of which at most M are kept, the first or a sample.

**Theorem.** Let two sources differ in the rows of one unit only, however many these are and wherever they stand. Then
the kept tables differ in at most M rows, all of that unit; the kept rows of every other unit are the same.

*Proof.* Number the rows of each unit in their order. These numbers do not depend on rows of other units, nor on where
these stand. The first M are kept; or those M of which a function of a key, the unit and the number is least. So which
rows of a unit are kept follows from how many it has, and of each other unit the same are kept. ∎

This holds for every key and every function. The key makes the choice a random sample of the rows of each unit, whatever
their order. It is kept with the rows until they are complete, so that an ingest that died and goes on keeps the same
ones. A row's place in the source would be no such number: another unit's row before it would change it.

So sums over kept rows are as private for a whole unit as the sensitivity of M rows says
(:mod:`dpdist.mechanisms.sensitivity`), under add-remove: one unit more or fewer. Under replace-one the number of kept
rows is public, and the kept rows of one unit are exchanged for as many others.

Two units must never be taken for one, or the rows of the one would decide which of the other are kept. So a unit is a
whole number that is read exactly, and one that may have been rounded is refused; or a keyed digest of its name, 128
bits of BLAKE2b: two of N units collide with probability N² 2^-129 at most, less than 2^-69 for a billion. The key is
secret and drawn for each ingest, or for a folder of periods (:mod:`dpdist.rows.persons`), so collisions cannot be
chosen. Names count as :func:`spelled`: one unit taken for two would be protected less than is said, while units that
share a name in all its spellings are one, protected together.

Memory: one bit per row of the source, and about 64 bytes for every 256th unit; the rest is in nameless temporary files
of 16 bytes per row, 24 with digests. Units are stored nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal, get_args
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from dpdist._util.text import counted, random_token
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
_WHOLE = re.compile(r"(?P<sign>[+-]?)(?P<digits>[0-9]+)(\.0*)?")
UNIT_BYTES = 24
"""Bytes that a temporary file takes of a row, at most."""
Keep = Literal["first", "random"]


@dataclass(frozen=True)
class Unit:
    """The privacy unit of a table."""

    column: str
    max_rows: int
    keep: Keep = "first"
    max_periods: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_rows <= 2**20:
            raise UsageError(f"The rows kept of each privacy unit are from 1 to {2**20}.", parameter="max_rows")
        if self.keep not in get_args(Keep):
            raise UsageError(f"{parameter('keep')} is first or random, not {self.keep!r}.")
        if self.max_periods is not None and not 1 <= self.max_periods <= MOST_PERIODS:
            raise UsageError(f"The periods of each privacy unit are from 1 to {MOST_PERIODS}.", parameter="max_periods")

    @property
    def most(self) -> str:
        """How many rows it has at most, as part of a sentence."""
        if self.max_periods is None:
            return f"{self.max_rows} at most"
        return f"{self.max_rows} a period in {counted(self.max_periods, 'period')} at most"

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values; what an older version did not know is left out where it says nothing."""
        how = {} if self.keep == "first" else {"keep": self.keep}
        most = {} if self.max_periods is None else {"max_periods": self.max_periods}
        return {"column": self.column, "max_rows": self.max_rows, **how, **most}


def whole_numbers(
    path: Path, start: int, values: npt.NDArray[np.number], kept_as: np.dtype[np.generic] | None = None
) -> Numbers:
    """Return units as int64, exactly."""
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


def spelled(name: str) -> str:
    """Return a name as it counts: without spaces around it, in Unicode's form C, and a whole number by its value.

    One file may write 7, another 7.0 and a third 007.

    Examples
    --------
    >>> [spelled(name) for name in ("007", " 7.0", "-0", "7.5", "A7.0")]
    ['7', '7', '0', '7.5', 'A7.0']
    """
    text = normalize("NFC", name.strip())
    number = _WHOLE.fullmatch(text)
    if number is None:
        return text
    digits = number["digits"].lstrip("0") or "0"
    return digits if digits == "0" or number["sign"] != "-" else f"-{digits}"


def named_units(parts: Sequence[Sequence[str]], key: bytes) -> npt.NDArray[np.uint64]:
    """Return units that are called by names: keyed digests of 128 bits, shape (r, 2)."""
    known: dict[tuple[str, ...], bytes] = {}
    found = bytearray()
    for names in zip(*parts, strict=True):
        digest = known.get(names)
        if digest is None:
            # with its length before each part, no two units are written alike
            texts = [spelled(name) for name in names]
            whole = ":".join(f"{len(text.encode())}:{text}" for text in texts)
            digest = known[names] = blake2b(whole.encode(), digest_size=16, key=key).digest()
        found += digest
    return np.frombuffer(bytes(found), dtype=np.uint64).reshape(-1, 2)


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


def kept_rows(
    units: Iterable[Numbers | Digests], rows: int, unit: Unit, scratch_dir: Path, key: bytes = b""
) -> KeptRows:
    """Find the rows of every unit that are kept.

    The rows are first dealt out to files by a hash of their unit, so that each file's units fit into memory. Its key
    is drawn afresh, so that no source can be made to put all into one file; the result does not depend on it.
    """
    kept = KeptRows(rows)
    deal = np.uint64(int(random_token()[:16], 16) | 1)
    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile(dir=scratch_dir)) for _ in range(1 << _BITS)]
        row = 0
        kind: np.dtype[Any] = np.dtype(np.int64)
        for piece in units:
            kind = piece.dtype
            numbered = np.empty(piece.size, dtype=[("row", np.int64), ("unit", kind)])
            numbered["row"], numbered["unit"] = np.arange(row, row + piece.size), piece
            row += piece.size
            part = (piece.view(np.uint64)[:: kind.itemsize // 8] * deal) >> np.uint64(64 - _BITS)
            order = np.argsort(part, kind="stable")
            ends = np.searchsorted(part[order], np.arange(len(files) + 1))
            for i, file in enumerate(files):
                file.write(np.ascontiguousarray(numbered[order[ends[i] : ends[i + 1]]]).data)
        if row != rows:
            raise DataError("The source changed while it was read. Ingest it when it is complete.")
        for file in files:
            file.seek(0)
            if unit.keep == "random":
                kept.add(_drawn(_numbered(file, kind), unit.max_rows, key, kind))
            else:
                for found, _, numbers in _numbered(file, kind):
                    kept.add(found[numbers < unit.max_rows])
    return kept


def kept_of_each(units: Digests, unit: Unit, key: bytes = b"") -> npt.NDArray[np.bool_]:
    """Say which rows are kept of their unit, in memory; shape (r,), as the units, with a key as of :func:`kept_rows`.

    Examples
    --------
    >>> kept_of_each(np.array([b"b", b"a", b"b", b"b"], "S16"), Unit("who", 2)).tolist()
    [True, True, True, False]
    """
    order = np.argsort(units, kind="stable")
    _, starts, counts = np.unique(units[order], return_index=True, return_counts=True)
    numbers = np.arange(units.size) - np.repeat(starts, counts)
    kept = np.zeros(units.size, dtype=np.bool_)
    if unit.keep == "random":
        kept[_drawn([(order, units[order], numbers)], unit.max_rows, key, units.dtype)] = True
    else:
        kept[order] = numbers < unit.max_rows
    return kept


def _drawn(
    pieces: Iterable[tuple[Numbers, Numbers | Digests, Numbers]], most: int, key: bytes, kind: np.dtype[Any]
) -> Numbers:
    """Return the rows of which the draw is among the least of their unit; no more than these are ever held."""
    held = np.empty(0, dtype=[("unit", kind), ("draw", np.uint64), ("number", np.int64), ("row", np.int64)])
    for rows, units, numbers in pieces:
        more = np.empty(rows.size, dtype=held.dtype)
        more["unit"], more["draw"], more["number"], more["row"] = units, _draws(units, numbers, key), numbers, rows
        held = np.concatenate([held, more])
        held = held[np.lexsort((held["number"], held["draw"], held["unit"]))]
        _, starts, counts = np.unique(held["unit"], return_index=True, return_counts=True)
        held = held[np.arange(held.size) - np.repeat(starts, counts) < most]
    found: Numbers = held["row"].copy()
    return found


def _draws(units: Numbers | Digests, numbers: Numbers, key: bytes) -> npt.NDArray[np.uint64]:
    """Return a function of key, unit and number, uniform enough for a sample: SplitMix64 (Steele, Lea & Flood 2014)."""
    words = np.ascontiguousarray(units).view(np.uint64).reshape(units.size, -1)
    found = np.full(units.size, np.uint64(int.from_bytes(blake2b(key, digest_size=8).digest(), "little")))
    for word in (*words.T, numbers.view(np.uint64)):
        found = found + word + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    return found


def _numbered(file: IO[bytes], kind: np.dtype[Any]) -> Iterator[tuple[Numbers, Numbers | Digests, Numbers]]:
    """Yield rows of one file, their units, and the number of each among the rows of its unit."""
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
        yield rows[order], units[order], rank
        before[place[old]] += counts[old]
        known = np.insert(known, place[~old], unique[~old])
        before = np.insert(before, place[~old], counts[~old])


def unit_from(
    column: str | None, max_rows: int | None, keep: Keep | None = None, max_periods: int | None = None
) -> Unit | None:
    """Make a privacy unit from what was given, or None."""
    if column is None and max_rows is None and keep is None:
        return None
    if column is None or max_rows is None:
        raise UsageError(
            f"A privacy unit needs both: its column ({parameter('privacy_unit')}) and its rows.", parameter="max_rows"
        )
    return Unit(column, max_rows, keep or "first", max_periods)
