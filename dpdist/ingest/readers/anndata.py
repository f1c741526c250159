"""Readers of AnnData, dense and sparse: .h5ad files, and Zarr stores that say that they are AnnData.

Of such a store or file only X is a table of rows, and what has its shape or stands for it before genes were left out:
its layers, and raw. The other matrices beside it (``obsm``, ``obsp``, ``varm``) were computed from all rows together,
as a PCA is: released, they would be protected for nobody, so they are never offered.

anndata's own reader takes sparse matrices apart; what is not needed of the file is not opened.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dpdist.errors import DataError
from dpdist.ingest.readers.base import PIECE, STORED, Places, Rows, attempt_each, attempted, bounded, required
from dpdist.ingest.readers.chunked import Chunked, Layout, chunk_bytes, only, require_chunks
from dpdist.ingest.readers.hdf5 import contained
from dpdist.ingest.readers.source import Fragment, Head, neighbours, transposed, width_for
from dpdist.ingest.readers.zarr_store import holds_values, opened, require_foreign
from dpdist.rows.encoding import MISSING_WORDS
from dpdist.rows.units import named_units

_SPARSE = {"csr_matrix": "csr", "csc_matrix": "csc"}
_PARTS = ("data", "indices", "indptr")
_CELLS = 1 << 16
"""Cells of ``obs`` that are read at once."""


class AnnData(Chunked):
    """X, or with ``--variable`` another matrix of the same rows; columns are named as in ``var``."""

    takes: ClassVar[tuple[str, ...]] = ("variable",)
    fragile = True

    @abstractmethod
    def _root(self) -> AbstractContextManager[Any]:
        """Open it: a group of groups and arrays, as h5py and zarr give them."""

    @abstractmethod
    def _is_stored(self, array: Any, path: str) -> bool:
        """Say whether any value of an array is stored."""

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with self._root() as root:
            yield root[self._matrix_path]

    @cached_property
    @attempted
    def _matrix_path(self) -> str:
        with self._root() as root:
            layers = sorted(root["layers"].keys()) if "layers" in root else ()
            paths = ["X", "raw/X", *(f"layers/{name}" for name in layers)]
            matrices = {path: _shape(root[path]) for path in paths if path in root}
        if self.choices.variable is None and "X" in matrices:
            return "X"
        return only(self.path, matrices, self.choices.variable, "matrix")

    @cached_property
    @attempted
    def _kind(self) -> str:
        """Dense, csr or csc."""
        with self._opened() as matrix:
            if not hasattr(matrix, "keys"):
                return "dense"
            encoding = matrix.attrs.get("encoding-type", f"{matrix.attrs.get('h5sparse_format', '')}_matrix")
        required("anndata", "anndata", "sparse AnnData")
        return _SPARSE[str(encoding)]

    @cached_property
    @attempted
    def _stored(self) -> Layout:
        with self._opened() as matrix:
            shape = _shape(matrix)
            if self._kind == "dense":
                chunks = matrix.chunks or (1,) * len(shape)
                return Layout(
                    shape, matrix.dtype, tuple(map(min, chunks, shape)), self._is_stored(matrix, self._matrix_path)
                )
            parts = {name: matrix[name] for name in _PARTS}
            for array in parts.values():
                require_chunks(self.path, chunk_bytes(array))
            stored = all(
                not array.shape[0] or self._is_stored(array, f"{self._matrix_path}/{name}")
                for name, array in parts.items()
            )
            if min(shape) >= 0 and parts["indptr"].shape[0] != shape[self._kind == "csc"] + 1:
                raise DataError(f"{self.path} is damaged: its sparse matrix has another shape than it says.")
            return Layout(shape, parts["data"].dtype, (1, *shape[1:]), stored)

    @cached_property
    @attempted
    def unpacked(self) -> int:
        if self._kind == "dense":
            return super().unpacked
        with self._opened() as matrix:
            return sum(chunk_bytes(matrix[name]) for name in _PARTS)

    @cached_property
    def head(self) -> Head:
        layout, samples = self._layout, self._samples()
        return Head(
            self._names(), layout.shape[0], layout.dtype.name, labels=(*self._labels(), *samples), samples=samples
        )

    @attempted
    def _column(self, path: str) -> Any:
        """Return a column of ``obs`` or ``var``, a pandas Series without missing values, by anndata's own reader."""
        anndata = required("anndata", "anndata", "AnnData")
        pandas = required("pandas", "anndata", "AnnData")
        frame, _, name = path.rpartition("/")
        with self._root() as root:
            column = root[path]
            for array in _arrays(column):
                require_chunks(self.path, chunk_bytes(array))
            cells = anndata.io.read_elem(column)
            if "categories" in column.attrs:  # before 0.8
                names = anndata.io.read_elem(root[f"{frame}/__categories/{name}"])
                cells = pandas.Categorical.from_codes(cells, names)
        series = pandas.Series(cells)
        if series.isna().any():
            raise DataError(
                f"{self.path}: {path} is missing for some rows: it is not said whose they are. Fill it, or leave them "
                "out."
            )
        return series

    @attempted
    def _names(self) -> tuple[str, ...]:
        frame, columns = "raw/var" if self._matrix_path == "raw/X" else "var", self._layout.columns
        with self._root() as root:
            var = root[frame]
            if not hasattr(var, "keys"):
                raise DataError(
                    f"{self.path} was written by anndata before 0.7. Write it again with a newer one; in Python: "
                    "anndata.read_h5ad(FILE).write_h5ad(NEW)."
                )
            labels = self._column(f"{frame}/{var.attrs['_index']}")
        if len(labels) != columns:
            raise DataError(f"{self.path} names {len(labels)} variables for {columns} columns. Mend it.")
        return bounded(self.path, [labels.astype(str).tolist()])

    @attempted
    def _samples(self) -> tuple[str, ...]:
        """Return the column of ``obs`` that names its rows, if it is one of words; anndata counts those without."""
        with self._root() as root:
            index = getattr(root.get("obs"), "attrs", {}).get("_index")
        if index is None:
            return ()
        names = self._column(f"obs/{index}")
        counted = [str(row) for row in range(len(names))]
        return () if not _is_text(names) or names.tolist() == counted else (f"obs/{index}",)

    @attempted
    def _labels(self) -> list[str]:
        """Return the columns of ``obs`` that may say whose a row is: no measurements, and not the index."""
        with self._root() as root:
            obs = root.get("obs")
            return [
                f"obs/{name}"
                for name in (sorted(obs.keys()) if hasattr(obs, "keys") else ())
                if getattr(getattr(obs[name], "dtype", None), "kind", "") not in set("fcb")
                and not name.startswith("__") and name != obs.attrs.get("_index")
            ]  # fmt: skip

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:
        columns = [self._label_cells(label) for label in labels]
        for start in range(0, self._layout.shape[0], _CELLS):
            yield named_units([column.iloc[start : start + _CELLS].astype(str).tolist() for column in columns], key)

    def _label_cells(self, label: str) -> Any:
        """Return a column of ``obs`` whose cells are names or whole numbers, one for each row."""
        column = self._column(label)
        values = column.cat.categories if column.dtype == "category" else column
        if len(column) != self._layout.shape[0]:
            raise DataError(f"{self.path}: {label} is not one name or whole number for each row. Choose another.")
        if not (_is_text(values) or values.dtype.kind in "iu"):
            raise DataError(
                f"{self.path}: {label} holds {values.dtype.name}, and a privacy unit is a name or a whole number. "
                "Store it as one of these."
            )
        if _is_text(values) and (lacking := column.astype(str).str.strip().isin(MISSING_WORDS)).any():
            raise DataError(
                f"{self.path}, row {lacking.to_numpy().argmax()} (counting from 0): {label} is missing, and it is not "
                "said whose row it is. Leave the row out, or name whose it is."
            )
        return column

    def blocks(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        layout = self._layout
        if self._kind == "dense":
            yield from super().blocks(keep, fragment)
        elif self._kind == "csr":
            all_columns = keep == tuple(range(layout.columns))
            for block in attempt_each(self.path, self._rows(layout)):
                yield block if all_columns else block[:, keep]
        else:
            shape, dtype = (layout.shape[0], len(keep)), np.dtype(STORED[layout.dtype.name])
            yield from transposed(self.path, self.scratch_dir, self._columns(layout, keep), shape, dtype)

    def _rows(self, layout: Layout) -> Iterator[Rows]:
        rows = layout.shape[0]
        step = max(1, PIECE // layout.row_bytes)
        with self._opened() as matrix:
            for start in range(0, rows, step):
                yield _dense(matrix, slice(start, min(start + step, rows)), layout.columns)

    def _columns(self, layout: Layout, keep: Places) -> Iterator[Rows]:
        rows = layout.shape[0]
        with self._opened() as matrix:
            for run in neighbours(keep, width_for(rows, layout.dtype)):
                yield _dense(matrix, slice(keep[run][0], keep[run][-1] + 1), rows).T


class H5ad(AnnData):
    """A .h5ad file."""

    needs_file = True

    @contextmanager
    def _root(self) -> Iterator[Any]:
        with contained(self.path, required("h5py", "anndata", ".h5ad files")) as file:
            yield file

    def _is_stored(self, array: Any, path: str) -> bool:  # noqa: ARG002 - HDF5 knows
        return int(array.id.get_storage_size()) > 0


class AnnDataStore(AnnData):
    """A Zarr store of AnnData."""

    @contextmanager
    def _root(self) -> Iterator[Any]:
        with opened(self.path) as root:
            yield root

    @cached_property
    def _matrix_path(self) -> str:
        path = super()._matrix_path
        require_foreign(self.path, path)
        return path

    def _is_stored(self, array: Any, path: str) -> bool:  # noqa: ARG002 - the place is told
        return holds_values(self.path, path)


def _is_text(values: Any) -> bool:
    from pandas.api.types import is_string_dtype  # noqa: PLC0415 - anndata brings it

    return bool(is_string_dtype(values))


def _arrays(element: Any) -> Iterator[Any]:
    if not hasattr(element, "keys"):
        yield element
        return
    for name in element.keys():  # noqa: SIM118 - a group of Zarr iterates so only
        yield from _arrays(element[name])


def _shape(matrix: Any) -> tuple[int, ...]:
    if hasattr(matrix, "keys"):
        return tuple(int(n) for n in matrix.attrs["shape" if "shape" in matrix.attrs else "h5sparse_shape"])
    return tuple(matrix.shape)


def _dense(matrix: Any, lines: slice, across: int) -> Rows:
    """Return some lines of a sparse matrix: rows of a CSR, columns of a CSC.

    SciPy writes where the indices say without looking, and as many values are read as the ends of lines say; so both
    are looked at first.
    """
    from anndata.io import sparse_dataset  # noqa: PLC0415 - only where there is such a matrix

    ends = np.asarray(matrix["indptr"][lines.start : lines.stop + 1]).astype(np.int64)
    stored = matrix["data"].shape[0]
    if ends[0] < 0 or ends[-1] > stored or (np.diff(ends) < 0).any() or (np.diff(ends) > across).any():
        raise ValueError
    if matrix["indices"].shape[0] != stored or (ends.size > 1 and lines.start == 0 and ends[0] != 0):
        raise ValueError
    opened_matrix = sparse_dataset(matrix, should_cache_indptr=False)
    values = opened_matrix[lines] if opened_matrix.format == "csr" else opened_matrix[:, lines].T
    if values.indices.size and (values.indices.min() < 0 or values.indices.max() >= across):
        raise ValueError
    values = values.astype(STORED[values.dtype.name])
    values.sort_indices()
    if not values.has_canonical_format:  # one cell twice: there is no saying which is meant
        raise ValueError
    dense: Rows = values.toarray()
    return dense
