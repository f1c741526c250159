"""The folder of a session: its terms, the public keys of its sites and their shares, as files of its own each.

::

    session.json       the terms, written once by whoever creates the session
    NAME.key.json      the public key of a site
    NAME.share         the share of a site

All files are public. Each site writes its own files only, so the folder may be copied, sent in parts by e-mail, or be
an address in an object store. Whatever it contains may come from anyone: terms are planned anew by each site, keys are
compared by their fingerprint, and a share proves nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dpdist.core.errors import DataError, DpdistError, RefusedError
from dpdist.core.html import table
from dpdist.core.naming import step
from dpdist.core.noise.masks import KeySet, is_public_key
from dpdist.core.release.attributes import Coverage
from dpdist.core.release.session import FORMAT, Terms
from dpdist.core.release.share import FORMAT as SHARE_FORMAT
from dpdist.core.release.share import ShareHead, checksum_of, head_of, key_name, share_name
from dpdist.core.storage.arrays import SESSION_FILE
from dpdist.core.storage.store import AnyStore, Store, store_at
from dpdist.core.text import has_control, listed, repeated
from dpdist.core.triangle import Band

_LARGEST = 64 << 20
KEY_FORMAT = "dpdist-session-key/1"


class PublicKey(Struct, frozen=True, forbid_unknown_fields=True):
    """The public key of a site, as stored in the folder of the session."""

    format: str
    session: str  # digest of the terms
    site: str
    x25519: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


@dataclass(frozen=True)
class Session:
    """A session of several sites, as far as its folder contains it. Everything in it is public.

    :func:`dpdist.open_session` and the steps of a session return it.

    Attributes
    ----------
    store : Store
        The folder.
    terms : Terms
        Sites, columns, bound, loss and noise, which are fixed.
    keys : dict of str to bytes
        The public keys that are there, by site.
    shares : dict of str to ShareHead
        The heads of the shares that are there, sound and made with these keys, by site.
    unusable : dict of str to str
        The sites whose share is there and cannot be used, with the reason.
    missing_keys, missing_shares : list of str
        The sites whose public key, or usable share, is missing.
    fingerprint : str or None
        Eight groups of four letters and digits that all sites must see; None until every key is there.

    See Also
    --------
    create_session : Creates a session.
    inspect_path : Describes a session in plain values.

    Examples
    --------
    >>> import tempfile
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(1, 1e-6), clip_norm=4)
    >>> sites = {"boston": 1200, "lyon": 800, "oslo": 950}
    >>> session = dpdist.create_session(f"{here.name}/study", sites, request, columns=["age", "weight"])
    >>> session.terms.colluding, session.fingerprint, session.shares
    (1, None, {})
    >>> here.cleanup()
    """

    store: Store
    terms: Terms
    keys: dict[str, bytes]
    shares: dict[str, ShareHead]
    unusable: dict[str, str]

    def __repr__(self) -> str:
        name = str(self.store).rpartition("/")[2]
        return f"Session({name!r}, {', '.join(self.terms.names)}, {len(self.keys)} keys, {len(self.shares)} shares)"

    def _repr_html_(self) -> str:
        return table("Session", dict(self.lines()))

    @property
    def missing_keys(self) -> list[str]:
        """The sites whose public key is missing."""
        return [name for name in self.terms.names if name not in self.keys]

    @property
    def missing_shares(self) -> list[str]:
        """The sites whose share is missing, or cannot be used."""
        return [name for name in self.terms.names if name not in self.shares]

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the terms and all keys; None until every key is there."""
        return None if self.missing_keys else self.key_set().fingerprint

    def key_set(self) -> KeySet:
        """Return the keys of all sites; refuse an incomplete or inconsistent set."""
        if self.missing_keys:
            raise DataError(
                f"Public keys are missing in {self.store}: of {listed(self.missing_keys)}. Each site writes its own, "
                f"with {step('session key')}. Ask for their files."
            )
        keys = [self.keys[name] for name in self.terms.names]
        for name, key in self.keys.items():
            if not is_public_key(key):
                raise RefusedError(f"The public key of {name} in {self.store} is none. Ask {name} for it again.")
        if repeated(key.hex() for key in keys):
            raise RefusedError(f"Two sites have the same public key in {self.store}. Ask both for their keys again.")
        return KeySet(bytes.fromhex(self.terms.digest), tuple(keys))

    def lines(self) -> list[tuple[str, str]]:
        """Return what people should know of it, with labels."""
        terms, plan = self.terms, self.terms.plan
        guarantee = terms.share.guarantee
        count = f"{terms.rows} in all" if terms.rows is not None else f"private, at most {terms.rows_at_most}"
        return [
            ("session", terms.digest[:32]),
            ("sites", listed(f"{s.name} ({s.rows} rows)" if s.rows else s.name for s in terms.sites)),
            ("guarantee", f"{guarantee.loss} under {terms.neighbours} for the rows of each site, if {terms.condition}"),
            ("worst case", terms.facts.worst_case(guarantee)),
            ("trust", "each site is trusted with its own rows, nobody with a sum without noise"),
            ("files", "those who carry them can spoil the result, and learn nothing"),
            ("columns", listed(terms.columns)),
            ("unit", "one row" if terms.unit is None else f"all rows of one {terms.unit.column} at a site"),
            ("clip norm", f"{plan.bound.clip_norm:.6g}"),
            ("rows", count),
            ("keys", "all" if not self.missing_keys else f"missing: {listed(self.missing_keys)}"),
            ("fingerprint", self.fingerprint or "none until all keys are there"),
            ("shares", "all" if not self.missing_shares else f"missing: {listed(self.missing_shares)}"),
            *(("UNUSABLE", reason) for reason in self.unusable.values()),
        ]


def key_content(terms: Terms, site: str, public: bytes) -> bytes:
    """Return the content of that file."""
    key = PublicKey(KEY_FORMAT, terms.digest, site, public.hex())
    return json.dumps(msgspec.to_builtins(key), indent=2).encode() + b"\n"


def opened(path: AnyStore) -> Session:
    """Read and check a session; see :func:`dpdist.open_session`."""
    store = store_at(path)
    if not store.exists(SESSION_FILE):
        raise DataError(
            f"There is no session at {store}: no file {SESSION_FILE}. If another site created it, copy its folder "
            f"here; {step('session create')} creates a new one."
        )
    terms = _terms(store)
    keys = {name: key for name in terms.names if (key := _key(store, terms, name)) is not None}
    session = Session(store, terms, keys, {}, {})
    digest = None if session.missing_keys else session.key_set().digest.hex()
    shares, unusable = dict[str, ShareHead](), dict[str, str]()
    for name in terms.names:
        try:
            head = _share_head(store, terms, name)
        except DataError as error:
            unusable[name] = str(error)
            continue
        if head is not None and digest is not None and head.keys != digest:
            unusable[name] = (
                f"{store.address(share_name(name))} was made with other public keys than those in the folder, so its "
                "masks do not cancel. Nothing was spent. Restore those keys, or make a new session."
            )
        elif head is not None:
            shares[name] = head
    return replace(session, shares=shares, unusable=unusable)


def _share_head(store: Store, terms: Terms, site: str) -> ShareHead | None:
    """Return the head of the share of a site, None without one; DataError if it is damaged or of something else."""
    name = share_name(site)
    if not store.exists(name):
        return None
    head, location = head_of(store, name), store.address(name)
    if head is None:
        raise damaged_share(store, site)
    if head.format != SHARE_FORMAT:
        raise DataError(
            f"{location} has format {head.format!r}, which this version of dpdist does not know. Use the same version "
            "at all sites."
        )
    if head.session != terms.digest:
        raise DataError(f"{location} is a share of another session. Ask {site} for that of this one.")
    if head.site != site:
        raise DataError(f"{location} is the share of {head.site}, named as if it were that of {site}. Rename it.")
    start = share_start(store, terms, site)
    entries = Band.whole(terms.plan.bound.width).entries
    if has_control(head.condition or "") or head.entries != entries or start < 1 or not _of_a_table(head.extents):
        raise damaged_share(store, site)
    try:
        ends_line = store.get_range(name, start - 1, 1) == b"\n"
    except OSError:
        ends_line = False
    if not ends_line:
        raise damaged_share(store, site)
    return head


def _of_a_table(extents: tuple[Coverage, ...]) -> bool:
    """Return whether a share says of which table it is, all of it."""
    return len(extents) == 1 and extents[0] == Coverage(extents[0].dataset)


def share_start(store: Store, terms: Terms, site: str) -> int:
    """Return where the entries of a share begin, if it is complete."""
    entries = Band.whole(terms.plan.bound.width).entries
    return (store.size(share_name(site)) or 0) - 8 * entries - checksum_of(terms).digest_size


def damaged_share(store: Store, site: str) -> DataError:
    """Return the error for a share that is damaged."""
    return DataError(
        f"{store.address(share_name(site))} is not a share of {site}, or it is damaged. Fetch it again: the same "
        f"{step('session share')} command of {site} writes the same bytes at no cost."
    )


def _terms(store: Store) -> Terms:
    damaged = f"{store.address(SESSION_FILE)} is not a session, or it is damaged. Get it anew from its creator."
    try:
        content = store.get(SESSION_FILE, _LARGEST)
        value = json.loads(content)
    except (OSError, ValueError, RecursionError):
        raise DataError(damaged) from None
    written = value.get("format") if isinstance(value, dict) else None
    if isinstance(written, str) and written.startswith("dpdist-session/") and written != FORMAT:
        raise DataError(
            f"{store.address(SESSION_FILE)} has format {written!r}, which this version of dpdist does not know. Use "
            "the same version at all sites."
        )
    try:
        terms = msgspec.convert(value, Terms)
        _ = terms.plan
    except DpdistError:
        raise
    except Exception:  # noqa: BLE001 - terms may come from anyone, and every type fails in its own way
        raise DataError(damaged) from None
    if terms.format != FORMAT or terms.content != content:
        raise DataError(damaged)
    return terms


def _key(store: Store, terms: Terms, site: str) -> bytes | None:
    """Return the public key of a site in the folder, or None."""
    name = key_name(site)
    if not store.exists(name):
        return None
    try:
        key = msgspec.json.decode(store.get(name, _LARGEST), type=PublicKey)
    except (OSError, ValueError, RecursionError):
        key = None
    if key is None or (key.format, key.site) != (KEY_FORMAT, site):
        raise DataError(f"{store.address(name)} is not a public key of {site}. Ask {site} for it again.")
    if key.session != terms.digest:
        raise DataError(
            f"{store.address(name)} is for another session, or its site has other terms. Compare {SESSION_FILE} "
            f"with {site}."
        )
    return bytes.fromhex(key.x25519)
