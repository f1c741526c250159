"""`laplace` and `laplace-published`: discrete Laplace noise on the integer triangle, pure epsilon-differential privacy.

**Distribution.** The entries on and above the diagonal get independent integers with ``P(x) ∝ exp(-|x| / t)``, t an
integer number of lattice units; one lattice unit of the moment is ``C² / 4^b``.

**Theorem.** For integer triangles M and M' the probabilities of any release differ by a factor of at most
``exp(|M - M'|_1 / t)``, by the triangle inequality in each entry; the norm counts the triangle once. So the loss is
``Delta_1 / t``, Delta_1 the integer sensitivity of the triangle in that norm.

**Sensitivity** (S the largest squared row norm; d columns; proofs in :mod:`dpdist.core.mechanisms.sensitivity`).

* add-remove: ``sum_{i<=j} |v_i v_j| = (|v|_1² + |v|_2²) / 2 <= (d + 1) S / 2``, attained by rows of equal entries.
* replace-one: ``sqrt((d+2)² + 4 floor(d/2) ceil(d/2)) S / 2``, about ``(d + 1) S / sqrt(2)``, attained by two rows
  that are constant on either half of the columns. For one column it is S.

Both are rounded down, because the norm of an integer matrix is an integer. With private centring they are bounds that
are not attained, because the constant entry never changes.

**Scales.** `laplace` uses the least t that keeps epsilon, ``ceil(Delta_1 / epsilon)``. `laplace-published` is
algorithm 1 of Jiang, Xie & Zhang (2016), ``t = ceil(2 d S / epsilon)``: ``2 d S`` exceeds Delta_1 under both relations,
so its claim holds, with 2.8 times (replace-one) or 4 times (add-remove) the necessary noise at large d.

**Arithmetic.** The noise is drawn exactly (:mod:`dpdist.core.noise.lattice`) and the moment is an integer matrix:
nothing is idealised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpdist.core.mechanisms.base import (
    IndependentEntries,
    Mechanism,
    Proved,
    proved,
    require_on_lattice,
)
from dpdist.core.mechanisms.info import MechanismInfo
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.lattice import MAX_SCALE, discrete_laplace
from dpdist.core.privacy.guarantee import MICRO, Arithmetic, PrivacyLoss
from dpdist.core.triangle import Band, Triangle


@dataclass(frozen=True)
class CalibratedLaplace(Proved, IndependentEntries):
    """Discrete Laplace noise of one integer scale on every entry of the triangle."""

    size: int
    scale: int

    @property
    def noise(self) -> Noise:
        variance = 0.5 / math.sinh(0.5 / self.scale) ** 2
        return Noise("discrete-laplace", EdgeKind.LAPLACE, variance, variance, details={"scale": self.scale})

    def draw_band(self, band: Band, entropy: Entropy) -> Triangle:
        return discrete_laplace(self.scale, band.entries, entropy)


def _calibrated(query: LatticeQuery, loss: PrivacyLoss, sensitivity: int) -> CalibratedLaplace:
    """Return the least integer scale t with ``sensitivity / t <= epsilon``."""
    scale = -(-sensitivity * MICRO // loss.epsilon_micro)
    require_on_lattice(query, loss, scale, MAX_SCALE)
    if query.triangle_l1 * MICRO > loss.epsilon_micro * scale:
        raise AssertionError("the rounded scale exceeds epsilon")
    guarantee = proved(query, loss, __name__, arithmetic=Arithmetic.INTEGER_EXACT)
    return CalibratedLaplace(query.size, scale, guarantee=guarantee)


class Laplace:
    """Discrete Laplace noise calibrated to the l1 sensitivity of the triangle."""

    info = MechanismInfo(
        name="laplace",
        law="independent discrete Laplace entries on and above the diagonal",
        sensitivity="l1 of the triangle: sqrt(d²/2 + d + 1) C² replace-one (+ 3/4 for odd d; C² for one column), "
        "(d+1)/2 C² add-remove (tight)",
        claimed="epsilon (pure)",
        proved="epsilon (pure)",
        arithmetic=Arithmetic.INTEGER_EXACT,
        cost="d(d+1)/2 discrete Laplace draws",
        reference="Dwork, McSherry, Nissim & Smith 2006; Canonne, Kamath & Steinke 2020; sensitivity in "
        "dpdist.core.mechanisms.laplace",
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss) -> CalibratedLaplace:
        return _calibrated(query, loss, query.triangle_l1)


class LaplacePublished:
    """Laplace noise with the scale of Jiang, Xie & Zhang 2016, algorithm 1."""

    info = MechanismInfo(
        name="laplace-published",
        law="independent discrete Laplace entries on and above the diagonal",
        sensitivity="l1 of the triangle as published, 2d C²: 2.8 times too large replace-one, 4 times add-remove",
        claimed="epsilon (pure), replace-one",
        proved="epsilon (pure), replace-one and add-remove, with more noise than necessary: see laplace",
        arithmetic=Arithmetic.INTEGER_EXACT,
        cost="d(d+1)/2 discrete Laplace draws",
        reference="Jiang, Xie & Zhang 2016, algorithm 1",
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss) -> CalibratedLaplace:
        return _calibrated(query, loss, 2 * query.size * query.bound)


MECHANISMS: tuple[Mechanism, ...] = (Laplace(), LaplacePublished())
