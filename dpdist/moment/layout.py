"""How the sums of a table are laid out over bands and workers, and what that costs: pure arithmetic on public sizes.

The triangle of the moment is cut into as few bands as keep every process within its memory: one wherever it fits. Few
workers sum a band over all rows, and several bands are under way at once: a band that one worker sums alone travels
once, to the trusted node, and is added to nothing. Rows are read whole for every band. To bound a row needs its whole
norm, and a band needs all columns from its first one on, so tiles of columns would save nothing.

The release follows this layout and ``dpdist forecast --cluster`` counts it: there is no second formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from dpdist import triangle
from dpdist._util.tree import fan_in, levels
from dpdist.errors import UsageError
from dpdist.moment.pieces import BOUND_SECONDS, MULTIPLY_SECONDS, unit_count
from dpdist.moment.total import MomentTask, block_rows, moment_task, piece_rows
from dpdist.naming import parameter
from dpdist.rows.bounding import RowBound
from dpdist.rows.dataset import partitions
from dpdist.rows.table import Sizes, Table
from dpdist.triangle import Band

PROCESS_BYTES = 320 << 20
"""What a worker or the driver needs before any sum: the interpreter, its libraries and the compiled kernel."""
_BOUNDING = 8
"""Copies of a piece of rows, as 64-bit numbers, that are in memory while it is bounded, all rows of it clipped."""
_PANELS = 192
"""Rows of 64-bit numbers that take no less than the panels of 16-bit ones, if rows are multiplied as such."""
_DRAWING = 64 << 20
"""What the samplers of a few threads need beside the band: candidates of a batch, and pieces that they have drawn."""
_SHARE = 2
"""A process is planned to use at most one part in so many of its memory; the rest is for what nobody counts."""


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
    def trees(self) -> list[list[list[range]]]:
        """The additions of the pass of each band, level by level."""
        return [levels(count, 8 * band.entries) for band, count in zip(self.bands, self.counts, strict=True)]

    @property
    def additions(self) -> int:
        """Tasks that add sums."""
        return sum(len(level) for tree in self.trees for level in tree)

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
        return sum(
            8 * band.entries * (len(part) - 1)
            for band, tree in zip(self.bands, self.trees, strict=True)
            for level in tree
            for part in level
        )

    @property
    def bytes_to_trusted(self) -> int:
        """Bytes of sums that the trusted node receives."""
        return sum(
            8 * band.entries * (len(tree[-1]) if tree else 1) for band, tree in zip(self.bands, self.trees, strict=True)
        )

    @property
    def worker_bytes(self) -> int:
        """Most memory of a worker process."""
        return max(
            _worker_bytes(self.table, self.bound, band, self.threads, several=len(self.bands) > 1)
            for band in self.bands
        )

    @property
    def trusted_bytes(self) -> int:
        """Most memory of the trusted node, if noise of independent entries is added band by band."""
        return max(map(_trusted_bytes, self.bands))


def layout_of(table: Sizes, bound: RowBound, workers: int, memory: int, *, divisible: bool, threads: int = 1) -> Layout:
    """Cut the triangle into as few bands as the memory of the processes allows."""
    size = bound.width
    whole = Layout(table, bound, workers, (Band.whole(size),), threads)
    if max(whole.worker_bytes, whole.trusted_bytes) <= memory // _SHARE:
        return whole
    fewer = partial(layout_of, table, bound, workers, memory, divisible=divisible, threads=threads - 1)
    if not divisible:
        least = max(whole.worker_bytes, whole.trusted_bytes)
        if least <= memory:
            return whole
        if threads > 1:
            return fewer()
        raise UsageError(
            f"The second moment of {size} columns takes a process {_gib(least)}, and each may use {_gib(memory)}. This "
            "mechanism needs the whole moment at once. Give the processes more memory, or take a mechanism whose noise "
            f"is added band by band: {parameter('mechanism', 'gaussian')}, or laplace where no delta is allowed. For a "
            f"few components, {parameter('mechanism', 'power')} {parameter('options.route', 'products')} never forms "
            "the moment."
        )
    bands: list[Band] = []
    start = 0
    while start < size:
        stop = min(start + triangle.TILE, size)
        while stop < size and _fits(
            table, bound, Band(start, min(stop + triangle.TILE, size), size), threads, memory // _SHARE
        ):
            stop = min(stop + triangle.TILE, size)
        bands.append(Band(start, stop, size))
        start = stop
    layout = Layout(table, bound, workers, tuple(bands), threads)
    least = max(layout.worker_bytes, layout.trusted_bytes)
    if least > memory and threads > 1:
        return fewer()
    if least > memory:
        raise UsageError(
            f"A band of {min(triangle.TILE, size)} rows of the second moment of {size} columns takes a process "
            f"{_gib(least)}, and the one with the least memory may use {_gib(memory)}. Start fewer workers per "
            "machine, give them more memory, or take "
            f"{parameter('mechanism', 'power')} {parameter('options.route', 'products')}, which never forms the moment."
        )
    return layout


def _fits(table: Sizes, bound: RowBound, band: Band, threads: int, memory: int) -> bool:
    return max(_worker_bytes(table, bound, band, threads, several=True), _trusted_bytes(band)) <= memory


def _worker_bytes(table: Sizes, bound: RowBound, band: Band, threads: int, *, several: bool) -> int:
    """Return the memory of a worker: what each thread computes and reads, and the sums beside it."""
    # the product is added in place where it is a whole triangle; then the total, and one more while it is packed
    # and the sum of what was added before, where rows are added unequally often
    triangles = 3 if table.weights else 2
    at_work = 8 * ((2 if several else 1) * band.height * band.width + triangles * band.entries)
    # an addition has a copy of its first input; and a sum may wait to be added
    waiting = 8 * band.entries * (fan_in(8 * band.entries) + 2)
    piece = min(piece_rows(bound.width), table.chunk_rows)
    reading = table.buffer_bytes(piece)
    reading += 8 * bound.width * (max(block_rows(table.rows, bound), _PANELS) + _BOUNDING * piece)
    return PROCESS_BYTES + threads * (at_work + reading) + waiting


def _trusted_bytes(band: Band) -> int:
    """Return the memory of the trusted node: the sum of a band, one that arrives, the noise, and a few tiles."""
    sums = 2 * 8 * band.entries
    return PROCESS_BYTES + _DRAWING + sums + 8 * band.entries + 8 * 8 * triangle.TILE * triangle.TILE


def _gib(count: int) -> str:
    return f"{np.ceil(count / 2**30 * 10) / 10:g} GiB"
