"""How a budget stands: what the journal amounts to, what is left of it, and what may still be charged.

The functions ``require_*`` and their like hold the rules about prices, periods, the neighbouring relation, caps and
budget. Each looks at what the journal amounts to, and refuses what may not be; none writes. ``place`` says in messages
where the ledger is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from dpdist._util.text import counted, fields_as_json, listed
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.ledger import checkpoint
from dpdist.ledger.journal import ORIGIN, Capped, Created, Entry, Event, Storage, Transaction, entry_of
from dpdist.ledger.state import Record, State, View
from dpdist.naming import parameter, step
from dpdist.privacy.accounting import CapSet, Left, certified, prices
from dpdist.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.privacy.parallel import Charge, PeriodFilters


@dataclass(frozen=True)
class Balance:
    """How a budget stands. What everything charged keeps, together, is the budget; nothing less is proved."""

    budget: PrivacyLoss
    charged: int  # releases
    left: Left  # for a release of the whole table or, where rows come in periods, of one to come
    left_closed: Left | None = None  # for a release of all closed periods; None where rows come in no periods
    closed: bool = False  # nothing can be charged any more: version 1 and a past without caps, or exhausted
    exhausted: bool = False  # the whole budget was charged because the witness was lost (dpdist.ledger.witness)
    condition: str | None = None  # what a person stated of its past, on which the guarantee rests; None: nothing
    exceeded: bool = False  # two machines released at once without a common witness, or somebody tampered

    @property
    def promise(self) -> str:
        """What is proved of everything that is charged, together; a sentence without its full stop."""
        if self.exceeded:
            return "all of it together exceeds the budget"
        if self.exhausted:
            return "what is charged here keeps the budget; what other copies released besides, nobody can tell"
        if self.closed:
            return "none that holds if a release was chosen from earlier answers: no caps were fixed before the first"
        words = "all of it together keeps the budget"
        if self.condition is not None:
            return f"{words} if {self.condition}"
        return f"{words}, even if each release is chosen from earlier answers"

    @property
    def so_far(self) -> str:
        """What is charged, in words."""
        return f"charged {counted(self.charged, 'release')}"

    @property
    def rest(self) -> str:
        """What is left, in words."""
        if self.exceeded:
            return "left: nothing, because what is charged exceeds the budget"
        if self.exhausted:
            return f"left: nothing, because the whole budget was charged by {step('ledger adopt')}"
        if self.closed:
            return (
                "left: nothing. This ledger was begun by an older version, and its releases fit no caps that were "
                "fixed before the first answer. If all requests were fixed before it, say so with "
                f"{step('ledger attest')}"
            )
        words = f"left: {self.left}"
        if self.left_closed is not None:
            words += f" of a period to come, {self.left_closed} of all closed periods together"
        return words if self.condition is None else f"{words}; the guarantee holds if {self.condition}"

    def __str__(self) -> str:
        return f"{self.so_far}; {self.rest}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return fields_as_json(self, optional=("left_closed",))


def refusal(
    place: str, budget: PrivacyLoss, accounts: PeriodFilters | None, charged: Sequence[Charge], charge: Charge
) -> str:
    """Return the words with which a release is refused."""
    if accounts is None:
        return (
            f"{place} was begun by an older version, and its releases fit no caps that were fixed before the first "
            "answer: nothing is proved of one more. Nothing was read or spent. If all requests so far were fixed "
            f"before the first answer was seen, say so with {step('ledger attest', place, fixed_beforehand='')}; or "
            "repeat an earlier release by its parameters: that is free."
        )
    before = left = ""
    if charged:
        verb = "is" if len(charged) == 1 else "are"
        before = f"{counted(len(charged), 'release')} {verb} charged already, "
        left = f"; left: {accounts.left(charge.periods)}"
    head = f"This release costs {charge.guarantee.loss}; {before}the budget of {place} is {budget}{left}."
    return f"{head} Nothing was read or spent. {_cure(budget, charged, charge.guarantee)}"


def _cure(budget: PrivacyLoss, charged: Sequence[Charge], guarantee: Guarantee) -> str:
    if guarantee.loss.delta_atto and not budget.delta_atto:
        return (
            f"The delta of this budget is 0, so only purely private releases fit it: leave out {parameter('delta')}, "
            f"or take {parameter('mechanism', 'two-sided-wishart')}. A delta is declared with the budget, once, before "
            f"the first release: {parameter('budget_delta', 'D')}."
        )
    if charged and all(_kind(other.guarantee) != _kind(guarantee) for other in charged):
        return (
            "Gaussian releases, pure ones, and those with a delta of their own share a budget only if parts of it were "
            f"set apart before the first release ({parameter('budget_pure')}, {parameter('budget_delta_reserve')}): "
            "limits that are chosen after an answer was seen protect nobody. Ask for a smaller loss, or for a "
            "mechanism of the kind charged already."
        )
    return "Ask for a smaller loss, or repeat an earlier release by its parameters: that is free."


def _kind(guarantee: Guarantee) -> tuple[bool, bool]:
    """Return what tells Gaussian, pure and other releases apart: each kind has its own part of a budget."""
    gaussian = guarantee.mu_squared is not None
    return gaussian, not gaussian and bool(guarantee.loss.delta_atto)


def require_charged(known: Record, guarantee: Guarantee, place: str) -> None:
    """Refuse to draw what was reserved at a lower price, as another version may have done."""
    if known.state in {State.RESERVED, State.STAGED} and not any(
        price.holds(next(prices(guarantee))) for price in prices(known.guarantee)
    ):
        raise RefusedError(
            f"The release {known.release_id} was reserved in {place} by another version of dpdist, at "
            f"{known.guarantee.loss}, and would now cost more. Nothing more was drawn. Finish it with that version, or "
            f"choose another {parameter('id')}."
        )


def closed_as_read(view: View, periods: Mapping[str, str], place: str) -> tuple[str, ...]:
    """Return the names of periods, in order, after checking that each is closed with this very content."""
    closed = view.periods or {}
    for name, digest in periods.items():
        if closed.get(name) != digest:
            raise RefusedError(
                f"The period {name} is not closed with these rows in {place}. They were altered since, or the ledger "
                "is an older copy. Nothing was spent. Restore what was altered."
            )
    return tuple(sorted(periods))


def charge_of(guarantee: Guarantee, periods: tuple[str, ...], weights: Mapping[str, int]) -> Charge:
    """Return what a release of some periods is charged, where it adds the rows of each as often as a weight says."""
    if weights and weights.keys() != set(periods):
        raise AssertionError("weights are those of the periods that are read")
    return Charge(guarantee, periods, tuple(weights[period] for period in periods) if weights else ())


def require_apart(view: View, periods: tuple[str, ...], place: str) -> None:
    """Refuse a period whose rows are those of another, which two copies of a ledger may have closed, each one."""
    closed = view.periods or {}
    times = Counter(closed.values()) if periods else Counter()
    for name in periods:
        if times[closed[name]] == 1:
            continue
        others = [other for other, digest in closed.items() if other != name and digest == closed[name]]
        raise RefusedError(
            f"The rows of the period {name} are those of {listed(others)}, which another copy of the ledger "
            f"{place} closed. A further release would charge and count each row twice. Nothing was drawn. What was "
            "released of these rows can be published again; nothing more can be released."
        )


def caps_to_fix(view: View, charge: Charge, place: str) -> list[Event]:
    """Return what has to be written before a charge that fits: the caps, if they are not fixed yet."""
    first, guarantee = view.first_charged, charge.guarantee
    if view.exhausted:
        raise RefusedError(
            f"The whole budget of {place} was charged by {step('ledger adopt')}: its witness was lost, or releases of "
            "another copy could have been charged in two ways. What was committed can be published again; nothing more "
            "can be released."
        )
    require_kept(view, place)
    if first is not None and first.neighbours is not guarantee.neighbours:
        relation = first.neighbours
        raise RefusedError(
            f"The budget of {place} is kept under {relation}, the relation of its first release; a loss under "
            f"{guarantee.neighbours} cannot be added to it. Ask for {parameter('neighbours', relation)}."
        )
    accounts = view.accounts_for(guarantee)
    if accounts is None or not accounts.holds(charge):
        raise RefusedError(refusal(place, view.declared, accounts, view.charged, charge))
    if view.accounts is not None:
        return []
    return [Capped(tuple(caps.to_json() for caps in accounts.caps))]


def restated(view: View, draws: int) -> tuple[Created, ...]:
    """Return what has to be written before the first release of so many draws: older versions refuse its format."""
    wanted = view.format_for(draws)
    if draws == 1 or view.format >= wanted:  # they differ in their last digit only
        return ()
    return (replace(view.created, format=wanted),)


def require_kept(view: View, place: str) -> None:
    """Refuse a journal whose caps do not keep the budget, or whose charges do not keep to its caps."""
    capped = view.accounts is None or certified(view.accounts.caps, view.declared)
    if view.exceeded is not None or not capped:
        raise DataError(
            f"The releases charged to {place} exceed its budget. The ledger was altered, or copies of it were used "
            "without a common witness. Nothing more can be charged to it."
        )


def _kept_of(transaction: Transaction) -> bytes | None:
    """Return the checkpoint that is kept of the ledger whose journal this is."""
    first = transaction.first()
    return None if first is None else checkpoint.read(str(first.get("ledger_id")))


class FoldedLedger:
    """How a ledger stands at the end of its journal, whenever it is asked."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._view = View()
        self._kept = 0

    @contextmanager
    def _locked(self) -> Iterator[tuple[View, Transaction]]:
        """Hold the journal and give the view folded up to its end."""
        with self._storage.transaction() as transaction:
            yield self._folded(transaction), transaction

    def _folded(self, transaction: Transaction) -> View:
        """Return the view folded up to the end of the journal."""
        if not self._view.after:
            self._view = self._checkpoint(transaction) or View()
            self._kept = self._view.after
        view = self._view
        entries, _, head = transaction.read(view.after, view.head)
        try:
            self._fold(view, transaction, entries, head)
        except BaseException:
            self._view = View()  # it holds some of the entries: the next time none of them may be passed over
            raise
        return view

    @staticmethod
    def _fold(view: View, transaction: Transaction, entries: Sequence[Entry], head: str) -> None:
        """Take in the next entries, the last of which has a digest."""
        for entry in entries:
            try:
                view.fold(entry)
            except (ValueError, ArithmeticError, KeyError):
                raise transaction.broken(view.after + 1) from None
            view.after += 1
        view.head = head

    @staticmethod
    def _checkpoint(transaction: Transaction) -> View | None:
        """Return the view that was kept of this very beginning of the journal; None: it is read from the start."""
        view = checkpoint.resumed(_kept_of(transaction) or b"")
        return view if view is not None and transaction.passed(view.after, view.head) else None

    def _keep(self, view: View) -> None:
        """Keep a checkpoint when one is due; the witness is held, and what cannot be kept is not."""
        if checkpoint.due(view.after, self._kept):
            checkpoint.write(view)
            self._kept = view.after

    def _prove(self) -> None:
        """Fold the journal from its first entry, and prove the checkpoint if it is of this journal."""
        with self._storage.transaction() as transaction:
            content = _kept_of(transaction) or b""
            kept, view = checkpoint.resumed(content), View()
            entries, _, head = transaction.read(0, ORIGIN)
            if kept is not None and transaction.passed(kept.after, kept.head):
                self._fold(view, transaction, entries[: kept.after], kept.head)
                if checkpoint.encoded(view) != content:
                    raise DataError(
                        f"The checkpoint {checkpoint.path_of(view.ledger_id)} does not say what the journal of "
                        f"{self._storage} says, whose chain is sound: it was altered. Remove it, and verify again. "
                        "What was charged since is in the journal, and counts."
                    )
            self._kept = view.after
            self._fold(view, transaction, entries[view.after :], head)
            self._view = view

    def _snapshot(self) -> View:
        with self._locked() as (view, _):
            return view

    @property
    def ledger_id(self) -> str:
        """32 random hexadecimal digits drawn when it was created; its rows name it as the one that is charged."""
        return self._view.ledger_id or self._snapshot().ledger_id

    @property
    def dataset_id(self) -> str:
        """Identity of the data set whose budget this is."""
        return self._snapshot().dataset_id

    @property
    def budget(self) -> PrivacyLoss:
        """The declared budget."""
        return self._snapshot().declared

    @property
    def records(self) -> list[Record]:
        """Every release ever reserved, in the order of reservation."""
        return list(self._snapshot().records.values())

    def record(self, release_id: str) -> Record | None:
        """Return the record of one release, or None."""
        return self._snapshot().records.get(release_id)

    @property
    def periods(self) -> dict[str, str]:
        """The closed periods in order, each with its digest; none also where rows do not come in periods."""
        return dict(self._snapshot().periods or {})

    @property
    def head(self) -> str:
        """Digest of the last journal entry."""
        return self._snapshot().head

    @property
    def charges(self) -> list[Charge]:
        """What was charged and not refunded, and to which periods."""
        return self._snapshot().charged

    @property
    def exhausted(self) -> bool:
        """Whether the whole budget was charged because the witness was lost."""
        return self._snapshot().exhausted

    @property
    def caps(self) -> tuple[CapSet, ...]:
        """The cap sets that are fixed; none before the first charge."""
        accounts = self._snapshot().accounts
        return () if accounts is None else accounts.caps

    @property
    def condition(self) -> str | None:
        """What a person stated of a ledger of version 1, on which every guarantee rests since; None: nothing."""
        return self._snapshot().condition

    def accounts(self, first: Guarantee | None = None) -> PeriodFilters | None:
        """Return accounts to try charges on, which change nothing here; None where nothing can be charged any more.

        Parameters
        ----------
        first
            The next release: if it is the first, the caps may follow from it.
        """
        accounts = self._snapshot().accounts_for(first)
        return None if accounts is None else accounts.copy()

    def balance(self) -> Balance:
        """Return how the budget stands."""
        view = self._snapshot()
        budget = view.declared
        count, accounts = len(view.charged), view.accounts_for()
        if accounts is None:
            nothing = Left(0, 0, budget.delta_atto, 1.0)
            exceeded = view.exceeded is not None
            return Balance(budget, count, nothing, closed=True, exhausted=view.exhausted, exceeded=exceeded)
        left = accounts.to_come.left()
        closed = None if view.periods is None else accounts.left(view.periods) if view.periods else left
        return Balance(budget, count, left, closed, condition=view.condition)

    @staticmethod
    def _append(view: View, transaction: Transaction, *events: Event) -> None:
        """Append events behind the end of the view; it folds them when it is read again."""
        after, head = view.after, view.head
        for event in events:
            after, head = transaction.append(entry_of(event), after, head)

    def _known(self, view: View, release_id: str) -> Record:
        record = view.records.get(release_id)
        if record is None:
            raise UsageError(f"The ledger {self._storage} knows no release {release_id}.")
        return record
