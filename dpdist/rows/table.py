"""What a table is to those who read it, and what is stored of rows besides the rows themselves.

A pass over rows and a release take a :data:`Table`: rows that were ingested at once
(:class:`dpdist.rows.dataset.RowsTable`), or some consecutive periods (:class:`dpdist.rows.periods.Span`). What is laid
out and forecast takes :data:`Sizes`, and a :class:`Shape`, which is stored nowhere, is enough.

The stored types are written and read here only, in the order of their fields; what an older version did not know has a
default, which is not written. A folder that holds anything else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dpdist.rows.units import Keep, Unit
from dpdist.storage.arrays import CHECKSUM_BYTES, Text

if TYPE_CHECKING:
    from dpdist.rows.dataset import RowsTable
    from dpdist.rows.periods import Span

Table: TypeAlias = "RowsTable | Span"
"""Rows that can be read, chunk by chunk, and charged for."""
Sizes: TypeAlias = "Shape | Span"
"""How large a table is: all that its layout and its cost depend on. Its text names it in messages."""
Loss = dict[str, int]
"""A privacy loss as :meth:`dpdist.privacy.guarantee.PrivacyLoss.to_json` writes it."""


class UnitAttributes(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A privacy unit (:class:`dpdist.rows.units.Unit`)."""

    column: Text
    max_rows: int
    keep: Keep = "first"
    max_periods: int | None = None

    @property
    def unit(self) -> Unit:
        """The unit that they are of."""
        return Unit(self.column, self.max_rows, self.keep, self.max_periods)


class RowsAttributes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ``dpdist`` attributes of a rows.zarr, version 1."""

    format: str
    dataset_id: Text
    columns: tuple[Text, ...]
    budget: Loss | None
    ledger_id: Text | None
    period: Text | None = None
    unit: UnitAttributes | None = None
    origin: object = None  # what the rows were ingested from (:func:`dpdist.ingest.sources.origin_of`)
    reproduced: bool = False
    schema: dict[str, Any] | None = None
    dropped: str = "zeros"  # what a row that the schema drops is stored as, up to 0.1.0; or "nan", the centre


class PeriodsAttributes(Struct, frozen=True, omit_defaults=True):
    """What ``periods.json`` says of a folder of periods, version 1."""

    format: str
    dataset_id: Text
    budget: Loss
    ledger_id: Text | None
    unit: UnitAttributes | None = None


class SealedRows(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What ``seal.json`` says of the rows of one period: all that tells how their bytes are read as rows."""

    columns: tuple[Text, ...]
    dtype: str
    rows: int
    chunk_rows: int
    period: Text | None = None  # only where there are no rows: such periods are alike, and repeat nothing
    chunks: tuple[str, ...]  # SHA-256 of every chunk, hexadecimal


class ArrayShape(Struct, frozen=True):
    """The part of a Zarr array's own metadata that says how large it is."""

    shape: tuple[int, ...]


def builtins_of(stored: Struct) -> dict[str, Any]:
    """Return the JSON values of what is stored, in the order of its fields."""
    values: dict[str, Any] = msgspec.to_builtins(stored)
    return values


def text_of(stored: Struct, indent: int | None = None) -> bytes:
    """Return the JSON text of what is stored, as it has always been laid out."""
    return json.dumps(builtins_of(stored), indent=indent).encode()


BLOSC_BYTES = 16
"""What Blosc adds at most to bytes it cannot compress."""


class ChunkPieces(Protocol):
    """Reads chunks for one task, one after the other; what it holds for that is given back when it is forgotten."""

    checksum: int
    """CRC32C of the chunk that was read last; known when its last piece was taken. Private."""

    def read(self, index: int, piece_rows: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows of a chunk in pieces of at most so many; DataError if it is not what it was."""
        ...


class Reference(Protocol):
    """The chunks of rows that are read in place: files of others, cut where these can be. Small; can be pickled."""

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Bytes of the files."""
        ...

    @property
    def buffer_bytes(self) -> int:
        """Bytes that reading them takes, in pieces of any length."""
        ...

    def first_row(self, index: int) -> int:
        """Return the number of the first row of a chunk; that of the chunk behind the last one is n."""
        ...

    def chunk_of(self, row: int) -> int:
        """Return the number of the chunk in which a row is."""
        ...

    def reading(self) -> ChunkPieces:
        """Begin to read."""
        ...


@dataclass(frozen=True)
class Shape:
    """The shape of an array of rows, and how it is cut into chunks."""

    weights: ClassVar[tuple[int, ...]] = ()
    """How often each row of each of its periods is added; none: every row once."""
    rows: int
    columns: int
    dtype: str  # one of :data:`dpdist.rows.columns.DTYPES`
    chunk_rows: int  # the last chunk may be shorter
    compressed: bool = False

    def __str__(self) -> str:
        return f"A table of {self.rows} rows and {self.columns} columns"

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.rows // self.chunk_rows)

    @property
    def added_rows(self) -> int:
        """Number of rows: each is added once."""
        return self.rows

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row."""
        return self.columns * np.dtype(self.dtype).itemsize

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one stored chunk, the checksum included; the most they can be if it is compressed."""
        return self.chunk_rows * self.row_bytes + CHECKSUM_BYTES + (BLOSC_BYTES if self.compressed else 0)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all chunks; the most they can be if they are compressed."""
        return self.chunks * self.chunk_bytes

    def buffer_bytes(self, piece_rows: int) -> int:
        """Bytes that reading its chunks takes, in pieces of so many rows at most."""
        if self.compressed:
            return self.chunk_rows * self.row_bytes + self.chunk_bytes
        return min(piece_rows, self.chunk_rows) * self.row_bytes
