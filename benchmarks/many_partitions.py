"""What the driver and the scheduler pay for a unit: the engine's real pass with work that costs nothing.

A pass has some fifty units for each worker, however many chunks the table has. So there are two ways to many, and both
are run: many chunks, where the number of units must not grow, and many workers, where the cost of a unit must not. The
workers are pretended: the units are those of so many, on two real processes of this machine. CPU seconds are those of
the process that holds driver and scheduler.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import resource
import time
from pathlib import Path

from benchmarks.cluster_cost import tasks_of
from dpdist import RowBound
from dpdist.core.moment.layout import layout_of
from dpdist.core.rows.table import Shape
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.runtime.local import Computation, Executor

COLUMNS = 100
CHUNK_ROWS = 100


EACH = 50
"""Units for each worker."""


class Nothing:
    """The values of a pass whose units cost nothing."""

    def for_task(self, _: int) -> int:
        """Return one."""
        return 1


def table_of(chunks: int) -> Shape:
    """Describe a table of so many chunks; none of it exists."""
    return Shape(chunks * CHUNK_ROWS, COLUMNS, "float32", CHUNK_ROWS)


def planned(chunks: int, workers: int) -> dict[str, float]:
    """Lay a table out and count what there is to do."""
    begun = time.process_time()
    layout = layout_of(table_of(chunks), RowBound(COLUMNS, 1.0), workers, 16 << 30, divisible=True)
    tasks = sum(tasks_of(layout))
    return {"chunks": chunks, "workers": workers, "tasks": tasks, "cpu_seconds": time.process_time() - begun}


def reduced(executor: Executor, workers: int) -> dict[str, float]:
    """Run the pass of so many workers and time it."""
    work = Computation("nothing", int, Nothing(), range(EACH * workers), operator.add)
    begun, cpu = time.perf_counter(), time.process_time()
    found = executor.reduce(work, int, label=None)
    assert found == EACH * workers  # noqa: S101 - a result that is wrong is not worth timing
    spent = time.process_time() - cpu
    return {
        "workers": workers,
        "units": EACH * workers,
        "cpu_seconds": round(spent, 2),
        "cpu_milliseconds_per_unit": round(1e3 * spent / (EACH * workers), 3),
        "seconds": round(time.perf_counter() - begun, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Write NAME.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 20, 200, 2000])
    parser.add_argument("--output", required=True)
    chosen = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {
        "chunks": [planned(chunks, 16) for chunks in (10**3, 10**5, 10**7)],
        "workers": [],
    }
    with Cluster(workers=2).connected() as executor:
        for workers in chosen.workers:
            found["workers"].append(reduced(executor, workers))
            print(found["workers"][-1], flush=True)
            Path(f"{chosen.output}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
