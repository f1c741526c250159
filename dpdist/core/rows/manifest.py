"""Describes each chunk of rows that are read in place: a binary list, in parts, stored with the head of the table.

::

    rows.zarr/                 read and written by its owner only
      zarr.json                a Zarr group whose attributes describe the table: dpdist-registered/1
      manifest/index           for each part: number of chunks and rows, and SHA-256
      manifest/0, 1, ...       the parts: 48 bytes per chunk (:data:`RECORD`), in the order of the rows
      manifest/sources         JSON: the files and arrays that contain the chunks

The head contains the SHA-256 of the index and of the sources, so every alteration is detected. Opening a table reads
the index only, and a worker reads only the parts that describe its chunks. All integers are little-endian.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dpdist.core.errors import DataError
from dpdist.core.naming import step
from dpdist.core.storage.arrays import Text
from dpdist.core.storage.store import Store

RECORD = np.dtype([
    ("source", "<u4"),  # index of the file or array among the sources
    ("first", "<u8"),  # number of the chunk's first row there
    ("rows", "<u4"),
    ("checksum", "<u4"),  # CRC32C of the rows in the layout of ingest: row-major, little-endian
    ("objects", "<u4"),  # number of objects that contain them, if known without reading; with their total bytes
    ("bytes", "<u8"),
    ("version", "V16"),  # changes if one of the objects is overwritten
])  # fmt: skip
PART = np.dtype([("chunks", "<u8"), ("rows", "<u8"), ("sha256", "V32")])
INDEX, SOURCES = "manifest/index", "manifest/sources"
MOST_PARTS = 1 << 10
MOST_CHUNKS = 1 << 16
"""Largest number of chunks of a part: 3 MiB."""
_MOST = 1 << 30
Records = npt.NDArray[np.void]


class SourceEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A file or array."""

    place: Text  # absolute path or address
    keys: tuple[tuple[Text, Text], ...] = ()  # of its parent folders (:mod:`dpdist.core.ingest.readers.columnar`)


def part_key(number: int) -> str:
    """Return the key of a part."""
    return f"manifest/{number}"


def part_lengths(chunks: int, tasks: int) -> list[range]:
    """Split chunks into parts, each written by one task: about as many as tasks, within the limits of a part."""
    parts = max(-(-chunks // MOST_CHUNKS), min(chunks, tasks, MOST_PARTS))
    ends = [i * chunks // parts for i in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(ends)]


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of an object, hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def write_sources(store: Store, sources: list[SourceEntry]) -> str:
    """Write the sources, the first of the objects of a table, and return their digest."""
    content = msgspec.json.encode(sources)
    store.put(SOURCES, content)
    return digest_of(content)


def write_index(store: Store, parts: list[bytes]) -> str:
    """Write the index of existing parts and return its digest."""
    index = np.zeros(len(parts), dtype=PART)
    for number, part in enumerate(parts):
        records = np.frombuffer(part, dtype=RECORD)
        index[number] = (len(records), records["rows"].sum(dtype=np.uint64), hashlib.sha256(part).digest())
    content = index.tobytes()
    store.put(INDEX, content)
    return digest_of(content)


@dataclass(frozen=True)
class Manifest:
    """An opened manifest; it is small and reads its parts on demand."""

    store: Store
    index: str
    sources: str

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return int(_ends_of(self)[0][-1])

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(_ends_of(self)[1][-1])

    def record(self, index: int) -> Any:
        """Return the :data:`RECORD` of a chunk."""
        number, inner = self._placed(index)
        return _part_of(self, number)[0][inner]

    def first_row(self, index: int) -> int:
        """Return the number of the first row of a chunk; n for the index after the last chunk."""
        if index >= self.chunks:
            return self.rows
        number, inner = self._placed(index)
        return self._before(1, number) + int(_part_of(self, number)[1][inner])

    def chunk_of(self, row: int) -> int:
        """Return the index of the chunk of a row."""
        number = int(np.searchsorted(_ends_of(self)[1], row, side="right"))
        begins = _part_of(self, number)[1]
        inner = int(np.searchsorted(begins, row - self._before(1, number), side="right")) - 1
        return self._before(0, number) + inner

    def source(self, number: int) -> SourceEntry:
        """Return a source."""
        return _sources_of(self)[number]

    def parts(self) -> Iterator[Records]:
        """Yield all records, part by part."""
        for number in range(len(_ends_of(self)[0])):
            yield _part_of(self, number)[0]

    def _before(self, axis: int, number: int) -> int:
        return int(_ends_of(self)[axis][number - 1]) if number else 0

    def _placed(self, index: int) -> tuple[int, int]:
        number = int(np.searchsorted(_ends_of(self)[0], index, side="right"))
        return number, index - self._before(0, number)


def _read(manifest: Manifest, key: str, digest: str) -> bytes:
    try:
        content = manifest.store.get(key, _MOST)
    except OSError:
        content = b""
    if digest_of(content) != digest:
        raise DataError(
            f"{manifest.store.address(key)} is missing or damaged, so the rows cannot be read. Restore it, or "
            f"register the source again: {step('register', 'SOURCE', 'ROWS')}."
        )
    return content


@lru_cache(maxsize=4)
def _index_of(manifest: Manifest) -> Records:
    return np.frombuffer(_read(manifest, INDEX, manifest.index), dtype=PART)


@lru_cache(maxsize=4)
def _ends_of(manifest: Manifest) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    index = _index_of(manifest)
    return np.cumsum(index["chunks"], dtype=np.int64), np.cumsum(index["rows"], dtype=np.int64)


@lru_cache(maxsize=4)
def _part_of(manifest: Manifest, number: int) -> tuple[Records, npt.NDArray[np.int64]]:
    """Return the records of a part, and the number of the first row of each within the part."""
    content = _read(manifest, part_key(number), _index_of(manifest)[number]["sha256"].tobytes().hex())
    records = np.frombuffer(content, dtype=RECORD)
    return records, np.cumsum(records["rows"], dtype=np.int64) - records["rows"].astype(np.int64)


@lru_cache(maxsize=4)
def _sources_of(manifest: Manifest) -> tuple[SourceEntry, ...]:
    return msgspec.json.decode(_read(manifest, SOURCES, manifest.sources), type=tuple[SourceEntry, ...])
