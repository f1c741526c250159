"""Loadings of components, and between what ends the true ones lie: post-processing of a release.

Let ``R = D A D`` be the matrix whose eigenvectors are the components, with eigenvalues l and eigenvectors u: D is the
identity for components of the released matrix A, and ``diag(A_jj^-1/2)`` for those of the correlation matrix
(:mod:`dpdist.pca.correlation`). Let A have the error ``N - x e' - e x'``: N the noise, of variance ``on`` and ``off``
the diagonal, and e the noise of the mean x, of variance ``t²`` an entry. Write ``a_m = D u_m``. To first order
component k has in the direction of component m the error ``delta_mk / (l_k - l_m)``, where ``delta_mk``, the error of R
between the two, has the variance

    off (|a_m|² |a_k|² + (a_m.a_k)² - 2 q) + on (1 - c)² q + t² |(a_m.x) a_k + (a_k.x) a_m - 2 c (x a_m a_k)|²,

``q = sum_j a_mj² a_kj²``, and c is 0, or ``(l_k + l_m) / 2`` for correlations: a column that is divided by a wrong
deviation changes R by ``-(F R + R F)/2``, F the diagonal of the error of ``D A D``. Different m have independent errors
where N is invariant under rotations; else this is taken for granted.

So loading j of component k has the standard deviation ``s_j = sqrt(sum_m u_mj² var(delta_mk) / (l_k - l_m)²)`` across
the true one. The sum of all ``s_j²`` estimates the squared tangent of the angle between the two, ``T``: of noise with a
semicircle this is exact in the limit of many columns, if the eigenvalues are the released ones, noise included (the
derivative of the resolvent; Benaych-Georges & Nadakuditi 2011). The released component is the true one, times the
cosine ``1 / sqrt(1 + T)``, and the rest. So the true loading is estimated by ``sqrt(1 + T)`` times the released one,
and lies within ``2 s_j`` of that in about 95 of 100 releases (measured of 200 releases, in the mean over loadings: 93
to 96). Of correlations it is rougher, as no division is linear: 88 to 96, the less the closer columns are to the noise.
``tests/pca/test_loadings.py`` draws some of both. Of a component that does not stand above the noise nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpdist.pca.components import Components, about_mean, mean_variance
from dpdist.pca.scree import Scree, entry_variances
from dpdist.release.artefact import Release

Values = npt.NDArray[np.float64]
SURE = 2.0
"""Standard deviations between the middle of an interval and its end."""
_MOST = 1000
"""Columns of which all eigenvectors are found, for the intervals."""
_SHOWN = 10
"""Components of which they are found."""


@dataclass(frozen=True)
class EntryNoise:
    """Variances of the noise on the matrix and on the mean, and the mean itself, in units of the bounded rows."""

    on: float
    off: float
    mean: float
    centre: Values

    @classmethod
    def of(cls, release: Release) -> EntryNoise:
        """Return those of a release of a second moment."""
        on, off = entry_variances(release)
        return cls(on, off, mean_variance(release), about_mean(release).mean)


def loading_intervals(
    values: Values, columns: Values, count: int, noise: EntryNoise, divisor: Values | None = None
) -> Values:
    """Return between what ends the loadings of the leading components lie, from all eigenpairs.

    Parameters
    ----------
    values, columns
        All eigenvalues (d,), ascending, and their eigenvectors, (d, d), a column each.
    count
        Number of components, the largest first.
    noise
        Of the matrix A.
    divisor
        (d,): the diagonal of D, of correlations; None: components are those of A.

    Returns
    -------
    ndarray
        (count, d, 2), within -1 and 1, of eigenvectors with the signs that they have in ``columns``.
    """
    a = columns if divisor is None else divisor[:, None] * columns
    lengths, along = (a**2).sum(axis=0), a.T @ noise.centre
    found = np.empty((count, len(values), 2))
    for place in range(count):
        k = len(values) - 1 - place
        c = np.zeros(len(values)) if divisor is None else (values + values[k]) / 2
        products = a * a[:, [k]]
        q = (products**2).sum(axis=0)
        variance = noise.off * (lengths * lengths[k] + (a.T @ a[:, k]) ** 2 - 2 * q) + noise.on * (1 - c) ** 2 * q
        if noise.mean:
            shift = along * a[:, [k]] + along[k] * a - 2 * c * products * noise.centre[:, None]
            variance = variance + noise.mean * (shift**2).sum(axis=0)
        variance = np.maximum(variance, 0)  # of one column, or two that are one, rounding leaves less than 0
        gaps = values[k] - values
        gaps[k] = math.inf
        gaps[gaps == 0] = np.finfo(float).tiny
        spread = np.sqrt((columns**2 * np.minimum(variance / gaps**2, 1e12)).sum(axis=1))
        middle = columns[:, k] * math.sqrt(1 + (spread**2).sum())
        found[place] = np.column_stack([middle - SURE * spread, middle + SURE * spread])
    return np.clip(found, -1, 1, out=found)


def intervals_of(release: Release, found: Components, seen: Scree | None) -> Values | None:
    """Return between what ends loadings of the components of a release lie, (k, d, 2).

    NaN stands where a component does not stand above the noise, and beyond the tenth. None: the noise has no known
    edge, or there are more than 1000 columns.
    """
    d = release.bound.columns
    if seen is None or d > _MOST:
        return None
    count = min(seen.above, len(found.components), _SHOWN)
    ends = np.full((*found.components.shape, 2), np.nan)
    if count:
        values, columns = np.linalg.eigh(about_mean(release).matrix(release.second_moment))
        leading = columns[:, ::-1][:, :count]
        turned = np.sign((leading * found.components[:count].T).sum(axis=0))
        columns[:, ::-1][:, :count] = leading * turned
        ends[:count] = loading_intervals(values, columns, count, EntryNoise.of(release))
    return ends


def loadings_json(vectors: Values, ends: Values | None, names: Sequence[str]) -> dict[str, object]:
    """Return the largest loadings of the first components by name, each with its ends or nulls, as JSON values."""
    said = [
        [
            {
                "name": names[j],
                "value": float(vector[j]),
                "low": _known(ends, (i, j, 0)),
                "high": _known(ends, (i, j, 1)),
            }
            for j in np.argsort(-np.abs(vector), kind="stable")[:_SHOWN]
            if vector[j]
        ]
        for i, vector in enumerate(vectors[:_SHOWN])
    ]
    return {"largest_loadings": said}


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
        "low": [_known(ends, (i, j, 0)) for i, j in places],
        "high": [_known(ends, (i, j, 1)) for i, j in places],
    }


def _known(ends: Values | None, place: tuple[int, int, int]) -> float | None:
    return None if ends is None or np.isnan(ends[place]) else float(ends[place])
