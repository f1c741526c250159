"""Privacy units: a person may own several rows. All are kept, or at most M: the first ones, or a random sample.

Where all are kept, the rows of each person are stored together (:mod:`dpdist.core.ingest.together`), and their moment
is bounded (:mod:`dpdist.core.rows.unit_moment`). The rest of this page is about M.

**Theorem.** Let two sources differ only in the rows of one unit, in any number and at any positions. Then the kept
tables differ in at most M rows, all of that unit; the kept rows of all other units are equal.

*Proof.* Number the rows of each unit in order. These numbers depend neither on rows of other units nor on their
positions. The rule keeps the first M rows, or the M rows with the least values of a function of a key, the unit and the
number. So the kept rows of a unit depend only on its number of rows, which is equal for every other unit. ∎

This holds for every key and every function. With the key, the kept rows are a random sample of the rows of each unit in
any order. It is stored with the rows until they are complete, so that a resumed ingest keeps the same rows. The
position of a row in the source could not replace its number, because rows of other units change it.

So sums over kept rows protect an entire unit by the sensitivity of M rows (:mod:`dpdist.core.mechanisms.sensitivity`),
under add-remove: one unit more or fewer. Under replace-one the number of kept rows is public, and the kept rows of one
unit are exchanged for the same number of others.

Two units must never be merged, or the rows of one would affect the kept rows of the other. So a unit is a whole number
that is read exactly (one that may have been rounded is refused), or a keyed digest of its name, 128 bits of BLAKE2b. A
collision among N units has probability at most N² 2^-129, less than 2^-69 for a billion. The key is secret and drawn
for each ingest, or for a folder of periods (:mod:`dpdist.core.rows.persons`), so collisions cannot be chosen. Names are
normalised by :func:`spelled`: a unit counted as two would have less protection than stated, while units whose names
differ only in spelling are protected together.

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

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, UsageError
from dpdist.core.naming import parameter, step
from dpdist.core.privacy.persons import MOST_PERIODS
from dpdist.core.text import counted, listed, random_token, visible

_BITS = 8
"""Bits of the hash that distributes rows to 256 files."""
_PIECE = 1 << 17
"""Rows of a file that are processed together: 2 MiB."""

Numbers = npt.NDArray[np.int64]
Digests = npt.NDArray[np.bytes_]
"""16 bytes each."""
_WHOLE = re.compile(r"(?P<sign>[+-]?)(?P<digits>[0-9]+)(\.0*)?")
UNIT_BYTES = 24
"""Largest size of a row in a temporary file, in bytes."""
Keep = Literal["first", "random"]


def no_column(unit: str, names: Sequence[str], where: str = "") -> UsageError:
    """Return the error for a privacy unit that is no column of a table."""
    problem = f"{where}There is no column {unit!r}. There are: {listed(names)}."
    if set(unit.split(",")) <= {*names}:
        problem += (
            ' Several columns together are a privacy unit in a schema, with kind = "privacy unit" for each of them: '
            f"{step('schema', 'SOURCE', 'SCHEMA')} drafts one."
        )
    return UsageError(problem, parameter="privacy_unit")


@dataclass(frozen=True)
class Unit:
    """The privacy unit of a table."""

    column: str
    max_rows: int | None = None  # None: all rows are kept, and bounded together
    keep: Keep = "first"
    max_periods: int | None = None

    def __post_init__(self) -> None:
        if self.max_rows is not None and not 1 <= self.max_rows <= 2**20:
            raise UsageError(
                f"The number of rows kept of each privacy unit must be from 1 to {2**20}.", parameter="max_rows"
            )
        if self.keep not in get_args(Keep):
            raise UsageError(f"{parameter('keep')} must be first or random, not {self.keep!r}.")
        if self.max_periods is not None and not 1 <= self.max_periods <= MOST_PERIODS:
            raise UsageError(
                f"The number of periods of each privacy unit must be from 1 to {MOST_PERIODS}.", parameter="max_periods"
            )
        if self.max_rows is None and (self.keep, self.max_periods) != ("first", None):
            lone = parameter("keep") if self.max_periods is None else parameter("max_periods")
            raise UsageError(
                f"{lone} is for units of which some rows are kept: add {parameter('max_rows', 'M')}, or in a schema "
                "max_rows = M above the columns."
            )

    @property
    def counted_rows(self) -> int:
        """The rows of largest norm that the rows of a unit may count as: M, or one if they are bounded together."""
        return self.max_rows or 1

    @property
    def rows(self) -> str:
        """The rows that are protected together, as part of a sentence."""
        return "all rows" if self.max_rows is None else f"up to {self.max_rows} rows"

    @property
    def most(self) -> str:
        """How its rows are bounded, as part of a sentence."""
        if self.max_rows is None:
            return "however many"
        if self.max_periods is None:
            return f"{self.max_rows} at most"
        return f"{self.max_rows} a period in {counted(self.max_periods, 'period')} at most"

    def to_json(self) -> dict[str, object]:
        """Return JSON values, without defaults of fields added by later versions."""
        keep = {} if self.keep == "first" else {"keep": self.keep}
        periods = {} if self.max_periods is None else {"max_periods": self.max_periods}
        rows = {} if self.max_rows is None else {"max_rows": self.max_rows}
        return {"column": self.column, **rows, **keep, **periods}


def whole_numbers(
    path: Path, start: int, values: npt.NDArray[np.number], kept_as: np.dtype[np.generic] | None = None
) -> Numbers:
    """Return units as exact int64."""
    kind = values.dtype if kept_as is None else kept_as
    if kind.kind == "f":
        # from 2^53, 2^24 or 2^11 on, different whole numbers may be the same float of this type
        exact = 2.0 ** (np.finfo(kind.name).nmant + 1)
        with np.errstate(invalid="ignore"):
            sound = (np.abs(values) < exact) & (values == np.trunc(values))
    else:
        sound = values <= np.iinfo(np.int64).max
    if not sound.all():
        raise DataError(
            f"{path}, row {start + int(np.argmin(sound))} (counting from 0): the privacy unit must be a whole number, "
            "below 2^53 in CSV and float64, 2^24 in float32 and 2^11 in float16, as rounding could merge larger units. "
            "Store them as integers and ingest again."
        )
    return values.astype(np.int64)


def spelled(name: str) -> str:
    """Return a normalised name: as it is seen, and a whole number by its value (7, 7.0 or 007).

    >>> [spelled(name) for name in ("007", " 7.0", "-0", "7.5", "A7.0")]
    ['7', '7', '0', '7.5', 'A7.0']
    """
    text = visible(name)
    number = _WHOLE.fullmatch(text)
    if number is None:
        return text
    digits = number["digits"].lstrip("0") or "0"
    return digits if digits == "0" or number["sign"] != "-" else f"-{digits}"


def named_units(parts: Sequence[Sequence[str]], key: bytes) -> npt.NDArray[np.uint64]:
    """Return units identified by names as keyed digests of 128 bits, shape (r, 2)."""
    cache: dict[tuple[str, ...], bytes] = {}
    digests = bytearray()
    for names in zip(*parts, strict=True):
        digest = cache.get(names)
        if digest is None:
            # each part is preceded by its length, so that two units never have the same text
            texts = [spelled(name) for name in names]
            text_of_unit = ":".join(f"{len(text.encode())}:{text}" for text in texts)
            digest = cache[names] = blake2b(text_of_unit.encode(), digest_size=16, key=key).digest()
        digests += digest
    return np.frombuffer(bytes(digests), dtype=np.uint64).reshape(-1, 2)


class KeptRows:
    """The kept rows of a source, as one bit per row."""

    def __init__(self, rows: int) -> None:
        self._bits = np.zeros(-(-rows // 8), dtype=np.uint8)
        self.count = 0
        """Number of kept rows: public under replace-one, otherwise private."""

    def add(self, rows: Numbers) -> None:
        """Keep rows by their numbers, without duplicates."""
        np.bitwise_or.at(self._bits, rows >> 3, (1 << (rows & 7)).astype(np.uint8))
        self.count += rows.size

    def leave_out(self, excluded: KeptRows) -> None:
        """Remove excluded rows of the same source."""
        self._bits &= ~excluded._bits
        self.count = self.counted(0, 8 * self._bits.size)

    def among(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the kept rows among ``count`` from ``start`` on."""
        return among(self.bits, start, count)

    @property
    def bits(self) -> memoryview:
        """The bits; the first row is the lowest bit of the first byte."""
        return self._bits.data

    def counted(self, start: int, count: int) -> int:
        """Return the number of kept rows among ``count`` from ``start`` on."""
        starts = range(start, start + count, _PIECE)
        return sum(int(self.among(begin, min(_PIECE, start + count - begin)).sum()) for begin in starts)


def among(bits: bytes | memoryview, start: int, count: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the kept rows among ``count`` from ``start`` on, from the bits of :class:`KeptRows`."""
    first, last = start // 8, -(-(start + count) // 8)
    flags = np.unpackbits(np.frombuffer(bits, dtype=np.uint8)[first:last], bitorder="little").astype(np.bool_)
    return flags[start - 8 * first :][:count]


def dealt_files(stack: ExitStack, scratch_dir: Path) -> list[IO[bytes]]:
    """Open the temporary files to which a hash of the unit deals rows; the stack closes them."""
    return [stack.enter_context(TemporaryFile(dir=scratch_dir)) for _ in range(1 << _BITS)]


def deal_records(records: npt.NDArray[Any], hashes: npt.NDArray[np.uint64], files: Sequence[IO[bytes]]) -> None:
    """Append each record to the file that the upper bits of its hash name, in their order."""
    part = hashes >> np.uint64(64 - _BITS)
    order = np.argsort(part, kind="stable")
    ends = np.searchsorted(part[order], np.arange(len(files) + 1))
    for i, file in enumerate(files):
        file.write(np.ascontiguousarray(records[order[ends[i] : ends[i + 1]]]).data)


def kept_rows(
    units: Iterable[Numbers | Digests], rows: int, unit: Unit, scratch_dir: Path, key: bytes = b""
) -> KeptRows:
    """Find the kept rows of every unit, of which a number is kept."""
    max_rows = unit.counted_rows
    # A hash distributes the rows to files by unit, so that the units of a file fit into memory. Its key is random, so
    # that no source can be built to put all rows into one file; the result does not depend on it.
    result = KeptRows(rows)
    deal = np.uint64(int(random_token()[:16], 16) | 1)
    with ExitStack() as stack:
        files = dealt_files(stack, scratch_dir)
        row = 0
        kind: np.dtype[Any] = np.dtype(np.int64)
        for batch in units:
            kind = batch.dtype
            numbered = np.empty(batch.size, dtype=[("row", np.int64), ("unit", kind)])
            numbered["row"], numbered["unit"] = np.arange(row, row + batch.size), batch
            row += batch.size
            deal_records(numbered, batch.view(np.uint64)[:: kind.itemsize // 8] * deal, files)
        if row != rows:
            raise DataError("The source changed while it was read. Ingest it again when it is complete.")
        for file in files:
            file.seek(0)
            if unit.keep == "random":
                result.add(_drawn(_numbered(file, kind), max_rows, key, kind))
            else:
                for numbered_rows, _, numbers in _numbered(file, kind):
                    result.add(numbered_rows[numbers < max_rows])
    return result


def _drawn(
    batches: Iterable[tuple[Numbers, Numbers | Digests, Numbers]], max_rows: int, key: bytes, kind: np.dtype[Any]
) -> Numbers:
    """Return the ``max_rows`` rows of each unit with the least draws; only these are kept in memory."""
    least = np.empty(0, dtype=[("unit", kind), ("draw", np.uint64), ("number", np.int64), ("row", np.int64)])
    for rows, units, numbers in batches:
        batch = np.empty(rows.size, dtype=least.dtype)
        batch["unit"], batch["number"], batch["row"] = units, numbers, rows
        batch["draw"] = draws_of(units, numbers, key)
        least = np.concatenate([least, batch])
        least = least[np.lexsort((least["number"], least["draw"], least["unit"]))]
        _, starts, counts = np.unique(least["unit"], return_index=True, return_counts=True)
        least = least[np.arange(least.size) - np.repeat(starts, counts) < max_rows]
    chosen: Numbers = least["row"].copy()
    return chosen


def draws_of(units: Numbers | Digests, numbers: Numbers, key: bytes) -> npt.NDArray[np.uint64]:
    """Hash key, unit and number, uniformly enough for a sample: SplitMix64 (Steele, Lea & Flood 2014)."""
    components = np.ascontiguousarray(units).view(np.uint64).reshape(units.size, -1)
    draws = np.full(units.size, np.uint64(int.from_bytes(blake2b(key, digest_size=8).digest(), "little")))
    for word in (*components.T, numbers.view(np.uint64)):
        draws = draws + word + np.uint64(0x9E3779B97F4A7C15)
        draws = (draws ^ (draws >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        draws = (draws ^ (draws >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        draws ^= draws >> np.uint64(31)
    return draws


def _numbered(file: IO[bytes], kind: np.dtype[Any]) -> Iterator[tuple[Numbers, Numbers | Digests, Numbers]]:
    """Yield rows of one file, their units, and their numbers within the unit."""
    register = np.empty(0, dtype=kind)
    before = np.empty(0, dtype=np.int64)
    record = np.dtype([("row", np.int64), ("unit", kind)])
    while content := file.read(record.itemsize * _PIECE):
        records = np.frombuffer(content, dtype=record)
        rows, units = records["row"], records["unit"]
        order = np.argsort(units, kind="stable")
        unique, starts, counts = np.unique(units[order], return_index=True, return_counts=True)
        index = np.searchsorted(register, unique)
        old = index < register.size
        old[old] = register[index[old]] == unique[old]
        earlier = np.zeros(unique.size, dtype=np.int64)
        earlier[old] = before[index[old]]
        rank = np.arange(units.size) - np.repeat(starts, counts) + np.repeat(earlier, counts)
        yield rows[order], units[order], rank
        before[index[old]] += counts[old]
        register = np.insert(register, index[~old], unique[~old])
        before = np.insert(before, index[~old], counts[~old])


@dataclass(frozen=True)
class Owner:
    """Owner of a row: a column, with at most ``max_rows`` rows of each person if given, or ``each_row``."""

    column: str | None = None
    max_rows: int | None = None
    each_row: bool = False

    def __post_init__(self) -> None:
        if self.column is not None and self.each_row:
            raise UsageError(f"{parameter('privacy_unit')} and {parameter('each_row_is_a_person')} exclude each other.")
        if self.column is None and self.max_rows is not None:
            raise UsageError(f"{parameter('max_rows')} needs {parameter('privacy_unit')}, the column of the person.")


def unit_from(
    column: str | None, max_rows: int | None, keep: Keep | None = None, max_periods: int | None = None
) -> Unit | None:
    """Return the privacy unit given by parameters, or None."""
    if column is None and max_rows is None and keep is None:
        return None
    if column is None:
        raise UsageError(f"A privacy unit needs its column: add {parameter('privacy_unit', 'COLUMN')}.")
    return Unit(column, max_rows, keep or "first", max_periods)
