"""Where rows, scores, models and releases lie: one protocol, and the folders of this machine behind it.

Behind it stand also object stores (:mod:`dpdist.storage.objects`).

A :class:`Store` is one thing that dpdist wrote (a rows.zarr, a folder of periods, a release.zarr): bytes under keys
such as ``zarr.json`` and ``c/0/0``. Whoever reads or writes one asks the store, and knows no path. Sources of an ingest
are read by :mod:`dpdist.ingest`, and ledgers are kept by :mod:`dpdist.ledger`: neither is a store.

To add a place where rows live, open four files:

1. a new module beside this one, with a class that does what :class:`Store` says;
2. this one: its scheme, such as ``s3``, in :data:`PLACES`;
3. ``pyproject.toml``: the library that it needs, as an extra;
4. ``tests/storage/test_store.py``: its name in the list of the stores that the contract is tested with. It is done
   when these tests pass.

Every function of the library, every command and every job file then takes its addresses.

**A place that cannot rename a folder** publishes by one object that it creates if absent, last. The loser of a race is
told by that and raises as :meth:`Store.require_new` does. Either that object is a pointer: :meth:`Store.staged` then
gives a prefix that nobody else writes to, and what is put there is found by no reader. What a dead builder left is a
prefix that nothing points to. Or it is the root object, and a lease keeps those out who would build something else.

Replacing a file that dpdist wrote, and no other: a slip of the hand must not cost somebody his table.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from dpdist._util.ids import random_token
from dpdist._util.paths import AnyPath, is_address, local, read_plain, read_plain_range
from dpdist.errors import DataError, ResumableError, UsageError
from dpdist.naming import step
from dpdist.storage import atomic, lifecycle

if TYPE_CHECKING:
    from zarr.storage import StoreLike


def replace_own(place: Store, content: bytes, what: str, *, private: bool, own: Callable[[bytes], bool]) -> None:
    """Write a file; one that is there is replaced if dpdist wrote it."""
    name, found = str(place).rpartition("/")[2], b""
    with suppress(OSError):
        found = place.parent.get(name)
    if place.exists() and not own(found):
        raise DataError(f"{place} exists already, and is no {what} of dpdist. Choose another place for the {what}.")
    place.parent.replace(name, content, what, private=private)


ABANDONED_SECONDS = 86400.0
"""For how long nobody touched what is taken for a leftover."""
MOST_AT_ONCE = 512 << 20
"""Bytes at most of what is read in one piece: what a thing says of itself, its seals, or a chunk of a release."""


class Reader(Protocol):
    """An object that is read from its start to its end, into buffers of the caller."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill a buffer with the next bytes; return how many they are, fewer only where the object ends."""
        ...


class Store(Protocol):
    """One thing that dpdist wrote, or is about to write: bytes under keys.

    It is small, can be pickled, compared and hashed, and names the same thing in every process that sees the place. Its
    text is the place as people name it. Methods that read raise OSError where there is nothing to read.
    """

    def __hash__(self) -> int: ...

    @property
    def parent(self) -> Store:
        """What it stands in."""
        ...

    def within(self, name: str) -> Store:
        """Return a thing that stands in it."""
        ...

    def absolute(self) -> Store:
        """Return it by a name that does not depend on the process."""
        ...

    def address(self, key: str = "") -> AnyPath:
        """Return what :func:`store_at` finds it by, or one of its objects."""
        ...

    @property
    def scratch_folder(self) -> Path:
        """A folder of this machine, for what passes through its disk while this is built."""
        ...

    # --- reading ---

    def exists(self, key: str = "") -> bool:
        """Say whether it is there, or one of its objects."""
        ...

    def size(self, key: str) -> int | None:
        """Return the bytes of an object without reading it; None if something else stands there, such as a link."""
        ...

    def sizes(self, prefix: str) -> Callable[[str], int | None]:
        """Return what :meth:`size` is of objects below a prefix, for whoever asks for many."""
        ...

    def get(self, key: str, most: int = MOST_AT_ONCE) -> bytes:
        """Return an object of at most so many bytes; OSError if it has more, or is none."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return so many bytes of an object, from a place in it; OSError if it has not so many, or is none."""
        ...

    def opened(self, key: str) -> AbstractContextManager[Reader]:
        """Open an object, to be read straight into buffers."""
        ...

    def list(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield key and bytes of all that is there, in no order; None for what is no object, such as a link."""
        ...

    def for_zarr(self) -> StoreLike:
        """Return what Zarr opens and creates it by."""
        ...

    # --- writing ---

    def require_new(self, what: str) -> None:
        """Refuse to write over something, or where nothing can be written: DataError."""
        ...

    def require_space(self, size: int, what: str) -> None:
        """Refuse to write more than there is room for: DataError."""
        ...

    def staged(
        self,
        what: str,
        *,
        private: bool = False,
        identity: Callable[[], str] | None = None,
        keys: Callable[[], Iterable[str]] = tuple,
    ) -> AbstractContextManager[Store]:
        """Give a store to build in; it appears here when the block ends, once, whole and durable, or never."""
        ...

    def resumed(self, what: str, identity: bytes) -> AbstractContextManager[Store]:
        """Give a private store to build in: the one that a killed builder of the same left, or an empty one.

        It appears here as :meth:`staged` does, of what was put and :meth:`flushed <flush>`. If the process dies, or the
        block raises ResumableError, what was put stays for the next builder; any other error removes it.
        """
        ...

    def put(self, key: str, content: bytes | memoryview) -> None:
        """Write an object of what is being built: whole or not at all, again if need be; durable when it appears."""
        ...

    def flush(self, keys: Iterable[str]) -> None:
        """Make objects of what is being built durable now."""
        ...

    def drop(self, prefix: str) -> None:
        """Remove all objects below a prefix from what is being built."""
        ...

    def replace(
        self, key: str, content: bytes, what: str, *, private: bool = False, expected: bytes | None = None
    ) -> None:
        """Replace an object, or create it, in one step: durable when this returns. DataError if it cannot be.

        With ``expected`` it is replaced only if that is what is there, else ResumableError: another process was faster.
        A folder must be held meanwhile.
        """
        ...

    def delete(self) -> None:
        """Remove it with all that stands in it, as far as that goes."""
        ...

    def clean(self, age: float = ABANDONED_SECONDS) -> tuple[str, ...]:
        """Remove what dead builders left here, and return what it was called; nothing that is there, or still lives.

        What somebody holds, names or has touched within so many seconds stays, and so does whatever dpdist has not
        made. DataError if nobody can know that here.
        """
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Hold it against other processes that ask to hold it, waiting for it if need be; DataError if none can.

        A folder is held against all of them, a store against those of this user and machine: what others do meanwhile,
        :meth:`replace` sees. What is not there is not held: whoever reads it says what is wrong with it.
        """
        ...


@dataclass(frozen=True)
class FolderStore:
    """A folder, and its files: it is built aside, flushed and renamed into place (:mod:`dpdist.storage.atomic`)."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def parent(self) -> FolderStore:
        """The folder it stands in."""
        return FolderStore(self.path.parent)

    def within(self, name: str) -> FolderStore:
        """Return a folder in it."""
        return FolderStore(self.path / name)

    def absolute(self) -> FolderStore:
        """Return it by its absolute path."""
        return FolderStore(self.path.absolute())

    def address(self, key: str = "") -> Path:
        """Return its path, or that of a file in it."""
        return self.path / key

    @property
    def scratch_folder(self) -> Path:
        """The folder it stands in: on its disk there must be room anyway."""
        return self.path.absolute().parent

    def exists(self, key: str = "") -> bool:
        """Say whether anything stands at its path, or at one in it."""
        return (self.path / key).exists()

    def size(self, key: str) -> int | None:
        """Return the bytes of a file; a link leads anywhere, and a pipe never ends."""
        about = (self.path / key).lstat()
        return about.st_size if stat.S_ISREG(about.st_mode) else None

    def sizes(self, prefix: str) -> Callable[[str], int | None]:  # noqa: ARG002 - they are looked at one by one
        """Return :meth:`size`."""
        return self.size

    def get(self, key: str, most: int = MOST_AT_ONCE) -> bytes:
        """Return the bytes of a file."""
        return read_plain(self.path / key, most)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return bytes of a file."""
        return read_plain_range(self.path / key, start, length)

    def opened(self, key: str) -> FileIO:
        """Open a file, without a buffer between it and its readers; a link leads anywhere, and a pipe never ends."""
        handle = os.open(self.path / key, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "it is no file")
        return FileIO(handle)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield path and size of every file; links are not followed."""
        for folder, folders, files in os.walk(self.path / prefix):
            for name in (*folders, *files):
                path = Path(folder, name)
                about = path.lstat()
                if not stat.S_ISDIR(about.st_mode):
                    size = about.st_size if stat.S_ISREG(about.st_mode) else None
                    yield path.relative_to(self.path).as_posix(), size

    def for_zarr(self) -> Path:
        """Return its path."""
        return self.path

    def require_new(self, what: str) -> None:
        """Refuse what is there, and a folder that cannot be written."""
        atomic.require_new(self.path, what)

    def require_space(self, size: int, what: str) -> None:
        """Refuse more than the file system has free."""
        atomic.require_space(self.path, size, what)

    @contextmanager
    def staged(
        self,
        what: str,
        *,
        private: bool = False,
        identity: Callable[[], str] | None = None,  # noqa: ARG002 - every builder has a folder of its own
        keys: Callable[[], Iterable[str]] = tuple,  # noqa: ARG002 - as above
    ) -> Iterator[FolderStore]:
        """Give a locked folder beside it, which is flushed and renamed."""
        with atomic.staged(self.path, what, private=private) as aside:
            yield FolderStore(aside)

    @contextmanager
    def resumed(self, what: str, identity: bytes) -> Iterator[FolderStore]:
        """Give a locked folder beside it, which is renamed."""
        with lifecycle.resumed(self.path, what, identity) as aside:
            yield FolderStore(aside)

    def put(self, key: str, content: bytes | memoryview) -> None:
        """Write a file aside, for its owner alone, and rename it; it is flushed with the folder."""
        path = self.path / key
        for folder in reversed(path.relative_to(self.path).parents[:-1]):  # never itself: it may have been given up
            (self.path / folder).mkdir(0o700, exist_ok=True)
        aside = self.path / f".put.{random_token()[:8]}.partial"  # a name that is cleaned up
        with open(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:  # noqa: PTH123 - of a handle
            file.write(content)
            file.flush()
            if hasattr(os, "posix_fadvise"):  # Linux then begins to write to the disk, and what flushes it waits less
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        aside.replace(path)

    def flush(self, keys: Iterable[str]) -> None:
        """Flush files, and the folders that they stand in."""
        lifecycle.flush(self.path, (self.path / key for key in keys))

    def drop(self, prefix: str) -> None:
        """Remove a folder in it."""
        lifecycle.drop(self.path / prefix)

    def replace(
        self, key: str, content: bytes, what: str, *, private: bool = False, expected: bytes | None = None
    ) -> None:
        """Write a file aside, flush it and rename it."""
        if expected is not None and self.get(key) != expected:
            raise ResumableError(f"Another process changed the {what} {self} meanwhile. Run the same command again.")
        atomic.replace_file(self.path / key, content, what, private=private)

    def delete(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def clean(self, age: float = ABANDONED_SECONDS) -> tuple[str, ...]:
        """Remove folders and files of this user that were to be renamed, and that nobody holds."""
        return tuple(map(str, lifecycle.clean(self.path, age)))

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder (flock)."""
        return atomic.locked(self.path)


AnyStore: TypeAlias = AnyPath | Store
"""A store, or where it is: the path of a folder, or an address with a scheme of :data:`PLACES`."""


def _in_objects(address: str) -> Store:
    from dpdist.storage.objects import ObjectStore  # noqa: PLC0415 - most commands read and write folders only

    return ObjectStore(address)


PLACES: dict[str, Callable[[str], Store]] = {
    "": lambda path: FolderStore(Path(path)),
    "s3": _in_objects,
    "gs": _in_objects,
    "az": _in_objects,
}
"""Who makes the store of an address, by its scheme; a path has none."""


def store_at(place: AnyStore) -> Store:
    """Return the store at a place, whether or not anything stands there.

    Examples
    --------
    >>> str(store_at("rows.zarr").within("2026-01-05.zarr"))
    'rows.zarr/2026-01-05.zarr'
    """
    if not isinstance(place, str | os.PathLike):
        if hasattr(place, "for_zarr"):
            return place
        raise UsageError(
            f"A path or an address is needed, not a value of type {type(place).__name__}. Rows that Dask, xarray, "
            f"pandas or NumPy hold are ingested first ({step('ingest')}), or passed to an estimator."
        )
    text = os.fspath(place)
    scheme = text.partition("://")[0].lower() if is_address(text) else ""
    return PLACES[scheme](text) if scheme in PLACES else FolderStore(local(text))
