"""The entries of a ledger's journal, as types: an event each, and what it says.

The journal is JSON, whose keys are sorted. What an event did not say in an older version has a default, which is not
written.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dpdist.privacy.accounting import CapSet, CapSetJson
from dpdist.privacy.guarantee import GuaranteeJson, PrivacyLoss

Entry = dict[str, Any]
"""An entry as JSON values."""
Draws = Literal[1, 2, 3]
"""How many draws a release takes: the stages, and the release that follows from them."""


class Created(Struct, frozen=True, tag_field="event", tag="created"):
    """The first: which ledger this is, of which rows, with which budget.

    It is said again, with a higher format and all else equal, before the first entry that older versions would
    misunderstand: they read the format, and refuse.
    """

    format: str
    ledger_id: str
    dataset_id: str
    epsilon_micro: int
    delta_atto: int
    pure_micro: int | UnsetType = UNSET
    reserve_atto: int | UnsetType = UNSET

    @property
    def budget(self) -> PrivacyLoss:
        """The declared budget."""
        loss = PrivacyLoss(self.epsilon_micro, self.delta_atto)
        return loss.mixed(self.pure_micro or 0, self.reserve_atto or 0)


class Closed(Struct, frozen=True, tag_field="event", tag="closed"):
    """A period was closed; ``digest`` is that of its content."""

    period: str
    digest: str


class Capped(Struct, frozen=True, omit_defaults=True, tag_field="event", tag="capped"):
    """The caps were fixed, on a condition that a person stated of a ledger of version 1."""

    sets: tuple[CapSetJson, ...]
    condition: str | None = None


class Reserved(Struct, frozen=True, omit_defaults=True, tag_field="event", tag="reserved"):
    """A release was charged, to some periods or to all rows; with several draws, for all of them.

    Where it adds the rows of each period as often as a weight says, each period bears what follows from its weight. A
    version that knows no weights charges all of them the most.
    """

    id: str
    parameters: dict[str, object]
    guarantee: GuaranteeJson
    periods: tuple[str, ...] = ()
    draws: Draws = 1
    weights: tuple[int, ...] = ()


class Begun(Struct, frozen=True, tag_field="event", tag="begun"):
    """An attempt to draw began; it has a random name where a version since 0.1 wrote it."""

    id: str
    attempt: str | UnsetType = UNSET


class Staged(Struct, frozen=True, tag_field="event", tag="staged"):
    """A draw before the last became a stage of a release: the name of its bytes, and their SHA-256."""

    id: str
    blob: str
    digest: str


class Committed(Struct, frozen=True, tag_field="event", tag="committed"):
    """A draw became the release: the name of its bytes, and their SHA-256."""

    id: str
    blob: str
    digest: str


class CommitWitnessed(Struct, frozen=True, tag_field="event", tag="witnessed"):
    """The witness has seen the latest commitment, of a stage or of a release."""

    id: str


class Published(Struct, frozen=True, tag_field="event", tag="published"):
    """The committed bytes are out."""

    id: str


class Aborted(Struct, frozen=True, tag_field="event", tag="aborted"):
    """A reservation was refunded."""

    id: str


class CommittedRelease(Struct, frozen=True, omit_defaults=True):
    """What a witness keeps of a release that was committed, or of which a stage was.

    Attributes
    ----------
    digest
        SHA-256 of the committed bytes; None where only the stage was committed.
    stage
        That of the first stage; None of a release of one draw.
    weights
        How often it adds the rows of each period; none: once.
    second
        Of a release of three draws: the digest of its second stage, none while that is to come. None: of any other.
    """

    id: str
    parameters: dict[str, object]
    guarantee: GuaranteeJson
    periods: tuple[str, ...]
    digest: str | None
    stage: str | None = None
    weights: tuple[int, ...] = ()
    second: tuple[str, ...] | None = None

    @property
    def draws(self) -> Draws:
        """How many draws it takes."""
        if self.second is not None:
            return 3
        return 1 if self.stage is None else 2

    @property
    def stages(self) -> tuple[str, ...]:
        """The digests of its stages that were committed, in order."""
        return () if self.stage is None else (self.stage, *(self.second or ()))

    @property
    def drawn(self) -> frozenset[str]:
        """The digests of all that was drawn for it."""
        return frozenset((*self.stages, *(() if self.digest is None else (self.digest,))))


class Caps(Struct, frozen=True):
    """Caps as a witness keeps them, and the condition on which they rest."""

    sets: tuple[CapSetJson, ...]
    condition: str | None

    @property
    def fixed(self) -> tuple[CapSet, ...]:
        """The cap sets."""
        return tuple(CapSet.from_json(each) for each in self.sets)


class Adopted(Struct, frozen=True, tag_field="event", tag="adopted"):
    """What other copies of the ledger committed was charged here.

    Attributes
    ----------
    head
        Digest of the other journal's last entry; None where the witness was lost, and so the whole budget is charged.
    void
        Ids of what was under way here, and is refunded.
    """

    head: str | None
    void: tuple[str, ...]
    releases: tuple[CommittedRelease, ...]
    periods: dict[str, str]
    capped: Caps | None


Event = (
    Created | Closed | Capped | Reserved | Begun | Staged | Committed | CommitWitnessed | Published | Aborted | Adopted
)


def event_of(entry: Entry) -> Event:
    """Read an entry."""
    event: Event = msgspec.convert(entry, Event)
    return event


def entry_of(event: Event) -> Entry:
    """Return an event as JSON values."""
    entry: Entry = msgspec.to_builtins(event)
    return entry
