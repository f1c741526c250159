"""Components of the correlation matrix of a release, against rows with a known correlation matrix."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from click.testing import CliRunner
from support.parts import table_of

from dpdist.answers.correlation import correlation
from dpdist.answers.fitting import fit_components
from dpdist.answers.model import open_model
from dpdist.cli import cli
from dpdist.core.errors import BelowNoiseError, DataError, UsageError
from dpdist.core.pipeline.scores import project_rows
from dpdist.core.release.request import Centring
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema
from dpdist.estimators import PrivatePCA
from dpdist.estimators.fit import save
from dpdist.report.components_text import standardised
from papers.common.drawn import Drawn, drawn

Floats = npt.NDArray[np.float64]
N, D, C = 60_000, 6, 10.0
UNITS = np.array([1.0, 0.7, 0.9, 1.0, 0.8, 1.0])
LOADS = np.random.default_rng(5).normal(size=(D, D)) * np.array([2.0, 1.2, 0.7, 0.4, 0.3, 0.2])
NAMES = tuple(f"c{i}" for i in range(D))


def rows_of(seed: int = 5) -> Floats:
    """Return rows too short to be clipped."""
    rng = np.random.default_rng(seed)
    found: Floats = np.clip(rng.normal(size=(N, D)) @ LOADS.T, -3.5, 3.5) * UNITS + 0.5
    return found


ROWS = rows_of()
TRUE: Floats = np.asarray(np.corrcoef(ROWS.T))


@functools.cache
def scene(mechanism: str = "gaussian", epsilon: str = "1", **asked: Any) -> Drawn:
    return drawn(ROWS, C, epsilon, mechanism=mechanism, names=NAMES, **asked)


def test_with_little_noise_it_is_the_correlation_pca_of_the_rows() -> None:
    values, vectors = np.linalg.eigh(TRUE)
    found = correlation(scene(epsilon="900").release(), D)
    assert np.allclose(found.shares, values[::-1] / D, atol=1e-3)
    assert np.allclose(np.abs(np.sum(found.components.components * vectors.T[::-1], axis=1)), 1, atol=0.01)
    assert np.allclose(found.components.scale, ROWS.std(axis=0), rtol=5e-3)
    assert np.allclose(found.components.mean, ROWS.mean(axis=0), atol=5e-3)
    assert found.left_out == ()


@pytest.mark.parametrize("mechanism", ["two-sided-wishart", "laplace"])
def test_intervals_of_shares_hold_and_a_quarter_of_them_do_not(mechanism: str) -> None:
    """Of 100 with p = .05 more than 18 miss with probability 1e-6; of a quarter, p = .58, no more with 1e-16."""
    truth = np.linalg.eigvalsh(TRUE)[::-1][:3] / D
    misses, twin = np.zeros(3), np.zeros(3)
    for _ in range(100):
        found = correlation(scene(mechanism, "0.5").release(), 3)
        assert found.left_out == ()
        assert found.intervals is not None
        low, high = found.intervals.T
        misses += (truth < low) | (truth > high)
        twin += np.abs(truth - (low + high) / 2) > (high - low) / 8
    assert (misses <= 18).all(), misses
    assert (twin[:2] > 18).any(), twin


@pytest.mark.parametrize("sure", [True, False], ids=["by lower ends", "a twin by the middle"])
def test_a_share_is_held_for_sure_by_as_many_components_as_are_taken(
    monkeypatch: pytest.MonkeyPatch, sure: bool
) -> None:
    """Two components never hold what the best two do. A lower end is too high in 2.5 %: 11 of 60 with 3e-7."""
    if not sure:
        monkeypatch.setattr(
            "dpdist.answers.correlation._intervals", lambda values, *_: np.column_stack([values, values])
        )
    best = float(np.linalg.eigvalsh(TRUE)[-2:].sum()) / D
    wrong = 0
    for _ in range(60):
        found = correlation(scene(epsilon="0.2").release(), best).components.components
        wrong += float(np.trace(found @ TRUE @ found.T)) / D < best
    assert (wrong <= 10) is sure


def test_a_share_that_nothing_holds_is_refused_with_what_is_held() -> None:
    with pytest.raises(BelowNoiseError, match=r"A share of 0.99999 .* only 0.9\d+ for certain, .*a larger epsilon"):
        correlation(scene().release(), 0.99999)
    with pytest.raises(UsageError, match="between 0 and 1, not"):
        correlation(scene().release(), 1.5)


def test_columns_that_do_not_stand_above_the_noise_are_left_out_and_named() -> None:
    rows = ROWS.copy()
    rows[:, 2] *= 1e-3
    release = drawn(rows, C, names=NAMES).release()
    found = correlation(release, 3)
    assert found.left_out == ("c2",)
    assert (found.components.components[:, 2] == 0).all()
    assert np.allclose(found.components.components @ found.components.components.T, np.eye(3))
    held = found.components.components  # their variance among all columns: c2 counts, too
    assert np.allclose(found.shares, np.einsum("ij,jk,ik->i", held, TRUE, held) / D, atol=0.02)
    said = " ".join(standardised(found, release).split())
    assert "Not above the noise: c2. A share is of the variance of all columns" in said
    with pytest.raises(UsageError, match="6 components were requested, but the correlation matrix has only the 5 of"):
        correlation(release, 6)


def test_the_only_column_above_the_noise_is_not_all_of_the_variance() -> None:
    rows = ROWS * 1e-3
    rows[:, 0] = ROWS[:, 0]
    found = correlation(drawn(rows, C, names=NAMES).release(), 1)
    assert found.left_out == NAMES[1:]
    assert found.shares.tolist() == [1 / D]


def test_a_public_centre_is_enough() -> None:
    found = correlation(scene(centring=Centring.NONE, centre=tuple(ROWS.mean(axis=0).tolist())).release(), 2)
    assert np.allclose(found.shares, np.linalg.eigvalsh(TRUE)[::-1][:2] / D, atol=0.02)


def test_the_model_standardises_new_rows_and_stands_for_nothing_else(tmp_path: Path) -> None:
    release, model = tmp_path / "release.zarr", tmp_path / "model.zarr"
    save(scene().release(), release)
    vectors = fit_components(release, model, 2, correlation=True).model.components.components
    assert open_model(model).correlation
    assert "of the correlation matrix" in CliRunner().invoke(cli, ["inspect", str(model)]).output
    new = rows_of(seed=9)[:50]
    table_of(tmp_path / "new.zarr", new, names=NAMES)
    project_rows(tmp_path / "new.zarr", model, tmp_path / "scores.zarr")
    scores = np.asarray(zarr.open_array(str(tmp_path / "scores.zarr"), mode="r")[...])
    assert np.allclose(scores, (new - ROWS.mean(axis=0)) / ROWS.std(axis=0) @ vectors.T, atol=0.1)
    told = CliRunner().invoke(cli, ["pca", str(release), str(model), "--components", "2", "--correlation"])
    assert "share of" in told.output
    for count, correlations in ((2, False), (1, True)):
        with pytest.raises(DataError, match="with another content"):
            fit_components(release, model, count, correlation=correlations)


def test_the_number_of_components_may_be_left_to_the_noise() -> None:
    release = scene().release()
    found = correlation(release, None)
    assert found.alignment is not None
    count = len(found.components.components)
    assert 1 <= count == found.alignment.counted
    estimated = PrivatePCA.from_release(release, "auto", correlation=True)
    assert estimated.n_components_ == count
    assert np.array_equal(np.asarray(estimated.squared_cosines_), found.alignment.squared_cosines)


def test_of_drowned_correlations_no_number_is_found() -> None:
    rows = np.random.default_rng(4).normal(size=(3000, 12))
    alike = drawn(rows, 6.0, "3", centring=Centring.PRIVATE)
    refused = []
    for number in range(8):  # of unrelated columns something is counted in one draw of ten at most
        try:
            correlation(alike.release(number), None)
        except BelowNoiseError as error:
            refused.append(str(error))
    assert len(refused) > 3
    assert "No component of the correlation matrix can be distinguished" in refused[0]


def test_the_sign_of_no_correlation_tells_no_component_from_the_other() -> None:
    """The components of two columns do not depend on their correlation: only its sign orders them."""
    false = 0
    for number in range(60):
        rows = np.random.default_rng(number).normal(size=(5000, 2))
        found = correlation(drawn(rows, 3.0, "1", centring=Centring.PRIVATE).release(number), 1)
        assert found.alignment is not None
        if found.alignment.groups[:1] == (range(1),):
            exact = np.linalg.eigh(np.corrcoef(rows, rowvar=False))[1][:, -1]
            false += (exact @ found.components.components[0]) ** 2 < 0.5
    assert false <= 1  # 17 of 80, where only noise between the eigenvectors counted


def test_shares_of_columns_that_are_one_are_at_most_the_whole() -> None:
    column = np.random.default_rng(0).normal(size=(3000, 1)) * 2
    known = drawn(np.hstack([column, column]), 8.0, "0.5", centring=Centring.PRIVATE)
    for number in range(9):
        found = correlation(known.release(number), 2)
        assert found.shares.min() >= 0
        assert found.shares.sum() <= 1 + 1e-12
        assert found.intervals is not None
        (low, high), alignment = found.intervals.T, found.alignment
        assert alignment is not None
        assert ((low >= 0) & (low <= found.shares) & (found.shares <= high) & (high <= 1))[: alignment.counted].all()
        assert np.isnan(found.intervals[alignment.counted :]).all()  # NaN below the noise


def test_drop_first_leaves_out_a_column_of_each_categorical_variable(tmp_path: Path) -> None:
    """Otherwise the first component is one category against the other."""
    random = np.random.default_rng(2)
    common, sex = random.normal(size=(20_000, 1)), random.random(20_000) < 0.5
    rows = np.column_stack([sex, ~sex, common + 1.3 * random.normal(size=(20_000, 3))])
    schema = Schema([Column("sex", "category", categories=["F", "M"]), *(Column(name, "number") for name in "abc")])
    release, place = drawn(rows, 9.0, "20", names=schema.features, schema=schema).release(), tmp_path / "release.zarr"
    every = correlation(release, 1, drop_first=False).components.components
    assert abs(every[0, 0]) == pytest.approx(0.5**0.5, abs=0.1)  # sex=F against sex=M
    found = correlation(release, 1).components.components
    assert found[0, 0] == 0
    assert np.abs(found[0, 2:]) == pytest.approx([3**-0.5] * 3, abs=0.1)
    save(release, place)
    assert fit_components(place, tmp_path / "model.zarr", 1).model.correlation, "the default of a release with a mean"
    assert not fit_components(place, tmp_path / "plain.zarr", 1, correlation=False).model.correlation
    with pytest.raises(DataError, match="references"):
        fit_components(place, tmp_path / "model.zarr", 1, drop_first=False)
    said = " ".join(standardised(correlation(release, 1), release).split())
    assert "The first category of each variable is left out, as the others determine it: sex=F." in said
