"""Published Gaussian noise: its scales, its distribution and its true deltas; and the baseline without noise."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.registered import BOUND, calibrated

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.base import is_private_as_claimed
from dpdist.core.moment.operator import MomentMatrix
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.guarantee import Arithmetic, Neighbours, PrivacyLoss

NAMES = ["analyze-gauss", "sulq", "mod-sulq"]
REPLACE, ADD = Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE
TYPICAL = PrivacyLoss.parse("1", "0.01")


@pytest.mark.parametrize(
    ("name", "size", "loss", "scale"),
    [
        ("analyze-gauss", 7, PrivacyLoss.parse("1", "1e-6"), 5.29875),
        ("analyze-gauss", 7, PrivacyLoss.parse("0.1", "0.01"), 31.0751),
        ("sulq", 100, TYPICAL, 2605.08),
        ("mod-sulq", 100, TYPICAL, 500.176),
    ],
)
def test_the_scales_are_the_published_ones(name: str, size: int, loss: PrivacyLoss, scale: float) -> None:
    for neighbours in Neighbours:
        mechanism = calibrated(name, size, BOUND, neighbours, loss)
        assert mechanism.sigma_diagonal / BOUND == pytest.approx(scale, rel=1e-5)
        off = scale / math.sqrt(2) if name == "sulq" else scale
        assert mechanism.sigma_off_diagonal / BOUND == pytest.approx(off, rel=1e-5)


@given(
    st.sampled_from(NAMES),
    st.integers(2, 200),
    st.integers(1, 4**9),
    st.integers(10**3, 10**7),
    st.integers(1, 4 * 10**17),
    st.sampled_from(Neighbours),
)
def test_the_guarantee_is_computed_from_the_integers_that_are_drawn(
    name: str, size: int, bound: int, micro: int, atto: int, neighbours: Neighbours
) -> None:
    mechanism = calibrated(name, size, bound, neighbours, PrivacyLoss(micro, atto))
    s, t, proved = mechanism.sigma_diagonal, mechanism.sigma_off_diagonal, mechanism.guarantee.loss.delta
    assert mechanism.guarantee.arithmetic is Arithmetic.INTEGER_EXACT
    assert mechanism.guarantee.mu_squared == Fraction(bound**2 * (2 if neighbours is REPLACE else 1), s * s)
    # that is D = S diag(1, -1), or S diag(1, 0); D with S off the diagonal, of rows e1 + e2 and e1 - e2, is no worse
    if neighbours is REPLACE:
        assert Fraction(bound**2, t * t) <= mechanism.guarantee.mu_squared
    mu, epsilon = math.sqrt(mechanism.guarantee.mu_squared), micro / 1e6
    true = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
    assert true * (1 - 1e-9) - 1e-13 <= proved <= max(true * (1 + 1e-9) + 1e-13, atto * 1e-18 * (1 + 1e-9))
    assert is_private_as_claimed(mechanism) == (proved == atto / 1e18)


@pytest.mark.parametrize(
    ("epsilon", "delta", "neighbours", "true"),
    [
        ("1", "1e-5", REPLACE, 3.736e-5),
        ("0.5", "1e-6", REPLACE, 3.645e-6),
        ("8", "0.01", ADD, 1.78e-2),
        ("0.1", "0.01", REPLACE, None),  # private by chance: the true delta is 2.4e-4
        ("4", "0.01", ADD, None),
    ],
)
def test_the_guarantee_has_the_true_delta_if_the_claim_is_false(
    epsilon: str, delta: str, neighbours: Neighbours, true: float | None
) -> None:
    loss = PrivacyLoss.parse(epsilon, delta)
    mechanism = calibrated("analyze-gauss", 5, BOUND, neighbours, loss)
    assert is_private_as_claimed(mechanism) is (true is None)
    assert mechanism.guarantee.loss.epsilon_micro == loss.epsilon_micro
    assert mechanism.guarantee.loss.delta == pytest.approx(true or loss.delta, rel=5e-3 if true else 0)


def test_where_a_scale_is_undefined_or_proves_nothing_nothing_is_claimed() -> None:
    with pytest.raises(UsageError, match="undefined"):
        calibrated("mod-sulq", 1, loss=PrivacyLoss.parse("1", "0.4"))
    assert calibrated("mod-sulq", 1, loss=PrivacyLoss.parse("1", "0.39")).sigma_diagonal > BOUND
    assert not is_private_as_claimed(calibrated("sulq", 2, loss=PrivacyLoss.parse("1000", "0.01")))
    assert calibrated("analyze-gauss", 3, loss=PrivacyLoss.parse("1000000", "0.9")).guarantee is None


def test_the_baseline_is_exact_and_claims_nothing() -> None:
    mechanism = calibrated("none", 3)
    assert mechanism.claim is None
    assert mechanism.noise["variance_diagonal"] == mechanism.noise["variance_off_diagonal"] == 0
    assert np.array_equal(mechanism.answer(MomentMatrix(np.arange(6, dtype=np.int64), 3), SYSTEM), np.arange(6))
