"""What the driver and the scheduler pay for a task: the engine's real reduction with work that costs nothing.

A release has at most ten tasks for each worker, however many chunks the table has. So there are two ways to many, and
both are run: many chunks, where the number of tasks must not grow, and many workers, where the cost of a task must not.
The workers are pretended: the graph is that of so many, on two real processes of this machine. CPU seconds are those of
the process that holds driver and scheduler.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path

from dpdist import RowBound
from dpdist.moment.layout import layout_of
from dpdist.moment.total import PER_WORKER
from dpdist.rows.table import Shape
from dpdist.runtime.connection import connected
from dpdist.runtime.engine import Engine

COLUMNS = 100
CHUNK_ROWS = 100


def one(_: int) -> int:
    """Do nothing."""
    return 1


def total(parts: Sequence[int]) -> int:
    """Add."""
    return sum(parts)


def table_of(chunks: int) -> Shape:
    """Describe a table of so many chunks; none of it exists."""
    return Shape(chunks * CHUNK_ROWS, COLUMNS, "float32", CHUNK_ROWS)


def planned(chunks: int, workers: int) -> dict[str, float]:
    """Lay a table out and count what there is to do."""
    begun = time.process_time()
    layout = layout_of(table_of(chunks), RowBound(COLUMNS, 1.0), workers, 16 << 30, divisible=True)
    tasks = layout.partitions + layout.additions
    return {"chunks": chunks, "workers": workers, "tasks": tasks, "cpu_seconds": time.process_time() - begun}


def reduced(engine: Engine, workers: int) -> dict[str, float]:
    """Run the reduction of so many workers and time it."""
    groups = [[1] * PER_WORKER for _ in range(workers)]
    begun, cpu = time.perf_counter(), time.process_time()
    sums = engine.reduce(one, total, groups, f"{workers} workers")
    found = engine.trusted(lambda *parts: sum(parts), sums=sums)
    assert found == PER_WORKER * workers  # noqa: S101 - a result that is wrong is not worth timing
    spent = time.process_time() - cpu
    return {
        "workers": workers,
        "partitions": PER_WORKER * workers,
        "cpu_seconds": round(spent, 2),
        "cpu_milliseconds_per_partition": round(1e3 * spent / (PER_WORKER * workers), 3),
        "seconds": round(time.perf_counter() - begun, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Write NAME.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[25, 250, 2500, 25_000])
    parser.add_argument("--output", required=True)
    chosen = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {
        "chunks": [planned(chunks, 16) for chunks in (10**3, 10**5, 10**7)],
        "workers": [],
    }
    with connected(workers=2) as engine:
        for workers in chosen.workers:
            found["workers"].append(reduced(engine, workers))
            print(found["workers"][-1], flush=True)
            Path(f"{chosen.output}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
