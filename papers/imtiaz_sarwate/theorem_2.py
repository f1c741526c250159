"""Imtiaz & Sarwate (2016), theorem 2: its three inequalities against what is measured and what can be proved.

A second moment with k equal eigenvalues over a flat rest is answered by SN and by the repair, ``two-sided-wishart``::

    python -m papers.imtiaz_sarwate.theorem_2 --workers 2

It writes ``sn_theorem_2`` as ``.json`` (largest values, published rate, bounds), ``.csv`` and ``.png``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import RowBound, cli
from dpdist.answers.eigen import top_eigenpairs
from dpdist.core.triangle import rounded
from papers.common import pictures, runs, wishart_bounds
from papers.common.answers import PublicMoment, private_moment, request_for
from papers.common.command import Asked, experiment
from papers.common.runs import Json

NAME = "sn_theorem_2"
METHODS = ("sn", "two-sided-wishart")
EPSILONS = ("0.1", "0.3", "1", "3", "10")
SIZE, COMPONENTS, HIGH, LOW, DRAWS = 100, 10, 1000.0, 100.0, 20
FAILURE = 0.05
MEASURES = ("norm of the noise", "captured energy lost", "distance of subspaces", "error at rank k")


def levels(size: int, components: int) -> npt.NDArray[np.float64]:
    """Return the eigenvalues of the moment, in squared clip norms."""
    return np.where(np.arange(size) < components, HIGH, LOW)


def measured(cell: Json, _: Any) -> Json:
    """Answer once; the noise and the left sides of the three inequalities."""
    size, k = cell["d"], cell["k"]
    bound = RowBound(size, 1.0, 16)
    exact = PublicMoment(rounded(np.diag(levels(size, k) / bound.unit**2)), bound, 0)
    request = request_for(cell["method"], (cell["epsilon"], "0"), bound, {})
    private, truth = private_moment(request, exact), exact.matrix
    values, vectors = top_eigenpairs(private, k)
    best = np.eye(size)[:k]
    lost = np.trace(best @ truth @ best.T) - np.trace(vectors @ truth @ vectors.T)
    distance = np.linalg.norm(best.T @ best - vectors.T @ vectors, 2)
    error = np.linalg.norm(truth - (vectors.T * values) @ vectors, 2)
    return dict(zip(MEASURES, (float(np.linalg.norm(private - truth, 2)), float(lost), float(distance), float(error)),
                    strict=True))  # fmt: skip


def published(size: int, components: int, epsilon: float) -> Json:
    """Return the terms of theorem 2 with its constants taken as 1: ``r = d / (4 epsilon²)``."""
    rate = size / (4 * epsilon**2)
    return dict(zip(MEASURES, (rate, components * rate**2, rate / (HIGH - LOW), LOW + rate), strict=True))


def proved(method: str, size: int, components: int, epsilon: float, failure: float) -> Json:
    """Bound the same four numbers, all at once but with a probability.

    Scales as in the mechanisms: ``1/(2 epsilon)`` for SN; ``1/epsilon``, that is nuclear sensitivity 2 over 2 epsilon,
    for the repair (its scale is rounded up to a lattice unit, 2^-32 here, and so is the noise).
    """
    if method == "sn":
        norm = width = wishart_bounds.wishart_norm(size, size + 1, 0.5 / epsilon, failure)
        norm += size * 2.0**-32  # the release is rounded to the lattice
        width += 2 * size * 2.0**-32
    else:
        norm = wishart_bounds.two_sided_norm(size, 1 / epsilon + 2.0**-32, failure, 2.0**-32)
        width = 2 * norm
    return dict(
        zip(
            MEASURES,
            (
                norm,
                wishart_bounds.captured_loss(width, size, components),
                wishart_bounds.subspace_distance(width, HIGH - LOW),
                wishart_bounds.low_rank_error(norm, LOW, semidefinite=method == "sn"),
            ),
            strict=True,
        )
    )


@experiment(__doc__, "10 seconds", runs=DRAWS, quick=4, of="draws of each noise")
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    size, k = (30, 3) if asked.quick else (SIZE, COMPONENTS)
    settings: Json = {
        "paper": "Imtiaz & Sarwate 2016, theorem 2", "quick": asked.quick, "d": size, "k": k,
        "eigenvalues": [HIGH, LOW], "neighbours": "replace-one", "failure of the bounds": FAILURE,
    }  # fmt: skip
    cells = [
        {"method": method, "epsilon": epsilon, "d": size, "k": k, "draw": draw}
        for method in METHODS
        for epsilon in EPSILONS
        for draw in range(asked.runs)
    ]
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        rows = runs.run(executor, store, measured, cells, label="Theorem 2")
    table: list[Json] = []
    for method in METHODS:
        for epsilon in EPSILONS:
            mine = [r for r in rows if (r["method"], r["epsilon"]) == (method, epsilon)]
            for measure in MEASURES:
                found = [r[measure] for r in mine]
                table.append(
                    {
                        "method": method,
                        "epsilon": epsilon,
                        "measure": measure,
                        "mean": float(np.mean(found)),
                        "largest": max(found),
                        "published rate": published(size, k, float(epsilon))[measure],
                        "bound": proved(method, size, k, float(epsilon), FAILURE)[measure],
                    }
                )
    runs.write(asked.output / NAME, rows, settings | {"table": table})
    picture(asked.output / f"{NAME}.png", table)
    asked.finish(NAME, ".json .csv .png", results_of(table))


def results_of(table: list[Json]) -> Iterator[str]:
    """Yield what was measured beside rates and bounds as lines of text."""
    for row in table:
        yield (
            f"{row['method']}, epsilon {row['epsilon']}, {row['measure']}: mean {row['mean']:.4g}, published rate "
            f"{row['published rate']:.4g}, proved bound {row['bound']:.4g}"
        )


def picture(path: Path, table: list[Json]) -> None:
    """Draw each measure against epsilon: measured, published rate, bound."""
    figure, axes = pictures.panels(2, 2)
    epsilons = [float(epsilon) for epsilon in EPSILONS]
    for ax, measure in zip(axes, MEASURES, strict=True):
        for method in METHODS:
            mine, look = [x for x in table if (x["method"], x["measure"]) == (method, measure)], pictures.style(method)
            ax.plot(epsilons, [m["mean"] for m in mine], label=f"{method}, measured", **look)
            ax.plot(
                epsilons, [m["bound"] for m in mine], label=f"{method}, bound", **look | {"ls": ":", "mfc": "white"}
            )
        ax.plot(epsilons, [m["published rate"] for m in mine], "-.", color="black", label="published rate, constant 1")
        ax.set(yscale="log", xlabel="epsilon")
        ax.set_title(measure, fontsize=9)
        ax.grid(alpha=0.3)
        pictures.mark(ax, epsilons)
    pictures.legend_below(figure, axes[0], 3)
    pictures.save(figure, path)


if __name__ == "__main__":
    cli.execute(main)
