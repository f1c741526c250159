"""What may be charged to a ledger: the rules about prices, periods, the neighbouring relation, caps and budget.

Each looks at what the journal amounts to, and refuses what may not be; none writes. ``place`` says in messages where
the ledger is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from dpdist._util.text import listed
from dpdist.errors import DataError, RefusedError
from dpdist.ledger.balance import refusal
from dpdist.ledger.entries import Capped, Created, Event
from dpdist.ledger.state import Record, State, View
from dpdist.naming import parameter, step
from dpdist.privacy.accounting import certified, prices
from dpdist.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.privacy.parallel import Charge


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
