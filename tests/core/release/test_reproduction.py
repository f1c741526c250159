"""Mechanisms whose claim is not proved, subspaces, and releases by products, from the command to the artefact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.cli_scene import Call, Said

from dpdist.core.ledger.ledger import Ledger
from dpdist.core.moment import gram
from dpdist.core.options import Amount, Clip, RequestOptions
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.opening import open_release
from dpdist.core.release.parse import request_from
from dpdist.core.rows import dataset
from dpdist.core.runtime.cluster import Cluster

TWO = "--option components=2 --option iterations=2"
ROWS = np.random.default_rng(5).normal(size=(400, 4)) * [8, 4, 1, 1]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Cluster, "named", False)
    monkeypatch.setattr(dataset, "_TARGET_CHUNK", ROWS[:60].nbytes)  # several chunks
    np.save(tmp_path / "rows.npy", ROWS)
    ingest_rows(tmp_path / "rows.npy", tmp_path / "rows.zarr", budget=PrivacyLoss.parse("100000", "1e-3"))
    ingest_rows(tmp_path / "rows.npy", tmp_path / "plain.zarr")  # without a budget
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(
    call: Call, mechanism: str, *options: str, epsilon: int = 1, rows: str = "rows.zarr", to: str = "release.zarr"
) -> Said:
    return call("release", rows, to, "--epsilon", epsilon, "--clip", "20", "--mechanism", mechanism, *options)


def exact() -> npt.NDArray[np.float64]:
    rows = ROWS * np.minimum(1, 20 / np.linalg.norm(ROWS, axis=1, keepdims=True))
    product: npt.NDArray[np.float64] = rows.T @ rows
    return product


def test_what_is_not_private_as_claimed_or_makes_no_sense_is_refused_and_costs_nothing(here: Path, call: Call) -> None:
    head = Ledger(here / "rows.ledger").head
    result = asked(call, "sn")
    assert result.code == 3
    for words in ("published as epsilon 1, delta 0", "delta 0.6321", "two-sided-wishart"):  # 1 - exp(-1)
        assert words in result.told
    for words, options in (
        ("private as claimed", "two-sided-wishart --for-reproduction"),
        ("not charged to a ledger", "sn --for-reproduction --ledger rows.ledger"),
        ("cannot have a chosen id", "sn --for-reproduction --id week"),
        ("no option 'colour'", "two-sided-wishart --option colour=red"),
        ("components", "bingham"),
        ("components", "bingham --option components=5"),
        ("given once", "bingham --option components=1 --option components=2"),
        ("NAME=VALUE", "bingham --option components"),
        ("mean", "bingham --option components=1 --centre private"),
        ("--trusted worker", f"power {TWO} --option route=products --trusted worker"),
    ):
        result = asked(call, *options.split())
        assert (result.code, words in result.told) == (2, True), result.told
    assert Ledger(here / "rows.ledger").head == head
    assert not (here / "release.zarr").exists()


def test_a_reproduction_says_that_it_is_one(here: Path, call: Call) -> None:
    result = asked(call, "sn", "--for-reproduction", "--json", rows="plain.zarr", to="sn.zarr")
    assert result.code == 0, result.told
    assert result.json["status"] == "not private as claimed"
    attributes = json.loads((here / "sn.zarr" / "zarr.json").read_text())["attributes"]["dpdist"]
    assert attributes["status"] == "not private as claimed"
    assert attributes["claim"] == {"epsilon_micro": 10**6, "delta_atto": 0}
    assert attributes["guarantee"]["delta_atto"] > 0.63e18
    assert not open_release(here / "sn.zarr").private_as_claimed
    result = asked(call, "sn", "--for-reproduction", rows="plain.zarr", to="sn.zarr")  # again: it is there
    assert result.code == 0
    assert "NOT PRIVATE AS CLAIMED" in result.told
    assert asked(call, "none", "--for-reproduction", rows="plain.zarr", to="none.zarr").code == 0
    release = open_release(here / "none.zarr")
    assert release.guarantee is None
    model = call("pca", "none.zarr", "model.zarr", "--components", 2)
    assert "NOT PRIVATE AS CLAIMED" in " ".join(model.told.split())
    for path in ("none.zarr", "model.zarr"):
        assert "NOT PRIVATE AS CLAIMED: do not publish it" in " ".join(call("inspect", path).out.split())
    # 400 rows, each within four steps of 20/2^16 of its place
    assert np.allclose(release.second_moment, exact(), atol=400 * 2 * 20 * 4 * 20 / 2**16)


@pytest.mark.parametrize("route", ["moment", "products"])
def test_a_subspace_goes_through_the_whole_pipeline(
    here: Path, call: Call, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    def formed(*_: Any) -> None:
        pytest.fail("the d x d moment was formed")

    if route == "products":
        for kind in (gram._Floats, gram._Integers):
            monkeypatch.setattr(kind, "add", formed)
    options = ("--option", "components=2", "--option", "iterations=8", "--option", f"route={route}", "--json")
    result = asked(call, "power", *options, epsilon=10000)
    assert result.code == 0, result.told
    assert result.json["status"] == "private"
    subspace = open_release(here / "release.zarr").subspace
    assert subspace is not None
    assert subspace.shape == (2, 4)
    _, vectors = np.linalg.eigh(exact())
    assert np.linalg.norm(subspace @ vectors[:, -2:]) ** 2 > 2 - 1e-3
    assert len(Ledger(here / "rows.ledger").records) == 1
    result = call("pca", "release.zarr", "model.zarr", "--components", "2", "--json")
    assert (result.code, result.json["eigenvalues"]) == (0, None)
    assert call("project", "rows.zarr", "model.zarr", "scores.zarr").code == 0
    assert call("pca", "release.zarr", "more.zarr", "--components", "3").code == 2


def test_noise_with_a_mean_does_not_bias_the_number_of_rows(here: Path, call: Call) -> None:
    more = ("--delta", "1e-6", "--neighbours", "add-remove", "--centre", "private")
    result = asked(call, "wishart", *more, epsilon=1000)
    assert result.code == 0, result.told
    release = open_release(here / "release.zarr")
    assert release.row_count == pytest.approx(len(ROWS), abs=5)  # the mean of the noise alone is more than that
    assert release.noise["mean_diagonal"] / release.bound.constant**2 > 5


def test_directions_of_noise_come_from_a_release_that_was_paid_for(here: Path, call: Call) -> None:
    def directed(to: str, first: str, *more: str) -> Said:
        options = ("rows=400", "allocation=binary", f"directions={first}")
        return asked(call, "mvg", "--delta", "1e-6", *(f"--option={option}" for option in options), *more, to=to)

    assert asked(call, "gaussian", "--delta", "1e-6", to="first.zarr").code == 0
    assert directed("second.zarr", "first.zarr").code == 0
    assert len(Ledger(here / "rows.ledger").records) == 2  # both are charged
    options = {"rows": "400", "directions": "first.zarr"}
    request = RequestOptions(epsilon=Amount(1), delta=Amount("1e-6"), clip=Clip(20), mechanism="mvg", options=options)
    directions = np.array(request_from(request, here).options["directions"])
    vectors = np.linalg.eigh(open_release(here / "first.zarr").second_moment)[1].T[::-1]
    assert np.abs(directions @ vectors.T) == pytest.approx(np.eye(4), abs=1e-6)
    result = directed("second.zarr", "first.zarr", "--json")
    assert (result.code, result.json["fresh"]) == (0, False)
    assert len(Ledger(here / "rows.ledger").records) == 2

    assert asked(call, "power", "--delta", "1e-6", *TWO.split(), to="subspace.zarr").code == 0
    assert asked(call, "none", "--for-reproduction", rows="plain.zarr", to="none.zarr").code == 0
    head = Ledger(here / "rows.ledger").head
    for other, reason in (("subspace", "released components, not a second moment"), ("none", "not private as claimed"),
                          ("rows", "rows.zarr holds a table of private rows")):  # fmt: skip
        result = directed("third.zarr", f"{other}.zarr")
        assert result.code in {2, 4}
        assert reason in result.told
    assert Ledger(here / "rows.ledger").head == head
