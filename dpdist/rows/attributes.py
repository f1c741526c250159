"""What is stored of rows besides the rows themselves, as types: whatever in a folder is not so is refused.

Each is written and read here only, in the order of its fields; what an older version did not know has a default, which
is not written.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Struct

from dpdist.rows.units import Keep, Unit
from dpdist.storage.arrays import Text

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
        What the rows were ingested from (:mod:`dpdist.ingest.origin`), or None.
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
