"""What `orbit` and `orbit-lowrank` would answer, before anything is spent: between which bounds their error lies.

They add no noise, so no edge says what is seen over it. The bounds are those of :mod:`dpdist.pca.orbit_bounds`, with
the spectrum of the moment guessed from public knowledge; they cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.errors import UsageError
from dpdist.mechanisms.orbit import CalibratedLowRankOrbit, CalibratedOrbit
from dpdist.naming import parameter
from dpdist.pca.orbit_bounds import first_order_error, low_rank_bound, lower_bound, utility_bound
from dpdist.privacy.guarantee import Neighbours
from dpdist.release.request import ReleaseRequest

ORBITS = ("orbit", "orbit-lowrank")
"""The mechanisms that such a forecast is of."""
FAILURE = 0.05
"""Probability with which an error may exceed its upper bound."""


@dataclass(frozen=True)
class OrbitForecast:
    """Between which bounds the error of an answer lies, Frobenius norm per row, in squared units of the rows.

    Attributes
    ----------
    request, columns, rows
        The release, d and n.
    upper
        The error exceeds it with probability 0.05 at most (theorem 2.2, or 2.3 for `orbit-lowrank`).
    about
        The root mean square error of H that strong signals tend to; what is released, Re H, errs by less.
    least
        What no mechanism of this loss can stay below for all moments of the guessed spectrum, with probability above
        1/2: the distance to the matrix of the released eigenvalues and the true eigenvectors (theorem 2.4, corollaries
        2.5 and 2.6).
    zero
        The error of answering zero.
    """

    request: ReleaseRequest
    columns: int
    rows: int
    upper: float
    about: float
    least: float
    zero: float

    def to_json(self) -> dict[str, object]:
        """Return the forecast as JSON values."""
        return {
            "mechanism": self.request.mechanism,
            "epsilon": self.request.loss.epsilon,
            "neighbours": self.request.neighbours.value,
            "clip_norm": self.request.clip_norm,
            "d": self.columns,
            "n": self.rows,
            "error_upper_bound": self.upper,
            "error_first_order": self.about,
            "error_lower_bound": self.least,
            "error_of_zero": self.zero,
        }


def forecast_orbit(request: ReleaseRequest, columns: int, rows: int, spectrum: Sequence[float]) -> OrbitForecast:
    """Bound the error of `orbit` or `orbit-lowrank`, from public numbers alone.

    References
    ----------
    Mangoubi, Wu, Kale, Thakurta & Vishnoi 2022; constants and proofs in :mod:`dpdist.pca.orbit_bounds`.
    """
    if rows < 1:
        raise UsageError("A forecast needs at least one row.", parameter="n")
    if request.chooses:
        raise UsageError(
            f"The forecast of {request.mechanism} is for rows of a public clip norm and scale: give "
            f"{parameter('clip', 'C')} alone."
        )
    request = request.on_grid(columns, rows if request.neighbours is Neighbours.REPLACE_ONE else None)
    bound = request.bound(columns)
    largest = bound.clip_norm**2
    guessed = np.array(spectrum, dtype=np.float64)
    if (
        not 1 <= guessed.size <= columns
        or not np.all(guessed > 0)
        or np.any(np.diff(guessed) > 0)
        or guessed.sum() > largest * (1 + 1e-9)
    ):
        raise UsageError(
            f"The error of {request.mechanism} depends on the spectrum. Guess between 1 and {columns} positive "
            f"numbers, descending, with a sum of at most the squared clip norm, {largest:g}.",
            parameter="spectrum",
        )
    levels = np.zeros(columns)
    levels[: guessed.size] = rows * guessed / largest  # in squared clip norms, as the bounds have it
    calibrated, unit = request.calibrated(columns), bound.unit**2 / largest
    epsilon = request.loss.epsilon
    # one row exchanged is one removed and one added
    epsilon *= 1 if request.neighbours is Neighbours.REPLACE_ONE else 2
    if isinstance(calibrated, CalibratedOrbit):
        goal = np.array(calibrated.spectrum)
        spread = float(goal[0] - goal[-1])
        off = float(np.sum((levels - goal) ** 2))
        upper = about = math.sqrt(off)
        if spread:
            exponent = calibrated.rate / unit / spread
            upper = math.sqrt(off + 2 * utility_bound(levels, goal, exponent, FAILURE))
            about = first_order_error(levels, goal, exponent)
    elif isinstance(calibrated, CalibratedLowRankOrbit):
        k, rate, scale = calibrated.components, calibrated.rate / unit, calibrated.scale * unit
        goal = np.where(np.arange(columns) < k, levels, 0.0)
        upper = low_rank_bound(levels, k, scale, rate, FAILURE)
        about = first_order_error(levels, goal, rate / float(goal[0]), 2 * scale**2)
    else:
        raise UsageError(f"{request.mechanism} draws from no orbit.")
    found = (upper, about, lower_bound(levels, goal, epsilon), float(np.linalg.norm(levels)))
    return OrbitForecast(request, columns, rows, *(float(value) * largest / rows for value in found))
