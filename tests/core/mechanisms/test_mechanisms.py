"""The scales of the two recommended mechanisms, and of those with discrete Laplace noise."""

from __future__ import annotations

import bisect
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.registered import BOUND, calibrated

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.registry import mechanism_named, recommended
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.privacy.accounting import gaussian_sigma
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss


@pytest.mark.parametrize(("neighbours", "sigma"), [(Neighbours.REPLACE_ONE, 2**0.5), (Neighbours.ADD_REMOVE, 1)])
def test_gaussian_scales_are_the_stated_ones(neighbours: Neighbours, sigma: float) -> None:
    mechanism = calibrated("gaussian", 10, neighbours=neighbours)
    assert mechanism.sigma_diagonal / BOUND == pytest.approx(4.224679 * sigma, rel=1e-6)
    assert mechanism.sigma_off_diagonal / BOUND == pytest.approx(4.224679 * sigma / 2**0.5, rel=1e-6)


@pytest.mark.parametrize("neighbours", Neighbours)
def test_gaussian_scales_are_the_least_integers_that_keep_the_loss_and_mu_is_of_these(neighbours: Neighbours) -> None:
    loss = PrivacyLoss.parse("4", "1e-5")  # sigma is 1.08: these bounds meet almost every small scale
    sigma_squared = Fraction(gaussian_sigma(loss)) ** 2
    for bound in range(1, 200):
        query = LatticeQuery(2, bound, neighbours)
        mechanism = calibrated("gaussian", 2, bound, neighbours, loss)
        s, t = mechanism.sigma_diagonal, mechanism.sigma_off_diagonal
        assert (s - 1) ** 2 < query.frobenius_squared * sigma_squared <= s * s
        assert 2 * (t - 1) ** 2 < s * s <= 2 * t * t
        assert mechanism.guarantee.mu_squared == Fraction(query.frobenius_squared, s * s)


@pytest.mark.parametrize(("neighbours", "halves"), [(Neighbours.REPLACE_ONE, 2), (Neighbours.ADD_REMOVE, 1)])
def test_two_sided_wishart_scale_is_the_stated_one(neighbours: Neighbours, halves: int) -> None:
    mechanism = calibrated("two-sided-wishart", 10, neighbours=neighbours)
    assert (mechanism.noise["scale"], mechanism.noise["columns"]) == (halves * BOUND // 2, 11)
    assert calibrated("two-sided-wishart", 10, neighbours=neighbours, arithmetic="ideal-real").noise == mechanism.noise
    # rounded up, never down: epsilon = nuclear sensitivity / (2 scale) stays below the guarantee
    odd, nuclear = calibrated("two-sided-wishart", 10, 16, neighbours, "0.7"), LatticeQuery(10, 16, neighbours).nuclear
    assert Fraction(nuclear, 2 * odd.scale) <= Fraction(7, 10) < Fraction(nuclear, 2 * (odd.scale - 1))


@given(st.integers(1, 60), st.integers(1, 4**9), st.integers(1, 10**7), st.sampled_from(Neighbours))
def test_laplace_scales_are_the_least_that_keep_epsilon(
    size: int, bound: int, micro: int, neighbours: Neighbours
) -> None:
    query = LatticeQuery(size, bound, neighbours)
    for name, sensitivity in (("laplace", query.triangle_l1), ("laplace-published", 2 * size * bound)):
        mechanism = calibrated(name, size, bound, neighbours, PrivacyLoss(micro))
        assert mechanism.scale - 1 < Fraction(sensitivity * 10**6, micro) <= mechanism.scale


@pytest.mark.parametrize("scale", [1, 3, 40])
def test_the_variance_of_laplace_noise_is_that_of_the_discrete_distribution(scale: int) -> None:
    noise = replace(calibrated("laplace", 3), scale=scale).noise
    assert noise.variance_diagonal == noise.variance_off_diagonal == pytest.approx(stats.dlaplace(1 / scale).var())


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_accepted_two_sided_wishart_noise_exceeds_64_bits_with_probability_below_1e_18(size: int) -> None:
    def granted(bound: int) -> int | None:
        try:
            return int(calibrated("two-sided-wishart", size, bound, Neighbours.ADD_REMOVE, "0.5").scale)
        except UsageError:
            return None

    largest = bisect.bisect_left(range(2**62), True, key=lambda bound: granted(bound + 1) is None)
    scale = granted(largest)
    assert scale is not None
    # an entry of E is between those on the diagonal of its two Wishart matrices, 2 d chi-squared variables
    assert 2 * size * stats.chi2.sf((2**63 - 1) / scale, size + 1) < 1e-18


def test_one_is_recommended_with_a_delta_and_one_without_and_an_unknown_one_is_refused() -> None:
    assert recommended(0) == "two-sided-wishart"
    assert recommended(1) == "gaussian"
    with pytest.raises(UsageError, match="gaussian, two-sided-wishart"):
        mechanism_named("sine")
