"""Imtiaz & Sarwate (2016), MNIST in table 1: which classifier gives the printed error of SVD and of the others.

The paper trains MATLAB's svmtrain on digits 3 and 7 projected to 50 dimensions. SVD has 0.575 and 0.25 % error printed,
the private methods 2.0 to 3.1 %. A private subspace lies between the best one and a random one: one classifier has to
give SVD its printed error, and a random subspace at least the smallest of the private methods'. Kernels, scalings, C,
the solver's tolerance, all pixels instead of 50 dimensions, training errors, and all ten digits are tried, each on ten
splits, with a random subspace drawn anew for each::

    python -m papers.imtiaz_sarwate.classifiers --data FOLDER --workers 2

It writes ``imtiaz_sarwate_classifiers`` as ``.json``, ``.csv`` (every run), ``.md`` and ``.png``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from dpdist import cli
from dpdist.answers.eigen import top_eigenpairs
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.floats import haar
from papers.common import data as sets
from papers.common import pictures, runs
from papers.common.answers import NOTICE
from papers.common.command import Asked, experiment
from papers.common.runs import Json
from papers.imtiaz_sarwate import pages
from papers.imtiaz_sarwate.draws import spread
from papers.imtiaz_sarwate.published import LABELS, TEST_ROWS, published_error

NAME = "imtiaz_sarwate_classifiers"
SEED = 2016
COMPONENTS, PER_CLASS = 50, 5000
PRIVATE = LABELS[1:]
KERNELS: dict[str, Json] = {
    "linear": {"kernel": "linear"},
    "quadratic": {"kernel": "poly", "degree": 2, "gamma": 1, "coef0": 1},
    "cubic": {"kernel": "poly", "degree": 3, "gamma": 1, "coef0": 1},
    "rbf": {"kernel": "rbf", "gamma": 0.5},
}
"""As svmtrain has them by default: (1 + x'y)^p, and sigma = 1."""
WIDTH = "rbf, width from the variance"
FITTED = {"kernel": "rbf", "gamma": "scale"}
"""A width that follows from the variance of the columns; svmtrain has no such choice."""
BASE: Json = {"digits": "3 and 7", "train": 4000, "C": 1.0, "tolerance": 1e-3, "columns": "standardised"}
"""svmtrain unasked."""
SUBSPACES = ("SVD", "random", "all pixels")
DIGITS = {"3 and 7": (3, 7), "all ten": tuple(range(10))}


def settings_tried(quick: bool) -> list[Json]:
    """Return the classifiers: kernels by scalings, then C and tolerance, more training rows, and all digits."""
    if quick:
        return [BASE | {"kernel": "linear", "train": 300}]
    base, kernels, free = BASE, [*KERNELS, WIDTH], BASE | {"columns": "as they are"}
    found = [
        base | {"kernel": kernel, "columns": how}
        for how, kernel in itertools.product(("standardised", "as they are"), kernels)
    ]
    found += [
        free | {"kernel": kernel, "C": C, "train": train}
        for train, kernel, C in itertools.product((4000, 6000), ("quadratic", "cubic", "rbf"), (10.0, 100.0, 1000.0))
    ]
    found += [base | {"kernel": kernel, "train": 6000} for kernel in ("linear", "quadratic", "cubic", WIDTH)]
    found += [free | {"kernel": WIDTH, "train": 6000}]
    found += [base | {"kernel": kernel, "C": 0.01} for kernel in ("linear", "cubic")]
    rough = {"tolerance": 0.5}
    found += [base | rough | {"kernel": kernel} for kernel in ("linear", "cubic")]
    found += [free | rough | {"kernel": "cubic", "C": 10.0}]
    ten = {"digits": "all ten"}
    found += [base | ten | {"kernel": kernel} for kernel in ("linear", "cubic", WIDTH)]
    found += [free | ten | {"kernel": "cubic", "C": 10.0}]
    return found


def rows_of(folder: Path | None, digits: str) -> tuple[sets.Floats, Any, str]:
    """Return 5000 rows of each of two digits, or as many rows of all, centred and scaled, their labels and source."""
    table = sets.mnist(folder)
    rng = np.random.default_rng(SEED)
    each = PER_CLASS if digits == "3 and 7" else 2 * PER_CLASS // 10
    found = np.concatenate([rng.permutation(every)[:each] for every in table.of_classes(DIGITS[digits])])
    return sets.in_unit_ball(table.rows[found].astype(np.float64)), table.labels[found], table.source


def basis(place: str, rows: sets.Floats) -> sets.Floats:
    """Return the best or a random subspace, (k, d) orthonormal rows; neither is private or needs to be."""
    if place == "random":
        return haar(rows.shape[1], COMPONENTS, SYSTEM).T
    return top_eigenpairs(rows.T @ rows, COMPONENTS)[1]


def errors(cell: Json, shared: Any) -> Json:
    """Return the test and the training error of one classifier in one subspace, in per cent, for one random split."""
    rows, labels = shared[cell["digits"]]
    order = np.random.default_rng([SEED, cell["run"]]).permutation(len(labels))
    train, test = order[: cell["train"]], order[cell["train"] : cell["train"] + TEST_ROWS]
    if cell["subspace"] == "all pixels":
        known, unknown = rows[train], rows[test]
    else:
        components = basis(cell["subspace"], rows[train])
        known, unknown = rows[train] @ components.T, rows[test] @ components.T
    kernel = FITTED if cell["kernel"] == WIDTH else KERNELS[cell["kernel"]]
    model = SVC(C=cell["C"], tol=cell["tolerance"], max_iter=200_000, **kernel)
    if cell["columns"] == "standardised":
        model = make_pipeline(StandardScaler(), model)
    model.fit(known, labels[train])
    return {
        "error": round(100 * float((model.predict(unknown) != labels[test]).mean()), 4),
        "training error": round(100 * float((model.predict(known) != labels[train]).mean()), 4),
    }


def judged(rows: Sequence[Json]) -> list[Json]:
    """Return what every classifier gives, and which of the printed errors it could be.

    ``SVD fits`` if the printed error of SVD lies within the runs of SVD, widened by three standard deviations of a
    count of the test rows; ``private fit`` if every printed error of a private method lies between SVD and random
    subspaces, widened so. Errors on the training rows are judged in the same way.
    """
    names = ("digits", "train", "kernel", "columns", "C", "tolerance")
    found = []
    for key in dict.fromkeys(tuple(row[name] for name in names) for row in rows):
        mine = [row for row in rows if tuple(row[name] for name in names) == key]
        one: Json = dict(zip(names, key, strict=True))
        split = f"train {one['train'] if one['train'] == 6000 else 4000}"
        svd = published_error("SVD", "mnist", split)
        private = [published_error(label, "mnist", split) for label in PRIVATE]
        one |= {"printed, SVD": svd, "printed, private": [min(private), max(private)]}
        for name in ("error", "training error"):
            by = {place: [row[name] for row in mine if row["subspace"] == place] for place in SUBSPACES}
            one[name] = {place: spread(values) for place, values in by.items() if values}
            one[f"{name}: SVD fits"] = _near(svd, by["SVD"])
            between = by["SVD"] + by["random"]
            one[f"{name}: private fit"] = all(_near(value, between) for value in private)
        found.append(one)
    return found


def _near(printed: float, values: Sequence[float]) -> bool:
    """Return whether a printed error lies within values, give or take three standard deviations of a count."""
    low, high = (value + sign * _three(value) for value, sign in ((min(values), -1), (max(values), 1)))
    return bool(low <= printed <= high)


def _three(per_cent: float) -> float:
    share = per_cent / 100
    return float(300 * np.sqrt(share * (1 - share) / TEST_ROWS))


@experiment(__doc__, "10 minutes", runs=10, of="random splits, and of random subspaces", needs="MNIST")
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    tried = settings_tried(asked.quick)
    free = BASE | {"columns": "as they are"}
    held = {digits: rows_of(asked.data, digits) for digits in dict.fromkeys(one["digits"] for one in tried)}
    settings: Json = {
        "paper": "Imtiaz & Sarwate 2016, table 1, MNIST",
        "notice": NOTICE,
        "quick": asked.quick,
        "components": COMPONENTS,
        "seed": SEED,
        "data": {digits: {"source": one[2], "sha256": sets.digest(one[0])} for digits, one in held.items()},
    }
    cells = [
        one | {"subspace": place, "run": run}
        for run in range(asked.runs)
        for one in tried
        for place in SUBSPACES
        # all pixels, which take long: unasked C and tolerance only
        if place != "all pixels" or one == free | {"kernel": one["kernel"]}
    ]
    shared = {digits: one[:2] for digits, one in held.items()}
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        rows = runs.run(executor, store, errors, cells, shared=shared, label="Classifiers")
    whole = settings | {"classifiers": judged(rows)}
    runs.write(asked.output / NAME, rows, whole)
    (asked.output / f"{NAME}.md").write_text(pages.classifiers_page(whole), encoding="utf-8")
    picture(asked.output / f"{NAME}.png", whole["classifiers"])
    asked.finish(NAME, ".json .csv .md .png", results_of(whole["classifiers"]))


def results_of(judged: list[Json]) -> list[str]:
    """Return which classifiers give both printed errors, as lines of text."""
    fitting = [one for one in judged if one["error: SVD fits"] and one["error: private fit"]]
    either = pages.with_both(fitting)
    return [
        f"{len(judged)} classifiers, {len(fitting)} give both printed errors:",
        *(f"  {pages.classifier_name(one)}" for one in fitting),
        f"With both numbers of training rows {len(either)} do:",
        *(f"  {name}" for name in either),
    ]


def picture(path: Path, judged: Sequence[Json]) -> None:
    """Draw for every classifier the errors of SVD and of random subspaces, and what was printed."""
    figure, (ax,) = pictures.panels(1, width=9, height=0.26 * len(judged) + 2)
    names = [pages.classifier_name(one) for one in judged]
    for place, shift in (("SVD", -0.13), ("random", 0.13)):
        for name, filled in (("error", True), ("training error", False)):
            points = np.array(
                [[one[name][place][each] for each in ("smallest", "median", "largest")] for one in judged]
            )
            points = np.maximum(points, _LEAST)
            bars = [points[:, 1] - points[:, 0], points[:, 2] - points[:, 1]]
            look = pictures.style(place) | {"ls": "", "marker": "o" if place == "SVD" else "s"}
            said = f"{place}, {'test' if filled else 'training rows'}"
            ax.errorbar(
                points[:, 1], np.arange(len(judged)) + shift, xerr=bars, mfc=look["color"] if filled else "white",
                label=said, capsize=2, **look,
            )  # fmt: skip
    for i, one in enumerate(judged):
        ax.plot([one["printed, SVD"]], [i], "D", color="#D55E00", ms=5, label="printed, SVD" if i == 0 else None)
        ax.plot(one["printed, private"], [i, i], "-", color="#0072B2", lw=5, alpha=0.5,
                label="printed, private methods" if i == 0 else None)  # fmt: skip
    ax.set_yticks(range(len(names)), names, fontsize=7)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xscale("log")
    ax.set_xticks(_TICKS, ["0", *(f"{tick:g}" for tick in _TICKS[1:])])
    ax.set_xticks([], minor=True)
    ax.set(xlabel="error, % of rows (log)", xlim=(_LEAST / 1.4, 80))
    ax.grid(alpha=0.3)
    ax.set_title("MNIST, 50 dimensions: what classifiers give, and what was printed", fontsize=9)
    pictures.legend_below(figure, ax, 3)
    pictures.save(figure, path)


_LEAST = 0.0125
"""Where 0 is drawn: half of one row in 4000."""
_TICKS = (_LEAST, 0.025, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 50)


if __name__ == "__main__":
    cli.execute(main)
