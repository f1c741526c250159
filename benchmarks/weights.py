"""What the weight of a category beside scaled numbers costs and gains, by the formulas of least squares.

    python -m benchmarks.weights benchmarks/results/weights.md

A release with a private scale divides numbers by their deviations and clips them to 1.75 sqrt(d). Beside them the
contrast of a category of k values has the norm ``w sqrt(1 - 1/k)``. Shown is, for each weight w, the deviation of the
noise (epsilon 1, delta 1e-6, replace-one, the constant C/2) over that at w = 1: of a cell of a table of two categories,
of the sum of a number over a category, of a covariance of two numbers. The last column is the noise at w = 1 itself, in
rows, deviations times rows, and of the correlation.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import numpy as np

from dpdist import PrivacyLoss
from dpdist.core.privacy.accounting import gaussian_sigma

WEIGHTS = (0.5, 0.7, 1.0, 2**0.5, 1.75, 2.0)
TABLES = {
    "customers": ((5, 4, 2), 4, 20_000),
    "five categories, five numbers": ((8, 16, 7, 14, 6), 5, 48_842),
    "Covertype": ((4, 40, 2), 10, 50_000),
}


def deviations(weight: float, sizes: tuple[int, ...], numbers: int, rows: int) -> dict[str, float]:
    """Return the deviations of the noise with a weight."""
    square = weight**2 * sum(1 - 1 / k for k in sizes) + 1.75**2 * numbers
    constant = square / 4
    variance = 2 * (float(gaussian_sigma(PrivacyLoss.parse("1", "1e-6"))) * (square + constant)) ** 2

    def margin(k: int) -> float:
        return variance / (2 * constant * weight**2 + weight**4 * (1 - 2 / k))

    total, count = 0.0, 0
    for k, m in combinations(sizes, 2):
        cell = margin(k) * (1 - 1 / k) / m**2 + margin(m) * (1 - 1 / m) / k**2
        total += k * m * (cell + variance / (2 * weight**4) * (1 - 1 / k) * (1 - 1 / m))
        count += k * m
    sums = [variance / (2 * constant) / k**2 + variance / (2 * weight**2) * (1 - 1 / k) for k in sizes]
    return {
        "cell": float(np.sqrt(total / count)),
        "sum of a number by category": float(np.sqrt(np.average(sums, weights=sizes))),
        "covariance of numbers": float(np.sqrt(variance / 2) / rows),
    }


def main() -> None:
    """Write the table."""
    lines = [
        "# The weight of a category beside scaled numbers", "",
        "Noise over that at weight 1, by `python -m benchmarks.weights`, which says how.", "",
        f"| | | {' | '.join(f'{weight:.3g}' for weight in WEIGHTS)} | noise at 1 |",
        f"|---|---|{'---|' * len(WEIGHTS)}---|",
    ]  # fmt: skip
    for name, (sizes, numbers, rows) in TABLES.items():
        one = deviations(1.0, sizes, numbers, rows)
        for kind, noise in one.items():
            ratios = [deviations(weight, sizes, numbers, rows)[kind] / noise for weight in WEIGHTS]
            lines.append(f"| {name} | {kind} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} | {noise:.3g} |")
    lines += ["", "A release uses the square root of 2, with which a boolean is -1 or 1."]
    text = "\n".join(lines) + "\n"
    Path(sys.argv[1]).write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
