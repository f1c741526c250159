"""Regressions as text for a terminal, and numbers with few digits and powers of ten."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal

from markupsafe import Markup

from dpdist.answers.bias import clipped_rows, origin_of
from dpdist.answers.block import incomplete
from dpdist.answers.regression import Estimate, Regression
from dpdist.core.naming import parameter, step
from dpdist.core.release.artefact import Release
from dpdist.core.text import counted, exactly, listed, wrapped
from dpdist.report.text import EACH_INTERVAL, aligned


def common_power(values: Iterable[float]) -> int:
    """Return the exponent p, a multiple of 3, of the common factor 10^p of the numbers of a table.

    >>> common_power([9.66e8, -3.0]), common_power([1500.0]), common_power([2e-4, 0.0]), common_power([])
    (6, 0, -6, 0)
    """
    largest = max(map(abs, values), default=0.0)
    return 0 if not largest or 1e-2 <= largest < 1e4 else 3 * math.floor(math.log10(largest) / 3)


def in_units(power: int) -> Markup:
    """Return the unit of the numbers of a table.

    >>> print(in_units(6))
    , in 10<sup>6</sup>
    """
    return Markup(f", in 10<sup>{digits(power)}</sup>" if power else "")  # noqa: S704 - of a number


def digits(value: float) -> str:
    """Return a number with four significant digits and no exponent.

    >>> digits(966.245), digits(-16.0355), digits(12346.0), digits(1e-5), digits(0.0)
    ('966.2', '−16.04', '12350', '0.00001', '0')
    """
    return f"{Decimal(f'{value:.4g}'):f}".replace("-", "\N{MINUS SIGN}")


def number(value: float) -> Markup:
    """Return a number with four significant digits, and a power of ten if it is large or small.

    >>> print(number(1814.0), number(1.814e10), number(1e-06), sep="; ")
    1814; 1.814 × 10<sup>10</sup>; 10<sup>−6</sup>
    """
    if not value or 1e-4 <= abs(value) < 1e6:
        return Markup(digits(value))  # noqa: S704 - of a number
    front, _, power = f"{value:.3e}".partition("e")
    before = "" if float(front) == 1 else f"{digits(float(front))} \N{MULTIPLICATION SIGN} "
    return Markup(f"{before}10<sup>{digits(int(power))}</sup>")  # noqa: S704 - of a number


_SHOWN = 25
_FACTORS, _TOLD = 5, 3.0
"""Most factors of a target with a logarithm, and the longest interval of a coefficient that is told as one."""
_POPULATION = (
    " That for the population assumes that rows are independent draws from it, with residuals of equal variance."
)


def about_intervals(release: Release, results: Sequence[Regression]) -> str:
    """Return what the intervals of some regressions describe and assume."""
    population = any(result.intercept.population_interval is not None for result in results)
    used = [_places(release, result) for result in results]
    about = EACH_INTERVAL + _POPULATION * population
    plain = not results[0].ridge and results[0].components is None
    gaps = dict.fromkeys(name for places in used for name in incomplete(release, places))
    if gaps and plain:
        about += f" There is none for the population with {listed(gaps)}, where values may be missing."
    lengths = [clipped_rows(release, places) for places in used]
    unknown = {result.target: rows.unknown for result, rows in zip(results, lengths, strict=True)}
    if clipped := {target: why for target, why in unknown.items() if why}:
        which = "" if len(clipped) == len(unknown) else f" of {listed(clipped)}"
        why = next(iter(clipped.values()))
        about += f" They describe the {lengths[0].noun}. For the rows as they are, coefficients{which} are {why}."
    if release.unit is None or not population:
        return about
    return (
        f"{about} One {release.unit.column} may own several rows, which are probably dependent: the interval for the "
        "population is then too narrow."
    )


def no_population(release: Release, result: Regression) -> str:
    """Return why there are no intervals for the population, but for gaps; empty if there are some."""
    if result.intercept.population_interval is not None:
        return ""
    if result.ridge:
        return "There are no intervals for the population, as a regression with a ridge describes none."
    private = "There are no intervals for the population, as the number of rows is private and no mean was released."
    return "" if release.row_count is not None else private


def _places(release: Release, result: Regression) -> list[int]:
    """Return the columns of a regression in a release."""
    return [release.names.index(name) for name in (*result.names, result.target)]


def regression(result: Regression, release: Release) -> str:
    """Return a table of the coefficients of one target: the 25 that are the most standard deviations away from 0."""
    shown = sorted(range(len(result.names)), key=lambda i: -_evidence(result.coefficients[i]))[:_SHOWN]
    rows = [("", "coefficient", "between", "for the population")]
    if result.centred or result.intercept.value:
        rows.append(("intercept", *_cells(result.intercept)))
    rows += [(_short(result.names[i]), *_cells(result.coefficients[i])) for i in sorted(shown)]
    omitted = len(result.names) - len(shown)
    low, high = result.r2_interval
    about = "about its mean" if result.centred else f"about {centre_name(release)}: no mean was released"
    last = f"R² {result.r2.value:.3f}, between {outward(low, high)}: of the variance of {result.target} {about}."
    columns = counted(len(result.names), "column")
    of_rows = clipped_rows(release, _places(release, result)).describe()
    return "\n".join([
        wrapped(f"Regression of {result.target} on {columns} {of_rows}{shrunk(result)}."),
        *aligned(rows),
        *([wrapped(f"{counted(omitted, 'column')} closer to 0 are not shown.")] if omitted else []),
        wrapped(last),
        *([wrapped(BELOW_NOISE)] if result.drowned else []),
        *([wrapped(unknown_columns(result, release))] if result.unknown else []),
        *([wrapped(said)] if (said := _of_transform(result, release)) else []),
        wrapped(_ridge(result)),
    ])  # fmt: skip


def _of_transform(result: Regression, release: Release) -> str:
    """Return what a fit of a transformed target says about its numbers; empty for any other target."""
    target = result.target
    column = None if release.schema is None else release.schema.transformed.get(target)
    if column is None:
        return ""
    back = "the hyperbolic sine of a fit" if column.transform == "asinh" else "exp of a fit, less 1"
    factors = ""
    if column.transform == "log" and not result.ridge and result.components is None:
        told = [
            f"{_short(name)} {_factor(estimate.value, ends)}"
            for name, estimate in sorted(
                zip(result.names, result.coefficients, strict=True), key=lambda pair: -_evidence(pair[1])
            )
            if (ends := estimate.interval)[1] - ends[0] < _TOLD and abs(estimate.value) < _TOLD
        ][:_FACTORS]
        of = f"1 + {column.name}" if not column.low else f"its distance from {exactly(column.low)}, plus 1,"
        factors = f" One unit of a column multiplies {of} by exp of its coefficient: {listed(told)}." if told else ""
    if column.transform == "log" and column.low:
        back += f", {'plus' if column.low > 0 else 'minus'} {exactly(abs(column.low))},"
    return (
        f"{target} is a transform of {column.name}: {back} is the median of {column.name} where errors are symmetric, "
        f"not its mean.{factors}"
    )


def _factor(value: float, ends: tuple[float, float]) -> str:
    """Return exp of a coefficient with its interval, to two digits of the length of that."""
    digits = max(0, 2 - math.floor(math.log10(max(math.exp(ends[1]) - math.exp(ends[0]), 1e-9))) - 1)
    return f"{math.exp(value):.{digits}f} ({math.exp(ends[0]):.{digits}f} .. {math.exp(ends[1]):.{digits}f})"


def centre_name(release: Release) -> str:
    """Return the name of the centre of rows."""
    if release.stage is not None and "centre" in release.stage.chosen:
        return "the privately chosen centre"
    return origin_of(release) or "the public centre"


BELOW_NOISE = "BELOW THE NOISE: the columns may explain nothing of the target."


def unknown_columns(result: Regression, release: Release) -> str:
    """Return which columns have no known coefficient, and what may help; empty if all have one."""
    if not result.unknown:
        return ""
    single = len(result.unknown) == 1
    numbers = {release.names[place] for place in release.bound.numbers} & set(result.unknown)
    ranged = f"A public range ({parameter('schema')}) or a" if numbers else "A"
    return (
        f"{listed(result.unknown)}: not above the noise, {'coefficient' if single else 'coefficients'} unknown. "
        f"{ranged} larger epsilon may help."
    )


def shrunk(result: Regression) -> str:
    """Return what the ridge leaves of the slopes, as the end of a sentence; empty without a ridge."""
    if not result.ridge or result.shrinkage is None:
        return ""
    least, most = (f"{share:.2g}" for share in (min(result.shrinkage), max(result.shrinkage)))
    kept = least if least == most else f"{least} to {most}"
    return (
        f", SHRUNK by a ridge, which keeps {kept} of the slope of a column that is unrelated to the others; of related "
        "ones, such as categories of one variable, it may keep less, or more than the whole"
    )


def _ridge(result: Regression) -> str:
    if result.components is not None:
        return (
            f"The regression uses {counted(result.components, 'released principal component')} of "
            f"{counted(len(result.names), 'column')}; {result.seen} vary more than the noise. Intervals describe the "
            "regression on these public directions; along all others coefficients are 0. If some are just above the "
            "noise, intervals hold less often, in nine of ten releases."
        )
    reference = ""
    if result.reference:
        are = "is the reference" if len(result.reference) == 1 else "are the references"
        reference = f"{listed(result.reference)} {are}: coefficients of other categories are differences from it. "
    if not result.ridge:
        return f"{reference}No ridge is needed: the columns vary more than the noise in every direction."
    if reference:
        reference += f"Means by one category need no ridge ({step('relate', 'RELEASE', 'NUMBER', 'CATEGORY')}). "
    text = (
        f"{reference}The ridge is {result.ridge:.6g}, added to the sum of squares of each column. All "
        "intervals apply to the regression with it, which shrinks coefficients to 0, and shares them among correlated "
        "columns. There is no interval for a population."
    )
    below = len(result.names) - result.seen
    if not below:
        return text
    return (
        f"{text} {below} of {counted(len(result.names), 'direction')} of the columns vary less than the noise: it "
        "shrinks these coefficients most, and divides them among nearly collinear columns."
    )


def _evidence(estimate: Estimate) -> float:
    return abs(estimate.value) / estimate.noise if estimate.noise else float("inf")


def _cells(estimate: Estimate) -> tuple[str, str, str]:
    population = estimate.population_interval
    if not math.isfinite(estimate.noise):
        return "unknown", "-", "-"
    return f"{estimate.value:.4g}", between(estimate.interval), "-" if population is None else between(population)


def between(ends: tuple[float, float]) -> str:
    """Return an interval with three digits, or as many as make its ends differ."""
    low, high = (f"{end:.3g}" for end in ends)
    for digits in range(4, 18):
        if low != high:
            break
        low, high = (f"{end:.{digits}g}" for end in ends)
    return f"{low} .. {high}"


def outward(low: float, high: float) -> str:
    """Return an interval with three decimals, rounded outwards."""
    return f"{math.floor(1000 * low) / 1000:.3g} and {math.ceil(1000 * high) / 1000:.3g}"


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:19]}..."
