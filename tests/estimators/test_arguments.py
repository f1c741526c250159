"""An argument of a usual wrong type is refused with what to pass, and labels are never ignored."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr

import dpdist
from dpdist.core.errors import DpdistError, UsageError
from dpdist.estimators.checked import RowsError

CELL = "73519"


def values(rows: int = 4000, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, 3)) * [3, 2, 1]


pytestmark = [
    pytest.mark.filterwarnings("ignore:The same number of rows was released"),
    pytest.mark.usefixtures("elsewhere"),
]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in another folder: a refusal may write the draft of a schema there."""
    monkeypatch.chdir(tmp_path)


def frame(seed: int = 0) -> pd.DataFrame:
    return pd.DataFrame(values(seed=seed), columns=list("abc"))


class OnAnotherDevice:
    """A tensor that NumPy cannot read."""

    shape = (9, 2)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(f"cannot convert {CELL}")


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a Series": (lambda: frame().a, r"pandas\.Series.*frame\[\['a', 'b'\]\]"),
    "a Series of Dask": (lambda: dd.from_pandas(frame(), npartitions=2).a, r"pass a DataFrame"),
    "a Series of polars": (lambda: pl.Series([1.0, 2.0]), "pass a DataFrame"),
    "a delayed value": (dask.delayed(frame), r"Pass X\.compute\(\)"),
    "a bag": (lambda: dask.bag.from_sequence([{"a": 1}], npartitions=1), r"X\.to_dataframe\(\)"),
    "groups": (lambda: frame().groupby("a"), "that was grouped"),
    "parts of a file": (lambda: pd.read_csv(io.StringIO("a,b\n1,2\n"), chunksize=1), r"pandas\.concat\(X\)"),
    "a reader": (lambda: pa.table({"a": [1.0]}).to_reader(), r"X\.read_all\(\)"),
    "records": (lambda: [{"a": 1, "b": 2}] * 9, r"pandas\.DataFrame\(X\)"),
    "a dictionary": (lambda: {"a": [1, 2]}, r"pandas\.DataFrame\(X\)"),
    "a structured array": (lambda: np.zeros(9, dtype=[("a", float), ("b", float)]), r"pandas\.DataFrame\(X\)"),
    "a generator": (lambda: (row for row in values()), r"list\(X\)"),
    "a matrix": (lambda: np.eye(3).view(np.matrix), r"numpy\.asarray\(X\)"),
    "None": (lambda: None, "NoneType.*Pass a DataFrame"),
    "bytes": (lambda: b"ab", "of type bytes"),
    "an open file": (lambda: io.StringIO("a,b\n1,2"), r"pandas\.read_csv\(X\)"),
    "a class": (lambda: pd.DataFrame, "of type type"),
    "an array elsewhere": (OnAnotherDevice, r"OnAnotherDevice.*numpy\.asarray\(X, dtype=float\)"),
    "rows of many lengths": (lambda: [[1, 2], [3]], "rows of different lengths"),
    "text": (lambda: np.full((9, 3), CELL, dtype=np.dtypes.StringDType()), "not a number"),
    "Arrow's other types": (lambda: pa.table({"a": pa.array(["x"], pa.string_view()), "b": [1]}), "non-numeric.*'a'"),
    "a query that fails": (lambda: pl.DataFrame({"a": [1]}).lazy().select(pl.col("zz")), "ColumnNotFoundError"),
    "an unknown width": (
        lambda: da.from_array(values(9))[:, da.from_array(np.array([True, True, False]))], "compute_chunk_sizes",
    ),
    "names of several types": (lambda: frame().set_axis(["a", 1, 2], axis=1), r"columns\.astype\(str\)"),
    "names that repeat": (lambda: frame().set_axis(list("aba"), axis=1), "several columns of the name 'a'"),
    "no columns": (pd.DataFrame, "has no columns"),
    "words on Dask": (lambda: dd.from_pandas(frame().assign(a="x"), npartitions=2), "non-numeric columns: 'a'"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_table_is_refused_by_every_estimator_with_what_to_pass(kind: str) -> None:
    make, said = WRONG[kind]
    fitted = dpdist.PrivatePCA(1, epsilon=9, delta=1e-6, clip=9).fit(values())
    asked: dict[str, Any] = {"epsilon": 9, "delta": 1e-6, "clip": 9}
    for use in (dpdist.PrivatePCA(1, **asked).fit, dpdist.PrivateCovariance(**asked).fit, fitted.transform,
                fitted.inverse_transform, lambda x: dpdist.PrivateRidge(**asked).fit(x, values()[:, 0])):  # fmt: skip
        with pytest.raises(RowsError, match=said) as caught:
            use(make())
        assert CELL not in str(caught.value)


@pytest.mark.parametrize("kind", WRONG)
def test_no_function_raises_an_error_of_a_library_for_it(kind: str, tmp_path: Path) -> None:
    make, _ = WRONG[kind]
    asked: dict[str, Any] = {"epsilon": 9, "delta": 1e-6}
    uses: list[Callable[[Any], object]] = [
        lambda x: dpdist.private_pca(x, say=lambda _: None, **asked),
        lambda x: dpdist.release_matrix(x, tmp_path / "m.zarr", frobenius=1, ledger=tmp_path / "m.ledger", **asked),
        lambda x: dpdist.register_rows(x, tmp_path / "r.zarr"),
        dpdist.open_rows, dpdist.open_release, dpdist.open_model, dpdist.open_matrix, dpdist.inspect_path,
        dpdist.Schema.read, dpdist.Ledger, dpdist.area_scale,
        lambda x: dpdist.combine_releases([x], tmp_path / "sum.zarr"),
        lambda x: dpdist.PrivatePCA(1, clip=x, **asked).fit(values()),
        lambda x: dpdist.PrivatePCA(1, clip=9, mechanism=x, **asked).fit(values()),
        lambda x: dpdist.PrivatePCA(1, clip=9, whiten=x, **asked).fit(values()),
        lambda x: dpdist.PrivatePCA(1, clip=9, missing=x, **asked).fit(values()),
    ]  # fmt: skip
    for use in uses:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                use(make())
            except DpdistError as error:
                assert CELL not in str(error)  # noqa: PT017 - some calls succeed


def test_one_call_takes_rows_of_dask_and_xarray(capsys: pytest.CaptureFixture[str]) -> None:
    table = frame(1).assign(d=True, e=frame(2).a)
    tables = [
        dd.from_pandas(table, npartitions=3),
        xr.Dataset({"a": ("t", values(seed=3)[:, 0]), "b": ("t", values(seed=4)[:, 1])}),
        xr.DataArray(values(seed=5), dims=("t", "x")),
    ]  # fmt: skip
    for given in tables:
        pca = dpdist.private_pca(given, epsilon=50, delta=1e-6, n_components=1)
        assert pca.components_.shape[0] == 1
    assert "The table: 5 columns." in capsys.readouterr().out
    with pytest.raises(UsageError, match="person"):
        dpdist.private_pca(dd.from_pandas(table.assign(patient=1), npartitions=2), epsilon=1, delta=1e-6)
    with pytest.raises(DpdistError, match="'word'"):
        dpdist.private_pca(dd.from_pandas(table.assign(word="x"), npartitions=2), epsilon=1, delta=1e-6)


def test_a_path_that_is_none_is_refused_in_words() -> None:
    for path in ("", "a\0b", "a" * 300):
        for use in (dpdist.open_rows, dpdist.Ledger, dpdist.Schema.read, dpdist.inspect_path):
            with pytest.raises(UsageError, match="A path is empty"):
                use(path)


def test_a_score_quotes_no_cell_of_the_targets() -> None:
    x = values()
    model = dpdist.PrivateRidge(epsilon=9, delta=1e-6, clip=9).fit(x, x[:, 0] + x[:, 1])
    for y in (np.full(len(x), f"x{CELL}"), np.full(len(x), 73519j), x, [float(CELL)], frame().assign(a=CELL)):
        with pytest.raises(RowsError) as caught:
            model.score(x, y)
        assert CELL not in str(caught.value)


def test_labels_of_a_public_vector_are_the_columns_in_their_order() -> None:
    right = pd.Series({"a": 3.0, "b": 2.0, "c": 1.0})
    asked: dict[str, Any] = {"epsilon": 9, "delta": 1e-6, "clip": 3}
    found = dpdist.PrivatePCA(1, scale=right, **asked).fit(frame())
    assert list(found.scale_) == [3, 2, 1]
    for given in ({"scale": right[::-1]}, {"centre": right[::-1]}, {"centre": {"centre": right[::-1], "scale": right}}):
        with pytest.raises(UsageError, match=r"\.loc\[list\(X\.columns\)\]"):
            dpdist.PrivatePCA(1, **asked, **given).fit(frame(1))
    with pytest.raises(UsageError, match=r"scale\.to_numpy\(\)"):
        dpdist.PrivatePCA(1, scale=right, **asked).fit(values(seed=1))


def test_columns_of_an_array_with_labels_are_those_of_the_fit_in_their_order() -> None:
    field = xr.DataArray(
        np.random.default_rng(3).normal(size=(4000, 2, 2)), dims=("time", "lat", "lon"),
        coords={"lat": [10.0, 20.0], "lon": [1.0, 2.0]},
    )  # fmt: skip
    fitted = dpdist.PrivatePCA(2, epsilon=99, delta=1e-6, clip=9).fit(field)
    assert fitted.transform(field).shape == (4000, 2)
    assert fitted.transform(np.asarray(field).reshape(-1, 4)).shape == (4000, 2)
    for other in (field.isel(lat=[1, 0]), field.assign_coords(lat=[50.0, 60.0]), field.transpose("time", "lon", "lat")):
        for use in (fitted.transform, fitted.score_samples):
            with pytest.raises(RowsError, match="the fitted rows, or another order of them"):
                use(other)
        with pytest.raises(DpdistError, match="the fitted rows, or another order of them"):
            fitted.to_xarray(other)
    weights = xr.DataArray(np.ones((2, 2)), dims=("lat", "lon"), coords={"lat": [20.0, 10.0]})
    with pytest.raises(DpdistError, match="scale has other labels along 'lat' than X"):
        dpdist.PrivatePCA(2, epsilon=99, delta=1e-6, clip=9, scale=weights).fit(field)
    scores = fitted.transform(field)
    with pytest.raises(RowsError, match="another order than the components"):
        fitted.inverse_transform(scores.isel(component=[1, 0]))


def test_targets_have_the_labels_of_the_rows_in_their_order() -> None:
    x = frame(7)
    asked: dict[str, Any] = {"epsilon": 9, "delta": 1e-6, "clip": 9}
    y = x.a + x.b
    for other in (y[::-1], y.set_axis(range(1, len(y) + 1))):
        with pytest.raises(RowsError, match=r"y\.loc\[X\.index\]"):
            dpdist.PrivateRidge(**asked).fit(x, other.rename("y"))
    assert dpdist.PrivateRidge(**asked).fit(x[::-1], y[::-1].rename("y")).coef_.shape == (3,)
