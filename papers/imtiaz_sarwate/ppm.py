"""PPM of Imtiaz & Sarwate (2016) as an attack: what delta its frames show for rows, at its claimed epsilon.

Its claim is about one entry of the moment. Here two tables of unit rows with 152 columns differ in one row; there are
15 times as many columns as components, as in the paper's MNIST. The columns h_1 .. h_k and u of a Hadamard matrix
have entries of the size ``1/sqrt(d)`` only. Both tables hold each h_i as often as its level says: the levels fall by
factors of 5, from 2 10^9 to 1000. Their last row is ``w = (h - u) / sqrt(2)`` in the one and ``v = (h + u) /
sqrt(2)`` in the other, with h = h_k, so the moments differ by ``D = h u^T + u h^T``. The frames soon are near (h_1 ..
h_k), whose largest entry, and with it the noise, is the smallest possible. The attacker sees the frames of all 12
rounds, which are public in the algorithm, and takes the likelihood ratio of ``u^T Y_l h``, the only place where D is
seen. How often it exceeds ``exp(epsilon)`` with either table bounds delta from below::

    python -m papers.imtiaz_sarwate.ppm --workers 2

It writes ``imtiaz_sarwate_ppm`` as ``.json`` and ``.csv`` (counts by batch).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import Neighbours, PrivacyLoss, cli
from dpdist.core.mechanisms import registry
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.floats import haar, normals
from dpdist.literature.loss_bounds import Count, Finding
from dpdist.literature.power import CalibratedPower
from papers.common import runs
from papers.common.command import Asked, experiment
from papers.common.data import Floats
from papers.common.runs import Json
from papers.imtiaz_sarwate.methods import PUBLISHED

NAME = "imtiaz_sarwate_ppm"
PRIME, COMPONENTS, ROUNDS = 151, 10, 12
EPSILONS = ("0.3", "1")
LEAST, FACTOR = 1000, 5
BATCH, ERROR = 500, 1e-4
NEAR = 0.5
"""Rounds in which the last vector is farther from h are not weighed."""


def hadamard() -> Floats:
    """Return a symmetric-core Hadamard matrix of order ``PRIME + 1``, orthonormal columns (Paley 1933).

    Examples
    --------
    >>> h = hadamard()
    >>> bool(np.allclose(h.T @ h, np.eye(152))), sorted({round(float(x), 6) for x in np.unique(h)})
    (True, [-0.081111, 0.081111])
    """
    squares = {i * i % PRIME for i in range(1, PRIME)}
    legendre = np.array([0.0, *(1.0 if i in squares else -1.0 for i in range(1, PRIME))])
    places = np.arange(PRIME)
    skew = np.zeros((PRIME + 1, PRIME + 1))
    skew[0, 1:], skew[1:, 0] = 1, -1
    skew[1:, 1:] = legendre[(places[:, None] - places) % PRIME]
    found: Floats = (np.eye(PRIME + 1) + skew) / np.sqrt(PRIME + 1)
    return found


def mechanism(epsilon: str) -> CalibratedPower:
    """Return PPM as published, with its claim of epsilon and the published delta."""
    query = LatticeQuery(PRIME + 1, 1, Neighbours.REPLACE_ONE)
    options = {"components": COMPONENTS, "iterations": ROUNDS}
    found = registry.calibrated("power-published", query, PrivacyLoss.parse(epsilon, PUBLISHED), options)
    if not isinstance(found, CalibratedPower):
        raise TypeError(found)
    return found


def tables() -> tuple[Floats, npt.NDArray[np.int64], dict[str, Floats]]:
    """Return the rows that both tables hold, how often, and the last row of each: all of norm 1.

    Examples
    --------
    >>> shared, times, last = tables()
    >>> shared.shape, [int(times[0]), int(times[-1])], sorted(last)
    ((10, 152), [1953125000, 1000], ['as it is', 'changed'])
    """
    basis = hadamard()
    shared, u = basis[:, :COMPONENTS].T, basis[:, COMPONENTS]
    times = LEAST * FACTOR ** np.arange(COMPONENTS - 1, -1, -1)
    h = shared[-1]
    return shared, times, {"as it is": (h - u) / np.sqrt(2), "changed": (h + u) / np.sqrt(2)}


def fires(epsilon: str, count: int, table: str) -> int:
    """Run PPM repeatedly on one of the two tables; count the likelihood ratios above exp(epsilon)."""
    shared, times, last = tables()
    published = mechanism(epsilon)
    moment = (shared.T * times) @ shared + np.outer(last[table], last[table])
    h, u = shared[-1], hadamard()[:, COMPONENTS]
    frames = np.array([haar(PRIME + 1, COMPONENTS, SYSTEM) for _ in range(count)])
    ratios = np.zeros(count)
    for _ in range(ROUNDS):
        deviation = published.scale * np.abs(frames).max(axis=(1, 2))
        noise = normals(frames.size, SYSTEM).reshape(frames.shape) * deviation[:, None, None]
        before, aside = frames[:, :, -1] @ h, frames[:, :, -1] @ u
        frames = np.linalg.qr(moment @ frames + noise)[0]
        shown = frames[:, :, -1]
        # Y is known up to a factor, that of its part along h, which is LEAST + 1/2 times that of the frame before
        seen = (LEAST + 0.5) * before * (shown @ u) / (shown @ h)
        # its part along u has the mean (aside + before)/2 with the changed table, and (aside - before)/2 with the other
        ratios += np.where(np.abs(before) > NEAR, before * (seen - aside / 2) / deviation**2, 0)
    return int(np.count_nonzero(ratios > float(epsilon)))


def attacked(cell: Json, _: Any) -> Json:
    """Count the events in a batch of releases of either table."""
    return {name: fires(cell["epsilon"], cell["draws"], name) for name in ("as it is", "changed")}


@experiment(__doc__, "4 minutes", runs=80, quick=1, of="batches of 500 releases of either table")
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    epsilons = ("1",) if asked.quick else EPSILONS
    settings: Json = {
        "paper": "Imtiaz & Sarwate 2016, PPM", "quick": asked.quick, "d": PRIME + 1, "k": COMPONENTS, "rounds": ROUNDS,
        "delta claimed": PUBLISHED, "neighbours": "replace-one",
    }  # fmt: skip
    cells = [
        {"epsilon": epsilon, "batch": batch, "draws": BATCH} for epsilon in epsilons for batch in range(asked.runs)
    ]
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        rows = runs.run(executor, store, attacked, cells, label="Attacks")
    table = [summary(rows, epsilon) for epsilon in epsilons]
    runs.write(asked.output / NAME, rows, settings | {"attacks": table})
    asked.finish(NAME, ".json .csv", results_of(table))


def results_of(attacks: list[Json]) -> Iterator[str]:
    """Yield what the attacks show as lines of text."""
    for row in attacks:
        yield (
            f"PPM, claimed epsilon {row['epsilon']}, delta {PUBLISHED}: delta at least {row['delta at least']:.4f} "
            f"(estimated {row['delta estimated']:.4f}), at most {row['delta proved']:.4f}"
        )


def summary(rows: list[Json], epsilon: str) -> Json:
    """Return the delta that the attack shows at the claimed epsilon, and the one that is proved."""
    mine = [row for row in rows if row["epsilon"] == epsilon]
    draws = sum(row["draws"] for row in mine)
    changed, as_it_is = (Count(sum(row[name] for row in mine), draws) for name in ("changed", "as it is"))
    low, estimate, _ = Finding(changed, as_it_is, ERROR).delta(float(epsilon))
    return {
        "epsilon": epsilon, "releases of either table": draws, "delta at least": low, "delta estimated": estimate,
        "delta proved": mechanism(epsilon).guarantee.loss.delta,
    }  # fmt: skip


if __name__ == "__main__":
    cli.execute(main)
