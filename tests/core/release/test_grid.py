"""The default grid follows from public numbers, and keeps the error of rounding below 5 % of the noise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpdist.answers.forecast import forecast_release
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest

GAUSSIAN = ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), 4.0)
PURE = PrivacyLoss.parse("1")


@pytest.mark.parametrize("mechanism", ["gaussian", "two-sided-wishart", "frobenius"])
@pytest.mark.parametrize(("columns", "rows"), [(1, 10**4), (784, 10**7)])
def test_the_stated_error_is_below_5_percent_and_one_bit_less_would_not_do(
    mechanism: str, columns: int, rows: int
) -> None:
    request = replace(GAUSSIAN, mechanism=mechanism, loss=GAUSSIAN.loss if mechanism == "gaussian" else PURE)
    forecast = forecast_release(request, columns, rows)
    assert forecast.rounding_share <= 0.05
    bits = forecast.plan.bound.grid_bits
    assert bits is not None
    if bits > 10:
        coarser = forecast_release(replace(request, grid_bits=bits - 1), columns, rows)
        assert coarser.rounding_share > 0.025


def bits_of(request: ReleaseRequest, rows: int | None = None) -> int:
    return planned(request, Dimensions(54, rows)).bound.grid_bits


def test_bits_that_are_asked_for_or_that_integers_do_not_hold_are_not_chosen() -> None:
    assert bits_of(replace(GAUSSIAN, grid_bits=9), 10**7) == 9
    assert bits_of(replace(GAUSSIAN, mechanism="bingham", loss=PURE, options={"components": 2})) == 12
    large = replace(GAUSSIAN, grid_bits=bits_of(GAUSSIAN, 10**10))
    assert planned(large, Dimensions(54)).bound.total_rows >= 10**10  # and one bit more would not be held
    finer = replace(large, grid_bits=(large.grid_bits or 0) + 1)
    assert planned(finer, Dimensions(54)).bound.total_rows < 10**10


def test_a_private_number_of_rows_chooses_nothing() -> None:
    private = replace(GAUSSIAN, neighbours=Neighbours.ADD_REMOVE)
    bits = {forecast_release(private, 54, rows).plan.bound.grid_bits for rows in (100, 10**6, 10**9)}
    assert bits == {bits_of(private)}
    assert bits_of(replace(private, rows_at_most=10**5)) < min(bits)
