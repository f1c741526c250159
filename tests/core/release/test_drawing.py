"""Noise drawn in blocks by several threads: its distribution and draws are those of one, with each entry once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.registered import calibrated
from support.scripted import Scripted
from support.tallies import FALSE_ALARM

from dpdist.core.mechanisms.base import IndependentEntries
from dpdist.core.mechanisms.gaussian import CalibratedGaussian
from dpdist.core.noise.entropy import SYSTEM, Entropy
from dpdist.core.release import transaction as drawing
from dpdist.core.triangle import Band, Triangle

SIZE = 300


@dataclass(frozen=True)
class Replayed(IndependentEntries):
    """Draws that follow from the place of their band; without a step, every piece begins one stream anew."""

    fixed: CalibratedGaussian
    seed: int
    step: int = 1

    def draw_band(self, band: Band, entropy: Entropy) -> Triangle:
        assert entropy is SYSTEM
        return self.fixed.draw_band(band, Scripted(self.seed + self.step * band.start))


def gaussian() -> CalibratedGaussian:
    mechanism = calibrated("gaussian", SIZE, 4**23)
    assert isinstance(mechanism, CalibratedGaussian)
    return mechanism


@given(size=st.integers(1, 60), rows=st.data(), entries=st.integers(1, 200))
def test_blocks_are_the_rows_of_the_band_in_order(size: int, rows: Any, entries: int) -> None:
    start = rows.draw(st.integers(0, size - 1))
    band = Band(start, rows.draw(st.integers(start + 1, size)), size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "BLOCK_ENTRIES", entries)
        blocks = list(drawing.blocks(band))
    assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(band.start, band.stop))
    assert all(block.entries <= entries or block.height == 1 for block in blocks)
    assert {block.size for block in blocks} == {size}


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
    expected = exact_sums + np.concatenate([replayed.draw_band(block, SYSTEM) for block in drawing.blocks(band)])
    assert np.array_equal(drawing.noisy(replayed, band, exact_sums, SYSTEM), expected)
    assert np.array_equal(exact_sums, before)


def _entries(fixed: IndependentEntries) -> npt.NDArray[np.float64]:
    """Return the entries off the diagonal of a moment that is zero, in units of their deviation."""
    band = Band.whole(SIZE)
    noise = drawing.noisy(fixed, band, np.zeros(band.entries, dtype=np.int64), SYSTEM)
    entries: npt.NDArray[np.float64] = np.delete(noise, band.diagonal) / gaussian().sigma_off_diagonal
    return entries


def _sound(entries: npt.NDArray[np.float64]) -> bool:
    """Test the distribution of the entries, and that none was drawn twice; fails with probability 2e-6 if correct."""
    distinct = np.unique(entries).size == entries.size  # 45000 of them, of a scale beyond 2^47: equal ones below 1e-6
    return distinct and float(stats.kstest(entries, stats.norm.cdf).pvalue) > FALSE_ALARM


def test_the_noise_of_several_threads_has_its_law_and_its_twins_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "BLOCK_ENTRIES", 5000)
    monkeypatch.setattr(drawing, "available_cores", lambda: 3)
    assert gaussian().sigma_off_diagonal > 2**47
    entries = _entries(gaussian())
    assert _sound(entries)
    assert not _sound(0.9 * entries)
    assert not _sound(_entries(Replayed(gaussian(), 5, step=0)))
