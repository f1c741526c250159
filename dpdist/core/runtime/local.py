"""Computations as tasks, the sum of their results, and the executor that runs them in threads of this process.

An executor on a Dask cluster (:mod:`dpdist.core.runtime.sums`) overrides three operations: submitting tasks, checking
that a file is visible, and running a function at the trusted node.
"""

from __future__ import annotations

import os
import resource
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dpdist.core.errors import DataError
from dpdist.core.parallel import available_cores, threaded
from dpdist.core.progress import Count, Progress
from dpdist.core.runtime.checks import ClientInfo, forbid_core_dumps, guarded
from dpdist.core.storage.store import AnyStore, store_at

Task = TypeVar("Task")
Result = TypeVar("Result")
_CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.high",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.soft_limit_in_bytes",
)  # fmt: skip
"""Memory limits of this process's control group, versions 2 and 1."""


class Secret:
    """Bytes that no log and no repr shows."""

    def __init__(self, content: bytes) -> None:
        self.content = content


@dataclass(frozen=True)
class Computation:
    """A function and the tasks that it is applied to, with the addition of their results."""

    step: str  # the tasks' name on Dask's dashboard is dpdist-STEP
    function: Callable[[Any], Any]
    shared: Any  # the function's argument is shared.for_task(task), with its key; if None, the task itself
    tasks: Sequence[Any]
    add: Callable[[Any, Any], Any] | None = None
    nbytes: int = 0  # of a sum
    threads: int | None = None  # limit for threads of this process, from the available memory
    key: Secret | None = None

    def run(self, task: Any) -> Any:
        """Compute the result of a task."""
        argument = task if self.shared is None else self.shared.for_task(task)
        return self.function(argument if self.key is None else argument.with_key(self.key.content))


class Resources(NamedTuple):
    """The resources of an executor."""

    workers: int
    threads: int  # most tasks that a worker runs at the same time
    memory: int  # bytes that each worker, and this process, may use

    @property
    def slots(self) -> int:
        """Most tasks that run at the same time."""
        return self.workers * self.threads


class Executor(ABC):
    """Runs computations."""

    limits_threads = False  # whether :attr:`Computation.threads` has an effect

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    @abstractmethod
    def resources(self) -> Resources:
        """Return the current resources."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Location of the computation, for progress bars."""

    @abstractmethod
    def require_visible(self, location: AnyStore, key: str = "") -> None:
        """Check that every process that runs tasks sees a store, and the object ``key`` in it."""

    @abstractmethod
    def submit(self, computation: Computation, on_task_done: Callable[[], None]) -> Generator[tuple[int, Any]]:
        """Submit the tasks, and yield results, with their numbers, as they are completed; results may be sums.

        The caller owns the results and may modify them.
        """

    def trusted(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run an idempotent function at the trusted node: by default, this process."""
        return function(*arguments)

    def map(self, computation: Computation, label: str) -> None:
        """Run every task at least once, and drop the results."""
        deque(self.submit(computation, self._count(label, [computation])), maxlen=0)

    def results(
        self, function: Callable[[Task, Any], Result], tasks: Sequence[Task], shared: Any, label: str,
        step: str = "task",
    ) -> Iterator[tuple[int, Result]]:  # fmt: skip
        """Yield the number and the result of each task as it is completed; the results are not private."""
        computation = Computation(step, partial(_with_shared, function, shared), None, tasks)
        return self.submit(computation, self._count(label, [computation]))

    def reduce(
        self, computation: Computation, function: Callable[..., Result], *arguments: Any, label: str | None
    ) -> Result:  # fmt: skip
        """Sum the results, and call an idempotent function at the trusted node, with the sum as its last argument.

        Without tasks, there is no such argument.
        """
        if not computation.tasks:
            return self.trusted(function, *arguments)
        return function(*arguments, total(computation, self.submit(computation, self._count(label, [computation]))))

    def reduce_many(self, computations: Sequence[Computation], label: str, *, concurrent: int) -> Generator[Any]:
        """Yield the sums of computations in order, in this process; at most ``concurrent`` run at the same time."""
        on_task_done, waiting = self._count(label, computations), deque(computations)
        running: deque[tuple[Computation, Generator[tuple[int, Any]]]] = deque()
        while waiting or running:
            while waiting and len(running) < concurrent:
                running.append((waiting[0], self.submit(waiting.popleft(), on_task_done)))
            yield total(*running.popleft())

    def _count(self, label: str | None, computations: Sequence[Computation]) -> Callable[[], None]:
        tasks = sum(len(computation.tasks) for computation in computations)
        return Count(self._progress if label else None, f"{label} {self.where}", tasks).one


def total(computation: Computation, results: Generator[tuple[int, Any]]) -> Any:
    """Add the results of a computation."""
    if computation.add is None:
        raise AssertionError("a computation that is summed defines an addition")
    sum_so_far = None
    with closing(results):
        for number, (_, result) in enumerate(results):
            sum_so_far = computation.add(sum_so_far, result) if number else result
    return sum_so_far


def _with_shared(function: Callable[[Any, Any], Result], shared: Any, task: Any) -> Result:
    # workers receive this function by name, and a lambda as bytecode, which depends on the version of Python
    return function(task, shared)


class LocalExecutor(Executor):
    """Runs tasks in threads of this process."""

    where = "in this process"
    limits_threads = True

    def __init__(self, progress: Progress | None = None) -> None:
        super().__init__(progress)
        forbid_core_dumps()

    def resources(self) -> Resources:
        """Return the cores, and half of the memory: the other half is for processing the sum."""
        return Resources(1, available_cores(), memory_limit() // 2)

    def require_visible(self, location: AnyStore, key: str = "") -> None:
        """Check that this process sees the object."""
        store = store_at(location)
        if not store.exists(key):
            raise DataError(f"{store.address(key)} is missing, or cannot be read.")

    def submit(self, computation: Computation, on_task_done: Callable[[], None]) -> Generator[tuple[int, Any]]:
        """Run the tasks in threads, and yield their results in order."""
        cores, tasks = available_cores(), computation.tasks
        with threaded(min(computation.threads or cores, cores, max(1, len(tasks)))) as thread_map:
            for number, result in enumerate(thread_map(partial(guarded, ClientInfo.current(), computation.run), tasks)):
                on_task_done()
                yield number, result
                del result


def memory_limit() -> int:
    """Return the bytes of memory that this process may use: those of the machine, or a lower limit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), resource.getrlimit(resource.RLIMIT_RSS)[1]]
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # the file does not exist, or contains "max"
            limits.append(int(Path(path).read_text(encoding="ascii")))
    return min(limit for limit in limits if limit > 0)
