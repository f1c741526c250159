"""`power`: the noisy power method, private for rows; `power-published`: as published, for single entries.

**Distribution** (Hardt & Price 2014, algorithm 1). X_0 is a Haar-random d x k frame. For l = 1 .. L:
``Y_l = A X_(l-1) + G_l``, ``X_l = qr(Y_l)``, except for the grid below. The release is X_L; the guarantee covers every
X_l, so the iterates may be sent to the workers. A is used in products only, so it need not be formed:
``A X = sum_b X_b^T (X_b X)``.

**Grid.** A is multiplied not with X_(l-1) but with :func:`on_grid` of it: ``V = 2^-g rnd(2^g (1 - h) X_(l-1))``,
``g = 24`` and ``h = sqrt(d k) 2^-g``, a function of public values. 2^g V is an integer matrix and A a sum of outer
products of integer rows, so the product is an exact sum of integers: it does not depend on the partition of the rows,
the number of workers or the order (:mod:`dpdist.core.moment.operator`). Rounding moves each entry by at most 2^-(g+1),
hence the matrix by at most h/2 in the spectral norm, so that ``|V|_2 <= (1 - h) |X_(l-1)|_2 + h/2 < 1``, also for an
orthonormal X computed in float64, whose norm is 1 up to 2^-40. The factor 1 - h reduces the signal by a share of less
than 10^-4 while ``d k`` is below 10^6; ``qr`` is invariant to scale.

**Sensitivity.** One row changes A by ``D = v v^T - w w^T`` (replace-one) or ``v v^T`` (add-remove), and
``|D V|_F <= |D|_F |V|_2 <= |D|_F``: sqrt(2) S replace-one, S add-remove. For k = 1, ``|D v| <= |D|_2 |v| <= S`` under
both relations. Call it Delta_k. The guarantee holds for the V in use and does not require exactly orthonormal X.

**`power`, delta > 0.** Every G_l has independent normal entries of standard deviation sigma, so a round is
(Delta_k/sigma)-GDP given any results of earlier rounds, and L of them compose exactly to
``mu = sqrt(L) Delta_k / sigma`` (Dong, Roth & Su 2022, corollary 3.3). sigma is the least that keeps (epsilon, delta).
Neither k nor the largest entry of X enters.

**`power`, delta = 0.** G_l has density proportional to ``exp(-epsilon |G|_F / (L Delta_k))``: its norm is Gamma(dk) of
scale ``L Delta_k / epsilon`` and its direction uniform. A round is epsilon/L-private (K-norm mechanism, Hardt & Talwar
2010), and L rounds add up.

**`power-published`.** G_l is normal with standard deviation ``chi max|X_(l-1)| S``, chi = sqrt(4 k L ln(1/delta)) /
epsilon, or Laplace with ``chi = 10 k L sqrt(d) / epsilon`` for delta = 0 (Imtiaz & Sarwate 2016 after Hardt & Price).
The neighbours of Hardt & Price differ in one *entry* of A by at most 1. For rows the following is proved: an
orthonormal frame has ``max|X| >= 1/sqrt(d)``, hence

* delta > 0: ``mu² <= L Delta_k² d / (chi² S²)``; the true delta at epsilon is that of the Gaussian profile;
* delta = 0: ``|D V|_1 <= sqrt(dk) Delta_k`` against a scale of at least ``10 k L S / epsilon`` per round gives a total
  of ``epsilon Delta_k sqrt(d/k) / (10 S)``.

If that exceeds the claim, the mechanism is refused. The number of rounds is public; choosing it from the exact moment,
as in published experiments, leaks.

**Arithmetic.** Float64 except for the product: `ideal-real`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.base import Answer, ExactMoment, Matrix, Mechanism, proved, require_components
from dpdist.core.mechanisms.info import COMPONENTS, DeltaUse, Kind, MechanismInfo, Option, Output
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.moment.operator import GRID_BITS, on_grid
from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.floats import exponentials, gammas, haar, normals
from dpdist.core.privacy.accounting import gaussian_delta, gaussian_sigma
from dpdist.core.privacy.guarantee import ATTO, MICRO, Guarantee, PrivacyLoss
from dpdist.literature import ratios
from dpdist.literature.ratios import LogRatio

_UP = 1 + 2.0**-40  # covers the rounding errors of a scale
ROUTE = Option(
    "route",
    Kind.WORD,
    "form the d x d moment once (moment), or compute only its products with d x k frames (products)",
    "moment",  # both have the same distribution
    ("moment", "products"),
)
_ITERATIONS = Option("iterations", Kind.INTEGER, "number L of rounds, public, at least 1")


@dataclass(frozen=True)
class CalibratedPower:
    """The noisy power method with fixed rounds and noise."""

    size: int
    count: int
    iterations: int
    shape: str  # of the noise: normal, k-norm or laplace
    scale: float  # its standard deviation, or the scale of its norm or its entries, in lattice units
    relative: bool  # whether the scale is multiplied by the largest entry of the frame
    claim: PrivacyLoss
    guarantee: Guarantee

    @property
    def noise(self) -> Noise:
        details = {
            "components": self.count,
            "iterations": self.iterations,
            "scale": self.scale,
            "relative_to_largest_entry": self.relative,
            "vector_bits": GRID_BITS,
        }
        return Noise(f"power-{self.shape}", details=details)

    def _noise(self, frame: Matrix, entropy: Entropy) -> Matrix:
        entries = self.size * self.count
        scale = self.scale * (float(np.abs(frame).max()) if self.relative else 1.0)
        if self.shape == "normal":
            drawn = normals(entries, entropy)
        elif self.shape == "laplace":
            drawn = exponentials(entries, entropy) - exponentials(entries, entropy)
        else:
            direction = normals(entries, entropy)
            drawn = direction * (gammas(entries, 1, entropy)[0] / np.linalg.norm(direction))
        return scale * drawn.reshape(self.size, self.count)

    def answer(self, moment: ExactMoment, entropy: Entropy) -> Answer:
        frame = haar(self.size, self.count, entropy)
        for _ in range(self.iterations):
            frame, _ = np.linalg.qr(moment.times(on_grid(frame)) + self._noise(frame, entropy))
        return np.ascontiguousarray(frame.T)

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> LogRatio | None:
        """Return the ratio of all frames, stacked as rows, because the workers see them; None beyond one component."""
        if self.count > 1:
            return None
        return ratios.power_rounds(moment, neighbour, self.shape, self.scale, relative=self.relative)


def _sensitivity_squared(query: LatticeQuery, count: int, iterations: int) -> int:
    """Return Delta_k², exact, in squared lattice units, after validating components and rounds."""
    require_components(query, count)
    if iterations < 1:
        raise UsageError("The power method needs at least one round.", parameter="options.iterations")
    return query.bound**2 if count == 1 else query.frobenius_squared


def _ceiling(value: float, unit: int) -> int:
    return math.ceil(Fraction(value * _UP) * unit)


class Power:
    """The noisy power method, private for rows."""

    info = MechanismInfo(
        name="power",
        output=Output.COMPONENTS,
        additive=False,
        law="L rounds X <- qr(A X + G); G normal, or of density exp(-c |G|_F) without delta",
        sensitivity="A X, Frobenius: sqrt(2) C² replace-one, C² add-remove; C² for k = 1",
        claimed="(epsilon, delta), or epsilon",
        proved="(epsilon, delta), exactly mu-GDP; or epsilon (pure)",
        cost="L products with d x k, L d k normals; never forms d x d with route=products",
        reference="Hardt & Price 2014, with noise calibrated to rows by Dong, Roth & Su 2022",
        delta=DeltaUse.OPTIONAL,
        options=(COMPONENTS, _ITERATIONS, ROUTE),
    )

    def calibrate(
        self,
        query: LatticeQuery,
        loss: PrivacyLoss,
        *,
        components: int,
        iterations: int,
        route: str,  # noqa: ARG002
    ) -> CalibratedPower:
        squared = _sensitivity_squared(query, components, iterations)
        if loss.delta_atto:
            shape, scale = "normal", math.sqrt(iterations * squared) * gaussian_sigma(loss) * _UP
            mu_squared = Fraction(iterations * squared) / Fraction(scale) ** 2
        else:
            shape, scale = "k-norm", iterations * math.sqrt(squared) / loss.epsilon * _UP
            mu_squared = None
        guarantee = proved(query, loss, __name__, mu_squared=mu_squared)
        return CalibratedPower(query.size, components, iterations, shape, scale, False, loss, guarantee)


class PublishedPower:
    """The noisy power method as published, whose neighbours differ in one entry of the moment."""

    info = MechanismInfo(
        name="power-published",
        output=Output.COMPONENTS,
        additive=False,
        law="L rounds X <- qr(A X + G); G normal or Laplace, scaled with the largest entry of X",
        sensitivity="one entry of A by C²; a row changes many",
        claimed="(epsilon, delta), or epsilon, for one entry of A",
        proved="for rows: (epsilon, delta') with delta' from max|X| >= 1/sqrt(d); refused where it exceeds delta",
        cost="L products with d x k, L d k normals",
        reference="Hardt & Price 2014; constants of Imtiaz & Sarwate 2016",
        delta=DeltaUse.OPTIONAL,
        options=(COMPONENTS, _ITERATIONS, ROUTE),
        replacement="power",
    )

    def calibrate(
        self,
        query: LatticeQuery,
        loss: PrivacyLoss,
        *,
        components: int,
        iterations: int,
        route: str,  # noqa: ARG002
    ) -> CalibratedPower:
        squared = Fraction(_sensitivity_squared(query, components, iterations), query.bound**2)
        true, mu_squared = loss, None
        if loss.delta_atto:
            chi = math.sqrt(4 * components * iterations * math.log(1 / loss.delta)) / loss.epsilon * _UP
            shape = "normal"
            mu_squared = iterations * squared * query.size / Fraction(chi) ** 2
            delta = gaussian_delta(Fraction(loss.epsilon_micro, MICRO), mu_squared)
            if delta > loss.delta:
                true = PrivacyLoss(loss.epsilon_micro, min(_ceiling(delta, ATTO), ATTO - 1))
        else:
            chi = 10 * components * iterations * math.sqrt(query.size) / loss.epsilon * _UP
            shape = "laplace"
            share = math.sqrt(squared * query.size / components) / 10
            if share > 1:
                true = PrivacyLoss(_ceiling(loss.epsilon * share, MICRO), 0)
        guarantee = proved(query, true, __name__, mu_squared=mu_squared)
        scale = chi * query.bound
        return CalibratedPower(query.size, components, iterations, shape, scale, True, loss, guarantee)


MECHANISMS: tuple[Mechanism, ...] = (Power(), PublishedPower())
