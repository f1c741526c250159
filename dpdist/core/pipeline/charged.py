"""Reads what a ledger says of a release and of the others charged to it."""

from __future__ import annotations

from dpdist.core.errors import UsageError
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.release.artefact import Release
from dpdist.core.release.statement import ChargedRelease, LedgerStatement, drawn_for


def statement_of(ledger: Ledger, release: Release) -> LedgerStatement:
    """Return what a ledger says; refuse one that does not contain the release, or is behind its witness."""
    missing = [drawn for drawn in drawn_for(release) if ledger.record(drawn) is None]
    if missing and (release.session is None or len(missing) == len(release.releases)):  # each site has its own ledger
        raise UsageError(
            f"The ledger does not contain {missing[0]}: name the ledger that was charged.", parameter="ledger"
        )
    ledger.require_current()  # otherwise the balance may be wrong
    releases = tuple(
        ChargedRelease(
            record.release_id, record.guarantee.loss, len(record.periods), record.state.value,
            refunded=record.state is State.ABORTED,
        )
        for record in ledger.records
    )  # fmt: skip
    return LedgerStatement(ledger.budget, ledger.balance(), ledger.head, releases)
