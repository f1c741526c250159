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
        answer = relations(held, first if second is None else second)
    else:
        answer = [relation(held, first, second)]
    return _relations(held, answer)


def counts(release: Release, name: str) -> pd.DataFrame:
    """Implement :meth:`dpdist.Release.counts`."""
    held = variables(release)
    answer = tables.counts(held, name)
    ends, shares = answer.intervals, answer.shares.clipped(0.0, 1.0)
    columns = {
        "count": answer.estimates, "low": ends[:, 0], "high": ends[:, 1], "share": shares.estimates,
        "share_low": shares.intervals[:, 0], "share_high": shares.intervals[:, 1],
    }  # fmt: skip
    return _framed(held, columns, answer.variable.categories, name)


def crosstab(release: Release, rows: str, columns: str, percent: str | None = None) -> pd.DataFrame:
    """Implement :meth:`dpdist.Release.crosstab`."""
    if percent not in {None, *PERCENT}:
        raise UsageError(f"percent must be None or one of {', '.join(PERCENT)}, not {percent!r}.")
    held = variables(release)
    answer = tables.crosstab(held, rows, columns)
    if percent is None:
        parts = {"value": answer.estimates, "low": answer.intervals[..., 0], "high": answer.intervals[..., 1]}
        parts["shrunk"] = answer.shrunk
    else:
        ratios = answer.shares(percent).clipped(0.0, 1.0)
        ends = 100 * ratios.intervals
        parts = {"value": 100 * ratios.estimates, "low": ends[..., 0], "high": ends[..., 1]}
    cells = {
        (category, part): values[:, place]
        for place, category in enumerate(answer.columns.categories)
        for part, values in parts.items()
    }
    frame = _framed(held, cells, answer.rows.categories, rows)
    frame.columns.names = [columns, None]
    return frame


def group_means(release: Release, number: str, by: str) -> pd.DataFrame:
    """Implement :meth:`dpdist.Release.group_means`."""
    held = variables(release)
    answer = means.group_means(held, number, by)
    ends = answer.means.intervals
    columns = {"count": answer.counts, "mean": answer.means.estimates, "low": ends[:, 0], "high": ends[:, 1]}
    return _framed(held, columns, answer.variable.categories, by)


def _relations(held: Variables, answer: Sequence[Relation]) -> pd.DataFrame:
    rows = [each.to_json() for each in answer]
    names = ("measure", "strength", "low", "high", "p_value", "adjusted_p_value")
    columns = {name: [row[name] for row in rows] for name in names}
    index = _pandas().MultiIndex.from_tuples([(each.first, each.second) for each in answer], names=["first", "second"])
    frame = _framed(held, columns, index, None)
    numbers = list(names[1:])
    frame[numbers] = frame[numbers].astype(np.float64)
    frame.attrs["no_test"] = {f"{each.first}, {each.second}": each.no_test for each in answer if each.no_test}
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
