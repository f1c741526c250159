"""The share of clipped rows is counted privately, once the scale is known, and never told without its interval."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2
from support.cli_scene import Call

import dpdist
from dpdist.answers.bias import clipped_rows
from dpdist.core.ledger.register import Register
from dpdist.core.mechanisms.counts import noise_from_json
from dpdist.core.pipeline.arrays import ArrayRows, Paying, release_array
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema

LOSS = PrivacyLoss.parse("1", "1e-6")
SCALED = ReleaseRequest("gaussian", LOSS, "auto", scale="private", centring="private")  # type: ignore[arg-type]
ROWS, DRAWS = 6_000, 24


def longer_rows(release: dpdist.Release, rows: np.ndarray[Any, Any]) -> float:
    """Return how many rows are longer than the norm of their numbers."""
    shift, unit = release.bound.input_units
    norms = np.linalg.norm(((rows - shift) / unit)[:, list(release.bound.numbers)], axis=1)
    return float((norms > release.bound.numbers_norm).sum())


@pytest.mark.parametrize("neighbours", [Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE])
@pytest.mark.parametrize("clip", ["auto", 1.5, 20.0])
def test_the_count_has_the_stated_noise_and_the_interval_holds_the_share(
    clip: float | str, neighbours: Neighbours
) -> None:
    """False-alarm rate 1e-6 a side, with a twin of a quarter of the deviation; few, most and no rows are clipped."""
    random = np.random.default_rng(3)
    rows = np.column_stack([random.lognormal(0, 1, ROWS), random.normal(size=(ROWS, 3))])
    request = replace(SCALED, clip_norm=clip, neighbours=neighbours, rows_at_most=2 * ROWS)  # type: ignore[arg-type]
    squares, held = 0.0, 0
    for _ in range(DRAWS):
        array = ArrayRows(rows, ("a", "b", "c", "d"), "float64", missing=False)
        release, _ = release_array(array, request, Paying(), register=Register())
        assert release.stage is not None
        answer, truth = release.stage.answer["norms"], longer_rows(release, rows)
        variance = noise_from_json(answer["noise"]).variance
        beyond, rest = answer["counts"][1], answer["counts"][0]
        error = (beyond - rest + ROWS) / 2 - truth if release.rows else beyond - truth
        squares += error**2 / (variance / 2 if release.rows else variance)
        between = clipped_rows(release).between
        assert between is not None
        held += between[0] <= truth / ROWS <= between[1]
        assert between[1] - between[0] < (0.06 if release.rows else 0.08)
    assert chi2.ppf(1e-6, DRAWS) < squares < chi2.ppf(1 - 1e-6, DRAWS)
    assert not chi2.ppf(1e-6, DRAWS) < 16 * squares < chi2.ppf(1 - 1e-6, DRAWS)
    assert held >= 15  # of 24 at .95: 1e-6


def test_it_is_counted_where_it_can_be_seen_and_only_where_no_schema_or_histogram_says_more() -> None:
    def stages(request: ReleaseRequest, **size: Any) -> list[str]:
        plan = planned(request, Dimensions(4, **{"rows": 20_000} | size))
        return list(plan.stages)

    assert stages(SCALED) == ["scale", "clipped rows"]
    assert stages(SCALED, rows=None) == ["scale", "clipped rows"]
    assert stages(SCALED, rows=2_000) == ["scale"]
    assert stages(SCALED, rows=20_000, unit_rows=8, changed_rows=8) == ["scale"]
    assert stages(SCALED, rows=200_000, unit_rows=8, changed_rows=8) == ["scale", "clipped rows"]
    assert stages(SCALED, counted=False) == ["scale"]
    assert stages(replace(SCALED, clip_norm="private")) == ["scale", "clip norm"]
    assert stages(replace(SCALED, clip_norm=4.0)) == ["scale", "clipped rows"]
    assert stages(ReleaseRequest("gaussian", LOSS, 4.0)) == []
    pure = replace(SCALED, mechanism="two-sided-wishart", loss=PrivacyLoss.parse("1"))
    assert stages(pure, rows=100_000) == ["scale", "clipped rows"]


def test_a_unit_with_many_rows_is_counted_by_all_of_them() -> None:
    one, many = (planned(SCALED, Dimensions(4, 10**6, rows, rows)).stages["clipped rows"] for rows in (1, 7))
    assert many.noise.variance == pytest.approx(49 * one.noise.variance, rel=0.05)
    assert many.guarantee.mu_squared == pytest.approx(float(one.guarantee.mu_squared or 0), rel=0.02)


@pytest.mark.usefixtures("apart")
def test_every_answer_tells_the_interval_and_what_is_unknown(
    call: Call,
) -> None:
    random = np.random.default_rng(8)
    age = random.normal(50, 9, 20_000)
    kind = np.where(age > 55, "a", random.choice(list("abc"), 20_000))
    frame = pd.DataFrame({"spend": random.lognormal(3, 1.2, 20_000), "age": age, "kind": kind})
    frame.to_parquet("t.parquet")
    columns = [
        Column("spend", "number"),
        Column("age", "number", range=(0, 120)),
        Column("kind", "category", categories=["a", "b", "c"]),
    ]
    dpdist.ingest_rows("t.parquet", "t.zarr", budget=PrivacyLoss.parse("9", "1e-5"), schema=Schema(columns))
    release = dpdist.release_rows("t.zarr", "r.zarr", SCALED).release
    between = clipped_rows(release).between
    assert between is not None
    low, high = (f"{100 * end:.2g}" for end in between)
    assert clipped_rows(release).to_json()["longer_at_most"] == between[1]
    for command in (("regress", "r.zarr", "--target", "spend"), ("pca", "r.zarr", "m.zarr"),
                    ("pca", "r.zarr", "c.zarr", "--correlation")):  # fmt: skip
        told = " ".join(call(*command).out.split())
        assert f"clipped to norm 2.475 ({low} to {high}% of them)" in told, told
        cures = "(a transform of spend or a larger clip norm clips fewer, in a release with a charge of its own; "
        cures += "dpdist forecast tells its noise)"
        assert f"unknown: numbers of {low} to {high}% of the rows were clipped {cures}" in told, told
    ranged = [replace(columns[0], range=(0, 10**6)), *columns[1:]]
    dpdist.ingest_rows("t.parquet", "u.zarr", budget=LOSS, schema=Schema(ranged, scale="range"))
    dpdist.release_rows("u.zarr", "u.release.zarr", ReleaseRequest("gaussian", LOSS, "schema"))
    answers: list[tuple[str, ...]] = [
        ("covariance", "c.csv"), ("covariance", "c.npz"), ("synthesise", "s.csv", "--rows", "9"), ("relate", "spend"),
        ("regress", "--target", "spend"), ("regress", "--target", "kind", "--on", "age", "--logistic"),
    ]  # fmt: skip
    for name, *more in answers:
        assert "For the rows as they are, " in " ".join(call(name, "r.zarr", *more).out.split()), name
        assert "rows as they are" not in " ".join(call(name, "u.release.zarr", *more).out.split()), name
    for estimator in (
        dpdist.PrivateCovariance.from_release("r.zarr"), dpdist.PrivateRidge.from_release("r.zarr", "spend"),
        dpdist.PrivateLogisticRegression.from_release("r.zarr", "kind"),
    ):  # fmt: skip
        assert "For the rows as they are, " in " ".join(estimator.summary().split())
    assert "kind=b" in dpdist.PrivateLogisticRegression.from_release("r.zarr", "kind").summary()


@pytest.mark.usefixtures("apart")
def test_answers_say_what_the_schema_did_to_values_and_why_the_population_is_missing(
    call: Call,
) -> None:
    random = np.random.default_rng(4)
    rows, rare = 20_000, ("isle", "reef", "rock")
    member = random.random(rows) < 0.3
    frame = pd.DataFrame(
        {
            "spend": random.lognormal(2, 1, rows) * np.where(member, 3, 1), "age": random.normal(50, 9, rows),
            "income": np.where(random.random(rows) < 0.1, np.nan, random.normal(3, 1, rows)), "member": member,
            "region": random.choice(["north", "south", *rare], rows, p=[0.6, 0.3997, *[0.0001] * 3]),
        }
    )  # fmt: skip
    frame.to_parquet("t.parquet")
    columns = [
        Column("spend", "number", transform="log"), Column("age", "number", range=(0, 120)),
        Column("income", "number", missing="fill", fill=0), Column("member", "boolean"),
        Column("region", "category", categories=["north", "south", *rare]),
    ]  # fmt: skip
    dpdist.ingest_rows("t.parquet", "t.zarr", budget=LOSS, schema=Schema(columns))
    dpdist.release_rows("t.zarr", "r.zarr", SCALED)

    def told(*command: str) -> str:
        said = call("regress", "r.zarr", *command)
        assert said.code == 0, said.err
        return " ".join(said.out.split())

    text = told("--target", "income", "--on", "age")
    assert "with any values outside a public range set to its end" in text
    assert "with missing values of income at 0, which moves means and slopes" in text
    assert "There is none for the population with income, where values may be missing." in text
    text = told("--target", "age,income", "--on", "member")
    assert "rows are independent draws from it" in text
    assert "There is none for the population with income" in text
    text = told("--target", "member,age", "--on", "region")
    assert "For the rows as they are, coefficients of age are unknown" in text
    text = told("--target", "spend", "--on", "member")
    assert "range" not in text
    assert "rows are independent draws from it" in text
    assert "for the rows as they are" in text.lower()
    found = re.search(
        r"One unit of a column multiplies 1 \+ spend by exp of its coefficient: member ([\d.]+) \(([\d.]+) \.\. ", text
    )
    assert found is not None, text
    log = np.log1p(frame["spend"])
    assert float(found[1]) == pytest.approx(np.exp(log[member].mean() - log[~member].mean()), rel=0.12)
    text = told("--target", "region", "--on", "member")
    assert "Not above the noise, and left out as a target: region=isle, region=reef, region=rock." in text
    assert "of all rows" in text  # categories are never shortened
    assert "unknown" not in text
    assert "range" not in text
    # one of three is refused, unless noise alone makes the variance of each larger than two of its deviations
    said = call("regress", "r.zarr", "--target", ",".join(f"region={name}" for name in rare), "--on", "member")
    assert "is below the noise" in said.message
    assert "--targets" not in said.message  # a category takes no private scale
