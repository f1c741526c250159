"""What it takes to read rows from an object store, beside obstore alone with as many requests.

A table lies in moto's S3 server, in a process of its own on the loopback interface. In turns: the chunks read by as
many processes as there are workers, with obstore and nothing else; read and checked as a worker does; and the whole
release, to its last object, beside that of the same rows in a folder. moto is written in Python and runs on the same
cores, so it is what limits reading::

    python -m benchmarks.store_times --output benchmarks/results/store_times
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import obstore

from benchmarks.stores import free_port, s3_variables, wait_for
from dpdist import Cluster, PrivacyLoss, ReleaseRequest, ingest_rows, open_rows, release_rows
from dpdist.rows.chunks import ChunkReader
from dpdist.rows.dataset import RowsTable
from dpdist.rows.writing import chunk_key
from dpdist.storage.connections import connection

SERVER = """
import sys, time
from moto.server import ThreadedMotoServer
ThreadedMotoServer(ip_address="127.0.0.1", port=int(sys.argv[1]), verbose=False).start()
time.sleep(10**6)
"""
WORKERS = 2


def alone(keys: list[str]) -> int:
    """Read objects with obstore, one after the other."""
    return sum(len(obstore.get(connection("s3", "private"), key).bytes()) for key in keys)


def checked(table: RowsTable, chunks: list[int]) -> int:
    """Read chunks as a worker does: streamed, in pieces that stay in cache, with their checksum."""
    reader = ChunkReader(table, 128)
    return sum(piece.nbytes for index in chunks for piece in reader.read(index))


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def shared(count: int) -> list[list[int]]:
    """Return the chunks of each worker."""
    return [list(range(first, count, WORKERS)) for first in range(WORKERS)]


def measured(rows: int, columns: int, turns: int, folder: Path) -> dict[str, Any]:
    """Ingest rows into the store, and read and release them in turns."""
    values = np.random.default_rng(1).integers(0, 200, (rows, columns)).astype(np.float32)
    np.save(folder / "t.npy", values)
    place, ledger = "s3://private/rows.zarr", folder / "rows.ledger"
    budget = PrivacyLoss.parse("1000", "1e-3")
    written = seconds_of(lambda: ingest_rows(folder / "t.npy", place, budget=budget, ledger=ledger))
    table = open_rows(place)
    inner = next(each["path"] for piece in obstore.list(connection("s3", "private"), "rows.zarr") for each in piece
                 if each["path"].endswith(chunk_key(0))).removesuffix(chunk_key(0))  # fmt: skip
    parts = shared(table.chunks)
    keys = [[inner + chunk_key(index) for index in part] for part in parts]
    here = folder / "here.zarr"
    ingest_rows(folder / "t.npy", here, budget=budget)
    names = ("obstore alone", "read and checked", "release", "release from a folder")
    times: dict[str, list[float]] = {name: [] for name in names}
    cluster = Cluster(workers=WORKERS)
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool, cluster.kept() as kept:
        list(pool.map(alone, [each[:1] for each in keys]))  # processes and connections are there
        with kept.connected():
            pass
        for turn in range(turns):
            times["obstore alone"].append(seconds_of(lambda: list(pool.map(alone, keys))))
            times["read and checked"].append(seconds_of(lambda: list(pool.map(partial(checked, table), parts))))
            request = ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-9"), 1e4, name=f"turn-{turn}")
            target = f"s3://private/release-{turn}.zarr"
            release = partial(release_rows, place, target, request, ledger=ledger, cluster=kept)
            times["release"].append(seconds_of(release))
            release = partial(release_rows, here, folder / f"{turn}.zarr", request, cluster=kept)
            times["release from a folder"].append(seconds_of(release))
    size = table.chunks * table.chunk_bytes
    middle = {name: statistics.median(each) for name, each in times.items()}
    return {
        "rows": rows, "columns": columns, "chunks": table.chunks, "MB": round(size / 1e6),
        "ingest MB/s": round(size / 1e6 / written, 1),
        "seconds": {name: [round(second, 2) for second in each] for name, each in times.items()},
        "MB/s": {name: round(size / 1e6 / each, 1) for name, each in middle.items()},
        "times of obstore alone": {name: round(each / middle["obstore alone"], 2) for name, each in middle.items()},
    }  # fmt: skip


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rows", type=int, default=200_000)
    asked = parser.parse_args()
    port = free_port()
    with tempfile.TemporaryDirectory() as place, subprocess.Popen([sys.executable, "-c", SERVER, str(port)],  # noqa: S603 - ours
                                                                  stderr=subprocess.DEVNULL) as server:  # fmt: skip
        try:
            os.environ.update(s3_variables(f"http://127.0.0.1:{port}"), DPDIST_STATE_HOME=f"{place}/state")
            wait_for(port)
            boto3.client("s3").create_bucket(Bucket="private")
            found = [measured(asked.rows, 100, asked.turns, Path(place))]
        finally:
            server.terminate()
    asked.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    lines = ["| rows x columns | chunks | MB | what | MB/s | times of obstore alone |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {each['rows']} x {each['columns']} | {each['chunks']} | {each['MB']} | {name} | {rate} | "
        f"{each['times of obstore alone'][name]} |"
        for each in found
        for name, rate in each["MB/s"].items()
    ]
    asked.output.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
