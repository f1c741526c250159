"""A clip norm on a budget with a delta: Gaussian counts, their worth and charge, and `--clip-components`."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from support.norms import GRID, HALF, call, ledger_of, no_row_is_read, some_rows, table_of
from support.tallies import alarms

from dpdist import Column, Schema
from dpdist.core.errors import DataError, RefusedError
from dpdist.core.ledger.state import State
from dpdist.core.mechanisms.counts import DiscreteLaplace, RoundedNormal
from dpdist.core.mechanisms.quantile import calibrated
from dpdist.core.moment.histograms import NormGrid, counted, norms_of
from dpdist.core.pipeline import clip_norm
from dpdist.core.pipeline.budget import default_ledger
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release import advice, norm_histogram
from dpdist.core.release.advice import forecast, forecast_accuracy, useful_epsilon
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.clip_trade import ForComponents, clip_for, losses, noise_share, quantile_for, traces
from dpdist.core.release.norm_histogram import NormHistogram, NormsRequest, NormsTransaction
from dpdist.core.release.plan import planned
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.runtime.cluster import Cluster

PURE = NormsRequest(PrivacyLoss.parse("0.5"), GRID)
GAUSSIAN = replace(PURE, loss=PrivacyLoss.parse("0.5", "1e-6"))


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


def id_of(request: NormsRequest, table: RowsTable) -> str:
    return transaction_of(request, table).release_id


def chosen(table: RowsTable, request: NormsRequest = PURE, *, budget_delta: bool = True) -> clip_norm.ClipChoice:
    return clip_norm.choose_clip_norm(table.path, request, HALF, budget_delta=budget_delta)


def test_a_release_is_the_exact_histogram_plus_one_draw_of_the_noise(
    table: RowsTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "forecast", lambda *_: "")  # of six hundred rows it would tell nothing
    fine = NormsRequest(PrivacyLoss.parse("0.5"), NormGrid(0.01, 640, 60))
    found = clip_norm.choose_clip_norm(table.path, fine, Fraction(1, 100), budget_delta=True).histogram
    noise = found.counts - counted(norms_of(some_rows(), RowBound(4, 1.0)), found.edges)
    expected = calibrated(PrivacyLoss.parse("0.5", "1e-6"), Neighbours.REPLACE_ONE)
    assert (found.noise, found.guarantee) == (expected.noise, expected.guarantee)
    assert isinstance(expected.noise, RoundedNormal)
    sigma = expected.noise.sigma
    assert noise.size > 900
    assert [alarms(noise, each) for each in (sigma // 2, sigma, sigma * 2)] == [True, False, True]


def test_the_delta_is_that_of_the_budget_and_the_same_again_is_the_same_answer(
    table: RowsTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = chosen(table)
    assert first.histogram.release_id == id_of(GAUSSIAN, table)
    (record,) = ledger_of(table).records
    assert record.guarantee == transaction_of(GAUSSIAN, table).guarantee
    assert record.guarantee.mu_squared is not None
    no_row_is_read(monkeypatch)
    assert chosen(table) == replace(first, fresh=False)
    assert chosen(table, GAUSSIAN) == replace(first, fresh=False)
    assert len(ledger_of(table).records) == 1


def test_who_asks_for_no_delta_gets_laplace_noise_and_moves_no_other_answer(table: RowsTable, tmp_path: Path) -> None:
    transaction_of(PURE, table).reserve()
    transaction_of(PURE, table).abort()  # so it is no longer the first
    first = chosen(table)
    pure = chosen(table, budget_delta=False)
    assert pure.fresh
    assert pure.histogram.noise == DiscreteLaplace(4)
    for delta, answer in ((True, first), (False, pure)):
        assert chosen(table, budget_delta=delta) == replace(answer, fresh=False)
    without = table_of(tmp_path / "pure.zarr", some_rows(), PrivacyLoss.parse("2"))
    found = chosen(without)
    assert (found.histogram.noise, found.histogram.release_id) == (DiscreteLaplace(4), id_of(PURE, without))


def test_what_was_released_first_is_given_again(table: RowsTable) -> None:
    pure = chosen(table, budget_delta=False)
    assert chosen(table) == replace(pure, fresh=False)
    assert chosen(table, GAUSSIAN, budget_delta=False).fresh
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
    assert first.histogram.release_id == id_of(GAUSSIAN, table)
    assert chosen(table) == replace(first, fresh=False)


@pytest.mark.parametrize("delta", ["0", "1e-6"])
def test_an_answer_worth_nothing_is_refused_with_an_epsilon_that_is_useful(table: RowsTable, delta: str) -> None:
    request, most = replace(PURE, loss=PrivacyLoss.parse("0.01", delta)), Fraction("0.9999")
    with pytest.raises(RefusedError, match=r"would be useless\. Nothing was spent\.") as told:
        forecast(request, table, Fraction("0.9"))
    enough = str(told.value).partition("epsilon=")[2].partition(" ")[0]
    found = forecast_accuracy(replace(request, loss=PrivacyLoss.parse(enough, delta)), table, Fraction("0.9"))
    assert found.useful
    assert found.ends() in str(told.value)
    known = replace(table, schema=Schema([Column(name, "number", range=(0, 9)) for name in "abcd"], scale="range"))
    free = r"By the schema, clip_norm='schema' clips no row in the release, and choosing it costs nothing"
    for asked, rows, said in (
        (request, table, r"too small .* more than 10\. Or use a smaller quantile"), (request, known, free),
        (replace(request, centre=(1.0,) * 4), known, rf"^(?!.*{free})"),
    ):  # fmt: skip
        with pytest.raises(RefusedError, match=said):
            forecast(asked, rows, most)
    ample = replace(request, loss=PrivacyLoss.parse("9", delta))
    assert "clip_norm='schema' clips no row" in forecast(ample, known, HALF)
    assert "clip_norm" not in forecast(ample, table, HALF)


def test_an_answer_that_would_be_worth_nothing_is_refused_before_anything_is_spent(table: RowsTable) -> None:
    request, quantile = replace(PURE, loss=PrivacyLoss.parse("0.01")), Fraction("0.9")
    with pytest.raises(RefusedError, match=r"would be useless\. Nothing was spent\. With epsilon="):
        clip_norm.choose_clip_norm(table.path, request, quantile)
    with pytest.raises(RefusedError, match=r"too small .* epsilon more than 10, and the budget has 9 left"):
        clip_norm.choose_clip_norm(table.path, request, Fraction("0.99"))
    assert ledger_of(table).records == []
    # where n is private, nothing may be told of it
    said: list[str] = []
    hidden = replace(request, neighbours=Neighbours.ADD_REMOVE)
    clip_norm.choose_clip_norm(table.path, hidden, quantile, say=said.append)  # the noise decides what it answers
    assert "Forecast: the noise moves ranks by up to" in said[0]
    assert "600" not in said[0]


def test_what_the_answer_is_worth_is_said_before_with_the_same_number_as_after(table: RowsTable) -> None:
    said: list[str] = []
    choice = clip_norm.choose_clip_norm(table.path, PURE, HALF, say=said.append)
    (before,) = said
    number = f"the noise moves ranks by up to {choice.found.rows:.0f} rows (confidence 0.95) of 600"
    found = forecast_accuracy(PURE, table, HALF)
    assert all(part in text for part in (number, found.ends()) for text in (before, choice.describe()))
    assert choice.to_json()["error_rows"] == found.error
    clip_norm.choose_clip_norm(table.path, PURE, HALF, say=said.append)
    assert said == [before]  # the second answer is there already: there is nothing to foretell
    request, quantile = replace(PURE, loss=PrivacyLoss.parse("0.3")), Fraction("0.85")
    rough = clip_norm.choose_clip_norm(table.path, request, quantile, say=said.append)
    enough = useful_epsilon(request, table, quantile)
    assert enough is not None
    assert enough == rough.enough_micro
    assert not rough.worth.useful
    assert "which is rough" in said[1]
    assert f"With epsilon={enough / 1e6:g} or more" in said[1]
    if rough.clip is not None:
        assert f"which is rough. It would be useful with epsilon {enough / 1e6:g}" in rough.describe()


def test_it_is_the_noise_that_will_be_drawn_which_is_asked_whether_it_hides_the_quantile(table: RowsTable) -> None:
    """A quantile with fewer rows above it than the error of Gaussian noise, and more than that of Laplace noise."""
    request = replace(PURE, loss=PrivacyLoss.parse("0.2"))
    errors = [
        forecast_accuracy(replace(request, loss=PrivacyLoss.parse("0.2", d)), table, HALF).error for d in ("0", "1e-6")
    ]
    assert errors[0] + 2 < errors[1] < 300
    quantile = 1 - Fraction(round(errors[0]) + 1, 600)
    with pytest.raises(RefusedError, match="would be useless"):
        clip_norm.choose_clip_norm(table.path, request, quantile, budget_delta=True)
    assert ledger_of(table).records == []
    assert clip_norm.choose_clip_norm(table.path, request, quantile).fresh


def test_a_histogram_is_stored_with_the_law_of_its_noise_and_another_format_is_refused(table: RowsTable) -> None:
    scale = GAUSSIAN.calibrated(table).noise.to_json()["sigma"]
    laws = [{"law": "rounded-normal", "sigma": scale}, {"law": "discrete-laplace", "scale": 4}]
    for budget_delta, law in zip((True, False), laws, strict=True):
        found = chosen(table, GAUSSIAN if budget_delta else PURE, budget_delta=budget_delta).histogram
        value = json.loads(json.dumps(found.to_json()))
        assert (value["format"], value["noise"]) == ("dpdist-norms/1", law)
        assert NormHistogram.from_json(value) == found
        with pytest.raises(DataError, match="this version reads dpdist-norms/1"):
            NormHistogram.from_json(value | {"format": "dpdist-norms/2"})


def test_the_command_says_what_it_cost_and_the_next_one_names_the_delta(table: RowsTable, tmp_path: Path) -> None:
    said = call("bound", table.path, "--epsilon", "0.5", "--grid", "1:64:2", "--quantile", "0.5")
    assert "Cost: epsilon 0.5, delta 1e-06 (Gaussian, mu² 0.0" in said.output
    # nearly all of the budget is left for a Gaussian release, which epsilon 0.5 + 8.9 alone would not say
    words = said.output.partition("Next: dpdist ")[2].split()
    assert call(*({"RELEASE": tmp_path / "release.zarr", "E": "8.9"}.get(word, word) for word in words)).exit_code == 0
    assert [r.parameters["mechanism"] for r in ledger_of(table).records] == ["norm-histogram", "gaussian"]
    assert {r.guarantee.loss.delta_atto for r in ledger_of(table).records} == {10**12}


def test_the_command_takes_a_delta_of_its_own(table: RowsTable) -> None:
    asked = ("bound", table.path, "--epsilon", "0.5", "--grid", "1:64:2", "--quantile", "0.5", "--json")
    told = [json.loads(call(*asked, *more).stdout) for more in ((), ("--delta", "0"), ("--delta", "1e-7"), ())]
    assert [each["histogram"]["guarantee"]["delta_atto"] for each in told] == [10**12, 0, 10**11, 10**12]
    assert [each["fresh"] for each in told] == [True, True, True, False]


RELATION = Neighbours.REPLACE_ONE
EDGES = np.array([*GRID.edges, np.inf])


def histogram(norms: np.ndarray[tuple[int], np.dtype[np.float64]], grid: NormGrid = GRID) -> NormHistogram:
    """Return one of next to no noise."""
    counts = np.bincount(np.searchsorted(grid.edges, norms), minlength=len(grid.edges) + 1)
    proved = calibrated(PrivacyLoss.parse("1", "1e-6"), RELATION).guarantee
    return NormHistogram("n-1", proved, grid.edges, tuple(counts.tolist()), RoundedNormal(1), len(norms), "")


def purpose(number: int, epsilon: str) -> ForComponents:
    return ForComponents(number, PrivacyLoss.parse(epsilon, "1e-6"))


def test_what_noise_is_said_to_be_is_that_of_the_release() -> None:
    share = noise_share(purpose(2, "1"), RELATION, 10, 3)
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), 50.0, grid_bits=16)
    noise, bound = planned(request, Dimensions(10, changed_rows=3)).moment.noise, planned(request, Dimensions(10)).bound
    assert np.sqrt(noise["variance_off_diagonal"]) * bound.unit**2 == pytest.approx(share * 50.0**2, rel=1e-3)


def test_counts_that_may_be_noise_weigh_nothing() -> None:
    """A handful of noise in a bin of long norms would outweigh all rows."""
    sound = histogram(np.full(4000, 2.0))
    noisy = NormHistogram(
        "n-1", sound.guarantee, sound.edges, (*sound.counts[:-1], 300), RoundedNormal(100), 4000, ""
    )  # fmt: skip
    np.testing.assert_array_equal(traces(noisy, EDGES), traces(sound, EDGES))


def test_what_it_chooses_captures_more_of_real_rows_than_the_fixed_quantile() -> None:
    """Handwritten digits, by drawn noise of a fixed seed: a third less of the variance is lost, and more."""
    rows = load_digits().data
    rows = rows - rows.mean(0)
    norms, whole, rng = np.linalg.norm(rows, axis=1), rows.T @ rows, np.random.default_rng(1)
    asked = purpose(2, "1")
    chosen = float(quantile_for(asked, histogram(norms), 64))
    share = noise_share(asked, RELATION, 64, 1)
    clips = np.quantile(norms, [chosen, 0.95])

    def captured(clip: float) -> float:
        short = rows * np.minimum(1, clip / norms)[:, None]
        found = 0.0
        for _ in range(10):
            noise = np.triu(rng.normal(scale=share * clip**2, size=whole.shape))
            _, vectors = np.linalg.eigh(short.T @ short + noise + noise.T)
            found += np.trace(vectors[:, -2:].T @ whole @ vectors[:, -2:]) / 10
        return float(found / np.linalg.eigvalsh(whole)[-2:].sum())

    ours, fixed = map(captured, clips)
    assert chosen < 0.7
    assert 1 - ours < 2 / 3 * (1 - fixed)


def test_one_histogram_answers_for_any_components_and_names_the_next_command(table: RowsTable) -> None:
    asked = ("bound", table.path, "--epsilon", "3", "--grid", "1:64:2")
    for more, words in (
        (("--clip-components", 2), "belong together"), (("--release-epsilon", 1), "belong together"),
        (("--clip-components", 2, "--release-epsilon", 1, "--quantile", 0.5), "determines the quantile"),
        (("--clip-components", 4, "--release-epsilon", 1), "from 1 to 3"),
        (("--clip-components", 2, "--release-epsilon", "much"), "much"),
    ):  # fmt: skip
        refused = call(*asked, *more)
        assert words in refused.output + str(refused.exception)
    assert ledger_of(table).records == []
    found = json.loads(call(*asked, "--clip-components", 2, "--release-epsilon", "0.5", "--json").stdout)
    assert (found["components"], found["for"]) == (2, PrivacyLoss.parse("0.5", "1e-6").to_json())
    assert f" --epsilon 0.5 --clip {found['clip']:g} " in found["next"]
    again = call(*asked, "--clip-components", 1, "--release-epsilon", "0.01")
    assert "Why the" in again.output
    assert "1 component of a release of epsilon 0.01, delta 1e-06" in " ".join(again.output.split())
    assert "Why the" not in call(*asked).output
    assert len(ledger_of(table).records) == 1


def test_a_release_takes_a_norm_between_the_edges_that_loses_no_more_than_at_any_edge() -> None:
    norms = np.random.default_rng(3).lognormal(1.5, 0.5, size=20_000)
    found = histogram(norms)
    for epsilon in ("0.02", "0.1", "1"):
        aim = purpose(5, epsilon)
        clip, quantile = clip_for(aim, found, 50)
        *trace, whole = traces(found, np.array([*GRID.edges, clip, np.inf]))
        share = noise_share(aim, RELATION, 50, 1)
        expected = losses(5, 50, share, np.array([*GRID.edges, clip]), np.array(trace), whole)
        assert expected[-1] <= expected[:-1].min()
        assert float(quantile) == pytest.approx((norms <= clip).mean(), abs=0.02)
    assert clip not in GRID.edges


def test_a_quantile_is_interpolated_within_its_bin() -> None:
    norms = np.random.default_rng(3).lognormal(1.5, 0.5, size=20_000)
    clip, quantile = histogram(norms).clip_norm()
    assert clip not in GRID.edges
    assert quantile == Fraction(95, 100)
    assert clip == pytest.approx(np.quantile(norms, 0.95), rel=0.05)
    assert histogram(np.full(1000, 0.5)).clip_norm()[0] == GRID.edges[0]  # nobody knows how short


def test_a_histogram_that_noise_hides_gives_the_clip_norm_that_it_can() -> None:
    sound = histogram(np.full(400, 2.0))
    hidden = replace(sound, noise=RoundedNormal(1000))
    assert clip_for(purpose(2, "1"), hidden, 6) == hidden.clip_norm()
