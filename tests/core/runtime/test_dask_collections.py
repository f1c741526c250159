"""Dask collections are summed where Dask computes them: on no cluster that was not looked at, and nothing is left."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import dask
import dask.array as da
import dask.multiprocessing
import numpy as np
import pytest
from distributed import Client, LocalCluster
from faults.waiting import until

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.runtime import sums
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.runtime.collections import executor_for, reduce_blocks
from dpdist.core.runtime.sums import DaskExecutor

COLUMNS = 3
IN_MEMORY = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        dask.config.set(IN_MEMORY),
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as made,
        Client(made, set_as_default=False) as found,
    ):
        yield found


def rows(blocks: int = 4) -> Any:
    return da.ones((10 * blocks, COLUMNS), chunks=(10, COLUMNS))


def summed(array: Any) -> list[float]:
    return list(reduce_blocks(array, _sum_of, operator.add, 8 * COLUMNS))


def _sum_of(block: Any, number: int) -> Any:
    assert number >= 0
    return np.sum(block, axis=0)


@pytest.mark.parametrize("way", ["client", "get", "Distributed", ""])
def test_a_cluster_that_can_be_listened_to_is_refused_however_dask_was_told_of_it(
    client: Client, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RefusedError("on the network")

    ways = {"client": client, "get": client.get}
    with dask.config.set(scheduler=ways.get(way, way)):
        with client.as_current():
            assert summed(rows()) == [40.0] * COLUMNS
        monkeypatch.setattr(sums, "require_safe_cluster", refuse)
        with client.as_current(), pytest.raises(RefusedError, match="on the network"):
            summed(rows())


def test_a_task_is_refused_a_collection_and_does_not_wait_for_itself(client: Client) -> None:
    """The only thread of the only worker would wait for what it should compute."""
    with pytest.raises(UsageError, match="within a task"):
        client.submit(lambda: summed(rows()), pure=False).result(timeout=30)


def test_processes_without_a_cluster_are_refused_and_threads_are_not() -> None:
    unknown = (partial(dask.get), dask.multiprocessing.get, {"a": 1})
    for way in ("processes", "Processes", *unknown):
        with dask.config.set(scheduler=way), pytest.raises(UsageError, match=r"set\(scheduler='threads'\)"):
            summed(rows())
    for name in ("threads", "synchronous", ThreadPoolExecutor(2)):
        with dask.config.set(scheduler=name):
            assert summed(rows(20)) == [200.0] * COLUMNS


def test_a_block_that_is_not_what_the_array_says_is_the_owner_s(client: Client) -> None:
    wrong = rows().map_blocks(lambda block: block[:, :2], chunks=(10, COLUMNS), meta=np.ones((0, COLUMNS)))
    with client.as_current(), pytest.raises(DataError, match="different number of columns than its Dask array"):
        summed(wrong)


def test_nothing_is_computed_for_who_has_gone(client: Client) -> None:
    """An interrupted call may be kept by its traceback, and would keep the cluster busy."""
    held = [dask.delayed(_slept)(number) for number in range(40)]
    with client.as_current(), executor_for(Cluster(), None) as executor:
        assert isinstance(executor, DaskExecutor)
        found = executor.compute(held)
        next(found)
        found.close()

    def tasks(dask_scheduler: Any) -> int:
        return sum(each.state in {"waiting", "queued", "processing"} for each in dask_scheduler.tasks.values())

    until(lambda: client.run_on_scheduler(tasks) == 0)


def _slept(number: int) -> int:
    import time

    time.sleep(0.2)
    return number


@pytest.mark.parametrize("setting", ["target", "spill"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_workers_that_may_write_blocks_of_a_collection_to_their_disks_are_told_of_once(
    setting: str, adaptive: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    own = IN_MEMORY | {f"distributed.worker.memory.{setting}": 0.7}
    how: dict[str, Any] = {"threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set(own),
        LocalCluster(n_workers=0 if adaptive else 1, memory_limit="64GiB", **how) as made,
        Client(made),
    ):
        if adaptive:
            made.adapt(minimum=0, maximum=1, interval="100ms")
        for times in (1, 0):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert summed(rows()) == [40.0] * COLUMNS
            told = [str(each.message) for each in caught if "memory.spill: false" in str(each.message)]
            assert len(told) == times
            assert all("which are rows, to their disks" in message for message in told)
    assert capsys.readouterr() == ("", "")


def test_workers_that_dpdist_starts_keep_blocks_of_a_collection_in_memory() -> None:
    with Cluster(workers=1).connected() as executor:
        assert isinstance(executor, DaskExecutor)
        assert executor.warn_of_spilling()  # a warning would be an error here
        assert executor._client not in sums._warned
