"""One page about one release, for people: what is promised, what can be seen over the noise, and how it was made.

The page is a single HTML file that loads nothing from anywhere and runs nothing. All of it is post-processing of public
numbers: the release, and of the ledger only what was charged and what is left. Names of columns come from whoever made
the files and are escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from markupsafe import Markup

from dpdist._util.html import render
from dpdist._util.text import counted, exactly
from dpdist._version import __version__
from dpdist.answers.block import beside, places_of, source_units
from dpdist.errors import BelowNoiseError, UsageError
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.mechanisms.registry import mechanism_named
from dpdist.pca.alignment import counted_components, noise_law
from dpdist.pca.bias import clipped_rows, rounding
from dpdist.pca.components import components
from dpdist.pca.noise_edge import CONFIDENCE
from dpdist.pipeline.release import stage_words
from dpdist.release.artefact import Release
from dpdist.report.answers import digits, number
from dpdist.report.charts import guesses, tests
from dpdist.report.findings import explained_of, heat_of, seen_of
from dpdist.report.promise import drawn_for, promise, require_charged
from dpdist.report.text import ALIGNED, SURE
from dpdist.storage.store import AnyStore, replace_own, store_at

_DEFAULT = 10
_PAST = 50
"""Releases of a ledger that are listed, the latest."""
_PARTS = 20
"""Tables, periods and summed releases that are listed."""
Facts = list[tuple[str, object]]


def shape_of(text: str) -> tuple[int, int]:
    """Return the height and width of an image from a text such as ``28x28``."""
    parts = text.split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"An image has a height and a width, such as 28x28, not {text!r}.", parameter="image")
    return int(parts[0]), int(parts[1])


def write(
    release: Release,
    path: AnyStore,
    *,
    count: int | None = None,
    image: tuple[int, int] | None = None,
    ledger: Ledger | None = None,
    targets: Sequence[str] = (),
    on: Sequence[str] | None = None,
) -> None:
    """Write the page about a release; a page of dpdist that is there is replaced."""
    if image is not None and image[0] * image[1] != release.bound.columns:
        raise UsageError(
            f"An image of {image[0]} x {image[1]} pixels does not show {release.bound.columns} columns.",
            parameter="image",
        )
    require_charged(release, ledger)
    found = components(release, count or _default_count(release))
    page = render(
        "dpdist.report",
        "release.html",
        version=__version__,
        today=datetime.now(UTC).date().isoformat(),
        release=release,
        guarantee=release.guarantee,
        promise=promise(release),
        pictures=None if release.guarantee is None else (guesses(release.guarantee), tests(release.guarantee)),
        budget=None if ledger is None else _budget(ledger, release),
        mechanism=mechanism_named(release.mechanism).info,
        facts=_facts(release),
        seen=seen_of(release, found, image),
        images=image is not None,
        legend=f"{ALIGNED} {SURE}",
        confidence=CONFIDENCE,
        heat=None if release.subspace is not None else heat_of(release),
        explained=_explained(release, targets, on),
        clipped_rows=clipped_rows(release),
        noise=_noise(release),
        edge_known=noise_law(release) is not None,
    )
    private = not release.private_as_claimed
    replace_own(store_at(path), page.encode(), "report", private=private, own=lambda found: b"dpdist" in found[:4096])


def _default_count(release: Release) -> int:
    if release.subspace is not None:
        return len(release.subspace)
    few = min(_DEFAULT, release.bound.columns)
    try:
        return max(few, len(counted_components(release).components))
    except (UsageError, BelowNoiseError):  # none is told from it, or nobody knows its law
        return few


def _explained(release: Release, targets: Sequence[str], on: Sequence[str] | None) -> object:
    if not targets:
        if on is not None:
            raise UsageError("Columns explain a target: name one, or several.", parameter="target")
        return ()
    places = places_of(release, targets, "target")
    chosen = beside(release, places) if on is None else places_of(release, on, "on")
    return explained_of(release, places, chosen, source_units(release))


def _facts(release: Release) -> Facts:
    """Return of what rows the release is, by public names."""
    said: Facts = [
        ("rows", "private" if release.rows is None else str(release.rows)),
        ("columns", str(release.bound.columns)),
    ]
    if (unit := release.unit) is not None:
        said.append(("whose rows", Markup("one <bdi>{}</bdi>, {}").format(unit.column, unit.most)))
    if release.extents:
        tables = sorted({extent.dataset for extent in release.extents})
        parts = [f"{extent}{f' of {extent.dataset}' if len(tables) > 1 else ''}" for extent in release.extents]
        said += [("of", _some(parts)), ("table", _some(tables))]
    if release.releases:
        said.append((f"sum of {counted(len(release.releases), 'release')}", _some(release.releases)))
    if release.schema is not None:
        said.append(("schema", f"{counted(len(release.schema.columns), 'column')} of the source were mapped by it"))
    return said


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _PARTS
    return ", ".join(names[:_PARTS]) + (f" and {rest} more" if rest > 0 else "")


def _noise(release: Release) -> Facts:
    bound, variance, count = release.bound, release.noise.variance_off_diagonal, release.row_count
    info = mechanism_named(release.mechanism).info
    said: Facts = [("mechanism", info.name), ("law", info.law)]
    if variance is not None:
        deviation = math.sqrt(variance) * bound.unit**2
        words = Markup("{} of an entry off the diagonal").format(number(deviation))
        if count is not None and count > 0:
            words += Markup("; {} per row").format(number(deviation / count))
        said.append(("standard deviation", words))
    grid = Markup("Euclidean norm {}, on a grid of {}").format(exactly(bound.clip_norm), number(bound.unit))
    said += [("calibrated to", info.sensitivity), ("rows were bounded to", grid)]
    if stage := stage_words(release).strip():
        said.append(("stage", stage))
    if (found := rounding(release)) is not None:
        words = Markup("moves eigenvalues by {} at most").format(number(found.error))
        if found.share is not None:
            words += Markup(", {} % of the noise").format(digits(float(f"{100 * found.share:.2g}")))
        if found.shift:
            words += Markup("; raises all of them by the same besides, {} at most").format(number(found.shift))
        said.append(("rounding", words))
    return [*said, ("published by", info.reference)]


def _budget(ledger: Ledger, release: Release) -> dict[str, object]:
    """Return what a ledger says: its balance, its head, and what was charged, the latest last."""
    balance, charged = ledger.balance(), [record for record in ledger.records if record.state is not State.ABORTED]
    rows = [
        (
            record.release_id,
            str(record.guarantee.loss),
            counted(len(record.periods), "period") if record.periods else "all rows",
            record.release_id in drawn_for(release),
        )
        for record in charged[-_PAST:]
    ]
    return {
        "balance": balance,
        "head": ledger.head,
        "charged": rows,
        "before": max(0, len(charged) - _PAST),
        "share": f"{100 * (balance.left_closed or balance.left).share:.1f}",  # of closed periods, if there are any
    }
