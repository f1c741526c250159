"""Nights that add periods by weights: what each reads, is charged and publishes, and where a series ends."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from faults.nightly import JOB
from scipy.stats import chi2
from support.ledgers import DiedError, dies
from support.nightly_scene import Place
from support.tallies import FALSE_ALARM

from dpdist.cli import cli
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.jobs import job_file, status, totals
from dpdist.jobs.series import open_series
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.moment.total import key_here, moment_task, partition_moment
from dpdist.pca.model import open_model
from dpdist.privacy.accounting import Left
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release.artefact import Release, open_release
from dpdist.release.combine import combined, sequential
from dpdist.release.series import Toeplitz, square_root
from dpdist.report.status import preview_words, status_words
from dpdist.rows.bounding import DITHERED, RowBound
from dpdist.rows.chunks import ChunkReader
from dpdist.runtime.cluster import Cluster
from dpdist.triangle import Band

ROOT = JOB + 'factorisation = "square-root"\ncontinual = 3\n'
BANDED = JOB + 'factorisation = "banded"\nband = 2\n'


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, list[Counter[str]]]]:
    """Three nights of a square root for three, what each of them read, and the ledger after the first one."""
    folder = tmp_path_factory.mktemp("year")
    reads: list[Counter[str]] = []
    opened: list[set[str]] = []
    original = ChunkReader._checked

    def noted_release(path: Path) -> Release:
        opened[-1].add(f"{path.parent.name}/{path.name}")
        return open_release(path)

    def noted(self: ChunkReader, part: Any, index: int, digest: Any) -> Any:
        reads[-1][f"{part.period}/{index}"] += 1
        return original(self, part, index, digest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "named", False)
        patch.setattr(ChunkReader, "_checked", noted)
        patch.setattr(totals, "open_release", noted_release)
        (folder / "incoming").mkdir()
        made = Place(folder)
        made.job.write_text(ROOT + 'window = 2\n[pca]\npath = "models"\ncomponents = 2\n')
        for number in (1, 2, 3):
            made.arrive(f"d{number}")
            reads.append(Counter())
            opened.append(set())
            made.run()
            own = {f"total/d{number}.zarr"}  # written tonight, and told of
            assert len(opened[-1] - own) == totals.opened(square_root(3), number, 2)
            assert made.ledger.balance().left.gaussian_micro == 10**6  # of periods to come, night after night
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
    left = left_of(place.ledger)
    assert left[0].share > 0.999
    assert left[0].gaussian_micro < left[1].gaussian_micro < left[2].gaussian_micro
    place.ledger.verify()


def left_of(ledger: Ledger) -> list[Left]:
    accounts = ledger.accounts()
    assert accounts is not None
    return [accounts.left([f"d{number}"]) for number in (1, 2, 3)]


def test_a_series_ends_and_keeps_its_parameters(year: tuple[Place, list[Counter[str]]]) -> None:
    place, _ = year
    before, entries = place.files(), place.events()
    assert place.run().released == ()
    place.arrive("d4")
    with pytest.raises(RefusedError, match=r"The period d4 comes after the 3 that this series is for"):
        place.run()
    found = status.preview(job_file.read_job(place.job))
    assert (found.releases, found.new_periods) == ((), ())
    assert "d4 comes after the 3" in preview_words(found)
    assert "3 closed of 3, the last d3; waiting: d4" in status_words(status.status_of(job_file.read_job(place.job)))
    for other in (ROOT.replace("= 3", "= 4"), BANDED, JOB + "continual = 3\n"):
        place.job.write_text(other)  # a tree has other releases besides, and may not charge them before this is noticed
        with pytest.raises(RefusedError, match="was released with other parameters"):
            place.run()
    place.job.write_text(ROOT)
    assert place.files() == before
    assert place.events() == entries  # nothing is closed or charged


def test_an_older_ledger_adopts_nights_at_what_each_period_bears(year: tuple[Place, list[Counter[str]]]) -> None:
    place, _ = year
    older = Ledger(place.folder / "older.ledger")
    with pytest.raises(RefusedError, match="behind its witness"):
        older.require_current()
    assert len(older.adopt()) == 2
    assert left_of(older) == left_of(place.ledger)
    states = [(record.weights, record.state) for record in older.records]
    assert states == [((64,), State.PUBLISHED), ((32, 64), State.ADOPTED), ((24, 32, 64), State.ADOPTED)]
    assert not older.abort(older.records[-1].release_id)
    with pytest.raises(RefusedError, match="stands for other parameters"):
        repeated(older, weights={"d1": 20, "d2": 32, "d3": 64})
    assert repeated(older, weights={"d1": 24, "d2": 32, "d3": 64}) is State.ADOPTED
    with pytest.raises(AssertionError, match="weights are those of the periods"):
        repeated(older, weights={"d3": 64})


def repeated(ledger: Ledger, weights: dict[str, int]) -> State:
    record = ledger.records[-1]
    return ledger.reserve(
        record.release_id,
        dataset_id=ledger.dataset_id,
        parameters=record.parameters,
        guarantee=record.guarantee,
        periods=ledger.periods,
        weights=weights,
    )


def test_a_weighted_sum_is_that_of_the_integers_of_each_period(year: tuple[Place, list[Counter[str]]]) -> None:
    """Of the same key, in one part and in several, whole and in bands."""
    series = open_series(job_file.read_job(year[0].job))
    bound = RowBound(3, 8.0, grid_bits=12, rule=DITHERED)
    key = key_here(bound)
    assert key is not None
    plain = series.table.span(series.ledger.periods, 0)
    weighted = replace(plain, weights=(24, 32, 64))
    sums = [
        partition_moment(moment_task(replace(plain, parts=(part,)), bound).keyed(key.key)).values
        for part in plain.parts
    ]
    expected = 24 * sums[0] + 32 * sums[1] + 64 * sums[2]
    found = partition_moment(moment_task(weighted, bound).keyed(key.key))
    np.testing.assert_array_equal(found.values, expected)
    assert (found.rows, found.covered) == (90, ((0, 3),))
    halves = [moment_task(weighted, bound).cut(r).keyed(key.key) for r in (range(2), range(2, 3))]
    np.testing.assert_array_equal(sum(partition_moment(task).values for task in halves), expected)
    bands = [Band(0, 1, 3), Band(1, 3, 3)]
    parts = [partition_moment(moment_task(weighted, bound, band).keyed(key.key)).values for band in bands]
    np.testing.assert_array_equal(np.concatenate(parts), expected)
    assert (weighted.added_rows, weighted.changed_rows, plain.added_rows, plain.changed_rows) == (3600, 64, 90, 1)
    coarse = replace(bound, grid_bits=24)
    assert plain.rows < coarse.total_rows < replace(plain, weights=(1, 1, 1000)).added_rows
    with pytest.raises(DataError, match="more rows than 64-bit integers can sum"):
        moment_task(replace(plain, weights=(1, 1, 1000)), coarse)
    for weights in ((1, 2), (1, 2, 0)):
        with pytest.raises(ValueError, match="a weight of at least 1"):
            replace(plain, weights=weights)


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
    predicted = asked.calibrated(3).noise["variance_off_diagonal"] * plan.variance_factor(4)
    assert total.noise["variance_off_diagonal"] == pytest.approx(predicted, rel=1e-4)
    assert (total.rows, total.extents[0].stop, total.lattice[3, 3]) == (120, 4, 120 * total.bound.constant**2)
    low, high = float(chi2.ppf(FALSE_ALARM / 2, 6)), float(chi2.isf(FALSE_ALARM / 2, 6))

    def statistic(found: np.ndarray) -> float:
        error = (found[:3, :3] - place.exact(total.bound, *names)).astype(np.float64)
        return float(((error[np.triu_indices(3, 1)] ** 2).sum() + (np.diag(error) ** 2).sum() / 2) / predicted)

    assert low < statistic(total.lattice) < high
    night = open_release(place.published / "d3.zarr")
    before = place.files()
    shutil.rmtree(place.published / "total" / "d2.zarr")
    shutil.rmtree(place.published / "total" / "d3.zarr")
    place.run()
    assert place.files() == before  # nights that are caught up have a total each, and one that is lost is made again
    assert statistic(night.lattice // 64) > high or statistic(night.lattice) > high  # the twin: a night is no total
    assert night.corner is None


def test_a_dry_run_tells_what_each_night_reads_and_whether_the_series_is_paid_for(place: Place) -> None:
    place.job.write_text(ROOT)
    place.arrive("d1", "d2")
    read = job_file.read_job(place.job)
    found = status.preview(read)
    assert [(of, charge.periods, charge.weights) for of, charge in found.releases] == [
        ("d1", ("d1",), (64,)),
        ("d2", ("d1", "d2"), (32, 64)),
    ]
    assert found.fits
    words = preview_words(found)
    assert "less of those before d2; it reads 2 periods" in words
    assert "The total of 2 periods opens 2 published releases; the largest that is planned for, of 3 periods, " in words
    told = CliRunner().invoke(cli, ["run", str(place.job), "--dry-run", "--json"], catch_exceptions=False)
    assert [release["reads"] for release in json.loads(told.stdout)["releases"]] == [1, 2]
    place.run()
    assert status.preview(read).left == found.left
    assert (status.preview(read).releases, status.preview(read).totals) == ((), ())
    noise = status.status_of(read).noise
    total = open_release(place.published / "total" / "d2.zarr")
    assert noise is not None
    assert noise.now == total.noise["variance_off_diagonal"] ** 0.5 * total.bound.unit**2
    assert "of the total of 2 periods: " in status_words(status.status_of(read))
    place.arrive("d3")
    ahead = status.preview(read)
    assert [total.to_json() for total in ahead.totals] == [{"periods": 3, "releases": 3, "bytes": 3 * 8 * 9}] * 2
    assert "The total of 3 periods opens 3 published releases (216 bytes).\n" in preview_words(ahead)
    place.run()
    total = open_release(place.published / "total" / "d3.zarr")
    assert noise.following == pytest.approx(total.noise["variance_off_diagonal"] ** 0.5 * total.bound.unit**2)
    assert status_words(status.status_of(read)).split()[-3:] == ["series", "has", "ended"]


def test_a_series_whose_nights_the_budget_does_not_hold_together_is_not_begun(place: Place) -> None:
    """Its first night alone would fit."""
    place.job.write_text(ROOT.replace("budget_epsilon = 1\n", "budget_epsilon = 0.95\n"))
    place.arrive("d1")
    assert not status.preview(job_file.read_job(place.job)).fits
    with pytest.raises(RefusedError, match=r"The nights of this series together cost each row epsilon 1, .* 0\.95"):
        place.run()
    assert place.ledger.records == []


def test_a_job_speaks_of_its_own_releases_where_another_released_the_same_rows(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.job.write_text(BANDED.replace("budget_epsilon = 1\n", "budget_epsilon = 4\n"))
    place.arrive("d1", "d2")
    place.run()
    place.job.write_text(place.job.read_text().replace('"published"', '"other"'))
    place.job.write_text(place.job.read_text().replace("clip = 8.0", "clip = 9.0"))
    capsys.readouterr()
    place.run()
    total = open_release(place.folder / "other" / "total" / "d2.zarr")
    charged = sequential([charge.guarantee for charge in place.ledger.charges])
    assert total.guarantee is not None
    assert charged.loss.epsilon_micro > total.guarantee.loss.epsilon_micro  # what is published of these rows costs more
    said = f"{total.guarantee.loss} under replace-one for all releases that it is made of, together."
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("death", ["before the commitment", "before the publication"])
def test_a_night_that_dies_is_resumed_by_the_next_and_charged_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, death: str
) -> None:
    """What was drawn and not committed is drawn anew, and nobody has seen it; what was committed is what comes out."""
    place.job.write_text(ROOT)
    place.arrive("d1", "d2")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit" if death == "before the commitment" else "published", dies)
        with pytest.raises(DiedError):
            place.run()
        seen = place.files()
        with pytest.raises(DiedError):
            place.run()
    committed = [record.digest for record in place.ledger.records]
    place.run()
    assert seen.items() <= place.files().items()
    again = 3 if death == "before the commitment" else 1
    expected = {"reserved": 2, "begun": again + 1, "committed": 2, "published": 2, "closed": 2}
    assert {name: place.events()[name] for name in expected} == expected
    assert committed[0] in {None, place.ledger.records[0].digest}
    assert [record.weights for record in place.ledger.records] == [(64,), (32, 64)]
    place.ledger.verify()
