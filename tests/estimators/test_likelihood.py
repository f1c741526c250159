"""PrivatePCA beyond components: shares of variance, whitening and likelihoods, as scikit-learn's PCA has them."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from sklearn.decomposition import PCA

from dpdist import PrivatePCA
from dpdist.errors import BelowNoiseError, DataError, UsageError
from dpdist.ledger.in_memory import Register
from papers.common.drawn import drawn

pytestmark = pytest.mark.filterwarnings("ignore:Rows of the same number and kind were released")
FINE: dict[str, Any] = {"epsilon": 10**5, "delta": 1e-6, "clip": 12.0, "centre": "private", "grid_bits": 20}


def rows_of(n: int = 2000, seed: int = 6) -> npt.NDArray[np.float64]:
    random = np.random.default_rng(seed)
    basis = np.linalg.qr(random.normal(size=(6, 6)))[0]
    return np.asarray(random.normal(size=(n, 6)) * [3, 2, 1, 0.5, 0.5, 0.5] @ basis + 1, dtype=np.float64)


@pytest.fixture(scope="module")
def fitted() -> PrivatePCA:
    """Return a fit of rows of which hardly any is shortened, with hardly any noise."""
    return PrivatePCA(3, **FINE).fit(rows_of())


def test_likelihoods_and_shares_are_those_of_scikit_learn(fitted: PrivatePCA) -> None:
    rows = rows_of()
    known = PCA(3).fit(rows)
    assert np.allclose(fitted.score_samples(rows), known.score_samples(rows), rtol=1e-2, atol=1e-2)
    assert fitted.score(rows) == pytest.approx(known.score(rows), rel=1e-3)
    assert np.allclose(fitted.score_variances_, known.explained_variance_, rtol=1e-2)
    assert fitted.noise_variance_ == pytest.approx(known.noise_variance_, rel=1e-2)
    assert fitted.captured_variance_ratio_ == pytest.approx(known.explained_variance_ratio_.sum(), rel=1e-2)
    low, high = fitted.captured_variance_ratio_interval_
    assert low < fitted.captured_variance_ratio_ < high < 1
    ends = fitted.score_variance_intervals_
    assert (ends[:, 0] < fitted.score_variances_).all()
    assert (fitted.score_variances_ < ends[:, 1]).all()
    lazy = fitted.score_samples(da.from_array(rows, chunks=(700, 6)))
    assert isinstance(lazy, da.Array)
    assert np.allclose(lazy, fitted.score_samples(rows))
    plain = fitted.to_sklearn()
    assert np.allclose(plain.score_samples(rows), fitted.score_samples(rows))
    with pytest.raises(DataError, match=r"rows\.zarr"):
        fitted.score_samples("rows.zarr")


def test_a_scale_is_a_change_of_units_of_the_likelihood() -> None:
    rows, scale = rows_of(), np.array([1, 2, 4, 1, 0.5, 1])
    scene = drawn(rows, 12.0, "100000")
    made = drawn(rows * scale, 12.0, "100000", scale=tuple(scale))
    plain = PrivatePCA.from_release(scene.release(), 3).score_samples(rows)
    scaled = PrivatePCA.from_release(made.release(), 3).score_samples(rows * scale)
    # the noise of both: the largest difference of 250 draws was .0247, and above .02 in 8 of them
    assert np.allclose(scaled, plain - np.log(scale).sum(), atol=0.05)


def test_the_fewest_components_that_hold_a_share_are_taken(fitted: PrivatePCA, register: Register) -> None:
    rows = rows_of(seed=7)
    found = PrivatePCA(0.8, **FINE).fit(rows)
    assert found.n_components_ == 2
    assert found.captured_variance_ratio_interval_[0] >= 0.8
    assert PCA(0.8).fit(rows).n_components_ == 2
    assert PrivatePCA.from_release(fitted.release_, 0.93).n_components_ == 3
    few = PrivatePCA.from_release(fitted.release_, 0.2)
    assert few.n_components_ == 1
    assert pickle.loads(pickle.dumps(few)).n_components_ == 1  # noqa: S301 - its own
    drowned = PrivatePCA(0.999, **{**FINE, "epsilon": 2, "grid_bits": None})
    with pytest.raises(BelowNoiseError, match=r"for sure, the lower end of an interval.*What was released is kept"):
        drowned.fit(rows_of(1500, seed=8))
    assert PrivatePCA.from_release(drowned.release_, 1).n_components_ == 1
    known = len(register._fits)
    for wrong in (0.0, 1.5, -0.5, True):
        with pytest.raises(UsageError, match="a share of the variance between 0 and 1"):
            PrivatePCA(wrong, **FINE).fit(rows_of(seed=9))
    assert len(register._fits) == known


def test_whitened_scores_vary_by_one_and_lead_back_to_the_rows(fitted: PrivatePCA) -> None:
    rows = rows_of()
    white = PrivatePCA.from_release(fitted.release_, 3, whiten=True)
    scores = white.transform(rows)
    assert np.allclose(scores.std(axis=0), 1, rtol=1e-2)
    assert np.allclose(scores, fitted.transform(rows) / np.sqrt(fitted.score_variances_))
    assert np.allclose(white.inverse_transform(scores), fitted.inverse_transform(fitted.transform(rows)))
    assert white.score(rows) == pytest.approx(fitted.score(rows))
    plain = white.to_sklearn()
    assert plain.whiten
    assert np.allclose(plain.transform(rows), scores)
    assert np.allclose(plain.inverse_transform(scores), white.inverse_transform(scores))
    frame = pd.DataFrame(rows)
    assert white.set_output(transform="pandas").transform(frame).shape == (2000, 3)


def test_noise_that_may_be_all_there_is_is_neither_whitened_nor_given_a_likelihood() -> None:
    rows = rows_of(800)
    release = drawn(rows, 12.0, "1").release()
    with pytest.raises(UsageError, match=r"may not vary at all. Ask for \d or fewer"):
        PrivatePCA.from_release(release, 6, whiten=True)
    with pytest.raises(UsageError, match="told of likelihoods"):
        PrivatePCA.from_release(release, 6).score(rows)
    line, said = drawn(np.outer(rows_of()[:, 0], np.eye(6)[0]), 12.0, "1"), []
    for number in range(5):  # nothing varies along the others: an interval from 0 on in 97 of 100 releases
        try:
            PrivatePCA.from_release(line.release(number), 1).score(rows)
        except UsageError as error:
            said.append(str(error))
    assert any("may not vary along the other 5 directions" in each for each in said)
    alone = PrivatePCA(2, epsilon=1, delta=1e-6, clip=12, neighbours="add-remove").fit(rows_of(800, seed=10))
    assert alone.score_variances_ is None
    assert alone.captured_variance_ratio_ is not None  # a share needs no number of rows
    with pytest.raises(UsageError, match=r"no variances per row.*neighbours='replace-one' or centre='private'"):
        alone.score_samples(rows)
    assert not hasattr(alone.to_sklearn(), "explained_variance_")
