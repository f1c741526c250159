"""How the sums of a table are laid out over bands and workers, and what that costs: pure arithmetic on public sizes.

The triangle of the moment is cut into as few bands as keep every process within its memory: one wherever it fits. Few
workers sum a band over all rows, and several bands are under way at once: a band that one worker sums alone travels
once, to the trusted node, and is added to nothing. Rows are read whole for every band. To bound a row needs its whole
norm, and a band needs all columns from its first one on, so tiles of columns would save nothing.

The release follows this layout and ``dpdist forecast --cluster`` counts it: there is no second formula.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpdist import triangle
from dpdist._util.tree import FAN_IN, levels
from dpdist.errors import UsageError
from dpdist.moment.total import PER_WORKER, MomentPlan, block_rows, piece_rows, plan, runs_of
from dpdist.naming import parameter
from dpdist.rows.bounding import RowBound
from dpdist.rows.table import Sizes, Table
from dpdist.triangle import Band

PROCESS_BYTES = 320 << 20
"""What a worker or the driver needs before any sum: the interpreter, its libraries and the compiled kernel."""
_BOUNDING = 8
"""Copies of a piece of rows, as 64-bit numbers, that are in memory while it is bounded, all rows of it clipped."""
_DRAWING = 16 << 20
"""What a sampler needs beside the band: the candidates of a batch, and the piece that it has drawn."""
_BESIDE = 160 << 20
"""What a process takes that draws noise beside the trusted node: its interpreter, a piece, and the same piece there."""
_SHARE = 2
"""A process is planned to use at most one part in so many of its memory; the rest is for what nobody counts."""


@dataclass(frozen=True)
class Layout:
    """The sizes of a table, its bands, and the workers that sum them; made by :func:`layout_of`.

    Parameters
    ----------
    table, bound
        The sizes of the rows, which need not be stored anywhere, and how they are bounded.
    workers
        Number of worker processes.
    bands
        Bands in the order of their rows, together the whole triangle.
    beside
        Processes that may draw noise beside the trusted node, if it has cores for them, by its memory.
    """

    table: Sizes
    bound: RowBound
    workers: int
    bands: tuple[Band, ...]
    beside: int = 0

    @property
    def sharing(self) -> int:
        """Workers that share the rows of one band."""
        return -(-self.workers // len(self.bands))

    @property
    def under_way(self) -> int:
        """Bands that are summed at the same time, so that no worker waits for the noise of another band."""
        return min(len(self.bands), self.workers // self.sharing + 1)

    @property
    def per_worker(self) -> int:
        """Partitions of each worker in a pass."""
        return PER_WORKER if len(self.bands) == 1 else 1

    @cached_property
    def runs(self) -> list[list[range]]:
        """The chunks of each partition of a pass, grouped by worker; every band takes such a pass."""
        return runs_of(self.table, self.sharing, self.per_worker)

    def plans(self, table: Table) -> tuple[MomentPlan, ...]:
        """Return the pass of each band over the table of these sizes."""
        return tuple(plan(table, self.bound, self.sharing, self.per_worker, band) for band in self.bands)

    @property
    def partitions(self) -> int:
        """Tasks that read rows."""
        return len(self.bands) * sum(len(group) for group in self.runs)

    @property
    def additions(self) -> int:
        """Tasks that add sums."""
        within = sum(len(group) > 1 for group in self.runs)
        across = sum(len(part) > 1 for level in levels(len(self.runs)) for part in level)
        return len(self.bands) * (within + across)

    @property
    def entries_per_row(self) -> int:
        """Entries of the moment that a row is added to, those computed twice in a band's first columns included."""
        if len(self.bands) == 1:
            return self.bands[0].entries  # a product of one buffer with itself computes each once
        return sum(band.height * band.width for band in self.bands)

    @property
    def bytes_read(self) -> int:
        """Bytes of rows read by all workers together: the table, once for every band."""
        return len(self.bands) * self.table.stored_bytes

    @property
    def bytes_between_workers(self) -> int:
        """Bytes of sums that workers send one another: all inputs of an addition but the one that is there."""
        inputs = sum(len(part) - 1 for level in levels(len(self.runs)) for part in level)
        return sum(8 * band.entries * inputs for band in self.bands)

    @property
    def bytes_to_trusted(self) -> int:
        """Bytes of sums that the trusted node receives."""
        return sum(8 * band.entries * _last(len(self.runs)) for band in self.bands)

    @property
    def worker_bytes(self) -> int:
        """Most memory of a worker process."""
        return max(_worker_bytes(self.table, self.bound, band, len(self.bands) > 1) for band in self.bands)

    @property
    def trusted_bytes(self) -> int:
        """Most memory of the trusted node, if noise of independent entries is added band by band."""
        return max(_trusted_bytes(band, self.sharing) for band in self.bands)

    @property
    def drawing_bytes(self) -> int:
        """Most memory of all processes beside the trusted node that draw noise, and of what it holds for them."""
        return self.beside * _BESIDE

    def within(self, memory: int) -> Layout:
        """Let as many processes draw noise as take half of what the trusted node leaves of so many bytes."""
        return replace(self, beside=max(0, memory - self.trusted_bytes) // 2 // _BESIDE)


def layout_of(table: Sizes, bound: RowBound, workers: int, memory: int, *, divisible: bool) -> Layout:
    """Cut the triangle into as few bands as the memory of the processes allows.

    Parameters
    ----------
    table, bound
        The sizes of the rows and how they are bounded.
    workers
        Number of worker processes.
    memory
        Bytes that each process may use, the trusted node included.
    divisible
        Whether the mechanism's noise has independent entries, so that bands can be noised one after the other.

    Raises
    ------
    UsageError
        If the memory does not suffice, with what to take instead.
    """
    size = bound.width
    whole = Layout(table, bound, workers, (Band.whole(size),))
    if max(whole.worker_bytes, whole.trusted_bytes) <= memory // _SHARE:
        return whole.within(memory)
    if not divisible:
        least = max(whole.worker_bytes, whole.trusted_bytes)
        if least <= memory:
            return whole
        raise UsageError(
            f"The second moment of {size} columns takes a process {_gib(least)}, and each may use {_gib(memory)}. This "
            "mechanism needs the whole moment at once. Give the processes more memory, or take a mechanism whose noise "
            f"is added band by band: {parameter('mechanism', 'gaussian')}, or laplace where no delta is allowed. For a "
            f"few components, {parameter('mechanism', 'power')} {parameter('options.route', 'products')} never forms "
            "the moment."
        )
    # sharing is at most that of two bands, and fewer sums of a band meet at the trusted node when there are more
    sharing = -(-workers // 2)
    bands: list[Band] = []
    start = 0
    while start < size:
        stop = min(start + triangle.TILE, size)
        while stop < size and _fits(
            table, bound, Band(start, min(stop + triangle.TILE, size), size), sharing, memory // _SHARE
        ):
            stop = min(stop + triangle.TILE, size)
        bands.append(Band(start, stop, size))
        start = stop
    layout = Layout(table, bound, workers, tuple(bands))
    least = max(layout.worker_bytes, layout.trusted_bytes)
    if least > memory:
        raise UsageError(
            f"A band of {triangle.TILE} rows of the second moment of {size} columns takes a process {_gib(least)}, and "
            f"each may use {_gib(memory)}. Start fewer workers per machine, give them more memory, or take "
            f"{parameter('mechanism', 'power')} {parameter('options.route', 'products')}, which never forms the moment."
        )
    return layout.within(memory)


def _fits(table: Sizes, bound: RowBound, band: Band, sharing: int, memory: int) -> bool:
    return max(_worker_bytes(table, bound, band, several=True), _trusted_bytes(band, sharing)) <= memory


def _worker_bytes(table: Sizes, bound: RowBound, band: Band, several: bool) -> int:
    """Return the memory of a worker: one task at work, the sums that wait beside it, and what reading rows takes."""
    # the product is added in place where it is a whole triangle; then the total, and one more while it is packed
    at_work = 8 * ((2 if several else 1) * band.height * band.width + 2 * band.entries)
    # of several bands, the one before may still be on its way; of one band, the partitions before wait to be added
    waiting = 8 * band.entries * (1 if several else PER_WORKER)
    piece = min(piece_rows(bound), table.chunk_rows)
    reading = table.buffer_bytes(piece)
    reading += 8 * bound.width * (block_rows(table.rows, bound) + _BOUNDING * piece)
    return PROCESS_BYTES + at_work + waiting + reading


def _trusted_bytes(band: Band, sharing: int) -> int:
    """Return the memory of the trusted node: the last sums of a band, their total, the noise, and a few tiles."""
    last = _last(sharing)
    sums = 8 * band.entries * (last + (last > 1))
    return PROCESS_BYTES + _DRAWING + sums + 8 * band.entries + 8 * 8 * triangle.TILE * triangle.TILE


def _last(groups: int) -> int:
    """Count the sums that are left for the trusted node."""
    tree = levels(groups)
    return len(tree[-1]) if tree else min(groups, FAN_IN)


def _gib(count: int) -> str:
    return f"{np.ceil(count / 2**30 * 10) / 10:g} GiB"
