"""Totals of periods, by a tree or by weights: the price of a row, the parts of a total, and its noise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import toeplitz
from support.person_factors import toeplitz_factor, tree_factor
from support.releases import archive_of, of_two_columns

from dpdist.answers.components import components
from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.mechanisms.gaussian import CalibratedGaussian, Gaussian
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.pipeline.inspect import inspect_path
from dpdist.core.privacy import accounting
from dpdist.core.privacy.accounting import caps_for
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.privacy.parallel import Charge, PeriodFilters
from dpdist.core.release.archive import publish
from dpdist.core.release.artefact import Release
from dpdist.core.release.attributes import Coverage
from dpdist.core.release.combine import combined, last_periods, next_total
from dpdist.core.release.opening import open_release
from dpdist.core.release.series import (
    LONGEST,
    PeriodSum,
    Toeplitz,
    banded,
    ended,
    levels_for,
    square_root,
    total_of,
    variance_factor,
)

WHOLE = PrivacyLoss.parse("1", "1e-6")
SERIES = st.one_of(st.integers(1, 12).map(square_root), st.integers(1, 6).map(banded))


def matrix(plan: Toeplitz, count: int) -> npt.NDArray[np.float64]:
    """Return the matrix of weights, one line per release."""
    column = np.zeros(count)
    column[: len(plan.weights)] = plan.weights[:count]
    return np.asarray(np.tril(toeplitz(column)), dtype=np.float64)


def calibrated(plan: Toeplitz, size: int, neighbours: Neighbours, bits: int = 8) -> CalibratedGaussian:
    """Return the mechanism of a release."""
    loss = accounting.share(WHOLE, plan.shares, gaussian=True)
    return Gaussian().calibrate(LatticeQuery(size, 4**bits, neighbours, plan.weights[0]), loss)


def test_the_weights_are_the_coefficients_rounded_to_integers() -> None:
    weights, f = square_root(LONGEST).weights, Fraction(64)
    for k, weight in enumerate(weights[:400]):
        f = f * (2 * k - 1) / (2 * k) if k else f
        assert weight == math.floor(f + Fraction(1, 2))
    assert len(weights) == LONGEST
    assert min(weights) == weights[-1] == 1
    assert all(a >= b for a, b in pairwise(weights))
    assert [len(plan.earlier(365)) for plan in (square_root(365), banded(64))] == [18, 16]  # totals per release
    assert banded(5).weights == weights[:5]
    with pytest.raises(UsageError, match="at most 4096 periods"):
        square_root(LONGEST + 1)


@pytest.mark.parametrize(
    ("plan", "figures"),
    [(square_root(365), (2.78, 2.95, 2.95)), (banded(64), (3.07, 3.85, 3.85)), (banded(32), (3.61, 4.77, 4.77))],
)
def test_the_noise_of_a_year_is_what_its_matrices_say(plan: Toeplitz, figures: tuple[float, ...]) -> None:
    """From NumPy's inverse of the matrix: root mean square, the worst release, the last."""
    weights = matrix(plan, 365)
    totals = np.tril(np.ones((365, 365))) @ np.linalg.inv(weights)
    np.testing.assert_allclose(plan.inverse(365), totals[-1][::-1], rtol=1e-9)
    assert min(plan.inverse(365)) > 0  # so nothing cancels
    np.testing.assert_allclose((totals @ weights), np.tril(np.ones((365, 365))), atol=1e-12)
    spread = float((matrix(plan, len(plan.weights))[:, 0] ** 2).sum())
    factors = (totals**2).sum(1) * spread
    assert plan.variance_factor(365) == pytest.approx(factors[-1])
    assert plan.variance_factor(1) == pytest.approx(factors[0])
    assert (factors.mean() ** 0.5, factors.max() ** 0.5, factors[-1] ** 0.5) == pytest.approx(figures, abs=0.005)


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize("plan", [square_root(5), banded(3)], ids=["square-root", "banded"])
def test_no_integer_row_costs_more_than_it_is_charged_and_the_worst_costs_that(
    plan: Toeplitz, neighbours: Neighbours
) -> None:
    """A search over rows, with the drawn noise; it would detect a charge with weights that are one less."""
    size, most, periods = 3, 2**8, 7 if plan.horizon is None else plan.horizon
    noise = calibrated(plan, size, neighbours)
    names = [f"p{s}" for s in range(periods)]
    random = np.random.default_rng(11)
    worst = np.zeros(periods)
    for attempt in range(100):
        rows = random.normal(size=(2, size))
        if attempt % 2:
            rows = np.eye(size)[random.permutation(size)[:2]] * 2.0
        rows = np.trunc(rows * most / np.maximum(1e-9, np.linalg.norm(rows, axis=1, keepdims=True)))
        if neighbours is Neighbours.ADD_REMOVE:
            rows[1] = 0
        change = np.outer(rows[0], rows[0]) - np.outer(rows[1], rows[1])
        one = (np.diag(change) ** 2).sum() / noise.sigma_diagonal**2
        one += (change[np.triu_indices(size, 1)] ** 2).sum() / noise.sigma_off_diagonal**2
        worst = np.maximum(worst, [(matrix(plan, periods)[:, s] ** 2).sum() * one for s in range(periods)])
    accounts = PeriodFilters(WHOLE, caps_for(WHOLE), names)
    less = PeriodFilters(WHOLE, caps_for(WHOLE), names)
    for count in range(1, periods + 1):
        span = plan.sum_at(count)
        read = tuple(names[span.start : span.stop])
        assert accounts.book(f"n{count}", Charge(noise.guarantee, read, span.weights))
        smaller = (*(max(1, weight - 1) for weight in span.weights[:-1]), span.weights[-1])
        assert less.book(f"n{count}", Charge(noise.guarantee, read, smaller))
    for s, name in enumerate(names):
        charged = _charged(accounts, name)
        assert worst[s] <= charged * (1 + 1e-12)
        assert worst[s] >= charged * 0.999
        if 0 < s < periods - 1 and plan.horizon is not None:
            assert worst[s] > _charged(less, name)
    mu_squared = float(1 / Fraction(accounting.gaussian_sigma(WHOLE)) ** 2)
    assert 0.999 * mu_squared < _charged(accounts, names[0]) <= mu_squared


def _charged(accounts: PeriodFilters, name: str) -> float:
    """Return the mu² charged to a period."""
    account = accounts.closed[name]
    return float(account.caps[-1].mu_squared - account.rest[-1].mu_squared)  # type: ignore[union-attr]


def test_weights_are_those_of_a_gaussian_release_one_for_each_period() -> None:
    guarantee = calibrated(square_root(3), 3, Neighbours.REPLACE_ONE).guarantee
    for weights in ((1,), (0, 1), (1, 2, 3)):
        with pytest.raises(ValueError, match="weights require a Gaussian release"):
            Charge(guarantee, ("a", "b"), weights)
    with pytest.raises(ValueError, match="weights require a Gaussian release"):
        Charge(replace(guarantee, mu_squared=None), ("a",), (2,))


@pytest.mark.parametrize("plan", [square_root(10), banded(4)], ids=["square-root", "banded"])
def test_the_factor_of_a_person_is_the_worst_there_is(plan: Toeplitz) -> None:
    """Every choice of k of ten periods, with all releases that read them."""
    weights = matrix(plan, plan.horizon or 14)
    for k in (1, 2, 3, 5):
        worst = max(
            (weights[:, list(chosen)].sum(1) ** 2).sum() for chosen in combinations(range(10 if plan.horizon else 9), k)
        )
        assert toeplitz_factor(plan, k) == pytest.approx(math.sqrt(worst / (weights[:, 0] ** 2).sum()))


def releases_of(plan: Toeplitz, moments: npt.NDArray[np.int64], **changes: Any) -> dict[PeriodSum, Release]:
    """Return the releases of a series whose noise happens to be zero."""
    guarantee = calibrated(plan, 2, Neighbours.REPLACE_ONE).guarantee
    releases = {}
    for count in range(1, len(moments) + 1):
        span = plan.sum_at(count)
        lattice = np.einsum("s,sij->ij", np.array(span.weights), moments[span.start : span.stop])
        releases[span] = of_two_columns(
            count,
            guarantee,
            Noise("by hand", EdgeKind.NORMAL, variance_diagonal=2.0, variance_off_diagonal=1.0),
            rows=sum(10 + s for s in range(span.start, span.stop)),
            answer=lattice,
            extents=(Coverage("d" * 32, span.start, span.stop, f"day {span.start}", f"day {span.stop - 1}"),),
            weights=span.weights,
            **changes,
        )
    return releases


def totals_of(plan: Toeplitz, releases: dict[PeriodSum, Release]) -> dict[int, Release]:
    """Return all totals, each from the earlier ones."""
    totals: dict[int, Release] = {}
    for count in range(1, len(releases) + 1):
        totals[count] = next_total(plan, releases[plan.sum_at(count)], totals.__getitem__)
    return totals


def window_of(plan: Toeplitz, releases: dict[PeriodSum, Release], window: int) -> Release:
    """Return the sum of the last periods."""
    totals, count = totals_of(plan, releases), len(releases)
    return last_periods(plan, window, releases[plan.sum_at(count)], totals[count], totals.get(count - window))


@settings(max_examples=6, deadline=None)
@given(SERIES, st.integers(1, 9), st.none() | st.integers(1, 13), st.integers(0, 2**32))
def test_a_total_or_a_window_is_that_of_its_periods(plan: Toeplitz, count: int, window: int | None, seed: int) -> None:
    """Integers without noise are exact; ids, rows and noise are those of all releases."""
    count = min(count, plan.horizon or count)
    moments = np.random.default_rng(seed).integers(-(2**40), 2**40, (count, 2, 2))
    moments += moments.transpose(0, 2, 1)
    releases = releases_of(plan, moments)
    whole = totals_of(plan, releases)[count]
    total = whole if window is None else window_of(plan, releases, window)
    first = max(0, count - (window or count))
    np.testing.assert_array_equal(total.lattice, moments[first:].sum(0))
    assert total.rows == sum(10 + s for s in range(first, count))
    assert (total.release_id == whole.release_id) == (first == 0)
    assert total.weights == ()
    assert total.releases == tuple(sorted(release.release_id for release in releases.values()))
    (extent,) = total.extents
    assert (extent.start, extent.stop, extent.first, extent.last) == (0, count, "day 0", f"day {count - 1}")
    assert total.window == (window if first else None)
    one = calibrated(plan, 2, Neighbours.REPLACE_ONE).guarantee
    assert total.guarantee is not None
    assert one.mu_squared is not None
    spread = Fraction(sum(w**2 for w in plan.weights[:count]), plan.weights[0] ** 2)
    assert total.guarantee.mu_squared == one.mu_squared * spread
    assert total.guarantee.loss.within(WHOLE)
    inverse = np.linalg.inv(matrix(plan, count))[first:].sum(0)
    assert total.noise["variance_diagonal"] == pytest.approx(2 * (inverse**2).sum())
    assert total.noise["variance_off_diagonal"] == pytest.approx((inverse**2).sum())


@pytest.mark.parametrize("plan", [square_root(16), banded(8)], ids=["square-root", "banded"])
def test_the_rounding_of_a_total_stays_within_what_is_stated(plan: Toeplitz) -> None:
    """With noise, against the exact inverse; totals are computed from a few earlier ones."""
    rng = np.random.default_rng(0)
    moments = np.array([m + m.T for m in rng.integers(-(2**50), 2**50, (16, 2, 2))])
    releases = releases_of(plan, moments)
    noise = {span: rng.integers(-(10**6), 10**6, 3)[np.array([[0, 1], [1, 2]])] for span in releases}
    totals = totals_of(
        plan, {n: replace(release, answer=release.lattice + noise[n]) for n, release in releases.items()}
    )
    worst = 0.0
    for count, total in totals.items():
        weights = [Fraction(c) for c in plan.inverse(count)][::-1]
        exact = sum((w * z for w, z in zip(weights, noise.values(), strict=False)), start=0 * moments[0])
        error = np.abs((total.lattice - moments[:count].sum(0) - exact).astype(np.float64)).max()
        assert error <= 32 * sum(plan.inverse(count))
        worst = max(worst, error)
    assert worst > 0.5  # one rounding alone


def test_a_window_is_added_to_nothing_that_may_be_of_rows_it_read() -> None:
    """Its releases read earlier periods too: with another release of these, the guarantee is not the weakest one."""
    plan = square_root(4)
    window = window_of(plan, releases_of(plan, np.ones((4, 2, 2), np.int64)), 2)
    earlier = replace(window, release_id="r-other", releases=(), extents=(Coverage("d" * 32, 0, 1, "day 0", "day 0"),))
    with pytest.raises(RefusedError, match="contain the same rows"):
        combined([window, earlier])
    with pytest.raises(UsageError, match="differ in their window"):
        combined([window, replace(earlier, window=None)])
    elsewhere = replace(earlier, extents=(Coverage("e" * 32, 0, 4, "day 0", "day 3"),))
    assert combined([window, elsewhere], disjoint=True).window == 2


def test_a_total_of_other_releases_than_its_own_is_refused() -> None:
    """By periods, weights, number of releases, guarantee and noise, which later totals do not check again."""
    plan = square_root(3)
    releases = releases_of(plan, np.ones((3, 2, 2), np.int64))
    totals, last = totals_of(plan, releases), releases[plan.sum_at(3)]
    for wrong in (replace(last, weights=(9, 9, 9)), replace(last, weights=()), replace(last, extents=())):
        with pytest.raises(DataError, match="r-3 does not contain the periods"):
            next_total(plan, wrong, totals.__getitem__)
    second = totals[2]
    for total in (
        totals[1],
        releases[plan.sum_at(2)],
        replace(second, window=2),
        replace(second, releases=second.releases[1:]),
        replace(second, extents=(Coverage("e" * 32, 0, 2, "day 0", "day 1"),)),
        replace(second, guarantee=totals[1].guarantee),
        replace(second, noise=replace(second.noise, variance_off_diagonal=1.0)),
    ):
        with pytest.raises((DataError, UsageError), match=r"is not the total of 2 periods|differ in their window"):
            next_total(plan, last, {**totals, 2: total}.__getitem__)
    with pytest.raises(RefusedError, match="not private as claimed"):
        next_total(plan, last, {**totals, 2: replace(second, guarantee=None)}.__getitem__)
    with pytest.raises(DataError, match="exceeds 64-bit integers"):
        next_total(plan, last, {**totals, 2: replace(second, answer=second.lattice + (2**63 - 9))}.__getitem__)


def test_a_weighted_sum_is_stored_as_integers_alone_and_is_not_a_second_moment(tmp_path: Path) -> None:
    release = releases_of(banded(2), np.array([[[4, 1], [1, 5]]] * 3))[PeriodSum(1, 3, (32, 64))]
    publish(archive_of(release), tmp_path / "sum.zarr")
    assert {p.name for p in (tmp_path / "sum.zarr").iterdir() if p.is_dir()} == {"lattice"}
    opened = open_release(tmp_path / "sum.zarr")
    assert (opened.weights, opened.rows) == ((32, 64), 23)
    np.testing.assert_array_equal(opened.lattice, release.lattice)
    for refused in (lambda: opened.second_moment, lambda: components(opened, 1), lambda: combined([opened])):
        with pytest.raises(UsageError, match=r"one release of a series.*Use the total"):
            refused()
    assert "2 periods, each added 32 to 64 times: no second moment" in inspect_path(tmp_path / "sum.zarr").describe()
    attributes = tmp_path / "sum.zarr" / "zarr.json"
    sound = json.loads(attributes.read_text())
    changes: tuple[dict[str, list[int]], ...] = ({"weights": []}, {"weights": [64]}, {"weights": [16, 32, 64]})
    for change in changes:  # of two periods
        sound["attributes"]["dpdist"] |= change
        attributes.write_text(json.dumps(sound))
        with pytest.raises(DataError, match="damaged"):
            open_release(tmp_path / "sum.zarr")


@pytest.mark.parametrize("horizon", [1, 7, 100])
def test_every_period_is_in_at_most_one_node_of_each_level(horizon: int) -> None:
    levels = levels_for(horizon)
    assert levels == math.floor(math.log2(horizon)) + 1
    nodes = [node for count in range(1, 2 * horizon + 1) for node in ended(count, levels)]
    for period in range(2 * horizon):
        sizes = [node.stop - node.start for node in nodes if node.start <= period < node.stop]
        assert len(sizes) == len(set(sizes)) <= levels
        assert sizes[0] == 1
    assert max(sum(n.start <= p < n.stop for n in nodes) for p in range(2 * horizon)) == levels  # no level is idle


@settings(max_examples=25)
@given(st.integers(1, 1000), st.integers(1, 12))
def test_a_total_is_a_sum_of_few_released_nodes(count: int, levels: int) -> None:
    nodes = total_of(count, levels)
    edges = [node.start for node in nodes] + [nodes[-1].stop]
    assert edges[0] == 0
    assert edges[-1] == count
    assert edges[1:] == [node.stop for node in nodes]
    assert all(node in ended(node.stop, levels) for node in nodes)
    top = 1 << (levels - 1)
    assert len(nodes) == count // top + (count % top).bit_count()
    trees = [set(node.tree()) for node in nodes]
    assert set().union(*trees) == {node for last in range(1, count + 1) for node in ended(last, levels)}
    assert [len(tree) for tree in trees] == [(2 << node.level) - 1 for node in nodes]
    if count < 2 * top:
        assert variance_factor(count, levels) <= levels * (1 + levels / 2)


@pytest.mark.parametrize(("count", "levels"), [(1, 1), (5, 1), (7, 3), (13, 4), (64, 7)])
def test_a_total_is_what_least_squares_makes_of_all_that_is_published(count: int, levels: int) -> None:
    """NumPy's solver finds the same weights."""
    nodes = [node for root in total_of(count, levels) for node in root.tree()]
    design = np.array([[node.start <= period < node.stop for period in range(count)] for node in nodes], dtype=float)
    weights, *_ = np.linalg.lstsq(design.T, np.ones(count), rcond=None)  # of all that are unbiased, the shortest
    assert float(variance_factor(count, levels)) == pytest.approx(levels * (weights**2).sum())
    ours = [
        node.weight if node == root else Fraction(1 << node.level, (2 << root.level) - 1)
        for root in total_of(count, levels)
        for node in root.tree()
    ]
    np.testing.assert_allclose(np.array(ours, dtype=float), weights, atol=1e-12)


def test_a_year_of_totals_has_the_noise_that_the_literature_gives_it() -> None:
    """Figures of an independent program for 365 periods: root mean square, the worst one, the last."""
    factors = [float(variance_factor(count, 9)) ** 0.5 for count in range(1, 366)]
    assert math.sqrt(sum(f**2 for f in factors) / 365) == pytest.approx(4.69, abs=0.005)
    assert max(factors) == pytest.approx(6.57, abs=0.005)
    assert factors[-1] == pytest.approx(5.71, abs=0.005)


def test_pure_shares_add_up_and_too_little_is_not_divided() -> None:
    assert accounting.share(WHOLE, 3, gaussian=False) == PrivacyLoss(333333, 333333333333)
    for gaussian in (True, False):
        with pytest.raises(UsageError, match="cannot be divided into 9"):
            accounting.share(PrivacyLoss.parse("0.000005", "1e-6"), 9, gaussian=gaussian)


@pytest.mark.parametrize("levels", [1, 3, 4])
def test_the_factor_of_a_person_in_a_tree_is_the_worst_there_is(levels: int) -> None:
    """Every choice of periods, with all their nodes released."""
    count = 12 if levels < 4 else 16
    nodes = [node for last in range(1, count + 1) for node in ended(last, levels)]
    within = np.array([[node.start <= period < node.stop for period in range(count)] for node in nodes]).astype(int)
    for k in (1, 2, 3, 5):
        worst = max((within[:, chosen].sum(axis=1) ** 2).sum() for chosen in combinations(range(count), k))
        assert tree_factor(k, levels) == pytest.approx(math.sqrt(worst / levels))
