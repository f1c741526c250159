"""Jiang, Xie & Zhang (2016), table 1: the spectral norm of the noise against the number of columns, measured.

The noise of every input perturbation in the table, and of ours, is drawn at epsilon 1 for rows in the unit ball (the
paper divides the moment, and so the noise, by n). The slope of the logarithms is the exponent of d::

    python -m papers.jiang_xie_zhang.noise --workers 2

It writes ``jiang_xie_zhang_noise`` as ``.json`` (exponents, means), ``.csv`` (every draw) and ``.png``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpdist import RowBound, cli
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.triangle import Triangle
from papers.common import pictures, runs
from papers.common.answers import PublicMoment, private_moment, request_for
from papers.common.command import Asked, experiment
from papers.common.runs import Json

NAME = "jiang_xie_zhang_noise"
EPSILON, DELTA = "1", "1e-6"
SIZES, DRAWS = (16, 32, 64, 128, 256, 512), 10


@dataclass(frozen=True)
class Noise:
    """A mechanism: as in the table or ours, the bound in the table, the exponent expected, and what is true of it."""

    published: bool
    bound: str
    exponent: float
    truth: str


NOISES = {
    "laplace-published": Noise(True, "d sqrt(d) / (n epsilon)", 1.5, "epsilon, with 2.8 times the noise"),
    "sulq": Noise(True, "d sqrt(d) log d / (n epsilon)", 1.5, "(epsilon, delta), with far more noise"),
    "jiang-wishart": Noise(True, "d log d / (n epsilon)", 1.0, "not epsilon-private: delta 0.28 at 1"),
    "analyze-gauss": Noise(True, "sqrt(d) / (n epsilon)", 0.5, "replace-one: a larger delta than claimed"),
    "laplace": Noise(False, "", 1.5, "epsilon, proved"),
    "two-sided-wishart": Noise(False, "", 1.0, "epsilon, proved"),
    "wishart": Noise(False, "", 0.5, "(epsilon, delta), proved; about its mean"),
    "gaussian": Noise(False, "", 0.5, "(epsilon, delta), proved"),
}


def measured(cell: Json, _: Any) -> Json:
    """Draw the noise once; its spectral norm, and that about its mean (a multiple of I, which moves no eigenvector)."""
    bound = RowBound(cell["d"], 1.0, 12)
    empty: Triangle = np.zeros(cell["d"] * (cell["d"] + 1) // 2, dtype=np.int64)
    request = request_for(cell["mechanism"], (EPSILON, DELTA), bound, {})
    noise = private_moment(request, PublicMoment(empty, bound, 0))
    mean = planned(request, Dimensions(cell["d"])).moment.noise.mean_diagonal * bound.unit**2
    values = np.linalg.eigvalsh(noise)
    return {"norm": float(np.abs(values).max()), "norm about the mean": float(np.abs(values - mean).max())}


def exponent(points: list[Json]) -> float:
    """Return the slope of log mean against log d, by least squares.

    Examples
    --------
    >>> round(exponent([{"d": 10, "mean": 5.0}, {"d": 20, "mean": 10.0}, {"d": 40, "mean": 20.0}]), 6)
    1.0
    """
    slope, _ = np.polyfit(np.log([p["d"] for p in points]), np.log([p["mean"] for p in points]), 1)
    return float(slope)


@experiment(__doc__, "15 seconds", runs=DRAWS, quick=DRAWS, of="draws of each noise")
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    sizes = (16, 32, 64) if asked.quick else SIZES
    settings: Json = {
        "paper": "Jiang, Xie & Zhang 2016, table 1", "quick": asked.quick, "epsilon": EPSILON, "delta": DELTA,
        "neighbours": "replace-one", "units": "of the unnormalised sum of x x^T with |x| <= 1",
    }  # fmt: skip
    cells = [{"mechanism": name, "d": d, "draw": draw} for name in NOISES for d in sizes for draw in range(asked.runs)]
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        rows = runs.run(executor, store, measured, cells, label="Drawing noise")
    raw = runs.averaged(rows, ("mechanism", "d"), "norm")
    centred = runs.averaged(rows, ("mechanism", "d"), "norm about the mean")
    table: Json = {
        name: {
            "published": noise.published,
            "bound in the table": noise.bound,
            "what is true": noise.truth,
            "exponent expected": noise.exponent,
            "exponent": exponent([m for m in raw if m["mechanism"] == name]),
            "exponent about the mean": exponent([m for m in centred if m["mechanism"] == name]),
            "norm": {m["d"]: m["mean"] for m in raw if m["mechanism"] == name},
            "norm about the mean": {m["d"]: m["mean"] for m in centred if m["mechanism"] == name},
        }
        for name, noise in NOISES.items()
    }
    runs.write(asked.output / NAME, rows, settings | {"table": table})
    picture(asked.output / f"{NAME}.png", table)
    asked.finish(NAME, ".json .csv .png", results_of(table))


def results_of(table: Json) -> Iterator[str]:
    """Yield the exponents as lines of text."""
    for name, row in table.items():
        size, norm = list(row["norm about the mean"].items())[-1]
        yield f"{name}: d^{row['exponent about the mean']:.2f}, norm about the mean {norm:.4g} at d = {size}"


def picture(path: Path, table: Json) -> None:
    """Draw the norms about the mean against d."""
    figure, (ax,) = pictures.panels(1, width=7.6, height=5)
    for name in NOISES:
        points = table[name]["norm about the mean"]
        slope = f"{name}: d^{table[name]['exponent about the mean']:.2f}"
        ax.plot(list(points), list(points.values()), label=slope, **pictures.style(name))
    ax.set(yscale="log", xlabel="d", ylabel="spectral norm of the noise about its mean, units of C²")
    ax.set_title("Dashed: as published. Solid: ours, proved.\nEpsilon 1, delta 1e-6 where one is taken.", fontsize=9)
    pictures.finish_single(figure, ax, list(points), path)


if __name__ == "__main__":
    cli.execute(main)
