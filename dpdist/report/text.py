"""Mechanisms, forecasts, costs and components as text for a terminal."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpdist.answers.alignment import SHOWN, Alignment
from dpdist.answers.bias import ClippedRows, clipped_rows
from dpdist.answers.correlation import Correlation
from dpdist.answers.forecast import GOOD, Forecast, Person
from dpdist.answers.noise_edge import CONFIDENCE
from dpdist.core.mechanisms.info import MechanismInfo, Output
from dpdist.core.naming import parameter, step
from dpdist.core.privacy.checks import cautions_message
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.artefact import Release
from dpdist.core.release.plan import Plan, proved
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.text import AMOUNTS, counted, listed, wrapped
from dpdist.literature.orbit_forecast import FAILURE, OrbitForecast

_FIELDS = ("output", "law", "sensitivity", "claimed", "proved", "arithmetic", "cost", "reference")
_GAP = "  "
_SHOWN = 25
_LOADINGS = 5
_NARROWEST = 20
ALIGNED = (
    "The alignment of a component is its squared cosine with the exact one: 1 is the same direction, 0 a right angle."
)
SURE = "It is between the two ends in at least nine of ten releases."
_UNDISTINGUISHED = (
    "The alignment is unknown if an eigenvalue is too close to the noise or to other eigenvalues: the component may "
    "point anywhere."
)


def comparison(statements: Sequence[MechanismInfo], others: int = 0) -> str:
    """Return the claim and the proof of each mechanism, and the number of others, as wide as the terminal."""
    lines = []
    for info in statements:
        kind = "positive semidefinite, " * info.semidefinite
        lines.append(wrapped(f"{info.name} ({info.output}, {kind}{info.arithmetic})", "", "  "))
        for word, text in (("claimed", info.claimed), ("proved", info.proved)):
            lines.append(wrapped(text, f"  {word:<8} ", " " * 11))
        lines.append("")
    if others:
        lines.append(wrapped(f"These are recommended. {step('mechanisms', all='')} lists {others} others."))
    return "\n".join(lines).rstrip()


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    wrapped_cells = [textwrap.wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, wrapped_cells))
    padded = [lines + [""] * (height - len(lines)) for lines in wrapped_cells]
    return "\n".join(
        _GAP.join(f"{line:<{width}}" for line, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*padded, strict=True)
    )


def alignment(result: Alignment, lengths: ClippedRows) -> str:
    """Return a table of eigenvalues, and of the alignment of components with the exact ones."""
    heads = ("no.", "eigenvalue", "without noise", "true value, 95 %", "alignment", "between")
    rows: list[tuple[str, ...]] = []
    for i, value in enumerate(result.eigenvalues[:_SHOWN]):
        cells = ("-", "-", "unknown", "-")
        if result.group_of(i) is not None:
            low, high = result.intervals[i]
            cosine = f"{result.squared_cosines[i]:.3f}{mark(result, i)}"
            ends = between(result.cosine_intervals[i])
            cells = f"{result.strengths[i]:.4g}", f"{low:.4g} .. {high:.4g}", cosine, ends
        rows.append((str(i + 1), f"{value:.6g}", *cells))
    rows += _dots(len(result.eigenvalues), heads)
    # heads are wrapped to fit 80 columns
    narrow = [*heads[:2], *(max(head.split(), key=len) for head in heads[2:])]
    widths = [max(len(cell) for cell in column) for column in zip(narrow, *rows, strict=True)]
    legend = [
        lengths.unknown
        and f"A true value is that of the {lengths.noun}; for the rows as they are it is {lengths.unknown}.",
        "" if result.rounding is None else result.rounding.describe(),
        f"{ALIGNED} {SURE}" if result.counted else "",
        _UNDISTINGUISHED if result.counted < len(result.eigenvalues) else "",
    ]
    table = [_row(row, widths) for row in (heads, *rows)]
    return "\n".join([*table, wrapped(count_text(result)), wrapped(" ".join(filter(None, legend)))])


def _dots(count: int, heads: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a row that represents omitted rows, if there are any."""
    return [("...", *[""] * (len(heads) - 1))] if count > _SHOWN else []


def mark(result: Alignment, component: int) -> str:
    """Return a note for the number of a group of components; empty for a single component."""
    group = result.group_of(component)
    return "" if group is None or len(group) == 1 else f" ({group.start + 1}-{group.stop})"


def count_text(result: Alignment) -> str:
    """Return how many components can be distinguished from noise, and which not from one another."""
    if result.counted:
        text = (
            f"{counted(result.counted, 'component')} can be distinguished from noise and from the rest of the table. "
            "That is true of these rows: where columns are independent, a sample has such components, too."
        )
        for group in result.groups:
            if len(group) > 1 and group.start < len(result.eigenvalues):
                cosine = result.squared_cosines[group.start]
                text += (
                    f" Components {group.start + 1} to {group.stop} cannot be told apart: their alignment is "
                    f"that of the space they span, {cosine:.3f} on average."
                )
        return text
    if result.edge is None:
        return "No single component can be distinguished from noise and from its neighbours."
    text = "No component can be distinguished from noise."
    if result.eigenvalues.size and result.eigenvalues[0] > result.edge:
        text = (
            "No single component can be distinguished, but there is more than noise: the largest eigenvalue of noise "
            f"alone is below {result.edge:.6g} (confidence {CONFIDENCE:g})."
        )
    return f"{text} A larger epsilon or more rows may reveal some: {step('forecast')} estimates how many, at no cost."


def _without_loadings(result: Alignment) -> str:
    """Return a sentence about counted components with unknown loadings, or nothing."""
    if result.loadings is None:
        return ""
    indices = range(min(result.counted, len(result.loadings), SHOWN))
    names = [str(i + 1) for i in indices if not np.isfinite(result.loadings[i]).any()]
    more = (
        f"Loadings beyond component {SHOWN} are not shown." if min(result.counted, len(result.loadings)) > SHOWN else ""
    )
    if not names:
        return more
    noun = "component" if len(names) == 1 else "components"
    mixed = f"Loadings of {noun} {listed(names)} are not shown: the noise may have mixed them with a neighbour."
    return f"{mixed} {more}".rstrip()


def loadings(vectors: npt.NDArray[np.float64], result: Alignment, names: Sequence[str]) -> str:
    """Return a table of the largest loadings of components, and name those with unknown loadings."""
    if result.loadings is None:
        return ""
    rows = [
        (str(i + 1), largest_loadings(vector, ends, names))
        for i, (vector, ends) in enumerate(zip(vectors, result.loadings, strict=True))
        if np.isfinite(ends).any()
    ]
    untold = _without_loadings(result)
    if not rows:
        return wrapped(untold)
    first = max(len(number) for number, _ in rows)
    width = max(shutil.get_terminal_size().columns - first - len(_GAP), _NARROWEST)
    lines = [_row(row, (first, width)) for row in rows]
    legend = (
        "Largest loadings, with intervals that contain those of the exact matrix of these rows in at least nine of ten "
        f"releases with respect to the noise. {untold}"
    )
    return "\n".join([wrapped(legend.rstrip()), *lines])


def largest_loadings(vector: npt.NDArray[np.float64], ends: npt.NDArray[np.float64], names: Sequence[str]) -> str:
    """Return the largest loadings of a component by name, with their known intervals."""
    entries = []
    for j in np.argsort(-np.abs(vector), kind="stable")[:_LOADINGS]:
        if vector[j]:
            low, high = 100 * ends[j]  # rounded outwards
            interval = f" ({np.floor(low) / 100:+.2f} .. {np.ceil(high) / 100:+.2f})" if np.isfinite(low) else ""
            entries.append(f"{names[j]} {vector[j]:+.2f}{interval}")
    return ", ".join(entries)


def standardised(result: Correlation, release: Release) -> str:
    """Return a table of components of a correlation matrix, with shares of variance and largest loadings."""
    names, lengths = release.names, clipped_rows(release)
    heads, directions = (
        ("no.", "share of variance", "between", "alignment", "largest loadings"),
        result.alignment,
    )
    rows: list[tuple[str, ...]] = [heads]
    for i, (share, vector) in enumerate(zip(result.shares, result.components.components[:_SHOWN], strict=False)):
        ends = "-" if result.intervals is None or np.isnan(result.intervals[i, 0]) else between(result.intervals[i])
        reach, cosine, shown = np.full((len(vector), 2), np.nan), "-", True
        if directions is not None:
            cosine = "unknown"
            if directions.group_of(i) is not None:
                cosine = f"{directions.squared_cosines[i]:.3f}{mark(directions, i)}"
                cosine += f" ({between(directions.cosine_intervals[i])})"
            if directions.loadings is not None:
                reach = directions.loadings[i]
                shown = bool(np.isfinite(reach).any())
        largest = largest_loadings(vector, reach, names) if shown else "-"
        rows.append((str(i + 1), f"{share:.3f}", ends, cosine, largest))
    rows += _dots(len(result.shares), heads)
    widths = max(len(row[0]) for row in rows), 8, 14, 14
    width = max(shutil.get_terminal_size().columns - sum(widths) - len(widths) * len(_GAP), _NARROWEST)
    lines = [_row(row, (*widths, width)) for row in rows]
    legend = (
        f"Components of the correlation matrix {lengths.describe()}, with columns standardised by released variances. "
        "A share, an alignment or a loading of these rows is between its ends in about nine of ten releases or more, "
        f"with respect to the noise{lengths.unknown and f'; for the rows as they are it is {lengths.unknown}'}."
    )
    if directions is not None:
        legend += f" {count_text(directions)} {ALIGNED} {_without_loadings(directions)}".rstrip()
    if result.left_out:
        were = "was" if len(result.left_out) == 1 else "were"
        why = ", or the first category of a variable" if result.drop_first else ""
        legend += (
            f" {counted(len(result.left_out), 'column')} {were} omitted (not above the noise{why}): "
            f"{listed(result.left_out)}. {OF_ALL}"
        )
    return "\n".join([*lines, wrapped(legend)])


OF_ALL = (
    "A share is of the variance of all columns, each of which counts once, also below the noise; an alignment is with "
    "the component of the others."
)


def between(ends: npt.NDArray[np.float64]) -> str:
    """Return an interval of squared cosines or shares, rounded outwards.

    >>> between(np.array([0.1239, 0.8761])), between(np.array([0.0, 1.0]))
    ('0.123 .. 0.877', '0 .. 1')
    """
    low, high = math.floor(1000 * ends[0]) / 1000, math.ceil(1000 * ends[1]) / 1000
    return f"{low:.3g} .. {high:.3g}"


def forecast(result: Forecast) -> str:
    """Return a forecast as text: noise, components, and a comparison of mechanisms."""
    rounding = []
    if result.rounding is not None and result.rounding_share is not None:
        share = f"{100 * result.rounding_share:.2g} % of the noise, grid bits {result.plan.bound.grid_bits}"
        rounding = [f"  error of rounding   {result.rounding:.4g} at most ({share})"]
    lines = [
        wrapped(_heading(result.request, result.plan.loss, result.rows, result.columns) + _person_text(result.person)),
        f"Per row, in squared units of the rows (the squared clip norm is {result.largest:g}):",
        f"  noise on an entry   {result.error:.4g} (standard deviation)",
        f"  edge of the noise   {result.edge:.4g} (confidence {CONFIDENCE})",
        *rounding,
        f"  above the noise     isolated components with a variance above {result.threshold:.4g}",
        "",
    ]
    heads = ("component", "variance") if result.guessed else ("share of C²", "variance")
    rows = [(*heads, "alignment", "rows needed", f"rows for {GOOD:g}")]
    for i, component in enumerate(result.expected):
        name = str(i + 1) if result.guessed else f"{100 * component.variance / result.largest:g} %"
        cosine = f"{component.squared_cosine:.3f}" if component.told else "unknown"
        see, good = (
            "never" if count is None else str(count) for count in (component.rows_to_see, component.rows_for_good)
        )
        rows.append((name, f"{component.variance:.4g}", cosine, see, good))
    lines += aligned(rows)
    lines.append(wrapped(ALIGNED))
    if any(component.told and component.rows_for_good is None for component in result.expected):
        shared = "Components of equal variance share the alignment of the space they span. Never: no number of rows"
        lines.append(wrapped(f"{shared} tells one of them from the other."))
    if result.guessed:
        lines.append(f"{result.seen} of {len(result.expected)} components will be distinguished from noise.")
    if result.nothing:
        lines.append(wrapped(result.nothing))
    if result.cautions:
        lines += ["", wrapped(cautions_message(result.cautions).strip())]
    lines += _trade_lines(result)
    if result.bingham_gap is not None and (words := _bingham_words(result, result.bingham_gap)):
        lines += ["", wrapped(words)]
    lines += ["", *aligned([("mechanism", "least variance"), *((n, f"{v:.4g}") for n, v in result.alternatives)])]
    return "\n".join(lines)


def _bingham_words(result: Forecast, gap: float) -> str:
    """Return where one component of bingham is better; empty if the guess has more than one that stands out."""
    first, second = ([component.variance for component in result.expected] + [0.0])[:2] if result.guessed else (0, 0)
    if second > gap or first - second > gap:
        return ""
    here = f" By this guess the gap is {first - second:.4g}." if result.guessed else ""
    return (
        "If you need one component only, and one eigenvalue stands over a flat rest, bingham captures more than "
        f"two-sided-wishart where the gap between the two is below about {gap:.4g} per row, and less above.{here}"
    )


def _person_text(person: Person) -> str:
    """Return sentences about the privacy unit; empty if each row is a unit."""
    if person.max_rows is None:
        return " Protects all rows of a privacy unit; the clip norm is that of their second moment."
    rows = counted(person.max_rows, "row")
    if person.max_periods is None:
        return "" if person.max_rows == 1 else f" Protects a privacy unit of up to {rows} as a whole."
    periods = counted(person.max_periods, "period")
    return (
        f" Protects a privacy unit of up to {rows} in each of up to {periods} as a whole. The figures apply to a "
        f"release of one period, where it counts as {counted(person.counted_once, 'row')}; in a sum of {periods} or "
        f"more, and with weights, it counts as {person.counted_at_most}."
    )


def orbit_forecast(result: OrbitForecast) -> str:
    """Return the error bounds of an answer on an orbit as text."""
    lines = [
        wrapped(_heading(result.request, result.request.loss, result.rows, result.columns)),
        *_subspace_lines(result),
        "Error of the matrix per row, Frobenius norm, in squared units of the rows:",
        f"  at most             {result.upper:.4g} (confidence {1 - FAILURE:g})",
        f"  about               {result.about:.4g} (if the signal is strong; the error of the real part is smaller)",
        f"  lower bound         {result.least:.4g}",
        f"  of answering zero   {result.zero:.4g}",
        wrapped(
            "The lower bound applies to every mechanism with this loss, for some moment with the guessed spectrum: its "
            "error is larger with probability 1/2, measured from the matrix with the released eigenvalues and the true "
            "eigenvectors."
        ),
    ]
    return "\n".join(lines)


def _subspace_lines(result: OrbitForecast) -> list[str]:
    """Return what the released components capture, if the spectrum singles them out."""
    if result.captured is None or result.distance is None:
        return []
    return [
        f"Of the first {counted(result.components or 0, 'component')} of the release, if the signal is strong:",
        f"  captured variance   {100 * result.captured:.4g} % of what the best ones capture",
        f"  |P - P'|            {result.distance:.3g} (projectors, Frobenius norm)",
    ]


def _heading(request: ReleaseRequest, loss: PrivacyLoss, rows: int, columns: int) -> str:
    return f"{request.mechanism}, {loss} under {request.neighbours}, n = {rows}, d = {columns}."


def _trade_lines(result: Forecast) -> list[str]:
    """Return the cost of clip norms for guessed norms, or a hint to guess them."""
    if not result.trades:
        text = "Noise grows with the square of the clip norm. For the cost of a smaller one, give"
        return ["", wrapped(f"{text} {parameter('norms')}, a public guess of the norms of rows.")]
    counts = tuple(result.trades[0].losses)
    rows = [("clip norm", "clipped", "squares lost", "noise", *(f"K = {k}" for k in counts))]
    for trade in result.trades:
        shares = (f"{100 * share:.3g} %" for share in (trade.longer, trade.lost, trade.noise))
        rows.append((f"{trade.clip_norm:g}", *shares, *(f"{trade.losses[k]:.3f}" for k in counts)))
    least = [f"{min(result.trades, key=lambda t: t.losses[k]).clip_norm:g} for K = {k}" for k in counts]
    legend = (
        "If norms are as guessed. clipped: share of clipped rows; squares lost: share of the sum of squared norms that "
        "clipping removes; noise: its edge relative to the remaining mean squared norm; K: the loss "
        f"of captured variance of K components, by a rule of thumb. Least: {', '.join(least)}. If the entire matrix "
        "matters (Frobenius error), choose a clip norm that few rows exceed."
    )
    return ["", *aligned(rows), wrapped(legend)]


def parts(plan: Plan) -> str:
    """Return the costs of the parts of a release that chooses its clip norm or scale."""
    request = plan.request
    columns = "centre and scale of each column, by a private histogram of it"
    norms = "its clip norm, by a private histogram of the norms"
    chosen = ", and then ".join(columns if choice == "scale" else norms for choice in request.chooses)
    chosen += ", and counts the rows that it clips" * ("clipped rows" in plan.stages)
    units = "in units of the clip norm" if "clip norm" in request.chooses else "in scaled units"
    return wrapped(
        f"The release first chooses {chosen}: {plan.share_message}. The figures describe the subsequent moment, at "
        f"{plan.loss}, {units}. {'Both' if len(plan.stages) == 1 else 'All'} together cost "
        f"{proved(plan.guarantee).loss}."
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(1, *(len(row[i]) for row in rows)) for i in range(len(rows[0]))]
    return [_row(row, widths) for row in rows]


def details(info: MechanismInfo) -> str:
    """Return the description of one mechanism with its options."""
    facts = [("distribution" if field == "law" else field, getattr(info, field)) for field in _FIELDS]
    facts.append(("delta", info.delta))
    if info.output is Output.SECOND_MOMENT:
        facts.append(("semidefinite", "yes: no negative eigenvalue" if info.semidefinite else "no"))
    if info.advice:
        facts.append(("use", info.advice))
    if info.replacement:
        facts.append(("instead", f"{info.replacement}, if the claim is not proved"))
    lines = [info.name, *(wrapped(text, f"  {field:<12} ", " " * 15) for field, text in facts)]
    for option in info.options:
        default = "required" if option.default is None else f"default {option.default or 'none'}"
        choices = f" ({', '.join(option.choices)})" if option.choices else ""
        text = f"{option.kind}{choices}, {default}: {option.meaning}"
        lines.append(wrapped(text, f"  {parameter(f'options.{option.name}')}  ", " " * 15))
    return "\n".join(lines)


def amount(count: int) -> str:
    """Return a number of bytes, rounded up to three digits.

    >>> amount(999), amount(999_950), amount(1_000_001), amount(4 * 10**12)
    ('999 B', '1 MB', '1.01 MB', '4 TB')
    """
    step = 10 ** max(0, len(str(count)) - 3)
    rounded = -(-count // step) * step
    power = min(len(AMOUNTS) - 1, (len(str(rounded)) - 1) // 3)
    return f"{rounded / 1000**power:.15g} {AMOUNTS[power]}"
