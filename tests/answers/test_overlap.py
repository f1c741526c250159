"""The measure of a component, against matrices and noise with known components.

Limits are binomial quantiles at :data:`FALSE_ALARM` of what `overlap` states. Twins leave out a part of the measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom
from support.tallies import FALSE_ALARM

from dpdist.answers.noise_edge import NoiseLaw, law_of
from dpdist.answers.overlap import Spectrum
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise

Floats = npt.NDArray[np.float64]
KINDS = {"normal": EdgeKind.NORMAL, "laplace": EdgeKind.LAPLACE, "wishart": EdgeKind.TWO_SIDED_WISHART}


def law(kind: str, size: int) -> NoiseLaw:
    details = {"columns": size + 1, "scale": 1 / math.sqrt(2 * (size + 1))} if kind == "wishart" else {}
    on = 1.0 if kind == "laplace" else 2.0
    noise = Noise("test", KINDS[kind], variance_diagonal=on, variance_off_diagonal=1.0, details=details)
    known = law_of(noise, size)
    assert known is not None
    return known


def noise(rng: np.random.Generator, kind: str, size: int) -> Floats:
    if kind == "wishart":
        x, y = rng.normal(size=(2, size, size + 1))
        return np.asarray((x @ x.T - y @ y.T) / math.sqrt(2 * (size + 1)))
    entries = rng.normal(size=(size, size)) if kind == "normal" else rng.laplace(size=(size, size)) / math.sqrt(2)
    found = np.triu(entries, 1)
    diagonal = np.diag(entries) * (math.sqrt(2) if kind == "normal" else 1)
    return np.asarray(found + found.T + np.diag(diagonal))


class Draw(NamedTuple):
    """A released spectrum, and the squared entries of its eigenvectors (columns) in the exact ones (rows)."""

    spectrum: Spectrum
    vectors: Floats


def draws(kind: str, exact: Floats, count: int) -> Iterator[Draw]:
    rng, size = np.random.default_rng(11), len(exact)
    known = law(kind, size)
    for _ in range(count):
        values, vectors = np.linalg.eigh(np.diag(exact) + noise(rng, kind, size))
        yield Draw(Spectrum(values[::-1].copy(), np.ones((size, size)), known), vectors[:, ::-1])


def spiked(size: int, *spikes: float, top: float = 0.0) -> Floats:
    """Return an exact spectrum, in units of s sqrt(d): spikes over a background from 0 to ``top``."""
    background = np.linspace(top, 0, size - len(spikes))
    return np.asarray(math.sqrt(size) * np.concatenate([spikes, background]))


@pytest.mark.parametrize("kind", KINDS)
def test_hardly_anything_is_counted_where_there_is_nothing(kind: str) -> None:
    """With an empty matrix, and with a background without components, which edges of noise would count."""
    for size, top, most in ((2, 0, 0.09), (20, 0, 0.06), (60, 1, 0.06), (5, 1, 0.09)):
        count = 200 if size < 60 else 60
        told = sum(each.spectrum.counted() > 0 for each in draws(kind, spiked(size, top=top), count))
        assert told <= binom.isf(FALSE_ALARM, count, most)


@pytest.mark.parametrize(
    ("kind", "exact", "count"),
    [
        *((kind, spiked(20, 4, top=1), 1) for kind in KINDS), ("normal", spiked(60, 5, 4, top=1), 2),
        ("laplace", spiked(20, 4, 4), 2), ("wishart", spiked(20, 4, 4), 2), ("normal", np.array([40.0, 25, 10]), 3),
    ],
)  # fmt: skip
def test_what_is_told_of_a_component_is_true_of_it(kind: str, exact: Floats, count: int) -> None:
    """Counts are right in most draws; squared cosines on average, and their intervals in 9 of 10 draws, per group."""
    number, right, held, told, true = 80, 0, 0, [], []
    for spectrum, vectors in draws(kind, exact, number):
        found = spectrum.counted()
        right += found == count
        sound = True
        for group in spectrum.groups(found):
            value, low, high = spectrum.squared_cosine(group)
            assert low <= value <= high
            part = slice(group.start, group.stop)
            truth = float((vectors[part, part] ** 2).sum()) / len(group)
            sound = sound and low <= truth <= high
            told.append(value)
            true.append(truth)
        held += sound
    assert right > 0.8 * number
    assert held >= binom.ppf(FALSE_ALARM, number, 0.9)
    assert np.mean(told) == pytest.approx(np.mean(true), abs=0.07)  # one equal pair in twenty is split


def test_eigenvalues_that_were_not_computed_count_as_the_last_one() -> None:
    for spectrum, _ in draws("normal", spiked(60, 5, 4, 3), 10):
        part = Spectrum(spectrum.values[:30], spectrum.variances[:30, :30], spectrum.law, rest=30)
        assert part.counted() == spectrum.counted() == 3
        for i in range(3):
            whole, less = (each.squared_cosine(range(i, i + 1))[0] for each in (spectrum, part))
            assert less <= whole == pytest.approx(less, abs=0.06)
        assert Spectrum(spectrum.values[:2], spectrum.variances[:2, :2], spectrum.law, rest=58).counted() <= 1


def test_a_single_column_is_known_and_counted_if_it_is_more_than_noise() -> None:
    known = law("normal", 1)
    for value, count in ((50.0, 1), (0.5, 0)):
        spectrum = Spectrum(np.array([value]), np.ones((1, 1)), known)
        assert spectrum.counted() == count
        assert spectrum.squared_cosine(range(1)) == (1, 1, 1)


def test_only_positive_values_are_components_and_without_noise_they_are_exact() -> None:
    """A positive semidefinite matrix; one value far below the others would separate them."""
    spectrum = Spectrum(np.array([80.0, 70, 1, 0.5, -0.5, -1, -40]), np.ones((7, 7)), law("laplace", 7))
    assert spectrum.counted() == 2
    # two columns that are one leave a variance of the least number there is between their eigenvectors
    spectrum = Spectrum(np.array([2.0, 1.0]), np.full((2, 2), np.finfo(float).tiny), law("normal", 2))
    assert spectrum.counted() == 2
    assert [spectrum.squared_cosine(group) for group in spectrum.groups(2)] == [(1, 1, 1)] * 2
