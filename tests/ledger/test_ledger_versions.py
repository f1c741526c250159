"""Ledgers that version 1 wrote, before there were caps: read, continued where that is proved, closed where it is not.

``tests/stored/ledgers-1`` was written by dpdist at commit e2b98bf, under a budget of epsilon 2, delta 1e-6 (periods:
1, 1e-6). It is never written again: what is tested is a copy.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.folders import STORED
from support.ledgers import DATASET, gaussian, pure, reserve
from support.releases import content_of

from dpdist.cli import cli
from dpdist.errors import NoWitnessWarning, RefusedError
from dpdist.ledger.ledger import Ledger
from dpdist.privacy.accounting import CapSet, caps_for, certified
from dpdist.privacy.guarantee import PrivacyLoss

pytestmark = pytest.mark.usefixtures("typed")

LEDGERS = STORED / "ledgers-1"
BUDGET = PrivacyLoss.parse("2", "1e-6")
Stored = Callable[[str], Ledger]
pytestmark = pytest.mark.filterwarnings("ignore::dpdist.errors.NoWitnessWarning")  # one test is about it


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))  # each test has copies of the same ledgers

    def opened(name: str) -> Ledger:
        (tmp_path / name / "blobs").mkdir(parents=True)
        shutil.copytree(LEDGERS / name, tmp_path / name, dirs_exist_ok=True)
        return Ledger(tmp_path / name)

    return opened


@pytest.mark.parametrize("name", ["unused", "pure", "gaussian", "point", "mixed", "many-pure", "periods"])
def test_what_version_1_wrote_is_read_and_verifies(stored: Stored, name: str) -> None:
    ledger = stored(name)
    ledger.verify()
    counts = {"unused": 0, "point": 1, "many-pure": 60, "periods": 3}
    assert len(ledger.records) == ledger.balance().charged == counts.get(name, 2)
    assert ledger.budget == (PrivacyLoss.parse("1", "1e-6") if name == "periods" else BUDGET)
    assert ledger.caps == ()
    if name in {"pure", "gaussian", "point", "mixed"}:
        assert content_of(ledger, "r0") == b"bytes 0"
        again = ledger.records[0]
        assert (
            ledger.reserve("r0", dataset_id=DATASET, parameters=again.parameters, guarantee=again.guarantee).value
            == "published"
        )  # repeated at no cost


def test_a_ledger_that_never_had_a_witness_says_so_once(stored: Stored) -> None:
    ledger = stored("pure")
    with pytest.warns(NoWitnessWarning, match="never had a witness"):
        ledger.reserve("more", dataset_id=DATASET, parameters={}, guarantee=pure(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.begin("more")


@pytest.mark.parametrize("name", ["unused", "pure", "gaussian", "point"])
def test_a_past_of_one_kind_goes_on_under_the_caps_that_it_would_have_begun_with(stored: Stored, name: str) -> None:
    ledger = stored(name)
    first = ledger.records[0].guarantee if ledger.records else gaussian("0.1", "1e-6")
    before = len(ledger.records)
    more = pure(1) if name == "pure" else gaussian("0.1", "1e-6")
    ledger.reserve("more", dataset_id=DATASET, parameters={}, guarantee=more)
    assert ledger.caps == caps_for(BUDGET, first)
    assert certified(ledger.caps, BUDGET)
    assert ledger.balance().charged == before + 1
    assert ledger.condition is None
    ledger.verify()
    if name == "pure":
        with pytest.raises(RefusedError):
            reserve(ledger, "another", 1)
        assert ledger.balance().left.pure_micro == 700_000


def test_the_bounded_range_that_version_1_stated_of_several_draws_is_not_believed(stored: Stored) -> None:
    ledger = stored("pure")
    assert all(record.guarantee.bounded_ranges == () for record in ledger.records)


def test_periods_of_version_1_go_on(stored: Stored) -> None:
    ledger = stored("periods")
    balance = ledger.balance()
    assert balance.left.gaussian_micro == 10**6
    assert balance.left_closed is not None
    assert balance.left_closed.gaussian_micro == 0
    ledger.close_period("d4", "seal of d4")
    one = gaussian("1", "1e-6")
    ledger.reserve("d4", dataset_id=DATASET, parameters={}, guarantee=one, periods={"d4": "seal of d4"})
    with pytest.raises(RefusedError):
        ledger.reserve("d3b", dataset_id=DATASET, parameters={}, guarantee=one, periods={"d3": "seal of d3"})
    ledger.verify()


@pytest.mark.parametrize("name", ["mixed", "many-pure"])
def test_a_past_without_caps_is_closed(stored: Stored, name: str) -> None:
    ledger = stored(name)
    head = ledger.head
    assert ledger.balance().closed
    assert "left: nothing. This ledger was begun by an older version" in str(ledger.balance())
    for guarantee in (gaussian("0.001", "1e-6"), pure(1)):
        with pytest.raises(RefusedError, match=r"dpdist ledger attest .* --fixed-beforehand"):
            ledger.reserve("more", dataset_id=DATASET, parameters={}, guarantee=guarantee)
    assert ledger.head == head


def test_a_mixed_past_goes_on_if_a_person_states_that_no_request_followed_from_an_answer(stored: Stored) -> None:
    ledger = stored("mixed")
    balance = ledger.attest()
    assert ledger.caps == (CapSet(100_000, ledger.caps[0].mu_squared, 0),)
    assert certified(ledger.caps, BUDGET)
    assert ledger.condition == "the 2 requests up to entry 9 were fixed before the first answer"
    assert f"the guarantee holds if {ledger.condition}" in str(balance)
    square = Fraction(ledger.caps[0].mu_squared) - sum(
        (record.guarantee.mu_squared or Fraction(0) for record in ledger.records), Fraction(0)
    )
    assert square > 0
    largest = gaussian(f"{(balance.left.gaussian_micro - 1) / 1e6:.6f}", "1e-6")
    ledger.reserve("more", dataset_id=DATASET, parameters={}, guarantee=largest)
    with pytest.raises(RefusedError):
        ledger.reserve("still-more", dataset_id=DATASET, parameters={}, guarantee=gaussian("0.1", "1e-6"))
    with pytest.raises(RefusedError, match="needs no statement"):
        ledger.attest()
    Ledger(ledger._storage._folder).verify()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["unused", "pure", "gaussian", "point", "periods"])
def test_a_ledger_that_needs_no_statement_takes_none(stored: Stored, name: str) -> None:
    ledger = stored(name)
    head = ledger.head
    with pytest.raises(RefusedError, match="needs no statement"):
        ledger.attest()
    assert ledger.head == head


def test_nothing_is_promised_of_a_past_without_caps(stored: Stored, tmp_path: Path) -> None:
    kept = "guarantee all of it together keeps the budget, even if"
    for name, proved in (("mixed", False), ("gaussian", True)):
        stored(name)
        shown = CliRunner().invoke(cli, ["ledger", "show", str(tmp_path / name)])
        assert shown.exit_code == 0
        assert (kept in " ".join(shown.output.split())) is proved
    mixed = Ledger(tmp_path / "mixed")
    assert "keeps the budget" not in mixed.balance().promise
    assert mixed.attest().promise.startswith("all of it together keeps the budget if the 2 requests")


def test_a_past_beyond_the_budget_is_closed_whatever_is_stated(stored: Stored) -> None:
    # sixty pure releases of 0.05 kept to delta 1e-6 at epsilon 1.84 by zCDP; as Gaussian ones they do not fit 2
    with pytest.raises(RefusedError, match="do not keep its budget, even if"):
        stored("many-pure").attest()


def test_the_command_asks_for_the_statement_and_show_repeats_it(stored: Stored, tmp_path: Path) -> None:
    stored("mixed")
    path, run = str(tmp_path / "mixed"), CliRunner()
    assert run.invoke(cli, ["ledger", "attest", path]).exit_code == 2
    assert "dpdist ledger attest" in " ".join(run.invoke(cli, ["ledger", "show", path]).output.split())
    assert run.invoke(cli, ["ledger", "attest", path, "--fixed-beforehand"]).exit_code == 0
    shown = run.invoke(cli, ["ledger", "show", path]).output
    condition = "the guarantee holds if the 2 requests up to entry 9 were fixed before the first answer"
    assert condition in " ".join(shown.split())
    told = json.loads(run.invoke(cli, ["ledger", "show", path, "--json"]).stdout)
    assert told["condition"] == "the 2 requests up to entry 9 were fixed before the first answer"
