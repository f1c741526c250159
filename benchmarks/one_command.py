"""What one command finds of ordinary tables: the variance that its first two components capture.

    python -m benchmarks.one_command benchmarks/results/one_command --data FOLDER

Each table is released as by `dpdist release FILE` or `private_pca`, at epsilon 1, with delta 1e-6 and without. The
share is of the variance of the standardised columns that the best two exact components capture. FOLDER has the files of
`papers.common.fetch`; a table of skewed columns is made here.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import PrivatePCA, RefusedError
from dpdist.core.errors import DpdistError
from dpdist.core.ledger.register import REGISTER
from dpdist.core.text import random_token

Table = npt.NDArray[np.float64]


def tables(folder: Path) -> Iterator[tuple[str, Table]]:
    """Yield the tables by name."""
    for name, step in (("movement_rss", 1), ("cardiotocography", 1), ("a9a", 1), ("covertype", 10)):
        with np.load(folder / f"{name}.npz") as content:
            yield name, content["X"][::step].astype(np.float64)
    random = np.random.default_rng(5)
    wealth, body = random.lognormal(size=15_000), random.normal(size=(15_000, 3))
    yield "skewed columns", np.column_stack([
        30_000 * wealth, 5 * wealth * random.lognormal(0, 0.3, 15_000), 40 + 10 * body[:, 0], 170 + 9 * body[:, 1],
        70 + 8 * body[:, 1] + 6 * random.normal(size=15_000), random.poisson(3, 15_000),
        100 * body[:, 0] + 50 * body[:, 2],
    ])  # fmt: skip


def shares(rows: Table, delta: float | None, repeats: int) -> list[float] | str:
    """Return the captured shares of some releases, or why there is none."""
    deviations = rows.std(axis=0)
    standard = (rows - rows.mean(axis=0)) / np.where(deviations > 0, deviations, 1)
    exact = standard.T @ standard / len(rows)
    best = float(np.linalg.eigvalsh(exact)[-2:].sum())
    found = []
    for number in range(repeats):
        REGISTER._fits.clear()  # noqa: SLF001 - each release is the first
        try:
            asked = PrivatePCA(2, correlation=True, epsilon=1, delta=delta, name=f"draw-{number}-{random_token()[:8]}")
            vectors = asked.fit(rows).components_
        except RefusedError:
            return "refused: too few rows"
        except DpdistError as error:
            return type(error).__name__
        found.append(round(float(np.trace(vectors @ exact @ vectors.T)) / best, 3))
    return found


def main() -> None:
    """Write the results as JSON and as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="Where to write, without suffix.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=10)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    lines = ["| table | rows | columns | delta 1e-6: least, median | pure: least, median |", "|---|---|---|---|---|"]
    for name, rows in tables(asked.data):
        found = {str(delta): shares(rows, delta, asked.repeats) for delta in (1e-6, None)}
        results[name] = {"rows": len(rows), "columns": rows.shape[1], **found}
        cells = [each if isinstance(each, str) else f"{min(each)}, {np.median(each):.3f}" for each in found.values()]
        lines.append(f"| {name} | {len(rows)} | {rows.shape[1]} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    title = f"# One command, epsilon 1: share of the best two components captured, of {asked.repeats} releases\n\n"
    Path(f"{asked.output}.json").write_text(json.dumps(results, indent=1) + "\n")
    Path(f"{asked.output}.md").write_text(title + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
