"""Who may add which unit of a pass: the states of every grant, and why each unit counts once.

A pass is cut into units. The driver, and nobody else, grants a unit to one *life*: one worker from the moment it was
welcomed to the pass until it is given up. The life adds the unit's part to its running sum. From time to time the
trusted node's *bank* takes the running sum over. What the bank has when every unit is in it is the total.

The states of a unit, and what moves it::

                granted to a life          its receipt came           the bank took the batch it is in
        OPEN  ------------------->  GRANTED  ---------->  ADDED  ----------------------------------> BANKED
         ^                             |     ------------------------------------------------------>    |
         |      withdrawn, and the life said that it had not added it;                                  |
         +------------------------- or the life was given up <---- ADDED                                |
         +---------------------------------------------------------------- the bank itself was lost ----+

**No unit counts twice.** At any time a unit has at most one live grant: a second one is given only after the first has
ended, and a grant ends in one of three ways.

* The life confirms that it will not add the unit. It decides this under the same lock under which it adds; so either it
  had added the unit and says so, and the grant goes on, or it drops the part when the computation ends.
* The life is given up. Its running sum, and all that it was granted and the bank does not have, is then never asked for
  again. A worker sends nothing to the bank by its own will: the bank fetches a batch that the driver names, by life and
  number. A worker that was thought dead and returns is welcomed as another life, and begins with an empty sum. What
  the old life still computes finds its life gone and is dropped.
* The bank has it. A batch is added to the bank whole or not at all, and named once: it is a detached sum that the life
  cannot change any more, together with the grants in it. The bank refuses one that holds anything but live grants.

So the sums that can still reach the bank never have a unit in common, and none with the bank. That a life adds a grant
once, whatever ran its task twice, is held by :mod:`dpdist.runtime.running_sums`.

**No unit is lost.** The pass ends when every unit is BANKED. Whatever a message tells of, its loss leaves a unit in a
state from which it is asked for again:

==========================  ============================================================================================
lost, late or twice         what follows
==========================  ============================================================================================
a grant on its way          no receipt: it is withdrawn at the end of the pass, or the life is given up
a receipt                   the unit stays GRANTED; the life says that it was added when it is withdrawn or detached
an order to withdraw or     it is given again; both are idempotent. A life that does not answer is given up
to detach, or its answer
a batch on its way          it stays, detached, with its life until the bank has it; it is fetched again
a life                      its units that the bank does not have are OPEN again, those of a fetched batch excepted
                            until it is known whether the bank has them
a secret on its way to a    the life is granted nothing before it is known that it has the secret; it is told again, or
life, or its answer         given up. It keeps the first one, and says so when it is told another
the bank                    what it had is OPEN again; what lives hold stays as it is. But if the bank had the secret of
                            the pass, all lives are given up: the next bank has another one
the scheduler               all lives are given up; the bank stays, because it is no part of the cluster
the driver                  the pass ends; the same command begins another one, and lives of the old one are dropped
==========================  ============================================================================================

A bank is the trusted worker's by its token, not by its name: Dask may open it again, empty, when that worker is lost.

**Sums under two keys never meet.** A pass may have a secret without which no part can be computed: the key by which
rows are dithered (:mod:`dpdist.rows.dither`). A life has one for all its time, from whoever has the bank. That is the
driver, whose secret lasts as long as its passes; or the trusted worker's bank, and lives of another bank are given up
before they could be told a second one, or be asked for what they summed under the first.

A batch that one life has absorbed from another (the tree of the last hand-in) is still held by the first one. When the
second life is given up, the first batch stands for itself again.

The sums are of integers, so nothing of this changes a bit of the total. And it is not the last proof: a sum carries the
chunks that are in it, and :func:`dpdist.moment.total.complete` refuses a total that does not hold each of them once.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field


class State(enum.Enum):
    """Of a unit."""

    OPEN = enum.auto()
    GRANTED = enum.auto()
    ADDED = enum.auto()
    BANKED = enum.auto()


@dataclass(frozen=True)
class Grant:
    """The leave to add one unit.

    Attributes
    ----------
    number
        Of this grant; no other grant of the pass ever has it.
    unit
        Index of the unit.
    life
        Who may.
    """

    number: int
    unit: int
    life: str


@dataclass(frozen=True)
class Batch:
    """A detached sum: nobody adds to it any more, but a batch that it absorbs.

    Attributes
    ----------
    life, number
        Who holds it, under which number.
    grants
        The numbers of all grants in it.
    nbytes
        Bytes of the sum.
    parts
        Batches of other lives that were absorbed, and are still held there.
    """

    life: str
    number: int
    grants: frozenset[int]
    nbytes: int = 0
    parts: tuple[Batch, ...] = ()

    def absorbing(self, others: tuple[Batch, ...]) -> Batch:
        """Return this batch when it has absorbed others."""
        grants = self.grants.union(*(other.grants for other in others))
        return Batch(self.life, self.number, grants, self.nbytes, self.parts + others)

    @property
    def own(self) -> frozenset[int]:
        """The grants that were in it before it absorbed any other."""
        return self.grants.difference(*(part.grants for part in self.parts))


@dataclass
class _Held:
    """What a life has: grants that ended with no batch, and batches that wait for the bank."""

    grants: set[int] = field(default_factory=set)


class Grants:
    """The grants of one pass; used by one thread.

    Parameters
    ----------
    units
        How many units there are.
    """

    def __init__(self, units: int) -> None:
        self._states = [State.OPEN] * units
        self._counts = Counter({State.OPEN: units})
        self._open: OrderedDict[int, None] = OrderedDict.fromkeys(range(units))
        self._next = 0
        self._live: dict[int, Grant] = {}
        """The live grants, by number; of a unit there is at most one."""
        self._lives: dict[str, _Held] = {}
        self.batches: list[Batch] = []
        """Detached sums that the bank does not have yet."""
        self.fetching: Batch | None = None
        """The one that is on its way to the bank."""

    def __len__(self) -> int:
        return len(self._states)

    def count(self, *states: State) -> int:
        """Return how many units are in one of these states."""
        return sum(self._counts[state] for state in states)

    @property
    def complete(self) -> bool:
        """Whether the bank has every unit."""
        return self._counts[State.BANKED] == len(self._states)

    @property
    def open(self) -> Collection[int]:
        """The units that may be granted, in order."""
        return self._open.keys()

    @property
    def lives(self) -> list[str]:
        """The lives that may add."""
        return list(self._lives)

    def _move(self, unit: int, state: State) -> None:
        self._counts[self._states[unit]] -= 1
        self._counts[state] += 1
        self._states[unit] = state
        if state is State.OPEN:
            self._open[unit] = None
        else:
            self._open.pop(unit, None)

    # --- lives --------------------------------------------------------------------------------------------------------

    def welcome(self, life: str) -> None:
        """Begin a life, with a name that no other ever had."""
        if life in self._lives:
            raise AssertionError("a life begins once")
        self._lives[life] = _Held()

    def give_up(self, life: str) -> None:
        """End a life: what it has and the bank does not is open again.

        What is being fetched from it is decided by :meth:`banked` or :meth:`not_fetched`.
        """
        self._lives.pop(life, None)
        for batch in [batch for batch in self.batches if batch.life == life and batch is not self.fetching]:
            self.batches.remove(batch)
            self.batches += [part for part in batch.parts if part.life in self._lives]
        self._reopen_lost()

    def _reopen_lost(self) -> None:
        """Open every unit whose grant is of no life and in no batch."""
        kept = set().union(*(batch.grants for batch in self.batches))
        for number, grant in list(self._live.items()):
            if number not in kept and (grant.life not in self._lives or number not in self._lives[grant.life].grants):
                del self._live[number]
                self._move(grant.unit, State.OPEN)

    def has_any(self, life: str) -> bool:
        """Say whether a life has anything that the bank does not."""
        return bool(self._lives[life].grants) or any(batch.life == life for batch in self.batches)

    # --- grants -------------------------------------------------------------------------------------------------------

    def grant(self, life: str, unit: int) -> Grant:
        """Grant an open unit to a life."""
        if life not in self._lives or self._states[unit] is not State.OPEN:
            raise AssertionError("only what is open is granted, to who is there")
        made = Grant(self._next, unit, life)
        self._next += 1
        self._live[made.number] = made
        self._lives[life].grants.add(made.number)
        self._move(unit, State.GRANTED)
        return made

    def added(self, number: int) -> bool:
        """Note a receipt, and say whether its grant is live and this is news."""
        grant = self._live.get(number)
        if grant is None or self._states[grant.unit] is not State.GRANTED:
            return False
        self._move(grant.unit, State.ADDED)
        return True

    def finished(self, number: int) -> bool:
        """Note a receipt of a pass that leaves nothing with a life, and say whether this is news."""
        if not self.added(number):
            return False
        grant = self._live.pop(number)
        self._lives[grant.life].grants.discard(number)
        self._move(grant.unit, State.BANKED)
        return True

    def withdrawn(self, number: int) -> bool:
        """Note that a life will not add a unit, and say whether this is news."""
        grant = self._live.get(number)
        if grant is None or self._states[grant.unit] is not State.GRANTED:
            return False
        del self._live[number]
        self._lives[grant.life].grants.discard(number)
        self._move(grant.unit, State.OPEN)
        return True

    def unit_of(self, number: int) -> int | None:
        """Return the unit of a live grant."""
        return None if number not in self._live else self._live[number].unit

    def added_by(self, life: str) -> frozenset[int]:
        """Return the grants that a life has added and that are in no batch yet, as far as it is known."""
        held = self._lives[life].grants
        return frozenset(number for number in held if self._states[self._live[number].unit] is State.ADDED)

    # --- the bank -----------------------------------------------------------------------------------------------------

    def detached(self, batch: Batch) -> bool:
        """Note what a life detached, and say whether the bank may have it.

        Not if the life was given up, or the batch is known, or holds what is not live there: then it is never fetched,
        and the life has to be given up.
        """
        held = self._lives.get(batch.life)
        if held is None or not batch.grants or not batch.grants <= held.grants:
            return False
        for number in batch.grants:
            self.added(number)  # the receipt may have been lost
        held.grants -= batch.grants
        self.batches.append(batch)
        return True

    def absorbed(self, batch: Batch, others: tuple[Batch, ...]) -> bool:
        """Note that a batch has absorbed others, and say whether it may stand for them all.

        Not if one of them is not there any more, because its life was given up: then what absorbed it must be given up.
        """
        if batch not in self.batches or not all(other in self.batches for other in others):
            return False
        self.batches = [each for each in self.batches if each != batch and each not in others]
        self.batches.append(batch.absorbing(others))
        return True

    def fetch(self, batch: Batch) -> None:
        """Begin to bring a batch to the bank: from now on it is kept until it is known what became of it."""
        if self.fetching is not None or batch not in self.batches:
            raise AssertionError("one batch is fetched at a time")
        self.fetching = batch

    def banked(self) -> None:
        """Note that the bank has the batch that was fetched."""
        batch, self.fetching = self.fetching, None
        if batch is None:
            raise AssertionError("nothing was fetched")
        self.batches.remove(batch)
        for number in batch.grants:
            self._move(self._live.pop(number).unit, State.BANKED)

    def not_fetched(self) -> None:
        """Note that the bank does not have it, and never will have unless it is fetched again."""
        batch, self.fetching = self.fetching, None
        if batch is not None and batch.life not in self._lives:
            self.give_up(batch.life)

    def bank_lost(self) -> None:
        """Note that the bank has nothing any more."""
        self.not_fetched()
        for unit, state in enumerate(self._states):
            if state is State.BANKED:
                self._move(unit, State.OPEN)
