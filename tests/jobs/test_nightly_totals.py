"""Totals of periods: what they are the sum of, their noise, what they tell, and the components of them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from faults.nightly import JOB
from scipy.stats import chi2
from support.nightly_scene import Place
from support.tallies import FALSE_ALARM

from dpdist.jobs import job_file, totals
from dpdist.pca.alignment import require_alignment
from dpdist.pca.components import components
from dpdist.pca.model import open_model
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release.artefact import Release, open_release
from dpdist.release.combine import combined, write_sum
from dpdist.release.series import Tree, variance_factor


def test_the_total_is_the_sum_of_what_was_published(place: Place) -> None:
    place.arrive("d1", "d2")
    place.run()
    place.arrive("d3")
    place.run()
    parts = [open_release(place.published / f"d{i}.zarr") for i in (1, 2, 3)]
    total = open_release(place.published / "total" / "d3.zarr")
    np.testing.assert_array_equal(total.lattice, sum(part.lattice for part in parts))
    assert total.rows == 90
    assert total.noise["variance_diagonal"] == sum(part.noise["variance_diagonal"] for part in parts)
    assert total.guarantee is not None
    assert total.guarantee.loss == PrivacyLoss.parse("1", "1e-6")
    assert total.releases == tuple(sorted(part.release_id for part in parts))
    (extent,) = total.extents
    assert (extent.first, extent.last, extent.start, extent.stop) == ("d1", "d3", 0, 3)
    assert [p.name for p in sorted((place.published / "total").iterdir())] == ["d2.zarr", "d3.zarr"]


@pytest.mark.parametrize("continual", [1, 5])
def test_the_error_of_the_total_is_as_predicted(place: Place, continual: int) -> None:
    """The squared error of every entry, over its variance, is chi-squared: two-sided, one false alarm in a million."""
    names = [f"d{i}" for i in range(5)]
    place.arrive(*names)
    place.run(continual=continual)
    total = open_release(place.published / "total" / "d4.zarr")
    error = (total.lattice - place.exact(total.bound, *names)).astype(np.float64)
    levels = 1 if continual == 1 else 3
    asked = replace(job_file.read_job(place.job).request, grid_bits=total.bound.grid_bits)
    whole = asked.calibrated(3).noise["variance_off_diagonal"]
    predicted = whole * variance_factor(5, levels)
    assert total.noise["variance_off_diagonal"] == pytest.approx(predicted, rel=1e-4)
    low, high = float(chi2.ppf(FALSE_ALARM / 2, 6)), float(chi2.isf(FALSE_ALARM / 2, 6))
    statistic = (error[np.triu_indices(3, 1)] ** 2).sum() / predicted
    statistic += (np.diag(error) ** 2).sum() / (2 * predicted)
    assert low < statistic < high
    doubled = place.exact(total.bound, *names[1:])  # the twin: with one period left out, it is found
    wrong = (total.lattice - doubled * 1000).astype(np.float64)
    assert (wrong[np.triu_indices(3)] ** 2).sum() / (2 * predicted) > high


def test_a_total_takes_in_all_that_is_published_and_opens_little_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the total before the last tree, only the releases of that tree are opened."""
    opened: list[str] = []

    def noted(path: Path) -> Release:
        opened.append(f"{path.parent.name}/{path.name}")
        return open_release(path)

    monkeypatch.setattr("dpdist.jobs.totals.open_release", noted)
    for number in range(1, 4):
        place.arrive(f"d{number}")
        opened.clear()
        place.run(continual=4)
        assert len({*opened} - {f"total/d{number}.zarr"}) == totals.opened(Tree(3), number, None)
    assert sorted(opened) == ["published/d3.zarr", "total/d2.zarr", "total/d3.zarr"]  # the last is told of
    nodes = [open_release(p).release_id for p in place.published.glob("*.zarr")]
    total = open_release(place.published / "total" / "d3.zarr")
    assert total.releases == tuple(sorted(nodes))
    assert total.guarantee is not None
    assert total.guarantee.loss.epsilon_micro <= 10**6
    assert total.guarantee.loss.delta_atto == 10**12


def test_totals_of_an_older_version_stay_and_the_next_ones_are_better(place: Place) -> None:
    """These were sums of the roots of the trees; releases that it made give the better total at once."""
    place.arrive(*(f"d{number}" for number in range(1, 7)))
    place.run(continual=8)
    target = place.published / "total" / "d6.zarr"
    better = open_release(target)
    roots = [open_release(place.published / name) for name in ("d1--d4.zarr", "d5--d6.zarr")]
    shutil.rmtree(target)
    older = combined(roots)
    write_sum(older, target)
    before = place.files()
    assert place.run(continual=8).total == target
    assert place.files() == before
    place.arrive("d7")
    place.run(continual=8)
    total = open_release(place.published / "total" / "d7.zarr")
    leaf = open_release(place.published / "d7.zarr")
    np.testing.assert_array_equal(total.lattice, better.lattice + leaf.lattice)
    assert total.noise["variance_diagonal"] < older.noise["variance_diagonal"] + leaf.noise["variance_diagonal"]


def test_components_above_the_noise_are_taken_night_after_night(place: Place) -> None:
    """Rows of one direction, far above the noise: it is found every night, also in the totals of totals."""
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
    """At epsilon 0.001 the rows are far below the noise; something is counted of it in one night of 20."""
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
