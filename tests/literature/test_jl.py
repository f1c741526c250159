"""Random projections: the exact profile and its worst case, the ridges, and the distribution of the release."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.registered import calibrated
from support.tallies import FALSE_ALARM

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.base import is_private_as_claimed
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.triangle import unpacked
from dpdist.literature.attack import KnownMoment
from dpdist.literature.jl import published_ridge
from dpdist.literature.jl_profile import profile, row_in, row_out, row_replaced

UNIT = 4**12
ONE_MILLIONTH = PrivacyLoss.parse("1", "1e-6")
Floats = npt.NDArray[np.float64]


@pytest.mark.parametrize(
    ("epsilon", "sketch", "gain", "into", "out", "replaced"),
    # integrals of the densities with mpmath in 30 digits
    [
        (1, 784, 0.0112, 2.480894306069295e-08, 9.772092441188262e-07, 9.547500157592108e-05),
        (1, 784, 0.005, 0.0, 1.6355109440925655e-20, 2.7689564063483657e-14),
        (0.1, 2, 0.3, 0.04327251970165829, 0.06896073803283116, 0.09346060572701598),
        (2, 3, 5.0, 0.09076143826664064, 0.5215502987473278, 0.6445255261548523),
        (50, 20, 10.0, 0.0, 0.7765385884055364, 0.9138690201964583),
    ],
)
def test_the_profiles_are_upper_bounds_and_tight(
    epsilon: float, sketch: int, gain: float, into: float, out: float, replaced: float
) -> None:
    for delta, exact in ((row_in(epsilon, sketch, gain), into), (row_out(epsilon, sketch, gain), out)):
        assert exact * (1 - 1e-14) <= delta <= exact * (1 + 1e-7) + 1e-23
    assert replaced * (1 - 1e-12) <= row_replaced(epsilon, sketch, gain) <= replaced * (1 + 1e-5)


def measured(first: Floats, second: Floats, sketch: int, epsilon: float) -> tuple[float, float]:
    """Estimate delta of the first covariance against the second, and its standard error, from the densities."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(200_000, sketch, first.shape[0])) @ np.linalg.cholesky(first).T
    square = np.einsum("kri,ij,krj->k", rows, np.linalg.inv(second) - np.linalg.inv(first), rows)
    logs = np.linalg.slogdet(second)[1] - np.linalg.slogdet(first)[1]
    lost = np.maximum(0, -np.expm1(epsilon - (square + sketch * logs) / 2))
    return float(np.mean(lost)), float(np.std(lost) / math.sqrt(lost.size))


def test_the_profiles_are_those_of_three_columns_by_simulation() -> None:
    ridge, sketch, epsilon = 2.0, 6, 0.5
    turned = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    v, w = turned[0], turned[1]
    empty = ridge * np.eye(3)
    one, other = empty + np.outer(v, v), empty + np.outer(w, w)
    limit = 1.2 * stats.norm.isf(FALSE_ALARM / 2)  # a fifth more: means of 200 000 are normal to well within that
    for first, second, delta in (
        (empty, one, row_in),
        (one, empty, row_out),
        (one, other, row_replaced),
        (other, one, row_replaced),
    ):
        mean, error = measured(first, second, sketch, epsilon)
        assert abs(mean - delta(epsilon, sketch, 0.5)) < limit * error
        assert abs(mean - delta(epsilon, sketch, 0.9 * 0.5)) > limit * error  # twin: a tenth less gain


@pytest.mark.parametrize(
    ("neighbours", "sketch", "ridge"),
    [(Neighbours.ADD_REMOVE, 784, 89.18), (Neighbours.REPLACE_ONE, 784, 118.42)],
)
def test_the_exact_ridge_is_the_least(neighbours: Neighbours, sketch: int, ridge: float) -> None:
    mechanism = calibrated("jl", 784, UNIT, neighbours, sketch=sketch)
    assert mechanism.ridge / UNIT == pytest.approx(ridge, rel=2e-4)
    assert mechanism.noise["mean_diagonal"] == mechanism.ridge
    delta = profile(neighbours, 784, sketch)
    assert delta(1, UNIT / mechanism.ridge) <= 1e-6 < delta(1, UNIT / (mechanism.ridge * (1 - 1e-6)))


def test_the_published_ridges_and_their_guarantees() -> None:
    assert published_ridge("published", ONE_MILLIONTH, 784) == pytest.approx(1.574e9, rel=1e-3)
    assert published_ridge("sheffet", ONE_MILLIONTH, 784) == pytest.approx(678.4, rel=1e-3)
    for rule in ("published", "sheffet"):
        assert is_private_as_claimed(calibrated("jl", 54, UNIT, sketch=784, ridge=rule))
    # far from its intended range, Sheffet's ridge fails: first by a stated delta, then without bound
    high = calibrated("jl", 54, UNIT, loss="1000", sketch=100_000, ridge="sheffet")
    assert not is_private_as_claimed(high)
    assert high.guarantee.loss.delta == pytest.approx(2.92e-3, rel=1e-2)
    assert calibrated("jl", 54, UNIT, loss="10000", sketch=8000, ridge="sheffet").guarantee is None


def test_the_release_is_wishart_around_moment_plus_ridge_and_its_twin_fails() -> None:
    sketch = 2
    mechanism = calibrated("jl", 3, UNIT, sketch=sketch)
    half = np.random.default_rng(4).normal(size=(3, 3))
    moment = KnownMoment(np.rint(half @ half.T * mechanism.ridge).astype(np.int64))
    mean = moment.values + mechanism.ridge * np.eye(3)
    count = 6000
    sample = np.array([unpacked(mechanism.answer(moment, SYSTEM), 3) for _ in range(count)], dtype=np.float64)
    for i in range(3):
        ratio = sketch * sample[:, i, i] / mean[i, i]
        assert stats.kstest(ratio, stats.chi2(sketch).cdf).pvalue > FALSE_ALARM / 3
        # twins: one draw less, and no ridge
        assert stats.kstest(ratio * (sketch - 1) / sketch, stats.chi2(sketch - 1).cdf).pvalue < FALSE_ALARM
        assert stats.kstest(ratio * mean[i, i] / moment.values[i, i], stats.chi2(sketch).cdf).pvalue < FALSE_ALARM
    limit = 1.2 * stats.norm.isf(FALSE_ALARM / 18)
    deviation = (sample.mean(axis=0) - mean) / (sample.std(axis=0) / math.sqrt(count))
    assert np.abs(deviation).max() < limit
    untold = (sample.mean(axis=0) - moment.values) / (sample.std(axis=0) / math.sqrt(count))
    assert np.abs(np.diag(untold)).min() > limit
    # the rank is the number of draws, up to rounding
    assert (np.linalg.eigvalsh(sample)[:, 0] / mechanism.ridge).max() < 1e-6


def test_no_moment_makes_the_draw_fail() -> None:
    mechanism = calibrated("jl", 3, UNIT)
    for values in (np.zeros((3, 3), dtype=np.int64), np.full((3, 3), 2**62), np.diag([2**62, 0, 0])):
        for _ in range(200):  # a sixth of the draws from 2^62 exceed 2^63
            released = mechanism.answer(KnownMoment(values), SYSTEM)
            assert np.all(released[[0, 3, 5]] >= 0)  # no integer has wrapped around
    assert released.dtype == np.int64


@pytest.mark.parametrize(
    ("options", "bits", "message"),
    [
        ({"sketch": 100_001}, 12, "from 1 to 100000"),
        ({"sketch": 784, "ridge": "published"}, 16, "grid"),
        ({"sketch": 784}, 28, "grid"),
        ({"sketch": 784, "ridge": "least"}, 12, "ridge"),
    ],
)
def test_senseless_options_are_refused_and_named(options: dict[str, Any], bits: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        calibrated("jl", 3, 4**bits, **options)
