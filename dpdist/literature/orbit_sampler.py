"""Exact sampling on a unitary orbit: H = U diag(gamma) U*, U unitary, with density ``exp(sum_m l_m H_mm)``.

The density is with respect to the invariant measure of the orbit, ``l_1 >= ... >= l_d``, in the eigenbasis of the
matrix that H is aligned to (the Harish-Chandra-Itzykson-Zuber density). Projectors have rejection samplers that are
fast if they accept; if they do not, and for other spectra, the Gelfand-Tsetlin pattern is drawn by perfect simulation.

**Lines** (k = 1). With ``s_i = |u_i|^2`` uniform on the simplex, the density is ``exp(-sum_(i>1) r_i s_i)``,
``r_i = l_1 - l_i``. Propose independent exponentials ``s_i`` of rate ``r_i + c``, i > 1, with ``c >= 0``; if
``s_1 = 1 - sum s_i > 0``, accept with probability ``exp(-c s_1)``, the quotient of target and proposal divided by its
maximum. Any c is exact; the one with ``sum 1/(r_i + c) = 1`` (or 0) accepts at least about ``0.35 / sqrt(d)``. Phases
are uniform.

**Subspaces** (any k). Write an orthonormal basis as ``[X; Y]``, X its first k rows. For U Haar the block Y, (d-k) x k,
has density ``det(I - Y*Y)^(d - (d-k) - k) = 1``: it is uniform on the ball ``|Y|_2 <= 1``, and
``X = T (I - Y*Y)^(1/2)``, T Haar and independent of Y. The basis ``U T* = [(I - G*G)^(1/2); G]`` of the same subspace
has ``G = Y T*``, uniform on the ball again, and the exponent is

    sum_m l_m H_mm = sum_(i<=k) l_i - sum_ij |G_ji|^2 (l_i - l_(k+j)),

linear in G*G. Hence **G_ji are independent complex normals of mean square 1 / (l_i - l_(k+j)), conditioned on |G|_2 <=
1**: draw, and draw again while the norm exceeds 1. The probability to accept is near 1 once the gaps well exceed
``(sqrt k + sqrt(d-k))^2``, and vanishes like ``exp(-const d^2)`` far below.

**Choice.** A number of proposals on the ball, then the pattern. This is unbiased: proposals are independent, and each
accepted one has the target distribution P, so the first accepted of N has it too, given that there is one. The fallback
uses fresh randomness and has distribution P independently of the proposals, so also given that none was accepted. With
q the probability of none, ``(1 - q) P + q P = P``. The time of a draw does depend on the data.

**Pattern.** Let ``x_m1 >= ... >= x_mm`` be the eigenvalues of the leading m x m minor. They interlace,
``x_(m+1)i >= x_mi >= x_(m+1)(i+1)``, and on the orbit they are uniform on that polytope (Gelfand & Naimark 1950;
Baryshnikov 2001). As ``H_mm = |x_m| - |x_(m-1)|``, |.| the sum of a row, their density here is
``exp(sum_(m<d) w_m |x_m|)``, ``w_m = l_m - l_(m+1) >= 0``. Given the pattern, the phases of the last column of each
minor in the eigenbasis of the one before are independent and uniform, and its magnitudes are determined.

**Coupling.** Given its neighbours a cell has density ``exp(w x)`` on an interval [low, high], so with v uniform

    x = high + log1p(v expm1(-w (high - low))) / w

redraws it exactly. With v fixed, x increases in low and in high (monotone likelihood ratio), and shifts by the same
amount if both are shifted; so the map of all cells is monotone and never increases the largest difference of two
chains. Rows of one parity are independent given the others: one sweep is two vectorised updates. The pattern with every
cell at its largest value is above all others, and that with every cell at its smallest below. When the chains from
these two have met, all have.

**Perfection.** Read-once coupling from the past (Wilson 2000): sweeps are grouped into independent blocks of equal
length. A block is coalescing if the extreme chains meet in it, and then its end does not depend on its start. The state
before a coalescing block, carried on from the previous coalescing block, has exactly the stationary distribution: the
number and distribution of the blocks since the last meeting are those of coupling from the past, read backwards from
time zero. A separate trial run determines the length of a block, so it does not depend on the blocks it applies to.
Nothing is stored and no random bit is used twice. There is no time limit, which would favour patterns that are found
quickly.

**Tolerance.** Chains have met if they differ by less than 1e-12 of the spread of gamma in every cell. The chain in use
and the chain of exact coalescence are between the extreme ones, and their distance never increases afterwards: the
result is within 1e-12 of an exact draw, in every cell, in real arithmetic.

**Cost.** A sweep is ``O(cells)``, at most d(d-1)/2 of them (k (d-k) for a projector). The extreme chains meet after
``c d^2`` sweeps, c observed: 2.8 for equal weights, 6 to 9 on measured data. A draw takes about ``3.25 c d^2``: one
trial and two blocks. On one core that is 2 s at d = 48 and 5 to 7 s at 64; time grows like d^4. The number of sweeps
depends on the data and is private. Memory stays below 500 bytes per cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.floats import Floats, exponentials, uniforms
from dpdist.core.progress import Steps

Complex = npt.NDArray[np.complex128]

ATTEMPTS = 1000
"""Proposals on the ball before the pattern is drawn: at most seconds, where the pattern would take hours."""
TOLERANCE = 1e-12
"""Distance, in units of the spectrum's spread, below which two chains have met."""
_STRIDE = 16  # sweeps between two checks of the distance
_MIN_WEIGHT = 2.0**-60  # replaces smaller weights, which gives the same draws in float64


def hermitian(spectrum: Floats, levels: Floats, entropy: Entropy, *, progress: Steps | None = None) -> Complex:
    """Draw H once."""
    size = spectrum.size
    ones = int(np.count_nonzero(spectrum == spectrum[0]))
    if ones == size:
        return np.diag(spectrum).astype(np.complex128)
    if ones + np.count_nonzero(spectrum == spectrum[-1]) == size:
        if ones == 1:
            return line(levels, entropy)
        if ones == size - 1:  # the complement is a line, aligned to -A
            return np.eye(size) - line(-levels[::-1], entropy)[::-1, ::-1]
        projector = subspace(levels, ones, ATTEMPTS, entropy)
        if projector is not None:
            return projector
    return matrix_of(next(patterns(spectrum, levels, entropy, progress=progress)), entropy)


def _tilt(rates: Floats) -> float:
    """Return c with ``sum 1/(rates + c) = 1``, or 0 if that is negative."""
    low, high = 0.0, float(rates.size)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.sum(1 / (rates + middle)) > 1 else (low, middle)
    return high if low > 0 else 0.0


def line(levels: Floats, entropy: Entropy) -> Complex:
    """Draw the projector on a line, (d, d), d at least 2: complex Bingham, by rejection."""
    rates = levels[0] - levels[1:]
    c = _tilt(rates)
    count = math.isqrt(16 * levels.size)  # about one of them is accepted in the worst case
    while True:
        proposed = exponentials(count * rates.size, entropy).reshape(count, rates.size) / (rates + c)
        first = 1 - proposed.sum(axis=1)
        accepted = (first > 0) & (uniforms(count, entropy) < np.exp(-c * np.maximum(first, 0)))
        if accepted.any():
            chosen = int(np.argmax(accepted))
            squares = np.concatenate([first[chosen : chosen + 1], proposed[chosen]])
            u = np.sqrt(squares) * np.exp(2j * np.pi * uniforms(levels.size, entropy))
            return np.outer(u, u.conj())


def subspace(levels: Floats, count: int, attempts: int, entropy: Entropy) -> Complex | None:
    """Draw the projector on a subspace, (d, d), by proposals on the ball; None if none was accepted."""
    rates = levels[:count] - levels[count:, None]
    with np.errstate(divide="ignore"):
        # P(no entry exceeds 1) bounds the acceptance probability, and does not depend on the proposals
        bound = float(np.log(-np.expm1(-rates)).sum())
    if bound < math.log(0.01 / attempts):
        return None
    for _ in range(attempts):
        squares = exponentials(rates.size, entropy).reshape(rates.shape) / rates
        if max(squares.sum(axis=0).max(), squares.sum(axis=1).max()) > 1:  # the norms of columns and rows bound |G|_2
            continue
        g = np.sqrt(squares) * np.exp(2j * np.pi * uniforms(rates.size, entropy).reshape(rates.shape))
        gram = g.conj().T @ g
        values, vectors = np.linalg.eigh(gram)
        if values[-1] <= 1:
            side = g @ (vectors * np.sqrt(1 - np.maximum(values, 0))) @ vectors.conj().T
            return np.block([[np.eye(count) - gram, side.conj().T], [side, g @ g.conj().T]])
    return None


# --- the pattern ------------------------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """The free cells of all rows of one parity: a slice, weights, and the indices of their neighbours."""

    cells: slice
    weights: Floats
    below: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
    above: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]

    def redraw(self, chains: Floats, v: Floats) -> None:
        """Redraw these cells in every chain, (chains, cells), with common uniforms v, (size of the slice,)."""
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
        np.maximum(step, low, out=chains[:, self.cells])  # rounding may give less than low


class Polytope:
    """The Gelfand-Tsetlin polytope of a spectrum: a state has d(d+1)/2 cells, first the free, then the fixed ones."""

    def __init__(self, spectrum: Floats, levels: Floats) -> None:
        self.size = spectrum.size
        row, column = np.tril_indices(self.size)
        highest, lowest = spectrum[column], spectrum[column + self.size - 1 - row]
        group = np.where(highest > lowest, row % 2, 2)
        self._order = np.argsort(group, kind="stable")
        row, column, group = row[self._order], column[self._order], group[self._order]
        self.highest, self.lowest = highest[self._order], lowest[self._order]
        self.free = int(np.count_nonzero(group < 2))
        index = np.zeros((self.size, self.size), dtype=np.intp)
        index[row, column] = np.arange(row.size)
        weights = np.maximum(levels[:-1] - levels[1:], _MIN_WEIGHT)

        def rows_of(parity: int) -> _Rows:
            first, last = np.searchsorted(group, [parity, parity + 1])
            m, i = row[first:last], column[first:last]
            under, over = index[m + 1, i + 1], index[m + 1, i]
            # a missing neighbour in the previous row is replaced by that in the next row, a constraint anyway
            left = np.where(i > 0, index[m - 1, i - 1], over)
            right = np.where(i < m, index[m - 1, i], under)
            return _Rows(slice(int(first), int(last)), weights[m], (under, right), (over, left))

        self._rows = tuple(rows for rows in (rows_of(0), rows_of(1)) if rows.weights.size)

    def sweep(self, chains: Floats, v: Floats) -> None:
        """Redraw every free cell of every chain, (chains, cells), with common uniforms v, (free,)."""
        for rows in self._rows:
            rows.redraw(chains, v[rows.cells])

    def run(self, chains: Floats, sweeps: int, entropy: Entropy) -> None:
        """Run a number of sweeps with fresh uniforms."""
        for v in uniforms(sweeps * self.free, entropy).reshape(sweeps, self.free):
            self.sweep(chains, v)

    def met(self, chains: Floats) -> bool:
        """Return whether the first chain, from the highest state, and the second, from the lowest, have met."""
        return bool(np.max(chains[0] - chains[1], initial=0.0) < TOLERANCE)

    def rows(self, state: Floats) -> Floats:
        """Arrange a state as a (d, d) lower triangle; row m-1 holds the eigenvalues of the m x m minor, descending."""
        triangle = np.empty(state.size)
        triangle[self._order] = state
        pattern = np.zeros((self.size, self.size))
        pattern[np.tril_indices(self.size)] = triangle
        return pattern


def patterns(
    spectrum: Floats, levels: Floats, entropy: Entropy, *, strides: int | None = None, progress: Steps | None = None
) -> Iterator[Floats]:
    """Yield independent Gelfand-Tsetlin patterns without end; ``strides`` is the block length, None: from a trial."""
    polytope = Polytope(spectrum, levels)
    extremes = [polytope.highest, polytope.lowest]
    done, expected = 0, 20 * polytope.size**2

    def run(chains: Floats) -> None:
        nonlocal done
        polytope.run(chains, _STRIDE, entropy)
        done += _STRIDE
        if progress is not None:
            progress(done, max(expected, done))

    if strides is None:
        chains = np.stack(extremes)
        while not polytope.met(chains):
            run(chains)
        strides = math.ceil(1.25 * done / _STRIDE)
        expected = done + 2 * strides * _STRIDE
    state: Floats | None = None
    while True:
        chains = np.stack(extremes if state is None else [*extremes, state])
        remaining = strides
        while remaining and not polytope.met(chains):
            run(chains)
            remaining -= 1
        if polytope.met(chains):
            if state is not None:
                yield polytope.rows(state)
            chains = chains[:1].copy()
        for _ in range(remaining):
            run(chains)
        state = chains[-1] if state is not None or chains.shape[0] == 1 else None


def _squared_border(inner: Floats, outer: Floats) -> Floats:
    """Return the squared magnitudes of the last column of a matrix in the eigenbasis of its leading minor."""
    # |b_j|^2 = -prod_i (mu_j - nu_i) / prod_(i != j) (mu_j - mu_i), paired so that every quotient is in [0, 1]; among
    # equal eigenvalues of the minor the eigenbasis is arbitrary, and the last one gets the total
    gap = np.abs(inner[:, None] - inner)
    between = np.abs(inner[:, None] - outer[1:-1])  # nu_(i+1) is between mu_i and mu_(i+1)
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
    """Draw a uniform Hermitian matrix given the eigenvalues of its leading minors, a pattern."""
    # each step uses the prescribed eigenvalues, not the computed ones: errors add up to about d units in the last place
    size = pattern.shape[0]
    matrix = np.zeros((size, size), dtype=np.complex128)
    matrix[0, 0] = pattern[0, 0]
    for m in range(1, size):
        inner, outer = pattern[m - 1, :m], pattern[m, : m + 1]
        _, basis = np.linalg.eigh(matrix[:m, :m])
        phases = np.exp(2j * np.pi * uniforms(m, entropy))
        border = basis[:, ::-1] @ (np.sqrt(_squared_border(inner, outer)) * phases)
        matrix[:m, m], matrix[m, :m] = border, border.conj()
        matrix[m, m] = outer.sum() - inner.sum()
    return matrix
