"""Real sites on this machine: sshd, Slurm, several machines, Dask Gateway; the next run finishes what was killed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
import pytest
import yaml
from distributed.security import Security
from faults import cluster_faults, hosts, namespaces, nightly, slurm_site
from faults.hosts import Hosts
from faults.nightly import CLUSTER, Job
from faults.packages import PATH, missing, need, need_time
from faults.waiting import PATIENCE, until
from support.estimator_scene import ingested, table


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        running = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if f"TMPDIR={self.folder / 'tmp'}".encode() in (process / "environ").read_bytes():
                    running.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:  # it ended
                continue
        return running

    def keys(self) -> list[Path]:
        return list((self.folder / "tmp").rglob("*.key"))

    def remains(self) -> list[object]:
        return [*self.keys(), *self.processes()]


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
    sent = ["PATH", "PYTHONPATH", "PYTHONWARNINGS", "DPDIST_TEST_LINGER", "DASK_DISTRIBUTED__WORKER__PRELOAD", "TMPDIR"]
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"PasswordAuthentication no\nPermitRootLogin prohibit-password\nAuthorizedKeysFile {folder / 'user.pub'}\n"
        "SetEnv " + " ".join(f'"{name}={variables[name]}"' for name in sent) + "\n"
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


def test_a_job_requeued_in_the_middle_and_submitted_again_makes_one_release(tmp_path: Path) -> None:
    namespaces.need()
    with slurm_site.running(tmp_path / "slurm") as site:
        cluster_faults.requeued(site, tmp_path / "job", "reading")


def test_the_job_script_of_elastic_workers_holds_names_of_files_and_one_address() -> None:
    jobqueue = pytest.importorskip("dask_jobqueue", reason="no dask-jobqueue here (pip install dask-jobqueue)")
    settings = yaml.safe_load((CLUSTER / "slurm" / "jobqueue.yaml").read_text())
    files = {"tls_ca_file": "/x/ca.pem", "tls_worker_cert": "/x/worker.pem", "tls_worker_key": "/x/worker.key"}
    with dask.config.set(dask.config.merge(dask.config.config, settings)):  # as Dask does with DASK_CONFIG
        job = jobqueue.slurm.SLURMJob("tls://192.0.2.1:1", name="w", protocol="tls://", security=Security(**files))
        script = job.job_script()
    assert '. "$DPDIST_CLUSTER/worker.env"' in script
    assert '--host $("$DPDIST_CLUSTER/slurm/address") --dashboard-address 127.0.0.1:0' in script
    assert all(path in script for path in files.values())
    assert "PRIVATE KEY" not in script
    assert "--nthreads 1" in script
    checked = subprocess.run(["bash", "-n"], input=script, text=True, check=False, capture_output=True)
    assert checked.returncode == 0, checked.stderr


def only_tls_listens(machines: Hosts) -> None:
    """Check that nothing listens but TLS at the one address of each machine, and a dashboard on loopback."""
    for machine in ("scheduler", *hosts.WORKERS):
        address = machines.network.address(machine)
        found = machines.listening(machine)
        assert {host for host, _ in found} == {address, "127.0.0.1"}
        assert all(machines.speaks_tls(machine, port) for host, port in found if host == address)


def test_only_tls_listens_and_a_machine_that_is_cut_off_costs_time_and_nothing_else(tmp_path: Path) -> None:
    namespaces.need()
    cluster_faults.worker_cut(tmp_path, silence=hosts.SHORT, first=only_tls_listens)


CONFIG = """
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.address = "127.0.0.1:{api}"
c.Proxy.address = "127.0.0.1:{web}"
c.Proxy.tcp_address = "127.0.0.1:{tcp}"
c.UnsafeLocalBackend.clusters_directory = "{folder}"
c.ClusterConfig.scheduler_cmd = ["dask", "scheduler"]
c.ClusterConfig.worker_cmd = ["dask", "worker", "--host", "127.0.0.1"]
c.ClusterConfig.environment = {{
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
}}
"""
SCRIPT = """
import json, sys, time
from dask_gateway import Gateway
import dpdist

web, tcp, rows = sys.argv[1:]
request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse("1", "1e-6"), clip_norm=8)
with Gateway(f"http://127.0.0.1:{web}", proxy_address=f"gateway://127.0.0.1:{tcp}", auth="basic") as gateway:
    for _ in range(100):  # its proxy hears of it some time after it listens
        try:
            gateway.list_clusters()
            break
        except (OSError, ValueError):
            time.sleep(0.2)
    with gateway.new_cluster() as cluster:
        cluster.adapt(minimum=0, maximum=1)
        where = dpdist.Cluster(client=cluster)
        found = {"fresh": dpdist.release_rows(rows, rows + ".release.zarr", request, cluster=where).fresh}
        # as the command line does, which has no objects: the certificate of a cluster is its own authority
        for name in ("tls_cert", "tls_key"):
            with open(f"{rows}.{name}", "w") as file:
                file.write(getattr(cluster.security, name))
        keys = dpdist.Certificates(rows + ".tls_cert", rows + ".tls_cert", rows + ".tls_key")
        with dpdist.Cluster(cluster.scheduler_address, certificates=keys).connected() as started:
            started.require_visible(rows)
            workers = [*started._workers()]
            found |= {"scheduler": cluster.scheduler_address, "workers": workers, "status": cluster.status}
print(json.dumps(found))
"""


def test_a_gateways_cluster_is_encrypted_starts_its_workers_and_stays_its_users(tmp_path: Path) -> None:
    need_time("dask-gateway")
    if find_spec("dask_gateway") is None or find_spec("dask_gateway_server") is None:
        missing("dask-gateway", "pip install dask-gateway dask-gateway-server SQLAlchemy")
    rows, (api, web, tcp) = ingested(table(), tmp_path), (free_port() for _ in range(3))
    (tmp_path / "config.py").write_text(CONFIG.format(folder=tmp_path / "clusters", api=api, web=web, tcp=tcp))
    (tmp_path / "clusters").mkdir()
    programs = Path(sys.executable).parent  # the workers' dask is that of this environment
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "dask_gateway_server", "--config", tmp_path / "config.py"],
            cwd=tmp_path, stdout=log, stderr=log, env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        ) as server,
    ):  # fmt: skip
        try:
            run = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", SCRIPT, str(web), str(tcp), rows],
                capture_output=True, text=True, check=False, timeout=300,
            )  # fmt: skip
        finally:
            server.terminate()
    assert run.returncode == 0, run.stderr + (tmp_path / "log").read_text()
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["fresh"]
    assert found["scheduler"].startswith(f"gateway://127.0.0.1:{tcp}/")
    assert [each.rpartition(":")[0] for each in found["workers"]] == ["tls://127.0.0.1"]
    assert found["status"] == "running"
