"""Persons over time: the guarantee of releases of periods for a person with rows in several of them.

The accounts of a ledger are of periods (:mod:`dpdist.core.privacy.parallel`). Here each of them bounds the loss of a
person with up to R rows in each of up to K periods: the rows of all of them change at once.

**The rule.** A Gaussian release that reads m periods is calibrated as if neighbours differed in ``c R`` rows of one
period, with multiplicity, where ``c`` is the smallest integer whose square is at least ``K min(K, m)``
(:func:`rows_charged`). It is charged to its periods as usual.

**Theorem.** Let neighbours differ in the rows of one person, who has at most R in each of the periods of a set S of at
most K. Then all releases together are mu-GDP in the sense of :mod:`dpdist.core.privacy.profile`, with mu² the mean, and
so at most the largest, of the charges to the periods of S.

*Proof.* Let a row of period p be added w_ip times by release i, and let |D| be the largest norm by which R rows change
the integer moment of one period (:mod:`dpdist.core.mechanisms.sensitivity`). The person changes the sum of release i by
the sum of the changes of the periods of S that it reads, k <= min(K, m_i) of them. By the triangle inequality and that
of Cauchy and Schwarz its norm squared is at most

    (sum over p in S of w_ip |D|)² <= min(K, m_i) sum over p in S of w_ip² |D|².

For Gaussian noise mu is proportional to the norm. Period p was charged ``c² w_ip² |D|²`` in the same units, and
``c² >= K min(K, m_i)``. So release i costs the person at most 1/K of the sum of its charges to the periods of S. This
adds up over all releases, and S has at most K periods. There is no condition on the releases: they may be of several
jobs, with any weights, in any order, missing or repeated, and each chosen from earlier answers, because at every moment
the accounts are below the caps, and with them their mean. The rows of later periods, and whether the person is in them,
may be chosen adaptively as well. ∎ The numbers are integers throughout, and c is rounded up.

:mod:`dpdist.core.rows.persons` decides which rows count: once a person was in K periods, later rows are left out. That
depends on no other person's rows, so the kept rows of all others are the same for both neighbours. Under replace-one
the rows of a person are exchanged for as many of another in each period, because the number of each period is public.

**The price.** For releases of one period each, only the rounding of c is lost: K periods cost ``sqrt K``. For a tree of
365 periods the factor is 6.3 for K = 7, and no rule gets below 6.1, which is attained
(:mod:`dpdist.core.release.series`). Weighted releases use ``c = K``, so that all have the same noise.

**Why not the factor of the series.** It bounds the cost of all releases together by the account of a period that is in
all of them. But accounts do not know the series: releases are chosen, also from earlier answers, and if the first are
left out, each of the others weighs K neighbouring periods nearly alike. For nine periods of a square root and K = 4,
the last release alone costs 15.9 times the mean account, and the lemma allows 10.2.

A pure epsilon would be K times that of a period for every release, which this rule does not charge: only Gaussian
releases are made of such tables.
"""

from __future__ import annotations

import math

MOST_PERIODS = 4096  # largest number of periods of a person


def rows_charged(max_periods: int, read: int) -> int:
    """Return c: the number of persons with rows in one period that a person with rows in several counts as.

    >>> [rows_charged(7, read) for read in (1, 2, 4, 8, 365)], rows_charged(1, 365)
    ([3, 4, 6, 7, 7], 1)
    """
    return math.isqrt(max_periods * min(max_periods, read) - 1) + 1
