"""Data of older versions: the same command publishes the same bytes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from support.cli_scene import Call, tree
from support.folders import STORED, unpack

from dpdist.errors import DpdistError
from dpdist.estimators import PrivatePCA, fit
from dpdist.ingest.registered import open_rows
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.pipeline.release import release_rows
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release import trusted
from dpdist.release.artefact import open_release
from dpdist.release.request import Centring, ReleaseRequest
from dpdist.runtime.cluster import Cluster
from dpdist.storage.store import store_at

LAPLACE = ("--mechanism", "laplace", "--clip", "8")


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that version 0.1.0 left, with its release moved to ``published.zarr``.

    It holds 4 rows of 3 columns, their ledger with a budget of epsilon 3, a release by `laplace` at epsilon 1 and the
    reservation of one at epsilon 0.5 that was never drawn. `laplace` had the sensitivity ``sqrt(d(d+3)/2) C²`` then.
    """
    unpack(STORED / "laplace-0.1.0.tar.gz", tmp_path)
    (tmp_path / "release.zarr").rename(tmp_path / "published.zarr")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_release_of_an_older_version_is_published_again_and_not_drawn_with_the_noise_of_today(
    older: Path, call: Call
) -> None:
    # nobody answers at this address: nothing is read, and nothing is drawn
    nowhere = ("--scheduler", "tcp://127.0.0.1:1")
    result = call("release", "rows.zarr", "release.zarr", *LAPLACE, "--epsilon", "1", *nowhere)
    assert result.code == 0
    assert "nothing spent" in result.told
    assert tree(older / "release.zarr") == tree(older / "published.zarr")
    release = open_release(older / "release.zarr")
    assert release.noise["scale"] == 3 * 4**16  # as it was drawn, not what the same request would draw today


def test_what_an_older_version_reserved_and_never_drew_is_drawn_now_and_charged_once(
    older: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "named", False)
    before = Ledger(older / "rows.ledger")
    assert [record.state for record in before.records] == [State.PUBLISHED, State.RESERVED]
    charges = before.charges
    result = call("release", "rows.zarr", "half.zarr", *LAPLACE, "--epsilon", "0.5")
    assert result.code == 0
    now = Ledger(older / "rows.ledger")
    assert [record.state for record in now.records] == [State.PUBLISHED, State.PUBLISHED]
    assert now.charges == charges
    release = open_release(older / "half.zarr")
    assert release.guarantee is not None
    assert release.guarantee.to_json() == now.records[1].guarantee.to_json()
    assert release.noise["scale"] < 6 * 4**16


ASKED = ("--epsilon", "1", "--delta", "1e-6", "--clip", "4")
NOWHERE = ("--scheduler", "tcp://127.0.0.1:1")
"""No scheduler answers there: nothing is read or drawn."""


@pytest.fixture
def truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder from the time when rows were truncated to 16 bits, unless other bits were requested.

    It holds 60 rows of 3 columns, their ledger with a budget of epsilon 3, two releases by `gaussian`, one of them
    under a chosen id; ``job.toml``, which has released two of three periods; and the witness of both ledgers.
    """
    unpack(STORED / "truncated-1.tar.gz", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_a_command_of_before_rows_were_rounded_without_bias_publishes_what_it_published(
    truncated: Path, call: Call
) -> None:
    before = Ledger(truncated / "rows.ledger").charges
    half = ("--epsilon", "0.5", *ASKED[2:], "--id", "chosen")
    bits = (*ASKED, "--grid-bits", "16")
    for name, options in (("release.zarr", ASKED), ("chosen.zarr", half), ("release.zarr", bits)):
        result = call("release", "rows.zarr", "again.zarr", *options, *NOWHERE)
        assert (result.code, "nothing spent" in result.told) == (0, True), result.told
        assert tree(truncated / "again.zarr") == tree(truncated / name)
        assert call("release", "rows.zarr", name, *options, *NOWHERE).code == 0
        shutil.rmtree(truncated / "again.zarr")
    assert Ledger(truncated / "rows.ledger").charges == before
    release = open_release(truncated / "release.zarr")
    assert (release.bound.rule, release.bound.grid_bits, release.rounding_diagonal) == (1, 16, 0.0)


def test_an_estimator_of_before_finds_its_release_again(truncated: Path) -> None:
    before = Ledger(truncated / "rows.ledger").charges
    release = PrivatePCA(2, epsilon=1, delta="1e-6", clip=4).fit(truncated / "rows.zarr").release_
    assert np.array_equal(release.lattice, open_release(truncated / "release.zarr").lattice)
    assert (truncated / f"rows.{release.release_id}.zarr").exists()
    assert Ledger(truncated / "rows.ledger").charges == before
    shutil.rmtree(truncated / "rows.ledger")
    with pytest.raises(DpdistError, match=r"rows\.ledger"):  # and asks for no other one where its ledger is lost
        PrivatePCA(2, epsilon=1, delta="1e-6", clip=4).fit(truncated / "rows.zarr")
    request = ReleaseRequest("gaussian", PrivacyLoss.parse("1", "1e-6"), 4.0)
    model = PrivatePCA(2, epsilon=1, delta="1e-6", clip=4)
    path = fit.release_target(model, store_at(truncated / "rows.zarr"), request)
    assert path == store_at(truncated / f"rows.{release.release_id}.zarr")


def test_a_job_of_before_goes_on_rounding_as_its_first_period_was_rounded(truncated: Path, call: Call) -> None:
    shown = tree(truncated / "published")
    (truncated / "2026-01-03.npy").rename(truncated / "nights" / "2026-01-03.npy")
    assert call("run", "job.toml", "--dry-run").code == 0
    result = call("run", "job.toml")
    assert result.code == 0, result.told
    assert shown.items() <= tree(truncated / "published").items()
    total = open_release(truncated / "published" / "total" / "2026-01-03.zarr")
    assert (len(total.releases), total.rows, total.bound.rule) == (3, 120, 1)
    assert len(Ledger(truncated / "periods.ledger").records) == 3


def test_a_stored_weighted_series_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """Written by dpdist at the commit that added weights: a square root for 3 periods, after two of them."""
    unpack(STORED / "weighted-1.tar.gz", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))
    shown, charged = tree(tmp_path / "published"), Ledger("visits.ledger").charges
    assert [charge.weights for charge in charged] == [(64,), (32, 64)]
    assert open_release("published/d2.zarr").weights == (32, 64)
    result = call("run", "job.toml")
    assert result.code == 0, result.told
    assert tree(tmp_path / "published") == shown
    np.save("incoming/d3.npy", np.eye(3))
    assert call("run", "job.toml").code == 0
    assert shown.items() <= tree(tmp_path / "published").items()
    assert Ledger("visits.ledger").charges[:2] == charged
    total = open_release("published/total/d3.zarr")
    assert (len(total.releases), total.rows) == (3, 11)


def test_a_reservation_of_before_keeps_its_rule_and_one_that_was_refunded_does_not(truncated: Path) -> None:
    table, address = open_rows(truncated / "rows.zarr"), truncated / "rows.ledger"
    asked = ReleaseRequest("gaussian", PrivacyLoss.parse("0.25", "1e-6"), 4.0)
    named = replace(asked, name="kept", loss=PrivacyLoss.parse("0.2", "1e-6"))
    for request in (asked, named):
        old = trusted.MomentTransaction(request.truncating(), table, address, store_at(truncated / "other.zarr"))
        assert old.reserve() is State.RESERVED
        assert trusted.charged_request(request, table, Ledger(address)) == old.request
        old.abort()
    assert trusted.charged_request(asked, table, Ledger(address)).bound(3).rule == 2
    assert trusted.charged_request(named, table, Ledger(address)).bound(3).rule == 1  # a chosen id keeps its rule
    elsewhere = replace(asked, name="chosen")  # and for nothing else: the ledger refuses it
    assert trusted.charged_request(elsewhere, table, Ledger(address)).bound(3).rule == 2


@pytest.mark.parametrize(("clip", "name"), [(4.0, "chosen"), ("private", None)])
def test_a_release_of_before_is_known_at_its_place_where_its_ledger_is_lost(
    tmp_path: Path, call: Call, clip: float | Literal["private"], name: str | None
) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(1).normal(size=(3000, 3)))
    rows, ledger, target = (tmp_path / f"rows.{kind}" for kind in ("zarr", "ledger", "release.zarr"))
    result = call("ingest", tmp_path / "rows.npy", rows, "--budget-epsilon", "9", "--budget-delta", "1e-4")
    assert result.code == 0, result.told
    request, table = ReleaseRequest("gaussian", PrivacyLoss.parse("8", "1e-5"), clip, name=name), open_rows(rows)
    older = request.older()[-1]
    release_rows(rows, target, older)
    shutil.rmtree(ledger)
    shutil.copytree(target, tmp_path / "kept.zarr")
    assert trusted.charged_request(request, table, None, store_at(target)) == older.of_table(table)
    assert trusted.charged_request(request, table, None).rule == 2
    chosen = () if name is None else ("--id", name)
    result = call("release", rows, target, "--epsilon", "8", "--delta", "1e-5", "--clip", clip, *chosen)
    assert result.code != 0
    assert str(ledger) in result.told  # it is the ledger that is missed
    assert tree(target) == tree(tmp_path / "kept.zarr")
    other = replace(request, centring=Centring.PRIVATE)
    assert trusted.charged_request(other, table, None, store_at(target)).rule == 2
