"""Exact sampling of the spectrum of nuclear-norm noise: monotone coupling from the past.

**Law.** A symmetric d x d matrix with density proportional to ``exp(-|E|_*)``, the nuclear norm, is ``Q diag(l) Q^T``
with Q Haar on O(d) and, independently, ``l_1 > ... > l_d`` of density proportional to

    prod_{i<j} |l_i - l_j| exp(-sum_i |l_i|).

**Monotone heat bath.** Site i given the others has on ``(l_{i+1}, l_{i-1})`` the log-concave density ``prod_{j != i}
|x - l_j| exp(-|x|)``. Its logarithmic derivative ``sum_j 1/(x - l_j) - sign x`` increases in every ``l_j``, and so do
both ends: raising any other site raises the conditional law in the order of likelihood ratios, hence every quantile.
So redrawing site after site as the u-quantile of its conditional law, the same u in all chains, keeps ordered states
ordered and the law invariant. A sweep goes i = d..1, then 1..d.

**Extreme chains.** There is no largest state, yet a chain above all others: redraw i = d..1 leaving out the factors of
the sites above i. Each omitted factor ``l_j - x`` decreases in x, so by induction every site lies above that of any
chain that started anywhere and used the same u. Mirrored, i = 1..d without the sites below gives a chain below all.

**Coupling from the past** (Propp & Wilson 1996). The extreme chains start at -T, with the same uniforms for all T. As T
grows the upper one at time 0 falls and the lower one rises; a chain that starts at -T in the law above, and so has that
law at time 0, lies between them. Hence the limit where the two meet has exactly this law. T is doubled, new uniforms
being put before the old ones, until they differ by less than ``size 2^-42`` in every site; their midpoint is returned.
No time limit cuts a run short: that would favour spectra that are quickly found.

**Tolerance.** What is returned differs from an exact draw by less than ``size 2^-42`` in every eigenvalue, for every
outcome of the uniforms: 1.4e-13 of the spectrum's edge, ``pi/2 size``. That bounds the distance of coupled draws and
not a ratio of densities, so a guarantee about the exact law is one about real numbers (`ideal-real`). The uniforms are
float64 and their quantiles are computed to about 1e-14 (:mod:`dpdist.noise.log_gas`).

**Cost.** The extreme chains meet after 8.6 size sweeps, with a standard deviation of 1.3 sqrt(size) or less (observed
for 2 to 64), so the first T, ``9 size + 16``, is almost always enough. A sweep redraws 2 size sites one after another,
since all repel each other; a redraw is two or three evaluations of the density at 17 to 96 points, O(size) each. One
core takes 1.5 s at size 20, 15 s at 64, 40 s at 100, 3 min at 200 and 1.5 h at 784, which is as far as this is
practical. The uniforms are kept: ``16 size (9 size + 16)`` bytes (90 MB at 784), and twice that for each doubling of T.

The law knows nothing of the data, so spectra can be drawn in advance, each to be used once and kept secret until then.
The time of a draw depends on what is drawn: who can measure it learns a little about the noise.
"""

from __future__ import annotations

import numpy as np

from dpdist._util.progress import Steps
from dpdist.noise.entropy import Entropy
from dpdist.noise.floats import Floats, uniforms
from dpdist.noise.log_gas import quantile


def sweep(chains: Floats, u: Floats) -> None:
    """Redraw every site of every chain in place, i = d..1 and then 1..d."""
    last = chains.shape[0] - 1
    others = chains[:-1].copy()
    for i in range(last, -1, -1):
        chains[i] = quantile(others, *_interval(chains, i), u[0, i])
        if i > 0:
            others[i - 1] = chains[i]
    others = chains[1:].copy()
    for i in range(last + 1):
        chains[i] = quantile(others, *_interval(chains, i), u[1, i])
        if i < last:
            others[i] = chains[i]


def _interval(chains: Floats, i: int) -> tuple[Floats | float, Floats | float]:
    return chains[i + 1] if i + 1 < chains.shape[0] else -np.inf, chains[i - 1] if i > 0 else np.inf


def extremes(u: Floats) -> Floats:
    """Return the extreme chains after the first sweep, from plus and minus infinity."""
    _, size, count = u.shape
    top, bottom = np.empty((size, count)), np.empty((size, count))
    for i in range(size - 1, -1, -1):
        top[i] = quantile(top[i + 1 :], _interval(top, i)[0], np.inf, u[0, i])
    for i in range(size):
        top[i] = quantile(np.delete(top, i, axis=0), *_interval(top, i), u[1, i])
        bottom[i] = quantile(bottom[:i], -np.inf, _interval(bottom, i)[1], u[1, i])
    return np.concatenate([top, bottom], axis=1)


def nuclear_spectra(size: int, count: int, entropy: Entropy, *, progress: Steps | None = None) -> Floats:
    """Draw independent spectra of nuclear-norm noise, density ``prod |l_i - l_j| exp(-sum |l_i|)``."""
    tolerance = size * 2.0**-42
    blocks: list[Floats] = []  # latest first
    done, sweeps = 0, 0
    while True:
        new = sweeps or _first_sweeps(size)
        blocks.append(uniforms(new * 2 * size * count, entropy).reshape(new, 2, size, count))
        sweeps += new
        chains, expected = None, done + sweeps
        for block in reversed(blocks):
            for u in block:
                if chains is None:
                    chains = extremes(u)
                else:
                    sweep(chains, np.concatenate([u, u], axis=2))
                done += 1
                if progress is not None:
                    progress(done, expected)
        if chains is None:
            raise AssertionError("there was a sweep")
        top, bottom = chains[:, :count], chains[:, count:]
        if not (top - bottom > -tolerance).all():
            raise ArithmeticError("the extreme chains have lost their order")
        if (top - bottom < tolerance).all():
            return ((top + bottom) / 2).T.copy()


def _first_sweeps(size: int) -> int:
    return 9 * size + 16
