"""Shrinkage: nearer to the exact matrix for every law of noise, positive; and projections, by their definition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.linalg import eigh
from scipy.optimize import isotonic_regression
from scipy.stats import wishart

from dpdist.answers.captured import _excess
from dpdist.answers.shrinkage import on_simplex, optimal, optimal_values, tied, within_trace
from dpdist.errors import UsageError
from dpdist.mechanisms.noise_law import EdgeKind, Noise
from dpdist.pca.noise_edge import NoiseLaw, law_of

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


def law(kind: str) -> NoiseLaw:
    details = {"columns": D + 1, "scale": 1 / np.sqrt(2 * (D + 1))}
    known = {
        "normal": Noise("x", EdgeKind.NORMAL, 2.0, 1.0),
        "two-sided": Noise("x", EdgeKind.TWO_SIDED_WISHART, 2.0, 1.0, details=details),
    }[kind]
    found = law_of(known, D)
    assert found is not None
    return found


def apart(found: Matrix, truth: Matrix) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


@pytest.mark.parametrize("kind", ["normal", "two-sided"])
def test_the_shrunk_matrix_is_nearly_the_nearest_of_its_eigenvectors_and_positive(kind: str) -> None:
    """Nobody who does not know the exact matrix could be nearer than `best`."""
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


def test_a_wrong_law_is_noticed() -> None:
    """The twin: shrunk as if the noise had half of its edge."""
    truth = exact()
    released = truth + noise("normal", np.random.default_rng(2))
    half = law_of(Noise("x", EdgeKind.NORMAL, 0.5, 0.25), D)
    assert half is not None
    assert apart(optimal(released, half), truth) > 1.07 * apart(optimal(released, law("normal")), truth)


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


def noisy(seed: int, size: int = 5) -> tuple[Matrix, Matrix]:
    """Return a possible second moment of trace 10, and it with noise that drowns part of it."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(3, size))
    truth = rows.T @ rows
    truth *= 10 / np.trace(truth)
    error = random.normal(size=(size, size)) * 3
    return truth, truth + error + error.T


@pytest.mark.parametrize("seed", range(5))
def test_the_projection_is_the_nearest_point_and_never_further_from_the_truth(seed: int) -> None:
    truth, released = noisy(seed)
    found = within_trace(released, 10.0)
    assert np.array_equal(found, found.T)
    assert np.linalg.eigvalsh(found)[0] > -1e-12
    assert np.trace(found) <= 10 * (1 + 1e-12)
    assert np.allclose(within_trace(found, 10.0), found)
    # the characterisation of a projection on a convex set, tried at its points
    random = np.random.default_rng(100 + seed)
    for _ in range(50):
        other = random.normal(size=(random.integers(1, 5), 5))
        inside = other.T @ other
        inside *= random.uniform() * 10 / np.trace(inside)
        assert np.sum((released - found) * (inside - found)) <= 1e-9
    assert np.linalg.norm(found - truth) < np.linalg.norm(released - truth)


def test_a_possible_matrix_stays_and_the_trace_is_used_up_otherwise() -> None:
    truth, released = noisy(3)
    assert np.allclose(within_trace(truth, 10.5), truth)
    assert np.trace(within_trace(released, 2.0)) == pytest.approx(2)
    assert np.allclose(within_trace(np.diag([5.0, 4.0, -9.0]), 3.0), np.diag([2.0, 1.0, 0.0]))
    assert not on_simplex(np.array([1.0, -2.0]), -1.0).any()


@pytest.mark.parametrize("bound", [0.0, -1.0, np.nan])
def test_a_trace_that_is_none_is_refused(bound: float) -> None:
    with pytest.raises(UsageError, match="trace"):
        within_trace(np.eye(2), bound)


@pytest.mark.parametrize("kind", ["normal", "two-sided"])
def test_what_noise_adds_along_leading_eigenvectors_is_known(kind: str) -> None:
    """Of each, against all others; and of the first 10, 20, ... together. Without it they are too large, the twin."""
    random, truth = np.random.default_rng(2), exact() + 40 * np.eye(D)
    each: list[Matrix] = []
    together: list[Matrix] = []
    first = np.arange(9, 60, 10)
    for _ in range(3):
        values, vectors = eigh(truth + noise(kind, random))
        values, vectors = values[::-1].copy(), vectors[:, ::-1]
        added = values - np.einsum("ij,ik,kj->j", vectors, truth, vectors)
        each.append(np.array([added[:8], _excess(values, 8, law(kind))[0]]))
        together.append(np.array([np.cumsum(added)[first], _excess(values, 60, law(kind))[1][first]]))
    true, told = np.mean(each, axis=0)
    assert told.sum() == pytest.approx(true.sum(), rel=0.2)
    true, told = np.mean(together, axis=0)
    assert np.abs(told / true - 1).max() < 0.1


def test_what_is_beside_wishart_noise_varies_more_along_its_eigenvectors() -> None:
    """Twice along the first one, and not along those of normal noise; 40 draws of 10 vectors: 7 % of error."""
    size = 40
    for kind in (EdgeKind.NORMAL, EdgeKind.TWO_SIDED_WISHART):
        random = np.random.default_rng(5)
        shares, told = [], []
        details = {"columns": size + 1, "scale": 1 / np.sqrt(2 * (size + 1))}
        known = law_of(Noise("x", kind, 2.0, 1.0, details={} if kind is EdgeKind.NORMAL else details), size)
        assert known is not None
        for _ in range(40):
            if kind is EdgeKind.NORMAL:
                entries = random.normal(size=(size + 1, size + 1))
                drawn = (entries + entries.T) / np.sqrt(2)
            else:
                g, h = random.normal(size=(2, size + 1, size + 1))
                drawn = (g @ g.T - h @ h.T) / np.sqrt(2 * (size + 1))
            values, vectors = eigh(drawn[:size, :size])
            shares.append(((vectors[:, -10:].T @ drawn[:size, size]) ** 2).mean())
            told.append(1 + tied(values[-10:], values[:-10], known).mean())
        assert np.mean(shares) < 1.2 * np.mean(told)
        assert (np.mean(shares) > 1.3) == (kind is not EdgeKind.NORMAL)  # the twin: what is told without it
