"""The seal of one period's rows: a keyed digest by which nobody can alter them, or release others in their place.

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

import msgspec

from dpdist._util.text import canonical
from dpdist.errors import DataError
from dpdist.rows.attributes import SealedRows, builtins_of, text_of
from dpdist.rows.dataset import RowsTable
from dpdist.storage.store import Store

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
