"""Parallel composition: what several releases amount to when each is of some periods of a table only.

The rows of a table with periods come in disjoint parts, each written once, closed, and registered in the ledger by a
digest of its content. A release is charged to the periods it reads; one without periods to all, those to come
included.

**Theorem.** Let a mechanism consist of releases i = 1, 2, ..., each chosen by what the earlier ones published, and
let release i read the periods P_i only. Let neighbouring tables differ in the rows of one period p. Then together
they are as private as the composition of those releases with p in P_i (McSherry 2009, theorem 4, adaptively).

*Proof.* Fix neighbours that differ in period p. Given what was published before, a release with p not in P_i reads
the same rows from both tables and so has the same law for both: the likelihood ratio of all outputs is the product of
the ratios of the releases with p in P_i. Composition theorems (basic, zCDP, GDP) bound exactly that product, and
hold for mechanisms chosen adaptively. ∎ The most that any row has spent is therefore the largest, over periods, of
what the releases of that period compose to, and that is what a budget is compared with.

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
because a norm of a sum over k rows is at most the sum of k norms. :func:`dpdist.release.continual.person_factor` has
the numbers of a tree of periods.

**What is taken for granted.** The theorem is of tables whose periods are all accepted. A file that repeats another byte
for byte, or rows that repeat those of another period, are refused, because they would be charged and counted twice; so
whoever may put files among the sources and sees which periods are published can test whether rows are equal to a guess
of all of them. The right to put files there is for those who may see the rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dpdist.privacy import accounting
from dpdist.privacy.guarantee import Guarantee, PrivacyLoss


@dataclass(frozen=True)
class Charge:
    """What one release guarantees, and the periods it reads; no periods: the whole table."""

    guarantee: Guarantee
    periods: tuple[str, ...] = ()


def borne(charges: Iterable[Charge], periods: Iterable[str] = ()) -> Iterator[list[Guarantee]]:
    """Yield what the rows of each period bear, alike ones once; first what rows of a period to come would bear.

    Parameters
    ----------
    charges
        All charges of one table.
    periods
        The periods to look at; none: all that were charged, and those to come.
    """
    whole: list[Guarantee] = []
    own: defaultdict[str, list[Guarantee]] = defaultdict(list)
    for charge in charges:
        if not charge.periods:
            whole.append(charge.guarantee)
        for period in charge.periods:
            own[period].append(charge.guarantee)
    chosen = list(periods)
    seen = set()
    for guarantees in [own[period] for period in chosen] if chosen else [[], *own.values()]:
        total = whole + guarantees
        alike = frozenset(Counter(total).items())
        if alike not in seen:
            seen.add(alike)
            yield total


def fits(charges: Iterable[Charge], budget: PrivacyLoss, periods: Iterable[str] = ()) -> bool:
    """Say whether no row, of the given periods or of any, bears more than the budget."""
    return all(accounting.fits(total, budget) for total in borne(charges, periods))


def spent_epsilon_micro(charges: Iterable[Charge], delta_atto: int, periods: Iterable[str] = ()) -> int:
    """Return the most that any row bears, of the given periods or of any, in millionths of epsilon at a delta."""
    return max(accounting.spent_epsilon_micro(total, delta_atto) for total in borne(charges, periods))
