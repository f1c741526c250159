"""The secret of a pass: every life has the same one, nothing without it is added, and the scheduler never sees it."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from distributed import LocalCluster, Worker
from support.near_workers import listening, trusted_worker, workers

from dpdist.errors import ResumableError
from dpdist.naming import PYTHON
from dpdist.runtime import collecting, work
from dpdist.runtime.asker import Asker
from dpdist.runtime.bank import Bank
from dpdist.runtime.engine import Engine
from dpdist.runtime.entrusting import Entrusting
from dpdist.runtime.grants import Grants
from dpdist.runtime.here import Here
from dpdist.runtime.passes import Pass
from dpdist.runtime.running_sums import NAME, Common, Life, RunningSums, Said
from dpdist.runtime.work import Work
from faults.waiting import until

UNITS = 24
WHOLE = sum(8**unit for unit in range(UNITS))
"""Every digit 1: a unit that is missing leaves 0, one that counts twice leaves 2."""
DRAWN: list[bytes] = []


@dataclass(frozen=True)
class Powers:
    """A pass whose units are powers of 8, each under the secret that it was summed with."""

    unit: int = 0
    secret: bytes = b""

    def cut(self, unit: int) -> Powers:
        return Powers(unit)

    def keyed(self, secret: bytes) -> Powers:
        return Powers(self.unit, secret)


def part(task: Powers) -> tuple[bytes, int]:
    threading.Event().wait(0.02)
    return task.secret, int(8**task.unit)


def quick_part(task: Powers) -> tuple[bytes, int]:
    return task.secret, int(8**task.unit)


def slow_part(task: Powers) -> tuple[bytes, int]:
    threading.Event().wait(0.1)
    return task.secret, int(8**task.unit)


def slower_part(task: Powers) -> tuple[bytes, int]:
    threading.Event().wait(0.5)
    return task.secret, int(8**task.unit)


def add(total: tuple[bytes, int], more: tuple[bytes, int]) -> tuple[bytes, int]:
    if total[0] != more[0]:
        raise AssertionError("sums of two secrets met")
    return total[0], total[1] + more[1]


def draw() -> bytes:
    DRAWN.append(os.urandom(32))
    return DRAWN[-1]


def mark(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


def read_off(total: tuple[bytes, int]) -> tuple[str, int]:
    """Return what may pass the scheduler."""
    return mark(total[0]), total[1]


def asked(function: Any = part, secret: Any = draw) -> Work:
    return Work("test", function, Powers(), range(UNITS), add, secret=secret)


@pytest.fixture(autouse=True)
def none_drawn() -> None:
    DRAWN.clear()


@pytest.fixture(scope="module")
def three() -> Iterator[tuple[LocalCluster, Engine]]:
    """Start three workers, the last of them the trusted one."""
    with workers(2) as (cluster, engine), trusted_worker(cluster):
        until(lambda: len(engine.workers) == 3)
        yield cluster, engine


def trusting(engine: Engine) -> Engine:
    return Engine(engine._client, trusted_worker=True, insecure=False)


# --- who sees it ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trusted", [False, True])
def test_every_life_is_told_the_secret_and_it_passes_neither_scheduler_nor_logs(
    three: tuple[LocalCluster, Engine], trusted: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, engine = three
    logger = logging.getLogger("distributed")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    caplog.set_level(logging.DEBUG, "distributed")
    told: list[str] = []
    entrust = Life.entrust

    def noting(self: Life, secret: bytes) -> bool:
        told.append(mark(secret))
        return entrust(self, secret)

    monkeypatch.setattr(Life, "entrust", noting)
    with listening(cluster.scheduler, monkeypatch) as (there, elsewhere):
        found = (trusting(engine) if trusted else engine).reduce(asked(), read_off, label=None)
    (secret,) = DRAWN
    assert found == (mark(secret), WHOLE)
    assert told == [mark(secret)] * 3
    assert sum(secret in each for each in elsewhere) >= 3  # so would it be seen if it passed the scheduler
    assert any(b"dpdist-welcome" in each for each in there)
    assert any(b"withdraw" in each or b"detach" in each for each in there)
    assert not any(secret in each for each in there)
    assert "Sealed(...)" in caplog.text  # Dask's own log shows the message, if it is told to
    assert repr(secret)[2:-1] not in caplog.text
    until(lambda: not any(plugin.lives or plugin.banks for plugin in plugins()))  # it is dropped with the life


def plugins() -> list[RunningSums]:
    return [worker.plugins[NAME] for worker in Worker._instances if NAME in worker.plugins]


def test_a_small_pass_here_has_a_secret_too() -> None:
    works = [asked(quick_part), asked(quick_part)]
    assert [mark for mark, _ in Here().reduce_each(works, "Bands", under_way=2)] == DRAWN
    assert Here().reduce(asked(quick_part, lambda: b"one"), read_off, label=None) == (mark(b"one"), WHOLE)


# --- what is lost -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [draw, None])
@pytest.mark.parametrize("opened_anew", [True, False])
def test_what_lives_hold_is_of_no_use_to_a_bank_with_another_secret(
    three: tuple[LocalCluster, Engine], monkeypatch: pytest.MonkeyPatch, secret: Any, opened_anew: bool
) -> None:
    """When the trusted worker is lost Dask opens the bank anew on another, empty, as soon as there is one."""
    monkeypatch.setattr(collecting, "worth_a_checkpoint", lambda at_stake, *_: at_stake > 0.1)
    banked, give_up = Grants.banked, Pass.give_up
    held: list[str] = []
    kept: list[str] = []

    def losing(self: Grants) -> None:
        banked(self)
        if not held:
            held.extend(self.lives)
            kept.extend(self.lives)
            (banks,) = [each.banks for each in plugins() if each.banks]
            (name,) = banks
            if opened_anew:
                banks[name] = Bank(add, Asker.here(), secret and secret())
            else:
                del banks[name]

    def noting(self: Pass, member: Any) -> None:
        kept[:] = [life for life in kept if life != member.life]
        give_up(self, member)

    monkeypatch.setattr(Grants, "banked", losing)
    monkeypatch.setattr(Pass, "give_up", noting)
    found = trusting(three[1]).reduce(asked(secret=secret), read_off, label=None)
    assert found == (mark(DRAWN[-1] if secret else b""), WHOLE)
    assert len(held) == 3
    assert kept == ([] if secret else held)


def test_two_workers_that_both_want_to_be_trusted_are_an_error_and_not_a_pass_without_end(
    three: tuple[LocalCluster, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is asked for what the other keeps. When one has gone, the same pass ends."""
    cluster, engine = three
    monkeypatch.setattr(work, "LOST_SECONDS", 0.5)  # all parts take longer, even where one bank is asked each time
    with trusted_worker(cluster):
        until(lambda: len(engine.workers) == 4)
        with pytest.raises(ResumableError, match="2 workers have offered the resource `trusted`"):
            trusting(engine).reduce(asked(slower_part), read_off, label=None)
    until(lambda: len(engine.workers) == 3)
    assert trusting(engine).reduce(asked(), read_off, label=None) == (mark(DRAWN[-1]), WHOLE)


def test_a_life_that_does_not_know_the_secret_adds_nothing(
    three: tuple[LocalCluster, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []
    entrust = Life.entrust

    def forgetting(self: Life, secret: bytes) -> bool:
        if not forgotten:
            forgotten.append("its secret")
            return True
        return entrust(self, secret)

    given_up: list[str] = []
    give_up = Pass.give_up

    def noting(self: Pass, member: Any) -> None:
        given_up.append(member.life)
        give_up(self, member)

    monkeypatch.setattr(Life, "entrust", forgetting)
    monkeypatch.setattr(Pass, "give_up", noting)
    assert three[1].reduce(asked(), read_off, label=None) == (mark(DRAWN[0]), WHOLE)
    assert len(given_up) == 1


def test_a_life_keeps_its_first_secret_and_units_wait_for_it() -> None:
    life = Life(Common(part, Powers(), add, Asker(PYTHON, "1"), secret=True))
    assert not life.ready
    assert [life.entrust(secret) for secret in (b"one", b"one", b"two")] == [True, True, False]
    assert life.ready
    assert life.run(0, 1) is Said.ADDED
    assert life._total == (b"one", 8)
    assert Life(Common(part, Powers(), add, Asker(PYTHON, "1"))).ready


def test_a_worker_that_cannot_be_told_is_left_out_and_nobody_else_is_asked(
    three: tuple[LocalCluster, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine = three
    rpc = engine._client.rpc
    connect, cut = rpc.connect, set(engine.workers[:1])

    async def connected(address: str, *arguments: Any, **options: Any) -> Any:
        if address in cut:
            raise OSError("no route to host")
        return await connect(address, *arguments, **options)

    monkeypatch.setattr(rpc, "connect", connected)
    given: set[str] = set()
    give = Pass.give

    def noting(self: Pass, member: Any) -> None:
        given.add(member.address)
        give(self, member)

    monkeypatch.setattr(Pass, "give", noting)
    assert engine.reduce(asked(), read_off, label=None) == (mark(DRAWN[0]), WHOLE)
    assert given == set(engine.workers[1:])
    cut.update(engine.workers)
    monkeypatch.setattr(work, "LOST_SECONDS", 0.5)
    with pytest.raises(ResumableError, match="cannot exchange keys and sums with tcp://"):
        engine.reduce(asked(), read_off, label=None)


def test_a_worker_that_comes_late_is_told_before_it_is_given_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, str]] = []
    told, give = Entrusting._told, Pass.give
    with workers(1) as (cluster, engine):

        def telling(self: Entrusting, members: Any, outcomes: Any) -> None:
            events.extend(("told", member.life) for member in members)
            told(self, members, outcomes)

        def giving(self: Pass, member: Any) -> None:
            events.append(("given", member.life))
            cluster.scale(3)
            give(self, member)

        monkeypatch.setattr(Entrusting, "_told", telling)
        monkeypatch.setattr(Pass, "give", giving)
        assert engine.reduce(asked(slow_part), read_off, label=None) == (mark(DRAWN[0]), WHOLE)
    lives = {life for _, life in events}
    assert len(lives) == 3
    assert all(events.index(("told", life)) < events.index(("given", life)) for life in lives)
