"""What noise of a known law does to eigenvalues and eigenvectors: post-processing, from public numbers only.

The noise E of an additive mechanism is asymptotically free of the moment A, so a component of strength theta (the
eigenvalue of A; all others small against the noise) is seen in A + E at ``K(1/theta)``, with squared cosine
``-K'(g) g²`` at ``g = 1/theta`` between what is seen and what is true; K is the functional inverse of the Cauchy
transform of E's spectrum (Benaych-Georges & Nadakuditi 2011, Theorems 2.1 and 2.2). At the critical g, where K' is
zero, the squared cosine is 0 and ``K(g)`` is the edge of the noise: below it a component is not seen at all.

With v = d times the variance of an entry off the diagonal, a Wishart matrix of m degrees of freedom and scale s:

* independent entries, and Frobenius-norm noise: the semicircle, ``K = 1/g + v g``, edge ``2 sqrt(v)``.
* one Wishart matrix less its mean: ``K = 1/g + m s x / (1 - x)``, ``x = d s g`` (Marchenko & Pastur 1967).
* the difference of two: ``K = 1/g + 2 m s x / (1 - x²)``, as R-transforms of free matrices add (Voiculescu 1986).
* nuclear-norm noise: ``K = a / sin(a g)``, ``a = sqrt(6 v)``, the mixture of arcsine laws of Ullman.

The largest eigenvalue of E lies within ``q (K''/2)^(1/3) d^(-2/3)`` of the edge, q a quantile of the Tracy-Widom law
of real symmetric matrices (Tracy & Widom 1996); :data:`QUANTILES` holds some.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

Values = npt.NDArray[np.float64]
CONFIDENCE = 0.95
"""With which whatever is said to stand above the noise does."""
QUANTILES = {0.9: 0.4501, 0.95: 0.9793, 0.99: 2.0234, 0.999: 3.2724}
"""Quantiles of the Tracy-Widom law for beta = 1 by confidence (Bejan 2005, table of percentage points)."""

_SEMICIRCLE = {"rounded-gaussian-orthogonal", "rounded-gaussian", "discrete-laplace", "frobenius-norm"}


@dataclass(frozen=True)
class NoiseLaw:
    """The spectrum of d x d noise in the limit of many columns.

    Attributes
    ----------
    size
        d.
    inverse, slope, curvature
        K, K' and K'' as functions of g, in the units of the matrix.
    critical
        The g at which K' is zero.
    """

    size: int
    inverse: Callable[[float], float]
    slope: Callable[[float], float]
    curvature: Callable[[float], float]
    critical: float

    @property
    def edge(self) -> float:
        """Where the spectrum of the noise ends."""
        return self.inverse(self.critical)

    @property
    def threshold(self) -> float:
        """Strength below which a component is not seen at all."""
        return 1 / self.critical

    def edge_at(self, confidence: float) -> float:
        """Return what the largest eigenvalue of the noise stays below, with this probability.

        Raises
        ------
        KeyError
            If the confidence is not in :data:`QUANTILES`.
        """
        width: float = (self.curvature(self.critical) / 2) ** (1 / 3) * self.size ** (-2 / 3)
        return self.edge + QUANTILES[confidence] * width

    def seen(self, strength: float) -> float:
        """Return the eigenvalue at which a component of this strength is seen; the edge where it is not."""
        return self.inverse(min(1 / strength, self.critical)) if strength > 0 else self.edge

    def squared_cosine(self, strength: float) -> float:
        """Return the expected squared cosine between what is seen of a component and what is true; 0 if not seen."""
        if strength <= self.threshold:
            return 0.0
        return -self.slope(1 / strength) / strength**2

    def strength(self, eigenvalue: float) -> float:
        """Return the strength of a component that is seen at an eigenvalue; 0 for one that is not beyond the edge."""
        if eigenvalue <= self.edge:
            return 0.0
        # K(g) > 1/g for every g, so the root lies between 1/eigenvalue and the critical g, of which it is a share
        share: float = brentq(
            lambda share: self.inverse(share * self.critical) / eigenvalue - 1, self.threshold / eigenvalue, 1
        )
        return self.threshold / share


def law_of(noise: dict[str, Any], size: int, unit: float = 1.0) -> NoiseLaw | None:
    """Return the law that a release or a calibrated mechanism states of its noise, in limits of many columns.

    Parameters
    ----------
    noise
        The public description, in lattice units (:attr:`dpdist.mechanisms.base.Calibrated.noise`).
    size
        Number d of columns of the matrix whose eigenvalues are looked at.
    unit
        What a lattice unit is worth in the units wanted.

    Returns
    -------
    law
        None where the mechanism does not add noise of one of the laws above.
    """
    variance = size * float(noise.get("variance_off_diagonal", 0.0)) * unit**2
    law = noise["law"]
    if not variance:
        return None
    if law in _SEMICIRCLE:
        return _semicircle(size, variance)
    if law == "nuclear-norm":
        return _nuclear(size, math.sqrt(6 * variance))
    if law == "wishart":
        return _wishart(size, float(noise["degrees"]), noise["scale"] * unit)
    if law == "two-sided-wishart":
        return _two_sided(size, float(noise["columns"]), noise["scale"] * unit)
    return None


def _semicircle(size: int, variance: float) -> NoiseLaw:
    return NoiseLaw(
        size,
        lambda g: 1 / g + variance * g,
        lambda g: variance - 1 / g**2,
        lambda g: 2 / g**3,
        1 / math.sqrt(variance),
    )


def _nuclear(size: int, a: float) -> NoiseLaw:
    return NoiseLaw(
        size,
        lambda g: a / math.sin(a * g),
        lambda g: -(a**2) * math.cos(a * g) / math.sin(a * g) ** 2,
        lambda g: a**3 * (1 + math.cos(a * g) ** 2) / math.sin(a * g) ** 3,
        math.pi / (2 * a),
    )


def _wishart(size: int, degrees: float, scale: float) -> NoiseLaw:
    reach = size * scale
    return NoiseLaw(
        size,
        lambda g: 1 / g + degrees * scale * reach * g / (1 - reach * g),
        lambda g: degrees * scale * reach / (1 - reach * g) ** 2 - 1 / g**2,
        lambda g: 2 * degrees * scale * reach**2 / (1 - reach * g) ** 3 + 2 / g**3,
        1 / (reach * (1 + math.sqrt(degrees / size))),
    )


def _two_sided(size: int, degrees: float, scale: float) -> NoiseLaw:
    reach = size * scale
    strength = 2 * degrees * scale * reach

    def slope(g: float) -> float:
        x = (reach * g) ** 2
        return strength * (1 + x) / (1 - x) ** 2 - 1 / g**2

    def curvature(g: float) -> float:
        x = reach * g
        return strength * reach * (6 * x + 2 * x**3) / (1 - x**2) ** 3 + 2 / g**3

    # x² (1 + x²) (2 m / d) = (1 - x²)², a quadratic in x²
    ratio = 2 * degrees / size
    square = (math.sqrt((2 + ratio) ** 2 + 4 * (ratio - 1)) - (2 + ratio)) / (2 * (ratio - 1))
    return NoiseLaw(
        size, lambda g: 1 / g + strength * g / (1 - (reach * g) ** 2), slope, curvature, math.sqrt(square) / reach
    )
