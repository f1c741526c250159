"""Float64 draws for mechanisms whose proofs are about real numbers (`ideal-real`).

:mod:`dpdist.core.noise.lattice` draws integers exactly; the draws of this module have rounding errors.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.lattice import rounded_normal

Floats = npt.NDArray[np.float64]
_FRACTION_BITS = 40
"""Fractional bits of a normal, beyond the resolution of float64 for most of its mass."""


def uniforms(count: int, entropy: Entropy) -> Floats:
    """Draw uniforms on the open interval (0, 1): odd multiples of 2^-53, shape (count,)."""
    return ((entropy.words(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normals(count: int, entropy: Entropy) -> Floats:
    """Draw standard normals, exactly rounded to 40 fractional bits, shape (count,)."""
    return np.ldexp(rounded_normal(1 << _FRACTION_BITS, count, entropy).astype(np.float64), -_FRACTION_BITS)


def exponentials(count: int, entropy: Entropy) -> Floats:
    """Draw exponentials of mean 1, shape (count,)."""
    return -np.log(uniforms(count, entropy))


def gammas(shape: float, count: int, entropy: Entropy) -> Floats:
    """Draw gamma variables of scale 1 (Marsaglia & Tsang 2000, ACM TOMS 26(3)), shape (count,)."""
    if not shape > 0:
        raise ValueError("the shape of a gamma variable must be positive")
    if shape < 1:
        boost = uniforms(count, entropy) ** (1 / shape)
        return gammas(shape + 1, count, entropy) * boost
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    samples = np.empty(count)
    filled = 0
    while filled < count:
        candidates = int(1.1 * (count - filled)) + 16
        z = normals(candidates, entropy)
        v = (1 + c * z) ** 3
        u = uniforms(candidates, entropy)
        positive = v > 0
        with np.errstate(invalid="ignore", divide="ignore"):
            accepted = positive & (np.log(u) < 0.5 * z * z + d * (1 - v + np.log(v)))
        batch = d * v[accepted][: count - filled]
        samples[filled : filled + batch.size] = batch
        filled += batch.size
    return samples


def haar(size: int, count: int, entropy: Entropy) -> Floats:
    """Draw ``count`` orthonormal columns uniformly (Haar), shape (size, count), 1 <= count <= size."""
    q, r = np.linalg.qr(normals(size * count, entropy).reshape(size, count))
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)  # removes the sign convention of QR, for uniformity
