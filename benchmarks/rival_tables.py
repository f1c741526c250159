"""AIM of OpenDP on a table of categories: run by contingency.py in a process of its own, with a time limit.

    python benchmarks/rival_tables.py CODES.npz

prints a JSON line. It needs ``opendp[mbi]`` and none of dpdist, so it may run in another environment.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import combinations
from typing import Any

import numpy as np


def distance(tables: dict[tuple[str, str], Any], exact: dict[tuple[str, str], Any]) -> tuple[float, float]:
    """Return the mean and the largest total variation of tables from the exact ones."""
    far = []
    for pair, truth in exact.items():
        table = np.maximum(np.asarray(tables[pair], dtype=float), 0)
        far.append(float(np.abs(table / table.sum() - truth / truth.sum()).sum() / 2))
    return float(np.mean(far)), float(np.max(far))


def exact_tables(codes: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """Return the table of each pair of columns."""
    found = {}
    for first, second in combinations(codes, 2):
        (k, a), (m, b) = codes[first], codes[second]
        found[first, second] = np.bincount(np.asarray(a) * m + np.asarray(b), minlength=k * m).reshape(k, m)
    return found


def main(path: str) -> None:
    """Run AIM on the codes of a file, and print what came out."""
    import opendp.prelude as dp
    import polars as pl
    from opendp.extras.mbi import AIM, Count

    stored = np.load(path, allow_pickle=False)
    sizes, rho = json.loads(str(stored["sizes"])), float(stored["rho"])
    codes = {name: (size, stored[f"codes {name}"]) for name, size in sizes.items()}
    dp.enable_features("contrib")
    frame = pl.LazyFrame({name: values.astype(np.int64) for name, (_, values) in codes.items()})
    start = time.monotonic()
    context = dp.Context.compositor(
        data=frame, privacy_unit=dp.unit_of(contributions=1), privacy_loss=dp.loss_of(rho=rho)
    )
    table = (
        context.query(rho=rho)
        .select(*codes)
        .contingency_table(
            keys={name: list(range(size)) for name, size in sizes.items()},
            algorithm=AIM(queries=[Count(pair) for pair in combinations(codes, 2)]),
        )
        .release()
    )
    tables = {}
    for pair in combinations(codes, 2):
        whole = np.asarray(table.project(pair))
        tables[pair] = whole[: codes[pair[0]][0], : codes[pair[1]][0]]  # without nulls
    mean, largest = distance(tables, exact_tables(codes))
    print(json.dumps({"mean": mean, "largest": largest, "seconds": time.monotonic() - start}))


if __name__ == "__main__":
    main(sys.argv[1])
