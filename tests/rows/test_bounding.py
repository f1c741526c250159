"""Bounded rows: the norm of any input is verified on integers, and rows do not affect each other."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import float_rows

from dpdist.errors import DataError, UsageError
from dpdist.rows import bounding
from dpdist.rows.bounding import RowBound

Rows = npt.NDArray[Any]


def bounded(bound: RowBound, rows: Rows) -> npt.NDArray[np.int64]:
    """Bound rows with NumPy and, if numba is available, with the kernel: all bits must agree."""
    out = np.full((rows.shape[0], bound.width), np.nan)  # values of an earlier block must not matter
    z = bound.apply(rows, out.copy())
    assert np.array_equal(z, np.trunc(z))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounding, "compiled_kernel", lambda: None)
        assert bound.apply(rows, out.copy()).tobytes() == z.tobytes()
    return z.astype(np.int64)


def squares(z: npt.NDArray[np.int64]) -> list[int]:
    return [sum(int(v) ** 2 for v in row) for row in z]  # Python integers do not overflow


ADVERSARIAL = np.array(
    [
        [0.6, 0.8], [1.0, 0.0], [-1.0, 0.0], [1 / math.sqrt(2)] * 2, [math.nan, 0.0], [math.inf, 0.0], [0.0, -math.inf],
        [1e308, 1e308], [-1.7e308, 1.7e308], [5e-324, 5e-324], [5e-324, 1e308], [1e200, 1e-200], [1 + 2**-52, 0.0],
        [3.0, 4.0], [2.0**26.5, 0.0], [2.0**27, 2.0**27], [1e16, 1.0], [-0.0, 0.0],
    ]
)  # fmt: skip


@pytest.mark.parametrize("bits", [2, 16, 24])
def test_adversarial_rows_stay_inside_the_bound(bits: int) -> None:
    z = bounded(RowBound(2, 1.0, bits), ADVERSARIAL)
    assert max(squares(z)) <= 4**bits
    not_finite = ~np.isfinite(ADVERSARIAL).all(axis=1)
    assert (z[not_finite] == 0).all()
    # large rows end on the bound, in their own direction, up to a grid step
    for row, length in ((7, math.sqrt(0.5)), (13, 0.6), (14, 1.0)):
        assert abs(abs(int(z[row, 0])) - length * 2**bits) <= 1.5
    z = bounded(RowBound(2, 1e-30), np.array([[3e-20, 4e-20], [0.3, -0.4], [3e200, 4e200]]))
    assert np.abs(np.abs(z) - 2.0**16 * np.array([0.6, 0.8])).max() <= 1.5
    constant = RowBound(2, 1.0, bits, constant=2 ** (bits - 1))
    z = bounded(constant, ADVERSARIAL)
    assert (z[:, 2] == 2 ** (bits - 1)).all()  # even in a row that counts as zero
    assert max(squares(z)) <= constant.norm_bound == 4**bits + 4 ** (bits - 1)


def test_a_signalling_nan_says_nothing() -> None:
    rows = np.ones((3, 2), dtype=np.float32)
    rows.view(np.uint32)[1, 0] = 0x7FA00000
    with np.errstate(all="raise"):  # a warning would reveal the row
        assert bounded(RowBound(2, 2.0), rows)[1].tolist() == [0, 0]


@given(float_rows(4, 5), st.integers(2, 20), st.floats(1e-3, 1e6))
def test_any_row_of_floats_stays_inside_the_bound(rows: npt.NDArray[np.float64], bits: int, clip: float) -> None:
    assert max(squares(bounded(RowBound(5, clip, bits), rows))) <= 4**bits


@given(float_rows(6, 3, st.floats(-1e3, 1e3)), float_rows(6, 3))
def test_a_row_is_mapped_alone(rows: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> None:
    bound = RowBound(3, 10.0, centre=(1.0, -2.0, 0.5), scale=(2.0, 1.0, 4.0))
    together = bounded(bound, np.concatenate([others, rows]))[6:]
    alone = np.concatenate([bounded(bound, rows[i : i + 1]) for i in range(6)])
    assert np.array_equal(together, alone)


def test_the_compiled_kernel_is_what_runs_and_leaves_only_odd_rows_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    left: list[int] = []
    slowly = RowBound._bounded

    def counted(self: RowBound, rows: Rows, z: npt.NDArray[np.float64]) -> None:
        left.append(len(rows))
        slowly(self, rows, z)

    monkeypatch.setattr(RowBound, "_bounded", counted)
    rows = np.random.default_rng(3).normal(size=(400, 7)) * np.logspace(-3, 3, 400)[:, None]
    bound = RowBound(7, 1.0, centre=(0.1,) * 7, scale=(1.3,) * 7)
    bound.apply(rows, np.empty((400, 7)))
    assert sum(left) < 20  # rows at the bound whose rounded factor was too large
    before = sum(left)
    left.clear()
    rows[5, 2], rows[9, 0], rows[11] = math.nan, math.inf, 1e300  # the same path, and so the same time
    bound.apply(rows, np.empty((400, 7)))
    assert sum(left) <= before + 1
    left.clear()
    RowBound(7, 1.0).apply(np.concatenate([np.eye(7), -2 * np.eye(7)]), np.empty((14, 7)))
    assert not left  # a row on the bound is within it


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("bits", [2, 16, 24])
def test_rows_of_every_size_and_kind_have_the_same_bits_with_and_without_the_kernel(
    dtype: str, affine: bool, bits: int
) -> None:
    rng = np.random.default_rng(bits)
    largest = np.exp2({"float64": 1023, "float32": 127, "int64": 62}[dtype])
    rows = rng.uniform(-1, 1, size=(3000, 5)) * largest ** rng.uniform(-1, 1, size=(3000, 1))
    rows[:200] *= rng.integers(0, 2, size=(200, 5))
    rows[200:400] = np.exp2(np.floor(np.log2(np.abs(rows[200:400]))))  # powers of two, where exponents change
    if dtype != "int64":
        rows[::50, 2], rows[1::50, 3], rows[2::50, 1] = np.nan, np.inf, -np.inf
    bound = RowBound(5, 3.0, bits)
    if affine:
        bound = replace(bound, centre=(0.3, 0.0, -1e300, 1e-300, 5.0), scale=(1e-150, 3.0, 1.0, 1e150, 0.1))
    assert max(squares(bounded(bound, rows.astype(dtype)))) <= 4**bits


@pytest.mark.parametrize("columns", [2, 33, 784])
@pytest.mark.parametrize("affine", [False, True])
def test_bits_do_not_depend_on_the_kernel_or_on_how_many_rows_come_at_once(columns: int, affine: bool) -> None:
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(60, columns)) * rng.lognormal(sigma=4, size=(60, 1))
    centre, scale = (tuple(v) for v in (rng.normal(size=columns), rng.lognormal(size=columns)))
    for bits in (8, 16, 24):
        bound = RowBound(columns, 30.0, bits, constant=2**bits)
        if affine:
            bound = replace(bound, centre=centre, scale=scale)
        assert np.array_equal(bounded(bound, rows), np.concatenate([bounded(bound, row[None]) for row in rows]))


def test_rows_inside_the_ball_are_kept_up_to_a_grid_step_and_others_reach_it_in_their_direction() -> None:
    rows = np.random.default_rng(0).normal(size=(500, 7))
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    bound = RowBound(7, 1.0)
    assert np.abs(bounded(bound, units / 1.001) / 2**16 - units / 1.001).max() <= 2.0**-16
    assert np.abs(bounded(bound, 100 * rows) / 2**16 - units).max() <= 2.0**-15


@pytest.mark.parametrize("dtype", ["int8", "uint16", "uint64"])
def test_every_stored_dtype_gives_the_integers_of_its_float64_values(dtype: str) -> None:
    rows = np.random.default_rng(2).integers(0, 120, (50, 4)).astype(dtype)
    bound = RowBound(4, 150.0, centre=(1.0, 2.0, 3.0, 4.0))
    assert np.array_equal(bounded(bound, rows), bounded(bound, rows.astype(np.float64)))


def test_public_centre_and_scale_come_before_the_clip() -> None:
    rows = np.array([[10.0, 20.0], [12.0, 26.0]])
    bound = RowBound(2, 4.0, centre=(10.0, 20.0), scale=(1.0, 2.0))
    z = bounded(bound, rows) * bound.unit
    assert np.allclose(z, [[0, 0], [2, 3]], atol=1e-4)
    centre, scale = bound.input_units
    assert np.allclose(centre + scale * z, rows, atol=1e-3)
    assert [each.tolist() for each in RowBound(2, 4.0).input_units] == [[0, 0], [1, 1]]


def test_a_bound_survives_json_exactly() -> None:
    bound = RowBound(2, 0.1 + 0.2, 12, centre=(1 / 3, 2 / 3), scale=(1e-300, 7.0), constant=2048)
    assert RowBound.from_json(bound.to_json()) == bound


@pytest.mark.parametrize(
    "parameters",
    [
        {"grid_bits": 1}, {"grid_bits": 25}, {"constant": -1}, {"constant": 2**16 + 1}, {"centre": (1.0,)},
        {"centre": (1.0, math.nan, 0.0)}, {"scale": (1.0, 0.0, 1.0)}, {"scale": (1.0, -1.0, 1.0)},
        {"columns": 2**13, "grid_bits": 24},
    ],
)  # fmt: skip
def test_parameters_out_of_range_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        RowBound(**{"columns": 3, "clip_norm": 1.0} | parameters)


def test_clip_norms_that_float64_cannot_square_are_refused() -> None:
    for clip, said in (
        (0.0, "positive"), (-0.5, "positive"), (math.nan, "positive"), (math.inf, "positive"),
        (2.0**-500, "exceeds"), (2.0**500, "exceeds"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=said):
            RowBound(3, clip)


@pytest.mark.parametrize("clip", [math.nextafter(2.0**-500, 1), math.nextafter(2.0**500, 1)])
def test_the_first_clip_norms_that_are_taken_bound_rows(clip: float) -> None:
    bound = RowBound(2, clip)
    assert squares(bounded(bound, np.array([[clip, 0.0], [clip, clip]]))) == [4**16, 2 * 46340**2]


def test_a_row_at_the_end_of_the_exact_range_has_the_same_bits_with_and_without_the_kernel() -> None:
    steps = np.array([[2**26, 3001, 67108863, 11189, 134, 7]])
    assert squares(steps) == [2**53]  # the first value that float64 may round
    bounded(RowBound(6, 1.0, 16), steps / 2**16)


def test_however_many_rows_the_kernel_leaves_numpy_bounds_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def lazy(rows: Rows, *public: Any) -> int:
        left = public[-1]
        left[: len(rows)] = np.arange(len(rows))
        return len(rows)

    rows = np.random.default_rng(8).normal(size=(50, 2))
    expected = bounded(RowBound(2, 1.0), rows)
    monkeypatch.setattr(bounding, "compiled_kernel", lambda: lazy)
    assert np.array_equal(RowBound(2, 1.0).apply(rows, np.empty((50, 2))), expected)


def test_without_numba_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dpdist.rows.kernel", None)
    assert bounding.compiled_kernel.__wrapped__() is None


def test_the_widths_and_numbers_of_rows_that_are_held_follow_from_the_bound() -> None:
    assert RowBound(2**13 - 1, 1.0, 24).width == 2**13 - 1
    bound = RowBound(784, 1.0, 16)
    assert bound.exact_rows == 2**21
    assert bound.total_rows == 3 * 2**29  # leaves a quarter of int64 for the noise
    assert RowBound(784, 1.0, 24).exact_rows == 32
