"""Work so small that this process has done it before a worker would have started.

It is the same code as on workers, and so are its bits and its rules: no core dump holds rows or sums, an error of a
unit carries no value, and nothing is planned for more memory than there is. And nothing is sent anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from dpdist._util.progress import Count, Progress
from dpdist.errors import DataError
from dpdist.runtime.asker import Asker
from dpdist.runtime.guarded import guarded
from dpdist.runtime.process import memory_here
from dpdist.runtime.work import Work, task_of
from dpdist.storage.store import AnyStore, store_at

Task = TypeVar("Task")
Result = TypeVar("Result")

START_SECONDS = 2.0
"""What workers take to start, on a machine of today: who is done before does without them."""


class Here:
    """Computes in this process: what :class:`dpdist.runtime.engine.Engine` does, one unit at a time."""

    threads = 1
    """Units that are computed at the same time."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress

    @property
    def workers(self) -> list[str]:
        """Who computes: one name, of no address."""
        return ["this process"]

    @property
    def memory(self) -> int:
        """Bytes that a unit and its sum may use: half of them, for what is made of the sum is in this process too."""
        return memory_here() // 2

    def require_visible(self, place: AnyStore, key: str = "") -> None:
        """Check that this process sees a place.

        Raises
        ------
        DataError
            If it does not.
        """
        store = store_at(place)
        if not store.exists(key):
            raise DataError(f"{store.address(key)} is missing, or cannot be read.")

    def map(self, work: Work, label: str) -> None:
        """Compute every unit once; results are dropped."""
        for _ in self._parts([work], label):
            pass

    def results(
        self, function: Callable[[Task, Any], Result], tasks: Sequence[Task], shared: Any, label: str
    ) -> Iterator[tuple[int, Result]]:
        """Run a task per argument and yield its index and result."""
        count = Count(self._progress, label, len(tasks))
        for index, task in enumerate(tasks):
            result = guarded(Asker.here(), function, task, shared)
            count.one()
            yield index, result

    def reduce(self, work: Work, function: Callable[..., Result], *arguments: Any, label: str | None) -> Result:
        """Sum the units of a pass, and call a function with the sum as its last argument; without units with none."""
        if not work.units:
            return function(*arguments)
        return function(*arguments, self._sum(self._parts([work], label)))

    def reduce_each(self, works: Sequence[Work], label: str, *, under_way: int) -> Generator[Any]:  # noqa: ARG002
        """Sum one pass after the other, and yield the sums in order."""
        parts = self._parts(works, label)
        for work in works:
            yield self._sum(next(parts) for _ in work.units)

    def _sum(self, parts: Iterator[tuple[Work, Any]]) -> Any:
        total: Any = None
        for number, (work, part) in enumerate(parts):
            total = guarded(Asker.here(), work.add, total, part) if number and work.add is not None else part
        return total

    def _parts(self, works: Sequence[Work], label: str | None) -> Iterator[tuple[Work, Any]]:
        count = Count(self._progress if label else None, label or "", sum(len(work.units) for work in works))
        for work in works:
            secret = None if work.secret is None else work.secret()
            for unit in work.units:
                part = guarded(Asker.here(), _computed, work, unit, secret)
                count.one()
                yield work, part
                del part

    def trusted(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function at the trusted node, which is this process."""
        return function(*arguments)


def _computed(work: Work, unit: Any, secret: bytes | None) -> Any:
    with threadpool_limits(limits=1, user_api="blas"):  # as workers have it: on several threads it may add otherwise
        return work.function(task_of(work.values, unit, secret))
