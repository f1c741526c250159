"""Tables of a few rows in chunks of any size, and their sums in parts, as a pass computes them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpdist.ingest.registered import open_rows
from dpdist.moment.total import MomentTask, Partial, Value, add_partials, moment_task
from dpdist.rows import dataset
from dpdist.rows.bounding import DITHERED, RowBound
from dpdist.rows.dataset import RowsTable, created, partitions
from dpdist.rows.table import Table
from dpdist.storage.store import AnyStore
from dpdist.triangle import Band
from support.dithering import KEY


def table_of(
    path: AnyStore, rows: npt.NDArray[Any], chunk_rows: int | None = None, *, pieces: int = 1, **head: Any
) -> RowsTable:
    given = {"names": tuple(f"c{i}" for i in range(rows.shape[1])), "budget": None} | head
    with pytest.MonkeyPatch.context() as patch:
        if chunk_rows is not None:
            patch.setattr(dataset, "_TARGET_CHUNK", chunk_rows * rows.shape[1] * rows.itemsize)
        with created(path, rows=len(rows), dtype=str(rows.dtype), **given) as writer:
            for piece in np.array_split(rows, pieces):
                writer.append(piece)
    return open_rows(path)


def whole_of(table: Table, bound: RowBound, band: Band | None = None) -> MomentTask:
    """Return the sum of a table; rows that are dithered are so by the key of the tests."""
    task = moment_task(table, bound, band)
    return task.with_key(KEY.key) if bound.rule == DITHERED else task


def parts_of(table: Table, bound: RowBound, count: int, band: Band | None = None) -> list[MomentTask]:
    task = whole_of(table, bound, band)
    return [task.for_task(run) for run in partitions(table.chunks, count)]


def added(partials: Iterable[Partial[Value]]) -> Partial[Value]:
    """Add partials; the first one is used up."""
    return reduce(add_partials, partials)
