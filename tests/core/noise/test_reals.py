"""Exact draws of reals: every decision against the exact path, the rare branches, the tables, the distributions."""

from __future__ import annotations

import bisect
from functools import lru_cache

import mpmath
import numpy as np
import pytest
from scipy import stats
from support.scripted import Scripted
from support.tallies import FALSE_ALARM, total_passes

from dpdist.core.noise import reals
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.reals import EXPONENTIAL, GUARD, NORMAL, Bits, Density, Reals, draws, exact_normals

LAWS = pytest.mark.parametrize("law", [NORMAL, EXPONENTIAL], ids=["normal", "exponential"])
FULL = 2**16 - 1


def candidate(density: Density, source: Scripted, x: int, u: int, v: int, *, negative: bool = False) -> Reals:
    """Decide the candidate of a 58-bit x and of the first 80 bits of U and V."""
    short = (u >> 64) | (v >> 64 << 16)
    source.script([(x << 6) | negative, short], [u & (2**64 - 1), v & (2**64 - 1)])
    return reals._candidates(density, 1, source, 1)


def step_of(draw: Reals) -> int:
    return (int(draw.integral[0]) << 6) | (int(draw.fraction[0, 0]) >> 58)


@lru_cache
def cumulative(density: Density) -> list[mpmath.mpf]:
    """``P(K <= k)`` by summation at 60 digits, up to where it equals 1 in 64 bits."""
    with mpmath.workdps(60):
        terms = [
            mpmath.exp(-(mpmath.mpf(i) ** density.power) / (density.power * 64**density.power))
            for i in range(6000 // density.power)
        ]
        total, partial, out = mpmath.fsum(terms), mpmath.mpf(0), []
        for term in terms:
            partial += term
            out.append(partial / total)
            if out[-1] * 2**64 > 2**64 - 1:
                return out
    raise AssertionError("these terms reach beyond 64 bits")


@LAWS
def test_the_tables_are_the_distribution_of_k(law: Density) -> None:
    exact = cumulative(law)
    with mpmath.workdps(60):
        floors = [int(mpmath.floor(p * 2**64)) for p in exact]
        assert law.words.tolist() == floors
        # a prefix of U decides k if and only if no P(K <= k) is in its cell
        prefixes = [int(p * 2**16) for p in exact]
        resolved = np.setdiff1d(np.arange(FULL + 1), prefixes)
        assert law.guide[resolved].tolist() == [bisect.bisect_left(prefixes, int(prefix)) for prefix in resolved]
        opened = np.unique(prefixes)
        assert (law.squeeze[law.guide[opened]] == 0).all()
        # a prefix of V decides acceptance only if the least p of the step exceeds its cell
        least = [mpmath.exp(-law.exponent(mpmath.mpf(k), mpmath.mpf(1))) * 2**16 for k in range(len(exact))]
        assert all(p - 2 < int(s) < p for p, s in zip(least, law.squeeze[:-1], strict=True))


@LAWS
@pytest.mark.parametrize("guard", [GUARD, 2.0])
def test_every_decision_is_that_of_the_exact_path(monkeypatch: pytest.MonkeyPatch, law: Density, guard: float) -> None:
    # a guard of 2 decides everything beyond the 16 bits in interval arithmetic
    monkeypatch.setattr(reals, "GUARD", guard)
    count = 2500
    source = Scripted(5)
    batch = reals._candidates(law, count, source, count)
    (words, short), rest = (source.drawn[0][:count], source.drawn[0][count:].view(np.uint16)), source.drawn[1]
    open_ = [i for i in range(count) if short[count + i] >= law.squeeze[law.guide[short[i]]]]
    assert rest.size == 2 * len(open_)
    again, expected = Scripted(6), []
    for i in range(count):
        # the exact path draws further bits, which must not change the decision
        prefixes = [Bits(int(short[i + shift]), 16, again) for shift in (0, count)]
        if i in open_:
            at = open_.index(i)
            for bits, word in zip(prefixes, (rest[at], rest[len(open_) + at]), strict=True):
                bits.numerator, bits.bits = (bits.numerator << 64) | int(word), 80
        x = Bits(int(words[i]) >> 6, 58, again)
        k = reals._decided(law, prefixes[0], prefixes[1], x)
        if k is not None:
            expected.append((bool(words[i] & np.uint64(1)), k >> 6, ((k & 63) << 58) | (int(words[i]) >> 6)))
    drawn = zip(batch.negative.tolist(), batch.integral.tolist(), batch.fraction[0].tolist(), strict=True)
    assert list(drawn) == expected
    assert again.extended == source.extended == 0
    assert 0.98 * count < len(expected) < count
    assert len(open_) > 20  # both paths had work


@LAWS
def test_the_float_errors_stay_far_inside_the_guard(law: Density) -> None:
    # the proof allows 2^-45 for everything; the exponential is the only library function in it
    rng = np.random.default_rng(1)
    k = rng.integers(0, law.words.size, 10_000)
    x = rng.integers(0, 2**58, 10_000)
    p = np.exp(-law.exponent(k.astype(np.float64), x.astype(np.float64) * 2.0**-58))
    with mpmath.workdps(40):
        exact = [
            mpmath.exp(-law.exponent(mpmath.mpf(int(a)), mpmath.mpf(int(b)) / 2**58)) for a, b in zip(k, x, strict=True)
        ]
        error = max(abs(mpmath.mpf(float(a)) - b) for a, b in zip(p, exact, strict=True))
    assert error < GUARD / 2**8


@LAWS
@pytest.mark.parametrize("k", [0, 300])
def test_a_word_on_a_threshold_of_k_is_extended(law: Density, k: int) -> None:
    threshold = int(law.words[k])
    with mpmath.workdps(60):
        share = cumulative(law)[k] * 2**64 - threshold
    # with 16 more bits of U, k is decided on one side of the threshold
    for bits, expected in ((int(share * 2**16) - 1, k), (int(share * 2**16) + 1, k + 1)):
        source = Scripted(0)
        assert step_of(candidate(law, source, 0, (threshold << 16) | (bits % 2**16), 0)) == expected
    # on the threshold's own 80 bits, only 64 more do
    outcomes = set()
    for seed in range(60):
        source = Scripted(seed)
        outcomes.add(step_of(candidate(law, source, 0, (threshold << 16) | int(share * 2**16), 0)))
        assert source.extended >= 1
    assert outcomes == {k, k + 1}
    # one unit away nothing is extended
    for shift, expected in ((-1, k), (1, k + 1)):
        source = Scripted(0)
        assert step_of(candidate(law, source, 0, (threshold + shift) << 16, 0)) == expected
        assert source.extended == 0
    # and a k beyond the table is found by further bits
    steps = {step_of(candidate(law, Scripted(seed), 0, 2**80 - 1, 0)) for seed in range(8)}
    assert min(steps) >= law.words.size - 1
    assert len(steps) > 1


@LAWS
def test_an_acceptance_that_known_bits_do_not_decide_is_extended_and_its_bits_are_kept(law: Density) -> None:
    k = 100
    with mpmath.workdps(60):
        x = 2**57 + 12345
        ends = [mpmath.exp(-law.exponent(mpmath.mpf(k), mpmath.mpf(x + end) / 2**58)) * 2**80 for end in (0, 1)]
        v = int((ends[0] + ends[1]) / 2)  # p crosses V somewhere in the cell of x, 2^-58 wide
    u = (int(law.words[k - 1]) + 1) << 16
    accepted = 0
    for seed in range(60):
        source = Scripted(seed)
        draw = candidate(law, source, x, u, v)
        assert source.extended >= 2
        if draw.integral.size:
            accepted += 1
            assert draw.extended[0].bits == 64 + 64
            assert draw.extended[0].numerator == (int(draw.fraction[0, 0]) << 64) | int(source.singles[0])
    # x's next bit decides: all or none of 60 has probability 2^-59
    assert 0 < accepted < 60
    # a clear distance on either side needs no further bit
    for shift, size in ((-(2**42), 1), (2**42, 0)):
        source = Scripted(0)
        assert candidate(law, source, x, u, v + shift).integral.size == size
        assert source.extended == 0


def test_bits_looked_at_stay_with_their_draw_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    # every open candidate is extended: its index among the accepted, and its words, must match
    decided = reals._decided

    def extending(law: Density, u: Bits, v: Bits, x: Bits) -> int | None:
        x.extend()
        return decided(law, u, v, x)

    monkeypatch.setattr(reals, "GUARD", 2.0)
    monkeypatch.setattr(reals, "_decided", extending)
    source = Scripted(11)
    z = exact_normals(20_000, source)
    singles = {int(word) for word in source.singles}
    assert len(z.extended) > 100
    for position, bits in z.extended.items():
        assert bits.bits == 128
        assert bits.numerator >> 64 == int(z.fraction[0, position])
        assert bits.numerator & (2**64 - 1) == int(z.fraction[1, position])
        assert int(z.fraction[1, position]) in singles
    others = np.setdiff1d(np.arange(20_000), list(z.extended))
    assert not singles & set(z.fraction[1, others].tolist())


def test_a_truncated_draw_is_made_of_all_its_words_and_further_bits_are_drawn_once() -> None:
    source = Scripted(3)
    z = exact_normals(50, source)
    words = zip(z.negative.tolist(), z.integral.tolist(), *z.fraction.tolist(), strict=True)
    signed = [
        (-1 if negative else 1, (integral << 128) | (high << 64) | low) for negative, integral, high, low in words
    ]
    for bits in (20, 100, 128):
        assert z.truncated(0, 50, bits) == [sign * (magnitude >> (128 - bits)) for sign, magnitude in signed]
    first = z.truncated(0, 50, 320)
    assert [abs(v) >> 192 for v in first] == [magnitude for _, magnitude in signed]
    assert z.truncated(0, 50, 320) == first
    assert source.extended == 150


@LAWS
def test_the_draws_have_their_distribution_and_a_twin_fails(law: Density) -> None:
    batches = [batch for _, batch in draws(law, 400_000, SYSTEM)]
    magnitude = np.concatenate([batch.integral + batch.fraction[0] * 2.0**-64 for batch in batches])
    sample = np.where(np.concatenate([batch.negative for batch in batches]), -magnitude, magnitude)
    name = "norm" if law is NORMAL else "laplace"
    assert stats.kstest(sample, name).pvalue > FALSE_ALARM
    size = np.abs(sample)
    total, of_total = (size @ size, stats.chi2) if law is NORMAL else (size.sum(), stats.gamma)
    assert total_passes(float(total), of_total(size.size))
    # the twin: 3 % too much noise
    assert not total_passes((1.03**2 if law is NORMAL else 1.03) * float(total), of_total(size.size))
    assert stats.chisquare(np.bincount(sample > 0)).pvalue > FALSE_ALARM
    low = np.concatenate([batch.fraction[0] for batch in batches]) & np.uint64(255)
    assert stats.chisquare(np.bincount(low.astype(np.intp), minlength=256)).pvalue > FALSE_ALARM


@LAWS
def test_within_a_step_the_density_falls_as_it_must(law: Density) -> None:
    # were all candidates accepted, the place within a 64th would be uniform, of mean 1/2
    # a normal density is flatter: 5.1 standard errors beyond the limit, of 5, for both
    size, total = 8_000_000 if law is NORMAL else 5_000_000, 0.0
    for _, batch in draws(law, size, SYSTEM):
        total += float((batch.fraction[0] << np.uint64(6)).astype(np.float64).sum()) * 2.0**-64
    edges = np.arange(64 * 40 + 1) / 64
    if law is NORMAL:
        mean = np.sqrt(2 / np.pi) - np.sum(edges[:-1] * -2 * np.diff(stats.norm.sf(edges)))
    else:
        mean = 1 - np.sum(edges[:-1] * -np.diff(np.exp(-edges)))
    error = np.sqrt(1 / 12 / size)
    assert abs(total / size - 64 * mean) < 5 * error < abs(total / size - 0.5)


def test_every_place_of_a_batch_of_normals_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of memory that was zero, each has 128 fractional bits then: no word is 0 but in one of 2^64 draws."""
    monkeypatch.setattr("dpdist.core.noise.reals.np.empty", np.zeros)
    for size in (1, 2, 7):
        assert exact_normals(size, SYSTEM).fraction.all()
