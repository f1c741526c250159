"""Reading chunks of rows: whole, checked, and in pieces small enough to be used before they leave the cache.

The seal of one period's rows: a keyed digest by which nobody can alter them, or release others in their place.

``seal.json`` beside the rows holds what was sealed: shape, type, column names, and SHA-256 of every chunk. The seal is
HMAC-SHA256 of that, under the key of the table's folder. It stands in the ledger, whose administrator, having no key,
can test no guess at the rows with it; the key, like ``seal.json``, stays in the private folder of the rows and is in
no release. Whoever reads a chunk first checks ``seal.json`` against the seal, then against it what he takes the chunk
for (shape, type, names: Zarr's own ``zarr.json`` is only believed where it says the same), and the chunk itself.

Equal rows in equal order give equal seals, so a period whose rows repeat another's is found out.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from typing import Any, TypeAlias

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt
from numcodecs import blosc

from dpdist._util.text import canonical
from dpdist.errors import DataError
from dpdist.rows.dataset import RowsTable
from dpdist.rows.table import BLOSC_BYTES, ChunkPieces, SealedRows, Table, builtins_of, text_of
from dpdist.rows.writing import chunk_key
from dpdist.storage.arrays import CHECKSUM_BYTES
from dpdist.storage.store import Reader, Store

SEAL = "seal.json"
KEY = "key"
"""Name of the file, beside the periods, that holds the key: 64 hexadecimal digits."""


def key_of(periods: Store) -> bytes:
    """Return the key of a folder of periods."""
    try:
        key = bytes.fromhex(periods.get(KEY).decode("ascii"))
    except (OSError, ValueError):
        key = b""
    if len(key) != 32:
        raise DataError(f"{periods.address(KEY)} is missing or damaged. Restore it: without it no period can be read.")
    return key


def _seal_of(sealed: SealedRows, periods: Store) -> str:
    """Return the seal of what ``seal.json`` says, under the key of the folder that holds the periods."""
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
    """Write ``seal.json`` of the rows of one period and return the seal."""
    sealed = _described(table, tuple(tags))
    table.store.replace(SEAL, text_of(sealed), "seal", private=True)
    return _seal_of(sealed, table.store.parent)


def sealed_tags(table: RowsTable) -> tuple[str, ...]:
    """Return the digest of each chunk of the rows of one period, as it was sealed."""
    altered = DataError(f"{table} is not what was sealed when its period was closed. Restore it from a copy.")
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
"""Rows as they are stored, (r, d), of any of :data:`dpdist.rows.dataset.DTYPES`."""


class ChunkReader:
    """Reads chunks of one table, piece by piece, into buffers that every piece overwrites."""

    def __init__(self, table: Table, piece_rows: int) -> None:
        self._table = table
        self._most = piece_rows
        self.checksum = 0
        """CRC32C of the chunk that was read last, as stored; known when its last piece was taken. Private."""
        self._tags: dict[str, tuple[str, ...]] = {}
        self._part: RowsTable | None = None
        self._elsewhere: ChunkPieces | None = None
        self._rows: Rows = np.empty((0, table.columns))
        self._file = np.empty(0, dtype=np.uint8)

    def read(self, index: int) -> Iterator[Rows]:
        """Yield the rows of chunk ``index`` in pieces of shape (r, d), each valid until the next.

        Checksum and seal of a plain chunk are known to match only when the last piece was taken: what was made of the
        others must be discarded if this raises.
        """
        part, place = self._table.located(index)
        if part.seal is None:
            yield from self._checked(part, place, None)
            return
        if str(part) not in self._tags:
            self._tags[str(part)] = sealed_tags(part)
        digest = hashlib.sha256()
        yield from self._checked(part, place, digest)
        if self._tags[str(part)][place] != digest.hexdigest():
            raise DataError(f"Chunk {place} of {part} is not what was sealed when its period was closed. Restore it.")

    def tag(self, index: int) -> str:
        """Return the SHA-256 of the rows of chunk ``index``, 64 hexadecimal digits, by which it can be sealed."""
        digest = hashlib.sha256()
        for _ in self._checked(*self._table.located(index), digest):
            pass
        return digest.hexdigest()

    def _checked(self, part: RowsTable, index: int, digest: Any) -> Iterator[Rows]:
        """Yield the rows of a chunk, and take their bytes into a digest of hashlib, or None."""
        if part.reference is not None:
            self._elsewhere = self._elsewhere or part.reference.reading()
            yield from self._elsewhere.read(index, self._most)
            self.checksum = self._elsewhere.checksum
            return
        self._prepare(part)
        try:
            with part.store.opened(chunk_key(index)) as file:
                yield from (self._unpacked if part.compressed else self._plain)(file, part, index, digest)
        except (OSError, _DamagedError) as error:
            fault = "is missing or unreadable" if isinstance(error, OSError) else str(error)
            raise DataError(f"Chunk {index} of {part} {fault}. Restore it, or ingest the source again.") from None

    def _prepare(self, part: RowsTable) -> None:
        """Make buffers for the chunks of a part; those of the last one stay where they fit."""
        if part is self._part:
            return
        self._part = part
        rows = part.chunk_rows if part.compressed else min(self._most, part.chunk_rows)
        self._rows = np.empty((rows, part.columns), dtype=np.dtype(part.dtype).newbyteorder("<"))
        self._file = np.empty(part.chunk_bytes if part.compressed else CHECKSUM_BYTES, dtype=np.uint8)

    def _plain(self, file: Reader, part: RowsTable, index: int, digest: Any) -> Iterator[Rows]:
        checksum, step = 0, self._rows.shape[0]
        left = part.rows_in(index)  # the chunk of a table's end is filled up to the length of the others
        for start in range(0, part.chunk_rows, step):
            piece = self._rows[: min(step, part.chunk_rows - start)]
            content = piece.reshape(-1).view(np.uint8)
            if file.readinto(content.data) != content.size:
                raise _DamagedError(_TRUNCATED)
            checksum = google_crc32c.extend(checksum, content)
            if digest is not None:
                digest.update(content.data)
            if left > 0:
                yield piece[:left]
            left -= piece.shape[0]
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
        unpacked, _, packed = content[4:BLOSC_BYTES].view("<u4")  # Blosc's header: sizes of rows, block, content
        if (unpacked, packed) != (self._rows.nbytes, content.size):
            raise _DamagedError(_ALTERED)
        blosc.decompress(content, self._rows)
        if digest is not None:
            digest.update(self._rows.reshape(-1).view(np.uint8).data)
        rows = self._rows[: part.rows_in(index)]
        for start in range(0, rows.shape[0], self._most):
            yield rows[start : start + self._most]

    def _require(self, found: int, stored: npt.NDArray[np.uint8]) -> None:
        self.checksum = int.from_bytes(stored.tobytes(), "little")
        if found != self.checksum:
            raise _DamagedError(_ALTERED)


class _DamagedError(Exception):
    """The bytes of a chunk are not those that were written: says what is wrong."""


_TRUNCATED, _ALTERED = "is truncated", "was altered: its checksum differs"
