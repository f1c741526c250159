"""Dask collections: their blocks are the inputs of our tasks, in the graph of their owner, where he computes.

That is the cluster of the current client, or else threads of this process, or whatever scheduler is configured. The
blocks, and what is computed to have them, are the owner's; what is made of them obeys the same rules as everywhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import reduce
from typing import Any, TypeVar

import dask
import dask.array
from distributed import Client, get_client, get_worker

from dpdist._util.frames import summed
from dpdist._util.progress import Count, Progress
from dpdist._util.text import random_token
from dpdist.errors import DataError, UsageError
from dpdist.runtime.checks import ClientInfo, forbid_core_dumps, guarded
from dpdist.runtime.cluster import Cluster
from dpdist.runtime.sums import OnDask, Private, added, tree, unquoted

Result = TypeVar("Result")
_THREADS = ("threads", "threading", "sync", "synchronous", "single-threaded")
_PROCESSES = ("processes", "multiprocessing")
_CHOOSE = "Choose threads, dask.config.set(scheduler='threads'), or a cluster, Client()."


def _configured() -> Any:
    """Return the scheduler that Dask is configured with, its name as Dask reads it."""
    asked = dask.config.get("scheduler", None) or "distributed"
    return asked.lower() if isinstance(asked, str) else asked


def _owners() -> OnDask | None:
    """Return the cluster where Dask would compute a collection now; None: this process."""
    asked = _configured()
    if asked in (*_THREADS, *_PROCESSES) or isinstance(asked, ThreadPoolExecutor):
        return None
    client = getattr(asked, "__self__", asked)  # a client, or its method `get`
    if asked in ("distributed", "dask.distributed"):
        try:
            client = get_client()
        except ValueError:
            return None
    if not isinstance(client, Client):  # it might be anywhere
        raise UsageError(f"Dask is configured to compute by {type(asked).__name__}. {_CHOOSE}")
    with suppress(ValueError):
        get_worker()
        raise UsageError(
            "A Dask collection cannot be passed to dpdist within a task, which would wait for tasks of its own. "
            "Pass it in the program that has the client, or pass the task rows in memory."
        )
    if client.asynchronous:
        raise UsageError(
            "The current Dask client is asynchronous, and dpdist waits for its results. Make a synchronous one with "
            "Client(address), or call dpdist in a thread, such as `await asyncio.to_thread(estimator.fit, X)`."
        )
    return OnDask(client, foreign=True)


@contextmanager
def computing(cluster: Cluster | None) -> Iterator[OnDask | None]:
    """Give the cluster where a collection is computed: one that is named, or that of its owner; None: this process."""
    if cluster is None or not cluster.named:
        yield _owners()
        return
    with cluster.connected() as engine:
        yield engine if isinstance(engine, OnDask) else None


def each_block(
    engine: OnDask | None, tasks: Sequence[tuple[Callable[..., Any], ...]], progress: Progress | None, label: str
) -> list[Any]:
    """Call functions with blocks, where these are computed, and return their results in order."""
    token, client_info = random_token(), ClientInfo.here()
    delayed = [
        dask.delayed(guarded, pure=False, traverse=False)(
            client_info, *task, dask_key_name=f"dpdist-block-{token}-{number}"
        )
        for number, task in enumerate(tasks)
    ]
    found = dict(_computed(engine, delayed, Count(progress, label, len(delayed)).one))
    return [found[number] for number in range(len(delayed))]


def first_rows(block: Any, count: int) -> Any:
    """Return what Dask makes the first rows of a block of: with what it knows of blocks, one is computed once."""
    return dask.delayed(_first_rows, pure=False)(block, count)


def _first_rows(block: Any, count: int) -> Any:
    block = summed(block) if hasattr(block, "tocsr") else block  # other sparse matrices cannot be cut
    return block.iloc[:count] if hasattr(block, "iloc") else block[:count]


def reduce_blocks(
    array: Any, function: Callable[[Any], Result], add: Callable[[Result, Result], Result], nbytes: int
) -> Result:
    """Apply a function to every block of rows of a Dask array, and add up the results, where its owner computes."""
    engine, token, client_info, columns = _owners(), random_token(), ClientInfo.here(), array.shape[1]
    if _configured() in _PROCESSES:
        raise UsageError(
            "Dask is configured to compute in processes without a cluster, which pickle their results, and sums of "
            f"rows are not pickled. {_CHOOSE}"
        )
    if engine is not None:
        engine.require_visible(os.sep)  # any path will do: it is about the network and versions

    def addition(name: str, number: int, parts: list[Any]) -> Any:
        return dask.delayed(added, pure=False)(client_info, add, *parts, dask_key_name=f"{name}-{token}-{number}")

    of_block = dask.delayed(_block, pure=False, traverse=False)
    sums = [
        of_block(client_info, function, block, columns, dask_key_name=f"dpdist-sum-{token}-{number}")
        for number, block in enumerate(block for row in array.to_delayed() for block in row)
    ]
    last = _computed(engine, tree(sums, nbytes, 1 if engine is None else None, addition))
    found: Result = reduce(add, (part for _, part in last))
    return found


def _block(client_info: ClientInfo, function: Callable[[Any], Any], block: Any, columns: int) -> Private:
    return Private(guarded(client_info, _of_block, function, block, columns))


def _of_block(function: Callable[[Any], Any], block: Any, columns: int) -> Any:
    if getattr(block, "shape", ())[1:] != (columns,):
        raise DataError("A block of the array has other columns than the array says. See what its own tasks return.")
    return function(block)


def _computed(
    engine: OnDask | None, tasks: Sequence[Any], told: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, Any]]:
    """Yield number and value of tasks as they end; threads of this process tell of them when all have ended."""
    forbid_core_dumps()
    return unquoted(  # whatever the owner's tasks raise; it may quote rows
        _here(tasks, told) if engine is None else engine.compute(tasks, told),
        lambda failed: DataError(
            f"A task of the Dask graph failed with {failed}. Compute the collection without dpdist to see why, and "
            "mend it."
        ),
    )


def _here(tasks: Sequence[Any], told: Callable[[], None]) -> Iterator[tuple[int, Any]]:
    for number, found in enumerate(dask.compute(*tasks)):
        told()
        yield number, found.value if isinstance(found, Private) else found


def cut_alike(columns: Any, rows: Any) -> Any:
    """Return columns, (n, k) of Dask or NumPy, as a Dask array whose blocks have the rows of those of another."""
    cuts = rows.chunks[0]
    known = not any(math.isnan(size) for size in (*cuts, columns.shape[0]))
    if known and sum(cuts) != columns.shape[0]:
        raise DataError(f"y has {columns.shape[0]} rows, and X has {sum(cuts)}.")
    if not dask.is_dask_collection(columns):
        if not known:
            raise DataError("The blocks of X have unknown lengths, so y must be a Dask array of the same blocks.")
        return dask.array.from_array(columns, chunks=(cuts, columns.shape[1:]))
    if known:
        return columns.rechunk({0: cuts, 1: -1})
    if columns.numblocks != (len(cuts), 1):
        raise DataError("The blocks of X have unknown lengths, so y must have as many, of the same rows.")
    return columns


def token_of(collection: Any) -> str:
    """Return by what Dask knows what a collection computes: of its graph too, as one name may stand for several."""
    graph = dict(collection.__dask_graph__() or {}) if dask.is_dask_collection(collection) else None
    return str(dask.base.tokenize(collection, graph))


def side_by_side(tables: Sequence[Any]) -> Any:
    """Return tables of the same rows as one array of Dask, (n, all their columns), with blocks of whole rows."""
    found = dask.array.concatenate([dask.array.asarray(table) for table in tables], axis=1)
    return found.rechunk({1: -1})
