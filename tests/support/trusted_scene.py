"""A table, a release of it that is not begun, and what the trusted node makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpdist.core.ledger.ledger import Ledger
from dpdist.core.moment.operator import MomentMatrix
from dpdist.core.moment.total import Partial, complete, partition_moment
from dpdist.core.paths import local
from dpdist.core.privacy.guarantee import PrivacyLoss
from dpdist.core.release import trusted
from dpdist.core.release.artefact import Release
from dpdist.core.release.opening import open_release
from dpdist.core.release.request import Centring, ReleaseRequest
from dpdist.core.release.trusted import MomentTransaction
from dpdist.core.rows.bounding import RowBound
from dpdist.core.rows.dataset import RowsTable
from support.parts import added, integers_of, parts_of
from support.releases import content_of

ROWS = 7919
"""Appears nowhere else by chance: neither in a scale of the noise nor in a name."""
NAMES = ("a", "b", "c")
CLIP = 64.0
BITS = 10
REQUEST = ReleaseRequest("two-sided-wishart", PrivacyLoss.parse("1"), CLIP, grid_bits=BITS, name="census")


def rows_of(transaction: MomentTransaction) -> RowsTable:
    assert isinstance(transaction.table, RowsTable)
    return transaction.table


def target_of(transaction: MomentTransaction) -> Path:
    return local(str(transaction.target))


def asking(transaction: MomentTransaction, **changes: Any) -> MomentTransaction:
    request = replace(transaction.plan.request, **changes)
    return MomentTransaction.of(request, transaction.table, transaction.ledger, transaction.target)


def moment_of(transaction: MomentTransaction) -> MomentMatrix:
    total = complete(transaction.table, total_of(transaction))
    return MomentMatrix(total.values, transaction.bound.width)


def partials_of(transaction: MomentTransaction, count: int = 4) -> list[Partial[np.int64]]:
    bound = transaction.bound
    return [partition_moment(task) for task in parts_of(transaction.table, bound, count)]


def total_of(transaction: MomentTransaction, count: int = 4) -> Partial[np.int64]:
    return added(partials_of(transaction, count))


def exact(transaction: MomentTransaction, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the integer moment of the rows as they are dithered by the key of the tests, independently."""
    constant = 2 ** (BITS - 1) if transaction.plan.request.centring is Centring.PRIVATE else 0
    z = integers_of(values, RowBound(len(NAMES), CLIP, BITS, constant=constant))
    moment: npt.NDArray[np.int64] = z.T @ z
    return moment


def ledger_of(transaction: MomentTransaction) -> Ledger:
    return Ledger(transaction.ledger)


def books(transaction: MomentTransaction) -> Path:
    assert isinstance(transaction.ledger, Path)
    return transaction.ledger


def committed_bytes(transaction: MomentTransaction) -> bytes:
    return content_of(ledger_of(transaction), transaction.release_id)


def published(transaction: MomentTransaction) -> Release:
    transaction.reserve()
    trusted.finalise(transaction, total_of(transaction))
    trusted.publish(transaction)
    return open_release(target_of(transaction))


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): (path.read_bytes(), path.stat().st_ino) for path in files}


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
