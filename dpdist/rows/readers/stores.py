"""Reader of Zarr stores, of either format: an array of rows, or one array of a group.

A chunk that is not there is read as its fill value, as Zarr means it: such a store does not say what it has lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import zarr

from dpdist.errors import DataError, RefusedError
from dpdist.rows.readers.base import attempt
from dpdist.rows.readers.chunked import Chunked, Layout, only

MARKS = ("zarr.json", ".zarray", ".zgroup")
"""Files of which one is at the root of every store."""
_METADATA = frozenset({*MARKS, ".zattrs", ".zmetadata"})
_PARTS = 1 << 24
"""Chunks of a shard at most: their places are read together."""


@contextmanager
def opened(path: Any) -> Iterator[Any]:
    """Give the array or group at a place, local or in an object store."""
    with zarr.config.set({"async.concurrency": 2}):  # so many unpacked chunks at a time
        yield zarr.open(path if isinstance(path, Path) else path.address, mode="r")


def is_anndata(path: Any) -> bool:
    """Tell whether a store says that it is AnnData; a damaged one does not."""
    try:
        return bool(attempt(path, lambda: _says_anndata(path)))
    except DataError:
        return False


def _says_anndata(path: Any) -> bool:
    with opened(path) as root:
        return isinstance(root, zarr.Group) and _is_anndata(root)


def _is_anndata(group: zarr.Group) -> bool:
    return group.attrs.get("encoding-type") == "anndata"


def holds_values(path: Any, place: str = "") -> bool:
    """Tell whether any chunk of an array in a store is there."""
    for name in place.split("/") if place else ():
        path = path / name
    entries = [path]
    while entries:
        for entry in entries.pop().iterdir():
            if entry.is_dir():
                entries.append(entry)
            elif entry.name not in _METADATA:
                return True
    return False


class Store(Chunked):
    """A Zarr array, or the array of a group that ``--variable`` names or that is the only one."""

    takes = ("variable",)

    @cached_property
    def _place(self) -> str | None:
        """Path of the array in the group; None: the store is the array."""

        def read() -> tuple[bool, bool, dict[str, tuple[int, ...]], list[str]]:
            with opened(self.path) as root:
                if isinstance(root, zarr.Array):
                    return "dpdist" in root.attrs, True, {"": root.shape}, []
                members = dict(sorted(root.members(max_depth=None)))
                inner = [name for name, each in members.items() if isinstance(each, zarr.Group) and _is_anndata(each)]
                arrays = {
                    name: each.shape
                    for name, each in members.items()
                    if isinstance(each, zarr.Array)
                    and each.ndim > 1
                    and not any(name.startswith(f"{other}/") for other in inner)
                }
                return "dpdist" in root.attrs, False, arrays, inner

        ours, alone, found, inner = attempt(self.path, read)
        if ours:
            raise RefusedError(
                f"{self.path} was made by dpdist. Its rows have a budget already, and a copy would have one more to "
                "spend: use them where they are, or ingest their source."
            )
        if inner and self.choices.variable not in found:
            # what stands beside X in AnnData was computed from all rows, and X is not told from it by its shape
            raise DataError(f"{self.path} holds AnnData. Ingest one of it by itself, such as {self.path / inner[0]}.")
        if alone and self.choices.variable is None:
            return None
        return only(self.path, found, self.choices.variable, "array")

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with opened(self.path) as root:
            yield root if self._place is None else root[self._place]

    @cached_property
    def _layout(self) -> Layout:
        def read() -> Layout:
            with self._opened() as array:
                if array.shards and math.prod(array.shards) > _PARTS * math.prod(array.chunks):
                    raise ValueError
                stored = holds_values(self.path, self._place or "")
                return Layout(array.shape, array.dtype, tuple(map(min, array.chunks, array.shape)), stored)

        return attempt(self.path, read)
