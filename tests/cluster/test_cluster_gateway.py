"""Dask Gateway, the real one: its server, its proxy and its clusters on loopback; a client of it and its Security."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path

from faults.packages import missing, need_time
from support.estimator_scene import ingested, table

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
            found |= {"scheduler": cluster.scheduler_address, "workers": [*started._known()], "status": cluster.status}
print(json.dumps(found))
"""


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on just now."""
    with ExitStack() as stack:
        servers = [stack.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


def test_a_gateways_cluster_is_encrypted_starts_its_workers_and_stays_its_users(tmp_path: Path) -> None:
    need_time("dask-gateway")
    if find_spec("dask_gateway") is None or find_spec("dask_gateway_server") is None:
        missing("dask-gateway", "pip install dask-gateway dask-gateway-server SQLAlchemy")
    rows, (api, web, tcp) = ingested(table(), tmp_path), free_ports(3)
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
