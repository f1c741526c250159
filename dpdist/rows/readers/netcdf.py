"""Reader of NetCDF files, .nc, through xarray: packed values are unpacked, filled ones are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from dpdist.errors import DataError
from dpdist.rows.readers.base import attempt, numbered, required
from dpdist.rows.readers.chunked import Chunked, Layout, only


class NetCdf(Chunked):
    """A variable of a .nc file: its first dimension is the rows, the others are laid out as columns.

    A coordinate of words along the second of two dimensions names the columns.
    """

    takes = ("variable",)
    needs_file = True

    @contextmanager
    def _dataset(self) -> Iterator[Any]:
        xarray = required("xarray", "netcdf", ".nc files")
        with self.path.open("rb") as file:
            classic = file.read(3) == b"CDF"
        if not classic:
            required("h5netcdf", "netcdf", ".nc files")
        # times stay the numbers they are; nothing that was read is kept
        with xarray.open_dataset(
            self.path, engine="scipy" if classic else "h5netcdf", decode_times=False, cache=False
        ) as found:
            yield found

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with self._dataset() as found:
            yield found[self._name].variable

    @cached_property
    def _name(self) -> str:
        required("xarray", "netcdf", ".nc files")

        def read() -> dict[str, tuple[int, ...]]:
            with self._dataset() as found:
                return {str(name): array.shape for name, array in found.data_vars.items() if array.ndim > 1}

        return only(self.path, attempt(self.path, read), self.choices.variable, "variable")

    @cached_property
    def _layout(self) -> Layout:
        def read() -> Layout:
            with self._opened() as array:
                chunks = array.encoding.get("chunksizes") or (1,) * array.ndim
                return Layout(array.shape, array.dtype, tuple(map(min, chunks, array.shape)))

        return attempt(self.path, read)

    @cached_property
    def names(self) -> tuple[str, ...]:
        def read() -> tuple[str, ...]:
            with self._dataset() as found:
                array = found[self._name]
                label = found.coords.get(array.dims[1])
                words = label is not None and array.ndim == 2 and label.dtype.kind in "OU"
                return tuple(map(str, label.values)) if words else numbered(self._checked.columns)

        found = attempt(self.path, read)
        if len(found) != self._checked.columns:
            raise DataError(f"{self.path} names {len(found)} columns of {self._layout.columns}. Mend it.")
        return found
