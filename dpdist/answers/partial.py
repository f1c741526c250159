"""Partial correlations from one released second moment, with intervals: post-processing, free of charge.

The partial correlation of two columns is that of what the others do not explain of them. Let S0 be the exact sum of
squares and products of the bounded rows about their mean, and ``P0 = (S0 + ridge I)^-1``. The estimand is

    r_ij = -P0_ij / sqrt(P0_ii P0_jj).

**Without a ridge**, where every direction of the columns varies more than twice the edge of the noise. **With one**, at
the edge, where some do not: then columns may be sums of others, as far as the noise lets see, and of such columns no
partial correlation exists. It is that of the columns after independent noise of this variance was added to each, so it
lies nearer to 0. Which of the two it is follows from the release, and is told.

P is the block of the columns in ``G = (A + L + shift)^-1``, A the released moment of columns and constant, and L the
ridge, 0 for the constant (:mod:`dpdist.answers.design`). To first order ``dG = -G E G``. With g_i the rows of G and
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

from dpdist.answers.block import EntryNoise, block_of, require_about
from dpdist.answers.design import LARGER, about_mean_of, edge_of, ridge_design
from dpdist.answers.regression import NORMAL
from dpdist.errors import DrownedError, UsageError
from dpdist.release.artefact import Release

Matrix = npt.NDArray[np.float64]
_CLEAR = 2.0
"""Edges of the noise that the least variable direction varies at least, where no ridge is taken."""


@dataclass(frozen=True)
class Partial:
    """Partial correlations of some columns of a release, each given all others of them.

    Attributes
    ----------
    matrix
        (p, p), symmetric, 1 on the diagonal, from -1 to 1.
    errors
        (p, p): standard deviations of what the noise makes of them.
    ridge
        What was added to the sum of squares of each column, in squared units of the bounded rows; 0: nothing.
    seen
        How many directions among the columns vary more than the edge of the noise.
    """

    matrix: Matrix
    errors: Matrix
    ridge: float
    seen: int

    @property
    def intervals(self) -> Matrix:
        """(p, p, 2): between which each lies in 95 of 100 releases."""
        reach = NORMAL * self.errors
        ends: Matrix = np.clip(np.stack([self.matrix - reach, self.matrix + reach], axis=-1), -1, 1)
        ends[np.diag_indices(len(ends))] = 1
        return ends


def partial_correlation(release: Release, columns: Sequence[int] | npt.NDArray[np.int64]) -> Partial:
    """Return the partial correlations of some columns of a release."""
    require_about(release)
    block = block_of(release, columns)
    p = len(columns)
    if block.rows is not None and block.rows < p:
        raise UsageError(f"There are fewer rows than columns, {p}, so each column is a sum of others.")
    least = float(np.linalg.eigvalsh(about_mean_of(block, p))[0])
    design = ridge_design(block, p, 0.0 if least > _CLEAR * edge_of(block, p) else None)
    if not design.seen:
        raise DrownedError(f"No direction of the columns varies more than the noise of this release. {LARGER}")
    precision = np.diagonal(design.inverse)[:p]
    w = design.inverse[:p] / np.sqrt(precision)[:, None]
    noise = block.noise
    exact = None if noise.exact is None else p
    found = -design.inverse[:p, :p] / np.sqrt(np.outer(precision, precision))
    found[np.diag_indices(p)] = 1
    variances = _variances(EntryNoise(noise.on, noise.off, exact, noise.shared), w, found)
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
