"""Noise drawn in pieces, by several processes: the law and the draws of one, each entry once, nothing else with it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.drawers import Again, Marked, Replayed
from support.registered import calibrated
from support.tallies import FALSE_ALARM
from support.trusted_scene import asking, exact, ledger_of, target_of, total_of

from dpdist.ledger.state import State
from dpdist.mechanisms.base import IndependentEntries
from dpdist.mechanisms.gaussian import CalibratedGaussian
from dpdist.moment.layout import layout_of
from dpdist.noise.entropy import SYSTEM
from dpdist.release import drawing, trusted
from dpdist.release.artefact import open_release
from dpdist.release.trusted import MomentTransaction
from dpdist.rows.bounding import RowBound
from dpdist.rows.table import Shape
from dpdist.runtime.pool import Pool
from dpdist.triangle import Band

SIZE = 300


def gaussian() -> CalibratedGaussian:
    found = calibrated("gaussian", SIZE, 4**23)
    assert isinstance(found, CalibratedGaussian)
    return found


def there(pool: Pool[Band]) -> None:
    """Wait until all processes of a pool draw."""
    seen: set[int] = set()
    until = time.monotonic() + 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "PIECE", SIZE * SIZE // 20)
        while not seen.issuperset(pool.processes):
            assert time.monotonic() < until
            band = Band.whole(SIZE)
            zeros = np.zeros(band.entries, np.int64)
            seen.update(drawing.noisy(Marked(os.getpid()), band, zeros, SYSTEM, pool).tolist())


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool[Band]]:
    """Return two processes that draw beside this one."""
    with Pool[Band](2) as started:
        there(started)
        assert len(started.processes) == 2
        yield started


@given(size=st.integers(1, 60), rows=st.data(), piece=st.integers(1, 200))
def test_pieces_are_the_rows_of_the_band_in_order(size: int, rows: Any, piece: int) -> None:
    start = rows.draw(st.integers(0, size - 1))
    band = Band(start, rows.draw(st.integers(start + 1, size)), size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "PIECE", piece)
        found = list(drawing.pieces(band))
    assert [row for each in found for row in range(each.start, each.stop)] == list(range(band.start, band.stop))
    assert all(each.entries <= piece or each.height == 1 for each in found)
    assert {each.size for each in found} == {size}


@pytest.mark.parametrize("start", [0, 17])
def test_the_same_draws_are_the_same_noise_however_many_processes_draw_them(
    start: int, pool: Pool[Band], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "PIECE", 5000)
    band = Band(start, SIZE - 5, SIZE)
    exact_sums = np.random.default_rng(0).integers(-(2**61), 2**61, band.entries)
    before = exact_sums.copy()
    replayed = Replayed(gaussian(), 1000)
    expected = exact_sums + np.concatenate([replayed.draw_band(each, SYSTEM) for each in drawing.pieces(band)])
    assert np.array_equal(drawing.noisy(replayed, band, exact_sums, SYSTEM, Pool(0)), expected)
    assert np.array_equal(drawing.noisy(replace(replayed, slow=os.getpid()), band, exact_sums, SYSTEM, pool), expected)
    assert np.array_equal(exact_sums, before)


def test_a_process_that_dies_over_a_piece_leaves_nothing_in_the_band(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "PIECE", 5000)
    band = Band.whole(SIZE)
    with Pool[Band](1) as mortal:
        there(mortal)
        found = drawing.noisy(Marked(os.getpid(), mortal=True), band, np.zeros(band.entries, np.int64), SYSTEM, mortal)
        assert mortal.processes == []
    assert np.array_equal(found, np.full(band.entries, os.getpid()))


def _entries(fixed: IndependentEntries, pool: Pool[Band]) -> npt.NDArray[np.float64]:
    """Return the entries off the diagonal of a moment that is zero, in units of their deviation."""
    band = Band.whole(SIZE)
    noise = drawing.noisy(fixed, band, np.zeros(band.entries, dtype=np.int64), SYSTEM, pool)
    entries: npt.NDArray[np.float64] = np.delete(noise, band.diagonal) / gaussian().sigma_off_diagonal
    return entries


def _sound(entries: npt.NDArray[np.float64]) -> bool:
    """Test the law of the entries, and that none was drawn twice; right ones fail with a probability below 2e-6."""
    distinct = np.unique(entries).size == entries.size  # 45000 of them, of a scale beyond 2^47: equal ones below 1e-6
    return distinct and float(stats.kstest(entries, stats.norm.cdf).pvalue) > FALSE_ALARM


def test_the_noise_of_several_processes_has_its_law_and_its_twins_fail(
    pool: Pool[Band], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "PIECE", 5000)
    assert gaussian().sigma_off_diagonal > 2**47
    entries = _entries(gaussian(), pool)
    assert _sound(entries)
    assert not _sound(0.9 * entries)
    assert not _sound(_entries(Again(gaussian(), 5), pool))


def test_other_processes_are_started_for_wide_tables_only_and_as_memory_and_cores_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drawing, "usable_cores", lambda: 4)
    assert drawing.processes_for(5000, 100) == 0
    assert [drawing.processes_for(20_000, most) for most in (0, 2, 100)] == [0, 2, 3]
    monkeypatch.setattr(drawing, "usable_cores", lambda: 1)
    assert drawing.processes_for(20_000, 100) == 0


@given(columns=st.integers(2, 40_000), workers=st.integers(1, 64), memory=st.integers(3 << 30, 1 << 37))
def test_all_processes_that_draw_fit_the_memory_of_the_trusted_node(columns: int, workers: int, memory: int) -> None:
    found = layout_of(Shape(10**6, columns, "float32", 100), RowBound(columns, 1.0), workers, memory, divisible=True)
    assert found.beside >= 0
    assert found.trusted_bytes + found.drawing_bytes <= memory
    if memory - found.trusted_bytes > 1 << 30:
        assert found.beside


def _peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def test_a_process_that_draws_takes_no_more_memory_than_is_counted(pool: Pool[Band]) -> None:
    band = Band(0, 1000, 8000)  # eight pieces
    before = [_peak(pid) for pid in pool.processes]
    slow = Replayed(gaussian(), 1, os.getpid())
    drawing.noisy(slow, band, np.zeros(band.entries, dtype=np.int64), SYSTEM, pool)
    peaks = [_peak(pid) for pid in pool.processes]
    assert peaks > before  # one of them drew some
    peak = max(peaks)
    layout = layout_of(Shape(10, SIZE, "float32", 10), RowBound(SIZE, 1.0), 1, 1 << 34, divisible=True)
    assert peak + 8 * drawing.PIECE <= layout.drawing_bytes / layout.beside


class Noted(Pool[Band]):
    """Processes that are known."""

    seen: ClassVar[list[int]] = []

    def __enter__(self) -> Self:
        """Start them, and note their ids."""
        super().__enter__()
        self.seen.extend(self.processes)
        return self


@pytest.mark.parametrize("fault", [False, True])
def test_a_release_that_several_processes_draw_is_one_release_and_leaves_none_of_them(
    transaction: MomentTransaction, values: npt.NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch, fault: bool
) -> None:
    asked = asking(transaction, mechanism="laplace")
    for name, value in (("WORTH_A_PROCESS", 1), ("PIECE", 1), ("usable_cores", lambda: 3)):
        monkeypatch.setattr(drawing, name, value)
    monkeypatch.setattr(trusted, "Pool", Noted)
    monkeypatch.setattr(Noted, "seen", [])
    asked.reserve()
    if fault:
        with monkeypatch.context() as patch:
            patch.setattr(trusted, "archive", None)  # a defect, after the processes were started
            with pytest.raises(AttributeError):
                trusted.finalise(asked, total_of(asked), beside=9)
    trusted.finalise(asked, total_of(asked), beside=9)
    trusted.finalise(asked, total_of(asked), beside=9)
    trusted.publish(asked)
    assert len(Noted.seen) == (6 if fault else 4)  # two of each attempt
    assert not any(Path(f"/proc/{pid}").exists() for pid in Noted.seen)
    assert [record.state for record in ledger_of(asked).records] == [State.PUBLISHED]
    noise = open_release(target_of(asked)).lattice - exact(asked, values)
    assert noise.any()
    assert np.abs(noise).max() < 64 * 2**20 * 6  # of one draw: more with a probability below e^-60
