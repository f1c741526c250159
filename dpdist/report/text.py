"""Mechanisms, forecasts and costs as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from dpdist.answers.forecast import GOOD, Forecast, Person
from dpdist.answers.noise_edge import CONFIDENCE
from dpdist.core.mechanisms.info import MechanismInfo, Output
from dpdist.core.naming import parameter, step
from dpdist.core.privacy.checks import cautions_message
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.plan import Plan, proved
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.text import AMOUNTS, counted, wrapped
from dpdist.literature.orbit_forecast import FAILURE, OrbitForecast

_FIELDS = ("output", "law", "sensitivity", "claimed", "proved", "arithmetic", "cost", "reference")
GAP = "  "
NARROWEST = 20
ALIGNED = (
    "The alignment of a component is its squared cosine with the exact one: 1 is the same direction, 0 a right angle."
)

EACH_INTERVAL = "Each interval holds in 95 of 100 releases."


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


def row_of(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return cells as lines, each wrapped to its width."""
    wrapped_cells = [textwrap.wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, wrapped_cells))
    padded = [lines + [""] * (height - len(lines)) for lines in wrapped_cells]
    return "\n".join(
        GAP.join(f"{line:<{width}}" for line, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*padded, strict=True)
    )


def forecast(result: Forecast) -> str:
    """Return a forecast as text: noise, components, and a comparison of mechanisms."""
    rounding = []
    if result.rounding is not None and result.rounding_share is not None:
        share = f"{100 * result.rounding_share:.2g} % of the noise, grid bits {result.plan.bound.grid_bits}"
        rounding = [f"  error of rounding   {result.rounding:.4g} at most ({share})"]
    lines = [
        wrapped(_heading(result.request, result.rows, result.columns, result.plan.loss) + _person_text(result.person)),
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
        wrapped(_heading(result.request, result.rows, result.columns)),
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


def _heading(request: ReleaseRequest, rows: int, columns: int, moment: PrivacyLoss | None = None) -> str:
    part = "" if moment in {None, request.loss} else f" ({moment} of it for the moment)"
    return f"{request.mechanism}, {request.loss}{part} under {request.neighbours}, n = {rows}, d = {columns}."


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
    return [row_of(row, widths) for row in rows]


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
