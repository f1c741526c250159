"""Calibration of Gaussian noise, and accounting of a budget by a privacy filter for adaptive analysts.

:func:`gaussian_sigma` calibrates one Gaussian release. A :class:`Filter` is the account of several: its caps are fixed
before the first answer (:func:`caps_for`), and a release is charged if the sums stay within one cap set. The theorem in
:mod:`dpdist.core.privacy.profile` covers every analyst who chooses requests from earlier answers. It proves that all
charges together stay within the budget. No smaller loss is proved or claimed for adaptive requests in the meantime.
:func:`composed_epsilon_micro` computes the loss of requests that were fixed beforehand.

The Gaussian profile is computed with 60 decimal digits, so the cancellation of its two nearly equal terms is harmless
down to delta = 1e-18. Charges and caps are integers and fractions, and are compared exactly.

References
----------
Balle & Wang 2018 (analytic Gaussian mechanism); Dong, Roth & Su 2022 (Gaussian differential privacy); Rogers, Roth,
Ullman & Vadhan 2016 (privacy filters).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import TypedDict

from mpmath.ctx_mp import MPContext

from dpdist.core.errors import UsageError
from dpdist.core.privacy.guarantee import ATTO, MICRO, Guarantee, MixedBudget, PrivacyLoss, Ratio, fraction_of, ratio_of
from dpdist.core.privacy.profile import largest_mu_squared, mu_of_pure, near_profile, profile

_DIGITS = MPContext()  # a private context: mpmath's global precision belongs to the caller
_DIGITS.dps = 60
_UP = 1 + 2.0**-48  # pushes a correctly rounded float to the safe side
_FLOOR = 1e-50
"""Added to every delta of a mechanism that is not pure: above the error of 60 digits, and avoids rounding to 0."""
_SLACK = 1e-9
"""By which part of it a stored delta may be below the one computed here, as both are rounded."""


@lru_cache(maxsize=4096)
def gaussian_delta(epsilon: Fraction, mu_squared: Fraction) -> float:
    """Return the smallest delta of a mu-GDP mechanism at epsilon, rounded up (Balle & Wang 2018, theorem 8)."""
    digits = _DIGITS
    if mu_squared == 0:
        return 0.0
    mu = digits.sqrt(digits.mpf(mu_squared.numerator) / mu_squared.denominator)
    eps = digits.mpf(epsilon.numerator) / epsilon.denominator
    value = digits.ncdf(mu / 2 - eps / mu) - digits.exp(eps) * digits.ncdf(-mu / 2 - eps / mu)
    return max(0.0, float(value)) * _UP + _FLOOR


def contradicts_itself(guarantee: Guarantee) -> bool:
    """Return whether epsilon and delta of a stored guarantee are less than its Gaussian part alone costs."""
    mu_squared, loss = guarantee.mu_squared, guarantee.loss
    if mu_squared is None:
        return False
    least = 0.0 if mu_squared <= 0 else gaussian_delta(Fraction(loss.epsilon_micro, MICRO), mu_squared)
    return mu_squared <= 0 or least > loss.delta * (1 + _SLACK) + 2 * _FLOOR


@lru_cache(maxsize=256)
def gaussian_sigma(loss: PrivacyLoss) -> float:
    """Return the standard deviation that makes a Gaussian release of sensitivity 1 private, rounded up by bisection."""
    if loss.delta_atto == 0:
        raise UsageError("Gaussian noise requires a positive delta; for delta = 0 use two-sided-wishart.")

    def private(sigma: float) -> bool:
        return gaussian_delta(epsilon, 1 / Fraction(sigma) ** 2) <= loss.delta

    epsilon = Fraction(loss.epsilon_micro, MICRO)
    low, high = 0.5, 1.0
    while not private(high):
        low, high = high, 2 * high
    while private(low):
        low, high = low / 2, low
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if private(middle) else (middle, high)
    return high


def share(loss: PrivacyLoss, count: int | Fraction, *, gaussian: bool) -> PrivacyLoss:
    """Return the loss of each of ``count`` equal releases that together keep a loss; ``count`` may be a fraction.

    >>> whole = PrivacyLoss.parse("1", "1e-6")
    >>> share(whole, 9, gaussian=True).epsilon, share(PrivacyLoss.parse("1"), 9, gaussian=False).epsilon
    (0.308058, 0.111111)
    """
    if count == 1:
        return loss
    low = loss.epsilon_micro // count
    delta = loss.delta_atto if gaussian else loss.delta_atto // count
    if low < 1 or (loss.delta_atto and not delta):
        raise UsageError(
            f"{loss} cannot be divided into {float(count):.4g} shares: use a larger loss, or fewer levels."
        )
    if not gaussian:
        return PrivacyLoss(low, delta)
    share = largest_gaussian(1 / (count * Fraction(gaussian_sigma(loss)) ** 2), loss)
    if share is None:
        raise UsageError(f"{loss} cannot be divided into {float(count):.4g} Gaussian shares: use a larger loss.")
    return share


class CapSetJson(TypedDict):
    """A :class:`CapSet` as JSON values."""

    epsilon_micro: int
    mu_squared: Ratio
    delta_atto: int


@dataclass(frozen=True)
class CapSet:
    """Limits of charges: E for pure epsilons, M for squares of Gaussian mu, D for probabilities of failure."""

    epsilon_micro: int = 0
    mu_squared: Fraction = Fraction(0)
    delta_atto: int = 0

    def __add__(self, other: CapSet) -> CapSet:
        return CapSet(*map(operator.add, vars(self).values(), vars(other).values()))

    def __sub__(self, other: CapSet) -> CapSet:
        return CapSet(*map(operator.sub, vars(self).values(), vars(other).values()))

    def holds(self, price: CapSet) -> bool:
        """Whether a price is at most this, in each of the three."""
        return all(map(operator.ge, vars(self).values(), vars(price).values()))

    def delta(self, epsilon: Fraction) -> Fraction:
        """Return ``D + H(epsilon)``, rounded up: the delta of every interaction within these caps."""
        return Fraction(self.delta_atto, ATTO) + profile(Fraction(self.epsilon_micro, MICRO), self.mu_squared, epsilon)

    def to_json(self) -> CapSetJson:
        """Return plain JSON values; the inverse of :meth:`from_json`."""
        return {
            "epsilon_micro": self.epsilon_micro,
            "mu_squared": ratio_of(self.mu_squared),
            "delta_atto": self.delta_atto,
        }

    @classmethod
    def from_json(cls, value: CapSetJson) -> CapSet:
        """Read what :meth:`to_json` wrote."""
        return cls(value["epsilon_micro"], fraction_of(value["mu_squared"]), value["delta_atto"])


def widest(budget: PrivacyLoss, epsilon_micro: int, delta_atto: int) -> CapSet:
    """Return (E, M, D) with the largest M that keeps the budget; if that is 0, E is all of epsilon."""
    rest = Fraction(budget.delta_atto - delta_atto, ATTO)
    mu_squared = largest_mu_squared(Fraction(epsilon_micro, MICRO), rest, Fraction(budget.epsilon_micro, MICRO))
    return CapSet(epsilon_micro if mu_squared else budget.epsilon_micro, mu_squared, delta_atto)


def caps_for(budget: PrivacyLoss, first: Guarantee | None = None) -> tuple[CapSet, ...]:
    """Return the cap sets of a budget, which are fixed before the first answer and never change.

    The first set is (epsilon, 0, 0): pure releases. With a delta there is a second one with the largest M: (0, M, 0),
    unless other parts were reserved, or the first release is an (e, d) point without mu: then it is (e, M, d).
    """
    pure = CapSet(budget.epsilon_micro)
    if budget.delta_atto == 0:
        return (pure,)
    if isinstance(budget, MixedBudget):
        return pure, widest(budget, budget.pure_micro, budget.reserve_atto)
    if first is not None and first.mu_squared is None and first.loss.delta_atto and first.loss.within(budget):
        return pure, widest(budget, first.loss.epsilon_micro, first.loss.delta_atto)
    return pure, widest(budget, 0, 0)


def certified(caps: Iterable[CapSet], budget: PrivacyLoss) -> bool:
    """Whether caps stay within the budget: the deltas of all sets, at its epsilon, add up to at most its delta."""
    sets = list(caps)
    if any(cap_set.epsilon_micro > budget.epsilon_micro for cap_set in sets):
        return False
    epsilon = Fraction(budget.epsilon_micro, MICRO)
    return sum((cap_set.delta(epsilon) for cap_set in sets), Fraction(0)) <= Fraction(budget.delta_atto, ATTO)


def prices(guarantee: Guarantee) -> Iterator[CapSet]:
    """Yield the valid charges of a release; the first one that fits is used."""
    loss = guarantee.loss
    if guarantee.mu_squared is not None:
        yield CapSet(mu_squared=guarantee.mu_squared)
    yield CapSet(loss.epsilon_micro, delta_atto=loss.delta_atto)
    if guarantee.mu_squared is None and guarantee.bounded_ranges:
        yield CapSet(mu_squared=sum((mu_of_pure(length / 2) for length in guarantee.bounded_ranges), Fraction(0)))
    elif guarantee.mu_squared is None:
        yield CapSet(mu_squared=mu_of_pure(Fraction(loss.epsilon_micro, MICRO)), delta_atto=loss.delta_atto)


def has_choice(guarantee: Guarantee, caps: Iterable[CapSet]) -> bool:
    """Whether caps allow several charges for a release, so that its price reveals earlier charges."""
    options = list(prices(guarantee))
    return any(sum(cap_set.holds(price) for price in options) > 1 for cap_set in caps)


class LeftJson(TypedDict):
    """A :class:`Left` as JSON values."""

    gaussian_epsilon_micro: int
    pure_epsilon_micro: int
    delta_atto: int
    share_charged: float


@dataclass(frozen=True)
class Left:
    """The releases that a budget can still pay for."""

    gaussian_micro: int  # epsilon, in millionths, of the largest Gaussian release at the delta of the budget; 0: none
    pure_micro: int  # epsilon, in millionths, of the largest pure release; 0: none
    delta_atto: int  # of the budget
    share: float  # charged share of the caps, from 0 to 1

    def __str__(self) -> str:
        if _EXHAUSTED < self.share < 1:
            return "next to nothing"
        parts = []
        if self.gaussian_micro:
            parts.append(f"{_short(self.gaussian_micro)} (gaussian, delta {self.delta:g})")
        if self.pure_micro:
            parts.append(f"{_short(self.pure_micro)} (pure)")
        return f"one more release of epsilon {' or '.join(parts)}" if parts else "nothing"

    @property
    def delta(self) -> float:
        """Delta of the budget."""
        return self.delta_atto / ATTO

    def least(self, other: Left) -> Left:
        """Return the releases that both of two budgets can pay for."""
        return Left(
            min(self.gaussian_micro, other.gaussian_micro),
            min(self.pure_micro, other.pure_micro),
            self.delta_atto,
            max(self.share, other.share),
        )

    def to_json(self) -> LeftJson:
        """Return plain JSON values."""
        return {
            "gaussian_epsilon_micro": self.gaussian_micro,
            "pure_epsilon_micro": self.pure_micro,
            "delta_atto": self.delta_atto,
            "share_charged": self.share,
        }

    @classmethod
    def from_json(cls, value: LeftJson) -> Left:
        """Read what :meth:`to_json` wrote."""
        return cls(
            value["gaussian_epsilon_micro"], value["pure_epsilon_micro"], value["delta_atto"], value["share_charged"]
        )


_EXHAUSTED = 0.9999  # beyond this share of the caps, the rest is the rounding of the charges


def _short(micro: int) -> str:
    """Format millionths with four digits, rounded down, so that a release of the printed epsilon fits."""
    unit = 10 ** max(0, len(str(micro)) - 4)
    return f"{micro // unit * unit / MICRO:.6f}".rstrip("0").rstrip(".")


Price = tuple[CapSet | None, ...]  # charge to each cap set, or the rest of it; None: it is closed


def _less(rest: Price, price: Price) -> Price:
    return tuple(None if r is None or p is None else r - p for r, p in zip(rest, price, strict=True))


@dataclass
class Filter:
    """The account of one row: charges against caps that were fixed before the first answer. Not thread-safe.

    A release is charged in every open cap set that holds it, at the first of its :func:`prices` that fits; a set that
    does not hold it is closed. A charge follows from earlier ones and never changes.
    """

    budget: PrivacyLoss
    caps: tuple[CapSet, ...]
    charged: dict[str, Price] = field(default_factory=dict)  # by the key of each release
    rest: Price = ()  # of each cap set; of an account without charges, the caps

    def __post_init__(self) -> None:
        self.rest = self.rest or self.caps

    def copy(self) -> Filter:
        """Return an independent filter with the same charges."""
        return Filter(self.budget, self.caps, dict(self.charged), self.rest)

    def __len__(self) -> int:
        return len(self.charged)

    def priced(self, guarantee: Guarantee) -> Price:
        """Return the charge of a release to each cap set; None for a set that cannot hold it."""
        options = list(prices(guarantee))
        return tuple(
            None if rest is None else next((price for price in options if rest.holds(price)), None)
            for rest in self.rest
        )

    def holds(self, guarantee: Guarantee) -> bool:
        """Whether a release can be charged."""
        return any(price is not None for price in self.priced(guarantee))

    def book(self, key: str, guarantee: Guarantee) -> bool:
        """Charge a release under a key; return False, and charge nothing, if no open set holds it."""
        charge = self.priced(guarantee)
        if all(price is None for price in charge):
            return False
        self.charge(key, charge)
        return True

    def charge(self, key: str, price: Price) -> None:
        """Apply a charge that :meth:`priced` returned for the present account."""
        self.charged[key] = price
        self.rest = _less(self.rest, price)

    def refund(self, key: str) -> None:
        """Refund the charge of a key, if any; only for a release that was not published."""
        if self.charged.pop(key, None) is not None:
            self.rest = self.caps
            for price in self.charged.values():
                self.rest = _less(self.rest, price)

    def left(self) -> Left:
        """Return the releases that can still be charged."""
        gaussian = pure = 0
        share = 1.0
        for rest, caps in zip(self.rest, self.caps, strict=True):
            if rest is None:
                continue
            gaussian = max(gaussian, _gaussian_micro(rest.mu_squared, self.budget))
            pure = max(pure, rest.epsilon_micro, _pure_micro(rest.mu_squared))
            share = min(share, _share(rest, caps))
        return Left(gaussian, pure, self.budget.delta_atto, share)


def _share(rest: CapSet, caps: CapSet) -> float:
    parts = zip(vars(rest).values(), vars(caps).values(), strict=True)
    return max((1 - float(Fraction(amount) / of) for amount, of in parts if of), default=0.0)


def _largest(within: Callable[[int], bool], high: int, guess: int) -> int:
    """Return the largest integer up to ``high`` for which a monotone condition holds, 0 if none; any guess is valid."""
    low, above, step = 0, high + 1, 1
    middle = min(max(guess, 1), high)
    while above - low > 1:
        if within(middle):
            low, middle = middle, middle + step
        else:
            above, middle = middle, middle - step
        step *= 2
        if not low < middle < above:
            middle = (low + above) // 2
    return low


def _rough_delta(epsilon: float, mu: float) -> float:
    """Return :func:`gaussian_delta` in floats."""
    tail = math.erfc((mu / 2 + epsilon / mu) / math.sqrt(2))
    return (math.erfc((epsilon / mu - mu / 2) / math.sqrt(2)) - (math.exp(min(epsilon, 700.0)) * tail)) / 2


def _rough_pure(mu: float) -> float:
    """Return the inverse of :func:`dpdist.core.privacy.profile.mu_of_pure` in floats."""
    odds = math.erfc(mu / 8**0.5)
    return math.log(2 / odds - 1) if odds else mu**2 / 8


def _root(above: Callable[[float], bool], high: float) -> float:
    """Return approximately where in ``[0, high]`` a condition ceases to hold: a guess for :func:`_largest`."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return low


def largest_gaussian(mu_squared: Fraction, loss: PrivacyLoss) -> PrivacyLoss | None:
    """Return the largest loss of a Gaussian release within mu², at the delta of a loss; None if there is none."""
    micro = _gaussian_micro(mu_squared, loss)
    return PrivacyLoss(micro, loss.delta_atto) if micro else None


@lru_cache(maxsize=1024)
def _gaussian_micro(mu_squared: Fraction, budget: PrivacyLoss) -> int:
    """Return the largest epsilon, in millionths, of a Gaussian release within mu² at the budget's delta."""
    if not mu_squared or not budget.delta_atto:
        return 0
    mu = math.sqrt(mu_squared)
    guess = _root(lambda epsilon: _rough_delta(epsilon, mu) >= budget.delta, float(budget.epsilon))
    largest = _largest(
        lambda micro: gaussian_delta(Fraction(micro, MICRO), mu_squared) >= budget.delta,
        budget.epsilon_micro,
        int(guess * MICRO),
    )
    while largest and 1 / Fraction(gaussian_sigma(PrivacyLoss(largest, budget.delta_atto))) ** 2 > mu_squared:
        largest -= 1
    return largest


@lru_cache(maxsize=1024)
def _pure_micro(mu_squared: Fraction) -> int:
    """Return the largest pure epsilon, in millionths, within mu²."""
    if not mu_squared:
        return 0
    high = int(mu_squared**0.5 * MICRO * 2) + int(mu_squared * MICRO) + 1  # mu(e) >= min(e / 2, sqrt e)
    guess = int(_rough_pure(math.sqrt(mu_squared)) * MICRO)
    return _largest(lambda micro: mu_of_pure(Fraction(micro, MICRO)) <= mu_squared, high, guess)


def filter_for(budget: PrivacyLoss, guarantees: Iterable[Guarantee]) -> Filter:
    """Return the account of releases in the order of the requests; those beyond the budget are left out."""
    every = list(guarantees)
    account = Filter(budget, caps_for(budget, every[0] if every else None))
    for number, guarantee in enumerate(every):
        account.book(str(number), guarantee)
    return account


def fits(guarantees: Iterable[Guarantee], budget: PrivacyLoss) -> bool:
    """Whether releases, in the order of the requests, can all be charged to a budget."""
    every = list(guarantees)
    return len(filter_for(budget, every)) == len(every)


def least_epsilon_micro(guarantees: Iterable[Guarantee], delta_atto: int) -> int:
    """Return epsilon, in millionths, of the smallest budget with this delta that holds all releases."""
    every, limit = list(guarantees), 10**6 * MICRO

    def suffices(micro: int) -> bool:
        return fits(every, PrivacyLoss(micro, delta_atto))

    low, high, step = 0, min(limit, _likely_epsilon_micro(every, delta_atto)), 1
    while not suffices(high):
        if high == limit:
            raise UsageError("No budget with such a small delta can pay for these releases. Use a larger delta.")
        low, high, step = high, min(limit, high + step), 4 * step
    step = 1  # downwards from the usual answer
    while high - low > 1:
        middle = high - min(step, (high - low + 1) // 2)
        low, high, step = (low, middle, 4 * step) if suffices(middle) else (middle, high, limit)
    return high


def _likely_epsilon_micro(guarantees: list[Guarantee], delta_atto: int) -> int:
    """Return epsilon of releases together if all are charged to mu, or all are pure and add up."""
    epsilons = max(1, sum(guarantee.loss.epsilon_micro for guarantee in guarantees))
    if not delta_atto:
        return epsilons
    squares = (min(p.mu_squared for p in prices(item) if not p.epsilon_micro) for item in guarantees)
    by_mu = max(1, _least_of_caps(CapSet(mu_squared=sum(squares, Fraction(0))), Fraction(delta_atto, ATTO)))
    return by_mu if any(guarantee.loss.delta_atto for guarantee in guarantees) else min(by_mu, epsilons)


def composed(guarantees: Iterable[Guarantee]) -> CapSet:
    """Return the composition of releases that were all fixed before the first answer."""
    return sum((next(prices(guarantee)) for guarantee in guarantees), CapSet())


def composed_epsilon_micro(guarantees: Iterable[Guarantee], delta_atto: int) -> int:
    """Return the smallest joint epsilon, in millionths, at a delta, of requests that were fixed beforehand."""
    return _least_of_caps(composed(guarantees), Fraction(delta_atto, ATTO))


def _least_of_caps(total: CapSet, delta: Fraction) -> int:
    """Return the smallest epsilon, in millionths, at which caps keep a delta."""

    def keeps(micro: int) -> bool:
        return total.delta(Fraction(micro, MICRO)) <= delta

    def nearly(micro: int) -> bool:
        epsilon = Fraction(micro, MICRO)
        return near_profile(Fraction(low, MICRO), total.mu_squared, epsilon) <= delta - Fraction(total.delta_atto, ATTO)

    low = total.epsilon_micro
    if keeps(low):
        return low
    below, above = low, max(2 * low, MICRO)
    while not nearly(above):
        if above > 2**60:
            raise UsageError("These releases exceed such a small delta at any epsilon. Use a larger delta.")
        above *= 2
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if nearly(middle) else (middle, above)
    while not keeps(above):  # the search used approximate digits; intervals decide
        above += 1
    return above
