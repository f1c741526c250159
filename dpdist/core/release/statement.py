"""What a ledger says of a release and of the others charged to it, for pages and cards that read no ledger."""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.core.ledger.balance import Balance
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


def drawn_for(release: Release) -> tuple[str, ...]:
    """Return the identifiers of the releases drawn for this one: a sum is charged as its parts."""
    return release.releases or (release.release_id,)
