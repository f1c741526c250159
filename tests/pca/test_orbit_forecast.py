"""Forecasts of answers on an orbit: they hold of what is drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.tallies import FALSE_ALARM

from dpdist.errors import UsageError
from dpdist.mechanisms.registry import mechanism_named
from dpdist.moment.operator import MomentMatrix
from dpdist.noise.entropy import SYSTEM
from dpdist.pca import orbit
from dpdist.pca.orbit import forecast_orbit
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release.request import ReleaseRequest
from dpdist.triangle import rounded, unpacked

ROWS, SHARES = 400, (2.0, 1.0, 0.25)
DRAWS = 20


def request(mechanism: str) -> ReleaseRequest:
    options = {"components": 2} if mechanism == "orbit-lowrank" else {"spectrum": (200.0, 100.0)}
    return ReleaseRequest(mechanism, PrivacyLoss.parse("1", "0"), 2.0, options=options, grid_bits=12)


@pytest.mark.parametrize("mechanism", orbit.ORBITS)
def test_errors_lie_below_the_upper_bound_and_the_forecast_is_in_units_of_the_rows(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mechanism_named(mechanism).info.name == mechanism
    asked, columns = request(mechanism), 5
    bound = asked.bound(columns)
    truth = np.diag([*(ROWS * share for share in SHARES), 0.0, 0.0])
    moment = MomentMatrix(rounded(truth / bound.unit**2), columns)
    calibrated = asked.calibrated(columns)

    def error() -> float:
        drawn = unpacked(calibrated.answer(moment, SYSTEM).astype(np.int64), columns) * bound.unit**2
        return float(np.linalg.norm(drawn - truth)) / ROWS

    errors = [error() for _ in range(DRAWS)]
    monkeypatch.setattr(orbit, "FAILURE", FALSE_ALARM / DRAWS)
    found = forecast_orbit(asked, columns, ROWS, SHARES)
    assert max(errors) <= found.upper
    assert 0 < found.least < found.about
    # the first order is of H, whose real part has about half of its squared error: within a factor of 3 on both sides
    assert found.about / 3 < np.sqrt(np.mean(np.square(errors))) < 3 * found.about
    assert found.zero == pytest.approx(np.linalg.norm(truth) / ROWS)
    # a moment of rows twice as long is four times as large, and so is every number
    wide = forecast_orbit(replace(asked, clip_norm=4.0), columns, ROWS, [4 * share for share in SHARES])
    for name in ("upper", "about", "least", "zero"):
        assert getattr(wide, name) == pytest.approx(4 * getattr(found, name))
    # one row removed is half of one replaced: twice the exponent, and half of the noise on eigenvalues
    apart = forecast_orbit(replace(asked, neighbours=Neighbours.ADD_REMOVE), columns, ROWS, SHARES)
    assert apart.upper <= found.upper
    assert apart.least < found.least


@pytest.mark.parametrize("spectrum", [(), (1.0, 2.0), (3.0, 2.0), (1.0, -1.0), (0.1,) * 6])
def test_no_forecast_without_a_possible_spectrum(spectrum: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="depends on the spectrum"):
        forecast_orbit(request("orbit"), 5, ROWS, spectrum)


def test_no_forecast_of_other_requests() -> None:
    with pytest.raises(UsageError, match="no orbit"):
        forecast_orbit(ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), 2.0), 5, ROWS, SHARES)
    with pytest.raises(UsageError, match="at least one row"):
        forecast_orbit(request("orbit"), 5, 0, SHARES)
