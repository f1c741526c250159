"""Scores of every row, computed where the rows are.

Scores are private rows in fewer dimensions: they stay with the rows, and must not be published. A task writes whole
chunks of scores.zarr, so running it twice writes the same bytes. The folder is staged, and renamed when complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import zarr
from threadpoolctl import threadpool_limits
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import MemoryStore

from dpdist.core.errors import DataError
from dpdist.core.naming import step
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.writing import chunk_key
from dpdist.core.storage.arrays import ROOT, ChunkWriter, array_options, digest_of_objects
from dpdist.core.storage.store import AnyStore, Store, store_at

FORMAT = "dpdist-scores/1"
_BATCH_BYTES = 512 << 10
"""Bytes of the rows multiplied at once: half of a core's L2 cache."""
_ORDINARY = 2.0**40
"""Bound on shifts, scales and inverse scales that are far from the limits of float32."""


class Directions(Protocol):
    """Components of a model: (k, d) rows, and the mean and scale of the rows, (d,) each."""

    @property
    def components(self) -> npt.NDArray[np.float64]: ...  # noqa: D102

    @property
    def mean(self) -> npt.NDArray[np.float64]: ...  # noqa: D102

    @property
    def scale(self) -> npt.NDArray[np.float64]: ...  # noqa: D102


class StoredModel(Protocol):
    """A model of a release."""

    @property
    def release_id(self) -> str: ...  # noqa: D102

    @property
    def names(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def schema(self) -> Schema | None: ...  # noqa: D102

    @property
    def components(self) -> Directions: ...  # noqa: D102


@dataclass(frozen=True)
class ProjectionTask:
    """Chunks of scores to compute, and their input."""

    table: RowsTable
    components: Directions
    scores: Store
    chunks: range

    def for_task(self, chunks: range) -> ProjectionTask:
        """Return the task for other chunks."""
        return replace(self, chunks=chunks)


class Projector:
    """Projects rows on components: ``((x - mean) / scale) V^T``, identically in every interface. Thread-safe."""

    # Rows are shifted and multiplied in batches that fit the cache. The division by the scale and the float32 error of
    # the mean are applied to the components once.

    def __init__(self, components: Directions, rows: npt.DTypeLike) -> None:
        self.dtype = scores_dtype(rows, components)
        self._model = components
        self._vectors = np.ascontiguousarray((components.components / components.scale).T.astype(self.dtype))
        self._mean = components.mean.astype(self.dtype)
        self._mean_error = (((components.mean - self._mean) / components.scale) @ components.components.T).astype(
            self.dtype
        )
        self.piece_rows = max(1, _BATCH_BYTES // (self.dtype.itemsize * len(components.mean)))

    def __call__(self, rows: npt.NDArray[np.generic]) -> npt.NDArray[np.floating]:
        """Return the scores of rows, (r, d), as a new (r, k) array."""
        out = np.empty((rows.shape[0], self._vectors.shape[1]), self.dtype)
        starts = range(0, rows.shape[0], self.piece_rows)
        self._write((rows[start : start + self.piece_rows] for start in starts), out)
        return out

    def project(self, reader: ChunkReader, index: int, out: npt.NDArray[np.floating]) -> int:
        """Write the scores of a chunk to the first rows of ``out``, and return their number."""
        return self._write(reader.read(index), out)

    def _write(self, batches: Iterable[npt.NDArray[np.generic]], out: npt.NDArray[np.floating]) -> int:
        start, model = 0, self._model
        shifted = np.empty((0, len(self._mean)), self.dtype)
        for batch in batches:
            if batch.shape[0] > shifted.shape[0]:
                shifted = np.empty((batch.shape[0], batch.shape[1]), self.dtype)
            block, scores = shifted[: batch.shape[0]], out[start : start + batch.shape[0]]
            with np.errstate(over="ignore", invalid="ignore"):  # scores of rows with NaN or infinity
                np.subtract(batch, self._mean, out=block)
                np.matmul(block, self._vectors, out=scores)
                scores -= self._mean_error
                if not np.isfinite(scores).all():  # an intermediate float32 may have overflowed
                    wrong = ~np.isfinite(scores).all(axis=1)
                    exact = ((batch[wrong].astype(np.float64) - model.mean) / model.scale) @ model.components.T
                    scores[wrong] = exact
            start += batch.shape[0]
        return start


def project_chunks(task: ProjectionTask) -> None:
    """Write the scores of all rows of the task's chunks, after verifying the checksums of the rows."""
    # another thread writes a chunk while the next one is computed: two are in memory, and a third if the chunks of rows
    # and scores are not aligned
    scores = _Scores(task.table, task.components)
    buffers = [ChunkWriter(scores.shape, scores.dtype) for _ in range(min(2, len(task.chunks)))]
    with ThreadPoolExecutor(1, thread_name_prefix="scores") as other:
        under_way: Future[None] | None = None
        for number, index in enumerate(task.chunks):
            buffer = buffers[number % 2]
            scores.fill(index, buffer.rows)
            if under_way is not None:
                under_way.result()  # frees the other buffer, or raises its error
            # the context lets errors name parameters as in this thread
            under_way = other.submit(copy_context().run, buffer.write, task.scores, chunk_key(index))
        if under_way is not None:
            under_way.result()


class _Scores:
    """Computes chunks of scores, all of one length; chunks of registered rows may have any length."""

    def __init__(self, table: RowsTable, components: Directions) -> None:
        self._table = table
        self._projector = Projector(components, table.dtype)
        self._reader = ChunkReader(table, self._projector.piece_rows, tuple(components.mean))
        self.dtype = self._projector.dtype
        self.shape = (table.chunk_rows, components.components.shape[0])
        self._split_chunk = np.empty(self.shape, self.dtype)
        self._split_index = -1

    def fill(self, index: int, out: npt.NDArray[np.floating]) -> None:
        """Write a chunk of scores into ``out``, with zeros after the last row of the table."""
        table = self._table
        start = index * table.chunk_rows
        row, stop = start, min(table.rows, start + table.chunk_rows)
        while row < stop:
            chunk = table.chunk_of(row)
            first, after = table.first_row(chunk), table.first_row(chunk + 1)
            last = min(stop, after)
            if start <= first and after <= stop:  # all of its rows are in this chunk of scores
                self._projector.project(self._reader, chunk, out[first - start :])
            else:
                if chunk != self._split_index:  # two successive chunks of scores may need it
                    self._split_index = -1
                    self._projector.project(self._reader, chunk, self._split_chunk)
                    self._split_index = chunk
                out[row - start : last - start] = self._split_chunk[row - first : last - first]
            row = last
        out[stop - start :] = 0


def scores_in_memory(table: RowsTable, components: Directions) -> npt.NDArray[np.floating]:
    """Return the scores of all rows of a table, (n, k), bit-identical to ``dpdist project`` on this machine."""
    projector = Projector(components, table.dtype)
    reader = ChunkReader(table, projector.piece_rows, tuple(components.mean))
    try:
        scores = np.empty((table.rows, components.components.shape[0]), projector.dtype)
    except MemoryError:
        raise DataError(
            f"The scores of {table} do not fit into memory. Write them to disk: "
            f"{step('project', table, 'MODEL', 'SCORES')}."
        ) from None
    start = 0
    # as in worker processes: the order of BLAS sums may depend on the number of threads
    with threadpool_limits(limits=1, user_api="blas"):
        for index in range(table.chunks):
            start += projector.project(reader, index, scores[start:])
    return scores


def scores_dtype(rows: npt.DTypeLike, components: Directions) -> np.dtype[np.floating]:
    """Return float32 for float32 rows with ordinary means and scales, else float64."""
    # the error of a float32 score is about 1e-7 of the norm of the shifted and scaled row
    ordinary = max(abs(components.mean).max(), components.scale.max(), (1 / components.scale).max()) <= _ORDINARY
    return np.dtype(np.float32 if np.dtype(rows) == np.float32 and ordinary else np.float64)


@contextmanager
def scores_of(table: RowsTable, model: StoredModel, model_at: AnyStore, target: AnyStore) -> Iterator[ProjectionTask]:
    """Prepare scores.zarr and yield the task that fills it; it is published when the block ends without error."""
    if model.schema != table.schema:
        cure = (
            "Use a model of a release of rows with this schema."
            if model.schema is None
            else f"Ingest the source with that of the model: {step('ingest', 'SOURCE', 'ROWS', schema=model_at)}."
        )
        raise DataError(f"The schemas of the model {model_at} and the rows {table} differ, or one has none. {cure}")
    if model.names != table.names:
        raise DataError(
            f"The columns of the model {model_at} and the rows {table} differ. Use a model of a release of rows with "
            "these columns."
        )
    count = model.components.components.shape[0]
    head: dict[str, Buffer] = {}
    zarr.create_array(
        store=MemoryStore(head),
        shape=(table.rows, count),
        chunks=(table.chunk_rows, count),
        zarr_format=3,
        **array_options(scores_dtype(table.dtype, model.components)),
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
    chunks = range(-(-table.rows // table.chunk_rows))
    identity = partial(_identity, head, model.components)
    keys = {chunk_key(index) for index in chunks}
    with store_at(target).staged("scores", private=True, identity=identity, keys=lambda: keys) as staging:
        staging.put(ROOT, head[ROOT].to_bytes())
        yield ProjectionTask(table, model.components, staging.absolute(), chunks)
        if not keys <= {key for key, _ in staging.list("c")}:
            raise DataError(f"Some chunks of {target} were not written. Run the same command again.")


def _identity(head: dict[str, Buffer], components: Directions) -> str:
    """Return the identity of scores: rows, shape and type, and the components to the last bit."""
    parts = {"components": components.components, "mean": components.mean, "scale": components.scale}
    stored = default_buffer_prototype().buffer
    return digest_of_objects({**head, **{name: stored.from_bytes(values.tobytes()) for name, values in parts.items()}})


def require_complete(scores: AnyStore, table: RowsTable) -> None:
    """Refuse scores with missing chunks."""
    try:
        array = zarr.open_array(store_at(scores).for_zarr(), mode="r", zarr_format=3)
        complete = array.nchunks_initialized == array.nchunks and array.shape[0] == table.rows
    except Exception:  # noqa: BLE001 - libraries raise many kinds of error for a damaged folder
        complete = False
    if not complete:
        raise DataError(f"The scores at {scores} are damaged. Remove them and run the same command again.")
