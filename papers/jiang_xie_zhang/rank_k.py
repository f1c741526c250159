"""Jiang, Xie & Zhang (2016): error of rank k beside two other methods, and one component beside the Bingham law.

The paper says that its bound is better than those of Kapralov & Talwar (2013) and of Hardt & Price (2014) at rank k.
Measured is ``|A - A_k|_2`` for a moment with k equal eigenvalues at d = 24, epsilon 1, replace-one, rows in the unit
ball. Kapralov & Talwar draw k unit vectors of density ``exp(c x^T C x)``, each from what the earlier ones leave, and an
eigenvalue with Laplace noise for each. The range of ``x^T D x`` is 2 and an eigenvalue moves by at most 1, so c is
``epsilon / (4 k)`` and the scale ``2 k / epsilon``. Hardt & Price's pure version is the power method with Laplace noise
in each of 4 rounds: the change of ``A X`` has Frobenius norm at most sqrt(2) (1 for k = 1), so its l1 norm is at most
sqrt(d k) times that. Their neighbours differ by 1 in spectral norm, which is more.

One vector of the Bingham law (`bingham`) and the first component of `two-sided-wishart` are then compared where one
eigenvalue stands over a flat rest, by the gap over ``d nuclear sensitivity / epsilon``; and two of each, over the same
rest::

    python -m papers.jiang_xie_zhang.rank_k --workers 2

It writes ``jiang_xie_zhang_rank_k`` as ``.json``, ``.csv`` (every draw, to four digits) and ``.png``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpdist import RowBound, cli
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.floats import exponentials, haar
from dpdist.core.triangle import rounded
from dpdist.literature.bingham import bingham
from papers.common import pictures, runs
from papers.common.answers import PublicMoment, low_rank, private_components, private_moment, request_for
from papers.common.command import Asked, experiment
from papers.common.data import Floats
from papers.common.runs import Json

NAME = "jiang_xie_zhang_rank_k"
SIZE, RANKS, EPSILON = 24, (1, 2, 4, 8), 1.0
HIGH = 1000.0
"""The k equal eigenvalues, in squared clip norms; the others are 0."""
BATCH = 50
ROUNDS = 4
"""Of the power method: public."""
METHODS = ("jiang-wishart", "two-sided-wishart", "Kapralov & Talwar", "Hardt & Price")
SIZES, GAPS = ((16, 1), (32, 1), (64, 1), (32, 2)), (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 3.0)
ONE = ("bingham", "two-sided-wishart")


def laplace(shape: tuple[int, ...], scale: float) -> Floats:
    """Draw Laplace noise."""
    count = math.prod(shape)
    return scale * (exponentials(count, SYSTEM) - exponentials(count, SYSTEM)).reshape(shape)


def kapralov_talwar(moment: Floats, k: int) -> Floats:
    """Return the private matrix of rank k of Kapralov & Talwar, with exact draws of the vectors."""
    left, found = moment.copy(), np.zeros_like(moment)
    for _ in range(k):
        vector = bingham(EPSILON / (4 * k) * left, 1, SYSTEM)[0]
        value = float(vector @ left @ vector) + float(laplace((1,), 2 * k / EPSILON)[0])
        found += value * np.outer(vector, vector)
        left -= value * np.outer(vector, vector)
    return found


def hardt_price(moment: Floats, k: int) -> Floats:
    """Return the private matrix of rank k of the last round of the power method with Laplace noise."""
    basis = haar(len(moment), k, SYSTEM)
    scale = ROUNDS * math.sqrt(len(moment) * k * (1 if k == 1 else 2)) / EPSILON
    product = basis
    for round_ in range(ROUNDS):
        basis = np.linalg.qr(product)[0] if round_ else basis
        product = moment @ basis + laplace(basis.shape, scale)
    return low_rank((product @ basis.T + basis @ product.T) / 2, k)


def errors(cell: Json, _: Any) -> Json:
    """Return ``|A - A_k|_2`` of a batch of answers."""
    return {"values": [error(cell["method"], cell["k"]) for _ in range(cell["draws"])]}


def error(method: str, k: int) -> float:
    """Answer once and return ``|A - A_k|_2``."""
    bound = RowBound(SIZE, 1.0, 16)
    truth = np.diag(np.where(np.arange(SIZE) < k, HIGH, 0.0))
    if method == "Kapralov & Talwar":
        answer = kapralov_talwar(truth, k)
    elif method == "Hardt & Price":
        answer = hardt_price(truth, k)
    else:
        request = request_for(method, (f"{EPSILON:g}", "0"), bound, {})
        answer = low_rank(private_moment(request, PublicMoment(rounded(truth / bound.unit**2), bound, 0)), k)
    return float(np.linalg.norm(truth - answer, 2))


def cosines(cell: Json, _: Any) -> Json:
    """Return the squared cosines with the true components of a batch of answers, their mean if there are two."""
    d, k, bound = cell["d"], cell["k"], RowBound(cell["d"], 1.0, 16)
    gap = cell["gap"] * d * 2 / EPSILON
    moment = PublicMoment(rounded(np.diag(np.where(np.arange(d) < k, gap + 1, 1.0)) / bound.unit**2), bound, 0)
    request = request_for(cell["method"], (f"{EPSILON:g}", "0"), bound, {"components": k})
    drawn = (private_components(request, moment, k) for _ in range(cell["draws"]))
    return {"values": [float((found[:, :k] ** 2).sum() / k) for found in drawn]}


@experiment(__doc__, "a minute", runs=400, quick=4, of="answers of each method")
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    sizes = SIZES[:1] if asked.quick else SIZES
    settings: Json = {
        "paper": "Jiang, Xie & Zhang 2016, low rank approximation", "quick": asked.quick, "epsilon": EPSILON,
        "neighbours": "replace-one", "d at rank k": SIZE, "eigenvalues at rank k": HIGH, "rounds": ROUNDS,
    }  # fmt: skip
    batches = [min(BATCH, asked.runs - done) for done in range(0, asked.runs, BATCH)]
    ranked = [
        {"method": method, "k": k, "batch": batch, "draws": draws}
        for method in METHODS
        for k in RANKS
        for batch, draws in enumerate(batches)
    ]
    alone = [
        {"method": method, "d": d, "k": k, "gap": gap, "batch": batch, "draws": draws}
        for method in ONE
        for d, k in sizes
        for gap in GAPS
        for batch, draws in enumerate(batches)
    ]
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        of_rank = flat(runs.run(executor, store, errors, ranked, label="Rank k"), ("method", "k"))
        of_one = flat(runs.run(executor, store, cosines, alone, label="Components"), ("method", "d", "k", "gap"))
    means = (
        runs.averaged(of_rank, ("method", "k"), "value"),
        runs.averaged(of_one, ("method", "d", "k", "gap"), "value"),
    )
    table = [one | {"value": f"{one['value']:.4g}"} for one in of_rank + of_one]
    runs.write(asked.output / NAME, table, settings | {"errors": means[0], "squared cosines": means[1]})
    picture(asked.output / f"{NAME}.png", *means)
    asked.finish(NAME, ".json .csv .png", results_of(*means))


def flat(batches: list[Json], names: tuple[str, ...]) -> list[Json]:
    """Return one row for each answer."""
    return [{name: b[name] for name in names} | {"value": value} for b in batches for value in b["values"]]


def results_of(ranked: list[Json], alone: list[Json]) -> Iterator[str]:
    """Yield the means as lines of text."""
    for method in METHODS:
        found = ", ".join(f"{one['mean']:.0f} at k = {one['k']}" for one in ranked if one["method"] == method)
        yield f"|A - A_k|_2, {method}: {found}"
    for d, k in dict.fromkeys((one["d"], one["k"]) for one in alone):
        for method in ONE:
            mine = [one for one in alone if (one["method"], one["d"], one["k"]) == (method, d, k)]
            found = ", ".join(f"{one['mean']:.2f} at gap {one['gap']:g}" for one in mine)
            yield f"squared cosine, d = {d}, k = {k}, {method}: {found}"


def picture(path: Path, ranked: list[Json], alone: list[Json]) -> None:
    """Draw the errors against k, and the squared cosines against the gap."""
    figure, (left, right) = pictures.panels(2)
    looks = dict(zip(METHODS[2:], (("--", pictures.PURPLE), ("--", pictures.GREEN)), strict=True))
    for method in METHODS:
        mine = [one for one in ranked if one["method"] == method]
        look = {"ls": looks[method][0], "color": looks[method][1], "marker": "^"} if method in looks else (
            pictures.style(method)
        )  # fmt: skip
        left.plot([one["k"] for one in mine], [one["mean"] for one in mine], label=method, **look)
    left.set(yscale="log", xlabel="k", ylabel="error of rank k, spectral norm, units of C²")
    left.set_title(f"d = {SIZE}, epsilon {EPSILON:g}, k eigenvalues of {HIGH:g}. Dashed: as published", fontsize=9)
    pictures.mark(left, RANKS)
    shades = ("-", "--", ":", "-.")
    for style, (d, k) in zip(shades, dict.fromkeys((one["d"], one["k"]) for one in alone), strict=False):
        for method, colour in zip(ONE, (pictures.PURPLE, pictures.RED), strict=True):
            mine = [one for one in alone if (one["method"], one["d"], one["k"]) == (method, d, k)]
            x, y = [one["gap"] for one in mine], [one["mean"] for one in mine]
            right.plot(x, y, ls=style, color=colour, label=f"{method}, d = {d}, k = {k}")
    right.set(xlabel="gap over d times the nuclear sensitivity over epsilon", ylabel="squared cosine")
    right.set_title("k equal eigenvalues over a flat rest", fontsize=9)
    for ax in (left, right):
        ax.grid(alpha=0.3)
        ax.legend(fontsize=7)
    pictures.save(figure, path)


if __name__ == "__main__":
    cli.execute(main)
