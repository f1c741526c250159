"""The numbers of the preprint that no other experiment has: noise beside noise, and the printed cells of table 1.

    python -m papers.repair.facts

It writes ``repair_facts`` as ``.json``. Noise is in units of C², under replace-one, delta 1e-6 where there is one. Its
spectral norm is the mean of 20 draws.
"""

from __future__ import annotations

import json
from fractions import Fraction
from math import comb, log10
from pathlib import Path
from typing import Any, cast

import numpy as np

from dpdist import Neighbours, PrivacyLoss
from dpdist.mechanisms import registry
from dpdist.mechanisms.base import Additive
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import SYSTEM
from dpdist.triangle import unpacked
from papers.imtiaz_sarwate.published import DATA, LABELS, SPLITS, published_error

BITS, DRAWS = 20, 20
MECHANISMS = {
    "sn": "0", "jiang-wishart": "0", "two-sided-wishart": "0", "laplace": "0", "wishart": "1e-6", "gaussian": "1e-6",
}  # fmt: skip
SIZES, EPSILONS = (10, 100), ("0.1", "1")
TESTED = 4000
"""Rows that the paper tests on, for synthetic data and Covertype and MNIST alike."""
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


def whole_cells() -> dict[str, Any]:
    """Count the printed errors of table 1 that are whole counts of the rows that were tested.

    A printed error is in per cent, to three decimals; a mean of ten whole counts is a multiple of a tenth. If the tenth
    were any of ten with the same chance, all of n cells would be whole with probability 10^-n.
    """
    cells = [
        Fraction(str(published_error(label, data, split))) * TESTED / 100
        for label in LABELS
        for data in DATA
        for split in SPLITS[:2]
    ]
    whole = sum(cell.denominator == 1 for cell in cells)
    chance = sum(
        comb(len(cells), k) * Fraction(1, 10) ** k * Fraction(9, 10) ** (len(cells) - k)
        for k in range(whole, len(cells) + 1)
    )
    return {"cells": len(cells), "whole": whole, "log10 of the chance": log10(chance)}


def main() -> None:
    """Write them."""
    table = [noise(name, size, epsilon) for size in SIZES for epsilon in EPSILONS for name in MECHANISMS]
    found = {"noise": table, "table 1": whole_cells()}
    for row in [*table, found["table 1"]]:
        print(row)
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
