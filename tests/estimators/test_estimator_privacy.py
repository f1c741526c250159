"""The cost of fits in memory: rows are recognised in every form and charged once; nothing private is kept or shown."""

from __future__ import annotations

import pickle
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import dask.array as da
import numpy as np
import pytest
from faults import sentinel
from scipy import stats
from sklearn.base import clone
from sklearn.preprocessing import StandardScaler, normalize
from support.estimator_scene import CLIP, COLUMNS, HELD, table

from dpdist import PrivateCovariance, PrivatePCA, PrivateRidge
from dpdist.core.errors import BelowNoiseWarning, PrivacyLeakWarning, RefusedError, UsageError
from dpdist.core.ledger.fingerprints import Fingerprints
from dpdist.core.ledger.register import Register
from dpdist.core.mechanisms.registry import calibrated
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.privacy.accounting import composed_epsilon_micro, fits
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release import combine
from dpdist.core.release.artefact import Release
from dpdist.core.release.plan import proved

pytestmark = pytest.mark.filterwarnings("ignore:The same number of rows was released")
LOSS: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": CLIP}


def pca(**changed: Any) -> PrivatePCA:
    return PrivatePCA(**{"n_components": 2, **LOSS, **changed})


def test_rows_that_were_released_are_known_again_in_every_form_and_order(register: Register) -> None:
    """The same rows of the same type and names get the same release again; others with some of them cost more."""
    first = pca().fit(table())
    assert first.fresh_
    returned = set[str]()
    shuffled: Any = np.random.default_rng(5).permutation
    forms = {**HELD, "shuffled": shuffled, "part": lambda rows: rows[7:8]}
    for name, form in forms.items():
        for other in (pca(name="another"), PrivateCovariance(**{**LOSS, "clip": CLIP + 1})):
            with pytest.raises(RefusedError, match="released once before in this process"):
                other.fit(form(table()))
            assert len(register._fits) == 1, name
        with suppress(RefusedError):  # with names, or of another type, they are another table
            again = pca().fit(form(table()))
            assert not again.fresh_, name
            assert np.array_equal(again.release_.lattice, first.release_.lattice), name
            returned.add(name)
        assert len(register._fits) == 1, name
    assert returned >= {"numpy", "list", "fortran", "big-endian", "csr", "dask", "dask, unknown rows", "shuffled"}
    assert not returned & {"pandas", "part"}


def test_a_second_release_of_as_many_rows_of_a_kind_comes_with_what_both_cost(register: Register) -> None:
    def told(x: Any, **changed: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pca(**changed).fit(x)
        return [str(each.message) for each in caught if not issubclass(each.category, BelowNoiseWarning)]

    assert told(table()) == []
    (once,) = told(table(1))  # other people, as far as the register sees
    joint = composed_epsilon_micro([fit.guarantee for fit in register._fits], 10**12) / 1e6
    assert 1.3 < joint < 1.5
    assert "released once before in this process. If they are about the same people" in once
    assert f"these releases together cost epsilon {joint}, delta 1e-06" in once
    (twice,) = told(da.from_array(table(2).astype(np.float32), chunks=(100, 3)))
    assert "released 2 times" in twice
    assert told(table()) == []  # returned again
    (accepted,) = told(table(), budget_epsilon=10, name="more")  # also for recognised rows
    assert "released 3 times" in accepted
    assert told(table(3)[:-1]) == []  # another number of rows
    (part,) = told(table(1)[:-1], budget_epsilon=10)  # its rows were released with another one
    assert "was released 2 times before in this process, or some of these were" in part
    (fewer,) = told(table(4)[:, :-1])  # a column left out
    assert "released 4 times" in fewer
    (typed,) = told(np.ones((300, 7), dtype=int))  # and those that are left have another type
    assert "released 5 times" in typed
    (other,) = told(table(5), neighbours="add-remove")
    assert "cannot be added" in other
    (pure,) = told(table(6)[:-1], epsilon="0.25", delta=None)
    assert "cost epsilon " in pure
    with warnings.catch_warnings():  # as an error it stops the fit before it is charged
        warnings.simplefilter("error")
        count = len(register._fits)
        with pytest.raises(UserWarning, match="The same number of rows"):
            pca().fit(table(7))
    assert len(register._fits) == count


def test_no_estimator_releases_the_same_rows_twice_and_a_refused_fit_leaves_it_as_it_was() -> None:
    again: list[Any] = [lambda e: e, clone, lambda e: pickle.loads(pickle.dumps(e))]  # noqa: S301
    rows = table()
    PrivateCovariance(**LOSS).fit(rows[:, :3])
    first = pca().fit(rows)
    kept = first.components_.copy()
    for other in again:
        returned = other(first).fit(rows)
        assert not returned.fresh_
        assert np.array_equal(returned.release_.lattice, first.release_.lattice)
    for more in (pca(clip=9), clone(first).set_params(name="more")):
        with pytest.raises(RefusedError):
            more.fit(rows)
    with pytest.raises(RefusedError):
        first.fit(rows[:, :3])
    assert np.array_equal(first.components_, kept)
    assert first.transform(rows).shape == (len(rows), 2)


def test_the_joint_cost_is_told_and_can_be_accepted(register: Register) -> None:
    pca().fit(table())
    for more in (
        pca(name="more"),
        pca(epsilon="0.5", delta=None),
        pca(neighbours="replace-one", mechanism="laplace", delta=None),
    ):
        with pytest.raises(RefusedError) as refused:
            more.fit(table())
        told = re.search(r"budget_epsilon=(\S+), budget_delta=([^\s]+)\.$", str(refused.value))
        assert told is not None
        epsilon, delta = told.groups()
        with pytest.raises(RefusedError):
            more.set_params(budget_epsilon=f"{float(epsilon) - 1e-6:.6f}", budget_delta=delta).fit(table())
        more.set_params(budget_epsilon=epsilon).fit(table())
        assert fits([fit.guarantee for fit in register._fits], PrivacyLoss.parse(epsilon, delta))
    assert len({fit.dataset for fit in register._fits}) == 1


def test_a_joint_cost_beyond_reason_is_refused_in_words() -> None:
    asked = pca(epsilon=6 * 10**5)
    asked.fit(table())
    with pytest.raises(RefusedError, match=r"above one million, but it is.*from_release"):
        asked.set_params(name="more").fit(table())
    with pytest.raises(RefusedError, match=r"costs epsilon 1, delta 1e-06, and the budget is epsilon 0\.5"):
        pca(budget_epsilon="0.5").fit(table(1))
    pca().fit(table(2))
    with pytest.raises(RefusedError, match="neighbours='replace-one'"):  # another relation is not added
        pca(neighbours="add-remove", budget_epsilon=1000).fit(table(2))


def test_a_release_does_not_tell_whose_rows_it_shares_and_is_not_taken_for_one_of_others() -> None:
    rows = table()
    first, second = pca().fit(rows[:100]), pca().fit(rows[100:])
    both = pca(budget_epsilon=10).fit(rows)
    assert first.release_.extents != second.release_.extents
    assert len({*first.release_.extents, *second.release_.extents, *both.release_.extents}) == 3
    assert combine.combined([first.release_, second.release_]).rows == len(rows)
    for releases in ([first.release_, second.release_], [first.release_, both.release_]):
        joint = combine.combined(releases).guarantee
        assert joint is not None
        assert joint.mu_squared == sum(proved(release.guarantee).mu_squared or 0 for release in releases)
    named = pca(name="more", budget_epsilon=10).fit(rows).release_
    assert combine.combined([both.release_, named]).rows == 2 * len(rows)


def test_of_fits_at_the_same_time_one_is_charged_and_all_have_its_release(register: Register) -> None:
    def fit(_: int) -> PrivatePCA:
        return pca().fit(table())

    with ThreadPoolExecutor(8) as pool:
        fitted = list(pool.map(fit, range(16)))
    assert len(register._fits) == 1
    assert len({each.release_.lattice.tobytes() for each in fitted}) == 1
    assert any(each.fresh_ for each in fitted)
    assert not fit(0).fresh_


def test_a_fitted_estimator_holds_nothing_private(register: Register) -> None:
    rows = sentinel.planted_table()
    asked: dict[str, Any] = {"epsilon": 1000, "delta": 1e-6, "clip": sentinel.CLIP, "grid_bits": sentinel.BITS}
    lazy = da.from_array(rows, chunks=(40, 72))
    found: list[Any] = [PrivatePCA(2, **asked).fit(rows)]
    found += [PrivateCovariance(**asked, centre="none", budget_epsilon=3000).fit(lazy)]
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


def test_the_noise_in_memory_is_drawn_afresh_and_has_the_law_that_the_release_states() -> None:
    rows, upper = table(6), np.triu_indices(COLUMNS)
    clipped = rows * np.minimum(1, CLIP / np.linalg.norm(rows, axis=1))[:, None]
    z = []
    for number in range(12):
        asked = PrivateCovariance("none", **LOSS, centre="none", budget_epsilon=10**5, name=f"draw-{number}")
        found = asked.fit(rows)
        assert found.errors_ is not None
        z.append(((found.covariance_ - clipped.T @ clipped / len(rows)) / found.errors_)[upper])
    assert not np.array_equal(z[0], z[1])
    total = float((np.array(z) ** 2).sum())
    low, high = (float(stats.chi2.ppf(level, np.size(z))) for level in (5e-7, 1 - 5e-7))
    assert low < total < high
    assert not low < total / 1.5**2 < high  # noise that is smaller than is stated
    query = LatticeQuery(COLUMNS, 4**found.release_.bound.grid_bits, Neighbours.REPLACE_ONE)
    assert found.guarantee_ == calibrated("gaussian", query, PrivacyLoss.parse("1", "1e-6")).guarantee


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


def test_centred_rows_are_found_out() -> None:
    for kind in (np.float64, np.float32):
        with pytest.raises(RefusedError, match="one row of X"):
            pca().fit(StandardScaler().fit_transform(table().astype(kind)))
    for seed, name in enumerate(("csr", "dask"), 3):
        rows = table(seed)
        rows[:, 2] = 0
        with pytest.warns(PrivacyLeakWarning, match="one row of X"):
            pca().fit(HELD[name](rows - rows.mean(axis=0)))


def test_a_release_that_is_not_private_as_claimed_has_no_estimator() -> None:
    release = pca().fit(table()).release_
    worse = Release(**{**vars(release), "guarantee": None})
    made: list[tuple[Any, Any]] = [(PrivatePCA, 1), (PrivateCovariance, "none"), (PrivateRidge, "c0")]
    for kind, asked in made:
        with pytest.raises(RefusedError, match="not private as claimed"):
            kind.from_release(worse, asked)


def test_every_score_warns_whatever_its_rows_are() -> None:
    known = np.random.default_rng(2).normal(size=(2000, 3))
    asked: dict[str, Any] = {"epsilon": 4, "delta": 1e-6, "clip": 4, "budget_epsilon": 50}
    for made in (PrivatePCA(2, **asked), PrivateCovariance(**asked), PrivateRidge(**asked)):
        ridge = isinstance(made, PrivateRidge)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.fit(*((known[:, :2], known[:, 2]) if ridge else (known,)))
        for rows in (np.zeros((30, 3)), known[:30]):
            with pytest.warns(PrivacyLeakWarning, match=f"A score of {type(made).__name__}.*chosen by scores"):
                made.score(*((rows[:, :2], rows[:, 2]) if ridge else (rows,)))


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"delta": 0.1}, "Delta 0.1 is not below one over the number of rows"),
        ({"clip": "private", "epsilon": 0.01}, "The clip norm would be chosen with"),
        ({"clip": None, "scale": "private", "epsilon": 0.01}, "The scale would be chosen with"),
        ({"n_components": COLUMNS + 1}, "components were requested"),
    ],
)
def test_what_cannot_work_is_refused_before_a_block_of_a_dask_array_is_read(
    register: Register, asked: dict[str, Any], match: str
) -> None:
    read = list[int]()

    def block(rows: Any) -> Any:
        read.append(len(rows))
        return rows

    rows = da.from_array(table(), chunks=(50, COLUMNS)).map_blocks(block, meta=np.empty((0, 0)))
    with pytest.raises((RefusedError, UsageError), match=match):
        pca(**asked).fit(rows)
    assert read == []
    assert register._fits == []
    pca().fit(rows)
    assert sum(read) >= len(table())  # the twin: those of a fit that works are


@pytest.mark.usefixtures("register")
def test_a_number_of_rows_that_was_private_is_in_no_refusal() -> None:
    pca(neighbours="add-remove").fit(table())
    with pytest.raises(RefusedError, match="under add-remove") as refused:
        pca(delta=0.1).fit(table())
    assert str(len(table())) not in str(refused.value)
    narrow = table()[:2]  # fewer rows than columns, which a regression refuses before anything is charged
    with pytest.raises(UsageError) as narrow_refused:
        PrivateRidge(1, epsilon=1, delta=1e-6, clip=12).fit(narrow, narrow[:, 0])
    assert "X has" not in str(narrow_refused.value)
