"""How long the noise of a wide moment takes one thread, and one per core: Gaussian noise, and Wishart noise.

Both are timed in turns in one run, so that what else the machine does strikes both::

    python -m benchmarks.noise_times --output benchmarks/results/noise_times
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

from dpdist.core.mechanisms.base import IndependentEntries
from dpdist.core.mechanisms.registry import calibrated
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.products import rounded_wishart
from dpdist.core.parallel import available_cores
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release import transaction
from dpdist.core.triangle import Band


def drawn(columns: int, threads: int) -> dict[str, float]:
    """Draw the noise of a moment of zeros once, and say what it took."""
    query = LatticeQuery(columns, 4**16, Neighbours.REPLACE_ONE)
    fixed = calibrated("gaussian", query, PrivacyLoss.parse("1", "1e-6"), {})
    if not isinstance(fixed, IndependentEntries):
        raise TypeError("gaussian noise is drawn by bands")
    band = Band.whole(columns)
    exact = np.zeros(band.entries, dtype=np.int64)
    exact[:] = 1  # its pages are there
    transaction.available_cores = lambda: threads  # type: ignore[attr-defined]
    begun, own = time.perf_counter(), time.process_time()
    noisy = transaction.noisy(fixed, band, exact, SYSTEM)
    wall, own = time.perf_counter() - begun, time.process_time() - own
    if not noisy.all():
        raise SystemExit("an entry has no noise")
    return {"wall": wall, "cpu": own}


def wishart(columns: int, threads: int) -> dict[str, float]:
    """Draw one exactly rounded Wishart matrix of the scale of 12 grid bits, and say what it took."""
    begun, own = time.perf_counter(), time.process_time()
    with threadpoolctl.threadpool_limits(1):
        rounded_wishart(columns, columns + 1, 2**24, SYSTEM, threads=threads)
    return {"wall": time.perf_counter() - begun, "cpu": time.process_time() - own}


def of_threads(turns: list[tuple[dict[str, float], dict[str, float]]], cores: int) -> dict[str, Any]:
    """Return the medians of one thread, and of one per core."""
    return {
        f"threads={threads}": {name: round(statistics.median(run[name] for run in each), 2) for name in each[0]}
        for threads, each in zip((1, cores), zip(*turns, strict=True), strict=True)
    }


def main() -> None:
    """Take the times and write NAME.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--columns", type=int, nargs="+", default=[5000, 10_000])
    parser.add_argument("--wishart", type=int, nargs="*", default=[1000, 2000, 5000], help="Columns, likewise.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", required=True)
    chosen = parser.parse_args()
    record: dict[str, Any] = {"cores": os.cpu_count(), "machine": platform.machine()}
    record["load_before"] = round(os.getloadavg()[0], 1)
    cores = available_cores()
    for columns in chosen.columns:
        turns = [(drawn(columns, 1), drawn(columns, cores)) for _ in range(chosen.repeats)]
        record[f"d={columns}"] = of_threads(turns, cores)
        print(columns, record[f"d={columns}"], flush=True)
    for columns in chosen.wishart:
        turns = [(wishart(columns, 1), wishart(columns, cores)) for _ in range(chosen.repeats)]
        record[f"wishart d={columns}"] = of_threads(turns, cores)
        print(columns, record[f"wishart d={columns}"], flush=True)
    record["load_after"] = round(os.getloadavg()[0], 1)
    record["parent_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    Path(f"{chosen.output}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
