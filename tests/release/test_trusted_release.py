"""A published release is what was committed, says what it is and holds nothing exact; a damaged one does not open."""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import pytest
from support.trusted_scene import (
    BITS,
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
    published,
    rows_of,
    target_of,
    total_of,
    tree,
)

from dpdist.errors import DataError
from dpdist.ledger.ledger import Ledger
from dpdist.ledger.state import State
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release import archive, trusted
from dpdist.release.artefact import open_release
from dpdist.release.request import Centring
from dpdist.release.trusted import MomentTransaction
from dpdist.rows.dataset import RowsTable
from dpdist.storage.store import store_at

# --- publishing -------------------------------------------------------------------------------------------------------


def test_publication_is_idempotent_and_the_same_everywhere(transaction: MomentTransaction, tmp_path: Path) -> None:
    published(transaction)
    before = tree(target_of(transaction))
    trusted.publish(transaction)
    assert tree(target_of(transaction)) == before  # the very files: they were left alone
    elsewhere = replace(transaction, target=store_at(tmp_path / "copy.zarr"))
    trusted.publish(elsewhere)
    assert {n: c for n, (c, _) in tree(target_of(elsewhere)).items()} == {n: c for n, (c, _) in before.items()}
    record = ledger_of(transaction).record("census")
    assert record is not None
    assert record.state is State.PUBLISHED


@pytest.mark.parametrize("obstacle", ["file", "folder", "empty folder", "changed", "with more in it", "with less"])
def test_publication_never_overwrites_something_else(transaction: MomentTransaction, obstacle: str) -> None:
    transaction.reserve()
    trusted.finalise(transaction, total_of(transaction))
    target = target_of(transaction)
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
    elsewhere = replace(transaction, target=store_at(target.with_name("elsewhere.zarr")))
    trusted.publish(elsewhere)
    open_release(target_of(elsewhere))


def test_a_publication_that_loses_the_race_to_the_same_bytes_is_content(
    transaction: MomentTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction.reserve()
    trusted.finalise(transaction, total_of(transaction))
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
    assert [path.name for path in target_of(transaction).parent.iterdir() if path.name.endswith(".partial")] == []
    open_release(target_of(transaction))


def test_a_release_is_flushed_before_its_publication_is_recorded(
    transaction: MomentTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction.reserve()
    trusted.finalise(transaction, total_of(transaction))
    target = target_of(transaction)
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


def test_altered_bytes_are_not_published(transaction: MomentTransaction) -> None:
    transaction.reserve()
    trusted.finalise(transaction, total_of(transaction))
    (blob,) = (books(transaction) / "blobs").iterdir()
    content = blob.read_bytes()
    blob.write_bytes(content.replace(b"census", b"sensus"))
    assert blob.read_bytes() != content
    with pytest.raises(DataError):
        trusted.publish(transaction)
    assert not target_of(transaction).exists()


# --- what a release says ----------------------------------------------------------------------------------------------

BOTH_MECHANISMS = pytest.mark.parametrize(
    ("mechanism", "loss"),
    [("two-sided-wishart", PrivacyLoss.parse("1")), ("gaussian", PrivacyLoss.parse("1", "1e-6"))],
)


def with_delta(transaction: MomentTransaction, tmp_path: Path) -> MomentTransaction:
    """Return the transaction of another table of the same rows, whose ledger allows a delta."""
    ledger, dataset_id = tmp_path / "delta.ledger", "d" * 32
    books = Ledger.create(ledger, dataset_id=dataset_id, budget=PrivacyLoss.parse("4", "1e-5"))
    table = replace(rows_of(transaction), dataset_id=dataset_id, ledger_id=books.ledger_id)
    return replace(transaction, ledger=ledger, table=table)


def everything_published(transaction: MomentTransaction) -> list[bytes]:
    return [content for content, _ in tree(target_of(transaction)).values()]


@BOTH_MECHANISMS
@pytest.mark.parametrize("centring", list(Centring))
def test_under_add_remove_the_number_of_rows_is_nowhere(
    transaction: MomentTransaction, tmp_path: Path, mechanism: str, loss: PrivacyLoss, centring: Centring
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
    transaction: MomentTransaction, tmp_path: Path, mechanism: str, loss: PrivacyLoss, centring: Centring
) -> None:
    transaction = asking(with_delta(transaction, tmp_path), mechanism=mechanism, loss=loss, centring=centring)
    release = published(transaction)
    assert release.rows == ROWS
    assert release.attributes()["n"] == ROWS
    assert release.row_count == ROWS
    assert str(ROWS).encode() in (target_of(transaction) / "zarr.json").read_bytes()
    if centring is Centring.PRIVATE:
        constant = release.bound.constant
        assert constant == 2 ** (BITS - 1)
        assert int(release.lattice[-1, -1]) == ROWS * constant**2


@BOTH_MECHANISMS
@pytest.mark.parametrize("centring", list(Centring))
def test_no_entry_of_the_exact_moment_is_in_any_file(
    transaction: MomentTransaction,
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
    transaction: MomentTransaction, tmp_path: Path, mechanism: str, loss: PrivacyLoss
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

    arrays = {
        name: np.asarray(array[...]) for name, array in zarr.open_group(target_of(transaction), mode="r").arrays()
    }
    assert set(arrays) == {"lattice", "second_moment", "row_sum"}
    unit = CLIP / 2**BITS
    np.testing.assert_array_equal(arrays["lattice"], release.lattice)
    np.testing.assert_array_equal(arrays["second_moment"], release.lattice[:3, :3] * unit**2)
    np.testing.assert_array_equal(arrays["row_sum"], release.lattice[:3, 3] * (unit / 2 ** (BITS - 1)))
    np.testing.assert_array_equal(arrays["second_moment"], release.second_moment)
    assert release.row_sum is not None
    np.testing.assert_array_equal(arrays["row_sum"], release.row_sum)


def test_a_release_estimates_what_it_should(
    transaction: MomentTransaction, tmp_path: Path, values: npt.NDArray[np.uint8]
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


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture(scope="module")
def sound_release(table: RowsTable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    books = Ledger.create(folder / "books.ledger", dataset_id=table.dataset_id, budget=PrivacyLoss.parse("1"))
    request, table = replace(REQUEST, centring=Centring.PRIVATE), replace(table, ledger_id=books.ledger_id)
    published(MomentTransaction(request, table, folder / "books.ledger", store_at(folder / "release.zarr")))
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
