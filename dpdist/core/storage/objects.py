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
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime

from dpdist.core.errors import DataError, DpdistError, ResumableError
from dpdist.core.storage import connections
from dpdist.core.storage.atomic import ABANDONED_SECONDS, require_folder_name
from dpdist.core.storage.bucket import POINTER, ROOT, Objects, changed, joined
from dpdist.core.text import random_token

LEASE = "dpdist-lease/1"
_ATTEMPT = ".attempt"
_BUILDING, _PUBLISHING, _REMOVING = (b"dpdist-attempt/1 " + word for word in (b"building", b"publishing", b"removing"))


@dataclass(frozen=True)
class ObjectStore(Objects):
    """An address in an object store, with the methods of :class:`~dpdist.core.storage.store.FolderStore`."""

    def require_new(self, noun: str) -> None:
        """Refuse an address that exists, a name like that of a file, and a store without conditional writes."""
        self._require_name(noun)
        if self.exists():
            raise DataError(f"{self} exists already. Choose another address for the {noun}.")
        require_folder_name(str(self), noun)
        self._require_conditional()

    def require_space(self, size: int, noun: str) -> None:
        """Accept any size: stores do not report free space."""

    def staged(
        self,
        noun: str,
        *,
        private: bool = False,  # noqa: ARG002 - the owner of the store sets permissions
        identity: Callable[[], str] | None = None,
        keys: Callable[[], Iterable[str]] = tuple,
        resume: bytes | None = None,
    ) -> AbstractContextManager[ObjectStore]:
        """Yield a store to build in: a prefix of its own or, with an identity, the address under a lease."""
        return self._prefixed(noun, resume) if identity is None else self._leased(noun, identity, keys)

    @contextmanager
    def _prefixed(self, noun: str, resume: bytes | None) -> Iterator[ObjectStore]:
        """Yield a prefix; at the end create its pointer, or remove it on an error unless it can be resumed.

        A note on this machine records what can be resumed, under a lock. Other machines use prefixes of their own.
        """
        holding = nullcontext() if resume is None else connections.locked_here(f"{self.url}.unfinished")
        with holding as note:
            self.require_new(noun)
            token = self._claim(noun, note, hashlib.sha256(resume or b"").hexdigest())
            staging = replace(self, folder=joined(self._key, token))
            try:
                yield staging
                try:
                    if self._state(token) != _PUBLISHING:  # unless a builder died after this
                        self._set_state(token, _PUBLISHING, noun)
                except OSError:
                    raise changed(self, noun) from None  # a cleaner removed it as abandoned
            except BaseException as error:
                if resume is None or not isinstance(error, ResumableError):
                    with suppress(DpdistError):
                        self._discard(token)
                raise
            pointer = {
                "attributes": {"dpdist": {"format": POINTER, "prefix": token}}, "zarr_format": 3, "node_type": "group",
            }  # fmt: skip
            # if this fails the prefix stays: the pointer may have been created
            published = self._create(joined(self._key, ROOT), json.dumps(pointer, indent=2).encode(), noun)
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
        return joined(self._key, f"{token}{_ATTEMPT}")

    def _state(self, token: str) -> bytes:
        return self._get(self._attempt(token), 1 << 10)

    def _set_state(self, token: str, state: bytes, noun: str) -> None:
        """Move the attempt from building to a state; OSError or ResumableError if another process was faster."""
        replace(self, folder=self._key).replace(f"{token}{_ATTEMPT}", state, noun, expected=_BUILDING)

    def _discard(self, token: str) -> None:
        replace(self, folder=joined(self._key, token)).delete()
        self._remove_object(self._attempt(token))

    @contextmanager
    def _leased(
        self, noun: str, identity: Callable[[], str], keys: Callable[[], Iterable[str]]
    ) -> Iterator[ObjectStore]:
        """Yield the address itself if its lease has this identity; create the root object at the end."""
        self.require_new(noun)
        lease, root = f"{self._key}.lease", f"{self._key}.root"
        if not self._create(lease, json.dumps({"format": LEASE, "identity": identity()}).encode(), noun):
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
        foreign = {key for key, _ in staging.list()}.difference(keys(), [ROOT])
        if foreign:  # readers would take them for a part of it
            raise DataError(
                f"There are objects at {self} that are not part of the {noun}, such as {min(foreign)!r}. Remove them "
                "and run the same command again, or choose another address."
            )
        published = self._create(joined(self._key, ROOT), content, noun)
        self._try_remove(root)
        if not published:
            raise self._lost_race(noun)

    def _lost_race(self, noun: str) -> DpdistError:
        if self.exists():
            return DataError(f"{self} exists already. Choose another address for the {noun}.")
        return changed(self, noun)

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
        if state != _REMOVING or named == joined(self._key, token) or (named == self._key and published.exists()):
            return False  # published, or not a pointer that this version knows
        self._discard(token)
        return True

    def delete(self) -> None:
        """Remove its objects, the root first; never those of a whole bucket."""
        self._require_name("release")
        folder = self._folder()
        if self.folder is None:
            self._remove_object(joined(self._key, ROOT))
        self._remove(folder)
        if self.folder is None:
            self._remove_object(f"{self._key}.lease")

    def locked(self) -> AbstractContextManager[object]:
        """Lock it against other processes of this user on this machine; :meth:`replace` detects others."""
        return connections.locked_here(self.url)


def _write_note(note: int, text: str) -> None:
    """Write the note of the unfinished build; empty if there is none."""
    os.ftruncate(note, 0)
    os.pwrite(note, text.encode(), 0)
