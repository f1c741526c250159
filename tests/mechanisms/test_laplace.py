"""The discrete Laplace law, and the two mechanisms that draw from it."""

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
    """Chi-squared test of draws against the exact discrete Laplace law of a scale."""
    x = np.arange(-int(6 * scale) - 1, int(6 * scale) + 2)
    probability = np.tanh(0.5 / scale) * np.exp(-np.abs(x) / scale)
    probability[[0, -1]] /= 1 - math.exp(-1 / scale)  # the outermost cells hold the tails
    observed = np.bincount(np.clip(draws, x[0], x[-1]) - x[0], minlength=x.size)
    return bool(stats.chisquare(observed, probability * draws.size).pvalue > FALSE_ALARM)


@pytest.mark.parametrize("scale", [1, 2, 3, 10])
def test_small_scales_are_discrete_laplace_and_the_twin_fails(scale: int) -> None:
    draws = discrete_laplace(scale, 400_000, SYSTEM)
    assert fits(draws, scale)
    assert not fits(draws, scale / 0.95)  # 5 % too little noise, told apart with probability 1 - 1e-9


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
        found = registry.calibrated(name, query, loss)
        assert isinstance(found, CalibratedLaplace)
        assert found.scale - 1 < Fraction(sensitivity * 10**6, micro) <= found.scale
        assert found.guarantee.loss == found.claim == loss
        assert found.guarantee.neighbours is neighbours
        assert found.guarantee.mu_squared is None
        assert found.guarantee.arithmetic is Arithmetic.INTEGER_EXACT


def test_every_entry_of_the_noise_has_the_stated_law() -> None:
    found = registry.calibrated("laplace", LatticeQuery(20, 2, Neighbours.REPLACE_ONE), PrivacyLoss.parse("8"))
    assert isinstance(found, CalibratedLaplace)
    sample = np.stack([found.draw(SYSTEM) for _ in range(2500)])
    assert sample.shape == (2500, 210)
    assert fits(sample.ravel(), found.noise["scale"])
    exact = sum(2 * x * x * math.tanh(0.5 / found.scale) * math.exp(-x / found.scale) for x in range(2000))
    assert found.noise["variance_diagonal"] == pytest.approx(exact)
    assert found.noise["variance_off_diagonal"] == pytest.approx(exact)
    # independent entries: the largest of all correlations is what chance gives, with room for the heavier tails
    correlation = np.abs(np.asarray(np.corrcoef(sample.T))[np.triu_indices(210, 1)]) * math.sqrt(2500)
    assert correlation.max() < 1.1 * stats.norm.isf(FALSE_ALARM / correlation.size)
