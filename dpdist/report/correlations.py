"""Correlations of a release and the components of its correlation matrix, as tables and charts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from dpdist.answers.correlation import ABOVE, Correlation, correlation
from dpdist.answers.covariance import correlations
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.release.artefact import Release
from dpdist.report.charts import heat
from dpdist.report.findings import Cells, Table, brief_name, ends_of, minus
from dpdist.report.plots import circle, loading_heat
from dpdist.report.text import OF_ALL, count_text, largest_loadings, mark

_HEAD = ("component", "share of variance", "between", "alignment", "largest loadings")
_PAIRED = 12
"""Largest number of columns in the chart of correlations."""
_ROWS = 40
"""Largest number of columns in the chart of loadings."""
_COMPONENTS = 8
"""Largest number of components of the correlation matrix that are shown."""


@dataclass(frozen=True)
class Standardised:
    """The components of the correlation matrix."""

    sentence: str
    table: Table
    loadings: Markup | None  # the chart of loadings; None for many columns
    circle: Markup | None  # None unless two components stand alone


def standardised_of(release: Release) -> Standardised | None:
    """Return the components of the correlation matrix above the noise; None if there are none."""
    try:
        result = correlation(release, None)
    except (UsageError, BelowNoiseError):
        return None
    if result.alignment is None:
        return None
    directions, vectors = result.alignment, result.components.components[:_COMPONENTS]
    drawn, unknown, rows = _loadings(release, result), np.full((len(release.names), 2), np.nan), list[Cells]()
    for i, vector in enumerate(vectors):
        cosine = f"{directions.squared_cosines[i]:.3f}{mark(directions, i)}"
        between = "" if result.intervals is None else ends_of(result.intervals[i])
        row = (str(i + 1), f"{result.shares[i]:.3f}", between, cosine)
        rows.append(row if drawn else (*row, minus(largest_loadings(vector, unknown, release.names))))
    left_out = f" Not above the noise: {', '.join(result.left_out)}. {OF_ALL}" if result.left_out else ""
    return Standardised(
        f"{count_text(directions)}{left_out}",
        Table(_HEAD[: len(rows[0])], rows),
        drawn,
        _circle(release, result),
    )


def _known(result: Correlation, count: int) -> np.typing.NDArray[np.bool_]:
    """Return which loadings have an interval without 0."""
    ends = None if result.alignment is None else result.alignment.loadings
    if ends is None:
        return np.zeros(result.components.components[:count].shape, dtype=np.bool_)
    return np.asarray((ends[:count, :, 0] > 0) | (ends[:count, :, 1] < 0))


def _loadings(release: Release, result: Correlation) -> Markup | None:
    if len(release.names) > _ROWS:
        return None
    vectors, kept = result.components.components[:_COMPONENTS], _kept(release, result)
    return loading_heat(vectors[:, kept], _known(result, len(vectors))[:, kept], [release.names[j] for j in kept])


def _kept(release: Release, result: Correlation) -> list[int]:
    """Return the columns above the noise: nothing is known of the others."""
    return [j for j, name in enumerate(release.names) if name not in result.left_out]


def _circle(release: Release, result: Correlation) -> Markup | None:
    values = result.components.eigenvalues
    if values is None or len(values) < 2:
        return None
    arrows = (result.components.components[:2] * np.sqrt(np.maximum(values[:2], 0))[:, None]).T
    kept = _kept(release, result)
    return circle(arrows[kept], [release.names[j] for j in kept])


@dataclass(frozen=True)
class Heat:
    """Correlations of selected columns, or a refusal."""

    refusal: str
    chosen: str = ""  # the selection of columns
    widest: str = ""  # half of the widest interval
    charts: tuple[Markup, Markup] | None = None
    pairs: Table | None = None  # the same numbers


def heat_of(release: Release) -> Heat:
    """Return the correlations of the columns farthest above the noise, if the release permits them."""
    try:
        result = correlations(release, _PAIRED)
    except (UsageError, BelowNoiseError) as error:
        return Heat(str(error))
    names, d, count = release.names, release.bound.columns, len(result.columns)
    if count < 2:
        vary = "varies" if result.clear == 1 else "vary"
        return Heat(f"{result.clear} of {d} columns {vary} clearly above the noise, and a correlation needs two.")
    centre = "the released mean" if release.bound.constant else "the public centre, as no mean was released"
    chosen = f"Correlations of {'weighted' if release.bound.unit_norm else 'clipped'} rows about {centre}. "
    if result.clear < d:
        chosen += f"{result.clear} of {d} columns have a variance above {ABOVE:g} standard deviations of the noise. "
    if result.clear > count:
        chosen += (
            f"The {count} farthest above the noise are shown; more would be too small to read. "
            "They were chosen by their variance, not by their correlations. "
        )
    rows = []
    pairs_of_columns = [(i, j) for i in range(count) for j in range(i)]
    for i, j in sorted(pairs_of_columns, key=lambda pair: -abs(result.values[pair])):
        pair = brief_name(names[result.columns[j]]) + " and " + brief_name(names[result.columns[i]])
        low, high = 1000 * result.intervals[i, j]
        ends = f"{_signed(math.floor(low) / 1000)} … {_signed(math.ceil(high) / 1000)}"
        rows.append((pair, _signed(result.values[i, j]), ends))
    widest = float((result.intervals[..., 1] - result.intervals[..., 0]).max()) / 2
    pairs = Table(("columns", "correlation", "exact one between"), rows)
    return Heat("", chosen, f"{widest:.2g}", heat(result, names), pairs)


def _signed(value: float) -> str:
    return minus(f"{round(value, 3) + 0.0:.3f}")
