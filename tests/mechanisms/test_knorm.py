"""K-norm noise: calibration under both relations, the laws of the noise, and what is said of it."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.tallies import FALSE_ALARM, mean_passes

from dpdist.mechanisms import knorm, registry
from dpdist.mechanisms.knorm import CalibratedFrobenius, CalibratedNuclear
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.nuclear import nuclear_spectra
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


class Pool:
    """Spectra drawn side by side and handed out one by one, which is a hundred times faster than one by one."""

    def __init__(self, size: int, count: int) -> None:
        self.spectra = np.concatenate([nuclear_spectra(size, 125, SYSTEM) for _ in range(count // 125)])
        self.served = 0

    def __call__(self, size: int, count: int, *_: Any, **__: Any) -> Floats:
        assert (size, count) == (self.spectra.shape[1], 1)
        self.served += 1
        return self.spectra[self.served - 1 : self.served]


@lru_cache(maxsize=2)
def draws(name: str) -> tuple[Floats, Floats]:
    """Draw noise matrices over their scale, (n, d, d), and their spectra if those were known before."""
    size = {"nuclear": 3, "frobenius": 6}[name]
    mechanism = found(name, size)
    with pytest.MonkeyPatch.context() as patch:
        count = 1500 if name == "nuclear" else 2500
        pool = Pool(3, count) if name == "nuclear" else None
        if pool is not None:
            patch.setattr(knorm, "nuclear_spectra", pool)
        matrices = np.stack([unpacked(mechanism.draw(SYSTEM), size) for _ in range(count)]) / mechanism.scale
    return matrices, matrices if pool is None else pool.spectra


def gamma_passes(norms: Floats, shape: float) -> bool:
    """Kolmogorov-Smirnov, and the exact two-sided test of the sum, at half the level each."""
    law, total = stats.gamma(norms.size * shape), norms.sum()
    by_sum = 2 * min(law.cdf(total), law.sf(total))
    return bool(min(by_sum, stats.kstest(norms, stats.gamma(shape).cdf).pvalue) > FALSE_ALARM / 2)


def norms_of(name: str, matrices: Floats) -> Any:
    if name == "frobenius":
        return np.sqrt(np.sum(matrices**2, axis=(1, 2)))
    return np.sum(np.abs(np.linalg.eigvalsh(matrices)), axis=1)


@pytest.mark.parametrize("name", ["nuclear", "frobenius"])
def test_the_norm_is_gamma_and_its_twins_fail(name: str) -> None:
    matrices, _ = draws(name)
    size = matrices.shape[1]
    shape = size * (size + 1) / 2
    norms = norms_of(name, matrices)
    assert gamma_passes(norms, shape)
    assert not gamma_passes(norms, shape + 1)
    assert not gamma_passes(norms, size)  # the diagonal alone
    # 5 % too little noise is 11 standard errors for six columns, and 12 % is 11 for three
    assert not gamma_passes((0.95 if name == "frobenius" else 0.88) * norms, shape)


@pytest.mark.parametrize("name", ["nuclear", "frobenius"])
def test_the_noise_has_the_stated_variance_in_every_direction_and_its_twins_fail(name: str) -> None:
    matrices, _ = draws(name)
    size = matrices.shape[1]
    scale = found(name, size).scale
    on, off = (found(name, size).noise[f"variance_{which}"] / scale**2 for which in ("diagonal", "off_diagonal"))
    oblique = np.linspace(1, 2, size)
    across = np.roll(np.eye(size)[0], 1)

    def quadratic(u: Floats, noise: Floats, v: Floats) -> Floats:
        values: Floats = np.einsum("i,nij,j->n", u / np.linalg.norm(u), noise, v / np.linalg.norm(v))
        return values

    for u in (np.eye(size)[0], np.ones(size), oblique):
        assert mean_passes(quadratic(u, matrices, u) ** 2, on)
        assert mean_passes(quadratic(u, matrices, u), 0)
    wedge = np.ones(size) - size * across  # orthogonal to the diagonal of the cube
    for u, v in ((np.eye(size)[0], across), (np.ones(size), wedge)):
        assert mean_passes(quadratic(u, matrices, v) ** 2, off)
    # all entries of one variance: what a wrong Gaussian ensemble gives
    skewed = matrices * np.where(np.eye(size, dtype=bool), 1, math.sqrt(2))
    assert not mean_passes(quadratic(np.ones(size), skewed, np.ones(size)) ** 2, on)
    # 10 % too little
    mean_square = np.mean(matrices**2, axis=(1, 2))
    expected = (on + (size - 1) * off) / size
    assert mean_passes(mean_square, expected)
    assert not mean_passes(0.9**2 * mean_square, expected)


def test_nuclear_noise_has_the_spectrum_drawn_for_it_in_a_random_basis() -> None:
    matrices, spectra = draws("nuclear")
    assert np.allclose(np.linalg.eigvalsh(matrices)[:, ::-1], spectra, rtol=0, atol=1e-8)
    first, half = matrices[:, 0, 0], len(matrices) // 2
    # E_11 = sum_i l_i q_i², q uniform on the sphere; half of the draws against a fresh rotation of the others
    gaussian = np.random.default_rng(3).standard_normal((half, 3))
    weights = gaussian**2 / np.sum(gaussian**2, axis=1, keepdims=True)
    assert stats.ks_2samp(first[:half], np.sum(weights * spectra[half:], axis=1)).pvalue > FALSE_ALARM
    assert stats.ks_2samp(spectra[:half, 0], np.sum(weights * spectra[half:], axis=1)).pvalue < FALSE_ALARM


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
