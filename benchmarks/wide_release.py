"""A table so wide that its second moment does not fit a process: ingest, release and components, by the command line.

Rows are noise about five directions of different strength, so what is found can be compared with what there is, and
with what ``dpdist pca`` says that it found. Of every command its time is recorded, and the most memory that the process
and any of its workers held::

    python -m benchmarks.wide_release --folder /scratch --output benchmarks/results/wide_release

It takes minutes, and three times the room of the rows and of the matrix on the disk. Nothing here is private.
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
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from benchmarks.benchmark import peak_mib

STRENGTHS = np.array([60.0, 50.0, 40.0, 30.0, 20.0], dtype=np.float32)
"""Standard deviation of the rows in each direction; in every column they have 0.3 besides."""
CLIP = 150


def write_rows(path: Path, rows: int, columns: int) -> npt.NDArray[np.float32]:
    """Write rows as a NumPy file, and return the directions, (columns, 5)."""
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.normal(size=(columns, len(STRENGTHS))))[0].astype(np.float32)
    written = np.lib.format.open_memmap(path, "w+", np.float32, (rows, columns))
    for start in range(0, rows, 1000):
        block = written[start : start + 1000]
        scores = rng.standard_normal((len(block), len(STRENGTHS)), dtype=np.float32) * STRENGTHS
        block[:] = 0.3 * rng.standard_normal(block.shape, dtype=np.float32) + scores @ directions.T
    return directions


def peaks(process: int) -> list[float]:
    """Return the most memory, MiB, that a process held so far, and every one that it started; none if it has ended."""
    place, found = Path(f"/proc/{process}"), list[float]()
    with suppress(OSError, IndexError):  # it ends while it is looked at
        found.append(peak_mib(process))
        for thread in (place / "task").iterdir():
            for child in (thread / "children").read_text(encoding="ascii").split():
                found += peaks(int(child))
    return found


def ran(*arguments: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a command, and return its seconds and peaks, and what it says."""
    begun = time.perf_counter()
    own = others = 0.0
    with tempfile.TemporaryFile() as said:  # a pipe would be full before anybody reads it
        command = subprocess.Popen([sys.executable, "-m", "dpdist", *map(str, arguments), "--json"], stdout=said)  # noqa: S603
        while command.poll() is None:
            time.sleep(0.2)
            now = peaks(command.pid) or [0.0]
            own, others = max(own, now[0]), max([others, *now[1:]])
        if command.returncode:
            raise SystemExit(f"{arguments[0]} ended with {command.returncode}")
        said.seek(0)
        answer = json.load(said)
    cost = {"seconds": round(time.perf_counter() - begun, 1), "mib": round(own), "worker_mib": round(others)}
    return cost, answer


def main() -> None:
    """Run the commands and write NAME.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", help="Where to put the files; a temporary folder by default.")
    parser.add_argument("--output", required=True)
    chosen = parser.parse_args()
    workers = ("--workers", str(chosen.workers))
    record: dict[str, Any] = {
        "rows": chosen.rows, "columns": chosen.columns, "dtype": "float32", "workers": chosen.workers,
        "cores": os.cpu_count(), "machine": platform.machine(), "mechanism": "gaussian, epsilon 4, delta 1e-6",
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        place = Path(name)
        source, rows, release, model = (place / each for each in ("x.npy", "x.zarr", "release.zarr", "model.zarr"))
        directions = write_rows(source, chosen.rows, chosen.columns)
        loss = ("--mechanism", "gaussian", "--epsilon", "4", "--delta", "1e-6", "--clip", str(CLIP))
        budget = ("--budget-epsilon", "4", "--budget-delta", "1e-6")
        count = ("--components", str(len(STRENGTHS)))
        for command in (
            ("ingest", source, rows, *budget),
            ("release", rows, release, *loss, *workers),
            ("pca", release, model, *count, *workers),
        ):
            record[str(command[0])], said = ran(*command)
            print(command[0], record[str(command[0])], flush=True)
        found = np.asarray(zarr.open_group(model, mode="r")["components"])
        record["squared_cosines"] = [round(float(c), 3) for c in np.diagonal(found @ directions) ** 2]
        record["squared_cosines_expected"] = [None if c is None else round(c, 3) for c in said["squared_cosines"]]
        record["above_noise"] = said["above_noise"]
    Path(f"{chosen.output}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
