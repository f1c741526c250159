"""How much noise a private scale bears before it misses the spread of a column.

    python -m benchmarks.scale_seen benchmarks/results/scale_seen.md

The exact histogram of 20,000 rows of each kind of column gets noise of a given share of n on every count, 60 times. The
scale is refused above 2 % (:func:`dpdist.core.release.stages.require_seen`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from dpdist.core.mechanisms.columns import Grid, counting_bins, intervals_of, standardised
from dpdist.core.mechanisms.counts import RoundedNormal

ROWS, DRAWS, SHARES = 20_000, 60, (0.005, 0.01, 0.02, 0.03, 0.05)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    random = np.random.default_rng(1)
    columns = {
        "170 + 9 normal": 170 + 9 * random.normal(size=ROWS),
        "normal": random.normal(size=ROWS),
        "30,000 exponential": 30_000 * random.exponential(size=ROWS),
        "lognormal 1": np.exp(7 + random.normal(size=ROWS)),
        "60 % zeros, lognormal": np.where(random.random(ROWS) < 0.6, 0, np.exp(5 + random.normal(size=ROWS))),
        "Poisson 3": random.poisson(3, ROWS).astype(float),
        "0/1, 10 % ones": (random.random(ROWS) < 0.1).astype(float),
        "uniform to 100": 100 * random.random(ROWS),
    }
    grid = Grid()
    intervals = intervals_of([grid] * len(columns))
    lines = [
        "# Noise that a private scale bears\n",
        "`benchmarks/scale_seen.py`: median of scale / deviation, and the share of draws in which the spread was not",
        "seen, by the noise of a count over n.\n",
        f"| column | {' | '.join(f'{share:.1%}' for share in SHARES)} |", f"|---|{'---|' * len(SHARES)}",
    ]  # fmt: skip
    for name, values in columns.items():
        exact = np.bincount([grid.bin_of(value) for value in values.tolist()], minlength=grid.bins)
        cells = []
        for share in SHARES:
            sigma = int(share * ROWS)
            noise, scales = RoundedNormal(sigma), []
            for _ in range(DRAWS):
                noisy = exact + np.rint(sigma * random.normal(size=grid.bins)).astype(np.int64)
                found = standardised(grid, counting_bins(grid, noisy, noise, intervals))
                scales += [found.scale / float(values.std())] if found.seen else []
            ratio = f"{np.median(scales):.2f}" if scales else "-"
            cells.append(f"{ratio}, missed {1 - len(scales) / DRAWS:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
