"""The exact privacy profiles of additive Wishart noise, against independent arithmetic, tables and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from support.tallies import mean_passes
from support.wishart_pairs import QUADRATURE_ERROR, replace_one_delta_at

from dpdist.core.privacy.guarantee import Neighbours
from dpdist.literature.wishart_profile import (
    add_remove_delta,
    joining_delta,
    least_theta,
    leaving_delta,
    replace_one_delta,
)

ADD_REMOVE_TABLE = [  # epsilon, kappa, theta, delta of a row that leaves, of one that joins
    (1.0, 1.0, 1.0, 0.6321205588285577, 0.0),
    (0.5, 2.5, 3.0, 0.04565342516239665, 0.0),
    (1.0, 20.0, 1.5, 2.8797705598157677e-05, 0.0),
    (1.0, 213.0, 0.4, 1.2178189579976926e-07, 5.132569674758839e-18),
    (1.0, 1280.0, 0.13, 7.480801826100721e-07, 1.0068932859101817e-08),
]
# epsilon, kappa, theta, (mu1, mu2), delta by adaptive quadrature (the first row by mpmath, and by 10^8 simulations)
REPLACE_TABLE = [
    (1.0, 1.0, 1.0, (1.0, 1.0), 0.522973854961),
    (0.5, 3.0, 2.0, (1.0, 1.0), 0.062723319670),
    (0.5, 50.0, 2.0, (1.0, 1.0), 7.225844238e-07),
    (0.5, 3.0, 1.6, (0.6, 1.0), 0.089161508032),
    (0.5, 3.0, 1.6, (1.0, 0.6), 0.040810782241),
]


@pytest.mark.parametrize(("epsilon", "kappa", "theta", "leaving", "joining"), ADD_REMOVE_TABLE)
def test_the_add_remove_profile_is_the_tabulated_one(
    epsilon: float, kappa: float, theta: float, leaving: float, joining: float
) -> None:
    assert leaving_delta(epsilon, kappa, theta) == pytest.approx(leaving, rel=1e-9)
    assert joining_delta(epsilon, kappa, theta) == pytest.approx(joining, rel=1e-6, abs=1e-11)
    assert add_remove_delta(epsilon, kappa, theta) == pytest.approx(max(leaving, joining), rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "kappa", "theta", "exact"),
    # quadrature of the positive part of f - exp(epsilon) f(. - 1) with mpmath in 40 digits, where no digit cancels
    [
        (1.0, 1280.0, 0.13, 7.480801826102109e-07),
        (0.01, 400.0, 8.0, 0.00018612090775638624),
        (1e-4, 300.0, 40.0, 0.000529563902631115),
        (1.0, 213.0, 2.0, 4.0018063468443894e-44),
        (1.0, 5000.0, 0.08, 2.0757462029656605e-09),
        (1.0, 5000.0, 2.0, 0.0),  # below 1e-50, but not 0
    ],
)
def test_delta_is_above_the_exact_one_by_the_stated_rounding_only(
    epsilon: float, kappa: float, theta: float, exact: float
) -> None:
    delta = leaving_delta(epsilon, kappa, theta)
    threshold = 1 / -math.expm1(-(epsilon + 1 / theta) / (kappa - 1)) / theta
    larger = float(special.gammainc(kappa, threshold))
    assert exact < delta <= exact + 2 * (1e-12 + 2e-15 * (kappa + 1 / theta)) * larger + 2e-50


@pytest.mark.parametrize(("epsilon", "kappa", "theta", "mu", "delta"), REPLACE_TABLE)
def test_the_replace_one_profile_is_that_of_adaptive_quadrature(
    epsilon: float, kappa: float, theta: float, mu: tuple[float, float], delta: float
) -> None:
    found = replace_one_delta_at(epsilon, kappa, theta, mu)
    assert delta * (1 - 1e-8) <= found <= delta * (1 + 2 * QUADRATURE_ERROR)


@pytest.mark.parametrize("mu", [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.6, 1.0)])
def test_the_profile_is_that_of_simulated_matrices(mu: tuple[float, float]) -> None:
    epsilon, size, columns, theta = 0.25, 3, 8, 1.2  # kappa = 3
    # the loss of a 3 x 3 Wishart matrix plus diag(mu1, 0, 0) against plus diag(0, mu2, 0), from determinants
    z = np.random.default_rng().normal(scale=math.sqrt(theta / 2), size=(200_000, size, columns))
    noise = z @ z.transpose(0, 2, 1)
    moved = noise + np.diag([mu[0], -mu[1], 0.0])
    inside = np.linalg.eigvalsh(moved)[:, 0] > 0
    loss = np.full(len(z), np.inf)
    logs = np.linalg.slogdet(noise)[1][inside] - np.linalg.slogdet(moved)[1][inside]
    loss[inside] = (columns - size - 1) / 2 * logs + (mu[0] - mu[1]) / theta
    lost = -np.expm1(np.minimum(0.0, epsilon - loss))

    def delta(kappa: float, theta: float) -> float:
        if mu == (0.0, 1.0):
            return leaving_delta(epsilon, kappa, theta)
        if mu == (1.0, 0.0):
            return joining_delta(epsilon, kappa, theta)
        return replace_one_delta_at(epsilon, kappa, theta, mu)

    assert mean_passes(lost, delta(3.0, theta))
    assert not mean_passes(lost, delta(3.0, 1.1 * theta))
    assert not mean_passes(lost, delta(3.5, theta))  # one degree of freedom more


@settings(max_examples=25)
@given(
    st.floats(0.05, 3),
    st.sampled_from([1.0, 1.5, 4.0, 30.0, 600.0]),
    st.floats(0.3, 4),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_no_pair_of_rows_exceeds_the_certified_bound(
    epsilon: float, kappa: float, sigmas: float, mu1: float, mu2: float
) -> None:
    theta = sigmas / math.sqrt(kappa)
    bound = replace_one_delta(epsilon, kappa, theta)
    assert replace_one_delta_at(epsilon, kappa, theta, (mu1, mu2)) <= bound * (1 + 2 * QUADRATURE_ERROR)
    assert add_remove_delta(epsilon, kappa, theta) <= bound


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize(
    ("epsilon", "delta", "kappa"), [(1.0, 1e-6, 1.0), (0.1, 1e-9, 30.0), (5.0, 0.2, 4.0), (1.0, 1e-18, 100.0)]
)
def test_the_least_scale_keeps_delta_and_a_twin_does_not(
    neighbours: Neighbours, epsilon: float, delta: float, kappa: float
) -> None:
    theta = least_theta(epsilon, delta, kappa, neighbours)
    worst = [(0.0, 1.0), (1.0, 1.0)]
    if neighbours is Neighbours.ADD_REMOVE:
        assert add_remove_delta(epsilon, kappa, theta) <= delta < add_remove_delta(epsilon, kappa, theta * (1 - 1e-6))
    else:
        assert 0 < replace_one_delta(epsilon, kappa, theta, enough=delta) <= delta
        assert max(replace_one_delta_at(epsilon, kappa, 0.95 * theta, mu) for mu in worst) > delta
