"""Likelihood ratios: against independent densities, numerical integrals and the mechanisms' own draws."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from faults.weakened import weakened
from scipy import stats
from scipy.special import i0e
from support import hciz
from support.tallies import FALSE_ALARM

from dpdist.mechanisms import attack, ratios, registry
from dpdist.mechanisms.base import Additive
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.integrals import log_orbit, log_sphere
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss

UNIT = 4**16
HERE, THERE = np.array([[3.0, 0.5], [0.5, 1.0]]), np.array([[1.0, 0.2], [0.2, 2.5]])


@pytest.mark.parametrize("level", [0.0, 1e-9, 0.3, 5.0, 100.0, 1e6, 1e12])
def test_the_integral_over_a_circle_is_a_bessel_function(level: float) -> None:
    assert log_sphere(np.array([0.0, level]), 0.5) == pytest.approx(math.log(i0e(level / 2)), abs=1e-12)


@pytest.mark.parametrize("scale", [0.1, 3.0, 50.0, 1000.0])
@pytest.mark.parametrize("size", [3, 8, 12])
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
def test_the_integral_over_an_orbit_has_the_mean_of_the_law_as_its_slope(spectrum: tuple[float, ...]) -> None:
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


@pytest.mark.parametrize("name", ["mvg", "mvg-psd", "gaussian", "sulq"])
def test_normal_noise_has_the_ratio_of_its_sample_covariance(name: str) -> None:
    # Y is jointly normal: the ratio of means m, m' under covariance V is linear in Y
    options: dict[str, Any] = {"rows": 1, "directions": ((0.6, 0.8), (-0.8, 0.6)), "allocation": "binary"}
    query = LatticeQuery(2, UNIT, Neighbours.REPLACE_ONE)
    given = options if name.startswith("mvg") else {}
    found = registry.calibrated(name, query, PrivacyLoss.parse("1", "0.01"), given)
    assert isinstance(found, Additive)
    noise = np.array([found.draw(SYSTEM) for _ in range(6000)]).astype(float)  # (y_11, y_12, y_22)
    mean_change = np.array([1.0, -0.5, 0.7]) * noise.std()
    change = np.array([[mean_change[0], mean_change[1]], [mean_change[1], mean_change[2]]])
    ratio = found.log_ratio(change, np.zeros((2, 2)))
    assert ratio is not None
    slopes = np.linalg.solve(np.cov(noise.T), mean_change)
    units = [np.array(m, dtype=float) for m in ([[1, 0], [0, 0]], [[0, 1], [1, 0]], [[0, 0], [0, 1]])]
    exact = [ratio(unit) - ratio(np.zeros((2, 2))) for unit in units]
    # an entry of an inverse covariance of n draws is off by a relative 1/sqrt(n), eight times that allowed
    assert np.abs(slopes - exact).max() < 8 / math.sqrt(6000) * np.abs(slopes).max()
    assert ratio(change / 2) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("neighbours", list(Neighbours))
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
def test_no_release_of_a_pure_mechanism_tells_more_than_epsilon(
    name: str, options: dict[str, Any], neighbours: Neighbours
) -> None:
    query, loss = LatticeQuery(3, UNIT, neighbours), PrivacyLoss.parse("2")
    found = registry.calibrated(name, query, loss, options)
    kind = {"additive": isinstance(found, Additive), "iterated": name == "power", "weighted": True}
    told = []
    for scene in attack.scenes(query, 2.0, **kind):
        first, second = attack.attack(found, scene, 4)
        told.append(np.abs(first - second).max())
    # nothing beyond what is proved; and a good part of it, or these are not the tables to look at
    assert 0.8 < max(told) <= 2 * (1 + 1e-6)


@pytest.mark.parametrize("wrong", [1.0, 2.0])
@pytest.mark.parametrize("name", ["bingham", "kapralov-talwar", "amin", "orbit", "orbit-lowrank", "power"])
def test_a_ratio_has_the_mean_one_under_the_table_below(name: str, wrong: float) -> None:
    query, loss = LatticeQuery(3, UNIT, Neighbours.REPLACE_ONE), PrivacyLoss.parse("1")
    options: dict[str, Any] = {"spectrum": (1.0, 0.4)} if name == "orbit" else {"components": 1}
    found = registry.calibrated(name, query, loss, options | ({"iterations": 1} if name == "power" else {}))
    tried = attack.scenes(query, 1.0, additive=False, iterated=name == "power", weighted=False)
    scene = [scene for scene in tried if scene.apart == 1][-1]
    believed = weakened(found, 3 * wrong) if wrong > 1 else found
    number = attack.statistic(believed, scene.first, scene.second)
    draws = 600
    sample = [number(seen) for seen in attack.views(found, scene.second, draws, SYSTEM)]
    # their exponentials are within 0 and e: Hoeffding's inequality
    allowed = math.e * math.sqrt(math.log(2 / FALSE_ALARM) / (2 * draws))
    assert bool(abs(np.mean(np.exp(sample)) - 1) < allowed) is (wrong == 1.0)
