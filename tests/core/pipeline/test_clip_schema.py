"""The clip norm of a schema shortens no row: counts of complete categories have no bias."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from support.cli_scene import Call

import dpdist
from dpdist.answers.bias import clipped_rows
from dpdist.core.errors import ClippedRowsWarning, UsageError
from dpdist.core.rows.bounding import RowBound, unclipped_norm
from dpdist.core.rows.dither import Affine, Dithering, DitherKey

ROWS = 20_000


def categories(variables: int, seed: int) -> npt.NDArray[np.float64]:
    """Return complete categories as zeros and ones: all rows have the norm sqrt(variables)."""
    random = np.random.default_rng(seed)
    blocks = []
    for _ in range(variables):
        size = int(random.integers(2, 9))
        blocks.append(np.eye(size)[random.choice(size, ROWS, p=random.dirichlet(np.ones(size)))])
    return np.hstack(blocks)


def slope(
    rows: npt.NDArray[np.float64], by: Affine, bits: int, seed: int, kept: slice = slice(None)
) -> tuple[float, float]:
    """Return the slope of the rounded diagonal on the exact one, and the deviation that rounding gives it."""
    grid, columns = Dithering(rows.shape[1], bits), rows.shape[1]
    unit = by.clip_norm / 2**bits
    drawn = DitherKey(seed.to_bytes(32, "little")).drawn(0, len(rows), columns)
    rounded = grid.rounded(rows, drawn, by)
    rows, rounded = rows[:, kept], rounded[:, kept]
    diagonal = (np.einsum("ij,ij->j", rounded, rounded) - len(rows) / 4) * unit**2
    exact = np.einsum("ij,ij->j", rows, rows)
    # an entry x + e/2^b has the square x² + 2 x e + e²: variances x² and 3/16 of a step at most
    variance = (exact * unit**2 + len(rows) * unit**4 * 3 / 16) @ exact**2
    return float(diagonal @ exact / (exact @ exact)), float(np.sqrt(variance) / (exact @ exact))


@pytest.mark.parametrize("bits", [10, 12, 14])
@pytest.mark.parametrize("variables", [2, 13, 15])
def test_no_count_is_too_low_by_more_than_rounding(variables: int, bits: int) -> None:
    """False-alarm rate 6e-5 for each: four deviations. With the norm itself, all rows are shortened."""
    rows = categories(variables, 10 * variables + bits)
    norm = float(np.sqrt(variables))
    clip = unclipped_norm(norm, rows.shape[1], bits)
    found, deviation = slope(rows, Affine(None, None, clip), bits, seed=variables)
    assert abs(found - 1) < 4 * deviation + 1e-5  # single steps of some 1e-5 of rows
    shorter, _ = slope(rows, Affine(None, None, norm), bits, seed=variables)
    assert shorter < 1 - 3 * 2.0**-bits
    bound = RowBound(rows.shape[1], clip, bits)
    assert norm < bound.shortened_norm < norm * (1 + 1e-6)


@pytest.mark.parametrize("bits", [10, 12, 14])
@pytest.mark.parametrize("variables", [2, 13, 15])
def test_no_count_is_too_low_beside_a_heavy_number(variables: int, bits: int) -> None:
    """False-alarm rate 6e-5 for each. Where rows are clipped whole, the counts of long ones are too low."""
    rows, seed = categories(variables, 7 * variables + bits), variables
    heavy = np.random.default_rng(seed).lognormal(0, 2, (ROWS, 1))
    rows = np.hstack([rows, heavy])
    whole = tuple(range(rows.shape[1] - 1))
    bound = RowBound(rows.shape[1], 1.75, bits, whole=whole, whole_norm=variables**0.5)
    assert bound.numbers_norm == pytest.approx(1.75, rel=1e-5)
    counted = slice(0, -1)
    found, deviation = slope(rows, bound.affine, bits, seed, counted)
    assert abs(found - 1) < 4 * deviation + 1e-5
    together, _ = slope(rows, bound.affine._replace(numbers=None), bits, seed, counted)
    assert together < 0.95


SCHEMA = """
[[column]]
name = "region"
kind = "category"
categories = ["north", "south", "east"]

[[column]]
name = "member"
kind = "category"
categories = ["yes", "no"]
"""


@pytest.fixture
def table(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:  # noqa: ARG001
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "region": random.choice(["north", "south", "east"], ROWS, p=[0.7, 0.2, 0.1]),
            "member": random.choice(["yes", "no"], ROWS, p=[0.9, 0.1]),
        }
    )
    frame.to_csv("t.csv", index=False)
    Path("schema.toml").write_text(SCHEMA)
    return frame


INGEST = ("ingest", "t.csv", "rows.zarr", "--schema", "schema.toml", "--budget-epsilon", "9", "--budget-delta", "1e-5")
RELEASE = ("--epsilon", "1", "--delta", "1e-6")


def test_ingest_advises_the_word_and_the_counts_are_right_as_typed(table: pd.DataFrame, call: Call) -> None:
    said = call(*INGEST)
    assert "The schema's ranges limit every row to norm 1.415, so --clip schema clips nothing." in said.out
    assert "--centre private" not in said.out
    about_zero = ("--clip", "schema", "--centre", "none")
    made = call("release", "rows.zarr", "release.zarr", *RELEASE, *about_zero)
    assert made.code == 0, made.err
    release = dpdist.open_release("release.zarr")
    assert clipped_rows(release).longest == pytest.approx(np.sqrt(2))
    counts = pd.get_dummies(table[["region", "member"]], prefix_sep="=")[list(release.names)].sum().to_numpy()
    noise = np.sqrt(release.noise.variance_diagonal or 0) * release.bound.unit**2
    released = np.diagonal(np.asarray(release.second_moment))
    assert np.abs(released - counts).max() < 6 * noise
    again = call("release", "rows.zarr", "again.zarr", *RELEASE, *about_zero)
    assert "nothing spent" in again.out
    assert dpdist.open_release("again.zarr").release_id == release.release_id
    told = call("inspect", "release.zarr")
    assert "none is longer than 1.4142" in told.out or "no row longer than" in told.out


def test_the_id_has_the_norm_and_a_norm_that_clips_is_not_said_to_clip_none(table: pd.DataFrame, call: Call) -> None:  # noqa: ARG001
    call(*INGEST)
    ids = set()
    for clip in ("schema", "1.415"):
        made = call("release", "rows.zarr", f"{clip}.zarr", *RELEASE, "--clip", clip, "--json")
        ids.add(made.json["release_id"])
    assert len(ids) == 2
    assert clipped_rows(dpdist.open_release("schema.zarr")).longest is not None
    assert clipped_rows(dpdist.open_release("1.415.zarr")).longest is not None  # categories are never shortened


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("asked", [("--scale", "private"), ("--centre", "centre.npy")])
def test_it_is_refused_where_rows_are_shifted_or_scaled(call: Call, asked: tuple[str, ...]) -> None:
    call(*INGEST)
    np.save("centre.npy", np.zeros(5))
    said = call("release", "rows.zarr", "r.zarr", *RELEASE, "--clip", "schema", *asked)
    assert (said.code, "leave the centre and --scale out" in said.message) == (2, True)


def test_it_is_refused_without_a_schema_that_bounds_every_column(table: pd.DataFrame, call: Call) -> None:
    random = np.random.default_rng(1)
    np.save("t.npy", random.normal(size=(2000, 3)))
    call("ingest", "t.npy", "plain.zarr", "--budget-epsilon", "9", "--budget-delta", "1e-5")
    said = call("release", "plain.zarr", "r.zarr", *RELEASE, "--clip", "schema")
    assert (said.code, "and these rows have none" in said.message) == (2, True)
    with pytest.raises(UsageError, match=r"1.01 \* schema.norm"):
        dpdist.PrivatePCA(1, epsilon=1, delta=1e-6, clip="schema").fit(random.normal(size=(2000, 3)))
    schema = dpdist.Schema.read("schema.toml")
    rows = schema.transform(table)
    with pytest.warns(ClippedRowsWarning, match="or are nearly as long"):
        pca = dpdist.PrivatePCA(1, epsilon=1, delta=1e-6, clip=1.01 * float(schema.norm or 0)).fit(rows)
    assert pca.release_.bound.shortened_norm > float(schema.norm or 0)


def test_a_forecast_and_a_job_know_the_word(table: pd.DataFrame, call: Call) -> None:  # noqa: ARG001
    call(*INGEST)
    by_word: Any = call("forecast", "rows.zarr", *RELEASE, "--clip", "schema", "--json").json
    by_number = call("forecast", "rows.zarr", *RELEASE, "--clip", "1.415", "--json").json
    assert by_word["entry_standard_deviation"] == pytest.approx(by_number["entry_standard_deviation"], rel=0.01)
    Path("job.toml").write_text(
        '[rows]\npath = "job.zarr"\nsource = "t.csv"\nschema = "schema.toml"\n'
        'header = "yes"\nbudget_epsilon = 2\nbudget_delta = 1e-5\n'
        '[release]\npath = "job.release.zarr"\nepsilon = 1\ndelta = 1e-6\nclip = "schema"\n'
    )
    said = call("run", "job.toml")
    assert said.code == 0, said.err


def test_a_job_with_periods_has_one_clip_norm_by_the_schema(table: pd.DataFrame, call: Call) -> None:
    Path("in").mkdir()
    for number in (1, 2):
        table.iloc[number::2].to_csv(f"in/d{number}.csv", index=False)
    Path("job.toml").write_text(
        '[rows]\npath = "nights.zarr"\nsource = "in"\nschema = "schema.toml"\nheader = "yes"\nperiods = true\n'
        "budget_epsilon = 4\nbudget_delta = 1e-5\n"
        '[release]\npath = "nights.release.zarr"\nepsilon = 1\ndelta = 1e-6\nclip = "schema"\n'
    )
    said = call("run", "job.toml", "--dry-run")
    assert said.code == 0, said.err
    said = call("run", "job.toml")
    assert said.code == 0, said.err
    bounds = {dpdist.open_release(path).bound for path in Path("nights.release.zarr").glob("d*.zarr")}
    (bound,) = bounds
    norm = (2 / 3 + 1 / 2) ** 0.5
    assert norm < bound.shortened_norm < norm * (1 + 1e-6)


def test_without_a_mean_every_answer_says_what_it_is_about_and_a_file_is_refused_before_it_is_paid(
    table: pd.DataFrame, call: Call
) -> None:
    random = np.random.default_rng(2)
    table.assign(age=random.integers(18, 90, ROWS), income=random.normal(3e4, 9e3, ROWS)).to_csv("u.csv", index=False)
    ranged = [("age", "[0, 120]"), ("income", "[0, 60000]")]
    columns = "".join(f'[[column]]\nname = "{name}"\nkind = "number"\nrange = {ends}\n' for name, ends in ranged)
    Path("u.toml").write_text('scale = "range"\n' + SCHEMA + columns)
    asked = (*RELEASE, "--clip", "schema", "--centre", "none")
    said = call("release", "u.csv", "u.release.zarr", *asked, "--schema", "u.toml")
    assert (said.code, "--centre private, which costs nothing; or ingest" in said.message) == (2, True)
    assert not Path("u.ledger").exists()
    ingested = call("ingest", "u.csv", "u.zarr", "--schema", "u.toml", *INGEST[5:])
    assert "--clip schema clips nothing." in ingested.out
    assert call("release", "u.zarr", "about.zarr", *asked).code == 0
    assert call("release", "u.zarr", "mean.zarr", *asked[:-2]).code == 0
    about = "about the middle of each range, as no mean was released"
    for command in (
        ("regress", "{}.zarr", "--target", "income", "--on", "age"), ("pca", "{}.zarr", "{}.model.zarr"),
        ("covariance", "{}.zarr", "{}.csv"),
    ):  # fmt: skip
        for name in ("about", "mean"):
            told = call(*(word.format(name) for word in command))
            assert told.code == 0, told.err
            assert (about in " ".join(told.out.split())) is (name == "about"), told.out


def test_a_series_with_a_private_scale_has_one_bound_beside_categories(table: pd.DataFrame, call: Call) -> None:
    random = np.random.default_rng(4)
    frame = table.assign(spend=random.lognormal(2, 1, ROWS), rare=(np.arange(ROWS) == 3).astype(int))
    numbers = "".join(f'[[column]]\nname = "{name}"\nkind = "number"\n' for name in ("spend", "rare"))
    Path("n.toml").write_text(SCHEMA + numbers)
    Path("in").mkdir()
    for number in (1, 2):
        frame.iloc[number::2].to_csv(f"in/d{number}.csv", index=False)
    Path("job.toml").write_text(
        '[rows]\npath = "nights.zarr"\nsource = "in"\nschema = "n.toml"\nheader = "yes"\nperiods = true\n'
        "budget_epsilon = 4\nbudget_delta = 1e-5\n"
        '[release]\npath = "nights.release.zarr"\nepsilon = 2\ndelta = 1e-6\nclip = "auto"\nscale = "private"\n'
        'centre = "private"\n'
    )
    said = call("run", "job.toml")
    assert said.code == 0, said.err
    assert "The spread of 1 column is lost in the noise" in said.told
    assert call("status", "job.toml").code == 0
    releases = [dpdist.open_release(path) for path in Path("nights.release.zarr").glob("d*.zarr")]
    (bound,) = {release.bound for release in releases}
    assert len(releases) == 2
    assert bound.whole == (0, 1, 2, 3, 4)
    assert bound.row_norm == pytest.approx(np.hypot(bound.clip_norm, np.sqrt(2 * (2 / 3 + 1 / 2))), rel=0.005)
