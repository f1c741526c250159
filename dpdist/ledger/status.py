"""What a ledger says when it is asked: its budget, its releases, and what is left, folded from its journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dpdist.errors import DataError, UsageError
from dpdist.ledger import checkpoint
from dpdist.ledger.balance import Balance
from dpdist.ledger.journal import Entry, Event, Storage, Transaction, entry_of
from dpdist.ledger.state import Record, View
from dpdist.privacy.accounting import CapSet, Left
from dpdist.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.privacy.parallel import Charge, PeriodFilters


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
        entries, after, head = transaction.read(view.after, view.head)
        try:
            for number, entry in enumerate(entries, view.after + 1):
                self._fold(view, transaction, number, entry)
        except BaseException:
            self._view = View()  # it holds some of the entries: the next time none of them may be passed over
            raise
        view.after, view.head = after, head
        return view

    @staticmethod
    def _fold(view: View, transaction: Transaction, number: int, entry: Entry) -> None:
        try:
            view.fold(entry)
        except (ValueError, ArithmeticError, KeyError):
            raise transaction.broken(number) from None

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

    def _proved(self) -> View:
        """Fold the journal from its first entry, and prove the checkpoint if it is of this journal."""
        with self._storage.transaction() as transaction:
            content = _kept_of(transaction)
            kept = checkpoint.decoded(content or b"")
            view, proved = View(), 0
            entries, after, head = transaction.read(view.after, view.head)
            for number, entry in enumerate(entries, 1):
                self._fold(view, transaction, number, entry)
                if kept is not None and number == kept.after and transaction.passed(number, kept.head):
                    view.after, view.head = number, kept.head
                    if checkpoint.encoded(view) != content:
                        raise DataError(
                            f"The checkpoint {checkpoint.path_of(view.ledger_id)} does not say what the journal of "
                            f"{self._storage} says, whose chain is sound: it was altered. Remove it, and verify again. "
                            "What was charged since is in the journal, and counts."
                        )
                    proved = number
            view.after, view.head = after, head
            self._view, self._kept = view, proved
            return view

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
        return self._budget_of(self._snapshot())

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
        budget = self._budget_of(view)
        count, accounts = view.count, view.accounts_for()
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

    def _budget_of(self, view: View) -> PrivacyLoss:
        """Return the budget of a view."""
        if view.budget is None:
            raise DataError(f"The ledger at {self._storage} declares no budget: it is damaged. Restore it from a copy.")
        return view.budget

    def _known(self, view: View, release_id: str) -> Record:
        record = view.records.get(release_id)
        if record is None:
            raise UsageError(f"The ledger {self._storage} knows no release {release_id}.")
        return record
