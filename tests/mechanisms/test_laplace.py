"""The discrete Laplace distribution and its two mechanisms."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.tallies import FALSE_ALARM

from dpdist.mechanisms import registry
from dpdist.mechanisms.laplace import CalibratedLaplace
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.lattice import discrete_laplace
from dpdist.privacy.guarantee import Arithmetic, Neighbours, PrivacyLoss


def fits(draws: npt.NDArray[np.int64], scale: float) -> bool:
    """Chi-squared test of draws against the exact discrete Laplace distribution."""
    x = np.arange(-int(6 * scale) - 1, int(6 * scale) + 2)
    probability = np.tanh(0.5 / scale) * np.exp(-np.abs(x) / scale)
    probability[[0, -1]] /= 1 - math.exp(-1 / scale)  # the outermost cells hold the tails
    observed = np.bincount(np.clip(draws, x[0], x[-1]) - x[0], minlength=x.size)
    return bool(stats.chisquare(observed, probability * draws.size).pvalue > FALSE_ALARM)


@pytest.mark.parametrize("scale", [1, 2, 3, 10])
def test_small_scales_are_discrete_laplace_and_the_twin_fails(scale: int) -> None:
    draws = discrete_laplace(scale, 400_000, SYSTEM)
    assert fits(draws, scale)
    assert not fits(draws, scale / 0.95)  # 5 % too little noise, detected with probability 1 - 1e-9


def test_large_scales_are_laplace_and_their_low_bits_uniform() -> None:
    scale = 2**41 + 12345
    draws = discrete_laplace(scale, 400_000, SYSTEM)
    assert stats.kstest(draws / scale, "laplace").pvalue > FALSE_ALARM
    assert stats.kstest(0.95 * draws / scale, "laplace").pvalue < FALSE_ALARM
    low = np.bincount((draws & 255).astype(np.intp), minlength=256)
    assert stats.chisquare(low).pvalue > FALSE_ALARM


@given(st.integers(1, 60), st.integers(1, 4**9), st.integers(1, 10**7), st.sampled_from(Neighbours))
def test_the_scale_is_the_least_that_keeps_epsilon(size: int, bound: int, micro: int, neighbours: Neighbours) -> None:
    loss, query = PrivacyLoss(micro), LatticeQuery(size, bound, neighbours)
    for name, sensitivity in (("laplace", query.triangle_l1), ("laplace-published", 2 * size * bound)):
        mechanism = registry.calibrated(name, query, loss)
        assert isinstance(mechanism, CalibratedLaplace)
        assert mechanism.scale - 1 < Fraction(sensitivity * 10**6, micro) <= mechanism.scale
        assert mechanism.guarantee.loss == mechanism.claim == loss
        assert mechanism.guarantee.neighbours is neighbours
        assert mechanism.guarantee.mu_squared is None
        assert mechanism.guarantee.arithmetic is Arithmetic.INTEGER_EXACT


def test_every_entry_of_the_noise_has_the_stated_distribution() -> None:
    mechanism = registry.calibrated("laplace", LatticeQuery(20, 2, Neighbours.REPLACE_ONE), PrivacyLoss.parse("8"))
    assert isinstance(mechanism, CalibratedLaplace)
    sample = np.stack([mechanism.draw(SYSTEM) for _ in range(2500)])
    assert sample.shape == (2500, 210)
    assert fits(sample.ravel(), mechanism.noise["scale"])
    exact = sum(2 * x * x * math.tanh(0.5 / mechanism.scale) * math.exp(-x / mechanism.scale) for x in range(2000))
    assert mechanism.noise["variance_diagonal"] == pytest.approx(exact)
    assert mechanism.noise["variance_off_diagonal"] == pytest.approx(exact)
    # independent entries: the largest correlation is within chance, with a margin for the heavier tails
    correlation = np.abs(np.asarray(np.corrcoef(sample.T))[np.triu_indices(210, 1)]) * math.sqrt(2500)
    assert correlation.max() < 1.1 * stats.norm.isf(FALSE_ALARM / correlation.size)
