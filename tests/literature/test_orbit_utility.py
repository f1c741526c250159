"""Unitary orbits: bounds on errors, and forecasts that agree with draws."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from support.tallies import FALSE_ALARM

from dpdist.core.errors import UsageError
from dpdist.core.moment.operator import MomentMatrix
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.triangle import rounded, unpacked
from dpdist.literature import orbit_forecast as bounds
from papers.mangoubi import packing

RNG = np.random.default_rng(5)
Floats = npt.NDArray[np.float64]


def haar(size: int) -> npt.NDArray[np.complex128]:
    q, r = np.linalg.qr(RNG.normal(size=(size, size)) + 1j * RNG.normal(size=(size, size)))
    return np.asarray(q * (np.diag(r) / np.abs(np.diag(r))), dtype=np.complex128)


def projector(size: int, rank: int, height: float = 1.0) -> Floats:
    return np.where(np.arange(size) < rank, height, 0.0)


def test_volumes_of_balls_of_subspaces_are_exact_and_packing_and_covering_numbers_follow() -> None:
    for d in (2, 3, 7):  # lines: the share is radius^(2(d-1)), the measure of {|u_1|² >= 1 - r²}
        assert packing.grassmannian_ball_log_volume(d, 1, 0.6) == pytest.approx(2 * (d - 1) * math.log(0.6))
    trials, size, k = 5000, 5, 2
    # |P - Q|_F² / 2 = k - tr P Q
    distances = [math.sqrt(k - np.linalg.norm(u[:k, :k]) ** 2) for u in (haar(size) for _ in range(trials))]
    expected = trials * math.exp(packing.grassmannian_ball_log_volume(size, k, 1.0))
    found = sum(d <= 1 for d in distances)
    assert abs(found - expected) < 4.9 * math.sqrt(expected)  # 4.9 standard deviations: 1e-6
    assert abs(found - 2 * expected) > 4.9 * math.sqrt(expected)  # the twin
    for distance in (0.1, 0.5, 1.0):  # the orbit of (1, 0) is a sphere of diameter sqrt 2
        assert math.exp(packing.packing_log_number(projector(2, 1), distance)) == pytest.approx(2 / distance**2)
    for d, k in ((3, 1), (6, 2), (8, 4)):  # a packing at twice the radius has no more points than a covering has balls
        packed = packing.packing_log_number(projector(d, k), 0.6 * math.sqrt(2 * min(k, d - k)))
        assert packed <= bounds.covering_log_number(d, k, 1.0, 0.3)
    radius = 0.2 * math.sqrt(2) * 3.0 * bounds.BEND  # of a ball the constant of the volume cancels
    ball = packing.ball_packing_log_number(projector(6, 2, 3.0), 0.1 * math.sqrt(2) * 3.0, radius)
    assert ball == pytest.approx(2 * 2 * 4 * math.log(2))


def test_lower_bounds_follow_the_paper() -> None:
    def at(d: int, k: int, height: float, epsilon: float) -> float:
        levels = projector(d, k, height)
        return bounds.lower_bound(levels, levels, epsilon)

    # strong signals: of the order sqrt(k) d / epsilon, whatever the eigenvalue
    assert at(400, 1, 1e6, 0.1) == pytest.approx(at(400, 1, 1e7, 0.1), rel=1e-6)
    assert at(400, 4, 1e7, 0.1) / at(400, 1, 1e7, 0.1) == pytest.approx(2, rel=0.05)
    assert at(400, 1, 1e7, 0.01) / at(400, 1, 1e7, 0.1) == pytest.approx(10, rel=0.05)
    # in closed form for a line of C^33: f = 64 real dimensions, three more rows exchanged
    closed = 64 * math.cos(math.pi / 12) / (0.1 * math.sqrt(2)) * math.exp(-1 - (0.3 + math.log(2)) / 64)
    assert at(33, 1, 1e6, 0.1) == pytest.approx(closed)
    # eigenvalues that are neither 0 nor one large value cost 4 + 16 rows for each angle
    weight, some = 0.1 * 2.5 * bounds.BEND, np.array([3.0, *[0.5] * 8])
    closed = 2.5 * 0.5 / math.sqrt(2) * math.exp(-(weight / 2 + 0.1 * 20 + math.log(2)) / 16)
    assert bounds.lower_bound(some, some, 0.1) == pytest.approx(closed)
    # weak signals: of the order of the eigenvalue
    assert at(400, 1, 2.0, 0.01) / 2.0 > 0.2
    # corollary 2.6: other eigenvalues to release scale the error
    levels = projector(50, 2, 1e4)
    assert bounds.lower_bound(levels, 2 * levels, 1.0) == pytest.approx(2 * bounds.lower_bound(levels, levels, 1.0))
    assert bounds.lower_bound(levels, np.full(50, 3.0), 1.0) == 0


def test_the_worst_loss_caps_the_upper_bounds() -> None:
    levels = np.array([3.0, 2.0, 1.0])
    assert bounds.utility_bound(levels, levels, 1e-9, 0.1) == pytest.approx(14 - 10)
    # to answer anything of the right spectrum is within this of algorithm 2, however little it knows
    assert bounds.low_rank_bound(levels, 1, 1e-9, 1e-9, 0.1) == pytest.approx(math.sqrt(5 + 2 * 3 * 2), rel=1e-6)


# --- forecasts

ROWS, SHARES = 400, (2.0, 1.0, 0.25)
DRAWS = 20


def request(mechanism: str) -> ReleaseRequest:
    options = {"components": 2} if mechanism == "orbit-lowrank" else {"spectrum": (200.0, 100.0)}
    return ReleaseRequest(mechanism, PrivacyLoss.parse("1", "0"), 2.0, options=options, grid_bits=12)


@pytest.mark.parametrize("mechanism", bounds.ORBITS)
def test_errors_lie_below_the_upper_bound_and_the_forecast_is_in_units_of_the_rows(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, columns = request(mechanism), 5
    bound = planned(asked, Dimensions(columns)).bound
    truth = np.diag([*(ROWS * share for share in SHARES), 0.0, 0.0])
    moment = MomentMatrix(rounded(truth / bound.unit**2), columns)
    calibrated = planned(asked, Dimensions(columns)).moment

    def error() -> float:
        drawn = unpacked(calibrated.answer(moment, SYSTEM).astype(np.int64), columns) * bound.unit**2
        return float(np.linalg.norm(drawn - truth)) / ROWS

    errors = [error() for _ in range(DRAWS)]
    monkeypatch.setattr(bounds, "FAILURE", FALSE_ALARM / DRAWS)
    found = bounds.forecast_orbit(asked, columns, ROWS, SHARES)
    assert max(errors) <= found.upper
    assert 0 < found.least < found.about
    # the first order is of H, whose real part has about half of its squared error: within a factor of 3 on both sides
    assert found.about / 3 < np.sqrt(np.mean(np.square(errors))) < 3 * found.about
    assert found.zero == pytest.approx(np.linalg.norm(truth) / ROWS)
    # a moment of rows twice as long is four times as large, and so is every number
    wide = bounds.forecast_orbit(replace(asked, clip_norm=4.0), columns, ROWS, [4 * share for share in SHARES])
    for name in ("upper", "about", "least", "zero"):
        assert getattr(wide, name) == pytest.approx(4 * getattr(found, name))
    # one row removed is half of one replaced: twice the exponent, and half of the noise on eigenvalues
    apart = bounds.forecast_orbit(replace(asked, neighbours=Neighbours.ADD_REMOVE), columns, ROWS, SHARES)
    assert apart.upper <= found.upper
    assert apart.least < found.least


@pytest.mark.parametrize(("mechanism", "spectrum"), [("orbit", (1.0, 1.0)), ("orbit-lowrank", None)])
def test_the_components_of_a_release_capture_what_is_forecast(
    mechanism: str, spectrum: tuple[float, ...] | None
) -> None:
    """The mean loss of 60 draws, a sum of 6 or more squares each, is off by 40 % once in 10^5 runs at most."""
    columns, rows, shares = 5, 4000, (0.5, 0.4)
    options: dict[str, object] = {"components": 2} if spectrum is None else {"spectrum": spectrum}
    asked = ReleaseRequest(mechanism, PrivacyLoss.parse("1", "0"), 1.0, options=options, grid_bits=12)
    bound = planned(asked, Dimensions(columns)).bound
    truth = np.diag([*(rows * share for share in shares), 0.0, 0.0, 0.0])
    moment, calibrated = (
        MomentMatrix(rounded(truth / bound.unit**2), columns),
        planned(asked, Dimensions(columns)).moment,
    )
    projector = np.diag([1.0, 1, 0, 0, 0])
    lost, squared = [], []
    for _ in range(60):
        drawn = unpacked(calibrated.answer(moment, SYSTEM).astype(np.int64), columns).astype(np.float64)
        basis = np.linalg.eigh(drawn)[1][:, -2:]
        lost.append(1 - np.trace(basis.T @ truth @ basis) / np.trace(truth))
        squared.append(np.linalg.norm(basis @ basis.T - projector) ** 2)
    found = bounds.forecast_orbit(asked, columns, rows, shares)
    assert found.components == 2
    assert found.captured is not None
    assert found.distance is not None
    assert 1 - found.captured == pytest.approx(np.mean(lost), rel=0.4)
    assert found.distance**2 == pytest.approx(np.mean(squared), rel=0.4)
    assert 2 * (1 - found.captured) != pytest.approx(np.mean(lost), rel=0.4)  # as H, without its real part
    # three values single out no subspace
    asked = replace(asked, mechanism="orbit", options={"spectrum": (2.0, 1.0)})
    assert bounds.forecast_orbit(asked, columns, rows, shares).captured is None


def test_no_forecast_without_a_possible_spectrum_or_of_other_requests() -> None:
    for spectrum in ((), (1.0, 2.0), (3.0, 2.0), (1.0, -1.0), (0.1,) * 6):
        with pytest.raises(UsageError, match="depends on the spectrum"):
            bounds.forecast_orbit(request("orbit"), 5, ROWS, spectrum)
    with pytest.raises(UsageError, match="not sample from an orbit"):
        bounds.forecast_orbit(ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), 2.0), 5, ROWS, SHARES)
    with pytest.raises(UsageError, match="at least one row"):
        bounds.forecast_orbit(request("orbit"), 5, 0, SHARES)
