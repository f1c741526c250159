"""Gaps, pair by pair: covariances are those of the rows that have both values, with the noise that is stated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy.stats import chi2
from support.cli_scene import Call

import dpdist
from dpdist.answers.bias import clipped_rows
from dpdist.answers.block import beside, column_indices
from dpdist.answers.correlation import correlation
from dpdist.answers.covariance import covariance
from dpdist.answers.pairwise import pairwise
from dpdist.answers.regression import regressions
from dpdist.answers.shrinkage import Shrinkage
from dpdist.core.errors import BelowNoiseError, RefusedError, UsageError
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema

Matrix = npt.NDArray[np.float64]
ROWS = 12_000
SHARES = (0.0, 0.05, 0.2, 0.5)
NAMES = [f"x{i}" for i in range(len(SHARES))]
BUDGET = PrivacyLoss.parse("90000", "1e-2")


def table(seed: int, shares: tuple[float, ...] = SHARES) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    rows = 0.3 * random.normal(size=(ROWS, 1)) + 0.2 * random.normal(size=(ROWS, len(shares))) + 0.2
    rows = np.clip(rows, -1, 1)
    rows[random.random(rows.shape) < shares] = np.nan
    return pd.DataFrame(rows, columns=NAMES).assign(kind=random.choice(["a", "b", "c"], ROWS))


def schema(**changes: Any) -> Schema:
    kinds = {name: {"missing": "pairwise" if share else None} for name, share in zip(NAMES, SHARES, strict=True)}
    columns = [Column(name, "number", **({"range": (-1, 1)} | kinds[name] | changes)) for name in NAMES]
    return Schema([*columns, Column("kind", "category", categories=["a", "b", "c"])], scale="range")


def exact(frame: pd.DataFrame) -> Matrix:
    rows = frame[NAMES].to_numpy()
    there = ~np.isnan(rows)
    filled, count = np.where(there, rows, 0.0), there.T.astype(float) @ there
    sums = filled.T @ there
    result: Matrix = filled.T @ filled / count - sums * sums.T / count**2
    return result


def of(release: dpdist.Release) -> Any:
    """Return where the numbers are in a matrix of all columns."""
    return np.ix_(*[[release.names.index(name) for name in NAMES]] * 2)


def released(path: Path, name: str, epsilon: str = "1", **changes: Any) -> dpdist.Release:
    request = ReleaseRequest("gaussian", PrivacyLoss.parse(epsilon, "1e-6"), "schema", rows_at_most=2 * ROWS, name=name)
    return dpdist.release_rows(path, path.with_name(f"{name}.release.zarr"), replace(request, **changes)).release


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    table(1).to_parquet(tmp_path / "t.parquet")
    dpdist.ingest_rows(tmp_path / "t.parquet", tmp_path / "rows.zarr", budget=BUDGET, schema=schema())
    return tmp_path / "rows.zarr"


@pytest.mark.parametrize("neighbours", [Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE])
def test_covariances_are_those_of_the_rows_with_both_values_and_their_noise_is_stated(
    rows: Path, neighbours: Neighbours
) -> None:
    """False-alarm rate 1e-6 a side, with a twin of half the deviation; the entries beside one another are dependent."""
    truth, draws = exact(table(1)), 24
    squares = np.zeros(truth.shape)
    for draw in range(draws):
        release = released(rows, f"{neighbours}{draw}", neighbours=neighbours)
        result, places = covariance(release, Shrinkage.NONE), of(release)
        assert result.errors is not None
        squares += ((result.released[places] - truth) / result.errors[places]) ** 2
    assert (squares > chi2.ppf(1e-7, draws)).all()
    assert (squares < chi2.ppf(1 - 1e-7, draws)).all()
    assert not (4 * squares < chi2.ppf(1 - 1e-7, draws)).all()


def test_with_little_noise_every_answer_is_that_of_the_rows_that_have_both_values(rows: Path) -> None:
    release, truth, frame = released(rows, "fine", "30000"), exact(table(1)), table(1)
    result, (places,) = covariance(release), of(release)[1]
    np.testing.assert_allclose(result.matrix[of(release)], truth, atol=2e-4)
    np.testing.assert_allclose(result.location[places], frame[NAMES].mean(), atol=2e-4)
    found = regressions(release, [int(places[0])], places[1:].tolist(), 0.0)[0]
    slopes = np.linalg.solve(truth[1:, 1:], truth[1:, 0])
    np.testing.assert_allclose([each.value for each in found.coefficients], slopes, atol=5e-3)
    spread = np.sqrt(np.diagonal(truth))
    share = np.linalg.eigvalsh(truth / np.outer(spread, spread))[-1]  # of the numbers: gaps and kinds are on their own
    found_shares = correlation(release, 1).shares
    assert found_shares[0] == pytest.approx(share / 6, rel=0.02)  # one category of two is left out
    assert "x1=missing" not in {release.names[i] for i in beside(release, [0])}
    assert column_indices(release, ["x1"], "targets") == (places[1],)
    kept = pairwise(release)
    assert kept is not None
    assert kept.rows[places[2], places[3]] == pytest.approx(frame[["x2", "x3"]].notna().all(axis=1).sum(), abs=20)


def test_gaps_taken_at_the_centre_shrink_covariances_and_the_answer_says_which(
    rows: Path, tmp_path: Path, call: Call
) -> None:
    release = released(rows, "said", "50")
    words = "from the rows that have both values of a pair, as if gaps were random"
    assert words in clipped_rows(release).describe()
    assert words not in clipped_rows(release).filled.describe()
    path = str(tmp_path / "said.release.zarr")
    told = " ".join(call("regress", path, "--target", "x0").out.split())
    assert words in told
    raw = " ".join(call("pca", path, str(tmp_path / "m.zarr"), "--components", "1", "--no-correlation").out.split())
    assert "at the centre or, of booleans and scaled ranges, at the middle, which may create correlations" in raw
    centred = {"missing": "centre"}
    dpdist.ingest_rows(tmp_path / "t.parquet", tmp_path / "c.zarr", budget=BUDGET, schema=schema(**centred))
    with pytest.raises(RefusedError, match="must be known before rows are summed"):
        released(tmp_path / "c.zarr", "none")
    scaled = released(tmp_path / "c.zarr", "c", "3000", clip_norm=9.0, scale="private", centring=Centring.PRIVATE)
    shrunk = covariance(scaled).correlation[of(scaled)]
    spread = np.sqrt(np.diagonal(exact(table(1))))
    truth = (exact(table(1)) / np.outer(spread, spread))[2, 3]
    assert shrunk[2, 3] < 0.75 * truth
    by_pairs = released(rows, "p", "3000", clip_norm=9.0, scale="private", centring=Centring.PRIVATE)
    assert covariance(by_pairs).correlation[of(by_pairs)][2, 3] == pytest.approx(truth, abs=0.04)


def test_what_gaps_need_is_refused_before_it_is_paid_or_named(tmp_path: Path, rows: Path) -> None:
    with pytest.raises(UsageError, match='missing = "centre" is for numbers: use "indicator"'):
        Schema([Column("b", "boolean", missing="centre"), Column("x", "number")])
    with pytest.raises(UsageError, match='missing = "pairwise" is for numbers'):
        Schema([Column("kind", "category", categories=["a", "b"], missing="pairwise")])
    with pytest.raises(UsageError, match='fill is for missing = "fill" or "indicator"'):
        Schema([Column("x", "number", missing="pairwise", fill=1)])
    plain = Schema([replace(column, range=None) for column in schema().columns], others="refuse")
    dpdist.ingest_rows(tmp_path / "t.parquet", tmp_path / "open.zarr", budget=BUDGET, schema=plain)
    with pytest.raises(RefusedError, match="must be known before rows are summed"):
        released(tmp_path / "open.zarr", "open", clip_norm=4.0)
    with pytest.raises(UsageError, match="needs the mean: leave centring='none' out"):
        released(rows, "about", centring=Centring.NONE)
    gone = table(3, (0.0, 0.0, 0.995, 0.995))
    gone.to_parquet(tmp_path / "gone.parquet")
    dpdist.ingest_rows(tmp_path / "gone.parquet", tmp_path / "gone.zarr", budget=BUDGET, schema=schema())
    release = released(tmp_path / "gone.zarr", "gone")
    with pytest.raises(BelowNoiseError, match=r"Too few rows have both values.*: x1, x2, x3\. Leave"):
        covariance(release)
    assert regressions(release, [0], [1])[0].coefficients  # of the others it can be told


@pytest.mark.parametrize("missing", ["centre", "drop"])
def test_the_middles_of_categories_are_no_centre_of_numbers(tmp_path: Path, missing: str) -> None:
    """Missing numbers would count as 0, whatever their mean."""
    table(1).to_parquet(tmp_path / "t.parquet")
    plain = Schema([replace(c, range=None, missing=missing) if c.kind == "number" else c for c in schema().columns])
    dpdist.ingest_rows(tmp_path / "t.parquet", tmp_path / "rows.zarr", budget=BUDGET, schema=plain)
    asked: list[dict[str, Any]] = [
        {"centring": Centring.SCHEMA, "scale": (1.0,) * 7}, {"centring": Centring.SCHEMA}, {},
        {"mechanism": "power", "options": {"components": 2, "iterations": 3}},
    ]  # fmt: skip
    for number, changes in enumerate(asked):
        with pytest.raises(RefusedError, match="must be known before rows are summed"):
            released(tmp_path / "rows.zarr", f"r{number}", clip_norm=4.0, **changes)
    assert dpdist.Ledger(tmp_path / "rows.ledger").records == []


def test_gaps_are_counted_beside_a_mean_or_refused_before_they_are_paid(rows: Path, tmp_path: Path, call: Call) -> None:
    by_file = tmp_path / "centre.npy"
    np.save(by_file, np.where([name in NAMES for name in schema().features], 0.2, 0.0))
    asked = ("--epsilon", "2000", "--delta", "1e-6", "--clip", "3", "--centre", str(by_file))
    made = call("release", str(rows), str(tmp_path / "p.zarr"), *asked)
    assert made.code == 0, made.err
    found = dpdist.open_release(tmp_path / "p.zarr")
    np.testing.assert_allclose(covariance(found).matrix[of(found)], exact(table(1)), atol=5e-3)
    plain = Schema([replace(column, range=None) for column in schema().columns])
    dpdist.ingest_rows(tmp_path / "t.parquet", tmp_path / "q.zarr", budget=BUDGET, schema=plain)
    options = {"components": 2, "iterations": 3}
    for changes in ({"centring": Centring.NONE, "scale": "private"}, {"mechanism": "power", "options": options}):
        with pytest.raises(UsageError, match="needs the mean: leave"):
            released(tmp_path / "q.zarr", "no", clip_norm=9.0, **changes)
    assert dpdist.Ledger(tmp_path / "q.ledger").records == []
    asked_of: dict[str, Any] = {
        "budget": dpdist.Budget(9000, "1e-3"),
        "each_row_is_a_person": True,
        "say": lambda _: None,
        "epsilon": 900,
        "delta": 1e-6,
    }
    frame = table(1)
    with pytest.raises(UsageError, match="needs the mean: leave"):
        dpdist.private_pca(frame, schema=schema(), clip=2.0, centre="none", **asked_of)
    given = dpdist.private_pca(frame, schema=schema(), clip="schema", **asked_of)
    assert given.release_.bound.constant
    wide = dpdist.private_pca(frame, schema=schema(range=(-9, 9)), clip="schema", **asked_of)
    assert wide.release_.release_id != given.release_.release_id  # the rows are alike, and their meaning is not
    assert "at the middle, which may create correlations" in clipped_rows(given.release_).filled.describe()


def test_rows_without_numbers_are_not_dropped_to_zero(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    frame = pd.DataFrame({"kind": random.choice(["a", "b"], ROWS), "yes": random.random(ROWS) < 0.9})
    frame.loc[random.random(ROWS) < 0.5, "kind"] = None
    frame.to_parquet(tmp_path / "t.parquet")
    columns = [Column("kind", "category", categories=["a", "b"], missing="drop"), Column("yes", "boolean")]
    dpdist.ingest_rows(tmp_path / "t.parquet", tmp_path / "rows.zarr", budget=BUDGET, schema=Schema(columns))
    with pytest.raises(RefusedError, match="must be known before rows are summed"):
        released(tmp_path / "rows.zarr", "zero", centring=Centring.NONE)
    found = released(tmp_path / "rows.zarr", "middle")
    assert "where all values of a category have the same share" in clipped_rows(found).describe()


@pytest.mark.usefixtures("apart")
def test_a_series_whose_chosen_centre_is_zero_goes_on(
    call: Call,
) -> None:
    """It equals the centre of numbers beside contrasts, which is none."""
    random = np.random.default_rng(6)
    values = np.where(random.random(ROWS) < 0.9995, 0.0, 1.0)
    frame = pd.DataFrame(
        {"v": np.where(random.random(ROWS) < 0.1, np.nan, values), "k": random.choice(["a", "b"], ROWS)}
    )
    Path("in").mkdir()
    frame.to_csv("in/d1.csv", index=False)
    Path("s.toml").write_text(
        '[[column]]\nname = "v"\nkind = "number"\nmissing = "centre"\n'
        '[[column]]\nname = "k"\nkind = "category"\ncategories = ["a", "b"]\n'
    )
    Path("job.toml").write_text(
        '[rows]\npath = "nights.zarr"\nsource = "in"\nschema = "s.toml"\nheader = "yes"\nperiods = true\n'
        'budget_epsilon = 9\nbudget_delta = 1e-5\n[release]\npath = "out"\nepsilon = 5\ndelta = 1e-6\n'
        'clip = "auto"\nscale = "private"\n'
    )
    said = call("run", "job.toml")
    assert said.code == 0, said.err
    (release,) = Path("out").glob("d*.zarr")
    assert dpdist.open_release(release).bound.centre == (0.0, 0.5, 0.5)


def test_a_regressor_below_the_noise_is_blamed_and_not_the_target(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y, few = np.clip(random.normal(50, 20, 4000), 0, 100), random.uniform(40, 60, 4000)
    few[random.random(4000) < 0.97] = np.nan
    frame = pd.DataFrame({"y": y, "few": few, "side": random.choice(["left", "right"], 4000)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    schema = dpdist.Schema(
        [
            dpdist.Column("y", "number", range=(0, 100)),
            dpdist.Column("few", "number", range=(0, 100), missing="pairwise"),
            dpdist.Column("side", "category", categories=["left", "right"]),
        ],
        scale="range",
        each_row_is_a_person=True,
    )
    loss = dpdist.PrivacyLoss.parse(1, 1e-6)
    dpdist.ingest_rows(tmp_path / "t.csv", tmp_path / "rows.zarr", header="yes", schema=schema, budget=loss)
    request = dpdist.ReleaseRequest("gaussian", loss, "schema")
    release = dpdist.release_rows(tmp_path / "rows.zarr", tmp_path / "release.zarr", request).release
    place = {name: index for index, name in enumerate(release.names)}
    with pytest.raises(BelowNoiseError, match=r"Less of few is seen than the noise .* Leave few out of on"):
        regressions(release, [place["y"]], [place["few"]])
    assert regressions(release, [place["y"]], [place["side=left"]])[0].target == "y"
