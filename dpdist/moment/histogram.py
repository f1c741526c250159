"""Counts of rows over public bins, summed over partitions as a moment is: exact, and complete or refused.

What is counted is decided by a :class:`Counting`: the norms of rows (:mod:`dpdist.moment.norm_histogram`), or the
numbers of every column (:mod:`dpdist.moment.column_histogram`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from dpdist.moment.total import Partial, hash_of, piece_rows
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
