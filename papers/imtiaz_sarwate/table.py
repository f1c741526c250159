"""Imtiaz & Sarwate (2016), table 1 and the talk's table: errors of a linear SVM on rows projected privately.

The private subspace is learnt from the training rows, all rows are projected on it, and a linear SVM (C = 1) is trained
and tested: with every projected column standardised, as MATLAB's svmtrain does unasked, and without. The papers do not
print epsilon, so it is scanned. Table 1 is single runs (``published.counted``): for each printed error the epsilons are
reported at which it lies between the 5 and 95 % quantiles of single runs here. Nor does the paper say whether columns
were scaled before the rows were divided by the largest norm, which decides what Covertype looks like: raw, on [0, 1]
and z-scored are all taken::

    python -m papers.imtiaz_sarwate.table --data FOLDER --workers 2

It writes ``imtiaz_sarwate_table`` as ``.json`` (settings, quantiles, agreeing epsilons), ``.csv`` (every run),
``.md`` (every table) and ``.png``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from dpdist import cli
from papers.common import data as sets
from papers.common import pictures, runs
from papers.common.answers import NOTICE, moment_of
from papers.common.command import Asked, experiment
from papers.common.runs import Json
from papers.imtiaz_sarwate import pages
from papers.imtiaz_sarwate.draws import FEWEST, agreeing, in_common, in_words, spread
from papers.imtiaz_sarwate.methods import (
    DELTAS,
    FREE_OF_EPSILON,
    METHODS,
    ROUNDS,
    ROUNDS_LEAK,
    rounds_as_published,
    subspace,
)
from papers.imtiaz_sarwate.published import LABELS, SPLITS, TEST_ROWS, counted, published_error, talk_as_one_run

NAME = "imtiaz_sarwate_table"
SEED = 2016
SLOW = ("PPM", "PPCA")
OMITTED = ("PPM, delta 0", "wishart", "Jiang et al.", "Sheffet")
"""A random subspace in effect, close to gaussian, or not in the tables: the figures have all."""
RANDOM_RUNS = 120
"""Of random subspaces of Covertype: how large their errors can be is a question of its own there."""
CLASSIFIERS = {"standardised": "error", "not standardised": "error, not standardised"}
SEPARATION = 1.585
"""Half the Mahalanobis distance of the synthetic classes: 5.65 % Bayes error, the paper's for SVD."""


@dataclass(frozen=True)
class Column:
    """One data set of the table.

    Attributes
    ----------
    name
        The data set, and after a comma how its columns are scaled, if they are.
    classes, per_class
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

    @property
    def data(self) -> str:
        """The data set without its scaling, as the papers name it."""
        return self.name.split(",")[0]

    @property
    def scaling(self) -> str:
        """How columns are scaled, a name of :func:`papers.common.data.column_scaled`."""
        return self.name.partition(", ")[2] or "raw"


GRID = ("0.01", "0.03", "0.1", "0.3", "1", "3", "10")
COLUMNS = (
    Column("synthetic", (), 5000, 10, GRID, 10, 10, 5, GRID),
    Column("covertype", (6, 7), 10000, 10, GRID, 10, 10, 5, GRID),
    Column("covertype, [0, 1]", (6, 7), 10000, 10, GRID, 10, 10, 5, GRID),
    Column("covertype, z-scored", (6, 7), 10000, 10, GRID, 10, 10, 5, GRID),
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
    if column.data == "synthetic":
        root = sets.decaying_covariance(100, column.components, SEED)
        direction = rng.normal(size=column.components)
        mean = SEPARATION * root[:, : column.components] @ (direction / np.linalg.norm(direction))
        labels = np.repeat([0, 1], column.per_class)
        rows = rng.normal(size=(len(labels), 100)) @ root.T + np.outer(2 * labels - 1, mean)
        return Labelled(sets.in_unit_ball(rows), labels, "synthetic")
    table = sets.covertype(folder) if column.data == "covertype" else sets.mnist(folder)
    found = [rng.permutation(every)[: column.per_class] for every in table.of_classes(column.classes)]
    raw = np.concatenate([table.rows[every] for every in found]).astype(np.float64)
    rows = sets.in_unit_ball(sets.column_scaled(raw, column.scaling))
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
            if label in OMITTED:
                continue
            times, epsilons = column.runs, column.epsilons
            if label in FREE_OF_EPSILON:
                epsilons = epsilons[:1]
                if label == "random" and column.data == "covertype":
                    times = RANDOM_RUNS
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


def compared(rows: Sequence[Json], columns: Sequence[Column]) -> list[Json]:
    """Return the single runs of every method, and where they agree with what was printed.

    Returns
    -------
    list of dict
        By data set, split, classifier and method: ``scan``, the spread of single runs by epsilon, and of the paper's
        methods ``printed`` and the ``agreeing`` epsilons (of SVD, which has none, whether it ``agrees``); None
        where there are fewer than ``FEWEST`` runs.
    """
    found: list[Json] = []
    held: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        for classifier, name in CLASSIFIERS.items():
            key = (row["data"], row["split"], classifier, row["method"], row["epsilon"])
            held.setdefault(key, []).append(row[name])
    for data, split, classifier, label in dict.fromkeys(key[:4] for key in held):
        scan = {
            key[4] or "any": spread(values)
            for key, values in held.items()
            if key[:4] == (data, split, classifier, label)
        }
        one: Json = {"data": data, "split": split, "classifier": classifier, "method": label, "scan": scan}
        if label in LABELS:
            source = next(column.data for column in columns if column.name == data)
            one["printed"] = published_error(label, source, split)
            if label in FREE_OF_EPSILON:
                within = bool(scan["any"]["5%"] <= one["printed"] <= scan["any"]["95%"])
                one["agrees"] = within if scan["any"]["runs"] >= FEWEST else None
            else:
                one["agreeing"] = agreeing(scan, one["printed"])
                one["in words"] = in_words(one["agreeing"], scan, one["printed"])
        found.append(one)
    return found


def together(table: Sequence[Json]) -> list[Json]:
    """Return at which epsilons all printed errors of a column agree at once, and which agree nowhere."""
    found = []
    for data, split, classifier in dict.fromkeys((one["data"], one["split"], one["classifier"]) for one in table):
        mine = [one for one in table if (one["data"], one["split"], one["classifier"]) == (data, split, classifier)]
        private = {one["method"]: one["agreeing"] for one in mine if "agreeing" in one}
        common = in_common(list(private.values()))
        found.append(
            {"data": data, "split": split, "classifier": classifier}
            | {"SVD agrees": next(one["agrees"] for one in mine if "agrees" in one)}
            | {"agree nowhere": [label for label, epsilons in private.items() if epsilons == []]}
            | {"not compared": [label for label, epsilons in private.items() if epsilons is None]}
            | {"all agree at": [round(common[0], 4), round(common[-1], 4)] if common else []}
            | {
                "largest": {
                    one["method"]: max(run["largest"] for run in one["scan"].values())
                    for one in mine
                    if one["method"] in private
                }
            }
        )
    return found


def cells_as_counts(held: dict[str, Labelled]) -> Json:
    """Return what the printed cells of the paper and of the talk say of how many runs they are."""
    talk = [
        {"data": data, "split": split, "test rows": (rows := divided(len(one.labels), split, 0)[1])}
        | {"cells that one run could give": talk_as_one_run(data, split, rows), "of": len(LABELS)}
        for data, one in held.items()
        if data in ("synthetic", "mnist")  # where our rows are as many as the paper's
        for split in SPLITS[2:]
    ]
    return {"table 1": asdict(counted()) | {"test rows": TEST_ROWS, "runs averaged": 10}, "the talk": talk}


@experiment(
    __doc__,
    "7 minutes",
    runs=RANDOM_RUNS,
    quick=2,
    of="random splits, at most (10 of most methods)",
    needs="MNIST and Covertype",
)
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    columns, test = (QUICK, 200) if asked.quick else (COLUMNS, TEST_ROWS)
    held = {column.name: labelled(column, asked.data) for column in columns}
    settings: Json = {
        "paper": "Imtiaz & Sarwate 2016, table 1, and the talk's table",
        "notice": NOTICE,
        "quick": asked.quick,
        "delta": DELTAS,
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
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        for column in columns:
            shared = (held[column.name], asdict(column))
            cells = cells_of(column, len(held[column.name].labels), test, asked.runs)
            found += runs.run(executor, store, errors, cells, shared=shared, label=f"Classification, {column.name}")
    rows = flat(found)
    facts = {column.name: asdict(column) for column in columns}
    table = compared(rows, columns)
    whole = settings | {"facts": facts, "cells as counts": cells_as_counts(held), "table": table}
    whole["together"] = together(table)
    runs.write(asked.output / NAME, rows, whole)
    (asked.output / f"{NAME}.md").write_text(pages.table_page(whole), encoding="utf-8")
    picture(asked.output / f"{NAME}.png", columns, table, SPLITS[2] if asked.quick else SPLITS[0])
    asked.finish(NAME, ".json .csv .md .png", results_of(whole))


def results_of(whole: Json) -> Iterator[str]:
    """Yield what the cells say of the number of runs, and which columns one epsilon explains, as lines of text."""
    counted = whole["cells as counts"]["table 1"]
    yield f"Cells of table 1 that are whole numbers of {TEST_ROWS} test rows: {counted['whole']} of {counted['cells']}"
    for one in whole["together"]:
        agreeing = " to ".join(f"{epsilon:.2g}" for epsilon in one["all agree at"]) or "nowhere"
        nowhere = ", ".join(one["agree nowhere"]) or "none"
        few = ", ".join(one["not compared"])
        yield f"{one['data']}, {one['split']}, {one['classifier']}: " + (
            f"too few runs to compare {few}"
            if few
            else f"all printed errors agree at epsilon {agreeing}; alone at none: {nowhere}"
        )


def picture(path: Path, columns: tuple[Column, ...], table: list[Json], split: str) -> None:
    """Draw median and 5 to 95 % of single runs against epsilon at one split, and the printed errors at the left.

    Covertype in raw units is left out: nearly all its errors are 0.
    """
    shown = [column for column in columns if column.name != "covertype"]
    figure, axes = pictures.panels(min(len(shown), 2), -(-len(shown) // 2), width=6.2, height=4.4)
    for ax, column in zip(axes, shown, strict=True):
        ends = [float(column.epsilons[0]), float(column.epsilons[-1])]
        left, right = ends[0] / 4, ends[1] * 1.6
        for place, label in enumerate(METHODS):
            mine = [
                one
                for one in table
                if (one["data"], one["split"], one["method"], one["classifier"])
                == (column.name, split, label, "standardised")
            ]
            if not mine:
                continue
            scan, style = mine[0]["scan"], pictures.style(label)
            y = np.array([[one["5%"], one["median"], one["95%"]] for one in scan.values()])
            if label in FREE_OF_EPSILON:
                ax.plot(ends, [y[0, 1]] * 2, label=label, **style | {"marker": ""})
                ax.fill_between(ends, y[0, 0], y[0, 2], color=style["color"], alpha=0.15, lw=0)
            else:
                x = [float(epsilon) * 1.025 ** (place - 4) for epsilon in scan]  # side by side, not on each other
                ax.errorbar(x, y[:, 1], [y[:, 1] - y[:, 0], y[:, 2] - y[:, 1]], label=label, capsize=2, **style)
            if "printed" in mine[0]:
                ax.plot([left], [mine[0]["printed"]], label="_printed", **style | {"marker": "D", "ls": "", "ms": 6})
        pictures.mark(ax, [left, *(float(value) for value in column.epsilons)], {left: "printed"})
        ax.axvline(ends[0] / 2, color="0.8", lw=1)
        ax.set(yscale="log", xlabel="epsilon", ylabel="classification error, %", xlim=(left / 1.6, right))
        ticks = _SHOWN[column.data][1:-1]
        ax.set(ylim=(_SHOWN[column.data][0], _SHOWN[column.data][-1]))
        ax.set_yticks(ticks, [f"{error:g}" for error in ticks])
        ax.set_yticks([], minor=True)
        ax.set_title(f"{column.name}, k = {column.components}, {split}", fontsize=9)
        ax.grid(alpha=0.3)
    figure.suptitle(
        "Single runs: median, 5 to 95 %. Diamonds: as printed, one run, epsilon unknown. Dashed: published methods, "
        "delta 0.01. Solid: ours, delta 1e-6, and random.",
        fontsize=10,
    )
    pictures.legend_below(figure, axes[0], 9)
    pictures.save(figure, path)


_SHOWN = {
    "synthetic": (4.5, 5, 6, 8, 10, 15, 20, 22),
    "covertype": (0.02, 0.025, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 40, 45),
    "mnist": (0.4, 0.5, 1, 2, 3, 4, 4.5),
}
"""Ends of the error axis, and its ticks in between."""


if __name__ == "__main__":
    cli.execute(main)
