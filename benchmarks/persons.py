"""All rows of persons against M of each: captured variance of one release, on data with many rows per person.

    python -m benchmarks.persons benchmarks/results/persons --data FOLDER

FOLDER has a9a.npz, covertype.npz and movement_rss.npz. Rows of a9a belong to 5323 persons with log-normal numbers of
rows (median 4), those of 20,000 rows of Covertype (columns over their deviations) to 1000 persons with 20 each, once at
random ("mixed") and once so that those of a person are similar ("alike"); the walks are real, with 19 to 129 rows. All
releases are of the second moment, at epsilon 1, delta 1e-6, under replace-one. "dpdist" is the release of all rows with
its clip norm chosen privately, for a tenth of mu². The best M and C of a grid, and the best clip norm of whole persons,
are chosen with knowledge of the data, and have all of the loss: exact sums with noise of the product's deviation. There
are 10 draws each, 100 of the walks, and as many again of the best of a grid, which was chosen by the first ones. "gain"
is that of dpdist over the best M and C, as a share of that of the best clip norm of whole persons; "quantile" is the
share of persons within the chosen clip norm.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import dpdist
from dpdist.core.privacy.accounting import gaussian_sigma

Matrix = npt.NDArray[np.float64]
Owners = npt.NDArray[np.int64]
LOSS = dpdist.PrivacyLoss.parse("1", "1e-6")
BUDGET = dpdist.PrivacyLoss.parse("900", "1e-3")
DRAWS, SMALL_DRAWS = 10, 100
_SIGMA = float(gaussian_sigma(LOSS))
_QUANTILES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 1.0)


def alike(rows: Matrix) -> Matrix:
    """Return rows in an order in which neighbours are similar."""
    return rows[np.argsort(np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[0][:, 0])]


def tables(folder: Path, random: np.random.Generator) -> Iterator[tuple[str, Matrix, Owners, tuple[int, ...]]]:
    """Yield the name, rows, persons and numbers of components of each table."""
    rows = random.permutation(np.load(folder / "a9a.npz")["X"].astype(np.float64))
    counts = np.maximum(1, random.lognormal(np.log(4), 1.28, 5323)).astype(int)
    counts[counts.argmax()] += len(rows) - counts.sum()
    owners = np.repeat(np.arange(len(counts)), counts)
    print(f"a9a: median {np.median(counts):.0f} rows of a person, at most {counts.max()}")
    yield "a9a, mixed", rows, owners, (1, 5, 10, 50)
    yield "a9a, alike", alike(rows), owners, (1, 5, 10, 50)
    rows = np.load(folder / "covertype.npz")["X"].astype(np.float64)
    rows = rows[random.permutation(len(rows))[:20_000]]
    rows = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-9)
    owners = np.repeat(np.arange(1000), 20)
    yield "Covertype, mixed", rows, owners, (1, 5, 10)
    yield "Covertype, alike", alike(rows), owners, (1, 5, 10)
    walks = np.load(folder / "movement_rss.npz")
    yield "walks", walks["X"].astype(np.float64), walks["sequence_id"].astype(np.int64), (1, 2)


def captured(moment: Matrix, released: Matrix, numbers: tuple[int, ...]) -> Matrix:
    """Return the share of the variance of the best components that those of a release capture."""
    values, vectors = np.linalg.eigvalsh(moment)[::-1], np.linalg.eigh(released)[1][:, ::-1]
    along = np.einsum("ij,ik,kj->j", vectors, moment, vectors)
    return np.array([along[:k].sum() / values[:k].sum() for k in numbers])


def best(
    moment: Matrix, cases: list[tuple[Matrix, float]], numbers: tuple[int, ...], draws_of_each: int, random: Any
) -> Matrix:
    """Return the mean captured variance of the best sums with noise of some deviations, by draws of their own."""
    size = len(moment)

    def mean(total: Matrix, deviation: float) -> Matrix:
        draws = []
        for _ in range(draws_of_each):
            noise = np.triu(random.normal(size=(size, size)), 1)
            noise += noise.T + np.diag(random.normal(size=size) * np.sqrt(2))
            draws.append(captured(moment, total + deviation * noise, numbers))
        means: Matrix = np.mean(draws, axis=0)
        return means

    chosen = np.array([mean(*case) for case in cases]).argmax(axis=0)
    return np.array([mean(*cases[case])[k] for k, case in enumerate(chosen)])


def compare(name: str, rows: Matrix, owners: Owners, numbers: tuple[int, ...], random: Any) -> dict[str, Any]:
    """Return the captured variances of a table."""
    moment, groups = rows.T @ rows, [rows[owners == owner] for owner in np.unique(owners)]
    grams = [group.T @ group for group in groups]
    norms = np.array([np.linalg.norm(gram) for gram in grams])
    whole = []
    for quantile in _QUANTILES:
        limit = float(np.quantile(norms, quantile))
        total = sum(gram * min(1.0, limit / norm) for gram, norm in zip(grams, norms, strict=True))
        whole.append((np.asarray(total), _SIGMA * limit))
    kept = []
    for most in (1, 2, 4, 8, 16, 32, 64, 128):
        sample = np.concatenate([random.permutation(group)[:most] for group in groups])
        lengths = np.linalg.norm(sample, axis=1)
        for quantile in (0.02, *_QUANTILES):
            clip = float(np.quantile(lengths, quantile))
            clipped = sample * np.minimum(1, clip / np.maximum(lengths, 1e-300))[:, None]
            kept.append((clipped.T @ clipped, _SIGMA * clip**2 * most))
    draws, quantiles, count = [], [], DRAWS if len(rows) > 15_000 else SMALL_DRAWS
    with tempfile.TemporaryDirectory() as folder:
        columns = {f"c{i}": rows[:, i] for i in range(rows.shape[1])}
        pq.write_table(pa.table({"person": owners, **columns}), f"{folder}/table.parquet")
        dpdist.ingest_rows(f"{folder}/table.parquet", f"{folder}/rows.zarr", privacy_unit="person", budget=BUDGET)
        for draw in range(count):
            request = dpdist.ReleaseRequest("gaussian", LOSS, "private", period=str(draw))
            release = dpdist.release_rows(f"{folder}/rows.zarr", f"{folder}/{draw}.zarr", request).release
            draws.append(captured(moment, release.second_moment, numbers))
            quantiles.append(float((norms <= release.bound.clip_norm**2).mean()))
    result: dict[str, Any] = {
        "table": name, "components": numbers, "M and C": best(moment, kept, numbers, count, random),
        "whole": best(moment, whole, numbers, count, random), "dpdist": np.mean(draws, axis=0),
        "quantile": float(np.mean(quantiles)),
    }  # fmt: skip
    result["gain"] = (result["dpdist"] - result["M and C"]) / (result["whole"] - result["M and C"])
    return {key: value.round(4).tolist() if isinstance(value, np.ndarray) else value for key, value in result.items()}


def main() -> None:
    """Compare, and write the results as Markdown and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    random = np.random.default_rng(52)
    results = [compare(*table, random) for table in tables(given.data, random)]
    lines = [
        "# All rows of persons, or M of each", "",
        "Captured variance at epsilon 1, delta 1e-6, replace-one: `python -m benchmarks.persons`, which says how.", "",
        "| table, components | best M and C | dpdist | best clip norm of whole persons | gain | quantile |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for result in results:
        cells = ["/".join(map(str, result["components"]))]
        cells += [" ".join(f"{value:.4f}" for value in result[key]) for key in ("M and C", "dpdist", "whole")]
        cells += [" ".join(f"{value:.2f}" for value in result["gain"]), f"{result['quantile']:.2f}"]
        lines.append(f"| {result['table']}, " + " | ".join(cells) + " |")
    given.out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    given.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
