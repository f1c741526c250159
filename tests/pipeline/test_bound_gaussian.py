"""A clip norm on a budget with a delta: Gaussian counts, their errors, their charge, and what was released before."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from support.folders import STORED, unpack
from support.norms import GRID, HALF, call, ledger_of, no_row_is_read, some_rows, table_of
from support.tallies import alarms

from dpdist import Column, Schema
from dpdist.errors import DataError, RefusedError
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.mechanisms.counts import DiscreteLaplace, RoundedNormal
from dpdist.mechanisms.quantile import calibrated
from dpdist.moment.histograms import NormGrid, counted, norms_of
from dpdist.pipeline import clip_norm
from dpdist.pipeline.budget import default_ledger
from dpdist.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss
from dpdist.release import advice, norm_histogram
from dpdist.release.advice import forecast, worth_of
from dpdist.release.norm_histogram import NormHistogram, NormsRequest, NormsTransaction
from dpdist.rows.bounding import RowBound
from dpdist.rows.dataset import RowsTable
from dpdist.runtime.cluster import Cluster

PURE = NormsRequest(PrivacyLoss.parse("0.5"), GRID)
GAUSSIAN = replace(PURE, loss=PrivacyLoss.parse("0.5", "1e-6"))
HISTOGRAM = STORED / "norms-1.tar.gz"
"""A table, its ledger of (1, 1e-6), with a histogram released and one reserved, and what ``bound --json`` answered.

Written by the code of commit e2b98bf, which knew Laplace noise only.
"""


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is computed in this process."""
    monkeypatch.setattr(Cluster, "named", False)


@pytest.fixture
def table(tmp_path: Path) -> RowsTable:
    """Six hundred rows under a budget with a delta."""
    return table_of(tmp_path / "rows.zarr", some_rows(), PrivacyLoss.parse("9", "1e-6"))


def transaction_of(request: NormsRequest, table: RowsTable) -> NormsTransaction:
    return NormsTransaction(request, table, default_ledger(table.path).absolute())


def chosen(table: RowsTable, request: NormsRequest = PURE, *, budget_delta: bool = True) -> clip_norm.ClipChoice:
    return clip_norm.choose_clip_norm(table.path, request, HALF, budget_delta=budget_delta)


def test_a_release_is_the_exact_histogram_plus_one_draw_of_the_noise(
    table: RowsTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "forecast", lambda *_: "")  # of six hundred rows it would tell nothing
    fine = NormsRequest(PrivacyLoss.parse("0.5"), NormGrid(0.01, 640, 60))
    choice = clip_norm.choose_clip_norm(table.path, fine, Fraction(1, 100), budget_delta=True)
    exact = counted(norms_of(some_rows(), RowBound(4, 1.0), np.empty((600, 4))), choice.histogram.edges)
    noise = np.array(choice.histogram.counts) - exact
    expected = calibrated(PrivacyLoss.parse("0.5", "1e-6"), Neighbours.REPLACE_ONE)
    assert choice.histogram.noise == expected.noise
    assert choice.histogram.guarantee == expected.guarantee
    assert isinstance(expected.noise, RoundedNormal)
    assert noise.size > 900
    assert not alarms(noise, expected.noise.sigma)
    assert alarms(noise, expected.noise.sigma // 2)
    assert alarms(noise, expected.noise.sigma * 2)


# --- which noise ------------------------------------------------------------------------------------------------------


def test_the_delta_is_that_of_the_budget_and_the_same_again_is_the_same_answer(
    table: RowsTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = chosen(table)
    assert first.histogram.release_id == GAUSSIAN.release_id(table)
    (record,) = ledger_of(table).records
    assert record.guarantee == GAUSSIAN.calibrated(table).guarantee
    assert record.guarantee.mu_squared is not None
    no_row_is_read(monkeypatch)
    assert chosen(table) == replace(first, fresh=False)
    assert chosen(table, GAUSSIAN) == replace(first, fresh=False)
    assert len(ledger_of(table).records) == 1


def test_on_a_budget_without_a_delta_it_is_laplace_noise(tmp_path: Path) -> None:
    made = table_of(tmp_path / "rows.zarr", some_rows(), PrivacyLoss.parse("2"))
    found = chosen(made).histogram
    assert (found.noise, found.guarantee.loss) == (DiscreteLaplace(4), PrivacyLoss.parse("0.5"))
    assert found.release_id == PURE.release_id(made)


def test_who_asks_for_no_delta_gets_laplace_noise_and_moves_no_other_answer(table: RowsTable) -> None:
    first = chosen(table)
    pure = chosen(table, budget_delta=False)
    assert pure.fresh
    assert pure.histogram.noise == DiscreteLaplace(4)
    assert chosen(table) == replace(first, fresh=False)
    assert chosen(table, budget_delta=False) == replace(pure, fresh=False)


def test_what_was_released_first_is_given_again_whoever_asked_for_it(table: RowsTable) -> None:
    pure = chosen(table, budget_delta=False)
    assert chosen(table) == replace(pure, fresh=False)
    gaussian = chosen(table, GAUSSIAN, budget_delta=False)
    assert gaussian.fresh
    assert chosen(table) == replace(pure, fresh=False)


def test_what_was_reserved_is_resumed_and_what_was_aborted_is_not(table: RowsTable) -> None:
    pure = transaction_of(PURE, table)
    pure.reserve()
    assert norm_histogram.resolved(pure) == pure
    pure.abort()
    gaussian = norm_histogram.resolved(pure)
    assert gaussian.request == GAUSSIAN
    gaussian.reserve()
    assert chosen(table).histogram.release_id == gaussian.release_id
    assert [r.state for r in ledger_of(table).records] == [State.ABORTED, State.PUBLISHED]


def test_who_is_reserved_anew_after_a_refund_is_no_longer_the_first(table: RowsTable) -> None:
    transaction_of(PURE, table).reserve()
    transaction_of(PURE, table).abort()
    first = chosen(table)
    assert chosen(table, budget_delta=False).fresh
    assert chosen(table) == replace(first, fresh=False)


def test_over_budget_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = table_of(tmp_path / "rows.zarr", some_rows(), PrivacyLoss.parse("0.5", "1e-6"))
    no_row_is_read(monkeypatch)
    for loss in (PrivacyLoss.parse("0.6"), PrivacyLoss.parse("0.5", "1e-5")):
        with pytest.raises(RefusedError, match="the budget of"):
            chosen(made, replace(PURE, loss=loss))
    assert ledger_of(made).records == []


def test_the_trusted_worker_settles_the_delta(table: RowsTable) -> None:
    where = Cluster(trusted_worker=True)
    first = clip_norm.choose_clip_norm(table.path, PURE, HALF, cluster=where, budget_delta=True)
    assert first.histogram.release_id == GAUSSIAN.release_id(table)
    assert chosen(table) == replace(first, fresh=False)


@pytest.mark.parametrize("delta", ["0", "1e-6"])
def test_an_answer_worth_nothing_is_refused_with_an_epsilon_that_is_useful(table: RowsTable, delta: str) -> None:
    request = replace(PURE, loss=PrivacyLoss.parse("0.01", delta))
    with pytest.raises(RefusedError, match=r"would be worth nothing\. Nothing was read or spent\.") as told:
        forecast(request, table, Fraction("0.9"))
    enough = str(told.value).partition("epsilon=")[2].partition(" ")[0]
    found = worth_of(replace(request, loss=PrivacyLoss.parse(enough, delta)), table, Fraction("0.9"))
    assert found.useful
    assert found.ends() in str(told.value)
    with pytest.raises(RefusedError, match=r"too small .* more than 10\. Or take a smaller quantile"):
        forecast(request, table, Fraction("0.9999"))
    known = replace(table, schema=Schema([Column(name, "number", range=(0, 9)) for name in "abcd"], scale="range"))
    with pytest.raises(RefusedError, match=r"clip_norm=2 shortens no row, by the schema, and costs nothing to choose"):
        forecast(request, known, Fraction("0.9999"))
    ample = replace(request, loss=PrivacyLoss.parse("9", delta))
    assert "clip_norm=2 shortens no row" in forecast(ample, known, Fraction("0.5"))
    assert "clip_norm" not in forecast(ample, table, Fraction("0.5"))
    with pytest.raises(RefusedError) as moved:
        forecast(replace(request, centre=(1.0,) * 4), known, Fraction("0.9999"))
    assert "by the schema" not in str(moved.value)


def test_it_is_the_noise_that_will_be_drawn_which_is_asked_whether_it_hides_the_quantile(table: RowsTable) -> None:
    """A quantile with fewer rows above it than the error of Gaussian noise, and more than that of Laplace noise."""
    request = replace(PURE, loss=PrivacyLoss.parse("0.2"))
    errors = [worth_of(replace(request, loss=PrivacyLoss.parse("0.2", d)), table, HALF).error for d in ("0", "1e-6")]
    assert errors[0] + 2 < errors[1] < 300
    quantile = 1 - Fraction(round(errors[0]) + 1, 600)
    with pytest.raises(RefusedError, match="would be worth nothing"):
        clip_norm.choose_clip_norm(table.path, request, quantile, budget_delta=True)
    assert ledger_of(table).records == []
    assert clip_norm.choose_clip_norm(table.path, request, quantile).fresh


# --- formats ----------------------------------------------------------------------------------------------------------


def test_a_gaussian_histogram_has_a_format_of_its_own(table: RowsTable) -> None:
    found = chosen(table).histogram
    value = json.loads(json.dumps(found.to_json()))
    assert value["format"] == "dpdist-norms/2"  # whoever knows the first one only must not take sigma for t
    assert value["noise"] == {"law": "rounded-normal", "sigma": GAUSSIAN.calibrated(table).noise.to_json()["sigma"]}
    assert NormHistogram.from_json(value) == found
    with pytest.raises(DataError, match="this version reads 'dpdist-norms/1', 'dpdist-norms/2'"):
        NormHistogram.from_json(value | {"format": "dpdist-norms/3"})


def unpacked(place: Path) -> Path:
    unpack(HISTOGRAM, place)
    return place / "rows.zarr"


def test_a_histogram_of_an_earlier_version_is_given_again_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = unpacked(tmp_path)
    before = Ledger(default_ledger(rows)).records
    no_row_is_read(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for more in ((), ("--delta", "0")):
        asked = ("bound", "rows.zarr", "--epsilon", "0.1", "--grid", "1:64:2", "--quantile", "0.5", *more)
        told, stored = json.loads(call(*asked, "--json").stdout), json.loads((tmp_path / "answer.json").read_text())
        for answer in (told, stored):
            answer["histogram"]["guarantee"] = Guarantee.from_json(answer["histogram"]["guarantee"])
        expected = {key: pytest.approx(each) if isinstance(each, float) else each for key, each in stored.items()}
        # later versions may tell more, and tell the error at the worst edge of the grid
        assert told["error_rows"] >= stored["error_rows"]
        del expected["error_rows"]
        assert {key: told[key] for key in expected} == expected
    assert Ledger(default_ledger(rows)).records == before


@pytest.mark.filterwarnings("ignore::dpdist.errors.NoWitnessWarning")
def test_a_reservation_of_an_earlier_version_is_resumed_under_its_own_law(tmp_path: Path) -> None:
    rows = unpacked(tmp_path)
    before = Ledger(default_ledger(rows)).records
    told = json.loads(call("bound", rows, "--epsilon", "0.1", "--grid", "1:64:1", "--quantile", "0.5", "--json").stdout)
    after = Ledger(default_ledger(rows)).records
    assert [r.release_id for r in after] == [r.release_id for r in before]
    assert [r.state for r in before] == [State.PUBLISHED, State.RESERVED]
    assert [r.state for r in after] == [State.PUBLISHED, State.PUBLISHED]
    assert told["histogram"]["release_id"] == after[1].release_id
    assert told["histogram"]["noise"] == {"law": "discrete-laplace", "scale": 20}


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_cost_and_the_next_one_names_the_delta(table: RowsTable, tmp_path: Path) -> None:
    said = call("bound", table.path, "--epsilon", "0.5", "--grid", "1:64:2", "--quantile", "0.5")
    assert said.exit_code == 0
    assert "Cost: epsilon 0.5, delta 1e-06 (Gaussian, mu² 0.0" in said.stderr
    assert " --delta 1e-06" in said.stderr.partition("Next: ")[2]
    (record,) = ledger_of(table).records
    assert record.guarantee.loss == PrivacyLoss.parse("0.5", "1e-6")
    # nearly all of the budget is left for a Gaussian release, which epsilon 0.5 + 8.9 alone would not say
    words = said.stderr.partition("Next: dpdist ")[2].split()
    filled = [{"RELEASE": str(tmp_path / "release.zarr"), "E": "8.9"}.get(word, word) for word in words]
    assert call(*filled).exit_code == 0
    assert [r.parameters["mechanism"] for r in ledger_of(table).records] == ["norm-histogram", "gaussian"]


def test_the_command_takes_a_delta_of_its_own(table: RowsTable) -> None:
    asked = ("bound", table.path, "--epsilon", "0.5", "--grid", "1:64:2", "--quantile", "0.5", "--json")
    told = [json.loads(call(*asked, *more).stdout) for more in ((), ("--delta", "0"), ("--delta", "1e-7"), ())]
    assert [each["histogram"]["noise"]["law"] for each in told] == ["rounded-normal", "discrete-laplace"] + 2 * [
        "rounded-normal"
    ]
    assert [each["histogram"]["guarantee"]["delta_atto"] for each in told] == [10**12, 0, 10**11, 10**12]
    assert [each["fresh"] for each in told] == [True, True, True, False]
