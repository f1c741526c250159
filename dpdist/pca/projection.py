"""Scores of every row, computed where the rows are.

Scores are private rows in fewer dimensions: they stay with the rows, and must not be published. A task writes whole
chunks of scores.zarr, so running it twice writes the same bytes twice. The folder is built aside and renamed when every
chunk is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import zarr
from threadpoolctl import threadpool_limits
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import MemoryStore

from dpdist.errors import DataError
from dpdist.naming import step
from dpdist.pca.components import Components
from dpdist.pca.model import Model
from dpdist.rows.chunks import ChunkReader
from dpdist.rows.dataset import RowsTable
from dpdist.rows.writing import chunk_key
from dpdist.storage.arrays import ROOT, ChunkWriter, array_options, digest_of_objects
from dpdist.storage.store import AnyStore, Store, store_at

FORMAT = "dpdist-scores/1"
_PIECE_BYTES = 512 << 10
"""Bytes of the rows that are multiplied at once: half of a core's second-level cache."""
_ORDINARY = 2.0**40
"""Shifts and scales up to this size, and scales down to its inverse, are far from the ends of float32."""


@dataclass(frozen=True)
class ProjectionTask:
    """Some chunks of scores to make, and of what."""

    table: RowsTable
    components: Components
    scores: Store
    chunks: range

    def for_task(self, chunks: range) -> ProjectionTask:
        """Return the same of other chunks."""
        return replace(self, chunks=chunks)


class Projector:
    """Projects rows on components: ``((x - mean) / scale) V^T``, by the one rule of every face.

    Rows are shifted and multiplied in pieces that stay in cache; the scale is divided out of the components once, and
    so is what the mean loses as float32. It may be pickled, and called by several threads at once.
    """

    def __init__(self, found: Components, rows: npt.DTypeLike) -> None:
        self.dtype = scores_dtype(rows, found)
        self._found = found
        self._vectors = np.ascontiguousarray((found.components / found.scale).T.astype(self.dtype))
        self._mean = found.mean.astype(self.dtype)
        self._lost = (((found.mean - self._mean) / found.scale) @ found.components.T).astype(self.dtype)
        self.piece_rows = max(1, _PIECE_BYTES // (self.dtype.itemsize * len(found.mean)))

    def __call__(self, rows: npt.NDArray[np.generic]) -> npt.NDArray[np.floating]:
        """Return the scores of rows, (r, d), as a new (r, k) array."""
        out = np.empty((rows.shape[0], self._vectors.shape[1]), self.dtype)
        pieces = range(0, rows.shape[0], self.piece_rows)
        self._write((rows[start : start + self.piece_rows] for start in pieces), out)
        return out

    def project(self, reader: ChunkReader, index: int, out: npt.NDArray[np.floating]) -> int:
        """Write the scores of a chunk to the first rows of ``out``, and return how many they are."""
        return self._write(reader.read(index), out)

    def _write(self, pieces: Iterable[npt.NDArray[np.generic]], out: npt.NDArray[np.floating]) -> int:
        start, found = 0, self._found
        shifted = np.empty((0, len(self._mean)), self.dtype)
        for piece in pieces:
            if piece.shape[0] > shifted.shape[0]:
                shifted = np.empty((piece.shape[0], piece.shape[1]), self.dtype)
            block, scores = shifted[: piece.shape[0]], out[start : start + piece.shape[0]]
            with np.errstate(over="ignore", invalid="ignore"):  # rows with NaN or infinity have such scores
                np.subtract(piece, self._mean, out=block)
                np.matmul(block, self._vectors, out=scores)
                scores -= self._lost
                if not np.isfinite(scores).all():  # float32 may have overflowed on the way; other rows stay as they are
                    wrong = ~np.isfinite(scores).all(axis=1)
                    exact = ((piece[wrong].astype(np.float64) - found.mean) / found.scale) @ found.components.T
                    scores[wrong] = exact
            start += piece.shape[0]
        return start


def project_chunks(task: ProjectionTask) -> None:
    """Write the scores of every row of the task's chunks, as a :class:`Projector` makes them.

    A chunk of scores is written when the checksum of its rows is known to match, by another thread while the next one
    is made: two are in memory, and a third where the chunks of rows do not line up with those of scores.
    """
    scores = _Scores(task.table, task.components)
    buffers = [ChunkWriter(scores.shape, scores.dtype) for _ in range(min(2, len(task.chunks)))]
    with ThreadPoolExecutor(1, thread_name_prefix="scores") as other:
        under_way: Future[None] | None = None
        for number, index in enumerate(task.chunks):
            buffer = buffers[number % 2]
            scores.fill(index, buffer.rows)
            if under_way is not None:
                under_way.result()  # the other buffer is free, and what went wrong with it is told here
            # errors name parameters as this thread does
            under_way = other.submit(copy_context().run, buffer.write, task.scores, chunk_key(index))
        if under_way is not None:
            under_way.result()


class _Scores:
    """Makes chunks of scores, which are all of one length; chunks of rows in place are as their source has them."""

    def __init__(self, table: RowsTable, found: Components) -> None:
        self._table = table
        self._projector = Projector(found, table.dtype)
        self._reader = ChunkReader(table, self._projector.piece_rows)
        self.dtype = self._projector.dtype
        self.shape = (table.chunk_rows, found.components.shape[0])
        self._made = np.empty(self.shape, self.dtype)
        self._of_chunk = -1

    def fill(self, index: int, out: npt.NDArray[np.floating]) -> None:
        """Write a chunk of scores into ``out``, zeros behind the last row of the table."""
        table = self._table
        start = index * table.chunk_rows
        row, stop = start, min(table.rows, start + table.chunk_rows)
        while row < stop:
            chunk = table.chunk_of(row)
            first, after = table.first_row(chunk), table.first_row(chunk + 1)
            last = min(stop, after)
            if start <= first and after <= stop:  # all of its rows belong here
                self._projector.project(self._reader, chunk, out[first - start :])
            else:
                if chunk != self._of_chunk:  # two chunks of scores may ask for it, one after the other
                    self._of_chunk = -1
                    self._projector.project(self._reader, chunk, self._made)
                    self._of_chunk = chunk
                out[row - start : last - start] = self._made[row - first : last - first]
            row = last
        out[stop - start :] = 0


def scores_in_memory(table: RowsTable, found: Components) -> npt.NDArray[np.floating]:
    """Return the scores of all rows of a table, (n, k): the bits that ``dpdist project`` writes on this machine."""
    projector = Projector(found, table.dtype)
    reader = ChunkReader(table, projector.piece_rows)
    try:
        scores = np.empty((table.rows, found.components.shape[0]), projector.dtype)
    except MemoryError:
        raise DataError(
            f"The scores of {table} do not fit into this machine's memory. Write them to the disk: "
            f"{step('project', table, 'MODEL', 'SCORES')}."
        ) from None
    start = 0
    # as the worker processes have it: BLAS may add in another order on another number of threads
    with threadpool_limits(limits=1, user_api="blas"):
        for index in range(table.chunks):
            start += projector.project(reader, index, scores[start:])
    return scores


def scores_dtype(rows: npt.DTypeLike, found: Components) -> np.dtype[np.floating]:
    """Return float32 for float32 rows, which are no more precise themselves; else float64.

    The scores of such a row are within some 1e-7 of the norm of the row, shifted and scaled; one beyond 3.4e38 is
    infinite. Means and scales near the ends of float32 take float64.
    """
    ordinary = max(abs(found.mean).max(), found.scale.max(), (1 / found.scale).max()) <= _ORDINARY
    return np.dtype(np.float32 if np.dtype(rows) == np.float32 and ordinary else np.float64)


@contextmanager
def scores_of(table: RowsTable, model: Model, model_at: AnyStore, target: AnyStore) -> Iterator[ProjectionTask]:
    """Prepare scores.zarr and give the task that fills it; it appears at target when the block ends without error."""
    if model.schema != table.schema:
        cure = (
            "Take a model of a release of rows with this schema."
            if model.schema is None
            else f"Ingest the source with that of the model: {step('ingest', 'SOURCE', 'ROWS', schema=model_at)}."
        )
        raise DataError(
            f"The model {model_at} has another schema than the rows {table}, or one of them has none. {cure}"
        )
    if model.names != table.names:
        raise DataError(
            f"The model {model_at} has other columns than the rows {table}. Take a model of a release of rows "
            "with these columns."
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
    with store_at(target).staged("scores", private=True, identity=identity, keys=lambda: keys) as aside:
        aside.put(ROOT, head[ROOT].to_bytes())
        yield ProjectionTask(table, model.components, aside.absolute(), chunks)
        if not keys <= {key for key, _ in aside.list("c")}:
            raise DataError(f"Some chunks of {target} were not written. Run the same command again.")


def _identity(head: dict[str, Buffer], found: Components) -> str:
    """Return what scores follow from: rows, shape and type, and the components to the last bit."""
    parts = {"components": found.components, "mean": found.mean, "scale": found.scale}
    stored = default_buffer_prototype().buffer
    return digest_of_objects({**head, **{name: stored.from_bytes(values.tobytes()) for name, values in parts.items()}})


def require_whole(scores: AnyStore, table: RowsTable) -> None:
    """Refuse scores of which a chunk is missing."""
    try:
        found = zarr.open_array(store_at(scores).for_zarr(), mode="r", zarr_format=3)
        whole = found.nchunks_initialized == found.nchunks and found.shape[0] == table.rows
    except Exception:  # noqa: BLE001 - a damaged folder fails in as many ways as there are libraries
        whole = False
    if not whole:
        raise DataError(f"The scores at {scores} are damaged. Remove them and run the same command again.")
