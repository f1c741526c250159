"""Persons over time: the accounts of periods bound a person's loss, for any pattern of periods."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from faults.person_attack import MOST, PLANS, audited
from support.person_factors import tree_factor

from dpdist.core.privacy.persons import rows_charged
from dpdist.core.release.series import Toeplitz, Tree, banded, levels_for, square_root
from dpdist.core.rows.units import Unit

NIGHTS = 9
Weights = npt.NDArray[np.int64]


def weights_of(plan: Tree | Toeplitz, nights: int = NIGHTS) -> Weights:
    """Return the multiplicity of each period in each release, (releases, periods)."""
    weights = []
    for count in range(1, nights + 1):
        for node in plan.released(count):
            row = np.zeros(nights, dtype=np.int64)
            row[node.start : node.stop] = node.weights or 1
            weights.append(row)
    return np.array(weights)


def exceeded(weights: Weights, weighted: npt.NDArray[np.bool_], most: int, less: int = 0) -> float:
    """Return the largest loss of a person in ``most`` periods over the mean of the accounts, among all patterns."""
    reads = np.where(weighted, most, (weights > 0).sum(axis=1))
    counted = np.array([rows_charged(most, int(read)) - less for read in reads])
    accounts = (counted[:, None] ** 2 * weights**2).sum(axis=0)
    patterns = [s for k in range(1, most + 1) for s in combinations(range(weights.shape[1]), k)]
    member = np.zeros((len(patterns), weights.shape[1]), dtype=np.int64)
    for i, pattern in enumerate(patterns):
        member[i, list(pattern)] = 1
    lost = ((member @ weights.T) ** 2).sum(axis=1)
    return float((lost * most / np.maximum(member @ accounts, 1)).max())


def test_no_pattern_loses_more_than_the_mean_account_of_its_periods() -> None:
    trees = [weights_of(Tree(levels)) for levels in (1, 2, 4)]
    toeplitz = [weights_of(square_root(NIGHTS)), weights_of(banded(3))]
    everything = np.concatenate([*trees, *toeplitz])
    weighted = np.repeat([False, True], [sum(map(len, trees)), sum(map(len, toeplitz))])
    rng = np.random.default_rng(5)
    for most in (1, 2, 3, 4):
        for each in trees:
            assert exceeded(each, np.zeros(len(each), dtype=bool), most) <= 1
        for each in toeplitz:
            assert exceeded(each, np.ones(len(each), dtype=bool), most) <= 1
        for _ in range(6):  # some are missing, some are made twice, by several jobs
            chosen = rng.integers(len(everything), size=rng.integers(1, 25))
            assert exceeded(everything[chosen], weighted[chosen], most) <= 1
    # and what a person counts for cannot be one less: of equal weights of many periods it is attained
    flat = np.ones((1, NIGHTS), dtype=np.int64)
    for most in (2, 3, 4):
        assert exceeded(flat, np.zeros(1, dtype=bool), most) == 1
        for each in (flat, trees[0]):
            assert exceeded(each, np.zeros(len(each), dtype=bool), most, less=1) > 1


@pytest.mark.parametrize(("most", "factor"), [(7, 6.3), (30, 22.5)])
def test_a_tree_of_a_year_loses_little(most: int, factor: float) -> None:
    levels = levels_for(365)
    squares = sum(rows_charged(most, 1 << level) ** 2 for level in range(levels))
    assert round(math.sqrt(Fraction(squares, levels)), 1) == factor
    assert tree_factor(most, levels) < factor < 1.04 * tree_factor(most, levels)


@pytest.mark.parametrize("form", ["tree", "square root"])
def test_an_attack_by_all_that_is_published_contradicts_the_claim_only_of_rows_alone(form: str) -> None:
    audit = audited(PLANS[form], Unit("person", 1, max_periods=MOST), 3000, 1e-8)
    assert audit.factor < 1
    assert not audit.rejected
    assert audited(PLANS[form], None, 3000, 1e-8).rejected
