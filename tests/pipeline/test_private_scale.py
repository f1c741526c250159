"""A release that chooses centre and scale of its columns: two draws under one id, one price."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from support.folders import STORED
from support.ledgers import ledger_of_rows, losses, stage_of

from dpdist.cli import cli
from dpdist.errors import DataError, RefusedError, UsageError
from dpdist.estimators import PrivateCovariance, PrivatePCA, PrivateRidge
from dpdist.ingest.registered import open_rows
from dpdist.ledger.in_memory import Budget
from dpdist.ledger.state import State
from dpdist.mechanisms.columns import BEYOND, Grid, standardised
from dpdist.mechanisms.counts import RoundedNormal
from dpdist.pca.model import open_model
from dpdist.pipeline import budget
from dpdist.pipeline.budget import ingest_rows
from dpdist.pipeline.components import fit_components, project_rows
from dpdist.pipeline.release import release_rows
from dpdist.privacy.accounting import gaussian_delta, gaussian_sigma
from dpdist.privacy.guarantee import Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.release import archive
from dpdist.release.artefact import open_release
from dpdist.release.request import Centring, ReleaseRequest
from dpdist.rows.columns import Column
from dpdist.rows.dataset import created
from dpdist.rows.schema import Schema
from dpdist.rows.units import Unit
from dpdist.storage.arrays import read_arrays
from dpdist.storage.store import store_at

pytestmark = pytest.mark.usefixtures("state", "seeded")
WHOLE = PrivacyLoss.parse("1", "1e-6")
GAUSSIAN = ReleaseRequest("gaussian", WHOLE, "auto", scale="private")
PURE = ReleaseRequest("two-sided-wishart", PrivacyLoss.parse("1"), "auto", scale="private")
MEANS, DEVIATIONS = np.array([0.0, 500.0, -0.02]), np.array([3.0, 100.0, 0.01])
ROWS = 20_000
STORED_SCALE = (1.15504, 51.3912, 0.00879453, 1.0)


def table(path: Path, values: npt.NDArray[np.float64], *, unit: Unit | None = None, epsilon: str = "9") -> Path:
    names = tuple(f"c{i}" for i in range(values.shape[1]))
    loss = PrivacyLoss.parse(epsilon, "1e-6")
    with created(path, rows=len(values), dtype="float64", names=names, budget=loss, unit=unit) as to:
        to.append(values)
    budget.create_ledger(budget.default_ledger(path), path)
    return path


@pytest.fixture(scope="module")
def values() -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.random.default_rng(1).normal(size=(ROWS, 3)) * DEVIATIONS + MEANS
    return found


@pytest.fixture
def rows(tmp_path: Path, values: npt.NDArray[np.float64]) -> Path:
    return table(tmp_path / "rows.zarr", values)


# --- what both parts cost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_rows", [1, 7])
@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize(("loss", "share"), [(("0.1", "1e-9"), "0.1"), (("1", "1e-6"), "0.25"), (("4", "1e-6"), 0.01)])
def test_the_squares_of_both_gaussian_parts_are_those_of_the_whole(
    loss: tuple[str, str], share: str | float, neighbours: Neighbours, max_rows: int
) -> None:
    asked = PrivacyLoss.parse(*loss)
    request = ReleaseRequest("gaussian", asked, "auto", neighbours, scale="private", scale_share=share)  # type: ignore[arg-type]
    parts = request.on_grid(54, 10**6, max_rows).parts(54, max_rows)
    assert parts is not None
    first, second = parts.choice, parts.moment.calibrated(54, max_rows).guarantee
    assert first.mu_squared is not None
    assert second is not None
    assert second.mu_squared is not None
    both, whole = parts.guarantee, 1 / Fraction(gaussian_sigma(asked)) ** 2
    assert both.mu_squared == first.mu_squared + second.mu_squared
    assert gaussian_delta(Fraction(asked.epsilon_micro, 10**6), both.mu_squared) <= asked.delta
    assert 0.95 * Fraction(str(share)) * whole <= first.mu_squared <= Fraction(str(share)) * whole
    assert both.mu_squared >= 0.9999 * whole
    assert (both.loss, both.neighbours, both.arithmetic) == (asked, neighbours, Arithmetic.INTEGER_EXACT)
    assert isinstance(parts.stages["scale"].noise, RoundedNormal)
    sensitivity = (2 if neighbours is Neighbours.REPLACE_ONE else 1) * max_rows**2 * 54
    assert first.mu_squared == Fraction(sensitivity, parts.stages["scale"].noise.sigma ** 2)


# --- the release ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        replace(PURE, loss=PrivacyLoss.parse("4")),
        replace(GAUSSIAN, neighbours=Neighbours.ADD_REMOVE, centring=Centring.PRIVATE),
        replace(GAUSSIAN, centre=(0.0, 400.0, 0.0), clip_norm=4),
    ],
)
def test_it_is_one_release_at_the_price_of_both_of_rows_in_their_own_units(
    rows: Path, tmp_path: Path, values: npt.NDArray[np.float64], request_: ReleaseRequest
) -> None:
    target = tmp_path / "release.zarr"
    made = release_rows(rows, target, request_)
    found, parts = made.release, request_.of_table(open_rows(rows)).parts(3)
    assert parts is not None
    assert found.stage is not None
    (record,) = ledger_of_rows(rows).records
    assert (record.state, losses(ledger_of_rows(rows))) == (State.PUBLISHED, [request_.loss])
    assert found.guarantee == record.guarantee == parts.guarantee
    assert found.claim == request_.loss
    assert found.private_as_claimed
    assert Guarantee.from_json(found.stage.guarantee) == parts.choice
    assert found.noise == parts.moment.calibrated(3).noise

    bound = found.bound
    assert bound.clip_norm == (4 if request_.clip_norm == 4 else 3.031)  # 1.75 sqrt(3)
    assert found.stage.chosen["scale"] == bound.scale
    assert found.stage.chosen.get("centre", request_.centre) == bound.centre
    assert bound.scale is not None
    assert bound.centre is not None
    assert ((np.array(bound.scale) / DEVIATIONS > 0.8) & (np.array(bound.scale) / DEVIATIONS < 1.4)).all()
    if request_.centre is None:
        assert (np.abs(bound.centre - MEANS) < 0.3 * DEVIATIONS).all()
    # the rows were shifted, scaled and clipped by what was chosen, and by nothing else
    scaled = (values - bound.centre) / bound.scale
    short = np.minimum(1, bound.shortened_norm / np.linalg.norm(scaled, axis=1))
    exact = np.diag(np.einsum("ni,nj,n->ij", scaled, scaled, short**2))
    noise = np.sqrt(found.noise.variance_diagonal or 0) * bound.unit**2
    # ten deviations: three draws exceed that with probability 1e-22, of a normal law; a scale that is off by a tenth
    # moves the diagonal by a fifth
    assert (np.abs(found.moment_diagonal - found.noise.mean_diagonal * bound.unit**2 - exact) < 10 * noise + 100).all()
    assert (0.1 * exact > 10 * noise + 100).all()

    committed = json.loads(stage_of(rows))
    assert found.stage.answer["counts"] == committed["counts"]
    assert "Chosen first, privately, by column-histograms" in made.describe()
    head = ledger_of_rows(rows).head
    again = release_rows(rows, tmp_path / "elsewhere.zarr", request_)
    assert not again.fresh
    assert again.release.attributes() == found.attributes()
    assert ledger_of_rows(rows).head == head


def test_whatever_the_draws_depend_on_is_in_the_id_and_the_id_stands_for_one(rows: Path, tmp_path: Path) -> None:
    found = open_rows(rows)
    others = [
        GAUSSIAN, replace(GAUSSIAN, scale_share=Fraction(1, 5)), replace(GAUSSIAN, centre=(0.0,) * 3),
        replace(GAUSSIAN, clip_norm=2), replace(GAUSSIAN, scale=(1.0,) * 3),
        replace(GAUSSIAN, clip_norm="private", scale=None),
    ]  # fmt: skip
    assert len({each.release_id(found) for each in others}) == len(others)
    named = replace(GAUSSIAN, scale_share=Fraction("0.02"))  # the share that n, epsilon and d ask for
    assert named.release_id(found) == GAUSSIAN.release_id(found)
    release_rows(rows, tmp_path / "release.zarr", replace(GAUSSIAN, name="census"))
    with pytest.raises(RefusedError, match="stands for other parameters"):
        release_rows(rows, tmp_path / "other.zarr", replace(GAUSSIAN, name="census", scale_share=Fraction(1, 5)))


def test_a_chosen_id_is_repeated_for_nothing(rows: Path, tmp_path: Path) -> None:
    """It was taken for a release by the older rule, whose parameters are other ones."""
    asked = replace(GAUSSIAN, name="census")
    first = release_rows(rows, tmp_path / "release.zarr", asked)
    again = release_rows(rows, tmp_path / "release.zarr", asked)
    assert (first.fresh, again.fresh) == (True, False)
    assert again.release.attributes() == first.release.attributes()
    assert losses(ledger_of_rows(rows)) == [WHOLE]


def test_an_altered_scale_is_noticed(rows: Path, tmp_path: Path) -> None:
    target = tmp_path / "release.zarr"
    release_rows(rows, target, GAUSSIAN)
    for number, (part, name, values) in enumerate((
        ("stage", "scale", [1.5, 1.5, 1.5]),
        ("bound", "scale", [1.5, 1.5, 1.5]),
        ("stage", "bins", [3.0, 3.0]),
        ("stage", "bins", 3.0),
    )):  # fmt: skip
        other = shutil.copytree(target, tmp_path / f"{number}.zarr")
        head = json.loads((other / "zarr.json").read_text())
        said = head["attributes"]["dpdist"][part]
        said.get("chosen", said)[name] = values
        (other / "zarr.json").write_text(json.dumps(head))
        with pytest.raises(DataError, match="was damaged"):
            open_release(other)


def test_the_counts_carry_the_noise_they_are_calibrated_for_and_not_that_of_one_column(tmp_path: Path) -> None:
    columns = 600
    rows = table(tmp_path / "rows.zarr", np.zeros((6000, columns)))
    stage = release_rows(rows, tmp_path / "release.zarr", replace(GAUSSIAN, scale_share=Fraction(1, 2))).release.stage
    assert stage is not None
    sigma = stage.answer["noise"]["sigma"]
    drawn = np.array([count - 6000 for found in stage.answer["counts"] for place, count in found if place == 121])
    assert len(drawn) == columns
    ratio = float((drawn**2).sum() / columns / sigma**2)
    # chi-square with 600 degrees of freedom: within 0.70 .. 1.36 but for probability 1e-8
    assert 0.70 < ratio < 1.36
    # the twins: the noise of one column, of 600 neighbours' bins, and of a share that is not halved
    assert abs(ratio * columns - 1) > 0.36
    assert not 0.70 < ratio * 2 < 1.36


def test_ranges_of_the_schema_are_the_grids_and_columns_of_which_little_is_seen_are_named(tmp_path: Path) -> None:
    draws = np.random.default_rng(2).normal(size=ROWS)
    lines = (f"{1990 + 10 * i % 30},{1e9 + i},{int(i == 7)},{x:.4f},{int(i % 4 == 0)}\n" for i, x in enumerate(draws))
    (tmp_path / "t.csv").write_text("year,stamp,rare,x,flag\n" + "".join(lines))
    columns = [Column("year", "integer", range=(1990, 2020)), *(Column(name, "number") for name in ("stamp", "rare"))]
    columns += [Column("x", "number"), Column("flag", "boolean", missing="indicator")]
    rows = tmp_path / "t.zarr"
    ingest_rows(tmp_path / "t.csv", rows, budget=PrivacyLoss.parse("9", "1e-6"), schema=Schema(columns))
    made = release_rows(rows, tmp_path / "release.zarr", GAUSSIAN)
    found = made.release
    assert found.blindly_scaled == (("rare", "flag=missing"), ("stamp",))
    assert "seen, over the noise, of 2 columns, so public rules scaled them: rare, flag=missing." in made.describe()
    assert "1 column had numbers beyond 2^20, and weigh nothing: stamp." in made.describe()
    scale = np.array(found.bound.scale)
    assert scale[1] == BEYOND
    assert (scale[2], scale[5]) == (1, 1)
    assert found.bound.clip_norm == 3.031  # of the three columns that were seen: 1.75 sqrt(3)
    assert "clip norm 3.031" in made.describe()
    assert abs(scale[0] - np.sqrt(200 / 3)) < 0.5  # of 1990, 2000, 2010: no bin of 326 years
    assert abs(scale[4] - np.sqrt(3 / 16)) < 0.05
    told = CliRunner().invoke(cli, ["inspect", str(tmp_path / "release.zarr")])
    assert "stamp" in told.output
    assert "column-histograms" in told.output
    page = tmp_path / "page.html"
    assert CliRunner().invoke(cli, ["report", str(tmp_path / "release.zarr"), str(page)]).exit_code == 0
    assert "1 column had numbers beyond 2^20, and weigh nothing: stamp." in page.read_text()


def test_it_is_calibrated_for_all_rows_of_a_unit(tmp_path: Path, values: npt.NDArray[np.float64]) -> None:
    asked = replace(GAUSSIAN, scale_share=Fraction(1, 10))
    one = release_rows(table(tmp_path / "one.zarr", values), tmp_path / "a.zarr", asked).release.stage
    many = table(tmp_path / "many.zarr", values, unit=Unit("who", 2))
    two = release_rows(many, tmp_path / "b.zarr", asked).release.stage
    assert one is not None
    assert two is not None
    assert two.answer["noise"]["sigma"] > 1.9 * one.answer["noise"]["sigma"]


def test_new_rows_are_projected_by_the_scale_that_was_released(
    rows: Path, tmp_path: Path, values: npt.NDArray[np.float64]
) -> None:
    made = release_rows(rows, tmp_path / "release.zarr", replace(GAUSSIAN, centring=Centring.PRIVATE)).release
    fit_components(tmp_path / "release.zarr", tmp_path / "model.zarr", 2)
    found = open_model(tmp_path / "model.zarr").components
    assert tuple(found.scale) == made.bound.scale
    assert (np.abs(found.mean - MEANS) < 0.05 * DEVIATIONS).all()  # released with the moment, about the rough centre
    other = table(tmp_path / "other.zarr", values[:100] + 5 * DEVIATIONS)
    project_rows(other, tmp_path / "model.zarr", tmp_path / "scores.zarr")
    scores = np.asarray(read_scores(tmp_path / "scores.zarr"))
    expected = ((values[:100] + 5 * DEVIATIONS - found.mean) / found.scale) @ found.components.T
    assert np.allclose(scores, expected)


def read_scores(path: Path) -> npt.NDArray[np.float64]:
    import zarr

    found = zarr.open_array(str(path), mode="r")
    return np.asarray(found[...])


# --- the faces --------------------------------------------------------------------------------------------------------


def test_command_job_file_and_estimator_ask_for_the_same_release(rows: Path, tmp_path: Path) -> None:
    command = ["release", str(rows), str(tmp_path / "release.zarr"), "--epsilon", "1", "--delta", "1e-6"]
    more = ["--clip", "auto", "--scale", "private", "--scale-share", "0.2", "--centre", "private"]
    asked = CliRunner().invoke(cli, [*command, *more, "--json"])
    assert asked.exit_code == 0, asked.output
    assert len(json.loads(asked.stdout)["stage"]["chosen"]["scale"]) == 3
    job = tmp_path / "job.toml"
    job.write_text(
        f'[rows]\npath = "{rows}"\n[release]\npath = "{tmp_path / "job.zarr"}"\nepsilon = 1\ndelta = 1e-6\n'
        'clip = "auto"\nscale = "private"\nscale_share = 0.2\ncentre = "private"\n'
        f'[pca]\npath = "{tmp_path / "job.model.zarr"}"\ncomponents = 2\ncorrelation = true\n'
    )
    assert CliRunner().invoke(cli, ["run", str(job)]).exit_code == 0
    first = open_release(tmp_path / "release.zarr")
    assert open_release(tmp_path / "job.zarr").attributes() == first.attributes()
    assert open_model(tmp_path / "job.model.zarr").correlation
    fitted = PrivatePCA(
        n_components=1, epsilon=1, delta="1e-6", clip="auto", scale="private", scale_share="0.2", centre="private",
        release=tmp_path / "fitted.zarr",
    ).fit(str(rows))  # fmt: skip
    assert fitted.release_.attributes() == first.attributes()
    again = PrivatePCA.from_release(first, 1)
    assert (again.scale, again.clip, again.centre) == ("private", "auto", "private")
    assert losses(ledger_of_rows(rows)) == [WHOLE]


def test_a_dry_run_and_a_forecast_say_what_the_choice_costs(rows: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        f'[rows]\npath = "{rows}"\n[release]\npath = "{tmp_path / "job.zarr"}"\nepsilon = 1\ndelta = 1e-6\n'
        'clip = "auto"\nscale = "private"\n'
    )
    planned = CliRunner().invoke(cli, ["run", str(job), "--dry-run"])
    assert "choice that the release makes first takes mu² 0.0011 of 0.056" in " ".join(planned.output.split())
    told = json.loads(CliRunner().invoke(cli, ["run", str(job), "--dry-run", "--json"]).stdout)["parts"]
    assert told["stage"]["proof"] == "dpdist.mechanisms.columns"
    asked = ["--epsilon", "1", "--delta", "1e-6", "--clip", "auto", "--scale", "private"]
    forecast = CliRunner().invoke(cli, ["forecast", "--d", "54", "--n", "581012", *asked])
    assert "first chooses centre and scale of each column" in " ".join(forecast.output.split())
    assert "clip norm's square is 165.38" in forecast.output


def test_rows_in_memory_that_change_between_two_passes_are_refused_and_stay_charged() -> None:
    """What is drawn second would be of rows that nobody charged."""
    import dask
    import dask.array as da

    budget = Budget(9, 1e-5)
    random = np.random.default_rng(6)

    def other() -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = random.normal(size=(ROWS - 700, 3))
        return found

    given = da.from_delayed(dask.delayed(other)(), (ROWS - 700, 3), np.float64)
    made = PrivateCovariance(epsilon=1, delta=1e-6, clip="auto", scale="private", budget=budget)
    with pytest.raises(DataError, match=r"different rows on the second read.*charged, and nothing was released"):
        made.fit(given)
    assert not hasattr(made, "release_")
    assert budget.left != Budget(9, 1e-5).left


def test_a_target_is_weighed_so_that_noise_hides_less_of_it(rows: Path, tmp_path: Path) -> None:
    plain = release_rows(rows, tmp_path / "plain.zarr", replace(GAUSSIAN, centring=Centring.PRIVATE)).release
    asked = replace(GAUSSIAN, centring=Centring.PRIVATE, targets=("c1",))
    weighed = release_rows(rows, tmp_path / "weighed.zarr", asked).release
    assert plain.bound.scale is not None
    assert weighed.bound.scale is not None
    ratios = np.array(plain.bound.scale) / np.array(weighed.bound.scale)
    assert ratios == pytest.approx([1, 1, 1], rel=0.3)  # a quarter of 1.75 sqrt(3) is below 1: nothing to weigh
    wide = replace(asked, clip_norm=12)
    scale = np.array(release_rows(rows, tmp_path / "wide.zarr", wide).release.bound.scale)
    assert np.array(plain.bound.scale) / scale == pytest.approx([1, 3, 1], rel=0.3)
    with pytest.raises(UsageError, match=r"no column c9; there are c0, c1, c2"):
        release_rows(rows, tmp_path / "none.zarr", replace(asked, targets=("c9",)))
    with pytest.raises(UsageError, match=r"add scale='private'; or divide them by a public scale"):
        replace(asked, scale=None, clip_norm=12)


def test_a_ridge_weighs_its_targets_and_the_command_asks_for_the_same(rows: Path, tmp_path: Path) -> None:
    given = {"epsilon": 1, "delta": "1e-6", "clip": 12, "scale": "private", "centre": "private"}
    fitted = PrivateRidge(release=tmp_path / "fitted.zarr", **given).fit(str(rows), "c1")  # type: ignore[arg-type]
    assert fitted.release_.bound.scale is not None
    assert fitted.release_.bound.scale[1] == pytest.approx(100 / 3, rel=0.3)
    command = ["release", str(rows), str(tmp_path / "release.zarr"), "--epsilon", "1", "--delta", "1e-6"]
    more = ["--clip", "12", "--scale", "private", "--centre", "private", "--targets", "c1"]
    assert CliRunner().invoke(cli, [*command, *more]).exit_code == 0
    assert open_release(tmp_path / "release.zarr").attributes() == fitted.release_.attributes()
    assert losses(ledger_of_rows(rows)) == [WHOLE]


# --- what makes no sense ----------------------------------------------------------------------------------------------


def test_what_cannot_be_chosen_is_refused_before_anything_is_spent(rows: Path, tmp_path: Path) -> None:
    target = tmp_path / "release.zarr"
    with pytest.raises(
        RefusedError, match=r"fewer than \d+ rows are lost in the noise; the table has 20000.*epsilon=[\d.]+ or"
    ):
        release_rows(rows, target, replace(GAUSSIAN, loss=PrivacyLoss.parse("0.001", "1e-6")))
    with pytest.raises(RefusedError, match="budget of"):
        release_rows(rows, target, replace(GAUSSIAN, loss=PrivacyLoss.parse("9.1", "1e-6")))
    with pytest.raises(UsageError, match=r"takes a share of up to 0.25 as well: scale_share is less than 0.75 then"):
        replace(GAUSSIAN, clip_norm="private", scale_share=Fraction(9, 10))
    with pytest.raises(UsageError, match="is for columns that are divided by a scale"):
        replace(GAUSSIAN, scale=None)
    with pytest.raises(UsageError, match="reproduction"):
        ReleaseRequest("sn", PrivacyLoss.parse("1"), "auto", scale="private", for_reproduction=True)
    with pytest.raises(UsageError, match="not chosen yet"):
        GAUSSIAN.bound(3)
    for share in ("0", 1, "nan", "1e-999999999", "half", Fraction(1, 10**7)):
        with pytest.raises(UsageError, match="lies between 0 and 1"):
            replace(GAUSSIAN, scale_share=share)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is the part of a private choice"):
        replace(GAUSSIAN, scale=(1.0, 1.0, 1.0), scale_share=Fraction(1, 5))
    assert ledger_of_rows(rows).records == []


def test_bad_words_are_told_in_the_words_of_who_wrote_them(rows: Path, tmp_path: Path) -> None:
    public = tmp_path / "public.json"
    public.write_text('{"scale": [1, 1, 1]}')
    command = ["release", str(rows), str(tmp_path / "release.zarr"), "--epsilon", "1", "--delta", "1e-6"]
    for more, said in (
        (("--clip", "much"), "takes a number, private or auto, not 'much'"),
        (("--clip", "auto"), "add --scale private or a public scale"),
        (("--clip", "private", "--scale", "private", "--scale-share", "0.95"), "--scale-share is less than 0.75"),
        (("--clip", "1", "--scale", "private", "--centre", str(public)), "--centre holds a public scale"),
        (("--clip", "1", "--scale-share", "0.2"), "--scale-share is the part of a private choice"),
    ):
        found = CliRunner().invoke(cli, [*command, *more])
        assert said in str(found.exception), more
    job = tmp_path / "job.toml"
    job.write_text(
        f'[rows]\npath = "{rows}"\nsource = "{tmp_path}"\nperiods = true\n[release]\npath = "r"\nepsilon = 1\n'
        'delta = 1e-6\nclip = "auto"\nscale = "private"\nscale_share = 2\n'
    )
    refused = str(CliRunner().invoke(cli, ["run", str(job)]).exception)
    assert "scale_share in [release] lies between 0 and 1" in refused


# --- formats ----------------------------------------------------------------------------------------------------------


def test_a_stored_release_with_a_private_scale_is_read_and_its_centre_and_scale_follow_from_its_counts(
    tmp_path: Path,
) -> None:
    # written when there were such releases first; never written again
    archive.publish(io.BytesIO((STORED / "scaled-1.tar").read_bytes()), tmp_path / "r.zarr")
    found = open_release(tmp_path / "r.zarr")
    assert found.stage is not None
    assert found.blindly_scaled == (("c3",), ())
    assert sorted(read_arrays(store_at(tmp_path / "r.zarr"), {"lattice", "second_moment", "row_sum"})) == [
        "lattice", "row_sum", "second_moment",
    ]  # fmt: skip
    assert found.bound.scale == found.stage.chosen["scale"] == STORED_SCALE
    follows = [standardised(Grid(), [(p, count) for p, count in pairs]) for pairs in found.stage.answer["counts"]]
    assert tuple(each.scale for each in follows) == STORED_SCALE
    assert tuple(each.centre for each in follows) == found.bound.centre
    assert found.guarantee is not None
    assert found.guarantee.loss == WHOLE
