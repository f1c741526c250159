"""What a release will show, before it is paid for: from its plan and public numbers.

**Components.** A spectrum cannot be known, so an assumption is named: that some directions hold half of the variance of
the rows, in the ratio 3 : 2 : 1, and the others little each. They are counted as those of a release are. The variance
of rows whose numbers are divided by a private scale is that of their standard deviations, at other releases the squared
clip norm, which it cannot exceed.

**Cells and means** have a noise that no row changes (:mod:`dpdist.answers.variables`). A group is assumed to have a
tenth of the rows, with a mean near the middle of its number.

**Impossible** is a release that would show nothing of any table of so many rows. Any eigenvalue and any diagonal entry
of a moment of n bounded rows is at most ``n C²``, and any count at most n. With noise of standard deviation s on an
entry of the diagonal, a column is above the noise if its entry exceeds 4 s, which ``n C²`` plus noise does in 1 of 100
cases if ``n C² < (4 - 2.33) s``; likewise for the least component above the noise. A count, of at most all rows, has an
interval above 0 in 7 of 100 cases if they are half a deviation of its noise. With all of C² in one of 2, 4 or 12
columns, a component was shown by 1 to 6 % of releases there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dpdist.answers.block import NORMAL
from dpdist.answers.categories import Categorical, Precision, category_of, rows_information
from dpdist.answers.correlation import ABOVE
from dpdist.answers.forecast import count_seen, least_rows_seen
from dpdist.answers.noise_edge import law_of
from dpdist.core.naming import parameter
from dpdist.core.options import ROWS_AT_MOST
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release.plan import Plan
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.schema import Schema
from dpdist.core.text import counted

_RATIO = (3, 2, 1)
_GROUP = 0.1  # of the rows
_SELDOM = 2.33  # standard deviations that normal noise exceeds in 1 of 100 cases
_FEW = 0.5  # of a count in deviations of its noise: of 0, an interval is above 0 in 2.5 of 100 cases, of so many in 7


@dataclass(frozen=True)
class Prospect:
    """The answers of a planned release, each with the assumption that it needs; None where one cannot be told."""

    directions: int  # that are assumed to hold half of the variance
    seen: int | None  # of them
    cells: tuple[int, int] | None  # rows that a count in a table of two columns is within of the exact one, at 95 %
    mean: float | None  # the same for the mean of a number in a tenth of the rows, in units of the bounded rows
    scaled: bool  # whether these units are the standard deviation of the number
    bins: float  # by which factor bins of numbers make the noise larger
    tested: bool  # whether no number is clipped, so that associations with numbers are tested
    impossible: str  # a sentence if nothing can be shown
    standardised: bool  # whether the variance is that of standard deviations, and not guessed from the clip norm
    left_out: dict[str, str] = field(default_factory=dict)  # categories and booleans without tables, and why

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "directions": self.directions, "seen": self.seen, "cells": self.cells, "mean": self.mean,
            "bins": self.bins, "numbers_tested": self.tested, "impossible": self.impossible or None,
            "left_out": self.left_out,
        }  # fmt: skip

    def describe(self) -> str:
        """Return one line; empty if nothing can be told."""
        parts = []
        if self.seen is not None:
            hold = "1 direction holds" if self.directions == 1 else f"{self.directions} directions hold"
            ratio = f", in ratio {' : '.join(map(str, _RATIO[-self.directions :]))}" if self.directions > 1 else ""
            rows = "" if self.standardised else "rows are about as long as the clip norm, and "
            parts.append(f"If {rows}{hold} half of the variance{ratio}, {self.seen or 'none'} will show")
        if self.cells is not None:
            low, high = self.cells
            counts = (
                f"a count in a table of two columns will be within {f'{low} to {high}' if low < high else low} rows"
            )
            parts.append(f"{counts} of the exact one (95 of 100)")
        if self.mean is not None:
            unit = "its standard deviation" if self.scaled else "half of its range"
            parts.append(f"the mean of a number in a tenth of the rows within {self.mean:.2g} times {unit}")
        text = "; ".join(parts)
        added = f" The bins of numbers make all noise {100 * (self.bins - 1):.2g} % larger." if self.bins > 1 else ""
        if self.cells is not None and not self.tested:
            added += (
                " Numbers may be clipped: means are then those of clipped rows, which may be far from the means of the "
                f"rows if a column is skewed, and get no test. {parameter('clip', 'schema')} clips none, given ranges."
            )
        added += "".join(f" No table of {name} will be held: {reason}." for name, reason in self.left_out.items())
        return f"Forecast: {text[0].lower()}{text[1:]}.{added}" if text else added.lstrip()


def _standardised(request: ReleaseRequest) -> bool:
    return request.scale == "private" and request.clip_norm == "auto"


def prospect(plan: Plan, rows: int | None = None) -> Prospect:
    """Return what a planned release will show; ``rows`` is a public guess of n, where the plan knows none."""
    request, size = plan.request, plan.dimensions
    if rows is None:
        rows = size.rows
    if rows is None and request.rows_at_most != ROWS_AT_MOST:
        rows = request.rows_at_most
    categorical, precision, left_out = _precision(plan)
    reaches = _cells(categorical, precision)
    numbers = size.numbers if size.schema is None else len(size.schema.numbers)
    scaled = request.scale is not None
    in_range = size.schema is not None and size.schema.scale == "range" and request.scale is None
    mean = None
    if categorical and numbers and rows is not None and precision.constant and (scaled or in_range):
        mean = NORMAL * math.sqrt(max(map(precision.of_sum, categorical))) / (_GROUP * rows)
    directions = 3 if size.columns >= 6 else 1 + (size.columns >= 4)
    seen = None if rows is None else _seen(plan, rows, directions)
    impossible = "" if rows is None else _impossible(plan, rows, categorical, precision)
    cells = (reaches[0], reaches[-1]) if reaches else None
    tested = not numbers or (size.schema is not None and _clips_none(plan, size.schema))
    bins = _bins(plan, categorical)
    return Prospect(
        directions, seen, cells, mean, scaled, bins, tested, impossible, _standardised(request), left_out
    )  # fmt: skip


def _precision(plan: Plan) -> tuple[list[Categorical], Precision, dict[str, str]]:
    """Return the categories that tables can be about, the variances of their estimates, and what is left out."""
    schema, bound, noise = plan.dimensions.schema, plan.bound, plan.moment.noise
    found, left_out = list[Categorical](), dict[str, str]()
    known = noise.variance_diagonal is not None and noise.variance_off_diagonal is not None
    open_norm = plan.request.clip_norm == "private" and bool(plan.dimensions.numbers)
    if schema is not None and known and not open_norm:
        first = 0
        for column in schema.columns:
            places = range(first, first + column.width)
            first += column.width if column.stored else 0
            if not (column.stored and column.whole):
                continue
            made = category_of(schema, bound, column, places)
            if isinstance(made, Categorical):
                found.append(made)
            else:
                left_out[column.name] = made
    constant, unit = bound.constant * bound.unit, bound.unit**2
    spread = max(noise.variance_diagonal or 0.0, 2 * (noise.variance_off_diagonal or 0.0)) * unit**2
    of_rows = 0.0
    if plan.request.neighbours is not Neighbours.REPLACE_ONE or plan.dimensions.together:
        of_rows = spread / rows_information(found, constant) if found or constant else 0.0
    return found, Precision(spread, constant, of_rows), left_out


def _clips_none(plan: Plan, schema: Schema) -> bool:
    """Whether no number of a range is clipped."""
    bound = plan.bound
    if plan.stages or schema.clip_norm is None:
        return False
    shift, unit = bound.input_units
    moved = any(shift[place] != 0 or unit[place] != 1 for place in schema.numbers)
    return not moved and bound.clip_norm >= schema.clip_norm


def _bins(plan: Plan, categorical: list[Categorical]) -> float:
    """Return the squared norm of a row over that without the bins of numbers: all noise grows with it."""
    schema, whole = plan.dimensions.schema, plan.bound.row_norm**2
    names = set() if schema is None else {column.name for column in schema.columns if column.source is not column}
    added = sum(variable.weight**2 * (1 - 1 / variable.size) for variable in categorical if variable.name in names)
    return whole / (whole - added) if added < whole else math.inf


def _cells(categorical: list[Categorical], precision: Precision) -> list[int]:
    """Return the reach of a cell in each table of two variables, in order."""
    pairs = [(a, b) for i, a in enumerate(categorical) for b in categorical[:i]]
    return sorted(math.ceil(NORMAL * math.sqrt(precision.of_cell(a, b))) for a, b in pairs)


def _seen(plan: Plan, rows: int, directions: int) -> int | None:
    """Return how many of some directions with half of the variance would be counted."""
    request, bound = plan.request, plan.bound
    law = law_of(plan.moment.noise, bound.columns, bound.unit**2)
    if law is None or (request.clip_norm == "private" and bound.whole):
        return None
    # each number that is divided by a private scale has the variance 1
    numbers = float(plan.dimensions.numbers) if _standardised(request) else bound.clip_norm**2
    variance = numbers + (bound.whole_norm**2 if bound.whole else 0.0)
    shares = _RATIO[-directions:]
    return count_seen(law, rows, [variance / 2 * share / sum(shares) for share in shares])


def _impossible(plan: Plan, rows: int, categorical: list[Categorical], precision: Precision) -> str:
    """Return a sentence if no table of so many rows could show a component, a column or a count."""
    bound, variance = plan.bound, plan.moment.noise.variance_diagonal
    law = law_of(plan.moment.noise, bound.columns, bound.unit**2)
    if law is None or variance is None:
        return ""
    deviation = math.sqrt(variance) * bound.unit**2 / bound.row_norm**2  # in rows
    least = [ABOVE * deviation, least_rows_seen(law, bound.row_norm**2)]
    counts = [math.sqrt(precision.of_count(variable)) for variable in categorical]
    seldom = [*(each - _SELDOM * deviation for each in least), *(_FEW * each for each in counts)]
    if any(rows >= each for each in seldom):
        return ""
    least += [NORMAL * each for each in counts]
    return (
        f"Whatever the {counted(rows, 'row')} are, no component, column or count would be above the noise of this "
        f"release, whose loss is {plan.loss}, in more than nine of ten cases; even odds take at least "
        f"{math.ceil(min(least))} rows. Nothing was spent. Use a larger {parameter('epsilon')} or "
        "more rows."
    )
