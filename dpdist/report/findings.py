"""Tables and charts of what a release shows above the noise: components, correlations and regressions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup, escape

from dpdist.answers.alignment import Alignment, Values, alignment
from dpdist.answers.components import Components, about_mean
from dpdist.answers.regression import Estimate, Regression, regressions
from dpdist.core.errors import BelowNoiseError
from dpdist.core.release.artefact import Release
from dpdist.core.text import counted
from dpdist.report.answers import (
    BELOW_NOISE,
    about_intervals,
    centre_name,
    common_power,
    digits,
    in_units,
    outward,
    shrunk,
)
from dpdist.report.charts import bar, explained, image, shortened_name, spectrum
from dpdist.report.plots import forest
from dpdist.report.text import between, count_text, mark

_ALL_COLUMNS = 2048
"""Largest number of columns for all eigenvalues: seconds; 4096 take half a minute on two cores."""
_OPEN = 6
"""Components with visible loadings; later ones are folded."""
_MOST = 24
"""Largest number of components with loadings."""
_LOADINGS = 8
"""Number of loadings shown per component, the largest."""
_LISTED = 12
"""Components above the noise in the visible list; later ones are folded."""
_LEAST = 0.0005
"""Least magnitude of a loading shown with three digits."""
_ROWS = 100
"""Largest number of eigenvalues listed below the noise."""
_LETTERS = 40
"""Letters of each of two names in one line."""
_COEFFICIENTS = 100
"""Largest number of coefficients listed per regression."""
_BARS = 20
"""Largest number of coefficients drawn per regression."""
Cells = tuple[str | Markup, ...]


@dataclass(frozen=True)
class Table:
    """A table of numbers; the first cell of each row is a name."""

    head: Cells
    rows: Sequence[Cells]


def table_of(head: Cells, rows: Sequence[Cells]) -> Table | None:
    """Return a table, or None without rows."""
    return Table(head, rows) if rows else None


@dataclass(frozen=True)
class Loadings:
    """The largest loadings of one component, or its picture."""

    number: int
    about: str  # its alignment
    rows: Sequence[tuple[Markup, Markup, str, str]]  # name, bar, number and interval; empty with a picture
    picture: Markup | None
    below_noise: bool  # it may be only noise


@dataclass(frozen=True)
class ComponentFindings:
    """The components of a release."""

    sentence: str
    chart: Markup | None = None  # the spectrum, if the edge of the noise is known
    complete: bool = False  # the chart shows all eigenvalues
    unit: str = ""
    edge: str = ""
    clear: Table | None = None  # those above the noise; all if its distribution is unknown
    rest: Table | None = None  # the folded part of these
    below_noise: Table | None = None
    omitted: int = 0
    first: Sequence[Loadings] = ()
    folded: Sequence[Loadings] = ()
    noise: Sequence[Loadings] = ()


def component_findings(release: Release, result: Components, shape: tuple[int, int] | None) -> ComponentFindings:
    """Return the components of a release as tables and charts."""
    aligned = alignment(release, result)
    shown = [_loadings(release, result, i, aligned, shape) for i in range(min(len(result.components), _MOST))]
    clear, noise = ([entry for entry in shown if entry.below_noise is below] for below in (False, True))
    return replace(_spectrum(release, result, aligned), first=clear[:_OPEN], folded=clear[_OPEN:], noise=noise[:_OPEN])


def _spectrum(release: Release, result: Components, aligned: Alignment | None) -> ComponentFindings:
    if result.eigenvalues is None:
        return ComponentFindings("The mechanism releases directions, but not their strengths.")
    unit = escape(" per row" if result.per_row else " of the sum over all rows")
    if aligned is None or aligned.errors is None or aligned.edge is None:
        sentence = (
            "The distribution of this mechanism's noise is unknown, so components cannot be distinguished from noise."
        )
        if release.noise.variance_off_diagonal == 0:
            sentence = "No noise was added: these numbers are exact, and must stay private."
        power = common_power(result.eigenvalues.tolist())
        rows = [(str(i + 1), digits(value / 10.0**power)) for i, value in enumerate(result.eigenvalues)]
        return ComponentFindings(sentence, unit=unit + in_units(power), clear=Table(("component", "eigenvalue"), rows))
    total = release.bound.columns
    values = _all_values(release, result.eigenvalues)
    padding = np.full(
        max(0, len(values) - len(aligned.errors)), aligned.errors[-1]
    )  # errors of smaller eigenvalues are not larger
    every = replace(aligned, eigenvalues=values, errors=np.concatenate([aligned.errors, padding]))
    power = common_power([*values.tolist(), *every.intervals.ravel().tolist()])
    scale = 10.0**power
    clear = _clear_rows(aligned, scale)
    below_noise = [
        (str(i + 1), digits(values[i] / scale), digits(every.intervals[i, 1] / scale))
        for i in range(aligned.counted, min(len(values), aligned.counted + _ROWS))
    ]
    return ComponentFindings(
        _sentence(aligned, total),
        chart=spectrum(every, per_row=result.per_row, total=total),
        complete=len(values) == total,
        unit=unit + in_units(power),
        edge=digits(aligned.edge / scale),
        clear=table_of(_CLEAR, clear[:_LISTED]),
        rest=table_of(_CLEAR, clear[_LISTED:]),
        below_noise=table_of(("component", "eigenvalue", "true value at most"), below_noise),
        omitted=total - aligned.counted - len(below_noise),
    )


def _sentence(aligned: Alignment, total: int) -> str:
    rest = total - aligned.counted
    if not aligned.counted or not rest:
        return count_text(aligned)
    return f"{count_text(aligned)} The other {f'{rest} ' * (rest > 1)}may be only noise."


def _all_values(release: Release, first: Values) -> Values:
    """Return all eigenvalues, descending; only the first ones of a very wide release."""
    if len(first) == release.bound.columns or release.bound.columns > _ALL_COLUMNS:
        return first
    matrix = about_mean(release).matrix(release.second_moment)
    return np.linalg.eigvalsh(matrix)[::-1].astype(np.float64)


_CLEAR = ("component", "eigenvalue", "without the noise", "true value, 95 %", "alignment", "between")


def _clear_rows(aligned: Alignment, scale: float) -> list[Cells]:
    rows: list[Cells] = []
    for i in np.flatnonzero(np.isfinite(aligned.strengths)).tolist():
        numbers = aligned.eigenvalues[i], aligned.strengths[i], *aligned.intervals[i]
        value, strength, low, high = (digits(number / scale) for number in numbers)
        cosine = f"{aligned.squared_cosines[i]:.3f}{mark(aligned, i)}"
        rows.append((str(i + 1), value, strength, f"{low} … {high}", cosine, ends_of(aligned.cosine_intervals[i])))
    return rows


def ends_of(interval: Values) -> str:
    """Return the ends of an interval of squared cosines or shares."""
    return between(interval).replace("..", "…")


def _loadings(
    release: Release, result: Components, i: int, aligned: Alignment | None, shape: tuple[int, int] | None
) -> Loadings:
    vector = result.components[i]
    about, ends, below_noise = "", None, False
    if aligned is not None:
        group, ends = aligned.group_of(i), aligned.loadings
        below_noise = group is None
        if group is not None and len(group) > 1:
            about = f"cannot be distinguished from the others of {group.start + 1} to {group.stop}"
        elif group is not None:
            about = f"alignment: {ends_of(aligned.cosine_intervals[i])}"
    reach = float(np.abs(vector).max())
    if shape is not None:
        picture = image(vector.reshape(shape), f"Component {i + 1} as an image", reach)
        return Loadings(i + 1, about, (), picture, below_noise)
    largest = np.argsort(-np.abs(vector), kind="stable")[:_LOADINGS]
    rows = [
        (_name(release.names[j]), bar(float(vector[j]), reach), minus(f"{vector[j]:+.3f}"), _within(ends, i, j))
        for j in largest
        if abs(vector[j]) >= _LEAST
    ]
    return Loadings(i + 1, about, rows, None, below_noise)


def _within(ends: Values | None, i: int, j: int) -> str:
    """Return the interval of a loading, rounded outwards to two digits; empty if unknown."""
    if ends is None or np.isnan(ends[i, j]).any():
        return ""
    low, high = 100 * ends[i, j]
    return minus(f"{math.floor(low) / 100:+.2f} … {math.ceil(high) / 100:+.2f}")


def minus(text: str) -> str:
    """Return text with minus signs in place of hyphens."""
    return text.replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class Explained:
    """The regression of one target, or a refusal."""

    target: str
    refusal: str
    summary: str = ""
    warning: str = ""
    chart: Markup | None = None
    forest: Markup | None = None  # the clearest coefficients, in standard deviations
    sure: Table | None = None  # coefficients whose interval excludes 0
    unsure: Table | None = None
    omitted: int = 0
    about: str = ""


def explained_of(
    release: Release, targets: Sequence[int], on: Sequence[int], units: tuple[Values, Values]
) -> tuple[Explained, ...]:
    """Return the regression of each target; the page reports those below the noise."""
    results: list[Explained] = []
    for target in targets:
        try:
            (result,) = regressions(release, [target], on, None, units)
        except BelowNoiseError as error:
            results.append(Explained(release.names[target], str(error)))
        else:
            results.append(_explained(release, result, units[1], target, first=not results))
    return tuple(results)


def _explained(release: Release, result: Regression, scale: Values, target: int, *, first: bool) -> Explained:
    variances = np.diag(about_mean(release).matrix(release.second_moment))
    deviations = scale * np.sqrt(np.maximum(variances, 0))
    estimates = sorted(
        zip(result.names, result.coefficients, strict=True),
        key=lambda named: -abs(named[1].value) / (named[1].noise or 1.0),
    )
    places = {name: index for index, name in enumerate(release.names)}
    bars = []
    for name, estimate in estimates[:_BARS]:
        factor = float(deviations[places[name]] / deviations[target]) if deviations[target] > 0 else math.inf
        value, (low, high) = factor * estimate.value, (factor * end for end in estimate.interval)
        if np.isfinite([value, low, high]).all():
            bars.append((name, value, low, high))
    if result.centred or result.intercept.value:
        estimates.insert(0, ("intercept", result.intercept))
    sure, unsure = (
        [
            _row(name, estimate)
            for name, estimate in estimates
            if (estimate.interval[0] > 0 or estimate.interval[1] < 0) is clear
        ]
        for clear in (True, False)
    )
    head = ("column", "coefficient", "interval for these rows", "interval for the population")
    about = "about its mean" if result.centred else f"about {centre_name(release)}, as no mean was released"
    share = f"{100 * max(0.0, result.r2.value):.0f} % of its variance {about}"
    return Explained(
        target=result.target,
        refusal="",
        summary=minus(
            f"{counted(len(result.names), 'column')} explain{'s' * (len(result.names) == 1)} {share}: R² is "
            f"{result.r2.value:.3f}, between {outward(*result.r2_interval)}{shrunk(result)}."
        ),
        warning=BELOW_NOISE if result.drowned else "",
        chart=explained(result),
        forest=forest(bars) if len(bars) > 1 else None,
        sure=table_of(head, sure[:_COEFFICIENTS]),
        unsure=table_of(head, unsure[:_COEFFICIENTS]),
        omitted=max(0, len(sure) - _COEFFICIENTS) + max(0, len(unsure) - _COEFFICIENTS),
        about=about_intervals(release, [result]) if first else "",
    )


def _name(name: str) -> Markup:
    """Return a name with its own writing direction, cut after two lines, and complete in a tooltip."""
    return Markup('<bdi class="name" title="{}">{}</bdi>').format(name, name)


def brief_name(name: str) -> Markup:
    """Return a name with its own writing direction, cut after some letters."""
    return Markup('<bdi title="{}">{}</bdi>').format(name, shortened_name(name, _LETTERS))


def _row(name: str, estimate: Estimate) -> Cells:
    if not math.isfinite(estimate.noise):
        return _name(name), "unknown", "unknown", "unknown"
    pairs = estimate.interval, estimate.population_interval
    ends = ("unknown" if pair is None else " … ".join(map(digits, pair)) for pair in pairs)
    return _name(name), digits(estimate.value), *ends
