"""The cost of a release on a cluster, for `forecast_table.py`: tasks, bytes, memory and time.

Tasks, bytes and memory are those of :mod:`dpdist.core.moment.layout`, which the release uses. For the time, the cost of
bounding a value, of a multiplication and of a normal variate is measured in the calling process, so it is right for
similar workers. The disk and network of a process are assumed to have the speed :data:`LINK`. If the bandwidth of the
rows' store is given, all processes share it.
"""

from __future__ import annotations

import math
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpdist.core.moment.gram import gram_sum
from dpdist.core.moment.layout import BOUND_SECONDS, TASK_SECONDS, Layout, layout_of, task_count
from dpdist.core.moment.total import require_summable
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.lattice import rounded_normal
from dpdist.core.parallel import fan_in, level_counts
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dataset import chunk_rows_for
from dpdist.core.rows.dither import DitherKey, Dithers
from dpdist.core.rows.table import Shape
from dpdist.core.triangle import Band


def trees(layout: Layout) -> list[tuple[int, list[int]]]:
    """Return the bytes of a sum of each band, and the number of sums before and after each level of additions."""
    sizes = [8 * band.entries for band in layout.bands]
    return [(size, level_counts(count, size)) for size, count in zip(sizes, layout.task_counts, strict=True)]


def tasks_of(layout: Layout) -> tuple[int, int]:
    """Return the tasks that read rows, and those that add sums."""
    return sum(layout.task_counts), sum(sum(counts[1:]) for _, counts in trees(layout))


def bytes_read(layout: Layout) -> int:
    """Return the bytes of rows that all workers read together: the table, once for every band."""
    return len(layout.bands) * layout.table.stored_bytes


def bytes_between_workers(layout: Layout) -> int:
    """Return the most bytes of sums that workers exchange: all inputs of an addition but a local one."""
    return sum(size * (counts[0] - counts[-1]) for size, counts in trees(layout))


def bytes_to_trusted(layout: Layout) -> int:
    """Return the bytes of sums that the trusted node receives."""
    return sum(size * counts[-1] for size, counts in trees(layout))


LINK = 1e9
"""Bytes per second that a process reads from the file system, sends or receives: four fifths of 10 Gbit/s."""
INGEST = {"parquet": 93e6, "csv": 22e6, "npy": 251e6}
"""Bytes of rows per second that one core ingests from each kind of file: the lowest measurement."""
_SAMPLE = 2000  # most columns of the measurement; a multiplication in a wider product costs the same


@dataclass(frozen=True)
class Rates:
    """CPU seconds of one core: to bound a value, for a multiplication, and to draw a normal variate."""

    bound: float
    multiply: float
    draw: float

    @classmethod
    def measured(cls, bound: RowBound, dtype: str, rows: int) -> Rates:
        """Measure them in this process, in about a second; the best of three."""
        columns = min(bound.columns, _SAMPLE)
        sample = RowBound(columns, bound.clip_norm, bound.grid_bits)
        count = max(1, min(rows, sample.exact_rows, (24 << 20) // (8 * columns)))
        values = (np.arange(count * columns) % 101).reshape(count, columns).astype(dtype)
        buffer = np.empty((count, sample.width))
        # the multiplication of a release
        sums = gram_sum(Band.whole(sample.width), sample.norm_bound, largest=bound.largest)

        def multiply() -> None:
            sums.add(buffer)
            sums.total()  # multiplies the remaining rows

        def best(action: Callable[[], object], operations: int) -> float:
            return min(timeit.repeat(action, timer=time.process_time, repeat=3, number=1)) / operations

        normals = 100_000
        return cls(
            bound=best(lambda: sample.apply(values, buffer, Dithers(DitherKey(bytes(32)), 0)), count * columns),
            multiply=best(multiply, count * Band.whole(columns).entries),
            draw=best(lambda: rounded_normal(1 << 20, normals, SYSTEM), normals),
        )


@dataclass(frozen=True)
class ClusterCost:
    """The cost of one release, and of the other steps that read all rows.

    The draw is counted as one normal variate per entry. Seconds are for as many of the workers as help.
    """

    table: Shape
    layout: Layout
    rates: Rates
    bandwidth: float = math.inf

    @cached_property
    def seconds(self) -> float:
        """Seconds from the first task of a release to the last draw."""
        layout, bands = self.layout, len(self.layout.bands)
        # of the numbers of workers with the same sharing of a band, the largest is the fastest
        fewer = (min(layout.workers, sharing * bands) for sharing in range(1, layout.sharing + 1))
        return min(self._release_seconds(replace(layout, workers=workers)) for workers in fewer)

    @cached_property
    def read_seconds(self) -> float:
        """Seconds to read and bound the rows once, as for a private clip norm."""
        table, row_seconds = self.table, BOUND_SECONDS * self.table.columns
        size = table.stored_bytes
        cpu_seconds = self._cpu_seconds(table.columns, 0, size)

        def seconds(workers: int) -> float:
            tasks = task_count(table, row_seconds=row_seconds, entries=0, workers=workers)
            return max(cpu_seconds / min(workers, tasks), size / self.bandwidth, TASK_SECONDS * tasks)

        return min(map(seconds, range(1, self.layout.workers + 1)))

    def ingest_seconds(self, kind: str) -> float:
        """Return the seconds to ingest the rows from files of a kind of :data:`INGEST` with about as many bytes."""
        size, workers = self.table.stored_bytes, min(self.layout.workers, self.table.chunks)
        return max(size * (1 / INGEST[kind] + 2 / LINK) / workers, 2 * size / self.bandwidth)

    @property
    def lost_worker_seconds(self) -> float:
        """Approximate delay of a release if a worker is lost and the others repeat its tasks."""
        layout, size = self.layout, self.table.stored_bytes
        remaining = max(1, layout.sharing - 1)
        longest = 0.0
        for band, tasks in zip(layout.bands, layout.task_counts, strict=True):
            seconds = self._cpu_seconds(layout.bound.columns, layout.entries_per_row_of(band), size)
            lost = min(seconds / layout.sharing, (fan_in(8 * band.entries) + 1) * seconds / tasks)
            longest = max(longest, lost / remaining, lost / seconds * size / self.bandwidth)
        return longest

    def _cpu_seconds(self, bounded: int, entries: int, read: int) -> float:
        """Return the seconds of one worker that reads all rows, bounds some values of each, and adds some entries."""
        return self.table.rows * (bounded * self.rates.bound + entries * self.rates.multiply) + read / LINK

    def _release_seconds(self, layout: Layout) -> float:
        """Return the seconds of a release, which adds noise to a band while it sums others."""
        bounded = len(layout.bands) * layout.bound.columns
        cpu_seconds = self._cpu_seconds(bounded, sum(map(layout.entries_per_row_of, layout.bands)), bytes_read(layout))
        sum_duplicates = max(
            cpu_seconds / min(layout.workers, tasks_of(layout)[0]),
            bytes_read(layout) / self.bandwidth,
            TASK_SECONDS * sum(tasks_of(layout)),
        )
        # an addition receives remote sums one after the other
        received = sum(
            size * (min(fan_in(size), inputs) - 1) for size, counts in trees(layout) for inputs in counts[:-1]
        )
        sum_duplicates += received / LINK / layout.concurrent_bands
        entries = Band.whole(layout.bound.width).entries
        noised = bytes_to_trusted(layout) / LINK + entries * self.rates.draw
        if len(layout.bands) == 1:
            return sum_duplicates + noised
        return max(sum_duplicates, sum_duplicates / len(layout.bands) + noised)

    def to_json(self) -> dict[str, object]:
        """Return JSON values; memory is per process, and transferred bytes are those of all processes."""
        layout, table = self.layout, self.table
        reading, adding = tasks_of(layout)
        return {
            "n": table.rows,
            "d": table.columns,
            "dtype": table.dtype,
            "workers": layout.workers,
            "bands": len(layout.bands),
            "tasks": {"partitions": reading, "additions": adding},
            "bytes_read": bytes_read(layout),
            "bytes_between_workers": bytes_between_workers(layout),
            "bytes_to_trusted": bytes_to_trusted(layout),
            "worker_bytes": layout.worker_bytes,
            "trusted_bytes": layout.trusted_bytes,
            "store_bandwidth": None if math.isinf(self.bandwidth) else self.bandwidth,
            "seconds": self.seconds,
            "read_seconds": self.read_seconds,
            "ingest_seconds": {kind: self.ingest_seconds(kind) for kind in INGEST},
            "lost_worker_seconds": self.lost_worker_seconds,
        }  # fmt: skip


def described(rows: int, columns: int, dtype: str) -> Shape:
    """Return the shape of a table after an ingest."""
    return Shape(rows, columns, dtype, chunk_rows_for(columns, dtype, rows))


def forecast(
    table: Shape, bound: RowBound, workers: Sequence[int], memory: int, *, divisible: bool,
    bandwidth: float | None = None,
) -> list[ClusterCost]:  # fmt: skip
    """Return the cost of a release of a table for each number of workers. More workers are never slower."""
    layouts = [layout_of(table, bound, count, memory, divisible=divisible) for count in workers]
    require_summable(table, bound)
    rates = Rates.measured(bound, table.dtype, table.rows)
    return [ClusterCost(table, layout, rates, math.inf if bandwidth is None else bandwidth) for layout in layouts]
