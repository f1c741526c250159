"""How often the intervals of what is answered from a release hold, in many releases of the same public rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from dpdist import UsageError
from dpdist.answers.alignment import components_above_noise
from dpdist.answers.block import block_of
from dpdist.answers.captured import captured
from dpdist.answers.design import centred_moment, partial_correlation
from dpdist.answers.regression import regressions
from dpdist.core.errors import BelowNoiseError
from dpdist.core.release.artefact import Release
from papers.common.drawn import Drawn

Floats = npt.NDArray[np.float64]
Found = dict[str, tuple[Floats, Floats]]
"""By kind of answer: the exact values, (m,), and the ends of their intervals, (m, 2)."""


@dataclass(frozen=True)
class Held:
    """What became of many releases.

    Attributes
    ----------
    shares
        By kind of answer, (m,): which share of the releases has each exact value in its interval. What differs from
        release to release, such as components beyond the first, is averaged.
    short
        The same of intervals of a fifth of the length.
    refused
        Number of releases that were refused an answer.
    """

    shares: dict[str, Floats]
    short: dict[str, Floats]
    refused: int


def covariance_of(scene: Drawn) -> Floats:
    """Return the exact covariance of the bounded rows of a scene with a constant, in their own units."""
    d = scene.bound.columns
    sums = scene.moment[:d, -1]
    moment: Floats = scene.moment[:d, :d] - np.outer(sums, sums) / scene.moment[-1, -1]
    return moment / len(scene.bounded)


def partials(scene: Drawn, release: Release) -> Found:
    """Return the exact partial correlations of a scene, with the ridge that was taken, and the intervals."""
    found = partial_correlation(release, range(scene.bound.columns))
    d = len(found.matrix)
    precision = np.linalg.inv(len(scene.bounded) * covariance_of(scene) + found.ridge * np.eye(d))
    spread = np.sqrt(np.diagonal(precision))
    pairs = np.triu_indices(d, 1)
    return {"partial correlations": ((-precision / np.outer(spread, spread))[pairs], found.intervals[pairs])}


def principal(scene: Drawn, release: Release, components: int | str) -> Found:
    """Return the exact regression of the last column on the released components of the others, and the intervals."""
    p, exact = scene.bound.columns - 1, scene.moment
    kappa = scene.bound.constant * scene.bound.unit
    (found,) = regressions(release, [p], range(p), components=components)
    k = found.components or 0
    basis = np.zeros((p + 1, k + 1))
    basis[:p, :k] = np.linalg.eigh(centred_moment(block_of(release, range(p)), p))[1][:, p - k :]
    basis[p, k] = 1
    places = [*range(p), p + 1]
    among = basis.T @ exact[np.ix_(places, places)] @ basis
    solved = basis @ np.linalg.solve(among, basis.T @ exact[places, p])
    u = np.array([*(-each.value for each in found.coefficients), 1.0, -found.intercept.value / kappa])
    r2 = 1 - float(u @ exact @ u) / (exact[p, p] - exact[p, -1] ** 2 / exact[-1, -1])
    return {
        "coefficients": (solved[:p], np.array([each.interval for each in found.coefficients])),
        "intercept": (solved[p:] * kappa, np.array([found.intercept.interval])),
        "R²": (np.array([r2]), np.array([found.r2_interval])),
    }


def variances(scene: Drawn, release: Release) -> Found:
    """Return what the exact covariance has along the components above the noise, and the intervals."""
    components = components_above_noise(release)
    found = captured(release, components)
    if found is None:
        raise UsageError("Nothing is known of the variances.")
    exact, vectors = covariance_of(scene), components.components
    along = np.einsum("ij,jk,ik->i", vectors, exact, vectors)
    trace, (k, d) = float(np.trace(exact)), vectors.shape
    shares = (np.array([along.sum() / trace]), found.share_intervals[-1:])
    rest = np.array([(trace - along.sum()) / max(1, d - k)])
    return {
        "variances of scores": (along, found.intervals),
        "share of variance": shares,
        "noise variance": (rest, found.rest_interval[None]),
    }


KINDS: dict[str, Callable[[Drawn, Release], Found]] = {
    "partial correlations": partials,
    "principal component regression": partial(principal, components="auto"),
    "variances": variances,
}


def held(scene: Drawn, answer: Callable[[Drawn, Release], Found], releases: int) -> Held:
    """Count the intervals that hold."""
    hits: dict[str, list[Floats]] = {}
    short: dict[str, list[Floats]] = {}
    refused = 0
    for _ in range(releases):
        try:
            found = answer(scene, scene.release())
        except (UsageError, BelowNoiseError):
            refused += 1
            continue
        for kind, (truth, ends) in found.items():
            middle, reach = ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / 2
            hits.setdefault(kind, []).append((np.abs(truth - middle) <= reach + 1e-9).astype(np.float64))
            short.setdefault(kind, []).append((np.abs(truth - middle) <= reach / 5).astype(np.float64))
    return Held(_averaged(hits), _averaged(short), refused)


def _averaged(found: dict[str, list[Floats]]) -> dict[str, Floats]:
    return {
        kind: np.mean(each, axis=0) if len({len(one) for one in each}) == 1 else np.array([np.concatenate(each).mean()])
        for kind, each in found.items()
    }
