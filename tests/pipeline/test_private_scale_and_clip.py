"""A release that chooses scale and clip norm: three draws under one id, at one price, each after those before it."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from click.testing import CliRunner
from support.ledgers import DiedError, dies, ledger_of_rows, losses

from dpdist.answers.block import source_units
from dpdist.answers.regression import regressions
from dpdist.cli import cli
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.estimators import PrivateCovariance, PrivatePCA, PrivateRidge
from dpdist.ledger.in_memory import Budget
from dpdist.ledger.state import Part, State
from dpdist.mechanisms.counts import RoundedNormal
from dpdist.options import Amount, Clip, RequestOptions
from dpdist.pca.bias import clipped_rows
from dpdist.pca.model import open_model
from dpdist.pipeline import clip_norm, release
from dpdist.pipeline.budget import ingest_rows
from dpdist.pipeline.components import fit_components, project_rows
from dpdist.pipeline.release import Outcome, release_rows
from dpdist.privacy.accounting import gaussian_sigma
from dpdist.privacy.guarantee import MICRO, Guarantee, Neighbours, PrivacyLoss
from dpdist.release.artefact import open_release
from dpdist.release.norm_histogram import NormHistogram
from dpdist.release.parse import request_from
from dpdist.release.request import CLIP_GRID, UNKNOWN, Centring, ReleaseRequest
from dpdist.rows.columns import Column
from dpdist.rows.schema import Schema

pytestmark = pytest.mark.usefixtures("state")
WHOLE = PrivacyLoss.parse("1", "1e-6")
GAUSSIAN = ReleaseRequest("gaussian", WHOLE, "private", scale="private")
PURE = ReleaseRequest("two-sided-wishart", PrivacyLoss.parse("4"), "private", scale="private")
MEANS, DEVIATIONS = np.array([0.0, 500.0, -0.02]), np.array([3.0, 100.0, 0.01])
ROWS = 20_000


@pytest.fixture(scope="module")
def values() -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.random.default_rng(1).normal(size=(ROWS, 3)) * DEVIATIONS + MEANS
    return found


@pytest.fixture
def rows(tmp_path: Path, values: npt.NDArray[np.float64]) -> Path:
    np.save(tmp_path / "table.npy", values)
    ingest_rows(tmp_path / "table.npy", tmp_path / "rows.zarr", budget=PrivacyLoss.parse("9", "1e-6"))
    return tmp_path / "rows.zarr"


def committed(rows: Path, part: Part) -> dict[str, Any]:
    ledger = ledger_of_rows(rows)
    with ledger.opened(ledger.records[0].release_id, part) as file:
        found: dict[str, Any] = json.loads(file.read())
    return found


@pytest.mark.parametrize("max_rows", [7])
@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize("share", [UNKNOWN, Fraction(1, 2)])
def test_the_squares_of_three_gaussian_parts_are_those_of_the_whole(
    share: Fraction, neighbours: Neighbours, max_rows: int
) -> None:
    request = replace(GAUSSIAN, neighbours=neighbours, scale_share=share, clip_share=UNKNOWN).on_grid(
        54, 10**6, max_rows
    )
    parts = request.parts(54, max_rows)
    assert parts is not None
    stages = [stage.guarantee.mu_squared for stage in parts.stages.values()]
    moment = parts.moment.calibrated(54, max_rows).guarantee
    assert None not in stages
    assert moment is not None
    assert moment.mu_squared is not None
    whole = 1 / Fraction(gaussian_sigma(WHOLE)) ** 2
    assert list(parts.stages) == ["scale", "clip norm"]
    assert parts.choice.mu_squared == sum(filter(None, stages))
    assert parts.guarantee.mu_squared == parts.choice.mu_squared + moment.mu_squared
    assert parts.guarantee.mu_squared <= whole
    assert parts.guarantee.mu_squared > whole * Fraction(999, 1000)  # and little is lost
    for square, part in zip(stages, (share, UNKNOWN), strict=True):
        assert 0.8 * part < square / whole < 1.2 * part  # type: ignore[operator]  # deviations are whole numbers
    assert parts.guarantee.loss == WHOLE
    exchanged = (2 if neighbours is Neighbours.REPLACE_ONE else 1) * max_rows**2
    for square, columns, stage in zip(stages, (54, 1), parts.stages.values(), strict=True):
        assert isinstance(stage.noise, RoundedNormal)
        assert square == Fraction(exchanged * columns, stage.noise.sigma**2)  # of all rows of a unit


def test_the_epsilons_of_three_pure_parts_add_up_to_the_whole() -> None:
    parts = PURE.parts(3)
    assert parts is not None
    epsilons = [stage.guarantee.loss.epsilon_micro for stage in parts.stages.values()]
    assert epsilons == [400_000, 400_000]
    assert parts.moment.loss == PrivacyLoss(3_200_000)
    assert parts.guarantee.loss == PURE.loss
    moment = parts.moment.calibrated(3).guarantee
    assert moment is not None
    # beside Gaussian releases each part is charged for itself
    each = [Fraction(2 * epsilon, MICRO) for epsilon in epsilons]
    assert parts.guarantee.bounded_ranges == (
        *each, *(moment.bounded_ranges or (Fraction(2 * parts.moment.loss.epsilon_micro, MICRO),)),
    )  # fmt: skip


@pytest.mark.parametrize(
    "request_",
    [PURE, replace(GAUSSIAN, neighbours=Neighbours.ADD_REMOVE, centring=Centring.PRIVATE)],
)
def test_the_norms_are_those_of_rows_that_the_first_stage_scaled(
    rows: Path, tmp_path: Path, values: npt.NDArray[np.float64], request_: ReleaseRequest
) -> None:
    made = release_rows(rows, tmp_path / "release.zarr", request_)
    found, ledger = made.release, ledger_of_rows(rows)
    (record,) = ledger.records
    assert (record.state, record.draws, len(record.stages)) == (State.PUBLISHED, 3, 2)
    assert losses(ledger) == [request_.loss]
    assert found.guarantee == record.guarantee
    assert found.private_as_claimed
    stage, bound = found.stage, found.bound
    assert stage is not None
    assert bound.centre is not None
    assert stage.chosen["scale"] == bound.scale
    assert stage.chosen["centre"] == bound.centre
    norms = NormHistogram.from_json(committed(rows, Part.SECOND))
    clip, quantile = norms.clip_norm(interpolated=True)
    assert (stage.chosen["clip_norm"], stage.chosen["quantile"]) == (clip, float(quantile))
    assert bound.clip_norm == clip
    assert stage.answer["counts"] == committed(rows, Part.STAGE)["counts"]
    assert tuple(stage.answer["norms"]["counts"]) == norms.counts
    exact = np.linalg.norm((values - bound.centre) / np.array(bound.scale), axis=1)
    counts = np.bincount(np.searchsorted(CLIP_GRID.edges, exact), minlength=len(norms.counts))
    # 41 deviations of Gaussian noise or more, and e^-30 for Laplace noise: of norms of unscaled rows all would be wrong
    limit = 30 * np.sqrt(norms.noise.variance)
    assert (np.abs(np.array(norms.counts) - counts) < limit).all()
    assert limit < 0.12 * ROWS
    assert "column-histograms, " in made.describe()
    assert "-quantile of the norms of scaled rows" in made.describe()
    assert open_release(tmp_path / "release.zarr").attributes() == found.attributes()
    head = ledger.head
    again = release_rows(rows, tmp_path / "elsewhere.zarr", request_)
    assert (again.fresh, again.release.attributes()) == (False, found.attributes())
    assert ledger_of_rows(rows).head == head


@pytest.mark.parametrize("stages", [0, 1, 2])
def test_whoever_dies_between_two_draws_goes_on_from_those_very_ones(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: int
) -> None:
    """The second pass over the rows is counted in vain, or never begun: what is committed is not drawn again."""
    passes: list[str] = []
    stop: int | None = stages
    draw = clip_norm.draw_histogram

    def counted(engine: Any, transaction: Any, label: str) -> None:
        if len(passes) == stop:
            dies()
        passes.append(label)
        draw(engine, transaction, label)

    with monkeypatch.context() as patch:
        patch.setattr(clip_norm, "draw_histogram", counted)
        if stages == 2:
            patch.setattr(release, "_compute", dies)
        with pytest.raises(DiedError):
            release_rows(rows, tmp_path / "release.zarr", GAUSSIAN)
    parts = (Part.STAGE, Part.SECOND)[:stages]
    left = [committed(rows, part) for part in parts]
    (record,) = ledger_of_rows(rows).records
    assert (record.state, len(record.stages)) == (State.STAGED if stages else State.RESERVED, stages)
    stop = None
    monkeypatch.setattr(clip_norm, "draw_histogram", counted)
    made = release_rows(rows, tmp_path / "release.zarr", GAUSSIAN).release
    assert passes == ["Counting columns", "Counting norms"]
    assert [committed(rows, part) for part in parts] == left
    assert made.stage is not None
    assert made.stage.answer["counts"] == committed(rows, Part.STAGE)["counts"]
    assert made.stage.answer["norms"]["counts"] == committed(rows, Part.SECOND)["counts"]
    assert losses(ledger_of_rows(rows)) == [WHOLE]


def test_command_job_file_and_estimators_ask_for_the_same_release(rows: Path, tmp_path: Path) -> None:
    more = ["--epsilon", "1", "--delta", "1e-6", "--clip", "private", "--scale", "private"]
    asked = CliRunner().invoke(cli, ["release", str(rows), str(tmp_path / "release.zarr"), *more, "--components", "1"])
    assert asked.exit_code == 0, asked.output
    job = tmp_path / "job.toml"
    job.write_text(
        f'[rows]\npath = "{rows}"\n[release]\npath = "{tmp_path / "job.zarr"}"\nepsilon = 1\ndelta = 1e-6\n'
        f'clip = "private"\nscale = "private"\n[pca]\npath = "{tmp_path / "model.zarr"}"\ncomponents = 1\n'
    )
    assert CliRunner().invoke(cli, ["run", str(job)]).exit_code in {0, 4}  # four: none stands above the noise
    first = open_release(tmp_path / "release.zarr")
    assert open_release(tmp_path / "job.zarr").attributes() == first.attributes()
    given = {"epsilon": 1, "delta": "1e-6", "clip": "private", "scale": "private"}
    fitted = PrivatePCA(n_components=1, release=tmp_path / "fitted.zarr", **given).fit(str(rows))  # type: ignore[arg-type]
    assert fitted.release_.attributes() == first.attributes()
    again = PrivatePCA.from_release(first, 1)
    assert (again.scale, again.clip) == ("private", "private")
    assert losses(ledger_of_rows(rows)) == [WHOLE]
    assert Outcome(first, tmp_path / "release.zarr", fresh=False).to_json()["stage"]["mechanism"].startswith("column")  # type: ignore[index]

    told = json.loads(CliRunner().invoke(cli, ["forecast", "--d", "54", "--n", "581012", *more, "--json"]).stdout)
    stage = Guarantee.from_json(told["parts"]["stage"])
    assert stage.mu_squared is not None
    assert Guarantee.from_json(told["parts"]["both"]).mu_squared > 4.9 * stage.mu_squared  # type: ignore[operator]
    shown = " ".join(CliRunner().invoke(cli, ["forecast", "--d", "54", "--n", "581012", *more]).output.split())
    assert "centre and scale of each column, by a private histogram of it, and then its clip norm" in shown


@pytest.mark.usefixtures("seeded")
def test_rows_in_memory_choose_their_clip_norm_likewise(values: npt.NDArray[np.float64]) -> None:
    import dask.array as da

    others = [np.random.default_rng(seed).normal(size=(ROWS - seed, 3)) * DEVIATIONS + MEANS for seed in (500, 600)]
    both = PrivateCovariance(epsilon=1, delta=1e-6, clip="private", scale="private").fit(values)
    made = both.release_
    assert made.stage is not None
    assert made.guarantee is not None
    assert (made.guarantee.loss, made.bound.clip_norm) == (WHOLE, made.stage.chosen["clip_norm"])
    assert 1.5 < made.bound.clip_norm < 4.5  # of three columns of deviation 1: the 0.95-quantile is 2.8
    assert made.guarantee.proof == "dpdist.privacy.staged"
    assert (np.abs(np.sqrt(np.diag(both.covariance_)) / DEVIATIONS - 1) < 0.1).all()
    assert (np.abs(both.location_ - MEANS) < 0.1 * DEVIATIONS).all()
    with pytest.raises(RefusedError):  # all of it is spent
        PrivateCovariance(epsilon=1, delta=1e-6, clip="private", scale="private").fit(values)
    alone = PrivatePCA(n_components=1, epsilon=1, delta=1e-6, clip="private").fit(da.from_array(others[0]))
    assert 400 < alone.release_.bound.clip_norm < 1500
    assert alone.release_.stage is not None
    assert alone.release_.stage.mechanism == "norm-histogram"
    fitted = PrivateRidge(epsilon=1, delta=1e-6, clip="private", scale="private").fit(others[1][:, :2], others[1][:, 2])
    assert fitted.release_.stage is not None
    assert "quantile" in fitted.release_.stage.chosen
    with pytest.raises(RefusedError, match=r"clip norm would be chosen at .* Nothing was spent"):
        PrivatePCA(n_components=1, epsilon=0.01, delta=1e-6, clip="private").fit(others[0][:900] ** 2)


@pytest.mark.usefixtures("seeded")
def test_an_estimator_takes_the_correlations_that_the_command_takes(rows: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"epsilon": 1, "delta": "1e-6", "clip": "private", "scale": "private"}
    target = tmp_path / "release.zarr"
    fitted = PrivatePCA(2, correlation=True, release=target, **given).fit(str(rows))
    asked = CliRunner().invoke(
        cli, ["pca", str(target), str(tmp_path / "model.zarr"), "--components", "2", "--correlation", "--json"]
    )
    told, model = json.loads(asked.stdout), open_model(tmp_path / "model.zarr").components
    assert np.array_equal(fitted.components_, model.components)
    assert np.array_equal(fitted.scale_, model.scale)
    assert np.array_equal(fitted.mean_, model.mean)
    assert np.array_equal(np.array(fitted.explained_variance_ratio_), told["shares"])
    ends = np.array(told["share_intervals"], dtype=np.float64)  # null of a component that is not told
    assert np.array_equal(np.array(fitted.explained_variance_ratio_intervals_), ends, equal_nan=True)
    assert (fitted.left_out_, fitted.guarantee_.loss) == ((), WHOLE)
    project_rows(rows, tmp_path / "model.zarr", tmp_path / "scores.zarr")
    assert np.array_equal(fitted.transform(str(rows)), zarr.open_array(str(tmp_path / "scores.zarr"), mode="r")[...])
    again = PrivatePCA.from_release(target, 0.5, correlation=True)
    assert (again.correlation, len(again.components_)) == (True, 2)
    assert losses(ledger_of_rows(rows)) == [WHOLE]
    with pytest.raises(UsageError, match="likelihoods of standardised columns: fit with correlation=False"):
        fitted.score_samples(np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"whiten": True}, "leave out whiten or correlation"),
        ({"correlation": "yes"}, "correlation must be True or False"),
        ({"clip": 3, "scale": "none"}, "has no mean and no centre"),
        ({"n_components": 9}, "9 components were requested"),
        (
            {"mechanism": "power", "scale": "none", "clip": 3, "options": {"iterations": 2}},
            "no second moment, so there are no correlations",
        ),
    ],
)
def test_no_correlations_are_paid_for_that_cannot_be(
    values: npt.NDArray[np.float64], wrong: dict[str, Any], said: str
) -> None:
    budget = Budget(1, 1e-6)
    given = {"n_components": 2, "correlation": True, "clip": "private", "scale": "private", "budget": budget, **wrong}
    with pytest.raises(UsageError, match=said):
        PrivatePCA(epsilon=1, delta=1e-6, **given).fit(values + 7)
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
    with pytest.raises(DataError, match="has no centre or scale of its rows"):
        asked("plain.zarr")
    with pytest.raises(DataError, match="has no scale of its rows"):
        asked("none", "plain.zarr")
    with pytest.raises(UsageError, match="name it as centre, which takes both"):
        asked("none", "pilot.zarr")


def test_dropped_rows_count_as_the_centre_and_join_no_histogram(tmp_path: Path) -> None:
    """Zeros, or the middle of a range, moved means and slopes: these rows are far from both."""
    share = 0.2
    random = np.random.default_rng(4)
    year = random.normal(1990, 5, ROWS)
    size = 3 * (year - 1990) + random.normal(50, 5, ROWS)
    gone = random.random(ROWS) < share
    lines = [
        "year,size",
        *(f"{'' if lacks else f'{a:.3f}'},{b:.3f}" for a, b, lacks in zip(year, size, gone, strict=True)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    columns = [Column("year", "number", range=(1900, 2100), missing="drop"), Column("size", "number", range=(0, 500))]
    schema = Schema(columns, scale="range")
    ingest_rows(tmp_path / "t.csv", tmp_path / "t.zarr", budget=PrivacyLoss.parse("99", "1e-6"), schema=schema)
    with pytest.raises(RefusedError, match=r"Rows that lack year are dropped.*must be known before.*scale='private'"):
        release_rows(tmp_path / "t.zarr", tmp_path / "r.zarr", replace(GAUSSIAN, scale=None, clip_norm=2))
    assert ledger_of_rows(tmp_path / "t.zarr").records == []
    asked = replace(GAUSSIAN, loss=PrivacyLoss.parse("9", "1e-6"), clip_norm="auto", centring=Centring.PRIVATE)
    found = release_rows(tmp_path / "t.zarr", tmp_path / "r.zarr", asked).release
    (model,) = regressions(found, [1], [0], units=source_units(found))
    assert model.coefficients[0].value == pytest.approx(3, rel=0.06)
    assert model.r2.value > 0.85  # of what is there, .9
    told = PrivateCovariance.from_release(tmp_path / "r.zarr")
    # of the rows that are there the variance is 25; the others stand at the centre
    assert told.covariance_[0, 0] * 100**2 == pytest.approx(25 * (1 - share), rel=0.15)
    assert told.location_[0] * 100 + 2000 == pytest.approx(1990, abs=1)
    assert clipped_rows(found).describe().endswith(", with rows without year replaced by the centre")
    assert model.coefficients[0].population_interval is None  # it would be too short: these have no residual


def test_scores_of_dropped_rows_are_no_numbers(tmp_path: Path) -> None:
    lines = ["a,b", *(f"{i % 7},{i % 5}" for i in range(3000)), ",3"]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    columns = [Column("a", "number", range=(0, 6), missing="drop"), Column("b", "number", range=(0, 4))]
    ingest_rows(tmp_path / "t.csv", tmp_path / "t.zarr", budget=PrivacyLoss.parse("99", "1e-6"), schema=Schema(columns))
    release_rows(
        tmp_path / "t.zarr",
        tmp_path / "r.zarr",
        replace(GAUSSIAN, loss=PrivacyLoss.parse("9", "1e-6"), clip_norm="auto"),
    )
    fit_components(tmp_path / "r.zarr", tmp_path / "m.zarr", 1)
    project_rows(tmp_path / "t.zarr", tmp_path / "m.zarr", tmp_path / "s.zarr")
    scores = zarr.open_array(tmp_path / "s.zarr", mode="r")[...]
    assert np.isnan(scores).any(axis=1).nonzero()[0].tolist() == [3000]
