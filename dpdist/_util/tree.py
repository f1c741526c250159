"""The shape of a reduction: pure arithmetic, so that what workers do is what a forecast counts."""

from __future__ import annotations

_SMALL = 16 << 20
"""Bytes of a sum up to which many are added at once: their memory is nothing beside that of a worker."""
_MOST_FETCHED = 1 << 30
"""Bytes of sums that come to the trusted node, about: more are added on the workers first."""


def fan_in(nbytes: int) -> int:
    """Return how many sums of so many bytes are added at once."""
    return 8 if nbytes <= _SMALL else 2


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
    found: list[list[range]] = []
    width = fan_in(nbytes)
    while count > 1 and (not found or count * nbytes > _MOST_FETCHED if most is None else count > most):
        found.append([range(i, min(i + width, count)) for i in range(0, count, width)])
        count = len(found[-1])
    return found
