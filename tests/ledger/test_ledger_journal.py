"""What the ledger acknowledged is on the disk, and books that were altered, in either place, serve for nothing."""

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
from support.ledgers import Alteration, begun, behind, blobs, committed, epsilon_spent, pure, reserve, sql
from support.releases import content_of

from dpdist.errors import DataError, DpdistError, ResumableError
from dpdist.ledger.address import LedgerAddress
from dpdist.ledger.journal import ORIGIN, Capped, Event, Reserved, Transaction
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.sqlite import FolderStorage
from dpdist.privacy.accounting import CapSet

# --- the disk ------------------------------------------------------------------------------------------------------


def test_what_is_acknowledged_was_flushed_first(
    folder_ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no test can cut the power; it can see that the disk was asked in time
    with closing(FolderStorage(folder)._connect()) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL: every commit is flushed
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
    assert {path.parent.name for path in flushed[2:3]} == {flushed[-1].name} == {"witness"}


def test_a_disk_full_of_drafts_stops_the_commit_and_keeps_the_reservation(
    folder_ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = begun(folder_ledger, "a")
    write = FolderStorage._write

    def full(path: Path, pieces: Iterable[bytes]) -> None:
        content = b"".join(pieces)
        write(path, [content[: len(content) // 2]])
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
    fence = begun(folder_ledger, "a")
    head, connect = folder_ledger.head, FolderStorage._connect

    def full(self: FolderStorage) -> sqlite3.Connection:
        connection = connect(self)
        connection.execute("PRAGMA max_page_count = 1")  # SQLite answers as on a full disk
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(FolderStorage, "_connect", full)
        with pytest.raises(ResumableError, match="full"):
            reserve(folder_ledger, "b", 1, note="x" * 100_000)
        assert folder_ledger.head == head
    for each in (folder_ledger, Ledger(folder)):
        assert each.head == head
        assert each.record("b") is None
        assert epsilon_spent(each) == 1
    assert folder_ledger.commit("a", fence, [b"a draw"])
    folder_ledger.verify()


# --- altered books ----------------------------------------------------------------------------------------------------


def edited(sequence: int, old: str, new: str, *, redigested: bool = False) -> Alteration:
    """Edit the text of an entry and, on request, make its own digest right again."""

    def alteration(place: LedgerAddress) -> None:
        with behind(place) as execute:
            rows = {row[0]: row for row in execute("SELECT sequence, entry, digest FROM journal").fetchall()}
            _, entry, digest = rows[sequence]
            changed = entry.replace(old, new)
            assert json.loads(changed) != json.loads(entry)
            if redigested:
                previous = rows[sequence - 1][2] if sequence > 1 else ORIGIN
                digest = hashlib.sha256(f"{previous}\n{changed}".encode()).hexdigest()
            execute("UPDATE journal SET entry = ?, digest = ? WHERE sequence = ?", (changed, digest, sequence))

    return alteration


def from_nowhere(place: LedgerAddress) -> None:
    """Append an entry with the digest of the one before it."""
    with behind(place) as execute:
        row = (9, '{"event":"aborted","id":"b"}', *execute("SELECT digest FROM journal WHERE sequence = 8").fetchone())
        if isinstance(place, Path):
            execute("INSERT INTO journal (sequence, entry, digest) VALUES (?, ?, ?)", row)
        else:
            execute("INSERT INTO journal (ledger, sequence, entry, digest) VALUES ('books', ?, ?, ?)", row)


def overwritten(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "ledger.sqlite").write_bytes(content)


ALTERATIONS: dict[str, Alteration] = {
    "a larger budget": edited(1, "3000000", "9000000"),
    "a larger budget with a digest of its own": edited(1, "3000000", "9000000", redigested=True),
    "a smaller charge": edited(3, "1000000", "1"),
    "a smaller charge with a digest of its own": edited(3, "1000000", "1", redigested=True),
    "other committed bytes": edited(5, '"digest":"', '"digest":"0'),
    "other committed bytes with a digest of their own": edited(5, '"digest":"', '"digest":"0', redigested=True),
    "a deleted entry": sql("DELETE FROM journal WHERE sequence = 2"),
    "a deleted beginning": sql("DELETE FROM journal WHERE sequence = 1"),
    "a deleted entry, the gap closed": sql(
        "DELETE FROM journal WHERE sequence = 7", "UPDATE journal SET sequence = 7 WHERE sequence = 8"
    ),
    "two entries exchanged": sql(
        "UPDATE journal SET sequence = -sequence",
        "UPDATE journal SET sequence = CASE sequence WHEN -6 THEN 7 WHEN -7 THEN 6 ELSE -sequence END",
    ),
    "an entry from nowhere": from_nowhere,
    "an edited digest": sql(
        "UPDATE journal SET digest = (SELECT digest FROM journal WHERE sequence = 6) WHERE sequence = 7"
    ),
    "no journal in the database": sql("DROP TABLE journal"),
    "no entries in the journal": sql("DELETE FROM journal"),
}
FILE_ALTERATIONS: dict[str, Callable[[Path], object]] = {
    "an entry that is no text": sql("UPDATE journal SET entry = CAST(x'7bff7d' AS TEXT) WHERE sequence = 2"),
    "an empty file": overwritten(b""),
    "another file": overwritten(b"no database at all\n" * 500),
    "half a file": lambda folder: os.truncate(folder / "ledger.sqlite", 4096),
}


USES: dict[str, Callable[[Ledger], object]] = {
    "verify": lambda ledger: ledger.verify(),
    "budget": lambda ledger: ledger.budget,
    "records": lambda ledger: ledger.records,
    "record": lambda ledger: ledger.record("a"),
    "balance": lambda ledger: ledger.balance(),
    "head": lambda ledger: ledger.head,
    "dataset_id": lambda ledger: ledger.dataset_id,
    "reserve": lambda ledger: reserve(ledger, "c"),
    "begin": lambda ledger: ledger.begin("b"),
    "commit": lambda ledger: ledger.commit("b", 1, [b"draw"]),  # fenced out by then, or refused
    "wait": lambda ledger: ledger.wait("b", 1, 0.001),
    "read": lambda ledger: content_of(ledger, "a"),
    "published": lambda ledger: ledger.published("a"),
    "abort": lambda ledger: ledger.abort("b"),
    "remembers": lambda ledger: ledger.remembers("a", ORIGIN),
}


IN_A_DATABASE = ("a smaller charge with a digest of its own", "two entries exchanged", "no journal in the database")
"""What is read of a database is checked by the same code as what is read of a folder."""


@pytest.mark.parametrize(
    ("place", "name"),
    [*(("folder", name) for name in ALTERATIONS), *(("postgres", name) for name in IN_A_DATABASE)],
    indirect=["place"],
)
def test_altered_books_serve_for_nothing(ledger: Ledger, place: LedgerAddress, name: str) -> None:
    assert_useless_once_altered(ledger, place, ALTERATIONS[name])


@pytest.mark.parametrize("alteration", FILE_ALTERATIONS.values(), ids=FILE_ALTERATIONS.keys())
def test_an_altered_file_serves_for_nothing(
    folder_ledger: Ledger, folder: Path, alteration: Callable[[Path], object]
) -> None:
    assert_useless_once_altered(folder_ledger, folder, alteration)


def assert_useless_once_altered(ledger: Ledger, place: Any, alteration: Callable[[Any], object]) -> None:
    committed(ledger, "a", b"bytes")  # entries 2 to 6
    reserve(ledger, "b")
    ledger.begin("b")
    assert ledger._snapshot().after == 8
    alteration(place)
    noticed = {name: _outcome(use, place) for name, use in USES.items()}
    assert noticed == dict.fromkeys(USES, DataError)
    with pytest.raises(DataError):
        ledger.verify()  # also for who had read the books before
    assert len(blobs(place)) == 1


def test_books_that_are_sound_serve_for_everything(ledger: Ledger, place: LedgerAddress) -> None:
    committed(ledger, "a", b"bytes")
    reserve(ledger, "b")
    ledger.begin("b")
    assert {name: _outcome(use, place) for name, use in USES.items()} == dict.fromkeys(USES)


def _outcome(use: Callable[[Ledger], object], place: LedgerAddress) -> type[Exception] | None:
    try:
        use(Ledger(place))
    except DpdistError as error:
        return type(error)
    return None


def test_a_journal_cut_short_is_noticed_by_who_knew_more(ledger: Ledger, place: LedgerAddress) -> None:
    reserve(ledger, "a")
    reserve(ledger, "b")
    assert len(ledger.records) == 2
    sql("DELETE FROM journal WHERE sequence = 4")(place)
    with pytest.raises(DataError):
        reserve(ledger, "c")
    with pytest.raises(DataError):
        ledger.balance()


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


def change(place: LedgerAddress, damage: str) -> None:
    (name,) = blobs(place)
    content = b"committed bytes"
    changed = {"flipped": bytes([content[0] ^ 1]) + content[1:], "shorter": content[:-1], "longer": content + b"\0"}
    new = {**changed, "empty": b""}.get(damage)
    if isinstance(place, Path):
        path = place / "blobs" / name
        assert path.read_bytes() == content
        path.unlink() if new is None else path.write_bytes(new)
        return
    with behind(place) as execute:
        found = execute("DELETE FROM blobs RETURNING content") if new is None else None
        found = found or execute("UPDATE blobs SET content = ?", (new,))
        assert found.rowcount == 1


@pytest.mark.parametrize("damage", ["flipped", "shorter", "longer", "empty", "missing"])
def test_altered_committed_bytes_are_never_given_out(ledger: Ledger, place: LedgerAddress, damage: str) -> None:
    committed(ledger, "a", b"committed bytes")
    ledger.verify()
    change(place, damage)
    for use in (ledger.verify, lambda: Ledger(place).verify(), lambda: content_of(Ledger(place), "a")):
        with pytest.raises(DataError):
            use()
    # the release is not drawn a second time to repair it
    assert ledger.begin("a") is None
    assert not ledger.commit("a", 1, [b"another draw"])
