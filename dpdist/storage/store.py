"""Where rows, scores, models and releases lie: folders of this machine, and object stores behind the same methods.

A :data:`Store` is one thing that dpdist wrote (a rows.zarr, a folder of periods, a release.zarr): bytes under keys
such as ``zarr.json`` and ``c/0/0``. Whatever reads or writes one asks the store, and knows no path. Sources of an
ingest are read by :mod:`dpdist.ingest`, and ledgers are kept by :mod:`dpdist.ledger`: neither is a store. A store is
small, can be pickled, compared and hashed, and names the same thing in every process that sees the place. Its text is
the place as people name it. Methods that read raise OSError where there is nothing to read.

**One protocol** publishes everything (:meth:`FolderStore.staged`): claim a new place that no reader sees, put objects
there, make them durable, then let one atomic step decide what is found. The loser of a race fails as
:meth:`FolderStore.require_new` does; what a dead builder left is invisible, and removed or taken up later.

================  =====================================  =====================================================
step              folder (:mod:`dpdist.storage.atomic`)  object store (:mod:`dpdist.storage.objects`)
================  =====================================  =====================================================
claim             a new folder, locked (flock)           a new prefix and its attempt, or a lease of an identity
durable           fsync                                  when sent
publish           rename                                 the pointer or the root, created if absent
a dead builder's  no lock is held                        no pointer names it; or the lease is of the same identity
================  =====================================  =====================================================

To add a place where rows live, write a module next to this one with a class that has the methods of
:class:`FolderStore`, add it to :data:`Store` and its scheme to :data:`PLACES`, its library to ``pyproject.toml`` as an
extra, and its name to the list of stores in ``tests/storage/test_store.py``, whose tests are the contract.
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

from dpdist._util.paths import AnyPath, is_address, local, read_plain, read_plain_range
from dpdist._util.text import random_token
from dpdist.errors import DataError, ResumableError, UsageError
from dpdist.naming import step
from dpdist.storage import atomic, cleaning

if TYPE_CHECKING:
    from dpdist.storage.objects import ObjectStore, Stream

Store: TypeAlias = "FolderStore | ObjectStore"
"""One thing that dpdist wrote, or is about to write: bytes under keys."""
AnyStore: TypeAlias = "AnyPath | Store"
"""A store, or where it is: the path of a folder, or an address with a scheme of :data:`PLACES`."""
Reader: TypeAlias = "FileIO | Stream"
"""An object that is read from its start to its end: ``readinto`` returns fewer bytes only where the object ends."""
ABANDONED_SECONDS = 86400.0
"""For how long nobody touched what is taken for a leftover."""
MOST_AT_ONCE = 512 << 20
"""Bytes at most of what is read in one piece: what a thing says of itself, its seals, or a chunk of a release."""


@dataclass(frozen=True)
class FolderStore:
    """A folder, and its files; its methods say what every store does."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def parent(self) -> FolderStore:
        """What it stands in."""
        return FolderStore(self.path.parent)

    def within(self, name: str) -> FolderStore:
        """Return a thing that stands in it."""
        return FolderStore(self.path / name)

    def absolute(self) -> FolderStore:
        """Return it by a name that does not depend on the process."""
        return FolderStore(self.path.absolute())

    def address(self, key: str = "") -> Path:
        """Return what :func:`store_at` finds it by, or one of its objects."""
        return self.path / key

    @property
    def scratch_folder(self) -> Path:
        """A folder of this machine for temporary files: here on the same disk, where there must be room anyway."""
        return self.path.absolute().parent

    # --- reading ---

    def exists(self, key: str = "") -> bool:
        """Say whether it is there, or one of its objects."""
        return (self.path / key).exists()

    def size(self, key: str) -> int | None:
        """Return the bytes of an object; None if it is none, such as a link, which leads anywhere, or a pipe."""
        about = (self.path / key).lstat()
        return about.st_size if stat.S_ISREG(about.st_mode) else None

    def sizes(self, prefix: str) -> Callable[[str], int | None]:  # noqa: ARG002 - they are looked at one by one
        """Return :meth:`size` for many objects below a prefix."""
        return self.size

    def get(self, key: str, most: int = MOST_AT_ONCE) -> bytes:
        """Return an object of at most ``most`` bytes; OSError if it has more, or is none."""
        return read_plain(self.path / key, most)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return bytes of an object; OSError if it has not so many, or is none."""
        return read_plain_range(self.path / key, start, length)

    def opened(self, key: str) -> FileIO:
        """Open an object, to be read straight into buffers."""
        handle = os.open(self.path / key, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "it is no file")
        return FileIO(handle)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield key and :meth:`size` of all that is there, in no order; links are not followed."""
        for folder, folders, files in os.walk(self.path / prefix):
            for name in (*folders, *files):
                path = Path(folder, name)
                about = path.lstat()
                if not stat.S_ISDIR(about.st_mode):
                    size = about.st_size if stat.S_ISREG(about.st_mode) else None
                    yield path.relative_to(self.path).as_posix(), size

    def for_zarr(self) -> Path:
        """Return what Zarr opens and creates it by."""
        return self.path

    # --- writing ---

    def require_new(self, what: str) -> None:
        """Refuse to write over something, or where nothing can be written: DataError."""
        atomic.require_new(self.path, what)

    def require_space(self, size: int, what: str) -> None:
        """Refuse to write more than there is room for: DataError."""
        atomic.require_space(self.path, size, what)

    @contextmanager
    def staged(
        self,
        what: str,
        *,
        private: bool = False,
        identity: Callable[[], str] | None = None,  # noqa: ARG002 - every builder has a folder of its own
        keys: Callable[[], Iterable[str]] = tuple,  # noqa: ARG002 - as above
        resume: bytes | None = None,
    ) -> Iterator[Store]:
        """Give a store to build in; it appears here when the block ends, once, whole and durable, or never.

        Parameters
        ----------
        what
            What is built, for messages.
        private
            Whether only its owner may read it; an object store leaves that to its owner.
        identity
            Where readers know the keys, as of a release: what its content follows from, so that all who have the same
            identity write the same objects, at once or one after another. Else a store hides what is built by itself.
        keys
            With an identity: the keys of all objects.
        resume
            What is built, if it is private and the work of hours: the store that a builder of the same left when it
            died or raised ResumableError is given again, with what was :meth:`flushed <flush>`; or else an empty one.
        """
        with atomic.staged(self.path, what, private=private, resume=resume) as aside:
            yield FolderStore(aside)

    def put(self, key: str, content: bytes | memoryview) -> None:
        """Write an object of what is being built: whole or not at all, again if need be; durable when it appears."""
        path = self.path / key
        for folder in reversed(path.relative_to(self.path).parents[:-1]):  # never itself: it may have been given up
            (self.path / folder).mkdir(0o700, exist_ok=True)
        aside = self.path / f".put.{random_token()[:8]}.partial"  # a name that is cleaned up
        with open(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:  # noqa: PTH123 - of a handle
            file.write(content)
            file.flush()
            # Linux then begins to write to the disk, and what flushes it waits less
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        aside.replace(path)

    def flush(self, keys: Iterable[str]) -> None:
        """Make objects of what is being built durable now."""
        atomic.flush(self.path, (self.path / key for key in keys))

    def drop(self, prefix: str) -> None:
        """Remove all objects below a prefix from what is being built."""
        shutil.rmtree(self.path / prefix, ignore_errors=True)

    def replace(
        self, key: str, content: bytes, what: str, *, private: bool = False, expected: bytes | None = None
    ) -> None:
        """Replace an object, or create it, in one step: durable when this returns. DataError if it cannot be.

        With ``expected`` it is replaced only if that is what is there, else ResumableError: another process was faster.
        A folder must be held meanwhile.
        """
        if expected is not None and self.get(key) != expected:
            raise ResumableError(f"Another process changed the {what} {self} meanwhile. Run the same command again.")
        atomic.replace_file(self.path / key, content, what, private=private)

    def delete(self) -> None:
        """Remove it with all that stands in it, as far as that goes."""
        shutil.rmtree(self.path, ignore_errors=True)

    def clean(self, age: float = ABANDONED_SECONDS) -> tuple[str, ...]:
        """Remove what dead builders left here, and return what it was called.

        Keeps everything that is held, published, touched within ``age`` seconds, or not written by dpdist. DataError if
        that cannot be known here.
        """
        return tuple(map(str, cleaning.clean(self.path, age)))

    def locked(self) -> AbstractContextManager[object]:
        """Hold it against other processes that ask to hold it, waiting for it if need be; DataError if none can.

        A folder is held against all of them (flock), an object store against those of this user and machine: what
        others do meanwhile, :meth:`replace` sees. What is not there is not held: its reader says what is wrong with it.
        """
        return atomic.locked(self.path)


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


def replace_own(place: Store, content: bytes, what: str, *, private: bool, own: Callable[[bytes], bool]) -> None:
    """Write a file; one that is there is replaced only if dpdist wrote it, lest a slip of the hand cost a table."""
    name, found = str(place).rpartition("/")[2], b""
    with suppress(OSError):
        found = place.parent.get(name)
    if place.exists() and not own(found):
        raise DataError(f"{place} exists already, and is no {what} of dpdist. Choose another place for the {what}.")
    place.parent.replace(name, content, what, private=private)
