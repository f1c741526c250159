"""Rounding in machine code: the bits of NumPy for every shape and type, and no byte beyond what it was given.

Whatever it reads or writes ends here at a page that nobody may touch: one byte too far ends the process.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.dithering import KEY
from support.guarded import guarded

from dpdist.core.moment.gram import Instructions, available
from dpdist.core.rows.dither import Affine, Dithering, Dithers
from dpdist.core.triangle import packed

kernel = pytest.importorskip("dpdist.core.rows.dither_kernel")
DTYPES = ["f4", "f8", "u1", "f2", "u8", ">f4"]
"""Three types that are read as stored, each compiled, and some that NumPy converts to float64."""
PACKS = pytest.mark.skipif(Instructions.AVX2 not in available(), reason="a processor of another kind, or no numba")


def hostile_rows(count: int, columns: int, dtype: str, seed: int) -> npt.NDArray[Any]:
    """Return rows inside, on and far outside the sphere, and rows that are not finite."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, columns)) * np.exp(rng.uniform(-2, 8, (count, 1)))
    rows[rng.random(count) < 0.2] = 0
    kind = np.dtype(dtype)
    with np.errstate(all="ignore"):
        if kind.kind == "f":
            rows[rng.random(count) < 0.1] *= 1e300
            rows[rng.random(count) < 0.1, 0] = np.nan
            rows[rng.random(count) < 0.1, -1] = -np.inf
        else:
            rows = rows.clip(max(-(2.0**62), float(np.iinfo(kind).min)), min(2.0**62, float(np.iinfo(kind).max)))
        return rows.astype(kind)


def stored(rows: npt.NDArray[Any], layout: str) -> npt.NDArray[Any]:
    """Store rows in another layout, next to a page that must not be accessed."""
    count, columns = rows.shape
    if layout == "columns first":
        found = guarded((columns, count), rows.dtype).T
    elif layout == "backwards":
        found = guarded(rows.shape, rows.dtype)[::-1]
    elif layout == "unaligned":
        raw = guarded((rows.nbytes + 1,), np.uint8)
        found = np.ndarray(rows.shape, rows.dtype, buffer=raw.data)
    else:
        found = guarded(rows.shape, rows.dtype)
    found[...] = rows
    if layout == "read-only":
        found.flags.writeable = False
    return found


LAYOUTS = ["as it is", "columns first", "backwards", "unaligned", "read-only"]


def unpacked(panels: npt.NDArray[np.int32], pairs: int) -> npt.NDArray[np.int16]:
    """Return the rows in panels."""
    halves = panels[:, :pairs].view("<i2").reshape(panels.shape[0], pairs, 16, 2)
    return halves.transpose(1, 3, 0, 2).reshape(2 * pairs, 16 * panels.shape[0])


@PACKS
@settings(max_examples=30)
@given(
    columns=st.one_of(st.integers(1, 130), st.sampled_from([16, 32, 64, 96, 784, 1000])),
    count=st.one_of(st.integers(0, 75), st.sampled_from([31, 32, 33, 64])),
    first=st.one_of(st.integers(0, 70), st.integers(2**33 - 70, 2**33)),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
    affine=st.tuples(st.booleans(), st.booleans()),
    bits=st.sampled_from([9, 12, 14, 15]),
    share=st.floats(0, 1),
    cut=st.integers(0, 75),
    constant=st.sampled_from([0, 77]),
    whole=st.sampled_from([None, 0.0, 0.3, 1.0]),
    seed=st.integers(0, 10**6),
)
@example(14, 33, 1, "f4", "as it is", (False, False), 12, 0.0, 1, 77, None, 0)
@example(16, 64, 0, "f8", "backwards", (True, True), 12, 1.0, 32, 77, 0.5, 0)
@example(4000, 9, 3, "f4", "as it is", (False, False), 12, 0.0, 1, 77, 0.3, 1)
def test_any_rows_have_the_bits_of_numpy_and_nothing_else_is_touched(
    columns: int, count: int, first: int, dtype: str, layout: str, affine: tuple[bool, bool], bits: int, share: float,
    cut: int, constant: int, whole: float | None, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    rows = stored(hostile_rows(count, columns, dtype, seed), layout)
    centre, scale = rng.normal(size=columns), rng.uniform(0.5, 2, columns)
    numbers = None if whole is None else rng.random(columns) >= whole
    norm = float(rng.uniform(1, 120))  # to which numbers are shortened, with room beside the others or without
    by = Affine(centre if affine[0] else None, scale if affine[1] else None, 100.0, numbers, norm)
    rule, dithers = Dithering(columns, bits), Dithers(KEY, first)
    expected = rule.rounded(by.shifted(rows), dithers.drawn(count, columns), by)
    width = columns + (constant != 0)
    start, cut, odd = min(int(share * width), width - 1), min(cut, count), first % 2
    room = (odd + count + 1) // 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "aligned_zeros", guarded)
        out = guarded((count, width), np.float64)
        kernel.round_rows(rule, rows, by, dithers, out[:, :columns])
        packing = kernel.Packing(rule, by, start, constant)
        panels = guarded((-(-(width - start) // 16), room + 1, 16), np.int32)
        panels[:, :, : min(16, width - start)] = 99  # from earlier rows
        panels[1:] = 0
        packing.pack(rows[:cut], dithers, panels, 1, join=False)
        at = (odd + cut) // 2
        packing.pack(rows[cut:], dithers.behind(cut), panels, 1 + at, join=(odd + cut) % 2 == 1 and cut > 0)
    assert np.array_equal(out[:, :columns], expected)
    assert not out[:, columns:].any()
    found = unpacked(panels[:, 1:], room)
    wanted = np.full((count, width), constant)
    wanted[:, :columns] = expected
    assert not found[:odd].any() or count == 0
    assert np.array_equal(found[odd : odd + count, : width - start], wanted[:, start:])
    assert not found[odd + count :].any() or count == 0
    assert not found[:, width - start :].any()


@PACKS
def test_rows_too_long_after_all_have_the_same_bits_and_are_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, rng = Dithering(20, 6), np.random.default_rng(2)
    monkeypatch.setattr(Dithering, "inner", 1.0)  # no room for rounding: every other row is too long
    monkeypatch.setattr(Dithering, "radius", 64.0)
    rows = rng.standard_normal((200, 20)) * 10.0 ** rng.uniform(2, 307, (200, 1))
    by, dithers = Affine(None, None, 1.5), Dithers(KEY, 7)
    expected = rule.rounded(by.shifted(rows), dithers.drawn(200, 20), by)
    out = np.empty((200, 20))
    kernel.round_rows(rule, rows, by, dithers, out)
    panels = np.zeros((2, 101, 16), dtype=np.int32)
    kernel.Packing(rule, by, 0, 0).pack(rows, dithers, panels, 0, join=False)
    assert np.array_equal(out, expected)
    assert np.array_equal(unpacked(panels, 101)[1:201, :20], expected)
    squares = np.einsum("ij,ij->i", out, out)
    assert (squares <= 4**6).all()
    assert ((squares > 4**6 - 130) & (squares <= 4**6)).sum() > 100  # a single step reduces it by at most 127


@PACKS
@pytest.mark.parametrize("bits", [14, 15])
def test_an_entry_that_is_a_whole_row_never_reaches_a_power_of_two(bits: int) -> None:
    rule, by, dithers = Dithering(30, bits), Affine(None, None, 1.0), Dithers(KEY, 0)
    rows = np.eye(30)[np.arange(400) % 30] * np.where(np.arange(400) % 2, -7.0, 1.0)[:, None]
    panels = np.zeros((2, 200, 16), dtype=np.int32)
    kernel.Packing(rule, by, 0, 0).pack(rows, dithers, panels, 0, join=False)
    expected = rule.rounded(by.shifted(rows), dithers.drawn(400, 30))
    assert (expected.max(), expected.min()) == (2**bits - 1, 1 - 2**bits)  # 16 bits hold no more at 15 grid bits
    assert np.array_equal(unpacked(panels, 200)[:, :30], expected)


ELSEWHERE = """
import hashlib
import numpy as np
from dpdist.core.moment.gram import available, fastest, gram_sum
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dither import DitherKey, Dithers
from dpdist.core.triangle import Band
bound, rows = RowBound(97, 100.0, 12, constant=2**11), np.random.default_rng(0).normal(size=(301, 97))
sums = gram_sum(Band(5, 98, 98), bound.norm_bound)
sums.add_dithered(rows.astype(np.float32) * 20, bound, Dithers(DitherKey(bytes(range(32))), 5))
whole = gram_sum(Band.whole(70), 4**11)
whole.add(np.random.default_rng(0).integers(-200, 200, (700, 70)).astype(float))
found = (hashlib.sha256(each.total().tobytes()).hexdigest() for each in (sums, whole))
print(fastest(4**11).name, *(each.name for each in available()), *found)
"""


@PACKS
def test_another_processor_that_keeps_no_machine_code_gives_the_same_bits_and_reads_no_memory_that_was_freed() -> None:
    """The C library overwrites freed memory, so integers read from it would differ."""
    columns = 97
    rows = np.random.default_rng(0).normal(size=(301, columns)).astype(np.float32) * 20
    z = np.full((301, columns + 1), 2**11)
    z[:, :columns] = Dithering(columns, 12).rounded(
        rows.astype(float), KEY.drawn(5, 301, columns), Affine(None, None, 100.0)
    )
    whole = np.random.default_rng(0).integers(-200, 200, (700, 70))
    expected = [hashlib.sha256(packed(part.T @ part).tobytes()).hexdigest() for part in (z[:, 5:], whole)]
    run = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], check=True, capture_output=True, text=True,
        env={
            **os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma", "MALLOC_PERTURB_": "85",
            "NUMBA_CACHE_DIR": "/dev/null",  # no folder that machine code can be kept in
        },
    )  # fmt: skip
    assert run.stdout.split() == ["AVX2", "AVX2", "FLOAT64", *expected]


@PACKS
def test_a_row_that_is_not_done_yet_is_zero_and_its_neighbour_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of the panels after an interruption contains only rows with verified norms."""
    rule, by = Dithering(20, 12), Affine(None, None, 10.0)
    rows = np.random.default_rng(0).normal(size=(6, 20))
    expected = rule.rounded(rows.copy(), KEY.drawn(3, 6, 20), by)
    rows[0], rows[3] = 1e300, np.nan
    panels = np.zeros((2, 9, 16), dtype=np.int32)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kernel.Packing, "rounded", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kernel.Packing(rule, by, 0, 0).pack(rows, Dithers(KEY, 3), panels, 0, join=False)
    found = unpacked(panels, 4)[1:7, :20]
    assert not found[[0, 3]].any()
    assert np.array_equal(found[[1, 2, 4, 5]], expected[[1, 2, 4, 5]])
