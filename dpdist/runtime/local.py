"""What a pass computes, how its sums are added, and the threads of this process, which compute it by default.

Threads of this process and workers of Dask (:mod:`dpdist.runtime.sums`) differ in three calls: how a pass begins, how a
place is checked, and where the trusted node is. The rest is here.
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

from dpdist._util.parallel import available_cores, threaded
from dpdist._util.progress import Count, Progress
from dpdist.errors import DataError
from dpdist.runtime.checks import ClientInfo, forbid_core_dumps, guarded
from dpdist.storage.store import AnyStore, store_at

Task = TypeVar("Task")
Result = TypeVar("Result")
_GROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.high",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.soft_limit_in_bytes",
)  # fmt: skip
"""Where the kernel says how much memory this process's group may use, in its newer and its older format."""


class Secret:
    """Bytes that no log and no repr shows."""

    def __init__(self, content: bytes) -> None:
        self.content = content


@dataclass(frozen=True)
class Work:
    """What a pass computes."""

    step: str
    function: Callable[[Any], Any]
    values: Any  # what units share; its `cut(unit)` is what the function takes, `keyed` first. None: the unit itself
    units: Sequence[Any]
    add: Callable[[Any, Any], Any] | None = None
    nbytes: int = 0  # of a sum
    threads: int | None = None  # of this process, at most: for which there is memory
    key: Secret | None = None

    def computed(self, unit: Any) -> Any:
        """Compute a unit."""
        value = unit if self.values is None else self.values.cut(unit)
        return self.function(value if self.key is None else value.keyed(self.key.content))


class Resources(NamedTuple):
    """What computes."""

    workers: int
    threads: int  # units that each computes at the same time, at most
    memory: int  # bytes that each may use, and this process

    @property
    def slots(self) -> int:
        """Units that are computed at the same time, at most."""
        return self.workers * self.threads


class Engine(ABC):
    """Computes passes."""

    limits_threads = False  # whether :attr:`Work.threads` is obeyed

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    @abstractmethod
    def resources(self) -> Resources:
        """Return what there is to compute with now."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Where it computes, as a progress bar says it."""

    @abstractmethod
    def require_visible(self, place: AnyStore, key: str = "") -> None:
        """Check that every process that computes sees a place: a store, and an object in it."""

    @abstractmethod
    def begin(self, work: Work, told: Callable[[], None]) -> Generator[tuple[int, Any]]:
        """Begin a pass, and yield results as they end, the caller's to change: numbered, or sums of any number."""

    def trusted(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function at the trusted node; it must be idempotent. That node is this process."""
        return function(*arguments)

    def map(self, work: Work, label: str) -> None:
        """Compute every unit, at least once; results are dropped."""
        deque(self.begin(work, self._count(label, [work])), maxlen=0)

    def results(
        self, function: Callable[[Task, Any], Result], tasks: Sequence[Task], shared: Any, label: str,
        step: str = "task",
    ) -> Iterator[tuple[int, Result]]:  # fmt: skip
        """Run a task per argument and yield its number and result as it ends: for results that are not private."""
        work = Work(step, partial(_with_shared, function, shared), None, tasks)
        return self.begin(work, self._count(label, [work]))

    def reduce(self, work: Work, function: Callable[..., Result], *arguments: Any, label: str | None) -> Result:
        """Sum a pass, and call an idempotent function with the sum as its last argument, at the trusted node.

        Without units there is no such argument.
        """
        if not work.units:
            return self.trusted(function, *arguments)
        return function(*arguments, total(work, self.begin(work, self._count(label, [work]))))

    def reduce_each(self, works: Sequence[Work], label: str, *, under_way: int) -> Generator[Any]:
        """Sum one pass after the other, so many at the same time, and yield the sums in order, in this process."""
        told, waiting = self._count(label, works), deque(works)
        begun: deque[tuple[Work, Generator[tuple[int, Any]]]] = deque()
        while waiting or begun:
            while waiting and len(begun) < under_way:
                begun.append((waiting[0], self.begin(waiting.popleft(), told)))
            yield total(*begun.popleft())

    def _count(self, label: str | None, works: Sequence[Work]) -> Callable[[], None]:
        units = sum(len(work.units) for work in works)
        return Count(self._progress if label else None, f"{label} {self.where}", units).one


def total(work: Work, parts: Generator[tuple[int, Any]]) -> Any:
    """Add the results of a pass."""
    if work.add is None:
        raise AssertionError("what is summed is added")
    found = None
    with closing(parts):
        for number, (_, part) in enumerate(parts):
            found = work.add(found, part) if number else part
    return found


def _with_shared(function: Callable[[Any, Any], Result], shared: Any, task: Any) -> Result:
    """Call a function of a task; a worker gets a lambda as the code of one version of Python, and this by its name."""
    return function(task, shared)


class Here(Engine):
    """Computes in threads of this process."""

    where = "in this process"
    limits_threads = True

    def __init__(self, progress: Progress | None = None) -> None:
        super().__init__(progress)
        forbid_core_dumps()

    def resources(self) -> Resources:
        """Return the cores, and half of the memory: the other half is for what is made of the sum."""
        return Resources(1, available_cores(), memory_here() // 2)

    def require_visible(self, place: AnyStore, key: str = "") -> None:
        """Check that this process sees a place."""
        store = store_at(place)
        if not store.exists(key):
            raise DataError(f"{store.address(key)} is missing, or cannot be read.")

    def begin(self, work: Work, told: Callable[[], None]) -> Generator[tuple[int, Any]]:
        """Compute the units in threads, and yield their results in order."""
        cores = available_cores()
        with threaded(min(work.threads or cores, cores, max(1, len(work.units)))) as each:
            for number, found in enumerate(each(partial(guarded, ClientInfo.here(), work.computed), work.units)):
                told()
                yield number, found
                del found


def memory_here() -> int:
    """Return the bytes of memory of this machine, or of the part of it that this process may use."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), resource.getrlimit(resource.RLIMIT_RSS)[1]]
    for path in _GROUP_LIMITS:
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            limits.append(int(Path(path).read_text(encoding="ascii")))
    return min(limit for limit in limits if limit > 0)
