"""Tables, means by group and associations of a release as text for a terminal."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpdist.answers.association import Strength
from dpdist.answers.crosstab import Counts, Crosstab
from dpdist.answers.dates import date_of
from dpdist.answers.group_means import GroupMeans
from dpdist.answers.logistic import Effect, Logistic
from dpdist.answers.regression import Regression
from dpdist.answers.relate import Relation, untested
from dpdist.answers.synthetic import source_values
from dpdist.answers.variables import Numeric, Variables
from dpdist.core.naming import parameter, step
from dpdist.core.rows.columns import Column
from dpdist.core.text import counted, listed, wrapped
from dpdist.report.shares import count_text, few_text, known_shares, largest_error, percent_ends, percent_text
from dpdist.report.text import EACH_INTERVAL, aligned

Matrix = npt.NDArray[np.float64]
_SHOWN, _CLEAREST = 25, 5
_NAMED = 20
GEOMETRIC = "A geometric mean is the mean of the logarithm, taken back; the mean itself is at least as large."
OF_RIDGE = "A small ridge moves them towards 1, and intervals are of the model with it, not of the one without."
_MERGED = "* Small categories are merged, as they have too few rows for this noise: named with the pair alone."
_MEASURES = {
    "Cramér's V": "Strength (Cramér's V, 0 to 1)", "eta": "Strength (eta, 0 to 1)", "r": "Correlation",
}  # fmt: skip


def counts_text(result: Counts) -> str:
    """Return the counts and shares of the categories of a variable."""
    order = np.argsort(-result.estimates, kind="stable")[:_SHOWN]
    rows = [(result.variable.name, "rows", "between", "percent", "between")]
    for i in order:
        count, *between = map(count_text, (result.estimates[i], *result.intervals[i]))
        share, ends = percent_text(result.shares.estimates[i]), " .. ".join(percent_ends(result.shares.intervals[i]))
        rows.append((result.variable.categories[i], count, " .. ".join(between), share, ends))
    hidden = result.variable.size - len(order)
    return "\n".join([*aligned(rows), *_more(hidden, "category"), EACH_INTERVAL])


def table_text(result: Crosstab, percent: str | None) -> str:
    """Return a table: counts, or percent of its rows, its columns or all of it."""
    names, unknown = (result.rows.categories, result.columns.categories), ""
    if percent is None:
        values, ends = result.estimates, result.intervals
        cells = [[count_text(value) for value in row] for row in values]
        error = f"Each count is within {result.reach} of the exact one"
    else:
        ratios, few = known_shares(result, percent)
        values, ends = ratios.estimates, ratios.intervals
        cells = [[percent_text(value) for value in row] for row in values]
        error, unknown = largest_error(ratios), few_text(few)
        if (values < -0.0005).any():
            unknown = f"{unknown} A share below 0 is written as 0.0, so a sum may exceed 100.".strip()
    what = "rows" if percent is None else f"percent of {'all rows' if percent == 'all' else f'its {percent}'}"
    title = wrapped(f"{result.rows.name} by {result.columns.name}, {what}:")
    matrix = [("", *map(_short, names[1]))]
    matrix += [(_short(name), *row) for name, row in zip(names[0], cells, strict=True)]
    lines = aligned(matrix)
    if max(map(len, lines)) > shutil.get_terminal_size().columns:
        lines, error = _largest(result, values, ends, percent), ""
    parts = [title, *lines, *([wrapped(f"{error} in 95 of 100 cases, taken singly.")] if error else [])]
    parts += [wrapped(unknown)] if unknown else []
    if result.drowned and percent is None:
        parts.append(_shrunk_text(result))
    return "\n".join(parts)


def means_text(result: GroupMeans, *, clipped: bool) -> str:
    """Return the means of a number by category."""
    column = result.number.column if result.number.column and result.number.column.transform == "log" else None
    taken_back: tuple[str, ...] = () if column is None else ("geometric mean", "between")
    rows = [(result.variable.name, _rows_of(result.number), f"mean {result.number.name}", "between", *taken_back)]
    order = np.argsort(-result.counts, kind="stable")[:_SHOWN]
    for i in order:
        low, high = result.means.intervals[i]
        mean, *between = means_between(result.number, result.means.estimates[i], low, high)
        if column is not None:
            taken_back = _geometric(column, float(result.means.estimates[i]), low, high)
        cells = (mean, " .. ".join(between), *taken_back)
        rows.append((result.variable.categories[i], count_text(result.counts[i]), *cells))
    parts = [*aligned(rows), *_more(result.variable.size - len(order), "category")]
    done = done_to(result.number, clipped=clipped)
    parts += [wrapped(f"Means are of {result.number.name} {done}.")] if done else []
    if column is not None:
        parts.append(wrapped(GEOMETRIC))
    if result.variable.size > 2:
        parts += _differences(result)
    if result.variable.size == 2 and math.isfinite(result.differences[1, 0]):
        shown, *ends = alike(*result.difference(1, 0))
        no, yes = result.variable.categories
        unit = unit_of(result.number)
        parts.append(wrapped(f"The mean of {yes} less that of {no}: {shown}{unit} ({' .. '.join(ends)})."))
    return "\n".join([*parts, wrapped("Not in a release: medians, quantiles and spreads within groups.")])


def _geometric(column: Column, *mean: float) -> tuple[str, str]:
    """Return a geometric mean in units of the source, and its interval; empty if it is unknown."""
    if not all(map(math.isfinite, mean)):
        return "", ""
    value, *ends = alike(*source_values(column, np.array(mean)).tolist())
    return value, " .. ".join(ends)


def _rows_of(number: Numeric) -> str:
    return "rows" if number.indicator is None else "rows with it"


def _differences(result: GroupMeans) -> list[str]:
    """Return the differences of two means that are clearest."""
    pairs = [(i, j) for i in range(result.variable.size) for j in range(i) if math.isfinite(result.differences[i, j])]
    if not pairs:
        return []
    clear = sorted(pairs, key=lambda pair: -abs(result.differences[pair]) / result.deviations[pair])[:_CLEAREST]
    names, sentences = result.variable.categories, []
    for i, j in clear:
        first, second = (i, j) if result.differences[i, j] > 0 else (j, i)
        shown, *ends = alike(*result.difference(first, second))
        sentences.append(f"{names[first]} less {names[second]} {shown}{unit_of(result.number)} ({' .. '.join(ends)})")
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
    unit = unit_of(second).rstrip("s") or " unit"
    return f"{first.name} changes by {shown}{unit_of(first)} ({' .. '.join(ends)}) for one{unit} of {second.name}."


def unit_of(number: Numeric) -> str:
    """Return the unit of differences of dates; empty for other numbers."""
    column = number.column
    return f" {column.unit or 'days'}" if column is not None and column.kind == "date" else ""


def relation_text(result: Relation) -> str:
    """Return the strength of an association, and its test, in a sentence or two."""
    if result.strength is None:
        return f"Association: {result.no_test}."
    text = f"{_MEASURES[result.strength.measure]}: {strength_text(result.strength)}{_merged_text(result.strength)}."
    if result.test is None:
        return f"{text} No test: {result.no_test}."
    p = p_text(result.test.p_value)
    return f"{text} Test of independence, unadjusted, if rows are a sample: p {'' if p.startswith('<') else '= '}{p}."


def _merged_text(strength: Strength) -> str:
    """Return which categories were merged, as the end of a sentence; empty if none."""
    groups = [f"{_joined(names)} of {name}" for name, names in strength.merged]
    if not groups:
        return ""
    every = groups[0] if len(groups) == 1 else f"{', and '.join(groups)},"
    return f"; {every} are counted together, as some have too few rows for this noise"


def _joined(names: Sequence[str]) -> str:
    """Return names with an "and" before the last one; at most twenty."""
    return listed(names) if len(names) > _NAMED else ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1]


def relations_text(result: Sequence[Relation], name: str | None) -> str:
    """Return associations in order, the strongest first."""
    rows = [("" if name is None else f"{name} and", "strength", "between", "", "p")]
    for each in result[:_SHOWN]:
        label = each.second if name is not None else f"{each.first}, {each.second}"
        if each.strength is None:
            rows.append((_short(label, 34), "-", "", "", "below the noise"))
            continue
        p = "-" if each.adjusted is None else p_text(each.adjusted)
        measure = f"{each.strength.measure}{'*' * bool(each.strength.merged)}"
        ends = " .. ".join(strength_ends(each.strength))
        rows.append((_short(label, 34), f"{each.strength.value:.2f}", ends, measure, p))
    tests = sum(each.test is not None for each in result)
    parts = [*aligned(rows), *_more(len(result) - len(rows) + 1, "pair")]
    if tests:
        parts.append(wrapped(f"p-values are adjusted for {counted(tests, 'test')} (Holm), and assume a random sample."))
    if any(each.strength is not None and each.strength.merged for each in result[:_SHOWN]):
        parts.append(wrapped(_MERGED))
    parts += [wrapped(f"No test (-): {reason}.") for reason in untested(result)]
    return "\n".join(parts)


def odds_text(result: Logistic, rows: str) -> str:
    """Return the odds ratios of a logistic regression: the 25 that are farthest from 1, in errors."""
    order = sorted(range(len(result.effects)), key=lambda i: -_evidence(result.effects[i]))[:_SHOWN]
    lines = [("", "odds ratio", "between", "coefficient")]
    for i in sorted(order):
        each = result.effects[i]
        ratio, *ends = alike(*each.odds)
        lines.append((_short(each.name, 30), ratio, " .. ".join(ends), f"{each.value:.3g}"))
    intervals = f"{OF_RIDGE} " if result.ridge else ""
    text = (
        f"An odds ratio is for one unit of the column, or for a category in place of the first one "
        f"({listed(result.references)}), with the others unchanged. {intervals}{EACH_INTERVAL} They are of this model, "
        "which takes numbers as normal and knows columns by pairs. So the maximum of the likelihood is another where "
        "three or more columns act together, or numbers are skewed or counts: a slope of those was a sixth too large. "
        "As a category, by bins in a schema, a number is taken as it is."
    )
    return "\n".join([
        wrapped(f"Logistic regression of {result.target}, {100 * result.share:.1f} % {rows}:"),
        *aligned(lines),
        *_more(len(result.effects) - len(order), "coefficient"),
        wrapped(text if result.references else text.replace(" ()", "")),
    ])  # fmt: skip


def _evidence(effect: Effect) -> float:
    reach = effect.interval[1] - effect.value
    return abs(effect.value) / reach if reach else math.inf


def about_variables(held: Variables) -> str:
    """Return what answers are about, and the variables that have none."""
    text = " ".join(f"Left out: {name}, as {reason}." for name, reason in held.left_out.items())
    if held.release.schema is None:
        text += f" Tables and means by group need a schema: {step('schema', 'SOURCE', 'SCHEMA')} drafts one."
    limits = "; ".join(v.limit for v in held.categorical.values() if v.limit)
    return " ".join(filter(None, (text, f"{limits[0].upper()}{limits[1:]}." if limits else "")))


def strength_text(strength: Strength) -> str:
    """Return a strength with its interval."""
    low, high = strength_ends(strength)
    return f"{_hundredths(strength.value)} ({low} .. {high})"


def strength_ends(strength: Strength) -> tuple[str, str]:
    """Return the ends of the interval of a strength, rounded outwards."""
    low, high = strength.interval
    return _hundredths(math.floor(100 * low) / 100), _hundredths(math.ceil(100 * high) / 100)


def _hundredths(value: float) -> str:
    return f"{value + 0.0:.2f}".replace("-0.00", "0.00")


def p_text(value: float) -> str:
    """Return a p-value.

    >>> p_text(0.0421), p_text(1e-9)
    ('0.042', '< 0.0001')
    """
    return "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def _largest(result: Crosstab, values: Matrix, ends: Matrix, percent: str | None) -> list[str]:
    order = np.argsort(-np.nan_to_num(values, nan=-1.0), axis=None, kind="stable")[:_SHOWN]
    rows = [(result.rows.name, result.columns.name, "rows" if percent is None else "percent", "between")]
    for i, j in zip(*np.unravel_index(order, values.shape), strict=True):
        shown = count_text(values[i, j]) if percent is None else percent_text(values[i, j])
        between = map(count_text, ends[i, j]) if percent is None else percent_ends(ends[i, j])
        rows.append((result.rows.categories[i], result.columns.categories[j], shown, " .. ".join(between)))
    return [*aligned(rows), *_more(values.size - len(order), "cell")]


def _shrunk_text(result: Crosstab) -> str:
    shown = [("", *map(_short, result.columns.categories))]
    shown += [
        (_short(name), *map(count_text, row)) for name, row in zip(result.rows.categories, result.shrunk, strict=True)
    ]
    lines = aligned(shown)
    text = "No association is seen in this noise. Shrunk towards independence, usually closer to the exact table:"
    return "\n".join([wrapped(text), *(lines if max(map(len, lines)) <= shutil.get_terminal_size().columns else [])])


def _more(hidden: int, noun: str) -> list[str]:
    return [wrapped(f"{counted(hidden, noun)} more: --table writes all.")] if hidden > 0 else []


def alike(*values: float) -> list[str]:
    """Return numbers with the decimals that their differences show.

    >>> alike(0.2594, 0.2412, 0.2781), alike(1.00002, 0.99998, 1.00006)
    (['0.259', '0.241', '0.278'], ['1.000020', '0.999980', '1.000060'])
    """
    spread = max(values) - min(values)
    decimals = max(0, 1 - math.floor(math.log10(spread))) if spread > 0 else 3
    return [f"{value:.{min(decimals, 12)}f}" for value in values]


def _short(name: str, most: int = 16) -> str:
    return name if len(name) <= most else f"{name[: most - 3]}..."
