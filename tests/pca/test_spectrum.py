"""Components of a private matrix: their order, sign and units, and a covariance without bias.

Releases are put together by hand from the exact moment of known rows, so that whatever differs from NumPy on the same
rows is an error of the bookkeeping and not noise.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.sparse.linalg import ArpackError
from support.releases import assemble

from dpdist.errors import BelowNoiseError, UsageError
from dpdist.mechanisms.noise_law import Noise
from dpdist.pca import components as pca_components
from dpdist.pca import eigen
from dpdist.pca.components import Components, about_mean, captured_variance, components
from dpdist.pca.eigen import by_lanczos, top_eigenpairs, top_eigenpairs_of
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.release.artefact import Release
from dpdist.rows.bounding import RowBound
from dpdist.triangle import packed

Matrix = npt.NDArray[np.float64]
Lattice = npt.NDArray[np.int64]

BITS = 20
"""Fine enough that the grid moves a second moment by less than TOLERANCE of the squared clip norm."""
TOLERANCE = 1e-5
ROWS = 400
CLIP = 40.0
CENTRE = (2.0, -3.0, 0.5, 1.0)
SCALE = (2.0, 0.5, 1.25, 4.0)


def table() -> Matrix:
    """Rows with a mean, correlations and well separated principal axes, none of them as long as CLIP."""
    rng = np.random.default_rng(20)
    mixing = np.array([[4.0, 1.0, 0.0, 0.5], [0.0, 2.5, 0.5, 0.0], [0.0, 0.0, 1.2, 0.3], [0.0, 0.0, 0.0, 0.5]])
    rows: Matrix = rng.uniform(-1, 1, size=(ROWS, 4)) @ mixing + [3.0, -2.0, 1.0, 0.5]
    return rows


def guarantee(neighbours: Neighbours) -> Guarantee:
    return Guarantee(neighbours, PrivacyLoss.parse("1"), None, Arithmetic.IDEAL_REAL, "none: made by hand")


def bound_for(columns: int, *, private: bool = False, **public: Any) -> RowBound:
    return RowBound(columns, CLIP, BITS, constant=2 ** (BITS - 1) if private else 0, **public)


def exact_lattice(rows: Matrix, bound: RowBound) -> Lattice:
    integers = bound.apply(rows, np.empty((rows.shape[0], bound.width))).astype(np.int64)
    product: Lattice = integers.T @ integers
    return product


def release_of(
    rows: Matrix,
    bound: RowBound,
    neighbours: Neighbours = Neighbours.REPLACE_ONE,
    *,
    noise: Lattice | None = None,
    variance: float = 0.0,
) -> Release:
    """Make the release of rows with this noise, declared to have this variance off the diagonal."""
    lattice = exact_lattice(rows, bound) + (0 if noise is None else noise)
    return assemble(
        release_id="by-hand",
        mechanism="gaussian",
        names=tuple(f"c{i}" for i in range(bound.columns)),
        guarantee=guarantee(neighbours),
        bound=bound,
        noise=Noise("by hand", variance_diagonal=2 * variance, variance_off_diagonal=variance),
        rows=rows.shape[0],
        neighbours=neighbours,
        claim=guarantee(neighbours).loss,
        answer=packed(lattice),
    )


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


# Eigenpairs of any symmetric matrix


def test_eigenpairs_are_ordered_by_value_and_not_by_magnitude() -> None:
    # the large negative eigenvalue of a private matrix is noise and must never become a component
    values, vectors = top_eigenpairs(symmetric([1.0, -50.0, 4.0, 2.0, -3.0]), 4)
    assert values == pytest.approx([4.0, 2.0, 1.0, -3.0])
    assert vectors.shape == (4, 5)


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("the other solver was to be taken")


def test_dense_and_lanczos_solvers_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = symmetric([*np.linspace(-5, 5, 90), 20.0, 30.0, 40.0, -60.0])
    dense = top_eigenpairs(matrix, 5)
    monkeypatch.setattr(eigen, "_DENSE_LIMIT", matrix.shape[0] - 1)
    monkeypatch.setattr(eigen, "_LANCZOS_SHARE", 10)
    monkeypatch.setattr(eigen, "eigh", refuse)
    lanczos = top_eigenpairs(matrix, 5)
    assert lanczos[0] == pytest.approx(dense[0], abs=1e-9)
    assert lanczos[1] == pytest.approx(dense[1], abs=1e-7)


def test_lanczos_gives_the_same_bytes_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigen, "_DENSE_LIMIT", 10)
    monkeypatch.setattr(eigen, "_LANCZOS_SHARE", 10)
    monkeypatch.setattr(eigen, "eigh", refuse)
    matrix = symmetric(np.linspace(-3, 3, 120))
    first, again = top_eigenpairs(matrix, 4), top_eigenpairs(matrix, 4)
    assert [a.tobytes() for a in first] == [a.tobytes() for a in again]


def test_lanczos_finds_components_in_any_direction() -> None:
    # columns that sum to zero: a constant start would be an eigenvector, and find nothing else
    size = 40
    matrix = symmetric(np.linspace(1, 9, size))
    matrix -= matrix.mean(axis=0)
    matrix -= matrix.mean(axis=1)[:, None]
    values, columns = by_lanczos(matrix, 3)
    assert values == pytest.approx(np.linalg.eigvalsh(matrix)[-3:], abs=1e-12)
    assert matrix @ columns == pytest.approx(columns * values, abs=1e-11)


def test_what_lanczos_cannot_or_does_not_solve_is_solved_by_lapack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigen, "_DENSE_LIMIT", 10)
    matrix = symmetric(np.linspace(-3, 3, 120))
    _, expected = np.linalg.eigh(matrix)
    solve = by_lanczos

    def failing(*_: Any) -> Any:
        raise ArpackError(-9)

    def wrong(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
        values, columns = solve(matrix, count)
        return values, columns + 1e-11 * columns[::-1]

    for solver in (failing, wrong):
        monkeypatch.setattr(eigen, "by_lanczos", solver)
        _, vectors = top_eigenpairs(matrix, 2)
        assert np.abs(vectors @ expected[:, :-3:-1]) == pytest.approx(np.eye(2), abs=1e-12)
    # with no other solver left, a pair that solves nothing is no component
    monkeypatch.setattr(eigen, "by_lapack", wrong)
    with pytest.raises(ArithmeticError, match="eigenvalue equation"):
        top_eigenpairs(matrix, 2)


def test_of_products_only_pairs_that_solve_the_equation_are_components(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = symmetric(np.linspace(-3, 3, 120))
    about = pca_components.AboutMean(np.zeros(120), 1.0, 0.0, per_row=False)
    values, vectors = pca_components._from_products(about, lambda v: matrix @ v, 2)
    assert matrix @ vectors.T == pytest.approx(vectors.T * values, abs=1e-11)
    solve = top_eigenpairs_of

    def wrong(*arguments: Any) -> tuple[Matrix, Matrix]:
        values, columns = solve(*arguments)
        return values, columns + 1e-11 * columns[::-1]

    def failing(*_: Any) -> Any:
        raise ArpackError(-9)

    monkeypatch.setattr(pca_components, "top_eigenpairs_of", wrong)
    with pytest.raises(ArithmeticError, match="eigenvalue equation"):
        pca_components._from_products(about, lambda v: matrix @ v, 2)
    monkeypatch.setattr(pca_components, "top_eigenpairs_of", failing)
    with pytest.raises(UsageError, match="too close to one another"):
        pca_components._from_products(about, lambda v: matrix @ v, 2)


@pytest.mark.parametrize("private", [False, True], ids=["second moment", "covariance"])
@pytest.mark.parametrize(("count", "matrices"), [(5, 1), (60, 2)], ids=["Lanczos", "LAPACK"])
def test_memory_is_one_matrix_beside_the_release_and_another_for_lapack(
    count: int, matrices: int, *, private: bool
) -> None:
    d = 800
    release = release_of(np.random.default_rng(8).normal(size=(100, d)), bound_for(d, private=private))
    components(release, 1)  # what is loaded at the first use does not count
    tracemalloc.start()
    try:
        components(release, count)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # beyond whole matrices there are vectors only
    vectors = 8 * d * (6 * count + 60)
    assert matrices * 8 * d**2 <= peak <= matrices * 8 * d**2 + vectors


def test_the_largest_entry_of_every_component_is_positive() -> None:
    for seed in range(20):
        _, vectors = top_eigenpairs(symmetric([5.0, 3.0, 2.0, 1.0], seed), 4)
        assert (np.take_along_axis(vectors, np.abs(vectors).argmax(axis=1)[:, None], axis=1) > 0).all()


@pytest.mark.parametrize("count", [-1, 0, 5])
def test_a_number_of_components_out_of_range_is_refused_with_the_range(count: int) -> None:
    with pytest.raises(UsageError, match="between 1 and 4"):
        top_eigenpairs(np.eye(4), count)


# Units: from the lattice back to the input


@pytest.mark.parametrize("centre", [None, CENTRE], ids=["about zero", "about a public centre"])
@pytest.mark.parametrize("scale", [None, SCALE], ids=["unscaled", "scaled"])
def test_without_private_centring_components_are_those_of_the_second_moment_about_the_centre(
    centre: tuple[float, ...] | None, scale: tuple[float, ...] | None
) -> None:
    rows = table()
    found = components(release_of(rows, bound_for(4, centre=centre, scale=scale)), 3)
    shift, divisor = np.array(centre or (0.0,) * 4), np.array(scale or (1.0,) * 4)
    seen = (rows - shift) / divisor
    assert_eigenpairs_of(found, seen.T @ seen / ROWS, CLIP**2)
    assert found.per_row
    assert found.mean.tolist() == shift.tolist()
    assert found.scale.tolist() == divisor.tolist()


def test_where_n_is_private_and_the_mean_is_not_released_eigenvalues_are_those_of_the_sum() -> None:
    rows = table()
    found = components(release_of(rows, bound_for(4), Neighbours.ADD_REMOVE), 2)
    assert_eigenpairs_of(found, rows.T @ rows, ROWS * CLIP**2)
    assert not found.per_row
    assert found.mean.tolist() == [0.0] * 4


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize("centre", [None, CENTRE], ids=["about zero", "about a public centre"])
@pytest.mark.parametrize("scale", [None, SCALE], ids=["unscaled", "scaled"])
def test_with_private_centring_components_and_mean_are_those_of_the_covariance(
    neighbours: Neighbours, centre: tuple[float, ...] | None, scale: tuple[float, ...] | None
) -> None:
    rows = table()
    found = components(release_of(rows, bound_for(4, private=True, centre=centre, scale=scale), neighbours), 3)
    divisor = np.array(scale or (1.0,) * 4)
    assert_eigenpairs_of(found, np.cov(rows.T / divisor[:, None], bias=True), CLIP**2)
    assert found.per_row
    assert found.mean == pytest.approx(rows.mean(axis=0), abs=TOLERANCE * CLIP)  # whatever the public centre was
    assert found.scale.tolist() == divisor.tolist()


def test_the_noisy_corner_counts_only_where_n_is_private() -> None:
    rows, bound = table(), bound_for(4, private=True)
    extra = np.zeros((5, 5), dtype=np.int64)
    extra[4, 4] = ROWS * bound.constant**2  # the estimate says twice as many rows as there are
    public = about_mean(release_of(rows, bound, noise=extra)).mean
    estimated = about_mean(release_of(rows, bound, Neighbours.ADD_REMOVE, noise=extra)).mean
    assert public == pytest.approx(rows.mean(axis=0), abs=TOLERANCE * CLIP)
    assert estimated == pytest.approx(rows.mean(axis=0) / 2, abs=TOLERANCE * CLIP)


@pytest.mark.parametrize("count", [0, -7])
def test_a_private_count_that_is_not_positive_is_refused_in_words_and_without_the_number(count: int) -> None:
    rows, bound = table(), bound_for(4, private=True)
    drowned = np.zeros((5, 5), dtype=np.int64)
    drowned[4, 4] = (count - ROWS) * bound.constant**2
    release = release_of(rows, bound, Neighbours.ADD_REMOVE, noise=drowned)
    with pytest.raises(BelowNoiseError, match="noise drowns the data") as refused:
        about_mean(release)
    assert not any(letter.isdigit() for letter in str(refused.value))


# The correction of the covariance


def test_the_variance_of_the_private_mean_is_put_back_on_the_diagonal_and_nowhere_else() -> None:
    rows, bound = table(), bound_for(4, private=True)
    variance = 1.0e13**2
    plain = covariance(release_of(rows, bound))
    corrected = covariance(release_of(rows, bound, variance=variance))
    # an entry of the mean is noise * (C / 2^b) / constant / n
    expected = variance * (CLIP / 2**BITS / 2 ** (BITS - 1) / ROWS) ** 2
    assert expected > 1
    assert corrected - plain == pytest.approx(expected * np.eye(4), abs=1e-9)


def diagonal_errors(declared_variance: float, sigma: float, repetitions: int = 800) -> Matrix:
    """Mean diagonal error of the covariance of many noisy releases of one table, in squared input units."""
    rows, bound = table(), bound_for(4, private=True)
    exact = np.cov(rows.T, bias=True)
    rng = np.random.default_rng(73)  # fixed: the alarm below was never raised by chance, and never will be
    errors = np.empty(repetitions)
    for i in range(repetitions):
        upper = np.triu(rng.normal(scale=sigma, size=(5, 5)), 1)
        diagonal = rng.normal(scale=np.sqrt(2) * sigma, size=5)
        noise = np.rint(upper + upper.T + np.diag(diagonal)).astype(np.int64)
        matrix = covariance(release_of(rows, bound, noise=noise, variance=declared_variance))
        errors[i] = np.diag(matrix - exact).mean()
    return errors


SIGMA = 0.5 * ROWS * 4.0 ** (BITS - 1)
"""Noise in the sum of the rows that moves each entry of the mean by about a quarter of the clip norm."""
ALARM = 6.0
"""Standard errors. Were the seed free, the unbiased estimate would raise a false alarm once in 5e8 runs."""


def test_the_covariance_is_unbiased_under_noise() -> None:
    errors = diagonal_errors(SIGMA**2, SIGMA)
    assert abs(errors.mean()) < ALARM * errors.std() / np.sqrt(errors.size)


def test_without_the_correction_the_same_test_finds_the_bias() -> None:
    # the twin: had the test above no power, it would pass here as well
    errors = diagonal_errors(0.0, SIGMA)
    assert errors.mean() < -2 * ALARM * errors.std() / np.sqrt(errors.size)


# How much a subspace captures


def test_the_best_subspace_captures_everything_in_whatever_basis() -> None:
    matrix = symmetric([9.0, 5.0, 2.0, 1.0, 0.1])
    _, best = top_eigenpairs(matrix, 3)
    turned, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    assert captured_variance(best, matrix) == pytest.approx(1)
    assert captured_variance(turned @ best, matrix) == pytest.approx(1)
    assert captured_variance(top_eigenpairs(-matrix, 2)[1], matrix) == pytest.approx((1.0 + 0.1) / (9.0 + 5.0))
