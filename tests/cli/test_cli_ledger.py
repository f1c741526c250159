"""A ledger by the command line: created once, shown and verified; a copy or a restored backup draws nothing again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli_scene import BUDGET, LOSS, Call, tree

from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.opening import open_release
from dpdist.core.runtime.cluster import Cluster


@pytest.fixture
def without_ledger(here: Path) -> Path:
    """Work where ingest died before it created the ledger of the declared budget."""
    shutil.rmtree(here / "rows.ledger")
    rewrite_attributes(here / "rows.zarr", ledger_id=None)
    return here


def rewrite_attributes(rows: Path, **changes: Any) -> None:
    file = rows / "zarr.json"
    whole = json.loads(file.read_text())
    whole["attributes"]["dpdist"].update(changes)
    file.write_text(json.dumps(whole))


def test_a_ledger_is_created_with_an_exact_budget_once(without_ledger: Path, call: Call) -> None:
    rewrite_attributes(without_ledger / "rows.zarr", budget=None)
    create = ("ledger", "create", "new.ledger", "--rows", "rows.zarr")
    said = call(*create, "--budget-epsilon", "0.3", "--budget-delta", "1e-6", "--json")
    assert said.json == {"ledger": "new.ledger", "fresh": True, "epsilon_micro": 300_000, "delta_atto": 10**12}
    table = open_rows(without_ledger / "rows.zarr")
    assert (table.budget, table.ledger_id) == (PrivacyLoss(300_000, 10**12), Ledger(Path("new.ledger")).ledger_id)
    before = tree(without_ledger)
    # a second ledger of any path and budget would pay for a second draw of the same release
    second = ("ledger", "create", "second.ledger", "--rows", "rows.zarr")
    for command in (second, (*second, "--budget-epsilon", "0.3", "--budget-delta", "1e-6")):
        again = call(*command)
        assert (again.code, "has a ledger already" in again.message) == (3, True)
    assert tree(without_ledger) == before


def test_a_ledger_shows_exports_and_verifies_its_releases_and_an_altered_one_does_not(
    released: Path, call: Call
) -> None:
    release_id = open_release(released / "release.zarr").release_id
    words = " ".join(call("ledger", "show", "rows.ledger").out.split())
    assert f"published {release_id} gaussian, epsilon 1, delta 1e-06, replace-one" in words
    assert "charged 1 release left: one more release of epsilon 1." in words
    shown = call("ledger", "show", "rows.ledger", "--json").json
    assert [(entry["id"], entry["state"]) for entry in shown["releases"]] == [(release_id, "published")]
    assert (shown["charged"], len(shown["caps"])) == (1, 2)
    assert json.loads(call("ledger", "export", "rows.ledger").out) == shown
    said = call("ledger", "verify", "rows.ledger", "--json").json
    assert (said["intact"], said["releases"]) == (True, 1)
    assert said.keys() == {"ledger", "intact", "head", "releases", "guarantee"}
    assert "intact" in call("ledger", "verify", "rows.ledger").told
    [blob] = (released / "rows.ledger" / "blobs").iterdir()
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(bytes(content))
    said = call("ledger", "verify", "rows.ledger")
    assert (said.code, "altered" in said.message) == (4, True)


PARTS = ("--budget-epsilon", "2", "--budget-delta", "1e-6")
CREATE = ("ledger", "create", "new.ledger", "--rows", "rows.zarr")


def test_a_ledger_or_a_budget_that_cannot_be_is_refused_and_writes_nothing(without_ledger: Path, call: Call) -> None:
    Ledger.create(without_ledger / "other.ledger", dataset_id="0" * 32, budget=BUDGET)
    np.save("table.npy", np.zeros((3, 2)))
    assert call("ingest", "table.npy", "some.zarr", *PARTS).code == 0
    rewrite_attributes(without_ledger / "rows.zarr", budget=PrivacyLoss.declared("2", "1e-6", "0.5").to_json())
    before = tree(without_ledger)
    some, new = ("ingest", "table.npy", "some.zarr", *PARTS), ("ingest", "table.npy", "new.zarr")
    for code, words, command in (
        (2, "--budget-epsilon", (*CREATE, "--budget-delta", "1e-6")),
        (4, "Epsilon", (*CREATE, "--budget-epsilon", "0")),
        (4, "There are no rows at", (*CREATE[:-1], "nothing.zarr", "--budget-epsilon", "1")),
        (4, "does not exist", ("ledger", "create", "ledgers/new.ledger", "--rows", "rows.zarr")),
        (4, "only record of the budget", ("ledger", "create", "other.ledger", "--rows", "rows.zarr")),
        (2, "--budget-pure", (*new, *PARTS, "--budget-pure", "2.1")),
        (2, "--budget-delta-reserve", (*new, *PARTS, "--budget-delta-reserve", "2e-6")),
        (2, "--budget-pure", (*CREATE, *PARTS, "--budget-pure", "much")),
        (2, "budget", (*new, "--budget-pure", "1")),
        (2, "declared once", (*CREATE, *PARTS)),
        (2, "declared once", (*some, "--budget-pure", "1")),
    ):
        refused = call(*command)
        assert (refused.code, words in refused.message) == (code, True), command
        assert tree(without_ledger) == before
    assert call(*some).code == call(*CREATE).code == 0  # with the budget that the rows declare
    assert Ledger(without_ledger / "new.ledger").budget == PrivacyLoss.declared("2", "1e-6", "0.5")


def test_a_budget_with_parts_is_declared_and_shown_and_nothing_is_said_to_be_spent(
    without_ledger: Path, call: Call
) -> None:
    rewrite_attributes(without_ledger / "rows.zarr", budget=None)
    assert call(*CREATE, *PARTS, "--budget-pure", "0.5", "--budget-delta-reserve", "1e-7").code == 0
    budget = PrivacyLoss.declared("2", "1e-6", "0.5", "1e-7")
    assert open_rows(Path("rows.zarr")).budget == Ledger(Path("new.ledger")).budget == budget
    said = call("ledger", "show", "new.ledger")
    assert (said.code, said.err) == (0, "")
    assert max(map(len, said.out.splitlines())) <= 80
    assert "spent" not in said.out  # the guarantee for an adaptive analyst is the budget, not less
    words = " ".join(said.out.split())
    assert "with epsilon 0.5 and delta 1e-07 reserved for other than Gaussian releases" in words
    assert "charged 0 releases left: one more release of epsilon 1.5" in words
    shown = call("ledger", "show", "new.ledger", "--json").json
    assert shown["dataset_id"] == open_rows(without_ledger / "rows.zarr").dataset_id
    assert (shown["budget"]["pure_micro"], shown["charged"], shown["releases"], shown["caps"]) == (500_000, 0, [], [])


RELEASE = ("release", "rows.zarr", "release.zarr", *LOSS)
OTHER = ("release", "rows.zarr", "other.zarr", "--epsilon", ".1", "--delta", "1e-6", "--clip", "300", "--anyway")


@pytest.fixture(autouse=True)
def _computing_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "named", False)


def test_a_restored_backup_is_refused_until_it_has_adopted_what_it_misses(here: Path, call: Call) -> None:
    shutil.copytree(here / "rows.ledger", here / "backup")
    assert call(*RELEASE, "--id", "census").code == 0
    (here / "release.zarr").rename(here / "moved away.zarr")
    shutil.rmtree(here / "rows.ledger")
    (here / "backup").rename(here / "rows.ledger")
    behind = call(*RELEASE, "--id", "census")
    assert behind.code == call("ledger", "verify", "rows.ledger").code == 3
    shown = call("ledger", "show", "rows.ledger").out
    assert all(words in shown for words in ("BEHIND ITS WITNESS", "census"))
    assert not (here / "release.zarr").exists()
    assert [call("ledger", "adopt", "rows.ledger", "--json").json["adopted"] for _ in range(2)] == [["census"], []]
    assert "adopted    census" in call("ledger", "show", "rows.ledger").out
    refused = call(*RELEASE, "--id", "census")
    assert (refused.code, "another copy" in refused.message) == (3, True)
    over = call(*OTHER[:3], "--epsilon", "2", "--delta", "1e-5", "--clip", "300")
    assert (over.code, "budget" in over.message) == (3, True)
    assert call(*OTHER).code == 0
    # the release at its place is the one that was committed
    (here / "moved away.zarr").rename(here / "release.zarr")
    before = tree(here / "release.zarr")
    assert call(*RELEASE, "--id", "census").code == 0
    assert tree(here / "release.zarr") == before
    said = call("ledger", "verify", "rows.ledger", "--release", "release.zarr")
    assert (said.code, "Guarantee: all charges together stay within the budget" in said.told) == (0, True)
