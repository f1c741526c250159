"""Registered rows stay in their source files; every read is checked against the manifest.

The CRC32C of its rows, as read, decides whether a chunk is unchanged; before that, number and size of its objects must
match. File times only explain a mismatch: they say whether a chunk was changed or damaged. So a source that was copied
away and back is the same table.

A CRC32C detects accidents. It is not a seal: anyone who can write the source can make other rows with the same CRC.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dpdist.core.errors import DataError, quiet
from dpdist.core.ingest.readers.base import Choices, Places, Rows, fits
from dpdist.core.ingest.readers.source import Entry
from dpdist.core.ingest.remote import location_of
from dpdist.core.naming import step
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.rows.columns import DTYPES
from dpdist.core.rows.dataset import RowsTable, open_ingested
from dpdist.core.rows.manifest import Manifest
from dpdist.core.rows.table import Loss, builtins_of
from dpdist.core.storage.arrays import Text, attributes_of, require_format
from dpdist.core.storage.store import AnyStore, Store, store_at

FORMAT = "dpdist-registered/1"


class RegisterRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request that registered a table; it identifies a repeated command."""

    source: Text  # absolute path of the file or folder, or its address
    variable: Text | None  # the chosen array
    columns: tuple[Text, ...] | None = None  # None: all, which is what registering takes


class RegisteredAttributes(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The ``dpdist`` attributes of a table in place, version 1."""

    format: str
    dataset_id: Text
    columns: tuple[Text, ...]
    budget: Loss | None
    ledger_id: Text | None
    rows: int
    dtype: str
    chunk_rows: int  # of the longest chunk
    chunks: int
    stored_bytes: int  # of the objects
    buffer_bytes: int  # memory for reading
    asked: RegisterRequest
    index: str  # SHA-256 of the parts of the manifest (dpdist.core.rows.manifest)
    sources: str  # and of its list of sources
    places: tuple[int, ...] | None = None  # of the columns in every source; None: all, in order
    reproduced: bool = False


@dataclass(frozen=True)
class Registered:
    """The chunks of registered rows: a :class:`dpdist.core.rows.table.Reference`."""

    manifest: Manifest
    dtype: str
    keep: Places
    variable: str | None
    stored_bytes: int
    buffer_bytes: int

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return self.manifest.chunks

    def first_row(self, index: int) -> int:
        """Return the index of the first row of a chunk; n for the chunk after the last."""
        return self.manifest.first_row(index)

    def chunk_of(self, row: int) -> int:
        """Return the index of the chunk that holds a row."""
        return self.manifest.chunk_of(row)

    def reading(self) -> RegisteredReader:
        """Return a reader of chunks."""
        return RegisteredReader(self)


def opener_of(variable: str | None) -> Any:
    """Return an opener of sources in place; its process ends when it is garbage-collected."""
    from dpdist.core.ingest.sources import Opener  # noqa: PLC0415 - the readers of all kinds of files

    opener = Opener(Path(gettempdir()), Choices(variable))
    weakref.finalize(opener, opener.process.close)
    return opener


def checked(blocks: Iterator[Rows], dtype: np.dtype[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield blocks as C-ordered little-endian arrays of a dtype, the form of checksums."""
    for block in blocks:
        if not fits(block, dtype):
            raise DataError("A value does not fit the type of the table.")
        yield np.ascontiguousarray(block, dtype=dtype.newbyteorder("<"))


class RegisteredReader:
    """Reads chunks of a registered table: a :class:`dpdist.core.rows.table.ChunkBatches`."""

    def __init__(self, reference: Registered) -> None:
        self._reference = reference
        self._opener = opener_of(reference.variable)
        self.checksum = 0

    def read(self, index: int, piece_rows: int) -> Iterator[npt.NDArray[Any]]:
        """Yield rows of a chunk, at most ``piece_rows`` at a time; if this raises, all batches are invalid."""
        manifest = self._reference.manifest
        record = manifest.record(index)
        entry = manifest.source(int(record["source"]))
        first, rows = int(record["first"]), int(record["rows"])
        where = f"Chunk {index} of {manifest.store} (rows {first} to {first + rows - 1} of {entry.place}, from 0)"
        wrong = None
        row_count = checksum = 0
        try:
            source = self._opener.opened(Entry(location_of(entry.place), entry.place, entry.keys))
            state = source.state(first, first + rows)
            if (state.objects, state.size) != (record["objects"], record["bytes"]):
                wrong = "is missing" if state.objects < record["objects"] else "has another length"
            else:
                with closing(source.blocks(self._reference.keep, (first, first + rows))) as blocks:
                    for block in checked(blocks, np.dtype(self._reference.dtype)):
                        checksum = google_crc32c.extend(checksum, block.reshape(-1).view(np.uint8))
                        row_count += block.shape[0]
                        for start in range(0, block.shape[0] if row_count <= rows else 0, piece_rows):
                            yield block[start : start + piece_rows]
                if (row_count, checksum) != (rows, int(record["checksum"])):
                    same = state.version == record["version"].tobytes()
                    wrong = "was damaged" if same else "was changed"
        except DataError:
            wrong = "is missing, damaged or of another kind"
        if wrong is not None:
            raise DataError(
                f"{where} {wrong} since it was registered. Restore it. Other rows are another table, with a budget "
                f"of its own: {step('register', 'SOURCE', 'ROWS')}."
            )
        self.checksum = checksum


def attributes_in(store: Store, otherwise: str) -> RegisteredAttributes:
    """Return the attributes of a registered table."""
    try:
        return msgspec.convert(require_format(store, FORMAT, otherwise), RegisteredAttributes)
    except msgspec.ValidationError:
        pass
    raise DataError(otherwise)


def open_registered(store: Store) -> RowsTable:
    """Open a registered table, without access to its source or chunks."""
    store = store.absolute()
    otherwise = f"{store} contains no usable rows: it is damaged. Restore it from a copy."
    head = attributes_in(store, otherwise)
    manifest = Manifest(store, head.index, head.sources)
    keep = tuple(range(len(head.columns))) if head.places is None else head.places
    sound = (
        head.dtype in DTYPES
        and len(keep) == len(head.columns) >= 2
        and min(head.rows, head.stored_bytes + 1, head.buffer_bytes, head.chunk_rows, min(keep) + 1) > 0
        and head.chunk_rows <= head.rows == manifest.rows
        and head.chunks == manifest.chunks
    )
    if not sound:
        raise DataError(otherwise)
    return RowsTable(
        store=store, dataset_id=head.dataset_id, rows=head.rows, columns=len(head.columns), dtype=head.dtype,
        chunk_rows=head.chunk_rows, names=head.columns,
        budget=None if head.budget is None else PrivacyLoss.from_json(head.budget),
        ledger_id=head.ledger_id, reproduced=head.reproduced,
        reference=Registered(manifest, head.dtype, keep, head.asked.variable, head.stored_bytes, head.buffer_bytes),
    )  # fmt: skip


def head_of(head: RegisteredAttributes) -> dict[str, Any]:
    """Return the head of a registered table, a Zarr group without arrays, as JSON values."""
    return {"zarr_format": 3, "node_type": "group", "attributes": {"dpdist": builtins_of(head)}}


@quiet()
def open_rows(path: AnyStore) -> RowsTable:
    """Open ingested or registered rows.

    Only the attributes of the table are read and validated here. Every read checks its chunks: a missing or altered
    chunk is an error before any noise is added.

    Parameters
    ----------
    path : str or path-like
        Folder, or address (``s3://``, ``gs://``, ``az://``).

    Returns
    -------
    RowsTable
        ``path``, ``rows`` (n), ``columns`` (d), ``dtype``, ``names``, ``budget``, ``dataset_id`` and more.

    Raises
    ------
    UsageError
        If it is not a path, or an address of an unknown store or with a password.
    DataError
        If there are no rows, or dpdist did not write them.

    See Also
    --------
    ingest_rows, register_rows : Make them.
    inspect_path : Describes a path in plain values, and checks the chunks.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> folder = tempfile.TemporaryDirectory()
    >>> np.save(f"{folder.name}/table.npy", np.arange(12.0).reshape(4, 3))
    >>> table = dpdist.ingest_rows(f"{folder.name}/table.npy", f"{folder.name}/rows.zarr")
    >>> dpdist.open_rows(f"{folder.name}/rows.zarr").names
    ('c0', 'c1', 'c2')
    >>> folder.cleanup()
    """
    store = store_at(path)
    if (attributes_of(store) or {}).get("format") == FORMAT:
        return open_registered(store)
    return open_ingested(store)
