"""How often the intervals of what is answered from one release hold: evaluated on public data, not private.

    python -m benchmarks.answers results/answers.json

Made-up rows of two factors and independent noise, of few and many columns and rows, none or many shortened, are
released 200 times. Of each kind of answer it counts the intervals of 95 % that hold what they are about, with respect
to the noise: partial correlations; principal component regression on the components that stand clear of the noise
(coefficients, intercept, R²); variances of the scores, the share of the variance that the components hold, and the
variance along all else. And it compares how far a shrunk covariance says that it is from the exact one with how far it
is. What the file has already is not measured again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from dpdist import Neighbours, UsageError
from dpdist.answers.covariance import covariance
from dpdist.core.errors import BelowNoiseError
from papers.common.answers import NOTICE
from papers.common.drawn import Drawn, drawn
from papers.common.held import KINDS, covariance_of, held

RELEASES = 200
SCENES = {
    "few rows": (700, 5, 5.0),
    "few columns": (5_000, 5, 5.0),
    "most shortened": (5_000, 5, 3.0),
    "many columns": (50_000, 30, 12.0),
    "partly drowned": (10_000, 30, 10.0),
}
"""Rows, columns, clip norm."""
MECHANISMS = ("gaussian", "two-sided-wishart", "laplace")
_KEYS = ("kind", "rows", "mechanism", "neighbours")
_DISTANCE = "distance of the covariance"


def scene_of(name: str, mechanism: str, neighbours: str) -> Drawn:
    """Return rows of two factors; the last column follows from the others besides."""
    n, p, clip = SCENES[name]
    random = np.random.default_rng(5)
    x = random.normal(size=(n, 2)) @ random.normal(size=(2, p)) + random.normal(size=(n, p)) + 0.3
    x[:, -1] += x[:, :-1] @ np.linspace(0.5, -0.3, p - 1)
    return drawn(x, clip, mechanism=mechanism, neighbours=Neighbours(neighbours))


def measured(kind: str, scene: Drawn) -> dict[str, Any]:
    """Return which shares of the intervals hold: on average, and of the least sure value; or the distances."""
    if kind == _DISTANCE:
        return _distances(scene)
    found = held(scene, KINDS[kind], RELEASES)
    shares = {name: [round(float(each.mean()), 3), round(float(each.min()), 3)] for name, each in found.shares.items()}
    return {"releases": RELEASES, "refused": found.refused, "held": shares}


def _distances(scene: Drawn) -> dict[str, Any]:
    exact, told = covariance_of(scene), []
    for _ in range(RELEASES):
        try:
            found = covariance(scene.release())
        except (UsageError, BelowNoiseError):
            continue
        told.append((float(found.distance or 0), float(np.linalg.norm(found.matrix - exact) / np.linalg.norm(exact))))
    if not told:
        return {"releases": RELEASES, "refused": RELEASES}
    said, true = np.mean(told, axis=0)
    return {
        "releases": RELEASES,
        "refused": RELEASES - len(told),
        "told": float(f"{said:.3g}"),
        "true": float(f"{true:.3g}"),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return a page of tables."""
    lines = ["# Answers from one release: how often their intervals hold", ""]
    lines += [
        f"{NOTICE.capitalize()}. Epsilon 1 (delta 1e-6 for `gaussian`). `benchmarks/answers.py` says what is what.",
        "",
    ]
    for kind in (*KINDS, _DISTANCE):
        mine = [row for row in rows if row["kind"] == kind]
        if not mine:
            continue
        names = list(dict.fromkeys(name for row in mine for name in row.get("held", {}))) or ["told", "true"]
        lines += [f"## {kind.capitalize()}", ""]
        if kind != _DISTANCE:
            lines += [
                f"Which share of the intervals of 95 % holds in {RELEASES} releases: of all, and of the least sure.",
                "",
            ]
        lines += [
            "| rows | mechanism | relation | " + " | ".join(names) + " | refused |",
            "| --- " * (len(names) + 4) + "|",
        ]
        for row in mine:
            cells = [_cell(row, name) for name in names]
            where = f"{row['rows']} | {row['mechanism']} | {row['neighbours']}"
            lines.append(f"| {where} | {' | '.join(cells)} | {row['refused']} |")
        lines.append("")
    return "\n".join(lines)


def _cell(row: dict[str, Any], name: str) -> str:
    if name in row:
        return str(row[name])
    mean, least = row.get("held", {}).get(name, ("", ""))
    return f"{mean}, {least}" if mean != least else str(mean)


def main() -> None:
    """Measure what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    rows: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
    known = {tuple(row[key] for key in _KEYS) for row in rows}
    for name in SCENES:
        for mechanism in MECHANISMS:
            for neighbours in Neighbours:
                scene = scene_of(name, mechanism, neighbours.value)
                for kind in (*KINDS, _DISTANCE):
                    told = dict(zip(_KEYS, (kind, name, mechanism, neighbours.value), strict=True))
                    if tuple(told.values()) not in known:
                        rows.append({**told, **measured(kind, scene)})
                        out.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    out.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
