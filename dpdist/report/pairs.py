"""Tables, means by group and associations of a release as text for a terminal."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpdist.answers.association import Strength
from dpdist.answers.block import NORMAL
from dpdist.answers.crosstab import Counts, Crosstab
from dpdist.answers.dates import date_of
from dpdist.answers.group_means import GroupMeans
from dpdist.answers.logistic import Effect, Logistic
from dpdist.answers.ratios import Ratios
from dpdist.answers.regression import Regression
from dpdist.answers.relate import Relation
from dpdist.answers.variables import Numeric, Variables
from dpdist.core.naming import parameter, step
from dpdist.core.text import counted, listed, wrapped
from dpdist.report.text import aligned

Matrix = npt.NDArray[np.float64]
_SHOWN, _CLEAREST = 25, 5
_MEASURES = {
    "Cramér's V": "Strength (Cramér's V, 0 to 1)", "eta": "Strength (eta, 0 to 1)", "r": "Correlation",
}  # fmt: skip


def counts_text(found: Counts) -> str:
    """Return the counts and shares of the categories of a variable."""
    order = np.argsort(-found.estimates, kind="stable")[:_SHOWN]
    rows = [(found.variable.name, "rows", "between", "percent", "between")]
    for i in order:
        low, high = found.intervals[i]
        share = found.shares
        rows.append(
            (
                found.variable.categories[i], _number(found.estimates[i]), f"{_number(low)} .. {_number(high)}",
                percent_text(share.estimates[i]), _ends(share.intervals[i]),
            )
        )  # fmt: skip
    hidden = found.variable.size - len(order)
    return "\n".join([*aligned(rows), *_more(hidden, "category")])


def table_text(found: Crosstab, percent: str | None) -> str:
    """Return a table: counts, or percent of its rows, its columns or all of it."""
    names = found.rows.categories, found.columns.categories
    if percent is None:
        values, ends = found.estimates, found.intervals
        cells = [[_number(value) for value in row] for row in values]
        error = f"Each count is within {found.reach} of the exact one"
    else:
        ratios = found.shares(percent)
        values, ends = ratios.estimates, ratios.intervals
        cells = [[percent_text(value) for value in row] for row in values]
        error = _largest_error(ratios)
    what = "rows" if percent is None else f"percent of {'all rows' if percent == 'all' else f'its {percent}'}"
    title = wrapped(f"{found.rows.name} by {found.columns.name}, {what}:")
    matrix = [("", *map(_short, names[1]))]
    matrix += [(_short(name), *row) for name, row in zip(names[0], cells, strict=True)]
    lines = aligned(matrix)
    if max(map(len, lines)) > shutil.get_terminal_size().columns:
        lines, error = _largest(found, values, ends, percent), ""
    parts = [title, *lines, *([wrapped(f"{error} in 95 of 100 cases, for itself.")] if error else [])]
    if found.drowned and percent is None:
        parts.append(_shrunk_text(found))
    return "\n".join(parts)


def means_text(found: GroupMeans, *, clipped: bool) -> str:
    """Return the means of a number by category."""
    rows = [(found.variable.name, _rows_of(found.number), f"mean {found.number.name}", "between")]
    order = np.argsort(-found.counts, kind="stable")[:_SHOWN]
    for i in order:
        low, high = found.means.intervals[i]
        mean, *between = means_between(found.number, found.means.estimates[i], low, high)
        rows.append((found.variable.categories[i], _number(found.counts[i]), mean, " .. ".join(between)))
    parts = [*aligned(rows), *_more(found.variable.size - len(order), "category")]
    done = done_to(found.number, clipped=clipped)
    parts += [wrapped(f"Means are of {found.number.name} {done}.")] if done else []
    if found.variable.size > 2:
        parts += _differences(found)
    if found.variable.size == 2 and math.isfinite(found.differences[1, 0]):
        value, reach = found.differences[1, 0], NORMAL * found.deviations[1, 0]
        shown, *ends = alike(value, value - reach, value + reach)
        no, yes = found.variable.categories
        unit = _unit_of(found.number)
        parts.append(wrapped(f"The mean of {yes} less that of {no}: {shown}{unit} ({' .. '.join(ends)})."))
    return "\n".join([*parts, wrapped("Not held: medians, quantiles and spreads within groups.")])


def _rows_of(number: Numeric) -> str:
    return "rows" if number.indicator is None else "rows with it"


def _differences(found: GroupMeans) -> list[str]:
    """Return the differences of two means that are clearest."""
    pairs = [(i, j) for i in range(found.variable.size) for j in range(i) if math.isfinite(found.differences[i, j])]
    if not pairs:
        return []
    clear = sorted(pairs, key=lambda pair: -abs(found.differences[pair]) / found.deviations[pair])[:_CLEAREST]
    names, sentences = found.variable.categories, []
    for i, j in clear:
        first, second = (i, j) if found.differences[i, j] > 0 else (j, i)
        value, reach = abs(found.differences[i, j]), NORMAL * found.deviations[i, j]
        shown, *ends = alike(value, value - reach, value + reach)
        sentences.append(f"{names[first]} less {names[second]} {shown}{_unit_of(found.number)} ({' .. '.join(ends)})")
    more = "" if len(clear) == len(pairs) else f" All {len(pairs)}: {parameter('json')}."
    return [wrapped(f"Differences, the clearest first: {'; '.join(sentences)}.{more}")]


def done_to(number: Numeric, *, clipped: bool) -> str:
    """Return what was done to the values of a number; empty if nothing."""
    ranged = number.column is not None and number.column.range is not None
    return ", ".join([*(["clipped"] if clipped else []), *(["within its range"] if ranged else [])])


def means_between(number: Numeric, mean: float, low: float, high: float) -> list[str]:
    """Return the mean of a number with the ends of its interval, as dates if it is one; or that it is unknown."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ["unknown: too few rows"]
    if number.column is None or number.column.kind != "date":
        return alike(mean, low, high)
    return [date_of(number.column, value) for value in (mean, low, high)]


def slope_text(first: Numeric, second: Numeric, fit: Regression) -> str:
    """Return the slope of one number on another in a sentence."""
    (estimate,) = fit.coefficients
    shown, *ends = alike(estimate.value, *estimate.interval)
    unit = _unit_of(second).rstrip("s") or " unit"
    return f"{first.name} changes by {shown}{_unit_of(first)} ({' .. '.join(ends)}) for one{unit} of {second.name}."


def _unit_of(number: Numeric) -> str:
    """Return the unit of differences of dates; empty for other numbers."""
    column = number.column
    return f" {column.unit or 'days'}" if column is not None and column.kind == "date" else ""


def relation_text(found: Relation) -> str:
    """Return the strength of an association, and its test, in a sentence or two."""
    if found.strength is None:
        return f"Association: {found.no_test}."
    merged = ""
    if found.strength.merged:
        groups = (f"{listed(names)} of {name}" for name, names in found.strength.merged)
        merged = f", with {' and '.join(groups)} merged, as they drown"
    text = f"{_MEASURES[found.strength.measure]}: {strength_text(found.strength)}{merged}."
    if found.test is None:
        return f"{text} No test: {found.no_test}."
    p = p_text(found.test.p_value)
    return f"{text} Test of independence, alone, for rows that are a sample: p {'' if p.startswith('<') else '= '}{p}."


def relations_text(found: Sequence[Relation], name: str | None) -> str:
    """Return associations in order, the strongest first."""
    rows = [("" if name is None else f"{name} and", "strength", "between", "", "p")]
    for each in found[:_SHOWN]:
        label = each.second if name is not None else f"{each.first}, {each.second}"
        if each.strength is None:
            rows.append((_short(label, 34), "-", "", "", "below the noise"))
            continue
        low, high = each.strength.interval
        p = "-" if each.adjusted is None else p_text(each.adjusted)
        measure = f"{each.strength.measure}{'*' * bool(each.strength.merged)}"
        rows.append((_short(label, 34), f"{each.strength.value:.2f}", f"{low:.2f} .. {high:.2f}", measure, p))
    reasons = {each.no_test for each in found if each.no_test and each.strength is not None}
    tests = sum(each.test is not None for each in found)
    parts = [*aligned(rows), *_more(len(found) - len(rows) + 1, "pair")]
    if tests:
        parts.append(wrapped(f"p-values are adjusted for {counted(tests, 'test')} (Holm), for rows that are a sample."))
    if any(each.strength is not None and each.strength.merged for each in found[:_SHOWN]):
        parts.append(wrapped("* With small categories merged, as they drown: named with the pair alone."))
    parts += [wrapped(f"No test (-): {reason}.") for reason in sorted(reasons)]
    return "\n".join(parts)


def odds_text(found: Logistic, rows: str) -> str:
    """Return the odds ratios of a logistic regression: the 25 that are farthest from 1, in errors."""
    order = sorted(range(len(found.effects)), key=lambda i: -_evidence(found.effects[i]))[:_SHOWN]
    lines = [("", "odds ratio", "between", "coefficient")]
    for i in sorted(order):
        each = found.effects[i]
        ratio, *ends = alike(*each.odds)
        lines.append((_short(each.name, 30), ratio, " .. ".join(ends), f"{each.value:.3g}"))
    ridge = ", with a small ridge, which moves them towards 1" if found.ridge else ""
    text = (
        f"An odds ratio is for one unit of the column, or for a category in place of the first one "
        f"({listed(found.references)}), with the others unchanged{ridge}. Intervals are for the noise. The model knows "
        "the columns by pairs: where three or more act together, it differs from the maximum of the likelihood."
    )
    return "\n".join([
        wrapped(f"Logistic regression of {found.target}, {100 * found.share:.1f} % {rows}:"),
        *aligned(lines),
        *_more(len(found.effects) - len(order), "coefficient"),
        wrapped(text if found.references else text.replace(" ()", "")),
    ])  # fmt: skip


def _evidence(effect: Effect) -> float:
    reach = effect.interval[1] - effect.value
    return abs(effect.value) / reach if reach else math.inf


def about_variables(held: Variables) -> str:
    """Return what answers are about, and the variables that have none."""
    text = " ".join(f"Left out: {name}, as {reason}." for name, reason in held.left_out.items())
    if held.release.schema is None:
        text += f" Tables and means by group take a schema: {step('schema', 'SOURCE', 'SCHEMA')} drafts one."
    limits = "; ".join(v.limit for v in held.categorical.values() if v.limit)
    return " ".join(filter(None, (text, f"{limits[0].upper()}{limits[1:]}." if limits else "")))


def strength_text(strength: Strength) -> str:
    """Return a strength with its interval."""
    value, low, high = (f"{each + 0.0:.2f}".replace("-0.00", "0.00") for each in (strength.value, *strength.interval))
    return f"{value} ({low} .. {high})"


def p_text(value: float) -> str:
    """Return a p-value.

    >>> p_text(0.0421), p_text(1e-9)
    ('0.042', '< 0.0001')
    """
    return "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def _largest(found: Crosstab, values: Matrix, ends: Matrix, percent: str | None) -> list[str]:
    order = np.argsort(-np.nan_to_num(values, nan=-1.0), axis=None, kind="stable")[:_SHOWN]
    rows = [(found.rows.name, found.columns.name, "rows" if percent is None else "percent", "between")]
    for i, j in zip(*np.unravel_index(order, values.shape), strict=True):
        shown = _number(values[i, j]) if percent is None else percent_text(values[i, j])
        low, high = ends[i, j]
        between = f"{_number(low)} .. {_number(high)}" if percent is None else _ends(ends[i, j])
        rows.append((found.rows.categories[i], found.columns.categories[j], shown, between))
    return [*aligned(rows), *_more(values.size - len(order), "cell")]


def _shrunk_text(found: Crosstab) -> str:
    shown = [("", *map(_short, found.columns.categories))]
    shown += [(_short(name), *map(_number, row)) for name, row in zip(found.rows.categories, found.shrunk, strict=True)]
    lines = aligned(shown)
    text = "No association is seen in this noise. Shrunk towards independence, and in general closer:"
    return "\n".join([wrapped(text), *(lines if max(map(len, lines)) <= shutil.get_terminal_size().columns else [])])


def _largest_error(ratios: Ratios) -> str:
    reach = np.abs(ratios.intervals - ratios.estimates[..., None])
    known = np.isfinite(reach).all(axis=-1)
    if not known.any():
        return ""
    return f"Each share is within {100 * float(reach[known].max()):.2g} percentage points of the exact one"


def _more(hidden: int, noun: str) -> list[str]:
    return [wrapped(f"{counted(hidden, noun)} more: --table writes all.")] if hidden > 0 else []


def _number(value: float) -> str:
    """Return an unbiased count, which may be negative."""
    return f"{value:.0f}" if abs(value) >= 0.5 else "0"


def percent_text(share: float) -> str:
    """Return a share in percent, or a dash if it is unknown."""
    return "-" if math.isnan(share) else f"{100 * min(1.0, max(0.0, share)):.1f}"


def alike(*values: float) -> list[str]:
    """Return numbers with the decimals that their differences show.

    >>> alike(0.2594, 0.2412, 0.2781), alike(1.00002, 0.99998, 1.00006)
    (['0.259', '0.241', '0.278'], ['1.000020', '0.999980', '1.000060'])
    """
    spread = max(values) - min(values)
    decimals = max(0, 1 - math.floor(math.log10(spread))) if spread > 0 else 3
    return [f"{value:.{min(decimals, 12)}f}" for value in values]


def _ends(ends: Matrix) -> str:
    low, high = (100 * min(1.0, max(0.0, float(end))) for end in ends)
    return f"{low:.1f} .. {high:.1f}"


def _short(name: str, most: int = 16) -> str:
    return name if len(name) <= most else f"{name[: most - 3]}..."
