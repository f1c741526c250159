"""Bounds on unitary orbits: covering and packing numbers of known cases, and errors between the bounds."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from support.tallies import FALSE_ALARM

from dpdist.noise.entropy import SYSTEM
from dpdist.noise.orbit import hermitian
from dpdist.pca import orbit as bounds
from papers.mangoubi import packing

RNG = np.random.default_rng(5)
Floats = npt.NDArray[np.float64]


def haar(size: int) -> npt.NDArray[np.complex128]:
    q, r = np.linalg.qr(RNG.normal(size=(size, size)) + 1j * RNG.normal(size=(size, size)))
    return np.asarray(q * (np.diag(r) / np.abs(np.diag(r))), dtype=np.complex128)


def on_orbit(spectrum: Floats) -> npt.NDArray[np.complex128]:
    u = haar(spectrum.size)
    return (u * spectrum) @ u.conj().T


def projector(size: int, rank: int, height: float = 1.0) -> Floats:
    return np.where(np.arange(size) < rank, height, 0.0)


def test_volumes_of_balls_of_subspaces_are_exact() -> None:
    for d in (2, 3, 7):  # lines: the share is radius^(2(d-1)), the measure of {|u_1|² >= 1 - r²}
        assert packing.grassmannian_ball_log_volume(d, 1, 0.6) == pytest.approx(2 * (d - 1) * math.log(0.6))
        assert packing.grassmannian_ball_log_volume(d, d - 1, 0.6) == pytest.approx(2 * (d - 1) * math.log(0.6))
    trials, size, k = 10000, 5, 2
    # |P - Q|_F² / 2 = k - tr P Q
    distances = [math.sqrt(k - np.linalg.norm(u[:k, :k]) ** 2) for u in (haar(size) for _ in range(trials))]
    expected = trials * math.exp(packing.grassmannian_ball_log_volume(size, k, 1.0))
    found = sum(d <= 1 for d in distances)
    assert abs(found - expected) < 4.9 * math.sqrt(expected)  # 4.9 standard deviations: 1e-6
    assert abs(found - 2 * expected) > 4.9 * math.sqrt(expected)  # what would be told apart


def test_covering_bounds_grow_as_the_theorem_says() -> None:
    assert bounds.covering_log_number(4, 2, 1.0, 8.0) == pytest.approx(16 * math.log(2))
    assert bounds.covering_log_number(4, 2, 3.0, 24.0) == pytest.approx(16 * math.log(2))  # scale-free
    # more balls than an actual packing at twice the radius needs points: covering and packing numbers interlace
    for d, k in ((3, 1), (6, 2), (8, 4)):
        for distance in (0.05, 0.3, 1.0):
            spectrum = projector(d, k)
            packed = packing.packing_log_number(spectrum, 2 * distance * math.sqrt(2 * min(k, d - k)))
            # a Frobenius distance of x sqrt(2 m) needs a spectral one of x at least
            assert packed <= bounds.covering_log_number(d, k, 1.0, distance)


def test_a_packing_number_is_reached_and_never_exceeds_the_known_one() -> None:
    # the orbit of (1, 0) is a sphere of diameter sqrt 2; caps of half the distance about the points are disjoint
    for distance in (0.1, 0.5, 1.0):
        found = math.exp(packing.packing_log_number(projector(2, 1), distance))
        half = (distance / 2) / math.sqrt(2)
        assert 1 <= found <= 1 / half**2
        assert found == pytest.approx(2 / distance**2)
    # greedy packing of a general orbit finds at least as many points as the bound promises
    spectrum = np.array([1.0, 0.2, 0.0])
    distance = 0.9
    kept: list[npt.NDArray[np.complex128]] = []
    for _ in range(4000):
        point = on_orbit(spectrum)
        if all(np.linalg.norm(point - other) > distance for other in kept):
            kept.append(point)
    promised = packing.packing_log_number(spectrum, distance)
    assert 0 < promised <= math.log(len(kept))
    assert packing.packing_log_number(spectrum, 10.0) == 0


def test_turned_eigenvectors_stay_as_far_apart_and_as_near_as_the_packing_of_a_ball_needs() -> None:
    spectrum = np.array([1.0, 0.7, 0.7, 0.1, 0.0])
    (turn,) = (t for t in bounds.turns(spectrum) if (t.top, t.bottom) == (3, 2))
    assert turn.gap == pytest.approx(0.6)
    matrix = np.diag(spectrum)
    for _ in range(50):
        points = []
        for _ in range(2):
            angles, (a, b) = RNG.uniform(0, math.pi / 12, 2), (haar(3), haar(2))
            u = np.eye(5, dtype=np.complex128)
            c, s = np.cos(angles), np.sin(angles)
            left, right = a[:, :2], b
            u[:3, :3] += (left * (c - 1)) @ left.conj().T
            u[3:, 3:] = (right * c) @ right.conj().T
            u[3:, :3] = (right * s) @ left.conj().T
            u[:3, 3:] = -(left * s) @ right.conj().T
            assert np.allclose(u @ u.conj().T, np.eye(5))
            chordal = math.hypot(*s)
            moved = np.linalg.norm(u @ matrix @ u.conj().T - matrix)
            assert moved <= math.sqrt(2) * chordal * 1.0 * bounds.BEND * (1 + 1e-12)
            changes = np.linalg.eigvalsh(u @ matrix @ u.conj().T - matrix)
            assert np.abs(changes).sum() / 2 <= s.sum() * bounds.BEND * (1 + 1e-12)  # rows that have to be exchanged
            points.append(u)
        p, q = (u[:, :3] @ u[:, :3].conj().T for u in points)
        between = float(np.linalg.norm(p - q)) / math.sqrt(2)
        apart = np.linalg.norm(points[0] @ matrix @ points[0].conj().T - points[1] @ matrix @ points[1].conj().T)
        assert apart >= math.sqrt(2) * turn.gap * between * (1 - 1e-12)


def test_ball_packings_are_quotients_of_volumes() -> None:
    spectrum = projector(6, 2, 3.0)
    radius = 0.2 * math.sqrt(2) * 3.0 * bounds.BEND
    found = packing.ball_packing_log_number(spectrum, 0.1 * math.sqrt(2) * 3.0, radius)
    assert found == pytest.approx(2 * 2 * 4 * math.log(2))
    assert packing.ball_packing_log_number(spectrum, 10.0, radius) == 0


def test_lower_bounds_follow_the_paper() -> None:
    def at(d: int, k: int, height: float, epsilon: float) -> float:
        levels = projector(d, k, height)
        return bounds.lower_bound(levels, levels, epsilon)

    # strong signals: of the order sqrt(k) d / epsilon, whatever the eigenvalue
    assert at(400, 1, 1e6, 0.1) == pytest.approx(at(400, 1, 1e7, 0.1), rel=1e-6)
    assert at(400, 4, 1e7, 0.1) / at(400, 1, 1e7, 0.1) == pytest.approx(2, rel=0.05)
    assert at(400, 1, 1e7, 0.01) / at(400, 1, 1e7, 0.1) == pytest.approx(10, rel=0.05)
    # in closed form for a line of C^33: f = 64 real dimensions, three rows exchanged besides
    closed = 64 * math.cos(math.pi / 12) / (0.1 * math.sqrt(2)) * math.exp(-1 - (0.3 + math.log(2)) / 64)
    assert at(33, 1, 1e6, 0.1) == pytest.approx(closed)
    # weak signals: of the order of the eigenvalue
    assert at(400, 1, 2.0, 0.01) / 2.0 > 0.2
    # corollary 2.6: other eigenvalues to release scale the error
    levels = projector(50, 2, 1e4)
    assert bounds.lower_bound(levels, 2 * levels, 1.0) == pytest.approx(2 * bounds.lower_bound(levels, levels, 1.0))
    assert bounds.lower_bound(levels, np.full(50, 3.0), 1.0) == 0


def test_small_eigenvalues_cost_rows_on_the_way_of_the_lower_bound() -> None:
    (turn,) = bounds.turns(projector(9, 2))
    assert (turn.top, turn.bottom, turn.angles, turn.freedom) == (2, 7, 2, 28)
    assert bounds._other_rows(projector(9, 2, 50.0), turn) == 6
    assert bounds._other_rows(np.linspace(50, 10, 9), turn) == 8
    assert bounds._other_rows(np.linspace(50, 0, 9), turn) == 8 + 2
    assert bounds._other_rows(np.array([50.0, 40.0, *[0.0] * 7]), turn) == 8 + 14
    assert bounds._other_rows(np.array([3.0, *[0.5] * 8]), turn) == 8 + 32
    wide = bounds.Turn(1, 30, 1.0)
    assert bounds._other_rows(np.array([50.0, 40.0, *[0.0] * 29]), wide) == 4 + 16


@pytest.mark.parametrize(("d", "k", "exponent"), [(2, 1, 3.0), (6, 2, 2.0), (5, 5, 30.0)])
def test_losses_stay_below_the_upper_bound_and_near_the_first_order(d: int, k: int, exponent: float) -> None:
    levels = np.linspace(10, 1, d)
    spectrum = np.where(np.arange(d) < k, levels, 0.0)
    low, spread = spectrum[-1], spectrum[0] - spectrum[-1]
    best, losses = float(levels @ spectrum), []
    for _ in range(60):
        drawn = low * np.eye(d) + spread * hermitian((spectrum - low) / spread, exponent * spread * levels, SYSTEM)
        losses.append(best - float(levels @ np.diag(drawn).real))
    bound = bounds.utility_bound(levels, spectrum, exponent, FALSE_ALARM / 60)
    assert max(losses) <= bound
    pairs = sum(spectrum[i] > spectrum[j] for i in range(d) for j in range(i + 1, d))
    # a sum of `pairs` exponentials of mean 1/c, to first order
    assert np.mean(losses) == pytest.approx(pairs / exponent, rel=0.1 + 4.9 / math.sqrt(60 * pairs))
    error = bounds.first_order_error(levels, spectrum, exponent)
    assert error == pytest.approx(math.sqrt(float(np.sum((levels - spectrum) ** 2)) + 2 * pairs / exponent))


def test_the_worst_loss_caps_the_upper_bounds() -> None:
    levels = np.array([3.0, 2.0, 1.0])
    assert bounds.utility_bound(levels, levels, 1e-9, 0.1) == pytest.approx(14 - 10)
    # to answer anything of the right spectrum is within this of algorithm 2, however little it knows
    assert bounds.low_rank_bound(levels, 1, 1e-9, 1e-9, 0.1) == pytest.approx(math.sqrt(5 + 2 * 3 * 2), rel=1e-6)
