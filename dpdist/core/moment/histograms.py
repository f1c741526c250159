"""Histograms of the norms of rows, and of the values of each column, over public grids.

**Norms.** Noisy counts of the norms over a geometric grid determine a clip norm. A row, shifted and scaled by the same
public vectors as in a release, falls into exactly one bin: bin i contains the norms above edge i - 1 and up to edge i,
and the last bin those beyond the grid. A release with edge i as its clip norm clips exactly the rows of the bins above
i. A row with a NaN or an infinity counts as zero, as in a release.

The bin of a row depends on this row alone, and is the same on every processor and for every block size: an exact power
of two brings its largest entry to b bits before the point, the entries are truncated to integers, and their squares are
added exactly in float64, in any order, because the sum stays below 2^53. One correctly rounded square root and an exact
power of two give the norm that is compared with the edges. It is less than the true norm by at most a factor of
``sqrt(d) 2^(1-b)`` (d columns; 2e-5 for d = 100), so a row that close to an edge may fall into a neighbouring bin.

Privacy does not depend on this accuracy. With any rounding, a row falls into one bin, so an additional row adds one to
one count, as :mod:`dpdist.core.mechanisms.quantile` requires.

**Columns.** Noisy counts of the values of each column determine a centre and a scale. A finite number adds 1 to
exactly one bin of its column, found by comparing it, as float64, with the edges of the column's grid: the same on every
processor and for every block size. Other values, such as those of a row that the schema drops, are not
counted. So a row adds at most 1 to the bins of a column, as :mod:`dpdist.core.mechanisms.columns` requires.

The histograms of d columns have 243 bins each, or 66 for a known public range, of 8 bytes: 105 kB for 54 columns, 27 MB
for 14000. Every process that counts holds them once, and their number is limited
(``dpdist.core.mechanisms.columns.MAX_BINS``).

Counts are summed over partitions like a moment: exactly, and complete or refused. A :class:`Counting` defines which
values are counted.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.columns import Grid, require_bins
from dpdist.core.mechanisms.sensitivity import UnitNorm
from dpdist.core.moment.layout import BOUND_SECONDS
from dpdist.core.moment.total import Partial, hash_of, piece_rows
from dpdist.core.naming import parameter
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.table import Table
from dpdist.core.rows.unit_moment import Starts, moment_norms
from dpdist.core.rows.unit_rows import UnitBatches

Counts = npt.NDArray[np.int64]


class Counting(Protocol):
    """Assignment of rows to bins, which is independent of the other rows."""

    value_seconds: ClassVar[float]
    """Seconds to read and count a value of a row, on a current core."""

    @property
    def columns(self) -> int:
        """Columns of the table."""
        ...

    @property
    def bins(self) -> int:
        """Bins of all histograms together."""
        ...

    @property
    def centre(self) -> tuple[float, ...] | None:
        """Values that replace missing cells before the count; None: they are not counted."""
        ...

    def count(self, rows: npt.NDArray[np.generic], counts: Counts) -> None:
        """Add rows, (r, columns) of any real dtype, to the counts of the bins, (bins,)."""
        ...

    def count_units(self, rows: npt.NDArray[np.generic], starts: Starts, counts: Counts) -> None:
        """Add whole privacy units, whose rows begin at ``starts``, to the counts of the bins: each as one row."""
        ...


@dataclass(frozen=True)
class HistogramTask:
    """Input of a worker: chunks of a table, and how they are counted. Public."""

    table: Table
    counting: Counting
    chunks: range

    def for_task(self, chunks: range) -> HistogramTask:
        """Return the task for other chunks."""
        return replace(self, chunks=chunks)


def partition_histogram(task: HistogramTask) -> Partial[np.int64]:
    """Count the rows of one partition; the values of the sum are (bins,) int64."""
    values, limit = np.zeros(task.counting.bins, dtype=np.int64), piece_rows(task.counting.columns)
    rows = fingerprint = 0
    if isinstance(task.table, RowsTable) and task.table.together:
        batches = UnitBatches(task.table, task.chunks, limit, task.counting.centre)
        for _, batch, starts in batches:
            task.counting.count_units(batch, starts, values)
            rows += batch.shape[0]
        fingerprint = sum(hash_of(index, checksum) for index, checksum in batches.checksums)
        return Partial(values, rows, ((task.chunks.start, task.chunks.stop),), fingerprint=fingerprint)
    reader = ChunkReader(task.table, limit, task.counting.centre)
    for index in task.chunks:
        for batch in reader.read(index):
            task.counting.count(batch, values)
            rows += batch.shape[0]
        fingerprint += hash_of(index, reader.checksum)
    return Partial(values, rows, ((task.chunks.start, task.chunks.stop),), fingerprint=fingerprint)


@dataclass(frozen=True)
class ColumnCounting:
    """Counts the values of some columns, each over its own grid; the bins of the first one come first."""

    grids: tuple[Grid, ...]
    columns: int = 0  # of the table; 0: as many as grids
    places: tuple[int, ...] = ()  # which columns are counted, if not all
    value_seconds: ClassVar[float] = 5e-8
    centre: ClassVar[None] = None

    def __post_init__(self) -> None:
        require_bins(self.bins, len(self.grids))
        if not self.columns:
            object.__setattr__(self, "columns", len(self.grids))
            object.__setattr__(self, "places", tuple(range(len(self.grids))))

    @classmethod
    def of_numbers(cls, columns: int) -> ColumnCounting:
        """Return the counting of columns without a known range."""
        return cls((Grid(),) * columns)

    @classmethod
    def of(cls, columns: int, schema: Schema | None) -> ColumnCounting:
        """Return the counting of the numbers of a table, over their public ranges if a schema defines them."""
        if schema is None:
            return cls.of_numbers(columns)
        spans = [schema.spans[place] for place in schema.numbers]
        grids = tuple(Grid() if span is None else Grid.of_range(*span) for span in spans)
        return cls(grids, columns, schema.numbers)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First bin of each column, and the total number of bins."""
        return tuple(np.cumsum([0, *(grid.bins for grid in self.grids)]).tolist())

    @property
    def bins(self) -> int:
        """Bins of all columns together."""
        return self.starts[-1]

    @cached_property
    def _alike(self) -> list[tuple[npt.NDArray[np.float64], npt.NDArray[np.intp], Counts]]:
        """For each grid: its edges, its columns, and their first bins."""
        columns_of_grid: dict[Grid, list[int]] = {}
        for number, grid in enumerate(self.grids):
            columns_of_grid.setdefault(grid, []).append(number)
        return [
            (
                np.array(grid.edges),
                np.array([self.places[i] for i in numbers]),
                np.array([self.starts[i] for i in numbers]),
            )
            for grid, numbers in columns_of_grid.items()
        ]

    def count(self, rows: npt.NDArray[np.generic], counts: Counts) -> None:
        """Add rows to the counts, (bins,)."""
        for edges, columns, starts in self._alike:
            values = rows[:, columns].astype(np.float64)
            bins = np.searchsorted(edges, values, side="right") + starts
            np.add.at(counts, bins[np.isfinite(values)], 1)  # its time does not depend on the number of bins

    def count_units(self, rows: npt.NDArray[np.generic], starts: Starts, counts: Counts) -> None:
        """Add one row of each unit to the counts: its first, which the key of the ingest chose."""
        self.count(rows[starts], counts)

    def of_columns(self, counts: Counts) -> list[Counts]:
        """Return the counts of each column."""
        return np.split(counts, self.starts[1:-1])


@dataclass(frozen=True)
class NormCounting:
    """Counts the norms of rows over a grid."""

    bound: RowBound
    edges: tuple[float, ...]
    whole: tuple[int, ...] = ()  # columns that are never shortened, and not counted
    unit_norm: UnitNorm = ""  # of the moments of privacy units, with this constant in each row
    constant: float = 0.0
    value_seconds: ClassVar[float] = BOUND_SECONDS

    @property
    def centre(self) -> tuple[float, ...] | None:
        """The centre of the bound, as in the release."""
        return self.bound.centre

    @property
    def columns(self) -> int:
        """Columns of the table."""
        return self.bound.columns

    @property
    def bins(self) -> int:
        """One bin up to each edge, and one beyond the last."""
        return len(self.edges) + 1

    def count(self, rows: npt.NDArray[np.generic], counts: Counts) -> None:
        """Add rows to the counts, (bins,)."""
        counts += counted(norms_of(rows, self.bound, self.whole), self.edges)

    def count_units(self, rows: npt.NDArray[np.generic], starts: Starts, counts: Counts) -> None:
        """Add the root of the norm of the moment of each unit to the counts: as long as one row of this moment."""
        values = np.full((rows.shape[0], rows.shape[1] + (self.constant > 0)), self.constant)
        self.bound.affine.shifted(rows, values[:, : rows.shape[1]])
        values[~np.isfinite(values).all(axis=1), : rows.shape[1]] = 0
        norms = np.empty(starts.size)
        moment_norms(values, starts, np.ones(starts.size, np.bool_), norms, trace=self.unit_norm == "trace")
        counts += counted(np.sqrt(norms), self.edges)


@dataclass(frozen=True)
class OneNorm:
    """A grid of one norm, which counts the longer rows."""

    norm: float

    @property
    def edges(self) -> tuple[float, ...]:
        """The norm."""
        return (self.norm,)

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return asdict(self)


_MAX_EDGES = 1024  # noise grows with their number, and many edges per octave do not improve the choice


@dataclass(frozen=True)
class NormGrid:
    """A public geometric grid of norms, ``low 2^(i / per_octave)``, up to ``high``.

    Edges at whole octaves are exact. The others are rounded to four significant digits, so that they can be typed as a
    clip norm and do not depend on the last bit of a power.

    Parameters
    ----------
    low : float, default 2**-10
        The first edge, in units of the shifted and scaled rows.
    high : float, default 2**20
        Lower bound of the last edge.
    per_octave : int, default 2
        Edges per factor of two, 1 to 64.

    Raises
    ------
    UsageError
        If the parameters are invalid, or the grid has more than 1024 edges.

    See Also
    --------
    NormsRequest : A request with a grid.
    choose_clip_norm : Choose one of its edges.

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
        for name in ("low", "high"):  # the id is a hash of floats
            object.__setattr__(self, name, float(getattr(self, name)))
        if not 2.0**-400 <= self.low < self.high <= 2.0**400:
            raise UsageError(
                "The grid of norms must go from a positive norm to a larger one, as in 1:1000:4.", parameter="grid"
            )
        if not 1 <= self.per_octave <= 64:
            raise UsageError(
                "The grid of norms must have 1 to 64 edges per factor of two, as in 1:1000:4.", parameter="grid"
            )
        if self._count > _MAX_EDGES:
            raise UsageError(
                f"The grid has {self._count} norms, more than {_MAX_EDGES}. Choose a smaller range or fewer norms per "
                "factor of two.",
                parameter="grid",
            )

    @classmethod
    def parse(cls, text: str) -> NormGrid:
        """Parse ``LOW:HIGH:PER_OCTAVE``; UsageError for other text."""
        try:
            low, high, per_octave = text.split(":")
            return cls(float(low), float(high), int(per_octave))
        except ValueError:
            raise UsageError(
                f"{parameter('grid')} takes LOW:HIGH:PER_OCTAVE, three public numbers such as 1:1000:4, not {text!r}."
            ) from None

    def __str__(self) -> str:
        """Return the text that :meth:`parse` reads."""
        return f"{self.low:.15g}:{self.high:.15g}:{self.per_octave}"

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges, in ascending order."""
        edges = [self._edge(i) for i in range(self._count)]
        edges[-1] = max(edges[-1], self.high)  # rounding must not lower the last edge
        return tuple(edges)

    def _edge(self, i: int) -> float:
        octaves, between = divmod(i, self.per_octave)
        if not between:
            return math.ldexp(self.low, octaves)
        return float(f"{self.low * 2 ** (i / self.per_octave):.4g}")

    @property
    def _count(self) -> int:
        # rounding of the logarithm must not add an edge
        return math.ceil(self.per_octave * (math.log2(self.high) - math.log2(self.low)) - 1e-9) + 1

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return asdict(self)


def bits_for(columns: int) -> int:
    """Return b, the bits before the point for which sums of squares are exact: ``columns 4^b <= 2^53``."""
    return (53 - math.ceil(math.log2(columns))) // 2


def norms_of(rows: npt.NDArray[np.generic], bound: RowBound, whole: tuple[int, ...] = ()) -> npt.NDArray[np.float64]:
    """Return the norms of rows after the public shift and scale of a bound, without some columns, shape (r,)."""
    z = bound.affine.shifted(rows)
    z[~np.isfinite(z).all(axis=1)] = 0
    z[:, list(whole)] = 0
    bits = bits_for(bound.columns)
    exponent = np.frexp(np.abs(z).max(axis=1))[1]  # the largest entry is below 2^exponent
    np.ldexp(z, (bits - exponent)[:, None], out=z)
    np.trunc(z, out=z)
    squares = np.einsum("ij,ij->i", z, z)
    with np.errstate(over="ignore"):  # an infinite norm is beyond every grid
        norms: npt.NDArray[np.float64] = np.ldexp(np.sqrt(squares), exponent - bits)
    return norms


def counted(norms: npt.NDArray[np.float64], edges: tuple[float, ...]) -> Counts:
    """Count norms over a grid: one bin up to each edge, and one beyond the last, (edges + 1,) int64."""
    bins = np.searchsorted(np.array(edges), norms, side="left")
    return np.bincount(bins, minlength=len(edges) + 1).astype(np.int64, copy=False)
