"""By the command line, a copied pair of folders and a restored backup draw nothing a second time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.cli_scene import LOSS, Call, tree

from dpdist.ledger.ledger import Ledger
from dpdist.runtime.cluster import Cluster

RELEASE = ("release", "rows.zarr", "release.zarr", *LOSS)


@pytest.fixture(autouse=True)
def _computing_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "named", False)


@pytest.fixture
def twin(here: Path) -> Path:
    """Copy the pair of folders, ``cp -r``."""
    return Path(shutil.copytree(here, here.with_name("twin")))


def test_the_same_command_on_a_copied_pair_of_folders_is_exit_3(
    here: Path, twin: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(*RELEASE, "--id", "census").code == 0
    before = tree(twin)
    monkeypatch.chdir(twin)
    again = call(*RELEASE, "--id", "census")
    assert again.code == 3
    assert "behind its witness" in again.message
    assert "census" in again.message
    assert "Nothing was drawn" in again.message
    after = tree(twin)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} <= {
        "rows.ledger/ledger.sqlite"  # SQLite's own header; the journal is the same
    }
    assert Ledger(twin / "rows.ledger").records == []
    shown = call("ledger", "show", "rows.ledger")
    assert "BEHIND ITS WITNESS" in shown.out
    assert "census" in shown.out
    assert call("ledger", "verify", "rows.ledger").code == 3
    monkeypatch.chdir(here)
    assert call(*RELEASE, "--id", "census").code == 0
    assert call("ledger", "verify", "rows.ledger", "--release", "release.zarr").code == 0


def test_a_restored_backup_is_refused_until_it_has_adopted_what_it_misses(here: Path, call: Call) -> None:
    shutil.copytree(here / "rows.ledger", here / "backup")
    assert call(*RELEASE, "--id", "census").code == 0
    (here / "release.zarr").rename(here / "moved away.zarr")
    shutil.rmtree(here / "rows.ledger")
    (here / "backup").rename(here / "rows.ledger")
    assert call(*RELEASE, "--id", "census").code == 3
    assert not (here / "release.zarr").exists()
    adopted = call("ledger", "adopt", "rows.ledger", "--json")
    assert adopted.code == 0
    assert adopted.json["adopted"] == ["census"]
    assert call("ledger", "adopt", "rows.ledger", "--json").json["adopted"] == []
    assert "adopted    census" in call("ledger", "show", "rows.ledger").out
    refused = call(*RELEASE, "--id", "census")
    assert refused.code == 3
    assert "another copy" in refused.message
    over = call("release", "rows.zarr", "other.zarr", "--epsilon", "2", "--delta", "1e-5", "--clip", "300")
    assert over.code == 3
    assert "budget" in over.message
    assert call("release", "rows.zarr", "other.zarr", "--epsilon", ".1", "--delta", "1e-6", "--clip", "300").code == 0
    # the release at its place is the one that was committed
    (here / "moved away.zarr").rename(here / "release.zarr")
    before = tree(here / "release.zarr")
    assert call(*RELEASE, "--id", "census").code == 0
    assert tree(here / "release.zarr") == before


def test_an_adopted_release_is_verified_by_its_id(here: Path, call: Call) -> None:
    shutil.copytree(here / "rows.ledger", here / "backup")
    assert call(*RELEASE, "--id", "census").code == 0
    shutil.rmtree(here / "rows.ledger")
    (here / "backup").rename(here / "rows.ledger")
    assert call("ledger", "adopt", "rows.ledger").code == 0
    said = call("ledger", "verify", "rows.ledger", "--release", "release.zarr")
    assert said.code == 0
    assert "Guarantee: all of it together keeps the budget" in said.err


def test_a_home_that_does_not_last_is_refused_with_both_ways_out(here: Path, call: Call) -> None:
    assert call(*RELEASE).code == 0
    shutil.rmtree(here.with_name("state"))
    refused = call("release", "rows.zarr", "other.zarr", "--epsilon", ".1", "--delta", "1e-6", "--clip", "300")
    assert refused.code == 3
    assert "DPDIST_STATE_HOME" in refused.message
    assert "dpdist ledger adopt" in refused.message
    assert call(*RELEASE).code == 0  # the same bytes again need no witness
    adopted = call("ledger", "adopt", "rows.ledger")
    assert adopted.code == 0
    assert "whole budget is charged" in adopted.err
    assert call("release", "rows.zarr", "other.zarr", "--epsilon", ".1", "--delta", "1e-6", "--clip", "300").code == 3


def test_a_state_folder_that_cannot_be_written_is_told_before_anything_is_charged(here: Path, call: Call) -> None:
    here.with_name("state").write_text("in the way")
    refused = call(*RELEASE)
    assert refused.code == 4
    assert "DPDIST_STATE_HOME" in refused.message
    assert Ledger(here / "rows.ledger").records == []


def test_a_ledger_that_never_had_a_witness_says_so_once_in_words(
    here: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(*RELEASE).code == 0
    shutil.rmtree(here.with_name("state"))
    with monkeypatch.context() as patch:  # as the version before this one left it
        patch.setattr("dpdist.ledger.state.View.witnessed", False, raising=False)
        patch.setattr("dpdist.ledger.state.View.__setattr__", _deaf)
        said = call("release", "rows.zarr", "other.zarr", "--epsilon", ".1", "--delta", "1e-6", "--clip", "300")
    assert said.code == 0
    assert said.err.count("never had a witness") == 1
    assert "Warning" not in said.err


def _deaf(self: object, name: str, value: object) -> None:
    object.__setattr__(self, name, False if name == "witnessed" else value)
