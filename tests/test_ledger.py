"""The ledger charges once, commits once, forgets nothing, and notices when its books were altered.

One contract for both places, a folder and a PostgreSQL database; what only one of them can do wrong is tested apart.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import multiprocessing
import os
import re
import signal
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import crash_driver as driver
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from postgres_server import Server
from releases import content_of

from dpdist.errors import DataError, DpdistError, RefusedError, ResumableError, UsageError
from dpdist.mechanisms.gaussian import Gaussian
from dpdist.mechanisms.sensitivity import LatticeQuery
from dpdist.noise.entropy import random_token
from dpdist.privacy.books import State
from dpdist.privacy.folder import FolderStorage
from dpdist.privacy.guarantee import ATTO, MICRO, Arithmetic, Guarantee, Neighbours, PrivacyLoss
from dpdist.privacy.journal import Transaction, origin
from dpdist.privacy.ledger import Ledger
from dpdist.privacy.places import Address, Place

DATASET = "0123456789abcdef" * 2
PATIENCE = 300.0
SPAWN = multiprocessing.get_context("spawn")


def pure(epsilon: int = 1, neighbours: Neighbours = Neighbours.REPLACE_ONE) -> Guarantee:
    return Guarantee(neighbours, PrivacyLoss(epsilon * MICRO), None, Arithmetic.IDEAL_REAL, "none")


def gaussian(epsilon: str, delta: str) -> Guarantee:
    query = LatticeQuery(4, 4**16, Neighbours.REPLACE_ONE)
    return Gaussian().calibrate(query, PrivacyLoss.parse(epsilon, delta), {}).guarantee


def reserve(ledger: Ledger, release_id: str, epsilon: int = 1, **parameters: Any) -> State:
    parameters = {"epsilon": epsilon, **parameters}
    return ledger.reserve(release_id, dataset_id=DATASET, parameters=parameters, guarantee=pure(epsilon))


def committed(ledger: Ledger, release_id: str, content: bytes) -> Ledger:
    reserve(ledger, release_id)
    fence = ledger.begin(release_id)
    assert fence is not None
    assert ledger.commit(release_id, fence, [content])
    return ledger


def epsilon_spent(ledger: Ledger) -> float:
    spent = ledger.spent()
    return 0.0 if spent is None else spent.epsilon


def blobs(place: Place) -> set[str]:
    if isinstance(place, Path):
        return {path.name for path in (place / "blobs").iterdir()}
    with behind(place) as execute:
        return {name for (name,) in execute("SELECT DISTINCT name FROM blobs").fetchall()}


@contextmanager
def behind(place: Place) -> Iterator[Callable[..., Any]]:
    """Give a function that changes the books behind the ledger's back; the tables are named as in SQLite."""
    if isinstance(place, Path):
        with closing(sqlite3.connect(place / "ledger.sqlite")) as connection:
            yield connection.execute
            connection.commit()
        return
    import psycopg

    def execute(statement: str, values: tuple[Any, ...] = ()) -> Any:
        return database.execute(re.sub(r"\b(journal|blobs)\b", r"dpdist_\1", statement).replace("?", "%s"), values)

    keywords: dict[str, Any] = dict(place.connection)
    with psycopg.connect(**keywords) as database:
        yield execute


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "books"


@contextmanager
def new_address(server: Server) -> Iterator[Address]:
    """Give the address of no ledger yet, in a schema of its own."""
    schema = f"test_{random_token()[:12]}"
    with server.connect() as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    try:
        yield Address(server.address("books", schema))
    finally:
        with server.connect() as connection:
            connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture(params=["folder", "postgres"])
def place(request: pytest.FixtureRequest, folder: Path) -> Iterator[Place]:
    if request.param == "folder":
        yield folder
        return
    with new_address(request.getfixturevalue("postgres")) as address:
        yield address


@pytest.fixture
def ledger(place: Place) -> Ledger:
    return Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("3"))


@pytest.fixture
def folder_ledger(folder: Path) -> Ledger:
    return Ledger.create(folder, dataset_id=DATASET, budget=PrivacyLoss.parse("3"))


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Let every permission bit through, so that only the product narrows them."""
    before = os.umask(0)
    yield
    os.umask(before)


# --- creation ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("open_umask")
def test_only_the_owner_can_read_a_ledger(folder: Path) -> None:
    made = committed(Ledger.create(folder, dataset_id=DATASET, budget=PrivacyLoss.parse("3")), "a", b"bytes")
    with made._locked() as (view, transaction):
        transaction.append({"event": "begun", "id": "a"}, view.after, view.head)
        # the write-ahead log exists only while a connection is open, and holds the same secrets
        modes = {p.relative_to(folder): stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*")}
        assert Path("ledger.sqlite-wal") in modes
        directories = {p.relative_to(folder) for p in folder.rglob("*") if p.is_dir()}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert directories == {Path("blobs")}
    assert len(modes) >= 4
    for path, mode in modes.items():
        assert mode == (0o700 if path in directories else 0o600), path


def test_a_new_ledger_knows_its_data_set_and_budget_and_nothing_else(place: Place) -> None:
    Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("1.5", "1e-7"))
    ledger = Ledger(place)
    assert ledger.dataset_id == DATASET
    assert ledger.budget == PrivacyLoss.parse("1.5", "1e-7")
    assert ledger.records == []
    assert ledger.spent() is None
    assert blobs(place) == set()
    ledger.verify()


def test_a_ledger_is_never_created_over_something(ledger: Ledger, place: Place) -> None:
    reserve(ledger, "a")
    with pytest.raises(DataError):
        Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("100"))
    assert Ledger(place).budget == PrivacyLoss.parse("3")
    assert epsilon_spent(Ledger(place)) == 1
    if isinstance(place, Path):
        assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_a_missing_ledger_is_not_invented(place: Place) -> None:
    assert not Ledger.stands_at(place)
    with pytest.raises(DataError, match="There is no ledger"):
        Ledger(place)
    assert not Ledger.stands_at(place)


def test_a_ledger_that_is_lost_while_it_is_used_is_not_invented(ledger: Ledger, place: Place) -> None:
    if isinstance(place, Path):
        (place / "ledger.sqlite").unlink()
    else:
        sql("DELETE FROM journal")(place)
    with pytest.raises(DataError):
        reserve(ledger, "a")
    assert not Ledger.stands_at(place)


# --- charging ---------------------------------------------------------------------------------------------------------


def test_the_same_release_is_charged_once(ledger: Ledger, place: Place) -> None:
    assert reserve(ledger, "a", 2) is State.RESERVED
    head = ledger.head
    assert reserve(ledger, "a", 2) is State.RESERVED
    assert reserve(Ledger(place), "a", 2) is State.RESERVED
    assert ledger.head == head
    assert epsilon_spent(ledger) == 2


def test_a_repetition_is_free_even_when_the_budget_is_used_up(ledger: Ledger) -> None:
    reserve(ledger, "a", 3)
    assert reserve(ledger, "a", 3) is State.RESERVED
    assert epsilon_spent(ledger) == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"period": "may"}, "period"),
        ({"columns": ["y", "x"]}, "columns"),
        ({"columns": ["y", "x"], "period": ""}, "columns, period"),
        ({"epsilon": 2}, "epsilon"),
        ({"bound": {"clip_norm": 2.0}}, "bound"),
        ({"since_the_next_version": None}, "since_the_next_version"),
    ],
)
def test_a_refusal_names_the_parameters_that_differ(ledger: Ledger, change: dict[str, Any], named: str) -> None:
    asked: dict[str, Any] = {"columns": ["x", "y"], "period": "april", "bound": {"clip_norm": 1.0}}
    reserve(ledger, "a", **asked)
    head = ledger.head
    asked = {"epsilon": 1, **asked, **change}
    with pytest.raises(RefusedError, match=f": {named} differ"):
        ledger.reserve("a", dataset_id=DATASET, parameters=asked, guarantee=pure())
    assert ledger.head == head
    assert epsilon_spent(ledger) == 1


def test_the_parameters_of_an_aborted_release_still_bind_its_id(ledger: Ledger) -> None:
    reserve(ledger, "a", period="april")
    ledger.abort("a")
    with pytest.raises(RefusedError, match=r": period differ"):
        reserve(ledger, "a", period="may")


def test_over_budget_nothing_changes(ledger: Ledger, place: Place) -> None:
    reserve(ledger, "a", 2)
    head, records = ledger.head, ledger.records
    with pytest.raises(RefusedError) as refusal:
        reserve(ledger, "b", 2)
    assert refusal.value.exit_code == 3
    for each in (ledger, Ledger(place)):
        assert (each.head, each.records) == (head, records)
        assert each.record("b") is None
        assert epsilon_spent(each) == 2
    assert reserve(ledger, "b", 1) is State.RESERVED


def test_the_first_release_must_fit_too(ledger: Ledger) -> None:
    with pytest.raises(RefusedError):
        reserve(ledger, "a", 4)
    assert ledger.records == []


def test_a_budget_without_delta_pays_for_no_gaussian_release(ledger: Ledger) -> None:
    # its delta at epsilon 3 is far below what a float can hold, and still not 0: no Gaussian release is pure
    with pytest.raises(RefusedError):
        ledger.reserve("a", dataset_id=DATASET, parameters={}, guarantee=gaussian("0.1", "1e-9"))
    assert ledger.records == []


def test_a_budget_without_delta_is_the_plain_sum_of_epsilons(place: Place) -> None:
    # an account that trades epsilon for a delta too small for a float still has a delta
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("1.9"))
    small = replace(pure(), loss=PrivacyLoss.parse("0.001"))
    with ledger._locked() as (view, transaction):
        after, head = view.after, view.head
        for number in range(1900):
            entry = {"event": "reserved", "id": f"r{number}", "parameters": {}, "guarantee": small.to_json()}
            transaction.append(entry, after, head)
            _, after, head = transaction.read(after, head)
    ledger.verify()
    assert epsilon_spent(ledger) == 1.9
    with pytest.raises(RefusedError):
        ledger.reserve("one-more", dataset_id=DATASET, parameters={}, guarantee=small)


def test_another_data_set_is_refused(ledger: Ledger) -> None:
    with pytest.raises(RefusedError):
        ledger.reserve("a", dataset_id="f" * 32, parameters={}, guarantee=pure())
    assert ledger.records == []


@pytest.mark.parametrize("release_id", ["", "a.b", "a/b", "../a", "a b", "a\n", "a*", "é", "a" * 65])
def test_a_malformed_id_is_refused(ledger: Ledger, release_id: str) -> None:
    with pytest.raises(UsageError):
        reserve(ledger, release_id)
    assert ledger.records == []


def test_losses_under_two_relations_are_never_added(ledger: Ledger) -> None:
    reserve(ledger, "a")
    with pytest.raises(RefusedError, match="replace-one"):
        ledger.reserve("b", dataset_id=DATASET, parameters={}, guarantee=pure(1, Neighbours.ADD_REMOVE))
    assert [record.release_id for record in ledger.records] == ["a"]
    # while nothing is charged, no relation is chosen
    ledger.abort("a")
    assert ledger.reserve("b", dataset_id=DATASET, parameters={}, guarantee=pure(1, Neighbours.ADD_REMOVE))
    with pytest.raises(RefusedError, match="add-remove"):
        reserve(ledger, "a")


def test_gaussian_releases_are_counted_as_scipy_counts_them(place: Place) -> None:
    from scipy.optimize import brentq
    from scipy.stats import norm

    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("2", "1e-5"))
    guarantee = gaussian("0.5", "1e-6")
    granted = 0
    with suppress(RefusedError):
        while granted < 100:
            ledger.reserve(f"r{granted}", dataset_id=DATASET, parameters={}, guarantee=guarantee)
            granted += 1

    def delta(epsilon: float, mu: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))

    mu = brentq(lambda mu: delta(0.5, mu) - 1e-6, 0.01, 2, xtol=1e-13)
    fitting = [k for k in range(1, 100) if delta(2, math.sqrt(k) * mu) <= 1e-5]
    assert fitting == list(range(1, granted + 1))
    assert granted > 4  # what adding up epsilons would allow
    least = brentq(lambda epsilon: delta(epsilon, math.sqrt(granted) * mu) - 1e-5, 0.01, 2, xtol=1e-13)
    spent = Ledger(place).spent()
    assert spent is not None
    assert spent.delta_atto == ATTO // 10**5
    assert spent.epsilon == pytest.approx(least, abs=3e-6)
    assert len(Ledger(place).records) == granted


def test_a_pure_release_takes_its_epsilon_from_a_gaussian_budget(place: Place) -> None:
    ledger = Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("2", "1e-6"))
    ledger.reserve("g", dataset_id=DATASET, parameters={}, guarantee=gaussian("1", "1e-6"))
    with pytest.raises(RefusedError):
        reserve(ledger, "p", 2)
    reserve(ledger, "p", 1)
    with pytest.raises(RefusedError):
        reserve(ledger, "q", 1)


# --- aborting ---------------------------------------------------------------------------------------------------------


def test_an_aborted_release_is_refunded_and_can_be_reserved_again(ledger: Ledger, place: Place) -> None:
    reserve(ledger, "a", 3)
    assert ledger.abort("a")
    assert ledger.spent() is None
    assert ledger.abort("a")
    reserve(ledger, "b", 2)
    with pytest.raises(RefusedError):
        reserve(ledger, "a", 3)  # what was refunded is spent elsewhere now
    ledger.abort("b")
    assert reserve(Ledger(place), "a", 3) is State.RESERVED
    assert epsilon_spent(ledger) == 3


def test_a_committed_release_cannot_be_aborted(ledger: Ledger, place: Place) -> None:
    committed(ledger, "a", b"bytes")
    for _ in range(2):  # committed, then published
        head = ledger.head
        assert not ledger.abort("a")
        assert ledger.head == head
        assert epsilon_spent(ledger) == 1
        assert content_of(Ledger(place), "a") == b"bytes"
        ledger.published("a")


def test_an_attempt_that_was_aborted_cannot_commit(ledger: Ledger, place: Place) -> None:
    reserve(ledger, "a")
    fence = ledger.begin("a")
    assert fence is not None
    ledger.abort("a")
    assert not ledger.commit("a", fence, [b"late"])
    # not even after somebody else reserved it again
    reserve(ledger, "a")
    assert not ledger.commit("a", fence, [b"later"])
    assert blobs(place) == set()


def test_an_aborted_release_begins_only_after_a_new_reservation(ledger: Ledger) -> None:
    reserve(ledger, "a")
    first = ledger.begin("a")
    ledger.abort("a")
    with pytest.raises(RefusedError):
        ledger.begin("a")
    reserve(ledger, "a")
    second = ledger.begin("a")
    assert first is not None
    assert second is not None
    assert second > first


# --- fences and drafts ------------------------------------------------------------------------------------------------


def test_an_attempt_with_an_old_fence_cannot_commit(ledger: Ledger, place: Place) -> None:
    reserve(ledger, "a")
    old, new = ledger.begin("a"), Ledger(place).begin("a")
    assert (old, new) == (1, 2)
    assert not ledger.commit("a", 1, [b"old draw"])
    assert blobs(place) == set()
    assert ledger.commit("a", 2, [b"new draw"])
    assert not ledger.commit("a", 1, [b"old draw"])
    assert not ledger.commit("a", 2, [b"another draw of the winner"])
    assert len(blobs(place)) == 1
    assert content_of(ledger, "a") == b"new draw"


def test_nothing_commits_without_a_reservation_or_an_attempt(ledger: Ledger, place: Place) -> None:
    with pytest.raises(UsageError):
        ledger.commit("a", 1, [b"draw"])
    reserve(ledger, "a")
    assert not ledger.commit("a", 1, [b"draw"])
    assert blobs(place) == set()
    with pytest.raises(DpdistError):
        content_of(ledger, "a")
    for use in (ledger.begin, ledger.abort, partial(content_of, ledger), ledger.published):
        with pytest.raises(UsageError):
            use("unknown")


def test_begin_deletes_the_drafts_of_dead_attempts_of_this_release_only(folder_ledger: Ledger, folder: Path) -> None:
    committed(folder_ledger, "a-b", b"kept")
    reserve(folder_ledger, "a")
    folder_ledger.begin("a")
    for name in ("a.1.dead", "a.1.beef", "a-b.1.other", "b.1.other"):
        FolderStorage._write(folder / "blobs" / name, [b"draft"])
    folder_ledger.begin("a")
    left = {name for name in blobs(folder) if (folder / "blobs" / name).read_bytes() == b"draft"}
    assert left == {"a-b.1.other", "b.1.other"}
    assert content_of(folder_ledger, "a-b") == b"kept"


def test_abort_and_publication_delete_drafts_but_not_what_was_committed(folder_ledger: Ledger, folder: Path) -> None:
    reserve(folder_ledger, "a")
    FolderStorage._write(folder / "blobs" / "a.1.dead", [b"draft"])
    folder_ledger.abort("a")
    assert blobs(folder) == set()
    committed(folder_ledger, "b", b"kept")
    FolderStorage._write(folder / "blobs" / "b.1.dead", [b"draft"])
    folder_ledger.published("b")
    assert len(blobs(folder)) == 1
    assert content_of(folder_ledger, "b") == b"kept"


def test_a_draft_swept_by_an_attempt_that_then_died_cannot_be_committed(
    folder_ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(folder_ledger, "a")
    fence = folder_ledger.begin("a")
    assert fence is not None
    write = FolderStorage._write

    class DiedError(Exception):
        pass

    def dies(*_: Any) -> None:
        raise DiedError

    def swept(path: Path, pieces: Iterable[bytes]) -> None:
        write(path, pieces)
        with monkeypatch.context() as patch:
            patch.setattr(Transaction, "append", dies)
            with pytest.raises(DiedError):
                Ledger(folder).begin("a")  # deletes the draft, then its transaction is rolled back
        assert not path.exists()

    monkeypatch.setattr(FolderStorage, "_write", staticmethod(swept))
    assert not folder_ledger.commit("a", fence, [b"draw"])
    record = folder_ledger.record("a")
    assert record is not None
    assert (record.state, record.fence) == (State.RESERVED, fence)  # so the fence alone would have let it pass
    monkeypatch.undo()
    again = folder_ledger.begin("a")
    assert again is not None
    assert folder_ledger.commit("a", again, [b"second draw"])
    folder_ledger.verify()


@pytest.mark.parametrize("content", [b"", b"\x00\xff\r\n" * 1000, bytes(range(256)) * 4096])
def test_what_was_committed_is_read_back_bit_for_bit(ledger: Ledger, place: Place, content: bytes) -> None:
    committed(ledger, "a", content)
    assert ledger.begin("a") is None
    for state in (State.COMMITTED, State.PUBLISHED):
        assert content_of(Ledger(place), "a") == content
        record = Ledger(place).record("a")
        assert record is not None
        assert record.state is state
        assert record.digest == hashlib.sha256(content).hexdigest()
        ledger.published("a")


def test_publication_is_recorded_once(ledger: Ledger) -> None:
    committed(ledger, "a", b"bytes")
    ledger.published("a")
    head = ledger.head
    ledger.published("a")
    assert ledger.head == head
    assert reserve(ledger, "a") is State.PUBLISHED


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

    def appended(self: Transaction, entry: dict[str, Any], after: int, head: str) -> None:
        if entry["event"] == "committed":
            assert flushed == [folder / "blobs" / entry["blob"], folder / "blobs"]
        append(self, entry, after, head)

    reserve(folder_ledger, "a")
    fence = folder_ledger.begin("a")
    assert fence is not None
    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(Transaction, "append", appended)
    assert folder_ledger.commit("a", fence, [b"bytes"])
    assert len(flushed) == 2


def test_a_disk_full_of_drafts_stops_the_commit_and_keeps_the_reservation(
    folder_ledger: Ledger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(folder_ledger, "a")
    fence = folder_ledger.begin("a")
    assert fence is not None
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
    reserve(folder_ledger, "a")
    fence = folder_ledger.begin("a")
    assert fence is not None
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


Alteration = Callable[[Place], object]


def sql(*statements: str) -> Alteration:
    """Change the journal behind the ledger's back; the change must take."""

    def alteration(place: Place) -> None:
        with behind(place) as execute:
            for statement in statements:
                assert execute(statement).rowcount  # -1 where the database does not count

    return alteration


def edited(sequence: int, old: str, new: str, *, redigested: bool = False) -> Alteration:
    """Edit the text of an entry and, on request, make its own digest right again."""

    def alteration(place: Place) -> None:
        with behind(place) as execute:
            rows = {row[0]: row for row in execute("SELECT sequence, entry, digest FROM journal").fetchall()}
            _, entry, digest = rows[sequence]
            changed = entry.replace(old, new)
            assert json.loads(changed) != json.loads(entry)
            if redigested:
                previous = rows[sequence - 1][2] if sequence > 1 else origin()
                digest = hashlib.sha256(f"{previous}\n{changed}".encode()).hexdigest()
            execute("UPDATE journal SET entry = ?, digest = ? WHERE sequence = ?", (changed, digest, sequence))

    return alteration


def from_nowhere(place: Place) -> None:
    """Append an entry with the digest of the one before it."""
    with behind(place) as execute:
        row = (7, '{"event":"aborted","id":"b"}', *execute("SELECT digest FROM journal WHERE sequence = 6").fetchone())
        if isinstance(place, Path):
            execute("INSERT INTO journal (sequence, entry, digest) VALUES (?, ?, ?)", row)
        else:
            execute("INSERT INTO journal (ledger, sequence, entry, digest) VALUES ('books', ?, ?, ?)", row)


def overwritten(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "ledger.sqlite").write_bytes(content)


ALTERATIONS: dict[str, Alteration] = {
    "a larger budget": edited(1, "3000000", "9000000"),
    "a larger budget with a digest of its own": edited(1, "3000000", "9000000", redigested=True),
    "a smaller charge": edited(2, "1000000", "1"),
    "a smaller charge with a digest of its own": edited(2, "1000000", "1", redigested=True),
    "other committed bytes": edited(4, '"digest":"', '"digest":"0'),
    "other committed bytes with a digest of their own": edited(4, '"digest":"', '"digest":"0', redigested=True),
    "a deleted entry": sql("DELETE FROM journal WHERE sequence = 2"),
    "a deleted beginning": sql("DELETE FROM journal WHERE sequence = 1"),
    "a deleted entry, the gap closed": sql(
        "DELETE FROM journal WHERE sequence = 5", "UPDATE journal SET sequence = 5 WHERE sequence = 6"
    ),
    "two entries exchanged": sql(
        "UPDATE journal SET sequence = -sequence",
        "UPDATE journal SET sequence = CASE sequence WHEN -5 THEN 6 WHEN -6 THEN 5 ELSE -sequence END",
    ),
    "an entry from nowhere": from_nowhere,
    "an edited digest": sql(
        "UPDATE journal SET digest = (SELECT digest FROM journal WHERE sequence = 5) WHERE sequence = 6"
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
    "spent": lambda ledger: ledger.spent(),
    "head": lambda ledger: ledger.head,
    "dataset_id": lambda ledger: ledger.dataset_id,
    "reserve": lambda ledger: reserve(ledger, "c"),
    "begin": lambda ledger: ledger.begin("b"),
    "commit": lambda ledger: ledger.commit("b", 1, [b"draw"]),  # fenced out by then, or refused
    "wait": lambda ledger: ledger.wait("b", 1, 0.001),
    "read": lambda ledger: content_of(ledger, "a"),
    "published": lambda ledger: ledger.published("a"),
    "abort": lambda ledger: ledger.abort("b"),
    "remembers": lambda ledger: ledger.remembers("a", origin()),
}


@pytest.mark.parametrize("alteration", ALTERATIONS.values(), ids=ALTERATIONS.keys())
def test_altered_books_serve_for_nothing(ledger: Ledger, place: Place, alteration: Alteration) -> None:
    assert_useless_once_altered(ledger, place, alteration)


@pytest.mark.parametrize("alteration", FILE_ALTERATIONS.values(), ids=FILE_ALTERATIONS.keys())
def test_an_altered_file_serves_for_nothing(
    folder_ledger: Ledger, folder: Path, alteration: Callable[[Path], object]
) -> None:
    assert_useless_once_altered(folder_ledger, folder, alteration)


def assert_useless_once_altered(ledger: Ledger, place: Any, alteration: Callable[[Any], object]) -> None:
    committed(ledger, "a", b"bytes")  # entries 2 to 4
    reserve(ledger, "b")
    ledger.begin("b")
    assert ledger._snapshot().after == 6
    alteration(place)
    noticed = {name: _outcome(use, place) for name, use in USES.items()}
    assert noticed == dict.fromkeys(USES, DataError)
    with pytest.raises(DataError):
        ledger.verify()  # also for who had read the books before
    assert len(blobs(place)) == 1


def test_books_that_are_sound_serve_for_everything(ledger: Ledger, place: Place) -> None:
    committed(ledger, "a", b"bytes")
    reserve(ledger, "b")
    ledger.begin("b")
    assert {name: _outcome(use, place) for name, use in USES.items()} == dict.fromkeys(USES)


def _outcome(use: Callable[[Ledger], object], place: Place) -> type[Exception] | None:
    try:
        use(Ledger(place))
    except DpdistError as error:
        return type(error)
    return None


def test_a_journal_cut_short_is_noticed_by_who_knew_more(ledger: Ledger, place: Place) -> None:
    reserve(ledger, "a")
    reserve(ledger, "b")
    assert len(ledger.records) == 2
    sql("DELETE FROM journal WHERE sequence = 3")(place)
    with pytest.raises(DataError):
        reserve(ledger, "c")
    with pytest.raises(DataError):
        ledger.spent()


def test_charges_beyond_the_budget_do_not_verify(ledger: Ledger) -> None:
    with ledger._locked() as (view, transaction):
        entry = {"event": "reserved", "id": "a", "parameters": {}, "guarantee": pure(4).to_json()}
        transaction.append(entry, view.after, view.head)
    with pytest.raises(DataError, match="budget"):
        ledger.verify()


def change(place: Place, damage: str) -> None:
    """Damage the only committed release."""
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
def test_altered_committed_bytes_are_never_given_out(ledger: Ledger, place: Place, damage: str) -> None:
    committed(ledger, "a", b"committed bytes")
    ledger.verify()
    change(place, damage)
    for use in (ledger.verify, lambda: Ledger(place).verify(), lambda: content_of(Ledger(place), "a")):
        with pytest.raises(DataError):
            use()
    # the release is not drawn a second time to repair it
    assert ledger.begin("a") is None
    assert not ledger.commit("a", 1, [b"another draw"])


# --- a model ----------------------------------------------------------------------------------------------------------

IDS = st.sampled_from(["a", "a-b", "ab", "b_1"])
"""Some are prefixes of others: deleting the drafts of one must not touch another's."""
BUDGET = 5


@dataclass
class Expected:
    """What the model knows of one release."""

    cost: int
    state: State = State.RESERVED
    fence: int = 0
    content: bytes | None = None
    digests: set[str | None] = field(default_factory=set)
    drafts: set[str] = field(default_factory=set)


class LedgerAgainstModel(RuleBasedStateMachine):
    """Any sequence of calls, through two handles that may be reopened at any time, against a dictionary."""

    def new_place(self) -> AbstractContextManager[Place]:
        return new_folder()

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.place = self.stack.enter_context(self.new_place())
        first = Ledger.create(self.place, dataset_id=DATASET, budget=PrivacyLoss(BUDGET * MICRO))
        self.handles = [first, Ledger(self.place)]
        self.model: dict[str, Expected] = {}
        self.draws = 0

    def teardown(self) -> None:
        """Check the whole chain once more and clean up."""
        try:
            Ledger(self.place).verify()
        finally:
            self.stack.close()

    def charged(self) -> int:
        """Return what the model has spent."""
        return sum(known.cost for known in self.model.values() if known.state is not State.ABORTED)

    @rule(handle=st.integers(0, 1))
    def reopen(self, handle: int) -> None:
        """Forget what a handle had read."""
        self.handles[handle] = Ledger(self.place)

    @rule(handle=st.integers(0, 1), release_id=IDS, cost=st.integers(1, 3))
    def reserve(self, handle: int, release_id: str, cost: int) -> None:
        """Reserve."""
        known = self.model.get(release_id)
        over = self.charged() + cost > BUDGET
        if (known is not None and known.cost != cost) or ((known is None or known.state is State.ABORTED) and over):
            with pytest.raises(RefusedError):
                reserve(self.handles[handle], release_id, cost)
            return
        if known is None:
            known = self.model[release_id] = Expected(cost)
        elif known.state is State.ABORTED:
            known.state = State.RESERVED
        assert reserve(self.handles[handle], release_id, cost) is known.state

    @rule(handle=st.integers(0, 1), release_id=IDS)
    def begin(self, handle: int, release_id: str) -> None:
        """Begin an attempt."""
        ledger, known = self.handles[handle], self.model.get(release_id)
        if known is None:
            with pytest.raises(UsageError):
                ledger.begin(release_id)
        elif known.state is State.ABORTED:
            with pytest.raises(RefusedError):
                ledger.begin(release_id)
        elif known.state is State.RESERVED:
            known.fence += 1
            known.drafts.clear()
            assert ledger.begin(release_id) == known.fence
        else:
            assert ledger.begin(release_id) is None

    @rule(handle=st.integers(0, 1), release_id=IDS, behind=st.sampled_from([0, 0, 0, 1, 2, -1]))
    def commit(self, handle: int, release_id: str, behind: int) -> None:
        """Commit with the live fence, an old one or one from the future."""
        known = self.model.get(release_id)
        self.draws += 1
        content = f"draw {self.draws}".encode()
        if known is None:
            with pytest.raises(UsageError):
                self.handles[handle].commit(release_id, 1, [content])
            return
        wins = known.state is State.RESERVED and behind == 0
        assert self.handles[handle].commit(release_id, known.fence - behind, [content]) is wins
        if wins:
            known.state, known.content = State.COMMITTED, content

    @rule(release_id=IDS)
    def die_with_a_draft(self, release_id: str) -> None:
        """Leave what a killed attempt leaves: a draft of the live fence."""
        known = self.model.get(release_id)
        if known is None or known.state is not State.RESERVED or not known.fence:
            return
        if not isinstance(self.place, Path):
            return  # a draw reaches a database only in the transaction that commits it
        self.draws += 1
        name = f"{release_id}.{known.fence}.{self.draws:016x}"
        FolderStorage._write(self.place / "blobs" / name, [b"a dead draw"])
        known.drafts.add(name)

    @rule(handle=st.integers(0, 1), release_id=IDS)
    def publish(self, handle: int, release_id: str) -> None:
        """Read the bytes back and record their publication, as the product does."""
        ledger, known = self.handles[handle], self.model.get(release_id)
        if known is None or known.content is None:
            with pytest.raises(DpdistError):
                content_of(ledger, release_id)
            return
        assert content_of(ledger, release_id) == known.content
        ledger.published(release_id)
        known.state = State.PUBLISHED
        known.drafts.clear()

    @rule(handle=st.integers(0, 1), release_id=IDS)
    def abort(self, handle: int, release_id: str) -> None:
        """Ask for a refund."""
        ledger, known = self.handles[handle], self.model.get(release_id)
        if known is None:
            with pytest.raises(UsageError):
                ledger.abort(release_id)
            return
        assert ledger.abort(release_id) is (known.content is None)
        if known.state is State.RESERVED:
            known.state = State.ABORTED
            known.fence += 1
            known.drafts.clear()

    @invariant()
    def agrees(self) -> None:
        """Both handles tell what the model tells, and the books hold nothing else."""
        for ledger in self.handles:
            records = ledger.records
            assert [r.release_id for r in records] == list(self.model)
            for record, known in zip(records, self.model.values(), strict=True):
                assert (record.state, record.fence) == (known.state, known.fence)
                assert record.parameters == {"epsilon": known.cost}
                if known.content is None:
                    assert (record.digest, record.blob) == (None, None)
                else:
                    assert record.digest == hashlib.sha256(known.content).hexdigest()
                    known.digests.add(record.digest)
                    assert len(known.digests) == 1
        assert self.charged() <= BUDGET
        assert epsilon_spent(self.handles[0]) == self.charged()

    @invariant()
    def holds_only_committed_bytes_and_drafts_of_the_live_fence(self) -> None:
        """Look into the private folder itself."""
        expected = {name for known in self.model.values() for name in known.drafts}
        for record in self.handles[0].records:
            if record.blob is not None:
                expected.add(record.blob)
                assert content_of(self.handles[1], record.release_id) == self.model[record.release_id].content
        assert blobs(self.place) == expected


@contextmanager
def new_folder() -> Iterator[Path]:
    """Give a place for a ledger folder."""
    with tempfile.TemporaryDirectory(prefix="dpdist-ledger-") as root:
        yield Path(root) / "books"


MODEL_SETTINGS = settings(stateful_step_count=30)


def test_any_sequence_of_calls_on_a_folder_agrees_with_a_model() -> None:
    run_state_machine_as_test(LedgerAgainstModel, settings=settings(MODEL_SETTINGS, max_examples=40))


def test_any_sequence_of_calls_on_a_database_agrees_with_a_model(postgres: Server) -> None:
    class OnDatabase(LedgerAgainstModel):
        """The same on a ledger in PostgreSQL."""

        def new_place(self) -> AbstractContextManager[Place]:
            return new_address(postgres)

    run_state_machine_as_test(OnDatabase, settings=settings(MODEL_SETTINGS, max_examples=5))


# --- several processes ------------------------------------------------------------------------------------------------


def test_eight_processes_together_spend_exactly_the_budget(place: Place) -> None:
    processes, attempts, affordable = 8, 50, 60
    Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss(affordable * MICRO))
    barrier = SPAWN.Barrier(processes)  # none begins before all are there
    with ProcessPoolExecutor(processes, mp_context=SPAWN, initializer=driver.meet_at, initargs=(barrier,)) as pool:
        runs = [pool.submit(driver.reserve_many, place, f"p{process}", attempts) for process in range(processes)]
        granted = [run.result(PATIENCE) for run in runs]
    ids = [release_id for each in granted for release_id in each]
    assert len(ids) == affordable
    ledger = Ledger(place)
    assert {record.release_id for record in ledger.records} == set(ids)
    assert epsilon_spent(ledger) == affordable
    ledger.verify()
    with pytest.raises(RefusedError):
        reserve(ledger, "one-more")


def acknowledged_before_the_kill(place: Place, prefix: str, reservations: int) -> list[str]:
    """Start a process that reserves without end, kill it after so many reservations, return all it acknowledged."""
    ours, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=driver.reserve_for_ever, args=(place, prefix, theirs))
    process.start()
    theirs.close()
    heard = []
    with ours, suppress(EOFError):
        for _ in range(reservations):
            assert ours.poll(PATIENCE)
            heard.append(ours.recv())
        process.kill()
        while True:  # what it had sent before it died
            heard.append(ours.recv())
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL  # it did not end by itself
    process.close()
    return heard


def test_no_acknowledged_reservation_is_lost_when_its_process_is_killed(place: Place) -> None:
    Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss(10**5 * MICRO))
    acknowledged: list[str] = []
    for number, reservations in enumerate([1, 2, 3, 5, 8, 13], start=1):
        heard = acknowledged_before_the_kill(place, f"k{number}", reservations)
        assert len(heard) >= reservations
        acknowledged += heard
        ledger = Ledger(place)
        ledger.verify()
        recorded = {record.release_id for record in ledger.records}
        assert set(acknowledged) <= recorded
        # each process may die between its last reservation and its last word, no more
        assert len(recorded) <= len(acknowledged) + number
        assert epsilon_spent(ledger) == len(recorded)
