"""Copies: two files of a source with the same rows, though not the same bytes (line ends, compression, format).

While rows are read, files with equal numbers of rows get a mark: the sum of their values, with secret weights, in any
order. Files with equal marks are read again, and digests of their rows are compared. Equal rows in equal order are a
copy. So are equal rows in another order if many or all of them are distinct; two tables of a few yes/no answers often
have the same frequencies.

Marks and digests are private, and the weights are secret. Only the holder of the rows is told of a copy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from hashlib import shake_256
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError
from dpdist.core.ingest.readers.base import PIECE, Rows
from dpdist.core.ingest.readers.source import Entry

_WIDE = 512  # values that are added as a row: short rows take longer
_MANY = 16  # distinct rows that do not agree by chance
_HALF, _ODD = np.uint64(32), np.uint64(0x9E3779B97F4A7C15)
_READERS = {
    ".csv": "pandas.read_csv", ".gz": "pandas.read_csv", ".parquet": "pandas.read_parquet",
    ".arrow": "pandas.read_feather", ".feather": "pandas.read_feather",
}  # fmt: skip

Words = npt.NDArray[np.uint64]


def weights_of(key: bytes, columns: int) -> Words:
    """Return secret odd weights of columns."""
    return np.frombuffer(shake_256(key).digest(8 * columns), np.uint64) | np.uint64(1)


def of_equal_length(rows: Mapping[int, int], entries: Sequence[Entry]) -> dict[int, tuple[object, int]]:
    """Return the files that have as many rows as another with the same folder keys, with keys and number of rows."""
    lengths = {number: (entries[number].keys, count) for number, count in rows.items() if count}
    shared = {length for length, files in Counter(lengths.values()).items() if files > 1}
    return {number: length for number, length in lengths.items() if length in shared}


def _words(rows: Rows, dtype: np.dtype[np.generic]) -> npt.NDArray[np.unsignedinteger]:
    """Return the bits of rows in the type of the table, (r, d)."""
    words: npt.NDArray[np.unsignedinteger] = np.ascontiguousarray(rows, dtype=dtype).view(f"u{dtype.itemsize}")
    return words


def mark_of(rows: Rows, dtype: np.dtype[np.generic], weights: Words) -> int:
    """Return the mark of rows, modulo 2^64; marks of parts add up."""
    words = _words(rows, dtype)
    if dtype == np.float64:
        words = words >> _HALF  # the other half of most values is zero, and sums would lose this one
    height, width = words.shape
    lines = max(1, _WIDE // width)
    even = height // lines * lines
    sums = words[:even].reshape(-1, lines * width).sum(axis=0, dtype=np.uint64).reshape(lines, width).sum(axis=0)
    return int((sums + words[even:].sum(axis=0, dtype=np.uint64)) @ weights)


def require_none(
    lengths: Mapping[int, tuple[object, int]],
    marks: Sequence[Mapping[int, int]],
    entries: Sequence[Entry],
    blocks: Callable[[int], Generator[Rows]],
    dtype: np.dtype[np.generic],
    weights: Words,
) -> None:
    """Refuse copies among files of equal length; ``marks`` are of parts of files, or empty if rows lack them."""
    alike: dict[object, list[int]] = defaultdict(list)
    for number, length in lengths.items():
        alike[length, sum(part.get(number, 0) for part in marks) % 2**64].append(number)
    for numbers in alike.values():
        seen: dict[tuple[str, int], int] = {}
        for number in numbers if len(numbers) > 1 else ():
            with closing(blocks(number)) as rows:
                digests = _digests(rows, dtype, weights)
            for order, digest in digests.items():
                first = seen.setdefault((order, digest), number)
                if first != number:
                    raise _copy(entries[first].shown, entries[number].shown, order)


def _digests(blocks: Generator[Rows], dtype: np.dtype[np.generic], weights: Words) -> dict[str, int]:
    """Return digests of rows in their order and, if many or all are distinct, in any order."""
    row, ordered, unordered, distinct = 0, np.uint64(0), np.uint64(0), set[int]()
    step = max(1, PIECE // (8 * len(weights)))
    with np.errstate(over="ignore"):
        for block in blocks:
            for start in range(0, len(block), step):
                words = _words(block[start : start + step], dtype).astype(np.uint64)
                keys = hashed((words ^ (words >> _HALF)) @ weights)
                numbers = np.arange(row, row + len(keys), dtype=np.uint64)
                ordered += hashed(keys + numbers * _ODD).sum()
                unordered += hashed(keys).sum()
                if len(distinct) < _MANY:
                    distinct.update(np.unique(keys)[:_MANY].tolist())
                row += len(keys)
    many = len(distinct) >= min(_MANY, row)
    return {"": int(ordered)} | ({", in another order": int(unordered)} if many else {})


def hashed(keys: Words) -> Words:
    """Return hashed keys: SplitMix64 (Steele, Lea & Flood 2014)."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def _copy(first: str, second: str, order: str) -> DataError:
    readers = [_READERS.get(PurePath(path).suffix.lower()) for path in (first, second)]
    merged = ""
    if None not in readers:
        read = ", ".join(f"{reader}({path!r})" for reader, path in zip(readers, (first, second), strict=True))
        merged = f"; in Python: pandas.concat([{read}], ignore_index=True).to_parquet('NEW.parquet')"
    return DataError(
        f"{first} and {second} have the same rows{order}: each would count twice. Leave one out. If they are rows of "
        f"different people, replace both by one file{merged}."
    )
