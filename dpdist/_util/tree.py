"""The shape of a reduction: pure arithmetic, so that what the engine builds is what a forecast counts."""

from __future__ import annotations

FAN_IN = 4
"""Inputs of one addition: an explicit tree of this width peaks lowest (four partials in memory at once)."""


def levels(count: int) -> list[list[range]]:
    """Return, level by level, which sums of the level before each sum adds, until at most :data:`FAN_IN` are left.

    Examples
    --------
    >>> levels(9)
    [[range(0, 4), range(4, 8), range(8, 9)]]
    >>> levels(4)
    []
    """
    found: list[list[range]] = []
    while count > FAN_IN:
        found.append([range(i, min(i + FAN_IN, count)) for i in range(0, count, FAN_IN)])
        count = len(found[-1])
    return found
