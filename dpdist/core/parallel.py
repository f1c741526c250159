"""Available cores, a thread pool, and the shape of a tree reduction, which forecasts also use."""

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
"""Yields the result of a function for each task, in order."""
_AHEAD = 2
"""Results per thread that may wait to be consumed."""
_CPU_LIMIT = "/sys/fs/cgroup/cpu.max"
"""CPU quota and period of the control group of this process."""


def available_cores() -> int:
    """Return how many cores the affinity and the control group of this process allow."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # missing, or "max"
        quota, period = map(int, Path(_CPU_LIMIT).read_text(encoding="ascii").split())
        cores = min(cores, round(quota / period))
    return max(1, cores)


@contextmanager
def threaded(threads: int) -> Iterator[ParallelMap[Any, Any]]:
    """Yield a map that runs tasks in ``threads`` threads, each with one BLAS thread, or in this thread if it is one.

    A task starts when few results are waiting. An error or an interruption waits only for tasks that have started.
    """
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - limit commands need none

    with threadpool_limits(limits=1, user_api="blas"):
        if threads == 1:
            yield map
            return
        pool = ThreadPoolExecutor(threads)

        def parallel_map(function: Callable[[Task], Result], tasks: Iterable[Task]) -> Generator[Result]:
            waiting: deque[Future[Result]] = deque()
            for task in tasks:
                # errors name parameters as in this thread
                waiting.append(pool.submit(copy_context().run, function, task))
                if len(waiting) > _AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

        try:
            yield parallel_map
        finally:
            pool.shutdown(cancel_futures=True)


_SMALL = 16 << 20
"""Bytes of a sum up to which many are added at once: their memory is negligible for a worker."""
_MOST_FETCHED = 1 << 30
"""Approximate bytes of sums fetched by the trusted node: more are first added on the workers."""


def fan_in(nbytes: int) -> int:
    """Return how many sums of this size are added at once."""
    return 8 if nbytes <= _SMALL else 2


def level_counts(count: int, nbytes: int = 0, limit: int | None = None) -> list[int]:
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
    while count > 1 and (len(counts) == 1 or count * nbytes > _MOST_FETCHED if limit is None else count > limit):
        count = -(-count // width)
        counts.append(count)
    return counts


def levels(count: int, nbytes: int = 0, limit: int | None = None) -> list[list[range]]:
    """Return, level by level, the range of sums of the previous level that each addition adds.

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
    inputs = level_counts(count, nbytes, limit)[:-1]
    return [[range(i, min(i + width, total)) for i in range(0, total, width)] for total in inputs]
