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
* a sum of independent noise: ``K - 1/g`` of the sum is the sum of those of its parts (Voiculescu 1986). For a sum whose
  parts are not told, but only its variance, as versions up to 0.1.0 stored it, one draw of all that variance is taken:
  no R-transform of a sum exceeds that, as ``sum f(x_i) <= f(sqrt(sum x_i²))`` for series in x² of positive terms.

The largest eigenvalue of E lies within ``q (K''/2)^(1/3) d^(-2/3)`` of the edge, q a quantile of the Tracy-Widom law
of real symmetric matrices (Tracy & Widom 1996); :data:`QUANTILES` holds some.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from dpdist.mechanisms.noise_law import EdgeKind, Noise, Part

Values = npt.NDArray[np.float64]
CONFIDENCE = 0.95
"""With which whatever is said to stand above the noise does."""
QUANTILES = {0.9: 0.4501, 0.95: 0.9793, 0.99: 2.0234, 0.999: 3.2724}
"""Quantiles of the Tracy-Widom law for beta = 1 by confidence (Bejan 2005, table of percentage points)."""


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


def law_of(noise: Noise, size: int, unit: float = 1.0) -> NoiseLaw | None:
    """Return the spectrum of noise, in the limit of many columns.

    Parameters
    ----------
    noise
        What is known of the noise of a release or of a calibrated mechanism.
    size
        Number d of columns of the matrix whose eigenvalues are looked at.
    unit
        What a lattice unit is worth in the units wanted.

    Returns
    -------
    law
        None where nothing is known of it.
    """
    parts = noise.summands
    if not parts:
        return None
    pieces = [(part.terms if not part.adds_up else 1, _transform(part, size, unit)) for part in parts]
    return _law(size, pieces)


@dataclass(frozen=True)
class _Transform:
    """The R-transform of a part, ``K(g) - 1/g``, its first two derivatives, and where it ends."""

    value: Callable[[float], float]
    slope: Callable[[float], float]
    curvature: Callable[[float], float]
    pole: float
    variance: float


def _law(size: int, pieces: Sequence[tuple[int, _Transform]]) -> NoiseLaw:
    """Return the law of a free sum: R-transforms add up. K' has one zero, as every R' grows from its variance on."""
    largest = min(
        1 / math.sqrt(sum(n * piece.variance for n, piece in pieces)), *(0.999999 * p.pole for _, p in pieces)
    )

    def inverse(g: float) -> float:
        return 1 / g + sum(n * piece.value(g) for n, piece in pieces)

    def slope(g: float) -> float:
        return sum(n * piece.slope(g) for n, piece in pieces) - 1 / g**2

    def curvature(g: float) -> float:
        return 2 / g**3 + sum(n * piece.curvature(g) for n, piece in pieces)

    critical = largest
    if slope(largest) > 0:
        share: float = brentq(lambda share: slope(share * largest) * (share * largest) ** 2, 1e-3, 1, xtol=1e-15)
        critical = share * largest
    return NoiseLaw(size, inverse, slope, curvature, critical)


def _transform(part: Part, size: int, unit: float) -> _Transform:
    variance = size * part.variance * unit**2
    if part.kind.semicircle:
        return _Transform(lambda g: variance * g, lambda _: variance, lambda _: 0.0, math.inf, variance)
    if part.kind is EdgeKind.NUCLEAR:
        return _nuclear(math.sqrt(6 * variance))
    degrees, scale = float(part.degrees), part.scale * unit
    each = 1 if part.kind is EdgeKind.WISHART else 2
    if not part.degrees:
        # the edge is the larger, the fewer degrees of freedom the variance comes from; there are more than columns
        degrees = size + 1.0
        scale = math.sqrt(variance / size / (each * degrees))
    return _wishart(size, degrees, scale) if each == 1 else _two_sided(size, degrees, scale)


def _nuclear(a: float) -> _Transform:
    return _Transform(
        lambda g: a / math.sin(a * g) - 1 / g,
        lambda g: 1 / g**2 - a**2 * math.cos(a * g) / math.sin(a * g) ** 2,
        lambda g: a**3 * (1 + math.cos(a * g) ** 2) / math.sin(a * g) ** 3 - 2 / g**3,
        math.pi / a,
        a**2 / 6,
    )


def _wishart(size: int, degrees: float, scale: float) -> _Transform:
    reach = size * scale
    strength = degrees * scale * reach
    return _Transform(
        lambda g: strength * g / (1 - reach * g),
        lambda g: strength / (1 - reach * g) ** 2,
        lambda g: 2 * strength * reach / (1 - reach * g) ** 3,
        1 / reach,
        strength,
    )


def _two_sided(size: int, degrees: float, scale: float) -> _Transform:
    reach = size * scale
    strength = 2 * degrees * scale * reach

    def slope(g: float) -> float:
        x = (reach * g) ** 2
        return strength * (1 + x) / (1 - x) ** 2

    def curvature(g: float) -> float:
        x = reach * g
        return strength * reach * (6 * x + 2 * x**3) / (1 - x**2) ** 3

    return _Transform(lambda g: strength * g / (1 - (reach * g) ** 2), slope, curvature, 1 / reach, strength)
