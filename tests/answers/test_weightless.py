"""A column with weight zero in a release, as its numbers were beyond the grid, is in no answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.cli_scene import Call

from dpdist import PrivateCovariance, PrivateRidge
from dpdist.answers.block import beside
from dpdist.answers.correlation import correlation
from dpdist.answers.regression import regressions
from dpdist.core.errors import BelowNoiseWarning, UsageError
from dpdist.core.mechanisms.columns import BEYOND
from dpdist.core.release.combine import combined
from papers.common.drawn import drawn

Floats = npt.NDArray[np.float64]
NAMES = ("age", "stamp", "height", "income")
PRIVATE: dict[str, Any] = {"epsilon": 8, "delta": 1e-6, "clip": "auto", "scale": "private"}


def rows_of(n: int = 3000) -> Floats:
    """Return rows whose income depends on age, height and a stamp with numbers near 1e9."""
    random = np.random.default_rng(4)
    age, height, noise = random.normal(size=(3, n))
    stamp = 1e9 + 1e8 * random.normal(size=n)
    return np.column_stack([age, stamp, height, age - 0.5 * height + (stamp - 1e9) / 1e8 + noise])


SCENE = drawn(rows_of(), 4.0, "8", names=NAMES, scale=(1.0, BEYOND, 1.0, 2.0))
"""Rows by a scale such as a private choice makes for such a column."""


def test_no_regression_is_of_it_or_on_it_and_a_sum_of_releases_knows_it_too() -> None:
    """Its coefficient would be 0 to 17 digits in its own unit, and is 1e-8."""
    release, total = SCENE.release(), combined([SCENE.release(0), SCENE.release(1)])
    assert total.blindly_scaled == ((), ("stamp",))
    assert beside(release, [3]) == beside(total, [3]) == (0, 2)
    with pytest.raises(UsageError, match=r"stamp: numbers beyond 2\^20.*Leave them out of"):
        regressions(release, [3], [0, 1, 2])
    with pytest.raises(UsageError, match=r"stamp: numbers beyond 2\^20.*cannot be targets"):
        regressions(release, [1], [0, 2])
    (found,) = regressions(release, [3], beside(release, [3]))
    assert found.names == ("age", "height")


def test_it_is_in_no_correlation_matrix_even_where_chance_lifts_it_above_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dpdist.answers.correlation.ABOVE", 0.0)  # so that every positive variance is above the noise
    found = correlation(SCENE.release(), 2)
    assert found.left_out == ("stamp",)
    assert (found.components.components[:, 1] == 0).all()


def test_a_fitted_ridge_says_that_nothing_is_known_of_it_and_is_not_of_it() -> None:
    rows = rows_of()
    with pytest.warns(BelowNoiseWarning, match="got no weight: c1"):
        found = PrivateRidge(**PRIVATE).fit(rows[:, :3], rows[:, 3])
    assert (found.n_features_in_, found.coef_[1]) == (3, 0)
    assert found.coef_population_intervals_ is not None
    for ends in (found.coef_intervals_, found.coef_population_intervals_):
        assert ends[1].tolist() == [-np.inf, np.inf]
        assert np.isfinite(ends[[0, 2]]).all()
    assert found.coef_intervals_[0, 0] > 0 > found.coef_intervals_[2, 1]
    assert found.predict(rows[:5, :3]).shape == (5,)
    with pytest.warns(BelowNoiseWarning, match="got no weight: c1"):
        named = PrivateRidge.from_release(found.release_, "y")
    assert named.feature_names_in_.tolist() == ["c0", "c2"]
    assert named.coef_ == pytest.approx(found.coef_[[0, 2]])
    made = PrivateRidge(**PRIVATE)
    with (
        pytest.warns(BelowNoiseWarning),
        pytest.raises(UsageError, match=r"y: numbers beyond.*release is kept"),
    ):
        made.fit(rows[:2900, [0, 2, 3]], rows[:2900, 1])
    with pytest.warns(BelowNoiseWarning):
        assert PrivateRidge.from_release(made.release_, "c2").coef_.shape == (2,)


def test_a_fitted_covariance_names_it_and_says_nothing_of_it() -> None:
    rows = rows_of(2800)
    with pytest.warns(BelowNoiseWarning, match="got no weight: c1"):
        found = PrivateCovariance(**PRIVATE).fit(rows)
    known = [0, 2, 3]
    for matrix in (
        found.covariance_, found.correlation_, found.precision_, found.errors_, found.covariance_intervals_,
        found.correlation_intervals_, found.partial_correlation_, found.partial_correlation_intervals_,
    ):  # fmt: skip
        assert matrix is not None
        assert np.isnan(matrix[1]).all()
        assert np.isnan(matrix[:, 1]).all()
        assert np.isfinite(matrix[np.ix_(known, known)]).all()
    assert np.flatnonzero(np.isnan(found.location_)).tolist() == [1]
    assert np.linalg.eigvalsh(found.covariance_[np.ix_(known, known)])[0] > 0
    sampled = found.sample(9)
    assert np.isnan(sampled[:, 1]).all()
    assert np.isfinite(sampled[:, known]).all()
    other = rows.copy()
    other[:, 1] = 0
    assert np.isfinite(found.score(rows))
    assert np.array_equal(found.mahalanobis(rows), found.mahalanobis(other))
    assert found.error_norm(np.eye(4)) > 0


def test_the_commands_leave_it_out_and_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.column_stack([rows_of(), np.arange(3000) == 5])
    np.savetxt("table.csv", rows, delimiter=",", header=",".join((*NAMES, "rare")), comments="")
    assert call("ingest", "table.csv", "rows.zarr", "--budget-epsilon", "16", "--budget-delta", "1e-5").code == 0
    asked = ("--epsilon", "8", "--delta", "1e-6", "--clip", "auto", "--scale", "private", "--centre", "private")
    assert call("release", "rows.zarr", "release.zarr", *asked).code == 0
    said = "1 column had numbers "
    said += "beyond 2^20, and got no weight: stamp. The release contains no information about them."
    commands = [["regress", "release.zarr", "--target", "income"], ["covariance", "release.zarr", "found.csv"]]
    commands += [["pca", "release.zarr", "model.zarr", "--components", "2", "--correlation"]]
    for command in commands:
        assert said in " ".join(call(*command).told.split()), command
        told = call(*command, "--json").json
        assert (told["no_variance_seen"], told["weigh_nothing"]) == (["rare"], ["stamp"])
    assert said in " ".join(call("synthesise", "release.zarr", "drawn.csv", "--rows", "3").told.split())
    assert Path("drawn.csv").read_text().startswith("age,height,income,rare\n")
    told = call("regress", "release.zarr", "--target", "income", "--json").json
    assert list(told["coefficients"]) == ["age", "height"]
    assert "They are omitted here." in " ".join(call(*commands[0]).told.split())
    refused = call("regress", "release.zarr", "--target", "income", "--on", "age,stamp")
    assert (refused.code, "stamp: numbers beyond 2^20" in refused.told, "(--schema)" in refused.told) == (2, True, True)
