"""Likelihood ratios: against independent densities, numerical integrals and the mechanisms' own draws."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats
from support import hciz

from dpdist.core.mechanisms import registry
from dpdist.core.mechanisms.base import Additive
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.literature import attack, ratios
from dpdist.literature.integrals import log_orbit, log_sphere

UNIT = 4**16
HERE, THERE = np.array([[3.0, 0.5], [0.5, 1.0]]), np.array([[1.0, 0.2], [0.2, 2.5]])


@pytest.mark.parametrize("scale", [0.1, 50.0, 1000.0])
@pytest.mark.parametrize("size", [3, 12])
def test_the_integral_over_a_complex_sphere_is_a_divided_difference(size: int, scale: float) -> None:
    levels = scale * np.linspace(0, 1, size) ** 2
    with mpmath.workdps(150):
        xs = [-mpmath.mpf(float(x)) for x in levels]
        exact = mpmath.log(
            mpmath.factorial(size - 1) * sum(mpmath.exp(x) / mpmath.fprod(x - y for y in xs if y != x) for x in xs)
        )
    assert log_sphere(levels, 1.0) == pytest.approx(float(exact), abs=1e-11)
    # a complex entry is two real ones
    assert log_sphere(np.repeat(levels, 2), 0.5) == pytest.approx(float(exact), abs=1e-11)


@pytest.mark.parametrize("spectrum", [(1, 0, 0, 0), (1, 1, 1, 0), (1, 1, 0, 0), (1, 0.6, 0.2, 0)], ids=str)
def test_the_slope_of_the_integral_over_an_orbit_is_the_mean(spectrum: tuple[float, ...]) -> None:
    levels, g, step = np.array([4.0, 2.5, 1.0, 1.0]), np.array(spectrum), 1e-4
    slope = (log_orbit((1 + step) * levels, g) - log_orbit((1 - step) * levels, g)) / (2 * step)
    assert slope == pytest.approx(hciz.moments(levels.tolist(), spectrum)[0], rel=1e-6)
    assert log_orbit(0 * levels, g) == pytest.approx(0, abs=1e-12)


def test_wishart_and_projection_are_those_of_scipy() -> None:
    y = np.array([[9.0, 1.0], [1.0, 7.0]])
    law = stats.wishart(5, 2 * np.eye(2))
    expected = law.logpdf(y - HERE) - law.logpdf(y - THERE)
    assert ratios.wishart(HERE, THERE, 5, 2)(y) == pytest.approx(expected)
    first, second = (float(stats.wishart(6, (m + 3 * np.eye(2)) / 6).logpdf(y)) for m in (HERE, THERE))
    assert ratios.projection(HERE, THERE, 6, 3)(y) == pytest.approx(first - second)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bingham", {"components": 1}), ("bingham", {"components": 2}), ("ppca", {"components": 1}),
        ("kapralov-talwar", {"components": 1}), ("amin", {"components": 1}), ("orbit", {"spectrum": (1.0, 0.4)}),
        ("orbit-lowrank", {"components": 1}), ("two-sided-wishart", {}), ("laplace", {}), ("frobenius", {}),
        ("power", {"components": 1, "iterations": 2}), ("nuclear", {}),
    ],
    ids=str,
)  # fmt: skip
def test_no_release_of_a_pure_mechanism_has_a_loss_above_epsilon(name: str, options: dict[str, Any]) -> None:
    query, loss = LatticeQuery(3, UNIT, Neighbours.REPLACE_ONE), PrivacyLoss.parse("2")
    mechanism = registry.calibrated(name, query, loss, options)
    kind = {"additive": isinstance(mechanism, Additive), "iterated": name == "power", "weighted": True}
    losses = []
    for scene in attack.scenes(query, 2.0, **kind):
        first, second = attack.attack(mechanism, scene, 4)
        losses.append(np.abs(first - second).max())
    # at most the guarantee; and a large part of it, or the tables are badly chosen
    assert 0.8 < max(losses) <= 2 * (1 + 1e-6)
