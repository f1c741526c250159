"""The distribution of the spectrum of noise and its edge, from public numbers only.

The noise E of an additive mechanism is asymptotically free of the moment A, so the effect of E on A is determined by K,
the functional inverse of the Cauchy transform of E's spectrum; ``R = K - 1/g`` is its R-transform. A single component
of strength theta appears at the eigenvalue ``K(1/theta)``, with squared cosine ``-K'(g) g²`` at ``g = 1/theta``
(Benaych-Georges & Nadakuditi 2011, theorems 2.1 and 2.2). At the critical g, K' is zero, and ``K(g)`` is the edge of
the noise, for an *empty* matrix. With other components, see :mod:`dpdist.answers.overlap`.

With v = d times the variance of an entry off the diagonal, a Wishart matrix of m degrees of freedom and scale s:

* independent entries, and Frobenius-norm noise: the semicircle, ``K = 1/g + v g``, edge ``2 sqrt(v)``.
* one Wishart matrix less its mean: ``K = 1/g + m s x / (1 - x)``, ``x = d s g`` (Marchenko & Pastur 1967).
* the difference of two: ``K = 1/g + 2 m s x / (1 - x²)``, as R-transforms of free matrices add (Voiculescu 1986).
* nuclear-norm noise: ``K = a / sin(a g)``, ``a = sqrt(6 v)``, the mixture of arcsine distributions of Ullman.
* a sum of independent noise: ``K - 1/g`` of the sum is the sum over its parts (Voiculescu 1986).

The largest eigenvalue of E is ``edge + q w``, ``w = (K''/2)^(1/3) d^(-2/3)``, and for many columns q has the
Tracy-Widom distribution of real symmetric matrices (Tracy & Widom 1996), with quantiles in :data:`QUANTILES`. For few
columns and entries with heavy tails the quantiles are larger: :data:`BEYOND`, from public simulation
(`benchmarks/edge_table.py`). The larger of the two is used, and for a sum the largest over its kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.core.mechanisms.noise_law import EdgeKind, Noise, Part

Values = npt.NDArray[np.float64]
CONFIDENCE = 0.95
"""Confidence of the stated edges of noise."""
QUANTILES = {0.9: 0.4501, 0.95: 0.9793, 0.99: 2.0234, 0.999: 3.2724}
"""Quantiles of the Tracy-Widom distribution for beta = 1 by confidence (Bejan 2005, table of percentage points)."""
BEYOND: dict[EdgeKind, dict[int, tuple[float, float, float, float]]] = {
    EdgeKind.LAPLACE: {
        1: (-0.85, -0.35, 0.81, 2.57),
        2: (-0.57, 0.06, 1.44, 3.39),
        3: (-0.32, 0.36, 1.85, 3.88),
        4: (-0.14, 0.57, 2.08, 4.17),
        6: (0.13, 0.86, 2.44, 4.63),
        8: (0.31, 1.07, 2.66, 4.89),
        12: (0.54, 1.29, 2.83, 5.1),
        16: (0.67, 1.41, 2.96, 5.03),
        24: (0.82, 1.52, 3.02, 4.95),
        32: (0.89, 1.6, 3.05, 5.02),
        48: (0.93, 1.57, 2.92, 4.78),
        64: (0.93, 1.61, 2.95, 4.89),
        100: (0.95, 1.56, 2.78, 4.53),
        150: (0.91, 1.5, 2.66, 4.04),
    },
    EdgeKind.FROBENIUS: {
        1: (-0.37, 0.34, 1.96, 4.38),
        2: (0.01, 0.76, 2.39, 4.69),
        3: (0.19, 0.93, 2.48, 4.53),
        4: (0.3, 1.01, 2.54, 4.49),
        6: (0.4, 1.08, 2.47, 4.31),
        8: (0.43, 1.09, 2.43, 4.19),
        12: (0.45, 1.07, 2.34, 3.92),
        16: (0.47, 1.07, 2.27, 3.84),
        24: (0.46, 1.06, 2.24, 3.79),
        32: (0.47, 1.06, 2.21, 3.55),
        48: (0.48, 1.05, 2.23, 3.75),
        64: (0.48, 1.06, 2.2, 3.87),
        100: (0.47, 1.05, 2.23, 3.92),
        150: (0.49, 1.06, 2.26, 3.98),
    },
}
"""Upper bounds on the simulated quantiles for few columns, by kind, number of columns and confidence."""


@dataclass(frozen=True)
class _Transform:
    """The R-transform of a part, ``K(g) - 1/g``, its first two derivatives, its pole and its variance."""

    value: Callable[[Any], Any]
    slope: Callable[[float], float]
    curvature: Callable[[float], float]
    pole: float
    variance: float


@dataclass(frozen=True)
class NoiseLaw:
    """The spectrum of d x d noise in the limit of many columns, as a free sum: R-transforms of the parts add up."""

    size: int  # d
    parts: tuple[tuple[int, _Transform], ...]  # with the number of copies of each
    kinds: frozenset[EdgeKind]  # of the parts

    @cached_property
    def variance(self) -> float:
        """Variance of the spectrum: d times that of an entry off the diagonal."""
        return sum(n * part.variance for n, part in self.parts)

    def transform(self, g: Any) -> Any:
        """Return R = K - 1/g for real or complex g, a number or an array."""
        return sum(n * part.value(g) for n, part in self.parts)

    def inverse(self, g: float) -> float:
        """Return K, in the units of the matrix."""
        value: float = 1 / g + self.transform(g)
        return value

    def slope(self, g: float) -> float:
        """Return K'."""
        return sum(n * part.slope(g) for n, part in self.parts) - 1 / g**2

    def curvature(self, g: float) -> float:
        """Return K''."""
        return 2 / g**3 + sum(n * part.curvature(g) for n, part in self.parts)

    @cached_property
    def critical(self) -> float:
        """The only zero of K', since every R' is increasing."""
        largest = min(1 / math.sqrt(self.variance), *(0.999999 * part.pole for _, part in self.parts))
        if self.slope(largest) <= 0:
            return largest
        low, high = 1e-3 * largest, largest  # bisected, as importing SciPy's optimisers takes a third of a second
        while (middle := (low + high) / 2) not in {low, high}:
            low, high = (middle, high) if self.slope(middle) < 0 else (low, middle)
        return high

    def nonlinearity(self, pull: float) -> tuple[float, float]:
        """Return ``R(g)/(g R'(0))`` and ``R'(g)/R'(0)`` at ``g sqrt(v) = pull``: 1 for a semicircle, else larger."""
        # g is clipped to the critical value, beyond which nothing is visible; a negative g, with smaller effects, is
        # replaced by its magnitude
        g = min(max(abs(pull) / math.sqrt(self.variance), 1e-3 * self.critical), self.critical)
        shift, slope = float(self.transform(g)) / g, self.slope(g) + 1 / g**2
        return shift / self.variance, slope / self.variance

    @property
    def edge(self) -> float:
        """The upper end of the spectrum of the noise."""
        return self.inverse(self.critical)

    @property
    def threshold(self) -> float:
        """Least strength of a visible component."""
        return 1 / self.critical

    @property
    def width(self) -> float:
        """The unit of the fluctuation of the largest eigenvalue of the noise."""
        width: float = (self.curvature(self.critical) / 2) ** (1 / 3) * self.size ** (-2 / 3)
        return width

    def edge_at(self, confidence: float) -> float:
        """Return a bound on the largest eigenvalue of the noise, with at least this probability."""
        index = list(QUANTILES).index(confidence)
        beyond = [_row(BEYOND[kind], self.size)[index] for kind in self.kinds if kind in BEYOND]
        return self.edge + max([QUANTILES[confidence], *beyond]) * self.width


def _row(rows: dict[int, tuple[float, float, float, float]], size: int) -> tuple[float, ...]:
    """Return the simulated quantiles for a number of columns: the larger ones of the two adjacent sizes."""
    fewer = max((d for d in rows if d <= size), default=min(rows))
    more = min((d for d in rows if d >= size), default=max(rows))
    return tuple(max(pair) for pair in zip(rows[fewer], rows[more], strict=True))


def law_of(noise: Noise, size: int, unit: float = 1.0) -> NoiseLaw | None:
    """Return the spectrum of noise in the limit of many columns; None if its distribution is unknown."""
    if not noise.summands:
        return None
    parts = ((part.terms if not part.adds_up else 1, _transform(part, size, unit)) for part in noise.summands)
    return NoiseLaw(size, tuple(parts), frozenset(part.kind for part in noise.summands))


def _transform(part: Part, size: int, unit: float) -> _Transform:
    variance = size * part.variance * unit**2
    if part.kind.semicircle:
        return _Transform(lambda g: variance * g, lambda _: variance, lambda _: 0.0, math.inf, variance)
    if part.kind is EdgeKind.NUCLEAR:
        return _nuclear(math.sqrt(6 * variance))
    degrees, scale = float(part.degrees), part.scale * unit
    count = 1 if part.kind is EdgeKind.WISHART else 2
    if not part.degrees:
        # fewer degrees of freedom give a larger edge; there are more than columns
        degrees = size + 1.0
        scale = math.sqrt(variance / size / (count * degrees))
    return _wishart(size, degrees, scale) if count == 1 else _two_sided(size, degrees, scale)


def _nuclear(a: float) -> _Transform:
    return _Transform(
        lambda g: a / np.sin(a * g) - 1 / g,
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
