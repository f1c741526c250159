"""Additive Wishart noise: scales, true guarantees, the distribution of its draws, and the attack of the erratum."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.registered import BOUND, calibrated
from support.replays import Recording, Replaying
from support.tallies import FALSE_ALARM, total_passes
from support.wishart_pairs import replace_one_delta_at

from dpdist.core.errors import RefusedError
from dpdist.core.mechanisms.base import is_private_as_claimed
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.products import rounded_wishart
from dpdist.core.privacy.guarantee import Arithmetic, Neighbours, PrivacyLoss
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.triangle import unpacked
from dpdist.literature.one_sided import CalibratedWishart
from dpdist.literature.wishart_profile import add_remove_delta, replace_one_delta

ONE = PrivacyLoss.parse("1")


def matrices(mechanism: CalibratedWishart, count: int) -> npt.NDArray[np.float64]:
    return np.stack([unpacked(mechanism.draw(SYSTEM), mechanism.size) for _ in range(count)]).astype(np.float64)


@pytest.mark.parametrize("neighbours", Neighbours)
def test_wishart_keeps_its_guarantee_and_five_per_cent_less_noise_would_not(neighbours: Neighbours) -> None:
    mechanism = calibrated("wishart", 30, neighbours=neighbours)
    assert mechanism.guarantee.loss == mechanism.claim == PrivacyLoss.parse("1", "1e-6")
    kappa, theta = (mechanism.columns - 30 + 1) / 2, 2 * mechanism.scale / BOUND
    coarse = calibrated("wishart", 30, 4**2, Neighbours.ADD_REMOVE)  # the scale is rounded up
    kappas = (coarse.columns - 30 + 1) / 2
    delta, less = (add_remove_delta(1.0, kappas, 2 * scale / 4**2) for scale in (coarse.scale, coarse.scale - 1))
    assert delta <= 1e-6 < less
    if neighbours is Neighbours.ADD_REMOVE:
        assert add_remove_delta(1.0, kappa, theta) <= 1e-6 < add_remove_delta(1.0, kappa, 0.95 * theta)
    else:
        assert replace_one_delta(1.0, kappa, theta, enough=1e-6) <= 1e-6
        assert replace_one_delta_at(1.0, kappa, 0.95 * theta, (1.0, 1.0)) > 1e-6


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize(("name", "factor"), [("sn", 1), ("jiang-wishart", 3)])
@pytest.mark.parametrize("epsilon", ["0.1", "1"])
def test_the_purely_private_ones_are_not(name: str, factor: int, epsilon: str, neighbours: Neighbours) -> None:
    loss = PrivacyLoss.parse(epsilon)
    mechanism = calibrated(name, 20, BOUND, neighbours, epsilon)
    exact = Fraction(factor * BOUND) / (2 * Fraction(epsilon))
    assert exact <= mechanism.scale < exact + 1
    assert mechanism.columns == 21
    assert mechanism.claim == loss
    assert mechanism.guarantee.loss.delta == pytest.approx(-math.expm1(-float(epsilon) / factor), rel=1e-8)
    assert mechanism.guarantee.loss.epsilon_micro == loss.epsilon_micro
    assert not is_private_as_claimed(mechanism)
    with pytest.raises(RefusedError, match=r"delta 0\.\d+\. Use mechanism='two-sided-wishart'"):
        planned(ReleaseRequest(name, loss, clip_norm=1.0, neighbours=neighbours), Dimensions(20))


@pytest.mark.parametrize("neighbours", Neighbours)
def test_sheffet_keeps_far_more_than_it_claims_at_epsilon_one(neighbours: Neighbours) -> None:
    mechanism = calibrated("sheffet-wishart", 50, neighbours=neighbours)
    assert (mechanism.columns, mechanism.scale) == (475, BOUND)
    assert mechanism.guarantee.loss.delta_atto == 1  # the true one is about 1e-43
    assert is_private_as_claimed(mechanism)
    larger = calibrated("sheffet-wishart", 50, BOUND, neighbours, PrivacyLoss.parse("3", "1e-2"))
    truth = replace_one_delta_at(3.0, 9.5, 2.0, (1.0, 1.0)) if neighbours is Neighbours.REPLACE_ONE else 0.0
    truth = max(truth, add_remove_delta(3.0, 9.5, 2.0))
    assert larger.columns == 50 + 18
    assert truth * (1 - 1e-4) <= larger.guarantee.loss.delta <= 1.2 * truth
    few = calibrated("sheffet-wishart", 10, BOUND, neighbours, "8")  # degrees of freedom
    assert few.columns == 10 + 6
    assert few.guarantee.loss.delta > 5e-3
    assert not is_private_as_claimed(few)
    # with m = d the density is not log-concave: nothing is proved
    assert calibrated("sheffet-wishart", 10, BOUND, neighbours, "21").guarantee is None


def test_draws_are_wishart_and_twins_are_not() -> None:
    """The ideal-real ones; tests/core/noise/test_products.py tests the integer-exact ones."""
    size, columns, count = 3, 6, 2500
    sample = matrices(CalibratedWishart(size, columns, BOUND, Arithmetic.IDEAL_REAL, None, ONE), count) / BOUND
    direction = np.array([0.6, -0.48, 0.64])
    inverse = 1 / np.einsum("i,nij,j->n", direction, np.linalg.inv(sample), direction)
    laws = [(inverse, columns - size + 1), *((sample[:, i, i], columns) for i in range(size))]
    for law, degrees in laws:
        assert stats.kstest(law, stats.chi2(degrees).cdf).pvalue > FALSE_ALARM
        for off in (-1, 1):  # in the Bartlett factor: passes with probability 3e-10
            assert stats.kstest(law, stats.chi2(degrees + off).cdf).pvalue < FALSE_ALARM
    trace = float(np.trace(sample, axis1=1, axis2=2).sum())
    assert total_passes(trace, stats.chi2(columns * size * count))
    assert not total_passes(0.9 * trace, stats.chi2(columns * size * count))
    # independent entries of Z: u^T E v / sqrt(v^T E v) is normal for orthogonal u, v
    normal = sample[:, 0, 2] / np.sqrt(sample[:, 2, 2])
    assert stats.kstest(normal, "norm").pvalue > FALSE_ALARM
    assert total_passes(float(normal @ normal), stats.chi2(count))
    assert not total_passes(1.2**2 * float(normal @ normal), stats.chi2(count))


@pytest.mark.parametrize("name", ["wishart", "two-sided-wishart"])
def test_noise_is_exactly_rounded_unless_real_arithmetic_is_asked_for(name: str) -> None:
    mechanism, recording = calibrated(name, 4), Recording()
    drawn, again = mechanism.draw(recording), Replaying(recording.drawn)
    columns = 5 if name == "two-sided-wishart" else mechanism.columns
    expected = rounded_wishart(4, columns, mechanism.scale, again)
    if name == "two-sided-wishart":
        expected -= rounded_wishart(4, columns, mechanism.scale, again)
    assert np.array_equal(drawn, expected)
    assert not again.left
    assert mechanism.guarantee.arithmetic is Arithmetic.INTEGER_EXACT
    assert calibrated(name, 4, arithmetic="ideal-real").guarantee.arithmetic is Arithmetic.IDEAL_REAL


def test_sn_leaks_a_row_with_the_proved_probability_and_a_twin_does_not() -> None:
    mechanism, count = calibrated("sn", 3, neighbours=Neighbours.ADD_REMOVE), 2000
    row = np.array([0.0, 0.0, math.sqrt(BOUND)])
    for columns, leaks in ((mechanism.columns, True), (mechanism.columns + 1, False)):
        released = matrices(replace(mechanism, columns=columns), count)
        impossible = int((np.linalg.eigvalsh(released - np.outer(row, row))[:, 0] < 0).sum())  # with one row more
        pvalue = stats.binomtest(impossible, count, mechanism.guarantee.loss.delta).pvalue
        assert bool(pvalue > FALSE_ALARM) is leaks
