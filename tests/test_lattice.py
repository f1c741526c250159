"""The exactly rounded normal: its bits, its rare branches, its law."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import dpdist
from dpdist.noise import lattice
from dpdist.noise.entropy import SYSTEM, Words, random_token
from dpdist.noise.lattice import GUARD, rounded_normal

FALSE_ALARM = 1e-6
"""Probability with which each statistical test fails on correct code."""


class Scripted:
    """Gives bulk words from one stream and single words (extensions) from another."""

    def __init__(self, seed: int, bulk: list[Words] | None = None) -> None:
        self._bulk_stream = np.random.default_rng(seed)
        self._extensions = np.random.default_rng(seed + 1)
        self._bulk = list(bulk or [])
        self.extended = 0

    def words(self, count: int) -> Words:
        if count == 1:
            self.extended += 1
            return self._extensions.integers(0, 2**64, 1, dtype=np.uint64)
        if self._bulk:
            return self._bulk.pop(0)
        return self._bulk_stream.integers(0, 2**64, count, dtype=np.uint64)


@pytest.mark.parametrize("sigma", [1, 7, 2**20 + 1, 2**45 + 3])
def test_the_exact_path_and_the_fast_path_give_the_same_integers(sigma: int) -> None:
    # a guard of 2 sends every candidate through interval arithmetic
    fast = rounded_normal(sigma, 300, Scripted(5))
    exact = rounded_normal(sigma, 300, Scripted(5), guard=2.0)
    assert np.array_equal(fast, exact)


def test_the_float_errors_stay_far_inside_the_guard() -> None:
    # the proof allows 2^-45 for everything; the exponential is the only library function in it
    t = np.linspace(0, 14, 20_001)
    with mpmath.workdps(40):
        error = max(abs(mpmath.exp(-mpmath.mpf(float(x))) - mpmath.mpf(float(np.exp(-x)))) for x in t)
    assert error < GUARD / 2**8


def test_the_thresholds_are_the_cumulative_law_of_k() -> None:
    table = lattice._thresholds()
    with mpmath.workdps(60):
        total = mpmath.nsum(lambda i: mpmath.exp(-(i**2) / 2), [0, mpmath.inf])
        expected = [
            int(mpmath.floor(2**63 * mpmath.fsum(mpmath.exp(-mpmath.mpf(i * i) / 2) for i in range(k + 1)) / total))
            for k in range(len(table))
        ]
    assert table.tolist() == expected
    assert expected[-1] == 2**63 - 1


@given(st.integers(1, 2**50), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5))
def test_the_limb_product_is_the_128_bit_product(sigma: int, xs: list[int]) -> None:
    high, low = lattice.product_plus_half(sigma, np.array(xs, dtype=np.uint64))
    for x, h, lo in zip(xs, high.tolist(), low.tolist(), strict=True):
        assert (h << 64) + lo == sigma * x + 2**63


def _words(k_word: int, x: int, v: int) -> Words:
    return np.array([k_word, x, v], dtype=np.uint64)


def _candidate(sigma: int, k_word: int, x: int, v: int, source: Scripted) -> npt.NDArray[np.int64]:
    source._bulk.append(_words(k_word, x, v))
    return lattice._candidates(sigma, 1, source, GUARD)


@pytest.mark.parametrize("k", range(4))
def test_a_word_on_a_threshold_of_k_is_extended(k: int) -> None:
    threshold = int(lattice._thresholds()[k])
    outcomes = set()
    for seed in range(40):
        source = Scripted(seed)
        outcomes.add(int(_candidate(1000, threshold << 1, 0, 0, source)[0]) // 1000)
        assert source.extended >= 1
    assert outcomes <= {k, k + 1}
    # the next 64 bits lie below the fraction of the threshold with a probability strictly inside (0, 1)
    assert len(outcomes) == 2


def test_an_acceptance_inside_the_guard_is_decided_by_further_bits() -> None:
    # k = 0 and an x near 1/2 for which the threshold cuts the cell of v near its middle, whatever follows in x
    with mpmath.workdps(60):
        for x in range(2**63, 2**63 + 100):
            scaled = 2**64 * mpmath.exp(-((mpmath.mpf(x) / 2**64) ** 2) / 2)
            if 0.7 < scaled - mpmath.floor(scaled) < 0.8:
                break
        v = int(mpmath.floor(scaled))
    accepted = []
    for seed in range(60):
        source = Scripted(seed)
        accepted.append(_candidate(10, 0, x, v, source).size)
        assert source.extended >= 2
    # v's cell is accepted with a probability between .26 and .8: all or none of 60 has probability below 1e-5
    assert 0 < sum(accepted) < 60
    # a clear distance on either side needs no further bit
    for shift, size in ((-(2**40), 1), (2**40, 0)):
        source = Scripted(0)
        assert _candidate(10, 0, x, v + shift, source).size == size
        assert source.extended == 0


@pytest.mark.parametrize("negative", [0, 1])
def test_a_rounding_that_unknown_bits_decide_is_extended(negative: int) -> None:
    sigma = 2**45 + 987_654_321
    # an x of which 64 bits leave sigma x just below n + 1/2, which lies near the middle of its cell
    for n in range(12345, 13345):
        x, rest = divmod(2**64 * n + 2**63, sigma)
        if 0.4 < rest / sigma < 0.6:
            break
    boundary = Fraction(2 * n + 1, 2)
    assert Fraction(sigma * x, 2**64) < boundary < Fraction(sigma * (x + 1), 2**64)
    seen = set()
    for seed in range(40):
        source = Scripted(seed)
        draw = _candidate(sigma, negative, x, 0, source)
        assert source.extended >= 1
        seen.add(abs(int(draw[0])))
        assert (int(draw[0]) < 0) == bool(negative)
    assert seen == {n, n + 1}


def _counts(draws: npt.NDArray[np.int64], sigma: float) -> float:
    """p-value of a chi-squared test of draws against the exact law of rounded N(0, sigma²)."""
    reach = int(4 * sigma)
    edges = np.arange(-reach, reach + 2) - 0.5
    cdf = stats.norm.cdf(edges / sigma)
    probability = np.concatenate([[cdf[0]], np.diff(cdf), [1 - cdf[-1]]])
    observed = np.histogram(draws, bins=np.concatenate([[-np.inf], edges, [np.inf]]))[0]
    return float(stats.chisquare(observed, probability * draws.size).pvalue)


@pytest.mark.parametrize("sigma", [1, 3, 10])
def test_small_scales_have_the_law_of_a_rounded_normal(sigma: int) -> None:
    draws = rounded_normal(sigma, 400_000, SYSTEM)
    assert _counts(draws, sigma) > FALSE_ALARM
    # the twin: a law with 2 % less noise is told apart, with probability 1 - 1e-9
    assert _counts(draws, 0.98 * sigma) < FALSE_ALARM


def test_large_scales_are_normal_and_their_low_bits_uniform() -> None:
    sigma = 2**40 + 12345
    draws = rounded_normal(sigma, 400_000, SYSTEM)
    assert stats.kstest(draws / sigma, "norm").pvalue > FALSE_ALARM
    assert stats.kstest(draws / sigma * 1.05, "norm").pvalue < FALSE_ALARM
    low = np.bincount((draws & 255).astype(np.intp), minlength=256)
    assert stats.chisquare(low).pvalue > FALSE_ALARM


def test_scale_and_guard_outside_the_proof_are_refused() -> None:
    for sigma in (0, -1, 2**50 + 1):
        with pytest.raises(ValueError, match="sigma"):
            rounded_normal(sigma, 1, SYSTEM)
    with pytest.raises(ValueError, match="guard"):
        rounded_normal(1, 1, SYSTEM, guard=GUARD / 2)


def test_no_other_module_draws_a_random_bit() -> None:
    root = Path(dpdist.__file__).parent
    pattern = re.compile(
        r"urandom|getrandom|\bsecrets\b|^import random$|np\.random|numpy\.random|default_rng|uuid", re.MULTILINE
    )
    users = {str(p.relative_to(root)) for p in root.rglob("*.py") if pattern.search(p.read_text())}
    assert users == {"noise/entropy.py"}


def test_tokens_are_fresh() -> None:
    assert len({random_token() for _ in range(1000)}) == 1000
    assert not np.array_equal(SYSTEM.words(8), SYSTEM.words(8))
