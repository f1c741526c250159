"""Chanyaswad et al. (2018): regression, first principal component and covariance estimation under MVG noise and others.

Epsilon is 1 and delta 1/n, replace-one; every method answers a hundred times, and means have 95% intervals::

    python -m papers.chanyaswad.tasks --data FOLDER --workers 2

It writes ``chanyaswad_tasks`` as ``.json`` (settings, what is true of every method), ``.csv`` (means) and ``.png``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpdist import cli
from papers.chanyaswad import covariance, regression
from papers.common import data as sets
from papers.common import pictures, runs
from papers.common.answers import NOTICE
from papers.common.command import Asked, experiment
from papers.common.data import Floats
from papers.common.runs import Json

NAME = "chanyaswad_tasks"
SEED = 2018
SLOW = "JL transform, exact"
"""Its ridge takes a quarter of a minute to find; the quick version leaves it out."""


@dataclass(frozen=True)
class Task:
    """One of the paper's three experiments.

    Attributes
    ----------
    name
        What it is called.
    data
        Name of the data set.
    measure
        What is measured; less is better.
    methods
        Label of every method, with whether it is one the paper compares.
    scores
        Draws a number of answers of one method about the scaled rows and returns their scores.
    facts
        What is true of the methods named, for these rows.
    """

    name: str
    data: str
    measure: str
    methods: dict[str, bool]
    scores: Callable[[str, Floats, int, int], Floats]
    facts: Callable[[Floats, list[str]], Json]


TASKS = {
    task.name: task
    for task in (
        Task(
            "regression",
            "liver_disorders",
            "root mean square error",
            regression.METHODS,
            regression.errors,
            regression.facts,
        ),
        Task(
            "first principal component",
            "movement_rss",
            "captured variance deficit",
            covariance.COMPONENT_METHODS,
            covariance.deficits,
            covariance.component_facts,
        ),
        Task(
            "covariance estimation",
            "cardiotocography",
            "residual sum of squares",
            covariance.COVARIANCE_METHODS,
            covariance.residuals,
            covariance.covariance_facts,
        ),
    )
}


def scaled(rows: Floats) -> Floats:
    """Map every column to [-1, 1] by its range, as the paper's box asks; ranges of the data are not private.

    Examples
    --------
    >>> scaled(np.array([[0.0, 5.0], [10.0, 5.0], [5.0, 6.0]])).tolist()
    [[-1.0, -1.0], [1.0, -1.0], [0.0, 1.0]]
    """
    low, high = rows.min(axis=0), rows.max(axis=0)
    found: Floats = np.clip(2 * (rows - low) / (high - low) - 1, -1, 1)
    return found


def rows_of(task: Task, folder: Path | None) -> Floats:
    """Return the scaled rows of a task, (n, d); for the regression, the informative columns first."""
    sets.leaks("The ranges that columns are scaled by", "Give public ranges with --centre FILE.")
    rows = sets.required(folder, task.data)["X"].astype(np.float64)
    return scaled(rows[:, regression.ORDER] if task.name == "regression" else rows)


def measured(cell: Json, rows: Floats) -> Json:
    """Return mean, half of the 95% interval and standard deviation of the scores of one method."""
    found = TASKS[cell["task"]].scores(cell["method"], rows, cell["runs"], SEED)
    deviation = float(found.std(ddof=1))
    half = 1.96 * deviation / math.sqrt(found.size)
    values = {"mean": float(found.mean()), "half_interval": half, "standard_deviation": deviation}
    return {name: float(f"{value:.5g}") for name, value in values.items()}


@experiment(__doc__, "30 seconds", runs=100, quick=3, of="answers a method", needs="those of the UCI repository")
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    rows = {task.name: rows_of(task, asked.data) for task in TASKS.values()}
    settings: Json = {
        "paper": "Chanyaswad et al. 2018, the three experiments",
        "notice": NOTICE,
        "quick": asked.quick,
        "epsilon": 1,
        "delta": "1/n",
        "neighbours": "replace-one",
        "seed of the splits": SEED,
        "data": {
            task.name: {
                "source": f"{task.data}.npz",
                "rows": len(rows[task.name]),
                "sha256": sets.digest(rows[task.name]),
            }
            for task in TASKS.values()
        },
    }
    sets.leaks(
        "The directions of the noise, in the methods with known directions",
        "Pay for directions, as the methods with private directions do.",
    )
    found: list[Json] = []
    facts: Json = {}
    with asked.cluster.connected() as executor, runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store:
        for task in TASKS.values():
            wanted = [method for method in task.methods if not (asked.quick and method == SLOW)]
            cells = [{"task": task.name, "method": method, "runs": asked.runs} for method in wanted]
            found += runs.run(executor, store, measured, cells, shared=rows[task.name], label=task.name.capitalize())
            facts[task.name] = {"measure": task.measure} | task.facts(rows[task.name], wanted)
    runs.write(asked.output / NAME, found, settings | {"tasks": facts, "means": found})
    picture(asked.output / f"{NAME}.png", found)
    asked.finish(NAME, ".json .csv .png", results_of(found))


def results_of(means: list[Json]) -> Iterator[str]:
    """Yield the means as lines of text."""
    for row in means:
        yield f"{row['task']}, {row['method']}: {row['mean']:.4g} ± {row['half_interval']:.2g}"


def picture(path: Path, found: list[Json]) -> None:
    """Draw the means of every task with their intervals, the methods the paper compares in another colour."""
    figure, axes = pictures.panels(len(TASKS), height=4.8, width=5.4)
    for ax, task in zip(axes, TASKS.values(), strict=True):
        rows = [row for row in found if row["task"] == task.name and "mean" in row]
        for place, row in enumerate(reversed(rows)):
            colour = pictures.RED if task.methods[row["method"]] else pictures.BLUE
            shown = "0.5" if row["method"] in regression.REFERENCES else colour
            ax.errorbar(row["mean"], place, xerr=row["half_interval"], fmt="o", color=shown, ms=5, capsize=3)
            ax.annotate(f"{row['mean']:.3g}", (row["mean"], place), (0, 4), textcoords="offset points", fontsize=7,
                        ha="center")  # fmt: skip
        ax.set_yticks(range(len(rows)), [row["method"] for row in reversed(rows)], fontsize=8)
        smallest = min(row["mean"] for row in rows if row["mean"] > 0)
        ax.set_xscale("log" if all(row["mean"] > 0 for row in rows) else "symlog", **(
            {} if all(row["mean"] > 0 for row in rows) else {"linthresh": smallest}
        ))  # fmt: skip
        largest = max(row["mean"] for row in rows)
        if largest < 10 * smallest:  # names of minor ticks would collide
            pictures.mark(ax, [value for value in (0.3, 0.5, 1.0) if smallest / 1.1 < value < largest])
        ax.margins(x=0.12)  # room for the numbers of the outermost points
        ax.set_xlabel(task.measure)
        ax.set_title(f"{task.name}, {task.data}", fontsize=9)
        ax.grid(alpha=0.3)
    figure.suptitle("Epsilon 1, delta 1/n. Red: as the paper compares. Blue: exactly calibrated. Grey: no mechanism.")
    pictures.save(figure, path)


if __name__ == "__main__":
    cli.execute(main)
