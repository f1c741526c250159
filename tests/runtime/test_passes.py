"""A pass on workers that come, go, hang and return: each unit counts once, and nobody waits for one of them."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pytest
from distributed import Worker
from support.near_workers import workers

from dpdist.errors import ResumableError
from dpdist.runtime import passes, work
from dpdist.runtime.collecting import Collector
from dpdist.runtime.engine import Engine
from dpdist.runtime.grants import Grants
from dpdist.runtime.passes import Pass
from dpdist.runtime.running_sums import RunningSums
from dpdist.runtime.work import Work
from faults.waiting import until

UNITS = 40
WHOLE = sum(8**unit for unit in range(UNITS))
"""Every digit 1: a unit that is missing leaves 0, one that counts twice leaves 2."""


@dataclass(frozen=True)
class Powers:
    """The values of a pass whose units are powers of 8."""

    ballast: Any = None

    def cut(self, unit: int) -> int:
        return int(8**unit)


def work_of(function: Callable[[int], int] = operator.pos, **options: Any) -> Work:
    return Work("test", function, Powers(), range(UNITS), operator.add, **options)


@pytest.fixture(scope="module")
def six() -> Iterator[Engine]:
    with workers(6) as (_, engine):
        yield engine


def total(engine: Engine, asked: Work) -> int:
    return engine.reduce(asked, int, label=None)


def test_many_workers_join_their_sums_before_the_bank_takes_them(six: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []
    absorbed = Grants.absorbed

    def noting(self: Grants, batch: Any, others: Any) -> None:
        absorbed(self, batch, others)
        joined.append(len(self.batches))

    monkeypatch.setattr(Grants, "absorbed", noting)
    assert total(six, work_of(_brief)) == WHOLE
    assert joined
    assert joined[-1] <= 4


def _brief(value: int) -> int:
    threading.Event().wait(0.02)
    return value


HELD, GO = threading.Event(), threading.Event()


def _held_once(value: int) -> int:
    """Hang, the first time that the unit in the middle comes."""
    if value == 8 ** (UNITS // 2) and not HELD.is_set():
        HELD.set()
        GO.wait(60)
    return value


@pytest.fixture
def hanging() -> Iterator[None]:
    HELD.clear()
    GO.clear()
    yield
    GO.set()


@pytest.mark.usefixtures("hanging")
def test_a_unit_that_hangs_is_given_to_another_and_counts_once(six: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_LATE_SECONDS", 0.2)
    said: list[Any] = []
    withdrawn = Pass._withdrawn

    def noting(self: Pass, member: Any, numbers: list[int], answer: Any) -> None:
        said.append(answer)
        withdrawn(self, member, numbers, answer)

    monkeypatch.setattr(Pass, "_withdrawn", noting)
    assert total(six, work_of(_held_once)) == WHOLE
    assert HELD.is_set()
    assert not GO.is_set()  # nobody waited for it
    (answer,) = said
    assert set(answer) == {"dropped"}
    GO.set()
    assert total(six, work_of()) == WHOLE  # what it computed since went nowhere


@pytest.mark.usefixtures("hanging")
def test_a_worker_that_is_silent_is_given_up_and_returns_as_another(
    six: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "_LATE_SECONDS", 0.2)
    monkeypatch.setattr(passes, "PATIENCE", 0.5)
    withdraw = RunningSums.withdraw

    async def silent(self: RunningSums, life: str, grants: list[int]) -> list[str]:
        await asyncio.sleep(3)
        return await withdraw(self, life, grants)

    given_up: list[tuple[str, str]] = []
    give_up = Pass.give_up

    def noting(self: Pass, member: Any) -> None:
        given_up.append((member.address, member.life))
        give_up(self, member)

    monkeypatch.setattr(Pass, "give_up", noting)
    for worker in _plugins(six):
        worker.handlers["dpdist-running-sums-withdraw"] = silent.__get__(worker.plugins["dpdist-running-sums"])
    try:
        assert total(six, work_of(_held_once)) == WHOLE
    finally:
        for worker in _plugins(six):
            worker.handlers["dpdist-running-sums-withdraw"] = worker.plugins["dpdist-running-sums"].withdraw
    assert len(given_up) == 1


def _plugins(engine: Engine) -> list[Any]:
    """Return the workers, which are of this process; each has the plugin."""
    engine.reduce(work_of(), int, label=None)
    return [worker for worker in Worker._instances if "dpdist-running-sums" in worker.plugins]


def test_workers_that_come_late_get_units_and_one_that_leaves_costs_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    takers: dict[str, int] = {}
    give = Pass.give
    with workers(1) as (cluster, engine):

        def noting(self: Pass, member: Any) -> None:
            give(self, member)
            takers[member.address] = takers.get(member.address, 0) + 1
            if sum(takers.values()) == 4:
                cluster.scale(4)
            if len(takers) == 4 and sum(takers.values()) >= UNITS - 8:
                cluster.scale(3)

        monkeypatch.setattr(Pass, "give", noting)
        assert total(engine, work_of(_slow)) == WHOLE
    assert len(takers) == 4


def _slow(value: int) -> int:
    threading.Event().wait(0.15)
    return value


def test_threads_of_one_worker_add_to_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[int] = []
    with workers(2, threads=3) as (_, engine):
        give = Pass.give

        def noting(self: Pass, member: Any) -> None:
            give(self, member)
            at_once.append(len(member.running))

        monkeypatch.setattr(Pass, "give", noting)
        assert engine.threads == 3
        assert total(engine, work_of(_brief, threads=3)) == WHOLE
        assert max(at_once) in {3, 4}  # one waits beside them
        at_once.clear()
        assert total(engine, work_of(_brief, threads=1)) == WHOLE
        assert max(at_once) <= 2  # as the memory allows


def test_what_units_share_is_sent_again_if_it_is_lost_before_the_trusted_worker_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker dies that had the only copy left; Dask keeps no more of them."""
    asked: list[bool] = []
    opened = Collector.open
    with workers(1, resources={"trusted": 1}) as (_, connected):
        engine = Engine(connected._client, trusted_worker=True, insecure=False)

        def losing(self: Collector) -> bool:
            if not asked:
                engine._client.cancel([self._pass.common], force=True)
            asked.append(True)
            if len(asked) > 1000:
                raise AssertionError("it asks again and again")
            return opened(self)

        monkeypatch.setattr(Collector, "open", losing)
        assert total(engine, work_of()) == WHOLE


@pytest.mark.parametrize("ballast", [0, 1 << 20])
def test_what_units_share_is_in_no_task(six: Engine, monkeypatch: pytest.MonkeyPatch, ballast: int) -> None:
    sizes: list[int] = []
    submit = six._client.submit

    def weighing(function: Any, *arguments: Any, **options: Any) -> Any:
        plain = [each for each in arguments if not hasattr(each, "client")]  # no key of what is elsewhere
        sizes.append(len(cloudpickle.dumps((function, plain))))
        return submit(function, *arguments, **options)

    monkeypatch.setattr(six._client, "submit", weighing)
    asked = Work("test", operator.pos, Powers(np.zeros(ballast, dtype=np.uint8)), range(UNITS), operator.add)
    assert total(six, asked) == WHOLE
    assert len(sizes) > UNITS
    assert max(sizes) < 4096


def test_tasks_are_called_by_their_step(six: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []
    submit = six._client.submit

    def noting(*arguments: Any, key: str, **options: Any) -> Any:
        keys.append(key)
        return submit(*arguments, key=key, **options)

    monkeypatch.setattr(six._client, "submit", noting)
    total(six, work_of())
    assert {key.rpartition("-")[0] for key in keys} <= {"dpdist-test", "dpdist-welcome", "dpdist-join"}


def test_a_sum_that_cannot_be_fetched_is_an_error_and_asks_nobody_else(
    six: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "LOST_SECONDS", 1)
    client = six._client
    connect = client.rpc.connect

    async def cut(address: str, *arguments: Any, **options: Any) -> Any:
        if address in here:
            raise OSError("no route to host")
        return await connect(address, *arguments, **options)

    here = set(six.workers)
    monkeypatch.setattr(client.rpc, "connect", cut)
    with pytest.raises(ResumableError, match=r"cannot fetch sums from tcp://127\.0\.0\.1"):
        total(six, work_of())
    monkeypatch.undo()
    until(lambda: total(six, work_of()) == WHOLE, every=0.1)
