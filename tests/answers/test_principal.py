"""Principal component regression from a release: on the released components, with intervals that hold."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from support.tallies import FALSE_ALARM

from dpdist.answers.regression import regressions
from dpdist.errors import BelowNoiseError, UsageError
from dpdist.privacy.guarantee import Neighbours
from dpdist.release.request import Centring
from papers.common.drawn import drawn
from papers.common.held import KINDS, held

Floats = npt.NDArray[np.float64]
RELEASES = 100
FEWEST = int(stats.binom.ppf(FALSE_ALARM, RELEASES, 0.9)) / RELEASES


def rows_of(n: int, p: int = 6, seed: int = 4) -> Floats:
    """Return rows of two strong factors and a target that follows from them."""
    random = np.random.default_rng(seed)
    factors = random.normal(size=(n, 2))
    x = factors @ random.normal(size=(2, p)) + 0.4 * random.normal(size=(n, p)) + 0.2
    return np.column_stack([x, factors @ [1.0, -0.5] + 0.5 * random.normal(size=n)])


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_without_noise_to_speak_of_it_is_that_of_scikit_learn(neighbours: Neighbours) -> None:
    scene = drawn(rows_of(3000), 4.0, "1000000", neighbours=neighbours)
    x, y = scene.bounded[:, :6], scene.bounded[:, 6]
    known = make_pipeline(PCA(2), LinearRegression()).fit(x, y)
    (found,) = regressions(scene.release(), [6], range(6), components=2)
    assert np.allclose([each.value for each in found.coefficients], known[1].coef_ @ known[0].components_, atol=1e-3)
    assert found.r2.value == pytest.approx(known.score(x, y), abs=1e-3)
    assert found.intercept.value == pytest.approx(known.predict(np.zeros((1, 6)))[0], abs=1e-3)
    assert (found.components, found.ridge, found.seen) == (2, 0.0, 6)
    (whole,) = regressions(scene.release(), [6], range(6), components="auto")
    assert whole.components == 6
    assert np.allclose([each.value for each in whole.coefficients], LinearRegression().fit(x, y).coef_, atol=1e-3)


def test_without_a_mean_components_are_those_about_the_centre() -> None:
    scene = drawn(rows_of(3000) + 1, 5.0, "1000000", centring=Centring.NONE, centre=(1.0,) * 7)
    x, y = scene.bounded[:, :6], scene.bounded[:, 6]
    leading = np.linalg.eigh(x.T @ x)[1][:, -2:]
    known = leading @ np.linalg.lstsq(x @ leading, y, rcond=None)[0]
    (found,) = regressions(scene.release(), [6], range(6), components=2)
    assert np.allclose([each.value for each in found.coefficients], known, atol=1e-3)


@pytest.mark.parametrize("mechanism", ["gaussian", "two-sided-wishart"])
def test_intervals_hold_and_those_of_a_third_of_the_length_do_not(mechanism: str) -> None:
    scene = drawn(rows_of(2000), 4.0, mechanism=mechanism, neighbours=Neighbours.ADD_REMOVE)
    found = held(scene, KINDS["principal component regression"], RELEASES)
    assert found.refused == 0
    for kind, shares in found.shares.items():
        assert shares.min() >= FEWEST, kind
        assert found.short[kind].mean() < FEWEST, kind  # the twin


def test_components_in_the_noise_are_refused_with_how_many_are_not() -> None:
    release = drawn(rows_of(2000, p=12), 4.0).release()
    (found,) = regressions(release, [12], range(12), components="auto")
    assert found.components == 2
    with pytest.raises(
        BelowNoiseError, match=r"3 components were asked for. Of 12 among the columns no more than 2 stand"
    ):
        regressions(release, [12], range(12), components=3)
    with pytest.raises(UsageError, match="13 components were asked for, of 12 columns"):
        regressions(release, [12], range(12), components=13)
    with pytest.raises(UsageError, match="need no ridge"):
        regressions(release, [12], range(12), 1.0, components=2)
    with pytest.raises(BelowNoiseError, match="No component of the columns to regress on stands clear"):
        regressions(drawn(rows_of(60) / 30, 4.0, "0.1").release(), [6], range(6), components="auto")
