"""Acknowledged entries are on disk, and an altered ledger is refused, in both storages."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.ledgers import Alteration, begun, behind, blobs, committed, copy_of, epsilon_spent, pure, reserve, sql
from support.releases import content_of

from dpdist.core.errors import DataError, DpdistError, ResumableError
from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.ledger.journal import ORIGIN, Capped, Entry, Event, Reserved, Transaction
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.sqlite import FolderStorage
from dpdist.core.privacy.accounting import CapSet

PLACES = ("folder", "postgres")


def test_entries_are_flushed_before_they_are_acknowledged(
    folder_ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a test cannot cut the power, but it can check that files were flushed in time
    with closing(FolderStorage(folder)._connect()) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL: all commits are flushed
    flushed: list[Path] = []
    fsync, append = os.fsync, Transaction.append

    def seen(handle: int) -> None:
        fsync(handle)
        flushed.append(Path(f"/proc/self/fd/{handle}").readlink())

    def appended(self: Transaction, entry: dict[str, Any], after: int, head: str) -> tuple[int, str]:
        if entry["event"] == "committed":
            assert flushed == [folder / "blobs" / entry["blob"], folder / "blobs"]
        return append(self, entry, after, head)

    fence = begun(folder_ledger, "a")
    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(Transaction, "append", appended)
    assert folder_ledger.commit("a", fence, [b"bytes"])
    assert [path.suffix for path in flushed[2:]] == [".partial", ""]  # the witness and its folder
    assert flushed[2].parent == flushed[3]
    assert flushed[3].name == "witness"


def test_a_disk_full_of_drafts_stops_the_commit_and_keeps_the_reservation(
    folder_ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence, write = begun(folder_ledger, "a"), FolderStorage._write

    def full(path: Path, chunks: Iterable[bytes]) -> None:
        write(path, [b"".join(chunks)[:3]])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(FolderStorage, "_write", staticmethod(full))
        with pytest.raises(ResumableError):
            folder_ledger.commit("a", fence, [b"a draw"])
    assert blobs(folder) == set()
    assert epsilon_spent(Ledger(folder)) == 1
    assert folder_ledger.commit("a", fence, [b"a draw"])


def test_a_disk_full_for_the_journal_changes_nothing(
    folder_ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence, head, connect = begun(folder_ledger, "a"), folder_ledger.head, FolderStorage._connect

    def full(self: FolderStorage, **begin: Any) -> sqlite3.Connection:
        connection = connect(self, **begin)
        connection.execute("PRAGMA max_page_count = 1")  # SQLite behaves as on a full disk
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(FolderStorage, "_connect", full)
        with pytest.raises(ResumableError, match="full"):
            reserve(folder_ledger, "b", 1, note="x" * 100_000)
    for opened in (folder_ledger, Ledger(folder)):
        assert (opened.head, opened.record("b"), epsilon_spent(opened)) == (head, None, 1)
    assert folder_ledger.commit("a", fence, [b"a draw"])
    folder_ledger.verify()


def edited(sequence: int, old: str, new: str) -> Alteration:
    """Edit the text of an entry, and correct its digest."""

    def alteration(place: LedgerAddress) -> None:
        with behind(place) as execute:
            rows = {row[0]: row for row in execute("SELECT sequence, entry, digest FROM journal").fetchall()}
            changed = rows[sequence][1].replace(old, new)
            assert json.loads(changed) != json.loads(rows[sequence][1])
            previous = rows[sequence - 1][2] if sequence > 1 else ORIGIN
            digest = hashlib.sha256(f"{previous}\n{changed}".encode()).hexdigest()
            execute("UPDATE journal SET entry = ?, digest = ? WHERE sequence = ?", (changed, digest, sequence))

    return alteration


ALTERATIONS: dict[str, Alteration] = {
    "a larger budget with a digest of its own": edited(1, "3000000", "9000000"),
    "a smaller charge with a digest of its own": edited(3, "1000000", "1"),
    "a larger budget": sql("UPDATE journal SET entry = REPLACE(entry, '3000000', '9000000') WHERE sequence = 1"),
    "a deleted beginning": sql("DELETE FROM journal WHERE sequence = 1"),
    "a deleted entry, the gap closed": sql(
        "DELETE FROM journal WHERE sequence = 7", "UPDATE journal SET sequence = 7 WHERE sequence = 8"
    ),
    "no journal in the database": sql("DROP TABLE journal"),
    "an entry that is no text": sql("UPDATE journal SET entry = CAST(x'7bff7d' AS TEXT) WHERE sequence = 2"),
    "no entries in the journal": sql("DELETE FROM journal"),
    "another file": lambda folder: Path(str(folder), "ledger.sqlite").write_bytes(b"no database at all\n" * 500),
}
IN_A_DATABASE = ("a smaller charge with a digest of its own", "no journal in the database")
"""Alterations of a database; the same code checks both storages."""
USES: dict[str, Callable[[Ledger], object]] = {
    "verify": lambda ledger: ledger.verify(),
    "balance": lambda ledger: ledger.balance(),
    "reserve": lambda ledger: reserve(ledger, "c"),
    "begin": lambda ledger: ledger.begin("b"),
    "commit": lambda ledger: ledger.commit("b", 1, [b"draw"]),  # fenced out or refused
    "read": lambda ledger: content_of(ledger, "a"),
    "abort": lambda ledger: ledger.abort("b"),
    "remembers": lambda ledger: ledger.remembers("a", ORIGIN),
}


def outcomes(place: LedgerAddress) -> dict[str, type[Exception] | None]:
    errors: dict[str, type[Exception] | None] = dict.fromkeys(USES)
    for name, use in USES.items():
        try:
            use(Ledger(place))
        except DpdistError as error:
            errors[name] = type(error)
    return errors


@pytest.mark.parametrize(
    ("place", "name"),
    [*(("folder", name) for name in ALTERATIONS), *(("postgres", name) for name in IN_A_DATABASE)],
    indirect=["place"],
)
def test_an_altered_ledger_is_refused_and_no_other(ledger: Ledger, place: LedgerAddress, name: str) -> None:
    committed(ledger, "a", b"bytes")  # entries 2 to 6
    reserve(ledger, "b")
    ledger.begin("b")
    assert ledger._snapshot().after == 8
    copy = copy_of(place)
    ALTERATIONS[name](place)
    assert outcomes(place) == dict.fromkeys(USES, DataError)
    if isinstance(place, Path):  # in a database, the copy stands in the same tables
        assert outcomes(copy) == dict.fromkeys(USES)
    with pytest.raises(DataError):
        ledger.verify()  # also if the ledger was read before
    assert len(blobs(place)) == 1


def test_a_truncated_journal_is_detected_by_an_open_ledger(ledger: Ledger, place: LedgerAddress) -> None:
    reserve(ledger, "a")
    reserve(ledger, "b")
    assert epsilon_spent(ledger) == 2
    sql("DELETE FROM journal WHERE sequence = 4")(place)
    with pytest.raises(DataError):
        reserve(ledger, "c")


WIDE = Capped((CapSet(10**9, Fraction(0), 0).to_json(),))
NARROW = Capped((CapSet(3 * 10**6, Fraction(0), 0).to_json(),))


@pytest.mark.parametrize("before", [[], [NARROW], [WIDE]], ids=["no caps", "its own caps", "caps beyond the budget"])
def test_charges_beyond_the_budget_do_not_verify(ledger: Ledger, before: list[Event]) -> None:
    with ledger._locked() as (view, transaction):
        entry = Reserved("a", {}, pure(4).to_json())
        ledger._append(view, transaction, *before, entry)
    with pytest.raises(DataError, match="budget"):
        ledger.verify()
    with pytest.raises(DataError, match="budget"):
        reserve(ledger, "b", 1)


def test_altered_committed_bytes_are_never_given_out(folder_ledger: Ledger, folder: Path) -> None:
    content = b"committed bytes"
    committed(folder_ledger, "a", content)
    (blob,) = (folder / "blobs").iterdir()
    for new in (bytes([content[0] ^ 1]) + content[1:], content[:-1], content + b"\0", b"", None):
        blob.write_bytes(content)
        folder_ledger.verify()
        blob.unlink() if new is None else blob.write_bytes(new)
        for use in (folder_ledger.verify, lambda: content_of(Ledger(folder), "a")):
            with pytest.raises(DataError, match="missing or altered"):
                use()
        # the release is not drawn a second time to repair it
        assert folder_ledger.begin("a") is None
        assert not folder_ledger.commit("a", 1, [b"another draw"])


RESERVED = {"event": "reserved", "id": "b", "parameters": {}, "guarantee": pure().to_json()}
STRANGE: dict[str, Entry] = {
    "an event of no version": {"event": "forgiven", "id": "a"},
    "a release that was never reserved": {"event": "published", "id": "z"},
    "a charge without a price": {**RESERVED, "guarantee": {}},
    "a price of true": {**RESERVED, "guarantee": {**pure().to_json(), "epsilon_micro": True}},
    "a fraction of nothing": {**RESERVED, "guarantee": {**pure().to_json(), "mu_squared": ["1", "0"]}},
    "a relation of no version": {**RESERVED, "guarantee": {**pure().to_json(), "neighbours": "friends"}},
    "a key of a later version": {**RESERVED, "counts_twice": True},
    "caps that are no list": {"event": "capped", "sets": "wide"},
    "an adoption of words": {"event": "adopted", "head": "", "void": [], "releases": ["a"], "capped": None},
}  # fmt: skip


@pytest.mark.parametrize("entry", STRANGE.values(), ids=STRANGE)
def test_an_entry_that_no_version_writes_is_refused_with_all_that_follows_however_often_it_is_asked(
    folder_ledger: Ledger, folder: Path, entry: Entry
) -> None:
    reserve(folder_ledger, "a")
    with folder_ledger._locked() as (view, transaction):
        end = transaction.append(entry, view.after, view.head)
        transaction.append({"event": "begun", "id": "a"}, *end)
    for ledger in (folder_ledger, folder_ledger, Ledger(folder)):
        for use in (lambda: reserve(ledger, "c"), ledger.balance):  # noqa: B023 - called here
            with pytest.raises(DataError, match=f"broken at entry {end[0]}"):
                use()
