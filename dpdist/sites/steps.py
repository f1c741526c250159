"""The steps of a session: create it, add a key, release a share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.address import AnyLedgerAddress
from dpdist.core.naming import parameter, step
from dpdist.core.paths import AnyPath
from dpdist.core.pipeline import shares
from dpdist.core.privacy.guarantee import Guarantee
from dpdist.core.release.plan import Plan
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.release.session import Site
from dpdist.core.release.share import create_key, key_name, share_name, stored_key, write_once
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import unit_from
from dpdist.core.runtime.cluster import AnyCluster, chosen
from dpdist.core.storage.arrays import SESSION_FILE
from dpdist.core.storage.store import AnyStore, store_at
from dpdist.core.text import listed
from dpdist.sites.folder import (
    Session,
    key_content,
    opened,
)
from dpdist.sites.terms import terms_of


def create_session(
    session: AnyStore,
    sites: Sequence[str] | Mapping[str, int],
    request: ReleaseRequest,
    *,
    columns: Sequence[str] | None = None,
    schema: Schema | AnyPath | None = None,
    colluding: int | None = None,
    privacy_unit: str | None = None,
    max_rows: int | None = None,
    review: Callable[[Plan], object] | None = None,
) -> Session:
    """Create the folder of a session of several sites, whose rows are released together without a trusted sum.

    Everything is fixed here: how rows are bounded, the noise, and how many sites may collude. Nothing is drawn or
    charged. Then each site adds its key, all compare the fingerprint, each releases its share, and anybody adds up the
    shares.

    Parameters
    ----------
    session : str or path-like
        The folder to create, or its address. Everything in it is public.
    sites : mapping of str to int, or sequence of str
        Names of 2 to 256 sites. Under replace-one, with the number of rows of each, which is public.
    request : ReleaseRequest
        Loss, relation and bound. The mechanism must be ``gaussian``, and nothing may be chosen privately.
    columns : sequence of str, default None
        The columns of each site's rows, in order; for rows without a schema.
    schema : Schema, str or path-like, default None
        The schema that all sites ingest with, which determines the columns; a schema file, rows, a release or a model.
    colluding : int, default None
        Largest number of other sites that may collude against a site, from 0 to the number of sites less two. None: 1,
        for three sites or more; with two sites it must be 0.
    privacy_unit : str, default None
        Column of the privacy unit that all sites ingest with, as for :func:`ingest_rows`. None: that of the schema, or
        single rows.
    max_rows : int, default None
        Largest number of rows kept of each privacy unit at a site. None: all of them.
    review : callable, default None
        Called with the plan before anything is written; it may refuse it.

    Returns
    -------
    Session
        The session, without keys.

    Raises
    ------
    UsageError
        If the request does not fit a session, or sites, columns or colluding are out of range.
    RefusedError
        If delta is one over the number of all rows or more.
    DataError
        If the folder exists.

    See Also
    --------
    add_session_key, release_share, combine_shares : The next steps.

    References
    ----------
    Imtiaz, Mohammadi, Silva, Baker, Plis, Sarwate & Calhoun 2021 (CAPE, correlated noise of sites); Bonawitz et al.
    2017 (pairwise masks). The theorems are in :mod:`dpdist.core.mechanisms.noise_share` and
    :mod:`dpdist.core.noise.masks`.

    Examples
    --------
    >>> import tempfile
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(1, 1e-6), clip_norm=4)
    >>> sites = {"boston": 1200, "lyon": 800, "oslo": 950}
    >>> dpdist.create_session(f"{here.name}/study", sites, request, columns=["age", "weight", "height"])
    Session('study', boston, lyon, oslo, 0 keys, 0 shares)
    >>> here.cleanup()
    """
    store = store_at(session)
    store.require_new("session")
    if isinstance(sites, str):
        raise UsageError("Pass the names of the sites as a list, or with their numbers of rows as a mapping.")
    by_name = sites if isinstance(sites, Mapping) else dict.fromkeys(sites)
    if len(by_name) < len(sites):
        raise UsageError("Two sites have the same name. Name each once.", parameter="sites")
    meaning = schema if schema is None or isinstance(schema, Schema) else Schema.read(schema)
    if (meaning is None) is (columns is None):
        raise UsageError(f"Give either {parameter('columns')} or {parameter('schema')}.")
    if meaning is not None and meaning.unit is not None and (privacy_unit is not None or max_rows is not None):
        raise UsageError(
            f"The schema names the privacy unit: leave {parameter('privacy_unit')} and {parameter('max_rows')} "
            "out, and write max_rows = M at the top of the schema, if not all rows are kept."
        )
    unit = unit_from(privacy_unit, max_rows) if meaning is None or meaning.unit is None else meaning.unit
    names = meaning.features if meaning is not None else tuple(columns or ())
    described = [Site(name, rows) for name, rows in by_name.items()]
    terms = terms_of(described, request, names, colluding=colluding, schema=meaning, unit=unit)
    if review is not None:
        review(terms.plan)
    with store.staged("session") as staging:
        staging.put(SESSION_FILE, terms.content)
    return opened(store)


def open_session(session: AnyStore) -> Session:
    """Read the folder of a session: its terms, and which keys and shares are there.

    Parameters
    ----------
    session : str or path-like
        The folder, or its address.

    Returns
    -------
    Session
        The session, with its fingerprint if all keys are there.

    Raises
    ------
    DataError
        If there is none, or a file in it is damaged, or of another session.

    See Also
    --------
    create_session : Creates it.
    inspect_path : Describes it in plain values.

    Examples
    --------
    >>> import tempfile
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(1, 1e-6), 4, "add-remove")
    >>> session = dpdist.create_session(f"{here.name}/study", ["a", "b", "c"], request, columns=["age", "weight"])
    >>> dpdist.open_session(session.store).missing_keys
    ['a', 'b', 'c']
    >>> here.cleanup()
    """
    return opened(session)


def add_session_key(session: AnyStore, rows: AnyStore, site: str, *, ledger: AnyLedgerAddress | None = None) -> Session:
    """Draw the key of a site for a session, and write its public part to the folder. Repeating it changes nothing.

    First it checks that the share of these rows could be charged and drawn: columns, schema, privacy unit, number of
    rows, relation and budget. Nothing is spent. So once all keys are there, no site pays in vain for a mistake of
    another one. The secret part of the key stays in the state folder of this user, readable by its owner only, until
    the share is committed.

    Parameters
    ----------
    session : str or path-like
        The folder of the session, or its address.
    rows : str or path-like
        The rows.zarr of this site, or its address.
    site : str
        The name of this site.
    ledger : str or path-like, default None
        The ledger of the rows. None: next to them.

    Returns
    -------
    Session
        The session, with its fingerprint if all keys are there.

    Raises
    ------
    UsageError
        If the session has no such site, or is not about these rows.
    RefusedError
        If the share could not be charged, or the key was lost after a share was made with it.
    DataError
        If the folder contains another key of this site, or cannot be written.

    See Also
    --------
    release_share : The next step.

    References
    ----------
    Bernstein 2006 (Curve25519); RFC 7748.

    Examples
    --------
    Not run here:

    >>> import dpdist
    >>> dpdist.add_session_key("study", "rows.zarr", "boston").fingerprint  # doctest: +SKIP
    'K7QD-2MZP-...'
    """
    before = opened(session)
    terms, store = before.terms, before.store
    terms.index(site)
    shares.require_possible(open_rows(rows), store, terms, site, ledger)
    first = stored_key(terms, site) is None
    if first and store.exists(share_name(site)):
        raise RefusedError(
            f"{store.address(share_name(site))} is there, and the key of {site} is not on this machine: it was drawn "
            "elsewhere, or the state folder was lost. A second key would not fit the shares of the others. If the "
            "share is sound, nothing is missing; if no share was ever made, move that file away; otherwise the sites "
            "need a new session."
        )
    _require_usable(before, site)
    makers = [name for name in before.shares if name != site]
    if first and makers:
        raise RefusedError(
            f"{listed(makers)} made a share with a former key of {site}, which is not on this machine: a new key would "
            "not fit. The sites need a new session."
        )
    write_once(store, key_name(site), key_content(terms, site, create_key(terms, site)), f"key of {site}")
    return opened(session)


@dataclass(frozen=True)
class Share:
    """A share of a session.

    Attributes
    ----------
    path : Path or str
        The file, which is public.
    site, release_id : str
        The site, and the id of the share in its ledger.
    guarantee : Guarantee
        The guarantee of the rows of the site, which the ledger was charged for.
    fresh : bool
        Whether it was drawn now; otherwise the same bytes were written again.

    See Also
    --------
    release_share : Returns it.

    Examples
    --------
    Not run here:

    >>> import dpdist
    >>> share = dpdist.release_share("study", "rows.zarr", "boston", "K7QD-2MZP-...")  # doctest: +SKIP
    >>> share.guarantee.loss.epsilon, share.fresh  # doctest: +SKIP
    (1.0, True)
    """

    path: AnyPath
    site: str
    release_id: str
    guarantee: Guarantee
    fresh: bool

    def __repr__(self) -> str:
        return f"Share({PurePath(self.path).name!r}, {'released now' if self.fresh else 'released before'})"

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "share": str(self.path), "site": self.site, "release_id": self.release_id, "fresh": self.fresh,
            "guarantee": self.guarantee.to_json(),
        }  # fmt: skip


def release_share(
    session: AnyStore,
    rows: AnyStore,
    site: str,
    fingerprint: str,
    *,
    ledger: AnyLedgerAddress | None = None,
    cluster: AnyCluster | None = None,
) -> Share:
    """Release the share of a site: the exact sum of its rows, plus its noise and masks, to the folder of a session.

    The ledger is charged before any row is read, and the share is drawn once: repeating the call writes the same bytes,
    at no cost. The key is destroyed before the share is written, so no second share can be made for other rows.

    Parameters
    ----------
    session : str or path-like
        The folder of the session, or its address, with the keys of all sites.
    rows : str or path-like
        The rows.zarr of this site, or its address.
    site : str
        The name of this site.
    fingerprint : str
        The fingerprint of the session, after it was compared with every other site by another way than the folder: by
        telephone, or in a signed message.
    ledger : str or path-like, default None
        The ledger of the rows. None: next to them.
    cluster : Cluster, dask.distributed.Client or cluster object, default None
        Where to sum the rows. None: threads of this process.

    Returns
    -------
    Share
        ``path``, ``release_id``, ``guarantee``, and ``fresh``: whether it was drawn now.

    Raises
    ------
    UsageError
        If the rows have other columns, another schema or another number of rows than the session states.
    RefusedError
        If the fingerprint differs, the budget does not suffice, or the key was used for other rows.
    DataError
        If a key is missing, or the share cannot be written.

    See Also
    --------
    combine_shares : The next step.
    release_rows : Releases the rows of one place.

    References
    ----------
    The theorems are in :mod:`dpdist.core.mechanisms.noise_share` and :mod:`dpdist.core.noise.masks`; what happens once
    is in :mod:`dpdist.core.release.share`.

    Examples
    --------
    Not run here:

    >>> import dpdist
    >>> dpdist.release_share("study", "rows.zarr", "boston", "K7QD-2MZP-...")  # doctest: +SKIP
    Share('boston.share', released now)
    """
    complete = opened(session)
    complete.terms.index(site)
    keys = complete.key_set()
    if _plain(fingerprint) != _plain(keys.fingerprint):
        raise RefusedError(
            f"The fingerprint is not that of {complete.store}: the terms or a key were exchanged on the way, or it was "
            f"mistyped. Nothing was spent. {step('inspect', complete.store)} shows it here; every site must see the "
            "same. If they differ, fetch the files again from their sites, not from the folder."
        )
    _require_usable(complete, site)
    transaction, fresh = shares.release_share(
        open_rows(rows), complete.store, complete.terms, site, keys, ledger=ledger, cluster=chosen(cluster)
    )
    return Share(
        complete.store.address(transaction.file), site, transaction.release_id, complete.terms.share.guarantee, fresh
    )


def _require_usable(session: Session, site: str) -> None:
    """Refuse a session in which the share of another site cannot be used: this site would pay in vain."""
    for name, reason in session.unusable.items():
        if name != site:
            raise DataError(reason)


def _plain(fingerprint: str) -> str:
    """Return a fingerprint without the signs between its groups, in capitals."""
    return "".join(fingerprint.replace("-", " ").split()).upper()
