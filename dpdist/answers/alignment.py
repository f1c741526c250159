"""The components of a release: how many are above the noise, the alignment of each, and its loadings.

:mod:`dpdist.answers.overlap` defines the measure, which uses the variance of the error between two eigenvectors. Let
``R = DAD`` be the matrix whose eigenvectors are the components, with eigenvalues l and eigenvectors u: D is the
identity for components of the released matrix A, and ``diag(A_jj^-1/2)`` for those of the correlation matrix
(:mod:`dpdist.answers.correlation`). Let A have the error ``N - x e' - e x'``: N the noise, with rounding, of variance
``on`` and ``off`` the diagonal, and e the noise of the mean x, with variance ``t²`` per entry. Write ``a_m = D u_m``.
To first order the error of R between u_m and u_k has the variance

    off (|a_m|² |a_k|² + (a_m.a_k)² - 2 q) + on (1 - c)² q + t² |(a_m.x) a_k + (a_k.x) a_m - 2 c (x a_m a_k)|²,

``q = sum_j a_mj² a_kj²``, and c is 0, or ``(l_k + l_m) / 2`` for correlations: dividing a column by a deviation with an
error changes R by ``-(F R + R F)/2``, F the diagonal of the error of ``D A D``. If n is private, its relative error of
variance h² adds ``h² ((a_m.x) (a_k.x) - c sum_j x_j² a_mj a_kj)²``. For more than 2000 columns only the largest
eigenvalues are computed, and the upper bound ``off + t² |x|² + h² |x|⁴`` is used.

**Eigenvalues.** By Weyl's inequality all released eigenvalues simultaneously differ from the exact ones of the clipped
rows by at most the largest eigenvalue of the error: the edge of the noise (:mod:`dpdist.answers.noise_edge`) at
confidence 0.95, and the stated error of rounding (:mod:`dpdist.answers.bias`). With a private mean, ``x e' + e x' + e
e'`` has rank two and is added in full: |e| is at most ``t (sqrt(d) + 2.12)`` and -x.e at most ``3 t |x|``, each with
probability 0.998. Under add-remove m is private too. Its relative error h, at most 3 of its standard deviations,
multiplies the matrix, which adds ``h l`` for each eigenvalue, and adds ``h |x|²``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpdist.answers.bias import Rounding, rounding
from dpdist.answers.components import Components, about_mean, components, highest_eigenvalues, mean_variance
from dpdist.answers.noise_edge import CONFIDENCE, NoiseLaw, law_of
from dpdist.answers.overlap import FAR, Spectrum
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.mechanisms.info import Output
from dpdist.core.naming import parameter, step
from dpdist.core.release.artefact import Release
from dpdist.core.release.bounds import Dimensions, without_choices
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest

Values = npt.NDArray[np.float64]
MOST = 2000
"""Largest number of columns for which all eigenvectors are computed."""
SHOWN = 10
"""Number of components whose loadings have intervals, and of loadings listed for each."""
_FIRST_COUNT = 8
"""Number of eigenvalues computed first to count components; then four times as many, and so on."""


@dataclass(frozen=True)
class EntryNoise:
    """Variances of the noise, in the units of the bounded rows."""

    on: float  # of a diagonal entry
    off: float  # of an entry off the diagonal
    mean: float  # of an entry of the mean
    centre: Values  # the mean itself
    count: float = 0.0  # relative, of a private n
    sure: float = 1.0  # share of ``off`` not due to rounding

    @classmethod
    def of(cls, release: Release) -> EntryNoise:
        """Return the variances of a release of a second moment."""
        diagonal, off = entry_variances(release)
        rounded = rounding(release)
        sure = 1.0 if rounded is None or not off else 1 - rounded.variances[1] / off
        return cls(diagonal, off, mean_variance(release), about_mean(release).mean, _count_error(release) ** 2, sure)


@dataclass(frozen=True)
class Alignment:
    """The alignment of the first k components of a release, in the units of the eigenvalues; NaN below the noise."""

    eigenvalues: Values  # (k,), descending, as released
    counted: int  # number of components above the noise, which may exceed k
    groups: tuple[range, ...]  # the components above the noise, in groups of indistinguishable ones
    strengths: Values  # (k,): estimates of the exact eigenvalues
    squared_cosines: Values  # (k,): mean squared cosine between the span of each component's group and the exact span
    cosine_intervals: Values  # (k, 2): intervals of the squared cosines
    loadings: Values | None  # (k, d, 2): intervals of the exact loadings; NaN if unknown
    edge: float | None = None  # of noise, rounding and a private mean, at confidence 0.95; None for correlations
    errors: Values | None = None  # (k,): simultaneous bounds on the errors of the eigenvalues; None for correlations
    rounding: Rounding | None = None  # None if no error of rounding is stated

    @property
    def intervals(self) -> Values:
        """(k, 2): simultaneous 95 % intervals of the exact eigenvalues of the clipped rows."""
        errors = math.inf if self.errors is None else self.errors
        return np.maximum(np.column_stack([self.eigenvalues - errors, self.eigenvalues + errors]), 0)

    def group_of(self, component: int) -> range | None:
        """Return the group of a component, counted from 0; None if it is below the noise."""
        return next((group for group in self.groups if component in group), None)

    def to_json(self) -> dict[str, object]:
        """Return JSON values."""
        value: dict[str, object] = {
            "above_noise": min(self.counted, len(self.eigenvalues)),
            "groups": [[group.start + 1, group.stop] for group in self.groups if group.start < len(self.eigenvalues)],
            "squared_cosines": finite_json(self.squared_cosines),
            "squared_cosine_intervals": [finite_json(ends) for ends in self.cosine_intervals],
        }
        if self.errors is not None:
            value |= {"noise_edge": self.edge, "confidence": CONFIDENCE, "strengths": finite_json(self.strengths)}
            value |= {"intervals": self.intervals.tolist()}
        return value | ({} if self.rounding is None else self.rounding.to_json())


def finite_json(values: Values) -> list[float | None]:
    """Return numbers as JSON values, with None for NaN."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def pair_variances(values: Values, vectors: Values, noise: EntryNoise, divisor: Values | None = None) -> Values:
    """Return the variances of the error between eigenvectors, (d, d)."""
    a = vectors if divisor is None else divisor[:, None] * vectors
    lengths, along, squares = (a**2).sum(axis=0), a.T @ noise.centre, a**2
    c = 0.0 if divisor is None else (values[:, None] + values) / 2
    inner, q = a.T @ a, squares.T @ squares
    variances = noise.off * (np.outer(lengths, lengths) + inner**2 - 2 * q) + noise.on * (1 - c) ** 2 * q
    if noise.mean:
        x = noise.centre
        crossed = (x[:, None] * a).T @ squares  # sum of x_j a_mj a_kj²
        shift = np.outer(along**2, lengths) + np.outer(lengths, along**2) + 2 * np.outer(along, along) * inner
        shift += 4 * c**2 * ((x[:, None] * squares).T @ (x[:, None] * squares))
        shift -= 4 * c * (along[:, None] * crossed + (along[:, None] * crossed).T)
        variances += noise.mean * shift
    if noise.count:
        scaled = along[:, None] * along - c * (a.T @ ((noise.centre**2)[:, None] * a))
        variances += noise.count * scaled**2
    least = np.finfo(float).tiny  # rounding makes it negative for identical columns
    return np.maximum(variances, least)


def gap_variances(values: Values, vectors: Values, noise: EntryNoise, divisor: Values) -> Values:
    """Return the variances of the distances between neighbouring eigenvalues of a correlation matrix, (d - 1,)."""
    # The diagonal has no noise, so neither have the eigenvectors of two columns, which are always the same; but the
    # order of their eigenvalues has. The noise of a private mean, of lower order, is left out.
    a = divisor[:, None] * vectors
    squares, weighted = a**2, (a**2) * (1 - values)
    first, second = slice(None, -1), slice(1, None)
    lengths = squares.sum(axis=0)
    inner = (a[:, first] * a[:, second]).sum(axis=0)
    fourth, both = (squares**2).sum(axis=0), (squares[:, first] * squares[:, second]).sum(axis=0)
    off = lengths[first] ** 2 - fourth[first] + lengths[second] ** 2 - fourth[second] - 2 * (inner**2 - both)
    on = ((weighted[:, first] - weighted[:, second]) ** 2).sum(axis=0)
    variances: Values = 2 * noise.off * off + noise.on * on
    return variances


def entry_variances(release: Release) -> tuple[float, float]:
    """Return the variances of a diagonal and an off-diagonal entry, with rounding, in the units of the eigenvalues."""
    on, off = release.noise.variance_diagonal, release.noise.variance_off_diagonal
    if on is None or off is None:
        raise UsageError(f"{release.mechanism} adds no noise to the entries, so they have no noise variance.")
    unit = release.bound.unit**2 / (release.row_count or 1.0)
    rounded = rounding(release)
    rounding_variances = (0.0, 0.0) if rounded is None else rounded.variances
    return on * unit**2 + rounding_variances[0], off * unit**2 + rounding_variances[1]


def _count_error(release: Release) -> float:
    """Return the relative standard deviation of a private n; 0 if n is public or not released."""
    constant, count = release.bound.constant, release.row_count
    if release.exact_count is not None or not constant or not count:
        return 0.0
    return math.sqrt(release.noise.variance_diagonal or 0.0) / (constant**2 * count)


def noise_law(release: Release) -> NoiseLaw | None:
    """Return the distribution of the noise in the units of the eigenvalues; None if unknown."""
    if release.subspace is not None:
        return None
    rows = 1.0 if release.row_count is None else release.row_count
    return law_of(release.noise, release.bound.columns, release.bound.unit**2 / rows) if rows > 0 else None


def _centring_error(release: Release) -> float:
    """Return a bound on the error of an eigenvalue from a private mean and n, without h times itself."""
    total, count = release.row_sum, release.row_count
    if total is None or count is None:
        return 0.0
    d, constant, noise = release.bound.columns, release.bound.constant, release.noise
    rounded = constant**2 * count / 4 if count > 0 else 0.0
    deviation = math.sqrt((noise.variance_off_diagonal or 0.0) + rounded) * release.bound.unit / (constant * count)
    length = deviation * (math.sqrt(d) + FAR / math.sqrt(2))
    mean = float(np.linalg.norm(total)) / count + length
    return mean * (length + FAR * deviation) + mean**2 * FAR * _count_error(release)


def _eigenvalue_errors(release: Release, law: NoiseLaw, eigenvalues: Values) -> Values:
    """Return simultaneous bounds on the errors of the released eigenvalues, at confidence 0.95."""
    rounded = rounding(release)
    off, shift = (0.0, 0.0) if rounded is None else (rounded.error, rounded.shift)
    error = law.edge_at(CONFIDENCE) + _centring_error(release) + off + shift
    relative = min(FAR * _count_error(release), 0.5)
    return (error + relative * np.maximum(eigenvalues, 0)) / (1 - relative)


def _is_small(release: Release) -> bool:
    return release.in_memory and release.bound.columns <= MOST


def _full_spectrum(release: Release, law: NoiseLaw) -> tuple[Spectrum, Values]:
    """Return the spectrum of a release with few columns, and all eigenvectors as columns."""
    values, vectors = np.linalg.eigh(about_mean(release).matrix(release.second_moment))
    values, vectors = values[::-1].copy(), vectors[:, ::-1]
    noise = EntryNoise.of(release)
    return Spectrum(values, pair_variances(values, vectors, noise), law, sure=noise.sure), vectors


def _top_spectrum(release: Release, law: NoiseLaw, values: Values) -> Spectrum:
    """Return the spectrum of a release from its largest eigenvalues only."""
    noise = EntryNoise.of(release)
    squared = float(noise.centre @ noise.centre)
    variance = noise.off + noise.mean * squared + noise.count * squared**2
    rest = release.bound.columns - len(values)
    return Spectrum(values, np.full((len(values),) * 2, variance), law, rest, noise.sure)


def alignment(release: Release, model: Components) -> Alignment | None:
    """Return the alignment of components of a release; None if the distribution of the noise is unknown."""
    # in a release too large for memory only these eigenvalues are known, and the last one is never counted
    law = noise_law(release)
    if law is None or model.eigenvalues is None:
        return None
    vectors: Values | None
    if _is_small(release):
        spectrum, vectors = _full_spectrum(release, law)
    else:
        values, vectors = model.eigenvalues, None
        if release.in_memory:  # further eigenvalues improve the estimates
            values = _eigenvalues(release, min(max(_FIRST_COUNT, 4 * len(values)), release.bound.columns))
        spectrum = _top_spectrum(release, law, values)
    return replace(
        aligned(spectrum, model.components, vectors),
        edge=zero_matrix_bound(release),
        errors=_eigenvalue_errors(release, law, model.eigenvalues),
        rounding=rounding(release),
    )


def _eigenvalues(release: Release, count: int) -> Values:
    values = components(release, count).eigenvalues
    if values is None:
        raise AssertionError("a release without eigenvalues has no noise distribution")
    return values


def aligned(spectrum: Spectrum, vectors: Values, every: Values | None) -> Alignment:
    """Return the alignment of the first components, (k, d), of a spectrum."""
    k, count = len(vectors), spectrum.counted()
    groups = spectrum.groups(count)
    strengths, cosines, ends = np.full(k, math.nan), np.full(k, math.nan), np.full((k, 2), math.nan)
    loadings = None if every is None else np.full((*vectors.shape, 2), math.nan)
    for group in groups:
        value, *interval = spectrum.squared_cosine(group)
        for i in range(group.start, min(group.stop, k)):
            strengths[i], cosines[i], ends[i] = spectrum.exact(i, group), value, interval
        i = group.start
        if loadings is not None and every is not None and len(group) == 1 and i < min(k, SHOWN):
            intervals = spectrum.loadings(i, every)
            if intervals is not None:
                loadings[i] = -intervals[:, ::-1] if float(vectors[i] @ every[:, i]) < 0 else intervals
    return Alignment(spectrum.values[:k], count, groups, strengths, cosines, ends, loadings)


def zero_matrix_bound(release: Release) -> float | None:
    """Return the 0.95 bound on the eigenvalues of a zero matrix with this noise; None if unknown."""
    # a test of the zero matrix; it does not count components
    law = noise_law(release)
    return None if law is None else float(_eigenvalue_errors(release, law, np.zeros(1))[0])


def components_above_noise(release: Release, product: Callable[[Values], Values] | None = None) -> Components:
    """Return the components of a release above the noise."""
    law = noise_law(release)
    if law is None:
        raise UsageError(_unknown_noise(release.mechanism))
    most = release.bound.columns - (product is not None)
    if product is None and _is_small(release):
        count = _full_spectrum(release, law)[0].counted()
    else:
        computed, count, before = 0, 0, -1
        while computed < most and count != before:  # eigenvalues not computed may hide some
            computed, before = min(max(_FIRST_COUNT, 4 * computed), most), count
            eigenvalues = (
                _eigenvalues(release, computed) if product is None else highest_eigenvalues(release, computed, product)
            )
            count = _top_spectrum(release, law, eigenvalues).counted()
    if not count:
        raise none_above_noise("this release")
    return components(release, count, product)


def none_above_noise(where: str) -> BelowNoiseError:
    """Return the error for an automatic number of components that is 0."""
    return BelowNoiseError(
        f"No component of {where} can be distinguished from the noise and the other components. {step('forecast')} "
        f"reports the budget or the number of rows needed. {parameter('components', 'K')} returns K components anyway."
    )


def require_alignment(release: Release, model: Components) -> Alignment:
    """Return the alignment of components; refuse a release of unknown noise distribution."""
    result = alignment(release, model)
    if result is None:
        raise UsageError(_unknown_noise(release.mechanism))
    return result


def require_noise_distribution(request: ReleaseRequest, columns: int) -> None:
    """Refuse an automatic number of components for unknown noise, before the release is charged."""
    subspace = request.mechanism_info.output is Output.COMPONENTS
    if subspace or law_of(planned(without_choices(request), Dimensions(columns)).moment.noise, columns) is None:
        raise UsageError(_unknown_noise(request.mechanism))


def _unknown_noise(mechanism: str) -> str:
    return (
        f"The noise of {mechanism} has no known distribution, so components above it cannot be counted. Pass their "
        f"number ({parameter('components', 'K')})."
    )


def loadings_json(vectors: Values, ends: Values | None, names: Sequence[str]) -> dict[str, object]:
    """Return the largest loadings of the first components by name, with their intervals or nulls, as JSON values."""
    listed = [
        [
            {"name": names[j], "value": float(vector[j]), "low": _end(ends, (i, j, 0)), "high": _end(ends, (i, j, 1))}
            for j in np.argsort(-np.abs(vector), kind="stable")[:SHOWN]
            if vector[j]
        ]
        for i, vector in enumerate(vectors[:SHOWN])
    ]
    return {"largest_loadings": listed}


def loadings_table(model: Components, ends: Values | None, names: Sequence[str]) -> dict[str, Sequence[object]]:
    """Return all loadings as columns of a table, one row per component and column; None for an unknown end."""
    k, d = model.components.shape
    values = [None] * k if model.eigenvalues is None else model.eigenvalues.tolist()
    indices = [(i, j) for i in range(k) for j in range(d)]
    return {
        "component": [i + 1 for i, _ in indices],
        "eigenvalue": [values[i] for i, _ in indices],
        "column": [names[j] for _, j in indices],
        "loading": model.components.reshape(-1).tolist(),
        "low": [_end(ends, (i, j, 0)) for i, j in indices],
        "high": [_end(ends, (i, j, 1)) for i, j in indices],
    }


def _end(ends: Values | None, index: tuple[int, int, int]) -> float | None:
    return None if ends is None or np.isnan(ends[index]) else float(ends[index])
