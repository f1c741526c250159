"""A table whose rows come in periods: a private folder with one rows.zarr per period, each written once.

::

    visits/                   read and written by its owner only
      periods.json            identity, declared budget, which ledger is charged
      key                     makes the digests of this folder useless to whoever has not got it
      2026-01-05.zarr/        rows of one period, with seal.json and sources.json beside the chunks

A period that the ledger has closed never changes: its seal stands in the ledger, and every chunk is checked against it
when it is read. A release reads a :class:`Span`: some consecutive periods as one table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

import msgspec

from dpdist._util.text import random_token
from dpdist.errors import DataError, UsageError
from dpdist.naming import step
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.privacy.persons import rows_charged
from dpdist.rows.chunks import KEY, ChunkReader, sealed_tags, write_seal
from dpdist.rows.dataset import RowsTable, open_ingested
from dpdist.rows.schema import Schema
from dpdist.rows.table import ArrayShape, PeriodsAttributes, UnitAttributes, text_of
from dpdist.rows.units import Unit
from dpdist.storage.arrays import ROOT
from dpdist.storage.store import AnyStore, Store, store_at

FORMAT = "dpdist-periods/1"
_FILE = "periods.json"


@dataclass(frozen=True)
class PeriodicTable:
    """An opened folder of periods."""

    store: Store  # reachable under the same name from every worker
    dataset_id: str  # of the rows of all periods together: 32 random hexadecimal digits
    budget: PrivacyLoss
    ledger_id: str | None  # of the one ledger that may be charged; None while none was created
    unit: Unit | None = None  # with rows of a period and periods at most; None: every row counts alone

    def rows_of(self, period: str) -> Store:
        """Return where the rows of a period are stored."""
        return self.store.within(f"{period}.zarr")

    def count(self, periods: Iterable[str]) -> int:
        """Return the number of rows of some periods together, as they are declared; public under replace-one."""
        total = 0
        for period in periods:
            stored = self.rows_of(period)
            try:
                total += msgspec.json.decode(stored.get(ROOT), type=ArrayShape).shape[0]
            except (OSError, ValueError, IndexError, RecursionError):
                raise DataError(f"{stored.address(ROOT)} is missing or damaged. Restore it.") from None
        return total

    def span(self, seals: Mapping[str, str], start: int) -> Span:
        """Return consecutive periods as one table."""
        parts = []
        for period, seal in seals.items():
            part = open_ingested(self.rows_of(period))
            if part.period != period or part.ledger_id != self.ledger_id:
                raise DataError(f"{part} holds other rows than those of the period {period}. Restore it.")
            parts.append(replace(part, seal=seal))
            sealed_tags(parts[-1])  # here too: of a period that is said to have no rows no chunk is ever read
        for part in parts:
            if (part.names, part.schema) != (parts[0].names, parts[0].schema):
                raise DataError(f"{part} has other columns, or another schema, than {parts[0]}. Restore it.")
            if part.unit != self.unit:
                raise DataError(f"{part} protects another privacy unit than {self.store}. Restore it.")
        return Span(self.store.absolute(), self.dataset_id, self.budget, self.ledger_id, tuple(parts), start)


@dataclass(frozen=True)
class Span:
    """Consecutive periods as one :data:`dpdist.rows.table.Table`: their chunks, one period after the other.

    Each period is stored in its own type and in chunks of its own length. Its text is the folder of the periods.
    """

    periodic: ClassVar[bool] = True
    store: Store  # this and what follows are those of the PeriodicTable
    dataset_id: str
    budget: PrivacyLoss | None
    ledger_id: str | None
    parts: tuple[RowsTable, ...]  # the rows of each period, at least one
    start: int = 0  # position of the first among all periods
    weights: tuple[int, ...] = ()  # how often each row of each part is added, at least once; none: every row once

    def __post_init__(self) -> None:
        if self.weights and (len(self.weights) != len(self.parts) or min(self.weights) < 1):
            raise ValueError("every period has a weight of at least 1, or none has one")

    def __str__(self) -> str:
        return str(self.store)

    @property
    def label(self) -> str:
        """The period, or the first and the last one."""
        first, last = (str(self.parts[i].period) for i in (0, -1))
        return first if len(self.parts) == 1 else f"{first}--{last}"

    @property
    def probe(self) -> Store:
        """A rows.zarr that is there wherever the rows are: that of the last period."""
        return self.parts[-1].probe

    @property
    def names(self) -> tuple[str, ...]:
        """Column names, the same in every period."""
        return self.parts[0].names

    @property
    def unit(self) -> Unit | None:
        """Whose rows these are, the same in every period."""
        return self.parts[0].unit

    @property
    def schema(self) -> Schema | None:
        """By what the rows were made of the columns of their source, the same in every period."""
        return self.parts[0].schema

    @property
    def dropped(self) -> str:
        """What rows that the schema drops are stored as, the same in every period."""
        return self.parts[0].dropped

    @property
    def max_rows(self) -> int:
        """One row, or for how many rows those of a person are counted."""
        return counted_rows(self.unit, len(self.parts), weighted=bool(self.weights))

    @property
    def changed_rows(self) -> int:
        """These, as often as each is added where that is most often."""
        return self.max_rows * max(self.weights, default=1)

    @property
    def added_rows(self) -> int:
        """Number of rows of all of them, each as often as it is added."""
        weights = self.weights or (1,) * len(self.parts)
        return sum(weight * part.rows for weight, part in zip(weights, self.parts, strict=True))

    @property
    def seals(self) -> dict[str, str]:
        """The periods that are read, each with the seal of its content."""
        return {str(part.period): str(part.seal) for part in self.parts}

    @cached_property
    def rows(self) -> int:
        """Number of rows of all of them."""
        return sum(part.rows for part in self.parts)

    @property
    def columns(self) -> int:
        """Number of columns, the same in every period."""
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
        """Rows of the longest chunk of a period."""
        return max(part.chunk_rows for part in self.parts)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all chunks; the most they can be where they are compressed."""
        return sum(part.stored_bytes for part in self.parts)

    def buffer_bytes(self, piece_rows: int) -> int:
        """Bytes that reading its chunks takes, in pieces of so many rows at most."""
        return max(part.buffer_bytes(piece_rows) for part in self.parts)

    def located(self, index: int) -> tuple[RowsTable, int]:
        """Return the table that stores a chunk, and the number of the chunk there."""
        place = bisect_right(self._ends, index)
        return self.parts[place], index - (self._ends[place - 1] if place else 0)

    def weight_of(self, index: int) -> int:
        """Return how often each row of a chunk is added."""
        return self.weights[bisect_right(self._ends, index)] if self.weights else 1


def counted_rows(unit: Unit | None, read: int, *, weighted: bool = False) -> int:
    """Return for how many rows of one period a release counts those of a person (:mod:`dpdist.privacy.persons`)."""
    if unit is None or unit.max_periods is None:
        return 1
    return unit.max_rows * rows_charged(unit.max_periods, unit.max_periods if weighted else read)


def create_periods(place: AnyStore, budget: PrivacyLoss, unit: Unit | None = None) -> PeriodicTable:
    """Create an empty folder of periods; all of it appears at once."""
    with store_at(place).staged("rows", private=True) as aside:
        aside.put(KEY, (random_token() + random_token()).encode("ascii"))
        _write(PeriodicTable(aside, random_token(), budget, None, unit))
    return open_periods(place)


def _write(table: PeriodicTable) -> None:
    unit = None if table.unit is None else msgspec.convert(table.unit.to_json(), UnitAttributes)
    attributes = PeriodsAttributes(FORMAT, table.dataset_id, table.budget.to_json(), table.ledger_id, unit)
    table.store.replace(_FILE, text_of(attributes, indent=2), "rows", private=True)


def bind_periods(table: PeriodicTable, ledger_id: str) -> PeriodicTable:
    """Record, once and for all, which ledger is charged for these rows; hold ``table.store.locked()`` meanwhile."""
    if open_periods(table.store).ledger_id is not None:
        raise DataError(f"{table.store} has a ledger already.")
    bound = replace(table, ledger_id=ledger_id)
    _write(bound)
    return bound


def is_periodic(place: AnyStore) -> bool:
    """Say whether what stands at a place claims to be a folder of periods."""
    return store_at(place).exists(_FILE)


def open_periods(place: AnyStore) -> PeriodicTable:
    """Open a folder of periods; what is in the periods is looked at by whoever reads them."""
    store = store_at(place)
    try:
        said = msgspec.json.decode(store.get(_FILE), type=PeriodsAttributes)
        if said.format != FORMAT:
            raise ValueError  # noqa: TRY301 - one message for whatever is wrong
        unit = None if said.unit is None else said.unit.unit
        budget = PrivacyLoss.from_json(said.budget)
        return PeriodicTable(store.absolute(), said.dataset_id, budget, said.ledger_id, unit)
    except (OSError, ValueError, KeyError, RecursionError, DataError, UsageError):
        raise DataError(
            f"{store} is not a folder of periods, or its {_FILE} was damaged. {step('run')} makes one from a job file "
            "whose [rows] has periods = true."
        ) from None


def seal_rows(table: RowsTable) -> str:
    """Read the rows of a period back from the disk, once, and seal them."""
    reader = ChunkReader(table, table.chunk_rows)
    tags = [reader.tag(index) for index in range(table.chunks)]
    return write_seal(table, tags)
