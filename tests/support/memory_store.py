"""A store in memory that cannot rename folders: objects under prefixes, and pointers created if absent."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import MemoryStore as ZarrStore

from dpdist._util.text import random_token
from dpdist.errors import DataError, ResumableError

OBJECTS: dict[str, dict[str, Buffer]] = {}
"""The objects under each prefix, by their keys."""
POINTERS: dict[str, str] = {}
"""The prefix of each address."""
BEGUN: dict[str, float] = {}
"""Start time of each unpublished prefix."""
UNFINISHED: dict[str, tuple[bytes, str]] = {}
"""Identity and prefix of the unfinished build at each address."""
_LOCKS: dict[str, threading.RLock] = {}


@dataclass(frozen=True)
class MemoryStore:
    """The contents of an address such as ``memory://bucket/rows.zarr``; with a prefix, what a caller builds for it."""

    url: str
    prefix: str | None = None

    def __str__(self) -> str:
        return self.url

    @property
    def parent(self) -> MemoryStore:
        return MemoryStore(self.url.rpartition("/")[0])

    def within(self, name: str) -> MemoryStore:
        return MemoryStore(f"{self.url}/{name}")

    def absolute(self) -> MemoryStore:
        return self

    def address(self, key: str = "") -> str:
        return f"{self.url}/{key}" if key else self.url

    @property
    def scratch_folder(self) -> Path:
        return Path(gettempdir())

    def _objects(self) -> dict[str, Buffer]:
        return OBJECTS.get(self.prefix or POINTERS.get(self.url, ""), {})

    def exists(self, key: str = "") -> bool:
        return key in self._objects() if key else self.url in POINTERS

    def size(self, key: str) -> int | None:
        return len(self.get(key))

    def sizes(self, prefix: str) -> Callable[[str], int | None]:
        assert prefix == "c"
        return self.size

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        try:
            content = self._objects()[key].to_bytes()
        except KeyError:
            raise FileNotFoundError(key) from None
        if len(content) > limit:
            raise OSError(key)
        return content

    def get_range(self, key: str, start: int, length: int) -> bytes:
        content = self.get(key)[start : start + length]
        if len(content) < length:
            raise OSError(key)
        return content

    def opened(self, key: str) -> io.BytesIO:
        return io.BytesIO(self.get(key))

    def list(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        within = f"{prefix}/" if prefix else ""
        return iter([(key, len(content)) for key, content in self._objects().items() if key.startswith(within)])

    def for_zarr(self) -> ZarrStore:
        return ZarrStore(self._objects())

    def require_new(self, noun: str) -> None:
        if self.url in POINTERS:
            raise DataError(f"{self.url} exists already. Choose another address for the {noun}.")

    def require_space(self, size: int, noun: str) -> None:
        assert size >= 0, noun

    @contextmanager
    def staged(
        self,
        noun: str,
        *,
        private: bool = False,
        identity: Callable[[], str] | None = None,
        keys: Callable[[], Iterable[str]] = tuple,
        resume: bytes | None = None,
    ) -> Iterator[Any]:
        assert private in {True, False}
        assert identity is None or identity() == identity()
        self.require_new(noun)
        identity_left, prefix = UNFINISHED.pop(self.url, (None, ""))
        if resume is None or identity_left != resume or prefix not in OBJECTS:
            BEGUN.pop(prefix, None)
            prefix = f"{self.url}.{random_token()}"
            OBJECTS[prefix], BEGUN[prefix] = {}, time.time()
        try:
            yield replace(self, prefix=prefix)
            assert identity is None or set(OBJECTS[prefix]) <= {*keys(), "zarr.json"}
            self._require_own(BEGUN.pop(prefix, None), noun)
            if POINTERS.setdefault(self.url, prefix) != prefix:  # created if absent, last
                self.require_new(noun)
        except BaseException as error:
            if resume is None or not isinstance(error, ResumableError):
                OBJECTS.pop(prefix, None)
            else:
                UNFINISHED[self.url] = resume, prefix
            raise

    def _require_own(self, begun: float | None, noun: str) -> None:
        if begun is None:
            raise ResumableError(f"Another process changed the {noun} {self}")

    def flush(self, keys: Iterable[str]) -> None:
        assert set(keys) <= set(self._objects())

    def drop(self, prefix: str) -> None:
        for key, _ in self.list(prefix):
            del self._objects()[key]

    def put(self, key: str, content: bytes | memoryview) -> None:
        objects = OBJECTS.setdefault(self.prefix or POINTERS[self.url], {})  # a prefix exists if an object does
        objects[key] = default_buffer_prototype().buffer.from_bytes(bytes(content))

    def replace(
        self, key: str, content: bytes, noun: str, *, private: bool = False, expected: bytes | None = None
    ) -> None:
        assert private in {True, False}, noun
        if expected is not None and self.get(key) != expected:
            raise ResumableError(f"Another process changed the {noun} {self}")
        self.put(key, content)

    def delete(self) -> None:
        OBJECTS.pop(POINTERS.pop(self.url, ""), None)

    def clean(self, age: float = 86400.0) -> tuple[str, ...]:
        removed = [
            each for each, begun in BEGUN.items() if each.startswith(f"{self.url}.") and time.time() - begun >= age
        ]
        for prefix in removed:
            del OBJECTS[prefix], BEGUN[prefix]
        return tuple(removed)

    def locked(self) -> AbstractContextManager[Any]:
        return _LOCKS.setdefault(self.url, threading.RLock())
