"""Synthetic rows of a release: what they are drawn from, how far that is said to be off, and what gives none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpdist.answers.covariance import covariance
from dpdist.answers.synthetic import synthetic
from dpdist.errors import BelowNoiseError, UsageError
from dpdist.privacy.guarantee import Neighbours
from dpdist.release.combine import combined
from dpdist.release.request import Centring
from papers.common.drawn import Drawn, drawn
from papers.common.held import covariance_of


def scene(**asked: object) -> Drawn:
    random = np.random.default_rng(8)
    rows = random.normal(size=(3000, 10)) * ([1.5, 1.2, 0.9] + 7 * [0.4]) + 0.3
    return drawn(rows, 6.0, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("mechanism", ["gaussian", "two-sided-wishart"])
def test_how_far_the_covariance_is_off_is_about_what_is_said(mechanism: str) -> None:
    """Of a law with half of the deviation it is not, the twin."""
    made = scene(mechanism=mechanism, neighbours=Neighbours.ADD_REMOVE)
    exact, told, short, true = covariance_of(made), [], [], []
    for _ in range(40):  # of each the deviation is below a fifth, of the mean below a thirtieth
        release = made.release()
        found = covariance(release)
        less = {name: release.noise[name] / 4 for name in ("variance_diagonal", "variance_off_diagonal")}
        told.append(found.distance)
        short.append(covariance(replace(release, noise=replace(release.noise, **less))).distance)
        true.append(np.linalg.norm(found.matrix - exact) / np.linalg.norm(exact))
    assert 0.75 < np.mean(told) / np.mean(true) < 1.25  # type: ignore[arg-type]
    assert np.mean(short) / np.mean(true) < 0.75  # type: ignore[arg-type]


def test_rows_have_mean_and_covariance_of_the_release_in_the_units_that_are_asked_for() -> None:
    release = scene().release()
    scale, centre = np.linspace(1, 3, 10), np.arange(10.0)
    found, shrunk = synthetic(release, (centre, scale)), covariance(release, units=(centre, scale))
    assert np.allclose(found.factor @ found.factor.T, shrunk.matrix)
    rows = found.draw(200_000, np.random.default_rng(1))
    spread = np.sqrt(np.diagonal(shrunk.matrix))
    assert np.abs((rows.mean(axis=0) - shrunk.location) / spread).max() < 6 / 200_000**0.5
    assert np.abs((np.cov(rows, rowvar=False) - shrunk.matrix) / np.outer(spread, spread)).max() < 9 / 200_000**0.5
    assert found.names == release.names


def test_a_sum_of_releases_gives_rows_too() -> None:
    made = scene()
    total = combined([made.release(0), made.release(1)])
    assert synthetic(total).draw(3, np.random.default_rng()).shape == (3, 10)


def test_what_gives_no_rows_is_refused_with_what_does() -> None:
    with pytest.raises(UsageError, match=r"no mean and no centre.*Release with centring='private'"):
        synthetic(scene(centring=Centring.NONE).release())
    with pytest.raises(UsageError, match="take a release by gaussian"):
        synthetic(replace(scene().release(), answer=np.eye(10)[:2]))
    drowned = drawn(np.zeros((50, 3)), 6.0, "0.1")
    said = []
    for _ in range(5):  # noise passes its edge in 6 of 100
        try:
            synthetic(drowned.release())
        except BelowNoiseError as error:
            said.append(str(error))
    assert any("rows drawn from it would be noise" in each for each in said)
    for count in (0, 1 << 60):
        with pytest.raises(UsageError, match="are drawn at once"):
            synthetic(scene().release()).draw(count, np.random.default_rng(1))
