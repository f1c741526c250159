"""Who is overtaken by another attempt waits, and draws anew; :mod:`test_state_space` interleaves all other steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.trusted_scene import committed_bytes, ledger_of, total_of

from dpdist.core.errors import DpdistError
from dpdist.core.ledger import ledger as ledgers
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import Part, State
from dpdist.core.release import transaction as releasing
from dpdist.core.release import trusted
from dpdist.core.release.trusted import MomentTransaction


def test_when_the_winner_dies_the_loser_begins_again_with_a_new_draw(
    transaction: MomentTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction.reserve()
    draws: list[bytes] = []
    drawn, commit = trusted._drawn, Ledger.commit

    def counted(*arguments: Any, **keywords: Any) -> list[bytes]:
        draws.append(b"".join(drawn(*arguments, **keywords)))
        return [draws[-1]]

    def overtaken(ledger: Ledger, release_id: str, *others: Any) -> bool:
        if len(draws) == 1:
            ledger.begin(release_id)  # by somebody who dies
        return commit(ledger, release_id, *others)

    monkeypatch.setattr(releasing, "_WINNER_SECONDS", 0.2)
    monkeypatch.setattr(trusted, "_drawn", counted)
    monkeypatch.setattr(Ledger, "commit", overtaken)
    trusted.finalise(transaction, total_of(transaction))
    (record,) = ledger_of(transaction).records
    assert (record.state, record.fence) == (State.COMMITTED, 3)
    assert len(draws) == 2
    assert draws[0] != draws[1]
    assert committed_bytes(transaction) == draws[1]  # the first was discarded when it was fenced out


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
    with pytest.raises(DpdistError, match="again") as failure:
        trusted.finalise(transaction, total_of(transaction))
    assert failure.value.exit_code == 5  # the same command resumes; it is no defect
    assert len(waited) > 1
    assert min(waited) >= 2 * 1000.0
