"""What breaks in a scene: trusted node and driver, workers, scheduler and network, disks and data."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpdist.core.ledger.address import Address
from faults import sentinel
from faults.chaos_cluster import WORKERS
from faults.chaos_scene import MissedError, Scene, ViolationError
from faults.crash_points import CHOICE_FAULTS, FAULTS, TWICE_FAULTS
from faults.postgres_server import Server
from faults.waiting import until

_IN_A_TRANSACTION = (
    "inside the reservation",
    "inside the beginning",
    "inside the commit",
    "inside the record",
    "with the draft sent",
)


def _require_left(scene: Scene, point: str) -> None:
    known = (FAULTS, CHOICE_FAULTS, TWICE_FAULTS)[len(scene.choice) // 2]
    expected = known["after the draft" if point.startswith("with the draft") else point]
    scene.land(f"left {scene.left()}", true=scene.left() == (expected.state, expected.fence, expected.published))


def trusted_killed(scene: Scene, point: str, *, replaced: bool = True) -> None:
    """Kill the trusted node. Where it is a worker, another takes its place, or none does."""
    child, _ = scene.held(point, action="kill")
    if scene.trusted == "driver":
        scene.ends(child, -signal.SIGKILL)
        _require_left(scene, point)
        return
    victim = scene.cluster.children["trusted"]
    scene.land("the trusted worker died", true=victim.wait() == -signal.SIGKILL)
    _require_left(scene, point)
    scene.look()
    if replaced:
        scene.cluster.start("trusted")
    scene.ends(child, 0 if replaced else 5)


def driver_killed(scene: Scene, point: str) -> None:
    """Kill the driver while the trusted worker is at a point; a second one comes, and the first one's task goes on."""
    child, marker = scene.held(point)
    child.kill()
    scene.land("the driver died", true=scene.ends(child, -signal.SIGKILL) < 0 and scene.cluster.alive("trusted"))
    _require_left(scene, point)
    second = scene.start()
    scene.go(marker)
    scene.ends(second, 0)


def driver_killed_at_work(scene: Scene, more: tuple[str, ...] | None = None) -> None:
    """Kill the driver while the workers sum: those of a cluster that stays, or its own, which must go with it."""
    child, _ = scene.held("with the cluster at work", "driver", "kill", more)
    scene.ends(child, -signal.SIGKILL)
    scene.land(f"left {scene.left()}", true=scene.left() == ("reserved", 0, False))


def requeued(scene: Scene, point: str) -> None:
    child, _ = scene.held(point)
    child.kill(signal.SIGTERM)
    scene.land("SIGTERM", true=scene.ends(child, 5) == 5)


def zombie(scene: Scene, point: str) -> None:
    """Stop the trusted node, let another attempt run, and then let the stopped one continue."""
    # who waits for a transaction that never ends gives up for now
    codes = (0, 5) if point in _IN_A_TRANSACTION else (0,)
    child, _ = scene.held(point, action="stop")
    if scene.trusted == "driver":
        until(lambda: child.state == "T")
        scene.ends(scene.start(), *codes)
        scene.land("stopped while another ran", true=child.state == "T")
        if len(codes) == 1:
            scene.look()
        child.kill(signal.SIGCONT)
        scene.ends(child, *codes)
        return
    victim = scene.cluster.children["trusted"]
    until(lambda: victim.state == "T")
    gone = scene.cluster.name("trusted")
    scene.cluster.start("trusted")  # the task goes there when the scheduler has given the first one up
    scene.ends(child, *codes)
    if len(codes) == 1:
        scene.look()
    scene.land("given up while stopped", true=victim.state == "T" and gone not in scene.cluster.known())
    victim.kill(signal.SIGCONT)
    scene.ends(scene.start(), 0)


def together(scene: Scene, point: str, number: int) -> None:
    meeting = scene.marker("meeting")
    meeting.mkdir()
    children = [scene.start(f"meet-{number}", point, meeting) for _ in range(number)]
    for child in children:
        scene.ends(child, 0)
    scene.land(f"{number} met", true=len(list(meeting.iterdir())) == number)


def _copied(scene: Scene, server: Server | None) -> Any:
    if isinstance(scene.ledger, Address):
        assert server is not None
        tables = {}
        with server.connect() as connection:
            for table in ("dpdist_journal", "dpdist_blobs"):
                query = f"SELECT * FROM {table} WHERE ledger = %s"  # noqa: S608 - two names of our own
                tables[table] = connection.execute(query, (scene.ledger.ledger,)).fetchall()
        return tables
    copy = scene.folder / f"copy-{len(list(scene.folder.glob('copy-*')))}"
    shutil.copytree(scene.ledger, copy)
    return copy


def _restored(scene: Scene, copy: Any, server: Server | None) -> None:
    if isinstance(scene.ledger, Address):
        assert server is not None
        with server.connect() as connection:
            for table, rows in copy.items():
                connection.execute(f"DELETE FROM {table} WHERE ledger = %s", (scene.ledger.ledger,))  # noqa: S608
                for row in rows:
                    connection.execute(f"INSERT INTO {table} VALUES (%s, %s, %s, %s)", row)  # noqa: S608
        return
    shutil.rmtree(scene.ledger)
    shutil.copytree(copy, scene.ledger)


def old_ledger(scene: Scene, when: str, server: Server | None, verify: Callable[[Scene], int]) -> None:
    """Restore a copy of the ledger that is older than the release: it must be noticed, and nothing drawn."""
    if when == "before the command":
        copy = _copied(scene, server)
        child = scene.start()
    else:
        child, marker = scene.held(when)
        copy = _copied(scene, server)
        scene.go(marker)
    scene.ends(child, 0)
    scene.look()
    newest, head = _copied(scene, server), scene.books.head
    _restored(scene, copy, server)
    old = scene.books.head
    scene.land("the ledger is older", true=old != head)
    if verify(scene) != 3:
        raise ViolationError("I2: dpdist ledger verify did not notice")
    scene.ends(scene.start(), 3)
    scene.look()
    if scene.books.head != old and scene.events()["begun"] > 1:
        raise ViolationError("I1: another attempt began")
    _restored(scene, newest, server)


def workers_killed(scene: Scene, point: str, roles: tuple[str, ...]) -> None:
    markers = [scene.arm(role, point, "kill") for role in roles]
    child = scene.start()
    for role, marker in zip(roles, markers, strict=True):
        scene.wait_for(marker, child)
        scene.land(f"{role} died", true=scene.cluster.children[role].wait() == -signal.SIGKILL)
    scene.ends(child, 0)


def sums_lost(scene: Scene) -> None:
    """Kill all workers while they hold the finished sums and the driver is about to fetch them; others come."""
    child, marker = scene.held("before the sums are fetched", "driver")
    for role in WORKERS:
        scene.cluster.children[role].kill()
        scene.land(f"{role} died", true=scene.cluster.children[role].wait() == -signal.SIGKILL)
    until(lambda: not scene.cluster.known(), every=0.2)
    for role in WORKERS:
        scene.cluster.start(role)
    scene.go(marker)
    scene.ends(child, 0, 5)


def worker_stopped(scene: Scene, point: str, role: str) -> None:
    """Stop a worker for longer than the scheduler waits for it; let it go on when its work was done elsewhere."""
    child, _ = scene.held(point, role, "stop")
    victim, name = scene.cluster.children[role], scene.cluster.name(role)
    until(lambda: victim.state == "T")
    scene.ends(child, 0)  # whether or not the scheduler has given it up by then
    until(lambda: name not in scene.cluster.known(), every=0.2)
    scene.land("given up while stopped", true=victim.state == "T")
    victim.kill(signal.SIGCONT)


def scheduler_restarted(scene: Scene, who: str, point: str) -> None:
    """Kill the scheduler while somebody is at a point; a new one comes at the same address."""
    cluster = scene.cluster
    child, marker = scene.held(point, who)
    cluster.children["scheduler"].kill()
    scene.land("the scheduler died", true=cluster.children["scheduler"].wait() < 0)
    scene.go(marker)
    scene.ends(child, 0, 5)
    cluster.mend()


def cut(scene: Scene, role: str, point: str) -> None:
    if role == "driver":
        _cut_driver(scene, point)
        return
    cluster = scene.cluster
    child, marker = scene.held(point, role)
    victim, name = cluster.children[role], cluster.name(role)
    with scene.cluster.cut(role):
        if role == "trusted":  # another comes, on another machine
            until(lambda: name not in cluster.known(), every=0.2)
            cluster.start(role, machine="two")
        scene.ends(child, 0)
        until(lambda: name not in cluster.known(), every=0.2)
        scene.land("given up, alive", true=not victim.ended.is_set())
    scene.go(marker)
    if role == "trusted":
        cluster.children[role].kill()  # the next one is on the machine of its own again
        cluster.children[role].wait()


def _cut_driver(scene: Scene, point: str) -> None:
    child, marker = scene.held(point)
    with scene.cluster.cut("driver"):
        scene.land("cut, alive", true=not child.ended.is_set())
        scene.go(marker)
        scene.ends(child, 0, 5)


def damaged(scene: Scene, how: str, when: str, pristine: Path) -> None:
    """Damage chunks before the command starts, or when a worker is about to read them."""
    if when == "before":
        scene.damage(5, how)
        code = scene.ends(scene.start(), 0 if how == "sound NaN" else 4)
        scene.land(f"exit code {code}")
    else:
        child, marker = scene.held("before reading", "one")
        for chunk in range(sentinel.CHUNKS):  # nobody knows which this worker is about to read; others have read some
            scene.damage(chunk, how)
        scene.go(marker)
        code = scene.ends(child, 4)
        scene.land("refunded", true=scene.events()["aborted"] == 1 and scene.left()[0] == "aborted")
    if how != "sound NaN":
        if scene.books.charges:
            raise ViolationError("I2: charged for nothing")
        scene.restore(pristine)


class Ballast:
    """Fills a disk to the last byte."""

    def __init__(self, disk: Path) -> None:
        self._file = disk / "ballast"

    def fill(self) -> None:
        with self._file.open("wb", buffering=0) as file, suppress(OSError):
            for size in (1 << 16, 1 << 10, 1):
                with suppress(OSError):
                    while file.write(b"\0" * size):
                        pass
        state = os.statvfs(self._file)
        if state.f_bavail:
            raise MissedError(f"{state.f_bavail} blocks are free")

    def remove(self) -> None:
        self._file.unlink(missing_ok=True)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    place.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], check=False, capture_output=True
    )
    if made.returncode:
        raise PermissionError("a small disk cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def disk_full(scene: Scene, point: str, disk: Path) -> None:
    child, marker = scene.held(point)
    ballast = Ballast(disk)
    ballast.fill()
    try:
        scene.go(marker)
        code = scene.ends(child, 5)
    finally:
        ballast.remove()
    scene.land(f"exit code {code}, left {scene.left()}", true=scene.left()[0] in {"reserved", "committed"})
    if scene.books.charges == []:
        raise ViolationError("I2: the reservation was not kept")


def server_killed(scene: Scene, point: str, server: Server) -> None:
    child, marker = scene.held(point)
    server.crash()
    scene.go(marker)
    scene.land(f"exit code {scene.ends(child, 5)} without a server")
    server.start()
