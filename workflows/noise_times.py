"""How long the noise of a wide moment takes one process, and several, and Wishart noise one thread and one per core.

The first is Gaussian noise: drawn, added and nothing else.

Both are timed in turns in one run, so that what else the machine does strikes both. Wall time says little where others
use the cores: the CPU seconds of the busiest process are what the draw takes where each has a core of its own::

    python -m workflows.noise_times --output workflows/results/noise_times
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

from dpdist._util.cores import available_cores
from dpdist.mechanisms.base import IndependentEntries
from dpdist.mechanisms.registry import calibrated
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.products import rounded_wishart
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release import drawing
from dpdist.runtime.pool import Pool
from dpdist.triangle import Band


def seconds_of(process: int) -> float:
    """Return the CPU seconds that another process used."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drawn(columns: int, beside: int) -> dict[str, float]:
    """Draw the noise of a moment of zeros once, the start of the processes included, and say what it took."""
    query = LatticeQuery(columns, 4**16, Neighbours.REPLACE_ONE)
    fixed = calibrated("gaussian", query, PrivacyLoss.parse("1", "1e-6"), {})
    if not isinstance(fixed, IndependentEntries):
        raise TypeError("gaussian noise is drawn by bands")
    band = Band.whole(columns)
    exact = np.zeros(band.entries, dtype=np.int64)
    exact[:] = 1  # its pages are there
    begun, own = time.perf_counter(), time.process_time()
    with Pool[Band](beside) as pool:
        noisy = drawing.noisy(fixed, band, exact, SYSTEM, pool)
        wall, own = time.perf_counter() - begun, time.process_time() - own
        others = [seconds_of(process) for process in pool.processes]
        most = [Path(f"/proc/{each}/status").read_text(encoding="ascii") for each in pool.processes]
    if not noisy.all() or len(others) != beside:
        raise SystemExit("an entry has no noise, or a process was lost")
    peaks = [int(text.split("VmHWM:")[1].split()[0]) >> 10 for text in most]
    return {
        "wall": wall,
        "busiest_cpu": max([own, *others]),
        "all_cpu": own + sum(others),
        "mib_beside": max(peaks, default=0),
    }


def wishart(columns: int, threads: int) -> dict[str, float]:
    """Draw one exactly rounded Wishart matrix of the scale of 12 grid bits, and say what it took."""
    begun, own = time.perf_counter(), time.process_time()
    with threadpoolctl.threadpool_limits(1):
        rounded_wishart(columns, columns + 1, 2**24, SYSTEM, threads=threads)
    return {"wall": time.perf_counter() - begun, "cpu": time.process_time() - own}


def main() -> None:
    """Take the times and write NAME.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--columns", type=int, nargs="+", default=[5000, 10_000])
    parser.add_argument("--wishart", type=int, nargs="*", default=[1000, 2000, 5000], help="Columns, likewise.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", required=True)
    chosen = parser.parse_args()
    record: dict[str, Any] = {"cores": os.cpu_count(), "machine": platform.machine()}
    record["columns_from_which_a_release_starts_processes"] = next(
        d for d in range(1, 100_000) if Band.whole(d).entries >= drawing.WORTH_A_PROCESS
    )
    record["load_before"] = round(os.getloadavg()[0], 1)
    for columns in chosen.columns:
        runs: dict[int, list[dict[str, float]]] = {0: [], 1: []}
        for _ in range(chosen.repeats):
            for beside, found in runs.items():
                found.append(drawn(columns, beside))
        one, two = (
            {name: round(statistics.median(run[name] for run in found), 2) for name in found[0]}
            for found in runs.values()
        )
        ratios = {name: round(one[name] / two[name], 2) for name in ("wall", "busiest_cpu")}
        record[f"d={columns}"] = {"one_process": one, "two_processes": two, "one_over_two": ratios}
        print(columns, record[f"d={columns}"], flush=True)
    cores = available_cores()
    for columns in chosen.wishart:
        turns = [(wishart(columns, 1), wishart(columns, cores)) for _ in range(chosen.repeats)]
        record[f"wishart d={columns}"] = {
            f"threads={threads}": {name: round(statistics.median(run[name] for run in each), 2) for name in each[0]}
            for threads, each in zip((1, cores), zip(*turns, strict=True), strict=True)
        }
        print(columns, record[f"wishart d={columns}"], flush=True)
    record["load_after"] = round(os.getloadavg()[0], 1)
    record["parent_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    Path(f"{chosen.output}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
