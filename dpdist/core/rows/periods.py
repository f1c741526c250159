"""A table whose rows arrive in periods: a private folder with one write-once rows.zarr per period.

::

    visits/                   accessible to its owner only
      periods.json            identity, declared budget, charged ledger
      key                     secret key of the digests in this folder
      2026-01-05.zarr/        rows of one period, with seal.json and sources.json

A closed period never changes: its seal is recorded in the ledger, and every chunk is verified against it. A release
reads a :class:`Span`: consecutive periods as one table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

import msgspec

from dpdist.core.errors import DataError, UsageError
from dpdist.core.naming import step
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.privacy.persons import rows_charged
from dpdist.core.rows.chunks import KEY, ChunkReader, sealed_tags, write_seal
from dpdist.core.rows.dataset import RowsTable, open_ingested
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import ArrayShape, PeriodsAttributes, UnitAttributes, text_of
from dpdist.core.rows.units import Unit
from dpdist.core.storage.arrays import ROOT
from dpdist.core.storage.store import AnyStore, Store, store_at
from dpdist.core.text import random_token

FORMAT = "dpdist-periods/1"
_FILE = "periods.json"


@dataclass(frozen=True)
class PeriodicTable:
    """An opened folder of periods."""

    store: Store  # reachable from every worker under the same name
    dataset_id: str  # of all periods together: 32 random hexadecimal digits
    budget: PrivacyLoss
    ledger_id: str | None  # of the only ledger to charge; None before it is created
    unit: Unit | None = None  # with limits on rows and periods; None: each row is a unit

    def rows_of(self, period: str) -> Store:
        """Return the store of a period."""
        return self.store.within(f"{period}.zarr")

    def count(self, periods: Iterable[str]) -> int:
        """Return the declared number of rows of several periods; public under replace-one."""
        total = 0
        for period in periods:
            stored = self.rows_of(period)
            try:
                total += msgspec.json.decode(stored.get(ROOT), type=ArrayShape).shape[0]
            except (OSError, ValueError, IndexError, RecursionError):
                raise DataError(f"{stored.address(ROOT)} is missing or damaged. Restore it from a backup.") from None
        return total

    def span(self, seals: Mapping[str, str], start: int) -> Span:
        """Return consecutive periods as one table."""
        parts = []
        for period, seal in seals.items():
            part = open_ingested(self.rows_of(period))
            if part.period != period or part.ledger_id != self.ledger_id:
                raise DataError(f"{part} does not contain the rows of the period {period}. Restore it from a backup.")
            parts.append(replace(part, seal=seal))
            sealed_tags(parts[-1])  # verified here too: a period without rows has no chunk to read
        for part in parts:
            if (part.names, part.schema) != (parts[0].names, parts[0].schema):
                raise DataError(f"{part} and {parts[0]} differ in columns or schema. Restore {part} from a backup.")
            if part.unit != self.unit:
                raise DataError(f"{part} and {self.store} differ in their privacy unit. Restore {part} from a backup.")
        return Span(self.store.absolute(), self.dataset_id, self.budget, self.ledger_id, tuple(parts), start)


@dataclass(frozen=True)
class Span:
    """Consecutive periods as one :data:`dpdist.core.rows.table.Table`; each has its own dtype and chunk length."""

    periodic: ClassVar[bool] = True
    variant: ClassVar[None] = None
    store: Store  # this and the next three are those of the PeriodicTable
    dataset_id: str
    budget: PrivacyLoss | None
    ledger_id: str | None
    parts: tuple[RowsTable, ...]  # the rows of each period, at least one
    start: int = 0  # position of the first among all periods
    weights: tuple[int, ...] = ()  # times that each row of a part is added, at least 1; empty: once

    def __post_init__(self) -> None:
        if self.weights and (len(self.weights) != len(self.parts) or min(self.weights) < 1):
            raise ValueError("weights must be at least 1, one per period, or empty")

    def __str__(self) -> str:
        return str(self.store)

    @property
    def label(self) -> str:
        """The period, or the first and last period."""
        first, last = (str(self.parts[i].period) for i in (0, -1))
        return first if len(self.parts) == 1 else f"{first}--{last}"

    @property
    def probe(self) -> Store:
        """A rows.zarr that exists wherever the rows do: that of the last period."""
        return self.parts[-1].probe

    @property
    def names(self) -> tuple[str, ...]:
        """Column names, equal in all periods."""
        return self.parts[0].names

    @property
    def unit(self) -> Unit | None:
        """The privacy unit, equal in all periods."""
        return self.parts[0].unit

    @property
    def schema(self) -> Schema | None:
        """The schema of the rows, equal in all periods."""
        return self.parts[0].schema

    @property
    def max_rows(self) -> int:
        """Number of rows that the rows of one person count as."""
        return counted_rows(self.unit, len(self.parts), weighted=bool(self.weights))

    @property
    def together(self) -> bool:
        """Periods keep some rows of a privacy unit."""
        return False

    @property
    def changed_rows(self) -> int:
        """Number of added rows of one person, by the largest weight."""
        return self.max_rows * max(self.weights, default=1)

    @property
    def added_rows(self) -> int:
        """Total number of rows, multiplied by their weights."""
        weights = self.weights or (1,) * len(self.parts)
        return sum(weight * part.rows for weight, part in zip(weights, self.parts, strict=True))

    @property
    def seals(self) -> dict[str, str]:
        """The seal of each period."""
        return {str(part.period): str(part.seal) for part in self.parts}

    @cached_property
    def rows(self) -> int:
        """Total number of rows."""
        return sum(part.rows for part in self.parts)

    @property
    def columns(self) -> int:
        """Number of columns, equal in all periods."""
        return self.parts[0].columns

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(part.chunks for part in self.parts))

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return self._ends[-1]

    @property
    def chunk_rows(self) -> int:
        """Largest number of rows of a chunk."""
        return max(part.chunk_rows for part in self.parts)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all chunks; an upper bound if they are compressed."""
        return sum(part.stored_bytes for part in self.parts)

    def buffer_bytes(self, piece_rows: int) -> int:
        """Memory in bytes for reading chunks in batches of at most ``piece_rows`` rows."""
        return max(part.buffer_bytes(piece_rows) for part in self.parts)

    @property
    def centring(self) -> bool:
        """Whether a missing cell may count as the centre of its column."""
        return self.schema is not None and bool(self.schema.centring)

    def located(self, index: int) -> tuple[RowsTable, int]:
        """Return the table that stores a chunk, and the index of the chunk in it."""
        position = bisect_right(self._ends, index)
        return self.parts[position], index - (self._ends[position - 1] if position else 0)

    def weight_of(self, index: int) -> int:
        """Return the number of times that each row of a chunk is added."""
        return self.weights[bisect_right(self._ends, index)] if self.weights else 1


def counted_rows(unit: Unit | None, read: int, *, weighted: bool = False) -> int:
    """Return the number of rows of one period that those of a person count as (:mod:`dpdist.core.privacy.persons`)."""
    if unit is None or unit.max_periods is None:
        return 1
    return unit.counted_rows * rows_charged(unit.max_periods, unit.max_periods if weighted else read)


def create_periods(folder: AnyStore, budget: PrivacyLoss, unit: Unit | None = None) -> PeriodicTable:
    """Create an empty folder of periods atomically."""
    with store_at(folder).staged("rows", private=True) as staging:
        staging.put(KEY, (random_token() + random_token()).encode("ascii"))
        _write(PeriodicTable(staging, random_token(), budget, None, unit))
    return open_periods(folder)


def _write(table: PeriodicTable) -> None:
    unit = None if table.unit is None else msgspec.convert(table.unit.to_json(), UnitAttributes)
    attributes = PeriodsAttributes(FORMAT, table.dataset_id, table.budget.to_json(), table.ledger_id, unit)
    table.store.replace(_FILE, text_of(attributes, indent=2), "rows", private=True)


def bind_periods(table: PeriodicTable, ledger_id: str) -> PeriodicTable:
    """Record permanently which ledger is charged for these rows; the caller holds ``table.store.locked()``."""
    if open_periods(table.store).ledger_id is not None:
        raise DataError(f"{table.store} already has a ledger: name that one.")
    bound = replace(table, ledger_id=ledger_id)
    _write(bound)
    return bound


def is_periodic(folder: AnyStore) -> bool:
    """Say whether a folder claims to be a folder of periods."""
    return store_at(folder).exists(_FILE)


def open_periods(folder: AnyStore) -> PeriodicTable:
    """Open a folder of periods; the periods themselves are validated when they are read."""
    store = store_at(folder)
    try:
        attributes = msgspec.json.decode(store.get(_FILE), type=PeriodsAttributes)
        if attributes.format != FORMAT:
            raise ValueError  # noqa: TRY301 - one message for all defects
        unit = None if attributes.unit is None else attributes.unit.unit
        budget = PrivacyLoss.from_json(attributes.budget)
        return PeriodicTable(store.absolute(), attributes.dataset_id, budget, attributes.ledger_id, unit)
    except (OSError, ValueError, KeyError, RecursionError, DataError, UsageError):
        raise DataError(
            f"{store} is not a folder of periods, or its {_FILE} is damaged. {step('run')} creates one from a job file "
            "with periods = true in [rows]."
        ) from None


def seal_rows(table: RowsTable) -> str:
    """Read the rows of a period back from disk and seal them."""
    reader = ChunkReader(table, table.chunk_rows)
    tags = [reader.tag(index) for index in range(table.chunks)]
    return write_seal(table, tags)
