"""Progress of long steps, for the progress bar of the command line or a function in a notebook; and the log.

Examples
--------
>>> count = Count(lambda step, done, total: print(f"{step}: {done} of {total}"), "Summing rows", 2)
Summing rows: 0 of 2
>>> count.one()
Summing rows: 1 of 2
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

Progress = Callable[[str, int, int], None]
"""Receives the name of the step, the parts done, and the total; at the end both are equal."""
Steps = Callable[[int, int], None]
"""The same for one step: parts done and total."""
LOGGER = logging.getLogger("dpdist")
"""Gets the messages of each step (level INFO) that the command line prints. They are for the holder of the rows: how
many rows an ingest left out, and whether a release was made before, is not public."""


def steps(progress: Progress | None, label: str) -> Steps | None:
    """Return the callback for one step, or None if there is none."""
    return None if progress is None else partial(progress, label)


class Count:
    """Counts the parts of one step."""

    def __init__(self, progress: Progress | None, label: str, total: int) -> None:
        self._steps, self._done, self._total = steps(progress, label), 0, total
        self._report()

    def one(self) -> None:
        """Count one part."""
        self._done += 1
        self._report()

    def _report(self) -> None:
        if self._steps is not None:
            self._steps(self._done, self._total)
