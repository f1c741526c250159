"""Programs as people write them: their own Dask client, pipelines of scikit-learn, warnings and a log."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray
from distributed import Client
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Normalizer,
)
from support.estimator_scene import CLIP, ingested, table

import dpdist
from dpdist.core.errors import BelowNoiseWarning, DataError, RefusedError, UsageError
from dpdist.core.ledger.register import Register
from dpdist.core.runtime.cluster import computing_on, named_client
from dpdist.core.runtime.sums import DaskExecutor
from dpdist.estimators.checked import RowsError

pytestmark = [
    pytest.mark.filterwarnings("ignore:The same number of rows was released", "ignore::dpdist.BelowNoiseWarning"),
    pytest.mark.usefixtures("register"),
]
LOSS: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": CLIP, "budget_epsilon": 99}
CLEAR = {**LOSS, "epsilon": 8}
"""Of 40 releases of 2,000 persons, R² of y was 0.967 to 1.009."""
ON_DISK: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": CLIP}


def frame(seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    content = pd.DataFrame(random.normal(size=(4000, 3)), columns=["a", "b", "c"])
    content["y"] = content["a"] + 0.1 * random.normal(size=4000)
    return content


# --- where ------------------------------------------------------------------------------------------------------------


def test_a_client_is_a_cluster_for_the_path_of_a_rows_zarr(tmp_path: Path, scheduler: str) -> None:
    path = ingested(table(), tmp_path, budget="9")
    request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse(1, 1e-6), clip_norm=CLIP)
    with Client(scheduler, set_as_default=False) as client:
        fitted = dpdist.PrivatePCA(2, cluster=client, **ON_DISK).fit(path)
        assert dpdist.release_rows(path, tmp_path / "release.zarr", request, cluster=client).fresh is False
        again = clone(dpdist.PrivatePCA(2, cluster=client, **ON_DISK))
        assert vars(again)["cluster"] is client
        restored = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - made here
        assert vars(fitted)["cluster"] is client  # and is not changed
        assert fitted.fresh_
        assert vars(copy.copy(fitted))["cluster"] is vars(copy.deepcopy(fitted))["cluster"] is client
        with pytest.raises(UsageError, match=r"not 'a Dask client that was not saved: pass set_params"):
            restored.fit(path)  # it would go elsewhere than was said
        assert np.array_equal(restored.components_, fitted.components_)
        with pytest.raises(UsageError, match="cannot be sent to another process"):
            pickle.dumps(again)
        assert client.status == "running"  # it is the user's
    with pytest.raises(UsageError, match=r"takes a dpdist\.Cluster, a dask\.distributed\.Client"):
        dpdist.release_rows(path, tmp_path / "other.zarr", request, cluster=scheduler)


def test_a_file_and_a_table_in_memory_stay_here_without_a_cluster(
    tmp_path: Path, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(scheduler):  # whoever can submit to its scheduler would read all rows
        monkeypatch.setattr(DaskExecutor, "__init__", None)
        path = ingested(table(), tmp_path, budget="9")
        dpdist.PrivatePCA(2, **ON_DISK).fit(path)
        dpdist.PrivatePCA(2, **LOSS).fit(table(5))


def test_a_collection_is_computed_by_the_given_client(scheduler: str) -> None:
    with Client(scheduler, set_as_default=False) as client:
        asked, rows = Mock(wraps=client.scheduler_info), da.from_array(table(), chunks=(50, 3))
        client.scheduler_info = asked
        dpdist.PrivatePCA(2, cluster=client, **LOSS).fit(rows)
        assert asked.called
        with pytest.raises(UsageError, match=r"Leave cluster out.*dask\.array"):
            dpdist.PrivatePCA(2, cluster=client, **LOSS).fit(table(1))
        seen = client.scheduler_info.call_count
        persons = dd.from_pandas(frame().assign(who=range(4000)), npartitions=3)
        with patch.object(Client, "persist", autospec=True, side_effect=Client.persist) as persisted:
            dpdist.PrivatePCA(2, cluster=client, **LOSS).fit(persons, groups="who")
        assert {call.args[0] for call in persisted.call_args_list} == {client}
        assert client.scheduler_info.call_count > seen
        with pytest.raises(UsageError, match=r"Pass cluster=dask\.distributed\.Client"):
            dpdist.PrivatePCA(2, cluster=dpdist.Cluster(scheduler), **LOSS).fit(rows)


def refused(*_: Any, **__: Any) -> Any:
    """Stand for where Dask computes by default."""
    raise AssertionError


def with_noisy_class(seed: int) -> pd.DataFrame:
    noise = np.random.default_rng(seed + 50).normal(size=4000)
    return frame(seed).assign(who=range(4000), sort=lambda held: (held["y"] + noise > 0) * 1)


@pytest.mark.parametrize("y", ["y", "sort"])
@pytest.mark.usefixtures("silent")
def test_persons_and_scores_of_a_dask_frame_are_computed_by_the_given_client(scheduler: str, y: str) -> None:
    held = with_noisy_class(3)[["a", "b", "c", y, "who"]]
    rows = dd.from_pandas(held, npartitions=3)
    kind = dpdist.PrivateRidge if y == "y" else partial(dpdist.PrivateLogisticRegression, classes=[0, 1])
    with Client(scheduler, set_as_default=False) as client, dask.config.set(scheduler=refused):
        model = kind(**{**CLEAR, "clip": None}, scale="private", cluster=client).fit(rows, y, groups="who")
        features = ["a", "b", "c"]
        assert model.score(rows[features], rows[y]) == pytest.approx(model.score(held[features], held[y]))
        assert np.array_equal(model.predict(held[[*features, y]]), model.predict(held[features]))


@pytest.mark.usefixtures("silent")
def test_lazy_labelled_rows_and_targets_are_computed_by_the_given_client(scheduler: str) -> None:
    held = with_noisy_class(4)
    columns, *others = (held[name].to_numpy() for name in (["a", "b", "c"], "y", "sort", "who"))
    lazy = xarray.DataArray(da.from_array(columns, chunks=(900, -1)), dims=("row", "column"))
    target, sort, units = (xarray.DataArray(da.from_array(each, chunks=900), dims="row") for each in others)
    with Client(scheduler, set_as_default=False) as client, dask.config.set(scheduler=refused):
        here = {**CLEAR, "clip": None, "scale": "private", "cluster": client}
        pca = dpdist.PrivatePCA(2, **here).fit(lazy, groups=units)
        assert pca.score(lazy) == pytest.approx(pca.score(columns))
        slopes = dpdist.PrivateRidge(**here).fit(lazy, target, groups=units)
        assert slopes.score(lazy, target) == pytest.approx(slopes.score(columns, others[0]))
        sides = dpdist.PrivateLogisticRegression(classes=[0, 1], **here).fit(lazy, sort, groups=units)
        assert sides.score(lazy, sort) == pytest.approx(sides.score(columns, others[1]))
        assert np.array_equal(sides.predict(lazy), sides.predict(columns))


def test_a_client_is_that_of_one_fit_and_of_no_other_thread(scheduler: str) -> None:
    with Client(scheduler, set_as_default=False) as client:
        with computing_on(client):
            assert named_client() is client
            assert dask.config.get("scheduler", None) is None
            other: list[object] = []
            thread = threading.Thread(target=lambda: other.append(named_client()))
            thread.start()
            thread.join()
            assert other == [None]
        assert named_client() is None


def test_a_client_that_can_be_listened_to_is_refused(
    tmp_path: Path, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ingested(table(), tmp_path, budget="9")
    with Client(scheduler) as client:
        told = client.scheduler_info() | {"workers": {"tcp://192.0.2.1:8786": {}}}
        monkeypatch.setattr(Client, "scheduler_info", lambda *_, **__: told)
        monkeypatch.setattr(Client, "submit", None)
        with pytest.raises(RefusedError, match=r"not encrypted.*pass insecure to dpdist\.Cluster"):
            dpdist.PrivatePCA(2, cluster=client, **ON_DISK).fit(path)


def test_lazy_scores_are_not_computed_for_a_frame() -> None:
    rows = dd.from_pandas(frame(), npartitions=3)
    fitted = dpdist.PrivatePCA(2, **LOSS).fit(rows)
    with config_context(transform_output="pandas"):
        with pytest.raises(UsageError, match=r"set_output\(transform='default'\)"):
            fitted.transform(rows)
        assert isinstance(fitted.transform(frame()), pd.DataFrame)
        lazy = fitted.set_output(transform="default").transform(rows)
    assert isinstance(lazy, da.Array)


# --- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pandas", "dask"])
@pytest.mark.usefixtures("silent")
def test_the_target_is_a_column_of_the_table(kind: str) -> None:
    rows: Any = frame() if kind == "pandas" else dd.from_pandas(frame(), npartitions=3)
    asked = dpdist.PrivateRidge(**LOSS)
    apart = clone(asked).fit(rows[["a", "b", "c"]], rows["y"])
    for X, y in ((rows, "y"), (rows, rows["y"]), (rows[["a", "b", "c"]], rows[["y"]])):  # noqa: N806
        same = clone(asked).fit(X, y)
        assert list(same.feature_names_in_) == ["a", "b", "c"]
        assert np.ravel(same.coef_) == pytest.approx(apart.coef_)
    both = clone(asked).fit(rows, rows["y"])
    assert np.asarray(both.predict(rows)) == pytest.approx(np.asarray(both.predict(rows[["a", "b", "c"]])))
    with pytest.raises(RowsError, match=r"named y\. Rename it in y, or leave it out of X: X\.drop"):
        clone(asked).fit(rows, -rows["y"])
    with pytest.raises(RowsError, match="no column 'z'"):
        clone(asked).fit(rows, "z")


def test_the_target_of_columns_named_by_numbers_is_taken_out() -> None:
    rows = pd.DataFrame(frame().to_numpy())
    assert dpdist.PrivateRidge(**LOSS).fit(rows, rows[3]).coef_.shape == (3,)
    scores = cross_val_score(dpdist.PrivateRidge(**LOSS), frame(), frame()["y"], cv=2)
    assert np.isfinite(scores).all()


def test_targets_of_persons_are_of_the_same_rows(register: Register) -> None:
    """Rows of a shuffle come in another order each time they are computed: joined to others they tell nothing."""
    whole = frame().assign(who=np.arange(4000) // 2)
    turns = iter(range(99))

    def part(_: int) -> pd.DataFrame:
        return whole.sample(frac=1, random_state=next(turns))

    rows = dd.from_map(part, range(1), meta=whole.head(0))
    asked = {**CLEAR, "clip": None, "scale": "private"}
    with dask.config.set(scheduler="sync"):
        found = dpdist.PrivateRidge(**asked).fit(rows, "y", groups="who")
        assert found.r2_ > 0.9
        fits = len(register._fits)
        for kind in (dpdist.PrivateRidge, partial(dpdist.PrivateLogisticRegression, classes=[0, 1])):
            with pytest.raises(RowsError, match="y must be a column of X"):
                kind(**asked).fit(rows[["a", "b", "who"]], rows["c"], groups="who")
    assert len(register._fits) == fits


def test_a_dask_target_of_other_rows_is_refused(register: Register) -> None:
    rows = dd.from_pandas(frame(), npartitions=3)
    other = dd.from_pandas(frame().iloc[::-1], npartitions=3, sort=False)
    asked = dpdist.PrivateRidge(**LOSS)
    with pytest.raises(DataError, match="other labels than that of X"):
        asked.fit(rows[["a", "b"]], other["y"])
    with pytest.raises(RowsError, match=r"3 partitions, and y 2"):
        asked.fit(rows[["a", "b"]], dd.from_pandas(frame(), npartitions=2)["y"])
    with pytest.raises(RowsError, match=r"Pass y\.compute\(\)"):
        asked.fit(frame()[["a", "b"]], rows["y"])
    with pytest.raises(DataError, match="other labels than that of X"):
        dpdist.PrivateLogisticRegression(classes=[False, True], **LOSS).fit(rows[["a", "b"]], other["y"] > 0)
    assert not register._fits


def test_a_partition_with_columns_in_another_order_is_refused(register: Register) -> None:
    def part(seed: int) -> pd.DataFrame:
        return frame(seed)[list("abcy" if seed == 0 else "ycba")]

    turned = dd.from_map(part, range(2), meta=frame().head(0), enforce_metadata=False)
    for read in (dpdist.PrivatePCA(2, **LOSS).fit, partial(dpdist.ingest_rows, rows="unused.zarr")):
        with pytest.raises(DataError, match=r"has the columns 'y', 'c', 'b', 'a'|columns of its metadata"):
            read(turned)
    assert not register._fits


def test_a_scale_that_saw_no_spread_is_told() -> None:
    far = pd.DataFrame(frame()[["a", "b"]] / 10 + 1960)
    with pytest.warns(BelowNoiseWarning, match=r"spread of 2 columns is lost in the noise.*: a, b\..*a public centre"):
        dpdist.PrivatePCA(1, epsilon=1, delta=1e-6, centre="none").fit(far)
    dpdist.PrivatePCA(1, epsilon=1, delta=1e-6, clip=5, centre=[1960, 1960], scale=[0.1, 0.1], budget_epsilon=9).fit(
        far
    )


# --- warnings and log -------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default::dpdist.BelowNoiseWarning")
def test_warnings_point_at_the_line_of_the_caller() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dpdist.PrivatePCA(3, **{**LOSS, "epsilon": 0.01, "name": "weak"}).fit(table(4))
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        make_pipeline(Normalizer(), dpdist.PrivatePCA(3, **{**LOSS, "epsilon": 0.01, "name": "weaker"})).fit(table(4))
    lines = {(each.filename, each.lineno) for each in caught}
    assert any(each.category is BelowNoiseWarning for each in caught)
    assert lines == {(__file__, line), (__file__, line + 2)}


def test_the_log_has_what_was_decided_and_charged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pd.DataFrame(table(), columns=["person", *"abcdef"]).to_csv(tmp_path / "t.csv", index=False)
    with caplog.at_level(logging.INFO, "dpdist"):
        dpdist.ingest_rows(tmp_path / "t.csv", tmp_path / "rows.zarr", budget=dpdist.PrivacyLoss.parse(2, 1e-6))
        assert "named like an identifier of persons: person" in caplog.text
        for fate in ("drawn and charged", "made before, nothing was charged"):
            dpdist.PrivatePCA(2, **ON_DISK).fit(tmp_path / "rows.zarr")
            assert caplog.messages[-1].endswith(f"epsilon 1, delta 1e-06 under replace-one: {fate}.")
        dpdist.PrivatePCA(2, **LOSS).fit(table(2))
        assert caplog.messages[-1].startswith("X was released as r-")
