"""Ratios of two noisy numbers, with the intervals of Fieller (1954).

For x and y with normal errors of variances v_x, v_y and covariance c, the error of ``x - t y`` is normal with the
variance ``v_x - 2 t c + t² v_y``, and 0 for the exact ratio t. So the values t for which it is within 1.96 standard
deviations of 0 are a 95 % interval, whatever y is. It is bounded where y itself is farther from 0 than 1.96 standard
deviations; where it is not, nothing is known of the ratio, and both ends are infinite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist.answers.block import NORMAL

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ratios:
    """Ratios, NaN where nothing is known of one."""

    estimates: Matrix
    intervals: Matrix  # with a last axis of two ends

    def mapped(self, shift: float, unit: float) -> Ratios:
        """Return ``shift + unit * ratio``."""
        mapped = shift + unit * self.intervals
        return Ratios(shift + unit * self.estimates, np.sort(mapped, axis=-1))

    def clipped(self, low: float, high: float) -> Ratios:
        """Return them, and their intervals, within two ends that the exact ratios keep; nothing known stays so."""
        finite = np.isfinite(self.intervals)
        return Ratios(
            np.clip(self.estimates, low, high), np.where(finite, np.clip(self.intervals, low, high), self.intervals)
        )


def ratios(
    above: Matrix | float, below: Matrix | float, above_variance: float, below_variance: float, shared: float = 0.0
) -> Ratios:
    """Return ratios, with the intervals of the exact ones; ``shared`` is the covariance of the two errors."""
    x, y = np.broadcast_arrays(np.asarray(above, np.float64), np.asarray(below, np.float64))
    z = NORMAL**2
    square, middle, rest = y**2 - z * below_variance, x * y - z * shared, x**2 - z * above_variance
    known = (square > 0) & (y > 0)
    root = np.sqrt(np.maximum(middle**2 - square * rest, 0.0))
    safe = np.where(known, square, 1.0)
    low, high = np.where(known, (middle - root) / safe, -np.inf), np.where(known, (middle + root) / safe, np.inf)
    values = np.where(known, x / np.where(known, y, 1.0), np.nan)
    return Ratios(values, np.stack([low, high], axis=-1))
