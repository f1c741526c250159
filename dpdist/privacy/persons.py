"""A person over time: what releases of periods amount to for somebody with rows in several of them.

The accounts of a ledger are of periods (:mod:`dpdist.privacy.parallel`). Here each of them bounds what is lost by
somebody who has up to R rows in each of up to K periods, whichever these are: the rows of all of them change at once.

**The rule.** A Gaussian release that reads m periods is calibrated as if neighbours differed in ``c R`` rows of one
period, each as often as it is added, with ``c`` the smallest whole number whose square is at least ``K min(K, m)``
(:func:`rows_charged`). It is charged to its periods as ever.

**Theorem.** Let neighbours differ in the rows of one person, who has at most R in each of the periods of a set S of at
most K. Then all releases together are mu-GDP in the sense of :mod:`dpdist.privacy.profile`, with mu² the mean, and so
no more than the largest, of what was charged to the periods of S.

*Proof.* Let a row of period p be added w_ip times by release i, and let |D| be the largest norm by which R rows change
the integer moment of one period (:mod:`dpdist.mechanisms.sensitivity`). The person changes the sum of release i by the
sum of the changes of the periods of S that it reads, k <= min(K, m_i) of them. By the triangle inequality and that of
Cauchy and Schwarz its norm squared is at most

    (sum over p in S of w_ip |D|)² <= min(K, m_i) sum over p in S of w_ip² |D|².

Of Gaussian noise mu is in proportion to the norm. Period p was charged ``c² w_ip² |D|²`` in the same units, and ``c² >=
K min(K, m_i)``. So release i costs the person at most 1/K of the sum of what it charged to the periods of S. This adds
up over all releases, and S has at most K periods. Nothing is asked of the releases: they may be of several jobs, with
any weights, in any order, missing or repeated, and each chosen by what earlier ones published, because at every moment
the accounts are below the caps, and with them their mean. The rows of later periods, and whether the person is in them,
may be chosen likewise. ∎ The numbers are integers throughout, and c is rounded up.

Which rows count is told by :mod:`dpdist.rows.persons`: of a person who was in K periods, later rows are left out. That
depends on nobody else's rows, so the kept rows of everybody else are the same for both neighbours. Under replace-one
the rows of a person are exchanged for as many of another in each period, because the number of each period is public.

**What it costs.** For releases of one period each nothing is lost but the rounding of c: K periods cost ``sqrt K``.
For a tree of 365 periods the factor is 6.3 for K = 7, and no rule gets below 6.1
(:func:`dpdist.release.series.person_factor`). Weighted releases take ``c = K``, so that all have the same noise.

**Why not the factor of the series.** It bounds what all releases together cost by the account of a period that is in
all of them. Accounts do not know that: which releases are made is chosen, also from earlier answers, and where the
first are left out, each of the others weighs K neighbouring periods nearly alike. Of nine periods of a square root and
K = 4 the last release alone costs 15.9 times the mean account, and the lemma allows 10.2.

A pure epsilon would be K times that of a period for every release, which this rule does not charge: only Gaussian
releases are made of such tables.
"""

from __future__ import annotations

import math

MOST_PERIODS = 4096  # periods that a person may be in


def rows_charged(max_periods: int, read: int) -> int:
    """Return c: for how many people with rows in one period somebody with rows in several is counted.

    Examples
    --------
    >>> [rows_charged(7, read) for read in (1, 2, 4, 8, 365)], rows_charged(1, 365)
    ([3, 4, 6, 7, 7], 1)
    """
    return math.isqrt(max_periods * min(max_periods, read) - 1) + 1
