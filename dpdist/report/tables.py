"""Tables of numbers and names of columns on the page about a release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from dpdist.report.charts import shortened_name
from dpdist.report.components_text import between

_LETTERS = 40
"""Letters of each of two names in one line."""
Cells = tuple[str | Markup, ...]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """A table of numbers; the first cell of each row is a name."""

    head: Cells
    rows: Sequence[Cells]


def table_of(head: Cells, rows: Sequence[Cells]) -> Table | None:
    """Return a table, or None without rows."""
    return Table(head, rows) if rows else None


def full_name(name: str) -> Markup:
    """Return a name with its own writing direction, cut after two lines, and complete in a tooltip."""
    return Markup('<bdi class="name" title="{}">{}</bdi>').format(name, name)


def brief_name(name: str) -> Markup:
    """Return a name with its own writing direction, cut after some letters."""
    return Markup('<bdi title="{}">{}</bdi>').format(name, shortened_name(name, _LETTERS))


def minus(text: str) -> str:
    """Return text with minus signs in place of hyphens."""
    return text.replace("-", "\N{MINUS SIGN}")


def ends_of(interval: Values) -> str:
    """Return the ends of an interval of squared cosines or shares, rounded outwards."""
    return between(interval).replace("..", "…")


def within(low: float, high: float, *, decimals: int = 3) -> str:
    """Return the ends of an interval with a sign, rounded outwards.

    >>> within(-0.1234, 0.5678), within(0.5, 0.5, decimals=2)
    ('−0.124 … +0.568', '+0.50 … +0.50')
    """
    scale = 10.0**decimals
    low, high = math.floor(low * scale) / scale, math.ceil(high * scale) / scale
    return minus(f"{low:+.{decimals}f} … {high:+.{decimals}f}")
