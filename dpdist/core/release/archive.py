"""Archives of releases: drawn, committed and published with one band in memory at a time.

A release is committed as one plain tar file and published by unpacking it, so all publications of an id are identical
to the byte, whatever the installed library versions. Each band of the noisy moment is stored as square tiles and their
mirror images.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator
from functools import partial
from typing import IO

import numpy as np
import numpy.typing as npt
import zarr
from msgspec import convert
from zarr.storage import MemoryStore

from dpdist.core import triangle
from dpdist.core.errors import DataError
from dpdist.core.ledger.journal import digest_of_file
from dpdist.core.release.artefact import Heading, Release, release_of
from dpdist.core.release.attributes import Attributes
from dpdist.core.rows.bounding import RowBound
from dpdist.core.storage.arrays import Array, array_options, put_array
from dpdist.core.storage.atomic import make_once
from dpdist.core.storage.store import AnyStore, store_at
from dpdist.core.triangle import Band, Triangle

Bands = Iterable[tuple[Band, Triangle]]
"""The packed bands of a noisy moment, int64 lattice units, from the first row to the last."""


def archived(heading: Heading, answer: npt.NDArray[np.float64] | Bands) -> Iterator[bytes]:
    """Yield the archive of a release in parts; a public n is set exactly in the corner of an augmented matrix."""
    store = MemoryStore()
    group = zarr.create_group(store=store, zarr_format=3, attributes={"dpdist": heading.attributes()})
    if isinstance(answer, np.ndarray):
        put_array(group, "components", answer.astype(np.float64, copy=False))
    else:
        yield from _matrices(heading, answer, store, group)
    yield from tarred(store)


def tarred(store: MemoryStore) -> Iterator[bytes]:
    """Yield the files that are left in a store, and the end of the archive."""
    yield from _files(store)
    yield bytes(2 * tarfile.BLOCKSIZE)


def packed(heading: Heading, answer: npt.NDArray[np.float64] | Bands) -> Iterator[bytes]:
    """Yield a release that is kept in memory, in parts: its attributes, and the triangle of the matrix."""
    shape = list(answer.shape) if isinstance(answer, np.ndarray) else None
    described = json.dumps({"attributes": heading.attributes(), "shape": shape}).encode()
    yield len(described).to_bytes(8, "little") + described
    if isinstance(answer, np.ndarray):
        yield answer.astype(np.float64, copy=False).tobytes()
        return
    for band, values in answer:
        if band.stop == band.size and heading.corner is not None:
            values[-1] = heading.corner
        yield values.astype(np.int64, copy=False).tobytes()


def unpacked_release(content: bytes) -> Release:
    """Return the release that :func:`packed` describes."""
    end = 8 + int.from_bytes(content[:8], "little")
    described = json.loads(content[8:end])
    attributes = convert(described["attributes"], Attributes)
    if described["shape"] is not None:
        return release_of(attributes, np.frombuffer(content, np.float64, offset=end).reshape(described["shape"]).copy())
    values = np.frombuffer(content, np.int64, offset=end)
    return release_of(attributes, triangle.unpacked(values, RowBound.from_json(attributes.bound).width))


def _matrices(heading: Heading, bands: Bands, store: MemoryStore, group: zarr.Group) -> Iterator[bytes]:
    bound = heading.bound
    lattice = _tiled(group, "lattice", bound.width, np.int64)
    plain = not heading.weights  # with weights the integers are not a second moment, and are stored alone
    moment = _tiled(group, "second_moment", bound.columns, np.float64) if plain else None
    row_sum = np.empty(bound.columns)
    if bound.constant and plain:
        shape = row_sum.shape
        stored_sum = group.create_array(name="row_sum", shape=shape, chunks=shape, **array_options(row_sum.dtype))
    drawn = 0
    for band, values in bands:
        if (band.start, band.size) != (drawn, bound.width):
            raise AssertionError("bands come from the first row to the last")
        drawn = band.stop
        if drawn == band.size and heading.corner is not None:
            values[-1] = heading.corner
        for rows, columns in band.tiles():
            tile = band.block(values, rows, columns)
            _put(lattice, rows, columns, tile)
            if moment is not None:
                # a product, because the last bit of **2 is that of the platform
                _put(moment, rows, columns, tile * (bound.unit * bound.unit))
            if columns.stop > bound.columns:  # the appended column
                sums = tile[: max(0, bound.columns - rows.start), -1]
                row_sum[rows.start : rows.start + sums.size] = sums * heading.row_sum_step
            yield from _files(store)
        del values  # free the band before the next one
    if drawn != bound.width:
        raise AssertionError("a band is missing")
    if bound.constant and plain:
        stored_sum[:] = row_sum
        yield from _files(store)


def _tiled(group: zarr.Group, name: str, size: int, dtype: npt.DTypeLike) -> Array:
    side = min(size, triangle.TILE)
    return group.create_array(name=name, shape=(size, size), chunks=(side, side), **array_options(dtype))


def _put(array: Array, rows: range, columns: range, tile: npt.NDArray[np.generic]) -> None:
    """Write a tile and its mirror image, up to the size of the array."""
    tile = tile[: max(0, array.shape[0] - rows.start), : max(0, array.shape[1] - columns.start)]
    if tile.size:
        block = slice(rows.start, rows.start + tile.shape[0]), slice(columns.start, columns.start + tile.shape[1])
        array[block] = tile
        if rows.start != columns.start:
            array[block[::-1]] = tile.T


def _files(store: MemoryStore) -> Iterator[bytes]:
    """Remove the files from a store, and yield each as a member of a tar file."""
    files = store._store_dict  # noqa: SLF001 - the mapping it was given to fill
    for key in sorted(files):
        content = files.pop(key).to_bytes()
        info = tarfile.TarInfo(key)
        info.size = len(content)
        yield info.tobuf(tarfile.USTAR_FORMAT)
        yield content
        yield bytes(-len(content) % tarfile.BLOCKSIZE)


def publish(archive: IO[bytes], target: AnyStore, *, private: bool = False) -> None:
    """Unpack an archive to target atomically, and flush it; identical bytes at target stay as they are."""
    store, names = store_at(target), list[str]()

    def unpack() -> None:
        digest = partial(_digest, archive)
        with store.staged("release", private=private, identity=digest, keys=lambda: names) as staging:
            for name, content in _members(archive):
                staging.put(name, content)
                names.append(name)

    make_once(partial(holds, store, archive), unpack)


def _digest(archive: IO[bytes]) -> str:
    archive.seek(0)
    return digest_of_file(archive)


def holds(target: AnyStore, archive: IO[bytes]) -> bool:
    """Whether target equals, to the byte, what the archive publishes."""
    store = store_at(target)
    remaining = dict(store.list())
    for name, content in _members(archive):
        if remaining.pop(name, None) != len(content) or store.get(name) != content:
            return False
    return not remaining


def _members(archive: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of an archive."""
    archive.seek(0)
    with tarfile.open(fileobj=archive, mode="r:") as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is None:
                raise DataError(
                    f"The archive of the release contains {member.name}, which is not a file. Restore the ledger "
                    "from a copy."
                )
            yield member.name, file.read()
