"""What a ledger says of a release and of the others charged to it, for pages and cards that read no ledger."""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.core.errors import UsageError
from dpdist.core.ledger.balance import Balance
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.artefact import Release


@dataclass(frozen=True)
class ChargedRelease:
    """One release of a ledger."""

    release_id: str
    loss: PrivacyLoss
    periods: int  # 0: all rows
    state: str
    refunded: bool


@dataclass(frozen=True)
class LedgerStatement:
    """The budget of a ledger, its balance and its releases in the order of charging."""

    budget: PrivacyLoss
    balance: Balance
    head: str
    releases: tuple[ChargedRelease, ...]

    @property
    def charged(self) -> list[ChargedRelease]:
        """The releases that were not refunded."""
        return [release for release in self.releases if not release.refunded]


def statement_of(ledger: Ledger, release: Release) -> LedgerStatement:
    """Return what a ledger says; refuse one that does not contain the release, or is behind its witness."""
    for drawn in drawn_for(release):
        if ledger.record(drawn) is None:
            raise UsageError(
                f"The ledger does not contain {drawn}: name the ledger that was charged.", parameter="ledger"
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


def drawn_for(release: Release) -> tuple[str, ...]:
    """Return the identifiers of the releases drawn for this one: a sum is charged as its parts."""
    return release.releases or (release.release_id,)
