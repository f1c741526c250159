"""Tables in memory, checked by scikit-learn: real numbers in two dimensions. Messages quote no cell."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from dpdist.core.errors import DataError
from dpdist.core.frames import converted, is_a, sum_duplicates
from dpdist.core.ingest.readers.base import BEYOND, EXACT
from dpdist.core.text import listed


class RowsError(DataError, ValueError, TypeError):
    """X cannot be used as rows; also a ValueError and a TypeError, as scikit-learn expects."""


def checked(data: Any, check: Callable[..., Any]) -> Any:
    """Let scikit-learn check data in memory; replace its messages that quote a cell."""
    if isinstance(data, np.ma.MaskedArray):
        raise RowsError("X is a masked array. Fill masked entries by a public rule (X.filled).")
    try:
        dimensions = data.ndim if hasattr(data, "ndim") else converted(data, "X", np.asarray).ndim
    except DataError as error:
        raise RowsError(str(error)) from None
    dtypes = data.dtypes if is_a(data, "pandas", "DataFrame") else [getattr(data, "dtype", None)]
    kinds = [kind_of(dtype) for dtype in dtypes]
    if "c" in kinds:
        raise RowsError("Complex data not supported: rows are real numbers.")
    if dimensions != 2:
        raise RowsError(two_dimensions(dimensions))
    if {"m", "M", "?"}.intersection(kinds):  # scikit-learn converts Arrow's times to numbers
        raise RowsError(not_numbers(data))
    try:
        array = converted(data, "X", partial(_of_sklearn, check=check))
    except DataError as error:
        message = str(error)
    else:
        _require_exact(data, array)
        if array.dtype.kind in "biuf" or (array.dtype == object and _are_numbers(array)):
            return array
        message = not_numbers(data)
    # raised here, so that its context is no library error that quotes a cell
    raise RowsError(message)


_PASSED = re.compile("Found array with 0 |Input X contains |Complex data|The feature names|X has .* features, but")
"""Messages of scikit-learn about shapes, names and missing values, which quote no cell."""


def _of_sklearn(data: Any, check: Callable[..., Any]) -> Any:
    if hasattr(data, "tocsr"):
        data = sum_duplicates(data)  # scikit-learn would let small integers overflow
    try:
        return check(data, accept_sparse="csr")
    except (
        TypeError,
        ValueError,
        NotImplementedError,
    ) as error:  # cells are refused with any of these
        message = str(error)
    if _PASSED.match(message):
        raise DataError(message if message.startswith("The feature names") else message.split("\n", maxsplit=1)[0])
    if hasattr(data, "dtypes") and any(kind_of(kind) not in "biuf" for kind in data.dtypes):
        raise DataError(not_numbers(data))
    if "argument must be a string" in message:  # names the type of an object, as scikit-learn expects
        raise DataError(f"X contains a cell that is not a number: {message}.")
    if "convert string" in message or "bytes/strings" in message or "numpy.dtypes" in message:
        raise DataError(not_numbers(data))
    if "sequence" in message:
        raise DataError("X has rows of different lengths, or cells of several values. Give each cell one number.")
    raise ValueError(message)


def _require_exact(data: Any, array: Any) -> None:
    """Refuse integers that were rounded to floats."""
    kinds = [kind_of(kind) for kind in getattr(data, "dtypes", ())]
    integers = [i for i, kind in enumerate(kinds) if kind != "f"]
    if array.dtype.kind == "f" and integers and not hasattr(array, "tocsr"):
        for row, column in np.argwhere(np.abs(array[:, integers]) > EXACT - 1):
            if not isinstance(data.iloc[row, integers[column]], float):  # a column of objects may contain floats
                raise RowsError(f"X, column {data.columns[integers[column]]!r}: {BEYOND}")


def _are_numbers(data: Any) -> bool:
    """Whether an array of Python objects, such as the cells of categories, contains only numbers."""
    with suppress(ValueError, TypeError, OverflowError):
        return bool(data.astype(np.float64).size)
    return False


def kind_of(dtype: Any) -> str:
    """Return the letter of a type; O if it has none, and ? for types of Arrow that pandas does not know."""
    try:
        return str(getattr(dtype, "kind", "O"))
    except NotImplementedError:  # pandas raises it for the kind of an Arrow type that it cannot map
        return "?"


def not_numbers(data: Any) -> str:
    """Return a message that names the columns without numbers and quotes no cell."""
    kinds = getattr(data, "dtypes", ())
    wrong = [f"{name!r} ({kind})" for name, kind in dict(kinds).items() if kind_of(kind) not in "biuf"]
    message = f"X has non-numeric columns: {listed(wrong)}." if wrong else "X contains a cell that is not a number."
    rows = "X.map_partitions(schema.transform)" if is_a(data, "dask", "DataFrame") else "schema.transform(X)"
    return f"{message} Encode text and dates as numbers by a public rule: {rows}, with a dpdist.Schema."


def two_dimensions(dimensions: int) -> str:
    """Return the refusal of another number of dimensions, in the words that scikit-learn expects."""
    return f"Expected 2D array, got {dimensions}D. Reshape your data to (rows, columns)."
