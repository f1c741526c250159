"""Sums on a Dask cluster: pure tasks, a tree of additions, and the last additions at the trusted node.

    dpdist-sum     a task: reads its chunks and returns their partial sum
    dpdist-add     adds eight neighbouring sums, on the worker that holds most of them
    dpdist-noise   with a trusted worker: the last additions, the noise and the commit

Dask queues, places, repeats and displays them like any other tasks. Without a trusted worker, this process is the
trusted node: it fetches the last sums as they are completed, and adds them.

**Exactly once** is not required of Dask. A task may run twice, and a lost result is computed again. Every addition, and
the final check, verifies which chunks a sum covers (:mod:`dpdist.core.moment.total`), and the ledger commits one draw.
No task modifies the result of another one, so a repeated task has the same inputs.

**A sum is never on a disk.** Private values are wrapped in a :class:`PrivateResult`, which can be serialised only for
connections between processes. A worker that tries to spill one keeps it in memory; its repr, which Dask then logs,
shows nothing.

**The scheduler is trusted like a worker**: everyone who can submit tasks to it can read every row. But no message, key
or log contains a value of the rows: errors are translated in the task (:func:`dpdist.core.runtime.checks.guarded`).
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

from dpdist.core._version import __version__
from dpdist.core.errors import DataError, DpdistError, ResumableError, warn_caller
from dpdist.core.parallel import fan_in, levels
from dpdist.core.progress import Count, Progress
from dpdist.core.runtime.checks import ClientInfo, StoredObject, guarded, require_fit, require_objects, spills
from dpdist.core.runtime.local import Computation, Executor, Resources, Secret, memory_limit
from dpdist.core.runtime.tls import is_local, require_safe_cluster
from dpdist.core.storage.store import AnyStore, store_at
from dpdist.core.text import random_token

Result = TypeVar("Result")

WORKER_SECONDS = 600.0  # time limit for the first worker: clouds start machines, batch systems queue jobs
LOST_SECONDS = 60.0  # time limit for a computation while no worker can run its tasks
_POLL_SECONDS = 5.0
_RESUME = "run the same command again: a release in a ledger is resumed at no further cost."


# --- on the workers ---------------------------------------------------------------------------------------------------


class PrivateResult:
    """A task's result that Dask may send between processes, but cannot spill to a disk."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + int(self.value.__sizeof__())

    def __reduce__(self) -> str:
        """Refuse to be pickled: Dask pickles what it spills."""
        raise TypeError("private values are sent, and not stored")


@dask_serialize.register(PrivateResult)  # type: ignore[untyped-decorator]
def _serialize(result: PrivateResult, context: Any = None) -> tuple[dict[str, Any], list[Any]]:
    if context is None:  # only connections pass one
        raise TypeError("private values are sent, and not stored")
    buffers: list[pickle.PickleBuffer] = []
    # cloudpickle, because the context of tasks may contain functions of a script
    content = cloudpickle.dumps(result.value, protocol=5, buffer_callback=buffers.append)
    return {}, [content, *(buffer.raw() for buffer in buffers)]


@dask_deserialize.register(PrivateResult)  # type: ignore[untyped-decorator]
def _deserialize(_: dict[str, Any], frames: list[Any]) -> PrivateResult:
    return PrivateResult(pickle.loads(frames[0], buffers=frames[1:]))  # noqa: S301 - of a worker, which runs our code anyway


@dataclass(frozen=True)
class TaskContext:
    """Input that all tasks of a computation share on a worker."""

    computation: Computation
    client_info: ClientInfo
    objects: Sequence[StoredObject]

    def run(self, task: Any) -> Any:
        """Run a task; a result that will be added is private."""
        result = guarded(self.client_info, self._run, task)
        return result if self.computation.add is None else PrivateResult(result)

    def _run(self, task: Any) -> Any:
        require_objects(self.objects)
        return self.computation.run(task)


def load_context(content: Secret) -> PrivateResult:
    """Unpickle the shared input in a task of its own, which Dask repeats if all workers that hold it are lost."""
    return PrivateResult(cloudpickle.loads(content.content))


def run_task(task: Any, shared: PrivateResult) -> Any:
    """Run a task."""
    return shared.value.run(task)


def add_results(client_info: ClientInfo, add: Callable[[Any, Any], Any], *parts: PrivateResult) -> PrivateResult:
    """Add sums without modifying them."""
    return PrivateResult(guarded(client_info, sum_results, add, parts))


def sum_results(add: Callable[[Any, Any], Any], parts: Sequence[PrivateResult]) -> Any:
    """Return the sum of parts without modifying them."""
    first, *others = (part.value for part in parts)
    return reduce(add, others, deepcopy(first))  # an addition modifies its first argument: another task's result


def finish(
    client_info: ClientInfo,
    add: Callable[[Any, Any], Any],
    function: Callable[..., Result],
    arguments: Any,
    *parts: PrivateResult,
) -> Result:
    """Add the last sums at the trusted worker, and call a function with the total as its last argument."""
    return guarded(client_info, lambda: function(*arguments, sum_results(add, parts)))


def reduce_tree(sums: list[Any], nbytes: int, limit: int | None, add: Callable[..., Any]) -> list[Any]:
    """Add sums level by level, where ``add(name, i, parts)`` submits an addition; return the last ones."""
    for number, level in enumerate(levels(len(sums), nbytes, limit)):
        sums = [add(f"dpdist-add-{number}", i, sums[part.start : part.stop]) for i, part in enumerate(level)]
    return sums


# --- in this process --------------------------------------------------------------------------------------------------


_warned: WeakSet[Client] = WeakSet()


class DaskExecutor(Executor):
    """Runs tasks on the workers of a cluster; created by :meth:`dpdist.core.runtime.cluster.Cluster.connected`."""

    def __init__(
        self, client: Client, *, trusted_worker: bool = False, insecure: bool = False, foreign: bool = False,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        super().__init__(progress)
        self._client, self._trusted_worker = client, trusted_worker
        self._insecure, self._foreign = insecure, foreign
        self._objects: list[StoredObject] = []  # that every worker must see, including workers that join later
        self._keep_alive: Future | None = None

    def _workers(self) -> dict[str, Any]:
        """Return the scheduler's information on each worker; refuse a cluster that others can eavesdrop on."""
        with translate_errors():
            info = self._client.scheduler_info(n_workers=-1)
        if not self._insecure:  # at every call, because a worker may have joined
            require_safe_cluster(info["address"], info["workers"], foreign=self._foreign)
        workers: dict[str, Any] = info["workers"]
        return workers

    def resources(self) -> Resources:
        """Return the workers; the memory is the smallest limit of a worker, or this process's share of its machine."""
        workers = self._workers()
        limits = [int(worker["memory_limit"]) for worker in workers.values() if worker["memory_limit"]]
        memory = min([*limits, memory_limit() // (1 + sum(map(is_local, workers)))])
        return Resources(len(workers), max((int(worker["nthreads"]) for worker in workers.values()), default=1), memory)

    @property
    def where(self) -> str:
        """The number of workers, and the scheduler."""
        count = len(self._workers())
        return f"on {count} worker{'s' * (count != 1)} at {self._client.scheduler.address}"

    def await_worker(self) -> None:
        """Wait for a worker that can run tasks.

        A small result is kept on the cluster, because an adaptive one starts workers for tasks only, and closes idle
        ones.
        """
        workers, address = self._workers(), self._client.scheduler.address
        with translate_errors():
            self._keep_alive = self._client.submit(os.getpid, pure=False, key=f"dpdist-wait-{random_token()}")
        if not workers:
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
            workers = self._workers()
        if self._trusted_worker and not any(map(_is_trusted, workers.values())):
            raise DataError(
                "No worker offers the resource `trusted`. Start the trusted one with: dask worker ... "
                '--resources "trusted=1"'
            )

    def require_visible(self, location: AnyStore, key: str = "") -> None:
        """Check that the cluster is safe, and that every worker runs this version and sees the object."""
        self._workers()
        store = store_at(location)
        # a staging folder is renamed when it is complete, and later computations read it under its new name
        self._objects = [item for item in self._objects if item[0].exists(item[1])]
        if (store, key) not in self._objects:
            self._objects.append((store, key))
        with translate_errors():
            require_fit(self._client, store, key)

    def warn_of_spilling(self) -> bool:
        """Warn if a worker may write blocks of a user's Dask collection to its disk; return whether a worker answered.

        A client is told once.
        """
        if self._client in _warned:
            return True
        self._workers()
        with translate_errors():
            answers = self._client.run(spills, on_error="return")
        if any(answer is True for answer in answers.values()):
            _warned.add(self._client)
            warn_caller(
                f"Workers of the Dask cluster at {self._client.scheduler.address} write blocks of your collection, "
                "which are rows, to their disks when their memory is short. Start them with "
                "distributed.worker.memory.target: false and distributed.worker.memory.spill: false in their Dask "
                "configuration. Sums of dpdist are never written.",
            )
        return bool(answers)

    def submit(self, computation: Computation, on_task_done: Callable[[], None]) -> Generator[tuple[int, Any]]:
        """Submit tasks and additions, and fetch the results as they are completed."""
        return _own_results(self._fetch(*self._submit_tasks(computation, on_task_done)))

    def _submit_tasks(
        self, computation: Computation, on_task_done: Callable[[], None], limit: int | None = None
    ) -> tuple[list[Future], _Completions]:
        """Submit a computation; return the futures to fetch, of tasks or of the last additions."""
        client_info, token = ClientInfo.current(), random_token()

        def add(name: str, number: int, parts: list[Future]) -> Future:
            key = f"{name}-{token}", number
            return self._client.submit(
                add_results, client_info, computation.add, *parts, key=key, pure=False, priority=10
            )

        with translate_errors(), warnings.catch_warnings():
            # the vectors that rows are multiplied by
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            content = Secret(cloudpickle.dumps(TaskContext(computation, client_info, self._objects)))
            shared = self._client.submit(load_context, content, key=f"dpdist-table-{token}", pure=False)
            keys = [(f"dpdist-{computation.step}-{token}", i) for i in range(len(computation.tasks))]
            futures = self._client.map(run_task, list(computation.tasks), key=keys, pure=False, shared=shared)
            completions = _Completions(futures, on_task_done)
            if computation.add is not None:
                futures = reduce_tree(futures, computation.nbytes, limit, add)
            return futures, completions

    def _fetch(
        self, futures: list[Future], completions: _Completions, *, trusted: bool = False
    ) -> Generator[tuple[int, Any]]:  # fmt: skip
        """Yield results and their numbers as they are completed; the workers then release them."""
        waiting = dict(enumerate(futures))
        del futures
        for number, future in waiting.items():
            future.add_done_callback(partial(_put, completions.queue, number))
        try:
            while waiting:
                number = self._next(completions, trusted=trusted)
                # fetched results are not inputs of other tasks, so the caller may modify them
                result = _result(waiting.pop(number))
                yield number, result.value if isinstance(result, PrivateResult) else result
                del result
        finally:
            # a traceback may keep the futures, and with them the tasks
            if waiting and self._client.status == "running":
                self._client.cancel([*waiting.values(), *completions.futures])
        completions.report_remaining()

    def _next(self, completions: _Completions, *, trusted: bool) -> int:
        """Wait for a result; raise an error if no worker can compute one, which the scheduler does not report."""
        last = time.monotonic()
        while True:
            with suppress(Empty):
                number = completions.queue.get(timeout=_POLL_SECONDS)
                if number is not None:
                    return number
                completions.report_one()
                last = time.monotonic()
                continue
            eligible = [worker for worker in self._workers().values() if _is_trusted(worker) or not trusted]
            if any(worker.get("status", "running") == "running" for worker in eligible):
                last = time.monotonic()
            elif time.monotonic() - last > LOST_SECONDS:
                who = "The trusted worker has" if trusted else "All workers have"
                cure = (
                    "Their memory is full: increase it, or start fewer workers per machine"
                    if eligible
                    else "Start new ones"
                )
                raise ResumableError(
                    f"{who} been {'paused' if eligible else 'gone'} for {LOST_SECONDS:g} seconds. {cure}, and {_RESUME}"
                )

    def trusted(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run an idempotent function in this process, or on a worker with ``--resources trusted=1``.

        If there are two such workers, one is a standby.
        """
        if not self._trusted_worker:
            return function(*arguments)
        result: Result = self._at_trusted_worker(
            "trusted", _Completions(), guarded, ClientInfo.current(), function, *arguments
        )
        return result

    def _at_trusted_worker(
        self, step: str, completions: _Completions, function: Callable[..., Any], *arguments: Any
    ) -> Any:  # fmt: skip
        key = f"dpdist-{step}-{random_token()}"
        with translate_errors():
            future = self._client.submit(function, *arguments, key=key, pure=False, resources={"trusted": 1})
        ((_, result),) = _own_results(self._fetch([future], completions, trusted=True))
        return result

    def reduce(
        self, computation: Computation, function: Callable[..., Result], *arguments: Any, label: str | None
    ) -> Result:  # fmt: skip
        """Sum the results, and call a function at the trusted node, with the sum as its last argument."""
        if not self._trusted_worker or not computation.tasks:
            return super().reduce(computation, function, *arguments, label=label)
        on_task_done = self._count(label, [computation])
        parts, completions = self._submit_tasks(computation, on_task_done, fan_in(computation.nbytes))
        last = finish, ClientInfo.current(), computation.add, function, arguments
        result: Result = self._at_trusted_worker("noise", completions, *last, *parts)
        return result

    def compute(
        self, collections: Sequence[Any], on_task_done: Callable[[], None] = lambda: None
    ) -> Generator[tuple[int, Any]]:  # fmt: skip
        """Compute Dask collections, such as blocks of an array, and yield them with their numbers."""
        with translate_errors():
            futures = self._client.compute(list(collections))
        yield from self._fetch(futures, _Completions(futures, on_task_done))


class _Completions:
    """Queue that Dask's threads fill: the number of a result that can be fetched, or None for a completed task."""

    def __init__(self, futures: Sequence[Future] = (), on_task_done: Callable[[], None] = lambda: None) -> None:
        self.queue: SimpleQueue[int | None] = SimpleQueue()
        self.futures: WeakSet[Future] = WeakSet(futures)  # weak, so that results are released
        self._remaining, self._on_task_done = len(futures), on_task_done
        for future in futures:
            future.add_done_callback(partial(_put, self.queue, None))

    def report_one(self) -> None:
        """Report a task as done, in the thread that waits for the computation."""
        if self._remaining:
            self._remaining -= 1
            self._on_task_done()

    def report_remaining(self) -> None:
        """Report the tasks whose completion was not signalled before the computation ended."""
        while self._remaining:
            self.report_one()


def _put(queue: SimpleQueue[int | None], number: int | None, _: Future) -> None:
    queue.put(number)


def _result(future: Future) -> Any:
    """Return the result of a completed future, or raise the exception of its task unchanged."""
    with translate_errors():
        failure = future.exception() if future.status == "error" else None
        if failure is None or isinstance(failure, KilledWorker):
            return future.result()
    raise failure


def _is_trusted(worker: dict[str, Any]) -> bool:
    return "trusted" in worker["resources"]


def replace_errors(results: Iterator[Any], replacement: Callable[[str], DpdistError]) -> Generator[Any]:
    """Yield results; replace an error that is not ours, whose text may quote rows, knowing its type only."""
    error_type = ""
    try:
        yield from results
    except DpdistError:
        raise
    except Exception as error:  # noqa: BLE001 - such as a failed import
        error_type = type(error).__name__
    if error_type:  # outside the handler, so that the original, and its text, is not chained
        raise replacement(error_type)


def _own_results(results: Generator[tuple[int, Any]]) -> Generator[tuple[int, Any]]:
    """Yield the results of our own tasks, which raise our own errors: any other error is one of the worker."""
    return replace_errors(
        results,
        lambda error_type: ResumableError(
            f"A worker failed with {error_type} before it could begin a task, or could not keep its result. Check that "
            f"it has enough memory for the sums, and runs dpdist {__version__}; then {_RESUME}"
        ),
    )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate failures of the cluster into errors that state a remedy."""
    try:
        yield
    except KilledWorker:
        raise ResumableError(
            "Workers died again and again; most likely they ran out of memory. Start fewer workers per machine, give "
            f"them more memory, or make the chunks of a Dask collection smaller, and {_RESUME}"
        ) from None
    except (CancelledError, asyncio.CancelledError, OSError):  # a connection that was closed, refused, or timed out
        raise ResumableError(f"The connection to the cluster was lost. When it is available, {_RESUME}") from None
