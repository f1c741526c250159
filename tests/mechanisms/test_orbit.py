"""The orbit mechanisms: exponents, releases and refusals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.hciz import score_passes
from support.tallies import FALSE_ALARM, total_passes

from dpdist.errors import UsageError
from dpdist.mechanisms import registry
from dpdist.mechanisms.orbit import CalibratedLowRankOrbit, CalibratedOrbit
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.moment.operator import MomentMatrix
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.floats import haar
from dpdist.privacy.guarantee import Arithmetic, Neighbours, PrivacyLoss
from dpdist.triangle import packed, unpacked

S = 4**16
REPLACE, ADD = Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE
Floats = npt.NDArray[np.float64]


def orbit(
    size: int, spectrum: tuple[float, ...], neighbours: Neighbours = REPLACE, epsilon: str = "1"
) -> CalibratedOrbit:
    query = LatticeQuery(size, S, neighbours)
    mechanism = registry.calibrated("orbit", query, PrivacyLoss.parse(epsilon), {"spectrum": spectrum})
    assert isinstance(mechanism, CalibratedOrbit)
    return mechanism


def low_rank(size: int, count: int, neighbours: Neighbours = REPLACE, epsilon: str = "1") -> CalibratedLowRankOrbit:
    query = LatticeQuery(size, S, neighbours)
    mechanism = registry.calibrated("orbit-lowrank", query, PrivacyLoss.parse(epsilon), {"components": count})
    assert isinstance(mechanism, CalibratedLowRankOrbit)
    return mechanism


def turned(eigenvalues: tuple[float, ...]) -> MomentMatrix:
    """Return a moment with these eigenvalues, in units of S, in a random basis; they move by a unit of the lattice."""
    basis = haar(len(eigenvalues), len(eigenvalues), SYSTEM)
    return MomentMatrix(packed(np.rint(S * (basis * eigenvalues) @ basis.T)), len(eigenvalues))


@pytest.mark.parametrize(("neighbours", "halves"), [(REPLACE, 1), (ADD, 2)])
def test_all_of_epsilon_is_in_the_exponent(neighbours: Neighbours, halves: int) -> None:
    mechanism = orbit(4, (3.0, 2.0, 1.0, 1.0), neighbours, "0.6")
    assert mechanism.noise["alpha"] == pytest.approx(halves * 0.6 / (2 * S * (3.0 - 1.0)))
    assert mechanism.noise["spectrum"] == [3.0, 2.0, 1.0, 1.0]
    assert mechanism.claim == mechanism.guarantee.loss == PrivacyLoss.parse("0.6")
    assert mechanism.guarantee.bounded_ranges == (Fraction(6, 10),)
    assert mechanism.guarantee.arithmetic is Arithmetic.IDEAL_REAL
    # zeros complete a short spectrum, and count
    assert orbit(4, (3.0, 2.0), neighbours, "0.6").noise["alpha"] == pytest.approx(halves * 0.6 / (2 * S * 3.0))


@pytest.mark.parametrize(("neighbours", "delta"), [(REPLACE, {1: 1, 2: 2, 4: 2}), (ADD, {1: 1, 2: 1, 4: 1})])
def test_low_rank_spends_half_on_eigenvalues_and_half_on_the_orbit(
    neighbours: Neighbours, delta: dict[int, int]
) -> None:
    for count, sensitivity in delta.items():
        mechanism = low_rank(4, count, neighbours, "0.6")
        assert mechanism.noise["laplace_scale"] == pytest.approx(sensitivity * S / 0.3)
        assert mechanism.noise["rate"] == pytest.approx(0.3 / (S * (2 if neighbours is REPLACE else 1)))
        assert mechanism.claim == mechanism.guarantee.loss == PrivacyLoss.parse("0.6")
        assert not mechanism.guarantee.bounded_ranges


def test_the_release_has_its_distribution_in_any_basis() -> None:
    spectrum, eigenvalues, rate = (2.5, 0.5, 0.5), (90.0, 30.0, 8.0), 0.5
    mechanism, moment = orbit(3, spectrum, REPLACE, "0.5"), turned(eigenvalues)
    releases = [unpacked(mechanism.answer(moment, SYSTEM), 3) / S for _ in range(3500)]
    # tr(A Re H) = tr(A H); H = 0.5 I + 2 X, the exponent is rate epsilon tr(A X) / S
    scores = np.array([np.sum(moment.matrix() / S * (h - 0.5 * np.eye(3)) / 2) for h in releases]) * rate * 0.5
    levels = [rate * 0.5 * x for x in eigenvalues]
    assert score_passes(scores, levels, (1.0, 0.0, 0.0))
    assert not score_passes(scores, levels, (1.0, 0.0, 0.0), 1.2)
    assert not score_passes(scores, levels, (1.0, 0.0, 0.0), 0.8)
    assert max(abs(float(np.trace(h)) - 3.5) for h in releases) < 1e-8
    assert max(float(np.linalg.eigvalsh(h)[-1]) for h in releases) < 2.5 + 1e-8
    assert min(float(np.linalg.eigvalsh(h)[0]) for h in releases) > 0.5 - 1e-8


def test_a_spectrum_of_many_values_is_released() -> None:
    eigenvalues, spectrum = (900.0, 500.0, 300.0, 100.0, 0.0), (5.0, 4.0, 4.0, 1.0)
    moment, reports = turned(eigenvalues), []
    answer = orbit(5, spectrum).answer(moment, SYSTEM, lambda *now: reports.append(now))
    h = unpacked(answer, 5) / S
    assert reports
    assert np.trace(h) == pytest.approx(14.0, abs=1e-8)
    # tr(A H) is below its maximum by about d(d-1)/2 / alpha = 100, in the wrong order of the basis by thousands
    best = sum(a * b for a, b in zip(eigenvalues, spectrum, strict=False))
    assert best - 1000 < np.sum(moment.matrix() / S * h) < best
    constant = orbit(3, (2.0, 2.0, 2.0))
    assert np.array_equal(unpacked(constant.answer(turned((9.0, 1.0, 0.0)), SYSTEM), 3), 2 * S * np.eye(3))
    assert constant.noise["alpha"] == 0


def test_low_rank_eigenvalues_carry_laplace_noise() -> None:
    # k = 1: the trace is the noisy eigenvalue, and 400 is 100 scales from where it would be clipped
    mechanism, moment = low_rank(3, 1, ADD, "0.5"), turned((400.0, 30.0, 8.0))
    traces = np.array([np.trace(unpacked(mechanism.answer(moment, SYSTEM), 3)) / S for _ in range(2000)])
    assert stats.kstest(traces, stats.laplace(400, 4).cdf).pvalue > FALSE_ALARM
    total, gamma = float(np.abs(traces - 400).sum()), stats.gamma(2000, scale=4)
    assert total_passes(total, gamma)
    assert not total_passes(0.75 * total, gamma)  # 11 standard errors
    # no data: a matrix is clipped at zero, and one without a positive eigenvalue, a quarter of them, is zero
    empty = MomentMatrix(packed(np.zeros((3, 3))), 3)
    releases = [unpacked(low_rank(3, 2).answer(empty, SYSTEM), 3) for _ in range(200)]
    assert stats.binomtest(sum(not h.any() for h in releases), 200, 0.25).pvalue > FALSE_ALARM
    assert min(np.linalg.eigvalsh(h)[0] for h in releases) > -2  # rounding to the lattice
    huge = MomentMatrix(packed(np.diag([2**62, 2**62 - 2**40])), 2)  # all data stay on the lattice
    assert np.trace(unpacked(low_rank(2, 2).answer(huge, SYSTEM), 2).astype(float)) <= 2.0**62


def test_low_rank_directions_have_half_of_epsilon() -> None:
    # k = 1: the answer divided by its trace is a projector on a line, for any noisy eigenvalue
    eigenvalues, rate = (90.0, 70.0, 60.0), 0.25
    mechanism, moment = low_rank(3, 1, REPLACE, "0.5"), turned(eigenvalues)
    releases = [unpacked(mechanism.answer(moment, SYSTEM), 3) for _ in range(3500)]
    scores = np.array([np.sum(moment.matrix() / S * h) / np.trace(h) for h in releases]) * rate * 0.5
    levels = [rate * 0.5 * x for x in eigenvalues]
    assert score_passes(scores, levels, (1.0, 0.0, 0.0))
    assert not score_passes(scores, levels, (1.0, 0.0, 0.0), 1.25)
    assert not score_passes(scores, levels, (1.0, 0.0, 0.0), 0.75)


@pytest.mark.parametrize(
    ("spectrum", "message"),
    [
        ((1.0, 2.0), "descending"),
        ((1.0, -0.5), "negative"),
        ((3.0, 2.0, 1.0, 0.0), "pass 1 to 3"),
        ((), "pass 1 to 3"),
        ((1e12,), "grid"),
    ],
)
def test_an_invalid_spectrum_is_refused(spectrum: tuple[float, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        orbit(3, spectrum)
