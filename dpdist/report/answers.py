"""Regressions as text for a terminal, and numbers for people: few digits, and powers of ten as they are written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal

from markupsafe import Markup

from dpdist._util.text import counted, listed, wrapped
from dpdist.answers.regression import Estimate, Regression
from dpdist.naming import parameter
from dpdist.pca.bias import clipped_rows
from dpdist.release.artefact import Release
from dpdist.report.text import aligned


def common_power(values: Iterable[float]) -> int:
    """Return p, a multiple of 3, by whose power of ten the numbers of a table are divided to have few digits.

    Examples
    --------
    >>> common_power([9.66e8, -3.0]), common_power([1500.0]), common_power([2e-4, 0.0]), common_power([])
    (6, 0, -6, 0)
    """
    largest = max(map(abs, values), default=0.0)
    return 0 if not largest or 1e-2 <= largest < 1e4 else 3 * math.floor(math.log10(largest) / 3)


def in_units(power: int) -> Markup:
    """Say by what the numbers of a table were divided.

    Examples
    --------
    >>> print(in_units(6))
    , in 10<sup>6</sup>
    >>> print(in_units(0) or "plain")
    plain
    """
    return Markup(f", in 10<sup>{digits(power)}</sup>" if power else "")  # noqa: S704 - of a number


def digits(value: float) -> str:
    """Write a number with four significant digits and no exponent.

    Examples
    --------
    >>> digits(966.245), digits(-16.0355), digits(12346.0), digits(1e-5), digits(0.0)
    ('966.2', '−16.04', '12350', '0.00001', '0')
    """
    return f"{Decimal(f'{value:.4g}'):f}".replace("-", "\N{MINUS SIGN}")


def number(value: float) -> Markup:
    """Write one number with four significant digits, and a power of ten where it is large or small.

    Examples
    --------
    >>> print(number(1814.0), number(1.814e10), number(1e-06), sep="; ")
    1814; 1.814 × 10<sup>10</sup>; 10<sup>−6</sup>
    """
    if not value or 1e-4 <= abs(value) < 1e6:
        return Markup(digits(value))  # noqa: S704 - of a number
    front, _, power = f"{value:.3e}".partition("e")
    before = "" if float(front) == 1 else f"{digits(float(front))} \N{MULTIPLICATION SIGN} "
    return Markup(f"{before}10<sup>{digits(int(power))}</sup>")  # noqa: S704 - of a number


_SHOWN = 25
_ABOUT = "Each interval holds in 95 of 100 releases."
_POPULATION = (
    " That of the population holds if the rows are independent draws from it, with residuals of equal variance."
)
_CLIPPED = (
    " They are about clipped rows: of a column with few far values, which are clipped most, coefficients of the rows "
    "as they are may lie beyond them."
)


def about_intervals(release: Release, found: Regression) -> str:
    """Say what the intervals of a regression are about, and what they take for granted."""
    population = found.intercept.population_interval is not None
    about = _ABOUT + _POPULATION * population
    about += "" if clipped_rows(release).longest is not None else _CLIPPED
    if release.unit is None or not population:
        return about
    return (
        f"{about} Here one {release.unit.column} may own several rows, which are hardly independent: then the "
        "interval of the population is too narrow."
    )


def regression(found: Regression, release: Release) -> str:
    """Return a table of the coefficients of one target of a release, and what there is to know of them.

    Of more than 25 those are shown that are the most standard deviations away from 0.
    """
    shown = sorted(range(len(found.names)), key=lambda i: -_evidence(found.coefficients[i]))[:_SHOWN]
    rows = [("", "coefficient", "between", "of the population")]
    if found.centred or found.intercept.value:
        rows.append(("intercept", *_cells(found.intercept)))
    rows += [(_short(found.names[i]), *_cells(found.coefficients[i])) for i in sorted(shown)]
    left = len(found.names) - len(shown)
    low, high = found.r2_interval
    about = "about its mean" if found.centred else f"about {centre_words(release)}: no mean was released"
    last = f"R² {found.r2.value:.3f}, between {outward(low, high)}: of the variance of {found.target} {about}."
    columns = counted(len(found.names), "column")
    return "\n".join([
        wrapped(f"Regression of {found.target} on {columns} {clipped_rows(release).describe()}"),
        *aligned(rows),
        *([wrapped(f"{counted(left, 'column')} less sure to differ from 0: not shown.")] if left else []),
        wrapped(last),
        *([wrapped(DROWNED)] if found.drowned else []),
        *([wrapped(_unknown(found))] if found.unknown else []),
        wrapped(_ridge(found)),
    ])  # fmt: skip


def centre_words(release: Release) -> str:
    """Say what rows were shifted by."""
    if release.stage is not None and "centre" in release.stage.chosen:
        return "the centre that was chosen privately"
    return "zero" if release.bound.centre is None else "the public centre"


DROWNED = "DROWNED: as far as the noise lets see, the columns may explain nothing of the target."


def _unknown(found: Regression) -> str:
    one = len(found.unknown) == 1
    return (
        f"{listed(found.unknown)}: not above the noise, so nothing is known of {'its' if one else 'their'} "
        f"{'coefficient' if one else 'coefficients'}. A public range ({parameter('schema')}) or a larger epsilon may "
        "help."
    )


def _ridge(found: Regression) -> str:
    if found.components is not None:
        return (
            f"It is on {counted(found.components, 'principal component')} of {counted(len(found.names), 'column')}, as "
            f"released; {found.seen} vary more than the noise. Intervals are about the regression on these, which are "
            "public directions: along others coefficients are 0. Where some of these stand just above the noise, "
            "intervals hold less often, in nine of ten releases."
        )
    reference = ""
    if found.reference:
        are = "is the reference" if len(found.reference) == 1 else "are the references"
        reference = f"{listed(found.reference)} {are}: other categories differ from it by their coefficients. "
    if not found.ridge:
        return f"{reference}There is no ridge: along every direction the columns vary more than the noise."
    said = (
        f"{reference}The ridge is {found.ridge:.6g}, added to the sum of squares of each column. All intervals are "
        "about the regression with it: it draws coefficients to 0, and shares them among columns that vary together. "
        "No population has such coefficients."
    )
    below = len(found.names) - found.seen
    if not below:
        return said
    return (
        f"{said} {below} of {counted(len(found.names), 'direction')} among the columns vary less than the noise: along "
        "these it draws them most, and columns that are nearly sums of others share theirs."
    )


def _evidence(each: Estimate) -> float:
    return abs(each.value) / each.noise if each.noise else float("inf")


def _cells(each: Estimate) -> tuple[str, str, str]:
    population = each.population_interval
    if not math.isfinite(each.noise):
        return "not told", "-", "-"
    return f"{each.value:.4g}", _between(each.interval), "-" if population is None else _between(population)


def _between(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.3g} .. {ends[1]:.3g}"


def outward(low: float, high: float) -> str:
    """Return the ends of an interval to three digits after the point, rounded outwards."""
    return f"{math.floor(1000 * low) / 1000:.3g} and {math.ceil(1000 * high) / 1000:.3g}"


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:19]}..."
