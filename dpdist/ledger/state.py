"""What the ledger's journal amounts to: the budget, the periods, and where each release stands."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import assert_never

from msgspec.structs import replace as replaced

from dpdist.errors import DataError
from dpdist.ledger.journal import (
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
    Reserved,
    Staged,
    event_of,
)
from dpdist.privacy.accounting import CapSet, caps_for, composed, has_choice, widest
from dpdist.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.privacy.parallel import Charge, PeriodFilters

FORMAT = "dpdist-ledger/2"
PERIODIC = "dpdist-ledger-periods/2"
"""Format of the ledger of a table whose rows come in periods; only such a ledger composes in parallel."""
_FORMATS = {
    f"{kind}/{number}": periodic
    for kind, periodic in (("dpdist-ledger", False), ("dpdist-ledger-periods", True))
    for number in range(1, 5)
}
"""Whether rows come in periods, by format. Ledgers of version 1 were begun without caps.

One that holds a release of two draws has version 3, of three draws version 4, from the first of these on.
"""


class State(enum.StrEnum):
    """Where a release stands."""

    RESERVED = "reserved"
    STAGED = "staged"
    """Of several draws the first is committed, or the first two, and the next still to come."""
    COMMITTED = "committed"
    PUBLISHED = "published"
    ABORTED = "aborted"
    ADOPTED = "adopted"
    """Committed to another copy of this ledger: charged, and never drawn here."""


class Part(enum.StrEnum):
    """What is drawn of a release: all of it or, of several draws, one stage or the release that follows."""

    STAGE = "stage"
    SECOND = "second stage"
    RELEASE = "release"


@dataclass(frozen=True)
class Draw:
    """A draw that was committed: the name of its bytes, None where another copy has them, and their SHA-256."""

    blob: str | None
    digest: str


@dataclass(frozen=True)
class Record:
    """One release in the ledger."""

    release_id: str
    parameters: dict[str, object]  # JSON values; the same id with other parameters is refused
    guarantee: Guarantee
    state: State
    fence: int = 0  # number of the latest attempt to draw noise; only that one may commit
    drawn: tuple[Draw, ...] = ()  # what was committed, in order: the stages, then the release
    periods: tuple[str, ...] = ()  # that it reads; none: the whole table
    witnessed: bool = False  # the witness had seen its latest commitment, so these bytes may have been given out
    draws: Draws = 1  # more where stages are drawn first, and each draw follows from what those before it published
    weights: tuple[int, ...] = ()  # how often it adds the rows of each period; none: once

    @property
    def charge(self) -> Charge:
        """What it guarantees, and of which periods."""
        return Charge(self.guarantee, self.periods, self.weights)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is drawn for it, in order."""
        return (*(Part.STAGE, Part.SECOND)[: self.draws - 1], Part.RELEASE)

    @property
    def due(self) -> Part | None:
        """What is to be drawn next; None where nothing is.

        Nothing is due before the witness has seen the stage that it follows from.
        """
        waits = self.state is State.STAGED and not self.witnessed
        if waits or self.state not in {State.RESERVED, State.STAGED} or len(self.drawn) == self.draws:
            return None
        return self.parts[len(self.drawn)]

    def has(self, part: Part) -> bool:
        """Say whether a part is committed, here or elsewhere."""
        return part in self.parts[: len(self.drawn)]

    def committed(self, part: Part) -> Draw | None:
        """Return the draw of a part that was committed; None where it was not."""
        return self.drawn[self.parts.index(part)] if self.has(part) else None

    @property
    def stages(self) -> tuple[Draw, ...]:
        """The draws before the release, as far as they are committed."""
        return self.drawn[: self.draws - 1]

    @property
    def blob(self) -> str | None:
        """File name of the committed bytes of the release; None before, or where another copy has them."""
        return self.drawn[-1].blob if len(self.drawn) == self.draws else None

    @property
    def digest(self) -> str | None:
        """SHA-256 of the committed bytes of the release; None before."""
        return self.drawn[-1].digest if len(self.drawn) == self.draws else None

    @property
    def latest(self) -> str | None:
        """The digest of what was committed last; None before anything was."""
        return self.drawn[-1].digest if self.drawn else None

    @property
    def blobs(self) -> tuple[str, ...]:
        """The names of all committed bytes that are here."""
        return tuple(draw.blob for draw in self.drawn if draw.blob is not None)

    @cached_property
    def identities(self) -> frozenset[tuple[str, str]]:
        """What tells each of its draws from all others."""
        return draws_of(self.release_id, (draw.digest for draw in self.drawn))

    @property
    def seen(self) -> bool:
        """Whether anything that was drawn for it may have been given out, be it a stage alone."""
        return self.given_out or bool(self._stages_seen)

    @property
    def _stages_seen(self) -> tuple[Draw, ...]:
        """The stages that may have been given out: a draw follows from what the witness has seen."""
        return self.stages[:-1] if self.state is State.STAGED and not self.witnessed else self.stages

    @property
    def given_out(self) -> bool:
        """Whether somebody may have seen its bytes: they are the only ones that ever may be."""
        return self.state is State.PUBLISHED or (self.state is State.COMMITTED and self.witnessed)

    @cached_property
    def testimony(self) -> CommittedRelease:
        """What a witness keeps of it; the inverse of :meth:`adopted`. Each commitment writes those of all releases."""
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

    def elsewhere(self, release_id: str) -> Record:
        """Return it as one that another copy committed, under another id."""
        drawn = tuple(Draw(None, draw.digest) for draw in self.drawn)
        return replace(self, release_id=release_id, state=State.ADOPTED, drawn=drawn)

    def voided(self) -> Record:
        """Return it without what was under way and never given out; what was given out stays charged."""
        seen = self._stages_seen
        state = State.STAGED if seen else State.ABORTED
        return replace(self, state=state, fence=self.fence + 1, drawn=seen, witnessed=bool(seen))


def draws_of(release_id: str, digests: Iterable[str]) -> frozenset[tuple[str, str]]:
    """Return what tells draws from all others, also where two draws under one id are both known."""
    return frozenset((release_id.partition(".")[0], digest) for digest in digests)


@dataclass
class View:
    """The ledger folded from the journal up to one entry."""

    after: int = 0
    head: str = ORIGIN
    format: str = ""
    ledger_id: str = ""
    dataset_id: str = ""
    budget: PrivacyLoss | None = None
    periods: dict[str, str] | None = None  # digest of the content of each closed period, in the order of closing
    records: dict[str, Record] = field(default_factory=dict)
    accounts: PeriodFilters | None = None  # None before the first charge, and in version 1 until it goes on
    exceeded: str | None = None
    """The first release that does not fit the caps, came before them, or is under another relation than the first one;
    None unless somebody tampered, or two copies released without a common witness."""
    begun_with_caps: bool = True  # caps precede every charge; False of a ledger of version 1
    condition: str | None = None  # what a person stated of a ledger of version 1, on which its guarantee rests
    witnessed: bool = False  # a witness was written once, so that a missing one was lost
    exhausted: bool = False  # the whole budget was charged because the witness was lost
    _draws: frozenset[tuple[str, str]] | None = field(default=None, init=False, compare=False)

    def copy(self) -> View:
        """Return a view of its own that amounts to the same; what never changes is shared."""
        return replace(
            self,
            periods=None if self.periods is None else dict(self.periods),
            records=dict(self.records),
            accounts=None if self.accounts is None else self.accounts.copy(),
        )

    def fold(self, entry: Entry) -> None:
        """Take in the next entry of the journal."""
        event = event_of(entry)
        match event:
            case Created():
                self._create(event)
            case Closed():
                self._periods()[event.period] = event.digest
                if self.accounts is not None:
                    self.accounts.close(event.period)
            case Capped():
                self._cap(Caps(event.sets, event.condition))
            case Reserved():
                self._reserve(event)
            case Adopted():
                self._adopt(event)
            case Begun() | Staged() | Committed() | CommitWitnessed() | Published() | Aborted():
                self._move(event)
            case _:
                assert_never(event)
        if isinstance(event, Staged | Committed | Adopted):
            self._draws = None

    def _create(self, event: Created) -> None:
        if event.format not in _FORMATS:
            raise DataError(
                f"This ledger has format {event.format!r}; this version reads {', '.join(map(repr, _FORMATS))}."
            )
        if self.budget is None:
            self.periods = {} if _FORMATS[event.format] else None
            self.begun_with_caps = not event.format.endswith("/1")
            self.ledger_id = event.ledger_id
            self.dataset_id = event.dataset_id
            self.budget = event.budget
        elif event.format <= self.format or event not in self._restated:
            raise DataError("The journal begins twice, and not alike.")
        self.format = event.format

    @property
    def created(self) -> Created:
        """What the ledger was created as."""
        return Created(
            format=self.format, ledger_id=self.ledger_id, dataset_id=self.dataset_id, **self.declared.to_json()
        )

    @property
    def _restated(self) -> tuple[Created, ...]:
        """What it may be created as again."""
        return tuple(replaced(self.created, format=self.format_for(draws)) for draws in (2, 3))

    def format_for(self, draws: int) -> str:
        """Return the format from which on it may hold releases of so many draws."""
        return f"{(FORMAT if self.periods is None else PERIODIC)[:-1]}{draws + 1}"

    def _move(self, event: Begun | Staged | Committed | CommitWitnessed | Published | Aborted) -> None:
        """Take in what became of a release."""
        record = self.records[event.id]
        match event:
            case Begun():
                record = replace(record, fence=record.fence + 1)
            case Staged() | Committed():
                last = isinstance(event, Committed)
                if (len(record.drawn) >= record.draws - 1) is not last:
                    raise DataError(f"The journal commits other draws of {event.id} than it has.")
                # after a stage the fence moves on: the attempt that drew it cannot commit it as the next part too
                state, fence = (State.COMMITTED, record.fence) if last else (State.STAGED, record.fence + 1)
                drawn = (*record.stages, Draw(event.blob, event.digest))
                record = replace(record, state=state, fence=fence, drawn=drawn, witnessed=False)
            case CommitWitnessed():
                self.witnessed = True
                record = replace(record, witnessed=True)
            case Published():
                record = replace(record, state=State.PUBLISHED)
            case Aborted():
                record = replace(record, state=State.ABORTED, fence=record.fence + 1)
        self.records[event.id] = record
        if isinstance(event, Aborted) and self.accounts is not None:
            self.accounts.refund(event.id)
            if not self._active:
                self.accounts = None  # nothing was ever committed, so the next release is the first again

    def _reserve(self, event: Reserved) -> None:
        fence = self.records.pop(event.id).fence if event.id in self.records else 0  # it goes to the end
        if event.periods and not self._periods().keys() >= set(event.periods):
            raise DataError(f"The release {event.id} is charged to a period that was never closed.")
        guarantee = Guarantee.from_json(event.guarantee)
        record = Record(
            event.id, event.parameters, guarantee, State.RESERVED, fence,
            periods=event.periods, draws=event.draws, weights=event.weights,
        )  # fmt: skip
        self.records[event.id] = record
        _ = record.charge  # refuses weights that no version wrote
        if self.accounts is not None:
            self._book(self.accounts, record)
        elif self.begun_with_caps:
            self.exceeded = self.exceeded or event.id

    def _cap(self, caps: Caps) -> None:
        """Fix the caps, and charge what a ledger of version 1 had charged before."""
        self.accounts = PeriodFilters(self.declared, caps.fixed, self.periods or ())
        self.condition = caps.condition
        for record in self._active:
            self._book(self.accounts, record)

    def _book(self, accounts: PeriodFilters, record: Record) -> None:
        """Charge a release; what does not fit, or is under another relation than the first one, keeps no budget."""
        alike = self.first_charged is not None and self.first_charged.neighbours is record.guarantee.neighbours
        if not accounts.book(record.release_id, record.charge) or not alike:
            self.exceeded = self.exceeded or record.release_id

    def _adopt(self, event: Adopted) -> None:
        """Take in what another copy committed, and take back what was under way here and never given out."""
        self.witnessed = True
        self.exhausted |= event.head is None
        for release_id in event.void:
            self.records[release_id] = self.records[release_id].voided()
        if event.periods:
            self.periods = dict(sorted({**self._periods(), **event.periods}.items()))
        for release in event.releases:
            here = self.records.pop(release.id, None)  # it goes to the end
            alone = set() if here is None else {draw.digest for draw in here.drawn}.difference(release.drawn)
            if here is not None and alone:  # draws of both are out: both stay charged
                second = f"{here.release_id}.{max(alone)[:16]}"
                self.records[second] = here.elsewhere(second)
            self.records[release.id] = Record.adopted(release, here.fence + 1 if here else 0)
        self._cap_as_adopted(event.capped)

    def _cap_as_adopted(self, capped: Caps | None) -> None:
        """Fix the caps that the other copy fixed before its first answer, and charge everything to them.

        What was given out here before was given out there too, or by the same beginning, so the caps are the same; if
        they are not, two machines went on without a common witness, and no caps precede all answers.

        A release is charged at the price that it had, where its guarantee has one under these caps. Where it has
        several, its price followed from what that copy had charged before, and no later answer may change it
        (:mod:`dpdist.privacy.profile`). Nobody knows it here, so the whole budget counts as charged.
        """
        here = self.capped
        if capped is not None and here is not None and capped != here:
            self.exhausted |= any(record.seen for record in self.records.values())
        fixed = capped or here
        if fixed is not None:
            self.exhausted |= any(has_choice(record.guarantee, fixed.fixed) for record in self._active)
            self._cap(fixed)

    @property
    def capped(self) -> Caps | None:
        """The caps and their condition; None where none are fixed."""
        if self.accounts is None:
            return None
        return Caps(tuple(caps.to_json() for caps in self.accounts.caps), self.condition)

    @property
    def draws(self) -> frozenset[tuple[str, str]]:
        """What tells each draw that was committed from all others, known here or adopted."""
        if self._draws is None:
            self._draws = frozenset().union(*(record.identities for record in self.records.values()))
        return self._draws

    def _periods(self) -> dict[str, str]:
        if self.periods is None:
            raise DataError("The journal speaks of periods, and the rows of this ledger come in none.")
        return self.periods

    @property
    def declared(self) -> PrivacyLoss:
        """The budget, which only a damaged journal does not declare."""
        if self.budget is None:
            raise DataError("The journal declares no budget: it is damaged. Restore the ledger from a copy.")
        return self.budget

    @property
    def _active(self) -> list[Record]:
        """The releases that were charged and not refunded."""
        return [record for record in self.records.values() if record.state is not State.ABORTED]

    @property
    def charged(self) -> list[Charge]:
        """What the releases guarantee, and of which periods, that were charged and not refunded."""
        return [record.charge for record in self._active]

    @property
    def first_charged(self) -> Guarantee | None:
        """What the first release guarantees that was charged and not refunded."""
        return next((r.guarantee for r in self.records.values() if r.state is not State.ABORTED), None)

    def caps(self, first: Guarantee | None = None) -> tuple[CapSet, ...] | None:
        """Return the caps: those that are fixed, or those that would be if this were the next release.

        A ledger of version 1 has charges and no caps. Where all are pure, all are Gaussian, or there is one, the caps
        that follow from the budget and the first charge are those that it would have begun with. Otherwise caps chosen
        now could follow from answers, and nothing is proved of them.
        """
        if self.accounts is not None:
            return self.accounts.caps
        past = [charge.guarantee for charge in self.charged]
        pure = all(g.mu_squared is None and g.loss.delta_atto == 0 for g in past)
        if len(past) > 1 and not pure and any(g.mu_squared is None for g in past):
            return None
        return caps_for(self.declared, past[0] if past else first)

    def accounts_for(self, first: Guarantee | None = None) -> PeriodFilters | None:
        """Return the accounts, under :meth:`caps`; None of a ledger of version 1 that cannot go on.

        They may be those of this view: whoever tries charges on them takes a copy.
        """
        if self.exceeded is not None or self.exhausted:
            return None
        if self.accounts is not None:
            return self.accounts
        caps = self.caps(first)
        if caps is None:
            return None
        accounts = PeriodFilters(self.declared, caps, self.periods or ())
        booked = [accounts.book(record.release_id, record.charge) for record in self._active]
        return accounts if all(booked) else None

    def fixed_caps(self) -> CapSet:
        """Return the cap set under which a ledger of version 1 goes on if all requests so far were fixed beforehand.

        What they amount to in the most charged period, and of Gaussian releases as much more as the budget allows. Caps
        that follow from requests alone, and not from answers, are fixed before the first answer.
        """
        every = [[c.guarantee for c in self.charged if not c.periods or p in c.periods] for p in self.periods or ("",)]
        totals = [composed(guarantees) for guarantees in every]
        pure, reserve = max(t.epsilon_micro for t in totals), max(t.delta_atto for t in totals)
        return widest(self.declared, pure if pure <= self.declared.epsilon_micro else 0, reserve)
