"""Histograms of columns: their sensitivity, the bins that count, and the resulting centre and scale."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms import columns
from dpdist.core.mechanisms.columns import (
    BEYOND,
    MAX_BINS,
    Grid,
    calibrated,
    counting_bins,
    intervals_of,
    occupied,
    standardised,
)
from dpdist.core.mechanisms.counts import CountNoise, DiscreteLaplace, RoundedNormal
from dpdist.core.moment.histograms import ColumnCounting
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss

LOG, RANGE = Grid(), Grid.of_range(-1.0, 3.0)
HOSTILE = [
    0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -5e-324, 1e308, -1e308, 1.0, np.nextafter(1.0, 0), 2.0**-10,
    -(2.0**-10), 2.0**20, -(2.0**20), np.nextafter(2.0**20, 0), 3.0, -1.0, 0.5,
]  # fmt: skip


def counts_of(counting: ColumnCounting, rows: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    counts = np.zeros(counting.bins, dtype=np.int64)
    counting.count(rows, counts)
    return counts


# --- sensitivity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16", "uint8", "int64"])
def test_any_row_adds_one_to_one_bin_of_each_column(dtype: str) -> None:
    with pytest.raises(UsageError, match=rf"columns have \d+ bins; the limit is {MAX_BINS}"):
        ColumnCounting((LOG,) * (MAX_BINS // LOG.bins + 1))
    counting = ColumnCounting((LOG, RANGE, LOG))
    with np.errstate(all="ignore"):
        rows = np.array(list(itertools.product(HOSTILE, HOSTILE[:6], HOSTILE[9:13]))).astype(dtype)
    for row in rows:
        alone = counting.of_columns(counts_of(counting, row[None]))
        counts = np.isfinite(row).astype(int).tolist()  # a cell that a release replaces by the centre is in no bin
        assert [(int(h.sum()), int(h.max()), int(h.min())) for h in alone] == [(count, count, 0) for count in counts]
    # independently of the other rows and the chunks
    total = counts_of(counting, rows)
    assert (total == sum(counts_of(counting, part) for part in np.array_split(rows, 7))).all()


@pytest.mark.parametrize("max_rows", [1, 2, 3])
@pytest.mark.parametrize("neighbours", Neighbours)
def test_neighbours_attain_the_calibrated_sensitivity_and_never_exceed_it(
    neighbours: Neighbours, max_rows: int
) -> None:
    counting = ColumnCounting((LOG, RANGE))
    values = np.array([[0.0, 0.0], [math.nan, 9.0], [7.0, -3.0], [1e300, 2.9], [0.0, 2.9]])
    units = [
        values[list(rows)]
        for count in range(max_rows + 1)
        for rows in itertools.combinations_with_replacement(range(len(values)), count)
    ]
    if neighbours is Neighbours.REPLACE_ONE:
        pairs = list(itertools.product(units, units))
    else:
        pairs = [(unit, values[:0]) for unit in units]
    moved = [counts_of(counting, one) - counts_of(counting, other) for one, other in pairs]
    l1, l2_squared = max(np.abs(by).sum() for by in moved), max((by**2).sum() for by in moved)
    # the proved sensitivity, derived from the calibrated noise
    epsilon = 10**6  # of a millionth: the scale is the sensitivity
    pure = calibrated(PrivacyLoss(epsilon), neighbours, 2, max_rows)
    assert isinstance(pure.noise, DiscreteLaplace)
    assert pure.noise.scale == l1
    gaussian = calibrated(PrivacyLoss.parse("1", "1e-6"), neighbours, 2, max_rows)
    assert isinstance(gaussian.noise, RoundedNormal)
    assert gaussian.guarantee.mu_squared == Fraction(int(l2_squared), gaussian.noise.sigma**2)


# --- bins that count --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [DiscreteLaplace(40), RoundedNormal(40)])
def test_no_interval_of_empty_bins_is_occupied_and_by_lower_thresholds_most_columns_have_one(noise: CountNoise) -> None:
    intervals, tables = intervals_of((LOG,)), 200
    counts = np.zeros(LOG.bins, dtype=np.int64)
    counts[-4:-1] = 100_000  # the bin at the end is unbounded, so it counts only if it is occupied
    assert standardised(LOG, counting_bins(LOG, counts, noise, intervals)).scale < BEYOND
    counts[-1] = 100_000
    assert standardised(LOG, counting_bins(LOG, counts, noise, intervals)).scale == BEYOND
    drawn = noise.draw(LOG.bins * tables, SYSTEM).reshape(tables, LOG.bins)
    # binomial with p <= 0.001 each: more than 5 of 200 with probability 8e-8
    assert sum(occupied(noisy, noise, intervals) is not None for noisy in drawn) <= 5
    # the twin: a multiple of the deviation that one interval rarely exceeds, of some 30000: .96 of columns have one
    lower = [2.5 * math.sqrt(width * noise.variance) for width in range(1, LOG.bins + 1)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "_thresholds", lambda *_: lower)
        assert sum(occupied(noisy, noise, intervals) is not None for noisy in drawn) > 100


# --- centre and scale -------------------------------------------------------------------------------------------------


def test_bins_are_exact_to_the_last_bit() -> None:
    edges = np.array(LOG.edges)
    assert (LOG.bins, edges[0], edges[-1], RANGE.bins) == (243, -(2.0**20), 2.0**20, 66)
    assert np.allclose(np.diff(np.log2(edges[121:])), 0.25)
    for low, high in ((1.0, 1.0), (0.0, math.inf), (1e300, np.nextafter(1e300, np.inf)), (0.0, 5e-324)):
        assert Grid.of_range(low, high) == LOG
    close = [np.nextafter(edges, by) for by in (-np.inf, np.inf)]
    finite = [value for value in HOSTILE if math.isfinite(value)]
    values = np.concatenate([edges, *close, finite, np.random.default_rng(1).standard_cauchy(400) * 1000])
    for grid in (LOG, RANGE):
        bins = [int(counts_of(ColumnCounting((grid,)), value[None, None]).argmax()) for value in values]
        assert bins == [grid.bin_of(value) for value in values.tolist()]


@pytest.mark.parametrize(("mean", "deviation"), [(0, 1), (50, 30), (-3000, 500), (0.05, 0.02), (0, 1e5)])
def test_centre_and_scale_are_near_those_of_the_rows(mean: float, deviation: float) -> None:
    rows = np.random.default_rng(1).normal(mean, deviation, size=(100_000, 1))
    counting = ColumnCounting((LOG,))
    column = standardised(LOG, list(enumerate(counts_of(counting, rows).tolist())))
    if column.scale != BEYOND:
        assert abs(column.centre - mean) < 0.1 * deviation
        assert 0.97 < column.scale / deviation < 1.25
    exact = standardised(RANGE, [(RANGE.bin_of(value), 1) for value in np.linspace(-1, 3, 64, endpoint=False)])
    assert math.isclose(exact.centre, 1, abs_tol=1e-6)
    assert math.isclose(exact.scale, 4 / math.sqrt(12), rel_tol=1e-5)


def test_a_column_with_too_few_bins_gets_a_scale_that_limits_its_weight() -> None:
    years, zero = LOG.bin_of(2000.0), LOG.bin_of(0.0)
    assert standardised(LOG, []).scale == 1
    assert (standardised(LOG, [(zero, 100)]).centre, standardised(LOG, [(zero, 100)]).scale) == (0, 1)
    one = standardised(LOG, [(years, 100)])
    assert math.isclose(one.scale, LOG.width(years), rel_tol=1e-5)
    assert math.isclose(one.scale, 325.844, rel_tol=1e-5)
    assert standardised(LOG, [(zero, 10**6), (242, 100)]).scale == BEYOND
    assert standardised(LOG, [(0, 100), (zero, 10**6)]).scale == BEYOND
    near = LOG.bin_of(1.0)  # negative noise far out does not change the scale of the other bins
    assert 0 < standardised(LOG, [(near, 100), (near + 1, 100), (LOG.bin_of(5e5), -20)]).scale < 1
    for counting in ([], [(1, 100)], [(65, 100)]):
        assert standardised(RANGE, counting).scale == 4
    assert not any(standardised(LOG, bins).seen for bins in ([], [(years, 9)], [(0, 9), (zero, 9)]))
    assert standardised(RANGE, [(1, 9), (65, 9)]).seen
    two = standardised(LOG, [(years, 100), (years + 1, 100)])
    assert two.seen
    assert two.scale > LOG.width(years) / math.sqrt(12)  # it includes the variance within the bins
