"""Adds up the shares of a session modulo 2^64: the masks cancel, and what is left is an ordinary release.

This is post-processing of public files. It draws nothing, charges nothing, and refuses by what is in the files only.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import math

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError
from dpdist.core.naming import step
from dpdist.core.pipeline.release import Outcome
from dpdist.core.release.archive import archived, publish
from dpdist.core.release.artefact import FORMAT, Heading
from dpdist.core.release.attributes import merged
from dpdist.core.release.opening import open_release
from dpdist.core.release.session import LEAST_TOTAL, Terms
from dpdist.core.release.share import ShareHead, checksum_of, share_name
from dpdist.core.rows.schema import Schema
from dpdist.core.storage.arrays import attributes_of
from dpdist.core.storage.store import AnyStore, Store, store_at
from dpdist.core.text import listed, repeated
from dpdist.core.triangle import Band
from dpdist.sites.folder import damaged_share, opened, share_start

_BLOCK_BYTES = 8 << 20
_FAR = 50  # standard deviations that the noise of no entry exceeds


def combine_shares(session: AnyStore, release: AnyStore) -> Outcome:
    """Add up the shares of all sites, and write the sum as a release.zarr. Free, for anybody who has the folder.

    Parameters
    ----------
    session : str or path-like
        The folder of the session, or its address, with the shares of all sites.
    release : str or path-like
        The folder to write, or its address. The sum, (w, w) int64, must fit in memory.

    Returns
    -------
    Outcome
        The release, its path, and whether it was written now. It is like any other release: ``release.condition``
        states the assumption about the sites.

    Raises
    ------
    DataError
        If a share is missing, damaged, of another session or made with other keys, or the sum is no moment.
    RefusedError
        If two shares are of the same rows.

    See Also
    --------
    release_share : Makes a share.
    combine_releases : Adds up releases, each with its own noise.

    References
    ----------
    Bonawitz et al. 2017, Practical secure aggregation for privacy-preserving machine learning.

    Examples
    --------
    Not run here:

    >>> import dpdist
    >>> dpdist.combine_shares("study", "release.zarr")  # doctest: +SKIP
    Outcome('release.zarr', released now)
    """
    complete, target = opened(session), store_at(release)
    if complete.unusable:
        raise DataError(next(iter(complete.unusable.values())))
    if complete.missing_shares:
        raise DataError(
            f"Shares are missing in {complete.store}: of {listed(complete.missing_shares)}. Nothing can be read "
            "without every share. If a site cannot deliver, the others need a new session, which charges each again; "
            "the site that dropped out then counts among those that may collude, so its key should be destroyed."
        )
    complete.key_set()  # with which the shares were compared
    terms, store = complete.terms, complete.store
    total = np.zeros(Band.whole(terms.plan.bound.width).entries, dtype=np.uint64)
    checksums = [_add_share(store, terms, name, total) for name in terms.names]
    heading = _heading(terms, list(complete.shares.values()), checksums)
    fresh = (attributes_of(target) or {}).get("release_id") != heading.release_id
    values = total.view(np.int64)
    _require_moment(terms, values)
    publish(io.BytesIO(b"".join(archived(heading, [(Band.whole(heading.bound.width), values)]))), target)
    return Outcome(open_release(target), target.address(), fresh)


def _heading(terms: Terms, heads: list[ShareHead], checksums: list[bytes]) -> Heading:
    """Return the public header of the sum; what a site states is repeated as its own words."""
    plan, share = terms.plan, terms.share
    ids = tuple(sorted(head.release_id for head in heads))
    if twice := repeated(ids):
        raise DataError(
            f"Two shares have the same id, {listed(twice)}: one was altered. Fetch both again from their sites."
        )
    stated = [
        f"""{head.site} states: '{head.condition.replace("'", '"')}'"""
        for head in heads if head.condition is not None
    ]  # fmt: skip
    identity = hashlib.sha256(FORMAT.encode() + bytes.fromhex(terms.digest) + b"".join(checksums))
    return Heading(
        release_id=f"s-{identity.hexdigest()[:32]}",
        mechanism="gaussian",
        names=terms.columns,
        neighbours=terms.neighbours,
        claim=share.claim,
        guarantee=share.guarantee,
        bound=plan.bound,
        noise=share.noise,
        rows=terms.rows,
        rows_at_most=None if terms.rows is not None else terms.rows_at_most,
        extents=merged(extent for head in heads for extent in head.extents),
        releases=ids,
        unit=None if terms.unit is None else terms.unit.unit,
        condition="; ".join((terms.condition, *stated)),
        schema=None if terms.schema is None else Schema.from_json(terms.schema),
        session=terms.facts,
    )


def _require_moment(terms: Terms, values: npt.NDArray[np.int64]) -> None:
    """Refuse integers that no moment of so many rows has, with noise: masks that do not cancel are uniform."""
    share = terms.share
    deviation = math.sqrt(len(terms.sites)) * max(share.sigma_diagonal, share.sigma_off_diagonal)
    rows = terms.rows if terms.rows is not None else max(LEAST_TOTAL, terms.rows_at_most)
    limit = rows * terms.plan.bound.norm_bound + _FAR * math.ceil(deviation)
    if max(int(values.max()), -int(values.min())) > limit:
        raise DataError(
            "These shares do not add up to a second moment: one was altered, by its site or on the way. "
            f"Fetch the shares again; {step('session share')} writes the same "
            "bytes at no cost. If that does not help, the sites need a new session."
        )


def _add_share(store: Store, terms: Terms, site: str, total: npt.NDArray[np.uint64]) -> bytes:
    """Add the entries of a share modulo 2^64, and return its checksum, which is verified."""
    name, start, checksum, first = share_name(site), share_start(store, terms, site), checksum_of(terms), 0
    end = start + 8 * total.size
    try:
        checksum.update(store.get_range(name, 0, start))
        for begin in range(start, end, _BLOCK_BYTES):
            block = store.get_range(name, begin, min(_BLOCK_BYTES, end - begin))
            checksum.update(block)
            words = np.frombuffer(block, dtype="<u8")
            total[first : first + words.size] += words
            first += words.size
        stored = store.get_range(name, end, checksum.digest_size)
    except OSError:
        stored = b""
    if not hmac.compare_digest(stored, checksum.digest()):
        raise damaged_share(store, site)
    return stored
