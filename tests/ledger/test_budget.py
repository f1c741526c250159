"""A budget that fits are charged to whatever their rows are: nothing is drawn beyond it, and no copy is another."""

from __future__ import annotations

import copy
import os
import pickle
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier
from support.estimator_scene import CLIP, ingested, table

from dpdist import Budget, PrivateCovariance, PrivatePCA
from dpdist.errors import BelowNoiseWarning, DataError, RefusedError, UsageError
from dpdist.ledger.in_memory import Register
from dpdist.mechanisms.gaussian import CalibratedGaussian
from dpdist.privacy.accounting import caps_for, certified
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.release import trusted

pytestmark = pytest.mark.filterwarnings(
    "ignore:Rows of the same number and kind were released"
)  # tests of it watch for it
LOSS: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": CLIP}


def pca(budget: Any, **changed: Any) -> PrivatePCA:
    return PrivatePCA(**{"n_components": 2, **LOSS, **changed, "budget": budget})


def pure(epsilon: str) -> Guarantee:
    return Guarantee(
        Neighbours.REPLACE_ONE, PrivacyLoss.parse(epsilon), None, Arithmetic.INTEGER_EXACT, "dpdist.mechanisms.wishart"
    )


def affordable(budget: Budget, **changed: Any) -> int:
    """Return how many fits of other people each a budget pays for."""
    for count in range(100):
        try:
            pca(budget, **changed).fit(table(count))
        except RefusedError:
            return count
    raise AssertionError


def test_fits_are_charged_whatever_their_rows_are_until_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    draw = trusted.draw_unrecorded

    def watched(*arguments: Any, **options: Any) -> Any:
        drawn.append(1)
        return draw(*arguments, **options)

    monkeypatch.setattr(trusted, "draw_unrecorded", watched)
    budget = Budget(2, "1e-6")
    assert affordable(budget) == len(drawn) == 3  # mu adds up as a root of squares: 4 of them would cost 2.08
    before = repr(budget)
    assert "3 fits charged; left: one gaussian release of epsilon 0." in before
    with pytest.raises(RefusedError, match="costs epsilon 1, delta 1e-06, and of the budget of epsilon 2, delta 1e-06"):
        PrivateCovariance(**LOSS, budget=budget).fit(table()[:, :3])
    assert len(drawn) == 3
    assert repr(budget) == before
    less = Fraction(budget.left.gaussian_micro, 10**6)
    pca(budget, epsilon=str(float(less))).fit(table(7))  # what is said to be left can be had
    assert budget.left.gaussian_micro < 10**4


def test_what_is_paid_for_is_fixed_before_the_first_answer() -> None:
    budget, declared = Budget(2, "1e-6"), Budget(2, "1e-6", pure=1)
    pca(budget).fit(table())
    pca(declared).fit(table(1))
    before = budget.left
    with pytest.raises(RefusedError):
        budget.charge(pure("1"))
    assert budget.left == before
    declared.charge(pure("1"))
    for each in (budget, declared):
        account = each._account
        assert account is not None
        assert account.caps == caps_for(each.loss)
        assert certified(account.caps, each.loss)


def test_a_refused_first_fit_fixes_nothing() -> None:
    budget = Budget("0.5", "1e-6")
    with pytest.raises(RefusedError, match="Nothing was drawn or charged"):
        pca(budget).fit(table())
    with pytest.raises(RefusedError, match=r"left: one gaussian release of epsilon 0\.5"):
        pca(budget, neighbours="add-remove").fit(table())
    pca(budget, neighbours="add-remove", epsilon="0.5").fit(table())
    with pytest.raises(RefusedError, match="neighbours='add-remove'"):
        pca(budget, epsilon="0.1").fit(table(1))


def test_rows_that_are_known_again_are_left_to_the_budget_they_were_charged_to() -> None:
    budget = Budget(10, "1e-6")
    rows = table()
    first, second = pca(budget).fit(rows), pca(budget).fit(rows)
    assert first.release_.extents == second.release_.extents  # the register knows that they are of the same rows
    for other in (Budget(10, "1e-6"), None):
        with pytest.raises(RefusedError, match=r"not charged to this budget|released 2 times before") as refused:
            pca(other).fit(rows)
        # what is named now was no limit on the answers that are out
        assert re.search(r"fixed before the first answer|only if no request followed", str(refused.value))
        assert "To accept" not in str(refused.value)
    assert repr(budget).count("2 fits") == 1
    other = Budget(10, "1e-6")
    with (
        pytest.warns(UserWarning, match="released 2 times"),
        pytest.raises(RefusedError, match="of the budget of epsilon 0"),
    ):
        pca(Budget("0.5", "1e-6"), budget_epsilon=10).fit(rows)  # both have to suffice
    with pytest.raises(RefusedError, match="budget_epsilon="):
        pca(other, budget_epsilon="1.2").fit(rows)
    with pytest.warns(UserWarning, match="released 2 times"):
        pca(other, budget_epsilon=10).fit(rows)
    assert "1 fit charged" in repr(other)


def test_one_budget_for_rows_of_one_shape_is_not_warned_of() -> None:
    budget = Budget(10, "1e-6")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", BelowNoiseWarning)
        for seed in range(3):
            pca(budget).fit(table(seed))
        with pytest.raises(UserWarning, match="released 3 times"):
            pca(None).fit(table(3))
        with pytest.raises(UserWarning, match="released 3 times"):
            pca(Budget(10, "1e-6")).fit(table(3))
    assert "3 fits" in repr(budget)


def test_every_copy_in_a_process_is_the_budget_itself() -> None:
    budget = Budget(4, "1e-6")
    asked = pca(budget)
    for same in (copy.copy(budget), copy.deepcopy(budget), clone(asked).budget, copy.deepcopy(asked).budget):
        assert same is budget
    assert asked.get_params()["budget"] is budget
    assert clone(make_pipeline(asked, DecisionTreeClassifier())).get_params()["privatepca__budget"] is budget
    other = Budget(1, "1e-6")
    assert clone(asked).set_params(budget=other).budget is other
    assert "left: one gaussian release of epsilon 4" in repr(asked)


def test_a_budget_cannot_be_declared_anew() -> None:
    budget = Budget(2, "1e-6")
    pca(budget).fit(table())
    copied = pickle.loads(pickle.dumps(budget))  # noqa: S301 - written here
    before = repr(budget)
    for each in (budget, copied):
        with pytest.raises(RefusedError, match="declared once"):
            Budget.__init__(each, 9, "1e-6")
    assert repr(budget) == before
    assert "a copy" in repr(copied)


def test_all_fits_of_a_cross_validation_are_charged_to_one_budget() -> None:
    rows, labels = table(), np.arange(300) % 2
    budget = Budget("2.2", "1e-6")
    pipeline = make_pipeline(pca(budget), DecisionTreeClassifier())
    with pytest.warns(FitFailedWarning, match=r"1 fits failed[\s\S]*and of the budget of epsilon 2.2"):
        scores = cross_val_score(pipeline, rows, labels, cv=5)
    assert np.isnan(scores).tolist() == [False] * 4 + [True]
    assert "4 fits charged" in repr(budget)
    larger = Budget(10, "1e-6")
    search = GridSearchCV(
        make_pipeline(pca(larger), DecisionTreeClassifier()), {"privatepca__n_components": [1, 2]}, cv=2
    )
    search.fit(table(1), labels)
    assert "5 fits charged" in repr(larger)
    assert search.best_estimator_[0].budget is larger


def test_a_copy_in_another_process_pays_for_nothing() -> None:
    budget = Budget(4, "1e-6")
    fitted = pca(budget).fit(table())
    arrived = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - written one line before
    assert np.array_equal(arrived.components_, fitted.components_)  # a fitted estimator can be published
    assert repr(arrived.budget) == "<Budget of epsilon 4, delta 1e-06; a copy, which pays for nothing>"
    for again in (arrived, clone(arrived), pickle.loads(pickle.dumps(arrived))):  # noqa: S301
        with pytest.raises(RefusedError, match="copy of a budget in another process"):
            again.fit(table(1))
    with pytest.raises(RefusedError, match="copy"):
        _ = arrived.budget.left
    assert "1 fit charged" in repr(budget)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded")
def test_a_forked_process_has_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(4, "1e-6")
    with budget._lock:  # as another thread may hold it at that moment, for ever in the child
        child = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda: child)
        with pytest.raises(RefusedError, match="copy"):
            budget.charge(pure("1"))
        assert "a copy" in repr(budget)


def test_of_fits_at_the_same_time_no_more_are_drawn_than_are_paid_for() -> None:
    budget = Budget(2, "1e-6")

    def fit(seed: int) -> bool:
        try:
            pca(budget).fit(table(seed)[: 100 + seed])
        except RefusedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(fit, range(12))) == 3
    assert "3 fits charged" in repr(budget)


def test_a_charge_stays_whatever_happens_to_the_draw(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any) -> Any:
        raise MemoryError

    budget = Budget(2, "1e-6")
    with monkeypatch.context() as patch:
        patch.setattr(CalibratedGaussian, "draw_band", dies)
        with pytest.raises(MemoryError):
            pca(budget).fit(table())
    assert "1 fit charged" in repr(budget)
    assert len(register._fits) == 1


def test_what_fails_before_the_charge_costs_nothing() -> None:
    budget = Budget(2, "1e-6")
    rows = table()
    rows[3, 3] = np.nan
    with pytest.raises(DataError):
        pca(budget).fit(rows)
    with pytest.raises(UsageError):
        pca(budget, n_components=99).fit(table())
    assert "0 fits charged; left: one gaussian release of epsilon 2 " in repr(budget)


def test_a_rows_zarr_has_its_ledger_and_no_other_budget(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="declared once, in its ledger: leave budget,"):
        pca(Budget(2, "1e-6")).fit(ingested(table(), tmp_path))


@pytest.mark.parametrize("given", [2, "2", PrivacyLoss.parse("2", "1e-6"), Budget])
def test_what_is_no_budget_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=r"dpdist\.Budget"):
        pca(given).fit(table())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, 1e-6, 2), "positional"),
        ((0,), "positive"),
        ((-1,), "not negative"),
        (("a lot",), "a number"),
        ((1, None), "a number"),
        ((1, 1), "below 1"),
        ((1, "1e-19"), "units of 1e-18"),
        ((1, 0, {"pure": 1}), "without a delta"),
        ((1, "1e-6", {"pure": 2}), "from 0 to the"),
        ((1, "1e-6", {"delta_reserve": "1e-5"}), r"\(delta_reserve\)"),
        ((1, "1e-6", {"pure": -1}), "pure must be"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(arguments: tuple[Any, ...], words: str) -> None:
    *plain, last = arguments
    named = last if isinstance(last, dict) else {}
    with pytest.raises((UsageError, DataError, TypeError), match=words) as refused:
        Budget(*(plain if named else arguments), **named)
    assert "--" not in str(refused.value)
