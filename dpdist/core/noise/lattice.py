"""Exactly rounded normal and discrete Laplace vectors on the integers.

Both are functions of a real number that is drawn exactly (:mod:`dpdist.core.noise.reals`), so both are exact:

* **Rounded normal**, ``rnd(sigma Z)``, Z standard normal, sigma an integer, rnd to the nearest integer. Because the
  moment M is an integer matrix, ``M + rnd(sigma Z) = rnd(M + sigma Z)``: rounding is post-processing of the ideal
  mechanism, so its guarantee holds without loss. Ties have probability zero, so rounding the magnitude and then setting
  the sign is rounding to nearest.
* **Discrete Laplace**, ``P(n) ∝ exp(-|n| / t)``, t an integer. With Y exponential of mean 1,
  ``P(floor(t Y) >= n) = P(Y >= n/t) = exp(-n/t)``: the integral part of ``t Y`` is geometric. With a fair sign and
  "minus zero" rejected it is discrete Laplace (Canonne, Kamath & Steinke 2020, algorithm 2).

**Rounding.** ``floor(s Y)`` and ``floor(s Y + 1/2)`` are computed in 128-bit integers from the first 64 fractional bits
of Y. If further bits of Y could carry the sum over an integer (probability ``s 2^-64``), they are drawn until they
cannot. Their number depends only on the random bits: there is no timing channel.
"""

from __future__ import annotations

import numpy as np

from dpdist.core.noise.entropy import Entropy, Words
from dpdist.core.noise.reals import EXPONENTIAL, NORMAL, Bits, Integers, Reals, draws

MAX_SCALE = 2**50
"""Largest sigma and t: keeps ``s Y`` far inside int64."""
HALF = 1 << 63
"""One half as the ``plus`` of :func:`product`: turns floor into rounding to nearest."""
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def product(scale: int, words: Words, plus: int = 0) -> tuple[Words, Words]:
    """Return high and low 64 bits of ``scale * words + plus``, ``0 < scale < 2^63``, ``0 <= plus < 2^64``."""
    s_high, s_low = np.uint64(scale >> 32), np.uint64(scale & 0xFFFFFFFF)
    x_high, x_low = words >> _32, words & _LOW
    low_low = s_low * x_low
    middle = s_low * x_high + (low_low >> _32)
    cross = s_high * x_low + (middle & _LOW)
    high = s_high * x_high + (middle >> _32) + (cross >> _32)
    low = (cross << _32) | (low_low & _LOW)
    if plus:
        low += np.uint64(plus)  # wraps modulo 2^64; the comparison is the carry
        high += low < np.uint64(plus)
    return high, low


def _floor(scale: int, fraction: Bits, plus: int) -> int:
    """Return ``floor(scale x + plus / 2^64)``, extending x until further bits cannot change it."""
    while True:
        offset = plus << (fraction.bits - 64)
        low = (scale * fraction.numerator + offset) >> fraction.bits
        high = (scale * (fraction.numerator + 1) + offset - 1) >> fraction.bits
        if low == high:
            return low
        fraction.extend()


def _on_lattice(reals: Reals, scale: int, plus: int) -> Integers:
    """Return ``floor(scale Y + plus / 2^64)`` with the signs of the draws."""
    high, low = product(scale, reals.fraction[0], plus)
    values: Integers = scale * reals.integral + high.view(np.int64)
    for index in np.flatnonzero(low > np.uint64(2**64 - scale)).tolist():
        values[index] = scale * int(reals.integral[index]) + _floor(scale, reals.bits_of(index), plus)
    values *= 1 - 2 * reals.negative.astype(np.int64)
    return values


def rounded_normal(sigma: int, size: int, entropy: Entropy) -> Integers:
    """Draw independent exactly rounded normals ``rnd(sigma Z)``."""
    if not 1 <= sigma <= MAX_SCALE:
        raise ValueError(f"sigma must be between 1 and {MAX_SCALE}")
    samples = np.empty(size, dtype=np.int64)
    for batch, reals in draws(NORMAL, size, entropy):
        samples[batch] = _on_lattice(reals, sigma, HALF)
    return samples


def discrete_laplace(scale: int, size: int, entropy: Entropy) -> Integers:
    """Draw independent integers with ``P(n) ∝ exp(-|n| / scale)``."""
    if not 1 <= scale <= MAX_SCALE:
        raise ValueError(f"the scale must be between 1 and {MAX_SCALE}")
    samples = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        for _, reals in draws(EXPONENTIAL, size - filled, entropy):
            values = _on_lattice(reals, scale, 0)
            signed = values[(values != 0) | ~reals.negative]
            samples[filled : filled + signed.size] = signed
            filled += signed.size
    return samples
