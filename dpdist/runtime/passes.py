"""One pass, seen from the driver: whom it welcomes, what it grants, when it takes sums to the bank.

What counts once, and why, is said in :mod:`dpdist.runtime.grants`; this module only asks, and waits for answers. All of
it runs in the one thread of :mod:`dpdist.runtime.conductor`. Nothing waits here: whatever is asked of the cluster comes
back as an event. What travels by way of the scheduler is public and small: units, grants, and what became of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from distributed import Future

from dpdist._util.ids import random_token
from dpdist.errors import DataError, DpdistError, ResumableError
from dpdist.runtime.asker import Asker
from dpdist.runtime.bank import Opened
from dpdist.runtime.collecting import Collector
from dpdist.runtime.entrusting import Entrusting
from dpdist.runtime.grants import Grants, State
from dpdist.runtime.running_sums import NAME, Common, NoLifeError, Said, run_unit, welcomed
from dpdist.runtime.work import AGAIN_SECONDS, DIED, PATIENCE, Cluster, Member, Work

_LATE_SECONDS = 10.0
"""What is never too long for a unit: the first one of a worker waits for libraries."""
_SHORT_SECONDS = 0.5
"""A unit that takes no longer is short."""
_SLOW = 3
"""A unit that takes so many times longer than the slowest one before is given to another worker."""
_DEATHS = 4
"""Workers that may die over one unit."""


class Pass:
    """One sum over all units, or none.

    Parameters
    ----------
    cluster
        The conductor.
    work
        What is computed.
    """

    def __init__(self, cluster: Cluster, work: Work) -> None:
        self._cluster, self.work = cluster, work
        self._asker = Asker.here()
        self._content = Common(work.function, work.values, work.add, self._asker, work.secret is not None).dumped()
        self.common: Future | None = None
        self._scattering = False
        self.grants = Grants(len(work.units))
        self.members: dict[str, Member] = {}
        self._known: dict[str, Any] = {}
        self._unusable: dict[str, Exception] = {}
        self._again: dict[str, float] = {}
        """When a worker that was given up may be welcomed again."""
        self.lives: dict[str, Member] = {}
        self._threads = 0
        """Of all workers that were welcomed."""
        self._deaths: Counter[int] = Counter()
        self._slowest = 0.0
        self.collector = None if work.add is None else Collector(self, cluster, self._asker)
        self.entrusting = None if work.secret is None else Entrusting(self, cluster)

    # --- workers ------------------------------------------------------------------------------------------------------

    def see(self, known: dict[str, Any]) -> None:
        """Welcome workers that have come, and give those up that have gone."""
        self._known = known
        for address in [address for address in self.members if address not in known]:
            member = self.members[address]
            for number in list(member.running)[: member.threads]:
                self._died_over(number)
            self.give_up(member)
        self._unusable = {address: fault for address, fault in self._unusable.items() if address in known}
        if not known:
            return
        if self.common is None:
            self._scatter()
            return
        for address, info in known.items():
            again = self._again.get(address, 0.0)
            if address not in self.members and address not in self._unusable and again <= self._cluster.clock:
                self._welcome(address, min(int(info["nthreads"]), self.work.threads))

    def _scatter(self) -> None:
        """Bring what all units share to one worker; the others take it from whoever has it."""
        if self._scattering:
            return
        self._scattering = True
        client = self._cluster.client

        async def scattered() -> Any:
            scatter = partial(client._scatter, [self._content], hash=False)  # noqa: SLF001 - no other way from a thread
            try:
                return await asyncio.wait_for(scatter(direct=True), PATIENCE)
            except OSError:  # no worker can be reached from here, and none need be where one of them is the trusted one
                return await scatter(direct=False)

        def done(found: Any) -> None:
            self._scattering = False
            if found.exception() is None:
                (self.common,) = found.result()
                self.see(self._known)

        self._cluster.ask(scattered(), done)

    def _welcome(self, address: str, threads: int) -> None:
        member = Member(address, f"dpdist-welcome-{random_token()}", threads)
        self.members[address] = self.lives[member.life] = member
        member.welcome = self._cluster.submit(
            partial(self._welcomed, member),
            welcomed, self._asker, member.life, self.common, self._cluster.places, self._cluster.foreign,
            key=member.life, workers=[address], priority=10,
        )  # fmt: skip

    def _welcomed(self, member: Member, future: Future) -> None:
        if self.lives.get(member.life) is not member:
            return
        if future.status == "finished":
            if self.entrusting is None:
                self.begin(member)
            else:
                self.entrusting.welcome(member)
            return
        if future.status == "error":
            fault = future.exception()
            if not isinstance(fault, DpdistError):  # what a worker cannot unpickle
                version = self._asker.version
                fault = DataError(f"The worker {member.address} cannot run dpdist. Install dpdist {version} there.")
            self.refuse(member.address, fault)
        else:
            self.common = None  # what it needed was lost
        self.give_up(member)

    def begin(self, member: Member) -> None:
        """Let a worker that was welcomed, and knows all it needs, be granted units."""
        member.here, member.since = True, self._cluster.clock
        self._threads += member.threads
        self._cluster.freed[member.address] = None
        self.grants.welcome(member.life)

    def refuse(self, address: str, fault: Exception) -> None:
        """Welcome a worker no more, and tell why."""
        self._unusable[address] = fault
        self._cluster.name(address, fault)

    @property
    def fault(self) -> Exception | None:
        """Why none of the workers that are there can be used; None while one can, or may yet."""
        if self._known.keys() <= self._unusable.keys():
            return next(iter(self._unusable.values()), None)
        return None

    def give_up(self, member: Member) -> None:
        """Give a worker up: what it has and the bank does not is summed again."""
        if self.members.get(member.address) is member:
            del self.members[member.address]
        self.lives.pop(member.life, None)
        self._again[member.address] = self._cluster.clock + AGAIN_SECONDS
        self._threads -= member.threads if member.here else 0
        member.here = False
        self.grants.give_up(member.life)
        _release(member)
        if self.entrusting is not None:
            self.entrusting.give_up(member)
        if self.collector is not None:
            self.collector.begin_again(member)

    def give_all_up(self) -> None:
        """Give all workers up: the scheduler forgot what they were asked for."""
        for member in list(self.members.values()):
            self.give_up(member)
        self.common = None
        self._again.clear()
        if self._cluster.trusted_worker and self.collector is not None:
            self.collector.bank_gone()

    def _died_over(self, number: int) -> None:
        unit = self.grants.unit_of(number)
        if unit is None:
            return
        self._deaths[unit] += 1
        if self._deaths[unit] >= _DEATHS:
            raise ResumableError(DIED)

    # --- units --------------------------------------------------------------------------------------------------------

    def capacity(self, member: Member) -> int:
        """Return how many units a worker may be granted: one more than it computes at once, while there are many.

        A worker that has none at hand waits some 20 ms for the next. One at hand may wait for a slow worker while
        others are idle: that is no longer than short units take.
        """
        many = 4 if self._slowest > _SHORT_SECONDS else 1
        return member.threads + (self.grants.count(State.OPEN) > many * self._threads)

    @property
    def workers(self) -> int:
        """How many workers compute units of it, or hold a sum."""
        return sum(map(self.holds, self.members.values()))

    def holds(self, member: Member) -> bool:
        """Say whether a worker computes units of it, or holds a sum."""
        return bool(member.running) or (member.here and self.grants.has_any(member.life))

    def _next(self, member: Member) -> int:
        if self.work.sticky:
            every = len(self.members)
            first = sorted(self.members).index(member.address)
            for unit in range(first, len(self.grants), every):
                if unit in self.grants.open:
                    return unit
        return next(iter(self.grants.open))

    def give(self, member: Member) -> None:
        """Grant an open unit to a worker."""
        unit = self._next(member)
        grant = self.grants.grant(member.life, unit)
        if not member.running:
            member.since = self._cluster.clock
        member.running[grant.number] = self._cluster.submit(
            partial(self._finished, member, grant.number),
            run_unit, member.life, grant.number, self.work.units[unit],
            key=f"dpdist-{self.work.step}-{random_token()}", workers=[member.address],
        )  # fmt: skip

    def _finished(self, member: Member, number: int, future: Future) -> None:
        """Take the end of a task as the receipt of its grant."""
        if self.lives.get(member.life) is not member:
            return
        if future.status == "error":
            error = future.exception()
            if not isinstance(error, NoLifeError):
                raise error
            self.give_up(member)
            return
        if future.status != "finished":
            self.give_up(member)
            return
        del member.running[number]
        self._cluster.freed[member.address] = None
        spent = max(0.0, self._cluster.clock - member.since)
        member.since = self._cluster.clock
        if number in member.withdrawn:
            return  # what became of it, the worker says itself
        if self.work.add is None:
            self.grants.finished(number)
        elif self.grants.added(number):
            member.at_stake += spent
        self._slowest = max(self._slowest, spent)

    def _withdraw_slow(self) -> None:
        """Withdraw units that take too long, for others that have nothing to do."""
        if next(iter(self.grants.open), None) is not None or not self.grants.count(State.GRANTED):
            return
        if all(member.running for member in self.members.values() if member.here):
            return
        limit = max(_LATE_SECONDS, _SLOW * self._slowest)
        for member in list(self.members.values()):
            late = [number for number in member.running if number not in member.withdrawn]
            if late and member.due is None and self._cluster.clock - member.since > limit:
                member.withdrawn.update(late)
                self.tell(member, "withdraw", partial(self._withdrawn, member, late), grants=late)

    def _withdrawn(self, member: Member, numbers: list[int], said: Any) -> None:
        if said is None or Said.UNKNOWN in said:
            self.give_up(member)
            return
        for number, each in zip(numbers, said, strict=True):
            if each == Said.DROPPED:
                self.grants.withdrawn(number)
            elif self.work.add is None:
                self.grants.finished(number)
            else:
                self.grants.added(number)

    def tell(self, member: Member, what: str, then: Callable[[Any], None], **options: Any) -> None:
        """Ask the plugin of a worker, by way of the scheduler, and call ``then`` with its answer, or None."""
        member.due = self._cluster.clock + PATIENCE
        message = {"op": f"{NAME}-{what}", "life": member.life, **options}

        def answered(found: Any) -> None:
            if self.lives.get(member.life) is not member:
                return
            member.due = None
            answers = {} if found.exception() is not None else found.result()
            answer = answers.get(member.address)
            then(answer if isinstance(answer, list | tuple) else None)  # what failed there is a message or an error

        asked = self._cluster.client.scheduler.broadcast(msg=message, workers=[member.address], on_error="ignore")
        self._cluster.ask(asked, answered)

    def care(self) -> None:
        """See to workers that are late, that do not answer, or that wait for the secret of the pass."""
        self._withdraw_slow()
        self._give_silent_up()
        if self.entrusting is not None:
            self.entrusting.tell()

    def _give_silent_up(self) -> None:
        """Give up who does not answer."""
        for member in list(self.members.values()):
            if member.due is not None and self._cluster.clock > member.due:
                self.give_up(member)

    # --- sums ---------------------------------------------------------------------------------------------------------

    @property
    def summed(self) -> bool:
        """Whether every unit is in a sum, and no more is granted."""
        return not self.grants.count(State.OPEN, State.GRANTED)

    @property
    def bank(self) -> Opened | None:
        """The trusted worker's bank."""
        return None if self.collector is None else self.collector.opened

    def collect(self, *, hungry: bool) -> None:
        """Bring sums to the bank, if it may take any now."""
        if self.collector is not None and hungry:
            self.collector.collect()

    def close(self) -> None:
        """Let the workers forget the pass; the bank stays."""
        for member in self.members.values():
            _release(member)
        self._known = {}
        self.members.clear()
        self.lives.clear()
        self.common = self.entrusting = None

    def close_bank(self) -> None:
        """Let the trusted worker forget the sum, and the secret of the pass."""
        if self.collector is not None:
            self.collector.close_bank()


def _release(member: Member) -> None:
    """Let the cluster forget what a worker was asked for; the worker forgets the life when it hears of it."""
    for future in [*member.running.values(), *filter(None, [member.welcome])]:
        future.release()
    member.running.clear()
    member.welcome = None
