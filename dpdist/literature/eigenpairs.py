"""`kapralov-talwar` and `amin`: a second moment composed of private eigenvectors and private eigenvalues.

Notation of :mod:`dpdist.literature.exponential`: rows of squared norm at most S, D the change of the moment A to a
neighbour, R = 2 S (replace-one) or S (add-remove) the range of ``x^T D x`` over unit vectors x. Lap(b) has density
``exp(-|x|/b)/2b``. How epsilon is split is public and fixed.

**`kapralov-talwar`** (Kapralov & Talwar 2013). ``C_1 = A``. For i = 1 .. k: u_i has density ``exp(c u^T C_i u)`` on the
whole unit sphere, ``l_i = u_i^T C_i u_i + Lap(b)``, ``C_(i+1) = C_i - l_i u_i u_i^T``; released is
``sum_i l_i u_i u_i^T``. The subtracted terms have been released, so C_i differs from its counterpart by D at every
step: u_i costs c R and l_i, of sensitivity ``|u^T D u| <= S`` under both relations, S/b. Each of the 2k draws gets
epsilon/2k: ``c = epsilon/(2 k R)``, ``b = 2 k S/epsilon``. (For d = 1 the vector costs nothing and l_1 gets all of
epsilon.)

**`amin`** (Amin, Dick, Kulesza, Munoz & Vassilvitskii 2019). The k largest eigenvalues get Lap(b) each, are clipped
at 0 and sorted; orthonormal u_1 .. u_k are successive Bingham vectors of A; released is ``sum_i l_i u_i u_i^T``. The
change of the eigenvalues has an l1 norm of at most ``|D|_* = R`` (Lidskii), and of at most ``|D|_2 <= S`` for k = 1.
With m = min(k, d - 1) vectors that the others do not determine, the eigenvalues get ``epsilon/(m + 1)`` and the vectors
jointly the rest: ``b = R (m + 1)/epsilon`` (S in place of R for k = 1), and c is that of `bingham` at
``m epsilon/(m + 1)``. The authors' ``c = epsilon_i/4`` is private but at least twice too small, and their clipping at n
is omitted, because n need not be public.

**Proof.** Each draw is private given the previous ones; basic composition (Laplace and exponential mechanism).

**Arithmetic.** Float64; the released sum is rounded to the lattice, which is post-processing: `ideal-real`.
**Timing.** The number of rejections depends on the data; no guarantee covers an attacker who can time the draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.core.mechanisms.base import (
    Answer,
    ExactMoment,
    Matrix,
    Mechanism,
    Proved,
    proved,
    require_components,
    require_on_lattice,
)
from dpdist.core.mechanisms.info import COMPONENTS, MechanismInfo
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.floats import exponentials
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.triangle import Triangle, rounded
from dpdist.literature import ratios
from dpdist.literature.bingham import bingham, successive
from dpdist.literature.exponential import successive_concentration
from dpdist.literature.ratios import LogRatio

_MAX_SPREAD = 2.0**54
"""Largest sum of the k Laplace scales: except with probability k exp(-128), the k draws sum to less than 2^61."""


def _laplace(scale: float, count: int, entropy: Entropy) -> Matrix:
    return scale * (exponentials(count, entropy) - exponentials(count, entropy))


@dataclass(frozen=True)
class CalibratedEigenpairs(Proved):
    """Eigenpairs, from the deflated moment (`kapralov-talwar`) or values and vectors separately (`amin`)."""

    count: int
    concentration: float
    scale: float
    deflated: bool

    @property
    def noise(self) -> Noise:
        law = "deflated-bingham-laplace" if self.deflated else "successive-bingham-laplace"
        details = {"components": self.count, "concentration": self.concentration, "scale": self.scale}
        return Noise(law, details=details)

    def answer(self, moment: ExactMoment, entropy: Entropy) -> Answer:
        return (self._deflated if self.deflated else self._separate)(moment.matrix(), entropy)

    def _deflated(self, residual: Matrix, entropy: Entropy) -> Triangle:
        total = np.zeros_like(residual)
        for noise in _laplace(self.scale, self.count, entropy):
            vector = bingham(self.concentration * residual, 1, entropy)[0]
            term = (vector @ residual @ vector + noise) * np.outer(vector, vector)
            residual = residual - term
            total += term
        return rounded(total)

    def _separate(self, matrix: Matrix, entropy: Entropy) -> Triangle:
        values = np.linalg.eigvalsh(matrix)[::-1][: self.count] + _laplace(self.scale, self.count, entropy)
        values = np.sort(np.maximum(values, 0))[::-1]
        vectors = successive(self.concentration * matrix, self.count, entropy)
        return rounded((vectors.T * values) @ vectors)

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> LogRatio | None:
        if self.count > 1:
            return None
        if self.deflated:
            return ratios.deflated_pair(moment, neighbour, self.concentration, self.scale)
        vector = ratios.successive_bingham(moment, neighbour, self.concentration)
        return ratios.clipped_pair(moment, neighbour, self.scale, lambda y, _: vector(np.linalg.eigh(y)[1][:, -1:].T))


def _calibrated(
    query: LatticeQuery, loss: PrivacyLoss, count: int, concentration: float, scale: float, *, deflated: bool
) -> CalibratedEigenpairs:
    require_on_lattice(query, loss, count * scale, _MAX_SPREAD)
    guarantee = proved(query, loss, __name__)
    return CalibratedEigenpairs(count, concentration, scale, deflated, guarantee=guarantee)


class KapralovTalwar:
    """Eigenpairs drawn successively, each from the moment minus the released terms."""

    info = MechanismInfo(
        name="kapralov-talwar",
        additive=False,
        law="sum of k terms l u u': u of density exp(c u'Cu), l = u'Cu + Laplace, C the moment less the previous terms",
        sensitivity="u'Cu: range 2 C² replace-one, C² add-remove; |u'Cu|: C² (tight)",
        claimed="epsilon (pure)",
        proved="epsilon (pure)",
        cost="k eigendecompositions of d x d, O(sqrt(d)) candidates of d normals each",
        reference="Kapralov & Talwar 2013, with tight constants and exact draws",
        options=(COMPONENTS,),
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss, *, components: int) -> CalibratedEigenpairs:
        """Split epsilon evenly over the vectors and the values."""
        require_components(query, components)
        share = loss.epsilon / (2 * components)
        scale = query.bound / (share if query.size > 1 else loss.epsilon)
        return _calibrated(query, loss, components, share / query.nuclear, scale, deflated=True)


class Amin:
    """Noisy eigenvalues, and orthonormal vectors drawn successively."""

    info = MechanismInfo(
        name="amin",
        additive=False,
        law="sum of k terms l u u': l the largest eigenvalues + Laplace, clipped at 0, u successive Bingham vectors",
        sensitivity="eigenvalues, l1: 2 C² replace-one (C² for k = 1), C² add-remove; vectors as bingham",
        claimed="epsilon (pure)",
        proved="epsilon (pure)",
        cost="k + 1 eigendecompositions of d x d, O(sqrt(d)) candidates of d normals each",
        reference="Amin, Dick, Kulesza, Munoz & Vassilvitskii 2019, with tighter constants",
        options=(COMPONENTS,),
        semidefinite=True,
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss, *, components: int) -> CalibratedEigenpairs:
        """Give the eigenvalues one share of epsilon, and each vector that must be drawn another."""
        require_components(query, components)
        drawn = min(components, query.size - 1)
        share = loss.epsilon / (drawn + 1)
        concentration = successive_concentration(query, components, drawn * share)
        scale = (query.bound if components == 1 else query.nuclear) / share
        return _calibrated(query, loss, components, concentration, scale, deflated=False)


MECHANISMS: tuple[Mechanism, ...] = (KapralovTalwar(), Amin())
