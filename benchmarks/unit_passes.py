"""A pass over rows of whole privacy units, over one without units: the ratio of their times.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python -m benchmarks.unit_passes benchmarks/results/unit_passes

Rows of float32 belong to units of some rows each, whose means differ. One thread sums them, with single rows clipped to
1.75 sqrt(d), and with units bounded so that a twentieth of them, or nearly all, exceed the bound. The times are the
medians of five passes, in turns; the files are in the cache of the system.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dpdist
from dpdist.core.moment.gram import fastest
from dpdist.core.moment.total import moment_task, partition_moment
from dpdist.core.rows.bounding import RowBound

VALUES, BITS, RUNS = 96_000_000, 12, 5


def measured(columns: int, size: int, random: np.random.Generator) -> dict[str, Any]:
    """Return the seconds of passes over a table."""
    rows = VALUES // columns
    owners = random.permutation(np.repeat(np.arange(rows // size + 1), size)[:rows])
    means = random.normal(scale=0.7, size=(rows // size + 1, columns)).astype(np.float32)
    values = random.normal(size=(rows, columns)).astype(np.float32) + means[owners]
    norms = [np.linalg.norm(unit @ unit.T) for unit in (values[owners == owner] for owner in range(200))]
    bounds = {"rows": RowBound(columns, 1.75 * columns**0.5, BITS)}
    for name, quantile in (("a twentieth beyond", 0.95), ("nearly all beyond", 0.02)):
        bounds[name] = RowBound(columns, float(np.quantile(norms, quantile)) ** 0.5, BITS, unit_norm="frobenius")
    seconds: dict[str, list[float]] = {name: [] for name in bounds}
    with tempfile.TemporaryDirectory() as folder:
        data = {"owner": owners, **{f"c{i}": values[:, i] for i in range(columns)}}
        pq.write_table(pa.table(data), f"{folder}/table.parquet")
        table = dpdist.ingest_rows(f"{folder}/table.parquet", f"{folder}/rows.zarr", privacy_unit="owner")
        for _ in range(RUNS + 1):
            for name, bound in bounds.items():
                task = moment_task(table, bound).with_key(os.urandom(32))
                start = time.perf_counter()
                partition_moment(task)
                seconds[name].append(time.perf_counter() - start)
    medians = {name: float(np.median(times[1:])) for name, times in seconds.items()}  # the first one compiles
    ratios = {name: medians[name] / medians["rows"] for name in medians if name != "rows"}
    return {"columns": columns, "rows of a unit": size, "seconds": medians["rows"], **ratios}


def main() -> None:
    """Measure, and write the results as Markdown and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    random = np.random.default_rng(1)
    cases = [(16, 10), (64, 10), (256, 10), (64, 1), (64, 40), (64, 400)]
    results = [measured(columns, size, random) for columns, size in cases]
    heads = list(results[0])
    lines = [
        "# Passes over whole privacy units", "",
        f"{VALUES:,} values, one thread, {fastest(4**BITS).name}: ratios to the seconds of single rows.", "",
        f"| {' | '.join(heads)} |", "|" + "---|" * len(heads),
        *(f"| {' | '.join(f'{value:.3g}' for value in result.values())} |" for result in results),
    ]  # fmt: skip
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
