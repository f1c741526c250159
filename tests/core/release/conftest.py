"""Fixtures: a table, and a release of it that has not started."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.trusted_scene import NAMES, REQUEST, ROWS

from dpdist.core.ingest.registered import open_rows
from dpdist.core.pipeline import budget
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release.trusted import MomentTransaction
from dpdist.core.rows import dataset
from dpdist.core.rows.dataset import RowsTable, created
from dpdist.core.storage.store import store_at


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
def transaction(table: RowsTable, tmp_path: Path, state: Path) -> MomentTransaction:  # noqa: ARG001 - copies of one table
    """Return a release that has not started, with a new ledger that pays for four of epsilon 1."""
    ledger, rows = tmp_path / "books.ledger", tmp_path / "rows.zarr"
    shutil.copytree(table.path, rows)
    budget.create_ledger(ledger, rows, PrivacyLoss.parse("4", "1e-2"))
    return MomentTransaction.of(REQUEST, open_rows(rows), ledger, store_at(tmp_path / "release.zarr"))
