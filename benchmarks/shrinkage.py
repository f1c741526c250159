"""How far a shrunk covariance is from the exact one: an evaluation on public data, not private.

    python -m benchmarks.shrinkage results/shrinkage.json --data FOLDER

Releases by `gaussian` under add-remove, delta 1e-6, the clip norm the 0.95-quantile of the norms as if it were public.
Centred data have their true mean subtracted, as if it were public. Each number is the mean relative Frobenius error
against the second moment of the rows as they are, over the releases. FOLDER has ``mnist.npz`` (its first 10,000 rows)
and ``a9a.npz``; digits come with scikit-learn. `two-sided-wishart` at the same epsilon is there to show that its own
law is used, and what the law of a semicircle of the same variance would give.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from dpdist import Centring, Neighbours
from dpdist.answers.noise_edge import NoiseLaw, law_of
from dpdist.answers.shrinkage import optimal, within_trace
from dpdist.core.mechanisms.noise_law import EdgeKind, Noise
from papers.common.answers import NOTICE
from papers.common.drawn import drawn

Floats = npt.NDArray[np.float64]
SETTINGS = (
    ("digits", False, "0.1"), ("digits", False, "1"), ("mnist", True, "1"), ("mnist", True, "4"), ("a9a", True, "0.1"),
)  # fmt: skip
RELEASES = {"digits": 20, "a9a": 20, "mnist": 4}
WAYS = ("raw", "positive", "trace", "optimal", "semicircle")


def rows_of(name: str, folder: Path, *, centred: bool) -> Floats:
    """Return the rows."""
    if name == "digits":
        rows = load_digits().data.astype(np.float64)
    else:
        rows = np.load(folder / f"{name}.npz")["X"][: 10_000 if name == "mnist" else None].astype(np.float64)
    return np.asarray(rows - rows.mean(axis=0) if centred else rows, dtype=np.float64)


def errors(name: str, folder: Path, mechanism: str, epsilon: str, *, centred: bool) -> dict[str, Any]:
    """Return the mean error of each way, relative to the exact second moment."""
    rows = rows_of(name, folder, centred=centred)
    exact = rows.T @ rows
    clip = float(np.quantile(np.linalg.norm(rows, axis=1), 0.95))
    scene = drawn(rows, clip, epsilon, mechanism=mechanism, neighbours=Neighbours.ADD_REMOVE, centring=Centring.NONE)
    d, unit = rows.shape[1], scene.bound.unit**2
    noise = scene.calibrated.noise
    law = _known(law_of(noise, d, unit))
    plain = _known(law_of(Noise("x", EdgeKind.NORMAL, noise.variance_diagonal, noise.variance_off_diagonal), d, unit))
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(RELEASES[name]):
        released = scene.release().second_moment
        values, vectors = np.linalg.eigh(released)
        made = {
            "raw": released,
            "positive": (vectors * np.maximum(values, 0)) @ vectors.T,
            "trace": within_trace(released, len(rows) * clip**2),
            "optimal": optimal(released, law),
            "semicircle": optimal(released, plain),
        }
        for way, matrix in made.items():
            found[way].append(float(np.linalg.norm(matrix - exact) / np.linalg.norm(exact)))
    return {"d": d, "rows": len(rows), "releases": RELEASES[name]} | {
        way: float(f"{np.mean(each):.4g}") for way, each in found.items()
    }


def _known(law: NoiseLaw | None) -> NoiseLaw:
    if law is None:
        raise AssertionError("both mechanisms have a law")
    return law


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as a table for people."""
    lines = [
        "# Shrinkage of a released second moment",
        "",
        f"{NOTICE.capitalize()}. `benchmarks/shrinkage.py` says how.",
        "",
    ]
    lines += ["| rows | centred | mechanism | epsilon | " + " | ".join(WAYS) + " |", "| --- " * (4 + len(WAYS)) + "|"]
    for row in rows:
        told = " | ".join(f"{row[way]:.3f}" for way in WAYS)
        lines.append(
            f"| {row['name']} | {'yes' if row['centred'] else 'no'} | {row['mechanism']} | {row['epsilon']} | {told} |"
        )
    return "\n".join(lines) + "\n"


def _work(folder: Path) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    for name, centred, epsilon in SETTINGS:
        for mechanism in ("gaussian", "two-sided-wishart"):
            told = {"name": name, "centred": centred, "mechanism": mechanism, "epsilon": epsilon}
            yield told, partial(errors, name, folder, mechanism, epsilon, centred=centred)


def main() -> None:
    """Measure what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    asked = parser.parse_args()
    out: Path = asked.out
    rows: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
    for told, work in _work(asked.data):
        if not any(told.items() <= row.items() for row in rows):
            rows.append({**told, **work()})
            out.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
            out.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
