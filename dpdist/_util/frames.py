"""Tables of other packages, which are known by the names of their classes and need not be installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpdist.errors import DataError, UsageError


def is_a(value: object, package: str, name: str) -> bool:
    """Say whether a value is of a class of a package, which need not be installed."""
    return any(each.__module__.split(".")[0] == package and each.__name__ == name for each in type(value).__mro__)


def as_frame(given: Any) -> Any:
    """Return a DataFrame of polars, or a table of Arrow, as one of pandas, and anything else as it is."""
    if is_a(given, "polars", "LazyFrame"):
        given = given.collect()
    if is_a(given, "polars", "DataFrame"):
        given = given.to_arrow()
    if not (is_a(given, "pyarrow", "Table") or is_a(given, "pyarrow", "RecordBatch")):
        return given
    said = (given.schema.pandas_metadata or {}).get("index_columns", ())
    if index := [name for name in said if name in given.schema.names]:
        raise DataError(
            f"The column {index[0]!r} of the table is an index of pandas, which would be summed like a measurement. "
            f"Pass table.drop_columns({index}), or table.replace_schema_metadata() to keep it."
        )
    try:
        import pandas as pd  # noqa: PLC0415 - whoever has such a table may lack it
    except ImportError:
        pass
    else:
        return given.to_pandas(types_mapper=pd.ArrowDtype, ignore_metadata=True)
    raise UsageError("A table of polars or Arrow is read by pandas. Install it with: pip install pandas")


def summed(matrix: Any) -> Any:
    """Return a sparse matrix of SciPy as CSR, where an entry that is given several times is their sum."""
    once = getattr(matrix, "has_canonical_format", False)
    if once or matrix.dtype.kind not in "iu" or matrix.dtype.itemsize == 8:
        return matrix.tocsr()
    wide = matrix.astype(np.int64).tocsr()
    wide.sum_duplicates()
    limits = np.iinfo(matrix.dtype)
    if wide.nnz and not limits.min <= wide.data.min() <= wide.data.max() <= limits.max:
        raise DataError(
            f"A sparse matrix gives an entry several times, and their sum is beyond {matrix.dtype}. Give it as int64."
        )
    return wide.astype(matrix.dtype)
