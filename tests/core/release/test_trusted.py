"""The trusted node's transaction: the exact total plus one draw, committed once, published to the byte."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.ledgers import losses
from support.parts import added
from support.replays import Recording, Replaying
from support.trusted_scene import (
    NAMES,
    ROWS,
    asking,
    books,
    exact,
    ledger_of,
    moment_of,
    partials_of,
    published,
    rows_of,
    target_of,
    total_of,
    tree,
)

from dpdist.core.errors import DataError, DpdistError, RefusedError, UsageError
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.ledger.memory import MemoryStorage
from dpdist.core.ledger.state import State
from dpdist.core.mechanisms.base import Additive
from dpdist.core.pipeline import budget
from dpdist.core.pipeline.arrays import ArrayRows, ArrayTransaction, Paying, release_array
from dpdist.core.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.core.release import trusted
from dpdist.core.release.artefact import Release
from dpdist.core.release.opening import open_release
from dpdist.core.release.request import Centring
from dpdist.core.release.trusted import MomentTransaction
from dpdist.core.storage.store import store_at
from dpdist.core.triangle import unpacked


def in_memory(transaction: MomentTransaction) -> Release:
    """Commit the release to a ledger in memory, as packed bytes."""
    ledger, moment = MemoryStorage(), moment_of(transaction)
    created = Ledger.create(ledger, dataset_id=transaction.table.dataset_id, budget=transaction.plan.request.loss)
    table = replace(rows_of(transaction), ledger_id=created.ledger_id)
    here = ArrayTransaction(transaction.plan, table, ledger, transaction.target)
    here.charge(here.account())
    trusted.conclude(here, moment)
    return here.published()


@pytest.mark.parametrize("release", [published, in_memory])
@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("centring", [Centring.NONE, Centring.PRIVATE])
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
    calibrated = transaction.plan.moment
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


def test_two_releases_carry_different_noise(transaction: MomentTransaction) -> None:
    other = replace(asking(transaction, name="other"), target=store_at(target_of(transaction).with_name("other.zarr")))
    for one, two in (
        (published(transaction), published(other)),
        (in_memory(transaction), in_memory(transaction)),  # of two ledgers
    ):
        assert (one.lattice != two.lattice).all()  # one partial noise in common would reveal a difference of rows


def test_partials_that_do_not_cover_the_table_once_are_never_released(
    transaction: MomentTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction.reserve()
    fewer = partials_of(transaction)
    fewer[0] = replace(fewer[0], rows=fewer[0].rows - 1)
    for total in (added(partials_of(transaction)[1:]), added(fewer), None):
        recording = Recording()
        with monkeypatch.context() as patch:
            patch.setattr(trusted, "SYSTEM", recording)
            with pytest.raises(DpdistError):
                trusted.finalise(transaction, total)
        assert recording.drawn == []
        assert [record.state for record in ledger_of(transaction).records] == [State.RESERVED]
        assert list((books(transaction) / "blobs").iterdir()) == []
        with pytest.raises(DpdistError):
            trusted.publish(transaction)
        assert not target_of(transaction).exists()
    trusted.finalise(transaction, total_of(transaction))
    trusted.publish(transaction)
    assert losses(ledger_of(transaction)) == [PrivacyLoss.parse("1")]


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
        array = ArrayRows(np.ones((9, 3)), NAMES, "float64", missing=False)
        with pytest.raises(RefusedError, match="ingest them"):
            release_array(array, changed.plan.request, Paying())
    assert ledger_of(transaction).records == []
    assert recording.drawn == []


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


def test_a_ledger_that_forgot_a_release_is_found_out_by_that_release_and_draws_nothing(
    transaction: MomentTransaction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(books(transaction), tmp_path / "backup")
    published(transaction)
    monkeypatch.setenv("DPDIST_STATE_HOME", str(tmp_path / "another machine"))  # no witness: the release itself tells
    before = tree(target_of(transaction))
    shutil.rmtree(books(transaction))
    (tmp_path / "backup").rename(books(transaction))
    for use in (transaction.reserve, lambda: budget.verify_ledger(books(transaction), [target_of(transaction)])):
        with pytest.raises(RefusedError, match="older copy"):
            use()
    assert ledger_of(transaction).records == []
    assert tree(target_of(transaction)) == before
    forgotten = target_of(transaction).rename(tmp_path / "seen.zarr")
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
