"""What a forecast says of tasks, bytes and memory is what a cluster then does."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from dask.utils import key_split
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parts import table_of

from dpdist.cli import cli
from dpdist.core.errors import UsageError
from dpdist.core.moment import cost
from dpdist.core.moment.layout import Layout, layout_of
from dpdist.core.moment.total import add_partials, common_key, complete, partition_moment
from dpdist.core.rows.bounding import RowBound
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.runtime.local import Computation
from dpdist.core.runtime.sums import DaskExecutor
from dpdist.core.triangle import Band

COLUMNS = 1200
COMMAND = ("forecast", "--n", "1000000", "--d", "20000", "--epsilon", "1", "--delta", "1e-9", "--cluster")


def sent(dask_worker: Any) -> tuple[int, int]:
    """Return the bytes a worker has sent to others, and the most memory it had."""
    status = Path("/proc/self/status").read_text()  # not ru_maxrss, which begins with the memory of the parent
    return dask_worker.transfer_outgoing_bytes_total, int(status.split("VmHWM:")[1].split()[0]) << 10


def test_tasks_bytes_and_memory_are_what_was_said(tmp_path: Path) -> None:
    table, bound = table_of(tmp_path / "rows", np.ones((60, COLUMNS)), 10), RowBound(COLUMNS, 1.0)
    key = common_key()
    with Cluster(workers=2).connected() as executor:
        assert isinstance(executor, DaskExecutor)
        before, moved_before = Counter[str](), 0
        for bands in (1, 3):
            height = COLUMNS // bands
            cut = tuple(Band(i, i + height, COLUMNS) for i in range(0, COLUMNS, height))
            layout = Layout(table, bound, 2, cut)
            works = [
                Computation("sum", partition_moment, task, units, add_partials, nbytes=8 * task.band.entries, key=key)
                for task, units in zip(layout.moment_tasks(table), layout.task_chunks(), strict=True)
            ]
            sums = executor.reduce_many(works, "Summing", concurrent=layout.concurrent_bands)
            assert sum(complete(table, total).rows for total in sums) == 60 * bands
            told, computed = executor._client.run(sent), executor._client.run_on_scheduler(tasks)
            done = computed - before
            assert (done["dpdist-sum"], done["dpdist-add"]) == (layout.partitions, layout.additions)
            promised = layout.bytes_between_workers + layout.bytes_to_trusted
            moved = sum(count for count, _ in told.values())
            # and what the units share
            assert layout.bytes_to_trusted <= moved - moved_before <= promised + (1 << 17)
            assert max(peak for _, peak in told.values()) <= layout.worker_bytes
            before, moved_before = computed, moved


def tasks(dask_scheduler: Any) -> Counter[str]:
    """Return how many tasks of each name were computed."""
    log = {event[0] for event in dask_scheduler.transition_log if event[2] == "memory"}
    return Counter(key_split(key) for key in log)


RATES = cost.Rates(bound=2e-9, multiply=6e-11, draw=4e-8)


@settings(max_examples=25)
@given(
    rows=st.integers(1, 10**8), columns=st.sampled_from([2, 50, 1000, 20_000]),
    workers=st.lists(st.integers(1, 100), min_size=2, max_size=2).map(sorted), bandwidth=st.floats(1e3, 1e13),
)  # fmt: skip
def test_more_workers_and_a_faster_store_are_never_slower(
    rows: int, columns: int, workers: list[int], bandwidth: float
) -> None:
    table, bound = cost.described(rows, columns, "float32"), RowBound(columns, 1.0)
    few, many = (layout_of(table, bound, count, 16 << 30, divisible=True) for count in workers)

    def seconds(layout: Layout, bandwidth: float) -> npt.NDArray[np.float64]:
        found = cost.ClusterCost(table, layout, RATES, bandwidth)
        return np.array([found.seconds, found.read_seconds, *map(found.ingest_seconds, cost.INGEST)])

    reference = seconds(few, bandwidth)
    assert (seconds(many, bandwidth) <= reference).all()
    assert (seconds(few, 2 * bandwidth) <= reference).all()
    passes = np.array([len(few.bands), 1, *[2] * len(cost.INGEST)])
    assert (reference * (1 + 1e-9) >= passes * table.stored_bytes / bandwidth).all()


def test_tasks_are_counted_without_a_list_of_them() -> None:
    table, bound = cost.described(10**9, 100_000, "float32"), RowBound(100_000, 1.0)
    tracemalloc.start()
    try:
        layout = layout_of(table, bound, 32, 16 << 30, divisible=True)
        assert cost.ClusterCost(table, layout, RATES).to_json()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert layout.bytes_to_trusted >= 8 * 100_000 * 100_001 // 2
    assert layout.partitions > 10**6


def test_the_command_says_it_for_several_numbers_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost.Rates, "measured", lambda *_: RATES)
    said = CliRunner().invoke(cli, [*COMMAND, "--json", "--workers", "1", "--workers", "32"])
    assert said.exit_code == 0, said.output
    one, many = json.loads(said.stdout)["cluster"]
    assert (one["workers"], many["workers"]) == (1, 32)
    for each in (one, many):
        assert each["bands"] > 1
        assert max(each["worker_bytes"], each["trusted_bytes"]) <= 16 << 30
        assert each["bytes_to_trusted"] >= 8 * 20_000 * 20_001 // 2
        assert each["store_bandwidth"] is None
    assert many["seconds"] < one["seconds"]
    cautions_message = CliRunner().invoke(cli, [*COMMAND, "--workers", "32", "--store-bandwidth", "1.5 GB"]).output
    assert "between workers" in cautions_message
    assert "supplies 1.5 GB per second to all workers together" in cautions_message.replace("\n", " ")


def test_what_makes_no_sense_is_refused() -> None:
    bandwidths = ["0GB", "-1GB", "10", "1e3GB", "nanGB", "10gb", "GB", "9" * 16 + "B"]
    for more, said in (
        *(((*COMMAND, "--store-bandwidth", each), "such as 10GB") for each in bandwidths),
        ((*COMMAND[:-1], "--workers", "4"), "--cluster"), ((*COMMAND[:-1], "--dtype", "uint8"), "--cluster"),
        (("forecast", "--n", "9", "--d", "40000", "--epsilon", "1", "--cluster"), "--mechanism gaussian"),
    ):  # fmt: skip
        refused = CliRunner().invoke(cli, more).exception
        assert isinstance(refused, UsageError)
        assert said in str(refused)
    with pytest.raises(UsageError, match="one row and two columns"):
        cost.described(0, 10, "uint8")
    with pytest.raises(UsageError, match="one worker"):
        cost.forecast(cost.described(5, 2, "uint8"), RowBound(2, 1.0), [3, 0], 1 << 34, divisible=True)
