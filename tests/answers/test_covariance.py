"""The covariance of a release: shrunk by default, with the stated coverage of intervals; and synthetic rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.tallies import FALSE_ALARM

from dpdist.answers.covariance import correlations, covariance
from dpdist.answers.shrinkage import Shrinkage
from dpdist.answers.synthetic import synthetic
from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release.request import Centring
from papers.common.drawn import Drawn, drawn
from papers.common.held import covariance_of

Floats = npt.NDArray[np.float64]
RELEASES = 100
FEWEST = int(stats.binom.ppf(FALSE_ALARM, RELEASES, 0.93))


def scene(n: int = 4000, mechanism: str = "gaussian", neighbours: Neighbours = Neighbours.ADD_REMOVE) -> Drawn:
    random = np.random.default_rng(8)
    x = random.normal(size=(n, 4)) @ np.array([[1, 0.8, 0, 0], [0, 0.6, 0, 0], [0, 0, 1, -0.4], [0, 0, 0, 0.8]])
    scale = (1.0, 10.0, 1.0, 1.0)
    return drawn(x * scale + [0, 5, 1, 0], 3.0, mechanism=mechanism, neighbours=neighbours, scale=scale)


def inside(truth: Floats, ends: Floats) -> npt.NDArray[np.bool_]:
    return (ends[..., 0] <= truth + 1e-12) & (truth <= ends[..., 1] + 1e-12)


@pytest.mark.parametrize("mechanism", ["gaussian", "two-sided-wishart"])
def test_intervals_of_entries_and_correlations_hold(mechanism: str) -> None:
    made = scene(mechanism=mechanism)
    truth = np.cov(made.bounded[:, :4] * [1, 10, 1, 1], rowvar=False, bias=True)
    spread = np.sqrt(np.diagonal(truth))
    entries, correlations, short = np.zeros((4, 4)), np.zeros((4, 4)), np.zeros((4, 4))
    for _ in range(RELEASES):
        found = covariance(made.release())
        assert found.intervals is not None
        assert found.correlation_intervals is not None
        entries += inside(truth, found.intervals)
        correlations += inside(truth / np.outer(spread, spread), found.correlation_intervals)
        middle = found.released[..., None]
        short += inside(truth, middle + (found.intervals - middle) / 2)
    assert entries.min() >= FEWEST
    assert correlations.min() >= FEWEST
    assert short.min() < FEWEST  # the twin, of half the length


def test_a_variance_that_may_be_nothing_tells_no_correlation() -> None:
    random = np.random.default_rng(8)
    rows = np.column_stack([random.normal(size=400), 1e-4 * random.normal(size=400)])
    found = covariance(drawn(rows, 2.0, "2").release())
    assert found.correlation_intervals is not None
    at_most = found.correlation_intervals[0, 1]
    assert at_most.tolist() == [-1, 1] or found.released[1, 1] > 1.96 * found.errors[1, 1]  # type: ignore[index]
    assert found.correlation_intervals[0, 0].tolist() == [1, 1]


def test_correlations_of_the_clearest_columns_are_those_of_all_with_their_intervals() -> None:
    """The third column varies least by far: 0.25 instead of 1, with noise of about 0.02 in a variance."""
    mixed = np.array([[1, 0.8, 0, 0], [0, 0.6, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 1]])
    x = np.random.default_rng(9).normal(size=(4000, 4)) @ mixed
    release = drawn(x + np.array([0, 0.5, 0, 0]), 3.0).release()
    whole = covariance(release)
    assert whole.correlation_intervals is not None
    for most, expected in ((9, [0, 1, 2, 3]), (3, [0, 1, 3])):
        found, block = correlations(release, most), np.ix_(expected, expected)
        assert (list(found.columns), found.clear) == (expected, 4)
        np.testing.assert_allclose(found.intervals, whole.correlation_intervals[block], atol=1e-9)
        assert inside(found.values, found.intervals).all()
    with pytest.raises(UsageError, match="no mean and no centre"):
        correlations(drawn(x, 3.0, centring=Centring.NONE).release(), 4)


def test_what_gives_no_covariance_is_refused_with_what_does() -> None:
    release = scene().release()
    with pytest.raises(UsageError, match="releases components"):
        covariance(replace(release, answer=np.eye(4)[:2]), Shrinkage.NONE)
    unknown = replace(release, noise=Noise("own"))
    with pytest.raises(UsageError, match="no known distribution"):
        covariance(unknown)
    assert covariance(unknown, Shrinkage.NONE).intervals is None


# --- synthetic rows


def ten_columns(**asked: object) -> Drawn:
    random = np.random.default_rng(8)
    rows = random.normal(size=(3000, 10)) * ([1.5, 1.2, 0.9] + 7 * [0.4]) + 0.3
    return drawn(rows, 6.0, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("mechanism", ["gaussian", "two-sided-wishart"])
def test_how_far_the_covariance_is_off_is_about_what_is_said(mechanism: str) -> None:
    """The twin, with half of the deviation, fails."""
    made = ten_columns(mechanism=mechanism, neighbours=Neighbours.ADD_REMOVE)
    exact, told, short, true = covariance_of(made), [], [], []
    for _ in range(50):  # the least ratio is 0.89, 5.3 standard errors above the limit; the twin is 8 below it
        release = made.release()
        found = covariance(release)
        less = {name: release.noise[name] / 4 for name in ("variance_diagonal", "variance_off_diagonal")}
        told.append(found.distance)
        short.append(covariance(replace(release, noise=replace(release.noise, **less))).distance)
        true.append(np.linalg.norm(found.matrix - exact) / np.linalg.norm(exact))
    assert 0.75 < np.mean(told) / np.mean(true) < 1.25  # type: ignore[arg-type]
    assert np.mean(short) / np.mean(true) < 0.75  # type: ignore[arg-type]


def test_rows_are_drawn_in_the_units_that_are_asked_for() -> None:
    release, units = ten_columns().release(), (np.arange(10.0), np.linspace(1, 3, 10))
    found, shrunk = synthetic(release, units), covariance(release, units=units)
    assert np.allclose(found.factor @ found.factor.T, shrunk.matrix)
    assert np.array_equal(found.location, shrunk.location)


def test_too_many_rows_at_once_and_none_are_refused() -> None:
    for count in (0, 1 << 60):
        with pytest.raises(UsageError, match="columns at once, not"):
            synthetic(ten_columns().release()).draw(count, np.random.default_rng(1))
