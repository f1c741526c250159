"""By which keys the rows of one attempt at a release are dithered, and who knows them.

Every key is secret, new for each attempt, and drawn from the kernel; :mod:`dpdist.rows.dither` has the argument. Where
each row is summed once, each unit draws a key of its own in the process that sums it, and nobody else ever has it.
Where a row is summed several times, in bands of the moment or in rounds of products, all units of the attempt need the
same dithers: there one key is drawn in this process, and is an argument of the tasks that no repr and no log shows. A
sum under it carries its fingerprint, and is added to no sum under another key (:mod:`dpdist.moment.total`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpdist.moment.total import MomentTask, Partial, partition_moment
from dpdist.noise.entropy import SYSTEM
from dpdist.rows.bounding import DITHERED, RowBound
from dpdist.rows.dither import DitherKey
from dpdist.runtime.local import Secret


def drawn() -> bytes:
    """Draw a secret key, 32 bytes."""
    return SYSTEM.words(4).tobytes()


def partition_of_own_key(task: MomentTask) -> Partial[np.int64]:
    """Sum one partition, whose rows are in no other sum of the attempt, dithered by a key that nobody else has."""
    if task.bound.rule != DITHERED:
        return partition_moment(task)
    return replace(partition_moment(task.keyed(drawn())), key="")


def common_key(bound: RowBound) -> Secret | None:
    """Return a new key for all sums of one attempt in which a row occurs; None where rows are not dithered."""
    return Secret(drawn()) if bound.rule == DITHERED else None


def key_here(bound: RowBound) -> DitherKey | None:
    """Return a new key for rows that are summed in this process, and only here; None where rows are not dithered."""
    return DitherKey(drawn()) if bound.rule == DITHERED else None
