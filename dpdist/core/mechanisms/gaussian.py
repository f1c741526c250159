"""`gaussian`: symmetric Gaussian noise in the Frobenius metric, exactly on the integer lattice.

**Distribution.** E is symmetric with independent entries on and above the diagonal, ``E_ii = rnd(s Z)`` and
``E_ij = rnd(t Z)``, Z standard normal, s and t integers with ``t >= s / sqrt 2`` (a Gaussian orthogonal ensemble,
rounded), in lattice units; one lattice unit of the moment is ``C² / 4^b``.

**Guarantee.** Before rounding, the privacy loss between moments that differ by D is the Gaussian one with

    mu² = sum_i D_ii² / s² + sum_{i<j} D_ij² / t² <= |D|_F² max(1/s², 1/(2 t²)),

because ``|D|_F²`` counts an off-diagonal entry twice. So the release is exactly mu-GDP with
``mu² = Delta_F² max(1/s², 1/(2 t²))``, a fraction of integers, and (epsilon, delta) for every pair on the analytic
Gaussian profile (Balle & Wang 2018, theorem 8). Noise off the diagonal is sqrt 2 smaller than in Analyze Gauss (Dwork
et al. 2014) at the same privacy: there the metric counts the triangle once. The bound is attained by orthogonal rows of
full norm (with one column, by replacing a zero row with one of full norm), so no smaller noise of this shape has this
guarantee.

**Arithmetic.** The moment is an integer matrix and rounding commutes with adding an integer, so M + rnd(E) is
post-processing of M + E; rnd(E) is sampled exactly (:mod:`dpdist.core.noise.lattice`). Nothing is idealised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from dpdist.core.mechanisms.base import (
    IndependentEntries,
    Mechanism,
    Proved,
    proved,
    require_on_lattice,
)
from dpdist.core.mechanisms.info import DeltaUse, MechanismInfo
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.lattice import MAX_SCALE, rounded_normal
from dpdist.core.privacy.accounting import gaussian_delta, gaussian_sigma
from dpdist.core.privacy.guarantee import MICRO, Arithmetic, PrivacyLoss
from dpdist.core.triangle import Band, Triangle


@dataclass(frozen=True)
class RoundedNormals(IndependentEntries):
    """Independent rounded normals of two fixed integer scales, on and off the diagonal."""

    law: ClassVar[str] = "rounded-gaussian"

    size: int
    sigma_diagonal: int
    sigma_off_diagonal: int

    @property
    def noise(self) -> Noise:
        on, off = self.sigma_diagonal, self.sigma_off_diagonal
        details = {"sigma_diagonal": on, "sigma_off_diagonal": off}
        return Noise(self.law, EdgeKind.NORMAL, float(on) ** 2, float(off) ** 2, details=details)

    def draw_band(self, band: Band, entropy: Entropy) -> Triangle:
        noise = rounded_normal(self.sigma_off_diagonal, band.entries, entropy)
        noise[band.diagonal] = rounded_normal(self.sigma_diagonal, band.height, entropy)
        return noise


@dataclass(frozen=True)
class CalibratedGaussian(Proved, RoundedNormals):
    """Symmetric rounded Gaussian noise."""

    law: ClassVar[str] = "rounded-gaussian-orthogonal"


def mu_squared_of(query: LatticeQuery, on: int, off: int) -> Fraction:
    """Return mu² of noise with these scales on and off the diagonal, exact."""
    return query.frobenius_squared * max(Fraction(1, on * on), Fraction(1, 2 * off * off))


class Gaussian:
    """Symmetric, Frobenius-weighted, analytically calibrated Gaussian noise on the lattice."""

    info = MechanismInfo(
        name="gaussian",
        law="symmetric; rounded normals, variance s² on and s²/2 off the diagonal",
        sensitivity="Frobenius: sqrt(2) C² replace-one (C² for one column), C² add-remove (tight)",
        claimed="(epsilon, delta)",
        proved="(epsilon, delta), exactly mu-GDP",
        arithmetic=Arithmetic.INTEGER_EXACT,
        cost="d(d+1)/2 normals",
        reference="Balle & Wang 2018; metric of Dwork, Talwar, Thakurta & Zhang 2014, symmetric part",
        delta=DeltaUse.REQUIRED,
        units=True,
        unit_norm="frobenius",
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss) -> CalibratedGaussian:
        # sqrt(Delta_F² sigma²), rounded up in integers: isqrt of a ceiling is at most one too small
        square = query.frobenius_squared * Fraction(gaussian_sigma(loss)) ** 2
        s = math.isqrt(math.ceil(square) - 1) + 1
        t = math.isqrt((s * s + 1) // 2 - 1) + 1
        require_on_lattice(query, loss, s, MAX_SCALE)
        mu_squared = mu_squared_of(query, s, t)
        if gaussian_delta(Fraction(loss.epsilon_micro, MICRO), mu_squared) > loss.delta:
            raise AssertionError("the rounded scales exceed the loss")
        guarantee = proved(query, loss, __name__, arithmetic=Arithmetic.INTEGER_EXACT, mu_squared=mu_squared)
        return CalibratedGaussian(query.size, s, t, guarantee=guarantee)


MECHANISMS: tuple[Mechanism, ...] = (Gaussian(),)
