"""What the sums of a release cost a cluster, before any of it runs: tasks, bytes, memory and time.

Tasks, bytes and memory are those of :mod:`dpdist.moment.layout`, which the release itself follows. For the time, the
cost of bounding a value, of a multiplication and of a normal is measured in the calling process, so it is right for
workers like this one. Disk and network are assumed to have the speed :data:`LINK`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpdist.errors import UsageError
from dpdist.moment.gram import GramSum
from dpdist.moment.layout import Layout, layout_of
from dpdist.moment.total import require_summable
from dpdist.naming import parameter
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.lattice import rounded_normal
from dpdist.rows.bounding import RowBound
from dpdist.rows.dataset import chunk_rows_for
from dpdist.rows.table import Shape
from dpdist.triangle import Band

LINK = 1e9
"""Bytes a second that a process reads from the file system, and that it sends or receives: four fifths of 10 Gbit/s."""
_TASK_SECONDS = 2e-3
"""Of driver and scheduler for a task that does nothing; workflows/many_partitions.py measures it anew."""
_SAMPLE = 2000
"""Largest number of columns that is measured; a wider product costs as much for each multiplication."""


@dataclass(frozen=True)
class Rates:
    """CPU seconds of one core, for one of each.

    Parameters
    ----------
    bound
        Value of a row that is bounded.
    multiply
        Entry of the moment to which a row is added.
    draw
        Exactly rounded normal.
    """

    bound: float
    multiply: float
    draw: float

    @classmethod
    def measured(cls, bound: RowBound, dtype: str, rows: int) -> Rates:
        """Measure them here, in about a second; the best of three."""
        columns = min(bound.columns, _SAMPLE)
        sample = RowBound(columns, bound.clip_norm, bound.grid_bits)
        count = max(1, min(rows, sample.exact_rows, (24 << 20) // (8 * columns)))
        values = (np.arange(count * columns) % 101).reshape(count, columns).astype(dtype)
        buffer = np.empty((count, sample.width))
        sums = GramSum(Band.whole(sample.width), sample.exact_rows)
        normals = 100_000
        return cls(
            bound=_best(lambda: sample.apply(values, buffer)) / (count * columns),
            multiply=_best(lambda: sums.add(buffer)) / (count * Band.whole(columns).entries),
            draw=_best(lambda: rounded_normal(1 << 20, normals, SYSTEM)) / normals,
        )


def _best(action: Callable[[], object]) -> float:
    spent = []
    for _ in range(3):
        begun = time.process_time()
        action()
        spent.append(time.process_time() - begun)
    return min(spent)


@dataclass(frozen=True)
class ClusterCost:
    """The cost of one release. The draw is counted as one normal for every entry, as that of `gaussian`.

    Parameters
    ----------
    table
        The shape of the rows.
    layout
        What will be done.
    rates
        What a core takes for it.
    """

    table: Shape
    layout: Layout
    rates: Rates

    @property
    def worker_seconds(self) -> float:
        """Seconds that the workers take, if they share the work evenly."""
        layout, table = self.layout, self.table
        bounded = len(layout.bands) * layout.bound.columns
        work = table.rows * (bounded * self.rates.bound + layout.entries_per_row * self.rates.multiply)
        moved = (layout.bytes_read + layout.bytes_between_workers) / LINK
        return (work + moved) / min(layout.workers, layout.partitions)

    @property
    def trusted_seconds(self) -> float:
        """Seconds that the trusted node takes to receive the sums and draw the noise."""
        entries = sum(band.entries for band in self.layout.bands)
        return self.layout.bytes_to_trusted / LINK + entries * self.rates.draw

    @property
    def seconds(self) -> float:
        """Seconds from the first task to the last draw; of several bands, one is noised while others are summed."""
        overhead = _TASK_SECONDS * (self.layout.partitions + self.layout.additions)
        if len(self.layout.bands) == 1:
            return overhead + self.worker_seconds + self.trusted_seconds
        first = self.worker_seconds / len(self.layout.bands)
        return overhead + max(self.worker_seconds, first + self.trusted_seconds)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON values; bytes are of a process, or of all of them together where they move."""
        layout = self.layout
        return {
            "n": self.table.rows,
            "d": self.table.columns,
            "dtype": self.table.dtype,
            "workers": layout.workers,
            "bands": len(layout.bands),
            "tasks": {"partitions": layout.partitions, "additions": layout.additions},
            "bytes_read": layout.bytes_read,
            "bytes_between_workers": layout.bytes_between_workers,
            "bytes_to_trusted": layout.bytes_to_trusted,
            "worker_bytes": layout.worker_bytes,
            "trusted_bytes": layout.trusted_bytes,
            "seconds": self.seconds,
        }


def described(rows: int, columns: int, dtype: str) -> Shape:
    """Describe a table as it would be ingested.

    Raises
    ------
    UsageError
        If it has no rows, or fewer than two columns.
    """
    if rows < 1 or columns < 2:
        raise UsageError(
            f"The cost is that of a table of one row and two columns at least ({parameter('n')}, {parameter('d')})."
        )
    return Shape(rows, columns, dtype, chunk_rows_for(columns, dtype, rows))


def forecast(table: Shape, bound: RowBound, workers: int, memory: int, *, divisible: bool) -> ClusterCost:
    """Return what the release of a table will cost.

    Parameters
    ----------
    table, bound
        The shape of the rows, which need not be stored anywhere, and how they are bounded.
    workers
        Number of worker processes.
    memory
        Bytes that each process may use.
    divisible
        Whether the mechanism's noise has independent entries.

    Raises
    ------
    UsageError
        If there is no worker, or the memory does not suffice.
    DataError
        If 64-bit integers cannot sum so many rows.
    """
    if workers < 1:
        raise UsageError("At least one worker is needed.", parameter="workers")
    layout = layout_of(table, bound, workers, memory, divisible=divisible)
    require_summable(table, bound)
    return ClusterCost(table, layout, Rates.measured(bound, table.dtype, table.rows))
