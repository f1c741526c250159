"""How sums travel on a Dask cluster: units as pure tasks, a tree of additions, the last ones at the trusted node.

    dpdist-sum     a unit: reads its chunks, and returns their partial sum
    dpdist-add     adds eight neighbouring sums, on the worker that has most of them
    dpdist-noise   with a trusted worker: the last additions, the noise and the commit

Dask queues, places, repeats and shows them like any other tasks. Without a trusted worker this process is the trusted
node: it fetches the sums of additions as they end, and adds them.

**Exactly once** is not asked of Dask. A unit may be computed twice, and a lost one is computed again. The chunks that a
sum covers are checked at every addition and at the end (:mod:`dpdist.moment.total`), and the ledger commits one draw.
No task changes the result of another one, so a task that is repeated finds the same inputs.

**A sum is never on a disk.** Private values are in a :class:`Private`, which is serialised for connections between
processes only. So a worker that wants to spill one keeps it in memory; its repr, which Dask logs then, shows nothing.

**The scheduler is trusted like a worker**: whoever can submit to it can read every row. Yet no message, key or log
holds a value of the rows: errors are translated in the task (:func:`dpdist.runtime.checks.guarded`).
"""

from __future__ import annotations

import asyncio
import os
import pickle
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial, reduce
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

import cloudpickle
from distributed import Client, Future, KilledWorker
from distributed.protocol import dask_deserialize, dask_serialize

from dpdist._util.parallel import fan_in, levels
from dpdist._util.progress import Count, Progress
from dpdist._util.text import random_token
from dpdist._version import __version__
from dpdist.errors import DataError, DpdistError, ResumableError
from dpdist.runtime.checks import ClientInfo, Place, guarded, require_fit, require_places
from dpdist.runtime.local import Engine, Resources, Secret, Work, memory_here
from dpdist.runtime.tls import on_this_machine, require_safe_cluster
from dpdist.storage.store import AnyStore, store_at

Result = TypeVar("Result")

WORKER_SECONDS = 600.0  # how long the first worker may take: a cloud starts a machine for it, and a batch system a job
LOST_SECONDS = 60.0  # how long a pass waits when no worker is left that can compute
_LOOK_SECONDS = 5.0
_AGAIN = "run the same command again: a release in a ledger goes on at no further cost."


# --- what the workers run ---------------------------------------------------------------------------------------------


class Private:
    """A result of a task that is sent between processes, and that no worker writes to a disk."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + int(self.value.__sizeof__())

    def __reduce__(self) -> str:
        """Refuse: Dask pickles what it writes to a disk."""
        raise TypeError("private values are sent, and not stored")


@dask_serialize.register(Private)  # type: ignore[untyped-decorator]
def _sent(private: Private, context: Any = None) -> tuple[dict[str, Any], list[Any]]:
    if context is None:  # only a connection gives one
        raise TypeError("private values are sent, and not stored")
    buffers: list[pickle.PickleBuffer] = []
    # functions of a script are in what units share
    content = cloudpickle.dumps(private.value, protocol=5, buffer_callback=buffers.append)
    return {}, [content, *(buffer.raw() for buffer in buffers)]


@dask_deserialize.register(Private)  # type: ignore[untyped-decorator]
def _received(_: dict[str, Any], frames: list[Any]) -> Private:
    return Private(pickle.loads(frames[0], buffers=frames[1:]))  # noqa: S301 - of a worker, which runs our code anyway


@dataclass(frozen=True)
class Pass:
    """What all units of a pass share, on a worker."""

    work: Work
    client_info: ClientInfo
    places: Sequence[Place]

    def unit(self, unit: Any) -> Any:
        """Compute a unit; a result that is added is private."""
        found = guarded(self.client_info, self._computed, unit)
        return found if self.work.add is None else Private(found)

    def _computed(self, unit: Any) -> Any:
        require_places(self.places)
        return self.work.computed(unit)


def shared_by(content: Secret) -> Private:
    """Hold what all units share: Dask makes the result of a task again when all workers that had it are lost."""
    return Private(cloudpickle.loads(content.content))


def unit_of(unit: Any, shared: Private) -> Any:
    """Compute a unit."""
    return shared.value.unit(unit)


def added(client_info: ClientInfo, add: Callable[[Any, Any], Any], *parts: Private) -> Private:
    """Add sums, which stay as they are."""
    return Private(guarded(client_info, total_of, add, parts))


def total_of(add: Callable[[Any, Any], Any], parts: Sequence[Private]) -> Any:
    """Return the sum of parts, which stay as they are."""
    first, *others = (part.value for part in parts)
    return reduce(add, others, deepcopy(first))  # an addition changes the first, which is another task's result


def concluded(
    client_info: ClientInfo,
    add: Callable[[Any, Any], Any],
    function: Callable[..., Result],
    arguments: Any,
    *parts: Private,
) -> Result:
    """Add the last sums, and call a function with the total as its last argument: at the trusted worker."""
    return guarded(client_info, lambda: function(*arguments, total_of(add, parts)))


def tree(sums: list[Any], nbytes: int, most: int | None, add: Callable[..., Any]) -> list[Any]:
    """Add sums, level by level: ``add(name, i, parts)`` makes an addition. Return the last ones."""
    for number, level in enumerate(levels(len(sums), nbytes, most)):
        sums = [add(f"dpdist-add-{number}", i, sums[part.start : part.stop]) for i, part in enumerate(level)]
    return sums


# --- what this process does -------------------------------------------------------------------------------------------


class OnDask(Engine):
    """Computes on the workers of a cluster; made by :meth:`dpdist.runtime.cluster.Cluster.connected`."""

    def __init__(
        self, client: Client, *, trusted_worker: bool = False, insecure: bool = False, foreign: bool = False,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        super().__init__(progress)
        self._client, self._trusted_worker = client, trusted_worker
        self._insecure, self._foreign = insecure, foreign
        self._places: list[Place] = []  # what every worker must see, also one that comes later
        self._kept: Future | None = None

    def _known(self) -> dict[str, Any]:
        """Return what the scheduler knows of each worker; refuse a cluster that others could listen to."""
        with translated():
            found = self._client.scheduler_info(n_workers=-1)
        if not self._insecure:  # each time, because a worker may have come since
            require_safe_cluster(found["address"], found["workers"], foreign=self._foreign)
        workers: dict[str, Any] = found["workers"]
        return workers

    def resources(self) -> Resources:
        """Return the workers; memory is the least limit of one, or this process's part of its machine."""
        known = self._known()
        limits = [int(worker["memory_limit"]) for worker in known.values() if worker["memory_limit"]]
        memory = min([*limits, memory_here() // (1 + sum(map(on_this_machine, known)))])
        return Resources(len(known), max((int(worker["nthreads"]) for worker in known.values()), default=1), memory)

    @property
    def where(self) -> str:
        """The number of workers, and the scheduler."""
        count = len(self._known())
        return f"on {count} worker{'s' * (count != 1)} at {self._client.scheduler.address}"

    def await_worker(self) -> None:
        """Wait until there is a worker that can compute.

        A cluster that adapts starts none for nothing and closes an idle one: a result of a few bytes is held meanwhile.
        """
        known, address = self._known(), self._client.scheduler.address
        with translated():
            self._kept = self._client.submit(os.getpid, pure=False, key=f"dpdist-wait-{random_token()}")
        if not known:
            minutes = WORKER_SECONDS / 60
            count = Count(self._progress, f"Waiting for workers at {address}, {minutes:g} minutes at most", 1)
            try:
                self._client.wait_for_workers(1, timeout=WORKER_SECONDS)
            except TimeoutError:
                raise DataError(
                    f"The scheduler at {address} has no workers after {WORKER_SECONDS:g} seconds. Start some with: "
                    f"dask worker {address} --host 127.0.0.1; or let its cluster start them, with scale() or adapt()."
                ) from None
            count.one()
            known = self._known()
        if self._trusted_worker and not any(map(_is_trusted, known.values())):
            raise DataError(
                "No worker offers the resource `trusted`. Start the trusted one with: dask worker ... "
                '--resources "trusted=1"'
            )

    def require_visible(self, place: AnyStore, key: str = "") -> None:
        """Check that nobody listens to the cluster, and that every worker runs this version and sees a place."""
        self._known()
        store = store_at(place)
        # what is built is found at another place when it is done: the next work of this connection reads it there
        self._places = [seen for seen in self._places if seen[0].exists(seen[1])]
        if (store, key) not in self._places:
            self._places.append((store, key))
        with translated():
            require_fit(self._client, store, key)

    def begin(self, work: Work, told: Callable[[], None]) -> Generator[tuple[int, Any]]:
        """Submit the units and the additions, and fetch their results as they end."""
        return _ours(self._fetched(*self._submitted(work, told)))

    def _submitted(self, work: Work, told: Callable[[], None], most: int | None = None) -> tuple[list[Future], _Units]:
        """Submit a pass, and return what is to be fetched, results of units or the last sums, and its units."""
        client_info, token = ClientInfo.here(), random_token()

        def add(name: str, number: int, parts: list[Future]) -> Future:
            key = f"{name}-{token}", number
            return self._client.submit(added, client_info, work.add, *parts, key=key, pure=False, priority=10)

        with translated(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)  # vectors that rows are multiplied by
            content = Secret(cloudpickle.dumps(Pass(work, client_info, self._places)))
            shared = self._client.submit(shared_by, content, key=f"dpdist-table-{token}", pure=False)
            keys = [(f"dpdist-{work.step}-{token}", i) for i in range(len(work.units))]
            found = self._client.map(unit_of, list(work.units), key=keys, pure=False, shared=shared)
            units = _Units(found, told)
            return (found if work.add is None else tree(found, work.nbytes, most, add)), units

    def _fetched(self, futures: list[Future], units: _Units, *, trusted: bool = False) -> Generator[tuple[int, Any]]:
        """Yield results and their numbers as they end; each is forgotten by the workers then."""
        waiting = dict(enumerate(futures))
        del futures
        for number, future in waiting.items():
            future.add_done_callback(partial(_put, units.ready, number))
        try:
            while waiting:
                number = self._next(units, trusted=trusted)
                found = _result(waiting.pop(number))  # no task takes what is fetched, so it may be changed
                yield number, found.value if isinstance(found, Private) else found
                del found
        finally:
            if waiting and self._client.status == "running":  # nobody waits any more, and a traceback may keep them
                self._client.cancel([*waiting.values(), *units.watched])
        units.end()

    def _next(self, units: _Units, *, trusted: bool) -> int:
        """Wait until something has ended; raise when nothing can end any more: of that the scheduler says nothing."""
        last = time.monotonic()
        while True:
            with suppress(Empty):
                number = units.ready.get(timeout=_LOOK_SECONDS)
                if number is not None:
                    return number
                units.one()
                last = time.monotonic()
                continue
            able = [worker for worker in self._known().values() if _is_trusted(worker) or not trusted]
            if any(worker.get("status", "running") == "running" for worker in able):
                last = time.monotonic()
            elif time.monotonic() - last > LOST_SECONDS:
                who = "The trusted worker has" if trusted else "All workers have"
                cure = "Memory is full: give it more, or start fewer per machine" if able else "Start some"
                raise ResumableError(
                    f"{who} been {'paused' if able else 'gone'} for {LOST_SECONDS:g} seconds. {cure}, and {_AGAIN}"
                )

    def trusted(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run an idempotent function at the trusted node: this process, or a worker with ``--resources trusted=1``.

        Where there are two of these, one is a standby.
        """
        if not self._trusted_worker:
            return function(*arguments)
        found: Result = self._at_trusted_worker("trusted", _Units(), guarded, ClientInfo.here(), function, *arguments)
        return found

    def _at_trusted_worker(self, step: str, units: _Units, function: Callable[..., Any], *arguments: Any) -> Any:
        key = f"dpdist-{step}-{random_token()}"
        with translated():
            future = self._client.submit(function, *arguments, key=key, pure=False, resources={"trusted": 1})
        ((_, found),) = _ours(self._fetched([future], units, trusted=True))
        return found

    def reduce(self, work: Work, function: Callable[..., Result], *arguments: Any, label: str | None) -> Result:
        """Sum the units of a pass, and call a function with the sum as its last argument, at the trusted node."""
        if not self._trusted_worker or not work.units:
            return super().reduce(work, function, *arguments, label=label)
        parts, units = self._submitted(work, self._count(label, [work]), fan_in(work.nbytes))
        last = concluded, ClientInfo.here(), work.add, function, arguments
        found: Result = self._at_trusted_worker("noise", units, *last, *parts)
        return found

    def compute(self, tasks: Sequence[Any], told: Callable[[], None] = lambda: None) -> Generator[tuple[int, Any]]:
        """Compute what Dask makes values of, such as blocks of a collection, and yield them with their numbers."""
        with translated():
            futures = self._client.compute(list(tasks))
        yield from self._fetched(futures, _Units(futures, told))


class _Units:
    """What ends of a pass, put into a queue by Dask's threads: results to fetch by number, and units, without one."""

    def __init__(self, futures: Sequence[Future] = (), told: Callable[[], None] = lambda: None) -> None:
        self.ready: SimpleQueue[int | None] = SimpleQueue()
        self.watched: WeakSet[Future] = WeakSet(futures)  # the results of those that have ended are not held
        self._left, self._told = len(futures), told
        for future in futures:
            future.add_done_callback(partial(_put, self.ready, None))

    def one(self) -> None:
        """Tell of a unit, in the thread of whoever waits for the pass."""
        if self._left:
            self._left -= 1
            self._told()

    def end(self) -> None:
        """Tell of the units of which nothing was heard before the pass was over."""
        while self._left:
            self.one()


def _put(ready: SimpleQueue[int | None], number: int | None, _: Future) -> None:
    ready.put(number)


def _result(future: Future) -> Any:
    """Return the result of a future that has ended; raise what its task raised, as it is."""
    with translated():
        failed = future.exception() if future.status == "error" else None
        if failed is None or isinstance(failed, KilledWorker):
            return future.result()
    raise failed


def _is_trusted(worker: dict[str, Any]) -> bool:
    return "trusted" in worker["resources"]


def unquoted(results: Iterator[Any], error: Callable[[str], DpdistError]) -> Generator[Any]:
    """Yield results; of an error that is not ours, whose text may quote rows, raise what is made of its type."""
    failed = ""
    try:
        yield from results
    except DpdistError:
        raise
    except Exception as other:  # noqa: BLE001 - such as what cannot be imported there
        failed = type(other).__name__
    if failed:  # outside the handler: the original, and what it quotes, is not chained
        raise error(failed)


def _ours(results: Generator[tuple[int, Any]]) -> Generator[tuple[int, Any]]:
    """Yield results of our own tasks: these raise our own errors, and another one is of the worker."""
    return unquoted(
        results,
        lambda failed: ResumableError(
            f"A worker failed with {failed} before it could begin a task, or could not keep its result. See that it "
            f"has memory for the sums, and runs dpdist {__version__}; then {_AGAIN}"
        ),
    )


@contextmanager
def translated() -> Iterator[None]:
    """Turn the scheduler's failures into errors that say what to do."""
    try:
        yield
    except KilledWorker:
        raise ResumableError(
            "Workers died again and again; most likely they ran out of memory. Start fewer workers per machine, give "
            f"them more memory, or make the chunks of a Dask collection smaller, and {_AGAIN}"
        ) from None
    except (CancelledError, asyncio.CancelledError, OSError):  # a connection that is closed, refused or too slow
        raise ResumableError(f"The connection to the cluster was lost. When it is back, {_AGAIN}") from None
