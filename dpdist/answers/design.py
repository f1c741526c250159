"""The shared part of regressions on the same columns: an inverse of the second moment, corrected for the noise.

The plain inverse is useless if columns are nearly collinear. There are two alternatives.

**Ridge.** ``G = (A + L + shift)^-1``, derived in :mod:`dpdist.answers.regression`.

**Principal components.** V contains the leading eigenvectors of the released moment about the mean, and W these and the
constant. They are public directions: the estimand is the regression on the scores of the bounded rows on *these*
components, ``t0 = W (W^T A0 W)^-1 W^T b0``, not on those of the exact matrix, which is unknown. Then
``G = W (W^T A W - D + shift)^-1 W^T``. Here D is the excess of the moment along V, because V maximises the sum with the
noise: along an eigenvector of eigenvalue y it is ``Im(g R(g)) / Im g``, with R the R-transform of the noise and g the
Cauchy transform, at ``y - i eta``, of the eigenvalues left out (:mod:`dpdist.answers.shrinkage`). The shift is that of
the ridge, for noise with as many rows as W has columns. All results from G, and their errors, are those of the ridge,
with A - V D V^T for A. Only components clear of the noise are used: above its edge, and, after subtracting D, above 2.5
times the edge of the noise on the same number of columns.

To second order an entry of D is ``2 sum E_ij² / (y_i - y_j)`` over the directions left out, with E the noise in the
basis of the eigenvectors. So its variance is ``8 v² sum (y_i - y_j)^-2``, v the variance of an entry off the diagonal.
This is added to the variance of ``E u``, as is the increase along V from noise with dependent entries, such as a
Wishart matrix (:func:`dpdist.answers.shrinkage.tied`).

Measured (`benchmarks/answers.py`): intervals of coefficients hold in 91 % of releases or more on average, least with
weak components of a Wishart distribution.

**Partial correlations.** The partial correlation of two columns is the correlation of their residuals from all others.
Let S0 be the exact sum of squares and products of the bounded rows about their mean, and ``P0 = (S0 + ridge I)^-1``.
The estimand is

    r_ij = -P0_ij / sqrt(P0_ii P0_jj).

There is no ridge if every direction of the columns varies more than twice the edge of the noise. Otherwise the ridge is
the edge: given the noise, columns may be sums of others, and then partial correlations do not exist. With the ridge
they are those of the columns plus independent noise of this variance, and closer to 0. The release determines the case,
and the result reports it.

P is the block of the columns in ``G = (A + L + shift)^-1``, A the released moment of columns and constant, and L the
ridge, 0 for the constant (above). To first order ``dG = -G E G``. With g_i the rows of G and
``w_i = g_i / sqrt(P_ii)``, r_ij changes by ``tr(B E)`` with

    B  =  (w_i w_j^T + w_j w_i^T) / 2  +  r/2 (w_i w_i^T + w_j w_j^T),

and :class:`dpdist.answers.block.EntryNoise` has its variance. An interval is 1.96 standard deviations to each side,
clipped to [-1, 1]. It accounts for noise only, for rows clipped to the clip norm.

Measured (`benchmarks/answers.py`): it holds in 93 % of releases or more on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist.answers.block import Block, EntryNoise, block_of, correlation_ends, require_about
from dpdist.answers.noise_edge import CONFIDENCE, NoiseLaw
from dpdist.answers.shrinkage import excess, excess_variance, tied
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.naming import parameter
from dpdist.core.release.artefact import Release
from dpdist.core.text import counted

Matrix = npt.NDArray[np.float64]
LARGER = "Use a larger epsilon or more rows."
_MAX_AMPLIFICATION = 4.0
_CLEAR = 2.5
_CLEAR_OF_ALL = 2.0
"""Least variance of every direction, in edges of the noise, for which no ridge is used."""


@dataclass(frozen=True)
class Along:
    """The additional noise along leading eigenvectors."""

    leading: Matrix  # V, (w, k), 0 for the constant
    excess_variances: Matrix  # (k,): variances of the diagonal of D
    tied: Matrix  # (k,): relative increase of the variance of products with the target


@dataclass(frozen=True)
class Design:
    """The regressors of a block, the constant last; ridge and shift in squared units of the bounded rows."""

    indices: npt.NDArray[np.int64]  # (w,): their indices in the block
    moment: Matrix  # (w, w): their noisy second moment; less D along principal components
    inverse: Matrix  # G, (w, w)
    ridge: float  # added to the sum of squares of each regressor
    shift: float  # added to correct for the noise
    seen: int  # number of directions among the regressors above the edge of the noise
    components: int | None = None  # number of principal components; None: all directions, with the ridge
    along: Along | None = None  # additional noise along these components

    def component_noise(self, solved: Matrix, variance: float) -> tuple[Matrix, float]:
        """Return the contributions of components to ``Cov(E u)``, (w, w), and to ``Var(u^T E u)``."""
        if self.along is None:
            return np.zeros_like(self.moment), 0.0
        leading, squares = self.along.leading, (solved @ self.along.leading) ** 2
        added = self.along.excess_variances * squares + self.along.tied * variance * (1 + float(solved @ solved))
        return (leading * added) @ leading.T, float(self.along.excess_variances @ squares**2)


def centred_moment(block: Block, count: int) -> Matrix:
    """Return the moment of the first columns of a block, (count, count), about the mean if it was released."""
    moment = block.moment[:count, :count]
    if block.kappa:
        moment = moment - np.outer(block.moment[:count, -1], block.moment[:count, -1]) / block.moment[-1, -1]
    return moment


def edge_of(block: Block, count: int) -> float:
    """Return the edge of the noise of the first columns of a block and the constant, at confidence 0.95."""
    return block.law(count + bool(block.kappa)).edge_at(CONFIDENCE)


def ridge_design(block: Block, count: int, ridge: float | None) -> Design:
    """Return the design of the first columns of a block with a ridge; None: 0 if clear of the noise, else its edge."""
    indices = _indices(block, count)
    moment = block.moment[np.ix_(indices, indices)]
    law, edge = block.law(len(indices)), edge_of(block, count)
    spread = np.linalg.eigvalsh(centred_moment(block, count))
    used = (0.0 if spread[0] > _CLEAR * edge else edge) if ridge is None else float(ridge)
    ridged = moment.copy()
    ridged[range(count), range(count)] += used
    values, vectors = np.linalg.eigh(ridged)
    shift = shift_of(values, law)
    if shift is None and used >= edge:
        raise BelowNoiseError(f"All regressors are below the noise of this release. {LARGER}")
    if shift is None or (used < edge and spread[0] + used <= edge):
        raise UsageError(
            f"Given the noise, the columns may be collinear with ridge {used:g}. Use {parameter('ridge', 'auto')}, "
            f"which is {edge:.6g} here, or leave out columns that are nearly sums of others ({parameter('on')})."
        )
    inverse = (vectors / (values + shift)) @ vectors.T
    return Design(indices, moment, inverse, used, shift, int((spread > edge).sum()))


def principal_design(block: Block, count: int, components: int | None) -> Design:
    """Return the design of principal components of the first columns of a block; None: all above the noise."""
    indices = _indices(block, count)
    law, edge = block.law(len(indices)), edge_of(block, count)
    values, vectors = np.linalg.eigh(centred_moment(block, count))
    above_edge = int((values > edge).sum())
    if components is not None and not 1 <= components <= count:
        raise UsageError(
            f"{components} components were requested of {counted(count, 'column')}.", parameter="components"
        )

    def without_noise(k: int) -> Matrix:
        leading = values[count - k :]
        return leading - excess(leading, values[: count - k], law)

    clear = next((k for k in range(above_edge, 0, -1) if without_noise(k).min() > _CLEAR * edge_of(block, k)), 0)
    if not clear:
        raise BelowNoiseError(f"No component of the regressors is clear of the noise of this release. {LARGER}")
    k = clear if components is None else components
    if k > clear:
        raise BelowNoiseError(
            f"{k} components were requested, but only {clear} of {count} are clear of the noise of this release. Ask "
            f"for at most {clear} ({parameter('components')}), or use a ridge instead, which uses all directions. "
            f"{LARGER}"
        )
    inside, outside, leading = values[count - k :], values[: count - k], vectors[:, count - k :]
    moment = block.moment[np.ix_(indices, indices)]
    moment[:count, :count] -= (leading * (inside - without_noise(k))) @ leading.T
    basis = np.zeros((len(indices), k + bool(block.kappa)))
    basis[:count, :k] = leading
    if block.kappa:
        basis[-1, -1] = 1
    among, turned = np.linalg.eigh(basis.T @ moment @ basis)
    shift = shift_of(among, block.law(basis.shape[1]))
    if shift is None:
        raise AssertionError("components clear of the noise are amplified little")
    directions = basis @ turned
    inverse = (directions / (among + shift)) @ directions.T
    along = Along(basis[:, :k], excess_variance(inside, outside, law), tied(inside, outside, law))
    return Design(indices, moment, inverse, 0.0, shift, above_edge, k, along)


def _indices(block: Block, count: int) -> npt.NDArray[np.int64]:
    return np.array([*range(count), *([len(block.moment) - 1] if block.kappa else [])])


def shift_of(values: Matrix, law: NoiseLaw) -> float | None:
    """Return the shift of a noisy matrix that makes its inverse unbiased for the exact one; None if there is none."""
    from scipy.optimize import brentq  # noqa: PLC0415 - slow to import, rarely used

    bottom = -float(values.min())

    def mean(shift: float) -> float:
        return float((1 / (values + shift)).mean())

    def off(shift: float) -> float:  # increasing: the mean falls and R grows
        return shift + float(law.transform(-mean(shift)))

    near = bottom + 1e-9 * (law.threshold + abs(bottom))
    far = bottom + law.threshold * (1 + 1e-9) + 1e-9 * abs(bottom)
    low = near if mean(near) <= law.critical else float(brentq(lambda x: mean(x) - law.critical, near, far))
    if off(low) > 0:
        return None
    high = max(low, -float(law.transform(-law.critical))) + law.edge
    shift = float(brentq(off, low, high))
    slope = law.slope(-mean(shift)) + 1 / mean(shift) ** 2
    amplified = 1 + slope * float((1 / (values + shift) ** 2).mean())
    return shift if amplified <= _MAX_AMPLIFICATION else None


@dataclass(frozen=True)
class Partial:
    """Partial correlations of some columns of a release, each given all the others."""

    matrix: Matrix  # (p, p), symmetric, 1 on the diagonal, from -1 to 1
    errors: Matrix  # (p, p): standard deviations due to the noise
    ridge: float  # added to the sum of squares of each column, in squared units of the bounded rows; 0: none
    seen: int  # number of directions among the columns above the edge of the noise

    @property
    def intervals(self) -> Matrix:
        """(p, p, 2): 95 % intervals over repeated releases."""
        return correlation_ends(self.matrix, self.errors)


def partial_correlation(release: Release, columns: Sequence[int] | npt.NDArray[np.int64]) -> Partial:
    """Return the partial correlations of some columns of a release."""
    require_about(release)
    block = block_of(release, columns)
    p = len(columns)
    if block.rows is not None and block.rows < p:
        raise UsageError(
            f"There are fewer rows than columns ({p}), so each column is a combination of others. Name fewer columns."
        )
    least = float(np.linalg.eigvalsh(centred_moment(block, p))[0])
    design = ridge_design(block, p, 0.0 if least > _CLEAR_OF_ALL * edge_of(block, p) else None)
    if not design.seen:
        raise BelowNoiseError(f"No direction of the columns varies more than the noise of this release. {LARGER}")
    precision = np.diagonal(design.inverse)[:p]
    w = design.inverse[:p] / np.sqrt(precision)[:, None]
    partials = -design.inverse[:p, :p] / np.sqrt(np.outer(precision, precision))
    partials[np.diag_indices(p)] = 1
    variances = _variances(block.noise_of(p), w, partials)
    return Partial(
        np.clip((partials + partials.T) / 2, -1, 1), np.sqrt(np.maximum(variances, 0)), design.ridge, design.seen
    )


def _variances(noise: EntryNoise, w: Matrix, r: Matrix) -> Matrix:
    """Return the variance of ``tr(B E)`` for each partial correlation."""
    inner, squared = w @ w.T, w**2
    lengths = np.diagonal(inner)
    both = lengths[:, None] + lengths
    squares = (np.outer(lengths, lengths) + inner**2) / 2 + r * inner * both
    squares += r**2 / 4 * (lengths[:, None] ** 2 + lengths**2 + 2 * inner**2)
    fourth, cubed = squared @ squared.T, (w * squared) @ w.T
    fourth_powers = np.diagonal(fourth)
    diagonal = fourth + r * (cubed + cubed.T) + r**2 / 4 * (fourth_powers[:, None] + fourth_powers + 2 * fourth)
    trace = inner + r / 2 * both
    if noise.exact is not None:
        last = w[:, noise.exact]
        corner = np.outer(last, last) + r / 2 * (last[:, None] ** 2 + last**2)
        squares, diagonal, trace = squares - corner**2, diagonal - corner**2, trace - corner
    variances: Matrix = 2 * noise.off * squares + noise.diagonal_excess * diagonal + noise.shared * trace**2
    variances[np.diag_indices(len(r))] = 0
    return variances
