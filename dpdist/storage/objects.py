"""Object stores: rows, scores, models, releases and reports at ``s3://``, ``gs://`` and ``az://``, by way of obstore.

No store renames a folder, and none needs to: what is found is decided by one object that is created if absent, last.

**Rows** lie under a prefix that nobody else writes to, and are found by their pointer::

    rows.zarr/zarr.json                  the pointer: a Zarr group, whose attributes name the prefix
    rows.zarr/3f0c.../zarr.json, c/0/0   the rows, which plain zarr reads as the array 3f0c... of that group
    rows.zarr/3f0c....attempt            says that somebody builds there, until the pointer stands

What a dead builder left is a prefix that nothing names. A cleaner replaces the object of the attempt, if it is
unchanged, before it removes anything; and so does the builder before the pointer is created. One of the two comes
second, and gives up. What has no such object is not removed. Ages are counted by the clock of the store.

**Releases, models and scores** keep Zarr's keys, because others read them with plain zarr. Their content follows from
an identity, which whoever builds them knows beforehand::

    release.zarr.lease                   the identity, created if absent, first
    release.zarr.root                    what zarr.json will say, while the rest is built
    release.zarr/lattice/c/0/0 ...       the rest
    release.zarr/zarr.json               created if absent, last

Builders of one identity write the same objects, at once or after another has died, so they may write over them. A lease
of another identity is refused. The lease is never removed: a builder that has just seen that there is no release could
still begin another one over it.

**Credentials** come from where obstore looks for them (its environment variables, and the roles of machines); an
address, a message and a pickle hold none. A connection is made in each process when it is first used.
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
from dpdist.storage.connections import asked, kind_of, obstore, says
from dpdist.storage.store import ABANDONED_SECONDS, MOST_AT_ONCE, Store

T = TypeVar("T")
POINTER = "dpdist-pointer/1"
LEASE = "dpdist-lease/1"
_ROOT = "zarr.json"
_ATTEMPT = ".attempt"
_BUILDING, _PUBLISHING, _REMOVING = (b"dpdist-attempt/1 " + word for word in (b"building", b"publishing", b"removing"))
_WHOLE = 64 << 20
"""Bytes that are sent in one request; what is larger is sent in parts of that size."""
_CREATES = "create an object only if it is absent (If-None-Match: *)"
_REPLACES = "replace an object only if it is unchanged (If-Match)"
_PIECE = 1 << 20
"""Bytes that a stream takes from the connection at least, before it gives them out."""


@dataclass(frozen=True)
class ObjectStore:
    """What stands at an address in an object store; its methods do what those of a FolderStore do."""

    url: str
    folder: str | None = field(default=None, compare=False, repr=False)
    """Key of the folder that its objects stand in, once it is known: of what is built, or was found by its pointer."""
    root: str | None = field(default=None, compare=False, repr=False)
    """Key of what will be its root object, while it is built under a lease."""

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
        """What it stands in; a bucket stands in nothing else."""
        return ObjectStore(self.url.rpartition("/")[0] if self._key else self.url)

    def within(self, name: str) -> ObjectStore:
        return ObjectStore(f"{self.url}/{name}")

    def absolute(self) -> ObjectStore:
        """Return it with its pointer followed: it stays what it is now, whatever is put there later."""
        return self if self.folder is not None or not self.exists() else replace(self, folder=self._found())

    def address(self, key: str = "") -> str:
        return f"{self.url}/{key}" if key else self.url

    @property
    def scratch_folder(self) -> Path:
        return Path(gettempdir())

    # --- reading ---

    def _found(self) -> str:
        """Return the folder of its objects: that which the pointer names, if it has one."""
        if self.folder is not None:
            return self.folder
        try:
            pointer = json.loads(self._fetched(_joined(self._key, _ROOT)))["attributes"]["dpdist"]
            prefix = str(pointer["prefix"]) if pointer["format"] == POINTER else ""
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return self._key
        return _joined(self._key, prefix) if re.fullmatch(r"[0-9a-f]{32}", prefix) else self._key

    def _place(self, key: str) -> str:
        return self.root if key == _ROOT and self.root is not None else _joined(self._found(), key)

    def _asked(self, place: str, question: Callable[[], T]) -> T:
        """Ask something about the object at a place in the bucket."""
        return asked("/".join((*self.url.split("/")[:3], place)), question)

    def _fetched(self, place: str, most: int = MOST_AT_ONCE) -> bytes:
        def fetched() -> bytes:
            answer = obstore().get(self._connection(), place)
            if answer.meta["size"] > most:
                raise OSError(errno.EFBIG, f"it is of more than {most >> 20} MiB")
            return bytes(answer.bytes())

        return self._asked(place, fetched)

    def _head(self, place: str) -> dict[str, Any]:
        head: dict[str, Any] = self._asked(place, lambda: obstore().head(self._connection(), place))
        return head

    def exists(self, key: str = "") -> bool:
        """Say whether its root object is there, or another one; a prefix that was given is there."""
        try:
            self._head(self._place(key) if key else _joined(self.folder or self._key, _ROOT))
        except OSError:
            return not key and self.folder is not None
        return True

    def size(self, key: str) -> int:
        return int(self._head(self._place(key))["size"])

    def sizes(self, prefix: str) -> Callable[[str], int]:
        """List what is below a prefix, and return what tells the size of an object there."""
        sizes = dict(self.list(prefix))
        return lambda key: sizes[key] if key in sizes else self.size(key)

    def get(self, key: str, most: int = MOST_AT_ONCE) -> bytes:
        return self._fetched(self._place(key), most)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        place = self._place(key)
        if start + length > self._head(place)["size"]:
            raise OSError(errno.EINVAL, "it is shorter")
        content = self._asked(
            place, lambda: bytes(obstore().get_range(self._connection(), place, start=start, length=length))
        )
        if len(content) < length:  # it was replaced meanwhile
            raise OSError(errno.EINVAL, "it is shorter")
        return content

    def opened(self, key: str) -> AbstractContextManager[Stream]:
        place = self._place(key)
        pieces = self._asked(
            place, lambda: iter(obstore().get(self._connection(), place).stream(min_chunk_size=_PIECE))
        )
        return nullcontext(Stream(lambda: self._asked(place, lambda: next(pieces, None))))

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        folder = self._found()
        entries = self._entries(_joined(folder, prefix))
        return ((entry["path"].removeprefix(folder).lstrip("/"), entry["size"]) for entry in entries)

    def _entries(self, folder: str) -> Iterator[dict[str, Any]]:
        """Yield what the store says of each object below a folder."""
        pages = asked(self.url, lambda: iter(obstore().list(self._connection(), folder or None)))
        while (page := asked(self.url, lambda: next(pages, None))) is not None:
            yield from page

    def for_zarr(self) -> _ZarrObjects:
        """Return zarr's own store over obstore."""
        return _ZarrObjects(ZarrStore(self._connection(self._found())), self.url)

    # --- publishing ---

    def require_new(self, what: str) -> None:
        """Refuse what is there, and a store that does not create an object only if it is absent."""
        self._require_place(what)
        if self.exists():
            raise DataError(f"{self} exists already. Choose another place for the {what}.")
        self._require_conditional()

    def _require_place(self, what: str) -> None:
        if not self._key:
            raise UsageError(f"{self} is a whole bucket. Name a place in it, such as {self}/{what}.zarr.")

    def _require_conditional(self) -> None:
        _require_conditional(self.parent, connections.settings(self.url.partition("://")[0]), os.getpid())

    def require_space(self, size: int, what: str) -> None:
        """Take any size: a store does not say what it has free."""

    @contextmanager
    def staged(
        self,
        what: str,
        *,
        private: bool = False,  # noqa: ARG002 - who may read is the owner's word to the store
        identity: Callable[[], str] | None = None,
        keys: Callable[[], Iterable[str]] = tuple,
        resume: bytes | None = None,
    ) -> Iterator[Store]:
        """Give a prefix that nobody else writes to or, with an identity, a lease."""
        if identity is not None:
            self.require_new(what)
        with self._prefixed(what, resume) if identity is None else self._leased(what, identity(), keys) as aside:
            yield aside

    @contextmanager
    def _prefixed(self, what: str, resume: bytes | None) -> Iterator[ObjectStore]:
        """Give a prefix; its pointer is created at the end, and it is removed on an error after which none goes on.

        This machine remembers what is to be resumed. Others on it who would build here wait; those elsewhere have
        prefixes of their own.
        """
        holding = nullcontext() if resume is None else connections.locked_here(f"{self.url}.unfinished")
        with holding as note:
            self.require_new(what)
            token = self._claimed(what, note, hashlib.sha256(resume or b"").hexdigest())
            aside = replace(self, folder=_joined(self._key, token))
            try:
                yield aside
                try:
                    if self._state(token) != _PUBLISHING:  # a builder that died before it stood may have said so
                        self._becomes(token, _PUBLISHING, what)
                except OSError:
                    raise _changed(self, what) from None  # it was removed, as one that nobody had touched for long
            except BaseException as error:
                if resume is None or not isinstance(error, ResumableError):
                    with suppress(DpdistError):
                        self._forget(token)
                raise
            pointer = {
                "attributes": {"dpdist": {"format": POINTER, "prefix": token}}, "zarr_format": 3, "node_type": "group",
            }  # fmt: skip
            # if this fails the prefix stays: whether the pointer was created nobody knows
            published = self._created(_joined(self._key, _ROOT), json.dumps(pointer, indent=2).encode(), what)
            if not published:
                aside.delete()
            self._tidied(self._attempt(token))
            if not published:
                raise self._taken(what)
            if note is not None:
                _write_note(note, "")

    def _claimed(self, what: str, note: int | None, digest: str) -> str:
        """Return the token of a prefix to build under: the one that a note says was left of the same, or a new one."""
        if note is not None:
            known = re.fullmatch(rb"([0-9a-f]{64}) ([0-9a-f]{32})", os.pread(note, 128, 0))
            if known is not None:
                before, token = known[1].decode(), known[2].decode()
                with suppress(OSError):  # it was removed
                    if before == digest and self._state(token) in {_BUILDING, _PUBLISHING}:
                        return token
                self._forget(token)  # nobody builds there any more
        token = random_token()
        if note is not None:
            _write_note(note, f"{digest} {token}")
        self._created(self._attempt(token), _BUILDING, what)
        return token

    def _attempt(self, token: str) -> str:
        """Return the place of the object that says that somebody builds under a prefix."""
        return _joined(self._key, f"{token}{_ATTEMPT}")

    def _state(self, token: str) -> bytes:
        return self._fetched(self._attempt(token), 1 << 10)

    def _becomes(self, token: str, state: bytes, what: str) -> None:
        """Say of what is built under a prefix what comes next; OSError or ResumableError if another was faster."""
        replace(self, folder=self._key).replace(f"{token}{_ATTEMPT}", state, what, expected=_BUILDING)

    def _forget(self, token: str) -> None:
        """Remove what stands below a prefix, and what says so."""
        replace(self, folder=_joined(self._key, token)).delete()
        self._removed(self._attempt(token))

    @contextmanager
    def _leased(self, what: str, identity: str, keys: Callable[[], Iterable[str]]) -> Iterator[ObjectStore]:
        """Give the place itself, if its lease is of this identity; its root object is created at the end."""
        lease, root = f"{self._key}.lease", f"{self._key}.root"
        if not self._created(lease, json.dumps({"format": LEASE, "identity": identity}).encode(), what):
            raise DataError(
                f"{self} was begun as another {what}, as its lease says ({self.url}.lease). If nobody writes it any "
                "more, remove the lease and what stands below that place; else choose another place."
            )
        aside = replace(self, folder=self._key, root=root)
        yield aside
        try:
            content = self._fetched(root)
        except OSError:  # another builder of the same identity was faster, and has tidied up
            raise self._taken(what) from None
        foreign = {key for key, _ in aside.list()}.difference(keys(), [_ROOT])
        if foreign:  # they would be found as a part of it
            raise DataError(
                f"Somebody else put objects at {self}, which are no part of the {what}, such as {min(foreign)!r}. "
                "Remove them and run the same command again, or choose another place."
            )
        published = self._created(_joined(self._key, _ROOT), content, what)
        self._tidied(root)
        if not published:
            raise self._taken(what)

    def _taken(self, what: str) -> DpdistError:
        """Return the error for a builder that was too late."""
        if self.exists():
            return DataError(f"{self} exists already. Choose another place for the {what}.")
        return _changed(self, what)

    def _created(self, place: str, content: bytes, what: str) -> bool:
        """Create an object if it is absent; say whether it is there now with this content."""
        error = self._sent(place, content, mode="create")
        if error is None:
            return True
        if kind_of(error) != "AlreadyExistsError":
            raise self._unwritten(error, what)
        with suppress(OSError):  # a request that was repeated finds what it has created itself
            return self._fetched(place) == content
        return False

    # --- cleaning ---

    def clean(self, age: float = ABANDONED_SECONDS) -> tuple[str, ...]:
        """Remove prefixes that were begun and never published; what a dead release left the same command takes up."""
        self._require_place("rows")
        self._require_conditional()
        now, begun = self.parent.clock(), set()
        touched: dict[str, datetime] = {}
        for entry in self._entries(self._key):
            name, _, rest = entry["path"].removeprefix(f"{self._key}/").partition("/")
            token = name if rest else name.removesuffix(_ATTEMPT)
            if re.fullmatch(r"[0-9a-f]{32}", token):
                touched[token] = max(entry["last_modified"], touched.get(token, entry["last_modified"]))
                if not rest and name != token:
                    begun.add(token)
        old = sorted(token for token in begun if (now - touched[token]).total_seconds() >= age)
        return tuple(f"{self}/{token}" for token in old if self._cleaned(token))

    def _cleaned(self, token: str) -> bool:
        """Remove what stands below a prefix whose builder is dead; say whether it was."""
        try:
            state = self._state(token)
            if state == _BUILDING:
                self._becomes(token, _REMOVING, "rows")
                state = _REMOVING
        except (OSError, ResumableError):
            return False  # it lives, or another process was faster
        place = ObjectStore(self.url)
        named = place._found()
        if state != _REMOVING or named == _joined(self._key, token) or (named == self._key and place.exists()):
            return False  # it is published, or what stands there is no pointer that this version knows
        self._forget(token)
        return True

    @contextmanager
    def _probe(self) -> Iterator[str]:
        """Give a place in it for an object of no meaning, which is removed in the end."""
        place = _joined(self._key, f".dpdist-probe-{random_token()}")
        try:
            yield place
        finally:
            self._tidied(place)

    def clock(self) -> datetime:
        """Return what time it is in the store, where the age of objects is counted."""
        with self._probe() as place:
            if (error := self._sent(place, b"1", mode="create")) is not None:
                raise self._unwritten(error, "a probe")
            now: datetime = self._head(place)["last_modified"]
        return now

    def lacks(self) -> str | None:
        """Return what publishing relies on and the store does not do, or None."""
        with self._probe() as place:
            created = self._sent(place, b"1", mode="create")
            if kind_of(created) == "NotSupportedError" or (created is not None and says(created, "NotImplemented")):
                return _CREATES
            if created is not None:
                raise self._unwritten(created, "a probe")
            again = self._sent(place, b"2", mode="create")
            if kind_of(again) != "AlreadyExistsError" or self._fetched(place) != b"1":
                return _CREATES
            first = self._version(place)
            if self._sent(place, b"3", mode=first) is not None or self._fetched(place) != b"3":
                return _REPLACES
            if kind_of(self._sent(place, b"4", mode=first)) != "PreconditionError" or self._fetched(place) != b"3":
                return _REPLACES
        return None

    def flush(self, keys: Iterable[str]) -> None:
        """Do nothing: what was sent is durable."""

    def drop(self, prefix: str) -> None:
        self._remove(_joined(self._found(), prefix))

    def _remove(self, folder: str) -> None:
        if paths := [entry["path"] for entry in self._entries(folder)]:
            asked(self.url, lambda: obstore().delete(self._connection(), paths))

    def _removed(self, place: str) -> None:
        """Remove an object, if it is there."""
        with suppress(FileNotFoundError):
            asked(self.url, lambda: obstore().delete(self._connection(), place))

    def _tidied(self, place: str) -> None:
        """Remove an object that does no harm where it cannot be removed."""
        with suppress(DpdistError, OSError):
            self._removed(place)

    def _sent(self, place: str, content: bytes | memoryview, **more: Any) -> Exception | None:
        try:
            obstore().put(self._connection(), place, content, **more)
        except DpdistError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller says it
            return error
        return None

    def _unwritten(self, error: Exception, what: str) -> DpdistError:
        if isinstance(error, FileNotFoundError):
            return connections.no_bucket(self.url)
        return connections.failure(error, self.url, f"written ({what})")

    def put(self, key: str, content: bytes | memoryview) -> None:
        more = {"use_multipart": False} if len(content) <= _WHOLE else {"chunk_size": _WHOLE}
        if (error := self._sent(self._place(key), content, **more)) is not None:
            raise self._unwritten(error, key)

    def replace(
        self,
        key: str,
        content: bytes,
        what: str,
        *,
        private: bool = False,  # noqa: ARG002 - as in staged
        expected: bytes | None = None,
    ) -> None:
        """Send an object over another; ``expected`` is compared here, and its entity tag by the store."""
        place, more = self._place(key), {}
        if expected is not None:
            self._require_conditional()  # who replaces it may be another process than made it, at another endpoint
            seen = self._version(place)  # before it is compared: what comes later has another version
            if self._fetched(place) != expected:
                raise _changed(self, what)
            more = {"mode": seen}
        error = self._sent(place, content, **more)
        if kind_of(error) == "PreconditionError":
            if self._fetched(place) != content:  # else the request was repeated, as in _created
                raise _changed(self, what)
        elif error is not None:
            raise self._unwritten(error, what)

    def _version(self, place: str) -> dict[str, str]:
        """Return by what the store knows an object as it is now."""
        head = self._head(place)
        return {name: head[name] for name in ("e_tag", "version") if head[name] is not None}

    def delete(self) -> None:
        """Remove its objects, the one that makes it found first; never those of a whole bucket."""
        self._require_place("release")
        folder = self._found()
        if self.folder is None:
            self._removed(_joined(self._key, _ROOT))
        self._remove(folder)
        if self.folder is None:
            self._removed(f"{self._key}.lease")

    def locked(self) -> AbstractContextManager[object]:
        """Hold it against other processes of this user and machine; what those elsewhere do, :meth:`replace` sees."""
        return connections.locked_here(self.url)


class Stream:
    """The bytes of an object, as they come."""

    def __init__(self, following: Callable[[], Any]) -> None:
        self._following = following
        self._left = memoryview(b"")

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer, as far as the object goes."""
        filled, buffer = 0, buffer.cast("B")
        while filled < len(buffer):
            if not self._left:
                piece = self._following()
                if piece is None:
                    break
                self._left = memoryview(piece)
            taken = self._left[: len(buffer) - filled]
            buffer[filled : filled + len(taken)] = taken
            filled += len(taken)
            self._left = self._left[len(taken) :]
        return filled


def _write_note(note: int, text: str) -> None:
    """Note what is not finished, and its prefix; empty if nothing is."""
    os.ftruncate(note, 0)
    os.pwrite(note, text.encode(), 0)


def _joined(folder: str, key: str) -> str:
    return f"{folder}/{key}" if folder and key else folder or key


def _changed(store: ObjectStore, what: str) -> ResumableError:
    return ResumableError(
        f"Another process changed the {what} at {store} meanwhile. Nothing was written; run the same command again."
    )


@lru_cache(maxsize=64)
def _require_conditional(folder: ObjectStore, _settings: tuple[tuple[str, str], ...], _process: int) -> None:
    """Refuse a store in which two could publish at one place; it is tried once for a folder in each process."""
    lacks = folder.lacks()
    if lacks is not None:
        raise DataError(
            f"The store of {folder} does not {lacks}, so two commands at once could publish different releases at one "
            "place, or give rows two budgets. Use a store that does, such as Amazon S3, Google Cloud Storage or Azure "
            "Blob Storage, or a folder."
        )


class _ZarrObjects(WrapperStore[ZarrStore[Any]]):
    """Zarr's own store over a folder of a bucket, whose faults are told as ours."""

    def __init__(self, store: ZarrStore[Any], url: str) -> None:
        super().__init__(store)
        self._url = url

    def _with_store(self, store: ZarrStore[Any]) -> Self:
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
            wrong = connections.failure(error, self._url, how)
        raise wrong
