"""What regressions among the same columns share: an inverse of their noisy second moment, corrected for the noise.

Two ways lead to one, as the plain inverse is useless where columns are nearly collinear.

**Ridge.** ``G = (A + L + shift)^-1``, as :mod:`dpdist.answers.regression` derives it.

**Principal components.** V holds the leading eigenvectors of the released moment about the mean, and W these and the
constant. They are taken as what they are, public directions: the estimand is the regression on the scores of the
bounded rows on *these* components, ``t0 = W (W^T A0 W)^-1 W^T b0``, and not on those of the exact matrix, which nobody
knows. Then ``G = W (W^T A W - D + shift)^-1 W^T``. Here D is what noise adds to the moment along V because V is where
the sum is largest: along an eigenvector of eigenvalue y it is ``Im(g R(g)) / Im g``, with R the R-transform of the
noise and g the Cauchy transform, at ``y - i eta``, of the eigenvalues that were left out
(:mod:`dpdist.answers.shrinkage`). The shift is that of the ridge, for noise of as many rows as W has columns.
Everything that follows from G, and the errors, are those of the ridge, with A - V D V^T for A. Only components are
taken that stand clear of the noise: above its edge, and of a moment without D above 2.5 times the edge of the noise on
as many columns.

To second order an entry of D is ``2 sum E_ij² / (y_i - y_j)`` over what was left out, with E the noise in the basis of
the eigenvectors. So it varies by ``8 v² sum (y_i - y_j)^-2`` itself, v the variance of an entry off the diagonal. This
is added to that of ``E u``. So is what a law adds along V whose entries depend on each other, as those of a Wishart
matrix do (:func:`dpdist.answers.shrinkage.tied`).

Measured (`benchmarks/answers.py`): intervals of coefficients hold in 91 % of releases or more on average, least where
weak components of a Wishart law come in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist._util.text import counted
from dpdist.answers.block import Block
from dpdist.answers.shrinkage import excess, excess_variance, tied
from dpdist.errors import DrownedError, UsageError
from dpdist.naming import parameter
from dpdist.pca.noise_edge import CONFIDENCE, NoiseLaw

Matrix = npt.NDArray[np.float64]
LARGER = "Take a larger epsilon or more rows."
_MOST_AMPLIFIED = 4.0
_CLEAR = 2.5


@dataclass(frozen=True)
class Along:
    """What is known of noise along leading eigenvectors.

    Attributes
    ----------
    leading
        V, (w, k), 0 for the constant.
    doubts
        (k,): variances of the diagonal of D.
    tied
        (k,): by which share the noise of products with the target varies more along them.
    """

    leading: Matrix
    doubts: Matrix
    tied: Matrix


@dataclass(frozen=True)
class Design:
    """The regressors of a block, the constant last.

    Attributes
    ----------
    places
        (w,): where they stand in the block.
    moment
        (w, w): their noisy second moment; less D along principal components.
    inverse
        G, (w, w).
    ridge
        What was added to the sum of squares of each regressor, in squared units of the bounded rows.
    shift
        What was added to correct for the noise, likewise.
    seen
        How many directions among the regressors vary more than the edge of the noise.
    components
        How many principal components they are; None: all directions, with the ridge.
    along
        What is known of these components; None without.
    """

    places: npt.NDArray[np.int64]
    moment: Matrix
    inverse: Matrix
    ridge: float
    shift: float
    seen: int
    components: int | None = None
    along: Along | None = None

    def doubt(self, solved: Matrix, variance: float) -> tuple[Matrix, float]:
        """Return what components add to the covariance of ``E u``, (w, w), and to the variance of ``u^T E u``."""
        if self.along is None:
            return np.zeros_like(self.moment), 0.0
        leading, squares = self.along.leading, (solved @ self.along.leading) ** 2
        more = self.along.doubts * squares + self.along.tied * variance * (1 + float(solved @ solved))
        return (leading * more) @ leading.T, float(self.along.doubts @ squares**2)


def about_mean_of(block: Block, count: int) -> Matrix:
    """Return the moment of the first columns of a block about their mean, (count, count), if the release has one."""
    moment = block.moment[:count, :count]
    if block.kappa:
        moment = moment - np.outer(block.moment[:count, -1], block.moment[:count, -1]) / block.moment[-1, -1]
    return moment


def edge_of(block: Block, count: int) -> float:
    """Return the edge of the noise on the first columns of a block and the constant, at confidence 0.95."""
    return block.law(count + bool(block.kappa)).edge_at(CONFIDENCE)


def ridge_design(block: Block, count: int, ridge: float | None) -> Design:
    """Return the design of the first columns of a block, with a ridge; None: none, or the edge of the noise.

    None is needed where the columns vary 2.5 times as much as that edge along every direction.
    """
    places = _places(block, count)
    moment = block.moment[np.ix_(places, places)]
    law, edge = block.law(len(places)), edge_of(block, count)
    spread = np.linalg.eigvalsh(about_mean_of(block, count))
    taken = (0.0 if spread[0] > _CLEAR * edge else edge) if ridge is None else float(ridge)
    ridged = moment.copy()
    ridged[range(count), range(count)] += taken
    values, vectors = np.linalg.eigh(ridged)
    shift = shift_of(values, law)
    if shift is None and taken >= edge:
        raise DrownedError(f"The noise of this release drowns all columns to regress on. {LARGER}")
    if shift is None or (taken < edge and spread[0] + taken <= edge):
        raise UsageError(
            f"With a ridge of {taken:g} the columns may be collinear, as far as the noise lets see: take "
            f"{parameter('ridge', 'auto')}, which is {edge:.6g} here, or leave out columns that are nearly sums of "
            f"others ({parameter('on')})."
        )
    inverse = (vectors / (values + shift)) @ vectors.T
    return Design(places, moment, inverse, taken, shift, int((spread > edge).sum()))


def principal_design(block: Block, count: int, components: int | None) -> Design:
    """Return the design of principal components of the first columns of a block; None: all above the noise."""
    places = _places(block, count)
    law, edge = block.law(len(places)), edge_of(block, count)
    values, vectors = np.linalg.eigh(about_mean_of(block, count))
    seen = int((values > edge).sum())
    if components is not None and not 1 <= components <= count:
        raise UsageError(
            f"{components} components were asked for, of {counted(count, 'column')}.", parameter="components"
        )
    clear, along = seen, values[:0]
    while clear:
        along = values[count - clear :] - excess(values[count - clear :], values[: count - clear], law)
        if along.min() > _CLEAR * edge_of(block, clear):
            break
        clear -= 1
    if not clear:
        raise DrownedError(
            f"No component of the columns to regress on stands clear of the noise of this release. {LARGER}"
        )
    k = clear if components is None else components
    if k > clear:
        raise DrownedError(
            f"{k} components were asked for. Of {count} among the columns no more than {clear} stand clear of the "
            f"noise of this release. Ask for {clear} or fewer ({parameter('components')}), or leave that out: a ridge "
            f"takes all directions. {LARGER}"
        )
    leading = vectors[:, count - k :]
    if k < clear:
        along = values[count - k :] - excess(values[count - k :], values[: count - k], law)
    moment = block.moment[np.ix_(places, places)]
    moment[:count, :count] -= (leading * (values[count - k :] - along)) @ leading.T
    basis = np.zeros((len(places), k + bool(block.kappa)))
    basis[:count, :k] = leading
    if block.kappa:
        basis[-1, -1] = 1
    among, turned = np.linalg.eigh(basis.T @ moment @ basis)
    shift = shift_of(among, block.law(basis.shape[1]))
    if shift is None:
        raise AssertionError("components that stand clear of the noise are amplified little")
    whole = basis @ turned
    inverse = (whole / (among + shift)) @ whole.T
    inside, outside = values[count - k :], values[: count - k]
    known = Along(basis[:, :k], excess_variance(inside, outside, law), tied(inside, outside, law))
    return Design(places, moment, inverse, 0.0, shift, seen, k, known)


def _places(block: Block, count: int) -> npt.NDArray[np.int64]:
    return np.array([*range(count), *([len(block.moment) - 1] if block.kappa else [])])


def shift_of(values: Matrix, law: NoiseLaw) -> float | None:
    """Return what to add to a noisy matrix so that its inverse is on average that of the exact one; None if nothing."""
    from scipy.optimize import brentq  # noqa: PLC0415 - SciPy takes its time, and few need it

    bottom = -float(values.min())

    def mean(shift: float) -> float:
        return float((1 / (values + shift)).mean())

    def off(shift: float) -> float:  # grows with the shift: the mean falls, and R grows
        return shift + float(law.transform(-mean(shift)))

    near = bottom + 1e-9 * (law.threshold + abs(bottom))
    far = bottom + law.threshold * (1 + 1e-9) + 1e-9 * abs(bottom)
    low = near if mean(near) <= law.critical else float(brentq(lambda at: mean(at) - law.critical, near, far))
    if off(low) > 0:
        return None
    high = max(low, -float(law.transform(-law.critical))) + law.edge
    shift = float(brentq(off, low, high))
    slope = law.slope(-mean(shift)) + 1 / mean(shift) ** 2
    amplified = 1 + slope * float((1 / (values + shift) ** 2).mean())
    return shift if amplified <= _MOST_AMPLIFIED else None
