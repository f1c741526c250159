"""Each kind of table gives the same answer as a NumPy array of its values, or a message with a remedy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray
import zarr

import dpdist
from dpdist import Column, PrivateCovariance, PrivatePCA, PrivateRidge, Schema, ingest_rows
from dpdist.answers.bias import clipped_rows
from dpdist.answers.regression import regressions
from dpdist.core.errors import DataError, UsageError
from dpdist.estimators.checked import RowsError

SECRET = 73519
VALUES = np.random.default_rng(0).integers(0, 50, (4000, 3))
FRAME = pd.DataFrame(VALUES, columns=list("abc"))
KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "pandas that may lack values": lambda frame: frame.convert_dtypes(),
    "categories": lambda frame: frame.astype("category"),
    "pandas of Arrow": lambda frame: frame.astype("int64[pyarrow]"),
    "polars": pl.from_pandas,
    "polars, lazy": lambda frame: pl.from_pandas(frame).lazy(),
    "Arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "a batch of Arrow": lambda frame: pa.RecordBatch.from_pandas(frame, preserve_index=False),
    "Dask": lambda frame: dd.from_pandas(frame, npartitions=3),
}


@pytest.fixture(scope="module")
def fitted() -> PrivatePCA:
    pca = PrivatePCA(1, epsilon=5, delta=1e-6, clip=100, budget_epsilon=50, budget_delta=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pca.fit(FRAME)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_has_the_same_scores_and_names(fitted: PrivatePCA, kind: str) -> None:
    found = np.asarray(fitted.transform(KINDS[kind](FRAME)))
    np.testing.assert_array_equal(found, np.asarray(fitted.transform(FRAME)))
    with pytest.raises(RowsError, match=r"names|columns of X differ"):
        fitted.transform(KINDS[kind](FRAME.rename(columns={"a": "other"})))
    if kind != "Dask":
        schema = Schema([Column("a", "integer", range=(0, 50)), Column("b", "integer")], others="ignored")
        mapped = np.asarray(schema.transform(KINDS[kind](FRAME)))
        np.testing.assert_array_equal(mapped, np.asarray(schema.transform(FRAME)))


@pytest.mark.parametrize("kind", [each for each in KINDS if each not in {"categories", "Dask"}])
def test_words_and_dates_are_refused_by_their_columns_and_no_cell_is_told(kind: str) -> None:
    for odd in ("secretword", pd.Timestamp("2020-01-01")):
        frame = FRAME.assign(a=SECRET, odd=odd)
        given = frame.convert_dtypes(dtype_backend="pyarrow") if kind == "pandas of Arrow" else KINDS[kind](frame)
        with pytest.raises(RowsError, match=r"non-numeric columns: 'odd' \(.*dpdist\.Schema") as caught:
            PrivatePCA(1, epsilon=5, delta=1e-6, clip=100, budget_epsilon=50, budget_delta=1e-4).fit(given)
        assert not any(cell in str(caught.value) for cell in (str(SECRET), "secretword", "2020"))


@pytest.mark.parametrize("kind", KINDS)
def test_ingest_takes_every_kind_and_a_schema_maps_it(tmp_path: Path, kind: str) -> None:
    if kind != "categories":
        ingest_rows(KINDS[kind](FRAME), tmp_path / "rows.zarr")
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "rows.zarr", mode="r")[:], VALUES)
    if kind in {"pandas of Arrow", "categories"}:
        return
    frame = FRAME.assign(word=np.where(FRAME.a > 20, "x", "y"), when=pd.Timestamp("2020-01-02"))
    columns = [Column("word", "category", categories=["x", "y"]), Column("b", "integer")]
    when = Column("when", "date", range=("2020-01-01", "2021-01-01"))
    made = ingest_rows(KINDS[kind](frame), tmp_path / "mapped.zarr", schema=Schema([*columns, when], others="ignored"))
    rows = zarr.open_array(tmp_path / "mapped.zarr", mode="r")[:]
    assert made.names == ("word=x", "word=y", "b", "when")
    wanted = np.stack([FRAME.a > 20, FRAME.a <= 20, FRAME.b, np.full(len(FRAME), 18263)], axis=1)
    np.testing.assert_array_equal(rows, wanted)
    with pytest.raises(DataError, match="'word'"):
        ingest_rows(KINDS[kind](frame), tmp_path / "no.zarr")


def test_ingested_missing_values_are_refused(tmp_path: Path) -> None:
    lacking = pl.DataFrame({"a": [1, None, 3], "b": [SECRET, 2, 3]})
    with pytest.raises(DataError, match=r"row 1 .*'a': the value is missing") as caught:
        ingest_rows(lacking, tmp_path / "no.zarr")
    assert str(SECRET) not in str(caught.value)
    with pytest.raises(UsageError, match=r"source\.write_h5ad\(FILE\)"):
        ingest_rows(anndata.AnnData(VALUES.astype("f4")), tmp_path / "no.zarr")


def test_rows_of_an_array_with_names_of_dimensions_are_along_the_one_that_is_named(tmp_path: Path) -> None:
    genes = xarray.DataArray(VALUES[:5].T, dims=("gene", "cell"))
    made = ingest_rows(genes, tmp_path / "rows.zarr", rows_dimension="cell")
    np.testing.assert_array_equal(zarr.open_array(made.path, mode="r")[:], VALUES[:5])
    with pytest.raises(UsageError, match=r"no dimension 'donor'.*'gene', 'cell'"):
        ingest_rows(genes, tmp_path / "no.zarr", rows_dimension="donor")
    with pytest.raises(UsageError, match="Only xarray objects"):
        ingest_rows(VALUES, tmp_path / "no.zarr", rows_dimension="cell")
    said: list[str] = []
    asked: dict[str, Any] = {"t.nc": {}, "t.zarr": {"variable": "v"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        xarray.Dataset({"v": genes}).to_netcdf(tmp_path / "t.nc", engine="h5netcdf")
        xarray.Dataset({"v": genes}).to_zarr(tmp_path / "t.zarr")
    for name, more in asked.items():
        for dimension, wanted in (("cell", VALUES[:5]), ("gene", VALUES[:5].T)):
            target = tmp_path / f"{name}-{dimension}.zarr"
            ingest_rows(tmp_path / name, target, rows_dimension=dimension, say=said.append, **more)
            np.testing.assert_array_equal(zarr.open_array(target, mode="r")[:], wanted)
            assert f"rows are along {dimension!r}" in said[-1]
    np.save(tmp_path / "t.npy", VALUES)
    with pytest.raises(UsageError, match=r"rows_dimension is for \.nc, \.zarr"):
        ingest_rows(tmp_path / "t.npy", tmp_path / "no.zarr", rows_dimension="cell")


WIDE = 2**53 + 1
INDEXED = pd.DataFrame({"a": [1.5, 2, 3], "b": [4.5, 5, 6]}, index=[2, 5, 7])
ASKED: dict[str, tuple[Callable[[], Any], str]] = {
    "a filtered index in Arrow": (lambda: pa.Table.from_pandas(INDEXED), "is a pandas index"),
    "an index that has a name": (lambda: pa.Table.from_pandas(INDEXED.rename_axis("id")), "'id' of the table is a"),
    "an index without metadata": (
        lambda: pl.from_pandas(INDEXED.reset_index(names="__index_level_0__")), "name of an index or a count",
    ),
    "an index read from CSV": (lambda: INDEXED.reset_index(names="Unnamed: 0"), "count of the rows: 'Unnamed: 0'"),
    "wide integers": (lambda: pd.DataFrame({"a": [WIDE, 4], "b": [1.5, 2]}), r"column 'a': .* beyond 2\^53"),
    "wide nullable integers": (
        lambda: pd.DataFrame({"a": pd.array([WIDE, 4], "Int64"), "b": [1.5, 2]}), r"beyond 2\^53",
    ),
    "wide integers as text": (lambda: pd.DataFrame({"a": [str(WIDE), "4"], "b": [1.5, 2]}), r"beyond 2\^53"),
    "observations of one name": (
        lambda: anndata.AnnData(np.eye(3, 2), obs=pd.DataFrame(index=list("aba"))), "duplicate observation names",
    ),
    "rows of one name": (
        lambda: xarray.DataArray(np.eye(3, 2), dims=("s", "g"), coords={"s": list("aba")}), "have the same 's'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_what_files_are_asked_is_asked_of_tables_in_memory(name: str) -> None:
    made, message = ASKED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # anndata warns of names that are not unique
        table = made()
    with pytest.raises(RowsError, match=message):
        PrivatePCA(1, epsilon=1, delta=1e-6, clip=9).fit(table)


def test_arrays_mean_what_their_attributes_say(tmp_path: Path) -> None:
    packed = {"x": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 1.0, "_FillValue": -9999}}
    given = xarray.Dataset({"x": (("p", "q"), np.arange(8).reshape(4, 2) * 0.1)})
    given.to_zarr(tmp_path / "t.zarr", encoding=packed, zarr_format=2)
    fit = PrivatePCA(1, epsilon=1, delta=1e-6, clip=9).fit
    with pytest.raises(RowsError, match=r"\(add_offset, scale_factor\)"):
        fit(zarr.open_group(tmp_path / "t.zarr")["x"])
    given.to_zarr(tmp_path / "plain.zarr", zarr_format=2)  # NaN stands for a missing value, and is one
    assert fit(zarr.open_group(tmp_path / "plain.zarr")["x"]).n_features_in_ == 2
    given["x"].attrs["valid_max"] = 0.5
    given.to_netcdf(tmp_path / "t.nc", engine="h5netcdf")
    with xarray.open_dataset(tmp_path / "t.nc", engine="h5netcdf") as read, pytest.raises(RowsError, match="NaN"):
        fit(read["x"])


def test_dates_are_no_target_and_floats_that_are_held_as_objects_are_floats() -> None:
    for y in (pd.to_datetime(["2020-01-01"] * 9), pd.to_timedelta(np.arange(9), "D")):
        with pytest.raises(RowsError, match="y contains dates or times"):
            PrivateRidge(epsilon=1, delta=1e-6, clip=9).fit(np.eye(9, 2), pd.Series(y))
    frame = pd.DataFrame({"a": pd.Series([1e17, 2e17, 3.0] * 9, dtype=object), "b": np.arange(27.0)})
    assert PrivatePCA(1, epsilon=9, delta=1e-6, clip=9).fit(frame).n_features_in_ == 2


# --- labelled arrays: fields of several dimensions, several variables, and the areas of cells

N, LAT, LON = 60, [0.0, 60.0], [5.0, 6.0, 7.0]
FINE: dict[str, Any] = {"epsilon": 10**6, "delta": 1e-6, "clip": 40}


def fields(lazy: bool = False) -> xarray.Dataset:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(N, 2, 3)) * np.arange(1, 7).reshape(2, 3)
    found = xarray.Dataset(
        {"tas": (("time", "lat", "lon"), values, {"units": "K"}), "ps": ("time", rng.normal(size=N))},
        coords={
            "time": np.arange(N), "lat": ("lat", LAT, {"units": "degrees_north"}), "lon": LON, "run": 3,
            "land": (("lat", "lon"), np.eye(2, 3)), "who": ("time", np.arange(N)),
        },
    )  # fmt: skip
    return found.chunk({"time": 25, "lat": 1, "lon": 2}) if lazy else found


@pytest.mark.parametrize("lazy", [False, True])
def test_a_field_comes_out_as_it_came_in(lazy: bool) -> None:
    field = fields(lazy).tas
    found = PrivatePCA(2, **FINE, centre="private").fit(field)
    laid = found.to_xarray(field.isel(time=slice(1)))
    assert laid.components.dims == ("component", "lat", "lon")
    assert laid["mean"].dims == laid["scale"].dims == ("lat", "lon")
    assert set(laid.coords) == {"component", "lat", "lon", "land"}  # labels of columns, and none of rows
    assert np.array_equal(laid.components.sel(lat=60, lon=6), found.components_[:, 4])
    assert np.array_equal(np.ravel(laid["mean"]), found.mean_)
    scores = found.transform(field)
    assert isinstance(scores.data, da.Array) is lazy
    assert list(scores.component.values) == list(laid.component.values)
    # the scores are what a person computes from the labels alone
    by_hand = ((field - laid["mean"]) * laid.components).sum(("lat", "lon"))
    assert np.allclose(scores, by_hand.transpose("time", "component"))


@pytest.mark.parametrize("lazy", [False, True])
def test_the_variables_of_a_dataset_stand_side_by_side(lazy: bool) -> None:
    data = fields(lazy)
    found = PrivateCovariance(**FINE, shrinkage="none").fit(data)
    assert list(found.feature_names_in_) == [*(f"tas[{place}]" for place in range(6)), "ps"]
    rows = np.hstack([np.asarray(data.tas).reshape(N, 6), np.asarray(data.ps)[:, None]])
    assert np.allclose(found.covariance_, np.cov(rows.T, bias=True), atol=0.5)
    pca = PrivatePCA.from_release(found.release_, 2)
    laid = pca.to_xarray(data)
    assert laid.tas_components.dims == ("component", "lat", "lon")
    assert laid.ps_components.dims == ("component",)
    assert np.array_equal(laid.ps_components, pca.components_[:, 6])
    assert np.allclose(pca.transform(data), (rows - pca.mean_) @ pca.components_.T)


def test_a_model_comes_out_so_too(tmp_path: Path) -> None:
    data = fields(lazy=True)
    PrivatePCA(2, **FINE, release=tmp_path / "release.zarr").fit(data)
    dpdist.fit_components(tmp_path / "release.zarr", tmp_path / "model.zarr", 2)
    model = dpdist.open_model(tmp_path / "model.zarr")
    laid = model.to_xarray(data)
    assert np.array_equal(laid.tas_components.sel(lat=0, lon=7), model.components.components[:, 2])
    assert list(laid.component.values) == [1, 2]
    for like, said in ((data.tas, "7 columns"), (np.ones((3, 7)), "DataArray or Dataset")):
        with pytest.raises(UsageError, match=said):
            model.to_xarray(like)


def test_columns_count_by_the_area_of_their_cells() -> None:
    field = fields().tas
    by = dpdist.area_scale(field)
    assert np.allclose(by, [1, 1, 1, 2**0.5, 2**0.5, 2**0.5])
    found = PrivatePCA(6, **FINE, scale=by).fit(field)
    weighed = np.asarray(field).reshape(N, 6) * np.sqrt([1, 1, 1, 0.5, 0.5, 0.5])
    exact = np.linalg.eigvalsh(weighed.T @ weighed / N)[::-1]
    assert np.allclose(np.asarray(found.explained_variance_), exact, atol=0.5)
    assert np.array_equal(np.ravel(found.to_xarray(field)["scale"]), by)
    named = field.assign_coords(area=(("lat", "lon"), [[4.0, 4, 2], [1, 1, 1]]))
    named = named.assign_attrs(cell_measures="area: area")
    assert np.allclose(dpdist.area_scale(named) ** -2.0, np.array([4, 4, 2, 1, 1, 1]) / 4)
    latitudes = (("lat", "lon"), [[0.0, 0, 60], [60, 0, 0]], {"standard_name": "latitude"})
    curved = field.drop_vars("lat").assign_coords(lat2=latitudes)
    assert np.allclose(dpdist.area_scale(curved) ** -2.0, [1, 1, 0.5, 0.5, 1, 1])


def test_areas_that_nobody_stated_are_not_guessed() -> None:
    field = fields().tas
    for given, said in (
        (fields(), "'ps' has no latitude coordinates"),
        (field.assign_coords(other=field.lat), "2 latitude coordinates"),
        (field.assign_coords(lat=("lat", [0.0, 95.0], {"units": "degrees_north"})), "beyond the poles"),
        (
            field.assign_coords(area=(("lat", "lon"), np.eye(2, 3))).assign_attrs(cell_measures="area: area"),
            "without area",
        ),
        (np.ones((3, 4)), "DataArray or Dataset"),
    ):
        with pytest.raises(UsageError, match=said):
            dpdist.area_scale(given)


def test_gaps_at_the_centre_are_told_of_rows_in_memory(tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    x = random.normal(50, 5, 20_000)
    rows = np.column_stack([np.where(random.random(20_000) < 0.5, np.nan, x), 2 * x + random.normal(size=20_000)])
    asked: dict[str, Any] = {"epsilon": 9, "delta": 1e-6, "budget": dpdist.Budget(90, "1e-4")}
    made = dpdist.PrivateCovariance(missing="centre", release=tmp_path / "r.zarr", **asked).fit(rows)
    for release in (made.release_, dpdist.open_release(tmp_path / "r.zarr")):
        assert "with any missing cells set to the centre, which weakens" in clipped_rows(release).describe()
        assert regressions(release, [1], [0])[0].coefficients[0].population_interval is None
    complete = dpdist.PrivateCovariance(**asked).fit(rows[~np.isnan(rows[:, 0])])
    assert complete.release_.schema is None


@pytest.mark.parametrize("lazy", [False, True])
def test_a_frame_of_the_source_is_read_by_the_schema_of_the_release(tmp_path: Path, *, lazy: bool) -> None:
    random = np.random.default_rng(7)
    frame = pd.DataFrame({
        "pay": np.exp(random.normal(10, 1, 3000)).round(2),
        "age": random.uniform(0, 120, 3000).round(1),
        "plan": random.choice(["basic", "plus"], 3000),
        "kept": random.choice([1.5, 2.5, np.nan], 3000),
    })  # fmt: skip
    frame.loc[::7, "age"] = np.nan
    schema = Schema([
        Column("pay", "number", transform="log"),
        Column("age", "number", range=(0, 100), missing="centre"),
        Column("plan", "category", categories=["basic", "plus"]),
        Column("kept", "number", missing="drop"),
    ])  # fmt: skip
    frame.to_csv(file := tmp_path / "people.csv", index=False)
    pca = dpdist.private_pca(file, epsilon=8, delta="1e-6", schema=schema, n_components=2, say=lambda _: None)
    by_path = pca.transform(tmp_path / "people.zarr")
    given: Any = dd.from_pandas(frame, npartitions=3) if lazy else frame
    held = frame["kept"].notna().to_numpy()
    np.testing.assert_allclose(np.asarray(pca.transform(given))[held], by_path[held], atol=1e-6)
    np.testing.assert_array_equal(
        pca.transform(frame.assign(more="x")[["more", "kept", "plan", "age", "pay"]]), pca.transform(frame)
    )
    encoded = schema.transform(frame[held].dropna())
    np.testing.assert_allclose(pca.transform(encoded), pca.transform(frame[held].dropna()))
    with pytest.raises(RowsError, match="X lacks columns of the source: pay"):
        pca.transform(frame[["age", "plan", "kept"]])
    with pytest.raises(ValueError, match=r"row 0 .*'plan'"):
        pca.transform(frame.assign(plan="other"))
    ridge = PrivateRidge.from_release(pca.release_, "age")
    np.testing.assert_allclose(ridge.predict(encoded.drop(columns="age")), ridge.predict(frame[held].dropna()))
    assert np.isfinite(np.asarray(ridge.predict(given))).all()
