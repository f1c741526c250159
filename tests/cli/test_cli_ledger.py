"""A ledger by the command line: created once, shown and verified; a copy or a restored backup draws nothing again."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli_scene import BUDGET, LOSS, Call, tree

from dpdist.ingest.registered import open_rows
from dpdist.ledger.ledger import Ledger
from dpdist.privacy.guarantee import PrivacyLoss
from dpdist.release.artefact import open_release
from dpdist.runtime.cluster import Cluster


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
    for code, words, command in (
        (3, "has a ledger already", second),
        (3, "has a ledger already", (*second, "--budget-epsilon", "0.3", "--budget-delta", "1e-6")),
        (2, "declared once", (*create, "--budget-epsilon", "9")),
    ):
        again = call(*command)
        assert (again.code, words in again.message) == (code, True)
    assert tree(without_ledger) == before


def test_a_ledger_that_was_created_but_not_recorded_in_its_rows_is_taken_up_and_a_lost_one_is_not_made_anew(
    here: Path, call: Call
) -> None:
    kept = Ledger(here / "rows.ledger").ledger_id
    rewrite_attributes(here / "rows.zarr", ledger_id=None)
    assert call("ledger", "create", "rows.ledger", "--rows", "rows.zarr").code == 0
    assert open_rows(here / "rows.zarr").ledger_id == kept
    shutil.rmtree(here / "rows.ledger")
    said = call("release", "rows.zarr", "release.zarr", *LOSS)
    assert (said.code, "restore it from a copy" in said.message, "ledger create" in said.message) == (3, True, False)
    assert call("ledger", "create", "rows.ledger", "--rows", "rows.zarr").code == 3
    assert not (here / "rows.ledger").exists()


def test_a_ledger_that_cannot_be_created_is_refused(without_ledger: Path, call: Call) -> None:
    Ledger.create(without_ledger / "other.ledger", dataset_id="0" * 32, budget=BUDGET)
    before = tree(without_ledger)
    for code, words, arguments in (
        (2, "--budget-epsilon", ("new.ledger", "--rows", "rows.zarr", "--budget-delta", "1e-6")),
        (4, "Epsilon", ("new.ledger", "--rows", "rows.zarr", "--budget-epsilon", "0")),
        (4, "no usable rows", ("new.ledger", "--rows", "nothing.zarr", "--budget-epsilon", "1")),
        (4, "does not exist", ("ledgers/new.ledger", "--rows", "rows.zarr")),
        (4, "only record of the budget", ("other.ledger", "--rows", "rows.zarr")),
    ):
        said = call("ledger", "create", *arguments)
        assert (said.code, words in said.message) == (code, True)
        assert tree(without_ledger) == before
    assert call("ledger", "create", "new.ledger", "--rows", "rows.zarr").code == 0  # with the budget that they declare
    assert Ledger(without_ledger / "new.ledger").budget == BUDGET


def test_a_fresh_ledger_shows_its_budget_and_that_nothing_was_spent(here: Path, call: Call) -> None:
    said = call("ledger", "show", "rows.ledger")
    assert (said.code, said.err) == (0, "")
    assert re.search(r"budget +epsilon 2, delta 1e-05", said.out)
    assert max(map(len, said.out.splitlines())) <= 80
    words = " ".join(said.out.split())
    assert "charged 0 releases left: one gaussian release of epsilon 2 at delta 1e-05 or one pure release" in words
    assert "spent" not in said.out  # the guarantee for an adaptive analyst is the budget, not less
    shown = call("ledger", "show", "rows.ledger", "--json").json
    assert shown["budget"] == {"epsilon_micro": 2_000_000, "delta_atto": 10**13}
    assert shown["dataset_id"] == open_rows(here / "rows.zarr").dataset_id
    assert (shown["charged"], shown["releases"], shown["caps"]) == (0, [], [])
    assert shown["left"]["gaussian_epsilon_micro"] == 2_000_000


def test_a_ledger_shows_exports_and_verifies_its_releases_and_an_altered_one_does_not(
    released: Path, call: Call
) -> None:
    release_id = open_release(released / "release.zarr").release_id
    words = " ".join(call("ledger", "show", "rows.ledger").out.split())
    assert f"published {release_id} gaussian, epsilon 1, delta 1e-06, replace-one" in words
    assert "charged 1 release left: one gaussian release of epsilon 1." in words
    shown = call("ledger", "show", "rows.ledger", "--json").json
    assert [(entry["id"], entry["state"]) for entry in shown["releases"]] == [(release_id, "published")]
    assert (shown["charged"], len(shown["caps"])) == (1, 2)
    assert json.loads(call("ledger", "export", "rows.ledger").out) == shown
    said = call("ledger", "verify", "rows.ledger", "--json").json
    assert (said["intact"], said["releases"]) == (True, 1)
    assert said.keys() == {"ledger", "intact", "head", "releases", "guarantee"}
    assert "intact" in call("ledger", "verify", "rows.ledger").err
    [blob] = (released / "rows.ledger" / "blobs").iterdir()
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(bytes(content))
    said = call("ledger", "verify", "rows.ledger")
    assert (said.code, "altered" in said.message) == (4, True)


def test_a_missing_or_damaged_ledger_is_exit_4(here: Path, call: Call) -> None:
    for command in ("show", "verify", "export"):
        said = call("ledger", command, "nothing.ledger")
        assert (said.code, "There is no ledger" in said.message) == (4, True)
    for content in (b"", b"garbage", b"SQLite format 3\x00garbage"):
        (here / "rows.ledger" / "ledger.sqlite").write_bytes(content)
        for command in ("show", "verify", "export"):
            said = call("ledger", command, "rows.ledger")
            assert (said.code, "damaged" in said.message) == (4, True)


PARTS = ("--budget-epsilon", "2", "--budget-delta", "1e-6")


def test_parts_of_a_budget_that_make_no_sense_or_come_second_are_usage_and_write_nothing(
    without_ledger: Path, call: Call
) -> None:
    np.save("table.npy", np.zeros((3, 2)))
    assert call("ingest", "table.npy", "some.zarr", *PARTS).code == 0
    rewrite_attributes(without_ledger / "rows.zarr", budget=PrivacyLoss.declared("2", "1e-6", "0.5").to_json())
    before = tree(without_ledger)
    create = ("ledger", "create", "new.ledger", "--rows", "rows.zarr", *PARTS)
    some, new = ("ingest", "table.npy", "some.zarr", *PARTS), ("ingest", "table.npy", "new.zarr")
    for words, command in (
        ("--budget-pure", (*new, *PARTS, "--budget-pure", "2.1")),
        ("--budget-delta-reserve", (*new, *PARTS, "--budget-delta-reserve", "2e-6")),
        ("--budget-pure", (*create, "--budget-pure", "much")),
        ("budget", (*new, "--budget-pure", "1")),
        ("declared once", create),
        ("declared once", (*some, "--budget-pure", "1")),
    ):
        refused = call(*command)
        assert (refused.code, words in refused.message) == (2, True), command
        assert tree(without_ledger) == before
    assert call(*create, "--budget-pure", "0.5").code == call(*some).code == 0


def test_a_budget_with_parts_is_declared_and_shown(without_ledger: Path, call: Call) -> None:
    rewrite_attributes(without_ledger / "rows.zarr", budget=None)
    parts = (*PARTS, "--budget-pure", "0.5", "--budget-delta-reserve", "1e-7")
    assert call("ledger", "create", "rows.ledger", "--rows", "rows.zarr", *parts).code == 0
    budget = PrivacyLoss.declared("2", "1e-6", "0.5", "1e-7")
    assert open_rows(Path("rows.zarr")).budget == Ledger(Path("rows.ledger")).budget == budget
    words = " ".join(call("ledger", "show", "rows.ledger").out.split())
    assert "with epsilon 0.5 and delta 1e-07 reserved for other than Gaussian releases" in words
    assert "charged 0 releases left: one gaussian release of epsilon 1.5" in words
    assert call("ledger", "show", "rows.ledger", "--json").json["budget"]["pure_micro"] == 500_000


RELEASE = ("release", "rows.zarr", "release.zarr", *LOSS)
OTHER = ("release", "rows.zarr", "other.zarr", "--epsilon", ".1", "--delta", "1e-6", "--clip", "300")


@pytest.fixture(autouse=True)
def _computing_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "named", False)


def test_the_same_command_on_a_copied_pair_of_folders_is_exit_3(
    here: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = Path(shutil.copytree(here, here.with_name("twin")))
    assert call(*RELEASE, "--id", "census").code == 0
    before = tree(twin)
    monkeypatch.chdir(twin)
    again = call(*RELEASE, "--id", "census")
    assert again.code == 3
    assert all(words in again.message for words in ("behind its witness", "census", "Nothing was drawn"))
    after = tree(twin)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} <= {
        "rows.ledger/ledger.sqlite"  # SQLite's own header; the journal is the same
    }
    assert Ledger(twin / "rows.ledger").records == []
    shown = call("ledger", "show", "rows.ledger").out
    assert all(words in shown for words in ("BEHIND ITS WITNESS", "census"))
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
    assert [call("ledger", "adopt", "rows.ledger", "--json").json["adopted"] for _ in range(2)] == [["census"], []]
    assert "adopted    census" in call("ledger", "show", "rows.ledger").out
    refused = call(*RELEASE, "--id", "census")
    assert (refused.code, "another copy" in refused.message) == (3, True)
    over = call(*OTHER, "--epsilon", "2", "--delta", "1e-5")
    assert (over.code, "budget" in over.message) == (3, True)
    assert call(*OTHER).code == 0
    # the release at its place is the one that was committed
    (here / "moved away.zarr").rename(here / "release.zarr")
    before = tree(here / "release.zarr")
    assert call(*RELEASE, "--id", "census").code == 0
    assert tree(here / "release.zarr") == before
    said = call("ledger", "verify", "rows.ledger", "--release", "release.zarr")
    assert (said.code, "Guarantee: all charges together keep the budget" in said.err) == (0, True)
