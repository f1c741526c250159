"""The reported alignment and loadings of components, against rows with known components."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.releases import drawn_over

from dpdist.answers.alignment import components_above_noise, loadings_json, noise_law, require_alignment
from dpdist.answers.bias import clipped_rows
from dpdist.answers.components import components
from dpdist.answers.correlation import correlation
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.moment import total
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.artefact import Release
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows.dither import DitherKey, Dithers
from dpdist.report import components_text
from papers.common.drawn import Drawn, drawn

Floats = npt.NDArray[np.float64]
D, N, C = 40, 20_000, 4.0
SHARES = np.array([0.3, 0.1, 0.03, 0.002])
BASIS = np.linalg.qr(np.random.default_rng(3).normal(size=(D, D)))[0].T[:4]
EXACT = (BASIS.T * (N * C**2 * SHARES)) @ BASIS
"""The second moment of N rows with four components, the rows of BASIS."""


def released(mechanism: str = "gaussian", epsilon: str = "1", delta: str = "1e-6", **options: object) -> Release:
    request = ReleaseRequest(mechanism, PrivacyLoss.parse(epsilon, delta), C, options=options)
    return drawn_over(request, np.rint(EXACT / planned(request, Dimensions(D)).bound.unit ** 2).astype(np.int64), D, N)


@pytest.mark.parametrize(("mechanism", "delta"), [("wishart", "1e-6"), ("two-sided-wishart", "0")])
def test_intervals_strengths_and_cosines_tell_the_truth(mechanism: str, delta: str) -> None:
    """20 releases; simultaneous intervals miss with probability .1, so 12 misses have probability below 1e-7."""
    true_values = np.maximum(np.linalg.eigvalsh(EXACT / N)[::-1], 0)  # rounding makes some of the zeros negative
    misses, cosines, expected, strengths = 0, [], [], []
    for _ in range(20):
        release = released(mechanism, delta=delta)
        every = components(release, D)
        vectors, found = every.components, require_alignment(release, every)
        low, high = found.intervals.T
        misses += not (np.all(low <= true_values) and np.all(true_values <= high))
        cosines.append([float(v @ w) ** 2 for v, w in zip(vectors[:2], BASIS[:2], strict=True)])
        expected.append(found.squared_cosines[:2])
        strengths.append(found.strengths[:2])
    assert misses < 12
    assert np.mean(cosines, axis=0) == pytest.approx(np.mean(expected, axis=0), abs=0.05)
    assert np.mean(strengths, axis=0) == pytest.approx(C**2 * SHARES[:2], rel=0.1)


def test_the_components_that_are_counted_are_those_that_are_there() -> None:
    """Pure noise gives a counted component in fewer than 1 of 100 releases; in 7 of 10 with probability 1e-12."""
    counts, words = [], []
    for _ in range(10):
        counts.append(len(components_above_noise(released(epsilon="400")).components))
        try:
            components_above_noise(released(epsilon="0.001"))
        except BelowNoiseError as error:
            words.append(str(error))
    assert min(counts) == 4
    assert counts.count(4) >= 4
    assert len(words) >= 4
    assert "forecast" in words[0]
    assert "components=K" in words[0]


def test_a_release_that_is_only_multiplied_has_the_same_components() -> None:
    size, count = 300, 12
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("400", "1e-6"), C)
    strengths = N * C**2 / size * np.concatenate([np.linspace(1, 0.3, count), np.zeros(size - count)])
    release = drawn_over(
        request,
        np.rint(np.diag(strengths) / planned(request, Dimensions(size)).bound.unit ** 2).astype(np.int64),
        size,
        N,
    )
    matrix = release.lattice * release.bound.unit**2  # as it is stored
    found, expected = components_above_noise(release, lambda vectors: matrix @ vectors), components_above_noise(release)
    assert len(found.components) == len(expected.components) >= count
    assert found.eigenvalues == pytest.approx(expected.eigenvalues, rel=1e-12)
    with pytest.raises(BelowNoiseError, match="forecast"):
        components_above_noise(release, lambda vectors: 1e-9 * vectors)
    subspace = released("bingham", delta="0", components=2)
    assert noise_law(subspace) is None
    with pytest.raises(UsageError, match="bingham"):
        components_above_noise(subspace)


def test_rounding_on_a_coarse_grid_turns_a_component_no_further_than_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are on one line. Each of 40 intervals misses with probability at most .1: 17 miss with 1e-6."""
    direction = np.random.default_rng(9).normal(size=D)
    rows = np.outer(np.tile([-1.0, 1.0], 750), C * direction / np.linalg.norm(direction))
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("30", "1e-6"), C, grid_bits=4)

    def misses() -> int:
        missed = 0
        for _ in range(40):
            z = planned(request, Dimensions(D)).bound.apply(
                rows, np.empty(rows.shape), Dithers(DitherKey(total.draw_key()), 0)
            )
            release = drawn_over(request, (z.T @ z).astype(np.int64), D, len(rows))
            found = components(release, 1)
            ((low, high),) = require_alignment(release, found).cosine_intervals
            missed += not low <= float(found.components[0] @ rows[0]) ** 2 / float(rows[0] @ rows[0]) <= high
        return missed

    assert misses() < 17
    monkeypatch.setattr("dpdist.answers.alignment.rounding", lambda _: None)  # the twin: as if rounding turned nothing
    assert misses() > 20


@pytest.mark.parametrize("neighbours", Neighbours)
def test_the_noise_of_a_large_private_mean_is_no_component(
    neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are equal, with the clip norm. The top eigenvalue is about .6 of the edge."""
    d, rows = 30, 200_000
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), C, neighbours, centring=Centring.PRIVATE)
    bound = planned(request, Dimensions(d)).bound
    row = np.array([*[int(2.0**bound.grid_bits / d**0.5)] * d, bound.constant])
    exact = np.outer(row, row) * rows + np.diag([rows // 4] * d + [0])  # as rounding leaves it
    without, counts = 0, []
    for _ in range(60):
        release = drawn_over(request, exact, d, rows)
        every = components(release, d)
        found = require_alignment(release, every)
        assert np.isnan(found.strengths[found.counted :]).all()
        counts.append(found.counted)
        assert found.intervals[:, 0].max() == 0
        with monkeypatch.context() as patch:  # the twin: the noise of the mean left out
            for part in ("_centring_error", "_count_error", "mean_variance"):
                patch.setattr(f"dpdist.answers.alignment.{part}", lambda _: 0.0)
            left_out = require_alignment(release, every)
        without += left_out.intervals[0, 0] > 0
    assert counts.count(0) >= 38  # .85 of 600 draws had none: fewer by chance with probability 1e-5
    assert without > 0  # probability of none: 1e-10


# --- loadings

DRAWS, K = 60, 2
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


@pytest.mark.parametrize(
    ("name", "more", "correlations"),
    [
        ("strong", {"mean": 2.0, "neighbours": "add-remove"}, False), ("close", {"epsilon": "4"}, False),
        ("weak", {"epsilon": "2"}, False), ("strong", {"mechanism": "two-sided-wishart"}, False),
        ("strong", {"mechanism": "laplace"}, False),
        ("strong", {"mean": 0.5, "epsilon": "4"}, True),
    ],
)  # fmt: skip
def test_loadings_lie_in_their_intervals_and_mostly_not_in_a_fifth_of_them(
    name: str, more: dict[str, Any], *, correlations: bool
) -> None:
    """In 9 of 10 at least, of hundreds of releases' loadings that err together: .04 less has probability 6e-8."""
    known = scene(name, **more)
    matrix = covariance(known)
    deviations = np.sqrt(np.diag(matrix)) if correlations else np.ones(len(matrix))
    true = np.linalg.eigh(matrix / np.outer(deviations, deviations))[1][:, ::-1][:, :K].T
    said = held = narrow = 0
    for number in range(DRAWS):
        release = known.release(number)
        if correlations:
            standard = correlation(release, K)
            found, told = standard.components, standard.alignment
        else:
            found = components(release, K)
            told = require_alignment(release, found)
        assert told is not None
        assert told.loadings is not None
        ends, vectors = told.loadings, found.components
        told_of = np.isfinite(ends[..., 0])
        assert ((ends[..., 0] <= vectors) & (vectors <= ends[..., 1]))[told_of].all()
        exact = true * np.sign((true * vectors).sum(axis=1))[:, None]
        far = np.abs(exact - ends.mean(axis=-1)) / (ends[..., 1] - ends[..., 0]) * 2
        said += int(told_of.sum())
        held += int((far <= 1).sum())
        narrow += int((far <= 0.2).sum())
    assert said > DRAWS
    assert held >= 0.86 * said
    assert narrow < 0.7 * said


def test_components_that_are_close_are_told_together() -> None:
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
            assert "Components 1 to 2 cannot be told apart" in components_text.count_text(told)
            assert "(1-2)" in components_text.alignment(told, clipped_rows(release))
            shown = " ".join(components_text.loadings(found.components, told, release.names).split())
            assert not re.search(r"^1 |Loadings of components? 1\b", shown), "it is said that they are close"
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
    lines = components_text.loadings(found.components, told, release.names).splitlines()
    assert not any(line.startswith(f"{i + 1} ") for line in lines for i in range(count, 10))
    assert components_text.alignment(told, clipped_rows(release)).count("  unknown") == 10 - count
    value = json.loads(json.dumps({**told.to_json(), **loadings_json(found.components, told.loadings, release.names)}))
    assert (value["above_noise"], value["squared_cosines"][9]) == (count, None)
    assert len(value["largest_loadings"]) == 10
    assert value["largest_loadings"][9][0]["low"] is None


def test_exact_eigenvalues_lie_in_their_intervals_where_n_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows have the clip norm, along one line: the error of a private n multiplies nearly all of the matrix.

    1 of 75 misses, and without the error of n, the twin, half: 10 of 60 do with probability 1e-8 and 1 - 1e-7.
    """
    rows = np.random.default_rng(3).normal(size=(4000, 2)) * [900.0, 0.2]
    for centring in (Centring.NONE, Centring.PRIVATE):
        known = drawn(rows, 12.0, "0.5", centring=centring, neighbours=Neighbours.ADD_REMOVE)
        moment = covariance(known) if centring is Centring.PRIVATE else known.moment[:2, :2]
        exact = np.asarray(np.linalg.eigvalsh(moment)[::-1], np.float64)
        assert missed(known, exact) < 10
        if centring is Centring.PRIVATE:
            monkeypatch.setattr("dpdist.answers.alignment._count_error", lambda _: 0.0)
            assert missed(known, exact) >= 10
            monkeypatch.undo()


def missed(known: Drawn, exact: Floats) -> int:
    """Return how many of 60 releases have an exact eigenvalue outside its interval."""
    count = 0
    for number in range(60):
        release = known.release(number)
        low, high = require_alignment(release, components(release, 2)).intervals.T
        count += not ((low <= exact) & (exact <= high)).all()
    return count


def test_a_wide_release_tells_as_many_components(monkeypatch: pytest.MonkeyPatch) -> None:
    """More components than computed first: eigenvalues not computed hide some."""
    rng, size = np.random.default_rng(0), 120
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    spread = np.concatenate([3 * np.sqrt(np.linspace(1, 0.25, 14)), np.full(size - 14, 0.02)])
    release = drawn(rng.normal(size=(20_000, size)) * spread @ basis.T, 14.0, "1").release()
    assert len(components_above_noise(release).components) == 14
    monkeypatch.setattr("dpdist.answers.alignment.MOST", 20)
    found = components_above_noise(release)
    assert len(found.components) == 14
    told = require_alignment(release, found)
    assert told.counted == 14
    one = require_alignment(release, components(release, 1))
    assert one.squared_cosines[0] > 0.9
