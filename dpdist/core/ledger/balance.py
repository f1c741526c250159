"""The balance of a budget, and the rules of charging.

The functions ``require_*``, :func:`matching_periods` and :func:`caps_to_fix` check prices, periods, the neighbouring
relation, caps and budget against a view of the journal; none writes. ``location`` names the ledger in messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from operator import add
from typing import Any

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ledger.journal import Capped, Entry, Event, Raised, Storage, Transaction, entry_of
from dpdist.core.ledger.state import Record, State, View
from dpdist.core.naming import parameter, step
from dpdist.core.privacy.accounting import CapSet, Left, caps_for, certified, prices
from dpdist.core.privacy.guarantee import ATTO, Guarantee, MixedBudget, Neighbours, PrivacyLoss
from dpdist.core.privacy.parallel import Charge, PeriodFilters
from dpdist.core.text import counted, fields_as_json, listed


@dataclass(frozen=True)
class Balance:
    """The balance of a budget. The proved guarantee of all charges together is the budget, nothing smaller."""

    budget: PrivacyLoss
    charged: int  # releases
    left: Left  # for a release of the whole table, or of a future period where rows come in periods
    left_closed: Left | None = None  # for a release of all closed periods; None without periods
    closed: bool = False  # nothing can be charged
    exhausted: bool = False  # the whole budget was charged because the witness was lost (dpdist.core.ledger.witness)
    condition: str | None = None  # statements on which the guarantee rests, such as declared sensitivities
    exceeded: bool = False  # by tampering, or by two machines without a common witness

    @property
    def promise(self) -> str:
        """The proved guarantee of all charges together, as a sentence without its full stop."""
        if self.exceeded:
            return "all charges together exceed the budget"
        if self.exhausted:
            stated = "" if self.condition is None else f" if {self.condition}"
            return f"the charges here stay within the budget{stated}; releases of other copies are unknown"
        sentence = "all charges together stay within the budget"
        if self.condition is not None:
            return f"{sentence} if {self.condition}"
        return f"{sentence}, even if each release is chosen from earlier answers"

    @property
    def so_far(self) -> str:
        """The number of charged releases, as text."""
        return f"charged {counted(self.charged, 'release')}"

    @property
    def rest(self) -> str:
        """The remaining budget, as text."""
        if self.exceeded:
            return "left: nothing, because the charges exceed the budget"
        if self.exhausted:
            return f"left: nothing, because the whole budget was charged by {step('ledger adopt')}"
        text = f"left: {self.left}"
        if self.left_closed is not None:
            text += f" for a future period, {self.left_closed} for all closed periods together"
        return text if self.condition is None else f"{text}; the guarantee holds if {self.condition}"

    def __str__(self) -> str:
        return f"{self.so_far}; {self.rest}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return fields_as_json(self, optional=("left_closed",))


def refusal(
    location: str, budget: PrivacyLoss, accounts: PeriodFilters, charged: Sequence[Charge], charge: Charge
) -> str:
    """Return the message that refuses a release."""
    before = left = ""
    if charged:
        verb = "is" if len(charged) == 1 else "are"
        before = f"{counted(len(charged), 'release')} {verb} charged already, "
        left = f"; left: {accounts.left(charge.periods)}"
    head = f"This release costs {charge.guarantee.loss}; {before}the budget of {location} is {budget}{left}."
    return f"{head} Nothing was spent. {_cure(budget, charged, charge.guarantee)}"


def _cure(budget: PrivacyLoss, charged: Sequence[Charge], guarantee: Guarantee) -> str:
    if guarantee.loss.delta_atto and not budget.delta_atto:
        return (
            f"The delta of this budget is 0, so it only pays for pure releases: omit {parameter('delta')}, or use "
            f"{parameter('mechanism', 'two-sided-wishart')}. A delta can only be declared with the budget, before the "
            f"first release: {parameter('budget_delta', 'D')}."
        )
    if charged and all(_kind(other.guarantee) != _kind(guarantee) for other in charged):
        return (
            "Little is left for this kind of release, Gaussian, pure or another with a positive delta, as no part of "
            f"the budget was reserved for it before the first release ({parameter('budget_pure')}, "
            f"{parameter('budget_delta_reserve')}), and limits chosen after an answer give no guarantee. Ask for a "
            "smaller loss, or use a mechanism of a kind that is already charged."
        )
    return "Ask for a smaller loss, or repeat an earlier release with the same parameters, which is free."


def _kind(guarantee: Guarantee) -> tuple[bool, bool]:
    """Return the kind of a release, Gaussian, pure or other; each has its own part of a budget."""
    gaussian = guarantee.mu_squared is not None
    return gaussian, not gaussian and bool(guarantee.loss.delta_atto)


def require_charged(record: Record, guarantee: Guarantee, location: str) -> None:
    """Refuse to draw a release that another version reserved at a lower price."""
    if record.state in {State.RESERVED, State.STAGED} and not any(
        price.holds(next(prices(guarantee))) for price in prices(record.guarantee)
    ):
        raise RefusedError(
            f"Another version of dpdist reserved the release {record.release_id} in {location} at "
            f"{record.guarantee.loss}; this version would charge more. Nothing more was drawn. Finish it with that "
            f"version, or choose another {parameter('id')}."
        )


def matching_periods(view: View, periods: Mapping[str, str], location: str) -> tuple[str, ...]:
    """Return the names of periods in order, after checking that each is closed with this content."""
    closed = view.periods or {}
    for name, digest in periods.items():
        if closed.get(name) != digest:
            raise RefusedError(
                f"The period {name} is not closed with these rows in {location}: the rows were changed, or the ledger "
                "is an older copy. Nothing was spent. Restore the original rows, or the current ledger."
            )
    return tuple(sorted(periods))


def raising(view: View, charge: Charge, location: str) -> str:
    """Return a sentence, after a space, on how to raise the budget for one more charge; may be empty."""
    loss, budget = charge.guarantee.loss, view.declared
    join = max if view.first_charged is None else add
    delta = min(ATTO - 1, join(budget.delta_atto, loss.delta_atto))
    larger = PrivacyLoss(join(budget.epsilon_micro, loss.epsilon_micro), delta)
    if isinstance(budget, MixedBudget) or raised(view, larger, charge) is None:
        return ""
    try:
        larger = view.with_spent(larger)
    except DataError:  # beyond every budget
        return ""
    line = step(
        "ledger raise", location, budget_epsilon=f"{Decimal(larger.epsilon_micro).scaleb(-6).normalize():f}",
        **({"budget_delta": str(Decimal(larger.delta_atto).scaleb(-18).normalize())} if larger.delta_atto else {}),
        regardless_of_answers="",
    )  # fmt: skip
    return f" You may raise the budget, but only for a reason unrelated to any answer: {line}."


def charge_of(guarantee: Guarantee, periods: tuple[str, ...], weights: Mapping[str, int]) -> Charge:
    """Return the charge of a release of some periods, whose rows it may add with weights."""
    if weights and weights.keys() != set(periods):
        raise AssertionError("weights must name the periods that are read")
    return Charge(guarantee, periods, tuple(weights[period] for period in periods) if weights else ())


def require_distinct_rows(view: View, periods: tuple[str, ...], location: str) -> None:
    """Refuse a period with the rows of another one, which a copy of the ledger may have closed."""
    closed = view.periods or {}
    times = Counter(closed.values()) if periods else Counter()
    for name in periods:
        if times[closed[name]] == 1:
            continue
        others = [other for other, digest in closed.items() if other != name and digest == closed[name]]
        raise RefusedError(
            f"The rows of the period {name} are also those of {listed(others)}, which another copy of the ledger "
            f"{location} closed. Another release would charge and count each row twice. Nothing was drawn. Existing "
            "releases of these rows can be published again; new ones are not possible."
        )


def _condition(view: View) -> str | None:
    """Return what the joint guarantee rests on: a statement of the ledger, declared sensitivities, other sites."""
    alive = [record for record in view.records.values() if record.state is not State.ABORTED]
    declared = [record.release_id for record in alive if "declared_sensitivity" in record.parameters]
    stated = [] if view.condition is None else [view.condition]
    if declared:
        stated.append(f"the sensitivity declared for {listed(declared)} is right, which dpdist did not verify")
    if shares := [record.release_id for record in alive if "session" in record.parameters]:
        stated.append(f"no more sites collude than the session of {listed(shares)} allows")
    return ", and ".join(stated) or None


def require_unit(view: View, parameters: Mapping[str, object], location: str) -> None:
    """Refuse a release that protects another privacy unit than the first one: their losses do not add up."""
    first = next((record for record in view.records.values() if record.state is not State.ABORTED), None)
    if first is not None and first.parameters.get("unit") != parameters.get("unit"):
        raise RefusedError(
            f"The first release charged to {location} protects another privacy unit than these rows, and losses of "
            "different units cannot be added. Nothing was spent. Release rows with that unit; or ingest the "
            "source as another table, and add both budgets for every person. A matrix that was charged first protects "
            "rows, not units."
        )


def require_relation(view: View, requested: Neighbours, location: object) -> None:
    """Refuse a loss under another neighbouring relation than that of the first release of a ledger."""
    first = view.first_charged
    if first is not None and requested is not first.neighbours:
        relation = first.neighbours
        raise RefusedError(
            f"The budget of {location} is for the neighbouring relation {relation}, that of its first release; a loss "
            f"under {requested} cannot be added to it. Ask for {parameter('neighbours', relation)}."
        )


def caps_to_fix(view: View, charge: Charge, location: str) -> list[Event]:
    """Check that a charge fits; return the events to write before it: the caps, unless they are fixed."""
    guarantee = charge.guarantee
    if view.exhausted:
        raise RefusedError(
            f"{step('ledger adopt')} charged the whole budget of {location}, because its witness was lost, or releases "
            "of another copy could have been charged in two ways. Committed releases can be published again; new ones "
            "are not possible."
        )
    require_within_budget(view, location)
    require_relation(view, guarantee.neighbours, location)
    accounts = view.accounts_for(guarantee)
    if accounts is None:
        raise AssertionError("an exceeded or exhausted ledger is refused above")
    if not accounts.holds(charge):
        message = refusal(location, view.declared, accounts, view.charged, charge)
        raise RefusedError(message + raising(view, charge, location))
    if view.accounts is not None:
        return []
    return [Capped(tuple(caps.to_json() for caps in accounts.caps))]


def raised(view: View, budget: PrivacyLoss, charge: Charge | None = None) -> Raised | None:
    """Return the event that raises the budget, if all charges, and one more, fit the caps of the new one.

    The caps are those that a ledger with this budget would have fixed before its first charge. They are not known any
    more if that release was aborted after others were charged.
    """
    if view.first_charged is None:
        return Raised(budget.to_json())
    if next(iter(view.records.values())).state is State.ABORTED:
        return None
    caps = caps_for(budget, view.first_charged)
    trial = PeriodFilters(budget, caps, view.periods or ())
    every = [*view.charged, *([] if charge is None else [charge])]
    if not all(trial.book(str(number), each) for number, each in enumerate(every)):
        return None
    before, after = view.with_spent(view.declared), view.with_spent(budget)
    condition = f"the budget was raised from {before} to {after} for a reason other than the answers"
    if view.condition is not None:
        condition = f"{view.condition}, and {condition}"
    return Raised(budget.to_json(), tuple(cap.to_json() for cap in caps), condition)


def require_within_budget(view: View, location: str) -> None:
    """Refuse a journal whose caps exceed the budget, or whose charges exceed the caps."""
    capped = view.accounts is None or certified(view.accounts.caps, view.declared)
    if view.exceeded is not None or not capped:
        raise DataError(
            f"The releases charged to {location} exceed its budget: the ledger was altered, or copies of it were used "
            "without a common witness. Nothing more can be charged to it."
        )


_FOLDED: dict[str, View] = {}
"""The last view of each ledger in this process: a job opens its ledger a dozen times."""


def _resumed(location: str, transaction: Transaction) -> View:
    """Return a copy of the last view of a ledger, if it is of this journal; else an empty one."""
    view = _FOLDED.get(location)
    return view.copy() if view is not None and transaction.has_entry(view.after, view.head) else View()


def _fold(view: View, transaction: Transaction, entries: Sequence[Entry], head: str) -> None:
    """Fold the next entries; ``head`` is the digest of the last."""
    for entry in entries:
        try:
            view.fold(entry)
        except (ValueError, ArithmeticError, KeyError):
            raise transaction.broken(view.after + 1) from None
        view.after += 1
    view.head = head


class FoldedLedger:
    """A ledger folded up to the end of its journal on each access."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._view = View()

    @contextmanager
    def _locked(self) -> Iterator[tuple[View, Transaction]]:
        with self._storage.transaction() as transaction:
            yield self._folded(transaction), transaction

    def _folded(self, transaction: Transaction) -> View:
        if not self._view.after:
            self._view = _resumed(str(self._storage), transaction)
        view = self._view
        try:
            entries, _, head = transaction.read(view.after, view.head)
            _fold(view, transaction, entries, head)
        except BaseException:
            self._view = View()  # it is incomplete: the next access reads all entries again
            raise
        if entries:
            _FOLDED[str(self._storage)] = view.copy()
        return view

    def _verify_journal(self) -> None:
        """Fold the journal from its first entry."""
        _FOLDED.pop(str(self._storage), None)
        self._view = View()
        self._snapshot()

    def _snapshot(self) -> View:
        with self._locked() as (view, _):
            return view

    @property
    def ledger_id(self) -> str:
        """Identity of the ledger, 32 random hexadecimal digits; its rows refer to it."""
        return self._view.ledger_id or self._snapshot().ledger_id

    @property
    def dataset_id(self) -> str:
        """Identity of the data set of this budget."""
        return self._snapshot().dataset_id

    @property
    def budget(self) -> PrivacyLoss:
        """The budget of the charges here: the declared one, less what was spent before."""
        return self._snapshot().declared

    @property
    def declared(self) -> PrivacyLoss:
        """The budget that was declared for the rows: with what was spent before this ledger, as was stated."""
        view = self._snapshot()
        return view.with_spent(view.declared)

    @property
    def spent(self) -> PrivacyLoss | None:
        """What was stated as spent before this ledger, or None."""
        return self._snapshot().spent

    @property
    def records(self) -> list[Record]:
        """All releases in the order of reservation."""
        return list(self._snapshot().records.values())

    def record(self, release_id: str) -> Record | None:
        """Return the record of one release, or None."""
        return self._snapshot().records.get(release_id)

    @property
    def periods(self) -> dict[str, str]:
        """The closed periods in order, with their digests; empty if rows do not come in periods."""
        return dict(self._snapshot().periods or {})

    @property
    def head(self) -> str:
        """Digest of the last journal entry."""
        return self._snapshot().head

    @property
    def charges(self) -> list[Charge]:
        """All charges that were not refunded, with their periods."""
        return self._snapshot().charged

    @property
    def exhausted(self) -> bool:
        """Whether the whole budget was charged because the witness was lost."""
        return self._snapshot().exhausted

    @property
    def caps(self) -> tuple[CapSet, ...]:
        """The fixed cap sets; none before the first charge."""
        accounts = self._snapshot().accounts
        return () if accounts is None else accounts.caps

    def require_relation(self, requested: Neighbours) -> None:
        """Refuse another neighbouring relation than that of the first release, before anything says n."""
        require_relation(self._snapshot(), requested, str(self._storage))

    @property
    def first_neighbours(self) -> Neighbours | None:
        """The neighbouring relation of the first release, which is that of the budget; None before."""
        first = self._snapshot().first_charged
        return None if first is None else first.neighbours

    def require_room(self, guarantee: Guarantee, parameters: Mapping[str, object]) -> None:
        """Refuse a release of all rows that could not be charged now; nothing is charged."""
        view, location = self._snapshot(), str(self._storage)
        require_unit(view, parameters, location)
        caps_to_fix(view, charge_of(guarantee, (), {}), location)

    @property
    def condition(self) -> str | None:
        """What was stated of earlier releases and of a raised budget, on which the guarantees rest, or None."""
        return self._snapshot().condition

    def accounts(self, first: Guarantee | None = None) -> PeriodFilters | None:
        """Return accounts for trial charges, or None; ``first``, if it is the first release, may determine the caps."""
        accounts = self._snapshot().accounts_for(first)
        return None if accounts is None else accounts.copy()

    def balance(self) -> Balance:
        """Return the balance of the budget."""
        view = self._snapshot()
        budget = view.declared
        count, accounts = len(view.charged), view.accounts_for()
        if accounts is None:
            nothing = Left(0, 0, budget.delta_atto, 1.0)
            return Balance(
                budget, count, nothing, closed=True, exhausted=view.exhausted, condition=_condition(view),
                exceeded=view.exceeded is not None,
            )  # fmt: skip
        left = accounts.to_come.left()
        closed = None if view.periods is None else accounts.left(view.periods) if view.periods else left
        return Balance(budget, count, left, closed, condition=_condition(view))

    @staticmethod
    def _append(view: View, transaction: Transaction, *events: Event) -> None:
        """Append events after the end of the view, which folds them at the next access."""
        after, head = view.after, view.head
        for event in events:
            after, head = transaction.append(entry_of(event), after, head)

    def _existing(self, view: View, release_id: str) -> Record:
        record = view.records.get(release_id)
        if record is None:
            raise UsageError(f"The ledger {self._storage} has no release {release_id}.")
        return record
