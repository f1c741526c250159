"""A cluster across several machines, network namespaces, started as cluster/hand/README.md says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from faults.namespaces import Network, network
from faults.nightly import CLUSTER, Job
from faults.waiting import PATIENCE, until

PORT = 8786
WORKERS = ("one", "two")
USER = "user"
"""The trusted node, where jobs are run."""
USUAL = 30
"""Seconds after which Dask gives a silent connection up, unless told otherwise."""
SHORT = 11
"""Dask takes no less."""


@dataclass
class Hosts:
    """Machines: one with the scheduler, two with a worker each, and the trusted node."""

    network: Network
    folder: Path
    job: Job
    silence: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def scheduler(self) -> str:
        return f"tls://{self.network.address('scheduler')}:{PORT}"

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    def log(self, machine: str) -> Path:
        return self.folder / f"{machine}.log"

    def start(self, machine: str, command: Sequence[str | Path], *points: str) -> None:
        with self.log(machine).open("ab") as log:
            self.processes[machine] = subprocess.Popen(
                self.network.on(machine, [str(word) for word in command]), stdout=log, stderr=log, cwd=self.folder,
                env={**self.job.environment(*points), "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": f"{self.silence}s"},
                start_new_session=True,
            )  # fmt: skip

    def start_cluster(self, *points: str) -> None:
        address = self.network.address
        self.start("scheduler", (CLUSTER / "start", "scheduler", self.certificates, address("scheduler")))
        for machine in WORKERS:
            self.start_worker(machine, *points)
        assert self.wait() == 0, self.words()

    def start_worker(self, machine: str, *points: str) -> None:
        command = (CLUSTER / "start", "worker", self.certificates, self.scheduler, self.network.address(machine))
        self.start(machine, command, *points)

    def restart_workers(self) -> list[str]:
        """Start the workers that have ended anew, as a service manager does; wait for all; return which."""
        started: list[str] = []

        def complete() -> bool:
            ended = [machine for machine in WORKERS if self.processes[machine].poll() is not None]
            for machine in ended:
                self.start_worker(machine)
            started.extend(ended)
            return self.wait(seconds=60) == 0

        until(complete, words=self.words)
        return started

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait until all workers have joined, and return the exit code of cluster/wait."""
        command = [CLUSTER / "wait", self.certificates, self.scheduler, str(len(WORKERS)), str(seconds)]
        run = subprocess.run(
            self.network.on(USER, [str(word) for word in command]), check=False, env=self.job.environment(),
            capture_output=True, timeout=2 * PATIENCE,
        )  # fmt: skip
        return run.returncode

    def run(self, *points: str) -> None:
        files = {"--tls-ca": "ca.pem", "--tls-cert": "client.pem", "--tls-key": "client.key"}
        tls = (part for option, name in files.items() for part in (option, self.certificates / name))
        self.start(USER, ("dpdist", "run", self.job.file, "--scheduler", self.scheduler, *tls), *points)

    def code(self, seconds: float = PATIENCE) -> int:
        return self.processes[USER].wait(seconds)

    def words(self) -> str:
        return "".join(f"{log.stem}: {log.read_text()[-3000:]}" for log in self.folder.glob("*.log"))

    def listening(self, machine: str) -> set[tuple[str, int]]:
        shown = subprocess.run(self.network.on(machine, ["ss", "-Hltn"]), check=True, capture_output=True, text=True)
        places = (line.split()[3].rpartition(":") for line in shown.stdout.splitlines())
        return {(host, int(port)) for host, _, port in places}

    def speaks_tls(self, machine: str, port: int) -> bool:
        """Say whether a port wants a certificate of this cluster: none at all is refused, the client's is taken."""
        script = """
import socket, ssl, sys
host, port, authority, *own = sys.argv[1:]
context = ssl.create_default_context(cafile=authority)
context.check_hostname = False
if own:
    context.load_cert_chain(*own)
with socket.create_connection((host, int(port)), 10) as plain, context.wrap_socket(plain) as secure:
    secure.settimeout(10)
    try:
        sys.exit(0 if secure.recv(1) else 1)  # Dask greets whom it knows; who is not known is told so and left
    except ssl.SSLError:
        sys.exit(1)
"""
        folder = self.certificates
        words = [sys.executable, "-c", script, self.network.address(machine), str(port), str(folder / "ca.pem")]
        own = [str(folder / "client.pem"), str(folder / "client.key")]
        codes = [
            subprocess.run(self.network.on(USER, command), check=False, timeout=30).returncode
            for command in ([*words, *own], words)
        ]
        return codes == [0, 1]

    def stop(self) -> None:
        for process in self.processes.values():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()


@contextmanager
def running(folder: Path, job: Job, *, silence: int, points: Sequence[str] = ()) -> Iterator[Hosts]:
    folder.mkdir(exist_ok=True)
    with network("scheduler", *WORKERS, USER) as made:
        found = Hosts(made, folder, job, silence)
        subprocess.run([sys.executable, CLUSTER / "make-certificates", found.certificates, "1"], check=True)
        try:
            found.start_cluster(*points)
            yield found
        finally:
            found.stop()
