"""How lives come to know the secret of a pass: before they are granted anything, and not by way of the scheduler.

It belongs to one pass (:mod:`dpdist.runtime.passes`) and runs in its thread. The secret is with whoever has the bank,
this process or the trusted worker, which connects to the worker of each life, as it does to fetch sums. The scheduler
sees that a life was told, and nothing else.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from distributed import Future

from dpdist._util.ids import random_token
from dpdist.runtime import work
from dpdist.runtime.bank import told
from dpdist.runtime.running_sums import entrusted
from dpdist.runtime.work import Cluster, Member

if TYPE_CHECKING:
    from dpdist.runtime.passes import Pass


class Entrusting:
    """Tells lives the secret of one pass.

    Parameters
    ----------
    owner
        The pass; it has a secret, and a sum.
    cluster
        The conductor.
    """

    def __init__(self, owner: Pass, cluster: Cluster) -> None:
        if owner.work.secret is None or owner.collector is None:
            raise AssertionError("the secret of a pass is for its sum")
        self._pass, self._cluster = owner, cluster
        self._collector = owner.collector
        self._secret = None if cluster.trusted_worker else owner.work.secret()
        """None: this process does not know it."""
        self._waiting: dict[str, Member] = {}
        """Lives that nobody tells yet."""
        self._telling: Future | None = None
        self._strangers: dict[str, float] = {}
        """Workers that could not be told, and since when."""

    def welcome(self, member: Member) -> None:
        """Let a life that has begun know the secret; then it may be granted units."""
        self._waiting[member.life] = member
        self.tell()

    def give_up(self, member: Member) -> None:
        """Tell a life no more."""
        self._waiting.pop(member.life, None)

    def tell(self) -> None:
        """Tell lives that wait, if it can be done now."""
        if not self._waiting or (self._secret is None and (self._telling is not None or not self._collector.open())):
            return
        members, self._waiting = list(self._waiting.values()), {}
        if self._secret is not None:
            for member in members:
                asked = entrusted(self._cluster.client.rpc, member.address, member.life, self._secret)
                self._cluster.ask(asked, partial(self._told_here, member))
            return
        lives = [(member.address, member.life) for member in members]
        self._telling = self._cluster.submit(
            partial(self._told_there, members), told, self._collector.opened, lives,
            key=f"dpdist-tell-{random_token()}", resources={"trusted": 1}, priority=20,
        )  # fmt: skip

    def _told_there(self, members: list[Member], future: Future) -> None:
        if future.status == "error":
            raise future.exception()
        if future.status == "finished":
            self._cluster.ask(future._result(), partial(self._answered, members))  # noqa: SLF001 - no other way from a thread
        else:
            self._lost(members)

    def _told_here(self, member: Member, found: Any) -> None:
        self._told([member], [found.exception() is None])

    def _answered(self, members: list[Member], found: Any) -> None:
        outcomes = None if found.exception() is not None else found.result()
        if outcomes is None:
            self._lost(members)
            return
        self._telling = None
        self._told(members, outcomes)

    def _told(self, members: list[Member], outcomes: list[bool]) -> None:
        for member, outcome in zip(members, outcomes, strict=True):
            if self._pass.lives.get(member.life) is not member:
                continue
            if outcome:
                self._strangers.pop(member.address, None)
                self._pass.begin(member)
            else:
                self._give_up(member)

    def _lost(self, members: list[Member]) -> None:
        """Note that the bank that was to tell lives has gone."""
        self._telling = None
        if any(self._pass.lives.get(member.life) is member for member in members):  # of this bank, and no earlier one
            self._collector.bank_gone()

    def _give_up(self, member: Member) -> None:
        """Give up a life that could not be told; its worker is welcomed again, until it is plain that it is no use."""
        since = self._strangers.setdefault(member.address, self._cluster.clock)
        self._pass.give_up(member)
        if self._cluster.clock - since > work.LOST_SECONDS:
            trusted, doing = self._secret is None, "exchange keys and sums with"
            self._pass.refuse(member.address, work.unreachable(member.address, trusted=trusted, doing=doing))
            del self._strangers[member.address]
