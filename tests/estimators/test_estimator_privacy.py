"""What fits in memory may cost: rows are known again in every guise and charged once; what a fitted estimator holds."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from faults import sentinel
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.tree import DecisionTreeClassifier
from support.estimator_scene import CLIP, COLUMNS, HELD, Table, table

from dpdist import Budget, PrivateCovariance, PrivatePCA, PrivateRidge
from dpdist.errors import BelowNoiseWarning, DataError, PrivacyLeakWarning, RefusedError
from dpdist.estimators import fit
from dpdist.ledger.in_memory import Fingerprints, Register
from dpdist.mechanisms.gaussian import CalibratedGaussian
from dpdist.mechanisms.registry import calibrated
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.privacy.accounting import composed_epsilon_micro, fits
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release import combine, trusted

pytestmark = pytest.mark.filterwarnings(
    "ignore:Rows of the same number and kind were released"
)  # tests of it watch for it
LOSS: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": CLIP}
LEVEL = 1e-6
"""False-alarm rate of a statistical test."""


def pca(**changed: Any) -> PrivatePCA:
    return PrivatePCA(**{"n_components": 2, **LOSS, **changed})


GUISES: dict[str, Callable[[Table], Any]] = {
    **HELD,
    "a copy": lambda rows: rows.copy(),
    "backwards": lambda rows: rows[::-1],
    "shuffled": lambda rows: np.random.default_rng(5).permutation(rows),
    "one half": lambda rows: rows[:150],
    "one row": lambda rows: rows[7:8],
    "with others": lambda rows: np.concatenate([rows[7:8], table(9)]),
    "other zeros": lambda rows: np.where(rows == 0, -0.0, rows),
    "other chunks": lambda rows: da.from_array(rows, chunks=(7, 2))[::-1],
}


@pytest.mark.parametrize("guise", GUISES)
def test_rows_that_were_released_are_known_again_in_every_guise(register: Register, guise: str) -> None:
    pca().fit(table())
    with pytest.raises(RefusedError, match="released once before in this process"):
        pca().fit(GUISES[guise](table()))
    with pytest.raises(RefusedError, match="released once before in this process"):
        PrivateCovariance(**LOSS).fit(GUISES[guise](table()))
    assert len(register._fits) == 1


def test_values_in_another_type_are_the_same_values() -> None:
    rows = table().astype(np.float32)
    pca().fit(rows)
    with pytest.raises(RefusedError, match="released once before"):
        pca().fit(rows.astype(np.float64))


def test_a_second_release_of_as_many_rows_of_a_kind_comes_with_what_both_cost(register: Register) -> None:
    def told(x: Any, **changed: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pca(**changed).fit(x)
        return [str(each.message) for each in caught if not issubclass(each.category, BelowNoiseWarning)]

    assert told(table()) == []
    (once,) = told(table(1))  # other people, as far as the register sees
    joint = composed_epsilon_micro([fit.guarantee for fit in register._fits], 10**12)
    assert (
        f"released once before in this process. If they are of the same people, all these releases together cost "
        f"epsilon {joint / 1e6}, delta 1e-06" in once
    )
    assert 1.3 < joint / 1e6 < 1.5
    (twice,) = told(da.from_array(table(2).astype(np.float32), chunks=(100, 3)))
    assert "released 2 times" in twice
    (accepted,) = told(table(), budget_epsilon=10)  # also where they are known again
    assert "released 3 times" in accepted
    assert told(table(3)[:-1]) == told(table(4)[:, :-1]) == told(np.ones((300, 7), dtype=int)) == []
    (other,) = told(table(5), neighbours="add-remove")
    assert "cannot be added" in other
    (pure,) = told(table(6)[:-1], epsilon="0.25", delta=None)
    assert "cost epsilon " in pure
    with warnings.catch_warnings():  # as an error it stops the fit before it is charged
        warnings.simplefilter("error")
        count = len(register._fits)
        with pytest.raises(UserWarning, match="Rows of the same number"):
            pca().fit(table(7))
    assert len(register._fits) == count


def _unpickled(estimator: PrivatePCA) -> Any:
    return pickle.loads(pickle.dumps(estimator))  # noqa: S301 - written one line before


@pytest.mark.parametrize("again", [lambda e: e, clone, _unpickled, lambda _: pca(clip=9)])
def test_no_estimator_releases_the_same_rows_twice(again: Any) -> None:
    first = pca().fit(table())
    kept = first.components_.copy()
    with pytest.raises(RefusedError):
        again(first).fit(table())
    assert np.array_equal(first.components_, kept)  # a refused fit takes away nothing that was paid for
    assert first.n_features_in_ == COLUMNS


def test_a_refused_fit_of_other_columns_leaves_the_estimator_as_it_was() -> None:
    rows = table()
    PrivateCovariance(**LOSS).fit(rows[:, :3])
    first = pca().fit(rows)
    with pytest.raises(RefusedError):
        first.fit(rows[:, :3])
    assert first.transform(rows).shape == (len(rows), 2)


def test_the_joint_cost_is_told_and_can_be_accepted(register: Register) -> None:
    pca().fit(table())
    for more in (pca(), pca(epsilon="0.5", delta=None), pca(neighbours="replace-one", mechanism="laplace", delta=None)):
        with pytest.raises(RefusedError) as refused:
            more.fit(table())
        told = re.search(r"budget_epsilon=(\S+), budget_delta=([^\s]+)\.$", str(refused.value))
        assert told is not None
        epsilon, delta = told.groups()
        less = f"{float(epsilon) - 1e-6:.6f}"
        with pytest.raises(RefusedError):
            more.set_params(budget_epsilon=less, budget_delta=delta).fit(table())
        more.set_params(budget_epsilon=epsilon, budget_delta=delta).fit(table())
        guarantees = [fit.guarantee for fit in register._fits]
        assert fits(guarantees, PrivacyLoss.parse(epsilon, delta))
    assert len({fit.dataset for fit in register._fits}) == 1


def test_a_joint_cost_beyond_reason_is_refused_in_words() -> None:
    asked = pca(epsilon=6 * 10**5)
    asked.fit(table())
    with pytest.raises(RefusedError, match=r"more than a million; it is.*from_release"):
        asked.fit(table())
    with pytest.raises(
        RefusedError, match=r"This release costs epsilon 1, delta 1e-06, and the budget is epsilon 0\.5"
    ):
        pca(budget_epsilon="0.5").fit(table(1))


def test_a_loss_under_another_relation_is_not_added() -> None:
    pca().fit(table())
    with pytest.raises(RefusedError, match="neighbours='replace-one'"):
        pca(neighbours="add-remove", budget_epsilon=1000).fit(table())


def test_releases_of_shared_rows_are_not_taken_for_disjoint_ones() -> None:
    rows = table()
    first, second = pca().fit(rows[:100]), pca().fit(rows[100:])
    both = pca(budget_epsilon=10).fit(rows)
    assert first.release_.extents != second.release_.extents
    assert set(both.release_.extents) == {*first.release_.extents, *second.release_.extents}
    assert combine.combined([first.release_, second.release_]).rows == len(rows)
    with pytest.raises(RefusedError, match="same rows"):
        combine.combined([first.release_, both.release_])


def test_a_cross_validation_is_refused_at_its_second_fold() -> None:
    rows, labels = table(), np.arange(300) % 2
    pipeline = make_pipeline(pca(), DecisionTreeClassifier())
    with pytest.warns(FitFailedWarning, match="4 fits failed"):
        scores = cross_val_score(pipeline, rows, labels, cv=5)
    assert np.isnan(scores).sum() == 4
    search = GridSearchCV(
        make_pipeline(pca(budget_epsilon=100), DecisionTreeClassifier()), {"privatepca__n_components": [1, 2]}, cv=2
    )
    assert search.fit(table(1), labels).best_score_ > 0


def test_a_charge_stays_whatever_happens_to_the_draw(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(CalibratedGaussian, "draw_band", dies)
        with pytest.raises(MemoryError):
            pca().fit(table())
    assert len(register._fits) == 1
    with pytest.raises(RefusedError):
        pca().fit(table())


def test_nothing_is_drawn_before_it_is_charged(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[int] = []
    draw = trusted.draw_unrecorded

    def watched(*arguments: Any, **options: Any) -> Any:
        charged.append(len(register._fits))
        return draw(*arguments, **options)

    monkeypatch.setattr(trusted, "draw_unrecorded", watched)
    pca().fit(table())
    assert charged == [1]


def test_of_fits_at_the_same_time_one_is_charged(register: Register) -> None:
    def fit(_: int) -> bool:
        try:
            pca().fit(table())
        except RefusedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(fit, range(16))) == 1
    assert len(register._fits) == 1


@pytest.mark.parametrize("lazy", [False, True])
def test_rows_that_are_refused_for_their_values_are_not_charged(register: Register, lazy: bool) -> None:
    rows = table()
    rows[200, 3] = np.nan
    with pytest.raises(DataError, match="NaN"):
        pca().fit(da.from_array(rows, chunks=50) if lazy else rows)
    assert not register._fits


def test_a_fitted_estimator_holds_nothing_private(register: Register) -> None:
    rows = sentinel.planted_table()
    asked: dict[str, Any] = {"epsilon": 1000, "delta": 1e-6, "clip": sentinel.CLIP, "grid_bits": sentinel.BITS}
    found: list[Any] = [
        PrivatePCA(2, **asked).fit(rows),
        PrivateCovariance(**asked, centre="none", budget_epsilon=3000).fit(da.from_array(rows, chunks=(40, 72))),
    ]
    exact = sentinel.exact_moment(rows)
    assert not np.array_equal(found[0].release_.lattice, exact)
    for each in found:
        content = pickle.dumps(each)
        assert not sentinel.holds(content)
        assert register.key not in content
        keys = Fingerprints.of(rows, register.key).keys
        assert len(keys) > 300
        assert not any(key.tobytes() in content for key in keys)
    # the same search finds what is there
    assert sentinel.holds(pickle.dumps([found[0], rows]))
    assert sentinel.holds(pickle.dumps([found[0], exact]))


def test_under_add_remove_nothing_tells_the_number_of_rows() -> None:
    found = pca(neighbours="add-remove", centre="private", epsilon=5).fit(table()[:299])
    told = vars(found.release_) | vars(found)
    assert 299 not in [value for value in told.values() if isinstance(value, int | float)]
    assert found.release_.rows is None
    assert found.release_.row_count != 299  # a private estimate


def _noise(scale: float, seed: int) -> tuple[float, int]:
    """Return the sum of squares of the standardised noise of several fits, and its degrees of freedom."""
    rows = table(seed)
    clipped = rows * np.minimum(1, CLIP / np.linalg.norm(rows, axis=1))[:, None]
    upper = np.triu_indices(COLUMNS)
    total, count = 0.0, 0
    for _ in range(15):
        found = PrivateCovariance("none", **LOSS, centre="none", budget_epsilon=10**5).fit(rows)
        assert found.errors_ is not None
        z = (found.covariance_ - clipped.T @ clipped / len(rows)) / (found.errors_ * scale)
        total, count = total + float((z[upper] ** 2).sum()), count + z[upper].size
    return total, count


def test_the_noise_in_memory_has_the_law_that_the_release_states() -> None:
    total, count = _noise(1.0, 6)
    low, high = (float(stats.chi2.ppf(level, count)) for level in (LEVEL / 2, 1 - LEVEL / 2))
    assert low < total < high
    wrong, _ = _noise(1.5, 6)  # the same test finds noise that is smaller than is stated, by 8 standard deviations
    assert not low < wrong < high


def test_every_release_draws_afresh() -> None:
    found = [pca(budget_epsilon=100).fit(table()).release_ for _ in range(2)]
    assert not np.array_equal(found[0].lattice, found[1].lattice)
    assert found[0].release_id != found[1].release_id


def test_the_guarantee_is_that_of_the_mechanism() -> None:
    found = pca().fit(table())
    query = LatticeQuery(COLUMNS, 4**found.release_.bound.grid_bits, Neighbours.REPLACE_ONE)
    assert found.guarantee_ == calibrated("gaussian", query, PrivacyLoss.parse("1", "1e-6")).guarantee
    assert found.release_.private_as_claimed


def test_a_clip_norm_of_the_longest_row_is_found_out_and_a_public_one_is_not() -> None:
    rows = table()
    longest = np.linalg.norm(rows, axis=1).max()
    for given in (rows, da.from_array(rows, chunks=(50, 3))):
        with pytest.warns(PrivacyLeakWarning, match="longest row"):
            pca(clip=longest, budget_epsilon=10).fit(given)
    for clip, given in ((longest * 1.01, rows), (longest / 2, table(1)), (1.0, normalize(table(2)))):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", category=PrivacyLeakWarning)
            pca(clip=clip, budget_epsilon=10).fit(given)


def test_a_scaler_before_it_is_found_out() -> None:
    with pytest.warns(PrivacyLeakWarning, match="one row of X"):
        make_pipeline(StandardScaler(), pca()).fit(table())
    held: tuple[Callable[[Table], Any], ...] = (
        scipy.sparse.csr_matrix,
        lambda rows: da.from_array(rows, chunks=(50, 7)),
    )
    for seed, form in enumerate(held, 3):
        rows = table(seed)
        rows[:, 2] = 0
        with pytest.warns(PrivacyLeakWarning, match="one row of X"):
            pca().fit(form(rows - rows.mean(axis=0)))


def test_a_release_that_is_not_private_as_claimed_has_no_estimator() -> None:
    release = pca().fit(table()).release_
    worse = object.__new__(type(release))
    vars(worse).update({**vars(release), "guarantee": None})
    with pytest.raises(RefusedError, match="not private as claimed"):
        PrivatePCA.from_release(worse, 1)
    with pytest.raises(RefusedError, match="not private as claimed"):
        PrivateCovariance.from_release(worse)


def test_a_cross_validation_tells_of_a_row_though_its_fits_are_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why every score warns: the choice between two ridges is that of one row, in every trial."""

    def chosen(seed: int, *, there: bool) -> float:
        monkeypatch.setattr(fit, "REGISTER", Register())
        rng = np.random.default_rng(seed)
        rows = np.clip(0.5 * rng.normal(size=(400, 2)), -1, 1)
        target = np.clip(rows[:, 0] + 0.1 * rng.normal(size=400), -1, 1)
        rows[-1], target[-1] = ([1e6, 0.0] if there else [0.0, 0.0]), 0.0
        asked = PrivateRidge(epsilon=10, delta=1e-6, clip=2, centre="none", budget=Budget(epsilon=200, delta=1e-4))
        search = GridSearchCV(asked, {"ridge": [0.0, 1e7]}, cv=KFold(2), refit=False)
        with pytest.warns(PrivacyLeakWarning, match="chosen by scores"):
            search.fit(rows, target)
        return float(search.best_params_["ridge"])

    assert [chosen(seed, there=True) for seed in range(5)] == [1e7] * 5
    assert [chosen(seed, there=False) for seed in range(5)] == [0] * 5


@pytest.mark.parametrize("rows", [np.zeros((30, 3)), np.random.default_rng(1).normal(size=(30, 3))])
def test_every_score_warns_whatever_its_rows_are(rows: Table) -> None:
    known = np.random.default_rng(2).normal(size=(2000, 3))
    asked: dict[str, Any] = {"epsilon": 4, "delta": 1e-6, "clip": 4, "budget_epsilon": 50}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = (
            PrivatePCA(2, **asked).fit(known), PrivateCovariance(**asked).fit(known),
            PrivateRidge(**asked).fit(known[:, :2], known[:, 2]),
        )  # fmt: skip
    for estimator in fitted:
        given = (rows[:, :2], rows[:, 2]) if isinstance(estimator, PrivateRidge) else (rows,)
        with pytest.warns(PrivacyLeakWarning, match=f"A score of {type(estimator).__name__}"):
            estimator.score(*given)
