"""Sums in parts, as a pass computes them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from dpdist.moment.total import MomentTask, Partial, Value, add_partials, moment_task
from dpdist.rows.bounding import DITHERED, RowBound
from dpdist.rows.dataset import partitions
from dpdist.rows.table import Table
from dpdist.triangle import Band
from support.dithering import KEY


def whole_of(table: Table, bound: RowBound, band: Band | None = None) -> MomentTask:
    """Return the sum of a table; rows that are dithered are so by the key of the tests."""
    task = moment_task(table, bound, band)
    return task.keyed(KEY.key) if bound.rule == DITHERED else task


def parts_of(table: Table, bound: RowBound, count: int, band: Band | None = None) -> list[MomentTask]:
    """Return at most so many tasks that together sum a table."""
    task = whole_of(table, bound, band)
    return [task.cut(run) for run in partitions(table.chunks, count)]


def added(partials: Iterable[Partial[Value]]) -> Partial[Value]:
    """Add partials; the first one is used up."""
    return reduce(add_partials, partials)
