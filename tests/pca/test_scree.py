"""What is said of a release's components, against rows whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from support.releases import assemble

from dpdist.errors import DrownedError, UsageError
from dpdist.mechanisms.attack import KnownMoment
from dpdist.moment.keys import drawn
from dpdist.noise.entropy import SYSTEM
from dpdist.pca.components import about_mean, components
from dpdist.pca.eigen import top_eigenpairs
from dpdist.pca.noise_edge import CONFIDENCE
from dpdist.pca.scree import above_noise, noise_law, scree
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release.artefact import Release
from dpdist.release.request import Centring, ReleaseRequest
from dpdist.rows.bounding import TRUNCATED
from dpdist.rows.dither import DitherKey, Dithers

Floats = npt.NDArray[np.float64]
D, N, C = 40, 20_000, 4.0
SHARES = np.array([0.3, 0.1, 0.03, 0.002])


def truth(seed: int = 3) -> tuple[Floats, Floats]:
    """Return an exact second moment of N rows with four components, and these, as orthonormal rows."""
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(D, D)))[0].T
    return (basis[:4].T * (N * C**2 * SHARES)) @ basis[:4], basis[:4]


def released(mechanism: str = "gaussian", epsilon: str = "1", delta: str = "1e-6", **options: object) -> Release:
    request = ReleaseRequest(mechanism, PrivacyLoss.parse(epsilon, delta), C, options=options)
    exact, _ = truth()
    calibrated, bound = request.calibrated(D), request.bound(D)
    lattice = np.rint(exact / bound.unit**2).astype(np.int64)
    return assemble(
        release_id="x", mechanism=mechanism, names=tuple(map(str, range(D))), neighbours=Neighbours.REPLACE_ONE,
        claim=calibrated.claim, guarantee=calibrated.guarantee, bound=bound, noise=calibrated.noise, rows=N,
        answer=calibrated.answer(KnownMoment(lattice), SYSTEM),
    )  # fmt: skip


def matrix_of(release: Release) -> Floats:
    return about_mean(release).matrix(release.second_moment)


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
        values, vectors = top_eigenpairs(matrix_of(release), D)
        found = scree(release, values)
        assert found is not None
        low, high = found.intervals.T
        misses += not (np.all(low <= true_values) and np.all(true_values <= high))
        cosines.append([float(v @ w) ** 2 for v, w in zip(vectors[:2], basis[:2], strict=True)])
        expected.append(found.squared_cosines[:2])
        strengths.append(found.strengths[:2])
    assert misses < 12
    assert np.mean(cosines, axis=0) == pytest.approx(np.mean(expected, axis=0), abs=0.05)
    assert np.mean(strengths, axis=0) == pytest.approx(C**2 * SHARES[:2], rel=0.1)


def test_shrinking_brings_the_released_part_nearer_to_the_truth() -> None:
    exact = truth()[0] / N
    release = released("two-sided-wishart", delta="0")
    values, vectors = top_eigenpairs(matrix_of(release), 4)
    found = scree(release, values)
    assert found is not None
    errors = [np.linalg.norm((vectors.T * use) @ vectors - exact) for use in (found.shrunk, found.eigenvalues)]
    assert errors[0] < errors[1]


def test_components_above_the_noise_are_those_that_are_there() -> None:
    """At a large epsilon all four stand out, and no fifth one; at a tiny one none, and that is said.

    Noise passes its edge in about one release of 20; that it does in 7 of 10 has probability 1e-7.
    """
    counts, words = [], []
    for _ in range(10):
        counts.append(len(above_noise(released(epsilon="400")).components))
        try:
            above_noise(released(epsilon="0.001"))
        except DrownedError as error:
            words.append(str(error))
    assert min(counts) == 4
    assert counts.count(4) >= 4
    assert len(words) >= 4
    assert "forecast" in words[0]
    assert "components=K" in words[0]


def diagonal(size: int, count: int, epsilon: str) -> Release:
    """Return a release of so many equal components in so many columns."""
    request = ReleaseRequest("gaussian", PrivacyLoss.parse(epsilon, "1e-6"), C)
    calibrated, bound = request.calibrated(size), request.bound(size)
    lattice = np.rint(np.diag([N * C**2 / size] * count + [0] * (size - count)) / bound.unit**2).astype(np.int64)
    return assemble(
        release_id="x", mechanism="gaussian", names=tuple(map(str, range(size))), neighbours=Neighbours.REPLACE_ONE,
        claim=calibrated.claim, guarantee=calibrated.guarantee, bound=bound, noise=calibrated.noise, rows=N,
        answer=calibrated.answer(KnownMoment(lattice), SYSTEM),
    )  # fmt: skip


def test_many_components_above_the_noise_are_all_counted() -> None:
    """More than the first look takes."""
    assert len(above_noise(diagonal(D, 30, "400")).components) == 30


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
def test_a_release_that_is_only_multiplied_has_the_same_components_above_the_noise(count: int) -> None:
    release = diagonal(300, count, "400")
    found, expected = above_noise(release, Multiplied(release)), above_noise(release)
    assert len(found.components) == len(expected.components) >= count
    assert found.eigenvalues is not None
    assert expected.eigenvalues is not None
    assert found.eigenvalues == pytest.approx(expected.eigenvalues, rel=1e-12)
    drowned = Multiplied(release)
    drowned.matrix = np.diag(np.linspace(0, 1e-9, 300))
    with pytest.raises(DrownedError, match="forecast"):
        above_noise(release, drowned)


@pytest.mark.parametrize(("nearest", "above", "most"), [(0.9995, 4, 0.8), (1.0005, 5, 1.6)])
def test_components_near_the_edge_are_counted_right_and_noise_is_not_told_apart_for_it(
    nearest: float, above: int, most: float
) -> None:
    """Noise as it lies (a semicircle), four components far from its edge and one near; one above it costs its own."""
    size = 1000
    release = diagonal(size, 0, "1")
    law = noise_law(release)
    assert law is not None
    edge = law.edge_at(CONFIDENCE)
    at = np.linspace(-1, 1, 10**6)
    share = 0.5 + (at * np.sqrt(1 - at**2) + np.arcsin(at)) / np.pi
    noise = law.edge * np.interp((np.arange(size - 5) + 0.5) / (size - 5), share, at)
    spectrum = np.concatenate([noise, edge * np.array([nearest, 2, 5, 10, 20])])
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))[0]
    counted, told_apart = Multiplied(release), Multiplied(release)
    counted.matrix = told_apart.matrix = N * (basis * spectrum) @ basis.T  # eigenvalues are told for each row
    found = above_noise(release, counted)
    assert len(found.components) == above
    components(release, 8, told_apart)
    assert counted.times < most * told_apart.times


def test_a_subspace_has_no_edge() -> None:
    release = released("bingham", delta="0", components=2)
    assert noise_law(release) is None
    with pytest.raises(UsageError, match="bingham"):
        above_noise(release)


def rounded_release(bits: int, rows: Floats) -> Release:
    """Return a release of rows that were rounded to a grid, under a new key."""
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("30", "1e-6"), C, grid_bits=bits)
    bound, calibrated = request.bound(D), request.calibrated(D)
    z = bound.apply(rows, np.empty(rows.shape), Dithers(DitherKey(drawn()), 0))
    return assemble(
        release_id="x", mechanism="gaussian", names=tuple(map(str, range(D))), neighbours=Neighbours.REPLACE_ONE,
        claim=calibrated.claim, guarantee=calibrated.guarantee, bound=bound, noise=calibrated.noise, rows=len(rows),
        answer=calibrated.answer(KnownMoment((z.T @ z).astype(np.int64)), SYSTEM),
    )  # fmt: skip


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_on_a_coarse_grid_turns_a_component_no_further_than_is_stated(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows lie on one line. Each of 40 intervals misses with probability .05 at most: 12 do with 1e-6."""
    direction = np.random.default_rng(9).normal(size=D)
    rows = np.outer(np.tile([-1.0, 1.0], 750), C * direction / np.linalg.norm(direction))

    def misses() -> int:
        missed = 0
        for _ in range(40):
            release = rounded_release(bits, rows)
            values, vectors = top_eigenpairs(matrix_of(release), 1)
            found = scree(release, values)
            assert found is not None
            ((low, high),) = found.cosine_intervals
            assert low <= found.squared_cosines[0] <= high
            missed += not low <= float(vectors[0] @ rows[0]) ** 2 / float(rows[0] @ rows[0]) <= high
        return missed

    assert misses() < 12
    if bits == 4:  # the twin: as if rounding moved eigenvalues and turned nothing
        monkeypatch.setattr("dpdist.pca.scree._rounded_law", lambda _, law, __: law)
        assert misses() > 20


def test_private_centring_keeps_the_edge() -> None:
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), C, centring=Centring.PRIVATE)
    bound = request.bound(D)
    calibrated = request.calibrated(D)
    lattice = np.zeros((D + 1, D + 1), dtype=np.int64)
    lattice[-1, -1] = N * bound.constant**2
    release = assemble(
        release_id="x", mechanism="gaussian", names=tuple(map(str, range(D))), neighbours=Neighbours.REPLACE_ONE,
        claim=calibrated.claim, guarantee=calibrated.guarantee, bound=bound, noise=calibrated.noise, rows=N,
        answer=calibrated.answer(KnownMoment(lattice), SYSTEM),
    )  # fmt: skip
    law = noise_law(release)
    assert law is not None
    values, _ = top_eigenpairs(matrix_of(release), 1)
    assert values[0] == pytest.approx(law.edge, rel=0.35)


@pytest.mark.parametrize("neighbours", Neighbours)
def test_the_noise_of_a_large_private_mean_is_no_component(
    neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing varies: all rows are one row as long as the clip norm. The top eigenvalue is about .6 of the edge."""
    d, rows = 30, 200_000
    request = ReleaseRequest(
        "gaussian", PrivacyLoss.parse("1", "1e-6"), C, neighbours=neighbours, centring=Centring.PRIVATE
    )
    calibrated, bound = request.calibrated(d), request.bound(d)
    whole = replace(bound, rule=TRUNCATED)
    row = whole.apply(np.full((1, d), C / d**0.5), np.empty((1, bound.width))).astype(np.int64)[0]
    exact = np.outer(row, row) * rows + np.diag([rows // 4] * d + [0])  # as rounding leaves it
    without = 0
    for _ in range(20):
        release = assemble(
            release_id="x", mechanism="gaussian", names=tuple(map(str, range(d))), neighbours=neighbours,
            claim=calibrated.claim, guarantee=calibrated.guarantee, bound=bound, noise=calibrated.noise, rows=rows,
            answer=calibrated.answer(KnownMoment(exact), SYSTEM),
        )  # fmt: skip
        values, _ = top_eigenpairs(matrix_of(release), d)
        found = scree(release, values)
        assert found is not None
        assert found.above == 0
        assert not found.strengths.any()
        assert found.intervals[:, 0].max() == 0
        with monkeypatch.context() as patch:  # the twin: the noise of the mean left out
            patch.setattr("dpdist.pca.scree._centring_error", lambda _: 0.0)
            left_out = scree(release, values)
        assert left_out is not None
        without += left_out.above > 0
    assert without > 0  # probability of none: 1e-10
