"""What a pass costs, and what it loses: small units against few, a worker killed, bytes by way of the scheduler.

A scheduler and workers of their own processes on loopback. The scheduler counts the bytes of its connections. Seconds
are of the processor where it says so, and else upper bounds, because others use the machine too.
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
from threading import Timer
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import RowBound, open_rows
from dpdist.moment.operator import ProductTask, partition_product
from dpdist.moment.total import add_partials, complete, moment_task, partition_moment
from dpdist.rows import dataset
from dpdist.rows.dataset import RowsTable, created, partitions
from dpdist.runtime.connection import WORKER_ENVIRONMENT, connected
from dpdist.runtime.engine import Engine
from dpdist.runtime.grants import Grants, State
from dpdist.runtime.passes import Pass
from dpdist.runtime.work import Work

COUNTING = """
from distributed.comm.tcp import TCP
if not hasattr(TCP, "dpdist_counted"):  # Dask runs this twice
    TCP.dpdist_counted = 0
    original = TCP.write
    async def write(self, *arguments, **options):
        before = self.stream._total_write_index
        found = await original(self, *arguments, **options)
        TCP.dpdist_counted += self.stream._total_write_index - before
        return found
    TCP.write = write
"""
SPILL_NOT = {f"DASK_DISTRIBUTED__WORKER__MEMORY__{name}": "False" for name in ("TARGET", "SPILL")}


@contextmanager
def cluster(folder: Path, workers: int, before: str = "") -> Iterator[tuple[Engine, Callable[[], None]]]:
    """Start a scheduler that counts, and workers that run something first; give an engine, and what starts one more."""
    folder.mkdir()
    (folder / "counting.py").write_text(COUNTING)
    (folder / "before.py").write_text(before)
    contact = folder / "scheduler.json"
    here = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    environment = {**os.environ, **WORKER_ENVIRONMENT, **SPILL_NOT}
    with ExitStack() as stack:

        def start(*command: str) -> None:
            process = subprocess.Popen(  # noqa: S603 - our own
                [sys.executable, "-m", "distributed.cli." + command[0], *command[1:], *here],
                env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)

        start(
            "dask_scheduler", "--port", "0", "--scheduler-file", str(contact), "--preload", str(folder / "counting.py")
        )
        while not contact.exists() or not contact.read_text():
            time.sleep(0.1)
        address = json.loads(contact.read_text())["address"]
        one_more = partial(
            start, "dask_worker", address, "--nthreads", "1", "--no-nanny", "--preload", str(folder / "before.py")
        )
        for _ in range(workers):
            one_more()
        with connected(address) as engine:
            while len(engine.workers) < workers:
                time.sleep(0.1)
            yield engine, one_more


def table_at(path: Path, chunks: int, rows: int, columns: int) -> RowsTable:
    """Write a table of chunks that are all alike."""
    dataset._TARGET_CHUNK = rows * columns  # noqa: SLF001 - chunks of this length
    block = np.random.default_rng(0).integers(0, 255, (rows, columns), dtype=np.uint8)
    names = tuple(f"c{i}" for i in range(columns))
    with created(path, rows=chunks * rows, dtype="uint8", names=names, budget=None) as writer:
        for _ in range(chunks):
            writer.append(block)
    return open_rows(path)


def summed(engine: Engine, table: RowsTable, units: int) -> Any:
    """Sum a table in so many units."""
    task = moment_task(table, RowBound(table.columns, 5.0 * table.columns))
    work = Work("sum", partition_moment, task, partitions(table.chunks, units), add_partials)
    return engine.reduce(work, partial(complete, table), label=None).values


def cpu_seconds() -> float:
    """Return what this process has used."""
    return sum(os.times()[:2])


def overhead(engine: Engine, table: RowsTable, repeats: int) -> dict[str, Any]:
    """Compare four and fifty units a worker, in turn; the first turn loads libraries."""
    spent: dict[int, list[dict[str, float]]] = {4: [], 50: []}
    workers = len(engine.workers)
    for turn in range(repeats + 1):
        for each, found in spent.items():
            before = sum(engine._client.run(cpu_seconds).values())  # noqa: SLF001 - of the workers' processes
            begun, here = time.perf_counter(), time.process_time()
            summed(engine, table, each * workers)
            took = {
                "seconds": time.perf_counter() - begun,
                "driver_cpu": time.process_time() - here,
                "workers_cpu": sum(engine._client.run(cpu_seconds).values()) - before,  # noqa: SLF001
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


Event = Callable[[Pass, Any, dict[str, int]], bool]
"""Does something to the cluster in mid-pass, given a worker and the processes of all; says whether it is over."""


def happening(
    engine: Engine, units: int, share: float, event: Event, run: Callable[[], npt.NDArray[np.int64]]
) -> dict[str, Any]:
    """Let something happen when a share of all units of what is run is summed; tell, among others, how many came twice.

    What is run returns the sums.
    """
    pids = engine._client.run(os.getpid)  # noqa: SLF001
    over: list[bool] = []
    given: Counter[str] = Counter()
    finished, grant = Pass._finished, Grants.grant  # noqa: SLF001

    def strike(self: Pass, member: Any, number: int, future: Any) -> None:
        finished(self, member, number, future)
        if not any(over) and self.grants.count(State.ADDED, State.BANKED) >= share * units:
            over.append(event(self, member, pids))

    def counting(self: Grants, life: str, unit: int) -> Any:
        given[life] += 1
        return grant(self, life, unit)

    Pass._finished, Grants.grant = strike, counting  # type: ignore[method-assign]  # noqa: SLF001
    try:
        begun = time.perf_counter()
        total = run()
    finally:
        Pass._finished, Grants.grant = finished, grant  # type: ignore[method-assign]  # noqa: SLF001
    return {
        "at": share, "workers_at_first": len(pids), "units": units, "happened": any(over),
        "share_summed_twice": round(sum(given.values()) / units - 1, 4), "lives": len(given),
        "units_granted_to_each": sorted(given.values()), "seconds": round(time.perf_counter() - begun, 1),
        "fingerprint": int(np.bitwise_xor.reduce(total)),
    }  # fmt: skip


def kill(_: Pass, member: Any, pids: dict[str, int]) -> bool:
    """Kill a worker."""
    os.kill(pids[member.address], signal.SIGKILL)
    return True


def freeze(_: Pass, member: Any, pids: dict[str, int]) -> bool:
    """Stop a worker for as long as the pass lasts."""
    os.kill(pids[member.address], signal.SIGSTOP)
    return True


def join(one_more: Callable[[], None], *_: Any) -> bool:
    """Start seven workers more."""
    for start in [one_more] * 7:
        start()
    return True


def replace(one_more: Callable[[], None], dead: set[str], started: Pass, member: Any, pids: dict[str, int]) -> bool:
    """Kill one of the first workers after the other, and start another one in its place."""
    if member.address in pids and member.address not in dead and len(started.members) >= len(pids):
        dead.add(member.address)
        os.kill(pids[member.address], signal.SIGKILL)
        one_more()
    return len(dead) == len(pids)


def freeze_scheduler(engine: Engine, seconds: float, *_: Any) -> bool:
    """Stop the scheduler for a while."""
    pid = engine._client.run_on_scheduler(os.getpid)  # noqa: SLF001
    os.kill(pid, signal.SIGSTOP)
    Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()
    return True


def through_scheduler(engine: Engine, table: RowsTable, components: int) -> dict[str, int]:
    """Multiply with so many vectors; return the bytes that the scheduler sent meanwhile."""
    vectors = np.full((table.columns, components), 2.0**-8)
    task = ProductTask(moment_task(table, RowBound(table.columns, 5.0 * table.columns)), vectors)
    work = Work("multiply", partition_product, task, partitions(table.chunks, 20), add_partials)

    def counted() -> int:
        from distributed.comm.tcp import TCP  # noqa: PLC0415 - of the scheduler's process

        return int(TCP.dpdist_counted)

    before = engine._client.run_on_scheduler(counted)  # noqa: SLF001
    engine.reduce(work, partial(complete, table), label=None)
    after = engine._client.run_on_scheduler(counted)  # noqa: SLF001
    return {"columns": table.columns, "vectors": components, "bytes_of_vectors": vectors.nbytes, "sent": after - before}


def main() -> None:
    """Write NAME.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=400)
    parser.add_argument("--chunk-rows", type=int, default=1500)
    parser.add_argument("--columns", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", required=True)
    chosen = parser.parse_args()
    found: dict[str, Any] = {"through_scheduler": []}

    def keep(name: str, told: dict[str, Any]) -> None:
        found[name] = told
        print(name, told, flush=True)
        Path(f"{chosen.output}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    with TemporaryDirectory() as name:
        folder = Path(name)
        table = table_at(folder / "rows.zarr", chosen.chunks, chosen.chunk_rows, chosen.columns)
        units = min(200, table.chunks)

        def run(engine: Engine) -> Callable[[], npt.NDArray[np.int64]]:
            return partial(summed, engine, table, units)

        with cluster(folder / "two", 2) as (engine, _):
            for columns, components in ((100, 1), (100, 100), (4000, 1), (4000, 100)):
                path = folder / f"{columns}-{components}.zarr"
                sent = through_scheduler(engine, table_at(path, 20, 20, columns), components)
                found["through_scheduler"].append(sent)
            keep("overhead", overhead(engine, table, chosen.repeats))
        for share in (0.1, 0.5, 0.9):
            with cluster(folder / f"killed-{share}", 4) as (engine, _):
                keep(f"one of 4 killed at {share:.0%}", happening(engine, units, share, kill, run(engine)))
        with cluster(folder / "frozen", 4) as (engine, _):
            keep("one of 4 frozen", happening(engine, units, 0.5, freeze, run(engine)))
        with cluster(folder / "joined", 1) as (engine, one_more):
            keep("7 join 1", happening(engine, units, 0.1, partial(join, one_more), run(engine)))
        with cluster(folder / "replaced", 4) as (engine, one_more):
            event = partial(replace, one_more, set())
            keep("each of 4 replaced", happening(engine, units, 0.1, event, run(engine)))
        with cluster(folder / "scheduler", 4) as (engine, _):
            event = partial(freeze_scheduler, engine, 60.0)
            keep("scheduler frozen for 60 s", happening(engine, units, 0.5, event, run(engine)))


if __name__ == "__main__":
    main()
