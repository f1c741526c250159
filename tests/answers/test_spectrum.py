"""Components of a private matrix: their order, sign and units, and a covariance without bias.

Releases are put together by hand, so that any difference from NumPy on the same rows is no noise.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpdist.answers import components as pca_components
from dpdist.answers import eigen
from dpdist.answers.components import Components, about_mean, captured_variance, components
from dpdist.answers.eigen import by_lanczos, top_eigenpairs, top_eigenpairs_of
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.core.release.artefact import Release
from dpdist.core.release.request import Centring
from papers.common.drawn import drawn

Matrix = npt.NDArray[np.float64]
Lattice = npt.NDArray[np.int64]

BITS = 20
"""Fine enough that the grid moves a second moment by less than TOLERANCE of the squared clip norm."""
TOLERANCE = 1e-5
ROWS = 400
CLIP = 40.0
CENTRE = (2.0, -3.0, 0.5, 1.0)
SCALE = (2.0, 0.5, 1.25, 4.0)
MEAN: dict[str, Any] = {"centring": Centring.PRIVATE}


def table() -> Matrix:
    """Rows with a mean, correlations and well separated principal axes, none of them as long as CLIP."""
    rng = np.random.default_rng(20)
    mixing = np.array([[4.0, 1.0, 0.0, 0.5], [0.0, 2.5, 0.5, 0.0], [0.0, 0.0, 1.2, 0.3], [0.0, 0.0, 0.0, 0.5]])
    rows: Matrix = rng.uniform(-1, 1, size=(ROWS, 4)) @ mixing + [3.0, -2.0, 1.0, 0.5]
    return rows


def release_of(
    rows: Matrix,
    neighbours: Neighbours = Neighbours.REPLACE_ONE,
    *,
    noise: Any = 0,
    variance: float = 0.0,
    **asked: Any,
) -> Release:
    """Make a release of rows with this noise, declared to have this variance off the diagonal."""
    made = drawn(rows, CLIP, neighbours=neighbours, grid_bits=BITS, **{"centring": Centring.NONE, **asked})
    declared = Noise("by hand", variance_diagonal=2 * variance, variance_off_diagonal=variance)
    return replace(made.release(), noise=declared, answer=made.lattice + noise)


def covariance(release: Release) -> Matrix:
    return about_mean(release).matrix(release.second_moment)


def symmetric(eigenvalues: npt.ArrayLike, seed: int = 1) -> Matrix:
    """Return a symmetric matrix with these eigenvalues in a random basis."""
    values = np.asarray(eigenvalues, dtype=np.float64)
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(values.size, values.size)))
    matrix: Matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2


def assert_eigenpairs_of(found: Components, matrix: Matrix, unit: float = 1.0) -> None:
    """Compare with all eigenpairs of an independently computed matrix; a component is known up to its sign."""
    k = found.components.shape[0]
    values, columns = np.linalg.eigh(matrix)
    assert found.eigenvalues == pytest.approx(values[::-1][:k], abs=TOLERANCE * unit)
    cosines = np.abs(np.einsum("ij,ji->i", found.components, columns[:, ::-1][:, :k]))
    assert cosines == pytest.approx(np.ones(k), abs=TOLERANCE)


def test_eigenpairs_are_ordered_by_value_and_not_by_magnitude_and_their_largest_entry_is_positive() -> None:
    """A large negative eigenvalue of a private matrix is noise."""
    for seed in range(9):
        values, vectors = top_eigenpairs(symmetric([1.0, -50.0, 4.0, 2.0, -3.0], seed), 4)
        assert values == pytest.approx([4.0, 2.0, 1.0, -3.0])
        assert vectors.shape == (4, 5)
        assert (np.take_along_axis(vectors, np.abs(vectors).argmax(axis=1)[:, None], axis=1) > 0).all()


def test_lanczos_agrees_with_lapack_and_gives_the_same_bytes_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the other solver was to be taken")

    matrix = symmetric([*np.linspace(-5, 5, 90), 20.0, 30.0, 40.0, -60.0])
    matrix -= matrix.mean(axis=0)  # a constant start would be an eigenvector, and find nothing else
    matrix -= matrix.mean(axis=1)[:, None]
    dense = top_eigenpairs(matrix, 5)
    monkeypatch.setattr(eigen, "_DENSE_LIMIT", matrix.shape[0] - 1)
    monkeypatch.setattr(eigen, "_LANCZOS_SHARE", 10)
    monkeypatch.setattr(eigen, "by_lapack", refuse)
    lanczos, again = top_eigenpairs(matrix, 5), top_eigenpairs(matrix, 5)
    assert lanczos[0] == pytest.approx(dense[0], abs=1e-9)
    assert lanczos[1] == pytest.approx(dense[1], abs=1e-7)
    assert [a.tobytes() for a in lanczos] == [a.tobytes() for a in again]


def test_only_pairs_that_solve_the_equation_are_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigen, "_DENSE_LIMIT", 10)
    matrix = symmetric(np.linspace(-3, 3, 120))
    _, expected = np.linalg.eigh(matrix)

    def failing(*_: Any) -> Any:
        raise eigen.NotConvergedError

    def wrong(solve: Callable[..., tuple[Matrix, Matrix]]) -> Callable[..., tuple[Matrix, Matrix]]:
        def solved(*arguments: Any) -> tuple[Matrix, Matrix]:
            values, columns = solve(*arguments)
            return values, columns + 1e-11 * columns[::-1]

        return solved

    release = release_of(table())
    moment = release.second_moment
    found = components(release, 2, lambda v: moment @ v)
    assert np.abs(found.components @ components(release, 2).components.T) == pytest.approx(np.eye(2), abs=1e-11)
    for solver, error, said in (
        (wrong(top_eigenpairs_of), ArithmeticError, "eigenvalue equation"),
        (failing, UsageError, "are too close"),
    ):
        monkeypatch.setattr(pca_components, "top_eigenpairs_of", solver)
        with pytest.raises(error, match=said):
            components(release, 2, lambda v: moment @ v)
    for solver in (failing, wrong(by_lanczos)):  # then LAPACK solves it
        monkeypatch.setattr(eigen, "by_lanczos", solver)
        _, vectors = top_eigenpairs(matrix, 2)
        assert np.abs(vectors @ expected[:, :-3:-1]) == pytest.approx(np.eye(2), abs=1e-12)
    monkeypatch.setattr(eigen, "by_lapack", wrong(by_lanczos))
    with pytest.raises(ArithmeticError, match="eigenvalue equation"):
        top_eigenpairs(matrix, 2)


@pytest.mark.parametrize(("count", "matrices", "private"), [(5, 1, True), (60, 2, False)], ids=["Lanczos", "LAPACK"])
def test_memory_is_one_matrix_beside_the_release_and_another_for_lapack(
    count: int, matrices: int, *, private: bool
) -> None:
    d = 800
    release = release_of(
        np.random.default_rng(8).normal(size=(100, d)), centring=Centring.PRIVATE if private else Centring.NONE
    )
    components(release, 1)  # exclude modules loaded on first use
    tracemalloc.start()
    try:
        components(release, count)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    vectors = 8 * d * (6 * count + 60)  # all there is beyond whole matrices
    assert matrices * 8 * d**2 <= peak <= matrices * 8 * d**2 + vectors


PUBLIC = [(None, None), (CENTRE, None), (None, SCALE), (CENTRE, SCALE)]


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize(("centre", "scale"), PUBLIC)
def test_components_are_those_of_the_second_moment_about_the_centre_or_of_the_covariance_with_private_centring(
    neighbours: Neighbours, centre: tuple[float, ...] | None, scale: tuple[float, ...] | None
) -> None:
    rows, shift, divisor = table(), np.array(centre or (0.0,) * 4), np.array(scale or (1.0,) * 4)
    found = components(release_of(rows, neighbours, centre=centre, scale=scale), 3)
    seen, n = (rows - shift) / divisor, ROWS if neighbours is Neighbours.REPLACE_ONE else 1
    assert_eigenpairs_of(found, seen.T @ seen / n, ROWS / n * CLIP**2)  # where n is private, it is the sum
    assert (found.per_row, found.mean.tolist()) == (n == ROWS, shift.tolist())
    private = components(release_of(rows, neighbours, **MEAN, centre=centre, scale=scale), 3)
    assert_eigenpairs_of(private, np.cov(rows.T / divisor[:, None], bias=True), CLIP**2)
    assert private.per_row
    assert private.mean == pytest.approx(rows.mean(axis=0), abs=TOLERANCE * CLIP)  # whatever the public centre was
    assert found.scale.tolist() == private.scale.tolist() == divisor.tolist()


def test_the_noisy_corner_counts_only_where_n_is_private() -> None:
    rows, extra = table(), np.zeros((5, 5), dtype=np.int64)
    extra[4, 4] = ROWS * 4 ** (BITS - 1)  # the estimate says twice as many rows as there are
    public = about_mean(release_of(rows, noise=extra, **MEAN)).mean
    estimated = about_mean(release_of(rows, Neighbours.ADD_REMOVE, noise=extra, **MEAN)).mean
    assert public == pytest.approx(rows.mean(axis=0), abs=TOLERANCE * CLIP)
    assert estimated == pytest.approx(rows.mean(axis=0) / 2, abs=TOLERANCE * CLIP)


@pytest.mark.parametrize("count", [0, -7])
def test_a_private_count_that_is_not_positive_is_refused_in_words_and_without_the_number(count: int) -> None:
    drowned = np.zeros((5, 5), dtype=np.int64)
    drowned[4, 4] = (count - ROWS) * 4 ** (BITS - 1)
    release = release_of(table(), Neighbours.ADD_REMOVE, noise=drowned, **MEAN)
    with pytest.raises(BelowNoiseError, match="the data are below the noise") as refused:
        about_mean(release)
    assert not any(letter.isdigit() for letter in str(refused.value))


@pytest.mark.parametrize("corrected", [True, False], ids=["corrected", "the twin"])
def test_the_covariance_is_unbiased_under_noise(*, corrected: bool) -> None:
    """Noise changes each entry of the mean by a quarter of the clip norm. False alarm with another seed: 1 in 5e8."""
    rows, sigma = table(), 0.5 * ROWS * 4.0 ** (BITS - 1)
    exact, rng = np.cov(rows.T, bias=True), np.random.default_rng(73)
    errors = np.empty(400)
    for i in range(errors.size):
        upper = np.triu(rng.normal(scale=sigma, size=(5, 5)), 1)
        noise = np.rint(upper + upper.T + np.diag(rng.normal(scale=np.sqrt(2) * sigma, size=5))).astype(np.int64)
        release = release_of(rows, noise=noise, variance=sigma**2 if corrected else 0.0, **MEAN)
        errors[i] = np.diag(covariance(release) - exact).mean()
    deviations = errors.mean() / errors.std() * np.sqrt(errors.size)
    assert abs(deviations) < 6 if corrected else deviations < -8


def test_the_best_subspace_captures_everything_in_any_basis() -> None:
    matrix = symmetric([9.0, 5.0, 2.0, 1.0, 0.1])
    _, best = top_eigenpairs(matrix, 3)
    turned, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    assert captured_variance(turned @ best, matrix) == pytest.approx(1)
    assert captured_variance(top_eigenpairs(-matrix, 2)[1], matrix) == pytest.approx((1.0 + 0.1) / (9.0 + 5.0))
