"""Exact sampling of the spectrum of nuclear-norm noise: monotone coupling from the past.

**Distribution.** A symmetric d x d matrix with density proportional to ``exp(-|E|_*)``, the nuclear norm, is
``Q diag(l) Q^T`` with Q Haar on O(d) and, independently, ``l_1 > ... > l_d`` of density proportional to

    prod_{i<j} |l_i - l_j| exp(-sum_i |l_i|).

**Monotone heat bath.** Site i given the others has on ``(l_{i+1}, l_{i-1})`` the log-concave density
``prod_{j != i} |x - l_j| exp(-|x|)``. Its logarithmic derivative ``sum_j 1/(x - l_j) - sign x`` increases in every
``l_j``, and so do both ends: raising any other site raises the conditional distribution in likelihood ratio order,
hence every quantile. So redrawing each site in turn as the u-quantile of its conditional distribution, with the same u
in all chains, preserves the order of states and the distribution. A sweep goes i = d..1, then 1..d.

**Extreme chains.** There is no largest state, but a chain above all others: redraw i = d..1 omitting the factors of the
sites above i. Each omitted factor ``l_j - x`` decreases in x, so by induction every site is above that of any chain
with the same u, from any start. By symmetry, i = 1..d without the sites below gives a chain below all others.

**Coupling from the past** (Propp & Wilson 1996). The extreme chains start at -T, with the same uniforms for all T. As T
grows, the upper one at time 0 decreases and the lower one increases; a chain that starts at -T in the distribution
above, and so has it at time 0, is between them. Hence their common limit has exactly this distribution. T is doubled,
with new uniforms placed before the old ones, until the chains differ by less than ``size 2^-42`` in every site; the
result is their midpoint. There is no time limit, which would favour spectra that are found quickly.

**Tolerance.** The result differs from an exact draw by less than ``size 2^-42`` in every eigenvalue, for all values of
the uniforms: 1.4e-13 of the spectrum's edge, ``pi/2 size``. That bounds the distance of coupled draws and not a ratio
of densities, so the guarantee holds for real numbers (`ideal-real`). The uniforms are float64 and their quantiles are
computed to about 1e-14, as follows.

**Cost.** The extreme chains meet after 8.6 size sweeps, with a standard deviation of 1.3 sqrt(size) or less (observed
for 2 to 64), so the first T, ``9 size + 16``, is almost always sufficient. A sweep redraws 2 size sites in sequence;
a redraw evaluates the density two or three times at 17 to 96 points, O(size) each. One core takes 1.5 s at size 20,
15 s at 64, 40 s at 100, 3 min at 200 and 1.5 h at 784. The uniforms stay in memory: ``16 size (9 size + 16)`` bytes,
and twice that for each doubling of T. The distribution does not depend on the data. The time of a draw depends on the
noise, and discloses a little about it to an attacker who can measure it.

**Quantiles of one site**, given all others: a particle of a log-gas. Its density between its neighbours is proportional
to ``p(x) = prod_j |x - o_j| exp(-|x|)``, log-concave, a polynomial times an exponential on either side of 0.

**Range.** ``(log p)' = sum_j 1/(x - o_j) - sign x``. With m particles, at a distance m + y above both the last particle
and 0 that is at most ``m / (m + y) - 1``. Integrated, p has decreased by exp(-drop) there once
``y^2 >= 2 drop (m + y)``, which ``y = 2 drop + sqrt(2 m drop)`` satisfies: an unbounded interval is truncated there.
The range is then reduced to where p exceeds exp(-drop) of its largest value.

**Mass.** Gauss-Legendre quadrature, 16 nodes on each of five equal panels, one of them split at 0. In units of the
width of a Gaussian of the same curvature a panel is rarely longer than 6, which 16 nodes integrate to 1e-13.

**Inverse.** Quantiles above 1/2 are those of the mirror image, so masses are sums of positive terms from the nearer end
and accurate to a few units in the last place, however small: an error in x is a fraction of p's width at x. Halley's
iteration solves ``log F(x) = log u`` (F is log-concave too) from a cubic first guess. Observed: ordered chains driven
by the same u lose their order by 4e-15 at most, at sites of size 1 to 10.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np

from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.floats import Floats, uniforms
from dpdist.core.progress import Steps

_NODES = 16
_PANELS = 5  # equal panels on the range of a density; one of them is split at 0, where the density has a kink
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(_NODES)
_FRACTIONS = np.linspace(0, 1, _PANELS + 1)
_PARTIAL_POINTS = np.append((_POINTS + 1) / 2, 1.0)
_PARTIAL_WEIGHTS = np.append(_WEIGHTS / 2, 0.0)
"""Quadrature rule for an integral up to a point, with a last node of weight 0 at the point itself."""
_BLOCK = 16  # differences multiplied before a logarithm: their product stays far from the limits of float64
_NEGLIGIBLE = 38.0  # density and mass below exp(-38) = 3e-17 of the total are ignored
_SHRINK = 0.6  # a range is reduced while its relevant part is shorter than this share
_LAST_STEP = 1e-5
"""Last step of the inversion, in half panels or distances from a panel's left end; the error is its cube."""
_ITERATIONS = 100


_LEGENDRE = np.polynomial.legendre
_CUMULATIVE: Floats = np.linalg.solve(
    _LEGENDRE.legvander(_POINTS, _NODES - 1).T,
    np.array([_LEGENDRE.legval(_POINTS, _LEGENDRE.legint(unit, lbnd=-1)) for unit in np.eye(_NODES)]),
).copy()
"""Maps the values at the nodes to the integrals of their interpolant up to each node."""


class _Grid(NamedTuple):
    """Densities of one site in c chains on the nodes of p panels, each relative to its largest value."""

    edges: Floats  # (c, p + 1)
    half: Floats  # lengths of the panels, halved, (c, p)
    nodes: Floats  # (c, p nodes)
    density: Floats  # (c, p nodes)
    reference: Floats  # products of differences in the middle of the range, the divisors of the others, (blocks, c, 1)
    top: Floats  # largest logarithm of the density, (c, 1)


def _log_density(x: Floats, others: Floats, reference: Floats | None) -> tuple[Floats, Floats]:
    """Return ``sum_j log|x - others_j| - |x|`` at the points x, (c, n), up to a constant fixed by the reference."""
    count = others.shape[0]
    blocks = max(1, -(-count // _BLOCK))
    length = -(-count // blocks)
    differences = np.empty((blocks * length, *x.shape))
    differences[count:] = 1.0
    np.subtract(x, others[:, :, None], out=differences[:count])
    products = np.multiply.reduce(differences.reshape(blocks, length, *x.shape), axis=1)
    if reference is None:
        reference = products[:, :, x.shape[1] // 2, None].copy()
    products /= reference  # positive: no other site is between two points
    np.log(products, out=products)
    log_density: Floats = np.add.reduce(products, axis=0)
    log_density -= np.abs(x)
    return log_density, reference


def _grid(others: Floats, low: Floats, high: Floats, drop: Floats) -> _Grid:
    """Evaluate the densities on a range slightly beyond where they exceed ``exp(-drop)`` of their largest value."""
    chains = low.size
    while True:
        width = high - low
        edges = np.empty((chains, _PANELS + 2))
        np.multiply(width[:, None], _FRACTIONS, out=edges[:, :-1])
        edges[:, :-1] += low[:, None]
        edges[:, -2] = high  # not an ulp above
        edges[:, -1] = np.where((low < 0) & (high > 0), 0.0, edges[:, 2])
        edges.sort(axis=1)
        half = edges[:, 1:] - edges[:, :-1]
        half *= 0.5
        nodes = half[:, :, None] * _POINTS
        nodes += (edges[:, :-1] + half)[:, :, None]
        nodes = nodes.reshape(chains, -1)
        density, reference = _log_density(nodes, others, None)
        top = np.maximum.reduce(density, axis=1, keepdims=True)
        floor = top - drop[:, None]
        ends = density[:, [_NODES - 1, -_NODES]] > floor
        if ends.all():
            break
        matters = density > floor
        chain, last = np.arange(chains), nodes.shape[1] - 1
        first_one = matters.argmax(axis=1)
        last_one = last - matters[:, ::-1].argmax(axis=1)
        tight_low = np.where(first_one > 0, nodes[chain, first_one - 1], low)
        tight_high = np.where(last_one < last, nodes[chain, np.minimum(last_one + 1, last)], high)
        if (tight_high - tight_low >= _SHRINK * width).all():
            break
        low, high = tight_low, tight_high
    density -= top
    return _Grid(edges, half, nodes, np.exp(density, out=density), reference, top)


def _inverted(grid: _Grid, others: Floats, u: Floats) -> Floats:
    """Return the u-quantiles, u <= 1/2: Halley's iteration on the logarithm of the cumulative mass."""
    chains, panels = grid.half.shape
    chain = np.arange(chains)
    mass = grid.density.reshape(chains, panels, _NODES) @ _WEIGHTS
    mass *= grid.half
    upto = np.add.accumulate(mass, axis=1)
    target = u * upto[:, -1]
    panel = np.minimum(np.add.reduce(upto < target[:, None], axis=1), panels - 1)
    index = chain * panels + panel
    before = np.where(panel > 0, upto.take(index - 1), 0.0)
    left, right = grid.edges.take(index + chain), grid.edges.take(index + chain + 1)
    half = grid.half.take(index)

    # first guess: the inverse of the interpolant, cubic between two nodes in the logarithm of the mass
    density = grid.density.reshape(-1, _NODES)[index]
    nodes = grid.nodes.reshape(-1, _NODES)[index]
    cumulative = density @ _CUMULATIVE
    cumulative *= half[:, None]
    cumulative += before[:, None]
    node = np.minimum(np.maximum(np.add.reduce(cumulative < target[:, None], axis=1), 1), _NODES - 1) + chain * _NODES
    mass_0, mass_1 = cumulative.take(node - 1), cumulative.take(node)
    x_0 = nodes.take(node - 1)
    step = nodes.take(node) - x_0
    span = np.log(mass_1 / mass_0)
    part = np.log(target / mass_0) / span
    bend_0 = mass_0 / density.take(node - 1) * span - step
    bend_1 = step - mass_1 / density.take(node) * span
    complement = 1 - part
    x = x_0 + part * (step + complement * (bend_0 * complement + bend_1 * part))
    x = np.where((x > left) & (x < right), x, (left + right) / 2)

    for _ in range(_ITERATIONS):
        points = (x - left)[:, None] * _PARTIAL_POINTS
        points += left[:, None]
        values, _ = _log_density(points, others, grid.reference)
        values -= grid.top
        np.exp(values, out=values)
        reached = before + (x - left) * (values @ _PARTIAL_WEIGHTS)
        rate = values[:, -1] / reached
        slope = np.add.reduce(1 / (x - others), axis=0) - np.sign(x)
        newton = np.log(target / reached) / rate
        moved = x + newton / np.maximum(1 + newton * (slope - rate) / 2, 0.5)
        moved = np.minimum(np.maximum(moved, (x + left) / 2), right)  # stays right of left, where the mass is positive
        change = np.abs(moved - x)
        x = moved
        if (change <= _LAST_STEP * np.minimum(half, x - left)).all():
            root: Floats = x
            return root
    raise ArithmeticError("the inversion of a conditional distribution did not converge")


def quantile(others: Floats, low: Floats | float, high: Floats | float, u: Floats) -> Floats:
    """Return quantiles of the density ``prod_j |x - others_j| exp(-|x|)`` on an interval free of other sites."""
    upper = u > 0.5
    tail = np.where(upper, 1 - u, u)  # exact for these u: the upper half is mirrored, so small masses stay accurate
    drop = _NEGLIGIBLE - np.log(tail)
    count = others.shape[0]
    # from count beyond low and 0 on the density decreases, and at this distance it has decreased by exp(-drop)
    reach = count + 2 * drop + np.sqrt(2 * drop * count)
    floor = np.minimum(high, 0) - reach if np.isscalar(low) else low
    ceiling = np.maximum(low, 0) + reach if np.isscalar(high) else high
    mirror = np.where(upper, -1.0, 1.0)
    others = others * mirror
    # a node may coincide with a site; an invalid first guess is replaced
    with np.errstate(divide="ignore", invalid="ignore"):
        grid = _grid(others, np.where(upper, -ceiling, floor), np.where(upper, -floor, ceiling), drop)
        inverted = _inverted(grid, others, tail)
    inverted *= mirror
    return inverted


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
        expected = done + sweeps
        for number, u in enumerate(chain.from_iterable(reversed(blocks))):
            if not number:
                chains = extremes(u)
            else:
                sweep(chains, np.concatenate([u, u], axis=2))
            done += 1
            if progress is not None:
                progress(done, expected)
        top, bottom = chains[:, :count], chains[:, count:]
        if not (top - bottom > -tolerance).all():
            raise ArithmeticError("the extreme chains are not in order")
        if (top - bottom < tolerance).all():
            return ((top + bottom) / 2).T.copy()


def _first_sweeps(size: int) -> int:
    return 9 * size + 16
