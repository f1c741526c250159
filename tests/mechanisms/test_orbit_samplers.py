"""Exact samplers on unitary orbits against the Harish-Chandra-Itzykson-Zuber integral, with twins that must fail."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.hciz import line_means, score_passes
from support.tallies import FALSE_ALARM

from dpdist.noise import orbit
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.orbit import Complex, Polytope, hermitian, line, matrix_of, patterns, subspace

Floats = npt.NDArray[np.float64]
LEVELS = {4: (25.0, 14.0, 6.0, 0.0), 5: (26.0, 20.0, 9.0, 3.0, 0.0)}


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let chains meet at 1e-5, three times sooner: what that adds to a mean is a hundredth of its standard error."""
    monkeypatch.setattr(orbit, "TOLERANCE", 1e-5)


def diagonal(pattern: Floats) -> Floats:
    """Return the diagonal that every matrix with this pattern has."""
    return np.diff(pattern.sum(axis=1), prepend=0.0)


def draws_of(spectrum: Sequence[float], levels: Sequence[float]) -> Iterator[Complex]:
    while True:
        yield hermitian(np.array(spectrum), np.array(levels), SYSTEM)


def accepted(levels: Sequence[float], count: int) -> Iterator[Complex]:
    while True:
        found = subspace(np.array(levels), count, 1, SYSTEM)
        if found is not None:
            yield found


def score(draws: Iterator[Complex], count: int, levels: Sequence[float]) -> Floats:
    return np.array([np.diag(h).real @ levels for h in islice(draws, count)])


def check(sample: Floats, levels: Sequence[float], spectrum: Sequence[float], off: float = 0.1) -> None:
    """Accept the law, and tell apart its twins with an exponent so much off, with probability 1 - 1e-9."""
    assert score_passes(sample, levels, spectrum)
    assert not score_passes(sample, levels, spectrum, 1 + off)
    assert not score_passes(sample, levels, spectrum, 1 - off)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(
    ("spectrum", "count"),
    [((1.0, 1.0, 0.0, 0.0, 0.0), 2400), ((1.0, 0.7, 0.2, 0.0), 3200), ((1.0, 0.6, 0.6, 0.0), 3500)],
    ids=["projector", "general", "ties"],
)
def test_patterns_have_the_exact_mean(spectrum: tuple[float, ...], count: int) -> None:
    levels = LEVELS[len(spectrum)]
    draws = islice(patterns(np.array(spectrum), np.array(levels), SYSTEM), count)
    check(np.array([diagonal(p) @ levels for p in draws]), levels, spectrum)


@pytest.mark.parametrize("spectrum", [(1.0, 0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0, 0.0)])
def test_lines_and_their_complements_have_the_exact_mean(spectrum: tuple[float, ...]) -> None:
    levels = LEVELS[5]
    check(score(draws_of(spectrum, levels), 4500, levels), levels, spectrum)


@pytest.mark.usefixtures("coarse")
def test_giving_up_on_the_ball_does_not_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    # one proposal only: a third of these draws fall back
    monkeypatch.setattr(orbit, "ATTEMPTS", 1)
    fallbacks = 0

    def counted(*args: Any, **kwargs: Any) -> Iterator[Floats]:
        nonlocal fallbacks
        fallbacks += 1
        return patterns(*args, **kwargs)

    monkeypatch.setattr(orbit, "patterns", counted)
    levels, spectrum = (5.0, 4.0, 1.0, 0.0), (1.0, 1.0, 0.0, 0.0)
    check(score(draws_of(spectrum, levels), 3000, levels), levels, spectrum, off=0.2)
    assert 700 < fallbacks < 1500


def test_the_state_before_a_meeting_is_unbiased_and_the_meeting_point_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # blocks so short that three in four do not meet: the bookkeeping of read-once coupling decides the law
    monkeypatch.setattr(orbit, "_STRIDE", 1)
    monkeypatch.setattr(orbit, "TOLERANCE", 3e-3)
    levels, spectrum = (6.0, 3.0, 0.0), (1.0, 0.6, 0.0)
    polytope = Polytope(np.array(spectrum), np.array(levels))
    exact = patterns(np.array(spectrum), np.array(levels), SYSTEM, strides=3)
    assert score_passes(np.array([diagonal(found) @ levels for found in islice(exact, 3000)]), levels, spectrum)
    ends: list[float] = []
    while len(ends) < 3000:
        chains = np.stack([polytope.highest, polytope.lowest])
        polytope.run(chains, 3, SYSTEM)
        if polytope.met(chains):
            ends.append(float(diagonal(polytope.rows(chains[0])) @ levels))
    assert not score_passes(np.array(ends), levels, spectrum)


def truncated_exponential_passes(sample: Floats, rate: float) -> bool:
    return bool(stats.kstest(sample, stats.truncexpon(b=rate, scale=1 / rate).cdf).pvalue > FALSE_ALARM)


@pytest.mark.parametrize("sampler", ["line", "ball", "pattern"])
def test_in_two_dimensions_the_weight_of_the_second_axis_is_a_truncated_exponential(sampler: str) -> None:
    levels, rate, count = (4.0, 1.0), 3.0, 2000
    draws: Iterator[float] = {
        "line": (float(h[1, 1].real) for h in draws_of((1.0, 0.0), levels)),
        "ball": (float(h[1, 1].real) for h in accepted(levels, 1)),
        "pattern": (1 - float(p[0, 0]) for p in patterns(np.array([1.0, 0.0]), np.array(levels), SYSTEM)),
    }[sampler]
    sample = np.fromiter(draws, float, count)
    assert truncated_exponential_passes(sample, rate)
    assert not truncated_exponential_passes(sample, 2 * rate)


def line_passes(sample: Floats, levels: Sequence[float]) -> bool:
    z = (sample.mean(axis=0) - line_means(levels)) / (sample.std(axis=0) / math.sqrt(len(sample)))
    return bool(np.abs(z).max() < 1.05 * stats.norm.isf(FALSE_ALARM / 2 / len(levels)))


def test_lines_have_the_weights_of_the_divided_differences() -> None:
    levels = (7.0, 6.5, 5.5, 3.0, 3.0, 0.0)
    draws = [line(np.array(levels), SYSTEM) for _ in range(5000)]
    weights = np.array([np.diag(h).real for h in draws])
    assert line_passes(weights, levels)
    assert not line_passes(weights, [0.8 * x for x in levels])
    # uniform phases
    angles = np.array([np.angle(h[0, 1]) for h in draws])
    assert stats.kstest(angles, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > FALSE_ALARM


@st.composite
def polytopes(draw: st.DrawFn) -> Polytope:
    size = draw(st.integers(2, 7))
    values = st.lists(st.sampled_from([0.0, 0.1, 0.1001, 0.5, 1.0]), min_size=size, max_size=size)
    scale = draw(st.sampled_from([0.0, 1e-20, 1.0, 1e3, 1e12]))
    levels = draw(st.lists(st.floats(0, 1), min_size=size, max_size=size))
    return Polytope(np.sort(draw(values))[::-1], scale * np.sort(levels)[::-1])


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


@pytest.mark.parametrize(("low", "high"), [(0.0001, 0.0217), (0.0001, 0.4341), (0.0002, 0.7025), (0.0003, 0.5739)])
def test_rounding_carries_no_cell_out_of_its_interval(low: float, high: float) -> None:
    polytope = Polytope(np.array([high, low]), np.array([1e-3, 0.0]))
    chains = np.stack([polytope.highest, polytope.lowest])
    polytope.sweep(chains, np.array([1 - 2.0**-53]))  # the largest uniform; unguarded, these fall an ulp below
    assert (chains >= low).all()


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


@pytest.mark.parametrize(("count", "top"), [(1, 30.0), (3, 1e3), (3, 1.0), (5, 30.0)])
def test_projectors_are_projectors(count: int, top: float) -> None:
    levels = np.linspace(top, 0, 6)
    h = hermitian(np.repeat([1.0, 0.0], [count, 6 - count]), levels, SYSTEM)
    assert np.abs(h @ h - h).max() < 1e-12
    assert np.abs(h - h.conj().T).max() < 1e-15
    assert np.trace(h).real == pytest.approx(count, abs=1e-12)


@pytest.mark.usefixtures("coarse")
def test_without_levels_no_direction_is_preferred() -> None:
    spectrum = np.array([1.0, 0.4, 0.0])
    draws = [matrix_of(p, SYSTEM) for p in islice(patterns(spectrum, np.zeros(3), SYSTEM), 1500)]
    # x* H x is a mean of the spectrum with weights uniform on the simplex, for every unit vector x
    weights = np.random.default_rng(1).dirichlet(np.ones(3), 200_000)
    for x in (np.eye(3)[0], np.eye(3)[2], np.array([1, 1j, 0]) / math.sqrt(2), np.ones(3) / math.sqrt(3)):
        values = np.array([(x.conj() @ h @ x).real for h in draws])
        assert stats.ks_2samp(values, weights @ spectrum).pvalue > FALSE_ALARM
    # the twin, whose phases are all zero, is told apart
    real = np.array([np.abs(h).mean() * 3 for h in draws])
    assert stats.ks_2samp(real, weights @ spectrum).pvalue < FALSE_ALARM
