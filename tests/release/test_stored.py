"""What older versions stored stays as it was: the same command publishes the same bytes, whatever changed since."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from support.cli_scene import Call, tree
from support.folders import STORED

from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.release.artefact import open_release

LAPLACE = ("--mechanism", "laplace", "--clip", "8")


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that version 0.1.0 left, with its release moved to ``published.zarr``.

    It holds 4 rows of 3 columns, their ledger with a budget of epsilon 3, a release by `laplace` at epsilon 1 and the
    reservation of one at epsilon 0.5 that was never drawn. `laplace` had the sensitivity ``sqrt(d(d+3)/2) C²`` then.
    """
    with tarfile.open(STORED / "laplace-0.1.0.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "release.zarr").rename(tmp_path / "published.zarr")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_release_of_an_older_version_is_published_again_and_not_drawn_with_the_noise_of_today(
    older: Path, call: Call
) -> None:
    # nobody answers at this address: nothing is read, and nothing is drawn
    nowhere = ("--scheduler", "tcp://127.0.0.1:1")
    said = call("release", "rows.zarr", "release.zarr", *LAPLACE, "--epsilon", "1", *nowhere)
    assert said.code == 0
    assert "nothing spent" in said.err
    assert tree(older / "release.zarr") == tree(older / "published.zarr")
    found = open_release(older / "release.zarr")
    assert found.noise["scale"] == 3 * 4**16  # as it was drawn, not what the same request would draw today


def test_what_an_older_version_reserved_and_never_drew_is_drawn_now_and_charged_once(
    older: Path, call: Call, scheduler: str
) -> None:
    before = Ledger(older / "rows.ledger")
    assert [record.state for record in before.records] == [State.PUBLISHED, State.RESERVED]
    charges = before.charges
    said = call("release", "rows.zarr", "half.zarr", *LAPLACE, "--epsilon", "0.5", "--scheduler", scheduler)
    assert said.code == 0
    now = Ledger(older / "rows.ledger")
    assert [record.state for record in now.records] == [State.PUBLISHED, State.PUBLISHED]
    assert now.charges == charges
    found = open_release(older / "half.zarr")
    assert found.guarantee is not None
    assert found.guarantee.to_json() == now.records[1].guarantee.to_json()
    assert found.noise["scale"] < 6 * 4**16
