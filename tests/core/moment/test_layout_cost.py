"""The tasks, bytes and memory of a layout are those of a cluster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from dask.utils import key_split
from support.parts import table_of

from dpdist.core.moment.layout import Layout
from dpdist.core.moment.total import add_partials, common_key, complete, partition_moment
from dpdist.core.parallel import level_counts
from dpdist.core.rows.bounding import RowBound
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.runtime.local import Computation
from dpdist.core.runtime.sums import DaskExecutor
from dpdist.core.triangle import Band

COLUMNS = 1200
COMMAND = ("forecast", "--n", "1000000", "--d", "20000", "--epsilon", "1", "--delta", "1e-9", "--cluster")


def sent(dask_worker: Any) -> tuple[int, int]:
    """Return the bytes a worker has sent to others, and the most memory it had."""
    status = Path("/proc/self/status").read_text()  # not ru_maxrss, which begins with the memory of the parent
    return dask_worker.transfer_outgoing_bytes_total, int(status.split("VmHWM:")[1].split()[0]) << 10


def test_tasks_bytes_and_memory_are_what_was_said(tmp_path: Path) -> None:
    table, bound = table_of(tmp_path / "rows", np.ones((60, COLUMNS)), 10), RowBound(COLUMNS, 1.0)
    key = common_key()
    with Cluster(workers=2).connected() as executor:
        assert isinstance(executor, DaskExecutor)
        before, moved_before = Counter[str](), 0
        for bands in (1, 3):
            height = COLUMNS // bands
            cut = tuple(Band(i, i + height, COLUMNS) for i in range(0, COLUMNS, height))
            layout = Layout(table, bound, 2, cut)
            sizes = [8 * band.entries for band in layout.bands]
            trees = [(size, level_counts(count, size)) for size, count in zip(sizes, layout.task_counts, strict=True)]
            works = [
                Computation("sum", partition_moment, task, units, add_partials, nbytes=8 * task.band.entries, key=key)
                for task, units in zip(layout.moment_tasks(table), layout.task_chunks(), strict=True)
            ]
            sums = executor.reduce_many(works, "Summing", concurrent=layout.concurrent_bands)
            assert sum(complete(table, total).rows for total in sums) == 60 * bands
            told, computed = executor._client.run(sent), executor._client.run_on_scheduler(tasks)
            done = computed - before
            assert (done["dpdist-sum"], done["dpdist-add"]) == (
                sum(layout.task_counts),
                sum(sum(counts[1:]) for _, counts in trees),
            )
            trusted = sum(size * counts[-1] for size, counts in trees)
            promised = trusted + sum(size * (counts[0] - counts[-1]) for size, counts in trees)
            moved = sum(count for count, _ in told.values())
            # and what the units share
            assert trusted <= moved - moved_before <= promised + (1 << 17)
            assert max(peak for _, peak in told.values()) <= layout.worker_bytes
            before, moved_before = computed, moved


def tasks(dask_scheduler: Any) -> Counter[str]:
    """Return how many tasks of each name were computed."""
    log = {event[0] for event in dask_scheduler.transition_log if event[2] == "memory"}
    return Counter(key_split(key) for key in log)
