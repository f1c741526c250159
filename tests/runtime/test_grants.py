"""The states of grants: whatever dies, freezes, is lost on its way or comes twice, each unit is in the total once.

The driver's table of grants, the worker's lives and the bank are the real ones. What is between them is made up: a
random order of events in which every message can be lost, come late, or come twice.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dpdist.naming import PYTHON
from dpdist.runtime.asker import Asker
from dpdist.runtime.bank import Bank, Outcome
from dpdist.runtime.grants import Batch, Grants, State
from dpdist.runtime.running_sums import Common, Life, Place, Said

ASKER = Asker(PYTHON, "1")
UNITS = 7
WHOLE = sum(8**unit for unit in range(UNITS))
"""Every digit 1: a unit that is missing leaves 0, one that counts twice leaves 2."""


class Powers:
    """The values of a pass whose units are powers of 8."""

    def cut(self, unit: int) -> int:
        return int(8**unit)


def life() -> Life:
    return Life(Common(operator.pos, Powers(), operator.add, ASKER))


@dataclass(frozen=True)
class Keyed:
    """A power of 8 under a secret, or a sum of such: those of two secrets must not meet."""

    value: int = 0
    secret: bytes = b""

    def cut(self, unit: int) -> Keyed:
        return Keyed(int(8**unit))

    def keyed(self, secret: bytes) -> Keyed:
        return replace(self, secret=secret)

    def __pos__(self) -> Keyed:
        assert self.secret
        return self

    def __add__(self, other: Keyed) -> Keyed:
        assert self.secret == other.secret
        return replace(self, value=self.value + other.value)


class World:
    """Some workers, a bank, a driver, and messages on their way.

    Parameters
    ----------
    seed
        Of what happens.
    secret
        Whether the pass has one, which is the bank's.
    """

    def __init__(self, seed: int, *, secret: bool = False) -> None:
        self.random, self.secret = random.Random(seed), secret
        self.grants, self.bank = Grants(UNITS), self.opened()
        self.told: list[tuple[str, bytes | None]] = []
        """Every secret that was ever on its way to a life."""
        self.lives: dict[str, Life] = {}
        """Every life that ever was: those that were given up go on for a while."""
        self.given: list[tuple[str, int, int]] = []
        self.numbers: dict[str, int] = {}
        self.seen: set[str] = set()
        self.faults = 0

    def lost(self) -> bool:
        """Say whether a message is lost."""
        return self.random.random() < 0.3

    def opened(self) -> Bank:
        """Open a bank; it is another one each time."""
        return Bank(operator.add, ASKER, self.random.randbytes(4) if self.secret else None)

    def some(self) -> str:
        """Return a life that may add."""
        return self.random.choice(self.grants.lives)

    # what may happen

    def welcome(self) -> None:
        name = f"life-{len(self.lives)}"
        self.lives[name], self.numbers[name] = life(), 0
        if self.secret:
            self.lives[name] = Life(Common(operator.pos, Keyed(), operator.add, ASKER, secret=True))
            self.told.append((name, self.bank.secret))
            if not self.tell(name, self.bank.secret) or self.lost():
                self.seen.add("never told")
                return  # it is given up, and nothing was granted to it
        self.grants.welcome(name)

    def tell(self, name: str, secret: bytes | None) -> bool:
        """Bring a secret to a life, unless it is lost on the way."""
        return not self.lost() and secret is not None and self.lives[name].entrust(secret)

    def tell_again(self) -> None:
        """Bring a secret late, or twice, or that of a bank to lives of another one."""
        if self.told:
            (name, _), (_, secret) = self.random.choice(self.told), self.random.choice(self.told)
            self.tell(name, secret)

    def give(self) -> None:
        if self.grants.open:
            name, unit = self.some(), self.random.choice(list(self.grants.open))
            self.given.append((name, self.grants.grant(name, unit).number, unit))

    def run(self) -> None:
        """Run a task: now or long after it was submitted, once or several times, whatever became of its grant."""
        if self.given:
            name, number, unit = self.random.choice(self.given)
            said = self.lives[name].run(number, unit)
            if said is Said.ADDED and not self.lost():
                self.seen.add("added")
                self.grants.added(number)

    def withdraw(self) -> None:
        if self.given:
            name, number, _ = self.random.choice(self.given)
            said = self.lives[name].withdraw(number)
            if not self.lost() and name in self.grants.lives:
                self.seen.add(f"withdrawn: {said}")
                self.grants.withdrawn(number) if said is Said.DROPPED else self.grants.added(number)

    def detach(self) -> None:
        name = self.some()
        grants, nbytes = self.lives[name].detach(self.numbers[name])
        if not self.lost() and grants:
            assert self.grants.detached(Batch(name, self.numbers[name], grants, nbytes))
            self.numbers[name] += 1

    def give_up(self) -> None:
        name = self.some()
        self.seen.add("given up while fetched" if self.fetched_from(name) else "given up")
        self.grants.give_up(name)

    def fetched_from(self, name: str) -> bool:
        return self.grants.fetching is not None and self.grants.fetching.life == name

    def fetch(self) -> None:
        if self.grants.fetching is None and self.grants.batches:
            self.grants.fetch(self.random.choice(self.grants.batches))

    def take(self) -> None:
        """Let the bank take the batch that is fetched; its answer, or the sum itself, may be lost."""
        batch = self.grants.fetching
        if batch is None:
            return
        held = self.lives[batch.life].batch(batch.number)
        outcome = None
        if held is not None and not self.lost():
            outcome = self.bank.take(
                Place(batch.life, batch.life, batch.number, 0), held.grants, batch.grants, held.total
            )
        if outcome is Outcome.TAKEN:
            self.grants.banked()
            self.seen.add("merged batch taken" if batch.parts else "taken")
            if not self.lost():
                self.lives[batch.life].forget(batch.number)
            return
        self.grants.not_fetched()
        if outcome is Outcome.REFUSED:
            self.seen.add("refused")
            self.grants.give_up(batch.life)

    def absorb(self) -> None:
        if len(self.grants.batches) < 2 or self.grants.fetching is not None:
            return
        first, other = self.random.sample(self.grants.batches, 2)
        here, there = (self.lives[each.life].batch(each.number) for each in (first, other))
        assert here is not None
        assert there is not None
        if (other.life, other.number) not in here.sources:
            here.total = here.total + there.total
            here.sources.add((other.life, other.number))
            here.grants |= there.grants
        if self.lost():  # the driver does not know what is in it now: it gives up who holds it
            self.seen.add("lost while absorbing")
            self.grants.give_up(first.life)
        else:
            self.grants.absorbed(first, (other,))

    def lose_bank(self) -> None:
        if self.random.random() < 0.1:
            self.seen.add("bank lost")
            self.bank = self.opened()
            self.grants.bank_lost()
            if self.secret:
                self.give_all_up()

    def give_all_up(self) -> None:
        """Give up the lives of a bank that has gone with its secret."""
        for name in self.grants.lives:
            self.grants.give_up(name)

    def play(self) -> None:
        """Let things happen, then let the pass end: no unit may be lost, and none counted twice."""
        happenings: list[Callable[[], Any]] = [
            self.welcome, self.give, self.give, self.give, self.run, self.run, self.run, self.withdraw, self.detach,
            self.give_up, self.fetch, self.take, self.take, self.absorb, self.lose_bank, self.tell_again,
        ]  # fmt: skip
        for _ in range(self.random.randrange(20, 160)):
            while not self.grants.lives:
                self.welcome()
            self.random.choice(happenings)()
            assert self.at_most_once()
        for name in self.grants.lives:
            self.grants.give_up(name)
        if self.grants.fetching is not None:
            self.take()
        self.grants.not_fetched()
        while not self.grants.complete:
            while not self.grants.lives:
                self.welcome()
            for step in (self.give, self.run, self.detach, self.fetch, self.take):
                step()
            self.sweep()

    def sweep(self) -> None:
        """Withdraw what has no receipt, as at the end of a pass."""
        for name, number, _ in self.given:
            if name in self.grants.lives and self.grants.unit_of(number) is not None and self.random.random() < 0.1:
                said = self.lives[name].withdraw(number)
                self.grants.withdrawn(number) if said is Said.DROPPED else self.grants.added(number)

    @property
    def sum(self) -> int:
        """The bank's, which is under its own secret."""
        total = self.bank.total or 0
        if isinstance(total, Keyed):
            assert total.secret == self.bank.secret
            return total.value
        return int(total)

    def at_most_once(self) -> bool:
        """Say whether every digit of the bank's sum is 0 or 1."""
        total = self.sum
        return all(total // 8**unit % 8 <= 1 for unit in range(UNITS))


def test_each_unit_is_in_the_total_once_whatever_happens() -> None:
    seen: set[str] = set()
    for seed in range(600):
        world = World(seed, secret=seed % 2 == 1)
        world.play()
        assert world.sum == WHOLE, seed
        assert world.grants.count(State.BANKED) == UNITS
        seen |= world.seen
    assert seen == {  # the twin: none of this would prove anything if it had not happened
        "added", "withdrawn: added", "withdrawn: dropped", "given up", "given up while fetched", "taken",
        "merged batch taken", "lost while absorbing", "bank lost", "never told",
    }  # fmt: skip


def hasty(world: World) -> None:
    """Take the order to withdraw for the answer."""

    def withdraw() -> None:
        if world.given:
            world.grants.withdrawn(world.random.choice(world.given)[1])

    world.withdraw = withdraw  # type: ignore[method-assign]


def credulous(world: World) -> None:
    """Take sums of lives that were given up: the bank does not look at the grants."""
    take = world.bank.take
    world.bank.take = lambda place, grants, _, total: take(place, grants, grants, total)  # type: ignore[method-assign, assignment]
    world.absorb = lambda: _absorb_and_keep(world)  # type: ignore[method-assign]


def _absorb_and_keep(world: World) -> None:
    """Absorb, and lose the answer, and go on as if nothing had been asked."""
    if len(world.grants.batches) < 2 or world.grants.fetching is not None:
        return
    first, other = world.random.sample(world.grants.batches, 2)
    here, there = (world.lives[each.life].batch(each.number) for each in (first, other))
    assert here is not None
    assert there is not None
    here.total = here.total + there.total
    here.grants |= there.grants


def thrifty(world: World) -> None:
    """Keep lives when the bank has gone with the secret that they sum under."""
    world.give_all_up = lambda: None  # type: ignore[method-assign]


def fickle(world: World) -> None:
    """Let lives take whatever secret comes."""
    tell = world.tell

    def telling(name: str, secret: bytes | None) -> bool:
        world.lives[name]._secret = None
        return tell(name, secret)

    world.tell = telling  # type: ignore[method-assign]


@pytest.mark.parametrize("break_a_rule", [hasty, credulous, thrifty, fickle])
def test_the_model_notices_a_rule_that_is_broken(break_a_rule: Callable[[World], None]) -> None:
    wrong = False
    for seed in range(200):
        if wrong:
            break
        world = World(seed, secret=break_a_rule in {thrifty, fickle})
        break_a_rule(world)
        try:
            world.play()
        except AssertionError:
            wrong = True
        else:
            wrong = world.sum != WHOLE
    assert wrong


def test_a_grant_is_added_once_however_often_its_task_runs() -> None:
    one = life()
    assert [one.run(0, 2) for _ in range(3)] == [Said.ADDED] * 3
    assert one.withdraw(0) is Said.ADDED
    assert one.withdraw(1) is Said.DROPPED
    assert one.run(1, 3) is Said.DROPPED
    grants, _ = one.detach(0)
    assert grants == {0}
    assert one.run(0, 2) is Said.ADDED  # it stays in the detached sum, and in no other
    assert one.detach(1)[0] == frozenset()
    held = one.batch(0)
    assert held is not None
    assert held.total == 64
    assert one.detach(0)[0] == {0}  # asked again


def test_what_a_life_detached_after_it_was_given_up_is_refused() -> None:
    grants = Grants(2)
    grants.welcome("old")
    first = grants.grant("old", 0)
    grants.added(first.number)
    grants.give_up("old")
    assert grants.count(State.OPEN) == 2
    assert not grants.detached(Batch("old", 0, frozenset([first.number])))
    assert not grants.added(first.number)
    assert not grants.withdrawn(first.number)
    with pytest.raises(AssertionError, match="who is there"):
        grants.grant("old", 0)


def test_a_batch_with_a_grant_that_is_not_live_is_refused() -> None:
    grants = Grants(3)
    grants.welcome("one")
    kept, dropped = grants.grant("one", 0), grants.grant("one", 1)
    assert grants.withdrawn(dropped.number)
    assert not grants.detached(Batch("one", 0, frozenset([kept.number, dropped.number])))
    assert not grants.detached(Batch("one", 0, frozenset()))
    assert grants.detached(Batch("one", 0, frozenset([kept.number])))
    assert not grants.detached(Batch("one", 1, frozenset([kept.number])))
    assert grants.batches == [Batch("one", 0, frozenset([kept.number]))]


def test_the_bank_takes_a_batch_once_and_only_with_the_grants_that_are_expected() -> None:
    bank = Bank(operator.add, ASKER)
    place = Place("tcp://one", "life", 0, 8)
    assert bank.take(place, frozenset([1, 2]), frozenset([1]), 5) is Outcome.REFUSED
    assert bank.total is None
    assert [bank.take(place, frozenset([1]), frozenset([1]), 5) for _ in range(2)] == [Outcome.TAKEN] * 2
    assert bank.total == 5
    assert bank.take(place._replace(number=1), frozenset([2]), frozenset([2]), 6) is Outcome.TAKEN
    assert bank.total == 11
