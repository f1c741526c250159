"""The records of ledgers and rows on this machine: private files in one folder, checked on reading."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from support.ledgers import DATASET, committed, pure, reserve

from dpdist.errors import DataError, ResumableError, UsageError
from dpdist.ledger import state_folder, witness
from dpdist.ledger.journal import Entry
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.ledger.state_folder import state_home
from dpdist.ledger.witness import FolderWitness

PLACES = ("folder",)


def file_of(ledger: Ledger) -> Path:
    return Path(FolderWitness().path(ledger.ledger_id))


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_only_its_owner_can_read_a_witness_whatever_the_umask(ledger: Ledger, state: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with FolderWitness().locked(ledger.ledger_id) as file, ledger._locked() as (view, _):
            file.write(witness.WitnessRecord.of(view))
    finally:
        os.umask(before)
    for path in [state.parent, state, *state.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert sorted(path.suffix for path in (state / "witness").iterdir()) == [".json", ".lock"]


def test_a_folder_that_others_could_enter_is_closed_to_them(ledger: Ledger, state: Path) -> None:
    state.mkdir(parents=True)
    state.chmod(0o755)  # the root of a volume belongs to the operator
    (state / "witness").mkdir(mode=0o755)
    reserve(ledger, "a")
    assert stat.S_IMODE((state / "witness").stat().st_mode) == 0o700
    assert stat.S_IMODE(state.stat().st_mode) == 0o755


@pytest.mark.usefixtures("state")
def test_the_folder_is_the_one_the_environment_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_home() == tmp_path / "deep" / "state"
    monkeypatch.setenv("DPDIST_STATE_HOME", "")
    assert state_home() == tmp_path / "xdg" / "dpdist"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # ignored according to the XDG specification
    assert state_home() == tmp_path / ".local" / "state" / "dpdist"
    monkeypatch.setenv("DPDIST_STATE_HOME", "relative")
    with pytest.raises(UsageError, match="absolute"):
        state_home()


@pytest.mark.parametrize("identity", ["../../escape", "", "A" * 32])
def test_an_invalid_identity_names_no_file(identity: str) -> None:
    for use in (FolderWitness().path, state_folder.seen):
        with pytest.raises(DataError, match="valid identity"):
            use(identity)


def test_a_witness_holds_charges_and_no_draw(ledger: Ledger) -> None:
    committed(ledger, "a", b"the draw itself")
    body = json.loads(file_of(ledger).read_bytes().partition(b"\n")[0])
    assert body["format"] == "dpdist-witness/1"
    (entry,) = body["releases"]
    assert entry.keys() == {"id", "parameters", "guarantee", "periods", "digest"}
    assert entry["guarantee"] == pure().to_json()
    assert b"the draw itself" not in file_of(ledger).read_bytes()


def test_who_holds_a_witness_for_too_long_makes_others_give_up_for_now(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_folder, "WAIT_SECONDS", 0)
    with FolderWitness().locked(ledger.ledger_id), pytest.raises(ResumableError, match="Another process"):
        reserve(ledger, "a")
    assert reserve(ledger, "a") is State.RESERVED


@pytest.mark.usefixtures("typed")
def test_a_file_that_was_cut_or_edited_is_exit_4_and_named(ledger: Ledger) -> None:
    committed(ledger, "a", b"bytes")
    of_rows = state_home() / "datasets" / f"{DATASET}.json"
    for path, kind, word in ((file_of(ledger), "witness", b'"a"'), (of_rows, "", b'"place"')):
        content = path.read_bytes()
        for wrong in (content[:-9], content.replace(word, b'"b"'), b""):
            path.write_bytes(wrong)
            with pytest.raises(DataError, match=rf"{kind} {path} is damaged") as refusal:
                reserve(ledger, "b")
            assert refusal.value.exit_code == 4
        path.write_bytes(content)
    assert reserve(ledger, "b") is State.RESERVED
    file_of(ledger).write_bytes(b"")
    with pytest.raises(DataError, match="is damaged"):
        ledger.adopt()


CHANGES: dict[str, Callable[[Entry], Entry]] = {
    "nothing": lambda _: {},
    "no format": lambda content: {key: value for key, value in content.items() if key != "format"},
    "a number for a name": lambda content: {**content, "head": 3, "ledger_id": 3},
    "a list": lambda content: {**content, "releases": ["a"], "place": ["a"]},
    "a word for yes": lambda content: {**content, "exhausted": "no", "reproduced": "no"},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_of_other_types_with_a_digest_of_its_own_is_damaged(
    ledger: Ledger, change: Callable[[Entry], Entry]
) -> None:
    committed(ledger, "a", b"bytes")
    for path in (file_of(ledger), state_home() / "datasets" / f"{DATASET}.json"):
        original = path.read_bytes()
        content = change(json.loads(original.partition(b"\n")[0]))
        body = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        path.write_bytes(body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n")
        with pytest.raises(DataError, match="damaged"):
            ledger.require_current()
        path.write_bytes(original)
    ledger.require_current()
    assert state_folder.seen(DATASET).ledger_id == ledger.ledger_id
