"""PrivateRidge: one release of X and y together, and every regression among its columns."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge
from support.estimator_scene import NAMES, formed, ingested

from dpdist import Budget, PrivateCovariance, PrivateRidge
from dpdist.answers.regression import regressions
from dpdist.core.errors import BelowNoiseError, BelowNoiseWarning, DataError, UsageError
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.register import Register
from dpdist.report.answers import between
from dpdist.report.answers import regression as regression_text

pytestmark = pytest.mark.filterwarnings("ignore:The same number of rows was released")
Floats = npt.NDArray[np.float64]
FINE: dict[str, Any] = {"epsilon": 10**5, "delta": 1e-6, "clip": 9.0, "budget_epsilon": 10**6, "grid_bits": 20}


def rows_of(n: int = 600) -> tuple[Floats, Floats]:
    random = np.random.default_rng(5)
    x = random.normal(size=(n, 7))
    return x, 2 + x @ np.linspace(1, -1, 7) + random.normal(size=n)


def known(x: Floats, y: Floats, ridge: float) -> Ridge:
    whole = np.column_stack([x, y])
    factor = np.minimum(1, 9 / np.linalg.norm(whole, axis=1))[:, None]
    return Ridge(alpha=ridge).fit(x * factor, y * factor[:, 0])


@pytest.mark.parametrize(
    "form", ["pandas", "csr", "dask", "dask, unknown rows", "xarray of dask", "anndata, sparse", "zarr"]
)
def test_every_form_of_x_gives_the_ridge_of_its_rows(form: str, tmp_path: Path) -> None:
    x, y = rows_of()
    given = formed(form, x, tmp_path)
    targets: Any = da.from_array(y, chunks=41) if "unknown rows" in form else y
    if "unknown rows" in form:
        targets = targets[targets > -np.inf]
    found = PrivateRidge(**FINE).fit(given, targets)
    expected = known(x, y, found.ridge_)
    assert np.allclose(found.coef_, expected.coef_, atol=0.02)
    assert found.intercept_ == pytest.approx(expected.intercept_, abs=0.02)
    assert (found.n_features_in_, found.target_names_.tolist()) == (7, ["y"])
    told = found.predict(given)
    assert form == "xarray of dask" or hasattr(told, "dask") == ("dask" in form)
    assert np.allclose(np.asarray(told), x @ found.coef_ + found.intercept_)
    if form == "xarray of dask":
        assert told.dims == ("cell",)


def test_attributes_have_the_shapes_of_y() -> None:
    x, y = rows_of()
    frame = pd.DataFrame(x, columns=NAMES)
    one = PrivateRidge(**FINE).fit(frame, pd.Series(y, name="yield"))
    assert (one.coef_.shape, one.coef_intervals_.shape, one.intercept_intervals_.shape) == ((7,), (7, 2), (2,))
    assert one.coef_population_intervals_ is not None
    assert np.all(one.coef_population_intervals_[:, 0] < one.coef_intervals_[:, 0])
    assert one.release_.names == (*one.feature_names_in_, "yield") == (*NAMES, "yield")
    assert one.r2_intervals_[0] <= one.r2_ <= one.r2_intervals_[1]
    assert isinstance(one.intercept_, float)
    two = PrivateRidge(**FINE).fit(frame, pd.DataFrame({"a": y, "b": -y}))
    assert (two.coef_.shape, two.coef_intervals_.shape, np.shape(two.intercept_)) == ((2, 7), (2, 7, 2), (2,))
    assert two.intercept_population_intervals_ is not None
    assert two.intercept_population_intervals_.shape == two.intercept_intervals_.shape == (2, 2)
    assert two.r2_intervals_.shape == (2, 2)
    assert two.predict(frame).shape == two.predict(da.from_array(x, chunks=(100, 7))).shape == (600, 2)
    assert np.allclose(two.coef_[0], -two.coef_[1], atol=0.02)
    assert PrivateRidge(**FINE).fit(x, y[:, None]).coef_.shape == (1, 7)


def test_one_release_answers_every_regression_among_its_columns(register: Register) -> None:
    x, y = rows_of()
    found = PrivateRidge(**FINE).fit(x, y)
    charged = len(register._fits)
    other = PrivateRidge.from_release(found.release_, "c0", on=["y", "c3"])
    (expected,) = regressions(found.release_, [0], [7, 3])
    assert other.coef_.tolist() == [each.value for each in expected.coefficients]
    assert other.feature_names_in_.tolist() == ["y", "c3"]
    same = PrivateRidge.from_release(found.release_, "y")
    assert np.array_equal(same.coef_, found.coef_)
    assert not hasattr(same, "feature_names_in_")
    assert PrivateRidge.from_release(found.release_, ["y"]).coef_.shape == (1, 7)
    assert PrivateRidge.from_release(found.release_, "y", ridge=50).ridge_ == 50
    covariance = PrivateCovariance.from_release(found.release_)
    assert covariance.n_features_in_ == 8
    assert len(register._fits) == charged


def test_the_path_of_rows_charges_their_ledger_once(tmp_path: Path) -> None:
    x, y = rows_of()
    path = ingested(np.column_stack([x, y]), tmp_path)
    asked = PrivateRidge(epsilon=5, delta=1e-6, clip=9.0)  # at 1 the target is below the noise in 4 of 100 releases
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BelowNoiseWarning)
        found = asked.fit(path, "c7")
        first = found.coef_
        assert np.array_equal(asked.fit(path, "c7").coef_, first)
    assert found.n_features_in_ == 7
    assert found.predict(x).shape == (600,)
    assert "R²" in found._repr_html_()
    with pytest.raises(DataError, match=r"not the path of a rows\.zarr"):
        found.predict(path)
    with pytest.raises(DataError, match="name of one of its columns"):
        clone(asked).fit(path, y)
    with pytest.raises(UsageError, match=r"no column 'wealth' \(y\)\. There are: c0, c1"):
        clone(asked).fit(path, "wealth")
    assert len(Ledger(tmp_path / "rows.ledger").charges) == 1


NINE = np.ones((9, 2))


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (NINE, None, "requires y to be passed"),
        (NINE, "income", "no column 'income'"),
        (NINE, np.ones(8), "inconsistent numbers of samples"),
        (NINE, ["a"] * 9, "no number|not a number"),
        (NINE, np.full(9, np.nan), "NaN"),
        (NINE, np.ma.masked_equal(np.arange(9.0), 3), "masked"),
        (NINE, da.ones(9, chunks=3), "y is a Dask collection but X is not"),
        (da.ones((9, 2), chunks=3), np.ones(8), "X and y have different numbers of rows"),
        (pd.DataFrame({"y": np.ones(9)}), pd.Series(np.zeros(9), name="y"), "both have a column named y"),
        (np.ones((2, 3)), np.ones(2), "2 samples and 3 columns: fewer rows"),
    ],
)
def test_what_cannot_be_used_is_refused_and_costs_nothing(x: Any, y: Any, said: str, register: Register) -> None:
    with pytest.raises((DataError, ValueError), match=said):
        PrivateRidge(**FINE).fit(x, y)
    assert not register._fits


def test_other_values_and_ridges_are_refused_before_anything_is_charged(register: Register) -> None:
    x, y = rows_of()
    ridges: list[dict[str, Any]] = [{"ridge": "much"}, {"ridge": True}, {"ridge": None}]
    counts: list[dict[str, Any]] = [{"n_components": 0}, {"n_components": "all"}, {"n_components": 2, "ridge": 1.0}]
    for wrongs, said in ((ridges, "ridge must be a number"), (counts, "n_components")):
        for wrong in wrongs:
            with pytest.raises(UsageError, match=said):
                PrivateRidge(**{**FINE, **wrong}).fit(x, y)
    y[3] = np.inf
    with pytest.raises(DataError, match="NaN or infinity"):
        PrivateRidge(**FINE).fit(da.from_array(x, chunks=(100, 7)), da.from_array(y, chunks=50))
    assert not register._fits


def test_a_target_that_is_drowned_leaves_the_release() -> None:
    """A constant seems to vary with probability 0.025; in each of four fits with 4e-7."""
    x, y = rows_of()
    asked, said = PrivateRidge(epsilon=0.01, delta=1e-6, clip=9.0, budget_epsilon=1, budget_delta=1e-5), ""
    for number in range(4):
        try:
            clone(asked).set_params(name=f"draw-{number}").fit(x, 1e-6 * y)
        except BelowNoiseError as error:
            said = str(error)
            break
    assert "The release is kept" in said


def test_columns_that_may_explain_nothing_come_with_a_warning() -> None:
    """Each fit warns with probability 0.97 or more; none of four with one in a million at most."""
    x, _ = rows_of()
    y = 4 * np.random.default_rng(9).normal(size=600)
    asked = PrivateRidge(epsilon=1, delta=1e-6, clip=9.0, budget_epsilon=100, budget_delta=1e-5)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in range(4):
            asked.set_params(name=f"draw-{number}").fit(x, y)
    drowned = [str(each.message) for each in said if each.category is BelowNoiseWarning]
    assert any("may explain nothing of y" in text for text in drowned)


def test_a_ridge_says_how_much_of_the_slopes_of_least_squares_it_keeps() -> None:
    """The stated shrinkage is that of the exact moment of the clipped rows, and a fit below .9 warns.

    One slope has a standard deviation of .11, the mean of ten .035; that of the shrinkage is below .1 / 6.
    """
    random = np.random.default_rng(4)
    x = random.normal(size=(1500, 4))
    y = x @ [1.0, -1, 0.5, 0] + random.normal(size=1500)
    budget, models = Budget(100, "1e-4"), list[PrivateRidge]()
    for number in range(10):  # a name asks for another draw
        model = PrivateRidge(epsilon=1, delta=1e-6, clip=5.0, budget=budget, name=f"draw{number}")
        with pytest.warns(
            BelowNoiseWarning, match=r"not the slopes of least squares: the ridge keeps 0\.\d+ to 0\.\d+ of"
        ):
            models.append(model.fit(x, y))
    model = models[0]
    rows = np.column_stack([x, y])
    rows *= np.minimum(1, model.release_.bound.shortened_norm / np.linalg.norm(rows, axis=1))[:, None]
    about = rows[:, :4] - rows[:, :4].mean(axis=0)
    exact = about.T @ about
    kept = np.mean([np.diag(np.linalg.solve(exact + each.ridge_ * np.eye(4), exact)) for each in models], axis=0)
    assert kept.max() < 0.9
    shrinkage = [each.shrinkage_ for each in models if each.shrinkage_ is not None]
    assert len(shrinkage) == len(models)
    assert np.abs(np.mean(shrinkage, axis=0) - kept).max() < 0.1
    least = np.linalg.lstsq(np.column_stack([rows[:, :4], np.ones(1500)]), rows[:, 4])[0][:4]
    assert np.mean([each.coef_[0] for each in models]) / least[0] == pytest.approx(kept[0], abs=0.2)
    said = " ".join(regression_text(regressions(model.release_, [4], range(4))[0], model.release_).split())
    assert re.match(
        r"Regression of \S+ on 4 columns of rows clipped to norm [^,]+, SHRUNK by a ridge, which keeps", said
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", BelowNoiseWarning)
        large = PrivateRidge(epsilon=8, delta=1e-6, clip=4.0).fit(np.tile(x, (20, 1)) + 1e-9, np.tile(y, 20))
        parts = PrivateRidge.from_release(large.release_, "y", n_components=4)
    assert np.array_equal(np.asarray(large.shrinkage_), np.ones(4))
    assert parts.shrinkage_ is None


def test_no_interval_of_width_zero_is_printed() -> None:
    assert between((-0.068281, -0.068279)) == "-0.068281 .. -0.068279"
    assert between((1.0, 2.0)) == "1 .. 2"


def test_principal_components_are_another_way_to_regress() -> None:
    x, y = rows_of()
    found = PrivateRidge(n_components=7, **FINE).fit(x, y)
    assert (found.n_components_, found.ridge_) == (7, 0)
    assert np.allclose(found.coef_, known(x, y, 0).coef_, atol=0.02)
    some = PrivateRidge.from_release(found.release_, "y", n_components="auto")
    assert some.n_components_ == 7
    assert clone(some).n_components == "auto"
