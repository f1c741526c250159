"""How far the exact, private moment is from what the hardware allows, case by case, on this machine.

The floor of a case is the time all cores need for float64 symmetric rank-k updates of the same rows in memory. The
lower one is that of 16-bit integers: the instructions that multiply the rows alone, on integers that lie packed in the
cache already. Both are measured in turns with dpdist, so all see the same machine. The rows come from chunks in the
page cache, and reading, checksum, clip, grid, verification and sums are part of the time;
starting Python is not. Reading is timed alone too: of compressed rows it is mostly decompression. On the rows of two
cases the whole command ``dpdist release`` is timed, from the start of Python to the release on the disk, and other
libraries do what is nearest to it, their rows in memory, each in a process of its own with a time limit. Then the
start-up times of short commands::

    python -m benchmarks.benchmark --output benchmarks/results/benchmark
    python -m benchmarks.benchmark_picture benchmarks/results/benchmark

With ``--quick`` the tables are small and everything is done three times: it shows that the workflow runs. Wall times
mean something on a quiet machine only; the load before each case is recorded. The processor seconds of one core are
given beside them, for one partition and the floor of its rows in turns: they bear other processes better.

Cases are added to the JSON file that is there. Rows are synthetic; nothing here is private.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import current_process
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

_PINS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
PINNED = {name: os.environ.pop(name, None) for name in _PINS if current_process().name == "MainProcess"}
"""A core type pinned from outside can halve the speed; it is taken away, for floor and product alike, and recorded.

Not in workers, which import this module too: what they find there their engine has set.
"""

import numpy as np  # noqa: E402 - OpenBLAS reads the environment when it is loaded
import numpy.typing as npt  # noqa: E402
import threadpoolctl  # noqa: E402

from dpdist import PrivacyLoss, RowBound, open_rows  # noqa: E402
from dpdist.core.moment import total  # noqa: E402
from dpdist.core.moment.gram import Instructions, available, fastest, gram_sum, integer_rows  # noqa: E402
from dpdist.core.moment.layout import layout_of  # noqa: E402
from dpdist.core.moment.total import add_partials, complete, moment_task, partition_moment  # noqa: E402
from dpdist.core.rows import bounding  # noqa: E402
from dpdist.core.rows.chunks import ChunkReader  # noqa: E402
from dpdist.core.rows.dataset import RowsTable, created, partitions  # noqa: E402
from dpdist.core.runtime.local import Computation, Executor, LocalExecutor, Secret  # noqa: E402
from dpdist.core.triangle import Band  # noqa: E402

Rows = npt.NDArray[Any]
CORES = len(os.sched_getaffinity(0))
BLOCK = 16384
"""With more rows at once the floor gets no faster; with 4096 it is 2 to 4 % slower."""
LIMIT_SECONDS = 60
KEY = bytes(range(32))
"""By which rows are dithered. A release draws its own."""


@dataclass(frozen=True)
class Case:
    """One table: type and number of its rows and columns, the share of the floor aimed at, if any, and the grid."""

    dtype: str
    rows: int
    columns: int
    target: float | None
    compress: bool = False
    grid_bits: int = 12

    @property
    def clip(self) -> float:
        """The clip norm; about half of the rows are longer."""
        return float(np.sqrt(self.columns)) * (1.0 if self.dtype == "float32" else 147.0)


CASES = {
    "f32-784": Case("float32", 400_000, 784, 0.6),
    "u8-784": Case("uint8", 400_000, 784, 0.45),
    # on the grid that `gaussian` takes for so many rows at epsilon 1
    "f32-784-b10": Case("float32", 400_000, 784, 0.6, grid_bits=10),
    "u8-784-b10": Case("uint8", 400_000, 784, 0.45, grid_bits=10),
    "f32-784-lz4": Case("float32", 400_000, 784, None, compress=True),
    "f32-100": Case("float32", 5_000_000, 100, 0.6),
    "u8-100": Case("uint8", 5_000_000, 100, 0.6),
    "f32-54-4m": Case("float32", 4_000_000, 54, 0.8),
    "f32-54": Case("float32", 20_000_000, 54, 0.8),
    "u8-54": Case("uint8", 20_000_000, 54, 0.8),
    "f32-54-b14": Case("float32", 20_000_000, 54, 0.8, grid_bits=14),
    "f32-54-lz4": Case("float32", 20_000_000, 54, None, compress=True),
}
QUICK = 4
"""How many times fewer rows a quick run has."""


def write_rows(case: Case, path: Path, longest: float = 1.0) -> RowsTable:
    """Write independent rows, normal or uniform; a block of random rows, over and over, shifted by its number.

    One column of each block is so many times longer than the others.
    """
    rng = np.random.default_rng(0)
    size = (50_000, case.columns)
    block = rng.standard_normal(size) if case.dtype == "float32" else rng.integers(0, 256, size)
    block = block.astype(case.dtype)
    block[:, 0] *= block.dtype.type(longest)
    names = tuple(f"c{i}" for i in range(case.columns))
    loss = PrivacyLoss.parse("1000", "1e-3")
    with created(path, rows=case.rows, dtype=case.dtype, names=names, budget=loss, compress=case.compress) as writer:
        for start in range(0, case.rows, len(block)):
            writer.append(np.roll(block, start // len(block), axis=1)[: case.rows - start])
    return open_rows(path)


def in_memory(table: RowsTable) -> Rows:
    """Return all rows as float64."""
    rows = np.empty((table.rows, table.columns))
    reader, start = ChunkReader(table, table.chunk_rows), 0
    for index in range(table.chunks):
        for piece in reader.read(index):
            rows[start : start + len(piece)] = piece
            start += len(piece)
    return rows


def share_of_floor(rows: Rows) -> Rows:
    """Add X^T X of rows on one core."""
    total = np.zeros((rows.shape[1], rows.shape[1]))
    product = np.empty_like(total)
    for start in range(0, len(rows), BLOCK):  # NumPy takes BLAS' syrk for this, and lets other threads run meanwhile
        block = rows[start : start + BLOCK]
        total += np.matmul(block.T, block, out=product)
    return total


def floor(rows: Rows) -> None:
    """Add X^T X of all rows on all cores: a thread per core, each with its share and one BLAS thread."""
    with threadpoolctl.threadpool_limits(1), ThreadPoolExecutor(CORES) as pool:
        sum(pool.map(share_of_floor, np.array_split(rows, CORES)))


def threaded_floor(rows: Rows) -> None:
    """Do the same with the threads of BLAS."""
    with threadpoolctl.threadpool_limits(CORES):
        _ = rows.T @ rows


def integers(bound: RowBound) -> Instructions | None:
    """Return what multiplies 16-bit integers fastest here; None if nothing does, or rows of this bound are too long."""
    found = available()[0]
    return None if found is Instructions.FLOAT64 or not integer_rows(bound.norm_bound, bound.largest) else found


def share_of_integer_floor(bound: RowBound, rows: int) -> None:
    """Multiply as many rows of packed integers on one core, over and over those that are in its cache."""
    summing: Any = gram_sum(Band.whole(bound.width), bound.norm_bound, integers(bound), bound.largest)
    at_once = summing.at_once
    summing._panels[:] = 200 << 16 | 200  # noqa: SLF001 - of smaller ones 8 bits would be multiplied
    for _ in range(0, rows, at_once):
        summing._halves = at_once  # noqa: SLF001 - when nothing has to be packed
        summing._flush()  # noqa: SLF001


def integer_floor(bound: RowBound, rows: int) -> None:
    """Multiply as many rows on all cores."""
    with ThreadPoolExecutor(CORES) as pool:
        for _ in pool.map(partial(share_of_integer_floor, bound), [-(-rows // CORES)] * CORES):
            pass


def read(task: total.MomentTask) -> None:
    """Read the rows of a task, check and unpack them."""
    reader = ChunkReader(task.table, 1024)
    for index in task.chunks:
        for _ in reader.read(index):
            pass


def moment(found: Executor, table: RowsTable, bound: RowBound) -> int:
    """Sum the table in threads; return the number of tasks."""
    workers, threads, memory = found.resources()
    layout = layout_of(table, bound, workers, memory, divisible=False, threads=threads)
    (tasks,), (task,) = layout.task_chunks(), layout.moment_tasks(table)
    work = Computation("sum", partition_moment, task, tasks, add_partials, key=Secret(KEY))
    found.reduce(work, partial(complete, table), label=None)
    return len(tasks)


def seconds_of(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how long it takes."""
    started = clock()
    work()
    return clock() - started


def processor_seconds(table: RowsTable, bound: RowBound, rows: Rows, repeats: int) -> dict[str, Any]:
    """Return the seconds of one core, for the first rows: of the floors, of reading, and of dpdist in several ways.

    Everything is done once before it is timed, and in turns. Ratios are to float64, medians of neighbours.
    """
    task = moment_task(table, bound).for_task(partitions(table.chunks, 4 * CORES)[0]).with_key(KEY)
    part = rows[: min(table.rows, len(task.chunks) * table.chunk_rows)]
    work: dict[str, Callable[[], object]] = {
        "floor": partial(share_of_floor, part),
        "read": partial(read, task),
        "moment": partial(partition_moment, task),
        "moment_float64": partial(by_float64, task),
        "moment_without_kernel": partial(without_kernel, task),
    }
    if integers(bound) is not None:
        work["floor_int16"] = partial(share_of_integer_floor, bound, len(part))
    times: dict[str, list[float]] = {name: [] for name in work}
    with threadpoolctl.threadpool_limits(1):
        for turn in range(repeats + 1):
            for name, each in work.items():
                took = seconds_of(each, time.thread_time)
                if turn:
                    times[name].append(took)
    found = {name: summary(each) for name, each in times.items()}
    return found | {f"{name}_ratio": ratio(each, times["floor"]) for name, each in times.items() if name != "floor"}


def ratio(seconds: list[float], floors: list[float]) -> float:
    """Return the median of the ratios of neighbours."""
    return median(some / floor for some, floor in zip(seconds, floors, strict=True))


def by_float64(task: total.MomentTask) -> None:
    """Sum with float64 instead of integers."""
    with mock.patch.object(total, "gram_sum", lambda band, norm, *_: gram_sum(band, norm, Instructions.FLOAT64)):
        partition_moment(task)


def without_kernel(task: total.MomentTask) -> None:
    """Sum with float64, and bound rows by NumPy alone."""
    with mock.patch.object(bounding, "compiled_kernel", return_value=None):
        by_float64(task)


def peak_mib(process: int | str = "self") -> float:
    """Return the peak memory of a process so far; ru_maxrss would begin with that of the process's parent."""
    return int(Path(f"/proc/{process}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def summary(seconds: list[float]) -> dict[str, Any]:
    """Return minimum, median and all."""
    return {"min": min(seconds), "median": median(seconds), "all": [round(s, 4) for s in seconds]}


def commands(table: RowsTable, case: Case, repeats: int) -> dict[str, Any]:
    """Return the seconds of the whole command that releases the table, once before it is timed."""
    folder = Path(table.path).parent
    environment = {**os.environ, "DPDIST_STATE_HOME": str(folder / "state")}

    def dpdist(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "dpdist", *words], cwd=folder, env=environment, check=True)  # noqa: S603

    dpdist("ledger", "create", "rows.ledger", "--rows", "rows.zarr")
    asked = ("--epsilon", "1", "--delta", "1e-9", "--clip", str(case.clip))
    times = [
        seconds_of(partial(dpdist, "release", "rows.zarr", f"release-{i}.zarr", *asked, "--id", f"release-{i}"))
        for i in range(repeats + 1)
    ]
    return summary(times[1:])


def rival(name: str, table: RowsTable, case: Case, pythons: list[str]) -> dict[str, Any]:
    """Run another library, by the first interpreter that has it."""
    found: dict[str, Any] = {}
    for python in pythons:
        found = rival_by(python, name, table, case)
        if "missing" not in found:
            break
    return found


def rival_by(python: str, name: str, table: RowsTable, case: Case) -> dict[str, Any]:
    """Run another library in its own process until it is done or its time is up."""
    command = [python, str(Path(__file__).with_name("rivals.py")), name, str(table.path), str(case.clip), str(CORES)]
    threads = {"OMP_NUM_THREADS": str(CORES)}
    try:
        run = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False, env={**os.environ, **threads}
        )
        text, failed = run.stdout, run.stderr.strip().splitlines()[-1:] if run.returncode else []
    except subprocess.TimeoutExpired as late:
        text, failed = (late.stdout or b"").decode(), [f"more than {LIMIT_SECONDS} s"]
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    times = [line["seconds"] for line in lines if "seconds" in line]
    if not times:
        return next(iter(lines), {"failed": " ".join(failed)})
    return {**summary(times), "peak_mib": max(line["peak_mib"] for line in lines)}


def measured(case: Case, folder: Path, *, repeats: int, rivals: list[str], pythons: list[str]) -> dict[str, Any]:
    """Measure one case: floors and dpdist in turns, then the others."""
    table = write_rows(case, folder / "rows.zarr")
    bound = RowBound(case.columns, case.clip, case.grid_bits)
    rows = in_memory(table)
    found = LocalExecutor()
    tasks = moment(found, table, bound)
    work: dict[str, Callable[[], object]] = {
        "floor_threads": partial(floor, rows),
        "floor_blas": partial(threaded_floor, rows),
        "moment": partial(moment, found, table, bound),
    }
    if integers(bound) is not None:
        work["floor_int16"] = partial(integer_floor, bound, case.rows)
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, each in work.items():
            times[name].append(seconds_of(each))
    processor = processor_seconds(table, bound, rows, repeats)
    del rows
    record: dict[str, Any] = {name: summary(each) for name, each in times.items()}
    best = min(("floor_threads", "floor_blas"), key=lambda name: record[name]["median"])
    record |= {
        "rows": case.rows, "columns": case.columns, "dtype": case.dtype, "compressed": case.compress,
        "bounded_by": "NumPy" if bounding.compiled_kernel() is None else "numba", "target": case.target,
        "multiplied_by": fastest(bound.norm_bound, bound.largest).name,
        "grid_bits": case.grid_bits, "tasks": tasks,
        "ratio_median": record["moment"]["median"] / record[best]["median"],
        "ratio_min": record["moment"]["min"] / min(record[name]["min"] for name in ("floor_threads", "floor_blas")),
        "ratio_int16": None if integers(bound) is None else record["floor_int16"]["median"] / record[best]["median"],
        "processor": processor,
        "command": commands(table, case, repeats) if rivals else None,
        "rivals": {name: rival(name, table, case, pythons) for name in rivals},
    }  # fmt: skip
    return record


def machine() -> dict[str, Any]:
    """Describe what it runs on."""
    model = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    blas = [
        f"{lib['internal_api']} {lib['version']} {lib.get('architecture')}" for lib in threadpoolctl.threadpool_info()
    ]
    return {
        "cores": CORES, "processor": model[0] if model else platform.machine(), "load_before": os.getloadavg()[0],
        "blas": sorted(set(blas)), "taken_from_environment": {k: v for k, v in PINNED.items() if v},
        "python": platform.python_version(), "numpy": np.__version__,
    }  # fmt: skip


def main() -> None:
    """Measure the chosen cases and add them to the results."""
    from benchmarks import start_up  # noqa: PLC0415 - after the environment is set
    from benchmarks.rivals import RIVALS  # noqa: PLC0415 - likewise

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rivals", nargs="*", choices=list(RIVALS), default=list(RIVALS))
    parser.add_argument(
        "--python", nargs="+", default=[sys.executable], help="Interpreters of environments that have the rivals."
    )
    parser.add_argument("--rival-cases", nargs="*", choices=list(CASES), default=["f32-784", "f32-54-4m"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="Small tables, three repeats.")
    parser.add_argument("--folder", help="Where to put the rows; a temporary folder by default.")
    parser.add_argument("--output", required=True, help="Names the results: OUTPUT.json.")
    chosen = parser.parse_args()
    place = Path(f"{chosen.output}.json")
    results: dict[str, Any] = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    if "cases" not in results:  # it is of an older form
        results = {}
    repeats = 3 if chosen.quick else chosen.repeats
    for name in chosen.cases:
        case = replace(CASES[name], rows=CASES[name].rows // QUICK) if chosen.quick else CASES[name]
        with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
            found = {"machine": machine()} | measured(
                case,
                Path(folder),
                repeats=repeats,
                rivals=chosen.rivals if name in chosen.rival_cases else [],
                pythons=chosen.python,
            )
        results.setdefault("cases", {})[name] = found
        place.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(
            f"{name}: floor {found['floor_threads']['median']:.3f} / {found['floor_blas']['median']:.3f} s, moment "
            f"{found['moment']['median']:.3f} s, ratio {found['ratio_median']:.3f} (min {found['ratio_min']:.3f}), "
            f"by {found['multiplied_by']}, one core {found['processor']['moment_ratio']:.3f}, "
            f"{found['tasks']} tasks",
            flush=True,
        )
    results["start_up"] = {"machine": machine(), "commands": start_up.costs(start_up.ROOT, repeats)}
    place.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
