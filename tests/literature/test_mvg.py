"""Matrix-variate Gaussian noise: the published conditions, the exact guarantee, directions, and the draws."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from scipy.optimize import minimize
from support.registered import BOUND, calibrated
from support.tallies import FALSE_ALARM, total_passes

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.accounting import gaussian_delta
from dpdist.core.privacy.guarantee import Neighbours
from dpdist.literature import mvg

Floats = npt.NDArray[np.float64]


def as_rows(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in matrix.tolist())


def rotation(size: int) -> Floats:
    """Return orthonormal columns, all of their entries well away from 0 and 1."""
    return np.linalg.qr(np.random.default_rng(1).normal(size=(size, size)))[0]


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"allocation": "binary", "informative": 2, "share": 0.9},
        {"allocation": "optimal", "spectrum": (1e6, 1e5, 3e4, 10.0, 9.0)},
    ],
)
def test_every_allocation_meets_the_published_condition_with_equality(
    neighbours: Neighbours, options: dict[str, Any]
) -> None:
    d, rows, epsilon = 5, 50, 1.0
    s = math.sqrt(2) if neighbours is Neighbours.REPLACE_ONE else 1.0
    h = 1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5
    roots = sum(1 / math.sqrt(i) for i in range(1, 6))
    zeta = math.sqrt(25 + 2 * math.sqrt(-25 * math.log(1e-6)) - 2 * math.log(1e-6))
    b = 2 * math.sqrt(d) * zeta * h * s
    for name, a in (("mvg", (h + roots) * rows**2 + 2 * h * rows * s), ("mvg-psd", 4 * h * rows * s)):
        mechanism = calibrated(name, d, neighbours=neighbours, rows=rows, **options)
        unit = float(BOUND) if name == "mvg-psd" else float(BOUND) ** 2
        norm = float(np.linalg.norm(unit / mechanism.eigenvalues))
        phi = norm if name == "mvg-psd" else math.sqrt(norm * math.sqrt(d))
        assert a * phi**2 + b * phi == pytest.approx(2 * epsilon, rel=1e-9)
        if "share" in options and name == "mvg-psd":
            power = mechanism.eigenvalues**-2.0
            assert power[:2].sum() / power.sum() == pytest.approx(0.9)


def symmetric_variances(eigenvalues: Floats, *, two_sided: bool) -> Floats:
    """(d, d) variances of the independent entries of the symmetric part, in the eigenbasis."""
    s = eigenvalues
    off = np.outer(s, s) / 2 if two_sided else np.add.outer(s, s) / 4
    return off + np.diag(np.diag(off))


def largest_mu_squared(weight: Floats, neighbours: Neighbours, rng: np.random.Generator) -> float:
    """Climb ``sum weight D²`` over rows v, w of the unit ball, D = v v^T - w w^T, from a random start."""

    def negative(flat: Floats) -> float:
        v, w = (row / max(1.0, float(np.linalg.norm(row))) for row in flat.reshape(2, -1))
        change = np.outer(v, v) - np.outer(w, w) * (neighbours is Neighbours.REPLACE_ONE)
        return -float(np.sum(weight * change**2))

    return -float(minimize(negative, rng.normal(size=2 * len(weight))).fun)


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("neighbours", Neighbours)
def test_mu_is_the_largest_that_any_rows_reach(neighbours: Neighbours, two_sided: bool) -> None:
    rng = np.random.default_rng(5)
    for size in (1, 2, 4):
        spectrum = rng.uniform(0.5, 5, size)
        unit = float(BOUND) if two_sided else float(BOUND) ** 2
        query = LatticeQuery(size, BOUND, neighbours)
        bound = mvg._mu_squared(query, spectrum * unit, two_sided=two_sided)
        everywhere = np.outer(1 / spectrum, 1 / spectrum if two_sided else np.ones(size))
        once = np.triu(1 / symmetric_variances(spectrum, two_sided=two_sided))
        for weight in (everywhere, once):  # of N itself, and of its symmetric part
            reached = max(largest_mu_squared(weight, neighbours, rng) for _ in range(12))
            assert reached <= bound * (1 + 1e-7)
            assert reached >= bound * (1 - 1e-5)


@pytest.mark.parametrize("neighbours", Neighbours)
def test_the_exact_calibration_is_that_of_gaussian_and_no_shape_beats_it(neighbours: Neighbours) -> None:
    reference = calibrated("gaussian", 4, neighbours=neighbours).noise
    isotropic = calibrated("mvg-exact", 4, neighbours=neighbours)
    basis = rotation(4)
    sigma = as_rows(basis @ np.diag([1.0, 1.5, 40.0, 0.7]) @ basis.T)
    uneven = calibrated("mvg-exact", 4, neighbours=neighbours, sigma=sigma)
    for entry in ("variance_diagonal", "variance_off_diagonal"):
        assert isotropic.noise[entry] == pytest.approx(reference[entry], rel=1e-6)
        assert uneven.noise[entry] > isotropic.noise[entry]
    for mechanism in (isotropic, uneven):
        mu_squared = mechanism.guarantee.mu_squared
        assert gaussian_delta(Fraction(1), mu_squared) <= 1e-6
        assert gaussian_delta(Fraction(1), mu_squared * (1 + Fraction(1, 10**6))) > 1e-6


def passes(sample: Floats) -> bool:
    """Two-sided chi-squared test that independent normal draws of mean 0 have variance 1, and a test of their shape."""
    shape = stats.kstest(sample.ravel(), "norm").pvalue > FALSE_ALARM
    return bool(shape) and total_passes(float(np.sum(sample**2)), stats.chi2(sample.size))


@pytest.mark.parametrize("name", ["mvg", "mvg-psd", "mvg-exact"])
def test_noise_has_the_covariance_psi_times_sigma_and_the_loss_is_gaussian(name: str) -> None:
    size, count = 3, 8000
    basis = rotation(size)
    if name == "mvg-exact":
        options: dict[str, Any] = {"sigma": as_rows(basis @ np.diag([1.0, 2.0, 9.0]) @ basis.T)}
    else:
        options = {"rows": 3, "allocation": "binary", "share": 0.9, "directions": as_rows(basis.T)}
    mechanism = calibrated(name, size, **options)
    values = mechanism.eigenvalues
    sigma = basis @ np.diag(values) @ basis.T
    psi = np.eye(size) if name == "mvg" else sigma
    # symmetric part of column-stacked N: entries (i, j), i <= j, of covariance T (Psi ⊗ Sigma) T^T
    transform = np.zeros((6, 9))
    for row, (i, j) in enumerate(zip(*np.triu_indices(size), strict=True)):
        transform[row, i + size * j] += 0.5
        transform[row, j + size * i] += 0.5
    covariance = transform @ np.kron(psi, sigma) @ transform.T
    diagonal = np.array([0, 3, 5])
    rest = np.array([1, 2, 4])
    assert mechanism.noise["variance_diagonal"] == pytest.approx(np.mean(np.diag(covariance)[diagonal]))
    assert mechanism.noise["variance_off_diagonal"] == pytest.approx(np.mean(np.diag(covariance)[rest]))

    sample = np.array([mechanism.draw(SYSTEM) for _ in range(count)], dtype=np.float64)
    white = np.linalg.solve(np.linalg.cholesky(covariance), sample.T)
    assert passes(white)
    assert not passes(0.95 * white)  # the twin, with 5 % too little noise
    plain = symmetric_variances(values, two_sided=name != "mvg")[np.triu_indices(size)]
    assert not passes(sample.T / np.sqrt(plain)[:, None])  # and the twin that omits the directions
    correlation = np.asarray(np.corrcoef(white))[np.triu_indices(6, 1)] * math.sqrt(count)
    assert np.abs(correlation).max() < stats.norm.isf(FALSE_ALARM / correlation.size / 2)

    # rows along the two directions of least noise: log density ratio of M + E against M' + E
    least = np.argsort(values)[:2]
    change = (basis[:, least] @ np.diag([BOUND, -BOUND]) @ basis[:, least].T)[np.triu_indices(size)]
    pull = np.linalg.solve(covariance, change)
    losses = sample @ pull + pull @ change / 2
    mu = math.sqrt(mechanism.guarantee.mu_squared)
    assert passes((losses - mu**2 / 2) / mu)
    assert not passes((0.9 * sample @ pull + pull @ change / 2 - mu**2 / 2) / mu)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mvg", {"rows": 10**200}, "between 1 and"),
        ("mvg-psd", {"rows": 9, "allocation": "binary", "share": 0.0}, "above 0 and below 1"),
        ("mvg", {"rows": 9, "allocation": "binary", "informative": 3}, "informative"),
        ("mvg", {"rows": 9, "allocation": "optimal", "spectrum": (1.0, 2.0, 0.0)}, "3 positive public variances"),
        ("mvg", {"rows": 9, "spectrum": (1.0, 2.0, 3.0)}, "Only allocation=optimal"),
        ("mvg", {"rows": 9, "directions": ((1.0, 0, 0), (0, 1.0, 0), (0, 0.01, 1.0))}, "orthonormal"),
        ("mvg-exact", {"sigma": ((1.0, 0, 0), (0, 1.0, 0), (0, 0, -1e-3))}, "positive definite"),
        ("mvg-exact", {"sigma": ((1.0, 0.5, 0), (0, 1.0, 0), (0, 0, 1.0))}, "symmetric"),
        ("mvg-exact", {"sigma": ((1.0, 0.0), (0.0, 1.0))}, "3 x 3"),
        ("mvg", {"rows": 10**9}, "grid"),
    ],
)
def test_senseless_options_are_refused_and_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        calibrated(name, 3, **options)
