"""Estimators of files, their ledgers and releases, and on the user's own cluster, unheard by others."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client
from sklearn.base import clone
from support.estimator_scene import CLIP, COLUMNS, ROWS, ingested, table

from dpdist import PrivateCovariance, PrivatePCA
from dpdist.answers.fitting import fit_components
from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ledger.register import Register
from dpdist.core.pipeline.scores import project_rows
from dpdist.core.release import opening
from dpdist.core.rows import dataset
from dpdist.core.runtime.cluster import Cluster

pytestmark = pytest.mark.filterwarnings("ignore:The same number of rows was released")
LOSS: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": CLIP}


@pytest.mark.parametrize("role", ["scheduler", "worker"])
def test_a_cluster_that_can_be_listened_to_is_refused_before_anything_is_submitted(
    scheduler: str, register: Register, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    with Client(scheduler) as client:
        address = "tcp://192.0.2.1:8786"
        changed: dict[str, Any] = {"address": address} if role == "scheduler" else {"workers": {address: {}}}
        told = client.scheduler_info() | changed
        monkeypatch.setattr(Client, "scheduler_info", lambda *_, **__: told)
        monkeypatch.setattr(Client, "compute", None)  # nothing is submitted
        refusal = rf"The {role} {re.escape(address)} is on the network and not encrypted.*Nothing was sent"
        with pytest.raises(RefusedError, match=refusal) as refused:
            PrivatePCA(2, **LOSS).fit(da.from_array(table(), chunks=(50, 3)))
    assert "insecure" not in str(refused.value)  # no such parameter
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
    with pytest.warns(UserWarning, match=r"The same number of rows was released once before.*these releases together"):
        PrivatePCA(2, **LOSS).fit(table())
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
    assert not PrivatePCA(2, **LOSS, mechanism=mechanism, options=options, release=place).fit(table()).fresh_
    with pytest.raises(DataError, match="contains another release"):
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
    monkeypatch.setattr(opening, "_IN_MEMORY", 0)
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
    fit_components(tmp_path / "r.zarr", tmp_path / "m.zarr", 2, correlation=False)
    project_rows(path, tmp_path / "m.zarr", tmp_path / "s.zarr", cluster=Cluster(scheduler))
    written = np.asarray(zarr.open_array(tmp_path / "s.zarr", mode="r")[...])
    found = fitted.transform(path)
    assert found.dtype == written.dtype == ("float32" if dtype == "float32" else "float64")
    assert found.tobytes() == written.tobytes()
    there = fitted.transform(da.from_array(rows, chunks=(60, 3)))  # and so is the type, and the rest to rounding
    assert there.dtype == found.dtype
    assert np.allclose(np.asarray(there), found, rtol=1e-5, atol=1e-4)
