"""Counts and shares of rows as a reader knows them: not negative, and with a dash where the noise hides a share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dpdist.answers.crosstab import Crosstab
from dpdist.answers.ratios import Ratios
from dpdist.core.text import listed

Matrix = npt.NDArray[np.float64]
_UNCERTAIN = 0.2
"""Most that a share is off, in 95 of 100 cases, where it is shown."""


def count_text(value: float) -> str:
    """Return an unbiased count as a reader knows counts: 0 if it is negative."""
    return f"{value:.0f}" if value >= 0.5 else "0"


def percent_text(share: float) -> str:
    """Return a share in percent, or a dash if it is unknown."""
    return "-" if math.isnan(share) else f"{100 * min(1.0, max(0.0, share)):.1f}"


def percent_ends(ends: Matrix) -> tuple[str, str]:
    """Return the ends of the interval of a share in percent."""
    low, high = (f"{100 * min(1.0, max(0.0, float(end))):.1f}" for end in ends)
    return low, high


def largest_error(shares: Ratios) -> str:
    """Return how far the shares that are shown may be off, in a sentence; empty if none is."""
    known = ~np.isnan(shares.estimates)
    if not known.any():
        return ""
    points = _rounded_up(100 * float(_reach(shares)[known].max()))
    return f"Each share is within {points} percentage points of the exact one"


def _reach(shares: Ratios) -> Matrix:
    """Return what each share is off at most, in 95 of 100 cases; infinite where nothing is known of it."""
    reach: Matrix = np.abs(shares.intervals - shares.estimates[..., None]).max(axis=-1)
    return np.where(np.isnan(reach), np.inf, reach)


def too_uncertain(shares: Ratios) -> npt.NDArray[np.bool_]:
    """Return which shares the noise hides: they may be off by more than 20 percentage points."""
    return _reach(shares) > _UNCERTAIN


def known_shares(result: Crosstab, of: str) -> tuple[Ratios, list[str]]:
    """Return the shares of a table, NaN in each line of which the noise hides one, and the names of these lines.

    A line is a row, a column or, of percent of all, the table.
    """
    shares = result.shares(of)
    unknown = too_uncertain(shares)
    if of == "all":
        unknown[:] = unknown.any()
        few = [f"{result.rows.name} by {result.columns.name}"] if unknown.any() else []
    else:
        variable, axis = (result.rows, 1) if of == "rows" else (result.columns, 0)
        lines = np.any(unknown, axis=axis)
        unknown = np.broadcast_to(np.expand_dims(lines, axis), unknown.shape)
        few = [f"{variable.name}={name}" for name, hidden in zip(variable.categories, lines, strict=True) if hidden]
    return replace(shares, estimates=np.where(unknown, np.nan, shares.estimates)), few


def few_text(few: Sequence[str]) -> str:
    """Return that the shares of some lines are not known, in a sentence; empty if all are."""
    return f"Too few rows for shares: {listed(few)}." if few else ""


def _rounded_up(value: float) -> str:
    """Return a positive number with two digits, rounded up.

    >>> _rounded_up(12.31), _rounded_up(0.0421), _rounded_up(9.96)
    ('13', '0.043', '10')
    """
    decimals = max(0, 1 - math.floor(math.log10(value))) if value > 0 else 0
    value = math.ceil(value * 10**decimals - 1e-9) / 10**decimals
    return f"{value:.{decimals if value < 10 else 0}f}"
