"""What can be seen of a release and what is noise, as tables and charts: components, correlations, regressions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup, escape

from dpdist._util.text import counted
from dpdist.answers.covariance import correlations
from dpdist.answers.regression import Estimate, Regression, regressions
from dpdist.errors import BelowNoiseError, UsageError
from dpdist.pca.alignment import Alignment, Values, alignment
from dpdist.pca.components import Components, about_mean
from dpdist.pca.correlation import ABOVE
from dpdist.release.artefact import Release
from dpdist.report.answers import DROWNED, about_intervals, common_power, digits, in_units, outward
from dpdist.report.charts import bar, explained, heat, image, shortened_name, spectrum
from dpdist.report.text import between, counted_words, mark

_WHOLE = 2048
"""Columns up to which all eigenvalues are found: seconds; of 4096 it takes half a minute of two cores."""
_OPEN = 6
"""Components whose loadings are shown at once; those after them are folded."""
_MOST = 24
"""Components whose loadings are shown at all."""
_LOADINGS = 8
"""Loadings of a component that are shown, the largest."""
_LISTED = 12
"""Components that are told from noise and listed at once; those after them are folded."""
_LEAST = 0.0005
"""Magnitude of the least loading that is shown, with three digits."""
_ROWS = 100
"""Eigenvalues of the noise that are listed."""
_PAIRED = 12
"""Columns of the heat map: on a small screen a cell of more is too small to see."""
_LETTERS = 40
"""Of a name of two in one line."""
_COEFFICIENTS = 100
"""Coefficients that are listed of one regression."""
Cells = tuple[str | Markup, ...]


@dataclass(frozen=True)
class Table:
    """A table of numbers: its heads, and its rows, of which the first cell is a name."""

    head: Cells
    rows: Sequence[Cells]


def _table(head: Cells, rows: Sequence[Cells]) -> Table | None:
    return Table(head, rows) if rows else None


@dataclass(frozen=True)
class Loadings:
    """The largest loadings of one component, or the component as a picture."""

    number: int
    about: str  # how well it points
    rows: Sequence[tuple[Markup, Markup, str, str]]  # name, bar, number and ends; none where there is a picture
    picture: Markup | None
    drowned: bool  # it may be nothing but noise


@dataclass(frozen=True)
class Seen:
    """The components of a release."""

    sentence: str
    chart: Markup | None = None  # the spectrum, where the noise has a known edge
    whole: bool = False  # the chart has all eigenvalues
    unit: str = ""
    edge: str = ""
    clear: Table | None = None  # those told from noise; where its law is not known, all
    rest: Table | None = None  # those of them that are folded
    drowned: Table | None = None
    omitted: int = 0
    first: Sequence[Loadings] = ()
    folded: Sequence[Loadings] = ()
    noise: Sequence[Loadings] = ()


def seen_of(release: Release, found: Components, shape: tuple[int, int] | None) -> Seen:
    """Return what there is to see of the components of a release."""
    told = alignment(release, found)
    shown = [_loadings(release, found, i, told, shape) for i in range(min(len(found.components), _MOST))]
    clear, noise = ([one for one in shown if one.drowned is drowned] for drowned in (False, True))
    return replace(_spectrum(release, found, told), first=clear[:_OPEN], folded=clear[_OPEN:], noise=noise[:_OPEN])


def _spectrum(release: Release, found: Components, told: Alignment | None) -> Seen:
    if found.eigenvalues is None:
        return Seen("The mechanism releases directions, and nothing about how strong they are.")
    unit = escape(" per row" if found.per_row else " of the sum over all rows")
    if told is None or told.errors is None or told.edge is None:
        sentence = "Nobody knows the law of this mechanism's noise, so nothing tells a component from noise."
        if release.noise.variance_off_diagonal == 0:
            sentence = "No noise was added: all of this is exact, and private."
        power = common_power(found.eigenvalues.tolist())
        rows = [(str(i + 1), digits(value / 10.0**power)) for i, value in enumerate(found.eigenvalues)]
        return Seen(sentence, unit=unit + in_units(power), clear=Table(("component", "eigenvalue"), rows))
    total = release.bound.columns
    values = _all_values(release, found.eigenvalues)
    more = np.full(max(0, len(values) - len(told.errors)), told.errors[-1])  # no smaller eigenvalue is farther off
    every = replace(told, eigenvalues=values, errors=np.concatenate([told.errors, more]))
    power = common_power([*values.tolist(), *every.intervals.ravel().tolist()])
    one = 10.0**power
    clear = _clear_rows(told, one)
    drowned = [
        (str(i + 1), digits(values[i] / one), digits(every.intervals[i, 1] / one))
        for i in range(told.counted, min(len(values), told.counted + _ROWS))
    ]
    return Seen(
        _sentence(told, total),
        chart=spectrum(every, per_row=found.per_row, total=total),
        whole=len(values) == total,
        unit=unit + in_units(power),
        edge=digits(told.edge / one),
        clear=_table(_CLEAR, clear[:_LISTED]),
        rest=_table(_CLEAR, clear[_LISTED:]),
        drowned=_table(("component", "eigenvalue", "exact one of clipped rows at most"), drowned),
        omitted=total - told.counted - len(drowned),
    )


def _sentence(told: Alignment, total: int) -> str:
    rest = total - told.counted
    if not told.counted or not rest:
        return counted_words(told)
    return f"{counted_words(told)} The other {f'{rest} ' * (rest > 1)}may be nothing but noise."


def _all_values(release: Release, first: Values) -> Values:
    """Return all eigenvalues, descending; the first ones of a release that is too wide."""
    if len(first) == release.bound.columns or release.bound.columns > _WHOLE:
        return first
    matrix = about_mean(release).matrix(release.second_moment)
    return np.linalg.eigvalsh(matrix)[::-1].astype(np.float64)


_CLEAR = ("component", "eigenvalue", "without the noise", "exact one of clipped rows in", "squared cosine", "between")


def _clear_rows(told: Alignment, one: float) -> list[Cells]:
    rows: list[Cells] = []
    for i in np.flatnonzero(np.isfinite(told.strengths)).tolist():
        numbers = told.eigenvalues[i], told.strengths[i], *told.intervals[i]
        value, strength, low, high = (digits(number / one) for number in numbers)
        cosine = f"{told.squared_cosines[i]:.3f}{mark(told, i)}"
        rows.append((str(i + 1), value, strength, f"{low} … {high}", cosine, _ends(told.cosine_intervals[i])))
    return rows


def _ends(interval: Values) -> str:
    return between(interval).replace("..", "…")


def _loadings(
    release: Release, found: Components, i: int, told: Alignment | None, shape: tuple[int, int] | None
) -> Loadings:
    vector = found.components[i]
    about, ends, drowned = "", None, False
    if told is not None:
        group, ends = told.group_of(i), told.loadings
        drowned = group is None
        if group is not None and len(group) > 1:
            about = f"cannot be told from the others of {group.start + 1} to {group.stop}"
        elif group is not None:
            about = f"squared cosine with the exact one: {_ends(told.cosine_intervals[i])}"
    reach = float(np.abs(vector).max())
    if shape is not None:
        picture = image(vector.reshape(shape), f"Component {i + 1} as an image", reach)
        return Loadings(i + 1, about, (), picture, drowned)
    largest = np.argsort(-np.abs(vector), kind="stable")[:_LOADINGS]
    rows = [
        (_name(release.names[j]), bar(float(vector[j]), reach), _minus(f"{vector[j]:+.3f}"), _within(ends, i, j))
        for j in largest
        if abs(vector[j]) >= _LEAST
    ]
    return Loadings(i + 1, about, rows, None, drowned)


def _within(ends: Values | None, i: int, j: int) -> str:
    """Return the ends of a loading, rounded outwards to two digits; nothing where they are not known."""
    if ends is None or np.isnan(ends[i, j]).any():
        return ""
    low, high = 100 * ends[i, j]
    return _minus(f"{math.floor(low) / 100:+.2f} … {math.ceil(high) / 100:+.2f}")


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class Heat:
    """Correlations of some columns, or why there are none."""

    refusal: str
    chosen: str = ""  # which columns these are, and why
    most: str = ""  # what the noise may do to any of them
    charts: tuple[Markup, Markup] | None = None
    pairs: Table | None = None  # the same as a table


def heat_of(release: Release) -> Heat:
    """Return the correlations of the columns that stand out most, if the release permits it."""
    try:
        found = correlations(release, _PAIRED)
    except (UsageError, BelowNoiseError) as error:
        return Heat(str(error))
    names, d, count = release.names, release.bound.columns, len(found.columns)
    if count < 2:
        vary = "varies" if found.clear == 1 else "vary"
        return Heat(f"{found.clear} of {d} columns {vary} clearly above the noise, and a correlation takes two.")
    about = "the released mean" if release.bound.constant else "the public centre: no mean was released"
    chosen = f"Of the rows as they were shortened, about {about}. "
    if found.clear < d:
        chosen += (
            f"{found.clear} of {d} columns have a variance more than {ABOVE:g} standard deviations of noise above 0. "
        )
    if found.clear > count:
        chosen += (
            f"These {count} stand farthest above it; more would be too small to read on a page. "
            "They were chosen by their variance, and not by how they are correlated. "
        )
    rows = []
    places = [(i, j) for i in range(count) for j in range(i)]
    for i, j in sorted(places, key=lambda place: -abs(found.values[place])):
        pair = _brief(names[found.columns[j]]) + " and " + _brief(names[found.columns[i]])
        low, high = 1000 * found.intervals[i, j]
        ends = f"{_signed(math.floor(low) / 1000)} … {_signed(math.ceil(high) / 1000)}"
        rows.append((pair, _signed(found.values[i, j]), ends))
    most = float((found.intervals[..., 1] - found.intervals[..., 0]).max()) / 2
    pairs = Table(("columns", "correlation", "exact one between"), rows)
    return Heat("", chosen, f"{most:.2g}", heat(found, names), pairs)


def _signed(value: float) -> str:
    return _minus(f"{round(value, 3) + 0.0:.3f}")


@dataclass(frozen=True)
class Explained:
    """The regression of one target, or why there is none."""

    target: str
    refusal: str
    summary: str = ""
    drowned: str = ""
    chart: Markup | None = None
    sure: Table | None = None  # coefficients whose interval leaves out 0
    unsure: Table | None = None
    omitted: int = 0
    about: str = ""


def explained_of(
    release: Release, targets: Sequence[int], on: Sequence[int], units: tuple[Values, Values]
) -> tuple[Explained, ...]:
    """Return the regression of each target; that one is drowned in noise is said on the page."""
    said: list[Explained] = []
    for target in targets:
        try:
            (found,) = regressions(release, [target], on, None, units)
        except BelowNoiseError as error:
            said.append(Explained(release.names[target], str(error)))
        else:
            said.append(_explained(release, found, first=not said))
    return tuple(said)


def _explained(release: Release, found: Regression, *, first: bool) -> Explained:
    estimates = sorted(
        zip(found.names, found.coefficients, strict=True),
        key=lambda named: -abs(named[1].value) / (named[1].noise or 1.0),
    )
    if found.centred or found.intercept.value:
        estimates.insert(0, ("intercept", found.intercept))
    sure, unsure = (
        [_row(name, each) for name, each in estimates if (each.interval[0] > 0 or each.interval[1] < 0) is clear]
        for clear in (True, False)
    )
    head = ("column", "coefficient", "for these rows between", "for the population between")
    about = "about its mean" if found.centred else "about the public centre, as no mean was released"
    share = f"{100 * max(0.0, found.r2.value):.0f} % of its variance {about}"
    return Explained(
        target=found.target,
        refusal="",
        summary=_minus(
            f"{counted(len(found.names), 'column')} explain{'s' * (len(found.names) == 1)} {share}: R² is "
            f"{found.r2.value:.3f}, between {outward(*found.r2_interval)}."
        ),
        drowned=DROWNED if found.drowned else "",
        chart=explained(found),
        sure=_table(head, sure[:_COEFFICIENTS]),
        unsure=_table(head, unsure[:_COEFFICIENTS]),
        omitted=max(0, len(sure) - _COEFFICIENTS) + max(0, len(unsure) - _COEFFICIENTS),
        about=about_intervals(release, found) if first else "",
    )


def _name(name: str) -> Markup:
    """Return a name that keeps its own direction of writing, cut after two lines; a pointer on it shows all of it."""
    return Markup('<bdi class="name" title="{}">{}</bdi>').format(name, name)


def _brief(name: str) -> Markup:
    """Return a name that keeps its own direction of writing, cut after some letters."""
    return Markup('<bdi title="{}">{}</bdi>').format(name, shortened_name(name, _LETTERS))


def _row(name: str, each: Estimate) -> Cells:
    if not math.isfinite(each.noise):
        return _name(name), "not told", "not known", "not known"
    pairs = each.interval, each.population_interval
    ends = ("not known" if pair is None else " … ".join(map(digits, pair)) for pair in pairs)
    return _name(name), digits(each.value), *ends
