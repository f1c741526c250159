"""Exactly rounded Wishart matrices on the integers.

A draw is ``rnd(s Z Z^T)``, entry by entry: Z of shape (d, m), independent standard normals, s an integer, rnd to the
nearest integer. The moment M is an integer matrix, so ``M + rnd(s Z Z^T) = rnd(M + s Z Z^T)``: rounding is
post-processing, provided the rounded matrix is exact. It is, because the rounding relies only on a bound on the error
of the product, and an entry that the bound does not decide is computed again with as many bits as necessary.

1. **Normals.** Z is exact: 128 fractional bits are drawn at once and further ones on demand
   (:func:`dpdist.core.noise.reals.exact_normals`).
2. **Limbs.** ``Z = L_0 + ... + L_(n-1) + R_n``, L_p an integer multiple of ``2^-e_p``, ``e_p = e_0 + p l``. For
   p >= 1 the integers ``2^(e_p) L_p`` are balanced digits, at most ``2^(l-1)`` in magnitude with ``m 4^(l-1) < 2^53``;
   e_0 is so small that no row of ``2^(e_0) L_0`` has a squared norm of 2^53. By Cauchy-Schwarz the magnitudes of the
   terms of every entry of a product of two limbs add up to less than 2^53, so float64 BLAS computes it exactly in any
   order of addition.
3. **Error.** ``L_p R_(n-p)^T`` for p < n and ``R_n Z^T`` are omitted: the products of limbs with p + q >= n, and the
   remainder. ``R_q = Z - L_0 - ... - L_(q-1)`` has entries below ``2^-e_(q-1)`` (a number in [0, 2^-e_(q-1)) minus a
   carried digit, with the sign of Z). Let N bound the norms of the rows of Z and of L_0. Again by Cauchy-Schwarz, the
   error of an entry of ``Z Z^T`` is less than

       B_n = (n - 1) m 2^-(2 e_0 + (n-2) l + 1) + 2 N sqrt(m) 2^-(e_0 + (n-1) l).

   The other products are added as integers with 64 fractional bits; each order p + q loses less than 2^-64.
4. **Rounding.** With ``E = s (B_n + n 2^-64)``, an entry of ``s Z Z^T + 1/2`` at least E away from an integer has the
   floor of its approximation. :func:`_entry` decides all others (a fraction 2 E) in integers: with
   ``z = trunc(2^t Z)``, ``|2^(2t) Z_i Z_j^T - z_i z_j^T| < |z_i|_1 + |z_j|_1 + m``; t grows until both ends of that
   interval round to the same integer. n is the least for which few entries are expected to remain undecided.

Entries are exact modulo 2^64, so even if int64 overflows (with probability below 2^-90 at the largest scales) the
release is a function of the ideal one, and has its guarantee.

**Cost.** d m normals and the products of order p + q < n; those with p = q are symmetric and cost half. On a grid of
16 bits n = 3 up to d = 2000 (four products, two of them symmetric), on coarse grids n = 2 (two products), at most n = 4
(six). All cores share the work: each draws blocks of Z and splits them into limbs, and multiplies and rounds tiles of
the square. Memory: some 60 bytes per entry of Z, 1.5 GB at d = 5000. The number of undecided entries depends only on
the noise.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.core.noise.entropy import Entropy, Words
from dpdist.core.noise.lattice import HALF, product
from dpdist.core.noise.reals import Integers, Reals, exact_normals
from dpdist.core.parallel import ParallelMap, available_cores, threaded
from dpdist.core.triangle import Triangle

MAX_SPREAD = 2**57
"""Largest scale times the larger side of Z: entries stay far inside int64."""
_MAX_OPEN = 16  # expected number of undecided entries, a few milliseconds each at most
_SIDE = 512  # rows and columns of a tile of the product, whose terms fit into a core's cache
_IN_CACHE = 1 << 15  # entries of Z whose limbs are computed together and fit into a core's cache
_WORTH_THREADS = 1 << 18  # entries of Z, tens of milliseconds of work, from which on threads share it
_SLACK = 1.01  # covers the rounding errors of the bounds themselves, which are below 2^-20

Limb = npt.NDArray[np.float64]


class _Splitting:
    """The bits at which Z of shape (size, columns) is split into limbs, and the error bound of the first products."""

    def __init__(self, columns: int, norm: float) -> None:
        self.columns = columns
        self.width = 1 + (((2**53 - 1) // columns).bit_length() - 1) // 2
        # 2^26.4 leaves room for float rounding below sqrt(2^53); the carry moves an entry by at most one unit
        self.first = min(32, math.floor(math.log2((2**26.4 - math.sqrt(columns)) / norm)))
        self._norm = norm + math.ldexp(math.sqrt(columns), -self.first)

    def end(self, limb: int) -> int:
        return self.first + limb * self.width

    def error(self, limbs: int) -> float:
        """Return ``B_n + n 2^-64``."""
        products = (limbs - 1) * self.columns * 2.0 ** -(2 * self.first + (limbs - 2) * self.width + 1)
        tails = 2 * self._norm * math.sqrt(self.columns) * 2.0 ** -self.end(limbs - 1)
        return _SLACK * (products + tails + limbs * 2.0**-64)

    def least(self, size: int, scale: int, bits: int) -> int:
        """Return the least number of limbs, within ``bits`` bits, for which few entries remain undecided."""
        limbs = 1
        pairs = max(size**2, 64 * _MAX_OPEN)  # in small matrices, a few per cent
        while self.end(limbs) <= bits and self.error(limbs) * scale * pairs > _MAX_OPEN:
            if self.error(limbs + 1) > self.error(limbs) / 2:  # limited by the 64 fractional bits of the sum
                break
            limbs += 1
        return limbs


def _digits(fraction: Words, start: int, width: int) -> Integers:
    """Return ``width < 64`` fractional bits from position ``start``, as integers."""
    word, offset = divmod(start, 64)
    bits = fraction[word] << np.uint64(offset)
    if offset + width > 64:
        bits |= fraction[word + 1] >> np.uint64(64 - offset)
    digits: Integers = (bits >> np.uint64(64 - width)).astype(np.int64)
    return digits


def _limbs(z: Reals, entries: slice, splitting: _Splitting, limbs: int) -> list[Limb]:
    """Return the integers ``2^(e_p) L_p`` of some entries of Z."""
    result: list[Limb] = []
    carry: Integers | int = 0
    fraction, negative = z.fraction[:, entries], z.negative[entries]
    for p in reversed(range(limbs)):
        if p:
            digit = _digits(fraction, splitting.end(p - 1), splitting.width) + carry
            carry = (digit + (1 << (splitting.width - 1))) >> splitting.width
            digit -= carry << splitting.width
        else:
            digit = (z.integral[entries] << splitting.first) + _digits(fraction, 0, splitting.first) + carry
        np.negative(digit, out=digit, where=negative)
        result.append(digit.astype(np.float64))
    return result[::-1]


def _products(left: list[Limb], right: list[Limb], splitting: _Splitting) -> tuple[Integers, Words]:
    """Return the integral part and 64 fractional bits of the sum of the products of order below ``len(left)``."""
    shape = left[0].shape[0], right[0].shape[0]
    high, low = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.uint64)
    for order in range(len(left)):
        total = np.zeros(shape, dtype=np.int64)
        for p in range(order // 2 + 1 if left is right else order + 1):
            product = (left[p] @ right[order - p].T).astype(np.int64)
            total += product
            if left is right and 2 * p != order:
                total += product.T
        fraction_bits = splitting.first + splitting.end(order)
        if fraction_bits <= 64:
            part = total.view(np.uint64) << np.uint64(64 - fraction_bits)
        else:
            part = (total >> (fraction_bits - 64)).view(np.uint64)
        low += part
        high += total >> min(fraction_bits, 63)
        high += low < part
    return high, low


def _entry(z: Reals, i: int, j: int, columns: int, scale: int) -> int:
    """Return ``rnd(scale Z_i Z_j^T)`` from exact integers, with more bits until it is decided."""
    bits = z.bits
    while True:
        a, b = (z.truncated(row * columns, (row + 1) * columns, bits) for row in (i, j))
        product = sum(x * y for x, y in zip(a, b, strict=True))
        slack = sum(map(abs, a)) + sum(map(abs, b)) + columns
        half = 1 << (2 * bits)
        low, high = ((2 * scale * (product + s) + half) >> (2 * bits + 1) for s in (-slack, slack))
        if low == high:
            return (low + 2**63) % 2**64 - 2**63
        bits += 64


def _norm(z: Reals, size: int, columns: int, parallel_map: ParallelMap[range, float]) -> float:
    """Return an upper bound on the norms of the rows of Z."""

    def largest(strip: range) -> float:
        entries = slice(strip.start * columns, strip.stop * columns)
        values = z.integral[entries] + z.fraction[0, entries].astype(np.float64) * 2.0**-64
        rows = values.reshape(len(strip), columns)
        return float(np.einsum("ij,ij->i", rows, rows).max())

    return _SLACK * (
        math.sqrt(max(parallel_map(largest, _strips(size, columns)))) + math.ldexp(math.sqrt(columns), -64)
    )


def _strips(size: int, columns: int) -> list[range]:
    """Split the rows of Z into strips that fit into the cache."""
    step = max(1, _IN_CACHE // columns)
    return [range(start, min(size, start + step)) for start in range(0, size, step)]


def _rounded_gram(
    z: Reals, size: int, columns: int, scale: int, limbs: int | None, parallel_map: ParallelMap[Any, Any] = map
) -> Triangle:
    """Return ``rnd(scale Z Z^T)``, Z row by row."""
    splitting = _Splitting(columns, _norm(z, size, columns, parallel_map))
    limbs = limbs or splitting.least(size, scale, z.bits)
    parts = [np.empty((size, columns)) for _ in range(limbs)]

    def split(strip: range) -> None:
        strip_limbs = _limbs(z, slice(strip.start * columns, strip.stop * columns), splitting, limbs)
        for part, limb in zip(parts, strip_limbs, strict=True):
            part[strip.start : strip.stop] = limb.reshape(len(strip), columns)

    for _ in parallel_map(split, _strips(size, columns)):
        pass
    gram: Triangle = np.empty(size * (size + 1) // 2, dtype=np.int64)
    starts = np.cumsum([0, *range(size, 1, -1)])
    reach = np.uint64(min(math.ceil(math.ldexp(scale * splitting.error(limbs), 64)), 2**64 - 1))

    def fill(tile: tuple[slice, slice]) -> list[tuple[int, int]]:
        """Round the entries of a tile, and return the undecided ones."""
        rows, across = tile
        left = [part[rows] for part in parts]
        high, low = _products(left, left if rows == across else [part[across] for part in parts], splitting)
        carried, fraction = product(scale, low, HALF)
        values = scale * high + carried.view(np.int64)
        for i, row in enumerate(values, rows.start):
            first = max(i, across.start)
            begin = starts[i] + first - i
            gram[begin : begin + across.stop - first] = row[first - across.start :]
        undecided = np.argwhere((fraction <= reach) | (fraction >= ~reach)).tolist()
        return [(i, j) for row, column in undecided if (i := rows.start + row) <= (j := across.start + column)]

    sides = [slice(start, min(size, start + _SIDE)) for start in range(0, size, _SIDE)]
    tiles = [(rows, across) for number, rows in enumerate(sides) for across in sides[number:]]
    for i, j in sorted(chain.from_iterable(parallel_map(fill, tiles))):
        gram[starts[i] + j - i] = _entry(z, i, j, columns, scale)
    return gram


def rounded_wishart(
    size: int, columns: int, scale: int, entropy: Entropy, *, limbs: int | None = None, threads: int | None = None
) -> Triangle:
    """Draw the exactly rounded Wishart matrix ``rnd(scale Z Z^T)``."""
    if size < 1 or not 1 <= columns <= 2**20:
        raise ValueError("a Wishart matrix needs at least one row, and between 1 and 2^20 columns of normals")
    if not 1 <= scale * max(size, columns) <= MAX_SPREAD:
        raise ValueError("the scale must be positive, and at most 2^57 divided by the larger side")
    threads = threads or (available_cores() if size * columns >= _WORTH_THREADS else 1)
    with threaded(threads) as parallel_map:
        return _rounded_gram(
            exact_normals(size * columns, entropy, parallel_map), size, columns, scale, limbs, parallel_map
        )
