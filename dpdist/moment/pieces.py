"""How a pass over a table is cut into units of work, whatever cluster computes it: pure arithmetic on public sizes.

Workers come and go, so a unit is small: what a lost worker loses is small, and the last unit does not keep the others
waiting. And it is not too small: to add its sum costs little beside it. How long it takes is not measured but estimated
from the sizes, for a core of today; a wrong estimate makes more units or fewer, and nothing else.
"""

from __future__ import annotations

from dpdist.rows.dataset import partitions
from dpdist.rows.table import Sizes

BOUND_SECONDS = 2e-9
"""To read a value of a row and bound it."""
MULTIPLY_SECONDS = 6e-11
"""To add a row to one entry of the moment."""
_FOLD_SECONDS = 6e-9
"""For each entry of a unit's sum: to begin with zeros, to pack it, and to add it."""
_LONGEST = 30.0
"""Seconds of a unit at most, where chunks are not longer."""
_SHORTEST = 0.2
"""Seconds of a unit at least: some 4 ms of a worker are spent on the task itself (`workflows/passes.py`)."""
_FOLDS = 50
"""A unit takes at least so many times what it costs to add its sum."""
_EACH = 50
"""Units for each worker, as far as they are not too short."""
_EXPECTED = 8
"""Workers for which there are enough units even if fewer are there at first."""
_FEWEST = 4
"""Units for each worker, however short."""


def units_of(table: Sizes, *, row_seconds: float, entries: int, workers: int) -> list[range]:
    """Cut the chunks of a table into units; nothing is read.

    Parameters
    ----------
    table
        The sizes of the rows.
    row_seconds
        What a row takes.
    entries
        Length of a unit's sum.
    workers
        Threads of workers that are expected.
    """
    seconds = table.rows * row_seconds
    shortest = max(_SHORTEST, _FOLDS * _FOLD_SECONDS * entries)
    wanted = max(seconds / _LONGEST, min(_EACH * max(workers, _EXPECTED), seconds / shortest), _FEWEST * workers)
    return partitions(table.chunks, round(wanted))
