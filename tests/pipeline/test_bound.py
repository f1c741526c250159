"""A clip norm chosen privately: norms and bins, the law of the noise, the quantile's error, and one charge for ever."""

from __future__ import annotations

import json
import math
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from faults.forks import forking
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from strategies import SEEDS, float_rows
from support.ledgers import losses
from support.norms import GRID, HALF, Rows, call, ledger_of, no_row_is_read, some_rows, table_of
from support.parts import added
from support.tallies import FALSE_ALARM

from dpdist._util.text import exactly
from dpdist.cli.pipeline import next_command
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.mechanisms.counts import DiscreteLaplace
from dpdist.mechanisms.quantile import Weights, calibrated, quantile_of, weights
from dpdist.moment import total
from dpdist.moment.histograms import (
    HistogramTask,
    NormCounting,
    NormGrid,
    bits_for,
    counted,
    norms_of,
    partition_histogram,
)
from dpdist.moment.total import complete
from dpdist.noise.entropy import SYSTEM
from dpdist.pipeline import budget, clip_norm
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release import advice
from dpdist.release.advice import Worth, forecast, useful_epsilon, worth_of
from dpdist.release.norm_histogram import NormHistogram, NormsRequest, NormsTransaction
from dpdist.rows import dataset
from dpdist.rows.bounding import RowBound
from dpdist.rows.dataset import RowsTable, created, partitions
from dpdist.rows.periods import create_periods
from dpdist.rows.units import Unit
from dpdist.runtime.cluster import Cluster

BUDGET = PrivacyLoss.parse("3")
REQUEST = NormsRequest(PrivacyLoss.parse("1"), GRID)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RowsTable:
    """Six hundred rows in several chunks; everything is computed in this process."""
    monkeypatch.setattr(Cluster, "named", False)
    rows = some_rows()
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", rows.nbytes // 7)
    return table_of(tmp_path / "rows.zarr", rows, BUDGET)


def norms(rows: npt.NDArray[np.generic], bound: RowBound | None = None) -> Rows:
    return norms_of(rows, bound or RowBound(rows.shape[1], 1.0), np.empty(rows.shape))


# --- norms and bins ---------------------------------------------------------------------------------------------------


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 5), st.integers(2, 9)),
        elements=st.floats(-1e150, 1e150, allow_subnormal=True),
    )
)
@example(np.full((1, 3), 5e-324))
def test_a_norm_is_the_true_one_a_little_rounded_down(rows: Rows) -> None:
    error = math.sqrt(rows.shape[1]) * 2.0 ** (1 - bits_for(rows.shape[1]))
    for row, found in zip(rows, norms(rows), strict=True):
        square = sum(Fraction(value) ** 2 for value in row.tolist())
        smallest = Fraction(5, 10**324)  # where float64 ends, half a step may be missing or too many
        # a correctly rounded square root may exceed the truth by half a unit in its last place
        assert max(Fraction(found) - smallest, Fraction(0)) ** 2 <= square * (1 + Fraction(1, 2**51))
        assert (Fraction(found) + smallest) ** 2 >= square * (1 - Fraction(error)) ** 2


@given(SEEDS, st.integers(2, 40))
def test_a_norm_has_the_same_bits_in_every_order_of_its_entries_and_in_every_block(seed: int, columns: int) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(7, columns)) * generator.lognormal(0, 20, size=(7, 1))
    expected = norms(rows)
    assert np.array_equal(norms(rows[:, generator.permutation(columns)]), expected)
    assert np.array_equal(np.concatenate([norms(row[None]) for row in rows]), expected)


def test_every_row_falls_into_one_bin_also_those_that_are_no_numbers() -> None:
    edges = (1.0, 2.0, 4.0)
    rows = np.array(
        [[0, 0], [1, 0], [0, -1.001], [2, 0], [4, 0], [3, 4], [1e308, 1e308], [np.nan, 9], [np.inf, 0], [-np.inf, 1]]
    )
    assert counted(norms(rows), edges).tolist() == [5, 2, 1, 2]
    assert counted(norms(np.array([[3, 0], [255, 255]], dtype=np.uint8)), edges).tolist() == [0, 0, 1, 1]


def test_norms_are_those_of_the_rows_after_the_public_shift_and_scale() -> None:
    bound = RowBound(2, 1.0, centre=(1.0, 1.0), scale=(1.0, 2.0))
    assert norms(np.array([[4.0, 9.0], [1.0, 1.0]]), bound).tolist() == [5.0, 0.0]


@given(
    float_rows(6, 3),
    float_rows(1, 3),
)
def test_one_row_more_changes_one_count_and_one_exchanged_two(rows: Rows, other: Rows) -> None:
    def counts(some: Rows) -> npt.NDArray[np.int64]:
        return counted(norms(some), GRID.edges)

    assert np.abs(counts(np.concatenate([rows, other])) - counts(rows)).sum() == 1
    assert np.abs(counts(np.concatenate([rows[1:], other])) - counts(rows)).sum() in {0, 2}


@pytest.mark.parametrize(
    "text", ["1:2", "a:2:3", "2:1:4", "0:1:2", "1:2:0", "1:2:65", "1:inf:2", "nan:2:2", "1:2:3:4", "1:1e6:64"]
)
def test_what_is_no_grid_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"\(grid\)|^grid"):
        NormGrid.parse(text)


@pytest.mark.parametrize("text", ["1:1000:64", "1e-100:1e100:1", "0.0009765625:1048576:2", "1:16384:2", "1:1447.99:2"])
def test_the_edges_of_a_grid_rise_and_reach_its_end(text: str) -> None:
    grid = NormGrid.parse(text)
    assert np.all(np.diff(grid.edges) > 0)
    assert grid.edges[-1] >= grid.high
    assert grid.edges[-2] < grid.high
    assert all(float(exactly(edge)) == edge for edge in grid.edges)  # what is typed is what was meant
    assert all(edge in grid.edges for edge in (grid.low * 2.0**i for i in range(8)))


# --- the distributed count --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunks", "workers", "piece", "compress"),
    [(1, 1, 1 << 19, False), (7, 3, 96, False), (3, 2, 64, True), (600, 5, 1 << 19, False)],
)
def test_any_chunking_gives_the_same_histogram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: int, workers: int, piece: int, *, compress: bool
) -> None:
    rows = some_rows()
    rows[3, 1] = np.nan
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", rows.nbytes // chunks)
    monkeypatch.setattr(total, "_PIECE_BYTES", piece)
    table = table_of(tmp_path / "rows.zarr", rows, BUDGET, compress=compress)
    assert table.chunks >= min(chunks, 600)
    task = HistogramTask(table, NormCounting(REQUEST.bound(4), GRID.edges), range(table.chunks))
    runs = partitions(table.chunks, 4 * workers)
    found = complete(table, added(partition_histogram(task.cut(run)) for run in runs))
    lengths = np.sqrt((np.nan_to_num(rows * [[np.nan if i == 3 else 1] for i in range(600)]) ** 2).sum(1))
    expected = np.histogram(lengths, [-1, *np.nextafter(GRID.edges, np.inf), np.inf])[0]
    assert found.values.tolist() == expected.tolist()
    assert found.rows == 600


# --- the noise --------------------------------------------------------------------------------------------------------


def alarms(noise: npt.NDArray[np.int64], scale: int) -> bool:
    """Say whether these are no discrete Laplace draws of a scale, by mean magnitude and by chi-squared."""
    ratio = math.exp(-1 / scale)
    mean, square = 2 * ratio / (1 - ratio**2), 2 * ratio / (1 - ratio) ** 2
    z = abs(np.abs(noise).mean() - mean) / math.sqrt((square - mean**2) / noise.size)
    edges = np.arange(-2 * scale, 2 * scale + 1, max(1, scale // 5))
    cumulated = np.where(edges < 0, ratio ** (-1.0 * edges), 1 + ratio - ratio ** (edges + 1.0)) / (1 + ratio)
    law = np.diff([0, *cumulated, 1])
    seen = np.bincount(np.searchsorted(edges, noise), minlength=law.size)
    shape = stats.chisquare(seen, law * noise.size).pvalue
    return bool(z > stats.norm.isf(FALSE_ALARM / 4) or shape < FALSE_ALARM / 2)


@pytest.mark.parametrize("epsilon", ["0.1", "1", "0.7", "3", "0.000001"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("neighbours", "change"), [(Neighbours.ADD_REMOVE, 1), (Neighbours.REPLACE_ONE, 2)])
def test_the_scale_is_the_least_that_keeps_epsilon(
    epsilon: str, rows: int, neighbours: Neighbours, change: int
) -> None:
    found = calibrated(PrivacyLoss.parse(epsilon), neighbours, rows)
    assert isinstance(found.noise, DiscreteLaplace)
    scale = found.noise.scale
    assert Fraction(rows * change, scale) <= Fraction(epsilon)
    assert scale == 1 or Fraction(rows * change, scale - 1) > Fraction(epsilon)
    assert found.guarantee.loss == PrivacyLoss.parse(epsilon)
    assert found.guarantee.neighbours is neighbours


def test_a_release_is_the_exact_histogram_plus_one_draw_of_the_noise(
    table: RowsTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = NormsRequest(PrivacyLoss.parse("0.1"), NormGrid(0.01, 640, 64))
    monkeypatch.setattr(advice, "forecast", lambda *_: "")  # of six hundred rows it would tell nothing
    choice = clip_norm.choose_clip_norm(table.path, fine, Fraction(1, 100))
    noise = np.array(choice.histogram.counts) - counted(norms(some_rows()), choice.histogram.edges)
    assert noise.size > 1000
    assert not alarms(noise, 20)
    assert alarms(noise, 10)
    assert alarms(noise, 40)


def test_the_rows_of_one_unit_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    made = table_of(tmp_path / "rows.zarr", some_rows(), BUDGET, unit=Unit("person", 3))
    choice = clip_norm.choose_clip_norm(made.path, REQUEST, HALF)
    assert choice.histogram.noise == DiscreteLaplace(6)
    assert REQUEST.release_id(made) != REQUEST.release_id(replace(made, unit=None))


# --- the quantile -----------------------------------------------------------------------------------------------------

EXACT = np.array([50, 0, 100, 300, 400, 100, 40, 10, 0, 0, 0, 0])
TAILS = EXACT.sum() - EXACT.cumsum()[:-1]


@pytest.mark.parametrize(("quantile", "edge"), [("0.05", 0), ("0.0501", 2), ("0.5", 4), ("0.95", 5), ("0.951", 6),
                                                ("0.995", 7)])  # fmt: skip
@pytest.mark.parametrize("rows", [1000, None])
def test_without_noise_the_quantile_is_the_first_edge_that_leaves_few_enough_above(
    quantile: str, edge: int, rows: int | None
) -> None:
    counts = (EXACT * 10**6).tolist()  # beside which noise of scale 1 vanishes, and so do its bounds
    found = quantile_of(counts, DiscreteLaplace(1), Fraction(quantile), rows=rows and rows * 10**6)
    assert found.edge == edge
    assert found.tail == pytest.approx(TAILS[edge] / 1000, abs=1e-7)
    if quantile not in {"0.05", "0.95"}:  # there an edge leaves exactly as many as asked for: nothing is sure
        assert (found.above_edge, found.up_to_edge) == (edge - 1 if edge else None, edge)
    assert found.rows < 100


def test_errors_in_rows_hold_at_their_confidence_and_standard_errors_are_right() -> None:
    """Of discrete Laplace noise; each half fails with probability 1e-6 at most."""
    draws, bins = 1500, EXACT.size
    noise = calibrated(PrivacyLoss.parse("0.05"), Neighbours.ADD_REMOVE)
    assert noise.noise == DiscreteLaplace(20)
    quantile = Fraction("0.9")
    kinds = [weights(bins, edge, quantile, rows_known=True) for edge in range(bins - 1)]
    bounds = np.array([kind.bound(noise.noise, 0.05 / (2 * len(kinds))) for kind in kinds])
    errors = np.empty((draws, bins - 1))
    for draw in errors:
        added = noise.answer(EXACT, SYSTEM) - EXACT
        above = added.sum() - added.cumsum()[:-1]
        draw[:] = above - np.array([float(kind.w) for kind in kinds]) * added.sum()
    wrong = (np.abs(errors) > bounds).any(axis=1).sum()
    most = stats.binom.isf(FALSE_ALARM, draws, 0.05)
    assert wrong <= most
    assert (np.abs(errors) > bounds / 2).any(axis=1).sum() > most
    # the mean of squares of draws with kurtosis at most 6 is normal here, with variance at most 5 / draws
    deviations = np.array([kind.standard_deviation(noise.noise) for kind in kinds])
    off = np.abs((errors**2).mean(axis=0) / deviations**2 - 1)
    allowed = stats.norm.isf(FALSE_ALARM / (4 * len(kinds))) * math.sqrt(6 / draws)
    assert off.max() < allowed
    assert np.abs((errors**2).mean(axis=0) / (1.5 * deviations) ** 2 - 1).max() > allowed


def test_where_n_is_public_no_other_weight_has_less_variance() -> None:
    for edge in range(11):
        best = weights(12, edge, HALF, rows_known=True)
        for w in (0, 1, 0.3, 0.5, 0.8):
            other = replace(best, w=Fraction(w))
            assert best.standard_deviation(DiscreteLaplace(20)) <= other.standard_deviation(DiscreteLaplace(20)) + 1e-9


def test_a_bound_is_that_of_the_exact_law() -> None:
    """One bin above the edge, weight 1: the error is one discrete Laplace, whose tail is known."""
    kind, scale = Weights(1, 0, Fraction(0)), 10
    for beta in (0.05, 1e-3, 1e-6):
        bound = kind.bound(DiscreteLaplace(scale), beta)
        ratio = math.exp(-1 / scale)
        beyond = ratio ** (math.floor(bound) + 1) / (1 + ratio)
        assert beta / 60 < beyond <= beta


def test_where_the_noise_exceeds_the_rows_nothing_is_claimed() -> None:
    found = quantile_of([-3, 1, -5, 0], DiscreteLaplace(5), HALF, rows=None)
    assert (found.tail, found.tail_error, found.up_to_edge) == (None, None, None)


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_the_same_again_is_the_same_answer_from_the_ledger_and_so_is_another_quantile(
    table: RowsTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = clip_norm.choose_clip_norm(table.path, REQUEST, HALF)
    assert first.fresh
    (record,) = ledger_of(table).records
    assert record.state is State.PUBLISHED
    assert record.release_id == first.histogram.release_id == REQUEST.release_id(table)
    assert losses(ledger_of(table)) == [PrivacyLoss(10**6)]
    no_row_is_read(monkeypatch)
    again = clip_norm.choose_clip_norm(table.path, REQUEST, HALF)
    assert again == replace(first, fresh=False)
    other = clip_norm.choose_clip_norm(table.path, REQUEST, Fraction("0.9"))
    assert other.histogram == first.histogram
    assert other.clip is not None
    assert first.clip is not None
    assert other.clip > first.clip
    assert losses(ledger_of(table)) == [PrivacyLoss(10**6)]
    ledger_of(table).verify()
    assert ledger_of(table).remembers(first.histogram.release_id, first.histogram.ledger_head)


def test_the_id_follows_from_every_parameter_and_not_from_the_rows(table: RowsTable) -> None:
    others = [
        replace(REQUEST, loss=PrivacyLoss.parse("0.9")), replace(REQUEST, grid=NormGrid.parse("1:64:3")),
        replace(REQUEST, neighbours=Neighbours.ADD_REMOVE), replace(REQUEST, centre=(0.0, 0.0, 0.0, 1.0)),
        replace(REQUEST, scale=(1.0, 1.0, 1.0, 2.0)),
    ]  # fmt: skip
    assert len({request.release_id(table) for request in (REQUEST, *others)}) == 6
    assert REQUEST.release_id(replace(table, rows=7)) == REQUEST.release_id(table)


def test_an_answer_that_would_be_worth_nothing_is_refused_before_anything_is_spent(table: RowsTable) -> None:
    request, quantile = replace(REQUEST, loss=PrivacyLoss.parse("0.01")), Fraction("0.9")
    with pytest.raises(
        RefusedError, match=r"would be worth nothing\. Nothing was read or spent\. Take epsilon="
    ) as told:
        clip_norm.choose_clip_norm(table.path, request, quantile)
    assert ledger_of(table).records == []
    enough = replace(request, loss=PrivacyLoss.parse(str(told.value).partition("epsilon=")[2].partition(" ")[0]))
    assert worth_of(enough, table, quantile).useful
    assert "which is rough" not in forecast(enough, table, quantile)
    # where n is private, nothing may be told of it
    hidden = replace(request, neighbours=Neighbours.ADD_REMOVE)
    said: list[str] = []
    assert clip_norm.choose_clip_norm(table.path, hidden, quantile, say=said.append).clip is None
    assert "Forecast: the noise moves ranks by up to" in said[0]
    assert "600" not in said[0]


def test_what_the_answer_is_worth_is_said_before_with_the_same_number_as_after(table: RowsTable) -> None:
    said: list[str] = []
    choice = clip_norm.choose_clip_norm(table.path, REQUEST, HALF, say=said.append)
    (before,) = said
    number = f"the noise moves ranks by up to {choice.found.rows:.0f} rows (confidence 0.95) of 600"
    assert number in before
    assert number in choice.describe()
    assert choice.to_json()["error_rows"] == worth_of(REQUEST, table, HALF).error
    assert worth_of(REQUEST, table, HALF).ends() in before
    assert worth_of(REQUEST, table, HALF).ends() in choice.describe()
    clip_norm.choose_clip_norm(table.path, REQUEST, HALF, say=said.append)
    assert said == [before]  # the second answer is there already: there is nothing to foretell


def test_a_rough_answer_says_so_before_and_after_and_what_would_be_useful(table: RowsTable) -> None:
    request, quantile, said = replace(REQUEST, loss=PrivacyLoss.parse("0.3")), Fraction("0.85"), list[str]()
    choice = clip_norm.choose_clip_norm(table.path, request, quantile, say=said.append)
    enough = useful_epsilon(request, table, quantile)
    assert enough is not None
    assert enough == choice.enough_micro
    assert not choice.worth.useful
    assert "which is rough" in said[0]
    assert f"Take epsilon={enough / 1e6:g} or more" in said[0]
    if choice.clip is not None:
        assert f"which is rough. It would be useful with epsilon {enough / 1e6:g}" in choice.describe()


def test_a_table_that_is_too_small_is_told_so(table: RowsTable) -> None:
    request, quantile = replace(REQUEST, loss=PrivacyLoss.parse("0.1")), Fraction("0.99")
    with pytest.raises(RefusedError, match=r"too small .* epsilon more than 10, and the budget has 3 left for it"):
        clip_norm.choose_clip_norm(table.path, request, quantile)
    with pytest.raises(RefusedError, match=r"too small .* take epsilon 2, and the budget has 1\.5 left for it"):
        forecast(request, table, Fraction("0.95"), 1_500_000)
    assert ledger_of(table).records == []


def test_what_is_reserved_is_finished_whatever_it_is_worth(table: RowsTable) -> None:
    """It is charged already, by an older version say: refusing it would throw the charge away."""
    request = replace(REQUEST, loss=PrivacyLoss.parse("0.01"))
    NormsTransaction(request, table, budget.default_ledger(table.path).absolute()).reserve()
    assert clip_norm.choose_clip_norm(table.path, request, Fraction("0.9")).fresh


@pytest.mark.parametrize(("law", "quantile"), [("0", "0.5"), ("1e-6", "0.7")])
def test_the_clip_norm_lies_between_the_quantiles_that_are_told(law: str, quantile: str) -> None:
    """At its confidence, 0.95; a tenth of the error is not enough, where each bin holds ten rows only."""
    n, q, draws = 1000, Fraction(quantile), 80
    exact = np.array([10] * 100 + [0])
    tails = n - exact.cumsum()[:-1]
    noise = calibrated(PrivacyLoss.parse("0.5", law), Neighbours.REPLACE_ONE)
    wrong = {1: 0, 10: 0}
    for _ in range(draws):
        found = quantile_of(noise.answer(exact, SYSTEM).tolist(), noise.noise, q, rows=n)
        edge = tails.size if found.edge is None else found.edge
        for part in wrong:
            low, high = Worth(q, found.rows / part, n).between or (0, 1)
            below = edge < tails.size and tails[edge] > (1 - low) * n  # the clip norm is below the lower quantile
            above = high < 1 and edge > 0 and tails[edge - 1] <= (1 - high) * n
            wrong[part] += int(below or above)
    most = stats.binom.isf(FALSE_ALARM, draws, 0.05)
    assert wrong[1] <= most < wrong[10]


def test_altered_bytes_are_not_given_out(table: RowsTable) -> None:
    clip_norm.choose_clip_norm(table.path, REQUEST, HALF)
    (blob,) = (budget.default_ledger(table.path) / "blobs").iterdir()
    blob.chmod(0o600)
    blob.write_bytes(blob.read_bytes().replace(b"[", b"[1,", 1))
    with pytest.raises(DataError, match="altered"):
        clip_norm.choose_clip_norm(table.path, REQUEST, HALF)


def test_under_add_remove_the_number_of_rows_is_nowhere_and_exact_counts_never_are(table: RowsTable) -> None:
    request = NormsRequest(PrivacyLoss.parse("0.01"), NormGrid(1e-3, 1e9, 8), Neighbours.ADD_REMOVE)
    choice = clip_norm.choose_clip_norm(table.path, request, HALF)
    assert choice.histogram.rows is None
    exact = counted(norms(some_rows()), choice.histogram.edges).tolist()
    assert NormHistogram.from_json(choice.histogram.to_json()) == choice.histogram
    texts = [b"600", str(exact).encode(), json.dumps(exact, separators=(",", ":")).encode()]
    for path in budget.default_ledger(table.path).rglob("*"):
        if path.is_file() and path.parent.name == "blobs":
            content = json.loads(path.read_bytes())
            assert content["n"] is None
            assert not any(text in path.read_bytes() for text in texts[1:])


def test_a_table_without_a_ledger_is_refused(tmp_path: Path) -> None:
    with created(tmp_path / "rows.zarr", rows=600, dtype="float64", names=("a", "b", "c", "d"), budget=None) as writer:
        writer.append(some_rows())
    with pytest.raises(RefusedError, match="No budget is declared"):
        clip_norm.choose_clip_norm(tmp_path / "rows.zarr", REQUEST, HALF)


def test_an_answer_from_a_ledger_that_is_not_of_these_rows_is_not_taken(
    table: RowsTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "another machine"))
    other = Ledger.create(tmp_path / "other.ledger", dataset_id=table.dataset_id, budget=BUDGET)
    transaction = NormsTransaction(REQUEST, table, tmp_path / "other.ledger")
    guarantee = REQUEST.calibrated(table).guarantee
    asked = REQUEST.parameters(table)
    other.reserve(transaction.release_id, dataset_id=table.dataset_id, parameters=asked, guarantee=guarantee)
    assert other.commit(transaction.release_id, other.begin(transaction.release_id) or 0, [b"{}"])
    with pytest.raises(RefusedError, match="is not the ledger of"):
        clip_norm.choose_clip_norm(table.path, REQUEST, HALF, ledger=tmp_path / "other.ledger")


def test_rows_in_periods_are_refused_with_the_reason(tmp_path: Path) -> None:
    create_periods(tmp_path / "visits", BUDGET)
    with pytest.raises(RefusedError, match="come in periods"):
        clip_norm.choose_clip_norm(tmp_path / "visits", REQUEST, HALF)
    with created(
        tmp_path / "visits" / "d1.zarr", rows=600, dtype="float64", names=("a", "b", "c", "d"), budget=None, period="d1"
    ) as writer:
        writer.append(some_rows())
    with pytest.raises(RefusedError, match="come in periods"):
        clip_norm.choose_clip_norm(tmp_path / "visits" / "d1.zarr", REQUEST, HALF)


def test_on_a_cluster(table: RowsTable, scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    choice = clip_norm.choose_clip_norm(table.path, REQUEST, HALF, cluster=Cluster(scheduler))
    difference = np.array(choice.histogram.counts) - counted(norms(some_rows()), GRID.edges)
    assert np.abs(difference).max() < 2 * math.log(GRID.per_octave * 1000 / FALSE_ALARM)


# --- death ------------------------------------------------------------------------------------------------------------

POINTS = {
    "before the attempt": State.RESERVED, "after the counts are drawn": State.RESERVED,
    "inside the commit": State.RESERVED, "after the commit": State.COMMITTED,
}  # fmt: skip
"""All other moments are those of any release, which ``tests/whole/test_crash.py`` plays."""
Run = Callable[..., int]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Give a function that runs one command line in a process of its own, computing inline, and returns its code."""
    with forking() as forks:

        def run(command: Sequence[str], marker: Path, action: str = "note", point: str = "") -> int:
            words = marker.with_name("words")
            code = forks.start(words, [action, point, str(marker), "inline", *command]).wait()
            sys.stdout.write(words.read_text())
            assert "Traceback" not in words.read_text()
            return code

        yield run


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_moment_it_is_charged_once_and_answered_once(
    table: RowsTable, run: Run, point: str, tmp_path: Path
) -> None:
    command = ["bound", str(table.path), "--epsilon", "1", "--grid", "1:64:2", "--quantile", "0.5"]
    assert run(command, tmp_path / "struck", "kill", point) == -signal.SIGKILL
    assert (tmp_path / "struck").exists()
    record = ledger_of(table).record(REQUEST.release_id(table))
    assert (record and record.state) == POINTS[point]
    committed = record and record.digest
    assert run(command, tmp_path / "struck") == 0
    (record,) = ledger_of(table).records
    assert record.state is State.PUBLISHED
    assert committed in {None, record.digest}
    assert losses(ledger_of(table)) == [PrivacyLoss(10**6)]
    assert [path.name for path in (budget.default_ledger(table.path) / "blobs").iterdir()] == [record.blob]
    ledger_of(table).verify()
    answered = clip_norm.choose_clip_norm(table.path, REQUEST, HALF)
    assert answered.clip is not None
    assert f"Clip norm {exactly(answered.clip)}." in (tmp_path / "words").read_text()


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_ends_with_the_next_one_to_type(table: RowsTable, tmp_path: Path) -> None:
    centre = tmp_path / "the centre.json"
    centre.write_text(json.dumps({"centre": [0.0, 1.0, 0.0, 1.0]}))
    asked = ("bound", table.path, "--epsilon", "0.5", "--grid", "1:64:2", "--centre", centre)
    said = call(*asked, "--json", "--neighbours", "add-remove", "--quantile", "0.8")
    assert said.exit_code == 0
    found = json.loads(said.stdout)
    assert found["clip"] in GRID.edges
    assert found["above"] < found["up_to"]
    assert 0 <= found["clipped_share"] <= 1
    assert found["histogram"]["n"] is None
    words = shlex.split(found["next"])
    assert words[0] == "dpdist"
    filled = [{"RELEASE": str(tmp_path / "release.zarr"), "E": "0.5"}.get(word, word) for word in words[1:]]
    assert call(*filled).exit_code == 0
    assert [r.parameters["mechanism"] for r in ledger_of(table).records] == ["norm-histogram", "two-sided-wishart"]


def test_a_quantile_beyond_the_grid_is_not_claimed_and_what_would_help_is_said(table: RowsTable) -> None:
    asked = ("bound", table.path, "--epsilon", "1", "--grid", "1:4:2", "--quantile", "0.9")
    said = call(*asked)
    assert said.exit_code == 4
    assert "lies beyond the grid, which ends at 4." in said.stderr
    assert "A larger epsilon would not help. Ask again with a grid that reaches further" in said.stderr
    assert "Next:" not in said.stderr
    told = json.loads(call(*asked, "--json").stdout)
    assert (told["clip"], told["up_to"], told["next"], told["fresh"]) == (None, None, None, False)


def test_noise_that_hides_whether_the_grid_is_long_enough_is_cured_by_less_noise_or_another_quantile(
    table: RowsTable,
) -> None:
    choice = clip_norm.choose_clip_norm(table.path, REQUEST, HALF)
    found = quantile_of(choice.histogram.counts, choice.histogram.noise, Fraction("0.98"), rows=600)
    hidden = replace(choice, quantile=Fraction("0.98"), found=found, enough_micro=7_000_000)
    assert hidden.clip is None
    assert "too much to tell. Ask again with epsilon 7, or a grid of fewer norms" in hidden.describe()
    free = hidden.smaller_quantile()
    assert free is not None
    assert f"Or take quantile={free:g} of this histogram, at no cost." in hidden.describe()
    assert clip_norm.choose_clip_norm(table.path, REQUEST, Fraction(str(free))).clip is not None
    assert clip_norm.choose_clip_norm(table.path, REQUEST, Fraction(str(free)) + Fraction(1, 100)).clip is None


def test_the_clip_norm_that_is_said_is_the_one_that_is_used(table: RowsTable, tmp_path: Path) -> None:
    """Edges with more than six digits too: 1234567 was said to be 1.23457e+06."""
    asked = ("bound", table.path, "--epsilon", "1", "--grid", "1:1234567:1", "--quantile", "0.5")
    said = call(*asked)
    assert said.exit_code == 0
    clip = json.loads(call(*asked, "--json").stdout)["clip"]
    assert float(said.stderr.partition("Clip norm ")[2].partition(". ")[0]) == clip
    long = replace(
        clip_norm.choose_clip_norm(table.path, replace(REQUEST, grid=NormGrid.parse("1234567:9999999:1")), HALF)
    )
    assert (long.clip, "Clip norm 1234567. " in long.describe()) == (1234567, True)
    assert "--clip 1234567 --scale by.npy " in f"{next_command(tmp_path, long, 'none', 'by.npy')} "


def test_what_makes_no_sense_spends_nothing(table: RowsTable) -> None:
    for wrong in ("--epsilon 0", "--epsilon 1 --quantile 1e-99999999", "--epsilon 1 --quantile x",
                  "--epsilon 1 --grid 2", "--epsilon 1 --centre private", "--epsilon 1 --workers 0"):  # fmt: skip
        assert isinstance(call("bound", table.path, *wrong.split()).exception, UsageError | DataError), wrong
    for quantile in (Fraction(0), Fraction(1), Fraction(-1, 2)):
        with pytest.raises(UsageError, match=r"\(quantile\)"):
            clip_norm.choose_clip_norm(table.path, REQUEST, quantile)
    assert ledger_of(table).records == []


def test_the_ledger_and_the_status_of_a_job_show_the_entry(table: RowsTable, tmp_path: Path) -> None:
    assert call("bound", table.path, "--epsilon", "1", "--grid", "1:64:2", "--quantile", "0.5").exit_code == 0
    shown = call("ledger", "show", budget.default_ledger(table.path)).stdout
    line = f"published {REQUEST.release_id(table)} norm-histogram, epsilon 1, delta 0, replace-one"
    assert line in " ".join(shown.split())
    job = tmp_path / "job.toml"
    job.write_text('[rows]\npath = "rows.zarr"\n[release]\npath = "r.zarr"\nepsilon = 1\nclip = 8.0\n')
    told = json.loads(call("status", job, "--json").stdout)
    assert told["balance"]["charged"] == 1
    assert told["releases"]["published"] == 1
    assert told["unfinished"] == []
    assert "1 release to make" in call("run", job, "--dry-run").stderr
    assert NormsTransaction(REQUEST, table, budget.default_ledger(table.path)).release_id == REQUEST.release_id(table)
