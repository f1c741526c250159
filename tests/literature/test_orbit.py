"""The orbit mechanisms, and their exact samplers on unitary orbits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats
from support.hciz import score_passes
from support.registered import BOUND as S
from support.registered import calibrated
from support.tallies import FALSE_ALARM, total_passes

from dpdist.core.errors import UsageError
from dpdist.core.moment.operator import MomentMatrix
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.floats import haar
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.triangle import packed, unpacked
from dpdist.literature import orbit_sampler as orbit
from dpdist.literature.orbit_sampler import Complex, Polytope, hermitian, matrix_of, patterns

REPLACE, ADD = Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE
Floats = npt.NDArray[np.float64]


def turned(eigenvalues: tuple[float, ...]) -> MomentMatrix:
    """Return a moment with these eigenvalues, in units of S, in a random basis; they move by a unit of the lattice."""
    basis = haar(len(eigenvalues), len(eigenvalues), SYSTEM)
    return MomentMatrix(packed(np.rint(S * (basis * eigenvalues) @ basis.T)), len(eigenvalues))


def check(sample: Floats, levels: Sequence[float], spectrum: Sequence[float], off: float = 0.1) -> None:
    """Accept the distribution, and detect twins with a wrong exponent, with probability 1 - 1e-9."""
    assert score_passes(sample, levels, spectrum)
    assert not score_passes(sample, levels, spectrum, 1 + off)
    assert not score_passes(sample, levels, spectrum, 1 - off)


@pytest.mark.parametrize(("neighbours", "halves"), [(REPLACE, 1), (ADD, 2)])
def test_all_of_epsilon_is_in_the_exponent(neighbours: Neighbours, halves: int) -> None:
    mechanism = calibrated("orbit", 4, S, neighbours, "0.6", spectrum=(3.0, 2.0, 1.0, 1.0))
    assert mechanism.noise["alpha"] == pytest.approx(halves * 0.6 / (2 * S * (3.0 - 1.0)))
    assert mechanism.noise["spectrum"] == [3.0, 2.0, 1.0, 1.0]
    assert mechanism.guarantee.bounded_ranges == (Fraction(6, 10),)
    # zeros complete a short spectrum, and count
    short = calibrated("orbit", 4, S, neighbours, "0.6", spectrum=(3.0, 2.0))
    assert short.noise["alpha"] == pytest.approx(halves * 0.6 / (2 * S * 3.0))


@pytest.mark.parametrize(("neighbours", "delta"), [(REPLACE, {1: 1, 2: 2, 4: 2}), (ADD, {1: 1, 2: 1, 4: 1})])
def test_low_rank_spends_half_on_eigenvalues_and_half_on_the_orbit(
    neighbours: Neighbours, delta: dict[int, int]
) -> None:
    for count, sensitivity in delta.items():
        mechanism = calibrated("orbit-lowrank", 4, S, neighbours, "0.6", components=count)
        assert mechanism.noise["laplace_scale"] == pytest.approx(sensitivity * S / 0.3)
        assert mechanism.noise["rate"] == pytest.approx(0.3 / (S * (2 if neighbours is REPLACE else 1)))
        assert not mechanism.guarantee.bounded_ranges


def test_the_release_has_its_distribution_in_any_basis() -> None:
    spectrum, eigenvalues, rate = (2.5, 0.5, 0.5), (90.0, 30.0, 8.0), 0.5
    mechanism, moment = calibrated("orbit", 3, loss="0.5", spectrum=spectrum), turned(eigenvalues)
    releases = [unpacked(mechanism.answer(moment, SYSTEM), 3) / S for _ in range(3500)]
    # tr(A Re H) = tr(A H); H = 0.5 I + 2 X, the exponent is rate epsilon tr(A X) / S
    scores = np.array([np.sum(moment.matrix() / S * (h - 0.5 * np.eye(3)) / 2) for h in releases]) * rate * 0.5
    levels = [rate * 0.5 * x for x in eigenvalues]
    check(scores, levels, (1.0, 0.0, 0.0), off=0.2)
    assert max(abs(float(np.trace(h)) - 3.5) for h in releases) < 1e-8
    assert max(float(np.linalg.eigvalsh(h)[-1]) for h in releases) < 2.5 + 1e-8
    assert min(float(np.linalg.eigvalsh(h)[0]) for h in releases) > 0.5 - 1e-8


def test_a_spectrum_of_many_values_is_released() -> None:
    eigenvalues, spectrum = (900.0, 500.0, 300.0, 100.0, 0.0), (5.0, 4.0, 4.0, 1.0)
    moment, reports = turned(eigenvalues), []
    answer = calibrated("orbit", 5, spectrum=spectrum).answer(moment, SYSTEM, lambda *now: reports.append(now))
    h = unpacked(answer, 5) / S
    assert reports
    assert np.trace(h) == pytest.approx(14.0, abs=1e-8)
    # tr(A H) is below its maximum by about d(d-1)/2 / alpha = 100, in the wrong order of the basis by thousands
    best = sum(a * b for a, b in zip(eigenvalues, spectrum, strict=False))
    assert best - 1000 < np.sum(moment.matrix() / S * h) < best
    constant = calibrated("orbit", 3, spectrum=(2.0, 2.0, 2.0))
    assert np.array_equal(unpacked(constant.answer(turned((9.0, 1.0, 0.0)), SYSTEM), 3), 2 * S * np.eye(3))
    assert constant.noise["alpha"] == 0


def test_low_rank_eigenvalues_carry_laplace_noise() -> None:
    # k = 1: the trace is the noisy eigenvalue, and 400 is 100 scales from where it would be clipped
    mechanism, moment = calibrated("orbit-lowrank", 3, S, ADD, "0.5"), turned((400.0, 30.0, 8.0))
    traces = np.array([np.trace(unpacked(mechanism.answer(moment, SYSTEM), 3)) / S for _ in range(2000)])
    assert stats.kstest(traces, stats.laplace(400, 4).cdf).pvalue > FALSE_ALARM
    total, gamma = float(np.abs(traces - 400).sum()), stats.gamma(2000, scale=4)
    assert total_passes(total, gamma)
    assert not total_passes(0.75 * total, gamma)  # 11 standard errors
    # no data: a matrix is clipped at zero, and one without a positive eigenvalue, a quarter of them, is zero
    empty = MomentMatrix(packed(np.zeros((3, 3))), 3)
    releases = [unpacked(calibrated("orbit-lowrank", 3, components=2).answer(empty, SYSTEM), 3) for _ in range(200)]
    assert stats.binomtest(sum(not h.any() for h in releases), 200, 0.25).pvalue > FALSE_ALARM
    assert min(np.linalg.eigvalsh(h)[0] for h in releases) > -2  # rounding to the lattice
    huge = MomentMatrix(packed(np.diag([2**62, 2**62 - 2**40])), 2)  # all data stay on the lattice
    largest = unpacked(calibrated("orbit-lowrank", 2, components=2).answer(huge, SYSTEM), 2)
    assert np.trace(largest.astype(float)) <= 2.0**62


def test_low_rank_directions_have_half_of_epsilon() -> None:
    # k = 1: the answer divided by its trace is a projector on a line, for any noisy eigenvalue
    eigenvalues, rate = (90.0, 70.0, 60.0), 0.25
    mechanism, moment = calibrated("orbit-lowrank", 3, loss="0.5"), turned(eigenvalues)
    releases = [unpacked(mechanism.answer(moment, SYSTEM), 3) for _ in range(3500)]
    scores = np.array([np.sum(moment.matrix() / S * h) / np.trace(h) for h in releases]) * rate * 0.5
    levels = [rate * 0.5 * x for x in eigenvalues]
    check(scores, levels, (1.0, 0.0, 0.0), off=0.25)


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
        calibrated("orbit", 3, spectrum=spectrum)


# --- exact samplers, against the Harish-Chandra-Itzykson-Zuber integral -----------------------------------------------

LEVELS = {4: (25.0, 14.0, 6.0, 0.0), 5: (26.0, 20.0, 9.0, 3.0, 0.0)}


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let chains meet at 1e-5, three times sooner, which adds a hundredth of its standard error to a mean."""
    monkeypatch.setattr(orbit, "TOLERANCE", 1e-5)


def diagonal(pattern: Floats) -> Floats:
    """Return the diagonal that every matrix with this pattern has."""
    return np.diff(pattern.sum(axis=1), prepend=0.0)


def draws_of(spectrum: Sequence[float], levels: Sequence[float]) -> Iterator[Complex]:
    while True:
        yield hermitian(np.array(spectrum), np.array(levels), SYSTEM)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(
    ("spectrum", "count"),
    [((1.0, 1.0, 0.0, 0.0, 0.0), 1200), ((1.0, 0.6, 0.6, 0.0), 2400)],
    ids=["projector", "ties"],
)
def test_patterns_have_the_exact_mean(spectrum: tuple[float, ...], count: int) -> None:
    levels = LEVELS[len(spectrum)]
    draws = islice(patterns(np.array(spectrum), np.array(levels), SYSTEM), count)
    check(np.array([diagonal(p) @ levels for p in draws]), levels, spectrum, off=0.15)


def test_the_state_before_a_meeting_is_unbiased_and_the_meeting_point_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # blocks so short that three in four do not meet, a test of read-once coupling
    monkeypatch.setattr(orbit, "_STRIDE", 1)
    monkeypatch.setattr(orbit, "TOLERANCE", 3e-3)
    levels, spectrum = (6.0, 3.0, 0.0), (1.0, 0.6, 0.0)
    polytope = Polytope(np.array(spectrum), np.array(levels))
    exact = patterns(np.array(spectrum), np.array(levels), SYSTEM, strides=3)
    assert score_passes(np.array([diagonal(pattern) @ levels for pattern in islice(exact, 2000)]), levels, spectrum)
    ends: list[float] = []
    while len(ends) < 6000:  # 11 standard errors from the mean: passes with probability 1e-9
        chains = np.stack([polytope.highest, polytope.lowest])
        polytope.run(chains, 3, SYSTEM)
        if polytope.met(chains):
            ends.append(float(diagonal(polytope.rows(chains[0])) @ levels))
    assert not score_passes(np.array(ends), levels, spectrum)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("spectrum", [(1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 0.0, 0.0), (1.0, 1.0, 1.0, 0.0)])
def test_projectors_have_the_exact_mean_also_where_proposals_are_given_up(
    monkeypatch: pytest.MonkeyPatch, spectrum: tuple[float, ...]
) -> None:
    monkeypatch.setattr(orbit, "ATTEMPTS", 1)  # one proposal only: a third of the draws of planes fall back
    fallbacks = []

    def counted(*args: Any, **kwargs: Any) -> Iterator[Floats]:
        fallbacks.append(1)
        return patterns(*args, **kwargs)

    monkeypatch.setattr(orbit, "patterns", counted)
    levels = (5.0, 4.0, 1.0, 0.0)
    projectors = list(islice(draws_of(spectrum, levels), 2500))
    check(np.array([np.diag(h).real @ levels for h in projectors]), levels, spectrum, off=0.3)
    assert np.abs(np.array([h @ h - h for h in projectors])).max() < 1e-12
    assert len(fallbacks) > 500 or spectrum[1] == spectrum[2]


@st.composite
def polytopes(draw: st.DrawFn) -> Polytope:
    size = draw(st.integers(2, 7))
    values = st.lists(st.sampled_from([0.0, 0.1, 0.1001, 0.5, 1.0]), min_size=size, max_size=size)
    scale = draw(st.sampled_from([0.0, 1e-20, 1.0, 1e3, 1e12]))
    levels = draw(st.lists(st.floats(0, 1), min_size=size, max_size=size))
    return Polytope(np.sort(draw(values))[::-1], scale * np.sort(levels)[::-1])


@example(Polytope(np.array([0.7025, 0.0002]), np.array([1e-3, 0.0])), 0)
@given(polytopes(), st.integers(0, 4))
def test_a_sweep_keeps_order_distance_and_interlacing(polytope: Polytope, warm: int) -> None:
    chains = np.stack([polytope.highest, polytope.lowest])
    polytope.run(chains, warm, SYSTEM)
    before = chains.copy()
    polytope.run(chains, 1, SYSTEM)
    assert (chains[0] >= chains[1] - 1e-15).all()
    assert np.abs(chains[0] - chains[1]).max() <= np.abs(before[0] - before[1]).max() + 1e-15
    for state in chains:
        rows = polytope.rows(state)
        for m in range(1, polytope.size):
            assert (rows[m, :m] >= rows[m - 1, :m]).all()
            assert (rows[m - 1, :m] >= rows[m, 1 : m + 1]).all()


@pytest.mark.parametrize(
    "spectrum",
    [
        (1.0,),
        (1.0, 0.0),
        (1.0, 0.9, 0.9, 0.5, 0.4999, 0.2, 0.0, 0.0, 0.0),
        (1.0,) * 4 + (0.0,) * 8,
        (1.0,) + (0.3,) * 9 + (0.0,),
    ],
)
@pytest.mark.parametrize("strength", [0.0, 1.0, 1e4])
def test_the_matrix_has_the_spectrum_and_its_minors_the_pattern(spectrum: tuple[float, ...], strength: float) -> None:
    levels = strength * np.linspace(1, 0, len(spectrum)) ** 2
    pattern = next(patterns(np.array(spectrum), levels, SYSTEM))
    assert np.array_equal(pattern[-1], spectrum)
    h = matrix_of(pattern, SYSTEM)
    assert np.array_equal(h, h.conj().T)
    for m in range(1, len(spectrum) + 1):
        assert np.abs(np.linalg.eigvalsh(h[:m, :m])[::-1] - pattern[m - 1, :m]).max() < 1e-12


@pytest.mark.usefixtures("coarse")
def test_without_levels_no_direction_is_preferred() -> None:
    spectrum = np.array([1.0, 0.4, 0.0])
    draws = [matrix_of(p, SYSTEM) for p in islice(patterns(spectrum, np.zeros(3), SYSTEM), 1000)]
    # x* H x is a mean of the spectrum with weights uniform on the simplex, for every unit vector x
    weights = np.random.default_rng(1).dirichlet(np.ones(3), 200_000)
    for x in (np.eye(3)[0], np.eye(3)[2], np.array([1, 1j, 0]) / math.sqrt(2), np.ones(3) / math.sqrt(3)):
        values = np.array([(x.conj() @ h @ x).real for h in draws])
        assert stats.ks_2samp(values, weights @ spectrum).pvalue > FALSE_ALARM
    # the twin, with phases of zero, is detected
    real = np.array([np.abs(h).mean() * 3 for h in draws])
    assert stats.ks_2samp(real, weights @ spectrum).pvalue < FALSE_ALARM
