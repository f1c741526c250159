"""Unbiased rounding: every entry of a bounded row is rounded to the grid with a dither derived from its position.

An entry x, in steps of the grid, becomes ``floor(x + u1 + u2 - 1/2)`` with two independent uniforms. Then for EVERY x

    E z = x   and   E z² = x² + 1/4,

so off the diagonal of a moment, rounding adds noise that grows like sqrt(n). On the diagonal it adds n/4 steps²,
independently of the rows, which the release subtracts. (One uniform would give ``x² + r (1 - r)``, r the fraction of x:
a diagonal that depends on the rows.)

**Exactly, in integers.** Let M = 256 and x = ``y / M``, where y is half of an odd integer. With v1 and v2 uniform on
0, ..., M - 1 (bytes),

    z = floor((y + v1 + v2 - (M - 1)/2) / M).

*Proof.* Let m = y + v2 - (M - 1)/2, an integer. By Hermite's identity the mean of floor((m + v1) / M) over v1 is m / M,
and v2 - (M - 1)/2 has mean 0: E z = y / M = x. Given m, z takes two neighbouring integers, so E z² = (m/M)² + r (1 - r)
with r = (m mod M) / M. The mean of (m/M)² is x² + (M² - 1) / (12 M²). As v2 takes all residues, so does m mod M, and
the mean of r (1 - r) is (M² - 1) / (6 M²). Their sum is x² + 1/4 - 1/(4 M²). The tests add up all v1 and v2. ∎

**The finer grid.** Any other x is first rounded to that grid, also without bias, with a third uniform shared by all
entries of a row: ``y = rint(M x + v3) - 1/2``, where v3 takes the 2^20 odd multiples of 2^-21 between 0 and 1. By
Hermite's identity again, E y is ``M x`` rounded to the nearest multiple of 2^-20, so E z is within 2^-29 steps of x.
(Rounding to nearest would leave 2^-9, and one v3 per entry would take 20 more bits.) y takes two neighbouring values,
which adds ``q (1 - q) / M²`` to E z², q the fraction of ``M x + 1/2``: between 0 and 1/(4 M²). The total excess is 1/4
within 2^-18. The covariance of two entries of one row is at most 2^-18 steps².

*The remaining bias*, for n parallel rows, in spectral norm, is ``2 n 2^b sqrt(d) 2^-29`` from the mean and
``n d 2^-18`` from the covariance of entries. The noise has the norm ``2 s 4^b sqrt(d)``, where s is its deviation over
4^b (about 4 at epsilon 1). For 10^9 rows of 784 columns at 12 bits the ratios are ``n 2^-29 / (s 2^b) = .0001`` and
``n sqrt(d) 2^-19 / (s 4^b) = .0008``. The independent rounding errors are then larger: ``sqrt(n) / (4 s 2^b)``.

**Dithers** are words of ChaCha8 under a key, indexed by position. Rows form bunches of 32. A bunch has one block for
each column and two more, padded to a multiple of 16 blocks: block c of bunch g has the number ``g B + c``, with B
blocks per bunch. The 16 words of a block belong to the 16 pairs of rows of the bunch. The lower half of a word belongs
to the even row and the upper half to the odd row: v1 is its low byte, v2 its high byte. The block after the last column
has v3 of the even rows, and the next block v3 of the odd rows. Dithers do not depend on chunks or processors. They are
not derived from the values of a row: equal rows would get equal dithers, and their errors would add up like n.

*Why 8 rounds.* No published attack on 8 rounds of ChaCha (Bernstein 2008) with a 256-bit key is faster than exhaustive
search; 7 rounds can be attacked, with infeasible work and data. Aumasson (2019, "Too Much Crypto", eprint 2019/1492)
recommends 8. No word is ever published: an attacker gets one sum over all rows, with new keys for every attempt, plus
noise that exceeds the effect of rounding on the spectrum at least 20 times on the default grid. The noise itself never
comes from this generator.

**Privacy.** For any dithers, each row alone becomes an integer vector of squared norm at most ``4^b``, which is
verified. Keys are secret and new for every attempt at a release, under every neighbouring relation: one per task where
every row is summed once, or a common one where rows are summed several times (:mod:`dpdist.core.moment.total`). ChaCha8
under secret keys is assumed to give independent uniforms, as the noise assumes of the kernel's generator. Their
distribution is the same at every position, so the distribution of a table's sum does not depend on the order of its
rows. Couple two neighbours so that each common row has the same dithers in both, at any position; this changes the
distribution of neither sum. Every common row then has the same integers in both, and given the dithers, the sums differ
as those of any map of single rows. A divergence between mixtures with equal weights is at most the largest divergence
between their components (joint convexity), and the dithers have the same distribution in both. So the guarantee for
each assignment of dithers is that of the release.

* Dithers must stay secret: the guarantee does not cover sums of the same rows under two keys, or a key next to a sum.
  A task may be computed twice, under two keys; the first sum to arrive is added, and the other is discarded. The time
  of a task does not depend on its dithers, except for the one row in 100,000 that is too long after rounding: a
  millisecond, less than the variation between runs.
* The number of tasks and their limits depend on n. Where n is private they differ between neighbours, but the
  distribution of the dithers is the same for every partition. Rows added several times are summed once and multiplied.
* Where n is private, the amount subtracted from the diagonal must be computed from released numbers.
* If one row is exchanged at its position, no other row moves. The bound then holds for each fixed key, without an
  assumption about the generator. A public key would rely on that alone. If the table was sorted, or rows were dropped,
  before rounding, an exchange moves other rows, which get other dithers.
* Where all rows of privacy units are kept, they are sorted by a keyed hash of the unit. If the rows of a unit are
  exchanged for as many others of the same name, no other row moves, and the previous point holds. If a unit is added,
  removed or exchanged for one of another name, rows behind it move, and for them "for each fixed key" is lost: what
  remains is the coupling above, which assumes of the generator that its words have the same distribution at every
  position. The key of the order is that of the ingest, and keys of dithers are drawn afterwards, so no position is
  chosen with knowledge of its dithers.

**The sphere.** Rounding makes a row longer: ``E |z|² = |x|² + d/4``, with a deviation of |x|. So rows are clipped to
``C' = 2^b - 2 - d / (8 2^b)`` steps, four deviations below the bound ``2^b`` for which noise is calibrated, and the few
that exceed it lose single steps of their largest entries. Rows of very many columns on a coarse grid have less room, as
d/4 is a large part of the bound: a grid with less than 3.5 deviations is refused. C' is the published norm: a release
is a moment of the rows clipped to it. An entry moves by at most 1/M to the finer grid, and by less than 3/2 from there:
none exceeds ``2^b - 1`` in magnitude. Norms are float64 sums of squares in 16 lanes, in the same order on every
processor. Privacy does not depend on them, as the integers are verified.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import UsageError
from dpdist.core.naming import parameter

Words = npt.NDArray[np.uint32]
Block = npt.NDArray[np.float64]
_ROUNDS = 8
_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")
BUNCH = 32
"""Rows whose dithers are computed together: each word of a block belongs to two of them."""
FRACTION = 8
"""A step has ``M = 2^8`` steps of the finer grid; v1 and v2 have 8 bits each, together half a word."""
_LEAST_ROOM = 3.5
"""Least margin of the bound, in deviations of the squared norm of a rounded row on the sphere."""
_LANES = 16
"""Lanes of a sum of squares."""


@dataclass(frozen=True)
class DitherKey:
    """The key of the dithers of one task, or of all tasks and bands of one attempt at a release."""

    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise ValueError("a key has 32 bytes")

    def __reduce__(self) -> str:
        """Refuse: keys are sent to workers separately, never as part of a task or a file."""
        raise TypeError("a secret key must not be pickled")

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that identify the key of a sum without revealing it."""
        return hashlib.sha256(b"dpdist dither fingerprint " + self.key).hexdigest()[:32]

    def of_period(self, name: str) -> DitherKey:
        """Return the key of one period, whose rows are numbered from 0."""
        return DitherKey(hashlib.sha256(b"dpdist dither period " + self.key + name.encode()).digest())

    def words(self, bunch: int, bunches: int, blocks: int) -> Words:
        """Return the words of consecutive bunches, (16 bunches, blocks): one line per pair of rows."""
        numbers = np.uint64(bunch * blocks) + np.arange(bunches * blocks, dtype=np.uint64)
        state = np.empty((16, numbers.size), dtype=np.uint32)
        state[:4] = _CONSTANTS[:, None]
        state[4:12] = np.frombuffer(self.key, "<u4")[:, None]
        state[12], state[13], state[14:] = numbers & np.uint64(0xFFFFFFFF), numbers >> np.uint64(32), 0
        return chacha(state).reshape(16, bunches, blocks).transpose(1, 0, 2).reshape(-1, blocks)

    def drawn(self, first_row: int, rows: int, columns: int) -> Drawn:
        """Return the random numbers of rows from ``first_row`` on."""
        bunch, before = divmod(first_row, BUNCH)
        halves = self.words(bunch, -(-(before + rows) // BUNCH), blocks_of(columns))
        entries = np.stack([halves[:, :columns] & np.uint32(0xFFFF), halves[:, :columns] >> np.uint32(16)], axis=1)
        thirds = (halves[:, columns : columns + 2] >> np.uint32(12)).astype(np.float64) * 2.0**-20 + 2.0**-21
        return Drawn(entries.reshape(-1, columns)[before : before + rows], thirds.reshape(-1)[before : before + rows])


def blocks_of(columns: int) -> int:
    """Return the number of blocks of a bunch: one per column, two more, and padding."""
    return -(-(columns + 2) // _LANES) * _LANES


def chacha(state: Words, rounds: int = _ROUNDS) -> Words:
    """Return the ChaCha blocks (Bernstein 2008; RFC 8439 for 20 rounds) of states in the columns of (16, m) words."""
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

    entries: Words  # (rows, columns), 16 bits: v1 in the low byte, v2 in the high byte
    thirds: Block  # (rows,): v3


class Dithers(NamedTuple):
    """The dithers of consecutive rows."""

    key: DitherKey  # of this part of the table
    first_row: int  # number of the first row in this part

    def behind(self, rows: int) -> Dithers:
        """Return the dithers that follow after ``rows`` rows."""
        return self._replace(first_row=self.first_row + int(rows))

    def drawn(self, rows: int, columns: int) -> Drawn:
        """Return the random numbers of the next ``rows`` rows."""
        return self.key.drawn(self.first_row, rows, columns)


class Affine(NamedTuple):
    """Shift and scale of rows, and the columns that are shortened before the others."""

    centre: Block | None  # (columns,)
    scale: Block | None
    clip_norm: float  # C, in the units of shifted and scaled rows
    numbers: npt.NDArray[np.bool_] | None = None  # (columns,): which columns are shortened first; None: none
    numbers_norm: float = 0.0  # to which they are, or less beside others that leave no room

    def shifted(self, rows: npt.NDArray[np.generic], out: Block | None = None) -> Block:
        """Return ``(rows - centre) / scale`` as float64, in ``out`` if it is given."""
        t = np.empty(rows.shape) if out is None else out
        with np.errstate(all="ignore"):  # overflow and NaN are handled row by row
            np.copyto(t, rows, casting="unsafe")  # a signalling float32 NaN warns
            if self.centre is not None:
                t -= self.centre
            if self.scale is not None:
                t /= self.scale
        return t


_AS_THEY_ARE = Affine(None, None, 1.0)
_NO_FACTORS: Block = np.empty(0)


class Units(NamedTuple):
    """Factors by which the rows of privacy units are shortened together (:mod:`dpdist.core.rows.unit_moment`)."""

    factors: Block  # (r,), or (0,): 1
    settled: npt.NDArray[np.bool_]  # (r,): rows of units whose integers are already written; (0,): none
    constant: int = 0  # of private centring, which is multiplied by the factor and rounded with v3


ALONE = Units(_NO_FACTORS, np.empty(0, np.bool_))


@dataclass(frozen=True)
class Dithering:
    """Unbiased rounding of rows to a grid."""

    columns: int
    grid_bits: int

    def __post_init__(self) -> None:
        room = 4.0**self.grid_bits - self.radius**2 - self.columns / 4
        deviation = math.sqrt(self.radius**2 + self.columns * 3 / 16)
        if 2 * self.inner < 1 or room < _LEAST_ROOM * deviation:
            raise UsageError(
                f"{self.grid_bits} grid bits are too few to round rows of {self.columns} columns: use more "
                f"({parameter('grid_bits')})."
            )

    @property
    def radius(self) -> float:
        """C' in grid steps."""
        return 2.0**self.grid_bits - 2 - self.columns / (8 * 2.0**self.grid_bits)

    @property
    def inner(self) -> float:
        """C' / C."""
        return self.radius / 2.0**self.grid_bits

    def apply(
        self, rows: npt.NDArray[np.generic], affine: Affine, dithers: Dithers, out: Block, units: Units = ALONE
    ) -> None:
        """Shift, scale, clip and round rows into out, (r, columns), with a column for the constant of units."""
        drawn = dithers.drawn(rows.shape[0], self.columns)
        z = self.rounded(affine.shifted(rows), drawn, affine, units.factors)
        if units.constant:
            factors = units.factors if units.factors.size else np.ones(len(z))
            z = np.column_stack([z, np.floor(factors * units.constant + drawn.thirds)])
        out[:] = np.where(units.settled[:, None], out, z) if units.settled.size else z

    def rounded(self, t: Block, drawn: Drawn, affine: Affine = _AS_THEY_ARE, shrink: Block = _NO_FACTORS) -> Block:
        """Clip and round shifted and scaled rows, each multiplied by its entry of ``shrink`` after it is clipped."""
        finite = np.asarray(np.isfinite(t).all(axis=1))
        t = np.where(finite[:, None], t, 0.0)
        inner, clip_norm, radius = self.inner, affine.clip_norm, self.inner * affine.clip_norm
        with np.errstate(all="ignore"):
            if affine.numbers is not None:
                numbers = np.where(affine.numbers, t, 0.0)
                room = np.maximum(radius * radius - squared_norms(np.where(affine.numbers, 0.0, t)), 0.0)
                room = np.minimum(room, affine.numbers_norm * affine.numbers_norm)
                squares, long = _measured(numbers, room)
                numbers[long] *= np.sqrt(room[long] / squares[long])[:, None]
                t = np.where(affine.numbers, numbers, t)
            squares, long = _measured(t, radius * radius)
            factors = np.where(long, inner / np.sqrt(squares), 1 / clip_norm) * 2.0 ** (self.grid_bits + FRACTION)
        if shrink.size:
            factors = factors * shrink
            finite &= shrink > 0
        z = self.dithered(np.rint(t * factors[:, None] + drawn.thirds[:, None]) - 0.5, drawn.entries)
        z[~finite] = 0
        return self._verified(z)

    def dithered(self, y: Block, entries: Words) -> Block:
        """Round points of the finer grid, halves of odd integers, to the grid: unbiased, with variance 1/4."""
        modulus = 1 << FRACTION
        first, second = entries & np.uint32(modulus - 1), entries >> np.uint32(FRACTION)
        z: Block = np.floor((y + first + second - (modulus - 1) / 2) / modulus)
        return z

    def _verified(self, z: Block) -> Block:
        """Shorten rows above the bound by the fewest possible steps, and verify every norm."""
        limit = 4**self.grid_bits
        shorten(z, limit)  # truncation would remove up to a step from every entry
        if not (np.einsum("ij,ij->i", z, z) <= limit).all():
            raise AssertionError("a rounded row exceeds the norm bound")
        return z


def shorten(z: Block, limit: int) -> Block:
    """Lower the largest entries of integer rows in place until squared norms are within a limit; return the norms."""
    squares: Block = np.einsum("ij,ij->i", z, z)
    for row in np.flatnonzero(squares > limit):
        vector = z[row].astype(np.int64)
        while int(vector @ vector) > limit:
            largest = np.abs(vector).argmax()
            vector[largest] -= np.sign(vector[largest])
        z[row], squares[row] = vector, vector @ vector
    return squares


def _measured(t: Block, limit: Block | float) -> tuple[Block, npt.NDArray[np.bool_]]:
    """Return squared norms of rows, and which exceed a limit; rows whose norm overflows are divided in place."""
    squares = squared_norms(t)
    huge = np.flatnonzero(np.isinf(squares))
    if huge.size:  # exact, by a power of two; they are shortened to the limit anyway
        t[huge] = np.ldexp(t[huge], -np.frexp(np.abs(t[huge]).max(axis=1))[1][:, None])
        squares[huge] = squared_norms(t[huge])
    long = np.asarray(squares > limit)
    long[huge] = True
    return squares, long


def squared_norms(t: Block) -> Block:
    """Return sums of squares, added in 16 lanes, whose halves are then added."""
    lanes = np.zeros((t.shape[0], _LANES))
    for start in range(0, t.shape[1], _LANES):
        panel = t[:, start : start + _LANES]
        lanes[:, : panel.shape[1]] += panel * panel
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    norms: Block = lanes[:, 0]
    return norms
