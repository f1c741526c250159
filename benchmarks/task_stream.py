"""The task stream of one pass in which a worker joins late and another is killed, as a picture: white is waiting.

Three workers begin; after four seconds a fourth one comes, and after eight one of the first is killed. Each chunk
takes a worker a tenth of a second that it sleeps, so that others who use the machine change little. Earlier versions,
from the one on that has these functions, draw their own picture with it::

    python -m benchmarks.task_stream --title "..." --output benchmarks/results/task_stream
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import matplotlib as mpl
import numpy as np
from dask.utils import key_split
from distributed import Client
from matplotlib.figure import Figure

import dpdist
from dpdist.moment import layout
from dpdist.rows import dataset

CHUNKS, CHUNK_ROWS, COLUMNS = 400, 100, 100
CHUNK_SECONDS = 0.1
JOINS, DIES = 4.0, 8.0
"""Seconds after the start."""
SLEEPING = """
import time
from dpdist.rows.chunks import ChunkReader
if not hasattr(ChunkReader, "slept"):  # Dask runs this twice
    ChunkReader.slept = original = ChunkReader.read
    def read(self, *arguments):
        time.sleep(0.1)
        return original(self, *arguments)
    ChunkReader.read = read
"""
Task = tuple[str, str, float, float]
"""Worker, name, start and end in seconds."""


def streamed(folder: Path) -> list[Task]:
    """Release made-up rows and return the tasks."""
    dataset._TARGET_CHUNK = CHUNK_ROWS * COLUMNS  # noqa: SLF001 - chunks of this length
    layout.BOUND_SECONDS = CHUNK_SECONDS / (CHUNK_ROWS * COLUMNS)  # as long as they take
    np.save(
        folder / "rows.npy", np.random.default_rng(0).integers(0, 9, (CHUNKS * CHUNK_ROWS, COLUMNS), dtype=np.uint8)
    )
    dpdist.ingest_rows(folder / "rows.npy", folder / "rows.zarr", budget=dpdist.PrivacyLoss.parse(1, "1e-6"))
    (folder / "before.py").write_text(SLEEPING)
    contact = folder / "scheduler.json"
    here = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    with ExitStack() as stack:

        def start(*command: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(  # noqa: S603 - our own
                [sys.executable, "-m", "distributed.cli." + command[0], *command[1:], *here],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        start("dask_scheduler", "--port", "0", "--scheduler-file", str(contact))
        while not contact.exists() or not contact.read_text():
            time.sleep(0.1)
        address = json.loads(contact.read_text())["address"]

        def worker() -> subprocess.Popen[bytes]:
            return start(
                "dask_worker", address, "--nthreads", "1", "--no-nanny", "--preload", str(folder / "before.py")
            )

        first = [worker() for _ in range(3)]
        client = stack.enter_context(Client(address, set_as_default=False))
        client.wait_for_workers(3)
        release(folder, address, "0.1")  # which loads what a worker needs
        client.get_task_stream(count=0)  # from now on the scheduler takes note
        begun = time.time()

        def disturb() -> None:
            time.sleep(JOINS)
            worker()
            time.sleep(DIES - JOINS)
            first[0].send_signal(signal.SIGKILL)

        Thread(target=disturb, daemon=True).start()
        release(folder, address, "0.5")
        return [
            (task["worker"], name_of(task["key"]), each["start"] - begun, each["stop"] - begun)
            for task in client.get_task_stream(start=begun)
            for each in task["startstops"]
            if each["action"] == "compute"
        ]


def release(folder: Path, address: str, epsilon: str) -> None:
    """Publish a release."""
    request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(epsilon, "1e-7"), clip_norm=100)
    target = folder / f"release-{epsilon}.zarr"
    dpdist.release_rows(folder / "rows.zarr", target, request, cluster=dpdist.Cluster(address))


def name_of(key: Any) -> str:
    """Return what a task is called, without what makes it one of many."""
    return str(key_split(key))


def drawn(tasks: list[Task], title: str, target: str) -> None:
    """Draw the tasks of each worker as bars."""
    workers = sorted(
        {worker for worker, *_ in tasks}, key=lambda each: min(task[2] for task in tasks if task[0] == each)
    )
    names = sorted({name for _, name, *_ in tasks})
    colours = mpl.colormaps["tab10"].colors  # type: ignore[attr-defined]
    figure = Figure(figsize=(10, 2.6), layout="constrained")
    axes = figure.subplots()
    for worker, name, start, stop in tasks:
        axes.barh(
            workers.index(worker), stop - start, left=start, height=0.8, color=colours[names.index(name) % 10],
            edgecolor="white", linewidth=0.4,
        )  # fmt: skip
    for name in names:
        axes.barh([0], [0], color=colours[names.index(name) % 10], label=name)
    for when, what in ((JOINS, "a fourth is started"), (DIES, "one is killed")):
        axes.axvline(when, color="black", linewidth=0.8, linestyle=":")
        axes.text(when, len(workers) - 0.45, f" {what}", fontsize=7, va="bottom")
    axes.set(title=title, xlabel="seconds", yticks=range(len(workers)), ylim=(-0.6, len(workers)))
    axes.set_yticklabels([f"worker {number + 1}" for number in range(len(workers))])
    figure.legend(fontsize=7, loc="outside right upper")
    figure.savefig(f"{target}.png", dpi=100)


def main() -> None:
    """Write NAME.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--title", default="dpdist release")
    parser.add_argument("--output", required=True)
    chosen = parser.parse_args()
    with TemporaryDirectory() as name:
        os.environ["DPDIST_STATE_HOME"] = str(Path(name) / "state")
        tasks = streamed(Path(name))
    print(f"{len(tasks)} tasks, {max(task[3] for task in tasks):.1f} s")
    drawn(tasks, chosen.title, chosen.output)


if __name__ == "__main__":
    main()
