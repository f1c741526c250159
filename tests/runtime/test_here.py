"""Small tables need no cluster: the same bits and the same rules in this process, and workers where they are named."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.cli_scene import LOSS, Call, assert_nothing_spent

from dpdist.errors import DpdistError
from dpdist.runtime import cluster, connection, here
from dpdist.runtime.cluster import Cluster
from dpdist.runtime.here import Here
from dpdist.runtime.work import Each, Work

PRIVATE = "73519"


class ConnectedError(Exception):
    """Workers would have been started."""


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise where a cluster is started or connected to."""

    @contextmanager
    def refused(*_: object, **__: object) -> Iterator[None]:
        raise ConnectedError
        yield

    monkeypatch.setattr(connection, "connected", refused)


def values(path: Path, name: str | None = None) -> Any:
    found: Any = zarr.open(path, mode="r")
    return np.asarray((found if name is None else found[name])[:])


@pytest.mark.usefixtures("silent", "known_key")
def test_the_bits_are_those_of_workers(here: Path, call: Call, scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, where in (("near", ()), ("far", ("--scheduler", scheduler))):
        steps = (
            ("release", "rows.zarr", f"{name}.zarr", *LOSS, "--id", name),
            ("project", "rows.zarr", "model.zarr", f"{name}-scores.zarr"),
        )
        with monkeypatch.context() as patch:
            if not where:
                patch.setattr(connection, "connected", None)  # nobody calls it
            assert call(*steps[0], *where).code == 0
            if not where:
                assert call("pca", "near.zarr", "model.zarr", "--components", "2").code == 0
            assert call(*steps[1], *where).code == 0
    assert values(here / "near.zarr", "second_moment").tobytes() == values(here / "far.zarr", "second_moment").tobytes()
    assert values(here / "near-scores.zarr").tobytes() == values(here / "far-scores.zarr").tobytes()


@pytest.mark.parametrize(
    ("more", "spared"),
    [((), True), (("--workers", "1"), False), (("--scheduler", "tcp://127.0.0.1:1"), False),
     (("--trusted", "worker"), False)],
)  # fmt: skip
@pytest.mark.usefixtures("no_workers")
def test_whoever_names_workers_gets_them(here: Path, call: Call, more: tuple[str, ...], spared: bool) -> None:
    said = call("release", "rows.zarr", "release.zarr", *LOSS, *more)
    assert (said.code == 0, "ConnectedError" in said.err) == (spared, not spared)
    assert (here / "release.zarr").exists() is spared


@pytest.mark.usefixtures("no_workers", "here")
def test_a_large_table_gets_workers(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "START_SECONDS", 0.0)
    assert "ConnectedError" in call("release", "rows.zarr", "release.zarr", *LOSS).err


def test_no_core_dump_is_left_of_what_is_computed_here(here: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(cluster, "forbid_core_dumps", lambda: events.append("no dumps"))
    monkeypatch.setattr(Here, "reduce", lambda *_, **__: events.append("rows are read"))
    call("release", "rows.zarr", "release.zarr", *LOSS)
    assert events == ["no dumps", "rows are read"]
    assert (here / "rows.zarr").exists()


def fails(unit: int) -> int:
    if unit == 2:
        raise ValueError(f"cannot use {PRIVATE}")
    return unit


def test_an_error_carries_no_value_of_a_row() -> None:
    ways = (
        lambda: Here().map(Work("t", fails, Each(), [1, 2]), "Trying"),
        lambda: Here().reduce(Work("t", fails, Each(), [1, 2], lambda a, b: a + b), str, label=None),
        lambda: list(Here().results(lambda unit, _: fails(unit), [1, 2], None, "Trying")),
    )
    for way in ways:
        with pytest.raises(DpdistError, match=r"ValueError at test_here.py:\d+") as caught:
            way()
        assert PRIVATE not in str(caught.value)
        assert (caught.value.__cause__, caught.value.__context__) == (None, None)


def test_every_unit_is_in_its_sum_once_and_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    engine = Here(lambda *facts: told.append(facts))

    def work(units: list[int]) -> Work:
        return Work("t", lambda unit: unit, Each(), units, lambda a, b: a + b)

    assert engine.reduce(work([1, 20, 300]), lambda *given: given, "first", label="Summing") == ("first", 321)
    assert told == [("Summing", done, 3) for done in range(4)]
    assert engine.reduce(work([]), lambda *given: given, "first", label="Summing") == ("first",)
    assert list(engine.reduce_each([work([1, 2]), work([5]), work([7, 70])], "Bands", under_way=2)) == [3, 5, 77]
    assert dict(engine.results(lambda unit, shared: unit * shared, [1, 2], 10, "Trying")) == {0: 10, 1: 20}
    assert told[-1] == ("Trying", 2, 2)


def test_a_chunk_that_is_lost_costs_nothing(here: Path, call: Call) -> None:
    (here / "rows.zarr" / "c" / "2" / "0").unlink()
    said = call("release", "rows.zarr", "release.zarr", *LOSS)
    assert said.code == 4
    assert "rows.zarr is missing or unreadable" in said.message
    assert_nothing_spent(here)


def test_steps_of_a_job_that_need_no_worker_start_none_and_later_ones_share_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []

    @contextmanager
    def connected(*_: object, **__: object) -> Iterator[object]:
        started.append(object())
        yield started[-1]

    monkeypatch.setattr(connection, "connected", connected)
    with Cluster().kept() as kept:
        with kept.computing(0.1) as first:
            assert isinstance(first, Here)
        with kept.computing(here.START_SECONDS) as second, kept.computing(0.1) as third:
            assert [second, third] == started * 2
    with Cluster().computing(math.inf) as unknown:
        assert not isinstance(unknown, Here)
