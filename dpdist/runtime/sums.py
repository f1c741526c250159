"""How sums travel on a Dask cluster: units as pure tasks, a tree of additions, the last ones at the trusted node.

    dpdist-sum     a unit: reads its chunks, and returns their partial sum
    dpdist-add     adds eight neighbouring sums, on the worker that has most of them
    dpdist-noise   with a trusted worker: the last additions, the noise and the commit

Dask queues, places, repeats and shows them like any other tasks. Without a trusted worker this process is the trusted
node: it fetches the sums of additions as they end, and adds them.

**Exactly once** is not asked of Dask. A unit may be computed twice, and a lost one is computed again. The chunks that a
sum covers are checked at every addition and at the end (:mod:`dpdist.moment.total`), and the ledger commits one draw.
No task changes the result of another one, so a task that is repeated finds the same inputs.

**A sum is never on a disk.** Private values are in a :class:`~dpdist.runtime.tasks.Private`, which is serialised for
connections between processes only. So a worker that wants to spill one keeps it in memory; its repr, which Dask logs
then, shows nothing.

**The scheduler is trusted like a worker**: whoever can submit to it can read every row. Yet no message, key or log
holds a value of the rows: errors are translated in the task (:func:`dpdist.runtime.checks.guarded`).
"""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

import cloudpickle
from distributed import Client, Future, KilledWorker

from dpdist._util.ids import random_token
from dpdist._util.progress import Count, Progress
from dpdist._util.tree import fan_in, levels
from dpdist._version import __version__
from dpdist.errors import DataError, DpdistError, ResumableError
from dpdist.runtime.checks import Asker, Place, guarded, require_fit
from dpdist.runtime.local import Engine, Secret, Work, memory_here
from dpdist.runtime.tasks import Pass, Private, added, concluded, shared_by, unit_of
from dpdist.runtime.tls import on_this_machine, require_safe_cluster
from dpdist.storage.store import AnyStore, store_at

Result = TypeVar("Result")

WORKER_SECONDS = 600.0
"""How long the first worker may take: a cloud starts a machine for it, and a batch system a job."""
LOST_SECONDS = 60.0
"""How long a pass waits when no worker is left that can compute."""
_LOOK_SECONDS = 5.0
_AGAIN = "run the same command again: a release in a ledger goes on at no further cost."


class OnDask(Engine):
    """Computes on the workers of a cluster; made by :meth:`dpdist.runtime.cluster.Cluster.connected`."""

    def __init__(
        self, client: Client, *, trusted_worker: bool = False, insecure: bool = False, foreign: bool = False,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        super().__init__(progress)
        self._client, self._trusted_worker = client, trusted_worker
        self._insecure, self._foreign = insecure, foreign
        self._places: list[Place] = []
        """What every worker must see, also one that comes later."""
        self._kept: Future | None = None

    def _known(self) -> dict[str, Any]:
        """Return what the scheduler knows of each worker; refuse a cluster that others could listen to."""
        with translated():
            found = self._client.scheduler_info(n_workers=-1)
        if not self._insecure:  # each time, because a worker may have come since
            require_safe_cluster(found["address"], found["workers"], foreign=self._foreign)
        workers: dict[str, Any] = found["workers"]
        return workers

    @property
    def workers(self) -> list[str]:  # type: ignore[override]
        """Their addresses."""
        return sorted(self._known())

    @property
    def threads(self) -> int:  # type: ignore[override]
        """The most threads that a worker has."""
        return max((int(each["nthreads"]) for each in self._known().values()), default=1)

    @property
    def memory(self) -> int:  # type: ignore[override]
        """The least limit of a worker, or this process's part of its machine."""
        known = self._known()
        limits = [int(each["memory_limit"]) for each in known.values() if each["memory_limit"]]
        return min([*limits, memory_here() // (1 + sum(map(on_this_machine, known)))])

    @property
    def where(self) -> str:  # type: ignore[override]
        """The number of workers, and the scheduler."""
        count = len(self._known())
        return f"on {count} worker{'s' * (count != 1)} at {self._client.scheduler.address}"

    @property
    def _is_in_process(self) -> bool:
        return bool(self._client.scheduler.address.startswith("inproc:"))

    def await_worker(self) -> None:
        """Wait until there is a worker that can compute.

        A cluster that adapts to its work starts none for nothing, and closes one that is idle: the result of a task, a
        few bytes, is held as long as this connection.
        """
        known = self._known()
        with translated():
            self._kept = self._client.submit(os.getpid, pure=False, key=f"dpdist-wait-{random_token()}")
        if not known:
            address, minutes = self._client.scheduler.address, WORKER_SECONDS / 60
            count = Count(self._progress, f"Waiting for workers at {address}, {minutes:g} minutes at most", 1)
            try:
                self._client.wait_for_workers(1, timeout=WORKER_SECONDS)
            except TimeoutError:
                raise DataError(
                    f"The scheduler at {self._client.scheduler.address} has no workers after {WORKER_SECONDS:g} "
                    f"seconds. Start some with: dask worker {self._client.scheduler.address} --host 127.0.0.1; or let "
                    "its cluster start them, with scale() or adapt()."
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
        self._places = [each for each in self._places if each[0].exists(each[1])]
        if (store, key) not in self._places:
            self._places.append((store, key))
        with translated():
            require_fit(self._client, store, key)

    def begin(self, work: Work, told: Callable[[], None]) -> Generator[tuple[int, Any]]:
        """Submit the units and the additions, and fetch their results as they end."""
        units = _Units(len(work.units), told)
        return _ours(self._fetched(self._submitted(work, units), units))

    def _submitted(self, work: Work, units: _Units, most: int | None = None) -> list[Future]:
        """Submit a pass, and return what is to be fetched: results of units, or the last sums."""
        asker, token = Asker.here(), random_token()
        with translated(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)  # vectors that rows are multiplied by
            content = Secret(cloudpickle.dumps(Pass(work, asker, self._places)))
            shared = self._client.submit(shared_by, content, key=f"dpdist-table-{token}", pure=False)
            keys = [(f"dpdist-{work.step}-{token}", i) for i in range(len(work.units))]
            found = self._client.map(unit_of, list(work.units), key=keys, pure=False, asker=asker, shared=shared)
            units.watch(found)
            tree = [] if work.add is None else levels(len(found), work.nbytes, most)
            for number, level in enumerate(tree):
                found = [
                    self._client.submit(
                        added, asker, work.add, *found[part.start : part.stop],
                        key=(f"dpdist-add-{token}-{number}", i), pure=False, priority=10,
                    )
                    for i, part in enumerate(level)
                ]  # fmt: skip
        return list(found)

    def _fetched(self, futures: list[Future], units: _Units, *, trusted: bool = False) -> Generator[tuple[int, Any]]:
        """Yield results and their numbers as they end; each is forgotten by the workers then."""
        waiting = dict(enumerate(futures))
        del futures
        for number, future in waiting.items():
            future.add_done_callback(partial(_put, units.ready, number))
        try:
            while waiting:
                number = self._next(units, trusted=trusted)
                found = _result(waiting.pop(number))
                if isinstance(found, Private):  # of workers that are threads of this process it is their own
                    found = deepcopy(found.value) if self._is_in_process else found.value
                yield number, found
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
            able = [each for each in self._known().values() if _is_trusted(each) or not trusted]
            if any(each.get("status", "running") == "running" for each in able):
                last = time.monotonic()
            elif time.monotonic() - last > LOST_SECONDS:
                raise _gone(paused=bool(able), trusted=trusted)

    def trusted(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function at the trusted node; it must be idempotent.

        That node is this process; or a worker that was started with ``--resources trusted=1``. Where there are two of
        these, one is a standby.
        """
        if not self._trusted_worker:
            return function(*arguments)
        found: Result = self._at_trusted_worker(guarded, Asker.here(), function, *arguments)
        return found

    def _at_trusted_worker(
        self, function: Callable[..., Any], *arguments: Any, step: str = "trusted", units: _Units | None = None
    ) -> Any:
        with translated():
            future = self._client.submit(
                function, *arguments, key=f"dpdist-{step}-{random_token()}", pure=False, resources={"trusted": 1}
            )
        ((_, found),) = _ours(self._fetched([future], units or _Units(), trusted=True))
        return found

    def reduce(self, work: Work, function: Callable[..., Result], *arguments: Any, label: str | None) -> Result:
        """Sum the units of a pass, and call a function with the sum as its last argument, at the trusted node."""
        if not self._trusted_worker or not work.units:
            return super().reduce(work, function, *arguments, label=label)
        units = _Units(len(work.units), self._count(label, [work]))
        parts = self._submitted(work, units, fan_in(work.nbytes))
        found: Result = self._at_trusted_worker(
            concluded, Asker.here(), work.add, function, arguments, *parts, step="noise", units=units
        )
        return found

    def compute(self, tasks: Sequence[Any], told: Callable[[], None] | None = None) -> Generator[tuple[int, Any]]:
        """Compute what Dask makes values of, such as blocks of a collection, and yield them with their numbers."""
        with translated():
            futures = self._client.compute(list(tasks))
        units = _Units(0 if told is None else len(futures), told)
        if told is not None:
            units.watch(futures)
        yield from self._fetched(futures, units)


class _Units:
    """What ends of a pass, put into a queue by Dask's threads: results to fetch by number, and units, without one."""

    def __init__(self, left: int = 0, told: Callable[[], None] | None = None) -> None:
        self.ready: SimpleQueue[int | None] = SimpleQueue()
        self.watched: WeakSet[Future] = WeakSet()  # the results of those that have ended are not held
        self._left, self._told = left, told

    def watch(self, futures: Sequence[Future]) -> None:
        """Take note of units as they end."""
        for each in futures:
            self.watched.add(each)
            each.add_done_callback(partial(_put, self.ready, None))

    def one(self) -> None:
        """Tell of a unit, in the thread of whoever waits for the pass."""
        if self._left and self._told is not None:
            self._left -= 1
            self._told()

    def end(self) -> None:
        """Tell of the units of which nothing was heard before the pass was over."""
        while self._left:
            self.one()


def _ours(results: Generator[tuple[int, Any]]) -> Generator[tuple[int, Any]]:
    """Yield results of our own tasks: these raise our own errors, and another one is of the worker."""
    failed = ""
    try:
        yield from results
    except DpdistError:
        raise
    except Exception as error:  # noqa: BLE001 - such as what cannot be imported there
        failed = type(error).__name__
    if failed:
        raise ResumableError(
            f"A worker failed with {failed} before it could begin a task, or could not keep its result. See that it "
            f"has memory for the sums, and runs dpdist {__version__}; then {_AGAIN}"
        )


def _result(future: Future) -> Any:
    """Return the result of a future that has ended; raise what its task raised, as it is."""
    with translated():
        failed = future.exception() if future.status == "error" else None
        if failed is None or isinstance(failed, KilledWorker):
            return future.result()
    raise failed


def _put(ready: SimpleQueue[int | None], number: int | None, _: Future) -> None:
    ready.put(number)


def _is_trusted(worker: dict[str, Any]) -> bool:
    return "trusted" in worker["resources"]


def _gone(*, paused: bool, trusted: bool) -> ResumableError:
    if paused:
        return ResumableError(
            f"All workers have been paused for {LOST_SECONDS:g} seconds, as their memory is full. Give them more, or "
            f"start fewer per machine, and {_AGAIN}"
        )
    return ResumableError(
        f"{'The trusted worker has' if trusted else 'All workers have'} been gone for {LOST_SECONDS:g} seconds. Start "
        f"{'it' if trusted else 'some'}, and {_AGAIN}"
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
