"""Reader of Zarr stores, formats 2 and 3: an array of rows, or one array of a group.

Missing chunks are read as the fill value, as Zarr specifies: a store does not reveal what it has lost.

A store names its codecs, and some that libraries know execute their input (``pickle``). So only listed codecs are used.
Links are not followed: they may lead to files that the author of the store could not read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import RangeByteRequest
from zarr.storage import FsspecStore, LocalStore, WrapperStore

from dpdist.core.errors import DataError, RefusedError
from dpdist.core.ingest.readers.base import AT_ONCE, MOST_LABELS, PIECE, Places, attempt, attempted, ends_of
from dpdist.core.ingest.readers.chunked import (
    AS_FRAME,
    Chunked,
    Layout,
    Meaning,
    absence,
    as_frame,
    batched,
    bounds_in,
    chunk_bytes,
    facts_of,
    fill_of,
    only,
    require_chunks,
    units_of,
)
from dpdist.core.ingest.readers.source import Fragments, State, version_of
from dpdist.core.naming import step
from dpdist.core.paths import require_plain

MARKS = ("zarr.json", ".zarray", ".zgroup")  # every store has one of these at its root
_TOGETHER = 4096  # most strings read at once
_METADATA = frozenset({*MARKS, ".zattrs", ".zmetadata"})
_PACKED = frozenset({"zarr.json", ".zarray", ".zmetadata"})  # metadata that names codecs
_FEW = {"async.concurrency": 2}  # unpacked chunks at a time
_PARTS = 1 << 24  # most chunks of a shard: its index is read at once
_CODECS = frozenset({
    "bytes", "endian", "transpose", "sharding_indexed", "vlen-utf8", "vlen-bytes",
    "blosc", "zstd", "gzip", "zlib", "bz2", "lzma", "lz4",
    "crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3",
    "shuffle", "delta", "fixedscaleoffset", "quantize", "bitround", "packbits", "astype",
})  # fmt: skip
"""Codecs that only unpack numbers and text."""


_FIELDS = frozenset({
    "zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs",
    "attributes", "storage_transformers", "dimension_names", "consolidated_metadata",
})  # fmt: skip
"""Keys of the metadata of Zarr 3; others are extensions."""


class _Guarded(WrapperStore[Any]):
    """A store limited to plain files, and metadata of bounded size with listed codecs."""

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        root = getattr(self._store, "root", None)
        if isinstance(root, Path):
            require_plain(root, key)
        if key.rpartition("/")[2] not in _METADATA:  # a chunk
            return await self._store.get(key, prototype, byte_range)
        content = await self._store.get(key, prototype, RangeByteRequest(0, MOST_LABELS + 1))
        if content is not None:
            _require_known(str(root or self._store), key, content.to_bytes())
        return content


def _require_known(store: str, key: str, content: bytes) -> None:
    if len(content) > MOST_LABELS:
        raise DataError(
            f"{store}: {key!r} is larger than {MOST_LABELS >> 20} MiB. Remove attributes that are not needed."
        )
    last = key.rpartition("/")[2]
    if last == "zarr.json":
        _require_plain_metadata(store, json.loads(content))
    # only in format 2 can a name be a file of attributes; in format 3 it is an array
    noted = ".zattrs" if last == ".zmetadata" else None
    for name in _codecs_in(json.loads(content), noted) if last in _PACKED else ():
        if str(name).removeprefix("numcodecs.") not in _CODECS:
            raise DataError(
                f"{store} uses the codec {str(name)[:40]!r}, which is not supported. Write it with blosc, zstd or "
                "gzip, or without a codec."
            )


def _require_plain_metadata(store: str, metadata: Any) -> None:
    """Refuse what Zarr 3 allows and this reader does not know, by its name."""
    if not isinstance(metadata, dict) or metadata.get("zarr_format") != 3:
        return
    grid = metadata.get("chunk_grid")
    if isinstance(grid, dict) and grid.get("name") == "rectilinear":
        raise DataError(
            f"{store} has chunks of several sizes (rectilinear). Write it with equal ones; in Python: "
            "zarr.config.set({'array.rectilinear_chunks': True}); "
            "zarr.save_array(NEW, zarr.open_array(FILE, mode='r')[:])."
        )
    for name, value in metadata.items():
        if name not in _FIELDS and not (isinstance(value, dict) and value.get("must_understand") is False):
            raise DataError(
                f"{store} uses the extension {name[:40]!r} of Zarr, which is not supported. Write it without."
            )


def _codecs_in(metadata: Any, noted: str | None) -> Iterator[Any]:
    """Yield the names of all codecs in metadata, at any depth, outside of user attributes."""
    for key, inner in metadata.items() if isinstance(metadata, dict) else ():
        if key == "metadata":  # consolidated metadata of arrays and groups, by name
            for name, node in dict(inner or {}).items():
                yield from _codecs_in(node, noted) if name.rpartition("/")[2] != noted else ()
        elif key in {"codecs", "index_codecs", "filters", "compressor"}:
            for codec in inner if isinstance(inner, list) else [inner] if inner else ():
                names = [codec] if isinstance(codec, str) else [codec[key] for key in ("name", "id") if key in codec]
                yield from names or [""]
                yield from _codecs_in(codec, noted)
        elif key != "attributes":
            yield from _codecs_in(inner, noted)


@contextmanager
def opened(path: Any, way: Callable[..., Any] = zarr.open, **options: Any) -> Iterator[Any]:
    """Open an array or group, local or in an object store."""
    store: Any
    if isinstance(path, Path):
        store = LocalStore(path, read_only=True)
        options = {"use_consolidated": False} | options  # it may predate appended rows
    else:
        store = FsspecStore.from_url(path.address, read_only=True)
    with zarr.config.set(_FEW):
        yield way(_Guarded(store), mode="r", **options)


def root_matches(path: Any, question: Callable[[Any], bool]) -> bool:
    """Whether the root of a store satisfies a predicate; False if it is damaged."""

    def matches() -> bool:
        with opened(path) as root:
            return isinstance(root, zarr.Group) and question(root)

    try:
        return attempt(path, matches)
    except DataError:
        return False


def is_anndata(path: Any) -> bool:
    """Whether a store is AnnData."""
    return root_matches(path, _is_anndata)


def _is_anndata(group: zarr.Group) -> bool:
    """Whether a group is AnnData: marked since version 0.8, before by annotations of rows and columns."""
    return group.attrs.get("encoding-type") == "anndata" or all(
        name in group and group[name].attrs.get("encoding-type") == "dataframe" for name in ("obs", "var")
    )


def is_vcf_zarr(path: Any) -> bool:
    """Whether a store holds genotypes by variant; False if it is damaged."""
    return root_matches(
        path, lambda root: getattr(root.get("call_genotype"), "ndim", 0) == 3 and "variant_allele" in root
    )


def require_foreign(path: Any, array_path: str) -> None:
    """Refuse an array that is, or is inside, a table of dpdist."""

    def ours() -> bool:
        with opened(path, zarr.open_group, use_consolidated=False) as root:  # consolidated metadata may be outdated
            inner = accumulate(array_path.split("/"), "{}/{}".format)
            return "dpdist" in root.attrs or any("dpdist" in root[name].attrs for name in inner)

    if attempt(path, ours):
        raise _own_store_error(f"{path}/{array_path}")


def _dimension(array: Any) -> Any:
    """Return the name of the dimension of an array of one dimension, if it has one."""
    names: Any = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return names[0] if names else None


def _apart(members: Mapping[str, Any]) -> str | None:
    """Return how to join arrays of one dimension, which are columns, to a table; None if there are none."""
    columns = {name: array for name, array in members.items() if isinstance(array, zarr.Array) and array.ndim == 1}
    dims = {name: _dimension(array) for name, array in columns.items()}
    if None not in dims.values():
        return as_frame("xarray.open_zarr(FILE)", dims)
    alike = len(columns) > 1 and len({array.shape for array in columns.values()}) == 1
    return AS_FRAME.format(_FRAME) if alike else None


_FRAME = "pandas.DataFrame({name: array[:] for name, array in sorted(zarr.open_group(FILE, mode='r').arrays())})"


def _own_store_error(path: Any) -> RefusedError:
    return RefusedError(
        f"{path} was written by dpdist. Its rows already have a budget, and a copy would get a second one. Use these "
        "rows, or ingest their source."
    )


def absent_chunks(path: Any, array_path: str, array: Any) -> str | None:
    """Say how many chunks or shards of an array are not stored, as after a copy that broke off; None if none."""
    stored = array.shards or array.chunks
    count = math.prod(-(-n // length) for n, length in zip(array.shape, stored, strict=True))
    return absence(count, sum(1 for _ in _stored_chunks(path, array_path)), array.fill_value)


def holds_values(path: Any, array_path: str = "") -> bool:
    """Whether any chunk of an array exists."""
    return any(_stored_chunks(path, array_path))


def _stored_chunks(path: Any, array_path: str) -> Iterator[bool]:
    for name in array_path.split("/") if array_path else ():
        path = path / name
    entries = [path]
    while entries:
        for entry in entries.pop().iterdir():
            if isinstance(entry, Path):
                require_plain(path, entry.relative_to(path))
            if entry.is_dir():
                entries.append(entry)
            elif entry.name not in _METADATA:
                yield True


def _meaning(path: Any, array: Any) -> Meaning | None:
    """Return the xarray attributes of an array; in format 2 its fill value also marks missing values."""
    attributes = dict(array.attrs)
    if "_Unsigned" in attributes:
        raise DataError(
            f"{path} has the attribute _Unsigned, which Zarr does not need. Write it with an unsigned type."
        )
    absent = [attributes[name] for name in ("_FillValue", "missing_value") if name in attributes]
    if array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in attributes and array.fill_value is not None:
        absent.append(array.fill_value)
    absent = [fill_of(value) for value in absent]
    if array.dtype == np.int64 and "units" in attributes:  # NaT, as xarray stores it
        absent.append(np.iinfo(np.int64).min)
    if array.dtype.kind == "f":  # JSON writes a float32 of 1e20 as another double
        absent = [np.asarray(value, np.float64).astype(array.dtype) for value in absent]
    return Meaning.of(attributes, *absent)


class Store(Chunked):
    """A Zarr array: the root, or the chosen or only one of a group."""

    takes = ("variable", "rows_dimension")
    fragile = True

    @cached_property
    @attempted
    def _array_path(self) -> str | None:
        """Path of the array in the group; None if the root is the array."""
        with opened(self.path) as root:
            if "dpdist" in root.attrs:
                raise _own_store_error(self.path)
            members = {} if isinstance(root, zarr.Array) else dict(sorted(root.members(max_depth=None)))
            inner = [name for name, member in members.items() if isinstance(member, zarr.Group) and _is_anndata(member)]
            bounds = bounds_in(member.attrs for member in members.values())
            arrays = {"": root.shape} if isinstance(root, zarr.Array) else {
                name: member.shape
                for name, member in members.items()
                if isinstance(member, zarr.Array) and member.ndim > 1 and name.rpartition("/")[2] not in bounds
                and not any(name.startswith(f"{other}/") for other in inner)
            }  # fmt: skip
        if inner and self.choices.variable not in arrays:
            # other arrays of AnnData were computed from all rows, and may have the shape of X
            raise DataError(f"{self.path} holds AnnData. Ingest one of them by itself, such as {self.path / inner[0]}.")
        if "" in arrays and self.choices.variable is None:
            return None
        array_path = only(self.path, arrays, self.choices.variable, "array", None if arrays else _apart(members))
        require_foreign(self.path, array_path)
        return array_path

    @cached_property
    def _array(self) -> Any:
        with opened(self.path) as root:
            return root if self._array_path is None else root[self._array_path]

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with zarr.config.set(_FEW):
            yield self._array

    def fragments(self, keep: Places) -> Fragments:  # noqa: ARG002 - all columns are read
        layout = self._layout
        high = max(1, min(layout.chunks[0], layout.shape[0]))
        size = high * layout.row_bytes
        if size > AT_ONCE:
            raise DataError(
                f"{self.path} has chunks of {high} rows, {size >> 20} MiB with all columns. Reading rows in place "
                f"unpacks them at once, and the limit is {AT_ONCE >> 20} MiB. Write it with chunks of fewer rows, or "
                f"copy its rows with {step('ingest')}."
            )
        return Fragments(ends_of(self.path, layout.shape[0], high * max(1, PIECE // size)), 4 * max(size, PIECE))

    @attempted
    def state(self, start: int, stop: int) -> State:
        """Return the state of the existing chunks or shards that hold rows."""
        if not isinstance(self.path, Path):
            return State(0, 0, version_of([]))  # would double the requests to the store
        versions = []
        for path in self._chunk_files(start, stop):
            with suppress(FileNotFoundError):
                status = path.lstat()
                versions.append((path.relative_to(self.path).as_posix(), status.st_size, status.st_mtime_ns))
        return State(len(versions), sum(size for _, size, _ in versions), version_of(versions))

    def _chunk_files(self, start: int, stop: int) -> Iterator[Path]:
        array, root = self._array, self.path / (self._array_path or "")
        stored, axis = array.shards or array.chunks, self._layout.axis
        index_ranges = [range(-(-n // length)) for n, length in zip(array.shape, stored, strict=True)]
        index_ranges[axis] = range(start // stored[axis], -(-stop // stored[axis]))
        for index in product(*index_ranges):
            yield root / array.metadata.encode_chunk_key(index)

    @cached_property
    @attempted
    def _stored(self) -> Layout:
        with self._opened() as array:
            if array.shards and math.prod(array.shards) > _PARTS * math.prod(array.chunks):
                raise ValueError
            return Layout(
                array.shape, array.dtype, tuple(map(min, array.chunks, array.shape)),
                holds_values(self.path, self._array_path or ""), self._dims(array),
                meaning=_meaning(self.path, array), name=self._array_path or "", units=units_of(array.attrs),
                absent=absent_chunks(self.path, self._array_path or "", array),
            )  # fmt: skip

    @attempted
    def _beside(self, dimension: str) -> Sequence[str]:
        if self._array_path is None:
            return ()
        with opened(self.path) as root:
            group = root[self._array_path.rpartition("/")[0]] if "/" in self._array_path else root
            arrays = [(name, array) for name, array in group.arrays() if array.ndim == 1]
            return sorted(name for name, array in arrays if name == dimension or self._dims(array) == (dimension,))

    def _along(self, name: str, dimension: str, length: int) -> Iterator[Sequence[Any]]:  # noqa: ARG002 - by its shape
        if self._array_path is None:
            return
        folder = self._array_path.rpartition("/")[0]
        with opened(self.path) as root:
            array = root.get(f"{folder}/{name}".removeprefix("/"))
            if not isinstance(array, zarr.Array) or array.shape != (length,) or array.dtype.kind not in "iufOUST":
                return
            require_chunks(self.path, chunk_bytes(array))
            yield facts_of(array.attrs, array.dtype)
            if array.dtype.kind in "OUST":
                yield from strings(array, length, array.dtype.itemsize)
            else:
                yield from batched(array, length)

    def _dims(self, array: Any) -> tuple[str, ...]:
        """Return the names of the dimensions; in VCF Zarr the first defaults to variants."""
        names = dimension_names(array)
        if names and all(isinstance(name, str) for name in names):
            return tuple(names)
        with opened(self.path) as root:
            by_variant = "vcf_zarr_version" in root.attrs
        if by_variant or (self._array_path or self.path.name).rpartition("/")[2] == "call_genotype":
            return ("variants", *(str(i) for i in range(1, array.ndim)))
        return ()


def dimension_names(array: Any) -> Any:
    """Return what an array calls its dimensions, in either format; None if it does not."""
    return getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")


def strings(data: Any, count: int, longest: int) -> Iterator[list[str]]:
    """Yield strings in batches of bounded bytes."""
    step = max(1, min(_TOGETHER, MOST_LABELS // max(1, longest)))
    for start in range(0, count, step):
        batch = np.asarray(data[start : start + step]).tolist()
        yield [text.decode(errors="backslashreplace") if isinstance(text, bytes) else str(text) for text in batch]
