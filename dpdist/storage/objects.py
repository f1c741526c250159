"""Object stores: rows, scores, models, releases and reports at ``s3://``, ``gs://`` and ``az://``, with obstore.

Object stores cannot rename folders. Instead, one object that is created last, if absent, publishes everything.

**Rows** are written under a prefix of their own and found through a pointer::

    rows.zarr/zarr.json                  the pointer: a Zarr group whose attributes name the prefix
    rows.zarr/3f0c.../zarr.json, c/0/0   the rows, which plain zarr reads as the array 3f0c... of that group
    rows.zarr/3f0c....attempt            marks the prefix as being built until the pointer exists

A dead builder leaves a prefix that no pointer names. Before a cleaner removes it, and before a builder creates the
pointer, each replaces the attempt object if it is unchanged. The second of the two fails and gives up. A prefix without
an attempt object is not removed. Ages are measured by the clock of the store.

**Releases, models and scores** keep the keys of Zarr, so that plain zarr reads them. An identity, known in advance,
determines their content::

    release.zarr.lease                   the identity, created if absent, first
    release.zarr.root                    the future zarr.json, while the rest is built
    release.zarr/lattice/c/0/0 ...       the rest
    release.zarr/zarr.json               created if absent, last

Builders of one identity write the same objects, concurrently or one after another, so they may overwrite them. A lease
of another identity is refused. The lease is never removed, because a builder that has just checked that there is no
release could otherwise start another one over it.

**Credentials** come from the environment variables of obstore or from the role of the machine. Addresses, messages and
pickles contain none. Each process opens its connection on first use.
"""

from __future__ import annotations

import errno
import hashlib
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

from dpdist._util.text import random_token
from dpdist.errors import DataError, DpdistError, ResumableError, UsageError
from dpdist.storage import connections
from dpdist.storage.connections import kind_of, mentions, obstore, send_request
from dpdist.storage.store import ABANDONED_SECONDS, MOST_AT_ONCE, Store

T = TypeVar("T")
POINTER = "dpdist-pointer/1"
LEASE = "dpdist-lease/1"
_ROOT = "zarr.json"
_ATTEMPT = ".attempt"
_BUILDING, _PUBLISHING, _REMOVING = (b"dpdist-attempt/1 " + word for word in (b"building", b"publishing", b"removing"))
_WHOLE = 64 << 20
"""Bytes sent in one request; larger objects are sent in parts of this size."""
_CREATES = "create an object only if it is absent (If-None-Match: *)"
_REPLACES = "replace an object only if it is unchanged (If-Match)"
_CHUNK = 1 << 20
"""Least bytes that a stream reads from the connection at a time."""


@dataclass(frozen=True)
class ObjectStore:
    """An address in an object store, with the methods of :class:`~dpdist.storage.store.FolderStore`."""

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
    def parent(self) -> ObjectStore:
        return ObjectStore(self.url.rpartition("/")[0] if self._key else self.url)

    def within(self, name: str) -> ObjectStore:
        return ObjectStore(f"{self.url}/{name}")

    def absolute(self) -> ObjectStore:
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
            pointer = json.loads(self._get(_joined(self._key, _ROOT)))["attributes"]["dpdist"]
            prefix = str(pointer["prefix"]) if pointer["format"] == POINTER else ""
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return self._key
        return _joined(self._key, prefix) if re.fullmatch(r"[0-9a-f]{32}", prefix) else self._key

    def _path(self, key: str) -> str:
        return self.root if key == _ROOT and self.root is not None else _joined(self._folder(), key)

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
            self._head(self._path(key) if key else _joined(self.folder or self._key, _ROOT))
        except OSError:
            return not key and self.folder is not None
        return True

    def size(self, key: str) -> int:
        return int(self._head(self._path(key))["size"])

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
        entries = self._entries(_joined(folder, prefix))
        return ((entry["path"].removeprefix(folder).lstrip("/"), entry["size"]) for entry in entries)

    def _entries(self, folder: str) -> Iterator[dict[str, Any]]:
        pages = send_request(self.url, lambda: iter(obstore().list(self._connection(), folder or None)))
        while (page := send_request(self.url, lambda: next(pages, None))) is not None:
            yield from page

    def for_zarr(self) -> _ZarrObjects:
        return _ZarrObjects(ZarrStore(self._connection(self._folder())), self.url)

    # --- publishing ---

    def require_new(self, noun: str) -> None:
        """Refuse an address that exists, and a store without conditional writes."""
        self._require_name(noun)
        if self.exists():
            raise DataError(f"{self} exists already. Choose another address for the {noun}.")
        self._require_conditional()

    def _require_name(self, noun: str) -> None:
        if not self._key:
            raise UsageError(f"{self} is a whole bucket. Name an address in it, such as {self}/{noun}.zarr.")

    def _require_conditional(self) -> None:
        _require_conditional(self.parent, connections.settings(self.url.partition("://")[0]), os.getpid())

    def require_space(self, size: int, noun: str) -> None:
        """Accept any size: stores do not report free space."""

    @contextmanager
    def staged(
        self,
        noun: str,
        *,
        private: bool = False,  # noqa: ARG002 - the owner of the store sets permissions
        identity: Callable[[], str] | None = None,
        keys: Callable[[], Iterable[str]] = tuple,
        resume: bytes | None = None,
    ) -> Iterator[Store]:
        """Yield a store to build in: a prefix of its own or, with an identity, the address under a lease."""
        if identity is not None:
            self.require_new(noun)
        with self._prefixed(noun, resume) if identity is None else self._leased(noun, identity(), keys) as staging:
            yield staging

    @contextmanager
    def _prefixed(self, noun: str, resume: bytes | None) -> Iterator[ObjectStore]:
        """Yield a prefix; at the end create its pointer, or remove it on an error unless it can be resumed.

        A note on this machine records what can be resumed, under a lock. Other machines use prefixes of their own.
        """
        holding = nullcontext() if resume is None else connections.locked_here(f"{self.url}.unfinished")
        with holding as note:
            self.require_new(noun)
            token = self._claim(noun, note, hashlib.sha256(resume or b"").hexdigest())
            staging = replace(self, folder=_joined(self._key, token))
            try:
                yield staging
                try:
                    if self._state(token) != _PUBLISHING:  # unless a builder died after this
                        self._set_state(token, _PUBLISHING, noun)
                except OSError:
                    raise _changed(self, noun) from None  # a cleaner removed it as abandoned
            except BaseException as error:
                if resume is None or not isinstance(error, ResumableError):
                    with suppress(DpdistError):
                        self._discard(token)
                raise
            pointer = {
                "attributes": {"dpdist": {"format": POINTER, "prefix": token}}, "zarr_format": 3, "node_type": "group",
            }  # fmt: skip
            # if this fails the prefix stays: the pointer may have been created
            published = self._create(_joined(self._key, _ROOT), json.dumps(pointer, indent=2).encode(), noun)
            if not published:
                staging.delete()
            self._try_remove(self._attempt(token))
            if not published:
                raise self._lost_race(noun)
            if note is not None:
                _write_note(note, "")

    def _claim(self, noun: str, note: int | None, digest: str) -> str:
        """Return the token of the prefix to build in: that of the same content in the note, or a new one."""
        if note is not None:
            unfinished = re.fullmatch(rb"([0-9a-f]{64}) ([0-9a-f]{32})", os.pread(note, 128, 0))
            if unfinished is not None:
                before, token = unfinished[1].decode(), unfinished[2].decode()
                with suppress(OSError):  # removed
                    if before == digest and self._state(token) in {_BUILDING, _PUBLISHING}:
                        return token
                self._discard(token)  # no builder is left
        token = random_token()
        if note is not None:
            _write_note(note, f"{digest} {token}")
        self._create(self._attempt(token), _BUILDING, noun)
        return token

    def _attempt(self, token: str) -> str:
        """Return the path of the object that marks a prefix as being built."""
        return _joined(self._key, f"{token}{_ATTEMPT}")

    def _state(self, token: str) -> bytes:
        return self._get(self._attempt(token), 1 << 10)

    def _set_state(self, token: str, state: bytes, noun: str) -> None:
        """Move the attempt from building to a state; OSError or ResumableError if another process was faster."""
        replace(self, folder=self._key).replace(f"{token}{_ATTEMPT}", state, noun, expected=_BUILDING)

    def _discard(self, token: str) -> None:
        replace(self, folder=_joined(self._key, token)).delete()
        self._remove_object(self._attempt(token))

    @contextmanager
    def _leased(self, noun: str, identity: str, keys: Callable[[], Iterable[str]]) -> Iterator[ObjectStore]:
        """Yield the address itself if its lease has this identity; create the root object at the end."""
        lease, root = f"{self._key}.lease", f"{self._key}.root"
        if not self._create(lease, json.dumps({"format": LEASE, "identity": identity}).encode(), noun):
            raise DataError(
                f"According to its lease ({self.url}.lease), {self} was started as another {noun}. If no other process "
                "is writing it, remove the lease and all objects below that address. Otherwise choose another address."
            )
        staging = replace(self, folder=self._key, root=root)
        yield staging
        try:
            content = self._get(root)
        except OSError:  # another builder of the same identity was faster
            raise self._lost_race(noun) from None
        foreign = {key for key, _ in staging.list()}.difference(keys(), [_ROOT])
        if foreign:  # readers would take them for a part of it
            raise DataError(
                f"There are objects at {self} that are not part of the {noun}, such as {min(foreign)!r}. Remove them "
                "and run the same command again, or choose another address."
            )
        published = self._create(_joined(self._key, _ROOT), content, noun)
        self._try_remove(root)
        if not published:
            raise self._lost_race(noun)

    def _lost_race(self, noun: str) -> DpdistError:
        if self.exists():
            return DataError(f"{self} exists already. Choose another address for the {noun}.")
        return _changed(self, noun)

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

    # --- cleaning ---

    def clean(self, age: float = ABANDONED_SECONDS) -> tuple[str, ...]:
        """Remove abandoned prefixes; the objects of an unfinished release are reused by the same command."""
        self._require_name("rows")
        self._require_conditional()
        now, attempts = self.parent.clock(), set()
        touched: dict[str, datetime] = {}
        for entry in self._entries(self._key):
            name, _, rest = entry["path"].removeprefix(f"{self._key}/").partition("/")
            token = name if rest else name.removesuffix(_ATTEMPT)
            if re.fullmatch(r"[0-9a-f]{32}", token):
                touched[token] = max(entry["last_modified"], touched.get(token, entry["last_modified"]))
                if not rest and name != token:
                    attempts.add(token)
        old = sorted(token for token in attempts if (now - touched[token]).total_seconds() >= age)
        return tuple(f"{self}/{token}" for token in old if self._remove_abandoned(token))

    def _remove_abandoned(self, token: str) -> bool:
        """Remove a prefix if its builder is dead; return whether it was removed."""
        try:
            state = self._state(token)
            if state == _BUILDING:
                self._set_state(token, _REMOVING, "rows")
                state = _REMOVING
        except (OSError, ResumableError):
            return False  # the builder is alive, or another process was faster
        published = ObjectStore(self.url)
        named = published._folder()
        if state != _REMOVING or named == _joined(self._key, token) or (named == self._key and published.exists()):
            return False  # published, or not a pointer that this version knows
        self._discard(token)
        return True

    @contextmanager
    def _probe(self) -> Iterator[str]:
        """Yield the path of a probe object, which is removed at the end."""
        path = _joined(self._key, f".dpdist-probe-{random_token()}")
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
        self._remove(_joined(self._folder(), prefix))

    def _remove(self, folder: str) -> None:
        if paths := [entry["path"] for entry in self._entries(folder)]:
            send_request(self.url, lambda: obstore().delete(self._connection(), paths))

    def _remove_object(self, path: str) -> None:
        with suppress(FileNotFoundError):
            send_request(self.url, lambda: obstore().delete(self._connection(), path))

    def _try_remove(self, path: str) -> None:
        with suppress(DpdistError, OSError):
            self._remove_object(path)

    def _try_put(self, path: str, content: bytes | memoryview, **options: Any) -> Exception | None:
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

    def put(self, key: str, content: bytes | memoryview) -> None:
        options = {"use_multipart": False} if len(content) <= _WHOLE else {"chunk_size": _WHOLE}
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
                raise _changed(self, noun)
            options = {"mode": version}
        error = self._try_put(path, content, **options)
        if kind_of(error) == "PreconditionError":
            if self._get(path) != content:  # otherwise a repeated request, as in _create
                raise _changed(self, noun)
        elif error is not None:
            raise self._write_error(error, noun)

    def _version(self, path: str) -> dict[str, str]:
        head = self._head(path)
        return {name: head[name] for name in ("e_tag", "version") if head[name] is not None}

    def delete(self) -> None:
        """Remove its objects, the root first; never those of a whole bucket."""
        self._require_name("release")
        folder = self._folder()
        if self.folder is None:
            self._remove_object(_joined(self._key, _ROOT))
        self._remove(folder)
        if self.folder is None:
            self._remove_object(f"{self._key}.lease")

    def locked(self) -> AbstractContextManager[object]:
        """Lock it against other processes of this user on this machine; :meth:`replace` detects others."""
        return connections.locked_here(self.url)


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


def _write_note(note: int, text: str) -> None:
    """Write the note of the unfinished build; empty if there is none."""
    os.ftruncate(note, 0)
    os.pwrite(note, text.encode(), 0)


def _joined(folder: str, key: str) -> str:
    return f"{folder}/{key}" if folder and key else folder or key


def _changed(store: ObjectStore, noun: str) -> ResumableError:
    return ResumableError(
        f"Another process changed the {noun} at {store}. Nothing was written. Run the same command again."
    )


@lru_cache(maxsize=64)
def _require_conditional(folder: ObjectStore, _settings: tuple[tuple[str, str], ...], _process: int) -> None:
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
