"""Reads what a ledger says of a release and of the others charged to it, and compares a release with it."""

from __future__ import annotations

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import Record, State
from dpdist.core.naming import step
from dpdist.core.pipeline import stored
from dpdist.core.release import archive, trusted
from dpdist.core.release.artefact import Release
from dpdist.core.release.opening import open_release
from dpdist.core.release.statement import ChargedRelease, LedgerStatement, drawn_for
from dpdist.core.storage.arrays import attributes_of
from dpdist.core.storage.store import AnyStore, Store, store_at


def statement_of(ledger: Ledger, release: Release, path: AnyStore) -> LedgerStatement:
    """Return what a ledger says of the release at a path.

    Refused are a ledger that does not contain the release, or is behind its witness, and a release that was altered. Of
    a sum of releases it contains what they cost and their columns, but not their sum.
    """
    missing = [drawn for drawn in drawn_for(release) if ledger.record(drawn) is None]
    if missing and (release.session is None or len(missing) == len(release.releases)):  # each site has its own ledger
        raise UsageError(
            f"The ledger does not contain {missing[0]}: name the ledger that was charged.", parameter="ledger"
        )
    ledger.require_current()  # otherwise the balance may be wrong
    if release.releases and release.session is None:
        _require_terms(ledger, release, store_at(path))
    else:
        require_as_charged(ledger, store_at(path))
    releases = tuple(
        ChargedRelease(
            record.release_id, record.guarantee.loss, len(record.periods), record.state.value,
            refunded=record.state is State.ABORTED,
        )
        for record in ledger.records
    )  # fmt: skip
    return LedgerStatement(ledger.budget, ledger.balance(), ledger.head, releases)


def require_as_charged(ledger: Ledger, path: Store) -> None:
    """Refuse a release that a ledger does not contain, or with other bytes than those committed to it.

    Of an adopted release the ledger contains only the id. Of a release of several sites it contains the share of one,
    so its numbers are not compared, but its guarantee is.
    """
    described = attributes_of(path) or {}
    if described.get("session"):
        _require_share(ledger, path)
        return
    if described.get("format") in stored.KINDS:  # a matrix, whose bytes are compared below
        release_id = str(described.get("release_id"))
        trusted.require_remembered(ledger, path, release_id, described.get("ledger_head"))
    else:
        release_id = trusted.require_recorded(ledger, path).release_id
    record = ledger.record(release_id)
    if record is not None and record.state is State.ADOPTED:
        return
    with ledger.opened(release_id) as committed:
        if not archive.holds(path, committed):
            raise DataError(f"{path} differs from the release committed to {ledger}: it was altered. Publish it again.")


def _require_share(ledger: Ledger, path: Store) -> None:
    """Refuse a ledger with no share of a release of several sites; what the others added is in their ledgers."""
    release = open_release(path)
    records = [record for share in release.releases if (record := ledger.record(share)) is not None]
    shares = [record for record in records if record.digest is not None]
    session = release.session
    if session is None or session.id not in {record.parameters.get("session") for record in shares}:
        raise RefusedError(
            f"{path} is the sum of shares of {len(release.releases)} sites, and the ledger contains none of them. Name "
            "the ledger of a site that took part. If it is, it was restored from an older copy."
        )
    for record in shares:
        if record.guarantee != release.guarantee or not _describes(record, release, bound=release.bound.to_json()):
            raise DataError(
                f"{path} states another guarantee, or other columns, than {ledger}: it was altered. Add up the shares "
                "again."
            )


def _require_terms(ledger: Ledger, total: Release, path: Store) -> None:
    """Refuse a sum that costs less than one of the releases of a ledger in it, or has other columns."""
    records = [record for drawn in total.releases if (record := ledger.record(drawn)) is not None]
    stated = total.guarantee
    for record in records:
        cost = record.guarantee
        if (
            stated is None
            or cost.neighbours is not stated.neighbours
            or not cost.loss.within(stated.loss)
            or (stated.mu_squared is not None and (cost.mu_squared is None or cost.mu_squared > stated.mu_squared))
            or record.state is State.ABORTED
            or not _describes(record, total)
        ):
            raise DataError(
                f"{path} states less than {ledger} says of {record.release_id}, which it contains, or other columns: "
                f"it was altered. Add up the releases again: {step('combine')}."
            )


def _describes(record: Record, release: Release, **others: object) -> bool:
    """Whether the parameters of a record, as far as it has them, are those of a release."""
    unit = None if release.unit is None else release.unit.to_json()
    expected = {"columns": list(release.names), "unit": unit, **others}
    return record.state is State.ADOPTED or all(
        record.parameters.get(name) == value for name, value in expected.items()
    )
