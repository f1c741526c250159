"""Base of readers of chunked arrays (HDF5, NetCDF, Zarr): rows in bounded memory for any shape of chunks.

The first dimension is the rows; the others are flattened into columns, the last one fastest.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from base64 import b64decode
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from functools import cached_property
from hashlib import blake2b
from itertools import chain, islice, takewhile
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest.readers.base import (
    BEYOND,
    EXACT,
    PIECE,
    Places,
    Rows,
    attempt_each,
    bounded,
    not_finite,
    numbered,
    require_table,
)
from dpdist.core.ingest.readers.source import WINDOW, Fragment, Head, Source, transposed
from dpdist.core.naming import parameter
from dpdist.core.rows.units import named_units
from dpdist.core.text import counted, listed

_LARGEST = 1 << 30
_NAMED = 1 << 16  # rows whose names are read at once
GAPS = "Fill it by a public rule, or leave out the columns with gaps, such as grid cells in the sea."


class Meaning(NamedTuple):
    """CF attributes of an array that map stored values."""

    absent: tuple[float, ...] = ()  # stored values that mark missing ones
    low: float = -math.inf  # valid range
    high: float = math.inf
    scale: float | None = None  # factor of stored values; None: not packed
    offset: float = 0.0  # added to the product

    @classmethod
    def of(cls, attributes: Mapping[str, Any], *absent: object) -> Meaning | None:
        """Parse attributes and further missing values; None if there are none."""

        def first(name: str, otherwise: float) -> float:
            return float(np.ravel(attributes.get(name, otherwise))[0])

        low, high = np.ravel(attributes.get("valid_range", (-math.inf, math.inf))).tolist()
        packed = "scale_factor" in attributes or "add_offset" in attributes
        missing = [value for group in absent for value in np.ravel(np.asarray(group, np.float64)).tolist()]
        meaning = cls(
            tuple(missing), first("valid_min", low), first("valid_max", high),
            first("scale_factor", 1.0) if packed else None, first("add_offset", 0.0),
        )  # fmt: skip
        return None if meaning == cls() else meaning

    def gaps(self, values: Rows) -> npt.NDArray[np.bool_]:
        """Return the mask of missing values."""
        gaps: npt.NDArray[np.bool_] = np.isin(values, self.absent) | (values < self.low) | (values > self.high)
        return gaps

    def unpacked(self, values: Rows) -> Rows:
        return values if self.scale is None else values.astype(np.float64) * self.scale + self.offset


def absent_in_hdf5(dataset: Any) -> str | None:
    """Say how many chunks of an HDF5 dataset are not stored; None if all are."""
    if dataset.chunks is None:
        return None
    count = math.prod(-(-n // length) for n, length in zip(dataset.shape, dataset.chunks, strict=True))
    return absence(count, dataset.id.get_num_chunks(), dataset.fillvalue)


def absence(count: int, stored: int, fill: object) -> str | None:
    """Say that some of the chunks of an array are not stored; None if all are."""
    if stored >= count:
        return None
    return f"{count - stored} of {counted(count, 'chunk')} are not stored, and their cells count as {fill}."


class Layout(NamedTuple):
    """Shape, type and chunks of an array, the dimension of the rows first; chunks of 1 if there are none."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    chunks: tuple[int, ...]
    stored: bool = True  # whether any chunk exists; else a few bytes could declare more rows than any disk holds
    dims: tuple[str, ...] = ()
    axis: int = 0  # stored dimension of the rows
    meaning: Meaning | None = None
    rounded: bool = False  # 64-bit whole numbers are read as floats
    name: str = ""  # of the variable
    units: str = ""  # unit of measurement
    absent: str | None = None  # how many chunks are not stored, and what their cells count as

    @property
    def columns(self) -> int:
        """Product of all dimensions but the first."""
        return math.prod(self.shape[1:])

    @property
    def chunk_bytes(self) -> int:
        """Bytes of an unpacked chunk."""
        return math.prod(self.chunks) * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.columns * self.dtype.itemsize

    def along(self, path: Any, dimension: str | None) -> Layout:
        """Move the rows to a dimension; UsageError if it does not exist."""
        if dimension is None:
            return self
        if dimension not in self.dims:
            listing = listed(map(repr, self.dims)) if self.dims else "no names"
            raise UsageError(
                f"{path} has no dimension {dimension!r}. There are: {listing}.", parameter="rows_dimension"
            )
        axis = self.dims.index(dimension)
        shape, chunks, dims = (
            (entries[axis], *entries[:axis], *entries[axis + 1 :]) for entries in (self.shape, self.chunks, self.dims)
        )
        return self._replace(shape=shape, chunks=chunks, dims=dims, axis=axis)


class Chunked(Source):
    """An array of two or more dimensions, read in parts."""

    @property
    @abstractmethod
    def _stored(self) -> Layout:
        """Return the layout of the file."""

    @abstractmethod
    def _opened(self) -> AbstractContextManager[Any]:
        """Open the array; indexing reads."""

    def _along(self, name: str, dimension: str, length: int) -> Iterator[Sequence[Any]]:  # noqa: ARG002 - see below
        """Yield :func:`facts_of` an array along a dimension, then its values in batches."""
        yield from ()  # for files with coordinates

    def _beside(self, dimension: str) -> Sequence[str]:  # noqa: ARG002 - as above
        """Return the names of the arrays along a dimension."""
        return ()

    @cached_property
    def _layout(self) -> Layout:
        layout = self._stored.along(self.path, self.choices.rows_dimension)
        require_no_variants(self.path, layout.dims[:1])
        flat = len(layout.shape) > 2 and min(layout.shape) >= 0
        require_table(self.path, (layout.shape[0], layout.columns) if flat else layout.shape, layout.dtype)
        require_chunks(self.path, layout.chunk_bytes)
        if not layout.stored and layout.shape[0]:
            raise DataError(
                f"{self.path} declares an array without stored values: every cell would be the fill value. Restore the "
                "array, or write it with its values."
            )
        return layout

    @cached_property
    def head(self) -> Head:
        layout = self._layout
        dims, shape, guess = layout.dims, layout.shape, None
        meaning = blake2b(repr((layout.name, layout.units, dims[1:], shape[1:])).encode(), digest_size=16)
        names = bounded(self.path, self._column_names()) if len(shape) == 2 else ()
        for dimension, length in () if names else zip(dims[1:], shape[1:], strict=False):  # names are compared anyway
            for batch in attempt_each(self.path, self._along(dimension, dimension, length)):
                meaning.update(repr(batch).encode())
        if dims:
            other_dims = listed(map(repr, dims[1:]))
            guess = f"{self.path}: rows are along {dims[0]!r}, and columns along {other_dims}."
            if self.choices.rows_dimension is None:
                guess += f" Choose another dimension of the rows with {parameter('rows_dimension')}."
        packed = layout.meaning is not None and layout.meaning.scale is not None
        labels = tuple(name for name in self._beside(dims[0]) if self._may_name(name)) if dims else ()
        samples = tuple(name for name in labels if name == dims[0])
        return Head(
            names or numbered(layout.columns), shape[0], "float64" if packed else layout.dtype.name, guess=guess,
            labels=labels, samples=samples, numbered=any(map(self._only_counts, samples)),
            absent=layout.absent and f"{self.path}: {layout.absent} If they were lost, restore them and ingest again.",
            meaning=meaning.hexdigest() if layout.name or dims else "",  # else like a NumPy file
        )  # fmt: skip

    def _column_names(self) -> Iterator[Sequence[str]]:
        """Yield the names of the columns, if their coordinate holds text."""
        layout = self._layout
        if not layout.dims:
            return iter(())
        batches = attempt_each(self.path, self._along(layout.dims[1], layout.dims[1], layout.shape[1]))
        next(batches, None)
        return takewhile(lambda batch: all(isinstance(word, str) for word in batch), batches)

    def _beside_rows(self, name: str) -> Generator[Sequence[Any]]:
        """Yield :func:`facts_of` an array along the rows, then its values."""
        return attempt_each(self.path, self._along(name, self._layout.dims[0], self._layout.shape[0]))

    def _may_name(self, name: str) -> bool:
        """Whether the values of an array along the rows may name persons."""
        with closing(self._beside_rows(name)) as batches:
            for facts in islice(batches, 1):
                return may_name(batches, *facts)
        return False

    def _only_counts(self, name: str) -> bool:
        """Whether an array counts the rows, from 0."""
        with closing(self._beside_rows(name)) as batches:
            row = 0
            for batch in islice(batches, 1, None):
                if [*batch] != [*range(row, row := row + len(batch))]:
                    return False
        return True

    def units(self, key: bytes, labels: Sequence[str] = ()) -> Generator[Rows]:
        from dpdist.core.rows.encoding import MISSING_WORDS  # noqa: PLC0415 - imports Arrow

        columns = [chain.from_iterable(islice(self._beside_rows(label), 1, None)) for label in labels]
        rows = zip(*(map(label_of, column) for column in columns), strict=True)
        while batch := [*islice(rows, _NAMED)]:
            for label, names in zip(labels, parts := [*zip(*batch, strict=True)], strict=True):
                if any(name.strip() in MISSING_WORDS for name in names):
                    raise DataError(
                        f"{self.path}: {label} is missing for some rows, which belong to no privacy unit. Add it."
                    )
            yield named_units(parts, key)

    @property
    def unpacked(self) -> int:
        return self._layout.chunk_bytes

    @property
    def _cure(self) -> str:
        return GAPS

    def _position_of(self, column: int) -> str:
        """Return the indices of a column along its dimensions; empty if its name suffices."""
        dims, shape = self._layout.dims[1:], self._layout.shape[1:]
        if len(dims) < 2:
            return ""
        indices = np.unravel_index(column, shape)
        return ", ".join(f"{dim} {int(index)}" for dim, index in zip(dims, indices, strict=True)) + ", counting from 0"

    def not_finite(self, row: int, column: int) -> DataError:
        return not_finite(self.path, row, self.head.names[column], self._position_of(column), self._cure)

    def blocks(self, keep: Places, fragment: Fragment = None) -> Generator[Rows]:
        layout, row = self._layout, 0 if fragment is None else fragment[0]
        all_columns = keep == tuple(range(layout.columns))
        for band in self._bands(fragment):
            block = band if all_columns else band[:, keep]
            if layout.meaning is not None:
                gaps = layout.meaning.gaps(block)
                if gaps.any():
                    offset, column = map(int, np.argwhere(gaps)[0])
                    position = self._position_of(keep[column])
                    raise DataError(
                        f"{self.path}, row {row + offset} (counting from 0), column {self.head.names[keep[column]]!r}"
                        f"{position and f' ({position})'}: the value is missing according to the attributes of the "
                        f"array. {self._cure}"
                    )
                block = layout.meaning.unpacked(block)
            if layout.rounded and (np.abs(block) >= EXACT).any():
                raise DataError(f"{self.path}, rows from {row} on (counting from 0): {BEYOND}")
            row += len(band)
            yield block

    def _bands(self, fragment: Fragment) -> Generator[Rows]:
        """Yield all columns, one or more chunks of rows at a time."""
        layout = self._layout
        row, n = layout.row_bytes, layout.shape[0]
        slab = row // layout.shape[1] * layout.chunks[1]
        high = max(1, min(layout.chunks[0], n, _LARGEST // slab))
        if fragment is not None or high * row <= WINDOW or layout.chunks[1:] == layout.shape[1:]:
            # any row needs the whole chunk, which holds all columns
            first, last = fragment or (0, n)
            yield from attempt_each(self.path, self._read(high * max(1, PIECE // (high * row)), first, last))
            return
        for start in range(0, n, high):  # each chunk is unpacked once, if a band is not too wide
            stop = min(start + high, n)
            shape = (stop - start, layout.columns)
            yield from transposed(self.path, self.scratch_dir, self._slabs(start, stop), shape, layout.dtype)

    def _read(self, height: int, first: int, last: int) -> Iterator[Rows]:
        few = max(1, PIECE // self._layout.row_bytes)
        with self._opened() as array:
            for start in range(first, last, height):
                band = self._block(array, slice(start, min(start + height, last)))
                yield from (band[top : top + few] for top in range(0, len(band), few))

    def _slabs(self, start: int, stop: int) -> Iterator[Rows]:
        width = self._layout.chunks[1]
        with self._opened() as array:
            for first in range(0, self._layout.shape[1], width):
                yield self._block(array, slice(start, stop), slice(first, first + width))

    def _block(self, array: Any, *slices: slice) -> Rows:
        layout = self._layout
        index = [*slices, *(slice(None) for _ in layout.shape[len(slices) :])]
        index.insert(layout.axis, index.pop(0))
        read = np.moveaxis(np.asarray(array[tuple(index)]), layout.axis, 0)
        if read.dtype != layout.dtype:
            raise TypeError  # contradicts the metadata
        return read.reshape(read.shape[0], -1)


def units_of(attributes: Mapping[str, Any]) -> str:
    """Return the unit of measurement of a variable, with its calendar."""
    return f"{attributes.get('units', '')} {attributes.get('calendar', '')}"


def facts_of(attributes: Mapping[str, Any], dtype: np.dtype[np.generic]) -> tuple[str, float]:
    """Return the unit of measurement of an array, and the number from which its type rounds whole numbers."""
    return units_of(attributes), 2.0 ** (np.finfo(dtype.name).nmant + 1) if dtype.kind == "f" else math.inf


def may_name(batches: Iterable[Sequence[Any]], units: str, rounded: float) -> bool:
    """Whether labels of rows may name persons: text, or whole numbers without a unit of measurement."""
    measured = units.strip() not in {"", "1"}  # 1: without dimension, by CF 1.11, section 3.1
    for batch in batches:
        if all(isinstance(label, str) for label in batch):
            return True
        if measured or not all(isinstance(label, int) or _is_whole(label, rounded) for label in batch):
            return False
        if isinstance(batch[0], int):
            return True
    return True  # floats, all of them whole


def _is_whole(label: float, rounded: float) -> bool:
    """Whether a label is an exact whole number stored as a float, or missing."""
    return math.isnan(label) or (abs(label) < rounded and label.is_integer())


def label_of(label: str | float) -> str:
    """Return a label as text; empty if it is missing."""
    if isinstance(label, float):
        return "" if math.isnan(label) else f"{label:.0f}"
    return str(label)


def batched(values: Any, count: int) -> Iterator[list[Any]]:
    """Yield the numbers of an array in batches."""
    for start in range(0, count, _NAMED):
        yield np.asarray(values[start : start + _NAMED]).tolist()


def fill_of(value: Any) -> Any:
    """Decode a fill value; JSON stores floats as text, possibly base64 of their bytes."""
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        return float(value)
    raw = b64decode(value)
    return np.frombuffer(raw, dtype=f"<f{len(raw)}")


def bounds_in(attributes: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the variables that are cell boundaries of others, by the attributes of all."""
    return {str(entry[name]) for entry in attributes for name in ("bounds", "climatology") if name in entry}


def require_no_variants(path: object, first: Sequence[object]) -> None:
    """Refuse rows along a dimension ``variants``, as in VCF Zarr and sgkit: variants would be protected, not people."""
    if "variants" in first:
        raise DataError(
            f"{path} holds genotypes with one row per variant, so the privacy unit would be the variant and not the "
            "person. Ingest VCF Zarr, or write an array with one row per sample."
        )


def chunk_bytes(array: Any) -> int:
    """Return the bytes of an unpacked chunk of an h5py or zarr array."""
    return math.prod(array.chunks or ()) * int(array.dtype.itemsize)


def require_chunks(path: Any, size: int) -> None:
    """Refuse chunks that would exhaust memory."""
    if size > _LARGEST:
        raise DataError(
            f"{path} has chunks of {size >> 20} MiB, and each chunk is unpacked at once. Write it with chunks of "
            f"at most {_LARGEST >> 20} MiB."
        )


AS_FRAME = "Its arrays of one dimension are columns: save them as .parquet; in Python: {}.to_parquet(NEW)."


def as_frame(opened: str, dims: Mapping[str, str]) -> str | None:
    """Return how to save variables of one dimension as a table: those that share the most usual dimension."""
    first, count = Counter(dims.values()).most_common(1)[0] if dims else ("", 0)
    if count < 2:
        return None
    columns = [name for name, dim in dims.items() if dim == first]
    chosen = "" if count == len(dims) else f"[{columns}]"
    return AS_FRAME.format(f"{opened}{chosen}.to_dataframe()")


def only(
    path: Any, arrays: Mapping[str, tuple[int, ...]], variable: str | None, noun: str, cure: str | None = None
) -> str:
    """Return the name of the array of rows: the chosen or only one; ``cure`` says what to do if there is none."""
    if variable in arrays:
        return str(variable)
    if variable is None and len(arrays) == 1:
        return next(iter(arrays))
    if not arrays:
        problem = f"{path} holds no {noun} with two or more dimensions, the first being the rows."
        raise DataError(f"{problem} {cure or 'Write one.'}")
    listing = "; ".join(f"{name} {shape}" for name, shape in list(arrays.items())[:20])
    more = f"; ... ({len(arrays)} in all)" if len(arrays) > 20 else ""
    problem = f"no {noun} {variable!r}" if variable is not None else f"several {noun}s"
    raise DataError(f"{path} holds {problem}. Choose with {parameter('variable')}: {listing}{more}.")
