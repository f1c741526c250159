"""Releases of tables of which all rows of a privacy unit are kept, and bounded together."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.cli_scene import Call

from dpdist.answers.bias import clipped_rows, unit_weights
from dpdist.answers.covariance import covariance
from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.mechanisms.gaussian import CalibratedGaussian
from dpdist.core.moment.histograms import ColumnCounting, HistogramTask, NormCounting, partition_histogram
from dpdist.core.pipeline.budget import create_ledger
from dpdist.core.pipeline.clip_norm import choose_clip_norm
from dpdist.core.pipeline.release import release_rows
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.artefact import Release
from dpdist.core.release.bounds import Dimensions, UsualRow
from dpdist.core.release.norm_histogram import NormsRequest
from dpdist.core.release.opening import open_release
from dpdist.core.release.plan import plan_of, planned
from dpdist.core.release.request import CLIP_GRID, ReleaseRequest
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.columns import Column
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.rows.schema import Schema

Table = npt.NDArray[np.float64]
BUDGET = PrivacyLoss.parse("400", "1e-4")
LOSS = PrivacyLoss.parse("20", "1e-6")


def visits(units: int = 400, seed: int = 1) -> tuple[npt.NDArray[np.int64], Table]:
    """Rows of units, a few of which have most of them."""
    random = np.random.default_rng(seed)
    counts = np.maximum(1, random.lognormal(1.2, 1.1, units).astype(int))
    who = np.repeat(np.arange(units), counts)
    rows = random.normal(size=(len(who), 3)) @ np.array([[2.0, 1, 0], [0, 1, 0.5], [0, 0, 0.4]]) + [4.0, 0, -1]
    order = random.permutation(len(who))
    return who[order], rows[order]


def table_of(folder: Path, who: npt.NDArray[np.int64], rows: Table, **columns: Any) -> RowsTable:
    data = {"who": who, **{name: rows[:, i] for i, name in enumerate("abc"[: rows.shape[1]])}, **columns}
    pq.write_table(pa.table(data), folder / "visits.parquet")
    return ingest_rows(folder / "visits.parquet", folder / "rows.zarr", privacy_unit="who", budget=BUDGET)


def shortened(who: npt.NDArray[np.int64], rows: Table, bound: RowBound) -> tuple[Table, Table]:
    """Return the weighted moment, by hand, with the constant, and the weight of each row."""
    x = (rows - (bound.centre or 0)) / (bound.scale or 1)
    x *= np.minimum(1, bound.shortened_norm / np.linalg.norm(x, axis=1))[:, None]
    x = np.column_stack([x, np.full(len(x), bound.constant * bound.unit)]) if bound.constant else x
    moment, weights = np.zeros((x.shape[1],) * 2), np.empty(len(x))
    for unit in np.unique(who):
        own = who == unit
        part = x[own].T @ x[own]
        norm = np.linalg.norm(part) if bound.unit_norm == "frobenius" else np.trace(part)
        weights[own] = min(1.0, bound.clip_norm**2 / norm)
        moment += weights[own][0] * part
    return moment, weights


def released(folder: Path, table: RowsTable, **request: Any) -> Release:
    asked = ReleaseRequest(request.pop("mechanism", "gaussian"), request.pop("loss", LOSS), **request)
    return release_rows(table.store, folder / f"{len(list(folder.iterdir()))}.zarr", asked).release


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_answers_are_of_weighted_rows_and_n_is_the_sum_of_weights(tmp_path: Path, neighbours: Neighbours) -> None:
    who, rows = visits()
    table = table_of(tmp_path, who, rows)
    release = released(tmp_path, table, clip_norm="private", scale="private", centring="private", neighbours=neighbours)
    bound = release.bound
    assert bound.unit_norm == "frobenius"
    assert release.guarantee is not None
    moment, weights = shortened(who, rows, bound)
    assert 0.02 < (weights < 1).mean() < 0.9
    assert release.row_count == pytest.approx(weights.sum(), rel=0.01)
    assert release.rows == (len(rows) if neighbours is Neighbours.REPLACE_ONE else None)
    result = covariance(release).matrix
    x = (rows - np.array(bound.centre)) / np.array(bound.scale)
    x *= np.minimum(1, bound.shortened_norm / np.linalg.norm(x, axis=1))[:, None]
    mean = np.average(x, axis=0, weights=weights)
    expected = (x - mean).T @ ((x - mean) * weights[:, None]) / weights.sum()
    scale = np.array(bound.scale)
    assert result == pytest.approx(expected * np.outer(scale, scale), rel=0.03, abs=0.03)
    assert np.abs(np.linalg.norm(release.second_moment - moment[:3, :3]) / np.linalg.norm(moment)) < 0.01


def test_noise_is_that_of_one_row_of_the_clip_norm(tmp_path: Path) -> None:
    who, rows = visits()
    table = table_of(tmp_path, who, rows)
    for mechanism, loss in (("gaussian", LOSS), ("two-sided-wishart", PrivacyLoss.parse("5"))):
        request = ReleaseRequest(mechanism, loss, clip_norm=9.0, grid_bits=12)
        plan = plan_of(request, table)
        alone = planned(request, Dimensions(3, table.rows))
        assert plan.moment.noise == alone.moment.noise
        assert plan.guarantee == alone.guarantee
        assert plan.bound.unit_norm == ("frobenius" if mechanism == "gaussian" else "trace")
    with pytest.raises(RefusedError, match="any number of rows"):
        plan_of(ReleaseRequest("analyze-gauss", LOSS, clip_norm=9.0), table)


def test_a_mean_needs_rows_of_a_known_size(tmp_path: Path) -> None:
    table = table_of(tmp_path, *visits())
    with pytest.raises(UsageError, match="known size"):
        plan_of(ReleaseRequest("gaussian", LOSS, clip_norm=9.0, centring="private"), table)  # type: ignore[arg-type]
    plan = plan_of(ReleaseRequest("gaussian", LOSS, "auto", scale="private"), table)
    assert list(plan.stages) == ["scale", "clip norm"]  # how many rows a unit has is private
    assert set(plan.shares.values()) == {Fraction(1, 10)}


def test_histograms_count_each_unit_once(tmp_path: Path) -> None:
    who, rows = visits()
    table = table_of(tmp_path, who, rows)
    task = HistogramTask(table, ColumnCounting.of(table.columns, table.schema), range(table.chunks))
    units = len(np.unique(who))
    columns = ColumnCounting.of(table.columns, table.schema).of_columns(partition_histogram(task).values)
    assert [int(counts.sum()) for counts in columns] == [units] * 3
    bound = RowBound(3, 1.0, scale=(2.0, 1.0, 1.0))
    for kind in ("frobenius", "trace"):
        counting = NormCounting(bound, CLIP_GRID.edges, unit_norm=kind, constant=0.5)
        counts = partition_histogram(HistogramTask(table, counting, range(table.chunks))).values
        expected = np.zeros_like(counts)
        for unit in np.unique(who):
            x = np.column_stack([rows[who == unit] / [2, 1, 1], np.full((who == unit).sum(), 0.5)])
            norm = np.linalg.norm(x.T @ x) if kind == "frobenius" else np.trace(x.T @ x)
            expected[np.searchsorted(CLIP_GRID.edges, math.sqrt(norm))] += 1
        assert np.array_equal(counts, expected)


def test_a_clip_norm_of_units_is_chosen_by_their_number_which_stays_private(tmp_path: Path) -> None:
    who, rows = visits(2000)  # of 400, one in twenty runs is off by more
    table = table_of(tmp_path, who, rows)
    create_ledger(tmp_path / "rows.ledger", table.store)
    said: list[str] = []
    choice = choose_clip_norm(table.store, NormsRequest(LOSS), say=said.append)
    assert choice.histogram.rows is None  # under replace-one, too
    assert "The number of privacy units is private" in said[0]
    assert "of the privacy units" in choice.describe()
    assert "their rows would weigh less" in choice.describe()
    norms = sorted(np.linalg.norm(rows[who == unit].T @ rows[who == unit]) ** 0.5 for unit in np.unique(who))
    assert choice.clip == pytest.approx(norms[int(0.95 * len(norms))], rel=0.3)


@pytest.mark.usefixtures("silent")
def test_categories_of_a_unit_of_one_row_keep_their_counts(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    who, spend = np.arange(3000), random.lognormal(0, 2, 3000)
    plan = random.integers(0, 3, 3000)
    words = pa.array(np.array(["x", "y", "z"])[plan])
    pq.write_table(pa.table({"who": who, "spend": spend, "plan": words}), tmp_path / "t.parquet")
    schema = Schema([
        Column("who", "privacy unit"), Column("spend", "number"),
        Column("plan", "category", categories=("x", "y", "z")),
    ])  # fmt: skip
    table = ingest_rows(tmp_path / "t.parquet", tmp_path / "rows.zarr", schema=schema, budget=BUDGET)
    release = released(tmp_path, table, clip_norm="private", scale="private")
    assert release.bound.whole
    assert release.row_count == pytest.approx(3000, rel=2e-3)  # long numbers leave the weight at 1
    moment, constant = release.second_moment, release.bound.constant * release.bound.unit
    usual = UsualRow(schema, scaled=True)
    assert constant == pytest.approx(usual.constant(release.bound), rel=0.02)
    assert release.bound.clip_norm >= usual.least_clip_norm(release.bound)
    centre, scale = np.array(release.bound.centre)[1:], np.array(release.bound.scale)[1:]
    exact = (np.eye(3)[plan] - centre) / scale
    assert moment[1:, 1:] == pytest.approx(exact.T @ exact, rel=0.02, abs=30)


def test_what_is_said_of_busy_units(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    who = np.concatenate([np.repeat(np.arange(2000), 4), np.repeat(np.arange(2000, 2020), 200)])
    rows = random.normal(size=(len(who), 3))
    table = table_of(tmp_path, who, rows)
    release = released(
        tmp_path, table, clip_norm="private", scale="private", centring="private", loss=PrivacyLoss.parse("4", "1e-6")
    )
    weights = unit_weights(release)
    assert weights is not None
    _, exact = shortened(who, rows, release.bound)
    # by a typical row, of a private scale: .79 to .94 of it in 30 releases
    assert weights.weight(200) == pytest.approx(exact[who == 2005][0], rel=0.35)
    assert 4 < (weights.full or 0) < 200
    assert weights.total is not None
    width = weights.total[1] - weights.total[0]
    assert weights.total[0] - width <= exact.sum() <= weights.total[1] + width
    lengths = clipped_rows(release)
    assert lengths.between is not None
    assert lengths.between[0] <= 20 / 2020 <= lengths.between[1] or lengths.between[1] > 0.01
    text = lengths.describe()
    assert re.search(r"of all rows, (each|their numbers) clipped to norm [\d.]+, where those of a who with many", text)
    assert re.search(r"with typical rows from about \d+ to \d+ on, the fewer the more alike they are", text)
    assert re.search(rf"all weights add up to \d+ to \d+ of {len(rows)} rows", text)
    assert re.search(r"unknown: the rows of [\d.]+ to [\d.]+% of all units of who weigh less", lengths.unknown)
    assert lengths.warning().startswith("For the rows as they are, means, slopes")


def test_the_command_line_keeps_all_rows_of_a_person(apart: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    who, rows = visits(431)
    pq.write_table(pa.table({"patient": who, "a": rows[:, 0], "b": rows[:, 1], "c": rows[:, 2]}), "v.parquet")
    asked = ("--epsilon", "20", "--delta", "1e-6")
    refused = call("release", "v.parquet", "r.zarr", *asked)
    assert refused.code != 0
    assert "--privacy-unit patient" in " ".join(refused.err.split())
    said = call("release", "v.parquet", "r.zarr", *asked, "--person", "patient", "--json")
    assert said.code == 0, said.err
    value = json.loads(said.out)
    assert value["unit"] == {"column": "patient"}
    assert value["bound"]["unit_norm"] == "frobenius"
    assert "All rows of one patient are protected together." in " ".join(said.err.split())
    for text in (said.out, said.err):
        assert str(len(np.unique(who))) not in re.findall(r"[\w.]+", text)  # 431
    assert call("inspect", "r.zarr").code == 0
    assert call("pca", "r.zarr", "m.zarr", "--correlation").code == 0
    report = call("report", "r.zarr", "r.html")
    assert report.code == 0
    assert open_release("r.zarr").bound.unit_norm == "frobenius"
    forecast = call("forecast", "v.zarr", *asked, "--clip", "9")
    assert forecast.code == 0
    assert "all rows of a privacy unit" in " ".join(forecast.out.split())
    project = call("project", "v.zarr", "m.zarr", "s.zarr")
    assert project.code == 0, project.err
    monkeypatch.chdir(apart)
    assert CalibratedGaussian.law


def test_a_scale_of_ones_is_a_scale(tmp_path: Path) -> None:
    # a released scale may be 1 in all columns, and so may a public one: the constant of the mean is known then
    random = np.random.default_rng(1)
    who, rows = np.repeat(np.arange(500), 5), random.choice(np.arange(3.0), size=(2500, 3), p=[0.3, 0.4, 0.3])
    table = table_of(tmp_path, who, rows)
    private = released(tmp_path, table, clip_norm=9.0, scale="private", centring="private", loss=LOSS)
    assert private.bound.constant > 0
    public = released(tmp_path, table, clip_norm=9.0, scale=(1.0, 1.0, 1.0), centring="private")
    assert public.bound.constant == round(math.sqrt(3) / 4 * 2**public.bound.grid_bits / 9)
    chosen = released(tmp_path, table, clip_norm="private", scale=(1.0, 1.0, 1.0), centring="private", period="2")
    assert chosen.bound.clip_norm >= 1.75 * math.sqrt(3)


def test_numbers_beside_categories_have_room_or_are_refused() -> None:
    schema = Schema([Column("n", "number", range=(0, 1)), Column("c", "category", categories=("x", "y"))])
    size = Dimensions(3, 1000, schema=schema, together=True)
    request = ReleaseRequest("gaussian", LOSS, 1.03, scale="private")
    with pytest.raises(UsageError, match=r"must exceed 1\.\d+") as refused:
        planned(request, size)
    least = float(re.findall(r"exceed ([\d.]+)", str(refused.value))[0])
    assert planned(ReleaseRequest("gaussian", LOSS, least, scale="private"), size).bound.numbers_norm > 0.1


def test_how_many_units_a_private_scale_needs_is_said_before_it_is_paid_for(tmp_path: Path) -> None:
    table = table_of(tmp_path, *visits())
    said: list[str] = []
    release_rows(
        table.store, tmp_path / "r.zarr", ReleaseRequest("gaussian", LOSS, "auto", scale="private"), say=said.append
    )
    assert re.search(r"counts of each who, and how many there are stays private: below some \d+ of them", said[0])
    few = ReleaseRequest("gaussian", PrivacyLoss.parse("0.05", "1e-9"), "auto", scale="private", period="few")
    with pytest.raises(RefusedError, match=r"at least \d+ privacy units; the table has \d+ rows"):
        release_rows(table.store, tmp_path / "few.zarr", few)


@pytest.mark.usefixtures("silent")
def test_of_units_too_few_to_be_counted_no_share_is_said(tmp_path: Path) -> None:
    # the sum of the counts is noise, and may be negative
    random = np.random.default_rng(7)
    table = table_of(tmp_path, np.repeat(np.arange(20), 30), random.normal(size=(600, 3)))
    asked: dict[str, Any] = {"clip_norm": "private", "scale": (1.0,) * 3, "centring": "private"}
    release = released(tmp_path, table, loss=PrivacyLoss.parse("1", "1e-6"), **asked)
    assert release.stage is not None
    answer = release.stage.answer
    for total in (-300, 0, 10):
        counts = [total // 2, *[0] * (len(answer["counts"]) - 2), total // 2]
        stage = msgspec.structs.replace(release.stage, answer={**answer, "counts": counts})
        unseen = replace(release, stage=stage)
        lengths = clipped_rows(unseen)
        assert lengths.between is None
        assert "the rows of some units of who weigh less" in lengths.unknown
