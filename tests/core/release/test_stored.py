"""What versions before 0.1.0 stored is refused in one sentence, and what they spent can be declared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.cli_scene import Call, tree
from support.folders import STORED, unpack
from support.samples import SAMPLES

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.journal import ORIGIN
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.pipeline.budget import create_ledger
from dpdist.core.pipeline.sources import ingest_rows
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.opening import open_release

ASKED = ("--epsilon", "1", "--delta", "1e-6", "--clip", "4")
SPENT = PrivacyLoss.parse("1.75", "2e-6")


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder from the time when rows were truncated to the grid.

    It holds 60 rows of 3 columns, their ledger with a budget of epsilon 3, two releases by `gaussian`, one of them
    under a chosen id; ``job.toml``, which has released two of three periods; and the witness of both ledgers.
    """
    unpack(STORED / "older.tar.gz", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("inspect release.zarr", "is of a version before 0.1.0"),
        ("pca release.zarr model.zarr", "is of a version before 0.1.0"),
        ("combine sum.zarr release.zarr chosen.zarr", "is of a version before 0.1.0"),
        ("ledger show rows.ledger", "--spent EPSILON,DELTA"),
        ("ledger verify rows.ledger", "--spent EPSILON,DELTA"),
        ("release rows.zarr again.zarr --epsilon 1 --delta 1e-6 --clip 4", "--spent EPSILON,DELTA"),
        ("run job.toml", "--spent EPSILON,DELTA"),
    ],
)
def test_what_older_versions_stored_is_refused_in_one_paragraph(older: Path, call: Call, line: str, said: str) -> None:
    before = tree(older)
    done = call(*line.split())
    assert done.code == DataError.exit_code
    assert done.out == ""
    (message,) = done.err.splitlines()
    assert said in message
    notes = ("lock", "state/runs")  # how the run ended is noted
    assert {name: read for name, read in tree(older).items() if not any(each in name for each in notes)} == before


CREATE = ("ledger", "create", "new.ledger", "--rows", "new.zarr", "--budget-epsilon", "3", "--budget-delta", "1e-5")
STATED = "the releases before this ledger cost epsilon 1.75, delta 2e-06 at most under its neighbouring relation"


@pytest.mark.usefixtures("older")
def test_what_an_older_ledger_spent_is_declared_for_rows_that_are_ingested_again(call: Call) -> None:
    np.save("table.npy", np.arange(180.0).reshape(60, 3) % 7)
    assert call("ingest", "table.npy", "new.zarr").code == 0
    assert call(*CREATE, "--spent", "3,1e-6").code == UsageError.exit_code  # nothing is left
    assert not Path("new.ledger").exists()
    for _ in range(2):
        assert call(*CREATE, "--spent", "1.75,2e-6").code == 0
    assert call(*CREATE, "--spent", "1.7,2e-6").code == UsageError.exit_code  # it was stated otherwise
    ledger = Ledger("new.ledger")
    left = PrivacyLoss.parse("1.25", "8e-6")
    assert (ledger.declared, ledger.spent, ledger.budget) == (PrivacyLoss.parse("3", "1e-5"), SPENT, left)
    assert call("ledger", "show", "new.ledger", "--json").json["spent"] == SPENT.to_json()
    assert f"if {STATED}, as was stated" in " ".join(call("ledger", "show", "new.ledger").out.split())
    assert call("release", "new.zarr", "more.zarr", "--epsilon", "1.5", *ASKED[2:]).code == RefusedError.exit_code
    done = call("release", "new.zarr", "again.zarr", *ASKED)
    assert (done.code, STATED in done.out) == (0, True), done.told
    assert open_release("again.zarr").condition == f"{STATED}, as was stated"
    larger = ("--budget-epsilon", "4", "--budget-delta", "1e-5", "--regardless-of-answers")
    done = call("ledger", "raise", "new.ledger", *larger)
    assert done.code == 0, done.told
    assert (ledger.declared.epsilon, ledger.budget.epsilon) == (4, 2.25)
    shown = " ".join(call("ledger", "show", "new.ledger").out.split())
    assert f"{STATED}, as was stated, and the budget was raised from epsilon 3, delta 1e-05 to epsilon 4" in shown


@pytest.mark.usefixtures("older")
def test_no_statement_replaces_the_ledger_of_rows_whatever_stands_beside_them(call: Call) -> None:
    """A second ledger is a second draw of the same release: not even a ledger that nobody can read is replaced."""
    create = ("ledger", "create", "another.ledger", "--spent", "0.000001", "--rows")
    assert call(*create, "rows.zarr").code == RefusedError.exit_code  # its ledger is of an older version
    np.save("table.npy", np.ones((60, 3)))
    assert call("ingest", "table.npy", "new.zarr", "--budget-epsilon", "3").code == 0
    with Ledger("new.ledger")._locked() as (view, transaction):  # somebody appends what another version may write
        first = transaction.read(0, ORIGIN)[0][0]
        transaction.append({**first, "format": "dpdist-ledger/0"}, view.after, view.head)
    assert call(*create, "new.zarr").code == RefusedError.exit_code
    assert not Path("another.ledger").exists()
    done = call("ledger", "verify", "new.ledger")
    assert (done.code, "two first entries" in done.told) == (DataError.exit_code, True)


def test_a_ledger_that_was_created_with_another_statement_is_bound_to_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that created it died before the rows named it, or somebody put it there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))
    np.save("table.npy", np.ones((9, 2)))
    table, budget = ingest_rows("table.npy", "rows.zarr"), PrivacyLoss.parse("3", "1e-5")
    Ledger.create("rows.ledger", dataset_id=table.dataset_id, budget=budget)
    with pytest.raises(UsageError, match="created with nothing spent before"):
        create_ledger("rows.ledger", "rows.zarr", budget, SPENT)
    assert open_rows("rows.zarr").ledger_id is None
    assert create_ledger("other.ledger", "rows.zarr", budget, SPENT).spent == SPENT


def test_a_loss_beyond_every_budget_is_refused_as_such(tmp_path: Path, state: Path, call: Call) -> None:  # noqa: ARG001
    np.save(tmp_path / "table.npy", np.ones((9, 2)))
    rows, ledger = tmp_path / "rows.zarr", tmp_path / "rows.ledger"
    assert call("ingest", tmp_path / "table.npy", rows).code == 0
    budget = ("--budget-epsilon", "3", "--budget-delta", "0.5", "--spent", "1,0.4")
    assert call("ledger", "create", ledger, "--rows", rows, *budget).code == 0
    asked = ("--epsilon", "1", "--delta", "0.7", "--clip", "2", "--accept-large-delta")
    done = call("release", rows, tmp_path / "release.zarr", *asked)
    assert (done.code, "This release costs" in done.told) == (RefusedError.exit_code, True), done.told


def test_a_stored_weighted_series_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """A square root for 3 periods, after two of them."""
    unpack(SAMPLES, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))
    published = tmp_path / "weighted" / "published"
    shown, charged = tree(published), Ledger("weighted/rows.ledger").charges
    assert [charge.weights for charge in charged] == [(64,), (32, 64)]
    assert open_release(published / "d2.zarr").weights == (32, 64)
    result = call("run", "weighted.toml")
    assert result.code == 0, result.told
    assert tree(published) == shown
    np.save("weighted/incoming/d3.npy", np.eye(3))
    assert call("run", "weighted.toml").code == 0
    assert shown.items() <= tree(published).items()
    assert Ledger("weighted/rows.ledger").charges[:2] == charged
    total = open_release(published / "total" / "d3.zarr")
    assert (len(total.releases), total.rows) == (3, 11)
