"""What Zarr reads and writes an object store by: zarr's own store over obstore, whose faults are told as ours.

It is imported for object stores alone, which need a newer Zarr than folders do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Self, TypeVar

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import ObjectStore, WrapperStore

from dpdist.storage.connections import failure

T = TypeVar("T")


class ZarrObjects(WrapperStore[ObjectStore[Any]]):
    """A folder of a bucket."""

    def __init__(self, store: ObjectStore[Any], url: str) -> None:
        super().__init__(store)
        self._url = url

    def _with_store(self, store: ObjectStore[Any]) -> Self:
        return type(self)(store, self._url)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Read an object, or None."""
        return await self._told(super().get(key, prototype, byte_range), "read")

    async def exists(self, key: str) -> bool:
        """Say whether an object is there."""
        return await self._told(super().exists(key), "read")

    async def set(self, key: str, value: Buffer) -> None:
        """Write an object."""
        await self._told(super().set(key, value), "written")

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield what stands below a prefix."""
        names = super().list_dir(prefix)
        while (name := await self._told(anext(names, None), "read")) is not None:
            yield name

    async def _told(self, question: Awaitable[T], how: str) -> T:
        """Wait for an answer."""
        try:
            return await question
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - as in connections.asked
            wrong = failure(error, self._url, how)
        raise wrong
