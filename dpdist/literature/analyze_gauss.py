"""`analyze-gauss`, `sulq`, `mod-sulq`: Gaussian noise with published scales, and the guarantees of these scales.

**Distributions**, for A = sum of x x^T with ``|x|² <= S`` (papers that divide by n have noise n times smaller):

* `analyze-gauss` (Dwork, Talwar, Thakurta & Zhang 2014, algorithm 1): independent normals on and above the diagonal,
  standard deviation ``s = S sqrt(2 ln(1.25/delta)) / epsilon``, for adding or removing a row. Others use the same
  scale for replacing one (Imtiaz & Sarwate 2016), where the sensitivity is sqrt 2 larger.
* `mod-sulq` (Chaudhuri, Sarwate & Sinha 2013): the same shape,
  ``s = S ((d+1) sqrt(2 ln((d² + d) / (2 sqrt(2 pi) delta))) / epsilon + 1 / sqrt(epsilon))``.
* `sulq` (Blum, Dwork, McSherry & Nissim 2005): d² independent normals, not symmetric,
  ``s = S sqrt(8) d ln(d/delta) / epsilon``. The symmetric part is released. It has independent entries of variance
  s² on and s²/2 off the diagonal, and is drawn directly.

The scales are computed in float64 and rounded up to integers (lattice units). The guarantee holds for these integers.

**Guarantee.** The privacy loss between moments that differ by D is the Gaussian one with

    mu² = sum_{i<=j} D_ij² / s²                        (one metric: the triangle counts once)
    mu² = sum_i D_ii² / s² + sum_{i<j} D_ij² / t²      (sulq; 2 t² >= s², so at most |D|_F² / s²).

Both are at most ``|D|_F² / s²``, and rows of full norm along the axes (replaced: along two axes) have a diagonal D and
attain it: the release is exactly mu-GDP, ``mu = Delta_F / s``, with the Frobenius sensitivity of
:mod:`dpdist.core.mechanisms.sensitivity`. Its least delta at the requested epsilon is read off the analytic Gaussian
profile (Balle & Wang 2018, theorem 8) and rounded up. If it exceeds the requested delta, the claim is false, and the
guarantee states that delta: `analyze-gauss` under replace-one at (1, 1e-5) keeps 3.74e-5; even under add-remove it
fails for large epsilon, as the classical calibration does: (8, 0.01) keeps 1.78e-2. The other two have hundreds of
times the necessary noise at d = 100; `sulq` fails only for epsilon of the order of ``8 d² ln²(d/delta)``.

**Arithmetic.** As for `gaussian`: rounding commutes with adding an integer matrix, and the rounded normals are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.base import Mechanism, proved_at_delta, require_on_lattice
from dpdist.core.mechanisms.gaussian import RoundedNormals
from dpdist.core.mechanisms.info import DeltaUse, MechanismInfo
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.naming import parameter
from dpdist.core.noise.lattice import MAX_SCALE
from dpdist.core.privacy.accounting import gaussian_delta
from dpdist.core.privacy.guarantee import MICRO, Arithmetic, Guarantee, PrivacyLoss


@dataclass(frozen=True)
class CalibratedPublished(RoundedNormals):
    """Rounded normals with published scales."""

    claim: PrivacyLoss
    guarantee: Guarantee | None


def _analyze_gauss(_: int, loss: PrivacyLoss) -> float:
    return math.sqrt(2 * math.log(1.25 / loss.delta)) / loss.epsilon


def _sulq(size: int, loss: PrivacyLoss) -> float:
    return math.sqrt(8) * size * math.log(size / loss.delta) / loss.epsilon


def _mod_sulq(size: int, loss: PrivacyLoss) -> float:
    ratio = (size**2 + size) / (2 * math.sqrt(2 * math.pi) * loss.delta)
    if ratio <= 1:
        raise UsageError(
            f"The published scale of mod-sulq is undefined at {loss} and one column. Use "
            f"{parameter('mechanism', 'gaussian')} or a smaller delta."
        )
    return (size + 1) * math.sqrt(2 * math.log(ratio)) / loss.epsilon + 1 / math.sqrt(loss.epsilon)


@dataclass(frozen=True)
class PublishedGaussian:
    """Gaussian noise with a published scale."""

    info: MechanismInfo
    scale: Callable[[int, PrivacyLoss], float]
    symmetrised: bool = False

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss) -> CalibratedPublished:
        s = math.ceil(query.bound * self.scale(query.size, loss))
        require_on_lattice(query, loss, s, MAX_SCALE)
        t = math.isqrt((s * s + 1) // 2 - 1) + 1 if self.symmetrised else s
        mu_squared = Fraction(query.frobenius_squared, s**2)
        delta = gaussian_delta(Fraction(loss.epsilon_micro, MICRO), mu_squared)
        guarantee = proved_at_delta(query, loss, delta, __name__, Arithmetic.INTEGER_EXACT, mu_squared)
        return CalibratedPublished(query.size, s, t, loss, guarantee)


_COMMON: dict[str, Any] = {
    "arithmetic": Arithmetic.INTEGER_EXACT,
    "cost": "d(d+1)/2 normals",
    "delta": DeltaUse.REQUIRED,
    "replacement": "gaussian",
}

MECHANISMS: tuple[Mechanism, ...] = (
    PublishedGaussian(
        MechanismInfo(
            name="analyze-gauss",
            law="independent rounded normals of one variance on and above the diagonal",
            sensitivity="l2 of the triangle as published, C²: tight add-remove, sqrt(2) too small replace-one",
            claimed="(epsilon, delta), add-remove; used for replace-one as well",
            proved="exactly mu-GDP, so (epsilon, delta) where that profile allows it: add-remove up to about "
            "epsilon 4; replace-one mostly not (delta 3.74e-5 at (1, 1e-5))",
            reference="Dwork, Talwar, Thakurta & Zhang 2014, algorithm 1; replace-one: Imtiaz & Sarwate 2016",
            **_COMMON,
        ),
        _analyze_gauss,
    ),
    PublishedGaussian(
        MechanismInfo(
            name="sulq",
            law="symmetric part of d² independent normals; rounded normals, variance s² on and s²/2 off the diagonal",
            sensitivity="Frobenius: about 2d ln(d/delta) C² in effect",
            claimed="(epsilon, delta)",
            proved="(epsilon, delta), exactly mu-GDP, with far more noise than necessary: see gaussian",
            reference="Blum, Dwork, McSherry & Nissim 2005, as stated by Chaudhuri, Sarwate & Sinha 2013",
            **_COMMON,
        ),
        _sulq,
        symmetrised=True,
    ),
    PublishedGaussian(
        MechanismInfo(
            name="mod-sulq",
            law="independent rounded normals of one variance on and above the diagonal",
            sensitivity="l2 of the triangle: (d+1) C² in effect",
            claimed="(epsilon, delta), replace-one",
            proved="(epsilon, delta), exactly mu-GDP, with far more noise than necessary: see gaussian",
            reference="Chaudhuri, Sarwate & Sinha 2013, algorithm 1",
            **_COMMON,
        ),
        _mod_sulq,
    ),
)
