"""How much variance private components capture, for every mechanism: an evaluation on public data, not private.

The exact second moment of a rows.zarr is computed once on the cluster; every mechanism then answers a number of times,
and its components are scored against the exact ones. Nothing is charged to a ledger and nothing is published, because
the score is a function of the exact data. Run it on public data only::

    python -m benchmarks.captured_variance rows.zarr --clip 2500 --components 50 --output mnist

It writes ``mnist.json`` and ``mnist.md``, a table of mechanisms and epsilons. Finished cells are kept, so the same
command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpdist import Neighbours, ReleaseRequest, UsageError, open_rows
from dpdist.answers.components import captured_variance
from dpdist.core.mechanisms.registry import MECHANISMS
from dpdist.core.moment.total import add_partials, common_key, complete, moment_task, partition_moment
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dataset import RowsTable, partitions
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.runtime.local import Computation, Executor
from papers.common.answers import NOTICE, PublicMoment, private_components, request_for

ITERATIONS = 4
SKETCH = 8000


def options_for(name: str, components: int, rows: int) -> dict[str, Any]:
    """Return the public parameters with which a mechanism takes part."""
    values: dict[str, Any] = {
        "components": components, "iterations": ITERATIONS, "rows": rows, "sketch": SKETCH,
        "spectrum": (1.0,) * components,
    }  # fmt: skip
    needed = {option.name for option in MECHANISMS[name].info.options if option.default is None}
    return {option: values.get(option, 1) for option in needed}


def score(draw: tuple[ReleaseRequest, int], moment: PublicMoment) -> float:
    """Return the captured variance of one answer."""
    request, components = draw
    return captured_variance(private_components(request, moment, components), moment.matrix)


def evaluate(found: Executor, table: RowsTable, chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the scores of every mechanism and epsilon, those kept from before included."""
    kept = Path(f"{chosen.output}.json")
    results: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    task = moment_task(table, RowBound(table.columns, chosen.clip))
    work = Computation("sum", partition_moment, task, partitions(table.chunks, 100), add_partials, key=common_key())
    total = found.reduce(work, partial(complete, table), label="Summing rows")
    public = PublicMoment(total.values, task.bound, total.rows)
    for name in chosen.mechanisms:
        for epsilon in chosen.epsilons:
            key = f"{name}@{epsilon}"
            if key in results:
                continue
            try:
                options = options_for(name, chosen.components, table.rows)
                neighbours = Neighbours(chosen.neighbours)
                request = request_for(name, (epsilon, chosen.delta), task.bound, options, neighbours)
            except UsageError as error:
                results[key] = {"refused": str(error)}
                continue
            draws = [(request, chosen.components)] * chosen.draws
            scores = np.array([one for _, one in found.results(score, draws, public, key)])
            results[key] = {
                "mean": round(float(scores.mean()), 4),
                "standard_deviation": round(float(scores.std()), 4),
                "draws": int(scores.size),
                "private_as_claimed": not request.for_reproduction,
            }
            kept.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return results


def table_of(results: dict[str, Any], chosen: argparse.Namespace, table: RowsTable) -> str:
    """Return the results as a Markdown table."""
    lines = [
        f"Captured variance of {chosen.components} components, evaluation on public data: not private.",
        f"n = {table.rows}, d = {table.columns}, clip norm {chosen.clip:g}, {chosen.neighbours}.",
        f"Delta is {chosen.delta} where one is taken.",
        "Mechanisms in italics are not private as claimed; ± is the standard deviation over the draws.",
        "",
        "| mechanism | " + " | ".join(f"epsilon {e}" for e in chosen.epsilons) + " | draws |",
        "|---|" + "---|" * (len(chosen.epsilons) + 1),
    ]
    for name in chosen.mechanisms:
        cells = [results.get(f"{name}@{epsilon}", {}) for epsilon in chosen.epsilons]
        texts = [
            "refused" if "refused" in cell else f"{cell['mean']:.4f} ± {cell['standard_deviation']:.4f}"
            for cell in cells
        ]
        italics = any(cell.get("private_as_claimed") is False for cell in cells)
        draws = max(cell.get("draws", 0) for cell in cells)
        lines.append(f"| {'*' + name + '*' if italics else name} | " + " | ".join(texts) + f" | {draws} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the scores of all mechanisms and print their table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--mechanisms", nargs="+", choices=list(MECHANISMS), default=list(MECHANISMS))
    parser.add_argument("--epsilons", nargs="+", default=["0.1", "1", "10"])
    parser.add_argument("--delta", default="1e-6")
    parser.add_argument("--clip", type=float, required=True)
    parser.add_argument("--components", type=int, required=True)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--neighbours", choices=[n.value for n in Neighbours], default=Neighbours.REPLACE_ONE.value)
    parser.add_argument("--output", required=True, help="Names the results: OUTPUT.json and OUTPUT.md.")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--scheduler")
    chosen = parser.parse_args()
    print(NOTICE, file=sys.stderr)
    table = open_rows(chosen.rows)
    with Cluster(chosen.scheduler, chosen.workers).connected() as found:
        results = evaluate(found, table, chosen)
    text = table_of(results, chosen, table)
    Path(f"{chosen.output}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
