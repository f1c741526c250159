"""Norms of rows, counted over a public geometric grid: what a clip norm can be chosen from, once noise is added.

Row x, shifted and scaled by the same public vectors as in a release, falls into exactly one bin: bin i holds the norms
above edge i - 1 and up to edge i, the last one those beyond the grid. A release with edge i as its clip norm shortens
the rows of the bins above i and no others. A row with a NaN or an infinity counts as zero, as in a release.

The bin of a row is computed from this row alone, and the same on every processor and in every block size: an exact
power of two brings its largest entry to b bits before the point, the entries are truncated to integers, and their
squares add up exactly in float64, in any order, because the sum stays below 2^53. One correctly rounded square root
and an exact power of two give the norm that is compared with the edges. It is at most ``sqrt(d) 2^(1-b)`` of the true
norm too small (d columns; 2e-5 for d = 100), so a row that close to an edge may count on its other side.

Privacy needs none of this accuracy. Whatever rounding does, a row falls into one bin, so that one row more adds one to
one count: that is all :mod:`dpdist.mechanisms.quantile` asks for.

Numbers of every column, counted over public grids: what a centre and a scale follow from, once noise is added.

Each row of finite numbers adds 1 to exactly one bin of each column, found by comparing its number, as float64, with the
edges of the column's grid: the same on every processor and in every block size. A row with another number, such as one
that the schema drops, is counted nowhere. So a row adds at most 1 to the bins of a column, which is all that
:mod:`dpdist.mechanisms.columns` asks for.

The histograms of d columns have 243 bins each, or 66 where a public range is known, 8 bytes a bin: 105 kB of 54
columns, 27 MB of 14000. They are held once in each process that counts, and limited
(``dpdist.mechanisms.columns.MOST_BINS``).

Counts are summed over partitions as a moment is: exact, and complete or refused. What is counted is decided by a
:class:`Counting`: the norms of rows, or the numbers of every column.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from dpdist.errors import UsageError
from dpdist.mechanisms.columns import Grid, require_bins
from dpdist.moment.layout import BOUND_SECONDS
from dpdist.moment.total import Partial, hash_of, piece_rows
from dpdist.naming import parameter
from dpdist.rows.bounding import RowBound
from dpdist.rows.chunks import ChunkReader
from dpdist.rows.table import Table

Counts = npt.NDArray[np.int64]


class Counting(Protocol):
    """Into which bins rows fall. Each row falls into its bins alone, whatever the others are."""

    value_seconds: ClassVar[float]
    """To read a number of a row and count it, on a core of today."""

    @property
    def columns(self) -> int:
        """Of the table."""
        ...

    @property
    def bins(self) -> int:
        """Of the histogram, or of all histograms together."""
        ...

    def count(self, rows: npt.NDArray[np.generic], counts: Counts) -> None:
        """Add rows, (r, columns) of any real dtype, to the counts of the bins, (bins,)."""
        ...


@dataclass(frozen=True)
class HistogramTask:
    """One partition of one table, and how it is counted: what a worker needs to know, all of it public."""

    table: Table
    counting: Counting
    chunks: range

    def cut(self, chunks: range) -> HistogramTask:
        """Return the same of other chunks."""
        return replace(self, chunks=chunks)


def partition_histogram(task: HistogramTask) -> Partial[np.int64]:
    """Count the rows of one partition; the values of the sum are (bins,) int64."""
    reader = ChunkReader(task.table, piece_rows(task.counting.columns))
    values = np.zeros(task.counting.bins, dtype=np.int64)
    rows = fingerprint = 0
    for index in task.chunks:
        for piece in reader.read(index):
            task.counting.count(piece, values)
            rows += piece.shape[0]
        fingerprint += hash_of(index, reader.checksum)
    return Partial(values, rows, ((task.chunks.start, task.chunks.stop),), fingerprint=fingerprint)


@dataclass(frozen=True)
class ColumnCounting:
    """Counts the numbers of every column over its own grid; the bins of the first column come first."""

    grids: tuple[Grid, ...]
    value_seconds: ClassVar[float] = 5e-8

    def __post_init__(self) -> None:
        require_bins(self.bins, self.columns)

    @property
    def columns(self) -> int:
        """Of the table."""
        return len(self.grids)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where the bins of each column begin, and at last where all end."""
        return tuple(np.cumsum([0, *(grid.bins for grid in self.grids)]).tolist())

    @property
    def bins(self) -> int:
        """Of all columns together."""
        return self.starts[-1]

    @cached_property
    def _alike(self) -> list[tuple[npt.NDArray[np.float64], npt.NDArray[np.intp], Counts]]:
        """The edges of each grid, and the columns that have it, with where their bins begin."""
        places: dict[Grid, list[int]] = {}
        for column, grid in enumerate(self.grids):
            places.setdefault(grid, []).append(column)
        return [
            (np.array(grid.edges), np.array(columns), np.array([self.starts[each] for each in columns]))
            for grid, columns in places.items()
        ]

    def count(self, rows: npt.NDArray[np.generic], counts: Counts) -> None:
        """Add rows to the counts, (bins,)."""
        rows = rows[np.isfinite(rows).all(axis=1)]
        for edges, columns, starts in self._alike:
            values = rows[:, columns].astype(np.float64)
            bins = np.searchsorted(edges, values, side="right") + starts
            np.add.at(counts, bins.ravel(), 1)  # what it takes does not grow with the number of bins

    def of_columns(self, counts: Counts) -> list[Counts]:
        """Return the counts of each column."""
        return np.split(counts, self.starts[1:-1])


def grids_of(table: Table) -> tuple[Grid, ...]:
    """Return the grid of each column of a table: over its public range, where a schema says one."""
    if table.schema is None:
        return grids_of_numbers(table.columns)
    return tuple(Grid() if ends is None else Grid.of_range(*ends) for ends in table.schema.ranges)


def grids_of_numbers(columns: int) -> tuple[Grid, ...]:
    """Return the grids of columns of which no range is known."""
    return (Grid(),) * columns


@dataclass(frozen=True)
class NormCounting:
    """Counts the norms of rows over a grid."""

    bound: RowBound
    edges: tuple[float, ...]
    value_seconds: ClassVar[float] = BOUND_SECONDS

    @property
    def columns(self) -> int:
        """Of the table."""
        return self.bound.columns

    @property
    def bins(self) -> int:
        """One up to each edge, and one beyond the last."""
        return len(self.edges) + 1

    def count(self, rows: npt.NDArray[np.generic], counts: Counts) -> None:
        """Add rows to the counts, (bins,)."""
        counts += counted(norms_of(rows, self.bound, np.empty((rows.shape[0], self.columns))), self.edges)


_MOST = 1024
"""Edges of a grid: noise grows with their number, and more than a handful to an octave choose no better."""


@dataclass(frozen=True)
class NormGrid:
    """A public geometric grid of norms, ``low 2^(i / per_octave)``, that reaches ``high``.

    Edges at whole octaves are exact. Those between them are rounded to four significant digits, so that they can be
    typed as a clip norm, and so that no last bit of a power of two decides.

    Parameters
    ----------
    low : float, default 2**-10
        The first edge, in units of the shifted and scaled rows.
    high : float, default 2**20
        What the last edge reaches at least.
    per_octave : int, default 2
        Edges from one norm to its double, 1 to 64.

    Raises
    ------
    UsageError
        If these make no grid, or one of more than 1024 edges.

    See Also
    --------
    NormsRequest : Takes it.
    choose_clip_norm : Chooses one of its edges.

    Examples
    --------
    >>> import dpdist
    >>> dpdist.NormGrid(1, 4).edges
    (1.0, 1.414, 2.0, 2.828, 4.0)
    >>> NormGrid(1, 16384, 2).edges[-3:]
    (8192.0, 11590.0, 16384.0)
    >>> str(NormGrid.parse("1:1e3:2"))
    '1:1000:2'
    """

    low: float = 2.0**-10
    high: float = 2.0**20
    per_octave: int = 2

    def __post_init__(self) -> None:
        for name in ("low", "high"):  # a whole number is hashed into the id as the float that it is
            object.__setattr__(self, name, float(getattr(self, name)))
        if not 2.0**-400 <= self.low < self.high <= 2.0**400:
            raise UsageError(
                "The grid of norms goes from a positive norm to a larger one, such as 1:1000:4.", parameter="grid"
            )
        if not 1 <= self.per_octave <= 64:
            raise UsageError(
                "The grid of norms has 1 to 64 edges from a norm to its double, as in 1:1000:4.", parameter="grid"
            )
        if self._count > _MOST:
            raise UsageError(
                f"The grid has {self._count} norms, more than {_MOST}: take a shorter one.", parameter="grid"
            )

    @classmethod
    def parse(cls, text: str) -> NormGrid:
        """Read ``LOW:HIGH:PER_OCTAVE``; UsageError if it is something else."""
        try:
            low, high, per_octave = text.split(":")
            return cls(float(low), float(high), int(per_octave))
        except ValueError:
            raise UsageError(
                f"{parameter('grid')} takes LOW:HIGH:PER_OCTAVE, three public numbers such as 1:1000:4, not {text!r}."
            ) from None

    def __str__(self) -> str:
        """Return the same text."""
        return f"{self.low:.15g}:{self.high:.15g}:{self.per_octave}"

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges, rising."""
        edges = [self._edge(i) for i in range(self._count)]
        edges[-1] = max(edges[-1], self.high)  # rounding must not end the grid before it
        return tuple(edges)

    def _edge(self, i: int) -> float:
        octaves, between = divmod(i, self.per_octave)
        if not between:
            return math.ldexp(self.low, octaves)
        return float(f"{self.low * 2 ** (i / self.per_octave):.4g}")

    @property
    def _count(self) -> int:
        # a logarithm that is off by its last bits must not add an edge
        return math.ceil(self.per_octave * (math.log2(self.high) - math.log2(self.low)) - 1e-9) + 1

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return asdict(self)


def bits_for(columns: int) -> int:
    """Return b, the bits before the point with which so many squares add up exactly: ``columns 4^b <= 2^53``."""
    return (53 - math.ceil(math.log2(columns))) // 2


def norms_of(rows: npt.NDArray[np.generic], bound: RowBound, out: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the norms of rows after the public shift and scale of a bound, shape (r,)."""
    z = out[: rows.shape[0]]
    bound.shifted(rows, z)
    z[~np.isfinite(z).all(axis=1)] = 0
    bits = bits_for(bound.columns)
    exponent = np.frexp(np.abs(z).max(axis=1))[1]  # the largest entry is below 2^exponent
    np.ldexp(z, (bits - exponent)[:, None], out=z)
    np.trunc(z, out=z)
    squares = np.einsum("ij,ij->i", z, z)
    with np.errstate(over="ignore"):  # a norm that float64 does not hold lies beyond every grid
        found: npt.NDArray[np.float64] = np.ldexp(np.sqrt(squares), exponent - bits)
    return found


def counted(norms: npt.NDArray[np.float64], edges: tuple[float, ...]) -> Counts:
    """Count norms over a grid: one bin up to each edge, and one beyond the last, (edges + 1,) int64."""
    bins = np.searchsorted(np.array(edges), norms, side="left")
    return np.bincount(bins, minlength=len(edges) + 1).astype(np.int64, copy=False)
