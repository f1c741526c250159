"""Mangoubi et al. (2022): algorithms 1 and 2 by exact samplers, measured beside the upper and lower bounds.

The matrices are those of the paper's section 3: multiples of projectors, matrices of a given condition number, and
Wishart matrices, all with largest eigenvalue 1000 (a thousand unit rows along one direction), over dimension, rank and
epsilon. Beside the two algorithms stand the mechanism of Amin et al. and, as what is best to use, symmetrised Wishart
noise cut to the same rank::

    python -m papers.mangoubi.orbits --workers 2

It writes ``mangoubi_orbits`` as ``.json`` (settings, bounds), ``.csv`` (every case) and ``.png``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpdist import RowBound, UsageError, cli
from dpdist.answers.eigen import top_eigenpairs
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.noise.floats import exponentials
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.triangle import packed
from dpdist.literature import orbit_forecast as orbit
from dpdist.literature.orbit import CalibratedLowRankOrbit, CalibratedOrbit
from dpdist.literature.orbit_sampler import hermitian
from papers.common import pictures, runs
from papers.common.answers import NOTICE, PublicMoment, private_moment, request_for
from papers.common.command import Asked, experiment
from papers.common.data import Floats
from papers.common.runs import Json
from papers.mangoubi import rates

NAME = "mangoubi_orbits"
SEED = 2022
LARGEST = 1000.0
FAILURE = 0.05
"""Probability with which an error may exceed the upper bound."""
METHODS = {
    "algorithm 1": "orbit",
    "algorithm 2": "orbit-lowrank",
    "Amin et al.": "amin",
    "two-sided Wishart": "two-sided-wishart",
}


@dataclass(frozen=True)
class Matrix:
    """One of the paper's examples: its family, dimension d and rank k that is asked for."""

    family: str
    size: int
    rank: int

    def levels(self) -> Floats:
        """Return the eigenvalues, (d,), descending from 1000; a rotation would change no error's law."""
        out: Floats = np.zeros(self.size)
        if self.family == "projector":
            out[: self.rank] = LARGEST
        elif self.family.startswith("condition"):
            condition = float(self.family.split()[1])
            out[: self.rank] = LARGEST * np.geomspace(1, 1 / condition, self.rank)
        else:
            rows = np.random.default_rng([SEED, self.size]).normal(size=(2 * self.size, self.size))
            values = np.linalg.eigvalsh(rows.T @ rows)[::-1]
            out[:] = LARGEST * values / values[0]
        return out


MATRICES = (
    *(Matrix("projector", d, k) for d in (8, 16, 32) for k in (1, 2, 4, 8, 16) if 2 * k <= d),
    *(Matrix(f"condition {c}", d, d // 4) for d in (8, 16) for c in (10, 100)),
    *(Matrix("Wishart", d, k) for d in (8, 16) for k in (d // 2, d)),
)
EPSILONS = ("0.1", "0.3", "1", "3", "10")
QUICK = (Matrix("projector", 4, 1), Matrix("condition 10", 4, 2), Matrix("Wishart", 4, 4))


def draws_for(matrix: Matrix) -> int:
    """Return how often every method answers; exact draws of a general spectrum take long."""
    if matrix.family == "projector":
        return 20 if matrix.size <= 16 else 10
    return 20 if matrix.size <= 8 else 5


def moment(levels: Floats) -> PublicMoment:
    """Return the diagonal matrix of these eigenvalues as a second moment of rows of norm at most 1."""
    bound = RowBound(levels.size, 1.0)
    units = np.rint(np.diag(levels) / bound.unit**2).astype(np.int64)
    return PublicMoment(packed(units), bound, math.ceil(levels.sum()))


def spectrum_of(levels: Floats, rank: int) -> Floats:
    """Return the k largest eigenvalues, followed by zeros."""
    return np.where(np.arange(levels.size) < rank, levels, 0.0)


def options_of(matrix: Matrix) -> Json:
    """Return the public parameters of all methods."""
    return {"components": matrix.rank, "spectrum": tuple(matrix.levels()[: matrix.rank].tolist())}


def constants(matrix: Matrix, mechanism: str, epsilon: str) -> tuple[float, float]:
    """Return an algorithm's exponent for a spectrum of spread 1, and the scale of its Laplace noise (0: none).

    Raises
    ------
    UsageError
        If it is neither algorithm.
    """
    found = moment(matrix.levels())
    calibrated = planned(
        request_for(mechanism, (epsilon, "0"), found.bound, options_of(matrix)), Dimensions(matrix.size)
    ).moment
    unit = found.bound.unit**2
    if isinstance(calibrated, CalibratedOrbit):
        return calibrated.rate / unit, 0.0
    if isinstance(calibrated, CalibratedLowRankOrbit):
        return calibrated.rate / unit, calibrated.scale * unit
    raise UsageError(f"{mechanism} does not sample from an orbit.")


def orbit_errors(matrix: Matrix, mechanism: str, epsilon: str) -> tuple[float, float]:
    """Draw H as the mechanism does and return ``|M - H|_F`` and ``|M - Re H|_F``.

    The mechanism releases Re H, which is post-processing; the paper measures H, which the mechanism does not keep.
    """
    levels = matrix.levels()
    rate, scale = constants(matrix, mechanism, epsilon)
    spectrum = spectrum_of(levels, matrix.rank)
    if scale:
        k = matrix.rank
        noise = scale * (exponentials(k, SYSTEM) - exponentials(k, SYSTEM))
        spectrum[:k] = np.sort(np.maximum(levels[:k] + noise, 0))[::-1]
    low, spread = spectrum[-1], spectrum[0] - spectrum[-1]
    drawn = low * np.eye(levels.size)
    if spread:
        drawn = drawn + spread * hermitian((spectrum - low) / spread, rate * levels, SYSTEM)
    exact = np.diag(levels)
    return float(np.linalg.norm(exact - drawn)), float(np.linalg.norm(exact - drawn.real))


def truncated(noisy: Floats, rank: int) -> Floats:
    """Return the nearest positive semidefinite matrix of a rank: post-processing."""
    values, vectors = top_eigenpairs(noisy, rank)
    found: Floats = (vectors.T * np.maximum(values, 0)) @ vectors
    return found


def measure(cell: Json, _: Any) -> Json:
    """Return the Frobenius errors of a number of draws: mean, standard deviation, largest."""
    matrix = Matrix(cell["family"], cell["d"], cell["k"])
    mechanism = METHODS[cell["method"]]
    complex_too = mechanism.startswith("orbit")
    if complex_too:
        errors = np.array([orbit_errors(matrix, mechanism, cell["epsilon"]) for _ in range(cell["draws"])])
    else:
        exact = moment(matrix.levels())
        request = request_for(mechanism, (cell["epsilon"], "0"), exact.bound, options_of(matrix))
        found = [truncated(private_moment(request, exact), matrix.rank) for _ in range(cell["draws"])]
        errors = np.array([[np.linalg.norm(np.diag(matrix.levels()) - one)] for one in found])
    result = {"error": errors[:, -1].mean(), "standard_deviation": errors[:, -1].std(), "largest": errors[:, -1].max()}
    if complex_too:
        result |= {"error of H": errors[:, 0].mean(), "largest of H": errors[:, 0].max()}
    return {name: float(f"{value:.6g}") for name, value in result.items()}


def compared(matrix: Matrix, epsilon: str) -> Json:
    """Return every bound of one matrix and epsilon, in Frobenius norm, for H where it is about the algorithms."""
    levels, e = matrix.levels(), float(epsilon)
    spectrum = spectrum_of(levels, matrix.rank)
    tail = float(levels[matrix.rank :] @ levels[matrix.rank :])
    found: Json = {}
    for method in ("algorithm 1", "algorithm 2"):
        rate, scale = constants(matrix, METHODS[method], epsilon)
        exponent = rate / float(spectrum[0] - spectrum[-1])
        if scale:
            upper = orbit.low_rank_bound(levels, matrix.rank, scale, rate, FAILURE)
        else:
            upper = math.sqrt(tail + 2 * orbit.utility_bound(levels, spectrum, exponent, FAILURE))
        found[f"upper bound, {method}"] = upper
        found[f"first order, {method}"] = orbit.first_order_error(levels, spectrum, exponent, 2 * scale**2)
    found["lower bound"] = orbit.lower_bound(levels, levels, e)
    found["rate, theorem 2.3"] = rates.low_rank_rate(levels, matrix.rank, e)
    found["rate, Amin et al."] = rates.amin_rate(levels, matrix.rank, e)
    found["error of zero"] = float(np.linalg.norm(levels))
    return {name: float(f"{value:.6g}") for name, value in found.items()}


@experiment(__doc__, "5 minutes", runs=20, quick=20, of="answers of each method, at most (10 or 5 of slow ones)")
def main(asked: Asked) -> None:
    """Run the missing cells and write the results."""
    matrices = QUICK if asked.quick else MATRICES
    epsilons = EPSILONS[2:3] if asked.quick else EPSILONS
    settings: Json = {
        "paper": "Mangoubi et al. 2022, algorithms 1 and 2, section 3",
        "notice": NOTICE,
        "quick": asked.quick,
        "neighbours": "replace-one",
        "seed of the Wishart matrices": SEED,
        "largest eigenvalue": LARGEST,
        "failure probability of the upper bounds": FAILURE,
    }
    cases = [(matrix, epsilon) for matrix in matrices for epsilon in epsilons]
    cells = [
        {
            "family": m.family,
            "d": m.size,
            "k": m.rank,
            "epsilon": epsilon,
            "method": method,
            "draws": min(draws_for(m), asked.runs),
        }
        for m, epsilon in cases
        for method in METHODS
    ]
    with asked.cluster.connected() as executor, runs.opened(asked.output / f"{NAME}.cells.jsonl", settings) as store:
        found = runs.run(executor, store, measure, cells, label="Orbits")
    stated = [{"family": m.family, "d": m.size, "k": m.rank, "epsilon": e} | compared(m, e) for m, e in cases]
    described = [asdict(m) | {"eigenvalues": [float(f"{v:.6g}") for v in m.levels()]} for m in matrices]
    runs.write(asked.output / NAME, found, settings | {"matrices": described, "bounds": stated})
    picture(asked.output / f"{NAME}.png", found, stated)
    asked.finish(NAME, ".json .csv .png", results_of(found, stated))


def results_of(found: list[Json], stated: list[Json]) -> Iterator[str]:
    """Yield errors and bounds at epsilon 1 as lines of text."""
    for line in stated:
        if line["epsilon"] == "1":
            errors = {c["method"]: c["error"] for c in found if _close(c, line, "method")}
            listed = ", ".join(f"{method} {error:.4g}" for method, error in errors.items())
            yield (
                f"{line['family']}, d = {line['d']}, k = {line['k']}: lower bound {line['lower bound']:.3g}; {listed}; "
                f"upper bound 2 {line['upper bound, algorithm 2']:.4g}"
            )


_DRAWN = ("algorithm 1", "algorithm 2", "Amin et al.", "two-sided Wishart")


def _close(a: Json, b: Json, along: str) -> bool:
    return all(a[name] == b[name] for name in ("family", "d", "k", "epsilon") if name != along)


def _panel(ax: Any, found: list[Json], stated: list[Json], at: Json, along: str) -> None:
    """Draw measured errors and bounds of the cases that agree with ``at`` but in one name."""
    lines = sorted((s for s in stated if _close(s, at, along)), key=lambda s: float(s[along]))
    x = [float(s[along]) for s in lines]
    second, amin = pictures.style("algorithm 2"), pictures.style("Amin et al.")
    upper, lower = [s["upper bound, algorithm 2"] for s in lines], [s["lower bound"] for s in lines]
    ax.fill_between(x, lower, upper, color=second["color"], alpha=0.08, label="between the bounds for algorithm 2")
    ax.plot(x, upper, color=second["color"], lw=1, label="upper bound, theorem 2.3")
    ax.plot(x, lower, color="black", lw=1, label="lower bound, theorem 2.4")
    ax.plot(x, [s["rate, theorem 2.3"] for s in lines], ":", color=second["color"], label="rate of theorem 2.3")
    ax.plot(x, [s["rate, Amin et al."] for s in lines], ":", color=amin["color"], label="rate of Amin et al.")
    ax.plot(x, [s["error of zero"] for s in lines], "--", color="0.5", lw=1, label="answering zero")
    for method in _DRAWN:
        look = pictures.style(method)
        points = sorted(
            (c for c in found if c["method"] == method and _close(c, at, along)), key=lambda c: float(c[along])
        )
        if "error of H" in points[0]:
            label = f"{method}: H" if method == "algorithm 2" else None
            ax.plot(x, [p["error of H"] for p in points], label=label, **look | {"mfc": "white", "lw": 0.8})
        name = f"{method}: Re H" if "error of H" in points[0] else method
        ax.plot(x, [p["error"] for p in points], label=name, **look)
    ax.set(yscale="log", xlabel=along, ylabel="Frobenius error")
    pictures.mark(ax, x)
    fixed = ", ".join(f"{name} = {at[name]}" for name in ("d", "k", "epsilon") if name != along)
    ax.set_title(f"{at['family']}, {fixed}", fontsize=9)
    ax.grid(alpha=0.3)


def picture(path: Path, found: list[Json], stated: list[Json]) -> None:
    """Draw errors against epsilon for the three families, then against rank and dimension."""
    largest = max(s["d"] for s in stated)
    middle = "1"
    wanted: list[tuple[Json, str]] = []
    for family in ("projector", "condition 100", "Wishart"):
        size = max((s["d"] for s in stated if s["family"] == family), default=0)
        of_family = [s for s in stated if s["family"] == family and s["d"] == size]
        if of_family:
            wanted.append((of_family[len(of_family) // 2], "epsilon"))
    wanted.append(({"family": "projector", "d": largest, "k": 0, "epsilon": middle}, "k"))
    wanted.append(({"family": "projector", "d": 0, "k": min(4, largest // 4), "epsilon": middle}, "d"))
    figure, axes = pictures.panels(3, 2)
    for ax, (at, along) in zip(axes, wanted, strict=False):
        _panel(ax, found, stated, at, along)
    for ax in axes[len(wanted) :]:
        ax.axis("off")
    pictures.legend_below(figure, axes[0], 4)
    figure.suptitle("Frobenius error of private approximations; largest eigenvalue 1000, rows of norm at most 1")
    pictures.save(figure, path)


if __name__ == "__main__":
    cli.execute(main)
