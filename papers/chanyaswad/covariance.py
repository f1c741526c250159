"""The first principal component of Movement and the covariance of Cardiotocography, from private second moments.

Entries lie in [-1, 1], so rows have norm at most sqrt(d): the package's mechanisms answer at that clip norm, and the
answer is divided by the public n. The directions of the directional variants are treated as known where they are the
exact eigenvectors ("known directions": no mechanism, but the best that directional noise could hope for); the private
ones spend 0.3 of epsilon and of delta on directions from a Gaussian second moment, and the rest on the release. Both
divide precision in two (binary); "water-filled" knows the eigenvalues too, and divides it as the paper calls optimal.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpdist import PrivacyLoss, ReleaseRequest
from dpdist.answers.eigen import top_eigenpairs
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.floats import haar
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from papers.chanyaswad.regression import COARSE, REFERENCES, SKETCH, loss_of, text_of
from papers.common.answers import (
    PublicMoment,
    moment_of,
    private_components,
    private_moment,
    request_for,
)
from papers.common.data import Floats
from papers.common.runs import Json

SHARE = 0.95
"""Of the precision, what the informative directions get together."""
FOR_DIRECTIONS = 0.3
"""Share of epsilon and delta spent on private directions."""
_LEAST = 2.0**-20
"""Of the largest eigenvalue, whose square is a variance: these are positive."""
_MECHANISMS = {
    "MVG, theorem 2": "mvg",
    "MVG, theorem 3": "mvg-psd",
    "Gaussian, classical": "analyze-gauss",
    "Laplace": "laplace-published",
    "JL transform": "jl",
    "Gaussian, exact": "gaussian",
    "MVG, exact": "mvg-exact",
    "Laplace, exact": "laplace",
    "JL transform, exact": "jl",
    "two-sided Wishart": "two-sided-wishart",
}
_KNOWN, _PRIVATE, _FILLED = ", known directions", ", private directions", ", water-filled"
_COMPARED = {
    "MVG, theorem 2": True,
    f"MVG, theorem 2{_KNOWN}": True,
    f"MVG, theorem 2{_FILLED}": True,
    f"MVG, theorem 2{_PRIVATE}": True,
    "MVG, theorem 3": True,
    f"MVG, theorem 3{_KNOWN}": True,
    f"MVG, theorem 3{_FILLED}": True,
    f"MVG, theorem 3{_PRIVATE}": True,
    "Gaussian, classical": True,
    "Laplace": True,
    "exponential": True,
    "JL transform": True,
    "Gaussian, exact": False,
    f"MVG, exact{_KNOWN}": False,
    "Laplace, exact": False,
    "JL transform, exact": False,
    "two-sided Wishart": False,
}
COMPONENT_METHODS = {"random direction": True} | _COMPARED
COVARIANCE_METHODS = {"answering zero": True} | _COMPARED


def _moment(rows: Floats, method: str) -> PublicMoment:
    """Return the exact moment; on a coarser grid where the noise would leave 64 bits."""
    coarse = method == "JL transform" or method.endswith(_FILLED)
    return moment_of(rows, math.sqrt(rows.shape[1]), COARSE if coarse else 16)


def _split(loss: PrivacyLoss) -> tuple[PrivacyLoss, PrivacyLoss]:
    first = PrivacyLoss(round(FOR_DIRECTIONS * loss.epsilon_micro), round(FOR_DIRECTIONS * loss.delta_atto))
    return first, PrivacyLoss(loss.epsilon_micro - first.epsilon_micro, loss.delta_atto - first.delta_atto)


def _directions(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    """Return the eigenvectors as rows, the largest eigenvalue first."""
    return tuple(tuple(row) for row in np.linalg.eigh(matrix)[1].T[::-1].tolist())


def request_of(method: str, moment: PublicMoment, informative: int) -> ReleaseRequest:
    """Return the request of one release; private directions are drawn anew at every call.

    Parameters
    ----------
    method
        One of the methods above but the exponential mechanism and the references.
    moment
        The exact moment.
    informative
        How many of the first directions get less noise, where noise is directional.
    """
    loss, size = loss_of(moment.rows), moment.bound.width
    options: dict[str, Any] = {"rows": moment.rows, "sketch": SKETCH}
    options["ridge"] = "exact" if method.endswith("exact") else "published"
    name = method.removesuffix(_KNOWN).removesuffix(_PRIVATE).removesuffix(_FILLED)
    if method.endswith(_FILLED):
        values = np.linalg.eigvalsh(moment.matrix)[::-1] / moment.bound.clip_norm**2
        spectrum = tuple((np.maximum(values, _LEAST * values[0]) ** 2).tolist())
        options |= {"allocation": "optimal", "spectrum": spectrum, "directions": _directions(moment.matrix)}
    elif name != method:
        known = moment.matrix
        if method.endswith(_PRIVATE):
            first, loss = _split(loss)
            known = private_moment(request_for("gaussian", text_of(first), moment.bound, {}), moment)
        directions = _directions(known)
        options |= {"allocation": "binary", "informative": informative, "share": SHARE, "directions": directions}
        # the same allocation for the exact release: as the published theorem 3 would spread it, in shape
        shares = np.where(np.arange(size) < informative, SHARE / informative, (1 - SHARE) / (size - informative))
        basis = np.array(directions)
        options["sigma"] = tuple(tuple(row) for row in ((basis.T / np.sqrt(shares)) @ basis).tolist())
    return request_for(_MECHANISMS[name], text_of(loss), moment.bound, options)


def _estimate(method: str, moment: PublicMoment, informative: int) -> Floats:
    """Return a private second moment per row; the ridge of a JL transform, which is public, is subtracted."""
    size = moment.bound.width
    if method == "answering zero":
        return np.zeros((size, size))
    if method == "exponential":
        request = request_for("amin", text_of(loss_of(moment.rows)), moment.bound, {"components": size})
    else:
        request = request_of(method, moment, informative)
    shift = planned(request, Dimensions(size)).moment.noise.mean_diagonal * moment.bound.unit**2
    found: Floats = (private_moment(request, moment) - shift * np.eye(size)) / moment.rows
    return found


def deficits(method: str, rows: Floats, times: int, seed: int) -> Floats:  # noqa: ARG001 - nothing but noise is random
    """Return how much less variance per row the private first component captures than the exact one."""
    moment = _moment(rows, method)
    exact = moment.matrix / moment.rows
    best = float(np.linalg.eigvalsh(exact)[-1])
    found = np.empty(times)
    for run in range(times):
        if method == "random direction":
            component = haar(rows.shape[1], 1, SYSTEM)[:, 0]
        elif method == "exponential":
            request = request_for("ppca", text_of(loss_of(moment.rows)), moment.bound, {"components": 1})
            component = private_components(request, moment, 1)[0]
        else:
            component = top_eigenpairs(_estimate(method, moment, 1), 1)[1][0]
        found[run] = max(0.0, best - float(component @ exact @ component))
    return found


def residuals(method: str, rows: Floats, times: int, seed: int) -> Floats:  # noqa: ARG001 - nothing but noise is random
    """Return the squared Frobenius error of the private second moment per row."""
    moment = _moment(rows, method)
    exact = moment.matrix / moment.rows
    informative = rows.shape[1] // 4
    found: Floats = np.array([np.sum((_estimate(method, moment, informative) - exact) ** 2) for _ in range(times)])
    return found


def _facts(rows: Floats, methods: list[str], informative: int) -> Json:
    moment = _moment(rows, "")
    loss = loss_of(moment.rows)
    values = np.linalg.eigvalsh(moment.matrix / moment.rows)[::-1]
    found: Json = {
        "n": moment.rows,
        "delta": loss.delta,
        "informative directions": informative,
        "eigenvalues of the second moment per row": [float(f"{v:.4g}") for v in values],
        "methods": {},
    }
    for method in methods:
        if method in {"exponential", *REFERENCES}:
            continue
        moment = _moment(rows, method)
        per_row = moment.bound.unit**2 / moment.rows
        request = request_of(method, moment, informative)
        calibrated = planned(request, Dimensions(moment.bound.width)).moment
        noise, guarantee = calibrated.noise, calibrated.guarantee
        stated: Json = {"mechanism": request.mechanism, "private as claimed": not request.for_reproduction}
        if "variance_off_diagonal" in noise:
            entries = np.array([noise["variance_diagonal"], noise["variance_off_diagonal"]])
            stated["standard deviation of an entry, on and off the diagonal"] = [
                float(f"{v:.4g}") for v in np.sqrt(entries) * per_row
            ]
        if "mean_diagonal" in noise:
            stated["ridge"] = float(f"{noise['mean_diagonal'] * per_row:.4g}")
        if guarantee is not None and guarantee.mu_squared is not None:
            stated["mu"] = float(f"{math.sqrt(guarantee.mu_squared):.4g}")
        found["methods"][method] = stated
    return found


def component_facts(rows: Floats, methods: list[str]) -> Json:
    """Return what is true of the methods of the first principal component."""
    return _facts(rows, methods, 1)


def covariance_facts(rows: Floats, methods: list[str]) -> Json:
    """Return what is true of the methods of covariance estimation."""
    return _facts(rows, methods, rows.shape[1] // 4)
