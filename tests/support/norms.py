"""A table of six hundred rows of many lengths, and what the tests of the choice of a clip norm ask of it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner, Result

from dpdist.cli import cli
from dpdist.core.ingest.registered import open_rows
from dpdist.core.ledger.ledger import Ledger
from dpdist.core.moment.histograms import NormGrid
from dpdist.core.pipeline.budget import create_ledger, default_ledger
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.rows.chunks import ChunkReader
from dpdist.core.rows.dataset import RowsTable, created
from dpdist.core.rows.units import Unit

GRID = NormGrid.parse("1:64:2")
HALF = Fraction(1, 2)

Rows = npt.NDArray[np.float64]


def some_rows(count: int = 600) -> Rows:
    generator = np.random.default_rng(5)
    return generator.normal(size=(count, 4)) * generator.lognormal(1, 1, size=(count, 1))


def table_of(
    path: Path, rows: npt.NDArray[np.generic], budget: PrivacyLoss, *, compress: bool = False, unit: Unit | None = None
) -> RowsTable:
    names = tuple("abcdefgh"[: rows.shape[1]])
    with created(
        path, rows=len(rows), dtype=str(rows.dtype), names=names, budget=budget, compress=compress, unit=unit
    ) as writer:
        writer.append(rows)
    create_ledger(default_ledger(path), path)
    return open_rows(path)


def ledger_of(table: RowsTable) -> Ledger:
    return Ledger(default_ledger(table.path))


def no_row_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("a row was read")

    monkeypatch.setattr(ChunkReader, "read", read)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=True)
