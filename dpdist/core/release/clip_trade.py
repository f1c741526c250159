"""A clip norm for components: noise against clipping error, estimated from a released histogram of the norms.

Noise is proportional to the square of the clip norm C, so a small C has little noise. But it clips rows, and the
components of clipped rows differ from those of the original ones. Both reduce the captured variance.

**Noise.** Off-diagonal entries of the released moment have independent noise of standard deviation ``s C^2``, with s
determined by the mechanism. Let ``S(C) = sum min(r, C)^2`` over the norms r: the trace of the moment of the clipped
rows, and so the sum of its eigenvalues. To first order component k rotates by a squared angle of
``(d - K) s^2 C^4 / lambda_k^2`` out of the K leading ones (Wedin 1972; Stewart & Sun 1990, section V.2), and the
captured variance loses ``(d - K) s^2 C^4 / lambda_k``. The eigenvalues are unknown before the release. With a spectrum
that falls like ``1/k``, ``lambda_k = S / (k H_d)``, ``H_m = 1 + 1/2 + ... + 1/m``, the loss, as a share of the captured
variance, is

    N(C) = (d - K) (s C^2 H_d / S(C))^2  K (K + 1) / (2 H_K),    of which N / (1 + N) is counted: the loss is at most 1.

**Why noise alone does not suffice.** ``S(C) / C^2 = sum min(r / C, 1)^2`` cannot grow with C, so N cannot fall, and the
noise alone would always select the smallest norm of the grid.

**Clipping** removes the share ``b(C) = 1 - S(C) / S(infinity)`` of the trace. How much that rotates depends on how the
directions of long rows differ from those of short ones, which no histogram of norms shows. It is counted as
``b^2 / 20``. The constant and the spectrum are a rule of thumb, chosen once on public tables
(``benchmarks/clip_quantiles.py`` and its results): there, the choice loses .006 of captured variance against the best
quantile on average, and .09 at worst; the fixed 0.95-quantile loses .026 and .36. In 5 of 90 cases it is worse than
that quantile by more than .005, and by at most .022. The rule of thumb does not affect the guarantee, because all of
this is post-processing of one released histogram.

**Privacy units** of which all rows are kept have the norm r of their moment: ``r^2 = |G_u|_F``. Those beyond C weigh
less, which rotates components only as far as their rows differ from those of others: ``b^2 / 200`` is counted. Without
a number of components the trade is that for ten, or for half of the columns. On five tables at epsilon 1
(``benchmarks/results/persons.md``) 1 to 50 components then captured at most .005 less than with the best of ten clip
norms.

The Frobenius error of the whole matrix is different: there, clipping counts in full, and a high quantile, such as
0.95, is right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.columns import occupied
from dpdist.core.naming import parameter
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.norm_histogram import NormHistogram
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest

_SHORTENING, _WEIGHING = 0.05, 0.005
_FINER = 8
"""Candidate clip norms per bin."""
LEADING = (1, 5, 20)
"""Numbers of components for which a trade is shown."""
_QUANTILES = [Fraction(hundredths, 100) for hundredths in range(99, 1, -1)]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ForComponents:
    """Purpose of a clip norm: a number of components, from a release of a given loss."""

    number: int
    loss: PrivacyLoss


def noise_share(purpose: ForComponents, neighbours: Neighbours, columns: int, max_rows: int) -> float:
    """Return s, the standard deviation of off-diagonal noise over the squared clip norm (recommended mechanism)."""
    if not 1 <= purpose.number < columns:
        raise UsageError(
            f"The table has {columns} columns: {parameter('clip_components')} is from 1 to {columns - 1}.",
            parameter="clip_components",
        )
    mechanism = "gaussian" if purpose.loss.delta_atto else "two-sided-wishart"
    request = ReleaseRequest(mechanism, purpose.loss, 1.0, neighbours, accept_large_delta=True)
    plan = planned(request, Dimensions(columns, changed_rows=max_rows))
    return math.sqrt(plan.moment.noise["variance_off_diagonal"]) * plan.bound.unit**2


def occupied_bins(histogram: NormHistogram) -> tuple[int, int] | None:
    """Return the range of bins that are surely occupied, half open; None if none is."""
    counts = np.array(histogram.counts)
    return occupied(counts, histogram.noise, counts.size * (counts.size + 1) // 2)


def _occupied(histogram: NormHistogram) -> tuple[int, int]:
    """Return the bins whose counts are weighted by their norms: noise in the others is not."""
    return occupied_bins(histogram) or (0, 0)


def traces(histogram: NormHistogram, clips: Floats) -> Floats:
    """Return S at some clip norms; a norm counts as the geometric mean of its bin, or as the last edge."""
    first, last = _occupied(histogram)
    edges, counts = np.array(histogram.edges), np.array(histogram.counts, dtype=np.float64)
    norms = np.concatenate([edges[:1] / math.sqrt(2), np.sqrt(edges[:-1] * edges[1:]), edges[-1:]])
    trace: Floats = np.minimum.outer(clips, norms[first:last]) ** 2 @ counts[first:last]
    return trace


def losses(
    number: int, columns: int, share: float, clips: Floats, trace: Floats, total: float, *, units: bool = False
) -> Floats:
    """Return the approximate loss of captured variance at each clip norm, from noise and clipping."""
    harmonic = (1 / np.arange(1, columns + 1)).cumsum()
    noise = (columns - number) * (share * clips**2 * harmonic[-1] / trace) ** 2
    noise *= number * (number + 1) / 2 / harmonic[number - 1]
    shortening = _WEIGHING if units else _SHORTENING
    lost: Floats = noise / (1 + noise) + shortening * (1 - trace / total) ** 2
    return lost


@dataclass(frozen=True)
class Trade:
    """Estimated cost of a clip norm, by noise and by clipping, for rows with guessed norms."""

    clip_norm: float
    longer: float  # share of the rows that it clips
    lost: float  # share of the sum of squared norms that clipping removes
    noise: float  # edge of the noise over the mean squared norm of the clipped rows
    losses: dict[int, float]  # approximate loss of captured variance of K leading components, by K


def trades(norms: Sequence[float], columns: int, rows: int, share: float, edge: float) -> tuple[Trade, ...]:
    """Return the trade for each of the guessed norms as a clip norm, smallest first."""
    guess, clips = np.array(norms, dtype=np.float64), np.unique(norms)
    trace, total = rows * (np.minimum.outer(clips, guess) ** 2).mean(axis=1), rows * (guess**2).mean()
    by_number = {k: losses(k, columns, share, clips, trace, total) for k in LEADING if k < columns}
    return tuple(
        Trade(
            clip_norm=float(clip),
            longer=float((guess > clip).mean()),
            lost=float(1 - trace[i] / total),
            noise=float(edge * clip**2 / trace[i]),
            losses={k: float(loss[i]) for k, loss in by_number.items()},
        )
        for i, clip in enumerate(clips)
    )


def quantile_for(purpose: ForComponents, histogram: NormHistogram, columns: int, max_rows: int = 1) -> Fraction:
    """Return the quantile, in hundredths, with the smallest expected loss for the components; 0.95 without a signal."""
    share = noise_share(purpose, histogram.guarantee.neighbours, columns, max_rows)
    *trace, total = traces(histogram, np.array([*histogram.edges, np.inf]))
    quantiles: dict[int, Fraction] = {}
    for quantile in _QUANTILES:
        estimate = histogram.quantile(quantile)
        if estimate.edge is not None and estimate.up_to_edge is not None and trace[estimate.edge] > 0:
            quantiles.setdefault(estimate.edge, quantile)
    if not quantiles:
        return Fraction(95, 100)
    indices = list(quantiles)
    clips = np.array(histogram.edges)[indices]
    units = bool(histogram.unit_norm)
    expected = losses(purpose.number, columns, share, clips, np.array(trace)[indices], total, units=units)
    return quantiles[indices[int(expected.argmin())]]


def clip_for(
    purpose: ForComponents, histogram: NormHistogram, columns: int, max_rows: int = 1
) -> tuple[float, Fraction]:
    """Return the clip norm with the smallest expected loss for the components, and its approximate quantile."""
    first, last = _occupied(histogram)
    edges = np.array(histogram.edges)
    low, high = edges[max(0, first - 1)], edges[min(last, len(edges)) - 1]
    if not low < high:
        return histogram.clip_norm()
    clips = np.geomspace(low, high, _FINER * (last - first) + 1)[1:]
    *trace, total = traces(histogram, np.append(clips, np.inf))
    positive = np.array(trace) > 0
    if total <= 0 or not positive.any():
        return histogram.clip_norm()
    share = noise_share(purpose, histogram.guarantee.neighbours, columns, max_rows)
    units = bool(histogram.unit_norm)
    expected = losses(purpose.number, columns, share, clips[positive], np.array(trace)[positive], total, units=units)
    clip = float(f"{clips[positive][int(expected.argmin())]:.4g}")
    return clip, histogram.share_up_to(clip)
