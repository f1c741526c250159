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

import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from dpdist._util.ids import random_token
from dpdist._util.paths import AnyPath, local, read_plain
from dpdist.errors import DataError
from dpdist.naming import step
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.rows.chunks import ChunkReader
from dpdist.rows.dataset import RowsTable, open_rows
from dpdist.rows.seal import KEY, sealed_tags, write_seal
from dpdist.storage.arrays import MOST_ATTRIBUTES
from dpdist.storage.atomic import replace_file, staged

FORMAT = "dpdist-periods/1"
_FILE = "periods.json"


@dataclass(frozen=True)
class PeriodicTable:
    """An opened folder of periods.

    Attributes
    ----------
    path
        The folder, reachable under the same name from every worker.
    dataset_id
        32 random hexadecimal digits: the identity of the rows of all periods together.
    budget
        The declared budget.
    ledger_id
        Identity of the one ledger that may be charged for these rows, or None while none was created.
    """

    path: Path
    dataset_id: str
    budget: PrivacyLoss
    ledger_id: str | None

    def rows_of(self, period: str) -> Path:
        """Return where the rows of a period are stored."""
        return self.path / f"{period}.zarr"

    def count(self, periods: Iterable[str]) -> int:
        """Return the number of rows of some periods together, as they are declared; public under replace-one.

        Raises
        ------
        DataError
            If a period is not there.
        """
        total = 0
        for period in periods:
            file = self.rows_of(period) / "zarr.json"
            try:
                total += int(json.loads(read_plain(file, MOST_ATTRIBUTES))["shape"][0])
            except (OSError, ValueError, KeyError, TypeError, IndexError):
                raise DataError(f"{file} is missing or damaged. Restore it.") from None
        return total

    def span(self, seals: Mapping[str, str], start: int) -> Span:
        """Return consecutive periods as one table.

        Parameters
        ----------
        seals
            Their names in order, at least one, each with its seal as the ledger has it.
        start
            Position of the first among all periods, from 0.

        Raises
        ------
        DataError
            If a period is not there, is not of this table, or has another shape, type or columns than was sealed.
        """
        parts = []
        for period, seal in seals.items():
            part = open_rows(self.rows_of(period))
            if part.period != period or part.ledger_id != self.ledger_id:
                raise DataError(f"{part.path} holds other rows than those of the period {period}. Restore it.")
            parts.append(replace(part, seal=seal))
            sealed_tags(parts[-1])  # here too: of a period that is said to have no rows no chunk is ever read
        first = parts[0]
        for part in parts:
            if part.names != first.names:
                raise DataError(f"{part.path} has other columns than {first.path}. Restore it.")
        return Span(
            path=self.path.absolute(),
            dataset_id=self.dataset_id,
            rows=sum(part.rows for part in parts),
            columns=first.columns,
            dtype=first.dtype,
            chunk_rows=max(part.chunk_rows for part in parts),
            names=first.names,
            budget=self.budget,
            ledger_id=self.ledger_id,
            compressed=any(part.compressed for part in parts),
            parts=tuple(parts),
            start=start,
        )


@dataclass(frozen=True)
class Span(RowsTable):
    """Consecutive periods as one table: their chunks, one period after the other.

    Attributes
    ----------
    parts
        The rows of each period.
    start
        Position of the first among all periods, from 0.
    """

    parts: tuple[RowsTable, ...] = ()
    start: int = 0

    @property
    def label(self) -> str:
        """The period, or the first and the last one."""
        first, last = (str(self.parts[i].period) for i in (0, -1))
        return first if len(self.parts) == 1 else f"{first}--{last}"

    @property
    def landmark(self) -> Path:
        """A file that is there wherever the rows are."""
        return self.parts[-1].landmark

    @property
    def seals(self) -> dict[str, str]:
        """The periods that are read, each with the seal of its content."""
        return {str(part.period): str(part.seal) for part in self.parts}

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(part.chunks for part in self.parts))

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return self._ends[-1]

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the largest chunk file."""
        return max(part.chunk_bytes for part in self.parts)

    def located(self, index: int) -> tuple[RowsTable, int]:
        """Return the table that stores a chunk, and the number of the chunk there."""
        place = bisect_right(self._ends, index)
        return self.parts[place], index - (self._ends[place - 1] if place else 0)

    def chunk_path(self, index: int) -> Path:
        """Return the file of a chunk."""
        part, local = self.located(index)
        return part.chunk_path(local)

    def rows_in(self, index: int) -> int:
        """Rows of a chunk; the last of a period may hold fewer."""
        part, local = self.located(index)
        return part.rows_in(local)


def create_periods(path: Path, budget: PrivacyLoss) -> PeriodicTable:
    """Create an empty folder of periods; all of it appears at once.

    Raises
    ------
    DataError
        If something is there already, or it cannot be written.
    """
    with staged(path, "rows", private=True) as aside:
        handle = os.open(aside / KEY, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(random_token() + random_token())
        _write(aside, PeriodicTable(path, random_token(), budget, None))
    return open_periods(path)


def _write(folder: Path, table: PeriodicTable) -> None:
    content = {
        "format": FORMAT,
        "dataset_id": table.dataset_id,
        "budget": table.budget.to_json(),
        "ledger_id": table.ledger_id,
    }
    replace_file(folder / _FILE, json.dumps(content, indent=2).encode(), "rows", private=True)


def bind_periods(table: PeriodicTable, ledger_id: str) -> PeriodicTable:
    """Record, once and for all, which ledger is charged for these rows; hold ``locked(table.path)`` meanwhile.

    Raises
    ------
    DataError
        If the table has a ledger already, or cannot be written.
    """
    if open_periods(table.path).ledger_id is not None:
        raise DataError(f"{table.path} has a ledger already.")
    bound = replace(table, ledger_id=ledger_id)
    _write(table.path, bound)
    return bound


def is_periodic(path: AnyPath) -> bool:
    """Say whether what stands at a path claims to be a folder of periods."""
    return (local(path) / _FILE).is_file()


def open_periods(path: AnyPath) -> PeriodicTable:
    """Open a folder of periods; what is in the periods is looked at by whoever reads them.

    Raises
    ------
    DataError
        If there is none.
    """
    path = local(path)
    try:
        info = json.loads(read_plain(path / _FILE, MOST_ATTRIBUTES))
        if info["format"] != FORMAT:
            raise ValueError  # noqa: TRY301 - one message for whatever is wrong
        ledger_id = info["ledger_id"]
        return PeriodicTable(
            path.absolute(),
            str(info["dataset_id"]),
            PrivacyLoss.from_json(info["budget"]),
            None if ledger_id is None else str(ledger_id),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, DataError):
        raise DataError(
            f"{path} is not a folder of periods, or its {_FILE} was damaged. {step('run')} makes one from a job file "
            "whose [rows] has periods = true."
        ) from None


def seal_rows(table: RowsTable) -> str:
    """Read the rows of a period back from the disk, once, and seal them.

    Returns
    -------
    str
        The seal, 64 hexadecimal digits, for the ledger.

    Raises
    ------
    DataError
        If a chunk is damaged, or the seal cannot be written.
    """
    reader = ChunkReader(table, table.chunk_rows)
    tags = [reader.tag(index) for index in range(table.chunks)]
    return write_seal(table, tags)
