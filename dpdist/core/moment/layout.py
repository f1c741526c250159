"""How the sums of a table are divided into bands and tasks, and what that costs: arithmetic on public sizes.

The triangle of the moment is divided into as few bands as keep every process within its memory, if possible into one. A
few workers sum a band over all rows, and several bands are summed at the same time. The sum of a band that one worker
computes alone is sent only to the trusted node, and is not added. Every band reads whole rows. Tiles of columns would
save nothing: bounding a row requires its norm, and a band requires all columns from its first one on. The release uses
this layout, and ``dpdist forecast --cluster`` counts it: there is no second formula.

A computation on a table is divided into tasks. Workers come and go, so a task is small: little is lost with a worker,
and the last task does not delay the others. But it is large enough that the addition of its sum costs little in
comparison. Its duration is estimated from the sizes, for current processors; a wrong estimate changes the number of
tasks, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpdist.core import triangle
from dpdist.core.errors import UsageError
from dpdist.core.moment.total import MomentTask, block_rows, moment_task, piece_rows
from dpdist.core.naming import parameter
from dpdist.core.parallel import fan_in
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dataset import partitions
from dpdist.core.rows.table import Sizes, Table
from dpdist.core.triangle import Band

BOUND_SECONDS = 2e-9  # to read and bound a value of a row
MULTIPLY_SECONDS = 2e-11  # to add a row to one entry of the moment: between 16-bit integers, 1e-11, and float64, 3e-11
_FOLD_SECONDS = 6e-9  # per entry of a task's sum: to initialise it with zeros, pack it and add it
_LONGEST = 30.0  # longest task in seconds, unless a chunk takes longer
_SHORTEST = 0.2  # shortest task; its overhead is about 4 ms of a worker (`benchmarks/passes.py`)
_FOLDS = 50  # shortest task, as a multiple of the cost of adding its sum
_TASKS_PER_WORKER = 50  # unless they would be too short
_EXPECTED_WORKERS = 8  # there are enough tasks for these, even if fewer workers are present at first
_FEWEST_PER_WORKER = 4  # tasks, however short, if sums are small
TASK_SECONDS = 3e-3  # of driver and scheduler for a task (`benchmarks/many_partitions.py`)
_IDLE = 2  # driver and scheduler could handle this multiple of the tasks, except for the fewest


def task_count(table: Sizes, *, row_seconds: float, entries: int, workers: int) -> int:
    """Return the number of tasks that the chunks of a table are divided into."""
    workers = max(1, workers)  # an adaptive cluster may have none at this moment
    seconds = table.rows * row_seconds
    shortest = max(_SHORTEST, _FOLDS * _FOLD_SECONDS * entries)
    handled = seconds / (workers * _IDLE * TASK_SECONDS)
    enough = min(_TASKS_PER_WORKER * max(workers, _EXPECTED_WORKERS), seconds / shortest, handled)
    # large sums: one per worker, because additions would take as long as the computation
    fewest = workers if fan_in(8 * entries) == 2 else _FEWEST_PER_WORKER * workers
    count = max(seconds / _LONGEST, enough, fewest)
    return max(1, min(table.chunks, round(count)))


def split_tasks(table: Sizes, *, row_seconds: float, entries: int, workers: int) -> list[range]:
    """Divide the chunks of a table into tasks, without reading anything."""
    count = task_count(table, row_seconds=row_seconds, entries=entries, workers=workers)
    return partitions(table.chunks, count)


PROCESS_BYTES = 320 << 20
"""Memory of a worker or the driver without sums: the interpreter, its libraries and the compiled kernel."""
_BOUNDING = 8  # copies of a batch of rows, as 64-bit numbers, while it is bounded and all of its rows are clipped
_PANELS = 192  # rows of 64-bit numbers that take no less memory than the panels of 16-bit ones
_DRAWING = 64 << 20
"""Memory of the samplers of a few threads, besides the band: candidates of a batch, and completed draws."""
_SHARE = 2  # planned memory is at most 1 / _SHARE of a process's; the rest is for allocations that are not counted


@dataclass(frozen=True)
class Layout:
    """The sizes of a table, its bands, and the workers that sum them; created by :func:`layout_of`."""

    table: Sizes
    bound: RowBound
    workers: int
    bands: tuple[Band, ...]
    threads: int = 1

    @property
    def sharing(self) -> int:
        """Workers that share the rows of one band."""
        return -(-self.workers // len(self.bands))

    @property
    def concurrent_bands(self) -> int:
        """Bands that are summed at the same time, so that no worker waits for the noise of another band."""
        return min(len(self.bands), self.workers // self.sharing + 1)

    @cached_property
    def task_counts(self) -> list[int]:
        """Number of tasks of each band."""
        return [
            task_count(
                self.table,
                row_seconds=BOUND_SECONDS * self.bound.columns + MULTIPLY_SECONDS * self.entries_per_row_of(band),
                entries=band.entries,
                workers=self.sharing * self.threads,
            )
            for band in self.bands
        ]

    def task_chunks(self) -> list[list[range]]:
        """Return the chunks of each task, for each band."""
        return [partitions(self.table.chunks, count) for count in self.task_counts]

    def moment_tasks(self, table: Table) -> list[MomentTask]:
        """Return the task of all chunks for each band, on the table of these sizes."""
        return [moment_task(table, self.bound, band) for band in self.bands]

    def entries_per_row_of(self, band: Band) -> int:
        """Return the entries of a band that a row is added to, including those computed twice in its first columns."""
        if len(self.bands) == 1:
            return band.entries  # a product of a buffer with itself computes each entry once
        return band.height * band.width

    @property
    def worker_bytes(self) -> int:
        """Most memory of a worker process."""
        return max(self._worker_bytes(band, several=len(self.bands) > 1) for band in self.bands)

    @property
    def trusted_bytes(self) -> int:
        """Most memory of the trusted node, if noise of independent entries is added band by band."""
        return max(map(_trusted_bytes, self.bands))

    @property
    def process_bytes(self) -> int:
        """Most memory of a process."""
        return max(self.worker_bytes, self.trusted_bytes)

    def _worker_bytes(self, band: Band, *, several: bool) -> int:
        """Return the memory of a worker: the buffers of its threads, and sums that wait."""
        # the product of a whole triangle is added in place; then there is the total, another copy while it is packed,
        # and, with weights, the sum so far
        triangles = 3 if self.table.weights else 2
        at_work = 8 * ((2 if several else 1) * band.height * band.width + triangles * band.entries)
        # an addition copies its first input; and a sum may wait to be added
        waiting = 8 * band.entries * (fan_in(8 * band.entries) + 2)
        batch = min(piece_rows(self.bound.width), self.table.chunk_rows)
        reading = self.table.buffer_bytes(batch)
        blocks = max(block_rows(self.table.rows, self.bound), _PANELS) + _BOUNDING * batch
        return PROCESS_BYTES + self.threads * (at_work + reading + 8 * self.bound.width * blocks) + waiting

    def within(self, memory: int) -> Layout:
        """Return the layout with as few bands, of one tile or more, as keep every process within ``memory`` bytes."""
        size, bands, start = self.bound.width, list[Band](), 0

        def fits(band: Band) -> bool:
            return max(self._worker_bytes(band, several=True), _trusted_bytes(band)) <= memory

        while start < size:
            band = Band(start, min(start + triangle.TILE, size), size)
            while band.stop < size and fits(longer := Band(start, min(band.stop + triangle.TILE, size), size)):
                band = longer
            bands.append(band)
            start = band.stop
        return replace(self, bands=tuple(bands))


def _trusted_bytes(band: Band) -> int:
    """Return the memory of the trusted node: the sum of a band, an incoming one, the noise, and a few tiles."""
    sums = 3 * 8 * band.entries
    return PROCESS_BYTES + _DRAWING + sums + 8 * 8 * triangle.TILE * triangle.TILE


def layout_of(
    table: Sizes, bound: RowBound, workers: int, memory: int, *, divisible: bool, threads: int = 1,
    fewer_threads: bool = False,
) -> Layout:  # fmt: skip
    """Divide the triangle into as few bands as the memory of the processes allows."""
    layout = Layout(table, bound, workers, (Band.whole(bound.width),), threads)
    if divisible and layout.process_bytes > memory // _SHARE:
        layout = layout.within(memory // _SHARE)
    if layout.process_bytes <= memory:
        return layout
    if fewer_threads and threads > 1:
        return layout_of(
            table, bound, workers, memory, divisible=divisible, threads=threads - 1, fewer_threads=True
        )  # fmt: skip
    subject, requirement = f"second moment of {bound.width} columns takes a process {_gib(layout.process_bytes)}", ""
    products = f"{parameter('mechanism', 'power')} {parameter('options.route', 'products')}"
    if divisible:
        subject, alternative = f"A band of {min(triangle.TILE, bound.width)} rows of the {subject}", products
    else:
        subject, requirement = f"The {subject}", "This mechanism needs the whole moment at once. "
        alternative = (
            f"a mechanism with noise that is added band by band: {parameter('mechanism', 'gaussian')}, or laplace if "
            f"no delta is allowed; or, for a few components, {products}"
        )
    raise UsageError(
        f"{subject}, and the one with the least memory may use {_gib(memory)}. {requirement}Start fewer workers per "
        f"machine, give them more memory or fewer threads, or choose {alternative}, which never forms the moment."
    )


def _gib(count: int) -> str:
    return f"{np.ceil(count / 2**30 * 10) / 10:g} GiB"
