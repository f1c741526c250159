"""What the trusted node has of a pass: one sum, and which batches are in it.

The bank takes a batch whole or not at all, once, and only with exactly the grants that the driver expects in it
(:mod:`dpdist.runtime.grants` has the argument). It is an object of the driver, or of the plugin of the trusted worker.

The bank of a trusted worker has the secret of the pass, if there is one: it is drawn there when the bank is opened, and
tells it to lives. When that worker is lost Dask runs the task again that opened the bank, under the same name, and
elsewhere: that is another bank, empty and with another secret, and is known by its token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from distributed import get_worker
from distributed.utils import sync

from dpdist._util.ids import random_token
from dpdist.runtime.asker import Asker
from dpdist.runtime.guarded import guarded
from dpdist.runtime.process import forbid_core_dumps
from dpdist.runtime.running_sums import Common, NotHereError, Place, entrusted, fetched, plugin

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


class Opened(NamedTuple):
    """One bank of a trusted worker, and no other that was opened under its name."""

    name: str
    token: str


class Bank:
    """A sum that grows by batches.

    Parameters
    ----------
    add, asker
        As of :class:`dpdist.runtime.running_sums.Common`.
    secret
        What it tells to lives, if it has any.
    """

    def __init__(self, add: Callable[[Any, Any], Any], asker: Asker, secret: bytes | None = None) -> None:
        self._add, self.asker, self.secret = add, asker, secret
        self.token = random_token()
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


def opened(name: str, common: bytes, secret: Callable[[], bytes] | None) -> str:
    """Open a bank on this worker and return its token; the task has its name, and the bank goes with its result."""
    forbid_core_dumps()
    shared = Common.loaded(common)
    if shared.add is None:
        raise AssertionError("a pass without a sum has no bank")
    made = Bank(shared.add, shared.asker, None if secret is None else secret())
    found: Bank = plugin().banks.setdefault(name, made)
    return found.token


def _found(which: Opened) -> Bank | None:
    bank: Bank | None = plugin().banks.get(which.name)
    return bank if bank is not None and bank.token == which.token else None


def told(which: Opened, lives: Sequence[tuple[str, str]]) -> list[bool] | None:
    """Tell lives the secret of a bank of this worker; say of each whether it has it now, or None without the bank.

    Parameters
    ----------
    which
        The bank.
    lives
        Address of the worker and name of each.
    """
    worker, bank = get_worker(), _found(which)
    if bank is None or bank.secret is None:
        return None
    secret = bank.secret

    async def each() -> list[BaseException | None]:
        asked = [entrusted(worker.rpc, address, life, secret) for address, life in lives]
        return await asyncio.gather(*asked, return_exceptions=True)

    return [outcome is None for outcome in sync(worker.loop, each)]


def taken(which: Opened, place: Place, expected: frozenset[int]) -> Outcome:
    """Fetch a batch from the worker that holds it, and add it to a bank of this worker."""
    worker, bank = get_worker(), _found(which)
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


def finished(which: Opened, asker: Asker, function: Callable[..., Result], *arguments: Any) -> tuple[Result] | None:
    """Call a function with the sum of a bank of this worker as its last argument; None if it is not here any more."""
    bank = _found(which)
    if bank is None:
        return None
    return (guarded(asker, function, *arguments, bank.total),)
