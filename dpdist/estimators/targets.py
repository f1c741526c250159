"""The targets y of PrivateRidge: columns released with X as one table, in every form that X may have."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_array

from dpdist.core.errors import DataError
from dpdist.core.frames import converted, is_a
from dpdist.core.ingest.collection import whole_rows
from dpdist.core.moment.arrays import dense
from dpdist.core.text import counted, listed
from dpdist.estimators.checked import RowsError
from dpdist.estimators.inputs import Rows

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Targets:
    """The targets of a fit."""

    data: Any  # (n, k): float64 of NumPy, or a Dask array
    names: tuple[str, ...]  # k of them
    flat: bool  # whether y has one dimension

    def joined_to(self, rows: Rows) -> Rows:
        """Return the rows of X with the targets as last columns, and a name for every column."""
        if both := set(self.names) & set(rows.column_names):
            raise RowsError(
                f"X and y both have a column named {listed(sorted(both))}. Rename it in y, or leave it out of X: "
                f"X.drop(columns={sorted(both)})."
            )
        names = (*rows.column_names, *self.names)
        if rows.lazy:
            from dpdist.core.runtime.collections import cut_alike  # noqa: PLC0415 - optional dependency

            table = whole_rows(rows.data)
            try:
                blocks = cut_alike(self.data, table)
            except DataError as error:
                raise RowsError(str(error)) from None
            joined = table.map_blocks(
                _joined, blocks, dtype=np.float64, chunks=(table.chunks[0], (len(names),)), meta=np.empty((0, 0))
            )
            return replace(rows, data=joined, names=names)
        if is_a(self.data, "dask", "Array"):
            raise RowsError("y is a Dask collection but X is not. Pass y.compute(), or X as a Dask collection too.")
        require_same_rows(rows.data, self.data)
        return replace(rows, data=JoinedRows(rows.data, self.data), names=names)


def require_same_rows(rows: Any, targets: Any) -> None:
    """Refuse targets of another number of rows, which may be private, in the words that scikit-learn expects."""
    if rows.shape[0] != len(targets):
        raise RowsError("Found input variables with inconsistent numbers of samples. Pass one target for each row.")


def require_same_labels(rows: Any, targets: Any, name: str = "y") -> None:
    """Refuse pandas objects whose rows have other labels, or another order of them."""
    framed = is_a(rows, "pandas", "DataFrame") and _is_framed(targets, "pandas")
    if framed and len(rows) == len(targets) and not rows.index.equals(targets.index):
        raise RowsError(
            f"The rows of X and {name} have different labels, or another order of them. Pass {name}.loc[X.index], or "
            f"{name}.set_axis(X.index) if they are in the same order."
        )


def _is_framed(targets: Any, package: str) -> bool:
    return is_a(targets, package, "Series") or is_a(targets, package, "DataFrame")


def with_labels_of(rows: Any, y: Any) -> Any:
    """Return Dask targets that are refused, when they are computed, if their rows have other labels than those of X."""
    if not (is_a(rows, "dask", "DataFrame") and _is_framed(y, "dask")):
        return y
    if rows.npartitions != y.npartitions:
        raise RowsError(
            f"X has {counted(rows.npartitions, 'partition')}, and y {y.npartitions}, so their rows cannot be matched. "
            "Make both of one DataFrame: X = frame[FEATURES], y = frame['TARGET']."
        )
    return y.map_partitions(_matched, rows.index, meta=y._meta, align_dataframes=False)  # noqa: SLF001 - its type


def _matched(targets: Any, labels: Any) -> Any:
    """Return a partition of targets whose labels are those of the partition of X."""
    if not targets.index.equals(labels):
        raise RowsError(
            "A partition of y has other labels than that of X, or another order of them. Make both of one DataFrame: "
            "X = frame[FEATURES], y = frame['TARGET']."
        )
    return targets


class JoinedRows:
    """Rows and targets as one table, joined slice by slice."""

    def __init__(self, rows: Any, targets: Values) -> None:
        self._rows, self._targets = rows, targets
        self.shape = (rows.shape[0], rows.shape[1] + targets.shape[1])
        self.dtype = np.dtype(np.float64)
        self.chunks = getattr(rows, "chunks", None)

    def __getitem__(self, index: slice) -> Values:
        return _joined(self._rows[index], self._targets[index])


def _joined(rows: Any, targets: Any) -> Values:
    """Return a block of rows and one of targets, joined by columns."""
    return np.hstack([dense(rows), dense(targets)]).astype(np.float64, copy=False)


def targets_of(y: Any, estimator: object) -> Targets:
    """Return the targets of y."""
    if y is None:
        raise RowsError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None. Pass the values to predict."
        )
    if isinstance(y, str):
        raise RowsError("y is a text. Pass the values to compare with.")
    named = y
    if _is_framed(y, "dask"):
        y = y.to_dask_array()
    if is_a(y, "xarray", "DataArray"):
        y = y.data
    if is_a(y, "dask", "Array"):
        data, sound = y, y.ndim in {1, 2} and np.dtype(y.dtype).kind in "biuf" and not any(map(math.isnan, y.shape[1:]))
        if not sound:
            raise RowsError("A Dask array y must have one or two dimensions and contain real numbers.")
    else:
        data = _checked(y, finite=getattr(estimator, "missing", None) != "centre")
    flat = data.ndim == 1
    data = data[:, None] if flat else data
    names, count = _names(named), int(data.shape[1])
    if len(names) != count:
        names = ("y",) if count == 1 else tuple(f"y{i}" for i in range(count))
    return Targets(data, names, flat)


def _checked(y: Any, *, finite: bool) -> Values:
    if isinstance(y, np.ma.MaskedArray):
        raise RowsError("y is a masked array. Fill masked entries by a public rule (y.filled).")
    check = partial(_of_sklearn, finite=finite)
    try:
        values = converted(y, "y", check)
    except DataError as error:
        message = str(error)
    else:
        if values.ndim in {1, 2}:
            return values
        message = f"y has {values.ndim} dimensions. It has one, or two: (rows, targets)."
    raise RowsError(message)


def _of_sklearn(y: Any, *, finite: bool) -> Values:
    if np.asarray(y).dtype.kind in "mM":
        raise DataError("y contains dates or times. Pass numbers, such as days since a public date.")
    try:
        values: Values = check_array(
            y, dtype=np.float64, ensure_2d=False, allow_nd=True, input_name="y", ensure_min_samples=0,
            ensure_all_finite=finite,
        )  # fmt: skip
    except ValueError as error:
        message = str(error)
    else:
        return values
    if "convert" in message:
        raise DataError(
            "y contains a value that is not a number. Encode classes as columns of 0 and 1, by a public rule."
        )
    if message.startswith(("Input y contains ", "Complex data")):
        raise DataError(message.split("\n", maxsplit=1)[0])
    raise ValueError(message)


def _names(y: Any) -> tuple[str, ...]:
    """Return the column names of a Series or a DataFrame."""
    if is_a(y, "pandas", "Series") or is_a(y, "dask", "Series"):
        return () if y.name is None else (str(y.name),)
    return tuple(map(str, y.columns)) if _is_framed(y, "pandas") or _is_framed(y, "dask") else ()
