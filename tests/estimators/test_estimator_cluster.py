"""PrivatePCA on the cluster of the user's own client: nobody else may hear it, and a fit waits for its result."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from faults import namespaces
from support.estimator_scene import CLIP, COLUMNS, ingested, table

from dpdist import PrivatePCA
from dpdist.errors import RefusedError, UsageError
from dpdist.ledger.in_memory import Register

pytestmark = pytest.mark.filterwarnings("ignore:Rows of the same number and kind were released")
LOSS: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": CLIP}

ON_A_CLUSTER = """
import json, sys, warnings
from pathlib import Path
import dask, dask.array as da, numpy as np
from distributed import Client, Scheduler, SpecCluster, Worker
from dpdist import PrivatePCA
from dpdist.errors import DpdistError
from dpdist.pipeline.release import Cluster

host, rows = sys.argv[1:]
warnings.simplefilter("ignore")
quiet = {"dashboard_address": "127.0.0.1:0"}
local = {"host": "127.0.0.1", **quiet}
array = np.load(rows + "/rows.npy")


def outcome(given, **more):
    try:
        PrivatePCA(2, epsilon=1, delta=1e-6, clip=8, **more).fit(given)
    except DpdistError as error:
        return f"{type(error).__name__}: {error}"
    return "fitted"


with SpecCluster(
    scheduler={"cls": Scheduler, "options": local},
    workers={0: {"cls": Worker, "options": {"host": host, **quiet}}},
) as cluster:
    worker = list(cluster.scheduler.workers)
    where = Cluster(cluster.scheduler_address)
    named = outcome(rows + "/rows.zarr", cluster=where)
    before = len(cluster.scheduler.transition_log)
    mine = outcome(rows + "/rows.zarr", cluster=Cluster(client=cluster))
    with Client(cluster):
        found = outcome(da.from_array(array, chunks=(40, -1)))
    tasks = [each for each in list(cluster.scheduler.transition_log)[before:] if each[2] == "processing"]
    print(json.dumps([worker, named, mine, found, len(tasks)]))
"""


@pytest.mark.parametrize("host", ["10.211.0.2", "127.0.0.1"])
def test_a_worker_off_the_loopback_interface_is_refused_by_both_faces_before_anything_is_submitted(
    tmp_path: Path, host: str
) -> None:
    namespaces.need(minutes=False)
    ingested(table(), tmp_path)
    with namespaces.network("user", "other") as made:
        assert made.address("user") == "10.211.0.2"
        run = subprocess.run(
            made.on("user", [sys.executable, "-c", ON_A_CLUSTER, host, str(tmp_path)]),
            check=True, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    (worker,), named, mine, found, tasks = json.loads(run.stdout.splitlines()[-1])
    assert worker.startswith(f"tcp://{host}:")
    if host == "127.0.0.1":  # the same is done where nobody listens
        assert (named, mine, found) == ("fitted", "fitted", "fitted")
        assert tasks
        return
    for said in (named, mine, found):
        assert said.startswith(f"RefusedError: The worker {worker} is on the network and not encrypted"), said
    assert "insecure" in named
    assert "insecure" in mine
    assert "Nothing was sent" in found
    assert "insecure" not in found  # an estimator has no such parameter
    assert tasks == 0


def test_a_scheduler_on_the_network_is_refused_too(
    scheduler: str, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(scheduler) as client:
        told = client.scheduler_info() | {"address": "tcp://192.0.2.1:8786"}
        monkeypatch.setattr(Client, "scheduler_info", lambda *_, **__: told)
        monkeypatch.setattr(Client, "compute", None)  # nothing is submitted
        with pytest.raises(RefusedError, match=r"The scheduler tcp://192\.0\.2\.1:8786"):
            PrivatePCA(2, **LOSS).fit(da.from_array(table(), chunks=(50, 3)))
    assert not register._fits


def test_an_asynchronous_client_is_told_how_to_be_waited_for(scheduler: str, register: Register) -> None:
    async def fit(*, aside: bool) -> Any:
        async with Client(scheduler, asynchronous=True):
            rows = da.from_array(table(), chunks=(50, COLUMNS))
            asked = PrivatePCA(2, **LOSS)
            return await asyncio.to_thread(asked.fit, rows) if aside else asked.fit(rows)

    with pytest.raises(UsageError, match=r"asynchronous.*asyncio\.to_thread"):
        asyncio.run(fit(aside=False))
    assert not register._fits
    assert np.isfinite(asyncio.run(fit(aside=True)).components_).all()  # what the message says to do
