"""The loss of a person with a row in each of several periods, over that of one row: what ``series.py`` derives."""

from __future__ import annotations

import math

from dpdist.core.release.series import Toeplitz


def toeplitz_factor(plan: Toeplitz, periods: int) -> float:
    """Return the largest factor by which mu of all releases grows for a person with rows in ``periods`` periods."""
    width = len(plan.weights)
    releases = width if plan.horizon is not None else width + periods - 1
    added = (sum(plan.weights[max(0, t - periods + 1) : min(t + 1, width)]) for t in range(releases))
    return math.sqrt(sum(total**2 for total in added) / sum(weight**2 for weight in plan.weights))


def tree_factor(periods: int, levels: int) -> float:
    """Return the same for the nodes of trees with so many levels."""
    squares = 0
    for level in range(levels):
        full, remainder = divmod(periods, 1 << level)
        squares += full * 4**level + remainder**2
    return math.sqrt(squares / levels)
