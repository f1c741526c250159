"""Calibration against golden numbers, and composition against independent computations."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpdist.errors import DataError, UsageError
from dpdist.privacy.accounting import (
    composed_delta,
    fits,
    gaussian_delta,
    gaussian_sigma,
    spent_epsilon_micro,
    zcdp_delta,
)
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss

# (epsilon, delta, sigma) at sensitivity 1 and (epsilon, sigma, Delta, delta), computed independently in 50 digits
GOLDEN_SIGMA = [
    ("0.1", "0.01", 9.541823088828865),
    ("0.1", "1e-6", 36.304690426195755),
    ("0.1", "1e-9", 50.209818263013815),
    ("0.5", "1e-5", 7.031826675582503),
    ("1", "0.01", 1.8778755609073876),
    ("1", "1e-5", 3.7306316348159454),
    ("1", "1e-6", 4.22467888932684),
    ("2", "1e-6", 2.23047627118642),
    ("4", "1e-5", 1.08116184952024),
    ("8", "1e-9", 0.7922370498040952),
]
GOLDEN_DELTA = [
    (0.0, 1.0, 1.0, 0.3829249225480263),
    (0.5, 1.0, 1.0, 0.23842170813487656),
    (1.0, 1.0, 1.0, 0.12693673750664392),
    (1.0, 3.0, 1.0, 0.0002075122020527326),
    (4.0, 1.0, math.sqrt(2), 0.005838013109969342),
    (1.0, 5.0, math.sqrt(2), 2.3452915651208154e-05),
]


def gaussian(epsilon: str, delta: str) -> Guarantee:
    loss = PrivacyLoss.parse(epsilon, delta)
    mu_squared = 1 / Fraction(gaussian_sigma(loss)) ** 2
    return Guarantee(Neighbours.REPLACE_ONE, loss, mu_squared, Arithmetic.INTEGER_EXACT, "test")


def pure(epsilon: str) -> Guarantee:
    return Guarantee(Neighbours.REPLACE_ONE, PrivacyLoss.parse(epsilon), None, Arithmetic.IDEAL_REAL, "test")


@pytest.mark.parametrize(("epsilon", "delta", "sigma"), GOLDEN_SIGMA)
def test_sigma_agrees_with_golden_numbers_and_is_on_the_safe_side(epsilon: str, delta: str, sigma: float) -> None:
    loss = PrivacyLoss.parse(epsilon, delta)
    found = gaussian_sigma(loss)
    assert found == pytest.approx(sigma, rel=1e-9)
    exact = Fraction(loss.epsilon_micro, 10**6)
    assert gaussian_delta(exact, 1 / Fraction(found) ** 2) <= loss.delta
    assert gaussian_delta(exact, 1 / Fraction(found * (1 - 1e-9)) ** 2) > loss.delta


@pytest.mark.parametrize(("epsilon", "sigma", "sensitivity", "delta"), GOLDEN_DELTA)
def test_the_profile_agrees_with_golden_numbers(epsilon: float, sigma: float, sensitivity: float, delta: float) -> None:
    found = gaussian_delta(Fraction(epsilon), (Fraction(sensitivity) / Fraction(sigma)) ** 2)
    assert found == pytest.approx(delta, rel=1e-9)


def test_a_gaussian_needs_a_delta() -> None:
    with pytest.raises(UsageError, match="two-sided-wishart"):
        gaussian_sigma(PrivacyLoss.parse("1"))


@given(st.floats(0.05, 3), st.floats(0.05, 3))
def test_zcdp_bounds_the_exact_gaussian_profile_from_above(epsilon: float, mu: float) -> None:
    exact = gaussian_delta(Fraction(epsilon), Fraction(mu) ** 2)
    assert exact <= zcdp_delta(epsilon, mu**2 / 2) <= 1 + 1e-6


def test_zcdp_agrees_with_the_published_conversion() -> None:
    # sigma 4.531 is what zCDP needs where the exact profile needs 4.225
    assert zcdp_delta(1, 1 / (2 * 4.531**2)) == pytest.approx(1e-6, rel=2e-3)


@pytest.mark.parametrize("count", [2, 5, 12])
def test_gaussian_releases_compose_exactly(count: int) -> None:
    one = gaussian("0.5", "1e-6")
    mu = math.sqrt(count) / gaussian_sigma(one.loss)
    epsilon = 1.5
    expected = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert composed_delta([one] * count, 1_500_000) == pytest.approx(expected, rel=1e-6)


def test_pure_releases_compose_by_basic_or_by_zcdp_whichever_is_smaller() -> None:
    assert fits([pure("0.5")] * 4, PrivacyLoss.parse("2"))
    assert not fits([pure("0.5")] * 5, PrivacyLoss.parse("2"))
    # 200 releases of 0.05 are 10 by addition and far less with a delta
    assert spent_epsilon_micro([pure("0.05")] * 200, 10**12) < 4_000_000
    assert spent_epsilon_micro([pure("0.05")] * 200, 0) == 10_000_000


def test_a_mixture_never_costs_more_than_the_sum_of_its_parts() -> None:
    mixture = [gaussian("1", "1e-6"), pure("0.5"), gaussian("0.5", "1e-7")]
    assert composed_delta(mixture, 2_000_000) <= 1.1e-6
    assert composed_delta(mixture, 500_000) == math.inf or composed_delta(mixture, 500_000) > 1e-3


@given(st.lists(st.sampled_from(["g1", "g2", "p1", "p2"]), min_size=1, max_size=6), st.integers(1, 10**7))
def test_a_further_release_never_makes_the_total_smaller(kinds: list[str], epsilon_micro: int) -> None:
    known = {"g1": gaussian("1", "1e-6"), "g2": gaussian("0.1", "1e-9"), "p1": pure("0.3"), "p2": pure("0.01")}
    releases = [known[kind] for kind in kinds]
    assert composed_delta(releases[:-1], epsilon_micro) <= composed_delta(releases, epsilon_micro) * (1 + 1e-6)


def test_a_single_release_fits_a_budget_of_its_own_size() -> None:
    for epsilon, delta in (("1", "1e-6"), ("0.1", "1e-9"), ("8", "0.01")):
        assert fits([gaussian(epsilon, delta)], PrivacyLoss.parse(epsilon, delta))
    assert not fits([gaussian("1", "1e-6")], PrivacyLoss.parse("0.999999", "1e-6"))
    assert not fits([gaussian("1", "1e-6")], PrivacyLoss(1_000_000, 10**12 - 10**6))


def test_what_was_spent_is_the_least_epsilon_that_holds() -> None:
    releases = [gaussian("1", "1e-6"), pure("0.5")]
    spent = spent_epsilon_micro(releases, 10**12)
    assert composed_delta(releases, spent) <= 1e-6 < composed_delta(releases, spent - 1)
    assert spent_epsilon_micro([], 0) == 0


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [("0", "0"), ("-1", "0"), ("nan", "0"), ("inf", "0"), ("1e-7", "0"), ("1", "1"), ("1", "-1"), ("1", "1e-19"),
     ("1e7", "0"), ("1e-999999999", "0"), ("0.1234567890123456789012345678901234567", "0")],
)  # fmt: skip
def test_a_loss_out_of_range_or_finer_than_its_units_is_refused(epsilon: str, delta: str) -> None:
    with pytest.raises(DataError):
        PrivacyLoss.parse(epsilon, delta)


def test_a_loss_that_is_no_number_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="must be a number"):
        PrivacyLoss.parse("much")


def test_a_guarantee_survives_json_exactly() -> None:
    for guarantee in (gaussian("1", "1e-6"), pure("0.5")):
        assert Guarantee.from_json(guarantee.to_json()) == guarantee


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.224679, 40.0])
@pytest.mark.parametrize("epsilon", ["0.01", "0.5", "1", "4"])
def test_the_gaussian_profile_is_that_of_an_independent_library(sigma: float, epsilon: str) -> None:
    theirs = GaussianPrivacyLoss(sigma).get_delta_for_epsilon(float(epsilon))
    ours = gaussian_delta(Fraction(epsilon), 1 / Fraction(sigma) ** 2)
    assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-15)


def test_many_pure_releases_compose_by_what_is_known_of_their_loss() -> None:
    # 50 releases of epsilon 0.1 at delta 1e-6: rho = 50 epsilon²/2, or epsilon²/8 where the loss has a bounded range
    releases = [pure("0.1")] * 50
    assert spent_epsilon_micro(releases, 10**12) == pytest.approx(3_542_292, abs=2)
    bounded = [replace(release, bounded_range=True) for release in releases]
    assert spent_epsilon_micro(bounded, 10**12) == pytest.approx(1_659_980, abs=20)
