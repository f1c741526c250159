"""What is told of a release's components and their loadings, against rows whose truth is known."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.releases import drawn_over

from dpdist.errors import BelowNoiseError, UsageError
from dpdist.moment import total
from dpdist.pca.alignment import (
    counted_components,
    loadings_json,
    noise_law,
    require_alignment,
)
from dpdist.pca.components import Components, components
from dpdist.pca.correlation import correlation
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release.artefact import Release
from dpdist.release.request import Centring, ReleaseRequest
from dpdist.report import text
from dpdist.rows.bounding import TRUNCATED
from dpdist.rows.dither import DitherKey, Dithers
from papers.common.drawn import Drawn, drawn

Floats = npt.NDArray[np.float64]
D, N, C = 40, 20_000, 4.0
SHARES = np.array([0.3, 0.1, 0.03, 0.002])


def truth(seed: int = 3) -> tuple[Floats, Floats]:
    """Return an exact second moment of N rows with four components, and these, as orthonormal rows."""
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(D, D)))[0].T
    return (basis[:4].T * (N * C**2 * SHARES)) @ basis[:4], basis[:4]


def released(mechanism: str = "gaussian", epsilon: str = "1", delta: str = "1e-6", **options: object) -> Release:
    request = ReleaseRequest(mechanism, PrivacyLoss.parse(epsilon, delta), C, options=options)
    return drawn_over(request, np.rint(truth()[0] / request.bound(D).unit ** 2).astype(np.int64), D, N)


@pytest.mark.parametrize(
    ("mechanism", "delta"), [("gaussian", "1e-6"), ("two-sided-wishart", "0"), ("wishart", "1e-6")]
)
def test_intervals_strengths_and_cosines_tell_the_truth(mechanism: str, delta: str) -> None:
    """Over 20 releases; a miss of the simultaneous intervals has probability .1, so 12 misses have below 1e-7."""
    exact, basis = truth()
    true_values = np.maximum(np.linalg.eigvalsh(exact / N)[::-1], 0)  # rounding makes some of the zeros negative
    misses, cosines, expected, strengths = 0, [], [], []
    for _ in range(20):
        release = released(mechanism, delta=delta)
        every = components(release, D)
        vectors, found = every.components, require_alignment(release, every)
        low, high = found.intervals.T
        misses += not (np.all(low <= true_values) and np.all(true_values <= high))
        cosines.append([float(v @ w) ** 2 for v, w in zip(vectors[:2], basis[:2], strict=True)])
        expected.append(found.squared_cosines[:2])
        strengths.append(found.strengths[:2])
    assert misses < 12
    assert np.mean(cosines, axis=0) == pytest.approx(np.mean(expected, axis=0), abs=0.05)
    assert np.mean(strengths, axis=0) == pytest.approx(C**2 * SHARES[:2], rel=0.1)


def test_the_components_that_are_counted_are_those_that_are_there() -> None:
    """At a large epsilon all four stand out, and no fifth one; at a tiny one none, and that is said.

    Something is counted of noise of 40 columns in less than one release of 100; in 7 of 10 with probability 1e-12.
    """
    counts, words = [], []
    for _ in range(10):
        counts.append(len(counted_components(released(epsilon="400")).components))
        try:
            counted_components(released(epsilon="0.001"))
        except BelowNoiseError as error:
            words.append(str(error))
    assert min(counts) == 4
    assert counts.count(4) >= 4
    assert len(words) >= 4
    assert "forecast" in words[0]
    assert "components=K" in words[0]


def diagonal(size: int, count: int, epsilon: str) -> Release:
    """Return a release of so many components, one stronger than the other, in so many columns."""
    request = ReleaseRequest("gaussian", PrivacyLoss.parse(epsilon, "1e-6"), C)
    strengths = N * C**2 / size * np.concatenate([np.linspace(1, 0.3, count), np.zeros(size - count)])
    return drawn_over(request, np.rint(np.diag(strengths) / request.bound(size).unit ** 2).astype(np.int64), size, N)


class Multiplied:
    """The product of a release with vectors, and how often it was asked for."""

    def __init__(self, release: Release) -> None:
        self.matrix = release.lattice * release.bound.unit**2  # as it is stored
        self.times = 0

    def __call__(self, vectors: Floats) -> Floats:
        self.times += 1
        found: Floats = self.matrix @ vectors
        return found


@pytest.mark.parametrize("count", [5, 12])
def test_a_release_that_is_only_multiplied_has_the_same_components(count: int) -> None:
    release = diagonal(300, count, "400")
    found, expected = counted_components(release, Multiplied(release)), counted_components(release)
    assert len(found.components) == len(expected.components) >= count
    assert found.eigenvalues is not None
    assert expected.eigenvalues is not None
    assert found.eigenvalues == pytest.approx(expected.eigenvalues, rel=1e-12)
    drowned = Multiplied(release)
    drowned.matrix = np.diag(np.linspace(0, 1e-9, 300))
    with pytest.raises(BelowNoiseError, match="forecast"):
        counted_components(release, drowned)


def test_of_a_subspace_nothing_is_told() -> None:
    release = released("bingham", delta="0", components=2)
    assert noise_law(release) is None
    with pytest.raises(UsageError, match="bingham"):
        counted_components(release)


def rounded_release(bits: int, rows: Floats) -> Release:
    """Return a release of rows that were rounded to a grid, under a new key."""
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("30", "1e-6"), C, grid_bits=bits)
    z = request.bound(D).apply(rows, np.empty(rows.shape), Dithers(DitherKey(total.drawn()), 0))
    return drawn_over(request, (z.T @ z).astype(np.int64), D, len(rows))


def test_rounding_on_a_coarse_grid_turns_a_component_no_further_than_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows lie on one line. Each of 40 intervals misses with probability .1 at most: 17 do with 1e-6."""
    direction = np.random.default_rng(9).normal(size=D)
    rows = np.outer(np.tile([-1.0, 1.0], 750), C * direction / np.linalg.norm(direction))

    def misses() -> int:
        missed = 0
        for _ in range(40):
            release = rounded_release(4, rows)
            found = components(release, 1)
            told = require_alignment(release, found)
            ((low, high),) = told.cosine_intervals
            assert low <= told.squared_cosines[0] <= high
            missed += not low <= float(found.components[0] @ rows[0]) ** 2 / float(rows[0] @ rows[0]) <= high
        return missed

    assert misses() < 17
    monkeypatch.setattr("dpdist.pca.alignment.rounding", lambda _: None)  # the twin: as if rounding turned nothing
    assert misses() > 20


@pytest.mark.parametrize("neighbours", Neighbours)
def test_the_noise_of_a_large_private_mean_is_no_component(
    neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing varies: all rows are one row as long as the clip norm. The top eigenvalue is about .6 of the edge."""
    d, rows = 30, 200_000
    request = ReleaseRequest(
        "gaussian", PrivacyLoss.parse("1", "1e-6"), C, neighbours=neighbours, centring=Centring.PRIVATE
    )
    bound = request.bound(d)
    whole = replace(bound, rule=TRUNCATED)
    row = whole.apply(np.full((1, d), C / d**0.5), np.empty((1, bound.width))).astype(np.int64)[0]
    exact = np.outer(row, row) * rows + np.diag([rows // 4] * d + [0])  # as rounding leaves it
    without, counts = 0, []
    for _ in range(20):
        release = drawn_over(request, exact, d, rows)
        every = components(release, d)
        found = require_alignment(release, every)
        assert np.isnan(found.strengths[found.counted :]).all()
        counts.append(found.counted)
        assert found.intervals[:, 0].max() == 0
        with monkeypatch.context() as patch:  # the twin: the noise of the mean left out
            patch.setattr("dpdist.pca.alignment._centring_error", lambda _: 0.0)
            patch.setattr("dpdist.pca.alignment._count_error", lambda _: 0.0)
            patch.setattr("dpdist.pca.alignment.mean_variance", lambda _: 0.0)
            left_out = require_alignment(release, every)
        without += left_out.intervals[0, 0] > 0
    assert counts.count(0) >= 14
    assert without > 0  # probability of none: 1e-10


# --- loadings

DRAWS, K = 80, 2
SPREADS = {
    "strong": np.array([3, 2, 1.2, 0.5, 0.5, 0.4, 0.3, 0.3]),
    "close": np.array([2, 1.9, 1, 0.5, 0.5, 0.5]),
    "equal": np.array([2, 2, 0.6, 0.5, 0.5, 0.5]),
    "weak": np.array([1.5, 1.2, *[0.3] * 28]),
}


def scene(
    name: str, *, mean: float = 0.0, epsilon: str = "1", mechanism: str = "gaussian", neighbours: str = "replace-one"
) -> Drawn:
    rng = np.random.default_rng(7)
    spread = SPREADS[name]
    turned = np.linalg.qr(rng.normal(size=(len(spread), len(spread))))[0]
    rows = rng.normal(size=(15_000, len(spread))) * spread @ turned.T + mean
    centring = Centring.PRIVATE if mean else Centring.NONE
    return drawn(rows, 12.0, epsilon, mechanism=mechanism, centring=centring, neighbours=Neighbours(neighbours))


def covariance(known: Drawn) -> Floats:
    d, n = len(known.names), len(known.bounded)
    x = known.bounded[:, :d].mean(axis=0) if known.bound.constant else np.zeros(d)
    found: Floats = known.moment[:d, :d] / n - np.outer(x, x)
    return found


def leading(matrix: Floats) -> Floats:
    found: Floats = np.linalg.eigh(matrix)[1][:, ::-1][:, :K].T
    return found


def tally(known: Drawn, true: Floats, *, correlations: bool) -> tuple[int, int, int]:
    """Return of how many loadings intervals were told, how many held, and how many a fifth of the interval holds."""
    said = held = narrow = 0
    for number in range(DRAWS):
        release = known.release(number)
        if correlations:
            standard = correlation(release, K)
            assert standard.alignment is not None
            found, told = standard.components, standard.alignment
        else:
            found = components(release, K)
            told = require_alignment(release, found)
        assert told.loadings is not None
        ends, vectors = told.loadings, found.components
        told_of = np.isfinite(ends[..., 0])
        assert ((ends[..., 0] <= vectors) & (vectors <= ends[..., 1]))[told_of].all()
        exact = true * np.sign((true * vectors).sum(axis=1))[:, None]
        far = np.abs(exact - ends.mean(axis=-1)) / (ends[..., 1] - ends[..., 0]) * 2
        said, held, narrow = (
            said + int(told_of.sum()), held + int((far <= 1).sum()), narrow + int((far <= 0.2).sum())
        )  # fmt: skip
    return said, held, narrow


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("strong", {"mean": 2.0, "neighbours": "add-remove"}), ("close", {"epsilon": "4"}),
        ("weak", {"epsilon": "2"}), ("strong", {"mechanism": "two-sided-wishart"}),
    ],
)  # fmt: skip
def test_loadings_lie_where_they_are_said_to_and_hold_what_was_released(name: str, more: dict[str, Any]) -> None:
    """In 9 of 10 at least, of hundreds of releases' loadings that err together: .02 less has probability below 1e-6."""
    known = scene(name, **more)
    said, held, narrow = tally(known, leading(covariance(known)), correlations=False)
    assert said > DRAWS
    assert held >= 0.88 * said
    assert narrow < 0.6 * said


def test_loadings_of_correlations_lie_where_they_are_said_to() -> None:
    known = scene("strong", mean=0.5, epsilon="4")
    matrix = covariance(known)
    deviations = np.sqrt(np.diag(matrix))
    said, held, narrow = tally(known, leading(matrix / np.outer(deviations, deviations)), correlations=True)
    assert said > DRAWS
    assert held >= 0.88 * said
    assert narrow < 0.6 * said


def test_components_that_are_close_are_told_together() -> None:
    """Their loadings are not told, and the space that they span is: in more than 9 of 10 releases."""
    known = scene("equal", epsilon="0.4")
    together = 0
    for number in range(20):
        release = known.release(number)
        found = components(release, 3)
        told = require_alignment(release, found)
        if told.groups[:1] == (range(2),):
            together += 1
            assert told.squared_cosines[0] == told.squared_cosines[1] > 2 / 3
            assert told.loadings is not None
            assert np.isnan(told.loadings[:2]).all()
            assert "Components 1 to 2 cannot be told apart" in text.counted_words(told)
            assert "(1-2)" in text.alignment(told)
            shown = " ".join(text.loadings(found.components, told, release.names).split())
            assert "Loadings of components 1, 2 are not told" in shown or "Loadings of components 1, 2, " in shown
    assert together > 10


def test_nothing_is_said_of_a_component_that_is_not_counted() -> None:
    release = scene("weak", epsilon="0.5").release()
    found = components(release, 10)
    told = require_alignment(release, found)
    assert told.loadings is not None
    count = told.counted
    assert 0 < count < 10
    for each in (told.loadings, told.squared_cosines, told.strengths, told.cosine_intervals):
        assert np.isnan(each[count:]).all()
    for line in text.loadings(found.components, told, release.names).splitlines():
        assert not any(line.startswith(f"{i + 1} ") for i in range(count, 10))
    shown = text.alignment(told)
    assert shown.count("  not told") == 10 - count
    value = json.loads(json.dumps({**told.to_json(), **loadings_json(found.components, told.loadings, release.names)}))
    assert value["above_noise"] == count
    assert value["squared_cosines"][9] is None
    assert len(value["largest_loadings"]) == 10
    assert value["largest_loadings"][9][0]["low"] is None


def test_the_ends_go_with_the_signs_of_the_components() -> None:
    release = scene("strong").release()
    found = components(release, K)
    turned = Components(-found.components, found.eigenvalues, found.per_row, found.mean, found.scale)
    told, other = require_alignment(release, found), require_alignment(release, turned)
    assert told.loadings is not None
    assert other.loadings is not None
    np.testing.assert_allclose(told.loadings[..., 0], -other.loadings[..., 1])
    assert np.isfinite(told.loadings).all()


@pytest.mark.parametrize("centring", Centring)
def test_exact_eigenvalues_lie_in_their_intervals_where_n_is_private(centring: Centring) -> None:
    """Rows of one direction, far from zero: what a private n is off by multiplies them. 12 of 40 may miss."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(4000, 2)) * [3.0, 0.2] + [6.0, 0.0]
    known = drawn(rows, 12.0, "0.5", centring=centring, neighbours=Neighbours.ADD_REMOVE)
    exact = np.linalg.eigvalsh(covariance(known) if centring is Centring.PRIVATE else known.moment[:2, :2])[::-1]
    missed = 0
    for number in range(40):
        release = known.release(number)
        told = require_alignment(release, components(release, 2))
        low, high = told.intervals.T
        missed += not ((low <= exact) & (exact <= high)).all()
    assert missed < 12


def test_a_wide_release_tells_as_many_components(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the first look takes: eigenvalues that were not computed hide some of them."""
    rng, size = np.random.default_rng(0), 120
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    spread = np.concatenate([3 * np.sqrt(np.linspace(1, 0.25, 14)), np.full(size - 14, 0.02)])
    release = drawn(rng.normal(size=(20_000, size)) * spread @ basis.T, 14.0, "1").release()
    assert len(counted_components(release).components) == 14
    monkeypatch.setattr("dpdist.pca.alignment.MOST", 20)
    found = counted_components(release)
    assert len(found.components) == 14
    told = require_alignment(release, found)
    assert told.counted == 14
    one = require_alignment(release, components(release, 1))
    assert one.squared_cosines[0] > 0.9
