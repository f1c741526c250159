"""Float64 draws against their distributions, with twins that must fail, and the exact Bingham samplers and frames."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import special, stats
from support.tallies import FALSE_ALARM, mean_passes

from dpdist.core.noise.entropy import SYSTEM, Entropy
from dpdist.core.noise.floats import exponentials, gammas, haar, normals, uniforms
from dpdist.literature.bingham import angular_central_gaussian, bingham, conditioned_sum, gibbs, successive

Floats = npt.NDArray[np.float64]
Sampler = Callable[[Floats, int, Entropy], Floats]

BOTH = [angular_central_gaussian, conditioned_sum]
COUNT = 40_000

LAWS: list[tuple[str, Callable[[], Floats], Any]] = [
    ("uniform", lambda: uniforms(COUNT, SYSTEM), stats.uniform()),
    ("normal", lambda: normals(COUNT, SYSTEM), stats.norm()),
    ("exponential", lambda: exponentials(COUNT, SYSTEM), stats.expon()),
    *((f"gamma {a}", lambda a=a: gammas(a, COUNT, SYSTEM), stats.gamma(a)) for a in (0.3, 1.0, 2.5, 300.0)),
]


@pytest.mark.parametrize(("draw", "law"), [case[1:] for case in LAWS], ids=[case[0] for case in LAWS])
def test_draws_have_their_distribution_and_their_twin_fails(draw: Callable[[], Floats], law: Any) -> None:
    assert stats.kstest(draw(), law.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(0.9 * draw(), law.cdf).pvalue < FALSE_ALARM  # power 1 - 1e-9 at this size


def test_haar_columns_are_orthonormal_and_uniform() -> None:
    frames = np.stack([haar(3, 2, SYSTEM) for _ in range(8_000)])
    assert np.allclose(np.einsum("nij,nik->njk", frames, frames), np.eye(2))
    for entry in (frames[:, 0, 0], frames[:, 2, 1]):  # an entry of a uniform unit vector of R^3 is uniform on [-1, 1]
        assert stats.kstest(entry, stats.uniform(-1, 2).cdf).pvalue > FALSE_ALARM
        assert stats.kstest(np.abs(entry), stats.uniform(-1, 2).cdf).pvalue < FALSE_ALARM  # the signs of QR


def test_uniforms_never_touch_the_ends() -> None:
    class Extreme:
        def words(self, count: int) -> npt.NDArray[np.uint64]:
            return np.array([0, 2**64 - 1] * count, dtype=np.uint64)[:count]

    low, high = uniforms(2, Extreme())
    assert 0 < low < high < 1


def mean_squares(levels: Floats) -> Floats:
    """E x_i² of the density exp(-sum l_i x_i²) on the sphere, by an inverse Laplace transform.

    Its normalising constant is proportional to the integral of ``e^s prod (s + l_i)^(-1/2)`` along a contour round
    the levels, here a parabola; E x_i² follows by differentiation. The trapezoidal rule converges geometrically.
    """
    t = np.linspace(-8, 8, 801)
    s = 6 * (1 + 1j * t) ** 2
    weight = np.exp(s - 6) * np.prod(1 / np.sqrt(s[:, None] + levels), axis=1) * (1 + 1j * t)
    return np.array([float(np.real(np.sum(weight * 0.5 / (s + level)) / np.sum(weight))) for level in levels])


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


def rotation(size: int) -> Floats:
    rotated: Floats = stats.ortho_group.rvs(size, random_state=7)
    return rotated


def drawn(sampler: Sampler, levels: Floats, count: int) -> Floats:
    vectors = np.empty((0, levels.size))
    while len(vectors) < count:
        accepted = sampler(levels, count, SYSTEM)
        # acceptance does not collapse: measured above 0.5, at 0.3 chance alone fails it with probability below 1e-6
        assert len(accepted) / count * math.sqrt(levels.size) > 0.3
        vectors = np.vstack([vectors, accepted])
    return vectors[:count]


@pytest.mark.parametrize("sampler", BOTH)
@pytest.mark.parametrize(
    ("levels", "count"),
    [
        ([0] + 11 * [6], 60_000),
        ([0, 0, 4, 4, 9], 150_000),
        ([0, 0, 0, 1e8, 1e8], 100_000),
        (np.linspace(0, 1e5, 20), 20_000),
    ],
    ids=["spike", "ties", "extreme", "many"],
)
def test_both_samplers_have_the_exact_mean_squares_and_their_twins_fail(
    sampler: Sampler, levels: list[float], count: int
) -> None:
    l = np.asarray(levels, dtype=np.float64)  # noqa: E741 - as in the formulas
    x, exact = drawn(sampler, l, count), mean_squares(l)
    squares = x**2
    assert all(mean_passes(entries, 0.0, l.size + 1) for entries in [*x.T, x[:, 0] * x[:, -1]])  # fair signs
    assert np.abs(squares.sum(axis=1) - 1).max() < 1e-12
    assert all(mean_passes(squares[:, i], exact[i], l.size) for i in range(l.size))
    # the sufficient statistic of a scale of the levels
    assert mean_passes(squares @ l, float(exact @ l))
    assert not mean_passes(drawn(sampler, 0.95 * l, count) ** 2 @ l, float(exact @ l))


def test_successive_vectors_are_orthonormal_with_their_conditional_distribution() -> None:
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


def test_gibbs_sampling_tends_to_the_joint_distribution_and_its_twins_fail() -> None:
    # two of three vectors: the joint density is that of the third under -B, which is known
    axes, levels = rotation(3), np.array([0.0, 2.0, 5.0])
    matrix = axes @ np.diag(levels) @ axes.T
    frames = np.stack([gibbs(matrix, 2, 6, SYSTEM) for _ in range(500)])
    assert np.abs(frames @ frames.transpose(0, 2, 1) - np.eye(2)).max() < 1e-13
    squares = (np.cross(frames[:, 0], frames[:, 1]) @ axes) ** 2
    exact, wrong, opposite = mean_squares(levels), mean_squares(levels / 3), mean_squares(5 - levels[::-1])[::-1]
    assert all(mean_passes(squares[:, i], exact[i], 3) for i in range(3))
    assert not mean_passes(squares @ levels, float(wrong @ levels))
    assert not mean_passes(squares @ levels, float(opposite @ levels))
