"""The alignment of released components with the exact ones: post-processing of a release.

Let the released matrix be A + E, with eigenvalues l and eigenvectors v, and let ``s_ij²`` be the variance of the error
between eigenvectors i and j, from the noise, from rounding and from a private mean (:mod:`dpdist.answers.block`). For
noise that is asymptotically free of A, and any spectrum,

    T_i = sum over j != i of s_ij² / (l_i - l_j)²,        r_i = 1 / (1 + T_i)

estimates the squared cosine of component i with the exact one. This is the derivative of the subordination function of
the sum (Biane 1998; Ledoit & Péché 2011), at the *released* spectrum without its own term. No edge, background or
strength is needed. By the same argument the exact eigenvalue is about ``l_i - sum s_ij²/(l_i - l_j)``. If the
R-transform R of the noise is not linear, T and this sum are multiplied by ``R'(g)/R'(0)`` and ``R(g)/(g R'(0))``, g the
Cauchy transform of the others (:mod:`dpdist.answers.noise_edge`). Eigenvalues not computed count as the least computed
one.

No formula in l alone can detect two cases: equal eigenvalues, and the top of a bulk of noise or background. So r is
reported only for components that are *counted* and *grouped*.

**Count.** Let U_q be T_q over ``j > q`` only, and m = d - q + 1. Starting with k = 0, the least q among k+1 .. k+5 with
``U_q < min(1/2, c (sqrt(m) - 1))`` becomes k, until there is none: c = 0.08 for Wishart or nuclear-norm noise, 0.1
otherwise. So a counted component has r above 2/3 with respect to those below it. An eigenvalue less than 3 of its
deviations above 0 is not counted. If all but the last are counted, so is the last, as the others determine it. If more
than five are equal and far above all others, chance may separate the first one: in one release of six, the result for
it is wrong.

**Groups.** The counted components are split where neighbours are at least 4.9 s_ij apart, the 0.95-quantile of the gap
of two equal eigenvalues. For a group S the mean of ``1/(1 + T_i)`` is reported, with j outside S: the mean squared
cosine of its span with the exact span. Nothing is reported for its single members.

**Interval.** Gaps are narrowed and widened by 1.64 times the deviation of an eigenvalue's distance, 2 s_ij for an
isolated neighbour (its own T, without this one, below 1/2) and sqrt(2) s_ij in a bulk. T is approximated by a
chi-squared variable with ``T² / (sum of squares of its terms)`` degrees of freedom, fewer if the squared entries of the
noise vary more than normal ones (:data:`_EXCESS`). The lower end is 0 if an isolated neighbour is within 4.9 s_ij.

**Loadings.** With ``c = 1/sqrt(1 + T)``, the interval of an exact loading is ``[min(v, v/c), max(v, v/c)] -+ w sd``,
``sd² = sum over j of v_j² s_ij² / max(gap - half of that deviation, .3 s_ij)²``. w is the normal quantile, or the
Laplace quantile for such noise, at confidence .95; for the ten largest loadings, any of which is read as one
selected of d for its size, at ``1 - .05/d`` (Bonferroni). Intervals are reported for single components with
T < 1/2 and no isolated neighbour within 6.5 s_ij: two equal ones are farther apart in one release of 200.

c and 4.9 were fitted on matrices of pure noise. Coverage: `benchmarks/coverage.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from dpdist.answers.noise_edge import CONFIDENCE, NoiseLaw
from dpdist.core.mechanisms.noise_law import EdgeKind

Values = npt.NDArray[np.float64]
GAP = 4.9
"""Least distance of distinguishable neighbours, in deviations."""
_LOADING_GAP = 6.5
"""Least distance of neighbours with reported loadings, in deviations."""
REACH = 5
"""Eigenvalues examined after the last counted one, which may all be equal."""
_MAX_T = 0.5
_CUT = 0.1
_CUT_WISHART = 0.08
_Z = 1.64
_TAIL = 0.05
_LEAST = 0.3
FAR = 3.0
"""Least value of a nonzero eigenvalue, in deviations."""
_LEAST_GAP = 1e-6
_NO_TANGENT = 1e-30
_SELECTED = 10
"""Number of largest loadings of a component with intervals adjusted for selection."""
_WISHART = {EdgeKind.WISHART, EdgeKind.TWO_SIDED_WISHART, EdgeKind.NUCLEAR}
_EXCESS = {
    EdgeKind.NORMAL: 0.0,
    EdgeKind.LAPLACE: 2.0,
    EdgeKind.FROBENIUS: 0.5,
    EdgeKind.NUCLEAR: 0.7,
    EdgeKind.WISHART: 1.0,
    EdgeKind.TWO_SIDED_WISHART: 0.5,
}
"""Excess of each kind of noise in the variance of sums of squared entries, relative to normal noise."""


def cut(size: int, law: NoiseLaw) -> float:
    """Return the threshold of U_q for counting component q: ``size`` is the number of components from q on."""
    return min(_MAX_T, (_CUT_WISHART if law.kinds & _WISHART else _CUT) * (math.sqrt(size) - 1))


@dataclass(frozen=True)
class Spectrum:
    """Released eigenvalues and the noise between their eigenvectors."""

    values: Values  # (K,) float64, descending
    variances: Values  # (K, K): s_ij², in squared units of the values
    law: NoiseLaw
    rest: int = 0  # number of eigenvalues not computed, all at most the last one
    sure: float = 1.0  # certain share of the variances; the variance from rounding is an upper bound
    # (K - 1,): variance of the distance of each eigenvalue from the next one, if it may exceed four times the variance
    # between their eigenvectors, its value for noise with independent entries
    gaps: Values | None = None

    def counted(self) -> int:
        """Return the number of components above the noise."""
        size, last = len(self.values) + self.rest, len(self.values) - 1
        if size == 1:  # one direction
            return int(self.values[0] > self.law.edge_at(CONFIDENCE))
        positive = self.values > FAR * np.sqrt(np.diagonal(self.variances))  # others are not counted
        count = 0
        while True:
            for q in range(count, min(count + REACH, last)):
                if positive[q] and self._terms(q, range(q + 1)).sum() < cut(size - q, self.law):
                    count = q + 1
                    break
            else:
                # the others determine the last direction
                return count + int(count == last and not self.rest and positive[last])

    def groups(self, count: int) -> tuple[range, ...]:
        """Return the counted components in groups of indistinguishable ones."""
        distances = -np.diff(self.values[:count])
        moved = np.diagonal(self.variances, 1)
        moved = moved if self.gaps is None else np.maximum(moved, self.gaps / 4)
        cuts = (1 + np.flatnonzero(distances >= GAP * np.sqrt(moved[: max(0, count - 1)]))).tolist()
        return tuple(range(a, b) for a, b in zip([0, *cuts], [*cuts, count], strict=True) if a < b)

    def _gaps(self, i: int, gaps: Values | None = None) -> Values:
        """Return the nonzero gaps between eigenvalue i and each, (K,), or a nonzero version of ``gaps``."""
        gaps = self.values[i] - self.values if gaps is None else gaps
        least = _LEAST_GAP * np.sqrt(self.variances[i])
        return np.where(np.abs(gaps) < least, least, gaps)

    def _outside(self, contributions: Values, without: range) -> Values:
        """Return the contributions of eigenvalues outside a range; the last one stands for those not computed."""
        contributions[-1] *= 1 + self.rest
        contributions[without.start : without.stop] = 0
        return contributions

    def _nonlinearity(self, i: int, without: range) -> tuple[float, float]:
        """Return the factors of a nonlinear R-transform for the shift of an eigenvalue and for T."""
        pulls = np.sqrt(self.variances[i]) / self._gaps(i)
        pull = self._outside(pulls, without).sum() / math.sqrt(len(self.values) + self.rest)
        return self.law.nonlinearity(float(pull))

    def _terms(self, i: int, without: range, gaps: Values | None = None) -> Values:
        """Return the terms of T_i, (K,)."""
        gaps = self._gaps(i, gaps)
        return self._outside(self.variances[i] / gaps**2, without) * self._nonlinearity(i, without)[1]

    def exact(self, i: int, group: range) -> float:
        """Return an estimate, at least 0, of the exact eigenvalue of a member of a group."""
        shifts = self._outside(self.variances[i] / self._gaps(i), group)
        return max(0.0, float(self.values[i] - shifts.sum() * self._nonlinearity(i, group)[0]))

    @cached_property
    def _tangents(self) -> Values:
        """T of every eigenvalue, (K,), for a semicircle."""
        terms = np.stack([self.variances[i] / self._gaps(i) ** 2 for i in range(len(self.values))])
        np.fill_diagonal(terms, 0)
        terms[:, -1] *= 1 + self.rest
        tangents: Values = terms.sum(axis=1)
        return tangents

    def _isolated(self, i: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the eigenvalues that are isolated, disregarding eigenvalue i."""
        tangents: Values = self._tangents - self.variances[i] / self._gaps(i) ** 2
        return tangents < _MAX_T

    def _distance_deviations(self, i: int) -> Values:
        """Return the deviation of the distance of each eigenvalue from eigenvalue i, (K,)."""
        moves: Values = np.sqrt(self.variances[i]) * np.where(self._isolated(i), 2, math.sqrt(2))
        return moves

    def _has_close_neighbour(self, i: int, group: range, gap: float = GAP) -> bool:
        """Whether an isolated neighbour outside the group is too close to be distinguished."""
        near = np.abs(self.values - self.values[i]) < gap * np.sqrt(self.variances[i])
        near[group.start : group.stop] = False
        return bool((near & self._isolated(i)).any())

    def squared_cosine(self, group: range) -> tuple[float, float, float]:
        """Return the mean squared cosine of the span of a group with the exact span, and its interval."""
        cosines = np.array([self._squared_cosine(i, group) for i in group])
        value, low, high = map(float, cosines.mean(axis=0))
        return value, low, high

    def _squared_cosine(self, i: int, group: range) -> tuple[float, float, float]:
        terms = self._terms(i, group)
        total = float(terms.sum())
        if total < _NO_TANGENT:  # no other eigenvalues, or no noise
            return 1.0, 1.0, 1.0
        degrees = 1 / float(((terms / total) ** 2).sum()) / (1 + max(_EXCESS[kind] for kind in self.law.kinds))
        distances, moves = np.abs(self.values - self.values[i]), _Z * self._distance_deviations(i)
        most = float(self._terms(i, group, np.maximum(distances - moves, 0)).sum())
        least = float(self._terms(i, group, distances + moves).sum())
        low = 0.0 if self._has_close_neighbour(i, group) else 1 / (1 + most * _chi2(degrees, 1 - _TAIL))
        return 1 / (1 + total), low, 1 / (1 + self.sure * least * _chi2(degrees, _TAIL))

    def loadings(self, i: int, vectors: Values) -> Values | None:
        """Return the intervals of the loadings of a single counted component, (d, 2); None if unknown."""
        alone = range(i, i + 1)
        terms = self._terms(i, alone)
        tangent = float(terms.sum())
        if tangent >= _MAX_T or self._has_close_neighbour(i, alone, _LOADING_GAP):
            return None
        gaps = np.abs(self.values - self.values[i]) - self._distance_deviations(i) / 2
        narrowed = self._terms(i, alone, np.maximum(gaps, _LEAST * np.sqrt(self.variances[i])))
        deviations = np.sqrt(vectors**2 @ narrowed)
        loadings, size = vectors[:, i], len(vectors)
        widths = np.full(size, self._quantile(0.05))
        widths[np.argsort(-np.abs(loadings), kind="stable")[:_SELECTED]] = self._quantile(0.05 / size)
        ends = np.stack([loadings, loadings * math.sqrt(1 + tangent)])
        reach = widths * deviations
        interval: Values = np.column_stack([ends.min(axis=0) - reach, ends.max(axis=0) + reach])
        return np.clip(interval, -1, 1, out=interval)

    def _quantile(self, error: float) -> float:
        """Return the two-sided quantile of a linear function of the noise, in deviations."""
        if EdgeKind.LAPLACE in self.law.kinds:
            return -math.log(error) / math.sqrt(2)
        return NormalDist().inv_cdf(1 - error / 2)


def _chi2(degrees: float, p: float) -> float:
    """Return a quantile of a chi-squared variable divided by its degrees of freedom."""
    from scipy.special import gammaincinv  # noqa: PLC0415 - slow to import, rarely used

    return 2 * float(gammaincinv(degrees / 2, p)) / degrees
