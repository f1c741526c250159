"""The engine on real processes: loopback only, a lost worker costs nothing, errors carry no values."""

from __future__ import annotations

import asyncio
import operator
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import LocalCluster, get_worker
from distributed.comm import CommClosedError
from distributed.core import rpc
from distributed.security import Security
from threadpoolctl import threadpool_limits

from dpdist.errors import DataError, DpdistError, RefusedError, ResumableError
from dpdist.ingest.opening import open_rows
from dpdist.moment.layout import PROCESS_BYTES, Layout
from dpdist.moment.total import add_partials, complete, moment_task, partition_moment
from dpdist.rows import dataset
from dpdist.rows.bounding import DITHERED, TRUNCATED, RowBound
from dpdist.rows.dataset import RowsTable, created, partitions
from dpdist.runtime import connection, passes
from dpdist.runtime.connection import connected
from dpdist.runtime.engine import Engine
from dpdist.runtime.grants import State
from dpdist.runtime.passes import Pass
from dpdist.runtime.work import Each, Work
from dpdist.triangle import Band
from faults.waiting import until


@pytest.fixture(scope="module")
def local() -> Iterator[Engine]:
    with connected(workers=2) as started:
        yield started


def listening() -> set[str]:
    """Addresses on which this process listens, read from the kernel; of another it could not be, nor should be."""
    inodes = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        target = str(descriptor.readlink()) if descriptor.is_symlink() else ""
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:  # 0A: LISTEN
                found.add(fields[1].split(":")[0])
    return found


def worker_pids(started: Engine) -> dict[str, int]:
    found: dict[str, int] = started._client.run(os.getpid)
    return found


def test_every_socket_of_a_local_cluster_is_on_loopback(local: Engine) -> None:
    for addresses in (listening(), *local._client.run(listening).values()):
        assert addresses == {"0100007F"}  # 127.0.0.1, as the kernel writes it


def test_local_workers_leave_no_core_dump(local: Engine) -> None:
    for limits in local._client.run(core_limits).values():
        assert limits == (0, 0)


def core_limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_CORE)


def _environment() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in connection.WORKER_ENVIRONMENT}


def _spills(dask_worker: Any) -> tuple[Any, Any]:
    manager = dask_worker.memory_manager
    return manager.memory_target_fraction, manager.memory_spill_fraction


def test_local_workers_have_one_blas_thread_keep_their_memory_and_never_spill(local: Engine) -> None:
    for environment in local._client.run(_environment).values():
        assert environment == connection.WORKER_ENVIRONMENT
    for fractions in local._client.run(_spills).values():
        assert fractions == (False, False)


@dataclass(frozen=True)
class Times:
    """The values of a pass: a number to multiply each unit with."""

    factor: int = 2

    def cut(self, unit: int) -> int:
        return self.factor * unit


def _same(value: int) -> int:
    return value


def work(function: Callable[[int], Any] = _same, units: Sequence[int] = (1,), *, sums: bool = True) -> Work:
    return Work("test", function, Times(), units, operator.add if sums else None)


@pytest.mark.parametrize("units", [1, 2, 5, 230])
def test_reduce_adds_every_unit_once(local: Engine, units: int) -> None:
    assert local.reduce(work(units=range(units)), _same, label="Adding") == units * (units - 1)


def test_without_units_there_is_no_sum(local: Engine) -> None:
    assert local.reduce(work(units=()), lambda *total: total, label=None) == ()


def test_several_passes_come_in_order_and_work_goes_on_while_one_is_used(local: Engine) -> None:
    works = [Work("test", _same, Times(factor), range(9), operator.add) for factor in range(7)]
    found = []
    for total in local.reduce_each(works, "Adding", under_way=3):
        found.append(total)
        time.sleep(0.02)
    assert found == [36 * factor for factor in range(7)]


def test_nothing_of_a_sum_is_a_result_that_dask_knows(local: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = []

    def look(started: Any, *, hungry: bool) -> None:
        if started.summed and not held:
            held.append(local._client.run(_results))
        collect(started, hungry=hungry)

    collect = Pass.collect
    monkeypatch.setattr(Pass, "collect", look)
    assert local.reduce(work(units=range(50)), _same, label=None) == 2450
    assert held
    for results in held[0].values():
        assert set(results) <= {None, *range(50)} or all(isinstance(each, bytes) for each in results)
        assert 2450 not in results


def _results(dask_worker: Any) -> list[Any]:
    return [each for each in dask_worker.data.values() if not isinstance(each, bytes)]


def test_a_worker_forgets_a_pass_when_it_is_over(local: Engine) -> None:
    local.reduce(work(units=range(5)), _same, label=None)
    until(lambda: set(local._client.run(_lives).values()) == {0}, every=0.1)


def _lives(dask_worker: Any) -> int:
    return len(dask_worker.plugins["dpdist-running-sums"].lives)


def _fails_with_a_value(value: int) -> int:
    raise ValueError(f"the row holds {value}")


def _refuses(_: int) -> None:
    raise DataError("Chunk 3 is missing.")


def test_an_unexpected_error_on_a_worker_carries_its_type_and_place_but_no_value(local: Engine) -> None:
    with pytest.raises(DpdistError) as caught:
        local.reduce(work(_fails_with_a_value, [73519]), _same, label="Failing")
    text = str(caught.value)
    assert "ValueError at test_engine.py" in text
    assert "73519" not in text
    assert caught.value.__context__ is None or "73519" not in str(caught.value.__context__)
    logs = str(local._client.get_worker_logs()) + str(local._client.get_scheduler_logs())
    assert "the row holds" not in logs


def test_our_own_errors_keep_their_message_and_kind(local: Engine) -> None:
    with pytest.raises(DataError, match=r"Chunk 3 is missing\."):
        local.map(work(_refuses, sums=False), "Failing")


def test_a_path_that_workers_do_not_see_is_refused(local: Engine, tmp_path: Path) -> None:
    local.require_visible(tmp_path)
    with pytest.raises(DataError, match="does not see"):
        local.require_visible(tmp_path / "nowhere")


def test_a_worker_of_another_version_is_refused(local: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdist.runtime.workers.__version__", "99")
    with pytest.raises(DataError, match="not 99"):
        local.require_visible(tmp_path)


def test_a_scheduler_that_does_not_answer_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 1)
    for address in ("tcp://127.0.0.1:9", "nonsense://x", "127.0.0.1:notaport"):
        with pytest.raises(DataError, match="No Dask scheduler answers"), connected(address):
            pass


def _die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_tasks_that_kill_every_worker_end_in_an_error_that_says_how_to_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_DEATHS", 2)  # to start a worker again takes seconds
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        connected(workers=1) as started,
        pytest.raises(ResumableError, match="same command"),
    ):
        started.map(work(_die, sums=False), "Dying")


@contextmanager
def elsewhere() -> Iterator[LocalCluster]:
    """Start a cluster of one worker as somebody else would, with Dask's own settings."""
    with (
        dask.config.set({"distributed.worker.memory.target": 0.6, "distributed.worker.memory.spill": 0.7}),
        LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
    ):
        yield cluster


@contextmanager
def a_worker_beyond_this_machine() -> Iterator[str]:
    """Start a scheduler on loopback, and a worker that says it is reached at an address that no machine has."""
    loopback = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "protocol": "tcp"}
    with (
        LocalCluster(n_workers=0, processes=False, **loopback) as cluster,
        subprocess.Popen(
            [
                sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address, "--no-nanny",
                "--listen-address", "tcp://127.0.0.1:0", "--dashboard-address", "127.0.0.1:0",
                "--contact-address", f"{AWAY}:4711",
            ],
            stderr=subprocess.DEVNULL,
        ) as worker,
    ):  # fmt: skip
        try:
            until(lambda: cluster.scheduler_info["workers"])
            assert list(cluster.scheduler.workers) == [f"{AWAY}:4711"]
            yield cluster.scheduler_address
        finally:
            worker.kill()


AWAY = "tcp://192.0.2.1"


def test_unencrypted_workers_on_the_network_are_refused_even_when_the_scheduler_is_on_loopback() -> None:
    silence = {"distributed.comm.timeouts.connect": "1s"}  # of who is asked for his versions and is nowhere
    with dask.config.set(silence), a_worker_beyond_this_machine() as address:
        with pytest.raises(RefusedError, match="pass insecure") as refused, connected(address):
            pass
        assert AWAY in str(refused.value)
        with connected(address, insecure=True) as started:
            assert started.workers == [f"{AWAY}:4711"]


def _kinds_that_dask_may_spill(_: Any) -> frozenset[str]:
    return frozenset(type(each).__name__ for each in get_worker().data.values())


def test_with_dasks_own_settings_no_sum_is_where_it_could_be_spilled(tmp_path: Path) -> None:
    with elsewhere() as cluster, connected(cluster.scheduler_address) as started:
        started.require_visible(tmp_path)
        kinds = Work("test", _kinds_that_dask_may_spill, Each(), list(range(8)), operator.or_)
        seen: frozenset[str] = started.reduce(kinds, frozenset, label=None)
    assert "NoneType" in seen  # what welcomed the worker
    assert seen <= {"NoneType", "int", "bytes"}  # receipts, and what all units share; a sum is a set


def test_a_pass_ends_when_all_workers_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdist.runtime.work.LOST_SECONDS", 1)
    with elsewhere() as cluster, connected(cluster.scheduler_address) as started:
        cluster.scale(0)
        while started.workers:
            time.sleep(0.1)
        with pytest.raises(ResumableError, match="have been gone"):
            started.map(work(sums=False), "Waiting")


def test_nobody_without_the_keys_connects_to_a_local_cluster(local: Engine) -> None:
    # every user of this machine can reach its loopback interface; TLS without our certificate gets no further
    address = local._client.scheduler.address
    assert address.startswith("tls://")

    async def ask(security: Security) -> None:
        async with rpc(address, connection_args=security.get_connection_args("client"), timeout=2) as remote:
            await asyncio.wait_for(remote.identity(n_workers=0), 5)

    asyncio.run(ask(local._client.security))
    with pytest.raises((OSError, TimeoutError, CommClosedError)):
        asyncio.run(ask(Security.temporary()))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RowsTable:
    """Make a table whose pass takes long enough to be interrupted: 64 chunks of 1500 x 600 rows."""
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 1500 * 600)
    block = np.random.default_rng(0).integers(0, 255, (1500, 600), dtype=np.uint8)
    names = tuple(f"c{i}" for i in range(600))
    with created(tmp_path / "rows.zarr", rows=64 * 1500, dtype="uint8", names=names, budget=None) as writer:
        for _ in range(64):
            writer.append(block)
    return open_rows(tmp_path / "rows.zarr")


@pytest.mark.parametrize(("share", "secret"), [(0.1, None), (0.9, bytes(range(32)))])
def test_a_worker_killed_in_mid_pass_changes_no_bit(
    table: RowsTable, monkeypatch: pytest.MonkeyPatch, share: float, secret: bytes | None
) -> None:
    bound = RowBound(600, 3000.0, rule=TRUNCATED if secret is None else DITHERED)
    task, draw = moment_task(table, bound), None if secret is None else lambda: secret
    with threadpool_limits(limits=1, user_api="blas"):
        undisturbed = complete(table, partition_moment(task if secret is None else task.keyed(secret)))
    units = partitions(table.chunks, 64)
    with connected(workers=2) as started:
        pids = worker_pids(started)
        killed: list[str] = []
        finished = Pass._finished

        def kill_one(self: Pass, member: Any, number: int, future: Any) -> None:
            # the kill lands on a worker that has added something, while other units are still to come
            finished(self, member, number, future)
            if (
                not killed
                and self.grants.count(State.ADDED, State.BANKED) >= share * 64
                and self.grants.added_by(member.life)
            ):
                assert not self.summed
                os.kill(pids[member.address], signal.SIGKILL)
                killed.append(member.address)

        monkeypatch.setattr(Pass, "_finished", kill_one)
        summing = Work("sum", partition_moment, task, units, add_partials, secret=draw)
        found = started.reduce(summing, partial(complete, table), label="Summing")
        assert len(killed) == 1
    assert (found.rows, found.key) == (undisturbed.rows, undisturbed.key)
    assert np.array_equal(found.values, undisturbed.values)


PEAK = """
import sys
from pathlib import Path
import numpy as np
import pickle
from concurrent.futures import ThreadPoolExecutor
from dpdist.moment.gram import GramSum
from dpdist.moment import total as summing
from dpdist.moment.total import add_partials, moment_task, partition_moment
from dpdist.rows.bounding import RowBound
from dpdist.ingest.opening import open_rows
from dpdist.rows.dataset import partitions
from dpdist.runtime.running_sums import Common, Life
from dpdist.runtime.asker import Asker
from dpdist.triangle import Band
summing.COMPILED_VALUES = 0  # as of a large table
def peak():  # not ru_maxrss, which begins with the memory of whoever started this process
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
table, bound = open_rows(Path(sys.argv[1])), RowBound(600, 3000.0, int(sys.argv[3]))
bound.apply(np.ones((2, 600), dtype=table.dtype), np.empty((2, 600)))  # libraries and compiled code are loaded
GramSum(Band.whole(600), bound.norm_bound)
Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
base = peak()
task = moment_task(table, bound)
life = Life(Common(partition_moment, task, add_partials, Asker.here()))
runs = partitions(table.chunks, 8)
with ThreadPoolExecutor(int(sys.argv[2])) as threads:  # a first sum waits for the bank while a second one is added up
    list(threads.map(lambda number: life.run(number, runs[number]), range(4)))
    life.detach(0)
    list(threads.map(lambda number: life.run(number, runs[number]), range(4, 8)))
total, waiting = life._total, life.batch(0).total
arriving = pickle.loads(pickle.dumps(waiting))
total = add_partials(total, arriving)
print(peak() - base)
"""


def worker_bytes(table: RowsTable, bound: RowBound, threads: int) -> int:
    """Return what a worker is said to add to its interpreter."""
    return Layout(table, bound, 1, (Band.whole(bound.width),), threads).worker_bytes - PROCESS_BYTES


@pytest.mark.parametrize(("kernel", "threads", "bits"), [("numba", 1, 16), ("numba", 1, 12), ("none", 4, 16)])
def test_a_worker_takes_the_memory_computed_in_advance_whatever_the_rows(
    table: RowsTable, kernel: str, threads: int, bits: int
) -> None:
    hide = "import sys; sys.modules['numba'] = None\n" if kernel == "none" else ""
    run = subprocess.run(
        [sys.executable, "-c", hide + PEAK, str(table.path), str(threads), str(bits)],
        check=True, capture_output=True, text=True, env={**os.environ, **connection.WORKER_ENVIRONMENT},
    )  # fmt: skip
    bound = RowBound(600, 3000.0, bits)
    computed = worker_bytes(table, bound, threads)
    longer = RowsTable(**{**vars(table), "rows": 1000 * table.rows})
    assert worker_bytes(longer, bound, threads) == computed < (9 + 14 * threads) << 20  # of 461 MB as float64
    measured = float(run.stdout)
    assert measured < computed + (4 << 20)  # the allocator rounds up
    if kernel == "none":  # what numba used to compile is used again, and hides what is taken
        assert measured > computed / 3
