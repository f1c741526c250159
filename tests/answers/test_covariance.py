"""The covariance of a release: shrunk by default, with intervals that hold as often as they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.releases import drawn_over
from support.tallies import FALSE_ALARM

from dpdist.answers.block import EntryNoise
from dpdist.answers.covariance import _correlation_variances, _entry_variances, correlations, covariance
from dpdist.answers.shrinkage import Shrinkage
from dpdist.errors import UsageError
from dpdist.mechanisms.noise_law import Noise
from dpdist.moment.total import drawn as drawn_key
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release.artefact import Release
from dpdist.release.request import Centring, ReleaseRequest
from dpdist.rows.bounding import TRUNCATED
from dpdist.rows.dither import DitherKey, Dithers
from papers.common.drawn import Drawn, drawn

Floats = npt.NDArray[np.float64]
RELEASES = 150
FEWEST = int(stats.binom.ppf(FALSE_ALARM, RELEASES, 0.93))


def scene(n: int = 4000, mechanism: str = "gaussian", neighbours: Neighbours = Neighbours.ADD_REMOVE) -> Drawn:
    random = np.random.default_rng(8)
    x = random.normal(size=(n, 4)) @ np.array([[1, 0.8, 0, 0], [0, 0.6, 0, 0], [0, 0, 1, -0.4], [0, 0, 0, 0.8]])
    return drawn(x * [1, 10, 1, 1] + [0, 5, 1, 0], 3.0, mechanism=mechanism, neighbours=neighbours,
                 scale=(1.0, 10.0, 1.0, 1.0))  # fmt: skip


def exact(made: Drawn) -> Floats:
    bounded = made.bounded[:, :4] * [1, 10, 1, 1]
    return np.asarray(np.cov(bounded, rowvar=False, bias=True), dtype=np.float64)


def inside(truth: Floats, ends: Floats) -> npt.NDArray[np.bool_]:
    return (ends[..., 0] <= truth + 1e-12) & (truth <= ends[..., 1] + 1e-12)


@pytest.mark.parametrize("mechanism", ["gaussian", "two-sided-wishart"])
def test_intervals_of_entries_and_correlations_hold(mechanism: str) -> None:
    made = scene(mechanism=mechanism)
    truth = exact(made)
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


@pytest.mark.parametrize("exact", [None, 3])
def test_errors_of_entries_are_those_of_their_functionals(exact: int | None) -> None:
    """Against the functionals of the module's docstring, put together as matrices."""
    random = np.random.default_rng(3)
    noise = EntryNoise(on=2.6, off=1.0, exact=exact, shared=0.2)
    rows = random.normal(size=(9, 3)) + 1
    kappa, mean = 1.5, rows.mean(axis=0)
    c = np.cov(rows, rowvar=False, bias=True)
    v = np.column_stack([np.eye(3), -mean / kappa])
    w = v / np.sqrt(np.diagonal(c))[:, None]
    r = np.asarray(np.corrcoef(rows, rowvar=False))
    last = np.zeros((4, 4))
    last[3, 3] = 1 / kappa**2
    entries = _entry_variances(noise, mean / kappa, c / kappa**2)
    correlations = _correlation_variances(noise, mean / kappa / np.sqrt(np.diagonal(c)), 1 / np.diagonal(c), r)
    for i in range(3):
        for j in range(3):
            both = (np.outer(v[i], v[j]) + np.outer(v[j], v[i])) / 2 - c[i, j] * last
            assert entries[i, j] == pytest.approx(noise.of_functional(both))
            if i != j:
                both = (np.outer(w[i], w[j]) + np.outer(w[j], w[i])) / 2
                both -= r[i, j] / 2 * (np.outer(w[i], w[i]) + np.outer(w[j], w[j]))
                assert correlations[i, j] == pytest.approx(noise.of_functional(both))


def test_the_default_is_shrunk_and_positive_and_the_others_are_what_they_say() -> None:
    made = scene(n=300)
    release = made.release()
    found = {each: covariance(release, each) for each in Shrinkage}
    units = np.outer([1, 10, 1, 1], [1, 10, 1, 1])
    assert found[Shrinkage.NONE].matrix is not found[Shrinkage.OPTIMAL].matrix
    assert np.array_equal(found[Shrinkage.NONE].matrix, found[Shrinkage.NONE].released)
    best = found[Shrinkage.OPTIMAL]
    assert np.array_equal(covariance(release).matrix, best.matrix)
    assert np.linalg.eigvalsh(best.matrix)[0] > 0
    assert best.precision is not None
    assert np.allclose(best.precision @ best.matrix, np.eye(4), atol=1e-8)
    assert np.allclose(np.diagonal(best.correlation), 1)
    assert np.abs(best.correlation).max() <= 1 + 1e-12
    traced = found[Shrinkage.TRACE]
    assert traced.precision is None
    assert np.linalg.eigvalsh(traced.matrix / units)[0] > -1e-9
    assert np.trace(traced.matrix / units) <= 9 * (1 + 1e-9)


def test_a_variance_that_may_be_nothing_tells_no_correlation() -> None:
    random = np.random.default_rng(8)
    rows = np.column_stack([random.normal(size=400), 1e-4 * random.normal(size=400)])
    found = covariance(drawn(rows, 2.0, "2").release())
    assert found.correlation_intervals is not None
    at_most = found.correlation_intervals[0, 1]
    assert at_most.tolist() == [-1, 1] or found.released[1, 1] > 1.96 * found.errors[1, 1]  # type: ignore[index]
    assert found.correlation_intervals[0, 0].tolist() == [1, 1]


def test_correlations_of_the_clearest_columns_are_those_of_all_with_their_intervals() -> None:
    """The third column varies least, by far: 0.25 for 1, where the noise on a variance is about 0.02."""
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
    rows = np.random.default_rng(1).normal(size=(400, 2))
    alone = drawn(rows, 2.0, neighbours=Neighbours.ADD_REMOVE, centring=Centring.NONE).release()
    with pytest.raises(UsageError, match="no covariance without the private mean: take centring='private'"):
        covariance(alone)
    with pytest.raises(UsageError, match="releases components"):
        covariance(replace(release, answer=np.eye(4)[:2]), Shrinkage.NONE)
    unknown = replace(release, noise=Noise("own"))
    with pytest.raises(UsageError, match="no known law"):
        covariance(unknown)
    assert covariance(unknown, Shrinkage.NONE).intervals is None


def test_errors_contain_those_of_rounding() -> None:
    """All rows point along the first axis, the worst case, and noise is small beside their rounding. Of 100 releases.

    A standard deviation of 100 entries is 40 % off with a probability below 1e-7; those of more are closer.
    """
    d = 40

    def stated(release: Release) -> Floats:
        errors = covariance(release, Shrinkage.NONE).errors
        assert errors is not None
        return errors

    request = ReleaseRequest("gaussian", PrivacyLoss.parse("100000", "1e-6"), 4.0, grid_bits=8)
    bound = request.bound(d)
    rows = np.zeros((2000, d))
    rows[:, 0] = 8.0
    found = []
    for _ in range(100):
        z = bound.apply(rows, np.empty(rows.shape), Dithers(DitherKey(drawn_key()), 0))
        release = drawn_over(request, (z.T @ z).astype(np.int64), d, 2000)
        found.append(covariance(release, Shrinkage.NONE).released)
    spread, errors = np.std(found, axis=0), stated(release)
    assert spread[0, 0] == pytest.approx(errors[0, 0], rel=0.4)
    assert np.sqrt((spread[0, 1:] ** 2).mean()) == pytest.approx(errors[0, 1], rel=0.1)
    assert (spread[1:, 1:] < errors[1:, 1:]).all()  # which are stated for the worst case
    plain = stated(replace(release, bound=replace(bound, rule=TRUNCATED)))
    assert (spread[0] > 5 * plain[0]).all()  # the twin: noise alone
    exact = bound.shortened_norm**2
    assert np.mean(found, axis=0)[0, 0] == pytest.approx(exact, abs=5 * errors[0, 0] / 100**0.5)
    assert np.diag(np.mean(found, axis=0))[1:].mean() == pytest.approx(0, abs=5 * errors[1, 1] / (100 * d) ** 0.5)
