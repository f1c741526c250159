"""What PrivateRidge takes for y: columns that are released beside X, as one table, in every form that X has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_array

from dpdist._util.frames import is_a
from dpdist._util.text import listed
from dpdist.errors import DataError
from dpdist.estimators.in_memory import dense
from dpdist.estimators.inputs import Rows, RowsError
from dpdist.ingest.collection import whole_rows

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Targets:
    """The targets of a fit."""

    data: Any  # (n, k): float64 of NumPy, or a Dask array
    names: tuple[str, ...]  # k of them
    flat: bool  # whether y has one dimension

    def beside(self, rows: Rows) -> Rows:
        """Return rows of X with the targets as last columns, and a name for every column."""
        if both := set(self.names) & set(rows.column_names):
            raise RowsError(f"y has the name of a column of X: {listed(sorted(both))}. Give it another.")
        names = (*rows.column_names, *self.names)
        if rows.lazy:
            from dpdist.runtime.collections import cut_alike  # noqa: PLC0415 - who holds such an array has Dask

            whole = whole_rows(rows.data)
            try:
                cut = cut_alike(self.data, whole)
            except DataError as error:
                raise RowsError(str(error)) from None
            joined = whole.map_blocks(
                _joined, cut, dtype=np.float64, chunks=(whole.chunks[0], (len(names),)), meta=np.empty((0, 0))
            )
            return replace(rows, data=joined, names=names)
        if is_a(self.data, "dask", "Array"):
            raise RowsError("y is a Dask array, and X is none: compute y, or make X one too.")
        if rows.data.shape[0] != len(self.data):
            raise RowsError(
                f"Found input variables with inconsistent numbers of samples: {[rows.data.shape[0], len(self.data)]}"
            )
        return replace(rows, data=Beside(rows.data, self.data), names=names)


class Beside:
    """Rows and targets as one table, which is made of them piece by piece."""

    def __init__(self, rows: Any, targets: Values) -> None:
        self._rows, self._targets = rows, targets
        self.shape = (rows.shape[0], rows.shape[1] + targets.shape[1])
        self.dtype = np.dtype(np.float64)
        self.chunks = getattr(rows, "chunks", None)

    def __getitem__(self, piece: slice) -> Values:
        """Return some rows, (r, d + k)."""
        return _joined(self._rows[piece], self._targets[piece])


def _joined(rows: Any, targets: Any) -> Values:
    """Return a block of rows beside one of targets."""
    return np.hstack([dense(rows), dense(targets)]).astype(np.float64, copy=False)


def targets_of(given: Any, estimator: object) -> Targets:
    """Return the targets of y."""
    if given is None:
        raise RowsError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None: it is what is explained."
        )
    if isinstance(given, str):
        raise RowsError("y is a name, which stands for a column of a rows.zarr: of a table in memory pass the values.")
    if is_a(given, "dask", "Array"):
        data, sound = given, given.ndim in {1, 2} and np.dtype(given.dtype).kind in "biuf"
        if not sound:
            raise RowsError("y is a Dask array of one or two dimensions, of real numbers.")
    else:
        data = _checked(given, finite=getattr(estimator, "missing", None) != "centre")
    flat = data.ndim == 1
    data = data[:, None] if flat else data
    names, count = _names(given), int(data.shape[1])
    if len(names) != count:
        names = ("y",) if count == 1 else tuple(f"y{i}" for i in range(count))
    return Targets(data, names, flat)


def _checked(given: Any, *, finite: bool) -> Values:
    if isinstance(given, np.ma.MaskedArray):
        raise RowsError("y is a masked array, and a masked entry is no number: fill it by a public rule (y.filled).")
    if np.asarray(given).dtype.kind in "mM":
        raise RowsError("y holds dates or times. Pass numbers, such as days since a public date.")
    try:
        found: Values = check_array(
            given, dtype=np.float64, ensure_2d=False, input_name="y", ensure_min_samples=0, ensure_all_finite=finite
        )
    except (TypeError, ValueError) as error:
        said = str(error).split("\n")[0]
    else:
        return found
    if "convert" in said:
        said = "y holds what is not a number. Encode classes as columns of 0 and 1, by a public rule."
    raise RowsError(said)


def _names(given: Any) -> tuple[str, ...]:
    """Return the names that a Series or a DataFrame has."""
    if is_a(given, "pandas", "Series"):
        return () if given.name is None else (str(given.name),)
    return tuple(map(str, given.columns)) if is_a(given, "pandas", "DataFrame") else ()
