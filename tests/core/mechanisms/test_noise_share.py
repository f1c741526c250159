"""Shares of Gaussian noise: the theorem's constants by another way, scales, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from support.tallies import alarms

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.gaussian import CalibratedGaussian, Gaussian
from dpdist.core.mechanisms.noise_share import LEAST_SCALE, MOST_SITES, NoiseShare, noise_share
from dpdist.core.mechanisms.registry import calibrated
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.accounting import caps_for, gaussian_sigma
from dpdist.core.privacy.guarantee import ATTO, MICRO, Neighbours, PrivacyLoss
from dpdist.core.privacy.profile import RESERVE, profile

LOSS = PrivacyLoss.parse(1, 1e-6)


def gaussian(size: int = 4, bits: int = 12, loss: PrivacyLoss = LOSS) -> CalibratedGaussian:
    return Gaussian().calibrate(LatticeQuery(size, 4**bits, Neighbours.REPLACE_ONE), loss)


def rounded(sigma: mpf, reach: int) -> list[mpf]:
    """Probabilities of a rounded normal number from -reach to reach."""
    return [
        mpmath.ncdf((x + mpf(1) / 2) / sigma) - mpmath.ncdf((x - mpf(1) / 2) / sigma) for x in range(-reach, reach + 1)
    ]


def convolved(first: list[mpf], second: list[mpf]) -> list[mpf]:
    result = [mpf(0)] * (len(first) + len(second) - 1)
    for i, p in enumerate(first):
        for j, q in enumerate(second):
            result[i + j] += p * q
    return result


def ideal(sites: int, sigma: mpf, x: int) -> mpf:
    """P(rnd(N + V) = x), by the law of V: an integral over its density, and none of the theorem's transforms."""
    deviation = sigma * mpmath.sqrt(sites)

    def cell(v: mpf) -> mpf:
        return mpmath.ncdf((x + mpf(1) / 2 - v) / deviation) - mpmath.ncdf((x - mpf(1) / 2 - v) / deviation)

    if sites == 2:
        return mpmath.quad(cell, [-mpf(1) / 2, 0, mpf(1) / 2])
    return mpmath.quad(lambda v: (1 - abs(v)) * cell(v), [-1, 0, 1])  # the sum of two uniforms


@pytest.mark.parametrize(
    ("sites", "sigma", "stated"), [(2, "1", "2.1e-5"), (2, "1.5", "9.2e-11"), (3, "0.75", None), (3, "1", None)]
)
def test_a_sum_of_rounded_normals_is_as_near_to_its_ideal_as_is_proved(
    sites: int, sigma: str, stated: str | None
) -> None:
    with mpmath.workdps(30):
        scale, reach = mpf(sigma), int(9 * float(sigma)) + 2
        of_sum = single = rounded(scale, reach)
        for _ in range(sites - 1):
            of_sum = convolved(of_sum, single)
        middle = len(of_sum) // 2
        off = sum(abs(of_sum[middle + x] - ideal(sites, scale, x)) for x in range(-reach, reach + 1)) / 2
        true_exponent = 2 * mpmath.pi**2 * scale**2 * (1 - mpf(1) / sites)
        assert off <= 2 * scale * mpmath.exp(-true_exponent / 2)  # the bound of the theorem
        assert mpmath.exp(-true_exponent) / 10 < off < 10 * mpmath.exp(-true_exponent)  # what it is in truth
        if stated is not None:
            assert mpmath.nstr(off, 2) == mpmath.nstr(mpf(stated), 2)


def test_each_constant_of_the_proof_holds_for_the_least_noise_and_all_numbers_of_sites() -> None:
    with mpmath.workdps(30):
        scale = mpf(LEAST_SCALE)
        for honest in (*range(2, 20), 100, MOST_SITES):
            ratio = mpmath.exp(-(mpmath.pi**2) * scale**2 / honest)
            theta = 1 + 2 * sum(ratio ** (m * m) for m in (1, 2))
            assert theta ** (honest - 1) - 1 < 1  # T
            reach = mpmath.sqrt(2 * honest) * mpmath.pi * scale**2 + mpf(honest) / 2
            assert (2 * reach + 1) / (scale * mpmath.sqrt(2 * mpmath.pi * honest)) <= mpf("3.56") * scale
            exponent = mpmath.pi**2 * scale**2 * (1 - mpf(1) / honest)
            assert exponent >= mpmath.pi**2 * scale**2 / 2
            least = (mpf("3.56") * scale * mpmath.exp(-exponent) + 4 * mpmath.exp(-(mpmath.pi**2) * scale**2)) / 2
            assert least <= 2 * scale * mpmath.exp(-(mpmath.pi**2) * scale**2 / 2)
        eta = 2 * scale * mpmath.exp(-(mpmath.pi**2) * scale**2 / 2)
        cost = 2**33 * (1 + mpmath.exp(10**6)) * eta
        assert cost < mpmath.exp(-4_000_000)
        assert cost * 2**64 < mpf(RESERVE.numerator) / RESERVE.denominator  # of any number of sessions


def test_the_distance_of_integers_from_their_mean_is_as_the_proof_says() -> None:
    points = np.array(np.meshgrid(*[np.arange(-3, 4)] * 4)).reshape(4, -1).T
    points = points[(points != points[:, :1]).any(axis=1)].astype(float)
    v = ((points - points.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    assert v.min() == pytest.approx(1 - 1 / 4)
    assert (v >= ((points - points[:, :1]) ** 2).sum(axis=1) / 4 - 1e-12).all()


@pytest.mark.parametrize("loss", [LOSS, PrivacyLoss.parse("0.01", "1e-18"), PrivacyLoss.parse(20, 1e-9)], ids=str)
def test_the_budget_keeps_what_eta_costs_free(loss: PrivacyLoss) -> None:
    _, caps = caps_for(loss)
    epsilon, delta = Fraction(loss.epsilon_micro, MICRO), Fraction(loss.delta_atto, ATTO)
    assert profile(Fraction(0), caps.mu_squared, epsilon) <= delta
    with mpmath.workdps(80):
        mu = mpmath.sqrt(mpf(caps.mu_squared.numerator) / caps.mu_squared.denominator)
        eps, goal = mpf(loss.epsilon_micro) / MICRO, mpf(loss.delta_atto) / ATTO
        spent = mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)
        assert spent <= goal - mpf(10) ** -50
        sigma = mpf(gaussian_sigma(loss))
        of_release = mpmath.ncdf(1 / (2 * sigma) - eps * sigma) - mpmath.exp(eps) * mpmath.ncdf(
            -1 / (2 * sigma) - eps * sigma
        )
        assert of_release <= goal - mpf(10) ** -33


@pytest.mark.parametrize(("sites", "colluding"), [(2, 0), (3, 1), (3, 0), (5, 1), (20, 3), (256, 254)])
def test_the_scales_are_the_least_with_which_the_honest_sites_add_the_noise_of_gaussian(
    sites: int, colluding: int
) -> None:
    central = gaussian()
    share, honest = noise_share(central, sites, colluding), sites - colluding
    for own, needed in (
        (share.sigma_diagonal, central.sigma_diagonal), (share.sigma_off_diagonal, central.sigma_off_diagonal),
    ):  # fmt: skip
        assert honest * own**2 >= needed**2 > honest * (own - 1) ** 2
    assert share.guarantee.mu_squared == central.guarantee.mu_squared
    assert (share.guarantee.loss, share.guarantee.arithmetic) == (LOSS, central.guarantee.arithmetic)
    assert share.guarantee.proof == "dpdist.core.mechanisms.noise_share"
    assert share.noise.variance_diagonal == pytest.approx(sites * share.sigma_diagonal**2, rel=1e-15)
    assert share.noise.variance_off_diagonal == pytest.approx(sites * share.sigma_off_diagonal**2, rel=1e-15)


@pytest.mark.parametrize(("scale", "honest", "own"), [(8192, 4, 4096), (3363, 2, 2379)])
def test_a_scale_is_exact_at_a_square_and_right_above_it(scale: int, honest: int, own: int) -> None:
    central = replace(gaussian(), sigma_diagonal=scale, sigma_off_diagonal=scale)  # 3363² = 2 · 2378² + 1
    assert noise_share(central, honest, 0).sigma_diagonal == own


def test_a_moment_with_more_entries_than_the_proof_covers_is_refused() -> None:
    most = (math.isqrt(8 * 2**33 + 1) - 1) // 2
    central = replace(gaussian(), size=most)
    assert noise_share(central, 2, 0).size == most
    with pytest.raises(UsageError, match="beyond the proof"):
        noise_share(replace(central, size=most + 1), 2, 0)


def test_more_colluding_sites_mean_more_noise() -> None:
    scales = [noise_share(gaussian(), 6, colluding).sigma_diagonal for colluding in range(5)]
    assert all(fewer < more for fewer, more in pairwise(scales))


def summed(share: NoiseShare, sites: int, entries: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    size = int((2 * entries) ** 0.5) + 1
    scale = share.sigma_off_diagonal  # everywhere, so that all entries have one law
    whole = NoiseShare(size, scale, scale, sites=sites, guarantee=share.guarantee)
    total = sum(whole.draw(SYSTEM) for _ in range(sites))
    return np.asarray(total)


def test_the_noise_of_the_honest_sites_together_has_the_law_of_gaussian() -> None:
    central = gaussian()
    share = noise_share(central, 4, 1)
    assert not alarms(summed(share, 3, 10**6), central.sigma_off_diagonal)
    assert alarms(summed(share, 4, 10**6), central.sigma_off_diagonal)  # with the fourth there is more


@pytest.mark.parametrize(
    ("sites", "colluding", "words"),
    [
        (1, 0, "from 2 to 256 sites, not 1"),
        (257, 1, "from 2 to 256 sites, not 257"),
        (3, 2, "Of 3 sites from 0 to 1 may be assumed to collude, not 2"),
        (2, 1, "Of 2 sites from 0 to 0"),
        (4, -1, "not -1"),
    ],
)
def test_numbers_of_sites_without_a_proof_are_refused(sites: int, colluding: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        noise_share(gaussian(), sites, colluding)


def test_noise_of_few_steps_is_refused() -> None:
    coarse = gaussian(bits=4, loss=PrivacyLoss.parse(20, 1e-3))
    assert coarse.sigma_diagonal < LEAST_SCALE
    with pytest.raises(UsageError, match="below 1024 grid steps"):
        noise_share(coarse, 3, 1)


def test_another_mechanism_is_refused() -> None:
    query = LatticeQuery(3, 4**12, Neighbours.REPLACE_ONE)
    with pytest.raises(UsageError, match="the noise of gaussian only"):
        noise_share(calibrated("laplace", query, PrivacyLoss.parse(1), {}), 3, 1)
