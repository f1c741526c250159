"""A clip norm chosen privately: norms and bins, the law of the noise, the quantile's error, and one charge for ever."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from strategies import SEEDS, float_rows
from support.ledgers import losses
from support.norms import GRID, HALF, Rows, call, ledger_of, no_row_is_read, some_rows, table_of
from support.parts import added
from support.tallies import FALSE_ALARM

from dpdist.cli.pipeline import next_command
from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.mechanisms.counts import DiscreteLaplace
from dpdist.core.mechanisms.quantile import calibrated, quantile_of, weights
from dpdist.core.moment import total
from dpdist.core.moment.histograms import (
    HistogramTask,
    NormCounting,
    NormGrid,
    bits_for,
    counted,
    norms_of,
    partition_histogram,
)
from dpdist.core.moment.total import complete
from dpdist.core.noise.entropy import SYSTEM
from dpdist.core.pipeline import budget, clip_norm
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.advice import QuantileAccuracy
from dpdist.core.release.norm_histogram import NormHistogram, NormsRequest, NormsTransaction
from dpdist.core.rows import dataset
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dataset import RowsTable, created, partitions
from dpdist.core.rows.periods import create_periods
from dpdist.core.rows.units import Unit
from dpdist.core.runtime.cluster import Cluster
from dpdist.core.text import exactly

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
    return norms_of(rows, bound or RowBound(rows.shape[1], 1.0))


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(2, 9)), elements=st.floats(-1e150, 1e150)))
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


@given(float_rows(6, 3), float_rows(1, 3))
def test_one_row_more_changes_one_count_and_one_exchanged_two(rows: Rows, other: Rows) -> None:
    before, more, exchanged = (
        counted(norms(some), GRID.edges)
        for some in (rows, np.concatenate([rows, other]), np.concatenate([rows[1:], other]))
    )
    assert np.abs(more - before).sum() == 1
    assert np.abs(exchanged - before).sum() in {0, 2}


@pytest.mark.parametrize("text", ["1:1000:64", "1e-100:1e100:1", "0.0009765625:1048576:2", "1:16384:2", "1:1447.99:2"])
def test_the_edges_of_a_grid_rise_and_reach_its_end(text: str) -> None:
    grid = NormGrid.parse(text)
    assert np.all(np.diff(grid.edges) > 0)
    assert grid.edges[-1] >= grid.high
    assert grid.edges[-2] < grid.high
    assert all(float(exactly(edge)) == edge for edge in grid.edges)  # what is typed is what was meant
    assert all(edge in grid.edges for edge in (grid.low * 2.0**i for i in range(8)))
    for wrong in ("1:2", "a:2:3", "2:1:4", "0:1:2", "1:2:0", "1:2:65", "1:inf:2", "nan:2:2", "1:2:3:4", "1:1e6:64"):
        with pytest.raises(UsageError, match=r"\(grid\)|^grid"):
            NormGrid.parse(wrong)


@pytest.mark.parametrize(
    ("chunks", "workers", "piece", "compress"),
    [(1, 1, 1 << 19, False), (7, 3, 96, True), (600, 5, 1 << 19, False)],
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
    found = complete(table, added(partition_histogram(task.for_task(run)) for run in runs))
    lengths = np.sqrt((np.nan_to_num(rows * [[np.nan if i == 3 else 1] for i in range(600)]) ** 2).sum(1))
    expected = np.histogram(lengths, [-1, *np.nextafter(GRID.edges, np.inf), np.inf])[0]
    assert found.values.tolist() == expected.tolist()
    assert found.rows == 600


EXACT = np.array([50, 0, 100, 300, 400, 100, 40, 10, 0, 0, 0, 0])
TAILS = EXACT.sum() - EXACT.cumsum()[:-1]


@pytest.mark.parametrize("rows", [10**9, None])
def test_without_noise_the_quantile_is_the_first_edge_that_leaves_few_enough_above(rows: int | None) -> None:
    counts = (EXACT * 10**6).tolist()  # beside which noise of scale 1 vanishes, and so do its bounds
    for quantile, edge in {"0.05": 0, "0.0501": 2, "0.5": 4, "0.95": 5, "0.951": 6, "0.995": 7}.items():
        found = quantile_of(counts, DiscreteLaplace(1), Fraction(quantile), rows=rows)
        assert found.edge == edge
        assert found.tail == pytest.approx(TAILS[edge] / 1000, abs=1e-7)
        if quantile not in {"0.05", "0.95"}:  # there an edge leaves exactly as many as asked for: nothing is sure
            assert (found.above_edge, found.up_to_edge) == (edge - 1 if edge else None, edge)
        assert found.rows < 100
    lost = quantile_of([-3, 1, -5, 0], DiscreteLaplace(5), HALF, rows=None)  # noise exceeds the rows
    assert (lost.tail, lost.tail_error, lost.up_to_edge) == (None, None, None)


def test_errors_in_rows_hold_at_their_confidence_and_standard_errors_are_right() -> None:
    """Of discrete Laplace noise; each half fails with probability 1e-6 at most."""
    draws, bins = 1500, EXACT.size
    noise = calibrated(PrivacyLoss.parse("0.05"), Neighbours.ADD_REMOVE)
    assert noise.noise == DiscreteLaplace(20)
    kinds = [weights(bins, edge, Fraction("0.9"), rows_known=True) for edge in range(bins - 1)]
    bounds = np.array([kind.bound(noise.noise, 0.05 / (2 * len(kinds))) for kind in kinds])
    added = noise.answer(np.zeros(draws * bins, dtype=np.int64), SYSTEM).reshape(draws, bins)
    total = added.sum(axis=1, keepdims=True)
    errors = total - added.cumsum(axis=1)[:, :-1] - np.array([float(kind.w) for kind in kinds]) * total
    most = stats.binom.isf(FALSE_ALARM, draws, 0.05)
    assert (np.abs(errors) > bounds).any(axis=1).sum() <= most < (np.abs(errors) > bounds / 2).any(axis=1).sum()
    # the mean of squares of draws with kurtosis at most 6 is normal here, with variance at most 5 / draws
    deviations = np.array([kind.standard_deviation(noise.noise) for kind in kinds])
    allowed = stats.norm.isf(FALSE_ALARM / (4 * len(kinds))) * math.sqrt(6 / draws)
    assert np.abs((errors**2).mean(axis=0) / deviations**2 - 1).max() < allowed
    assert np.abs((errors**2).mean(axis=0) / (1.5 * deviations) ** 2 - 1).max() > allowed


def test_the_same_again_is_the_same_answer_from_the_ledger_and_so_is_another_quantile(
    table: RowsTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = clip_norm.choose_clip_norm(table.path, REQUEST, HALF)
    assert first.fresh
    (record,) = ledger_of(table).records
    assert record.state is State.PUBLISHED
    assert record.release_id == first.histogram.release_id == id_of(REQUEST, table)
    no_row_is_read(monkeypatch)
    assert clip_norm.choose_clip_norm(table.path, REQUEST, HALF) == replace(first, fresh=False)
    other = clip_norm.choose_clip_norm(table.path, REQUEST, Fraction("0.9"))
    assert other.histogram == first.histogram
    assert (other.clip or 0) > (first.clip or 0) > 0
    assert losses(ledger_of(table)) == [PrivacyLoss(10**6)]
    ledger_of(table).verify()
    assert ledger_of(table).remembers(first.histogram.release_id, first.histogram.ledger_head)


def test_a_private_n_is_in_no_refusal_under_the_other_relation(table: RowsTable) -> None:
    clip_norm.choose_clip_norm(table.path, replace(REQUEST, neighbours=Neighbours.ADD_REMOVE), HALF)
    useless = replace(REQUEST, loss=PrivacyLoss.parse("0.001"))
    with pytest.raises(RefusedError, match="is for the neighbouring relation add-remove") as refused:
        clip_norm.choose_clip_norm(table.path, useless, Fraction("0.99"))
    assert str(table.rows) not in str(refused.value)


def test_after_a_raised_budget_the_answer_repeats_the_condition(table: RowsTable) -> None:
    clip_norm.choose_clip_norm(table.path, REQUEST, HALF)
    ledger_of(table).raise_budget(PrivacyLoss.parse(9, "1e-5"))
    choice = clip_norm.choose_clip_norm(table.path, replace(REQUEST, centre=(0.0, 0.0, 0.0, 1.0)), HALF)
    condition = ledger_of(table).condition
    assert condition is not None
    assert choice.histogram.condition == condition
    assert f"under replace-one, if {condition}, {choice.histogram.release_id}" in choice.describe()
    assert clip_norm.choose_clip_norm(table.path, REQUEST, HALF).histogram.condition is None  # drawn before


def id_of(request: NormsRequest, table: RowsTable) -> str:
    return NormsTransaction(request, table, table.path).release_id


def test_the_id_follows_from_every_parameter_and_not_from_the_rows(table: RowsTable, tmp_path: Path) -> None:
    others = [
        replace(REQUEST, loss=PrivacyLoss.parse("0.9")), replace(REQUEST, grid=NormGrid.parse("1:64:3")),
        replace(REQUEST, neighbours=Neighbours.ADD_REMOVE), replace(REQUEST, centre=(0.0, 0.0, 0.0, 1.0)),
        replace(REQUEST, scale=(1.0, 1.0, 1.0, 2.0)),
    ]  # fmt: skip
    assert len({id_of(request, table) for request in (REQUEST, *others)}) == 6
    assert id_of(REQUEST, replace(table, rows=7)) == id_of(REQUEST, table)
    units = table_of(tmp_path / "units.zarr", some_rows(), BUDGET, unit=Unit("person", 3))
    assert clip_norm.choose_clip_norm(units.path, REQUEST, HALF).histogram.noise == DiscreteLaplace(6)
    assert id_of(REQUEST, units) != id_of(REQUEST, replace(units, unit=None))


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
            low, high = QuantileAccuracy(q, found.rows / part, n).between or (0, 1)
            below = edge < tails.size and tails[edge] > (1 - low) * n  # the clip norm is below the lower quantile
            above = high < 1 and edge > 0 and tails[edge - 1] <= (1 - high) * n
            wrong[part] += int(below or above)
    most = stats.binom.isf(FALSE_ALARM, draws, 0.05)
    assert wrong[1] <= most < wrong[10]


def test_under_add_remove_the_number_of_rows_is_nowhere_and_exact_counts_never_are(table: RowsTable) -> None:
    request = NormsRequest(PrivacyLoss.parse("0.01"), NormGrid(1e-3, 1e9, 8), Neighbours.ADD_REMOVE)
    histogram = clip_norm.choose_clip_norm(table.path, request, HALF).histogram
    assert histogram.rows is None
    exact = counted(norms(some_rows()), histogram.edges).tolist()
    assert NormHistogram.from_json(histogram.to_json()) == histogram
    (blob,) = (budget.default_ledger(table.path) / "blobs").iterdir()
    assert json.loads(blob.read_bytes())["n"] is None
    for text in (str(exact), json.dumps(exact, separators=(",", ":"))):
        assert text not in blob.read_text()


def test_rows_without_a_ledger_of_their_own_are_refused_with_the_reason(table: RowsTable, tmp_path: Path) -> None:
    create_periods(tmp_path / "visits", BUDGET)
    for name, more in {"bare.zarr": {}, "visits/d1.zarr": {"period": "d1"}}.items():
        how = {"rows": 600, "dtype": "float64", "names": tuple("abcd"), "budget": None, **more}
        with created(tmp_path / name, **how) as writer:  # type: ignore[arg-type]
            writer.append(some_rows())
    Ledger.create(tmp_path / "other.ledger", dataset_id="other", budget=BUDGET)
    for rows, ledger, reason in (
        ("bare.zarr", None, "No budget is declared"), ("visits", None, "come in periods"),
        ("visits/d1.zarr", None, "come in periods"), (table.path, "other.ledger", "is not the ledger of"),
    ):  # fmt: skip
        with pytest.raises(RefusedError, match=reason):
            clip_norm.choose_clip_norm(tmp_path / rows, REQUEST, HALF, ledger=ledger and tmp_path / ledger)
    assert ledger_of(table).records == []


def test_on_a_cluster(table: RowsTable, scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    choice = clip_norm.choose_clip_norm(table.path, REQUEST, HALF, cluster=Cluster(scheduler))
    difference = np.array(choice.histogram.counts) - counted(norms(some_rows()), GRID.edges)
    assert np.abs(difference).max() < 2 * math.log(GRID.per_octave * 1000 / FALSE_ALARM)


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
    program, *words = shlex.split(found["next"])
    assert program == "dpdist"
    assert call(*({"RELEASE": tmp_path / "release.zarr", "E": "0.5"}.get(word, word) for word in words)).exit_code == 0
    assert [r.parameters["mechanism"] for r in ledger_of(table).records] == ["norm-histogram", "two-sided-wishart"]


def test_a_quantile_beyond_the_grid_is_not_claimed_and_what_would_help_is_said(table: RowsTable) -> None:
    asked = ("bound", table.path, "--epsilon", "1", "--grid", "1:4:2", "--quantile", "0.9")
    said = call(*asked)
    assert said.exit_code == 4
    for words in ("is beyond the grid, which ends at 4.", "A larger epsilon would not help.", "a longer grid"):
        assert words in said.output
    assert "Next:" not in said.output
    told = json.loads(call(*asked, "--json").stdout)
    assert (told["clip"], told["up_to"], told["next"], told["fresh"]) == (None, None, None, False)


def test_noise_that_hides_the_end_of_the_grid_is_cured_by_less_noise_or_another_quantile(table: RowsTable) -> None:
    choice = clip_norm.choose_clip_norm(table.path, REQUEST, HALF)
    found = quantile_of(choice.histogram.counts, choice.histogram.noise, Fraction("0.98"), rows=600)
    hidden = replace(choice, quantile=Fraction("0.98"), found=found, enough_micro=7_000_000)
    assert hidden.clip is None
    assert "too much to decide. Repeat with epsilon 7, or a grid of fewer norms" in hidden.describe()
    free = hidden.smaller_quantile()
    assert f"Or pass quantile={free:g} for this histogram, at no cost." in hidden.describe()
    assert clip_norm.choose_clip_norm(table.path, REQUEST, Fraction(str(free))).clip is not None


def test_the_clip_norm_that_is_said_is_the_one_that_is_used(table: RowsTable, tmp_path: Path) -> None:
    """Edges with more than six digits too: 1234567 was said to be 1.23457e+06."""
    asked = replace(REQUEST, grid=NormGrid.parse("1234567:9999999:1"))
    found = clip_norm.choose_clip_norm(table.path, asked, HALF)
    assert (found.clip, "Clip norm 1234567. " in found.describe()) == (1234567, True)
    assert "--clip 1234567 --scale by.npy " in f"{next_command(tmp_path, found, 'none', 'by.npy')} "


def test_what_makes_no_sense_spends_nothing(table: RowsTable) -> None:
    for wrong in ("--quantile 1e-99999999", "--quantile x", "--grid 2", "--centre private", "--workers 0"):
        refused = call("bound", table.path, "--epsilon", 1, *wrong.split()).exception
        assert isinstance(refused, UsageError | DataError), wrong
    for quantile in (0, 1, -1):
        with pytest.raises(UsageError, match=r"\(quantile\)"):
            clip_norm.choose_clip_norm(table.path, REQUEST, Fraction(quantile))
    assert ledger_of(table).records == []
