"""The HTML page about a release: its guarantee, its findings above the noise, and how it was made.

The page is a single HTML file that loads nothing and runs nothing. It is post-processing of public numbers: the
release, and the charges and balance of its ledger. Names of columns come from the creator of the files and are escaped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import PurePath

from markupsafe import Markup

from dpdist.answers.alignment import components_above_noise, noise_law
from dpdist.answers.bias import clipped_rows, rounding
from dpdist.answers.block import beside, column_indices, source_units
from dpdist.answers.components import components
from dpdist.answers.noise_edge import CONFIDENCE
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.mechanisms.registry import mechanism_named
from dpdist.core.release.advice import stage_words
from dpdist.core.release.artefact import Release
from dpdist.core.release.statement import LedgerStatement, drawn_for
from dpdist.core.storage.store import AnyStore, store_at
from dpdist.core.text import counted, exactly
from dpdist.report.answers import digits, number
from dpdist.report.charts import guesses, tests
from dpdist.report.columns import columns_of
from dpdist.report.components import moment_components
from dpdist.report.components_text import SURE
from dpdist.report.correlations import heat_of, standardised_of
from dpdist.report.explained import Explained, explained_of
from dpdist.report.findings import findings_of
from dpdist.report.page import write_page
from dpdist.report.related import related_of
from dpdist.report.saved import link_to_save
from dpdist.report.text import ALIGNED

_DEFAULT = 10
_PAST = 50
"""Number of releases of a ledger that are listed, the latest ones."""
_PARTS = 20
"""Largest number of tables, periods or summed releases that are listed."""
Facts = list[tuple[str, object]]


def shape_of(text: str) -> tuple[int, int]:
    """Return height and width of an image from text such as ``28x28``."""
    parts = text.split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"An image needs a height and a width, such as 28x28, not {text!r}.", parameter="image")
    return int(parts[0]), int(parts[1])


def write(
    release: Release,
    path: AnyStore,
    *,
    count: int | None = None,
    image: tuple[int, int] | None = None,
    ledger: LedgerStatement | None = None,
    targets: Sequence[str] = (),
    on: Sequence[str] | None = None,
    title: str = "",
    author: str = "",
    source: AnyStore | None = None,
) -> None:
    """Write the page about a release, replacing a page written by dpdist.

    Without a title it is called as ``source``, the location of the release, or as the page.
    """
    if image is not None and image[0] * image[1] != release.bound.columns:
        raise UsageError(
            f"An image of {image[0]} x {image[1]} pixels does not match {release.bound.columns} columns.",
            parameter="image",
        )
    tabular, rows = release.subspace is None and image is None, clipped_rows(release)
    title = title or _title_of(release, source, path)
    explained = _explained(release, targets, on)
    standardised = standardised_of(release, count) if tabular else None
    shown = components(release, count or _default_count(release)) if standardised is None else None
    related, heat = (related_of(release), heat_of(release)) if tabular else (None, None)
    write_page(
        release,
        path,
        "release.html",
        title=title,
        author=author,
        link_to_save=link_to_save,
        named=re.sub(r"[^0-9A-Za-z]+", "-", title).strip("-") or "release",
        guarantee=release.guarantee,
        pictures=None
        if release.guarantee is None
        else (guesses(release.guarantee, release.unit), tests(release.guarantee)),
        budget=None if ledger is None else _budget(ledger, release),
        mechanism=mechanism_named(release.mechanism).info,
        facts=_facts(release),
        findings=findings_of(release, standardised, shown, related, heat, explained, rows),
        moment=None if shown is None else moment_components(release, shown, image),
        images=image is not None,
        legend=f"{ALIGNED} {SURE}",
        confidence=CONFIDENCE,
        columns=columns_of(release, rows) if tabular else None,
        heat=heat,
        standardised=standardised,
        related=related,
        explained=explained,
        rows=rows,
        noise=_noise(release),
        edge_known=noise_law(release) is not None,
    )


def _title_of(release: Release, *locations: AnyStore | None) -> str:
    """Return the name of the first of some files that has one of its own."""
    for location in locations:
        name = "" if location is None else PurePath(str(store_at(location))).name
        stem = re.sub(r"\.(zarr|html?)$", "", name, flags=re.IGNORECASE)
        stem = re.sub(r"[-_. ]?(release|report|index)$", "", stem, flags=re.IGNORECASE)
        if stem:
            return stem
    return "A private release" if release.private_as_claimed else "A release"


def _default_count(release: Release) -> int:
    if release.subspace is not None:
        return len(release.subspace)
    few = min(_DEFAULT, release.bound.columns)
    try:
        return max(few, len(components_above_noise(release).components))
    except (UsageError, BelowNoiseError):  # no component is above the noise, or its distribution is unknown
        return few


def _explained(release: Release, targets: Sequence[str], on: Sequence[str] | None) -> tuple[Explained, ...]:
    if not targets:
        if on is not None:
            raise UsageError("Columns explain a target: name one or more targets.", parameter="target")
        return ()
    columns = column_indices(release, targets, "target")
    chosen = beside(release, columns) if on is None else column_indices(release, on, "on")
    return explained_of(release, columns, chosen, source_units(release))


def _facts(release: Release) -> Facts:
    """Return public facts about the rows of a release."""
    facts: Facts = [
        ("rows", "private" if release.rows is None else str(release.rows)),
        ("columns", str(release.bound.columns)),
    ]
    if (unit := release.unit) is not None:
        facts.append(("privacy unit", Markup("one <bdi>{}</bdi>, {}").format(unit.column, unit.most)))
    if release.extents:
        tables = sorted({extent.dataset for extent in release.extents})
        parts = [f"{extent}{f' of {extent.dataset}' if len(tables) > 1 else ''}" for extent in release.extents]
        facts += [("content", _listed(parts)), ("table", _listed(tables))]
    if release.releases:
        facts.append((f"sum of {counted(len(release.releases), 'release')}", _listed(release.releases)))
    if release.schema is not None:
        facts.append(("schema", f"{counted(len(release.schema.columns), 'column')} of the source are mapped by it"))
    return facts


def _listed(names: Sequence[str]) -> str:
    omitted = len(names) - _PARTS
    return ", ".join(names[:_PARTS]) + (f" and {omitted} more" if omitted > 0 else "")


def _noise(release: Release) -> Facts:
    bound, variance, count = release.bound, release.noise.variance_off_diagonal, release.row_count
    info = mechanism_named(release.mechanism).info
    facts: Facts = [("mechanism", info.name), ("distribution", info.law)]
    if variance is not None:
        deviation = math.sqrt(variance) * bound.unit**2
        text = Markup("{} of an off-diagonal entry").format(number(deviation))
        if count is not None and count > 0:
            text += Markup("; {} per row").format(number(deviation / count))
        facts.append(("standard deviation", text))
    whose, norm = "rows", Markup("Euclidean norm {}, on a grid of {}")
    if bound.unit_norm:
        whose, norm = "rows of a unit", Markup("norm {} of the second moment of all of them, on a grid of {}")
    grid = norm.format(exactly(bound.row_norm), number(bound.unit))
    facts += [("calibrated to", info.sensitivity), (f"{whose} bounded to", grid)]
    if stage := stage_words(release).strip():
        facts.append(("stage", stage))
    if (error := rounding(release)) is not None:
        text = Markup("moves eigenvalues by at most {}").format(number(error.error))
        if error.share is not None:
            text += Markup(", {} % of the noise").format(digits(float(f"{100 * error.share:.2g}")))
        if error.shift:
            text += Markup("; also raises all of them equally, by at most {}").format(number(error.shift))
        facts.append(("rounding", text))
    return [*facts, ("published by", info.reference)]


def _budget(ledger: LedgerStatement, release: Release) -> dict[str, object]:
    """Return balance, head and charges of a ledger, the latest charge last."""
    balance, charged = ledger.balance, ledger.charged
    rows = [
        (
            record.release_id,
            str(record.loss),
            counted(record.periods, "period") if record.periods else "all rows",
            record.release_id in drawn_for(release),
        )
        for record in charged[-_PAST:]
    ]
    return {
        "balance": balance,
        "head": ledger.head,
        "charged": rows,
        "before": max(0, len(charged) - _PAST),
        "share": f"{100 * (balance.left_closed or balance.left).share:.1f}",  # of closed periods, if any
    }
