"""The noise of the counts of a histogram, and tail bounds of its weighted sums.

Both distributions are on the integers and drawn exactly (:mod:`dpdist.core.noise.lattice`). Let ``X_j`` be independent
draws and ``c_j`` fixed weights.

**Discrete Laplace** of scale t, ``P(x) ∝ exp(-|x| / t)``. By Markov's inequality for ``exp(s .)``, s > 0,
``sum_j c_j X_j`` exceeds a with probability at most beta if ::

    a >= (sum_j L(s c_j) + ln(1/beta)) / s,    L(s) = ln E exp(s X) = 2 ln(1 - p) - ln(1 - p e^s) - ln(1 - p e^-s),

with ``p = exp(-1/t)``. The bound holds for every s, so the search for the best s cannot invalidate it. ∎

**Rounded normal** of scale s, ``X_j = rnd(s Z_j)``, Z standard normal. Rounding moves a draw by at most one half: ::

    |sum_j c_j X_j - s sum_j c_j Z_j| <= sum_j |c_j| / 2,

for every draw, and ``sum_j c_j Z_j`` is normal with variance ``|c|_2²``. So with ``P(Z > z) = beta`` the sum exceeds
``s |c|_2 z + |c|_1 / 2`` with probability at most beta. ∎

The variance of ``rnd(s Z)`` is ``s² + 1/12 + sum_k (-1)^k exp(-2 pi² k² s²) (4 s² + 1/(pi² k²))`` (Sheppard's
correction with its remainder, by Poisson summation); for s >= 1 the sum is below ``2e-8`` and is omitted.

**Calibration.** Let neighbours change the counts by at most ``Delta_2`` in the l2 and ``Delta_1`` in the l1 norm. (a)
Gaussian: with s the least integer at which the Gaussian profile keeps (epsilon, delta), noisy counts are mu-GDP with
``mu² = Delta_2² / s²``, a fraction of integers, and (epsilon, delta)-private. The counts h are integers, and rounding
commutes with adding an integer: ``h + rnd(s Z) = rnd(h + s Z)`` is post-processing of the Gaussian mechanism (Dong,
Roth & Su 2022; its profile: Balle & Wang 2018, theorem 8). (b) Laplace: with ``t = ceil(Delta_1 / epsilon)`` they are
epsilon-private: the probabilities of any noisy counts under two neighbours differ by a factor of at most
``exp(|h - h'|_1 / t) <= exp(Delta_1 / t)``. ∎

References
----------
Canonne, Kamath & Steinke 2020 (discrete Laplace); Sheppard 1898 (moments of rounded normals); Dong, Roth & Su 2022;
Balle & Wang 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import DataError
from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.lattice import discrete_laplace, rounded_normal
from dpdist.core.noise.reals import Integers
from dpdist.core.privacy.accounting import gaussian_delta, gaussian_sigma
from dpdist.core.privacy.guarantee import MICRO, Arithmetic, Guarantee, Neighbours, PrivacyLoss

Counts = npt.NDArray[np.int64]

Terms = Sequence[tuple[int, float]]
"""Pairs of a number of draws and their weight."""
_UP = 1 + 1e-9
"""Exceeds all rounding errors of a bound."""


@dataclass(frozen=True)
class DiscreteLaplace:
    """Integers with probability ``∝ exp(-|x| / scale)``."""

    scale: int
    law: ClassVar[str] = "discrete-laplace"

    def draw(self, size: int, entropy: Entropy) -> Integers:
        return discrete_laplace(self.scale, size, entropy)

    @property
    def variance(self) -> float:
        """The variance of one draw."""
        return 0.5 / math.sinh(0.5 / self.scale) ** 2

    def bound(self, terms: Terms, beta: float) -> float:
        """Return a bound that the weighted sum exceeds with probability at most beta."""
        sizes = [(count, abs(weight)) for count, weight in terms if count and weight]
        if not sizes:
            return 0.0
        largest = max(weight for _, weight in sizes)

        def proved(log_rest: float) -> float:  # at s = (1 - rest) / (t largest), up to its limit 1 / (t largest)
            s = -math.expm1(log_rest) / (self.scale * largest)
            return (sum(count * self._log_mgf(s * weight) for count, weight in sizes) - math.log(beta)) / s

        low, high = math.log(1e-9), math.log1p(-1e-9)
        ratio = (math.sqrt(5) - 1) / 2
        for _ in range(45):  # golden section, to 1e-8 of the interval; the bound is flat there, and valid anywhere
            left, right = high - ratio * (high - low), low + ratio * (high - low)
            low, high = (low, right) if proved(left) < proved(right) else (left, high)
        return proved((low + high) / 2) * _UP

    def _log_mgf(self, s: float) -> float:
        """Return ``ln E exp(s X)``, ``0 <= s < 1 / scale``."""
        one_minus_p, step = -math.expm1(-1 / self.scale), 1 / self.scale
        return 2 * math.log(one_minus_p) - math.log(-math.expm1(s - step)) - math.log(-math.expm1(-s - step))

    def to_json(self) -> dict[str, object]:
        return {"law": self.law, "scale": self.scale}


@dataclass(frozen=True)
class RoundedNormal:
    """Normals with integer standard deviation ``sigma``, rounded to the nearest integer."""

    sigma: int
    law: ClassVar[str] = "rounded-normal"

    def draw(self, size: int, entropy: Entropy) -> Integers:
        return rounded_normal(self.sigma, size, entropy)

    @property
    def variance(self) -> float:
        """The variance of one draw."""
        return self.sigma**2 + 1 / 12

    def bound(self, terms: Terms, beta: float) -> float:
        """Return a bound that the weighted sum exceeds with probability at most beta."""
        from scipy.special import ndtri  # noqa: PLC0415 - slow to import, rarely used

        length = math.sqrt(math.fsum(count * weight**2 for count, weight in terms))
        rounding = math.fsum(count * abs(weight) for count, weight in terms) / 2
        return (self.sigma * length * -float(ndtri(beta)) + rounding) * _UP

    def to_json(self) -> dict[str, object]:
        return {"law": self.law, "sigma": self.sigma}


CountNoise = DiscreteLaplace | RoundedNormal


def noise_from_json(value: dict[str, Any]) -> CountNoise:
    """Return the noise stored by ``to_json``."""
    if value["law"] == DiscreteLaplace.law:
        return DiscreteLaplace(value["scale"])
    if value["law"] == RoundedNormal.law:
        return RoundedNormal(value["sigma"])
    raise DataError(f"The noise of the counts has the unknown law {value['law']!r}. Read it with a newer dpdist.")


@dataclass(frozen=True)
class CalibratedHistogram:
    """Independent noise of one integer scale on every count."""

    noise: CountNoise
    guarantee: Guarantee

    def answer(self, counts: Counts, entropy: Entropy) -> Counts:
        """Return the counts plus one draw."""
        return counts + self.noise.draw(counts.size, entropy)


def calibrated_histogram(
    loss: PrivacyLoss, neighbours: Neighbours, columns: int, max_rows: int, proof: str
) -> CalibratedHistogram:
    """Return noise of the least integer scale that keeps a loss: Gaussian with a delta, discrete Laplace without."""
    absolute = (2 if neighbours is Neighbours.REPLACE_ONE else 1) * max_rows * columns
    squared = absolute * max_rows
    noise: CountNoise
    if loss.delta_atto:
        # sqrt(Delta_2² sigma²), rounded up in integers
        noise = RoundedNormal(math.isqrt(math.ceil(squared * Fraction(gaussian_sigma(loss)) ** 2) - 1) + 1)
        mu_squared = Fraction(squared, noise.sigma**2)
        within_loss = gaussian_delta(Fraction(loss.epsilon_micro, MICRO), mu_squared) <= loss.delta
    else:
        noise = DiscreteLaplace(-(-absolute * MICRO // loss.epsilon_micro))
        mu_squared = None
        within_loss = absolute * MICRO <= loss.epsilon_micro * noise.scale
    if not within_loss:
        raise AssertionError("the rounded scale exceeds the loss")
    return CalibratedHistogram(noise, Guarantee(neighbours, loss, mu_squared, Arithmetic.INTEGER_EXACT, proof))
