"""The caps' profile against an independent library, against mpmath, and against every bounded-range step."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism, from_randomized_response
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy import stats

from dpdist.core.privacy.accounting import gaussian_sigma
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.privacy.profile import largest_mu_squared, mu_of_pure, near_profile, profile


@pytest.mark.parametrize(("pure", "mu", "epsilon"), [(0.5, 0.5, 1.0), (1.0, 0.3, 1.0), (2.0, 2.0, 6.0)])
def test_the_profile_is_that_of_randomised_response_and_a_gaussian(pure: float, mu: float, epsilon: float) -> None:
    # their randomised response answers one of two at random with probability p: p/2 off gives odds e^pure
    noise = 2 / (1 + math.exp(pure))
    response = from_randomized_response(noise, 2, value_discretization_interval=1e-4)
    gaussian = from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-4)
    theirs = response.compose(gaussian).get_delta_for_epsilon(epsilon)
    ours = float(profile(Fraction(pure), Fraction(mu) ** 2, Fraction(epsilon)))
    assert ours <= theirs * (1 + 1e-9)  # theirs rounds losses up
    assert ours == pytest.approx(theirs, rel=5e-3)


def test_what_remains_beside_a_declared_pure_part_is_what_was_computed_by_another_program() -> None:
    # (E, budget, epsilon of the one Gaussian release that remains)
    for pure, epsilon, delta, remains in (
        ("0.1", "1", "1e-6", 0.93155), ("0.1", "2", "1e-5", 1.95923), ("1", "2", "1e-6", 1.01676),
    ):  # fmt: skip
        square = largest_mu_squared(Fraction(pure), Fraction(delta), Fraction(epsilon))
        sigma = gaussian_sigma(PrivacyLoss.parse(str(remains), delta))
        assert float(square) ** -0.5 == pytest.approx(sigma, rel=2e-5)


@settings(max_examples=20)
@example("0", "1e-18", "0.000001")
@given(
    st.sampled_from(["0", "0.001", "0.1", "1", "3"]),
    st.sampled_from(["1e-18", "1e-9", "1e-6", "0.1"]),
    st.sampled_from(["0.000001", "0.5", "1", "3", "40", "1000000"]),
)
def test_the_largest_square_keeps_the_delta_and_a_larger_one_does_not(pure: str, delta: str, epsilon: str) -> None:
    if Fraction(pure) > Fraction(epsilon):
        return
    largest = largest_mu_squared(Fraction(pure), Fraction(delta), Fraction(epsilon))
    assert largest_mu_squared(Fraction(pure), Fraction(0), Fraction(epsilon)) == 0
    assert profile(Fraction(pure), largest, Fraction(epsilon)) <= Fraction(delta)
    larger = largest * (1 + Fraction(1, 2**80))
    assert profile(Fraction(pure), larger, Fraction(epsilon)) > Fraction(delta)


@pytest.mark.parametrize(
    ("pure", "square", "epsilon"), [("0", "1", "1"), ("0.5", "0.25", "1"), ("3", "2", "4"), ("2", "30", "2")]
)
def test_the_profile_is_rounded_up(pure: str, square: str, epsilon: str) -> None:
    with mp.workdps(150):
        mu, p = mp.sqrt(mp.mpf(square)), 1 / (1 + mp.exp(-mp.mpf(pure)))
        ends = [mp.mpf(epsilon) - mp.mpf(pure), mp.mpf(epsilon) + mp.mpf(pure)]
        near, far = (mp.ncdf(mu / 2 - x / mu) - mp.exp(x) * mp.ncdf(-mu / 2 - x / mu) for x in ends)
        truth = p * near + (1 - p) * far
        value = profile(Fraction(pure), Fraction(square), Fraction(epsilon))
        assert truth < mp.mpf(value.numerator) / value.denominator < truth * (1 + mp.mpf(10) ** -40)
    # what is searched with is what is decided by
    assert abs(near_profile(Fraction(pure), Fraction(square), Fraction(epsilon)) - value) <= value / 10**40


@pytest.mark.parametrize("epsilon", ["0.000001", "0.1", "1", "3", "20"])
def test_a_pure_step_is_dominated_by_the_gaussian_it_is_charged_as(epsilon: str) -> None:
    mu_squared, e = mu_of_pure(Fraction(epsilon)), float(epsilon)
    with mp.workdps(150):  # and its price is rounded up
        odds = 1 / (1 + mp.exp(mp.mpf(epsilon)))
        half = mp.sqrt(mp.mpf(mu_squared.numerator) / mu_squared.denominator) / 2
        assert mp.ncdf(-half) <= odds < mp.ncdf(-half * (1 - mp.mpf(2) ** -90))
    mu = math.sqrt(mu_squared)
    for alpha in np.linspace(0.001, 0.999, 101):
        response = max(0, 1 - math.exp(e) * alpha, math.exp(-e) * (1 - alpha))
        assert stats.norm.cdf(stats.norm.ppf(1 - alpha) - mu) <= response + 1e-12


@pytest.mark.parametrize("r", [0.1, 1.0, 3.0, 10.0])
def test_a_bounded_range_step_is_worst_in_the_middle(r: float) -> None:
    worst = math.sqrt(mu_of_pure(Fraction(r) / 2))
    for t in np.linspace(0, r, 203)[1:-1]:
        p, q = math.expm1(-t) / math.expm1(-r), math.expm1(t) / math.expm1(r)
        assert stats.norm.ppf(p) - stats.norm.ppf(q) <= worst * (1 + 1e-9)
    assert worst == pytest.approx({0.1: 0.06266, 1.0: 0.62389, 3.0: 1.8123, 10.0: worst}[r], rel=1e-4)
