"""A release that chooses its clip norm, and its scale before: three draws under one id, at one price."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner, Result
from support.ledgers import DiedError, dies, ledger_of_rows, losses, stage_of
from support.norms import table_of

from dpdist.answers.bias import clipped_rows
from dpdist.answers.block import source_units
from dpdist.answers.model import open_model
from dpdist.answers.regression import regressions
from dpdist.cli import cli
from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.register import Budget
from dpdist.core.ledger.state import Part, State
from dpdist.core.mechanisms.counts import RoundedNormal
from dpdist.core.mechanisms.quantile import calibrated
from dpdist.core.options import Amount, Clip, RequestOptions
from dpdist.core.pipeline import clip_norm, release
from dpdist.core.pipeline.release import release_rows
from dpdist.core.pipeline.scores import project_rows
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy import staged
from dpdist.core.privacy.accounting import gaussian_delta, gaussian_sigma
from dpdist.core.privacy.guarantee import MICRO, Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.core.release.bounds import Dimensions
from dpdist.core.release.norm_histogram import NormHistogram
from dpdist.core.release.parse import request_from
from dpdist.core.release.plan import UNKNOWN, plan_of, planned, proved
from dpdist.core.release.request import CLIP_GRID, Centring, ReleaseRequest
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema
from dpdist.core.rows.units import Unit
from dpdist.estimators import PrivateCovariance, PrivatePCA

pytestmark = pytest.mark.usefixtures("state")
WHOLE = PrivacyLoss.parse("1", "1e-6")
GAUSSIAN = ReleaseRequest("gaussian", WHOLE, "private", scale="private")
CLIPPED = replace(GAUSSIAN, scale=None)
PURE = ReleaseRequest("two-sided-wishart", PrivacyLoss.parse("4"), "private", scale="private")
MEANS, DEVIATIONS = np.array([0.0, 500.0, -0.02]), np.array([3.0, 100.0, 0.01])
ROWS = 20_000
VALUES = np.random.default_rng(1).normal(size=(ROWS, 3)) * DEVIATIONS + MEANS


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    np.save(tmp_path / "table.npy", VALUES)
    ingest_rows(tmp_path / "table.npy", tmp_path / "rows.zarr", budget=PrivacyLoss.parse("9", "1e-6"))
    return tmp_path / "rows.zarr"


def committed(rows: Path, part: Part) -> dict[str, Any]:
    ledger = ledger_of_rows(rows)
    with ledger.opened(ledger.records[0].release_id, part) as file:
        found: dict[str, Any] = json.loads(file.read())
    return found


@pytest.mark.parametrize("loss", [("0.1", "1e-9"), ("1", "1e-6"), ("4", "1e-6")])
@pytest.mark.parametrize("share", [UNKNOWN, Fraction(1, 2)])
@pytest.mark.parametrize("neighbours", Neighbours)
def test_the_squares_of_three_gaussian_parts_are_those_of_the_whole(
    neighbours: Neighbours, share: Fraction, loss: tuple[str, str]
) -> None:
    max_rows, whole = 7, PrivacyLoss.parse(*loss)
    asked = replace(GAUSSIAN, loss=whole, neighbours=neighbours, scale_share=share, clip_share=UNKNOWN)
    plan = planned(asked, Dimensions(54, 10**6, max_rows, max_rows))
    moment, choice, guarantee = plan.moment.guarantee, proved(plan.choice), proved(plan.guarantee)
    assert moment is not None
    squares = [each.mu_squared or 0 for each in (*(stage.guarantee for stage in plan.stages.values()), moment)]
    assert 0 not in squares
    most = 1 / Fraction(gaussian_sigma(whole)) ** 2
    assert list(plan.stages) == ["scale", "clip norm"]
    assert choice.mu_squared == sum(squares[:2])
    assert guarantee.mu_squared == sum(squares)
    assert gaussian_delta(Fraction(loss[0]), sum(squares)) <= whole.delta
    assert most * Fraction(999, 1000) < sum(squares) <= most  # and little is lost
    assert (guarantee.loss, guarantee.arithmetic) == (whole, Arithmetic.INTEGER_EXACT)
    exchanged = (2 if neighbours is Neighbours.REPLACE_ONE else 1) * max_rows**2
    for square, part, columns, stage in zip(squares, (share, UNKNOWN), (54, 1), plan.stages.values(), strict=False):
        assert 0.8 * part < square / most < 1.2 * part  # deviations are whole numbers
        assert isinstance(stage.noise, RoundedNormal)
        assert square == Fraction(exchanged * columns, stage.noise.sigma**2)  # of all rows of a unit


def test_the_epsilons_of_three_pure_parts_add_up_to_the_whole() -> None:
    plan = planned(PURE, Dimensions(3))
    losses = [stage.guarantee.loss.epsilon_micro for stage in plan.stages.values()] + [plan.loss.epsilon_micro]
    guarantee = proved(plan.guarantee)
    assert losses == [400_000, 400_000, 3_200_000]
    assert guarantee.loss == PURE.loss
    # beside Gaussian releases each part is charged for itself
    assert guarantee.bounded_ranges == tuple(Fraction(2 * epsilon, MICRO) for epsilon in losses)


@pytest.mark.parametrize(
    "request_", [PURE, replace(GAUSSIAN, neighbours=Neighbours.ADD_REMOVE, centring=Centring.PRIVATE)]
)
def test_the_norms_are_those_of_rows_that_the_first_stage_scaled(
    rows: Path, tmp_path: Path, request_: ReleaseRequest
) -> None:
    made = release_rows(rows, tmp_path / "release.zarr", request_)
    found, ledger = made.release, ledger_of_rows(rows)
    (record,) = ledger.records
    assert (record.state, record.draws, len(record.stages)) == (State.PUBLISHED, 3, 2)
    assert losses(ledger) == [request_.loss]
    plan = plan_of(request_, open_rows(rows))
    assert found.guarantee == record.guarantee == plan.guarantee
    assert found.noise == plan.moment.noise
    assert found.private_as_claimed
    stage, bound = found.stage, found.bound
    assert stage is not None
    assert bound.centre is not None
    norms = NormHistogram.from_json(committed(rows, Part.SECOND))
    clip, quantile = norms.clip_norm()
    chosen = {"scale": bound.scale, "centre": bound.centre, "clip_norm": clip, "quantile": float(quantile)}
    assert {name: stage.chosen[name] for name in chosen} == chosen
    assert bound.clip_norm == clip
    assert stage.answer["counts"] == committed(rows, Part.STAGE)["counts"]
    assert tuple(stage.answer["norms"]["counts"]) == norms.counts
    exact = np.linalg.norm((VALUES - bound.centre) / np.array(bound.scale), axis=1)
    counts = np.bincount(np.searchsorted(CLIP_GRID.edges, exact), minlength=len(norms.counts))
    # 41 deviations of Gaussian noise or more, and e^-30 for Laplace noise: of norms of unscaled rows all would be wrong
    limit = 30 * np.sqrt(norms.noise.variance)
    assert (np.abs(np.array(norms.counts) - counts) < limit).all()
    assert limit < 0.12 * ROWS
    assert "column-histograms, " in made.describe()
    assert "-quantile of the norms of scaled rows" in made.describe()


def test_whoever_dies_after_the_choices_goes_on_from_them_and_counts_no_row_for_them_again(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(release, "compute", dies)
        with pytest.raises(DiedError):
            release_rows(rows, tmp_path / "release.zarr", GAUSSIAN)
    (record,) = ledger_of_rows(rows).records
    assert (record.state, len(record.stages)) == (State.STAGED, 2)
    left = [committed(rows, part)["counts"] for part in (Part.STAGE, Part.SECOND)]
    monkeypatch.setattr(clip_norm, "draw_histogram", dies)
    stage = release_rows(rows, tmp_path / "release.zarr", GAUSSIAN).release.stage
    assert stage is not None
    assert [stage.answer["counts"], stage.answer["norms"]["counts"]] == left
    assert losses(ledger_of_rows(rows)) == [WHOLE]


@pytest.mark.usefixtures("seeded")
def test_an_estimator_asks_for_the_release_of_the_command_and_takes_its_correlations(
    rows: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"epsilon": 1, "delta": "1e-6", "clip": "private", "scale": "private"}
    more = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    asked = CliRunner().invoke(
        cli, ["release", str(rows), str(tmp_path / "release.zarr"), *more, "--clip-components", "2"]
    )
    assert asked.exit_code == 0, asked.output
    fitted = PrivatePCA(2, correlation=True, release=tmp_path / "release.zarr", **given).fit(str(rows))
    assert losses(ledger_of_rows(rows)) == [WHOLE]  # the release that the command asked for
    pca = ["pca", str(tmp_path / "release.zarr"), str(tmp_path / "model.zarr"), "--components", "2", "--correlation"]
    told = json.loads(CliRunner().invoke(cli, [*pca, "--json"]).stdout)
    model = open_model(tmp_path / "model.zarr").components
    assert np.array_equal(fitted.components_, model.components)
    assert np.array_equal(fitted.scale_, model.scale)
    assert np.array_equal(fitted.mean_, model.mean)
    assert np.array_equal(np.array(fitted.explained_variance_ratio_), told["shares"])
    ends = np.array(told["share_intervals"], dtype=np.float64)  # null of a component that is not told
    assert np.array_equal(np.array(fitted.explained_variance_ratio_intervals_), ends, equal_nan=True)
    assert (fitted.left_out_, fitted.guarantee_.loss) == ((), WHOLE)
    project_rows(rows, tmp_path / "model.zarr", tmp_path / "scores.zarr")
    assert np.array_equal(fitted.transform(str(rows)), zarr.open_array(str(tmp_path / "scores.zarr"), mode="r")[...])
    again = PrivatePCA.from_release(tmp_path / "release.zarr", 0.5, correlation=True)
    assert (again.correlation, len(again.components_), again.scale, again.clip) == (True, 2, "private", "private")
    with pytest.raises(UsageError, match="fit with correlation=False"):
        fitted.score_samples(np.zeros((2, 3)))


@pytest.mark.usefixtures("seeded")
def test_rows_in_memory_choose_their_clip_norm_likewise() -> None:
    given: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "clip": "private"}
    both = PrivateCovariance(scale="private", **given).fit(VALUES)
    made = both.release_
    assert made.stage is not None
    assert made.guarantee is not None
    assert (made.guarantee.loss, made.bound.clip_norm) == (WHOLE, made.stage.chosen["clip_norm"])
    assert 1.5 < made.bound.clip_norm < 4.5  # of three columns of deviation 1: the 0.95-quantile is 2.8
    assert made.guarantee.proof == "dpdist.core.privacy.staged"
    assert (np.abs(np.sqrt(np.diag(both.covariance_)) / DEVIATIONS - 1) < 0.1).all()
    assert (np.abs(both.location_ - MEANS) < 0.1 * DEVIATIONS).all()
    again = PrivateCovariance(scale="private", **given).fit(VALUES)
    assert (again.fresh_, again.release_.release_id) == (False, made.release_id)
    with pytest.raises(RefusedError):  # all of it is spent
        PrivateCovariance(scale="private", name="again", **given).fit(VALUES)
    alone = PrivatePCA(n_components=1, **given).fit(da.from_array(VALUES[500:] + 1)).release_
    assert 400 < alone.bound.clip_norm < 1500
    assert alone.stage is not None
    assert alone.stage.mechanism == "norm-histogram"
    with pytest.raises(RefusedError, match=r"clip norm would be chosen with .* Nothing was spent"):
        PrivatePCA(n_components=1, epsilon=0.01, delta=1e-6, clip="private").fit(VALUES[:900] ** 2)


def test_no_correlations_are_paid_for_that_cannot_be() -> None:
    budget = Budget(1, 1e-6)
    given = {"n_components": 2, "correlation": True, "clip": "private", "scale": "private", "budget": budget}
    power = {"mechanism": "power", "scale": "none", "clip": 3, "options": {"iterations": 2}}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"whiten": True}, "leave out whiten or"), ({"correlation": "yes"}, "correlation must be True or False"),
        ({"clip": 3, "scale": "none"}, "has no mean and no centre"),
        ({"n_components": 9}, "9 components were requested"), (power, "no second moment, so there are no correlations"),
    ]  # fmt: skip
    for more, said in wrong:
        with pytest.raises(UsageError, match=said):
            PrivatePCA(epsilon=1, delta=1e-6, **{**given, **more}).fit(VALUES + 7)
    assert budget.left == Budget(1, 1e-6).left


def test_a_release_gives_its_centre_and_scale_to_rows_that_cannot_choose_any(rows: Path, tmp_path: Path) -> None:
    pilot = tmp_path / "pilot.zarr"
    made = release_rows(rows, pilot, GAUSSIAN).release

    def asked(centre: str, scale: str = "none") -> ReleaseRequest:
        options = RequestOptions(epsilon=Amount(1), delta=Amount("1e-6"), clip=Clip(3), centre=centre, scale=scale)
        return request_from(options, tmp_path)

    found = asked("pilot.zarr")
    assert (found.centre, found.scale) == (made.bound.centre, made.bound.scale)
    release_rows(rows, tmp_path / "plain.zarr", replace(GAUSSIAN, clip_norm=9, scale=None))
    with pytest.raises(DataError, match="has no usable centre or scale"):
        asked("plain.zarr")
    with pytest.raises(DataError, match="has no usable scale"):
        asked("none", "plain.zarr")
    with pytest.raises(UsageError, match="pass it as centre, which uses both"):
        asked("none", "pilot.zarr")


def test_dropped_rows_count_as_the_centre_and_join_no_histogram(tmp_path: Path) -> None:
    """Zeros, or the middle of a range, moved means and slopes: these rows are far from both."""
    share, random = 0.2, np.random.default_rng(4)
    year = random.normal(1990, 5, ROWS)
    size = 3 * (year - 1990) + random.normal(50, 5, ROWS)
    years = np.where(random.random(ROWS) < share, "", np.char.mod("%.3f", year))
    lines = (f"{a},{b:.3f}\n" for a, b in zip(years, size, strict=True))
    (tmp_path / "t.csv").write_text("year,size\n" + "".join(lines))
    columns = [Column("year", "number", range=(1900, 2100), missing="drop"), Column("size", "number", range=(0, 500))]
    schema, rows = Schema(columns, scale="range"), tmp_path / "t.zarr"
    ingest_rows(tmp_path / "t.csv", rows, budget=PrivacyLoss.parse("99", "1e-6"), schema=schema)
    with pytest.raises(
        RefusedError, match=r"missing value of year counts as the centre, which must be known before.*scale='private'"
    ):
        release_rows(rows, tmp_path / "r.zarr", replace(GAUSSIAN, scale=None, clip_norm=2))
    assert ledger_of_rows(rows).records == []
    asked = replace(GAUSSIAN, loss=PrivacyLoss.parse("9", "1e-6"), clip_norm="auto", centring=Centring.PRIVATE)
    found = release_rows(rows, tmp_path / "r.zarr", asked).release
    (model,) = regressions(found, [1], [0], units=source_units(found))
    assert model.coefficients[0].value == pytest.approx(3, rel=0.06)
    assert model.coefficients[0].population_interval is None  # it would be too short: these have no residual
    assert model.r2.value > 0.85  # of what is there, .9
    told = PrivateCovariance.from_release(tmp_path / "r.zarr")
    # of the rows that are there the variance is 25; the others stand at the centre
    assert told.covariance_[0, 0] * 100**2 == pytest.approx(25 * (1 - share), rel=0.15)
    assert told.location_[0] * 100 + 2000 == pytest.approx(1990, abs=1)
    assert clipped_rows(found).describe().endswith(", with rows that lack year replaced by the centre")


def small(path: Path, rows: int = 5000, epsilon: str = "2", unit: Unit | None = None) -> Path:
    values = np.random.default_rng(1).normal(size=(rows, 3)) * (1, 2, 4)
    return table_of(path, values, PrivacyLoss.parse(epsilon, "1e-6"), unit=unit).path


def part(loss: PrivacyLoss, square: int | None = None) -> Guarantee:
    squared = None if square is None else Fraction(1, square)
    return Guarantee(Neighbours.REPLACE_ONE, loss, squared, Arithmetic.IDEAL_REAL, "none")


def test_parts_that_cost_more_than_the_whole_are_not_stated() -> None:
    tenth = part(PrivacyLoss.parse("0.1"))
    for one, other, whole in (
        (part(PrivacyLoss.parse("0.2")), part(PrivacyLoss.parse("0.9")), PrivacyLoss.parse("1")),
        (part(WHOLE, 100), part(WHOLE, 100), PrivacyLoss.parse("0.1", "1e-6")),
        (tenth, replace(tenth, neighbours=Neighbours.ADD_REMOVE), PrivacyLoss.parse("1")),
    ):
        with pytest.raises(AssertionError):
            staged.together(one, other, whole)
    first, second = staged.divided(WHOLE, UNKNOWN, part, gaussian=False)  # without mu: the stage takes no delta
    assert (first, second) == (PrivacyLoss.parse("0.1"), PrivacyLoss.parse("0.9", "1e-6"))
    both = staged.together(part(first), part(second), WHOLE)
    assert (both.loss, both.mu_squared, both.bounded_ranges) == (WHOLE, None, ())
    for loss in (PrivacyLoss(1), PrivacyLoss(1, 10**12)):
        with pytest.raises(UsageError, match="cannot be divided"):
            staged.divided(loss, UNKNOWN, lambda asked: part(asked, 100), gaussian=loss.delta_atto > 0)


def test_no_norm_is_taken_that_no_row_can_have_by_the_schema(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "1,1\n" * 5000)
    schema = Schema([Column(name, "number", range=(0, 1)) for name in "ab"], scale="range")
    ingest_rows(tmp_path / "t.csv", tmp_path / "t.zarr", budget=PrivacyLoss.parse("4", "1e-6"), schema=schema)
    said: list[str] = []
    asked = tmp_path / "t.zarr", tmp_path / "t.release.zarr"
    with pytest.raises(RefusedError):  # what is refused says why, and no more
        release_rows(*asked, replace(CLIPPED, loss=PrivacyLoss.parse("0.001", "1e-9")), say=said.append)
    assert said == []
    made = release_rows(*asked, CLIPPED, say=said.append)
    (hint,) = said  # the norm of the schema is free
    assert hint.startswith(
        "By the schema, clip_norm='schema' clips no row in the release, and choosing it costs nothing"
    )
    release_rows(*asked, CLIPPED, say=said.append)  # paid for already
    assert len(said) == 1
    assert made.release.bound.shortened_norm == pytest.approx(2**0.5, rel=1e-6)  # where the grid has 2
    assert made.release.bound.shortened_norm > 2**0.5
    assert f"clip norm {made.release.bound.clip_norm}, which by the schema no row exceeds" in made.describe()


def test_rows_that_fail_are_refunded_before_the_stage_is_drawn_and_never_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unusable(*_: object) -> None:
        raise DataError("a chunk is damaged")

    rows, target = small(tmp_path / "rows.zarr"), tmp_path / "release.zarr"
    for place, charged in (("moment.histograms.hash_of", []), ("pipeline.release.partition_of_own_key", [WHOLE])):
        with monkeypatch.context() as patch:
            patch.setattr(f"dpdist.core.{place}", unusable)
            with pytest.raises(DataError):
                release_rows(rows, target, CLIPPED)
        assert losses(ledger_of_rows(rows)) == charged
    assert ledger_of_rows(rows).records[0].state is State.STAGED
    stage = stage_of(rows)
    assert release_rows(rows, target, CLIPPED).release.stage is not None
    assert stage_of(rows) == stage
    assert losses(ledger_of_rows(rows)) == [WHOLE]


def test_it_is_calibrated_for_all_rows_of_a_unit(tmp_path: Path) -> None:
    asked, unit = replace(CLIPPED, clip_share=Fraction(1, 10)), Unit("who", 2)
    found = release_rows(small(tmp_path / "units.zarr", unit=unit), tmp_path / "release.zarr", asked).release
    choice = proved(planned(asked, Dimensions(3)).choice)
    assert found.stage is not None
    of_one_row = calibrated(choice.loss, Neighbours.REPLACE_ONE).noise.to_json()["sigma"]
    assert found.stage.answer["noise"]["sigma"] > 1.9 * of_one_row  # type: ignore[operator]
    assert found.unit == unit


def test_a_table_that_is_too_small_is_said_to_be_before_and_told_the_epsilon_that_is_enough(tmp_path: Path) -> None:
    path = small(tmp_path / "rows.zarr", 100, "20")

    def ran(*arguments: str, epsilon: str = "1") -> Result:
        return CliRunner().invoke(cli, [*arguments, "--epsilon", epsilon, "--clip", "private"])

    release, forecast = ("release", str(path), str(tmp_path / "release.zarr")), ("forecast", "--d", "3", "--n", "100")
    refused = ran(*release).exception
    assert isinstance(refused, RefusedError)
    assert ledger_of_rows(path).records == []
    enough = re.findall(r"Use --epsilon ([\d.]+) or more", str(refused).replace("(epsilon=", "--epsilon "))[0]
    assert "THE RELEASE WOULD BE REFUSED. The clip norm would be" in ran(*forecast).output
    assert str(refused) == json.loads(ran(*forecast, "--json").output)["refused"] + " Nothing was spent."
    assert json.loads(ran(*forecast, "--json", epsilon=enough).output)["refused"] is None
    assert ran(*release, epsilon=enough).exit_code == 0
