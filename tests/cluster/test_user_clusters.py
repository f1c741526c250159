"""Clusters as people make them, at Dask's defaults: none is refused, by no face."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, Scheduler, SpecCluster, Worker
from distributed.security import Security

import dpdist

QUIET: dict[str, Any] = {"dashboard_address": "127.0.0.1:0"}
NAMES = ["a", "b", "c", "d"]
ROWS = np.random.default_rng(3).normal(size=(4000, 4)) * [4, 2, 1, 1]
LOSS = dpdist.PrivacyLoss.parse("1", "1e-6")


def adaptive(stack: ExitStack) -> Any:
    """Start none, and workers of little memory when there is work."""
    made = stack.enter_context(LocalCluster(n_workers=0, threads_per_worker=1, memory_limit="700MiB", **QUIET))
    made.adapt(minimum=0, maximum=2, interval="100ms")
    return made


def specified(stack: ExitStack) -> Any:
    """Start workers without a nanny."""
    options = {"host": "127.0.0.1", **QUIET}
    workers = {number: {"cls": Worker, "options": {"nthreads": 1, **options}} for number in range(2)}
    return stack.enter_context(SpecCluster(scheduler={"cls": Scheduler, "options": options}, workers=workers))


@pytest.mark.parametrize("cluster", [adaptive, specified])
def test_a_cluster_as_people_make_it_ingests_releases_projects_and_fits(
    tmp_path: Path, cluster: Callable[[ExitStack], Any]
) -> None:
    frame = dd.from_pandas(pd.DataFrame(ROWS, columns=NAMES), npartitions=5)
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        made = cluster(stack)
        patch.setattr("dpdist.core.rows.dataset._TARGET_CHUNK", 8 * 4 * 300)
        where = dpdist.Cluster(client=made)
        rows, release = tmp_path / "rows.zarr", tmp_path / "release.zarr"
        with pytest.warns(UserWarning, match="write blocks of your collection"):
            dpdist.ingest_rows(frame, rows, budget=dpdist.PrivacyLoss.parse("9", "1e-5"), cluster=where)
        request = dpdist.ReleaseRequest("gaussian", LOSS, "auto", scale="private", grid_bits=12)
        found = dpdist.release_rows(rows, release, request, cluster=where).release
        assert found.rows == len(ROWS)
        dpdist.fit_components(release, tmp_path / "model.zarr", 2)
        dpdist.project_rows(rows, tmp_path / "model.zarr", tmp_path / "scores.zarr", cluster=where)
        assert da.from_zarr(str(tmp_path / "scores.zarr")).shape == (len(ROWS), 2)
        with Client(made):
            array = da.from_array(ROWS, chunks=(700, 4))
            with pytest.warns(UserWarning, match="write blocks of your collection"):
                fitted = dpdist.PrivatePCA(1, epsilon=1, delta=1e-6, clip=12).fit(array)
            assert fitted.release_.rows == len(ROWS)


def test_workers_in_another_folder_and_by_tls_write_where_the_user_said_and_progress_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdist.core.ingest.survey.PIECE", 1000)  # two files are two units
    monkeypatch.setattr("dpdist.core.rows.dataset._TARGET_CHUNK", 1000)
    (tmp_path / "parts").mkdir()
    for part in range(2):
        np.save(tmp_path / "parts" / f"{part}.npy", ROWS + part)
    told: list[tuple[str, int, int]] = []
    frame = dd.from_pandas(pd.DataFrame(ROWS, columns=NAMES), npartitions=5)
    how = {"n_workers": 1, "threads_per_worker": 4, "memory_limit": 0, **QUIET}
    with (
        LocalCluster(security=(security := Security.temporary()), protocol="tls://", **how) as made,
        Client(made.scheduler_address, security=security) as client,
    ):
        monkeypatch.chdir(tmp_path)
        where = dpdist.Cluster(client=client, progress=lambda *said: told.append(said))
        assert dpdist.ingest_rows("parts", "rows.zarr", cluster=where).rows == 2 * len(ROWS)
        assert dpdist.ingest_rows(frame, "frame.zarr", budget=LOSS, cluster=where).rows == len(ROWS)
        request = dpdist.ReleaseRequest("gaussian", LOSS, 12.0)
        assert dpdist.release_rows("frame.zarr", "release.zarr", request, cluster=where).release.rows == len(ROWS)
    assert any(" on 1 worker at " in step for step, _, _ in told)
    assert ("Writing blocks", 5, 5) in told
