"""The view folded from a journal: budget, periods, charges, and the state of each release."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import assert_never

from msgspec import UNSET

from dpdist.core.errors import DataError
from dpdist.core.ledger.journal import (
    ORIGIN,
    Aborted,
    Adopted,
    Begun,
    Capped,
    Caps,
    Closed,
    Committed,
    CommittedRelease,
    CommitWitnessed,
    Created,
    Draws,
    Entry,
    Published,
    Raised,
    Reserved,
    Staged,
    event_of,
)
from dpdist.core.naming import step
from dpdist.core.privacy.accounting import caps_for, has_choice
from dpdist.core.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.core.privacy.parallel import Charge, PeriodFilters

FORMAT = "dpdist-ledger/1"
PERIODIC = "dpdist-ledger-periods/1"
"""Format of the ledger of a table whose rows come in periods; only such a ledger composes in parallel."""
_FORMATS = {FORMAT: False, PERIODIC: True}
"""Whether rows come in periods, by format."""


class State(enum.StrEnum):
    """State of a release."""

    RESERVED = "reserved"
    STAGED = "staged"
    """At least one stage is committed, and the next draw is due."""
    COMMITTED = "committed"
    PUBLISHED = "published"
    ABORTED = "aborted"
    ADOPTED = "adopted"
    """Committed to another copy of this ledger: charged here, but never drawn."""


class Part(enum.StrEnum):
    """A part of a release with its own draw: a stage, or the final release."""

    STAGE = "stage"
    SECOND = "second stage"
    RELEASE = "release"


@dataclass(frozen=True)
class Draw:
    """A committed draw: name of its bytes, None if another copy has them, and SHA-256."""

    blob: str | None
    digest: str


@dataclass(frozen=True)
class Record:
    """One release in the ledger."""

    release_id: str
    parameters: dict[str, object]  # JSON values; the same id with other parameters is refused
    guarantee: Guarantee
    state: State
    fence: int = 0  # number of the latest attempt, the only one that may commit
    drawn: tuple[Draw, ...] = ()  # committed draws in order: the stages, then the release
    periods: tuple[str, ...] = ()  # the periods it reads; empty: the whole table
    witnessed: bool = False  # the witness recorded its latest commitment, so its bytes may have been given out
    draws: Draws = 1  # 2 or 3 with stages, on which the later draws depend
    weights: tuple[int, ...] = ()  # weight of each period; empty: 1
    path: str = ""  # where it was published first; empty if not, or nowhere

    @property
    def charge(self) -> Charge:
        """Its guarantee and periods."""
        return Charge(self.guarantee, self.periods, self.weights)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its parts, in drawing order."""
        return (*(Part.STAGE, Part.SECOND)[: self.draws - 1], Part.RELEASE)

    @property
    def due(self) -> Part | None:
        """The part to draw next, or None; it must wait until the witness has recorded the stage before it."""
        waits = self.state is State.STAGED and not self.witnessed
        if waits or self.state not in {State.RESERVED, State.STAGED} or len(self.drawn) == self.draws:
            return None
        return self.parts[len(self.drawn)]

    def has(self, part: Part) -> bool:
        """Return whether a part is committed, here or in another copy."""
        return part in self.parts[: len(self.drawn)]

    def committed(self, part: Part) -> Draw | None:
        """Return the committed draw of a part, or None."""
        return self.drawn[self.parts.index(part)] if self.has(part) else None

    @property
    def stages(self) -> tuple[Draw, ...]:
        """The committed stages."""
        return self.drawn[: self.draws - 1]

    @property
    def blob(self) -> str | None:
        """Name of the committed bytes of the release; None before, or if another copy has them."""
        return self.drawn[-1].blob if len(self.drawn) == self.draws else None

    @property
    def digest(self) -> str | None:
        """SHA-256 of the committed bytes of the release; None before."""
        return self.drawn[-1].digest if len(self.drawn) == self.draws else None

    @property
    def latest(self) -> str | None:
        """The digest of the last committed draw, or None."""
        return self.drawn[-1].digest if self.drawn else None

    @property
    def blobs(self) -> tuple[str, ...]:
        """The names of all committed bytes stored here."""
        return tuple(draw.blob for draw in self.drawn if draw.blob is not None)

    @cached_property
    def draw_ids(self) -> frozenset[tuple[str, str]]:
        """Identities of its committed draws."""
        return draw_ids(self.release_id, (draw.digest for draw in self.drawn))

    @property
    def seen(self) -> bool:
        """Whether any of its draws may have been given out, including stages."""
        return self.given_out or bool(self._stages_given_out)

    @property
    def _stages_given_out(self) -> tuple[Draw, ...]:
        """The stages that may have been given out; earlier ones must have been recorded by the witness."""
        return self.stages[:-1] if self.state is State.STAGED and not self.witnessed else self.stages

    @property
    def given_out(self) -> bool:
        """Whether its final bytes may have been given out."""
        return self.state is State.PUBLISHED or (self.state is State.COMMITTED and self.witnessed)

    @cached_property
    def witness_record(self) -> CommittedRelease:
        """Its record for the witness, the inverse of :meth:`adopted`; cached because each commitment writes all."""
        stages = [draw.digest for draw in self.stages]
        return CommittedRelease(
            self.release_id, self.parameters, self.guarantee.to_json(), self.periods, self.digest,
            stages[0] if stages else None, self.weights, tuple(stages[1:]) if self.draws > 2 else None,
        )  # fmt: skip

    @classmethod
    def adopted(cls, release: CommittedRelease, fence: int) -> Record:
        """Return the record of a release that another copy committed."""
        return cls(
            release.id,
            release.parameters,
            Guarantee.from_json(release.guarantee),
            State.ADOPTED,
            fence,
            tuple(Draw(None, digest) for digest in release.drawn),
            release.periods,
            draws=release.draws,
            weights=release.weights,
        )

    def as_adopted(self, release_id: str) -> Record:
        """Return it as a release of another copy, under another id."""
        drawn = tuple(Draw(None, draw.digest) for draw in self.drawn)
        return replace(self, release_id=release_id, state=State.ADOPTED, drawn=drawn)

    def voided(self) -> Record:
        """Return it without unfinished draws; draws that may have been given out stay charged."""
        stages = self._stages_given_out
        state = State.STAGED if stages else State.ABORTED
        return replace(self, state=state, fence=self.fence + 1, drawn=stages, witnessed=bool(stages))


def draw_ids(release_id: str, digests: Iterable[str]) -> frozenset[tuple[str, str]]:
    """Return identities of draws, which also distinguish two draws under one id."""
    return frozenset((release_id.partition(".")[0], digest) for digest in digests)


@dataclass
class View:
    """The ledger folded from the journal up to one entry."""

    after: int = 0
    head: str = ORIGIN
    ledger_id: str = ""
    dataset_id: str = ""
    budget: PrivacyLoss | None = None
    periods: dict[str, str] | None = None  # digest of the content of each closed period, in the order of closing
    records: dict[str, Record] = field(default_factory=dict)
    accounts: PeriodFilters | None = None  # None before the first charge
    exceeded: str | None = None
    """The first release that does not fit the caps, precedes them, or has another relation than the first one; None
    unless the ledger was altered, or two copies released without a common witness."""
    spent: PrivacyLoss | None = None  # by releases before this ledger, as was stated
    condition: str | None = None  # what was stated of these, and of a raised budget
    witnessed: bool = False  # a witness was written, so a missing one was lost
    raised: bool = False  # the budget was raised
    exhausted: bool = False  # the whole budget was charged because the witness was lost
    _draw_ids: frozenset[tuple[str, str]] | None = field(default=None, init=False, compare=False)

    def copy(self) -> View:
        """Return an independent copy, which shares immutable values."""
        return replace(
            self,
            periods=None if self.periods is None else dict(self.periods),
            records=dict(self.records),
            accounts=None if self.accounts is None else self.accounts.copy(),
        )

    def fold(self, entry: Entry) -> None:
        """Apply the next entry of the journal."""
        event = event_of(entry)
        match event:
            case Created():
                self._create(event)
            case Closed():
                self._periods()[event.period] = event.digest
                if self.accounts is not None:
                    self.accounts.close(event.period)
            case Capped() | Raised():
                self._limit(event)
            case Reserved():
                self._reserve(event)
            case Adopted():
                self._adopt(event)
            case Begun() | Staged() | Committed() | CommitWitnessed() | Published() | Aborted():
                self._move(event)
            case _:
                assert_never(event)
        if isinstance(event, Staged | Committed | Adopted):
            self._draw_ids = None

    def _create(self, event: Created) -> None:
        if self.budget is not None:
            raise DataError("The journal contains two first entries: it was altered. Restore the ledger from a copy.")
        if event.format not in _FORMATS or event.spent is UNSET:
            create = step("ledger create", "LEDGER", rows="ROWS", spent="EPSILON,DELTA")
            raise DataError(
                f"Another version of dpdist wrote this ledger, in the format {event.format!r}, which this one does not "
                "read. Nothing was spent. Use that version; or, if it is older than 0.1.0, let it add up what the "
                "releases cost, ingest the source into new ROWS without a budget, and declare the budget and that sum: "
                f"{create}."
            )
        self.periods = {} if _FORMATS[event.format] else None
        self.ledger_id, self.dataset_id, self.budget = event.ledger_id, event.dataset_id, event.budget
        if event.spent:
            self.spent = PrivacyLoss.from_json(event.spent)
            self.budget = self.budget.less(self.spent)
            self.condition = (
                f"the releases before this ledger cost {self.spent} at most under its neighbouring relation, "
                "as was stated"
            )

    def _move(self, event: Begun | Staged | Committed | CommitWitnessed | Published | Aborted) -> None:
        record = self.records[event.id]
        match event:
            case Begun():
                record = replace(record, fence=record.fence + 1)
            case Staged() | Committed():
                last = isinstance(event, Committed)
                if (len(record.drawn) >= record.draws - 1) is not last:
                    raise DataError(
                        f"The journal commits the wrong number of draws of {event.id}: it was altered. Restore the "
                        "ledger from a copy."
                    )
                # after a stage the fence increases, so that its attempt cannot commit it again as the next part
                state, fence = (State.COMMITTED, record.fence) if last else (State.STAGED, record.fence + 1)
                drawn = (*record.stages, Draw(event.blob, event.digest))
                record = replace(record, state=state, fence=fence, drawn=drawn, witnessed=False)
            case CommitWitnessed():
                self.witnessed = True
                record = replace(record, witnessed=True)
            case Published():
                record = replace(record, state=State.PUBLISHED, path=event.path)
            case Aborted():
                record = replace(record, state=State.ABORTED, fence=record.fence + 1)
        self.records[event.id] = record
        if isinstance(event, Aborted) and self.accounts is not None:
            self.accounts.refund(event.id)
            if not self._active:
                self.accounts = None  # no charge is left, so the next release is the first again

    def _reserve(self, event: Reserved) -> None:
        fence = self.records.pop(event.id).fence if event.id in self.records else 0  # it moves to the end
        if event.periods and not self._periods().keys() >= set(event.periods):
            raise DataError(
                f"The release {event.id} is charged to a period that is not closed: the journal was altered. Restore "
                "the ledger from a copy."
            )
        guarantee = Guarantee.from_json(event.guarantee)
        record = Record(
            event.id, event.parameters, guarantee, State.RESERVED, fence,
            periods=event.periods, draws=event.draws, weights=event.weights,
        )  # fmt: skip
        self.records[event.id] = record
        _ = record.charge  # raises for invalid weights
        if self.accounts is not None:
            self._book(self.accounts, record)
        else:
            self.exceeded = self.exceeded or event.id

    def _limit(self, event: Capped | Raised) -> None:
        """Raise the budget, if it is, and fix the caps; a budget raised before the first charge has none yet."""
        if isinstance(event, Raised):
            self.budget, self.raised = PrivacyLoss.from_json(event.budget), True
        if event.sets:
            self._cap(Caps(event.sets, event.condition if isinstance(event, Raised) else self.condition))

    def _cap(self, caps: Caps) -> None:
        """Fix the caps, and charge the earlier releases under them."""
        self.accounts = PeriodFilters(self.declared, caps.fixed, self.periods or ())
        self.condition = caps.condition
        for record in self._active:
            self._book(self.accounts, record)

    def _book(self, accounts: PeriodFilters, record: Record) -> None:
        """Charge a release, and record if it exceeds the caps or has another relation or unit than the first one."""
        first = self._first
        alike = first is not None and (
            (first.guarantee.neighbours, first.parameters.get("unit"))
            == (record.guarantee.neighbours, record.parameters.get("unit"))
        )  # fmt: skip
        if not accounts.book(record.release_id, record.charge) or not alike:
            self.exceeded = self.exceeded or record.release_id

    def _adopt(self, event: Adopted) -> None:
        """Charge the releases of another copy, and void unfinished ones here."""
        self.witnessed = True
        self.exhausted |= event.head is None
        for release_id in event.void:
            self.records[release_id] = self.records[release_id].voided()
        if event.periods:
            self.periods = dict(sorted({**self._periods(), **event.periods}.items()))
        for release in event.releases:
            local = self.records.pop(release.id, None)  # it moves to the end
            alone = set() if local is None else {draw.digest for draw in local.drawn}.difference(release.drawn)
            if local is not None and alone:  # both draws may have been given out, so both stay charged
                second = f"{local.release_id}.{max(alone)[:16]}"
                self.records[second] = local.as_adopted(second)
            self.records[release.id] = Record.adopted(release, local.fence + 1 if local else 0)
        self._cap_as_adopted(event.capped)

    def _cap_as_adopted(self, capped: Caps | None) -> None:
        """Fix the caps that the other copy fixed before its first answer, and charge everything under them."""
        # Both copies share the releases that were given out before, so their caps agree. If they do not, two machines
        # released without a common witness, and no caps precede all answers.
        # A release keeps its price if its guarantee has exactly one under these caps. If it has several, the price
        # depended on earlier charges of the other copy, and later answers must not change it
        # (dpdist.core.privacy.profile). It is unknown here, so the whole budget counts as charged.
        own_caps = self.capped
        if capped is not None and capped.budget is not UNSET:
            self.budget, self.raised = PrivacyLoss.from_json(capped.budget), True  # the caps are certified for it
        if capped is not None and own_caps is not None and capped != own_caps:
            self.exhausted |= any(record.seen for record in self.records.values())
        fixed = capped or own_caps
        if fixed is not None:
            self.exhausted |= any(has_choice(record.guarantee, fixed.fixed) for record in self._active)
            self._cap(fixed)

    @property
    def capped(self) -> Caps | None:
        """The fixed caps and their condition, or None."""
        if self.accounts is None:
            return None
        sets = tuple(caps.to_json() for caps in self.accounts.caps)
        return Caps(sets, self.condition, self.declared.to_json() if self.raised else UNSET)

    @property
    def had_witness(self) -> bool:
        """Whether a witness was written, so that a missing one was lost: before the first draw, at the latest."""
        return self.witnessed or any(record.drawn for record in self.records.values())

    @property
    def draw_ids(self) -> frozenset[tuple[str, str]]:
        """Identities of all committed draws, including adopted ones."""
        if self._draw_ids is None:
            self._draw_ids = frozenset().union(*(record.draw_ids for record in self.records.values()))
        return self._draw_ids

    def _periods(self) -> dict[str, str]:
        if self.periods is None:
            raise DataError(
                "The journal names periods, but the rows of this ledger have none: it was altered. Restore the ledger "
                "from a copy."
            )
        return self.periods

    @property
    def declared(self) -> PrivacyLoss:
        """The budget; DataError if the journal declares none."""
        if self.budget is None:
            raise DataError("The journal declares no budget: it is damaged. Restore the ledger from a copy.")
        return self.budget

    def with_spent(self, budget: PrivacyLoss) -> PrivacyLoss:
        """Return a budget of the charges here as people state it: with what was spent before this ledger."""
        return budget if self.spent is None else budget.more(self.spent)

    @property
    def _active(self) -> list[Record]:
        return [record for record in self.records.values() if record.state is not State.ABORTED]

    @property
    def charged(self) -> list[Charge]:
        """The charges of these releases."""
        return [record.charge for record in self._active]

    @property
    def _first(self) -> Record | None:
        return next((record for record in self.records.values() if record.state is not State.ABORTED), None)

    @property
    def first_charged(self) -> Guarantee | None:
        """The guarantee of the first of these releases."""
        return None if self._first is None else self._first.guarantee

    def accounts_for(self, first: Guarantee | None = None) -> PeriodFilters | None:
        """Return the accounts, or None if nothing can be charged; copy them for trial charges.

        Before the first charge, they have the caps that would be fixed if ``first`` were the next release.
        """
        if self.exceeded is not None or self.exhausted:
            return None
        return self.accounts or PeriodFilters(self.declared, caps_for(self.declared, first), self.periods or ())
