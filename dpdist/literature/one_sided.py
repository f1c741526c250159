"""Additive Wishart noise: `wishart`, calibrated to its exact profile, and `sn`, `jiang-wishart`, `sheffet-wishart`.

**Distribution.** ``E = s² Z Z^T``, Z of shape d x m, ``m >= d + 1``, entries standard normal, s² an integer number of
lattice units, rounded up. E is positive definite, so the answer exceeds the moment and is a second moment itself
without projection (up to d/2 lattice units of rounding, far below the least eigenvalue of E). Its mean is ``m s² I``,
which changes no eigenvector; ``mean_diagonal`` states it. ``Var E_ij = m s⁴`` off and ``2 m s⁴`` on the diagonal.

**Guarantee.** :mod:`dpdist.literature.wishart_profile` proves the profile: with ``kappa = (m - d + 1)/2`` and
``theta = 2 s²/C²`` the mechanism is a scalar query of sensitivity 1 with Gamma(kappa, theta) noise. The support of the
answer depends on the moment, so no mechanism of this kind is purely private, and delta is at least
``P(Gamma(kappa, theta) <= 1)``. delta decreases in theta, so rounding s² up keeps it.

* `wishart` uses the m with the least ``theta (sqrt m + sqrt d)²``, the edge of the spectrum of E, under add-remove
  (under replace-one within 1.2 % of the least), and the least theta for it: exact under add-remove, certified under
  replace-one, 0.2 to 2 % above the requirement of the worst pair found by a scan. Its eigenvectors are less accurate
  than those of `gaussian`; use it if the answer must dominate the moment.
* `sn` (Imtiaz & Sarwate 2016; withdrawn by the erratum of 2017): m = d + 1, ``s² = C²/(2 epsilon)``. kappa = 1, so the
  loss is infinite with probability ``1 - exp(-1/theta) = 1 - exp(-epsilon)`` and at most 1/theta otherwise: delta is
  ``1 - exp(-epsilon)`` at every epsilon' >= epsilon, under both relations. (A replacement has infinite loss if
  z <= c <= 1, with no larger probability; w for 0 attains it.)
* `jiang-wishart` (Jiang, Xie & Zhang 2016, algorithm 2): m = d + 1, ``s² = 3 C²/(2 epsilon)``; delta is
  ``1 - exp(-epsilon/3)`` at every epsilon' >= epsilon/3.
* `sheffet-wishart` (Sheffet 2015): ``m = d + floor(28 ln(4/delta)/epsilon²)``, s² = C². Six times the necessary noise
  at epsilon = 1; above about 5 it has too few degrees of freedom for its delta, and for m = d nothing is proved. The
  published scales are used under both relations.

**Arithmetic.** `wishart` is drawn exactly (:mod:`dpdist.core.noise.products`): as the moment is an integer matrix,
``M + rnd(E) = rnd(M + E)`` is post-processing of the real-valued mechanism: `integer-exact`. With
``arithmetic=ideal-real``, and for the published mechanisms, E is ``s² L L^T`` in float64, L the Bartlett factor:
``L_ii² ~ chi²`` with ``m - i + 1`` degrees of freedom (i = 1, ..., d), standard normals below the diagonal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpdist.core.mechanisms.base import (
    Additive,
    Matrix,
    Mechanism,
    proved,
    proved_at_delta,
    require_on_lattice,
)
from dpdist.core.mechanisms.info import DeltaUse, MechanismInfo
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.mechanisms.wishart import ARITHMETIC
from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.floats import gammas, normals
from dpdist.core.noise.products import rounded_wishart
from dpdist.core.privacy.guarantee import ATTO, MICRO, Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.core.triangle import Triangle, rounded
from dpdist.literature import ratios, wishart_profile
from dpdist.literature.ratios import LogRatio
from dpdist.literature.wishart_profile import add_remove_delta, least_theta, leaving_delta, replace_one_delta

_MAX_SPREAD = 2.0**56  # largest ``s² (sqrt m + sqrt d)²``: eigenvalues of E stay far inside int64


@dataclass(frozen=True)
class CalibratedWishart(Additive):
    """A Wishart matrix of fixed degrees of freedom and integer scale."""

    size: int
    columns: int
    scale: int
    arithmetic: Arithmetic
    guarantee: Guarantee | None
    claim: PrivacyLoss

    @property
    def noise(self) -> Noise:
        variance, mean = self.columns * float(self.scale) ** 2, float(self.columns * self.scale)
        details = {"degrees": self.columns, "scale": self.scale}
        return Noise("wishart", EdgeKind.WISHART, 2 * variance, variance, mean, details)

    def draw(self, entropy: Entropy) -> Triangle:
        if self.arithmetic is Arithmetic.INTEGER_EXACT:
            return rounded_wishart(self.size, self.columns, self.scale, entropy)
        factor = np.zeros((self.size, self.size))
        factor[np.tril_indices(self.size, -1)] = normals(self.size * (self.size - 1) // 2, entropy)
        squares = [2 * gammas((self.columns - i) / 2, 1, entropy)[0] for i in range(self.size)]
        np.fill_diagonal(factor, np.sqrt(squares))
        return rounded(self.scale * (factor @ factor.T))

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> LogRatio:
        return ratios.wishart(moment, neighbour, self.columns, self.scale)


@lru_cache(maxsize=256)
def least_noise(size: int, loss: PrivacyLoss, neighbours: Neighbours) -> tuple[int, float]:
    """Return degrees of freedom m and ``theta = 2 s²/C²`` that keep a loss with the least edge of the spectrum of E."""
    delta = loss.delta * (1 - 2.0**-50)  # the float may exceed the exact delta

    def edge(columns: int) -> float:
        theta = least_theta(loss.epsilon, delta, (columns - size + 1) / 2, Neighbours.ADD_REMOVE)
        return theta * (math.sqrt(columns) + math.sqrt(size)) ** 2

    # 2 kappa from d to 237 d (the smaller d, the more); the edge is flat around its least value
    columns = min((size - 1 + max(2, round(size * 1.2**j)) for j in range(31)), key=edge)
    # a single column has no orthogonal rows: replace-one is add-remove
    relation = neighbours if size > 1 else Neighbours.ADD_REMOVE
    return columns, least_theta(loss.epsilon, delta, (columns - size + 1) / 2, relation)


def _require_on_lattice(query: LatticeQuery, loss: PrivacyLoss, columns: int, scale: int) -> None:
    require_on_lattice(query, loss, scale * (math.sqrt(columns) + math.sqrt(query.size)) ** 2, _MAX_SPREAD)


def _published(query: LatticeQuery, loss: PrivacyLoss, columns: int, scale: int, delta: float) -> CalibratedWishart:
    """Return published noise with its true delta; 1: nothing is proved."""
    _require_on_lattice(query, loss, columns, scale)
    pure = PrivacyLoss(loss.epsilon_micro)
    guarantee = proved_at_delta(query, pure, delta, wishart_profile.__name__)
    return CalibratedWishart(query.size, columns, scale, Arithmetic.IDEAL_REAL, guarantee, loss)


class Wishart:
    """Wishart noise calibrated to its exact profile."""

    info = MechanismInfo(
        name="wishart",
        law="rounded Wishart, m from d+1 on, scale from the exact profile; positive definite",
        sensitivity="rank one or two, rows of full norm: reduces to Gamma((m-d+1)/2) noise",
        claimed="(epsilon, delta)",
        proved="(epsilon, delta)",
        arithmetic=Arithmetic.INTEGER_EXACT,
        cost="d m normals, m about 3 to 5 d; 2 to 6 d x d x m products",
        reference="profile in dpdist.literature.wishart_profile; corrects Imtiaz & Sarwate 2016, tightens Sheffet 2015",
        delta=DeltaUse.REQUIRED,
        options=(ARITHMETIC,),
        semidefinite=True,
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss, *, arithmetic: str) -> CalibratedWishart:
        columns, theta = least_noise(query.size, loss, query.neighbours)
        scale = math.ceil(Fraction(theta) * query.bound / 2)
        _require_on_lattice(query, loss, columns, scale)
        guarantee = proved(query, loss, wishart_profile.__name__, Arithmetic(arithmetic))
        return CalibratedWishart(query.size, columns, scale, guarantee.arithmetic, guarantee, loss)


class PublishedWishart:
    """Noise with d+1 degrees of freedom, published as purely private: ``s² = factor C² / (2 epsilon)``."""

    def __init__(self, name: str, factor: int, share: str, reference: str) -> None:
        self.factor = factor
        self.info = MechanismInfo(
            name=name,
            law=f"Wishart, d+1 degrees of freedom, scale C²/(2 {share})",
            sensitivity="rank one: reduces to exponential noise",
            claimed="epsilon (pure), replace-one",
            proved=f"not pure: delta = 1 - exp(-{share}), at any larger epsilon too",
            cost="d(d-1)/2 normals, d gamma draws, a d x d x d product",
            reference=reference,
            replacement="two-sided-wishart",
            semidefinite=True,
        )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss) -> CalibratedWishart:
        scale = -(-self.factor * query.bound * MICRO // (2 * loss.epsilon_micro))
        true_delta = leaving_delta(loss.epsilon, 1.0, 2 * scale / query.bound)
        return _published(query, loss, query.size + 1, scale, true_delta)


class SheffetWishart:
    """Wishart noise with enough degrees of freedom for (epsilon, delta)."""

    info = MechanismInfo(
        name="sheffet-wishart",
        law="Wishart, d + floor(28 ln(4/delta)/epsilon²) degrees of freedom, scale C²",
        sensitivity="rank one or two, rows of full norm: reduces to Gamma((m-d+1)/2) noise",
        claimed="(epsilon, delta)",
        proved="(epsilon, delta) with a far smaller delta up to epsilon 1; false above about 5",
        cost="d(d-1)/2 normals, d gamma draws, a d x d x d product",
        reference="Sheffet 2015",
        delta=DeltaUse.REQUIRED,
        replacement="wishart",
        semidefinite=True,
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss) -> CalibratedWishart:
        extra = math.floor(28 * math.log(4 / loss.delta) / loss.epsilon**2)
        kappa = (extra + 1) / 2
        if kappa < 1:
            true_delta = 1.0
        elif query.neighbours is Neighbours.ADD_REMOVE or query.size == 1:
            true_delta = add_remove_delta(loss.epsilon, kappa, 2.0)
        else:
            true_delta = replace_one_delta(loss.epsilon, kappa, 2.0, enough=1 / ATTO)
        return _published(query, loss, query.size + extra, query.bound, true_delta)


MECHANISMS: tuple[Mechanism, ...] = (
    Wishart(),
    PublishedWishart("sn", 1, "epsilon", "Imtiaz & Sarwate 2016, with the erratum of 2017"),
    PublishedWishart("jiang-wishart", 3, "(epsilon/3)", "Jiang, Xie & Zhang 2016, algorithm 2"),
    SheffetWishart(),
)
