"""Guarantees that promise little: a delta of 1/n is refused where n is public, the rest is said in words."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from dpdist import PrivateCovariance, PrivatePCA
from dpdist.cli import cli
from dpdist.errors import RefusedError, UsageError, WeakGuaranteeWarning
from dpdist.ingest.registered import open_rows
from dpdist.jobs import series
from dpdist.jobs.job_file import read_job
from dpdist.ledger.ledger import Ledger
from dpdist.pipeline.budget import default_ledger, ingest_rows
from dpdist.pipeline.release import release_rows
from dpdist.privacy import checks
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release.artefact import open_release
from dpdist.release.request import ReleaseRequest
from dpdist.report.html import write
from dpdist.runtime.cluster import Cluster

pytestmark = pytest.mark.filterwarnings("ignore:Rows of the same number and kind were released")

ROWS = 500
ACCEPT = "--accept-large-delta"
REPLACE, ADD = Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Cluster, "named", False)
    np.save(tmp_path / "table.npy", np.random.default_rng(1).normal(size=(ROWS, 3)))
    budget = PrivacyLoss.parse("100", "0.5")
    return ingest_rows(tmp_path / "table.npy", tmp_path / "rows.zarr", budget=budget).path


def release(rows: Path, *options: object, delta: str = "0.002", name: str = "release.zarr") -> Result:
    return call("release", rows, rows.with_name(name), "--epsilon", "1", "--clip", "3", "--delta", delta, *options)


def charged(rows: Path) -> int:
    return len(Ledger(default_ledger(rows)).records)


def test_a_delta_of_one_over_n_is_refused_and_nothing_is_spent(rows: Path) -> None:
    found = release(rows)  # exactly 1/500
    assert isinstance(found.exception, RefusedError)  # exit code 3
    assert "--accept-large-delta" in str(found.exception)
    assert "500" in str(found.exception)
    assert (charged(rows), rows.with_name("release.zarr").exists()) == (0, False)
    assert release(rows, delta="0.001999999999999999").exit_code == 0  # one unit of delta less
    assert release(rows, ACCEPT, name="accepted.zarr").exit_code == 0


def test_who_accepted_it_gets_the_same_release_and_the_same_bytes(rows: Path) -> None:
    assert release(rows, ACCEPT).exit_code == 0
    for options in ((ACCEPT,), ()):  # charged and published before: nothing is left to refuse
        again = release(rows, *options, name=f"again{len(options)}.zarr")
        assert again.exit_code == 0, again.exception
        assert "released before" in again.output
        there, here = rows.with_name("release.zarr"), rows.with_name(f"again{len(options)}.zarr")
        names = sorted(path.relative_to(there) for path in there.rglob("*") if path.is_file())
        assert all((here / name).read_bytes() == (there / name).read_bytes() for name in names)
    asked = ReleaseRequest("gaussian", PrivacyLoss.parse("1", "0.002"), 3.0)
    table = open_rows(rows)
    accepted = ReleaseRequest("gaussian", asked.loss, 3.0, accept_large_delta=True)
    assert accepted.release_id(table) == asked.release_id(table) == open_release(there).release_id


def test_under_add_remove_nothing_depends_on_n(rows: Path) -> None:
    found = release(rows, "--neighbours", "add-remove")
    assert found.exit_code == 0
    assert "CAUTION" in found.output
    said = found.output.replace("of 500 rows or more", "")  # 1 / 0.002, whatever n is
    for chance in (str(rows.parent), open_release(rows.with_name("release.zarr")).release_id):  # a number, a hash
        said = said.replace(chance, "")
    assert str(ROWS) not in said
    for count in (1, ROWS, 10**9):
        checks.require_small_delta(PrivacyLoss.parse("1", "0.5"), ADD, count, accepted=False)
        for delta in ("0.5", "1e-4", "1e-5"):
            loss = PrivacyLoss.parse("1", delta)
            assert checks.cautions(loss, ADD, count) == checks.cautions(loss, ADD, None)


@pytest.mark.parametrize(
    ("loss", "neighbours", "rows", "said"),
    [
        (("10", "0"), REPLACE, 5, 0),
        (("10.000001", "0"), REPLACE, 5, 1),
        (("1000000", "0"), REPLACE, 5, 1),  # whose exponential is no float
        (("1", "0.000099999"), ADD, None, 0),
        (("1", "1e-4"), ADD, None, 1),
        (("1", "1e-4"), REPLACE, 9999, 0),
        (("1", "1e-4"), REPLACE, 10000, 1),
        (("50", "0.01"), REPLACE, 10**6, 2),
        (("50", "0.01"), REPLACE, None, 1),
        (("1", "0"), REPLACE, 10**12, 0),
    ],
)
def test_what_is_said_and_what_is_not(
    loss: tuple[str, str], neighbours: Neighbours, rows: int | None, said: int
) -> None:
    assert len(checks.cautions(PrivacyLoss.parse(*loss), neighbours, rows)) == said


def test_n_is_the_number_of_rows_of_whatever_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    people = np.arange(ROWS) // 5
    np.save(tmp_path / "table.npy", np.column_stack([people, np.random.default_rng(1).normal(size=(ROWS, 2))]))
    rows = tmp_path / "rows.zarr"
    budget = PrivacyLoss.parse("10", "0.5")
    ingest_rows(tmp_path / "table.npy", rows, budget=budget, privacy_unit="c0", max_rows=5)
    assert isinstance(release(rows).exception, RefusedError)  # 100 people, 500 rows: 1/500 is the safe one of the two
    assert release(rows, delta="0.0019").exit_code == 0


def test_bound_refuses_it_too(rows: Path) -> None:
    command = ("bound", rows, "--epsilon", "1", "--delta", "0.002", "--grid", "1:8:1", "--quantile", "0.5")
    for words in (command, command[:4]):  # the second one takes the delta of the budget, 0.5
        found = call(*words)
        assert isinstance(found.exception, RefusedError)
        assert "--accept-large-delta" in str(found.exception)
        assert charged(rows) == 0
    accepted = call(*command, ACCEPT, "--json")
    assert accepted.exit_code == 0, accepted.exception
    assert "not below one over the number of rows" in "".join(json.loads(accepted.stdout)["cautions"])
    again = call(*command)  # charged already: the same histogram
    assert again.exit_code == 0
    assert "CAUTION" in again.output
    assert charged(rows) == 1


def test_a_job_file_accepts_it_by_a_key(rows: Path) -> None:
    job = rows.with_name("job.toml")
    text = '[rows]\npath = "rows.zarr"\n[release]\npath = "r.zarr"\nepsilon = 1\ndelta = 0.002\nclip = 3.0\n'
    job.write_text(text)
    for command in (("run", job), ("run", job, "--dry-run")):
        assert isinstance(call(*command).exception, RefusedError)
    job.write_text(f"{text}accept_large_delta = true\n")
    assert call("run", job, "--dry-run").exit_code == 0
    assert call("run", job).exit_code == 0
    assert open_release(rows.with_name("r.zarr")).guarantee is not None
    job.write_text(f"{text}accept_large_delta = 1\n")
    with pytest.raises(UsageError, match="must be true or false"):
        read_job(job)


def test_with_periods_n_is_that_of_all_periods_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    source = tmp_path / "incoming"
    source.mkdir()
    text = (
        '[rows]\npath = "visits"\nsource = "incoming"\nperiods = true\nbudget_epsilon = 1\nbudget_delta = 0.01\n'
        '[release]\npath = "published"\nepsilon = 1\ndelta = 0.004\nclip = 3.0\n'
    )
    job = tmp_path / "job.toml"
    job.write_text(text)
    for night in range(3):  # 100, 200 and 300 rows so far: 1/250 is reached in the third night
        np.save(source / f"d{night}.npy", np.random.default_rng(night).normal(size=(100, 2)))
        found = call("run", job)
        assert (found.exit_code == 0) == (night < 2), found.output
    assert isinstance(found.exception, RefusedError)
    assert "300" in str(found.exception)
    assert not (tmp_path / "published" / "d2.zarr").exists()
    assert len(Ledger(tmp_path / "visits.ledger").records) == 2
    job.write_text(f"{text}accept_large_delta = true\n")
    assert call("run", job).exit_code == 0  # the night is made up for
    job.write_text(text)
    assert call("run", job).exit_code == 0  # and what is released stays released
    assert (tmp_path / "published" / "total" / "d2.zarr").exists()
    assert series.open_series(read_job(job)).table.count(["d0", "d2"]) == 200


def test_the_estimators_take_it_as_a_parameter(rows: Path) -> None:
    values = np.random.default_rng(7).normal(size=(ROWS, 3))
    asked: dict[str, Any] = {"n_components": 1, "epsilon": 9, "delta": 0.002, "clip": 3}
    for given in (values, str(rows)):
        with pytest.raises(RefusedError, match="or pass accept_large_delta"):
            PrivatePCA(**asked).fit(given)
        fitted = PrivatePCA(**asked, accept_large_delta=True).fit(given)
        assert PrivatePCA.from_release(fitted.release_, 1).accept_large_delta
    assert release(rows, delta="1e-6", name="small.zarr").exit_code == 0
    assert not PrivatePCA.from_release(rows.with_name("small.zarr"), 1).accept_large_delta
    with pytest.raises(UsageError, match="accept_large_delta"):
        PrivatePCA(**asked | {"accept_large_delta": "yes"}).fit(values)


def test_an_epsilon_above_ten_is_said_in_python(rows: Path) -> None:
    values = np.random.default_rng(9).normal(size=(ROWS, 3))
    for given in (values, str(rows)):
        with pytest.warns(WeakGuaranteeWarning, match="Epsilon 12 is above 10"):
            PrivateCovariance(epsilon=12, delta=1e-6, clip=3, centre="none").fit(given)
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("11", "1e-6"), 3.0)
    with pytest.warns(WeakGuaranteeWarning, match="Epsilon 11"):
        release_rows(rows, rows.with_name("a.zarr"), request)
    with pytest.warns(WeakGuaranteeWarning, match="Epsilon 11"):
        PrivateCovariance.from_release(rows.with_name("a.zarr"))


@pytest.mark.filterwarnings("error::dpdist.errors.WeakGuaranteeWarning")
def test_a_warning_that_is_made_an_error_costs_nothing(rows: Path) -> None:
    with pytest.raises(WeakGuaranteeWarning):
        PrivateCovariance(epsilon=12, delta=1e-6, clip=3, centre="none").fit(str(rows))
    assert charged(rows) == 0
    PrivateCovariance(epsilon=9, delta=1e-6, clip=3, centre="none").fit(str(rows))  # and nothing is said of others


def test_an_epsilon_above_ten_is_amber_with_words_on_the_command_line_and_in_the_report(rows: Path) -> None:
    made = {}
    for epsilon in ("10", "12", "1000000"):
        path = rows.with_name(f"r{epsilon}.zarr")
        command = ("release", rows, path, "--epsilon", epsilon, "--delta", "1e-6", "--clip", "3")
        shutil.rmtree(default_ledger(rows))
        shutil.rmtree(rows)
        ingest_rows(rows.with_name("table.npy"), rows, budget=PrivacyLoss.parse("1000000", "0.5"))
        said, told = call(*command), call(*command, "--json")
        shown, page = call("inspect", path), rows.with_name("page.html")
        write(open_release(path), page)
        model = call("pca", path, rows.with_name(f"m{epsilon}.zarr"), "--components", "1")
        badge = re.search(r"<span class='status (\w+)'>([^<]*)</span>", page.read_text())
        assert badge is not None
        texts = (
            said.output,
            shown.output,
            model.output,
            page.read_text(),
            "".join(json.loads(told.stdout)["cautions"]),
        )
        made[epsilon] = {f"Epsilon {float(epsilon):g} is above 10" in text for text in texts}, badge.groups()
        assert "cautions" not in json.loads((path / "zarr.json").read_text())["attributes"]["dpdist"]  # a format
    assert made["10"] == ({False}, ("private", "private"))
    assert made["12"] == made["1000000"] == ({True}, ("weak", "private, but hardly"))


def test_the_odds_that_are_told_are_those_of_the_guarantee() -> None:
    (said,) = checks.cautions(PrivacyLoss.parse("12"), REPLACE, None)
    assert f"{math.exp(12):.3g} times" in said
