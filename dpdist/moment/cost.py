"""What the sums of a release cost a cluster, before any of it runs: tasks, bytes, memory and time.

Tasks, bytes and memory are those of :mod:`dpdist.moment.layout`, which the release itself follows. For the time, the
cost of bounding a value, of a multiplication and of a normal is measured in the calling process, so it is right for
workers like this one. Disk and network of a process are assumed to have the speed :data:`LINK`. All processes together
get no more from the store of the rows than it gives in all, if that is said.
"""

from __future__ import annotations

import math
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpdist._util.parallel import fan_in
from dpdist.errors import UsageError
from dpdist.moment.gram import gram_sum
from dpdist.moment.layout import BOUND_SECONDS, TASK_SECONDS, Layout, layout_of, unit_count
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
INGEST = {"parquet": 93e6, "csv": 22e6, "npy": 251e6}
"""Bytes of rows a second that one core takes up from files of a kind: the lowest of what was measured."""
_SAMPLE = 2000  # largest number of columns that is measured; a wider product costs as much for each multiplication


@dataclass(frozen=True)
class Rates:
    """CPU seconds of one core, for one of each."""

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
        # as the rows themselves are multiplied; what comes out is thrown away
        sums = gram_sum(Band.whole(sample.width), sample.norm_bound, largest=bound.largest)

        def multiply() -> None:
            sums.add(buffer)
            sums.total()  # what is not multiplied yet is

        def best(action: Callable[[], object], pieces: int) -> float:
            return min(timeit.repeat(action, timer=time.process_time, repeat=3, number=1)) / pieces

        normals = 100_000
        return cls(
            bound=best(lambda: sample.apply(values, buffer), count * columns),
            multiply=best(multiply, count * Band.whole(columns).entries),
            draw=best(lambda: rounded_normal(1 << 20, normals, SYSTEM), normals),
        )


@dataclass(frozen=True)
class ClusterCost:
    """The cost of one release, and of the steps beside it that read all rows.

    The draw is counted as one normal for every entry. Seconds are those on as many of the workers as help.
    """

    table: Shape
    layout: Layout
    rates: Rates
    bandwidth: float = math.inf

    @cached_property
    def seconds(self) -> float:
        """Seconds from the first task of a release to the last draw."""
        layout, bands = self.layout, len(self.layout.bands)
        # of the layouts of fewer workers that share a band in the same way, the most are the fastest
        fewer = (min(layout.workers, sharing * bands) for sharing in range(1, layout.sharing + 1))
        return min(self._release_seconds(replace(layout, workers=workers)) for workers in fewer)

    @cached_property
    def read_seconds(self) -> float:
        """Seconds for one read of the rows that bounds them, as that of a private clip norm."""
        table, row_seconds = self.table, BOUND_SECONDS * self.table.columns
        size = table.stored_bytes
        work = self._work(table.columns, 0, size)

        def seconds(workers: int) -> float:
            units = unit_count(table, row_seconds=row_seconds, entries=0, workers=workers)
            return max(work / min(workers, units), size / self.bandwidth, TASK_SECONDS * units)

        return min(map(seconds, range(1, self.layout.workers + 1)))

    def ingest_seconds(self, kind: str) -> float:
        """Seconds to take the rows up from files of a kind of :data:`INGEST` that hold about as many bytes."""
        size, workers = self.table.stored_bytes, min(self.layout.workers, self.table.chunks)
        return max(size * (1 / INGEST[kind] + 2 / LINK) / workers, 2 * size / self.bandwidth)

    @property
    def lost_worker_seconds(self) -> float:
        """Seconds that a release takes longer, about, if a worker is lost: its units are summed again by the others."""
        layout, size = self.layout, self.table.stored_bytes
        others = max(1, layout.sharing - 1)
        longest = 0.0
        for band, units in zip(layout.bands, layout.counts, strict=True):
            work = self._work(layout.bound.columns, layout.entries_per_row_of(band), size)
            lost = min(work / layout.sharing, (fan_in(8 * band.entries) + 1) * work / units)
            longest = max(longest, lost / others, lost / work * size / self.bandwidth)
        return longest

    def _work(self, bounded: int, entries: int, read: int) -> float:
        """Return the seconds of one worker that reads all rows, bounds so many values of each, and adds it."""
        return self.table.rows * (bounded * self.rates.bound + entries * self.rates.multiply) + read / LINK

    def _release_seconds(self, layout: Layout) -> float:
        """Return the seconds of a release; of several bands, one is noised while others are summed."""
        work = self._work(len(layout.bands) * layout.bound.columns, layout.entries_per_row, layout.bytes_read)
        summed = max(
            work / min(layout.workers, layout.partitions),
            layout.bytes_read / self.bandwidth,
            TASK_SECONDS * (layout.partitions + layout.additions),
        )
        # an addition receives the sums of others one after the other
        joined = sum(size * (len(level[0]) - 1) for size, tree in layout.trees for level in tree)
        summed += joined / LINK / layout.under_way
        entries = Band.whole(layout.bound.width).entries
        noised = layout.bytes_to_trusted / LINK + entries * self.rates.draw
        if len(layout.bands) == 1:
            return summed + noised
        return max(summed, summed / len(layout.bands) + noised)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON values; bytes are of a process, or of all of them together where they move."""
        layout, table = self.layout, self.table
        sizes = ("bytes_read", "bytes_between_workers", "bytes_to_trusted", "worker_bytes", "trusted_bytes")
        return {
            "n": table.rows,
            "d": table.columns,
            "dtype": table.dtype,
            "workers": layout.workers,
            "bands": len(layout.bands),
            "tasks": {"partitions": layout.partitions, "additions": layout.additions},
            **{name: getattr(layout, name) for name in sizes},
            "store_bandwidth": None if math.isinf(self.bandwidth) else self.bandwidth,
            "seconds": self.seconds,
            "read_seconds": self.read_seconds,
            "ingest_seconds": {kind: self.ingest_seconds(kind) for kind in INGEST},
            "lost_worker_seconds": self.lost_worker_seconds,
        }  # fmt: skip


def described(rows: int, columns: int, dtype: str) -> Shape:
    """Describe a table as it would be ingested."""
    if rows < 1 or columns < 2:
        raise UsageError(
            f"The cost is that of a table of one row and two columns at least ({parameter('n')}, {parameter('d')})."
        )
    return Shape(rows, columns, dtype, chunk_rows_for(columns, dtype, rows))


def forecast(
    table: Shape, bound: RowBound, workers: Sequence[int], memory: int, *, divisible: bool,
    bandwidth: float | None = None,
) -> list[ClusterCost]:  # fmt: skip
    """Return what the release of a table will cost, for each number of workers. More of them are never slower."""
    if min(workers) < 1:
        raise UsageError("At least one worker is needed.", parameter="workers")
    if bandwidth is not None and not 0 < bandwidth < math.inf:
        raise UsageError("The bandwidth of the store is a number of bytes a second above 0.")
    layouts = [layout_of(table, bound, count, memory, divisible=divisible) for count in workers]
    require_summable(table, bound)
    rates = Rates.measured(bound, table.dtype, table.rows)
    return [ClusterCost(table, layout, rates, math.inf if bandwidth is None else bandwidth) for layout in layouts]
