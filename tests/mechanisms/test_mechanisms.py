"""The two recommended mechanisms: calibration and the distribution of their noise."""

from __future__ import annotations

import bisect
import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from support.replays import Recording, Replaying
from support.tallies import FALSE_ALARM, mean_passes, total_passes

from dpdist.errors import UsageError
from dpdist.mechanisms import registry
from dpdist.mechanisms.base import Additive, Calibrated
from dpdist.mechanisms.registry import MECHANISMS, mechanism_named, recommended
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import SYSTEM
from dpdist.noise.products import rounded_wishart
from dpdist.privacy.accounting import gaussian_sigma
from dpdist.privacy.guarantee import Arithmetic, Neighbours, PrivacyLoss
from dpdist.triangle import diagonal_positions

BITS = 16
ONE_MILLIONTH = PrivacyLoss.parse("1", "1e-6")
BOTH = list(Neighbours)


def calibrated(
    name: str, size: int, neighbours: Neighbours, loss: PrivacyLoss, bits: int = BITS, **options: str
) -> Calibrated:
    return registry.calibrated(name, LatticeQuery(size, 4**bits, neighbours), loss, options)


def test_gaussian_scales_are_the_stated_ones() -> None:
    for neighbours, rows, sigma in (
        (BOTH[0], 1, 4.224679),
        (BOTH[0], 3, 3 * 4.224679),
        (BOTH[1], 1, 4.224679 / 2**0.5),
    ):
        query = LatticeQuery(10, 4**BITS, neighbours, rows=rows)
        noise = registry.calibrated("gaussian", query, ONE_MILLIONTH).noise
        assert noise["sigma_diagonal"] / 4**BITS == pytest.approx(math.sqrt(2) * sigma, rel=1e-6)
        assert noise["sigma_off_diagonal"] / 4**BITS == pytest.approx(sigma, rel=1e-6)


@pytest.mark.parametrize("neighbours", BOTH)
def test_gaussian_scales_are_the_least_integers_that_keep_the_loss_and_mu_is_of_these(neighbours: Neighbours) -> None:
    loss = PrivacyLoss.parse("4", "1e-5")  # sigma is 1.08: these bounds meet almost every small scale
    sigma_squared = Fraction(gaussian_sigma(loss)) ** 2
    for bound in range(1, 200):
        query = LatticeQuery(2, bound, neighbours)
        mechanism = registry.calibrated("gaussian", query, loss)
        s, t = mechanism.noise["sigma_diagonal"], mechanism.noise["sigma_off_diagonal"]
        assert (s - 1) ** 2 < query.frobenius_squared * sigma_squared <= s * s
        assert 2 * (t - 1) ** 2 < s * s <= 2 * t * t
        assert mechanism.guarantee is not None
        assert mechanism.guarantee.mu_squared == Fraction(query.frobenius_squared, s * s)
        assert mechanism.guarantee.arithmetic is Arithmetic.INTEGER_EXACT
        assert (mechanism.noise["variance_diagonal"], mechanism.noise["variance_off_diagonal"]) == (s * s, t * t)


@pytest.mark.parametrize(
    ("neighbours", "scale"), [(Neighbours.REPLACE_ONE, 4**BITS), (Neighbours.ADD_REMOVE, 4**BITS // 2)]
)
def test_two_sided_wishart_scale_is_the_stated_one(neighbours: Neighbours, scale: int) -> None:
    mechanism = calibrated("two-sided-wishart", 10, neighbours, PrivacyLoss.parse("1"))
    assert (mechanism.noise["scale"], mechanism.noise["columns"]) == (scale, 11)
    three = LatticeQuery(10, 4**BITS, neighbours, rows=3)  # of one privacy unit: each costs as much
    assert registry.calibrated("two-sided-wishart", three, PrivacyLoss.parse("1")).noise["scale"] == 3 * scale
    ideal = calibrated("two-sided-wishart", 10, neighbours, PrivacyLoss.parse("1"), arithmetic="ideal-real")
    assert mechanism.guarantee is not None
    assert ideal.guarantee is not None
    assert mechanism.guarantee.mu_squared is None
    assert mechanism.guarantee.arithmetic is Arithmetic.INTEGER_EXACT
    assert ideal.guarantee.arithmetic is Arithmetic.IDEAL_REAL
    assert ideal.noise == mechanism.noise
    with pytest.raises(UsageError, match="arithmetic"):
        calibrated("two-sided-wishart", 10, neighbours, PrivacyLoss.parse("1"), arithmetic="float")
    # rounded up, never down: epsilon = nuclear sensitivity / (2 scale) stays below the guarantee
    odd = calibrated("two-sided-wishart", 10, neighbours, PrivacyLoss.parse("0.7"), bits=2)
    query = LatticeQuery(10, 16, neighbours)
    assert Fraction(query.nuclear, 2 * odd.noise["scale"]) <= Fraction(7, 10)
    assert Fraction(query.nuclear, 2 * (odd.noise["scale"] - 1)) > Fraction(7, 10)


def draws(mechanism: Calibrated, count: int) -> npt.NDArray[np.int64]:
    assert isinstance(mechanism, Additive)
    return np.stack([mechanism.draw(SYSTEM) for _ in range(count)])


def test_gaussian_noise_has_the_stated_variances_and_its_twin_fails() -> None:
    size = 40
    mechanism = calibrated("gaussian", size, Neighbours.REPLACE_ONE, ONE_MILLIONTH)
    sigma = math.sqrt(2) * 4.224679 * 4**BITS
    sample: npt.NDArray[np.float64] = draws(mechanism, 800).astype(np.float64)
    on = np.zeros(sample.shape[1], dtype=bool)
    on[diagonal_positions(size)] = True
    for entries, variance in ((sample[:, on], sigma**2), (sample[:, ~on], sigma**2 / 2)):
        total = float(np.sum(entries**2) / variance)
        assert total_passes(total, stats.chi2(entries.size))
        # the twin, with 5 % too little noise, is detected with probability 1 - 1e-9
        assert not total_passes(0.95**2 * total, stats.chi2(entries.size))
    # independent entries: the largest correlation between two entries is within chance
    assert stats.kstest(sample[:, ~on].ravel() / (sigma / math.sqrt(2)), "norm").pvalue > FALSE_ALARM
    correlation = np.asarray(np.corrcoef(sample[:, :200].T))[np.triu_indices(200, 1)] * math.sqrt(sample.shape[0])
    assert np.abs(correlation).max() < stats.norm.isf(FALSE_ALARM / correlation.size)


def test_two_sided_wishart_noise_has_the_stated_variances_and_its_twin_fails() -> None:
    """The ideal-real one; tests/noise/test_products.py tests the integer-exact one."""
    size, relation = 12, Neighbours.ADD_REMOVE
    mechanism = calibrated("two-sided-wishart", size, relation, PrivacyLoss.parse("1"), arithmetic="ideal-real")
    s2 = 4**BITS / 2
    sample = draws(mechanism, 600).astype(np.float64) / s2
    on = np.zeros(sample.shape[1], dtype=bool)
    on[diagonal_positions(size)] = True
    stated = mechanism.noise["variance_diagonal"] / s2**2, mechanism.noise["variance_off_diagonal"] / s2**2
    assert stated == pytest.approx((4 * (size + 1), 2 * (size + 1)))
    for entries, variance in zip((sample[:, on], sample[:, ~on]), stated, strict=True):
        # entries of one draw are dependent, draws are not: one mean square per draw
        squares = np.mean(entries**2, axis=1)
        assert mean_passes(squares, variance)
        # the twin, with 15 % too little noise, is detected with probability 1 - 1e-9
        assert not mean_passes(0.85**2 * squares, variance)
        assert mean_passes(entries[:, 0], 0)


def test_integer_exact_wishart_noise_is_the_difference_of_two_exactly_rounded_matrices() -> None:
    mechanism = calibrated("two-sided-wishart", 5, Neighbours.REPLACE_ONE, PrivacyLoss.parse("1"))
    assert isinstance(mechanism, Additive)
    recording = Recording()
    noise = mechanism.draw(recording)
    again = Replaying(recording.drawn)
    first, second = (rounded_wishart(5, 6, mechanism.noise["scale"], again) for _ in range(2))
    assert np.array_equal(noise, first - second)
    assert not again.left


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_accepted_two_sided_wishart_noise_exceeds_64_bits_with_probability_below_1e_18(
    size: int,
) -> None:
    def granted(bound: int) -> int | None:
        try:
            query = LatticeQuery(size, bound, Neighbours.ADD_REMOVE)
            return int(registry.calibrated("two-sided-wishart", query, PrivacyLoss.parse("0.5")).noise["scale"])
        except UsageError:
            return None

    largest = bisect.bisect_left(range(2**62), True, key=lambda bound: granted(bound + 1) is None)
    scale = granted(largest)
    assert scale is not None
    # an entry of E is between those on the diagonal of its two Wishart matrices, 2 d chi-squared variables
    assert 2 * size * stats.chi2.sf((2**63 - 1) / scale, size + 1) < 1e-18


def test_every_mechanism_is_found_by_its_name_and_an_unknown_one_is_refused() -> None:
    assert all(mechanism_named(name).info.name == name for name in MECHANISMS)
    assert recommended(0) == "two-sided-wishart"
    assert recommended(1) == "gaussian"
    with pytest.raises(UsageError, match="gaussian, two-sided-wishart"):
        mechanism_named("sine")
