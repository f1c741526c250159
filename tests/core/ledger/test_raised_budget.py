"""A budget that is raised: the journal has it with its condition, and charges go on as if it had been declared so."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.cli_scene import Call
from support.ledgers import copy_of, gaussian, pure, reserve

from dpdist.core.errors import RefusedError, UsageError
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.privacy.accounting import caps_for, certified, fits
from dpdist.core.privacy.guarantee import PrivacyLoss

SMALL, LARGE = PrivacyLoss.parse(1, "1e-6"), PrivacyLoss.parse(3, "2e-6")
DATASET = "d" * 32


def charged(ledger: Ledger, name: str, guarantee: object) -> None:
    ledger.reserve(name, dataset_id=DATASET, parameters={}, guarantee=guarantee)  # type: ignore[arg-type]


@pytest.fixture
def ledger(place: LedgerAddress, state: Path) -> Ledger:  # noqa: ARG001 - its own state
    return Ledger.create(place, dataset_id=DATASET, budget=SMALL)


def test_a_raised_budget_is_that_of_a_ledger_declared_so_with_a_condition(ledger: Ledger, place: LedgerAddress) -> None:
    first, second = gaussian("1", "1e-6"), gaussian("2", "1e-6")
    charged(ledger, "one", first)
    with pytest.raises(
        RefusedError, match=r"answer: dpdist ledger raise .* --budget-epsilon 3 --budget-delta 0.000002"
    ):
        charged(ledger, "two", second)
    balance = ledger.raise_budget(LARGE)
    assert balance.budget == LARGE
    assert balance.promise.startswith("all charges together stay within the budget if the budget was raised from")
    assert ledger.caps == caps_for(LARGE, first)
    assert certified(ledger.caps, LARGE)
    charged(ledger, "two", second)
    assert fits([first, second], LARGE)
    with pytest.raises(RefusedError, match="costs epsilon 2"):
        charged(ledger, "three", second)
    again = Ledger(place)
    again.verify()
    assert (again.budget, again.condition, again.balance()) == (LARGE, ledger.condition, ledger.balance())
    ledger.raise_budget(PrivacyLoss.parse(9, "1e-5"))
    assert str(ledger.condition).count("was raised from") == 2


def test_before_the_first_charge_there_is_no_condition(ledger: Ledger) -> None:
    ledger.raise_budget(LARGE)
    charged(ledger, "one", gaussian("2", "1e-6"))
    assert ledger.condition is None
    ledger.verify()


def test_it_is_only_raised_and_charges_of_another_kind_stay_refused(ledger: Ledger) -> None:
    for loss in (SMALL, PrivacyLoss.parse("0.5", "1e-6"), PrivacyLoss.parse(2), PrivacyLoss.parse("0.9", "1e-5")):
        with pytest.raises(UsageError, match="Give a larger one"):
            ledger.raise_budget(loss)
    charged(ledger, "one", gaussian("1", "1e-6"))
    with pytest.raises(RefusedError) as refused:
        reserve(ledger, "pure", 3)
    assert "ledger raise" not in str(refused.value)  # its caps would have no room for a pure release
    ledger.raise_budget(LARGE)
    with pytest.raises(RefusedError):
        charged(ledger, "pure", pure(3))


def test_a_copy_that_was_not_raised_never_charges_beside_it(ledger: Ledger, place: LedgerAddress) -> None:
    charged(ledger, "one", gaussian("0.5", "1e-6"))
    copy = copy_of(place)
    ledger.raise_budget(LARGE)
    charged(ledger, "two", gaussian("2", "1e-6"))
    fence = ledger.begin("two")
    assert fence is not None
    assert ledger.commit("two", fence, [b"noise"])
    other = Ledger(copy)
    with pytest.raises(RefusedError, match="behind its witness"):
        charged(other, "three", gaussian("0.1", "1e-6"))
    assert other.adopt() == ["two"]
    assert (other.budget, other.condition) == (LARGE, ledger.condition)  # not the small one, beside a larger release
    charged(other, "three", gaussian("0.1", "1e-6"))
    other.verify()


def test_a_copy_that_answered_under_the_small_budget_charges_nothing_after_the_other_was_raised(
    ledger: Ledger, place: LedgerAddress
) -> None:
    for name in ("one", "two"):
        if name == "two":
            copy = copy_of(place)
            ledger.raise_budget(LARGE)
        ledger.reserve(name, dataset_id=DATASET, parameters={}, guarantee=gaussian("0.5", "1e-6"))
        fence = ledger.begin(name)
        assert fence is not None
        assert ledger.commit(name, fence, [b"noise"])
    other = Ledger(copy)
    other.adopt()
    assert other.balance().exhausted
    with pytest.raises(RefusedError, match="charged the whole budget"):
        charged(other, "three", gaussian("0.1", "1e-6"))


@pytest.mark.usefixtures("state")
def test_the_condition_outlives_the_witness(ledger: Ledger, state: Path) -> None:
    charged(ledger, "one", gaussian("0.5", "1e-6"))
    assert ledger.commit("one", ledger.begin("one") or 0, [b"noise"])
    ledger.raise_budget(LARGE)
    shutil.rmtree(state)
    ledger.adopt()
    assert re.search(
        r"within the budget if the budget was raised .*; releases of other copies", ledger.balance().promise
    )


def test_the_line_of_a_refusal_works_as_typed_and_releases_repeat_the_condition(
    tmp_path: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("t.npy", np.random.default_rng(1).normal(size=(5000, 3)))
    loss = ("--delta", "1e-6", "--clip", "4", "--centre", "private")
    assert call("release", "t.npy", "one.zarr", "--epsilon", "1", *loss).code == 0
    refused = call("release", "t.npy", "two.zarr", "--epsilon", "2", *loss)
    assert refused.code == 3
    line = re.search(r"dpdist (ledger raise .*? --regardless-of-answers)", refused.err)
    assert line is not None
    words = shlex.split(line[1])
    assert call(*words[:-1]).code == 2
    assert call(*words).code == 0
    assert call("release", "t.npy", "two.zarr", "--epsilon", "2", *loss).code == 0
    shown = call("inspect", "two.zarr").out
    assert "for a reason other than the answers" in " ".join(shown.split())
    assert call("ledger", "verify", "t.ledger", "--release", "one.zarr", "--release", "two.zarr").code == 0
