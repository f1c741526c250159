"""One page about one release, for people: what is promised, what can be seen over the noise, and how it was made.

The page is a single HTML file that loads nothing from anywhere and runs nothing. All of it is post-processing of public
numbers: the release, and of the ledger only what was charged and what is left. Names of columns come from whoever made
the files and are escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from dpdist._util.html import render
from dpdist._util.text import counted, exactly
from dpdist._version import __version__
from dpdist.answers.columns import beside, places_of, source_units
from dpdist.errors import DrownedError, UsageError
from dpdist.ledger.balance import Balance
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.mechanisms.registry import mechanism_named
from dpdist.pca.alignment import counted_components
from dpdist.pca.bias import Rounding, rounding, shortened
from dpdist.pca.components import components
from dpdist.pipeline.release import stage_words
from dpdist.release.artefact import Release
from dpdist.report.answers import digits, number
from dpdist.report.charts import guesses, tests
from dpdist.report.promise import drawn_for, promise, require_charged
from dpdist.report.seen import edge_is_known, explained_of, heat_of, seen_of
from dpdist.report.text import ALIGNED, SURE
from dpdist.storage.store import AnyStore, replace_own, store_at

_DEFAULT = 10
_PAST = 50
"""Releases of a ledger that are listed, the latest."""
_PARTS = 20
"""Tables, periods and summed releases that are listed."""


@dataclass(frozen=True)
class Shape:
    """How the entries of a component are arranged as an image."""

    height: int
    width: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read ``28x28``."""
        parts = text.split("x")
        if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
            raise UsageError(f"An image has a height and a width, such as 28x28, not {text!r}.", parameter="image")
        return cls(int(parts[0]), int(parts[1]))


def write(
    release: Release,
    path: AnyStore,
    *,
    count: int | None = None,
    image: Shape | None = None,
    ledger: Ledger | None = None,
    targets: Sequence[str] = (),
    on: Sequence[str] | None = None,
) -> None:
    """Write the page about a release; a page of dpdist that is there is replaced."""
    if image is not None and image.height * image.width != release.bound.columns:
        raise UsageError(
            f"An image of {image.height} x {image.width} pixels does not show {release.bound.columns} columns.",
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
        seen=seen_of(release, found, None if image is None else (image.height, image.width)),
        images=image is not None,
        legend=f"{ALIGNED} {SURE}",
        heat=None if release.subspace is not None else heat_of(release),
        explained=_explained(release, targets, on),
        shortened=shortened(release),
        noise=_noise(release),
        edge_known=edge_is_known(release),
    )
    private = not release.private_as_claimed
    replace_own(store_at(path), page.encode(), "report", private=private, own=lambda found: b"dpdist" in found[:4096])


def _default_count(release: Release) -> int:
    if release.subspace is not None:
        return len(release.subspace)
    few = min(_DEFAULT, release.bound.columns)
    try:
        return max(few, len(counted_components(release).components))
    except (UsageError, DrownedError):  # none is told from it, or nobody knows its law
        return few


def _explained(release: Release, targets: Sequence[str], on: Sequence[str] | None) -> object:
    if not targets:
        if on is not None:
            raise UsageError("Columns explain a target: name one, or several.", parameter="target")
        return ()
    places = places_of(release, targets, "target")
    chosen = beside(release, places) if on is None else places_of(release, on, "on")
    return explained_of(release, places, chosen, source_units(release))


def _facts(release: Release) -> list[tuple[str, object]]:
    """Return of what rows the release is, by public names."""
    said: list[tuple[str, object]] = [("rows", "private" if release.rows is None else str(release.rows))]
    said.append(("columns", str(release.bound.columns)))
    if release.unit is not None:
        unit = release.unit
        said.append(("whose rows", Markup("one <bdi>{}</bdi>, {}").format(unit.column, unit.most)))
    if release.extents:
        several = len({extent.dataset for extent in release.extents}) > 1
        said.append(
            ("of", _some([f"{extent}{f' of {extent.dataset}' if several else ''}" for extent in release.extents]))
        )
        said.append(("table", _some(sorted({extent.dataset for extent in release.extents}))))
    if release.releases:
        said.append((f"sum of {counted(len(release.releases), 'release')}", _some(release.releases)))
    if release.schema is not None:
        said.append(("schema", f"{counted(len(release.schema.columns), 'column')} of the source were mapped by it"))
    return said


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _PARTS
    return ", ".join(names[:_PARTS]) + (f" and {rest} more" if rest > 0 else "")


def _noise(release: Release) -> list[tuple[str, object]]:
    bound, variance, count = release.bound, release.noise.variance_off_diagonal, release.row_count
    info = mechanism_named(release.mechanism).info
    said: list[tuple[str, object]] = [("mechanism", info.name), ("law", info.law)]
    if variance is not None:
        deviation = math.sqrt(variance) * bound.unit**2
        words = Markup("{} of an entry off the diagonal").format(number(deviation))
        if count is not None and count > 0:
            words += Markup("; {} per row").format(number(deviation / count))
        said.append(("standard deviation", words))
    said.append(("calibrated to", info.sensitivity))
    grid = Markup("Euclidean norm {}, on a grid of {}").format(exactly(bound.clip_norm), number(bound.unit))
    said.append(("rows were bounded to", grid))
    if stage := stage_words(release).strip():
        said.append(("stage", stage))
    if (found := _rounding(rounding(release))) is not None:
        said.append(("rounding", found))
    return [*said, ("published by", info.reference)]


def _rounding(found: Rounding | None) -> Markup | None:
    if found is None:
        return None
    said = Markup("moves eigenvalues by {} at most").format(number(found.error))
    if found.share is not None:
        said += Markup(", {} % of the noise").format(digits(float(f"{100 * found.share:.2g}")))
    if found.shift:
        said += Markup("; raises all of them by the same besides, {} at most").format(number(found.shift))
    return said


@dataclass(frozen=True)
class _Budget:
    """What a ledger says: its balance, its head, and what was charged, the latest last."""

    balance: Balance
    head: str
    charged: tuple[tuple[str, str, str, bool], ...]
    before: int

    @property
    def share(self) -> str:
        """What is charged of the budget in percent; of all closed periods, where rows come in periods."""
        return f"{100 * (self.balance.left_closed or self.balance.left).share:.1f}"


def _budget(ledger: Ledger, release: Release) -> _Budget:
    charged = [record for record in ledger.records if record.state is not State.ABORTED]
    rows = tuple(
        (
            record.release_id,
            str(record.guarantee.loss),
            counted(len(record.periods), "period") if record.periods else "all rows",
            record.release_id in drawn_for(release),
        )
        for record in charged[-_PAST:]
    )
    return _Budget(ledger.balance(), ledger.head, rows, max(0, len(charged) - _PAST))
