"""Continual release of totals: by weighted sums of periods (a Toeplitz matrix), or by a tree of periods.

**Toeplitz matrix.** Number the periods 0, 1, 2, ... in the order in which they close, and let A_s be the integer second
moment of period s. When period t closes, the series releases

    Y_t = sum over s <= t of F(t - s) A_s + Z_t,

with integers ``F(0) >= F(1) >= ... >= F(W - 1) >= 1`` and F = 0 from W on. Z_t is the noise of one draw of a Gaussian
release (:mod:`dpdist.core.mechanisms.gaussian`), with the same scale for all t. The total of periods 0 ... t is
post-processing,

    sum over r <= t of c(t - r) Y_r = sum over s <= t of A_s + sum over r <= t of c(t - r) Z_r,

where c are the coefficients of the power series ``1 / ((1 - x) (F(0) + F(1) x + ...))``. So it is an unbiased
estimate, and an entry of its noise has ``sum over k <= t of c(k)²`` times the variance of that of one Z. With F(k) the
coefficients f(k) of ``(1 - x)^(-1/2)``, c would be f as well, and the matrix of the releases a square root of that of
all totals (Fichtenberger, Henzinger & Upadhyay 2023). Here ``F(k) = floor(2^6 f(k) + 1/2)``, which costs less than a
thousandth of the standard deviation.

A total is computed from the latest release and earlier totals: with F(W) = 0 the same equation is

    F(0) T_t = Y_t + sum over 1 <= i <= W of (F(i - 1) - F(i)) T_(t - i),    T_s = 0 for s < 0.

No weight is negative, they add up to F(0), and most are 0, because few of the integers F differ from the next: 16 of 64
do, and 19 of 365. So each period opens that many totals, whatever the number of periods. T_t is rounded to the nearest
integer. Later totals carry this error on like noise: the rounding of an entry of T_t is at most ``F(0) / 2`` times the
sum of c(k), k <= t, which is 11 lattice units after 365 periods, and 21 with W = 64.

The sum of the last w periods, a *window*, is a total less an earlier one: release t - k has the weight
``c(k) - c(k - w)``. It reveals as much as all releases, also about rows of earlier periods, and its extent says so.

**Privacy.** Release t adds a row of period s F(t - s) times. It is a separate release of rows with weights
(:mod:`dpdist.core.privacy.parallel`): Gaussian noise on a sum that an exchanged row of period s changes by F(t - s)
times its change of A_s. If mu is its guarantee for the rows of the newest period, whose weight F(0) is the largest, it
costs period s ``mu² F(t - s)² / F(0)²``, and is charged exactly that. All releases together cost a period at most
``mu² sum of F² / F(0)²``, the requested loss: :attr:`Toeplitz.shares` is that factor of mu².

There is no record of the series: each release is charged before it reads a row, and the theorem of
:mod:`dpdist.core.privacy.profile` holds in any order, also if later requests, or rows of later periods, are chosen from
earlier answers: given the past, the two sums of a release differ by ``F(t - s) D``, because periods other than s have
the same rows in both. (By theorem 2.1 of Denisov et al. 2022, the whole stream is one Gaussian mechanism, as its matrix
is lower triangular.) Other weights, or a second draw under another id, cost more and are charged more.

**Rounding.** Every release rounds rows again, by a secret key of its attempt (:mod:`dpdist.core.rows.dither`), so the
A_s of two releases are different integers. The guarantee of a release holds for each key. In the total, the rounding of
period s from release r has the weight ``c(t - r) F(r - s)``. These weights add up to 1 and none is negative, so
rounding stays unbiased, and its variance is at most that of one rounding.

**Number of periods.** ``sum of F²`` must be finite, and known before the first release. A *square root* has W = T, for
at most T periods: ``sum of f²`` grows like log T / pi. *Banded*, with W fixed, has no last period; the noise then grows
slowly, like the square root of t. In units of one release with all of the loss, 365 periods have a root mean square of
2.8, and of 3.1 with W = 64 (:meth:`Toeplitz.variance_factor`).

**A person with a row in each of k periods** changes Y_t by one ``F(t - s)`` per period. F is non-negative and
non-increasing, so the first k periods are the worst case. With c_i the contribution of a row of period i to each
release, ``<c_i, c_j>`` is the sum of ``F(r) F(r + |i - j|)`` over the releases left after both: it falls in max(i, j)
and in |i - j|. Sorted, the a-th of any periods is at least a, and two of them are no closer than consecutive ones; and
for matrices D_i in the place of numbers, ``<D_i, D_j> <= |D|²``.

Release t reads the rows of all periods from t - W + 1 on, because no file may contain an exact sum or old noise.

**Tree.** A *node* of level l covers 2^l periods, from a multiple of 2^l on, and is released in a separate draw when its
last period closes. With L levels, l = 0 ... L-1, released nodes form binary trees whose leaves are the periods (Dwork,
Naor, Pitassi & Rothblum 2010; Chan, Shi & Song 2011).

**Every row is in at most L nodes**, one per level, because the nodes of one level are disjoint. So if each node's
release is one of L equal shares of a loss, L of which compose to it, then everything that is ever published keeps that
loss for every row (:mod:`dpdist.core.privacy.parallel`; the ledger charges each node to its periods and adds up
exactly). Shares of a Gaussian loss have ``mu_node = mu / sqrt L`` (corollary 3.3 of Dong, Roth & Su 2022), those of a
pure one ``epsilon / L``: :func:`dpdist.core.privacy.accounting.share`.

**Every total consists of few trees**: for t periods, ``t >> (L-1)`` nodes of the highest level, and one for each bit of
the rest. The nodes below a node are noisy sums of the same rows, and the best estimate uses all of them (Honaker 2015):
for a node of level h,

    S_h = sum over l <= h of 2^l (sum of its nodes of level l) / (2^(h+1) - 1).

It is unbiased, because ``sum of 2^l = 2^(h+1) - 1``. It is the least squares estimate: for a node's own draw, variance
1, and the independent estimate from its two halves, variance ``2 v_(h-1)``, the best weights are ``2 v_(h-1)`` and 1
over their sum, so that ``v_h = 2 v_(h-1) / (1 + 2 v_(h-1)) = 2^h / (2^(h+1) - 1)``. Halves of halves then have the
weights above, by induction: ``(1 - v_h) 2^l / (2^h - 1) = 2^l / (2^(h+1) - 1)``. ∎ So v_h falls from 1 to one half.
Such an estimate reveals as much as all its nodes: those of h + 1 levels, with each row in one node per level.

If ``v`` is the variance of the noise of a release with all of the loss, a Gaussian node has ``L v``, and a total of t
periods ``L v`` times the sum of the v_h of its trees, at most ``L v (1 + L / 2)`` for t < 2^L; the sum of t releases of
single periods, each with all of the loss, has ``t v``, which is the case L = 1. With ``L = floor(log2 T) + 1`` the
noise is logarithmic up to T periods; after that it grows by ``L v / 2`` every 2^(L-1) periods, and the guarantee stays
the same indefinitely.

**A person with a row in each of k periods** changes the release of a node by the number of these rows in it, m, and so
by m times the mu of a node: together by ``mu sqrt(sum of m^2 / L)`` over all nodes. For L = 1 every m is 1, and this is
``sqrt k``. Otherwise it is close to k, and at most k: on level l, with ``k = q 2^l + r``, the m add up to k and are at
most 2^l, a sum of squares is convex, and so it is at most ``q 4^l + r^2``, which the first k periods reach on every
level at once. Pure epsilons add up to k times as much.

Rows are read once for each of their nodes: L times in all, when a node ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul
from typing import ClassVar

from dpdist.core.errors import UsageError
from dpdist.core.naming import parameter

_BITS = 6
"""F(0) is ``2^6``."""
_PLACES = 128
"""Binary places of the coefficients of the inverse."""
LONGEST = 4096
"""Largest number of weights: beyond it, the last ones would be rounded to 0."""
BAND = 64
"""Default number of weights of a banded series."""


@dataclass(frozen=True)
class PeriodSum:
    """A weighted sum of periods: positions, from 0, half open, and the multiplicity of each period's rows."""

    start: int
    stop: int
    weights: tuple[int, ...]

    def label(self, periods: Sequence[str]) -> str:
        """Return the name of the last period."""
        return periods[self.stop - 1]


@dataclass(frozen=True)
class Toeplitz:
    """The weighted sums to release, and the weights of the totals."""

    weights: tuple[int, ...]
    horizon: int | None

    @property
    def shares(self) -> Fraction:
        """The factor ``sum F² / F(0)²``: mu² of all releases over that of one, for a row that is in all of them."""
        return self.shares_of(len(self.weights))

    def shares_of(self, count: int) -> Fraction:
        """Return this factor for the first ``count`` releases and a row of the first period, the worst case."""
        return Fraction(sum(weight**2 for weight in self.weights[:count]), self.weights[0] ** 2)

    def released(self, count: int) -> list[PeriodSum]:
        """Return the sums to release when period number ``count``, counted from 1, closes."""
        return [self.sum_at(count)]

    def sum_at(self, count: int) -> PeriodSum:
        """Return the sum that ends with period number ``count``, counted from 1."""
        start = max(0, count - len(self.weights))
        return PeriodSum(start, count, self.weights[: count - start][::-1])

    def earlier(self, count: int) -> dict[int, int]:
        """Return the earlier totals in the total of ``count`` periods, as numbers of periods, with their weights."""
        steps = (a - b for a, b in pairwise((*self.weights, 0)))
        return {count - lag: step for lag, step in enumerate(steps, 1) if step and lag < count}

    def inverse(self, count: int, window: int | None = None) -> list[float]:
        """Return c(0), ..., c(count - 1), the weights of the releases in a total, or in a window, the latest first."""
        # integers over 2^128, with an error below 2^-100; a window is a total less an earlier one
        totals = _inverse(self.weights, 1 << max(0, count - 1).bit_length())[:count]
        earlier = [0] * count if window is None else ([0] * window + totals)[:count]
        return [(total - less) / (1 << _PLACES) for total, less in zip(totals, earlier, strict=True)]

    def variance_factor(self, count: int) -> float:
        """Return the variance of a total over that of one Gaussian release with all of the loss."""
        return math.fsum(c**2 for c in self.inverse(count)) * sum(weight**2 for weight in self.weights)


def square_root(horizon: int) -> Toeplitz:
    """Return the square root for a given number of periods."""
    if horizon > LONGEST:
        raise UsageError(
            f"{parameter('factorisation', 'square-root')} allows at most {LONGEST} periods: use "
            f"{parameter('factorisation', 'banded')}, which has no limit."
        )
    return Toeplitz(_rounded(horizon), horizon)


def banded(band: int) -> Toeplitz:
    """Return the square root cut to a number of periods per release; it has no last period."""
    return Toeplitz(_rounded(band), None)


@lru_cache(maxsize=8)
def _inverse(weights: tuple[int, ...], count: int) -> list[int]:
    """Return c(0), ..., c(count - 1) over 2^128: partial sums of the coefficients a of 1 / F."""
    # a(k) F(0) = - sum of F(j) a(k - j)
    coefficients = [(1 << _PLACES) // weights[0]]
    for k in range(1, count):
        near = min(k, len(weights) - 1)
        added = sum(map(mul, weights[1 : near + 1], reversed(coefficients[k - near :])))
        coefficients.append(-added // weights[0])
    return list(accumulate(coefficients))


def _rounded(count: int) -> tuple[int, ...]:
    """Return ``floor(2^6 f(k) + 1/2)`` of the coefficients ``f(k) = f(k - 1) (2 k - 1) / (2 k)``, exactly."""
    coefficients, numerator = [], 1  # f(k) is numerator / 4^k, numerator the binomial coefficient of 2 k over k
    for k in range(count):
        coefficients.append(((numerator << (_BITS + 1)) + (1 << 2 * k)) >> (2 * k + 1))
        numerator = numerator * 2 * (2 * k + 1) // (k + 1)
    return tuple(coefficients)


@dataclass(frozen=True)
class Node:
    """A node of the tree: 2^level consecutive periods from a multiple of 2^level on, as positions from 0, half open."""

    start: int
    stop: int

    @property
    def level(self) -> int:
        """The number of times that the node can be halved."""
        return (self.stop - self.start).bit_length() - 1

    @property
    def weights(self) -> tuple[int, ...]:
        """Empty: rows are added once."""
        return ()

    def label(self, periods: Sequence[str]) -> str:
        """Return the name of the period, or the names of the first and the last one."""
        first, last = periods[self.start], periods[self.stop - 1]
        return first if self.stop - self.start == 1 else f"{first}--{last}"

    @property
    def weight(self) -> Fraction:
        """Weight of the node's own draw in its best estimate, and the variance of the estimate over the draw's, v_h."""
        return Fraction(1 << self.level, (2 << self.level) - 1)

    def tree(self) -> Iterator[Node]:
        """Yield the node and those below it, level by level; there are ``2^(level+1) - 1``."""
        for level in reversed(range(self.level + 1)):
            size = 1 << level
            yield from (Node(start, start + size) for start in range(self.start, self.stop, size))


@dataclass(frozen=True)
class Tree:
    """The nodes to release, by the number of levels."""

    levels: int
    horizon: ClassVar[None] = None
    """There is no last period: after the planned ones the noise grows faster."""

    @property
    def shares(self) -> Fraction:
        """Largest number of releases that contain a row."""
        return Fraction(self.levels)

    def released(self, count: int) -> list[Node]:
        """Return the nodes to release when period number ``count``, counted from 1, closes."""
        return ended(count, self.levels)


def levels_for(horizon: int) -> int:
    """Return the number of levels L for a number of periods: ``floor(log2 T) + 1``."""
    return horizon.bit_length()


def ended(count: int, levels: int) -> list[Node]:
    """Return the nodes that end with period number ``count``, counted from 1, the smallest first."""
    sizes = [1 << level for level in range(levels)]
    return [Node(count - size, count) for size in sizes if count % size == 0]


def total_of(count: int, levels: int) -> list[Node]:
    """Return the fewest nodes that make up the first ``count`` periods, in order: the roots of their trees."""
    nodes = []
    start = 0
    for level in reversed(range(levels)):
        size = 1 << level
        while count - start >= size:
            nodes.append(Node(start, start + size))
            start += size
    return nodes


def variance_factor(count: int, levels: int) -> Fraction:
    """Return the variance of a total over that of one Gaussian release with all of the loss."""
    return levels * sum((node.weight for node in total_of(count, levels)), Fraction(0))
