"""How a budget stands, and why a release cannot be charged to it, in words.

What may be charged to a ledger: the rules about prices, periods, the neighbouring relation, caps and budget.

Each looks at what the journal amounts to, and refuses what may not be; none writes. ``place`` says in messages where
the ledger is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TypedDict

from msgspec.structs import replace

from dpdist._util.text import counted, listed
from dpdist.errors import DataError, RefusedError
from dpdist.ledger.journal import Capped, Created, Event
from dpdist.ledger.state import Record, State, View
from dpdist.naming import parameter, step
from dpdist.privacy.accounting import Left, LeftJson, certified, composed, prices
from dpdist.privacy.guarantee import ATTO, MICRO, Guarantee, PrivacyLoss
from dpdist.privacy.parallel import Charge, PeriodFilters


class _LeftClosed(TypedDict, total=False):
    left_closed: LeftJson


class BalanceJson(_LeftClosed):
    """A :class:`Balance` as JSON values."""

    budget: dict[str, int]
    charged: int
    left: LeftJson
    closed: bool
    exhausted: bool
    condition: str | None
    exceeded: bool


@dataclass(frozen=True)
class Balance:
    """How a budget stands. What everything charged keeps, together, is the budget; nothing less is proved.

    Attributes
    ----------
    budget
        The declared budget.
    charged
        Number of releases that are charged.
    left
        What can still be charged to a release of the whole table or, where rows come in periods, of one to come.
    left_closed
        What can still be charged to a release of all periods closed so far; None where rows come in no periods.
    closed
        Whether nothing can be charged any more: the ledger is of version 1 and its past has no caps, or is exhausted.
    exhausted
        Whether the whole budget was charged because the witness was lost (:mod:`dpdist.ledger.witness`).
    exceeded
        Whether what is charged exceeds the budget: two machines released at once without a common witness, or somebody
        tampered.
    condition
        What a person stated of its past, on which the guarantee rests; None: it rests on nothing.
    """

    budget: PrivacyLoss
    charged: int
    left: Left
    left_closed: Left | None = None
    closed: bool = False
    exhausted: bool = False
    condition: str | None = None
    exceeded: bool = False

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

    def to_json(self) -> BalanceJson:
        """Return plain JSON values."""
        left_closed: _LeftClosed = {} if self.left_closed is None else {"left_closed": self.left_closed.to_json()}
        return {
            "budget": self.budget.to_json(),
            "charged": self.charged,
            "left": self.left.to_json(),
            **left_closed,
            "closed": self.closed,
            "exhausted": self.exhausted,
            "condition": self.condition,
            "exceeded": self.exceeded,
        }

    @classmethod
    def from_json(cls, value: BalanceJson) -> Balance:
        """Read what :meth:`to_json` wrote."""
        closed = value.get("left_closed")
        return cls(
            PrivacyLoss.from_json(value["budget"]),
            value["charged"],
            Left.from_json(value["left"]),
            None if closed is None else Left.from_json(closed),
            value["closed"],
            value["exhausted"],
            value["condition"],
            value["exceeded"],
        )


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
    count = len(charged)
    before = f"{counted(count, 'release')} {'is' if count == 1 else 'are'} charged already, " if count else ""
    left = "" if not count else f"; left: {accounts.left(charge.periods)}"
    head = f"This release costs {charge.guarantee.loss}; {before}the budget of {place} is {budget}{left}."
    return f"{head} Nothing was read or spent. {_cure(budget, charged, charge)}"


def _cure(budget: PrivacyLoss, charged: Sequence[Charge], charge: Charge) -> str:
    guarantee = charge.guarantee
    if guarantee.loss.delta_atto and not budget.delta_atto:
        return (
            f"The delta of this budget is 0, so only purely private releases fit it: leave out {parameter('delta')}, "
            f"or take {parameter('mechanism', 'two-sided-wishart')}. A delta is declared with the budget, once, before "
            f"the first release: {parameter('budget_delta', 'D')}."
        )
    mixed = _declaration(budget, charged, charge)
    if mixed:
        return (
            f"It would have fitted if {mixed} had been declared with the budget, before the first release: limits that "
            f"are chosen after an answer was seen protect nobody. Ask for a smaller loss, or for {_kinds(charged)}."
        )
    return "Ask for a smaller loss, or repeat an earlier release by its parameters: that is free."


def _kinds(charged: Sequence[Charge]) -> str:
    """Name the mechanisms whose losses fit what is charged: those of its kind, of which Gaussian ones add up best."""
    guarantees = [each.guarantee for each in charged]
    kinds = {
        f"{parameter('mechanism', 'gaussian')} (with {parameter('delta')})": any(
            g.mu_squared is not None for g in guarantees
        ),
        f"{parameter('mechanism', 'two-sided-wishart')} (pure, without {parameter('delta')})": any(
            g.mu_squared is None and not g.loss.delta_atto for g in guarantees
        ),
        f"{parameter('mechanism', 'wishart')} (with a delta of its own)": any(
            g.mu_squared is None and g.loss.delta_atto for g in guarantees
        ),
    }
    names = [name for name, is_charged in kinds.items() if is_charged]
    if not names:
        return f"{parameter('mechanism', 'gaussian')}, which needs no such declaration"
    return f"what is of the kind charged already: {' or '.join(names)}"


def _declaration(budget: PrivacyLoss, charged: Sequence[Charge], charge: Charge) -> str:
    """Return the options that would have let the release in, as part of the budget; empty if none would."""
    read = [c.guarantee for c in charged if not c.periods or not charge.periods or set(c.periods) & set(charge.periods)]
    total = composed([*read, charge.guarantee])
    kinds = {next(prices(g)).mu_squared > 0 for g in [*read, charge.guarantee]}
    too_much = total.epsilon_micro > budget.epsilon_micro
    if too_much or (len(kinds) == 1 and not total.delta_atto):
        return ""
    if total.delta(Fraction(budget.epsilon_micro, MICRO)) > Fraction(budget.delta_atto, ATTO):
        return ""
    parts = []
    if total.epsilon_micro:
        parts.append(f"{parameter('budget_pure', _exactly(total.epsilon_micro, MICRO))}")
    if total.delta_atto:
        parts.append(f"{parameter('budget_delta_reserve', _exactly(total.delta_atto, ATTO))}")
    return " and ".join(parts)


def _exactly(count: int, unit: int) -> str:
    """Write a number of units, short and with every digit: rounded, it would not have been enough."""
    value = Fraction(count, unit)
    short = f"{count / unit:g}"
    return short if Fraction(short) == value else f"{Decimal(count) / unit}"


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


def caps_to_fix(view: View, budget: PrivacyLoss, charge: Charge, place: str) -> list[Event]:
    """Return what has to be written before a charge that fits: the caps, if they are not fixed yet."""
    first, guarantee = view.first_charged, charge.guarantee
    if view.exhausted:
        raise RefusedError(
            f"The whole budget of {place} was charged by {step('ledger adopt')}: its witness was lost, or releases of "
            "another copy could have been charged in two ways. What was committed can be published again; nothing more "
            "can be released."
        )
    require_kept(view, budget, place)
    if first is not None and first.neighbours is not guarantee.neighbours:
        relation = first.neighbours
        raise RefusedError(
            f"The budget of {place} is kept under {relation}, the relation of its first release; a loss under "
            f"{guarantee.neighbours} cannot be added to it. Ask for {parameter('neighbours', relation)}."
        )
    accounts = view.accounts_for(guarantee)
    if accounts is None or not accounts.holds(charge):
        raise RefusedError(refusal(place, budget, accounts, view.charged, charge))
    if view.accounts is not None:
        return []
    return [Capped(tuple(caps.to_json() for caps in accounts.caps))]


def restated(view: View, draws: int) -> tuple[Created, ...]:
    """Return what has to be written before the first release of so many draws: older versions refuse its format."""
    wanted = view.format_for(draws)
    if draws == 1 or view.format >= wanted:  # they differ in their last digit only
        return ()
    return (replace(view.created, format=wanted),)


def require_kept(view: View, budget: PrivacyLoss, place: str) -> None:
    """Refuse a journal whose caps do not keep the budget, or whose charges do not keep to its caps."""
    capped = view.accounts is None or certified(view.accounts.caps, budget)
    if view.exceeded is not None or not capped:
        raise DataError(
            f"The releases charged to {place} exceed its budget. The ledger was altered, or copies of it were used "
            "without a common witness. Nothing more can be charged to it."
        )
