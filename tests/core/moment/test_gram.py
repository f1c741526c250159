"""Gram matrices of bounded rows: the same integers from every processor and block, up to the last row that is exact."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dithering import KEY
from support.guarded import guarded

from dpdist.core.moment import gram
from dpdist.core.moment.gram import Instructions, available, fastest, gram_sum, integer_rows
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dither import Dithers
from dpdist.core.triangle import Band, packed

INTEGERS = [
    pytest.param(each, marks=pytest.mark.skipif(each not in available(), reason="another processor, or no numba"))
    for each in (Instructions.VNNI, Instructions.AVX2)
]


WHOLE = [10**6]


def summed(
    rows: npt.NDArray[np.float64],
    band: Band,
    norm_bound: int,
    instructions: Instructions | None,
    cuts: list[int] = WHOLE,
) -> npt.NDArray[np.int64]:
    """Add rows in blocks of these lengths, over and over."""
    sums, start = gram_sum(band, norm_bound, instructions), 0
    for length in itertools.cycle(cuts):
        sums.add(rows[start : start + length])
        start += length
        if start >= len(rows):
            return sums.total()
    raise AssertionError


def exact(rows: npt.NDArray[np.float64], band: Band) -> npt.NDArray[np.int64]:
    z = rows.astype(np.int64)
    return packed(z[:, band.start : band.stop].T @ z[:, band.start :])


CUTS = st.lists(st.integers(1, 100), min_size=1, max_size=4)
SEEDS = st.integers(0, 10**6)


@settings(max_examples=50)
@given(
    rows=st.integers(1, 150), columns=st.integers(1, 110), cuts=CUTS, bits=st.integers(4, 16), private=st.booleans(),
    part=st.tuples(st.floats(0, 1), st.floats(0, 1)), seed=SEEDS,
)  # fmt: skip
def test_every_way_to_multiply_gives_the_same_integers(
    rows: int, columns: int, cuts: list[int], bits: int, private: bool, part: tuple[float, float], seed: int
) -> None:
    bound = RowBound(columns, 40.0, bits, constant=2 ** (bits - 1) if private else 0)
    data = (np.random.default_rng(seed).normal(size=(rows, columns)) * 50).clip(0, 250)
    z = bound.apply(data, np.empty((rows, bound.width)), Dithers(KEY, 0))
    z *= np.random.default_rng(seed).choice([-1, 1], size=z.shape)
    start, stop = sorted(min(int(share * bound.width), bound.width - 1) for share in part)
    for band in (Band.whole(bound.width), Band(start, stop + 1, bound.width)):
        expected = exact(z, band).tobytes()
        for instructions in (None, *available()):
            if instructions in {None, Instructions.FLOAT64} or integer_rows(bound.norm_bound):
                assert summed(z, band, bound.norm_bound, instructions, cuts).tobytes() == expected


@pytest.mark.parametrize("instructions", INTEGERS)
def test_tiles_of_every_width_touch_nothing_beyond_their_panels(
    monkeypatch: pytest.MonkeyPatch, instructions: Instructions
) -> None:
    monkeypatch.setattr("dpdist.core.machine_code.aligned_zeros", guarded)
    for width in (*range(1, 130), 200, 784):
        for start, stop in {(0, max(1, width - 6))} | {(s, min(width, s + 40)) for s in (0, width // 2, width - 1)}:
            band = Band(start, stop, width)
            z = np.random.default_rng(width).integers(-9, 10, (3, width)).astype(float)
            sums = gram_sum(band, 81 * width, instructions)
            sums.add(z)
            for _ in range(2):  # asked again, it answers the same
                assert np.array_equal(sums.total(), exact(z, band))


@pytest.mark.skipif(Instructions.VNNI not in available(), reason="another processor, or no numba")
@settings(max_examples=40)
@given(
    rows=st.integers(1, 90), columns=st.integers(241, 330), cuts=CUTS, start=st.integers(0, 40),
    height=st.integers(1, 400), longer=st.sampled_from([0.0, 0.1, 0.5, 1.0]), least=st.sampled_from([-128, 0, 127]),
    most=st.sampled_from([127, 128, 255]), seed=SEEDS,
)  # fmt: skip
def test_rows_that_8_bits_hold_among_others_have_the_same_sum(
    rows: int, columns: int, cuts: list[int], start: int, height: int, longer: float, least: int, most: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    z = rng.integers(least, most + 1, (rows, columns)).astype(float)
    beyond = np.flatnonzero(rng.random(rows) < longer)
    z[beyond, rng.integers(0, columns, beyond.size)] = rng.choice([-2000, -129, 128, 2000], beyond.size)
    band = Band(start, min(columns, start + height), columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpdist.core.machine_code.aligned_zeros", guarded)
        norm_bound = int((z * z).sum(axis=1).max()) or 1
        assert np.array_equal(summed(z, band, norm_bound, Instructions.VNNI, cuts), exact(z, band))


@pytest.mark.skipif(Instructions.VNNI not in available(), reason="another processor, or no numba")
@pytest.mark.parametrize("value", [-128, 127])
def test_8_bits_are_exact_up_to_the_last_row_and_would_not_be_for_one_more(value: int) -> None:
    kernel = pytest.importorskip("dpdist.core.moment.kernel")
    panels, word, last = 17, value & 0xFFFF, gram.SMALL_ROWS
    assert (last, last * 2**14) == (131071, 2**31 - 2**14)

    def total(rows: int, most: int) -> int:
        pairs = -(-rows // 2)
        factors = np.zeros((panels, pairs, kernel.PANEL), dtype=np.uint32)
        factors[0, :, 3] = word << 16 | word
        factors[0, rows // 2 :, 3] = word  # of an odd number of rows
        sums, room = np.zeros((8, 16 * panels), np.int64), np.zeros(kernel.room_for(panels, pairs), np.int32)
        kernel.multiply_with("avx512vnni")(factors.view(np.int32), pairs, 100, most, 16 * panels, sums, room)
        return int(sums[3, 3])

    assert total(last - 1, last) == (last - 1) * value**2
    assert total(last + 1, last) == (last + 1) * value**2
    if value == -128:
        assert total(last + 1, last + 1) == -(2**31)  # the twin that adds one row too many at once


@pytest.mark.parametrize("instructions", INTEGERS)
@settings(max_examples=25)
@given(
    rows=st.integers(1, 700), columns=st.integers(1, 60), bits=st.sampled_from([12, 13, 14]), largest=st.floats(0, 1),
    heavy=st.sampled_from([0.0, 0.01, 0.5, 1.0]), begin=st.floats(0, 1), one=st.floats(0, 1), seed=SEEDS,
)  # fmt: skip
def test_no_more_rows_are_added_at_once_than_their_own_columns_allow(
    instructions: Instructions, rows: int, columns: int, bits: int, largest: float, heavy: float, begin: float,
    one: float, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    z = rng.integers(-1, 2, (rows, columns)) * np.trunc(2.0**bits * largest / np.sqrt(columns))
    full = np.flatnonzero((rng.random(rows) < heavy) & (np.arange(rows) >= begin * rows))
    z[full] = 0  # one column has all their norm
    z[full, int(one * (columns - 1))] = rng.choice([-(2.0**bits), 2.0**bits], full.size)
    assert np.array_equal(summed(z, Band.whole(columns), 4**bits, instructions), exact(z, Band.whole(columns)))


@pytest.mark.parametrize("instructions", INTEGERS)
def test_of_two_panels_the_one_with_the_longer_column_decides(instructions: Instructions) -> None:
    # 64 rows fit by the squares of the shorter column; their products with the longer one sum to twice 2^31
    for width in (54, 70, 130):
        for longer, shorter in itertools.product(range(3, width, 16), range(5, width, 16)):
            z, band = np.zeros((200, width)), Band.whole(width)
            z[:, longer], z[:, shorter] = 12_000, 5600
            assert np.array_equal(summed(z, band, 4**14, instructions), exact(z, band)), (longer, shorter)


@pytest.mark.parametrize("instructions", INTEGERS)
@pytest.mark.parametrize("column", [0, 37, 53])
def test_squares_of_a_column_are_exact_up_to_the_last_unit_and_would_not_be_for_one_more(
    instructions: Instructions, column: int
) -> None:
    # 2^31 - 1 as a sum of squares of 15 bits, in rows that are far apart, both of pairs and alone
    z = np.zeros((200, 54))
    z[[0, 3, 70, 71, 100, 150, 198, 199], column] = [*[2.0**14] * 4, -(2.0**14), 2.0**14, -(2.0**14), 2.0**14 - 1]
    missing = 2**31 - 1 - int((z * z).sum())
    for row in range(4, 60):
        root = math.isqrt(missing)
        z[row, column], missing = root, missing - root**2
    beyond = z.copy()
    beyond[190, column] = 1
    assert (z * z).sum() == 2**31 - 1

    def total(rows: npt.NDArray[np.float64], always: int) -> int:
        sums = gram._Integers(Band.whole(54), 2 * always, instructions, 1 << 18)
        sums.add(rows)
        return int(sums.total()[Band.whole(54).entries - (54 - column) * (55 - column) // 2])

    assert [total(z, 3), total(beyond, 3)] == [2**31 - 1, 2**31]
    assert total(beyond, 128) == -(2**31)  # the twin that trusts a bound which the rows do not keep


@pytest.mark.parametrize("instructions", INTEGERS)
def test_what_16_bits_do_not_hold_is_not_multiplied_as_such(instructions: Instructions) -> None:
    largest = (2**15 - 1) ** 2
    sums = gram_sum(Band.whole(2), largest, instructions)
    sums.add(np.array([[2.0**15 - 1, 0], [0, 1 - 2.0**15], [3, 4]]))
    assert sums.total().tolist() == [largest + 9, 12, largest + 16]
    with pytest.raises(ValueError, match="16-bit"):
        gram_sum(Band.whole(2), 2**30, instructions)
    sums = gram_sum(Band.whole(2), 2**30, instructions, 2**15 - 1)  # of which 32 bits always hold two
    sums.add(np.array([[2.0**15 - 1, 0], [0, 1 - 2.0**15]] * 5))
    assert sums.total().tolist() == [5 * largest, 0, 5 * largest]


def test_bits_decide_what_multiplies_and_no_row_does() -> None:
    assert [fastest(4**bits) for bits in (2, 12, 14)] == [available()[0]] * 3
    assert fastest(4**14 + 4**14) is available()[0]  # with the constant of private centring
    assert {fastest(4**bits) for bits in (15, 16, 24)} == {Instructions.FLOAT64}
    bounds = [RowBound(100, 1.0, bits, constant=2 ** (bits - 1)) for bits in (15, 16)]
    found = [fastest(bound.norm_bound, bound.largest) for bound in bounds]
    assert found == [available()[0], Instructions.FLOAT64]  # no entry is 2^15
    assert [RowBound(100, 1.0, 15, constant=c).largest for c in (0, 2**15)] == [2**15 - 1, 2**15]


def test_without_numba_or_such_a_processor_float64_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_code = pytest.importorskip("dpdist.core.machine_code")
    monkeypatch.setattr(machine_code, "features", lambda: {"sse2", "avx"})
    assert available.__wrapped__() == (Instructions.FLOAT64,)
    monkeypatch.setitem(sys.modules, "dpdist.core.machine_code", None)
    assert available.__wrapped__() == (Instructions.FLOAT64,)


@pytest.mark.parametrize("bits", [16, 20, 24])
def test_float64_sums_move_to_integers_before_they_lose_a_bit(bits: int) -> None:
    # rows just inside the bound, all alike: sums grow as fast as they can, by odd numbers float64 cannot hold
    bound = RowBound(2, 1.0, bits)
    block = np.zeros((min(bound.exact_rows, 4096) - 1, 2))
    block[:, 0] = 2**bits - 1
    sums = gram_sum(Band.whole(2), bound.norm_bound)
    times = 2 ** (53 - 2 * bits) // block.shape[0] + 5 | 1
    for _ in range(times):
        sums.add(block)
    expected = times * block.shape[0] * (2**bits - 1) ** 2
    assert expected > 2**53
    assert int(float(expected)) != expected
    assert sums.total().tolist() == [expected, 0, 0]
    with pytest.raises(ValueError, match="exactly"):  # a block of more rows than are exact
        sums.add(np.ones((2**53 // bound.norm_bound + 1, 2)))
