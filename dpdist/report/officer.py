"""The page for a privacy officer who decides about a release: five questions, with what the files show.

An answer is *known* if the release or its ledger shows it. It is *declared* if the software only repeats what the
analyst stated, and cannot check: the officer confirms it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dpdist.core.mechanisms.registry import mechanism_named
from dpdist.core.privacy.guarantee import Arithmetic
from dpdist.core.release.artefact import Release
from dpdist.core.release.statement import LedgerStatement, drawn_for
from dpdist.core.storage.store import AnyStore
from dpdist.core.text import counted, exactly, listed
from dpdist.report import recomputed
from dpdist.report.page import write_page

_NAMED = 30
"""Largest number of columns that are listed."""


class Answer(NamedTuple):
    """A sentence, and whether the files show it; otherwise it is to be confirmed."""

    known: bool
    text: str


class Question(NamedTuple):
    """One of the five questions, with its answers."""

    title: str
    answers: list[Answer]


def write(
    release: Release, path: AnyStore, *, ledger: LedgerStatement | None = None, title: str = "", author: str = ""
) -> None:
    """Write the page, replacing a page written by dpdist."""
    asked, formulas = questions(release, ledger), list(recomputed.lines(release))
    write_page(release, path, "officer.html", title=title, author=author, questions=asked, formulas=formulas)


def questions(release: Release, ledger: LedgerStatement | None) -> list[Question]:
    """Return the five questions of docs/tutorials/officer.md with their answers for a release."""
    return [
        Question("What would be published, and with which guarantee?", list(_published(release))),
        Question("Are there other releases of these people?", list(_others(release, ledger))),
        Question("Is the guarantee proved, or only claimed?", list(_proof(release))),
        Question("Which mistakes could undo it?", list(_mistakes(release))),
        Question("Who was trusted?", list(_trusted(release))),
    ]


def _published(release: Release) -> Iterator[Answer]:
    names = release.names[:_NAMED]
    more = f" and {len(release.names) - _NAMED} more" if len(release.names) > _NAMED else ""
    kind = "a second moment: means, variances and covariances" if release.subspace is None else "principal components"
    yield Answer(True, f"It publishes {kind} of {counted(len(release.names), 'column')}: {listed(names)}{more}.")
    if release.guarantee is not None:
        loss = release.guarantee.loss
        yield Answer(True, f"The guarantee is {loss} under {release.guarantee.neighbours}.")
        if loss.delta_atto and release.rows:
            yield Answer(
                True, f"Delta times the number of rows is {loss.delta * release.rows:.2g}; far below 1 is good."
            )
    for caution in release.cautions:
        yield Answer(True, caution)
    if release.unit is None:
        yield Answer(False, "Each row is a different person: no person has two rows in the table.")
    else:
        yield Answer(True, f"All rows of one {release.unit.column} are protected together, {release.unit.most}.")
        yield Answer(False, f"The column {release.unit.column} identifies persons.")


def _others(release: Release, ledger: LedgerStatement | None) -> Iterator[Answer]:
    if ledger is None:
        yield Answer(False, "No ledger was given, so other releases of these rows are unknown. Ask for it (--ledger).")
    else:
        own = drawn_for(release)
        others = [f"{record.release_id} ({record.loss})" for record in ledger.charged if record.release_id not in own]
        found = f"{counted(len(others), 'other release')}: {listed(others[:_NAMED])}" if others else "no other release"
        what = "this release"
        if release.session is not None:
            what = "the share of one site in this release"
        elif release.releases:
            what = f"{counted(len(release.releases), 'release')}, of which this is the sum,"
        yield Answer(True, f"The ledger of this table contains {what} and {found}.")
        if release.session is not None:
            yield Answer(False, "Each of the other sites has looked at its own ledger.")
        elif release.releases:
            yield Answer(False, "Adding up these releases again gives this sum.")
        balance = ledger.balance
        kept = balance.condition is None and not (balance.exceeded or balance.closed or balance.exhausted)
        yield Answer(kept, f"The budget is {balance.budget}: {balance.promise}. So far: {balance}.")
    yield Answer(False, "The same people are in no other table with a budget of its own, nor in a copy of this one.")


def _proof(release: Release) -> Iterator[Answer]:
    info, guarantee = mechanism_named(release.mechanism).info, release.guarantee
    if guarantee is None or not release.private_as_claimed:
        yield Answer(True, f"NO. The mechanism {info.name} is not proved to keep what is claimed. Do not publish it.")
        return
    yield Answer(True, f"It is proved: {info.proved}. The proof is in {guarantee.proof}.")
    exact = guarantee.arithmetic is Arithmetic.INTEGER_EXACT
    yield Answer(
        True,
        "The proof covers the numbers as computed."
        if exact
        else "The proof assumes real numbers, which floating point approximates.",
    )
    if release.condition is not None:
        yield Answer(False, f"It holds if {release.condition}.")


def _mistakes(release: Release) -> Iterator[Answer]:
    chosen = {} if release.stage is None else release.stage.chosen
    if "clip_norm" in chosen:
        yield Answer(True, "The clip norm was chosen privately; its cost is part of the guarantee.")
    else:
        norm = exactly(release.bound.clip_norm)
        yield Answer(False, f"The clip norm {norm} comes from public knowledge, not from the rows.")
    if "scale" in chosen:
        yield Answer(True, "Centre and scale of the columns were chosen privately, too.")
    elif release.bound.centre is not None or release.bound.scale is not None:
        yield Answer(False, "Centre and scale of the columns come from public knowledge.")
    for text in _declared(release):
        yield Answer(False, f"From public knowledge, never from the data: {text}.")
    yield Answer(False, "Nothing was fitted to the rows before: no scaler, no imputation, no selection of columns.")
    yield Answer(False, "The scores and the rows stay inside. They are not protected.")


def _declared(release: Release) -> Iterator[str]:
    """Yield what the schema says of values, by column; all of it is published."""
    columns = () if release.schema is None else release.schema.columns
    if columns:
        kinds = {kind: [each.name for each in columns if each.kind == kind] for kind in {c.kind: None for c in columns}}
        yield f"the kind of each column: {'; '.join(f'{kind}: {listed(names)}' for kind, names in kinds.items())}"
    for column in columns:
        stated = []
        if column.range is not None:
            stated.append(f"range {' to '.join(map(_shown, column.range))}")
        if column.bins:
            stated.append(f"bins {', '.join(map(_shown, column.bins))}")
        elif column.categories:
            stated.append(f"categories {', '.join(column.categories)}")
        if column.missing_values:
            stated.append(f"{' and '.join(map(repr, column.missing_values))} mean missing")
        if column.fill is not None:
            stated.append(f"missing values count as {_shown(column.fill)}")
        elif column.missing == "fill":
            stated.append("missing values count as the middle of the range")
        if stated:
            yield f"{column.name}: {'; '.join(stated)}"


def _shown(value: object) -> str:
    return exactly(value) if isinstance(value, float) else str(value)


def _trusted(release: Release) -> Iterator[Answer]:
    if release.session is not None:
        sites = listed(release.session.sites)
        yield Answer(True, f"Each of the sites ({sites}) with its own rows, and nobody with a sum without noise.")
        if release.guarantee is not None:
            worst = release.session.exposed_epsilon(release.guarantee)
            yield Answer(True, f"If all others worked against one site, its rows would have epsilon {worst}.")
        yield Answer(False, "Each site compared the fingerprint of the session with every other one by telephone.")
        yield Answer(True, "Readers of the release, and whoever carried its files, need not be trusted.")
        return
    yield Answer(False, "The machine that drew the noise, and everyone who can read the rows or its memory.")
    yield Answer(True, "Readers of the release need not be trusted.")
