"""The exponential mechanisms: their constants are private and cannot be larger, and answers have the stated laws."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy import integrate, special, stats
from support.tallies import FALSE_ALARM, mean_passes

from dpdist.errors import RefusedError, UsageError
from dpdist.mechanisms import registry
from dpdist.mechanisms.base import Calibrated, is_private_as_claimed
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.moment.operator import MomentMatrix
from dpdist.noise.entropy import SYSTEM
from dpdist.privacy.guarantee import Arithmetic, Neighbours, PrivacyLoss
from dpdist.release.request import ReleaseRequest
from dpdist.triangle import diagonal_positions, packed, unpacked

Floats = npt.NDArray[np.float64]

BOUND = 4**16
BOTH = list(Neighbours)
NAMES = ["ppca", "bingham", "kapralov-talwar", "amin"]
REPLACE, ADD = Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE


def calibrated(
    name: str, size: int, components: int, epsilon: str = "1", neighbours: Neighbours = REPLACE
) -> Calibrated:
    query = LatticeQuery(size, BOUND, neighbours)
    return registry.calibrated(name, query, PrivacyLoss.parse(epsilon), {"components": components})


def concentration(name: str, size: int, components: int, epsilon: str, neighbours: Neighbours) -> float:
    """C per unit of the squared norm bound."""
    return float(calibrated(name, size, components, epsilon, neighbours).noise["concentration"]) * BOUND


def moment(matrix: Floats) -> MomentMatrix:
    return MomentMatrix(packed(np.rint(matrix * BOUND)), len(matrix))


def log_circle(matrix: Floats) -> float:
    """Log of the mean of exp(x'Mx) on the unit circle, M of size 2."""
    low, high = np.linalg.eigvalsh(matrix)
    return float(high + np.log(special.ive(0, (high - low) / 2)))


def log_sphere(matrix: Floats) -> float:
    """Log of the mean of exp(x'Mx) on the unit sphere, M of size 3, by quadrature along the axis of its top."""
    low, middle, high = np.linalg.eigvalsh(matrix)

    def integrand(t: float) -> float:
        ring = 1 - t * t  # relative to exp(high); the mean over the ring of height t is a Bessel function
        return float(np.exp((middle - high) * ring) * special.ive(0, (middle - low) / 2 * ring))

    width = min(1.0, 10 / math.sqrt(1 + high - middle))
    value, _ = integrate.quad(integrand, 1 - width, 1, epsabs=0, epsrel=1e-10, limit=200)
    rest, _ = integrate.quad(integrand, 0, 1 - width, epsabs=1e-14, limit=200)
    return float(high + np.log(value + rest))


@pytest.mark.parametrize("neighbours", BOTH)
@pytest.mark.parametrize("name", ["ppca", "bingham"])
def test_one_direction_loses_epsilon_and_not_less(name: str, neighbours: Neighbours) -> None:
    c = concentration(name, 2, 1, "0.8", neighbours)

    def loss(first: Floats, second: Floats) -> float:
        difference = c * (first - second)
        shift = log_circle(c * second) - log_circle(c * first)
        low, high = np.linalg.eigvalsh(difference)
        return float(max(abs(low + shift), abs(high + shift)))

    rng = np.random.default_rng(0)
    for _ in range(200):
        rows = rng.normal(size=(2, 2)) / rng.uniform(0.1, 3)
        v, w = (row / max(1.0, float(np.linalg.norm(row))) for row in rows)
        common = np.diag(rng.exponential(20, size=2))
        other = common + np.outer(w, w) if neighbours is REPLACE else common
        assert loss(common + np.outer(v, v), other) <= 0.8 + 1e-9
    v, w = np.eye(2)
    sharp = 2000 * np.outer(w, w) + np.outer(v, v)
    other = 2000 * np.outer(w, w) + np.outer(w, w) if neighbours is REPLACE else 2000 * np.outer(w, w)
    assert 0.799 < loss(sharp, other) <= 0.8 + 1e-9


def pair_losses(first: Floats, second: Floats, frames: Floats, c: float) -> Floats:
    """Exact privacy losses of two successive directions in three dimensions, one per frame (n, 3, 3)."""
    shift = log_sphere(c * second) - log_sphere(c * first)
    losses = []
    for frame in frames:
        plane = frame[1:]
        trace = float(np.trace(frame[:2] @ (first - second) @ frame[:2].T))
        rest = log_circle(c * plane @ second @ plane.T) - log_circle(c * plane @ first @ plane.T)
        losses.append(c * trace + shift + rest)
    return np.array(losses)


@pytest.mark.parametrize("neighbours", BOTH)
def test_two_successive_directions_lose_epsilon_and_not_less(neighbours: Neighbours) -> None:
    c = concentration("bingham", 3, 2, "0.6", neighbours)
    frames: Floats = stats.ortho_group.rvs(3, size=30, random_state=3)
    rng = np.random.default_rng(1)
    for _ in range(30):
        rows = rng.normal(size=(2, 3)) / rng.uniform(0.1, 3)
        v, w = (row / max(1.0, float(np.linalg.norm(row))) for row in rows)
        common = np.diag(rng.exponential(20, size=3))
        other = common + np.outer(w, w) if neighbours is REPLACE else common
        assert np.abs(pair_losses(common + np.outer(v, v), other, frames, c)).max() <= 0.6 + 1e-6
    # the axis w dominates both moments, and both directions avoid it although they hardly can
    u, v, w = np.eye(3)
    common = 1000 * np.outer(w, w)
    first, second = (
        (common + np.outer(v, v), common + np.outer(w, w))
        if neighbours is REPLACE
        else (common + np.outer(w, w), common)
    )
    worst = float(np.abs(pair_losses(first, second, np.array([[u, v, w]]), c)).max())
    assert 0.594 < worst <= 0.6 + 1e-6


def test_concentrations_and_scales_are_the_stated_ones() -> None:
    expected = {
        ("ppca", 1, REPLACE): 1 / 2, ("ppca", 1, ADD): 1, ("ppca", 4, REPLACE): 1 / 2, ("ppca", 4, ADD): 1,
        ("bingham", 1, REPLACE): 1 / 2, ("bingham", 4, REPLACE): 1 / 5, ("bingham", 4, ADD): 1 / 4,
        ("bingham", 10, REPLACE): 1 / 10, ("bingham", 10, ADD): 1 / 9,  # the tenth is determined by the others
        ("kapralov-talwar", 4, REPLACE): 1 / 16, ("kapralov-talwar", 4, ADD): 1 / 8,
        ("amin", 1, REPLACE): 1 / 4, ("amin", 4, REPLACE): 4 / 25, ("amin", 4, ADD): 1 / 5,
        ("amin", 10, REPLACE): 9 / 100,
    }  # fmt: skip
    for (name, components, neighbours), c in expected.items():
        assert concentration(name, 10, components, "1", neighbours) == pytest.approx(c, rel=1e-12)
    scales = {
        ("kapralov-talwar", 4, REPLACE): 8, ("kapralov-talwar", 4, ADD): 8, ("amin", 1, REPLACE): 2,
        ("amin", 4, REPLACE): 10, ("amin", 4, ADD): 5, ("amin", 10, REPLACE): 20,
    }  # fmt: skip
    for (name, components, neighbours), scale in scales.items():
        noise = calibrated(name, 10, components, "1", neighbours).noise
        assert noise["scale"] / BOUND == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("neighbours", BOTH)
def test_successive_directions_are_as_concentrated_private_as_one(neighbours: Neighbours) -> None:
    span = 2 if neighbours is REPLACE else 1
    for components in (1, 2, 3, 10, 39, 40):
        found = calibrated("bingham", 40, components, "1", neighbours)
        c = concentration("bingham", 40, components, "1", neighbours)
        assert min(components, 39) * (c * span) ** 2 / 8 <= 1 / 8 + 1e-12
        assert found.guarantee is not None
        ranges = found.guarantee.bounded_ranges
        assert len(ranges) == min(components, 39)
        assert all(float(each) == pytest.approx(c * span) for each in ranges)
        assert found.guarantee.arithmetic is Arithmetic.IDEAL_REAL


def test_an_answer_has_the_stated_concentration_and_the_twin_fails() -> None:
    for name in ("bingham", "ppca"):
        found, kappa = calibrated(name, 2, 1, "2"), 3.0  # c = 1 per unit, the gap of the eigenvalues is 2 kappa
        table = moment(np.array([[5.0, kappa], [kappa, 5.0]]))
        x = np.array([found.answer(table, SYSTEM)[0] for _ in range(3000)], dtype=np.float64)
        cosine = 2 * x[:, 0] * x[:, 1]  # of twice the angle to the diagonal, von Mises
        for stated, passes in ((kappa, True), (1.4 * kappa, False)):
            assert mean_passes(cosine, float(special.iv(1, stated) / special.iv(0, stated))) is passes


def test_beyond_one_component_ppca_is_for_reproduction_only() -> None:
    request = ReleaseRequest("ppca", PrivacyLoss.parse("1"), 1.0, options={"components": 2})
    for components, proved in ((1, True), (2, False), (4, False), (5, True)):
        found = calibrated("ppca", 5, components)
        assert is_private_as_claimed(found) is proved
        assert ("sweeps" in found.noise) is not proved
        frame = found.answer(moment(np.diag([50.0, 40, 3, 2, 1])), SYSTEM)
        assert frame.shape == (components, 5)
        assert np.abs(frame @ frame.T - np.eye(components)).max() < 1e-12
    with pytest.raises(RefusedError, match=r"nothing is proved.*mechanism='bingham'"):
        request.calibrated(5)
    assert replace(request, for_reproduction=True).calibrated(5).guarantee is None
    with pytest.raises(UsageError, match="sweep"):
        replace(request, options={"components": 2, "sweeps": 0}).calibrated(5)


def test_as_many_directions_as_columns_are_a_uniform_frame_of_ppca() -> None:
    table = moment(np.diag([1e6, 0.0, 0.0]))
    entry = np.array([calibrated("ppca", 3, 3).answer(table, SYSTEM)[0, 0] for _ in range(2000)])
    assert stats.kstest(entry, stats.uniform(-1, 2).cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("name", ["kapralov-talwar", "amin"])
@pytest.mark.parametrize("neighbours", BOTH)
def test_at_a_huge_epsilon_the_matrix_of_rank_k_comes_back(name: str, neighbours: Neighbours) -> None:
    axes: Floats = stats.ortho_group.rvs(6, random_state=5)[:3]
    matrix = (axes.T * np.array([3e5, 2e5, 1e5])) @ axes
    for components, left in ((3, 0.0), (2, 1e5)):
        found = calibrated(name, 6, components, "1000000", neighbours)
        released = unpacked(np.asarray(found.answer(moment(matrix), SYSTEM)), 6) / BOUND
        assert np.linalg.norm(released - matrix, 2) == pytest.approx(left, rel=1e-2, abs=10)
        assert np.linalg.matrix_rank(released, tol=1e-3) == components


@pytest.mark.parametrize("size", [1, 3])
def test_released_eigenvalues_carry_the_stated_noise(size: int) -> None:
    empty = moment(np.zeros((size, size)))
    for name in ("kapralov-talwar", "amin"):
        found = calibrated(name, size, 1)
        diagonal = diagonal_positions(size)
        trace = np.array([found.answer(empty, SYSTEM)[diagonal].sum() for _ in range(3000)]) / found.noise["scale"]
        assert bool(trace.min() < -1) is (name == "kapralov-talwar")  # amin clips at zero
        for factor, passes in ((1.0, True), (0.75, False)):
            assert mean_passes(factor * trace[trace > 0], 1.0) is passes
        if size == 1:  # there is one direction, so the value has all of epsilon
            assert found.noise["scale"] == BOUND


@pytest.mark.parametrize("name", ["kapralov-talwar", "amin"])
def test_the_lattice_is_never_left_because_of_the_data(name: str) -> None:
    triangle = np.asarray(calibrated(name, 1, 1).answer(MomentMatrix(np.array([2**63 - 1]), 1), SYSTEM))
    assert 2**62 < triangle[0] < 2**63
