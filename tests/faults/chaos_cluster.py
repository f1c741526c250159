"""A scheduler, two workers and a trusted one, each a process in which faults can be armed; what died is replaced."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from distributed import Client
from distributed.core import rpc

from faults import crash_driver
from faults.forks import Child, Forks
from faults.namespaces import Network
from faults.waiting import until

Result = TypeVar("Result")

TTL = 5
"""Seconds after which the scheduler gives a silent worker up; Dask takes no less."""
ENVIRONMENT = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{TTL}s"}
SETTINGS = {
    "dpdist.core.runtime.sums.LOST_SECONDS": 4,
    "dpdist.core.runtime.sums._POLL_SECONDS": 1,
    "dpdist.core.ledger.sqlite.WAIT_SECONDS": TTL,
    "dpdist.core.ledger.postgresql.WAIT_SECONDS": TTL,
    "dpdist.core.release.transaction._WINNER_SECONDS": TTL,
}
"""A minute's patience, in seconds."""
WORKERS = ("one", "two", "trusted")


class Cluster:
    """Made empty; :meth:`mend` starts it."""

    def __init__(self, forks: Forks, folder: Path, network: Network | None = None) -> None:
        self.forks, self.folder, self.network = forks, folder, network
        self.children: dict[str, Child] = {}
        self.past: list[Child] = []
        self._numbers = count()
        self._port = 0
        folder.mkdir(parents=True, exist_ok=True)

    def namespace(self, machine: str) -> str | None:
        return self.network.namespace(machine) if self.network else None

    def host(self, machine: str) -> str:
        return self.network.address(machine) if self.network else "127.0.0.1"

    def cut(self, machine: str) -> AbstractContextManager[None]:
        assert self.network is not None, "all on one machine: there is no cable"
        return self.network.cut(machine)

    @property
    def address(self) -> str:
        return f"tcp://{self.host('scheduler')}:{self._port}"

    def alive(self, role: str) -> bool:
        """Say whether the process of a role runs and is not stopped."""
        child = self.children.get(role)
        return child is not None and not child.ended.is_set() and child.state != "T"

    def start(self, role: str, machine: str | None = None) -> Child:
        """Start the process of a role, in place of the one that had it, on its machine or another."""
        if role in self.children:
            self.past.append(self.children[role])
        number = next(self._numbers)
        folder = self.folder / role
        folder.mkdir(exist_ok=True)
        for armed in folder.iterdir():
            if armed.is_file():
                armed.unlink()
        machine = machine or role
        host = self.host(machine)
        options = ["--host", host, "--dashboard-address", f"{host}:0"]
        words = self.folder / f"{role}-{number}.words"
        if role == "scheduler":
            contact = self.folder / f"scheduler-{number}.json"
            arguments = ["--port", str(self._port), "--scheduler-file", str(contact), *options]
        else:
            arguments = [self.address, "--name", f"{role}-{number}", "--nthreads", "1", "--no-nanny", *options]
            arguments += ["--resources", "trusted=1"] if role == "trusted" else []
        child = self.forks.start(
            words, arguments, program="scheduler" if role == "scheduler" else "worker", folder=folder,
            namespace=self.namespace(machine), settings=SETTINGS,
        )  # fmt: skip
        self.children[role] = child
        if role == "scheduler":
            until(contact.exists)
            until(contact.read_text)
            self._port = int(json.loads(contact.read_text())["address"].rpartition(":")[2])
        return child

    def mend(self) -> None:
        """Replace dead and stopped processes, and wait until exactly these are there."""
        for child in [*self.past, *self.children.values()]:
            if child.state == "T":
                child.kill()
        if not self.alive("scheduler"):
            for role in WORKERS:
                if role in self.children:
                    self.children[role].kill()
                    self.children[role].wait(300)
            self.start("scheduler")
        for child in self.past:
            child.kill()
        known = self.known()
        for role in WORKERS:
            if not self.alive(role) or self.name(role) not in known:
                if role in self.children:
                    self.children[role].kill()
                self.start(role)
        until(lambda: set(self.known()) == {self.name(role) for role in WORKERS}, every=0.2)

    def name(self, role: str) -> str:
        return self.children[role].words.stem

    def arm(self, role: str, point: str, action: str, marker: Path) -> None:
        """Let something happen the next time the process of a role comes to a point."""
        aside = self.folder / role / "arming"
        aside.write_text(json.dumps([action, str(marker)]))
        aside.rename(self.folder / role / point)

    def disarm(self) -> None:
        for role in WORKERS:
            for armed in (self.folder / role).iterdir():
                if armed.is_file() and not armed.suffix:
                    armed.unlink()

    def known(self) -> dict[str, str]:
        async def ask() -> dict[str, Any]:
            async with rpc(self.address, timeout=10) as remote:
                found: dict[str, Any] = await asyncio.wait_for(remote.identity(n_workers=-1), 10)
                return found

        workers = self._inside(lambda: asyncio.run(ask()))["workers"]
        return {worker["name"]: address for address, worker in workers.items()}

    def logs(self) -> bytes:
        """Return what scheduler and workers keep in their memory to show to any client."""

        def ask() -> bytes:
            with Client(self.address, set_as_default=False, timeout=20) as client:
                return repr([client.get_scheduler_logs(), client.get_worker_logs()]).encode()

        return self._inside(ask)

    def _inside(self, function: Callable[[], Result]) -> Result:
        namespace = self.namespace("scheduler")
        if namespace is None:
            return function()
        with ThreadPoolExecutor(1, initializer=crash_driver.enter, initargs=(namespace,)) as pool:
            return pool.submit(function).result()

    def close(self) -> None:
        for child in [*self.past, *self.children.values()]:
            child.kill(signal.SIGKILL)
            child.wait(300)
