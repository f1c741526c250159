"""Several attempts at a release: one commits, the others return with its bytes, and no refund follows a commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from support.ledgers import losses
from support.trusted_scene import books, committed_bytes, ledger_of, moment_of, total_of

from dpdist.errors import DpdistError, RefusedError
from dpdist.ledger import ledger as ledgers
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import Part, State
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release import transaction as releasing
from dpdist.release import trusted
from dpdist.release.trusted import MomentTransaction

PATIENCE = 300.0


class Overtaking:
    """Starts another attempt just before a commit, so that the commit is fenced out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, times: int) -> None:
        self.fences: list[int] = []
        self.waiting = threading.Event()
        self.commit = Ledger.commit
        wait = Ledger.wait

        def overtaken(ledger: Ledger, release_id: str, fence: int, content: Iterable[bytes], part: Part) -> bool:
            if len(self.fences) < times:
                began = Ledger(folder).begin(release_id)
                assert began is not None
                self.fences.append(began)
            return self.commit(ledger, release_id, fence, content, part)

        def watched(ledger: Ledger, *arguments: Any) -> bool:
            self.waiting.set()
            return wait(ledger, *arguments)

        monkeypatch.setattr(Ledger, "commit", overtaken)
        monkeypatch.setattr(Ledger, "wait", watched)


def test_an_attempt_that_was_fenced_out_returns_with_the_winners_bytes(
    transaction: MomentTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction.reserve()
    monkeypatch.setattr(releasing, "_WINNER_SECONDS", PATIENCE)
    overtaking = Overtaking(monkeypatch, books(transaction), times=1)
    theirs = b"".join(trusted._drawn(transaction, moment_of(transaction), None))

    def win() -> None:
        assert overtaking.waiting.wait(PATIENCE)
        assert overtaking.commit(ledger_of(transaction), "census", overtaking.fences[0], [theirs])

    winner = threading.Thread(target=win)
    winner.start()
    trusted.finalise(transaction, total_of(transaction))
    # finalise came back only because the winner had committed
    assert committed_bytes(transaction) == theirs
    winner.join()
    assert overtaking.waiting.is_set()
    assert overtaking.fences == [2]
    (record,) = ledger_of(transaction).records
    assert (record.state, record.fence) == (State.COMMITTED, 2)
    assert len(list((books(transaction) / "blobs").iterdir())) == 1
    trusted.publish(transaction)
    assert losses(ledger_of(transaction)) == [PrivacyLoss.parse("1")]


def test_when_the_winner_dies_the_loser_begins_again_with_a_new_draw(
    transaction: MomentTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction.reserve()
    Overtaking(monkeypatch, books(transaction), times=1)
    monkeypatch.setattr(releasing, "_WINNER_SECONDS", 0.2)
    draws: list[bytes] = []
    drawn = trusted._drawn

    def counted(*arguments: Any, **keywords: Any) -> list[bytes]:
        draws.append(b"".join(drawn(*arguments, **keywords)))
        return [draws[-1]]

    monkeypatch.setattr(trusted, "_drawn", counted)
    trusted.finalise(transaction, total_of(transaction))
    (record,) = ledger_of(transaction).records
    assert (record.state, record.fence) == (State.COMMITTED, 3)
    assert len(draws) == 2
    assert draws[0] != draws[1]
    assert committed_bytes(transaction) == draws[1]  # the first was discarded when it was fenced out


def test_who_is_overtaken_by_one_dying_attempt_after_the_other_gives_up_for_now(
    transaction: MomentTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction.reserve()
    Overtaking(monkeypatch, books(transaction), times=100)
    monkeypatch.setattr(releasing, "_WINNER_SECONDS", 0.1)
    with pytest.raises(DpdistError, match="again") as failure:
        trusted.finalise(transaction, total_of(transaction))
    assert [record.state for record in ledger_of(transaction).records] == [State.RESERVED]
    assert list((books(transaction) / "blobs").iterdir()) == []
    assert failure.value.exit_code == 5  # the same command resumes; it is no defect


class Clock:
    """A clock that moves only in a sleep, by at least half a second, and calls functions at given times."""

    def __init__(self, events: dict[float, Callable[[], object]]) -> None:
        self.now = 0.0
        self.events = dict(events)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.5)
        for time in [time for time in self.events if time <= self.now]:
            self.events.pop(time)()


def test_every_new_attempt_is_given_the_full_time_to_commit(
    transaction: MomentTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction.reserve()
    ledger, other = ledger_of(transaction), ledger_of(transaction)
    assert ledger.begin("census") == 1
    assert other.begin("census") == 2

    def begin() -> object:
        return other.begin("census")

    def commit() -> object:
        return other.commit("census", 4, [b"at last"])

    for events, seconds, committed in [
        ({}, 60.0, False),
        ({50.0: begin, 100.0: begin}, 160.0, False),
        ({50.0: commit}, 50.0, True),
        ({}, 0.0, True),  # committed already: there is nothing to wait for
    ]:
        clock = Clock(events)
        monkeypatch.setattr(ledgers, "time", clock)
        fence = (ledger.record("census") or pytest.fail("it is reserved")).fence
        assert ledger.wait("census", fence - 1, 60.0) is committed
        assert clock.events == {}
        assert seconds <= clock.now < seconds + 1


@pytest.mark.parametrize("moment", ["begin", "commit", "wait"])
def test_a_release_aborted_before_or_while_it_was_drawn_is_refused(
    transaction: MomentTransaction, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    transaction.reserve()
    if moment == "wait":
        Overtaking(monkeypatch, books(transaction), times=1)
    original = getattr(Ledger, moment)

    def aborted(ledger: Ledger, *arguments: Any) -> Any:
        transaction.abort()  # another run met an unusable chunk
        return original(ledger, *arguments)

    monkeypatch.setattr(Ledger, moment, aborted)
    with pytest.raises(RefusedError):
        trusted.finalise(transaction, total_of(transaction))
    assert list((books(transaction) / "blobs").iterdir()) == []
    assert ledger_of(transaction).charges == []


def test_a_refund_after_the_commit_does_not_happen(transaction: MomentTransaction) -> None:
    transaction.reserve()
    trusted.finalise(transaction, total_of(transaction))
    first = committed_bytes(transaction)
    transaction.abort()
    assert losses(ledger_of(transaction)) == [PrivacyLoss.parse("1")]
    assert committed_bytes(transaction) == first


def test_who_is_overtaken_while_it_draws_slowly_waits_for_longer_than_such_a_draw(
    transaction: MomentTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction.reserve()
    clock, waited = Clock({}), []

    def overtaken(*_: Any) -> bool:
        clock.sleep(1000.0)
        return False

    def watched(_ledger: Ledger, _release_id: str, _fence: int, seconds: float, _: Part) -> bool:
        waited.append(seconds)
        return False

    monkeypatch.setattr(releasing, "time", clock)
    monkeypatch.setattr(Ledger, "commit", overtaken)
    monkeypatch.setattr(Ledger, "wait", watched)
    with pytest.raises(DpdistError, match="again"):
        trusted.finalise(transaction, total_of(transaction))
    assert len(waited) > 1
    assert min(waited) >= 2 * 1000.0
