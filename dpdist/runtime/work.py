"""What a pass computes, and what it knows of a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from distributed import Client, Future

from dpdist.runtime.running_sums import Cut
from dpdist.storage.store import Store

PATIENCE = 10.0
"""Seconds after which a worker that does not answer is given up, while the scheduler answers."""
LOST_SECONDS = 60.0
"""How long a pass waits for a worker when there is none left, or for a scheduler that is gone."""
AGAIN_SECONDS = 0.5
"""Between two attempts at the same worker."""


@dataclass(frozen=True)
class Work:
    """What a pass computes.

    Parameters
    ----------
    step
        What its tasks are called: ``dpdist-`` and this.
    function, values, add
        As of :class:`dpdist.runtime.running_sums.Common`.
    units
        Small and public.
    threads
        Units that a worker computes at the same time, at most, if it has as many threads.
    sticky
        Whether a unit is granted to the same worker in every pass, if it can be: one that keeps what it has read.
    """

    step: str
    function: Callable[[Any], Any]
    values: Cut
    units: Sequence[Any]
    add: Callable[[Any, Any], Any] | None = None
    threads: int = 1
    sticky: bool = False


class Each:
    """The values of a pass whose units share nothing: each is all that the function takes."""

    def cut(self, unit: Any) -> Any:
        """Return the unit."""
        return unit


class Cluster(Protocol):
    """What a pass needs of the conductor."""

    client: Client
    trusted_worker: bool
    places: Sequence[tuple[Store, str]]
    freed: dict[str, None]
    """Workers that may have room for a unit."""

    @property
    def clock(self) -> float:
        """Seconds for which the scheduler has answered."""
        ...

    def ask(self, coroutine: Any, then: Callable[[Any], None]) -> None:
        """Run a coroutine in the client's loop, and call ``then`` with its future, here, when it is done."""

    def submit(self, then: Callable[[Future], None], function: Any, *arguments: Any, **options: Any) -> Future:
        """Submit a task, and call ``then`` with its future, here, when it is done."""


@dataclass
class Member:
    """A worker, as one pass knows it from its welcome until it is given up."""

    address: str
    life: str
    threads: int
    welcome: Future | None = None
    here: bool = False
    running: dict[int, Future] = field(default_factory=dict)
    """What it was granted and has not finished, by grant, in order; withdrawn units among it."""
    withdrawn: set[int] = field(default_factory=set)
    since: float = 0.0
    """When it last finished something, or was idle."""
    at_stake: float = 0.0
    """Seconds of work in its running sum."""
    batches: int = 0
    due: float | None = None
    """When it must have answered what it was asked, or is given up."""
    detaching: bool = False
