"""The exponential mechanisms: their constants are the largest private ones, and their draws as stated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy import special, stats
from support.registered import BOUND, calibrated
from support.tallies import mean_passes

from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.mechanisms.base import is_private_as_claimed
from dpdist.core.moment.operator import MomentMatrix
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.triangle import diagonal_positions, packed, unpacked

Floats = npt.NDArray[np.float64]

REPLACE, ADD = Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE


def moment(matrix: Floats) -> MomentMatrix:
    return MomentMatrix(packed(np.rint(matrix * BOUND)), len(matrix))


def test_concentrations_and_scales_are_the_stated_ones() -> None:
    expected = {
        ("ppca", 1, REPLACE): 1 / 2, ("ppca", 1, ADD): 1, ("ppca", 4, REPLACE): 1 / 2, ("ppca", 4, ADD): 1,
        ("bingham", 1, REPLACE): 1 / 2, ("bingham", 4, REPLACE): 1 / 5, ("bingham", 4, ADD): 1 / 4,
        ("bingham", 10, REPLACE): 1 / 10, ("bingham", 10, ADD): 1 / 9,  # the others determine the tenth
        ("kapralov-talwar", 4, REPLACE): 1 / 16, ("kapralov-talwar", 4, ADD): 1 / 8,
        ("amin", 1, REPLACE): 1 / 4, ("amin", 4, REPLACE): 4 / 25, ("amin", 4, ADD): 1 / 5,
        ("amin", 10, REPLACE): 9 / 100,
    }  # fmt: skip
    for (name, components, neighbours), c in expected.items():
        mechanism = calibrated(name, 10, neighbours=neighbours, components=components)
        assert mechanism.concentration * BOUND == pytest.approx(c, rel=1e-12)
    scales = {("kapralov-talwar", REPLACE): 8, ("kapralov-talwar", ADD): 8, ("amin", REPLACE): 10, ("amin", ADD): 5}
    for (name, neighbours), scale in scales.items():
        mechanism = calibrated(name, 10, neighbours=neighbours, components=4)
        assert mechanism.scale / BOUND == pytest.approx(scale, rel=1e-12)
    for components, steps in ((1, 1), (3, 3), (10, 9)):  # the loss of each step is charged
        mechanism = calibrated("bingham", 10, components=components)
        span = 2 * mechanism.concentration * BOUND
        assert [float(step) for step in mechanism.guarantee.bounded_ranges] == pytest.approx([span] * steps)


def test_an_answer_has_the_stated_concentration_and_the_twin_fails() -> None:
    for name in ("bingham", "ppca"):
        mechanism, kappa = calibrated(name, 2, loss="2"), 3.0  # c = 1 per unit, the gap of the eigenvalues is 2 kappa
        table = moment(np.array([[5.0, kappa], [kappa, 5.0]]))
        x = np.array([mechanism.answer(table, SYSTEM)[0] for _ in range(2000)], dtype=np.float64)
        cosine = 2 * x[:, 0] * x[:, 1]  # of twice the angle to the diagonal, von Mises
        for stated, passes in ((kappa, True), (1.6 * kappa, False)):
            assert mean_passes(cosine, float(special.iv(1, stated) / special.iv(0, stated))) is passes


def test_beyond_one_component_ppca_is_for_reproduction_only() -> None:
    request = ReleaseRequest("ppca", PrivacyLoss.parse("1"), 1.0, options={"components": 2})
    for components, proved in ((1, True), (2, False), (4, False), (5, True)):
        mechanism = calibrated("ppca", 5, components=components)
        assert is_private_as_claimed(mechanism) is proved
        assert ("sweeps" in mechanism.noise) is not proved
        frame = mechanism.answer(moment(np.diag([50.0, 40, 3, 2, 1])), SYSTEM)
        assert frame.shape == (components, 5)
        assert np.abs(frame @ frame.T - np.eye(components)).max() < 1e-12
    with pytest.raises(RefusedError, match=r"no proof.*mechanism='bingham'"):
        planned(request, Dimensions(5))
    assert planned(replace(request, for_reproduction=True), Dimensions(5)).moment.guarantee is None
    with pytest.raises(UsageError, match="sweep"):
        planned(replace(request, options={"components": 2, "sweeps": 0}), Dimensions(5))


@pytest.mark.parametrize("name", ["kapralov-talwar", "amin"])
@pytest.mark.parametrize("neighbours", Neighbours)
def test_at_a_huge_epsilon_the_matrix_of_rank_k_comes_back(name: str, neighbours: Neighbours) -> None:
    axes: Floats = stats.ortho_group.rvs(6, random_state=5)[:3]
    matrix = (axes.T * np.array([3e5, 2e5, 1e5])) @ axes
    for components, left in ((3, 0.0), (2, 1e5)):
        mechanism = calibrated(name, 6, BOUND, neighbours, "1000000", components=components)
        released = unpacked(np.asarray(mechanism.answer(moment(matrix), SYSTEM)), 6) / BOUND
        assert np.linalg.norm(released - matrix, 2) == pytest.approx(left, rel=1e-2, abs=10)
        assert np.linalg.matrix_rank(released, tol=1e-3) == components


@pytest.mark.parametrize("size", [1, 3])
def test_released_eigenvalues_carry_the_stated_noise(size: int) -> None:
    empty = moment(np.zeros((size, size)))
    for name in ("kapralov-talwar", "amin"):
        mechanism = calibrated(name, size)
        diagonal = diagonal_positions(size)
        trace = (
            np.array([mechanism.answer(empty, SYSTEM)[diagonal].sum() for _ in range(2000)]) / mechanism.noise["scale"]
        )
        assert bool(trace.min() < -1) is (name == "kapralov-talwar")  # amin clips at zero
        for factor, passes in ((1.0, True), (0.6, False)):
            assert mean_passes(factor * trace[trace > 0], 1.0) is passes
        if size == 1:  # there is one direction, so the value gets all of epsilon
            assert mechanism.noise["scale"] == BOUND
            largest = np.asarray(mechanism.answer(MomentMatrix(np.array([2**63 - 1]), 1), SYSTEM))
            assert 2**62 < largest[0] < 2**63  # all data stay on the lattice
