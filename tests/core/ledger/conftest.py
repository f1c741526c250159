"""A ledger, in a folder and in a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ledgers import DATASET, new_address

from dpdist.core.ledger.address import LedgerAddress
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.privacy.guarantee import PrivacyLoss


@pytest.fixture
def folder(tmp_path: Path, state: Path) -> Path:  # noqa: ARG001 - all tests charge the same data set
    return tmp_path / "books"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests in a folder, or on the storages that a module names."""
    if "place" in metafunc.fixturenames and not any(
        "place" in str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize")
    ):
        kinds = getattr(metafunc.module, "PLACES", ("folder",))
        metafunc.parametrize("place", kinds, indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, folder: Path) -> Iterator[LedgerAddress]:
    if request.param == "folder":
        yield folder
        return
    with new_address(request.getfixturevalue("postgres")) as address:
        yield address


@pytest.fixture
def ledger(place: LedgerAddress) -> Ledger:
    return Ledger.create(place, dataset_id=DATASET, budget=PrivacyLoss.parse("3"))


@pytest.fixture
def folder_ledger(folder: Path) -> Ledger:
    return Ledger.create(folder, dataset_id=DATASET, budget=PrivacyLoss.parse("3"))
