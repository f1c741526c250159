"""How far long work has come, reported to whoever asks: a bar of the command line, or a function of a notebook.

Examples
--------
>>> count = Count(lambda step, done, total: print(f"{step}: {done} of {total}"), "Summing rows", 2)
Summing rows: 0 of 2
>>> count.one()
Summing rows: 1 of 2
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

Progress = Callable[[str, int, int], None]
"""Told what is under way, how many parts of it are done, and how many there are; at its end these are equal."""
Steps = Callable[[int, int], None]
"""The same of one piece of work: parts done, and parts expected in all."""


def steps(progress: Progress | None, label: str) -> Steps | None:
    """Return what one piece of work reports to; None if nobody asks."""
    return None if progress is None else partial(progress, label)


class Count:
    """Counts the parts of one piece of work."""

    def __init__(self, progress: Progress | None, label: str, total: int) -> None:
        self._steps, self._done, self._total = steps(progress, label), 0, total
        self._tell()

    def one(self) -> None:
        """Count one part."""
        self._done += 1
        self._tell()

    def _tell(self) -> None:
        if self._steps is not None:
            self._steps(self._done, self._total)
