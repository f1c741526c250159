"""What a guarantee means to somebody who has to decide: how often a guess about one row can be right.

Somebody knows all rows but one, and has to tell two neighbouring tables apart by a release. Of the cases in which the
second table is the true one he finds some share, and in some share of the others he is wrong. How large the first can
be at most, for each value of the second, is one minus the trade-off function of the mechanism:

* ``max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a))`` for (epsilon, delta) (Wasserman & Zhou 2010; Dong,
  Roth & Su 2022, proposition 2.5);
* ``Phi(Phi^-1(1 - a) - mu)`` for a Gaussian release (Dong, Roth & Su 2022, section 2.2).

Both hold where both are known, so the smaller share is stated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup
from scipy.special import ndtr, ndtri

from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours
from dpdist.release.artefact import Heading
from dpdist.report.answers import number

_EXPONENT = 700.0
"""Largest x whose ``exp(x)`` is a float."""
ALARMS = (0.01, 0.05, 0.1, 0.25, 0.5)
"""The shares of false alarms that the table tells of."""


@dataclass(frozen=True)
class Promise:
    """The guarantee of a release, in words and numbers.

    Attributes
    ----------
    sentence
        It in one sentence.
    percent
        The largest share of right guesses at even odds, in percent, rounded up to a tenth.
    neighbours
        Which tables cannot be told apart.
    loss
        Epsilon, and delta if there is one.
    factor
        e^epsilon.
    added
        Delta; None where it is 0.
    mu
        That of Gaussian differential privacy; None where it is none.
    arithmetic
        What the proof is about.
    found
        Pairs of words: the share of false alarms of a test, and the largest one of its true alarms.
    """

    sentence: str
    percent: str
    neighbours: str
    loss: Markup
    factor: Markup
    added: Markup | None
    mu: str | None
    arithmetic: str
    found: tuple[tuple[str, str], ...]


def promise(release: Heading) -> Promise | None:
    """Say what is proved of a release; None where nothing is."""
    guarantee = release.guarantee
    if guarantee is None:
        return None
    loss, squared = guarantee.loss, guarantee.mu_squared
    exact = guarantee.arithmetic is Arithmetic.INTEGER_EXACT
    percent, added = share_up(accuracy(guarantee)), number(loss.delta) if loss.delta_atto else None
    return Promise(
        sentence=_sentence(release, guarantee, percent),
        percent=percent,
        neighbours=_neighbours(release, guarantee),
        loss=Markup("ε = {}").format(f"{loss.epsilon:.6g}") + (Markup(", δ = {}").format(added) if added else ""),
        factor=(
            number(float(f"{math.exp(loss.epsilon):.3g}"))
            if loss.epsilon < _EXPONENT
            else Markup("e<sup>{}</sup>").format(f"{loss.epsilon:g}")
        ),
        added=added,
        mu=None if squared is None else f"{math.sqrt(squared):.6g}",
        arithmetic=(
            "integer-exact: the proof is about the very numbers that were computed"
            if exact
            else "ideal-real: the proof is about real numbers, which the machine approximates"
        ),
        found=tuple((f"{100 * each:g} %", f"{share_up(hits(guarantee, each))} %") for each in ALARMS),
    )


def _sentence(release: Heading, guarantee: Guarantee, percent: str) -> str:
    unit, same = release.unit, guarantee.neighbours is Neighbours.REPLACE_ONE
    if unit is None:
        known = "every row of the table but one" if same else "every other row of the table"
        doubt = "which of two rows that one is" if same else "whether one more row is in it"
    else:
        known = f"all rows of the table but those of one {unit.column}, of which there are {unit.most}"
        doubt = "which of two such sets of rows these are" if same else "whether they are in it"
    said = (
        f"Somebody who knows {known}, and has to guess {doubt}, is right in at most {percent} % of cases with this "
        "release; a coin is right in 50 %"
    )
    return f"{said}." if release.condition is None else f"{said}. This holds if {release.condition}."


def _neighbours(release: Heading, guarantee: Guarantee) -> str:
    unit = release.unit
    what = "one row" if unit is None else f"all rows of one {unit.column}, {unit.most},"
    periods = any(extent.first is not None for extent in release.extents)
    if guarantee.neighbours is Neighbours.REPLACE_ONE:
        within = " of the same period" if periods else ""
        return f"replace-one: {what} exchanged for any other{within}; how many rows there are is public"
    return f"add-remove: {what} more or fewer; how many rows there are is private too"


def share_up(share: float) -> str:
    """Return a share in percent, rounded up to a tenth: what is true at most stays true.

    Examples
    --------
    >>> share_up(0.5471), share_up(0.73106), share_up(1.0)
    ('54.8', '73.2', '100')
    """
    return f"{min(100.0, math.ceil(1000 * share - 1e-9) / 10):g}"


def accuracy(guarantee: Guarantee) -> float:
    """Return the largest probability of telling two neighbouring tables apart, both as likely beforehand.

    It is ``(1 + TV) / 2``: ``(e^epsilon + delta) / (1 + e^epsilon)`` for (epsilon, delta) (Kairouz, Oh & Viswanath
    2017, Theorem 2.1), and ``Phi(mu/2)`` for a Gaussian release (Dong, Roth & Su 2022, section 2.2).
    """
    share = 1 / (1 + math.exp(-guarantee.loss.epsilon))
    general = share + guarantee.loss.delta * (1 - share)
    return general if guarantee.mu_squared is None else min(general, float(ndtr(math.sqrt(guarantee.mu_squared) / 2)))


def hits(guarantee: Guarantee, alarms: float) -> float:
    """Return the largest share of true alarms of any test of a release that raises so many false ones."""
    loss = guarantee.loss
    grown = alarms * math.exp(min(loss.epsilon, _EXPONENT))
    found = min(1.0, loss.delta + grown, 1 - math.exp(-loss.epsilon) * (1 - loss.delta - alarms))
    if guarantee.mu_squared is not None:
        found = min(found, float(ndtr(ndtri(alarms) + math.sqrt(guarantee.mu_squared))))
    return max(found, alarms)
