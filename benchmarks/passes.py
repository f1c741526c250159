"""What a pass costs, and what it loses: small units against few, workers that are killed or come late.

A scheduler and workers of their own processes on loopback. Seconds are of the processor where it says so, and else
upper bounds, because others use the machine too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import Client

from dpdist import RowBound, open_rows
from dpdist.core.moment.total import add_partials, common_key, complete, moment_task, partition_moment
from dpdist.core.rows import dataset
from dpdist.core.rows.dataset import RowsTable, created, partitions
from dpdist.core.runtime.cluster import WORKER_ENVIRONMENT, Cluster
from dpdist.core.runtime.local import Computation
from dpdist.core.runtime.sums import DaskExecutor


@contextmanager
def cluster(folder: Path, workers: int, before: str = "") -> Iterator[tuple[DaskExecutor, Callable[[], None]]]:
    """Start a scheduler, and workers that run something first; give an engine, and what starts one more."""
    folder.mkdir()
    (folder / "before.py").write_text(before)
    contact = folder / "scheduler.json"
    here = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    environment = {**os.environ, **WORKER_ENVIRONMENT}
    with ExitStack() as stack:

        def start(*command: str) -> None:
            process = subprocess.Popen(  # noqa: S603 - our own
                [sys.executable, "-m", "distributed.cli." + command[0], *command[1:], *here],
                env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)

        start("dask_scheduler", "--port", "0", "--scheduler-file", str(contact))
        while not contact.exists() or not contact.read_text():
            time.sleep(0.1)
        address = json.loads(contact.read_text())["address"]
        one_more = partial(
            start, "dask_worker", address, "--nthreads", "1", "--no-nanny", "--preload", str(folder / "before.py")
        )
        for _ in range(workers):
            one_more()
        with Cluster(address).connected() as executor:
            assert isinstance(executor, DaskExecutor)  # noqa: S101
            while executor.resources().workers < workers:
                time.sleep(0.1)
            yield executor, one_more


def table_at(path: Path, chunks: int, rows: int, columns: int) -> RowsTable:
    """Write a table of chunks that are all alike."""
    dataset._TARGET_CHUNK = rows * columns  # noqa: SLF001 - chunks of this length
    block = np.random.default_rng(0).integers(0, 255, (rows, columns), dtype=np.uint8)
    names = tuple(f"c{i}" for i in range(columns))
    with created(path, rows=chunks * rows, dtype="uint8", names=names, budget=None) as writer:
        for _ in range(chunks):
            writer.append(block)
    return open_rows(path)


def summed(executor: DaskExecutor, table: RowsTable, units: int) -> Any:
    """Sum a table in so many units."""
    task = moment_task(table, RowBound(table.columns, 5.0 * table.columns))
    work = Computation("sum", partition_moment, task, partitions(table.chunks, units), add_partials, key=common_key())
    return executor.reduce(work, partial(complete, table), label="Summing").values


def cpu_seconds() -> float:
    """Return what this process has used."""
    return sum(os.times()[:2])


def overhead(executor: DaskExecutor, table: RowsTable, repeats: int) -> dict[str, Any]:
    """Compare four and fifty units a worker, in turn; the first turn loads libraries."""
    spent: dict[int, list[dict[str, float]]] = {4: [], 50: []}
    workers = executor.resources().workers
    for turn in range(repeats + 1):
        for each, found in spent.items():
            before = sum(executor._client.run(cpu_seconds).values())  # noqa: SLF001 - of the workers' processes
            begun, here = time.perf_counter(), time.process_time()
            summed(executor, table, each * workers)
            took = {
                "seconds": time.perf_counter() - begun,
                "driver_cpu": time.process_time() - here,
                "workers_cpu": sum(executor._client.run(cpu_seconds).values()) - before,  # noqa: SLF001
            }
            if turn:
                found.append(took)
    best = {
        f"{each}_a_worker": {
            name: {"min": min(one[name] for one in found), "median": statistics.median(one[name] for one in found)}
            for name in found[0]
        }
        for each, found in spent.items()
    }
    ratio = {
        name: best["50_a_worker"][name]["median"] / best["4_a_worker"][name]["median"]
        for name in ("seconds", "workers_cpu")
    }
    return {"repeats": repeats, **best, "ratio": ratio}


Told = Callable[[str, int, int], None]
Event = Callable[[dict[str, int]], bool]
"""Does something to the cluster in mid-pass, given the processes of its workers at first; says whether it is over."""


def happening(
    client: Client, units: int, share: float, event: Event, run: Callable[[Told], npt.NDArray[np.int64]]
) -> dict[str, Any]:
    """Let something happen when a share of all units of what is run is summed; tell, among others, how many came twice.

    What is run takes whom it tells how far it is, and returns the sums.
    """
    pids: dict[str, int] = client.run(os.getpid)
    over: list[bool] = []
    lock = Lock()

    def told(_: str, done: int, total: int) -> None:
        if total == units and done >= share * units and lock.acquire(blocking=False):
            try:
                if not any(over):
                    over.append(event(pids))
            finally:
                lock.release()

    begun = time.perf_counter()
    total = run(told)
    seconds = time.perf_counter() - begun
    counted: Counter[Any] = client.run_on_scheduler(computed)
    return {
        "at": share, "workers_at_first": len(pids), "units": units, "happened": any(over),
        "share_summed_twice": round(counted.total() / units - 1, 4), "seconds": round(seconds, 1),
        "fingerprint": int(np.bitwise_xor.reduce(total)),
    }  # fmt: skip


def computed(dask_scheduler: Any) -> Counter[Any]:
    """Return how often the scheduler saw each unit end."""
    return Counter(
        str(event[0]) for event in dask_scheduler.transition_log
        if event[2] == "memory" and "dpdist-sum" in str(event[0])
    )  # fmt: skip


def kill(pids: dict[str, int]) -> bool:
    """Kill a worker."""
    os.kill(next(iter(pids.values())), signal.SIGKILL)
    return True


def join(one_more: Callable[[], None], _: dict[str, int]) -> bool:
    """Start seven workers more."""
    for start in [one_more] * 7:
        start()
    return True


def replace(one_more: Callable[[], None], dead: set[int], pids: dict[str, int]) -> bool:
    """Kill one of the first workers after the other, and start another one in its place."""
    pid = next(pid for pid in pids.values() if pid not in dead)
    dead.add(pid)
    os.kill(pid, signal.SIGKILL)
    one_more()
    return len(dead) == len(pids)


def main() -> None:
    """Write NAME.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=400)
    parser.add_argument("--chunk-rows", type=int, default=1500)
    parser.add_argument("--columns", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", required=True)
    chosen = parser.parse_args()
    found: dict[str, Any] = {}

    def keep(name: str, told: dict[str, Any]) -> None:
        found[name] = told
        print(name, told, flush=True)
        Path(f"{chosen.output}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    with TemporaryDirectory() as name:
        folder = Path(name)
        table = table_at(folder / "rows.zarr", chosen.chunks, chosen.chunk_rows, chosen.columns)
        units = min(200, table.chunks)

        def happens(workers: int, share: float, event_of: Callable[[Callable[[], None]], Event]) -> dict[str, Any]:
            with cluster(folder / str(len(found)), workers) as (executor, one_more):

                def run(told: Told) -> npt.NDArray[np.int64]:
                    executor._progress = told  # noqa: SLF001
                    return np.asarray(summed(executor, table, units))

                return happening(executor._client, units, share, event_of(one_more), run)  # noqa: SLF001

        with cluster(folder / "two", 2) as (executor, _):
            keep("overhead", overhead(executor, table, chosen.repeats))
        for share in (0.1, 0.5, 0.9):
            keep(f"one of 4 killed at {share:.0%}", happens(4, share, lambda _: kill))
        keep("7 join 1", happens(1, 0.1, lambda one_more: partial(join, one_more)))


if __name__ == "__main__":
    main()
