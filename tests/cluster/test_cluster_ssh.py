"""A real sshd on the loopback interface: a cluster started through it, whose keys and processes are gone afterwards."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from faults import nightly
from faults.nightly import CLUSTER, Job
from faults.packages import PATH, need, need_time
from faults.waiting import PATIENCE, until


@dataclass(frozen=True)
class Server:
    """A running sshd, and a folder with the ``ssh`` that finds it."""

    folder: Path
    runs: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, job: Job) -> subprocess.Popen[str]:
        """Run a job through it, until the test ends at the latest."""
        environment = job.environment()
        environment |= {"PATH": f"{self.folder}:{environment['PATH']}", "DPDIST_PORT": str(free_port())}
        command: list[str | Path] = [CLUSTER / "ssh" / "run", job.file, "127.0.0.1", "127.0.0.1"]
        run = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.runs.append(run)
        return run

    def processes(self) -> list[str]:
        """Return the commands that sshd's sessions run."""
        running = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if f"TMPDIR={self.folder / 'tmp'}".encode() in (process / "environ").read_bytes():
                    running.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:  # it ended
                continue
        return running

    def keys(self) -> list[Path]:
        """Return the keys that those sessions hold."""
        return list((self.folder / "tmp").rglob("*.key"))

    def remains(self) -> list[object]:
        """Return what is left of those sessions."""
        return [*self.keys(), *self.processes()]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    need_time("openssh-server")
    need("openssh-server", "sshd", "ssh", "ssh-keygen")
    folder = tmp_path / "ssh"
    (folder / "tmp").mkdir(parents=True, mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    port = free_port()
    public = (folder / "host.pub").read_text()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {public}")
    variables = nightly.Job(tmp_path / "job").environment("reading") | {"TMPDIR": str(folder / "tmp")}
    names = (
        "PATH",
        "PYTHONPATH",
        "PYTHONWARNINGS",
        "DPDIST_TEST_LINGER",
        "DASK_DISTRIBUTED__WORKER__PRELOAD",
        "TMPDIR",
    )
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"PasswordAuthentication no\nPermitRootLogin prohibit-password\nAuthorizedKeysFile {folder / 'user.pub'}\n"
        "SetEnv " + " ".join(f'"{name}={variables[name]}"' for name in names) + "\n"
    )
    options = f"-p {port} -i {folder / 'user'} -o UserKnownHostsFile={folder / 'known'} -o StrictHostKeyChecking=yes"
    program = shutil.which("ssh")
    (folder / "ssh").write_text(f'#!/bin/sh\nexec {program} {options} "$@"\n')
    (folder / "ssh").chmod(0o755)
    if not os.getuid():
        Path("/run/sshd").mkdir(exist_ok=True)
    daemon = shutil.which("sshd", path=PATH)  # it wants to be called by its whole name
    assert daemon is not None
    process = subprocess.Popen([daemon, "-D", "-e", "-f", folder / "config"])
    found = Server(folder)
    yield found
    processes: list[subprocess.Popen[Any]] = [*found.runs, process]
    for started in processes:
        started.kill()
        started.wait()
        if started.stdout is not None:
            started.stdout.close()


def test_a_killed_job_takes_its_cluster_along_and_the_next_one_finishes(server: Server, tmp_path: Path) -> None:
    job = nightly.make(tmp_path / "job")
    killed = server.run(job)
    until(lambda: job.lingers("reading") or killed.poll() is not None)
    assert killed.poll() is None, killed.communicate()
    assert any("cluster/ssh/keep" in command for command in server.processes())
    assert not any("PRIVATE KEY" in command for command in server.processes())
    held = server.keys()
    assert [path.stat().st_mode & 0o077 for path in held] == [0, 0]
    killed.kill()
    killed.wait()  # as whoever started it does: `tail --pid` takes a process that nobody waited for as alive
    until(lambda: not server.remains(), words=lambda: str(server.remains()))
    assert job.states() == ["reserved"]
    run = server.run(job)
    words, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, words
    assert "(released now)" in words
    assert job.published()
    until(lambda: not server.remains(), words=lambda: str(server.remains()))
