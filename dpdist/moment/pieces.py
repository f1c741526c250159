"""How a pass over a table is cut into units of work, whatever cluster computes it: pure arithmetic on public sizes.

Workers come and go, so a unit is small: what a lost worker loses is small, and the last unit does not keep the others
waiting. And it is not too small: to add its sum costs little beside it. How long it takes is not measured but estimated
from the sizes, for a core of today; a wrong estimate makes more units or fewer, and nothing else.
"""

from __future__ import annotations

from dpdist._util.tree import fan_in
from dpdist.rows.dataset import partitions
from dpdist.rows.table import Sizes

BOUND_SECONDS = 2e-9
"""To read a value of a row and bound it."""
MULTIPLY_SECONDS = 2e-11
"""To add a row to one entry of the moment: between 16-bit integers, 1e-11, and float64, 3e-11."""
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
"""Units for each worker, however short, where sums are small."""
TASK_SECONDS = 3e-3
"""Of driver and scheduler for a unit (`workflows/many_partitions.py`)."""
_IDLE = 2
"""Driver and scheduler have time for so many times the units that there are, but for the fewest."""


def unit_count(table: Sizes, *, row_seconds: float, entries: int, workers: int) -> int:
    """Return into how many units the chunks of a table are cut, as :func:`units_of`."""
    seconds = table.rows * row_seconds
    shortest = max(_SHORTEST, _FOLDS * _FOLD_SECONDS * entries)
    handed_out = seconds / (workers * _IDLE * TASK_SECONDS)
    enough = min(_EACH * max(workers, _EXPECTED), seconds / shortest, handed_out)
    # one for each worker where sums are large: to add them would take as long as what is computed
    fewest = workers if fan_in(8 * entries) == 2 else _FEWEST * workers
    wanted = max(seconds / _LONGEST, enough, fewest)
    return max(1, min(table.chunks, round(wanted)))


def units_of(table: Sizes, *, row_seconds: float, entries: int, workers: int) -> list[range]:
    """Cut the chunks of a table into units; nothing is read."""
    count = unit_count(table, row_seconds=row_seconds, entries=entries, workers=workers)
    return partitions(table.chunks, count)
