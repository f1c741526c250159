"""Tables of other packages, recognised by class name so that the packages need not be installed."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from numbers import Number
from types import ModuleType, NoneType
from typing import Any, TypeVar

import numpy as np

from dpdist.core.errors import DataError, DpdistError, UsageError

T = TypeVar("T")
_CURES = {
    ("pandas", "Series"): "It is one column: pass a DataFrame, such as frame[['a', 'b']]",
    ("pandas", "BaseGroupBy"): "Pass the DataFrame that was grouped",
    ("pandas", "TextFileReader"): "It reads a file in parts: pass pandas.concat({0})",
    ("dask", "Delayed"): "Pass {0}.compute()",
    ("dask", "Bag"): "Pass {0}.to_dataframe()",
    ("dask", "Series"): "It is one column: pass a DataFrame, such as frame[['a', 'b']]",
    ("dask", "Scalar"): "Pass the DataFrame that it was computed from",
    ("polars", "Series"): "It is one column: pass a DataFrame, such as frame[['a', 'b']]",
    ("pyarrow", "RecordBatchReader"): "Pass {0}.read_all()",
    ("pyarrow", "Dataset"): "Pass {0}.to_table()",
    ("xarray", "DataTree"): "Pass one of its nodes: {0}.to_dataset()",
    ("xarray", "GroupBy"): "Pass the array that was grouped",
    ("anndata", "Raw"): "Pass {0}.X",
    ("h5py", "Group"): "It holds arrays by name: pass {0}['NAME']",
    ("zarr", "Group"): "It holds arrays by name: pass {0}['NAME']",
    ("numpy", "NpzFile"): "It holds arrays by name: pass {0}['NAME']",
    ("numpy", "matrix"): "Pass numpy.asarray({0})",
}
"""What to pass in place of objects that are no table."""
_FROM_RECORDS = "Pass pandas.DataFrame({0})"


def is_a(value: object, package: str, name: str) -> bool:
    """Return whether a value is an instance of a class, named by its package and name."""
    return any(cls.__module__.split(".")[0] == package and cls.__name__ == name for cls in type(value).__mro__)


def is_labelled(value: object) -> bool:
    """Whether a value is an xarray DataArray or Dataset."""
    return is_a(value, "xarray", "DataArray") or is_a(value, "xarray", "Dataset")


def names_beside(table: Any) -> list[str]:
    """Return what stands beside the rows of a table in memory: its index, coordinates along its rows, or ``obs/``."""
    if is_labelled(table):
        row = next(iter(table.dims), None) if is_a(table, "xarray", "DataArray") else _first_dimension(table)
        return [str(name) for name, values in table.coords.items() if values.dims == (row,) and name != row]
    if is_a(table, "anndata", "AnnData"):
        return [f"obs/{name}" for name in table.obs.columns]
    names = getattr(getattr(table, "index", None), "names", None)
    if names is None:
        names = [getattr(getattr(table, "index", None), "name", None)]
    return [str(name) for name in names if name is not None]


def _first_dimension(table: Any) -> Any:
    return next((array.dims[0] for array in table.data_vars.values() if array.dims), None)


def type_name(value: object) -> str:
    """Return the type of a value for messages: its package and name.

    >>> type_name(np.ones(2)), type_name(3)
    ('numpy.ndarray', 'int')
    """
    package = type(value).__module__.partition(".")[0]
    return type(value).__qualname__ if package == "builtins" else f"{package}.{type(value).__qualname__}"


def require_table(value: Any, name: str) -> None:
    """Refuse an argument of a usual type that holds no table yet, and say what to pass."""
    cure = next((cure for kind, cure in _CURES.items() if is_a(value, *kind)), None)
    if cure is None:
        dtype = getattr(value, "dtype", None)
        first = value[0] if isinstance(value, list | tuple) and value else None
        records = (isinstance(each, dict) and not hasattr(each, "tocsr") for each in (value, first))
        if any(records) or isinstance(getattr(dtype, "names", None), tuple):
            cure = _FROM_RECORDS
        elif isinstance(value, type | ModuleType | bytes | bytearray | str | os.PathLike | Number | NoneType):
            cure = "Pass a DataFrame, or an array of two dimensions"
        elif isinstance(value, io.IOBase):
            cure = "Pass the table that is read from it, such as pandas.read_csv({0})"
        elif isinstance(value, Iterator):
            cure = "Pass its rows as a list: list({0})"
    if cure is not None:
        raise DataError(f"{name} is of type {type_name(value)}, not a table. {cure.format(name)}.")


def converted(value: Any, name: str, convert: Callable[[Any], T], cure: str = "numpy.asarray({0}, dtype=float)") -> T:
    """Return what a library makes of an argument; replace its errors, which may quote rows."""
    try:
        return convert(value)
    except DpdistError:
        raise
    except Exception as error:  # noqa: BLE001 - every library raises others
        kind, ragged = type(error).__name__, "inhomogeneous" in str(error)
    if ragged:
        raise DataError(f"{name} has rows of different lengths. Give every row the same number of cells.")
    raise DataError(
        f"{name}, of type {type_name(value)}, cannot be converted to numbers ({kind}). Pass {cure.format(name)}; if "
        "that fails, its error says why."
    )


def as_frame(table: Any, name: str = "X") -> Any:
    """Convert a polars DataFrame or an Arrow table to pandas; return anything else unchanged."""
    return converted(table, name, _as_frame, "{0}.lazy().cast(polars.Float64).collect()")


def _as_frame(table: Any) -> Any:
    if is_a(table, "polars", "LazyFrame"):
        table = table.collect()
    if is_a(table, "polars", "DataFrame"):
        table = table.to_arrow()
    if not (is_a(table, "pyarrow", "Table") or is_a(table, "pyarrow", "RecordBatch")):
        return table
    index_columns = (table.schema.pandas_metadata or {}).get("index_columns", ())
    if index := [name for name in index_columns if name in table.schema.names]:
        raise DataError(
            f"The column {index[0]!r} of the table is a pandas index, which would be summed like a measurement. "
            f"Pass table.drop_columns({index}), or table.replace_schema_metadata() to keep it."
        )
    try:
        import pandas as pd  # noqa: PLC0415 - may be missing
    except ImportError:
        pass
    else:
        return table.to_pandas(types_mapper=pd.ArrowDtype, ignore_metadata=True)
    raise UsageError("Reading a polars or Arrow table needs pandas. Install it with: pip install pandas")


def sum_duplicates(matrix: Any) -> Any:
    """Return a SciPy sparse matrix as CSR with duplicate entries summed."""
    canonical = getattr(matrix, "has_canonical_format", False)
    if canonical or matrix.dtype.kind not in "iu" or matrix.dtype.itemsize == 8:
        return matrix.tocsr()
    wide = matrix.astype(np.int64).tocsr()
    wide.sum_duplicates()
    limits = np.iinfo(matrix.dtype)
    if wide.nnz and not limits.min <= wide.data.min() <= wide.data.max() <= limits.max:
        raise DataError(f"A sparse matrix has duplicate entries whose sum overflows {matrix.dtype}. Pass it as int64.")
    return wide.astype(matrix.dtype)
