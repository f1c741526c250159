"""Exact samplers on unitary orbits against the Harish-Chandra-Itzykson-Zuber integral, with twins that must fail."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats
from support.hciz import score_passes
from support.tallies import FALSE_ALARM

from dpdist.noise import orbit
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.orbit import Complex, Polytope, hermitian, matrix_of, patterns

Floats = npt.NDArray[np.float64]
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


def check(sample: Floats, levels: Sequence[float], spectrum: Sequence[float], off: float = 0.1) -> None:
    """Accept the distribution, and detect twins with a wrong exponent, with probability 1 - 1e-9."""
    assert score_passes(sample, levels, spectrum)
    assert not score_passes(sample, levels, spectrum, 1 + off)
    assert not score_passes(sample, levels, spectrum, 1 - off)


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
