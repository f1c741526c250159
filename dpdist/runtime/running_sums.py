"""The worker's side of a pass: one running sum for each life, in a plugin and never in a Dask result.

Nothing of a sum can be spilled, copied by Dask or read through the scheduler, because Dask does not know of it. Sums
travel from worker to worker and to the trusted node when these ask for them (:func:`fetched`), over the connections
that Dask itself uses between workers.

A life (:mod:`dpdist.runtime.grants`) begins with the task :func:`welcomed`, whose result the driver holds on to. When
that result is released, whoever released it and also when the driver died, the worker forgets the life and its sums.
All that changes a life happens under its lock. So a grant is either added or withdrawn, and never both; and a sum that
is detached holds exactly the grants that are told with it.

What units need and nobody else may know, the secret of the pass, travels like a sum, the other way: from the trusted
node to the life, which is told it before it is granted anything (:func:`entrusted`), and forgotten with it. It is one
for the time of a life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock
from typing import Any, NamedTuple, cast

import cloudpickle
from dask.sizeof import sizeof
from distributed import Worker, get_worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol import to_serialize
from distributed.utils import sync

from dpdist.runtime.asker import Asker
from dpdist.runtime.guarded import guarded
from dpdist.runtime.tls import require_safe_listeners
from dpdist.runtime.work import PATIENCE, Cut, task_of
from dpdist.runtime.workers import check_worker, listens_of
from dpdist.storage.store import Store

NAME = "dpdist-running-sums"
SLOWEST = 4 << 20
"""Bytes a second: a sum that travels slower than this does not come."""
_ANSWER_SECONDS = 30


class Said(StrEnum):
    """What a life says of a grant."""

    ADDED = "added"
    DROPPED = "dropped"
    """It is not added, and never will be."""
    UNKNOWN = "unknown"
    """There is no such life here."""


class NoLifeError(Exception):
    """A task came to a worker that does not know the life it is for, or its secret: nothing was computed."""


class Place(NamedTuple):
    """Where a detached sum is."""

    worker: str
    life: str
    number: int
    nbytes: int


class Sealed:
    """A secret on its way to a life: whoever writes down the message that it is in does not write it down.

    Parameters
    ----------
    content
        The secret.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __repr__(self) -> str:
        return "Sealed(...)"


@dataclass(frozen=True)
class Common:
    """What all units of a pass share: it travels to each worker once.

    Parameters
    ----------
    function
        Called with ``values``, cut to a unit; it returns a part of the sum. A function of a script, or of a module
        registered with cloudpickle, travels by value.
    values
        Public.
    add
        Adds a part to a sum, and returns the sum; it may use the memory of the first. None: there is no sum.
    asker
        Whose pass it is.
    secret
        Whether a unit needs the secret of the pass: then what is cut is ``keyed`` with it.
    """

    function: Callable[[Any], Any]
    values: Cut
    add: Callable[[Any, Any], Any] | None
    asker: Asker
    secret: bool = False

    def dumped(self) -> bytes:
        """Return it as bytes."""
        return bytes(cloudpickle.dumps((self.function, self.values, self.add, self.asker, self.secret)))

    @classmethod
    def loaded(cls, content: bytes) -> Common:
        """Return what was dumped."""
        return cls(*cloudpickle.loads(content))


@dataclass
class _Detached:
    total: Any
    grants: frozenset[int]
    sources: set[tuple[str, int]] = field(default_factory=set)
    """The batches of other lives that are in it."""


class Life:
    """A running sum of one pass on one worker; used by several threads.

    Parameters
    ----------
    common
        What the units share.
    """

    def __init__(self, common: Common) -> None:
        self.common = common
        self._lock = Lock()
        self._total: Any = None
        self._added: set[int] = set()
        """All grants that were ever added."""
        self._running: set[int] = set()
        """Those of them that are in the running sum."""
        self._withdrawn: set[int] = set()
        self._number = 0
        self._detached: dict[int, _Detached] = {}
        self._secret: bytes | None = None

    def entrust(self, secret: bytes) -> bool:
        """Keep the secret of the pass, if there is none yet, and say whether it is the one that is kept."""
        with self._lock:
            if self._secret is None:
                self._secret = secret
            return self._secret == secret

    @property
    def ready(self) -> bool:
        """Whether it has all that a unit needs."""
        return self._secret is not None or not self.common.secret

    def run(self, grant: int, unit: Any) -> Said:
        """Compute a unit and add it, unless it was withdrawn, or added before."""
        with self._lock:
            if grant in self._withdrawn:
                return Said.DROPPED
            if grant in self._added:  # Dask ran the task once more
                return Said.ADDED
        part = self.common.function(task_of(self.common.values, unit, self._secret))
        with self._lock:
            if grant in self._withdrawn:
                return Said.DROPPED
            if grant not in self._added:
                if self.common.add is not None:
                    self._total = part if not self._running else self.common.add(self._total, part)
                    self._running.add(grant)
                self._added.add(grant)
            return Said.ADDED

    def withdraw(self, grant: int) -> Said:
        """Withdraw a grant, unless it was added."""
        with self._lock:
            if grant in self._added:
                return Said.ADDED
            self._withdrawn.add(grant)
            return Said.DROPPED

    def detach(self, number: int) -> tuple[frozenset[int], int]:
        """Detach the running sum as batch ``number``, the next or the last one; return its grants and its bytes."""
        with self._lock:
            if number == self._number and self._running:
                self._detached[number] = _Detached(self._total, frozenset(self._running))
                self._total, self._running, self._number = None, set(), number + 1
            batch = self._detached.get(number)
            return (frozenset(), 0) if batch is None else (batch.grants, sizeof(batch.total))

    def batch(self, number: int) -> _Detached | None:
        """Return a detached sum that is still here."""
        return self._detached.get(number)

    def forget(self, number: int) -> None:
        """Forget a detached sum: the bank has it."""
        with self._lock:
            self._detached.pop(number, None)


class RunningSums(WorkerPlugin):  # type: ignore[misc]  # Dask has no types
    """The lives on one worker, and the handlers by which they are asked."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.banks: dict[str, Any] = {}
        """What the trusted worker holds, by its life: see :mod:`dpdist.runtime.bank`."""

    def setup(self, worker: Worker) -> None:
        """Let the driver and other workers ask."""
        self._worker = worker
        asked = (self.withdraw, self.detach, self.forget, self.fetch, self.entrust)
        worker.handlers.update({f"{NAME}-{each.__name__}": each for each in asked})

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Forget a life when nobody holds on to it any more; Dask calls this for every task."""
        if finish in ("released", "forgotten"):
            self.lives.pop(key, None)
            self.banks.pop(key, None)
        del start

    async def withdraw(self, life: str, grants: list[int]) -> list[str]:
        """Withdraw grants; say of each what became of it."""
        found = self.lives.get(life)
        if found is None:
            return [Said.UNKNOWN] * len(grants)
        return [await asyncio.to_thread(found.withdraw, grant) for grant in grants]

    async def detach(self, life: str, number: int) -> tuple[list[int], int] | None:
        """Detach the running sum; return its grants and its bytes, or None where there is no such life."""
        found = self.lives.get(life)
        if found is None:
            return None
        grants, nbytes = await asyncio.to_thread(found.detach, number)
        return sorted(grants), nbytes

    async def forget(self, life: str, number: int) -> None:
        """Forget a detached sum."""
        if found := self.lives.get(life):
            await asyncio.to_thread(found.forget, number)

    async def fetch(self, life: str, number: int) -> dict[str, Any]:
        """Return a detached sum, to be added elsewhere."""
        found = self.lives.get(life)
        batch = None if found is None else found.batch(number)
        if batch is None:
            return {"here": False}
        self._worker.transfer_outgoing_bytes_total += sizeof(batch.total)  # dashboards show it
        return {"here": True, "grants": sorted(batch.grants), "total": to_serialize(batch.total)}

    async def entrust(self, life: str, secret: Sealed) -> bool:
        """Let a life keep the secret of its pass; say whether it is there and has this one."""
        found = self.lives.get(life)
        return found is not None and await asyncio.to_thread(found.entrust, secret.content)


class NotHereError(Exception):
    """A sum, or a life, is not where it was."""


async def fetched(rpc: Any, place: Place) -> tuple[Any, frozenset[int]]:
    """Fetch a detached sum and its grants from the worker that holds it, and from nowhere else.

    Raises
    ------
    NotHereError
        If the worker does not hold it any more, or falls silent.
    OSError
        If the worker cannot be reached.
    """
    ask = getattr(rpc(place.worker), f"{NAME}-fetch")
    try:
        answer = await asyncio.wait_for(
            ask(life=place.life, number=place.number), _ANSWER_SECONDS + place.nbytes / SLOWEST
        )
    except TimeoutError:
        raise NotHereError from None
    if not answer["here"]:
        raise NotHereError
    return answer["total"], frozenset(answer["grants"])


async def entrusted(rpc: Any, worker: str, life: str, secret: bytes) -> None:
    """Tell a life the secret of its pass, over a connection to its worker, and nobody else. To do it again is harmless.

    Raises
    ------
    NotHereError
        If there is no such life, or it has another secret, or the worker is silent.
    OSError
        If the worker cannot be reached.
    """
    ask = getattr(rpc(worker), f"{NAME}-entrust")
    try:
        known = await asyncio.wait_for(ask(life=life, secret=to_serialize(Sealed(secret))), PATIENCE)
    except TimeoutError:
        raise NotHereError from None
    if not known:
        raise NotHereError


def plugin() -> RunningSums:
    """Return the plugin of the worker that runs this task; it is there from the first time that it is asked for."""
    worker = get_worker()
    if NAME in worker.plugins:
        return cast("RunningSums", worker.plugins[NAME])

    async def found() -> Any:
        if NAME not in worker.plugins:
            await worker.plugin_add(plugin=RunningSums(), name=NAME)
        return worker.plugins[NAME]

    made: RunningSums = sync(worker.loop, found)
    return made


# --- tasks ------------------------------------------------------------------------------------------------------------


def welcomed(
    asker: Asker, life: str, common: bytes, places: Sequence[tuple[Store, str]], foreign: bool | None = None
) -> None:
    """Begin a life; the task has its name.

    Raises
    ------
    DataError
        If this worker cannot be used: it has another version, or does not see one of these objects.
    RefusedError
        If others could connect to it, unless told to be insecure (None); ``foreign`` as of
        :func:`dpdist.runtime.tls.require_safe_listeners`.
    """

    def begun() -> None:
        worker = get_worker()
        if foreign is not None:
            require_safe_listeners({worker.address: listens_of(worker)}, foreign=foreign)
        for store, key in places:
            check_worker(worker, store, key, asker.version)
        here, known = plugin(), get_worker().state.tasks
        for other in [other for other in here.lives if other not in known]:  # released while it was welcomed
            here.lives.pop(other, None)
        here.lives.setdefault(life, Life(Common.loaded(common)))

    guarded(asker, begun)


def run_unit(life: str, grant: int, unit: Any) -> int:
    """Compute a unit and add it to the running sum of a life; return the grant: the receipt, which is public.

    Raises
    ------
    NoLifeError
        If there is no such life here, or it was never told the secret of the pass.
    """
    found = plugin().lives.get(life)
    if found is None or not found.ready:
        raise NoLifeError
    guarded(found.common.asker, found.run, grant, unit)
    return grant


def absorb(life: str, number: int, others: Sequence[Place]) -> list[Place]:
    """Add detached sums of other workers to one that is here; return those that are in it now.

    Those that cannot be fetched are left out, and stay where they are.
    """
    worker, found = get_worker(), plugin().lives.get(life)
    batch = None if found is None else found.batch(number)
    if found is None or batch is None or found.common.add is None:
        return []
    taken: list[Place] = []
    for place in others:
        source = (place.life, place.number)
        if source not in batch.sources:
            try:
                total, grants = sync(worker.loop, fetched, worker.rpc, place)
            except (NotHereError, OSError):
                continue
            batch.total = guarded(found.common.asker, found.common.add, batch.total, total)
            batch.sources.add(source)
            batch.grants |= grants
        taken.append(place)
    return taken
