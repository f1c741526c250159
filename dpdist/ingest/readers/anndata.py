"""Readers of AnnData, dense and sparse: .h5ad files, and Zarr stores that say that they are AnnData.

Of such a store or file only X is a table of rows, and what has its shape or stands for it before genes were left out:
its layers, and raw. The other matrices beside it (``obsm``, ``obsp``, ``varm``) were computed from all rows together,
as a PCA is: released, they would be protected for nobody, so they are never offered.

anndata's own reader takes sparse matrices apart; what is not needed of the file is not opened.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dpdist.errors import DataError
from dpdist.ingest.readers.base import (
    PIECE,
    STORED,
    Fragment,
    Head,
    Places,
    Rows,
    attempt,
    bounded,
    each,
    required,
)
from dpdist.ingest.readers.chunked import Chunked, Layout, only, require_chunks
from dpdist.ingest.readers.hdf5 import contained
from dpdist.ingest.readers.transpose import turned, width_for
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

    @abstractmethod
    def _root(self) -> AbstractContextManager[Any]:
        """Open it: a group of groups and arrays, as h5py and zarr give them."""

    @abstractmethod
    def _is_stored(self, array: Any, place: str) -> bool:
        """Say whether any value of an array is stored."""

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with self._root() as root:
            yield root[self._place]

    @cached_property
    def _place(self) -> str:
        """Where the matrix is."""
        found = attempt(self.path, self._matrices)
        if self.choices.variable is None and "X" in found:
            return "X"
        return only(self.path, found, self.choices.variable, "matrix")

    def _matrices(self) -> dict[str, tuple[int, ...]]:
        with self._root() as root:
            layers = sorted(root["layers"].keys()) if "layers" in root else ()
            places = ["X", "raw/X", *(f"layers/{name}" for name in layers)]
            return {place: _shape(root[place]) for place in places if place in root}

    @cached_property
    def _kind(self) -> str:
        """Dense, csr or csc."""

        def read() -> str:
            with self._opened() as matrix:
                if not hasattr(matrix, "keys"):
                    return "dense"
                told = matrix.attrs.get("encoding-type", f"{matrix.attrs.get('h5sparse_format', '')}_matrix")
                return _SPARSE[str(told)]

        found = attempt(self.path, read)
        if found != "dense":
            required("anndata", "anndata", "sparse AnnData")
        return found

    @cached_property
    def head(self) -> Head:
        found = self._layout
        if self._kind != "dense" and attempt(self.path, self._ends) != found.shape[self._kind == "csc"] + 1:
            raise DataError(f"{self.path} is damaged: its sparse matrix has another shape than it says.")
        samples = self._sample_label()
        labels = (*attempt(self.path, lambda: [*self._labels()]), *samples)
        return Head(self._names(), found.shape[0], found.dtype.name, labels=labels, samples=samples)

    @cached_property
    def _stored(self) -> Layout:
        def read() -> Layout:
            with self._opened() as matrix:
                shape = _shape(matrix)
                if self._kind == "dense":
                    chunks = matrix.chunks or (1,) * len(shape)
                    stored = self._is_stored(matrix, self._place)
                    return Layout(shape, matrix.dtype, tuple(map(min, chunks, shape)), stored)
                parts = {name: matrix[name] for name in _PARTS}
                for array in parts.values():
                    require_chunks(self.path, math.prod(array.chunks or ()) * array.dtype.itemsize)
                stored = all(
                    not array.shape[0] or self._is_stored(array, f"{self._place}/{name}")
                    for name, array in parts.items()
                )
                return Layout(shape, parts["data"].dtype, (1, *shape[1:]), stored)

        return attempt(self.path, read)

    @cached_property
    def unpacked(self) -> int:
        if self._kind == "dense":
            return super().unpacked

        def read() -> int:
            with self._opened() as matrix:
                arrays = [matrix[name] for name in _PARTS]
                return sum(math.prod(array.chunks or ()) * array.dtype.itemsize for array in arrays)

        return attempt(self.path, read)

    def _column(self, place: str) -> Any:
        """Return a column of ``obs`` or ``var``, a pandas Series without missing values, by anndata's own reader."""
        anndata = required("anndata", "anndata", "AnnData")
        pandas = required("pandas", "anndata", "AnnData")
        frame, _, name = place.rpartition("/")

        def read() -> Any:
            with self._root() as root:
                column = root[place]
                for array in _arrays(column):
                    require_chunks(self.path, math.prod(array.chunks or ()) * array.dtype.itemsize)
                found = anndata.io.read_elem(column)
                if "categories" in column.attrs:  # before 0.8
                    names = anndata.io.read_elem(root[f"{frame}/__categories/{name}"])
                    found = pandas.Categorical.from_codes(found, names)
                return pandas.Series(found)

        column = attempt(self.path, read)
        if column.isna().any():
            raise DataError(
                f"{self.path}: {place} is missing for some rows: it is not said whose they are. Fill it, or leave them "
                "out."
            )
        return column

    def _names(self) -> tuple[str, ...]:
        place, columns = "raw/var" if self._place == "raw/X" else "var", self._layout.columns
        with self._root() as root:
            var = root[place]
            if not hasattr(var, "keys"):
                raise DataError(
                    f"{self.path} was written by anndata before 0.7. Write it again with a newer one; in Python: "
                    "anndata.read_h5ad(FILE).write_h5ad(NEW)."
                )
            labels = self._column(f"{place}/{var.attrs['_index']}")
        if len(labels) != columns:
            raise DataError(f"{self.path} names {len(labels)} variables for {columns} columns. Mend it.")
        return bounded(self.path, [labels.astype(str).tolist()])

    def _sample_label(self) -> tuple[str, ...]:
        """Return the column of ``obs`` that names its rows, if it is one of words; anndata counts those without."""
        with self._root() as root:
            index = getattr(root.get("obs"), "attrs", {}).get("_index")
            if index is None:
                return ()
            names = self._column(f"obs/{index}")
        counted = [str(row) for row in range(len(names))]
        return () if not _is_text(names) or names.tolist() == counted else (f"obs/{index}",)

    def _labels(self) -> Iterator[str]:
        """Yield the columns of ``obs`` that may say whose a row is: no measurements, and not the index."""
        with self._root() as root:
            for name in sorted(root["obs"].keys()) if hasattr(root.get("obs"), "keys") else ():
                measured = getattr(getattr(root["obs"][name], "dtype", None), "kind", "") in set("fcb")
                if not (measured or name.startswith("__") or name == root["obs"].attrs.get("_index")):
                    yield f"obs/{name}"

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:
        columns = [self._names_in(label) for label in labels]
        for start in range(0, self._layout.shape[0], _CELLS):
            yield named_units([column.iloc[start : start + _CELLS].astype(str).tolist() for column in columns], key)

    def _names_in(self, label: str) -> Any:
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

    def _ends(self) -> int:
        with self._opened() as matrix:
            return int(matrix["indptr"].shape[0])

    def blocks(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        if self._kind == "dense":
            yield from super().blocks(keep, fragment)
            return
        found = self._layout
        if self._kind == "csr":
            for piece in each(self.path, self._rows(found)):
                yield piece if keep == tuple(range(found.columns)) else piece[:, keep]
            return
        shape = (found.shape[0], len(keep))
        stored = np.dtype(STORED[found.dtype.name])
        yield from turned(self.path, self.beside, self._columns(found, keep), shape, stored)

    def _rows(self, found: Layout) -> Iterator[Rows]:
        rows, columns = found.shape
        step = max(1, PIECE // (columns * found.dtype.itemsize))
        with self._opened() as matrix:
            for start in range(0, rows, step):
                yield _dense(matrix, slice(start, min(start + step, rows)), columns)

    def _columns(self, found: Layout, keep: Places) -> Iterator[Rows]:
        """Yield blocks of columns; neighbours in the file are read together."""
        width = width_for(found.shape[0], found.dtype)
        with self._opened() as matrix:
            first = 0
            while first < len(keep):
                last = first + 1
                while last < len(keep) and last - first < width and keep[last] == keep[last - 1] + 1:
                    last += 1
                yield _dense(matrix, slice(keep[first], keep[last - 1] + 1), found.shape[0]).T
                first = last


class H5ad(AnnData):
    """A .h5ad file."""

    needs_file = True
    fragile = True

    @contextmanager
    def _root(self) -> Iterator[Any]:
        h5py = required("h5py", "anndata", ".h5ad files")
        with contained(self.path, h5py) as file:
            yield file

    def _is_stored(self, array: Any, place: str) -> bool:  # noqa: ARG002 - HDF5 knows
        return int(array.id.get_storage_size()) > 0


class AnnDataStore(AnnData):
    """A Zarr store of AnnData."""

    fragile = True

    @contextmanager
    def _root(self) -> Iterator[Any]:
        with opened(self.path) as root:
            yield root

    @cached_property
    def _place(self) -> str:
        place = super()._place
        require_foreign(self.path, place)
        return place

    def _is_stored(self, array: Any, place: str) -> bool:  # noqa: ARG002 - the place is told
        return holds_values(self.path, place)


def _is_text(values: Any) -> bool:
    from pandas.api.types import is_string_dtype  # noqa: PLC0415 - anndata brings it

    return bool(is_string_dtype(values))


def _arrays(element: Any) -> Iterator[Any]:
    """Yield the arrays that an element of AnnData is made of."""
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
    found = opened_matrix[lines] if opened_matrix.format == "csr" else opened_matrix[:, lines].T
    if found.indices.size and (found.indices.min() < 0 or found.indices.max() >= across):
        raise ValueError
    found = found.astype(STORED[found.dtype.name])
    found.sort_indices()
    if not found.has_canonical_format:  # one cell twice: there is no saying which is meant
        raise ValueError
    dense: Rows = found.toarray()
    return dense
