"""Bounded rows: the norm of any input is verified on integers, and rows do not affect each other."""

from __future__ import annotations

import json
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
from support.dithering import KEY

import dpdist.core.rows
from dpdist.core.errors import DataError, UsageError
from dpdist.core.mechanisms.sensitivity import UnitNorm
from dpdist.core.rows import bounding
from dpdist.core.rows.bounding import RowBound, require_unbiased, unclipped_norm
from dpdist.core.rows.dither import Dithers, Units

Rows = npt.NDArray[Any]


MOVED = 1.5 + 2.0**-8
"""Rounding moves an entry by less than this number of steps."""


def bounded(bound: RowBound, rows: Rows, first_row: int = 0) -> npt.NDArray[np.int64]:
    """Bound rows with NumPy and, if numba is available, with the kernel: all bits must agree."""
    out = np.full((rows.shape[0], bound.width), np.nan)  # values of an earlier block must not matter
    z = bound.apply(rows, out.copy(), Dithers(KEY, first_row))
    assert np.array_equal(z, np.trunc(z))
    assert np.array_equal(bound.apply(rows, out.copy(), Dithers(KEY, first_row), compiled=False), z)
    return z.astype(np.int64)


def radius(columns: int, bits: int) -> float:
    """Return the norm to which rows are clipped before they are rounded, in steps."""
    return 2.0**bits - 2 - columns / (8 * 2.0**bits)


def squares(z: npt.NDArray[np.int64]) -> list[int]:
    return [sum(int(v) ** 2 for v in row) for row in z]  # Python integers do not overflow


ADVERSARIAL = np.array(
    [
        [0.6, 0.8], [1.0, 0.0], [-1.0, 0.0], [1 / math.sqrt(2)] * 2, [math.nan, 0.0], [math.inf, 0.0], [0.0, -math.inf],
        [1e308, 1e308], [-1.7e308, 1.7e308], [5e-324, 5e-324], [5e-324, 1e308], [1e200, 1e-200], [1 + 2**-52, 0.0],
        [3.0, 4.0], [2.0**26.5, 0.0], [2.0**27, 2.0**27], [1e16, 1.0], [-0.0, 0.0],
    ]
)  # fmt: skip


@pytest.mark.parametrize("bits", [3, 16, 24])
def test_adversarial_rows_stay_inside_the_bound(bits: int) -> None:
    z = bounded(RowBound(2, 1.0, bits), ADVERSARIAL)
    assert max(squares(z)) <= 4**bits
    not_finite = ~np.isfinite(ADVERSARIAL).all(axis=1)
    assert (z[not_finite] == 0).all()
    # large rows end on the inner sphere, in their own direction, up to rounding
    for row, length in ((7, math.sqrt(0.5)), (13, 0.6), (14, 1.0)):
        assert abs(abs(int(z[row, 0])) - length * radius(2, bits)) < MOVED
    z = bounded(RowBound(2, 1e-30), np.array([[3e-20, 4e-20], [0.3, -0.4], [3e200, 4e200]]))
    assert np.abs(np.abs(z) - radius(2, 16) * np.array([0.6, 0.8])).max() < MOVED
    constant = RowBound(2, 1.0, bits, constant=2 ** (bits - 1))
    z = bounded(constant, ADVERSARIAL)
    assert (z[:, 2] == 2 ** (bits - 1)).all()  # even in a row that counts as zero
    assert max(squares(z)) <= constant.norm_bound == 4**bits + 4 ** (bits - 1)


def test_a_signalling_nan_says_nothing() -> None:
    rows = np.ones((3, 2), dtype=np.float32)
    rows.view(np.uint32)[1, 0] = 0x7FA00000
    with np.errstate(all="raise"):  # a warning would reveal the row
        assert bounded(RowBound(2, 2.0), rows)[1].tolist() == [0, 0]


@given(float_rows(4, 5), st.integers(3, 20), st.floats(1e-3, 1e6))
def test_any_row_of_floats_stays_inside_the_bound(rows: npt.NDArray[np.float64], bits: int, clip: float) -> None:
    assert max(squares(bounded(RowBound(5, clip, bits), rows))) <= 4**bits


@given(float_rows(6, 3, st.floats(-1e3, 1e3)), float_rows(6, 3))
def test_a_row_is_mapped_alone_by_its_number(rows: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> None:
    bound = RowBound(3, 10.0, centre=(1.0, -2.0, 0.5), scale=(2.0, 1.0, 4.0))
    together = bounded(bound, np.concatenate([others, rows]))[6:]
    alone = np.concatenate([bounded(bound, rows[i : i + 1], 6 + i) for i in range(6)])
    assert np.array_equal(together, alone)


def test_the_compiled_kernel_is_what_runs_and_leaves_few_rows_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pytest.importorskip("dpdist.core.rows.dither_kernel")
    left: list[int] = []
    slowly = kernel._Prepared.rounded

    def counted(self: object, rows: Rows, dithers: Dithers, unfinished: npt.NDArray[np.int64], units: Units) -> Rows:
        left.extend(unfinished.tolist())
        found: Rows = slowly(self, rows, dithers, unfinished, units)
        return found

    monkeypatch.setattr(kernel._Prepared, "rounded", counted)
    rows = np.random.default_rng(3).normal(size=(400, 7)) * np.logspace(-3, 3, 400)[:, None]
    rows[5, 2], rows[9, 0], rows[11] = math.nan, math.inf, 1e300
    RowBound(7, 1.0, centre=(0.1,) * 7, scale=(1.3,) * 7).apply(rows, np.empty((400, 7)), Dithers(KEY, 0))
    assert left == [5, 9, 11]  # and one of 100,000 on the sphere, which here is none


@pytest.mark.parametrize(("columns", "least"), [(5, 3), (784, 6)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint64", "uint16", "int8"])
@pytest.mark.parametrize("affine", [False, True])
def test_rows_of_every_size_and_kind_have_the_bits_of_single_float64_rows_without_the_kernel(
    columns: int, least: int, dtype: str, affine: bool
) -> None:
    rng = np.random.default_rng(columns)
    count, kind = 60_000 // columns, np.dtype(dtype)
    largest = np.exp2({"float64": 1023, "float32": 127}.get(dtype, 8 * kind.itemsize - 2))
    rows = rng.uniform(-1 if kind.kind != "u" else 0, 1, (count, columns)) * largest ** rng.uniform(-1, 1, (count, 1))
    rows[:20] *= rng.integers(0, 2, size=(20, columns))
    if kind.kind != "u":
        rows[20:60] = np.exp2(np.floor(np.log2(np.abs(rows[20:60]))))  # powers of two, where exponents change
    if kind.kind == "f":
        rows[::50, 2], rows[1::50, 3], rows[2::50, 1] = np.nan, np.inf, -np.inf
    rows = rows.astype(dtype)
    centre, scale = (tuple(np.resize(v, columns)) for v in ((0.3, 0, -1e300, 1e-300, 5), (1e-150, 3, 1, 1e150, 0.1)))
    for bits in (least, 16, 24):
        bound = RowBound(columns, 3.0, bits, constant=2**bits)
        bound = replace(bound, centre=centre, scale=scale) if affine else bound
        z = bounded(bound, rows)
        assert max(squares(z)) <= bound.norm_bound
        assert np.array_equal(z, bounded(bound, rows.astype(np.float64)))
        assert np.array_equal(z[:80], np.concatenate([bounded(bound, rows[i : i + 1], i) for i in range(80)]))


def test_rows_inside_the_ball_are_kept_up_to_rounding_and_others_reach_it_in_their_direction() -> None:
    rows = np.random.default_rng(0).normal(size=(500, 7))
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    bound = RowBound(7, 1.0)
    assert np.abs(bounded(bound, units / 1.001) - units / 1.001 * 2**16).max() < MOVED
    assert np.abs(bounded(bound, 100 * rows) - units * radius(7, 16)).max() < MOVED


def test_public_centre_and_scale_come_before_the_clip() -> None:
    rows = np.array([[10.0, 20.0], [12.0, 26.0]])
    bound = RowBound(2, 4.0, centre=(10.0, 20.0), scale=(1.0, 2.0))
    z = bounded(bound, rows) * bound.unit
    assert np.allclose(z, [[0, 0], [2, 3]], atol=1e-4)
    centre, scale = bound.input_units
    assert np.allclose(centre + scale * z, rows, atol=1e-3)
    assert [each.tolist() for each in RowBound(2, 4.0).input_units] == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        *((wrong, UsageError) for wrong in (
            {"grid_bits": 1}, {"grid_bits": 2}, {"grid_bits": 25}, {"constant": -1}, {"constant": 2**16 + 1},
            {"centre": (1.0,)}, {"centre": (1.0, math.nan, 0.0)}, {"scale": (1.0, 0.0, 1.0)},
            {"scale": (1.0, -1.0, 1.0)}, {"columns": 2**13, "grid_bits": 24},
        )),
        *(({"clip_norm": clip}, DataError) for clip in (0.0, -0.5, math.nan, math.inf, 2.0**-500, 2.0**500)),
    ],
)  # fmt: skip
def test_parameters_out_of_range_are_refused(parameters: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        RowBound(**{"columns": 3, "clip_norm": 1.0} | parameters)


@pytest.mark.parametrize(
    "bound",
    [
        RowBound(2, 3.0, 8, centre=(1.0, 2.0), scale=(0.5, 4.0), constant=7), RowBound(2, 3.0, centre=(1.0, 2.0)),
        RowBound(2, 3.0, scale=(0.5, 4.0)), RowBound(2, 3.0),
    ],
)  # fmt: skip
def test_json_values_restore_a_bound(bound: RowBound) -> None:
    values = json.loads(json.dumps(bound.to_json()))
    assert RowBound.from_json(values) == bound
    require_unbiased(values, "the release")
    assert 3 - 2.1 * bound.unit < bound.shortened_norm < 3  # unbiased rounding makes rows longer


@pytest.mark.parametrize("rounding", [{}, {"rounding": "another"}])
def test_a_stored_bound_of_rows_that_were_rounded_in_another_way_is_refused(rounding: dict[str, str]) -> None:
    values = {key: value for key, value in RowBound(2, 3.0).to_json().items() if key != "rounding"} | rounding
    with pytest.raises(DataError, match="the release is of a version before"):
        require_unbiased(values, "the release")


def test_a_clip_norm_that_is_not_positive_is_named_as_such() -> None:
    with pytest.raises(DataError, match="positive finite"):
        RowBound(3, 0.0)


@pytest.mark.parametrize("bits", [8, 16, 24])
def test_sums_are_limited_to_the_rows_that_float64_and_int64_hold(bits: int) -> None:
    bound = RowBound(2**13 - 1, 1.0, bits)  # one column more is refused at 24 bits
    assert bound.exact_rows == 2**53 // 4**bits  # |z|² <= 4**bits: sums of squares up to 2**53 are exact in float64
    assert bound.total_rows == 2**63 // 4**bits * 3 // 4  # int64, less a quarter for noise


@pytest.mark.parametrize("clip", [math.nextafter(2.0**-500, 1), math.nextafter(2.0**500, 1)])
def test_the_first_clip_norms_that_are_taken_bound_rows(clip: float) -> None:
    bound = RowBound(2, clip)
    z = bounded(bound, np.array([[clip, 0.0], [clip, clip]]))
    assert max(squares(z)) <= 4**16
    assert np.abs(z - radius(2, 16) * np.array([[1, 0], [math.sqrt(0.5)] * 2])).max() < MOVED


def test_rows_at_the_end_of_the_range_of_squares_have_the_same_bits_with_and_without_the_kernel() -> None:
    last = math.sqrt(np.finfo(np.float64).max)
    lengths = [math.nextafter(last, 0), last, math.nextafter(last, math.inf), 0.9 * last, 1.1 * last]
    assert [math.isinf(length * length) for length in lengths] == [False, False, True, False, True]
    rows = np.array(lengths)[:, None] * np.array([[1.0, 0, 0], [0, -0.6, 0.8], [1, 1, 1]])[:, None]
    directions = np.repeat([[1.0, 0, 0], [0, -0.6, 0.8], [3**-0.5] * 3], 5, axis=0)
    z = bounded(RowBound(3, 1.0), rows.reshape(-1, 3))
    assert np.abs(z - radius(3, 16) * directions).max() < MOVED


def test_however_many_rows_the_kernel_leaves_numpy_bounds_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pytest.importorskip("dpdist.core.rows.dither_kernel")

    def lazy(*given: Any) -> int:
        unfinished = given[-5]
        unfinished[:] = np.arange(len(unfinished))
        return len(unfinished)

    rows, dithers = np.random.default_rng(8).normal(size=(600, 2)), Dithers(KEY, 7)
    rows[300, 1] = math.nan
    expected = bounded(RowBound(2, 1.0), rows, 7)
    monkeypatch.setattr(kernel, "_round", lazy)
    assert np.array_equal(RowBound(2, 1.0).apply(rows, np.empty((600, 2)), dithers), expected)


def test_without_numba_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dpdist.core.rows, "dither_kernel", raising=False)  # an import finds it there first
    monkeypatch.setitem(sys.modules, "dpdist.core.rows.dither_kernel", None)
    assert bounding.compiled_kernel.__wrapped__() is None


@given(st.data())
def test_numbers_are_clipped_to_one_norm_and_other_columns_never(data: st.DataObject) -> None:
    """Any map of single rows is private; the integers are within the bound even where the schema is wrong."""
    columns, bits = data.draw(st.integers(2, 20)), data.draw(st.integers(8, 16))
    whole = sorted(data.draw(st.sets(st.integers(0, columns - 1), min_size=1, max_size=columns)))
    random = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    rows = random.normal(size=(40, columns)) * 10.0 ** random.uniform(-2, 2, size=(40, 1))
    lengths = np.linalg.norm(rows[:20, whole], axis=1, keepdims=True)
    rows[:20, whole] *= random.uniform(0.1, 1, (20, 1)) / lengths  # within what the schema says; the others are not
    bound = RowBound(columns, 1.5, bits, whole=tuple(whole), whole_norm=1.0)
    z = bounded(bound, rows)
    assert max(squares(z)) <= bound.norm_bound == 4**bits
    expected = rows[:20].copy()
    lengths = np.linalg.norm(rows[:20][:, bound.numbers], axis=1)
    shrunk = np.minimum(1, bound.numbers_norm / np.maximum(lengths, 1e-300))  # the same norm for every row
    expected[:, bound.numbers] *= shrunk[:, None]
    assert np.abs(z[:20] - expected / bound.unit).max() <= MOVED + 1
    assert bound.numbers_norm == pytest.approx(1.5 if bound.numbers else 0, rel=1e-5, abs=0.01)


@pytest.mark.parametrize("wrong", [{"whole": (3,)}, {"whole": (1, 0)}, {"whole_norm": 1.0}, {"whole_norm": math.inf}])
def test_columns_that_are_never_shortened_are_columns_with_a_norm(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="never shortened"):
        RowBound(2, 1.0, **{"whole": (0,), "whole_norm": 0.5, **wrong} if "whole" in wrong else wrong)
    bound = RowBound(2, 1.0, whole=(0,), whole_norm=0.5)
    assert RowBound.from_json(bound.to_json()) == bound
    assert bound.to_json()["clip_norm"] == bound.row_norm  # a step is this over 2^bits, as of every release
    with pytest.raises(DataError, match="clip norm of a bound"):
        RowBound.from_json({**bound.to_json(), "clip_norm": 1.0})
    with pytest.raises(UsageError, match="no column varies"):
        RowBound(2, 1.0, whole=(0, 1))


def test_what_no_row_can_be_bounded_by_is_refused() -> None:
    assert [RowBound(1, 1.0, bits).grid_bits for bits in (3, 24)] == [3, 24]
    for bits, why in ((1, "must be between 2 and 24"), (2, "are too few"), (25, "must be between 2 and 24")):
        with pytest.raises(UsageError, match=rf"rid bits {why}"):
            RowBound(1, 1.0, bits)
    assert RowBound(3, 1.0, 10, whole=(0, 2), whole_norm=0.5).numbers == (1,)
    for columns in ((3,), (-1,), (2, 0), (1, 1)):
        with pytest.raises(UsageError, match="in ascending order"):
            RowBound(3, 1.0, 10, whole=columns, whole_norm=0.5)
    for norm in (-0.5, math.inf, 2.0**500):
        with pytest.raises(UsageError, match="must be finite"):
            RowBound(3, 1.0, 10, whole=(0,), whole_norm=norm)
    with pytest.raises(UsageError, match="must be finite"):
        RowBound(3, 1.0, 10, whole_norm=0.5)
    assert RowBound(3, 1.0, 10, whole=(0,), whole_norm=1000.0).whole_norm == 1000
    assert RowBound(3, 1.0, 10, whole=(0,)).whole_norm == 0  # of one value


@pytest.mark.parametrize("constant", [0, 512])
def test_numbers_have_the_room_that_the_other_columns_leave(constant: int) -> None:
    alone = RowBound(3, 2.0, 10, whole=(0, 2), whole_norm=1.25, constant=constant)
    assert math.hypot(alone.numbers_norm, 1.25) == pytest.approx(alone.shortened_norm)
    assert alone.numbers_norm >= 2.0  # the clip norm, as the norm of a row is larger
    assert alone.row_norm == pytest.approx(math.hypot(2, 1.25), rel=0.005)
    unit = RowBound(3, 2.0, 10, whole=(0, 2), whole_norm=1.25, constant=constant, unit_norm="frobenius")
    assert unit.row_norm == 2  # here the clip norm is of all columns
    together = math.hypot(unit.numbers_norm, 1.25, constant * unit.unit)
    assert together == pytest.approx(unit.shortened_norm)
    kinds: tuple[UnitNorm, ...] = ("", "frobenius")
    for kind in kinds:
        numbers = RowBound(3, 2.0, 10, constant=constant, unit_norm=kind)
        assert numbers.numbers_norm == numbers.shortened_norm
    assert RowBound(1, 2.0, 10, whole=(0,), whole_norm=1.25).numbers_norm == 0
    assert (alone.norm_bound, unit.norm_bound) == (4**10 + constant**2, 4**10)
    assert (RowBound(1, 1.0, 4).largest, RowBound(1, 1.0, 4, constant=16).largest) == (15, 16)


def test_the_least_clip_norm_of_a_unit_is_told_and_works() -> None:
    def bound(clip: float, columns: int) -> RowBound:
        whole = tuple(range(columns - 1)) or (0,)
        return RowBound(columns, clip, 10, whole=whole, whole_norm=1.25, constant=256, unit_norm="frobenius")

    for columns in (1, 3):
        with pytest.raises(UsageError, match="clip norm of a privacy unit must exceed") as refusal:
            bound(1.25, columns)
        told = float(str(refusal.value).split("must exceed ")[1].split(":")[0])
        assert 1.25 < told < 1.6
        assert bound(1.01 * told, columns).clip_norm == 1.01 * told
    with pytest.raises(UsageError, match="must exceed"):
        bound(0.94 * told, 3)


@pytest.mark.parametrize("norm", [0.012345678, 1.0, 777.7777777])
def test_no_row_of_a_norm_is_shortened_by_the_least_norm_for_it(norm: float) -> None:
    least = unclipped_norm(norm, 5, 12)
    assert RowBound(5, least, 12).shortened_norm >= norm * (1 + 1e-13)
    assert RowBound(5, least * (1 - 1e-6), 12).shortened_norm < norm  # of seven digits
    assert float(f"{least:.7g}") == least
