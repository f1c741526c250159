"""One page about one release, for people: what is promised, how the budget stands, and what can be seen over the noise.

The page is a single HTML file that loads nothing from anywhere. All of it is post-processing of public numbers: the
release, and of the ledger only the budget and what is left of it. Names of columns come from whoever made the files
and are escaped.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from scipy.special import ndtr

from dpdist._util.paths import AnyPath, local
from dpdist._util.text import counted, exactly
from dpdist._version import __version__
from dpdist.errors import UsageError
from dpdist.ledger.ledger import Ledger
from dpdist.mechanisms.registry import mechanism_named
from dpdist.pca.components import Components, components
from dpdist.pca.scree import Scree, above_noise, noise_law, scree
from dpdist.pca.shortened import shortened
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours
from dpdist.release.artefact import Release
from dpdist.report.figures import draw_images, draw_loadings, draw_scree
from dpdist.report.numbers import common_power, digits, in_units, number
from dpdist.report.text import ALONE, SURE, between
from dpdist.storage.atomic import replace_file

_PICTURED = 24
"""So many components are drawn as images; the table lists all."""
_LOADED = 6
"""So many are drawn as loadings."""
_DEFAULT = 10
_EXPONENT = 700.0
"""Largest x whose ``exp(x)`` is written as a number."""

_STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --faint: #59636e; --line: #d1d9e0; --good: #1a7f37; --bad: #b3261e;
  --weak: #9a6700; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); max-width: 54rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.status { display: inline-block; padding: .1rem .7rem; border-radius: 1rem; color: #fff; font-weight: 600; }
.private { background: var(--good); } .weak { background: var(--weak); } .not { background: var(--bad); }
.faint { color: var(--faint); } code { font-size: .92em; overflow-wrap: anywhere; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem 1.1rem .2rem 0; vertical-align: top; }
td.n { white-space: nowrap; }
tr + tr { border-top: 1px solid var(--line); } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
.bar { background: #eaeef2; border-radius: .3rem; height: .8rem; max-width: 30rem; }
.bar div { background: #0969da; border-radius: .3rem; height: .8rem; }
.drowned { color: var(--faint); }
"""


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
    path: AnyPath,
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
    found = components(release, count or _default_count(release))
    seen = None if found.eigenvalues is None else scree(release, found.eigenvalues)
    parts = [
        _head(release),
        _promise(release),
        _unprotected(),
        "" if ledger is None else _budget(ledger),
        _noise(release),
        _eigenvalues(found, seen),
        _lengths(release),
        _components(release, found, seen, image),
        _citation(release),
    ]
    title = escape(f"dpdist release {release.release_id}")
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{''.join(parts)}\n</body>\n</html>\n"
    )
    replace_file(local(path), page.encode(), "report", private=not release.private_as_claimed)


def _default_count(release: Release) -> int:
    if release.subspace is not None:
        return len(release.subspace)
    few = min(_DEFAULT, release.bound.columns)
    try:
        return max(few, len(above_noise(release).components))
    except UsageError:  # none stands above it, or nobody knows where it ends
        return few


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False, faint: Sequence[int] = ()
) -> str:
    kind = ' class="n"' if numbers else ""
    lines = ["<tr>" + "".join(f"<th{kind}>{cell}</th>" for cell in head) + "</tr>"] if head else []
    for i, row in enumerate(rows):
        shade = ' class="drowned"' if i in faint else ""
        lines.append(f"<tr{shade}>" + "".join(f"<td{kind}>{cell}</td>" for cell in row) + "</tr>")
    return '<div class="wide"><table>' + "".join(lines) + "</table></div>\n"


def _picture(png: io.BytesIO, words: str) -> str:
    data = base64.b64encode(png.getvalue()).decode()
    return f'<figure><img alt="{escape(words, quote=True)}" src="data:image/png;base64,{data}"></figure>\n'


def _head(release: Release) -> str:
    kind, status, warning = "private", release.status, "".join(f"<p>{escape(said)}</p>" for said in release.cautions)
    if not release.private_as_claimed:
        kind, warning = "not", "<p><strong>Do not publish it, and do not rely on it for privacy.</strong></p>"
    elif warning:
        kind, status = "weak", f"{status}, but hardly"
    what = "components" if release.subspace is not None else "second moment"
    size = f"{release.bound.columns} columns" + ("" if release.rows is None else f", {release.rows} rows")
    return (
        f"<h1>A private {what}</h1>\n<p class='faint'><code>{escape(release.release_id)}</code> · "
        f"{escape(release.mechanism)} · {size}</p>\n"
        f"<p><span class='status {kind}'>{escape(status)}</span></p>{warning}\n"
    )


def _promise(release: Release) -> str:
    guarantee = release.guarantee
    if guarantee is None:
        return "<h2>What is promised</h2>\n<p>Nothing is proved of this release. It was made for comparison.</p>\n"
    loss, public = guarantee.loss, guarantee.neighbours is Neighbours.REPLACE_ONE
    change = (
        "exchanging any one row for any other (how many rows there are is public)"
        if public
        else "adding or removing any one row (how many rows there are is private too)"
    )
    factor = (
        number(float(f"{math.exp(loss.epsilon):.3g}")) if loss.epsilon < _EXPONENT else f"e<sup>{loss.epsilon:g}</sup>"
    )
    chance = "" if not loss.delta_atto else f", {number(loss.delta)} added to either probability"
    formula = f"Pr[M(X) ∈ S] ≤ e<sup>{loss.epsilon:g}</sup> Pr[M(X') ∈ S]" + (
        f" + {number(loss.delta)}" if loss.delta else ""
    )
    rows = [
        ("neighbouring tables X, X'", escape(guarantee.neighbours.value)),
        ("for all sets S of results", formula),
        ("proof", escape(guarantee.proof)),
        ("arithmetic", _arithmetic(guarantee.arithmetic)),
    ]
    if guarantee.mu_squared is not None:
        rows.insert(2, ("Gaussian differential privacy", f"μ = {math.sqrt(guarantee.mu_squared):.6g}"))
    if release.claim is not None and not release.private_as_claimed:
        rows.insert(0, ("claimed by its authors", escape(str(release.claim))))
    return (
        "<h2>What is promised</h2>\n"
        f"<p>Whatever anybody knows or will ever know besides, {change} makes no set of results of this release "
        f"more than {factor} times as likely or as unlikely{chance}. Somebody who has to tell two such tables "
        "apart from it, at even odds, is right in at most "
        f"{100 * _accuracy(guarantee):.1f} % of all cases; guessing is right in 50 %."
        "</p>\n" + _table((), rows)
    )


def _accuracy(guarantee: Guarantee) -> float:
    """Return the largest probability of telling two neighbouring tables apart, both as likely beforehand.

    It is ``(1 + TV) / 2``: ``(e^epsilon + delta) / (1 + e^epsilon)`` for (epsilon, delta) (Kairouz, Oh & Viswanath
    2017, Theorem 2.1), and ``Phi(mu/2)`` for a Gaussian release (Dong, Roth & Su 2022, section 2.2).
    """
    share = 1 / (1 + math.exp(-guarantee.loss.epsilon))
    general = share + guarantee.loss.delta * (1 - share)
    return general if guarantee.mu_squared is None else min(general, float(ndtr(math.sqrt(guarantee.mu_squared) / 2)))


def _arithmetic(arithmetic: Arithmetic) -> str:
    if arithmetic is Arithmetic.INTEGER_EXACT:
        return "integer-exact: the proof is about the very numbers that were computed"
    return "ideal-real: the proof is about real numbers, which the machine approximates"


def _unprotected() -> str:
    return (
        "<p class='faint'>Not protected: what is true of the population whether or not a row takes part; a person who "
        "owns several rows, beyond that many times the loss; the clip norm, a public centre and the names of the "
        "columns, which must not come from the data; the rows themselves and scores computed from them.</p>\n"
    )


def _budget(ledger: Ledger) -> str:
    ledger.require_current()  # else what is said to be left is not
    balance = ledger.balance()
    return (
        "<h2>Budget of this table</h2>\n"
        f"<p>The budget is {escape(str(balance.budget))}. The guarantee of all releases of this table: "
        f"{escape(balance.promise)}. So far: {escape(str(balance))}.</p>\n"
        f"<div class='bar'><div style='width:{100 * balance.left.share:.1f}%'></div></div>\n"
        f"<p class='faint'>Head of the ledger: <code>{escape(ledger.head)}</code></p>\n"
    )


def _noise(release: Release) -> str:
    statement = mechanism_named(release.mechanism).statement
    bound = release.bound
    rows = [
        ("mechanism", escape(statement.name)),
        ("law", escape(statement.law)),
        ("calibrated to", escape(statement.sensitivity)),
        ("rows were bounded to", f"Euclidean norm {exactly(bound.clip_norm)}, on a grid of {number(bound.unit)}"),
        ("published by", escape(statement.reference)),
    ]
    if release.noise.variance_off_diagonal is not None:
        deviation = math.sqrt(release.noise.variance_off_diagonal) * bound.unit**2
        count = release.row_count
        per_row = "" if count is None or count <= 0 else f"; {number(deviation / count)} per row"
        rows.insert(2, ("standard deviation", f"{number(deviation)} of an entry off the diagonal{per_row}"))
    return "<h2>The noise</h2>\n" + _table((), rows)


def _eigenvalues(found: Components, seen: Scree | None) -> str:
    if found.eigenvalues is None:
        return "<h2>Components</h2>\n<p>The mechanism releases directions and nothing about how strong they are.</p>\n"
    unit = " per row" if found.per_row else ""
    if seen is None:
        power = common_power(found.eigenvalues.tolist())
        plain = [(str(i + 1), digits(value / 10.0**power)) for i, value in enumerate(found.eigenvalues)]
        head = ("component", f"eigenvalue{unit}{in_units(power)}")
        return "<h2>Components</h2>\n" + _table(head, plain, numbers=True)
    png = io.BytesIO()
    draw_scree(seen, png)
    power = common_power([*seen.eigenvalues.tolist(), *seen.intervals.ravel().tolist()])
    one = 10.0**power
    rows: list[tuple[str, ...]] = []
    drowned: list[int] = []
    for i, (value, strength, cosine) in enumerate(
        zip(seen.eigenvalues, seen.strengths, seen.squared_cosines, strict=True)
    ):
        low, high = seen.intervals[i]
        clear = (digits(strength / one), f"{cosine:.3f}") if strength else ("-", "drowned")
        ends = between(seen.cosine_intervals[i]).replace("..", "…")
        rows.append((
            str(i + 1), digits(value / one), clear[0], f"{digits(low / one)} … {digits(high / one)}", clear[1], ends,
        ))  # fmt: skip
        drowned += [] if strength else [i]
    heads = (
        "component", "eigenvalue", "without the noise", "exact one of shortened rows in", "squared cosine", "between",
    )  # fmt: skip
    return (
        "<h2>What stands above the noise</h2>\n"
        f"<p>Eigenvalues are{unit or ' of the sum over all rows'}{in_units(power)}. {seen.above} of "
        f"{counted(len(rows), 'component')} stand{'s' * (seen.above == 1)} above the edge of the noise, "
        f"{digits(seen.edge / one)}, which it passes by itself with probability {1 - seen.confidence:.2g} at most. "
        "Others are drowned. Each end of the intervals of eigenvalues holds for all of them at once with confidence "
        f"{seen.confidence:g}.</p>\n<p>{ALONE} {SURE}</p>\n"
        + _picture(png, "Eigenvalues over the edge of the noise")
        + _table(heads, rows, numbers=True, faint=drowned)
    )


def _lengths(release: Release) -> str:
    found = shortened(release)
    warning = f"<p><strong>{escape(found.warning())}</strong></p>\n" if found.warning() else ""
    return f"<p>{escape(found.words())}</p>\n{warning}"


def _components(release: Release, found: Components, seen: Scree | None, image: Shape | None) -> str:
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
    return f"<h2>The components</h2>\n<p>{words}</p>\n" + _picture(png, words)


def _citation(release: Release) -> str:
    statement = mechanism_named(release.mechanism).statement
    head = ""
    if release.ledger_head is not None:
        head = f" Ledger head at its draw: <code>{escape(release.ledger_head)}</code>."
    law = noise_law(release)
    edge = (
        "" if law is None else " Edge and cosines: Benaych-Georges &amp; Nadakuditi (2011); Tracy &amp; Widom (1996)."
    )
    return (
        "<h2>How to cite</h2>\n"
        f"<p>dpdist {escape(__version__)}, release <code>{escape(release.release_id)}</code>, mechanism "
        f"{escape(statement.name)} ({escape(statement.reference)}).{edge}{head}</p>\n"
        "<p class='faint'>Check it: <code>dpdist ledger verify LEDGER --release RELEASE</code>. This page was computed "
        "from the release alone, at no cost.</p>\n"
    )
