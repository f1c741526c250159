"""The cores of this process, and threads that use them."""

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
Each = Callable[[Callable[[Task], Result], Iterable[Task]], Iterator[Result]]
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
def threaded(threads: int) -> Iterator[Each[Any, Any]]:
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
