"""The effect of unbiased rounding on a second moment, from public numbers, and grids on which it is small.

Rows x of norm at most R = 2^b steps become ``x + e``, where the entries of e are independent, with mean 0 and variance
1/4 (:mod:`dpdist.core.rows.dither`). Let X and E be the (n, d) matrices of the x and e. Then

    sum z z^T - n/4 I  =  X^T X  +  (X^T E + E^T X)  +  (E^T E - n/4 I).

**Theorem.** For normal E, the mean of the largest eigenvalue of ``X^T E + E^T X`` is at most
``|X|_F (sqrt(d) + 3) / 2``, where ``|X|_F² <= n R²``; by symmetry, so is that of minus the least one. *Proof.* For a
unit vector v let ``Z_v = (Xv).(Gv)``, G = 2E, be the quadratic form. Compare it with
``Y_v = |Xv| g.v + h.(Xv)``, g and h standard normal. With a = Xv, b = Xw, c = v.w

    E (Y_v - Y_w)² - E (Z_v - Z_w)²  =  (|a| - |b|)² + 2 (1 - c) (|a| |b| - a.b)  >=  0,

so E max Z <= E max Y (Sudakov & Fernique). The second term of Y is at most ``|X^T h|``, with mean ``|X|_F`` or less.
The first is at most half the quadratic form of ``X^T X / s + s g g^T``, for every s > 0. With ``s = |X| / |g|`` both
matrices have the norm ``|X| |g|``, and their sum at most ``|X| |g| + |X g|`` (Kittaneh 1997), with mean
``|X|_F (sqrt(d) + 1)`` or less. ∎ The e are not normal, but each entry of X^T E is a sum over all rows. (A table of one
row has no such sums: there the stated bound is exceeded in up to one case of four.)

**One direction is the worst case.** If all rows are multiples of one vector u, the spectral norm is
``|X|_F (|g| + |u.g|) / 2``. With probability 0.95 that is at most ``|X|_F (sqrt(d) + 3) / 2`` too: for d = 1 it is
``|X|_F`` times the magnitude of a normal variable, at most 1.96, where the bound has 2. Rows in many directions have
the same ``|X|_F``, and their errors do not add up: in simulations they stay below it
(`tests/core/rows/test_rounding.py`).

The other term adds about ``sqrt(n d) / 2 + d / 4``. In simulations of rows on the sphere, at most 6 in 100,000 are too
long after rounding and lose about one step: a bias of ``2 R`` each, in total ``R sqrt(n) / 2`` times
``sqrt(n) / 4000``. (On the coarsest permitted grids it is up to 3 in 10,000, where d is at least 80.)

Rows of zeros, which replace rows with NaN or infinity, are not rounded: ``n/4`` subtracts a quarter step² too much for
each of them.
"""

from __future__ import annotations

import math

LARGEST_SHARE = 0.05
"""Largest stated effect of rounding on the default grid, relative to the noise, in spectral norm."""
LEAST_BITS = 10
"""Bits of the coarsest default grid."""
SIMPLE_BITS = 12
"""Bits of the default grid for mechanisms that do not add noise of a known deviation to the moment."""
_LONG = 4000


def spectral_error(rows: float, columns: int, grid_bits: int) -> float:
    """Return a bound, with probability 0.95, on the shift of eigenvalues of a second moment, in squared steps.

    >>> noise = 2 * 4.2 * 4**12 * 54**0.5  # of `gaussian` at epsilon 1, delta 1e-6
    >>> round(spectral_error(581012, 54, 12) / noise, 4)
    0.0159
    """
    root = math.sqrt(rows)
    linear = 2.0**grid_bits * root / 2 * (math.sqrt(columns) + 3 + root / _LONG)
    return linear + root * math.sqrt(columns) / 2 + columns / 4


def entry_variances(rows: float, grid_bits: int) -> tuple[float, float]:
    """Return bounds on the variance of an entry on and off the diagonal due to rounding, in squared lattice units."""
    # 2 x.e has the variance x² for one column and (x² + y²) / 4 for the products of two; that of e² is at most 3/16
    return rows * (4.0**grid_bits + 3 / 16), rows * (4.0**grid_bits / 4 + 1 / 16)


def is_little(rows: int, columns: int, grid_bits: int, deviation: float) -> bool:
    """Say whether rounding moves eigenvalues by at most a twentieth of the edge of the noise."""
    edge = 2 * deviation * math.sqrt(columns) * 4.0**grid_bits
    return spectral_error(rows, columns, grid_bits) <= LARGEST_SHARE * edge
