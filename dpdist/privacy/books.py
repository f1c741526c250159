"""What the ledger's journal amounts to: the budget, and where each release stands."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import Any

from dpdist.errors import DataError
from dpdist.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.privacy.journal import origin

FORMAT = "dpdist-ledger/1"


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
    """

    release_id: str
    parameters: dict[str, Any]
    guarantee: Guarantee
    state: State
    fence: int = 0
    blob: str | None = None
    digest: str | None = None


@dataclass
class View:
    """The ledger folded from the journal up to one entry."""

    after: int = 0
    head: str = field(default_factory=origin)
    ledger_id: str = ""
    dataset_id: str = ""
    budget: PrivacyLoss | None = None
    records: dict[str, Record] = field(default_factory=dict)

    def fold(self, entry: dict[str, Any]) -> None:
        """Take in the next entry of the journal."""
        event = entry["event"]
        if event == "created":
            if entry["format"] != FORMAT:
                raise DataError(f"This ledger has format {entry['format']!r}; this version reads {FORMAT!r}.")
            self.ledger_id = entry["ledger_id"]
            self.dataset_id = entry["dataset_id"]
            self.budget = PrivacyLoss(entry["epsilon_micro"], entry["delta_atto"])
            return
        release_id = entry["id"]
        if event == "reserved":
            fence = self.records[release_id].fence if release_id in self.records else 0
            guarantee = Guarantee.from_json(entry["guarantee"])
            self.records[release_id] = Record(release_id, entry["parameters"], guarantee, State.RESERVED, fence)
            return
        record = self.records[release_id]
        changes: dict[str, dict[str, Any]] = {
            "begun": {"fence": record.fence + 1},
            "committed": {"state": State.COMMITTED, "blob": entry.get("blob"), "digest": entry.get("digest")},
            "published": {"state": State.PUBLISHED},
            "aborted": {"state": State.ABORTED, "fence": record.fence + 1},
        }
        self.records[release_id] = replace(record, **changes[event])

    @property
    def charged(self) -> list[Guarantee]:
        """What the releases guarantee that were charged and not refunded."""
        return [r.guarantee for r in self.records.values() if r.state is not State.ABORTED]
