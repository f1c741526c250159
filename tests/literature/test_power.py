"""The noisy power method: its noise, its claim for rows, and the guarantee of the published noise."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from support.registered import BOUND as UNIT
from support.registered import calibrated
from support.tallies import FALSE_ALARM

from dpdist.core.mechanisms.base import is_private_as_claimed
from dpdist.core.moment.operator import MomentMatrix
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.accounting import gaussian_delta
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.triangle import packed

R, AR = Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE
ONE_MILLIONTH = PrivacyLoss.parse("1", "1e-6")


def test_the_noise_is_that_of_the_specification() -> None:
    loss = PrivacyLoss.parse("1", "0.01")
    private = calibrated("power", 784, loss=loss, components=50, iterations=100)
    assert private.scale / UNIT == pytest.approx(26.557, rel=1e-4)
    mechanism = calibrated("power", 20, loss=ONE_MILLIONTH, components=3, iterations=7)  # the rounds compose
    assert math.sqrt(mechanism.guarantee.mu_squared) == pytest.approx(1 / 4.224679, rel=1e-6)
    assert gaussian_delta(Fraction(1), mechanism.guarantee.mu_squared) <= 1e-6
    # one vector moves by C² at most, under both relations
    one = [calibrated("power", 784, UNIT, relation, loss, iterations=100).scale for relation in (R, AR)]
    assert one == pytest.approx([18.77876 * UNIT] * 2, rel=1e-6)
    published = calibrated("power-published", 784, loss=loss, components=50, iterations=100)
    assert published.scale / UNIT == pytest.approx(303.5, rel=1e-3)
    assert published.guarantee.loss.delta == pytest.approx(0.243, abs=5e-4)  # for rows, not the 0.01 claimed
    assert not is_private_as_claimed(published)
    assert is_private_as_claimed(private)


def test_published_laplace_noise_covers_rows_only_for_many_components() -> None:
    few, enough, lacking = (calibrated("power-published", 784, components=k, iterations=10) for k in (5, 16, 15))
    assert few.guarantee.loss.epsilon == pytest.approx(math.sqrt(2 * 784 / 5) / 10, rel=1e-5)
    assert not is_private_as_claimed(few)
    assert is_private_as_claimed(enough)
    assert not is_private_as_claimed(lacking)


@pytest.mark.parametrize("relation", [R, AR])
@pytest.mark.parametrize("count", [1, 3])
def test_no_row_moves_a_product_further_than_the_sensitivity(count: int, relation: Neighbours) -> None:
    rng = np.random.default_rng(7)
    found = calibrated("power", 6, UNIT, relation, components=count)
    limit = found.scale / UNIT  # epsilon 1, one round: the scale is the sensitivity
    worst = 0.0
    for _ in range(2000):
        v, w = (u / np.linalg.norm(u) for u in rng.normal(size=(2, 6)))
        w = w - (w @ v) * v
        w /= np.linalg.norm(w)
        frame, _ = np.linalg.qr(np.column_stack([v + 0.1 * rng.normal(size=6), w, rng.normal(size=6)])[:, :count])
        change = np.outer(v, v) - (np.outer(w, w) if relation is R else 0)
        worst = max(worst, float(np.linalg.norm(change @ frame)))
    assert 0.95 * limit < worst <= limit


@pytest.mark.parametrize(("shape", "delta"), [("normal", "1e-6"), ("k-norm", "0")])
def test_noise_has_its_distribution_and_its_twin_fails(shape: str, delta: str) -> None:
    mechanism = calibrated("power", 4, loss=PrivacyLoss.parse("1", delta), components=2)
    assert mechanism.shape == shape
    drawn = np.stack([mechanism._noise(np.eye(4)[:, :2], SYSTEM) for _ in range(6000)]) / mechanism.scale
    norms = np.linalg.norm(drawn, axis=(1, 2))
    law = stats.chi(8) if shape == "normal" else stats.gamma(8)
    assert stats.kstest(norms, law.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(0.9 * norms, law.cdf).pvalue < FALSE_ALARM
    # the direction is uniform on the sphere of R^8: (1 + u)/2 of an entry u is Beta(7/2, 7/2)
    entry = (1 + drawn[:, 2, 1] / norms) / 2
    assert stats.kstest(entry, stats.beta(3.5, 3.5).cdf).pvalue > FALSE_ALARM


def test_published_noise_scales_with_the_largest_entry() -> None:
    mechanism = calibrated("power-published", 4, components=2)
    frame = np.full((4, 2), 0.5)
    drawn = np.concatenate([mechanism._noise(frame, SYSTEM).ravel() for _ in range(20_000)]) / mechanism.scale
    assert stats.kstest(drawn, stats.laplace(scale=0.5).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(drawn, stats.laplace(scale=0.475).cdf).pvalue < FALSE_ALARM


def test_it_finds_the_leading_subspace_when_the_signal_is_strong() -> None:
    basis, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(12, 12)))
    matrix = np.rint((basis * np.array([9e4, 5e4, 3e4, *[1e2] * 9])) @ basis.T * UNIT)
    moment = MomentMatrix(packed((matrix + matrix.T) / 2), 12)
    for delta in ("1e-6", "0"):
        mechanism = calibrated("power", 12, loss=PrivacyLoss.parse("10", delta), components=3, iterations=6)
        rows = np.asarray(mechanism.answer(moment, SYSTEM), dtype=np.float64)
        assert np.allclose(rows @ rows.T, np.eye(3))
        assert np.linalg.norm(rows @ basis[:, :3]) ** 2 > 3 - 1e-2
    # without a signal the last round is uniform, as is an entry of a unit vector of R^3
    mechanism = calibrated("power", 3, loss=ONE_MILLIONTH, iterations=2)
    empty = MomentMatrix(packed(np.zeros((3, 3))), 3)
    entry = np.abs([mechanism.answer(empty, SYSTEM)[0, 0] for _ in range(3000)])
    assert stats.kstest(entry, stats.uniform().cdf).pvalue > FALSE_ALARM
    assert stats.kstest(entry**1.3, stats.uniform().cdf).pvalue < FALSE_ALARM
