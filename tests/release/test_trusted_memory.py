"""A release of rows in memory: the exact total plus one draw, and n exact only where it is public."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.replays import Recording, Replaying
from support.trusted_scene import NAMES, REQUEST, ROWS, exact, moment_of

from dpdist.errors import RefusedError
from dpdist.mechanisms.base import Additive
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release import trusted
from dpdist.release.artefact import Release
from dpdist.release.request import Centring
from dpdist.release.trusted import MomentTransaction
from dpdist.rows.dataset import RowsTable
from dpdist.storage.store import store_at
from dpdist.triangle import unpacked

DATASETS = ("f" * 32,)


def asked(table: RowsTable, **changes: Any) -> MomentTransaction:
    """Return a transaction of which only the rows and the request are looked at."""
    return MomentTransaction(replace(REQUEST, name=None, **changes), table, Path("none"), store_at("none"))


def drawn(transaction: MomentTransaction) -> Release:
    return trusted.draw_unrecorded(
        transaction.request, moment_of(transaction), names=NAMES, rows=ROWS, datasets=DATASETS
    )


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("centring", list(Centring))
@pytest.mark.parametrize("mechanism", ["two-sided-wishart", "gaussian"])
def test_a_release_is_the_exact_moment_plus_one_draw_and_its_corner_is_exact_where_n_is_public(
    table: RowsTable,
    values: npt.NDArray[np.uint8],
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    centring: Centring,
    neighbours: Neighbours,
) -> None:
    loss = PrivacyLoss.parse("1", "1e-6") if mechanism == "gaussian" else PrivacyLoss.parse("1")
    transaction = asked(table, mechanism=mechanism, loss=loss, centring=centring, neighbours=neighbours)
    recording = Recording()
    monkeypatch.setattr(trusted, "SYSTEM", recording)
    release = drawn(transaction)
    replaying = Replaying(recording.drawn)
    calibrated = transaction.request.calibrated(len(NAMES))
    assert isinstance(calibrated, Additive)
    noise = unpacked(calibrated.draw(replaying), len(NAMES) + (centring is Centring.PRIVATE))
    assert not replaying.left  # all that was drawn went into one matrix
    assert noise[-1, -1] != 0
    public = neighbours is Neighbours.REPLACE_ONE
    if centring is Centring.PRIVATE and public:
        noise[-1, -1] = 0
    np.testing.assert_array_equal(release.lattice - noise, exact(transaction, values))
    assert (release.rows, release.attributes()["n"]) == ((ROWS, ROWS) if public else (None, None))
    assert release.guarantee == calibrated.guarantee
    assert [extent.dataset for extent in release.extents] == list(DATASETS)


def test_a_subspace_is_released_as_it_is(table: RowsTable) -> None:
    release = drawn(asked(table, mechanism="bingham", options={"components": 2}))
    answer = np.asarray(release.answer)
    assert answer.shape == (2, len(NAMES))
    np.testing.assert_allclose(answer @ answer.T, np.eye(2), atol=1e-9)


def test_each_draw_is_another_release(table: RowsTable) -> None:
    first, second = drawn(asked(table)), drawn(asked(table))
    assert first.release_id != second.release_id
    assert (first.lattice != second.lattice).all()


def test_rows_in_memory_are_not_released_for_reproduction(table: RowsTable, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording()
    monkeypatch.setattr(trusted, "SYSTEM", recording)
    with pytest.raises(RefusedError, match="ingest them"):
        drawn(asked(table, mechanism="none", for_reproduction=True))
    assert recording.drawn == []
