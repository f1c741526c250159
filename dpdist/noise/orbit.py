"""Exact sampling on a unitary orbit: H = U diag(gamma) U* with density ``exp(sum_m l_m H_mm)``.

The density stands against the invariant measure of the orbit, ``l_1 >= ... >= l_d``, in the eigenbasis of the matrix H
is aligned to. Projectors have rejection samplers that are fast where they accept at all; the rest goes to
:mod:`dpdist.noise.gelfand_tsetlin`.

**Lines** (k = 1). With ``s_i = |u_i|^2`` uniform on the simplex, the density is ``exp(-sum_(i>1) r_i s_i)``,
``r_i = l_1 - l_i``. Propose independent exponentials ``s_i`` of rate ``r_i + c``, i > 1, with ``c >= 0``; if they
leave ``s_1 = 1 - sum s_i > 0``, accept with probability ``exp(-c s_1)``, the quotient of target and proposal over its
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

**Choice.** A number of proposals on the ball, then the pattern. This does not bias. Proposals are independent, and
each accepted one has the target law P, so the first accepted of N has it too, given that there is one. The fallback
uses fresh randomness and has law P whatever came before, so also given that there was none. With q the probability of
none, ``(1 - q) P + q P = P``. How long a draw takes does depend on the data.
"""

from __future__ import annotations

import math

import numpy as np

from dpdist._util.progress import Steps
from dpdist.noise.entropy import Entropy
from dpdist.noise.floats import Floats, exponentials, uniforms
from dpdist.noise.gelfand_tsetlin import Complex, matrix_of, patterns

ATTEMPTS = 1000
"""Proposals on the ball before the pattern takes over: seconds at most where the pattern would take hours."""


def hermitian(spectrum: Floats, levels: Floats, entropy: Entropy, *, progress: Steps | None = None) -> Complex:
    """Draw H once."""
    size = spectrum.size
    ones = int(np.count_nonzero(spectrum == spectrum[0]))
    if ones == size:
        return np.diag(spectrum).astype(np.complex128)
    if ones + np.count_nonzero(spectrum == spectrum[-1]) == size:
        if ones == 1:
            return line(levels, entropy)
        if ones == size - 1:  # what is left out is a line, aligned to the opposite
            return np.eye(size) - line(-levels[::-1], entropy)[::-1, ::-1]
        projector = subspace(levels, ones, ATTEMPTS, entropy)
        if projector is not None:
            return projector
    return matrix_of(next(patterns(spectrum, levels, entropy, progress=progress)), entropy)


def _tilt(rates: Floats) -> float:
    """Return c with ``sum 1/(rates + c) = 1``, or 0 where that would be negative."""
    low, high = 0.0, float(rates.size)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.sum(1 / (rates + middle)) > 1 else (low, middle)
    return high if low > 0 else 0.0


def line(levels: Floats, entropy: Entropy) -> Complex:
    """Draw the projector on a line, (d, d), d at least 2: complex Bingham, by rejection."""
    rates = levels[0] - levels[1:]
    c = _tilt(rates)
    count = math.isqrt(16 * levels.size)  # at the worst about one of them is accepted
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
        # no entry beyond 1 is necessary: this probability bounds the acceptance, and depends on no proposal
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
