"""How tests wait for what happens elsewhere: as long as it takes on a busy machine, and not for ever."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 900.0
"""Seconds to wait for what must happen, however busy the machine is."""


def until(
    happened: Callable[[], object], seconds: float = PATIENCE, *, every: float = 0.02, words: Callable[[], str] = str
) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"it did not happen: {words()}"
        time.sleep(every)
