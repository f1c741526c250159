"""What the faults are played on: one cluster for all, a second one across a network, servers and small disks."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from dpdist.core.ledger.address import Address, LedgerAddress
from dpdist.core.rows import dataset
from dpdist.core.rows.dataset import created
from faults import postgres_server, sentinel
from faults.chaos import Fault
from faults.chaos_cluster import ENVIRONMENT, WORKERS, Cluster
from faults.chaos_faults import small_disk
from faults.chaos_scene import OverError, Scene
from faults.forks import Forks, forking
from faults.namespaces import network
from faults.postgres_server import Server

TRIES = 5
"""How often a fault may come too late: one in ten does on a busy machine."""
_CHOICES = {"norm": ("--clip", "private"), "scale and norm": ("--scale", "private", "--clip", "private")}
"""Options for the first choices of a release, each with a draw of its own, by the need of a fault."""


@dataclass(frozen=True)
class Result:
    """What became of one fault."""

    kind: str
    where: str
    trusted: str
    ledger: str
    landed: list[str]
    codes: list[int]
    searched: list[str]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Stage:
    """Where faults are played, one after the other; made by :func:`staging`."""

    def __init__(self, folder: Path, forks: Forks, server: Server | None) -> None:
        self.folder, self.forks, self.server = folder, forks, server
        self.pristine = folder / "pristine.zarr"
        self._write_rows()
        self.near = Cluster(forks, folder / "cluster")
        self._far: Cluster | None = None
        self._stack = ExitStack()
        self._count = 0

    def _write_rows(self) -> None:
        table = sentinel.planted_table()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dataset, "_TARGET_CHUNK", sentinel.CHUNK_ROWS * sentinel.COLUMNS * 8)
            names = tuple(f"c{i}" for i in range(sentinel.COLUMNS))
            with created(self.pristine, rows=len(table), dtype="float64", names=names, budget=None) as writer:
                writer.append(table)

    def play(self, fault: Fault, *, search_memory: bool = True) -> Result:
        """Inject a fault, run the same command again, and check the invariants.

        Files and logs are searched for un-noised values every time; memory, which takes a while, if told to.

        Units are so small that one worker may sum them all before another has one. So a fault that came too late for
        the command is played again, with a table of its own.
        """
        for _ in range(TRIES - 1):
            with suppress(OverError):
                return self._play(fault, search_memory=search_memory)
        return self._play(fault, search_memory=search_memory)

    def _play(self, fault: Fault, *, search_memory: bool) -> Result:
        began = time.monotonic()
        self._count += 1
        folder = self.folder / f"scene-{self._count}"
        folder.mkdir()
        with ExitStack() as stack:
            cluster = self._network() if fault.needs == "network" else self.near
            place, given = self._props(fault, folder, stack)
            scene = Scene(folder, place, fault.trusted, self.forks, cluster, search_memory=search_memory)
            scene.choice = _CHOICES.get(fault.needs, ())
            scene.namespace = cluster.namespace("driver")
            stack.callback(scene.close)
            cluster.mend()
            scene.prepare(self.pristine)
            fault.inject(scene, **given)
            scene.finish()
        shutil.rmtree(folder, ignore_errors=True)
        return Result(
            fault.kind, fault.where, fault.trusted, fault.books, scene.landed, scene.codes,
            sorted(set(scene.searched)), round(time.monotonic() - began, 1),
        )  # fmt: skip

    def _props(self, fault: Fault, folder: Path, stack: ExitStack) -> tuple[LedgerAddress, Mapping[str, Any]]:
        place: LedgerAddress = folder / "books" / "rows.ledger"
        given: dict[str, Any] = {"pristine": self.pristine} if fault.needs == "pristine" else {}
        if fault.books == "folder":
            if fault.needs == "disk":
                stack.enter_context(small_disk(folder / "books", "1m"))
                given = {"disk": folder / "books"}
        else:
            assert self.server is not None
            server = self.server
            if fault.needs in {"disk", "server"}:
                disk = folder / "disk"
                if fault.needs == "disk":
                    stack.enter_context(small_disk(disk, "96m"))
                    given = {"disk": disk}
                else:
                    disk.mkdir()
                disk.chmod(0o755)
                folder.chmod(0o755)
                server = stack.enter_context(postgres_server.running(self.server.programs, disk))
                given = given or {"server": server}
            place = Address(server.address(f"chaos-{secrets.token_hex(8)}"))
        if fault.needs == "verify":
            given = {"server": self.server, "verify": verify}
        return place, given

    def _network(self) -> Cluster:
        if self._far is None:
            machines = self._stack.enter_context(network("scheduler", *WORKERS, "driver"))
            self._far = Cluster(self.forks, self.folder / "far", machines)
        return self._far

    def close(self) -> None:
        for cluster in (self.near, self._far):
            if cluster is not None:
                cluster.close()
        self._stack.close()


def verify(scene: Scene) -> int:
    command = [sys.executable, "-m", "dpdist", "ledger", "verify", str(scene.ledger), "--release", str(scene.target)]
    return subprocess.run(command, check=False, capture_output=True).returncode


@contextmanager
def staging(server: Server | None) -> Iterator[Stage]:
    """Prepare everything; PostgreSQL's password must be in the environment by now."""
    with (
        tempfile.TemporaryDirectory(prefix="dpdist-chaos-", ignore_cleanup_errors=True) as name,
        forking(ENVIRONMENT) as forks,
    ):
        Path(name).chmod(0o755)  # the database server, which is not root, has its folder in it
        stage = Stage(Path(name), forks, server)
        try:
            yield stage
        finally:
            stage.close()
