"""A row is charged for the releases of its own period: exactly that, never more than the budget, in both storages."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from support.ledgers import DATASET, behind, gaussian, pure

from dpdist.errors import DataError, DpdistError, RefusedError, UsageError
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.journal import Transaction
from dpdist.ledger.ledger import Ledger
from dpdist.privacy import accounting
from dpdist.privacy.accounting import caps_for
from dpdist.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss
from dpdist.privacy.parallel import Charge, PeriodFilters

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


@pytest.mark.parametrize(("place", "seed"), [("folder", 0), ("folder", 1), ("postgres", 0)], indirect=["place"])
def test_a_charge_is_granted_exactly_when_no_row_bears_more_than_the_budget(place: LedgerAddress, seed: int) -> None:
    """Pure losses of one table add up, so what a row bears is a sum of integers that needs no accounting."""
    chance = random.Random(seed)
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse(str(BUDGET)), periodic=True)
    charges: dict[str, tuple[int, tuple[str, ...]]] = {}
    to_come = "the rows of periods to come"
    closed: list[str] = []
    outcomes: Counter[str] = Counter()

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
            whole = chance.random() < 0.1
            days = () if whole else tuple(chance.sample(closed, chance.randint(1, len(closed)))) if closed else ()
            epsilon = chance.randint(1, 2)
            touched = days or (*closed, to_come)
            affordable = all(borne_by(day) + epsilon <= BUDGET for day in touched)
            try:
                charge(ledger, f"r{step}", *days, epsilon=epsilon)
                granted = True
                charges[f"r{step}"] = epsilon, days
            except RefusedError:
                granted = False
            assert granted == affordable
            outcomes[f"{'granted' if granted else 'refused'} {'whole' if not days else 'periods'}"] += 1
        most = max(borne_by(day) for day in (*closed, to_come))
        balance = Ledger(place).balance()
        least = balance.left if balance.left_closed is None else balance.left.least(balance.left_closed)
        assert BUDGET - least.pure_micro / 1e6 == most <= BUDGET
    ledger.verify()
    assert outcomes["granted periods"] > 5
    assert outcomes["refused periods"] > 2
    assert sum(epsilon for epsilon, _ in charges.values()) > BUDGET  # added up over periods it would not have fitted


def test_what_periods_bear_is_worked_out_by_hand() -> None:
    one, two, all_rows = pure(1), pure(2), pure(3)
    charges = [Charge(one, ("a", "b")), Charge(two, ("b",)), Charge(all_rows), Charge(one, ("c",))]
    budget = PrivacyLoss.parse("6")
    accounts = PeriodFilters(budget, caps_for(budget), "abc")
    assert all(accounts.book(str(i), charge) for i, charge in enumerate(charges))
    bears = {period: 6 - accounts.left([period]).pure_micro / 1e6 for period in "abc"}
    assert bears == {"a": 4, "b": 6, "c": 4}
    assert 6 - accounts.to_come.left().pure_micro / 1e6 == 3
    assert accounts.left().pure_micro == 0
    less = PrivacyLoss.parse("5.999999")
    accounts = PeriodFilters(less, caps_for(less), "abc")
    assert not all(accounts.book(str(i), charge) for i, charge in enumerate(charges))


Step = tuple[str, str, tuple[str, ...]]


def played(accounts: PeriodFilters, step: Step) -> bool:
    """Do one thing to accounts, and say whether it was done."""
    action, key, periods = step
    if action == "book":
        return accounts.book(key, Charge(pure(1), periods))
    getattr(accounts, action)(key)
    return True


@pytest.mark.parametrize("seed", range(2))
def test_a_charge_to_one_copy_of_the_accounts_shows_in_no_other(seed: int) -> None:
    """Copies share what has not changed: whatever is done to one, each is as if it had been alone."""
    chance = random.Random(seed)
    budget = PrivacyLoss.parse("9")
    every = [(PeriodFilters(budget, caps_for(budget), "ab"), list[Step]())]
    for number in range(120):
        accounts, done = chance.choice(every)
        if len(every) < 6 and chance.random() < 0.2:
            every.append((accounts.copy(), list(done)))
        chosen = tuple(chance.sample(sorted(accounts.closed), chance.randint(0, len(accounts.closed))))
        step: Step = chance.choice(
            [
                ("close", chance.choice("abcdef"), ()),  # again, too, as a journal that was edited might say
                ("book", f"r{number}", chosen),
                ("book", f"r{number}", chosen),
                ("refund", f"r{chance.randrange(number + 1)}", ()),
            ]
        )
        if played(accounts, step):
            done.append(step)
    assert len(every) == 6
    for accounts, done in every:
        alone = PeriodFilters(budget, caps_for(budget), "ab")
        assert all(played(alone, step) for step in done)
        assert accounts == alone


@pytest.mark.usefixtures("state")
def test_gaussian_releases_of_a_period_compose_exactly_and_those_of_others_not_at_all(tmp_path: Path) -> None:
    one = gaussian("1", "1e-6")
    budget = PrivacyLoss.parse("1.5", "1e-6")
    ledger = Ledger.create(tmp_path / "books", dataset_id=DATASET, budget=budget, periodic=True)
    for day in DAYS:
        ledger.close_period(day, seal(day))
        charge(ledger, day, day, guarantee=one)
    assert one.mu_squared is not None
    whole = 1 / Fraction(accounting.gaussian_sigma(budget)) ** 2
    for times in (1, 2):
        left = ledger.balance().left_closed
        assert left is not None
        rest = float(whole - times * one.mu_squared)
        assert accounting.gaussian_sigma(PrivacyLoss(left.gaussian_micro, 10**12)) == pytest.approx(
            rest**-0.5, rel=1e-5
        )
        if times == 1:
            charge(ledger, "twice", *DAYS[:2], guarantee=one)
    with pytest.raises(RefusedError, match=r"costs epsilon 1, .* left: one gaussian release of epsilon 0\."):
        charge(ledger, "thrice", DAYS[1], guarantee=one)
    charge(ledger, "elsewhere", DAYS[2], guarantee=one)


def test_a_period_is_closed_once(closed: Ledger) -> None:
    day = DAYS[1]
    closed.close_period(day, seal(day))
    assert closed.periods == {name: seal(name) for name in DAYS[:3]}
    with pytest.raises(RefusedError, match="its rows were other ones"):
        closed.close_period(day, "other rows")
    with pytest.raises(RefusedError, match="comes late: 2026-01-03 is closed already"):
        closed.close_period("2026-01-02.5", "late rows")
    with pytest.raises(RefusedError, match="are those of 2026-01-02"):
        closed.close_period(DAYS[3], seal(day))
    assert list(closed.periods) == DAYS[:3]


@pytest.mark.parametrize("name", ["", ".hidden", "a--b", "a/b", "2026 01", "ä", "x" * 65, "-1", "a."])
def test_names_that_would_mislead_are_refused(closed: Ledger, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a period"):
        closed.close_period(name, "rows")


def test_a_charge_names_closed_periods_with_the_content_it_will_read(closed: Ledger) -> None:
    def asked(**periods: str) -> None:
        closed.reserve("r", dataset_id=DATASET, parameters={}, guarantee=pure(), periods=periods)

    for periods in ({DAYS[0]: "other rows"}, {DAYS[5]: seal(DAYS[5])}, {DAYS[0]: seal(DAYS[0]), DAYS[1]: ""}):
        with pytest.raises(RefusedError, match="is not closed with these rows"):
            asked(**periods)
    assert closed.records == []


def test_an_id_stands_for_its_periods(closed: Ledger) -> None:
    def asked(*days: str) -> None:
        periods = {day: seal(day) for day in days}
        closed.reserve("r", dataset_id=DATASET, parameters={}, guarantee=pure(), periods=periods)

    asked(DAYS[0])
    asked(DAYS[0])
    for days in (DAYS[1:2], DAYS[:2], []):
        with pytest.raises(RefusedError, match=r"stands for other parameters .* periods differ"):
            asked(*days)
    assert [record.periods for record in closed.records] == [(DAYS[0],)]


def test_a_ledger_without_periods_stays_without(place: LedgerAddress) -> None:
    plain = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("3"))
    with pytest.raises(RefusedError, match="do not come in periods"):
        plain.close_period(DAYS[0], "rows")
    with pytest.raises(RefusedError, match="is not closed with these rows"):
        charge(plain, "r", DAYS[0])
    assert plain.periods == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [("2026-01-01", "2026-01-00"), ("seal of 2026-01-01", "other"), ('["2026-01-01"]', '["2026-01-02"]')],
)
def test_altered_periods_break_the_chain(place: LedgerAddress, closed: Ledger, old: str, new: str) -> None:
    charge(closed, "r", DAYS[0])
    with behind(place) as execute:
        for sequence, entry in execute("SELECT sequence, entry FROM journal").fetchall():
            if old in entry:
                execute("UPDATE journal SET entry = ? WHERE sequence = ?", (entry.replace(old, new), sequence))
                break
        else:
            pytest.fail("nothing was altered")
    with pytest.raises(DataError, match="broken at entry"):
        Ledger(place).verify()


def forged(ledger: Ledger, entry: dict[str, object]) -> None:
    """Append an entry with a digest of its own, as whoever can write to the journal could."""
    with ledger._locked() as (view, transaction):
        assert isinstance(transaction, Transaction)
        transaction.append(entry, view.after, view.head)


def test_a_forged_charge_beyond_the_budget_of_one_period_is_found(place: LedgerAddress, closed: Ledger) -> None:
    for i in range(BUDGET):
        charge(closed, f"r{i}", DAYS[0])
    closed.verify()
    entry = {"event": "reserved", "id": "forged", "parameters": {}, "guarantee": pure().to_json()}
    forged(closed, {**entry, "periods": [DAYS[1]]})
    Ledger(place).verify()  # that period had room
    forged(closed, {**entry, "id": "more", "periods": [DAYS[0]]})
    with pytest.raises(DataError, match="exceed its budget"):
        Ledger(place).verify()


def test_a_forged_charge_to_no_closed_period_is_found(place: LedgerAddress, closed: Ledger) -> None:
    entry = {"event": "reserved", "id": "forged", "parameters": {}, "guarantee": pure().to_json()}
    forged(closed, {**entry, "periods": [DAYS[7]]})
    with pytest.raises(DpdistError, match="never closed"):
        Ledger(place).verify()


def test_one_relation_for_all_periods(closed: Ledger) -> None:
    charge(closed, "r", DAYS[0])
    with pytest.raises(RefusedError, match="kept under replace-one"):
        charge(closed, "s", DAYS[1], guarantee=pure(1, Neighbours.ADD_REMOVE))
