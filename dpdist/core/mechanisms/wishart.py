"""`two-sided-wishart`: the difference of two Wishart matrices, pure epsilon-differential privacy.

The SN mechanism (Imtiaz & Sarwate 2016) and that of Jiang, Xie & Zhang (2016) add one Wishart matrix and were
published as purely private. They are not, because the support depends on the data (the 2017 erratum). The difference
of two independent copies has full support and the following property.

**Distribution.** ``E = R1 - R2``, independent copies of ``R = rnd(W)``, ``W = k Z Z^T`` with Z of shape d x (d+1),
entries standard normal, k an integer number of lattice units, rnd entry by entry to the nearest integer.

**Theorem.** Let g be the probability function of E on the symmetric integer matrices. For integer vectors v, w

    |log g(E + v v^T - w w^T) - log g(E)| <= (|v|² + |w|²) / (2k).

*Proof.* With d+1 columns W has density ``f(W) = c exp(-tr W / 2k)`` on the positive semidefinite cone, 0 elsewhere.
Let D be a positive semidefinite *integer* matrix and ``a = exp(-tr D / 2k)``. W in the cone implies W + D in the cone,
where ``f(W + D) = a f(W)``. As D is an integer matrix, W rounds to r exactly when W + D rounds to r + D. Integrating
over all W that round to r, the probability function p of R obeys ``p(r + D) >= a p(r)`` for every integer matrix r.

(a) ``g(E) = sum_r p(r + E) p(r)``, hence ``g(E + D) = sum_r p(r + E + D) p(r) >= a g(E)``.
(b) With r - E for r, ``g(E) = sum_r p(r) p(r - E)``. Here ``p(r - E) = p((r - E - D) + D) >= a p(r - E - D)``, hence
    ``g(E) >= a sum_r p(r) p(r - E - D) = a g(E + D)``.

So ``|log g(E + D) - log g(E)| <= tr D / 2k`` (or both are 0). Take D = v v^T, then D = w w^T from E + v v^T - w w^T,
and add the two bounds. ∎ The positive and the negative part of an integer matrix are in general not integer, so the
lattice argument is made for the two rows themselves: replacing w by v changes the moment by ``v v^T - w w^T``, adding v
by ``v v^T``, with integer v, w and ``|v|², |w|² <= S``. (For several rows of one privacy unit D is the sum of their
``v v^T``, still a positive semidefinite integer matrix, of trace at most M S. With one column ``v² - w²`` or its
negative is itself such a D, of trace at most S, or M S.) The bound, 2 S / 2k and S / 2k, is the nuclear sensitivity of
:mod:`dpdist.core.mechanisms.sensitivity` over 2k, no worse than for real matrices (where the same proof, with the
density of W1 - W2 and any D split into its parts, gives ``|D|_* / 2k``). So ``k = Delta_* / (2 epsilon)`` gives
epsilon; k is rounded up to an integer, which only lowers it.

**Any symmetric integer change D** of nuclear norm at most N
(:class:`dpdist.core.mechanisms.sensitivity.DeclaredQuery`): the loss is at most ``(N + d² + 2d) / 2k``. *Proof.* Let P0
and Q0 be the positive and the negative part of D, and ``c = ceil(d/2)``. ``P = rnd(P0) + c I`` is an integer matrix, so
``Q = P - D = Q0 + (rnd(P0) - P0) + c I`` is one. Both are positive semidefinite, since the entries of ``rnd(P0) - P0``
are at most 1/2 and its eigenvalues at most d/2. Their traces sum to at most ``tr P0 + tr Q0 + 2 (d/2 + c d) <= N + d +
d (d+1)``. The argument above holds for D = P, and then for D = Q from E + P - Q. ∎

**Moments.** Mean 0; ``Var E_ij = 2 (d+1) k²`` off and ``4 (d+1) k²`` on the diagonal; rounding adds about 1/6.

**Arithmetic.** R is drawn exactly (:mod:`dpdist.core.noise.products`), and the theorem holds for the integers released:
`integer-exact`. With the option ``arithmetic=ideal-real``, Z is drawn to 40 fractional bits, the products are float64
and ``W1 - W2`` is rounded to the lattice: half the time, but the proof then holds for real numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.core.mechanisms.base import Additive, Matrix, Mechanism, Proved, proved, require_on_lattice
from dpdist.core.mechanisms.info import Kind, MechanismInfo, Option
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import Entropy
from dpdist.core.noise.floats import normals
from dpdist.core.noise.products import rounded_wishart
from dpdist.core.privacy.guarantee import MICRO, Arithmetic, PrivacyLoss
from dpdist.core.triangle import Triangle, rounded

ARITHMETIC = Option(
    "arithmetic",
    Kind.WORD,
    "integer-exact noise, or faster ideal-real noise, whose proof is about real numbers",
    default=Arithmetic.INTEGER_EXACT.value,
    choices=tuple(arithmetic.value for arithmetic in Arithmetic),
)
"""The option of mechanisms that can draw their noise in either arithmetic."""
_MAX_SPREAD = 2**56  # largest k d: the entries of k Z Z^T, a few times k d, stay far inside int64


@dataclass(frozen=True)
class CalibratedTwoSidedWishart(Proved, Additive):
    """The difference of two Wishart matrices with fixed integer scale."""

    size: int
    scale: int

    @property
    def noise(self) -> Noise:
        variance = 2.0 * (self.size + 1) * float(self.scale) ** 2
        details = {"columns": self.size + 1, "scale": self.scale}
        return Noise("two-sided-wishart", EdgeKind.TWO_SIDED_WISHART, 2 * variance, variance, details=details)

    def draw(self, entropy: Entropy) -> Triangle:
        columns = self.size + 1
        if self.guarantee.arithmetic is Arithmetic.INTEGER_EXACT:
            noise = rounded_wishart(self.size, columns, self.scale, entropy)
            noise -= rounded_wishart(self.size, columns, self.scale, entropy)
            return noise
        difference = self._wishart(columns, entropy)
        difference -= self._wishart(columns, entropy)
        difference *= self.scale
        return rounded(difference)

    def _wishart(self, columns: int, entropy: Entropy) -> Matrix:
        z = normals(self.size * columns, entropy).reshape(self.size, columns)
        return z @ z.T


class TwoSidedWishart:
    """The difference of two Wishart matrices, purely private."""

    info = MechanismInfo(
        name="two-sided-wishart",
        law="W1 - W2, independent rounded Wishart with d+1 degrees of freedom",
        sensitivity="nuclear: 2 C² replace-one (C² for one column), C² add-remove (tight)",
        claimed="epsilon (pure)",
        proved="epsilon (pure)",
        arithmetic=Arithmetic.INTEGER_EXACT,
        cost="2 d(d+1) normals, 2 to 6 d x d x (d+1) products for each Wishart matrix",
        reference="theorem in dpdist.core.mechanisms.wishart; repairs Imtiaz & Sarwate 2016 and Jiang et al. 2016",
        options=(ARITHMETIC,),
        units=True,
    )

    def calibrate(self, query: LatticeQuery, loss: PrivacyLoss, *, arithmetic: str) -> CalibratedTwoSidedWishart:
        scale = -(-query.nuclear * MICRO // (2 * loss.epsilon_micro))
        require_on_lattice(query, loss, scale * query.size, _MAX_SPREAD)
        guarantee = proved(query, loss, __name__, arithmetic=Arithmetic(arithmetic))
        return CalibratedTwoSidedWishart(query.size, scale, guarantee=guarantee)


MECHANISMS: tuple[Mechanism, ...] = (TwoSidedWishart(),)
