"""Cells of all tables of two categories from one release, against formula and truth.

    python -m benchmarks.cells benchmarks/results/cells --data FOLDER

FOLDER has a9a.npz, covertype.npz and cardiotocography.npz; numbers are cut into bins of equal width on public ranges,
so that each data set is a table of categories. It is released at epsilon 1, delta 1e-6, under both relations, with the
default bound of a schema (categories about 1/k, and a constant), and with categories about zero and no constant, as
one-hot columns. From the former all tables of two columns follow (:mod:`dpdist.answers.crosstab`). Shown are the root
of the mean squared error of all cells, that which the stated variances give, that of shrunk tables, that of one-hot
columns, that of all tables asked for alone as counts with the same guarantee, the coverage of the 95 % intervals of
cells and of percentages of rows, and the share of tests at .05 that reject for columns that were permuted. The constant
is that of the schema (:mod:`dpdist.core.rows.contrasts`), and the last columns have the errors that others would give,
by the formula.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

import dpdist
from dpdist.answers.association import independence
from dpdist.answers.crosstab import crosstab
from dpdist.answers.variables import variables
from dpdist.core.rows.schema import Schema

Matrix = npt.NDArray[np.float64]
Codes = dict[str, tuple[int, npt.NDArray[np.int64]]]
DRAWS = 6
LOSS = dpdist.PrivacyLoss.parse("1", "1e-6")
BUDGET = dpdist.PrivacyLoss.parse("1000", "1e-2")
_A9A = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)
_COVERTYPE: tuple[tuple[float, float], ...] = (
    (1800, 3900), (0, 360), (0, 70), (0, 1400), (-200, 620), (0, 7200), (0, 255), (0, 255), (0, 255), (0, 7200),
)  # fmt: skip
_CARDIO: dict[str, tuple[float, float]] = {
    "LB": (100, 165), "ASTV": (0, 100), "MSTV": (0, 7), "ALTV": (0, 100), "MLTV": (0, 50), "Width": (0, 180),
    "Min": (50, 160), "Max": (120, 240), "Mode": (60, 190), "Mean": (70, 185), "Median": (75, 190), "AC": (0, 0.02),
    "UC": (0, 0.015),
}  # fmt: skip


def bins(values: Matrix, ends: tuple[float, float], count: int) -> tuple[int, npt.NDArray[np.int64]]:
    """Return the number of bins of equal width, and the bin of each value."""
    low, high = ends
    return count, np.clip(((values - low) / (high - low) * count).astype(int), 0, count - 1)


def tables_of(folder: Path) -> dict[str, Codes]:
    """Return the data sets as categories: number of values and codes of each column."""
    found: dict[str, Codes] = {"a9a": {}, "covertype": {}, "cardiotocography": {}}
    file, at = np.load(folder / "a9a.npz"), 0
    for number, size in enumerate(_A9A):
        block = file["X"][:, at : at + size]
        at += size
        missing = block.sum(1) == 0  # a category of its own
        found["a9a"][f"a{number}"] = size + int(missing.any()), np.where(missing, size, block.argmax(1))
    found["a9a"]["income"] = 2, (file["y"] > 0).astype(int)
    file = np.load(folder / "covertype.npz")
    for number, ends in enumerate(_COVERTYPE):
        found["covertype"][f"c{number}"] = bins(file["X"][:, number].astype(float), ends, 5)
    kinds = {"wilderness": (4, file["X"][:, 10:14]), "soil": (40, file["X"][:, 14:])}
    found["covertype"] |= {name: (size, block.argmax(1)) for name, (size, block) in kinds.items()}
    found["covertype"]["cover"] = 2, file["y"].astype(int)
    file = np.load(folder / "cardiotocography.npz")
    names = [str(name) for name in file["feature_names"]]
    for name, ends in _CARDIO.items():
        found["cardiotocography"][name] = bins(file["X"][:, names.index(name)], ends, 4)
    found["cardiotocography"] |= {"NSP": (3, file["y"].astype(int) - 1), "class": (10, file["y_class"].astype(int) - 1)}
    return found


def schema_of(codes: Codes) -> Schema:
    """Return the public description of such a table."""
    return Schema(
        [
            dpdist.Column(name, "category", categories=[str(value) for value in range(size)])
            for name, (size, _) in codes.items()
        ]
    )


def blocks_of(sizes: list[int]) -> list[slice]:
    """Return the columns of the rows of each category."""
    ends = np.cumsum(sizes)
    return [slice(int(end - size), int(end)) for size, end in zip(sizes, ends, strict=True)]


def answered(release: dpdist.Release, exact: Matrix, blocks: dict[str, slice]) -> dict[str, float]:
    """Return sums over all tables of a release, against the exact moment of its columns."""
    held, sums = variables(release), dict.fromkeys(("cells", "squares", "stated", "shrunk", "inside", "shares"), 0.0)
    rows_with = 0
    for first, second in combinations(blocks, 2):
        table, truth = crosstab(held, first, second), exact[blocks[first], blocks[second]]
        sums["cells"] += truth.size
        sums["squares"] += float(((table.estimates - truth) ** 2).sum())
        sums["shrunk"] += float(((table.shrunk - truth) ** 2).sum())
        sums["stated"] += table.deviation**2 * truth.size
        sums["inside"] += _inside(table.intervals, truth).sum()
        known = truth.sum(axis=1) > 0
        share = truth[known] / truth[known].sum(axis=1, keepdims=True)
        sums["shares"] += _inside(table.of_rows.intervals[known], share).sum()
        rows_with += share.size
    return {**sums, "of rows": rows_with}


def _inside(ends: Matrix, truth: Matrix) -> npt.NDArray[np.bool_]:
    return (ends[..., 0] <= truth) & (truth <= ends[..., 1])


def rejected(codes: Codes, neighbours: str, folder: Path) -> list[float]:
    """Return the p-values of all pairs of permuted columns."""
    random = np.random.default_rng(7)
    frame = pd.DataFrame({name: random.permutation(values).astype(str) for name, (_, values) in codes.items()})
    frame.to_parquet(folder / "p.parquet")
    rows = folder / f"permuted-{neighbours}.zarr"
    dpdist.ingest_rows(folder / "p.parquet", rows, budget=BUDGET, schema=schema_of(codes))
    request = dpdist.ReleaseRequest(
        "gaussian", LOSS, "schema", dpdist.Neighbours(neighbours), centring=dpdist.Centring("schema"),
        rows_at_most=10**6,
    )  # fmt: skip
    held = variables(dpdist.release_rows(rows, folder / f"permuted-{neighbours}.release.zarr", request).release)
    return [independence(held, a, b).p_value for a, b in combinations(held.categorical.values(), 2)]


def expected(sizes: list[int], constant: float, variance: float, *, public: bool) -> float:
    """Return the root mean squared error of a cell by the formula; ``variance`` is that of the diagonal."""
    of_n = 0.0 if public else variance / (constant**4 + sum((k - 1) / k**2 for k in sizes))
    margins = [variance / (2 * constant**2 + 1 - 2 / k) for k in sizes]
    total = cells = 0.0
    for i, k in enumerate(sizes):
        for j, m in enumerate(sizes[:i]):
            each = of_n / (k * m) ** 2 + margins[i] * (1 - 1 / k) / m**2 + margins[j] * (1 - 1 / m) / k**2
            total += (each + variance / 2 * (1 - 1 / k) * (1 - 1 / m)) * k * m
            cells += k * m
    return float(np.sqrt(total / cells))


def measured(codes: Codes, neighbours: str, draws: int, folder: Path) -> dict[str, Any]:
    """Return the errors of cells of a data set under one relation."""
    sizes = [size for size, _ in codes.values()]
    frame = pd.DataFrame({name: values.astype(str) for name, (_, values) in codes.items()})
    frame.to_parquet(folder / "t.parquet")
    schema, rows = schema_of(codes), folder / f"{neighbours}.zarr"
    dpdist.ingest_rows(folder / "t.parquet", rows, budget=BUDGET, schema=schema)
    exact = schema.transform(frame).to_numpy()
    exact = exact.T @ exact
    outside = np.ones(exact.shape, dtype=bool)
    for at in blocks_of(sizes):
        outside[at, at] = False  # the diagonal blocks are no tables of two columns
    total: Counter[str] = Counter()
    one_hot: list[float] = []
    named = dict(zip(codes, blocks_of(sizes), strict=True))
    for draw in range(draws):
        for centring in ("schema", "none"):
            request = dpdist.ReleaseRequest(
                "gaussian", LOSS, "schema", dpdist.Neighbours(neighbours), centring=dpdist.Centring(centring),
                rows_at_most=10**6, name=f"{centring}{draw}",
            )  # fmt: skip
            release = dpdist.release_rows(rows, folder / f"{neighbours}-{centring}{draw}.zarr", request).release
            if centring == "none":
                one_hot.append(float(((np.asarray(release.second_moment) - exact)[outside] ** 2).mean()))
                continue
            total.update(answered(release, exact, named))
            bound, variance = release.bound, (release.noise.variance_diagonal or 0) * release.bound.unit**4
            norm, constant = bound.row_norm, bound.constant * bound.unit
            unit = variance / (norm**2 + constant**2) ** 2
    others = {
        f"C/{2**bits}": expected(
            sizes, norm / 2**bits, unit * (norm**2 * (1 + 4.0**-bits)) ** 2, public=release.rows is not None
        )
        for bits in range(4)
    }
    p_values = rejected(codes, neighbours, folder)
    return {
        "rows": len(frame), "columns": len(sizes), "cells": int(outside.sum()) // 2,
        "constant over C": constant / norm, "measured": float(np.sqrt(total["squares"] / total["cells"])),
        "formula": float(np.sqrt(total["stated"] / total["cells"])),
        "shrunk": float(np.sqrt(total["shrunk"] / total["cells"])), "one-hot": float(np.sqrt(np.mean(one_hot))),
        "asked alone": float(np.sqrt(unit * len(sizes) * (len(sizes) - 1) / 2)),
        "coverage": total["inside"] / total["cells"], "coverage of shares": total["shares"] / total["of rows"],
        "size": float(np.mean(np.array(p_values) < 0.05)), "tests": len(p_values), "others": others,
    }  # fmt: skip


_HEADS = (
    "", "rows", "tables", "cells", "constant", "measured", "stated", "shrunk", "one-hot", "asked alone", "coverage",
    "of shares",
    "size", "C", "C/2", "C/4", "C/8",
)  # fmt: skip


def text_of(found: dict[str, Any]) -> str:
    """Return the results as a page."""
    lines = [
        "# Cells of all tables of two categories, from one release",
        "",
        f"Epsilon 1, delta 1e-6, `gaussian`, {found['draws']} draws; root mean squared error of a cell, in rows.",
        "",
        f"| {' | '.join(_HEADS)} |",
        "|" + "---|" * len(_HEADS),
    ]
    for name, one in found["tables"].items():
        count = one["columns"] * (one["columns"] - 1) // 2
        others = " | ".join(f"{error:.1f}" for error in one["others"].values())
        lines.append(
            f"| {name} | {one['rows']:,} | {count} | {one['cells']:,} | {one['constant over C']:.3g} C | "
            f"**{one['measured']:.1f}** | {one['formula']:.1f} | {one['shrunk']:.1f} | {one['one-hot']:.1f} | "
            f"{one['asked alone']:.1f} | "
            f"{one['coverage']:.3f} | {one['coverage of shares']:.3f} | {one['size']:.3f} | {others} |"
        )
    lines += ["", "The last four columns are what other constants would give, by the formula."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=DRAWS)
    asked = parser.parse_args()
    found: dict[str, Any] = {"draws": asked.draws, "tables": {}}
    warnings.simplefilter("ignore")
    for name, codes in tables_of(asked.data).items():
        for neighbours in ("add-remove", "replace-one"):
            with tempfile.TemporaryDirectory() as folder:
                found["tables"][f"{name}, {neighbours}"] = measured(codes, neighbours, asked.draws, Path(folder))
            sys.stderr.write(f"{name}, {neighbours}\n")
    asked.target.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    asked.target.with_suffix(".md").write_text(text_of(found))
    sys.stdout.write(text_of(found))


if __name__ == "__main__":
    main()
