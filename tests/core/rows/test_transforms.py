"""Transforms of skewed columns: public, row by row, named in every answer, and taken back in synthetic rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.cli_scene import Call

import dpdist
from dpdist import Column, PrivacyLoss, ReleaseRequest, Schema
from dpdist.core.errors import DataError, UsageError

ROWS = 20_000


def test_numbers_are_those_of_the_definition_and_values_below_the_low_end_count_as_it() -> None:
    frame = pd.DataFrame({"a": [0.0, 3.0, -5.0, 1e9], "b": [18, 20, 3, 99], "c": [0.0, -2.5, 7.0, -1e6]})
    schema = Schema(
        [
            Column("a", "number", transform="log"),
            Column("b", "integer", range=(18, 60), transform="log", weight=2),
            Column("c", "number", transform="asinh"),
        ]
    )
    rows = schema.transform(frame)
    assert list(rows.columns) == ["log1p(a)", "log1p(b - 18)", "asinh(c)"]
    assert rows.iloc[:, 0].to_numpy() == pytest.approx(np.log1p([0, 3, 0, 1e9]))
    assert rows.iloc[:, 1].to_numpy() == pytest.approx(2 * np.log1p([0, 2, 0, 42]))
    assert rows.iloc[:, 2].to_numpy() == pytest.approx(np.arcsinh([0, -2.5, 7, -1e6]))
    assert schema.ranges == (None, (0, 2 * np.log1p(42)), None)
    ranged = Schema([*schema.columns[1:2], Column("d", "number", range=(-9, 9), transform="asinh")], scale="range")
    assert np.array(ranged.ranges) == pytest.approx(np.array([[-2, 2], [-1, 1]]))
    assert Schema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize("missing", ["fill", "indicator"])
def test_a_constant_for_a_missing_value_is_transformed_too(missing: str) -> None:
    schema = Schema([Column("a", "number", transform="log", missing=missing, fill=9), Column("b", "number")])
    rows = schema.transform(pd.DataFrame({"a": [np.nan, 1.0], "b": [1.0, 2.0]})).to_numpy()
    assert rows[:, 0] == pytest.approx(np.log1p([9, 1]))
    refused = Schema([Column("a", "number", transform="log"), Column("b", "number")])
    for value in (np.inf, -np.inf):
        with pytest.raises(DataError, match="not finite"):
            refused.transform(pd.DataFrame({"a": [value], "b": [1.0]}))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (Column("c", "category", categories=["x", "y"], transform="log"), "transform is not permitted for a column"),
        (Column("c", "boolean", transform="asinh"), "transform is not permitted for a column of the kind 'boolean'"),
        (Column("c", "date", transform="log"), "transform is not permitted for a column of the kind 'date'"),
        (Column("c", "number", transform="sqrt"), "transform must be one of log, asinh, not 'sqrt'"),
    ],
)
def test_other_kinds_and_words_are_refused(column: Column, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Schema([column, Column("n", "number")])


def customers(seed: int) -> pd.DataFrame:
    """Return customers of whom the premium ones spend three times as much: a slope of log 3."""
    random = np.random.default_rng(seed)
    premium = random.random(ROWS) < 0.2
    spend = 60 * random.lognormal(0, 1.2, ROWS) * np.where(premium, 3, 1)
    return pd.DataFrame({"spend": spend, "premium": premium, "balance": random.normal(0, 900, ROWS) ** 3 / 1e5})


TEXT = """
[[column]]
name = "spend"
kind = "number"
transform = "log"

[[column]]
name = "premium"
kind = "boolean"

[[column]]
name = "balance"
kind = "number"
transform = "asinh"
"""


@pytest.mark.usefixtures("apart")
def test_a_skewed_column_has_the_slope_of_its_logarithm_and_synthetic_rows_are_money_again(
    call: Call,
) -> None:
    frame = customers(4)
    frame.to_csv("t.csv", index=False)
    Path("s.toml").write_text(TEXT)
    said = call("release", "t.csv", "r.zarr", "--schema", "s.toml", "--epsilon", "1", "--delta", "1e-6",
                "--header", "yes", "--each-row-is-a-person")  # fmt: skip
    assert said.code == 0, said.err
    release = dpdist.open_release("r.zarr")
    assert release.names == ("log1p(spend)", "premium", "asinh(balance)")
    centre, scale = release.bound.input_units
    logarithm = np.log1p(frame["spend"])
    assert centre[0] == pytest.approx(logarithm.mean(), abs=0.4)
    assert scale[0] == pytest.approx(logarithm.std(), rel=0.3)  # thin tails are not seen
    told = call("regress", "r.zarr", "--target", "spend", "--on", "premium")
    text = " ".join(told.out.split())
    assert "Regression of log1p(spend) on 1 column" in text
    assert "exp of a fit, less 1 is the median of spend where errors are symmetric, not its mean" in text
    found = call("regress", "r.zarr", "--target", "spend", "--on", "premium", "--json").json
    slope = np.polyfit(frame["premium"].astype(float), logarithm, 1)[0]
    premium = found["coefficients"]["premium"]  # of the clipped rows: .95 to 1.03 of 1.04 in twelve releases
    assert premium["low"] < premium["value"] < premium["high"]
    assert premium["value"] == pytest.approx(slope, abs=0.2)
    assert call("synthesise", "r.zarr", "drawn.csv", "--rows", "20000", "--seed", "1").code == 0
    drawn = pd.read_csv("drawn.csv")
    assert list(drawn.columns) == ["spend", "premium", "balance"]
    assert drawn["spend"].median() == pytest.approx(frame["spend"].median(), rel=0.2)
    assert drawn["spend"].skew() > 2


def test_without_a_range_the_private_scale_looks_at_logarithms(tmp_path: Path) -> None:
    frame = customers(6).drop(columns="premium")
    frame.to_parquet(tmp_path / "t.parquet")
    schema = Schema([Column("spend", "number", transform="log"), Column("balance", "number", transform="asinh")])
    dpdist.ingest_rows(
        tmp_path / "t.parquet", tmp_path / "t.zarr", budget=PrivacyLoss.parse("2", "1e-6"), schema=schema
    )
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), "auto", scale="private", centring="private")  # type: ignore[arg-type]
    release = dpdist.release_rows(tmp_path / "t.zarr", tmp_path / "r.zarr", request).release
    assert release.stage is not None
    assert release.stage.answer["ranges"] == [[0.0, 40.0, 400], [-40.0, 40.0, 800]]
    truth = np.log1p(frame["spend"]).std(), np.arcsinh(frame["balance"]).std()
    assert release.bound.scale == pytest.approx(truth, rel=0.3)
    assert dpdist.open_release(tmp_path / "r.zarr").schema == schema
