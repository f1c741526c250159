"""A ledger by the command line is created once, shown and verified; none that was lost or damaged is made anew."""

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
    assert said.code == 0
    assert said.json == {"ledger": "new.ledger", "fresh": True, "epsilon_micro": 300_000, "delta_atto": 10**12}
    table = open_rows(without_ledger / "rows.zarr")
    assert (table.budget, table.ledger_id) == (PrivacyLoss(300_000, 10**12), Ledger(Path("new.ledger")).ledger_id)
    before = tree(without_ledger)
    # a second ledger, wherever it stands and whatever its budget, would pay for a second draw of the same release
    second = ("ledger", "create", "second.ledger", "--rows", "rows.zarr")
    for same in ((), ("--budget-epsilon", "0.3", "--budget-delta", "1e-6")):
        again = call(*second, *same)
        assert again.code == 3
        assert "has a ledger already" in again.message
    for command in (create, second):
        again = call(*command, "--budget-epsilon", "9")
        assert again.code == 2
        assert "declared once" in again.message
    assert tree(without_ledger) == before


def test_a_ledger_without_a_budget_takes_the_one_the_rows_declare(without_ledger: Path, call: Call) -> None:
    refused = call("ledger", "create", "new.ledger", "--rows", "rows.zarr", "--budget-epsilon", "9")
    assert refused.code == 2
    assert "declared once" in refused.message
    said = call("ledger", "create", "new.ledger", "--rows", "rows.zarr")
    assert said.code == 0
    assert Ledger(without_ledger / "new.ledger").budget == BUDGET
    assert Ledger(without_ledger / "new.ledger").dataset_id == open_rows(without_ledger / "rows.zarr").dataset_id


def test_a_ledger_that_was_created_but_not_recorded_in_its_rows_is_taken_up(here: Path, call: Call) -> None:
    kept = Ledger(here / "rows.ledger").ledger_id
    rewrite_attributes(here / "rows.zarr", ledger_id=None)
    assert call("ledger", "create", "rows.ledger", "--rows", "rows.zarr").code == 0
    assert open_rows(here / "rows.zarr").ledger_id == kept


def test_a_lost_ledger_is_asked_for_and_not_created_anew(here: Path, call: Call) -> None:
    shutil.rmtree(here / "rows.ledger")
    said = call("release", "rows.zarr", "release.zarr", *LOSS)
    assert said.code == 3
    assert "restore it from a copy" in said.message
    assert "ledger create" not in said.message
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
        (4, "only record of what was spent", ("other.ledger", "--rows", "rows.zarr")),
    ):
        said = call("ledger", "create", *arguments)
        assert (said.code, words in said.message) == (code, True)
        assert tree(without_ledger) == before


def test_a_fresh_ledger_shows_its_budget_and_that_nothing_was_spent(here: Path, call: Call) -> None:
    said = call("ledger", "show", "rows.ledger")
    assert (said.code, said.err) == (0, "")
    assert re.search(r"budget +epsilon 2, delta 1e-05", said.out)
    assert max(map(len, said.out.splitlines())) <= 80
    words = " ".join(said.out.split())
    assert "charged 0 releases left: one gaussian release of epsilon 2 at delta 1e-05 or one pure release" in words
    assert "spent" not in said.out  # an analyst who adapts is promised the budget, and nothing less
    shown = call("ledger", "show", "rows.ledger", "--json").json
    assert shown["budget"] == {"epsilon_micro": 2_000_000, "delta_atto": 10**13}
    assert shown["dataset_id"] == open_rows(here / "rows.zarr").dataset_id
    assert (shown["charged"], shown["releases"], shown["caps"]) == (0, [], [])
    assert shown["left"]["gaussian_epsilon_micro"] == 2_000_000


def test_a_ledger_shows_and_exports_its_releases(released: Path, call: Call) -> None:
    release_id = open_release(released / "release.zarr").release_id
    said = call("ledger", "show", "rows.ledger")
    words = " ".join(said.out.split())
    assert f"published {release_id} gaussian, epsilon 1, delta 1e-06, replace-one" in words
    assert "charged 1 release left: one gaussian release of epsilon 1." in words
    shown = call("ledger", "show", "rows.ledger", "--json").json
    assert [(entry["id"], entry["state"]) for entry in shown["releases"]] == [(release_id, "published")]
    assert shown["charged"] == 1
    assert len(shown["caps"]) == 2
    exported = call("ledger", "export", "rows.ledger")
    assert exported.code == 0
    assert json.loads(exported.out) == shown


def test_a_ledger_is_verified_and_an_altered_one_is_not(released: Path, call: Call) -> None:
    said = call("ledger", "verify", "rows.ledger", "--json")
    assert said.json["intact"] is True
    assert said.json["releases"] == 1
    assert "intact" in call("ledger", "verify", "rows.ledger").err
    [blob] = (released / "rows.ledger" / "blobs").iterdir()
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(bytes(content))
    said = call("ledger", "verify", "rows.ledger")
    assert said.code == 4
    assert "altered" in said.message


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_a_missing_or_damaged_ledger_is_exit_4(here: Path, call: Call, command: str) -> None:
    said = call("ledger", command, "nothing.ledger")
    assert (said.code, "There is no ledger" in said.message) == (4, True)
    for content in (b"", b"garbage", b"SQLite format 3\x00garbage"):
        (here / "rows.ledger" / "ledger.sqlite").write_bytes(content)
        said = call("ledger", command, "rows.ledger")
        assert (said.code, "damaged" in said.message) == (4, True)


# --- parts of a budget --------------------------------------------------------------------------------------------


PARTS = ("--budget-epsilon", "2", "--budget-delta", "1e-6")


def test_parts_of_a_budget_that_make_no_sense_are_usage_and_write_nothing(without_ledger: Path, call: Call) -> None:
    rewrite_attributes(without_ledger / "rows.zarr", budget=None)
    np.save(without_ledger / "table.npy", np.zeros((3, 2)))
    before = tree(without_ledger)
    create = ("ledger", "create", "new.ledger", "--rows", "rows.zarr")
    for more in (("--budget-pure", "2.1"), ("--budget-pure", "much"), ("--budget-delta-reserve", "2e-6")):
        for command in (create, ("ingest", "table.npy", "new.zarr")):
            refused = call(*command, *PARTS, *more)
            assert (refused.code, more[0] in refused.message) == (2, True)
        assert call("ingest", "table.npy", "new.zarr", *more).code == 2  # parts of no budget
    assert call("ingest", "table.npy", "new.zarr", "--budget-epsilon", "2", "--budget-pure", "1").code == 2
    assert "--budget-epsilon" in call(*create).message  # none is declared
    assert tree(without_ledger) == before


def test_a_budget_with_parts_is_declared_once_and_shown(without_ledger: Path, call: Call) -> None:
    rewrite_attributes(without_ledger / "rows.zarr", budget=None)
    np.save(without_ledger / "table.npy", np.zeros((3, 2)))
    parts = (*PARTS, "--budget-pure", "0.5", "--budget-delta-reserve", "1e-7")
    assert call("ingest", "table.npy", "new.zarr", *parts).code == 0
    budget = PrivacyLoss.declared("2", "1e-6", "0.5", "1e-7")
    assert open_rows(Path("new.zarr")).budget == Ledger(Path("new.ledger")).budget == budget
    assert call("ledger", "create", "rows.ledger", "--rows", "rows.zarr", *parts).code == 0
    assert open_rows(Path("rows.zarr")).budget == budget
    shown = call("ledger", "show", "rows.ledger")
    words = " ".join(shown.out.split())
    assert "of which epsilon 0.5 and delta 1e-07 are for other than Gaussian releases" in words
    assert "charged 0 releases left: one gaussian release of epsilon 1.5" in words
    assert call("ledger", "show", "rows.ledger", "--json").json["budget"]["pure_micro"] == 500_000


def test_a_second_declaration_is_usage_and_writes_nothing(without_ledger: Path, call: Call) -> None:
    np.save("table.npy", np.zeros((3, 2)))
    assert call("ingest", "table.npy", "none.zarr").code == 0
    assert call("ingest", "table.npy", "some.zarr", *PARTS).code == 0
    rewrite_attributes(without_ledger / "rows.zarr", budget=PrivacyLoss.declared("2", "1e-6", "0.5").to_json())
    before = tree(without_ledger)
    create = ("ledger", "create", "new.ledger", "--rows", "rows.zarr", *PARTS)
    some = ("ingest", "table.npy", "some.zarr")
    for command in (
        create, (*create, "--budget-pure", "0.6"), ("ingest", "table.npy", "none.zarr", *PARTS),
        (*some, "--budget-epsilon", "3"), (*some, *PARTS, "--budget-pure", "1"),
    ):  # fmt: skip
        refused = call(*command)
        assert (refused.code, "declared once" in refused.message) == (2, True)
        assert tree(without_ledger) == before
    assert call(*create, "--budget-pure", "0.5").code == call(*some, *PARTS).code == 0


# --- an analyst who adapts --------------------------------------------------------------------------------------------


def test_an_analyst_who_chooses_his_second_release_by_the_first_is_refused_in_one_branch(
    without_ledger: Path, call: Call, scheduler: str
) -> None:
    """Before caps both branches were granted, and choosing between them had 1.73 times the budget's delta."""
    rewrite_attributes(without_ledger / "rows.zarr", budget=None)
    budget = ("--budget-epsilon", "1.1", "--budget-delta", "1e-6")
    assert call("ledger", "create", "books.ledger", "--rows", "rows.zarr", *budget).code == 0
    where = ("--ledger", "books.ledger", "--scheduler", scheduler, "--neighbours", "add-remove", "--clip", "300")
    first = ("--epsilon", "0.1", "--delta", "1e-6")
    assert call("release", "rows.zarr", "first.zarr", *first, *where).code == 0
    branch_a = ("--mechanism", "two-sided-wishart", "--epsilon", "1")
    refused = call("release", "rows.zarr", "a.zarr", *branch_a, *where)
    assert refused.code == 3
    assert "set apart before the first release (--budget-pure, --budget-delta-reserve)" in refused.message
    assert "left: one gaussian release of epsilon 1.093 at delta 1e-06" in refused.message
    assert not Path("a.zarr").exists()
    branch_b = ("--epsilon", "1.093", "--delta", "1e-6")
    assert call("release", "rows.zarr", "b.zarr", *branch_b, *where).code == 0
    shown = call("ledger", "show", "books.ledger")
    assert "charged 2 releases" in shown.out
    assert "spent" not in shown.out
