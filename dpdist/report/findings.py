"""The findings of a release in words: which columns rise together, and which variables are associated.

A column is named in a sentence about a component if the interval of its loading leaves out 0, if the loading is at
least half of the largest one, and if its correlation with each other named column has the sign that the sentence says,
again by an interval. An association is named if its interval leaves out 0, and if independent variables would hardly
have it in a sample of so many rows. Ends of intervals are rounded outwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from dpdist.answers.alignment import alignment
from dpdist.answers.association import Strength
from dpdist.answers.bias import ClippedRows
from dpdist.answers.block import NORMAL
from dpdist.answers.captured import WIDE, captured
from dpdist.answers.components import Components
from dpdist.answers.correlation import Correlation
from dpdist.answers.covariance import Correlations
from dpdist.answers.relate import Relation
from dpdist.answers.variables import Variables
from dpdist.core.release.artefact import Release
from dpdist.core.text import counted
from dpdist.report.charts import shortened_name
from dpdist.report.correlations import Heat, Standardised, is_known, variables_of
from dpdist.report.explained import Explained
from dpdist.report.pairs import strength_ends
from dpdist.report.related import Related
from dpdist.report.tables import minus

_COMPONENTS = 3
"""Largest number of components that are told in words."""
_COLUMNS = 6
"""Largest number of columns named for one of them."""
_PART = 0.5
"""Least loading of a column that is named, relative to the largest one."""
_ASSOCIATIONS = 5
"""Largest number of associations that are named."""
_LETTERS = 28
_ADJUSTED = 0.05
"""Largest adjusted p-value of an association that is named."""
NOTHING = (
    "Nothing stands out from the noise of this release: no columns that rise together, and no association. A larger "
    "epsilon or more rows may reveal some."
)


@dataclass(frozen=True)
class Findings:
    """Sentences about what a release shows; one that says so if it shows nothing."""

    sentences: Sequence[Markup]
    about: str  # which rows they describe
    unknown: str  # why they may not hold for the rows as they are; empty if they do


def findings_of(
    release: Release,
    standardised: Standardised | None,
    moment: Components | None,
    related: Related | None,
    heat: Heat | None,
    explained: Sequence[Explained],
    rows: ClippedRows,
) -> Findings:
    """Return what a release shows in words; ``moment``: the components that are shown if not those of correlations."""
    every = None if heat is None else heat.every
    sentences = [_of_target(each) for each in explained]
    if standardised is not None and standardised.result is not None and every is not None:
        sentences += _of_components(release, standardised.result, every)
    if related is not None:
        sentences += _of_relations(related.held, related.relations)
    elif every is not None and heat is not None:
        sentences += _of_correlations(release.names, every, heat.shown, release.row_count)
    if moment is not None:
        sentences += _of_moment(release, moment)
    what = (rows.filled if standardised is None else rows).describe().removeprefix("of ")
    about = (
        f"{'It describes' if len(sentences) == 1 else 'They describe'} {what}: rows of this table, not a population. "
        "Each interval contains the exact number in about nine of ten releases or more, with respect to the noise."
    )
    return Findings(sentences or [escape(NOTHING)], about if sentences else "", rows.unknown if sentences else "")


def _of_components(release: Release, result: Correlation, every: Correlations) -> list[Markup]:
    """Return a sentence for each of the first components that has columns with known signs."""
    names, least, sentences = release.names, _by_chance(release.row_count), list[Markup]()
    variables = variables_of(release)
    for i, share in enumerate(result.shares):
        if len(sentences) == _COMPONENTS or not is_known(result, i) or result.alignment is None:
            continue
        if result.alignment.loadings is None or result.intervals is None:
            continue
        columns = rising(result.components.components[i], result.alignment.loadings[i], every, variables, least)
        if len(columns) < 2:
            continue
        up, down = ([names[j] for j, sign in columns.items() if sign == wanted] for wanted in (1, -1))
        ends = result.intervals[i] if np.isfinite(result.intervals[i]).all() else (share, share)
        sentences.append(_moving(up, down) + f": {_percent(*ends)} of the variance of all columns.")
    return sentences


def rising(
    vector: np.typing.NDArray[np.float64],
    ends: np.typing.NDArray[np.float64],
    every: Correlations,
    variables: Sequence[str],
    least: float = 0.0,
) -> dict[int, int]:
    """Return columns that rise with a component (1) or fall (-1), such that each pair is correlated accordingly.

    Of the columns of one of the ``variables`` only the first is named, as categories exclude each other. Correlations
    closer to 0 than ``least`` do not count.
    """
    places = {j: place for place, j in enumerate(every.columns)}
    signs = (ends[:, 0] > 0).astype(int) - (ends[:, 1] < 0)
    largest = float(np.abs(vector).max())
    named: dict[int, int] = {}
    for j in np.argsort(-np.abs(vector), kind="stable").tolist():
        if not signs[j] or abs(vector[j]) < _PART * largest or j not in places:
            continue
        if variables[j] in {variables[i] for i in named}:
            continue
        pairs = [(every.intervals[places[i], places[j]], sign * signs[j]) for i, sign in named.items()]
        if all((low if same > 0 else -high) > least for (low, high), same in pairs):
            named[j] = int(signs[j])
        if len(named) == _COLUMNS:
            break
    return named


def _moving(up: Sequence[str], down: Sequence[str]) -> Markup:
    """Return which columns rise together and which fall."""
    if len(up) < min(2, len(down)):
        up, down = down, up  # along the other direction
    if not down:
        return _listed(up) + " rise together"
    falls = "falls" if len(down) == 1 else "fall"
    if len(up) == 1:
        return _listed(up) + " rises where " + _listed(down) + f" {falls}"
    return _listed(up) + " rise together where " + _listed(down) + f" {falls}"


def _of_relations(held: Variables, found: Sequence[Relation]) -> list[Markup]:
    """Return a sentence about the strongest associations that are above the noise and chance."""
    strongest = [pair for pair in found if _is_told(held, pair)][:_ASSOCIATIONS]
    if not strongest:
        return []
    text = _strongest([(pair.first, pair.second, strength) for pair in strongest if (strength := pair.strength)])
    if any(pair.strength is not None and pair.strength.merged for pair in strongest):
        text += " Small categories are merged."
    return [text]


def _is_told(held: Variables, found: Relation) -> bool:
    """Whether an association is above the noise, as its ends are written, and above chance."""
    if found.strength is None:
        return False
    least = _least(found.strength)
    if not least:
        return False
    if found.adjusted is not None:
        return found.adjusted < _ADJUSTED
    sizes = [held.categorical[name].size - 1 for name in (found.first, found.second) if name in held.categorical]
    degrees = math.prod(sizes)
    chance = math.sqrt((degrees + NORMAL * math.sqrt(2 * degrees)) / held.rows)
    return least > (chance / math.sqrt(min(sizes)) if len(sizes) > 1 else chance)


def _least(strength: Strength) -> float:
    """Return the end of an interval that is nearer to 0; 0 if it contains 0, as it is written."""
    low, high = strength.interval
    least = max(low, -high)
    return least if math.floor(100 * least) > 0 else 0.0


def _of_correlations(
    names: Sequence[str], every: Correlations, columns: Sequence[int], rows: float | None
) -> list[Markup]:
    """Return a sentence about the strongest correlations whose intervals leave out 0 and chance."""
    places = [place for place, j in enumerate(every.columns) if j in set(columns)]
    told = []
    for second in places:
        for first in (place for place in places if place < second):
            strength = Strength("r", float(every.values[first, second]), tuple(every.intervals[first, second].tolist()))
            if _least(strength) > _by_chance(rows):
                told.append((names[every.columns[first]], names[every.columns[second]], strength))
    told.sort(key=lambda pair: -abs(pair[2].value))
    return [_strongest(told[:_ASSOCIATIONS])] if told else []


def _by_chance(rows: float | None) -> float:
    """Return a correlation that independent columns hardly exceed in a sample of so many rows."""
    return 0.0 if rows is None or rows <= 0 else NORMAL / math.sqrt(rows)


def _strongest(pairs: Iterable[tuple[str, str, Strength]]) -> Markup:
    """Return a sentence about pairs, the strongest first."""
    said = [
        _name(first) + " with " + _name(second) + f" ({strength.measure} {minus(' to '.join(strength_ends(strength)))})"
        for first, second, strength in pairs
    ]
    noun = "association: " if len(said) == 1 else "associations: "
    return Markup("The strongest ") + noun + Markup(", ").join(said) + "."


def _of_target(found: Explained) -> Markup:
    """Return what the other columns tell about a target."""
    name = _name(found.target)
    if found.refusal:
        return Markup("Nothing is told of {}: {}").format(name, found.refusal)
    low, high = found.shares
    share = _percent(low, high) if math.floor(100 * low) > 0 else f"at most {math.ceil(100 * high)} %"
    if math.floor(100 * low) <= 0 and not found.clearest:
        return Markup("It is not known whether the other columns explain {}: {} of its variance.").format(name, share)
    text = Markup("The other columns explain {} of the variance of {}").format(share, name)
    up, down = ([column for column, rises in found.clearest if rises is wanted] for wanted in (True, False))
    signs = [_listed(part) + f" ({sign})" for part, sign in ((up, "positive"), (down, "negative")) if part]
    return text + (Markup(". The clearest coefficients: ") + Markup("; ").join(signs) if signs else "") + "."


def _of_moment(release: Release, result: Components) -> list[Markup]:
    """Return how many components of the second moment are above the noise, and what they hold."""
    aligned = alignment(release, result)
    if aligned is None or not aligned.counted:
        return []
    text = f"{counted(aligned.counted, 'component')} of {release.bound.columns} can be told from the noise"
    count = min(aligned.counted, len(result.components))
    part = captured(release, result.leading(count)) if release.bound.columns <= WIDE else None
    if part is None:
        return [escape(f"{text}.")]
    first = "It holds" if count == 1 else f"The first {count} hold" if count < aligned.counted else "Together they hold"
    return [escape(f"{text}. {first} {_percent(*part.share_intervals[-1])} of the variance.")]


def _percent(low: float, high: float) -> str:
    """Return a share in percent, rounded outwards.

    >>> _percent(0.0757, 0.0789), _percent(0.5, 0.5)
    ('7 to 8 %', '50 %')
    """
    ends = f"{max(0, math.floor(100 * low + 1e-9))}", f"{min(100, math.ceil(100 * high - 1e-9))}"
    return f"{ends[0]} %" if ends[0] == ends[1] else f"{ends[0]} to {ends[1]} %"


def _listed(names: Sequence[str]) -> Markup:
    shown = [_name(name) for name in names]
    return shown[0] if len(shown) == 1 else Markup(", ").join(shown[:-1]) + " and " + shown[-1]


def _name(name: str) -> Markup:
    """Return a name that stands out of a sentence."""
    return Markup('<b><bdi title="{}">{}</bdi></b>').format(name, shortened_name(name, _LETTERS))
