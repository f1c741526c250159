"""Exact sampling on a unitary orbit of any spectrum: perfect simulation of its Gelfand-Tsetlin pattern.

**Law.** H = U diag(gamma) U*, U unitary, density ``exp(sum_m l_m H_mm)`` against the invariant measure of the orbit,
``l_1 >= ... >= l_d`` (the Harish-Chandra-Itzykson-Zuber density, in the eigenbasis of the matrix that H is aligned
to).

**Pattern.** Let ``x_m1 >= ... >= x_mm`` be the eigenvalues of the leading m x m minor. They interlace,
``x_(m+1)i >= x_mi >= x_(m+1)(i+1)``, and on the orbit they are uniform on that polytope (Gelfand & Naimark 1950;
Baryshnikov 2001). As ``H_mm = |x_m| - |x_(m-1)|``, |.| the sum of a row, their density here is
``exp(sum_(m<d) w_m |x_m|)``, ``w_m = l_m - l_(m+1) >= 0``. Given the pattern, the phases of the last column of each
minor in the eigenbasis of the one before are independent and uniform, and its magnitudes are determined.

**Coupling.** Given its neighbours a cell has density ``exp(w x)`` on an interval [low, high], so with v uniform

    x = high + log1p(v expm1(-w (high - low))) / w

redraws it exactly. With v fixed, x increases in low and in high (monotone likelihood ratio), and moves along when both
are shifted; so the map of all cells is monotone and never increases the largest difference of two chains. Rows of one
parity are independent given the others: one sweep is two vectorised updates. The pattern with every cell at its
largest value lies above all others, and that with every cell at its smallest below. When the chains from these two
have met, so have all.

**Perfection.** Read-once coupling from the past (Wilson 2000): sweeps are grouped into independent blocks of one
length. A block either brings the extreme chains together, and then its end does not depend on its start, or not. The
state before a block that does, carried along since the previous such block, has exactly the stationary law: seen
backwards from time zero, the blocks since the last meeting are as many and as distributed. The length of a block is
taken from a trial run of its own, so it does not depend on the blocks it applies to. Nothing is stored and no random
bit is used twice. No time limit cuts a run short: that would favour patterns that are quickly found.

**Tolerance.** "Together" is closer than 1e-12 of the spread of gamma in every cell. The chain carried on and the chain
that exact coalescence would have given lie between the extreme ones, and never move apart afterwards: what is returned
is within 1e-12 of an exact draw, in every cell, in real arithmetic.

**Cost.** A sweep is ``O(cells)``, at most d(d-1)/2 of them (k (d-k) for a projector). The extreme chains meet after
``c d^2`` sweeps, c observed: 2.8 for equal weights (the gap contracts by ``exp(-pi^2 / d^2)`` a sweep), 6 to 9 on
measured data and on levels like 1/i. A draw takes about ``3.25 c d^2``: one trial and two blocks. Measured on one core:
2 s at d = 48, 5 to 7 s at d = 64; time grows like d^4, so minutes at 100 and days at 784. The number of sweeps depends
on the data, so it is as private as these. Memory stays below 500 bytes per cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist._util.progress import Steps
from dpdist.noise.entropy import Entropy
from dpdist.noise.floats import Floats, uniforms

Complex = npt.NDArray[np.complex128]

TOLERANCE = 1e-12
"""Largest distance, in units of the spectrum's spread, of two chains that count as met."""
_STRIDE = 16
"""Sweeps between two looks at the distance."""
_FLAT = 2.0**-60
"""Weights below this are taken for this: the draws agree to the last bit."""


@dataclass(frozen=True)
class _Rows:
    """The free cells of all rows of one parity: consecutive places, weights and the places of their neighbours."""

    places: slice
    weights: Floats
    below: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
    above: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]

    def redraw(self, chains: Floats, v: Floats) -> None:
        """Redraw these cells in every chain, (chains, cells), with common uniforms v, (cells here,)."""
        low, high = (
            choose(*(chains.take(near, axis=1, mode="clip") for near in neighbours))
            for choose, neighbours in ((np.maximum, self.below), (np.minimum, self.above))
        )
        step = high - low
        step *= -self.weights
        np.expm1(step, out=step)
        step *= v
        np.log1p(step, out=step)
        step /= self.weights
        step += high
        np.maximum(step, low, out=chains[:, self.places])  # rounding could carry it below


class Polytope:
    """The Gelfand-Tsetlin polytope of a spectrum, with a log-linear density.

    A state is a vector of all d(d+1)/2 cells, the free ones first. Cells that the spectrum pins (between two equal
    values, and the last row) never change.
    """

    def __init__(self, spectrum: Floats, levels: Floats) -> None:
        self.size = spectrum.size
        row, column = np.tril_indices(self.size)
        highest, lowest = spectrum[column], spectrum[column + self.size - 1 - row]
        group = np.where(highest > lowest, row % 2, 2)
        self._order = np.argsort(group, kind="stable")
        row, column, group = row[self._order], column[self._order], group[self._order]
        self.highest, self.lowest = highest[self._order], lowest[self._order]
        self.free = int(np.count_nonzero(group < 2))
        place = np.zeros((self.size, self.size), dtype=np.intp)
        place[row, column] = np.arange(row.size)
        weights = np.maximum(levels[:-1] - levels[1:], _FLAT)

        def rows_of(parity: int) -> _Rows:
            first, last = np.searchsorted(group, [parity, parity + 1])
            m, i = row[first:last], column[first:last]
            under, over = place[m + 1, i + 1], place[m + 1, i]
            # a missing neighbour in the row before is replaced by the one in the row after, which binds anyway
            left = np.where(i > 0, place[m - 1, i - 1], over)
            right = np.where(i < m, place[m - 1, i], under)
            return _Rows(slice(int(first), int(last)), weights[m], (under, right), (over, left))

        self._rows = tuple(rows for rows in (rows_of(0), rows_of(1)) if rows.weights.size)

    def sweep(self, chains: Floats, v: Floats) -> None:
        """Redraw every free cell of every chain, (chains, cells), with common uniforms v, (free,)."""
        for rows in self._rows:
            rows.redraw(chains, v[rows.places])

    def run(self, chains: Floats, sweeps: int, entropy: Entropy) -> None:
        """Do so many sweeps with fresh uniforms."""
        for v in uniforms(sweeps * self.free, entropy).reshape(sweeps, self.free):
            self.sweep(chains, v)

    def met(self, chains: Floats) -> bool:
        """Say whether the first chain, started highest, and the second, started lowest, have met."""
        return bool(np.max(chains[0] - chains[1], initial=0.0) < TOLERANCE)

    def rows(self, state: Floats) -> Floats:
        """Arrange a state as a (d, d) lower triangle; row m-1 holds the eigenvalues of the m x m minor, descending."""
        triangle = np.empty(state.size)
        triangle[self._order] = state
        out = np.zeros((self.size, self.size))
        out[np.tril_indices(self.size)] = triangle
        return out


class _Blocks:
    """Read-once coupling from the past on one polytope."""

    def __init__(self, polytope: Polytope, entropy: Entropy, progress: Steps | None) -> None:
        self._polytope = polytope
        self._entropy = entropy
        self._progress = progress
        self._done = 0
        self._expected = 20 * polytope.size**2

    def _run(self, chains: Floats) -> None:
        self._polytope.run(chains, _STRIDE, self._entropy)
        self._done += _STRIDE
        if self._progress is not None:
            self._progress(self._done, max(self._expected, self._done))

    def trial(self) -> int:
        """Return a length in which the extreme chains will most likely meet, from a run that is then forgotten."""
        chains = np.stack([self._polytope.highest, self._polytope.lowest])
        while not self._polytope.met(chains):
            self._run(chains)
        strides = math.ceil(1.25 * self._done / _STRIDE)
        self._expected = self._done + 2 * strides * _STRIDE
        return strides

    def states(self, strides: int) -> Iterator[Floats]:
        """Yield independent exact draws for ever."""
        highest, lowest = self._polytope.highest, self._polytope.lowest
        state: Floats | None = None
        while True:
            chains = np.stack([highest, lowest] if state is None else [highest, lowest, state])
            left = strides
            while left and not self._polytope.met(chains):
                self._run(chains)
                left -= 1
            if self._polytope.met(chains):
                if state is not None:
                    yield state
                chains = chains[:1].copy()
            for _ in range(left):
                self._run(chains)
            state = chains[-1] if state is not None or chains.shape[0] == 1 else None


def patterns(spectrum: Floats, levels: Floats, entropy: Entropy, *, progress: Steps | None = None) -> Iterator[Floats]:
    """Yield independent Gelfand-Tsetlin patterns of the orbit density for ever."""
    polytope = Polytope(spectrum, levels)
    blocks = _Blocks(polytope, entropy, progress)
    for state in blocks.states(blocks.trial()):
        yield polytope.rows(state)


def _squared_border(inner: Floats, outer: Floats) -> Floats:
    """Return the squared magnitudes of the last column of a matrix in the eigenbasis of its leading minor.

    ``|b_j|^2 = -prod_i (mu_j - nu_i) / prod_(i != j) (mu_j - mu_i)``, paired so that every quotient lies in [0, 1].
    Among equal eigenvalues of the minor the eigenbasis is free, and the last one takes what belongs to all.
    """
    gap = np.abs(inner[:, None] - inner)
    between = np.abs(inner[:, None] - outer[1:-1])  # nu_(i+1) lies between mu_i and mu_(i+1)
    count = inner.size
    i_first = np.tril(np.ones((count, count), dtype=bool), -1)
    quotient = np.ones((count, count))
    # row j: the pairs (nu_(i+1), mu_i) for i < j, and (nu_i, mu_i) for i > j
    padded = np.concatenate([between, np.zeros((count, 1))], axis=1)
    shifted = np.concatenate([np.zeros((count, 1)), between], axis=1)
    numerator = np.where(i_first, padded, shifted)
    np.divide(numerator, gap, out=quotient, where=gap > 0)
    quotient[(gap == 0) & i_first.T] = 0.0
    product: Floats = (outer[0] - inner) * (inner - outer[-1]) * quotient.prod(axis=1)
    return product


def matrix_of(pattern: Floats, entropy: Entropy) -> Complex:
    """Draw a Hermitian matrix uniformly from those whose leading minors have the eigenvalues of a pattern.

    Each minor borders the one before. The eigenvalues prescribed, not those computed, enter every step, so that errors
    add up and are never amplified: about ``d`` units of the last place.
    """
    size = pattern.shape[0]
    out = np.zeros((size, size), dtype=np.complex128)
    out[0, 0] = pattern[0, 0]
    for m in range(1, size):
        inner, outer = pattern[m - 1, :m], pattern[m, : m + 1]
        _, basis = np.linalg.eigh(out[:m, :m])
        phases = np.exp(2j * np.pi * uniforms(m, entropy))
        border = basis[:, ::-1] @ (np.sqrt(_squared_border(inner, outer)) * phases)
        out[:m, m], out[m, :m] = border, border.conj()
        out[m, m] = outer.sum() - inner.sum()
    return out
