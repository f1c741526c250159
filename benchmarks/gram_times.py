"""Processor seconds of one core for the exact sum of a table, for everything that can multiply its rows, beside BLAS.

The rows are read, checked, dithered and summed as a worker does it. The floor is float64 ``X^T X`` of the same rows in
memory. Both are timed in turns, so that other processes slow both: the figures are medians of the ratios of neighbours.
The integers of all ways are compared. Beside the ratios stand nanoseconds for each entry of a row: of reading, of
rounding and packing it, and of its products::

    python -m benchmarks.gram_times --output benchmarks/results/gram_times

``NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx,+avx2,+fma`` in the environment leaves out what newer processors have.
"""

from __future__ import annotations

import argparse
import json
import math
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

from benchmarks.benchmark import KEY, Case, in_memory, machine, share_of_floor, write_rows  # noqa: E402
from dpdist import RowBound  # noqa: E402
from dpdist.core.moment import total  # noqa: E402
from dpdist.core.moment.gram import Instructions, available, gram_sum  # noqa: E402
from dpdist.core.moment.total import BoundedBlocks, moment_task, partition_moment  # noqa: E402

ENTRIES = 16_000_000
"""Of a table, read by one task."""
CASES = [
    (columns, dtype, bits, 1.0)
    for columns in (784, 192, 100, 54, 32, 10)
    for dtype in ("float32", "uint8")
    for bits in (10, 12, 14)
] + [(columns, "float32", 14, 1000.0) for columns in (784, 54)]
"""Columns, type, grid bits, and how much longer one column is: fewest rows are added at once where it has all norm."""
REPEATS = 7


def measured(columns: int, dtype: str, bits: int, longest: float, folder: Path) -> dict[str, Any]:
    """Time one table: the floor, and then each instructions, over and over."""
    case = Case(dtype, ENTRIES // columns, columns, 0.0)
    table = write_rows(case, folder / "rows.zarr", longest)
    bound = RowBound(columns, case.clip, bits)
    task = moment_task(table, bound).with_key(KEY)
    rows = in_memory(table)
    seconds: dict[str, list[float]] = {"floor": [], **{each.name: [] for each in available()}}
    sums = set()
    for _ in range(REPEATS + 1):  # the first is not counted
        begun = time.thread_time()
        share_of_floor(rows)
        seconds["floor"].append(time.thread_time() - begun)
        for instructions in available():
            with mock.patch.object(
                total, "gram_sum", lambda band, norm, _, largest, by=instructions: gram_sum(band, norm, by, largest)
            ):
                begun = time.thread_time()
                found = partition_moment(task)
                seconds[instructions.name].append(time.thread_time() - begun)
            sums.add(found.values.tobytes())
    if len(sums) != 1:
        raise AssertionError("every way to multiply gives the same integers")
    floors = seconds.pop("floor")[1:]
    ratios = {
        name: median(some / floor for some, floor in zip(each[1:], floors, strict=True))
        for name, each in seconds.items()
    }
    return {
        "rows": case.rows, "columns": columns, "dtype": dtype, "grid_bits": bits, "longest": longest,
        "floor": floors, "ratio": ratios, "phases": phases(task, seconds[available()[0].name][1:]),
    }  # fmt: skip


def phases(task: total.MomentTask, whole: list[float]) -> dict[str, float]:
    """Return nanoseconds for each entry by the fastest instructions: of reading, rounding and packing, and the rest."""
    entries = task.table.rows * task.table.columns
    read, packed = [], []
    for _ in range(REPEATS):
        blocks, sums = BoundedBlocks(task, 1), gram_sum(task.band, task.bound.norm_bound, largest=task.bound.largest)
        begun = time.thread_time()
        for _ in blocks.batches(total.stored_rows(task.table, sums.at_once)):
            pass
        read.append(time.thread_time() - begun)
        if sums.instructions is Instructions.FLOAT64:
            return {"read": min(read) / entries * 1e9, "all": min(whole) / entries * 1e9}
        sums._multiply = lambda *_: None  # type: ignore[attr-defined] # noqa: SLF001 - all but the products
        begun = time.thread_time()
        for rows, dithers in blocks.batches(total.stored_rows(task.table, sums.at_once)):
            sums.add_dithered(rows, task.bound, dithers)
        packed.append(time.thread_time() - begun)
    spent = {"read": min(read), "pack": min(packed) - min(read), "product": min(whole) - min(packed)}
    return {name: each / entries * 1e9 for name, each in spent.items()} | {"all": min(whole) / entries * 1e9}


def main() -> None:
    """Measure all cases; write JSON and a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", required=True, help="Names the results: OUTPUT.json and OUTPUT.md.")
    load = os.getloadavg()[0]
    chosen = parser.parse_args()
    found = []
    with threadpoolctl.threadpool_limits(1), mock.patch.object(total, "COMPILED_VALUES", 0):  # as of a large table
        for case in CASES:
            with TemporaryDirectory() as folder:
                found.append(measured(*case, Path(folder)))
            print(json.dumps({**found[-1], "floor": median(found[-1]["floor"])}), flush=True)
    about = machine()
    Path(f"{chosen.output}.json").write_text(json.dumps({"machine": about, "cases": found}, indent=1) + "\n", "utf-8")
    names = [each.name for each in Instructions if each in available()]
    lines = [
        "Processor seconds of one core for the exact sum, over those of float64 BLAS for the same rows in memory:",
        f"medians of {REPEATS} pairs in turns. {about['processor']}, {', '.join(about['blas'])};",
        f"processes ready to run on its {about['cores']} cores: {load:.0f} before, {os.getloadavg()[0]:.0f} after.",
        f"The integers are the same. The last columns: nanoseconds for an entry by {names[0]}, the least of as many.",
        "",
        "| rows | grid bits | " + " | ".join(names) + " | read | round and pack | product |",
        "|---|---|" + "---|" * (len(names) + 3),
    ]  # fmt: skip
    for each in found:
        ratios = " | ".join(f"{each['ratio'][name]:.2f}" for name in names)
        spent = " | ".join(f"{each['phases'].get(name, math.nan):.2f}" for name in ("read", "pack", "product"))
        what = f"{each['rows']} x {each['columns']} {each['dtype']}{', one long' if each['longest'] > 1 else ''}"
        lines.append(f"| {what} | {each['grid_bits']} | {ratios} | {spent} |")
    Path(f"{chosen.output}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
