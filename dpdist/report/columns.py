"""The section of a report about each variable alone: shares of categories, means and deviations of numbers.

In the coordinates of :mod:`dpdist.answers.variables` the n rows with a number have the sum t and the sum of squares Q,
with independent errors. The mean m = t/n is a ratio (:mod:`dpdist.answers.ratios`). The variance q = Q/n - m² is
unbiased to first order, with an error of the variance

    (var Q + 4 m² var t + (m² - q)² var n) / n².
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup

from dpdist.answers.bias import ClippedRows
from dpdist.answers.block import NORMAL
from dpdist.answers.correlation import ABOVE
from dpdist.answers.crosstab import counts
from dpdist.answers.ratios import Ratios, ratios
from dpdist.answers.synthetic import source_values
from dpdist.answers.variables import Numeric, Variables, variables
from dpdist.core.errors import BelowNoiseError, DataError, UsageError
from dpdist.core.release.artefact import Release
from dpdist.core.text import counted
from dpdist.report.pairs import GEOMETRIC, alike, means_between, unit_of
from dpdist.report.shares import percent_ends, percent_text, too_uncertain
from dpdist.report.tables import Cells, brief_name, minus

_OPEN, _LISTED = 40, 500
"""Variables that are shown, and those that are listed at all."""
_CATEGORIES = 8
"""Categories of a variable that are shown, the largest ones; the others are folded."""
_NAMED = 8
"""Most variables that are named as left out."""
_UNKNOWN = "-"


@dataclass(frozen=True)
class Described:
    """What is known of one variable alone: a name, a number and its interval in each row."""

    name: Markup
    rows: Sequence[Cells]
    folded: Sequence[Cells]  # smaller categories

    @property
    def known(self) -> bool:
        """Whether any number is above the noise."""
        return any(cells[1] != _UNKNOWN for cells in self.rows)


@dataclass(frozen=True)
class Columns:
    """What is known of each variable alone."""

    rows: str  # how many they are of
    first: Sequence[Described]
    others: Sequence[Described]
    note: str


def columns_of(release: Release, rows: ClippedRows) -> Columns | None:
    """Return shares, means and deviations of the variables of a release; None where nothing is known."""
    try:
        held = variables(release)
    except (UsageError, DataError, BelowNoiseError):
        return None
    order = sorted(held.names, key=lambda name: _place(held, name))
    described = [each for name in order[:_LISTED] if (each := _described(held, name)) is not None]
    if not any(each.known for each in described):
        return None
    note = " ".join(_notes(held, rows, len(order) - _LISTED))
    number = f"{'' if held.public else 'About '}{counted(round(held.rows), 'row')}"
    return Columns(number, described[:_OPEN], described[_OPEN:], note)


def _place(held: Variables, name: str) -> int:
    return held.categorical[name].places[0] if name in held.categorical else held.numeric[name].place


def _described(held: Variables, name: str) -> Described | None:
    """Return what is known of a variable; None if a release holds neither a share nor a mean of it."""
    if name in held.numeric:
        numeric = held.numeric[name]
        title = name if numeric.column is None else numeric.column.name
        return Described(brief_name(title), _of_number(held, numeric), []) if held.precision.constant else None
    if not held.precision.information(held.categorical[name]):
        return None
    lines = _of_categories(held, name)
    most = len(lines) if len(lines) == _CATEGORIES + 1 else _CATEGORIES
    return Described(brief_name(name), lines[:most], lines[most:])


def _of_categories(held: Variables, name: str) -> list[Cells]:
    """Return the shares of the categories of a variable in percent, the largest first."""
    result = counts(held, name)
    shares, names = result.shares, result.variable.categories
    unknown = too_uncertain(shares)
    lines: list[Cells] = []
    for i in np.argsort(-result.estimates, kind="stable").tolist():
        share, between = f"{percent_text(shares.estimates[i])} %", _between(*percent_ends(shares.intervals[i]))
        lines.append((brief_name(names[i]), *((_UNKNOWN, _UNKNOWN) if unknown[i] else (share, between))))
    return lines


def _of_number(held: Variables, numeric: Numeric) -> list[Cells]:
    """Return mean and standard deviation of a number in units of the source; of its logarithm with that transform."""
    mean, spread = mean_of(held, numeric), deviation_of(held, numeric)
    column = numeric.column
    of = "" if column is None or column.transform is None else f" of {numeric.name}"
    low, high = map(float, mean.intervals)
    if not math.isfinite(low + high) or _says_nothing(held, numeric, low, high):
        return [(f"mean{of}", _UNKNOWN, _UNKNOWN), _spread_line(numeric, spread)]
    value, *ends = means_between(numeric, float(mean.estimates), low, high)
    dated = column is not None and column.kind == "date"
    lines = [_line(f"mean{of}", value, ends) if dated else _line(f"mean{of}", minus(value), [*map(minus, ends)])]
    lines.append(_spread_line(numeric, spread))
    if column is not None and column.transform == "log":
        value, *ends = map(minus, alike(*source_values(column, np.array([float(mean.estimates), low, high])).tolist()))
        lines.append(_line("geometric mean", value, ends))
    return lines


def _line(label: str, value: str, ends: Sequence[str]) -> Cells:
    return label, value, _between(*ends)


def _between(low: str, high: str) -> Markup:
    """Return the ends of an interval, neither of which is broken into lines."""
    return Markup('<span class="end">{}</span> … <span class="end">{}</span>').format(low, high)


def _spread_line(numeric: Numeric, spread: tuple[float, float, float] | None) -> Cells:
    transformed = numeric.column is not None and numeric.column.transform is not None
    label = f"{'its ' * transformed}standard deviation"
    if spread is None:
        return label, _UNKNOWN, _UNKNOWN
    value, *ends = alike(*spread)
    return _line(label, f"{value}{unit_of(numeric)}", ends)


def mean_of(held: Variables, numeric: Numeric) -> Ratios:
    """Return the mean of a number over the rows with a value, in units of the source."""
    total = held.total(numeric.place)
    mean = ratios(float(total.values[0]), *_rows_with(held, numeric, total.variance))
    return mean.mapped(numeric.shift, numeric.unit).clipped(*numeric.limits)


def _rows_with(held: Variables, numeric: Numeric, of_total: float) -> tuple[float, float, float]:
    """Return the number of rows with a value, the variance of the sum of these, and that of the number."""
    n, of_n = held.rows, held.precision.rows
    if numeric.indicator is not None:
        gaps = held.total(numeric.indicator)
        n -= float(gaps.values[0]) / numeric.weight
        of_n += gaps.variance / numeric.weight**2
    return n, of_total, of_n


def deviation_of(held: Variables, numeric: Numeric) -> tuple[float, float, float] | None:
    """Return the standard deviation of a number with its 95 % interval; None below the noise."""
    total, square = held.total(numeric.place), held.square(numeric.place)
    n, of_total, of_n = _rows_with(held, numeric, total.variance)
    if n <= NORMAL * math.sqrt(of_n):
        return None
    mean = float(total.values[0]) / n
    variance = float(square.values) / n - mean**2
    error = math.sqrt(square.variance + 4 * mean**2 * of_total + (mean**2 - variance) ** 2 * of_n) / n
    if variance <= ABOVE * error:
        return None
    value, low, high = (
        abs(numeric.unit) * math.sqrt(max(0.0, each))
        for each in (variance, variance - NORMAL * error, variance + NORMAL * error)
    )
    return value, low, high


def _says_nothing(held: Variables, numeric: Numeric, low: float, high: float) -> bool:
    """Whether an interval contains the whole public range of a number."""
    if numeric.column is None or held.release.schema is None:
        return False
    least, most, *_ = held.release.schema.affine(numeric.column)
    return low <= least and high >= most


def _notes(held: Variables, rows: ClippedRows, hidden: int) -> Iterator[str]:
    """Yield sentences about what the numbers are of."""
    numbers = [*held.numeric.values()] if held.precision.constant else []
    yield (
        f"{'Shares, means and standard deviations are' if numbers else 'Shares are'} "
        f"{replace(rows, pairwise=False).describe()}: rows of this table, not a population. Each interval contains the "
        "exact number in 95 of 100 releases, with respect to the noise; a dash marks values below it."
    )
    if numbers and rows.unknown:
        far = "Of a skewed column they may be far from these."
        yield f"Without clipping, means and standard deviations are {rows.unknown}. {far}"
    columns = [numeric.column for numeric in numbers if numeric.column is not None]
    if any(column.missing == "centre" for column in columns):
        yield "Missing numbers count as the centre, which moves means towards it and lowers standard deviations."
    if any(numeric.indicator is not None for numeric in numbers):
        yield "A mean is of the rows with a value."
    if any(column.transform == "log" for column in columns):
        yield GEOMETRIC
    if held.numeric and not numbers:
        yield "This release holds no means of numbers."
    if held.left_out and held.release.schema is None:  # with a schema, the section about pairs says so
        names = [*held.left_out]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"Left out: {', '.join(names[:_NAMED])}{more}, as {held.left_out[names[0]]}."
    if hidden > 0:
        yield f"{counted(hidden, 'variable')} more are not listed."
