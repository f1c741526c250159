"""A published release is the committed one, describes itself, and contains nothing exact."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.ledgers import copy_of
from support.trusted_scene import (
    BITS,
    ROWS,
    asking,
    books,
    committed_bytes,
    exact,
    ledger_of,
    published,
    target_of,
    total_of,
    tree,
)

from dpdist.core.errors import DataError
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.state import State
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release import archive, trusted
from dpdist.core.release.opening import open_release
from dpdist.core.release.request import Centring
from dpdist.core.release.trusted import MomentTransaction
from dpdist.core.storage.store import store_at


def test_what_another_copy_of_the_ledger_published_is_published_and_another_release_is_not(
    transaction: MomentTransaction,
) -> None:
    copy = copy_of(books(transaction))
    transaction.reserve()
    trusted.finalise(transaction, total_of(transaction))
    trusted.publish(transaction)
    assert Ledger(copy).adopt() == [transaction.release_id]
    trusted.publish(replace(transaction, ledger=copy))
    assert trusted.stands_at(transaction.target, transaction.release_id)
    for other in ("r-another", None):
        with pytest.raises(DataError, match="contains another release"):
            trusted.stands_at(transaction.target, other)


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
    assert [record.state for record in ledger_of(transaction).records] == [State.COMMITTED]
    assert [path.name for path in target.parent.iterdir() if path.name.endswith(".partial")] == []
    elsewhere = replace(transaction, target=store_at(target.with_name("elsewhere.zarr")))
    trusted.publish(elsewhere)
    open_release(target_of(elsewhere))


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

    def record(ledger: Ledger, release_id: str, path: str) -> None:
        assert path == str(target)
        assert flushed == {"..", "", *(str(path.relative_to(target)) for path in target.rglob("*"))}
        recorded(ledger, release_id, path)

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(Ledger, "published", record)
    trusted.publish(transaction)
    assert flushed


@pytest.mark.parametrize("centring", [Centring.NONE, Centring.PRIVATE])
@pytest.mark.parametrize(("mechanism", "delta"), [("two-sided-wishart", "0"), ("gaussian", "1e-6")])
def test_under_add_remove_neither_the_number_of_rows_nor_an_exact_entry_is_anywhere(
    transaction: MomentTransaction,
    values: npt.NDArray[np.uint8],
    mechanism: str,
    delta: str,
    centring: Centring,
) -> None:
    changes = {"mechanism": mechanism, "loss": PrivacyLoss.parse("1", delta), "centring": centring}
    transaction = asking(transaction, neighbours=Neighbours.ADD_REMOVE, **changes)
    release = published(transaction)
    assert (release.rows, release.attributes()["n"]) == (None, None)
    counts = [ROWS]
    if centring is Centring.PRIVATE:
        counts.append(ROWS * 4 ** (BITS - 1))  # the corner counts rows, so it is as noisy as the rest
        assert release.row_count != ROWS
    else:
        assert release.row_count is None
    moment = exact(transaction, values)
    entries = [int(entry) for entry in moment[np.triu_indices(len(moment))]]
    unit = release.bound.unit
    folder = target_of(transaction).parent
    files = [path for path in folder.rglob("*") if path.is_file() and "rows.zarr" not in path.parts]
    assert len(files) > 5  # release, ledger, committed bytes and what was seen of the ledger
    for path in files:
        content = path.read_bytes()
        for count in counts:  # as a number in text, which digits of a hash are not
            assert not re.search(rb"(?<![0-9a-f])%d(?![0-9a-f])" % count, content), path
        for number in [ROWS, *entries, *(entry * unit**2 for entry in entries)]:
            for form in (np.int64(number), np.float64(number)):
                assert form.tobytes() not in content, path
