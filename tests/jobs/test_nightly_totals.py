"""Totals of periods, as trees and weighted sums: the reads and charge of each run, the sum, its noise, its model."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from faults.nightly import JOB
from scipy.stats import chi2
from support.nightly_scene import Place, noted_chunks, place_in
from support.tallies import FALSE_ALARM

from dpdist.answers.alignment import require_alignment
from dpdist.answers.components import components
from dpdist.answers.model import open_model
from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.moment.total import MomentTask, draw_key, moment_task, partition_moment
from dpdist.core.pipeline.charged import statement_of
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.combine import combined, write_sum
from dpdist.core.release.opening import open_release
from dpdist.core.release.plan import planned
from dpdist.core.release.series import Toeplitz, Tree, banded, square_root, variance_factor
from dpdist.core.rows.bounding import RowBound
from dpdist.core.triangle import Band
from dpdist.jobs import job_file, status, totals
from dpdist.jobs.series import open_series
from dpdist.jobs.text import preview_message, status_message

LOW, HIGH = float(chi2.ppf(FALSE_ALARM / 2, 6)), float(chi2.isf(FALSE_ALARM / 2, 6))


def statistic(error: np.ndarray, predicted: float) -> float:
    squares = error.astype(np.float64) ** 2
    return float((squares[np.triu_indices(3, 1)].sum() + np.diag(squares).sum() / 2) / predicted)


@pytest.mark.parametrize(("continual", "levels"), [(1, 1), (5, 3)])
def test_each_row_is_read_once_a_level_and_the_error_of_the_total_is_as_predicted(
    place: Place, chunks: list[str], continual: int, levels: int
) -> None:
    """The squared error of every entry, over its variance, is chi-squared: two-sided, one false alarm in a million."""
    names = [f"d{i}" for i in range(5)]
    place.arrive(*names)
    place.run(continual=continual)
    total = open_release(place.published / "total" / "d4.zarr")
    error = total.lattice - place.exact(total.bound, *names)
    assert Counter(chunks) == {f"d{i}/0": 1 + (1 if i == 4 else levels) for i in range(5)}  # once to seal it
    assert len(total.releases) == (5 if levels == 1 else 5 + 2 + 1)
    left = place.ledger.balance().left_closed
    assert left is not None
    assert left.gaussian_micro < 10_000
    asked = replace(job_file.read_job(place.job).request, grid_bits=total.bound.grid_bits)
    whole = planned(asked, Dimensions(3)).moment.noise["variance_off_diagonal"]
    predicted = whole * variance_factor(5, levels)
    assert total.noise["variance_off_diagonal"] == pytest.approx(predicted, rel=1e-4)
    assert LOW < statistic(error, predicted) < HIGH
    assert statistic(1000 * error, predicted) > HIGH  # the twin: noise of another scale is found


def test_a_total_of_a_tree_is_rebuilt_where_it_is_lost_replaces_no_other_and_is_part_of_the_next(place: Place) -> None:
    place.arrive(*(f"d{number}" for number in range(1, 7)))
    place.run(continual=8)
    target, published = place.published / "total" / "d6.zarr", place.files()
    best = open_release(target)
    shutil.rmtree(target)
    write_sum(combined([open_release(place.published / name) for name in ("d1--d4.zarr", "d5--d6.zarr")]), target)
    before = place.files()
    place.refused("exists already", DataError, continual=8)
    assert place.files() == before != published
    shutil.rmtree(target)
    assert place.run(continual=8).total == target
    assert place.files() == published
    place.arrive("d7")
    place.run(continual=8)
    total = open_release(place.published / "total" / "d7.zarr")
    leaf = open_release(place.published / "d7.zarr")
    np.testing.assert_array_equal(total.lattice, best.lattice + leaf.lattice)


@pytest.mark.parametrize(
    ("continual", "change"),
    [
        (8, {}),
        (8, {"columns": ["b", "a", "c"]}),
        (
            8,
            {
                "guarantee": {"epsilon_micro": 1000, "mu_squared": ["1", "10000000000"]},
                "claim": {"epsilon_micro": 1000},
            },
        ),
        (None, {}),
    ],
)  # fmt: skip
def test_a_ledger_is_asked_what_the_releases_of_a_total_cost(
    place: Place, continual: int | None, change: dict[str, Any]
) -> None:
    place.arrive(*(f"d{number}" for number in range(1, 7)))
    place.run(continual=continual)
    target = place.published / "total" / "d6.zarr"
    release = open_release(target)
    statement = statement_of(place.ledger, release, target)
    assert {record.release_id for record in statement.charged} >= set(release.releases)
    if not change:
        return
    metadata = json.loads((target / "zarr.json").read_text())
    about = metadata["attributes"]["dpdist"]
    for name, value in change.items():
        about[name] = about[name] | value if isinstance(value, dict) else value
    (target / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(DataError, match="it was altered"):
        statement_of(place.ledger, open_release(target), target)


def test_components_above_the_noise_are_taken_night_after_night(place: Place) -> None:
    """Rows of one direction, far above the noise: each run finds it, also in totals of totals."""
    place.job.write_text(
        JOB.replace("budget_epsilon = 1\n", "budget_epsilon = 50\n").replace("epsilon = 1\n", "epsilon = 50\n")
        + '[pca]\npath = "models"\ncomponents = "auto"\n'
    )
    for count, night in enumerate(("d1", "d2", "d3"), 400):
        np.save(place.incoming / f"{night}.npy", np.outer(np.full(count, 4.0), [0.6, 0.8, 0.0]))
        outcome = place.run()
        assert outcome.model == place.folder / "models" / f"{night}.zarr"
        model, total = open_model(outcome.model or "nowhere"), open_release(outcome.total or "nowhere")
        assert model.release_id == total.release_id
        found = model.components
        assert abs(found.components[0] @ [0.6, 0.8, 0.0]) > 0.9
        assert require_alignment(total, found).counted == len(found.components)
    assert len(place.ledger.records) == 3


def test_a_night_whose_total_drowns_in_the_noise_is_released_without_a_model(place: Place) -> None:
    """At epsilon 0.001 the rows are far below the noise; one release of 20 counts something."""
    place.job.write_text(
        JOB.replace("\nepsilon = 1\n", "\nepsilon = 0.001\n") + '[pca]\npath = "models"\ncomponents = "auto"\n'
    )
    for number, night in enumerate(("d1", "d2", "d3"), 1):
        place.arrive(night)
        outcome = place.run()
        total = open_release(outcome.total or "nowhere")
        count = require_alignment(total, components(total, 3)).counted
        assert (outcome.model is None) == (count == 0)
        assert (place.folder / "models" / f"{night}.zarr").exists() == (count > 0)
        assert len(place.ledger.records) == number


ROOT = JOB + 'factorisation = "square-root"\ncontinual = 3\n'
BANDED = JOB + 'factorisation = "banded"\nband = 2\n'


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, list[Counter[str]]]]:
    """Three releases of a square root for three, and the reads of each."""
    folder = tmp_path_factory.mktemp("year")
    reads: list[Counter[str]] = []
    with pytest.MonkeyPatch.context() as patch:
        made, seen = place_in(folder, patch), noted_chunks(patch)
        made.job.write_text(ROOT + 'window = 2\n[pca]\npath = "models"\ncomponents = 2\n')
        for number in (1, 2, 3):
            made.arrive(f"d{number}")
            made.run()
            reads.append(Counter(seen))
            seen.clear()
            assert made.ledger.balance().left.gaussian_micro == 10**6  # of later periods, after every run
            if number == 1:
                shutil.copytree(folder / "visits.ledger", folder / "older.ledger")
        yield made, reads


def test_a_square_root_reads_all_rows_every_night(year: tuple[Place, list[Counter[str]]]) -> None:
    place, reads = year
    for number, read in enumerate(reads, 1):
        assert read == {f"d{number}/0": 2} | {f"d{n}/0": 1 for n in range(1, number)}  # once to seal it
        total = open_release(place.published / "total" / f"d{number}.zarr")
        assert total.rows == 30 * number
        assert len(total.releases) == number
        assert total.guarantee is not None
        assert total.guarantee.loss.within(PrivacyLoss.parse("1", "1e-6"))
        names = [f"d{n}" for n in range(1, number + 1)]
        window = open_release(place.published / "window-2" / f"d{number}.zarr")
        assert (window.rows, window.window) == (30 * min(2, number), 2 if number > 2 else None)
        for made_of, model in ((total, f"d{number}.zarr"), (window, f"window-2/d{number}.zarr")):
            assert open_model(place.folder / "models" / model).release_id == made_of.release_id
        assert (window.releases, window.guarantee, window.extents) == (total.releases, total.guarantee, total.extents)
        for found, periods in ((total, names), (window, names[-2:])):
            error = np.abs(found.lattice - place.exact(found.bound, *periods))
            assert error.max() < 8 * found.noise["variance_diagonal"] ** 0.5
    with pytest.raises(UsageError, match="differ in their window"):
        combined([total, window])
    assert [record.weights for record in place.ledger.records] == [(64,), (32, 64), (24, 32, 64)]
    assert set(place.events().items()) >= {("reserved", 3), ("committed", 3), ("published", 3), ("closed", 3)}
    place.ledger.verify()


def test_a_series_ends_and_keeps_its_parameters(year: tuple[Place, list[Counter[str]]]) -> None:
    place, _ = year
    before, entries = place.files(), place.events()
    assert place.run().released == ()
    place.arrive("d4")
    place.refused(r"The period d4 exceeds the 3 periods of this series")
    found = place.preview()
    assert (found.releases, "d4 exceeds the 3" in preview_message(found)) == ((), True)
    assert "3 closed of 3, the last d3; waiting: d4" in status_message(status.status_of(job_file.read_job(place.job)))
    for other in (ROOT.replace("= 3", "= 4"), BANDED, JOB + "continual = 3\n"):
        place.job.write_text(other)  # a tree has other releases besides, and may not charge them before this is noticed
        place.refused("was released with other parameters")
    place.job.write_text(ROOT)
    assert place.files() == before
    assert place.events() == entries  # nothing is closed or charged


def test_an_older_ledger_adopts_nights_at_what_each_period_bears(year: tuple[Place, list[Counter[str]]]) -> None:
    place, _ = year
    older = Ledger(place.folder / "older.ledger")
    with pytest.raises(RefusedError, match="behind its witness"):
        older.require_current()
    assert len(older.adopt()) == 2
    mine, theirs = older.accounts(), place.ledger.accounts()
    assert mine is not None
    assert theirs is not None
    assert [mine.left([period]) for period in older.periods] == [theirs.left([period]) for period in older.periods]
    states = [(record.weights, record.state) for record in older.records]
    assert states == [((64,), State.PUBLISHED), ((32, 64), State.ADOPTED), ((24, 32, 64), State.ADOPTED)]
    record = older.records[-1]
    assert not older.abort(record.release_id)

    def again(weights: dict[str, int]) -> State:
        return older.reserve(
            record.release_id, dataset_id=older.dataset_id, parameters=record.parameters, guarantee=record.guarantee,
            periods=older.periods, weights=weights,
        )  # fmt: skip

    with pytest.raises(RefusedError, match="is already used with other parameters"):
        again({"d1": 20, "d2": 32, "d3": 64})
    assert again({"d1": 24, "d2": 32, "d3": 64}) is State.ADOPTED


def test_a_weighted_sum_is_that_of_the_integers_of_each_period(year: tuple[Place, list[Counter[str]]]) -> None:
    """Of the same key, in one part and in several, whole and in bands."""
    series = open_series(job_file.read_job(year[0].job))
    bound = RowBound(3, 8.0, grid_bits=12)
    key = draw_key()

    def summed(task: MomentTask) -> np.ndarray:
        return partition_moment(task.with_key(key)).values

    plain = series.table.span(series.ledger.periods, 0)
    weighted = replace(plain, weights=(24, 32, 64))
    each = [summed(moment_task(replace(plain, parts=(part,)), bound)) for part in plain.parts]
    expected = 24 * each[0] + 32 * each[1] + 64 * each[2]
    whole = moment_task(weighted, bound)
    np.testing.assert_array_equal(summed(whole), expected)
    np.testing.assert_array_equal(summed(whole.for_task(range(2))) + summed(whole.for_task(range(2, 3))), expected)
    bands = [summed(moment_task(weighted, bound, band)) for band in (Band(0, 1, 3), Band(1, 3, 3))]
    np.testing.assert_array_equal(np.concatenate(bands), expected)
    with pytest.raises(DataError, match="more rows than 64-bit integers can sum"):
        moment_task(replace(plain, weights=(1, 1, 1000)), replace(bound, grid_bits=24))


def test_the_error_of_a_banded_total_is_as_stated(place: Place, chunks: list[str]) -> None:
    """The squared error of every entry, over its variance, is chi-squared: two-sided, one false alarm in a million."""
    place.job.write_text(BANDED + 'centre = "private"\n')
    names = [f"d{number}" for number in range(4)]
    place.arrive(*names)
    outcome = place.run()
    assert Counter(chunks) == {"d0/0": 3, "d1/0": 3, "d2/0": 3, "d3/0": 2}  # once to seal it
    total = open_release(outcome.total or "nowhere")
    plan = job_file.read_job(place.job).plan
    assert isinstance(plan, Toeplitz)
    asked = replace(job_file.read_job(place.job).request, grid_bits=total.bound.grid_bits)
    predicted = planned(asked, Dimensions(3)).moment.noise["variance_off_diagonal"] * plan.variance_factor(4)
    assert total.noise["variance_off_diagonal"] == pytest.approx(predicted, rel=1e-4)
    assert (total.rows, total.extents[0].stop, total.lattice[3, 3]) == (120, 4, 120 * total.bound.constant**2)
    exact = place.exact(total.bound, *names)
    assert LOW < statistic(total.lattice[:3, :3] - exact, predicted) < HIGH
    night = open_release(place.published / "d3.zarr").lattice[:3, :3]  # a release is no total
    assert max(statistic(each - exact, predicted) for each in (night // 64, night)) > HIGH
    before = place.files()
    shutil.rmtree(place.published / "total" / "d2.zarr")
    shutil.rmtree(place.published / "total" / "d3.zarr")
    place.run()
    assert place.files() == before  # each caught-up period has a total, and a lost one is rebuilt


def test_a_dry_run_tells_what_each_night_reads_and_status_the_noise_of_the_next(place: Place) -> None:
    place.job.write_text(ROOT)
    place.arrive("d1", "d2")
    read = job_file.read_job(place.job)
    found = status.preview(read)
    assert [(of, charge.periods, charge.weights) for of, charge in found.releases] == [
        ("d1", ("d1",), (64,)),
        ("d2", ("d1", "d2"), (32, 64)),
    ]
    assert "less of those before d2; it reads 2 periods" in preview_message(found)
    place.run()
    after, noise = status.preview(read), status.status_of(read).noise
    assert (after.left, after.releases, after.totals) == (found.left, (), ())
    place.arrive("d3")
    assert status.preview(read).totals[0].to_json() == {"periods": 3, "releases": 3, "bytes": 3 * 8 * 9}
    place.run()
    totals = [open_release(place.published / "total" / f"{night}.zarr") for night in ("d2", "d3")]
    deviations = [total.noise["variance_off_diagonal"] ** 0.5 * total.bound.unit**2 for total in totals]
    assert noise is not None
    assert [noise.now, noise.following] == pytest.approx(deviations)
    assert status_message(status.status_of(read)).split()[-3:] == ["series", "has", "ended"]


def test_a_series_whose_nights_the_budget_does_not_hold_together_is_not_begun(place: Place) -> None:
    """Its first release alone would fit."""
    place.job.write_text(ROOT.replace("budget_epsilon = 1\n", "budget_epsilon = 0.95\n"))
    place.arrive("d1")
    assert not place.preview().fits
    place.refused(r"All releases of this series together cost each row epsilon 1, .* 0\.95")
    assert place.ledger.records == []


def test_the_files_that_a_total_opens_are_counted() -> None:
    assert [totals.opened(banded(64), count, None) for count in (1, 2, 365)] == [1, 2, 17]
    assert totals.opened(banded(64), 365, 30) == 18
    assert [totals.opened(Tree(9), count, None) for count in (1, 7, 256)] == [1, 2, 511]
    plans = (Tree(9), None), (banded(64), None), (square_root(365), 7)
    assert [totals.largest(plan, window) for plan, window in plans] == [256, 65, 210]
