"""Total variation of all tables of two columns: one release of dpdist, and AIM of OpenDP, at the same mu.

    python -m benchmarks.contingency benchmarks/results/contingency --data FOLDER [--opendp PYTHON] [--limit SECONDS]

The data sets are those of :mod:`benchmarks.cells`, with 20,000 rows of Covertype, under add-remove at epsilon 1 and .1,
delta 1e-6. dpdist makes one release by the default of a schema, and takes tables as released (negative cells are 0),
shrunk, and of the nearest moment that rows can have. PYTHON is an interpreter with ``opendp[mbi]``, in which
``benchmarks/rival_tables.py`` runs AIM with all tables of two columns as its workload and rho = mu²/2, which ends
within the limit or not. Wall clock includes everything from the rows in memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dpdist
from benchmarks.cells import schema_of, tables_of
from benchmarks.rival_tables import distance, exact_tables
from dpdist.answers.crosstab import crosstab
from dpdist.answers.feasible import feasible
from dpdist.answers.variables import variables

_AIM = Path(__file__).with_name("rival_tables.py")
EPSILONS = ("1", "0.1")
DRAWS = 3


def ours(codes: dict[str, Any], epsilon: str, draws: int) -> tuple[list[dict[str, Any]], float]:
    """Return the distances of tables from releases of dpdist, and the mu of one."""
    exact, schema, found = exact_tables(codes), schema_of(codes), []
    frame = pd.DataFrame({name: np.asarray(values).astype(str) for name, (_, values) in codes.items()})
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        dpdist.ingest_rows(frame, here / "rows.zarr", budget=dpdist.PrivacyLoss.parse("1000", "1e-2"), schema=schema)
        for draw in range(draws):
            start = time.monotonic()
            request = dpdist.ReleaseRequest(
                "gaussian", dpdist.PrivacyLoss.parse(epsilon, "1e-6"), "schema", dpdist.Neighbours.ADD_REMOVE,
                rows_at_most=10**6, name=f"r{draw}",
            )  # fmt: skip
            release = dpdist.release_rows(here / "rows.zarr", here / f"{draw}.zarr", request).release
            held = variables(release)
            near = feasible(held)
            seconds = time.monotonic() - start
            tables = {pair: crosstab(held, *pair) for pair in exact}
            line: dict[str, Any] = {"seconds": seconds}
            for kind, chosen in (
                ("released", {pair: table.estimates for pair, table in tables.items()}),
                ("shrunk", {pair: table.shrunk for pair, table in tables.items()}),
                ("nearest", {pair: near.table(*pair) for pair in exact}),
            ):
                line[kind], line[f"largest {kind}"] = distance(chosen, exact)
            found.append(line)
        if release.guarantee is None or release.guarantee.mu_squared is None:
            raise AssertionError("a release by gaussian has a mu")
        return found, float(release.guarantee.mu_squared) ** 0.5


def theirs(codes: dict[str, Any], mu: float, python: str, limit: float) -> dict[str, Any]:
    """Return what AIM does at the same mu, or that it did not end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "codes.npz"
        sizes = json.dumps({name: size for name, (size, _) in codes.items()})
        arrays = {f"codes {name}": np.asarray(values) for name, (_, values) in codes.items()}
        np.savez(path, sizes=np.array(sizes), rho=np.array(mu**2 / 2), **arrays)  # type: ignore[arg-type]
        command = [python, str(_AIM), str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)  # noqa: S603 - of this package
        except subprocess.TimeoutExpired:
            return {"unfinished": limit}
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-1][:200]}
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer


def told(rival: dict[str, Any] | None) -> list[str]:
    """Return the cells about AIM."""
    if rival is None:
        return ["not run", ""]
    if "unfinished" in rival:
        return [f"not done in {rival['unfinished']:.0f} s", ""]
    if "failed" in rival:
        return [f"failed: {rival['failed']}", ""]
    return [f"{rival['mean']:.4f} ({rival['largest']:.2f})", f"{rival['seconds']:.0f}"]


def page(found: list[dict[str, Any]]) -> str:
    """Return the results as a page."""
    lines = [
        "# All tables of two columns, against AIM of OpenDP", "",
        "By `python -m benchmarks.contingency`: total variation, mean (largest) over all tables, add-remove, with",
        f"the same mu; of dpdist the mean of {DRAWS} releases.", "",
        "| data | epsilon | released, negative cells 0 | shrunk | nearest moment | seconds | AIM | seconds |",
        f"|{'---|' * 8}",
    ]  # fmt: skip
    for one in found:
        own = {key: float(np.mean([line[key] for line in one["ours"]])) for key in one["ours"][0]}
        cells = [f"{own[kind]:.4f} ({own[f'largest {kind}']:.2f})" for kind in ("released", "shrunk", "nearest")]
        cells[2] = f"**{cells[2]}**"
        row = [one["data"], one["epsilon"], *cells, f"{own['seconds']:.1f}", *told(one["aim"])]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--opendp")
    parser.add_argument("--limit", type=float, default=1800)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    found = []
    data = tables_of(asked.data)
    chosen = np.random.default_rng(0).permutation(len(data["covertype"]["cover"][1]))[:20_000]
    data["covertype"] = {name: (size, values[chosen]) for name, (size, values) in data["covertype"].items()}
    for name in ("cardiotocography", "covertype", "a9a"):
        for epsilon in EPSILONS:
            lines, mu = ours(data[name], epsilon, DRAWS)
            rival = theirs(data[name], mu, asked.opendp, asked.limit) if asked.opendp else None
            found.append({"data": name, "epsilon": epsilon, "ours": lines, "mu": mu, "aim": rival})
            sys.stderr.write(f"{json.dumps(found[-1])}\n")
            asked.target.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
            asked.target.with_suffix(".md").write_text(page(found))


if __name__ == "__main__":
    main()
