"""Two libraries' samplers of a private eigenvector: the laws they draw from, and the privacy that these have.

The exponential mechanism for the first eigenvector (Chaudhuri, Sarwate & Sinha 2013; Amin et al. 2019) draws from the
Bingham law ``p(u) ∝ exp(-u^T A u)`` on the sphere, ``A = c (lambda_1 I - C)``. Kent, Ganeiber & Mardia (2013) propose
from the angular central Gaussian law, ``q(u) ∝ (u^T W u)^(-d/2)`` with ``W = I + 2A/b`` and ``sum 1/(b + 2 a_i) = 1``,
and accept with probability ``exp(-u^T A u) (u^T W u)^(d/2) / M``: the ratio of p and q.

* diffprivlib (``mechanisms.Bingham``) divides by ``(u^T W u)^(d/2)`` instead: its law is ``∝ exp(-u^T A u) (u^T W
  u)^(-d)``. It claims epsilon with ``c = epsilon / 4``. Read in version 0.6.6.
* OpenDP (``make_private_eigenvector``) divides too. Up to version 0.13 it then compares with nothing: ``if
  probability: return u``. Every proposal is accepted, and its law is q. From 0.14 on it rejects, so its law is that of
  diffprivlib. It claims epsilon / 2 for one row more or fewer, with ``c = epsilon / 4``. Read in versions 0.9.0,
  0.10.0, 0.12.0 and 0.13.0, and in 0.14.0, 0.15.1 and 0.16.0.

4000 draws of diffprivlib 0.6.6 and 4000 of OpenDP 0.16.0, as installed, for 24 such rows at epsilon 1 and d = 4 agree
with that law (p = .97 and .43), and with no other of the three (p below 1e-9).

For the tables ``C = m e e^T`` and ``C' = (m + 1) e e^T`` (m rows e of norm 1, and one more) all laws depend on ``t =
(u^T e)²`` alone, which is Beta(1/2, (d-1)/2) under the uniform law. So the largest ``|log p(u) - log p'(u)|`` is found
by quadrature. It is a lower bound on the epsilon that a law has. The share of proposals that a sampler accepts is
found so, too. Where it is below one in a million, the sampler does not return in practice, and nobody sees the loss::

    python -m papers.repair.samplers --workers 2

It writes ``repair_samplers`` as ``.json`` and ``.csv``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import integrate, optimize, special

from dpdist import cli
from papers.common import runs
from papers.common.command import Asked, experiment
from papers.common.runs import Json

Floats = npt.NDArray[np.float64]
Law = Callable[[Floats], Floats]
NAME = "repair_samplers"
RIGHT, INVERTED, ALL = LAWS = ("right", "inverted", "all")
"""Proposals are accepted by the ratio of the densities, by the one that divides where it must multiply, or always."""
SAMPLERS = {
    "Bingham": (RIGHT, 0.25),
    "diffprivlib 0.6.6": (INVERTED, 1.0),
    "OpenDP 0.14 to 0.16": (INVERTED, 0.5),
    "OpenDP 0.9 to 0.13": (ALL, 0.5),
}
"""How each accepts, and what it says of one row more, in units of the epsilon that its user names; of Bingham, what is
true."""
LEAST = 1e-6
"""Acceptance from which on a sampler counts as one that returns."""
SIZES = (2, 5, 10, 20, 50, 100, 200)
ROWS = np.unique(np.concatenate([np.arange(20), np.geomspace(20, 1e6, 60)]))
_SHARES = 1 - np.concatenate([[0], np.geomspace(1e-9, 1, 2000)])


def envelope(strength: float, size: int) -> float:
    """Return b of ``1/b + (d-1)/(b + 2 strength) = 1``, between 1 and d.

    Examples
    --------
    >>> envelope(0.0, 7), round(envelope(1e9, 7), 6)
    (7.0, 1.0)
    """
    if not strength:
        return float(size)
    return float(optimize.brentq(lambda b: 1 / b + (size - 1) / (b + 2 * strength) - 1, 0.5, size))


def log_weight(law: str, strength: float, size: int) -> Law:
    """Return the log of an unscaled density at ``t = (u^T e)²`` for ``u^T A u = strength (1 - t)``."""
    b = envelope(strength, size)

    def found(t: Floats) -> Floats:
        x = strength * (1 - t)
        spread = np.log1p(2 * x / b)
        weights: dict[str, Floats] = {RIGHT: -x, INVERTED: -x - size * spread, ALL: -size / 2 * spread}
        return weights[law]

    return found


def log_total(weight: Law, size: int) -> float:
    """Return the log of the integral of a density against the uniform law."""
    angles = np.geomspace(1e-9, np.pi / 2, 2000)
    logs = weight(np.cos(angles) ** 2) + (size - 2) * np.log(np.sin(angles))
    top, peak = float(logs.max()), float(angles[logs.argmax()])

    def weighed(angle: float) -> float:
        return float(np.exp(weight(np.array(np.cos(angle) ** 2)) + (size - 2) * np.log(np.sin(angle)) - top))

    places = [place for place in (peak / 4, peak, 4 * peak) if 0 < place < np.pi / 2]
    total, _ = integrate.quad(weighed, 0, np.pi / 2, points=places, limit=500, epsabs=0, epsrel=1e-10)
    base = special.betaln(0.5, (size - 1) / 2) - np.log(2)  # of the uniform law, in angles
    return top + float(np.log(total)) - float(base)


def log_density(law: str, strength: float, size: int) -> Law:
    """Return the log of a density at ``t = (u^T e)²`` against the uniform law, for ``u^T A u = strength (1 - t)``."""
    weight = log_weight(law, strength, size)
    total = log_total(weight, size)
    return lambda t: weight(t) - total


def log_acceptance(law: str, strength: float, size: int) -> float:
    """Return the log10 of the share of proposals that a sampler accepts.

    Examples
    --------
    >>> log_acceptance("all", 3.0, 7), log_acceptance("inverted", 0.0, 7), log_acceptance("inverted", 26.0, 50) < -25
    (0.0, 0.0, True)
    """
    if law == ALL or not strength:
        return 0.0
    b = envelope(strength, size)
    bound = -(size - b) / 2 + size / 2 * np.log(size / b)
    accepted, proposed = (log_total(log_weight(each, strength, size), size) for each in (law, ALL))
    return float((accepted - proposed - bound) / np.log(10))


def loss(law: str, epsilon: float, size: int, rows: float) -> float:
    """Return the largest log ratio of the densities for so many rows and one more."""
    here, there = (log_density(law, epsilon / 4 * count, size) for count in (rows, rows + 1))
    return float(np.abs(here(_SHARES) - there(_SHARES)).max())


def worst(cell: Json, _: Any) -> Json:
    """Return the largest loss over numbers of rows, of all and of those where the sampler returns."""
    law, claimed = SAMPLERS[cell["sampler"]]
    epsilon, d = cell["epsilon"], cell["d"]
    losses = np.array([loss(law, epsilon, d, rows) for rows in ROWS])
    accepted = np.array([log_acceptance(law, epsilon / 4 * rows, d) for rows in ROWS])
    place, beyond = int(losses.argmax()), losses > claimed * epsilon + 1e-9
    return {
        "claimed": claimed * epsilon,
        "at least": float(losses[place]),
        "rows": float(ROWS[place]),
        "log10 of the acceptance": float(accepted[place]),
        "at least, where it returns": float(losses[accepted >= np.log10(LEAST)].max()),
        "log10 of the acceptance beyond the claim, at most": float(accepted[beyond].max()) if beyond.any() else None,
    }


@experiment(__doc__, "20 seconds")
def main(asked: Asked) -> None:
    """Write the largest loss over numbers of rows, for each law and dimension."""
    epsilons, sizes = ((1.0,), SIZES[:2]) if asked.quick else ((0.1, 1.0), SIZES)
    cells = [{"sampler": name, "epsilon": epsilon, "d": d} for epsilon in epsilons for d in sizes for name in SAMPLERS]
    settings: Json = {"laws": "of two libraries' samplers of a private eigenvector", "quick": asked.quick}
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        found = runs.run(executor, store, worst, cells, label="Losses")
    runs.write(asked.output / NAME, found, found)
    asked.finish(NAME, ".json .csv", results_of(found))


def results_of(found: list[Json]) -> Iterator[str]:
    """Yield the losses as lines of text."""
    for one in found:
        share = 10 ** one["log10 of the acceptance"]
        yield (
            f"{one['sampler']}, epsilon {one['epsilon']:g}, d = {one['d']}: claimed {one['claimed']:g}, at least "
            f"{one['at least']:.4g} (at {one['rows']:.4g} rows, acceptance {share:.1g}); "
            f"{one['at least, where it returns']:.4g} where it returns"
        )


if __name__ == "__main__":
    cli.execute(main)
