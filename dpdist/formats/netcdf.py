"""Reader of NetCDF files, .nc, through xarray, which unpacks packed values and marks fill values as missing."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from dpdist.core.errors import DataError
from dpdist.core.ingest.readers.base import attempted, required
from dpdist.core.ingest.readers.chunked import (
    GAPS,
    Chunked,
    Layout,
    Meaning,
    absent_in_hdf5,
    as_frame,
    batched,
    bounds_in,
    facts_of,
    only,
    units_of,
)
from dpdist.core.ingest.readers.zarr_store import strings
from dpdist.core.naming import parameter
from dpdist.formats.hdf5 import contained, require_few_attributes

_FILLS = {
    "i2": -32767, "u2": 65535, "i4": -2147483647, "u4": 4294967295, "i8": -9223372036854775806,
    "u8": 18446744073709551614, "f4": 9.969209968386869e36, "f8": 9.969209968386869e36,
}  # fmt: skip
"""Default fill values of the NetCDF library by type; bytes have none."""


class _Clamped(io.FileIO):
    """A file that clamps reads to its size, so that a damaged header cannot allocate memory."""

    def read(self, size: int | None = -1) -> bytes:
        remaining = max(0, os.fstat(self.fileno()).st_size - self.tell())
        content: bytes = super().read(remaining if size is None or not 0 <= size <= remaining else size)
        return content


def _is_coordinate(variables: Mapping[str, Any], name: str) -> bool:
    """Whether a variable is the coordinate of a dimension."""
    return name in variables and variables[name].dims == (name,)


def meaning_of(array: Any) -> Meaning | None:
    """Return the missing values that xarray does not decode: out of range, and the default fill value."""
    packed, kind = array.encoding, np.dtype(array.encoding.get("dtype", array.dtype))
    scale, offset = packed.get("scale_factor", 1.0), packed.get("add_offset", 0.0)
    ends = kind if str(packed.get("_Unsigned", "")).lower() != "true" else np.dtype(f"u{kind.itemsize}")
    bounds = {
        name: np.sort(np.ravel(array.attrs[name]).astype(ends).astype(np.float64) * scale + offset)
        for name in ("valid_range", "valid_min", "valid_max")
        if name in array.attrs
    }
    if scale < 0:
        names = {"valid_min": "valid_max", "valid_max": "valid_min"}
        bounds = {names.get(name, name): value for name, value in bounds.items()}
    if array.dtype == np.int64 and "units" in array.attrs:
        return Meaning.of(bounds, np.iinfo(np.int64).min)  # NaT
    if "_FillValue" in packed or kind.itemsize == 1 or kind.str[1:] not in _FILLS:
        return Meaning.of(bounds)
    return Meaning.of(bounds, np.asarray(_FILLS[kind.str[1:]], kind).astype(array.dtype) * scale + offset)


def _h5py() -> Any:
    return required("h5py", "netcdf", ".nc files")


class NetCdf(Chunked):
    """A variable of a .nc file; a text coordinate of the second of two dimensions names the columns."""

    takes = ("variable", "rows_dimension")
    needs_file = True
    fragile = True

    @property
    def _classic(self) -> bool:
        """Whether it has the format before HDF5."""
        with self.path.open("rb") as file:
            return bool(file.read(3) == b"CDF")

    @contextmanager
    def _variables(self) -> Iterator[tuple[Mapping[str, Any], set[str]]]:
        """Open the variables lazily, with the names of the coordinates."""
        xarray = required("xarray", "netcdf", ".nc files")
        if self._classic:
            from scipy.io import netcdf_file  # noqa: PLC0415 - only for the older format

            with _Clamped(self.path) as file, netcdf_file(file, mmap=True):
                pass  # validates the header, for which xarray would allocate memory
            store = xarray.backends.ScipyDataStore(str(self.path), mode="r")
        else:
            h5py = _h5py()
            required("h5netcdf", "netcdf", ".nc files")
            with contained(self.path, h5py) as root:
                require_few_attributes(self.path, h5py, root)
            store = xarray.backends.H5NetCDFStore.open(
                str(self.path), group=self._group or None, decode_vlen_strings=True, phony_dims="access"
            )
        try:
            # not as a Dataset, which reads all coordinates at once; times stay numbers
            variables, _, coordinates = xarray.conventions.decode_cf_variables(
                *store.load(), decode_times=False, decode_timedelta=False
            )
            yield variables, {*coordinates, *(name for name, variable in variables.items() if variable.dims == (name,))}
        finally:
            store.close()

    @property
    def _group(self) -> str:
        return (self.choices.variable or "").rpartition("/")[0]

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with self._variables() as (variables, _):
            yield variables[self._name.rpartition("/")[2]]

    @cached_property
    @attempted
    def _name(self) -> str:
        with self._variables() as (variables, coordinates):
            bounds = bounds_in(variable.attrs for variable in variables.values())
            arrays = {
                f"{self._group}/{name}".removeprefix("/"): array.shape
                for name, array in variables.items()
                if array.ndim > 1 and name not in {*coordinates, *bounds}
            }
            alone = {
                name: array.dims[0] for name, array in variables.items() if array.ndim == 1 and name not in coordinates
            }
        if not arrays and (inner := self._in_groups()):
            raise DataError(f"{self.path} holds its variables in groups. Choose with {parameter('variable')}: {inner}.")
        cure = as_frame("xarray.open_dataset(FILE)", alone)
        return only(self.path, arrays, self.choices.variable, "variable", cure)

    def _in_groups(self) -> str:
        if self._classic:
            return ""
        h5py, inner = _h5py(), []

        def look(name: str, member: Any) -> None:
            if "/" in name and isinstance(member, h5py.Dataset) and member.ndim > 1:
                inner.append(f"{name} {member.shape}")

        with contained(self.path, h5py) as root:
            root.visititems(look)
        return "; ".join(inner[:20])

    @property
    def _cure(self) -> str:
        dims = self._layout.dims[1:]
        if len(dims) < 2:
            return GAPS
        return (
            f"{GAPS.removesuffix('.')}; in Python: xarray.open_dataset(FILE)[[{self._name!r}]].stack(place={[*dims]})"
            ".dropna('place').reset_index('place').to_netcdf(NEW)."
        )

    @attempted
    def _position_of(self, column: int) -> str:
        shape, dims = self._layout.shape[1:], self._layout.dims[1:]
        if len(shape) < 2:
            return ""
        indices = np.unravel_index(column, shape)
        with self._variables() as (variables, _):
            return ", ".join(
                f"{name} {variables[name].values[index] if _is_coordinate(variables, name) else index}"
                for name, index in zip(dims, indices, strict=True)
            )

    @cached_property
    @attempted
    def _stored(self) -> Layout:
        with self._opened() as array:
            chunks = tuple(map(min, array.encoding.get("chunksizes") or (1,) * array.ndim, array.shape))
            kind = np.dtype(array.encoding.get("dtype", array.dtype))
            rounded = kind.kind in "iu" and kind.itemsize == 8 and array.dtype.kind == "f"
            return Layout(
                array.shape, array.dtype, chunks, self._is_stored(), tuple(map(str, array.dims)),
                meaning=meaning_of(array), rounded=rounded, name=self._name, units=units_of(array.attrs),
                absent=self._absent(),
            )  # fmt: skip

    def _is_stored(self) -> bool:
        """Whether any value is stored; the older format stores all."""
        if self._classic:
            return True
        with _h5py().File(self.path, "r") as file:
            return int(file[self._name].id.get_storage_size()) > 0

    def _absent(self) -> str | None:
        if self._classic:
            return None
        with _h5py().File(self.path, "r") as file:
            return absent_in_hdf5(file[self._name])

    def _beside(self, dimension: str) -> Sequence[str]:
        with self._variables() as (variables, _):
            return sorted(name for name, variable in variables.items() if variable.dims == (dimension,))

    def _along(self, name: str, dimension: str, length: int) -> Iterator[Sequence[Any]]:
        with self._variables() as (variables, _):
            variable = variables.get(name)
            if variable is None or variable.dims != (dimension,) or variable.dtype.kind not in "iufOUS":
                return
            if variable.shape != (length,):
                raise ValueError
            yield facts_of(variable.attrs, variable.dtype)
            if variable.dtype.kind in "OUS":
                longest = self.path.stat().st_size if variable.dtype.kind == "O" else variable.dtype.itemsize
                yield from strings(variable, length, longest)
            else:
                yield from batched(variable, length)
