"""`jl`: the second moment of r random combinations of the rows (Blocki, Blum, Datta & Sheffet 2012; Sheffet 2015).

**Distribution.** ``Y = (1/r) sum_k y_k y_k^T`` with ``y_1, ..., y_r`` independent ``N(0, M + w² I)``:
Johnson-Lindenstrauss projections of the rows and of w times each unit vector. r Y is Wishart with r degrees of freedom;
Y is positive semidefinite with ``E Y = M + w² I``. The ridge is not subtracted, because that is post-processing;
``mean_diagonal`` states it. The error is multiplicative, about ``sqrt(d/r)`` of M: more rows do not reduce it.

**Guarantee.** :mod:`dpdist.literature.jl_profile` proves the exact profile for both relations; delta falls as w²/C²
grows. ``ridge=exact`` uses the least w² that keeps (epsilon, delta). The published ones, in units of C²,

    published:  w = 16 sqrt(r ln(2/delta)) ln(16 r / delta) / epsilon        (Blocki et al. 2012),
    sheffet:    w² = 4 (sqrt(2 r ln(4/delta)) + ln(4/delta)) / epsilon       (Sheffet 2015),

are larger, and private at any practical epsilon; the guarantee is the profile at the ridge in use. With epsilon in the
thousands Sheffet's is not private as claimed. Only normal projections are covered: sparse ones are not private in
general.

**Arithmetic.** A Cholesky factor of ``M + w² I`` in float64 times normals of 40 fractional bits, rounded to the
lattice: `ideal-real`. The ridge makes the factorisation stable (n rows of d columns round M by about
``n d 2^-53`` C²), and values beyond int64 are clipped, so no row can make the draw fail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpdist.core.mechanisms.base import ExactMoment, Matrix, Mechanism, proved_at_delta, require_on_lattice
from dpdist.core.mechanisms.info import DeltaUse, Kind, MechanismInfo, Option
from dpdist.core.mechanisms.noise_law import Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.naming import parameter
from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.floats import normals
from dpdist.core.privacy.guarantee import Guarantee, PrivacyLoss
from dpdist.core.triangle import Triangle, rounded
from dpdist.literature import jl_profile, ratios
from dpdist.literature.jl_profile import MAX_RIDGE, least_ridge, profile
from dpdist.literature.ratios import LogRatio

_RIDGES = ("exact", "published", "sheffet")
_BLOCK = 1 << 22  # normals in memory at once


@dataclass(frozen=True)
class CalibratedProjection:
    """The second moment of ``sketch`` normal combinations of rows and ridge, divided by their number."""

    size: int
    sketch: int
    ridge: int
    guarantee: Guarantee | None
    claim: PrivacyLoss

    @property
    def noise(self) -> Noise:
        details = {"sketch": self.sketch, "ridge": self.ridge}
        return Noise("wishart-of-the-moment", mean_diagonal=float(self.ridge), details=details)

    def answer(self, moment: ExactMoment, entropy: Entropy) -> Triangle:
        factor = np.linalg.cholesky(moment.matrix() + float(self.ridge) * np.eye(self.size))
        inner = np.zeros((self.size, self.size))
        block = max(1, _BLOCK // self.size)
        for start in range(0, self.sketch, block):
            count = min(block, self.sketch - start)
            draws = normals(self.size * count, entropy).reshape(self.size, count)
            inner += draws @ draws.T
        return rounded(factor @ inner @ factor.T / self.sketch)

    def log_ratio(self, moment: Matrix, neighbour: Matrix) -> LogRatio:
        return ratios.projection(moment, neighbour, self.sketch, self.ridge)


def published_ridge(rule: str, loss: PrivacyLoss, sketch: int) -> float:
    """Return a published ridge, in units of C²."""
    epsilon, delta = loss.epsilon, loss.delta
    if rule == "published":
        return (16 * math.sqrt(sketch * math.log(2 / delta)) * math.log(16 * sketch / delta) / epsilon) ** 2
    return 4 * (math.sqrt(2 * sketch * math.log(4 / delta)) + math.log(4 / delta)) / epsilon


class Projection:
    """Normal Johnson-Lindenstrauss projections of the rows, with a ridge."""

    info = MechanismInfo(
        name="jl",
        additive=False,
        law="W_d(r, M + w² I) / r",
        sensitivity="gain C²/w² of a row over the ridge; worst rows orthogonal (tight)",
        claimed="(epsilon, delta)",
        proved="(epsilon, delta) by the exact profile; the published ridge is about 10⁷ times the needed one",
        cost="r d normals, a d x d x r product, a Cholesky factor",
        reference="Blocki, Blum, Datta & Sheffet 2012; Sheffet 2015; exact ridge: dpdist.literature.jl_profile",
        delta=DeltaUse.REQUIRED,
        options=(
            Option("sketch", Kind.INTEGER, "number r of random combinations; the relative error is about sqrt(d/r)"),
            Option("ridge", Kind.WORD, "the smallest private ridge, or a published one", "exact", _RIDGES),
        ),
        replacement="jl with ridge=exact",
        semidefinite=True,
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss, *, sketch: int, ridge: str) -> CalibratedProjection:
        delta = profile(query.neighbours, query.size, sketch)
        if ridge == "exact":
            square = least_ridge(loss, query.neighbours, query.size, sketch, query.bound)
        else:
            square = math.ceil(published_ridge(ridge, loss, sketch) * query.bound)
            require_on_lattice(
                query, loss, square, MAX_RIDGE, or_else=f"the exact ridge ({parameter('options.ridge')})"
            )
        guarantee = proved_at_delta(query, loss, delta(loss.epsilon, query.bound / square), jl_profile.__name__)
        return CalibratedProjection(query.size, sketch, square, guarantee, loss)


MECHANISMS: tuple[Mechanism, ...] = (Projection(),)
