"""How much faster several workers ingest than one, of each kind of source that can be read in parts.

In turns, by one warm worker and by several: the same file into a new table, which must have the same bytes.
The source is in the page cache, so no storage reads faster; the rows are flushed to the disk of ``--folder``::

    python -m benchmarks.ingest_times --output benchmarks/results/ingest_times

Rows are synthetic; nothing here is private.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.benchmark import CORES, machine, seconds_of, summary  # isort: skip - it unpins BLAS

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from dpdist import Cluster, ingest_rows

COLUMNS = 64
BLOCK = 100_000
KINDS = ("parquet", "npy", "csv")


def write_source(path: Path, rows: int) -> None:
    """Write rows of normal numbers: a block of them, over and over, shifted by its number."""
    block = np.random.default_rng(0).standard_normal((BLOCK, COLUMNS)).astype(np.float32)
    if path.suffix == ".npy":
        whole = np.lib.format.open_memmap(path, "w+", np.float32, (rows, COLUMNS))
        for start in range(0, rows, BLOCK):
            whole[start : start + BLOCK] = (block + start // BLOCK)[: rows - start]
        whole.flush()
        return
    schema = pa.schema([(f"c{i}", pa.float32()) for i in range(COLUMNS)])
    make: Any = pq.ParquetWriter if path.suffix == ".parquet" else pacsv.CSVWriter
    with make(path, schema) as out:
        for start in range(0, rows, BLOCK):
            columns = list((block + start // BLOCK)[: rows - start].T)
            out.write_table(pa.table([pa.array(np.ascontiguousarray(each)) for each in columns], schema=schema))


def digest_of(rows: Path) -> str:
    """Return a digest of all chunks of a table."""
    found = sha256()
    for path in sorted(rows.glob("c/*/0")):
        found.update(path.parent.name.encode() + path.read_bytes())
    return found.hexdigest()


def measured(kind: str, folder: Path, rows: int, workers: int, repeats: int) -> dict[str, Any]:
    """Measure one kind of source."""
    source, target = folder / f"source.{kind}", folder / "rows.zarr"
    write_source(source, rows)
    with ExitStack() as stack:
        ways: dict[str, Cluster | None] = {
            str(count): stack.enter_context(Cluster(workers=count).kept()) for count in (1, workers)
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        bits = set()
        for turn in range(repeats + 1):
            for name, cluster in ways.items():
                took = seconds_of(_ingest(source, target, cluster))
                bits.add(digest_of(target))
                shutil.rmtree(target)
                if turn:  # the first one loads libraries
                    times[name].append(took)
    if len(bits) > 1:
        raise AssertionError("the table depends on who reads")
    record = {f"workers_{name}": summary(seconds) for name, seconds in times.items()}
    one, many = (record[f"workers_{count}"]["median"] for count in (1, workers))
    stored = rows * COLUMNS * 4
    return {
        "rows": rows, "columns": COLUMNS, "source_bytes": source.stat().st_size, "times_faster": one / many,
        "stored_mb_per_second": stored / 1e6 / many, **record,
    }  # fmt: skip


def _ingest(source: Path, target: Path, cluster: Cluster | None) -> Callable[[], object]:
    return lambda: ingest_rows(source, target, cluster=cluster)


def main() -> None:
    """Measure the chosen kinds, write them as JSON, and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--workers", type=int, default=CORES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="Where to write [default: where temporary files are].")
    parser.add_argument("--output", required=True, help="Names the results: OUTPUT.json.")
    chosen = parser.parse_args()
    results: dict[str, Any] = {}
    for kind in chosen.kinds:
        with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
            found = measured(kind, Path(folder), chosen.rows, chosen.workers, chosen.repeats)
        results[kind] = {"machine": machine(), **found}
        print(f"{kind}: {found['times_faster']:.2f} times faster by {chosen.workers} workers than by one")
    Path(f"{chosen.output}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
