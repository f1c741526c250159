"""Estimators of files, their ledgers and releases, and on the user's own cluster, unheard by others."""

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
import zarr
from distributed import Client
from faults import namespaces
from sklearn.base import clone
from support.estimator_scene import CLIP, COLUMNS, ROWS, ingested, table

from dpdist import PrivateCovariance, PrivatePCA
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.ledger.in_memory import Register
from dpdist.pipeline.components import fit_components, project_rows
from dpdist.release import artefact
from dpdist.rows import dataset
from dpdist.runtime.cluster import Cluster

pytestmark = pytest.mark.filterwarnings("ignore:Rows of the same number and kind were released")
LOSS: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": CLIP}

ON_A_CLUSTER = """
import json, sys, warnings
import dask.array as da, numpy as np
from distributed import Client, Scheduler, SpecCluster, Worker
from dpdist import PrivatePCA
from dpdist.errors import DpdistError
from dpdist.pipeline.release import Cluster

rows = sys.argv[1]
warnings.simplefilter("ignore")
local = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}


def outcome(given, **more):
    try:
        PrivatePCA(2, epsilon=1, delta=1e-6, clip=8, **more).fit(given)
    except DpdistError as error:
        return f"{type(error).__name__}: {error}"
    return "fitted"


with SpecCluster(
    scheduler={"cls": Scheduler, "options": local},
    workers={0: {"cls": Worker, "options": {**local, "host": "10.211.0.2"}}},
) as cluster:
    worker = list(cluster.scheduler.workers)
    named = outcome(rows + "/rows.zarr", cluster=Cluster(cluster.scheduler_address))
    before = len(cluster.scheduler.transition_log)
    mine = outcome(rows + "/rows.zarr", cluster=Cluster(client=cluster))
    with Client(cluster):
        found = outcome(da.from_array(np.load(rows + "/rows.npy"), chunks=(40, -1)))
    tasks = [each for each in list(cluster.scheduler.transition_log)[before:] if each[2] == "processing"]
    print(json.dumps([worker, named, mine, found, len(tasks)]))
"""


def test_a_worker_off_the_loopback_interface_is_refused_by_both_faces_before_anything_is_submitted(
    tmp_path: Path,
) -> None:
    namespaces.need(minutes=False)
    ingested(table(), tmp_path)
    with namespaces.network("user", "other") as made:
        assert made.address("user") == "10.211.0.2"
        run = subprocess.run(
            made.on("user", [sys.executable, "-c", ON_A_CLUSTER, str(tmp_path)]),
            check=True, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    (worker,), named, mine, found, tasks = json.loads(run.stdout.splitlines()[-1])
    assert worker.startswith("tcp://10.211.0.2:")
    for said in (named, mine, found):
        assert said.startswith(f"RefusedError: The worker {worker} is on the network and not encrypted"), said
    assert ("insecure" in named, "insecure" in mine, "insecure" in found) == (True, True, False)  # no such parameter
    assert "Nothing was sent" in found
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


def test_the_path_of_a_rows_zarr_is_charged_to_its_ledger_and_fitted_again_for_nothing(
    tmp_path: Path, scheduler: str, register: Register
) -> None:
    path = ingested(table(), tmp_path, budget="1.2")
    asked = {**LOSS, "cluster": Cluster(scheduler)}
    first = PrivatePCA(2, **asked).fit(path)
    (published,) = tmp_path.glob("rows.r-*.zarr")
    again = clone(first).set_params(n_components=3).fit(str(path))
    assert np.array_equal(first.release_.lattice, again.release_.lattice)
    assert again.n_components_ == 3
    assert np.array_equal(PrivatePCA.from_release(published, 2).components_, first.components_)
    with pytest.raises(RefusedError, match="budget"):
        PrivatePCA(2, **{**asked, "clip": 6}).fit(path)
    assert first.transform(path).shape == (ROWS, 2)
    with pytest.raises(UsageError, match="declared once"):
        PrivatePCA(2, **asked, budget_epsilon=5).fit(path)
    with pytest.raises(DataError, match="Pass the path"):
        PrivatePCA(2, **asked).fit(zarr.open_array(path))
    assert [each.fingerprints for each in register._fits] == [None]  # noted by its shape alone
    covariance = PrivateCovariance(**LOSS, centre="none", cluster=Cluster(scheduler)).fit(path)  # the same release
    assert np.array_equal(covariance.release_.lattice, first.release_.lattice)


@pytest.mark.parametrize("mechanism", ["gaussian", "power"])
def test_a_release_of_rows_in_memory_can_be_kept_and_taken_up_again(tmp_path: Path, mechanism: str) -> None:
    place = tmp_path / "release.zarr"
    options = {"iterations": 3} if mechanism == "power" else None
    found = PrivatePCA(2, **LOSS, mechanism=mechanism, options=options, release=place).fit(table())
    again = PrivatePCA.from_release(place, 2)
    assert np.allclose(again.components_, found.components_, atol=1e-12)
    assert again.guarantee_ == found.guarantee_
    assert clone(again).get_params().items() >= LOSS.items()
    with pytest.raises(DataError, match="exists already"):
        PrivatePCA(2, **LOSS, release=place).fit(table(1))
    if mechanism == "power":
        told = (found.explained_variance_, found.explained_variance_ratio_, found.n_above_noise_)
        assert (*told, found.squared_cosines_, found.squared_cosine_intervals_) == (None,) * 5
        subspace: dict[str, Any] = {"mechanism": mechanism, "options": {"components": 2, "iterations": 3}}
        with pytest.raises(UsageError, match="components and no second moment"):
            PrivateCovariance(**LOSS, **subspace, centre="none").fit(table(2))


def test_a_release_too_large_for_memory_is_multiplied_from_the_disk(
    tmp_path: Path, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ingested(table(), tmp_path)
    asked = PrivatePCA(2, **LOSS, release=tmp_path / "release.zarr", cluster=Cluster(scheduler))
    found = clone(asked).fit(path)
    assert found.release_.in_memory
    monkeypatch.setattr(artefact, "_IN_MEMORY", 0)
    again = clone(asked).fit(path)
    assert not again.release_.in_memory
    for other in (again, PrivatePCA.from_release(tmp_path / "release.zarr", 2)):
        assert np.allclose(other.components_, found.components_, atol=1e-9)
        assert np.allclose(other.explained_variance_, found.explained_variance_)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"too large for memory\. Pass the path"):
        PrivatePCA.from_release(again.release_, 2)
    with pytest.raises(DataError, match=r"too large for memory. Read"):
        PrivateCovariance.from_release(tmp_path / "release.zarr")


@pytest.mark.filterwarnings("ignore:Perhaps")  # these rows are clipped much
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_transform_of_a_path_is_what_dpdist_project_writes_to_the_bit(
    tmp_path: Path, scheduler: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 50 * COLUMNS * 8)  # several chunks, the last one not full
    rows = (table() * 10).astype(dtype)
    path = ingested(rows, tmp_path)
    centre = {"centre": np.full(COLUMNS, 0.1), "scale": np.linspace(0.3, 3, COLUMNS)}
    fitted = PrivatePCA(2, **LOSS, centre=centre, release=tmp_path / "r.zarr", cluster=Cluster(scheduler)).fit(path)
    fit_components(tmp_path / "r.zarr", tmp_path / "m.zarr", 2)
    project_rows(path, tmp_path / "m.zarr", tmp_path / "s.zarr", cluster=Cluster(scheduler))
    written = np.asarray(zarr.open_array(tmp_path / "s.zarr", mode="r")[...])
    found = fitted.transform(path)
    assert found.dtype == written.dtype == ("float32" if dtype == "float32" else "float64")
    assert found.tobytes() == written.tobytes()
    there = fitted.transform(da.from_array(rows, chunks=(60, 3)))  # and so is the type, and the rest to rounding
    assert there.dtype == found.dtype
    assert np.allclose(np.asarray(there), found, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("silent")
def test_a_dask_array_is_summed_by_the_current_client(scheduler: str) -> None:
    asked = PrivatePCA(2, **LOSS, grid_bits=20, budget_epsilon=100)
    here = asked.fit(table()).release_.lattice
    with Client(scheduler):
        there = asked.fit(da.from_array(table(), chunks=(13, 3))).release_.lattice
    assert np.abs(there - here).max() < 1e-5 * np.abs(here).max()  # rounded apart; a row has 3e-3


def test_rows_in_memory_that_may_be_those_of_a_ledger_are_warned_of(tmp_path: Path, register: Register) -> None:
    rows = table(4)
    PrivatePCA(2, **LOSS).fit(ingested(rows, tmp_path))
    assert len(register._fits) == 1
    with pytest.warns(UserWarning, match=r"same number and kind were released once before.*these releases together"):
        PrivatePCA(2, **LOSS).fit(rows)
