"""What components of a release hold of the variance: shares and variances, in intervals that hold."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.tallies import FALSE_ALARM

from dpdist.answers.block import EntryNoise
from dpdist.answers.captured import _score_variances, _span_variances, captured, holding
from dpdist.errors import BelowNoiseError, UsageError
from dpdist.mechanisms.noise_law import Noise
from dpdist.pca.alignment import counted_components
from dpdist.pca.components import components
from dpdist.privacy.guarantee import Neighbours
from papers.common.drawn import Drawn, drawn
from papers.common.held import KINDS, covariance_of, held

Floats = npt.NDArray[np.float64]
RELEASES = 100
FEWEST = int(stats.binom.ppf(FALSE_ALARM, RELEASES, 0.92)) / RELEASES


def scene(n: int = 4000, epsilon: str = "1", mechanism: str = "gaussian",
          neighbours: Neighbours = Neighbours.ADD_REMOVE) -> Drawn:  # fmt: skip
    random = np.random.default_rng(8)
    basis = np.linalg.qr(random.normal(size=(8, 8)))[0]
    rows = random.normal(size=(n, 8)) * [1.5, 1.2, 0.9, 0.5, 0.2, 0.2, 0.2, 0.2] @ basis + 0.3
    return drawn(rows, 4.0, epsilon, mechanism=mechanism, neighbours=neighbours)


def test_without_noise_to_speak_of_it_is_what_the_rows_have() -> None:
    made = scene(epsilon="1000000")
    release, values = made.release(), np.linalg.eigvalsh(covariance_of(made))[::-1]
    found = captured(release, components(release, 3))
    assert found is not None
    assert np.allclose(found.variances, values[:3], rtol=1e-3)
    assert np.allclose(found.shares, np.cumsum(values[:3]) / values.sum(), rtol=1e-3)
    assert found.rest == pytest.approx(values[3:].mean(), rel=1e-3)
    for share, count in ((0.3, 1), (0.7, 2), (0.85, 3), (0.95, 4)):
        assert len(holding(release, share).components) == count
    whole = captured(release, components(release, 8))
    assert whole is not None
    assert whole.share_intervals[-1].tolist() == [1, 1]
    assert (whole.rest, *whole.rest_interval) == (0, 0, 0)


@pytest.mark.parametrize("exact", [None, 5])
def test_errors_are_those_of_their_functionals(exact: int | None) -> None:
    """Against the functionals of the module's docstring, put together as matrices."""
    random = np.random.default_rng(3)
    noise = EntryNoise(on=2.6, off=1.0, exact=exact, shared=0.2)
    vectors, r = np.linalg.qr(random.normal(size=(5, 5)))[0][:2], random.normal(size=5)
    last = np.zeros((6, 6))
    last[5, 5] = 1
    scores = _score_variances(noise, vectors, r, np.array([0.7, 0.2]))
    for u, corner, found in zip(vectors, (0.7, 0.2), scores, strict=True):
        v = np.array([*u, -u @ r])
        assert found == pytest.approx(noise.of_functional(np.outer(v, v) - corner * last))
    a, b, corners = np.array([1.0, -1.0]), np.array([-0.3, 1.0]), np.array([0.0, 0.4])
    spans = _span_variances(noise, vectors, r, (a, b), corners)
    for k in (1, 2):
        w = a[k - 1] * vectors[:k].T @ vectors[:k] + b[k - 1] * np.eye(5)
        whole = np.block([[w, -(w @ r)[:, None]], [-(w @ r)[None], np.array([[r @ w @ r - corners[k - 1]]])]])
        assert spans[k - 1] == pytest.approx(noise.of_functional(whole))


@pytest.mark.parametrize(("mechanism", "neighbours"), [("gaussian", Neighbours.ADD_REMOVE),
                                                      ("two-sided-wishart", Neighbours.REPLACE_ONE)])  # fmt: skip
def test_intervals_hold_and_those_of_a_third_of_the_length_do_not(mechanism: str, neighbours: Neighbours) -> None:
    found = held(scene(mechanism=mechanism, neighbours=neighbours), KINDS["variances"], RELEASES)
    assert found.refused == 0
    for kind, shares in found.shares.items():
        assert shares.min() >= FEWEST, kind
        assert found.short[kind].min() < FEWEST, kind  # the twin


def test_the_lower_end_decides_how_many_hold_a_share() -> None:
    """No two directions hold what is asked for. The value itself, the twin, would say so of 2 in many releases."""
    made = scene()
    values = np.linalg.eigvalsh(covariance_of(made))[::-1]
    asked = float(values[:2].sum() / values.sum())
    wrong, twin = 0, 0
    for _ in range(RELEASES):
        release = made.release()
        wrong += len(holding(release, asked).components) == 2
        told = captured(release, components(release, 2))
        twin += told is not None and bool(told.shares[-1] >= asked)
    most = int(stats.binom.isf(FALSE_ALARM, RELEASES, 0.03))
    assert wrong <= most < twin


def test_what_holds_no_share_for_sure_is_refused_with_what_is_held() -> None:
    release = scene(400).release()
    with pytest.raises(BelowNoiseError, match=r"that can be told from noise hold 0\.\d+ for sure"):
        holding(release, 0.99)
    for share in (0.0, 1.0, 3.0):
        with pytest.raises(UsageError, match="between 0 and 1"):
            holding(release, share)
    unknown = replace(release, noise=Noise("own"))
    with pytest.raises(UsageError, match="no known law"):
        holding(unknown, 0.5)
    assert captured(unknown, components(release, 2)) is None
    assert captured(replace(release, answer=np.eye(8)[:2]), components(release, 2)) is None


def test_where_the_whole_variance_is_drowned_no_share_is_told_though_a_component_stands_clear() -> None:
    release = scene(400).release()
    clear = 40 * math.sqrt(release.noise.variance_diagonal or 0)
    answer = np.array(release.answer)
    answer[:8, :8] = clear * np.diag([1.0, *np.full(7, -1 / 7)])
    opposed = replace(release, answer=answer)
    assert len(counted_components(opposed).components) == 1
    with pytest.raises(BelowNoiseError, match="tells no share of its variance"):
        holding(opposed, 0.1)
