"""Sums over the blocks of a Dask array, in the graph of its owner.

The blocks, and what is computed to have them, are the owner's, so the sums are results of tasks in the owner's graph.
The last few are fetched from the workers directly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import dask
from distributed import Client, Future
from distributed.utils_comm import gather_from_workers

from dpdist._util.tree import levels
from dpdist.runtime import work
from dpdist.runtime.asker import Asker
from dpdist.runtime.clients import current
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
    client = current()
    if client is not None:
        here = Engine(client, trusted_worker=False, insecure=False, foreign=True)
        here.require_visible(os.sep)  # any path will do: it is about the network and versions
        with translated():
            require_kept(client)  # here sums are results of tasks, which the owner's scheduler places
    blocks = [block for row in array.to_delayed() for block in row]
    sums = [dask.delayed(guarded, pure=False, traverse=False)(Asker.here(), function, block) for block in blocks]
    for level in levels(len(sums)):
        sums = [dask.delayed(_added, pure=False)(Asker.here(), add, *sums[part.start : part.stop]) for part in level]
    if client is None:
        return add(dask.compute(*sums))
    with translated():
        futures = client.compute(sums)
        return add(_fetched(client, here, futures))
