"""The exact Bingham samplers against laws known in closed form, and the frames made of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import special, stats
from support.tallies import FALSE_ALARM, mean_passes

from dpdist.noise.bingham import angular_central_gaussian, bingham, conditioned_sum, gibbs, successive
from dpdist.noise.entropy import SYSTEM, Entropy

Floats = npt.NDArray[np.float64]
Sampler = Callable[[Floats, int, Entropy], Floats]

BOTH = [angular_central_gaussian, conditioned_sum]


def mean_squares(levels: Floats) -> Floats:
    """E x_i² of the law exp(-sum l_i x_i²) on the sphere, by an inverse Laplace transform.

    Its normalising constant is proportional to the integral of ``e^s prod (s + l_i)^(-1/2)`` along a contour round
    the levels, here a parabola; E x_i² follows by differentiation. The trapezoidal rule converges geometrically.
    """
    t = np.linspace(-8, 8, 801)
    s = 6 * (1 + 1j * t) ** 2
    weight = np.exp(s - 6) * np.prod(1 / np.sqrt(s[:, None] + levels), axis=1) * (1 + 1j * t)
    return np.array([float(np.real(np.sum(weight * 0.5 / (s + level)) / np.sum(weight))) for level in levels])


def rotation(size: int) -> Floats:
    rotated: Floats = stats.ortho_group.rvs(size, random_state=7)
    return rotated


def drawn(sampler: Sampler, levels: Floats, count: int) -> Floats:
    out = np.empty((0, levels.size))
    while len(out) < count:
        out = np.vstack([out, sampler(levels, count, SYSTEM)])
    return out[:count]


def test_in_the_plane_the_doubled_angle_is_von_mises_and_the_twin_fails() -> None:
    kappa, axes = 3.0, rotation(2)
    matrix = axes @ np.diag([5.0, 5.0 - 2 * kappa]) @ axes.T

    def doubled(scale: float) -> Floats:
        x = bingham(scale * matrix, 150_000, SYSTEM) @ axes
        return np.arctan2(2 * x[:, 0] * x[:, 1], x[:, 0] ** 2 - x[:, 1] ** 2)

    angle, expected = doubled(1.0), float(special.iv(1, kappa) / special.iv(0, kappa))
    assert mean_passes(np.cos(angle), expected)
    assert not mean_passes(np.cos(doubled(0.95)), expected)
    assert stats.kstest(angle, stats.vonmises(kappa).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(angle, stats.vonmises(0.8 * kappa).cdf).pvalue < FALSE_ALARM


@pytest.mark.parametrize("sampler", BOTH)
@pytest.mark.parametrize(
    ("levels", "count"),
    [
        ([0] + 11 * [6], 60_000),
        ([0, 0, 4, 4, 9], 150_000),
        ([0, 100, 100, 1000], 100_000),
        ([0, 0, 0, 1e8, 1e8], 100_000),
        (np.linspace(0, 1e5, 20), 20_000),
    ],
    ids=["spike", "ties", "concentrated", "extreme", "many"],
)
def test_both_samplers_have_the_exact_mean_squares_and_their_twins_fail(
    sampler: Sampler, levels: list[float], count: int
) -> None:
    l = np.asarray(levels, dtype=np.float64)  # noqa: E741 - as in the formulas
    squares, exact = drawn(sampler, l, count) ** 2, mean_squares(l)
    assert np.abs(squares.sum(axis=1) - 1).max() < 1e-12
    assert all(mean_passes(squares[:, i], exact[i], l.size) for i in range(l.size))
    # the sufficient statistic of a scale of the levels
    assert mean_passes(squares @ l, float(exact @ l))
    assert not mean_passes(drawn(sampler, 0.95 * l, count) ** 2 @ l, float(exact @ l))


def test_signs_are_fair_and_coordinates_uncorrelated() -> None:
    for sampler in BOTH:
        x = drawn(sampler, np.array([0.0, 1, 2, 3]), 50_000)
        products = [x[:, i] * x[:, j] for i in range(4) for j in range(i)]
        assert all(mean_passes(sample, 0.0, 10) for sample in [*products, *x.T])


def test_round_an_isolated_peak_the_loss_is_a_gamma_variable() -> None:
    size, axes = 12, rotation(12)
    matrix = axes @ np.diag(-np.concatenate([[0.0], np.geomspace(1e6, 1e8, size - 1)])) @ axes.T
    x = bingham(matrix, 20_000, SYSTEM)
    loss = -np.einsum("ij,jk,ik->i", x, matrix, x)
    assert stats.kstest(loss, stats.gamma((size - 1) / 2).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(loss, stats.gamma(size / 2).cdf).pvalue < FALSE_ALARM


def test_without_data_the_law_is_uniform() -> None:
    square = bingham(np.zeros((5, 5)), 20_000, SYSTEM)[:, 0] ** 2
    assert stats.kstest(square, stats.beta(0.5, 2).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(square, stats.beta(0.5, 2.5).cdf).pvalue < FALSE_ALARM
    line = bingham(np.array([[1e8]]), 4000, SYSTEM)
    assert set(line.ravel().tolist()) == {-1.0, 1.0}
    assert stats.binomtest(int(np.sum(line > 0)), line.size).pvalue > FALSE_ALARM


@pytest.mark.parametrize("kappa", [1.0, 1e3, 1e8])
@pytest.mark.parametrize("tops", [1, 10, 150])
def test_acceptance_does_not_collapse(tops: int, kappa: float) -> None:
    size, tried = 300, 4000
    falling = kappa * (1 - 1 / np.arange(1, size - tops + 1.0) ** 2 / 2)
    levels = np.concatenate([np.zeros(tops), falling])
    for sampler in BOTH:
        rate = len(sampler(levels, tried, SYSTEM)) / tried
        # measured above 0.5: at 0.3 chance alone fails it with probability below 1e-6
        assert rate * math.sqrt(size) > 0.3


def test_successive_vectors_are_orthonormal_and_each_has_its_conditional_law() -> None:
    axes = rotation(3)
    levels = np.array([0.0, 3.0, 8.0])
    matrix = -axes @ np.diag(levels) @ axes.T
    frames = np.stack([successive(matrix, 2, SYSTEM) for _ in range(2000)])
    assert np.abs(frames @ frames.transpose(0, 2, 1) - np.eye(2)).max() < 1e-13
    score = np.einsum("nki,ij,nkj->nk", frames, matrix, frames)
    assert mean_passes(score[:, 0], -float(mean_squares(levels) @ levels))
    assert all(mean_passes(frames[:, i, j], 0.0, 6) for i in range(2) for j in range(3))  # fair signs
    third = np.cross(frames[:, 0], frames[:, 1])
    other = np.einsum("ni,ij,nj->n", third, matrix, third)
    across = np.einsum("ni,ij,nj->n", third, matrix, frames[:, 1])
    gap = np.hypot(score[:, 1] - other, 2 * across)  # of the eigenvalues in the plane orthogonal to the first
    mean = (score[:, 1] + other) / 2 + gap / 2 * special.ive(1, gap / 2) / special.ive(0, gap / 2)
    assert mean_passes(score[:, 1] - mean, 0.0)
    # the twin: a second vector uniform in that plane
    assert not mean_passes((score[:, 1] + other) / 2 - mean, 0.0)


def test_gibbs_sampling_tends_to_the_joint_law_and_its_twins_fail() -> None:
    # two of three vectors: the joint density is that of the third under -B, and that is known
    axes, levels = rotation(3), np.array([0.0, 2.0, 5.0])
    matrix = axes @ np.diag(levels) @ axes.T
    frames = np.stack([gibbs(matrix, 2, 6, SYSTEM) for _ in range(500)])
    assert np.abs(frames @ frames.transpose(0, 2, 1) - np.eye(2)).max() < 1e-13
    squares = (np.cross(frames[:, 0], frames[:, 1]) @ axes) ** 2
    exact, wrong, opposite = mean_squares(levels), mean_squares(levels / 3), mean_squares(5 - levels[::-1])[::-1]
    assert all(mean_passes(squares[:, i], exact[i], 3) for i in range(3))
    assert not mean_passes(squares @ levels, float(wrong @ levels))
    assert not mean_passes(squares @ levels, float(opposite @ levels))
