"""Whether drawn integers have the law that they should have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

FALSE_ALARM = 1e-6
"""Probability with which each statistical test fails on correct code."""


def total_passes(total: float, law: Any) -> bool:
    """Say whether a sum of independent draws may have a law, by both its tails.

    A scale that is k standard deviations of the sum off is told apart surely where k is 10 or more: a comparison of
    distributions (Kolmogorov and Smirnov) needs some ten times as many draws for that.
    """
    return bool(2 * min(law.cdf(total), law.sf(total)) > FALSE_ALARM)


def mean_passes(sample: npt.NDArray[np.float64], mean: float, tests: int = 1) -> bool:
    """Two-sided test of the mean of independent draws, by the central limit theorem; one of several tests."""
    deviation = abs(float(np.mean(sample)) - mean) / (float(np.std(sample)) / math.sqrt(sample.size))
    # 20 % slack: with thousands of draws the standardised mean is normal to well within that at this level
    return bool(deviation < 1.2 * stats.norm.isf(FALSE_ALARM / tests / 2))


def alarms(noise: npt.NDArray[np.int64], sigma: int) -> bool:
    """Say whether these are no rounded normal draws of a scale, by their variance and by chi-squared."""
    off = abs((noise.astype(float) ** 2).mean() / (sigma**2 + 1 / 12) - 1) / math.sqrt(2 / noise.size)
    edges = np.unique(np.round(sigma * stats.norm.ppf(np.linspace(0.02, 0.98, 49))).astype(int))
    law = np.diff([0, *stats.norm.cdf((edges + 0.5) / sigma), 1])
    seen = np.bincount(np.searchsorted(edges, noise), minlength=law.size)
    shape = stats.chisquare(seen, law * noise.size).pvalue
    return bool(off > stats.norm.isf(FALSE_ALARM / 4) or shape < FALSE_ALARM / 2)
