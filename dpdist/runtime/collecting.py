"""How the sums of a pass come to the bank: checkpoints, and the last hand-in by a tree.

It belongs to one pass (:mod:`dpdist.runtime.passes`) and runs in its thread. Batches travel from worker to worker and
to the trusted node. Only their grants, and where they are, pass through the scheduler.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from distributed import Future

from dpdist._util.ids import random_token
from dpdist._util.tree import FAN_IN
from dpdist.runtime import work
from dpdist.runtime.asker import Asker
from dpdist.runtime.bank import Bank, Opened, Outcome, failed, opened, taken
from dpdist.runtime.checkpoints import worth_a_checkpoint
from dpdist.runtime.grants import Batch
from dpdist.runtime.running_sums import NAME, SLOWEST, Place, absorb, fetched
from dpdist.runtime.work import AGAIN_SECONDS, Cluster, Member

if TYPE_CHECKING:
    from dpdist.runtime.passes import Pass


class Collector:
    """Brings the sums of one pass to its bank.

    Parameters
    ----------
    owner
        The pass; it has a sum.
    cluster
        The conductor.
    asker
        This process.
    """

    def __init__(self, owner: Pass, cluster: Cluster, asker: Asker) -> None:
        self._pass, self._cluster = owner, cluster
        self._grants = owner.grants
        if owner.work.add is None:
            raise AssertionError("a pass without a sum collects nothing")
        self.bank = None if cluster.trusted_worker else Bank(owner.work.add, asker)
        """That of this process."""
        self.opened: Opened | None = None
        """That of the trusted worker, when it is known to be open."""
        self.hungry = True
        """Whether the bank may take sums now."""
        self._bank_task: Future | None = None
        self._taking: Future | None = None
        self._absorbing: set[str] = set()
        """Lives that absorb."""
        self._stuck = False
        """Whether the tree cannot be made any smaller."""
        self._take_seconds = 0.1
        self._asked_bank = self._wait_until = 0.0
        self._unreachable_since: float | None = None

    def begin_again(self, member: Member) -> None:
        """Note that a worker was given up: what remains may be joined anew."""
        self._absorbing.discard(member.life)
        self._stuck = False

    def collect(self) -> None:
        """Let workers detach sums whose turn it is, join them, and bring one to the bank."""
        if self._pass.work.add is None or not self.hungry:
            return
        summed = self._pass.summed
        for member in list(self._pass.members.values()):
            if member.here and member.due is None and (summed or self._worth_a_checkpoint(member)):
                self._detach(member)
        if any(member.detaching for member in self._pass.members.values()) and summed:
            return
        if summed and len(self._grants.batches) > FAN_IN and not self._stuck and not self._grants.fetching:
            self._join()
        if not self._absorbing and self._grants.batches and self._grants.fetching is None:
            self._take()

    def _worth_a_checkpoint(self, member: Member) -> bool:
        units = len(self._grants.added_by(member.life)), len(self._grants)
        return worth_a_checkpoint(member.at_stake, *units, self._take_seconds, len(self._pass.members))

    def _detach(self, member: Member) -> None:
        known = self._grants.added_by(member.life)
        if not known:
            return
        member.detaching = True
        number = member.batches

        def detached(answer: Any) -> None:
            member.detaching = False
            if answer is None:
                self._pass.give_up(member)
                return
            grants, nbytes = frozenset(answer[0]), answer[1]
            if not known <= grants or not self._grants.detached(Batch(member.life, number, grants, nbytes)):
                self._pass.give_up(member)  # it lost what it had
                return
            member.batches += 1
            member.at_stake = 0.0

        self._pass.tell(member, "detach", detached, number=number)

    def _place(self, batch: Batch) -> Place:
        return Place(self._pass.lives[batch.life].address, batch.life, batch.number, batch.nbytes)

    def _join(self) -> None:
        """Let one batch in four absorb three others, if its worker has nothing else to do; one batch of a worker."""
        if self._absorbing:
            return
        idle = {batch.life: batch for batch in self._grants.batches if not self._pass.lives[batch.life].running}
        first = list(idle.values())[: -(-len(self._grants.batches) // FAN_IN)]
        rest = [batch for batch in self._grants.batches if batch not in first]
        for place, batch in enumerate(first):
            others = tuple(rest[place :: len(first)][: FAN_IN - 1])
            if not others:
                continue
            member = self._pass.lives[batch.life]
            member.due = self._cluster.clock + work.PATIENCE + sum(other.nbytes for other in others) / SLOWEST
            self._absorbing.add(batch.life)
            self._cluster.submit(
                partial(self._absorbed, member, batch, others),
                absorb, batch.life, batch.number, [self._place(other) for other in others],
                key=f"dpdist-join-{random_token()}", workers=[member.address], priority=10,
            )  # fmt: skip
        self._stuck = not self._absorbing

    def _absorbed(self, member: Member, batch: Batch, others: tuple[Batch, ...], future: Future) -> None:
        if batch.life not in self._absorbing:
            return
        if future.status == "error":
            raise future.exception()
        if future.status != "finished":
            self._pass.give_up(member)  # nobody knows what is in it now
            return

        def known(found: Any) -> None:
            if batch.life not in self._absorbing:
                return
            if found.exception() is not None:
                self._pass.give_up(member)
                return
            self._absorbing.discard(batch.life)
            member.due = None
            in_it = {(each[1], each[2]) for each in found.result()}
            taken_in = tuple(other for other in others if (other.life, other.number) in in_it)
            self._stuck = self._stuck or len(taken_in) < len(others)
            if taken_in and not self._grants.absorbed(batch, taken_in):
                self._pass.give_up(member)

        self._cluster.ask(future._result(), known)  # noqa: SLF001 - no other way from a thread

    def _take(self) -> None:
        """Bring a batch to the bank."""
        if self._cluster.clock < self._wait_until:
            return
        if self._cluster.trusted_worker and not self.open():
            return
        batch = next((batch for batch in self._grants.batches if batch.life in self._pass.lives), None)
        if batch is None:
            return
        self._grants.fetch(batch)
        self._asked_bank = self._cluster.clock
        if self.bank is None:
            self._take_there(batch, self._place(batch))
        else:
            self._take_here(self.bank, batch, self._place(batch))

    def _take_here(self, bank: Bank, batch: Batch, place: Place) -> None:
        def here(found: Any) -> None:
            if found.exception() is not None:
                self._taken(batch, place, failed(found.exception()))
                return
            total, grants = found.result()
            self._taken(batch, place, bank.take(place, grants, batch.grants, total))

        self._cluster.ask(fetched(self._cluster.client.rpc, place), here)

    def _take_there(self, batch: Batch, place: Place) -> None:
        asked = self.opened

        def answered(outcome: Outcome) -> None:
            if self.opened == asked:  # what another bank did with it says nothing of this one
                self._taken(batch, place, outcome)

        def there(future: Future) -> None:
            if future.status == "error":
                raise future.exception()
            if future.status != "finished":
                answered(Outcome.LOST)
                return
            self._cluster.ask(
                future._result(),  # noqa: SLF001 - no other way from a thread
                lambda found: answered(Outcome.LOST if found.exception() else found.result()),
            )

        self._taking = self._cluster.submit(
            there, taken, asked, place, batch.grants,
            key=f"dpdist-take-{random_token()}", resources={"trusted": 1}, priority=20,
        )  # fmt: skip

    def _taken(self, batch: Batch, place: Place, outcome: Outcome) -> None:
        if self._grants.fetching is not batch:
            return
        member = self._pass.lives.get(batch.life)
        if outcome is Outcome.TAKEN:
            self._grants.banked()
            self._take_seconds = self._cluster.clock - self._asked_bank
            self._unreachable_since = None
            if member is not None:
                forget = {"op": f"{NAME}-forget", "life": batch.life, "number": batch.number}
                told = self._cluster.client.scheduler.broadcast(msg=forget, workers=[place.worker], on_error="ignore")
                self._cluster.ask(told, lambda _: None)
            return
        self._grants.not_fetched()
        if outcome is Outcome.LOST:
            self.bank_gone()
        elif outcome is Outcome.UNREACHABLE:
            self._wait_until = self._cluster.clock + AGAIN_SECONDS
            self._unreachable_since = self._unreachable_since or self._cluster.clock
            if self._cluster.clock - self._unreachable_since > work.LOST_SECONDS:
                raise work.unreachable(place.worker, trusted=self._cluster.trusted_worker)
        elif member is not None:
            self._pass.give_up(member)

    # --- the bank of the trusted worker -------------------------------------------------------------------------------

    def open(self) -> bool:
        """Say whether the trusted worker's bank is open, and ask for it where it is not."""
        task = self._bank_task
        if self.opened is not None and (task is None or task.status != "finished"):
            self.bank_gone()  # lost with its worker, and what Dask opens in its place is empty
        if self._bank_task is None and self._pass.common is not None:  # else it is on its way
            name = f"dpdist-bank-{random_token()}"
            self._bank_task = self._cluster.submit(
                self._bank_opened, opened, name, self._pass.common, self._pass.work.secret,
                key=name, resources={"trusted": 1}, priority=20,
            )  # fmt: skip
        return self.opened is not None

    def _bank_opened(self, future: Future) -> None:
        if self._bank_task is None or future.key != self._bank_task.key:
            return
        if future.status == "error":
            raise future.exception()
        if future.status != "finished":
            self._pass.common = None  # what it needed was lost with a worker, and is sent again
            self.bank_gone()
            return

        def known(found: Any) -> None:
            if self._bank_task is None or future.key != self._bank_task.key:
                return
            if found.exception() is not None:
                self.bank_gone()
                return
            self.opened = Opened(future.key, found.result())
            if self._pass.entrusting is not None:
                self._pass.entrusting.tell()

        self._cluster.ask(future._result(), known)  # noqa: SLF001 - no other way from a thread

    def close_bank(self) -> None:
        """Let the trusted worker forget its bank."""
        if self._bank_task is not None:
            self._bank_task.release()
        self._bank_task = self.opened = None

    def bank_gone(self) -> None:
        """Note that the bank of the trusted worker has gone, with all that was in it.

        If the secret of the pass has gone with it, so is what lives hold: it is of no use beside what the next bank
        will be told.
        """
        self.close_bank()
        self._grants.bank_lost()
        if self._pass.work.secret is not None:
            for member in list(self._pass.members.values()):
                self._pass.give_up(member)
