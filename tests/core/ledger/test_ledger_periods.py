"""A row is charged exactly for the releases of its own period, never more than the budget."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.ledgers import DATASET, pure

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.privacy.guarantee import PrivacyLoss

BUDGET = 4
DAYS = [f"2026-01-{day:02d}" for day in range(1, 10)]


def seal(period: str) -> str:
    return f"seal of {period}"


@pytest.fixture
def ledger(place: LedgerAddress) -> Ledger:
    return Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse(str(BUDGET)), periodic=True)


@pytest.fixture
def closed(ledger: Ledger) -> Ledger:
    for day in DAYS[:3]:
        ledger.close_period(day, seal(day))
    return ledger


def charge(ledger: Ledger, name: str, *days: str, epsilon: int = 1) -> None:
    periods = {day: seal(day) for day in days}
    ledger.reserve(name, dataset_id=DATASET, parameters={"days": list(days)}, guarantee=pure(epsilon), periods=periods)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_charge_is_granted_exactly_when_no_row_bears_more_than_the_budget(folder: Path, seed: int) -> None:
    """Pure losses add up, so the loss of a row is a sum of integers that needs no accounting."""
    chance = random.Random(seed)
    ledger = Ledger.create(folder, dataset_id=DATASET, budget=PrivacyLoss.parse(str(BUDGET)), periodic=True)
    charges: dict[str, tuple[int, tuple[str, ...]]] = {}
    to_come = "the rows of periods to come"
    closed: list[str] = []
    outcomes: Counter[tuple[bool, bool]] = Counter()

    def borne_by(day: str) -> int:
        return sum(epsilon for epsilon, days in charges.values() if not days or day in days)

    for step in range(60):
        action = chance.choice(["close", "charge", "charge", "charge", "charge", "abort"])
        if action == "close" and len(closed) < len(DAYS):
            closed.append(DAYS[len(closed)])
            ledger.close_period(closed[-1], seal(closed[-1]))
        elif action == "abort" and charges:
            name = chance.choice(sorted(charges))
            assert ledger.abort(name)
            del charges[name]
        elif action == "charge":
            all_rows = not closed or chance.random() < 0.1
            days = () if all_rows else tuple(chance.sample(closed, chance.randint(1, len(closed))))
            epsilon = chance.randint(1, 2)
            affordable = all(borne_by(day) + epsilon <= BUDGET for day in days or (*closed, to_come))
            with nullcontext() if affordable else pytest.raises(RefusedError):
                charge(ledger, f"r{step}", *days, epsilon=epsilon)
            if affordable:
                charges[f"r{step}"] = epsilon, days
            outcomes[affordable, all_rows] += 1
        balance = Ledger(folder).balance()
        least = balance.left if balance.left_closed is None else balance.left.least(balance.left_closed)
        assert BUDGET - least.pure_micro / 1e6 == max(map(borne_by, (*closed, to_come))) <= BUDGET
    ledger.verify()
    assert outcomes[True, False] > 5
    assert outcomes[False, False] > 2
    assert sum(epsilon for epsilon, _ in charges.values()) > BUDGET  # the sum over all periods exceeds the budget


def test_a_period_is_closed_once(closed: Ledger) -> None:
    day = DAYS[1]
    closed.close_period(day, seal(day))
    assert closed.periods == {name: seal(name) for name in DAYS[:3]}
    with pytest.raises(RefusedError, match="is closed with other rows"):
        closed.close_period(day, "other rows")
    with pytest.raises(RefusedError, match="is too late: 2026-01-03 is already closed"):
        closed.close_period("2026-01-02.5", "late rows")
    with pytest.raises(RefusedError, match="are equal to those of 2026-01-02"):
        closed.close_period(DAYS[3], seal(day))
    assert list(closed.periods) == DAYS[:3]


def test_misleading_names_are_refused(closed: Ledger) -> None:
    for name in ("", ".hidden", "a--b", "a/b", "2026 01", "ä", "x" * 65, "-1", "a."):
        with pytest.raises(UsageError, match="not a valid name of a period"):
            closed.close_period(name, "rows")


def test_an_id_stands_for_closed_periods_with_the_content_it_will_read(closed: Ledger) -> None:
    def asked(**periods: str) -> None:
        closed.reserve("r", dataset_id=DATASET, parameters={}, guarantee=pure(), periods=periods)

    seals = {day: seal(day) for day in DAYS}
    for periods in ({DAYS[0]: "other rows"}, {DAYS[5]: seals[DAYS[5]]}, {DAYS[0]: seals[DAYS[0]], DAYS[1]: ""}):
        with pytest.raises(RefusedError, match="is not closed with these rows"):
            asked(**periods)
    assert closed.records == []
    for _ in range(2):
        asked(**{DAYS[0]: seals[DAYS[0]]})
    for days in (DAYS[1:2], DAYS[:2], []):
        with pytest.raises(RefusedError, match=r"is already used with other parameters .* periods differ"):
            asked(**{day: seals[day] for day in days})
    assert [record.periods for record in closed.records] == [(DAYS[0],)]


def test_a_ledger_without_periods_stays_without(place: LedgerAddress) -> None:
    plain = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("3"))
    with pytest.raises(RefusedError, match="do not come in periods"):
        plain.close_period(DAYS[0], "rows")
    with pytest.raises(RefusedError, match="is not closed with these rows"):
        charge(plain, "r", DAYS[0])
    assert plain.periods == {}


def test_a_forged_charge_beyond_the_budget_of_one_period_or_to_none_is_found(
    place: LedgerAddress, closed: Ledger
) -> None:
    charge(closed, "r", DAYS[0], epsilon=BUDGET)
    for day, found in ((DAYS[1], None), (DAYS[0], "exceed its budget"), (DAYS[7], "period that is not closed")):
        entry = {"event": "reserved", "id": day, "parameters": {}, "guarantee": pure().to_json(), "periods": [day]}
        with closed._locked() as (view, transaction):
            transaction.append(entry, view.after, view.head)  # as anyone who can write to the journal could
        with pytest.raises(DataError, match=found) if found else nullcontext():
            Ledger(place).verify()
