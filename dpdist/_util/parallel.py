"""Cores of this process, threads that use them, and the shape of a reduction.

The shape is pure arithmetic, so that a forecast counts what workers do.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
ParallelMap = Callable[[Callable[[Task], Result], Iterable[Task]], Iterator[Result]]
"""Yields what a function returns for each task, in their order."""
_AHEAD = 2
"""Results for each thread that may wait to be taken."""
_CPU_LIMIT = "/sys/fs/cgroup/cpu.max"
"""Where the kernel says how much processor time the group of this process has: a quota, and its period."""


def available_cores() -> int:
    """Return how many cores this process may use: of its affinity, and of its control group."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # there is none, or it is "max"
        quota, period = map(int, Path(_CPU_LIMIT).read_text(encoding="ascii").split())
        cores = min(cores, round(quota / period))
    return max(1, cores)


@contextmanager
def threaded(threads: int) -> Iterator[ParallelMap[Any, Any]]:
    """Give what computes tasks in so many threads, each with one of BLAS; in this one if it is one.

    A task begins when few results wait to be taken. An error or an interruption waits only for tasks that were begun.
    """
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - most commands need none

    with threadpool_limits(limits=1, user_api="blas"):
        if threads == 1:
            yield map
            return
        pool = ThreadPoolExecutor(threads)

        def each(function: Callable[[Task], Result], tasks: Iterable[Task]) -> Generator[Result]:
            waiting: deque[Future[Result]] = deque()
            for task in tasks:
                # errors name parameters as this thread does
                waiting.append(pool.submit(copy_context().run, function, task))
                if len(waiting) > _AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

        try:
            yield each
        finally:
            pool.shutdown(cancel_futures=True)


_SMALL = 16 << 20
"""Bytes of a sum up to which many are added at once: their memory is nothing beside that of a worker."""
_MOST_FETCHED = 1 << 30
"""Bytes of sums that come to the trusted node, about: more are added on the workers first."""


def fan_in(nbytes: int) -> int:
    """Return how many sums of so many bytes are added at once."""
    return 8 if nbytes <= _SMALL else 2


def level_counts(count: int, nbytes: int = 0, most: int | None = None) -> list[int]:
    """Return how many sums there are before the first addition, and after each level of additions.

    Examples
    --------
    >>> level_counts(10**9)
    [1000000000, 125000000]
    >>> level_counts(3, 1 << 30)
    [3, 2, 1]
    """
    counts = [count]
    width = fan_in(nbytes)
    while count > 1 and (len(counts) == 1 or count * nbytes > _MOST_FETCHED if most is None else count > most):
        count = -(-count // width)
        counts.append(count)
    return counts


def levels(count: int, nbytes: int = 0, most: int | None = None) -> list[list[range]]:
    """Return, level by level, which sums of the level before each addition adds; neighbours.

    Examples
    --------
    >>> levels(17)
    [[range(0, 8), range(8, 16), range(16, 17)]]
    >>> levels(3, 1 << 30)
    [[range(0, 2), range(2, 3)], [range(0, 2)]]
    >>> levels(1)
    []
    """
    width = fan_in(nbytes)
    inputs = level_counts(count, nbytes, most)[:-1]
    return [[range(i, min(i + width, total)) for i in range(0, total, width)] for total in inputs]
