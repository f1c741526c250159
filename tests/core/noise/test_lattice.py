"""Rounding to the lattice, its rare branches, and the distributions on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from strategies import WORDS
from support.scripted import Scripted
from support.tallies import FALSE_ALARM

import dpdist
from dpdist.core.noise import lattice
from dpdist.core.noise.entropy import SYSTEM, Entropy
from dpdist.core.noise.lattice import HALF, MAX_SCALE, discrete_laplace, rounded_normal
from dpdist.core.noise.reals import Bits, Reals
from dpdist.core.text import random_token

Draw = Callable[[int, int, Entropy], npt.NDArray[np.int64]]


def known(x: int, source: Scripted, *, negative: bool) -> Reals:
    """One draw of integral part 2 and of these 64 fractional bits."""
    return Reals(np.array([negative]), np.array([2]), np.array([[x]], dtype=np.uint64), source)


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("plus", [0, HALF])
def test_a_rounding_that_unknown_bits_decide_is_extended(plus: int, *, negative: bool) -> None:
    scale = 2**45 + 987_654_321
    # with 64 bits of x, scale x + plus is just below n + 1, which is near the middle of its cell
    for n in range(12345, 13345):
        x, rest = divmod(2**64 * (n + 1) - plus, scale)
        if 0.4 < rest / scale < 0.6:
            break
    boundary = n + 1 - Fraction(plus, 2**64)
    assert Fraction(scale * x, 2**64) < boundary < Fraction(scale * (x + 1), 2**64)
    branches = set()
    for seed in range(40):
        source = Scripted(seed)
        draw = int(lattice._on_lattice(known(x, source, negative=negative), scale, plus)[0])
        assert source.extended >= 1
        assert (draw < 0) == negative
        branches.add(abs(draw) - 2 * scale)
    assert branches == {n, n + 1}
    # the cells on either side need no further bit
    for shift, floor in ((-1, n), (1, n + 1)):
        source = Scripted(0)
        draw = int(lattice._on_lattice(known(x + shift, source, negative=False), scale, plus)[0])
        assert (draw, source.extended) == (2 * scale + floor, 0)


def test_an_interval_that_only_just_reaches_the_next_integer_is_extended() -> None:
    # 3 (x + 1) = 2 * 2^64 + 1: of the numbers that begin with these 64 bits the last third round up
    sources = [Scripted(seed) for seed in range(20)]
    drawn = [lattice._on_lattice(known((2**65 + 1) // 3 - 1, source, negative=False), 3, 0)[0] for source in sources]
    assert set(drawn) == {7, 8}
    assert all(source.extended == 1 for source in sources)


@given(st.integers(1, 2**50), WORDS, st.sampled_from([0, HALF]), st.booleans())
def test_values_are_those_of_slow_integers(scale: int, x: int, plus: int, negative: bool) -> None:
    source = Scripted(x % 1000)
    draw = int(lattice._on_lattice(known(x, source, negative=negative), scale, plus)[0])
    fraction = x << 64 * source.extended
    for word in source.singles:
        fraction = (x << 64) | word
    bits = 64 * (1 + source.extended)
    floor = ((2 * scale << bits) + scale * fraction + (plus << bits - 64)) >> bits
    assert draw == (-floor if negative else floor)


def test_draws_use_the_bits_that_are_already_known() -> None:
    source, x = Scripted(0), 2**64 - 1
    draw = known(x, source, negative=False)
    draw.extended[0] = Bits((x << 64) | x, 128, source)
    assert lattice._on_lattice(draw, 2**40, 0).tolist() == [3 * 2**40 - 1]
    assert lattice._on_lattice(draw, 1, HALF).tolist() == [3]
    assert source.extended == 0


LAWS = pytest.mark.parametrize(
    ("draw", "law"),
    [
        (rounded_normal, lambda scale: stats.norm(scale=scale)),
        (discrete_laplace, lambda scale: stats.dlaplace(1 / scale)),
    ],
    ids=["normal", "laplace"],
)


def fits(drawn: npt.NDArray[np.int64], law: Any) -> bool:
    """Chi-squared test of draws against the exact distribution of a rounded or discrete law."""
    ends = np.arange(int(law.ppf(1e-4)), int(law.ppf(1 - 1e-4)) + 1)
    probability = np.diff([0, *law.cdf(ends + 0.5), 1])
    observed = np.bincount(np.searchsorted(ends, drawn), minlength=probability.size)
    return bool(stats.chisquare(observed, probability * drawn.size).pvalue > FALSE_ALARM)


@LAWS
@pytest.mark.parametrize("scale", [1, 2, 10])
def test_small_scales_have_their_exact_distribution(draw: Draw, law: Callable[[float], Any], scale: int) -> None:
    drawn = draw(scale, 400_000, SYSTEM)
    assert fits(drawn, law(scale))
    # the twin: 3 % less noise is detected, with probability 1 - 1e-9
    assert not fits(drawn, law(scale / 0.97))


@pytest.mark.parametrize(("draw", "name"), [(rounded_normal, "norm"), (discrete_laplace, "laplace")])
def test_large_scales_have_the_distribution_of_reals_and_uniform_low_bits(draw: Draw, name: str) -> None:
    scale = 2**40 + 12345
    drawn = draw(scale, 400_000, SYSTEM)
    assert stats.kstest(drawn / scale, name).pvalue > FALSE_ALARM
    assert stats.kstest(drawn / scale * 1.05, name).pvalue < FALSE_ALARM
    assert stats.chisquare(np.bincount((drawn & 255).astype(np.intp), minlength=256)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("draw", [rounded_normal, discrete_laplace])
def test_a_single_draw_is_a_draw(draw: Draw) -> None:
    drawn = [int(draw(2**40, 1, SYSTEM)[0]) for _ in range(64)]
    assert len(set(drawn)) == 64  # two are equal with probability below 1e-9
    assert max(map(abs, drawn)) < 2**46  # 64 scales


def test_scales_outside_the_proof_are_refused() -> None:
    for scale in (0, -1, MAX_SCALE + 1):
        with pytest.raises(ValueError, match="sigma"):
            rounded_normal(scale, 1, SYSTEM)
        with pytest.raises(ValueError, match="scale"):
            discrete_laplace(scale, 1, SYSTEM)


def test_no_other_module_draws_a_random_bit() -> None:
    root = Path(dpdist.__file__).parent
    generators = r"urandom|getrandom|\bsecrets\b|^import random$|np\.random|numpy\.random|default_rng"
    pattern = rf"(?m){generators}|^ *(import|from) uuid|\buuid[1-8]\("
    examples = re.compile(r"(?m)^ *(>>>|\.\.\.) .*$")  # of docstrings
    users = {
        str(p.relative_to(root)) for p in root.rglob("*.py") if re.search(pattern, examples.sub("", p.read_text()))
    }
    names, synthetic = (
        {"core/text.py"},
        {"answers/synthetic.py", "answers/tree.py", "cli/synthesise.py", "cli/demo.py"},
    )  # of public values
    assert users == {"core/noise/entropy.py"} | names | synthetic


def test_tokens_are_fresh() -> None:
    assert len({random_token() for _ in range(1000)}) == 1000
    assert not np.array_equal(SYSTEM.words(8), SYSTEM.words(8))
