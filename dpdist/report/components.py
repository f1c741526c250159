"""Components of a released second moment: its spectrum over the noise, and the largest loadings of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup, escape

from dpdist.answers.alignment import Alignment, alignment
from dpdist.answers.components import Components, about_mean
from dpdist.core.release.artefact import Release
from dpdist.report.answers import common_power, digits, in_units
from dpdist.report.charts import bar, image, spectrum
from dpdist.report.components_text import count_text, mark
from dpdist.report.tables import Cells, Table, Values, ends_of, full_name, minus, table_of, within

_ALL_COLUMNS = 2048
"""Largest number of columns for all eigenvalues: seconds; 4096 take half a minute on two cores."""
_OPEN = 6
"""Components with visible loadings; later ones are folded."""
MOST = 24
"""Largest number of components with loadings."""
_LOADINGS = 8
"""Number of loadings shown per component, the largest."""
_LISTED = 12
"""Components above the noise in the visible list; later ones are folded."""
_LEAST = 0.0005
"""Least magnitude of a loading shown with three digits."""
_ROWS = 100
"""Largest number of eigenvalues listed below the noise."""


@dataclass(frozen=True)
class Loadings:
    """The largest loadings of one component, or its picture."""

    number: int
    about: str  # its alignment
    rows: Sequence[tuple[Markup, Markup, str, str]]  # name, bar, number and interval; empty with a picture
    picture: Markup | None
    below_noise: bool  # it may be only noise


@dataclass(frozen=True)
class MomentComponents:
    """The components of a released second moment."""

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


def moment_components(release: Release, result: Components, shape: tuple[int, int] | None) -> MomentComponents:
    """Return the components of a release as tables and charts."""
    aligned = alignment(release, result)
    shown = [loadings_of(release, result, i, aligned, shape) for i in range(min(len(result.components), MOST))]
    clear, noise = ([entry for entry in shown if entry.below_noise is below] for below in (False, True))
    return replace(_spectrum(release, result, aligned), first=clear[:_OPEN], folded=clear[_OPEN:], noise=noise[:_OPEN])


def _spectrum(release: Release, result: Components, aligned: Alignment | None) -> MomentComponents:
    if result.eigenvalues is None:
        return MomentComponents("The mechanism releases directions, but not their strengths.")
    unit = escape(" per row" if result.per_row else " of the sum over all rows")
    if aligned is None or aligned.errors is None or aligned.edge is None:
        sentence = (
            "The distribution of this mechanism's noise is unknown, so components cannot be distinguished from noise."
        )
        if release.noise.variance_off_diagonal == 0:
            sentence = "No noise was added: these numbers are exact, and must stay private."
        power = common_power(result.eigenvalues.tolist())
        rows = [(str(i + 1), digits(value / 10.0**power)) for i, value in enumerate(result.eigenvalues)]
        return MomentComponents(sentence, unit=unit + in_units(power), clear=Table(("component", "eigenvalue"), rows))
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
    return MomentComponents(
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


def loadings_of(
    release: Release, result: Components, i: int, aligned: Alignment | None, shape: tuple[int, int] | None
) -> Loadings:
    """Return the largest loadings of component ``i``, or its picture of this height and width."""
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
        (full_name(release.names[j]), bar(float(vector[j]), reach), minus(f"{vector[j]:+.3f}"), _ends(ends, i, j))
        for j in largest
        if abs(vector[j]) >= _LEAST
    ]
    return Loadings(i + 1, about, rows, None, below_noise)


def _ends(ends: Values | None, i: int, j: int) -> str:
    """Return the interval of a loading; empty if unknown."""
    return "" if ends is None or np.isnan(ends[i, j]).any() else within(ends[i, j, 0], ends[i, j, 1], decimals=2)
