"""Exact discrete Laplace vectors on the integers.

Each draw has ``P(x) ∝ exp(-|x| / t)``, t an integer, exactly: no float rounding enters the law.

1. **Law** (Canonne, Kamath & Steinke 2020, algorithm 2). u is uniform on {0, ..., t-1} and accepted with probability
   ``exp(-u/t)``; v is geometric, ``P(v >= k) = exp(-k)``. Then ``m = u + t v`` has ``P(m) ∝ exp(-m/t)`` on the
   non-negative integers. A fair sign, with "minus zero" rejected, makes it the discrete Laplace law.
2. **Uniform u.** A 64-bit word modulo t, words above the largest multiple of t rejected: integers only.
3. **Geometric v.** The number of k with ``U < exp(-k)``, U uniform on [0, 1). Its first 64 bits are compared with the
   integers ``floor(2^64 exp(-k))``; a word equal to one of them is undecided.
4. **Acceptance.** ``U < exp(-u/t)`` with 63 bits of U and float64. All errors together stay below 2^-45 (u and t are
   exact; the quotient, at most 1, the exponential and the rounding of U err by a few 2^-53). A draw closer
   than :data:`GUARD` = 2^-40 to its threshold is undecided.
5. **Undecided draws** are decided by :class:`_Uniform`, which extends U bit by bit and encloses the exponential in
   rational intervals until they separate: the decision infinite precision would take.

The number of extensions depends on the random bits only, never on the data: there is no timing channel.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from mpmath.ctx_iv import MPIntervalContext
from mpmath.libmp import round_floor, to_int

from dpdist.noise.entropy import Entropy, Words

Integers = npt.NDArray[np.int64]

GUARD = 2.0**-40
"""Half-width of the band around a threshold in which float64 does not decide; errors are below 2^-45."""
MAX_SCALE = 2**50
"""Largest t: exact as a float64, and ``t v`` stays far inside int64."""
_BATCH = 1 << 16


class _Uniform:
    """A uniform number in [0, 1) of which finitely many leading bits are known; more are drawn when needed."""

    def __init__(self, numerator: int, bits: int, entropy: Entropy) -> None:
        self._numerator = numerator
        self._bits = bits
        self._entropy = entropy

    def below_exp(self, numerator: int, denominator: int) -> bool:
        """Decide ``U < exp(-numerator / denominator)``, extending U until the enclosures separate."""
        while True:
            context = MPIntervalContext()
            context.prec = self._bits + 64
            p = context.exp(-context.mpf(numerator) / denominator)
            scale = 1 << self._bits
            if context.mpf(self._numerator + 1) / scale <= p:
                return True
            if context.mpf(self._numerator) / scale >= p:
                return False
            self._numerator = (self._numerator << 64) | int(self._entropy.words(1)[0])
            self._bits += 64


@lru_cache(maxsize=1)
def _thresholds() -> Words:
    """Return ``floor(2^64 exp(-k))``, ascending, from the first k at which it is 0 down to k = 1."""
    context = MPIntervalContext()
    context.prec = 256
    table: list[int] = []
    while not table or table[-1] > 0:
        scaled = context.exp(-context.mpf(len(table) + 1)) * 2**64
        low, high = (to_int(end, round_floor) for end in scaled._mpi_)  # its only exact form
        if low != high:
            raise AssertionError("256 bits enclose each threshold between two integers")
        table.append(low)
    return np.array(table[::-1], dtype=np.uint64)


def _magnitude(scale: int, u: int, words: tuple[int, int], entropy: Entropy) -> int | None:
    """Decide one candidate in exact arithmetic: its magnitude, or None when it is rejected."""
    if not _Uniform(words[0] >> 1, 63, entropy).below_exp(u, scale):
        return None
    uniform, v = _Uniform(words[1], 64, entropy), 0
    while uniform.below_exp(v + 1, 1):
        v += 1
    return u + scale * v


def _candidates(scale: int, count: int, entropy: Entropy, guard: float) -> Integers:
    """Return the accepted among ``count`` candidates."""
    table = _thresholds()
    words = entropy.words(3 * count).reshape(3, count)
    keep = words[0] <= np.uint64(2**64 - 2**64 % scale - 1)
    u = (words[0] % np.uint64(scale)).astype(np.int64)
    negative = (words[1] & np.uint64(1)).astype(bool)
    margin = np.exp(u / -float(scale)) - (words[1] >> np.uint64(1)).astype(np.float64) * 2.0**-63
    at_most = np.searchsorted(table, words[2], side="right")  # how many thresholds do not exceed the word; 0 never does
    values = u + scale * (table.size - at_most)
    accepted = margin > 0
    undecided = (np.abs(margin) <= guard) | (table[at_most - 1] == words[2])
    for index in np.flatnonzero(undecided):
        one = _magnitude(scale, int(u[index]), (int(words[1, index]), int(words[2, index])), entropy)
        accepted[index] = one is not None
        values[index] = 0 if one is None else one
    keep &= accepted
    keep &= ~(negative & (values == 0))
    np.negative(values, out=values, where=negative)
    drawn: Integers = values[keep]
    return drawn


def discrete_laplace(scale: int, size: int, entropy: Entropy, *, guard: float = GUARD) -> Integers:
    """Draw independent integers with ``P(x) ∝ exp(-|x| / scale)``.

    Parameters
    ----------
    scale
        t, an integer, ``1 <= t <= 2**50``.
    size
        Number of draws.
    entropy
        Where the bits come from.
    guard
        Half-width of the undecided band, at least :data:`GUARD`; wider only sends more draws down the exact path,
        which changes no value (the tests use this).

    Returns
    -------
    ndarray of int64, shape (size,)

    Raises
    ------
    ValueError
        If the scale is out of range or the guard is narrower than the proof allows.
    """
    if not 1 <= scale <= MAX_SCALE:
        raise ValueError(f"the scale must lie between 1 and {MAX_SCALE}")
    if guard < GUARD:
        raise ValueError("a narrower guard is not covered by the error bound")
    out = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        # at most 1.59 candidates per accepted draw; a few more so that one pass usually suffices
        count = min(_BATCH, int(1.62 * (size - filled)) + 64)
        drawn = _candidates(scale, count, entropy, guard)[: size - filled]
        out[filled : filled + drawn.size] = drawn
        filled += drawn.size
    return out
