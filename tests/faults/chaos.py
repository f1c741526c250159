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
from typing import Any

from faults import chaos_faults as happens

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
"""Points after which a decision holds."""
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


def _fault(
    kind: str, where: str, act: Callable[..., None], *, trusted: str, books: str, needs: str = "", **given: Any
) -> Fault:
    return Fault(kind, where, trusted, books, partial(act, **given), needs)


def all_faults() -> list[Fault]:
    """Return every fault, by kind; those across a network last."""
    found = [*_at_once(), *_servers()]
    for books, node in product(BOOKS, NODES):
        made = partial(_fault, trusted=node, books=books)
        found += [*_trusted_node(made, books, node), *_workers(made), *_scheduler(made, node), *_network(made, node)]
        found += [*_data(made), *_ledger(made, books), *_choice(made, node)]
    return sorted(found, key=lambda fault: (fault.needs == "network", fault.kind, fault.where))


def _trusted_node(made: Callable[..., Fault], books: str, node: str) -> Iterator[Fault]:
    every = trusted_points(books)
    for point in every:
        yield made("trusted process killed", point, happens.trusted_killed, point=point)
    for point in every if node == "driver" else (*_TURNS, "inside the commit"):
        yield made("trusted process stopped while another runs", point, happens.zombie, point=point)
    yield made("driver killed", _WORK, happens.driver_killed_at_work)
    if node == "driver":
        own = "with workers of its own at work"
        yield made("driver killed", own, happens.driver_killed_at_work, more=("--workers", "1"))
        for point in (_WORK, "after the reservation", *_TURNS, "after publication"):
            yield made("batch job requeued", point, happens.requeued, point=point)
        return
    yield made("trusted process killed", "before reading", happens.trusted_killed, point="before reading")
    for point in ("after the reservation", *_TURNS, "after publication"):
        yield made("driver killed", point, happens.driver_killed, point=point)
    for point in ("before the attempt", "after the draw", "after the commit"):
        kind = "trusted process killed and not replaced"
        yield made(kind, point, happens.trusted_killed, point=point, replaced=False)


def _choice(made: Callable[..., Fault], node: str) -> Iterator[Fault]:
    once = _CHOOSING if node == "driver" else ("before reading", *_CHOOSING)
    for needs, points in (("norm", once), ("scale and norm", _TWICE)):
        kind = f"trusted process killed that chooses {'a norm' if needs == 'norm' else needs}"
        for point in points:
            yield made(kind, point, happens.trusted_killed, point=point, needs=needs)


def _at_once() -> Iterator[Fault]:
    for books, node in product(BOOKS, NODES):
        points, most = ((_WORK, "after the beginning", "before the rename"), 4) if node == "driver" else ((_WORK,), 3)
        for point, number in product(points, range(2, most + 1)):
            made = partial(_fault, "runs at once", f"{number} {point}", happens.together, trusted=node, books=books)
            yield made(point=point, number=number)


def _workers(made: Callable[..., Fault]) -> Iterator[Fault]:
    for point in ("before reading", "after a partial"):
        for roles in (("one",), ("one", "two")):
            where = f"{' and '.join(roles)} {point}"
            yield made("worker killed while mapping", where, happens.workers_killed, point=point, roles=roles)
        kind = "worker stopped beyond its time-to-live and resumed"
        yield made(kind, f"one {point}", happens.worker_stopped, point=point, role="one")
    yield made("workers killed that hold the sums", "before the sums are fetched", happens.sums_lost)


def _scheduler(made: Callable[..., Fault], node: str) -> Iterator[Fault]:
    whom = [("one", "before reading")]
    if node == "driver":
        whom += [("driver", point) for point in (_WORK, "after the draw", "before publication")]
    else:
        whom.append(("trusted", "after the draw"))
    for who, point in whom:
        yield made("scheduler restarted", f"{who} {point}", happens.scheduler_restarted, who=who, point=point)


def _network(made: Callable[..., Fault], node: str) -> Iterator[Fault]:
    last = ("driver", _WORK) if node == "driver" else ("trusted", "after the draw")
    for role, point in (("one", "before reading"), ("one", "after a partial"), last):
        yield made("network cut", f"{role} {point}", happens.cut, role=role, point=point, needs="network")


def _data(made: Callable[..., Fault]) -> Iterator[Fault]:
    for how, when in product(("missing", "truncated", "bit-flipped", "altered to NaN"), ("before", "mid pass")):
        yield made("chunk damaged", f"{how}, {when}", happens.damaged, how=how, when=when, needs="pristine")
    sound = {"how": "sound NaN", "when": "before", "needs": "pristine"}
    yield made("chunk with NaN", "sound NaN, before", happens.damaged, **sound)


def _ledger(made: Callable[..., Fault], books: str) -> Iterator[Fault]:
    full = ["after the beginning", "after the draw"]
    if books == "folder":  # once a database holds a draft it has the room to commit it
        full += ["after the draft", "inside the commit", "after the commit"]
    for point in full:
        yield made("disk full at the commit", point, happens.disk_full, point=point, needs="disk")
    for when in ("before the command", "after the reservation", "after the beginning"):
        yield made("old ledger restored", when, happens.old_ledger, when=when, needs="verify")


def _servers() -> Iterator[Fault]:
    for node, point in product(NODES, ("after the draw", "with the draft sent", "inside the commit")):
        given = {"point": point, "trusted": node, "books": "postgres", "needs": "server"}
        yield _fault("database server killed", point, happens.server_killed, **given)


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
