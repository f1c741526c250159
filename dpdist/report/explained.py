"""The regression of one column on others, as the page about a release shows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup

from dpdist.answers.components import about_mean
from dpdist.answers.regression import Estimate, Regression, regressions
from dpdist.core.errors import BelowNoiseError
from dpdist.core.release.artefact import Release
from dpdist.core.text import counted
from dpdist.report.answers import (
    BELOW_NOISE,
    about_intervals,
    centre_name,
    digits,
    no_population,
    outward,
    shrunk,
    unknown_columns,
)
from dpdist.report.charts import explained
from dpdist.report.plots import forest
from dpdist.report.tables import Cells, Table, Values, full_name, minus, table_of

_COEFFICIENTS = 100
"""Largest number of coefficients listed per regression."""
_BARS = 20
"""Largest number of coefficients drawn per regression."""
_CLEAREST = 4
"""Largest number of columns named in the finding."""


@dataclass(frozen=True)
class Explained:
    """The regression of one target, or a refusal."""

    target: str
    refusal: str
    shares: tuple[float, float] = (0.0, 0.0)  # ends of the explained share of the variance
    clearest: Sequence[tuple[str, bool]] = ()  # columns with known signs, and whether the target rises with each
    summary: str = ""
    warning: str = ""
    chart: Markup | None = None
    forest: Markup | None = None  # the clearest coefficients, in standard deviations
    sure: Table | None = None  # coefficients whose interval excludes 0
    unsure: Table | None = None
    omitted: int = 0
    reasons: str = ""  # why something is unknown
    about: str = ""  # what the intervals of all regressions describe; of the last one


def explained_of(
    release: Release, targets: Sequence[int], on: Sequence[int], units: tuple[Values, Values]
) -> tuple[Explained, ...]:
    """Return the regression of each target; the page reports those below the noise."""
    shown: list[Explained] = []
    results: list[Regression] = []
    for target in targets:
        try:
            results += regressions(release, [target], on, None, units)
        except BelowNoiseError as error:
            shown.append(Explained(release.names[target], str(error)))
        else:
            shown.append(_explained(release, results[-1], units[1], target, len(results)))
    if results:
        shown[-1] = replace(shown[-1], about=f"In the units of the source. {about_intervals(release, results)}")
    return tuple(shown)


def _explained(release: Release, result: Regression, scale: Values, target: int, number: int) -> Explained:
    known = [
        (name, estimate)
        for name, estimate in zip(result.names, result.coefficients, strict=True)
        if math.isfinite(estimate.noise)
    ]
    known.sort(key=lambda named: -abs(named[1].value) / (named[1].noise or 1.0))
    bars = _bars(release, known, scale, target)
    clearest = [(name, estimate.value > 0) for name, estimate in known if _is_clear(estimate)][:_CLEAREST]
    if result.centred or result.intercept.value:
        known.insert(0, ("intercept", result.intercept))
    population = any(estimate.population_interval is not None for _, estimate in known)
    sure, unsure = (
        [_row(name, estimate, population=population) for name, estimate in known if _is_clear(estimate) is clear]
        for clear in (True, False)
    )
    head: Cells = ("column", "coefficient", "interval for these rows", "interval for the population")
    head = head if population else head[:3]
    about = "about its mean" if result.centred else f"about {centre_name(release)}, as no mean was released"
    share = f"{100 * max(0.0, result.r2.value):.0f} % of its variance {about}"
    return Explained(
        target=result.target,
        refusal="",
        shares=result.r2_interval,
        clearest=clearest,
        summary=minus(
            f"{counted(len(result.names), 'column')} explain{'s' * (len(result.names) == 1)} {share}: R² is "
            f"{result.r2.value:.3f}, between {outward(*result.r2_interval)}{shrunk(result)}."
        ),
        warning=BELOW_NOISE if result.drowned else "",
        chart=explained(result, number),
        forest=forest(bars, number) if len(bars) > 1 else None,
        sure=table_of(head, sure[:_COEFFICIENTS]),
        unsure=table_of(head, unsure[:_COEFFICIENTS]),
        omitted=max(0, len(sure) - _COEFFICIENTS) + max(0, len(unsure) - _COEFFICIENTS),
        reasons=" ".join(filter(None, (no_population(release, result), unknown_columns(result, release)))),
    )


def _is_clear(estimate: Estimate) -> bool:
    return estimate.interval[0] > 0 or estimate.interval[1] < 0


def _bars(
    release: Release, estimates: Sequence[tuple[str, Estimate]], scale: Values, target: int
) -> list[tuple[str, float, float, float]]:
    """Return coefficients in standard deviations, with intervals."""
    variances = np.diag(about_mean(release).matrix(release.second_moment))
    deviations = scale * np.sqrt(np.maximum(variances, 0))
    places = {name: index for index, name in enumerate(release.names)}
    bars = []
    for name, estimate in estimates[:_BARS]:
        factor = float(deviations[places[name]] / deviations[target]) if deviations[target] > 0 else math.inf
        value, (low, high) = factor * estimate.value, (factor * end for end in estimate.interval)
        if np.isfinite([value, low, high]).all():
            bars.append((name, value, low, high))
    return bars


def _row(name: str, estimate: Estimate, *, population: bool) -> Cells:
    pairs = (estimate.interval, estimate.population_interval) if population else (estimate.interval,)
    ends = ("-" if pair is None else " … ".join(map(digits, pair)) for pair in pairs)
    return full_name(name), digits(estimate.value), *ends
