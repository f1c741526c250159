"""The engine on real processes: loopback only, a lost worker costs nothing, errors carry no values."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import LocalCluster
from distributed.comm import CommClosedError
from distributed.core import rpc
from distributed.security import Security
from support.tasks import submissions

from dpdist.errors import DataError, DpdistError, RefusedError, ResumableError
from dpdist.ingest.opening import open_rows
from dpdist.moment.layout import PROCESS_BYTES, Layout
from dpdist.moment.total import add_partials, complete, partition_moment, plan
from dpdist.rows import dataset
from dpdist.rows.bounding import RowBound
from dpdist.rows.dataset import RowsTable, created
from dpdist.runtime import connection, engine
from dpdist.runtime.connection import connected
from dpdist.runtime.engine import Engine
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


def _double(value: int) -> int:
    return 2 * value


def _total(parts: Any) -> int:
    return int(sum(parts))


@pytest.mark.parametrize("groups", [1, 2, 5, 23])
def test_reduce_adds_everything_once_and_leaves_at_most_four_sums(local: Engine, groups: int) -> None:
    tasks = [[10 * i, 10 * i + 1, 10 * i + 2] for i in range(groups)]
    sums = local.reduce(_double, _total, tasks, "Adding")
    assert 1 <= len(sums) <= 4
    assert local.trusted(lambda *parts: sum(parts), sums=sums) == 2 * sum(v for group in tasks for v in group)


def _fails_with_a_value(value: int) -> int:
    raise ValueError(f"the row holds {value}")


def _refuses(_: int) -> None:
    raise DataError("Chunk 3 is missing.")


def test_an_unexpected_error_on_a_worker_carries_its_type_and_place_but_no_value(local: Engine) -> None:
    with pytest.raises(DpdistError) as caught:
        local.reduce(_fails_with_a_value, _total, [[73519]], "Failing")
    text = str(caught.value)
    assert "ValueError at test_engine.py" in text
    assert "73519" not in text
    assert caught.value.__context__ is None or "73519" not in str(caught.value.__context__)
    logs = str(local._client.get_worker_logs()) + str(local._client.get_scheduler_logs())
    assert "the row holds" not in logs


def test_our_own_errors_keep_their_message_and_kind(local: Engine) -> None:
    with pytest.raises(DataError, match=r"Chunk 3 is missing\."):
        local.map(_refuses, [1], "Failing")


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


def test_tasks_that_kill_every_worker_end_in_an_error_that_says_how_to_resume() -> None:
    with connected(workers=1) as started, pytest.raises(ResumableError, match="same command"):
        started.map(_die, [1], "Dying")


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
    with a_worker_beyond_this_machine() as address:
        with pytest.raises(RefusedError, match="pass insecure") as refused, connected(address):
            pass
        assert AWAY in str(refused.value)
        with connected(address, insecure=True) as started:
            assert started.workers == [f"{AWAY}:4711"]


def test_a_worker_that_may_spill_sums_to_its_disk_is_refused(tmp_path: Path) -> None:
    with (
        elsewhere() as cluster,
        connected(cluster.scheduler_address) as started,
        pytest.raises(DataError, match="may spill"),
    ):
        started.require_visible(tmp_path)


def test_a_pass_ends_when_all_workers_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LOST_SECONDS", 1)
    monkeypatch.setattr(engine, "_LOOK_SECONDS", 0.2)
    with elsewhere() as cluster, connected(cluster.scheduler_address) as started:
        cluster.scale(0)
        while started.workers:
            time.sleep(0.1)
        with pytest.raises(ResumableError, match="have been gone"):
            started.map(_double_quietly, [1], "Waiting")


def _double_quietly(value: int) -> None:
    _double(value)


def test_a_pass_that_finds_no_worker_can_be_resumed(local: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were there when this process connected, and left before the pass began."""
    monkeypatch.setattr(Engine, "workers", [])
    with pytest.raises(ResumableError, match="All workers of the cluster are gone"):
        local.reduce(_double, _total, [[1, 2]], "nothing")


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
    """Make a table whose pass takes long enough to be interrupted: 64 chunks of 3000 x 600 rows."""
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 3000 * 600)
    block = np.random.default_rng(0).integers(0, 255, (3000, 600), dtype=np.uint8)
    names = tuple(f"c{i}" for i in range(600))
    with created(tmp_path / "rows.zarr", rows=64 * 3000, dtype="uint8", names=names, budget=None) as writer:
        for _ in range(64):
            writer.append(block)
    return open_rows(tmp_path / "rows.zarr")


def test_a_worker_killed_in_mid_pass_changes_no_bit(table: RowsTable, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = RowBound(600, 3000.0)
    moment = plan(table, bound, 2, per_worker=16)
    undisturbed = complete(table, *(partition_moment(task) for group in moment.groups for task in group))
    with connected(workers=2) as started:
        pids = worker_pids(started)
        watch = started._watch
        killed: list[str] = []

        def kill_one(futures: Any, *others: Any) -> None:
            # the kill lands only if the victim holds a finished partial while others are still to come
            while True:
                held = {worker: keys for worker, keys in started._client.has_what().items() if keys}
                pending = [future for future in futures if future.status == "pending"]
                if held and pending:
                    victim = next(iter(held))
                    os.kill(pids[victim], signal.SIGKILL)
                    killed.append(victim)
                    break
                assert pending, "the pass was over before a worker could be killed"
                time.sleep(0.01)
            watch(futures, *others)

        monkeypatch.setattr(started, "_watch", kill_one)
        sums = started.reduce(partition_moment, add_partials, moment.groups, "Summing")
        found = started.trusted(lambda *parts: complete(table, *parts), sums=sums)
        assert len(killed) == 1
    assert found.rows == undisturbed.rows
    assert np.array_equal(found.values, undisturbed.values)


def test_the_graph_has_at_most_ten_tasks_per_worker(table: RowsTable, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(workers=2) as started:
        submitted = submissions(started, monkeypatch)
        groups = plan(table, RowBound(600, 3000.0), 2).groups
        started.reduce(partition_moment, add_partials, groups, "Summing")
    assert len(submitted) <= 10 * 2


PEAK = """
import sys
from pathlib import Path
import numpy as np
from dpdist.moment.total import add_partials, partition_moment, plan
from dpdist.rows.bounding import RowBound
from dpdist.ingest.opening import open_rows
def peak():  # not ru_maxrss, which begins with the memory of whoever started this process
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
table, bound = open_rows(Path(sys.argv[1])), RowBound(600, 3000.0)
bound.apply(np.ones((2, 600), dtype=table.dtype), np.empty((2, 600)))  # libraries and compiled code are loaded
Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
base = peak()
tasks = plan(table, bound, 1).groups[0]
add_partials([partition_moment(task) for task in tasks])
print(peak() - base)
"""


def worker_bytes(table: RowsTable, bound: RowBound) -> int:
    """Return what a worker is said to add to its interpreter."""
    return Layout(table, bound, 1, (Band.whole(bound.width),)).worker_bytes - PROCESS_BYTES


@pytest.mark.parametrize("kernel", ["numba", "none"])
def test_a_worker_takes_the_memory_computed_in_advance_whatever_the_rows(table: RowsTable, kernel: str) -> None:
    hide = "import sys; sys.modules['numba'] = None\n" if kernel == "none" else ""
    run = subprocess.run(
        [sys.executable, "-c", hide + PEAK, str(table.path)], check=True, capture_output=True, text=True,
        env={**os.environ, **connection.WORKER_ENVIRONMENT},
    )  # fmt: skip
    bound = RowBound(600, 3000.0)
    computed = worker_bytes(table, bound)
    longer = RowsTable(**{**vars(table), "rows": 1000 * table.rows})
    assert worker_bytes(longer, bound) == computed < 24 << 20  # of 115 MB of rows, 922 MB as float64
    measured = float(run.stdout)
    assert measured < computed + (4 << 20)  # the allocator rounds up
    if kernel == "none":  # what numba used to compile is used again, and hides what is taken
        assert measured > computed / 3
