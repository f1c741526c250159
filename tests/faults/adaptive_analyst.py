"""What an analyst can win who chooses each request from the answers before it: backward induction over a ledger's rule.

An analyst has a menu of requests and asks the ledger for one after the other. His state is the charge and the
loss ``L = log P/Q`` of the answers so far; he takes whatever accepted request makes the delta of the whole interaction
largest, or stops. Each request is answered by the worst mechanism of its guarantee: a Gaussian one by a Gaussian
(``L`` grows by a normal of mean mu²/2 and variance mu²), a pure one by randomised response, one of bounded range by a
two-point law, and a point (e, d) by telling everything with probability d and by randomised response otherwise.

Losses live on a grid. All are rounded down, so the value is a lower bound on the true delta of a strategy that is
exhibited; rounded up, they bound it from above. The rule before caps (:class:`OldRule`) is run beside the filter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from dpdist import Guarantee, Neighbours, PrivacyLoss
from dpdist.core.privacy.accounting import Filter, caps_for, gaussian_delta, gaussian_sigma
from dpdist.core.privacy.guarantee import MICRO, Arithmetic

Values = npt.NDArray[np.float64]
BUDGETS = (("1", "1e-6"), ("3", "1e-6"), ("3", "1e-9"), ("1.1", "1e-6"), ("2", "1e-5"))


def gaussian(epsilon: str, delta: str, share: Fraction = Fraction(1)) -> Guarantee:
    loss = PrivacyLoss.parse(epsilon, delta)
    square = share / Fraction(gaussian_sigma(loss)) ** 2
    return Guarantee(Neighbours.ADD_REMOVE, loss, square, Arithmetic.INTEGER_EXACT, "none")


def pure(epsilon: str) -> Guarantee:
    return Guarantee(Neighbours.ADD_REMOVE, PrivacyLoss.parse(epsilon), None, Arithmetic.INTEGER_EXACT, "none")


def point(epsilon: str, delta: str) -> Guarantee:
    return Guarantee(Neighbours.ADD_REMOVE, PrivacyLoss.parse(epsilon, delta), None, Arithmetic.IDEAL_REAL, "none")


def ranged(epsilon: str) -> Guarantee:
    loss = PrivacyLoss.parse(epsilon)
    ranges = (Fraction(loss.epsilon_micro, MICRO),)
    return Guarantee(Neighbours.ADD_REMOVE, loss, None, Arithmetic.IDEAL_REAL, "none", ranges)


class Rule(Protocol):
    """What a ledger accepts: a state of its charges, which one more release turns into another."""

    def key(self) -> object: ...

    def after(self, guarantee: Guarantee) -> Rule | None: ...


@dataclass(frozen=True)
class NewRule:
    """The filter of the product."""

    account: Filter | None
    budget: PrivacyLoss

    def key(self) -> object:
        return None if self.account is None else (self.account.caps, tuple(self.account.rest))

    def after(self, guarantee: Guarantee) -> Rule | None:
        account = Filter(self.budget, caps_for(self.budget, guarantee)) if self.account is None else self.account.copy()
        return NewRule(account, self.budget) if account.book(str(len(account)), guarantee) else None


@dataclass(frozen=True)
class OldRule:
    """What ledgers accepted before caps: one account of Gaussian and of other releases, checked after the fact."""

    budget: PrivacyLoss
    mu_squared: Fraction = Fraction(0)
    epsilon_micro: int = 0
    delta_atto: int = 0

    def key(self) -> object:
        return self.mu_squared, self.epsilon_micro, self.delta_atto

    def after(self, guarantee: Guarantee) -> Rule | None:
        if guarantee.mu_squared is not None:
            found = OldRule(self.budget, self.mu_squared + guarantee.mu_squared, self.epsilon_micro, self.delta_atto)
        else:
            loss = guarantee.loss
            sums = self.epsilon_micro + loss.epsilon_micro, self.delta_atto + loss.delta_atto
            found = OldRule(self.budget, self.mu_squared, *sums)
        rest = self.budget.epsilon_micro - found.epsilon_micro
        if rest < 0:
            return None
        delta = found.delta_atto / 1e18 + gaussian_delta(Fraction(rest, MICRO), found.mu_squared)
        return found if delta <= self.budget.delta else None


@dataclass(frozen=True)
class Game:
    """An analyst's game against a rule."""

    budget: PrivacyLoss
    menu: tuple[Guarantee, ...]
    stages: int
    points: int = 4001
    up: bool = False

    @property
    def grid(self) -> Values:
        """Losses from -2 epsilon to 3 epsilon."""
        return np.linspace(-2 * self.budget.epsilon, 3 * self.budget.epsilon, self.points)

    def value(self, rule: Rule) -> float:
        known: dict[object, Values] = {}
        start = self._value(rule, self.stages, known)
        return float(np.interp(0.0, self.grid, start))

    def _value(self, rule: Rule, stages: int, known: dict[object, Values]) -> Values:
        key = (rule.key(), stages)
        if key not in known:
            best: Values = np.maximum(0.0, -np.expm1(self.budget.epsilon - self.grid))
            for request in self.menu if stages else ():
                after = rule.after(request)
                if after is not None:
                    best = np.maximum(best, self._answered(self._value(after, stages - 1, known), request))
            known[key] = best
        return known[key]

    def _answered(self, value: Values, request: Guarantee) -> Values:
        """Return what a request is worth at each loss, given what every loss is worth after it."""
        epsilon, delta = request.loss.epsilon, request.loss.delta
        if request.mu_squared is not None:
            return self._gaussian(value, math.sqrt(request.mu_squared))
        if not request.bounded_ranges:
            return delta + (1 - delta) * self._two_points(value, epsilon, -epsilon)
        ends = np.linspace(0.1, 0.9, 5) * epsilon
        return np.asarray(np.max([self._two_points(value, t, t - epsilon) for t in ends], axis=0), np.float64)

    def _two_points(self, value: Values, more: float, less: float) -> Values:
        p = math.expm1(less) / math.expm1(less - more)  # of the upper point under P, as the ratios have mean 1 under Q
        return p * self._shifted(value, more) + (1 - p) * self._shifted(value, less)

    def _shifted(self, value: Values, loss: float) -> Values:
        """Return the value after a step of the loss, which is rounded to the grid."""
        step = self.grid[1] - self.grid[0]
        cells = loss / step
        count = math.ceil(cells - 1e-9) if self.up else math.floor(cells + 1e-9)
        index = np.arange(self.points) + count
        return self._at(value, index)

    def _at(self, value: Values, index: npt.NDArray[np.int64]) -> Values:
        """Return values at places of the grid; above it at most 1, below it at least 0."""
        top = 1.0 if self.up else value[-1]
        bottom = value[0] if self.up else 0.0
        inside = value[np.clip(index, 0, self.points - 1)]
        return np.where(index >= self.points, top, np.where(index < 0, bottom, inside))

    def _gaussian(self, value: Values, mu: float) -> Values:
        step = self.grid[1] - self.grid[0]
        reach = min(self.points - 1, math.ceil((9 * mu + mu * mu) / step))
        edges = np.arange(-reach, reach + 2) * step
        mass = np.diff(norm.cdf((edges - mu * mu / 2) / mu))
        offset = np.arange(-reach, reach + 1) + (1 if self.up else 0)
        padded = self._at(value, np.arange(offset[0], self.points + offset[-1]))
        answered: Values = np.convolve(padded, mass[::-1], mode="valid")
        return answered + (1 - mass.sum() if self.up else 0.0)


def largest_pure(rule: OldRule) -> Guarantee | None:
    """Return the largest pure release that the old rule still takes, of an epsilon that every grid has."""
    for part in range(400, 0, -1):
        found = pure(f"{rule.budget.epsilon_micro * part // 400 / MICRO:.6f}")
        if rule.after(found) is not None:
            return found
    return None


def staircase(budget: PrivacyLoss, shares: Sequence[Fraction]) -> tuple[Guarantee, ...]:
    """Return the menu of the attack that was found first: Gaussian steps, each with the rest as a pure one."""
    epsilon, delta = f"{budget.epsilon:f}", f"{budget.delta:.18f}"
    steps = [gaussian(epsilon, delta, share) for share in shares]
    menu: list[Guarantee] = []
    state: Rule | None = OldRule(budget)
    for step in steps:
        state = state.after(step) if isinstance(state, OldRule) else None
        menu.append(step)
        beside = largest_pure(state) if isinstance(state, OldRule) else None
        menu += [beside] if beside else []
    return tuple(menu)


def halves(count: int) -> list[Fraction]:
    return [Fraction(1, 1 << count), *(Fraction(1, 1 << k) for k in range(count, 1, -1)), Fraction(499, 1000)]


def random_staircase(budget: PrivacyLoss, seed: int) -> tuple[Guarantee, ...]:
    source = random.Random(seed)
    weights = [source.random() ** 2 + 0.01 for _ in range(source.randint(3, 5))]
    return staircase(budget, sorted(Fraction(weight / sum(weights)) * Fraction(999, 1000) for weight in weights))


def random_menu(budget: PrivacyLoss, seed: int) -> tuple[Guarantee, ...]:
    """Return a menu of four requests of all kinds, each within the budget at least in part."""
    source = random.Random(seed)
    epsilon = budget.epsilon
    menu: list[Guarantee] = []
    while len(menu) < 4:
        size = f"{epsilon * source.choice([0.02, 0.05, 0.1, 0.25, 0.5, 0.9]):.6f}"
        kind = source.choice(["gaussian", "gaussian", "pure", "pure", "point", "ranged"])
        if kind == "gaussian":
            menu.append(gaussian(size, f"{budget.delta:.18f}"))
        elif kind == "point":
            menu.append(point(size, f"{budget.delta * source.choice([0.1, 0.3, 1.0]):.18f}"))
        else:
            menu.append(pure(size) if kind == "pure" else ranged(size))
    return tuple(menu)


def played(budget: PrivacyLoss, menu: Sequence[Guarantee], stages: int, points: int) -> dict[str, float]:
    """Return the delta reached over the budget's, against the old rule and the new one."""
    results = {}
    for name, rule in (("before", OldRule(budget)), ("after", NewRule(None, budget))):
        for bound, up in (("low", False), ("high", True)):
            value = Game(budget, tuple(menu), stages, points, up=up).value(rule)
            results[f"{name}_{bound}"] = value / budget.delta
    return results
