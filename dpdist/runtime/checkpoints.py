"""When a sum of a worker is worth a checkpoint, and so what a lost worker loses."""

from __future__ import annotations

import math

_AT_STAKE = 0.03
"""The share of all units that one worker may lose, if it takes so long to sum that a checkpoint is worth it."""
_CHECKPOINT_SECONDS = 180.0
"""What one worker sums at most before a checkpoint."""
_LEAST_SECONDS = 2.0
"""What is not worth a checkpoint."""
_CHEAP = 20
"""A checkpoint saves at least so many times the work that it costs."""


def worth_a_checkpoint(at_stake: float, units: int, of: int, take_seconds: float, workers: int) -> bool:
    """Say whether the sum of a worker is to be brought to the trusted node now.

    Parameters
    ----------
    at_stake
        Seconds of work in it.
    units, of
        How many units are in it, and how many the pass has.
    take_seconds
        What the trusted node takes for the sum of a worker.
    workers
        All that take part.
    """
    least, most = _bounds(take_seconds, workers)
    if at_stake < least:
        return False
    return at_stake > most or units >= math.ceil(_AT_STAKE * of)


def lost_seconds(units: int, unit_seconds: float, take_seconds: float, workers: int) -> float:
    """Return the seconds of work that one lost worker loses at most: what it summed since its last checkpoint.

    Parameters
    ----------
    units, unit_seconds
        Of the pass, and what one takes a worker.
    take_seconds
        What the trusted node takes for the sum of a worker.
    workers
        All of them.
    """
    share = math.ceil(_AT_STAKE * units) * unit_seconds
    least, most = _bounds(take_seconds, workers)
    since = max(least, min(share, most)) + unit_seconds  # and the unit that it had begun
    return min(since, units * unit_seconds / workers)


def _bounds(take_seconds: float, workers: int) -> tuple[float, float]:
    """Return the work for which no checkpoint is worth it, and that for which one is, whatever share it is of all."""
    cost = _CHEAP * take_seconds
    return max(_LEAST_SECONDS, cost), max(_CHECKPOINT_SECONDS, cost * workers)
