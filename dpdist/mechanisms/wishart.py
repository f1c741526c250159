"""`two-sided-wishart`: the difference of two Wishart matrices, pure epsilon-differential privacy.

The SN mechanism (Imtiaz & Sarwate 2016) and that of Jiang, Xie & Zhang (2016) add one Wishart matrix and were
published as purely private. They are not: the support moves with the data (the 2017 erratum). The difference of two
independent copies has full support, and the following is proved.

**Law.** ``E = W1 - W2``, W1 and W2 independent ``Z Z^T`` with Z of shape d x (d+1), entries normal with variance k.

**Theorem.** For the density g of E and every symmetric D: ``|log g(E + D) - log g(E)| <= |D|_* / (2k)``, the nuclear
norm. *Proof.* With d+1 columns W has density ``f(W) = c exp(-tr W / 2k)`` on the positive semidefinite cone, and
``g(E) = ∫ f(W + E) f(W) dW``. Let D be positive semidefinite. (a) W + E in the cone implies W + E + D in the cone,
where ``f(W + E + D) = exp(-tr D / 2k) f(W + E)``; integrating, ``g(E + D) >= exp(-tr D / 2k) g(E)``. (b) Writing
``g(E) = ∫ f(V) f(V - E) dV``: if V - E - D is in the cone, so is V - E, and
``f(V - E) = exp(-tr D / 2k) f(V - E - D)``; integrating, ``g(E) >= exp(-tr D / 2k) g(E + D)``. A general D is
the difference of its positive and negative parts. ∎ So ``k = Delta_* / (2 epsilon)``, with the tight nuclear
sensitivities of :mod:`dpdist.mechanisms.sensitivity`, gives epsilon exactly. k is rounded up to an integer
number of lattice units, which only lowers epsilon.

**Moments.** Mean 0; ``Var E_ij = 2 (d+1) k²`` off and ``4 (d+1) k²`` on the diagonal.

**Arithmetic.** Z is drawn exactly to 40 fractional bits; the products are float64 and the noise is rounded to the
lattice before it is added to the integer moment. The theorem is about real numbers, so the label is `ideal-real`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.errors import UsageError
from dpdist.mechanisms.base import Additive, DeltaUse, Mechanism, Output, Statement
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import Entropy
from dpdist.noise.lattice import rounded_normal
from dpdist.privacy.guarantee import MICRO, Arithmetic, Guarantee, PrivacyLoss
from dpdist.triangle import Triangle

_FRACTION_BITS = 40
"""Fractional bits to which the normals are drawn."""
_MAX_SPREAD = 2**56
"""Largest k d: the entries of k Z Z^T, a few times k d, stay inside int64 with overwhelming room."""


@dataclass(frozen=True)
class CalibratedTwoSidedWishart(Additive):
    """The difference of two Wishart matrices of fixed integer scale (see the module for the law)."""

    size: int
    scale: int
    guarantee: Guarantee

    @property
    def claim(self) -> PrivacyLoss:
        """What is proved."""
        return self.guarantee.loss

    @property
    def noise(self) -> dict[str, Any]:
        """Law, scale k and variances in lattice units; ``columns`` is the number of columns of Z."""
        variance = 2.0 * (self.size + 1) * float(self.scale) ** 2
        return {
            "law": "two-sided-wishart",
            "columns": self.size + 1,
            "scale": self.scale,
            "variance_diagonal": 2 * variance,
            "variance_off_diagonal": variance,
        }

    def _wishart(self, entropy: Entropy) -> npt.NDArray[np.float64]:
        columns = self.size + 1
        draws = rounded_normal(1 << _FRACTION_BITS, self.size * columns, entropy)
        z = np.ldexp(draws.astype(np.float64), -_FRACTION_BITS).reshape(self.size, columns)
        return z @ z.T

    def draw(self, entropy: Entropy) -> Triangle:
        """Draw E once; packed triangle, int64."""
        difference = self._wishart(entropy)
        difference -= self._wishart(entropy)
        difference *= self.scale
        np.rint(difference, out=difference)
        return np.concatenate([difference[i, i:] for i in range(self.size)]).astype(np.int64)


class TwoSidedWishart:
    """Pure epsilon-differential privacy by the difference of two Wishart matrices."""

    statement = Statement(
        name="two-sided-wishart",
        output=Output.SECOND_MOMENT,
        additive=True,
        law="W1 - W2, independent Wishart with d+1 degrees of freedom",
        sensitivity="nuclear: 2 C² replace-one, C² add-remove (tight)",
        claimed="epsilon (pure)",
        proved="epsilon (pure)",
        arithmetic=Arithmetic.IDEAL_REAL,
        cost="2 d(d+1) normals, two d x d x (d+1) products",
        reference="theorem in dpdist.mechanisms.wishart; repairs Imtiaz & Sarwate 2016 and Jiang et al. 2016",
        delta=DeltaUse.NONE,
    )

    def calibrate(
        self,
        query: LatticeQuery,
        loss: PrivacyLoss,
        options: Mapping[str, Any],  # noqa: ARG002 - it has none
    ) -> CalibratedTwoSidedWishart:
        """Return the smallest integer scale that keeps epsilon.

        Raises
        ------
        UsageError
            If the noise would exceed the 64-bit lattice.
        """
        scale = -(-query.nuclear * MICRO // (2 * loss.epsilon_micro))
        if scale * query.size > _MAX_SPREAD:
            raise UsageError(
                f"At {loss}, {query.size} columns and a norm bound of {query.bound} lattice units the noise leaves "
                "the 64-bit lattice: take fewer grid bits (--grid-bits) or a larger epsilon."
            )
        guarantee = Guarantee(
            neighbours=query.neighbours,
            loss=loss,
            mu_squared=None,
            arithmetic=Arithmetic.IDEAL_REAL,
            proof="dpdist.mechanisms.wishart",
        )
        return CalibratedTwoSidedWishart(query.size, scale, guarantee)


MECHANISMS: tuple[Mechanism, ...] = (TwoSidedWishart(),)
