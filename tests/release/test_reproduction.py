"""Mechanisms whose claim is not proved, subspaces, and releases by products, from the command to the artefact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpdist import cli
from dpdist.ledger.ledger import Ledger
from dpdist.moment import gram
from dpdist.options import Amount, Clip, RequestOptions
from dpdist.pipeline import budget
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release.artefact import open_release
from dpdist.release.parse import request_from
from dpdist.rows import dataset

ROWS = np.random.default_rng(5).normal(size=(400, 4)) * [8, 4, 1, 1]
COMMON = ("--epsilon", "1", "--clip", "20")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", ROWS[:60].nbytes)  # several chunks
    np.save(tmp_path / "rows.npy", ROWS)
    budget.ingest_rows(tmp_path / "rows.npy", tmp_path / "rows.zarr", budget=PrivacyLoss.parse("100000", "1e-3"))
    budget.ingest_rows(tmp_path / "rows.npy", tmp_path / "plain.zarr")  # without a budget
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Run:
    """Runs a command in this process and keeps what it said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scheduler: str) -> None:
        self._monkeypatch, self._capsys, self._scheduler = monkeypatch, capsys, scheduler

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        cluster = ("--scheduler", self._scheduler) if arguments[0] in {"release", "project"} else ()
        self._monkeypatch.setattr("sys.argv", ["dpdist", *map(str, arguments), *cluster])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        said = self._capsys.readouterr()
        return int(stop.value.code or 0), said.out, said.err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scheduler: str) -> Run:
    return Run(monkeypatch, capsys, scheduler)


def exact() -> npt.NDArray[np.float64]:
    rows = ROWS * np.minimum(1, 20 / np.linalg.norm(ROWS, axis=1, keepdims=True))
    product: npt.NDArray[np.float64] = rows.T @ rows
    return product


def test_what_is_not_private_as_claimed_is_refused_with_the_truth_and_what_to_take(here: Path, run: Run) -> None:
    head = Ledger(here / "rows.ledger").head
    code, _, said = run("release", "rows.zarr", "release.zarr", *COMMON, "--mechanism", "sn")
    assert code == 3
    assert "published as epsilon 1, delta 0" in said
    assert "delta 0.6321" in said  # 1 - exp(-1)
    assert "two-sided-wishart" in said
    assert Ledger(here / "rows.ledger").head == head
    assert not (here / "release.zarr").exists()


def test_a_reproduction_touches_no_ledger_and_says_what_it_is(here: Path, run: Run) -> None:
    head = Ledger(here / "rows.ledger").head
    command = ("release", "plain.zarr", "sn.zarr", *COMMON, "--mechanism", "sn", "--for-reproduction")
    code, out, said = run(*command, "--json")
    assert code == 0, said
    assert json.loads(out)["status"] == "not private as claimed"
    attributes = json.loads((here / "sn.zarr" / "zarr.json").read_text())["attributes"]["dpdist"]
    assert attributes["status"] == "not private as claimed"
    assert attributes["claim"] == {"epsilon_micro": 10**6, "delta_atto": 0}
    assert attributes["guarantee"]["delta_atto"] > 0.63e18
    assert not open_release(here / "sn.zarr").private_as_claimed
    code, _, said = run(*command)  # again: it is there
    assert code == 0
    assert "NOT PRIVATE AS CLAIMED" in said
    assert Ledger(here / "rows.ledger").head == head


def test_without_noise_the_moment_is_the_exact_one_and_marked(here: Path, run: Run) -> None:
    code, _, said = run("release", "plain.zarr", "none.zarr", *COMMON, "--mechanism", "none", "--for-reproduction")
    assert code == 0, said
    release = open_release(here / "none.zarr")
    assert release.guarantee is None
    assert "NOT PRIVATE AS CLAIMED" in run("pca", "none.zarr", "model.zarr", "--components", 2)[2]
    # 400 rows, each within four steps of 20/2^16 of its place
    assert np.allclose(release.second_moment, exact(), atol=400 * 2 * 20 * 4 * 20 / 2**16)


def test_bad_parameters_are_usage_and_cost_nothing(here: Path, run: Run) -> None:
    head = Ledger(here / "rows.ledger").head
    for words, options in (
        ("private as claimed", "two-sided-wishart --for-reproduction"),
        ("no ledger", "sn --for-reproduction --ledger rows.ledger"),
        ("no chosen id", "sn --for-reproduction --id week"),
        ("no option 'colour'", "two-sided-wishart --option colour=red"),
        ("components", "bingham"),
        ("components", "bingham --option components=5"),
        ("components", "bingham --option components=two"),
        ("once each", "bingham --option components=1 --option components=2"),
        ("NAME=VALUE", "bingham --option components"),
        ("mean", "bingham --option components=1 --centre private"),
        ("arithmetic", "two-sided-wishart --arithmetic float"),
        ("takes no delta", "two-sided-wishart --delta 1e-6"),
        ("needs a positive delta", "gaussian"),
    ):
        code, _, said = run("release", "rows.zarr", "release.zarr", *COMMON, "--mechanism", *options.split())
        assert (code, words in said) == (2, True), said
    assert Ledger(here / "rows.ledger").head == head
    assert not (here / "release.zarr").exists()


@pytest.mark.parametrize("route", ["moment", "products"])
def test_a_subspace_goes_through_the_whole_pipeline(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    def formed(*_: Any) -> None:
        pytest.fail("the d x d moment was formed")

    if route == "products":
        for kind in (gram._Floats, gram._Integers):
            monkeypatch.setattr(kind, "add", formed)
    options = ("--option", "components=2", "--option", "iterations=8", "--option", f"route={route}")
    command = ("release", "rows.zarr", "power.zarr", "--epsilon", "10000", "--clip", "20", "--mechanism", "power")
    code, out, said = run(*command, *options, "--json")
    assert code == 0, said
    assert json.loads(out)["status"] == "private"
    found = open_release(here / "power.zarr").subspace
    assert found is not None
    assert found.shape == (2, 4)
    _, vectors = np.linalg.eigh(exact())
    assert np.linalg.norm(found @ vectors[:, -2:]) ** 2 > 2 - 1e-3
    assert len(Ledger(here / "rows.ledger").records) == 1
    code, out, said = run("pca", "power.zarr", "model.zarr", "--components", "2", "--json")
    assert (code, json.loads(out)["eigenvalues"]) == (0, None)
    assert run("project", "rows.zarr", "model.zarr", "scores.zarr")[0] == 0
    assert run("pca", "power.zarr", "more.zarr", "--components", "3")[0] == 2


def test_products_are_not_multiplied_by_a_trusted_worker(here: Path, run: Run) -> None:
    options = ("--option", "components=2", "--option", "iterations=2", "--option", "route=products")
    code, _, said = run(
        "release", "rows.zarr", "power.zarr", *COMMON, "--mechanism", "power", *options, "--trusted", "worker"
    )
    assert code == 2
    assert "--trusted worker" in said
    assert not Ledger(here / "rows.ledger").records


@pytest.mark.usefixtures("here")
def test_a_slow_draw_shows_how_far_it_is_and_a_fast_one_shows_nothing(run: Run) -> None:
    code, _, said = run("release", "rows.zarr", "nuclear.zarr", *COMMON, "--mechanism", "nuclear")
    assert code == 0, said
    assert "Drawing noise" in said
    _, _, said = run("release", "rows.zarr", "wishart.zarr", *COMMON)
    assert "Drawing noise" not in said


def test_noise_with_a_mean_biases_neither_the_number_of_rows_nor_the_mean(here: Path, run: Run) -> None:
    options = ("--delta", "1e-6", "--mechanism", "wishart", "--neighbours", "add-remove", "--centre", "private")
    code, _, said = run("release", "rows.zarr", "w.zarr", "--epsilon", "1000", "--clip", "20", *options)
    assert code == 0, said
    count = open_release(here / "w.zarr").row_count
    assert count == pytest.approx(len(ROWS), abs=5)  # the mean of the noise alone is more than that
    assert open_release(here / "w.zarr").noise["mean_diagonal"] / open_release(here / "w.zarr").bound.constant ** 2 > 5


def test_directions_of_noise_come_from_a_release_that_was_paid_for(here: Path, run: Run) -> None:
    loss = ("--epsilon", "1", "--delta", "1e-6", "--clip", "20")
    assert run("release", "rows.zarr", "first.zarr", *loss)[0] == 0
    directional = ("--mechanism", "mvg", "--option", "rows=400", "--option", "allocation=binary", "--option")
    command = ("release", "rows.zarr", "second.zarr", *loss, *directional)
    assert run(*command, "directions=first.zarr")[0] == 0
    assert len(Ledger(here / "rows.ledger").records) == 2  # both are charged
    asked = RequestOptions(
        epsilon=Amount(1), delta=Amount("1e-6"), clip=Clip(20), mechanism="mvg",
        options={"rows": "400", "directions": "first.zarr"},
    )  # fmt: skip
    found = np.array(request_from(asked, here).options["directions"])
    vectors = np.linalg.eigh(open_release(here / "first.zarr").second_moment)[1].T[::-1]
    assert np.abs(found @ vectors.T) == pytest.approx(np.eye(4), abs=1e-6)
    code, out, _ = run(*command, "directions=first.zarr", "--json")
    assert (code, json.loads(out)["fresh"]) == (0, False)
    assert len(Ledger(here / "rows.ledger").records) == 2

    subspace = ("--mechanism", "power", "--option", "components=2", "--option", "iterations=2")
    assert run("release", "rows.zarr", "subspace.zarr", *loss, *subspace)[0] == 0
    assert run("release", "plain.zarr", "none.zarr", *COMMON, "--mechanism", "none", "--for-reproduction")[0] == 0
    head = Ledger(here / "rows.ledger").head
    command = ("release", "rows.zarr", "third.zarr", *loss, *directional)
    for other, reason in (("subspace", "released components, and no second moment"), ("none", "not private as claimed"),
                          ("rows", "There is no release at rows.zarr")):  # fmt: skip
        code, _, said = run(*command, f"directions={other}.zarr")
        assert code in {2, 4}
        assert reason in said
    assert Ledger(here / "rows.ledger").head == head
