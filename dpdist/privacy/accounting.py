"""Calibration and composition: how much noise a guarantee needs, and what several releases add up to.

The Gaussian profile is computed with 60 decimal digits, so its two nearly equal terms cancel harmlessly down to
delta = 1e-18 and every comparison against a budget is decided by the exact parameters, not by float rounding.

References
----------
Balle & Wang 2018 (analytic Gaussian mechanism); Dong, Roth & Su 2022 (Gaussian differential privacy);
Bun & Steinke 2016 and Canonne, Kamath & Steinke 2020 (zero-concentrated differential privacy).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

from mpmath.ctx_mp import MPContext

from dpdist.errors import UsageError
from dpdist.privacy.guarantee import ATTO, MICRO, Guarantee, PrivacyLoss

_DIGITS = MPContext()  # a private context: mpmath's global precision belongs to the caller
_DIGITS.dps = 60
_UP = 1 + 2.0**-48
"""Pushes a correctly rounded float to the safe side."""
_FLOOR = 1e-50
"""Added to every delta of a mechanism that is not pure: the 60 digits are off by less, and it never rounds to 0."""


@lru_cache(maxsize=4096)
def gaussian_delta(epsilon: Fraction, mu_squared: Fraction) -> float:
    """Return the smallest delta of a mu-GDP mechanism at epsilon, rounded up.

    ``Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)`` (Balle & Wang 2018, theorem 8), where mu is
    the sensitivity divided by the standard deviation of the noise.

    Examples
    --------
    >>> round(gaussian_delta(Fraction(1), Fraction(1)), 6)
    0.126937
    """
    digits = _DIGITS
    if mu_squared == 0:
        return 0.0
    mu = digits.sqrt(digits.mpf(mu_squared.numerator) / mu_squared.denominator)
    eps = digits.mpf(epsilon.numerator) / epsilon.denominator
    value = digits.ncdf(mu / 2 - eps / mu) - digits.exp(eps) * digits.ncdf(-mu / 2 - eps / mu)
    return max(0.0, float(value)) * _UP + _FLOOR


@lru_cache(maxsize=256)
def gaussian_sigma(loss: PrivacyLoss) -> float:
    """Return the standard deviation that makes a Gaussian release of sensitivity 1 (epsilon, delta)-private.

    The root of :func:`gaussian_delta` in sigma by bisection; what is returned is the upper end of the last
    bracket, so the guarantee holds for the returned number itself.

    Raises
    ------
    UsageError
        If delta is 0: no Gaussian mechanism is purely private.

    Examples
    --------
    >>> round(gaussian_sigma(PrivacyLoss.parse("1", "1e-6")), 6)
    4.224679
    """
    if loss.delta_atto == 0:
        raise UsageError("Gaussian noise needs a positive delta; for delta = 0 take two-sided-wishart.")

    def private(sigma: float) -> bool:
        mu_squared = 1 / Fraction(sigma) ** 2
        return gaussian_delta(epsilon, mu_squared) <= loss.delta

    epsilon = Fraction(loss.epsilon_micro, MICRO)
    low, high = 0.5, 1.0
    while not private(high):
        low, high = high, 2 * high
    while private(low):
        low, high = low / 2, low
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if private(middle) else (middle, high)
    return high


def zcdp_delta(epsilon: float, rho: float) -> float:
    """Return delta of a rho-zCDP mechanism at epsilon (an upper bound; Canonne, Kamath & Steinke 2020, proposition 12).

    ``inf over alpha > 1 of exp((alpha-1)(alpha rho - epsilon)) (1 - 1/alpha)^(alpha-1) / alpha``. Every alpha gives
    a valid bound, so the search for the best one cannot break the guarantee.
    """
    if rho == 0:
        return 0.0

    def log_delta(log_excess: float) -> float:
        excess = math.exp(log_excess)  # alpha - 1
        alpha = 1 + excess
        return excess * (alpha * rho - epsilon) + excess * math.log(excess / alpha) - math.log(alpha)

    low, high = math.log(1e-6), math.log(1e9)
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(120):  # golden section: the bound is unimodal in log(alpha - 1)
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if log_delta(left) < log_delta(right) else (left, high)
    return math.exp(min(0.0, log_delta((low + high) / 2))) * (1 + 1e-9) + _FLOOR


def composed_delta(guarantees: Iterable[Guarantee], epsilon_micro: int) -> float:
    """Return delta at a total epsilon of all the given releases of one table together, chosen adaptively.

    Two accounts are kept and the smaller is returned; both are upper bounds.

    1. Gaussian releases compose exactly (their mu² add up, Dong, Roth & Su 2022, corollary 3.3); every other
       release takes its epsilon from the total and adds its delta (basic composition).
    2. If every other release is pure, all are zCDP: a Gaussian one mu²/2, a pure one epsilon²/2 (Bun & Steinke
       2016, propositions 1.4 and 1.6), one of bounded range epsilon²/8 (Cesar & Rogers 2021, lemma 3.4), and rho
       adds up.

    Parameters
    ----------
    guarantees
        Guarantees under one neighbouring relation.
    epsilon_micro
        The total epsilon, in millionths.

    Returns
    -------
    float
        Delta, or infinity when no account certifies the total at this epsilon.
    """
    releases = list(guarantees)
    mu_squared = sum((g.mu_squared for g in releases if g.mu_squared is not None), Fraction(0))
    others = [g.loss for g in releases if g.mu_squared is None]
    bounded = sum(g.loss.epsilon**2 for g in releases if g.mu_squared is None and g.bounded_range)
    rest_micro = epsilon_micro - sum(loss.epsilon_micro for loss in others)
    candidates = [math.inf]
    if rest_micro >= 0:
        other_delta = sum(loss.delta_atto for loss in others) / ATTO
        candidates.append(other_delta + gaussian_delta(Fraction(rest_micro, MICRO), mu_squared))
    if all(loss.delta_atto == 0 for loss in others):
        rho = float(mu_squared) / 2 + sum(loss.epsilon**2 for loss in others) / 2 - bounded * (1 / 2 - 1 / 8)
        candidates.append(zcdp_delta(epsilon_micro / MICRO, rho))
    return min(candidates)


def fits(guarantees: Iterable[Guarantee], budget: PrivacyLoss) -> bool:
    """Say whether all the releases together stay within the budget."""
    return composed_delta(guarantees, budget.epsilon_micro) <= budget.delta


def share(loss: PrivacyLoss, count: int, *, gaussian: bool) -> PrivacyLoss:
    """Return the loss that each of ``count`` equal releases may have, so that together they keep to a loss.

    Gaussian ones keep its delta, at which an epsilon stands for one mu: the largest epsilon is taken whose mu², times
    ``count``, still keeps the whole loss. Others divide epsilon, and delta, evenly.

    Raises
    ------
    UsageError
        If a share would be less than a millionth of epsilon, or less than 1e-18 of a positive delta.

    Examples
    --------
    >>> whole = PrivacyLoss.parse("1", "1e-6")
    >>> share(whole, 9, gaussian=True).epsilon, share(PrivacyLoss.parse("1"), 9, gaussian=False).epsilon
    (0.308058, 0.111111)
    """
    if count == 1:
        return loss
    low = loss.epsilon_micro // count
    delta = loss.delta_atto if gaussian else loss.delta_atto // count
    if low < 1 or (loss.delta_atto and not delta):
        raise UsageError(f"{loss} cannot be divided into {count} shares: ask for more of it, or for fewer levels.")
    if not gaussian:
        return PrivacyLoss(low, delta)
    square = 1 / (count * Fraction(gaussian_sigma(loss)) ** 2)
    high = loss.epsilon_micro
    while high - low > 1:  # the epsilon at which a release of this mu² has just this delta
        middle = (low + high) // 2
        low, high = (middle, high) if gaussian_delta(Fraction(middle, MICRO), square) >= loss.delta else (low, middle)
    found = PrivacyLoss(low, delta)
    together = count / Fraction(gaussian_sigma(found)) ** 2
    if gaussian_delta(Fraction(loss.epsilon_micro, MICRO), together) > loss.delta:
        raise UsageError(f"{loss} cannot be divided into {count} Gaussian shares: ask for more of it.")
    return found


def spent_epsilon_micro(guarantees: Iterable[Guarantee], delta_atto: int) -> int:
    """Return the least total epsilon, in millionths, at which the releases together keep to delta (0: no release)."""
    releases = list(guarantees)
    if not releases:
        return 0
    delta = delta_atto / ATTO
    high = sum(g.loss.epsilon_micro for g in releases)
    while composed_delta(releases, high) > delta:
        if high > 2**60:
            raise UsageError("These releases do not keep to so small a delta at any epsilon.")
        high *= 2
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if composed_delta(releases, middle) <= delta else (middle, high)
    return high
