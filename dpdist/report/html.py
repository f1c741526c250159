"""One page about one release, for people: what is promised, how the budget stands, and what can be seen over the noise.

The page is a single HTML file that loads nothing from anywhere. All of it is post-processing of public numbers: the
release, and of the ledger only the budget and what is left of it. Names of columns come from whoever made the files
and are escaped.
"""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from scipy.special import ndtr

from dpdist._util.html import render
from dpdist._util.text import counted, exactly
from dpdist._version import __version__
from dpdist.errors import UsageError
from dpdist.ledger.ledger import Ledger
from dpdist.mechanisms.registry import mechanism_named
from dpdist.pca.components import Components, components
from dpdist.pca.rounding import Rounding, rounding
from dpdist.pca.scree import Scree, Values, above_noise, noise_law, scree
from dpdist.pca.shortened import shortened
from dpdist.pipeline.release import stage_words
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours
from dpdist.release.artefact import Release
from dpdist.report.figures import draw_images, draw_loadings, draw_scree
from dpdist.report.numbers import common_power, digits, in_units, number
from dpdist.report.text import ALONE, SURE, between
from dpdist.storage.store import AnyStore, store_at

_PICTURED = 24
"""So many components are drawn as images; the table lists all."""
_LOADED = 6
"""So many are drawn as loadings."""
_DEFAULT = 10
_EXPONENT = 700.0
"""Largest x whose ``exp(x)`` is written as a number."""


@dataclass(frozen=True)
class Shape:
    """How the entries of a component are arranged as an image.

    Parameters
    ----------
    height, width
        In pixels; their product is the number of columns.
    """

    height: int
    width: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read ``28x28``.

        Raises
        ------
        UsageError
            If it is something else.
        """
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
) -> None:
    """Write the page about a release; a page that is there is replaced.

    Parameters
    ----------
    release
        What it is about.
    path
        Where it goes.
    count
        Number of components; None takes those above the noise, and at least ten.
    image
        Draw the components as images of this shape instead of as loadings.
    ledger
        The ledger that was charged, to show its budget and what is left.

    Raises
    ------
    UsageError
        If there are not so many components, the image has another number of pixels, the ledger does not know of the
        release, or matplotlib is not installed.
    DataError
        If the page cannot be written.
    """
    d = release.bound.columns
    if image is not None and image.height * image.width != d:
        raise UsageError(
            f"An image of {image.height} x {image.width} pixels does not show {d} columns.", parameter="image"
        )
    if ledger is not None and ledger.record(release.release_id) is None:
        raise UsageError(
            f"The ledger does not know of {release.release_id}: name the one that was charged.", parameter="ledger"
        )
    if ledger is not None:
        ledger.require_current()  # else what is said to be left is not
    found = components(release, count or _default_count(release))
    seen = None if found.eigenvalues is None else scree(release, found.eigenvalues)
    page = render(
        "dpdist.report",
        "release.html",
        version=__version__,
        release=release,
        guarantee=release.guarantee,
        promise=None if release.guarantee is None else _promise(release.guarantee),
        balance=None if ledger is None else ledger.balance(),
        ledger_head=None if ledger is None else ledger.head,
        mechanism=mechanism_named(release.mechanism).info,
        noise=_noise(release),
        eigenvalues=None if found.eigenvalues is None else _eigenvalues(found, found.eigenvalues, seen),
        scree=None if seen is None else _scree(seen),
        shortened=shortened(release),
        stage=stage_words(release).strip(),
        rounding=_rounding(rounding(release)),
        shown=_shown(release, found, seen, image),
        edge_known=noise_law(release) is not None,
    )
    place, private = store_at(path), not release.private_as_claimed
    place.parent.replace(str(place).rpartition("/")[2], page.encode(), "report", private=private)


def _default_count(release: Release) -> int:
    if release.subspace is not None:
        return len(release.subspace)
    few = min(_DEFAULT, release.bound.columns)
    try:
        return max(few, len(above_noise(release).components))
    except UsageError:  # none stands above it, or nobody knows where it ends
        return few


def _promise(guarantee: Guarantee) -> dict[str, object]:
    loss, squared = guarantee.loss, guarantee.mu_squared
    return {
        "rows_public": guarantee.neighbours is Neighbours.REPLACE_ONE,
        "epsilon": f"{loss.epsilon:g}",
        "delta": number(loss.delta),
        "factor": number(float(f"{math.exp(loss.epsilon):.3g}")) if loss.epsilon < _EXPONENT else None,
        "accuracy": f"{100 * _accuracy(guarantee):.1f}",
        "mu": None if squared is None else f"{math.sqrt(squared):.6g}",
        "integer_exact": guarantee.arithmetic is Arithmetic.INTEGER_EXACT,
    }


def _accuracy(guarantee: Guarantee) -> float:
    """Return the largest probability of telling two neighbouring tables apart, both as likely beforehand.

    It is ``(1 + TV) / 2``: ``(e^epsilon + delta) / (1 + e^epsilon)`` for (epsilon, delta) (Kairouz, Oh & Viswanath
    2017, Theorem 2.1), and ``Phi(mu/2)`` for a Gaussian release (Dong, Roth & Su 2022, section 2.2).
    """
    share = 1 / (1 + math.exp(-guarantee.loss.epsilon))
    general = share + guarantee.loss.delta * (1 - share)
    return general if guarantee.mu_squared is None else min(general, float(ndtr(math.sqrt(guarantee.mu_squared) / 2)))


def _noise(release: Release) -> dict[str, object]:
    bound, variance, count = release.bound, release.noise.variance_off_diagonal, release.row_count
    said: dict[str, object] = {
        "clip_norm": exactly(bound.clip_norm),
        "unit": number(bound.unit),
        "deviation": None,
        "per_row": "",
    }
    if variance is not None:
        deviation = math.sqrt(variance) * bound.unit**2
        said["deviation"] = number(deviation)
        if count is not None and count > 0:
            said["per_row"] = Markup("; {} per row").format(number(deviation / count))
    return said


def _rounding(found: Rounding | None) -> Markup | None:
    if found is None:
        return None
    said = Markup("moves eigenvalues by {} at most").format(number(found.error))
    if found.share is not None:
        said += Markup(", {} % of the noise").format(digits(float(f"{100 * found.share:.2g}")))
    if found.shift:
        said += Markup("; raises all of them by the same besides, {} at most").format(number(found.shift))
    return said


def _eigenvalues(found: Components, eigenvalues: Values, seen: Scree | None) -> dict[str, object]:
    """Return the table of eigenvalues: alone, or beside the noise where its edge is known."""
    unit = " per row" if found.per_row else ""
    if seen is None:
        power = common_power(eigenvalues.tolist())
        head = ["component", Markup("eigenvalue{}{}").format(unit, in_units(power))]
        rows = [[str(i + 1), digits(value / 10.0**power)] for i, value in enumerate(eigenvalues)]
        return {"head": head, "rows": rows, "faint": ()}
    power = common_power([*seen.eigenvalues.tolist(), *seen.intervals.ravel().tolist()])
    one = 10.0**power
    rows = []
    for i, (value, strength, cosine) in enumerate(
        zip(seen.eigenvalues, seen.strengths, seen.squared_cosines, strict=True)
    ):
        low, high = seen.intervals[i]
        clear = (digits(strength / one), f"{cosine:.3f}") if strength else ("-", "drowned")
        ends = between(seen.cosine_intervals[i]).replace("..", "…")
        rows.append([
            str(i + 1), digits(value / one), clear[0], f"{digits(low / one)} … {digits(high / one)}", clear[1], ends,
        ])  # fmt: skip
    head = [
        "component", "eigenvalue", "without the noise", "exact one of shortened rows in", "squared cosine", "between",
    ]  # fmt: skip
    return {
        "head": head,
        "rows": rows,
        "faint": np.flatnonzero(seen.strengths == 0).tolist(),
        "of": unit or " of the sum over all rows",
        "units": in_units(power),
        "edge": digits(seen.edge / one),
    }


def _scree(seen: Scree) -> dict[str, object]:
    png = io.BytesIO()
    draw_scree(seen, png)
    return {
        "above": seen.above,
        "count": counted(len(seen.eigenvalues), "component"),
        "chance": f"{1 - seen.confidence:.2g}",
        "confidence": f"{seen.confidence:g}",
        "words": f"{ALONE} {SURE}",
        "picture": base64.b64encode(png.getvalue()).decode(),
    }


def _shown(release: Release, found: Components, seen: Scree | None, image: Shape | None) -> dict[str, object]:
    """Return the picture of the components, and the words below it."""
    png = io.BytesIO()
    shown = found.components[: _PICTURED if image is not None else _LOADED]
    if image is not None:
        draw_images(shown.reshape(len(shown), image.height, image.width), png)
        words = "Components as images: red is positive, blue negative."
    else:
        draw_loadings(shown, release.names, png)
        words = "The largest loadings of the first components."
    drowned = [] if seen is None else [str(i + 1) for i in np.flatnonzero(seen.strengths[: len(shown)] == 0)]
    if drowned:
        words += f" Drowned, and perhaps nothing but noise: {', '.join(drowned)}."
    return {"words": words, "picture": base64.b64encode(png.getvalue()).decode()}
