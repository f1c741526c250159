"""Fits in memory are charged to their budget, and rows are recognised in all documented disguises."""

from __future__ import annotations

import copy
import itertools
import math
import os
import pickle
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier
from support import ledgers
from support.estimator_scene import CLIP, ingested, table

from dpdist import Budget, PrivateCovariance, PrivatePCA
from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ledger import fingerprints
from dpdist.core.ledger.fingerprints import Fingerprints, log_chance
from dpdist.core.ledger.register import Register
from dpdist.core.mechanisms.gaussian import CalibratedGaussian
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release import trusted

pytestmark = pytest.mark.filterwarnings("ignore:The same number of rows was released")
LOSS: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": CLIP}
PURE = ledgers.pure()


def pca(budget: Any, **changed: Any) -> PrivatePCA:
    return PrivatePCA(**{"n_components": 2, **LOSS, **changed, "budget": budget})


def test_fits_are_charged_whatever_their_rows_are_until_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Mock(wraps=trusted.conclude)
    monkeypatch.setattr(trusted, "conclude", draw)
    budget = Budget(2, "1e-6")
    with suppress(RefusedError), warnings.catch_warnings():
        warnings.filterwarnings("error", "Rows of the same number")  # one budget for rows of one shape
        for seed in range(100):
            pca(budget).fit(table(seed))
    assert draw.call_count == 3  # mu adds up as a root of squares: four fits would cost 2.08
    before = repr(budget)
    assert "3 fits charged; left: one more release of epsilon 0." in before
    with pytest.raises(RefusedError, match="costs epsilon 1, delta 1e-06; the budget is epsilon 2, delta 1e-06"):
        PrivateCovariance(**LOSS, budget=budget).fit(table()[:, :3])
    assert draw.call_count == 3
    assert repr(budget) == before
    less = Fraction(budget.left.gaussian_micro, 10**6)
    pca(budget, epsilon=str(float(less))).fit(table(7))  # the reported rest can be spent
    assert budget.left.gaussian_micro < 10**4


def test_the_limits_of_a_budget_are_fixed_before_the_first_answer() -> None:
    budget, declared = Budget(2, "1e-6"), Budget(2, "1e-6", pure=1)
    for seed, account in enumerate((budget, declared)):
        pca(account).fit(table(seed))
    with pytest.raises(RefusedError):
        budget.charge(PURE)
    declared.charge(PURE)
    # a refused first fit fixes nothing
    budget = Budget("0.5", "1e-6")
    with pytest.raises(RefusedError, match="Nothing was drawn or charged"):
        pca(budget).fit(table(2))
    with pytest.raises(RefusedError, match=r"left: one more release of epsilon 0\.5"):
        pca(budget, neighbours="add-remove").fit(table(2))
    pca(budget, neighbours="add-remove", epsilon="0.5").fit(table(2))
    with pytest.raises(RefusedError, match="neighbours='add-remove'"):
        pca(budget, epsilon="0.1").fit(table(3))


def test_rows_that_are_known_again_are_left_to_the_budget_they_were_charged_to() -> None:
    budget, other, rows = Budget(10, "1e-6"), Budget(11, "1e-6"), table()
    first, second = pca(budget).fit(rows), pca(budget, name="second").fit(rows)
    assert first.release_.extents != second.release_.extents  # whether the rows are the same is private
    assert not pca(None).fit(rows).fresh_  # returned again, and charged to none
    with pytest.raises(RefusedError, match="without charging this budget"):  # which cannot promise it
        pca(other).fit(rows)
    for wrong in (other, None):
        with pytest.raises(RefusedError, match=r"without charging this budget|released 2 times before") as refused:
            pca(wrong, name="third").fit(rows)
        # a budget named now did not limit earlier answers
        assert re.search(r"fixed before the first answer|only if no request depended", str(refused.value))
    with pytest.raises(RefusedError, match="the budget is epsilon 0"):
        pca(Budget("0.5", "1e-6"), budget_epsilon=10, name="third").fit(rows)  # both must suffice
    with pytest.raises(RefusedError, match="budget_epsilon="):
        pca(other, budget_epsilon="1.2", name="third").fit(rows)
    again = Budget(10, "1e-6")  # a cell that declares its budget again continues it, with a limit as without
    pca(again, budget_epsilon=20, name="cell").fit(rows)
    assert "3 fits charged" in repr(again)
    with pytest.warns(UserWarning, match="released 3 times"):
        pca(other, budget_epsilon=10, name="third").fit(rows)
    assert "1 fit charged" in repr(other)


def test_all_fits_of_a_cross_validation_are_charged_to_one_budget_as_every_copy_in_a_process_is() -> None:
    rows, labels = table(), np.arange(300) % 2
    budget, larger = Budget("2.2", "1e-6"), Budget(10, "1e-6")
    for same in (copy.copy(budget), copy.deepcopy(budget), clone(pca(budget)).budget):
        assert same is budget
    with pytest.warns(FitFailedWarning, match=r"1 fits failed[\s\S]*the budget is epsilon 2.2"):
        scores = cross_val_score(make_pipeline(pca(budget), DecisionTreeClassifier()), rows, labels, cv=5)
    assert np.isnan(scores).tolist() == [False] * 4 + [True]
    assert "4 fits charged" in repr(budget)
    pipeline = make_pipeline(pca(larger), DecisionTreeClassifier())
    search = GridSearchCV(pipeline, {"privatepca__n_components": [1, 2]}, cv=2).fit(table(1), labels)
    assert "3 fits charged" in repr(larger)  # two folds and all rows: both numbers of components have one release
    assert search.best_estimator_[0].budget is larger


def test_a_copy_in_another_process_cannot_be_charged_and_no_budget_is_declared_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = Budget(4, "1e-6")
    fitted = pca(budget).fit(table())
    arrived = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - written one line before
    assert np.array_equal(arrived.components_, fitted.components_)  # a fitted estimator can be published
    assert repr(arrived.budget) == "<Budget of epsilon 4, delta 1e-06; a copy, which cannot be charged>"
    for again in (arrived, clone(arrived), pickle.loads(pickle.dumps(arrived))):  # noqa: S301
        with pytest.raises(RefusedError, match="copy of a budget, pickled or in another process"):
            again.fit(table(1))
    with pytest.raises(RefusedError, match="copy"):
        _ = arrived.budget.left
    for declared in (budget, arrived.budget):
        with pytest.raises(RefusedError, match="declared once"):
            Budget.__init__(declared, 9, "1e-6")
    assert "1 fit charged" in repr(budget)
    child = os.getpid() + 1
    with budget._charges.lock:  # another thread may hold it, so that a fork can never get it
        monkeypatch.setattr(os, "getpid", lambda: child)
        with pytest.raises(RefusedError, match="copy"):
            budget.charge(PURE)
        assert "a copy" in repr(budget)


def test_a_charge_stays_if_the_draw_dies_and_earlier_failures_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    budget, rows = Budget(2, "1e-6"), table()
    rows[3, 3] = np.nan
    with pytest.raises(DataError):
        pca(budget).fit(rows)
    assert "0 fits charged" in repr(budget)
    monkeypatch.setattr(CalibratedGaussian, "draw_band", ledgers.dies)
    with pytest.raises(ledgers.DiedError):
        pca(budget).fit(table())
    assert "1 fit charged" in repr(budget)


def test_values_that_are_no_budget_and_budgets_of_other_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="declared once, in its ledger: leave out budget,"):
        pca(Budget(2, "1e-6")).fit(ingested(table(), tmp_path))
    with pytest.raises(UsageError, match=r"dpdist\.Budget"):
        pca(PrivacyLoss.parse("2", "1e-6")).fit(table())
    with pytest.raises(UsageError, match=r"\(delta_reserve\)"):
        Budget(1, "1e-6", delta_reserve="1e-5")


Table = npt.NDArray[np.float64]
KEY = bytes(range(16))
N, D = 300, 8
RNG = np.random.default_rng


def normal(seed: int = 0, n: int = N, d: int = D) -> Table:
    return RNG(seed).normal(size=(n, d)) + 1


def known(rows: Table, other: Table) -> bool:
    return Fingerprints.of(rows, KEY).share_rows(Fingerprints.of(np.ascontiguousarray(other), KEY))


KNOWN: dict[str, Callable[[Table], Table]] = {
    "the same": lambda x: x,
    "one row of them": lambda x: x[5:6],
    "one row among others": lambda x: np.concatenate([normal(9), x[5:6]]),
    "in another order": lambda x: RNG(2).permutation(x),
    "one half": lambda x: x[::2],
}
UNKNOWN: dict[str, Callable[[Table], Table]] = {
    "others": lambda _: normal(9),
    "float32": lambda x: x.astype(np.float32).astype(np.float64),
    "another unit": lambda x: x * 1000,
    "columns in another order": lambda x: x[:, ::-1],
    "no rows": lambda x: x[:0],
    "zeros": np.zeros_like,
    "a column left out": lambda x: x[:, 1:],
}


def test_rows_are_recognised_in_the_documented_cases_and_no_others() -> None:
    recognised = {name: known(normal(), change(normal())) for name, change in {**KNOWN, **UNKNOWN}.items()}
    assert recognised == dict.fromkeys(KNOWN, True) | dict.fromkeys(UNKNOWN, False)


@pytest.mark.parametrize("pool", [[2] * 6, [2, 2, 2, 2, 2, 1, 1], [3, 3, 2, 2, 1, 1], [5, 3, 2, 2], [9, 2, 1]])
def test_the_bound_on_chance_holds_for_every_split_of_a_table(pool: list[int]) -> None:
    """Over all splits of twelve rows, equally likely, a bound below t has probability at most t, for all t."""
    rows = np.repeat(np.arange(len(pool), dtype=np.uint64), pool)
    assert len(rows) == 12
    too_small = False
    for size in (3, 5, 6):
        bounds = []
        for chosen in itertools.combinations(range(12), size):
            inside = np.isin(np.arange(12), chosen)
            bounds.append(math.exp(log_chance(*map(Fingerprints.of_keys, (rows[inside], rows[~inside])))))
        ordered = np.sort(bounds)
        share = np.searchsorted(ordered, ordered, side="right") / len(bounds)
        assert (share <= ordered * (1 + 1e-12)).all()
        without = np.where(ordered < 1, ordered / math.sqrt(8 * size * (12 - size) / 12), 1)
        too_small |= bool((share > without).any())
    # the twin: without the factor for the sizes, it is not a bound
    assert too_small or pool != [2] * 6


CATEGORIES: dict[str, Callable[[np.random.Generator], Table]] = {
    "counts": lambda rng: rng.geometric(0.05, size=(N, 2)).astype(np.float64),
    "genotypes": lambda rng: rng.binomial(2, np.linspace(0.05, 0.5, 12), size=(N, 12)).astype(np.float64),
    "drawn again": lambda rng: rng.normal(size=(N, 4))[rng.integers(0, N, size=N)],
}


@pytest.mark.parametrize("kind", CATEGORIES)
def test_a_random_split_of_equal_rows_is_not_taken_for_shared_rows(kind: str) -> None:
    """At level .05 instead of 1e-4, more alarms than this in 100 splits have probability 1e-6."""
    rng, level = RNG(4), math.log(0.05)
    alarms = twin = 0
    for _ in range(100):
        rows = rng.permutation(CATEGORIES[kind](rng))
        first = Fingerprints.of(rows[:150], KEY)
        alarms += log_chance(first, Fingerprints.of(rows[150:], KEY)) < level
        twin += log_chance(first, Fingerprints.of(np.concatenate([rows[:100], rows[150:200]]), KEY)) < level
    most = int(stats.binom.ppf(1 - 1e-6, 100, 0.05))
    assert alarms <= most
    assert twin > most  # two thirds of the rows shared


@pytest.mark.parametrize("columns", [3, 10, 20])
def test_tables_of_yes_and_no_of_other_people_are_not_the_same_rows_and_the_same_table_is(columns: int) -> None:
    """Most values of one table are in the other, but the people are different."""
    shares = RNG(7).uniform(0.1, 0.9, columns)
    for seed in range(5):
        one, two = ((RNG(seed + 100 * i).random((1000, columns)) < shares).astype(float) for i in (1, 2))
        assert len(np.unique(one, axis=0)) < 1000
        assert not known(one, two), seed
        assert known(one, RNG(seed).permutation(one)), seed
    if columns == 20:
        assert known(one, one[::2])  # also a part of it, if rows differ enough


def test_a_sketch_finds_a_part_of_a_large_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "KEPT", 64)
    rows = normal(4, n=2000, d=3)
    complete = Fingerprints.of(rows, KEY)
    assert len(complete.keys) == 64
    parts = Fingerprints.union([Fingerprints.of(part, KEY) for part in np.array_split(rows, 13)])
    assert complete.same_rows(parts)
    part = RNG(4).permutation(rows)[:800]
    assert complete.share_rows(Fingerprints.of(part, KEY))  # missed with probability .6^64, 6e-15
    assert not complete.share_rows(Fingerprints.of(normal(5, n=2000, d=3), KEY))


def test_equal_values_have_equal_fingerprints_whatever_their_bits() -> None:
    rows = normal()
    rows[rows < 0] = 0
    rows[3, 3] = np.nan
    other = np.where(rows == 0, -0.0, rows)
    other[3, 3] = np.copysign(np.nan, -1)
    assert other.tobytes() != rows.tobytes()
    exact = Fingerprints.of(rows, KEY).keys
    assert np.array_equal(Fingerprints.of(other, KEY).keys, exact)
    assert np.array_equal(Fingerprints.of(np.asfortranarray(rows[::-1]), KEY).keys, exact)
    assert len(exact) == len(rows)


def test_fingerprints_reveal_nothing_without_the_key() -> None:
    one, other = Register(), Register()
    first, second = (Fingerprints.of(normal(), register.key) for register in (one, other))
    assert not first.share_rows(second)
    assert not np.intersect1d(first.keys, second.keys).size
    assert "key" not in repr(one)
