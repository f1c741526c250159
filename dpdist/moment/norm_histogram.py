"""The histogram of the rows' norms, summed over partitions as a moment is: exact, and complete or refused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.moment.total import Partial, hash_of, piece_rows, runs_of
from dpdist.rows.bounding import RowBound
from dpdist.rows.chunks import ChunkReader
from dpdist.rows.dataset import RowsTable
from dpdist.rows.norms import counted, norms_of


@dataclass(frozen=True)
class HistogramTask:
    """One partition of one table, and the grid it is counted over: what a worker needs to know, all of it public."""

    table: RowsTable
    bound: RowBound
    edges: tuple[float, ...]
    chunks: range


def histogram_tasks(
    table: RowsTable, bound: RowBound, edges: tuple[float, ...], workers: int
) -> list[list[HistogramTask]]:
    """Cut a table into a few partitions per worker, whatever its length, one group of tasks for each."""
    return [[HistogramTask(table, bound, edges, run) for run in runs] for runs in runs_of(table, workers)]


def partition_histogram(task: HistogramTask) -> Partial:
    """Count the norms of one partition; the values of the sum are (edges + 1,) int64.

    Raises
    ------
    DataError
        If a chunk is missing, short or altered.
    """
    most = piece_rows(task.bound)
    reader = ChunkReader(task.table, most)
    buffer = np.empty((most, task.bound.columns))
    values = np.zeros(len(task.edges) + 1, dtype=np.int64)
    rows = fingerprint = 0
    for index in task.chunks:
        for piece in reader.read(index):
            values += counted(norms_of(piece, task.bound, buffer), task.edges)
            rows += piece.shape[0]
        fingerprint += hash_of(index, reader.checksum)
    return Partial(values, rows, ((task.chunks.start, task.chunks.stop),), fingerprint=fingerprint)
