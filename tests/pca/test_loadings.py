"""Where loadings lie: the true ones of shortened rows are in the intervals as often as is said."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom
from support.tallies import FALSE_ALARM

from dpdist.pca.components import Components, components
from dpdist.pca.correlation import correlation
from dpdist.pca.loadings import EntryNoise, intervals_of, loading_intervals, loadings_json
from dpdist.pca.scree import scree
from dpdist.release.request import Centring
from dpdist.report import text
from papers.common.drawn import Drawn, drawn

Floats = npt.NDArray[np.float64]
DRAWS, K = 80, 2
SPREADS = {
    "strong": np.array([3, 2, 1.2, 0.5, 0.5, 0.4, 0.3, 0.3]),
    "close": np.array([2, 1.9, 1, 0.5, 0.5, 0.5]),
    "weak": np.array([1.5, 1.2, *[0.3] * 28]),
}


def scene(name: str, *, mean: float = 0.0, epsilon: str = "1", mechanism: str = "gaussian") -> Drawn:
    rng = np.random.default_rng(7)
    spread = SPREADS[name]
    turned = np.linalg.qr(rng.normal(size=(len(spread), len(spread))))[0]
    rows = rng.normal(size=(15_000, len(spread))) * spread @ turned.T + mean
    centring = Centring.PRIVATE if mean else Centring.NONE
    return drawn(rows, 12.0, epsilon, mechanism=mechanism, centring=centring)


def covariance(known: Drawn) -> Floats:
    d, n = len(known.names), len(known.bounded)
    x = known.bounded[:, :d].mean(axis=0) if known.bound.constant else np.zeros(d)
    found: Floats = known.moment[:d, :d] / n - np.outer(x, x)
    return found


def leading(matrix: Floats) -> Floats:
    found: Floats = np.linalg.eigh(matrix)[1][:, ::-1][:, :K].T
    return found


def hits(true: Floats, vectors: Floats, ends: Floats, part: float = 1.0) -> npt.NDArray[np.int64]:
    """Say which loadings lie in their intervals, of which only a part around the middle is taken."""
    true = true * np.sign((true * vectors).sum(axis=1))[:, None]
    middle, reach = ends.mean(axis=-1), part * (ends[..., 1] - ends[..., 0]) / 2
    found: npt.NDArray[np.int64] = (np.abs(true - middle) <= reach).astype(np.int64)
    return found


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("strong", {"mean": 0.5}), ("close", {}), ("weak", {"epsilon": "2"}),
        ("strong", {"mechanism": "two-sided-wishart"}),
    ],
)  # fmt: skip
def test_a_loading_lies_where_it_is_said_to_and_not_in_a_fifth_of_that(name: str, more: dict[str, float]) -> None:
    """At least 85 % of releases hold it, with one false alarm in a million; a fifth of the interval holds a third."""
    known = scene(name, **more)  # type: ignore[arg-type]
    true = leading(covariance(known))
    sound, narrow = np.zeros((2, *true.shape), np.int64)
    for number in range(DRAWS):
        release = known.release(number)
        found = components(release, K)
        ends = intervals_of(release, found, scree(release, found.eigenvalues))  # type: ignore[arg-type]
        assert ends is not None
        sound = sound + hits(true, found.components, ends)
        narrow = narrow + hits(true, found.components, ends, 1 / 5)
    least = binom.ppf(FALSE_ALARM / np.size(sound), DRAWS, 0.85)
    assert np.min(sound) >= least
    assert np.mean(narrow) < least


def test_loadings_of_correlations_lie_where_they_are_said_to() -> None:
    """In 80 % of releases at least: what divides a column is released too, and not linear."""
    known = scene("strong", mean=0.5, epsilon="4")
    matrix = covariance(known)
    deviations = np.sqrt(np.diag(matrix))
    true = leading(matrix / np.outer(deviations, deviations))
    sound, narrow = np.zeros((2, *true.shape), np.int64)
    for number in range(DRAWS):
        found = correlation(known.release(number), K)
        assert found.loadings is not None
        sound = sound + hits(true, found.components.components, found.loadings)
        narrow = narrow + hits(true, found.components.components, found.loadings, 1 / 5)
    least = binom.ppf(FALSE_ALARM / np.size(sound), DRAWS, 0.8)
    assert np.min(sound) >= least
    assert np.mean(narrow) < least


def test_nothing_is_said_of_what_does_not_stand_above_the_noise() -> None:
    release = scene("weak", epsilon="0.5").release()
    found = components(release, 10)
    seen = scree(release, found.eigenvalues)  # type: ignore[arg-type]
    assert seen is not None
    ends = intervals_of(release, found, seen)
    assert ends is not None
    assert np.isfinite(ends[: seen.above]).all()
    assert np.isnan(ends[seen.above :]).all()
    assert text.loadings(found.components, ends, release.names).count("c") >= 3 * seen.above
    drowned = text.loadings(found.components[seen.above :], ends[seen.above :], release.names)
    assert drowned == ""
    said = json.loads(json.dumps(loadings_json(found.components, ends, release.names)))["largest_loadings"]
    assert len(said) == 10
    assert said[9][0]["low"] is None
    assert (said[0][0]["low"] is None) is (seen.above == 0)


def test_the_ends_go_with_the_signs_of_the_components() -> None:
    release = scene("strong").release()
    found = components(release, K)
    seen = scree(release, found.eigenvalues)  # type: ignore[arg-type]
    turned = Components(-found.components, found.eigenvalues, found.per_row, found.mean, found.scale)
    ends, other = (intervals_of(release, each, seen) for each in (found, turned))
    assert ends is not None
    assert other is not None
    np.testing.assert_allclose(ends[..., 0], -other[..., 1])
    middle = ends.mean(axis=-1)
    assert (np.sign(middle) == np.sign(found.components))[np.abs(found.components) > 0.2].all()


def test_a_single_column_that_stands_above_the_noise_has_a_loading_without_error() -> None:
    """What rounding leaves of a variance of 0 may be less than 0."""
    for divisor in np.random.default_rng(5).uniform(0.1, 9, 200):
        noise = EntryNoise(0.2, 0.1, 0.0, np.zeros(1))
        found = loading_intervals(np.ones(1), np.ones((1, 1)), 1, noise, np.array([divisor]))
        assert np.allclose(found, 1, atol=1e-6)
