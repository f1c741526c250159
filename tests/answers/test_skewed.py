"""Skewed columns are named with the line to write, from the released histograms; others are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.cli_scene import Call

import dpdist
from dpdist.answers.bias import clipped_rows
from dpdist.answers.skewed import clipping, skewed_message, transforms

ROWS = 20_000


@pytest.fixture
def frame() -> pd.DataFrame:
    random = np.random.default_rng(7)
    return pd.DataFrame(
        {
            "spend": random.lognormal(3, 1.2, ROWS), "gain": 100 * random.normal(size=ROWS) ** 5,
            "age": random.integers(18, 90, ROWS), "height": random.normal(170, 9, ROWS),
            "flag": (random.random(ROWS) < 0.1).astype(int),
        }
    )  # fmt: skip


@pytest.mark.usefixtures("apart")
def test_a_release_names_them_and_the_line_works_as_typed(
    frame: pd.DataFrame,
    call: Call,
) -> None:
    """False-alarm rate below 1 in 1000: the noise is 1 % of the least bin that decides."""
    frame.to_csv("t.csv", index=False)
    asked = ("--epsilon", "4", "--delta", "1e-6", "--each-row-is-a-person")
    said = call("release", "t.csv", "r.zarr", *asked)
    assert said.code == 0, said.err
    told = " ".join(said.out.split())
    assert (
        'spend: skewed, so a few rows determine means and slopes, and are clipped. In a schema, transform = "log"'
        in told
    )
    assert transforms(dpdist.open_release("r.zarr"))["log"] == ["spend"]
    assert transforms(dpdist.open_release("r.zarr")).get("asinh") in (["gain"], None)
    kinds: dict[str, Any] = {"spend": {"transform": "log"}, "gain": {"transform": "asinh"}}
    schema = dpdist.Schema([dpdist.Column(name, "number", **kinds.get(name, {})) for name in frame.columns])
    frame.to_parquet("u.parquet")
    dpdist.ingest_rows("u.parquet", "u.zarr", budget=dpdist.PrivacyLoss.parse("4", "1e-6"), schema=schema)
    request = dpdist.ReleaseRequest("gaussian", dpdist.PrivacyLoss.parse("4", "1e-6"), "auto", scale="private")
    assert skewed_message(dpdist.release_rows("u.zarr", "u.release.zarr", request).release) == ""


@pytest.mark.usefixtures("apart")
def test_a_skewed_column_that_clips_no_row_is_not_called_its_reason(call: Call) -> None:
    random = np.random.default_rng(8)
    frame = pd.DataFrame({
        "rate": np.minimum(random.exponential(size=ROWS), 2.5), "tails": random.standard_t(2.2, ROWS),
        "age": random.integers(18, 90, ROWS), "height": random.normal(170, 9, ROWS),
    })  # fmt: skip
    frame.to_csv("t.csv", index=False)
    asked = ("--epsilon", "4", "--delta", "1e-6", "--each-row-is-a-person")
    told = " ".join(call("release", "t.csv", "r.zarr", *asked).out.split())
    assert "rate: skewed, so a few rows determine means and slopes. In a schema" in told
    release = dpdist.open_release("r.zarr")
    assert "rate" not in clipping(release)
    caveat = clipped_rows(release).caveat("means")
    assert "were clipped" in caveat
    assert "rate" not in caveat


def test_without_a_histogram_nothing_is_said(frame: pd.DataFrame, tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", frame.to_numpy(float))
    budget = dpdist.PrivacyLoss.parse("4", "1e-6")
    dpdist.ingest_rows(tmp_path / "t.npy", tmp_path / "t.zarr", budget=budget)
    request = dpdist.ReleaseRequest("gaussian", budget, 500.0)
    assert transforms(dpdist.release_rows(tmp_path / "t.zarr", tmp_path / "r.zarr", request).release) == {}
