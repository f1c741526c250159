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

**Partial correlations.** That of two columns is that of what the others do not explain of them. Let S0 be the exact sum
of squares and products of the bounded rows about their mean, and ``P0 = (S0 + ridge I)^-1``. The estimand is

    r_ij = -P0_ij / sqrt(P0_ii P0_jj).

There is no ridge where every direction of the columns varies more than twice the edge of the noise. There is one, at
the edge, where some do not: then columns may be sums of others, as far as the noise lets see, and of such columns no
partial correlation exists. It is that of the columns after independent noise of this variance was added to each, so it
lies nearer to 0. Which of the two it is follows from the release, and is told.

P is the block of the columns in ``G = (A + L + shift)^-1``, A the released moment of columns and constant, and L the
ridge, 0 for the constant (above). To first order ``dG = -G E G``. With g_i the rows of G and
``w_i = g_i / sqrt(P_ii)``, r_ij moves by ``tr(B E)`` with

    B  =  (w_i w_j^T + w_j w_i^T) / 2  +  r/2 (w_i w_i^T + w_j w_j^T),

whose variance is that of :class:`dpdist.answers.block.EntryNoise`. An interval is 1.96 standard deviations to each
side, within -1 and 1. It is about noise alone, and rows shortened to the clip norm.

Measured (`benchmarks/answers.py`): it holds in 93 % of releases or more on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist._util.text import counted
from dpdist.answers.block import Block, EntryNoise, block_of, correlation_ends, require_about
from dpdist.answers.shrinkage import excess, excess_variance, tied
from dpdist.errors import BelowNoiseError, UsageError
from dpdist.naming import parameter
from dpdist.pca.noise_edge import CONFIDENCE, NoiseLaw
from dpdist.release.artefact import Release

Matrix = npt.NDArray[np.float64]
LARGER = "Take a larger epsilon or more rows."
_MOST_AMPLIFIED = 4.0
_CLEAR = 2.5
_CLEAR_OF_ALL = 2.0
"""Edges of the noise that the least variable direction varies at least, where no ridge is taken."""


@dataclass(frozen=True)
class Along:
    """What is known of noise along leading eigenvectors."""

    leading: Matrix  # V, (w, k), 0 for the constant
    doubts: Matrix  # (k,): variances of the diagonal of D
    tied: Matrix  # (k,): by which share the noise of products with the target varies more along them


@dataclass(frozen=True)
class Design:
    """The regressors of a block, the constant last; ridge and shift in squared units of the bounded rows."""

    places: npt.NDArray[np.int64]  # (w,): where they stand in the block
    moment: Matrix  # (w, w): their noisy second moment; less D along principal components
    inverse: Matrix  # G, (w, w)
    ridge: float  # what was added to the sum of squares of each regressor
    shift: float  # what was added to correct for the noise
    seen: int  # directions among the regressors that vary more than the edge of the noise
    components: int | None = None  # how many principal components they are; None: all directions, with the ridge
    along: Along | None = None  # what is known of these components

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
        raise BelowNoiseError(f"The noise of this release drowns all columns to regress on. {LARGER}")
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

    def without_noise(k: int) -> Matrix:
        leading = values[count - k :]
        return leading - excess(leading, values[: count - k], law)

    clear = next((k for k in range(seen, 0, -1) if without_noise(k).min() > _CLEAR * edge_of(block, k)), 0)
    if not clear:
        raise BelowNoiseError(
            f"No component of the columns to regress on stands clear of the noise of this release. {LARGER}"
        )
    k = clear if components is None else components
    if k > clear:
        raise BelowNoiseError(
            f"{k} components were asked for. Of {count} among the columns no more than {clear} stand clear of the "
            f"noise of this release. Ask for {clear} or fewer ({parameter('components')}), or leave that out: a ridge "
            f"takes all directions. {LARGER}"
        )
    inside, outside, leading = values[count - k :], values[: count - k], vectors[:, count - k :]
    moment = block.moment[np.ix_(places, places)]
    moment[:count, :count] -= (leading * (inside - without_noise(k))) @ leading.T
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


@dataclass(frozen=True)
class Partial:
    """Partial correlations of some columns of a release, each given all others of them."""

    matrix: Matrix  # (p, p), symmetric, 1 on the diagonal, from -1 to 1
    errors: Matrix  # (p, p): standard deviations of what the noise makes of them
    ridge: float  # added to the sum of squares of each column, in squared units of the bounded rows; 0: nothing
    seen: int  # how many directions among the columns vary more than the edge of the noise

    @property
    def intervals(self) -> Matrix:
        """(p, p, 2): between which each lies in 95 of 100 releases."""
        return correlation_ends(self.matrix, self.errors)


def partial_correlation(release: Release, columns: Sequence[int] | npt.NDArray[np.int64]) -> Partial:
    """Return the partial correlations of some columns of a release."""
    require_about(release)
    block = block_of(release, columns)
    p = len(columns)
    if block.rows is not None and block.rows < p:
        raise UsageError(f"There are fewer rows than columns, {p}, so each column is a sum of others.")
    least = float(np.linalg.eigvalsh(about_mean_of(block, p))[0])
    design = ridge_design(block, p, 0.0 if least > _CLEAR_OF_ALL * edge_of(block, p) else None)
    if not design.seen:
        raise BelowNoiseError(f"No direction of the columns varies more than the noise of this release. {LARGER}")
    precision = np.diagonal(design.inverse)[:p]
    w = design.inverse[:p] / np.sqrt(precision)[:, None]
    found = -design.inverse[:p, :p] / np.sqrt(np.outer(precision, precision))
    found[np.diag_indices(p)] = 1
    variances = _variances(block.noise_of(p), w, found)
    return Partial(np.clip((found + found.T) / 2, -1, 1), np.sqrt(np.maximum(variances, 0)), design.ridge, design.seen)


def _variances(noise: EntryNoise, w: Matrix, r: Matrix) -> Matrix:
    """Return the variance of ``tr(B E)`` of each partial correlation; on the diagonal of r anything."""
    inner, squared = w @ w.T, w**2
    lengths = np.diagonal(inner)
    both = lengths[:, None] + lengths
    squares = (np.outer(lengths, lengths) + inner**2) / 2 + r * inner * both
    squares += r**2 / 4 * (lengths[:, None] ** 2 + lengths**2 + 2 * inner**2)
    fourth, cubed = squared @ squared.T, (w * squared) @ w.T
    own = np.diagonal(fourth)
    diagonal = fourth + r * (cubed + cubed.T) + r**2 / 4 * (own[:, None] + own + 2 * fourth)
    trace = inner + r / 2 * both
    if noise.exact is not None:
        last = w[:, noise.exact]
        corner = np.outer(last, last) + r / 2 * (last[:, None] ** 2 + last**2)
        squares, diagonal, trace = squares - corner**2, diagonal - corner**2, trace - corner
    found: Matrix = 2 * noise.off * squares + noise.own * diagonal + noise.shared * trace**2
    found[np.diag_indices(len(r))] = 0
    return found
