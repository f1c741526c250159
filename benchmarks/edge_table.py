"""The largest eigenvalue of noise of few columns, from public simulation: how far beyond the edge, at each confidence.

    python -m benchmarks.edge_table benchmarks/results/edge_table.json

The edge of the spectrum and the width of its fluctuation hold for many columns (:mod:`dpdist.answers.noise_edge`),
where ``(largest eigenvalue - edge) / width`` has the Tracy-Widom law. For few columns its quantiles are simulated here.
No data of anybody's is in it, only the laws. What is written for each law, number of columns and confidence is the
quantile and an upper end of it: the order statistic that is not below the true quantile with probability 0.999.

The upper ends of Laplace entries and Frobenius-norm noise, which exceed those of Tracy and Widom, are the table
``dpdist.answers.noise_edge.BEYOND``; a test compares the two. The others are here to show that they do not. The file
keeps what was simulated: run it again to go on.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from dpdist.answers.noise_edge import QUANTILES, law_of
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise
from dpdist.core.noise.entropy import SYSTEM
from dpdist.literature.nuclear import nuclear_spectra

Floats = npt.NDArray[np.float64]
SIZES = {
    1: 400_000, 2: 400_000, 3: 400_000, 4: 400_000, 6: 300_000, 8: 200_000, 12: 200_000, 16: 200_000, 24: 100_000,
    32: 80_000, 48: 50_000, 64: 30_000, 100: 20_000, 150: 12_000,
}  # fmt: skip
"""Draws for each number of columns."""
TABLED = ("laplace", "frobenius")
CHECKED = ("normal", "normal-equal", "laplace-2", "laplace-4", "frobenius-2", "wishart-1", "wishart-4", "two-sided-1",
           "two-sided-4", "sum", "nuclear")  # fmt: skip
CHECKED_SIZES = (1, 2, 4, 8, 16, 32, 64)
_BLOCK = 2**21
"""Entries that are drawn at once."""


def noise_named(name: str, size: int) -> Noise:
    """Return what is stated of noise of scale one; a number behind the name is that of terms, or of degrees over d."""
    kind, _, number = name.partition("-") if not name.startswith("two-sided") else ("two-sided", "", name[10:])
    many = int(number) if number.isdecimal() else 1
    match kind:
        case "normal":
            return Noise("", EdgeKind.NORMAL, variance_diagonal=2.0 - (number == "equal"), variance_off_diagonal=1.0)
        case "laplace":
            one = Noise("", EdgeKind.LAPLACE, variance_diagonal=2.0, variance_off_diagonal=2.0)
        case "frobenius":
            entries = size * (size + 1) // 2
            one = Noise(
                "", EdgeKind.FROBENIUS, variance_diagonal=entries + 1.0, variance_off_diagonal=(entries + 1) / 2
            )
        case "wishart":
            m = many * (size + 1)
            return Noise(
                "", EdgeKind.WISHART, variance_diagonal=2.0 * m, variance_off_diagonal=float(m), mean_diagonal=float(m),
                details={"degrees": m, "scale": 1.0},
            )  # fmt: skip
        case "two-sided":
            m = many * (size + 1)
            return Noise(
                "", EdgeKind.TWO_SIDED_WISHART, variance_diagonal=4.0 * m, variance_off_diagonal=2.0 * m,
                details={"columns": m, "scale": 1.0},
            )  # fmt: skip
        case "sum":  # of two two-sided Wishart matrices, of scale 1 and 2
            one, two = (noise_named("two-sided-1", size), noise_named("two-sided-1", size))
            scaled = Noise(
                "", two.edge, variance_diagonal=16.0 * (size + 1), variance_off_diagonal=8.0 * (size + 1),
                details={"columns": size + 1, "scale": 2.0},
            )  # fmt: skip
            return one + scaled
        case "nuclear":
            off = nuclear_variance(size)
            return Noise("", EdgeKind.NUCLEAR, variance_diagonal=2 * off, variance_off_diagonal=off)
    total = one
    for _ in range(many - 1):
        total = total + one
    return total


def nuclear_variance(size: int) -> float:
    """Return the variance off the diagonal of nuclear-norm noise of scale one, as the mechanism states it."""
    from dpdist.core.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss  # noqa: PLC0415
    from dpdist.literature.knorm import CalibratedNuclear  # noqa: PLC0415

    none = Guarantee(Neighbours.REPLACE_ONE, PrivacyLoss.parse("1"), None, Arithmetic.IDEAL_REAL, "none")
    found = CalibratedNuclear(size, 1, guarantee=none).noise.variance_off_diagonal
    if found is None:
        raise AssertionError("nuclear-norm noise has a variance")
    return found


def draws(name: str, size: int, count: int, random: np.random.Generator) -> Floats:
    """Draw noise matrices less their mean, (count, d, d)."""
    kind, _, number = name.partition("-") if not name.startswith("two-sided") else ("two-sided", "", name[10:])
    many = int(number) if number.isdecimal() else 1
    shape = (count, size, size)
    on = np.arange(size)
    match kind:
        case "normal":
            found = _mirrored(random.normal(size=shape))
            found[:, on, on] *= 1.0 if number == "equal" else math.sqrt(2)
        case "laplace":
            found = _mirrored(sum((random.laplace(size=shape) for _ in range(many)), np.zeros(shape)))
        case "frobenius":
            found = np.zeros(shape)
            for _ in range(many):
                one = draws("normal", size, count, random)
                radius = random.gamma(size * (size + 1) / 2, size=count) / np.sqrt((one**2).sum(axis=(1, 2)))
                found += one * radius[:, None, None]
        case "wishart":
            z = random.normal(size=(count, size, many * (size + 1)))
            found = z @ z.swapaxes(1, 2)
            found[:, on, on] -= many * (size + 1)
        case "two-sided":
            found = draws(f"wishart-{many}", size, count, random) - draws(f"wishart-{many}", size, count, random)
        case "sum":
            found = draws("two-sided-1", size, count, random) + 2 * draws("two-sided-1", size, count, random)
        case _:
            values = nuclear_spectra(size, count, SYSTEM)
            frame = np.linalg.qr(random.normal(size=shape))[0]
            found = (frame * values[:, None, :]) @ frame.swapaxes(1, 2)
    return found


def _mirrored(square: Floats) -> Floats:
    upper = np.triu(square)
    found: Floats = upper + np.triu(square, 1).swapaxes(1, 2)
    return found


def largest(name: str, size: int, count: int, seed: int) -> Floats:
    """Draw (largest eigenvalue - edge) / width, (count,)."""
    law = law_of(noise_named(name, size), size)
    if law is None:
        raise AssertionError("every noise here has an edge")
    if name == "nuclear":
        tops: Floats = (nuclear_spectra(size, count, SYSTEM).max(axis=1) - law.edge) / law.width
        return tops
    random, found = np.random.default_rng([seed, size]), np.empty(count)
    block = max(1, _BLOCK // size**2)
    for start in range(0, count, block):
        part = slice(start, min(count, start + block))
        found[part] = np.linalg.eigvalsh(draws(name, size, part.stop - part.start, random))[:, -1]
    found -= law.edge
    found /= law.width
    return found


def measured(name: str, size: int, count: int) -> dict[str, Any]:
    """Simulate one law and return, for each confidence, the quantile and its upper end."""
    found = np.sort(largest(name, size, count, seed=12))[::-1]
    rows = {}
    for confidence in QUANTILES:
        place = int(binom.ppf(0.001, count, 1 - confidence))
        if place < 1:
            continue
        rows[str(confidence)] = [round(float(np.quantile(found, confidence)), 3), _up(found[place - 1])]
    return {"law": name, "d": size, "draws": count, "quantiles": rows}


def _up(value: float) -> float:
    return math.ceil(100 * value) / 100


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as a table for people."""
    lines = [
        "# Where noise of few columns ends",
        "",
        "Quantiles of (largest eigenvalue - edge) / width, and an upper end of each that holds with probability 0.999.",
        "Tracy and Widom's, of many columns: " + ", ".join(f"{q} at {c}" for c, q in QUANTILES.items()) + ".",
        "Where an upper end is larger, the table `BEYOND` of `dpdist/answers/noise_edge.py` has it.",
        "",
        "| law | d | draws | " + " | ".join(map(str, QUANTILES)) + " |",
        "| --- " * (3 + len(QUANTILES)) + "|",
    ]
    for row in rows:
        cells = (row["quantiles"].get(str(c)) for c in QUANTILES)
        told = " | ".join("" if cell is None else f"{cell[0]} .. {cell[1]}" for cell in cells)
        lines.append(f"| {row['law']} | {row['d']} | {row['draws']} | {told} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulate what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    rows: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
    known = {(row["law"], row["d"]) for row in rows}
    wanted = [(name, size, SIZES[size]) for name in TABLED for size in SIZES]
    wanted += [(name, size, SIZES[size] // 4) for name in CHECKED[:-1] for size in CHECKED_SIZES]
    wanted += [("nuclear", size, 4000) for size in (1, 2, 4, 8)]
    for name, size, count in wanted:
        if (name, size) not in known:
            rows.append(measured(name, size, count))
            out.write_text(json.dumps(rows, indent=1) + "\n")
    out.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
