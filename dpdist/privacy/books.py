"""What the ledger's journal amounts to: the budget, the periods, and where each release stands."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import Any

from dpdist.errors import DataError
from dpdist.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.privacy.journal import origin
from dpdist.privacy.parallel import Charge

FORMAT = "dpdist-ledger/1"
PERIODIC = "dpdist-ledger-periods/1"
"""Format of the ledger of a table whose rows come in periods; only such a ledger composes in parallel."""


class State(enum.StrEnum):
    """Where a release stands."""

    RESERVED = "reserved"
    COMMITTED = "committed"
    PUBLISHED = "published"
    ABORTED = "aborted"


@dataclass(frozen=True)
class Record:
    """One release in the ledger.

    Attributes
    ----------
    parameters
        What was asked for, JSON values; the same id with other parameters is refused.
    fence
        Number of the latest attempt to draw noise; only that one may commit.
    blob, digest
        File name and SHA-256 of the committed bytes, None before.
    periods
        The periods it reads; none: the whole table.
    """

    release_id: str
    parameters: dict[str, Any]
    guarantee: Guarantee
    state: State
    fence: int = 0
    blob: str | None = None
    digest: str | None = None
    periods: tuple[str, ...] = ()


@dataclass
class View:
    """The ledger folded from the journal up to one entry.

    Attributes
    ----------
    periods
        Digest of the content of each closed period, in the order of closing; None where rows do not come in periods.
    """

    after: int = 0
    head: str = field(default_factory=origin)
    ledger_id: str = ""
    dataset_id: str = ""
    budget: PrivacyLoss | None = None
    periods: dict[str, str] | None = None
    records: dict[str, Record] = field(default_factory=dict)

    def fold(self, entry: dict[str, Any]) -> None:
        """Take in the next entry of the journal."""
        event = entry["event"]
        if event == "created":
            if entry["format"] not in {FORMAT, PERIODIC}:
                raise DataError(
                    f"This ledger has format {entry['format']!r}; this version reads {FORMAT!r} and {PERIODIC!r}."
                )
            self.periods = {} if entry["format"] == PERIODIC else None
            self.ledger_id = entry["ledger_id"]
            self.dataset_id = entry["dataset_id"]
            self.budget = PrivacyLoss(entry["epsilon_micro"], entry["delta_atto"])
            return
        if event == "closed":
            self._periods()[entry["period"]] = entry["digest"]
            return
        release_id = entry["id"]
        if event == "reserved":
            fence = self.records[release_id].fence if release_id in self.records else 0
            periods = tuple(entry.get("periods", ()))
            if periods and not self._periods().keys() >= set(periods):
                raise DataError(f"The release {release_id} is charged to a period that was never closed.")
            self.records[release_id] = Record(
                release_id,
                entry["parameters"],
                Guarantee.from_json(entry["guarantee"]),
                State.RESERVED,
                fence,
                periods=periods,
            )
            return
        record = self.records[release_id]
        changes: dict[str, dict[str, Any]] = {
            "begun": {"fence": record.fence + 1},
            "committed": {"state": State.COMMITTED, "blob": entry.get("blob"), "digest": entry.get("digest")},
            "published": {"state": State.PUBLISHED},
            "aborted": {"state": State.ABORTED, "fence": record.fence + 1},
        }
        self.records[release_id] = replace(record, **changes[event])

    def _periods(self) -> dict[str, str]:
        if self.periods is None:
            raise DataError("The journal speaks of periods, and the rows of this ledger come in none.")
        return self.periods

    @property
    def charged(self) -> list[Charge]:
        """What the releases guarantee, and of which periods, that were charged and not refunded."""
        return [Charge(r.guarantee, r.periods) for r in self.records.values() if r.state is not State.ABORTED]
