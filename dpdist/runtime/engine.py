"""The scheduler, known to two modules: this one runs tasks, reduces, pins, gathers; ``connection`` connects to it.

It is generic: it takes pure functions and their arguments and knows nothing of rows or privacy. Arguments of tasks
are public (paths, bounds); private sums exist only as results of tasks, on the workers. A task that fails raises an
error that carries a code or a type name and never a value, because Dask copies exceptions into logs and dashboards.
"""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import CancelledError
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import dask
from distributed import Client, Future, KilledWorker, as_completed
from distributed.system import MEMORY_LIMIT
from distributed.utils_comm import gather_from_workers

from dpdist._util.progress import Count, Progress
from dpdist._util.tree import levels
from dpdist.errors import DataError, DpdistError, ResumableError
from dpdist.naming import naming
from dpdist.runtime.clients import current
from dpdist.runtime.process import forbid_core_dumps
from dpdist.runtime.tls import on_this_machine, require_safe_workers
from dpdist.runtime.workers import Asker, await_worker, require_fit, require_version
from dpdist.storage.store import AnyStore, store_at

Task = TypeVar("Task")
Result = TypeVar("Result")

LOST_SECONDS = 60
"""How long a pass waits for a worker when there is none left."""
_LOOK_SECONDS = 5
_AGAIN_SECONDS = 0.5
"""Between two attempts to fetch a sum whose worker has just gone."""


def memory_here() -> int:
    """Bytes of memory of this machine, or of the part of it that this process may use."""
    return int(MEMORY_LIMIT)


def _guarded(asker: Asker, function: Callable[..., Result], *arguments: Any) -> Result:
    """Run a task so that an error carries no value: our own errors pass, of others only type and place remain.

    They name things as a face does, that of whoever submitted the task. Whoever started this worker, and however often
    it was restarted, it leaves no core dump with sums in it; and whenever it came, it is of the version that asks.
    """
    forbid_core_dumps()
    try:
        with naming(asker.face):
            require_version(asker.version)
            return function(*arguments)
    except DpdistError as error:
        failure = type(error)(*error.args)
    except Exception as error:  # noqa: BLE001 - whatever it is, its text may quote data
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        failure = DpdistError(
            f"A task failed with {type(error).__name__} at {where}: a defect in dpdist or its worker."
        )
    raise failure  # outside the handler: the original, and what it quotes, is not chained


def _by_value(task: bytes, common: bytes) -> Any:
    function, shared = cloudpickle.loads(common)
    return function(cloudpickle.loads(task), shared)


def _added(asker: Asker, add: Callable[[Sequence[Any]], Any], *parts: Any) -> Any:
    return _guarded(asker, add, parts)


class Engine:
    """A connection to a cluster; made by :func:`dpdist.runtime.connection.connected`."""

    def __init__(
        self,
        client: Client,
        *,
        trusted_worker: bool,
        insecure: bool,
        foreign: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._client = client
        self._progress = progress
        self._trusted_worker = trusted_worker
        self._insecure = insecure
        self._kept: Future | None = None  # a cluster that adapts has a worker as long as this is held
        self._foreign = foreign  # whether the user's own client connected to it
        self._placed: AbstractSet[str] = frozenset()  # the workers that the latest sums were placed on

    @property
    def workers(self) -> list[str]:
        """Addresses of the workers, sorted."""
        return sorted(self._known())

    def _known(self) -> dict[str, Any]:
        """Return what the scheduler knows of each worker.

        Raises
        ------
        RefusedError
            If one, or the scheduler, could be listened to on the network.
        """
        with _translated():
            found: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        if not self._insecure:  # each time, because a worker may have come since
            require_safe_workers(self._client.scheduler.address, found, foreign=self._foreign)
        return found

    def await_worker(self) -> None:
        """Wait until there is a worker, and keep a cluster that adapts to its work from closing the last one.

        Raises
        ------
        RefusedError
            If the scheduler, or a worker that came, could be listened to, unless told to be insecure.
        DataError
            If none comes in time.
        """
        self.require_safe()
        with _translated():
            self._kept = await_worker(self._client, self._progress)
        self.require_safe()

    def require_trusted_worker(self) -> None:
        """Check that a worker offers the resource ``trusted``.

        Raises
        ------
        DataError
            If none does.
        """
        if not any(map(_is_trusted, self._known().values())):
            raise DataError(
                "No worker offers the resource `trusted`. Start the trusted one with: dask worker ... "
                '--resources "trusted=1"'
            )

    def require_safe(self) -> None:
        """Check that nobody on the network can listen to the scheduler or a worker.

        Raises
        ------
        RefusedError
            If he could, unless told to be insecure.
        """
        self._known()

    @property
    def memory(self) -> int:
        """Bytes that a task may use: the least of a worker's threads, or this process's part of its machine."""
        known = self._known()
        limits = [each["memory_limit"] // max(1, each["nthreads"]) for each in known.values() if each["memory_limit"]]
        return min([*map(int, limits), memory_here() // (1 + sum(map(on_this_machine, known)))])

    def require_visible(self, place: AnyStore, key: str = "") -> None:
        """Check that nobody listens to the cluster, and that every worker runs this version and sees a place.

        Its sums stay in its memory, too.

        Parameters
        ----------
        place, key
            A store, and an object in it; "" is the store itself.

        Raises
        ------
        RefusedError
            If the scheduler or a worker is on the network and not encrypted, unless told to be insecure.
        DataError
            Naming the worker that does not.
        """
        self.require_safe()
        with _translated():
            require_fit(self._client, store_at(place), key)

    def map(self, function: Callable[[Task], None], tasks: Sequence[Task], label: str) -> None:
        """Run a task per argument on whatever worker is free; results are dropped."""
        with _translated():
            futures = [self._submit(function, task) for task in tasks]
            self._watch(futures, Count(self._progress, label, len(futures)))

    def results(
        self, function: Callable[[Task, Any], Result], tasks: Sequence[Task], shared: Any, label: str
    ) -> Iterator[tuple[int, Result]]:
        """Run a task per argument and yield its index and result as it ends: for results this process may see.

        What all tasks share is their second argument and travels once, as the function does. What is of a script, or of
        a module registered with cloudpickle, travels by value: a worker needs dpdist and no more.
        """
        count = Count(self._progress, label, len(tasks))
        with _translated():
            (common,) = self._client.scatter([cloudpickle.dumps((function, shared))], broadcast=True, hash=False)
            found = {self._submit(_by_value, cloudpickle.dumps(task), common): i for i, task in enumerate(tasks)}
            for future in self._completed(list(found)):
                result: Result = future.result()  # raises what the task raised
                count.one()
                yield found.pop(future), result

    def reduce(
        self,
        function: Callable[[Task], Result],
        add: Callable[[Sequence[Result]], Result],
        groups: Sequence[Sequence[Task]],
        label: str | None,
    ) -> list[Future]:
        """Run a task per argument and add up the results in a fixed tree, first those of a group, on one worker.

        A group's tasks go to one worker if it is there, elsewhere if it dies. At most four sums remain,
        on the workers; they never pass through here or through the scheduler.
        """
        (sums,) = self.reduce_each(function, add, [groups], label, under_way=1)
        return sums

    def reduce_each(
        self,
        function: Callable[[Task], Result],
        add: Callable[[Sequence[Result]], Result],
        passes: Sequence[Sequence[Sequence[Task]]],
        label: str | None,
        *,
        under_way: int,
    ) -> Iterator[list[Future]]:
        """Reduce one set of groups after the other, as :meth:`reduce` does, and yield what remains of each in order.

        So many are submitted at once, the one that is waited for included; a worker holds the results of no others.
        Without a label no progress is told.
        """
        addresses = self.workers
        if not addresses:  # they were there when this process connected
            raise ResumableError(
                "All workers of the cluster are gone. Start some and run the same command again: it resumes at no "
                "further cost."
            )
        self._placed = frozenset(addresses)
        first = 0
        ahead: deque[tuple[list[Future], list[Future]]] = deque()
        coming = iter(passes)
        total = sum(len(group) for groups in passes for group in groups)
        count = Count(self._progress if label else None, label or "", total)
        while True:
            for groups in islice(coming, under_way - len(ahead)):
                places = [addresses[(first + i) % len(addresses)] for i in range(len(groups))]
                with _translated():
                    ahead.append(self._reduction(function, add, groups, places))
                first += len(groups)
            if not ahead:
                return
            leaves, sums = ahead.popleft()
            with _translated():
                self._watch(leaves, count, self._placed)
            del leaves
            yield sums
            del sums

    def _reduction(
        self,
        function: Callable[[Task], Result],
        add: Callable[[Sequence[Result]], Result],
        groups: Sequence[Sequence[Task]],
        places: Sequence[str],
    ) -> tuple[list[Future], list[Future]]:
        """Submit one reduction; return the futures of its tasks and of the sums that remain."""
        leaves: list[Future] = []
        sums: list[Future] = []
        for group, address in zip(groups, places, strict=True):
            place = {"workers": [address], "allow_other_workers": True}
            parts = [self._submit(function, task, **place) for task in group]
            leaves += parts
            sums.append(self._sum(add, parts, **place))
        for level in levels(len(sums)):
            sums = [self._sum(add, sums[part.start : part.stop]) for part in level]
        return leaves, sums

    def _submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
        return self._client.submit(_guarded, Asker.here(), function, *arguments, pure=False, **options)

    def _sum(self, add: Callable[[Sequence[Any]], Any], parts: list[Future], **options: Any) -> Future:
        if len(parts) == 1:
            return parts[0]
        return self._client.submit(_added, Asker.here(), add, *parts, pure=False, **options)

    def _watch(self, futures: list[Future], count: Count, placed: AbstractSet[str] = frozenset()) -> None:
        for future in self._completed(futures, placed):
            if future.status != "finished":
                future.result()  # raises what the task raised
            count.one()

    def _completed(
        self, futures: Sequence[Future], placed: AbstractSet[str] = frozenset(), *, trusted: bool = False
    ) -> Iterator[Future]:
        """Yield futures as they end; raise if they cannot end any more.

        A scheduler says nothing when all workers are gone, or the trusted one. It says nothing either when all workers
        that had the work are gone and others joined later. Dask moves a task when its worker dies; but if for a moment
        there was no worker at all, the task waits for the old one for ever.
        """
        ended, idle_since = as_completed(futures, loop=self._client.loop), None
        while not ended.is_empty():
            with ended.thread_condition:
                found = ended.thread_condition.wait_for(ended.has_ready, timeout=_LOOK_SECONDS)
            if not found:
                known = self._known()
                there = any(_is_trusted(worker) or not trusted for worker in known.values())
                alive = there and not (placed and placed.isdisjoint(known))
                idle_since = None if alive else idle_since or time.monotonic()
                if idle_since is not None and time.monotonic() - idle_since > LOST_SECONDS:
                    lost = trusted and not there
                    who = "The trusted worker has" if lost else "All workers that began the work have"
                    raise ResumableError(
                        f"{who} been gone for {LOST_SECONDS} seconds. Start {'it' if lost else 'workers'} and run the "
                        "same command again: it resumes at no further cost."
                    )
                continue
            idle_since = None
            yield from ended.next_batch(block=False)

    def trusted(self, function: Callable[..., Result], *arguments: Any, sums: Sequence[Future] = ()) -> Result:
        """Run a function at the trusted node, with the values of ``sums`` as its last arguments.

        That node is this process, which fetches the sums from the workers directly; or, with ``--trusted worker``, the
        one worker started with ``--resources trusted=1``, which fetches them itself. Dask may run it twice: it
        must be idempotent.
        """
        if not self._trusted_worker:
            with _translated():
                values = self._fetched(sums)
            return function(*arguments, *values)  # a scheduler that is lost by now is not needed any more
        with _translated():
            future = self._submit(function, *arguments, *sums, resources={"trusted": 1})
            (done,) = self._completed([future], self._placed if sums else set(), trusted=True)
            result: Result = done.result()
            return result

    def _fetched(self, sums: Sequence[Future]) -> list[Any]:
        """Return the values of sums, each fetched from a worker that holds it and from nowhere else.

        ``Client.gather(direct=True)`` asks the scheduler for what it cannot fetch itself, and says nothing.

        Raises
        ------
        ResumableError
            If a worker cannot be reached from here. What was lost with a worker is summed again, and waited for.
        """
        found: dict[Any, Any] = {}
        until = time.monotonic() + LOST_SECONDS
        while missing := [each for each in sums if each.key not in found]:
            for done in self._completed(missing, self._placed):
                if done.status != "finished":
                    done.result()  # raises what the task raised
            self._known()  # refuses to fetch from one that has come since and can be listened to
            got, holders = self._client.sync(_from_workers, self._client, [each.key for each in missing])
            found |= got
            if len(got) < len(missing):
                if time.monotonic() > until:
                    raise ResumableError(_UNREACHABLE.format(where=", ".join(sorted(holders)) or "a worker"))
                time.sleep(_AGAIN_SECONDS)
        return [found[each.key] for each in sums]


_UNREACHABLE = (
    "This process cannot fetch sums from {where}. They are never sent by way of the scheduler: let this machine "
    "connect to the workers' ports, and run the same command again: it resumes at no further cost."
)


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
        here.require_visible(os.sep)  # any path will do: it is about the network, versions and spilling
    blocks = [block for row in array.to_delayed() for block in row]
    sums = [dask.delayed(_guarded, pure=False, traverse=False)(Asker.here(), function, block) for block in blocks]
    for level in levels(len(sums)):
        sums = [dask.delayed(_added, pure=False)(Asker.here(), add, *sums[part.start : part.stop]) for part in level]
    if client is None:
        return add(dask.compute(*sums))
    with _translated():
        futures = client.compute(sums)
    return here.trusted(lambda *values: add(values), sums=futures)


def _is_trusted(worker: dict[str, Any]) -> bool:
    return "trusted" in worker["resources"]


@contextmanager
def _translated() -> Iterator[None]:
    """Turn the scheduler's failures into errors that say what to do."""
    try:
        yield
    except KilledWorker:
        raise ResumableError(
            "Workers died again and again while they summed the rows; most likely they ran out of memory. Start fewer "
            "workers per machine, or give them more memory. Then run the same command again: it resumes at no further "
            "cost."
        ) from None
    except (CancelledError, asyncio.CancelledError, OSError):  # a comm that is closed, refused or too slow
        raise ResumableError(
            "The connection to the cluster was lost. Run the same command again when it is back: it resumes at no "
            "further cost."
        ) from None
