"""Parallel composition: what several releases amount to when each is of some periods of a table only.

The rows of a table with periods come in disjoint parts, each written once, closed, and registered in the ledger by a
digest of its content. A release is charged to the periods it reads; one without periods to all, those to come
included.

**Theorem.** Let a mechanism consist of releases i = 1, 2, ..., each chosen by what the earlier ones published, and
let release i read the periods P_i only. Let neighbouring tables differ in the rows of one period p. Then together
they are as private as the composition of those releases with p in P_i (McSherry 2009, theorem 4, adaptively).

*Proof.* Fix neighbours that differ in period p. Given what was published before, a release with p not in P_i reads
the same rows from both tables and so has the same law for both: the likelihood ratio of all outputs is the product of
the ratios of the releases with p in P_i. The theorem of :mod:`dpdist.privacy.profile` bounds exactly that product, for
an analyst who adapts. ∎ So each period has an account of its own, and none may exceed the caps.

**Which neighbours.** The theorem needs neighbours that differ within one period:

* add-remove: one row more or fewer, in whichever period it stands. Nothing else is needed.
* replace-one: one row exchanged for another *of the same period*. The number of rows of each period is public, so
  when somebody's row was recorded is not hidden: moved to another period, it changes two public numbers. No guarantee
  of any size covers that, and none is claimed.

Under add-remove, a row that moves from p to q is one removed and one added: two steps of the relation. Releases of p
and of q compose to sqrt 2 times the GDP mu, or twice a pure epsilon; a release of both changes by ``w w^T - v v^T``,
whose squared Frobenius norm is at most the sum of the two squares, so sqrt 2 mu holds for any set of periods.

A budget is per row. Somebody with a row in each of k periods is protected, as a person, k times less: k times the
epsilon, and up to k times the GDP mu. Release i, which reads m_i of the k periods, changes by the rows of all of them,
so it has m_i times its mu_i, and all have ``sqrt(sum (m_i mu_i)^2)``. Where no release reads two of these periods every
m_i is 1, and that is at most sqrt k times the mu of a row; where one reads all of them it is k times. Nothing is worse,
because a norm of a sum over k rows is at most the sum of k norms. :func:`dpdist.release.series.person_factor` has
the numbers of a tree of periods. With a privacy unit the accounts are of persons: :mod:`dpdist.privacy.persons`.

**Weights.** A release may add each row of period p as often as a weight w_p >= 1 says. Let w be the largest weight, and
let the release be Gaussian, calibrated for neighbours that differ in w rows at once
(:mod:`dpdist.mechanisms.sensitivity`). Neighbours that differ in period p change the sum by w_p D, where a row changes
it by D: an integer matrix, as the rows are integers. Of Gaussian noise mu is proportional to the largest norm of the
change, so it is ``mu w_p / w`` for them, mu what is guaranteed at all, and period p is charged ``mu² (w_p / w)²``,
exactly. The proof above holds with these ratios: for each pair of neighbours they are fixed with the request, before
the answer. :mod:`dpdist.release.series` has the weights of a series of periods.

**What is taken for granted.** The theorem is of tables whose periods are all accepted. A file that repeats another byte
for byte, or rows that repeat those of another period, are refused, because they would be charged and counted twice; so
whoever may put files among the sources and sees which periods are published can test whether rows are equal to a guess
of all of them. The right to put files there is for those who may see the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import InitVar, dataclass, field, replace
from fractions import Fraction

from dpdist.privacy.accounting import CapSet, Filter, Left, Price
from dpdist.privacy.guarantee import Guarantee, PrivacyLoss


@dataclass(frozen=True)
class Charge:
    """What one release guarantees, and the periods it reads."""

    guarantee: Guarantee
    periods: tuple[str, ...] = ()
    weights: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.weights:
            return
        if len(self.weights) != len(self.periods) or min(self.weights) < 1 or self.guarantee.mu_squared is None:
            raise ValueError("weights are of periods, one of at least 1 for each, and of Gaussian releases")

    def borne(self) -> Iterator[tuple[str, Guarantee]]:
        """Yield each period that is read, and what the release guarantees its rows."""
        square, largest = self.guarantee.mu_squared, max(self.weights, default=1)
        by_weight = {largest: self.guarantee}
        for period, weight in zip(self.periods, self.weights or (largest,) * len(self.periods), strict=True):
            if weight not in by_weight and square is not None:
                by_weight[weight] = replace(self.guarantee, mu_squared=square * Fraction(weight, largest) ** 2)
            yield period, by_weight[weight]


@dataclass
class PeriodFilters:
    """The accounts of the rows of a table: one for each period, and one for rows of periods to come.

    Where rows come in no periods, the last is that of every row. All have the same caps, which were fixed before the
    first answer; a release that does not read a period tells nothing of it, so the caps of a period need only precede
    the first answer that reads it.
    """

    budget: PrivacyLoss
    caps: tuple[CapSet, ...]
    periods: InitVar[Iterable[str]] = ()
    to_come: Filter = field(init=False)
    closed: dict[str, Filter] = field(init=False)
    _unshared: set[str | None] = field(init=False, default_factory=set, compare=False, repr=False)
    """The accounts that nobody else holds, by period, None for that to come. Others are copied before they change: a
    night looks at thousands of periods and charges a few."""

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
        """Return accounts of their own with the same charges."""
        self._unshared.clear()
        return PeriodFilters.resumed(self.to_come, dict(self.closed))

    def close(self, period: str) -> None:
        """Open the account of a period: its rows bear what was charged to rows of periods to come."""
        self._unshared -= {None, period}
        self.closed[period] = self.to_come

    def _account(self, period: str | None) -> Filter:
        return self.to_come if period is None else self.closed[period]

    def _writable(self, period: str | None) -> Filter:
        """Return an account that may be changed, as nobody else holds it."""
        if period not in self._unshared:
            account = self._account(period).copy()
            self._unshared.add(period)
            if period is None:
                self.to_come = account
            else:
                self.closed[period] = account
        return self._account(period)

    def _bearing(self, charge: Charge) -> list[tuple[str | None, Guarantee]]:
        """Return whose accounts a release is charged to, each with what it guarantees these rows."""
        if not charge.periods:
            return [(period, charge.guarantee) for period in (None, *self.closed)]
        return list(charge.borne())

    def holds(self, charge: Charge) -> bool:
        """Say whether every row that a release reads can bear it."""
        return all(self._account(period).holds(guarantee) for period, guarantee in self._bearing(charge))

    def book(self, key: str, charge: Charge) -> bool:
        """Charge a release to every row that it reads; False, and nothing is charged, if one cannot bear it."""
        bearing = [(period, self._account(period).priced(guarantee)) for period, guarantee in self._bearing(charge)]
        if any(all(part is None for part in price) for _, price in bearing):
            return False
        for period, price in bearing:
            self._writable(period).charge(key, price)
        return True

    def refund(self, key: str) -> None:
        """Take back a charge; only of a release that nobody has seen."""
        for period in (None, *self.closed):
            if key in self._account(period).charged:
                self._writable(period).refund(key)

    def left(self, periods: Iterable[str] = ()) -> Left:
        """Return what can still be charged to a release that reads some periods; none named: the whole table."""
        # most periods of a year bear the same, and share one object: fractions take long to hash
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
    """Say whether an account has no more left than another in any set, so that the other has no say in the least."""
    return all(mine is None or (its is not None and its.holds(mine)) for mine, its in zip(rest, other, strict=True))


PERIOD_PATTERN = r"(?=.{1,64}$)[0-9A-Za-z]+([._-][0-9A-Za-z]+)*"
"""What a period is called: letters and digits with single dots, hyphens or underscores between, such as 2026-01-05."""
