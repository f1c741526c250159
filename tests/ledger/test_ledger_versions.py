"""Ledgers of version 1, without caps: read, continued if that is proved, and otherwise closed.

Copies of ``tests/stored/ledgers-1`` of dpdist at commit e2b98bf, with a budget of epsilon 2 (periods: 1), delta 1e-6.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.cli_scene import Call
from support.folders import STORED
from support.ledgers import DATASET, gaussian, pure, reserve
from support.releases import content_of

from dpdist.errors import NoWitnessWarning, RefusedError
from dpdist.ledger.journal import ORIGIN, entry_of, event_of
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.ledger.state_folder import state_home
from dpdist.privacy.accounting import CapSet, caps_for, certified
from dpdist.privacy.guarantee import PrivacyLoss

LEDGERS = STORED / "ledgers-1"
BUDGET = PrivacyLoss.parse("2", "1e-6")
Stored = Callable[[str], Ledger]
pytestmark = [
    pytest.mark.usefixtures("typed"),
    pytest.mark.filterwarnings("ignore::dpdist.errors.NoWitnessWarning"),  # one test is about it
]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "state"))  # each test has copies of the same ledgers

    def opened(name: str) -> Ledger:
        (tmp_path / name / "blobs").mkdir(parents=True)
        shutil.copytree(LEDGERS / name, tmp_path / name, dirs_exist_ok=True)
        return Ledger(tmp_path / name)

    return opened


@pytest.mark.parametrize("name", ["unused", "pure", "gaussian", "point", "mixed", "many-pure", "periods"])
def test_ledgers_of_version_1_are_read_and_verify(stored: Stored, name: str) -> None:
    ledger = stored(name)
    ledger.verify()
    counts = {"unused": 0, "point": 1, "many-pure": 60, "periods": 3}
    assert len(ledger.records) == ledger.balance().charged == counts.get(name, 2)
    assert ledger.budget == (PrivacyLoss.parse("1", "1e-6") if name == "periods" else BUDGET)
    assert ledger.caps == ()
    # statements of version 1 about several draws are ignored
    assert name != "pure" or all(record.guarantee.bounded_ranges == () for record in ledger.records)
    with ledger._storage.transaction() as transaction:
        for entry in transaction.read(0, ORIGIN)[0]:
            again = json.loads(json.dumps(entry_of(event_of(entry))))
            entry.get("guarantee", {}).pop("bounded_range", None)
            assert again == entry  # written again, it is unchanged
    if name in {"pure", "gaussian", "point", "mixed"}:
        assert content_of(ledger, "r0") == b"bytes 0"
        again = ledger.records[0]
        request: dict[str, Any] = {"parameters": again.parameters, "guarantee": again.guarantee}
        assert ledger.reserve("r0", dataset_id=DATASET, **request) is State.PUBLISHED  # repeated at no cost


def test_a_ledger_that_never_had_a_witness_says_so_once_and_adopts_nothing(stored: Stored) -> None:
    ledger = stored("pure")
    assert ledger.adopt() == []
    assert not ledger.exhausted
    shutil.rmtree(state_home() / "witness")
    with pytest.warns(NoWitnessWarning, match="had no witness until now"):
        ledger.reserve("more", dataset_id=DATASET, parameters={}, guarantee=pure(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.begin("more")


@pytest.mark.parametrize("name", ["unused", "pure", "gaussian", "point"])
def test_a_past_of_one_kind_goes_on_under_the_caps_that_it_would_have_begun_with(stored: Stored, name: str) -> None:
    ledger = stored(name)
    before, head = len(ledger.records), ledger.head
    first = ledger.records[0].guarantee if before else gaussian("0.1", "1e-6")
    with pytest.raises(RefusedError, match="needs no statement"):
        ledger.attest()
    assert ledger.head == head
    more = pure(1) if name == "pure" else gaussian("0.1", "1e-6")
    ledger.reserve("more", dataset_id=DATASET, parameters={}, guarantee=more)
    assert ledger.caps == caps_for(BUDGET, first)
    assert certified(ledger.caps, BUDGET)
    assert (ledger.balance().charged, ledger.condition) == (before + 1, None)
    ledger.verify()
    if name == "pure":
        with pytest.raises(RefusedError):
            reserve(ledger, "another", 1)
        assert ledger.balance().left.pure_micro == 700_000


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
    assert "left: nothing. An older version created this ledger" in str(ledger.balance())
    for guarantee in (gaussian("0.001", "1e-6"), pure(1)):
        with pytest.raises(RefusedError, match=r"dpdist ledger attest .* --fixed-beforehand"):
            ledger.reserve("more", dataset_id=DATASET, parameters={}, guarantee=guarantee)
    if name == "many-pure":  # by zCDP, epsilon 1.84 at delta 1e-6; as Gaussian releases they exceed 2
        with pytest.raises(RefusedError, match="exceed its budget even if"):
            ledger.attest()
    assert ledger.head == head


def test_a_mixed_past_goes_on_if_a_person_states_that_no_request_followed_from_an_answer(
    stored: Stored, tmp_path: Path, call: Call
) -> None:
    ledger, attest = stored("mixed"), ("ledger", "attest", tmp_path / "mixed")
    condition = "the 2 requests up to entry 9 were fixed before the first answer"
    assert "all charges together keep the budget" not in call("ledger", "show", tmp_path / "mixed").out
    assert [call(*attest, *words).code for words in ((), ("--fixed-beforehand",))] == [2, 0]
    shown = " ".join(call("ledger", "show", tmp_path / "mixed").out.split())
    assert f"the guarantee holds if {condition}" in shown
    assert call("ledger", "show", tmp_path / "mixed", "--json").json["condition"] == condition
    balance = ledger.balance()
    assert balance.promise == f"all charges together keep the budget if {condition}"
    assert ledger.caps == (CapSet(100_000, ledger.caps[0].mu_squared, 0),)
    assert certified(ledger.caps, BUDGET)
    spent = [record.guarantee.mu_squared or Fraction(0) for record in ledger.records]
    assert Fraction(ledger.caps[0].mu_squared) > sum(spent)
    largest = gaussian(f"{(balance.left.gaussian_micro - 1) / 1e6:.6f}", "1e-6")
    ledger.reserve("more", dataset_id=DATASET, parameters={}, guarantee=largest)
    with pytest.raises(RefusedError):
        ledger.reserve("still-more", dataset_id=DATASET, parameters={}, guarantee=gaussian("0.1", "1e-6"))
    with pytest.raises(RefusedError, match="needs no statement"):
        ledger.attest()
    Ledger(str(ledger._storage)).verify()
