"""Which quantile of the norms suits components: the fixed 0.95 beside the choice of `bound --clip-components`.

Evaluation on public data: not private. For each table, number of components and epsilon, the captured variance of the
rows as they are, relative to the best K components, where rows are shortened at one of several quantiles and Gaussian
noise is added: means over draws. The chosen quantile follows from a histogram released at epsilon 0.1, with its noise.

    python -m benchmarks.clip_quantiles --data FOLDER --output benchmarks/results/clip_quantiles

FOLDER has ``mnist.npz``, ``a9a.npz``, ``covertype.npz`` and ``cardiotocography.npz``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from sklearn.datasets import load_digits

from dpdist.core.mechanisms.quantile import calibrated
from dpdist.core.moment.histograms import NormGrid
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.clip_trade import ForComponents, noise_share, quantile_for
from dpdist.core.release.norm_histogram import NormHistogram

Floats = npt.NDArray[np.float64]
QUANTILES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
EPSILONS = ("0.1", "1", "4")
COMPONENTS = (2, 5, 10)
HISTOGRAM = PrivacyLoss.parse("0.1", "1e-6")
_RELATION = Neighbours.REPLACE_ONE


def tables(folder: Path) -> Iterator[tuple[str, Floats]]:
    """Yield tables by name, in the units that components would be taken of."""
    rng = np.random.default_rng(0)
    images = np.load(folder / "mnist.npz")["X"][:60000].astype(np.float64)
    yield "MNIST, 10000 rows", images[rng.permutation(60000)[:10000]]
    yield "MNIST", images
    digits = load_digits().data
    yield "digits, centred", digits - digits.mean(0)
    adult = np.load(folder / "a9a.npz")["X"].astype(np.float64)
    yield "a9a", adult
    yield "a9a, centred", adult - adult.mean(0)
    for name, rows in (("covertype", 100_000), ("cardiotocography", None)):
        values = np.load(folder / f"{name}.npz")["X"][:rows].astype(np.float64)
        values -= values.mean(0)
        if rows:
            yield f"{name}, {rows} rows, raw", values
        spread = values.std(0)
        yield f"{name}, standardised", values / np.where(spread > 0, spread, 1)
    falling = np.linspace(3, 0.3, 30)
    yield "Student's t, 3 degrees", rng.standard_t(3, size=(20000, 30)) * falling
    yield "normal", rng.normal(size=(20000, 30)) * falling


def shortened(rows: Floats, norms: Floats, clip: float) -> Floats:
    """Return the moment of rows of at most that norm."""
    short = rows * np.minimum(1, clip / np.maximum(norms, 1e-300))[:, None]
    moment: Floats = short.T @ short
    return moment


def captured(moment: Floats, whole: Floats, scale: float, number: int, draws: int, rng: np.random.Generator) -> float:
    """Return what the components of a noisy moment capture of the whole, relative to the best, over draws."""
    d, found = len(whole), []
    best = eigh(whole, eigvals_only=True, subset_by_index=[d - number, d - 1]).sum()
    for _ in range(draws):
        noise = rng.normal(scale=scale, size=(d, d))
        noise = (noise + noise.T) / np.sqrt(2)  # off the diagonal of the scale, on it sqrt 2 of it
        vectors = eigh(moment + noise, subset_by_index=[d - number, d - 1])[1]
        found.append(np.trace(vectors.T @ whole @ vectors) / best)
    return float(np.mean(found))


def histogram_of(norms: Floats) -> NormHistogram:
    """Return a noisy histogram of norms, as `bound` draws it."""
    noise, edges = calibrated(HISTOGRAM, _RELATION), NormGrid().edges
    counts = np.bincount(np.searchsorted(edges, norms), minlength=len(edges) + 1)
    noisy = noise.answer(counts, SYSTEM)
    return NormHistogram("evaluation", noise.guarantee, edges, tuple(noisy.tolist()), noise.noise, len(norms), "")


def cases(name: str, rows: Floats) -> Iterator[dict[str, Any]]:
    """Yield what each number of components captures of a table at each epsilon and quantile."""
    rng = np.random.default_rng(1)
    (count, d), norms = rows.shape, np.linalg.norm(rows, axis=1)
    draws, whole, histogram = 3 if d > 500 else 10, rows.T @ rows, histogram_of(norms)
    known: dict[float, Floats] = {}

    def at(clip: float, number: int, share: float) -> float:
        if clip not in known:
            known[clip] = shortened(rows, norms, clip)
        return captured(known[clip], whole, share * clip**2, number, draws, rng)

    clips = [float(clip) for clip in np.quantile(norms, QUANTILES)]
    for epsilon in EPSILONS:
        for number in COMPONENTS:
            if 2 * number >= d:
                continue
            purpose = ForComponents(number, PrivacyLoss.parse(epsilon, "1e-6"))
            share = noise_share(purpose, _RELATION, d, 1)
            chosen = quantile_for(purpose, histogram, d)
            edges = np.array(histogram.edges)
            place = int(np.searchsorted(edges, np.quantile(norms, float(chosen))))
            yield {
                "table": name, "rows": count, "columns": d, "epsilon": epsilon, "components": number,
                "at": [at(clip, number, share) for clip in clips],
                "quantile": float(Fraction(chosen)), "chosen": at(float(edges[place]), number, share),
            }  # fmt: skip


def report(found: list[dict[str, Any]]) -> str:
    """Return the table."""
    fixed = QUANTILES.index(0.95)
    lost = {
        "chosen": [max(case["at"]) - case["chosen"] for case in found],
        "0.95": [max(case["at"]) - case["at"][fixed] for case in found],
        "0.5": [max(case["at"]) - case["at"][QUANTILES.index(0.5)] for case in found],
    }
    lines = [
        "# Which quantile of the norms suits components",
        "",
        "Evaluation on public data: not private. `benchmarks/clip_quantiles.py` says what is what.",
        "",
        "Captured variance below that of the best quantile:",
        "",
        "| quantile | mean | worst |",
        "| --- | --- | --- |",
        *(f"| {name} | {np.mean(values):.4f} | {max(values):.4f} |" for name, values in lost.items()),
        "",
        "| table | rows | columns | K | epsilon | 0.1 | 0.5 | 0.95 | best | at | chosen | at |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in found:
        best = int(np.argmax(case["at"]))
        shown = [case["at"][QUANTILES.index(q)] for q in (0.1, 0.5, 0.95)]
        lines.append(
            f"| {case['table']} | {case['rows']} | {case['columns']} | {case['components']} | {case['epsilon']} | "
            + " | ".join(f"{value:.4f}" for value in [*shown, case["at"][best]])
            + f" | {QUANTILES[best]:g} | {case['chosen']:.4f} | {case['quantile']:g} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write a table as JSON and Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="Without suffix: .json and .md are written.")
    chosen = parser.parse_args()
    found = []
    for name, rows in tables(chosen.data):
        for case in cases(name, rows):
            found.append(case)
            print(case["table"], case["epsilon"], case["components"], case["quantile"], flush=True)
    chosen.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    chosen.output.with_suffix(".md").write_text(report(found))


if __name__ == "__main__":
    main()
