"""How dpdist writes and reads Zarr: attributes that say what a folder is, and arrays that are complete or refused.

Zarr reads a missing chunk as zeros and does not notice a flipped bit. Every array here carries a checksum per chunk,
writes chunks of zeros like any others, and is read only when all its chunks are there.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from msgspec import Meta
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec
from zarr.core.buffer import Buffer

from dpdist._util.paths import not_plain
from dpdist.errors import DataError, ResumableError
from dpdist.storage.store import MOST_AT_ONCE, Store

Array: TypeAlias = "zarr.Array[Any]"  # text: before 3.1.4 it takes no type at run time
ROOT = "zarr.json"
"""The key under which an array or group says what it is."""
Text = Annotated[str, Meta(pattern=r"^[^\ud800-\udfff]*\Z")]
"""What a folder from anybody says in words: text that can be written; JSON can hold halves of a character."""
CHECKSUM_BYTES = 4
_MOST_CHUNK = 1 << 30
"""Bytes of a chunk at most, which is read as a whole; those that are written here are of some MiB."""


def attributes_of(store: Store) -> dict[str, Any] | None:
    """Return what stands in a store: the ``dpdist`` attributes of its Zarr v3 root, or None when there are none."""
    try:
        found = json.loads(store.get(ROOT))["attributes"]["dpdist"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError):
        return None
    return found if isinstance(found, dict) else None


def set_attributes(store: Store, what: str, agreed: Callable[[dict[str, object]], bool], **declared: object) -> None:
    """Add to the ``dpdist`` attributes of what is private, in one step; hold ``store.locked()`` meanwhile."""
    before = store.get(ROOT)
    whole = json.loads(before)
    if not agreed(whole["attributes"]["dpdist"]):
        raise ResumableError(f"Another process changed the {what} {store} meanwhile. Run the same command again.")
    whole["attributes"]["dpdist"].update(declared)
    store.replace(ROOT, json.dumps(whole, indent=2).encode(), what, private=True, expected=before)


def require_format(store: Store, expected: str, otherwise: str) -> dict[str, Any]:
    """Return the attributes of what stands in a store, if it is of one format."""
    found = attributes_of(store)
    if found is None:
        raise DataError(otherwise)
    if found.get("format") != expected:
        raise DataError(f"{store} has format {found.get('format')!r}, not {expected!r}. {otherwise}")
    return found


def array_options(dtype: npt.DTypeLike, *, compress: bool = False) -> dict[str, Any]:
    """Return the options of every array: little-endian bytes, a checksum, no gaps; LZ4 is the fastest to unpack."""
    checksum = Crc32cCodec()
    return {
        "dtype": dtype,
        "serializer": BytesCodec(endian=None if np.dtype(dtype).itemsize == 1 else "little"),
        "compressors": (BloscCodec(cname="lz4", shuffle="shuffle"), checksum) if compress else checksum,
        "filters": None,
        "fill_value": 0,
        "config": {"write_empty_chunks": True},
    }


class ChunkWriter:
    """Writes whole plain chunks of an array made with :func:`array_options`, from one buffer.

    Zarr's own path copies a chunk several times and starts a thread for it. The bytes are the same: little-endian
    values and their CRC32C. A chunk appears complete or not at all, so it may be written twice.
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        little = np.dtype(dtype).newbyteorder("<")
        size = little.itemsize * math.prod(shape)
        self._file = np.empty(size + CHECKSUM_BYTES, dtype=np.uint8)
        self.rows = self._file[:size].view(little).reshape(shape)
        """The buffer to fill."""

    def write(self, store: Store, key: str) -> None:
        """Write the buffer as a chunk of what is being built in a store."""
        checksum = google_crc32c.value(self._file[:-CHECKSUM_BYTES])
        self._file[-CHECKSUM_BYTES:] = np.frombuffer(checksum.to_bytes(CHECKSUM_BYTES, "little"), dtype=np.uint8)
        store.put(key, self._file.data)


def put_array(group: zarr.Group, name: str, values: npt.NDArray[np.generic], chunk_bytes: int = 16 << 20) -> None:
    """Write an array into a group, in chunks of whole leading entries of at most about ``chunk_bytes``."""
    rows = max(1, min(values.shape[0], chunk_bytes // max(1, values[:1].nbytes)))
    chunks = (rows, *values.shape[1:])
    array = group.create_array(name=name, shape=values.shape, chunks=chunks, **array_options(values.dtype))
    array[...] = values


def digest_of_objects(objects: Mapping[str, Buffer]) -> str:
    """Return SHA-256 of the keys and bytes of all objects, hexadecimal."""
    digest = hashlib.sha256()
    for key in sorted(objects):
        for part in (key.encode(), objects[key].to_bytes()):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


def complete_arrays(store: Store, names: set[str]) -> dict[str, Array]:
    """Open the arrays of a group, of which no chunk is missing.

    It may come from anybody: nothing is read beyond it, and no more than the arrays announce and objects hold.
    """
    sizes: dict[str, int] = {}
    for key, size in store.list():
        if size is None:
            raise not_plain(store.address(key))
        sizes[key] = size
    if any(size > MOST_AT_ONCE for key, size in sizes.items() if key.endswith(ROOT)):
        raise ValueError("it says too much of itself")
    arrays = dict(zarr.open_group(store.for_zarr(), mode="r", zarr_format=3).arrays())
    if set(arrays) != names:
        raise ValueError("arrays are missing or foreign")
    for name, array in arrays.items():
        codecs = [type(codec) for codec in array.metadata.codecs]  # type: ignore[union-attr]
        chunk = math.prod(array.chunks) * array.dtype.itemsize
        stored = [size for key, size in sizes.items() if key.startswith(f"{name}/c/")]
        if codecs != [BytesCodec, Crc32cCodec] or array.nchunks != len(stored) or chunk > _MOST_CHUNK:
            raise ValueError("more is announced than there is")  # before it is set aside, or unpacked
        if set(stored) != {chunk + CHECKSUM_BYTES} or array.nchunks_initialized != array.nchunks:
            raise ValueError("chunks are missing or of another size")
    return arrays


def read_arrays(store: Store, names: set[str]) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of a group completely."""
    return {name: np.asarray(array[...]) for name, array in complete_arrays(store, names).items()}
