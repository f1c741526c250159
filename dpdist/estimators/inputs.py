"""The input X of an estimator and the results for it: one description of every kind of table.

Rows are read in batches. NumPy arrays and sparse matrices are sliced, Zarr arrays and backed AnnData are read from
disk, and each block of a Dask array is a task. pandas, xarray and anndata are recognised by class name, so that they
are never imported here.

NaN and infinity are refused here before anything is charged, as by ``dpdist ingest``. The caller holds the array, and
silently counting such a row as zero would be wrong. The failure itself reveals something about the rows. A job whose
failure is visible to others should ingest the rows first and fit the rows.zarr, which never fails because of a value.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zarr
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, validate_data

from dpdist.core.errors import DataError
from dpdist.core.frames import as_frame, is_a, is_labelled, require_table
from dpdist.core.ingest.collection import whole_rows
from dpdist.core.ingest.readers.base import counts_rows, numbered
from dpdist.core.ingest.readers.chunked import fill_of
from dpdist.core.ingest.registered import open_rows
from dpdist.core.moment.arrays import batches, dense, known_rows
from dpdist.core.pipeline.arrays import MISSING_CURE, ArrayRows, Groups
from dpdist.core.rows.columns import DTYPES
from dpdist.core.rows.dataset import FORMAT
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import spelled
from dpdist.core.storage.store import Store, store_at
from dpdist.core.text import has_control, listed, repeated, visible
from dpdist.estimators.checked import RowsError, checked, kind_of, not_numbers, two_dimensions
from dpdist.formats.labelled import laid_out, layout_of, require_layout

Values = npt.NDArray[np.generic]
_STEP = "dpdist-project"
"""Name of the Dask tasks of a projection."""


_CF = frozenset({
    "scale_factor", "add_offset", "_FillValue", "missing_value", "valid_range", "valid_min", "valid_max",
})  # fmt: skip
"""Attributes of the CF conventions that mark packed or missing values."""


@dataclass(frozen=True)
class Rows:
    """The rows of X."""

    data: Any  # (n, d): a Dask array, a NumPy array, a sparse matrix, or an object whose slices are one of the latter
    names: tuple[str, ...] | None = None  # of the columns
    labelled: Any = None  # the xarray.DataArray of the input, or the first one of a Dataset

    @property
    def lazy(self) -> bool:
        """Whether the rows are a Dask array."""
        return is_a(self.data, "dask", "Array")

    @property
    def known_rows(self) -> int | None:
        """The number of rows n; None if unknown before the rows are computed."""
        return known_rows(self.data)

    @property
    def columns(self) -> int:
        """The number of columns d."""
        return int(self.data.shape[1])

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns, numbered if they have none."""
        return self.names or numbered(self.columns)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of the blocks: see :func:`dpdist.core.moment.arrays.dense`."""
        dtype = np.dtype(self.data.dtype)
        return dtype if dtype.name in DTYPES and dtype.isnative else np.dtype(np.float64)

    def to_release(self, *, missing: bool, schema: Schema | None = None, groups: Groups | None = None) -> ArrayRows:
        """Return the rows as the core releases them, with the schema that made them if its columns are theirs."""
        schema = schema if schema is not None and schema.features == self.column_names else None
        return ArrayRows(self.data, self.column_names, self.dtype.name, missing, schema, groups)

    def mapped(
        self,
        function: Callable[[npt.NDArray[np.generic]], Values],
        width: int,
        dtype: Any,
        names: Sequence[str],
        dim: str,
    ) -> Any:
        """Apply a row-wise function to all rows; the result is lazy or labelled if the rows are."""
        result: Any
        if self.lazy:
            rows = whole_rows(self.data)
            result = rows.map_blocks(
                of_rows, function=function, token=_STEP, dtype=dtype, chunks=(rows.chunks[0], (width,)),
                meta=np.empty((0, 0), dtype),
            )  # fmt: skip
        else:
            result = np.empty((self.data.shape[0], width), dtype)
            for index, batch in batches(self.data, range(len(result))):
                result[index] = function(batch)
        if self.labelled is None:
            return result
        row = self.labelled.dims[0]
        coords = {name: values for name, values in self.labelled.coords.items() if set(values.dims) <= {row}}
        return type(self.labelled)(
            result, dims=(row, dim), coords={**coords, dim: np.array(names, dtype=object).astype(str)}
        )


def of_rows(block: Any, function: Callable[[npt.NDArray[np.generic]], Values]) -> Values:
    """Apply a row-wise function to a block, which may be sparse."""
    return function(dense(block))


class StoredRows(NamedTuple):
    """Shape and type of the rows of a path."""

    shape: tuple[int, int]
    dtype: str


def rows_at(data: object) -> Store | None:
    """Return the location of a rows.zarr if X is a path or an address, else None."""
    if isinstance(data, str | os.PathLike):
        return store_at(data)
    info = dict(data.attrs).get("dpdist") if isinstance(data, zarr.Array) else None
    if isinstance(info, dict) and info.get("format") == FORMAT:
        raise RowsError(
            "X is the array of a rows.zarr, which has a ledger. Pass the path of the folder, so that the release is "
            "charged to the ledger."
        )
    return None


def rows_in_memory(estimator: BaseEstimator, data: object, refusal: str) -> Rows:
    """Return the rows of X with the fitted columns; refuse a path."""
    if rows_at(data) is not None:
        raise RowsError(refusal)
    return rows_of(estimator, data, fitting=False)


def rows_of(estimator: BaseEstimator, data: object, *, fitting: bool) -> Rows:
    """Return the rows of X, and set (if ``fitting``) or check the columns of the estimator."""
    if isinstance(data, str | os.PathLike):
        table = open_rows(data)
        rows = Rows(StoredRows((table.rows, table.columns), table.dtype), user_names(table.names))
    else:
        rows = rows_from(data)
    finite = getattr(estimator, "missing", None) != "centre"
    layout = [] if rows.labelled is None else layout_of(data)
    try:
        if not fitting:
            require_layout(estimator._layout, layout, "X", "the fitted rows")  # noqa: SLF001 - of ours
        if rows.names is None and rows.labelled is None and not (rows.lazy or _is_stored(rows.data)):
            check = partial(validate_data, estimator, reset=fitting, ensure_all_finite=finite)
            rows = _validated(rows, check)
            if fitting:
                vars(estimator).pop("_layout", None)
            return replace(rows, names=tuple(getattr(estimator, "feature_names_in_", ())) or None)
        rows = _validated(rows, partial(check_array, input_name="X", ensure_all_finite=finite))
    except DataError as error:
        cure = f" {MISSING_CURE}" if fitting and str(error).startswith("Input X contains") else ""
        raise RowsError(f"{error}{cure}") from None
    if fitting:
        vars(estimator)["_layout"] = layout
        set_columns(estimator, rows.columns, rows.names)
    else:
        _require_columns(estimator, rows)
    return rows


def scores_rows(data: Any, components: Sequence[str]) -> Rows:
    """Return a table of scores with a column for each component; refuse their names in another order."""
    rows = rows_from(data)
    scores = _validated(rows, partial(check_array, input_name="X"))
    if scores.columns != len(components):
        raise RowsError(f"X has {scores.columns} columns, but there are {len(components)} components.")
    names = list(map(str, getattr(rows.data, "columns", rows.names or ())))
    if names != list(components) and sorted(names) == sorted(components):
        raise RowsError(f"The scores are in another order than the components. Pass them as {listed(components)}.")
    return scores


def user_names(names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the names of columns; None if dpdist numbered them."""
    return None if names == numbered(len(names)) else names


def set_columns(estimator: Any, count: int, names: Sequence[str] | None) -> None:
    """Set the column attributes of an estimator, as scikit-learn does; None: no names."""
    estimator.n_features_in_ = count
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_


def _require_columns(estimator: Any, rows: Rows) -> None:
    if rows.columns != estimator.n_features_in_:
        raise RowsError(
            f"X has {rows.columns} features, but {type(estimator).__name__} is expecting {estimator.n_features_in_} "
            "features as input."
        )
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and rows.names is not None and list(names) != list(rows.names):
        raise RowsError("The columns of X differ from the fitted ones, or their order does. Pass the fitted columns.")


def _validated(rows: Rows, check: Callable[..., Any]) -> Rows:
    """Return rows checked to be a table of real numbers, and finite if in memory."""
    if not (rows.lazy or _is_stored(rows.data)):
        return replace(rows, data=checked(rows.data, check))
    shape: tuple[Any, ...] = rows.data.shape or ()  # None: of an empty HDF5 dataset
    if len(shape) != 2:
        raise RowsError(two_dimensions(len(shape)))
    if math.isnan(shape[1]):
        raise RowsError("X has an unknown number of columns. Call X.compute_chunk_sizes() before.")
    if np.dtype(rows.data.dtype).kind not in "biuf":
        raise RowsError(f"X contains {np.dtype(rows.data.dtype).name}. Convert it to real numbers first.")
    return rows


def _is_stored(data: object) -> bool:
    """Whether slicing the rows reads them from disk."""
    return (
        isinstance(data, zarr.Array | StoredRows)
        or is_a(data, "h5py", "Dataset")
        or is_a(data, "anndata", "BaseCompressedSparseDataset")
    )


def rows_from(data: Any) -> Rows:
    """Return X as rows that are not checked yet."""
    try:
        require_table(data, "X")
        data = as_frame(data)
        layout = laid_out(data) if is_labelled(data) else None
    except DataError as error:
        raise RowsError(str(error)) from None
    if layout is not None:
        return Rows(layout.rows(), layout.names, layout.parts[0].array)
    if packed := _packed(data.attrs) if _is_stored(data) and hasattr(data, "attrs") else []:
        raise RowsError(
            f"X is a stored array whose attributes ({listed(packed)}) mark values as packed or missing. Open it with "
            "xarray, or ingest the file."
        )
    if is_a(data, "pandas", "DataFrame") or is_a(data, "dask", "DataFrame"):
        _require_names(list(data.columns))
    if is_a(data, "anndata", "AnnData"):
        if data.X is None:
            raise RowsError("X is an AnnData without a matrix .X. Pass a layer: adata.layers[NAME].")
        if len(set(map(spelled, map(str, data.obs_names)))) < len(data.obs_names):
            raise RowsError("X is an AnnData with duplicate observation names. Rename or remove the duplicates.")
        return Rows(data.X, tuple(map(str, data.var_names)))
    if is_a(data, "dask", "DataFrame"):
        if any(kind_of(kind) not in "biuf" for kind in data.dtypes):
            raise RowsError(not_numbers(data))
        data = data.map_partitions(_in_order, names=list(data.columns), meta=data._meta)  # noqa: SLF001 - its type
        numbers = data.to_dask_array()
        numbers = numbers if numbers.dtype.kind in "biuf" else data.astype(np.float64).to_dask_array()
        return Rows(numbers, tuple(map(str, data.columns)))
    return Rows(data)


def _in_order(partition: Any, names: Sequence[Any]) -> Any:
    """Return a partition whose columns are those of its Dask DataFrame, in their order."""
    if list(partition.columns) != list(names):
        raise RowsError(
            f"A partition of X has the columns {listed(map(repr, partition.columns))}, and X has "
            f"{listed(map(repr, names))}. Make them the same: X.map_partitions(lambda part: part[NAMES], meta=...), "
            "with the names and an empty DataFrame of X."
        )
    return partition


def _require_names(names: Sequence[Any]) -> None:
    """Refuse a table without columns, with columns of the same name, or with names of several types."""
    if not names:
        raise RowsError("X has no columns.")
    text = [str(name) for name in names]
    if any(map(has_control, text)):
        raise RowsError(
            "The name of a column of X holds a control or invisible character. Names are published and shown on "
            "terminals: rename the column."
        )
    if twice := repeated(map(visible, text)):
        raise RowsError(
            f"X has several columns of the name {listed(map(repr, twice))}. Rename them: X.columns = "
            "[f'{name}.{place}' for place, name in enumerate(X.columns)]."
        )
    if len({isinstance(name, str) for name in names}) > 1:
        raise RowsError("The names of the columns are not all text. Run X.columns = X.columns.astype(str) before.")
    if counters := [name for name in names if isinstance(name, str) and counts_rows(name)]:
        raise RowsError(
            f"X has columns with the name of an index or a count of the rows: {listed(map(repr, counters))}. They "
            f"would be summed like a measurement. Rename them, or pass X.drop(columns={counters})."
        )


def _packed(attributes: Any) -> list[str]:
    """Return the attributes that mark packed or missing values; a fill value of NaN is harmless."""
    fills = {name: np.asarray(fill_of(attributes[name]), np.float64) for name in _CF.intersection(attributes)}
    return sorted(name for name, values in fills.items() if not np.isnan(values).all())
