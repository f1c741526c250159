"""What is told of an ordinary customer table, against the rows as they are: money, gaps, rare categories and dates.

    python -m benchmarks.customers benchmarks/results/customers

20,000 customers: lognormal spend, whose median is three times as large for premium ones; income, missing for one in
ten; a region of five values, one with 40 rows, and a channel of four; a flag; a date. The table is released
with a private scale and centre (``gaussian``, epsilon 1, delta 1e-6) as an ordinary person would, with money as it is
and with ``transform = "log"``. Of each of the draws:

* **counts** of all categories: their squared errors over the variance of the noise that the release states, on average;
  the median of the draws, which is about 1 without a bias;
* **spend of premium customers over that of others**: the slope of a regression on the flag, and how often its interval
  holds that of the rows as they are; with the logarithm it is a ratio of geometric means, shown as such;
* **age and income**: the slope of income on age and their correlation, over those of the complete rows; gaps are taken
  pair by pair where the version can, otherwise at the centre;
* **means** of age, income and spend and the correlation of premium and spend, over those of the rows as they are, the
  mean of logarithms for the logarithm.

Draws with a slope below the noise are left out. "Before" is a version given by ``--before``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dpdist
from dpdist.answers.block import column_indices, source_units
from dpdist.answers.covariance import covariance
from dpdist.answers.regression import regressions
from dpdist.core.errors import DpdistError

ROWS, DRAWS = 20_000, 200
NUMBERS = ("premium", "age", "income", "spend")
LOSS = dpdist.PrivacyLoss.parse("1", "1e-6")
GAPS = "pairwise" if importlib.util.find_spec("dpdist.answers.pairwise") else "centre"
CATEGORIES = {"region": (0.5, 0.3, 0.15, 0.048, 0.002), "channel": (0.4, 0.3, 0.2, 0.1)}


HEADS = {
    "counts": "counts: error² over noise²", "premium, true": "premium, true", "premium": "premium",
    "premium holds": "holds", "age, over the true slope": "age: slope over the true", "mean age": "mean age",
    "mean income": "mean income", "mean spend": "mean spend", "correlation age, income": "correlation age, income",
    "age, income holds": "holds", "correlation premium, spend": "correlation premium, spend",
    "premium, spend holds": "holds",
}  # fmt: skip


def customers(seed: int) -> pd.DataFrame:
    """Return the table: synthetic, and as skewed as such tables are."""
    random = np.random.default_rng(seed)
    premium = random.random(ROWS) < 0.15
    age = random.integers(18, 90, ROWS)
    income = np.exp(random.normal(10.3, 0.4, ROWS)) + 150 * age
    income[random.random(ROWS) < 0.1] = np.nan
    kinds = {
        name: np.array([f"{name}{i}" for i in range(len(shares))])[random.choice(len(shares), ROWS, p=shares)]
        for name, shares in CATEGORIES.items()
    }
    return pd.DataFrame(
        {
            **kinds, "premium": premium.astype(int), "age": age, "income": income,
            "spend": np.exp(random.normal(4, 1.1, ROWS)) * np.where(premium, 3, 1),
            "since": pd.Timestamp("2015-01-01") + pd.to_timedelta(random.integers(0, 3650, ROWS), "D"),
        }
    )  # fmt: skip


def schema(money: dict[str, Any]) -> dpdist.Schema:
    """Return the public description of its columns; ``money`` are further keys of spend and income."""
    return dpdist.Schema(
        [
            *(
                dpdist.Column(name, "category", categories=[f"{name}{i}" for i in range(len(shares))])
                for name, shares in CATEGORIES.items()
            ),
            dpdist.Column("premium", "boolean"),
            dpdist.Column("age", "integer", range=(0, 120)),
            dpdist.Column("income", "number", missing=GAPS, **money),
            dpdist.Column("spend", "number", **money),
            dpdist.Column("since", "date", range=("2010-01-01", "2030-01-01")),
        ]
    )


def counts_error(release: dpdist.Release, frame: pd.DataFrame) -> float:
    """Return the mean square of the errors of all counts over the variance of their noise."""
    centre, scale = source_units(release)
    unit = release.bound.unit / release.bound.constant
    deviation = np.sqrt(release.noise.variance_off_diagonal or 0) * unit
    exact = pd.get_dummies(frame[list(CATEGORIES)], prefix_sep="=").sum()
    errors = []
    for place, name in enumerate(release.names):
        if name.split("=")[0] in CATEGORIES:
            count = np.asarray(release.row_sum)[place] * scale[place] + ROWS * centre[place]
            errors.append((count - exact[name]) / (deviation * scale[place]))
    return float(np.mean(np.square(errors)))


def slope(release: dpdist.Release, target: str, on: str) -> tuple[float, float, float]:
    """Return a slope in units of the source, and the ends of its interval."""
    places = [column_indices(release, [name], "on") for name in (target, on)]
    (fit,) = regressions(release, places[0], places[1], 0.0, source_units(release))
    low, high = fit.coefficients[0].interval
    return fit.coefficients[0].value, low, high


def moments(release: dpdist.Release, frame: pd.DataFrame, *, logarithm: bool) -> dict[str, float]:
    """Return means and correlations over those of the rows as they are."""
    result = covariance(release, units=source_units(release))
    names = {name: f"log1p({name})" if logarithm and name in {"income", "spend"} else name for name in NUMBERS}
    places = {name: release.names.index(stored) for name, stored in names.items()}
    exact = frame[list(NUMBERS)].astype(float)
    if logarithm:
        exact[["income", "spend"]] = np.log1p(exact[["income", "spend"]])
    found = {f"mean {name}": float(result.location[places[name]] / exact[name].mean()) for name in NUMBERS[1:]}
    ends = result.correlation_intervals
    for one, other in (("age", "income"), ("premium", "spend")):
        truth, at = float(exact[one].corr(exact[other])), (places[one], places[other])
        found[f"correlation {one}, {other}"] = float(result.correlation[at]) / truth
        found[f"{one}, {other} holds"] = np.nan if ends is None else float(ends[at][0] <= truth <= ends[at][1])
    return found


def draws(money: dict[str, Any]) -> dict[str, Any]:
    """Release tables of the same law, and return what the answers say of them."""
    found: list[dict[str, float]] = []
    logarithm = bool(money)
    for seed in range(DRAWS):
        frame = customers(seed)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            here = Path(folder)
            frame.to_parquet(here / "t.parquet")
            dpdist.ingest_rows(here / "t.parquet", here / "t.zarr", budget=LOSS, schema=schema(money))
            request = dpdist.ReleaseRequest("gaussian", LOSS, "auto", scale="private", centring="private")  # type: ignore[arg-type]
            release = dpdist.release_rows(here / "t.zarr", here / "r.zarr", request).release
        spend = np.log1p(frame["spend"]) if logarithm else frame["spend"]
        truth = float(np.polyfit(frame["premium"], spend, 1)[0])
        try:
            (value, low, high), (by_age, *_) = slope(release, "spend", "premium"), slope(release, "income", "age")
        except DpdistError:
            continue
        complete = frame.dropna()
        income = np.log1p(complete["income"]) if logarithm else complete["income"]
        per_year = float(np.polyfit(complete["age"], income, 1)[0])
        found.append(
            {
                "counts": counts_error(release, frame), "premium, true": truth, "premium": value,
                "premium holds": float(low <= truth <= high),
                "age, over the true slope": by_age / per_year,
                **moments(release, frame, logarithm=logarithm),
            }
        )  # fmt: skip
    means = {name: float(np.mean([each[name] for each in found])) for name in found[0]}
    return means | {"counts": float(np.median([each["counts"] for each in found])), "draws": len(found)}


def measured() -> dict[str, Any]:
    """Return the figures of both tables, of the money as it is alone where there are no transforms."""
    rows = {"as it is": draws({})}
    if "transform" in dpdist.Column.__dataclass_fields__:
        rows["logarithm"] = draws({"transform": "log"})
    return rows


def main() -> None:
    """Measure, and write a table beside that of another checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--before", help="the Python of an environment in which another version is installed")
    parser.add_argument("--print", action="store_true", help="print the figures of this version, and write nothing")
    asked = parser.parse_args()
    if asked.print:
        print(json.dumps(measured()))
        return
    found = {"now": measured()}
    if asked.before:
        command = [asked.before, __file__, str(asked.output), "--print"]
        found = {"before": json.loads(subprocess.run(command, check=True, capture_output=True).stdout)} | found  # noqa: S603
    lines = [
        "# A customer table", "", "`benchmarks/customers.py` says what is what.", "",
        f"| version | money | {' | '.join(HEADS.values())} |",
        f"| --- | --- |{' --- |' * len(HEADS)}",
    ]  # fmt: skip
    for version, rows in found.items():
        for money, row in rows.items():
            lines.append(f"| {version} | {money} | {' | '.join(f'{row[name]:.3g}' for name in HEADS)} |")
    asked.output.with_suffix(".md").write_text("\n".join(lines) + "\n")
    asked.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(lines), file=sys.stderr)


if __name__ == "__main__":
    main()
