"""Imtiaz & Sarwate (2016), the talk: how far the released matrix is from the exact one, whole and at rank k.

The talk names the difference of A and A-hat as a measure, and concludes that SN approximates A_k very well; it prints
no numbers. Taken are the methods that release a matrix, on the rows of figure 1, drawn anew::

    python -m papers.imtiaz_sarwate.differences --data FOLDER --workers 2

It writes ``imtiaz_sarwate_differences`` as ``.json`` (settings, means, ranges), ``.csv`` (every run) and ``.png``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpdist import cli
from papers.common import pictures, runs
from papers.common.answers import NOTICE, PublicMoment, low_rank, private_moment, request_for
from papers.common.command import Asked, experiment
from papers.common.data import Floats
from papers.common.runs import Json
from papers.imtiaz_sarwate.figures import Panel, drawn, panels_of
from papers.imtiaz_sarwate.methods import DELTAS, METHODS

NAME = "imtiaz_sarwate_differences"
RELEASING = ("AG", "SN", "Jiang et al.", "Sheffet", "gaussian", "wishart", "two-sided-wishart")
"""Methods that release a matrix. The others release components."""
WHOLE, LOW_RANK = "|A - A-hat| / lambda_1", "|A_k - A-hat_k| / lambda_1"
"""Spectral norms."""
MEASURES = (WHOLE, LOW_RANK)


def differences(exact: Floats, released: Floats, components: int) -> Json:
    """Return both measures of one release.

    Examples
    --------
    >>> differences(np.diag([4.0, 1.0, 0.0]), np.diag([5.0, 0.0, 2.0]), 1)
    {'|A - A-hat| / lambda_1': 0.5, '|A_k - A-hat_k| / lambda_1': 0.25}
    """
    first = float(np.linalg.eigvalsh(exact)[-1])
    whole = float(np.linalg.norm(exact - released, 2)) / first
    ranked = float(np.linalg.norm(low_rank(exact, components) - low_rank(released, components), 2)) / first
    return {WHOLE: round(whole, 9), LOW_RANK: round(ranked, 9)}


def measured(cell: Json, shared: Any) -> Json:
    """Answer once."""
    moment: PublicMoment = shared["moments"][cell["draw"]]
    method = METHODS[cell["method"]]
    request = request_for(method.mechanism, (cell["epsilon"], method.delta), moment.bound, {})
    return differences(moment.matrix, private_moment(request, moment), shared["components"])


def cells_of(panel: Panel) -> list[Json]:
    """Return every run of one data set, all of one draw of the rows before the next."""
    return [
        {"data": panel.name, "epsilon": epsilon, "method": label, "draw": draw, "run": run}
        for draw in range(panel.draws)
        for label in RELEASING
        for epsilon in panel.epsilons
        for run in range(panel.runs)
    ]


def ranges(rows: Sequence[Json]) -> list[Json]:
    """Return mean, smallest and largest of each measure at every point."""
    groups: dict[tuple[str, str, str], list[Json]] = {}
    for row in rows:
        groups.setdefault((row["data"], row["method"], row["epsilon"]), []).append(row)
    return [
        {"data": data, "method": method, "epsilon": epsilon, "measure": measure, "runs": len(found)}
        | {"mean": float(np.mean(values)), "smallest": min(values), "largest": max(values)}
        for (data, method, epsilon), found in groups.items()
        for measure in MEASURES
        for values in [[row[measure] for row in found if measure in row]]
        if values
    ]


@experiment(__doc__, "a minute", runs=6, quick=2, of="draws of the rows, with two answers from each", needs="Covertype")
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    panels = [replace(panel, samples=()) for panel in panels_of(asked) if panel.name != "mnist"]
    moments, described, facts = {}, {}, {}
    for panel in panels:
        found, described[panel.name], facts[panel.name] = drawn(panel, asked.data)
        moments[panel.name] = {draw: moment for (draw, _), (moment, _) in found.items()}
    settings: Json = {
        "paper": "Imtiaz & Sarwate 2016, the talk: difference of A and A-hat, and A_k",
        "notice": NOTICE, "quick": asked.quick, "delta": DELTAS, "neighbours": "replace-one", "data": described,
    }  # fmt: skip
    rows: list[Json] = []
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        for panel in panels:
            shared = {"moments": moments[panel.name], "components": panel.components}
            rows += runs.run(
                executor, store, measured, cells_of(panel), shared=shared, label=f"Differences, {panel.name}"
            )
    table = ranges(rows)
    truths = {label: METHODS[label].truth for label in RELEASING}
    runs.write(asked.output / NAME, rows, settings | {"facts": facts, "methods": truths, "table": table})
    picture(asked.output / f"{NAME}.png", panels, table)
    asked.finish(NAME, ".json .csv .png", results_of(table))


def results_of(table: list[Json]) -> Iterator[str]:
    """Yield the means as lines of text."""
    epsilons = list(dict.fromkeys(row["epsilon"] for row in table))
    for data, measure in dict.fromkeys((row["data"], row["measure"]) for row in table):
        yield f"{measure}, {data}, by epsilon"
        yield f"{'':17}" + "".join(f"{epsilon:>9}" for epsilon in epsilons)
        for label in RELEASING:
            found = [
                row["mean"] for row in table if (row["data"], row["measure"], row["method"]) == (data, measure, label)
            ]
            yield f"{label:17}" + "".join(f"{mean:9.2g}" for mean in found)


def picture(path: Path, panels: Sequence[Panel], table: list[Json]) -> None:
    """Draw each measure against epsilon: mean, smallest and largest."""
    figure, axes = pictures.panels(len(panels), 2)
    for number, measure in enumerate(MEASURES):
        for column, panel in enumerate(panels):
            ax = axes[number * len(panels) + column]
            for label in RELEASING:
                points = [p for p in table if (p["data"], p["method"], p["measure"]) == (panel.name, label, measure)]
                mean = np.array([p["mean"] for p in points])
                bars = [mean - [p["smallest"] for p in points], [p["largest"] for p in points] - mean]
                look = pictures.style(label)
                ax.errorbar([float(p["epsilon"]) for p in points], mean, bars, label=label, capsize=2, **look)
            pictures.mark(ax, [float(epsilon) for epsilon in panel.epsilons])
            ax.set(yscale="log", xlabel="epsilon")
            what = "the whole matrix" if measure == WHOLE else f"its part of rank {panel.components}"
            ax.set_title(f"{panel.name}: error of {what} / λ₁", fontsize=9)
            ax.grid(alpha=0.3)
    figure.suptitle(
        "Spectral norm; smallest, mean and largest of runs.\n"
        "Dashed: as published, delta 0.01 where there is one. Solid: what is proved, delta 1e-6.",
        fontsize=10,
    )
    pictures.legend_below(figure, axes[0], 4)
    pictures.save(figure, path)


if __name__ == "__main__":
    cli.execute(main)
