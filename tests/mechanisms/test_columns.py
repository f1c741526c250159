"""Histograms of columns: how far neighbours move them, what counts, and the centre and scale that follow."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.errors import UsageError
from dpdist.mechanisms import columns
from dpdist.mechanisms.columns import (
    BEYOND,
    MOST_BINS,
    Grid,
    calibrated,
    counting_bins,
    intervals_of,
    occupied,
    standardised,
    threshold,
)
from dpdist.mechanisms.counts import CountNoise, DiscreteLaplace, RoundedNormal
from dpdist.moment.histograms import ColumnCounting
from dpdist.noise.entropy import SYSTEM
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss

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
def test_a_row_adds_one_to_one_bin_of_each_column_whatever_it_holds(dtype: str) -> None:
    counting = ColumnCounting((LOG, RANGE, LOG))
    with np.errstate(all="ignore"):
        rows = np.array(list(itertools.product(HOSTILE, HOSTILE[:6], HOSTILE[9:13]))).astype(dtype)
    for row in rows:
        alone = counting.of_columns(counts_of(counting, row[None]))
        counts = int(np.isfinite(row).all())  # a row that a release takes for the centre is in no bin
        assert [tuple(map(int, (each.sum(), each.max(), each.min()))) for each in alone] == [(counts, counts, 0)] * 3
    # and it does so whatever the others are, in every chunking
    whole = counts_of(counting, rows)
    assert (whole == sum(counts_of(counting, part) for part in np.array_split(rows, 7))).all()


@pytest.mark.parametrize("max_rows", [1, 2, 3])
@pytest.mark.parametrize("neighbours", Neighbours)
def test_no_neighbour_moves_the_counts_further_than_is_calibrated_and_one_moves_them_so_far(
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
    # what is proved, read back from the noise that is calibrated
    epsilon = 10**6  # of a millionth: the scale is the sensitivity
    pure = calibrated(PrivacyLoss(epsilon), neighbours, 2, max_rows)
    assert isinstance(pure.noise, DiscreteLaplace)
    assert pure.noise.scale == l1
    gaussian = calibrated(PrivacyLoss.parse("1", "1e-6"), neighbours, 2, max_rows)
    assert isinstance(gaussian.noise, RoundedNormal)
    assert gaussian.guarantee.mu_squared == Fraction(int(l2_squared), gaussian.noise.sigma**2)


# --- what counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1, 7, 300])
def test_a_draw_exceeds_what_it_is_said_to_exceed_as_seldom_as_said(scale: int) -> None:
    whole = math.exp(-1 / scale)
    for beta in (0.3, 1e-3, 1e-9):
        found = DiscreteLaplace(scale).exceeded(beta)
        assert whole ** (found + 1) / (1 + whole) <= beta < whole**found / (1 + whole)
        normal = RoundedNormal(scale).exceeded(beta)
        tail = [0.5 * math.erfc((normal + by) / scale / math.sqrt(2)) for by in (0.5, -0.5)]
        assert tail[0] <= beta < tail[1]


@pytest.mark.parametrize("noise", [DiscreteLaplace(40), RoundedNormal(40)])
def test_no_interval_of_empty_bins_is_occupied_and_by_lower_thresholds_most_columns_have_one(noise: CountNoise) -> None:
    intervals, tables = intervals_of((LOG,)), 200
    drawn = noise.draw(LOG.bins * tables, SYSTEM).reshape(tables, LOG.bins)
    # binomial with p <= 0.001 each: more than 5 of 200 with probability 8e-8
    assert sum(occupied(each, noise, intervals) is not None for each in drawn) <= 5
    # the twin: a multiple of the deviation that one interval seldom exceeds, of some 30000 that overlap
    lower = [3 * math.sqrt(width * noise.variance) for width in range(1, LOG.bins + 1)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "_thresholds", lambda *_: lower)
        assert sum(occupied(each, noise, intervals) is not None for each in drawn) > 100


@given(st.lists(st.integers(-3, 9), min_size=1, max_size=9), st.data())
def test_the_occupied_bins_reach_from_the_first_to_the_last_shortest_interval(
    counts: list[int], data: st.DataObject
) -> None:
    least = sorted(data.draw(st.lists(st.integers(2, 20), min_size=len(counts), max_size=len(counts))))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "_thresholds", lambda *_: least)
        found = occupied(np.array(counts), RoundedNormal(1), 1)
    over = {
        (low, high)
        for low, high in itertools.combinations(range(len(counts) + 1), 2)
        if sum(counts[low:high]) > least[high - low - 1]
    }
    shortest = [
        one for one in over
        if not any(other != one and one[0] <= other[0] and other[1] <= one[1] for other in over)
    ]  # fmt: skip
    assert found == ((min(shortest)[0], max(shortest)[1]) if shortest else None)


def test_sums_over_bins_find_the_scale_of_a_skewed_column_that_single_bins_lose() -> None:
    """6,000 rows at epsilon 1 and a tenth of mu²: noise of 46 on a count of six columns."""
    noise, rows = RoundedNormal(46), np.random.default_rng(5).exponential(size=(6000, 60))
    grids = (LOG,) * 6
    first, now = [], []
    for column in rows.T:
        exact = counts_of(ColumnCounting((LOG,)), column[:, None])
        noisy = exact + noise.draw(LOG.bins, SYSTEM)
        single = [(place, count) for place, count in enumerate(noisy.tolist()) if count > threshold(noise, 6 * 243)]
        first.append(standardised(LOG, single).scale)
        now.append(standardised(LOG, counting_bins(LOG, noisy, noise, intervals_of(grids))).scale)
    # off by more than a quarter in .08 of draws: 17 of 60 or more with probability 1e-6
    assert (np.abs(np.array(now) - 1) > 0.25).sum() < 17
    assert (np.abs(np.array(first) - 1) > 0.25).sum() > 40  # the twin


def test_a_bin_at_the_end_counts_only_where_it_is_occupied() -> None:
    """It stands for all numbers beyond the grid, and any scale of their size would be one of nothing."""
    noise, counts = RoundedNormal(1), np.zeros(LOG.bins, dtype=np.int64)
    counts[-4:-1] = 1000
    assert standardised(LOG, counting_bins(LOG, counts, noise, intervals_of((LOG,)))).scale < BEYOND
    counts[-1] = 1000
    assert standardised(LOG, counting_bins(LOG, counts, noise, intervals_of((LOG,)))).scale == BEYOND
    alone = np.zeros(LOG.bins, dtype=np.int64)
    alone[LOG.bin_of(0.0)] = 1000
    assert counting_bins(LOG, alone, noise, intervals_of((LOG,))) == [(LOG.bin_of(0.0), 1000)]


def test_noise_below_zero_far_out_leaves_a_scale_of_what_was_seen() -> None:
    far, near = LOG.bin_of(5e5), LOG.bin_of(1.0)
    found = standardised(LOG, [(near, 100), (near + 1, 100), (far, -20)])
    assert 0 < found.scale < 1
    one = standardised(LOG, [(near, -100), (near + 1, 50), (far, -20)])
    assert one.scale == pytest.approx(LOG.width(near + 1), 1e-5)


# --- centre and scale -------------------------------------------------------------------------------------------------


def test_the_grid_is_four_bins_an_octave_for_both_signs_and_64_over_a_range() -> None:
    edges = np.array(LOG.edges)
    assert (LOG.bins, edges[0], edges[-1], RANGE.bins) == (243, -(2.0**20), 2.0**20, 66)
    assert (edges == -edges[::-1]).all()
    assert np.allclose(np.diff(np.log2(edges[121:])), 0.25)
    assert (RANGE.bin_of(-1.0), RANGE.bin_of(3.0), RANGE.middle(RANGE.bin_of(3.0))) == (1, 65, 3.0)
    for low, high in ((1.0, 1.0), (0.0, math.inf), (1e300, np.nextafter(1e300, np.inf)), (0.0, 5e-324)):
        assert Grid.of_range(low, high) == LOG


def test_the_bins_are_those_between_whose_edges_a_number_lies_to_the_last_bit() -> None:
    edges = np.array(LOG.edges)
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
    found = standardised(LOG, list(enumerate(counts_of(counting, rows).tolist())))
    if found.scale != BEYOND:
        assert abs(found.centre - mean) < 0.1 * deviation
        assert 0.97 < found.scale / deviation < 1.25
    exact = standardised(RANGE, [(RANGE.bin_of(value), 1) for value in np.linspace(-1, 3, 64, endpoint=False)])
    assert math.isclose(exact.centre, 1, abs_tol=1e-6)
    assert math.isclose(exact.scale, 4 / math.sqrt(12), rel_tol=1e-5)


def test_a_column_of_which_too_little_is_seen_gets_a_scale_that_lets_it_decide_nothing() -> None:
    years, zero = LOG.bin_of(2000.0), LOG.bin_of(0.0)
    assert standardised(LOG, []).scale == 1
    assert (standardised(LOG, [(zero, 100)]).centre, standardised(LOG, [(zero, 100)]).scale) == (0, 1)
    one = standardised(LOG, [(years, 100)])
    assert math.isclose(one.scale, LOG.width(years), rel_tol=1e-5)
    assert math.isclose(one.scale, 325.844, rel_tol=1e-5)
    assert standardised(LOG, [(zero, 10**6), (242, 100)]).scale == BEYOND
    assert standardised(LOG, [(0, 100), (zero, 10**6)]).scale == BEYOND
    for counting in ([], [(1, 100)], [(65, 100)]):
        assert standardised(RANGE, counting).scale == 4
    assert not any(standardised(LOG, each).seen for each in ([], [(years, 9)], [(0, 9), (zero, 9)]))
    assert standardised(RANGE, [(1, 9), (65, 9)]).seen
    two = standardised(LOG, [(years, 100), (years + 1, 100)])
    assert two.seen
    assert two.scale > LOG.width(years) / math.sqrt(12)  # the variance within the bins is in it


def test_a_centre_far_from_zero_is_as_exact_as_the_scale_asks_for() -> None:
    """Six digits of 1e9 are off by up to 500: values within 1000 of one another would be all that counts."""
    low = 1_234_567_000.0
    grid = Grid.of_range(low, low + 1000)
    for counting in ([(20, 500), (21, 700), (22, 400)], [(20, 500)], []):
        found = standardised(grid, counting)
        expected = low + 500 if not counting else np.average(
            [grid.middle(place) for place, _ in counting], weights=[count for _, count in counting]
        )  # fmt: skip
        assert abs(found.centre - expected) <= found.scale / 1000


def test_a_table_that_is_too_wide_is_refused_with_the_figures() -> None:
    columns = MOST_BINS // LOG.bins
    ColumnCounting((LOG,) * columns)
    with pytest.raises(UsageError, match=rf"{columns + 1} columns have \d+ bins, and {MOST_BINS} are the most"):
        ColumnCounting((LOG,) * (columns + 1))
