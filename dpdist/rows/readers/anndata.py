"""Reader of AnnData files, .h5ad, dense and sparse, by their published layout in HDF5.

https://anndata.readthedocs.io/en/stable/fileformat-prose.html says how X, its layers and the names of the variables
are stored. h5py alone reads them: what is not needed of the file is not opened.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from dpdist.errors import DataError
from dpdist.rows.readers.base import PIECE, STORED, Places, Rows, Survey, attempt, each, require_table, required
from dpdist.rows.readers.chunked import Chunked, Layout, only
from dpdist.rows.readers.turned import turned, width_for

_SPARSE = {"csr_matrix": "csr", "csc_matrix": "csc"}


class H5ad(Chunked):
    """X of a .h5ad file, or with ``--variable`` another matrix of the same rows; columns are named as in ``var``."""

    takes = ("variable",)
    needs_file = True

    @contextmanager
    def _file(self) -> Iterator[Any]:
        with required("h5py", "anndata", ".h5ad files").File(self.path, "r") as file:
            yield file

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with self._file() as file:
            yield file[self._place]

    @cached_property
    def _place(self) -> str:
        """Where the matrix is."""
        required("h5py", "anndata", ".h5ad files")
        found = attempt(self.path, self._matrices)
        if self.choices.variable is None and "X" in found:
            return "X"
        return only(self.path, found, self.choices.variable, "matrix")

    def _matrices(self) -> dict[str, tuple[int, ...]]:
        with self._file() as file:
            places = ["X", "raw/X", *(f"layers/{name}" for name in file.get("layers", ()))]
            return {place: _shape(file[place]) for place in places if place in file}

    @cached_property
    def _kind(self) -> str:
        """Dense, csr or csc."""

        def read() -> str:
            with self._opened() as matrix:
                if not hasattr(matrix, "keys"):
                    return "dense"
                told = matrix.attrs.get("encoding-type", f"{matrix.attrs.get('h5sparse_format', '')}_matrix")
                return _SPARSE[str(told)]

        return attempt(self.path, read)

    @cached_property
    def _layout(self) -> Layout:
        def read() -> Layout:
            with self._opened() as matrix:
                shape = _shape(matrix)
                if self._kind != "dense":
                    return Layout(shape, matrix["data"].dtype, (1, *shape[1:]))
                chunks = matrix.chunks or (1,) * len(shape)
                return Layout(shape, matrix.dtype, tuple(map(min, chunks, shape)))

        return attempt(self.path, read)

    @cached_property
    def names(self) -> tuple[str, ...]:
        def read() -> tuple[str, ...]:
            with self._file() as file:
                var = file["raw/var" if self._place == "raw/X" else "var"]
                return tuple(var[var.attrs["_index"]].asstr()[:])

        found = attempt(self.path, read)
        if len(found) != self._checked.columns:
            raise DataError(f"{self.path} names {len(found)} variables for {self._layout.columns} columns. Mend it.")
        return found

    def survey(self, keep: Places) -> Survey:
        found = self._checked
        if self._kind != "dense":
            rows, columns = found.shape
            if attempt(self.path, self._ends) != (rows if self._kind == "csr" else columns) + 1:
                raise DataError(f"{self.path} is damaged: its sparse matrix has another shape than it says.")
        return super().survey(keep)

    def _ends(self) -> int:
        with self._opened() as matrix:
            return int(matrix["indptr"].shape[0])

    def blocks(self, keep: Places) -> Generator[Rows]:
        if self._kind == "dense":
            yield from super().blocks(keep)
            return
        found = self._checked
        require_table(self.path, found.shape, found.dtype)
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


def _shape(matrix: Any) -> tuple[int, ...]:
    if hasattr(matrix, "keys"):
        return tuple(int(n) for n in matrix.attrs["shape" if "shape" in matrix.attrs else "h5sparse_shape"])
    return tuple(matrix.shape)


def _dense(matrix: Any, lines: slice, across: int) -> Rows:
    """Return some lines of a sparse matrix: rows of a CSR, columns of a CSC.

    SciPy writes where the indices say without looking, so they are looked at first.
    """
    ends = matrix["indptr"][lines.start : lines.stop + 1].astype(np.int64)
    stored = matrix["data"].shape[0]
    if ends[0] < 0 or ends[-1] > stored or (np.diff(ends) < 0).any() or (np.diff(ends) > across).any():
        raise ValueError
    if matrix["indices"].shape[0] != stored or (ends.size > 1 and lines.start == 0 and ends[0] != 0):
        raise ValueError
    part = slice(int(ends[0]), int(ends[-1]))
    indices, data = matrix["indices"][part].astype(np.int64), matrix["data"][part]
    if indices.size and (indices.min() < 0 or indices.max() >= across):
        raise ValueError
    dtype = np.dtype(STORED[data.dtype.name])
    shape = (len(ends) - 1, across)
    found = csr_matrix((data.astype(dtype), indices, ends - ends[0]), shape=shape)
    found.sort_indices()
    if not found.has_canonical_format:  # one cell twice: there is no saying which is meant
        raise ValueError
    dense: Rows = found.toarray()
    return dense
