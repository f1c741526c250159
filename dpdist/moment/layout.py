"""How the sums of a table are laid out over bands and workers, and what that costs: pure arithmetic on public sizes.

The triangle of the moment is cut into as few bands as keep every process within its memory: one wherever it fits. Few
workers sum a band over all rows, and several bands are under way at once: a band that one worker sums alone travels
once, to the trusted node, and is added to nothing. Rows are read whole for every band. To bound a row needs its whole
norm, and a band needs all columns from its first one on, so tiles of columns would save nothing. The release follows
this layout and ``dpdist forecast --cluster`` counts it: there is no second formula.

A pass over a table is cut into units of work. Workers come and go, so a unit is small: what a lost worker loses is
small, and the last unit does not keep the others waiting. And it is not too small: to add its sum costs little beside
it. How long it takes is estimated from the sizes, for a core of today; a wrong estimate makes more units or fewer, and
nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpdist import triangle
from dpdist._util.parallel import fan_in, levels
from dpdist.errors import UsageError
from dpdist.moment.total import MomentTask, block_rows, moment_task, piece_rows
from dpdist.naming import parameter
from dpdist.rows.bounding import RowBound
from dpdist.rows.dataset import partitions
from dpdist.rows.table import Sizes, Table
from dpdist.triangle import Band

BOUND_SECONDS = 2e-9  # to read a value of a row and bound it
MULTIPLY_SECONDS = 2e-11  # to add a row to one entry of the moment: between 16-bit integers, 1e-11, and float64, 3e-11
_FOLD_SECONDS = 6e-9  # for each entry of a unit's sum: to begin with zeros, to pack it, and to add it
_LONGEST = 30.0  # seconds of a unit at most, where chunks are not longer
_SHORTEST = 0.2
"""Seconds of a unit at least: some 4 ms of a worker are spent on the task itself (`benchmarks/passes.py`)."""
_FOLDS = 50  # a unit takes at least so many times what it costs to add its sum
_EACH = 50  # units for each worker, as far as they are not too short
_EXPECTED = 8  # workers for which there are enough units even if fewer are there at first
_FEWEST = 4  # units for each worker, however short, where sums are small
TASK_SECONDS = 3e-3  # of driver and scheduler for a unit (`benchmarks/many_partitions.py`)
_IDLE = 2  # driver and scheduler have time for so many times the units that there are, but for the fewest


def unit_count(table: Sizes, *, row_seconds: float, entries: int, workers: int) -> int:
    """Return into how many units the chunks of a table are cut."""
    seconds = table.rows * row_seconds
    shortest = max(_SHORTEST, _FOLDS * _FOLD_SECONDS * entries)
    handed_out = seconds / (workers * _IDLE * TASK_SECONDS)
    enough = min(_EACH * max(workers, _EXPECTED), seconds / shortest, handed_out)
    # one for each worker where sums are large: to add them would take as long as what is computed
    fewest = workers if fan_in(8 * entries) == 2 else _FEWEST * workers
    wanted = max(seconds / _LONGEST, enough, fewest)
    return max(1, min(table.chunks, round(wanted)))


def units_of(table: Sizes, *, row_seconds: float, entries: int, workers: int) -> list[range]:
    """Cut the chunks of a table into units; nothing is read."""
    count = unit_count(table, row_seconds=row_seconds, entries=entries, workers=workers)
    return partitions(table.chunks, count)


PROCESS_BYTES = 320 << 20
"""What a worker or the driver needs before any sum: the interpreter, its libraries and the compiled kernel."""
_BOUNDING = 8
"""Copies of a piece of rows, as 64-bit numbers, that are in memory while it is bounded, all rows of it clipped."""
_PANELS = 192  # rows of 64-bit numbers that take no less than the panels of 16-bit ones, if rows are multiplied as such
_DRAWING = 64 << 20
"""What the samplers of a few threads need beside the band: candidates of a batch, and pieces that they have drawn."""
_SHARE = 2  # a process is planned to use at most one part in so many of its memory; the rest is for what nobody counts


@dataclass(frozen=True)
class Layout:
    """The sizes of a table, its bands, and the workers that sum them; made by :func:`layout_of`."""

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
    def under_way(self) -> int:
        """Bands that are summed at the same time, so that no worker waits for the noise of another band."""
        return min(len(self.bands), self.workers // self.sharing + 1)

    @cached_property
    def counts(self) -> list[int]:
        """Units of the pass of each band."""
        return [
            unit_count(
                self.table,
                row_seconds=BOUND_SECONDS * self.bound.columns + MULTIPLY_SECONDS * self.entries_per_row_of(band),
                entries=band.entries,
                workers=self.sharing * self.threads,
            )
            for band in self.bands
        ]

    @property
    def units(self) -> list[list[range]]:
        """The chunks of each unit of a pass; one pass for every band."""
        return [partitions(self.table.chunks, count) for count in self.counts]

    def tasks(self, table: Table) -> list[MomentTask]:
        """Return the pass of each band over the table of these sizes."""
        return [moment_task(table, self.bound, band) for band in self.bands]

    @property
    def partitions(self) -> int:
        """Tasks that read rows."""
        return sum(self.counts)

    @property
    def trees(self) -> list[tuple[int, list[list[range]]]]:
        """The bytes of a sum of each band, and its additions, level by level."""
        sizes = [8 * band.entries for band in self.bands]
        return [(size, levels(count, size)) for size, count in zip(sizes, self.counts, strict=True)]

    @property
    def additions(self) -> int:
        """Tasks that add sums."""
        return sum(len(level) for _, tree in self.trees for level in tree)

    def entries_per_row_of(self, band: Band) -> int:
        """Entries of a band that a row is added to, those computed twice in its first columns included."""
        if len(self.bands) == 1:
            return band.entries  # a product of one buffer with itself computes each once
        return band.height * band.width

    @property
    def entries_per_row(self) -> int:
        """Entries of the moment that a row is added to, as of all bands."""
        return sum(map(self.entries_per_row_of, self.bands))

    @property
    def bytes_read(self) -> int:
        """Bytes of rows read by all workers together: the table, once for every band."""
        return len(self.bands) * self.table.stored_bytes

    @property
    def bytes_between_workers(self) -> int:
        """Bytes of sums that workers send one another, at most: all inputs of an addition but the one that is there."""
        return sum(size * (len(part) - 1) for size, tree in self.trees for level in tree for part in level)

    @property
    def bytes_to_trusted(self) -> int:
        """Bytes of sums that the trusted node receives."""
        return sum(size * (len(tree[-1]) if tree else 1) for size, tree in self.trees)

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
        """Return the memory of a worker: what each thread computes and reads, and the sums beside it."""
        # the product is added in place where it is a whole triangle; then the total, and one more while it is packed
        # and the sum of what was added before, where rows are added unequally often
        triangles = 3 if self.table.weights else 2
        at_work = 8 * ((2 if several else 1) * band.height * band.width + triangles * band.entries)
        # an addition has a copy of its first input; and a sum may wait to be added
        waiting = 8 * band.entries * (fan_in(8 * band.entries) + 2)
        piece = min(piece_rows(self.bound.width), self.table.chunk_rows)
        reading = self.table.buffer_bytes(piece)
        blocks = max(block_rows(self.table.rows, self.bound), _PANELS) + _BOUNDING * piece
        return PROCESS_BYTES + self.threads * (at_work + reading + 8 * self.bound.width * blocks) + waiting

    def cut(self, memory: int) -> Layout:
        """Return the same in as few bands as keep every process within so many bytes, each of one tile at least."""
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
    """Return the memory of the trusted node: the sum of a band, one that arrives, the noise, and a few tiles."""
    sums = 3 * 8 * band.entries
    return PROCESS_BYTES + _DRAWING + sums + 8 * 8 * triangle.TILE * triangle.TILE


def layout_of(
    table: Sizes, bound: RowBound, workers: int, memory: int, *, divisible: bool, threads: int = 1,
    fewer_threads: bool = False,
) -> Layout:  # fmt: skip
    """Cut the triangle into as few bands as the memory of the processes allows."""
    layout = Layout(table, bound, workers, (Band.whole(bound.width),), threads)
    if divisible and layout.process_bytes > memory // _SHARE:
        layout = layout.cut(memory // _SHARE)
    if layout.process_bytes <= memory:
        return layout
    if fewer_threads and threads > 1:
        how = {"divisible": divisible, "fewer_threads": True}
        return layout_of(table, bound, workers, memory, threads=threads - 1, **how)
    what, needs = f"second moment of {bound.width} columns takes a process {_gib(layout.process_bytes)}", ""
    products = f"{parameter('mechanism', 'power')} {parameter('options.route', 'products')}"
    if divisible:
        what, other = f"A band of {min(triangle.TILE, bound.width)} rows of the {what}", products
    else:
        what, needs = f"The {what}", "This mechanism needs the whole moment at once. "
        other = (
            f"a mechanism whose noise is added band by band: {parameter('mechanism', 'gaussian')}, or laplace where no "
            f"delta is allowed; or for a few components {products}"
        )
    raise UsageError(
        f"{what}, and the one with the least memory may use {_gib(memory)}. {needs}Start fewer workers per machine, "
        f"give them more memory or fewer threads, or take {other}, which never forms the moment."
    )


def _gib(count: int) -> str:
    return f"{np.ceil(count / 2**30 * 10) / 10:g} GiB"
