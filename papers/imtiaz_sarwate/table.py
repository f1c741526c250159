"""Imtiaz & Sarwate (2016), table 1 and the talk's table: errors of a linear SVM on rows projected privately.

The private subspace is learnt from the training rows, all rows are projected on it, and a linear SVM (C = 1) is trained
and tested: with every projected column standardised, as MATLAB's svmtrain does unasked, and without. The papers do not
print epsilon, so it is scanned, and for each printed error the epsilon is reported at which ours equals it::

    python -m papers.imtiaz_sarwate.table --data FOLDER --workers 2

It writes ``imtiaz_sarwate_table`` as ``.json`` (settings, means, matching epsilons), ``.csv`` (every run), ``.png``.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from dpdist import Cluster, cli
from papers.common import data as sets
from papers.common import pictures, runs
from papers.common.answers import NOTICE, moment_of
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
from papers.imtiaz_sarwate.published import LABELS, SPLITS, published_error

NAME = "imtiaz_sarwate_table"
SEED = 2016
TEST = 4000
SLOW = ("PPM", "PPCA")
LEFT_OUT = ("PPM, delta 0", "wishart")
"""A random subspace in effect, and close to gaussian: the figures have both."""
SEPARATION = 1.585
"""Half the Mahalanobis distance of the synthetic classes: 5.65 % Bayes error, the paper's for SVD."""


@dataclass(frozen=True)
class Column:
    """One data set of the table.

    Attributes
    ----------
    name, classes, per_class
        Which rows: all there are of a class, or as many at random.
    components
        k.
    epsilons
        What is scanned.
    runs, slow_runs, sweeps, slow_epsilons
        Fewer of PPM and PPCA where one answer takes ten seconds to a minute.
    splits
        Numbers or shares of the rows that are trained with.
    """

    name: str
    classes: tuple[int, ...]
    per_class: int
    components: int
    epsilons: tuple[str, ...]
    runs: int
    slow_runs: int
    sweeps: int
    slow_epsilons: tuple[str, ...]
    splits: tuple[str, ...] = SPLITS


GRID = ("0.01", "0.03", "0.1", "0.3", "1", "3", "10")
COLUMNS = (
    Column("synthetic", (), 5000, 10, GRID, 10, 10, 5, GRID),
    Column("covertype", (6, 7), 10000, 10, GRID, 10, 10, 5, GRID),
    Column("mnist", (3, 7), 5000, 50, ("1", "10", "100"), 5, 1, 3, ("100",)),
)
QUICK = (Column("synthetic", (), 400, 10, ("0.1", "100"), 2, 1, 2, ("100",), SPLITS[2:]),)


@dataclass(frozen=True)
class Labelled:
    """Preprocessed rows, (n, d), with one of two labels each, (n,), and where they come from."""

    rows: sets.Floats
    labels: npt.NDArray[np.int64]
    source: str


def labelled(column: Column, folder: Path | None) -> Labelled:
    """Return the rows of the two classes."""
    rng = np.random.default_rng(SEED)
    if column.name == "synthetic":
        root = sets.decaying_covariance(100, column.components, SEED)
        direction = rng.normal(size=column.components)
        mean = SEPARATION * root[:, : column.components] @ (direction / np.linalg.norm(direction))
        labels = np.repeat([0, 1], column.per_class)
        rows = rng.normal(size=(len(labels), 100)) @ root.T + np.outer(2 * labels - 1, mean)
        return Labelled(sets.in_unit_ball(rows), labels, "synthetic")
    table = sets.covertype(folder) if column.name == "covertype" else sets.mnist(folder)
    found = [rng.permutation(every)[: column.per_class] for every in table.of_classes(column.classes)]
    rows = sets.in_unit_ball(np.concatenate([table.rows[every] for every in found]).astype(np.float64))
    return Labelled(rows, np.repeat([0, 1], [len(every) for every in found]), table.source)


def divided(count: int, split: str, test: int) -> tuple[int, int]:
    """Return the numbers of rows to train and to test with; where there are too few, fewer to test with.

    Examples
    --------
    >>> divided(10000, "train 6000", 4000), divided(8330, "train 6000", 4000), divided(8330, "70%", 4000)
    ((6000, 4000), (6000, 2330), (5831, 2499))
    """
    if split.endswith("%"):
        train = count * int(split[:-1]) // 100
        return train, count - train
    train = int(split.split()[1])
    return train, min(test, count - train)


def errors(cell: Json, shared: Any) -> Json:
    """Return the error of a method at every epsilon, in per cent, for one random split."""
    held, column = shared
    rng = np.random.default_rng([SEED, cell["run"]])
    order = rng.permutation(len(held.labels))
    train, test = order[: cell["train"]], order[cell["train"] : cell["train"] + cell["test"]]
    moment = moment_of(held.rows[train])
    rounds = rounds_as_published(moment, column["components"]) if cell["method"] == "PPM" else 1
    published = {"rounds": rounds, "sweeps": column["sweeps"]}
    found: dict[str, dict[str, float]] = {}
    for epsilon in cell["epsilons"]:
        components = subspace(cell["method"], epsilon, moment, column["components"], published)
        known, unknown = held.rows[train] @ components.T, held.rows[test] @ components.T
        for name, model in (
            ("error", make_pipeline(StandardScaler(), LinearSVC(dual=False))),
            ("error, not standardised", LinearSVC(dual=False)),
        ):
            wrong = model.fit(known, held.labels[train]).predict(unknown) != held.labels[test]
            found.setdefault(epsilon, {})[name] = round(100 * float(wrong.mean()), 4)
    return {"errors": found, "rounds": rounds}


def cells_of(column: Column, count: int, test: int, most: int) -> list[Json]:
    """Return every run, or so many at most: a data set, a split, a method."""
    found = []
    for split in column.splits:
        train, held_out = divided(count, split, test)
        for label in METHODS:
            if label in LEFT_OUT:
                continue
            times, epsilons = column.runs, column.epsilons
            if label in FREE_OF_EPSILON:
                epsilons = epsilons[:1]
            elif label in SLOW:
                times, epsilons = column.slow_runs, column.slow_epsilons
            found += [
                {"data": column.name, "split": split, "train": train, "test": held_out, "method": label, "run": run}
                | {"epsilons": list(epsilons)}
                for run in range(min(times, most))
            ]
    return sorted(found, key=lambda cell: int(cell["run"]))


def flat(rows: list[Json]) -> list[Json]:
    """Return one row per epsilon."""
    return [
        {name: row[name] for name in ("data", "split", "train", "test", "method", "run")}
        | {"epsilon": "" if row["method"] in FREE_OF_EPSILON else epsilon}
        | found
        for row in rows
        for epsilon, found in row["errors"].items()
    ]


def matching(scan: list[tuple[float, float]], printed: float) -> str:
    """Return the epsilon at which a scan of (epsilon, error), epsilon ascending, first comes down to a printed error.

    Interpolated in the logarithm of epsilon.

    Examples
    --------
    >>> matching([(0.1, 30.0), (1.0, 20.0), (10.0, 10.0)], 15.0)
    '3.2'
    >>> matching([(0.1, 30.0), (1.0, 20.0)], 15.0), matching([(0.1, 30.0)], 40.0)
    ('above 1', 'below 0.1')
    """
    if scan[0][1] <= printed:
        return f"below {scan[0][0]:g}"
    for (low, before), (high, after) in itertools.pairwise(scan):
        if after <= printed:
            share = (before - printed) / (before - after)
            return f"{math.exp(math.log(low) + share * math.log(high / low)):.2g}"
    return f"above {scan[-1][0]:g}"


def compared(means: list[Json]) -> list[Json]:
    """Return every printed error with ours at the epsilons scanned and the epsilon that matches."""
    found = []
    for data, split, label in dict.fromkeys((m["data"], m["split"], m["method"]) for m in means):
        mine = [m for m in means if (m["data"], m["split"], m["method"]) == (data, split, label)]
        row = {"data": data, "split": split, "method": label}
        row |= {"printed": published_error(label, data, split)} if label in LABELS else {}
        for name in ("mean", "mean, not standardised"):
            row[name.replace("mean", "measured")] = {m["epsilon"] or "any": round(m[name], 3) for m in mine}
        if label in LABELS and label not in FREE_OF_EPSILON:
            scan = [(float(m["epsilon"]), m["mean"]) for m in mine]
            row["matching epsilon"] = matching(scan, row["printed"])
        found.append(row)
    return found


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option(
    "--runs", "most", default=10, show_default=True, help="Runs at most; with more, those that are done stay."
)
@experiment
def main(data: Path | None, output: Path | None, quick: bool, cluster: Cluster, most: int) -> None:
    """Run what is missing and write the results."""
    folder, columns, test = begin(output), QUICK if quick else COLUMNS, 200 if quick else TEST
    held = {column.name: labelled(column, data) for column in columns}
    settings: Json = {
        "paper": "Imtiaz & Sarwate 2016, table 1, and the talk's table",
        "notice": NOTICE,
        "quick": quick,
        "delta": DELTA,
        "neighbours": "replace-one",
        "rounds of our power method": ROUNDS,
        "data": {
            name: {"seed": SEED, "source": one.source, "sha256": sets.digest(one.rows), "rows": len(one.labels)}
            for name, one in held.items()
        },
        "components": {column.name: column.components for column in columns},
        "sweeps of PPCA": {column.name: column.sweeps for column in columns},
    }
    sets.leaks(*ROUNDS_LEAK)
    found: list[Json] = []
    with runs.opened(folder / f"{NAME}.cells.jsonl", settings) as store, cluster.connected() as engine:
        for column in columns:
            shared = (held[column.name], asdict(column))
            cells = cells_of(column, len(held[column.name].labels), test, most)
            found += runs.run(engine, store, errors, cells, shared=shared, label=f"Classification, {column.name}")
    rows = flat(found)
    by = ("data", "split", "train", "test", "method", "epsilon")
    means, plain = runs.averaged(rows, by, "error"), runs.averaged(rows, by, "error, not standardised")
    for mean, other in zip(means, plain, strict=True):
        mean["mean, not standardised"] = other["mean"]
    facts = {column.name: asdict(column) for column in columns}
    runs.write(folder / NAME, rows, settings | {"facts": facts, "table": compared(means), "means": means})
    picture(folder / f"{NAME}.png", columns, means, SPLITS[2] if quick else SPLITS[1])
    click.echo(f"{len(rows)} errors: {folder / NAME}.json, .csv, .png", err=True)


def picture(path: Path, columns: tuple[Column, ...], means: list[Json], split: str) -> None:
    """Draw error against epsilon at one split, the printed errors as dotted lines."""
    figure, axes = pictures.panels(len(columns), height=4.6)
    for ax, column in zip(axes, columns, strict=True):
        ends = [float(column.epsilons[0]), float(column.epsilons[-1])]
        for label, method in METHODS.items():
            points = [m for m in means if (m["data"], m["split"], m["method"]) == (column.name, split, label)]
            if not points:
                continue
            x, y = [float(m["epsilon"] or "nan") for m in points], [m["mean"] for m in points]
            if label in FREE_OF_EPSILON:
                x, y = ends, [y[0], y[0]]
            ax.plot(x, y, "--" if method.published else "-", marker=".", color=method.colour, label=label, lw=1.3, ms=5)
            if label in LABELS:
                ax.axhline(published_error(label, column.name, split), color=method.colour, ls=":", lw=1)
        pictures.mark(ax, [float(value) for value in column.epsilons])
        ax.set(yscale="symlog", xlabel="epsilon", ylabel="classification error, %", ylim=(0, 60))
        ax.set_yticks([0, 1, 2, 5, 10, 20, 50], ["0", "1", "2", "5", "10", "20", "50"])
        ax.set_title(f"{column.name}, k = {column.components}, {split}", fontsize=9)
        ax.grid(alpha=0.3)
    figure.suptitle(
        "Dotted: as printed, epsilon unknown. Dashed: published methods, measured. Solid: ours, and random."
    )
    pictures.legend_below(figure, axes[0], 5)
    pictures.save(figure, path)


if __name__ == "__main__":
    cli.execute(main)
