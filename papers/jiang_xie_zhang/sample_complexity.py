"""Jiang, Xie & Zhang (2016), theorems 7 and 8: how many rows the top eigenvector takes, measured and as proved.

The moment of n rows is n times a fixed one with eigenvalues 1/2, 1/5 and a flat rest. For every draw of a noise the
least n is found from which on the private top eigenvector has an inner product of at least rho with the true one; the
quantile of 1 - eta over the draws is the sample complexity. The exponential mechanism (PPCA, exact for one component)
is asked anew for every n. Theorem 7 bounds the noise of Jiang, Xie & Zhang, theorem 8 quotes PPCA::

    python -m papers.jiang_xie_zhang.sample_complexity --workers 2

It writes ``jiang_xie_zhang_samples`` as ``.json``, ``.csv`` (every draw) and ``.png``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from dpdist import RowBound, cli
from dpdist.answers.eigen import top_eigenpairs
from dpdist.core.mechanisms.base import Additive
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.triangle import rounded, unpacked
from papers.common import pictures, runs
from papers.common.answers import PublicMoment, private_components, request_for
from papers.common.command import Asked, experiment
from papers.common.data import Floats
from papers.common.runs import Json

NAME = "jiang_xie_zhang_samples"
EPSILON, DELTA = "1", "1e-6"
RHO, ETA = 0.9, 0.1
FIRST, SECOND = 0.5, 0.2
SIZES = (8, 16, 32, 64, 128)
LARGEST = 2.0**24
PRECISION = 1.005
DRAWS, BATCH = 400, 50
ANSWERS = 100
"""Of PPCA about one n."""
MECHANISMS = ("laplace-published", "jiang-wishart", "two-sided-wishart", "nuclear", "ppca", "wishart", "gaussian")
LARGEST_NUCLEAR = 32
"""A draw of `nuclear` takes seconds at 64 columns and a minute at 128."""
_BOUNDS = {"theorem 7": "jiang-wishart", "theorem 7, mended": "jiang-wishart", "theorem 8": "ppca"}
"""Of which mechanism each says how many rows suffice."""


def theorem_7(d: int) -> float:
    """Return the number of rows that theorem 7 asks for.

    Examples
    --------
    >>> round(theorem_7(16))
    6188
    """
    log = math.log(d / ETA)
    edge = d + 1 + math.sqrt(2 * (d + 1) * (d + 2) * log) + 2 * d * log
    return 3 * edge / (2 * float(EPSILON) * (1 - RHO**2) * (FIRST - SECOND))


def theorem_7_mended(d: int) -> float:
    """Return the number of rows after the correction of theorem 7.

    The proof bounds ``|P - P'|_F``, which is ``sqrt(2 (1 - rho²))`` for an inner product of rho, and prints its square.
    So ``1 - rho²`` becomes ``sqrt((1 - rho²) / 2)``: 1.6, 5.0 and 15.8 times fewer rows at rho .9, .99 and .999.

    Examples
    --------
    >>> [round((2 * (1 - rho**2)) ** -0.5, 1) for rho in (0.9, 0.99, 0.999)]
    [1.6, 5.0, 15.8]
    """
    return theorem_7(d) * math.sqrt(2 * (1 - RHO**2))


def theorem_8(d: int) -> float:
    """Return the number of rows that theorem 8 asks for, after Chaudhuri, Sarwate & Sinha."""
    gap = FIRST - SECOND
    terms = math.log(1 / ETA) / d + math.log(4 * FIRST / ((1 - RHO**2) * gap))
    return d * terms / (float(EPSILON) * (1 - RHO) * gap)


def per_row(d: int) -> Floats:
    """Return the eigenvalues of the moment of one row; they sum to 1."""
    values = np.full(d, (1 - FIRST - SECOND) / (d - 2))
    values[:2] = FIRST, SECOND
    return values


def least(enough: Any) -> float:
    """Return the least n that is enough, within the precision, or infinity."""
    low, high = 1.0, LARGEST
    if not enough(high):
        return math.inf
    while high > low * PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def complexity(cell: Json, _: Any) -> Json:
    """Return the least n for every draw of a batch of noise, or for PPCA that of the share 1 - eta of its answers."""
    d = cell["d"]
    bound = RowBound(d, 1.0, 12)
    values = per_row(d)
    request = request_for(cell["mechanism"], (EPSILON, DELTA), bound, {"components": 1})

    def answered(n: float) -> bool:
        moment = PublicMoment(rounded(np.diag(n * values / bound.unit**2)), bound, round(n))
        hits = sum(abs(private_components(request, moment, 1)[0, 0]) >= RHO for _ in range(cell["draws"]))
        return bool(hits >= (1 - ETA) * cell["draws"])

    def enough(noise: Floats) -> float:
        return least(lambda n: abs(top_eigenpairs(np.diag(n * values) + noise, 1)[1][0, 0]) >= RHO)

    if cell["mechanism"] == "ppca":
        return {"rows": [least(answered)]}
    drawn = cast("Additive", planned(request, Dimensions(d)).moment).draws(cell["draws"], SYSTEM)
    return {"rows": [enough(unpacked(triangle, d).astype(np.float64) * bound.unit**2) for triangle in drawn]}


@experiment(__doc__, "4 minutes", runs=DRAWS, quick=BATCH, of="draws of each noise")
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    sizes = (8, 16) if asked.quick else SIZES
    settings: Json = {
        "paper": "Jiang, Xie & Zhang 2016, theorems 7 and 8", "quick": asked.quick, "epsilon": EPSILON, "delta": DELTA,
        "neighbours": "replace-one", "rho": RHO, "eta": ETA, "eigenvalues": [FIRST, SECOND, "flat"],
    }  # fmt: skip
    cells = [
        {"mechanism": name, "d": d, "batch": batch, "draws": ANSWERS if name == "ppca" else BATCH}
        for name in MECHANISMS
        for d in sizes
        if name != "nuclear" or d <= LARGEST_NUCLEAR
        for batch in range(1 if name == "ppca" else -(-asked.runs // BATCH))
    ]
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        batches = runs.run(executor, store, complexity, cells, label="Sample complexity")
    rows = [{"mechanism": b["mechanism"], "d": b["d"], "rows": found} for b in batches for found in b["rows"]]
    bounds = {"theorem 7": theorem_7, "theorem 7, mended": theorem_7_mended, "theorem 8": theorem_8}
    table: Json = {name: {d: bound(d) for d in sizes} for name, bound in bounds.items()}
    for name in MECHANISMS:
        needed = {d: [r["rows"] for r in rows if (r["mechanism"], r["d"]) == (name, d)] for d in sizes}
        table[name] = {d: float(np.quantile(found, 1 - ETA, method="higher")) for d, found in needed.items() if found}
    shares = {d: fewer(rows, d) for d in table["nuclear"]}
    printed = [row | {"rows": f"{row['rows']:.4g}"} for row in rows]
    runs.write(asked.output / NAME, printed, settings | {"rows needed": table, "fewer by nuclear": shares})
    picture(asked.output / f"{NAME}.png", table)
    asked.finish(NAME, ".json .csv .png", results_of(table, shares))


def fewer(rows: list[Json], d: int) -> tuple[float, float]:
    """Return by how much the mean of `nuclear` is below that of `two-sided-wishart`, and the standard error, in %.

    Examples
    --------
    >>> drawn = [("two-sided-wishart", 10.0), ("two-sided-wishart", 30.0), ("nuclear", 15.0), ("nuclear", 15.0)]
    >>> fewer([{"mechanism": name, "d": 8, "rows": n} for name, n in drawn], 8)
    (25.0, 37.5)
    """
    one, other = (
        np.array([row["rows"] for row in rows if (row["mechanism"], row["d"]) == (name, d)])
        for name in ("nuclear", "two-sided-wishart")
    )
    ratio = one.mean() / other.mean()
    relative = math.hypot(*(each.std(ddof=1) / each.mean() / math.sqrt(each.size) for each in (one, other)))
    return round(100 * float(1 - ratio), 1), round(100 * float(ratio * relative), 1)


def results_of(table: Json, shares: Json) -> Iterator[str]:
    """Yield the rows needed as lines of text, and how many fewer `nuclear` takes."""
    for name, found in table.items():
        yield f"{name}: {', '.join(f'{n:.0f} at d = {d}' for d, n in found.items())}"
    told = ", ".join(f"{share} ± {error} % fewer at d = {d}" for d, (share, error) in shares.items())
    yield f"nuclear against two-sided-wishart, mean of the draws: {told}"


def picture(path: Path, table: Json) -> None:
    """Draw the rows needed against d."""
    figure, (ax,) = pictures.panels(1, width=7.6, height=5)
    for name, found in table.items():
        look = pictures.style(_BOUNDS.get(name, name))
        look |= {"ls": "-." if "mended" in name else ":", "marker": ""} if name in _BOUNDS else {}
        ax.plot(list(found), list(found.values()), label=name, **look)
    ax.set(yscale="log", xlabel="d", ylabel="rows n")
    words = f"Rows for an inner product of {RHO} with the top eigenvector (probability {1 - ETA:g}, epsilon {EPSILON})"
    ax.set_title(
        f"{words}.\nDotted: bounds in the paper (dash-dot: mended). Dashed: its mechanisms. Solid: ours.", fontsize=8
    )
    pictures.finish_single(figure, ax, list(found), path)


if __name__ == "__main__":
    cli.execute(main)
