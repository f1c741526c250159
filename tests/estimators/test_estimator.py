"""PrivatePCA and PrivateCovariance: the same integers for every container of rows, and scikit-learn's conventions."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import anndata
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from sklearn.base import clone
from support.estimator_scene import CLIP, COLUMNS, FORMS, NAMES, ROWS, formed, ingested, table
from support.folders import ROOT

from dpdist import Budget, PrivateCovariance, PrivatePCA, PrivateRidge
from dpdist.core.errors import BelowNoiseError, BelowNoiseWarning, DataError, RefusedError, UsageError
from dpdist.core.ledger.register import Register
from dpdist.core.rows import dataset
from dpdist.core.rows.rounding import entry_variances
from dpdist.core.runtime.cluster import Cluster
from dpdist.estimators import fit

pytestmark = pytest.mark.filterwarnings("ignore:The same number of rows was released")
LOSS: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": CLIP}
FINE: dict[str, Any] = {**LOSS, "grid_bits": 20}


def same(found: Any, other: Any) -> bool:
    """Whether two integer moments of independently rounded rows differ by rounding errors only."""
    on, _ = entry_variances(ROWS, FINE["grid_bits"])
    return bool(np.abs(found - other).max() < 8 * np.sqrt(2 * on))  # of a row, 4^20 cos²: a thousand times as much


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("neighbours", "centre"),
    [
        ("add-remove", "private"),
        ("replace-one", {"centre": np.full(COLUMNS, 0.5), "scale": np.arange(1, COLUMNS + 1)}),
    ],
)
def test_every_form_of_x_has_the_second_moment_of_its_rows_zarr(
    tmp_path: Path, scheduler: str, centre: Any, neighbours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", 50 * COLUMNS * 8)  # several chunks
    asked = {**FINE, "centre": centre, "neighbours": neighbours, "budget_epsilon": 1000}
    rows = table()
    path = ingested(rows, tmp_path)
    stored = PrivatePCA(2, **{**asked, "budget_epsilon": None}, cluster=Cluster(scheduler)).fit(path).release_
    for name in FORMS:
        folder = tmp_path / name
        folder.mkdir()
        found = PrivatePCA(2, **asked).fit(formed(name, rows, folder)).release_
        assert same(found.lattice, stored.lattice), name
        assert (found.rows, found.bound, found.noise) == (stored.rows, stored.bound, stored.noise)
    assert stored.rows == (ROWS if neighbours == "replace-one" else None)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "longdouble"])
def test_other_types_are_summed_by_their_values(dtype: str) -> None:
    rows = np.abs(table()).astype(dtype)
    asked = PrivatePCA(2, **FINE, budget_epsilon=1000)
    found = asked.fit(rows).release_.lattice
    for other in (rows.astype(np.float64), da.from_array(rows, chunks=(70, 2))):
        assert same(asked.fit(other).release_.lattice, found)


@pytest.mark.usefixtures("silent")
def test_blocks_longer_than_one_exact_product_are_cut() -> None:
    rows = table()
    rows = rows[np.linalg.norm(rows, axis=1) < CLIP]
    z = rows * (2**24 / CLIP)
    asked = PrivatePCA(1, epsilon=1000, delta=1e-6, clip=CLIP, grid_bits=24, budget_epsilon=10000)
    for given in (rows, da.from_array(rows, chunks=(100, COLUMNS))):
        found = asked.fit(given).release_
        assert found.bound.exact_rows == 32 < len(rows)  # so many fill 53 bits
        assert np.abs(found.lattice - z.T @ z).max() < 8 * np.sqrt(entry_variances(len(rows), 24)[0])


def test_without_noise_to_speak_of_components_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    basis = np.linalg.qr(generator.normal(size=(5, 5)))[0]
    rows = generator.normal(size=(60_000, 5)) @ np.diag([4, 3, 2, 1.5, 1]) @ basis + 1
    clipped = rows * np.minimum(1, 8 / np.linalg.norm(rows, axis=1))[:, None]
    assert (clipped != rows).any()
    values, vectors = np.linalg.eigh(clipped.T @ clipped / len(rows))
    found = PrivatePCA(3, epsilon=10**6, delta=1e-6, clip=8, grid_bits=22).fit(rows)
    expected = vectors[:, ::-1].T[:3]
    signs = np.sign((expected * found.components_).sum(axis=1))
    assert np.abs(found.components_ - expected * signs[:, None]).max() < 1e-6
    assert np.allclose(found.explained_variance_, values[::-1][:3], rtol=1e-5)  # type: ignore[arg-type]
    assert np.allclose(found.explained_variance_ratio_, values[::-1][:3] / values.sum(), rtol=1e-5)  # type: ignore[arg-type]
    assert found.squared_cosine_intervals_ is not None
    assert found.squared_cosine_intervals_.shape == (3, 2)
    assert found.squared_cosine_intervals_.min() > 0.99
    assert not found.mean_.any()
    monkeypatch.setattr(fit, "REGISTER", Register())  # twice that loss is refused
    covariance = PrivateCovariance(epsilon=10**6, delta=1e-6, clip=8, grid_bits=22).fit(rows)
    assert np.abs(covariance.covariance_ - np.cov(clipped, rowvar=False, bias=True)).max() < 1e-4
    assert np.abs(covariance.location_ - clipped.mean(axis=0)).max() < 1e-5


@pytest.mark.filterwarnings("ignore:X has feature names")  # scikit-learn's word on a DataFrame after a plain array
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_x_is_projected(tmp_path: Path, form: str) -> None:
    rows = table()
    found = PrivatePCA(3, **LOSS, centre={"centre": np.full(COLUMNS, 0.5), "scale": np.full(COLUMNS, 2.0)}).fit(rows)
    scores = found.transform(formed(form, rows, tmp_path))
    assert np.allclose(np.asarray(scores), (rows - 0.5) / 2 @ found.components_.T)
    assert isinstance(scores, da.Array) is form.startswith("dask")
    if form.startswith("xarray"):
        assert scores.dims == ("cell", "component")
        assert list(scores.coords["component"].values) == ["privatepca0", "privatepca1", "privatepca2"]
        assert set(scores.coords) == {"cell", "run", "batch", "component"}
        assert isinstance(scores.data, da.Array) is (form == "xarray of dask")
        assert found.inverse_transform(scores).dims == ("cell", "feature")


@pytest.mark.parametrize("labelled", [False, True])
def test_transforming_what_is_lazy_computes_nothing(labelled: bool) -> None:
    def never(block: Any) -> Any:
        assert not block.size, "a block was computed"  # Dask asks with an empty block what a function makes of it
        return block

    found = PrivatePCA(2, **LOSS).fit(table())
    lazy = da.from_array(table(), chunks=(60, 3)).map_blocks(never, meta=np.empty((0, 0)))
    back = found.inverse_transform(found.transform(xr.DataArray(lazy, dims=("cell", "gene")) if labelled else lazy))
    assert back.shape == (ROWS, COLUMNS)
    with pytest.raises(AssertionError, match="a block was computed"):
        back.compute()


def test_blocks_of_a_dask_array_are_summed_apart() -> None:
    """No task sees more rows than a block has: the table is never in one place. Each of two passes reads all blocks."""
    seen: list[int] = []

    def watched(block: Any) -> Any:
        seen.extend([len(block)] * bool(block.size))
        return block

    PrivatePCA(1, **LOSS).fit(da.from_array(table(), chunks=(60, COLUMNS)).map_blocks(watched, meta=np.empty((0, 0))))
    assert seen == [60] * 10


def test_pandas_names_its_columns_and_gets_them_back() -> None:
    frame = pd.DataFrame(table(), columns=NAMES, index=pd.Index(np.arange(ROWS) + 1000))
    found = PrivatePCA(2, **LOSS).set_output(transform="pandas").fit(frame)
    assert list(found.feature_names_in_) == NAMES
    assert found.release_.names == tuple(NAMES)
    scores = found.transform(frame)
    assert list(scores.columns) == ["privatepca0", "privatepca1"]
    assert scores.index[0] == 1000
    with pytest.raises(ValueError, match="feature names"):
        found.transform(frame[NAMES[::-1]])
    again = clone(found).set_params(budget_epsilon=10)
    assert not hasattr(again.fit(frame).fit(da.from_array(table(), chunks=60)), "feature_names_in_")


@pytest.mark.usefixtures("silent")  # of noise one in twenty draws reaches beyond its edge
def test_auto_takes_what_stands_above_the_noise_and_keeps_the_release_if_nothing_does() -> None:
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(4000, 8)) * [9, 5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    found = PrivatePCA(epsilon=2, delta=1e-6, clip=20).fit(rows)
    assert found.n_components_ == 2
    drowned = PrivatePCA(epsilon="0.001", delta=1e-6, clip=20)
    with pytest.raises(BelowNoiseError, match=r"No component of this release can be.*another n_components is free"):
        drowned.fit(table())
    assert not hasattr(drowned, "components_")
    assert PrivatePCA.from_release(drowned.release_, 2).components_.shape == (2, COLUMNS)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_components": 1.5}, "n_components"),
        ({"n_components": "auto", "mechanism": "power", "options": {"components": 2, "iterations": 2}}, "n_components"),
        ({"clip": "public"}, "clip"),
        ({"mechanism": "sn", "delta": None}, "Use mechanism='two-sided-wishart' instead"),
        ({"mechanism": "power"}, "options={'iterations': ...}"),
        ({"centre": [1.0]}, "1 entries for 7 columns"),
        ({"centre": {"center": [1.0]}}, "`centre` and `scale`"),
        ({"budget_delta": 0.1}, "budget_epsilon"),
        ({"ledger": "rows.ledger"}, r"dpdist\.ingest_rows"),
        ({"cluster": Cluster(workers=1)}, "rows.zarr"),
        ({"release": "missing/release.zarr"}, "does not exist"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_before_anything_is_charged(
    register: Register, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises((UsageError, DataError, RefusedError), match=words) as refused:
        PrivatePCA(**{"n_components": 2, **LOSS, **changed}).fit(table())
    assert "(--" not in str(refused.value)
    assert not register._fits


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.array([["a", "7.125"], ["2", "3"]]), "not a number"),
        (np.array([["a", 7.125], [2, 3]], dtype=object), r"not a number\..*dpdist\.Schema"),
        (np.array([7.125, 1]), "Reshape your data"),
        (np.array([[7.125 + 1j, 1]]), "Complex data not supported"),
        (np.array([[7.125, np.nan]]), "NaN"),
        (da.from_array(np.array([[7.125, np.nan], [1, 1]]), chunks=1), "NaN or infinity"),
        (da.from_array(np.array([[7.125 + 1j, 1]]), chunks=1), "complex128"),
        (da.zeros((0, 3)), "no rows"),
        (np.ma.masked_equal([[7.125, 1], [2, 3]], 2), "masked"),
        (da.from_array(np.ma.masked_equal([[7.125, 1], [2, 3]], 2), chunks=1), "masked"),
        (xr.DataArray(np.zeros(2)), "1 dimensions"),
        (xr.Dataset({"a": (("x", "y"), np.ones((2, 2))), "b": ("y", [1, 7.125])}), "different first dimensions"),
        (xr.Dataset({"a": ("x", ["b", "7.125"])}), "convert or drop"),
        (anndata.AnnData(obs=pd.DataFrame(index=["a"])), "without a matrix"),
        ("nowhere.zarr", "no rows at nowhere.zarr"),
    ],
)  # fmt: skip
def test_an_x_that_is_no_table_of_numbers_is_refused_without_a_word_of_its_content(
    register: Register, given: Any, words: str
) -> None:
    with pytest.raises(DataError, match=words) as refused:
        PrivatePCA(1, epsilon=1, delta=1e-6, clip=100).fit(given)
    assert "7.125" not in str(refused.value)
    assert not register._fits


@pytest.mark.usefixtures("silent")
def test_huge_numbers_are_clipped_without_a_word() -> None:
    rows = table()
    rows[::2] *= 1e200
    rows[7::50] = 1.7e308
    asked = PrivatePCA(2, **FINE, budget_epsilon=100)
    found = asked.fit(rows).release_.lattice  # a warning would be an error here
    assert same(asked.fit(da.from_array(rows, chunks=(40, 3))).release_.lattice, found)


WITHOUT = """import sys, dpdist
assert not {'sklearn', 'dask', 'zarr', 'numpy'} & set(sys.modules)
import dpdist.cli
assert 'dpdist.estimators' not in sys.modules
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {'pandas', 'xarray', 'anndata'}: raise ImportError(name)
sys.meta_path.insert(0, Missing())
import numpy
dpdist.PrivatePCA(1, epsilon=1, clip=1).fit_transform(numpy.eye(3))
"""


def test_the_package_is_imported_fast_and_does_without_what_is_optional() -> None:
    subprocess.run([sys.executable, "-W", "error", "-W", "ignore::UserWarning", "-c", WITHOUT], check=True, timeout=600)


def test_the_lines_of_the_readme_run(tmp_path: Path) -> None:
    """No warning: the directions are far above the noise. `benchmarks` run the rest."""
    size, rows = np.random.default_rng(1).normal(size=20_000), np.random.default_rng(2).normal(size=(20_000, 4))
    np.savetxt(tmp_path / "table.csv", rows + size[:, None], delimiter=",", header="a,b,c,d", comments="")
    block = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    environment = {**os.environ, "DPDIST_STATE_HOME": str(tmp_path / "state")}
    subprocess.run([sys.executable, "-W", "error", "-c", block], cwd=tmp_path, check=True, timeout=300, env=environment)


def test_components_of_noise_are_said_to_be_and_explain_nothing(register: Register) -> None:
    """Of 30 columns of noise something is counted in one draw of 20 at most: in 6 of 8 with probability 4e-7."""
    rows = np.random.default_rng(2).normal(size=(60, 30))
    above = []
    for _ in range(8):
        register._fits.clear()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = PrivatePCA(3, epsilon=1, clip=5, mechanism="two-sided-wishart").fit(rows)
        ratios = found.explained_variance_ratio_
        assert ratios is not None
        assert (ratios >= 0).all()
        assert ratios.sum() <= 1 + 1e-12
        assert found.n_above_noise_ is not None
        above.append(found.n_above_noise_)
        assert any(each.category is BelowNoiseWarning for each in said) is (found.n_above_noise_ < 3)
        assert (ratios > 0).sum() == np.isfinite(np.asarray(found.squared_cosines_)).sum() == found.n_above_noise_
    assert sum(count > 0 for count in above) < 6
    rows = np.random.default_rng(2).normal(size=(20_000, 3)) * [3, 2, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error", BelowNoiseWarning)
        found = PrivatePCA(3, epsilon=10, delta=1e-6, clip=12).fit(rows)
    assert (found.n_above_noise_, np.asarray(found.squared_cosines_).min() > 0.9) == (3, True)


def test_rows_with_missing_values_count_as_the_centre_if_that_is_said() -> None:
    random = np.random.default_rng(8)
    rows = random.normal(size=(20_000, 3)) * [1, 10, 100] + [1, 10, -3]
    rows[:, 1] += 10 * rows[:, 0]
    y = 2 * rows[:, 0] + random.normal(size=20_000)
    rows[random.random(20_000) < 0.05, 2] = np.nan
    y[:300] = np.inf
    asked: dict[str, Any] = {"epsilon": 4, "delta": 1e-6, "clip": "auto", "scale": "private"}
    asked["budget"] = Budget(99, 1e-4)
    with pytest.raises(DataError, match=r"pass missing='centre' \(with scale='private'"):
        PrivatePCA(1, **asked).fit(rows)
    for given in (rows, da.from_array(rows + 1, chunks=(7000, 3))):
        found = PrivatePCA(1, missing="centre", centre="private", **asked).fit(given)
        assert found.release_.rows == 20_000  # all of them count
        assert np.abs(found.mean_ - np.nanmean(np.asarray(given), axis=0)).max() < 3
        assert abs(found.components_[0] @ [0.5**0.5, 0.5**0.5, 0]) > 0.95
    assert PrivateRidge(missing="centre", **asked).fit(rows + 2, y).coef_[0] == pytest.approx(2, abs=0.2)
    with pytest.raises(UsageError, match="this release has no centre: pass scale='private' or a public centre"):
        PrivateCovariance(epsilon=4, delta=1e-6, clip=9, missing="centre").fit(rows + 3)
    with pytest.raises(UsageError, match="missing must be 'refuse' or 'centre'"):
        PrivatePCA(1, missing="drop", **asked).fit(rows + 4)


@pytest.mark.filterwarnings("ignore:Perhaps")  # these rows are clipped much
def test_a_public_scale_stands_beside_a_private_mean_or_a_public_centre() -> None:
    divisors = np.linspace(0.3, 3, COLUMNS)
    for centre in ("none", "private", np.full(COLUMNS, 0.5)):
        found = PrivatePCA(2, **FINE, centre=centre, scale=divisors, budget_epsilon=10**5).fit(table(1))
        assert np.array_equal(found.scale_, divisors)
        again = PrivatePCA.from_release(found.release_, 2)
        assert np.array_equal(np.asarray(again.scale), divisors)
        assert np.array_equal(np.asarray(again.centre), centre)
    with pytest.raises(UsageError, match="given twice"):
        PrivatePCA(2, **FINE, centre={"scale": divisors}, scale=divisors).fit(table(1))
    with pytest.raises(UsageError, match="one public number per column"):
        PrivatePCA(2, **FINE, scale=["wide"]).fit(table(1))  # type: ignore[list-item]


@pytest.mark.parametrize("kind", [PrivatePCA, PrivateCovariance, PrivateRidge])
def test_a_centre_of_none_is_the_default(kind: type[PrivatePCA]) -> None:
    default = inspect.signature(kind).parameters["centre"].default
    assert default == kind(epsilon=1, clip=1).centre == (None if kind is PrivatePCA else "private")
    given: dict[str, Any] = {**LOSS, **({"n_components": 1} if kind is PrivatePCA else {})}
    asked = clone(kind(**given).set_params(centre=None))
    assert asked.get_params()["centre"] is None
    rows = table(1)
    fitted, again = asked.fit(rows, rows[:, 0]), kind(**given).fit(rows, rows[:, 0])
    assert fitted.release_.release_id == again.release_.release_id
    assert bool(fitted.release_.bound.constant) is (kind is not PrivatePCA)
    with pytest.raises(UsageError, match="ingested with a schema"):
        kind(**LOSS, centre="schema").fit(rows, rows[:, 0])
    with pytest.raises(UsageError, match="centre must be None"):
        kind(**LOSS, centre=["north"]).fit(rows, rows[:, 0])  # type: ignore[list-item]
