"""Shares of the noise of `gaussian`: each of several sites adds one, and no place sees a sum without noise.

**Distribution.** Of S sites at most c may collude, with each other and with whoever adds up the shares; so k = S - c or
more add their noise and keep it secret. Each site adds symmetric noise with independent entries, ``rnd(s Z)`` on and
``rnd(t Z)`` off the diagonal, Z standard normal, in lattice units. ``k s²`` and ``k t²`` are at least the squared
scales of `gaussian` (:mod:`dpdist.core.mechanisms.gaussian`) for the same loss: s and t are the least such integers.

**Theorem.** Let k >= 2 sites be honest, with the sum of rows M. Whatever the others do, the sum of the shares of the
honest ones, ``M + rnd(s Z_1) + ... + rnd(s Z_k)`` in each entry, is within total variation eta of ``rnd(M + N + V)``,
where N is normal with variance ``k s²`` and V is the sum of k - 1 independent uniforms on (-1/2, 1/2), and ::

    eta <= 2 sigma exp(-pi² sigma² / 2)   per entry,   sigma = min(s, t) >= 1024,   k <= 256.

``rnd(M + N + V)`` is post-processing of ``M + N``, which is mu-GDP with the mu of `gaussian`. If more than k sites are
honest, the noise of the others is independent of these k, and adding it is post-processing, too.

*Proof.* Let U, U_1, ... be uniform on (-1/2, 1/2). ``P(rnd(X) = x)`` is the density of ``X + U`` at x. So by Poisson
summation ``rnd(s Z)`` has the characteristic function ``sum_n g(a + 2 pi n)``, with ``g(u) = exp(-s² u² / 2) sin(u/2) /
(u/2)``, and the sum of k of them its k-th power. ``N + V + U`` has the law of ``sum_j (s Z_j + U_j)``, so ``rnd(N +
V)`` has ``sum_n g(a + 2 pi n)^k``. The two differ by the products of ``g(a + 2 pi n_j)``, j = 1..k, with n_j that are
not all equal. There, with m the mean of the n_j, ``v = sum_j (n_j - m)²`` and ``d_j = n_j - n_1``, ::

    sum_j (a + 2 pi n_j)² = k (a + 2 pi m)² + 4 pi² v,   v >= 1 - 1/k,   v >= sum_j d_j² / k.

Take half of each bound of v. Integrals over a in (-pi, pi), summed over n_1, are one over the line. So the
probabilities of one integer differ by at most ``exp(-E) T / (s sqrt(2 pi k))``, ``E = pi² s² (1 - 1/k)``, where T, the
sum of ``exp(-pi² s² |d|² / k)`` over d in Z^(k-1) without 0, is below 1 for these s and k. Add this over the integers
up to ``K = sqrt(2k) pi s² + k/2``; beyond, both laws are within k/2 of a normal number of variance ``k s²``, and have
at most ``2 exp(-pi² s²)`` each. So ``2 eta <= 3.56 s exp(-E) + 4 exp(-pi² s²)``, and E is at least ``pi² s² / 2``. ∎

(E is half of the true exponent, which is ``2 pi² s² (1 - 1/k)``: at k = 2 eta is 2.1e-5 for s = 1, 9.2e-11 for 1.5.)

**What eta costs.** Two neighbouring tables are each within eta of the ideal, so delta grows by ``(1 + e^epsilon) eta``,
and by as much in each session of an adaptive analyst (replace the steps by ideal ones, one after the other). With at
most 2^33 entries and an epsilon of at most a million, that is below ``exp(-4,000,000)``. The profile that limits every
budget leaves 1e-50 of delta free for it (:data:`dpdist.core.privacy.profile.RESERVE`), and the calibration of a release
1e-33, so eta is charged to delta, and nothing to mu.

**More colluders.** Against j > c colluding sites, the same proof gives ``mu sqrt((S - c) / (S - j))`` for j <= S - 2.
If all but one collude, or all masks are broken, one share alone is ``rnd(M + s Z)``, which is exactly
``sqrt(S - c) mu``-GDP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpdist.core.errors import UsageError
from dpdist.core.mechanisms.base import Calibrated, Proved
from dpdist.core.mechanisms.gaussian import CalibratedGaussian, RoundedNormals
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise
from dpdist.core.naming import parameter
from dpdist.core.privacy.guarantee import Guarantee

LEAST_SCALE = 1024
"""Least standard deviation of a share, in lattice steps."""
MOST_SITES = 256
_MOST_ENTRIES = 2**33


@dataclass(frozen=True)
class NoiseShare(Proved, RoundedNormals):
    """The noise that one site adds; ``noise`` describes that of the sum of all sites, which alone is published."""

    law: ClassVar[str] = "rounded-gaussian-shares"

    sites: int = 0

    @property
    def noise(self) -> Noise:
        on, off = self.sigma_diagonal, self.sigma_off_diagonal
        details = {"sites": self.sites, "sigma_diagonal": on, "sigma_off_diagonal": off}
        variances = (self.sites * float(on) ** 2, self.sites * float(off) ** 2)
        return Noise(self.law, EdgeKind.NORMAL, *variances, details=details)


def noise_share(gaussian: Calibrated, sites: int, colluding: int) -> NoiseShare:
    """Return the noise of each site for a release by `gaussian`, if at most ``colluding`` of them collude."""
    require_sites(sites, colluding)
    if not isinstance(gaussian, CalibratedGaussian):
        raise UsageError(f"Sites can share the noise of gaussian only: leave {parameter('mechanism')} out.")
    honest = sites - colluding
    on, off = (_root(scale, honest) for scale in (gaussian.sigma_diagonal, gaussian.sigma_off_diagonal))
    if min(on, off) < LEAST_SCALE:
        raise UsageError(
            f"The noise of each site would be below {LEAST_SCALE} grid steps, for which the sum of shares has no "
            "proof. Use more grid bits, or a smaller epsilon.",
            parameter="grid_bits",
        )
    if gaussian.size * (gaussian.size + 1) // 2 > _MOST_ENTRIES:
        raise UsageError("The moment of so many columns is beyond the proof for shares of noise. Use fewer columns.")
    of_gaussian = gaussian.guarantee
    guarantee = Guarantee(
        of_gaussian.neighbours, of_gaussian.loss, of_gaussian.mu_squared, of_gaussian.arithmetic, __name__
    )
    return NoiseShare(gaussian.size, on, off, sites=sites, guarantee=guarantee)


def _root(scale: int, honest: int) -> int:
    """Return the least integer s with ``honest s² >= scale²``."""
    return math.isqrt(-(-(scale**2) // honest) - 1) + 1


def require_sites(sites: int, colluding: int) -> None:
    """Refuse numbers of sites and of colluding ones for which nothing is proved."""
    if not 2 <= sites <= MOST_SITES:
        raise UsageError(f"A session has from 2 to {MOST_SITES} sites, not {sites}.", parameter="sites")
    if not 0 <= colluding <= sites - 2:
        raise UsageError(
            f"Of {sites} sites from 0 to {sites - 2} may be assumed to collude, not {colluding}: the rows of a site "
            "are hidden by its own noise and that of at least one more honest site.",
            parameter="colluding",
        )
