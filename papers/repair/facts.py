"""The numbers of the preprint that no other experiment has: noise beside noise, and the printed cells of table 1.

    python -m papers.repair.facts

It writes ``repair_facts`` as ``.json``. Noise is in units of C², under replace-one, delta 1e-6 where there is one. Its
spectral norm is the mean of 20 draws.
"""

from __future__ import annotations

import json
from math import log10
from pathlib import Path
from typing import Any, cast

import numpy as np

from dpdist import Neighbours, PrivacyLoss
from dpdist.mechanisms import registry
from dpdist.mechanisms.base import Additive
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import SYSTEM
from dpdist.triangle import unpacked
from papers.imtiaz_sarwate.published import counted

BITS, DRAWS = 20, 20
MECHANISMS = {
    "sn": "0", "jiang-wishart": "0", "two-sided-wishart": "0", "laplace": "0", "wishart": "1e-6", "gaussian": "1e-6",
}  # fmt: skip
SIZES, EPSILONS = (10, 100), ("0.1", "1")
RESULT = Path(__file__).resolve().parent.parent / "results" / "repair_facts.json"


def noise(name: str, size: int, epsilon: str) -> dict[str, Any]:
    """Return deviation off the diagonal, and the spectral norm of the noise about its mean and as it is."""
    query = LatticeQuery(size, 4**BITS, Neighbours.REPLACE_ONE)
    calibrated = cast("Additive", registry.calibrated(name, query, PrivacyLoss.parse(epsilon, MECHANISMS[name])))
    drawn = np.array([unpacked(calibrated.draw(SYSTEM), size) for _ in range(DRAWS)], dtype=float) / 4**BITS
    off = drawn[:, ~np.eye(size, dtype=bool)]
    return {
        "mechanism": name, "d": size, "epsilon": epsilon, "delta": MECHANISMS[name],
        "deviation": float(off.std()),
        "spectral norm": float(np.mean([np.linalg.norm(each, 2) for each in drawn])),
    }  # fmt: skip


def main() -> None:
    """Write them."""
    table = [noise(name, size, epsilon) for size in SIZES for epsilon in EPSILONS for name in MECHANISMS]
    cells = counted()
    found = {
        "noise": table,
        "table 1": {"cells": cells.cells, "whole": cells.whole, "log10 of the chance": log10(cells.chance)},
    }
    for row in [*table, found["table 1"]]:
        print(row)
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
