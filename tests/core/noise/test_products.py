"""Exactly rounded Wishart matrices: every bit against slow integers, the rare branches, the distribution."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.scripted import Scripted
from support.tallies import FALSE_ALARM, total_passes
from threadpoolctl import threadpool_info

from dpdist.core.noise import products, reals
from dpdist.core.noise.entropy import SYSTEM, Words
from dpdist.core.noise.floats import normals
from dpdist.core.noise.products import rounded_wishart
from dpdist.core.noise.reals import Reals, exact_normals
from dpdist.core.triangle import Triangle, packed, unpacked

LONG = 256
"""Bits after which the reference is certain: the remainder is below 2^-180."""


def reference(z: Reals, size: int, columns: int, scale: int) -> Triangle:
    """``rnd(scale Z Z^T)`` of the same normals from 256 fractional bits, in Python integers."""
    rows = [z.truncated(i * columns, (i + 1) * columns, LONG) for i in range(size)]
    out = np.empty((size, size), dtype=np.int64)
    for i in range(size):
        for j in range(i, size):
            exact = Fraction(scale * sum(a * b for a, b in zip(rows[i], rows[j], strict=True)), 4**LONG)
            out[i, j] = (exact + Fraction(1, 2)).__floor__()
    return packed(out)


@pytest.mark.parametrize(
    ("size", "columns", "scale"),
    [(1, 1, 2**57), (1, 2, 1), (2, 3000, 2**45), (5, 1, 12345), (7, 9, 2**32 + 12345), (40, 41, 2**51 - 1),
     (40, 65, 2**37)],  # with two limbs the approximation rounds some entries of the last wrongly
)  # fmt: skip
def test_every_entry_is_that_of_a_slow_exact_reference(size: int, columns: int, scale: int) -> None:
    expected = reference(exact_normals(size * columns, Scripted(size + columns)), size, columns, scale)
    for limbs in (None, 1, 2, 3):
        drawn = rounded_wishart(size, columns, scale, Scripted(size + columns), limbs=limbs)
        assert np.array_equal(drawn, expected)


def test_tiles_strips_and_threads_change_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    size, columns, scale, drawn = 40, 41, 2**45, []

    def kept(*arguments: Any) -> Reals:
        drawn.append(exact_normals(*arguments))
        return drawn[-1]

    monkeypatch.setattr(products, "exact_normals", kept)
    for module, name, value in ((products, "_SIDE", 7), (products, "_IN_CACHE", 100), (reals, "BLOCK", 300)):
        monkeypatch.setattr(module, name, value)
    for threads in (1, 3):
        out, z = rounded_wishart(size, columns, scale, SYSTEM, limbs=2, threads=threads), drawn[-1]
        assert np.array_equal(out, reference(z, size, columns, scale))
        # every normal has separate words in every thread: two equal ones have a probability below 1e-12
        assert all(np.unique(words).size == size * columns for words in z.fraction)
        assert stats.kstest((z.integral + z.fraction[0] * 2.0**-64), "halfnorm").pvalue > FALSE_ALARM


def test_bits_that_128_do_not_decide_are_drawn_and_stay() -> None:
    extended = 0
    size, columns, scale = 4, 100, 2**50
    for seed in range(60):
        entropy = Scripted(seed)
        long = exact_normals(size * columns, entropy)
        short = Reals(long.negative, long.integral, long.fraction[:1], entropy)
        drawn = products._rounded_gram(short, size, columns, scale, 1)
        extended += len(entropy.singles)
        # the reference continues from the bits drawn so far
        assert np.array_equal(drawn, reference(short, size, columns, scale))
    # each of 600 entries is open at 64 bits with a probability of about 4 %
    assert extended > 0


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("columns", "integral"), [(2, 0), (785, 1), (2001, 12)])
def test_no_digits_exceed_the_error_bound_and_the_worst_approach_it(
    columns: int, integral: int, *, largest: bool
) -> None:
    cut = products._Splitting(columns, 1.01 * (integral + 0.01) * columns**0.5)
    # the first place of every digit: all of them are as large as can be; all places: one carry goes through them all
    fraction = sum(1 << (127 - position) for position in range(cut.first, 128, cut.width if largest else 1))
    words = np.array([[fraction >> 64], [fraction & (2**64 - 1)]], dtype=np.uint64)
    negative = np.repeat([False, True], columns)  # two rows of equal entries, one positive, one negative
    z = Reals(negative, np.full(2 * columns, integral), np.repeat(words, 2 * columns, axis=1), Scripted(0))
    exact = Fraction(sum(v * v for v in z.truncated(0, columns, LONG)), 4**LONG)
    for limbs in (1, 2, 3, 4):
        parts = [part.reshape(2, columns) for part in products._limbs(z, slice(None), cut, limbs)]
        error = [
            abs(Fraction(int(h)) + Fraction(int(w), 2**64) - sign * exact)
            for right in (parts, [part.copy() for part in parts])  # a tile on the diagonal, and one next to it
            for h, w, sign in zip(*map(np.ravel, products._products(parts, right, cut)), (1, -1, -1, 1), strict=True)
        ]
        assert max(error) <= cut.error(limbs)
        assert not (integral and largest) or max(error) > cut.error(limbs) / 5


def test_an_error_of_one_thread_ends_the_draw_and_gives_blas_its_threads_back() -> None:
    class Broken:
        def words(self, count: int) -> Words:
            raise OSError(f"no {count} words")

    before = threadpool_info()
    with pytest.raises(OSError, match=r"no .* words"):
        rounded_wishart(40, 41, 1, Broken(), threads=3)
    assert threadpool_info() == before


def test_trace_and_schur_complement_have_their_distributions_and_a_twin_fails() -> None:
    size, columns, scale, count = 6, 9, 2**40, 1500
    # as rounded_wishart does in one thread, which asks BLAS for its threads each time
    drawn = (products._rounded_gram(exact_normals(54, SYSTEM), size, columns, scale, None) for _ in range(count))
    sample = np.stack([unpacked(triangle, size) for triangle in drawn]) / scale
    trace = np.trace(sample, axis1=1, axis2=2)
    schur = 1 / np.linalg.inv(sample)[:, 0, 0]
    off = sample[:, 0, 1:3].ravel() * np.sqrt(1 / columns)
    for statistic, freedom in ((trace, size * columns), (schur, columns - size + 1)):
        assert stats.kstest(statistic, stats.chi2(freedom).cdf).pvalue > FALSE_ALARM
        assert total_passes(statistic.sum(), stats.chi2(freedom * count))
        # the twins: 20 % too much noise, and the neighbouring degrees of freedom
        assert not total_passes(1.2 * statistic.sum(), stats.chi2(freedom * count))
        assert statistic is trace or stats.kstest(statistic, stats.chi2(freedom + 1).cdf).pvalue < FALSE_ALARM
    # off the diagonal the mean square is 1; its fourth moment is 3 + 6 / columns, so z is normal well within 6
    z = (np.mean(off**2) - 1) / (np.std(off**2) / off.size**0.5)
    assert abs(z) < 6 < abs((1.5 * np.mean(off**2) - 1) / (1.5 * np.std(off**2) / off.size**0.5))


def test_the_low_bits_are_uniform_where_those_of_float64_are_not() -> None:
    size, columns, scale = 100, 101, 2**50
    low = np.bincount((rounded_wishart(size, columns, scale, SYSTEM) & 255).astype(np.intp), minlength=256)
    assert stats.chisquare(low).pvalue > FALSE_ALARM
    z = normals(size * columns, SYSTEM).reshape(size, columns)
    twin = packed(np.rint(scale * (z @ z.T)))
    assert stats.chisquare(np.bincount((twin & 255).astype(np.intp), minlength=256)).pvalue < FALSE_ALARM


@pytest.mark.parametrize(
    ("size", "columns", "scale", "message"),
    [(0, 1, 1, "columns"), (1, 0, 1, "columns"), (1, 2**20 + 1, 1, "columns"), (2, 3, 0, "scale"), (2, 3, -1, "scale"),
     (2, 3, 2**57 // 3 + 1, "scale")],
)  # fmt: skip
def test_shapes_and_scales_outside_the_proof_are_refused(size: int, columns: int, scale: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rounded_wishart(size, columns, scale, SYSTEM)
