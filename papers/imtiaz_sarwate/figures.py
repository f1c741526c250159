"""Imtiaz & Sarwate (2016), figures 1 and 2: captured energy against epsilon and against the number of samples.

One command, for published and corrected methods, on synthetic data and Covertype as in the paper, and on MNIST, which
its figures do not have and which is drawn apart. The data are drawn anew: every data set several times, and from each
several answers, so that the spread over data and the spread over noise are told apart. Killed and started again it goes
on with the cells that are missing::

    python -m papers.imtiaz_sarwate.figures --data FOLDER --workers 2

It writes ``imtiaz_sarwate_figures`` as ``.json`` (settings, means, spread), ``.csv`` (every run), ``.md`` and ``.png``,
and ``imtiaz_sarwate_mnist.png``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpdist import cli
from papers.common import data as sets
from papers.common import pictures, runs
from papers.common.answers import NOTICE, captured_energy, moment_of
from papers.common.command import Asked, experiment
from papers.common.runs import Json
from papers.imtiaz_sarwate import pages
from papers.imtiaz_sarwate.methods import (
    DELTAS,
    FREE_OF_EPSILON,
    METHODS,
    ROUNDS,
    ROUNDS_LEAK,
    rounds_as_published,
    subspace,
)

NAME, BESIDE = "imtiaz_sarwate_figures", "imtiaz_sarwate_mnist"
SEED = 2016
SLOW = ("PPM", "PPM, delta 0", "PPCA")
"""Methods that take ten seconds to a minute for one answer about MNIST: one answer, at fewer epsilons."""
ADDED = ("Jiang et al.", "Sheffet")
"""Methods that the talk compares without a picture; not taken for MNIST."""


@dataclass(frozen=True)
class Panel:
    """One data set: what figure 1 and figure 2 ask about it.

    Attributes
    ----------
    name
        The data set.
    rows, components
        n and k.
    epsilons, samples
        What figure 1 and figure 2 scan.
    epsilon
        Of figure 2.
    draws
        How often the rows are drawn.
    runs, slow_runs
        Answers from each draw of the rows.
    sweeps
        Of PPCA.
    slow_epsilons
        What figure 1 scans for the slow methods.
    """

    name: str
    rows: int
    components: int
    epsilons: tuple[str, ...]
    samples: tuple[int, ...]
    epsilon: str
    draws: int
    runs: int
    slow_runs: int
    sweeps: int
    slow_epsilons: tuple[str, ...]


GRID = ("0.01", "0.03", "0.1", "0.3", "1", "3", "10")
PAPER = (
    Panel("synthetic", 60000, 10, GRID, (1000, 2000, 5000, 10000, 20000, 40000, 60000), "0.1", 6, 2, 2, 5, GRID),
    Panel("covertype", 20000, 10, GRID, (500, 1000, 2000, 5000, 10000, 20000), "0.1", 6, 2, 2, 5, GRID),
)
MNIST = Panel("mnist", 10000, 50, (*GRID[2:], "30", "100"), (2000, 5000, 10000), "10", 1, 5, 1, 3, ("1", "10", "100"))
QUICK = (
    Panel("synthetic", 3000, 10, ("10",), (1000,), "10", 2, 2, 1, 2, ("10",)),
    Panel("covertype", 400, 3, ("10",), (200,), "10", 1, 1, 1, 2, ("10",)),
)


def rows_of(panel: Panel, folder: Path | None, draw: int) -> tuple[sets.Floats, str]:
    """Return one draw of the preprocessed rows of a data set, in random order, and where they come from.

    The covariance of the synthetic rows is the same in every draw.
    """
    seed = SEED + draw
    if panel.name == "synthetic":
        rng = np.random.default_rng([seed, 1])
        root = sets.decaying_covariance(100, panel.components, SEED)
        return sets.in_unit_ball(rng.normal(size=(panel.rows, 100)) @ root.T), "synthetic"
    table = sets.covertype(folder) if panel.name == "covertype" else sets.mnist(folder)
    rows = sets.in_unit_ball(sets.chosen(table, panel.rows, seed))
    return np.random.default_rng(seed).permutation(rows), table.source


def cells_of(panel: Panel) -> list[Json]:
    """Return every run of both figures, all of one draw of the rows before the next."""
    found = []
    for draw, label in itertools.product(range(panel.draws), METHODS):
        if panel.name == "mnist" and label in ADDED:
            continue
        slow = label in SLOW
        asked = [(1, epsilon, panel.rows) for epsilon in (panel.slow_epsilons if slow else panel.epsilons)]
        asked += [(2, panel.epsilon, n) for n in panel.samples]
        if label in FREE_OF_EPSILON:
            asked = [(figure, epsilon, n) for figure, epsilon, n in asked if figure == 2 or epsilon == asked[0][1]]
        found += [
            {
                "figure": figure,
                "data": panel.name,
                "n": n,
                "epsilon": epsilon,
                "method": label,
                "draw": draw,
                "run": run,
            }
            for run in range(1 if label == "SVD" else panel.slow_runs if slow else panel.runs)
            for figure, epsilon, n in asked
        ]
    return found


def energy(cell: Json, shared: Any) -> Json:
    """Return the captured energy of one answer, in per cent of the best."""
    moment, published = shared["moments"][cell["draw"], cell["n"]]
    found = subspace(cell["method"], cell["epsilon"], moment, shared["components"], published)
    return {"energy": round(captured_energy(found, moment), 4)}


def spreads(rows: Sequence[Json]) -> list[Json]:
    """Return mean and spread of every point, and the parts of the spread that are of the data and of the noise.

    ``of the noise`` is the standard deviation of answers from the same rows, None with one answer from each;
    ``of the data`` that of the mean over the noise when the rows are drawn anew, with the part of the noise in the
    means subtracted, None with one draw.

    Examples
    --------
    >>> at = {"figure": 1, "data": "a", "n": 1, "epsilon": "1", "method": "SN"}
    >>> (point,) = spreads([at | {"draw": i // 2, "run": i % 2, "energy": e} for i, e in enumerate([1.0, 3, 11, 13])])
    >>> point["mean"], round(point["of the noise"], 3), round(point["of the data"], 3)
    (7.0, 1.414, 7.0)
    """
    by = ("figure", "data", "n", "epsilon", "method")
    groups: dict[tuple[Any, ...], dict[int, list[float]]] = {}
    for row in rows:
        if "energy" in row:
            groups.setdefault(tuple(row[name] for name in by), {}).setdefault(row["draw"], []).append(row["energy"])
    found = []
    for key, draws in groups.items():
        every, means = np.concatenate(list(draws.values())), np.array([np.mean(each) for each in draws.values()])
        repeats = min(map(len, draws.values()))
        noise = float(np.mean([np.var(each, ddof=1) for each in draws.values()])) if repeats > 1 else None
        between = float(np.var(means, ddof=1)) - (noise or 0) / repeats if len(means) > 1 else None
        low, high = np.quantile(every, (0.05, 0.95))
        found.append(
            dict(zip(by, key, strict=True))
            | {"mean": float(np.mean(every)), "5%": float(low), "95%": float(high), "draws": len(means)}
            | {"runs": len(every), "of the noise": None if noise is None else noise**0.5}
            | {"of the data": None if between is None or repeats == 1 else max(0.0, between) ** 0.5}
        )
    return found


@experiment(__doc__, "5 minutes", runs=6, quick=2, of="draws of the rows (MNIST: one)", needs="MNIST and Covertype")
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    folder, panels = asked.output, panels_of(asked)
    sets.leaks(*ROUNDS_LEAK)
    moments, described, facts = {}, {}, {}
    for panel in panels:
        moments[panel.name], described[panel.name], facts[panel.name] = drawn(panel, asked.data)
    settings: Json = {
        "paper": "Imtiaz & Sarwate 2016, figures 1 and 2",
        "notice": NOTICE,
        "quick": asked.quick,
        "delta": DELTAS,
        "neighbours": "replace-one",
        "rounds of our power method": ROUNDS,
        "components": {panel.name: panel.components for panel in panels},
        "sweeps of PPCA": {panel.name: panel.sweeps for panel in panels},
        "data": described,
    }
    found: list[Json] = []
    with runs.opened(folder / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        for panel in panels:
            shared = {"moments": moments[panel.name], "components": panel.components}
            found += runs.run(
                executor, store, energy, cells_of(panel), shared=shared, label=f"Captured energy, {panel.name}"
            )
    means = spreads(found)
    truths = {label: method.truth for label, method in METHODS.items()}
    whole = settings | {"facts": facts, "methods": truths, "means": means}
    runs.write(folder / NAME, found, whole)
    (folder / f"{NAME}.md").write_text(pages.figures_page(whole), encoding="utf-8")
    picture(folder / f"{NAME}.png", [panel for panel in panels if panel.name != "mnist"], means)
    if MNIST in panels:
        picture(folder / f"{BESIDE}.png", [MNIST], means)
    asked.finish(NAME, ".json .csv .md .png", results_of(panels, means))


def panels_of(asked: Asked) -> list[Panel]:
    """Return the panels: MNIST with one draw of its rows, the others with as many as asked."""
    panels = [replace(panel, draws=asked.runs) for panel in (QUICK if asked.quick else PAPER)]
    return panels if asked.quick else [*panels, MNIST]


def results_of(panels: Sequence[Panel], means: list[Json]) -> Iterator[str]:
    """Yield the captured energy of both figures as lines of text."""
    for panel in panels:
        for figure, name, places, at in (
            (1, "epsilon", panel.epsilons, f"n = {panel.rows}"),
            (2, "n", panel.samples, f"epsilon = {panel.epsilon}"),
        ):
            yield f"Captured energy in % of SVD, {panel.name}, {at}, by {name}"
            yield f"{'':17}" + "".join(f"{place:>7}" for place in places)
            for label in METHODS:
                found = {m[name]: f"{m['mean']:.1f}" for m in means
                         if (m["figure"], m["data"], m["method"]) == (figure, panel.name, label)}  # fmt: skip
                if label not in FREE_OF_EPSILON:
                    yield f"{label:17}" + "".join(f"{found.get(place, ''):>7}" for place in places)


def drawn(panel: Panel, folder: Path | None) -> tuple[Any, Json, Json]:
    """Return the moments by draw and n, what the rows are, and what is to be known of them; the rows are let go."""
    moments: Any = {}
    digests, norms, lasts, shares = [], [], [], []
    source = ""
    for draw in range(panel.draws):
        rows, source = rows_of(panel, folder, draw)
        digests.append(sets.digest(rows))
        for n in sorted({panel.rows, *panel.samples}):
            moment = moment_of(rows[:n])
            published = {"rounds": rounds_as_published(moment, panel.components), "sweeps": panel.sweeps}
            moments[draw, n] = (moment, published)
        whole, published = moments[draw, panel.rows]
        values = np.linalg.eigvalsh(whole.matrix)[::-1]
        norms.append(published["rounds"])
        lasts.append(float(values[panel.components - 1]))
        shares.append(float(values[: panel.components].sum() / values.sum()))
    facts = asdict(panel) | {
        "sha256": digests,
        "columns": whole.bound.width,
        "rounds of PPM": norms,
        "lambda_k": lasts,
        "share of the best components": shares,
    }
    return moments, {"seed": SEED, "source": source, "sha256": digests[0]}, facts


def picture(path: Path, panels: Sequence[Panel], means: list[Json]) -> None:
    """Draw figure 1 above figure 2, or beside it for one data set: mean, and 5 to 95 % of runs."""
    figure, axes = pictures.panels(2, len(panels), width=5.4, height=4.2)
    for column, panel in enumerate(panels):
        for row, (number, name) in enumerate(((1, "epsilon"), (2, "n"))):
            ax = axes[row * len(panels) + column]
            marks = [float(value) for value in (panel.epsilons if number == 1 else panel.samples)]
            for label in METHODS:
                points = [m for m in means if (m["figure"], m["data"], m["method"]) == (number, panel.name, label)]
                if not points:
                    continue
                look = pictures.style(label)
                x, y = [float(m[name]) for m in points], np.array([[m["5%"], m["mean"], m["95%"]] for m in points])
                if number == 1 and label in FREE_OF_EPSILON:
                    ax.plot([marks[0], marks[-1]], [y[0, 1]] * 2, label=label, **look | {"marker": ""})
                else:
                    bars = np.maximum([y[:, 1] - y[:, 0], y[:, 2] - y[:, 1]], 0)
                    ax.errorbar(x, y[:, 1], bars, label=label, capsize=2, **look)
            title = f"n = {panel.rows}" if number == 1 else f"epsilon = {panel.epsilon}"
            pictures.mark(ax, marks)
            ax.set(xlabel=name, ylabel="captured energy, % of SVD", ylim=(0, 103))
            head = f"As figure {number}, not in the paper:" if panel.name == "mnist" else f"Figure {number},"
            ax.set_title(f"{head} {panel.name}, k = {panel.components}, {title}", fontsize=9)
            ax.grid(alpha=0.3)
    said = "the data drawn anew" if panels[0].draws > 1 else "of one draw of the rows"
    figure.suptitle(
        f"Mean, 5 to 95 % of runs, {said}. Dashed: as published.\n"
        "Solid: what is proved. Delta, where there is one: 0.01 as published, 1e-6 as proved.",
        fontsize=10,
    )
    pictures.legend_below(figure, axes[0], 5)
    pictures.save(figure, path)


if __name__ == "__main__":
    cli.execute(main)
