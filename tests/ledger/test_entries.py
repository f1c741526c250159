"""Journals and state files that are whole, and say what no version ever wrote: refused in a sentence, every time."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.folders import STORED
from support.ledgers import DATASET, committed, pure, reserve

from dpdist.errors import DataError
from dpdist.ledger import state_folder
from dpdist.ledger.journal import Entry, entry_of, event_of
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state_folder import state_home
from dpdist.ledger.witness import FolderWitness

RESERVED = {"event": "reserved", "id": "b", "parameters": {}, "guarantee": pure().to_json()}
STRANGE: dict[str, Entry] = {
    "an event of no version": {"event": "forgiven", "id": "a"},
    "no event": {"id": "a"},
    "a release that was never reserved": {"event": "published", "id": "z"},
    "no name": {"event": "begun"},
    "a name that is a number": {"event": "begun", "id": 7},
    "a charge without a price": {**RESERVED, "guarantee": {}},
    "a price in words": {**RESERVED, "guarantee": {**pure().to_json(), "epsilon_micro": "1"}},
    "a price of true": {**RESERVED, "guarantee": {**pure().to_json(), "epsilon_micro": True}},
    "a fraction of nothing": {**RESERVED, "guarantee": {**pure().to_json(), "mu_squared": ["1", "0"]}},
    "half a fraction": {**RESERVED, "guarantee": {**pure().to_json(), "mu_squared": ["1"]}},
    "a relation of no version": {**RESERVED, "guarantee": {**pure().to_json(), "neighbours": "friends"}},
    "caps that are no list": {"event": "capped", "sets": "wide"},
    "an adoption of words": {"event": "adopted", "head": "", "void": [], "releases": ["a"], "capped": None},
}  # fmt: skip


@pytest.mark.parametrize("entry", STRANGE.values(), ids=STRANGE)
def test_an_entry_that_no_version_writes_is_refused_however_often_it_is_asked(
    folder_ledger: Ledger, folder: Path, entry: Entry
) -> None:
    reserve(folder_ledger, "a")
    with folder_ledger._locked() as (view, transaction):
        number = transaction.append(entry, view.after, view.head)[0]
    for ledger in (folder_ledger, folder_ledger, Ledger(folder)):
        with pytest.raises(DataError, match=f"broken at entry {number}"):
            reserve(ledger, "c")
        with pytest.raises(DataError, match=f"broken at entry {number}"):
            ledger.balance()


def test_what_follows_an_entry_that_cannot_be_is_not_taken_for_the_whole(folder_ledger: Ledger) -> None:
    reserve(folder_ledger, "a", 2)
    with folder_ledger._locked() as (view, transaction):
        end = transaction.append({"event": "begun", "id": "z"}, view.after, view.head)
        transaction.append({"event": "begun", "id": "a"}, *end)
    for _ in range(2):
        with pytest.raises(DataError):
            reserve(folder_ledger, "b", 2)  # over the budget, if a is not forgotten


@pytest.mark.parametrize("name", ["gaussian", "periods", "point", "mixed"])
def test_a_stored_journal_says_the_same_when_it_is_written_anew(name: str) -> None:
    file = STORED / "ledgers-1" / name / "ledger.sqlite"
    with closing(sqlite3.connect(f"{file.as_uri()}?immutable=1", uri=True)) as connection:
        entries = [json.loads(text) for (text,) in connection.execute("SELECT entry FROM journal")]
    assert entries
    for entry in entries:
        again = entry_of(event_of(entry))
        entry.get("guarantee", {}).pop("bounded_range", None)  # a word of version 1 that nobody reads
        assert json.loads(json.dumps(again)) == entry


def strange_file(path: Path, change: Callable[[Entry], Entry]) -> None:
    """Write other content with a digest of its own, as whoever can write there could."""
    content = change(json.loads(path.read_bytes().partition(b"\n")[0]))
    body = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    path.write_bytes(body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n")


CHANGES: dict[str, Callable[[Entry], Entry]] = {
    "nothing": lambda _: {},
    "no format": lambda content: {key: value for key, value in content.items() if key != "format"},
    "a number for a name": lambda content: {**content, "head": 3, "ledger_id": 3},
    "a list": lambda content: {**content, "releases": ["a"], "place": ["a"]},
    "a word for yes": lambda content: {**content, "exhausted": "no", "reproduced": "no"},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_state_file_of_other_types_is_damaged(folder_ledger: Ledger, change: Callable[[Entry], Entry]) -> None:
    committed(folder_ledger, "a", b"bytes")
    witness = Path(FolderWitness().place(folder_ledger.ledger_id))
    for path in (witness, state_home() / "datasets" / f"{DATASET}.json"):
        kept = path.read_bytes()
        strange_file(path, change)
        with pytest.raises(DataError, match="damaged"):
            folder_ledger.require_current()
        path.write_bytes(kept)
    folder_ledger.require_current()
    assert state_folder.seen(DATASET).ledger_id == folder_ledger.ledger_id
