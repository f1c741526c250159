"""A release that chooses centre and scale of its columns: two draws under one id, one price."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from click.testing import CliRunner
from support.folders import STORED, unpack
from support.ledgers import ledger_of_rows, losses, stage_of
from support.parts import table_of

from dpdist.cli import cli
from dpdist.core.errors import ClippedRowsWarning, DataError, RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.register import Budget
from dpdist.core.ledger.state import State
from dpdist.core.mechanisms.columns import BEYOND, Grid, standardised
from dpdist.core.pipeline.budget import create_ledger, default_ledger
from dpdist.core.pipeline.release import release_rows
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy.guarantee import Guarantee, Neighbours, PrivacyLoss
from dpdist.core.release import stages
from dpdist.core.release.opening import open_release
from dpdist.core.release.plan import plan_of
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.rows.columns import Column
from dpdist.core.rows.schema import Schema
from dpdist.core.storage.arrays import read_arrays
from dpdist.core.storage.store import store_at
from dpdist.estimators import PrivateCovariance, PrivatePCA

pytestmark = pytest.mark.usefixtures("state", "seeded")
WHOLE = PrivacyLoss.parse("1", "1e-6")
GAUSSIAN = ReleaseRequest("gaussian", WHOLE, "auto", scale="private")
PURE = ReleaseRequest("two-sided-wishart", PrivacyLoss.parse("1"), "auto", scale="private")
MEANS, DEVIATIONS = np.array([0.0, 500.0, -0.02]), np.array([3.0, 100.0, 0.01])
ROWS = 20_000
VALUES = np.random.default_rng(1).normal(size=(ROWS, 3)) * DEVIATIONS + MEANS


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return table(tmp_path / "rows.zarr", VALUES)


def table(path: Path, values: npt.NDArray[np.float64]) -> Path:
    table_of(path, values, budget=PrivacyLoss.parse("9", "1e-6"))
    create_ledger(default_ledger(path), path)
    return path


@pytest.mark.parametrize(
    "request_",
    [
        replace(PURE, loss=PrivacyLoss.parse("4")),
        replace(GAUSSIAN, neighbours=Neighbours.ADD_REMOVE, centring=Centring.PRIVATE),
        replace(GAUSSIAN, centre=(0.0, 400.0, 0.0), clip_norm=4),
    ],
)
def test_it_is_one_release_at_the_price_of_both_of_rows_in_their_own_units(
    rows: Path, tmp_path: Path, request_: ReleaseRequest
) -> None:
    target = tmp_path / "release.zarr"
    made = release_rows(rows, target, request_)
    found, plan = made.release, plan_of(request_, open_rows(rows))
    assert found.stage is not None
    (record,) = ledger_of_rows(rows).records
    assert (record.state, losses(ledger_of_rows(rows))) == (State.PUBLISHED, [request_.loss])
    assert found.guarantee == record.guarantee == plan.guarantee
    assert found.private_as_claimed
    assert Guarantee.from_json(found.stage.guarantee) == plan.choice
    assert found.noise == plan.moment.noise

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
    scaled = (VALUES - bound.centre) / bound.scale
    short = np.minimum(1, bound.shortened_norm / np.linalg.norm(scaled, axis=1))
    exact = np.diag(np.einsum("ni,nj,n->ij", scaled, scaled, short**2))
    noise = np.sqrt(found.noise.variance_diagonal or 0) * bound.unit**2
    # ten deviations: three draws exceed that with probability 1e-22, of a normal law; a scale that is off by a tenth
    # moves the diagonal by a fifth
    assert (np.abs(found.moment_diagonal - found.noise.mean_diagonal * bound.unit**2 - exact) < 10 * noise + 100).all()
    assert (0.1 * exact > 10 * noise + 100).all()

    assert found.stage.answer["counts"] == json.loads(stage_of(rows))["counts"]
    assert "Chosen first, privately, by column-histograms" in made.describe()


def test_an_id_stands_for_one_share_and_a_share_that_is_named_for_itself(rows: Path, tmp_path: Path) -> None:
    found, other = open_rows(rows), replace(GAUSSIAN, scale_share=Fraction(1, 5))
    named = replace(GAUSSIAN, scale_share=Fraction("0.02"))  # the share that n, epsilon and d ask for
    ids = [plan_of(request, found).release_id(found) for request in (named, GAUSSIAN, other)]
    assert ids[0] == ids[1] != ids[2]
    fresh = [release_rows(rows, tmp_path / "r.zarr", replace(GAUSSIAN, name="census")).fresh for _ in range(2)]
    assert fresh == [True, False]
    with pytest.raises(RefusedError, match="is already used with other parameters"):
        release_rows(rows, tmp_path / "other.zarr", replace(other, name="census"))


def test_an_altered_scale_is_noticed(rows: Path, tmp_path: Path) -> None:
    release_rows(rows, tmp_path / "release.zarr", GAUSSIAN)
    place = tmp_path / "release.zarr" / "zarr.json"
    written = place.read_text()
    for part, name, values in (
        ("stage", "scale", [1.5] * 3), ("bound", "scale", [1.5] * 3), ("stage", "bins", [3.0, 3.0]),
        ("stage", "bins", 3.0),
    ):  # fmt: skip
        head = json.loads(written)
        said = head["attributes"]["dpdist"][part]
        said.get("chosen", said)[name] = values
        place.write_text(json.dumps(head))
        with pytest.raises(DataError, match="it is damaged"):
            open_release(place.parent)


def test_the_counts_carry_the_noise_they_are_calibrated_for_and_not_that_of_one_column(tmp_path: Path) -> None:
    columns = 300
    rows = table(tmp_path / "rows.zarr", np.zeros((8000, columns)))
    stage = release_rows(rows, tmp_path / "release.zarr", replace(GAUSSIAN, scale_share=Fraction(1, 2))).release.stage
    assert stage is not None
    drawn = np.array([count - 8000 for found in stage.answer["counts"] for place, count in found if place == 121])
    assert len(drawn) == columns
    ratio = float((drawn**2).mean() / stage.answer["noise"]["sigma"] ** 2)
    # chi-square with 300 degrees of freedom: within 0.6 .. 1.5 but for probability 1e-7
    assert 0.6 < ratio < 1.5
    # the twins: the noise of one column, and of a share that is not halved
    assert not 0.6 < ratio * columns < 1.5
    assert not 0.6 < ratio * 2.5 < 1.5


def test_ranges_of_the_schema_are_the_grids_and_columns_of_which_little_is_seen_are_named(tmp_path: Path) -> None:
    draws = np.random.default_rng(2).normal(size=ROWS)
    lines = (f"{1990 + 10 * i % 30},{1e9 + i},{int(i == 7)},{x:.4f},{int(i % 4 == 0)}\n" for i, x in enumerate(draws))
    (tmp_path / "t.csv").write_text("year,stamp,rare,x,flag\n" + "".join(lines))
    columns = [Column("year", "integer", range=(1990, 2020)), *(Column(name, "number") for name in ("stamp", "rare"))]
    columns += [Column("x", "number"), Column("flag", "boolean", missing="pairwise")]
    rows = tmp_path / "t.zarr"
    ingest_rows(tmp_path / "t.csv", rows, budget=PrivacyLoss.parse("9", "1e-6"), schema=Schema(columns))
    made = release_rows(rows, tmp_path / "release.zarr", GAUSSIAN)
    found = made.release
    assert found.blindly_scaled == (("rare",), ("stamp",))
    assert "The spread of 1 column is lost in the noise, so a default scale was used: rare." in made.describe()
    assert "1 column had numbers beyond 2^20, and got no weight: stamp." in made.describe()
    scale = np.array(found.bound.scale)
    assert scale[1] == BEYOND
    assert scale[2] == 1
    assert found.bound.clip_norm == 2.475  # of the two columns of numbers that were seen: 1.75 sqrt(2)
    assert "clip norm 2.475" in made.describe()
    assert abs(scale[0] - np.sqrt(200 / 3)) < 0.5  # of 1990, 2000, 2010: no bin of 326 years
    contrast = (np.array([0, 1]) - np.array(found.bound.centre)[4]) / scale[
        4
    ]  # of the boolean, which takes no histogram
    assert contrast == pytest.approx([-1, 1])
    assert (found.bound.centre[5], scale[5]) == (0, 1)  # type: ignore[index]
    assert found.bound.row_norm == pytest.approx(np.hypot(2.475, 1), rel=0.005)
    told = CliRunner().invoke(cli, ["inspect", str(tmp_path / "release.zarr")]).output
    assert "stamp" in told
    assert "column-histograms" in told


def test_command_job_file_and_estimator_ask_for_the_same_release(rows: Path, tmp_path: Path) -> None:
    command = ["release", str(rows), str(tmp_path / "release.zarr"), "--epsilon", "1", "--delta", "1e-6"]
    more = ["--clip", "auto", "--scale", "private", "--scale-share", "0.2", "--centre", "private"]
    job = tmp_path / "job.toml"
    job.write_text(
        f'[rows]\npath = "{rows}"\n[release]\npath = "{tmp_path / "job.zarr"}"\nepsilon = 1\ndelta = 1e-6\n'
        'clip = "auto"\nscale = "private"\nscale_share = 0.2\ncentre = "private"\n'
    )
    planned = " ".join(CliRunner().invoke(cli, ["run", str(job), "--dry-run"]).output.split())
    assert "choice at the start of the release uses mu² 0.0117 of" in planned
    asked = CliRunner().invoke(cli, [*command, *more, "--json"])
    assert asked.exit_code == 0, asked.output
    assert len(json.loads(asked.stdout)["stage"]["chosen"]["scale"]) == 3
    assert CliRunner().invoke(cli, ["run", str(job)]).exit_code == 0
    first = open_release(tmp_path / "release.zarr")
    assert open_release(tmp_path / "job.zarr").attributes() == first.attributes()
    given = {"epsilon": 1, "delta": "1e-6", "clip": "auto", "scale": "private", "scale_share": "0.2"}
    fitted = PrivatePCA(1, centre="private", release=tmp_path / "fitted.zarr", **given).fit(str(rows))  # type: ignore[arg-type]
    assert fitted.release_.attributes() == first.attributes()
    again = PrivatePCA.from_release(first, 1)
    assert (again.scale, again.clip, again.centre) == ("private", "auto", "private")
    assert losses(ledger_of_rows(rows)) == [WHOLE]
    asked = CliRunner().invoke(cli, ["forecast", "--d", "54", "--n", "581012", *command[3:], *more[:4]])
    assert "first chooses centre and scale of each column" in " ".join(asked.output.split())
    assert "squared clip norm is 165.38" in asked.output


def test_rows_in_memory_that_change_between_two_passes_are_refused_and_stay_charged() -> None:
    """What is drawn second would be of rows that nobody charged."""
    budget, random, size = Budget(9, 1e-5), np.random.default_rng(6), (ROWS - 700, 3)
    given = da.from_delayed(dask.delayed(lambda: random.normal(size=size))(), size, np.float64)
    made = PrivateCovariance(epsilon=1, delta=1e-6, clip="auto", scale="private", budget=budget)
    with pytest.raises(DataError, match=r"different rows on the second read.*charged, and nothing was released"):
        made.fit(given)
    assert not hasattr(made, "release_")
    assert budget.left != Budget(9, 1e-5).left


def test_a_target_is_weighed_so_that_noise_hides_less_of_it(rows: Path, tmp_path: Path) -> None:
    asked = replace(GAUSSIAN, centring=Centring.PRIVATE, targets=("c1",))
    found = []
    # a quarter of 1.75 sqrt(3) is below 1: nothing to weigh; a quarter of 12 is 3
    for number, request in enumerate((replace(asked, targets=()), asked, replace(asked, clip_norm=12))):
        bound = release_rows(rows, tmp_path / f"{number}.zarr", request).release.bound
        assert bound.scale is not None
        found.append(np.array(bound.scale))
    assert found[0] / found[1] == pytest.approx([1, 1, 1], rel=0.3)
    assert found[0] / found[2] == pytest.approx([1, 3, 1], rel=0.3)
    with pytest.raises(UsageError, match=r"no column c9; there are c0, c1, c2"):
        release_rows(rows, tmp_path / "none.zarr", replace(asked, targets=("c9",)))
    with pytest.raises(UsageError, match=r"add scale='private'; or divide these columns by a public scale"):
        replace(asked, scale=None, clip_norm=12)


def test_a_skewed_target_is_not_enlarged_and_one_with_a_transform_has_the_name_of_its_column(tmp_path: Path) -> None:
    """Its large values would be clipped more often."""
    random = np.random.default_rng(2)
    frame = {
        "spend": random.lognormal(2, 1.2, ROWS),
        "age": random.normal(50, 9, ROWS),
        "visits": random.poisson(9, ROWS),
    }
    pd.DataFrame(frame).to_parquet(tmp_path / "t.parquet")
    for name, word in (("plain", None), ("log", "log")):
        columns = [Column(column, "number", transform=word if column == "spend" else None) for column in frame]
        budget = PrivacyLoss.parse("9", "1e-5")
        ingest_rows(tmp_path / "t.parquet", tmp_path / f"{name}.zarr", budget=budget, schema=Schema(columns))
    asked = replace(GAUSSIAN, centring=Centring.PRIVATE, targets=("spend", "age"), clip_norm=12.0)
    divisors: dict[tuple[str, bool], npt.NDArray[np.float64]] = {}
    for name, request in (("plain", asked), ("plain", replace(asked, targets=())), ("log", asked)):
        found = release_rows(tmp_path / f"{name}.zarr", tmp_path / f"{len(divisors)}.zarr", request).release
        divisors[name, bool(request.targets)] = np.array(found.bound.scale)
    assert divisors["plain", False] / divisors["plain", True] == pytest.approx([1, 3, 1], rel=0.3)
    assert divisors["log", True][0] == pytest.approx(np.log1p(frame["spend"]).std() / 3, rel=0.3)


def test_what_cannot_be_chosen_is_refused_before_anything_is_spent(rows: Path, tmp_path: Path) -> None:
    lost = r"requires at least \d+ rows; the table has 20000.*epsilon=[\d.]+ or"
    for epsilon, said in (("0.001", lost), ("9.1", "budget of")):
        with pytest.raises(RefusedError, match=said):
            release_rows(rows, tmp_path / "r.zarr", replace(GAUSSIAN, loss=PrivacyLoss.parse(epsilon, "1e-6")))
    with pytest.raises(UsageError, match=r"takes a share of up to 0.25 as well: scale_share must be less than 0.75"):
        replace(GAUSSIAN, clip_norm="private", scale_share=Fraction(9, 10))
    with pytest.raises(UsageError, match="requires a scale: add"):
        replace(GAUSSIAN, scale=None)
    with pytest.raises(UsageError, match="reproduction"):
        ReleaseRequest("sn", PrivacyLoss.parse("1"), "auto", scale="private", for_reproduction=True)
    for share in ("0", 1, "nan", "1e-999999999", "half", Fraction(1, 10**7)):
        with pytest.raises(UsageError, match="must be between 0 and 1"):
            replace(GAUSSIAN, scale_share=share)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="requires a private scale: add"):
        replace(GAUSSIAN, scale=(1.0, 1.0, 1.0), scale_share=Fraction(1, 5))
    assert ledger_of_rows(rows).records == []


def test_noise_above_two_percent_of_n_on_a_count_is_refused_and_a_charged_id_is_returned_all_the_same(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_rows(rows)

    def noise(request: ReleaseRequest) -> float:
        return float(np.sqrt(plan_of(request, opened).stages["scale"].noise.variance))

    asked = replace(GAUSSIAN, scale_share=Fraction(1, 100))
    losses_asked = [PrivacyLoss.parse(str(epsilon), "1e-6") for epsilon in (0.2, 0.3, 0.4)]
    least, *_, most = (replace(asked, loss=loss) for loss in losses_asked)
    assert noise(least) > 0.02 * ROWS > noise(most)
    with pytest.raises(RefusedError, match="Nothing was spent"):
        release_rows(rows, tmp_path / "least.zarr", least)
    made = release_rows(rows, tmp_path / "most.zarr", most)
    # what was charged before the rule, or is half done, is completed
    monkeypatch.setattr(stages, "_MOST_NOISE", 1e-9)
    assert release_rows(rows, tmp_path / "again.zarr", most).release.release_id == made.release.release_id
    with pytest.raises(RefusedError, match="Nothing was spent"):
        release_rows(rows, tmp_path / "new.zarr", replace(most, name="another"))


def test_where_n_is_private_a_stated_limit_decides_or_nothing(rows: Path, tmp_path: Path) -> None:
    private = replace(GAUSSIAN, neighbours=Neighbours.ADD_REMOVE, centring=Centring.PRIVATE)
    small = replace(private, rows_at_most=300)
    with pytest.raises(RefusedError, match=r"at least \d+ rows; the table has at most 300\."):
        release_rows(rows, tmp_path / "small.zarr", small)
    tiny = table(tmp_path / "tiny.zarr", VALUES[:50])
    with pytest.raises(RefusedError, match=r"the table has at most 300\."):  # and says nothing of 50
        release_rows(tiny, tmp_path / "tiny.release.zarr", small)
    assert release_rows(tiny, tmp_path / "any.zarr", private).fresh  # nothing is known, and nothing is refused


def test_a_column_of_which_nothing_was_seen_does_not_shrink_the_clip_norm(tmp_path: Path) -> None:
    """Its values may be long; those of a column within one bin are short, and a larger norm would only add noise."""
    random = np.random.default_rng(3)
    spread = 2.0 ** random.uniform(-9, 19, ROWS) * random.choice([-1, 1], ROWS)  # over all bins
    values = np.column_stack([VALUES, np.full(ROWS, 5.0), spread])
    rows = table(tmp_path / "rows.zarr", values)
    asked = replace(GAUSSIAN, loss=PrivacyLoss.parse("0.3", "1e-6"), scale_share=Fraction(1, 50))
    release = release_rows(rows, tmp_path / "release.zarr", asked).release
    assert release.blindly_scaled[0] == ("c3", "c4")
    assert release.stage is not None
    bins = release.stage.chosen["bins"]
    assert isinstance(bins, tuple)
    assert bins[3:] == (1, 0)
    assert release.bound.clip_norm == float(f"{1.75 * 4**0.5:.4g}")  # c0, c1, c2 and c4
    with pytest.warns(ClippedRowsWarning):  # by the long values of c4
        pca = PrivatePCA.from_release(release, 1)
    assert "The spread of 2 columns is lost in the noise" in " ".join(pca.summary().split())


@pytest.mark.parametrize(("name", "epsilon"), [("scaled", "40"), ("staged", "50")])
def test_a_stored_release_with_a_private_scale_is_read_and_its_centre_and_scale_follow_from_its_counts(
    tmp_path: Path, name: str, epsilon: str
) -> None:
    unpack(STORED / "golden-1.tar.gz", tmp_path)
    found = open_release(tmp_path / f"{name}.zarr")
    assert found.stage is not None
    assert found.blindly_scaled == ((), ())
    assert sorted(read_arrays(store_at(tmp_path / f"{name}.zarr"), {"lattice", "second_moment"})) == [
        "lattice", "second_moment",
    ]  # fmt: skip
    follows = [standardised(Grid(), [(p, count) for p, count in pairs]) for pairs in found.stage.answer["counts"]]
    assert tuple(each.scale for each in follows) == found.bound.scale == found.stage.chosen["scale"]
    assert tuple(each.centre for each in follows) == found.bound.centre == found.stage.chosen["centre"]
    assert found.guarantee is not None
    assert found.guarantee.loss == PrivacyLoss.parse(epsilon, "1e-6")
