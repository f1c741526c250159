"""Unbiased rounding: every entry of a bounded row is rounded to the grid with a dither that follows from its place.

An entry x, in steps of the grid, becomes ``floor(x + u1 + u2 - 1/2)`` with two independent uniforms. Then for EVERY x

    E z = x   and   E z² = x² + 1/4,

so what rounding does to a moment off its diagonal is noise that grows like sqrt(n), and what it adds to the diagonal
is n/4 steps², whatever the rows are: it is subtracted from what is released. (One uniform would give
``x² + r (1 - r)``, r the fraction of x: a diagonal that depends on the rows.)

**Exactly, in integers.** With M = 256 say x is ``y / M``, y half of an odd integer. With v1 and v2 uniform on
0, ..., M - 1, which are bytes,

    z = floor((y + v1 + v2 - (M - 1)/2) / M).

*Proof.* Let m = y + v2 - (M - 1)/2, an integer. By Hermite's identity the mean of floor((m + v1) / M) over v1 is m / M,
and v2 - (M - 1)/2 has mean 0: E z = y / M = x. Given m, z takes two neighbouring integers, so E z² = (m/M)² + r (1 - r)
with r = (m mod M) / M. The mean of (m/M)² is x² + (M² - 1) / (12 M²). As v2 takes all residues, so does m mod M, and
the mean of r (1 - r) is (M² - 1) / (6 M²). Their sum is x² + 1/4 - 1/(4 M²). The tests add up all v1 and v2. ∎

**The finer grid.** Any other x comes to that grid without bias too, by a third uniform that all entries of a row share:
``y = rint(M x + v3) - 1/2``, where v3 takes the 2^20 odd multiples of 2^-21 between 0 and 1. So E y is ``M x`` rounded
to nearest on a grid of 2^-20, by Hermite again, which leaves E z within 2^-29 steps of x. (Rounding to nearest leaves
2^-9, and one for each entry would take 20 bits more.) It takes two neighbours, so it adds ``q (1 - q) / M²`` to E z², q
the fraction of ``M x + 1/2``: that is between 0 and 1/(4 M²). Together the excess is 1/4 within 2^-18. The covariance
of two entries of one row is at most 2^-18 steps².

*So much bias is left*, for n rows that all point one way, in spectral norm: ``2 n 2^b sqrt(d) 2^-29`` from the mean,
and ``n d 2^-18``, from entries that move together. Noise has ``2 s 4^b sqrt(d)``, s its deviation over 4^b (about 4 at
epsilon 1). Of that, 10^9 rows of 784 columns have ``n 2^-29 / (s 2^b) = .0001`` and ``n sqrt(d) 2^-19 / (s 4^b) =
.0008`` at 12 bits; the independent errors of rounding itself reach more, ``sqrt(n) / (4 s 2^b)``, wherever that holds.

**Dithers** are words of ChaCha8, keyed, by place. Rows stand in bunches of 32, and a bunch has a block for each of its
columns and two more, up to a multiple of 16: block c of bunch g is number ``g B + c``, B blocks of each. The 16 words
of a block are those of the 16 pairs of rows of its bunch. The lower half of a word is the even row's and the upper half
the odd one's: v1 its low byte, v2 its high byte. The block behind the last column's has v3 of the even rows, and the
next one of the odd rows. Dithers are the same in every chunking and on every processor. They do not follow from what
stands in a row: equal rows would get equal dithers, whose errors would add up like n.

*Why 8 rounds.* No published attack on 8 rounds of ChaCha (Bernstein 2008) with a 256-bit key is faster than exhaustive
search; 7 rounds can be attacked, with infeasible work and data. Aumasson (2019, "Too Much Crypto", eprint 2019/1492)
recommends 8. No word is ever seen: an attacker gets one sum over all rows, under new keys with every attempt, behind
noise that is, on the default grid, at least 20 times what rounding does to the spectrum. The noise never comes from
here.

**Privacy.** Whatever the dithers are, a row becomes an integer vector of squared norm at most ``4^b`` alone, and that
is verified. Keys are secret and new for every attempt at a release, under every neighbouring relation: one for each
unit of work where every row is summed once, or one in common where rows are summed several times
(:mod:`dpdist.moment.total`). ChaCha8 under secret keys is taken for independent uniforms, as the noise takes the
kernel's generator, whatever unit a row is in. These have the same law in every place, so the law of a table's sum does
not depend on the order of its rows. Let each row that both neighbours have carry its dithers along, wherever it stands:
that changes the law of neither sum. So coupled, every such row has the same integers in both, and given the dithers the
two sums differ as those of any map of single rows do. The divergences between mixtures with the same weights are at
most the largest between their parts (joint convexity), and the dithers have the law of the weights in both. So the
guarantee for each assignment of dithers is that of the release.

* Nobody may see a dither: sums under two keys of the same rows, or a key next to a sum, are outside it. A unit may be
  computed twice, under two keys; the sum that was there first is added, and nobody sees the other. The time that a unit
  takes does not depend on its dithers, but for the one row in 100,000 that rounding leaves too long: a millisecond,
  less than the same unit varies by from one time to the next.
* How many units there are, and where they are cut, follows from n. Where n is private it differs between neighbours,
  and the law of the dithers is the same for every cut. Rows that are added several times are summed once, and
  multiplied.
* Where n is private, what is subtracted from the diagonal must follow from what is released.
* Where one row is exchanged in its place, no other row moves. There the bound holds for each fixed key besides, and
  nothing is assumed of the generator. A public key would rest on that alone. Of a table that was sorted, or from which
  rows were dropped, before it came here, an exchange moves other rows, and they would get other dithers.

**The sphere.** Rounding makes a row longer: ``E |z|² = |x|² + d/4``, with a deviation of |x|. So rows are shortened to
``C' = 2^b - 2 - d / (8 2^b)`` steps, four deviations within the bound of ``2^b`` for which noise is calibrated, and the
few that are too long after all lose single steps of their largest entries. A row of very many columns on a coarse grid
has less room, as d/4 is much of its bound then: below 3.5 deviations the grid is refused. C' is the norm that is told:
what a release is about are the rows shortened to it. An entry moves by 1/M at most on the way to the finer grid, and by
less than 3/2 from there: none exceeds ``2^b - 1`` in magnitude. Norms are float64 sums of squares in an order of their
own, the same on every processor: in 16 lanes. No privacy hangs on them, as the integers are verified.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpdist.errors import UsageError
from dpdist.naming import parameter

Words = npt.NDArray[np.uint32]
Block = npt.NDArray[np.float64]
_ROUNDS = 8
_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")
BUNCH = 32
"""Rows whose dithers are computed at once: each word of a block is for two of them."""
FRACTION = 8
"""A step is ``M = 2^8`` of the finer grid; v1 and v2 have as many bits, together half a word."""
_LEAST_ROOM = 3.5
"""Deviations of the squared norm of a row on the sphere, rounded, that stay within the bound at least."""
_LANES = 16
"""Sums of squares are added in so many lanes."""


@dataclass(frozen=True)
class DitherKey:
    """The key of all dithers of one unit of work, or of all units and bands of one attempt at a release."""

    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise ValueError("a key has 32 bytes")

    def __reduce__(self) -> str:
        """Refuse: a key is no part of a task or of a file. It is sent like a sum, to who adds rows."""
        raise TypeError("a secret key is no part of a task or of a file")

    @property
    def fingerprint(self) -> str:
        """What a sum carries, so that sums of two keys never meet: 32 hexadecimal digits that do not tell the key."""
        return hashlib.sha256(b"dpdist dither fingerprint " + self.key).hexdigest()[:32]

    def of_period(self, name: str) -> DitherKey:
        """Return the key of one period: rows are numbered from 0 in each."""
        return DitherKey(hashlib.sha256(b"dpdist dither period " + self.key + name.encode()).digest())

    def words(self, bunch: int, bunches: int, blocks: int) -> Words:
        """Return the words of bunches from one on, (16 bunches, blocks): a line for each pair of rows."""
        numbers = np.uint64(bunch * blocks) + np.arange(bunches * blocks, dtype=np.uint64)
        state = np.empty((16, numbers.size), dtype=np.uint32)
        state[:4] = _CONSTANTS[:, None]
        state[4:12] = np.frombuffer(self.key, "<u4")[:, None]
        state[12], state[13], state[14:] = numbers & np.uint64(0xFFFFFFFF), numbers >> np.uint64(32), 0
        return chacha(state).reshape(16, bunches, blocks).transpose(1, 0, 2).reshape(-1, blocks)

    def drawn(self, first_row: int, rows: int, columns: int) -> Drawn:
        """Return the random numbers of so many rows from one on."""
        bunch, before = divmod(first_row, BUNCH)
        halves = self.words(bunch, -(-(before + rows) // BUNCH), blocks_of(columns))
        entries = np.stack([halves[:, :columns] & np.uint32(0xFFFF), halves[:, :columns] >> np.uint32(16)], axis=1)
        thirds = (halves[:, columns : columns + 2] >> np.uint32(12)).astype(np.float64) * 2.0**-20 + 2.0**-21
        return Drawn(entries.reshape(-1, columns)[before : before + rows], thirds.reshape(-1)[before : before + rows])


def blocks_of(columns: int) -> int:
    """Return how many blocks of words a bunch of rows has: those of its columns, two more, and what is unused."""
    return -(-(columns + 2) // _LANES) * _LANES


def chacha(state: Words, rounds: int = _ROUNDS) -> Words:
    """Return the blocks of ChaCha (Bernstein 2008; RFC 8439 for 20 rounds), one for each column of (16, m) words."""
    x = state.copy()

    def rotated(word: int, bits: int) -> None:
        x[word] = x[word] << np.uint32(bits) | x[word] >> np.uint32(32 - bits)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for left, right, changed, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[left] += x[right]
            x[changed] ^= x[left]
            rotated(changed, bits)

    for _ in range(rounds // 2):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    x += state
    return x


class Drawn(NamedTuple):
    """Random numbers of consecutive rows."""

    entries: Words  # (rows, columns), of 16 bits: v1 in the low byte, v2 in the high one
    thirds: Block  # (rows,): v3


class Dithers(NamedTuple):
    """The dithers of consecutive rows."""

    key: DitherKey  # of their part of the table
    first_row: int  # the number of the first one in it

    def behind(self, rows: int) -> Dithers:
        """Return those of the rows behind so many."""
        return self._replace(first_row=self.first_row + int(rows))

    def drawn(self, rows: int, columns: int) -> Drawn:
        """Return the random numbers of so many rows."""
        return self.key.drawn(self.first_row, rows, columns)


@cache
def compiled_kernel() -> Rounding | None:
    """Return what rounds rows in machine code, or None without numba; it changes no bit."""
    try:
        from dpdist.rows import dither_kernel  # noqa: PLC0415 - numba takes time to import
    except ImportError:
        return None
    return dither_kernel.round_rows


class Affine(NamedTuple):
    """How rows are shifted and scaled."""

    centre: Block | None  # (columns,)
    scale: Block | None
    clip_norm: float  # C, in the units of the rows so shifted and scaled

    def shifted(self, rows: npt.NDArray[np.generic]) -> Block:
        """Return ``(rows - centre) / scale``, float64."""
        with np.errstate(all="ignore"):  # what overflows or is not a number is dealt with, row by row
            t = rows.astype(np.float64)
            if self.centre is not None:
                t -= self.centre
            if self.scale is not None:
                t /= self.scale
        return t


@dataclass(frozen=True)
class Dithering:
    """How rows of so many columns are rounded to a grid of so many bits."""

    columns: int
    grid_bits: int

    def __post_init__(self) -> None:
        room = 4.0**self.grid_bits - self.radius**2 - self.columns / 4
        deviation = math.sqrt(self.radius**2 + self.columns * 3 / 16)
        if 2 * self.inner < 1 or room < _LEAST_ROOM * deviation:
            raise UsageError(
                f"{self.grid_bits} grid bits are too few to round rows of {self.columns} columns: take more "
                f"({parameter('grid_bits')})."
            )

    @property
    def radius(self) -> float:
        """C' in steps of the grid."""
        return 2.0**self.grid_bits - 2 - self.columns / (8 * 2.0**self.grid_bits)

    @property
    def inner(self) -> float:
        """C' over C."""
        return self.radius / 2.0**self.grid_bits

    def apply(
        self,
        rows: npt.NDArray[np.generic],
        affine: Affine,
        dithers: Dithers,
        out: Block,
        *,
        compiled: bool = True,
    ) -> None:
        """Shift, scale, shorten and round rows into out, both (r, columns)."""
        kernel = compiled_kernel() if compiled else None
        if kernel is None:
            out[:] = self.rounded(affine.shifted(rows), dithers.drawn(rows.shape[0], self.columns), affine.clip_norm)
        else:
            kernel(self, rows, affine, dithers, out)

    def rounded(self, t: Block, drawn: Drawn, clip_norm: float = 1.0) -> Block:
        """Shorten and round rows that are shifted and scaled."""
        finite = np.asarray(np.isfinite(t).all(axis=1))
        t = np.where(finite[:, None], t, 0.0)
        radius, inner = self.inner * clip_norm, self.inner
        with np.errstate(all="ignore"):
            squares = squared_norms(t)
            huge = np.flatnonzero(np.isinf(squares))
            if huge.size:  # by a power of two, which is exact, and far from short enough
                t[huge] = np.ldexp(t[huge], -np.frexp(np.abs(t[huge]).max(axis=1))[1][:, None])
                squares[huge] = squared_norms(t[huge])
            long = squares > radius * radius
            long[huge] = True
            factors = np.where(long, inner / np.sqrt(squares), 1 / clip_norm) * 2.0 ** (self.grid_bits + FRACTION)
        z = self.dithered(np.rint(t * factors[:, None] + drawn.thirds[:, None]) - 0.5, drawn.entries)
        z[~finite] = 0
        return self._verified(z)

    def dithered(self, y: Block, entries: Words) -> Block:
        """Round halves of odd integers, of the finer grid, to the grid: unbiased, and with a variance of 1/4."""
        modulus = 1 << FRACTION
        first, second = entries & np.uint32(modulus - 1), entries >> np.uint32(FRACTION)
        z: Block = np.floor((y + first + second - (modulus - 1) / 2) / modulus)
        return z

    def _verified(self, z: Block) -> Block:
        """Shorten the rows that are too long after all, by as few steps as that takes, and verify every norm."""
        limit = 4**self.grid_bits
        squares = np.einsum("ij,ij->i", z, z)
        for row in np.flatnonzero(squares > limit):
            vector = z[row].astype(np.int64)  # to truncate it would take up to a step from every entry
            while int(vector @ vector) > limit:
                largest = np.abs(vector).argmax()
                vector[largest] -= np.sign(vector[largest])
            z[row] = vector
        if not (np.einsum("ij,ij->i", z, z) <= limit).all():
            raise AssertionError("a rounded row exceeds the norm bound")
        return z


Rounding = Callable[[Dithering, npt.NDArray[np.generic], Affine, Dithers, Block], None]
"""Rounds rows as :meth:`Dithering.apply`."""


def squared_norms(t: Block) -> Block:
    """Return the sums of squares, added in 16 lanes, which are then added half to half."""
    lanes = np.zeros((t.shape[0], _LANES))
    for start in range(0, t.shape[1], _LANES):
        some = t[:, start : start + _LANES]
        lanes[:, : some.shape[1]] += some * some
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    found: Block = lanes[:, 0]
    return found
