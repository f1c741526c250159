"""The erratum of 2017, executable: an attacker is certain after 1 - exp(-epsilon) of SN releases.

SN adds one Wishart matrix, which is positive definite. A release Y of a table that holds the row x is therefore never
such that Y - (the rest of the table) - x x^T has a negative eigenvalue. Who knows the rest and sees one is certain that
x was not there. This rule is applied to SN, to the noise of Jiang, Xie & Zhang, to that of the authors' code (dp_stats,
where 1/(2 epsilon) is passed as a standard deviation) and to the repairs, over many releases of either table. The share
in which it fires without the row, less exp(epsilon) times that with the row, is a lower bound on delta. The privacy
profiles beside it are exact, or proved upper bounds::

    python -m papers.imtiaz_sarwate.erratum --workers 2

It writes ``erratum`` as ``.json``, ``.csv`` (counts, by batches of releases) and ``.png``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpdist import Neighbours, PrivacyLoss, cli
from dpdist.core.mechanisms import registry
from dpdist.core.mechanisms.base import Calibrated
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.guarantee import Arithmetic
from dpdist.literature import attack
from dpdist.literature.loss_bounds import Count, Finding, implied_delta
from dpdist.literature.one_sided import CalibratedWishart
from dpdist.literature.wishart_profile import joining_delta, leaving_delta, replace_one_delta
from papers.common import pictures, runs
from papers.common.command import Asked, experiment
from papers.common.runs import Json

NAME = "erratum"
SIZE, GRID_BITS = 4, 16
DELTA = "1e-6"
ERROR = 1e-6
"""Probability with which an interval below is wrong."""
BATCH, FEW = 500, 200
EPSILONS = ("0.1", "0.3", "1", "3")
WITHDRAWN = {"SN": "sn", "Jiang et al.": "jiang-wishart", "dp_stats": ""}
REPAIRS = {"two-sided-wishart": "two-sided-wishart", "wishart": "wishart"}


def theta_of(label: str, epsilon: float) -> float:
    """Return ``theta = 2 s²/C²`` of a withdrawn mechanism, all of which have d+1 degrees of freedom."""
    return {"SN": 1 / epsilon, "Jiang et al.": 3 / epsilon, "dp_stats": 1 / (2 * epsilon**2)}[label]


def certain(label: str, epsilon: float) -> float:
    """Return the probability that a release gives the neighbour away: ``1 - exp(-1/theta)``.

    Examples
    --------
    >>> round(certain("SN", 1), 4), round(certain("Jiang et al.", 1), 4), round(certain("dp_stats", 1), 4)
    (0.6321, 0.2835, 0.8647)
    """
    return -math.expm1(-1 / theta_of(label, epsilon)) if label in WITHDRAWN else 0.0


def calibrated(label: str, epsilon: str, query: LatticeQuery) -> Calibrated:
    """Return the mechanism that is attacked."""
    if label == "dp_stats":
        scale = math.ceil(theta_of(label, float(epsilon)) * query.bound / 2)
        claim = PrivacyLoss.parse(epsilon)
        return CalibratedWishart(query.size, query.size + 1, scale, Arithmetic.IDEAL_REAL, None, claim)
    loss = PrivacyLoss.parse(epsilon, DELTA if label == "wishart" else "0")
    return registry.calibrated((WITHDRAWN | REPAIRS)[label], query, loss)


def attacked(cell: Json, _: Any) -> Json:
    """Apply the rule to a batch of releases of either table: one row of full norm, or a row of zeros in its place."""
    query = LatticeQuery(SIZE, 4**GRID_BITS, Neighbours.REPLACE_ONE)
    mechanism = calibrated(cell["mechanism"], cell["epsilon"], query)
    row = np.zeros((SIZE, SIZE), dtype=np.int64)
    row[0, 0] = query.bound
    counts = {}
    for name, moment in (("with the row", row), ("without the row", np.zeros_like(row))):
        draws = list(attack.views(mechanism, attack.KnownMoment(moment), cell["draws"], SYSTEM))
        # rounding to the lattice moves an eigenvalue by less than SIZE
        counts[name] = sum(bool(np.linalg.eigvalsh(y - row)[0] < -SIZE) for y in draws)
    return counts


def profile(label: str, claimed: str, epsilon: float) -> float:
    """Return the delta at an epsilon of a mechanism claimed at another: exact, or an upper bound."""
    if label in WITHDRAWN:
        theta = theta_of(label, float(claimed))
        return max(leaving_delta(epsilon, 1.0, theta), joining_delta(epsilon, 1.0, theta))
    if label == "two-sided-wishart":
        return implied_delta(PrivacyLoss.parse(claimed), epsilon)
    query = LatticeQuery(SIZE, 4**GRID_BITS, Neighbours.REPLACE_ONE)
    noise = calibrated(label, claimed, query).noise
    kappa, theta = (noise["degrees"] - SIZE + 1) / 2, 2 * noise["scale"] / query.bound
    return replace_one_delta(epsilon, kappa, theta)


@experiment(__doc__, "6 minutes", runs=20, of="batches of 500 releases of either table")
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    labels, epsilons = list(WITHDRAWN | REPAIRS), ("1",) if asked.quick else EPSILONS
    settings: Json = {
        "paper": "Imtiaz & Sarwate 2016, erratum of 2017", "quick": asked.quick, "d": SIZE, "delta of wishart": DELTA,
        "neighbours": "replace-one; a row of full norm for a row of zeros",
    }  # fmt: skip
    cells = [
        {"mechanism": label, "epsilon": epsilon, "batch": batch, "draws": FEW if asked.quick else BATCH}
        for batch in range(asked.runs)
        for label in labels
        for epsilon in epsilons
    ]
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        rows = runs.run(executor, store, attacked, cells, label="Attacks")
    found = [summary(rows, label, epsilon) for label in labels for epsilon in epsilons]
    grid = [round(float(e), 4) for e in np.linspace(0, 2, 3 if asked.quick else 21)]
    profiles = {label: [profile(label, "1", e) for e in grid] for label in labels}
    facts = {"confidence": 1 - ERROR, "attacks": found, "profiles at claimed epsilon 1": {"epsilon": grid} | profiles}
    runs.write(asked.output / NAME, rows, settings | facts)
    picture(asked.output / f"{NAME}.png", found, grid, profiles)
    asked.finish(NAME, ".json .csv .png", results_of(found))


def results_of(attacks: list[Json]) -> Iterator[str]:
    """Yield what the attacks show as lines of text."""
    for row in attacks:
        theory = f" ({row['certain in theory']:.4f} in theory)" if row["mechanism"] in WITHDRAWN else ""
        yield (
            f"{row['mechanism']}, claimed epsilon {row['epsilon']}: the rule fires in "
            f"{row['rule fires without the row']:.4f} without the row{theory} and "
            f"{row['rule fires with the row']:.4f} with it; delta at least {row['delta at least']:.4f}"
        )


def summary(rows: list[Json], label: str, epsilon: str) -> Json:
    """Return how often the rule fires on either table, the delta this shows at the claimed epsilon, and theory."""
    mine = [row for row in rows if (row["mechanism"], row["epsilon"]) == (label, epsilon)]
    draws = sum(row["draws"] for row in mine)
    fires, false = (Count(sum(row[name] for row in mine), draws) for name in ("without the row", "with the row"))
    low, estimate, high = Finding(fires, false, ERROR).delta(float(epsilon))
    return {
        "mechanism": label,
        "epsilon": epsilon,
        "releases of either table": draws,
        "rule fires without the row": fires.hits / draws,
        "rule fires with the row": false.hits / draws,
        "delta at least": low,
        "delta estimated": estimate,
        "upper limit of the estimate": high,
        "certain in theory": certain(label, float(epsilon)),
    }


def picture(path: Path, found: list[Json], grid: list[float], profiles: dict[str, list[float]]) -> None:
    """Draw the attacks and the profiles."""
    figure, (left, right) = pictures.panels(2, width=5.4, height=4.4)
    fine = np.linspace(0.02, float(found[-1]["epsilon"]) + 0.2, 100)
    for label in WITHDRAWN | REPAIRS:
        look = pictures.style(label)
        line, dots = look | {"marker": ""}, look | {"ls": ""}
        mine = [row for row in found if row["mechanism"] == label]
        x, y = [float(row["epsilon"]) for row in mine], np.maximum([row["delta estimated"] for row in mine], 0)
        low = np.array([row["delta at least"] for row in mine])
        high = np.maximum([row["upper limit of the estimate"] for row in mine], y)
        left.errorbar(x, y, [np.maximum(y - low, 0), high - y], capsize=3, label=label, **dots)
        if label in WITHDRAWN:
            left.plot(fine, [certain(label, e) for e in fine], **line)
        right.plot(grid, [delta or math.nan for delta in profiles[label]], label=label, **line)
    right.axhline(float(DELTA), color="0.7", lw=1)
    below = np.linspace(0, 1 - 1e-9, 200)
    claimed = [implied_delta(PrivacyLoss.parse("1"), e) for e in below]
    right.plot(below, claimed, "k:", lw=1.2, label="claimed: (1, 0)")
    left.set(xlabel="claimed epsilon", ylabel="delta shown by the attack", ylim=(-0.02, 1.02))
    left.set_title(
        "Delta at the claimed epsilon that the attack shows\n(dots: measured; lines: share of certainty in theory)",
        fontsize=9,
    )
    right.set(xlabel="epsilon", ylabel="delta (log)", yscale="log", ylim=(1e-8, 2), xlim=(0, grid[-1]))
    right.set_title(
        f"Privacy profiles at claimed epsilon 1, replace-one\n(gray: delta {DELTA}, claimed by wishart)", fontsize=9
    )
    left.grid(alpha=0.3)
    right.grid(alpha=0.3)
    pictures.legend_below(figure, right, 6)
    pictures.save(figure, path)


if __name__ == "__main__":
    cli.execute(main)
