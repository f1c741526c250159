"""Weak guarantees: a delta of 1/n is refused if n is public, and there are warnings about the others."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from support.norms import call

from dpdist import PrivateCovariance, PrivatePCA
from dpdist.core.errors import RefusedError, WeakGuaranteeWarning
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.pipeline.budget import default_ledger
from dpdist.core.pipeline.release import release_rows
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy import checks
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release.opening import open_release
from dpdist.core.release.request import ReleaseRequest
from dpdist.core.runtime.cluster import Cluster
from dpdist.report.html import write

pytestmark = pytest.mark.filterwarnings("ignore:The same number of rows was released")

ROWS = 500
ACCEPT = "--accept-large-delta"
REPLACE, ADD = Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE


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
    result = release(rows)  # exactly 1/500
    assert isinstance(result.exception, RefusedError)  # exit code 3
    assert "--accept-large-delta" in str(result.exception)
    assert "500" in str(result.exception)
    assert (charged(rows), rows.with_name("release.zarr").exists()) == (0, False)
    assert release(rows, delta="0.001999999999999999").exit_code == 0  # one unit of delta less


def test_under_add_remove_nothing_depends_on_n(rows: Path) -> None:
    result = release(rows, "--neighbours", "add-remove")
    assert result.exit_code == 0
    assert "CAUTION" in result.output
    output = result.output.replace("With 500 rows or more", "")  # 1 / 0.002, whatever n is
    for chance in (str(rows.parent), open_release(rows.with_name("release.zarr")).release_id):  # a number, a hash
        output = output.replace(chance, "")
    assert str(ROWS) not in output
    for count in (1, ROWS, 10**9):
        checks.require_small_delta(PrivacyLoss.parse("1", "0.5"), ADD, count, accepted=False)
        for delta in ("0.5", "1e-4", "1e-5"):
            loss = PrivacyLoss.parse("1", delta)
            assert checks.cautions(loss, ADD, count) == checks.cautions(loss, ADD, None)


@pytest.mark.parametrize(
    ("loss", "neighbours", "rows", "count"),
    [
        (("10", "0"), REPLACE, 5, 0),
        (("10.000001", "0"), REPLACE, 5, 1),
        (("12", "0"), REPLACE, None, 1),
        (("1000000", "0"), REPLACE, 5, 1),  # whose exponential is no float
        (("1", "0.000099999"), ADD, None, 0),
        (("1", "1e-4"), ADD, None, 1),
        (("1", "1e-4"), REPLACE, 9999, 0),
        (("1", "1e-4"), REPLACE, 10000, 1),
        (("50", "0.01"), REPLACE, 10**6, 2),
        (("50", "0.01"), REPLACE, None, 2),
        (("1", "0"), REPLACE, 10**12, 0),
    ],
)
def test_what_is_said_and_what_is_not(
    loss: tuple[str, str], neighbours: Neighbours, rows: int | None, count: int
) -> None:
    messages = checks.cautions(PrivacyLoss.parse(*loss), neighbours, rows)
    assert len(messages) == count
    if loss[0] == "12":
        assert f"{math.exp(12):.3g} times" in messages[0]  # the odds are those of the guarantee


def test_bound_refuses_it_too(rows: Path) -> None:
    command = ("bound", rows, "--epsilon", "1", "--grid", "1:8:1", "--quantile", "0.5")
    result = call(*command)  # it takes the delta of the budget, 0.5
    assert isinstance(result.exception, RefusedError)
    assert charged(rows) == 0
    accepted = call(*command, ACCEPT, "--json")
    assert accepted.exit_code == 0, accepted.exception
    assert "not below one over the number of rows" in "".join(json.loads(accepted.stdout)["cautions"])
    assert call(*command).exit_code == 0  # charged already: the same histogram
    assert charged(rows) == 1


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
    for day in range(3):  # 100, 200 and 300 rows so far: 1/250 is reached on the third day
        np.save(source / f"d{day}.npy", np.random.default_rng(day).normal(size=(100, 2)))
        result = call("run", job)
        assert (result.exit_code == 0) == (day < 2), result.output
    assert isinstance(result.exception, RefusedError)
    assert "300" in str(result.exception)
    assert not (tmp_path / "published" / "d2.zarr").exists()
    assert len(Ledger(tmp_path / "visits.ledger").records) == 2
    job.write_text(f"{text}accept_large_delta = true\n")
    assert call("run", job, "--dry-run").exit_code == 0
    assert call("run", job).exit_code == 0  # the period is released now
    job.write_text(text)
    assert call("run", job).exit_code == 0  # and what is released stays released
    assert (tmp_path / "published" / "total" / "d2.zarr").exists()


def test_the_estimators_take_it_as_a_parameter(rows: Path) -> None:
    parameters: dict[str, Any] = {"n_components": 1, "epsilon": 9, "delta": 0.002, "clip": 3}
    for data in (np.random.default_rng(7).normal(size=(ROWS, 3)), str(rows)):
        with pytest.raises(RefusedError, match="or pass accept_large_delta"):
            PrivatePCA(**parameters).fit(data)
        fitted = PrivatePCA(**parameters, accept_large_delta=True).fit(data)
        assert PrivatePCA.from_release(fitted.release_, 1).accept_large_delta


def test_an_epsilon_above_ten_is_said_in_python(rows: Path) -> None:
    for data in (np.random.default_rng(9).normal(size=(ROWS, 3)), str(rows)):
        with pytest.warns(WeakGuaranteeWarning, match="Epsilon 12 is above 10"):
            fitted = PrivateCovariance(epsilon=12, delta=1e-6, clip=3, centre="none").fit(data)
    with pytest.warns(WeakGuaranteeWarning, match="Epsilon 12"):
        PrivateCovariance.from_release(fitted.release_)
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("11", "1e-6"), 3.0)
    with pytest.warns(WeakGuaranteeWarning, match="Epsilon 11"):
        release_rows(rows, rows.with_name("a.zarr"), request)


@pytest.mark.filterwarnings("error::dpdist.core.errors.WeakGuaranteeWarning")
def test_a_warning_that_is_made_an_error_costs_nothing(rows: Path) -> None:
    with pytest.raises(WeakGuaranteeWarning):
        PrivateCovariance(epsilon=12, delta=1e-6, clip=3, centre="none").fit(str(rows))
    assert charged(rows) == 0


@pytest.mark.parametrize(("epsilon", "badge"), [("10", "private'>private"), ("12", "weak'>private, but weakly")])
def test_an_epsilon_above_ten_is_said_by_commands_and_by_the_report(rows: Path, epsilon: str, badge: str) -> None:
    path, page = rows.with_name("r.zarr"), rows.with_name("page.html")
    command = ("release", rows, path, "--epsilon", epsilon, "--delta", "1e-6", "--clip", "3")
    said, as_json, shown = call(*command), call(*command, "--json"), call("inspect", path)
    model = call("pca", path, rows.with_name("m.zarr"), "--components", "1")
    write(open_release(path), page)
    texts = [said.output, shown.output, model.output, page.read_text(), *json.loads(as_json.stdout)["cautions"]]
    assert {f"Epsilon {epsilon} is above 10" in " ".join(text.split()) for text in texts} == {epsilon == "12"}
    assert f"<span class='status {badge}</span>" in page.read_text()
    assert "cautions" not in json.loads((path / "zarr.json").read_text())["attributes"]["dpdist"]  # a format
