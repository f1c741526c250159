"""The privacy profile of one replacement under additive Wishart noise, by quadrature, for the bounds to be held to."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy import special

from dpdist.literature import wishart_profile

QUADRATURE_ERROR = 1e-5
"""Relative error allowed to the quadrature; with twice the nodes it moves by 2e-6 at kappa = 1, by 1e-9 from 3 on."""


_quadrature = cache(np.polynomial.legendre.leggauss)


def replace_one_delta_at(epsilon: float, kappa: float, theta: float, mu: tuple[float, float]) -> float:
    """Return delta at epsilon for the replacement whose change has the eigenvalues mu1 and -mu2.

    Gauss-Legendre in z-scores of g and in the square root of q.
    """
    shape = kappa + 0.5
    nodes, weights = _quadrature(240)
    low = max(-9.0, wishart_profile._lowest(shape))
    g = wishart_profile._quantile(shape, low + (nodes + 1) * (9.5 - low) / 2)
    slope = (g / shape) ** (2 / 3) * math.sqrt(shape)  # of the quantile in its z-score
    w_g = weights * (9.5 - low) / 2 * slope * np.exp(special.xlogy(shape - 1, g) - g - special.gammaln(shape))
    nodes, weights = _quadrature(96)
    root = (nodes + 1) * 3.4  # half-normal; beyond 6.8 there is 1e-21
    w_q = weights * 3.4 * 2 / math.sqrt(math.pi) * np.exp(-(root**2))
    given = wishart_profile._given_g_and_q(epsilon, kappa, theta, mu, g, root)
    return float(w_g @ given @ w_q) * (1 + QUADRATURE_ERROR)
