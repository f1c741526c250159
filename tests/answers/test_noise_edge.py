"""Distributions of the spectrum of noise, against draws of the mechanisms. False alarms: below 1e-6 each."""

from __future__ import annotations

import functools
import json
import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy.integrate import solve_ivp
from scipy.special import airy
from scipy.stats import binom
from support.folders import RESULTS

from dpdist.answers.noise_edge import BEYOND, QUANTILES, NoiseLaw, law_of
from dpdist.core.mechanisms.base import Calibrated
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise
from dpdist.core.mechanisms.registry import calibrated
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.triangle import unpacked
from dpdist.literature.attack import KnownMoment
from dpdist.literature.nuclear import nuclear_spectra

Floats = npt.NDArray[np.float64]
NAMES = {"gaussian": "1e-6", "wishart": "1e-6", "two-sided-wishart": "0", "laplace": "0", "frobenius": "0"}


def mechanism(name: str, size: int) -> Calibrated:
    query = LatticeQuery(size, 4**16, Neighbours.REPLACE_ONE)
    return calibrated(name, query, PrivacyLoss.parse("1", NAMES.get(name, "0")))


@functools.cache
def law(name: str, size: int) -> NoiseLaw:
    found = law_of(mechanism(name, size).noise, size)
    assert found is not None
    return found


def draw(name: str, size: int) -> Floats:
    found = mechanism(name, size)
    noise = unpacked(found.answer(KnownMoment(np.zeros((size, size), np.int64)), SYSTEM).astype(np.int64), size)
    centred: Floats = noise - found.noise.mean_diagonal * np.eye(size)
    return centred


@pytest.mark.parametrize("name", [*NAMES, "nuclear"])
def test_slope_and_curvature_are_derivatives(name: str) -> None:
    found = law(name, 40)
    for g in (share * found.critical for share in (0.2, 0.6, 0.9)):
        below, above = g - 1e-5 * g, g + 1e-5 * g
        step = above - below
        assert found.slope(g) == pytest.approx((found.inverse(above) - found.inverse(below)) / step, rel=1e-6)
        assert found.curvature(g) == pytest.approx((found.slope(above) - found.slope(below)) / step, rel=1e-6)


def test_known_edges() -> None:
    """The constants of the literature: 2 sqrt(v), (sqrt(m) + sqrt(d))², 1.665 d/beta, pi d / (2 beta)."""
    size = 200
    variance = mechanism("gaussian", size).noise["variance_off_diagonal"]
    assert law("gaussian", size).edge == pytest.approx(2 * math.sqrt(size * variance))
    wishart = mechanism("wishart", size).noise
    m, s = wishart["degrees"], wishart["scale"]
    assert law("wishart", size).edge == pytest.approx(s * (math.sqrt(m) + math.sqrt(size)) ** 2 - m * s)
    beta = 1 / (2 * 4.0**16)
    z = math.sqrt(math.sqrt(5) - 2)
    edge = (1 / z + 2 * z / (1 - z**2)) * size / (2 * beta)
    assert law("two-sided-wishart", size).edge == pytest.approx(edge, rel=2 / size)
    assert law("two-sided-wishart", size).threshold == pytest.approx(2.058 * size / beta / 2, rel=2 / size)
    assert law("nuclear", size).edge == pytest.approx(math.pi * size / (2 * beta), rel=2 / size)


def test_quantiles_are_those_of_the_tracy_widom_law() -> None:
    """Integrate Painlevé II from the Airy function at 6: F1(s) = exp(-1/2 int_s (q + (x - s) q²) dx)."""
    start = 6.0
    ai, slope, *_ = airy(start)

    def rates(s: float, y: Floats) -> list[float]:
        q, p, _, square, _ = y
        return [p, s * q + 2 * q**3, -q, -(q**2), -square]

    # tail = int q, square = int q², the last one int (x - s) q²; all of them zero at the start to 1e-8
    found = solve_ivp(rates, (start, -1), [ai, slope, 0, 0, 0], rtol=1e-11, atol=1e-14, dense_output=True)
    assert found.sol is not None
    for confidence, quantile in QUANTILES.items():
        _, _, tail, _, weighted = found.sol(quantile)
        assert math.exp(-(tail + weighted) / 2) == pytest.approx(confidence, abs=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_noise_stays_below_its_edge_as_often_as_stated(name: str) -> None:
    draws, size = 120, 20
    found = law(name, size)
    largest = np.array([np.linalg.eigvalsh(draw(name, size))[-1] for _ in range(draws)])
    assert binom.cdf((largest <= found.edge_at(0.95)).sum(), draws, 0.95) > 1e-6
    # the twin: noise a quarter larger than stated
    assert binom.cdf((1.25 * largest <= found.edge_at(0.95)).sum(), draws, 0.95) < 1e-6


def test_the_spectrum_of_nuclear_noise_ends_where_stated() -> None:
    """Eigenvalues suffice, as the distribution is invariant: 25 spectra at 10 columns, scale 1."""
    size, draws = 10, 25
    largest = nuclear_spectra(size, draws, SYSTEM).max(axis=1)
    found = law("nuclear", size)
    scale = found.edge / (math.pi * size / 2)  # the distribution at scale 1, up to the 2/size of the variances
    assert binom.cdf((scale * largest <= found.edge_at(0.99)).sum(), draws, 0.99) > 1e-6
    assert 0.6 * found.edge < scale * largest.mean() < 1.1 * found.edge  # 5 and 8 standard errors of the mean


def test_what_adds_no_noise_of_a_known_law_has_no_edge() -> None:
    assert law_of(Noise("none", variance_diagonal=0.0, variance_off_diagonal=0.0), 5) is None
    assert law_of(Noise("successive-bingham", details={"concentration": 1.0}), 5) is None


def test_the_edge_of_few_columns_holds_where_that_of_many_does_not() -> None:
    """Laplace noise, with a fixed seed; with another seed each confidence fails falsely with probability 1e-6."""
    size, count = 20, 6000
    drawn = np.random.default_rng(5).laplace(size=(count, size, size))
    largest = np.linalg.eigvalsh(drawn)[:, -1]  # of the lower triangles
    found = law_of(Noise("", EdgeKind.LAPLACE, variance_diagonal=2.0, variance_off_diagonal=2.0), size)
    assert found is not None
    for confidence in (0.95, 0.99, 0.999):
        assert binom.sf((largest > found.edge_at(confidence)).sum() - 1, count, 1 - confidence) > 1e-6
    without = (largest > found.edge + QUANTILES[0.99] * found.width).sum()  # the twin: many columns
    assert binom.sf(without - 1, count, 0.01) < 1e-6


def test_the_table_of_few_columns_is_what_was_simulated() -> None:
    rows = json.loads((RESULTS / "edge_table.json").read_text())
    for kind in (EdgeKind.LAPLACE, EdgeKind.FROBENIUS):
        simulated = {
            row["d"]: tuple(row["quantiles"][str(confidence)][1] for confidence in QUANTILES)
            for row in rows
            if row["law"] == kind.value.split("-")[0]
        }
        assert simulated == BEYOND[kind]
