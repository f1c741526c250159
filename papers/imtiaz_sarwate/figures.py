"""Imtiaz & Sarwate (2016), figures 1 and 2: captured energy against epsilon and against the number of samples.

One command, for published and corrected methods, on synthetic data, Covertype and MNIST; killed and started again it
goes on with the cells that are missing::

    python -m papers.imtiaz_sarwate.figures --data FOLDER --workers 2

It writes ``imtiaz_sarwate_figures`` as ``.json`` (settings, means), ``.csv`` (every run) and ``.png``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from dpdist import Cluster, cli
from papers.common import data as sets
from papers.common import pictures, runs
from papers.common.answers import NOTICE, captured_energy, moment_of
from papers.common.command import begin, experiment
from papers.common.runs import Json
from papers.imtiaz_sarwate.methods import (
    DELTA,
    FREE_OF_EPSILON,
    METHODS,
    ROUNDS,
    ROUNDS_LEAK,
    rounds_as_published,
    subspace,
)

NAME = "imtiaz_sarwate_figures"
SEED = 2016
SLOW = ("PPM", "PPM, delta 0", "PPCA")
"""Methods that take ten seconds to a minute for one answer about MNIST: one run, at fewer epsilons."""


@dataclass(frozen=True)
class Panel:
    """One data set: what figure 1 and figure 2 ask about it."""

    name: str
    rows: int
    components: int
    epsilons: tuple[str, ...]
    samples: tuple[int, ...]
    epsilon: str
    runs: int
    slow_runs: int
    sweeps: int
    slow_epsilons: tuple[str, ...]


GRID = ("0.01", "0.03", "0.1", "0.3", "1", "3", "10")
PANELS = (
    Panel("synthetic", 60000, 10, GRID, (1000, 2000, 5000, 10000, 20000, 40000, 60000), "0.1", 10, 10, 20, GRID),
    Panel("covertype", 20000, 10, GRID, (500, 1000, 2000, 5000, 10000, 20000), "0.1", 10, 10, 20, GRID),
    Panel("mnist", 10000, 50, (*GRID[2:], "30", "100"), (2000, 5000, 10000), "10", 5, 1, 3, ("1", "10", "100")),
)
QUICK = (
    Panel("synthetic", 3000, 10, ("10",), (1000, 3000), "10", 2, 1, 2, ("10",)),
    Panel("covertype", 400, 3, ("10",), (200, 400), "10", 2, 1, 2, ("10",)),
)


def rows_of(panel: Panel, folder: Path | None) -> tuple[sets.Floats, str]:
    """Return the preprocessed rows of a data set, in random order, and where they come from."""
    if panel.name == "synthetic":
        rng = np.random.default_rng([SEED, 1])
        root = sets.decaying_covariance(100, panel.components, SEED)
        return sets.in_unit_ball(rng.normal(size=(panel.rows, 100)) @ root.T), "synthetic"
    table = sets.covertype(folder) if panel.name == "covertype" else sets.mnist(folder)
    rows = sets.in_unit_ball(sets.chosen(table, panel.rows, SEED))
    return np.random.default_rng(SEED).permutation(rows), table.source


def cells_of(panel: Panel) -> list[Json]:
    """Return every run of both figures."""
    found = []
    for label in METHODS:
        slow = label in SLOW
        for run in range(panel.slow_runs if slow else panel.runs):
            asked = [(1, epsilon, panel.rows) for epsilon in (panel.slow_epsilons if slow else panel.epsilons)]
            asked += [(2, panel.epsilon, n) for n in panel.samples]
            if label in FREE_OF_EPSILON:
                asked = [(figure, epsilon, n) for figure, epsilon, n in asked if figure == 2 or epsilon == asked[0][1]]
            found += [
                {"figure": figure, "data": panel.name, "n": n, "epsilon": epsilon, "method": label, "run": run}
                for figure, epsilon, n in asked
            ]
    return found


def energy(cell: Json, shared: Any) -> Json:
    """Return the captured energy of one answer, in per cent of the best."""
    moment, published = shared["moments"][cell["n"]]
    found = subspace(cell["method"], cell["epsilon"], moment, shared["components"], published)
    return {"energy": round(captured_energy(found, moment), 4)}


@click.command(help=(__doc__ or "").splitlines()[0])
@experiment
def main(data: Path | None, output: Path | None, quick: bool, cluster: Cluster) -> None:
    """Run what is missing and write the results."""
    folder, panels = begin(output), QUICK if quick else PANELS
    rows = {panel.name: rows_of(panel, data) for panel in panels}
    settings: Json = {
        "paper": "Imtiaz & Sarwate 2016, figures 1 and 2",
        "notice": NOTICE,
        "quick": quick,
        "delta": DELTA,
        "neighbours": "replace-one",
        "rounds of our power method": ROUNDS,
        "components": {panel.name: panel.components for panel in panels},
        "sweeps of PPCA": {panel.name: panel.sweeps for panel in panels},
        "data": {
            name: {"seed": SEED, "source": source, "sha256": sets.digest(x)} for name, (x, source) in rows.items()
        },
    }
    sets.leaks(*ROUNDS_LEAK)
    found: list[Json] = []
    facts: Json = {}
    with runs.opened(folder / f"{NAME}.cells.jsonl", settings) as store, cluster.connected() as engine:
        for panel in panels:
            moments = {}
            for n in sorted({panel.rows, *panel.samples}):
                moment = moment_of(rows[panel.name][0][:n])
                published = {"rounds": rounds_as_published(moment, panel.components), "sweeps": panel.sweeps}
                moments[n] = (moment, published)
            whole, published = moments[panel.rows]
            values = np.linalg.eigvalsh(whole.matrix)[::-1]
            facts[panel.name] = asdict(panel) | {
                "columns": whole.bound.width,
                "rounds of PPM": published["rounds"],
                "share of the best components": float(values[: panel.components].sum() / values.sum()),
            }
            shared = {"moments": moments, "components": panel.components}
            found += runs.run(
                engine, store, energy, cells_of(panel), shared=shared, label=f"Captured energy, {panel.name}"
            )
    means = runs.averaged(found, ("figure", "data", "n", "epsilon", "method"), "energy")
    truths = {label: method.truth for label, method in METHODS.items()}
    runs.write(folder / NAME, found, settings | {"facts": facts, "methods": truths, "means": means})
    picture(folder / f"{NAME}.png", panels, means)
    click.echo(f"{len(found)} runs: {folder / NAME}.json, .csv, .png", err=True)


def picture(path: Path, panels: tuple[Panel, ...], means: list[Json]) -> None:
    """Draw figure 1 above figure 2, a column per data set."""
    figure, axes = pictures.panels(len(panels), 2)
    for column, panel in enumerate(panels):
        for row, (number, name) in enumerate(((1, "epsilon"), (2, "n"))):
            ax = axes[row * len(panels) + column]
            for label, method in METHODS.items():
                points = [m for m in means if (m["figure"], m["data"], m["method"]) == (number, panel.name, label)]
                x, y = [float(m[name]) for m in points], [m["mean"] for m in points]
                if number == 1 and label in FREE_OF_EPSILON:
                    ends = [float(panel.epsilons[0]), float(panel.epsilons[-1])]
                    x, y = ends, [y[0], y[0]]
                style = "--" if method.published else "-"
                ax.plot(x, y, style, marker=".", color=method.colour, label=label, lw=1.3, ms=5)
            title = f"n = {panel.rows}" if number == 1 else f"epsilon = {panel.epsilon}"
            pictures.mark(ax, [float(value) for value in (panel.epsilons if number == 1 else panel.samples)])
            ax.set(xlabel=name, ylabel="captured energy, % of SVD", ylim=(0, 103))
            ax.set_title(f"Figure {number}, {panel.name}, k = {panel.components}, {title}", fontsize=9)
            ax.grid(alpha=0.3)
    figure.suptitle(
        "Dashed: as published (SN is not epsilon-private). Solid: what is proved. Delta 0.01 where one is taken."
    )
    pictures.legend_below(figure, axes[0], 6)
    pictures.save(figure, path)


if __name__ == "__main__":
    cli.execute(main)
