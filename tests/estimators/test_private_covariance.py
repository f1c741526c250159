"""PrivateCovariance: what it says of rows is what scikit-learn's covariances say, given the same matrix."""

from __future__ import annotations

import re
import warnings
from typing import Any

import dask.array as da
import numpy as np
import pytest
from sklearn.covariance import EmpiricalCovariance
from support.estimator_scene import CLIP, table
from support.folders import ROOT

from dpdist import PrivateCovariance
from dpdist.errors import BelowNoiseError, BelowNoiseWarning, DataError, UsageError
from dpdist.ledger.in_memory import Register

pytestmark = pytest.mark.filterwarnings("ignore:Rows of the same number and kind were released")
FINE: dict[str, Any] = {"epsilon": 10**4, "delta": 1e-6, "clip": CLIP, "budget_epsilon": 10**6}


def known(found: PrivateCovariance) -> EmpiricalCovariance:
    made = EmpiricalCovariance()
    made.covariance_, made.location_, made.precision_ = found.covariance_, found.location_, found.get_precision()
    made.n_features_in_ = found.n_features_in_
    return made


def test_distances_likelihoods_and_norms_are_those_of_scikit_learn() -> None:
    rows = table()
    found = PrivateCovariance(**FINE).fit(rows)
    expected = known(found)
    assert np.allclose(found.mahalanobis(rows), expected.mahalanobis(rows))
    assert found.score(rows) == pytest.approx(expected.score(rows))
    other = np.eye(7)
    for norm in ("frobenius", "spectral"):
        for scaling in (True, False):
            for squared in (True, False):
                told = found.error_norm(other, norm, scaling=scaling, squared=squared)
                assert told == pytest.approx(expected.error_norm(other, norm=norm, scaling=scaling, squared=squared))
    lazy = found.mahalanobis(da.from_array(rows, chunks=(41, 7)))
    assert isinstance(lazy, da.Array)
    assert np.allclose(lazy, found.mahalanobis(rows))
    with pytest.raises(UsageError, match="'frobenius' or 'spectral'"):
        found.error_norm(other, "nuclear")


def test_what_is_shrunk_is_a_choice_and_only_the_optimal_has_an_inverse() -> None:
    """All eigenvalues of 7 columns of noise are positive with probability 3^(-49/4) (Dean & Majumdar 2006)."""
    rows = table()
    found = PrivateCovariance(**{**FINE, "epsilon": 0.1}).fit(rows)
    assert np.linalg.eigvalsh(found.covariance_)[0] > 0
    assert np.allclose(found.precision_ @ found.covariance_, np.eye(7), atol=1e-6)  # type: ignore[operator]
    assert np.allclose(np.diagonal(found.correlation_), 1)
    raw = PrivateCovariance.from_release(found.release_, "none")
    assert raw.shrinkage == "none"
    assert np.linalg.eigvalsh(raw.covariance_)[0] < 0
    assert raw.covariance_intervals_ is not None
    assert np.allclose(raw.covariance_intervals_.mean(axis=-1), raw.covariance_)
    assert np.linalg.eigvalsh(PrivateCovariance.from_release(found.release_, "trace").covariance_)[0] > -1e-9
    assert raw.precision_ is None
    with pytest.raises(UsageError, match="shrinkage='optimal'"):
        raw.mahalanobis(rows)


def test_a_shrinkage_that_is_none_is_refused_before_anything_is_charged(register: Register) -> None:
    with pytest.raises(UsageError, match="'optimal', 'trace', 'none'"):
        PrivateCovariance("much", **FINE).fit(table())
    with pytest.raises(UsageError, match="no known law"):
        PrivateCovariance(**{**FINE, "mechanism": "mvg", "centre": "none", "options": {"rows": 300}}).fit(table())
    assert not register._fits


def test_rows_of_another_table_and_paths_are_refused() -> None:
    found = PrivateCovariance(**FINE).fit(table())
    with pytest.raises(DataError, match="features"):
        found.mahalanobis(table()[:, :3])
    with pytest.raises(DataError, match=r"rows\.zarr"):
        found.mahalanobis("rows.zarr")


def test_a_covariance_that_is_all_noise_comes_with_a_warning() -> None:
    """Noise passes its edge in 6 of 100 releases; in each of five with a probability below one in a million."""
    asked = PrivateCovariance(**{**FINE, "epsilon": 0.01})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(5):
            asked.fit(1e-3 * table())
    assert any("covariance_ says little" in str(each.message) for each in said if each.category is BelowNoiseWarning)


def test_partial_correlations_and_samples_are_of_the_release() -> None:
    rows = table()
    found = PrivateCovariance(**FINE, grid_bits=20).fit(rows)
    clipped = rows * np.minimum(1, CLIP / np.linalg.norm(rows, axis=1))[:, None]
    precision = np.linalg.inv(np.cov(clipped, rowvar=False))
    spread = np.sqrt(np.diagonal(precision))
    known = -precision / np.outer(spread, spread) + 2 * np.eye(7)
    assert found.partial_ridge_ == 0
    assert np.allclose(found.partial_correlation_, known, atol=0.05)
    ends = found.partial_correlation_intervals_
    assert ((ends[..., 0] <= found.partial_correlation_) & (found.partial_correlation_ <= ends[..., 1])).all()
    drawn = found.sample(20_000, random_state=1)
    assert np.array_equal(drawn, found.sample(20_000, random_state=1))
    assert not np.array_equal(drawn[:5], found.sample(5))
    units = np.outer(*2 * [np.sqrt(np.diagonal(found.covariance_))])
    # 20000 rows: the error of an entry is at most sqrt(2/20000), of which these are 7
    assert np.abs((np.cov(drawn, rowvar=False) - found.covariance_) / units).max() < 0.07
    assert (np.abs(drawn.mean(axis=0) - found.location_) < 0.05 * np.sqrt(np.diagonal(units))).all()
    with pytest.raises(UsageError, match="shrinkage='optimal'"):
        PrivateCovariance.from_release(found.release_, "none").sample()
    with pytest.raises(UsageError, match="From 1 to"):
        found.sample(0)


def test_what_gives_no_partial_correlation_or_sample_says_what_does() -> None:
    about_zero = PrivateCovariance(**{**FINE, "centre": "none"}).fit(table())
    for asked in ("partial_correlation_", "sample"):
        with pytest.raises(UsageError, match=r"no mean and no centre.*Release with centre='private'"):
            getattr(about_zero, asked)()
    asking = PrivateCovariance(**{**FINE, "epsilon": 0.01})
    refused = []
    for _ in range(5):  # noise passes its edge in 6 of 100 releases
        drowned = asking.fit(1e-3 * table())
        for asked in ("partial_correlation_", "sample"):
            try:
                getattr(drowned, asked)()
            except BelowNoiseError as error:
                refused.append(str(error))
            except TypeError:  # an array, which nobody can call
                continue
    assert sum("No direction of the columns varies more than the noise" in each for each in refused) >= 2


def test_statsmodels_takes_the_matrix_as_the_page_says() -> None:
    """Factor analysis of the released correlation matrix is that of the rows, where there is hardly any noise."""
    factor = pytest.importorskip("statsmodels.multivariate.factor", exc_type=ImportError)
    page = (ROOT / "docs" / "howto" / "answers.md").read_text()
    (line,) = re.findall(r"`statsmodels\.multivariate\.factor\.(Factor\(.*\))`", page)
    random = np.random.default_rng(7)
    rows = random.normal(size=(3000, 1)) @ [[0.9, 0.8, 0.7, 0.6, 0.5]] + 0.5 * random.normal(size=(3000, 5))
    found = PrivateCovariance(**{**FINE, "clip": 10.0}).fit(rows)
    told = eval(line.replace("n_factor=3", "n_factor=1"), {"Factor": factor.Factor, "found": found}).fit()  # noqa: S307
    exact = factor.Factor(corr=np.corrcoef(rows.T), n_factor=1).fit()
    assert np.allclose(np.abs(told.loadings), np.abs(exact.loadings), atol=0.05)
