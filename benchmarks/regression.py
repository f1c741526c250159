"""How good regressions from a release are, and how often their intervals hold: evaluated on public data, not private.

    python -m benchmarks.regression results/regression.json --data FOLDER [--diffprivlib PYTHON]

Parts, each kept when it is finished:

* `simulated`: rows of known coefficients, of few and many rows, weak and strong signals, none or many shortened. How
  many intervals of 200 releases hold the ridge of the bounded rows: coefficients, intercept and R².
* `real`: a9a (target: the label) and Covertype (target: the label; columns scaled, and clipped at 4): R² on every fifth
  row, which the release is not of, and how many intervals of 200 releases hold. FOLDER has ``a9a.npz`` and
  ``covertype.npz``. Scale and clip norm are taken from the rows, as if they were public.
* `rivals`: diabetes (scikit-learn), and California housing where scikit-learn can fetch it, beside ``LinearRegression``
  and that of diffprivlib, run by another interpreter that has it, with the same bounds: those of the rows, as if they
  were public. Mean R² on every fifth row.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist import Centring, Neighbours, UsageError
from dpdist.answers.regression import Regression, regressions
from dpdist.core.errors import BelowNoiseError
from papers.common.answers import NOTICE
from papers.common.drawn import Drawn, drawn

Floats = npt.NDArray[np.float64]
RELEASES = 200
EPSILONS = ("0.1", "1", "4")
MECHANISMS = ("gaussian", "two-sided-wishart")
SIMULATED = {
    "few rows": (400, 3, 1.0, 1.0),
    "weak": (5_000, 8, 0.05, 1.0),
    "strong": (5_000, 8, 1.0, 1.0),
    "half shortened": (5_000, 8, 1.0, 0.5),
    "many columns": (50_000, 40, 0.3, 1.0),
}
"""Rows, regressors, coefficients, and the share of rows that is not shortened."""
_HOUSING = "california housing"
RIVAL_EPSILONS = ("1", "4", "16")
_RIVAL = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import LinearRegression
warnings.simplefilter("ignore")
told = json.load(sys.stdin)
x, y, X, Y = (np.array(told[name]) for name in ("x", "y", "X", "Y"))
low, high = map(np.array, told["bounds_X"])
model = LinearRegression(epsilon=told["epsilon"], bounds_X=(low, high), bounds_y=tuple(told["bounds_y"]))
scores = [model.fit(x, y).score(X, Y) for _ in range(told["fits"])]
json.dump(scores, sys.stdout)
"""


def truth_of(scene: Drawn, found: Regression) -> tuple[Floats, float]:
    """Return the ridge of the bounded rows, intercept last, and R² of the coefficients that were found on them."""
    p, exact = scene.bound.columns - 1, scene.moment
    kappa = scene.bound.constant * scene.bound.unit
    places = [*range(p), p + 1]
    solved = np.linalg.solve(exact[np.ix_(places, places)] + np.diag([found.ridge] * p + [0.0]), exact[places, p])
    u = np.array([*(-each.value for each in found.coefficients), 1.0, -found.intercept.value / kappa])
    r2 = 1 - float(u @ exact @ u) / (exact[p, p] - exact[p, -1] ** 2 / exact[-1, -1])
    return np.array([*solved[:p], solved[p] * kappa]), r2


def coverage(scene: Drawn) -> dict[str, Any]:
    """Return how many of the intervals of many releases hold."""
    p = scene.bound.columns - 1
    inside, r2, told, refused = [], [], [], 0
    for _ in range(RELEASES):
        try:
            (found,) = regressions(scene.release(), [p], range(p))
        except (UsageError, BelowNoiseError):
            refused += 1
            continue
        truth, share = truth_of(scene, found)
        low, high = np.array([each.interval for each in (*found.coefficients, found.intercept)]).T
        inside.append((low <= truth) & (truth <= high))
        r2.append(found.r2_interval[0] <= share <= found.r2_interval[1])
        told.append((found.r2.value, share))
    if not inside:
        return {"releases": RELEASES, "refused": refused}
    hits = np.mean(inside, axis=0)
    return {
        "releases": RELEASES, "refused": refused, "coefficients": _rounded(hits[:p].mean()),
        "least": _rounded(hits[:p].min()), "intercept": _rounded(hits[p]), "r2": _rounded(np.mean(r2)),
        "r2_told": _rounded(np.mean(told, axis=0)[0]), "r2_true": _rounded(np.mean(told, axis=0)[1]),
    }  # fmt: skip


def simulated(name: str, mechanism: str, neighbours: str) -> dict[str, Any]:
    """Return how many intervals hold for rows of known coefficients."""
    n, p, signal, whole = SIMULATED[name]
    random = np.random.default_rng(5)
    x = random.normal(size=(n, p))
    x[:, 1:] += 0.5 * x[:, :1]
    rows = np.column_stack([x, 0.5 + signal * x @ np.linspace(1, -0.5, p) + random.normal(size=n)])
    clip = float(np.quantile(np.linalg.norm(rows, axis=1), whole))
    scene = drawn(rows, clip, mechanism=mechanism, neighbours=Neighbours(neighbours))
    return coverage(scene)


def _data(folder: Path, name: str) -> tuple[Floats, Floats, float]:
    """Return rows, target, and the share of rows that is not shortened."""
    found = np.load(folder / f"{name}.npz")
    x, y = found["X"].astype(np.float64), (found["y"] > 0).astype(np.float64)
    if name == "covertype":
        return np.clip((x - x.mean(axis=0)) / x.std(axis=0), -4, 4), y, 0.95
    return x, y, 1.0


def _split(x: Floats, y: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    held = np.arange(len(x)) % 5 == 0
    return x[~held], y[~held], x[held], y[held]


def _r2(x: Floats, y: Floats, found: Regression) -> float:
    told = found.intercept.value + x @ np.array([each.value for each in found.coefficients])
    return float(1 - ((y - told) ** 2).mean() / y.var())


def real(folder: Path, name: str, epsilon: str) -> dict[str, Any]:
    """Return R² on rows that were held out, beside that of least squares, and how many intervals hold."""
    x, y, whole = _data(folder, name)
    x, y, held_x, held_y = _split(x, y)
    ones = np.column_stack([x, np.ones(len(x))])
    plain = np.linalg.lstsq(ones, y, rcond=None)[0]
    exact = float(1 - ((held_y - held_x @ plain[:-1] - plain[-1]) ** 2).mean() / held_y.var())
    rows = np.column_stack([x, y])
    clip = float(np.quantile(np.linalg.norm(rows, axis=1), whole))
    scene = drawn(rows, clip, epsilon, neighbours=Neighbours.ADD_REMOVE)
    p = x.shape[1]
    shares = [_r2(held_x, held_y, regressions(scene.release(), [p], range(p))[0]) for _ in range(20)]
    return {
        "r2_not_private": _rounded(exact), "r2_held_out": _rounded(np.mean(shares)),
        "spread": _rounded(np.std(shares)), **coverage(scene),
    }  # fmt: skip


def rivals(name: str, epsilon: str, python: str | None) -> dict[str, Any]:
    """Return mean R² on rows that were held out: of least squares, of dpdist and of diffprivlib."""
    from sklearn.datasets import fetch_california_housing, load_diabetes  # noqa: PLC0415 - one of them needs a network

    loaded = load_diabetes(scaled=False) if name == "diabetes" else fetch_california_housing()
    x, y, held_x, held_y = _split(loaded.data.astype(np.float64), loaded.target.astype(np.float64))
    low, high = x.min(axis=0), x.max(axis=0)
    ends = float(y.min()), float(y.max())
    ones = np.column_stack([x, np.ones(len(x))])
    plain = np.linalg.lstsq(ones, y, rcond=None)[0]
    rows = np.column_stack([x, y])
    centre = (*((low + high) / 2), sum(ends) / 2)
    scale = (*((high - low) / 2), (ends[1] - ends[0]) / 2)
    clip = float(np.quantile(np.linalg.norm((rows - centre) / scale, axis=1), 0.95))
    found: dict[str, Any] = {
        "rows": len(x),
        "not_private": _rounded(1 - ((held_y - held_x @ plain[:-1] - plain[-1]) ** 2).mean() / held_y.var()),
    }
    for mechanism in MECHANISMS:
        scene = drawn(
            rows, clip, epsilon, mechanism=mechanism, centring=Centring.PRIVATE, centre=tuple(map(float, centre)),
            scale=tuple(map(float, scale)),
        )  # fmt: skip
        p = x.shape[1]
        shares = []
        for _ in range(20):
            with suppress(UsageError, BelowNoiseError):
                shares.append(_r2(held_x, held_y, regressions(scene.release(), [p], range(p))[0]))
        found[mechanism] = {"mean": _rounded(np.mean(shares)) if shares else None, "refused": 20 - len(shares)}
    if python:
        told = {
            "x": x.tolist(), "y": y.tolist(), "X": held_x.tolist(), "Y": held_y.tolist(), "epsilon": float(epsilon),
            "bounds_X": [low.tolist(), high.tolist()], "bounds_y": list(ends), "fits": 20,
        }  # fmt: skip
        done = subprocess.run(  # noqa: S603 - the interpreter that was named
            [python, "-c", _RIVAL], input=json.dumps(told), capture_output=True, text=True, check=True
        )
        scores = json.loads(done.stdout)
        found["diffprivlib"] = {"mean": _rounded(np.mean(scores)), "median": _rounded(np.median(scores))}
    return found


def _rounded(value: Any) -> float:
    return float(f"{float(value):.4g}")


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as tables for people."""
    lines = [
        "# Regressions from one release",
        "",
        f"{NOTICE.capitalize()}. `benchmarks/regression.py` says what is what.",
        "",
    ]
    lines += ["## Intervals of 95 %: which share of them holds in 200 releases of the same rows", ""]
    lines += [
        "| rows | mechanism | epsilon | relation | coefficients | least sure of them | intercept | R² | refused |"
    ]
    lines += ["| --- " * 9 + "|"]
    for row in (r for r in rows if r["part"] in {"simulated", "real"}):
        told = " | ".join(str(row.get(key, "")) for key in ("coefficients", "least", "intercept", "r2", "refused"))
        lines.append(f"| {row['name']} | {row['mechanism']} | {row['epsilon']} | {row['neighbours']} | {told} |")
    lines += ["", "## R² on rows that were held out", ""]
    lines += ["| rows | epsilon | not private | dpdist | standard deviation | told of its own rows | true of these |"]
    lines += ["| --- " * 7 + "|"]
    for row in (r for r in rows if r["part"] == "real"):
        told = " | ".join(str(row[key]) for key in ("r2_not_private", "r2_held_out", "spread", "r2_told", "r2_true"))
        lines.append(f"| {row['name']} | {row['epsilon']} | {told} |")
    lines += ["", "## Beside others: mean R² of 20 fits on rows that were held out", ""]
    lines += [
        "What diffprivlib 0.6.6 claims is epsilon, purely private. That does not hold: the noise on the square of a",
        "column is scaled by its lower bound alone (its issues 104 and 105, open, and its code), so the noise",
        "is 0 where that is 0. What dpdist claims is proved: (epsilon, 1e-6) by `gaussian`, epsilon by",
        "`two-sided-wishart`, replace-one.", "",
    ]  # fmt: skip
    lines += [
        "| rows | n | epsilon | not private | gaussian | two-sided-wishart | diffprivlib, median |",
        "| --- " * 7 + "|",
    ]
    for row in (r for r in rows if r["part"] == "rivals"):
        own = " | ".join(_told(row[mechanism]) for mechanism in MECHANISMS)
        other = str(row["diffprivlib"]["median"]) if "diffprivlib" in row else ""
        lines.append(f"| {row['name']} | {row['rows']} | {row['epsilon']} | {row['not_private']} | {own} | {other} |")
    if not any(row["name"] == _HOUSING for row in rows):
        lines += [
            "", "California housing is not among them: scikit-learn fetches it (`fetch_california_housing`), and there",
            "was no network. `python -m benchmarks.regression results/regression.json --diffprivlib PYTHON` adds it",
            "where there is one.",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _told(found: dict[str, Any]) -> str:
    said = "" if found["mean"] is None else str(found["mean"])
    return f"{said} ({found['refused']} refused)" if found["refused"] else said


_KEYS = ("part", "name", "mechanism", "epsilon", "neighbours")


def _work(folder: Path | None, python: str | None) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    for name in SIMULATED:
        for mechanism in MECHANISMS:
            for neighbours in Neighbours:
                keys = ("simulated", name, mechanism, "1", neighbours.value)
                yield dict(zip(_KEYS, keys, strict=True)), partial(simulated, name, mechanism, neighbours.value)
    for name in ("a9a", "covertype") if folder else ():
        for epsilon in EPSILONS:
            keys = ("real", name, "gaussian", epsilon, Neighbours.ADD_REMOVE.value)
            yield dict(zip(_KEYS, keys, strict=True)), partial(real, Path(str(folder)), name, epsilon)
    for name in ("diabetes", _HOUSING):
        for epsilon in RIVAL_EPSILONS:
            keys = ("rivals", name, "all", epsilon, Neighbours.REPLACE_ONE.value)
            yield dict(zip(_KEYS, keys, strict=True)), partial(rivals, name, epsilon, python)


def main() -> None:
    """Measure what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--diffprivlib", metavar="PYTHON")
    asked = parser.parse_args()
    out: Path = asked.out
    rows: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
    known = {tuple(row[key] for key in _KEYS) for row in rows}
    for told, work in _work(asked.data, asked.diffprivlib):
        if tuple(told.values()) in known:
            continue
        try:
            rows.append({**told, **work()})
        except OSError as error:  # no network
            print(f"{told['name']} cannot be had here: {error}", file=sys.stderr)
            continue
        out.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
        out.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
