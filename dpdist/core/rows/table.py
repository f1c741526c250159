"""Interfaces of a table, and the stored metadata of rows.

Passes over rows and releases take a :data:`Table`: rows ingested together
(:class:`dpdist.core.rows.dataset.RowsTable`), or consecutive periods (:class:`dpdist.core.rows.periods.Span`). Layouts
and forecasts take :data:`Sizes`, for which a :class:`Shape`, which is not stored, is enough.

The stored types are written and read only here, in the order of their fields. Fields added by later versions have
defaults, which are not written. A folder with any other content is refused.
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

from dpdist.core.rows.units import Keep, Unit
from dpdist.core.storage.arrays import CHECKSUM_BYTES, Text

if TYPE_CHECKING:
    from dpdist.core.rows.dataset import RowsTable
    from dpdist.core.rows.periods import Span

Table: TypeAlias = "RowsTable | Span"
"""Rows that can be read by chunk and charged for."""
Sizes: TypeAlias = "Shape | Span"
"""The size of a table, which determines its layout and cost. ``str`` names it in messages."""
Loss = dict[str, int]
"""A privacy loss as :meth:`dpdist.core.privacy.guarantee.PrivacyLoss.to_json` writes it."""


UNITS = "units"
"""Key of the object with the boundaries of privacy units whose rows are all kept (the module ``unit_rows``)."""


class UnitAttributes(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A privacy unit (:class:`dpdist.core.rows.units.Unit`)."""

    column: Text
    max_rows: int | None = None
    keep: Keep = "first"
    max_periods: int | None = None

    @property
    def unit(self) -> Unit:
        """The unit."""
        return Unit(self.column, self.max_rows, self.keep, self.max_periods)


class RowsAttributes(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The ``dpdist`` attributes of a rows.zarr, version 1."""

    format: str
    dataset_id: Text
    columns: tuple[Text, ...]
    budget: Loss | None
    ledger_id: Text | None
    period: Text | None = None
    unit: UnitAttributes | None = None
    origin: object = None  # the source of the rows (:func:`dpdist.core.ingest.sources.origin_of`)
    reproduced: bool = False
    schema: dict[str, Any] | None = None
    dropped: Text | None = None  # what stands in rows that the schema drops: "nan"; None without such a schema
    variant: Text | None = None  # what distinguishes rows with one identity: a digest of their schema


class PeriodsAttributes(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of ``periods.json`` in a folder of periods, version 1."""

    format: str
    dataset_id: Text
    budget: Loss
    ledger_id: Text | None
    unit: UnitAttributes | None = None


class SealedRows(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of ``seal.json`` of a period: everything that determines how its bytes are read as rows."""

    columns: tuple[Text, ...]
    dtype: str
    rows: int
    chunk_rows: int
    period: Text | None = None  # only without rows: empty periods do not repeat one another
    chunks: tuple[str, ...]  # SHA-256 of every chunk, hexadecimal


class ArrayShape(Struct, frozen=True):
    """The shape in the metadata of a Zarr array."""

    shape: tuple[int, ...]


def builtins_of(stored: Struct) -> dict[str, Any]:
    """Return stored metadata as JSON values, in the order of its fields."""
    values: dict[str, Any] = msgspec.to_builtins(stored)
    return values


def text_of(stored: Struct, indent: int | None = None) -> bytes:
    """Return stored metadata as JSON text in its fixed layout."""
    return json.dumps(builtins_of(stored), indent=indent).encode()


BLOSC_BYTES = 16
"""Largest overhead of Blosc for incompressible bytes."""


class ChunkBatches(Protocol):
    """Reads chunks for one task in sequence; its resources are released with it."""

    checksum: int
    """CRC32C of the last chunk, available after its last batch. Private."""

    def read(self, index: int, piece_rows: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows of a chunk in batches of at most ``piece_rows`` rows; DataError if the chunk changed."""
        ...


class Reference(Protocol):
    """The chunks of rows that are read in place, as parts of the user's files. Small; can be pickled."""

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
        """Memory in bytes for reading them in batches of any length."""
        ...

    def first_row(self, index: int) -> int:
        """Return the number of the first row of a chunk; n for the index after the last chunk."""
        ...

    def chunk_of(self, row: int) -> int:
        """Return the index of the chunk of a row."""
        ...

    def reading(self) -> ChunkBatches:
        """Return a reader."""
        ...


@dataclass(frozen=True)
class Shape:
    """The shape of an array of rows, and of its chunks."""

    weights: ClassVar[tuple[int, ...]] = ()
    """Times that each row of each period is added; empty: once."""
    rows: int
    columns: int
    dtype: str  # one of :data:`dpdist.core.rows.columns.DTYPES`
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
        """Number of rows, as each is added once."""
        return self.rows

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row."""
        return self.columns * np.dtype(self.dtype).itemsize

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one stored chunk with its checksum; an upper bound if it is compressed."""
        return self.chunk_rows * self.row_bytes + CHECKSUM_BYTES + (BLOSC_BYTES if self.compressed else 0)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all chunks; an upper bound if they are compressed."""
        return self.chunks * self.chunk_bytes

    def buffer_bytes(self, piece_rows: int) -> int:
        """Memory in bytes for reading chunks in batches of at most ``piece_rows`` rows."""
        if self.compressed:
            return self.chunk_rows * self.row_bytes + self.chunk_bytes
        return min(piece_rows, self.chunk_rows) * self.row_bytes
