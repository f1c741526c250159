"""Numbers of every column, counted over public grids: what a centre and a scale follow from, once noise is added.

Each row of finite numbers adds 1 to exactly one bin of each column, found by comparing its number, as float64, with the
edges of the column's grid: the same on every processor and in every block size. A row with another number, such as one
that the schema drops, is counted nowhere. So a row adds at most 1 to the bins of a column, which is all that
:mod:`dpdist.mechanisms.columns` asks for.

The histograms of d columns have 243 bins each, or 66 where a public range is known, 8 bytes a bin: 105 kB of 54
columns, 27 MB of 14000. They are held once in each process that counts, and limited
(``dpdist.mechanisms.columns.MOST_BINS``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dpdist.mechanisms.columns import Grid, require_bins
from dpdist.moment.histogram import Counts
from dpdist.rows.table import Table


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
