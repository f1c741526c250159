"""What the trusted node has of a pass: one sum, and which batches are in it.

The bank takes a batch whole or not at all, once, and only with exactly the grants that the driver expects in it
(:mod:`dpdist.runtime.grants` has the argument). It is an object of the driver, or of the plugin of the trusted worker.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

from distributed import get_worker
from distributed.utils import sync

from dpdist.runtime.asker import Asker
from dpdist.runtime.guarded import guarded
from dpdist.runtime.process import forbid_core_dumps
from dpdist.runtime.running_sums import Common, NotHereError, Place, fetched, plugin

Result = TypeVar("Result")


class Outcome(StrEnum):
    """What became of a batch that the bank was to take."""

    TAKEN = "taken"
    GONE = "gone"
    """Its worker does not hold it any more, or does not answer."""
    UNREACHABLE = "unreachable"
    """Its worker cannot be reached from the bank."""
    REFUSED = "refused"
    """It holds other grants than it should."""
    LOST = "lost"
    """There is no such bank any more."""


class Bank:
    """A sum that grows by batches.

    Parameters
    ----------
    add, asker
        As of :class:`dpdist.runtime.running_sums.Common`.
    """

    def __init__(self, add: Callable[[Any, Any], Any], asker: Asker) -> None:
        self._add, self.asker = add, asker
        self._taken: set[tuple[str, int]] = set()
        self.total: Any = None

    def has(self, place: Place) -> bool:
        """Say whether a batch is in the sum."""
        return (place.life, place.number) in self._taken

    def take(self, place: Place, grants: frozenset[int], expected: frozenset[int], total: Any) -> Outcome:
        """Add a batch, unless it was added before or is not what was expected."""
        if self.has(place):
            return Outcome.TAKEN
        if grants != expected:
            return Outcome.REFUSED
        self.total = self._add(self.total, total) if self._taken else total
        self._taken.add((place.life, place.number))
        return Outcome.TAKEN


def failed(error: BaseException) -> Outcome:
    """Return what became of a batch that could not be fetched."""
    return Outcome.GONE if isinstance(error, NotHereError) else Outcome.UNREACHABLE


# --- tasks of the trusted worker --------------------------------------------------------------------------------------


def opened(name: str, common: bytes) -> None:
    """Open a bank on this worker; the task has its name, and the bank goes when its result is released."""
    forbid_core_dumps()
    shared = Common.loaded(common)
    if shared.add is None:
        raise AssertionError("a pass without a sum has no bank")
    plugin().banks.setdefault(name, Bank(shared.add, shared.asker))


def taken(name: str, place: Place, expected: frozenset[int]) -> Outcome:
    """Fetch a batch from the worker that holds it, and add it to a bank of this worker."""
    worker, bank = get_worker(), plugin().banks.get(name)
    if bank is None:
        return Outcome.LOST
    if bank.has(place):
        return Outcome.TAKEN
    try:
        total, grants = sync(worker.loop, fetched, worker.rpc, place)
    except (NotHereError, OSError) as error:
        return failed(error)
    outcome: Outcome = guarded(bank.asker, bank.take, place, grants, expected, total)
    return outcome


def finished(name: str, asker: Asker, function: Callable[..., Result], *arguments: Any) -> tuple[Result] | None:
    """Call a function with the sum of a bank of this worker as its last argument; None if it is not here any more."""
    bank = plugin().banks.get(name)
    if bank is None:
        return None
    return (guarded(asker, function, *arguments, bank.total),)
