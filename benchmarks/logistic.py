"""Logistic regression from one release, ranked on held-out rows, next to the maximum of the likelihood.

    python -m benchmarks.logistic benchmarks/results/logistic --data FOLDER

FOLDER has a9a.npz and covertype.npz, cut into categories as in :mod:`benchmarks.cells`. A release of four fifths of the
rows, replace-one, delta 1e-6, with the default bound of a schema, gives the model of the target and all other
variables. Shown are the area under the curve of the other fifth, and the slope of the log-odds in it, which is 1 for a
calibrated model: means of some draws, with the exact model fitted to the same rows by scikit-learn.

The model takes numbers as normal. So a second table has one number of each of some shapes, 24,000 rows, within a public
range, so that no row is clipped: the slope over that of the maximum of the likelihood, and how often the interval holds
that, at epsilon 1 and, as there is hardly any noise, 20.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import dpdist
from benchmarks.cells import BUDGET, Codes, schema_of, tables_of
from dpdist.answers.logistic import logistic
from dpdist.answers.variables import variables
from dpdist.core.errors import BelowNoiseError

TARGETS = {"a9a": "income", "covertype": "cover"}
EPSILONS = ("4", "1", "0.3", "0.1")
_EXACT_ROWS = 60_000
"""Rows of the exact model, which takes minutes for all."""


def measured(codes: Codes, target: str, draws: int, folder: Path) -> dict[str, Any]:
    """Return the areas under the curve of a data set."""
    frame = pd.DataFrame({name: values.astype(str) for name, (_, values) in codes.items()})
    order = np.random.default_rng(0).permutation(len(frame))
    train, test = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    schema, outcome = schema_of(codes), codes[target][1]
    encoded = schema.transform(frame)
    columns = [name for name in encoded if not name.startswith(f"{target}=")]
    exact = LogisticRegression(C=1e3, max_iter=2000)
    exact.fit(encoded[columns].to_numpy()[train[:_EXACT_ROWS]], outcome[train[:_EXACT_ROWS]])
    best = roc_auc_score(outcome[test], exact.decision_function(encoded[columns].to_numpy()[test]))
    frame.iloc[train].to_parquet(folder / "t.parquet")
    rows = folder / "rows.zarr"
    dpdist.ingest_rows(folder / "t.parquet", rows, budget=BUDGET, schema=schema)
    found: dict[str, Any] = {"rows": len(train), "exact": float(best)}
    for epsilon in EPSILONS:
        areas, slopes = [], []
        for draw in range(draws):
            name = f"e{epsilon.replace('.', '-')}-{draw}"
            request = dpdist.ReleaseRequest(
                "gaussian", dpdist.PrivacyLoss.parse(epsilon, "1e-6"), "schema", name=name
            )  # fmt: skip
            release = dpdist.release_rows(rows, folder / f"{name}.zarr", request).release
            try:
                (model,) = logistic(variables(release), target)
            except BelowNoiseError:
                continue
            own = encoded[[each.name for each in model.effects]].to_numpy()[test]
            scores = model.intercept + own @ np.array([each.value for each in model.effects])
            areas.append(roc_auc_score(outcome[test], scores))
            slopes.append(LogisticRegression(C=1e6).fit(scores[:, None], outcome[test]).coef_[0, 0])
        found[epsilon] = {"fitted": len(areas), "auc": float(np.mean(areas)), "slope": float(np.mean(slopes))}
    return found


SHAPES = {
    "normal": lambda random, rows: np.clip(random.normal(5, 1.6, rows), 0, 10),
    "uniform": lambda random, rows: random.uniform(0, 10, rows),
    "Poisson, mean 1": lambda random, rows: np.minimum(random.poisson(1, rows), 10),
    "exponential, mean 2": lambda random, rows: np.minimum(random.exponential(2, rows), 10),
    "exponential, mean 2, in bins": lambda random, rows: np.digitize(random.exponential(2, rows), (1, 2, 4)).astype(
        str
    ),
}
_ROWS = 24_000


def of_shape(name: str, draws: int, folder: Path) -> dict[str, Any]:
    """Return what the model of one number of a shape says of its slope, or of the last of its bins."""
    random = np.random.default_rng(sum(map(ord, name)))
    number = SHAPES[name](random, _ROWS)
    binned = number.dtype.kind == "U"
    eta = number.astype(float) - 2 if binned else 0.8 * (number - number.mean()) / number.std() - 1
    target = random.random(_ROWS) < 1 / (1 + np.exp(-eta))
    frame = pd.DataFrame({"x": number, "other": random.uniform(0, 10, _ROWS), "y": np.where(target, "yes", "no")})
    x = (
        dpdist.Column("x", "category", categories=list("0123"))
        if binned
        else dpdist.Column("x", "number", range=(0, 10))
    )
    schema = dpdist.Schema([x, dpdist.Column("other", "number", range=(0, 10)), dpdist.Column("y", "boolean")])
    design = schema.transform(frame)[[*(["x=1", "x=2", "x=3"] if binned else ["x"]), "other"]].to_numpy()
    exact = LogisticRegression(C=1e9, max_iter=2000).fit(design, target).coef_[0, 2 if binned else 0]
    dpdist.ingest_rows(frame, folder / "rows.zarr", budget=BUDGET, schema=schema)
    found: dict[str, Any] = {"exact": float(exact)}
    for epsilon in ("1", "20"):
        slopes, held = [], []
        for draw in range(draws):
            loss, named = dpdist.PrivacyLoss.parse(epsilon, "1e-6"), f"e{epsilon}-{draw}"
            request = dpdist.ReleaseRequest("gaussian", loss, "schema", name=named)
            release = dpdist.release_rows(folder / "rows.zarr", folder / f"{named}.zarr", request).release
            effects = {each.name: each for each in logistic(variables(release), "y")[0].effects}
            effect = effects["x=3" if binned else "x"]
            slopes.append(effect.value)
            held.append(effect.interval[0] <= exact <= effect.interval[1])
        found[epsilon] = {"ratio": float(np.mean(slopes) / exact), "held": float(np.mean(held))}
    return found


def text_of(found: dict[str, Any]) -> str:
    """Return the results as a page."""
    heads = ("", "rows", "exact", *(f"epsilon {epsilon}" for epsilon in EPSILONS))
    lines = [
        "# Logistic regression from one release", "",
        f"Area under the curve of held-out rows, and slope of the log-odds, of {found['draws']} draws.", "",
        f"| {' | '.join(heads)} |", "|" + "---|" * len(heads),
    ]  # fmt: skip
    for name, one in found["tables"].items():
        cells = [f"{one[e]['auc']:.4f}, {one[e]['slope']:.2f}" for e in EPSILONS]
        lines.append(f"| {name} | {one['rows']:,} | {one['exact']:.4f} | {' | '.join(cells)} |")
    lines += [
        "",
        f"One number of {_ROWS:,} rows: slope over the exact one, intervals with it ({found['shape draws']} draws).",
        "", "| number | epsilon 1 | epsilon 20 |", "|---|---|---|",
    ]  # fmt: skip
    for name, one in found["shapes"].items():
        cells = [f"{one[e]['ratio']:.2f}, {one[e]['held']:.2f}" for e in ("1", "20")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=5)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    codes, found = tables_of(asked.data), {"draws": asked.draws, "tables": dict[str, Any]()}
    for name, target in TARGETS.items():
        with tempfile.TemporaryDirectory() as folder:
            found["tables"][name] = measured(codes[name], target, asked.draws, Path(folder))
    found["shapes"], found["shape draws"] = dict[str, Any](), 4 * asked.draws
    for name in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            found["shapes"][name] = of_shape(name, found["shape draws"], Path(folder))
    asked.target.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    asked.target.with_suffix(".md").write_text(text_of(found))
    sys.stdout.write(text_of(found))


if __name__ == "__main__":
    main()
