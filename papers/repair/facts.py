"""The numbers of the preprint that no other experiment has: noise beside noise, and the printed cells of table 1.

    python -m papers.repair.facts --workers 2

It writes ``repair_facts`` as ``.json`` and ``.csv``. Noise is in units of C², under replace-one, delta 1e-6 where there
is one. Its spectral norm is the mean of 20 draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log10
from typing import Any, cast

import numpy as np

from dpdist import Neighbours, PrivacyLoss, cli
from dpdist.core.mechanisms import registry
from dpdist.core.mechanisms.base import Additive
from dpdist.core.mechanisms.sensitivity import LatticeQuery
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.triangle import unpacked
from papers.common import runs
from papers.common.command import Asked, experiment
from papers.common.runs import Json
from papers.imtiaz_sarwate.published import counted

BITS = 20
MECHANISMS = {
    "sn": "0", "jiang-wishart": "0", "two-sided-wishart": "0", "laplace": "0", "wishart": "1e-6", "gaussian": "1e-6",
}  # fmt: skip
SIZES, EPSILONS = (10, 100), ("0.1", "1")
NAME = "repair_facts"


def noise(cell: Json, _: Any) -> Json:
    """Return deviation off the diagonal, and the spectral norm of the noise."""
    name, size, epsilon = cell["mechanism"], cell["d"], cell["epsilon"]
    query = LatticeQuery(size, 4**BITS, Neighbours.REPLACE_ONE)
    calibrated = cast("Additive", registry.calibrated(name, query, PrivacyLoss.parse(epsilon, MECHANISMS[name])))
    drawn = np.array([unpacked(calibrated.draw(SYSTEM), size) for _ in range(cell["draws"])], dtype=float) / 4**BITS
    off = drawn[:, ~np.eye(size, dtype=bool)]
    return {
        "delta": MECHANISMS[name],
        "deviation": float(off.std()),
        "spectral norm": float(np.mean([np.linalg.norm(each, 2) for each in drawn])),
    }  # fmt: skip


@experiment(__doc__, "10 seconds", runs=20, quick=2, of="draws of each noise")
def main(asked: Asked) -> None:
    """Write them."""
    sizes = SIZES[:1] if asked.quick else SIZES
    cells = [
        {"mechanism": name, "d": size, "epsilon": epsilon, "draws": asked.runs}
        for size in sizes
        for epsilon in EPSILONS
        for name in MECHANISMS
    ]
    settings: Json = {"numbers": "of the preprint", "quick": asked.quick}
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        table = runs.run(executor, store, noise, cells, label="Noise")
    printed = counted()
    found: Json = {
        "noise": table,
        "table 1": {"cells": printed.cells, "whole": printed.whole, "log10 of the chance": log10(printed.chance)},
    }
    runs.write(asked.output / NAME, table, found)
    asked.finish(NAME, ".json .csv", results_of(found))


def results_of(found: Json) -> Iterator[str]:
    """Yield the numbers as lines of text."""
    for one in found["noise"]:
        yield (
            f"{one['mechanism']}, d = {one['d']}, epsilon {one['epsilon']}: deviation {one['deviation']:.4g}, spectral "
            f"norm {one['spectral norm']:.4g}"
        )
    cells = found["table 1"]
    yield (
        f"Table 1: {cells['whole']} of {cells['cells']} cells are whole numbers of rows, chance "
        f"1e{cells['log10 of the chance']:.0f}"
    )


if __name__ == "__main__":
    cli.execute(main)
