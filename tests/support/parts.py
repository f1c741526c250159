"""Tables of a few rows in chunks of any size, and their sums in parts, as a pass computes them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpdist.core.ingest.registered import open_rows
from dpdist.core.moment.total import MomentTask, Partial, Value, add_partials, moment_task
from dpdist.core.rows import dataset
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dataset import RowsTable, created, partitions
from dpdist.core.rows.dither import DitherKey
from dpdist.core.rows.table import Table
from dpdist.core.storage.store import AnyStore
from dpdist.core.triangle import Band
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
    """Return the sum of a table, whose rows are dithered by the key of the tests."""
    return moment_task(table, bound, band).with_key(KEY.key)


def parts_of(table: Table, bound: RowBound, count: int, band: Band | None = None) -> list[MomentTask]:
    task = whole_of(table, bound, band)
    return [task.for_task(run) for run in partitions(table.chunks, count)]


def added(partials: Iterable[Partial[Value]]) -> Partial[Value]:
    """Add partials; the first one is used up."""
    return reduce(add_partials, partials)


def integers_of(
    rows: npt.NDArray[Any], bound: RowBound, first_row: int = 0, key: DitherKey = KEY
) -> npt.NDArray[np.int64]:
    """Return finite rows as :mod:`dpdist.core.rows.dither` defines them; only random bits are the product's."""
    drawn = key.drawn(first_row, len(rows), bound.columns)
    first, second = drawn.entries.astype(np.int64) % 256, drawn.entries.astype(np.int64) // 256
    largest = 2**bound.grid_bits
    radius = largest - 2 - bound.columns / (8 * largest)
    centre, scale = (bound.centre or 0.0), (bound.scale or 1.0)
    x = (rows.astype(np.float64) - centre) / scale * (largest / bound.clip_norm)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    x *= np.where(norms > radius, radius / np.maximum(norms, radius), 1.0)
    fine = 2 * np.rint(256 * x + drawn.thirds[:, None]).astype(np.int64) - 1  # twice y
    z = (fine + 2 * first + 2 * second - 255) // 512
    for row in z:
        while (row**2).sum() > largest**2:
            place = np.abs(row).argmax()
            row[place] -= np.sign(row[place])
    return np.column_stack([z, np.full(len(z), bound.constant)]) if bound.constant else z
