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
from dpdist.errors import DrownedError, UsageError
from dpdist.pca.alignment import Alignment, Values, alignment, noise_law
from dpdist.pca.components import Components, about_mean
from dpdist.pca.correlation import ABOVE
from dpdist.pca.noise_edge import CONFIDENCE
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


@dataclass(frozen=True)
class Table:
    """A table of numbers: its heads, and its rows, of which the first cell is a name."""

    head: tuple[str | Markup, ...]
    rows: tuple[tuple[str | Markup, ...], ...]


@dataclass(frozen=True)
class Loadings:
    """The largest loadings of one component, or the component as a picture.

    Attributes
    ----------
    number
        Counted from 1.
    about
        How well it points, in words.
    rows
        Name, bar and number of each loading, and between which ends it lies; the last empty where nobody knows.
    picture
        None where there are loadings.
    drowned
        Whether it may be nothing but noise.
    """

    number: int
    about: str
    rows: tuple[tuple[Markup, Markup, str, str], ...]
    picture: Markup | None
    drowned: bool


@dataclass(frozen=True)
class Seen:
    """The components of a release.

    Attributes
    ----------
    sentence
        How many can be told from noise.
    chart
        Of the spectrum; None where the noise has no known edge.
    whole
        Whether the chart has all eigenvalues.
    unit
        What eigenvalues are of, and by what they were divided.
    edge, chance, confidence
        What noise alone stays below, how probably it does not, and the opposite; empty where it is not known.
    clear, rest, drowned
        Tables of the components that are told, of those among them that are folded, and of the others; of no known law
        all are in the first. None of a release of components only, and where there are none.
    omitted
        How many of the others are not listed.
    first, folded, noise
        Loadings that are shown at once, that are folded, and of components that may be nothing but noise.
    """

    sentence: str
    chart: Markup | None = None
    whole: bool = False
    unit: str = ""
    edge: str = ""
    chance: str = ""
    confidence: str = ""
    clear: Table | None = None
    rest: Table | None = None
    drowned: Table | None = None
    omitted: int = 0
    first: tuple[Loadings, ...] = ()
    folded: tuple[Loadings, ...] = ()
    noise: tuple[Loadings, ...] = ()


def seen_of(release: Release, found: Components, shape: tuple[int, int] | None) -> Seen:
    """Return what there is to see of the components of a release."""
    told = alignment(release, found)
    shown = [_loadings(release, found, i, told, shape) for i in range(min(len(found.components), _MOST))]
    clear = tuple(each for each in shown if not each.drowned)
    return replace(
        _spectrum(release, found, told),
        first=clear[:_OPEN],
        folded=clear[_OPEN:],
        noise=tuple(each for each in shown if each.drowned)[:_OPEN],
    )


def _spectrum(release: Release, found: Components, told: Alignment | None) -> Seen:
    if found.eigenvalues is None:
        return Seen("The mechanism releases directions, and nothing about how strong they are.")
    unit = escape(" per row" if found.per_row else " of the sum over all rows")
    if told is None or told.errors is None or told.edge is None:
        power = common_power(found.eigenvalues.tolist())
        rows = tuple((str(i + 1), digits(value / 10.0**power)) for i, value in enumerate(found.eigenvalues))
        exact = release.noise.variance_off_diagonal == 0
        return Seen(
            "No noise was added: all of this is exact, and private."
            if exact
            else "Nobody knows the law of this mechanism's noise, so nothing tells a component from noise.",
            unit=unit + in_units(power),
            clear=Table(("component", "eigenvalue"), rows),
        )
    total = release.bound.columns
    values = _all_values(release, found.eigenvalues)
    more = np.full(max(0, len(values) - len(told.errors)), told.errors[-1])  # no smaller eigenvalue is farther off
    every = replace(told, eigenvalues=values, errors=np.concatenate([told.errors, more]))
    power = common_power([*values.tolist(), *every.intervals.ravel().tolist()])
    one = 10.0**power
    clear, drowned = _clear(told, one), _drowned(every, one)
    return Seen(
        _sentence(told, total),
        chart=spectrum(every, per_row=found.per_row, total=total),
        whole=len(values) == total,
        unit=unit + in_units(power),
        edge=digits(told.edge / one),
        chance=f"{1 - CONFIDENCE:.2g}",
        confidence=f"{CONFIDENCE:g}",
        clear=Table(clear.head, clear.rows[:_LISTED]) if clear.rows else None,
        rest=Table(clear.head, clear.rows[_LISTED:]) if clear.rows[_LISTED:] else None,
        drowned=drowned if drowned.rows else None,
        omitted=total - told.counted - len(drowned.rows),
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


def _clear(told: Alignment, one: float) -> Table:
    head = (
        "component",
        "eigenvalue",
        "without the noise",
        "exact one of clipped rows in",
        "squared cosine",
        "between",
    )
    rows = []
    for i in np.flatnonzero(np.isfinite(told.strengths)).tolist():
        low, high = told.intervals[i] / one
        rows.append((
            str(i + 1), digits(told.eigenvalues[i] / one), digits(told.strengths[i] / one),
            f"{digits(low)} … {digits(high)}", f"{told.squared_cosines[i]:.3f}{mark(told, i)}",
            _ends(told.cosine_intervals[i]),
        ))  # fmt: skip
    return Table(head, tuple(rows))


def _drowned(told: Alignment, one: float) -> Table:
    rows = [
        (str(i + 1), digits(told.eigenvalues[i] / one), digits(told.intervals[i, 1] / one))
        for i in range(told.counted, min(len(told.eigenvalues), told.counted + _ROWS))
    ]
    return Table(("component", "eigenvalue", "exact one of clipped rows at most"), tuple(rows))


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
    if shape is not None:
        picture = image(vector.reshape(shape), f"Component {i + 1} as an image", float(np.abs(vector).max()))
        return Loadings(i + 1, about, (), picture, drowned)
    largest = np.argsort(-np.abs(vector), kind="stable")[:_LOADINGS]
    reach = float(np.abs(vector).max())
    rows = tuple(
        (_name(release.names[j]), bar(float(vector[j]), reach), _minus(f"{vector[j]:+.3f}"), _within(ends, i, j))
        for j in largest
        if abs(vector[j]) >= _LEAST
    )
    return Loadings(i + 1, about, rows, None, drowned)


def _within(ends: Values | None, i: int, j: int) -> str:
    """Return between which ends a loading lies, rounded outwards to two digits; nothing where that is not known."""
    if ends is None or np.isnan(ends[i, j]).any():
        return ""
    low, high = 100 * ends[i, j]
    return _minus(f"{math.floor(low) / 100:+.2f} … {math.ceil(high) / 100:+.2f}")


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class Heat:
    """Correlations of some columns, or why there are none.

    Attributes
    ----------
    refusal
        Why there are none, and what would give some; empty where there are.
    chosen
        Of which columns they are, and why.
    most
        What the noise may do to any of them.
    charts
        The correlations, and what each may be off by.
    pairs
        The same as a table.
    """

    refusal: str
    chosen: str
    most: str
    charts: tuple[Markup, Markup] | None
    pairs: Table | None


def heat_of(release: Release) -> Heat:
    """Return the correlations of the columns that stand out most, if the release permits it."""
    try:
        found = correlations(release, _PAIRED)
    except (UsageError, DrownedError) as error:
        return Heat(str(error), "", "", None, None)
    names, d = release.names, release.bound.columns
    if len(found.columns) < 2:
        vary = "varies" if found.clear == 1 else "vary"
        said = f"{found.clear} of {d} columns {vary} clearly above the noise, and a correlation takes two."
        return Heat(said, "", "", None, None)
    about = "the released mean" if release.bound.constant else "the public centre: no mean was released"
    chosen = f"Of the rows as they were shortened, about {about}. "
    if found.clear < d:
        chosen += (
            f"{found.clear} of {d} columns have a variance more than {ABOVE:g} standard deviations of noise above 0. "
        )
    if found.clear > len(found.columns):
        chosen += (
            f"These {len(found.columns)} stand farthest above it; more would be too small to read on a page. "
            "They were chosen by their variance, and not by how they are correlated. "
        )
    rows = sorted(
        ((i, j) for i in range(len(found.columns)) for j in range(i)), key=lambda p: -abs(found.values[p[0], p[1]])
    )
    table = tuple(
        (
            _brief(names[found.columns[j]]) + " and " + _brief(names[found.columns[i]]),
            _signed(found.values[i, j]),
            _signed(math.floor(1000 * found.intervals[i, j, 0]) / 1000)
            + " … "
            + _signed(math.ceil(1000 * found.intervals[i, j, 1]) / 1000),
        )
        for i, j in rows
    )
    most = float((found.intervals[..., 1] - found.intervals[..., 0]).max()) / 2
    return Heat(
        "", chosen, f"{most:.2g}", heat(found, names), Table(("columns", "correlation", "exact one between"), table)
    )


def _signed(value: float) -> str:
    return _minus(f"{round(value, 3) + 0.0:.3f}")


@dataclass(frozen=True)
class Explained:
    """The regression of one target, or why there is none.

    Attributes
    ----------
    target
        Its name.
    refusal
        Why there is none; empty where there is.
    summary
        How much of it the columns explain, in words.
    drowned
        What is said where they may explain nothing.
    chart
        Of R².
    sure, unsure
        The coefficients of which the interval leaves out 0, and the others; None where there are none.
    omitted
        How many of the others are not listed.
    about
        What the intervals are about.
    """

    target: str
    refusal: str
    summary: str = ""
    drowned: str = ""
    chart: Markup | None = None
    sure: Table | None = None
    unsure: Table | None = None
    omitted: int = 0
    about: str = ""


def explained_of(
    release: Release, targets: Sequence[int], on: Sequence[int], units: tuple[Values, Values]
) -> tuple[Explained, ...]:
    """Return the regression of each target; that one is drowned in noise is said on the page."""
    said = []
    for target in targets:
        try:
            (found,) = regressions(release, [target], on, None, units)
        except DrownedError as error:
            said.append(Explained(release.names[target], str(error)))
        else:
            said.append(_explained(release, found, first=not said))
    return tuple(said)


def _explained(release: Release, found: Regression, *, first: bool) -> Explained:
    coefficients = list(zip(found.names, found.coefficients, strict=True))
    coefficients.sort(key=lambda each: -abs(each[1].value) / (each[1].noise or 1.0))
    rows = [(_row(name, each), each.interval[0] > 0 or each.interval[1] < 0) for name, each in coefficients]
    sure, unsure = ([row for row, is_sure in rows if is_sure is wanted] for wanted in (True, False))
    if found.centred or found.intercept.value:
        low, high = found.intercept.interval
        (sure if low > 0 or high < 0 else unsure).insert(0, _row("intercept", found.intercept))
    head = ("column", "coefficient", "for these rows between", "for the population between")
    low, high = found.r2_interval
    about = "about its mean" if found.centred else "about the public centre, as no mean was released"
    left = [table[:_COEFFICIENTS] for table in (sure, unsure)]
    return Explained(
        target=found.target,
        refusal="",
        summary=(
            f"{counted(len(found.names), 'column')} explain{'s' * (len(found.names) == 1)} "
            f"{100 * max(0.0, found.r2.value):.0f} % of its variance {about}: R² is "
            f"{found.r2.value:.3f}, between {outward(low, high)}.".replace("-", "\N{MINUS SIGN}")
        ),
        drowned=DROWNED if found.drowned else "",
        chart=explained(found),
        sure=Table(head, tuple(left[0])) if left[0] else None,
        unsure=Table(head, tuple(left[1])) if left[1] else None,
        omitted=len(sure) + len(unsure) - len(left[0]) - len(left[1]),
        about=about_intervals(release, found) if first else "",
    )


def _name(name: str) -> Markup:
    """Return a name that keeps its own direction of writing, cut after two lines; a pointer on it shows all of it."""
    return Markup('<bdi class="name" title="{}">{}</bdi>').format(name, name)


def _brief(name: str) -> Markup:
    """Return a name that keeps its own direction of writing, cut after some letters."""
    return Markup('<bdi title="{}">{}</bdi>').format(name, shortened_name(name, _LETTERS))


def _row(name: str, each: Estimate) -> tuple[str | Markup, ...]:
    population = each.population_interval
    if not math.isfinite(each.noise):
        return _name(name), "not told", "not known", "not known"
    return (
        _name(name),
        digits(each.value),
        " … ".join(map(digits, each.interval)),
        "not known" if population is None else " … ".join(map(digits, population)),
    )


def edge_is_known(release: Release) -> bool:
    """Say whether anybody knows where the noise of a release ends."""
    return noise_law(release) is not None
