"""The components of a release: how many can be told from noise, how well each is aligned, and what it is made of.

:mod:`dpdist.pca.overlap` has the measure. It takes the variance of the error between two eigenvectors. Let ``R = DAD``
be the matrix whose eigenvectors are the components, with eigenvalues l and eigenvectors u: D is the identity for
components of the released matrix A, and ``diag(A_jj^-1/2)`` for those of the correlation matrix
(:mod:`dpdist.pca.correlation`). Let A have the error ``N - x e' - e x'``: N the noise, with rounding, of variance
``on`` and ``off`` the diagonal, and e the noise of the mean x, of variance ``t²`` an entry. Write ``a_m = D u_m``. To
first order the error of R between u_m and u_k has the variance

    off (|a_m|² |a_k|² + (a_m.a_k)² - 2 q) + on (1 - c)² q + t² |(a_m.x) a_k + (a_k.x) a_m - 2 c (x a_m a_k)|²,

``q = sum_j a_mj² a_kj²``, and c is 0, or ``(l_k + l_m) / 2`` for correlations: a column that is divided by a wrong
deviation changes R by ``-(F R + R F)/2``, F the diagonal of the error of ``D A D``. Where n is private, its relative
error of variance h² adds ``h² ((a_m.x) (a_k.x) - c sum_j x_j² a_mj a_kj)²``. Of a release of more than 2000 columns
only the largest eigenvalues are known. Then ``off + t² |x|² + h² |x|⁴`` is taken, which is not less.

**Eigenvalues.** By Weyl's inequality each released eigenvalue differs from the exact one, of the clipped rows, by at
most the largest eigenvalue of the error, for all at once: the edge of the noise (:mod:`dpdist.pca.noise_edge`) at
confidence 0.95, and the stated error of rounding (:mod:`dpdist.pca.bias`). With a private mean, ``x e' + e x' + e
e'`` has rank two, and counts in full: |e| is at most ``t (sqrt(d) + 2.12)`` and -x.e at most ``3 t |x|``, each with
probability 0.998. Under add-remove m is private as well. Its relative error h, at most 3 of its standard deviations,
multiplies the matrix, which adds ``h l`` for each eigenvalue, and adds ``h |x|²``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpdist.errors import BelowNoiseError, UsageError
from dpdist.mechanisms.info import Output
from dpdist.naming import parameter, step
from dpdist.pca.bias import Rounding, rounding
from dpdist.pca.components import Components, about_mean, components, highest_eigenvalues, mean_variance
from dpdist.pca.noise_edge import CONFIDENCE, NoiseLaw, law_of
from dpdist.pca.overlap import FAR, Spectrum
from dpdist.release.artefact import Release
from dpdist.release.request import ReleaseRequest
from dpdist.rows.bounding import DITHERED

Values = npt.NDArray[np.float64]
MOST = 2000
"""Columns of which all eigenvectors are found."""
SHOWN = 10
"""Components of which loadings have intervals, and loadings of each that are listed."""
_FIRST_LOOK = 8
"""Components that are looked at first, to see how many are counted; then four times those that are."""


@dataclass(frozen=True)
class EntryNoise:
    """Variances of the noise, in the units of the bounded rows."""

    on: float
    off: float
    mean: float  # on an entry of the mean
    centre: Values  # the mean itself
    count: float = 0.0  # relative, of a private n
    sure: float = 1.0  # the share of ``off`` that rounding has no part in

    @classmethod
    def of(cls, release: Release) -> EntryNoise:
        """Return those of a release of a second moment."""
        on, off = entry_variances(release)
        rounded = rounding(release)
        sure = 1.0 if rounded is None or not off else 1 - rounded.variances[1] / off
        return cls(on, off, mean_variance(release), about_mean(release).mean, _count_error(release) ** 2, sure)


@dataclass(frozen=True)
class Alignment:
    """What is told of the first k components of a release, in the units of the eigenvalues.

    NaN of components that are not counted.
    """

    eigenvalues: Values  # (k,), descending, as released
    counted: int  # how many components are counted, which may be more than k
    groups: tuple[range, ...]  # the counted ones in groups of those that cannot be told apart
    strengths: Values  # (k,): about what the exact eigenvalues are
    squared_cosines: Values  # (k,): mean squared cosine of the span of each component's group with the exact one
    cosine_intervals: Values  # (k, 2): of these
    loadings: Values | None  # (k, d, 2): between what ends the exact loadings lie; NaN where that is not told
    edge: float | None = None  # of noise, rounding and a private mean, at confidence 0.95; None of correlations
    errors: Values | None = None  # (k,): how far each exact eigenvalue is at most, for all at once; None likewise
    rounding: Rounding | None = None  # None where none is stated

    @property
    def intervals(self) -> Values:
        """(k, 2): where the exact eigenvalues of the clipped rows lie, with probability 0.95 for all at once."""
        errors = math.inf if self.errors is None else self.errors
        return np.maximum(np.column_stack([self.eigenvalues - errors, self.eigenvalues + errors]), 0)

    def group_of(self, component: int) -> range | None:
        """Return the group of a component, counted from 0; None of one that is not counted."""
        return next((group for group in self.groups if component in group), None)

    def to_json(self) -> dict[str, object]:
        """Return what is said of the components as JSON values."""
        value: dict[str, object] = {
            "above_noise": min(self.counted, len(self.eigenvalues)),
            "groups": [[group.start + 1, group.stop] for group in self.groups if group.start < len(self.eigenvalues)],
            "squared_cosines": known(self.squared_cosines),
            "squared_cosine_intervals": [known(ends) for ends in self.cosine_intervals],
        }
        if self.errors is not None:
            value |= {"noise_edge": self.edge, "confidence": CONFIDENCE, "strengths": known(self.strengths)}
            value |= {"intervals": self.intervals.tolist()}
        return value | ({} if self.rounding is None else self.rounding.to_json())


def known(values: Values) -> list[float | None]:
    """Return numbers as JSON values, None for NaN."""
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
    least = np.finfo(float).tiny  # of two columns that are one, rounding leaves less than 0
    return np.maximum(variances, least)


def gap_variances(values: Values, vectors: Values, noise: EntryNoise, divisor: Values) -> Values:
    """Return the variances of the distances between neighbouring eigenvalues of a correlation matrix, (d - 1,).

    Its diagonal has no noise, so between the eigenvectors of two columns, which are always the same, there is none
    either, but there is in the order of their eigenvalues. Noise of a private mean is left out, which is of lower
    order. Parameters as of :func:`pair_variances`.
    """
    a = divisor[:, None] * vectors
    squares, left = a**2, (a**2) * (1 - values)
    one, other = slice(None, -1), slice(1, None)
    lengths = squares.sum(axis=0)
    inner = (a[:, one] * a[:, other]).sum(axis=0)
    fourth, both = (squares**2).sum(axis=0), (squares[:, one] * squares[:, other]).sum(axis=0)
    off = lengths[one] ** 2 - fourth[one] + lengths[other] ** 2 - fourth[other] - 2 * (inner**2 - both)
    return 2 * noise.off * off + noise.on * ((left[:, one] - left[:, other]) ** 2).sum(axis=0)


def entry_variances(release: Release) -> tuple[float, float]:
    """Return the variance of the noise on an entry on the diagonal, and off it, rounding included.

    They are in the squared units of the components' eigenvalues: per row where they are.
    """
    on, off = release.noise.variance_diagonal, release.noise.variance_off_diagonal
    if on is None or off is None:
        raise UsageError(f"{release.mechanism} states no variance of the entries: it adds no noise to them.")
    unit = release.bound.unit**2 / (release.row_count or 1.0)
    rounded = rounding(release)
    more = (0.0, 0.0) if rounded is None else rounded.variances
    return on * unit**2 + more[0], off * unit**2 + more[1]


def _count_error(release: Release) -> float:
    """Return the standard deviation of a private n over itself; 0 where n is public or not released."""
    constant, count = release.bound.constant, release.row_count
    if release.rows is not None or not constant or not count:
        return 0.0
    return math.sqrt(release.noise.variance_diagonal or 0.0) / (constant**2 * count)


def noise_law(release: Release) -> NoiseLaw | None:
    """Return the law of the noise in the units of the components' eigenvalues; None where it is not known."""
    if release.subspace is not None:
        return None
    rows = 1.0 if release.row_count is None else release.row_count
    return law_of(release.noise, release.bound.columns, release.bound.unit**2 / rows) if rows > 0 else None


def _centring_error(release: Release) -> float:
    """Return what noise and rounding of a private mean and n add to an eigenvalue, at most, but for h times itself."""
    total, count = release.row_sum, release.row_count
    if total is None or count is None:
        return 0.0
    d, constant, noise = release.bound.columns, release.bound.constant, release.noise
    rounded = constant**2 * count / 4 if release.bound.rule == DITHERED and count > 0 else 0.0
    deviation = math.sqrt((noise.variance_off_diagonal or 0.0) + rounded) * release.bound.unit / (constant * count)
    length = deviation * (math.sqrt(d) + FAR / math.sqrt(2))
    mean = float(np.linalg.norm(total)) / count + length
    return mean * (length + FAR * deviation) + mean**2 * FAR * _count_error(release)


def _eigenvalue_errors(release: Release, law: NoiseLaw, eigenvalues: Values) -> Values:
    """Return how far each exact eigenvalue is from the released one, at most, with probability 0.95 for all at once."""
    rounded = rounding(release)
    off, shift = (0.0, 0.0) if rounded is None else (rounded.error, rounded.shift)
    error = law.edge_at(CONFIDENCE) + _centring_error(release) + off + shift
    relative = min(FAR * _count_error(release), 0.5)
    return (error + relative * np.maximum(eigenvalues, 0)) / (1 - relative)


def _is_whole(release: Release) -> bool:
    return release.in_memory and release.bound.columns <= MOST


def _whole(release: Release, law: NoiseLaw) -> tuple[Spectrum, Values]:
    """Return the spectrum of a release of few columns, and all eigenvectors, a column each."""
    values, vectors = np.linalg.eigh(about_mean(release).matrix(release.second_moment))
    values, vectors = values[::-1].copy(), vectors[:, ::-1]
    noise = EntryNoise.of(release)
    return Spectrum(values, pair_variances(values, vectors, noise), law, sure=noise.sure), vectors


def _part(release: Release, law: NoiseLaw, values: Values) -> Spectrum:
    """Return the spectrum of a release of which only the largest eigenvalues are known."""
    noise = EntryNoise.of(release)
    squared = float(noise.centre @ noise.centre)
    variance = noise.off + noise.mean * squared + noise.count * squared**2
    rest = release.bound.columns - len(values)
    return Spectrum(values, np.full((len(values),) * 2, variance), law, rest, noise.sure)


def alignment(release: Release, found: Components) -> Alignment | None:
    """Say how well components of a release are aligned; None where the law of its noise is not known.

    Of a release that is too large for memory only these eigenvalues are known, and the last one is never counted.
    """
    law = noise_law(release)
    if law is None or found.eigenvalues is None:
        return None
    vectors: Values | None
    if _is_whole(release):
        spectrum, vectors = _whole(release, law)
    else:
        values, vectors = found.eigenvalues, None
        if release.in_memory:  # some that follow tell more of these
            values = _eigenvalues(release, min(max(_FIRST_LOOK, 4 * len(values)), release.bound.columns))
        spectrum = _part(release, law, values)
    return replace(
        aligned(spectrum, found.components, vectors),
        edge=noise_reach(release),
        errors=_eigenvalue_errors(release, law, found.eigenvalues),
        rounding=rounding(release),
    )


def _eigenvalues(release: Release, count: int) -> Values:
    values = components(release, count).eigenvalues
    if values is None:
        raise AssertionError("a release without eigenvalues has no law of noise")
    return values


def aligned(spectrum: Spectrum, vectors: Values, every: Values | None) -> Alignment:
    """Say of each of the first components, (k, d), what its spectrum tells."""
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
            told = spectrum.loadings(i, every)
            if told is not None:
                loadings[i] = -told[:, ::-1] if float(vectors[i] @ every[:, i]) < 0 else told
    return Alignment(spectrum.values[:k], count, groups, strengths, cosines, ends, loadings)


def noise_reach(release: Release) -> float | None:
    """Return what an eigenvalue of a matrix that holds nothing stays below, with probability 0.95; None: nobody knows.

    It is a test that nothing is there, and counts no components.
    """
    law = noise_law(release)
    return None if law is None else float(_eigenvalue_errors(release, law, np.zeros(1))[0])


def counted_components(release: Release, product: Callable[[Values], Values] | None = None) -> Components:
    """Return the components of a release that are counted."""
    law = noise_law(release)
    if law is None:
        raise UsageError(_no_law(release.mechanism))
    most = release.bound.columns - (product is not None)
    if product is None and _is_whole(release):
        count = _whole(release, law)[0].counted()
    else:
        looked, count, before = 0, 0, -1
        while looked < most and count != before:  # eigenvalues that were not computed hide some: look on until none is
            looked, before = min(max(_FIRST_LOOK, 4 * looked), most), count
            found = _eigenvalues(release, looked) if product is None else highest_eigenvalues(release, looked, product)
            count = _part(release, law, found).counted()
    if not count:
        raise none_counted("this release")
    return components(release, count, product)


def none_counted(where: str) -> BelowNoiseError:
    """Return what is raised where components are left to the noise, and none is counted."""
    return BelowNoiseError(
        f"No component of {where} can be told from noise, or from what is beside it. {step('forecast')} says how much "
        f"budget or how many rows it takes. {parameter('components', 'K')} takes K components all the same."
    )


def require_alignment(release: Release, found: Components) -> Alignment:
    """Return what is told of components of a release whose noise has a known law."""
    told = alignment(release, found)
    if told is None:
        raise UsageError(_no_law(release.mechanism))
    return told


def require_law(request: ReleaseRequest, columns: int) -> None:
    """Refuse to leave the number of components to noise of which no law is known, before it is paid for."""
    subspace = request.mechanism_info.output is Output.COMPONENTS
    if subspace or law_of(request.with_placeholders.calibrated(columns).noise, columns) is None:
        raise UsageError(_no_law(request.mechanism))


def _no_law(mechanism: str) -> str:
    return (
        f"The noise of {mechanism} has no known law, so components cannot be told from noise: pass their number "
        f"({parameter('components', 'K')})."
    )


def loadings_json(vectors: Values, ends: Values | None, names: Sequence[str]) -> dict[str, object]:
    """Return the largest loadings of the first components by name, each with its ends or nulls, as JSON values."""
    listed = [
        [
            {"name": names[j], "value": float(vector[j]), "low": _end(ends, (i, j, 0)), "high": _end(ends, (i, j, 1))}
            for j in np.argsort(-np.abs(vector), kind="stable")[:SHOWN]
            if vector[j]
        ]
        for i, vector in enumerate(vectors[:SHOWN])
    ]
    return {"largest_loadings": listed}


def loadings_table(found: Components, ends: Values | None, names: Sequence[str]) -> dict[str, Sequence[object]]:
    """Return all loadings as columns of a table, a row for each component and column; None where an end is unknown."""
    k, d = found.components.shape
    values = [None] * k if found.eigenvalues is None else found.eigenvalues.tolist()
    places = [(i, j) for i in range(k) for j in range(d)]
    return {
        "component": [i + 1 for i, _ in places],
        "eigenvalue": [values[i] for i, _ in places],
        "column": [names[j] for _, j in places],
        "loading": found.components.reshape(-1).tolist(),
        "low": [_end(ends, (i, j, 0)) for i, j in places],
        "high": [_end(ends, (i, j, 1)) for i, j in places],
    }


def _end(ends: Values | None, place: tuple[int, int, int]) -> float | None:
    return None if ends is None or np.isnan(ends[place]) else float(ends[place])
