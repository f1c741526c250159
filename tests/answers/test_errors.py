"""Standard errors of answers, against the functionals of the noise as explicit matrices."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from dpdist.answers.block import EntryNoise
from dpdist.answers.captured import _score_variances, _span_variances
from dpdist.answers.covariance import _correlation_variances, _entry_variances
from dpdist.answers.design import _variances

Floats = npt.NDArray[np.float64]


def joint(one: Floats, other: Floats) -> Floats:
    return np.asarray((np.outer(one, other) + np.outer(other, one)) / 2)


def corner(size: int) -> Floats:
    last = np.zeros((size, size))
    last[-1, -1] = 1
    return last


def noises(size: int) -> list[EntryNoise]:
    """Return noise in all entries, and noise in all but the last one."""
    return [EntryNoise(on=2.6, off=1.0, exact=exact, shared=0.2) for exact in (None, size)]


def test_of_a_covariance_and_its_correlations() -> None:
    rows, kappa = np.random.default_rng(3).normal(size=(9, 3)) + 1, 1.5
    mean, c, r = rows.mean(axis=0), np.cov(rows.T, bias=True), np.asarray(np.corrcoef(rows.T))
    deviations = np.sqrt(np.diagonal(c))
    v = np.column_stack([np.eye(3), -mean / kappa])
    w = v / deviations[:, None]
    for noise in noises(3):
        entries = _entry_variances(noise, mean / kappa, c / kappa**2)
        correlations = _correlation_variances(noise, mean / kappa / deviations, 1 / np.diagonal(c), r)
        for i, j in itertools.product(range(3), repeat=2):
            both = joint(v[i], v[j]) - c[i, j] / kappa**2 * corner(4)
            assert entries[i, j] == pytest.approx(noise.of_functional(both))
            both = joint(w[i], w[j]) - r[i, j] / 2 * (joint(w[i], w[i]) + joint(w[j], w[j]))
            assert i == j or correlations[i, j] == pytest.approx(noise.of_functional(both))


def test_of_partial_correlations() -> None:
    random = np.random.default_rng(3)
    w, r = random.normal(size=(3, 4)), random.uniform(-0.5, 0.5, size=(3, 3))
    r = (r + r.T) / 2
    for noise in noises(3):
        found = _variances(noise, w, r)
        for i, j in ((0, 1), (1, 2), (2, 0)):
            both = joint(w[i], w[j]) + r[i, j] / 2 * (joint(w[i], w[i]) + joint(w[j], w[j]))
            assert found[i, j] == pytest.approx(noise.of_functional(both))


def test_of_variances_along_components() -> None:
    random = np.random.default_rng(3)
    vectors, r = np.linalg.qr(random.normal(size=(5, 5)))[0][:2], random.normal(size=5)
    a, b, corners = np.array([1.0, -1.0]), np.array([-0.3, 1.0]), np.array([0.0, 0.4])
    for noise in noises(5):
        scores = _score_variances(noise, vectors, r, np.array([0.7, 0.2]))
        for u, taken, found in zip(vectors, (0.7, 0.2), scores, strict=True):
            v = np.array([*u, -u @ r])
            assert found == pytest.approx(noise.of_functional(np.outer(v, v) - taken * corner(6)))
        spans = _span_variances(noise, vectors, r, (a, b), corners)
        for k in (1, 2):
            turn = np.column_stack([np.eye(5), -r])
            whole = turn.T @ (a[k - 1] * vectors[:k].T @ vectors[:k] + b[k - 1] * np.eye(5)) @ turn
            assert spans[k - 1] == pytest.approx(noise.of_functional(whole - corners[k - 1] * corner(6)))


def test_of_entries_of_the_noise() -> None:
    """Against the sum over all independent entries, for each shape of the noise."""
    random, w = np.random.default_rng(4), 5
    vector, weights = random.normal(size=w), random.normal(size=(w, w))
    weights += weights.T
    for exact in (None, 2):
        noise = EntryNoise(on=3.0, off=0.7, exact=exact)
        products, functional = np.zeros((w, w)), 0.0
        for i, j in itertools.combinations_with_replacement(range(w), 2):
            one = np.zeros((w, w))
            one[i, j] = one[j, i] = 1
            variance = 0.0 if i == j == exact else (3.0 if i == j else 0.7)
            products += variance * np.outer(one @ vector, one @ vector)
            functional += variance * float((weights * one).sum()) ** 2
        assert np.allclose(noise.of_product(vector), products)
        assert noise.of_functional(weights) == pytest.approx(functional)
    shared = EntryNoise(on=2 * 0.7 + 0.4, off=0.7, shared=0.4)  # E of normal entries, plus the same on the diagonal
    plain = EntryNoise(on=2 * 0.7, off=0.7)
    assert np.allclose(shared.of_product(vector), plain.of_product(vector) + 0.4 * np.outer(vector, vector))
    assert shared.of_functional(weights) == pytest.approx(plain.of_functional(weights) + 0.4 * np.trace(weights) ** 2)
