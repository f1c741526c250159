"""K-norm noise: calibration under both relations, the laws of the noise, and what is said of it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.tallies import FALSE_ALARM, mean_passes, total_passes

from dpdist.mechanisms import registry
from dpdist.mechanisms.knorm import CalibratedFrobenius, CalibratedNuclear
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import SYSTEM
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.triangle import unpacked

BITS = 16
ONE = PrivacyLoss.parse("1")
BOTH = list(Neighbours)
Floats = npt.NDArray[np.float64]


def found(
    name: str, size: int, neighbours: Neighbours = Neighbours.REPLACE_ONE, loss: PrivacyLoss = ONE, bits: int = BITS
) -> CalibratedNuclear | CalibratedFrobenius:
    mechanism = registry.calibrated(name, LatticeQuery(size, 4**bits, neighbours), loss)
    assert isinstance(mechanism, CalibratedNuclear | CalibratedFrobenius)
    return mechanism


@pytest.mark.parametrize(
    ("name", "neighbours", "sensitivity"),
    [
        ("nuclear", Neighbours.REPLACE_ONE, 2.0),
        ("nuclear", Neighbours.ADD_REMOVE, 1.0),
        ("frobenius", Neighbours.REPLACE_ONE, math.sqrt(2)),
        ("frobenius", Neighbours.ADD_REMOVE, 1.0),
    ],
)
def test_the_scale_is_sensitivity_over_epsilon_rounded_up(
    name: str, neighbours: Neighbours, sensitivity: float
) -> None:
    assert found(name, 5, neighbours).scale == math.ceil(sensitivity * 4**BITS)
    # the loss of a symmetric law ranges over two epsilon
    assert not found(name, 5, neighbours).guarantee.bounded_ranges
    assert found(name, 5, neighbours, PrivacyLoss.parse("0.1")).scale == math.ceil(10 * sensitivity * 4**BITS)
    for epsilon in ("0.7", "3.000001", "1000"):  # on a coarse grid rounding matters
        loss = PrivacyLoss.parse(epsilon)
        query = LatticeQuery(5, 4**2, neighbours)
        squared = {"nuclear": query.nuclear**2, "frobenius": query.frobenius_squared}[name]
        scale = found(name, 5, neighbours, loss, bits=2).scale
        assert Fraction(squared, scale**2) <= Fraction(epsilon) ** 2
        assert scale == 1 or Fraction(squared, (scale - 1) ** 2) > Fraction(epsilon) ** 2


@pytest.fixture(scope="module")
def matrices() -> Floats:
    """Draw Frobenius noise over its scale, (n, 6, 6)."""
    mechanism = found("frobenius", 6)
    drawn = [unpacked(noise, 6) for noise in mechanism.draws(2500, SYSTEM)]
    return np.stack(drawn) / mechanism.scale


def test_the_frobenius_norm_is_gamma_and_its_twins_fail(matrices: Floats) -> None:
    """Of the nuclear norm ``test_nuclear.py`` says so."""
    norms = np.sqrt(np.sum(matrices**2, axis=(1, 2)))

    def passes(norms: Floats, shape: float) -> bool:
        by_shape = stats.kstest(norms, stats.gamma(shape).cdf).pvalue > FALSE_ALARM / 2
        return bool(by_shape) and total_passes(float(norms.sum()), stats.gamma(norms.size * shape))

    assert passes(norms, 21)
    assert not passes(norms, 22)
    assert not passes(norms, 6)  # the diagonal alone
    assert not passes(0.95 * norms, 21)  # 11 standard errors


def test_frobenius_noise_has_the_stated_variance_in_every_direction_and_its_twins_fail(matrices: Floats) -> None:
    mechanism = found("frobenius", 6)
    on, off = (mechanism.noise[f"variance_{which}"] / mechanism.scale**2 for which in ("diagonal", "off_diagonal"))

    def quadratic(u: Floats, noise: Floats, v: Floats) -> Floats:
        values: Floats = np.einsum("i,nij,j->n", u / np.linalg.norm(u), noise, v / np.linalg.norm(v))
        return values

    ones, axis, across = np.ones(6), np.eye(6)[0], np.eye(6)[1]
    for u in (axis, ones, np.linspace(1, 2, 6)):
        assert mean_passes(quadratic(u, matrices, u) ** 2, on)
        assert mean_passes(quadratic(u, matrices, u), 0)
    for u, v in ((axis, across), (ones, ones - 6 * across)):  # orthogonal
        assert mean_passes(quadratic(u, matrices, v) ** 2, off)
    # all entries of one variance: what a wrong Gaussian ensemble gives
    skewed = matrices * np.where(np.eye(6, dtype=bool), 1, math.sqrt(2))
    assert not mean_passes(quadratic(ones, skewed, ones) ** 2, on)
    mean_square = np.mean(matrices**2, axis=(1, 2))
    assert mean_passes(mean_square, (on + 5 * off) / 6)
    assert not mean_passes(0.9**2 * mean_square, (on + 5 * off) / 6)


def test_nuclear_noise_has_its_spectrum_in_a_random_basis() -> None:
    mechanism = found("nuclear", 3)
    matrices = np.stack([unpacked(noise, 3) for noise in mechanism.draws(1500, SYSTEM)]) / mechanism.scale
    spectra = np.linalg.eigvalsh(matrices)
    # E_11 = sum_i l_i q_i², q uniform on the sphere; half of the draws against a fresh rotation of the others
    gaussian = np.random.default_rng(3).standard_normal((750, 3))
    weights = gaussian**2 / np.sum(gaussian**2, axis=1, keepdims=True)
    turned = np.sum(weights * spectra[750:], axis=1)
    assert stats.ks_2samp(matrices[:750, 0, 0], turned).pvalue > FALSE_ALARM
    assert stats.ks_2samp(spectra[:750, 2], turned).pvalue < FALSE_ALARM


@pytest.mark.parametrize(
    ("size", "on", "off"),
    [
        # E_ii² and E_ij² from de Bruijn's Pfaffian with weights exp(-|x| - s x²) and exp(-|x| + t x), exact arithmetic
        (2, 35 / 12, 5 / 4),
        (3, 132 / 35, 59 / 35),
        (4, 157 / 34, 215 / 102),
        (10, 9.6014857882007, 4.59849946275773),
        (20, 17.8466989511301, 8.71972377990462),
        (40, 34.3073452762127, 16.9491351513322),
    ],
)
def test_the_stated_variances_of_nuclear_noise_are_the_exact_ones(size: int, on: float, off: float) -> None:
    mechanism = found("nuclear", size)
    assert mechanism.noise["variance_diagonal"] == pytest.approx(on * mechanism.scale**2, rel=4e-4)
    assert mechanism.noise["variance_off_diagonal"] == pytest.approx(off * mechanism.scale**2, rel=4e-4)
