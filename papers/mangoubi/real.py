"""The real orbit, drawn by rejection for small d: what the real part of the unitary orbit's release gives away, or not.

The second moment A is real. So the exponential mechanism could be run on the real orbit, ``H = Q diag(gamma) Q^T`` with
Q orthogonal, of density proportional to ``exp(alpha tr(A H))``. The proof of :mod:`dpdist.literature.orbit` holds for
it word by word, with the same alpha. It has the exact spectrum, which the real part of the unitary release has not.

**Sampler.** Q is drawn from the invariant measure and accepted with probability ``exp(alpha (tr(A H) - m))``, where
``m = sum_i l_i gamma_i`` is the largest trace on the orbit (von Neumann). So what is accepted has exactly this law. The
rate of acceptance is the normaliser of the law over ``exp(alpha m)``. By Laplace's method it falls like
``alpha^(-d(d-1)/4)`` where all eigenvalues are apart: one factor ``alpha^(-1/2)`` for each pair.

**An identity** that every draw is tested by, whatever d. Turn H by ``exp(tB)``, ``B = e_i e_j^T - e_j e_i^T``: the
invariant measure stays as it is. So the derivative at t = 0 of ``E h(exp(tB) H exp(-tB)) exp(alpha tr(A .))`` is 0 for
every h. With A = diag(l) and h(H) = H_ij that is

    E(H_ii - H_jj) = 2 alpha (l_i - l_j) E(H_ij²),

and on the unitary orbit the same with (Re H_ij)². So the off-diagonal error of the real orbit and that of Re H agree
wherever their diagonals do: to first order both cost ``(gamma_i - gamma_j) / (alpha (l_i - l_j))`` for each pair. What
is left between them is the second order: Re H has a spectrum that is a little drawn together.

    python -m papers.mangoubi.real --workers 2

draws both and writes ``mangoubi_real`` as ``.json`` and ``.csv``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import cli
from dpdist.core.noise.entropy import SYSTEM
from dpdist.literature.orbit_sampler import hermitian
from papers.common import runs
from papers.common.command import Asked, experiment
from papers.common.runs import Json

Floats = npt.NDArray[np.float64]

NAME = "mangoubi_real"
_BATCH = 4096
_NAMES = (
    "d", "alpha times the range of A", "draws", "accepted of the proposals", "squared error, real orbit",
    "squared error, Re H", "largest eigenvalue of Re H",
)  # fmt: skip
CASES = [(size, reach) for size in (2, 3, 4) for reach in (1.0, 3.0, 10.0, 30.0)]
"""d, and alpha times the largest difference of eigenvalues of A; on the widest orbit, gamma = 1 ... 0 evenly."""


def haar(size: int, count: int, source: np.random.Generator) -> Floats:
    """Return orthogonal matrices from the invariant measure, (count, d, d)."""
    frames, triangles = np.linalg.qr(source.normal(size=(count, size, size)))
    signs: Floats = np.sign(np.diagonal(triangles, axis1=1, axis2=2))
    return np.asarray(frames * signs[:, None, :])


def real_orbit(levels: Floats, spectrum: Floats, count: int, source: np.random.Generator) -> tuple[Floats, int]:
    """Draw from the real orbit.

    Parameters
    ----------
    levels
        alpha l, (d,), descending: the eigenvalues of alpha A, which is diagonal.
    spectrum
        gamma, (d,), descending.
    count
        How many.
    source
        Where randomness comes from: this is an experiment, and no release.

    Returns
    -------
    tuple of ndarray and int
        The draws, (count, d, d), and how many were proposed for them.
    """
    kept: list[Floats] = []
    proposed, have, largest = 0, 0, float(levels @ spectrum)
    while have < count:
        frames = haar(levels.size, _BATCH, source)
        traces = np.einsum("i,nij,j->n", levels, frames**2, spectrum)
        taken = np.flatnonzero(np.log(source.random(_BATCH)) < traces - largest)[: count - have]
        # of the last batch only those proposals count that came before the last one taken
        proposed += _BATCH if have + taken.size < count else int(taken[-1]) + 1
        kept.append(frames[taken])
        have += taken.size
    every = np.concatenate(kept)
    return np.einsum("nij,j,nkj->nik", every, spectrum, every), proposed


def compared(cell: Json, _: Any) -> Json:
    """Draw both releases and return their mean squared errors about the exact matrix of the orbit, and the cost."""
    size, reach, count, source = cell["d"], cell["reach"], cell["draws"], np.random.default_rng()
    spectrum = np.linspace(1, 0, size)
    levels = reach * spectrum
    drawn, proposed = real_orbit(levels, spectrum, count, source)
    parts = np.array([hermitian(spectrum, levels, SYSTEM).real for _ in range(count)])
    goal = np.diag(spectrum)
    largest = np.linalg.eigvalsh(parts)[:, -1]

    def squared(found: Floats) -> list[float]:
        errors = np.sum((found - goal) ** 2, axis=(1, 2))
        return [float(f"{v:.4g}") for v in (errors.mean(), errors.std() / math.sqrt(count))]

    return {
        "alpha times the range of A": reach,
        "accepted of the proposals": float(f"{count / proposed:.3g}"),
        "squared error, real orbit": squared(drawn),
        "squared error, Re H": squared(parts),
        "largest eigenvalue of Re H": float(f"{largest.mean():.4g}"),
    }


@experiment(__doc__, "a minute", runs=2000, quick=50, of="draws from each orbit")
def main(asked: Asked) -> None:
    """Draw every case and write the results."""
    cases = [case for case in CASES if not asked.quick or case[0] == CASES[0][0]]
    cells = [{"d": size, "reach": reach, "draws": asked.runs} for size, reach in cases]
    settings: Json = {"paper": "Mangoubi et al. 2022, the real orbit", "quick": asked.quick}
    with runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store, asked.cluster.connected() as executor:
        found = runs.run(executor, store, compared, cells, label="Orbits")
    table = [{name: one[name] for name in _NAMES} for one in found]
    runs.write(asked.output / NAME, table, table)
    asked.finish(NAME, ".json .csv", results_of(table))


def results_of(table: list[Json]) -> Iterator[str]:
    """Yield the errors as lines of text."""
    for one in table:
        yield (
            f"d = {one['d']}, alpha range {one['alpha times the range of A']:g}: accepted "
            f"{one['accepted of the proposals']:.2g}, squared error of the real orbit "
            f"{one['squared error, real orbit'][0]:.3f}, of Re H {one['squared error, Re H'][0]:.3f}"
        )


if __name__ == "__main__":
    cli.execute(main)
