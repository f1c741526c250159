"""Additive Wishart noise: scales, true guarantees, the distribution of its draws, and the attack of the erratum."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.replays import Recording, Replaying
from support.tallies import FALSE_ALARM, total_passes
from support.wishart_pairs import replace_one_delta_at

from dpdist.errors import RefusedError
from dpdist.mechanisms import registry
from dpdist.mechanisms.base import is_private_as_claimed
from dpdist.mechanisms.one_sided import CalibratedWishart
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.products import rounded_wishart
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.privacy.wishart_profile import add_remove_delta, replace_one_delta
from dpdist.release.request import ReleaseRequest
from dpdist.triangle import unpacked

BOUND = 4**16
ONE = PrivacyLoss.parse("1")
ONE_MILLIONTH = PrivacyLoss.parse("1", "1e-6")
BOTH = list(Neighbours)
BOTH_ARITHMETICS = list(Arithmetic)


def calibrated(
    name: str, size: int, neighbours: Neighbours, loss: PrivacyLoss, bound: int = BOUND, **options: Any
) -> CalibratedWishart:
    mechanism = registry.calibrated(name, LatticeQuery(size, bound, neighbours), loss, options)
    assert isinstance(mechanism, CalibratedWishart)
    return mechanism


def proved(mechanism: CalibratedWishart) -> Guarantee:
    assert mechanism.guarantee is not None
    return mechanism.guarantee


def matrices(mechanism: CalibratedWishart, count: int) -> npt.NDArray[np.float64]:
    return np.stack([unpacked(mechanism.draw(SYSTEM), mechanism.size) for _ in range(count)]).astype(np.float64)


@pytest.mark.parametrize("neighbours", BOTH)
def test_wishart_keeps_its_guarantee_and_five_per_cent_less_noise_would_not(neighbours: Neighbours) -> None:
    mechanism = calibrated("wishart", 30, neighbours, ONE_MILLIONTH)
    assert proved(mechanism).loss == mechanism.claim == ONE_MILLIONTH
    assert proved(mechanism).neighbours is neighbours
    assert proved(mechanism).mu_squared is None
    assert is_private_as_claimed(mechanism)
    kappa, theta = (mechanism.columns - 30 + 1) / 2, 2 * mechanism.scale / BOUND
    coarse = calibrated("wishart", 30, Neighbours.ADD_REMOVE, ONE_MILLIONTH, bound=4**2)  # the scale is rounded up
    kappas = (coarse.columns - 30 + 1) / 2
    delta, less = (add_remove_delta(1.0, kappas, 2 * scale / 4**2) for scale in (coarse.scale, coarse.scale - 1))
    assert delta <= 1e-6 < less
    if neighbours is Neighbours.ADD_REMOVE:
        assert add_remove_delta(1.0, kappa, theta) <= 1e-6 < add_remove_delta(1.0, kappa, 0.95 * theta)
    else:
        assert replace_one_delta(1.0, kappa, theta, enough=1e-6) <= 1e-6
        assert replace_one_delta_at(1.0, kappa, 0.95 * theta, (1.0, 1.0)) > 1e-6


@pytest.mark.parametrize("neighbours", BOTH)
@pytest.mark.parametrize(("name", "factor"), [("sn", 1), ("jiang-wishart", 3)])
@pytest.mark.parametrize("epsilon", ["0.1", "1"])
def test_the_purely_private_ones_are_not(name: str, factor: int, epsilon: str, neighbours: Neighbours) -> None:
    loss = PrivacyLoss.parse(epsilon)
    mechanism = calibrated(name, 20, neighbours, loss)
    exact = Fraction(factor * BOUND) / (2 * Fraction(epsilon))
    assert exact <= mechanism.scale < exact + 1
    assert mechanism.columns == 21
    assert mechanism.claim == loss
    assert proved(mechanism).loss.delta == pytest.approx(-math.expm1(-float(epsilon) / factor), rel=1e-8)
    assert proved(mechanism).loss.epsilon_micro == loss.epsilon_micro
    assert not is_private_as_claimed(mechanism)
    with pytest.raises(RefusedError, match=r"delta 0\.\d+\. Use mechanism='two-sided-wishart'"):
        ReleaseRequest(name, loss, clip_norm=1.0, neighbours=neighbours).calibrated(20)


@pytest.mark.parametrize("neighbours", BOTH)
def test_sheffet_keeps_far_more_than_it_claims_at_epsilon_one(neighbours: Neighbours) -> None:
    mechanism = calibrated("sheffet-wishart", 50, neighbours, ONE_MILLIONTH)
    assert (mechanism.columns, mechanism.scale) == (475, BOUND)
    assert proved(mechanism).loss.delta_atto == 1  # the true one is about 1e-43
    assert is_private_as_claimed(mechanism)
    larger = calibrated("sheffet-wishart", 50, neighbours, PrivacyLoss.parse("3", "1e-2"))
    truth = replace_one_delta_at(3.0, 9.5, 2.0, (1.0, 1.0)) if neighbours is Neighbours.REPLACE_ONE else 0.0
    truth = max(truth, add_remove_delta(3.0, 9.5, 2.0))
    assert larger.columns == 50 + 18
    assert truth * (1 - 1e-4) <= proved(larger).loss.delta <= 1.2 * truth
    few = calibrated("sheffet-wishart", 10, neighbours, PrivacyLoss.parse("8", "1e-6"))  # degrees of freedom
    assert few.columns == 10 + 6
    assert proved(few).loss.delta > 5e-3
    assert not is_private_as_claimed(few)
    # with m = d the density is not log-concave: nothing is proved
    assert calibrated("sheffet-wishart", 10, neighbours, PrivacyLoss.parse("21", "1e-6")).guarantee is None


def test_integer_exact_noise_is_one_exactly_rounded_matrix() -> None:
    recording = Recording()
    drawn = CalibratedWishart(4, 7, BOUND, Arithmetic.INTEGER_EXACT, None, ONE).draw(recording)
    again = Replaying(recording.drawn)
    assert np.array_equal(drawn, rounded_wishart(4, 7, BOUND, again))
    assert not again.left


def test_draws_are_wishart_and_twins_are_not() -> None:
    """The ideal-real ones; tests/noise/test_products.py tests the integer-exact ones."""
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


@pytest.mark.parametrize("arithmetic", BOTH_ARITHMETICS)
def test_wishart_is_drawn_in_the_arithmetic_it_states_and_dominates_the_moment(arithmetic: Arithmetic) -> None:
    mechanism = calibrated("wishart", 12, Neighbours.REPLACE_ONE, ONE_MILLIONTH, arithmetic=arithmetic.value)
    assert proved(mechanism).arithmetic is arithmetic
    first, second = matrices(mechanism, 2)
    assert np.linalg.eigvalsh(first)[0] > 0
    assert not np.array_equal(first, second)
    assert calibrated("wishart", 12, Neighbours.REPLACE_ONE, ONE_MILLIONTH).arithmetic is Arithmetic.INTEGER_EXACT


def test_sn_leaks_a_row_with_the_proved_probability_and_a_twin_does_not() -> None:
    mechanism, count = calibrated("sn", 3, Neighbours.ADD_REMOVE, ONE), 2000
    row = np.array([0.0, 0.0, math.sqrt(BOUND)])
    for columns, leaks in ((mechanism.columns, True), (mechanism.columns + 1, False)):
        released = matrices(replace(mechanism, columns=columns), count)
        impossible = int((np.linalg.eigvalsh(released - np.outer(row, row))[:, 0] < 0).sum())  # with one row more
        pvalue = stats.binomtest(impossible, count, proved(mechanism).loss.delta).pvalue
        assert bool(pvalue > FALSE_ALARM) is leaks
