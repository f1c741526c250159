"""Processor seconds of one core for the exact sum of a table, for everything that can multiply its rows, beside BLAS.

The rows are read, checked, bounded and summed as a worker does it. The floor is float64 ``X^T X`` of the same rows in
memory. Both are timed in turns, so that other processes slow both: the figures are medians of the ratios of neighbours.
The integers of all ways are compared::

    python -m workflows.gram_times --output workflows/results/gram_times
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

_PINS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
for _name in _PINS:  # what is pinned from outside can halve the speed of the floor
    os.environ.pop(_name, None)

import threadpoolctl  # noqa: E402 - OpenBLAS reads the environment when it is loaded

from dpdist import RowBound  # noqa: E402
from dpdist.moment import total  # noqa: E402
from dpdist.moment.gram import Arithmetic, GramSum, available  # noqa: E402
from dpdist.moment.total import moment_task, partition_moment  # noqa: E402
from workflows.benchmark import Case, in_memory, machine, share_of_floor, write_rows  # noqa: E402

ENTRIES = 32_000_000
"""Of a table, read by one task."""
CASES = [(columns, dtype) for columns in (784, 192, 96, 54, 32) for dtype in ("float32", "uint8")]
BITS = (11, 12)
REPEATS = 9


def measured(columns: int, dtype: str, bits: int, folder: Path) -> dict[str, Any]:
    """Time one table: the floor, and then each arithmetic, over and over."""
    case = Case(dtype, ENTRIES // columns, columns, 0.0)
    table = write_rows(case, folder / "rows.zarr")
    task = moment_task(table, RowBound(columns, case.clip, bits))
    rows = in_memory(table)
    seconds: dict[str, list[float]] = {"floor": [], **{each.name: [] for each in available()}}
    sums = set()
    for _ in range(REPEATS + 1):  # the first is not counted
        begun = time.thread_time()
        share_of_floor(rows)
        seconds["floor"].append(time.thread_time() - begun)
        for arithmetic in available():
            with mock.patch.object(total, "GramSum", lambda band, norm, _, by=arithmetic: GramSum(band, norm, by)):
                begun = time.thread_time()
                found = partition_moment(task)
                seconds[arithmetic.name].append(time.thread_time() - begun)
            sums.add(found.values.tobytes())
    if len(sums) != 1:
        raise AssertionError("every way to multiply gives the same integers")
    floors = seconds.pop("floor")[1:]
    ratios = {
        name: median(some / floor for some, floor in zip(each[1:], floors, strict=True))
        for name, each in seconds.items()
    }
    return {"rows": case.rows, "columns": columns, "dtype": dtype, "grid_bits": bits, "floor": floors, "ratio": ratios}


def main() -> None:
    """Measure all cases; write JSON and a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", required=True, help="Names the results: OUTPUT.json and OUTPUT.md.")
    chosen = parser.parse_args()
    found = []
    with threadpoolctl.threadpool_limits(1), mock.patch.object(total, "COMPILED_VALUES", 0):  # as of a large table
        for columns, dtype in CASES:
            for bits in BITS:
                with TemporaryDirectory() as folder:
                    found.append(measured(columns, dtype, bits, Path(folder)))
                print(json.dumps({**found[-1], "floor": median(found[-1]["floor"])}), flush=True)
    about = machine()
    Path(f"{chosen.output}.json").write_text(json.dumps({"machine": about, "cases": found}, indent=1) + "\n", "utf-8")
    names = [each.name for each in Arithmetic if each in available()]
    lines = [
        "Processor seconds of one core for the exact sum, over those of float64 BLAS for the same rows in memory:",
        f"medians of {REPEATS} pairs in turns. {about['processor']}, {', '.join(about['blas'])}.",
        "The integers are the same.",
        "",
        "| rows | grid bits | " + " | ".join(names) + " |",
        "|---|---|" + "---|" * len(names),
    ]  # fmt: skip
    for each in found:
        ratios = " | ".join(f"{each['ratio'][name]:.2f}" for name in names)
        lines.append(f"| {each['rows']} x {each['columns']} {each['dtype']} | {each['grid_bits']} | {ratios} |")
    Path(f"{chosen.output}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
