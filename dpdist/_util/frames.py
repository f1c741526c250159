"""Tables of other packages, recognised by class name so that the packages need not be installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpdist.errors import DataError, UsageError


def is_a(value: object, package: str, name: str) -> bool:
    """Return whether a value is an instance of a class, named by its package and name."""
    return any(cls.__module__.split(".")[0] == package and cls.__name__ == name for cls in type(value).__mro__)


def as_frame(table: Any) -> Any:
    """Convert a polars DataFrame or an Arrow table to pandas; return anything else unchanged."""
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
