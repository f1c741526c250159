"""PrivatePCA and PrivateCovariance: the same integers whatever holds the rows, and scikit-learn's conventions."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anndata
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from distributed import Client
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from support.estimator_scene import CLIP, COLUMNS, FORMS, HELD, NAMES, ROWS, formed, ingested, table
from support.folders import ROOT

from dpdist import Budget, PrivateCovariance, PrivatePCA, PrivateRidge
from dpdist.errors import BelowNoiseError, BelowNoiseWarning, DataError, RefusedError, UsageError
from dpdist.estimators import fit
from dpdist.ledger.in_memory import Fingerprints, Register
from dpdist.pipeline.components import fit_components, project_rows
from dpdist.release import artefact
from dpdist.rows import dataset
from dpdist.rows.rounding import entry_variances
from dpdist.runtime.cluster import Cluster

pytestmark = pytest.mark.filterwarnings("ignore:Rows of the same number and kind were released")
LOSS: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": CLIP}
FINE: dict[str, Any] = {**LOSS, "grid_bits": 20}


def same(found: Any, other: Any) -> bool:
    """Say whether two integer moments are of the same rows: rounded apart, they differ by errors of rounding alone."""
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
    tmp_path: Path, scheduler: str, register: Register, centre: Any, neighbours: str, monkeypatch: pytest.MonkeyPatch
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
        seen = register._fits[-1].fingerprints
        assert seen is not None
        assert np.array_equal(seen.keys, Fingerprints.of(rows, register.key).keys), name
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
    rows = (
        generator.normal(size=(60_000, 5)) @ np.diag([4, 3, 2, 1.5, 1]) @ np.linalg.qr(generator.normal(size=(5, 5)))[0]
    )
    rows += 1
    clipped = rows * np.minimum(1, 8 / np.linalg.norm(rows, axis=1))[:, None]
    assert (clipped != rows).any()
    values, vectors = np.linalg.eigh(clipped.T @ clipped / len(rows))
    found = PrivatePCA(3, epsilon=10**6, delta=1e-6, clip=8, grid_bits=22).fit(rows)
    expected = vectors[:, ::-1].T[:3]
    signs = np.sign((expected * found.components_).sum(axis=1))
    assert np.abs(found.components_ - expected * signs[:, None]).max() < 1e-6
    assert found.explained_variance_ is not None
    assert found.explained_variance_ratio_ is not None
    assert np.allclose(found.explained_variance_, values[::-1][:3], rtol=1e-5)
    assert np.allclose(found.explained_variance_ratio_, values[::-1][:3] / values.sum(), rtol=1e-5)
    assert found.squared_cosines_ is not None
    assert found.squared_cosine_intervals_ is not None
    assert found.squared_cosine_intervals_.shape == (3, 2)
    assert found.squared_cosine_intervals_.min() > 0.99  # at so large a loss there is hardly any noise
    assert not found.mean_.any()
    monkeypatch.setattr(fit, "REGISTER", Register())  # twice that loss is refused
    covariance = PrivateCovariance(epsilon=10**6, delta=1e-6, clip=8, grid_bits=22).fit(rows)
    assert np.abs(covariance.covariance_ - np.cov(clipped, rowvar=False, bias=True)).max() < 1e-4
    assert np.abs(covariance.location_ - clipped.mean(axis=0)).max() < 1e-5


def test_the_components_are_given_to_tools_that_know_scikit_learn_alone() -> None:
    rows = table()
    found = PrivatePCA(3, epsilon=10**5, delta=1e-6, clip=CLIP, centre="private").fit(pd.DataFrame(rows, columns=NAMES))
    plain = found.to_sklearn()
    assert type(plain).__module__.startswith("sklearn.")
    frame = pd.DataFrame(rows, columns=NAMES)
    assert np.allclose(plain.transform(frame), found.transform(frame))
    assert np.allclose(plain.inverse_transform(plain.transform(frame)), found.inverse_transform(found.transform(frame)))
    clipped = rows * np.minimum(1, CLIP / np.linalg.norm(rows, axis=1))[:, None]
    known = PCA(3).fit(clipped)
    assert np.allclose(plain.explained_variance_, known.explained_variance_, rtol=0.05)
    assert plain.noise_variance_ == pytest.approx(known.noise_variance_, rel=0.05)
    assert plain.score(frame) == pytest.approx(known.score(rows), rel=0.05)
    assert plain.get_feature_names_out().tolist() == ["pca0", "pca1", "pca2"]
    scaled = PrivatePCA(2, **FINE, centre={"scale": np.full(COLUMNS, 2.0)}, budget_epsilon=10**5).fit(table(1))
    with pytest.raises(UsageError, match="divides by no scale"):
        scaled.to_sklearn()


def test_a_scikit_learn_pipeline_from_end_to_end() -> None:
    generator = np.random.default_rng(2)
    labels = np.arange(2000) % 2
    rows = generator.normal(size=(2000, 6)) * [1, 1, 1, 0.1, 0.1, 0.1]
    rows[:, 0] += 6 * labels
    pipeline = make_pipeline(PrivatePCA(2, epsilon=2, delta=1e-6, clip=8, centre="private"), LogisticRegression())
    pipeline.fit(rows, labels)
    assert pipeline.score(rows, labels) > 0.95
    assert list(pipeline[:-1].get_feature_names_out()) == ["privatepca0", "privatepca1"]
    assert str(pipeline[0].guarantee_.loss) == "epsilon 2, delta 1e-06"


def test_a_dask_array_from_end_to_end(register: Register) -> None:
    rows = table()
    lazy = da.from_array(rows, chunks=(60, 3))
    found = PrivatePCA(2, **LOSS, centre="private")
    scores = found.fit_transform(lazy)
    assert isinstance(scores, da.Array)
    assert scores.chunks == ((60,) * 5, (2,))
    expected = (rows - found.mean_) @ found.components_.T
    assert np.allclose(scores.compute(), expected)
    back = found.inverse_transform(scores)
    assert isinstance(back, da.Array)
    assert np.allclose(back.compute(), expected @ found.components_ + found.mean_)
    assert np.allclose(back, found.inverse_transform(expected))
    assert len(register._fits) == 1


@pytest.mark.parametrize("form", ["anndata, backed", "anndata, sparse, backed"])
def test_an_anndata_file_from_end_to_end(tmp_path: Path, form: str) -> None:
    rows = table()
    cells = formed(form, rows, tmp_path)
    assert isinstance(cells, anndata.AnnData)
    assert cells.isbacked
    found = PrivatePCA(2, **LOSS).fit(cells)
    assert list(found.feature_names_in_) == NAMES
    assert np.allclose(found.transform(cells), rows @ found.components_.T)
    swapped = anndata.AnnData(rows, var=pd.DataFrame(index=NAMES[::-1]))
    with pytest.raises(ValueError, match="other columns"):
        found.transform(swapped)


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
        back = found.inverse_transform(scores)
        assert back.dims == ("cell", "feature")


def _never(block: Any) -> Any:
    if block.size:  # Dask asks with an empty block what a function makes of it
        raise AssertionError("a block was computed")
    return block


@pytest.mark.parametrize("labelled", [False, True])
def test_transforming_what_is_lazy_computes_nothing(labelled: bool) -> None:
    found = PrivatePCA(2, **LOSS).fit(table())
    lazy = da.from_array(table(), chunks=(60, 3)).map_blocks(_never, meta=np.empty((0, 0)))
    scores = found.transform(xr.DataArray(lazy, dims=("cell", "gene")) if labelled else lazy)
    back = found.inverse_transform(scores)
    assert back.shape == (ROWS, COLUMNS)
    with pytest.raises(AssertionError, match="a block was computed"):
        back.compute()


def test_blocks_of_a_dask_array_are_summed_apart() -> None:
    """No task sees more rows than a block has: the table is never in one place."""
    seen: list[int] = []

    def watched(block: Any) -> Any:
        if block.size:
            seen.append(len(block))
        return block

    PrivatePCA(1, **LOSS).fit(da.from_array(table(), chunks=(60, COLUMNS)).map_blocks(watched, meta=np.empty((0, 0))))
    assert seen == [60] * 5


@pytest.fixture
def client(scheduler: str) -> Iterator[Client]:
    """Make a cluster the current one, as users do."""
    with Client(scheduler) as current:
        yield current


@pytest.mark.usefixtures("silent", "client")
def test_a_dask_array_is_summed_by_the_current_client() -> None:
    rows = table()
    asked = PrivatePCA(2, **FINE, budget_epsilon=100)
    here = asked.fit(rows).release_.lattice
    assert same(asked.fit(da.from_array(rows, chunks=(13, 3))).release_.lattice, here)


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


def test_columns_without_names_leave_none_behind() -> None:
    found = PrivatePCA(2, **LOSS, budget_epsilon=10).fit(HELD["pandas"](table()))
    assert hasattr(found, "feature_names_in_")
    assert not hasattr(found.fit(da.from_array(table(), chunks=60)), "feature_names_in_")


@pytest.mark.usefixtures("silent")  # of noise one in twenty draws reaches beyond its edge
def test_auto_takes_what_stands_above_the_noise_and_keeps_the_release_if_nothing_does() -> None:
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(4000, 8)) * [9, 5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    found = PrivatePCA(epsilon=2, delta=1e-6, clip=20).fit(rows)
    assert found.n_components_ == 2
    drowned = PrivatePCA(epsilon="0.001", delta=1e-6, clip=20)
    with pytest.raises(BelowNoiseError, match=r"No component of this release can be.*from_release\(fitted.release_"):
        drowned.fit(table())
    assert not hasattr(drowned, "components_")
    assert PrivatePCA.from_release(drowned.release_, 2).components_.shape == (2, COLUMNS)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_components": 8}, "n_components"),
        ({"n_components": 0}, "n_components"),
        ({"n_components": 1.5}, "n_components"),
        ({"n_components": "auto", "mechanism": "power", "options": {"components": 2, "iterations": 2}}, "n_components"),
        ({"epsilon": -1}, "Epsilon"),
        ({"epsilon": None}, "Epsilon"),
        ({"epsilon": "1e-9"}, "millionths"),
        ({"delta": 1}, "Delta"),
        ({"clip": None}, "clip"),
        ({"clip": np.nan}, "clip"),
        ({"clip": "5"}, "clip"),
        ({"mechanism": "gauss"}, "no mechanism"),
        ({"mechanism": "two-sided-wishart"}, "leave delta out"),
        ({"mechanism": "sn", "delta": None}, "Take mechanism='two-sided-wishart' instead"),
        ({"mechanism": "power"}, "options={'iterations': ...}"),
        ({"neighbours": "someone"}, "neighbours must be"),
        ({"centre": [1.0]}, "1 entries for 7 columns"),
        ({"centre": {"center": [1.0]}}, "`centre` and `scale`"),
        ({"centre": "missing.npy"}, "no public centre"),
        ({"grid_bits": 2.5}, "grid_bits"),
        ({"budget_delta": 0.1}, "budget_epsilon"),
        ({"ledger": "rows.ledger"}, r"dpdist\.ingest_rows"),
        ({"cluster": Cluster(workers=1)}, "rows.zarr"),
        ({"release": "missing/release.zarr"}, "does not exist"),
        ({"options": {"speed": 1}}, "no option 'speed'"),
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
        (np.array([["a", "7.125"], ["2", "3"]]), "numeric"),
        (np.array([["a", 7.125], [2, 3]], dtype=object), r"not a number\..*dpdist\.Schema"),
        (np.array([7.125, 1]), "Reshape your data"),
        (np.array([[7.125 + 1j, 1]]), "Complex data not supported"),
        (np.array([[7.125, np.nan]]), "NaN"),
        (np.array([[7.125, np.inf]]), "infinity"),
        (da.from_array(np.array([[7.125, np.nan], [1, 1]]), chunks=1), "NaN or infinity"),
        (da.from_array(np.array([7.125, 1]), chunks=1), "Reshape your data"),
        (da.from_array(np.array([[7.125 + 1j, 1]]), chunks=1), "complex128"),
        (da.zeros((0, 3)), "no rows"),
        (np.ma.masked_equal([[7.125, 1], [2, 3]], 2), "masked"),
        (da.from_array(np.ma.masked_equal([[7.125, 1], [2, 3]], 2), chunks=1), "masked"),
        (xr.DataArray(np.zeros(2)), "1 dimensions"),
        (xr.Dataset({"a": (("x", "y"), np.ones((2, 2))), "b": ("y", [1, 7.125])}), "first dimension of every variable"),
        (xr.Dataset({"a": ("x", ["b", "7.125"])}), "convert or drop"),
        (anndata.AnnData(obs=pd.DataFrame(index=["a"])), "without a matrix"),
        ("nowhere.zarr", "no usable rows"),
    ],
)  # fmt: skip
def test_an_x_that_is_no_table_of_numbers_is_refused_without_a_word_of_its_content(
    register: Register, given: Any, words: str
) -> None:
    with pytest.raises(DataError, match=words) as refused:
        PrivatePCA(1, epsilon=1, delta=1e-6, clip=100).fit(given)
    assert (
        isinstance(refused.value, ValueError)
        or "finite" in words
        or words in {"no usable rows", "no rows", "masked", "NaN or infinity"}
    )
    assert "7.125" not in str(refused.value)
    assert not register._fits


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
    elsewhere = PrivatePCA(2, **asked, release=tmp_path / "release.zarr").fit(path)
    assert np.array_equal(elsewhere.release_.lattice, first.release_.lattice)
    with pytest.raises(UsageError, match="declared once"):
        PrivatePCA(2, **asked, budget_epsilon=5).fit(path)
    with pytest.raises(DataError, match="pass the path"):
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
    assert again.get_params()["clip"] == CLIP
    assert clone(again).get_params()["epsilon"] == 1
    with pytest.raises(DataError, match="exists already"):
        PrivatePCA(2, **LOSS, release=place).fit(table(1))
    if mechanism == "power":
        assert found.explained_variance_ is None
        assert found.explained_variance_ratio_ is None
        assert found.squared_cosines_ is None
        assert found.squared_cosine_intervals_ is None
        assert found.n_above_noise_ is None
        with pytest.raises(UsageError, match="components and no second moment"):
            PrivateCovariance(
                **LOSS, mechanism=mechanism, centre="none", options={"components": 2, "iterations": 3}
            ).fit(table(2))


@pytest.mark.usefixtures("silent")
def test_huge_numbers_are_clipped_without_a_word() -> None:
    rows = table()
    rows[::2] *= 1e200
    rows[7::50] = 1.7e308
    asked = PrivatePCA(2, **FINE, budget_epsilon=100)
    found = asked.fit(rows).release_.lattice  # a warning would be an error here
    assert same(asked.fit(da.from_array(rows, chunks=(40, 3))).release_.lattice, found)


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
    with pytest.raises(DataError, match="too large for memory: pass the path"):
        PrivatePCA.from_release(again.release_, 2)
    with pytest.raises(DataError, match="too large for memory: read"):
        PrivateCovariance.from_release(tmp_path / "release.zarr")


def test_the_package_is_imported_fast_and_does_without_what_is_optional() -> None:
    words = (
        "import sys, dpdist\n"
        "assert not {'sklearn', 'dask', 'zarr', 'numpy'} & set(sys.modules)\n"
        "assert {'PrivatePCA', 'PrivateCovariance'} <= set(dir(dpdist))\n"
        "import dpdist.cli\n"
        "assert 'dpdist.estimators' not in sys.modules\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'pandas', 'xarray', 'anndata'}: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "import numpy\n"
        "dpdist.PrivatePCA(1, epsilon=1, clip=1).fit_transform(numpy.eye(3))\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-W", "ignore::UserWarning", "-c", words], check=True, timeout=600)


def test_the_lines_of_the_readme_run(tmp_path: Path) -> None:
    """No warning: both directions can be told from noise, which takes a squared cosine of 2/3.

    Of 12 draws the least had .896 (deviation .008). ``benchmarks.documentation`` runs the other pages.
    """
    block = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    subprocess.run([sys.executable, "-W", "error", "-c", block], cwd=tmp_path, check=True, timeout=300)


@pytest.mark.filterwarnings("ignore:Perhaps")  # these rows are clipped much
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
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
    for name in FORMS[-4:] + FORMS[:1] + ("dask",):  # and so is the type, and the rest to rounding, of rows elsewhere
        folder = tmp_path / name
        folder.mkdir()
        there = fitted.transform(formed(name, rows, folder))
        assert there.dtype == found.dtype, name
        assert np.allclose(np.asarray(there), found, rtol=1e-5, atol=1e-4), name


@pytest.mark.parametrize("mechanism", ["gaussian", "two-sided-wishart"])
def test_components_of_noise_are_said_to_be_and_explain_nothing(register: Register, mechanism: str) -> None:
    """Of 60 rows of a table of 30 columns nothing is seen at epsilon 1: the noise is a hundred times as large.

    Of 30 columns of noise something is counted in one draw of 20 at most.
    """
    rows = np.random.default_rng(2).normal(size=(60, 30))
    asked: dict[str, Any] = {"epsilon": 1, "clip": 5, "delta": 1e-6 if mechanism == "gaussian" else None}
    above = []
    for _ in range(10):
        register._fits.clear()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = PrivatePCA(3, **asked, mechanism=mechanism).fit(rows)
        ratios = found.explained_variance_ratio_
        assert ratios is not None
        assert (ratios >= 0).all()
        assert ratios.sum() <= 1 + 1e-12
        drowned = [each for each in said if each.category is BelowNoiseWarning]
        assert found.n_above_noise_ is not None
        above.append(found.n_above_noise_)
        assert bool(drowned) is (found.n_above_noise_ < 3)
        assert (ratios > 0).sum() == np.isfinite(np.asarray(found.squared_cosines_)).sum() == found.n_above_noise_
    assert sum(count > 0 for count in above) <= 5  # above 1 in 20 each: probability below 1e-4


def test_components_that_stand_above_the_noise_come_without_a_warning() -> None:
    rows = np.random.default_rng(2).normal(size=(20_000, 3)) * [3, 2, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error", BelowNoiseWarning)
        found = PrivatePCA(3, epsilon=10, delta=1e-6, clip=12).fit(rows)
    assert found.n_above_noise_ == 3
    assert np.allclose(found.explained_variance_ratio_, np.array([9, 4, 1]) / 14, atol=0.02)  # type: ignore[arg-type]
    assert np.asarray(found.squared_cosines_).min() > 0.9


def test_rows_in_memory_that_may_be_those_of_a_ledger_are_warned_of(tmp_path: Path, register: Register) -> None:
    """A ledger and a process know nothing of each other's rows, and both releases would be of the same people."""
    rows = table(4)
    PrivatePCA(2, **LOSS).fit(ingested(rows, tmp_path))
    assert len(register._fits) == 1
    with pytest.warns(
        UserWarning, match=r"same number and kind were released once before.*all these releases together"
    ):
        PrivatePCA(2, **LOSS).fit(rows)


def test_rows_with_missing_values_count_as_the_centre_if_that_is_said() -> None:
    random = np.random.default_rng(8)
    rows = random.normal(size=(20_000, 3)) * [1, 10, 100] + [1, 10, -3]
    rows[:, 1] += 10 * rows[:, 0]
    y = 2 * rows[:, 0] + random.normal(size=20_000)
    rows[random.random(20_000) < 0.05, 2] = np.nan
    y[:300] = np.inf
    budget = Budget(99, 1e-4)
    asked: dict[str, Any] = {"epsilon": 4, "delta": 1e-6, "clip": "auto", "scale": "private", "budget": budget}
    with pytest.raises(DataError, match=r"Pass missing='centre' with scale='private'"):
        PrivatePCA(1, **asked).fit(rows)
    for given in (rows, da.from_array(rows + 1, chunks=(7000, 3))):
        found = PrivatePCA(1, missing="centre", centre="private", **asked).fit(given)
        assert found.release_.rows == 20_000  # all of them count
        assert np.abs(found.mean_ - np.nanmean(np.asarray(given), axis=0)).max() < 3
        assert abs(found.components_[0] @ [0.5**0.5, 0.5**0.5, 0]) > 0.95
    ridge = PrivateRidge(missing="centre", **asked).fit(rows + 2, y)
    assert ridge.coef_[0] == pytest.approx(2, abs=0.2)
    with pytest.raises(UsageError, match="this release has none: pass scale='private', or a public centre"):
        PrivateCovariance(epsilon=4, delta=1e-6, clip=9, missing="centre").fit(rows + 3)
    with pytest.raises(UsageError, match="missing is 'refuse' or 'centre'"):
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
    both = {"centre": np.full(COLUMNS, 0.5), "scale": divisors}
    with pytest.raises(UsageError, match="another one"):
        PrivatePCA(2, **FINE, centre=both, scale=divisors).fit(table(1))
    with pytest.raises(UsageError, match="one public number per column"):
        PrivatePCA(2, **FINE, scale=["wide"]).fit(table(1))  # type: ignore[list-item]


@pytest.mark.parametrize("kind", [PrivatePCA, PrivateCovariance, PrivateRidge])
def test_a_centre_of_none_is_no_default_and_is_refused_unpaid(kind: type[PrivatePCA]) -> None:
    asked = kind(**LOSS, centre=None)  # type: ignore[arg-type]
    assert asked.get_params()["centre"] is None
    assert clone(kind(**LOSS).set_params(centre=None)).get_params()["centre"] is None
    with pytest.raises(UsageError, match="centre is 'none'"):
        asked.fit(table(1), table(1)[:, 0])


def test_a_subclass_of_an_estimator_keeps_its_own_signature() -> None:
    class Own(PrivatePCA):
        def __init__(self, *, epsilon: int = 1, clip: float = 2, **more: Any) -> None:
            super().__init__(epsilon=epsilon, clip=clip, **more)

    class Lossy(PrivatePCA):
        def __init__(self, extra: int = 1, **more: Any) -> None:
            super().__init__(**more)
            self.extra = extra

    assert (Own().epsilon, Own(whiten=True).whiten) == (1, True)
    with pytest.raises(TypeError, match="epsilon"):  # as scikit-learn's own: what it cannot copy it does not drop
        clone(Lossy(n_components=3, epsilon=1, clip=1))
    for kind, centre in ((PrivatePCA, "none"), (PrivateCovariance, "private"), (PrivateRidge, "private")):
        assert inspect.signature(kind).parameters["centre"].default == centre == kind(epsilon=1, clip=1).centre
