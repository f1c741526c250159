"""Arrays of xarray in and out: fields of several dimensions, several variables, and the areas of cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr

import dpdist
from dpdist import PrivateCovariance, PrivatePCA, UsageError

N, LAT, LON = 60, [0.0, 60.0], [5.0, 6.0, 7.0]
LOSS: dict[str, Any] = {"epsilon": 10**6, "delta": 1e-6, "clip": 40}


def fields(lazy: bool = False) -> xr.Dataset:
    """Return temperatures (time, lat, lon) and one pressure (time), with labels of rows that are nobody's business."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(N, 2, 3)) * np.arange(1, 7).reshape(2, 3)
    found = xr.Dataset(
        {"tas": (("time", "lat", "lon"), values, {"units": "K"}), "ps": ("time", rng.normal(size=N))},
        coords={
            "time": np.arange(N), "lat": ("lat", LAT, {"units": "degrees_north"}), "lon": LON, "run": 3,
            "land": (("lat", "lon"), np.eye(2, 3)), "who": ("time", np.arange(N)),
        },
    )  # fmt: skip
    return found.chunk({"time": 25, "lat": 1, "lon": 2}) if lazy else found


def flat(data: xr.Dataset) -> Any:
    return np.hstack([np.asarray(data.tas).reshape(N, 6), np.asarray(data.ps)[:, None]])


@pytest.mark.parametrize("lazy", [False, True])
def test_a_field_comes_out_as_it_came_in(lazy: bool) -> None:
    field = fields(lazy).tas
    found = PrivatePCA(2, **LOSS, centre="private").fit(field)
    laid = found.to_xarray(field.isel(time=slice(1)))
    assert laid.components.dims == ("component", "lat", "lon")
    assert laid["mean"].dims == laid["scale"].dims == ("lat", "lon")
    assert set(laid.coords) == {"component", "lat", "lon", "land"}  # labels of columns, and none of rows
    assert np.array_equal(laid.components.sel(lat=60, lon=6), found.components_[:, 4])
    assert np.array_equal(laid["mean"].values.reshape(-1), found.mean_)
    scores = found.transform(field)
    assert isinstance(scores.data, da.Array) is lazy
    assert list(scores.component.values) == list(laid.component.values)
    # the scores are what a person computes from the labels alone
    by_hand = ((field - laid["mean"]) * laid.components).sum(("lat", "lon"))
    assert np.allclose(scores, by_hand.transpose("time", "component"))


@pytest.mark.parametrize("lazy", [False, True])
def test_the_variables_of_a_dataset_stand_side_by_side(lazy: bool) -> None:
    data = fields(lazy)
    found = PrivateCovariance(**LOSS, shrinkage="none").fit(data)
    assert list(found.feature_names_in_) == [*(f"tas[{place}]" for place in range(6)), "ps"]
    rows = flat(data)
    assert np.allclose(found.covariance_, np.cov(rows.T, bias=True), atol=0.5)
    pca = PrivatePCA.from_release(found.release_, 2)
    laid = pca.to_xarray(data)
    assert laid.tas_components.dims == ("component", "lat", "lon")
    assert laid.ps_components.dims == ("component",)
    assert np.array_equal(laid.ps_components, pca.components_[:, 6])
    assert np.allclose(pca.transform(data), (rows - pca.mean_) @ pca.components_.T)


def test_a_model_of_rows_that_were_ingested_comes_out_so_too(tmp_path: Path) -> None:
    data = fields(lazy=True)
    table = dpdist.ingest_rows(data, tmp_path / "rows.zarr", budget=dpdist.PrivacyLoss.parse("1000000", "1e-6"))
    request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse("1000000", "1e-6"), 40.0)
    dpdist.release_rows(table.path, tmp_path / "release.zarr", request)
    dpdist.fit_components(tmp_path / "release.zarr", tmp_path / "model.zarr", 2)
    model = dpdist.open_model(tmp_path / "model.zarr")
    laid = model.to_xarray(data)
    assert np.array_equal(laid.tas_components.sel(lat=0, lon=7), model.components.components[:, 2])
    assert list(laid.component.values) == [1, 2]
    for like, said in ((data.tas, "7 columns"), (flat(data), "DataArray or a Dataset")):
        with pytest.raises(UsageError, match=said):
            model.to_xarray(like)


def test_columns_count_by_the_area_of_their_cells() -> None:
    field = fields().tas
    by = dpdist.area_scale(field)
    assert np.allclose(by, [1, 1, 1, 2**0.5, 2**0.5, 2**0.5])
    found = PrivatePCA(6, **LOSS, scale=by).fit(field)
    weighed = np.asarray(field).reshape(N, 6) * np.sqrt([1, 1, 1, 0.5, 0.5, 0.5])
    exact = np.linalg.eigvalsh(weighed.T @ weighed / N)[::-1]
    assert np.allclose(np.asarray(found.explained_variance_), exact, atol=0.5)
    assert np.array_equal(found.to_xarray(field)["scale"].values.reshape(-1), by)
    named = field.assign_coords(area=(("lat", "lon"), [[4.0, 4, 2], [1, 1, 1]])).assign_attrs(
        cell_measures="area: area"
    )
    assert np.allclose(dpdist.area_scale(named) ** -2.0, np.array([4, 4, 2, 1, 1, 1]) / 4)
    curved = field.drop_vars("lat").assign_coords(
        lat2=(("lat", "lon"), [[0.0, 0, 60], [60, 0, 0]], {"standard_name": "latitude"})
    )
    assert np.allclose(dpdist.area_scale(curved) ** -2.0, [1, 1, 0.5, 0.5, 1, 1])


def test_areas_that_nobody_stated_are_not_guessed() -> None:
    field = fields().tas
    beyond = field.assign_coords(lat=("lat", [0.0, 95.0], {"units": "degrees_north"}))
    nothing = field.assign_coords(area=(("lat", "lon"), np.eye(2, 3))).assign_attrs(cell_measures="area: area")
    for given, said in (
        (fields(), "'ps' has no coordinates of latitude"),
        (field.drop_vars("lat"), "no coordinates of latitude"),
        (field.assign_coords(other=field.lat), "2 coordinates of latitude"),
        (beyond, "beyond the poles"),
        (nothing, "no area"),
        (np.ones((3, 4)), "DataArray or a Dataset"),
    ):
        with pytest.raises(UsageError, match=said):
            dpdist.area_scale(given)
