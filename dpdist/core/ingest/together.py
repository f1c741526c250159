"""Stores all rows of each privacy unit together, in an order that follows from a secret key: an external sort.

Rows are sorted by a keyed hash of their unit, then by the unit, and within a unit by a keyed hash of the unit and of
their values. The key is that of the ingest, is drawn for it, and has nothing to do with the keys of dithers. So the
order does not depend on that of the source, and the first row of a unit is one of its rows, chosen by the key. Values
are hashed as float64, with one zero and one NaN, and not in the type of the table, which follows from all rows. So the
rows of a unit depend in number and order on this unit only; where they begin depends on the others
(:mod:`dpdist.core.rows.dither`).

The order is kept as one bit per row, set for the first row of a unit (:mod:`dpdist.core.rows.unit_rows`), in the
private folder of the rows. The bits, the number of units and that of the rows of a unit are stored nowhere else, and in
no message.

Memory: one bit per row, and for each of 256 files its rows' hashes and units, 24 or 32 bytes per row. The files take as
much space as the table and these bytes, until it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from dpdist.core.errors import DataError
from dpdist.core.ingest.copies import Words, hashed, weights_of
from dpdist.core.ingest.readers.base import Rows
from dpdist.core.rows.table import Shape
from dpdist.core.rows.unit_rows import largest_unit, packed_starts
from dpdist.core.rows.units import Digests, KeptRows, Numbers, deal_records, dealt_files, draws_of
from dpdist.core.rows.writing import RowsWriter
from dpdist.core.storage import atomic

_BYTES = 8 << 20
"""Bytes of rows that are written at once."""


class Gathered:
    """Takes rows in the order of the source, as a :class:`dpdist.core.rows.writing.RowsWriter` does, and sorts them."""

    full = False

    def __init__(
        self, units: Iterable[Numbers | Digests], shape: Shape, key: bytes, scratch_dir: Path, stack: ExitStack
    ) -> None:
        self._shape, self._key = shape, key
        self._weights = weights_of(key, shape.columns)
        self._units = stack.enter_context(TemporaryFile(dir=scratch_dir))  # noqa: SIM115 - the caller's stack closes it
        self._files = dealt_files(stack, scratch_dir)
        kind = self._store(units, shape.rows)
        values = np.dtype((np.dtype(shape.dtype), (shape.columns,)))
        self._record = np.dtype([("order", np.uint64), ("unit", kind), ("key", np.uint64), ("values", values)])
        atomic.require_space(scratch_dir, self._record.itemsize * shape.rows, "rows that are sorted by privacy unit")
        self.before: Callable[[], object] = bool

    def _store(self, units: Iterable[Numbers | Digests], rows: int) -> np.dtype[Any]:
        """Store the unit of every row in a file, and return its type."""
        count = 0
        kind: np.dtype[Any] = np.dtype(np.int64)
        for batch in units:
            kind, count = batch.dtype, count + batch.size
            self._units.write(np.ascontiguousarray(batch).data)
        if count != rows:
            raise DataError("The source changed while it was read. Ingest it again when it is complete.")
        self._units.flush()
        return kind

    def append(self, rows: Rows, start: int) -> Rows:
        """Take rows of the source, (r, d), from row ``start`` on."""
        self.before()
        batch = np.empty(len(rows), self._record)
        kind = self._record["unit"]
        self._units.seek(start * kind.itemsize)
        batch["unit"] = np.frombuffer(self._units.read(len(rows) * kind.itemsize), kind)
        batch["order"] = draws_of(batch["unit"], np.zeros(len(rows), np.int64), self._key)
        batch["key"] = self._keys(rows, batch["order"])
        batch["values"] = rows
        deal_records(batch, batch["order"], self._files)
        return rows

    def _keys(self, rows: Rows, orders: Words) -> Words:
        """Return keyed hashes of rows and their units, (r,)."""
        values = rows.astype(np.float64) + 0.0  # -0 becomes 0
        values[np.isnan(values)] = np.nan
        words = values.view(np.uint64)
        return hashed((words ^ (words >> np.uint64(32))) @ self._weights + orders)

    def write(self, writer: RowsWriter, column: str) -> bytes:
        """Write the sorted rows, and return where units begin (:func:`dpdist.core.rows.unit_rows.packed_starts`)."""
        begins = KeptRows(self._shape.rows)
        step, most, row = max(1, _BYTES // self._record.itemsize), largest_unit(self._shape.columns), 0
        for file in self._files:
            file.flush()
            size = file.seek(0, 2) // self._record.itemsize
            if not size:
                continue
            records = np.memmap(file, self._record, "r", shape=(size,))
            units = records["unit"].copy()
            order = np.lexsort((records["key"], units, records["order"]))
            units = units[order]
            first = np.flatnonzero(np.concatenate([[True], units[1:] != units[:-1]]))
            if np.diff(first, append=size).max() > most:
                raise DataError(
                    f"A {column} has more than {most} rows, too many to be bounded together in memory. Declare how "
                    "many rows of each to keep instead.",
                    parameter="max_rows",
                )
            begins.add(row + first)
            for start in range(0, size, step):
                writer.append(records["values"][order[start : start + step]])
            row += size
        return packed_starts(begins, self._shape)
