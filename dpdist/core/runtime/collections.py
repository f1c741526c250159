"""Dask collections: their blocks are inputs of our tasks, in the graph and on the scheduler of their owner.

That scheduler is the one of the current client, threads of this process, or another one that is configured. The blocks,
and the computations behind them, belong to the owner; our computations on them obey the same rules as elsewhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial, reduce
from typing import Any, TypeVar

import dask
import dask.array
from distributed import Client, get_client, get_worker

from dpdist.core.errors import DataError, UsageError
from dpdist.core.progress import Count, Progress
from dpdist.core.runtime.checks import ClientInfo, forbid_core_dumps, guarded
from dpdist.core.runtime.cluster import Cluster, named_client
from dpdist.core.runtime.local import Computation, Executor, LocalExecutor, Resources
from dpdist.core.runtime.sums import DaskExecutor, PrivateResult, add_results, reduce_tree, replace_errors
from dpdist.core.storage.store import AnyStore
from dpdist.core.text import random_token

Result = TypeVar("Result")
_THREADS = ("threads", "threading", "sync", "synchronous", "single-threaded")
_PROCESSES = ("processes", "multiprocessing")
_CHOOSE = "Choose threads, dask.config.set(scheduler='threads'), or a cluster, Client()."


def _configured_scheduler() -> Any:
    """Return the configured scheduler of Dask, with its name in lower case."""
    scheduler = dask.config.get("scheduler", None) or "distributed"
    return scheduler.lower() if isinstance(scheduler, str) else scheduler


def _owner_executor(progress: Progress | None = None) -> DaskExecutor | None:
    """Return an executor on the cluster where Dask would compute a collection now; None for this process."""
    scheduler = named_client() or _configured_scheduler()
    if scheduler in (*_THREADS, *_PROCESSES) or isinstance(scheduler, ThreadPoolExecutor):
        return None
    client = getattr(scheduler, "__self__", scheduler)  # a client, or its method `get`
    if scheduler in ("distributed", "dask.distributed"):
        try:
            client = get_client()
        except ValueError:
            return None
    if not isinstance(client, Client):  # a custom scheduler, which may compute anywhere
        raise UsageError(f"Dask is configured to compute by {type(scheduler).__name__}. {_CHOOSE}")
    with suppress(ValueError):
        get_worker()
        raise UsageError(
            "A Dask collection cannot be passed to dpdist within a task, which would wait for other tasks. Pass it in "
            "the program that has the client, or pass rows in memory to the task."
        )
    if client.asynchronous:
        raise UsageError(
            "The current Dask client is asynchronous, and dpdist waits for results. Create a synchronous one with "
            "Client(address), or call dpdist in a thread, such as `await asyncio.to_thread(estimator.fit, X)`."
        )
    return DaskExecutor(client, foreign=True, progress=progress)


@contextmanager
def executor_for(cluster: Cluster, progress: Progress | None) -> Iterator[DaskExecutor | None]:
    """Yield an executor on the given cluster, or on that of a collection's owner; None for this process."""
    if not cluster.named:
        executor = _owner_executor(progress)
        with _said_of_spilling(executor):
            yield executor
        return
    with replace(cluster, progress=progress).connected() as connected:
        executor = connected if isinstance(connected, DaskExecutor) else None
        with _said_of_spilling(executor):
            yield executor


@contextmanager
def _said_of_spilling(executor: DaskExecutor | None) -> Iterator[None]:
    """Warn before or, if an adaptive cluster has no workers yet, after a computation that its workers spill."""
    said = executor is None or executor.warn_of_spilling()
    yield
    if executor is not None and not said:
        executor.warn_of_spilling()


def map_blocks(
    executor: DaskExecutor | None,
    tasks: Sequence[tuple[Callable[..., Any], ...]],
    progress: Progress | None,
    label: str,
) -> list[Any]:
    """Call functions with blocks where Dask computes these, and return the results in order."""
    token, client_info = random_token(), ClientInfo.current()
    delayed = [
        dask.delayed(guarded, pure=False, traverse=False)(
            client_info, *task, dask_key_name=f"dpdist-block-{token}-{number}"
        )
        for number, task in enumerate(tasks)
    ]
    results = dict(_compute(executor, delayed, Count(progress, label, len(delayed)).one))
    return [results[number] for number in range(len(delayed))]


def reduce_blocks(
    array: Any, function: Callable[[Any, int], Result], add: Callable[[Result, Result], Result], nbytes: int
) -> Result:
    """Apply a function to every block of rows of a Dask array and its number, and add the results, where they are."""
    executor, token, client_info, columns = _owner_executor(), random_token(), ClientInfo.current(), array.shape[1]
    if executor is None and _configured_scheduler() in _PROCESSES:
        raise UsageError(
            "Dask is configured to compute in processes without a cluster, which pickle their results, and sums of "
            f"rows are not pickled. {_CHOOSE}"
        )
    if executor is not None:
        executor.require_visible(os.sep)  # any path: this checks network and versions

    def addition(name: str, number: int, parts: list[Any]) -> Any:
        return dask.delayed(add_results, pure=False)(client_info, add, *parts, dask_key_name=f"{name}-{token}-{number}")

    of_block = dask.delayed(_block, pure=False, traverse=False)
    sums = [
        of_block(client_info, function, block, number, columns, dask_key_name=f"dpdist-sum-{token}-{number}")
        for number, block in enumerate(block for row in array.to_delayed() for block in row)
    ]
    with _said_of_spilling(executor):
        parts = _compute(executor, reduce_tree(sums, nbytes, 1 if executor is None else None, addition))
        total: Result = reduce(add, (part for _, part in parts))
    return total


def _block(
    client_info: ClientInfo, function: Callable[[Any, int], Any], block: Any, number: int, columns: int
) -> PrivateResult:
    return PrivateResult(guarded(client_info, _of_block, function, block, number, columns))


def _of_block(function: Callable[[Any, int], Any], block: Any, number: int, columns: int) -> Any:
    if getattr(block, "shape", ())[1:] != (columns,):
        raise DataError(
            "A block has a different number of columns than its Dask array. Check what the tasks of the array return."
        )
    return function(block, number)


class BlocksExecutor(Executor):
    """Sums over the blocks of a Dask array, each of which is a chunk of a table, where Dask computes them."""

    def __init__(self, array: Any) -> None:
        super().__init__(None)
        self._array, self._owner = array, _owner_executor()

    where = "on the blocks of X"

    def resources(self) -> Resources:
        """Return those of the owner's cluster, or of this process."""
        return LocalExecutor().resources() if self._owner is None else self._owner.resources()

    def require_visible(self, location: AnyStore, key: str = "") -> None:
        """Do nothing: tasks get the blocks."""

    def submit(self, computation: Computation, on_task_done: Callable[[], None]) -> Generator[tuple[int, Any]]:
        """Yield the sum over all blocks."""
        if computation.add is None:
            raise AssertionError("a computation that is summed defines an addition")
        yield 0, reduce_blocks(self._array, partial(_on_block, computation), computation.add, computation.nbytes)
        on_task_done()


def _on_block(computation: Computation, block: Any, number: int) -> Any:
    """Run a computation on the chunk that a block is."""
    shared = replace(computation.shared, table=computation.shared.table.of_block(number, block))
    return replace(computation, shared=shared).run(range(number, number + 1))


def _compute(
    executor: DaskExecutor | None, tasks: Sequence[Any], on_task_done: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, Any]]:
    """Yield the number and the result of each task; in this process, all of them after the last one is completed."""
    forbid_core_dumps()
    return replace_errors(  # errors of the owner's tasks may quote rows
        _compute_locally(tasks, on_task_done) if executor is None else executor.compute(tasks, on_task_done),
        lambda error_type: DataError(
            f"A task of the Dask graph failed with {error_type}. Compute the collection without dpdist to see the "
            "error (of a DataFrame: X.to_dask_array().compute()), and correct it."
        ),
    )


def _compute_locally(tasks: Sequence[Any], on_task_done: Callable[[], None]) -> Iterator[tuple[int, Any]]:
    for number, result in enumerate(dask.compute(*tasks)):
        on_task_done()
        yield number, result.value if isinstance(result, PrivateResult) else result


def cut_alike(columns: Any, rows: Any) -> Any:
    """Return columns, (n, k) from Dask or NumPy, as a Dask array with the row chunks of another array."""
    row_chunks = rows.chunks[0]
    sizes_known = not any(math.isnan(size) for size in (*row_chunks, columns.shape[0]))
    if sizes_known and sum(row_chunks) != columns.shape[0]:
        raise DataError("X and y have different numbers of rows. Pass one target for each row.")
    if not dask.is_dask_collection(columns):
        if not sizes_known:
            raise DataError("The blocks of X have unknown lengths, so y must be a Dask array with the same blocks.")
        return dask.array.from_array(columns, chunks=(row_chunks, columns.shape[1:]))
    if sizes_known:
        return columns.rechunk({0: row_chunks, 1: -1})
    if columns.numblocks != (len(row_chunks), 1):
        raise DataError("The blocks of X have unknown lengths, so y must have as many blocks, with the same rows.")
    return columns


def token_of(collection: Any) -> str:
    """Return Dask's token of a collection and its graph, because one name may denote several graphs."""
    graph = dict(collection.__dask_graph__() or {}) if dask.is_dask_collection(collection) else None
    return str(dask.base.tokenize(collection, graph))


def side_by_side(tables: Sequence[Any]) -> Any:
    """Return tables of the same rows as one Dask array, (n, all their columns), with blocks of whole rows."""
    table = dask.array.concatenate([dask.array.asarray(part) for part in tables], axis=1)
    return table.rechunk({1: -1})
