"""How much of the variance the components of a release hold, with its error: post-processing, free of charge.

The components V that were released are public directions. What the exact covariance A0 of the bounded rows has along
each, ``u^T A0 u``, is less than the released eigenvalue y, as V is where the sum with the noise is largest. On average
it is ``y - excess(y)`` (:func:`dpdist.answers.shrinkage.excess`, against all other eigenvalues). This is the variance
of the scores. Its sum over the first k, over the trace, is the share of the variance that these k hold; noise leaves
the trace as it is on average.

**Errors**, to first order, are those of a functional ``tr(B E)`` of the noise on the sums
(:class:`dpdist.answers.block.EntryNoise`). With a released mean x, the constant at place c in units of kappa, and m
rows, let ``r = x / kappa`` and ``v = u - (u.r) e_c``. Then the variance of a score has ``B = (v v^T - s e_c e_c^T /
kappa²) / m``, where s is that variance and the last term the error of a private m. The share q of k components has,
whatever m is,

    B  =  [W, -W r; -r^T W, r^T W r] / (m trace),    W = V^T V - q I.

To second order the excess itself varies (:func:`dpdist.answers.shrinkage.excess_variance`), which is added. An interval
is 1.96 standard deviations to each side, from 0 on, and up to 1 for a share.

Measured (`benchmarks/answers.py`): intervals of variances hold in 93 % of releases or more on average, in 79 for the
weakest of 30 columns that all stand just above the noise; those of shares in 88 % or more. On twenty messy tables with
private scales both hold in 90 % or more (`benchmarks/messy.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist.answers.block import NORMAL, EntryNoise, ends, entry_noise
from dpdist.answers.shrinkage import excess_variance
from dpdist.errors import BelowNoiseError, UsageError
from dpdist.naming import parameter
from dpdist.pca.alignment import counted_components, noise_law
from dpdist.pca.components import Components, about_mean
from dpdist.pca.correlation import fewest, require_share
from dpdist.pca.noise_edge import NoiseLaw
from dpdist.release.artefact import Release

Matrix = npt.NDArray[np.float64]
WIDE = 2000
"""Columns up to which all eigenvalues are found unasked."""


@dataclass(frozen=True)
class Captured:
    """What components of a release hold, of rows shortened to the clip norm. How often intervals hold: the module."""

    variances: Matrix  # (k,): of the scores on each component, per row where the eigenvalues are
    intervals: Matrix  # (k, 2): of these
    shares: Matrix  # (k,): of the first 1, 2, ... components together in the variance, from 0 to 1
    share_intervals: Matrix  # (k, 2): of these
    rest: float  # mean variance along all other directions, 0 where there are none
    rest_interval: Matrix  # (2,): of that

    def to_json(self) -> dict[str, object]:
        """Return the share of all of them as JSON values."""
        low, high = self.share_intervals[-1].tolist()
        return {"captured_variance": {"value": float(self.shares[-1]), "low": low, "high": high}}

    def describe(self) -> str:
        """Return the same in a sentence."""
        low, high = self.share_intervals[-1]
        between = f"{math.floor(1000 * low) / 1000:.3f} and {math.ceil(1000 * high) / 1000:.3f}"
        held = f"Together they hold {self.shares[-1]:.3f} of the variance"
        return f"{held}, between {between} in about nine of ten releases."


def captured(release: Release, found: Components) -> Captured | None:
    """Return what the leading components of a release hold; None where its noise has no law, or drowns the trace."""
    law = noise_law(release)
    known = release.noise.variance_diagonal is not None and release.noise.variance_off_diagonal is not None
    if law is None or not known or not release.in_memory:
        return None
    about = about_mean(release)
    values: Matrix = np.linalg.eigvalsh(about.matrix(release.second_moment))[::-1].astype(np.float64)
    vectors, (k, d) = found.components, found.components.shape
    kappa = release.bound.constant * release.bound.unit
    noise = entry_noise(release, d if kappa and release.rows is not None else None)
    ratios = about.mean / kappa if kappa else np.zeros(d)
    each, together = _excess(values, k, law)
    variances = values[:k] - each
    own = np.sqrt(
        _score_variances(noise, vectors, ratios, variances / kappa**2 if kappa else None) / about.divisor**2
        + excess_variance(values[:k], values, law) - 8 * law.variance / d
    )  # fmt: skip
    total = float(values.sum())
    one, none = np.ones(k), np.zeros(k)
    nothing = float(_span_variances(noise, vectors, ratios, (none, one), none)[0])
    if total * about.divisor <= NORMAL * math.sqrt(nothing):
        return None
    loose = _loose(values, k, law)
    held = np.cumsum(values[:k]) - together
    shares, left = held / total, total - held
    spread = _span_variances(noise, vectors, ratios, (one, -shares), none) / about.divisor**2 + loose
    if k == d:  # all of it, whatever the noise
        shares[-1], spread[-1], left[-1] = 1.0, 0.0, 0.0
    corner = left / kappa**2 if kappa else none
    over = _span_variances(noise, vectors, ratios, (-one, one), corner) / about.divisor**2 + loose
    shares, others = np.clip(shares, 0, 1), max(1, d - k)
    rest, deviation = float(left[-1]) / others, math.sqrt(float(over[-1])) / others if k < d else 0.0
    return Captured(
        variances, ends(variances, own, 0), shares, ends(shares, np.sqrt(spread) / total, 0, 1),
        rest, ends(np.array(rest), np.array(deviation), 0),
    )  # fmt: skip


def holding(release: Release, share: float) -> Components:
    """Return the fewest components of a release that hold a share of the variance for sure.

    The lower end of the interval of their share decides: it is not below what was asked for. None are taken that
    cannot be told from noise.
    """
    require_share(share)
    instead = f"pass their number ({parameter('components', 'K')})"
    if not release.in_memory:
        raise UsageError(f"The release is too large for memory to tell a share of its variance: {instead}.")
    seen = counted_components(release)
    told = captured(release, seen)
    if told is None:
        raise BelowNoiseError(f"This release tells no share of its variance, as far as the noise lets see: {instead}.")
    which = f"The {len(told.shares)} components that can be told from noise"
    return seen.leading(fewest(told.share_intervals[:, 0], share, which, "the lower end of an interval of 95 %"))


def _excess(values: Matrix, count: int, law: NoiseLaw) -> tuple[Matrix, Matrix]:
    """Return what noise adds along each of the leading eigenvectors, and along the first 1, 2, ... together.

    Of a semicircle it is ``2 v Re g``. In a sum, what two vectors in it take from each other cancels. What is left is
    right on average with hardly any width, by Stein's identity, also where many values are close. What another law
    adds to that is taken with the width of an eigenvalue.
    """
    if len(values) == 1:
        return np.zeros(1), np.zeros(1)
    width = math.sqrt(law.variance / law.size)
    g = ((1 / (values[:count, None] - 1j * width - values)).sum(axis=1) - 1j / width) / law.size  # without itself
    each: Matrix = (g * law.transform(g)).imag / g.imag
    pairs = (1 / (values[:count, None] - 1j * width / math.sqrt(law.size) - values)).real
    beyond = pairs.sum(axis=1)[:, None] - np.cumsum(pairs, axis=1)[:, :count]  # of i and k, over j > k
    linear = 2 * law.variance / law.size * np.triu(beyond).sum(axis=0)
    together: Matrix = linear + np.cumsum(each - 2 * law.variance * g.real)
    return each, together


def _score_variances(noise: EntryNoise, vectors: Matrix, ratios: Matrix, corner: Matrix | None) -> Matrix:
    """Return ``Var tr(B E)`` of ``B = v v^T - corner e_c e_c^T``, of each of (k, d) vectors; no constant: None."""
    last = np.zeros(len(vectors)) if corner is None else -(vectors @ ratios)
    taken = np.zeros(len(vectors)) if corner is None else corner
    squares = (1 + last**2) ** 2 - 2 * taken * last**2 + taken**2
    trace, at_last = 1 + last**2 - taken, last**2 - taken
    if noise.exact is not None:
        squares, trace, at_last = squares - at_last**2, trace - at_last, np.zeros_like(at_last)
    diagonal = (vectors**4).sum(axis=1) + at_last**2
    found: Matrix = 2 * noise.off * squares + noise.own * diagonal + noise.shared * trace**2
    return np.maximum(found, 0)


def _span_variances(
    noise: EntryNoise, vectors: Matrix, ratios: Matrix, weights: tuple[Matrix, Matrix], corner: Matrix
) -> Matrix:
    """Return ``Var tr(B E)`` of ``W = a V^T V + b I`` of the first 1, 2, ... vectors, (k,), weights (a, b).

    ``corner`` is subtracted from the last entry of B.
    """
    (a, b), d = weights, vectors.shape[1]
    count = np.arange(1, len(vectors) + 1)
    length, inside = float(ratios @ ratios), np.cumsum((vectors @ ratios) ** 2)
    last = a * inside + b * length - corner
    at_last = np.zeros_like(last) if noise.exact is not None else last
    squares = count * (a + b) ** 2 + (d - count) * b**2
    crossed = ((a + b) ** 2 - b**2) * inside + b**2 * length
    diagonal = a**2 * (np.cumsum(vectors**2, axis=0) ** 2).sum(axis=1) + 2 * a * b * count + d * b**2
    whole = 2 * noise.off * (squares + 2 * crossed + at_last**2) + noise.own * (diagonal + at_last**2)
    found: Matrix = whole + noise.shared * (count * a + d * b + at_last) ** 2
    return np.maximum(found, 0)


def _loose(values: Matrix, count: int, law: NoiseLaw) -> Matrix:
    """Return the variance of the excess of the first 1, 2, ... components together, to second order."""
    v = law.variance / law.size
    pairs = 8 * v**2 / ((values[:count, None] - values) ** 2 + v)
    above = np.cumsum(np.cumsum(pairs, axis=0), axis=1)  # over i <= k and j <= l
    k = np.arange(count)
    return above[:, -1] - above[k, k]
