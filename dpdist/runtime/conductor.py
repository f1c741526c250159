"""Runs passes in a thread of its own: who is there, whose turn it is, and what has come of it.

The thread goes on granting units while the caller draws noise for a sum that it was handed. Everything in it happens
one after the other: what the cluster answers is put into a queue, as a function to be called here.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any

from distributed import Client, Future

from dpdist._util.ids import random_token
from dpdist._util.progress import Steps
from dpdist.errors import ResumableError
from dpdist.runtime import work
from dpdist.runtime.grants import State
from dpdist.runtime.passes import Pass
from dpdist.runtime.work import Member, Work
from dpdist.storage.store import Store

LOOK_SECONDS = 0.5
"""Between two questions who is there."""
_TOLD_SECONDS = 0.1
"""Between two words on how far the work has come."""
_CARE_SECONDS = 0.1
"""Between two looks at every worker: which is idle, late or silent, or has a sum that is worth a checkpoint."""
_END_SECONDS = 2.0
"""How long the thread may take to end."""

Check = Callable[[dict[str, Any]], None]


class Conductor:
    """Computes passes one after the other, some of them at the same time.

    Parameters
    ----------
    client
        Synchronous or not; its loop is used.
    works
        What to compute.
    under_way
        Passes that are computed at once; the one whose sum the caller has is none of them.
    check
        Raises if a worker that is there must not be: called whenever it is known who is there.
    places
        Objects that a worker must see to be used.
    trusted_worker
        Whether sums go to the trusted worker and not to this process.
    foreign
        As of :func:`dpdist.runtime.running_sums.welcomed`.
    """

    def __init__(
        self,
        client: Client,
        works: Sequence[Work],
        *,
        under_way: int,
        check: Check,
        places: Sequence[tuple[Store, str]],
        trusted_worker: bool,
        foreign: bool | None = None,
    ) -> None:
        self.client, self.trusted_worker, self.places, self.foreign = client, trusted_worker, places, foreign
        self._check = check
        self._coming = deque(works)
        self._units = sum(len(work.units) for work in works)
        self._under_way = under_way
        self._active: deque[Pass] = deque()
        self._ended = 0
        """Units of passes that are over."""
        self._told = 0
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[Pass | BaseException] = queue.SimpleQueue()
        self._unusable: dict[str, str] = {}
        """Workers that get no work, and why."""
        self._wanted = 0
        self._stopped = False
        self._known: dict[str, Any] = {}
        self._looking = False
        self._look_at = 0.0
        self._answered = self._heard = time.monotonic()
        self._alive = 0.0
        self._empty_since: float | None = None
        self._lost_since: float | None = None
        self._wanting: Future | None = None
        self._care_at = 0.0
        self.freed: dict[str, None] = {}
        self._left = 0
        """Units that nobody had room for."""

    # --- for the caller -----------------------------------------------------------------------------------------------

    def sums(self, told: Steps | None) -> Iterator[Pass]:
        """Compute the passes and yield each, whose bank has the sum, in order; one is asked for when the last is done.

        Raises
        ------
        DpdistError
            What a unit raised.
        ResumableError
            If workers, or the scheduler, are gone for too long.
        """
        context = contextvars.copy_context()  # how errors name parameters
        thread = Thread(target=context.run, args=(self._run,), name="dpdist-pass", daemon=True)
        count, said = len(self._coming), -1
        if told is not None:
            told(0, self._units)
        thread.start()
        try:
            for _ in range(count):
                self._events.put(self._want)
                found = None
                while found is None:
                    with suppress(queue.Empty):
                        found = self._out.get(timeout=_TOLD_SECONDS)
                    if told is not None and self._told > max(0, said) and not isinstance(found, BaseException):
                        said = self._told
                        told(said, self._units)
                if isinstance(found, BaseException):
                    raise found
                self._warn()
                yield found
                del found
        finally:
            self._stopped = True
            self._events.put(lambda: None)
            thread.join(_END_SECONDS)

    def _warn(self) -> None:
        """Say which workers did nothing, each once; where no other is there, that is an error."""
        while self._unusable:
            _, why = self._unusable.popitem()
            warnings.warn(f"A worker was given no work. {why}", stacklevel=2)

    def _want(self) -> None:
        self._wanted += 1

    # --- for passes ---------------------------------------------------------------------------------------------------

    @property
    def clock(self) -> float:
        """Seconds for which the scheduler has answered: one that is frozen makes nobody else late."""
        return self._alive + min(time.monotonic() - self._answered, 2 * LOOK_SECONDS)

    def name(self, address: str, fault: Exception) -> None:
        """Tell that a worker cannot be used, and why."""
        self._unusable[address] = str(fault)

    def ask(self, coroutine: Any, then: Callable[[Any], None]) -> None:
        """Run a coroutine in the client's loop, and call ``then`` with its future, here, when it is done."""
        found = asyncio.run_coroutine_threadsafe(coroutine, self.client.loop.asyncio_loop)
        found.add_done_callback(lambda done: self._events.put(partial(then, done)))

    def submit(self, then: Callable[[Future], None], function: Any, *arguments: Any, **options: Any) -> Future:
        """Submit a task, and call ``then`` with its future, here, when it is done."""
        future = self.client.submit(function, *arguments, pure=False, **options)
        future.add_done_callback(lambda done: self._events.put(partial(then, done)))
        return future

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopped and (self._active or self._coming):
                self._begin()
                self._look()
                self._step()
                self._wait()
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._out.put(error)
        finally:
            for each in self._active:
                each.close()
                each.close_bank()
            self._active.clear()

    def _begin(self) -> None:
        while self._coming and len(self._active) < self._under_way:
            begun = Pass(self, self._coming.popleft())
            self._active.append(begun)
            begun.see(self._known)

    def _wait(self) -> None:
        try:
            self._events.get(timeout=LOOK_SECONDS / 2)()
            while True:
                self._events.get_nowait()()
        except queue.Empty:
            pass

    def _step(self) -> None:
        if self._lost_since is None:
            now, front = time.monotonic(), self._active[0]
            due = now >= self._care_at
            self._give(everyone=due)
            if due:
                self._care_at = now + _CARE_SECONDS
                for each in self._active:
                    each.care()
            if due or front.summed or front.grants.batches:
                front.collect(hungry=self._wanted > 0)
        done = self._ended + sum(each.grants.count(State.ADDED, State.BANKED) for each in self._active)
        self._told = max(self._told, done)
        front = self._active[0]
        if front.grants.complete and self._wanted:
            self._active.popleft()
            self._ended += len(front.grants)
            self._wanted -= 1
            front.close()
            self._out.put(front)

    def _give(self, *, everyone: bool) -> None:
        """Grant units to workers with room: of the pass they work at already, else of that with the fewest workers."""
        waiting = self._waiting()
        # to look at every worker after every unit would cost more than all else
        everyone = everyone or waiting > self._left
        addresses = list(self._known) if everyone else [each for each in self.freed if each in self._known]
        self.freed.clear()
        for address in addresses:
            mine = [(each, each.members[address]) for each in self._active if address in each.members]
            mine = [(each, member) for each, member in mine if member.here]
            while chosen := self._choose(mine):
                each, member = chosen
                if sum(len(other.running) for _, other in mine) >= each.capacity(member):
                    break
                each.give(member)
        self._left = self._waiting()

    def _waiting(self) -> int:
        return sum(each.grants.count(State.OPEN) for each in self._active)

    def _choose(self, mine: list[tuple[Pass, Member]]) -> tuple[Pass, Member] | None:
        may = [(each, member) for each, member in mine if each.grants.count(State.OPEN)]
        held = [(each, member) for each, member in mine if each.holds(member)]
        for each in held:
            if each in may:
                return each
        if len(held) > 1:  # no memory for a third sum, but of the pass that all others wait for
            may = [(each, member) for each, member in may if each is self._active[0]]
        return min(may, key=lambda each: each[0].workers, default=None)

    # --- who is there -------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = time.monotonic()
        if self._lost_since is not None and (
            self.client.status == "closed" or now - self._lost_since > work.LOST_SECONDS
        ):
            raise ResumableError(work.LOST)
        if not self._looking and now >= self._look_at:
            self._looking, self._look_at = True, now + LOOK_SECONDS
            self.ask(self._identity(), self._looked)

    async def _identity(self) -> Any:
        if self.client.status != "running" or self.client.scheduler is None:
            raise OSError("not connected")
        return await self.client.scheduler.identity(n_workers=-1)

    def _looked(self, found: Any) -> None:
        self._looking, now = False, time.monotonic()
        if found.exception() is not None:
            self._lose(now, silent=self.client.status == "running")
            return
        self._lost_since = None
        self._alive = self.clock
        self._answered = now
        self._known = found.result()["workers"]
        self._check(self._known)
        for each in self._active:
            each.see(self._known)
        self._require_somebody()

    def _lose(self, now: float, *, silent: bool) -> None:
        """Note that the scheduler does not answer; if it is gone, and not only silent, what it knew of is void."""
        if self._lost_since is None:
            self._lost_since = now
        if not silent:
            self._known = {}
            for each in self._active:
                each.give_all_up()

    def _require_somebody(self) -> None:
        for each in self._active:
            if self._known and each.fault is not None:
                raise each.fault
        offering = sum("trusted" in worker["resources"] for worker in self._known.values())
        if self._known and (offering == 1 or not self.trusted_worker):
            self._empty_since = self._wanting = None
            return
        if not self._known and self._wanting is None:  # a cluster that grows with its tasks sees that there are some
            self._wanting = self.client.submit(int, key=f"dpdist-wanted-{random_token()}", pure=False)
        self._empty_since = self.clock if self._empty_since is None else self._empty_since
        if self.clock - self._empty_since > work.LOST_SECONDS:
            raise work.several(offering) if offering > 1 else work.gone(trusted=bool(self._known))


def total_of(summed: Pass) -> Any:
    """Return the sum of a pass whose bank is in this process, and leave the bank empty."""
    if summed.collector is None or summed.collector.bank is None:
        raise AssertionError("a pass without a sum has no total")
    bank = summed.collector.bank
    total, bank.total = bank.total, None
    return total
