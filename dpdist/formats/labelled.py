"""xarray objects as tables, and back: the first dimension is the rows, all others are flattened into columns.

A Dataset is its variables side by side; all share the first dimension. The last dimension varies fastest, as in
:mod:`dpdist.core.ingest.readers.chunked`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, UsageError
from dpdist.core.frames import is_a, is_labelled
from dpdist.core.ingest.readers.chunked import Meaning, facts_of, may_name, require_no_variants
from dpdist.core.naming import parameter
from dpdist.core.rows.units import spelled
from dpdist.core.text import listed
from dpdist.formats.netcdf import meaning_of

Matrix = npt.NDArray[np.float64]
_LATITUDES = {"degrees_north", "degree_north", "degree_N", "degrees_N", "degreeN", "degreesN"}  # CF 1.11, section 4.1


@dataclass(frozen=True)
class Part:
    """The columns of one variable."""

    name: str  # of the variable; empty for a DataArray
    array: Any

    def __str__(self) -> str:
        return f"The variable {self.name!r}" if self.name else "The DataArray"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        return tuple(self.array.shape[1:])

    @property
    def dims(self) -> tuple[Any, ...]:
        """Dimensions of a row."""
        return tuple(self.array.dims[1:])

    @property
    def columns(self) -> int:
        """Number of columns."""
        return math.prod(self.shape)

    @property
    def coords(self) -> dict[Any, Any]:
        """Coordinates of the columns, without those of the rows."""
        return {
            name: coord for name, coord in self.array.coords.items() if coord.dims and set(coord.dims) <= set(self.dims)
        }

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the columns; None if a DataArray has none."""
        text_labels: tuple[str, ...] | None = None
        labels = self.array.coords.get(self.dims[0]) if len(self.dims) == 1 else None
        if labels is not None and all(isinstance(label, str) for label in labels.values.tolist()):
            text_labels = tuple(labels.values.tolist())
        if not self.name:
            return text_labels
        if not self.dims:
            return (self.name,)
        return tuple(f"{self.name}[{label}]" for label in text_labels or range(self.columns))

    def rows(self) -> Any:
        """Return (n, columns), a Dask array if the variable is one."""
        data = self.array.data
        if data.dtype.kind in "iuf" and self.array.encoding and (meaning := meaning_of(self.array)) is not None:
            present = partial(_present, meaning)
            data = data.map_blocks(present, dtype=data.dtype) if hasattr(data, "numblocks") else present(data)
        if len(self.dims) != 1 and hasattr(data, "numblocks"):
            data = data.rechunk(dict.fromkeys(range(1, data.ndim), -1))
        return data if len(self.dims) == 1 else data.reshape(data.shape[0], self.columns)


def _present(meaning: Meaning, block: Any) -> Any:
    """Return values with NaN for the missing values that xarray does not decode."""
    gaps = meaning.gaps(block)
    if not gaps.any():
        return block
    if block.dtype.kind == "f":
        return np.where(gaps, np.nan, block).astype(block.dtype)
    raise DataError("The attributes of the array mark a value as missing, and whole numbers have no NaN. Fill it.")


@dataclass(frozen=True)
class XarrayTable:
    """An xarray object as a table."""

    parts: tuple[Part, ...]  # one for a DataArray, one for each variable of a Dataset

    @property
    def columns(self) -> int:
        """Number of columns."""
        return sum(part.columns for part in self.parts)

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the columns, or None."""
        if len(self.parts) == 1 and not self.parts[0].name:
            return self.parts[0].names
        return tuple(name for part in self.parts for name in part.names or ())

    def rows(self) -> Any:
        """Return (n, d): a Dask array if any part is one, else a NumPy array."""
        tables = [part.rows() for part in self.parts]
        if len(tables) == 1:
            return tables[0]
        kinds = [np.dtype(table.dtype) for table in tables]
        wide = [part for part, kind in zip(self.parts, kinds, strict=True) if kind.kind in "iu" and kind.itemsize == 8]
        if wide and np.result_type(*kinds).kind == "f":
            raise DataError(
                f"The variable {wide[0].name!r} of the Dataset holds 64-bit whole numbers next to floats, and would be "
                "rounded beyond 2^53. Convert it with .astype('int32') or .astype('float64')."
            )
        if not any(hasattr(table, "numblocks") for table in tables):
            return np.concatenate([np.asarray(table) for table in tables], axis=1)
        from dpdist.core.runtime.collections import side_by_side  # noqa: PLC0415 - the array is of Dask

        return side_by_side(tables)

    def split(self, vectors: Matrix) -> Iterator[tuple[Part, Matrix]]:
        """Yield each part with its entries of vectors (..., d), in the shape of a row."""
        start = 0
        for part in self.parts:
            yield part, vectors[..., start : start + part.columns].reshape(vectors.shape[:-1] + part.shape)
            start += part.columns


def laid_out(data: Any, rows_dimension: str | None = None) -> XarrayTable:
    """Return a DataArray or Dataset as a table, with rows along a dimension; None for the first."""
    if rows_dimension is not None:
        if rows_dimension not in data.dims:
            raise UsageError(
                f"The {type(data).__name__} has no dimension {rows_dimension!r}. There are: "
                f"{listed(map(repr, data.dims))}.",
                parameter="rows_dimension",
            )
        data = data.transpose(rows_dimension, ...)
    if is_a(data, "xarray", "DataArray"):
        require_no_variants("the DataArray", data.dims[:1])
        if data.ndim < 2:
            raise DataError(
                f"The DataArray has {data.ndim} dimensions. A table has two or more; the first is the rows."
            )
        _require_unique_names(data)
        return XarrayTable((Part("", data),))
    parts = tuple(Part(str(name), array) for name, array in data.data_vars.items())
    if not parts:
        raise DataError("The Dataset has no variables. Add the columns.")
    first = parts[0].array.dims[:1]
    require_no_variants("the Dataset", first)
    if other := next((part for part in parts if part.array.dims[:1] != first or not first), None):
        raise DataError(
            f"The variables {parts[0].name!r} and {other.name!r} of the Dataset have different first dimensions. The "
            "first dimension is the rows: transpose one, or drop variables that are not columns."
        )
    if not_numeric := next((part for part in parts if part.array.dtype.kind not in "biuf"), None):
        raise DataError(
            f"The variable {not_numeric.name!r} of the Dataset holds {not_numeric.array.dtype.name}, not real numbers: "
            "convert or drop it."
        )
    _require_unique_names(parts[0].array)
    return XarrayTable(parts)


def _require_unique_names(array: Any) -> None:
    dimension = array.dims[0]
    coordinate = array.coords.get(dimension)
    if coordinate is None or coordinate.dtype.kind not in "iufOUTS":
        return
    if coordinate.dtype.kind in "iuf":
        labels = coordinate.values.tolist()
        twice = (
            may_name([labels], *facts_of(coordinate.attrs, coordinate.dtype)) and not coordinate.to_index().is_unique
        )
    else:
        names = (
            text.decode(errors="backslashreplace") if isinstance(text, bytes) else str(text)
            for text in coordinate.values.tolist()
        )
        twice = len(set(map(spelled, names))) < len(coordinate)
    if twice:
        raise DataError(
            f"Two rows have the same {dimension!r}: one person would have several rows. Leave one out, rename "
            f"it or, if {dimension!r} names no persons, pass the rows without it: .drop_vars({dimension!r})."
        )


Labels = dict[str, list[Any] | None]
"""Labels along each dimension, in order; None: the dimension has none."""


def labels_of(array: Any, dims: Iterable[Any]) -> Labels:
    """Return the dimensions of an array and their labels."""
    return {str(dim): array.coords[dim].values.tolist() if dim in array.coords else None for dim in dims}


def layout_of(data: Any) -> list[tuple[str, Labels]]:
    """Return the labels of the columns of a DataArray or Dataset, by variable."""
    return [(part.name, labels_of(part.array, part.dims)) for part in laid_out(data).parts]


def require_layout(
    wanted: Sequence[tuple[str, Labels]], found: Sequence[tuple[str, Labels]], name: str, other: str
) -> None:
    """Refuse columns along other dimensions, or with other labels, than those of another object."""
    for (_, along), (variable, found_along) in zip(wanted, found, strict=False):
        what = f"The variable {variable!r} of {name}" if variable else name
        if [*along] != [*found_along]:
            order = ", ".join(map(repr, along))
            raise DataError(
                f"{what} has other dimensions of the columns than {other}, or another order of them. Pass "
                f"{name}.transpose(..., {order})."
            )
        for dimension, labels in along.items():
            if labels and found_along[dimension] and labels != found_along[dimension]:
                raise DataError(
                    f"{what} has other labels along {dimension!r} than {other}, or another order of them. Pass "
                    f"{name}.sel({dimension}=LABELS), with the labels of {other} in their order."
                )


def relabelled(
    like: object, vectors: Mapping[str, Matrix], labels: list[Any], per_component: Mapping[str, Matrix | None],
    layout: Sequence[tuple[str, Labels]] = (),
) -> Any:  # fmt: skip
    """Return vectors as an xarray Dataset in the layout of the columns."""
    if not is_labelled(like):
        raise UsageError(
            "Only an xarray DataArray or Dataset gives components a layout: pass the one that the rows came in, or any "
            "with the same columns."
        )
    laid, d = laid_out(like), next(iter(vectors.values())).shape[-1]
    if laid.columns != d:
        raise UsageError(f"There are {d} columns, but the layout has {laid.columns}. Pass one with the same columns.")
    require_layout(layout, layout_of(like), "like", "the fitted rows")
    import xarray  # noqa: PLC0415 - an extra

    variables = {}
    for name, values in vectors.items():
        for part, entries in laid.split(values):
            lead = ("component",) if values.ndim == 2 else ()
            full_name = f"{part.name}_{name}" if part.name else name
            variables[full_name] = xarray.DataArray(entries, dims=(*lead, *part.dims), coords=part.coords)
    variables |= {
        name: xarray.DataArray(numbers, dims=("component",))
        for name, numbers in per_component.items()
        if numbers is not None
    }
    return xarray.Dataset(variables, coords={"component": labels})


def area_scale(like: object) -> Matrix:
    """Return the scale that weights the columns of a grid on a globe by cell area: 1 / sqrt(weight).

    The weight is the area named by ``cell_measures``, relative to the largest, or the cosine of the latitude. The scale
    is public: it depends on the grid alone. Pass it as ``scale`` to an estimator, or save it for
    ``dpdist release --scale``.

    Parameters
    ----------
    like : xarray.DataArray or xarray.Dataset
        The rows, or any object with the same columns. Its values are not read. CF attributes identify the latitude:
        ``standard_name`` is ``latitude``, or ``units`` are ``degrees_north``.

    Returns
    -------
    ndarray
        (d,) float64.

    Raises
    ------
    UsageError
        If it is not an xarray object, a variable has neither areas nor one latitude, or a weight is not positive.
    DataError
        If it is not a table.

    See Also
    --------
    PrivatePCA : Its ``to_xarray`` returns components on the grid.

    References
    ----------
    CF Conventions 1.11, sections 4.1 and 7.2. North et al. 1982 (components of fields on a sphere).

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import dpdist
    >>> north = ("lat", [0.0, 60.0], {"units": "degrees_north"})
    >>> field = xr.DataArray(np.zeros((9, 2, 3)), dims=("time", "lat", "lon"), coords={"lat": north})
    >>> dpdist.area_scale(field).round(3)
    array([1.   , 1.   , 1.   , 1.414, 1.414, 1.414])
    """
    if not is_labelled(like):
        raise UsageError("Only an xarray DataArray or Dataset has cell areas. Pass one.")
    scales = [1 / np.sqrt(_weights(part)) for part in laid_out(like).parts]
    return np.concatenate([scale.reshape(-1) for scale in scales])


def _weights(part: Part) -> Matrix:
    import xarray  # noqa: PLC0415 - an extra

    measures = str(part.array.attrs.get("cell_measures") or part.array.encoding.get("cell_measures") or "").split()
    named = dict(zip(measures[::2], measures[1::2], strict=False)).get("area:")
    area = part.coords.get(named)
    latitudes = [
        coord for coord in part.coords.values()
        if coord.attrs.get("standard_name") == "latitude" or coord.attrs.get("units") in _LATITUDES
    ]  # fmt: skip
    if area is not None:
        weights = area / area.max()
    elif len(latitudes) == 1:
        weights = np.cos(np.deg2rad(latitudes[0].astype(np.float64)))
    else:
        raise UsageError(
            f"{part} has {len(latitudes) or 'no'} latitude coordinates among its columns. Set the attribute "
            'standard_name of one to "latitude" or its units to "degrees_north", or compute weights and pass '
            f"1 / sqrt(weight) as {parameter('scale')}."
        )
    row = xarray.DataArray(np.ones(part.shape), dims=part.dims)
    cell_weights: Matrix = (row * weights.reset_coords(drop=True)).transpose(*part.dims).values.astype(np.float64)
    if not np.all((cell_weights > 0) & np.isfinite(cell_weights)):
        raise UsageError(f"{part} has cells without area, or latitudes beyond the poles. Leave them out.")
    return cell_weights
