"""Reading and writing Zarr: attributes that identify a folder, and arrays that are complete or refused.

Zarr reads a missing chunk as zeros and does not notice a flipped bit. Arrays of dpdist have a checksum per chunk,
store chunks of zeros too, and are read only if all chunks are present.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from msgspec import Meta
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec
from zarr.core.buffer import Buffer

from dpdist.core.errors import DataError, ResumableError
from dpdist.core.naming import step
from dpdist.core.paths import not_plain
from dpdist.core.storage.atomic import MOST_AT_ONCE
from dpdist.core.storage.store import AnyStore, Store, store_at
from dpdist.core.text import listed

Array: TypeAlias = "zarr.Array[Any]"  # text: before 3.1.4 it takes no type at run time
ROOT = "zarr.json"
"""Key of the metadata of an array or group."""
SESSION_FILE, SHARE_ENDING = "session.json", ".share"
"""Of the folder of a session of several sites, which is no Zarr: its terms, and how the names of its shares end."""
Text = Annotated[str, Meta(pattern=r"^[^\ud800-\udfff]*\Z")]
"""Text from an untrusted folder, without lone surrogates, which JSON can escape but no file can hold."""
CHECKSUM_BYTES = 4
_MOST_CHUNK = 1 << 30
"""Largest chunk in bytes; dpdist writes chunks of some MiB."""


def attributes_of(store: Store) -> dict[str, Any] | None:
    """Return the ``dpdist`` attributes of the Zarr v3 root of a store, or None if there are none."""
    try:
        attributes = json.loads(store.get(ROOT))["attributes"]["dpdist"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError):
        return None
    return attributes if isinstance(attributes, dict) else None


def set_attributes(store: Store, noun: str, agreed: Callable[[dict[str, object]], bool], **declared: object) -> None:
    """Atomically add to the ``dpdist`` attributes of a private store, under ``store.locked()``."""
    before = store.get(ROOT)
    metadata = json.loads(before)
    if not agreed(metadata["attributes"]["dpdist"]):
        raise ResumableError(f"Another process changed the {noun} {store}. Run the same command again.")
    metadata["attributes"]["dpdist"].update(declared)
    store.replace(ROOT, json.dumps(metadata, indent=2).encode(), noun, private=True, expected=before)


def require_format(store: Store, expected: str, otherwise: str) -> dict[str, Any]:
    """Return the attributes of a store, which must have the expected format; ``otherwise`` is for one not made yet."""
    attributes = attributes_of(store)
    if attributes is None and not store.exists():
        raise DataError(otherwise)
    if attributes is None and isinstance(folder := store.address(), Path) and (folder / "ledger.sqlite").exists():
        raise DataError(f"{store} is a ledger, a budget with its charges; {_KINDS[expected][0]} is needed here.")
    if attributes is None and str(store).endswith(SHARE_ENDING):
        combining = step("session combine", str(store).rpartition("/")[0] or ".", "RELEASE")
        raise DataError(f"{store} is the share of one site in a session. Add up those of all sites with: {combining}")
    if attributes is None and store.exists(SESSION_FILE):
        raise DataError(
            f"{store} is a session of several sites. Once all shares are there, make its release with: "
            f"{step('session combine', store, 'RELEASE')}"
        )
    if attributes is None:  # the cure must not name it as an output: it may be the only copy of a table
        copying = step("ingest", store, "ROWS", budget_epsilon="E", budget_delta="D")
        own = f"copy its rows with {copying}, and use ROWS in its place"
        if expected == _RELEASE and isinstance(folder, Path) and folder.is_file():
            own = f"release it with {step('release', store, 'RELEASE', epsilon='E', delta='D')}, and use RELEASE"
        elif isinstance(folder, Path) and folder.is_file() and (rows := folder.with_suffix(".zarr")).exists():
            own = f"its rows may be in {rows} already: use that in its place"  # with another copy, they had two budgets
        raise DataError(
            f"{store} holds no rows, release or model of dpdist, or it is damaged. If it is your own table, {own}. "
            "Otherwise restore it from a copy."
        )
    found, (wanted, source, making) = attributes.get("format"), _KINDS[expected]
    if found != expected and found in _KINDS:
        made = making(store if found == source else None)
        raise DataError(f"{store} holds {_KINDS[found][0]}; {wanted} is needed here. To make it: {made}.")
    if found != expected:
        raise DataError(f"{store} has format {found!r}, not {expected!r}. Use the version of dpdist that wrote it.")
    return attributes


def _ingest(_: object) -> str:
    return step("ingest", "SOURCE", "ROWS", budget_epsilon="E", budget_delta="D")


_ROWS, _RELEASE, _MODEL = "dpdist-rows/1", "dpdist-release/1", "dpdist-model/1"
_KINDS: dict[str, tuple[str, str, Callable[[object], str]]] = {
    _ROWS: ("a table of private rows", "", _ingest),
    "dpdist-registered/1": ("a table of private rows", "", _ingest),
    _RELEASE: ("a release", _ROWS, lambda rows: step("release", rows or "ROWS", "RELEASE", epsilon="E", delta="D")),
    _MODEL: ("a model", _RELEASE, lambda release: step("pca", release or "RELEASE", "MODEL")),
    "dpdist-scores/1": ("a table of private scores", "", lambda _: step("project", "ROWS", "MODEL", "SCORES")),
    "dpdist-matrix/1": ("a matrix", "", lambda _: step("release-matrix", "MATRIX", "OUT")),
}
"""What a folder of a format is called, the format that it is made of, and the step that makes it."""


def array_options(dtype: npt.DTypeLike, *, compress: bool = False) -> dict[str, Any]:
    """Return the options of every array: little-endian, with checksums, all chunks stored; LZ4 decodes fastest."""
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
    """Writes uncompressed chunks of an array made with :func:`array_options`, from one buffer.

    Zarr would copy a chunk several times and start a thread for it. The bytes are the same: little-endian values and
    their CRC32C. A chunk appears complete or not at all, so it may be written twice.
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        little = np.dtype(dtype).newbyteorder("<")
        size = little.itemsize * math.prod(shape)
        self._file = np.empty(size + CHECKSUM_BYTES, dtype=np.uint8)
        self.rows = self._file[:size].view(little).reshape(shape)
        """The buffer to fill."""

    def write(self, store: Store, key: str) -> None:
        """Write the buffer as a chunk of a store that is being built."""
        checksum = google_crc32c.value(self._file[:-CHECKSUM_BYTES])
        self._file[-CHECKSUM_BYTES:] = np.frombuffer(checksum.to_bytes(CHECKSUM_BYTES, "little"), dtype=np.uint8)
        store.put(key, self._file.data)


def put_array(group: zarr.Group, name: str, values: npt.NDArray[np.generic], chunk_bytes: int = 16 << 20) -> None:
    """Write an array to a group in chunks along the first axis, of about ``chunk_bytes`` at most."""
    rows = max(1, min(values.shape[0], chunk_bytes // max(1, values[:1].nbytes)))
    chunks = (rows, *values.shape[1:])
    array = group.create_array(name=name, shape=values.shape, chunks=chunks, **array_options(values.dtype))
    array[...] = values


def digest_of_objects(objects: Mapping[str, Buffer]) -> str:
    """Return the hexadecimal SHA-256 of the keys and bytes of all objects."""
    digest = hashlib.sha256()
    for key in sorted(objects):
        for part in (key.encode(), objects[key].to_bytes()):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


def complete_arrays(store: Store, names: set[str]) -> dict[str, Array]:
    """Open the arrays of an untrusted group; ValueError unless all chunks are present and of the declared size."""
    sizes: dict[str, int] = {}
    for key, size in store.list():
        if size is None:
            raise not_plain(store.address(key))
        sizes[key] = size
    if any(size > MOST_AT_ONCE for key, size in sizes.items() if key.endswith(ROOT)):
        raise ValueError("the metadata is too large")
    arrays = dict(zarr.open_group(store.for_zarr(), mode="r", zarr_format=3).arrays())
    if set(arrays) != names:
        raise ValueError("arrays are missing or unexpected")
    for name, array in arrays.items():
        codecs = [type(codec) for codec in array.metadata.codecs]  # type: ignore[union-attr]
        chunk = math.prod(array.chunks) * array.dtype.itemsize
        stored = [size for key, size in sizes.items() if key.startswith(f"{name}/c/")]
        if codecs != [BytesCodec, Crc32cCodec] or array.nchunks != len(stored) or chunk > _MOST_CHUNK:
            raise ValueError("the metadata does not match the chunks")  # before memory is allocated
        if set(stored) != {chunk + CHECKSUM_BYTES} or array.nchunks_initialized != array.nchunks:
            raise ValueError("chunks are missing or have the wrong size")
    return arrays


def read_arrays(store: Store, names: set[str]) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of an untrusted group into memory."""
    return {name: np.asarray(array[...]) for name, array in complete_arrays(store, names).items()}


def made_from(location: AnyStore, kind: str, **expected: object) -> bool:
    """Return whether a model or scores exist with these attributes; refuse different ones."""
    store = store_at(location)
    if not store.exists():
        return False
    info = attributes_of(store) or {}
    if differing := [key for key, value in expected.items() if info.get(key) != value]:
        raise DataError(
            f"{store} exists already with another content, or is not a {kind}.zarr: its {listed(differing)} "
            f"{'differs' if len(differing) == 1 else 'differ'}. Choose another path."
        )
    return True
