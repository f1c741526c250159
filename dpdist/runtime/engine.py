"""The scheduler, known to few modules: this one asks it for what the steps of dpdist need.

It is generic: it takes pure functions and their arguments and knows nothing of rows or privacy. Arguments of tasks
are public (units, places); private sums exist only as running sums of the workers (:mod:`dpdist.runtime.running_sums`).
A task that fails raises an error that carries a code or a type name and never a value, because Dask copies exceptions
into logs and dashboards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import cloudpickle
from distributed import Client, Future, KilledWorker, as_completed

from dpdist._util.ids import random_token
from dpdist._util.progress import Count, Progress, Steps, steps
from dpdist.errors import DataError, ResumableError
from dpdist.runtime import work
from dpdist.runtime.asker import Asker
from dpdist.runtime.bank import finished
from dpdist.runtime.conductor import Conductor, total_of
from dpdist.runtime.guarded import guarded
from dpdist.runtime.passes import Pass
from dpdist.runtime.process import memory_here
from dpdist.runtime.tls import on_this_machine, require_safe_listeners, require_safe_workers
from dpdist.runtime.work import Work
from dpdist.runtime.workers import await_worker, require_fit
from dpdist.storage.store import AnyStore, Store, store_at

Task = TypeVar("Task")
Result = TypeVar("Result")

_LOOK_SECONDS = 5


def _by_value(task: bytes, common: bytes) -> Any:
    function, shared = cloudpickle.loads(common)
    return function(cloudpickle.loads(task), shared)


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
        self._places: list[tuple[Store, str]] = []
        """What workers were asked whether they see: those that come later are asked, too."""

    @property
    def workers(self) -> list[str]:
        """Addresses of the workers, sorted."""
        return sorted(self.known())

    def known(self) -> dict[str, Any]:
        """Return what the scheduler knows of each worker.

        Raises
        ------
        RefusedError
            If one, or the scheduler, could be listened to on the network.
        """
        with translated():
            found: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        self._check(found)
        return found

    def _check(self, found: dict[str, Any]) -> None:
        if not self._insecure:  # each time, because a worker may have come since
            require_safe_workers(self._client.scheduler.address, found, foreign=self._foreign)

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
        with translated():
            self._kept = await_worker(self._client, self._progress)
        self.require_safe()

    def require_trusted_worker(self) -> None:
        """Check that a worker offers the resource ``trusted``.

        Raises
        ------
        DataError
            If none does.
        """
        if not any(map(_is_trusted, self.known().values())):
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
        self.known()

    @property
    def threads(self) -> int:
        """Units that a worker computes at the same time: the most threads that one has."""
        return max((int(worker["nthreads"]) for worker in self.known().values()), default=1)

    @property
    def memory(self) -> int:
        """Bytes that every process may use: the least limit of a worker, or this process's part of its machine."""
        known = self.known()
        limits = [int(each["memory_limit"]) for each in known.values() if each["memory_limit"]]
        return min([*limits, memory_here() // (1 + sum(map(on_this_machine, known)))])

    def require_visible(self, place: AnyStore, key: str = "") -> None:
        """Check that nobody listens to the cluster, and that every worker runs this version and sees a place.

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
        store = store_at(place)
        # what is built is found at another place when it is done: the next work of this connection reads it there
        self._places = [(other, name) for other, name in self._places if other.exists(name)]
        if (store, key) not in self._places:
            self._places.append((store, key))
        with translated():
            listeners = require_fit(self._client, store, key)
        if not self._insecure:
            require_safe_listeners(listeners, foreign=self._foreign)

    def map(self, work: Work, label: str) -> None:
        """Compute every unit, at least once, on whatever worker is free; results are dropped."""
        for _ in self._passes([work], label, under_way=1):
            pass

    def compute(self, tasks: Sequence[Any], progress: Steps | None) -> None:
        """Compute tasks of somebody else's graph, and drop their results; what one raises is raised as it is."""
        failed, done = None, 0
        with translated():
            for future in self.completed(self._client.compute(list(tasks))):
                failed, done = future.exception(), done + 1
                if failed is not None:
                    break
                if progress is not None:
                    progress(done, len(tasks))
        if isinstance(failed, KilledWorker | CancelledError):
            raise ResumableError(work.DIED) from None
        if failed is not None:
            raise failed  # its OSError is none of the cluster

    def results(
        self, function: Callable[[Task, Any], Result], tasks: Sequence[Task], shared: Any, label: str
    ) -> Iterator[tuple[int, Result]]:
        """Run a task per argument and yield its index and result as it ends: for results this process may see.

        What all tasks share is their second argument and travels once, as the function does. What is of a script, or of
        a module registered with cloudpickle, travels by value: a worker needs dpdist and no more.
        """
        count = Count(self._progress, label, len(tasks))
        with translated():
            (common,) = self._client.scatter([cloudpickle.dumps((function, shared))], broadcast=True, hash=False)
            found = {self._submit(_by_value, cloudpickle.dumps(task), common): i for i, task in enumerate(tasks)}
            for future in self.completed(list(found)):
                result: Result = future.result()  # raises what the task raised
                count.one()
                yield found.pop(future), result

    def reduce(self, work: Work, function: Callable[..., Result], *arguments: Any, label: str | None) -> Result:
        """Sum the units of a pass, and call a function with the sum as its last argument, at the trusted node.

        Without units there is no such argument. The function must be idempotent: see :meth:`trusted`.
        """
        if not work.units:
            return self.trusted(function, *arguments)
        while True:
            with closing(self._passes([work], label, under_way=1)) as sums:
                (summed,) = sums
            if not self._trusted_worker:
                return function(*arguments, total_of(summed))
            try:
                done: tuple[Result] | None = self._at_trusted_worker(
                    finished, summed.bank, Asker.here(), function, *arguments, guard=False
                )
            finally:
                summed.close_bank()
            if done is not None:
                return done[0]
            # the worker that held the sum has gone, and another came: it is summed again

    def reduce_each(self, works: Sequence[Work], label: str, *, under_way: int) -> Generator[Any]:
        """Sum one pass after the other, some of them at once, and yield the sums in order, in this process.

        Each is fetched when it is asked for.
        """
        for summed in self._passes(works, label, under_way=under_way):
            yield total_of(summed)

    def _passes(self, works: Sequence[Work], label: str | None, *, under_way: int) -> Generator[Pass]:
        conductor = Conductor(
            self._client, works, under_way=under_way, check=self._check, places=self._places,
            trusted_worker=self._trusted_worker, foreign=None if self._insecure else self._foreign,
        )  # fmt: skip
        with translated():
            yield from conductor.sums(steps(self._progress, label) if label else None)

    def _submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
        return self._client.submit(guarded, Asker.here(), function, *arguments, pure=False, **options)

    def completed(self, futures: Sequence[Future], *, trusted: bool = False) -> Iterator[Future]:
        """Yield futures as they end; raise if they cannot end any more.

        A scheduler says nothing when all workers are gone, or the trusted one.
        """
        ended, idle_since = as_completed(futures, loop=self._client.loop), None
        while not ended.is_empty():
            with ended.thread_condition:
                found = ended.thread_condition.wait_for(ended.has_ready, timeout=_LOOK_SECONDS)
            if not found:
                there = any(_is_trusted(worker) or not trusted for worker in self.known().values())
                idle_since = None if there else idle_since or time.monotonic()
                if idle_since is not None and time.monotonic() - idle_since > work.LOST_SECONDS:
                    raise work.gone(trusted=trusted)
                continue
            idle_since = None
            yield from ended.next_batch(block=False)

    def trusted(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function at the trusted node.

        That node is this process; or, with ``--trusted worker``, the one worker started with ``--resources trusted=1``.
        Dask may run it twice: it must be idempotent.
        """
        if not self._trusted_worker:
            return function(*arguments)  # a scheduler that is lost by now is not needed any more
        return self._at_trusted_worker(function, *arguments)

    def _at_trusted_worker(self, function: Callable[..., Result], *arguments: Any, guard: bool = True) -> Result:
        options = {"key": f"dpdist-trusted-{random_token()}", "resources": {"trusted": 1}}
        with translated():
            submit = self._submit if guard else self._client.submit
            future = submit(function, *arguments, **options)
            (done,) = self.completed([future], trusted=True)
            result: Result = done.result()
            return result


def _is_trusted(worker: dict[str, Any]) -> bool:
    return "trusted" in worker["resources"]


@contextmanager
def translated() -> Iterator[None]:
    """Turn the scheduler's failures into errors that say what to do."""
    try:
        yield
    except KilledWorker:
        raise ResumableError(work.DIED) from None
    except (CancelledError, asyncio.CancelledError, OSError):  # a comm that is closed, refused or too slow
        raise ResumableError(work.LOST) from None
