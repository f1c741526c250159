"""Unbiased rounding: exact moments, norms of arbitrary rows, and equal dithers for all chunk sizes."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import float_rows
from support.dithering import KEY

from dpdist.core.rows import dither
from dpdist.core.rows.dither import FRACTION, Dithering, DitherKey, Drawn, chacha


def test_the_words_are_those_of_rfc_8439() -> None:
    state = np.array(
        [
            0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, 0x03020100, 0x07060504, 0x0B0A0908, 0x0F0E0D0C,
            0x13121110, 0x17161514, 0x1B1A1918, 0x1F1E1D1C, 0x00000001, 0x09000000, 0x4A000000, 0x00000000,
        ],
        dtype=np.uint32,
    )  # fmt: skip
    found = chacha(np.column_stack([state, state]), rounds=20)
    assert found[:, 0].tobytes() == found[:, 1].tobytes()
    assert [f"{word:08x}" for word in found[:4, 0]] == ["e4e7f110", "15593bd1", "1fdd0f50", "c47120a3"]
    assert f"{found[15, 0]:08x}" == "4e3c50a2"


@pytest.mark.parametrize("fraction", [1, 3, FRACTION])
def test_every_entry_keeps_its_mean_and_gains_a_quarter_whatever_it_is(
    monkeypatch: pytest.MonkeyPatch, fraction: int
) -> None:
    monkeypatch.setattr(dither, "FRACTION", fraction)
    rule, modulus = Dithering(2, 8), 1 << fraction
    first, second = np.meshgrid(np.arange(modulus), np.arange(modulus))  # every pair of dithers once
    entries = (first | second << fraction).astype(np.uint32).reshape(1, -1)
    for y in range(1 - 2 * modulus, 2 * modulus, 2):  # two steps: larger y shift z equally
        z = rule.dithered(np.full(entries.shape, y / 2), entries).astype(int).ravel()
        x = Fraction(y, 2 * modulus)
        assert Fraction(int(z.sum()), z.size) == x
        assert Fraction(int((z * z).sum()), z.size) == x * x + Fraction(1, 4) - Fraction(1, 4 * modulus**2)
        assert np.abs(z - float(x)).max() < 1.5


def test_what_rows_share_leaves_no_bias_on_the_finer_grid() -> None:
    """All 2^20 values of v3: the mean is within 2^-21 of any number, including numbers of the finer grid."""
    rule, thirds = Dithering(2, 12), (np.arange(2**20, dtype=np.float64) + 0.5) * 2.0**-20
    for x in (-7.5, -1234.56789):
        t = np.full((thirds.size, 2), x / 2.0 ** (12 + FRACTION))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Dithering, "dithered", lambda _rule, y, _entries: y)
            patch.setattr(Dithering, "_verified", lambda _rule, y: y)
            y = rule.rounded(t, Drawn(np.zeros(t.shape, np.uint32), thirds))[:, 0]
        assert abs(y.mean() - x) <= 2.0**-21
        assert np.abs(y - x).max() < 1
        assert x != -7.5 or (y == x).all()
        assert ((y - x) ** 2).mean() <= 0.25 + 2.0**-20


@given(float_rows(4, 5), st.integers(4, 20), st.integers(0, 2**50))
def test_any_row_of_floats_stays_inside_the_bound(rows: npt.NDArray[np.float64], bits: int, number: int) -> None:
    rule = Dithering(5, bits)
    z = rule.rounded(rows, KEY.drawn(number, 4, 5))
    assert np.array_equal(z, np.trunc(z))
    assert max(sum(int(entry) ** 2 for entry in row) for row in z) <= 4**bits
    assert not z[~np.isfinite(rows).all(axis=1)].any()


@given(st.integers(0, 2**40), st.integers(1, 30), st.integers(1, 70), st.integers(0, 29))
def test_the_dithers_of_a_row_follow_from_its_number_alone(first: int, rows: int, columns: int, cut: int) -> None:
    cut = min(cut, rows)
    whole = KEY.drawn(first, rows, columns)
    parts = [KEY.drawn(first, cut, columns), KEY.drawn(first + cut, rows - cut, columns)]
    for i in range(2):
        assert np.array_equal(np.concatenate([parts[0][i], parts[1][i]]), whole[i])


def test_no_two_entries_share_their_bits() -> None:
    """Each half of a word belongs to one entry or v3: 32 rows of 6 columns have 8 different blocks."""
    drawn, words = KEY.drawn(0, 32, 6), KEY.words(0, 1, 16)
    assert np.array_equal(drawn.entries[::2] | drawn.entries[1::2] << np.uint32(16), words[:, :6])
    upper = (drawn.thirds * 2**20 - 0.5).astype(np.uint32).reshape(16, 2)
    assert np.array_equal(upper, words[:, 6:8] >> np.uint32(12))
    assert np.unique(words).size == words.size
    for other in (1, 2**27, 2**27 + 1):  # 2^27 bunches of 32 blocks exhaust 32 bits
        assert not np.intersect1d(words, KEY.words(other, 1, 16)).size
    odd = KEY.drawn(3, 5000, 2).thirds * 2.0**21  # odd multiples between 0 and 1
    assert (odd % 2 == 1).all()
    assert 0 < odd.min() < 0.01 * 2**21
    assert 0.99 * 2**21 < odd.max() < 2**21


def test_rows_far_beyond_end_on_the_inner_sphere_in_their_own_direction() -> None:
    rule, count = Dithering(3, 12), 4000
    inner = rule.radius
    assert inner == pytest.approx(4096 - 2 - 3 / (8 * 4096), abs=1e-4)
    for length in (1e-3, 2.0, 1e9, 1e300):
        direction = np.array([2.0, -1.0, 2.0]) / 3
        z = rule.rounded(np.tile(direction * length, (count, 1)), KEY.drawn(0, count, 3))
        expected = direction * min(length * 4096, inner)
        # each mean has deviation 1/2 / sqrt(4000) = .008: fails by chance with probability below 1e-9
        assert np.abs(z.mean(axis=0) - expected).max() < 0.05


def test_equal_rows_do_not_get_equal_dithers() -> None:
    rule, count = Dithering(4, 12), 20000
    error = rule.rounded(np.full((count, 4), 0.1), KEY.drawn(0, count, 4)) - 0.1 * 4096
    # deviations of the mean of products and of squares: below 1/4 / sqrt(20000) = .0018
    assert np.abs(error.T @ error / count - np.eye(4) / 4).max() < 0.012


def test_keys_are_told_apart_and_tell_nothing() -> None:
    assert repr(KEY) == "DitherKey()"
    fingerprints = {key.fingerprint for key in (KEY, DitherKey(bytes(32)), KEY.of_period("d1"), KEY.of_period("d2"))}
    assert len(fingerprints) == 4
    assert KEY.key.hex()[:8] not in KEY.fingerprint
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(KEY)
    with pytest.raises(ValueError, match="32"):
        DitherKey(b"short")
