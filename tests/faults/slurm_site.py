"""A Slurm of one node for the tests, from Debian's packages, on a machine of its own from which nothing leads out."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults.namespaces import Network, network
from faults.nightly import CLUSTER, Job
from faults.packages import PATH, need, need_time
from faults.waiting import PATIENCE, until

USUAL = 120
"""Seconds for which a credential of Slurm is valid unless told otherwise: so long a requeued job waits."""

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}({address})
SlurmUser=root
AuthInfo=socket={folder}/munge.sock,cred_expire={expire}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1
KillWait=5
ReturnToService=2
NodeName={host} NodeAddr={address} CPUs={cores} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@dataclass(frozen=True)
class Site:
    """A running Slurm."""

    machines: Network
    folder: Path

    def ask(self, *command: str, environment: Mapping[str, str] | None = None) -> str:
        run = subprocess.run(
            self.machines.on("node", command), check=False, capture_output=True, text=True, timeout=PATIENCE,
            env={**(environment or os.environ), "SLURM_CONF": str(self.folder / "slurm.conf")}, cwd=self.folder,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        return run.stdout.strip()

    def log(self, number: str) -> str:
        found = self.folder / f"dpdist-{number}.log"
        return found.read_text() if found.exists() else ""

    def words(self) -> str:
        return "".join(f"{path.stem}: {path.read_text()[-3000:]}" for path in self.folder.glob("*.log"))

    def job(self, number: str) -> dict[str, str]:
        words = self.ask("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, number: str, state: str) -> None:
        until(lambda: self.job(number)["JobState"] == state, words=self.words)


def submit(site: Site, job: Job, *points: str) -> str:
    """Submit the sbatch script for a job whose processes shall linger at these points; return its number."""
    environment = {**job.environment(*points), "DPDIST_CLUSTER": str(CLUSTER), "DPDIST_SHARED": str(job.folder)}
    size = ("--nodes=1", "--ntasks-per-node=2")
    return site.ask(
        "sbatch", "--parsable", *size, str(CLUSTER / "slurm" / "release.sbatch"), str(job.file), environment=environment
    )


@contextmanager
def running(folder: Path, *, expire: int = 5) -> Iterator[Site]:
    need_time("slurm-wlm")
    need("slurm-wlm", "munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    with ExitStack() as stack:
        machines = stack.enter_context(network("node"))
        site = Site(machines, folder)
        (folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                host=socket.gethostname(), address=machines.address("node"), folder=folder, expire=expire,
                cores=len(os.sched_getaffinity(0)),
            )
        )  # fmt: skip
        files = {"key-file": key, "socket": folder / "munge.sock", "seed-file": folder / "munge.seed",
                 "pid-file": folder / "munge.pid", "log-file": folder / "munge.log"}  # fmt: skip
        daemons = (
            ["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items())],
            ["slurmctld", "-D"],
            ["slurmd", "-D"],
        )
        for daemon in daemons:
            log = stack.enter_context((folder / f"{daemon[0]}.log").open("wb"))
            process = subprocess.Popen(
                machines.on("node", daemon), stdout=log, stderr=log, cwd=folder,
                env={**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH},
            )  # fmt: skip
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            if daemon[0] == "munged":
                until((folder / "munge.sock").exists)
        until(lambda: _idle(site), words=site.words)
        stack.callback(_cancel_all, site)
        yield site


def _idle(site: Site) -> bool:
    try:
        return "idle" in site.ask("sinfo", "--noheader")
    except AssertionError:
        return False


def _cancel_all(site: Site) -> None:
    """End every job, so that no process of one outlives Slurm."""
    site.ask("scancel", "--user", "root")
    until(lambda: not site.ask("squeue", "--noheader"))
