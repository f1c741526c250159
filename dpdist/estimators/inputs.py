"""What an estimator takes for X, and gives back for it: one small description of every kind of table.

Rows are taken in pieces only. A NumPy array or a sparse matrix is cut, a Zarr array or a backed AnnData is read from
the disk, and each block of a Dask array is a task of its own. pandas, xarray and anndata are recognised by the names of
their classes, so they are imported only by those who use them.

NaN and infinity are refused here, as ``dpdist ingest`` refuses them, before anything is charged. Whoever fits an array
holds it, and a row that silently counted as zero would be a wrong answer. The failure itself tells something of the
rows. A job whose failure others see should ingest first and fit the rows.zarr, which never fails for a value.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zarr
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, validate_data

from dpdist._util.frames import as_frame, is_a
from dpdist._util.parallel import available_cores, threaded
from dpdist._util.text import listed
from dpdist.errors import DataError
from dpdist.estimators.in_memory import ArraySum, BlockSum, RowSum, add_sums, count_block, dense
from dpdist.ingest.collection import whole_rows
from dpdist.ingest.labelled import is_labelled, laid_out
from dpdist.ingest.readers.base import BEYOND, EXACT, UNNAMED, numbered
from dpdist.ingest.readers.chunked import fill_of
from dpdist.ingest.registered import open_rows
from dpdist.moment.histograms import Counting, Counts
from dpdist.moment.total import key_here
from dpdist.rows.bounding import RowBound
from dpdist.rows.columns import DTYPES
from dpdist.rows.dataset import FORMAT
from dpdist.runtime.checks import forbid_core_dumps
from dpdist.storage.store import Store, store_at
from dpdist.triangle import Band

Values = npt.NDArray[np.generic]
Function = Callable[[Any], Any]
_PIECE_BYTES = 8 << 20
"""float64 bytes of the rows that are read from a disk at once."""
_STEP = "dpdist-project"
"""How Dask calls the tasks of a projection."""
_WORTH_A_THREAD = 1 << 20
"""Values for which a further thread is worth its start."""


_CF = frozenset({
    "scale_factor", "add_offset", "_FillValue", "missing_value", "valid_range", "valid_min", "valid_max",
})  # fmt: skip
"""Attributes of the CF conventions by which stored values are not what they look like."""
_MISSING_CURE = (
    "Pass missing='centre' with scale='private' or a public centre, and such a row counts as the centre; or fill it by "
    "a public rule."
)


class RowsError(DataError, ValueError):
    """X cannot be used as rows; a ValueError too, because scikit-learn's tools expect one."""


@dataclass(frozen=True)
class Rows:
    """The rows of one X."""

    data: Any  # (n, d): a Dask array, or a NumPy array, a sparse matrix or what gives one of these when it is sliced
    names: tuple[str, ...] | None = None  # of the columns
    labelled: Any = None  # the xarray.DataArray they came in, or the first one of a Dataset

    @property
    def lazy(self) -> bool:
        """Whether the rows are a Dask array, which is not computed before its owner says so."""
        return is_a(self.data, "dask", "Array")

    @property
    def known_rows(self) -> int | None:
        """Return n; None where it is not known before the rows are computed."""
        rows = self.data.shape[0]
        return None if math.isnan(rows) else int(rows)

    @property
    def columns(self) -> int:
        """Return d."""
        return int(self.data.shape[1])

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns; numbers, where they have none."""
        return self.names or numbered(self.columns)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type in which rows are handed on: see :func:`dpdist.estimators.in_memory.dense`."""
        found = np.dtype(self.data.dtype)
        return found if found.name in DTYPES and found.isnative else np.dtype(np.float64)

    def total(self, bound: RowBound, key: bytes) -> ArraySum:
        """Return the exact sum over all rows, in one pass."""

        def of_run(rows: range) -> ArraySum:
            found = RowSum(bound, key, key_here(bound))
            for _, piece in self._pieces(rows):
                found.add(piece)
            return found.total()

        found: ArraySum = self._reduced(BlockSum(bound, key), of_run, add_sums, 8 * Band.whole(bound.width).entries)
        return found

    def counts(self, counting: Counting) -> Counts:
        """Return how many of all rows fall into each bin, in one pass."""
        of_block = partial(count_block, counting=counting)

        def of_run(rows: range) -> Counts:
            return reduce(operator.iadd, (of_block(piece) for _, piece in self._pieces(rows)))

        found: Counts = self._reduced(of_block, of_run, operator.iadd, 8 * counting.bins)
        return found

    def _reduced(self, of_block: Function, of_run: Function, add: Callable[[Any, Any], Any], nbytes: int) -> Any:
        """Reduce all rows: of a Dask array its blocks, which do not come here; of others a run for each thread."""
        if self.lazy:
            from dpdist.runtime.collections import reduce_blocks  # noqa: PLC0415 - who holds such an array has Dask

            return reduce_blocks(whole_rows(self.data), of_block, add, nbytes)
        forbid_core_dumps()
        rows, (step,) = self.data.shape[0], (getattr(self.data, "chunks", None) or (1,))[:1]
        threads = max(1, min(available_cores(), rows * self.columns // _WORTH_A_THREAD, rows // step))
        cuts = [step * (rows // step * i // threads) for i in range(threads)] + [rows]
        with threaded(threads) as each:
            return reduce(add, list(each(of_run, map(range, cuts, cuts[1:]))))

    def _pieces(self, rows: range) -> Iterator[tuple[slice, npt.NDArray[np.generic]]]:
        step = max(1, _PIECE_BYTES // (8 * self.columns))
        if chunk := getattr(self.data, "chunks", None):  # whole chunks of a Zarr array or HDF5 file: none is read twice
            step = max(1, step // chunk[0]) * chunk[0]
        for start in range(rows.start, rows.stop, step):
            piece = slice(start, min(start + step, rows.stop))
            yield piece, dense(self.data[piece])

    def mapped(
        self,
        function: Callable[[npt.NDArray[np.generic]], Values],
        width: int,
        dtype: Any,
        names: Sequence[str],
        dim: str,
    ) -> Any:
        """Return what a function makes of the rows, each of which it takes alone: lazy or labelled where they are."""
        found: Any
        if self.lazy:
            rows = whole_rows(self.data)
            found = rows.map_blocks(
                of_rows, function=function, token=_STEP, dtype=dtype, chunks=(rows.chunks[0], (width,)),
                meta=np.empty((0, 0), dtype),
            )  # fmt: skip
        else:
            found = np.empty((self.data.shape[0], width), dtype)
            for place, piece in self._pieces(range(len(found))):
                found[place] = function(piece)
        if self.labelled is None:
            return found
        row = self.labelled.dims[0]
        coords = {name: each for name, each in self.labelled.coords.items() if set(each.dims) <= {row}}
        return type(self.labelled)(
            found, dims=(row, dim), coords={**coords, dim: np.array(names, dtype=object).astype(str)}
        )


def of_rows(block: Any, function: Callable[[npt.NDArray[np.generic]], Values]) -> Values:
    """Apply a function of rows to a block, which may be sparse."""
    return function(dense(block))


class StoredRows(NamedTuple):
    """What is known of the rows of a path: they are read where they are summed."""

    shape: tuple[int, int]
    dtype: str


def rows_at(given: object) -> Store | None:
    """Return where a rows.zarr is, if X is a path or an address."""
    if isinstance(given, str | os.PathLike):
        return store_at(given)
    info = dict(given.attrs).get("dpdist") if isinstance(given, zarr.Array) else None
    if isinstance(info, dict) and info.get("format") == FORMAT:
        raise RowsError(
            "X is the array of a rows.zarr, which has a ledger: pass the path of the folder, so that the release is "
            "charged to it."
        )
    return None


def rows_in_memory(estimator: BaseEstimator, given: object, refusal: str) -> Rows:
    """Return the rows of X, which is to have the columns that were fitted, and is to be no path."""
    if rows_at(given) is not None:
        raise RowsError(refusal)
    return rows_of(estimator, given, fitting=False)


def rows_of(estimator: BaseEstimator, given: object, *, fitting: bool) -> Rows:
    """Return the rows of X, and tell the estimator their number of columns and names, or hold them to what it knows."""
    if isinstance(given, str | os.PathLike):
        table = open_rows(given)
        rows = Rows(StoredRows((table.rows, table.columns), table.dtype), given_names(table.names))
    else:
        rows = _described(given)
    finite = getattr(estimator, "missing", None) != "centre"
    try:
        if rows.names is None and rows.labelled is None and not (rows.lazy or _is_stored(rows.data)):
            # it compares the names of a DataFrame
            check = partial(validate_data, estimator, reset=fitting, ensure_all_finite=finite)
            rows = _examined(rows, check)
            return replace(rows, names=tuple(getattr(estimator, "feature_names_in_", ())) or None)
        rows = _examined(rows, partial(check_array, input_name="X", ensure_all_finite=finite))
    except RowsError as error:
        if fitting and str(error).startswith("Input X contains"):
            raise RowsError(f"{error} {_MISSING_CURE}") from None
        raise
    if fitting:
        tell_columns(estimator, rows.columns, rows.names)
    else:
        _require_columns(estimator, rows)
    return rows


def scores_given(given: object, columns: int) -> Rows:
    """Return scores, which are a table of so many columns, whatever these are called."""
    scores = _examined(_described(given), partial(check_array, input_name="X"))
    if scores.columns != columns:
        raise RowsError(f"X has {scores.columns} columns, and there are {columns} components.")
    return scores


def given_names(names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the names of columns; None where they are numbers that dpdist gave."""
    return None if names == numbered(len(names)) else names


def tell_columns(estimator: Any, count: int, names: Sequence[str] | None) -> None:
    """Tell an estimator its columns, as scikit-learn does; None: they have no names."""
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
    known = getattr(estimator, "feature_names_in_", None)
    if known is not None and rows.names is not None and list(known) != list(rows.names):
        raise RowsError("X has other columns than were fitted, or in another order: pass the same, by name.")


def _examined(rows: Rows, check: Callable[..., Any]) -> Rows:
    """Return rows that are a table of real numbers, finite as far as they are in memory."""
    if not (rows.lazy or _is_stored(rows.data)):
        return replace(rows, data=_checked(rows.data, check))
    if len(rows.data.shape) != 2:
        raise RowsError(_two_dimensions(len(rows.data.shape)))
    if np.dtype(rows.data.dtype).kind not in "biuf":
        raise RowsError(f"X holds {np.dtype(rows.data.dtype).name}, and rows are real numbers: convert it first.")
    return rows


def _is_stored(data: object) -> bool:
    """Say whether rows come from a disk when they are sliced."""
    return (
        isinstance(data, zarr.Array | StoredRows)
        or is_a(data, "h5py", "Dataset")
        or is_a(data, "anndata", "BaseCompressedSparseDataset")
    )


def _described(given: Any) -> Rows:
    try:
        given = as_frame(given)
        laid = laid_out(given) if is_labelled(given) else None
    except DataError as error:
        raise RowsError(str(error)) from None
    if laid is not None:
        return Rows(laid.rows(), laid.names, laid.parts[0].array)
    if packed := _packed(given.attrs) if _is_stored(given) and hasattr(given, "attrs") else []:
        raise RowsError(
            f"X is an array as it is stored, and its attributes ({listed(packed)}) say that values are packed or "
            "missing. Open it by xarray, or ingest the file."
        )
    for name in UNNAMED.intersection(map(str, getattr(given, "columns", ()))):
        raise RowsError(
            f"The column {name!r} of X is called like an index that was written without a name, which would be summed "
            "like a measurement: drop it, or rename it."
        )
    if is_a(given, "anndata", "AnnData"):
        if given.X is None:
            raise RowsError("X is an AnnData without a matrix .X: pass the layer that you mean, adata.layers[NAME].")
        if not given.obs_names.is_unique:
            raise RowsError("X is an AnnData that names an observation twice. Leave one out, or name them apart.")
        return Rows(given.X, tuple(map(str, given.var_names)))
    if is_a(given, "dask", "DataFrame") or is_a(given, "dask_expr", "DataFrame"):
        return Rows(given.to_dask_array(), tuple(map(str, given.columns)))
    return Rows(given)


def _packed(attributes: Any) -> list[str]:
    """Return the attributes by which stored values are not what they look like; NaN for a missing one is what it is."""
    told = {name: np.asarray(fill_of(attributes[name]), np.float64) for name in _CF.intersection(attributes)}
    return sorted(name for name, values in told.items() if not np.isnan(values).all())


def _checked(data: Any, check: Callable[..., Any]) -> Any:
    """Let scikit-learn check what is in memory; where its messages quote a cell they are cut short."""
    if getattr(getattr(data, "dtype", None), "kind", "") == "c":
        raise RowsError("Complex data not supported: rows are real numbers.")
    if isinstance(data, np.ma.MaskedArray):
        raise RowsError("X is a masked array, and a masked entry is no number: fill it by a public rule (X.filled).")
    kinds = getattr(data, "dtypes", ())
    if any(getattr(kind, "kind", "") in {"m", "M"} for kind in kinds):  # of Arrow's times scikit-learn makes numbers
        raise RowsError(_not_numbers(data))
    try:
        dimensions = data.ndim if hasattr(data, "ndim") else np.asarray(data).ndim
        said = _two_dimensions(dimensions)
        if dimensions == 2:
            found = check(data, accept_sparse="csr")
            _require_exact(data, found)
            if found.dtype.kind in "biuf" or (found.dtype == object and _are_numbers(found)):
                return found
            said = _not_numbers(data)
    except TypeError:
        if not hasattr(data, "dtypes"):
            raise  # of objects in an array, as scikit-learn says it: it names their type
        said = _not_numbers(data)
    except ValueError as error:
        said = _not_numbers(data) if "convert string" in str(error) else str(error)
    # raised here, where no error of a library that quotes a cell goes with it
    raise RowsError(said if said.startswith("The feature names") else said.split("\n")[0])


def _require_exact(data: Any, found: Any) -> None:
    """Refuse whole numbers that were rounded to floats."""
    kinds = [getattr(kind, "kind", "O") for kind in getattr(data, "dtypes", ())]
    whole = [place for place, kind in enumerate(kinds) if kind != "f"]
    if found.dtype.kind == "f" and whole and not hasattr(found, "tocsr"):
        for row, at in np.argwhere(np.abs(found[:, whole]) > EXACT - 1):
            if not isinstance(data.iloc[row, whole[at]], float):  # floats may be held as objects
                raise RowsError(f"X, column {data.columns[whole[at]]!r}: {BEYOND}")


def _are_numbers(data: Any) -> bool:
    """Say whether an array of Python objects, such as the cells of categories, holds numbers only."""
    with suppress(ValueError, TypeError):
        return bool(data.astype(np.float64).size)
    return False


def _not_numbers(data: Any) -> str:
    """Say which columns hold no numbers; no cell is told."""
    kinds = getattr(data, "dtypes", ())
    wrong = [f"{name!r} ({kind})" for name, kind in dict(kinds).items() if getattr(kind, "kind", "O") not in "biuf"]
    told = f"X has columns that hold no numbers: {listed(wrong)}." if wrong else "X holds a cell that is not a number."
    return f"{told} Encode words and dates as numbers, by a public rule: dpdist.Schema."


def _two_dimensions(found: int) -> str:
    return f"Expected 2D array, got {found}D. Reshape your data to (rows, columns)."
