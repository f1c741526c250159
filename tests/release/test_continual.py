"""Continual release: every row in few nodes, every total a sum of few, and shares that compose to the whole."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdist.errors import UsageError
from dpdist.mechanisms.gaussian import Gaussian
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.privacy import accounting
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release.series import ended, levels_for, person_factor, total_of, variance_factor

WHOLE = PrivacyLoss.parse("1", "1e-6")


@pytest.mark.parametrize("horizon", [1, 2, 7, 64, 100])
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


@pytest.mark.parametrize(("count", "levels"), [(1, 1), (5, 1), (2, 2), (7, 3), (13, 4), (22, 3), (64, 7)])
def test_a_total_is_what_least_squares_makes_of_all_that_is_published(count: int, levels: int) -> None:
    """NumPy's own solver finds no estimate of less variance, and the same weights."""
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
    """Figures of an independent program for 365 nights: root mean square, the worst night, the last."""
    factors = [float(variance_factor(count, 9)) ** 0.5 for count in range(1, 366)]
    assert math.sqrt(sum(f**2 for f in factors) / 365) == pytest.approx(4.69, abs=0.005)
    assert max(factors) == pytest.approx(6.57, abs=0.005)
    assert factors[-1] == pytest.approx(5.71, abs=0.005)


@pytest.mark.parametrize("count", [2, 20])
@pytest.mark.parametrize("loss", [PrivacyLoss.parse("0.05", "1e-9"), PrivacyLoss.parse("8", "1e-3")])
def test_gaussian_shares_compose_to_the_whole_and_waste_next_to_nothing(loss: PrivacyLoss, count: int) -> None:
    part = accounting.share(loss, count, gaussian=True)
    query = LatticeQuery(4, 4**16, Neighbours.REPLACE_ONE)
    guarantee = Gaussian().calibrate(query, part).guarantee
    assert accounting.fits([guarantee] * count, loss)
    assert not accounting.fits([guarantee] * (count + 1), loss)
    ideal = accounting.gaussian_sigma(loss) * math.sqrt(count)
    assert ideal <= accounting.gaussian_sigma(part) <= ideal * 1.001


def test_shares_compose_to_the_whole_by_an_independent_account() -> None:
    """dp-accounting's own numerical composition of the calibrated noise agrees, to its discretisation."""
    sigma = accounting.gaussian_sigma(accounting.share(WHOLE, 9, gaussian=True))
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(sigma), 9))
    assert accountant.get_epsilon(WHOLE.delta) == pytest.approx(1.0, rel=1e-3)


def test_pure_shares_add_up() -> None:
    part = accounting.share(PrivacyLoss.parse("1"), 9, gaussian=False)
    assert part.epsilon_micro == 111111
    both = accounting.share(WHOLE, 3, gaussian=False)
    assert both == PrivacyLoss(333333, 333333333333)
    assert accounting.share(WHOLE, 1, gaussian=False) == WHOLE


@pytest.mark.parametrize(("loss", "gaussian"), [("0.000005", True), ("0.000005", False)])
def test_too_little_to_divide_is_refused(loss: str, gaussian: bool) -> None:
    with pytest.raises(UsageError, match="cannot be divided into 9"):
        accounting.share(PrivacyLoss.parse(loss, "1e-6"), 9, gaussian=gaussian)


def test_the_mu_of_a_row_is_what_the_tree_promises() -> None:
    """The sum over the nodes of any period of mu² is at most mu² of the whole, exactly, as fractions."""
    levels = levels_for(365)
    sigma = Fraction(accounting.gaussian_sigma(accounting.share(WHOLE, levels, gaussian=True)))
    assert levels / sigma**2 <= 1 / Fraction(accounting.gaussian_sigma(WHOLE)) ** 2


# --- somebody with rows in several periods ----------------------------------------------------------------------------


def squared_change(periods: tuple[int, ...], count: int, levels: int) -> int:
    """Return the sum, over all nodes of so many periods, of the square of the rows that somebody has in it."""
    nodes = [node for last in range(1, count + 1) for node in ended(last, levels)]
    return sum(sum(node.start <= p < node.stop for p in periods) ** 2 for node in nodes)


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_the_factor_of_a_person_is_the_worst_there_is(levels: int) -> None:
    """Every choice of periods, out of so many that all their nodes are released."""
    count = 12 if levels < 4 else 16
    for k in (1, 2, 3, 5):
        worst = max(squared_change(chosen, count, levels) for chosen in combinations(range(count), k))
        assert person_factor(k, levels) == pytest.approx(math.sqrt(worst / levels))


@pytest.mark.parametrize("levels", [2, 5, 9])
def test_a_person_with_several_rows_is_not_protected_by_a_square_root(levels: int) -> None:
    top = 1 << (levels - 1)
    for k in (2, 3, 10, 100, 365):
        assert person_factor(k, 1) == pytest.approx(math.sqrt(k))
        assert math.sqrt(k) < person_factor(k, levels) <= k
    assert person_factor(top, levels) > top / math.sqrt(levels)  # all of them are in the largest node
