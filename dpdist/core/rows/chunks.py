"""Reads and verifies chunks of rows, in batches small enough to be used while they are in the cache.

The seal of a period's rows is a keyed digest that prevents anyone from altering or replacing them.

``seal.json``, stored with the rows, contains shape, type, column names, and the SHA-256 of every chunk. The seal is its
HMAC-SHA256 under the key of the table's folder, and is recorded in the ledger. The ledger's administrator, without the
key, cannot use it to test guesses about the rows. The key and ``seal.json`` stay in the private folder of the rows and
are in no release. A reader verifies ``seal.json`` against the seal, then the shape, type and names from ``zarr.json``,
and finally the chunk itself.

Equal rows in equal order have equal seals, which detects a period that repeats another's rows.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt
from numcodecs import blosc

from dpdist.core.errors import DataError
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.table import BLOSC_BYTES, ChunkBatches, SealedRows, Table, builtins_of, text_of
from dpdist.core.rows.writing import chunk_key
from dpdist.core.storage.arrays import CHECKSUM_BYTES
from dpdist.core.storage.store import Reader, Store
from dpdist.core.text import canonical

SEAL = "seal.json"
KEY = "key"
"""File with the key in the folder of periods: 64 hexadecimal digits."""


def key_of(periods: Store) -> bytes:
    """Return the key of a folder of periods."""
    try:
        key = bytes.fromhex(periods.get(KEY).decode("ascii"))
    except (OSError, ValueError):
        key = b""
    if len(key) != 32:
        raise DataError(
            f"{periods.address(KEY)} is missing or damaged. Restore it from a backup: no period can be read without it."
        )
    return key


def _seal_of(sealed: SealedRows, periods: Store) -> str:
    """Return the seal of the content of ``seal.json`` under the key of the folder of periods."""
    return hmac.new(key_of(periods), canonical(builtins_of(sealed)).encode(), hashlib.sha256).hexdigest()


def _described(table: RowsTable, tags: tuple[str, ...]) -> SealedRows:
    return SealedRows(
        columns=table.names,
        dtype=table.dtype,
        rows=table.rows,
        chunk_rows=table.chunk_rows,
        period=None if table.rows else table.period,
        chunks=tags,
    )


def write_seal(table: RowsTable, tags: list[str]) -> str:
    """Write ``seal.json`` for the rows of one period and return the seal."""
    sealed = _described(table, tuple(tags))
    table.store.replace(SEAL, text_of(sealed), "seal", private=True)
    return _seal_of(sealed, table.store.parent)


def sealed_tags(table: RowsTable) -> tuple[str, ...]:
    """Return the sealed digest of each chunk of a period."""
    altered = DataError(f"{table} differs from the rows sealed when its period was closed. Restore it from a backup.")
    try:
        sealed = msgspec.json.decode(table.store.get(SEAL), type=SealedRows)
    except (OSError, ValueError, RecursionError):
        raise altered from None
    if sealed != _described(table, sealed.chunks) or len(sealed.chunks) != table.chunks:
        raise altered
    if not hmac.compare_digest(_seal_of(sealed, table.store.parent), str(table.seal)):
        raise altered
    return sealed.chunks


Rows: TypeAlias = npt.NDArray[np.generic]
"""Stored rows, (r, d), with one of :data:`dpdist.core.rows.columns.DTYPES`."""


class ChunkReader:
    """Reads chunks of one table in batches, each of which overwrites the previous one.

    Cells whose missing value counts as the centre of their column are NaN, or ``centre``, (d,), if given.
    """

    def __init__(self, table: Table, piece_rows: int, centre: Sequence[float] | None = None) -> None:
        self._table = table
        self._centre = centre if table.centring else None
        self._batch_rows = piece_rows
        self.checksum = 0
        """Stored CRC32C of the last chunk, available after its last batch. Private."""
        self._tags: dict[str, tuple[str, ...]] = {}
        self._part: RowsTable | None = None
        self._external: ChunkBatches | None = None
        self._rows: Rows = np.empty((0, table.columns))
        self._file = np.empty(0, dtype=np.uint8)

    def read(self, index: int) -> Iterator[Rows]:
        """Yield batches, (r, d), of chunk ``index``, each valid until the next; if this raises, discard them all."""
        for batch in self._read(index):
            yield batch if self._centre is None else np.where(np.isnan(batch), self._centre, batch)

    def _read(self, index: int) -> Iterator[Rows]:
        # checksum and seal of an uncompressed chunk are verified after its last batch
        part, chunk = self._table.located(index)
        if part.seal is None:
            yield from self._checked(part, chunk, None)
            return
        if str(part) not in self._tags:
            self._tags[str(part)] = sealed_tags(part)
        digest = hashlib.sha256()
        yield from self._checked(part, chunk, digest)
        if self._tags[str(part)][chunk] != digest.hexdigest():
            raise DataError(
                f"Chunk {chunk} of {part} differs from the rows sealed when its period was closed. Restore it."
            )

    def tag(self, index: int) -> str:
        """Return the SHA-256 of the rows of chunk ``index``, 64 hexadecimal digits, for its seal."""
        digest = hashlib.sha256()
        for _ in self._checked(*self._table.located(index), digest):
            pass
        return digest.hexdigest()

    def _checked(self, part: RowsTable, index: int, digest: Any) -> Iterator[Rows]:
        """Yield the rows of a chunk, updating a hashlib digest, if any, with their bytes."""
        if part.reference is not None:
            self._external = self._external or part.reference.reading()
            yield from self._external.read(index, self._batch_rows)
            self.checksum = self._external.checksum
            return
        self._prepare(part)
        try:
            with part.store.opened(chunk_key(index)) as file:
                yield from (self._unpacked if part.compressed else self._plain)(file, part, index, digest)
        except (OSError, _DamagedError) as error:
            fault = "is missing or unreadable" if isinstance(error, OSError) else str(error)
            raise DataError(f"Chunk {index} of {part} {fault}. Restore it, or ingest the source again.") from None

    def _prepare(self, part: RowsTable) -> None:
        """Allocate buffers for the chunks of a part, unless it is the previous one."""
        if part is self._part:
            return
        self._part = part
        rows = part.chunk_rows if part.compressed else min(self._batch_rows, part.chunk_rows)
        self._rows = np.empty((rows, part.columns), dtype=np.dtype(part.dtype).newbyteorder("<"))
        self._file = np.empty(part.chunk_bytes if part.compressed else CHECKSUM_BYTES, dtype=np.uint8)

    def _plain(self, file: Reader, part: RowsTable, index: int, digest: Any) -> Iterator[Rows]:
        checksum, step = 0, self._rows.shape[0]
        remaining = part.rows_in(index)  # the last chunk of a table is padded
        for start in range(0, part.chunk_rows, step):
            batch = self._rows[: min(step, part.chunk_rows - start)]
            content = batch.reshape(-1).view(np.uint8)
            if file.readinto(content.data) != content.size:
                raise _DamagedError(_TRUNCATED)
            checksum = google_crc32c.extend(checksum, content)
            if digest is not None:
                digest.update(content.data)
            if remaining > 0:
                yield batch[:remaining]
            remaining -= batch.shape[0]
        if file.readinto(self._file.data) != CHECKSUM_BYTES:
            raise _DamagedError(_TRUNCATED)
        self._require(checksum, self._file)
        if file.readinto(memoryview(bytearray(1))):
            raise _DamagedError(_ALTERED)

    def _unpacked(self, file: Reader, part: RowsTable, index: int, digest: Any) -> Iterator[Rows]:
        size = file.readinto(self._file.data)
        if size is None or size <= BLOSC_BYTES + CHECKSUM_BYTES:
            raise _DamagedError(_TRUNCATED)
        content = self._file[: size - CHECKSUM_BYTES]
        self._require(google_crc32c.value(content), self._file[size - CHECKSUM_BYTES : size])
        unpacked, _, packed = content[4:BLOSC_BYTES].view("<u4")  # Blosc header: sizes of rows, block, content
        if (unpacked, packed) != (self._rows.nbytes, content.size):
            raise _DamagedError(_ALTERED)
        blosc.decompress(content, self._rows)
        if digest is not None:
            digest.update(self._rows.reshape(-1).view(np.uint8).data)
        rows = self._rows[: part.rows_in(index)]
        for start in range(0, rows.shape[0], self._batch_rows):
            yield rows[start : start + self._batch_rows]

    def _require(self, checksum: int, stored: npt.NDArray[np.uint8]) -> None:
        self.checksum = int.from_bytes(stored.tobytes(), "little")
        if checksum != self.checksum:
            raise _DamagedError(_ALTERED)


class _DamagedError(Exception):
    """A chunk differs from the bytes that were written."""


_TRUNCATED, _ALTERED = "is truncated", "was altered: its checksum differs"
