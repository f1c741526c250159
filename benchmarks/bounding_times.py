"""How far the time of bounding tells what the rows are like: blocks and whole partitions of made-up rows.

Rows are rounded without bias. A row whose squared norm float64 does not hold is made shorter first. All times here are
the least of many, in processor seconds on one thread::

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.bounding_times --output benchmarks/results/bounding_times
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import RowBound, open_rows
from dpdist.core.moment.total import moment_task, partition_moment
from dpdist.core.rows import bounding, dither
from dpdist.core.rows.dataset import created

COLUMNS = (8, 100, 784)
BLOCK, PARTITION = 1000, 8_000_000
"""Rows of a block, and entries of a partition."""
REPEATS = 25
BITS = 12
KEY = bytes(range(32))
Rows = npt.NDArray[np.float64]


def least(work: Callable[[], object]) -> float:
    """Return the least processor seconds of several runs, after one that is not counted."""
    work()
    found = []
    for _ in range(REPEATS):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found)


def tables(rows: int, columns: int) -> dict[str, Rows]:
    """Return tables of one shape: all rows within the clip norm 1, and what else there may be."""
    inside = np.random.default_rng(columns).normal(size=(rows, columns)) * (0.3 / columns**0.5)

    def with_factor(factor: float, chosen: slice) -> Rows:
        changed: Rows = inside.copy()
        changed[chosen] *= factor
        return changed

    one, half, everything = slice(5, 6), slice(None, None, 2), slice(None)
    return {
        "inside": inside,
        "one longer": with_factor(100, one),
        "one of infinite square": with_factor(1e200, one),
        "one with NaN": with_factor(np.nan, one),
        "all longer": with_factor(100, everything),
        "half of infinite square": with_factor(1e200, half),
        "all of infinite square": with_factor(1e200, everything),
    }


def block_seconds(columns: int) -> dict[str, float]:
    """Time the bounding of one block."""
    bound, out = RowBound(columns, 1.0, BITS), np.empty((BLOCK, columns))
    dithers = dither.Dithers(dither.DitherKey(KEY), 0)
    blocks = tables(BLOCK, columns)
    return {name: least(lambda rows=rows: bound.apply(rows, out, dithers)) for name, rows in blocks.items()}  # type: ignore[misc]


def partition_seconds(columns: int) -> dict[str, float]:
    """Time a partition as a worker runs it: read, bounded and summed."""
    bound, found = RowBound(columns, 1.0, BITS), {}
    with TemporaryDirectory() as folder:
        for number, (name, rows) in enumerate(tables(PARTITION // columns, columns).items()):
            path = Path(folder, f"{number}.zarr")
            names = tuple(f"c{i}" for i in range(columns))
            with created(path, rows=len(rows), dtype="float64", names=names, budget=None) as writer:
                writer.append(rows)
            task = moment_task(open_rows(path), bound).with_key(KEY)
            found[name] = least(lambda task=task: partition_moment(task))  # type: ignore[misc]
    return found


def main() -> None:
    """Time blocks and partitions, with and without the compiled pass; write JSON and a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", required=True, help="Names the results: OUTPUT.json and OUTPUT.md.")
    chosen = parser.parse_args()
    compiled = bounding.compiled_kernel
    results: dict[str, Any] = {}
    for passes in ("compiled", "numpy"):
        bounding.compiled_kernel = compiled if passes == "compiled" else lambda: None  # type: ignore[assignment]
        for columns in COLUMNS:
            results[f"block of {BLOCK} rows, {columns} columns, {passes}"] = block_seconds(columns)
            results[f"partition, {columns} columns, {passes}"] = partition_seconds(columns)
    record = {"machine": platform.machine(), "cores": os.cpu_count(), "seconds": results}
    Path(f"{chosen.output}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    names = list(next(iter(results.values())))
    lines = [
        f"Least of {REPEATS} runs on one thread: processor milliseconds where all rows are inside the clip norm, and",
        "how many times that with other rows.",
        f"A partition has {PARTITION // 10**6} million entries and is read, bounded and summed.",
        "",
        f"| what | {names[0]}, ms | " + " | ".join(names[1:]) + " |",
        "|---|" + "---|" * len(names),
    ]
    for what, seconds in results.items():
        base = seconds[names[0]]
        ratios = " | ".join(f"{seconds[name] / base:.2f}" for name in names[1:])
        lines.append(f"| {what} | {base * 1e3:.3f} | {ratios} |")
    Path(f"{chosen.output}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
