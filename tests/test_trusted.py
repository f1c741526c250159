"""The trusted node's transaction: the exact total plus one draw, committed once, published to the byte."""

from __future__ import annotations

import io
import os
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import crash_driver
import numpy as np
import numpy.typing as npt
import pytest
from releases import content_of
from replays import Recording, Replaying

from dpdist import accounts, engine, pipeline
from dpdist.errors import DataError, DpdistError, RefusedError
from dpdist.mechanisms.base import Additive
from dpdist.moment.operator import MomentMatrix
from dpdist.moment.total import Partial, complete, partition_moment, plan
from dpdist.privacy import ledger as ledgers
from dpdist.privacy.books import State
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.privacy.ledger import Ledger
from dpdist.release import archive, trusted
from dpdist.release.artefact import Release, open_release
from dpdist.release.request import Centring, ReleaseRequest
from dpdist.release.trusted import Transaction
from dpdist.rows import dataset, reading
from dpdist.rows.dataset import RowsTable, created, open_rows
from dpdist.triangle import unpacked

ROWS = 7919
"""Appears nowhere else by chance: neither in a scale of the noise nor in a name."""
NAMES = ("a", "b", "c")
CLIP = 64.0
BITS = 10
PATIENCE = 300.0
REQUEST = ReleaseRequest("two-sided-wishart", PrivacyLoss.parse("1"), CLIP, grid_bits=BITS, name="census")


@pytest.fixture(scope="module")
def values() -> npt.NDArray[np.uint8]:
    return np.random.default_rng(7).integers(0, 64, (ROWS, len(NAMES)), dtype=np.uint8)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, values: npt.NDArray[np.uint8]) -> RowsTable:
    """Return a table of eight chunks."""
    path = tmp_path_factory.mktemp("rows") / "rows.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "_TARGET_CHUNK", 1000 * len(NAMES))
        with created(path, rows=ROWS, dtype="uint8", names=NAMES, budget=None) as writer:
            writer.append(values)
    opened = open_rows(path)
    assert opened.chunks == 8
    return opened


@pytest.fixture
def transaction(table: RowsTable, tmp_path: Path) -> Transaction:
    """Return a release, not begun, of a table whose new ledger pays for four purely private ones of epsilon 1."""
    ledger, rows = tmp_path / "books.ledger", tmp_path / "rows.zarr"
    shutil.copytree(table.path, rows)
    accounts.create_ledger(ledger, rows, PrivacyLoss.parse("4"))
    return Transaction(REQUEST, open_rows(rows), ledger, tmp_path / "release.zarr")


def asking(transaction: Transaction, **changes: Any) -> Transaction:
    """Return the transaction with another request."""
    return replace(transaction, request=replace(transaction.request, **changes))


def moment_of(transaction: Transaction) -> MomentMatrix:
    total = complete(transaction.table, *partials_of(transaction))
    return MomentMatrix(total.values, transaction.request.bound(transaction.table.columns).width)


def partials_of(transaction: Transaction, per_worker: int = 1) -> list[Partial]:
    bound = transaction.request.bound(transaction.table.columns)
    groups = plan(transaction.table, bound, 4, per_worker).groups
    return [partition_moment(task) for group in groups for task in group]


def exact(transaction: Transaction, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the integer moment by plain Python-sized integers, nothing of the product's but its definition."""
    z = np.trunc(values.astype(np.float64) * 2**BITS / CLIP).astype(np.int64)
    squares = (z**2).sum(axis=1)
    over = squares > 4**BITS
    z[over] = np.trunc(z[over] * (2**BITS / np.sqrt(squares[over]))[:, None]).astype(np.int64)
    if transaction.request.centring is Centring.PRIVATE:
        z = np.column_stack([z, np.full(len(z), 2 ** (BITS - 1))])
    moment: npt.NDArray[np.int64] = z.T @ z
    return moment


def ledger_of(transaction: Transaction) -> Ledger:
    return Ledger(transaction.ledger)


def books(transaction: Transaction) -> Path:
    assert isinstance(transaction.ledger, Path)
    return transaction.ledger


def committed_bytes(transaction: Transaction) -> bytes:
    return content_of(ledger_of(transaction), transaction.release_id)


def published(transaction: Transaction) -> Release:
    trusted.reserve(transaction)
    trusted.finalise(transaction, *partials_of(transaction))
    trusted.publish(transaction)
    return open_release(transaction.target)


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file under root: content and inode."""
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): (path.read_bytes(), path.stat().st_ino) for path in files}


# --- the sum and the noise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("centring", list(Centring))
@pytest.mark.parametrize("mechanism", ["two-sided-wishart", "gaussian"])
def test_a_release_is_the_exact_moment_plus_one_draw_of_the_noise(
    transaction: Transaction,
    values: npt.NDArray[np.uint8],
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    centring: Centring,
) -> None:
    loss = PrivacyLoss.parse("1", "1e-6") if mechanism == "gaussian" else PrivacyLoss.parse("1")
    transaction = asking(
        transaction, mechanism=mechanism, loss=loss, centring=centring, neighbours=Neighbours.ADD_REMOVE
    )
    recording = Recording()
    monkeypatch.setattr(trusted, "SYSTEM", recording)
    drawn = io.BytesIO(b"".join(trusted._drawn(transaction, moment_of(transaction))))
    archive.publish(drawn, transaction.target)
    release = open_release(transaction.target)
    replaying = Replaying(recording.drawn)
    calibrated = transaction.request.calibrated(len(NAMES))
    assert isinstance(calibrated, Additive)
    noise = calibrated.draw(replaying)
    assert not replaying.left  # all that was drawn went into one matrix
    assert noise.any()
    width = len(NAMES) + (centring is Centring.PRIVATE)
    np.testing.assert_array_equal(release.lattice - unpacked(noise, width), exact(transaction, values))


def test_finalise_is_idempotent(transaction: Transaction) -> None:
    trusted.reserve(transaction)
    partials = partials_of(transaction)
    trusted.finalise(transaction, *partials)
    first, head = committed_bytes(transaction), ledger_of(transaction).head
    trusted.finalise(transaction, *partials)
    trusted.finalise(transaction, *partials_of(transaction, per_worker=2))
    assert committed_bytes(transaction) == first
    assert ledger_of(transaction).head == head
    assert len(list((books(transaction) / "blobs").iterdir())) == 1


def test_two_releases_carry_different_noise(transaction: Transaction) -> None:
    one = published(transaction).lattice
    other = published(
        replace(asking(transaction, name="other"), target=transaction.target.with_name("other.zarr"))
    ).lattice
    assert (one != other).all()  # one partial noise in common would reveal a difference of rows


@pytest.mark.parametrize("period", ["", "may"])
def test_the_id_follows_from_the_request_alone(transaction: Transaction, period: str) -> None:
    asked = asking(transaction, name=None, period=period)
    assert asked.release_id == replace(asked, target=Path("elsewhere"), ledger=Path("other")).release_id
    assert asked.release_id != asking(asked, period="june").release_id
    longer = replace(asked.table, rows=ROWS + 1)
    assert asked.release_id == replace(asked, table=longer).release_id  # a hash of n would reveal n


# --- coverage ---------------------------------------------------------------------------------------------------------


def shortened(partial: Partial) -> Partial:
    return replace(partial, rows=partial.rows - 1)


WRONG: dict[str, Callable[[list[Partial]], list[Partial]]] = {
    "one missing": lambda partials: partials[1:],
    "the last missing": lambda partials: partials[:-1],
    "one in the middle missing": lambda partials: partials[:1] + partials[2:],
    "one twice": lambda partials: [*partials, partials[0]],
    "all twice": lambda partials: partials * 2,
    "one twice instead of another": lambda partials: [partials[0], *partials[:-1]],
    "one row too few": lambda partials: [shortened(partials[0]), *partials[1:]],
    "none at all": lambda _: [],
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_partials_that_do_not_cover_the_table_once_are_never_released(
    transaction: Transaction, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[list[Partial]], list[Partial]]
) -> None:
    trusted.reserve(transaction)
    partials = partials_of(transaction)
    recording = Recording()
    monkeypatch.setattr(trusted, "SYSTEM", recording)
    with pytest.raises(DpdistError):
        trusted.finalise(transaction, *wrong(partials))
    assert recording.drawn == []
    record = ledger_of(transaction).record("census")
    assert record is not None
    assert record.state is State.RESERVED
    assert list((books(transaction) / "blobs").iterdir()) == []
    with pytest.raises(DpdistError):
        trusted.publish(transaction)
    assert not transaction.target.exists()
    trusted.finalise(transaction, *partials)
    trusted.publish(transaction)
    assert ledger_of(transaction).spent() == PrivacyLoss.parse("1")


# --- reserving --------------------------------------------------------------------------------------------------------


def test_a_target_that_cannot_be_written_is_refused_before_anything_is_charged(
    transaction: Transaction, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    places = ["missing/release.zarr", "file/release.zarr", "file", "folder", "dangling", "books.ledger"]
    before = sorted(tmp_path.iterdir())
    for place in places:
        with pytest.raises(DataError):
            trusted.reserve(replace(transaction, target=tmp_path / place))
    assert ledger_of(transaction).records == []
    assert sorted(tmp_path.iterdir()) == before


def test_a_place_taken_by_another_release_is_refused_before_anything_is_charged(transaction: Transaction) -> None:
    published(transaction)
    before = tree(transaction.target)
    with pytest.raises(DataError):
        trusted.reserve(asking(transaction, name="other"))
    assert [record.release_id for record in ledger_of(transaction).records] == ["census"]
    assert tree(transaction.target) == before


def test_without_a_ledger_nothing_is_released(transaction: Transaction, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="restore it from a copy"):
        trusted.reserve(replace(transaction, ledger=tmp_path / "none.ledger"))
    assert not (tmp_path / "none.ledger").exists()
    with pytest.raises(RefusedError, match="ledger create"):
        trusted.reserve(replace(transaction, table=replace(transaction.table, ledger_id=None)))


def test_no_other_ledger_pays_not_even_one_of_the_same_data_set(transaction: Transaction, tmp_path: Path) -> None:
    # a second ledger would pay for a second draw of the same release, and the average of two undoes the noise
    for dataset_id in ("f" * 32, transaction.table.dataset_id):
        place = tmp_path / f"{dataset_id}.ledger"
        other = Ledger.create(place, dataset_id=dataset_id, budget=PrivacyLoss.parse("9"))
        with pytest.raises(RefusedError, match="not the ledger of"):
            trusted.reserve(replace(transaction, ledger=place))
        assert other.records == []


def test_a_release_costs_what_its_mechanism_guarantees(transaction: Transaction) -> None:
    assert trusted.reserve(transaction) is State.RESERVED
    assert trusted.reserve(transaction) is State.RESERVED
    (record,) = ledger_of(transaction).records
    assert record.guarantee == REQUEST.calibrated(len(NAMES)).guarantee
    assert record.guarantee.loss == PrivacyLoss.parse("1")
    assert "rows" not in record.parameters
    with pytest.raises(RefusedError, match="epsilon_micro differ"):
        trusted.reserve(asking(transaction, loss=PrivacyLoss.parse("2")))
    with pytest.raises(RefusedError, match="bound differ"):
        trusted.reserve(asking(transaction, clip_norm=2 * CLIP))


# --- several attempts -------------------------------------------------------------------------------------------------


class Overtaking:
    """Lets another attempt begin just before a commit, so that the commit is fenced out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, times: int) -> None:
        self.fences: list[int] = []
        self.waiting = threading.Event()
        self.commit = Ledger.commit
        wait = Ledger.wait

        def overtaken(ledger: Ledger, release_id: str, fence: int, content: Iterable[bytes]) -> bool:
            if len(self.fences) < times:
                began = Ledger(folder).begin(release_id)
                assert began is not None
                self.fences.append(began)
            return self.commit(ledger, release_id, fence, content)

        def watched(ledger: Ledger, *arguments: Any) -> bool:
            self.waiting.set()
            return wait(ledger, *arguments)

        monkeypatch.setattr(Ledger, "commit", overtaken)
        monkeypatch.setattr(Ledger, "wait", watched)


def test_an_attempt_that_was_fenced_out_returns_with_the_winners_bytes(
    transaction: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted.reserve(transaction)
    monkeypatch.setattr(trusted, "_WINNER_SECONDS", PATIENCE)
    overtaking = Overtaking(monkeypatch, books(transaction), times=1)
    theirs = b"".join(trusted._drawn(transaction, moment_of(transaction)))

    def win() -> None:
        assert overtaking.waiting.wait(PATIENCE)
        assert overtaking.commit(ledger_of(transaction), "census", overtaking.fences[0], [theirs])

    winner = threading.Thread(target=win)
    winner.start()
    trusted.finalise(transaction, *partials_of(transaction))
    # finalise came back only because the winner had committed
    assert committed_bytes(transaction) == theirs
    winner.join()
    assert overtaking.waiting.is_set()
    assert overtaking.fences == [2]
    record = ledger_of(transaction).record("census")
    assert record is not None
    assert (record.state, record.fence) == (State.COMMITTED, 2)
    assert len(list((books(transaction) / "blobs").iterdir())) == 1
    trusted.publish(transaction)
    assert ledger_of(transaction).spent() == PrivacyLoss.parse("1")


def test_when_the_winner_dies_the_loser_begins_again_with_a_new_draw(
    transaction: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted.reserve(transaction)
    Overtaking(monkeypatch, books(transaction), times=1)
    monkeypatch.setattr(trusted, "_WINNER_SECONDS", 0.2)
    draws: list[bytes] = []
    drawn = trusted._drawn

    def counted(*arguments: Any) -> list[bytes]:
        draws.append(b"".join(drawn(*arguments)))
        return [draws[-1]]

    monkeypatch.setattr(trusted, "_drawn", counted)
    trusted.finalise(transaction, *partials_of(transaction))
    record = ledger_of(transaction).record("census")
    assert record is not None
    assert (record.state, record.fence) == (State.COMMITTED, 3)
    assert len(draws) == 2
    assert draws[0] != draws[1]
    assert committed_bytes(transaction) == draws[1]  # the first was discarded when it was fenced out


def test_who_is_overtaken_by_one_dying_attempt_after_the_other_gives_up_for_now(
    transaction: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted.reserve(transaction)
    Overtaking(monkeypatch, books(transaction), times=100)
    monkeypatch.setattr(trusted, "_WINNER_SECONDS", 0.1)
    with pytest.raises(DpdistError, match="again") as failure:
        trusted.finalise(transaction, *partials_of(transaction))
    record = ledger_of(transaction).record("census")
    assert record is not None
    assert record.state is State.RESERVED
    assert list((books(transaction) / "blobs").iterdir()) == []
    assert failure.value.exit_code == 5  # the same command resumes; it is no defect


class Clock:
    """A clock that moves only while somebody sleeps, and lets something happen at given times."""

    def __init__(self, events: dict[float, Callable[[], object]]) -> None:
        self.now = 0.0
        self.events = dict(events)

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        for time in [time for time in self.events if time <= self.now]:
            self.events.pop(time)()


def test_every_new_attempt_is_given_the_full_time_to_commit(
    transaction: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted.reserve(transaction)
    ledger, other = ledger_of(transaction), ledger_of(transaction)
    assert ledger.begin("census") == 1
    assert other.begin("census") == 2

    def begin() -> object:
        return other.begin("census")

    def commit() -> object:
        return other.commit("census", 4, [b"at last"])

    for events, seconds, committed in [
        ({}, 60.0, False),
        ({50.0: begin, 100.0: begin}, 160.0, False),
        ({50.0: commit}, 50.0, True),
    ]:
        clock = Clock(events)
        monkeypatch.setattr(ledgers, "time", clock)
        fence = (ledger.record("census") or pytest.fail("it is reserved")).fence
        assert ledger.wait("census", fence - 1, 60.0) is committed
        assert clock.events == {}
        assert seconds <= clock.now < seconds + 1


def test_a_waiting_attempt_returns_at_once_when_there_is_nothing_to_wait_for(transaction: Transaction) -> None:
    trusted.reserve(transaction)
    ledger = ledger_of(transaction)
    fence = ledger.begin("census")
    assert fence is not None
    assert ledger.commit("census", fence, [b"bytes"])
    assert ledger.wait("census", fence, PATIENCE)


@pytest.mark.parametrize("moment", ["commit", "wait"])
def test_a_release_aborted_while_it_was_drawn_is_refused(
    transaction: Transaction, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    trusted.reserve(transaction)
    if moment == "wait":
        Overtaking(monkeypatch, books(transaction), times=1)
    original = getattr(Ledger, moment)

    def aborted(ledger: Ledger, *arguments: Any) -> Any:
        trusted.abort(transaction)  # another run met an unusable chunk
        return original(ledger, *arguments)

    monkeypatch.setattr(Ledger, moment, aborted)
    with pytest.raises(RefusedError):
        trusted.finalise(transaction, *partials_of(transaction))
    assert list((books(transaction) / "blobs").iterdir()) == []
    assert ledger_of(transaction).spent() is None


def test_a_release_aborted_before_it_was_drawn_is_refused(transaction: Transaction) -> None:
    trusted.reserve(transaction)
    trusted.abort(transaction)
    with pytest.raises(RefusedError):
        trusted.finalise(transaction, *partials_of(transaction))
    assert ledger_of(transaction).spent() is None


def test_a_refund_after_the_commit_does_not_happen(transaction: Transaction) -> None:
    trusted.reserve(transaction)
    trusted.finalise(transaction, *partials_of(transaction))
    first = committed_bytes(transaction)
    trusted.abort(transaction)
    assert ledger_of(transaction).spent() == PrivacyLoss.parse("1")
    assert committed_bytes(transaction) == first


# --- publishing -------------------------------------------------------------------------------------------------------


def test_publication_is_idempotent_and_the_same_everywhere(transaction: Transaction, tmp_path: Path) -> None:
    published(transaction)
    before = tree(transaction.target)
    trusted.publish(transaction)
    assert tree(transaction.target) == before  # the very files: they were left alone
    elsewhere = replace(transaction, target=tmp_path / "copy.zarr")
    trusted.publish(elsewhere)
    assert {n: c for n, (c, _) in tree(elsewhere.target).items()} == {n: c for n, (c, _) in before.items()}
    record = ledger_of(transaction).record("census")
    assert record is not None
    assert record.state is State.PUBLISHED


@pytest.mark.parametrize("obstacle", ["file", "folder", "empty folder", "changed", "with more in it", "with less"])
def test_publication_never_overwrites_something_else(transaction: Transaction, obstacle: str) -> None:
    trusted.reserve(transaction)
    trusted.finalise(transaction, *partials_of(transaction))
    target = transaction.target
    if obstacle == "file":
        target.write_text("mine")
    elif obstacle.endswith("folder"):
        target.mkdir()
        if obstacle == "folder":
            (target / "zarr.json").write_text("mine")
    else:
        archive.publish(io.BytesIO(committed_bytes(transaction)), target)
        if obstacle == "changed":
            (target / "zarr.json").write_bytes((target / "zarr.json").read_bytes() + b"\n")
        elif obstacle == "with less":
            (target / "lattice" / "c" / "0" / "0").unlink()
        else:
            (target / "notes.txt").write_text("mine")
    before = tree(target) if target.is_dir() else target.read_bytes()
    with pytest.raises(DataError):
        trusted.publish(transaction)
    assert (tree(target) if target.is_dir() else target.read_bytes()) == before
    record = ledger_of(transaction).record("census")
    assert record is not None
    assert record.state is State.COMMITTED
    assert [path.name for path in target.parent.iterdir() if path.name.endswith(".partial")] == []
    elsewhere = replace(transaction, target=target.with_name("elsewhere.zarr"))
    trusted.publish(elsewhere)
    open_release(elsewhere.target)


def test_a_publication_that_loses_the_race_to_the_same_bytes_is_content(
    transaction: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted.reserve(transaction)
    trusted.finalise(transaction, *partials_of(transaction))
    content, holds = committed_bytes(transaction), archive.holds
    looked = []

    def overtaken(target: Path, files: IO[bytes]) -> bool:
        held = holds(target, files)
        looked.append(held)
        if len(looked) == 1:
            archive.publish(io.BytesIO(content), target)  # another process, between looking and writing
        return held

    monkeypatch.setattr(archive, "holds", overtaken)
    trusted.publish(transaction)
    assert looked[0] is False
    assert looked[-1] is True
    assert [path.name for path in transaction.target.parent.iterdir() if path.name.endswith(".partial")] == []
    open_release(transaction.target)


def test_a_release_is_flushed_before_its_publication_is_recorded(
    transaction: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted.reserve(transaction)
    trusted.finalise(transaction, *partials_of(transaction))
    target = transaction.target
    flushed: set[str] = set()
    fsync, recorded = os.fsync, Ledger.published

    def seen(handle: int) -> None:
        fsync(handle)
        place = Path(f"/proc/self/fd/{handle}").readlink()
        assert target.exists() == (place == target.parent)  # the folder's new entry last, all else before it
        flushed.add("/".join(place.relative_to(target.parent).parts[1:]) if place != target.parent else "..")

    def record(ledger: Ledger, release_id: str) -> None:
        assert flushed == {"..", "", *(str(path.relative_to(target)) for path in target.rglob("*"))}
        recorded(ledger, release_id)

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(Ledger, "published", record)
    trusted.publish(transaction)
    assert flushed


def test_altered_bytes_are_not_published(transaction: Transaction) -> None:
    trusted.reserve(transaction)
    trusted.finalise(transaction, *partials_of(transaction))
    (blob,) = (books(transaction) / "blobs").iterdir()
    content = blob.read_bytes()
    blob.write_bytes(content.replace(b"census", b"sensus"))
    assert blob.read_bytes() != content
    with pytest.raises(DataError):
        trusted.publish(transaction)
    assert not transaction.target.exists()


# --- what a release says ----------------------------------------------------------------------------------------------

BOTH_MECHANISMS = pytest.mark.parametrize(
    ("mechanism", "loss"),
    [("two-sided-wishart", PrivacyLoss.parse("1")), ("gaussian", PrivacyLoss.parse("1", "1e-6"))],
)


def with_delta(transaction: Transaction, tmp_path: Path) -> Transaction:
    """Return the transaction with a ledger that allows a delta."""
    ledger = tmp_path / "delta.ledger"
    books = Ledger.create(ledger, dataset_id=transaction.table.dataset_id, budget=PrivacyLoss.parse("4", "1e-5"))
    return replace(transaction, ledger=ledger, table=replace(transaction.table, ledger_id=books.ledger_id))


def everything_published(transaction: Transaction) -> list[bytes]:
    return [content for content, _ in tree(transaction.target).values()]


@BOTH_MECHANISMS
@pytest.mark.parametrize("centring", list(Centring))
def test_under_add_remove_the_number_of_rows_is_nowhere(
    transaction: Transaction, tmp_path: Path, mechanism: str, loss: PrivacyLoss, centring: Centring
) -> None:
    transaction = asking(
        with_delta(transaction, tmp_path),
        mechanism=mechanism,
        loss=loss,
        centring=centring,
        neighbours=Neighbours.ADD_REMOVE,
    )
    release = published(transaction)
    assert release.rows is None
    assert release.attributes()["n"] is None
    counts = [ROWS]
    if centring is Centring.PRIVATE:
        corner = ROWS * 4 ** (BITS - 1)
        assert release.lattice[-1, -1] != corner  # the corner counts rows, so it is as noisy as the rest
        assert release.row_count != ROWS
        counts.append(corner)
    else:
        assert release.row_count is None
    journal = [path.read_bytes() for path in books(transaction).iterdir() if path.is_file()]
    for content in [*everything_published(transaction), *journal]:
        for count in counts:
            # as a number in text, which digits of a hash are not, and as eight bytes
            assert not re.search(rb"(?<![0-9a-f])%d(?![0-9a-f])" % count, content)
            assert np.int64(count).tobytes() not in content
            assert np.float64(count).tobytes() not in content


@BOTH_MECHANISMS
@pytest.mark.parametrize("centring", list(Centring))
def test_under_replace_one_the_number_of_rows_is_exact(
    transaction: Transaction, tmp_path: Path, mechanism: str, loss: PrivacyLoss, centring: Centring
) -> None:
    transaction = asking(with_delta(transaction, tmp_path), mechanism=mechanism, loss=loss, centring=centring)
    release = published(transaction)
    assert release.rows == ROWS
    assert release.attributes()["n"] == ROWS
    assert release.row_count == ROWS
    assert str(ROWS).encode() in (transaction.target / "zarr.json").read_bytes()
    if centring is Centring.PRIVATE:
        constant = release.bound.constant
        assert constant == 2 ** (BITS - 1)
        assert int(release.lattice[-1, -1]) == ROWS * constant**2


@BOTH_MECHANISMS
@pytest.mark.parametrize("centring", list(Centring))
def test_no_entry_of_the_exact_moment_is_in_any_file(
    transaction: Transaction,
    tmp_path: Path,
    values: npt.NDArray[np.uint8],
    mechanism: str,
    loss: PrivacyLoss,
    centring: Centring,
) -> None:
    transaction = asking(with_delta(transaction, tmp_path), mechanism=mechanism, loss=loss, centring=centring)
    release = published(transaction)
    moment = exact(transaction, values)[: len(NAMES), :]
    entries = [int(entry) for entry in moment[np.triu_indices(len(NAMES), 0, moment.shape[1])]]
    unit = release.bound.unit
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) > 5  # release, ledger and committed bytes; the rows stand elsewhere
    for path in kept:
        content = path.read_bytes()
        for entry in entries:
            for form in (np.int64(entry), np.float64(entry), np.float64(entry * unit**2)):
                assert form.tobytes() not in content, path


@BOTH_MECHANISMS
def test_a_published_release_says_what_it_is(
    transaction: Transaction, tmp_path: Path, mechanism: str, loss: PrivacyLoss
) -> None:
    transaction = asking(with_delta(transaction, tmp_path), mechanism=mechanism, loss=loss, centring=Centring.PRIVATE)
    release = published(transaction)
    assert (release.release_id, release.mechanism, release.names) == ("census", mechanism, NAMES)
    assert release.guarantee == transaction.request.calibrated(len(NAMES)).guarantee
    assert release.noise == transaction.request.calibrated(len(NAMES)).noise
    assert release.bound == transaction.request.bound(len(NAMES))
    assert release.lattice.shape == (4, 4)
    np.testing.assert_array_equal(release.lattice, release.lattice.T)

    import zarr

    arrays = {name: np.asarray(array[...]) for name, array in zarr.open_group(transaction.target, mode="r").arrays()}
    assert set(arrays) == {"lattice", "second_moment", "row_sum"}
    unit = CLIP / 2**BITS
    np.testing.assert_array_equal(arrays["lattice"], release.lattice)
    np.testing.assert_array_equal(arrays["second_moment"], release.lattice[:3, :3] * unit**2)
    np.testing.assert_array_equal(arrays["row_sum"], release.lattice[:3, 3] * (unit / 2 ** (BITS - 1)))
    np.testing.assert_array_equal(arrays["second_moment"], release.second_moment)
    assert release.row_sum is not None
    np.testing.assert_array_equal(arrays["row_sum"], release.row_sum)


def test_a_release_estimates_what_it_should(
    transaction: Transaction, tmp_path: Path, values: npt.NDArray[np.uint8]
) -> None:
    loss = PrivacyLoss.parse("2", "1e-5")
    transaction = asking(with_delta(transaction, tmp_path), mechanism="gaussian", loss=loss, centring=Centring.PRIVATE)
    release = published(transaction)
    norms = np.maximum(1, np.linalg.norm(values.astype(np.float64), axis=1, keepdims=True) / CLIP)
    clipped = values / norms
    spread = np.sqrt(release.noise["variance_diagonal"]) * release.bound.unit**2
    # ten standard deviations and the grid: wrong by a scale or a row is wrong by far more
    grid = 2 * ROWS * CLIP * release.bound.unit
    np.testing.assert_allclose(release.second_moment, clipped.T @ clipped, rtol=0, atol=10 * spread + grid)
    assert release.row_sum is not None
    atol = (10 * spread + grid) / (CLIP / 2)
    np.testing.assert_allclose(release.row_sum, clipped.sum(axis=0), rtol=0, atol=atol)


# --- damage -----------------------------------------------------------------------------------------------------------

CHUNKS = ("lattice/c/0/0", "second_moment/c/0/0", "row_sum/c/0")
HEADS = ("zarr.json", "lattice/zarr.json", "second_moment/zarr.json", "row_sum/zarr.json")


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture(scope="module")
def sound_release(table: RowsTable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    books = Ledger.create(folder / "books.ledger", dataset_id=table.dataset_id, budget=PrivacyLoss.parse("1"))
    request, table = replace(REQUEST, centring=Centring.PRIVATE), replace(table, ledger_id=books.ledger_id)
    published(Transaction(request, table, folder / "books.ledger", folder / "release.zarr"))
    return folder / "release.zarr"


@pytest.fixture
def release_path(sound_release: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "release.zarr"
    shutil.copytree(sound_release, copy)
    open_release(copy)
    return copy


# Zarr warns of some damage; a warning is an error in these tests and hides that the product does not refuse.
AS_USERS_RUN_IT = pytest.mark.filterwarnings("ignore")


def test_the_parts_of_a_release_are_those_that_are_damaged_here(release_path: Path) -> None:
    assert set(tree(release_path)) == {*CHUNKS, *HEADS}


@AS_USERS_RUN_IT
@pytest.mark.parametrize("damage", [flipped, halved, Path.unlink])
@pytest.mark.parametrize("part", CHUNKS)
def test_a_release_with_a_damaged_chunk_does_not_open(
    release_path: Path, part: str, damage: Callable[[Path], object]
) -> None:
    damage(release_path / part)
    with pytest.raises(DataError):
        open_release(release_path)


@AS_USERS_RUN_IT
@pytest.mark.parametrize("damage", [halved, Path.unlink])
@pytest.mark.parametrize("part", HEADS)
def test_a_release_with_a_damaged_description_does_not_open(
    release_path: Path, part: str, damage: Callable[[Path], object]
) -> None:
    damage(release_path / part)
    with pytest.raises(DataError):
        open_release(release_path)


@AS_USERS_RUN_IT
def test_a_release_without_any_chunk_is_not_a_matrix_of_zeros(release_path: Path) -> None:
    for part in CHUNKS:
        (release_path / part).unlink()
    with pytest.raises(DataError):
        open_release(release_path)


@AS_USERS_RUN_IT
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"clip_norm": 64.0', b'"clip_norm": 32.0'),
        (b'"grid_bits": 10', b'"grid_bits": 11'),
        (b'"columns": 3', b'"columns": 4'),
        (b"dpdist-release/1", b"dpdist-release/2"),
        (b'"n": 7919', b'"n": "<b>7919"'),
        (b'"n": 7919', b'"n": -7919'),
        (b'"n": 7919', b'"n": true'),
    ],
)
def test_a_release_whose_description_contradicts_it_does_not_open(release_path: Path, old: bytes, new: bytes) -> None:
    path = release_path / "zarr.json"
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    with pytest.raises(DataError):
        open_release(release_path)


@AS_USERS_RUN_IT
def test_what_is_no_release_does_not_open(table: RowsTable, tmp_path: Path) -> None:
    for place in (table.path, tmp_path / "nowhere", tmp_path):
        with pytest.raises(DataError):
            open_release(place)


# --- the step as a whole ----------------------------------------------------------------------------------------------


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "connected", crash_driver.inline)


def released(transaction: Transaction, **changes: Any) -> pipeline.Outcome:
    request = replace(transaction.request, **changes)
    return pipeline.release_rows(transaction.table.path, transaction.target, request, ledger=transaction.ledger)


@pytest.mark.usefixtures("inline")
def test_an_unusable_chunk_is_refunded_and_the_release_can_be_had_later(transaction: Transaction) -> None:
    table, target = transaction.table, transaction.target
    path = table.chunk_path(3)
    sound = path.read_bytes()
    flipped(path)
    with pytest.raises(DataError, match="Chunk 3 "):
        released(transaction)
    (record,) = ledger_of(transaction).records
    assert record.state is State.ABORTED
    assert ledger_of(transaction).spent() is None
    assert not target.exists()
    path.write_bytes(sound)
    assert released(transaction).fresh
    assert ledger_of(transaction).spent() == PrivacyLoss.parse("1")
    before = tree(target)
    assert not released(transaction).fresh
    assert tree(target) == before
    assert len(ledger_of(transaction).records) == 1


@pytest.mark.usefixtures("inline")
def test_a_table_too_long_for_the_grid_costs_nothing(transaction: Transaction, tmp_path: Path) -> None:
    # no release of it can ever be computed with this request, so none may stay charged
    rows = tmp_path / "long.zarr"
    with created(rows, rows=40_000, dtype="uint8", names=NAMES, budget=None) as writer:
        writer.append(np.ones((40_000, len(NAMES)), dtype=np.uint8))
    ledger = accounts.create_ledger(tmp_path / "long.ledger", rows, PrivacyLoss.parse("1"))
    transaction = replace(transaction, table=open_rows(rows), ledger=tmp_path / "long.ledger")
    with pytest.raises(DataError, match="--grid-bits"):
        released(transaction, grid_bits=24)
    assert ledger.spent() is None
    assert released(transaction, name="coarser").fresh


@pytest.mark.usefixtures("inline")
def test_a_refused_release_reads_no_row(transaction: Transaction, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        pytest.fail("a row was read")

    monkeypatch.setattr(reading.ChunkReader, "read", never)
    with pytest.raises(RefusedError):
        released(transaction, loss=PrivacyLoss.parse("5"))
    assert ledger_of(transaction).records == []


@pytest.mark.usefixtures("inline")
def test_a_committed_release_is_published_without_a_cluster_or_a_row(
    transaction: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted.reserve(transaction)
    trusted.finalise(transaction, *partials_of(transaction))

    def never(*_: Any, **__: Any) -> None:
        pytest.fail("the rows are not needed any more")

    monkeypatch.setattr(engine, "connected", never)
    monkeypatch.setattr(reading.ChunkReader, "read", never)
    assert not released(transaction).fresh
    assert ledger_of(transaction).records[0].state is State.PUBLISHED
    with pytest.raises(RefusedError, match="bound differ"):  # committed or not, the id stands for its parameters
        released(transaction, clip_norm=1.0)


# --- the ledger's head ------------------------------------------------------------------------------------------------


def test_a_release_carries_the_head_of_the_ledger_after_it_was_reserved_and_before_it_was_drawn(
    transaction: Transaction,
) -> None:
    trusted.reserve(transaction)
    reserved = ledger_of(transaction).head
    release = published(transaction)
    with closing(sqlite3.connect(books(transaction) / "ledger.sqlite")) as connection:
        digests = [row[0] for row in connection.execute("SELECT digest FROM journal ORDER BY sequence")]
    assert len(digests) == 5  # created, reserved, begun, committed, published
    assert reserved == digests[1]
    assert release.ledger_head == digests[2]
    assert accounts.verify_ledger(books(transaction), [transaction.target]).head == digests[4]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_ledger_that_forgot_a_release_is_refused_and_draws_nothing(transaction: Transaction, kept: int) -> None:
    published(transaction)
    before = tree(transaction.target)
    with closing(sqlite3.connect(books(transaction) / "ledger.sqlite")) as connection:
        connection.execute("DELETE FROM journal WHERE sequence > ?", (kept,))
        connection.commit()
    ledger = ledger_of(transaction)
    ledger.verify()  # a chain cut short is sound by itself
    records = ledger.records
    for use in (
        lambda: trusted.reserve(transaction),
        lambda: accounts.verify_ledger(books(transaction), [transaction.target]),
    ):
        with pytest.raises(RefusedError, match="older copy"):
            use()
    assert ledger_of(transaction).records == records
    assert tree(transaction.target) == before


def test_a_ledger_restored_and_used_again_is_found_out_by_the_release_it_forgot(transaction: Transaction) -> None:
    copy = books(transaction).with_name("backup")
    shutil.copytree(books(transaction), copy)
    published(transaction)
    forgotten = transaction.target.rename(transaction.target.with_name("seen.zarr"))  # published elsewhere
    shutil.rmtree(books(transaction))
    copy.rename(books(transaction))
    second = published(transaction)
    assert second.release_id == open_release(forgotten).release_id
    accounts.verify_ledger(books(transaction), [transaction.target])
    with pytest.raises(RefusedError, match="older copy"):
        accounts.verify_ledger(books(transaction), [transaction.target, forgotten])


def test_a_release_that_was_altered_does_not_verify(transaction: Transaction) -> None:
    published(transaction)
    metadata = transaction.target / "zarr.json"
    content = metadata.read_text()
    assert content.count("dpdist 0.1.0") == 1
    metadata.write_text(content.replace("dpdist 0.1.0", "dpdist 0.1.1"))
    open_release(transaction.target)
    with pytest.raises(DataError, match="not what was committed"):
        accounts.verify_ledger(books(transaction), [transaction.target])
