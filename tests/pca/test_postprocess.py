"""Post-processing: nearest points of convex sets, checked against the definition and not against the formula."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from dpdist.errors import UsageError
from dpdist.pca.postprocess import positive_part, symmetric_part, truncated, within_trace

Matrix = npt.NDArray[np.float64]


def noisy(seed: int, size: int = 5) -> tuple[Matrix, Matrix]:
    """Return a possible second moment of trace 10, and it with noise that drowns part of it."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(3, size))
    exact = rows.T @ rows
    exact *= 10 / np.trace(exact)
    noise = rng.normal(size=(size, size)) * 3
    return exact, exact + noise + noise.T


@pytest.mark.parametrize("seed", range(20))
def test_projections_are_nearest_points_and_never_further_from_the_truth(seed: int) -> None:
    exact, released = noisy(seed)
    for project, bound in ((positive_part, np.inf), (lambda y: within_trace(y, 10.0), 10.0)):
        found = project(released)
        assert np.array_equal(found, found.T)
        assert np.linalg.eigvalsh(found)[0] > -1e-12
        assert np.trace(found) <= bound * (1 + 1e-12)
        assert np.allclose(project(found), found)
        # the characterisation of a projection on a convex set, tried at its points
        rng = np.random.default_rng(100 + seed)
        for _ in range(50):
            other = rng.normal(size=(rng.integers(1, 5), 5))
            inside = other.T @ other
            inside *= rng.uniform() * min(bound, 50) / np.trace(inside)
            assert np.sum((released - found) * (inside - found)) <= 1e-9
        assert np.linalg.norm(found - exact) < np.linalg.norm(released - exact)


def test_a_possible_matrix_stays_and_the_trace_is_used_up_otherwise() -> None:
    exact, released = noisy(3)
    assert np.allclose(within_trace(exact, 10.5), exact)
    assert np.trace(within_trace(released, 2.0)) == pytest.approx(2)
    assert np.allclose(within_trace(np.diag([5.0, 4.0, -9.0]), 3.0), np.diag([2.0, 1.0, 0.0]))


def test_projections_keep_the_order_of_the_eigenvectors() -> None:
    _, released = noisy(4)
    _, before = np.linalg.eigh(released)
    _, after = np.linalg.eigh(within_trace(released, 10.0))
    assert abs(before[:, -1] @ after[:, -1]) == pytest.approx(1)


def test_truncation_keeps_the_largest_eigenvalues_by_value() -> None:
    matrix = np.diag([3.0, -8.0, 2.0, 1.0])
    assert np.allclose(truncated(matrix, 2), np.diag([3.0, 0.0, 2.0, 0.0]))
    assert np.allclose(truncated(np.diag([3.0, -8.0]), 2), np.diag([3.0, 0.0]))


def test_the_symmetric_part_is_taken_first() -> None:
    matrix = np.array([[1.0, 4.0], [0.0, 1.0]])
    assert np.allclose(symmetric_part(matrix), [[1, 2], [2, 1]])
    assert np.allclose(positive_part(matrix), positive_part(matrix.T))


@pytest.mark.parametrize("bound", [0.0, -1.0, np.nan])
def test_what_makes_no_sense_is_refused(bound: float) -> None:
    with pytest.raises(UsageError, match="trace"):
        within_trace(np.eye(2), bound)
    for rank in (0, 3):
        with pytest.raises(UsageError, match="rank"):
            truncated(np.eye(2), rank)
