"""Run time of one draw of every mechanism, on one core, against the number of columns.

The moment is synthetic (eigenvalues 1/i of n = 60000 rows), so nothing here is private. A mechanism whose cost grows
too fast is left out above the number of columns given for it, and the table says so::

    taskset --cpu-list 0 python -m benchmarks.draw_times --output draw_times
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from dpdist import Neighbours, PrivacyLoss, UsageError
from dpdist.mechanisms import registry
from dpdist.mechanisms.info import DeltaUse
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.moment.operator import MomentMatrix
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.floats import haar
from dpdist.triangle import rounded

ROWS = 60_000
COMPONENTS = 10
PRACTICAL = {"nuclear": 100, "orbit-lowrank": 64, "orbit": 100, "ppca": 100}
"""Above so many columns one draw takes minutes to days."""
OPTIONS: dict[str, Any] = {
    "components": COMPONENTS, "iterations": 4, "rows": ROWS, "sketch": 8000, "spectrum": (1.0,) * COMPONENTS,
}  # fmt: skip


def timed(name: str, columns: int, grid_bits: int, repeats: int) -> dict[str, float | str]:
    """Return seconds of calibration and of one draw (the least of the repeats), and the peak memory so far in MiB."""
    info = MECHANISMS[name].info
    options = {option.name: OPTIONS.get(option.name, 1) for option in info.options if option.default is None}
    loss = PrivacyLoss.parse("1", "0" if info.delta is DeltaUse.NONE else "1e-6")
    unit = 4**grid_bits
    query = LatticeQuery(columns, unit, Neighbours.REPLACE_ONE)
    basis = haar(columns, columns, SYSTEM)
    values = 1 / np.arange(1, columns + 1)
    moment = MomentMatrix(rounded((basis * (ROWS * unit * values / values.sum())) @ basis.T), columns)
    started = time.perf_counter()
    try:
        found = registry.calibrated(name, query, loss, options)
    except UsageError as error:
        return {"refused": str(error)}
    calibrated = time.perf_counter()
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        found.answer(moment, SYSTEM)
        seconds.append(time.perf_counter() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"calibration": calibrated - started, "draw": min(seconds), "peak_mib": peak}


def main() -> None:
    """Time the draws, write them as JSON and Markdown, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mechanisms", nargs="+", choices=list(MECHANISMS), default=list(MECHANISMS))
    parser.add_argument("--columns", nargs="+", type=int, default=[100, 784, 2000])
    parser.add_argument("--grid-bits", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", required=True, help="Names the results: OUTPUT.json and OUTPUT.md.")
    chosen = parser.parse_args()
    results: dict[str, dict[str, dict[str, float | str]]] = {}
    for columns in chosen.columns:
        for name in chosen.mechanisms:
            if columns > PRACTICAL.get(name, columns):
                cell: dict[str, float | str] = {"left_out": f"above d = {PRACTICAL[name]}"}
            else:
                cell = timed(name, columns, chosen.grid_bits, chosen.repeats)
            results.setdefault(name, {})[str(columns)] = cell
            print(name, columns, cell, flush=True)
    record = {"machine": platform.machine(), "cores": os.cpu_count(), "results": results}
    Path(f"{chosen.output}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    lines = [
        f"Seconds of one draw (least of {chosen.repeats}), one core.",
        f"Epsilon 1, replace-one, {chosen.grid_bits} grid bits, k = {COMPONENTS}.",
        "",
        "| mechanism | " + " | ".join(f"d = {columns}" for columns in chosen.columns) + " |",
        "|---|" + "---|" * len(chosen.columns),
    ]
    for name, cells in results.items():
        texts = [f"{c['draw']:.3f}" if "draw" in c else str(c.get("left_out", "refused")) for c in cells.values()]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    Path(f"{chosen.output}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
