"""How many points pack a unitary orbit (theorem 2.7), with constants: the paper leaves them open.

The turns of eigenvectors that give these points are those of the lower bound in
:mod:`dpdist.literature.orbit_forecast`. The program prints both for a projector, and beside them the covering number of
lemma 6.3: points farther apart than twice a radius are at most as many as balls of this radius that cover the orbit,
and the spectral norm is below the Frobenius norm::

    python -m papers.mangoubi.packing

It writes ``mangoubi_packing`` as ``.json`` and ``.csv``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dpdist import cli
from dpdist.literature.orbit_forecast import BEND, covering_log_number, turns
from papers.common import runs
from papers.common.command import Asked, experiment
from papers.common.runs import Json

Floats = npt.NDArray[np.float64]
NAME = "mangoubi_packing"
SIZE, RANKS, DISTANCES = 32, (1, 4, 16), (1.0, 0.5, 0.1)


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
    has at least ``1/volume(s)`` of them; turned into points of the orbit
    (:class:`dpdist.literature.orbit_forecast.Turn`) they are farther apart than ``sqrt 2 gap s``. The best gap is
    taken. ∎ The paper has an unknown constant in place of the volume.
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


@experiment(__doc__, "a second")
def main(asked: Asked) -> None:
    """Write the numbers."""
    found: list[Json] = []
    for rank in RANKS:
        spectrum = np.where(np.arange(SIZE) < rank, 1.0, 0.0)
        found += [
            {
                "d": SIZE, "k": rank, "distance": distance,
                "log of the packing number": packing_log_number(spectrum, distance),
                "of a ball of three times the distance": ball_packing_log_number(spectrum, distance, 3 * distance),
                # a cover in spectral norm by balls of r / sqrt(2 k) is one in Frobenius norm by balls of r: rank 2 k
                "log of the covering number": covering_log_number(SIZE, rank, 1.0, distance / 2 / math.sqrt(2 * rank)),
            }
            for distance in DISTANCES
        ]  # fmt: skip
    runs.write(asked.output / NAME, found, found)
    asked.finish(NAME, ".json .csv", results_of(found))


def results_of(found: list[Json]) -> Iterator[str]:
    """Yield the numbers as lines of text."""
    for one in found:
        yield (
            f"d = {one['d']}, k = {one['k']}, distance {one['distance']:g}: packing number at least "
            f"exp({one['log of the packing number']:.1f}), of a ball of three times the distance "
            f"exp({one['of a ball of three times the distance']:.1f}); covering number at most "
            f"exp({one['log of the covering number']:.1f})"
        )


if __name__ == "__main__":
    cli.execute(main)
