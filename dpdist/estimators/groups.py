"""The privacy unit of each row of X: ``groups`` of ``fit``, as in scikit-learn, or the name of a column of X."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from dpdist.core.errors import UsageError
from dpdist.core.frames import as_frame, is_a, is_labelled
from dpdist.core.moment.total import draw_key
from dpdist.core.pipeline.arrays import Groups
from dpdist.core.rows.encoding import MISSING_WORDS
from dpdist.core.rows.units import named_units
from dpdist.core.runtime.cluster import computed, persisted
from dpdist.estimators.checked import RowsError
from dpdist.estimators.targets import require_same_labels

_KEY = draw_key()
"""Of this process, so that the same names are the same units in each fit."""


def grouped(data: Any, groups: Any) -> tuple[Any, Groups | None]:
    """Return X without the column that says whose rows they are, and the privacy unit of each row, if any."""
    if groups is None or isinstance(groups, Groups):  # which private_pca made
        return data, groups
    if isinstance(data, str | os.PathLike):
        raise UsageError(
            "groups is for rows in memory: the rows of a path have the privacy unit with which they were ingested."
        )
    name = "group"
    data = in_one_order(data, groups)
    if isinstance(groups, str):
        name, (data, groups) = groups, column_of(data, groups)
    elif not is_a(groups, "dask", "Array") and isinstance(getattr(groups, "name", None), str):
        name = groups.name
        if name in list(getattr(data, "columns", ())):
            raise RowsError(
                f"groups is the column {name!r} of X, which would be released as a number. Pass its name instead: "
                f"groups={name!r}."
            )
    require_same_labels(data, groups, "groups")
    return data, groups_of(name, groups)


def in_one_order(data: Any, groups: Any) -> Any:
    """Return X with an order of rows that does not change; refuse groups that may come in another one.

    Rows of a Dask DataFrame may come in another order each time, and for each choice of columns, that they are computed
    (a shuffle on disk, for example): persisted, they stay as they were computed once.
    """
    unordered = [is_a(groups, "dask", kind) for kind in ("Series", "DataFrame")]
    unordered += [bool(np.isnan(part.shape[0])) for part in (data, groups) if is_a(part, "dask", "Array")]
    frame = is_a(data, "dask", "DataFrame")
    if any(unordered) or (frame and not isinstance(groups, str)):
        raise RowsError(
            "The rows of a Dask DataFrame may come in another order each time they are computed, so groups might be "
            "those of other rows. Pass the DataFrame as X, and the name of its column: groups='NAME'."
        )
    return persisted(data) if frame else data


def column_of(data: Any, name: Any, role: str = "groups") -> tuple[Any, Any]:
    """Return X without a named column, and this column."""
    data = as_frame(data)
    if is_a(data, "anndata", "AnnData"):
        if name not in data.obs:
            raise RowsError(f"X has no column {name!r} in .obs. It has: {', '.join(map(str, data.obs.columns))}.")
        return data, data.obs[name]
    if is_labelled(data):
        places: Mapping[Hashable, Any] = data.coords
        if name in places:
            column = places[name]
        elif name in getattr(data, "data_vars", ()):
            column, data = data[name], data.drop_vars(name)
        else:
            raise RowsError(f"X has no coordinate {name!r} along its rows. It has: {', '.join(map(str, places))}.")
        if column.ndim != 1:
            raise RowsError(f"{name!r} must have one entry per row, not {column.ndim} dimensions.")
        return data, column
    columns = list(getattr(data, "columns", ()))
    if name not in columns:
        raise RowsError(f"X has no column {name!r}: {role} is a name of a column of X, or one entry per row.")
    return data.drop(columns=[name]), data[name]


def apart(data: Any, y: Any, groups: Any) -> tuple[Any, Any, Any]:
    """Return X without the target, the target, and its name if ``y`` names a column of X, or is that column itself.

    With groups, the rows of a Dask DataFrame are persisted before they are divided: computed twice, they may come in
    two orders.
    """
    name = y if isinstance(y, str) else y.name if _is_column(data, y) else None
    if groups is not None and is_a(data, "dask", "DataFrame"):
        if name is None and any(is_a(y, "dask", kind) for kind in ("Series", "DataFrame", "Array")):
            raise RowsError(
                "With groups, y must be a column of X, as the rows of a Dask DataFrame may come in another order each "
                "time they are computed. Pass the whole DataFrame as X, and y='NAME'."
            )
        data = in_one_order(data, groups)
    return (data, y, None) if name is None else (*column_of(data, name, "y"), name)


def _is_column(data: Any, y: Any) -> bool:
    """Whether a Series is the column of its name of a DataFrame."""
    kinds = [kind for kind in ("pandas", "dask") if is_a(data, kind, "DataFrame") and is_a(y, kind, "Series")]
    if not kinds or list(data.columns).count(y.name) != 1:
        return False
    if kinds == ["pandas"]:
        return bool(data[y.name].equals(y))
    from dpdist.core.runtime.collections import token_of  # noqa: PLC0415 - optional dependency

    return token_of(data[y.name]) == token_of(y)


def without(data: Any, name: Any) -> Any:
    """Return a DataFrame without the column that a fit took as its target, if it is there."""
    framed = is_a(data, "pandas", "DataFrame") or is_a(data, "dask", "DataFrame")
    return data.drop(columns=[name]) if framed and name is not None and name in list(data.columns) else data


def groups_of(name: str, groups: Any) -> Groups:
    """Return the privacy units of rows in the order of X."""
    return Groups(name, _units(groups))


def _units(groups: Any) -> Any:
    """Return units as int64, or as keyed digests of names, (n,)."""
    groups = computed(groups)
    if np.ma.is_masked(groups):
        raise RowsError("groups is a masked array, and lacks the unit of some rows. Give each row one.")
    values = np.asarray(groups)
    if values.ndim != 1:
        raise RowsError(f"groups must have one entry per row, not {values.ndim} dimensions.")
    if values.dtype.kind in "iu" and (values.dtype.itemsize < 8 or values.dtype.kind == "i"):
        return values.astype(np.int64)
    if values.dtype.kind == "f" and np.isfinite(values).all() and (np.trunc(values) == values).all():
        exact = 2.0 ** (np.finfo(values.dtype).nmant + 1)
        if (np.abs(values) < exact).all():
            return values.astype(np.int64)
    missing = [value is None or str(value).strip() in MISSING_WORDS for value in values.tolist()]
    if any(missing):
        raise RowsError(f"groups lacks the unit of row {missing.index(True)} (counting from 0). Give each row one.")
    if values.dtype.kind not in "OUSTub":
        raise RowsError("groups must be whole numbers or text, as rounding could merge two units.")
    return np.ascontiguousarray(named_units([[str(value) for value in values.tolist()]], _KEY)).view("S16")[:, 0]
