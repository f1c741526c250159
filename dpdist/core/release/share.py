"""Shares of a session: drawn once under a key that makes one share, and destroyed before the share leaves the ledger.

A share is the exact sum of a site's rows, with the site's noise (:mod:`dpdist.core.mechanisms.noise_share`) and its
masks (:mod:`dpdist.core.noise.masks`). The ledger reserves, draws and commits it like any release, so the same command
returns the same bytes, wherever a process dies. In addition, the secret key of the site is used once:

1. :func:`create_key` draws it into the state folder, readable by its owner only.
2. :meth:`ShareTransaction.reserve` charges the ledger, and then binds the key to the id of this share, which follows
   from the session, the site and the identity of the rows. Nothing is drawn before both are on the disk.
3. The masks are drawn for that id only. Drafts of attempts that died are never published.
4. :meth:`ShareTransaction.publish` destroys the key after the bytes are committed, and then writes the file.

Other rows have another id. If they are offered for a session whose key is bound, they are refused, and the key is
destroyed: two shares under one mask differ by the change of the rows and fresh noise only. A share that was committed
is sent again from the ledger, and needs no key. One that was reserved only is refunded, and the session is lost. The
record of the key stays, so that no second key is made for the session here.

A state folder that is restored to a moment between 1 and 4 has a key that made a share. The head of a share has a tag
by that key, so if the share is still in the folder of the session, or the witness of the ledger knows of it, nothing is
charged, and the key is destroyed. If neither is so, a second draw cannot be detected: as a ledger and its witness, the
state folder must not be restored from a backup. Whoever controls the folder can plant any other file there. That is
refused before anything is charged, and the key stays.

**What is in a share.** Its head is public: session, site, digests of keys and rows, and the statements that the site's
ledger makes. Its integers are uniform for anyone who lacks one of its masks, which is every coalition that the session
allows. The checksum at the end detects damage, and proves nothing: a malicious site can change the sum, and so can
whoever carries its file, but neither learns anything by it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct

from dpdist.core.errors import DataError, RefusedError
from dpdist.core.ledger.ledger import ID_PATTERN, Ledger
from dpdist.core.ledger.state import State
from dpdist.core.ledger.state_folder import StateFile, state_home
from dpdist.core.naming import step
from dpdist.core.noise.masks import KeySet, new_key, public_key
from dpdist.core.release.artefact import Heading
from dpdist.core.release.attributes import Coverage, SiteName
from dpdist.core.release.request import id_of
from dpdist.core.release.session import Terms
from dpdist.core.release.trusted import Answer, MomentTransaction
from dpdist.core.storage.arrays import SHARE_ENDING, Text
from dpdist.core.storage.store import Store
from dpdist.core.triangle import Band

FORMAT = "dpdist-share/1"
_KEY = "dpdist-site-secret/1"
_LOST = "If it is lost, the sites need a new session."
_HEAD_BYTES = 1 << 20
MOST_CONDITION = 1 << 16
_Hex = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class SiteKey(Struct, frozen=True, forbid_unknown_fields=True):
    """The stored key of a site for one session. Private."""

    public: str  # hexadecimal
    secret: str | None  # None once the share is committed, or the session lost
    release_id: str | None = None  # the only share that may be made with it

    def __repr__(self) -> str:
        return f"SiteKey({self.public!r}, {self.release_id!r})"  # without the secret

    def bound_to_other(self, release_id: str) -> bool:
        """Return whether the only share that may be made with it is another one."""
        return self.release_id not in {None, release_id}


def _key_file(terms: Terms, site: str) -> StateFile[SiteKey]:
    path = state_home() / "sessions" / f"{terms.digest[:32]}.{terms.index(site)}.json"
    return StateFile(path, "key of the session", _KEY, SiteKey, _LOST)


def key_name(site: str) -> str:
    """Return the name of the file with the public key of a site, in the folder of a session."""
    return f"{site}.key.json"


def share_name(site: str) -> str:
    """Return the name of the file with the share of a site."""
    return f"{site}{SHARE_ENDING}"


def create_key(terms: Terms, site: str) -> bytes:
    """Draw the key of a site for a session into the state folder, once; return its public key."""
    file = _key_file(terms, site)
    with file.locked():
        key = file.read()
        if key is None:
            secret = new_key()
            key = SiteKey(public_key(secret).hex(), secret.hex())
            file.write(key)
    return bytes.fromhex(key.public)


def key_location(terms: Terms, site: str) -> Path:
    """Return the file of the key of a site for a session."""
    return _key_file(terms, site).path


def stored_key(terms: Terms, site: str) -> SiteKey | None:
    """Return the key of a site in this state folder, or None."""
    return _key_file(terms, site).read()


def _bound_key(terms: Terms, site: str, release_id: str) -> SiteKey:
    """Return the key for one share, and bind it to that share; destroy a key that is bound to another one."""
    file = _key_file(terms, site)
    with file.locked():
        key = file.read()
        if key is None:
            raise RefusedError(
                f"The key of {site} for this session is not on this machine, or belongs to another user. Nothing was "
                f"drawn. Run this where {step('session key')} was run. If the key is lost, and no site has made its "
                f"share, move {key_name(site)} away, and add a new key; all sites compare the fingerprint again."
            )
        if key.bound_to_other(release_id):
            file.write(msgspec.structs.replace(key, secret=None))
            raise _of_other_rows(site)
        if key.secret is None:
            raise RefusedError(
                f"The key of {site} for this session was destroyed, and this ledger has no share made with it. The "
                "sites need a new session. What was reserved is refunded by this command."
            )
        if key.release_id is None:
            key = msgspec.structs.replace(key, release_id=release_id)
            file.write(key)
    return key


def _of_other_rows(site: str) -> RefusedError:
    return RefusedError(
        f"The key of {site} was used for a share of other rows, and a second share would reveal their difference. "
        "Nothing was spent, and the key was destroyed: no more share can be made of this session here. The command for "
        "the first rows still sends their share, if it was drawn. For these rows, the sites need a new session, which "
        "is a new charge."
    )


class ShareHead(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The head of a share, a line of JSON. Public."""

    format: str
    session: _Hex  # digest of the terms
    keys: _Hex  # digest of the public keys of all sites
    site: SiteName
    release_id: Annotated[str, Meta(pattern=rf"^{ID_PATTERN}\Z")]  # in the ledger of the site
    entries: Annotated[int, Meta(ge=1)]
    extents: tuple[Coverage, ...]
    condition: Annotated[Text, Meta(max_length=MOST_CONDITION)] | None  # of the ledger of the site
    tag: _Hex  # by which a site recognises a share that was made with its key


@dataclass(frozen=True, kw_only=True)
class ShareTransaction(MomentTransaction):
    """The share of one site; ``target`` is the folder of the session."""

    terms: Terms
    site: str
    keys: KeySet

    @cached_property
    def release_id(self) -> str:
        """The id, from the session, the site, the request and the identity of the table."""
        return id_of("h", self.parameters)

    @property
    def parameters(self) -> dict[str, object]:
        """The parameters of the share besides the rows, as JSON values."""
        return {**self.plan.parameters(self.table), "session": self.terms.digest, "site": self.site}

    @property
    def file(self) -> str:
        """The name of the file of the share."""
        return share_name(self.site)

    @property
    def place(self) -> str:
        """Where it is published."""
        return str(self.target.address(self.file))

    def reserve(self) -> State:
        """Charge the share, and bind the key of the site to it; a share that can never be drawn is refunded."""
        ledger = self.account()
        before = ledger.record(self.release_id)
        if before is None or before.digest is None:
            self._require_first(ledger)
        elif before.state is State.ADOPTED:
            _destroy_key(self.terms, self.site)
        state = self.charge(ledger)
        if state is State.RESERVED:
            try:
                self._key()
            except RefusedError:
                key = stored_key(self.terms, self.site)
                destroyed = key is not None and key.secret is None
                own = before is None or before.state is State.ABORTED  # not that of a process which may be drawing
                if (own or destroyed) and not ledger.abort(self.release_id):
                    return State.COMMITTED  # by another process meanwhile
                raise
        return state

    def require_own_key(self) -> None:
        """Refuse other rows than those that the key of the site is bound to; nothing is changed."""
        key = stored_key(self.terms, self.site)
        if key is not None and key.bound_to_other(self.release_id):
            raise RefusedError(
                f"The key of {self.site} was used for other rows than {self.table}, or is bound to them. For these "
                "rows, the sites need a new session, which is a new charge."
            )

    def _require_first(self, ledger: Ledger) -> None:
        """Refuse a second share of the key, by the key, the witness, or the file in the folder of the session."""
        key = stored_key(self.terms, self.site)
        if key is not None and key.bound_to_other(self.release_id):
            _destroy_key(self.terms, self.site)
            raise _of_other_rows(self.site)
        if self.release_id in ledger.missing():  # the refusal follows when the ledger is charged
            _destroy_key(self.terms, self.site)
        if len(ledger.condition or "") > MOST_CONDITION:
            raise RefusedError(f"The ledger of {self.table} makes too long a statement for a share. Nothing was spent.")
        if not self.target.exists(self.file):
            return
        head = head_of(self.target, self.file)
        if head is not None and key is not None and key.secret is not None and head.tag == head_tag(head, key.secret):
            _destroy_key(self.terms, self.site)
            raise RefusedError(
                f"{self.place} was made with the key of this machine, and the ledger does not have it as the share of "
                "these rows: the ledger or the state folder was restored from an older copy, or the rows are others. A "
                "second share under the same masks would reveal the rows. Nothing was spent, and the key was "
                "destroyed. The sites need a new session, unless a newer copy of the ledger has that share."
            )
        raise RefusedError(
            f"{self.place} exists already, and was not made with the key of this machine. Nothing was spent. If no "
            f"share of {self.site} was made before, move it away; otherwise run this where it was made."
        )

    def _key(self) -> bytes:
        """Return the secret key, which must be that of the public one."""
        key = _bound_key(self.terms, self.site, self.release_id)
        secret = bytes.fromhex(key.secret or "")
        if public_key(secret) != self.keys.keys[self.terms.index(self.site)]:
            raise RefusedError(
                f"The public key of {self.site} in {self.target} is not that of the key on this machine: it was "
                f"exchanged. Nothing was spent. Remove that file, run {step('session key')} again, and compare the "
                "fingerprint again."
            )
        return secret

    def stored(self, heading: Heading, answer: Answer) -> Iterator[bytes]:
        """Yield the bytes that are committed: head, masked entries and checksum."""
        key = self._key()
        masks = self.keys.masks(self.terms.index(self.site), key)
        head = ShareHead(
            format=FORMAT,
            session=self.terms.digest,
            keys=self.keys.digest.hex(),
            site=self.site,
            release_id=self.release_id,
            entries=Band.whole(heading.bound.width).entries,
            extents=heading.extents,
            condition=heading.condition,
            tag=_NO_TAG,
        )
        head = msgspec.structs.replace(head, tag=head_tag(head, key.hex()))
        checksum = checksum_of(self.terms)
        line = msgspec.json.encode(head) + b"\n"
        checksum.update(line)
        yield line
        assert not isinstance(answer, np.ndarray)  # noqa: S101 - gaussian releases a moment
        for _, values in answer:
            masked = masks.mask(values).astype("<i8", copy=False).tobytes()
            checksum.update(masked)
            yield masked
        yield checksum.digest()

    def publish(self) -> None:
        """Destroy the key, and write the committed bytes; idempotent."""
        with self.committed() as content:
            _destroy_key(self.terms, self.site)
            share = content.read()
            if decoded_head(share.partition(b"\n")[0]).keys != self.keys.digest.hex():
                raise RefusedError(
                    f"The share of {self.site} was made with other public keys than those in {self.target}, so its "
                    "masks would not cancel. Restore the key files, or make a new session."
                )
            if self.target.exists(self.file) and head_of(self.target, self.file) is None:
                self.target.replace(self.file, share, "share")  # it was damaged
            write_once(self.target, self.file, share, "share")


def _destroy_key(terms: Terms, site: str) -> None:
    """Remove the secret from the stored key of a site; idempotent."""
    file = _key_file(terms, site)
    with file.locked():
        key = file.read()
        if key is not None and key.secret is not None:
            file.write(msgspec.structs.replace(key, secret=None))


def decoded_head(line: bytes) -> ShareHead:
    """Return the head of a share; ValueError if it is none."""
    return msgspec.json.decode(line, type=ShareHead)


_NO_TAG = "0" * 64


def head_tag(head: ShareHead, secret: str) -> str:
    """Return the tag of a head: HMAC-SHA256, by the secret key of the site, of all that stands in it."""
    content = msgspec.json.encode(msgspec.structs.replace(head, tag=_NO_TAG), order="sorted")
    return hmac.new(bytes.fromhex(secret), b"dpdist share/1\n" + content, digestmod="sha256").hexdigest()


def head_of(folder: Store, name: str) -> ShareHead | None:
    """Return the head of a share in a folder; None without one, or if it is damaged."""
    try:
        start = folder.get_range(name, 0, min(folder.size(name) or 0, _HEAD_BYTES))
        line, newline, _ = start.partition(b"\n")
        return decoded_head(line) if newline else None
    except (OSError, ValueError, RecursionError):
        return None


def checksum_of(terms: Terms) -> hmac.HMAC:
    """Return the checksum of a share of a session: HMAC-SHA256 with the public digest of the terms as its key."""
    return hmac.new(bytes.fromhex(terms.digest), digestmod="sha256")


def write_once(folder: Store, name: str, content: bytes, noun: str) -> None:
    """Write a public file durably, once; refuse to replace other content."""
    if folder.exists(name):
        if folder.size(name) == len(content) and folder.get(name, len(content)) == content:
            return
        raise DataError(
            f"{folder.address(name)} exists already, and is another {noun}, or damaged. Move it away, then run the "
            "same command again."
        )
    folder.replace(name, content, noun)
