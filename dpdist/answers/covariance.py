"""Mean, covariance and correlation of a release, with what the noise does to every entry: post-processing.

The matrix is shrunk (:mod:`dpdist.answers.shrinkage`). An interval of an entry is about the released one, which is
right on average and has an error of known law: 1.96 standard deviations to each side. So the shrunk entry, which is
nearer to the exact one on the whole, may lie beyond an end. All of it is about rows shortened to the clip norm.

**The error of an entry**, to first order. With a released mean u the moment has one more row and column, of the
constant k; let c be its place, m the number of rows and ``v_i = e_i - (u_i / k) e_c``. The covariance is
``v_i^T M v_j / m`` with ``m = M_cc / k²``, and v_i is where this quadratic form is least. So only E itself moves it: by
``tr(B E) / m`` with

    B  =  (v_i v_j^T + v_j v_i^T) / 2  -  (c_ij / k²) e_c e_c^T,

where the last term is the error of a private m. Without a released mean ``v_i = e_i`` and ``B = (e_i e_j^T + e_j e_i^T)
/ 2``. A correlation is ``w_i^T M w_j`` with ``w_i = v_i / sqrt(m c_ii)``, whatever m is, and moves by ``tr(B E)`` with

    B  =  (w_i w_j^T + w_j w_i^T) / 2  -  r/2 (w_i w_i^T + w_j w_j^T).

The variance of ``tr(B E)`` is ``2 v |B|² + (on - 2 v) sum B_kk²`` (:class:`dpdist.answers.block.EntryNoise`), without
the entry (c, c) where m is public. Where a variance cannot be told from 0, nothing is said of its correlations: they
lie between -1 and 1. Columns that weigh nothing in a release (:func:`dpdist.release.advice.weightless`) are left out
of all that is computed, and are NaN in it.

**The distance** of the shrunk matrix from the exact one, in the units in which rows were bounded. The values that are
put in place of the released ones are ``u^T A0 u`` and an error of about the variance of an entry on the diagonal. So
the squared Frobenius distance is on average ``|A0|² - sum xi²`` and twice the sum of these variances; and ``|A0|²`` is
``|A|²`` without the variances of all entries. What is told is the root of that over ``|A0|``, and no more than that of
a matrix that was not shrunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpdist._util.text import counted, listed
from dpdist.answers.block import NORMAL, EntryNoise, correlation_ends, ends, entry_noise, moment_of, require_law
from dpdist.answers.shrinkage import Shrinkage, optimal, within_trace
from dpdist.errors import DataError, UsageError
from dpdist.naming import parameter
from dpdist.pca.alignment import noise_reach
from dpdist.pca.components import AboutMean, about_mean
from dpdist.pca.correlation import ABOVE, drowned, evidence_of, require_centre
from dpdist.pca.noise_edge import law_of
from dpdist.release.advice import cure, weightless
from dpdist.release.artefact import Release

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Covariance:
    """The covariance of a release, (d, d) in squared units of the input; about what is public, if no mean was released.

    Columns that weigh nothing in the release are NaN.
    """

    location: Matrix  # (d,), in units of the input
    matrix: Matrix  # shrunk
    released: Matrix
    errors: Matrix | None  # standard deviations of the noise on the released entries; None where it states no variance
    correlation_errors: Matrix | None  # and on their correlations
    shrinkage: Shrinkage
    seen: int | None  # directions that vary more than noise alone would; None where the noise has no known law
    distance: float | None  # estimate: relative error of an optimally shrunk matrix in the units of the bounded rows
    known: npt.NDArray[np.int64]  # (c,): places of the columns that weigh something
    drowned: tuple[int, ...]  # places of those whose variance does not stand above the noise

    @property
    def correlation(self) -> Matrix:
        """(d, d): of the shrunk matrix; NaN in the row of a variance that is not positive."""
        variances = np.diagonal(self.matrix)
        spread = np.sqrt(np.where(variances > 0, variances, np.nan))
        found: Matrix = self.matrix / np.outer(spread, spread)
        found[np.diag_indices_from(found)] = np.where(variances > 0, 1.0, np.nan)
        return found

    @property
    def intervals(self) -> Matrix | None:
        """(d, d, 2): between which each exact entry lies with probability 0.95."""
        return None if self.errors is None else ends(self.released, self.errors)

    @property
    def correlation_intervals(self) -> Matrix | None:
        """(d, d, 2): the same of the correlations."""
        if self.errors is None or self.correlation_errors is None:
            return None
        known = np.diagonal(self.released) > NORMAL * np.diagonal(self.errors)
        found = ends(_raw_correlation(self.released), self.correlation_errors, -1, 1)
        found[~np.outer(known, known)] = -1, 1
        found[np.diag_indices(len(known))] = 1
        return spread_out(found[np.ix_(self.known, self.known)], self.known, len(known))

    @property
    def precision(self) -> Matrix | None:
        """(d, d): the inverse of the shrunk matrix; None where it is not positive definite."""
        if self.shrinkage is not Shrinkage.OPTIMAL:
            return None
        found = np.linalg.inv(self.matrix[np.ix_(self.known, self.known)]).astype(np.float64)
        found += found.T.copy()
        return spread_out(found / 2, self.known, len(self.matrix))


@dataclass(frozen=True)
class Correlations:
    """Correlations among some columns of a release, as released."""

    columns: tuple[int, ...]  # their places in the release, ascending; w of them
    clear: int  # how many columns have a variance that stands above the noise, those left out here too
    values: Matrix  # (w, w)
    intervals: Matrix  # (w, w, 2): between which each exact one lies with probability 0.95


def correlations(release: Release, most: int) -> Correlations:
    """Return the correlations among the columns whose variances stand farthest above the noise.

    They are about the mean, or the public centre if no mean was released.
    """
    require_centre(release)
    about = about_mean(release)
    found = evidence_of(release)
    clear = int((found > ABOVE).sum())
    places = np.sort(np.argsort(-found, kind="stable")[: min(most, clear)])
    part = replace(about, mean=about.mean[places])
    released = part.matrix(moment_of(release, places))
    _, errors = _errors(release, part, released)
    if errors is None:
        raise AssertionError("evidence refuses a release of which nobody knows the variance of the noise")
    values = _raw_correlation(released)
    return Correlations(tuple(places.tolist()), clear, values, correlation_ends(values, errors))


def spread_out(values: Matrix, places: npt.NDArray[np.int64], d: int) -> Matrix:
    """Return (c, c, ...) values as (d, d, ...), NaN elsewhere."""
    if len(places) == d:
        return values
    found: Matrix = np.full((d, d, *values.shape[2:]), np.nan)
    found[np.ix_(places, places)] = values
    return found


def covariance(
    release: Release, shrinkage: Shrinkage = Shrinkage.OPTIMAL, units: tuple[Matrix, Matrix] | None = None
) -> Covariance:
    """Return the covariance of a release, in the units that :func:`dpdist.answers.regression.regressions` takes."""
    if release.subspace is not None or shrinkage is Shrinkage.OPTIMAL:
        require_law(release.mechanism, release.noise if release.subspace is None else None)
    if not release.in_memory:
        raise DataError("The release is too large for memory: read it in parts (Release.moment_rows).")
    about = about_mean(release)
    if not about.per_row:
        raise UsageError(no_rows())
    d = release.bound.columns
    hidden = weightless(release, range(d))
    known = np.setdiff1d(np.arange(d), hidden)
    if not known.size:
        raise UsageError(f"No column of this release weighs anything. {cure()}")
    released = about.matrix(release.second_moment)[np.ix_(known, known)]
    about = replace(about, mean=about.mean[known])
    law = law_of(release.noise, known.size, release.bound.unit**2 / about.divisor)
    errors, correlations = _errors(release, about, released)
    matrix, distance = released, None
    if shrinkage is Shrinkage.OPTIMAL and law is not None:
        matrix = optimal(released, law)
        distance = None if errors is None else _distance(released, matrix, errors)
    elif shrinkage is Shrinkage.TRACE:
        matrix = within_trace(released, release.bound.shortened_norm**2)
    centre, scale = release.bound.input_units if units is None else units
    squared = np.outer(scale, scale)[np.ix_(known, known)]
    location = np.full(d, np.nan)
    location[known] = centre[known] + scale[known] * about.mean
    reach = noise_reach(release)
    return Covariance(
        location=location,
        matrix=spread_out(matrix * squared, known, d),
        released=spread_out(released * squared, known, d),
        errors=None if errors is None else spread_out(errors * squared, known, d),
        correlation_errors=None if correlations is None else spread_out(correlations, known, d),
        shrinkage=shrinkage,
        seen=None if reach is None else int((np.linalg.eigvalsh(released) > reach).sum()),
        distance=distance,
        known=known,
        drowned=drowned(release),
    )


def drowned_words(found: Covariance, names: Sequence[str]) -> str:
    """Name the columns that do not stand above the noise; a sentence, or nothing."""
    if not found.drowned or len(found.drowned) == len(found.known):
        return ""
    return (
        f"{counted(len(found.drowned), 'column')} did not stand above the noise, and numbers about "
        f"{'it' if len(found.drowned) == 1 else 'them'} are mostly noise: {listed(names[i] for i in found.drowned)}."
    )


def _distance(released: Matrix, matrix: Matrix, errors: Matrix) -> float:
    noise = float((errors**2).sum())
    exact = float((released**2).sum()) - noise
    left = exact - float((matrix**2).sum()) + 2 * float((np.diagonal(errors) ** 2).sum())
    return 1.0 if exact <= 0 else math.sqrt(min(1.0, noise / exact, max(0.0, left / exact)))


def _raw_correlation(released: Matrix) -> Matrix:
    """Return the correlations of a matrix as it was released; of a variance that is not positive anything."""
    variances = np.diagonal(released)
    spread = np.sqrt(np.where(variances > 0, variances, 1.0))
    found: Matrix = np.clip(released / np.outer(spread, spread), -1, 1)
    return found


def _errors(release: Release, about: AboutMean, released: Matrix) -> tuple[Matrix | None, Matrix | None]:
    """Return the standard deviations of the entries and of their correlations, in the units of the bounded rows."""
    if release.noise.variance_diagonal is None or release.noise.variance_off_diagonal is None:
        return None, None
    kappa = release.bound.constant * release.bound.unit
    noise = entry_noise(release, len(released) if kappa and release.rows is not None else None)
    ratios = about.mean / kappa if kappa else np.zeros(len(released))
    shift = released / kappa**2 if kappa else np.zeros_like(released)
    variances = np.diagonal(released)
    safe = np.where(variances > 0, variances, 1.0)
    entries = _entry_variances(noise, ratios, shift)
    correlations = _correlation_variances(noise, ratios / np.sqrt(safe), 1 / safe, _raw_correlation(released))
    return tuple(np.sqrt(np.maximum(each, 0)) / about.divisor for each in (entries, correlations))  # type: ignore[return-value]


def _entry_variances(noise: EntryNoise, ratios: Matrix, shift: Matrix) -> Matrix:
    """Return the variance of ``tr(B E)`` of each entry: ``v_i = e_i - ratio_i e_c``."""
    lengths = 1 + ratios**2
    products = np.outer(ratios, ratios)
    inner = np.eye(ratios.size) + products
    corner = products - shift
    squares = (np.outer(lengths, lengths) + inner**2) / 2 - 2 * products * shift + shift**2
    return _variance(noise, squares, np.eye(ratios.size), corner, np.eye(ratios.size) + corner)


def _correlation_variances(noise: EntryNoise, ratios: Matrix, own: Matrix, r: Matrix) -> Matrix:
    """Return the same of each correlation: ``w_i = sqrt(own_i) e_i - ratio_i e_c``."""
    lengths = own + ratios**2
    products = np.outer(ratios, ratios)
    inner = np.diag(own) + products
    both = lengths[:, None] + lengths
    squares = (np.outer(lengths, lengths) + inner**2) / 2 - r * inner * both
    squares += r**2 / 4 * (lengths[:, None] ** 2 + lengths**2 + 2 * inner**2)
    corner = products - r / 2 * (ratios[:, None] ** 2 + ratios**2)
    diagonal = r**2 / 4 * (own[:, None] ** 2 + own**2)  # of i and j; on the diagonal of r all is 0
    trace = corner - r / 2 * (own[:, None] + own)
    return _variance(noise, squares, diagonal, corner, trace)


def _variance(noise: EntryNoise, squares: Matrix, diagonal: Matrix, corner: Matrix, trace: Matrix) -> Matrix:
    """Return ``Var tr(B E)`` from ``|B|²``, the sum of B_kk² but for c, B_cc, and the trace."""
    if noise.exact is not None:
        squares, trace, corner = squares - corner**2, trace - corner, np.zeros_like(corner)
    return 2 * noise.off * squares + noise.own * (diagonal + corner**2) + noise.shared * trace**2


def no_rows() -> str:
    """Say why a private number of rows and no mean give no covariance."""
    return (
        "Under add-remove the number of rows is private, so there is no covariance without the private mean: take "
        f"{parameter('centre', 'private')}, or {parameter('neighbours', 'replace-one')}."
    )
