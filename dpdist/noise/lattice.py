"""Exactly rounded normal vectors on the integers, and exact normals of as many bits as are asked for.

Each draw is ``rnd(sigma Z)``, Z standard normal, sigma an integer, rnd to the nearest integer. Because the moment M
is an integer matrix, ``M + rnd(sigma Z) = rnd(M + sigma Z)``: rounding is post-processing of the ideal mechanism, so
its guarantee holds with no slack, provided the rounded normal is sampled *exactly*. It is:

1. **Law** (Karney 2016, ACM TOMS 42(1), algorithm N). ``Z = ±(k + x)`` with ``P(k) ∝ exp(-k²/2)``, x uniform on
   [0, 1), both accepted with probability ``exp(-x(2k + x)/2)``, both redrawn on rejection: the accepted density is
   ``∝ exp(-k²/2 - x(2k + x)/2) = exp(-(k + x)²/2)``.
2. **Decisions.** Every decision has the form "U < p" with U uniform on [0, 1). The fast path knows 63 or 64 bits of
   U and p to float64. All float errors together stay below 2^-45 (three roundings in ``t = x(k + x/2)``, each
   at most ``t 2^-53`` and ``t exp(-t) <= 1/e``; the cell of x, ``(k + 1) 2^-64``; numpy's exp, within a few ulp;
   the rounding of U, 2^-54), and a draw closer than :data:`GUARD` = 2^-40 to its threshold is not decided there.
   It goes to :func:`_one`, which extends U and x bit by bit and encloses p in rational intervals until the
   intervals separate. So every decision is the one infinite precision would take.
3. **Rounding.** ``floor(sigma x + 1/2)`` is computed in 128-bit integers from the 64 known bits of x. When the
   unknown rest of x could carry it over an integer (probability ``sigma 2^-64``), x is extended until it cannot.
   Ties have probability zero, so rounding the magnitude and then setting the sign is rounding to nearest.
4. **Further bits.** A decision of the fast path is the same for every rest of x beyond its 64 known bits, so given
   acceptance the rest is uniform and independent of all that was seen, and :class:`ExactNormals` draws it when it is
   wanted. Where :func:`_accepted` did look at further bits of x, those bits are kept.

The number of extensions depends on the random bits only, never on the data: there is no timing channel.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from mpmath.ctx_iv import MPIntervalContext
from mpmath.libmp import round_floor, to_int

from dpdist.noise.entropy import Entropy, Words

Integers = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]

GUARD = 2.0**-40
"""Half-width of the band around a threshold in which float64 does not decide; errors are below 2^-45."""
MAX_SIGMA = 2**50
"""Largest sigma: keeps ``sigma (k + 1)`` far inside int64."""
_BATCH = 1 << 16
_HALF = np.uint64(1 << 63)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


class _Bits:
    """A uniform number in [0, 1) of which finitely many leading bits are known; more are drawn when asked for."""

    def __init__(self, numerator: int, bits: int, entropy: Entropy) -> None:
        self.numerator = numerator
        self.bits = bits
        self._entropy = entropy

    def extend(self) -> None:
        """Learn 64 more bits."""
        self.numerator = (self.numerator << 64) | int(self._entropy.words(1)[0])
        self.bits += 64


def _intervals(bits: int) -> MPIntervalContext:
    context = MPIntervalContext()
    context.prec = bits + 64
    return context


def _cumulative(context: MPIntervalContext, k: int) -> Any:
    """Enclose ``P(K <= k)``, ``P(K = i) ∝ exp(-i²/2)``; the tail beyond ``last`` is below ``2 exp(-last²/2)``."""
    last = 20 + int(context.prec**0.5 * 1.5)
    terms = [context.exp(-context.mpf(i * i) / 2) for i in range(last + 1)]
    tail = context.mpf([0, (2 * terms[last]).b])
    return sum(terms[: k + 1], context.mpf(0)) / (sum(terms, context.mpf(0)) + tail)


@lru_cache(maxsize=1)
def _thresholds() -> Words:
    """Return ``floor(2^63 P(K <= k))`` for k = 0, 1, ... up to the first that is ``2^63 - 1``."""
    context = _intervals(256)
    table: list[int] = []
    while not table or table[-1] < 2**63 - 1:
        scaled = _cumulative(context, len(table)) * 2**63
        low, high = (to_int(end, round_floor) for end in scaled._mpi_)  # its only exact form
        if low != high:
            raise AssertionError("256 bits enclose each threshold between two integers")
        table.append(low)
    return np.array(table, dtype=np.uint64)


def _exact_k(u: _Bits) -> int:
    k = 0
    while True:
        context = _intervals(u.bits)
        cdf = _cumulative(context, k)
        scale = 1 << u.bits
        if context.mpf(u.numerator + 1) / scale <= cdf:
            return k
        if context.mpf(u.numerator) / scale >= cdf:
            k += 1
        else:
            u.extend()


def _accepted(k: int, x: _Bits, v: _Bits) -> bool:
    """Decide ``v < exp(-x(2k + x)/2)``, extending x and v until the enclosures separate."""
    while True:
        context = _intervals(max(x.bits, v.bits))
        scale = context.mpf(1 << x.bits)
        cell = context.mpf([(x.numerator / scale).a, ((x.numerator + 1) / scale).b])
        p = context.exp(-cell * (2 * k + cell) / 2)
        scale = context.mpf(1 << v.bits)
        if (v.numerator + 1) / scale <= p:
            return True
        if v.numerator / scale >= p:
            return False
        x.extend()
        v.extend()


def _rounded_magnitude(sigma: int, k: int, x: _Bits) -> int:
    """``sigma k + floor(sigma x + 1/2)``, extending x until no unknown bit can change it."""
    while True:
        low = (2 * sigma * x.numerator + (1 << x.bits)) >> (x.bits + 1)
        high = (2 * sigma * (x.numerator + 1) + (1 << x.bits) - 1) >> (x.bits + 1)
        if low == high:
            return sigma * k + low
        x.extend()


def _one(words: Words, entropy: Entropy) -> tuple[int, _Bits] | None:
    """Decide one candidate in exact arithmetic from its three words: k and what is known of x, or None (rejected)."""
    first, second, third = (int(word) for word in words)
    k = _exact_k(_Bits(first >> 1, 63, entropy))
    x = _Bits(second, 64, entropy)
    return (k, x) if _accepted(k, x, _Bits(third, 64, entropy)) else None


def product_plus_half(sigma: int, x: Words) -> tuple[Words, Words]:
    """High and low 64 bits of the 128-bit ``sigma x + 2^63``, elementwise, in 32-bit limbs; ``0 < sigma < 2^63``."""
    s_high, s_low = np.uint64(sigma >> 32), np.uint64(sigma & 0xFFFFFFFF)
    x_high, x_low = x >> _32, x & _LOW
    low_low = s_low * x_low
    middle = s_low * x_high + (low_low >> _32)
    cross = s_high * x_low + (middle & _LOW)
    high = s_high * x_high + (middle >> _32) + (cross >> _32)
    low = (cross << _32) | (low_low & _LOW)
    half = low + _HALF  # wraps modulo 2^64, and the carry is what the comparison says
    return high + (half < _HALF), half


def _proposals(count: int, entropy: Entropy, guard: float) -> tuple[Words, Integers, _Mask, _Mask]:
    """Return the words (3, count), k, whether accepted, and which of these the fast path may not decide."""
    table = _thresholds()
    words = entropy.words(3 * count).reshape(3, count)
    u = words[0] >> np.uint64(1)
    k = np.zeros(count, dtype=np.int64)
    undecided = np.zeros(count, dtype=bool)
    for threshold in table:
        k += u > threshold
        undecided |= u == threshold
    x = words[1].astype(np.float64) * 2.0**-64
    v = words[2].astype(np.float64) * 2.0**-64
    margin = np.exp(-x * (k + 0.5 * x)) - v
    undecided |= np.abs(margin) <= guard
    return words, k, margin > 0, undecided


def _negative(words: Words) -> _Mask:
    sign: _Mask = (words[0] & np.uint64(1)).astype(bool)
    return sign


def _candidates(sigma: int, count: int, entropy: Entropy, guard: float) -> Integers:
    """Return the accepted among ``count`` candidates, rounded."""
    words, k, keep, undecided = _proposals(count, entropy, guard)
    high, low = product_plus_half(sigma, words[1])
    undecided |= (low > np.uint64(2**64 - sigma)) & keep
    values = sigma * k + high.astype(np.int64)
    for index in np.flatnonzero(undecided):
        one = _one(words[:, index], entropy)
        keep[index] = one is not None
        values[index] = 0 if one is None else _rounded_magnitude(sigma, *one)
    np.negative(values, out=values, where=_negative(words))
    accepted: Integers = values[keep]
    return accepted


def _require_guard(guard: float) -> None:
    if guard < GUARD:
        raise ValueError("a narrower guard is not covered by the error bound")


def _batch(missing: int) -> int:
    # 1.57 candidates per accepted draw; a few more so that one pass usually suffices
    return min(_BATCH, int(1.6 * missing) + 64)


def rounded_normal(sigma: int, size: int, entropy: Entropy, *, guard: float = GUARD) -> Integers:
    """Draw independent exactly rounded normals ``rnd(sigma Z)``.

    Parameters
    ----------
    sigma
        Standard deviation before rounding, an integer, ``1 <= sigma <= 2**50``.
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
        If sigma is out of range or the guard is narrower than the proof allows.
    """
    if not 1 <= sigma <= MAX_SIGMA:
        raise ValueError(f"sigma must lie between 1 and {MAX_SIGMA}")
    _require_guard(guard)
    out = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        accepted = _candidates(sigma, _batch(size - filled), entropy, guard)[: size - filled]
        out[filled : filled + accepted.size] = accepted
        filled += accepted.size
    return out


class ExactNormals:
    """Independent standard normals ``Z = ±(k + x)``, each a real number of which the leading bits are known.

    Parameters
    ----------
    negative, whole
        Sign and k, shape (size,).
    fraction
        The leading bits of x, most significant word first, shape (words, size), uint64.
    entropy
        Where further bits come from.
    known
        The draws of which more is known than ``fraction`` holds, by position.
    """

    def __init__(
        self, negative: _Mask, whole: Integers, fraction: Words, entropy: Entropy, known: dict[int, _Bits] | None = None
    ) -> None:
        self.negative = negative
        self.whole = whole
        self.fraction = fraction
        self._entropy = entropy
        self._known = known or {}

    @property
    def bits(self) -> int:
        """Number of fractional bits in ``fraction``."""
        return 64 * len(self.fraction)

    def truncated(self, start: int, stop: int, bits: int) -> list[int]:
        """Return ``Z 2^bits`` truncated towards zero for the draws from start to stop, bits drawn where they lack."""
        words = self.fraction[:, start:stop].T.astype(">u8").tobytes()
        step = 8 * len(self.fraction)
        out = []
        for index in range(start, stop):
            offset = step * (index - start)
            x = self._known.get(index)
            if x is None:
                x = _Bits(int.from_bytes(words[offset : offset + step], "big"), 8 * step, self._entropy)
            while x.bits < bits:
                x.extend()
                self._known[index] = x
            magnitude = (int(self.whole[index]) << bits) + (x.numerator >> (x.bits - bits))
            out.append(-magnitude if self.negative[index] else magnitude)
        return out


def exact_normals(size: int, entropy: Entropy, *, guard: float = GUARD) -> ExactNormals:
    """Draw independent standard normals exactly: 128 fractional bits at once, further ones when asked for.

    Parameters
    ----------
    size
        Number of draws; memory is 25 bytes a draw.
    entropy
        Where the bits come from.
    guard
        As in :func:`rounded_normal`.

    Raises
    ------
    ValueError
        If the guard is narrower than the proof allows.
    """
    _require_guard(guard)
    negative = np.empty(size, dtype=bool)
    whole = np.empty(size, dtype=np.int64)
    fraction = np.empty((2, size), dtype=np.uint64)
    known: dict[int, _Bits] = {}
    filled = 0
    while filled < size:
        words, k, keep, undecided = _proposals(_batch(size - filled), entropy, guard)
        looked: dict[int, _Bits] = {}
        for index in np.flatnonzero(undecided).tolist():
            one = _one(words[:, index], entropy)
            keep[index] = one is not None
            if one is not None:
                k[index], looked[index] = one
        kept = np.flatnonzero(keep)[: size - filled]
        stop = filled + kept.size
        negative[filled:stop] = _negative(words)[kept]
        whole[filled:stop] = k[kept]
        fraction[0, filled:stop] = words[1, kept]
        for position, index in enumerate(kept.tolist() if looked else (), filled):
            if index in looked and looked[index].bits > 64:
                known[position] = looked[index]
        filled = stop
    fraction[1] = entropy.words(size)
    for position, x in known.items():
        fraction[1, position] = (x.numerator >> (x.bits - 128)) & (2**64 - 1)
    return ExactNormals(negative, whole, fraction, entropy, known)
