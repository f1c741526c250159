"""Whether it pays to limit each scaled number before a row is clipped: it does not.

    python -m benchmarks.caps benchmarks/results/caps.md

One heavy column shortens the other numbers of its row. A *cap* would limit each scaled number to t deviations first.
The skewed tables of ``benchmarks.messy``, and six light columns beside a lognormal one, are scaled by a release with
epsilon 1, and their numbers limited to t and clipped to 1.75 sqrt(d), without noise. Shown is the root mean squared
error against the rows as they are, over 10 scales: of the slopes of the last column, relative to them; of correlations;
of means, in deviations. Noise would be the same for every t.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.messy import TABLES, drawn, request_of
from dpdist.core.errors import DpdistError

Floats = npt.NDArray[np.float64]
CAPS, DRAWS = (2.5, 3.0, 4.0, 6.0, np.inf), 10
NAMES = (
    "exponential", "lognormal .5", "lognormal 1", "Student's t, 3", "thirteen skewed", "mostly zeros", "1 % outliers",
    "rows of persons",
)  # fmt: skip


def one_heavy(random: np.random.Generator, rows: int) -> Floats:
    """Return five normals and a lognormal column that depends on their common factor, and a target of the normals."""
    common = np.sqrt(0.3) * random.normal(size=(rows, 1))
    found = common + np.sqrt(0.7) * random.normal(size=(rows, 6))
    found[:, 5] = np.exp(1.5 * found[:, 5])
    target = found[:, :5] @ np.linspace(1, -0.5, 5) + 1.5 * random.normal(size=rows)
    return np.column_stack([found, target])


def answers(rows: Floats) -> tuple[Floats, Floats, Floats]:
    """Return slopes of the last column, correlations, and means."""
    design = np.column_stack([rows[:, :-1], np.ones(len(rows))])
    slopes = np.asarray(np.linalg.lstsq(design, rows[:, -1], rcond=None)[0][:-1], np.float64)
    correlations = np.asarray(np.corrcoef(rows.T), np.float64)[np.triu_indices(rows.shape[1], 1)]
    return slopes, correlations, np.asarray(rows.mean(axis=0), np.float64)


def errors(name: str) -> Floats:
    """Return the errors of the three kinds with each cap, (caps, 3)."""
    found = np.zeros((DRAWS, len(CAPS), 3))
    for draw in range(DRAWS):
        random = np.random.default_rng(draw)
        rows = one_heavy(random, 20_000) if name == "one heavy of seven" else TABLES[name][1](random, TABLES[name][0])
        try:
            bound = drawn(rows, request_of(name, rows, "1"))[0].bound
        except DpdistError:
            found[draw] = np.nan
            continue
        centre, scale = bound.input_units
        truth, spread = answers(rows), rows.std(axis=0)
        for place, cap in enumerate(CAPS):
            scaled = np.clip((rows - centre) / scale, -cap, cap)
            norms = np.linalg.norm(scaled, axis=1)
            scaled *= np.minimum(1, bound.numbers_norm / np.maximum(norms, 1e-300))[:, None]
            slopes, correlations, means = answers(centre + scale * scaled)
            weights = spread[:-1] / spread[-1]
            found[draw, place] = (
                np.linalg.norm((slopes - truth[0]) * weights) / np.linalg.norm(truth[0] * weights),
                np.sqrt(np.mean((correlations - truth[1]) ** 2)),
                np.sqrt(np.mean(((means - truth[2]) / spread) ** 2)),
            )
    return np.asarray(np.sqrt(np.nanmean(found**2, axis=0)))


def main() -> None:
    """Write the table."""
    warnings.simplefilter("ignore")
    heads = [f"{kind}, t = {cap:g}" for kind in ("slopes", "correlations", "means") for cap in CAPS]
    lines = [
        "# Caps by column", "",
        "Errors of clipped rows against the rows as they are, by `python -m benchmarks.caps`.", "",
        f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}",
    ]  # fmt: skip
    ratios = []
    for name in (*NAMES, "one heavy of seven"):
        one = errors(name)
        ratios.append(one / one[-1])
        lines.append(f"| {name} | {' | '.join(f'{value:.3g}' for value in one.T.ravel())} |")
        sys.stderr.write(lines[-1] + "\n")
    mean = np.exp(np.log(ratios).mean(axis=0))
    lines.append(f"| *over no cap, geometric mean* | {' | '.join(f'{value:.2f}' for value in mean.T.ravel())} |")
    lines += [
        "",
        "A cap breaks slopes, which clipping all numbers of a row keeps: it shortens both sides. So none is used.",
    ]
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
