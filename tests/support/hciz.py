"""The Harish-Chandra-Itzykson-Zuber integral in multiple precision: what orbit samplers are tested by."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath
import numpy as np
import numpy.typing as npt
from scipy import stats

from support.tallies import FALSE_ALARM


def moments(levels: Sequence[float], spectrum: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation of tr(L H), H = U diag(spectrum) U* of density exp(tr(L H)).

    The integral of exp(t tr(L H)) over the orbit is ``const t^(-d(d-1)/2) det[exp(t l_i g_j)]`` over the Vandermonde
    determinants of l and g. Equal values are set 1e-18 apart, and 150 digits are carried.
    """
    with mpmath.workdps(150):
        apart = mpmath.mpf(10) ** -18
        ls = [mpmath.mpf(x) + apart * i for i, x in enumerate(levels)]
        gs = [mpmath.mpf(x) + apart * i * i for i, x in enumerate(spectrum)]
        pairs = len(ls) * (len(ls) - 1) // 2

        def log_integral(t: mpmath.mpf) -> mpmath.mpf:
            determinant = mpmath.det(mpmath.matrix([[mpmath.exp(t * x * y) for y in gs] for x in ls]))
            return mpmath.log(abs(determinant)) - pairs * mpmath.log(t)

        step = mpmath.mpf(10) ** -12
        below, here, above = (log_integral(1 + k * step) for k in (-1, 0, 1))
        return float((above - below) / (2 * step)), float(mpmath.sqrt((above - 2 * here + below) / step**2))


def score_passes(
    sample: npt.NDArray[np.float64], levels: Sequence[float], spectrum: Sequence[float], strength: float = 1.0
) -> bool:
    """Test the mean of tr(L H) for the density exp(strength tr(L H)), by the central limit theorem."""
    mean, deviation = moments([strength * x for x in levels], spectrum)
    z = (strength * float(np.mean(sample)) - mean) / (deviation / math.sqrt(sample.size))
    # 5 % slack: means of thousands of draws are normal to within that at this level
    return bool(abs(z) < 1.05 * stats.norm.isf(FALSE_ALARM / 2))
