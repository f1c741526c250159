"""How well released components align with the exact ones: post-processing of a release.

Let the released matrix be A + E, with eigenvalues l and eigenvectors v, and let ``s_ij²`` be the variance of the error
between eigenvectors i and j: of the noise, and of rounding and of a private mean where there are such
(:mod:`dpdist.answers.block`). For noise that is asymptotically free of A, whatever the rest of the spectrum is,

    T_i = sum over j != i of s_ij² / (l_i - l_j)²,        r_i = 1 / (1 + T_i)

estimates the squared cosine of component i with the exact one. This is the derivative of the subordination function of
the sum (Biane 1998; Ledoit & Péché 2011), taken at the *released* spectrum without its own term. No edge, background or
strength is needed. By the same argument the exact eigenvalue is about ``l_i - sum s_ij²/(l_i - l_j)``. For a law whose
R-transform R is not linear, T and this sum are multiplied by ``R'(g)/R'(0)`` and ``R(g)/(g R'(0))``, g the Cauchy
transform of the others (:mod:`dpdist.pca.noise_edge`). Eigenvalues that were not computed count as the least one that
was.

Two cases no formula in l alone can tell: equal eigenvalues, and the top of a bulk of noise or background. So r is told
only of components that are *counted* and *grouped*.

**Count.** Let U_q be T_q over ``j > q`` only, and m = d - q + 1. Starting with k = 0, the least q among k+1 .. k+5 with
``U_q < min(1/2, c (sqrt(m) - 1))`` becomes k, until there is none: c = 0.08 for noise of a Wishart or nuclear-norm law,
0.1 for others. So a counted component has r above 2/3 with respect to what is below it. An eigenvalue that is not 3 of
its deviations above 0 is none. Where all but the last are counted, the last one is, too: the others determine it.
Where more than five are equal and far above all others, chance may set the first one apart: in one release of six,
what is told of it is false.

**Groups.** The counted ones are split where two neighbours are 4.9 s_ij apart or more, which is the 0.95-quantile of
the gap of two equal eigenvalues. Of a group S the mean of ``1/(1 + T_i)`` is told, with j outside S: the mean squared
cosine of its span with that of the exact ones. Its single members are not told.

**Interval.** Gaps are narrowed and widened by 1.64 times the deviation of an eigenvalue's distance, 2 s_ij for a
neighbour that stands alone (its own T, without this one, below 1/2) and sqrt(2) s_ij in a bulk. T is taken to vary like
a chi-squared of ``T² / (sum of squares of its terms)`` degrees of freedom, fewer where the squares of the law's entries
vary more than normal ones (:data:`_EXCESS`). The lower end is 0 where a neighbour that stands alone is within 4.9 s_ij.

**Loadings.** With ``c = 1/sqrt(1 + T)``, a loading of the exact component lies in ``[min(v, v/c), max(v, v/c)] -+ w
sd``, ``sd² = sum over j of v_j² s_ij² / max(gap - half of that deviation, .3 s_ij)²``. w is the quantile of a normal
variable, or of a Laplace one for such noise, at confidence .95; of the ten largest loadings, which are shown because
they are large, at ``1 - .05 * 5/d`` (Benjamini & Yekutieli 2005, of five that are shown). They are told of single
components with T < 1/2 that have no neighbour that stands alone within 6.5 s_ij: two equal ones are farther apart in
one release of 200.

c and 4.9 were fitted on matrices of noise alone. How often all of this holds: `benchmarks/coverage.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from dpdist.mechanisms.noise_law import EdgeKind
from dpdist.pca.noise_edge import CONFIDENCE, NoiseLaw

Values = npt.NDArray[np.float64]
GAP = 4.9
"""Deviations between neighbours from which on they are told apart."""
_LOADING_GAP = 6.5
"""Those from which on their loadings are told."""
REACH = 5
"""Eigenvalues that are looked at beyond the last counted one: that many may be equal."""
_MOST_T = 0.5
_CUT = 0.1
_CUT_WISHART = 0.08
_Z = 1.64
_TAIL = 0.05
_LEAST = 0.3
FAR = 3.0
"""Deviations of an eigenvalue beyond which it is not 0."""
_LEAST_GAP = 1e-6
_NO_TANGENT = 1e-30
_SELECTED = 10
"""Loadings of a component, the largest, that may be shown because they are large."""
_SHOWN = 5
"""As how few they may be shown."""
_WISHART = {EdgeKind.WISHART, EdgeKind.TWO_SIDED_WISHART, EdgeKind.NUCLEAR}
_EXCESS = {
    EdgeKind.NORMAL: 0.0,
    EdgeKind.LAPLACE: 2.0,
    EdgeKind.FROBENIUS: 0.5,
    EdgeKind.NUCLEAR: 0.7,
    EdgeKind.WISHART: 1.0,
    EdgeKind.TWO_SIDED_WISHART: 0.5,
}
"""What each law adds to the relative variance of a sum of squares of its entries, that of normal ones being 1."""


def cut(size: int, law: NoiseLaw) -> float:
    """Return what U_q stays below if component q is counted: of it and the following, ``size`` in all."""
    return min(_MOST_T, (_CUT_WISHART if law.kinds & _WISHART else _CUT) * (math.sqrt(size) - 1))


@dataclass(frozen=True)
class Spectrum:
    """Released eigenvalues and the noise between their eigenvectors."""

    values: Values  # (K,) float64, descending
    variances: Values  # (K, K): s_ij², in squared units of the values
    law: NoiseLaw
    rest: int = 0  # how many eigenvalues were not computed, none of them above the last one
    sure: float = 1.0  # share of the variances that is there for sure; what rounding adds may be less
    # (K - 1,): variance of the distance of each eigenvalue from the next one, where that may be more than four times
    # that between their eigenvectors, which is what it is of noise with independent entries
    gaps: Values | None = None

    def counted(self) -> int:
        """Return how many of the largest components are counted."""
        size, last = len(self.values) + self.rest, len(self.values) - 1
        if size == 1:  # there is one direction
            return int(self.values[0] > self.law.edge_at(CONFIDENCE))
        positive = self.values > FAR * np.sqrt(np.diagonal(self.variances))  # what is not holds nothing
        count = 0
        while True:
            for q in range(count, min(count + REACH, last)):
                if positive[q] and self._terms(q, range(q + 1)).sum() < cut(size - q, self.law):
                    count = q + 1
                    break
            else:
                # one direction is left, which the others determine
                return count + int(count == last and not self.rest and positive[last])

    def groups(self, count: int) -> tuple[range, ...]:
        """Return the counted components in groups of those that cannot be told apart."""
        distances = -np.diff(self.values[:count])
        moved = np.diagonal(self.variances, 1)
        moved = moved if self.gaps is None else np.maximum(moved, self.gaps / 4)
        cuts = (1 + np.flatnonzero(distances >= GAP * np.sqrt(moved[: max(0, count - 1)]))).tolist()
        return tuple(range(a, b) for a, b in zip([0, *cuts], [*cuts, count], strict=True) if a < b)

    def _gaps(self, i: int, gaps: Values | None = None) -> Values:
        """Return by how much eigenvalue i lies above each, (K,), or other gaps; none of them is 0."""
        gaps = self.values[i] - self.values if gaps is None else gaps
        least = _LEAST_GAP * np.sqrt(self.variances[i])
        return np.where(np.abs(gaps) < least, least, gaps)

    def _outside(self, each: Values, without: range) -> Values:
        """Return what each eigenvalue adds, of those outside a range; the last also for what was not computed."""
        each[-1] *= 1 + self.rest
        each[without.start : without.stop] = 0
        return each

    def _stretched(self, i: int, without: range) -> tuple[float, float]:
        """Return by what the law multiplies the shift of an eigenvalue, and T."""
        pulls = np.sqrt(self.variances[i]) / self._gaps(i)
        pull = self._outside(pulls, without).sum() / math.sqrt(len(self.values) + self.rest)
        return self.law.stretched(float(pull))

    def _terms(self, i: int, without: range, gaps: Values | None = None) -> Values:
        """Return the terms of T_i, (K,)."""
        gaps = self._gaps(i, gaps)
        return self._outside(self.variances[i] / gaps**2, without) * self._stretched(i, without)[1]

    def exact(self, i: int, group: range) -> float:
        """Return about what the exact eigenvalue of a member of a group is; not below 0."""
        shifts = self._outside(self.variances[i] / self._gaps(i), group)
        return max(0.0, float(self.values[i] - shifts.sum() * self._stretched(i, group)[0]))

    @cached_property
    def _tangents(self) -> Values:
        """T of every eigenvalue, (K,), as of a semicircle."""
        terms = np.stack([self.variances[i] / self._gaps(i) ** 2 for i in range(len(self.values))])
        np.fill_diagonal(terms, 0)
        terms[:, -1] *= 1 + self.rest
        return terms.sum(axis=1)

    def _alone(self, i: int) -> npt.NDArray[np.bool_]:
        """Say which eigenvalues stand alone, but for eigenvalue i."""
        others: Values = self._tangents - self.variances[i] / self._gaps(i) ** 2
        return others < _MOST_T

    def _moves(self, i: int) -> Values:
        """Return the deviation of the distance of each eigenvalue from eigenvalue i, (K,)."""
        found: Values = np.sqrt(self.variances[i]) * np.where(self._alone(i), 2, math.sqrt(2))
        return found

    def _crowded(self, i: int, group: range, gap: float = GAP) -> bool:
        """Say whether a neighbour outside the group that stands alone is too near to be told apart."""
        near = np.abs(self.values - self.values[i]) < gap * np.sqrt(self.variances[i])
        near[group.start : group.stop] = False
        return bool((near & self._alone(i)).any())

    def squared_cosine(self, group: range) -> tuple[float, float, float]:
        """Return the mean squared cosine of the span of a group with that of the exact ones, and an interval of it."""
        told = np.array([self._squared_cosine(i, group) for i in group])
        value, low, high = map(float, told.mean(axis=0))
        return value, low, high

    def _squared_cosine(self, i: int, group: range) -> tuple[float, float, float]:
        terms = self._terms(i, group)
        total = float(terms.sum())
        if total < _NO_TANGENT:  # there is nothing else, or no noise
            return 1.0, 1.0, 1.0
        degrees = 1 / float(((terms / total) ** 2).sum()) / (1 + max(_EXCESS[kind] for kind in self.law.kinds))
        distances, moves = np.abs(self.values - self.values[i]), _Z * self._moves(i)
        most = float(self._terms(i, group, np.maximum(distances - moves, 0)).sum())
        least = float(self._terms(i, group, distances + moves).sum())
        low = 0.0 if self._crowded(i, group) else 1 / (1 + most * _chi2(degrees, 1 - _TAIL))
        return 1 / (1 + total), low, 1 / (1 + self.sure * least * _chi2(degrees, _TAIL))

    def loadings(self, i: int, vectors: Values) -> Values | None:
        """Return between what ends the loadings of a single counted component lie, (d, 2); None: that is not told."""
        alone = range(i, i + 1)
        terms = self._terms(i, alone)
        tangent = float(terms.sum())
        if tangent >= _MOST_T or self._crowded(i, alone, _LOADING_GAP):
            return None
        gaps = np.abs(self.values - self.values[i]) - self._moves(i) / 2
        narrowed = self._terms(i, alone, np.maximum(gaps, _LEAST * np.sqrt(self.variances[i])))
        deviations = np.sqrt(vectors**2 @ narrowed)
        seen, size = vectors[:, i], len(vectors)
        widths = np.full(size, self._quantile(0.05))
        widths[np.argsort(-np.abs(seen), kind="stable")[:_SELECTED]] = self._quantile(0.05 * min(_SHOWN, size) / size)
        ends = np.stack([seen, seen * math.sqrt(1 + tangent)])
        reach = widths * deviations
        interval: Values = np.column_stack([ends.min(axis=0) - reach, ends.max(axis=0) + reach])
        return np.clip(interval, -1, 1, out=interval)

    def _quantile(self, error: float) -> float:
        """Return how many deviations a linear function of the noise exceeds with this probability, either way."""
        if EdgeKind.LAPLACE in self.law.kinds:
            return -math.log(error) / math.sqrt(2)
        return NormalDist().inv_cdf(1 - error / 2)


def _chi2(degrees: float, p: float) -> float:
    """Return a quantile of a chi-squared variable over its degrees of freedom."""
    from scipy.special import gammaincinv  # noqa: PLC0415 - SciPy takes its time, and few need it

    return 2 * float(gammaincinv(degrees / 2, p)) / degrees
