"""What a worker must be: of this version, with dpdist, and also when it joins while the work is under way."""

from __future__ import annotations

import math
import operator
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import LocalCluster

import dpdist
from dpdist.errors import DataError, RefusedError
from dpdist.runtime.connection import connected
from dpdist.runtime.passes import Pass
from dpdist.runtime.work import Each, Work
from dpdist.runtime.workers import check_worker
from dpdist.storage.store import FolderStore
from faults.waiting import until

WORKER = """
import sys
{before}
from distributed.cli.dask_worker import main
main([sys.argv[1], "--no-nanny", "--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0", "--nthreads", "1"])
"""
WITHOUT = "sys.modules['dpdist'] = None"
EVERYWHERE = "import dpdist.runtime.running_sums as sums; sums.listens_of = lambda _: ('tcp://0.0.0.0:8786',)"
OTHER = "import dpdist._version; dpdist._version.__version__ = '98'"


@contextmanager
def worker(before: str, address: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker of a process in which something else was imported first."""
    keep = "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET", "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL"
    with subprocess.Popen(
        [sys.executable, "-c", WORKER.format(before=before), address],
        cwd=folder, stderr=subprocess.DEVNULL, env={**os.environ, **dict.fromkeys(keep, "False")},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def cluster(*, workers: int) -> Iterator[LocalCluster]:
    settings = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}
    local = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "protocol": "tcp"}
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=workers, threads_per_worker=1, processes=False, **local) as made,
    ):
        yield made


def _count(made: LocalCluster) -> int:
    return len(made.scheduler.workers)


@pytest.mark.parametrize(("before", "words"), [(WITHOUT, "cannot import dpdist"), (OTHER, "runs dpdist 98, not")])
def test_a_worker_without_dpdist_or_with_another_is_named_and_told(tmp_path: Path, before: str, words: str) -> None:
    with cluster(workers=1) as made, worker(before, made.scheduler_address, tmp_path):
        until(lambda: _count(made) == 2)
        (named,) = set(made.scheduler.workers) - {each.address for each in made.workers.values()}
        with connected(made.scheduler_address) as started, pytest.raises(DataError, match=words) as refused:
            started.require_visible(tmp_path)
        assert named in str(refused.value)


def test_so_is_one_of_another_version_that_joins_while_the_work_is_under_way(tmp_path: Path) -> None:
    with cluster(workers=1) as made, connected(made.scheduler_address) as started:
        started.require_visible(tmp_path)
        with worker(OTHER, made.scheduler_address, tmp_path):
            until(lambda: _count(made) == 2)
            made.scale(0)  # so that the work goes to the other one
            until(lambda: _count(made) == 1)
            with pytest.raises(DataError, match="runs dpdist 98, not"):
                started.map(Work("test", math.sqrt, Each(), [1]), "Working")


def test_a_worker_can_be_checked_on_itself(tmp_path: Path) -> None:
    given: Any = SimpleNamespace(address="tls://10.0.0.7:1", listeners=[])
    store = FolderStore(tmp_path)
    check_worker(given, store, "", dpdist_version())
    with pytest.raises(DataError, match=r"tls://10\.0\.0\.7:1 runs dpdist .*, not 99"):
        check_worker(given, store, "", "99")
    with pytest.raises(DataError, match="does not see"):
        check_worker(given, store, "table.json", dpdist_version())


@pytest.mark.parametrize("who", ["the scheduler", "a worker"])
def test_who_is_reached_on_loopback_and_listens_everywhere_is_refused(
    who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``dask scheduler`` and ``dask worker`` do without ``--host``; here they only say so."""
    with cluster(workers=1) as made:
        (worker_here,) = made.workers.values()
        server: Any = made.scheduler if who == "the scheduler" else worker_here
        with connected(made.scheduler_address) as started:
            started.require_visible(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(server, "listeners", [SimpleNamespace(listen_address="tcp://0.0.0.0:8786")])
            with (
                connected(made.scheduler_address) as started,
                pytest.raises(RefusedError, match=r"0\.0\.0\.0:8786, unencrypted"),
            ):
                started.require_visible(tmp_path)
            with connected(made.scheduler_address, insecure=True) as started:
                started.require_visible(tmp_path)


@pytest.mark.parametrize("insecure", [False, True])
def test_one_that_joins_mid_pass_and_listens_everywhere_is_named_and_gets_no_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, insecure: bool
) -> None:
    """Its twin gets units, where the network itself is said to be safe."""
    given: set[str] = set()
    give = Pass.give
    units = range(1, 40)
    with ExitStack() as stack:
        made = stack.enter_context(cluster(workers=1))
        (first,) = made.scheduler.workers
        started = stack.enter_context(connected(made.scheduler_address, insecure=insecure))
        started.require_visible(tmp_path)

        def join(self: Pass, member: Any) -> None:
            if not given:
                stack.enter_context(worker(EVERYWHERE, made.scheduler_address, tmp_path))
                until(lambda: _count(made) == 2)
            given.add(member.address)
            give(self, member)

        def slow(value: int) -> int:  # of this function, and so by value: the late worker has no tests
            time.sleep(0.1)
            return value

        monkeypatch.setattr(Pass, "give", join)
        told = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        work = Work("test", slow, Each(), units, operator.add)
        assert started.reduce(work, int, label=None) == sum(units)
        (late,) = set(made.scheduler.workers) - {first}
    said = [str(each.message) for each in told if "given no work" in str(each.message)]
    assert given == ({first, late} if insecure else {first})
    if insecure:
        assert said == []
    else:
        (sentence,) = said
        assert f"{late} listens on tcp://0.0.0.0:8786, unencrypted" in sentence


def dpdist_version() -> str:
    return dpdist.__version__
