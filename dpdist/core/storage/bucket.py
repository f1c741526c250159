"""Objects in a bucket at ``s3://``, ``gs://`` or ``az://``, read and written with obstore.

**Credentials** come from the environment variables of obstore or from the role of the machine. Addresses, messages and
pickles contain none. Each process opens its connection on first use.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Self, TypeVar

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import ObjectStore as ZarrStore
from zarr.storage import WrapperStore

from dpdist.core.errors import DataError, DpdistError, ResumableError, UsageError
from dpdist.core.storage import connections
from dpdist.core.storage.atomic import MOST_AT_ONCE, Content
from dpdist.core.storage.connections import kind_of, mentions, obstore, send_request
from dpdist.core.text import random_token

T = TypeVar("T")
POINTER = "dpdist-pointer/1"
ROOT = "zarr.json"
_WHOLE = 64 << 20
"""Bytes sent in one request; larger objects are sent in parts of this size."""
_CREATES = "create an object only if it is absent (If-None-Match: *)"
_REPLACES = "replace an object only if it is unchanged (If-Match)"
_CHUNK = 1 << 20
"""Least bytes that a stream reads from the connection at a time."""


@dataclass(frozen=True)
class Objects:
    """An address in an object store, and the objects below it."""

    url: str
    folder: str | None = field(default=None, compare=False, repr=False)
    """Key of the folder of its objects if it is being built, or its pointer has been followed."""
    root: str | None = field(default=None, compare=False, repr=False)
    """Key of its future root object while it is being built under a lease."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", connections.plain_address(self.url))

    def __str__(self) -> str:
        return self.url

    @property
    def _key(self) -> str:
        return self.url.partition("://")[2].partition("/")[2]

    def _connection(self, prefix: str = "") -> Any:
        scheme, _, rest = self.url.partition("://")
        return connections.connection(scheme, rest.partition("/")[0], prefix)

    @property
    def parent(self) -> Self:
        return type(self)(self.url.rpartition("/")[0] if self._key else self.url)

    def within(self, name: str) -> Self:
        return type(self)(f"{self.url}/{name}")

    def absolute(self) -> Self:
        """Follow the pointer, so that later changes at the address have no effect."""
        return self if self.folder is not None or not self.exists() else replace(self, folder=self._folder())

    def address(self, key: str = "") -> str:
        return f"{self.url}/{key}" if key else self.url

    @property
    def scratch_folder(self) -> Path:
        return Path(gettempdir())

    # --- reading ---

    def _folder(self) -> str:
        """Return the key of the folder of its objects, following the pointer if there is one."""
        if self.folder is not None:
            return self.folder
        try:
            pointer = json.loads(self._get(joined(self._key, ROOT)))["attributes"]["dpdist"]
            prefix = str(pointer["prefix"]) if pointer["format"] == POINTER else ""
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return self._key
        return joined(self._key, prefix) if re.fullmatch(r"[0-9a-f]{32}", prefix) else self._key

    def _path(self, key: str) -> str:
        return self.root if key == ROOT and self.root is not None else joined(self._folder(), key)

    def _request(self, path: str, request: Callable[[], T]) -> T:
        return send_request("/".join((*self.url.split("/")[:3], path)), request)

    def _get(self, path: str, limit: int = MOST_AT_ONCE) -> bytes:
        def fetched() -> bytes:
            answer = obstore().get(self._connection(), path)
            if answer.meta["size"] > limit:
                raise OSError(errno.EFBIG, f"it is larger than {limit >> 20} MiB")
            return bytes(answer.bytes())

        return self._request(path, fetched)

    def _head(self, path: str) -> dict[str, Any]:
        head: dict[str, Any] = self._request(path, lambda: obstore().head(self._connection(), path))
        return head

    def exists(self, key: str = "") -> bool:
        """Return whether the root object exists, or the object ``key``; a known folder exists."""
        try:
            self._head(self._path(key) if key else joined(self.folder or self._key, ROOT))
        except OSError:
            return not key and self.folder is not None
        return True

    def size(self, key: str) -> int:
        return int(self._head(self._path(key))["size"])

    def version(self, key: str) -> str:
        """Return text that changes with an object."""
        return str(self._version(self._path(key)))

    def sizes(self, prefix: str) -> Callable[[str], int]:
        """List the objects below a prefix, and return a function that looks up their sizes."""
        sizes = dict(self.list(prefix))
        return lambda key: sizes[key] if key in sizes else self.size(key)

    def get(self, key: str, limit: int = MOST_AT_ONCE) -> bytes:
        return self._get(self._path(key), limit)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        path = self._path(key)
        if start + length > self._head(path)["size"]:
            raise OSError(errno.EINVAL, "it is shorter")
        content = self._request(
            path, lambda: bytes(obstore().get_range(self._connection(), path, start=start, length=length))
        )
        if len(content) < length:  # replaced meanwhile
            raise OSError(errno.EINVAL, "it is shorter")
        return content

    def opened(self, key: str) -> AbstractContextManager[Stream]:
        path = self._path(key)
        chunks = self._request(
            path, lambda: iter(obstore().get(self._connection(), path).stream(min_chunk_size=_CHUNK))
        )
        return nullcontext(Stream(lambda: self._request(path, lambda: next(chunks, None))))

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        folder = self._folder()
        entries = self._entries(joined(folder, prefix))
        return ((entry["path"].removeprefix(folder).lstrip("/"), entry["size"]) for entry in entries)

    def _entries(self, folder: str) -> Iterator[dict[str, Any]]:
        pages = send_request(self.url, lambda: iter(obstore().list(self._connection(), folder or None)))
        while (page := send_request(self.url, lambda: next(pages, None))) is not None:
            yield from page

    def for_zarr(self) -> _ZarrObjects:
        return _ZarrObjects(ZarrStore(self._connection(self._folder())), self.url)

    # --- writing ---

    def _require_name(self, noun: str) -> None:
        if not self._key:
            raise UsageError(f"{self} is a whole bucket. Name an address in it, such as {self}/{noun}.zarr.")

    def _require_conditional(self) -> None:
        _require_conditional(self.parent, connections.settings(self.url.partition("://")[0]), os.getpid())

    def _create(self, path: str, content: bytes, noun: str) -> bool:
        """Create an object if absent; return whether it now exists with this content."""
        error = self._try_put(path, content, mode="create")
        if error is None:
            return True
        if kind_of(error) != "AlreadyExistsError":
            raise self._write_error(error, noun)
        with suppress(OSError):  # a repeated request finds its own object
            return self._get(path) == content
        return False

    @contextmanager
    def _probe(self) -> Iterator[str]:
        """Yield the path of a probe object, which is removed at the end."""
        path = joined(self._key, f".dpdist-probe-{random_token()}")
        try:
            yield path
        finally:
            self._try_remove(path)

    def clock(self) -> datetime:
        """Return the time of the store, which measures the age of objects."""
        with self._probe() as path:
            if (error := self._try_put(path, b"1", mode="create")) is not None:
                raise self._write_error(error, "a probe")
            now: datetime = self._head(path)["last_modified"]
        return now

    def missing_feature(self) -> str | None:
        """Return the conditional write that publishing needs and the store lacks, or None."""
        with self._probe() as path:
            created = self._try_put(path, b"1", mode="create")
            if kind_of(created) == "NotSupportedError" or (created is not None and mentions(created, "NotImplemented")):
                return _CREATES
            if created is not None:
                raise self._write_error(created, "a probe")
            again = self._try_put(path, b"2", mode="create")
            if kind_of(again) != "AlreadyExistsError" or self._get(path) != b"1":
                return _CREATES
            first = self._version(path)
            if self._try_put(path, b"3", mode=first) is not None or self._get(path) != b"3":
                return _REPLACES
            if kind_of(self._try_put(path, b"4", mode=first)) != "PreconditionError" or self._get(path) != b"3":
                return _REPLACES
        return None

    def flush(self, keys: Iterable[str]) -> None:
        """Do nothing: objects are durable once sent."""

    def drop(self, prefix: str) -> None:
        self._remove(joined(self._folder(), prefix))

    def _remove(self, folder: str) -> None:
        if paths := [entry["path"] for entry in self._entries(folder)]:
            send_request(self.url, lambda: obstore().delete(self._connection(), paths))

    def _remove_object(self, path: str) -> None:
        with suppress(FileNotFoundError):
            send_request(self.url, lambda: obstore().delete(self._connection(), path))

    def _try_remove(self, path: str) -> None:
        with suppress(DpdistError, OSError):
            self._remove_object(path)

    def _try_put(self, path: str, content: Content, **options: Any) -> Exception | None:
        try:
            obstore().put(self._connection(), path, content, **options)
        except DpdistError:
            raise
        except Exception as error:  # noqa: BLE001 - the caller reports it
            return error
        return None

    def _write_error(self, error: Exception, noun: str) -> DpdistError:
        if isinstance(error, FileNotFoundError):
            return connections.no_bucket(self.url)
        return connections.failure(error, self.url, f"written ({noun})")

    def put(self, key: str, content: Content) -> None:
        whole = not isinstance(content, Iterator) and len(content) <= _WHOLE
        options: dict[str, Any] = {"use_multipart": False} if whole else {"chunk_size": _WHOLE}
        if (error := self._try_put(self._path(key), content, **options)) is not None:
            raise self._write_error(error, key)

    def replace(
        self,
        key: str,
        content: bytes,
        noun: str,
        *,
        private: bool = False,  # noqa: ARG002 - as in staged
        expected: bytes | None = None,
    ) -> None:
        """Replace an object; ``expected`` is compared here, and its entity tag by the store."""
        path, options = self._path(key), {}
        if expected is not None:
            self._require_conditional()  # this process may use another endpoint than the creator
            version = self._version(path)  # read before comparing: later changes have another version
            if self._get(path) != expected:
                raise changed(self, noun)
            options = {"mode": version}
        error = self._try_put(path, content, **options)
        if kind_of(error) == "PreconditionError":
            if self._get(path) != content:  # otherwise a repeated request, as in _create
                raise changed(self, noun)
        elif error is not None:
            raise self._write_error(error, noun)

    def _version(self, path: str) -> dict[str, str]:
        head = self._head(path)
        return {name: head[name] for name in ("e_tag", "version") if head[name] is not None}


class Stream:
    """The bytes of an object as a stream."""

    def __init__(self, following: Callable[[], Any]) -> None:
        self._next_chunk = following
        self._buffered = memoryview(b"")

    def readinto(self, buffer: memoryview) -> int:
        filled, buffer = 0, buffer.cast("B")
        while filled < len(buffer):
            if not self._buffered:
                chunk = self._next_chunk()
                if chunk is None:
                    break
                self._buffered = memoryview(chunk)
            part = self._buffered[: len(buffer) - filled]
            buffer[filled : filled + len(part)] = part
            filled += len(part)
            self._buffered = self._buffered[len(part) :]
        return filled


def joined(folder: str, key: str) -> str:
    """Return the key of an object in a folder."""
    return f"{folder}/{key}" if folder and key else folder or key


def changed(store: Objects, noun: str) -> ResumableError:
    """Return the error for an object that another process was faster to replace."""
    return ResumableError(
        f"Another process changed the {noun} at {store}. Nothing was written. Run the same command again."
    )


@lru_cache(maxsize=64)
def _require_conditional(folder: Objects, _settings: tuple[tuple[str, str], ...], _process: int) -> None:
    """Refuse a store without conditional writes; tested once per folder and process."""
    missing_feature = folder.missing_feature()
    if missing_feature is not None:
        raise DataError(
            f"The store of {folder} does not {missing_feature}, so two commands at once could publish different "
            "releases at one address, or give rows two budgets. Use a store that does, such as Amazon S3, Google Cloud "
            "Storage or Azure Blob Storage, or a folder."
        )


class _ZarrObjects(WrapperStore[ZarrStore[Any]]):
    """Zarr's object store, with the errors of dpdist."""

    def __init__(self, store: ZarrStore[Any], url: str) -> None:
        super().__init__(store)
        self._url = url

    def _with_store(self, store: ZarrStore[Any]) -> Self:
        return type(self)(store, self._url)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        return await self._translated(super().get(key, prototype, byte_range), "read")

    async def exists(self, key: str) -> bool:
        return await self._translated(super().exists(key), "read")

    async def set(self, key: str, value: Buffer) -> None:
        await self._translated(super().set(key, value), "written")

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        names = super().list_dir(prefix)
        while (name := await self._translated(anext(names, None), "read")) is not None:
            yield name

    async def _translated(self, request: Awaitable[T], action: str) -> T:
        """Await a request, and translate its errors."""
        try:
            return await request
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - as in connections.send_request
            translated = connections.failure(error, self._url, action)
        raise translated
