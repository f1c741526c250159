"""The privacy card of a release: what is promised, of what, and on which grounds, for programs.

It says what the page of :mod:`dpdist.report.html` says of the guarantee, as JSON values of stated types. All of it is
public, and follows from the release and, if it is named, from what the ledger says was charged. Its JSON schema is
``docs/formats/card.schema.json``.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from dpdist._util.schemas import schema_of
from dpdist._version import __version__
from dpdist.ledger.ledger import Ledger
from dpdist.mechanisms.registry import mechanism_named
from dpdist.privacy.guarantee import Arithmetic
from dpdist.release.artefact import Release
from dpdist.report.promise import accuracy, promise
from dpdist.storage.store import AnyStore, replace_own, store_at

FORMAT = "dpdist-card/1"


class Mechanism(Struct, frozen=True):
    """By what it was drawn."""

    name: str
    law: str
    sensitivity: str
    reference: str


class Promised(Struct, frozen=True):
    """What is proved.

    Attributes
    ----------
    epsilon, delta, mu
        Of the release alone; mu is that of Gaussian differential privacy, or null.
    neighbours
        ``replace-one`` or ``add-remove``.
    right_guesses
        The largest probability of telling two neighbouring tables apart, both as likely beforehand.
    sentence
        It in words.
    arithmetic, proof
        Of which numbers the proof is, and where it stands.
    """

    epsilon: float
    delta: float
    mu: float | None
    neighbours: str
    right_guesses: float
    sentence: str
    arithmetic: str
    proof: str


class Rows(Struct, frozen=True):
    """Of what rows it is.

    Attributes
    ----------
    n
        How many; null where that is private.
    columns
        Their names.
    clip_norm
        No row counts by more.
    unit, max_rows
        Whose rows are protected together, and how many are kept of each; null: each row by itself.
    tables
        Identities of the tables.
    """

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
    """A privacy card.

    Attributes
    ----------
    status
        ``private``, or ``not private as claimed``: then nothing of it may be published.
    guarantee
        Null where nothing is proved.
    assumptions
        What the guarantee rests on besides, a sentence each.
    cautions
        What should be known of a guarantee that promises little.
    budget
        Null where no ledger was named.
    made
        When the card was written, as YYYY-MM-DD.
    """

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


def card_of(release: Release, ledger: Ledger | None = None) -> Card:
    """Return the card of a release."""
    info, bound, unit = mechanism_named(release.mechanism).info, release.bound, release.unit
    return Card(
        format=FORMAT,
        release_id=release.release_id,
        status=release.status,
        mechanism=Mechanism(info.name, info.law, info.sensitivity, info.reference),
        guarantee=_promised(release),
        rows=Rows(
            n=release.rows,
            columns=release.names,
            clip_norm=bound.clip_norm,
            unit=None if unit is None else unit.column,
            max_rows=None if unit is None else unit.max_rows,
            tables=tuple(sorted({extent.dataset for extent in release.extents})),
        ),
        assumptions=tuple(_assumptions(release)),
        cautions=release.cautions,
        budget=None if ledger is None else _account(ledger),
        ledger_head=release.ledger_head,
        releases=release.releases,
        made=datetime.now(UTC).date().isoformat(),
        library=f"dpdist {__version__}",
        cite=f"The dpdist developers: dpdist {__version__}, release {release.release_id}.",
    )


def write(release: Release, path: AnyStore, ledger: Ledger | None = None) -> None:
    """Write the card of a release; one that is there is replaced."""
    content = json.dumps(msgspec.to_builtins(card_of(release, ledger)), indent=2, allow_nan=False).encode() + b"\n"
    private = not release.private_as_claimed
    replace_own(store_at(path), content, "card", private=private, own=lambda found: b'"dpdist-card/' in found[:4096])


def schema() -> dict[str, Any]:
    """Return the JSON schema of a card."""
    return schema_of(Card, "Privacy card of a dpdist release", FORMAT)


def _promised(release: Release) -> Promised | None:
    guarantee, said = release.guarantee, promise(release)
    if guarantee is None or said is None:
        return None
    squared = guarantee.mu_squared
    return Promised(
        epsilon=guarantee.loss.epsilon,
        delta=guarantee.loss.delta,
        mu=None if squared is None else math.sqrt(squared),
        neighbours=guarantee.neighbours.value,
        right_guesses=accuracy(guarantee),
        sentence=said.sentence,
        arithmetic=guarantee.arithmetic.value,
        proof=guarantee.proof,
    )


def _assumptions(release: Release) -> list[str]:
    said = [
        "Clip norm, centre, scale, columns, schema and all other parameters were chosen without the rows or privately.",
        "What one person has in the table is one row."
        if release.unit is None
        else f"What one person has in the table are the rows of one {release.unit.column}.",
        "The guarantee is of this release alone; what else was released of the same rows adds to it.",
    ]
    if release.guarantee is not None and release.guarantee.arithmetic is not Arithmetic.INTEGER_EXACT:
        said.append("The proof is about real numbers, which the machine approximates.")
    if release.condition is not None:
        said.append(f"It holds if {release.condition}.")
    return said


def _account(ledger: Ledger) -> Account:
    return Account(
        epsilon=ledger.budget.epsilon,
        delta=ledger.budget.delta,
        head=ledger.head,
        charged=tuple(
            Charged(record.release_id, record.guarantee.loss.epsilon, record.guarantee.loss.delta, record.state.value)
            for record in ledger.records
        ),
    )
