"""Attacks: two neighbouring tables that are hard to hide, and the number an attacker computes from a release.

The pair attains the sensitivity: rows of full norm that are orthogonal (replace-one), or one row or none (add-remove);
for entrywise noise, rows along the sign pattern of the largest l1 change. Where the likelihood ratio of the two
releases is known in closed form, it is the attacker's number, and no other is better (Neyman & Pearson 1933). Elsewhere
it is the inner product of the release with the change, which is valid for every mechanism and optimal for Gaussian
noise in the Frobenius metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.mechanisms import registry
from dpdist.mechanisms.base import Answer, Calibrated, Matrix
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import SYSTEM, Entropy
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.triangle import Triangle, packed, unpacked

Statistic = Callable[[Matrix], float]
_FEW = 10


@dataclass(frozen=True)
class Held:
    """An exact moment that is known to the auditor: synthetic, not private."""

    values: npt.NDArray[np.int64]

    def triangle(self) -> Triangle:
        """Return the packed integers."""
        return packed(self.values)

    def matrix(self) -> Matrix:
        """Return the matrix as float64, (d, d)."""
        return self.values.astype(np.float64)

    def times(self, vectors: Matrix) -> Matrix:
        """Return the product with (d, k) vectors."""
        return self.matrix() @ vectors


@dataclass(frozen=True)
class AuditTask:
    """So many draws of one mechanism on either table of its pair; it travels to a worker."""

    mechanism: str
    query: LatticeQuery
    loss: PrivacyLoss
    options: dict[str, Any]
    draws: int

    def calibrated(self) -> Calibrated:
        """Return the mechanism as a release would use it."""
        return registry.calibrated(self.mechanism, self.query, self.loss, self.options)


def neighbouring_moments(query: LatticeQuery, noise: Mapping[str, Any]) -> tuple[Held, Held]:
    """Return the moments of two neighbouring tables whose difference is as large as the mechanism's norm sees it.

    One-sided Wishart noise of few degrees of freedom hides a row least where it replaces a row of zeros.
    """
    law = str(noise["law"])
    d, radius = query.size, math.isqrt(query.bound)
    v, w = np.zeros((2, d))
    if "laplace" in law and d > 1:
        half = (d + 1) // 2
        signs = np.ones((d, d))
        signs[half:, half:] = -1
        signs += np.diag(np.sign(np.diag(signs)))  # the triangle counts the diagonal once, the rest is mirrored
        _, vectors = np.linalg.eigh(signs)
        v, w = vectors[:, -1], vectors[:, 0]
        if query.neighbours is Neighbours.ADD_REMOVE:
            v = np.full(d, d**-0.5)
    else:
        v[0] = w[-1] = 1.0
    rows = [np.trunc(radius * row).astype(np.int64) for row in (v, w)]
    first, second = (np.outer(row, row) for row in rows)
    zeros = law == "wishart" and noise["degrees"] <= d + _FEW
    if query.neighbours is Neighbours.ADD_REMOVE or d == 1 or zeros:
        second = np.zeros_like(second)
    return Held(first), Held(second)


def statistic(calibrated: Calibrated, first: Held, second: Held) -> Statistic:
    """Return the attacker's number; large values speak for the first table."""
    noise, a, b = calibrated.noise, first.matrix(), second.matrix()
    law = str(noise["law"])
    if law == "wishart":
        degrees, scale, d = noise["degrees"], noise["scale"], len(a)
        power = (degrees - d - 1) / 2

        def ratio(y: Matrix) -> float:
            here, there = (_wishart_log_density(y - moment, power, scale) for moment in (a, b))
            return 0.0 if here == there else here - there  # outside both only by rounding to the lattice

        return ratio
    if "laplace" in law and "scale" in noise:
        upper = np.triu_indices(len(a))
        return lambda y: float(np.sum(np.abs(y - b)[upper] - np.abs(y - a)[upper])) / noise["scale"]
    if law in _NORMS:
        norm = _NORMS[law]
        return lambda y: norm(y - b) - norm(y - a)
    change = a - b
    square = float(np.sum(change**2))
    return lambda y: float(np.sum(y * change)) / square


def _wishart_log_density(e: Matrix, power: float, scale: float) -> float:
    """Log density of a Wishart matrix up to a constant; minus infinity off the positive definite cone."""
    values = np.linalg.eigvalsh(e)
    if values[0] <= 0:
        return -math.inf
    return power * float(np.sum(np.log(values))) - float(np.trace(e)) / (2 * scale)


_NORMS: dict[str, Callable[[Matrix], float]] = {
    "frobenius-norm": lambda e: float(np.linalg.norm(e)),
    "nuclear-norm": lambda e: float(np.abs(np.linalg.eigvalsh(e)).sum()),
}


def as_matrix(answer: Answer, size: int) -> Matrix:
    """Return a release as the attacker sees it: the matrix, or the projector on a subspace."""
    if answer.ndim == 1:
        return unpacked(answer.astype(np.int64, copy=False), size).astype(np.float64)
    rows = answer.astype(np.float64, copy=False)
    return rows.T @ rows


def attack(
    calibrated: Calibrated, query: LatticeQuery, draws: int, entropy: Entropy = SYSTEM
) -> npt.NDArray[np.float64]:
    """Draw releases of either table and return the attacker's numbers, shape (2, draws).

    A release outside the support of one of the tables gives an infinite number: the attacker is certain.
    """
    pair = neighbouring_moments(query, calibrated.noise)
    number = statistic(calibrated, *pair)
    found = [
        [number(as_matrix(calibrated.answer(moment, entropy), query.size)) for _ in range(draws)] for moment in pair
    ]
    return np.array(found)


def run(task: AuditTask) -> npt.NDArray[np.float64]:
    """Run one task on a worker; shape (2, draws)."""
    return attack(task.calibrated(), task.query, task.draws)
