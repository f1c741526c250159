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

from dpdist.core.errors import DataError, ResumableError, UsageError
from dpdist.core.ledger import state_folder, witness
from dpdist.core.ledger.journal import Entry
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.ledger.state_folder import state_home
from dpdist.core.ledger.witness import FolderWitness


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


def with_digest(change: Callable[[Entry], Entry]) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        body = json.dumps(change(json.loads(content.partition(b"\n")[0]))).encode()
        return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"

    return changed


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-9],
    "edited": lambda content: content.replace(b'"a"', b'"b"').replace(b'"place"', b'"b"'),
    "empty": lambda _: b"",
    "nothing, with its digest": with_digest(lambda _: {}),
    "a number for a name": with_digest(lambda content: {**content, "head": 3, "ledger_id": 3}),
    "a key of a later version": with_digest(lambda content: {**content, "charge_also": "another"}),
    "a list": with_digest(lambda content: {**content, "releases": ["a"], "place": ["a"]}),
    "a word for yes": with_digest(lambda content: {**content, "exhausted": "no", "reproduced": "no"}),
}


@pytest.mark.usefixtures("typed")
def test_a_damaged_file_is_exit_4_and_named(ledger: Ledger) -> None:
    committed(ledger, "a", b"bytes")
    of_rows = state_home() / "datasets" / f"{DATASET}.json"
    for path, use in ((file_of(ledger), ledger.adopt), (of_rows, ledger.require_current)):
        content = path.read_bytes()
        for name, damaged in DAMAGE.items():
            path.write_bytes(damaged(content))
            for refused in (use, lambda: reserve(ledger, "b")):
                with pytest.raises(DataError, match=f"{path} is damaged") as refusal:
                    refused()
                assert refusal.value.exit_code == 4, name
        path.write_bytes(content)
    assert reserve(ledger, "b") is State.RESERVED
