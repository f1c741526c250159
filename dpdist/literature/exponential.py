"""`bingham` and `ppca`: subspaces drawn by the exponential mechanism, with density ``exp(c tr V A V^T)``.

In this module S is the largest squared norm of a row and D the change of the moment A from one table to its
neighbour, ``D = v v^T - w w^T`` (replace-one) or ``±v v^T`` (add-remove). For orthonormal rows V, ``tr V D V^T`` lies
in [-S, S] (replace-one), or in [0, S] or [-S, 0], as the sign is (add-remove): an interval of length R = 2 S or S,
the nuclear sensitivity. Z denotes the integral of the density it normalises.

**One draw** (McSherry & Talwar 2007). If V has density ``exp(c tr V A V^T)/Z(A)`` against any measure that does not
depend on the data, the privacy loss ``c tr V D V^T + log(Z(A - D)/Z(A))`` ranges over an interval of length c R that
contains 0. So ``c = epsilon/R`` gives epsilon; it is tight (d = 2: attained as A concentrates). The range is bounded
by epsilon (Dong, Durfee & Rogers 2020), which accounting can use (:mod:`dpdist.core.privacy.profile`).

**`bingham`.** Row i has density ``exp(c x^T A x)/Z_i`` on the unit sphere of the complement of the previous rows, drawn
exactly (:func:`dpdist.literature.bingham.successive`). *Theorem.* Let ``m = min(k, d - 1)`` be the number of the k rows
that the previous rows do not determine up to sign. The release is epsilon-private for

    c = epsilon / ((m + 1) S)  (replace-one),      c = epsilon / (max(m, 1) S)  (add-remove).

*Proof.* The distribution of a row determined up to sign does not depend on the data. For the others the loss is
``c sum_i x_i^T D x_i + sum_i log(Z_i(A - D)/Z_i(A))``, both Z_i on the same sphere. The rows are orthonormal, so the
first sum is c times *one* trace, in c [-S, S]; composing k separate mechanisms would count it k times. Every logarithm
is in c [-S, S] as well: the total is at most (m + 1) c S in magnitude. Under add-remove with ``D = v v^T`` the trace is
in c [0, S] and every logarithm in c [-S, 0]: the total is in [-m c S, c S]; the other sign is its mirror image. ∎ Given
the previous rows, each row has a loss of range c R, so the release is m steps of bounded range c R:
``2 epsilon/(m + 1)`` or ``epsilon/m`` each (``bounded_ranges``). Their composition does *not* have range epsilon.
Neither eigenvalues nor any order but that of drawing are released.

**`ppca`** (Chaudhuri, Sarwate & Sinha 2013, algorithm 2). V has density ``exp(c tr V A V^T)`` on all k-frames, c as
for one draw: the matrix Bingham distribution. For k = 1 it is drawn exactly, for k = d it is uniform; both are proved.
For other k no practical exact sampler is known, and the authors' Gibbs sampler runs for a fixed number of sweeps:
its distance from the distribution above is unknown, so nothing is proved. It is included for reproduction.

**Arithmetic.** Float64: `ideal-real`. **Timing.** The number of rejections depends on the data
(:mod:`dpdist.literature.bingham`); no guarantee covers an attacker who can time the draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.base import (
    Answer,
    ExactMoment,
    Matrix,
    Mechanism,
    Proved,
    proved,
    require_components,
)
from dpdist.core.mechanisms.info import COMPONENTS, Kind, MechanismInfo, Option, Output
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.floats import haar
from dpdist.core.privacy.guarantee import MICRO, Guarantee, Neighbours, PrivacyLoss
from dpdist.literature import ratios
from dpdist.literature.bingham import gibbs, successive
from dpdist.literature.ratios import LogRatio

_GAP = 1.5
"""Measured for a flat rest (``papers/jiang_xie_zhang/rank_k.py``)."""
_SWEEPS = Option("sweeps", Kind.INTEGER, "number of sweeps of the Gibbs sampler, at least 1", 100)


def successive_shares(query: LatticeQuery, count: int) -> int:
    """Return the number of equal shares of epsilon for ``count`` successive Bingham vectors."""
    drawn = min(count, query.size - 1)
    return drawn + 1 if query.neighbours is Neighbours.REPLACE_ONE else max(drawn, 1)


def successive_concentration(query: LatticeQuery, count: int, epsilon: float) -> float:
    """Return the c, per lattice unit, for which ``count`` successive Bingham vectors are epsilon-private."""
    return epsilon / (successive_shares(query, count) * query.bound)


@dataclass(frozen=True)
class CalibratedBingham(Proved):
    """Exact successive Bingham vectors of fixed concentration."""

    count: int
    concentration: float

    @property
    def noise(self) -> Noise:
        return Noise("successive-bingham", details={"components": self.count, "concentration": self.concentration})

    def answer(self, moment: ExactMoment, entropy: Entropy) -> Answer:
        return successive(self.concentration * moment.matrix(), self.count, entropy)

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> LogRatio:
        return ratios.successive_bingham(moment, neighbour, self.concentration)


class Bingham:
    """The exponential mechanism for successive principal directions, drawn exactly."""

    info = MechanismInfo(
        name="bingham",
        output=Output.COMPONENTS,
        additive=False,
        law="x_i of density exp(c x'Ax) on the unit sphere orthogonal to x_1 .. x_(i-1)",
        sensitivity="tr VAV': range 2 C² replace-one, C² add-remove; c = epsilon/((k+1) C²), epsilon/(k C²)",
        claimed="epsilon (pure)",
        proved="epsilon (pure), bounded range a row",
        cost="k eigendecompositions of d x d, O(sqrt(d)) candidates of d normals each",
        reference="McSherry & Talwar 2007; theorem in dpdist.literature.exponential",
        options=(COMPONENTS,),
        advice="for one component: captures more than two-sided-wishart where one eigenvalue is above a flat rest by a "
        f"gap below about {2 * _GAP:g} d C²/epsilon replace-one, {_GAP:g} d C²/epsilon add-remove; with "
        "several components it captures less",
        gap=_GAP,
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss, *, components: int) -> CalibratedBingham:
        """Return the largest concentration proved to keep epsilon."""
        require_components(query, components)
        drawn = min(components, query.size - 1)
        shares = successive_shares(query, components)
        factor = 2 if query.neighbours is Neighbours.REPLACE_ONE else 1
        ranges = [Fraction(factor * loss.epsilon_micro, shares * MICRO)] * drawn
        concentration = successive_concentration(query, components, loss.epsilon)
        guarantee = proved(query, loss, __name__, bounded_ranges=ranges)
        return CalibratedBingham(components, concentration, guarantee=guarantee)


@dataclass(frozen=True)
class CalibratedPpca:
    """A frame of the matrix Bingham distribution with fixed concentration, or its approximation by Gibbs sampling."""

    size: int
    count: int
    concentration: float
    sweeps: int
    claim: PrivacyLoss
    guarantee: Guarantee | None

    @property
    def noise(self) -> Noise:
        details = {"components": self.count, "concentration": self.concentration}
        if self.guarantee:
            return Noise("matrix-bingham", details=details)
        return Noise("matrix-bingham-gibbs", details=details | {"sweeps": self.sweeps})

    def answer(self, moment: ExactMoment, entropy: Entropy) -> Answer:
        if self.count == self.size:
            return np.ascontiguousarray(haar(self.size, self.count, entropy).T)
        matrix = self.concentration * moment.matrix()
        if self.count == 1:
            return successive(matrix, 1, entropy)
        return gibbs(matrix, self.count, self.sweeps, entropy)

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> LogRatio | None:
        if self.count == self.size:
            return lambda _: 0.0
        return ratios.successive_bingham(moment, neighbour, self.concentration) if self.count == 1 else None


class Ppca:
    """The exponential mechanism for a subspace as a whole; by Gibbs sampling, as published, beyond one component."""

    info = MechanismInfo(
        name="ppca",
        output=Output.COMPONENTS,
        additive=False,
        law="V of density exp(c tr VAV') on all k-frames; 1 < k < d: a Gibbs sampler stopped after some sweeps",
        sensitivity="tr VAV': range 2 C² replace-one, C² add-remove (tight)",
        claimed="epsilon (pure)",
        proved="k = 1, k = d: epsilon (pure), bounded range; otherwise nothing",
        cost="k = 1: one eigendecomposition of d x d; otherwise k of d-k+1 per sweep",
        reference="Chaudhuri, Sarwate & Sinha 2013, algorithm 2; sampler of Hoff 2009",
        options=(COMPONENTS, _SWEEPS),
        replacement="bingham",
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss, *, components: int, sweeps: int) -> CalibratedPpca:
        """Return the largest concentration for which the exact distribution keeps epsilon."""
        require_components(query, components)
        if sweeps < 1:
            raise UsageError("The Gibbs sampler needs at least one sweep.", parameter="options.sweeps")
        guarantee = None
        if components in {1, query.size}:
            guarantee = proved(query, loss, __name__, bounded_ranges=[Fraction(loss.epsilon_micro, MICRO)])
        return CalibratedPpca(query.size, components, loss.epsilon / query.nuclear, sweeps, loss, guarantee)


MECHANISMS: tuple[Mechanism, ...] = (Ppca(), Bingham())
