"""Components of the correlation matrix: free post-processing of a release of a second moment.

Let A be the matrix whose eigenvectors are the components (:mod:`dpdist.answers.components`): the covariance if the mean
was released, otherwise the second moment about the centre that was subtracted. A column is *above the noise* if
``A_jj`` exceeds four standard deviations of its noise. The others have no usable deviation to divide by: they are left
out and named, as are columns of scale 2^64, which have weight zero in the release. For the other columns the
correlation matrix is ``R = D A D`` with ``D = diag(A_jj^-1/2)``. The diagonal is 1, the eigenvalues add up to the
number of these columns. Loadings of columns left out are 0, so along a component lies ``v'R v``, its eigenvalue, of the
correlation matrix of all columns, whose trace counts each column with 1. The share of variance of a component is its
eigenvalue over that number: columns below the noise count in it, and their variance is in no component. Only those of
other and missing values below the noise do not count, as there may be no such values, and so no variance.

Measured on Covertype, epsilon .1, 54 columns: five components capture .98 of the variance of the exact correlation
matrix of all columns (`benchmarks/private_scale.py`). With its 20 columns below the noise included, at a variance of
.02, they captured .72.

**Interval of an eigenvalue.** Let N be the noise of A, with variance ``on`` and ``off`` the diagonal, and e the noise
of the mean u, with variance ``t²`` per entry, so that A has the error ``N - u e' - e u'``. To first order an eigenvalue
l of R with eigenvector v has the error

    sum_ij a_i a_j N_ij - l sum_j a_j² N_jj - 2 (a.u) (a.e) + 2 l sum_j a_j² u_j e_j,    a = D v,

because dividing a column by a deviation with an error changes R by ``-(F R + R F)/2``, F the diagonal of ``D E D``. Its
variance is a sum of squares, evaluated at the released values. To second order noise spreads eigenvalues: l is too
large by about ``b = sum_m off (|a_m|² |a|² + (a_m.a)²) / (l - l_m)``, over all other eigenvectors. The interval is
``l - 2 max(b, 0) - 2 s`` to ``l + 2 max(-b, 0) + 2 s``, s the standard deviation.

It accounts for the noise only: for the clipped rows, not the population. It is an approximation. For six correlated
columns it held in 94 to 97 % of 600 releases, with `gaussian`, `two-sided-wishart` and `laplace` at epsilon .15 and .5,
for each of the first three components (`tests/answers/test_correlation.py` draws 200).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpdist.answers.alignment import (
    MOST,
    Alignment,
    EntryNoise,
    aligned,
    entry_variances,
    finite_json,
    gap_variances,
    none_above_noise,
    pair_variances,
)
from dpdist.answers.components import Components, about_mean, mean_variance
from dpdist.answers.eigen import signed, top_eigenpairs
from dpdist.answers.noise_edge import law_of
from dpdist.answers.overlap import Spectrum
from dpdist.answers.pairwise import completed, indicators
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.naming import parameter
from dpdist.core.release.advice import weightless
from dpdist.core.release.artefact import Release

Values = npt.NDArray[np.float64]
ABOVE = 4.0
"""Least variance of a column above the noise, in standard deviations of the noise."""
_SURE = 2.0
"""Half the width of an interval, in standard deviations."""


@dataclass(frozen=True)
class Correlation:
    """Components of the correlation matrix of a release."""

    components: Components  # of standardised columns: ``scale`` is their released deviation, in input units
    left_out: tuple[str, ...]  # columns below the noise, and references
    shares: Values  # (k,): share of each component in the variance of all standardised columns, above the noise or not
    # (k, 2): intervals of the shares, NaN below the noise; None for more than MOST columns
    intervals: Values | None
    alignment: Alignment | None  # NaN for columns left out; None for more than MOST columns or unknown noise
    references: tuple[str, ...] = ()  # first columns of categorical variables, which the others determine

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "correlation": True,
            "left_out": list(self.left_out),
            **({"references": list(self.references)} if self.references else {}),
            "shares": self.shares.tolist(),
            "share_intervals": None if self.intervals is None else [finite_json(ends) for ends in self.intervals],
            **({} if self.alignment is None else self.alignment.to_json()),
        }


def correlation(release: Release, count: float | None, *, drop_first: bool = True) -> Correlation:
    """Return the top components of the correlation matrix of a release: ``count``, or the fewest with a share.

    With ``drop_first`` the first column of each categorical variable is left out.
    """
    # For a share, the lower ends of the intervals are added up until they reach it. The sum has at most the sum of the
    # deviations, so its confidence is at least that of each end; and as each end subtracts twice the bias from the
    # noise, the sum applies to the variance of the exact matrix along these components.
    require_centre(release)
    release = completed(release)
    about = about_mean(release)
    matrix = about.matrix(release.second_moment)
    variances = np.diag(matrix)
    references = references_of(release, drop_first=drop_first)
    clear, total = _clear_columns(release, variances, count, references)
    divisor = 1 / np.sqrt(variances[clear])
    standard = matrix[np.ix_(clear, clear)] * np.outer(divisor, divisor)
    np.fill_diagonal(standard, 1)
    intervals = alignment = None
    if len(clear) <= MOST:
        values, columns = np.linalg.eigh(standard)
        noise = replace(EntryNoise.of(release), centre=about.mean[clear])
        intervals = _intervals(values, columns, divisor, noise)[::-1] / total
        law = law_of(release.noise, len(clear), release.bound.unit**2 / about.divisor)
        values, columns = values[::-1], columns[:, ::-1]
        if law is not None:
            spectrum = Spectrum(
                values, pair_variances(values, columns, noise, divisor), law, sure=noise.sure,
                gaps=gap_variances(values, columns, noise, divisor),
            )  # fmt: skip
            count = spectrum.counted() if count is None else count
        if isinstance(count, float):
            subject, by = "All components of the correlation matrix", "by the lower ends of their shares"
            number = fewest(np.cumsum(intervals[:, 0]), count, subject, by)
        else:
            number = _counted(count, release)
        values, vectors, intervals = values[:number], signed(columns.T[:number]), intervals[:number]
        alignment = None if law is None else _spread_out(aligned(spectrum, vectors, columns), clear, len(variances))
    else:
        values, vectors = top_eigenpairs(standard, _counted(count, release))
    loadings = np.zeros((len(vectors), len(variances)))
    loadings[:, clear] = vectors
    centre, scale = release.bound.input_units
    divided = scale.copy()
    divided[clear] /= divisor
    result = Components(loadings, values, per_row=True, mean=centre + scale * about.mean, scale=divided)
    omitted = set(range(len(variances))) - set(clear.tolist()) - set(indicators(release))
    left_out = tuple(release.names[j] for j in sorted(omitted))
    shares = np.clip(values / total, 0, 1)  # the noise may make eigenvalues negative, and others larger
    shares /= max(1.0, float(shares.sum()))
    if intervals is not None:
        intervals = np.column_stack([np.minimum(intervals[:, 0], shares), np.maximum(intervals[:, 1], shares)])
        if alignment is not None:
            intervals[alignment.counted :] = np.nan
    return Correlation(result, left_out, shares, intervals, alignment, references)


def _clear_columns(
    release: Release, variances: Values, count: float | None, references: Sequence[str]
) -> tuple[npt.NDArray[np.int64], int]:
    """Return the columns of the correlation matrix, and the number of those that it would have without the noise."""
    first = [release.names.index(name) for name in references]
    all_columns = np.setdiff1d(np.arange(len(variances)), [*indicators(release), *first])
    clear = all_columns[evidence(release, variances)[all_columns] > ABOVE]
    if not len(clear):
        private = release.stage is not None and "scale" in release.stage.chosen
        scale = "" if private else f"{parameter('scale', 'private')}, "
        raise BelowNoiseError(
            "All columns of this release are below the noise, so it has no correlation matrix. It takes "
            f"{scale}a larger epsilon or more rows{' or persons' * (release.unit is not None)}."
        )
    if isinstance(count, float):
        require_share(count)
        if len(clear) > MOST:
            advice = f"pass a number of components ({parameter('components', 'K')})"
            raise UsageError(f"Shares of components are computed for at most {MOST} columns: {advice}.")
    elif count is not None and not 1 <= count <= len(clear):
        raise UsageError(
            f"{count} components were requested, but the correlation matrix has only the {len(clear)} of "
            f"{len(variances)} columns above the noise. Ask for fewer components, or release with a larger epsilon.",
            parameter="components",
        )
    below, possible = set(all_columns.tolist()) - set(clear.tolist()), _possible(release)
    return clear, len(clear) + sum(release.names[j] not in possible for j in below)


def _possible(release: Release) -> set[str]:
    """Return the columns of other and missing values: where there are none, they are constant, and have no variance."""
    columns = [] if release.schema is None else [column for column in release.schema.columns if column.stored]
    names = {column.features[-1] for column in columns if column.indicated}
    return names | {f"{column.name}=other" for column in columns if column.other == "column"}


def references_of(release: Release, *, drop_first: bool = True) -> tuple[str, ...]:
    """Return the first column of each categorical variable, which the other columns determine; none if kept."""
    columns = [] if release.schema is None or not drop_first else release.schema.columns
    return tuple(column.features[0] for column in columns if column.one_hot and column.source is column)


def _counted(count: float | None, release: Release) -> int:
    """Return the number of components requested or counted; refuse 0 and unknown noise."""
    if count is None:
        raise UsageError(
            f"The components of this correlation matrix cannot be counted: the noise of {release.mechanism} has no "
            f"known distribution, or there are more than {MOST} columns. Pass their number "
            f"({parameter('components', 'K')})."
        )
    if not count:
        raise none_above_noise("the correlation matrix")
    return int(count)


def _spread_out(alignment: Alignment, clear: npt.NDArray[np.int64], columns: int) -> Alignment:
    """Return the alignment with loadings of all columns, NaN for those left out."""
    if alignment.loadings is None:
        return alignment
    loadings = np.full((len(alignment.loadings), columns, 2), np.nan)
    loadings[:, clear] = alignment.loadings
    return replace(alignment, loadings=loadings)


def require_share(share: float) -> None:
    """Refuse a share of the variance outside (0, 1)."""
    if not 0 < share < 1:
        raise UsageError(f"A share of the variance must be between 0 and 1, not {share:g}.", parameter="components")


def fewest(low: Values, share: float, subject: str, by: str) -> int:
    """Return the least number of leading components with a share, from lower bounds for the first 1, 2, ..."""
    enough = np.flatnonzero(low >= share)
    if not enough.size:
        raise BelowNoiseError(
            f"A share of {share:g} of the variance was requested, but {subject[0].lower()}{subject[1:]} explain only "
            f"{math.floor(1000 * low.max()) / 1000:g} for certain, {by}. Ask for a smaller share, pass their number "
            f"({parameter('components', 'K')}), or use a larger epsilon or more rows."
        )
    return int(enough[0]) + 1


def evidence(release: Release, variances: Values) -> Values:
    """Return the variance of each column in standard deviations of its noise, (d,)."""
    about = about_mean(release)
    on, _ = entry_variances(release)
    strengths: Values = np.zeros(len(variances))
    deviation = np.sqrt(on + 4 * about.mean**2 * mean_variance(release))
    positive = variances > 0
    strengths[positive] = variances[positive] / np.maximum(deviation, np.finfo(float).tiny)[positive]
    strengths[list(weightless(release, range(len(variances))))] = 0  # only chance would make one positive
    return strengths


def evidence_of(release: Release) -> Values:
    """Return :func:`evidence` from the diagonal of a release, (d,), without forming the matrix."""
    about = about_mean(release)
    return evidence(release, release.moment_diagonal / about.divisor - about.mean**2 + about.diagonal)


def drowned(release: Release) -> tuple[int, ...]:
    """Return the columns below the noise, without weightless ones; none if the noise variance is unknown."""
    if release.noise.variance_diagonal is None or release.noise.variance_off_diagonal is None:
        return ()
    strengths = evidence_of(release)
    hidden = weightless(release, range(len(strengths)))
    return tuple(i for i in np.flatnonzero(strengths <= ABOVE).tolist() if i not in hidden)


def has_correlations(release: Release) -> bool:
    """Return whether a release holds a correlation matrix, above its noise or not."""
    try:
        require_centre(release)
    except UsageError:
        return False
    return True


def require_centre(release: Release) -> None:
    """Refuse a release without correlations."""
    centred = bool(release.bound.constant) or release.bound.centre is not None
    require_correlated(subspace=release.subspace is not None, mechanism=release.mechanism, centred=True)
    release.require_moment()
    if not release.in_memory:
        raise UsageError(
            "The release is too large to compute a correlation matrix in memory. Release with "
            f"{parameter('scale', 'private')} instead, and take components without {parameter('correlation')}."
        )
    require_correlated(subspace=False, mechanism=release.mechanism, centred=centred)


def require_correlated(*, subspace: bool, mechanism: str, centred: bool) -> None:
    """Refuse an existing or planned release without correlations."""
    if subspace:
        raise UsageError(
            f"{mechanism} releases components and no second moment, so there are no correlations. Leave out "
            f"{parameter('correlation')}, or use a release by gaussian (with a delta) or two-sided-wishart (without)."
        )
    if not centred:
        raise UsageError(
            "The release has no mean and no centre, so it has no correlations. Release with "
            f"{parameter('centre', 'private')}, a public centre, or {parameter('scale', 'private')}."
        )


def _intervals(values: Values, columns: Values, divisor: Values, noise: EntryNoise) -> Values:
    """Return the intervals of the eigenvalues of the correlation matrix, (d, 2), from all eigenpairs."""
    a = divisor[:, None] * columns
    squares, quartic = (a**2).sum(axis=0), (a**4).sum(axis=0)
    mixed = np.maximum(squares**2 - quartic, 0)  # rounding makes it negative for one column
    variance = noise.on * quartic * (1 - values) ** 2 + 2 * noise.off * mixed
    # diagonal entries of rotation-invariant noise are correlated
    variance += max(0.0, noise.on - 2 * noise.off) * (1 - values) ** 2 * mixed
    shift = -2 * (noise.centre @ a) * a + 2 * values * a**2 * noise.centre[:, None]
    spread = np.sqrt(variance + noise.mean * (shift**2).sum(axis=0))
    cross = a.T @ a
    gaps = values[:, None] - values
    gaps[gaps == 0] = math.inf
    bias = (noise.off * (np.outer(squares, squares) + cross**2) / gaps).sum(axis=1)
    low = values - 2 * np.maximum(bias, 0) - _SURE * spread
    high = values + 2 * np.maximum(-bias, 0) + _SURE * spread
    intervals: Values = np.clip(np.column_stack([low, high]), 0, len(values))
    return intervals
