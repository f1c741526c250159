"""Correlations of a release and the components of its correlation matrix, as tables and charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup

from dpdist.answers.alignment import SHOWN, Alignment
from dpdist.answers.correlation import (
    ABOVE,
    Correlation,
    correlation,
    evidence_of,
    has_correlations,
    references_of,
)
from dpdist.answers.covariance import Correlations, correlations
from dpdist.answers.pairwise import indicators
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.release.artefact import Release
from dpdist.core.text import counted
from dpdist.report.components import MOST, Loadings, loadings_of
from dpdist.report.components_text import count_text, omitted, together
from dpdist.report.plots import circle, heat, loading_heat
from dpdist.report.tables import Cells, Table, brief_name, ends_of, minus, within

_SHOWN = 40
"""Largest number of columns in the chart of correlations, and of rows in that of loadings."""
_COMPUTED = 1000
"""Largest number of columns whose correlations are computed."""
_LISTED = 100
"""Largest number of correlations in the table, the strongest."""
_HEAD = ("component", "share of variance", "between", "alignment", "between")


@dataclass(frozen=True)
class Standardised:
    """The components of the correlation matrix, or why there are none."""

    sentence: str
    result: Correlation | None = None
    table: Table | None = None
    cards: Sequence[Loadings] = ()
    about: str = ""  # the columns and components that have no loadings, and why
    loadings: Markup | None = None  # the chart of loadings; None for many columns, or without known ones
    circle: Markup | None = None  # None unless two components stand alone


def standardised_of(release: Release, count: int | None = None) -> Standardised | None:
    """Return the components of the correlation matrix: those above the noise, or ``count``.

    None without such a matrix, or if the components above the noise cannot be counted.
    """
    if not has_correlations(release):
        return None
    try:
        result = correlation(release, count)
    except BelowNoiseError as error:
        return Standardised(str(error))
    except UsageError:
        return None
    directions = result.alignment
    if directions is None:
        return None
    known = [i for i in range(len(result.shares)) if is_known(result, i)]
    return Standardised(
        count_text(directions),
        result,
        Table(_HEAD, _rows(result, directions)),
        [loadings_of(release, result.components, i, directions, None) for i in known[:MOST]],
        f"{_about_loadings(directions, known)} {omitted(result)}".strip(),
        _loadings(release, result, known),
        _circle(release, result),
    )


def is_known(result: Correlation, component: int) -> bool:
    """Whether the loadings of a component, from 0, have intervals."""
    ends = None if result.alignment is None else result.alignment.loadings
    return ends is not None and bool(np.isfinite(ends[component]).any())


def _rows(result: Correlation, directions: Alignment) -> list[Cells]:
    """Return a row for each component that stands alone, group of components, or component below the noise."""
    rows = list[Cells]()
    for group in together(result):
        i, of_group = group.start, list(group)
        share = f"{result.shares[of_group].sum():.3f}"
        if directions.group_of(i) is None:
            rows.append((str(i + 1), share, "may be only noise", "-", "-"))
            continue
        between = "-" if result.intervals is None else ends_of(np.minimum(result.intervals[of_group].sum(axis=0), 1))
        cosine = f"{directions.squared_cosines[i]:.3f}", ends_of(directions.cosine_intervals[i])
        number = f"{i + 1}" if len(group) == 1 else f"{i + 1} to {group.stop}, together"
        rows.append((number, share, between, *cosine))
    return rows


def _about_loadings(directions: Alignment, known: Sequence[int]) -> str:
    """Return why some components have no loadings; empty if all have."""
    count = min(directions.counted, len(directions.eigenvalues))
    untold = [i + 1 for i in range(min(count, SHOWN)) if i not in known]
    mixed = f"The loadings of {counted(len(untold), 'component')} are unknown, as the noise may have mixed "
    mixed += "it with another." if len(untold) == 1 else "them with one another."
    later = f"Loadings are computed for the first {SHOWN} components." if count > SHOWN else ""
    return " ".join(filter(None, (mixed if untold else "", later)))


def _known_loadings(result: Correlation, components: Sequence[int]) -> np.typing.NDArray[np.bool_]:
    """Return which loadings of some components have an interval without 0."""
    if result.alignment is None or result.alignment.loadings is None:
        raise AssertionError("these components have known loadings")
    ends = result.alignment.loadings[list(components)]
    return np.asarray((ends[..., 0] > 0) | (ends[..., 1] < 0))


def _loadings(release: Release, result: Correlation, known: Sequence[int]) -> Markup | None:
    kept = kept_columns(release, result)
    if not known or len(kept) > _SHOWN:
        return None
    vectors, sure = result.components.components[list(known)][:, kept], _known_loadings(result, known)[:, kept]
    return loading_heat(vectors, sure, [release.names[j] for j in kept], [i + 1 for i in known])


def kept_columns(release: Release, result: Correlation) -> list[int]:
    """Return the columns of the correlation matrix: nothing is known of those below the noise."""
    without = {*result.left_out, *(release.names[j] for j in indicators(release))}
    return [j for j, name in enumerate(release.names) if name not in without]


def variables_of(release: Release) -> list[str]:
    """Return the column of the source that each column of a release is made of."""
    described = () if release.schema is None else release.schema.columns
    sources = {feature: column.source.name for column in described for feature in column.features}
    return [sources.get(name, name) for name in release.names]


def _circle(release: Release, result: Correlation) -> Markup | None:
    values = result.components.eigenvalues
    if values is None or len(values) < 2 or not (is_known(result, 0) and is_known(result, 1)):
        return None
    arrows = (result.components.components[:2] * np.sqrt(np.maximum(values[:2], 0))[:, None]).T
    kept = kept_columns(release, result)
    first, second = (f"component {i + 1} ({100 * result.shares[i]:.0f} %)" for i in range(2))
    return circle(arrows[kept], [release.names[j] for j in kept], (first, second))


@dataclass(frozen=True)
class Heat:
    """Correlations of selected columns, or a refusal."""

    refusal: str
    every: Correlations | None = None  # of all columns, references and gaps included
    shown: tuple[int, ...] = ()  # columns of the charts
    chosen: str = ""  # the selection of columns
    widest: str = ""  # half of the widest interval
    charts: tuple[Markup, Markup] | None = None
    pairs: Table | None = None  # the same numbers, the strongest first
    rest: str = ""  # about those that are not listed


def heat_of(release: Release) -> Heat:
    """Return the correlations of the columns above the noise, if the release permits them."""
    try:
        every = correlations(release, _COMPUTED)
    except (UsageError, BelowNoiseError) as error:
        return Heat(str(error))
    result, clear, columns = _chosen(release, every)
    names, count = release.names, len(result.columns)
    if count < 2:
        vary = "varies" if clear == 1 else "vary"
        return Heat(f"{clear} of {columns} columns {vary} clearly above the noise, and a correlation needs two.")
    chosen = f"{_of_rows(release)} {counted(count, 'column')} of {columns}."
    if clear < columns:
        chosen += f" The others have a variance below {ABOVE:g} standard deviations of the noise."
    if clear > count:
        chosen = (
            f"{_of_rows(release)} The {count} columns of {columns} that are farthest above the noise; more would be "
            "too small to read."
        )
    pairs = [(i, j) for i in range(count) for j in range(i)]
    low, high = result.intervals[..., 0], result.intervals[..., 1]
    sure = [p for p in pairs if low[p] > 0 or high[p] < 0]
    listed = sorted(sure, key=lambda p: -abs(result.values[p]))[:_LISTED]
    rows = [
        (
            brief_name(names[result.columns[j]]) + " and " + brief_name(names[result.columns[i]]),
            _signed(result.values[i, j]),
            within(low[i, j], high[i, j]),
        )
        for i, j in listed
    ]
    rest = []
    if len(sure) > len(listed):
        rest.append(f"{len(sure) - len(listed)} weaker ones are not listed.")
    if len(pairs) > len(sure):
        rest.append(f"{len(pairs) - len(sure)} of {len(pairs)} correlations may be 0, within the noise.")
    widest = float((high - low).max()) / 2
    table = Table(("columns", "correlation", "exact one between"), rows) if rows else None
    return Heat("", every, result.columns, chosen, f"{widest:.2g}", heat(result, names), table, " ".join(rest))


def _chosen(release: Release, every: Correlations) -> tuple[Correlations, int, int]:
    """Return the correlations that are shown, and how many columns are above the noise, and could be."""
    first = set(references_of(release))
    without = {*indicators(release), *(j for j, name in enumerate(release.names) if name in first)}
    usable = [place for place, j in enumerate(every.columns) if j not in without]
    strengths = evidence_of(release)
    order = sorted(usable, key=lambda place: -strengths[every.columns[place]])
    kept = sorted(order[:_SHOWN])
    index = np.ix_(kept, kept)
    found = replace(
        every,
        columns=tuple(every.columns[place] for place in kept),
        values=every.values[index],
        intervals=every.intervals[index],
    )
    clear = sum(1 for j in np.flatnonzero(strengths > ABOVE).tolist() if j not in without)
    return found, clear, len(release.names) - len(without)


def _of_rows(release: Release) -> str:
    centre = "the released mean" if release.bound.constant else "the public centre, as no mean was released"
    return f"Correlations of {'weighted' if release.bound.unit_norm else 'clipped'} rows about {centre}."


def _signed(value: float) -> str:
    return minus(f"{round(value, 3) + 0.0:+.3f}")
