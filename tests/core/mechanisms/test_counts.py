"""The noise of the counts of a histogram: its scale, its distribution, and the stated errors of quantiles."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.tallies import FALSE_ALARM, alarms

from dpdist.core.errors import DataError
from dpdist.core.mechanisms.counts import DiscreteLaplace, RoundedNormal, noise_from_json
from dpdist.core.mechanisms.quantile import Weights, calibrated, quantile_of
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.lattice import MAX_SCALE
from dpdist.core.privacy.accounting import gaussian_delta
from dpdist.core.privacy.guarantee import Arithmetic, Neighbours, PrivacyLoss
from dpdist.core.rows.units import Unit


@pytest.mark.parametrize(("epsilon", "delta"), [("0.1", "1e-6"), ("30", "0.4")])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("neighbours", "vectors"), [(Neighbours.ADD_REMOVE, 1), (Neighbours.REPLACE_ONE, 2)])
def test_the_scale_is_the_least_that_keeps_epsilon_and_delta(
    epsilon: str, delta: str, rows: int, neighbours: Neighbours, vectors: int
) -> None:
    histogram = calibrated(PrivacyLoss.parse(epsilon, delta), neighbours, rows)
    assert isinstance(histogram.noise, RoundedNormal)
    sigma, square = histogram.noise.sigma, vectors * rows**2  # the square of the l2 norm of the change by one unit
    assert histogram.guarantee.mu_squared == Fraction(square, sigma**2)
    assert gaussian_delta(Fraction(epsilon), Fraction(square, sigma**2)) <= float(delta)
    assert sigma == 1 or gaussian_delta(Fraction(epsilon), Fraction(square, (sigma - 1) ** 2)) > float(delta)
    assert histogram.guarantee.loss == PrivacyLoss.parse(epsilon, delta)
    assert histogram.guarantee.neighbours is neighbours
    assert histogram.guarantee.arithmetic is Arithmetic.INTEGER_EXACT
    assert histogram.guarantee.proof == "dpdist.core.mechanisms.quantile"  # stored: it never changes


def test_the_noise_is_a_rounded_normal_of_its_scale_and_the_largest_can_be_drawn() -> None:
    most = calibrated(
        PrivacyLoss.parse("0.000001", "1e-18"), Neighbours.REPLACE_ONE, Unit("person", 2**20).counted_rows
    )
    assert isinstance(most.noise, RoundedNormal)
    assert most.noise.sigma <= MAX_SCALE
    noise = calibrated(PrivacyLoss.parse("0.1", "1e-6"), Neighbours.REPLACE_ONE)
    drawn = noise.answer(np.zeros(30000, dtype=np.int64), SYSTEM)
    assert not alarms(drawn, 52)
    assert alarms(drawn, 49)
    assert alarms(drawn, 55)
    assert alarms(DiscreteLaplace(37).draw(30000, SYSTEM), 52)  # of the same variance


# --- the error --------------------------------------------------------------------------------------------------------

EXACT = np.array([50, 0, 100, 300, 400, 100, 40, 10, 0, 0, 0, 0])
BETAS = [float(beta) for beta in np.geomspace(0.2, 1e-9, 60)]


def mass(sigma: int, reach: int = 12) -> npt.NDArray[np.float64]:
    """Return the probabilities of the rounded normals from -reach sigma to reach sigma."""
    points = np.arange(-reach * sigma, reach * sigma + 1)
    law = stats.norm.cdf((points + 0.5) / sigma) - stats.norm.cdf((points - 0.5) / sigma)
    return np.where(points > 0, law[::-1], law)  # the small tail, without cancellation


@pytest.mark.parametrize("sigma", [1, 7])
@pytest.mark.parametrize(("above", "below"), [(1, 0), (1, 3), (3, 2)])
def test_a_bound_holds_for_the_exact_distribution_only_with_the_rounding_term(
    sigma: int, above: int, below: int
) -> None:
    """The weights are multiples of 1 / bins, so the distribution of the error is one convolution of integers."""
    bins = above + below
    kind = Weights(above, below, Fraction(above, bins) if below else Fraction(0))
    ones, law = mass(sigma), np.ones(1)
    for times in [round(bins * float(1 - kind.w))] * above + [round(bins * float(kind.w))] * below:
        spread = np.zeros((ones.size - 1) * times + 1)
        spread[::times] = ones
        law = np.convolve(law, spread)
    beyond = law[::-1].cumsum()[::-1]
    middle = law.size // 2

    def probability(bound: float) -> float:
        return float(beyond[middle + math.floor(bound * bins + 1e-9) + 1])

    noise = RoundedNormal(sigma)
    assert all(probability(kind.bound(noise, beta)) <= beta for beta in BETAS)
    rounding = (above * float(1 - kind.w) + below * float(kind.w)) / 2
    assert any(probability(kind.bound(noise, beta) - rounding) > beta for beta in BETAS)
    deviation = math.sqrt(float(law @ ((np.arange(law.size) - middle) / bins) ** 2))
    assert kind.standard_deviation(noise) == pytest.approx(deviation, rel=1e-7)


@pytest.mark.parametrize("rows", [1000, None])
def test_statements_about_a_quantile_hold_at_their_confidence(rows: int | None) -> None:
    """The 0.95-quantile is exactly at edge 5, where a claim that it is above is most easily wrong."""
    noise, draws = calibrated(PrivacyLoss.parse("0.5", "1e-6"), Neighbours.REPLACE_ONE), 500
    assert isinstance(noise.noise, RoundedNormal)
    drawn = [noise.answer(EXACT, SYSTEM).tolist() for _ in range(draws)]

    def wrong(claimed: RoundedNormal) -> int:
        estimates = [quantile_of(counts, claimed, Fraction("0.95"), rows=rows) for counts in drawn]
        return sum(
            (estimate.above_edge is not None and estimate.above_edge >= 5)
            or (estimate.up_to_edge is not None and estimate.up_to_edge < 5)
            for estimate in estimates
        )

    most = stats.binom.isf(FALSE_ALARM, draws, 0.05)
    assert wrong(noise.noise) <= most
    assert wrong(RoundedNormal(noise.noise.sigma // 4)) > most


def test_stored_noise_is_read_back_and_unknown_noise_is_refused() -> None:
    for noise in (DiscreteLaplace(20), RoundedNormal(52)):
        assert noise_from_json(noise.to_json()) == noise
    with pytest.raises(DataError, match="unknown law"):
        noise_from_json({"law": "cauchy", "scale": 3})
