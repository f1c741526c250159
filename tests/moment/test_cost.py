"""What a forecast says of tasks, bytes and memory is what a cluster then does."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from dask.utils import key_split
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parts import table_of

from dpdist.cli import cli
from dpdist.errors import UsageError
from dpdist.moment import cost
from dpdist.moment.layout import Layout, layout_of
from dpdist.moment.total import add_partials, complete, partition_moment
from dpdist.rows.bounding import RowBound
from dpdist.runtime.cluster import Cluster
from dpdist.runtime.local import Work
from dpdist.runtime.sums import OnDask
from dpdist.triangle import Band

COLUMNS = 1200
COMMAND = ("forecast", "--n", "1000000", "--d", "20000", "--epsilon", "1", "--delta", "1e-9", "--cluster", "--json")


def sent(dask_worker: Any) -> tuple[int, int]:
    """Return the bytes a worker has sent to others, and the most memory it had."""
    status = Path("/proc/self/status").read_text()  # not ru_maxrss, which begins with the memory of the parent
    return dask_worker.transfer_outgoing_bytes_total, int(status.split("VmHWM:")[1].split()[0]) << 10


def test_tasks_bytes_and_memory_are_what_was_said(tmp_path: Path) -> None:
    table, bound = table_of(tmp_path / "rows", np.ones((60, COLUMNS)), 10), RowBound(COLUMNS, 1.0)
    with Cluster(workers=2).connected() as engine:
        assert isinstance(engine, OnDask)
        before, moved_before = Counter[str](), 0
        for bands in (1, 3):
            height = COLUMNS // bands
            cut = tuple(Band(i, i + height, COLUMNS) for i in range(0, COLUMNS, height))
            layout = Layout(table, bound, 2, cut)
            works = [
                Work("sum", partition_moment, task, units, add_partials, nbytes=8 * task.band.entries)
                for task, units in zip(layout.tasks(table), layout.units, strict=True)
            ]
            sums = engine.reduce_each(works, "Summing", under_way=layout.under_way)
            assert sum(complete(table, total).rows for total in sums) == 60 * bands
            told, computed = engine._client.run(sent), engine._client.run_on_scheduler(tasks)
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


def test_a_tree_counts_its_additions_and_what_they_move() -> None:
    table, bound = cost.described(10**6, 100, "float32"), RowBound(100, 1.0)
    layout = Layout(table, bound, 16, (Band.whole(100),))
    assert layout.partitions == 48  # all chunks there are
    assert layout.additions == 6
    triangle = 8 * 100 * 101 // 2
    assert (layout.bytes_between_workers, layout.bytes_to_trusted) == (6 * 7 * triangle, 6 * triangle)


RATES = cost.Rates(bound=2e-9, multiply=6e-11, draw=4e-8)


@settings(max_examples=50)
@given(
    rows=st.integers(1, 10**10),
    columns=st.sampled_from([2, 50, 1000, 20_000, 100_000]),
    workers=st.lists(st.integers(1, 100), min_size=2, max_size=2).map(sorted),
    bandwidth=st.floats(1e3, 1e13),
)
def test_more_workers_and_a_faster_store_are_never_slower(
    rows: int, columns: int, workers: list[int], bandwidth: float
) -> None:
    table, bound = cost.described(rows, columns, "float32"), RowBound(columns, 1.0)
    few, many = (layout_of(table, bound, count, 16 << 30, divisible=True) for count in workers)

    def seconds(layout: Layout, bandwidth: float) -> list[float]:
        found = cost.ClusterCost(table, layout, RATES, bandwidth)
        return [found.seconds, found.read_seconds, *map(found.ingest_seconds, cost.INGEST)]

    reference = seconds(few, bandwidth)
    assert all(np.less_equal(seconds(many, bandwidth), reference))
    assert all(np.less_equal(seconds(few, 2 * bandwidth), reference))
    size = table.stored_bytes / bandwidth
    assert all(
        np.greater_equal(
            np.multiply(reference, 1 + 1e-9), [len(few.bands) * size, size, *[2 * size] * len(cost.INGEST)]
        )
    )


def test_a_lost_worker_costs_a_small_part_of_what_all_cost() -> None:
    table, bound = cost.described(10**9, 1000, "float32"), RowBound(1000, 1.0)
    found = [
        cost.ClusterCost(table, layout_of(table, bound, count, 16 << 30, divisible=True), RATES)
        for count in (1, 4, 16, 64)
    ]
    alone, *shared = [each.lost_worker_seconds for each in found]
    assert 0 < alone < 0.04 * found[0].seconds
    for cheaper, dearer in pairwise([*reversed(shared), alone]):
        assert 0 < cheaper < dearer


@pytest.mark.parametrize("given", ["0GB", "-1GB", "10", "1e3GB", "nanGB", "10gb", "GB", "9" * 16 + "B"])
def test_what_is_no_bandwidth_is_refused(given: str) -> None:
    said = CliRunner().invoke(cli, [*COMMAND, "--store-bandwidth", given])
    assert isinstance(said.exception, UsageError)
    assert "such as 10GB" in str(said.exception)


@pytest.mark.parametrize(
    "option", [("--store-bandwidth", "10GB"), ("--workers", "4"), ("--dtype", "uint8"), ("--memory-per-worker", "4")]
)
def test_what_is_said_of_a_cluster_that_was_not_asked_for_is_refused(option: tuple[str, str]) -> None:
    said = CliRunner().invoke(cli, [*(each for each in COMMAND if each != "--cluster"), *option])
    assert isinstance(said.exception, UsageError)
    assert str(said.exception).startswith(option[0])
    assert "--cluster" in str(said.exception)


def test_the_command_says_it_for_several_numbers_of_workers() -> None:
    said = CliRunner().invoke(cli, [*COMMAND, "--workers", "1", "--workers", "32"])
    assert said.exit_code == 0, said.output
    one, many = json.loads(said.stdout)["cluster"]
    assert (one["workers"], many["workers"]) == (1, 32)
    for each in (one, many):
        assert each["bands"] > 1
        assert max(each["worker_bytes"], each["trusted_bytes"]) <= 16 << 30
        assert each["bytes_to_trusted"] >= 8 * 20_000 * 20_001 // 2
        assert each["store_bandwidth"] is None
    assert many["seconds"] < one["seconds"]
    in_words = CliRunner().invoke(cli, [*COMMAND[:-1], "--workers", "32", "--store-bandwidth", "1.5 GB"])
    assert "between workers" in in_words.stderr
    assert "gives all workers together 1.5 GB a second" in in_words.stderr.replace("\n", " ")


def test_a_mechanism_that_needs_all_of_the_moment_is_refused_where_it_does_not_fit() -> None:
    said = CliRunner().invoke(cli, ["forecast", "--n", "1000", "--d", "40000", "--epsilon", "1", "--cluster"])
    assert isinstance(said.exception, UsageError)
    assert "--mechanism gaussian" in str(said.exception)


def test_a_cost_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="one row and two columns"):
        cost.described(0, 10, "uint8")
    with pytest.raises(UsageError, match="one worker"):
        cost.forecast(cost.described(5, 2, "uint8"), RowBound(2, 1.0), [3, 0], 1 << 34, divisible=True)
