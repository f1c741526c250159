"""Seconds and accuracy of solvers for the top eigenpairs of noisy moments: for `dpdist/answers/components.py`.

The matrix is ``diag(1/i)`` plus Gaussian noise whose own largest eigenvalue is ``1/rank``. With a low rank most of the
components asked for are drowned in noise, where eigenvalues lie close and Lanczos is slow; with a high one none is::

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.eigen_times --output eigen_times

Seconds are of processor time (least of the repeats), so that a busy machine disturbs them less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import eigh
from threadpoolctl import threadpool_info

from dpdist.answers.eigen import Matrix, by_lanczos, by_lapack

RANKS = {"drowned": 10, "clear": 1000}


def divide_and_conquer(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the top eigenvalues, ascending, and eigenvectors out of all of them (LAPACK's syevd)."""
    values, columns = eigh(matrix, driver="evd")
    return values[-count:], columns[:, -count:]


SOLVERS = {"Lanczos": by_lanczos, "syevr": by_lapack, "syevd": divide_and_conquer}


def noisy(size: int, rank: int) -> Matrix:
    """Return a (size, size) noisy moment; its noise needs no privacy, so any generator will do."""
    out = np.random.default_rng(size).standard_normal((size, size))
    for i in range(size):  # row by row, so that a large one needs no second copy
        out[i, i:] = out[i:, i] = (out[i, i:] + out[i:, i]) / 8**0.5 / rank / size**0.5
    out[np.diag_indices(size)] += 1 / np.arange(1, size + 1)
    return out


def measured(matrix: Matrix, count: int, solver: str, repeats: int) -> dict[str, Any]:
    """Return processor seconds, least of the repeats, and the largest residual over the largest eigenvalue."""
    seconds = []
    for _ in range(repeats):
        begun = time.process_time()
        values, columns = SOLVERS[solver](matrix, count)
        seconds.append(time.process_time() - begun)
    residual = np.linalg.norm(matrix @ columns - columns * values, axis=0).max() / np.abs(values).max()
    return {"seconds": min(seconds), "residual": float(residual)}


def blas() -> list[str]:
    """Return name, version, kernels and threads of every BLAS that is loaded."""
    found = [info for info in threadpool_info() if info["user_api"] == "blas"]
    return [f"{i['internal_api']} {i['version']} {i.get('architecture')} x{i['num_threads']}" for i in found]


def table(results: list[dict[str, Any]], solvers: list[str]) -> list[str]:
    """Return the lines of a Markdown table: one line for each matrix and k, one column for each solver."""
    lines = ["| d | k | spectrum | " + " | ".join(solvers) + " |", "|---|---|---|" + "---|" * len(solvers)]
    keys = dict.fromkeys((cell["columns"], cell["components"], cell["spectrum"]) for cell in results)
    for key in keys:
        cells = {c["solver"]: c for c in results if (c["columns"], c["components"], c["spectrum"]) == key}
        texts = [f"{cells[s]['seconds']:.3f} ({cells[s]['residual']:.0e})" if s in cells else "" for s in solvers]
        lines.append("| " + " | ".join([*map(str, key), *texts]) + " |")
    return lines


def main() -> None:
    """Time the solvers, write the results as JSON and Markdown, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--columns", nargs="+", type=int, default=[500, 1000, 2000, 5000])
    parser.add_argument("--components", nargs="+", type=int, default=[10, 50, 100, 250])
    parser.add_argument("--solvers", nargs="+", choices=list(SOLVERS), default=list(SOLVERS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", required=True, help="Names the results: OUTPUT.json and OUTPUT.md.")
    chosen = parser.parse_args()
    results: list[dict[str, Any]] = []
    for columns in chosen.columns:
        for name, rank in RANKS.items():
            matrix = noisy(columns, rank)
            for components in (k for k in chosen.components if k <= columns):
                for solver in chosen.solvers:
                    key = {"columns": columns, "components": components, "spectrum": name, "solver": solver}
                    results.append(key | measured(matrix, components, solver, chosen.repeats))
                    print(results[-1], flush=True)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, " + ", ".join(blas())
    record = {"machine": machine, "repeats": chosen.repeats, "results": results}
    Path(f"{chosen.output}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    lines = [
        f"Processor seconds for the top k eigenpairs, least of {chosen.repeats} runs, and in brackets the residual",
        f"`|A v - value v|` over the largest eigenvalue. Machine: {machine}.",
        "",
        *table(results, chosen.solvers),
    ]
    Path(f"{chosen.output}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
