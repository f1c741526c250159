"""Noise drawn in pieces, by several threads: the law and the draws of one, and each entry once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.drawers import Again, Replayed
from support.registered import calibrated
from support.tallies import FALSE_ALARM

from dpdist.mechanisms.base import IndependentEntries
from dpdist.mechanisms.gaussian import CalibratedGaussian
from dpdist.noise.entropy import SYSTEM
from dpdist.release import transaction as drawing
from dpdist.triangle import Band

SIZE = 300


def gaussian() -> CalibratedGaussian:
    found = calibrated("gaussian", SIZE, 4**23)
    assert isinstance(found, CalibratedGaussian)
    return found


@given(size=st.integers(1, 60), rows=st.data(), piece=st.integers(1, 200))
def test_pieces_are_the_rows_of_the_band_in_order(size: int, rows: Any, piece: int) -> None:
    start = rows.draw(st.integers(0, size - 1))
    band = Band(start, rows.draw(st.integers(start + 1, size)), size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "BLOCK_ENTRIES", piece)
        found = list(drawing.blocks(band))
    assert [row for each in found for row in range(each.start, each.stop)] == list(range(band.start, band.stop))
    assert all(each.entries <= piece or each.height == 1 for each in found)
    assert {each.size for each in found} == {size}


@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_draws_are_the_same_noise_however_many_threads_draw_them(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "BLOCK_ENTRIES", 5000)
    monkeypatch.setattr(drawing, "available_cores", lambda: threads)
    band = Band(17, SIZE - 5, SIZE)
    exact_sums = np.random.default_rng(0).integers(-(2**61), 2**61, band.entries)
    before = exact_sums.copy()
    replayed = Replayed(gaussian(), 1000)
    expected = exact_sums + np.concatenate([replayed.draw_band(each, SYSTEM) for each in drawing.blocks(band)])
    assert np.array_equal(drawing.noisy(replayed, band, exact_sums, SYSTEM), expected)
    assert np.array_equal(exact_sums, before)


def _entries(fixed: IndependentEntries) -> npt.NDArray[np.float64]:
    """Return the entries off the diagonal of a moment that is zero, in units of their deviation."""
    band = Band.whole(SIZE)
    noise = drawing.noisy(fixed, band, np.zeros(band.entries, dtype=np.int64), SYSTEM)
    entries: npt.NDArray[np.float64] = np.delete(noise, band.diagonal) / gaussian().sigma_off_diagonal
    return entries


def _sound(entries: npt.NDArray[np.float64]) -> bool:
    """Test the law of the entries, and that none was drawn twice; right ones fail with a probability below 2e-6."""
    distinct = np.unique(entries).size == entries.size  # 45000 of them, of a scale beyond 2^47: equal ones below 1e-6
    return distinct and float(stats.kstest(entries, stats.norm.cdf).pvalue) > FALSE_ALARM


def test_the_noise_of_several_threads_has_its_law_and_its_twins_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "BLOCK_ENTRIES", 5000)
    monkeypatch.setattr(drawing, "available_cores", lambda: 3)
    assert gaussian().sigma_off_diagonal > 2**47
    entries = _entries(gaussian())
    assert _sound(entries)
    assert not _sound(0.9 * entries)
    assert not _sound(_entries(Again(gaussian(), 5)))
