"""Jiang, Xie & Zhang (2016): lemma 1 and theorems 5, 6, 9 and 10, as numbers and as measured.

Noise of their mechanism (published) and of its repair is drawn about a moment with k equal eigenvalues::

    python -m papers.jiang_xie_zhang.theorems --workers 2

It writes ``jiang_xie_zhang_theorems`` as ``.json`` (bounds beside what was measured), ``.csv`` and ``.png``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import betainc

from dpdist import RowBound, cli
from dpdist.answers.eigen import top_eigenpairs
from dpdist.core.triangle import Triangle
from papers.common import pictures, runs, wishart_bounds
from papers.common.answers import PublicMoment, private_moment, request_for
from papers.common.command import Asked, experiment
from papers.common.runs import Json

NAME = "jiang_xie_zhang_theorems"
SIZES, COMPONENTS, DRAWS = (8, 16, 32, 64, 128, 256), (1, 2, 4), 20
EPSILON, FAILURE = 1.0, 0.05
GAP = 40.0
"""Of the eigenvalues of the moment, in multiples of d C² / epsilon: theorem 6 asks for twice the norm of the noise."""
METHODS = ("jiang-wishart", "two-sided-wishart", "laplace-published")


def sparsity_rule(size: int) -> float:
    """Return the ratio of sensitivities, l1 to nuclear, above which theorem 5 takes Wishart noise: ``sqrt d log d``."""
    return math.sqrt(size) * math.log(size)


def subspace_bound(norm: float, components: int, gap: float) -> float | None:
    """Bound ``|P - P'|_F`` by theorem 6, ``2 sqrt k |W| / gap``, or return None where it says nothing.

    The paper's proof goes through sin theta, ``|sin theta|_2 <= 2 |W| / gap`` here, and takes ``|P - P'|_F`` for
    ``|sin theta|_F``. It is sqrt(2) times that, so the proof gives ``2 sqrt(2k) |W| / gap``. The statement still holds:
    ``|sin 2 theta|_2 <= 2 |W| / gap`` (Davis & Kahan 1970), and no principal angle exceeds 45° where
    ``gap >= 2 |W|``, so ``sin theta <= sin 2 theta / sqrt(2)`` and ``|P - P'|_F <= sqrt(2k) sin theta``.
    """
    return 2 * math.sqrt(components) * norm / gap if gap >= 2 * norm else None


def low_rank_bound(size: int, next_eigenvalue: float, epsilon: float, failure: float) -> float:
    """Bound ``|A - (A + W)_k|_2`` by theorem 9 with the constant of lemma 1: ``lambda_(k+1) + |W|_2``.

    The noise of algorithm 2 has scale ``3/(2 epsilon)`` and d + 1 columns.
    """
    norm = wishart_bounds.lemma_1(size, size + 1, 1.5 / epsilon, failure)
    return wishart_bounds.low_rank_error(norm, next_eigenvalue, semidefinite=True)


def low_rank_lower_bound(size: int, epsilon: float) -> float:
    """Return an error that every epsilon-private answer exceeds with probability 1/2 for some moment (theorem 10).

    The moment has rank 1, so the number bounds ``|A - A_k|_2`` from below for every k >= 1, and ``lambda_(k+1) = 0``.
    Replace-one, rows of norm at most 1, C = 1. The paper prints the inequality the wrong way round (an upper bound
    by Omega) and leaves the constant open.

    *Proof.* The share of the lines of R^d within sine s of one is ``I(s²; (d-1)/2, 1/2)``, the regularised incomplete
    beta function, so a largest set of lines pairwise farther apart than s has at least N = 1/I of them. Let
    A_i = g y_i y_i^T, g copies of a unit row: ``|A_i - A_j|_2 = g sin > g s``, so spectral balls of radius g s/2 are
    disjoint. If every A_i were answered within g s/2 with probability above 1/2, then from A_1, g rows away, each ball
    would have probability above ``exp(-g epsilon) / 2``: N exp(-g epsilon) < 2. For ``g <= log(N/2) / epsilon`` that
    is false. The best s and whole g are taken. ∎

    Examples
    --------
    >>> low_rank_lower_bound(1, 1.0)
    0.0
    """
    best = 0.0
    for s in np.geomspace(0.01, 1, 400) if size > 1 else ():
        share = float(betainc((size - 1) / 2, 0.5, s * s))
        rows = math.floor((-math.log(share) - math.log(2)) / epsilon) if share > 0 else 0
        best = max(best, rows * float(s) / 2)
    return best


def measured(cell: Json, _: Any) -> Json:
    """Draw one noise and compare subspaces and matrices of rank k of a moment of this rank."""
    size = cell["d"]
    bound = RowBound(size, 1.0, 16)
    empty: Triangle = np.zeros(size * (size + 1) // 2, dtype=np.int64)
    request = request_for(cell["method"], (f"{EPSILON:g}", "0"), bound, {})
    noise = private_moment(request, PublicMoment(empty, bound, 0))
    found: Json = {"norm": float(np.linalg.norm(noise, 2))}
    for k in COMPONENTS:
        truth = np.diag(np.where(np.arange(size) < k, GAP * size / EPSILON, 0.0))
        values, vectors = top_eigenpairs(truth + noise, k)
        exact = np.diag((np.arange(size) < k).astype(float))
        found[f"distance, k = {k}"] = float(np.linalg.norm(vectors.T @ vectors - exact))
        found[f"error, k = {k}"] = float(np.linalg.norm(truth - (vectors.T * values) @ vectors, 2))
    return found


def stated(rows: list[Json], size: int) -> Json:
    """Put the bounds for one number of columns beside what was drawn there."""
    mine = {method: [r for r in rows if (r["method"], r["d"]) == (method, size)] for method in METHODS}
    norms = {method: [r["norm"] for r in found] for method, found in mine.items()}
    # noise for nuclear sensitivity 1 and for l1 sensitivity 1: their quotient is where theorem 5 would have to change
    wishart, laplace = np.mean(norms["two-sided-wishart"]) / 2, np.mean(norms["laplace-published"]) / (2 * size)
    published = mine["jiang-wishart"]
    return {
        "d": size,
        "lemma 1": wishart_bounds.lemma_1(size, size + 1, 1.5 / EPSILON, FAILURE),
        "Gaussian bound": wishart_bounds.wishart_norm(size, size + 1, 1.5 / EPSILON, FAILURE),
        "bound of the repair": wishart_bounds.two_sided_norm(size, 1 / EPSILON, FAILURE),
        "norm, mean": {method: float(np.mean(found)) for method, found in norms.items()},
        "norm, largest": {method: max(found) for method, found in norms.items()},
        "theorem 5, published ratio": sparsity_rule(size),
        "theorem 5, measured ratio": float(wishart / laplace),
        "theorem 6": {
            k: {
                "largest distance": max(r[f"distance, k = {k}"] for r in published),
                "holds": all(
                    r[f"distance, k = {k}"] <= (subspace_bound(r["norm"], k, GAP * size / EPSILON) or math.inf)
                    for r in published
                ),
                "looseness, median": float(
                    np.median(
                        [
                            (subspace_bound(r["norm"], k, GAP * size / EPSILON) or math.nan) / r[f"distance, k = {k}"]
                            for r in published
                        ]
                    )
                ),
            }
            for k in COMPONENTS
        },
        "theorem 9": {
            k: {method: float(np.mean([r[f"error, k = {k}"] for r in mine[method]])) for method in METHODS}
            for k in COMPONENTS
        },
        "theorem 9, bound": low_rank_bound(size, 0.0, EPSILON, FAILURE),
        "theorem 10, lower bound": low_rank_lower_bound(size, EPSILON),
    }


@experiment(__doc__, "15 seconds", runs=DRAWS, quick=3, of="draws of each noise")
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    sizes = (8, 16) if asked.quick else SIZES
    settings: Json = {
        "paper": "Jiang, Xie & Zhang 2016, lemma 1, theorems 5, 6, 9, 10", "quick": asked.quick, "epsilon": EPSILON,
        "neighbours": "replace-one", "failure of the bounds": FAILURE, "gap over d / epsilon": GAP,
    }  # fmt: skip
    cells = [{"method": m, "d": d, "draw": draw} for m in METHODS for d in sizes for draw in range(asked.runs)]
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        rows = runs.run(executor, store, measured, cells, label="Theorems")
    table = [stated(rows, d) for d in sizes]
    runs.write(asked.output / NAME, rows, settings | {"table": table})
    picture(asked.output / f"{NAME}.png", table)
    asked.finish(NAME, ".json .csv .png", results_of(table))


def results_of(table: list[Json]) -> Iterator[str]:
    """Yield bounds beside what was drawn as lines of text."""
    for line in table:
        largest = line["norm, largest"]["jiang-wishart"]
        yield (
            f"d = {line['d']}: norm up to {largest:.4g}, lemma 1 {line['lemma 1']:.4g}, Gaussian bound "
            f"{line['Gaussian bound']:.4g}; theorem 5: ratio {line['theorem 5, published ratio']:.3g} published, "
            f"{line['theorem 5, measured ratio']:.3g} measured"
        )
        for k in COMPONENTS:
            sixth, ninth = line["theorem 6"][k], line["theorem 9"][k]
            yield (
                f"d = {line['d']}, k = {k}: theorem 6 {'holds' if sixth['holds'] else 'FAILS'}, loose by "
                f"{sixth['looseness, median']:.3g}; error of rank k {ninth['jiang-wishart']:.4g}, theorem 9 "
                f"{line['theorem 9, bound']:.4g}; theorem 10 {line['theorem 10, lower bound']:.4g}"
            )


def picture(path: Path, table: list[Json]) -> None:
    """Draw the norm and its bounds, the rule of theorem 5, and rank-k errors between their bounds."""
    figure, axes = pictures.panels(3)
    sizes = [line["d"] for line in table]
    drawn = [
        {"lemma 1": "lemma 1", "Gaussian bound": "Gaussian bound"},
        {"theorem 5, published ratio": "sqrt d log d", "theorem 5, measured ratio": "measured"},
        {"theorem 9, bound": "theorem 9", "theorem 10, lower bound": "theorem 10"},
    ]
    for ax, wanted in zip(axes, drawn, strict=True):
        for (name, label), line_style in zip(wanted.items(), ("--", ":"), strict=True):
            ax.plot(sizes, [line[name] for line in table], line_style, color="black", label=label)
    for method in METHODS[:2]:
        look = pictures.style(method)
        axes[0].plot(sizes, [line["norm, mean"][method] for line in table], label=method, **look)
        errors = [line["theorem 9"][COMPONENTS[-1]][method] for line in table]
        axes[2].plot(sizes, errors, label=method, **look)
    titles = ("norm of the noise", "ratio of sensitivities where Wishart wins", f"error at rank {COMPONENTS[-1]}")
    for ax, title in zip(axes, titles, strict=True):
        ax.set(yscale="log", xlabel="d")
        ax.set_title(title, fontsize=9)
        ax.grid(alpha=0.3)
        ax.legend(fontsize=8)
        pictures.mark(ax, sizes)
    pictures.save(figure, path)


if __name__ == "__main__":
    cli.execute(main)
