"""`orbit` and `orbit-lowrank`: the exponential mechanism on a unitary orbit, sampled exactly.

Mangoubi, Wu, Kale, Thakurta & Vishnoi (COLT 2022), algorithms 1 and 2. A is the second moment, S the largest squared
norm of a row, gamma_1 >= ... >= gamma_d >= 0 a spectrum.

**Distribution** (algorithm 1). H = U diag(gamma) U*, U unitary, with density proportional to ``exp(alpha tr(A H))``
against the invariant measure of the orbit. The release is Re H, which is post-processing; ``tr(A H) = tr(A Re H)``, as
A is real.

**Theorem.** ``alpha = epsilon / (2 S (gamma_1 - gamma_d))`` under replace-one, ``epsilon / (S (gamma_1 - gamma_d))``
under add-remove, give epsilon. *Proof.* Let Z be the normaliser at A, Z' at A'. The privacy loss at H is
``alpha tr((A - A') H) + log(Z'/Z)``. With rows v, w of |v|², |w|² <= S exchanged, the first term is
``alpha (v*Hv - w*Hw)``; each part ranges over an interval of length at most ``alpha S (gamma_1 - gamma_d)`` on the
orbit. Under add-remove there is one part only. ``Z'/Z`` is the mean of ``exp(-alpha tr((A - A') H))`` under the
distribution at A, so the loss takes both signs: the interval, of length epsilon, contains 0 (bounded range), and the
loss stays within epsilon. ∎ The authors divide by ``gamma_1`` instead of ``gamma_1 - gamma_d`` and reserve a part of
epsilon for the error of their sampler, in infinity distance. The samplers of :mod:`dpdist.literature.orbit_sampler` are
exact, so all of epsilon is in the exponent. The orbit of a constant spectrum is one matrix, ``gamma_1 I``, independent
of the data.

**Algorithm 2.** (a) ``g_i = l_i + Laplace(Delta / (epsilon/2))`` for the k largest eigenvalues of A, sorted, clipped
to be positive, followed by zeros. (b) Algorithm 1 with epsilon/2 and g. *Proof.* Sorted eigenvalues satisfy
``sum_i |l_i - l_i'| <= |A - A'|_*`` (Mirsky 1960), at most 2 S under replace-one and S under add-remove, and
``|l_1 - l_1'| <= |A - A'|_2 <= S`` (Weyl). So with ``Delta = 2 S`` (S if k = 1, or under add-remove) step (a) is the
Laplace mechanism, epsilon/2; sorting and clipping are post-processing. For every fixed g step (b) keeps epsilon/2 by
the theorem, as its exponent depends only on A and g. For outputs (g, H) the densities therefore differ by a factor of
at most ``exp(epsilon/2) exp(epsilon/2)``: adaptive composition. ∎ With one column step (b) draws nothing, and step (a)
gets all of epsilon.

**Units.** The spectrum of `orbit` is public and in units of C²: gamma = 1 is one squared clip norm, S lattice units,
and the release is S Re H, rounded. The eigenvalues of `orbit-lowrank` are in lattice units, from A.

**Arithmetic.** `ideal-real`. The sampler works on ``X = (H - gamma_d) / (gamma_1 - gamma_d)``, of spectrum within [0,
1], and exponent ``epsilon / (2 S) tr(A X)``, independent of the scale. If it couples chains, X is within 1e-12 of an
exact draw (:mod:`dpdist.literature.orbit_sampler`), in exact arithmetic. The run time depends on the data and is not
covered by the theorem.

**Cost.** Milliseconds for rank 1 and rank d-1, and for projectors (spectra of two values) with a strong signal.
Otherwise a coupling of ``10 d²`` to ``30 d²`` sweeps over k (d-k) to d (d-1)/2 cells of 500 bytes: 2 s at d = 48, 5 to
7 s at d = 64, minutes at 100, growing like d^4. It has no time limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.base import (
    ExactMoment,
    Matrix,
    Mechanism,
    Proved,
    ReportsProgress,
    proved,
    require_components,
    require_on_lattice,
)
from dpdist.core.mechanisms.info import COMPONENTS, Kind, MechanismInfo, Option
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.naming import parameter
from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.floats import exponentials
from dpdist.core.privacy.guarantee import MICRO, PrivacyLoss
from dpdist.core.progress import Steps
from dpdist.core.triangle import Triangle, rounded
from dpdist.literature import ratios
from dpdist.literature.orbit_sampler import hermitian
from dpdist.literature.ratios import LogRatio

_LARGEST = 2.0**59  # largest released eigenvalue, lattice units, which keeps all entries within the 64-bit lattice
_MAX_SCALE = 2**56  # largest scale of the Laplace noise, lattice units
_REFERENCE = "Mangoubi, Wu, Kale, Thakurta & Vishnoi 2022, algorithm {}; exact samplers in dpdist.core.noise"
_COST = "eigh; ms for rank 1 or strong signal; else 10 d² to 30 d² sweeps of k(d-k) to d(d-1)/2 cells: 7 s at d = 64"


def _aligned(
    values: Matrix, vectors: Matrix, spectrum: Matrix, rate: float, entropy: Entropy, progress: Steps | None
) -> Matrix:
    """Draw Re H, density ``exp(rate tr(A H) / (gamma_1 - gamma_d))``."""
    highest, lowest = float(spectrum[0]), float(spectrum[-1])
    if highest == lowest:
        return highest * np.eye(spectrum.size)
    x = hermitian((spectrum - lowest) / (highest - lowest), rate * values[::-1], entropy, progress=progress).real
    basis = vectors[:, ::-1]
    return lowest * np.eye(spectrum.size) + (highest - lowest) * (basis @ x @ basis.T)


@dataclass(frozen=True)
class CalibratedOrbit(Proved, ReportsProgress):
    """Algorithm 1 for a public spectrum."""

    unit: int
    spectrum: tuple[float, ...]  # in units of C²
    rate: float  # the factor of the exponent for a spectrum of spread 1

    @property
    def noise(self) -> Noise:
        spread = self.spectrum[0] - self.spectrum[-1]
        details = {"spectrum": list(self.spectrum), "alpha": self.rate / spread if spread else 0.0}
        return Noise("unitary-orbit", details=details)

    def answer(self, moment: ExactMoment, entropy: Entropy, progress: Steps | None = None) -> Triangle:
        values, vectors = np.linalg.eigh(moment.matrix())
        return rounded(self.unit * _aligned(values, vectors, np.array(self.spectrum), self.rate, entropy, progress))

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> LogRatio:
        lowest, spread = self.spectrum[-1], self.spectrum[0] - self.spectrum[-1]
        if not spread:
            return lambda _: 0.0
        ratio = ratios.orbit(moment, neighbour, (np.array(self.spectrum) - lowest) / spread, self.rate)
        return lambda y: ratio((y / self.unit - lowest * np.eye(len(y))) / spread)


@dataclass(frozen=True)
class CalibratedLowRankOrbit(Proved, ReportsProgress):
    """Algorithm 2."""

    components: int
    scale: float
    rate: float

    @property
    def noise(self) -> Noise:
        details = {"components": self.components, "laplace_scale": self.scale, "rate": self.rate}
        return Noise("unitary-orbit-lowrank", details=details)

    def answer(self, moment: ExactMoment, entropy: Entropy, progress: Steps | None = None) -> Triangle:
        values, vectors = np.linalg.eigh(moment.matrix())
        k = self.components
        noise = exponentials(k, entropy) - exponentials(k, entropy)
        spectrum = np.zeros(values.size)
        spectrum[:k] = np.sort(np.clip(values[-k:] + self.scale * noise, 0.0, _LARGEST))[::-1]
        return rounded(_aligned(values, vectors, spectrum, self.rate, entropy, progress))

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> LogRatio | None:
        if self.components > 1:
            return None
        line = np.eye(len(moment))[0]
        aligned = ratios.orbit(moment, neighbour, line, self.rate if line.size > 1 else 0.0)
        return ratios.clipped_pair(moment, neighbour, self.scale, lambda y, value: aligned(y / value))


SPECTRUM = Option(
    "spectrum",
    Kind.NUMBERS,
    "eigenvalues to release, of the sum over all rows in units of C², descending, not negative; trailing zeros may be "
    "omitted",
)


class Orbit:
    """A matrix with public spectrum, privately aligned with the moment."""

    info = MechanismInfo(
        name="orbit",
        additive=False,
        law="Re H, H on the unitary orbit of a public spectrum, density exp(alpha tr(A H))",
        sensitivity="range of tr(A H): 2 C² (g1 - gd) replace-one, C² (g1 - gd) add-remove (tight)",
        claimed="epsilon (pure)",
        proved="epsilon (pure), bounded range",
        cost=_COST,
        reference=_REFERENCE.format(1),
        options=(SPECTRUM,),
        semidefinite=True,
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss, *, spectrum: tuple[float, ...]) -> CalibratedOrbit:
        """Use all of epsilon in the exponent."""
        if not 1 <= len(spectrum) <= query.size:
            raise UsageError(
                f"The spectrum has {len(spectrum)} values: pass 1 to {query.size}, the number of columns.",
                parameter="options.spectrum",
            )
        if spectrum[-1] < 0 or any(a < b for a, b in pairwise(spectrum)):
            raise UsageError(
                "The spectrum must be descending and not negative: sort its values.", parameter="options.spectrum"
            )
        if spectrum[0] * query.bound > _LARGEST:
            raise UsageError(
                f"A spectrum up to {spectrum[0]:g} C² exceeds the 64-bit lattice. Its unit is the squared clip norm "
                f"({parameter('options.spectrum')}): scale it down or use fewer grid bits.",
                parameter="grid_bits",
            )
        padded = spectrum + (0.0,) * (query.size - len(spectrum))
        epsilon = Fraction(loss.epsilon_micro, MICRO)
        guarantee = proved(query, loss, __name__, bounded_ranges=[epsilon])
        return CalibratedOrbit(query.bound, padded, float(epsilon / query.nuclear), guarantee=guarantee)


class LowRankOrbit:
    """A private rank-k approximation: eigenvalues by the Laplace mechanism, then a matrix of their orbit."""

    info = MechanismInfo(
        name="orbit-lowrank",
        additive=False,
        law="k eigenvalues + Laplace, sorted, clipped at 0, zeros; then as orbit with half of epsilon",
        sensitivity="eigenvalues, l1: 2 C² replace-one (C² if k = 1), C² add-remove; then as orbit",
        claimed="epsilon (pure)",
        proved="epsilon (pure)",
        cost=_COST,
        reference=_REFERENCE.format(2),
        options=(COMPONENTS,),
        semidefinite=True,
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss, *, components: int) -> CalibratedLowRankOrbit:
        """Spend half of epsilon on the eigenvalues and half on the orbit; with one column, all on the eigenvalue."""
        require_components(query, components)
        share = Fraction(loss.epsilon_micro, MICRO if query.size == 1 else 2 * MICRO)
        scale = (query.bound if components == 1 else query.nuclear) / share
        require_on_lattice(query, loss, scale, _MAX_SCALE)
        rate = float(share / query.nuclear)
        return CalibratedLowRankOrbit(components, float(scale), rate, guarantee=proved(query, loss, __name__))


MECHANISMS: tuple[Mechanism, ...] = (Orbit(), LowRankOrbit())
