"""Normalisers of exponential densities on spheres and unitary orbits, for likelihood ratios.

**Spheres.** Let x be a uniform unit vector of n real (p = 1/2) or complex (p = 1) entries and ``l_i >= 0``. Then the
``s_i = |x_i|²`` are distributed as independent Gamma(p) variables conditioned on sum 1. The Laplace transform of
``t^(np-1) E exp(-t sum_i l_i s_i) / Gamma(np)`` in t is ``prod_i (s + l_i)^(-p)``, and its inversion at t = 1 gives ::

    E exp(-sum_i l_i s_i) = Gamma(np) / (2 pi i) * integral of exp(s) prod_i (s + l_i)^(-p) ds

along a path to the right of 0 (Kume & Wood 2005 approximate the same integral; for p = 1 it is the divided difference
of exp). The path is the parabola through the saddle point that osculates the path of steepest descent. The integrand
falls like a Gaussian along it and is analytic around it, so the trapezoidal rule converges geometrically (Trefethen &
Weideman 2014). Agreement with mpmath is 1e-12 in the logarithm.

**Orbits.** For H = U diag(g) U*, U Haar on the unitary group of size d,

    E exp(sum_m l_m H_mm) = prod_{p<d} p! * det[exp(l_i g_j)] / (prod_{i<j} (l_j - l_i) prod_{i<j} (g_j - g_i))

(Harish-Chandra 1957; Itzykson & Zuber 1980). Equal values are separated by 1e-20, with an effect of this order on the
logarithm, and the precision covers the digits that the determinant loses.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np

from dpdist.core.noise.floats import Floats

_POINTS = 801
_REACH = 42.0  # the path ends where the integrand has decreased by exp(-42)
_GAP_DIGITS = 20  # equal values are separated by 10^-20
_EXTRA_DIGITS = 40  # decimal digits beyond the loss of the determinant


def log_sphere(levels: Floats, power: float) -> float:
    """Return ``log E exp(-sum_i l_i |x_i|²)`` for a uniform unit vector x.

    >>> round(log_sphere(np.array([0.0, 3.0]), 1.0), 12) == round(math.log((1 - math.exp(-3)) / 3), 12)
    True
    """
    size = levels.size
    low, high = power, power * size  # the saddle point: the decreasing function below is >= 1 at p and <= 1 at n p
    for _ in range(100):
        saddle = (low + high) / 2
        low, high = (saddle, high) if power * float(np.sum(1 / (saddle + levels))) > 1 else (low, saddle)
    inverse = 1 / (saddle + levels)
    second, third = power * float(inverse @ inverse), 2 * power * float(inverse @ inverse**2)
    bend = third / (6 * second)
    y = np.linspace(-1, 1, _POINTS) * math.sqrt(_REACH / bend)
    path = saddle - bend * y**2 + 1j * y
    exponent = path - saddle - power * np.sum(np.log((path[:, None] + levels) * inverse), axis=1)
    integral = float(np.sum((np.exp(exponent) * (1 + 2j * bend * y)).real)) * (y[1] - y[0]) / (2 * math.pi)
    return math.lgamma(size * power) + saddle - power * float(np.sum(np.log(saddle + levels))) + math.log(integral)


def log_bingham(values: Floats) -> float:
    """Return ``log E exp(x^T B x)`` for a uniform real unit vector x, from the eigenvalues (d,) of B in any order."""
    return float(values.max()) + log_sphere(values.max() - values, 0.5)


def log_orbit(levels: Floats, spectrum: Floats) -> float:
    """Return ``log E exp(sum_m l_m H_mm)`` for H = U diag(g) U*, U Haar unitary."""
    if np.count_nonzero(spectrum == 0) == spectrum.size - 1 and spectrum.max() == 1:
        return float(levels.max()) + log_sphere(levels.max() - levels, 1.0)
    if np.count_nonzero(spectrum == 1) == spectrum.size - 1 and spectrum.min() == 0:
        return float(levels.sum() - levels.min()) + log_sphere(levels - levels.min(), 1.0)
    size = levels.size
    pairs = size * (size - 1) // 2
    scale = np.ptp(levels) + np.ptp(spectrum)
    digits = 2 * pairs * (_GAP_DIGITS + 5) + math.ceil(np.abs(levels).max() * np.abs(spectrum).max()) + _EXTRA_DIGITS
    with mpmath.workdps(digits):
        gap = mpmath.mpf(10) ** -_GAP_DIGITS * max(1, scale)
        ls, gs = ([mpmath.mpf(float(x)) + gap * i for i, x in enumerate(np.sort(xs))] for xs in (levels, spectrum))
        total = mpmath.log(mpmath.det(mpmath.matrix([[mpmath.exp(x * y) for y in gs] for x in ls])))
        for xs in (ls, gs):
            total -= sum(mpmath.log(xs[j] - xs[i]) for j in range(size) for i in range(j))
        return float(total + sum(mpmath.log(mpmath.factorial(p)) for p in range(size)))
