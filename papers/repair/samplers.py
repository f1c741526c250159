"""Two libraries' samplers of a private eigenvector: the laws they draw from, and the privacy that these have.

The exponential mechanism for the first eigenvector (Chaudhuri, Sarwate & Sinha 2013; Amin et al. 2019) draws from the
Bingham law ``p(u) ∝ exp(-u^T A u)`` on the sphere, ``A = c (lambda_1 I - C)``. Kent, Ganeiber & Mardia (2013) propose
from the angular central Gaussian law, ``q(u) ∝ (u^T W u)^(-d/2)`` with ``W = I + 2A/b`` and ``sum 1/(b + 2 a_i) = 1``,
and accept with probability ``exp(-u^T A u) (u^T W u)^(d/2) / M``: the ratio of p and q.

* diffprivlib (``mechanisms/bingham.py``, ``randomise``) divides by ``(u^T W u)^(d/2)`` instead: its law is ``∝ exp(-u^T
  A u) (u^T W u)^(-d)``. It claims epsilon with ``c = epsilon / 4``.
* OpenDP (``make_private_eigenvector``) divides too, and then compares with nothing: ``if probability: return u``. Every
  proposal is accepted, and its law is q. It claims epsilon / 2 for one row more or fewer, with ``c = epsilon / 4``.

For the tables ``C = m e e^T`` and ``C' = (m + 1) e e^T`` (m rows e of norm 1, and one more) both laws depend on ``t =
(u^T e)²`` alone, which is Beta(1/2, (d-1)/2) under the uniform law. So the largest ``|log p(u) - log p'(u)|`` is found
by quadrature. It is a lower bound on the epsilon that a law has::

    python -m papers.repair.samplers --workers 2

It writes ``repair_samplers`` as ``.json`` and ``.csv``. Versions read: diffprivlib at commit 3f4b97b, and as of 2023
with the same acceptance; OpenDP's ``extras/numpy`` as of 2024. Later ones may differ.
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
LAWS = ("Bingham", "diffprivlib", "OpenDP")
CLAIMS = {"Bingham": 0.25, "diffprivlib": 1.0, "OpenDP": 0.5}
"""What each says of one row more, in units of the epsilon that its user names; of Bingham, what is true."""
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


def log_density(law: str, strength: float, size: int) -> Law:
    """Return the log of a density at ``t = (u^T e)²`` against the uniform law, for ``u^T A u = strength (1 - t)``."""
    b = envelope(strength, size)

    def log_weight(t: Floats) -> Floats:
        x = strength * (1 - t)
        spread = np.log1p(2 * x / b)
        found: Floats = {"Bingham": -x, "diffprivlib": -x - size * spread, "OpenDP": -size / 2 * spread}[law]
        return found

    angles = np.geomspace(1e-9, np.pi / 2, 2000)
    logs = log_weight(np.cos(angles) ** 2) + (size - 2) * np.log(np.sin(angles))
    top, peak = float(logs.max()), float(angles[logs.argmax()])

    def weighed(angle: float) -> float:
        return float(np.exp(log_weight(np.array(np.cos(angle) ** 2)) + (size - 2) * np.log(np.sin(angle)) - top))

    places = [place for place in (peak / 4, peak, 4 * peak) if 0 < place < np.pi / 2]
    total, _ = integrate.quad(weighed, 0, np.pi / 2, points=places, limit=500, epsabs=0, epsrel=1e-10)
    base = special.betaln(0.5, (size - 1) / 2) - np.log(2)  # of the uniform law, in angles
    scale = top + np.log(total) - base
    return lambda t: log_weight(t) - scale


def loss(law: str, epsilon: float, size: int, rows: float) -> float:
    """Return the largest log ratio of the densities for so many rows and one more."""
    here, there = (log_density(law, epsilon / 4 * count, size) for count in (rows, rows + 1))
    return float(np.abs(here(_SHARES) - there(_SHARES)).max())


def worst(cell: Json, _: Any) -> Json:
    """Return the largest loss over numbers of rows."""
    law, epsilon = cell["law"], cell["epsilon"]
    losses = [loss(law, epsilon, cell["d"], rows) for rows in ROWS]
    place = int(np.argmax(losses))
    return {"claimed": CLAIMS[law] * epsilon, "at least": losses[place], "rows": float(ROWS[place])}


@experiment(__doc__, "10 seconds")
def main(asked: Asked) -> None:
    """Write the largest loss over numbers of rows, for each law and dimension."""
    epsilons, sizes = ((1.0,), SIZES[:2]) if asked.quick else ((0.1, 1.0), SIZES)
    cells = [{"law": law, "epsilon": epsilon, "d": d} for epsilon in epsilons for d in sizes for law in LAWS]
    settings: Json = {"laws": "of two libraries' samplers of a private eigenvector", "quick": asked.quick}
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        found = runs.run(executor, store, worst, cells, label="Losses")
    runs.write(asked.output / NAME, found, found)
    asked.finish(NAME, ".json .csv", results_of(found))


def results_of(found: list[Json]) -> Iterator[str]:
    """Yield the losses as lines of text."""
    for one in found:
        yield (
            f"{one['law']}, epsilon {one['epsilon']:g}, d = {one['d']}: claimed {one['claimed']:g}, at least "
            f"{one['at least']:.4g} (at {one['rows']:.4g} rows)"
        )


if __name__ == "__main__":
    cli.execute(main)
