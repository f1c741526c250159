"""Facts that the papers quote, checked on random cases: the largest quotient of the two sides, which is at most 1.

The statements as the papers use them: Davis & Kahan and Weyl (Jiang, Xie & Zhang, lemmas 3 and 4); the singular value
decomposition, Laurent & Massart, Merikoski, Sarria & Tarazaga, von Neumann, the bound on a trace and Hadamard
(Chanyaswad et al., theorem 1 and lemmas 1 to 5); the Laplace and the exponential mechanism, the utility of the latter,
and packing numbers beside covering numbers (Mangoubi et al., theorems 5.2 to 5.4, and (4))::

    python -m papers.quoted

It writes ``quoted`` as ``.json`` and ``.csv``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from dpdist import cli
from papers.common import runs
from papers.common.command import Asked, experiment
from papers.common.runs import Json

NAME, SEED = "quoted", 39
Source = np.random.Generator


def sin_theta(source: Source) -> float:
    """``|P - P'|_2 <= 2 |W|_2 / gap`` where the gap is at least ``2 |W|_2``."""
    values, noise = np.sort(source.exponential(size=6))[::-1], source.normal(size=(6, 6))
    noise = (noise + noise.T) * source.uniform(0, 0.25)
    gap = values[1] - values[2]
    if gap < 2 * np.linalg.norm(noise, 2):
        return 0.0
    turned = np.linalg.eigh(np.diag(values) + noise)[1][:, -2:]
    distance = np.linalg.norm(np.diag([1.0, 1, 0, 0, 0, 0]) - turned @ turned.T, 2)
    return float(distance * gap / (2 * np.linalg.norm(noise, 2)))


def weyl(source: Source) -> float:
    """Move eigenvalues by at most ``|W|_2``."""
    a, w = (part + part.T for part in source.normal(size=(2, 6, 6)))
    moved = np.abs(np.linalg.eigvalsh(a + w) - np.linalg.eigvalsh(a)).max()
    return float(moved / np.linalg.norm(w, 2))


def decomposition(source: Source) -> float:
    """Return the error of ``A = U S V^T`` over 1e-12 of the norm."""
    a = source.normal(size=(6, 4))
    u, s, v = np.linalg.svd(a, full_matrices=False)
    return float(np.linalg.norm(a - (u * s) @ v) / (1e-12 * np.linalg.norm(a)))


def laurent_massart(source: Source) -> float:
    """``P(|N|_F² > m + 2 sqrt(m x) + 2 x) <= exp(-x)`` for m entries: the share of 10000 draws, less 5 deviations."""
    m, x = int(source.integers(1, 30)), source.uniform(0, 3)
    share = float(np.mean(source.chisquare(m, size=10_000) > m + 2 * math.sqrt(m * x) + 2 * x))
    return max(0.0, share - 5 * math.sqrt(share / 10_000)) * math.exp(x)


def merikoski(source: Source) -> float:
    """``sigma_i <= |A|_F / sqrt(i)``."""
    a = source.normal(size=(6, 5))
    return float((np.linalg.svd(a)[1] * np.sqrt(np.arange(1, 6))).max() / np.linalg.norm(a))


def von_neumann(source: Source) -> float:
    """``|tr A B| <= sum sigma_i(A) sigma_i(B)``."""
    a, b = source.normal(size=(2, 5, 5))
    return float(abs(np.trace(a @ b)) / (np.linalg.svd(a)[1] @ np.linalg.svd(b)[1]))


def trace(source: Source) -> float:
    """``|tr A| <= sum sigma_i``."""
    a = source.normal(size=(5, 5))
    return float(abs(np.trace(a)) / np.linalg.svd(a)[1].sum())


def hadamard(source: Source) -> float:
    """``|det A| <= prod |a_i|``."""
    a = source.normal(size=(4, 4))
    return float(abs(np.linalg.det(a)) / np.prod(np.linalg.norm(a, axis=0)))


def laplace(source: Source) -> float:
    """Laplace noise of scale Delta / epsilon: the largest log ratio of densities over epsilon."""
    epsilon, moved = source.uniform(0.1, 3), source.normal(size=4)
    scale = np.abs(moved).sum() / epsilon
    places = source.normal(size=(1000, 4)) * 10 * scale
    return float(np.abs((np.abs(places - moved) - np.abs(places)).sum(axis=1)).max() / scale / epsilon)


def exponential(source: Source) -> float:
    """Density ``exp(epsilon u / 2 Delta)`` on 20 answers: the largest log ratio over epsilon."""
    epsilon, u, moved = source.uniform(0.1, 3), 3 * source.normal(size=20), source.uniform(-1, 1, size=20)
    logs = [epsilon * each / 2 - np.log(np.exp(epsilon * each / 2).sum()) for each in (u, u + moved)]
    return float(np.abs(logs[0] - logs[1]).max() / epsilon)


def utility(source: Source) -> float:
    """Be ``2 (log(20) + t) / epsilon`` below the best of 20 with probability at most ``exp(-t)``, Delta = 1."""
    epsilon, t, u = source.uniform(0.1, 3), source.uniform(0, 2), 5 * source.normal(size=20)
    share = np.exp(epsilon * u / 2) / np.exp(epsilon * u / 2).sum()
    return float(share[u <= u.max() - 2 * (math.log(20) + t) / epsilon].sum() * math.exp(t))


def packing_covering(source: Source) -> float:
    """Cover with at most as many balls as points can be farther apart than r; and of these, by 2r, at most as many."""
    points, radius = source.normal(size=(8, 2)), source.uniform(0.2, 2)
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    chosen = (np.arange(1, 2**8)[:, None] >> np.arange(8)) & 1  # every set of points
    sizes = chosen.sum(axis=1)

    def packed(apart: float) -> int:
        near = (distances <= apart) & ~np.eye(8, dtype=bool)
        return int(sizes[np.einsum("si,ij,sj->s", chosen, near.astype(int), chosen) == 0].max())

    covered = int(sizes[(chosen @ (distances <= radius) > 0).all(axis=1)].min())
    return max(covered / packed(radius), packed(2 * radius) / covered)


FACTS: dict[str, Callable[[Source], float]] = {
    "sin theta": sin_theta, "Weyl": weyl, "singular values": decomposition, "Laurent & Massart": laurent_massart,
    "Merikoski et al.": merikoski, "von Neumann": von_neumann, "trace": trace, "Hadamard": hadamard,
    "Laplace mechanism": laplace, "exponential mechanism": exponential, "its utility": utility,
    "packing and covering": packing_covering,
}  # fmt: skip


@experiment(__doc__, "3 seconds", runs=2000, quick=50, of="random cases of each fact")
def main(asked: Asked) -> None:
    """Check them."""
    source = np.random.default_rng(SEED)
    table: list[Json] = [
        {"fact": name, "cases": asked.runs, "largest quotient": max(fact(source) for _ in range(asked.runs))}
        for name, fact in FACTS.items()
    ]
    runs.write(asked.output / NAME, table, table)
    asked.finish(NAME, ".json .csv", results_of(table))


def results_of(table: list[Json]) -> Iterator[str]:
    """Yield the quotients as lines of text."""
    for one in table:
        verdict = "holds" if one["largest quotient"] <= 1 + 1e-9 else "FAILS"
        yield f"{one['fact']}: {verdict}, largest quotient {one['largest quotient']:.4f} in {one['cases']} cases"


if __name__ == "__main__":
    cli.execute(main)
