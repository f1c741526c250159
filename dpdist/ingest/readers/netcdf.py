"""Reader of NetCDF files, .nc, through xarray: packed values are unpacked, filled ones are missing."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from dpdist.errors import DataError
from dpdist.ingest.readers.base import attempt, bounded, each, numbered, required
from dpdist.ingest.readers.chunked import Chunked, Layout, only
from dpdist.ingest.readers.hdf5 import contained, require_few_attributes, strings


class _Clamped(io.FileIO):
    """A file of which no more is asked for than there is: of what a damaged head announces, nothing is set aside."""

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, os.fstat(self.fileno()).st_size - self.tell())
        found: bytes = super().read(left if size is None or not 0 <= size <= left else size)
        return found


class NetCdf(Chunked):
    """A variable of a .nc file: its first dimension is the rows, the others are laid out as columns.

    A coordinate of words along the second of two dimensions names the columns.
    """

    takes = ("variable",)
    needs_file = True
    fragile = True

    @contextmanager
    def _variables(self) -> Iterator[tuple[Mapping[str, Any], set[str]]]:
        """Give the variables, of which nothing was read yet, and the names of the coordinates among them."""
        xarray = required("xarray", "netcdf", ".nc files")
        with self._store() as store:
            # not as a Dataset: that reads all coordinates at once; and times stay the numbers they are
            variables, _, coordinates = xarray.conventions.decode_cf_variables(
                *store.load(), decode_times=False, decode_timedelta=False
            )
            yield variables, {*coordinates, *(name for name, each in variables.items() if each.dims == (name,))}

    @contextmanager
    def _store(self) -> Iterator[Any]:
        backends = required("xarray", "netcdf", ".nc files").backends
        with self.path.open("rb") as file:
            classic = file.read(3) == b"CDF"
        if classic:
            from scipy.io import netcdf_file  # noqa: PLC0415 - only the older format needs it

            with _Clamped(self.path) as file, netcdf_file(file, mmap=True):
                pass  # its head announces no more than the file holds: xarray would set it aside first
            store = backends.ScipyDataStore(str(self.path), mode="r")
        else:
            h5py = required("h5py", "netcdf", ".nc files")
            required("h5netcdf", "netcdf", ".nc files")
            with contained(self.path, h5py) as found:
                require_few_attributes(self.path, h5py, found)
            store = backends.H5NetCDFStore.open(str(self.path), decode_vlen_strings=True, phony_dims="access")
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with self._variables() as (variables, _):
            yield variables[self._name]

    @cached_property
    def _name(self) -> str:
        required("xarray", "netcdf", ".nc files")

        def read() -> dict[str, tuple[int, ...]]:
            with self._variables() as (variables, coordinates):
                return {
                    str(name): array.shape
                    for name, array in variables.items()
                    if array.ndim > 1 and name not in coordinates
                }

        return only(self.path, attempt(self.path, read), self.choices.variable, "variable")

    @cached_property
    def _layout(self) -> Layout:
        def read() -> Layout:
            with self._opened() as array:
                chunks = array.encoding.get("chunksizes") or (1,) * array.ndim
                chunks = tuple(map(min, chunks, array.shape))
                return Layout(array.shape, array.dtype, chunks, self._is_stored(), next(iter(array.dims), None))

        return attempt(self.path, read)

    def _is_stored(self) -> bool:
        """Say whether any value is in the file; the older format has room for all of them."""
        with self.path.open("rb") as file:
            if file.read(3) == b"CDF":
                return True
        with required("h5py", "netcdf", ".nc files").File(self.path, "r") as file:
            return int(file[self._name].id.get_storage_size()) > 0

    @cached_property
    def names(self) -> tuple[str, ...]:
        columns = self._checked.columns

        def read() -> Iterator[list[str]]:
            with self._variables() as (variables, _):
                array = variables[self._name]
                label = variables.get(array.dims[1])
                if array.ndim != 2 or label is None or label.dims != array.dims[1:] or label.dtype.kind not in "OU":
                    return
                if label.shape != (columns,):
                    raise ValueError
                longest = self.path.stat().st_size if label.dtype.kind == "O" else label.dtype.itemsize
                yield from strings(label, columns, longest)

        found = bounded(self.path, each(self.path, read()))
        if found and len(found) != columns:
            raise DataError(f"{self.path} names {len(found)} columns of {columns}. Mend it.")
        return found or numbered(columns)
