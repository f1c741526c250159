"""The noise of a release as a type: its stored form, its sums, and releases of older versions.

Statistical tests here fail falsely with probability below 1e-6 each.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
from support.registered import calibrated

from dpdist.answers.noise_edge import NoiseLaw, law_of
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise, Part
from dpdist.core.noise.entropy import SYSTEM
from dpdist.literature.attack import KnownMoment, views

KNOWN = ("gaussian", "laplace", "frobenius", "nuclear", "wishart", "two-sided-wishart")


def noise_of(name: str, epsilon: str = "1") -> Any:
    return calibrated(name, 8, loss=epsilon).noise


def known_law(noise: Noise, size: int = 8) -> NoiseLaw:
    law = law_of(noise, size)
    assert law is not None
    return law


@pytest.mark.parametrize("name", KNOWN)
def test_sums_of_noise_are_associative(name: str) -> None:
    a, b, c = noise_of(name), noise_of(name), noise_of(name, "2")
    total = (a + b) + c
    assert total == c + (b + a)
    assert (total.law, total["terms"]) == ("sum", 3)
    assert total.variance_off_diagonal == pytest.approx(sum(n["variance_off_diagonal"] for n in (a, b, c)))
    assert total.mean_diagonal == sum(n.mean_diagonal for n in (a, b, c))
    again = Noise.from_json(json.loads(json.dumps(replace(total, law="a better name").to_json())))
    assert replace(again, law="sum") == total
    assert known_law(again).edge == pytest.approx(known_law(total).edge, rel=1e-12)
    # variances add up, so edges grow, by the triangle inequality at most by their sum
    assert max(known_law(n).edge for n in (a, b, c)) < known_law(total).edge
    assert known_law(total).edge < sum(known_law(n).edge for n in (a, b, c))


def test_sums_of_one_kind_have_its_distribution() -> None:
    gaussian = noise_of("gaussian") + noise_of("gaussian", "2")
    assert gaussian.edge is EdgeKind.NORMAL
    assert known_law(gaussian).edge == pytest.approx(2 * math.sqrt(8 * gaussian["variance_off_diagonal"]))
    one = noise_of("wishart")
    assert (one + one).summands == (
        Part(EdgeKind.WISHART, 2 * one["variance_off_diagonal"], 2, 2 * one["degrees"], one["scale"]),
    )
    sided = noise_of("two-sided-wishart")
    assert (sided + sided).summands[0].degrees == 18
    assert (sided + noise_of("two-sided-wishart", "2")).edge is EdgeKind.SUM
    assert (noise_of("nuclear") + noise_of("nuclear")).summands[0].terms == 2
    assert (gaussian + Noise("another", variance_diagonal=1.0, variance_off_diagonal=1.0)).edge is EdgeKind.NONE
    assert (Noise("another") + gaussian).variance_off_diagonal is None


@pytest.mark.parametrize("name", sorted(set(KNOWN) - {"nuclear"}))  # whose draws take seconds
def test_the_edge_of_a_sum_is_where_its_spectrum_ends(name: str) -> None:
    """Three draws of different scale at 60 columns, 8 times: the mean of the largest eigenvalue is near the edge."""
    size = 60
    drawn = [calibrated(name, size, loss=epsilon) for epsilon in ("1", "1.5", "1")]
    total = reduce(add, (one.noise for one in drawn))
    law = known_law(total, size)
    zero = KnownMoment(np.zeros((size, size), dtype=np.int64))
    largest = []
    for _ in range(8):
        noise = -total.mean_diagonal * np.eye(size)
        for one in drawn:
            noise += next(views(one, zero, 1, SYSTEM))
        largest.append(np.linalg.eigvalsh(noise)[-1])
    assert 0.75 * law.edge < np.mean(largest) < 1.1 * law.edge
    # the twin: the edge of noise of three times the variance
    assert np.mean(largest) < 0.75 * math.sqrt(3) * law.edge


@pytest.mark.parametrize(
    "change",
    [
        {"edge": "a straight line"},
        {"edge": "sum"},
        {"edge": "wishart"},
        {"edge": 3},
        *({"variance_off_diagonal": wrong} for wrong in (-1.0, math.nan, math.inf, 1e300, 5e-324, "1", True)),
        {"mean_diagonal": math.nan},
        {"parts": "many"},
        {"parts": [{"edge": "normal-entries", "terms": 0, "variance_off_diagonal": 1.0}]},
        {"parts": [{"edge": "none", "terms": 1, "variance_off_diagonal": 1.0}]},
        {"parts": [{"edge": "laplace-entries", "terms": 1, "variance_off_diagonal": 1.0}]},
        {"parts": [{"edge": "normal-entries", "terms": 1, "variance_off_diagonal": 1.0, "degrees": 3, "scale": 1.0}]},
        {"parts": [{"edge": "wishart", "terms": 1, "variance_off_diagonal": 1.0, "degrees": 2.5, "scale": 1.0}]},
        {"parts": [{"edge": "wishart", "terms": 1, "variance_off_diagonal": 1.0, "degrees": 10**400, "scale": 1.0}]},
    ],
    ids=str,
)
def test_impossible_stored_noise_is_refused(change: dict[str, object]) -> None:
    """A release is untrusted input."""
    good = {"law": "g", "edge": "normal-entries", "variance_diagonal": 2.0, "variance_off_diagonal": 1.0}
    assert Noise.from_json(good).edge is EdgeKind.NORMAL
    with pytest.raises((ValueError, TypeError, KeyError)):
        Noise.from_json(good | change)
