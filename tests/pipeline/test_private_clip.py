"""A release that chooses its clip norm: two draws under one id, one price, and nothing to choose in between."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.ledgers import ledger_of_rows, losses, stage_of

from dpdist.cli import cli
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.ingest.registered import open_rows
from dpdist.ledger.state import State
from dpdist.mechanisms.counts import DiscreteLaplace, RoundedNormal
from dpdist.mechanisms.quantile import calibrated
from dpdist.moment import total
from dpdist.pipeline import budget, release
from dpdist.pipeline.budget import ingest_rows
from dpdist.pipeline.release import release_rows
from dpdist.privacy import staged
from dpdist.privacy.accounting import prices
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.privacy.profile import mu_of_pure
from dpdist.release.artefact import open_release
from dpdist.release.norm_histogram import NormHistogram
from dpdist.release.request import CLIP_GRID, UNKNOWN, ReleaseRequest
from dpdist.rows.columns import Column
from dpdist.rows.dataset import created
from dpdist.rows.schema import Schema
from dpdist.rows.units import Unit

pytestmark = pytest.mark.usefixtures("state")
WHOLE = PrivacyLoss.parse("1", "1e-6")
GAUSSIAN = ReleaseRequest("gaussian", WHOLE, "private")
PURE = ReleaseRequest("two-sided-wishart", PrivacyLoss.parse("1"), "private")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.zarr"
    values = np.random.default_rng(1).normal(size=(5000, 3)) * (1, 2, 4)
    with created(path, rows=5000, dtype="float64", names=("a", "b", "c"), budget=PrivacyLoss.parse("2", "1e-6")) as to:
        to.append(values)
    budget.create_ledger(budget.default_ledger(path), path)
    return path


# --- what both parts cost ---------------------------------------------------------------------------------------------


def test_the_epsilons_of_both_pure_parts_add_up_to_the_whole() -> None:
    parts = PURE.parts(5)
    assert parts is not None
    assert isinstance(calibrated(parts.choice.loss, Neighbours.REPLACE_ONE).noise, DiscreteLaplace)
    assert (parts.choice.loss, parts.moment.loss) == (
        PrivacyLoss.parse("0.1"),
        PrivacyLoss.parse("0.9"),
    )
    assert parts.guarantee.loss == PURE.loss
    # beside Gaussian releases each part is charged for itself
    dearer = mu_of_pure(Fraction(1))
    assert list(prices(parts.guarantee))[-1].mu_squared == mu_of_pure(Fraction(1, 10)) + mu_of_pure(Fraction(9, 10))
    assert list(prices(parts.guarantee))[-1].mu_squared < dearer


def part(loss: PrivacyLoss, square: int | None = None) -> Guarantee:
    squared = None if square is None else Fraction(1, square)
    return Guarantee(Neighbours.REPLACE_ONE, loss, squared, Arithmetic.IDEAL_REAL, "none")


def test_of_a_mechanism_without_mu_both_parts_add_up_and_the_stage_takes_no_delta() -> None:
    first, second = staged.divided(WHOLE, UNKNOWN, part, gaussian=False)
    assert (first, second) == (PrivacyLoss.parse("0.1"), PrivacyLoss.parse("0.9", "1e-6"))
    both = staged.together(part(first), part(second), WHOLE)
    assert (both.loss, both.mu_squared, both.bounded_ranges) == (WHOLE, None, ())
    assert both.arithmetic is Arithmetic.IDEAL_REAL


def test_parts_that_cost_more_than_the_whole_are_not_stated() -> None:
    with pytest.raises(AssertionError):
        staged.together(part(PrivacyLoss.parse("0.2")), part(PrivacyLoss.parse("0.9")), PURE.loss)
    with pytest.raises(AssertionError):
        staged.together(part(WHOLE, 100), part(WHOLE, 100), PrivacyLoss.parse("0.1", "1e-6"))
    other = replace(part(PrivacyLoss.parse("0.1")), neighbours=Neighbours.ADD_REMOVE)
    with pytest.raises(AssertionError):
        staged.together(part(PrivacyLoss.parse("0.1")), other, PURE.loss)
    for loss in (PrivacyLoss(1), PrivacyLoss(1, 10**12)):
        with pytest.raises(UsageError, match="cannot be divided"):
            staged.divided(loss, UNKNOWN, lambda asked: part(asked, 100), gaussian=loss.delta_atto > 0)


# --- the release ------------------------------------------------------------------------------------------------------


def test_no_norm_is_taken_that_no_row_can_have_by_the_schema(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "1,1\n" * 5000)
    columns = [Column(name, "number", range=(0, 1)) for name in "ab"]
    budget = PrivacyLoss.parse("4", "1e-6")
    ingest_rows(tmp_path / "t.csv", tmp_path / "t.zarr", budget=budget, schema=Schema(columns, scale="range"))
    said: list[str] = []
    asked = tmp_path / "t.zarr", tmp_path / "t.release.zarr"
    with pytest.raises(RefusedError):  # what is refused says why, and no more
        release_rows(*asked, replace(GAUSSIAN, loss=PrivacyLoss.parse("0.001", "1e-9")), say=said.append)
    assert said == []
    made = release_rows(*asked, GAUSSIAN, say=said.append)
    (hint,) = said  # the norm of the schema is free
    assert hint.startswith("In the release, clip_norm=1.415 shortens no row, by the schema, and costs nothing")
    release_rows(*asked, GAUSSIAN, say=said.append)  # paid for already
    release_rows(asked[0], tmp_path / "u.zarr", replace(GAUSSIAN, clip_norm=1.415, name="u"), say=said.append)
    assert len(said) == 1
    assert made.release.bound.clip_norm == 1.415  # sqrt 2, where the grid has 2
    assert "clip norm 1.415, which no row exceeds by the schema" in made.describe()
    stage = made.release.stage
    assert stage is not None
    assert stage.chosen == {"clip_norm": 1.415}


@pytest.mark.parametrize("request_", [PURE, replace(GAUSSIAN, neighbours=Neighbours.ADD_REMOVE)])
def test_it_is_one_release_at_the_price_of_both_and_tells_its_stage(
    rows: Path, tmp_path: Path, request_: ReleaseRequest
) -> None:
    target = tmp_path / "release.zarr"
    made = release_rows(rows, target, request_)
    found, parts = made.release, request_.of_table(open_rows(rows)).parts(3)
    assert parts is not None
    assert made.fresh
    assert found.stage is not None
    (record,) = ledger_of_rows(rows).records
    assert (record.state, losses(ledger_of_rows(rows))) == (State.PUBLISHED, [request_.loss])
    assert found.guarantee == record.guarantee == parts.guarantee
    assert found.claim == request_.loss
    assert found.private_as_claimed
    assert found.guarantee.proof == "dpdist.privacy.staged"
    assert Guarantee.from_json(found.stage.guarantee) == parts.choice
    assert found.noise == parts.moment.calibrated(3).noise

    histogram = NormHistogram.from_json(json.loads(stage_of(rows)))
    assert found.stage.answer["counts"] == list(histogram.counts)
    assert tuple(found.stage.answer["edges"]) == histogram.edges == CLIP_GRID.edges
    assert found.stage.chosen["clip_norm"] == found.bound.clip_norm == histogram.clip_norm(interpolated=True)[0]
    norms = np.linalg.norm(np.random.default_rng(1).normal(size=(5000, 3)) * (1, 2, 4), axis=1)
    assert np.quantile(norms, 0.5) < found.bound.clip_norm < 4 * np.quantile(norms, 0.99)
    # the rows were bounded by the norm that was chosen, and by no other
    assert math.isclose(
        np.trace(found.second_moment), np.sum(np.minimum(norms, found.bound.clip_norm) ** 2), rel_tol=0.2
    )

    elsewhere = tmp_path / "altered.zarr"
    shutil.copytree(target, elsewhere)
    head_of = json.loads((elsewhere / "zarr.json").read_text())
    head_of["attributes"]["dpdist"]["stage"]["chosen"]["clip_norm"] *= 2
    (elsewhere / "zarr.json").write_text(json.dumps(head_of))
    with pytest.raises(DataError, match="was damaged"):
        open_release(elsewhere)

    head = ledger_of_rows(rows).head
    again = release_rows(rows, tmp_path / "elsewhere.zarr", request_)
    assert not again.fresh
    assert again.release.attributes() == found.attributes()
    assert ledger_of_rows(rows).head == head
    assert "Chosen first, privately, by norm-histogram" in again.describe()


def test_rows_that_fail_are_refunded_before_the_stage_is_drawn_and_never_afterwards(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unusable(*_: object) -> None:
        raise DataError("a chunk is damaged")

    target = tmp_path / "release.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(total, "hash_of", unusable)
        patch.setattr("dpdist.moment.histograms.hash_of", unusable)
        with pytest.raises(DataError):
            release_rows(rows, target, GAUSSIAN)
    assert losses(ledger_of_rows(rows)) == []
    with monkeypatch.context() as patch:
        patch.setattr(release, "partition_of_own_key", unusable)
        with pytest.raises(DataError):
            release_rows(rows, target, GAUSSIAN)
    (record,) = ledger_of_rows(rows).records
    assert (record.state, losses(ledger_of_rows(rows))) == (State.STAGED, [WHOLE])
    stage = stage_of(rows)
    made = release_rows(rows, target, GAUSSIAN)
    assert made.release.stage is not None
    assert stage_of(rows) == stage
    assert losses(ledger_of_rows(rows)) == [WHOLE]


def test_nothing_is_spent_where_no_clip_norm_could_be_chosen(rows: Path, tmp_path: Path) -> None:
    target = tmp_path / "release.zarr"
    with pytest.raises(RefusedError, match=r"moves ranks by up to \d+ rows; the table has 5000"):
        release_rows(rows, target, replace(GAUSSIAN, loss=PrivacyLoss.parse("0.01", "1e-6")))
    with pytest.raises(RefusedError, match="budget of"):
        release_rows(rows, target, replace(GAUSSIAN, loss=PrivacyLoss.parse("2.1", "1e-6")))
    with pytest.raises(UsageError, match="reproduction"):
        ReleaseRequest("sn", PrivacyLoss.parse("1"), "private", for_reproduction=True)
    assert ledger_of_rows(rows).records == []
    with pytest.raises(UsageError, match="not chosen yet"):
        GAUSSIAN.bound(3)


def test_it_is_calibrated_for_all_rows_of_a_unit(tmp_path: Path) -> None:
    path, unit = tmp_path / "units.zarr", Unit("who", 2)
    values = np.random.default_rng(1).normal(size=(5000, 3))
    with created(path, rows=5000, dtype="float64", names=("a", "b", "c"), budget=WHOLE, unit=unit) as to:
        to.append(values)
    budget.create_ledger(budget.default_ledger(path), path)
    asked = replace(GAUSSIAN, clip_share=Fraction(1, 10))
    found = release_rows(path, tmp_path / "release.zarr", asked).release
    assert found.stage is not None
    assert found.stage.answer["noise"]["sigma"] > 1.9 * _sigma(1)
    assert found.unit == unit


def _sigma(max_rows: int) -> int:
    parts = replace(GAUSSIAN, clip_share=Fraction(1, 10)).parts(3, max_rows)
    assert parts is not None
    noise = calibrated(parts.choice.loss, Neighbours.REPLACE_ONE, max_rows).noise
    assert isinstance(noise, RoundedNormal)
    return noise.sigma


def test_a_table_that_is_too_small_is_said_to_be_before_and_told_the_epsilon_that_is_enough(tmp_path: Path) -> None:
    path, target = tmp_path / "rows.zarr", tmp_path / "release.zarr"
    with created(path, rows=100, dtype="float64", names=("a", "b"), budget=PrivacyLoss.parse("20", "1e-5")) as to:
        to.append(np.random.default_rng(1).normal(size=(100, 2)))
    budget.create_ledger(budget.default_ledger(path), path)
    loss = ["--epsilon", "1", "--clip", "private"]
    refused = CliRunner().invoke(cli, ["release", str(path), str(target), *loss])
    assert isinstance(refused.exception, RefusedError)
    said = str(refused.exception)
    enough = re.findall(r"Ask for --epsilon ([\d.]+) or more", said.replace("(epsilon=", "--epsilon "))
    told = CliRunner().invoke(cli, ["forecast", "--d", "2", "--n", "100", *loss])
    assert "THE RELEASE WOULD BE REFUSED. A clip norm would be" in told.output
    told = CliRunner().invoke(cli, ["forecast", "--d", "2", "--n", "100", *loss, "--json"])
    assert said == json.loads(told.output)["refused"] + " Nothing was read or spent."
    job = tmp_path / "job.toml"
    job.write_text(f'[rows]\npath = "{path}"\n[release]\npath = "{target}"\nepsilon = 1\nclip = "private"\n')
    planned = CliRunner().invoke(cli, ["run", str(job), "--dry-run"])
    assert "THE RUN WOULD BE REFUSED. A clip norm would be" in planned.output
    loss[1] = enough[0]
    told = CliRunner().invoke(cli, ["forecast", "--d", "2", "--n", "100", *loss, "--json"])
    assert json.loads(told.output)["refused"] is None
    job.write_text(job.read_text().replace("epsilon = 1\n", f"epsilon = {enough[0]}\n"))
    assert "REFUSED" not in CliRunner().invoke(cli, ["run", str(job), "--dry-run"]).output
    assert CliRunner().invoke(cli, ["release", str(path), str(target), *loss]).exit_code == 0
