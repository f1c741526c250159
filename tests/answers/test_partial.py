"""Partial correlations of a release: of the shortened rows, and in intervals that hold as often as they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.tallies import FALSE_ALARM

from dpdist.answers.block import EntryNoise
from dpdist.answers.design import _variances, partial_correlation
from dpdist.errors import BelowNoiseError, UsageError
from dpdist.privacy.guarantee import Neighbours
from dpdist.release.request import Centring
from papers.common.drawn import Drawn, drawn
from papers.common.held import held, partials

Floats = npt.NDArray[np.float64]
MUCH = "1000000"
RELEASES = 100
FEWEST = int(stats.binom.ppf(FALSE_ALARM, RELEASES, 0.93)) / RELEASES


def rows_of(n: int = 5000) -> Floats:
    random = np.random.default_rng(8)
    mixed = np.array([[1, 0.8, 0, 0.5], [0, 0.8, 0, 0], [0, 0, 1, -0.5], [0, 0, 0, 0.8]])
    return np.asarray(random.normal(size=(n, 4)) @ mixed, dtype=np.float64)


def scene(epsilon: str = "1", **asked: object) -> Drawn:
    return drawn(rows_of(), 4.0, epsilon, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_without_noise_to_speak_of_it_is_the_correlation_of_what_others_leave(neighbours: Neighbours) -> None:
    made = scene(MUCH, neighbours=neighbours, scale=(1.0, 2.0, 1.0, 0.5), centre=(0.0, 0.0, 0.3, 0.0))
    rows = made.bounded[:, :4]
    found = partial_correlation(made.release(), range(4))
    assert found.ridge == 0
    for i, j in ((0, 1), (1, 3), (2, 3)):
        others = np.column_stack([np.delete(rows, [i, j], axis=1), np.ones(len(rows))])
        left = rows[:, [i, j]] - others @ np.linalg.lstsq(others, rows[:, [i, j]], rcond=None)[0]
        assert found.matrix[i, j] == pytest.approx(np.corrcoef(*left.T)[0, 1], abs=1e-3)
    some = partial_correlation(made.release(), [3, 0])
    assert some.matrix[0, 1] == pytest.approx(np.corrcoef(rows[:, 3], rows[:, 0])[0, 1], abs=1e-3)
    assert np.array_equal(np.diagonal(found.matrix), np.ones(4))


@pytest.mark.parametrize("exact", [None, 3])
def test_its_errors_are_those_of_its_functionals(exact: int | None) -> None:
    """Against the functionals of the module's docstring, put together as matrices."""
    random = np.random.default_rng(3)
    noise = EntryNoise(on=2.6, off=1.0, exact=exact, shared=0.2)
    w, r = random.normal(size=(3, 4)), random.uniform(-0.5, 0.5, size=(3, 3))
    r = (r + r.T) / 2
    found = _variances(noise, w, r)
    for i, j in ((0, 1), (1, 2), (2, 0)):
        b = (np.outer(w[i], w[j]) + np.outer(w[j], w[i])) / 2
        b += r[i, j] / 2 * (np.outer(w[i], w[i]) + np.outer(w[j], w[j]))
        assert found[i, j] == pytest.approx(noise.of_functional(b))


@pytest.mark.parametrize(("mechanism", "n"), [("gaussian", 5000), ("two-sided-wishart", 5000), ("gaussian", 600)])
def test_intervals_hold_and_those_of_a_third_of_the_length_do_not(mechanism: str, n: int) -> None:
    """Of few rows there is a ridge."""
    made = drawn(rows_of(n), 4.0, mechanism=mechanism, neighbours=Neighbours.ADD_REMOVE)
    assert (partial_correlation(made.release(), range(4)).ridge > 0) == (n == 600)
    found = held(made, partials, RELEASES)
    assert found.refused == 0
    assert found.shares["partial correlations"].min() >= FEWEST
    assert found.short["partial correlations"].max() < FEWEST  # the twin


def test_columns_that_are_sums_of_others_take_a_ridge_that_is_told() -> None:
    rows = rows_of()
    made = drawn(np.column_stack([rows, rows[:, 0] + rows[:, 1]]), 5.0, "4")
    found = partial_correlation(made.release(), range(5))
    assert found.ridge > 0
    assert np.isfinite(found.intervals).all()
    assert np.abs(found.intervals).max() <= 1
    assert partial_correlation(made.release(), range(4)).ridge == 0


def test_what_gives_none_is_refused_with_what_does() -> None:
    with pytest.raises(UsageError, match=r"no mean and no centre.*centring='private'.*array second_moment"):
        partial_correlation(scene(centring=Centring.NONE).release(), range(4))
    # what noise leaves by chance of rows that are all zeros: a matrix of no variance, and one that is negative
    few = drawn(rows_of(40) / 100, 4.0, "0.1")
    for left, said in ((1, "No direction of the columns"), (-(2**50), "drowns all columns")):
        with pytest.raises(BelowNoiseError, match=said):
            partial_correlation(replace(few.release(), answer=np.diag([left] * 4 + [few.lattice[-1, -1]])), range(4))
    with pytest.raises(UsageError, match="fewer rows than columns"):
        partial_correlation(drawn(rows_of(3), 4.0, MUCH).release(), range(4))
    with pytest.raises(UsageError, match="releases components"):
        partial_correlation(replace(scene().release(), answer=np.eye(4)[:2]), range(4))
