"""Readers of AnnData, dense and sparse: .h5ad files, and Zarr stores marked as AnnData.

Only X, its layers and raw are tables of rows. Other matrices (``obsm``, ``obsp``, ``varm``) were computed from all rows
together, like a PCA: a release of them would protect no row, so they are not offered.

anndata reads sparse matrices; other parts of the file stay closed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dpdist.core.errors import DataError
from dpdist.core.ingest.readers.base import PIECE, STORED, Places, Rows, attempt_each, attempted, bounded, required
from dpdist.core.ingest.readers.chunked import Chunked, Layout, absent_in_hdf5, chunk_bytes, only, require_chunks
from dpdist.core.ingest.readers.source import Fragment, Head, neighbours, transposed, width_for
from dpdist.core.ingest.readers.zarr_store import absent_chunks, holds_values, opened, require_foreign
from dpdist.core.rows.encoding import MISSING_WORDS
from dpdist.core.rows.person_names import names_person
from dpdist.core.rows.units import named_units
from dpdist.formats.hdf5 import contained

_SPARSE = {"csr_matrix": "csr", "csc_matrix": "csc"}
_PARTS = ("data", "indices", "indptr")
_CELLS = 1 << 16
"""Cells of ``obs`` read at once."""


class AnnData(Chunked):
    """X, or another chosen matrix of the same rows; ``var`` names the columns."""

    takes: ClassVar[tuple[str, ...]] = ("variable",)
    fragile = True

    @abstractmethod
    def _root(self) -> AbstractContextManager[Any]:
        """Open the root group of h5py or zarr."""

    @abstractmethod
    def _is_stored(self, array: Any, path: str) -> bool:
        """Whether any value of an array is stored."""

    @abstractmethod
    def _absent(self, array: Any, path: str) -> str | None:
        """Say how many chunks of an array are not stored; None if all are."""

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
                stored = self._is_stored(matrix, self._matrix_path)
                absent = self._absent(matrix, self._matrix_path)
                return Layout(shape, matrix.dtype, tuple(map(min, chunks, shape)), stored, absent=absent)
            parts = {name: matrix[name] for name in _PARTS}
            for array in parts.values():
                require_chunks(self.path, chunk_bytes(array))
            stored = all(
                not array.shape[0] or self._is_stored(array, f"{self._matrix_path}/{name}")
                for name, array in parts.items()
            )
            if min(shape) >= 0 and parts["indptr"].shape[0] != shape[self._kind == "csc"] + 1:
                raise DataError(
                    f"{self.path} is damaged: its sparse matrix does not have the declared shape. Restore it."
                )
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
            self._names(), layout.shape[0], layout.dtype.name, labels=(*self._labels(), *samples), samples=samples,
            features=True,
        )  # fmt: skip

    @attempted
    def _column(self, path: str) -> Any:
        """Return a column of ``obs`` or ``var`` as a pandas Series without missing values."""
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
                f"{self.path}: {path} is missing for some rows, which belong to no privacy unit. Fill it, or remove "
                "them."
            )
        return series

    @attempted
    def _names(self) -> tuple[str, ...]:
        frame, columns = "raw/var" if self._matrix_path == "raw/X" else "var", self._layout.columns
        with self._root() as root:
            var = root[frame]
            if not hasattr(var, "keys"):
                raise DataError(
                    f"{self.path} was written by anndata before 0.7. Convert it with a newer version; in Python: "
                    "anndata.read_h5ad(FILE).write_h5ad(NEW)."
                )
            labels = self._column(f"{frame}/{var.attrs['_index']}")
        if len(labels) != columns:
            raise DataError(f"{self.path} has {len(labels)} variable names for {columns} columns. Correct it.")
        return bounded(self.path, [labels.astype(str).tolist()])

    @attempted
    def _samples(self) -> tuple[str, ...]:
        """Return the column of ``obs`` that names the rows, unless it is the default numbering of anndata."""
        with self._root() as root:
            index = getattr(root.get("obs"), "attrs", {}).get("_index")
        if index is None:
            return ()
        names = self._column(f"obs/{index}")
        counted = [str(row) for row in range(len(names))]
        return () if not _is_text(names) or names.tolist() == counted else (f"obs/{index}",)

    @attempted
    def _labels(self) -> list[str]:
        """Return the columns of ``obs`` that may form a privacy unit: not the index, nor measurements, by their names.

        pandas makes floats of whole numbers with a gap, and a study of two persons may tell them by a boolean.
        """
        with self._root() as root:
            obs = root.get("obs")
            return [
                f"obs/{name}"
                for name in (sorted(obs.keys()) if hasattr(obs, "keys") else ())
                if (getattr(getattr(obs[name], "dtype", None), "kind", "") not in set("fcb") or names_person(name))
                and not name.startswith("__") and name != obs.attrs.get("_index")
            ]  # fmt: skip

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:
        columns = [self._label_cells(label) for label in labels]
        for start in range(0, self._layout.shape[0], _CELLS):
            yield named_units([column.iloc[start : start + _CELLS].astype(str).tolist() for column in columns], key)

    def _label_cells(self, label: str) -> Any:
        """Return a column of ``obs`` of names or whole numbers, one per row."""
        column = self._column(label)
        values = column.cat.categories if column.dtype == "category" else column
        if len(column) != self._layout.shape[0]:
            raise DataError(f"{self.path}: {label} does not hold one name or whole number per row. Choose another.")
        exact = (
            2.0 ** (np.finfo(values.dtype).nmant + 1) if values.dtype.kind == "f" else 0.0
        )  # rounding merges persons
        if values.dtype.kind == "f" and (values == values.round()).all() and (values.abs() < exact).all():
            return column.astype("int64")
        if not (_is_text(values) or values.dtype.kind in "iub"):
            name = label.rpartition("/")[2]
            raise DataError(
                f"{self.path}: {label} holds {values.dtype.name}. A privacy unit is a name or a whole number. Convert "
                f"it; in Python: a = anndata.read_h5ad(FILE); a.obs[{name!r}] = a.obs[{name!r}].astype(str); "
                "a.write_h5ad(NEW)."
            )
        if _is_text(values) and (lacking := column.astype(str).str.strip().isin(MISSING_WORDS)).any():
            raise DataError(
                f"{self.path}, row {lacking.to_numpy().argmax()} (counting from 0): {label} is missing, so the row "
                "belongs to no privacy unit. Remove the row, or fill it."
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

    def _root(self) -> AbstractContextManager[Any]:
        return contained(self.path, required("h5py", "anndata", ".h5ad files"))

    def _absent(self, array: Any, path: str) -> str | None:  # noqa: ARG002 - HDF5 needs no path
        return absent_in_hdf5(array)

    def _is_stored(self, array: Any, path: str) -> bool:  # noqa: ARG002 - HDF5 needs no path
        return int(array.id.get_storage_size()) > 0


class AnnDataStore(AnnData):
    """A Zarr store of AnnData."""

    def _root(self) -> AbstractContextManager[Any]:
        return opened(self.path)

    @cached_property
    def _matrix_path(self) -> str:
        path = super()._matrix_path
        require_foreign(self.path, path)
        return path

    def _absent(self, array: Any, path: str) -> str | None:
        return absent_chunks(self.path, path, array)

    def _is_stored(self, array: Any, path: str) -> bool:  # noqa: ARG002 - the path suffices
        return holds_values(self.path, path)


def _is_text(values: Any) -> bool:
    from pandas.api.types import is_string_dtype  # noqa: PLC0415 - installed with anndata

    return bool(is_string_dtype(values))


def _arrays(element: Any) -> Iterator[Any]:
    if not hasattr(element, "keys"):
        yield element
        return
    for name in element.keys():  # noqa: SIM118 - Zarr groups are not iterable
        yield from _arrays(element[name])


def _shape(matrix: Any) -> tuple[int, ...]:
    if hasattr(matrix, "keys"):
        return tuple(int(n) for n in matrix.attrs["shape" if "shape" in matrix.attrs else "h5sparse_shape"])
    return tuple(matrix.shape)


def _dense(matrix: Any, lines: slice, across: int) -> Rows:
    """Return rows of a CSR or columns of a CSC matrix, after validation: SciPy does not check indices."""
    from anndata.io import sparse_dataset  # noqa: PLC0415 - only for sparse matrices

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
    if not values.has_canonical_format:  # a cell with two values is ambiguous
        raise ValueError
    dense: Rows = values.toarray()
    return dense
