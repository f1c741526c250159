"""What is made of the blocks of a Dask collection, in the graph of its owner.

The blocks, and what is computed to have them, are the owner's. Sums of them are results of tasks in the owner's graph,
and the last few are fetched from the workers directly. Rows are written where they are computed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import dask
import dask.array
from dask.callbacks import Callback
from distributed import Client, Future
from distributed.utils_comm import gather_from_workers

from dpdist._util.progress import Steps
from dpdist._util.tree import levels
from dpdist.errors import DataError, DpdistError
from dpdist.runtime import work
from dpdist.runtime.asker import Asker
from dpdist.runtime.clients import current
from dpdist.runtime.cluster import Cluster
from dpdist.runtime.engine import Engine, translated
from dpdist.runtime.guarded import guarded
from dpdist.runtime.process import forbid_core_dumps
from dpdist.runtime.workers import require_kept

Result = TypeVar("Result")


def _added(asker: Asker, add: Callable[[Sequence[Any]], Any], *parts: Any) -> Any:
    return guarded(asker, add, parts)


def _fetched(client: Client, engine: Engine, sums: Sequence[Future]) -> list[Any]:
    """Return the values of sums, each fetched from a worker that holds it and from nowhere else.

    ``Client.gather(direct=True)`` asks the scheduler for what it cannot fetch itself, and says nothing.

    Raises
    ------
    ResumableError
        If a worker cannot be reached from here. What was lost with a worker is summed again, and waited for.
    """
    found: dict[Any, Any] = {}
    until = time.monotonic() + work.LOST_SECONDS
    while missing := [each for each in sums if each.key not in found]:
        for done in engine.completed(missing):
            if done.status != "finished":
                done.result()  # raises what the task raised
        engine.require_safe()  # refuses to fetch from one that has come since and can be listened to
        got, holders = client.sync(_from_workers, client, [each.key for each in missing])
        found |= got
        if len(got) < len(missing):
            if time.monotonic() > until:
                raise work.unreachable(", ".join(sorted(holders)) or "a worker")
            time.sleep(work.AGAIN_SECONDS)
    return [found[each.key] for each in sums]


async def _from_workers(client: Client, keys: list[Any]) -> tuple[dict[Any, Any], set[str]]:
    """Fetch what workers hold; return it by its keys, and the addresses that were asked."""
    who_has = await client.scheduler.who_has(keys=keys)
    found, *_ = await gather_from_workers(who_has, rpc=client.rpc)
    return found, {address for holders in who_has.values() for address in holders}


def _owners() -> Engine | None:
    """Return the cluster where the owner of a collection computes now; None: this process."""
    client = current()
    return None if client is None else Engine(client, trusted_worker=False, insecure=False, foreign=True)


def cut_alike(columns: Any, rows: Any) -> Any:
    """Return columns, (n, k) of Dask or NumPy, as a Dask array whose blocks have the rows that those of another have.

    Raises
    ------
    DataError
        If they have another number of rows, or it is not known which rows the blocks have.
    """
    cuts = rows.chunks[0]
    known = not any(math.isnan(each) for each in (*cuts, columns.shape[0]))
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
    """Return by what Dask knows what a collection computes, or what else is given.

    The tasks of its graph are looked at, too: a name of the owner's choice (``name="cohort"``) may stand for several.
    """
    graph = dict(collection.__dask_graph__() or {}) if dask.is_dask_collection(collection) else None
    return str(dask.base.tokenize(collection, graph))


@contextmanager
def computing(cluster: Cluster | None) -> Iterator[Engine | None]:
    """Give the cluster where a collection is computed: one that is named, or that of its owner; None: this process.

    Raises
    ------
    UsageError
        If the current client is asynchronous.
    """
    if cluster is None or not cluster.named:
        yield _owners()
        return
    with cluster.connected() as engine:
        yield engine


def each_block(
    engine: Engine | None,
    function: Callable[[int, Any], None],
    blocks: Sequence[tuple[int, Any]],
    progress: Steps | None,
) -> None:
    """Apply a function to blocks, where they are computed. It writes what it finds: nothing is a result of a task.

    Parameters
    ----------
    engine
        From :func:`computing`.
    function
        Takes the number of a block, and the block.
    blocks
        Numbers, and what Dask makes a block of, or anything else.
    progress
        Told how many are done, and how many there are.

    Raises
    ------
    DataError
        If the owner's own tasks fail; of their errors only the type is told.
    ResumableError
        If the cluster is lost.
    """
    forbid_core_dumps()
    tasks = [
        dask.delayed(guarded, pure=False, traverse=False)(Asker.here(), function, number, block)
        for number, block in blocks
    ]
    failed = ""
    try:
        if engine is None:
            with _Counted({task.key for task in tasks}, progress):
                dask.compute(*tasks)
        else:
            engine.compute(tasks, progress)
    except DpdistError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the owner's tasks raise; it may quote rows
        failed = type(error).__name__
    if failed:
        raise DataError(
            f"A task of the Dask graph failed with {failed}. Compute the collection without dpdist to see why, and "
            "mend it."
        )


class _Counted(Callback):  # type: ignore[misc]
    """Tells how many of some tasks the scheduler of this process has done."""

    def __init__(self, keys: set[Any], progress: Steps | None) -> None:
        self._keys, self._progress, self._done = keys, progress, 0

    def _posttask(self, key: Any, *_: Any) -> None:
        if self._progress is not None and key in self._keys:
            self._done += 1
            self._progress(self._done, len(self._keys))


def reduce_blocks(array: Any, function: Callable[[Any], Result], add: Callable[[Sequence[Result]], Result]) -> Result:
    """Apply a function to every block of rows of a Dask array, and add up the results, where its owner computes.

    That is the current client's cluster, where the last sums are fetched from the workers directly; or else the threads
    of this process, or whatever scheduler is configured. The blocks, and what is computed to have them, are the
    owner's; what is made of them obeys the same rules as everywhere.

    Parameters
    ----------
    array
        A Dask array of one chunk of columns.
    function, add
        Make a result of a block, and one of several results.

    Raises
    ------
    UsageError
        If the current client is asynchronous.
    RefusedError
        If the scheduler or a worker is on the network and not encrypted; before anything is submitted.
    DataError
        If a worker runs another version, or may spill sums to its disk.
    ResumableError
        If the cluster is lost.
    """
    forbid_core_dumps()
    client, here = current(), _owners()
    if client is not None and here is not None:
        here.require_visible(os.sep)  # any path will do: it is about the network and versions
        with translated():
            require_kept(client)  # here sums are results of tasks, which the owner's scheduler places
    blocks = [block for row in array.to_delayed() for block in row]
    sums = [dask.delayed(guarded, pure=False, traverse=False)(Asker.here(), function, block) for block in blocks]
    for level in levels(len(sums)):
        sums = [dask.delayed(_added, pure=False)(Asker.here(), add, *sums[part.start : part.stop]) for part in level]
    if client is None or here is None:
        return add(dask.compute(*sums))
    with translated():
        futures = client.compute(sums)
        return add(_fetched(client, here, futures))


def side_by_side(tables: Sequence[Any]) -> Any:
    """Return tables of the same rows as one array of Dask, (n, all their columns), with blocks of whole rows."""
    found = dask.array.concatenate([dask.array.asarray(table) for table in tables], axis=1)
    return found.rechunk({1: -1})
