"""Scores of every row, computed where the rows are.

Scores are private rows in fewer dimensions: they stay with the rows and are nothing to publish. A task owns whole
chunks of scores.zarr, so running it twice writes the same bytes twice; the folder is built aside and renamed when
every chunk is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dpdist.errors import DataError
from dpdist.pca.model import Model, open_model
from dpdist.pca.spectrum import Components
from dpdist.rows.dataset import RowsTable, partitions
from dpdist.rows.reading import ChunkReader
from dpdist.staging import staged
from dpdist.store import ChunkWriter, array_options

FORMAT = "dpdist-scores/1"
_PIECE_BYTES = 512 << 10
"""Bytes of the rows that are multiplied at once: half of a core's second-level cache."""
_ORDINARY = 2.0**40
"""Shifts and scales up to this size, and scales down to its inverse, are far from the ends of float32."""


@dataclass(frozen=True)
class ProjectionTask:
    """One run of chunks to project; the model travels by path."""

    table: RowsTable
    model: Path
    scores: Path
    chunks: range


def project_chunks(task: ProjectionTask) -> None:
    """Write ``((x - mean) / scale) V^T`` for every row of the task's chunks, in :func:`scores_dtype`.

    Rows are read, shifted and multiplied in pieces that stay in cache; the scale is divided out of the components once,
    and so is what the mean loses as float32. A chunk of scores is written when the checksum of its rows is known to
    match.

    Raises
    ------
    DataError
        If a chunk of rows or the model cannot be read.
    """
    table, found = task.table, open_model(task.model).components
    dtype = scores_dtype(table, found)
    vectors = np.ascontiguousarray((found.components / found.scale).T.astype(dtype))
    mean = found.mean.astype(dtype)
    lost = (((found.mean - mean) / found.scale) @ found.components.T).astype(dtype)
    most = max(1, _PIECE_BYTES // (dtype.itemsize * table.columns))
    reader = ChunkReader(table, most)
    shifted = np.empty((min(most, table.chunk_rows), table.columns), dtype)
    scores = ChunkWriter((table.chunk_rows, vectors.shape[1]), dtype)
    for index in task.chunks:
        scores.rows[table.rows_in(index) :] = 0
        start = 0
        for piece in reader.read(index):
            block, out = shifted[: piece.shape[0]], scores.rows[start : start + piece.shape[0]]
            with np.errstate(over="ignore", invalid="ignore"):  # rows with NaN or infinity have such scores
                np.subtract(piece, mean, out=block)
                np.matmul(block, vectors, out=out)
                out -= lost
                wrong = ~np.isfinite(out).all(axis=1)
                if wrong.any():  # float32 may have overflowed on the way; the other rows stay as they are
                    out[wrong] = ((piece[wrong].astype(np.float64) - found.mean) / found.scale) @ found.components.T
            start += piece.shape[0]
        scores.write(task.scores / "c" / str(index) / "0")


def scores_dtype(table: RowsTable, found: Components) -> np.dtype[Any]:
    """Return float32 for float32 rows, which are no more precise themselves; else float64.

    The scores of such a row are within some 1e-7 of the norm of the row, shifted and scaled; one beyond 3.4e38 is
    infinite. Means and scales near the ends of float32 take float64.
    """
    ordinary = max(abs(found.mean).max(), found.scale.max(), (1 / found.scale).max()) <= _ORDINARY
    return np.dtype(np.float32 if table.dtype == "float32" and ordinary else np.float64)


@contextmanager
def scores_of(
    table: RowsTable, model: Model, model_path: Path, target: Path, tasks: int
) -> Iterator[list[ProjectionTask]]:
    """Prepare scores.zarr and give the tasks that fill it; it appears at target when the block ends without error.

    Raises
    ------
    DataError
        If the model is for other columns, target exists or cannot be written, or a chunk was not written.
    """
    if model.names != table.names:
        raise DataError(f"The model at {model_path} was made for other columns than those of {table.path}.")
    with staged(target, "scores", private=True) as aside:
        count = model.components.components.shape[0]
        scores = zarr.create_array(
            store=aside,
            shape=(table.rows, count),
            chunks=(table.chunk_rows, count),
            **array_options(scores_dtype(table, model.components)),
            attributes={
                "dpdist": {
                    "format": FORMAT,
                    "dataset_id": table.dataset_id,
                    "release_id": model.release_id,
                    "k": count,
                    "private": "projected rows are private rows in fewer dimensions; do not publish them",
                }
            },
        )
        path = aside.absolute()
        yield [ProjectionTask(table, model_path.absolute(), path, run) for run in partitions(table.chunks, tasks)]
        if scores.nchunks_initialized != table.chunks:
            raise DataError(f"Some chunks of {target} were not written. Run the same command again.")
