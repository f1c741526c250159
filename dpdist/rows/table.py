"""What a table is to those who read it: its sizes, who may be charged for it, and where each of its chunks is stored.

A pass over rows and a release take a :class:`Table`: rows that were ingested at once
(:class:`dpdist.rows.dataset.RowsTable`), or some consecutive periods (:class:`dpdist.rows.periods.Span`). What is laid
out and forecast takes :class:`Sizes`, of which a :class:`Shape` is enough: it is stored nowhere.

What is stored of rows besides the rows themselves, as types: whatever in a folder is not so is refused.

Each is written and read here only, in the order of its fields; what an older version did not know has a default, which
is not written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows.schema import Schema
from dpdist.rows.units import Keep, Unit
from dpdist.storage.arrays import CHECKSUM_BYTES, Text
from dpdist.storage.store import Store

if TYPE_CHECKING:
    from dpdist.rows.dataset import RowsTable


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
    """The ``dpdist`` attributes of a rows.zarr, version 1.

    Attributes
    ----------
    origin
        What the rows were ingested from (:mod:`dpdist.ingest.sources`), or None.
    schema
        What the columns of the source mean (:class:`dpdist.rows.schema.Schema`), or None.
    dropped
        What a row that the schema drops is stored as: ``"zeros"``, by versions up to 0.1.0; ``"nan"``, which counts as
        the centre.
    """

    format: str
    dataset_id: Text
    columns: tuple[Text, ...]
    budget: Loss | None
    ledger_id: Text | None
    period: Text | None = None
    unit: UnitAttributes | None = None
    origin: object = None
    reproduced: bool = False
    schema: dict[str, Any] | None = None
    dropped: str = "zeros"

    @classmethod
    def of(cls, info: dict[str, Any]) -> RowsAttributes:
        """Read JSON values."""
        return msgspec.convert(info, cls)


class PeriodsAttributes(Struct, frozen=True, omit_defaults=True):
    """What ``periods.json`` says of a folder of periods, version 1."""

    format: str
    dataset_id: Text
    budget: Loss
    ledger_id: Text | None
    unit: UnitAttributes | None = None


class SealedRows(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What ``seal.json`` says of the rows of one period: all that tells how their bytes are read as rows.

    Attributes
    ----------
    period
        Only where there are no rows: periods without rows are alike, and repeat nothing.
    chunks
        SHA-256 of every chunk, hexadecimal.
    """

    columns: tuple[Text, ...]
    dtype: str
    rows: int
    chunk_rows: int
    period: Text | None = None
    chunks: tuple[str, ...]


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


class Sizes(Protocol):
    """How large a table is: all that its layout and its cost depend on. Its text names it in messages."""

    @property
    def rows(self) -> int:
        """Number of rows n."""
        ...

    @property
    def columns(self) -> int:
        """Number of columns d."""
        ...

    @property
    def chunk_rows(self) -> int:
        """Rows of its longest chunk."""
        ...

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Bytes of all chunks; the most they can be where they are compressed."""
        ...

    @property
    def weights(self) -> tuple[int, ...]:
        """How often each row of each of its periods is added; none: every row once."""
        ...

    @property
    def added_rows(self) -> int:
        """Number of rows, each as often as it is added."""
        ...

    def buffer_bytes(self, piece_rows: int) -> int:
        """Bytes that reading its chunks takes, in pieces of so many rows at most."""
        ...


class Table(Sizes, Protocol):
    """Rows that can be read, chunk by chunk, and charged for."""

    @property
    def store(self) -> Store:
        """Where it is, reachable under the same name from every worker."""
        ...

    @property
    def probe(self) -> Store:
        """A rows.zarr that is there wherever the rows are."""
        ...

    @property
    def dataset_id(self) -> str:
        """Its random identity, 32 hexadecimal digits."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Column names, length d."""
        ...

    @property
    def budget(self) -> PrivacyLoss | None:
        """The declared budget, or None."""
        ...

    @property
    def ledger_id(self) -> str | None:
        """Identity of the one ledger that may be charged for these rows, or None while none was created."""
        ...

    @property
    def unit(self) -> Unit | None:
        """Whose rows these are, and how many of each at most, or None where every row counts alone."""
        ...

    @property
    def schema(self) -> Schema | None:
        """By what the rows were made of the columns of their source; None: these were numbers."""
        ...

    @property
    def dropped(self) -> str:
        """What rows that the schema drops are stored as."""
        ...

    @property
    def max_rows(self) -> int:
        """How many rows one privacy unit may own."""
        ...

    @property
    def changed_rows(self) -> int:
        """How many rows of the sum neighbours differ in at most: those of a privacy unit, as often as each is added."""
        ...

    @property
    def periodic(self) -> bool:
        """Whether the rows come in periods."""
        ...

    @property
    def seals(self) -> Mapping[str, str]:
        """The periods that are read, each with the seal of its content; none where rows do not come in periods."""
        ...

    def located(self, index: int) -> tuple[RowsTable, int]:
        """Return the table that holds a chunk, and the number of the chunk there."""
        ...

    def weight_of(self, index: int) -> int:
        """Return how often each row of a chunk is added."""
        ...


class ChunkPieces(Protocol):
    """Reads chunks for one task, one after the other; what it holds for that is given back when it is forgotten."""

    checksum: int
    """CRC32C of the chunk that was read last; known when its last piece was taken. Private."""

    def read(self, index: int, piece_rows: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows of a chunk in pieces of at most so many; DataError if it is not what it was."""
        ...


class Reference(Protocol):
    """Who holds the chunks of rows that are read in place: files of others, cut where these can be.

    It is small and can be pickled: what is known of each chunk is looked up when it is needed.
    """

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Bytes of what they lie in."""
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
    """The shape of an array of rows, and how it is cut into chunks.

    Attributes
    ----------
    rows, columns
        n and d.
    dtype
        NumPy name of the stored type, one of :data:`dpdist.rows.dataset.DTYPES`.
    chunk_rows
        Rows per chunk; the last chunk may be shorter.
    compressed
        Whether the chunks are compressed.
    """

    rows: int
    columns: int
    dtype: str
    chunk_rows: int
    compressed: bool = False

    def __str__(self) -> str:
        return f"A table of {self.rows} rows and {self.columns} columns"

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.rows // self.chunk_rows)

    @property
    def weights(self) -> tuple[int, ...]:
        """None: every row is added once."""
        return ()

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

    def rows_in(self, index: int) -> int:
        """Rows of a chunk; the last may hold fewer."""
        return min(self.chunk_rows, self.rows - index * self.chunk_rows)
