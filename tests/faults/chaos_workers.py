"""Faults of workers, scheduler and network: killed, stopped, restarted, or cut off and alive."""

from __future__ import annotations

import signal

from faults.chaos_cluster import WORKERS
from faults.chaos_scene import Scene
from faults.waiting import until


def workers_killed(scene: Scene, point: str, roles: tuple[str, ...]) -> None:
    markers = [scene.arm(role, point, "kill") for role in roles]
    child = scene.start()
    for role, marker in zip(roles, markers, strict=True):
        scene.wait_for(marker, child)
        scene.land(f"{role} died", true=scene.cluster.children[role].wait() == -signal.SIGKILL)
    scene.ends(child, 0)


def sums_lost(scene: Scene) -> None:
    """Kill all workers while they hold the finished sums and the driver is about to fetch them; others come."""
    marker = scene.marker("linger")
    child = scene.start("linger", "before the sums are fetched", marker)
    scene.wait_for(marker, child)
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
    marker = scene.arm(role, point, "stop")
    child = scene.start()
    scene.wait_for(marker, child)
    victim, name = scene.cluster.children[role], scene.cluster.name(role)
    until(lambda: victim.state == "T")
    scene.ends(child, 0)  # whether or not the scheduler has given it up by then
    until(lambda: name not in scene.cluster.known(), every=0.2)
    scene.land("given up while stopped", true=victim.state == "T")
    victim.kill(signal.SIGCONT)


def scheduler_restarted(scene: Scene, who: str, point: str) -> None:
    """Kill the scheduler while somebody is at a point; a new one comes at the same address."""
    cluster = scene.cluster
    if who == "driver":
        marker = scene.marker("linger")
        child = scene.start("linger", point, marker)
    else:
        marker = scene.arm(who, point, "linger")
        child = scene.start()
    scene.wait_for(marker, child)
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
    marker = scene.arm(role, point, "linger")
    child = scene.start()
    scene.wait_for(marker, child)
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
