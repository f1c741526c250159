"""Whether what is told of pairs holds on messy tables with categories: counts, cells, shares, means, tests.

    python -m benchmarks.messy_pairs benchmarks/results/messy_pairs

Eight tables as people have them: skewed money, rare and empty categories, words that no list has, gaps, dates, age
groups, a category that is nearly constant, numbers that are clipped. Each is released 100 times at epsilon .3, 1 and 4
(delta 1e-6), with the default bound of a schema, under both relations in turn. Compared with the truth of its rows, as
they were clipped, are 95 % intervals of counts, cells, shares of rows of a table, means by group, where one is stated,
differences of two means, and strengths (Cramér's V of tables of which no category was merged, eta and r); and tests at
.05 of columns that were permuted: of two categories, and of a number and a category. *Ignoring the noise* is the twin:
the same tests as if a released table were exact.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import chi2

from dpdist import Column, Neighbours, PrivacyLoss, Release, ReleaseRequest, Schema
from dpdist.answers.association import Strength, correlation_of, cramers_v, eta, independence, same_means
from dpdist.answers.block import NORMAL
from dpdist.answers.crosstab import counts, crosstab
from dpdist.answers.group_means import group_means
from dpdist.answers.variables import Variables, variables
from dpdist.core.errors import DpdistError
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.release.bounds import Dimensions, by_schema
from dpdist.core.release.plan import Plan, planned
from dpdist.core.rows.dither import DitherKey, Dithers
from dpdist.core.triangle import unpacked
from dpdist.literature.attack import KnownMoment

Matrix = npt.NDArray[np.float64]
Random = np.random.Generator
Clip = float | Literal["schema"]
RELEASES = 100
EPSILONS = ("0.3", "1", "4")
STATED = ("counts", "cells", "shares", "means", "differences", "strengths")


def _words(random: Random, n: int, k: int, steep: float = 1.0) -> tuple[list[str], npt.NDArray[np.str_]]:
    """Return names and values of a category with frequencies like those of words."""
    names, weights = [f"w{i}" for i in range(k)], 1 / np.arange(1, k + 1) ** steep
    return names, random.choice(names, n, p=weights / weights.sum())


def tables() -> Iterator[tuple[str, pd.DataFrame, Schema, Clip]]:
    """Yield name, rows, schema and clip norm of each table."""
    random = np.random.default_rng(1)

    def frame(n: int, **columns: Any) -> pd.DataFrame:
        return pd.DataFrame({name: values[:n] for name, values in columns.items()})

    n = 20_000
    names, region = _words(random, n, 8)
    premium = random.random(n) < np.where(region == "w0", 0.4, 0.1)
    spend = random.lognormal(4 + premium, 1.2, n)
    churn = random.random(n) < 0.05 + 0.1 * ~premium
    yield "customers, money by logarithm", frame(n, region=region, premium=premium, spend=spend, churn=churn), Schema(
        [Column("region", "category", categories=names), Column("premium", "boolean"),
         Column("spend", "number", range=(0, 1e6), transform="log"), Column("churn", "boolean")], "range",
    ), "schema"  # fmt: skip
    yield "customers, money clipped", frame(n, region=region, premium=premium, spend=spend, churn=churn), Schema(
        [Column("region", "category", categories=names), Column("premium", "boolean"),
         Column("spend", "number", range=(0, 1000)), Column("churn", "boolean")], "range"), 0.9  # fmt: skip
    n = 3000
    names, word = _words(random, n, 40, 1.2)
    answer = random.choice(["yes", "no", "what", "?"], n, p=[0.5, 0.3, 0.15, 0.05]).astype(object)
    answer[random.random(n) < 0.2] = None
    yield "survey, rare words and gaps", frame(n, word=word, answer=answer, score=random.integers(1, 6, n)), Schema(
        [Column("word", "category", categories=names[:25], other="column"),
         Column("answer", "category", categories=["yes", "no"], other="column", missing="indicator"),
         Column("score", "integer", range=(1, 5))], "range"), "schema"  # fmt: skip
    age = np.where(random.random(n) < 0.15, np.nan, np.clip(random.gamma(8, 6, n), 0, 110).round())
    sex = random.choice(["f", "m"], n)
    pressure = np.clip(120 + 0.4 * np.nan_to_num(age, nan=40) + random.normal(0, 15, n), 60, 260)
    sick = random.random(n) < 0.02 + 0.1 * (np.nan_to_num(age, nan=40) > 60)
    yield "clinic, age groups and gaps", frame(n, age=age, sex=sex, pressure=pressure, sick=sick), Schema(
        [Column("age", "integer", range=(0, 110), bins=[18, 40, 65], missing="pairwise"),
         Column("sex", "category", categories=["f", "m"]), Column("pressure", "number", range=(60, 260)),
         Column("sick", "boolean")], "range"), "schema"  # fmt: skip
    n = 800
    yield "small club", frame(
        n, kind=random.choice(list("abc"), n), member=random.random(n) < 0.5, fee=random.choice([0.0, 5, 10, 50], n)
    ), Schema([Column("kind", "category", categories=list("abc")), Column("member", "boolean"),
               Column("fee", "number", range=(0, 50))], "range"), "schema"  # fmt: skip
    n = 10_000
    names, product = _words(random, n, 12, 2.0)
    status = random.choice(["ok", "bad"], n, p=[0.995, 0.005])
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(random.integers(0, 1500, n), "D")
    yield "orders, nearly constant", frame(n, product=product, status=status, day=day.strftime("%Y-%m-%d")), Schema(
        [Column("product", "category", categories=[*names, "never", "sold"]),
         Column("status", "category", categories=["ok", "bad"]),
         Column("day", "date", range=("2020-01-01", "2026-01-01"), bins=["2021-01-01", "2022-01-01"])], "range",
    ), "schema"  # fmt: skip
    n = 50_000
    names, job = _words(random, n, 20)
    columns = {f"c{i}": random.choice(list("abcde"), n, p=random.dirichlet(np.ones(5))) for i in range(8)}
    wage = np.clip(random.gamma(2, 20, n) + 10 * (job == "w1"), 0, 500)
    yield "census", frame(n, job=job, **columns, wage=wage), Schema(
        [Column("job", "category", categories=names),
         *(Column(name, "category", categories=list("abcde")) for name in columns),
         Column("wage", "number", range=(0, 500))], "range"), "schema"  # fmt: skip
    n = 5000
    heavy = random.standard_cauchy(n)
    group = random.choice(list("abcdef"), n, p=[0.9, 0.05, 0.03, 0.01, 0.005, 0.005])
    yield "heavy tails, rare groups", frame(n, group=group, flag=random.random(n) < 0.01, heavy=heavy), Schema(
        [Column("group", "category", categories=list("abcdef"), weight=2), Column("flag", "boolean"),
         Column("heavy", "number", range=(-1e4, 1e4), transform="asinh")], "range"), "schema"  # fmt: skip


class Drawn:
    """Rows whose releases are drawn anew."""

    def __init__(self, frame: pd.DataFrame, schema: Schema, clip: Clip, neighbours: Neighbours) -> None:
        self.schema, self.clip, self.neighbours, self.n = schema, clip, neighbours, len(frame)
        self.rows = schema.transform(frame).to_numpy(float)
        self._moments: dict[int, npt.NDArray[np.int64]] = {}

    def release(self, epsilon: str) -> Release:
        """Draw a release of these rows."""
        public = self.neighbours is Neighbours.REPLACE_ONE
        size = Dimensions(self.rows.shape[1], self.n if public else None, schema=self.schema)
        asked = ReleaseRequest(
            "gaussian", PrivacyLoss.parse(epsilon, "1e-6"), self.clip, self.neighbours, rows_at_most=10 * self.n
        )
        plan = planned(by_schema(asked, size), size)
        values = np.asarray(plan.moment.answer(KnownMoment(self._moment(plan)), SYSTEM), dtype=np.int64)
        answer = unpacked(values, plan.bound.width)
        release = Release(
            release_id="r-1", mechanism="gaussian", names=self.schema.features, neighbours=self.neighbours,
            claim=plan.moment.claim, guarantee=plan.moment.guarantee, bound=plan.bound, noise=plan.moment.noise,
            rows=self.n if public else None, answer=answer, schema=self.schema,
        )  # fmt: skip
        if release.corner is not None:
            answer[-1, -1] = release.corner
        return release

    def _moment(self, plan: Plan) -> npt.NDArray[np.int64]:
        bits = plan.bound.grid_bits
        if bits not in self._moments:
            bounded = plan.bound.apply(
                self.rows, np.empty((self.n, plan.bound.width)), Dithers(DitherKey(bytes(32)), 0)
            )
            self._moments[bits] = np.rint(bounded.T @ bounded).astype(np.int64)
        return self._moments[bits]


def inside(ends: Matrix, truth: Matrix) -> list[bool]:
    """Return which truths are within their ends, where these are bounded."""
    known = np.isfinite(ends).all(axis=-1) & np.isfinite(truth)
    found: list[bool] = ((ends[..., 0] <= truth) & (truth <= ends[..., 1]))[known].tolist()
    return found


def compared(held: Variables, exact: Variables) -> dict[str, list[bool]]:
    """Return for each kind of answer whether its intervals hold the truth."""
    found: dict[str, list[bool]] = {kind: [] for kind in STATED}
    for name in held.categorical:
        found["counts"] += inside(counts(held, name).intervals, np.round(counts(exact, name).estimates))
    for first, second in combinations(held.categorical, 2):
        table, truth = crosstab(held, first, second), np.round(crosstab(exact, first, second).estimates)
        found["cells"] += inside(table.intervals, truth)
        totals = truth.sum(axis=1, keepdims=True)
        found["shares"] += inside(table.of_rows.intervals, np.where(totals > 0, truth / np.maximum(totals, 1), np.nan))
    for number in held.numeric:
        for by in held.categorical:
            means, there = group_means(held, number, by), group_means(exact, number, by)
            seen = np.where(np.round(there.counts) > 0, there.means.estimates, np.nan)
            found["means"] += inside(means.means.intervals, seen)
            bounded = np.isfinite(means.means.intervals).all(axis=-1)
            reach = NORMAL * means.deviations
            ends = np.stack([means.differences - reach, means.differences + reach], axis=-1)
            clear = means.counts > 4 * means.count_deviation  # else its law is not normal
            pairs = np.triu(np.outer(bounded & clear, bounded & clear), 1)
            found["differences"] += inside(ends[pairs], (seen[:, None] - seen[None])[pairs])
    for told, true in strengths(held, exact):
        found["strengths"] += inside(np.array([told.interval]), np.array([true.value]))
    return found


def strengths(held: Variables, exact: Variables) -> Iterator[tuple[Strength, Strength]]:
    """Yield the strength of each pair of variables, as it is told and as it is, if one is told of the same table."""
    of_categories, of_numbers = (list(combinations(names, 2)) for names in (held.categorical, held.numeric))
    for told, there in (
        *((cramers_v(h, h.categorical[a], h.categorical[b]) for h in (held, exact)) for a, b in of_categories),
        *(
            (eta(h, h.numeric[a], h.categorical[b]) for h in (held, exact))
            for a in held.numeric
            for b in held.categorical
        ),
        *((correlation_of(h, h.numeric[a], h.numeric[b]) for h in (held, exact)) for a, b in of_numbers),
    ):
        if told is not None and there is not None and not told.merged and not there.merged:
            yield told, there


def tested(drawn: Drawn, frame: pd.DataFrame, epsilon: str, random: Random) -> dict[str, list[bool]]:
    """Return which tests reject at .05 for a column that was permuted."""
    shuffled = frame.copy()
    first = next(c.name for c in drawn.schema.sources if c.whole)
    shuffled[first] = random.permutation(shuffled[first].to_numpy())
    held = variables(Drawn(shuffled, drawn.schema, drawn.clip, drawn.neighbours).release(epsilon))
    found: dict[str, list[bool]] = {"independence": [], "equal means": [], "ignoring the noise": []}
    for name, other in held.categorical.items():
        if name != first:
            found["independence"].append(independence(held, held.categorical[first], other).p_value < 0.05)
            table = np.maximum(crosstab(held, first, name).estimates, 0)
            expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
            seen = expected > 0
            statistic = (((table - expected) ** 2)[seen] / expected[seen]).sum()
            degrees = (table.shape[0] - 1) * (table.shape[1] - 1)
            found["ignoring the noise"].append(bool(chi2.sf(statistic, degrees) < 0.05))
    for number in held.numeric.values():
        result = same_means(held, number, held.categorical[first])
        if result is not None:
            found["equal means"].append(result.p_value < 0.05)
    return found


def measured(name: str, frame: pd.DataFrame, schema: Schema, clip: Clip, releases: int) -> list[dict[str, Any]]:
    """Return the rates of one table at each epsilon."""
    lines = []
    for epsilon in EPSILONS:
        sums: dict[str, list[float]] = {}
        random = np.random.default_rng(7)
        makers = [Drawn(frame, schema, clip, relation) for relation in Neighbours]
        truths = [variables(maker.release("1000000")) for maker in makers]
        refused = 0
        for number in range(releases):
            maker, exact = makers[number % 2], truths[number % 2]
            try:
                found = compared(variables(maker.release(epsilon)), exact)
                found |= tested(maker, frame, epsilon, random)
            except DpdistError:  # the number of rows is below the noise
                refused += 1
                continue
            for kind, hits in found.items():
                sums.setdefault(kind, []).extend([float(np.mean(hits))] if hits else [])
        rates = {kind: float(np.mean(each)) if each else None for kind, each in sums.items()}
        lines.append({"table": name, "rows": len(frame), "epsilon": epsilon, "refused": refused, **rates})
        print(json.dumps(lines[-1]), flush=True)
    return lines


def report(lines: list[dict[str, Any]]) -> str:
    """Return the results as a page."""
    kinds = [*STATED, "independence", "equal means", "ignoring the noise"]
    head = ["table", "rows", "epsilon", *kinds]
    rows = [head, ["---"] * len(head)]
    for line in lines:
        cells = ["-" if line.get(kind) is None else f"{line[kind]:.3f}".lstrip("0") for kind in kinds]
        rows.append([line["table"], f"{line['rows']:,}", line["epsilon"], *cells])
    means = [np.nanmean([np.nan if line.get(k) is None else line[k] for line in lines]) for k in kinds]
    rows.append(["**mean**", "", "", *(f"**{value:.3f}**".replace("**0", "**") for value in means)])
    return (
        "# What is told of pairs, on messy tables\n\n"
        f"By `python -m benchmarks.messy_pairs`: {RELEASES} releases of each line, under both relations in turn. The\n"
        "first six columns are shares of 95 % intervals that hold the truth of the clipped rows, the last three\n"
        "shares of tests at .05 that reject where a column was permuted; *ignoring the noise* takes a released table\n"
        "for the exact one.\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
    )


def main() -> None:
    """Measure all tables and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where to write OUT.json and OUT.md")
    parser.add_argument("--releases", type=int, default=RELEASES)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = [line for table in tables() for line in measured(*table, arguments.releases)]
    arguments.out.with_suffix(".json").write_text(json.dumps(lines, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(report(lines))


if __name__ == "__main__":
    main()
