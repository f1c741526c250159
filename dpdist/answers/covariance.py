"""Mean, covariance and correlation of a release, with the error of every entry: post-processing.

The matrix is shrunk (:mod:`dpdist.answers.shrinkage`). The interval of an entry is centred on the released entry, which
is unbiased with an error of known distribution: 1.96 standard deviations to each side. The shrunk entry is closer to
the exact one overall, but may be outside its interval. All results describe rows clipped to the clip norm.

**The error of an entry**, to first order. With a released mean u the moment has one more row and column, for the
constant k; let c be its index, m the number of rows and ``v_i = e_i - (u_i / k) e_c``. The covariance is
``v_i^T M v_j / m`` with ``m = M_cc / k²``, and v_i minimises this quadratic form. So only E itself changes it: by
``tr(B E) / m`` with

    B  =  (v_i v_j^T + v_j v_i^T) / 2  -  (c_ij / k²) e_c e_c^T,

where the last term is the error of a private m. Without a released mean ``v_i = e_i`` and ``B = (e_i e_j^T + e_j e_i^T)
/ 2``. A correlation is ``w_i^T M w_j`` with ``w_i = v_i / sqrt(m c_ii)`` for every m, and changes by ``tr(B E)`` with

    B  =  (w_i w_j^T + w_j w_i^T) / 2  -  r/2 (w_i w_i^T + w_j w_j^T).

The variance of ``tr(B E)`` is ``2 v |B|² + (on - 2 v) sum B_kk²`` (:class:`dpdist.answers.block.EntryNoise`), without
the entry (c, c) if m is public. If a variance is below the noise, the intervals of its correlations are [-1, 1].
Columns with weight zero in a release (:func:`dpdist.core.release.advice.weightless`) are left out of the computation
and are NaN in the result.

**The distance** of the shrunk matrix from the exact one, in the units of the bounded rows. The shrunk eigenvalues are
``u^T A0 u`` with an error of about the variance of a diagonal entry. So the mean squared Frobenius distance is
``|A0|² - sum xi²`` plus twice the sum of these variances, and ``|A0|²`` is ``|A|²`` minus the variances of all entries.
The reported distance is the root of this over ``|A0|``, and at most that of the unshrunk matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpdist.answers.alignment import zero_matrix_bound
from dpdist.answers.block import (
    NORMAL,
    EntryNoise,
    correlation_ends,
    ends,
    entry_noise,
    moment_of,
    require_noise_distribution,
)
from dpdist.answers.components import AboutMean, about_mean
from dpdist.answers.correlation import ABOVE, drowned, evidence_of, require_centre
from dpdist.answers.feasible import feasible_covariance
from dpdist.answers.noise_edge import law_of
from dpdist.answers.pairwise import completed, pairwise
from dpdist.answers.shrinkage import Shrinkage, optimal, within_trace
from dpdist.core.errors import DataError, UsageError
from dpdist.core.naming import parameter
from dpdist.core.release.advice import cure, weightless
from dpdist.core.release.artefact import Release
from dpdist.core.text import counted, listed

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Covariance:
    """The covariance of a release, (d, d), in squared units of the input; NaN for columns with weight zero."""

    location: Matrix  # (d,), in units of the input: the released mean or the public centre
    matrix: Matrix  # shrunk
    released: Matrix
    errors: Matrix | None  # standard deviations of the noise in the released entries; None if unknown
    correlation_errors: Matrix | None  # standard deviations of the noise in their correlations
    shrinkage: Shrinkage
    seen: int | None  # number of directions above the noise; None if the distribution of the noise is unknown
    distance: float | None  # approximate relative error, if optimally shrunk, in the units of the bounded rows
    known: npt.NDArray[np.int64]  # (c,): indices of the columns with weight
    drowned: tuple[int, ...]  # indices of the columns whose variance is below the noise

    @property
    def correlation(self) -> Matrix:
        """(d, d): of the shrunk matrix; NaN in the rows of nonpositive variances."""
        variances = np.diagonal(self.matrix)
        spread = np.sqrt(np.where(variances > 0, variances, np.nan))
        correlation: Matrix = self.matrix / np.outer(spread, spread)
        correlation[np.diag_indices_from(correlation)] = np.where(variances > 0, 1.0, np.nan)
        return correlation

    @property
    def intervals(self) -> Matrix | None:
        """(d, d, 2): 95 % intervals of the exact entries."""
        return None if self.errors is None else ends(self.released, self.errors)

    @property
    def correlation_intervals(self) -> Matrix | None:
        """(d, d, 2): 95 % intervals of the exact correlations."""
        if self.errors is None or self.correlation_errors is None:
            return None
        clear = np.diagonal(self.released) > NORMAL * np.diagonal(self.errors)
        intervals = ends(_raw_correlation(self.released), self.correlation_errors, -1, 1)
        intervals[~np.outer(clear, clear)] = -1, 1
        intervals[np.diag_indices(len(clear))] = 1
        return expanded(intervals[np.ix_(self.known, self.known)], self.known, len(clear))

    @property
    def precision(self) -> Matrix | None:
        """(d, d): the inverse of the optimally shrunk matrix, else None."""
        if self.shrinkage is not Shrinkage.OPTIMAL:
            return None
        inverse = np.linalg.inv(self.matrix[np.ix_(self.known, self.known)]).astype(np.float64)
        inverse += inverse.T.copy()
        return expanded(inverse / 2, self.known, len(self.matrix))


@dataclass(frozen=True)
class Correlations:
    """Correlations among some columns of a release, as released."""

    columns: tuple[int, ...]  # w indices in the release, ascending
    clear: int  # number of columns of the release with a variance above the noise
    values: Matrix  # (w, w)
    intervals: Matrix  # (w, w, 2): 95 % intervals of the exact correlations


def correlations(release: Release, most: int) -> Correlations:
    """Return the correlations among the columns whose variances are farthest above the noise."""
    require_centre(release)
    release = completed(release)
    about = about_mean(release)
    strengths = evidence_of(release)
    clear = int((strengths > ABOVE).sum())
    columns = np.sort(np.argsort(-strengths, kind="stable")[: min(most, clear)])
    part = replace(about, mean=about.mean[columns])
    released = part.matrix(moment_of(release, columns))
    _, errors = _errors(release, part, released)
    if errors is None:
        raise AssertionError("evidence refuses a release of unknown noise variance")
    values = _raw_correlation(released)
    return Correlations(tuple(columns.tolist()), clear, values, correlation_ends(values, errors))


def expanded(values: Matrix, columns: npt.NDArray[np.int64], d: int) -> Matrix:
    """Return (c, c, ...) values as (d, d, ...), NaN elsewhere."""
    if len(columns) == d:
        return values
    expanded: Matrix = np.full((d, d, *values.shape[2:]), np.nan)
    expanded[np.ix_(columns, columns)] = values
    return expanded


def covariance(
    release: Release, shrinkage: Shrinkage = Shrinkage.OPTIMAL, units: tuple[Matrix, Matrix] | None = None
) -> Covariance:
    """Return the covariance of a release, in ``units`` as for :func:`dpdist.answers.regression.regressions`."""
    if release.subspace is not None or shrinkage is Shrinkage.OPTIMAL:
        require_noise_distribution(release.mechanism, release.noise if release.subspace is None else None)
    if not release.in_memory:
        raise DataError("The release is too large for memory. Read it in parts (Release.moment_rows).")
    gaps = pairwise(release)
    release = completed(release)
    about = about_mean(release)
    if not about.per_row:
        raise UsageError(no_rows(weighted=bool(release.bound.unit_norm)))
    d = release.bound.columns
    hidden = weightless(release, range(d))
    columns = np.setdiff1d(np.arange(d), hidden)
    if not columns.size:
        raise UsageError(f"All columns of this release have weight zero. {cure()}")
    released = about.matrix(release.second_moment)[np.ix_(columns, columns)]
    about = replace(about, mean=about.mean[columns])
    law = law_of(release.noise, columns.size, release.bound.unit**2 / about.divisor)
    errors, correlations = _errors(release, about, released)
    if gaps is not None:
        errors = gaps.deviations[np.ix_(columns, columns)]
        correlations = _errors_with_gaps(released, errors)
    matrix, distance = released, None
    if shrinkage is Shrinkage.OPTIMAL and law is not None:
        matrix = optimal(released, law)
        distance = None if errors is None else _distance(released, matrix, errors)
    elif shrinkage is Shrinkage.FEASIBLE:
        matrix = feasible_covariance(release)[np.ix_(columns, columns)]
    elif shrinkage is Shrinkage.TRACE:
        matrix = within_trace(released, release.bound.shortened_norm**2)
    centre, scale = release.bound.input_units if units is None else units
    squared = np.outer(scale, scale)[np.ix_(columns, columns)]
    location = np.full(d, np.nan)
    location[columns] = centre[columns] + scale[columns] * about.mean
    reach = zero_matrix_bound(release)
    return Covariance(
        location=location,
        matrix=expanded(matrix * squared, columns, d),
        released=expanded(released * squared, columns, d),
        errors=None if errors is None else expanded(errors * squared, columns, d),
        correlation_errors=None if correlations is None else expanded(correlations, columns, d),
        shrinkage=shrinkage,
        seen=None if reach is None else int((np.linalg.eigvalsh(released) > reach).sum()),
        distance=distance,
        known=columns,
        drowned=drowned(release),
    )


def below_noise_message(result: Covariance, names: Sequence[str]) -> str:
    """Return a sentence that names the columns below the noise; empty if there are none, or all are."""
    if not result.drowned or len(result.drowned) == len(result.known):
        return ""
    return (
        f"The variance of {counted(len(result.drowned), 'column')} is below the noise, so the results for "
        f"{'it' if len(result.drowned) == 1 else 'them'} are mostly noise: {listed(names[i] for i in result.drowned)}."
    )


def _distance(released: Matrix, matrix: Matrix, errors: Matrix) -> float:
    noise = float((errors**2).sum())
    exact = float((released**2).sum()) - noise
    left = exact - float((matrix**2).sum()) + 2 * float((np.diagonal(errors) ** 2).sum())
    return 1.0 if exact <= 0 else math.sqrt(min(1.0, noise / exact, max(0.0, left / exact)))


def _raw_correlation(released: Matrix) -> Matrix:
    """Return the correlations of a released matrix; arbitrary for nonpositive variances."""
    variances = np.diagonal(released)
    spread = np.sqrt(np.where(variances > 0, variances, 1.0))
    correlation: Matrix = np.clip(released / np.outer(spread, spread), -1, 1)
    return correlation


def _errors(release: Release, about: AboutMean, released: Matrix) -> tuple[Matrix | None, Matrix | None]:
    """Return the standard deviations of the entries and of their correlations, in the units of the bounded rows."""
    if release.noise.variance_diagonal is None or release.noise.variance_off_diagonal is None:
        return None, None
    kappa = release.bound.constant * release.bound.unit
    noise = entry_noise(release, len(released) if kappa and release.exact_count is not None else None)
    ratios = about.mean / kappa if kappa else np.zeros(len(released))
    shift = released / kappa**2 if kappa else np.zeros_like(released)
    variances = np.diagonal(released)
    safe = np.where(variances > 0, variances, 1.0)
    entries = _entry_variances(noise, ratios, shift)
    correlations = _correlation_variances(noise, ratios / np.sqrt(safe), 1 / safe, _raw_correlation(released))
    return tuple(np.sqrt(np.maximum(variance, 0)) / about.divisor for variance in (entries, correlations))  # type: ignore[return-value]


def _errors_with_gaps(released: Matrix, errors: Matrix) -> Matrix:
    """Return the deviations of correlations whose covariances have these deviations, as if they were independent."""
    variances = np.diagonal(released)
    spread = np.sqrt(np.where(variances > 0, variances, 1.0))
    scaled, r = errors / np.outer(spread, spread), _raw_correlation(released)
    own = np.diagonal(scaled) ** 2
    deviations: Matrix = np.sqrt(scaled**2 + r**2 / 4 * (own[:, None] + own))
    return deviations


def _entry_variances(noise: EntryNoise, ratios: Matrix, shift: Matrix) -> Matrix:
    """Return the variance of ``tr(B E)`` for each entry: ``v_i = e_i - ratio_i e_c``."""
    lengths = 1 + ratios**2
    products = np.outer(ratios, ratios)
    inner = np.eye(ratios.size) + products
    corner = products - shift
    squares = (np.outer(lengths, lengths) + inner**2) / 2 - 2 * products * shift + shift**2
    return _variance(noise, squares, np.eye(ratios.size), corner, np.eye(ratios.size) + corner)


def _correlation_variances(noise: EntryNoise, ratios: Matrix, inverses: Matrix, r: Matrix) -> Matrix:
    """Return the variance of ``tr(B E)`` for each correlation: ``w_i = sqrt(inverse_i) e_i - ratio_i e_c``."""
    lengths = inverses + ratios**2
    products = np.outer(ratios, ratios)
    inner = np.diag(inverses) + products
    both = lengths[:, None] + lengths
    squares = (np.outer(lengths, lengths) + inner**2) / 2 - r * inner * both
    squares += r**2 / 4 * (lengths[:, None] ** 2 + lengths**2 + 2 * inner**2)
    corner = products - r / 2 * (ratios[:, None] ** 2 + ratios**2)
    diagonal = r**2 / 4 * (inverses[:, None] ** 2 + inverses**2)  # of i and j; all is 0 on the diagonal of r
    trace = corner - r / 2 * (inverses[:, None] + inverses)
    return _variance(noise, squares, diagonal, corner, trace)


def _variance(noise: EntryNoise, squares: Matrix, diagonal: Matrix, corner: Matrix, trace: Matrix) -> Matrix:
    """Return ``Var tr(B E)`` from ``|B|²``, the sum of B_kk² without c, B_cc, and the trace."""
    if noise.exact is not None:
        squares, trace, corner = squares - corner**2, trace - corner, np.zeros_like(corner)
    return 2 * noise.off * squares + noise.diagonal_excess * (diagonal + corner**2) + noise.shared * trace**2


def no_rows(*, weighted: bool = False) -> str:
    """Return the message for a private number of rows without a mean."""
    private = parameter("centre", "private")
    if weighted:
        return (
            "Where all rows of a privacy unit are kept, the sum of their weights is private, so a covariance needs the "
            f"private mean: release with {private}."
        )
    return (
        "Under add-remove the number of rows is private, so a covariance needs the private mean. Use "
        f"{private} or {parameter('neighbours', 'replace-one')}."
    )
