"""Exact draws of real numbers with a decreasing density, to any number of bits.

A draw is a real number ``Y >= 0`` of density ``∝ exp(-g(Y))`` with a fair sign: ``g(y) = y²/2`` gives the standard
normal (:data:`NORMAL`), ``g(y) = y`` the Laplace distribution of scale 1 (:data:`EXPONENTIAL`). Its sign, its integral
part and 64 fractional bits are drawn at once and further bits on demand; its distribution is free of rounding errors:

1. **Rejection** (Karney 2016, ACM TOMS 42(1), algorithm N, with 64 steps to the unit instead of one).
   ``Y = (k + x)/64`` with ``P(k) ∝ exp(-g(k/64))``, x uniform on [0, 1), both accepted with probability
   ``p = exp(g(k/64) - g((k + x)/64))``, both redrawn on rejection. The accepted density is
   ``∝ exp(-g(k/64)) p = exp(-g(Y))``. The finer the steps, the closer p is to 1: 99.4 % of the normals and 99.2 % of
   the exponentials are accepted.
2. **Three uniforms**, U, V and x, with finitely many bits drawn at any time: k is the number of i with
   ``P(K <= i) <= U``, and the candidate is accepted if ``V < p``. Each decision below is that of infinite precision for
   all values of further bits; if they matter, more bits are drawn. These are uniform and independent of all previous
   bits, so the decisions have the distribution above.
3. **First 16 bits of U and V.** With ``F_i = floor(2^16 P(K <= i))``, a prefix of U equal to no F_i decides k: it is
   the number of smaller F_i (a table of 65536 entries). p decreases in x, so a prefix of V below
   ``floor(2^16 p(k, 1))`` means ``V < p``: accepted. Integers only; this decides 98 candidates in 100.
4. **80 bits of U and V** for the others. U is compared with ``floor(2^64 P(K <= i))``, and is undecided if its first 64
   bits equal one of these. ``V < p`` is compared in float64. The total error is below 2^-45: t = g((k + x)/64) -
   g(k/64) takes four roundings, each at most ``t 2^-53`` with ``t exp(-t) <= 1/e``; the cell of x has 2^-58, and p
   changes by less than x does; numpy's exponential has an error of a few ulp; V and x round by 2^-54. If V is closer
   than :data:`GUARD` = 2^-40 to p, the candidate is undecided.
5. **Undecided candidates** (about one in 10^13) go to :func:`_decided`, which extends U, V and x by 64 bits at a time
   and encloses the exponentials in rational intervals until the intervals are disjoint. Tests check that it decides all
   other candidates, slowly, in the same way.
6. **Further bits.** If x was not extended, the decision does not depend on the bits of x beyond its first 58, so given
   acceptance they are uniform and independent of all previous bits. If it was, the extended bits are kept.

The number of bits depends only on the random bits, not on the data: there is no timing channel.

**Cost.** 12 random bytes a candidate, 31 ns of the kernel's generator, and about as long for everything else: 15
million rounded draws a second on one core of 2.6 GHz, at any scale.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from mpmath.ctx_iv import MPIntervalContext
from mpmath.libmp import round_floor, to_int

from dpdist.core.noise.entropy import Entropy, Words
from dpdist.core.parallel import ParallelMap

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_Prefixes = npt.NDArray[np.uint16]

GUARD = 2.0**-40
"""Half-width of the band around p in which a candidate is undecided; errors are below 2^-45."""
STEP_BITS = 6
_STEPS = 1 << STEP_BITS
_X_BITS = 64 - STEP_BITS
"""Bits of x that are drawn at once: with the 6 fractional bits of k / 64 they are 64 fractional bits of Y."""
BLOCK = 1 << 20
"""Normals that one thread draws in sequence: a tenth of a second."""
_BATCH = 1 << 14  # candidates decided together: their arrays fit into the second-level cache


class Bits:
    """A uniform number in [0, 1) with finitely many leading bits drawn, and more on demand."""

    def __init__(self, numerator: int, bits: int, entropy: Entropy) -> None:
        self.numerator = numerator
        self.bits = bits
        self._entropy = entropy

    def extend(self) -> None:
        """Draw 64 more bits."""
        self.numerator = (self.numerator << 64) | int(self._entropy.words(1)[0])
        self.bits += 64


@lru_cache(maxsize=16)
def _intervals(bits: int) -> MPIntervalContext:
    context = MPIntervalContext()
    context.prec = bits + 64
    return context


@dataclass(frozen=True)
class Density:
    """The density ``∝ exp(-y^power / power)`` on y >= 0; hashed by its power."""

    power: int

    def exponent(self, k: Any, x: Any) -> Any:
        """Return ``g((k + x)/64) - g(k/64)`` of floats, arrays or intervals."""
        return x / _STEPS if self.power == 1 else x * (k + 0.5 * x) / _STEPS**2

    @cached_property
    def words(self) -> Words:
        """``floor(2^64 P(K <= k))`` for every k."""
        return np.array(_thresholds(self, 64), dtype=np.uint64)

    @cached_property
    def squeeze(self) -> _Prefixes:
        """``floor(2^16 p(k, 1))``, or one less, for every k; then a 0, which decides nothing."""
        p = np.exp(-self.exponent(np.arange(float(self.words.size)), np.ones(self.words.size)))
        return np.append((p - GUARD) * 2**16, 0).astype(np.uint16)

    @cached_property
    def guide(self) -> _Prefixes:
        """The k of every prefix of U, or the last index of :attr:`squeeze` if the prefix does not determine k."""
        table = self.words >> np.uint64(48)  # floor(2^16 P(K <= k))
        prefixes = np.arange(1 << 16, dtype=np.uint64)
        k = np.searchsorted(table, prefixes, side="left")
        k[np.isin(prefixes, table)] = self.squeeze.size - 1
        return k.astype(np.uint16)


NORMAL = Density(2)
EXPONENTIAL = Density(1)


@lru_cache(maxsize=16)
def _thresholds(density: Density, bits: int) -> list[int]:
    """Return ``floor(2^bits P(K <= k))`` for k = 0, 1, ... up to the first that is ``2^bits - 1``."""
    # each term exp(-g(k/64)) is the previous one times a factor that decreases by exp(-(power - 1)/64²); beyond a
    # last >= 64 each is below exp(-1/64) times the previous one: their sum is below 64 times the last
    extra = 64
    while True:
        context = _intervals(bits + extra)
        reach = 0.7 * context.prec  # exp(-reach) < 2^-prec
        last = int(_STEPS * (reach if density.power == 1 else (2 * reach) ** 0.5)) + 1
        factor = context.exp(-density.exponent(context.mpf(0), context.mpf(1)))
        shrink = context.exp(-context.mpf(density.power - 1) / _STEPS**2)
        terms = [context.mpf(1)]
        for _ in range(last):
            terms.append(terms[-1] * factor)
            factor *= shrink
        scaled = 2**bits / sum(terms, context.mpf([0, (_STEPS * terms[last]).b]))
        table: list[int] = []
        partial = context.mpf(0)
        for term in terms:
            partial += term
            low, high = (to_int(end, round_floor) for end in (partial * scaled)._mpi_)  # the only exact representation
            if low != high:
                break
            table.append(low)
            if low == 2**bits - 1:
                return table
        extra += 64


def _accepted(density: Density, k: int, x: Bits, v: Bits) -> bool:
    """Decide ``V < p``, extending x and V until the enclosures are disjoint."""
    while True:
        context = _intervals(max(x.bits, v.bits))
        scale = context.mpf(1 << x.bits)
        cell = context.mpf([(x.numerator / scale).a, ((x.numerator + 1) / scale).b])
        p = context.exp(-density.exponent(context.mpf(k), cell))
        scale = context.mpf(1 << v.bits)
        if (v.numerator + 1) / scale <= p.a:  # ends, not intervals: mpmath raises if intervals overlap
            return True
        if v.numerator / scale >= p.b:
            return False
        x.extend()
        v.extend()


def _decided(density: Density, u: Bits, v: Bits, x: Bits) -> int | None:
    """Decide one candidate in exact arithmetic, extending its bits: return k, or None if it is rejected."""
    while True:
        table = _thresholds(density, u.bits)
        k = bisect_left(table, u.numerator)
        if table[k] != u.numerator:
            break
        u.extend()
    return k if _accepted(density, k, x, v) else None


@dataclass
class Reals:
    """Independent draws ``±Y`` of real numbers, with leading bits drawn and more on demand."""

    negative: Mask  # (size,)
    integral: Integers  # integral part, (size,)
    fraction: Words  # its leading bits, most significant word first, (words, size)
    entropy: Entropy  # the source of further bits
    extended: dict[int, Bits] = field(default_factory=dict)  # fractions with more bits than ``fraction``, by position

    @property
    def bits(self) -> int:
        """Number of fractional bits in ``fraction``."""
        return 64 * len(self.fraction)

    def bits_of(self, index: int) -> Bits:
        """Return the fraction of a draw."""
        if index in self.extended:
            return self.extended[index]
        numerator = 0
        for word in self.fraction[:, index].tolist():
            numerator = (numerator << 64) | word
        return Bits(numerator, self.bits, self.entropy)

    def truncated(self, start: int, stop: int, bits: int) -> list[int]:
        """Return ``±Y 2^bits`` truncated towards zero for the draws from start to stop, drawing missing bits."""
        integers = []
        for index in range(start, stop):
            x = self.bits_of(index)
            while x.bits < bits:
                x.extend()
                self.extended[index] = x
            magnitude = (int(self.integral[index]) << bits) + (x.numerator >> (x.bits - bits))
            integers.append(-magnitude if self.negative[index] else magnitude)
        return integers


def _settle(
    density: Density, k: Words, keep: Mask, xs: Words, us: _Prefixes, vs: _Prefixes, entropy: Entropy
) -> dict[int, Bits]:
    """Decide the candidates that 16 bits of U and V do not: update ``k`` and ``keep``, return extended fractions."""
    undecided = np.flatnonzero(~keep)
    low, high = np.uint64(16), np.uint64(48)
    fresh_u, fresh_v = entropy.words(2 * undecided.size).reshape(2, -1)
    u = (us[undecided].astype(np.uint64) << high) | (fresh_u >> low)
    v = (vs[undecided].astype(np.uint64) << high) | (fresh_v >> low)
    exact_k = np.searchsorted(density.words, u, side="left")
    x = (xs[undecided] >> np.uint64(STEP_BITS)).astype(np.float64) * 2.0**-_X_BITS
    margin = np.exp(-density.exponent(exact_k.astype(np.float64), x)) - v.astype(np.float64) * 2.0**-64
    k[undecided], keep[undecided] = exact_k, margin > 0
    extended: dict[int, Bits] = {}
    for position in np.flatnonzero((np.abs(margin) <= GUARD) | (density.words[exact_k] == u)).tolist():
        index = int(undecided[position])
        exact_x = Bits(int(xs[index]) >> STEP_BITS, _X_BITS, entropy)
        exact_u, exact_v = (
            Bits((int(prefix[index]) << 64) | int(fresh[position]), 80, entropy)
            for prefix, fresh in ((us, fresh_u), (vs, fresh_v))
        )
        decision = _decided(density, exact_u, exact_v, exact_x)
        keep[index] = decision is not None
        if decision is not None:
            k[index] = decision
            if exact_x.bits > _X_BITS:
                step = decision % _STEPS
                extended[index] = Bits((step << exact_x.bits) | exact_x.numerator, STEP_BITS + exact_x.bits, entropy)
    return extended


def _candidates(density: Density, count: int, entropy: Entropy, limit: int) -> Reals:
    """Return the accepted of ``count`` candidates, at most the first ``limit``, with 64 fractional bits."""
    drawn = entropy.words(count + (count + 1) // 2)
    words = drawn[:count]  # 58 bits of x, 5 unused ones, the sign
    us, vs = drawn[count:].view(np.uint16)[: 2 * count].reshape(2, count)
    steps = density.guide.take(us)
    keep = vs < density.squeeze.take(steps)
    k = steps.astype(np.uint64)
    extended = _settle(density, k, keep, words, us, vs, entropy)
    accepted = np.flatnonzero(keep)[:limit]
    k, words = k[accepted], words[accepted]
    return Reals(
        negative=(words & np.uint64(1)).astype(bool),
        integral=(k >> np.uint64(STEP_BITS)).view(np.int64),
        fraction=((k << np.uint64(_X_BITS)) | (words >> np.uint64(STEP_BITS))).reshape(1, -1),
        entropy=entropy,
        extended={int(np.searchsorted(accepted, index)): bits for index, bits in extended.items() if index in accepted},
    )


def draws(density: Density, size: int, entropy: Entropy) -> Iterator[tuple[slice, Reals]]:
    """Yield ``size`` reals with 64 fractional bits in batches, with the slice of each batch."""
    start = 0
    while start < size:
        missing = size - start
        reals = _candidates(density, min(_BATCH, missing + missing // 64 + 8), entropy, missing)
        yield slice(start, start + reals.integral.size), reals
        start += reals.integral.size


def exact_normals(size: int, entropy: Entropy, parallel_map: ParallelMap[range, dict[int, Bits]] = map) -> Reals:
    """Draw standard normals: 128 fractional bits, and further ones on demand; 25 bytes of memory a draw."""
    normals = Reals(np.empty(size, bool), np.empty(size, np.int64), np.empty((2, size), np.uint64), entropy)

    def fill(block: range) -> dict[int, Bits]:
        extended = {}
        for batch, reals in draws(NORMAL, len(block), entropy):
            run = slice(block.start + batch.start, block.start + batch.stop)
            normals.negative[run] = reals.negative
            normals.integral[run] = reals.integral
            normals.fraction[0, run] = reals.fraction[0]
            extended.update({run.start + index: bits for index, bits in reals.extended.items()})
        normals.fraction[1, block.start : block.stop] = entropy.words(len(block))
        return extended

    for extended in parallel_map(fill, [range(start, min(size, start + BLOCK)) for start in range(0, size, BLOCK)]):
        normals.extended.update(extended)
    for position, bits in normals.extended.items():
        normals.fraction[1, position] = (bits.numerator >> (bits.bits - 128)) & (2**64 - 1)
    return normals
