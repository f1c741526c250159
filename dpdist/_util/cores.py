"""The cores of this process, and threads that use them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
Each = Callable[[Callable[[Task], Result], Iterable[Task]], Iterator[Result]]
"""Yields what a function returns for each task, in their order."""


def available_cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0))


@contextmanager
def threaded(threads: int) -> Iterator[Each[Any, Any]]:
    """Give what computes tasks in so many threads until the block ends; in this one if it is one.

    Each thread has one of BLAS. Whoever leaves the block early, by an error or an interruption, waits for the tasks
    that were begun and for no other.
    """
    if threads == 1:
        yield map
        return
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - most commands need none

    pool = ThreadPoolExecutor(threads)

    def each(function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        # errors name parameters as this thread does
        under_way = [pool.submit(copy_context().run, function, task) for task in tasks]
        return (future.result() for future in under_way)

    try:
        with threadpool_limits(limits=1, user_api="blas"):
            yield each
    finally:
        pool.shutdown(cancel_futures=True)
