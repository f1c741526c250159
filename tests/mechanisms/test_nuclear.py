"""Perfect sampling of nuclear-norm spectra: the coupling, the law, and independence of the starting time."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath.ctx_mp import MPContext
from scipy import stats
from strategies import SEEDS
from support.tallies import FALSE_ALARM, mean_passes, total_passes

from dpdist.noise import nuclear
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.floats import Floats, uniforms
from dpdist.noise.nuclear import extremes, nuclear_spectra, quantile, sweep

SQUARES = {2: 25 / 3, 3: 150 / 7}
"""E sum l_i², from de Bruijn's Pfaffian of the moments in exact arithmetic."""
SQUARED_TRACE = {2: 20 / 3, 3: 96 / 7}
"""E (sum l_i)², likewise."""


@lru_cache(maxsize=4)
def spectra(size: int, count: int) -> Floats:
    return np.concatenate([nuclear_spectra(size, 125, SYSTEM) for _ in range(count // 125)])  # few enough for the cache


def gamma_passes(sample: Floats, shape: float) -> bool:
    return bool(stats.kstest(sample, stats.gamma(shape).cdf).pvalue > FALSE_ALARM)


def ordered(rng: np.random.Generator, size: int, chains: int, spread: float) -> Floats:
    return np.sort(spread * rng.standard_normal((size, chains)), axis=0)[::-1].copy()


def exact_quantile_error(others: list[float], low: float, high: float, u: float, x: float) -> float:
    """Return (mass below x minus u) over the density at x, how far x is from the quantile, in 120 digits.

    The density is a polynomial P times exp(-|t|), whose integral is a sum of derivatives of P.
    """
    digits = MPContext()
    digits.dps = 120
    polynomial = [digits.mpf(1)]  # lowest power first
    for other in others:
        polynomial = [a - digits.mpf(other) * b for a, b in zip([0, *polynomial], [*polynomial, 0], strict=True)]

    def value(coefficients: list[Any], t: Any) -> Any:
        return sum((c * t**k for k, c in enumerate(coefficients)), digits.mpf(0))

    def integral(end: float, sign: int) -> Any:
        if math.isinf(end):
            return digits.mpf(0)
        t, total, left, power = digits.mpf(end), digits.mpf(0), polynomial, -sign
        while left:
            total += power * value(left, t)
            left, power = [k * c for k, c in enumerate(left)][1:], power * sign
        return total * digits.exp(-sign * t)

    def mass(start: float, end: float) -> Any:
        below = integral(min(end, 0.0), -1) - integral(min(start, 0.0), -1)
        return below + integral(max(end, 0.0), 1) - integral(max(start, 0.0), 1)

    density = value(polynomial, digits.mpf(x)) * digits.exp(-abs(digits.mpf(x)))
    return float((mass(low, x) - digits.mpf(u) * mass(low, high)) / density)


@pytest.mark.parametrize("u", [2.0**-53, 1e-6, 0.3, 0.5, 0.999, 1 - 2.0**-53])
@pytest.mark.parametrize(
    ("others", "low", "high"),
    [
        ([], -math.inf, math.inf),
        ([-2.0, 3.0], -2.0, 3.0),
        ([2.0, 2.5, 2.75, 9.0, 9.5], 2.75, 9.0),
        ([-1.0, 4.0, 5.0, 6.0], -math.inf, -1.0),
        (list(np.arange(-20.0, 1.0)), 0.0, math.inf),
        ([1.0, 1.0 + 1e-7, 30.0], 1.0, 1.0 + 1e-7),
    ],
)
def test_a_quantile_is_what_exact_integration_says(others: list[float], low: float, high: float, u: float) -> None:
    column = np.array(others, dtype=np.float64).reshape(-1, 1)
    start, end = (np.array([bound]) if math.isfinite(bound) else bound for bound in (low, high))
    x = float(quantile(column, start, end, np.array([u]))[0])
    assert low < x < high
    width = min(1, high - low) + abs(x)
    assert abs(exact_quantile_error(others, low, high, u, x)) < 1e-13 * width
    # the twin, a trillionth off, is noticed
    off = x + 1e-12 * width if x < (low + high) / 2 or math.isinf(low) else x - 1e-12 * width
    assert abs(exact_quantile_error(others, low, high, u, off)) > 1e-13 * width


@settings(max_examples=60)
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


def test_the_result_does_not_depend_on_the_starting_time(monkeypatch: pytest.MonkeyPatch) -> None:
    size, count = 5, 3
    recent = uniforms(61 * 2 * size * count, SYSTEM)
    older = uniforms(61 * 2 * size * count, SYSTEM)

    class Recorded:
        def __init__(self, *parts: Floats) -> None:
            self.parts = list(parts)

        def words(self, words: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
            part = self.parts.pop(0)
            assert part.size == words
            return ((part * 2.0**52 - 0.5).astype(np.uint64) << np.uint64(12)).copy()

    short = nuclear_spectra(size, count, Recorded(recent))
    monkeypatch.setattr(nuclear, "_first_sweeps", lambda _: 122)
    long = nuclear_spectra(size, count, Recorded(np.concatenate([older, recent])))
    assert np.allclose(short, long, rtol=0, atol=size * 2.0**-42)
    fresh = nuclear_spectra(size, count, Recorded(np.concatenate([recent, older])))
    assert not np.allclose(short, fresh, rtol=0, atol=1e-3)


def test_a_start_that_is_too_late_is_doubled_with_the_same_uniforms(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    calls: list[Floats] = []

    def recorded(*arguments: object) -> Floats:
        calls.append(uniforms(*arguments))  # type: ignore[arg-type]
        return calls[-1]

    monkeypatch.setattr(nuclear, "uniforms", recorded)
    monkeypatch.setattr(nuclear, "_first_sweeps", lambda _: 4)
    found = nuclear_spectra(3, 2, SYSTEM, progress=lambda done, expected: seen.append((done, expected)))
    sweeps = [block.size // 12 for block in calls]
    assert sweeps[:3] == [4, 4, 8]  # each doubles what there was
    assert seen[-1] == (sum(np.cumsum(sweeps)), sum(np.cumsum(sweeps)))
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    # the latest blocks were drawn first and stand last
    u = np.concatenate([block.reshape(-1, 2, 3, 2) for block in reversed(calls)])
    chains = extremes(u[0])
    for step in u[1:]:
        sweep(chains, np.concatenate([step, step], axis=2))
    assert np.array_equal(found, ((chains[:, :2] + chains[:, 2:]) / 2).T)


def norms_pass(norms: Floats, shape: float) -> bool:
    """Two-sided test of independent gamma variables: their sum is gamma."""
    return total_passes(norms.sum(), stats.gamma(norms.size * shape))


@pytest.mark.parametrize(("size", "count"), [(2, 2000), (3, 1000)])
def test_the_nuclear_norm_is_gamma_and_its_twins_fail(size: int, count: int) -> None:
    shape = size * (size + 1) / 2
    norms = np.abs(spectra(size, count)).sum(axis=1)
    assert gamma_passes(norms, shape)
    assert norms_pass(norms, shape)
    assert not norms_pass(norms, shape - 1)  # one dimension lost
    assert not norms_pass(norms, size)  # no repulsion
    # 15 % too little noise is 11 standard errors or more
    assert not norms_pass(0.85 * norms, shape)
    assert (np.diff(spectra(size, count)) < 0).all()


@pytest.mark.parametrize(("size", "count"), [(2, 2000), (3, 1000)])
def test_the_shape_of_the_spectrum_has_the_exact_moments_and_its_twins_fail(size: int, count: int) -> None:
    shape = size * (size + 1) / 2
    found = spectra(size, count)
    # the norm is independent of the shape and E norm² = shape (shape + 1)
    scale = shape * (shape + 1)
    squares = np.sum(found**2, axis=1) / np.sum(np.abs(found), axis=1) ** 2
    traces = np.sum(found, axis=1) ** 2 / np.sum(np.abs(found), axis=1) ** 2
    assert mean_passes(squares, SQUARES[size] / scale)
    assert mean_passes(traces, SQUARED_TRACE[size] / scale)
    assert mean_passes(found.sum(axis=1), 0)
    signs = np.sign(np.random.default_rng(2).random(found.shape) - 0.5)  # eigenvalues with signs of their own
    shuffled = np.sum(np.abs(found) * signs, axis=1) ** 2 / np.sum(np.abs(found), axis=1) ** 2
    assert not mean_passes(shuffled, SQUARED_TRACE[size] / scale)
    assert not mean_passes(0.9 * squares, SQUARES[size] / scale)
