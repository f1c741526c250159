"""Faults of disks and data: damaged chunks, a full disk below the ledger, a database server that dies."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from faults import sentinel
from faults.chaos_scene import MissedError, Scene, ViolationError
from faults.postgres_server import Server


def damaged(scene: Scene, how: str, when: str, pristine: Path) -> None:
    """Damage chunks before the command starts, or when a worker is about to read them."""
    if when == "before":
        scene.damage(5, how)
        code = scene.ends(scene.start(), 0 if how == "sound NaN" else 4)
        scene.land(f"exit code {code}")
    else:
        marker = scene.arm("one", "before reading", "linger")
        child = scene.start()
        scene.wait_for(marker, child)
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
