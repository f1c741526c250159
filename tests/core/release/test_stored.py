"""What versions before 0.1.0 stored is refused in one sentence, and what they spent can be declared."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.cli_scene import Call, tree
from support.folders import STORED, unpack
from support.samples import SAMPLES

from dpdist.core.errors import DataError, RefusedError, UsageError
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import OtherFormatError
from dpdist.core.pipeline.budget import create_ledger
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.artefact import open_release

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
    assert {name: read for name, read in tree(older).items() if "lock" not in name} == before


@pytest.mark.usefixtures("older")
def test_a_ledger_of_an_older_version_is_replaced_by_one_that_states_what_was_spent(call: Call) -> None:
    create = ("ledger", "create", "new.ledger", "--rows", "rows.zarr")
    refused = call(*create)
    assert (refused.code, "spend the budget twice" in refused.message) == (RefusedError.exit_code, True)
    assert call(*create, "--spent", "3,1e-6").code == UsageError.exit_code  # nothing is left
    assert not Path("new.ledger").exists()
    for _ in range(2):
        assert call(*create, "--spent", "1.75,2e-6").code == 0
    assert call(*create, "--spent", "1.7,2e-6").code == UsageError.exit_code  # it was stated otherwise
    ledger = Ledger("new.ledger")
    left = PrivacyLoss.parse("1.25", "8e-6")
    assert (ledger.declared, ledger.spent, ledger.budget) == (PrivacyLoss.parse("3", "1e-5"), SPENT, left)
    stated = "if the releases before this ledger cost epsilon 1.75, delta 2e-06 at most, as was stated"
    assert stated in " ".join(call("ledger", "show", "new.ledger").out.split())
    new = ("--ledger", "new.ledger")
    assert (
        call("release", "rows.zarr", "more.zarr", "--epsilon", "1.5", *ASKED[2:], *new).code == RefusedError.exit_code
    )
    done = call("release", "rows.zarr", "again.zarr", *ASKED, *new)
    assert (done.code, stated in done.out) == (0, True), done.told
    assert open_release("again.zarr").condition == stated.removeprefix("if ")
    shutil.rmtree("rows.ledger")  # the old ledger may go now, and its absence is no second budget
    assert (
        call("ledger", "create", "third.ledger", "--rows", "rows.zarr", "--spent", "1").code == RefusedError.exit_code
    )
    assert not Path("third.ledger").exists()
    raised = (
        "ledger",
        "raise",
        "new.ledger",
        "--budget-epsilon",
        "4",
        "--budget-delta",
        "1e-5",
        "--regardless-of-answers",
    )
    done = call(*raised)
    assert done.code == 0, done.told
    assert (ledger.declared.epsilon, ledger.budget.epsilon) == (4, 2.25)
    assert stated in " ".join(call("ledger", "show", "new.ledger").out.split())  # a raise forgets no statement


def test_a_ledger_that_can_be_charged_is_not_replaced_by_a_statement(older: Path) -> None:
    create_ledger("new.ledger", "rows.zarr", spent=SPENT)
    for spent in (None, SPENT):
        with pytest.raises(RefusedError, match="spend the budget twice"):
            create_ledger(older / "another.ledger", "rows.zarr", spent=spent)
    assert not (older / "another.ledger").exists()
    with pytest.raises(OtherFormatError):
        Ledger("rows.ledger").verify()


def test_rows_without_a_ledger_may_state_what_was_spent_elsewhere(tmp_path: Path, state: Path, call: Call) -> None:  # noqa: ARG001
    np.save(tmp_path / "table.npy", np.ones((9, 2)))
    assert call("ingest", tmp_path / "table.npy", tmp_path / "rows.zarr").code == 0
    budget = ("--budget-epsilon", "2", "--spent", "0.5")
    done = call("ledger", "create", tmp_path / "rows.ledger", "--rows", tmp_path / "rows.zarr", *budget)
    assert (done.code, "budget epsilon 1.5, delta 0 left, as epsilon 0.5, delta 0 was spent before" in done.out) == (
        0,
        True,
    )
    assert call("ingest", tmp_path / "table.npy", tmp_path / "rows.zarr", "--budget-epsilon", "2").code == 0


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
