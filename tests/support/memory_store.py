"""The object store of dpdist on a bucket in the memory of this process, instead of a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import obstore
from obstore.store import MemoryStore as Bucket
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore as ZarrStore

from dpdist.core.storage.atomic import Content
from dpdist.core.storage.objects import ObjectStore

BUCKET = Bucket()


class Objects:
    """The objects of the bucket."""

    def values(self) -> list[str]:
        return [entry["path"] for page in obstore.list(BUCKET) for entry in page]

    def clear(self) -> None:
        obstore.delete(BUCKET, self.values())


OBJECTS = Objects()


class MemoryStore(ObjectStore):
    """The contents of an address such as ``memory://bucket/rows.zarr``."""

    def __post_init__(self) -> None:
        """Accept this scheme."""

    def _connection(self, prefix: str = "") -> Any:
        assert not prefix
        return BUCKET

    def _require_conditional(self) -> None:
        """Ask for nothing: the bucket writes on conditions."""

    def put(self, key: str, content: Content) -> None:
        # the bucket keeps what it is given, and a writer uses its buffer again
        super().put(key, b"".join(content) if isinstance(content, Iterator) else bytes(content))

    def for_zarr(self) -> Any:
        found = {key: default_buffer_prototype().buffer.from_bytes(self.get(key)) for key, _ in self.list()}
        return ZarrStore(found, read_only=True)
