"""Answers about pairs of variables as pandas DataFrames: the methods of a release."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdist.answers import crosstab as tables
from dpdist.answers import group_means as means
from dpdist.answers.bias import clipped_rows
from dpdist.answers.relate import PERCENT, Relation, relation, relations
from dpdist.answers.variables import Variables, variables
from dpdist.core.errors import UsageError
from dpdist.core.release.artefact import Release

if TYPE_CHECKING:
    import pandas as pd


def relate(release: Release, first: str | None = None, second: str | None = None) -> pd.DataFrame:
    """Implement :meth:`dpdist.Release.relate`."""
    held = variables(release)
    if first is None or second is None:
        found = relations(held, first if second is None else second)
    else:
        found = [relation(held, first, second)]
    return _relations(held, found)


def counts(release: Release, name: str) -> pd.DataFrame:
    """Implement :meth:`dpdist.Release.counts`."""
    held = variables(release)
    found = tables.counts(held, name)
    ends, shares = found.intervals, found.shares
    columns = {
        "count": found.estimates, "low": ends[:, 0], "high": ends[:, 1], "share": shares.estimates,
        "share_low": shares.intervals[:, 0], "share_high": shares.intervals[:, 1],
    }  # fmt: skip
    return _framed(held, columns, found.variable.categories, name)


def crosstab(release: Release, rows: str, columns: str, percent: str | None = None) -> pd.DataFrame:
    """Implement :meth:`dpdist.Release.crosstab`."""
    if percent not in {None, *PERCENT}:
        raise UsageError(f"percent must be None or one of {', '.join(PERCENT)}, not {percent!r}.")
    held = variables(release)
    found = tables.crosstab(held, rows, columns)
    if percent is None:
        parts = {"value": found.estimates, "low": found.intervals[..., 0], "high": found.intervals[..., 1]}
        parts["shrunk"] = found.shrunk
    else:
        ratios = found.shares(percent).clipped(0.0, 1.0)
        ends = 100 * ratios.intervals
        parts = {"value": 100 * ratios.estimates, "low": ends[..., 0], "high": ends[..., 1]}
    cells = {
        (category, part): values[:, place]
        for place, category in enumerate(found.columns.categories)
        for part, values in parts.items()
    }
    frame = _framed(held, cells, found.rows.categories, rows)
    frame.columns.names = [columns, None]
    return frame


def group_means(release: Release, number: str, by: str) -> pd.DataFrame:
    """Implement :meth:`dpdist.Release.group_means`."""
    held = variables(release)
    found = means.group_means(held, number, by)
    ends = found.means.intervals
    columns = {"count": found.counts, "mean": found.means.estimates, "low": ends[:, 0], "high": ends[:, 1]}
    return _framed(held, columns, found.variable.categories, by)


def _relations(held: Variables, found: Sequence[Relation]) -> pd.DataFrame:
    rows = [each.to_json() for each in found]
    names = ("measure", "strength", "low", "high", "p_value", "adjusted_p_value")
    columns = {name: [row[name] for row in rows] for name in names}
    index = _pandas().MultiIndex.from_tuples([(each.first, each.second) for each in found], names=["first", "second"])
    frame = _framed(held, columns, index, None)
    numbers = list(names[1:])
    frame[numbers] = frame[numbers].astype(np.float64)
    frame.attrs["no_test"] = {f"{each.first}, {each.second}": each.no_test for each in found if each.no_test}
    return frame


def _framed(held: Variables, columns: dict[Any, Any], index: Any, name: str | None) -> pd.DataFrame:
    pandas = _pandas()
    index = index if name is None else pandas.Index(list(index), name=name)
    frame: pd.DataFrame = pandas.DataFrame(columns, index=index)
    frame.attrs.update(rows=held.rows, about=clipped_rows(held.release).describe(), left_out=dict(held.left_out))
    return frame


def _pandas() -> Any:
    try:
        return import_module("pandas")
    except ImportError:
        raise UsageError("A DataFrame needs pandas, which is not installed: pip install pandas") from None
