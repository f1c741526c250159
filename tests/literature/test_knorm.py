"""K-norm noise: calibration, the distribution of the noise, and perfect sampling of nuclear-norm spectra."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from strategies import SEEDS
from support.registered import calibrated
from support.tallies import FALSE_ALARM, mean_passes, total_passes

from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.floats import Floats, uniforms
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.triangle import unpacked
from dpdist.literature import nuclear
from dpdist.literature.nuclear import extremes, nuclear_spectra, quantile, sweep


@pytest.mark.parametrize("name", ["nuclear", "frobenius"])
@pytest.mark.parametrize("neighbours", Neighbours)
def test_the_scale_is_sensitivity_over_epsilon_rounded_up(name: str, neighbours: Neighbours) -> None:
    # the loss of a symmetric distribution has a range of two epsilon
    assert not calibrated(name, 5).guarantee.bounded_ranges
    for epsilon in ("0.1", "0.7", "3.000001", "1000"):  # on a coarse grid rounding matters
        query = LatticeQuery(5, 4**2, neighbours)
        squared = {"nuclear": query.nuclear**2, "frobenius": query.frobenius_squared}[name]
        scale = calibrated(name, 5, 4**2, neighbours, epsilon).scale
        assert Fraction(squared, scale**2) <= Fraction(epsilon) ** 2
        assert scale == 1 or Fraction(squared, (scale - 1) ** 2) > Fraction(epsilon) ** 2


def test_the_frobenius_norm_is_gamma_and_every_direction_alike_and_twins_fail() -> None:
    """The contract tests the variance of entries."""
    mechanism = calibrated("frobenius", 6)
    matrices = np.stack([unpacked(noise, 6) for noise in mechanism.draws(2500, SYSTEM)]) / mechanism.scale
    norms = np.sqrt(np.sum(matrices**2, axis=(1, 2)))

    def passes(norms: Floats, shape: float) -> bool:
        by_shape = stats.kstest(norms, stats.gamma(shape).cdf).pvalue > FALSE_ALARM / 2
        return bool(by_shape) and total_passes(float(norms.sum()), stats.gamma(norms.size * shape))

    assert passes(norms, 21)
    assert not passes(norms, 22)
    assert not passes(norms, 6)  # the diagonal alone
    assert not passes(0.95 * norms, 21)  # 11 standard errors
    on = mechanism.noise["variance_diagonal"] / mechanism.scale**2
    for u in (np.full(6, 6**-0.5), np.linspace(1, 2, 6) / np.linalg.norm(np.linspace(1, 2, 6))):
        assert mean_passes(np.einsum("i,nij,j->n", u, matrices, u) ** 2, on)
    # all entries of one variance, as in a wrong Gaussian ensemble
    skewed = matrices * np.where(np.eye(6, dtype=bool), 1, math.sqrt(2))
    assert not mean_passes((skewed.sum(axis=(1, 2)) / 6) ** 2, on)


def test_nuclear_noise_has_its_spectrum_in_a_random_basis() -> None:
    mechanism = calibrated("nuclear", 3)
    matrices = np.stack([unpacked(noise, 3) for noise in mechanism.draws(1000, SYSTEM)]) / mechanism.scale
    spectra = np.linalg.eigvalsh(matrices)
    # E_11 = sum_i l_i q_i², q uniform on the sphere; half of the draws against a fresh rotation of the others
    gaussian = np.random.default_rng(3).standard_normal((500, 3))
    turned = np.sum(gaussian**2 / np.sum(gaussian**2, axis=1, keepdims=True) * spectra[500:], axis=1)
    assert stats.ks_2samp(matrices[:500, 0, 0], turned).pvalue > FALSE_ALARM
    assert stats.ks_2samp(spectra[:500, 2], turned).pvalue < FALSE_ALARM


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
    mechanism = calibrated("nuclear", size)
    assert mechanism.noise["variance_diagonal"] == pytest.approx(on * mechanism.scale**2, rel=4e-4)
    assert mechanism.noise["variance_off_diagonal"] == pytest.approx(off * mechanism.scale**2, rel=4e-4)


# --- perfect sampling of nuclear-norm spectra -----------------------------------------------------------------------


def ordered(rng: np.random.Generator, size: int, chains: int, spread: float) -> Floats:
    return np.sort(spread * rng.standard_normal((size, chains)), axis=0)[::-1].copy()


@pytest.mark.parametrize("u", [1e-6, 0.3, 0.999])
@pytest.mark.parametrize(
    ("others", "low", "high"),
    [
        ([], -math.inf, math.inf),
        ([2.0, 2.5, 2.75, 9.0, 9.5], 2.75, 9.0),
        ([-1.0, 4.0, 5.0, 6.0], -math.inf, -1.0),
        (list(np.arange(-20.0, 1.0)), 0.0, math.inf),
    ],
)
def test_quantiles_agree_with_integration_in_many_digits(
    others: list[float], low: float, high: float, u: float
) -> None:
    start, end = (np.array([bound]) if math.isfinite(bound) else bound for bound in (low, high))
    x = float(quantile(np.array(others, dtype=np.float64).reshape(-1, 1), start, end, np.array([u]))[0])
    assert low < x < high
    with mpmath.workdps(40):

        def mass(a: float, b: float) -> Any:
            inner = sorted({a, b, *(c for c in (0.0, x - 60, x + 60) if a < c < b)})
            return mpmath.quad(lambda t: mpmath.exp(-abs(t)) * abs(mpmath.fprod(t - o for o in others)), inner)

        for shift, side in ((-1e-9, -1), (1e-9, 1)):  # within a billionth of the width
            near = x + shift * min(1.0, high - low)
            assert (mass(low, near) - u * mass(low, high)) * side > 0


@settings(max_examples=40)
@given(st.integers(1, 7), st.floats(0.01, 30.0), SEEDS)
def test_a_sweep_keeps_ordered_states_ordered(size: int, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    below = ordered(rng, size, 4, spread)
    above = below + np.sort(rng.exponential(spread, (size, 4)), axis=0)[::-1] * rng.integers(0, 2, (1, 4))
    chains = np.concatenate([above, below], axis=1)
    for _ in range(3):
        u = np.tile(rng.integers(1, 2**53, (2, size, 4)) * 2.0**-53, 2)
        sweep(chains, u)
        assert (np.diff(chains, axis=0) < 0).all()
        assert (chains[:, :4] - chains[:, 4:] > -1e-12 * spread).all()


def test_the_extreme_chains_bound_every_other_after_every_sweep_and_meet() -> None:
    rng = np.random.default_rng(1)
    size, count = 6, 5
    u = uniforms(80 * 2 * size * count, SYSTEM).reshape(80, 2, size, count)
    others = [ordered(rng, size, count, spread) for spread in (0.1, 10.0, 1000.0)]
    outer = extremes(u[0])
    for number, step in enumerate(u):
        if number > 0:
            sweep(outer, np.concatenate([step, step], axis=2))
        for chains in others:
            sweep(chains, step)
            assert (chains <= outer[:, :count] + 1e-12).all()
            assert (chains >= outer[:, count:] - 1e-12).all()
    assert np.allclose(outer[:, :count], outer[:, count:], rtol=0, atol=1e-13)


def test_a_start_that_is_too_late_is_doubled_with_the_same_uniforms(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[tuple[int, int]] = []
    calls: list[Floats] = []

    def recorded(*arguments: object) -> Floats:
        calls.append(uniforms(*arguments))  # type: ignore[arg-type]
        return calls[-1]

    monkeypatch.setattr(nuclear, "uniforms", recorded)
    monkeypatch.setattr(nuclear, "_first_sweeps", lambda _: 4)
    spectra = nuclear_spectra(3, 2, SYSTEM, progress=lambda done, expected: reports.append((done, expected)))
    sweeps = [block.size // 12 for block in calls]
    assert sweeps[:3] == [4, 4, 8]  # each doubles the number of sweeps
    assert reports[-1] == (sum(np.cumsum(sweeps)), sum(np.cumsum(sweeps)))
    assert [done for done, _ in reports] == list(range(1, len(reports) + 1))
    # the latest blocks were drawn first and come last
    u = np.concatenate([block.reshape(-1, 2, 3, 2) for block in reversed(calls)])
    chains = extremes(u[0])
    for step in u[1:]:
        sweep(chains, np.concatenate([step, step], axis=2))
    assert np.array_equal(spectra, ((chains[:, :2] + chains[:, 2:]) / 2).T)


@pytest.mark.parametrize(("size", "count"), [(2, 1500), (3, 750)])
def test_the_nuclear_norm_is_gamma_and_its_twins_fail(size: int, count: int) -> None:
    shape = size * (size + 1) / 2
    # few enough at once for the cache
    spectra = np.concatenate([nuclear_spectra(size, 125, SYSTEM) for _ in range(count // 125)])
    norms = np.abs(spectra).sum(axis=1)
    total = float(norms.sum())
    assert stats.kstest(norms, stats.gamma(shape).cdf).pvalue > FALSE_ALARM
    assert total_passes(total, stats.gamma(norms.size * shape))
    # one dimension lost, no repulsion, and 15 % too little noise: 10 standard errors or more
    for wrong, times in ((shape - 1, 1), (size, 1), (shape, 0.85)):
        assert not total_passes(times * total, stats.gamma(norms.size * wrong))
    assert (np.diff(spectra) < 0).all()
