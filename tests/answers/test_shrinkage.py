"""Shrinkage: closer to the exact matrix for every kind of noise, and positive; projections by their definition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.linalg import eigh
from scipy.optimize import isotonic_regression
from scipy.stats import wishart

from dpdist.answers.noise_edge import NoiseLaw, law_of
from dpdist.answers.shrinkage import optimal, optimal_values, tied, within_trace
from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise

Matrix = npt.NDArray[np.float64]
D = 120


def exact(rank: int = 12, seed: int = 1) -> Matrix:
    """Return a second moment of some strong and some weak components."""
    random = np.random.default_rng(seed)
    basis = np.linalg.qr(random.normal(size=(D, D)))[0][:, :rank]
    return np.asarray((basis * np.geomspace(400, 10, rank)) @ basis.T, dtype=np.float64)


def noise(kind: str, random: np.random.Generator) -> Matrix:
    """Return noise of variance 1 off the diagonal."""
    if kind == "normal":
        entries = random.normal(size=(D, D))
        return np.asarray((entries + entries.T) / np.sqrt(2), dtype=np.float64)
    scale = 1 / np.sqrt(2 * (D + 1))
    drawn = np.array([wishart.rvs(D + 1, np.eye(D) * scale, random_state=random) for _ in range(2)])
    return np.asarray(drawn[0] - drawn[1], dtype=np.float64)


def law(name: str) -> NoiseLaw:
    details = {"columns": D + 1, "scale": 1 / np.sqrt(2 * (D + 1))}
    kind, more = (EdgeKind.NORMAL, {}) if name == "normal" else (EdgeKind.TWO_SIDED_WISHART, details)
    found = law_of(Noise("x", kind, 2.0, 1.0, details=more), D)
    assert found is not None
    return found


def apart(found: Matrix, truth: Matrix) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


@pytest.mark.parametrize("kind", ["normal", "two-sided"])
def test_the_shrunk_matrix_is_nearly_the_nearest_of_its_eigenvectors_and_positive(kind: str) -> None:
    """Nothing computed without the exact matrix is closer than `best`."""
    random, truth = np.random.default_rng(2), exact()
    raw, shrunk, best, traced = [], [], [], []
    for _ in range(4):
        released = truth + noise(kind, random)
        found = optimal(released, law(kind))
        _, vectors = eigh(released)
        assert np.linalg.eigvalsh(found)[0] > 0
        assert np.array_equal(found, found.T)
        assert np.trace(found) == pytest.approx(np.trace(released))
        raw.append(apart(released, truth))
        shrunk.append(apart(found, truth))
        traced.append(apart(within_trace(released, float(np.trace(truth))), truth))
        best.append(apart((vectors * np.einsum("ij,ik,kj->j", vectors, truth, vectors)) @ vectors.T, truth))
    assert np.mean(shrunk) < 1.05 * np.mean(best)
    assert np.mean(shrunk) < np.mean(traced) < np.mean(raw)
    half = law_of(Noise("x", EdgeKind.NORMAL, 0.5, 0.25), D)  # the twin: as if the noise had half of its edge
    assert half is not None
    assert apart(optimal(released, half), truth) > 1.07 * shrunk[-1]


def test_of_a_semicircle_it_is_the_formula_of_bun_allez_bouchaud_and_potters() -> None:
    values: Matrix = np.sort(np.random.default_rng(3).normal(size=D) * 25 + 120).astype(np.float64)
    gaps = values[:, None] - values
    h = (gaps / (gaps**2 + 1)).mean(axis=1)  # eta: the spread of an entry
    expected = isotonic_regression(values - 2 * D * h).x
    assert expected.min() > 3  # so that none is raised to the least value
    assert np.allclose(optimal_values(values, law("normal")), expected)


def test_one_column_and_pure_noise_are_shrunk_too() -> None:
    one = law_of(Noise("x", EdgeKind.NORMAL, 2.0, 1.0), 1)
    assert one is not None
    assert optimal(np.array([[9.0]]), one)[0, 0] == pytest.approx(9)
    assert optimal(np.array([[-9.0]]), one)[0, 0] == pytest.approx(np.sqrt(2))
    found = optimal(noise("normal", np.random.default_rng(5)), law("normal"))
    assert 0 < np.linalg.eigvalsh(found)[-1] < 3  # the noise ends at 22


def test_the_projection_is_the_nearest_possible_matrix() -> None:
    """By the characterisation of a projection on a convex set, tried at its points."""
    for seed in range(5):
        random = np.random.default_rng(seed)
        rows, error = random.normal(size=(3, 5)), random.normal(size=(5, 5)) * 3
        truth = rows.T @ rows * 10 / np.sum(rows**2)
        released = truth + error + error.T
        found = within_trace(released, 10.0)
        assert np.array_equal(found, found.T)
        assert np.linalg.eigvalsh(found)[0] > -1e-12
        assert np.trace(found) <= 10 * (1 + 1e-12)
        assert np.allclose(within_trace(found, 10.0), found)
        for _ in range(50):
            other = random.normal(size=(random.integers(1, 5), 5))
            inside = other.T @ other * random.uniform() * 10 / np.sum(other**2)
            assert np.sum((released - found) * (inside - found)) <= 1e-9
        assert np.allclose(within_trace(truth, 10.5), truth)
    assert np.allclose(within_trace(np.diag([5.0, 4.0, -9.0]), 3.0), np.diag([2.0, 1.0, 0.0]))
    for bound in (0.0, -1.0, np.nan):
        with pytest.raises(UsageError, match="trace"):
            within_trace(np.eye(2), bound)


@pytest.mark.parametrize("kind", ["normal", "two-sided"])
def test_beside_wishart_noise_a_column_varies_more_along_its_eigenvectors(kind: str) -> None:
    """Twice along the first one, and not along those of normal noise; 12 draws of 10 vectors: 10 % of error."""
    random, size, shares, told = np.random.default_rng(5), D - 1, [], []
    for _ in range(12):
        drawn = noise(kind, random)
        values, vectors = eigh(drawn[:size, :size])
        shares.append(((vectors[:, -10:].T @ drawn[:size, size]) ** 2).mean())
        told.append(1 + tied(values[-10:], values[:-10], law(kind)).mean())
    assert np.mean(shares) < 1.2 * np.mean(told)
    assert (np.mean(shares) > 1.3) == (kind == "two-sided")  # the twin: without it
