"""What a guarantee means to somebody who has to decide: how often a guess about one row can be right.

Somebody knows all rows but one, and has to tell two neighbouring tables apart by a release. Of the cases in which the
second table is the true one he finds some share, and in some share of the others he is wrong. How large the first can
be at most, for each value of the second, is one minus the trade-off function of the mechanism:

* ``max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a))`` for (epsilon, delta) (Wasserman & Zhou 2010; Dong,
  Roth & Su 2022, proposition 2.5);
* ``Phi(Phi^-1(1 - a) - mu)`` for a Gaussian release (Dong, Roth & Su 2022, section 2.2).

Both hold where both are known, so the smaller share is stated.

The privacy card says it as JSON values of stated types, with what the promise rests on and what a ledger says was
charged. All of it is public. Its JSON schema is ``docs/formats/card.schema.json``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup
from msgspec import Struct, convert, to_builtins
from scipy.special import ndtr, ndtri

from dpdist._util.schemas import schema_of
from dpdist._version import __version__
from dpdist.errors import UsageError
from dpdist.ledger.ledger import Ledger
from dpdist.mechanisms.registry import mechanism_named
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours
from dpdist.release.artefact import Heading, Release
from dpdist.report.answers import number

_EXPONENT = 700.0
"""Largest x whose ``exp(x)`` is a float."""
_FORMAT = "dpdist-card/1"
ALARMS = (0.01, 0.05, 0.1, 0.25, 0.5)
"""The shares of false alarms that the table tells of."""


@dataclass(frozen=True)
class Promise:
    """The guarantee of a release, in words and numbers, as the page says it."""

    sentence: str
    neighbours: str
    loss: Markup
    factor: Markup  # e^epsilon
    added: Markup | None  # delta, unless it is 0
    mu: str | None  # of Gaussian differential privacy
    arithmetic: str
    found: tuple[tuple[str, str], ...]  # share of false alarms of a test, and the largest one of its true alarms


def promise(release: Heading) -> Promise | None:
    """Say what is proved of a release; None where nothing is."""
    guarantee = release.guarantee
    if guarantee is None:
        return None
    loss, squared = guarantee.loss, guarantee.mu_squared
    exact = guarantee.arithmetic is Arithmetic.INTEGER_EXACT
    added = number(loss.delta) if loss.delta_atto else None
    return Promise(
        sentence=_sentence(release, guarantee),
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


def _sentence(release: Heading, guarantee: Guarantee) -> str:
    unit, same = release.unit, guarantee.neighbours is Neighbours.REPLACE_ONE
    if unit is None:
        known = "every row of the table but one" if same else "every other row of the table"
        doubt = "which of two rows that one is" if same else "whether one more row is in it"
    else:
        known = f"all rows of the table but those of one {unit.column}, of which there are {unit.most}"
        doubt = "which of two such sets of rows these are" if same else "whether they are in it"
    said = (
        f"Somebody who knows {known}, and has to guess {doubt}, is right in at most "
        f"{share_up(accuracy(guarantee))} % of cases with this release; a coin is right in 50 %"
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


class Mechanism(Struct, frozen=True):
    """By what it was drawn."""

    name: str
    law: str
    sensitivity: str
    reference: str


class Promised(Struct, frozen=True):
    """What is proved."""

    epsilon: float
    delta: float
    mu: float | None
    neighbours: str
    right_guesses: float
    sentence: str
    arithmetic: str
    proof: str


class Rows(Struct, frozen=True):
    """Of what rows it is."""

    n: int | None
    columns: tuple[str, ...]
    clip_norm: float
    unit: str | None
    max_rows: int | None
    tables: tuple[str, ...]


class Charged(Struct, frozen=True):
    """One release that was charged to the same budget."""

    release_id: str
    epsilon: float
    delta: float
    state: str


class Account(Struct, frozen=True):
    """What the ledger says: the budget, what was charged to it, and the head of its hash chain."""

    epsilon: float
    delta: float
    head: str
    charged: tuple[Charged, ...]


class Card(Struct, frozen=True):
    """A privacy card."""

    format: str
    release_id: str
    status: str
    mechanism: Mechanism
    guarantee: Promised | None
    rows: Rows
    assumptions: tuple[str, ...]
    cautions: tuple[str, ...]
    budget: Account | None
    ledger_head: str | None
    releases: tuple[str, ...]
    made: str
    library: str
    cite: str


def card_of(release: Release, ledger: Ledger | None = None) -> dict[str, Any]:
    """Return the card of a release as JSON values; with a ledger, of what was charged too."""
    require_charged(release, ledger)
    unit, guarantee, budget = release.unit, release.guarantee, None
    if ledger is not None:
        charged = [(record.release_id, record.guarantee.loss, record.state.value) for record in ledger.records]
        listed = tuple(Charged(name, loss.epsilon, loss.delta, state) for name, loss, state in charged)
        budget = Account(ledger.budget.epsilon, ledger.budget.delta, ledger.head, listed)
    card = Card(
        format=_FORMAT,
        release_id=release.release_id,
        status=release.status,
        mechanism=convert(mechanism_named(release.mechanism).info, Mechanism, from_attributes=True),
        guarantee=None if guarantee is None else _promised(release, guarantee),
        rows=Rows(
            n=release.rows,
            columns=release.names,
            clip_norm=release.bound.clip_norm,
            unit=None if unit is None else unit.column,
            max_rows=None if unit is None else unit.max_rows,
            tables=tuple(sorted({extent.dataset for extent in release.extents})),
        ),
        assumptions=tuple(_assumptions(release)),
        cautions=release.cautions,
        budget=budget,
        ledger_head=release.ledger_head,
        releases=release.releases,
        made=datetime.now(UTC).date().isoformat(),
        library=f"dpdist {__version__}",
        cite=f"The dpdist developers: dpdist {__version__}, release {release.release_id}.",
    )
    found: dict[str, Any] = to_builtins(card)
    return found


def card_schema() -> dict[str, Any]:
    """Return the JSON schema of a card."""
    return schema_of(Card, "Privacy card of a dpdist release", _FORMAT)


def _promised(release: Release, guarantee: Guarantee) -> Promised:
    squared = guarantee.mu_squared
    return Promised(
        epsilon=guarantee.loss.epsilon,
        delta=guarantee.loss.delta,
        mu=None if squared is None else math.sqrt(squared),
        neighbours=guarantee.neighbours.value,
        right_guesses=accuracy(guarantee),
        sentence=_sentence(release, guarantee),
        arithmetic=guarantee.arithmetic.value,
        proof=guarantee.proof,
    )


def _assumptions(release: Release) -> Iterator[str]:
    own = "is one row" if release.unit is None else f"are the rows of one {release.unit.column}"
    yield (
        "Clip norm, centre, scale, columns, schema and all other parameters were chosen without the rows or privately."
    )
    yield f"What one person has in the table {own}."
    yield "The guarantee is of this release alone; what else was released of the same rows adds to it."
    if release.guarantee is not None and release.guarantee.arithmetic is not Arithmetic.INTEGER_EXACT:
        yield "The proof is about real numbers, which the machine approximates."
    if release.condition is not None:
        yield f"It holds if {release.condition}."


def require_charged(release: Release, ledger: Ledger | None) -> None:
    """Refuse a ledger, if one is named, that does not know of a release, or is behind its witness."""
    if ledger is None:
        return
    for drawn in drawn_for(release):
        if ledger.record(drawn) is None:
            raise UsageError(f"The ledger does not know of {drawn}: name the one that was charged.", parameter="ledger")
    ledger.require_current()  # else what is said to be left is not


def drawn_for(release: Release) -> tuple[str, ...]:
    """Return the ids of the releases that were drawn for this one: a sum is charged as its parts are."""
    return release.releases or (release.release_id,)
