"""The covariance of a table with gaps, pair by pair, against the complete table.

    python -m benchmarks.gaps benchmarks/results/gaps --data FOLDER

FOLDER has covertype.npz. Of 10 numbers of Covertype, 100,000 rows on public ranges, a share of cells is missing at
random. The table is released at epsilon 1, delta 1e-6, with ``missing = "pairwise"`` and ``"centre"``, by its ranges
(``clip = "schema"``, which clips no row) and with a private scale. Shown are the relative Frobenius error of the
covariance, as released and unshrunk, in the units of the ranges; the error of the exact pairwise covariance, which is
that of the gaps alone; and how often the interval of an entry contains the exact pairwise one (stated: .95).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

import dpdist
from dpdist.answers.covariance import covariance
from dpdist.answers.shrinkage import Shrinkage

Matrix = npt.NDArray[np.float64]
ROWS, DRAWS, SHARES = 100_000, 40, (0.0, 0.05, 0.2, 0.4)
RANGES = (
    (1800, 3900), (0, 360), (0, 70), (0, 1400), (-200, 620), (0, 7200), (0, 255), (0, 255), (0, 255), (0, 7200),
)  # fmt: skip
NAMES = [f"c{number}" for number in range(len(RANGES))]
LOSS = dpdist.PrivacyLoss.parse("1", "1e-6")


def exactly(rows: Matrix) -> Matrix:
    """Return the covariance of each pair of columns over the rows that have both values."""
    there = ~np.isnan(rows)
    filled, count = np.where(there, rows, 0), there.T.astype(float) @ there
    sums = filled.T @ there
    result: Matrix = filled.T @ filled / count - sums * sums.T / count**2
    return result


def measured(rows: Matrix, missing: str, *, scaled: bool, draws: int, folder: Path) -> tuple[Matrix, float | None]:
    """Return the released covariances, and the coverage of their intervals."""
    columns = [
        dpdist.Column(name, "number", range=ends, missing=missing) for name, ends in zip(NAMES, RANGES, strict=True)
    ]
    pd.DataFrame(rows, columns=NAMES).to_parquet(folder / "t.parquet")
    path, budget = folder / f"{missing}{scaled}.zarr", dpdist.PrivacyLoss.parse("1000", "1e-2")
    dpdist.ingest_rows(folder / "t.parquet", path, budget=budget, schema=dpdist.Schema(columns, scale="range"))
    half = np.array([(high - low) / 2 for low, high in RANGES])
    truth, found, held = exactly(rows) / np.outer(half, half), list[Matrix](), list[float]()
    for draw in range(draws):
        request = dpdist.ReleaseRequest(
            "gaussian", LOSS, "auto" if scaled else "schema", centring=dpdist.Centring.PRIVATE,
            scale="private" if scaled else None, name=f"r{draw}",
        )  # fmt: skip
        release = dpdist.release_rows(path, folder / f"{missing}{scaled}{draw}.release", request).release
        result = covariance(release, Shrinkage.NONE)
        places = np.ix_(*[[release.names.index(name) for name in NAMES]] * 2)
        found.append(result.released[places])
        if result.intervals is not None and missing == "pairwise" and not scaled:
            ends = result.intervals[places]
            held.append(float(((ends[..., 0] <= truth) & (truth <= ends[..., 1]))[np.triu_indices(len(NAMES))].mean()))
    return np.array(found), float(np.mean(held)) if held else None


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=DRAWS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    source = np.load(asked.data / "covertype.npz")["X"]
    rows = source[np.random.default_rng(0).permutation(len(source))[:ROWS]][:, : len(RANGES)].astype(float)
    half = np.array([(high - low) / 2 for low, high in RANGES])
    truth = np.cov(rows.T, bias=True) / np.outer(half, half)
    found: dict[str, Any] = {"draws": asked.draws, "shares": {}}
    lines = [
        "# The covariance of a table with gaps", "",
        "Relative error of 10 x 10 covariances of Covertype, 100,000 rows, epsilon 1. By `python -m benchmarks.gaps`.",
        "",
        "| missing | gaps alone | pairwise | coverage (.95) | pairwise, private scale | centre, private scale |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for share in SHARES:
        gaps = np.where(np.random.default_rng(1).random(rows.shape) < share, np.nan, rows)
        one: dict[str, float | None] = {"gaps alone": relative(exactly(gaps) / np.outer(half, half), truth)}
        for missing, scaled in (("pairwise", False), ("pairwise", True), ("centre", True)):
            with tempfile.TemporaryDirectory() as folder:
                draws = asked.draws if not scaled else min(8, asked.draws)
                matrices, held = measured(gaps, missing, scaled=scaled, draws=draws, folder=Path(folder))
            kind = f"{missing}{', private scale' * scaled}"
            one[kind] = float(np.mean([relative(matrix, truth) for matrix in matrices]))
            one |= {} if held is None else {"coverage": held}
        found["shares"][f"{share:g}"] = one
        cells = [f"{one[kind]:.4f}" for kind in ("gaps alone", "pairwise")] + [f"{one['coverage']:.3f}"]
        cells += [f"{one[kind]:.4f}" for kind in ("pairwise, private scale", "centre, private scale")]
        lines.append(f"| {100 * share:g} % | {' | '.join(cells)} |")
        sys.stderr.write(lines[-1] + "\n")
    lines += ["", "With a private scale most of the error is that of clipped rows."]
    asked.target.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    asked.target.with_suffix(".md").write_text("\n".join(lines) + "\n")


def relative(matrix: Matrix, truth: Matrix) -> float:
    """Return the relative Frobenius error."""
    return float(np.linalg.norm(matrix - truth) / np.linalg.norm(truth))


if __name__ == "__main__":
    main()
