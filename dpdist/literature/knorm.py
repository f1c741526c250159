"""`nuclear` and `frobenius`: noise with a density that decreases exponentially in a norm, pure epsilon-privacy.

**Distribution.** E is symmetric d x d with density proportional to ``exp(-|E| / k)``, |.| the nuclear norm (sum of the
absolute eigenvalues) or the Frobenius norm, k an integer number of lattice units: a K-norm mechanism (Hardt & Talwar
2010).

**Theorem.** ``M + E`` is epsilon-differentially private for ``k = Delta / epsilon``, Delta the sensitivity in the norm.
*Proof.* The normaliser does not depend on M, and ``||Y - M| - |Y - M'|| <= |M - M'|`` by the triangle inequality: the
densities of the releases of M and M' differ by a factor of at most ``exp(Delta / k)``. ∎ The sensitivities are those of
:mod:`dpdist.core.mechanisms.sensitivity`: nuclear ``2 S`` (replace-one) and S (add-remove), Frobenius ``sqrt(2) S`` and
S, S the largest squared row norm, and S throughout for one column; all tight. k is rounded up, which only lowers
epsilon. The loss takes values from -epsilon to epsilon, so its range is not bounded by epsilon.

The nuclear ball of radius S is the convex hull of the changes ``±v v^T``, so under add-remove no other norm gives a
better mechanism of this kind (Awan & Slavkovic 2021). Under replace-one the hull of the changes is a little smaller.

**Draws.** Both norms are orthogonally invariant and, in ``N = d(d+1)/2`` dimensions, ``|E| / k`` is Gamma(N).

* Frobenius: ``E = k R G / |G|_F``, R from Gamma(N), G from the Gaussian orthogonal ensemble (independent entries,
  variance 1 on and 1/2 off the diagonal), which is spherical in this norm.
* nuclear: ``E = k Q diag(l) Q^T``, Q Haar and l from the eigenvalue density ``prod |l_i - l_j| exp(-sum |l_i|)``
  (Weyl's integration formula), by perfect simulation: :mod:`dpdist.literature.nuclear`.

**Moments.** Mean 0. Frobenius: ``Var E_ii = (N+1) k²``, ``Var E_ij = (N+1) k² / 2``, spectral norm about ``d^1.5 k``.
Nuclear: ``Var E_ij`` is about ``(pi²/24) d k²`` and ``Var E_ii`` twice that, spectral norm about ``(pi/2) d k``: at the
same epsilon 6 % below `two-sided-wishart`, and 9 % in the standard deviation of an entry.

**Arithmetic.** The noise is float64 and rounded to the lattice before it is added to the integer moment, which equals
rounding the sum and is post-processing. The theorem holds for real numbers, and the spectrum has a tolerance of
``d 2^-42`` k: `ideal-real`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpdist.core.mechanisms.base import (
    Additive,
    Answer,
    ExactMoment,
    Matrix,
    Mechanism,
    Proved,
    ReportsProgress,
    proved,
    require_on_lattice,
)
from dpdist.core.mechanisms.info import MechanismInfo
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.floats import gammas, haar, normals
from dpdist.core.privacy.guarantee import MICRO, Guarantee, PrivacyLoss
from dpdist.core.progress import Steps
from dpdist.core.triangle import Triangle, rounded
from dpdist.literature import ratios
from dpdist.literature.nuclear import nuclear_spectra
from dpdist.literature.ratios import LogRatio

_MAX_SPREAD = 2**54  # largest k d: an entry beyond 2^60, 64 times that, has a probability below exp(-64)
_BATCH = 100  # spectra simulated together; larger batches are not faster


def _nuclear_variances(size: int) -> tuple[float, float]:
    """Return the variances on and off the diagonal for k = 1, within 0.04 % for 1 to 80 columns."""
    # leading terms: the limit distribution of the eigenvalues (Ullman's, second moment pi² d² / 24); others: fitted to
    # the exact values (de Bruijn's Pfaffians, in rational arithmetic) for 1 to 80 columns
    x = 1 / size
    on = 1.00918042 + x * (-0.48251053 + x * (0.49794174 - 0.25829779 * x))
    off = 0.50486903 + x * (-0.20773076 + x * (0.22301104 - 0.23350735 * x))
    limit = math.pi**2 / 24
    return limit * (2 * size + 1) + on, limit * size + off


@dataclass(frozen=True)
class _Calibrated(Proved, Additive):
    """Noise of a fixed integer scale."""

    size: int
    scale: int

    def _described_noise(self, kind: EdgeKind, on: float, off: float) -> Noise:
        """Return the noise from its variances on and off the diagonal for k = 1."""
        square = float(self.scale) ** 2
        return Noise(kind.value, kind, on * square, off * square, details={"scale": self.scale})


@dataclass(frozen=True)
class CalibratedNuclear(_Calibrated, ReportsProgress):
    """Noise with density ``exp(-nuclear norm / k)``."""

    @property
    def noise(self) -> Noise:
        return self._described_noise(EdgeKind.NUCLEAR, *_nuclear_variances(self.size))

    def draw(self, entropy: Entropy, progress: Steps | None = None) -> Triangle:
        return self._rotated(nuclear_spectra(self.size, 1, entropy, progress=progress)[0], entropy)

    def answer(self, moment: ExactMoment, entropy: Entropy, progress: Steps | None = None) -> Answer:
        return moment.triangle() + self.draw(entropy, progress)

    def draws(self, count: int, entropy: Entropy) -> Iterator[Triangle]:
        for start in range(0, count, _BATCH):
            for spectrum in nuclear_spectra(self.size, min(_BATCH, count - start), entropy):
                yield self._rotated(spectrum, entropy)

    def _rotated(self, spectrum: Matrix, entropy: Entropy) -> Triangle:
        vectors = haar(self.size, self.size, entropy)
        return rounded((vectors * (self.scale * spectrum)) @ vectors.T)

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> LogRatio:
        return ratios.norm(moment, neighbour, self.scale, lambda e: float(np.abs(np.linalg.eigvalsh(e)).sum()))


@dataclass(frozen=True)
class CalibratedFrobenius(_Calibrated):
    """Noise with density ``exp(-Frobenius norm / k)``."""

    @property
    def noise(self) -> Noise:
        entries = self.size * (self.size + 1) // 2
        return self._described_noise(EdgeKind.FROBENIUS, entries + 1.0, (entries + 1) / 2)

    def draw(self, entropy: Entropy) -> Triangle:
        square = normals(self.size * self.size, entropy).reshape(self.size, self.size)
        direction = square + square.T
        radius = gammas(self.size * (self.size + 1) / 2, 1, entropy)[0]
        direction *= self.scale * radius / np.linalg.norm(direction)
        return rounded(direction)

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> LogRatio:
        return ratios.norm(moment, neighbour, self.scale, lambda e: float(np.linalg.norm(e)))


def _guarantee(query: LatticeQuery, loss: PrivacyLoss, scale: int) -> Guarantee:
    require_on_lattice(query, loss, scale * query.size, _MAX_SPREAD)
    return proved(query, loss, __name__)


class Nuclear:
    """Noise with a density that decreases exponentially in the nuclear norm."""

    info = MechanismInfo(
        name="nuclear",
        law="density exp(-nuclear norm / k), by perfect simulation of its spectrum",
        sensitivity="nuclear: 2 C² replace-one (C² for one column), C² add-remove (tight)",
        claimed="epsilon (pure)",
        proved="epsilon (pure)",
        cost="about 9 d sweeps over the spectrum, O(d²) each: 1.5 s at d = 20, 15 s at 64, 40 s at 100, 1.5 h at 784; "
        "can be drawn in advance",
        reference="Hardt & Talwar 2010; d'Orsi & Novikov 2026; sampler in dpdist.literature.nuclear (Propp & Wilson "
        "1996)",
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss) -> CalibratedNuclear:
        scale = -(-query.nuclear * MICRO // loss.epsilon_micro)
        return CalibratedNuclear(query.size, scale, guarantee=_guarantee(query, loss, scale))


class Frobenius:
    """Noise with a density that decreases exponentially in the Frobenius norm."""

    info = MechanismInfo(
        name="frobenius",
        law="density exp(-Frobenius norm / k)",
        sensitivity="Frobenius: sqrt(2) C² replace-one (C² for one column), C² add-remove (tight)",
        claimed="epsilon (pure)",
        proved="epsilon (pure)",
        cost="d² normals; less noise than two-sided-wishart for d <= 2 only",
        reference="Hardt & Talwar 2010",
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss) -> CalibratedFrobenius:
        # the root of an integer not below (Delta / epsilon)², rounded up in integers
        square = -(-query.frobenius_squared * MICRO**2 // loss.epsilon_micro**2)
        scale = math.isqrt(square - 1) + 1
        return CalibratedFrobenius(query.size, scale, guarantee=_guarantee(query, loss, scale))


MECHANISMS: tuple[Mechanism, ...] = (Nuclear(), Frobenius())
