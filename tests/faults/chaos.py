"""Every fault that a release must survive, at every point where it makes sense: the list.

A fault is a function of a :class:`chaos_scene.Scene`. It breaks something, checks that it broke where it says (or
raises :class:`chaos_scene.MissedError`), and lets the command end. :meth:`chaos_scene.Scene.finish` then runs the same
command again and checks the invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from faults.chaos_disks import damaged, disk_full, server_killed
from faults.chaos_trusted import (
    driver_killed,
    driver_killed_at_work,
    old_ledger,
    requeued,
    together,
    trusted_killed,
    zombie,
)
from faults.chaos_workers import cut, scheduler_restarted, sums_lost, worker_stopped, workers_killed

BOOKS = ("folder", "postgres")
NODES = ("driver", "worker")
_DRAFTS = {
    "folder": ("with half a draft", "after the draft"),
    "postgres": ("with the draft staged", "with the draft sent"),
}
_ALWAYS = (
    "inside the reservation", "after the reservation", "before the attempt", "inside the beginning",
    "after the beginning", "after the draw", "inside the commit", "after the commit", "before publication",
    "before the rename", "after the rename", "inside the record", "after publication",
)  # fmt: skip
_WORK = "with the cluster at work"
_TURNS = ("after the beginning", "after the draw", "after the commit")
"""Where the release stands on the other side of a decision."""
_CHOOSING = (
    "after the reservation", "after the counts are drawn", "inside the staging", "after the stage", "after the draw",
    "inside the commit", "after the rename",
)  # fmt: skip
"""Of a release in two draws."""
_TWICE = ("at the second stage", "after the second stage", "after the draw", "after the rename")
"""Of a release in three draws."""


def trusted_points(books: str) -> list[str]:
    points = list(_ALWAYS)
    points[6:6] = _DRAFTS[books]
    return points


@dataclass(frozen=True)
class Fault:
    """One fault at one point."""

    kind: str
    where: str
    trusted: str
    books: str
    inject: Callable[..., None]
    needs: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}: {self.where}, trusted {self.trusted}, ledger in {self.books}"


def all_faults() -> list[Fault]:
    """Return every fault, by kind; those across a network last."""
    found = [*_at_once(), *_servers()]
    for books, node in product(BOOKS, NODES):
        made = partial(Fault, trusted=node, books=books)
        found += [*_trusted_node(made, books, node), *_workers(made), *_scheduler(made, node), *_network(made, node)]
        found += [*_data(made), *_ledger(made, books), *_choice(made, node)]
    return sorted(found, key=lambda fault: (fault.needs == "network", fault.kind, fault.where))


def _trusted_node(made: Callable[..., Fault], books: str, node: str) -> Iterator[Fault]:
    every = trusted_points(books)
    for point in every:
        yield made("trusted process killed", point, inject=partial(trusted_killed, point=point))
    for point in every if node == "driver" else (*_TURNS, "inside the commit"):
        inject = partial(zombie, point=point)
        yield made("trusted process stopped while another runs", point, inject=inject)
    yield made("driver killed", _WORK, inject=driver_killed_at_work)
    if node == "driver":
        own = partial(driver_killed_at_work, more=("--workers", "1"))
        yield made("driver killed", "with workers of its own at work", inject=own)
        for point in (_WORK, "after the reservation", *_TURNS, "after publication"):
            yield made("batch job requeued", point, inject=partial(requeued, point=point))
        return
    yield made("trusted process killed", "before reading", inject=partial(trusted_killed, point="before reading"))
    for point in ("after the reservation", *_TURNS, "after publication"):
        yield made("driver killed", point, inject=partial(driver_killed, point=point))
    for point in ("before the attempt", "after the draw", "after the commit"):
        inject = partial(trusted_killed, point=point, replaced=False)
        yield made("trusted process killed and not replaced", point, inject=inject)


def _choice(made: Callable[..., Fault], node: str) -> Iterator[Fault]:
    for point in _CHOOSING if node == "driver" else ("before reading", *_CHOOSING):
        inject = partial(trusted_killed, point=point)
        yield made("trusted process killed that chooses a scale", point, inject=inject, needs="scale")
    for point in _TWICE:
        inject = partial(trusted_killed, point=point)
        yield made("trusted process killed that chooses scale and norm", point, inject=inject, needs="scale and norm")


def _at_once() -> Iterator[Fault]:
    for books in BOOKS:
        for point, number in product((_WORK, "after the beginning", "before the rename"), (2, 3, 4)):
            inject = partial(together, point=point, number=number)
            yield Fault("runs at once", f"{number} {point}", "driver", books, inject)
        for number in (2, 3):
            inject = partial(together, point=_WORK, number=number)
            yield Fault("runs at once", f"{number} {_WORK}", "worker", books, inject)


def _workers(made: Callable[..., Fault]) -> Iterator[Fault]:
    for point in ("before reading", "after a partial"):
        for roles in (("one",), ("one", "two")):
            inject = partial(workers_killed, point=point, roles=roles)
            yield made("worker killed while mapping", f"{' and '.join(roles)} {point}", inject=inject)
        inject = partial(worker_stopped, point=point, role="one")
        yield made("worker stopped beyond its time-to-live and resumed", f"one {point}", inject=inject)
    yield made("workers killed that hold the sums", "before the sums are fetched", inject=sums_lost)


def _scheduler(made: Callable[..., Fault], node: str) -> Iterator[Fault]:
    whom = [("one", "before reading")]
    if node == "driver":
        whom += [("driver", point) for point in (_WORK, "after the draw", "before publication")]
    else:
        whom.append(("trusted", "after the draw"))
    for who, point in whom:
        inject = partial(scheduler_restarted, who=who, point=point)
        yield made("scheduler restarted", f"{who} {point}", inject=inject)


def _network(made: Callable[..., Fault], node: str) -> Iterator[Fault]:
    last = ("driver", _WORK) if node == "driver" else ("trusted", "after the draw")
    for role, point in (("one", "before reading"), ("one", "after a partial"), last):
        inject = partial(cut, role=role, point=point)
        yield made("network cut", f"{role} {point}", inject=inject, needs="network")


def _data(made: Callable[..., Fault]) -> Iterator[Fault]:
    for how, when in product(("missing", "truncated", "bit-flipped", "altered to NaN"), ("before", "mid pass")):
        inject = partial(damaged, how=how, when=when)
        yield made("chunk damaged", f"{how}, {when}", inject=inject, needs="pristine")
    inject = partial(damaged, how="sound NaN", when="before")
    yield made("chunk with NaN", "sound NaN, before", inject=inject, needs="pristine")


def _ledger(made: Callable[..., Fault], books: str) -> Iterator[Fault]:
    full = ["after the beginning", "after the draw"]
    if books == "folder":  # once a database holds a draft it has the room to commit it
        full += ["after the draft", "inside the commit", "after the commit"]
    for point in full:
        yield made("disk full at the commit", point, inject=partial(disk_full, point=point), needs="disk")
    for when in ("before the command", "after the reservation", "after the beginning"):
        yield made("old ledger restored", when, inject=partial(old_ledger, when=when), needs="verify")


def _servers() -> Iterator[Fault]:
    for node, point in product(NODES, ("after the draw", "with the draft sent", "inside the commit")):
        inject = partial(server_killed, point=point)
        yield Fault("database server killed", point, node, "postgres", inject, "server")


_QUICK = (
    ("trusted process killed", "inside the commit", "worker", "postgres"),
    ("trusted process killed that chooses scale and norm", "after the second stage", "driver", "postgres"),
    ("trusted process stopped while another runs", "with the draft staged", "driver", "postgres"),
    ("driver killed", "after the draw", "worker", "folder"),
    ("worker killed while mapping", "one after a partial", "worker", "folder"),
    ("scheduler restarted", "driver after the draw", "driver", "folder"),
    ("old ledger restored", "after the reservation", "worker", "folder"),
)


def quick_faults() -> list[Fault]:
    found = [fault for fault in all_faults() if (fault.kind, fault.where, fault.trusted, fault.books) in _QUICK]
    assert len(found) == len(_QUICK)
    return found
