"""Storage of rows, scores, models and releases: folders, and object stores with the same methods.

A :data:`Store` is one item that dpdist wrote (a rows.zarr, a folder of periods, a release.zarr): bytes under keys such
as ``zarr.json`` and ``c/0/0``. All reads and writes go through its methods, not through paths. Sources of an ingest
(:mod:`dpdist.core.ingest`) and ledgers (:mod:`dpdist.core.ledger`) are not stores. A store is small, picklable,
comparable and hashable, and names the same item in every process. Its text is its path or address. Methods that read
raise OSError if there is nothing to read.

**One protocol** publishes everything (:meth:`FolderStore.staged`): claim a staging area that no reader sees, write
objects, make them durable, then publish them in one atomic step. The loser of a race fails as in
:meth:`FolderStore.require_new`. The objects of a dead builder are invisible, and removed or resumed later.

================  =====================================  =====================================================
step              folder (:mod:`dpdist.core.storage.atomic`)  object store (:mod:`dpdist.core.storage.objects`)
================  =====================================  =====================================================
claim             a new folder, locked (flock)           a new prefix and its attempt, or a lease of an identity
durable           fsync                                  when sent
publish           rename                                 the pointer or the root, created if absent
dead builder      no lock is held                        no pointer names it; or the lease has the same identity
================  =====================================  =====================================================

To add a kind of store, write a module next to this one with a class that has the methods of :class:`FolderStore`. Add
it to :data:`Store`, its scheme to :data:`SCHEMES`, its library to ``pyproject.toml`` as an extra, and its name to the
list of stores in ``tests/core/storage/test_store.py``, whose tests are the contract.
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
from typing import TYPE_CHECKING, TypeAlias

from dpdist.core.errors import DataError, ResumableError, UsageError
from dpdist.core.naming import step
from dpdist.core.paths import AnyPath, is_address, local, read_plain, read_plain_range, text_of
from dpdist.core.storage import atomic, cleaning
from dpdist.core.storage.atomic import ABANDONED_SECONDS, MOST_AT_ONCE, Content
from dpdist.core.text import random_token

if TYPE_CHECKING:
    from dpdist.core.storage.bucket import Stream
    from dpdist.core.storage.objects import ObjectStore

Store: TypeAlias = "FolderStore | ObjectStore"
"""One item that dpdist wrote, or is about to write: bytes under keys."""
AnyStore: TypeAlias = "AnyPath | Store"
"""A store, the path of a folder, or an address with a scheme of :data:`SCHEMES`."""
Reader: TypeAlias = "FileIO | Stream"
"""A sequential reader of an object: ``readinto`` returns fewer bytes only at the end."""


@dataclass(frozen=True)
class FolderStore:
    """A folder and its files; its methods document those of every store."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def parent(self) -> FolderStore:
        """The store above."""
        return FolderStore(self.path.parent)

    def within(self, name: str) -> FolderStore:
        """Return the store of a name below it."""
        return FolderStore(self.path / name)

    def absolute(self) -> FolderStore:
        """Return it with an absolute path."""
        return FolderStore(self.path.absolute())

    def address(self, key: str = "") -> Path:
        """Return the path or address of the store, or of one of its objects."""
        return self.path / key

    @property
    def scratch_folder(self) -> Path:
        """A folder for temporary files, on the same disk if possible."""
        return self.path.absolute().parent

    # --- reading ---

    def exists(self, key: str = "") -> bool:
        """Return whether it exists, or one of its objects."""
        return (self.path / key).exists()

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes; None if it is not a plain file, such as a link or a pipe."""
        status = (self.path / key).lstat()
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def sizes(self, prefix: str) -> Callable[[str], int | None]:  # noqa: ARG002 - each file is looked up
        """Return a function like :meth:`size` for many objects below a prefix."""
        return self.size

    def get(self, key: str, limit: int = MOST_AT_ONCE) -> bytes:
        """Return an object; OSError if it is larger than ``limit`` bytes, or not a plain file."""
        return read_plain(self.path / key, limit)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a range of bytes of an object; OSError if it is shorter, or not a plain file."""
        return read_plain_range(self.path / key, start, length)

    def opened(self, key: str) -> FileIO:
        """Open an object for reading into buffers."""
        handle = os.open(self.path / key, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "it is not a plain file")
        return FileIO(handle)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield the key and :meth:`size` of all objects, in any order; links are not followed."""
        for folder, folders, files in os.walk(self.path / prefix):
            for name in (*folders, *files):
                path = Path(folder, name)
                status = path.lstat()
                if not stat.S_ISDIR(status.st_mode):
                    size = status.st_size if stat.S_ISREG(status.st_mode) else None
                    yield path.relative_to(self.path).as_posix(), size

    def for_zarr(self) -> Path:
        """Return the store for zarr."""
        return self.path

    # --- writing ---

    def require_new(self, noun: str) -> None:
        """Raise DataError if it exists or cannot be written, and UsageError for a folder that is named like a file."""
        atomic.require_new(self.path, noun)
        atomic.require_folder_name(str(self.path), noun)

    def require_space(self, size: int, noun: str) -> None:
        """Raise DataError if there is less free space than ``size`` bytes."""
        atomic.require_space(self.path, size, noun)

    @contextmanager
    def staged(
        self,
        noun: str,
        *,
        private: bool = False,
        identity: Callable[[], str] | None = None,  # noqa: ARG002 - each builder has a folder of its own
        keys: Callable[[], Iterable[str]] = tuple,  # noqa: ARG002 - as above
        resume: bytes | None = None,
    ) -> Iterator[Store]:
        """Yield a store to build in, which is published here when the block ends: once, complete and durable, or never.

        ``noun`` names it in messages. ``private`` restricts a folder to its owner. ``identity`` determines the content
        of items with fixed keys, such as a release: builders with the same identity write the same objects, listed by
        ``keys``. ``resume`` identifies private content that takes hours to build: the store that a builder of the same
        content left when it died or raised ResumableError is reused, with all :meth:`flushed <flush>` objects.
        """
        with atomic.staged(self.path, noun, private=private, resume=resume) as staging:
            yield FolderStore(staging)

    def put(self, key: str, content: Content) -> None:
        """Write an object of a store that is being built, atomically; it may be repeated."""
        path = self.path / key
        for folder in reversed(path.relative_to(self.path).parents[:-1]):  # never itself: it may have been removed
            (self.path / folder).mkdir(0o700, exist_ok=True)
        staging = self.path / f".put.{random_token()[:8]}.partial"  # cleaning recognises this name
        with open(os.open(staging, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:  # noqa: PTH123 - a handle
            file.writelines(content if isinstance(content, Iterator) else [content])
            file.flush()
            # Linux then starts writing to disk, so that the flush takes less time
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        staging.replace(path)

    def flush(self, keys: Iterable[str]) -> None:
        """Make objects of a store that is being built durable."""
        atomic.flush(self.path, (self.path / key for key in keys))

    def drop(self, prefix: str) -> None:
        """Remove all objects below a prefix of a store that is being built."""
        shutil.rmtree(self.path / prefix, ignore_errors=True)

    def replace(
        self, key: str, content: bytes, noun: str, *, private: bool = False, expected: bytes | None = None
    ) -> None:
        """Atomically replace or create an object; ResumableError unless ``expected`` (locked) is its content."""
        if expected is not None and self.get(key) != expected:
            raise ResumableError(f"Another process changed the {noun} {self}. Run the same command again.")
        atomic.replace_file(self.path / key, content, noun, private=private)

    def delete(self) -> None:
        """Remove it with its contents, as far as possible."""
        shutil.rmtree(self.path, ignore_errors=True)

    def clean(self, age: float = ABANDONED_SECONDS) -> tuple[str, ...]:
        """Remove and return what dead builders left more than ``age`` seconds ago; DataError if that is unsafe."""
        return tuple(map(str, cleaning.clean(self.path, age)))

    def locked(self) -> AbstractContextManager[object]:
        """Hold an exclusive lock, waiting for it; DataError if the file system has no locks.

        A folder is locked against all processes (flock), an object store against those of this user on this machine;
        :meth:`replace` detects changes by others. A missing folder is not locked.
        """
        return atomic.locked(self.path)


def _in_objects(address: str) -> Store:
    from dpdist.core.storage.objects import ObjectStore  # noqa: PLC0415 - most commands read and write folders only

    return ObjectStore(address)


SCHEMES: dict[str, Callable[[str], Store]] = {
    "": lambda path: FolderStore(Path(path)),
    "s3": _in_objects,
    "gs": _in_objects,
    "az": _in_objects,
}
"""Constructors of stores by the scheme of the address; a path has none."""


def store_at(location: AnyStore) -> Store:
    """Return the store at a path or address, whether or not it exists.

    Examples
    --------
    >>> str(store_at("rows.zarr").within("2026-01-05.zarr"))
    'rows.zarr/2026-01-05.zarr'
    """
    if not isinstance(location, str | os.PathLike):
        if hasattr(type(location), "for_zarr"):
            return location
        raise UsageError(
            f"A path or an address is needed, not a value of type {type(location).__name__}. Ingest rows of Dask, "
            f"xarray, pandas or NumPy first ({step('ingest')}), or pass them to an estimator."
        )
    text = text_of(location)
    scheme = text.partition("://")[0].lower() if is_address(text) else ""
    return SCHEMES[scheme](text) if scheme in SCHEMES else FolderStore(local(text))


def replace_own(target: Store, content: bytes, noun: str, *, private: bool, own: Callable[[bytes], bool]) -> None:
    """Write a file, replacing an existing one only if dpdist wrote it."""
    name, existing = str(target).rpartition("/")[2], b""
    with suppress(OSError):
        existing = target.parent.get(name)
    if target.exists() and not own(existing):
        raise DataError(
            f"{target} exists already and is not a {noun} that dpdist wrote. Choose another path for the {noun}."
        )
    target.parent.replace(name, content, noun, private=private)
