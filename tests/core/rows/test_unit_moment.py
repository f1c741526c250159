"""The moment of all rows of a privacy unit keeps its bound, whatever the rows are, and is unbiased below it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpdist.core.errors import DataError, UsageError
from dpdist.core.mechanisms.sensitivity import UnitNorm
from dpdist.core.moment.gram import Instructions, available, gram_sum
from dpdist.core.rows import unit_moment
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dither import ALONE, DitherKey, Dithers, Units
from dpdist.core.rows.unit_moment import bounded_units, moment_norms
from dpdist.core.triangle import Band, unpacked

Rows = npt.NDArray[np.float64]
KEY = DitherKey(bytes(range(32)))
KINDS: tuple[UnitNorm, ...] = ("frobenius", "trace")


def starts_of(*units: Rows) -> npt.NDArray[np.int64]:
    return np.cumsum([0, *map(len, units[:-1])]).astype(np.int64)


def exact_square(z: Rows, kind: str) -> int:
    """Return the square of the norm of the moment of integer rows, by the integers of Python."""
    assert np.array_equal(z, np.rint(z))
    moment = gram_of_integers(z)
    if kind == "trace":
        return int(np.trace(moment)) ** 2
    return sum(int(entry) ** 2 for entry in moment.ravel())


def gram_of_integers(z: Rows) -> npt.NDArray[Any]:
    """``z^T z`` by integers that do not overflow: distinct rows, with their multiplicity."""
    rows, counts = np.unique(z, axis=0, return_counts=True)
    if len(rows) > 2000:  # half of the bits at a time: products of 2^12 and less, exact in int64
        low, high = np.mod(z, 4096), np.floor_divide(z, 4096)
        parts = [(a.T.astype(np.int64) @ b.astype(np.int64)).astype(object) for a in (low, high) for b in (low, high)]
        total: npt.NDArray[Any] = parts[0] + 4096 * (parts[1] + parts[2]) + 4096**2 * parts[3]
        return total
    integers = rows.astype(np.int64).astype(object)
    weighted: npt.NDArray[Any] = integers.T @ (integers * counts.astype(object)[:, None])
    return weighted


def hostile() -> dict[str, Rows]:
    random = np.random.default_rng(4)
    one = np.array([3.0, -4.0, 1.0])
    return {
        "one row many times": np.tile(one, (20_000, 1)),
        "signs that alternate": np.tile(one, (5000, 1)) * np.where(np.arange(5000) % 2, -1, 1)[:, None],
        "huge and tiny": np.concatenate([np.full((3, 3), 1e300), np.full((40, 3), 1e-300), random.normal(size=(9, 3))]),
        "more rows than columns": random.normal(size=(400, 3)) * 5,
        "orthogonal": np.tile(np.eye(3) * 7, (30, 1)),
        "not finite": np.array([[np.nan, 1, 2], [np.inf, 0, 0], [1.0, 2, 3]]),
        "nothing": np.zeros((50, 3)),
        "one row": np.array([[1.0, 1.0, 1.0]]),
        "one long row": np.array([[1e6, 0.0, 0.0]]),
        "on the bound": np.full((1, 3), 4 / np.sqrt(3)),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("constant", [0, 37])
@pytest.mark.parametrize("bits", [8, 12, 20])
@pytest.mark.parametrize("compiled", [False, True])
def test_no_unit_exceeds_the_bound_whatever_its_rows(kind: UnitNorm, constant: int, bits: int, compiled: bool) -> None:
    units = list(hostile().values())
    bound = RowBound(3, 4.0, bits, constant=constant, unit_norm=kind)
    rows, starts = np.concatenate(units), starts_of(*units)
    z = bounded_units(rows, starts, bound, Dithers(KEY, 5), compiled=compiled)
    alone = np.empty_like(z)
    bound.round(rows, alone, Dithers(KEY, 5), Units(np.ones(len(rows)), np.zeros(len(rows), np.bool_), constant))
    exceeded = 0
    for start, unit in zip(starts, units, strict=True):
        own = slice(start, start + len(unit))
        assert exact_square(z[own], kind) <= bound.norm_bound**2
        exceeded += exact_square(alone[own], kind) > bound.norm_bound**2
    assert exceeded >= 5  # else nothing was bounded


def test_a_unit_of_very_many_rows_is_zero_and_one_of_fewer_is_not() -> None:
    bound = RowBound(2, 1.0, 6, unit_norm="frobenius")  # 4^7 / sqrt(2) = 11,585 rows round to its bound
    for rows, expected in ((20_000, True), (8_000, False)):
        z = bounded_units(np.zeros((rows, 2)), np.array([0]), bound, Dithers(KEY, 0))
        assert (not z.any()) == expected
        assert exact_square(z, "frobenius") <= bound.norm_bound**2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compiled", [False, True])
def test_units_of_one_row_have_the_bits_of_rows_bounded_alone(kind: UnitNorm, compiled: bool) -> None:
    rows = np.random.default_rng(1).normal(size=(3000, 5)) * np.random.default_rng(2).exponential(2, size=(3000, 1))
    plain = RowBound(5, 4.0, 10)
    alone = plain.apply(rows, np.empty((3000, 5)), Dithers(KEY, 3), compiled=compiled)
    together = bounded_units(
        rows, np.arange(3000), replace(plain, unit_norm=kind), Dithers(KEY, 3), compiled=compiled
    )  # fmt: skip
    assert np.array_equal(together, alone)
    assert (np.linalg.norm(rows, axis=1) > 4).sum() > 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("constant", [0, 100])
@pytest.mark.parametrize("columns", [21, 40])
@pytest.mark.parametrize("instructions", available())
def test_every_way_adds_the_same_integers(
    kind: UnitNorm, constant: int, columns: int, instructions: Instructions
) -> None:
    random = np.random.default_rng(7)
    # units of more rows than are multiplied at once, and of an odd number before others
    sizes = (1, 2, 200, 30, 1, 1, 5001, 3, 129, 128, *random.integers(1, 40, 300))
    units = [random.normal(size=(size, columns)) + random.normal(size=columns) for size in sizes]
    rows, starts = np.concatenate(units).astype(np.float32), starts_of(*units)
    rows[random.choice(len(rows), 40)] = np.nan  # such rows are rounded in NumPy
    bound = RowBound(columns, 20.0, 12, constant=constant, unit_norm=kind)
    z = bounded_units(rows, starts, bound, Dithers(KEY, 11), compiled=False)
    sums = gram_sum(Band.whole(bound.width), bound.norm_bound, instructions, bound.largest)
    sums.add_units(rows, starts, bound, Dithers(KEY, 11))
    assert np.array_equal(unpacked(sums.total(), bound.width), (z.T @ z).astype(np.int64))
    band = Band(3, 9, bound.width)
    part = gram_sum(band, bound.norm_bound, instructions, bound.largest)
    part.add_units(rows, starts, bound, Dithers(KEY, 11))
    whole = (z.T @ z).astype(np.int64)
    expected = gram_sum(band, bound.norm_bound, Instructions.FLOAT64, bound.largest)
    for start in range(0, len(z), bound.exact_rows):
        expected.add(z[start : start + bound.exact_rows])
    assert np.array_equal(part.total(), expected.total())
    assert whole.any()


def test_the_moment_is_that_of_shortened_rows_without_bias() -> None:
    # a row of a unit beyond the bound keeps E z z^T = f² x x^T + 1/4, and the constant E z c = f² x c: by 4000 keys
    rows = np.array([[3.0, 1.0], [2.0, -1.0], [3.5, 0.5]])
    bound = RowBound(2, 2.0, 8, constant=40, unit_norm="frobenius")
    moments = []
    for number in range(4000):
        key = DitherKey(number.to_bytes(32, "little"))
        z = bounded_units(rows, np.array([0]), bound, Dithers(key, 0), compiled=False)
        moments.append(z.T @ z)
    clipped = rows * np.minimum(1, bound.shortened_norm / np.linalg.norm(rows, axis=1))[:, None] / bound.unit
    exact = np.column_stack([clipped, np.full(3, 40.0)])
    moment = exact.T @ exact
    share = bound.norm_bound * (1 - 2.0**-6) / np.linalg.norm(moment)
    mean, spread = np.mean(moments, axis=0), np.std(moments, axis=0) / np.sqrt(4000)
    assert share < 0.8
    excess = mean - share * moment
    assert np.abs(excess - np.diag([0.75, 0.75, 0.375])).max() <= np.max(6 * spread) + 0.0004 * moment.max()
    assert np.abs(excess[0, 1]) <= 6 * spread[0, 1] + 0.0004 * moment.max()


def test_norms_of_rows_are_those_of_numpy() -> None:
    random = np.random.default_rng(8)
    units = [random.normal(size=(size, 6)) for size in (1, 5, 6, 7, 300, *[4] * 900)]
    rows, starts = np.concatenate(units), starts_of(*units)
    for trace in (False, True):
        for few in (len(units), 5):
            norms = np.full(len(units), -1.0)
            chosen = np.arange(len(units)) < few
            moment_norms(rows, starts, chosen, norms, trace=trace)
            for unit, norm in zip(units[:few], norms, strict=False):
                expected = np.linalg.norm(unit.T @ unit, "nuc" if trace else "fro")
                assert norm == pytest.approx(expected, rel=2e-6)
            assert (norms[few:] == -1).all()
    values = np.full((2000, 9), 1e200)
    norms = np.empty(2)
    moment_norms(values, np.array([0, 1000]), np.ones(2, np.bool_), norms, trace=False)
    assert np.isinf(norms).all()


def test_sums_that_may_be_inexact_never_pass() -> None:
    # at 24 bits, a trace above 2^53 is not exact in float64: such a unit is shortened, though its norm may be small
    assert unit_moment._checked(2.0**53, 1.0, 100.0) > 100
    assert unit_moment._checked(2.0**53 - 1, 1.0, 100.0) < 100


@pytest.mark.parametrize("seed", range(20))
def test_two_units_differ_by_the_sensitivity_of_one_row(seed: int) -> None:
    random = np.random.default_rng(seed)
    bound = RowBound(4, 3.0, 10, unit_norm="frobenius")
    moments = []
    for _ in range(2):
        rows = random.normal(size=(int(random.integers(1, 60)), 4)) * random.exponential(3)
        z = bounded_units(rows, np.array([0]), bound, Dithers(KEY, 0)).astype(np.int64)
        moments.append(z.T @ z)
    change = (moments[0] - moments[1]).astype(object)
    assert sum(int(entry) ** 2 for entry in change.ravel()) <= 2 * bound.norm_bound**2
    orthogonal = [np.diag([bound.norm_bound if i == j else 0 for i in range(4)]) for j in (0, 1)]
    assert Fraction(int(((orthogonal[0] - orthogonal[1]) ** 2).sum()), bound.norm_bound**2) == 2  # attained


def test_a_bound_of_units_is_stored_and_read() -> None:
    for kind in KINDS:
        bound = RowBound(3, 4.0, 12, constant=5, unit_norm=kind)
        assert RowBound.from_json(bound.to_json()) == bound
        assert bound.norm_bound == 4**12
    unknown: Any = RowBound(3, 4.0, 12).to_json() | {"unit_norm": "spectral"}
    with pytest.raises(DataError, match="newer"):
        RowBound.from_json(unknown)
    with pytest.raises(UsageError, match="categories"):
        RowBound(3, 1.0, 12, whole=(0,), whole_norm=1.0, unit_norm="frobenius")
    with pytest.raises(AssertionError, match="together"):
        RowBound(3, 1.0, 12, unit_norm="trace").apply(np.zeros((1, 3)), np.zeros((1, 3)), Dithers(KEY, 0))


def test_settling_never_ends_above_the_bound() -> None:
    bound = RowBound(3, 1.0, 8, unit_norm="frobenius")
    factors: list[Rows] = []

    def measure(chosen: npt.NDArray[np.bool_], norms: Rows) -> None:
        norms[chosen] = np.inf

    with pytest.raises(AssertionError, match="exceeds"):
        unit_moment.settle(np.array([0, 2]), 3, bound, lambda units: factors.append(units.factors), measure)
    assert not factors[-1].any()  # zeros were the last to be tried
    assert ALONE.factors.size == 0
