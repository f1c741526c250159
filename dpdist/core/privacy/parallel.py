"""Parallel composition: the joint guarantee of releases of some periods of a table each.

The rows of a table with periods come in disjoint parts, each written once, closed, and registered in the ledger by a
digest of its content. A release is charged to the periods it reads; one without periods to all, including future ones.

**Theorem.** Let a mechanism consist of releases i = 1, 2, ..., each chosen from the earlier answers, and let release i
read the periods P_i only. Let neighbouring tables differ in the rows of one period p. Then together they are as private
as the composition of the releases with p in P_i (McSherry 2009, theorem 4, adaptively).

*Proof.* Fix neighbours that differ in period p. Given the earlier answers, a release with p not in P_i reads the same
rows from both tables and so has the same distribution for both: the likelihood ratio of all outputs is the product of
the ratios of the releases with p in P_i. The theorem of :mod:`dpdist.core.privacy.profile` bounds exactly that product,
for an adaptive analyst. ∎ So each period has its own account, and none may exceed the caps.

**Neighbours.** The theorem needs neighbours that differ within one period:

* add-remove: one row more or fewer, in any period. Nothing else is needed.
* replace-one: one row exchanged for another *of the same period*. The number of rows of each period is public, so the
  period of a person's row is not hidden: moved to another period, it changes two public numbers. No guarantee covers
  that, and none is claimed.

Under add-remove, a row that moves from p to q is one removed and one added: two steps of the relation. Releases of p
and of q compose to sqrt 2 times the GDP mu, or twice a pure epsilon; a release of both changes by ``w w^T - v v^T``,
whose squared Frobenius norm is at most the sum of the two squares, so sqrt 2 mu holds for any set of periods.

A budget is per row. A person with a row in each of k periods is protected k times less: k times the epsilon, and up to
k times the GDP mu. Release i, which reads m_i of the k periods, changes by the rows of all of them, so it has m_i times
its mu_i, and all have ``sqrt(sum (m_i mu_i)^2)``. If no release reads two of these periods, every m_i is 1, and that is
at most sqrt k times the mu of a row; if one reads all of them, it is k times. Nothing is worse, because a norm of a sum
over k rows is at most the sum of k norms; of a tree and of weighted sums :mod:`dpdist.core.release.series` derives it.
With a privacy unit the accounts are of persons: :mod:`dpdist.core.privacy.persons`.

**Weights.** A release may add the rows of period p with a multiplicity w_p >= 1. Let w be the largest weight, and let
the release be Gaussian, calibrated for neighbours that differ in w rows at once
(:mod:`dpdist.core.mechanisms.sensitivity`). Neighbours that differ in period p change the sum by w_p D, where a row
changes it by D: an integer matrix, as the rows are integers. For Gaussian noise mu is proportional to the largest norm
of the change, so it is ``mu w_p / w`` for them, with mu the overall guarantee, and period p is charged ``mu² (w_p /
w)²`` exactly. The proof above holds with these ratios: for each pair of neighbours they are fixed with the request,
before the answer. :mod:`dpdist.core.release.series` has the weights of a series of periods.

**Assumption.** All periods of the tables are accepted. A file that repeats another byte for byte, or rows that repeat
those of another period, are refused, because they would be charged and counted twice; so a person who can add files to
the sources and see which periods are published can test whether rows equal a guess of all of them. The permission to
add files is for those with access to the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import InitVar, dataclass, field, replace
from fractions import Fraction

from dpdist.core.privacy.accounting import CapSet, Filter, Left, Price
from dpdist.core.privacy.guarantee import Guarantee, PrivacyLoss


@dataclass(frozen=True)
class Charge:
    """Guarantee of one release, with the periods that it reads and their weights."""

    guarantee: Guarantee
    periods: tuple[str, ...] = ()
    weights: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.weights:
            return
        if len(self.weights) != len(self.periods) or min(self.weights) < 1 or self.guarantee.mu_squared is None:
            raise ValueError("weights require a Gaussian release, and are at least 1, one for each period")

    def borne(self) -> Iterator[tuple[str, Guarantee]]:
        """Yield each period that is read, and the guarantee for its rows."""
        square, largest = self.guarantee.mu_squared, max(self.weights, default=1)
        by_weight = {largest: self.guarantee}
        for period, weight in zip(self.periods, self.weights or (largest,) * len(self.periods), strict=True):
            if weight not in by_weight and square is not None:
                by_weight[weight] = replace(self.guarantee, mu_squared=square * Fraction(weight, largest) ** 2)
            yield period, by_weight[weight]


@dataclass
class PeriodFilters:
    """The accounts of the rows of a table, with the same caps: one per period, and one for rows of future periods."""

    budget: PrivacyLoss
    caps: tuple[CapSet, ...]
    periods: InitVar[Iterable[str]] = ()
    to_come: Filter = field(init=False)
    closed: dict[str, Filter] = field(init=False)
    _unshared: set[str | None] = field(init=False, default_factory=set, compare=False, repr=False)
    """Periods, None for the future ones, whose accounts are not shared. Shared ones are copied before they change,
    because a release reads thousands of accounts and charges a few."""

    def __post_init__(self, periods: Iterable[str]) -> None:
        self.to_come = Filter(self.budget, self.caps)
        self.closed = dict.fromkeys(periods, self.to_come)

    @classmethod
    def resumed(cls, to_come: Filter, closed: dict[str, Filter]) -> PeriodFilters:
        """Return the accounts that consisted of these."""
        other = cls(to_come.budget, to_come.caps)
        other.to_come, other.closed = to_come, closed
        return other

    def copy(self) -> PeriodFilters:
        """Return independent accounts with the same charges."""
        self._unshared.clear()
        return PeriodFilters.resumed(self.to_come, dict(self.closed))

    def close(self, period: str) -> None:
        """Open the account of a period: its rows bear the charges to rows of future periods so far."""
        self._unshared -= {None, period}
        self.closed[period] = self.to_come

    def _account(self, period: str | None) -> Filter:
        return self.to_come if period is None else self.closed[period]

    def _writable(self, period: str | None) -> Filter:
        """Return an account that may be changed, because it is not shared."""
        if period not in self._unshared:
            account = self._account(period).copy()
            self._unshared.add(period)
            if period is None:
                self.to_come = account
            else:
                self.closed[period] = account
        return self._account(period)

    def _bearing(self, charge: Charge) -> list[tuple[str | None, Guarantee]]:
        """Return the accounts that a release is charged to, each with the guarantee for these rows."""
        if not charge.periods:
            return [(period, charge.guarantee) for period in (None, *self.closed)]
        return list(charge.borne())

    def holds(self, charge: Charge) -> bool:
        """Whether every row that a release reads can bear the charge."""
        return all(self._account(period).holds(guarantee) for period, guarantee in self._bearing(charge))

    def book(self, key: str, charge: Charge) -> bool:
        """Charge a release to every row that it reads; return False, and charge nothing, if one cannot bear it."""
        bearing = [(period, self._account(period).priced(guarantee)) for period, guarantee in self._bearing(charge)]
        if any(all(part is None for part in price) for _, price in bearing):
            return False
        for period, price in bearing:
            self._writable(period).charge(key, price)
        return True

    def refund(self, key: str) -> None:
        """Refund a charge; only for a release that was not published."""
        for period in (None, *self.closed):
            if key in self._account(period).charged:
                self._writable(period).refund(key)

    def left(self, periods: Iterable[str] = ()) -> Left:
        """Return the releases of some periods that can still be charged; without periods, of the whole table."""
        # most periods of a year have the same charges, and share one object: hashing fractions is slow
        accounts = [self.closed[period] for period in periods] or [self.to_come, *self.closed.values()]
        distinct = {id(account.rest): account for account in accounts}
        alike = {account.rest: account for account in distinct.values()}
        least: list[Price] = []
        for rest in alike:
            if not any(_within(other, rest) for other in least):
                least = [other for other in least if not _within(rest, other)] + [rest]
        first, *others = (alike[rest].left() for rest in least)
        for other in others:
            first = first.least(other)
        return first


def _within(rest: Price, other: Price) -> bool:
    """Whether an account has no more left than another in any set, so that the other does not affect the minimum."""
    return all(mine is None or (its is not None and its.holds(mine)) for mine, its in zip(rest, other, strict=True))


PERIOD_PATTERN = r"(?=.{1,64}$)[0-9A-Za-z]+([._-][0-9A-Za-z]+)*"
"""Names of periods: letters and digits with single dots, hyphens or underscores between, such as 2026-01-05."""
