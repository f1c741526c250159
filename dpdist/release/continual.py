"""Continual release: which runs of periods to release, so that every total so far has little noise.

Number the periods 0, 1, 2, ... as they close. A *node* of level l covers 2^l of them, from a multiple of 2^l on, and is
released when its last period closes, by a draw of its own. With L levels, l = 0 ... L-1, released nodes form binary
trees whose leaves are the periods (Dwork, Naor, Pitassi & Rothblum 2010; Chan, Shi & Song 2011).

**Every row is in at most L nodes**, one per level, because the nodes of one level are disjoint. So if each node's
release is one of L equal shares of a loss, L of which compose to it, then all that is ever published keeps that loss
for every row (:mod:`dpdist.privacy.parallel`; the ledger charges each node to its periods and adds up exactly). Shares
of a Gaussian loss have ``mu_node = mu / sqrt L`` (corollary 3.3 of Dong, Roth & Su 2022), those of a pure one
``epsilon / L``: :func:`dpdist.privacy.accounting.share`.

**Every total is made of few trees**: of t periods, ``t >> (L-1)`` nodes of the highest level, and one for each bit of
what remains. Each comes with all nodes below it, which are noisy sums of the same rows, and the best estimate takes all
of them in (Honaker 2015): of a node of level h,

    S_h = sum over l <= h of 2^l (sum of its nodes of level l) / (2^(h+1) - 1).

It is unbiased, because ``sum of 2^l = 2^(h+1) - 1``. It is the least squares estimate: of a node's own draw, variance
1, and of the independent estimate by its two halves, variance ``2 v_(h-1)``, the best weights are ``2 v_(h-1)`` and 1
over their sum, so that ``v_h = 2 v_(h-1) / (1 + 2 v_(h-1)) = 2^h / (2^(h+1) - 1)``. Halves of halves then have the
weights above, by induction: ``(1 - v_h) 2^l / (2^h - 1) = 2^l / (2^(h+1) - 1)``. ∎ So v_h falls from 1 to one half.
What such an estimate tells, all its nodes tell: those of h + 1 levels, one of which each row is in.

With variance ``v`` of the noise of a release that has all of the loss, a Gaussian node has ``L v``, and a total of t
periods ``L v`` times the sum of the v_h of its trees, at most ``L v (1 + L / 2)`` for t < 2^L; the sum of t releases of
single periods, each with all of the loss, has ``t v``. That is the case L = 1. With ``L = floor(log2 T) + 1`` the noise
is logarithmic up to T periods; after more it grows again, by ``L v / 2`` every 2^(L-1) periods, and the guarantee stays
the same for ever.

**Somebody with a row in each of k periods** changes the release of a node by as many rows as there are in it, m, and so
by m times the mu of a node: together by ``mu sqrt(sum of m^2 / L)`` over all nodes. That is ``sqrt k`` only for L = 1,
where every m is 1. Otherwise it comes close to k, which it never exceeds: :func:`person_factor`.

Rows are read again, once for each of their nodes: L times in all, on nights that end a node. The alternative, to keep
un-noised partial sums or old noise from night to night, would put into a file what must never be in one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar


@dataclass(frozen=True)
class Node:
    """2^level consecutive periods, from a multiple of that on.

    Attributes
    ----------
    start, stop
        Positions of the first period and of the one behind the last, from 0.
    """

    start: int
    stop: int

    @property
    def level(self) -> int:
        """How often its periods can be halved."""
        return (self.stop - self.start).bit_length() - 1

    @property
    def weights(self) -> tuple[int, ...]:
        """None: its rows are added once."""
        return ()

    def label(self, periods: Sequence[str]) -> str:
        """Return its name: the period, or the first and the last one."""
        first, last = periods[self.start], periods[self.stop - 1]
        return first if self.stop - self.start == 1 else f"{first}--{last}"

    @property
    def weight(self) -> Fraction:
        """What its own draw weighs in its best estimate, which is also the variance of that over the draw's, v_h."""
        return Fraction(1 << self.level, (2 << self.level) - 1)

    def tree(self) -> Iterator[Node]:
        """Yield it and the nodes below it, level by level; there are ``2^(level+1) - 1``.

        Examples
        --------
        >>> list(Node(4, 6).tree())
        [Node(start=4, stop=6), Node(start=4, stop=5), Node(start=5, stop=6)]
        """
        for level in reversed(range(self.level + 1)):
            size = 1 << level
            yield from (Node(start, start + size) for start in range(self.start, self.stop, size))


@dataclass(frozen=True)
class Tree:
    """Which nodes are released, and when."""

    levels: int
    horizon: ClassVar[None] = None
    """There is no last period: after the planned ones the noise only grows faster."""

    @property
    def shares(self) -> Fraction:
        """Releases that each row is in at most."""
        return Fraction(self.levels)

    def released(self, count: int) -> list[Node]:
        """Return the nodes that are released when period number ``count``, counted from 1, is closed."""
        return ended(count, self.levels)


def levels_for(horizon: int) -> int:
    """Return the number of levels L for so many periods: ``floor(log2 T) + 1``.

    Examples
    --------
    >>> [levels_for(horizon) for horizon in (1, 2, 3, 4, 365)]
    [1, 2, 2, 3, 9]
    """
    return horizon.bit_length()


def ended(count: int, levels: int) -> list[Node]:
    """Return the nodes that end with period number ``count``, counted from 1, the smallest first.

    Examples
    --------
    >>> ended(4, 9)
    [Node(start=3, stop=4), Node(start=2, stop=4), Node(start=0, stop=4)]
    >>> ended(4, 1)
    [Node(start=3, stop=4)]
    """
    sizes = [1 << level for level in range(levels)]
    return [Node(count - size, count) for size in sizes if count % size == 0]


def total_of(count: int, levels: int) -> list[Node]:
    """Return the fewest nodes that make up the first ``count`` periods, in order: the roots of their trees.

    Examples
    --------
    >>> total_of(6, 9)
    [Node(start=0, stop=4), Node(start=4, stop=6)]
    >>> len(total_of(6, 1))
    6
    """
    nodes = []
    start = 0
    for level in reversed(range(levels)):
        size = 1 << level
        while count - start >= size:
            nodes.append(Node(start, start + size))
            start += size
    return nodes


def variance_factor(count: int, levels: int) -> Fraction:
    """Return the variance of the total of ``count`` periods over that of one Gaussian release with all of the loss.

    Examples
    --------
    >>> [round(float(variance_factor(365, levels)) ** 0.5, 2) for levels in (1, 9)]
    [19.1, 5.71]
    """
    return levels * sum((node.weight for node in total_of(count, levels)), Fraction(0))


def person_factor(periods: int, levels: int) -> float:
    """Return by how much the GDP mu of all releases grows, at most, for somebody with a row in so many periods.

    Of a pure epsilon that factor is the number of periods, whatever the levels.

    Notes
    -----
    On level l, with ``k = q 2^l + r``, the numbers m of the periods in each node add up to k and are at most 2^l. A sum
    of squares is convex, so it is largest where as many as possible are full: ``q 4^l + r^2``. The first k periods
    reach that on every level at once. It is at most ``k^2``, so the factor is at most k.

    Examples
    --------
    >>> [round(person_factor(k, levels_for(365)), 1) for k in (1, 7, 30, 365)]
    [1.0, 6.1, 22.3, 136.3]
    >>> person_factor(9, 1)
    3.0
    """
    squares = 0
    for level in range(levels):
        full, rest = divmod(periods, 1 << level)
        squares += full * 4**level + rest**2
    return math.sqrt(squares / levels)
