"""Reader of Zarr stores, of either format: an array of rows, or one array of a group.

A chunk that is not there is read as its fill value, as Zarr means it: such a store does not say what it has lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import zarr

from dpdist.errors import RefusedError
from dpdist.rows.readers.base import attempt
from dpdist.rows.readers.chunked import Chunked, Layout, only

MARKS = ("zarr.json", ".zarray", ".zgroup")
"""Files of which one is at the root of every store."""


class Store(Chunked):
    """A Zarr array, or the array of a group that ``--variable`` names or that is the only one."""

    takes = ("variable",)

    def _root(self) -> Any:
        return zarr.open(self.path if isinstance(self.path, Path) else self.path.address, mode="r")

    @cached_property
    def _place(self) -> str | None:
        """Path of the array in the group; None: the store is the array."""

        def read() -> tuple[bool, bool, dict[str, tuple[int, ...]]]:
            root = self._root()
            if isinstance(root, zarr.Array):
                return "dpdist" in root.attrs, True, {"": root.shape}
            arrays = {
                name: member.shape
                for name, member in root.members(max_depth=None)
                if isinstance(member, zarr.Array) and member.ndim > 1
            }
            return "dpdist" in root.attrs, False, dict(sorted(arrays.items()))

        ours, alone, found = attempt(self.path, read)
        if ours:
            raise RefusedError(
                f"{self.path} was made by dpdist. Its rows have a budget already, and a copy would have one more to "
                "spend: use them where they are, or ingest their source."
            )
        if alone and self.choices.variable is None:
            return None
        return only(self.path, found, self.choices.variable, "array")

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with zarr.config.set({"async.concurrency": 2}):  # so many unpacked chunks at a time
            root = self._root()
            yield root if self._place is None else root[self._place]

    @cached_property
    def _layout(self) -> Layout:
        def read() -> Layout:
            with self._opened() as array:
                return Layout(array.shape, array.dtype, tuple(map(min, array.chunks, array.shape)))

        return attempt(self.path, read)
