"""What a pass computes, and what it knows of a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dpdist.errors import ResumableError
from dpdist.storage.store import Store

if TYPE_CHECKING:
    from distributed import Client, Future

PATIENCE = 10.0
"""Seconds after which a worker that does not answer is given up, while the scheduler answers."""
LOST_SECONDS = 60.0
"""How long a pass waits for a worker when there is none left, or for a scheduler that is gone."""
AGAIN_SECONDS = 0.5
"""Between two attempts at the same worker."""


_AGAIN = "it resumes at no further cost."
LOST = f"The connection to the cluster was lost. Run the same command again when it is back: {_AGAIN}"
DIED = (
    "Workers died again and again; most likely they ran out of memory. Start fewer workers "
    f"per machine, or give them more memory. Then run the same command again: {_AGAIN}"
)


def gone(*, trusted: bool) -> ResumableError:
    """Return what is raised when the trusted worker, or all workers, were not there for too long."""
    return ResumableError(
        f"{'The trusted worker has' if trusted else 'All workers have'} been gone for {LOST_SECONDS:g} seconds. Start "
        f"{'it' if trusted else 'some'} and run the same command again: {_AGAIN}"
    )


def several(count: int) -> ResumableError:
    """Return what is raised when several workers offered to be the trusted one for too long."""
    return ResumableError(
        f"{count} workers have offered the resource `trusted` for {LOST_SECONDS:g} seconds. Sums are kept by one, and "
        f"lost when another is asked for them. Stop all but one, and run the same command again: {_AGAIN}"
    )


def unreachable(where: str, *, trusted: bool = False, doing: str = "fetch sums from") -> ResumableError:
    """Return what is raised when the trusted worker, or this process, cannot do with others what needs a connection."""
    return ResumableError(
        f"{'The trusted worker' if trusted else 'This process'} cannot {doing} {where}. They are never sent by "
        f"way of the scheduler: let its machine connect to the workers' ports, and run the same command again: {_AGAIN}"
    )


class Cut(Protocol):
    """What all units of a pass share, and what makes one unit of it."""

    def cut(self, unit: Any) -> Any:
        """Return what the function of the pass takes for a unit; with a secret, what has a method ``keyed``."""
        ...


def task_of(values: Cut, unit: Any, secret: bytes | None) -> Any:
    """Return what the function of a pass takes for a unit: cut, and keyed with the secret of the pass if it has one."""
    found = values.cut(unit)
    return found if secret is None else found.keyed(secret)


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
    secret
        Makes what units need and only those who add them may know. It is called at the trusted node: once for a pass by
        the driver, once for each bank by a trusted worker. None: there is no such thing.
    """

    step: str
    function: Callable[[Any], Any]
    values: Cut
    units: Sequence[Any]
    add: Callable[[Any, Any], Any] | None = None
    threads: int = 1
    sticky: bool = False
    secret: Callable[[], bytes] | None = None


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
    foreign: bool | None
    """As of :func:`dpdist.runtime.running_sums.welcomed`."""
    freed: dict[str, None]
    """Workers that may have room for a unit."""

    @property
    def clock(self) -> float:
        """Seconds for which the scheduler has answered."""
        ...

    def name(self, address: str, fault: Exception) -> None:
        """Tell that a worker cannot be used, and why."""

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
