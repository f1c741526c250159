"""How far projection is from the speed of reading and writing, and from that of the product, on this machine.

In turns, by the same warm workers: the projection as the command does it, reading the rows with their checksums,
writing as many bytes of scores and flushing them to the disk, and multiplying rows that are in the cache already. The
rows are in the page cache, so no storage reads faster::

    python -m benchmarks.projection_times --output benchmarks/results/projection_times

Rows are synthetic; nothing here is private.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.benchmark import CASES, CORES, machine, seconds_of, summary, write_rows  # isort: skip - it unpins BLAS

import numpy as np

from dpdist import (
    Cluster,
    PrivacyLoss,
    ReleaseRequest,
    create_ledger,
    fit_components,
    open_model,
    project_rows,
    release_rows,
)
from dpdist.core.paths import local
from dpdist.core.pipeline.projection import ProjectionTask, scores_dtype, scores_of
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.dataset import partitions
from dpdist.core.rows.writing import chunk_key
from dpdist.core.runtime.local import Computation
from dpdist.core.storage.arrays import ROOT, ChunkWriter
from dpdist.core.storage.atomic import sync_tree

COMPONENTS = 50
WORK = ("projection", "read", "write", "product", "tasks")


def nothing(_: ProjectionTask) -> None:
    """Do what every task costs without its work."""


def read(task: ProjectionTask) -> None:
    """Read and check the rows."""
    reader = ChunkReader(task.table, 128)
    for index in task.chunks:
        for _ in reader.read(index):
            pass


def write(task: ProjectionTask) -> None:
    """Write as many scores."""
    scores = ChunkWriter((task.table.chunk_rows, COMPONENTS), scores_dtype(task.table.dtype, task.components))
    scores.rows[:] = 1
    for index in task.chunks:
        scores.write(task.scores, chunk_key(index))


def multiply(task: ProjectionTask) -> None:
    """Multiply as many rows, always the same ones."""
    dtype = scores_dtype(task.table.dtype, task.components)
    rows, step = len(task.chunks) * task.table.chunk_rows, 128
    block, vectors = np.ones((step, task.table.columns), dtype), np.ones((task.table.columns, COMPONENTS), dtype)
    out = np.empty((step, COMPONENTS), dtype)
    for _ in range(0, rows, step):
        np.matmul(block, vectors, out=out)


def measured(name: str, folder: Path, repeats: int) -> dict[str, Any]:
    """Measure one case of the benchmark, by as many workers as there are cores."""
    case = CASES[name]
    table = write_rows(case, folder / "rows.zarr")
    create_ledger(table.path.with_suffix(".ledger"), table.path, PrivacyLoss.parse(1))
    request = ReleaseRequest(mechanism="two-sided-wishart", loss=PrivacyLoss.parse(1), clip_norm=case.clip)
    model, target = folder / "model.zarr", folder / "scores.zarr"
    with Cluster(workers=CORES).kept() as cluster, cluster.connected() as found:
        release_rows(table.path, folder / "release.zarr", request, cluster=cluster)
        fit_components(folder / "release.zarr", model, COMPONENTS)
        with scores_of(table, open_model(model), model, folder / "others.zarr") as task:

            def mapped(function: Callable[[ProjectionTask], None]) -> None:
                found.map(Computation("test", function, task, partitions(table.chunks, 8 * CORES)), "Working")

            def written() -> None:
                mapped(write)
                sync_tree(local(str(task.scores)))

            work: dict[str, Callable[[], object]] = {
                "projection": partial(project_rows, table.path, model, target, cluster=cluster),
                "read": partial(mapped, read),
                "write": written,
                "product": partial(mapped, multiply),
                "tasks": partial(mapped, nothing),
            }
            times: dict[str, list[float]] = {each: [] for each in WORK}
            for turn in range(repeats + 1):
                for each in WORK:
                    found.require_visible(table.probe, ROOT)  # those of the last turn are gone
                    took = seconds_of(work[each])
                    if turn:  # the first one loads libraries
                        times[each].append(took)
                shutil.rmtree(target)
    record = {each: summary(seconds) for each, seconds in times.items()}
    least = record["read"]["median"] + record["write"]["median"]
    return {
        "rows": case.rows, "columns": case.columns, "components": COMPONENTS, "dtype": case.dtype,
        "times_reading_and_writing": record["projection"]["median"] / least,
        "rows_gb_per_second": table.rows * table.row_bytes / 1e9 / record["projection"]["median"],
        **record,
    }  # fmt: skip


def main() -> None:
    """Measure the chosen cases, write them as JSON, and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=["f32-784", "u8-784", "f32-100"])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", required=True, help="Names the results: OUTPUT.json.")
    chosen = parser.parse_args()
    results: dict[str, Any] = {}
    for name in chosen.cases:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = {"machine": machine(), **measured(name, Path(folder), chosen.repeats)}
        found = results[name]
        each = ", ".join(f"{work} {found[work]['median']:.3f} s" for work in WORK)
        print(f"{name}: {each}; {found['times_reading_and_writing']:.2f} times reading and writing")
    Path(f"{chosen.output}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
