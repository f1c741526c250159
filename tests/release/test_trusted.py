"""The trusted node's transaction: the exact total plus one draw, committed once, published to the byte."""

from __future__ import annotations

import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.ledgers import losses
from support.parts import added
from support.replays import Recording, Replaying
from support.trusted_scene import (
    CLIP,
    NAMES,
    REQUEST,
    ROWS,
    asking,
    books,
    committed_bytes,
    exact,
    flipped,
    ledger_of,
    moment_of,
    partials_of,
    published,
    rows_of,
    target_of,
    total_of,
    tree,
)

from dpdist.errors import DataError, DpdistError, RefusedError, UsageError
from dpdist.ingest.registered import open_rows
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.mechanisms.base import Additive
from dpdist.moment.total import Partial
from dpdist.pipeline import budget
from dpdist.pipeline.release import Outcome, release_rows
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release import trusted
from dpdist.release.artefact import Release, open_release
from dpdist.release.request import Centring
from dpdist.release.trusted import MomentTransaction
from dpdist.rows import chunks
from dpdist.rows.dataset import RowsTable, created
from dpdist.rows.writing import chunk_key
from dpdist.runtime.cluster import Cluster
from dpdist.storage.store import store_at
from dpdist.triangle import unpacked

DATASETS = ("f" * 32,)


def in_memory(transaction: MomentTransaction) -> Release:
    moment = moment_of(transaction)
    return trusted.draw_unrecorded(transaction.request, moment, names=NAMES, rows=ROWS, datasets=DATASETS)


@pytest.mark.parametrize("release", [published, in_memory])
@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("centring", list(Centring))
@pytest.mark.parametrize(("mechanism", "delta"), [("two-sided-wishart", "0"), ("gaussian", "1e-6")])
def test_a_release_is_the_exact_moment_plus_one_draw_and_its_corner_is_exact_where_n_is_public(
    transaction: MomentTransaction,
    values: npt.NDArray[np.uint8],
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    delta: str,
    centring: Centring,
    neighbours: Neighbours,
    release: Callable[[MomentTransaction], Release],
) -> None:
    loss = PrivacyLoss.parse("1", delta)
    transaction = asking(transaction, mechanism=mechanism, loss=loss, centring=centring, neighbours=neighbours)
    recording = Recording()
    monkeypatch.setattr(trusted, "SYSTEM", recording)
    released = release(transaction)
    calibrated = transaction.request.calibrated(len(NAMES))
    assert isinstance(calibrated, Additive)
    replaying = Replaying(recording.drawn)
    noise = unpacked(calibrated.draw(replaying), len(NAMES) + (centring is Centring.PRIVATE))
    assert not replaying.left  # all that was drawn went into one matrix
    assert noise[-1, -1] != 0
    public = neighbours is Neighbours.REPLACE_ONE
    if centring is Centring.PRIVATE and public:
        noise[-1, -1] = 0
    np.testing.assert_array_equal(released.lattice - noise, exact(transaction, values))
    assert (released.rows, released.attributes()["n"]) == ((ROWS, ROWS) if public else (None, None))
    assert released.guarantee == calibrated.guarantee


def test_a_subspace_is_released_as_it_is(transaction: MomentTransaction) -> None:
    released = in_memory(asking(transaction, mechanism="bingham", options={"components": 2}))
    assert [extent.dataset for extent in released.extents] == list(DATASETS)
    answer = np.asarray(released.answer)
    assert answer.shape == (2, len(NAMES))
    np.testing.assert_allclose(answer @ answer.T, np.eye(2), atol=1e-9)


def test_finalise_is_idempotent(transaction: MomentTransaction) -> None:
    transaction.reserve()
    total = total_of(transaction)
    trusted.finalise(transaction, total)
    first, head = committed_bytes(transaction), ledger_of(transaction).head
    trusted.finalise(transaction, total)
    trusted.finalise(transaction, total_of(transaction, 8))
    assert committed_bytes(transaction) == first
    assert ledger_of(transaction).head == head
    assert len(list((books(transaction) / "blobs").iterdir())) == 1


def test_two_releases_carry_different_noise(transaction: MomentTransaction) -> None:
    other = replace(asking(transaction, name="other"), target=store_at(target_of(transaction).with_name("other.zarr")))
    for one, two in (
        (published(transaction), published(other)),
        (in_memory(transaction), in_memory(transaction)),
    ):
        assert one.release_id != two.release_id
        assert (one.lattice != two.lattice).all()  # one partial noise in common would reveal a difference of rows


def test_the_id_follows_from_the_request_alone(transaction: MomentTransaction) -> None:
    changed = asking(transaction, name=None, period="may")
    assert changed.release_id == replace(changed, target=store_at("elsewhere"), ledger=Path("other")).release_id
    assert changed.release_id != asking(changed, period="june").release_id
    longer = replace(rows_of(changed), rows=ROWS + 1)
    assert changed.release_id == replace(changed, table=longer).release_id  # a hash of n would reveal n


Partials = list[Partial[np.int64]]
WRONG: dict[str, Callable[[Partials], Partials]] = {
    "one missing": lambda partials: partials[1:],
    "the last missing": lambda partials: partials[:-1],
    "one twice": lambda partials: [*partials, partials[0]],
    "one twice instead of another": lambda partials: [partials[0], *partials[:-1]],
    "one row too few": lambda partials: [replace(partials[0], rows=partials[0].rows - 1), *partials[1:]],
    "none at all": lambda _: [],
}


def test_partials_that_do_not_cover_the_table_once_are_never_released(
    transaction: MomentTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction.reserve()
    for name, wrong in WRONG.items():
        recording = Recording()
        with monkeypatch.context() as patch:
            patch.setattr(trusted, "SYSTEM", recording)
            partials = wrong(partials_of(transaction))
            with pytest.raises(DpdistError):
                trusted.finalise(transaction, added(partials) if partials else None)
        assert recording.drawn == [], name
        assert [record.state for record in ledger_of(transaction).records] == [State.RESERVED], name
        assert list((books(transaction) / "blobs").iterdir()) == [], name
        with pytest.raises(DpdistError):
            trusted.publish(transaction)
        assert not target_of(transaction).exists(), name
    trusted.finalise(transaction, total_of(transaction))
    trusted.publish(transaction)
    assert losses(ledger_of(transaction)) == [PrivacyLoss.parse("1")]


def test_a_target_that_cannot_be_written_is_refused_before_anything_is_charged(
    transaction: MomentTransaction, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    paths = ["missing/release.zarr", "file/release.zarr", "file", "folder", "dangling", "books.ledger"]
    before = sorted(tmp_path.iterdir())
    for path in paths:
        with pytest.raises(DataError):
            replace(transaction, target=store_at(tmp_path / path)).reserve()
    assert ledger_of(transaction).records == []
    assert sorted(tmp_path.iterdir()) == before


def test_a_place_taken_by_another_release_is_refused_before_anything_is_charged(transaction: MomentTransaction) -> None:
    published(transaction)
    before = tree(target_of(transaction))
    with pytest.raises(DataError):
        asking(transaction, name="other").reserve()
    assert [record.release_id for record in ledger_of(transaction).records] == ["census"]
    assert tree(target_of(transaction)) == before


def test_without_a_ledger_nothing_is_released(transaction: MomentTransaction, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="restore it from a copy"):
        replace(transaction, ledger=tmp_path / "none.ledger").reserve()
    assert not (tmp_path / "none.ledger").exists()
    with pytest.raises(RefusedError, match="Declare one with"):
        replace(transaction, table=replace(rows_of(transaction), ledger_id=None)).reserve()


def test_no_other_ledger_pays_not_even_one_of_the_same_data_set(transaction: MomentTransaction, tmp_path: Path) -> None:
    # a second ledger would pay for a second draw of the same release, and the average of two undoes the noise
    for dataset_id in ("f" * 32, transaction.table.dataset_id):
        address = tmp_path / f"{dataset_id}.ledger"
        other = Ledger.create(address, dataset_id=dataset_id, budget=PrivacyLoss.parse("9"))
        with pytest.raises(RefusedError, match="not the ledger of"):
            replace(transaction, ledger=address).reserve()
        assert other.records == []


def test_a_release_costs_what_its_mechanism_guarantees(transaction: MomentTransaction) -> None:
    assert transaction.reserve() is State.RESERVED
    assert transaction.reserve() is State.RESERVED
    (record,) = ledger_of(transaction).records
    assert record.guarantee == REQUEST.calibrated(len(NAMES)).guarantee
    assert record.guarantee.loss == PrivacyLoss.parse("1")
    assert "rows" not in record.parameters
    with pytest.raises(RefusedError, match="epsilon_micro differ"):
        asking(transaction, loss=PrivacyLoss.parse("2")).reserve()
    with pytest.raises(RefusedError, match="bound differ"):
        asking(transaction, clip_norm=2 * CLIP).reserve()


def test_a_release_for_reproduction_is_charged_to_no_ledger_and_not_drawn_of_rows_in_memory(
    transaction: MomentTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Recording()
    monkeypatch.setattr(trusted, "SYSTEM", recording)
    for mechanism, delta in (("none", "0"), ("analyze-gauss", "1e-6")):
        loss = PrivacyLoss.parse("1", delta)
        changed = asking(transaction, mechanism=mechanism, loss=loss, name=None, for_reproduction=True)
        with pytest.raises(UsageError, match="cannot be charged to a ledger"):
            changed.reserve()
        with pytest.raises(RefusedError, match="ingest them"):
            in_memory(changed)
    assert ledger_of(transaction).records == []
    assert recording.drawn == []


def test_a_release_for_reproduction_is_written_where_only_its_owner_can_enter(table: RowsTable, tmp_path: Path) -> None:
    rows = open_rows(shutil.copytree(table.path, tmp_path / "rows.zarr"))  # of which nothing else is released any more
    request = replace(REQUEST, mechanism="none", name=None, for_reproduction=True)
    transaction = MomentTransaction(request, rows, tmp_path / "none.ledger", store_at(tmp_path / "release.zarr"))
    trusted.finalise(transaction, total_of(transaction))
    assert stat.S_IMODE(target_of(transaction).stat().st_mode) == 0o700
    assert not (tmp_path / "none.ledger").exists()


def test_a_delta_that_is_not_below_one_in_n_is_accepted_for_one_charge(transaction: MomentTransaction) -> None:
    changed = asking(transaction, mechanism="gaussian", loss=PrivacyLoss.parse("1", "1e-3"))
    with pytest.raises(RefusedError, match="delta"):
        changed.reserve()
    assert ledger_of(transaction).records == []
    assert asking(changed, accept_large_delta=True).reserve() is State.RESERVED
    assert changed.reserve() is State.RESERVED  # what is charged already is resumed
    changed.abort()
    with pytest.raises(RefusedError, match="delta"):
        changed.reserve()


def released(transaction: MomentTransaction, **changes: Any) -> Outcome:
    """Release in this process."""
    request = replace(transaction.request, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "named", False)
        return release_rows(rows_of(transaction).path, target_of(transaction), request, ledger=transaction.ledger)


def test_an_unusable_chunk_is_refunded_and_the_release_can_be_had_later(transaction: MomentTransaction) -> None:
    table, target = rows_of(transaction), target_of(transaction)
    path = table.path / chunk_key(3)
    sound = path.read_bytes()
    flipped(path)
    with pytest.raises(DataError, match="Chunk 3 "):
        released(transaction)
    assert [record.state for record in ledger_of(transaction).records] == [State.ABORTED]
    assert ledger_of(transaction).charges == []
    assert not target.exists()
    path.write_bytes(sound)
    assert released(transaction).fresh
    assert losses(ledger_of(transaction)) == [PrivacyLoss.parse("1")]
    before = tree(target)
    assert not released(transaction).fresh
    assert tree(target) == before
    assert len(ledger_of(transaction).records) == 1


def test_a_table_too_long_for_the_grid_costs_nothing(transaction: MomentTransaction, tmp_path: Path) -> None:
    # no release of it can ever be computed with this request, so none may stay charged
    rows = tmp_path / "long.zarr"
    with created(rows, rows=40_000, dtype="uint8", names=NAMES, budget=None) as writer:
        writer.append(np.ones((40_000, len(NAMES)), dtype=np.uint8))
    ledger = budget.create_ledger(tmp_path / "long.ledger", rows, PrivacyLoss.parse("1"))
    transaction = replace(transaction, table=open_rows(rows), ledger=tmp_path / "long.ledger")
    with pytest.raises(DataError, match=r"\(grid_bits\)"):
        released(transaction, grid_bits=24)
    assert ledger.charges == []
    assert released(transaction, name="coarser").fresh


def test_no_row_is_read_of_a_release_that_is_refused_or_committed(
    transaction: MomentTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        pytest.fail("the rows are not needed")

    total = total_of(transaction)
    monkeypatch.setattr(chunks.ChunkReader, "read", never)
    with pytest.raises(RefusedError):
        released(transaction, loss=PrivacyLoss.parse("5"))
    assert ledger_of(transaction).records == []
    transaction.reserve()
    trusted.finalise(transaction, total)
    monkeypatch.setattr(Cluster, "connected", never)
    assert not released(transaction).fresh
    assert ledger_of(transaction).records[0].state is State.PUBLISHED
    with pytest.raises(RefusedError, match="bound differ"):  # committed or not, the id stands for its parameters
        released(transaction, clip_norm=1.0)


def test_a_release_carries_the_head_of_the_ledger_after_it_was_reserved_and_before_it_was_drawn(
    transaction: MomentTransaction,
) -> None:
    transaction.reserve()
    reserved = ledger_of(transaction).head
    release = published(transaction)
    with closing(sqlite3.connect(books(transaction) / "ledger.sqlite")) as connection:
        digests = [row[0] for row in connection.execute("SELECT digest FROM journal ORDER BY sequence")]
    assert len(digests) == 7  # created, capped, reserved, begun, committed, witnessed, published
    assert reserved == digests[2]
    assert release.ledger_head == digests[3]
    assert budget.verify_ledger(books(transaction), [target_of(transaction)]).head == digests[6]


def restored_after_a_release(transaction: MomentTransaction) -> Path:
    """Replace the ledger by an older copy; return the release that it has lost, published elsewhere."""
    copy = books(transaction).with_name("backup")
    shutil.copytree(books(transaction), copy)
    published(transaction)
    shutil.rmtree(books(transaction))
    copy.rename(books(transaction))
    return target_of(transaction).rename(target_of(transaction).with_name("seen.zarr"))


@pytest.mark.parametrize("kept", [1, 3])
def test_a_ledger_that_forgot_a_release_is_refused_and_draws_nothing(
    transaction: MomentTransaction, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(transaction)
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "another machine"))  # no witness: the release itself tells
    before = tree(target_of(transaction))
    with closing(sqlite3.connect(books(transaction) / "ledger.sqlite")) as connection:
        connection.execute("DELETE FROM journal WHERE sequence > ?", (kept,))
        connection.commit()
    ledger_of(transaction).verify()  # a chain cut short is sound by itself
    records = ledger_of(transaction).records
    for use in (
        transaction.reserve,
        lambda: budget.verify_ledger(books(transaction), [target_of(transaction)]),
    ):
        with pytest.raises(RefusedError, match="older copy"):
            use()
    assert ledger_of(transaction).records == records
    assert tree(target_of(transaction)) == before


def test_a_restored_ledger_is_behind_its_witness_and_goes_on_when_it_has_adopted(
    transaction: MomentTransaction,
) -> None:
    forgotten = restored_after_a_release(transaction)
    with pytest.raises(RefusedError, match=r"release of another copy: census\. Nothing was drawn"):
        transaction.reserve()
    restored = ledger_of(transaction)
    assert restored.records == []
    assert restored.adopt() == ["census"]
    assert transaction.reserve() is State.ADOPTED
    for step in (trusted.publish, lambda item: trusted.finalise(item, total_of(item))):
        with pytest.raises(RefusedError, match="another copy"):
            step(transaction)
    assert not target_of(transaction).exists()
    before = tree(forgotten)
    forgotten.rename(target_of(transaction))  # as the message says
    assert transaction.reserve() is State.ADOPTED
    trusted.publish(transaction)
    assert tree(target_of(transaction)) == before
    budget.verify_ledger(books(transaction), [target_of(transaction)])  # known by its id


def test_a_ledger_restored_and_used_again_is_found_out_by_the_release_it_forgot(
    transaction: MomentTransaction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "one machine"))
    forgotten = restored_after_a_release(transaction)
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "another machine"))  # which has seen nothing of it
    assert published(transaction).release_id == open_release(forgotten).release_id
    budget.verify_ledger(books(transaction), [target_of(transaction)])
    with pytest.raises(RefusedError, match="older copy"):
        budget.verify_ledger(books(transaction), [target_of(transaction), forgotten])


def test_a_release_that_was_altered_does_not_verify(transaction: MomentTransaction) -> None:
    published(transaction)
    metadata = target_of(transaction) / "zarr.json"
    content = metadata.read_text()
    assert content.count("dpdist 0.1.0") == 1
    metadata.write_text(content.replace("dpdist 0.1.0", "dpdist 0.1.1"))
    open_release(target_of(transaction))
    with pytest.raises(DataError, match="differs from the release committed"):
        budget.verify_ledger(books(transaction), [target_of(transaction)])
