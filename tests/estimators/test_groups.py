"""All rows of a privacy unit are protected together for rows in memory: ``groups`` of every estimator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import anndata
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pytest
import xarray as xr
import zarr
from scipy import sparse

import dpdist
from dpdist.core.errors import DataError, RefusedError, UsageError, WeakGuaranteeWarning
from dpdist.core.ingest.together import Gathered
from dpdist.core.pipeline import arrays
from dpdist.core.rows.units import Unit

Matrix = npt.NDArray[np.float64]
ASK: dict[str, Any] = {"epsilon": 30, "delta": 1e-6}
NAMES = list("abcd")
pytestmark = pytest.mark.filterwarnings("ignore:The same number of rows was released")


def visits(seed: int) -> tuple[Matrix, npt.NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    counts = np.maximum(1, random.lognormal(1.2, 1.0, 900).astype(int))
    who = np.repeat(np.arange(900), counts)
    rows = random.normal(size=(len(who), 4)) @ np.array([[1.0, 1, 0, 0], [0, 2, 1, 0], [0, 0, 1, 0], [1, 0, 0, 3]]) + 2
    order = random.permutation(len(who))
    return rows[order], who[order]


def weighted(rows: Matrix, who: npt.NDArray[np.int64], release: dpdist.Release) -> tuple[Matrix, float]:
    """Return the covariance of the rows with their weights, and the sum of the weights, by hand."""
    bound = release.bound
    x = (rows - np.array(bound.centre)) / np.array(bound.scale)
    x *= np.minimum(1, bound.shortened_norm / np.linalg.norm(x, axis=1))[:, None]
    augmented = np.column_stack([x, np.full(len(x), bound.constant * bound.unit)])
    weights = np.empty(len(x))
    for unit in np.unique(who):
        own = who == unit
        weights[own] = np.minimum(1.0, bound.clip_norm**2 / np.linalg.norm(augmented[own].T @ augmented[own]))
    mean = np.average(x, axis=0, weights=weights)
    scale = np.array(bound.scale)
    return (x - mean).T @ ((x - mean) * weights[:, None]) / weights.sum() * np.outer(scale, scale), weights.sum()


def tables(rows: Matrix, who: npt.NDArray[np.int64]) -> dict[str, tuple[Any, Any, str]]:
    """Return X, groups and the name of the unit in every form."""
    frame = pd.DataFrame(rows, columns=NAMES)
    text = np.array([f"P{unit}" for unit in who])
    store = zarr.create_array(zarr.storage.MemoryStore(), shape=rows.shape, chunks=(400, 4), dtype="float64")
    store[:] = rows
    labelled = xr.DataArray(rows, dims=("visit", "x"), coords={"subject": ("visit", text), "x": NAMES})
    cells = anndata.AnnData(rows, obs=pd.DataFrame({"donor": text}, index=[f"c{i}" for i in range(len(rows))]))
    return {
        "array": (rows, who, "group"), "array, text": (rows, text, "group"), "list": (rows, who.tolist(), "group"),
        "pandas": (frame.assign(id=text), "id", "id"), "series": (frame, pd.Series(who, name="person"), "person"),
        "polars": (pl.DataFrame(frame).with_columns(id=pl.Series(text)), "id", "id"),
        "xarray": (labelled, "subject", "subject"), "anndata": (cells, "donor", "donor"),
        "sparse": (sparse.csr_matrix(rows), who, "group"), "zarr": (store, who, "group"),
        "dask array": (da.from_array(rows, chunks=(500, 4)), who, "group"),
        "dask groups": (da.from_array(rows, chunks=(500, 4)), da.from_array(who, chunks=300), "group"),
        "dask frame": (dd.from_pandas(frame.assign(id=text), npartitions=3), "id", "id"),
    }  # fmt: skip


FORMS = list(tables(*visits(0)))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_rows_and_groups_gives_weighted_answers(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tempfile.mkdtemp())
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    rows, who = visits(1 + FORMS.index(form))
    data, groups, name = tables(rows, who)[form]
    fitted = dpdist.PrivateCovariance("none", **ASK).fit(data, groups=groups)
    release = fitted.release_
    assert release.unit == Unit(name)
    assert release.bound.unit_norm == "frobenius"
    expected, total = weighted(rows, who, release)
    assert release.row_count == pytest.approx(total, rel=0.15)
    assert total < 0.99 * len(rows)
    assert fitted.covariance_ == pytest.approx(expected, rel=0.1, abs=0.15)
    assert list(folder.iterdir()) == []  # rows were sorted there
    assert fitted.n_features_in_ == 4


def test_the_same_fit_is_free_and_other_groups_are_another_release() -> None:
    rows, who = visits(40)
    first = dpdist.PrivatePCA(**ASK).fit(rows, groups=who)
    again = dpdist.PrivatePCA(**ASK).fit(rows, groups=who)
    assert (first.fresh_, again.fresh_) == (True, False)
    assert np.array_equal(first.components_, again.components_)
    for others in (who[::-1].copy(), None):
        with pytest.raises(RefusedError):
            dpdist.PrivatePCA(**ASK).fit(rows, groups=others)


def test_components_and_slopes_of_units() -> None:
    rows, who = visits(41)
    model = dpdist.PrivateRidge(**ASK).fit(rows[:, :3], rows[:, 3] + rows[:, 0], groups=who)
    assert model.release_.unit == Unit("group")
    assert model.coef_.shape == (3,)
    pca = dpdist.PrivatePCA(2, **ASK).fit(pd.DataFrame(rows * 2, columns=NAMES).assign(id=who), groups="id")
    assert list(pca.feature_names_in_) == NAMES
    assert "weigh less" in pca.summary()


def test_one_call_takes_the_column_of_a_person() -> None:
    rows, who = visits(42)
    said: list[str] = []
    frame = pd.DataFrame(rows, columns=NAMES).assign(patient_id=who, customer_id=who + 1)
    pca = dpdist.private_pca(frame, **ASK, privacy_unit="patient_id", say=said.append)
    assert pca.release_.unit == Unit("patient_id")
    assert "All rows of one patient_id are protected together." in said[0]
    assert list(pca.feature_names_in_) == NAMES
    with pytest.raises(UsageError, match="leave max_rows out"):
        dpdist.private_pca(frame, **ASK, privacy_unit="patient_id", max_rows=3)
    with pytest.raises(DataError, match="no column 'who'"):
        dpdist.private_pca(frame, **ASK, privacy_unit="who")


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([1, 2], "different lengths"), ([None] * 5, "lacks the unit of row 0"), (["a", "", "b", "c", "d"], "row 1"),
        ([1.5] * 5, "rounding could merge"), ([[1]] * 5, "not 2 dimensions"), ("id", "no column 'id'"),
        ([np.nan, 1, 2, 3, 4], "lacks the unit of row 0"),
    ],
)  # fmt: skip
def test_unusable_groups_are_refused_before_anything_is_charged(groups: Any, words: str) -> None:
    rows = np.random.default_rng(3).normal(size=(5, 2))
    with pytest.raises(DataError, match=words):
        dpdist.PrivateCovariance(epsilon=1, delta=1e-6, clip=3, scale=[1, 2]).fit(rows, groups=groups)


def test_groups_of_another_order_or_released_as_numbers_are_refused() -> None:
    rows, who = visits(44)
    frame = pd.DataFrame(rows, columns=NAMES)
    shuffled = pd.Series(who, index=frame.index[::-1], name="id")
    with pytest.raises(DataError, match="rows of X and groups have different labels"):
        dpdist.PrivateCovariance(**ASK).fit(frame, groups=shuffled)
    frame = frame.assign(id=who)
    with pytest.raises(DataError, match=r"released as a number\. Pass its name instead: groups='id'"):
        dpdist.PrivateCovariance(**ASK).fit(frame, groups=frame["id"])


def test_a_path_has_its_own_unit_and_a_lazy_array_must_not_change(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="with which they were ingested"):
        dpdist.PrivateCovariance(epsilon=1, delta=1e-6).fit(tmp_path / "rows.zarr", groups=[1])
    random, (rows, who) = np.random.default_rng(5), visits(43)
    changing = da.from_array(rows, chunks=(500, 4)).map_blocks(lambda block: block + random.normal(), dtype=float)
    with pytest.raises(DataError, match="different rows on the second read"):
        dpdist.PrivateCovariance(**ASK).fit(changing, groups=who)


def test_a_covariance_without_a_mean_is_refused_before_it_is_charged() -> None:
    budget = dpdist.Budget(1)
    estimator = dpdist.PrivateCovariance(epsilon=1, clip=4, centre="none", neighbours="replace-one", budget=budget)
    with pytest.raises(UsageError, match="centre='private'"):
        estimator.fit(np.random.default_rng(0).normal(size=(400, 3)), groups=np.arange(400) // 4)
    assert "0 fits" in repr(budget)


@pytest.mark.parametrize("budgeted", [True, False])
@pytest.mark.parametrize("first", [None, "patient"])
def test_losses_of_rows_and_of_persons_are_not_added(first: str | None, budgeted: bool) -> None:
    rows = pd.DataFrame(np.random.default_rng(int(budgeted)).normal(size=(400, 3)) + (first is None))
    groups = pd.Series(np.arange(400) // 4, name="patient")
    budget = dpdist.Budget(10) if budgeted else None
    asked: dict[str, Any] = {"epsilon": 1, "clip": 4} | ({"budget": budget} if budgeted else {"budget_epsilon": 10})
    dpdist.PrivatePCA(1, **asked).fit(rows, groups=None if first is None else groups)
    with pytest.raises(RefusedError, match="all rows of one patient"):
        dpdist.PrivatePCA(1, **asked).fit(rows, groups=groups if first is None else None)
    # the same persons once more, whatever their rows
    again = rows[::-1], None if first is None else groups[::-1]
    dpdist.PrivatePCA(1, **asked | {"epsilon": 2}).fit(again[0], groups=again[1])


def test_a_column_named_like_a_person_is_warned_of_unless_it_is_the_unit() -> None:
    rows, who = visits(44)
    frame = pd.DataFrame(rows, columns=NAMES).assign(patient_id=who % 3)
    with pytest.warns(WeakGuaranteeWarning, match=r"patient_id.*pass groups='patient_id'.*leave it out"):
        dpdist.PrivatePCA(1, clip=30, epsilon=1).fit(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeakGuaranteeWarning)
        dpdist.PrivatePCA(1, clip=30, epsilon=1).fit(frame + 1, groups="patient_id")
        dpdist.PrivatePCA(1, clip=30, epsilon=1).fit(frame.drop(columns="patient_id") + 2)


@pytest.mark.parametrize("unit", [None, "patient"])
def test_one_call_takes_the_unit_of_a_schema(unit: str | None) -> None:
    random = np.random.default_rng(45)
    who = random.integers(0, 900, 4000)
    frame = pd.DataFrame(
        {
            "patient": [f"p{number}" for number in who], "age": random.integers(18, 90, 4000),
            "region": random.choice(["north", "south"], 4000), "seen": random.normal(3, 1, 4000),
        }
    )  # fmt: skip
    columns = [
        dpdist.Column("patient", "privacy unit"), dpdist.Column("age", "integer", range=(0, 120)),
        dpdist.Column("region", "category", categories=("north", "south")),
        dpdist.Column("seen", "number", range=(0, 10)),
    ]  # fmt: skip
    schema = dpdist.Schema(columns, "range")
    said: list[str] = []
    pca = dpdist.private_pca(frame, **ASK, schema=schema, privacy_unit=unit, say=said.append, correlation=False)
    assert pca.release_.unit == Unit("patient")
    assert list(pca.feature_names_in_) == ["age", "region=north", "region=south", "seen"]
    assert "All rows of one patient are protected together" in said[0]
    with pytest.raises(UsageError, match="another privacy unit, 'patient'"):
        dpdist.private_pca(frame, **ASK, schema=schema, privacy_unit="region")
    with pytest.raises(UsageError, match="All rows of a person in memory are kept"):
        dpdist.private_pca(frame, **ASK, schema=dpdist.Schema(columns, "range", max_rows=2))


def test_rows_that_belong_to_other_units_are_another_release() -> None:
    # the same rows, and the same groups in the same order, but another unit for each row
    rows, who = visits(46)
    order = np.random.default_rng(1).permutation(len(rows))
    for form in (np.asarray, lambda x: da.from_array(x, chunks=(500, 4))):
        shift = 0 if form is np.asarray else 1
        first = dpdist.PrivatePCA(2, **ASK).fit(form(rows[order] + shift), groups=who)
        with pytest.raises(RefusedError):
            dpdist.PrivatePCA(2, **ASK).fit(form(rows + shift), groups=who)
        again = dpdist.PrivatePCA(2, **ASK).fit(form(rows[order] + shift), groups=who)
        assert np.array_equal(first.components_, again.components_)
        assert not again.fresh_
    rechunked = dpdist.PrivatePCA(2, **ASK).fit(da.from_array(rows[order] + 1, chunks=(333, 4)), groups=who)
    assert not rechunked.fresh_


def test_what_is_known_of_groups_is_refused_before_it_is_charged() -> None:
    random = np.random.default_rng(47)
    large = random.normal(size=(16_800, 2000)).astype(np.float32)  # more than 256 MiB of float64
    few = random.normal(size=(1500, 3))
    budget = dpdist.Budget(1, 1e-6)
    asked: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "budget": budget}
    with pytest.raises(DataError, match=r"A group has more than 16777 rows.*Leave some of them out"):
        dpdist.PrivatePCA(1, clip=100, **asked).fit(large, groups=np.zeros(len(large), np.int64))
    with pytest.raises(RefusedError, match=r"at most 1500, and the noise on the sum of their weights .*smaller clip"):
        dpdist.PrivateCovariance(clip=30, scale=[1.0] * 3, **asked).fit(few, groups=np.arange(1500))
    with pytest.raises(RefusedError, match="privacy units; the table has 1500 rows"):
        dpdist.PrivatePCA(1, scale="private", **asked).fit(few, groups=np.arange(1500) // 10)
    with pytest.raises(DataError, match="masked"):
        dpdist.PrivatePCA(1, **asked).fit(few, groups=np.ma.masked_less(np.arange(1500), 3))
    assert "0 fits" in repr(budget)


def test_a_private_scale_of_units_has_the_mean_by_default() -> None:
    rows, who = visits(48)
    model = dpdist.PrivatePCA(2, clip="private", scale="private", correlation=True, **ASK).fit(rows, groups=who)
    assert model.release_.row_sum is not None
    assert "no mean was released" not in model.summary()
    covariance = dpdist.PrivateCovariance.from_release(model.release_)
    assert np.abs(covariance.location_ - rows.mean(axis=0)).max() < 0.5


def test_groups_of_a_dask_dataframe_are_those_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # the first column says whose row it is; a shuffle orders rows, and each choice of columns, anew when it is computed
    wrong: list[int] = []

    class Spied(Gathered):
        def __init__(self, units: Any, *others: Any) -> None:
            self.owners = units[0]
            super().__init__(units, *others)

        def append(self, rows: Any, start: int) -> Any:
            own = np.floor(rows[:, 0]).astype(int)
            wrong.append(int((own != self.owners[start : start + len(rows)]).sum()))
            return super().append(rows, start)

    monkeypatch.setattr(arrays, "Gathered", Spied)
    random = np.random.default_rng(49)
    schema = dpdist.Schema(
        [
            dpdist.Column("patient", "privacy unit"), dpdist.Column("a", "number", range=(0, 601)),
            dpdist.Column("b", "number", range=(-9, 9)), dpdist.Column("k", "ignored"),
        ]
    )  # fmt: skip
    for number, schedule in enumerate(("synchronous", "threads")):
        who = random.integers(0, 600, 3000)
        frame = pd.DataFrame({"a": who + random.uniform(0, 0.9, 3000), "b": random.normal(size=3000)})
        frame = frame.assign(k=random.integers(0, 99, 3000), patient=who)
        lazy = dd.from_pandas(frame, npartitions=4)
        with dask.config.set(scheduler=schedule):
            forms = lazy.shuffle("k", npartitions=3), lazy.sort_values("k")
            dpdist.PrivateCovariance(**ASK).fit(forms[number], groups="patient")
            dpdist.private_pca(forms[number], **ASK, clip=900, correlation=False, schema=schema, budget_epsilon=99)
            for groups in (frame["patient"], lazy["patient"], who):
                with pytest.raises(DataError, match="groups='NAME'"):
                    dpdist.PrivateCovariance(**ASK).fit(lazy[["a", "b"]], groups=groups)
            with pytest.raises(DataError, match="groups='NAME'"):
                dpdist.PrivateCovariance(**ASK).fit(lazy[["a", "b"]].values, groups=who)
    assert len(wrong) > 3
    assert not any(wrong)


def test_a_unit_that_is_missing_by_the_schema_or_of_several_columns_is_refused() -> None:
    random = np.random.default_rng(50)
    frame = pd.DataFrame(random.normal(size=(400, 2)), columns=["a", "b"])
    frame = frame.assign(patient=np.where(np.arange(400) % 3, np.arange(400) // 4, -9), site=1)
    numbers = [dpdist.Column(name, "number", range=(-5, 5)) for name in "ab"]
    unit, site = dpdist.Column("patient", "privacy unit"), dpdist.Column("site", "privacy unit")
    schema = dpdist.Schema([unit, *numbers], others="ignored", missing_values=[-9])
    with pytest.raises(DataError, match=r"patient of row 0 .* is missing, by the schema"):
        dpdist.private_pca(frame, **ASK, schema=schema)
    with pytest.raises(UsageError, match="a privacy unit of one column"):
        dpdist.private_pca(frame, **ASK, schema=dpdist.Schema([unit, site, *numbers]))
    with pytest.raises(UsageError, match=r"declares a privacy unit\. Leave each_row_is_a_person out"):
        dpdist.private_pca(frame, **ASK, schema=schema, each_row_is_a_person=True)


KILLED = """
import os, signal, sys
import numpy as np
import dpdist
from dpdist.core.pipeline import arrays
arrays.compute = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
rows = np.random.default_rng(0).normal(size=(20_000, 5))
dpdist.PrivateCovariance(epsilon=9, delta=1e-6, clip=10, scale="private").fit(rows, groups=np.arange(20_000) // 7)
"""


def test_a_killed_fit_leaves_no_rows_on_a_disk(tmp_path: Path) -> None:
    """It dies after the rows of each unit were stored together, and before they are summed."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    died = subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert list(tmp_path.iterdir()) == []
