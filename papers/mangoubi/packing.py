"""How many points pack a unitary orbit (theorem 2.7), with constants: the paper leaves them open.

The turns of eigenvectors that give these points are those of the lower bound in :mod:`dpdist.pca.orbit`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dpdist.pca.orbit import BEND, turns

Floats = npt.NDArray[np.float64]


def grassmannian_ball_log_volume(size: int, dimension: int, radius: float) -> float:
    """Return the logarithm of the share of k-dimensional subspaces of C^d within a chordal distance of a fixed one.

    The chordal distance is the root of the summed squares of the sines of the principal angles, ``|P - Q|_F / sqrt 2``
    for the projectors. Up to radius 1 the share is exactly ``c radius^(2k(d-k))`` with
    ``c = prod_(i<=m) (d-i)!/(m-i)! / (m(d-m))!``, m = min(k, d-k) (Dai, Liu & Rider 2008, theorem 1).

    Examples
    --------
    A line of C^2 is a point of a sphere, and a ball of chordal radius 1/2 a quarter of it:

    >>> round(math.exp(grassmannian_ball_log_volume(2, 1, 0.5)), 12)
    0.25
    """
    m = min(dimension, size - dimension)
    constant = math.fsum(math.lgamma(size - i + 1) - math.lgamma(m - i + 1) for i in range(1, m + 1))
    return constant - math.lgamma(m * (size - m) + 1) + 2 * m * (size - m) * math.log(radius)


def packing_log_number(spectrum: Floats, distance: float) -> float:
    """Return the logarithm of a number of points of the orbit, pairwise farther apart than a distance (theorem 2.7).

    *Proof.* A largest set of subspaces that are pairwise farther apart than s is covered by balls of radius s, so it
    has at least ``1/volume(s)`` of them; turned into points of the orbit (:class:`dpdist.pca.orbit.Turn`) they are
    farther apart than ``sqrt 2 gap s``. The best gap is taken. ∎ The paper has an unknown constant in place of the
    volume.
    """
    found = 0.0
    for turn in turns(spectrum):
        s = distance / (math.sqrt(2) * turn.gap)
        if s <= 1:
            found = max(found, -grassmannian_ball_log_volume(turn.top + turn.bottom, turn.top, s))
    return found


def ball_packing_log_number(spectrum: Floats, distance: float, radius: float) -> float:
    """Return the logarithm of a packing number of a ball of the orbit (theorem 2.7, the first inequality).

    *Proof.* The smallest rotation U to a subspace at angles t_1, t_2, ... has ``|U - 1|_F² = 8 sum sin²(t/2)``, and
    ``|U G U* - G|_F <= (gamma_1 - gamma_d) |U - 1|_F``. So subspaces within a chordal distance r <= 1/2 of the first
    give points within ``sqrt 2 (gamma_1 - gamma_d) r / cos 15°``. A largest packing of their ball at distance s has at
    least as many as the quotient of the volumes, ``(r/s)^(2i(d-j+1))``: the constant of the volume cancels. ∎
    """
    spread = float(spectrum[0] - spectrum[-1])
    found = 0.0
    for turn in turns(spectrum):
        r = min(0.5, radius / (math.sqrt(2) * spread * BEND))
        found = max(found, turn.freedom * math.log(r * math.sqrt(2) * turn.gap / distance))
    return found
