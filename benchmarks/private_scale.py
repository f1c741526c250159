"""What a private scale gives: correlation PCA of a public table, against raw units and against the true scale.

An evaluation on public data: it compares with the exact correlation matrix, so its figures are not private. The clip
norm of rows in raw units (the 0.95-quantile of their norms about zero) and the true scale are gifts, which nobody has
whose rows are private::

    python -m benchmarks.private_scale covertype.npz --output benchmarks/results/private_scale_covertype
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import PrivacyLoss, Release, ReleaseRequest, create_ledger, release_rows
from dpdist.answers.components import captured_variance
from dpdist.answers.correlation import correlation
from dpdist.core.errors import BelowNoiseError, UsageError
from dpdist.core.rows.dataset import created

COUNTS = (2, 5, 10, 20)
DELTA = 1e-6
Values = npt.NDArray[np.float64]


def requests(rows: Values, epsilon: str) -> Iterator[tuple[str, ReleaseRequest]]:
    """Yield what is compared at an epsilon, under add-remove."""
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    deviation[deviation == 0] = 1
    clip = float(np.quantile(np.linalg.norm(rows, axis=1), 0.95))
    loss = PrivacyLoss.parse(epsilon, DELTA)
    common = {"neighbours": "add-remove", "centring": "private"}
    private = ReleaseRequest("gaussian", loss, "auto", scale="private", **common)  # type: ignore[arg-type]
    yield "raw units", ReleaseRequest("gaussian", loss, clip, **common)  # type: ignore[arg-type]
    yield "private scale", private
    yield "private scale and clip norm", replace(private, clip_norm="private")
    yield "private scale, pure", replace(private, mechanism="two-sided-wishart", loss=PrivacyLoss.parse(epsilon))
    yield "true scale", replace(private, centre=tuple(mean.tolist()), scale=tuple(deviation.tolist()))


def captured(release: Release, exact: Values) -> tuple[list[float], int]:
    """Return the captured variance for each number of components, as many as there are, and the columns left out."""
    counts = counts_of(exact.shape[0])
    for count in range(counts[-1], 0, -1):
        try:
            found = correlation(release, count)
        except (UsageError, BelowNoiseError):  # fewer columns stand above the noise
            continue
        best = np.linalg.eigvalsh(exact)[::-1]
        vectors = found.components.components
        shares = [
            float(captured_variance(vectors[:k], exact) * best[: len(vectors[:k])].sum() / best[:k].sum())
            for k in counts
        ]
        return shares, len(found.left_out)
    return [0.0] * len(counts), exact.shape[0]


def counts_of(columns: int) -> tuple[int, ...]:
    """Return for which numbers of components a table is compared: fewer than it has columns."""
    return tuple(k for k in COUNTS if k < columns)


def main() -> None:
    """Release with each request again and again; write JSON and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="A .npz file with X.")
    parser.add_argument("--epsilons", nargs="+", default=["0.1", "1", "4"])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--output", type=Path, required=True)
    asked = parser.parse_args()
    with np.load(asked.table) as content:
        rows = content["X"].astype(np.float64)
    exact = np.corrcoef(rows.T)
    results: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        path = Path(folder, "rows.zarr")
        budget = PrivacyLoss.declared("1000000", "1e-6", "10000")
        names = tuple(f"c{i}" for i in range(rows.shape[1]))
        with created(path, rows=len(rows), dtype="float64", names=names, budget=budget) as to:
            to.append(rows)
        create_ledger(path.with_suffix(".ledger"), path)
        for epsilon in asked.epsilons:
            for name, request in requests(rows, epsilon):
                found, left_out, begun = [], [], time.monotonic()
                for draw in range(asked.draws):
                    place = Path(folder, f"{epsilon}-{len(results)}-{draw}.zarr")
                    made = release_rows(path, place, replace(request, period=str(draw)))
                    shares, dropped = captured(made.release, exact)
                    found.append(shares)
                    left_out.append(dropped)
                means, spread = np.mean(found, axis=0), np.std(found, axis=0)
                results.append({
                    "epsilon": epsilon, "rows in": name, "captured": means.tolist(), "deviation": spread.tolist(),
                    "left_out": float(np.mean(left_out)),
                })  # fmt: skip
                print(results[-1], f"{time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    said = {
        "table": asked.table.name, "n": len(rows), "d": rows.shape[1], "delta": DELTA, "draws": asked.draws,
        "components": counts_of(rows.shape[1]), "python": platform.python_version(), "numpy": np.__version__,
        "results": results,
    }  # fmt: skip
    asked.output.with_suffix(".json").write_text(json.dumps(said, indent=2) + "\n")
    asked.output.with_suffix(".md").write_text(table(said, results))


def table(said: dict[str, object], results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    counts = counts_of(int(str(said["d"])))
    about = (
        f"`python -m benchmarks.private_scale`: {said['table']}, {said['n']} x {said['d']}, add-remove, "
        f"delta {DELTA:g} (pure: none), mean and deviation of {said['draws']} releases."
    )
    lines = [
        about,
        "",
        "Captured variance of the exact correlation matrix, and columns left out. On public data: not private.",
        "",
        "| epsilon | rows in | " + " | ".join(f"k = {k}" for k in counts) + " | left out |",
        "|---|---|" + "---|" * (len(counts) + 1),
    ]
    for each in results:
        means, spread = each["captured"], each["deviation"]
        cells = [f"{m:.4f} ± {s:.4f}" for m, s in zip(means, spread, strict=True)]
        lines.append(f"| {each['epsilon']} | {each['rows in']} | {' | '.join(cells)} | {each['left_out']:.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
