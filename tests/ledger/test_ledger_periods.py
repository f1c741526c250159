"""A row is charged exactly for the releases of its own period, never more than the budget, in both storages."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path

import pytest
from support.ledgers import DATASET, gaussian, pure

from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.ledger import Ledger
from dpdist.privacy import accounting
from dpdist.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss

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


def charge(ledger: Ledger, name: str, *days: str, epsilon: int = 1, guarantee: Guarantee | None = None) -> None:
    ledger.reserve(
        name,
        dataset_id=DATASET,
        parameters={"days": list(days)},
        guarantee=guarantee or pure(epsilon),
        periods={day: seal(day) for day in days},
    )


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


def test_gaussian_releases_of_a_period_compose_exactly_and_those_of_others_not_at_all(folder: Path) -> None:
    one, budget = gaussian("1", "1e-6"), PrivacyLoss.parse("1.5", "1e-6")
    ledger = Ledger.create(folder, dataset_id=DATASET, budget=budget, periodic=True)
    for day in DAYS[:4]:
        ledger.close_period(day, seal(day))
        charge(ledger, day, day, guarantee=one)
    assert one.mu_squared is not None
    limit = 1 / Fraction(accounting.gaussian_sigma(budget)) ** 2
    for times in (1, 2):
        left = ledger.balance().left_closed
        assert left is not None
        sigma = accounting.gaussian_sigma(PrivacyLoss(left.gaussian_micro, 10**12))
        assert sigma == pytest.approx(float(limit - times * one.mu_squared) ** -0.5, rel=1e-5)
        if times == 1:
            charge(ledger, "twice", *DAYS[:2], guarantee=one)
    with pytest.raises(RefusedError, match=r"costs epsilon 1, .* left: one gaussian release of epsilon 0\."):
        charge(ledger, "thrice", DAYS[1], guarantee=one)
    charge(ledger, "elsewhere", DAYS[2], guarantee=one)


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


def test_an_id_stands_for_closed_periods_with_the_content_it_will_read_and_one_relation(closed: Ledger) -> None:
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
    with pytest.raises(RefusedError, match="neighbouring relation replace-one"):
        charge(closed, "s", DAYS[1], guarantee=pure(1, Neighbours.ADD_REMOVE))


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
    def forged(name: str, day: str) -> None:
        """Append an entry with a valid digest, as anyone who can write to the journal could."""
        entry = {"event": "reserved", "id": name, "parameters": {}, "guarantee": pure().to_json(), "periods": [day]}
        with closed._locked() as (view, transaction):
            transaction.append(entry, view.after, view.head)

    for i in range(BUDGET):
        charge(closed, f"r{i}", DAYS[0])
    forged("with room", DAYS[1])
    Ledger(place).verify()
    forged("without", DAYS[0])
    with pytest.raises(DataError, match="exceed its budget"):
        Ledger(place).verify()
    forged("never closed", DAYS[7])
    with pytest.raises(DataError, match="period that is not closed"):
        Ledger(place).verify()
