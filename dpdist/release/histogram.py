"""A private histogram of rows, charged, drawn and committed once, by the same transaction as a release of a moment.

What is committed is noisy, as JSON; it stands in the ledger, and whoever asks again is given it at no cost. The exact
counts are a local variable of :func:`finalise`. What is counted, and what is told, is decided by subclasses: the norms
of rows (:mod:`dpdist.release.norm_histogram`), or the numbers of every column
(:mod:`dpdist.release.column_histogram`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from dpdist._util.text import canonical
from dpdist._version import __version__
from dpdist.mechanisms.counts import CalibratedHistogram, Counts
from dpdist.moment.histograms import Counting
from dpdist.moment.total import Partial, complete
from dpdist.noise.entropy import SYSTEM
from dpdist.release.transaction import ReleaseTransaction, RequestT_co


class HistogramTransaction(ReleaseTransaction[RequestT_co], ABC):
    """The release of a histogram: it stands in the ledger, and nowhere else."""

    @abstractmethod
    def counting(self) -> Counting:
        """Return what is counted."""

    @abstractmethod
    def calibrated(self) -> CalibratedHistogram:
        """Return the noise."""

    @abstractmethod
    def told(self, noisy: Counts, ledger_head: str) -> dict[str, object]:
        """Return what is committed of the noisy counts, as JSON values."""

    def published(self) -> dict[str, Any]:
        """Read the committed values back, checked, and record that they were given out; idempotent."""
        with self.committed() as content:
            found: dict[str, Any] = json.loads(content.read())
        return found


def finalise(transaction: HistogramTransaction[Any], total: Partial[np.int64] | None = None) -> None:
    """Check the total, draw the noise and commit; idempotent, and once whoever else runs it."""
    exact: Counts = complete(transaction.table, total).values
    transaction.commit(lambda head: _drawn(transaction, exact, ledger_head=head))


def _drawn(transaction: HistogramTransaction[Any], exact: Counts, ledger_head: str) -> Iterator[bytes]:
    """Yield what is committed: one fresh noisy histogram; nothing of the exact one is in it."""
    noisy = drawn(transaction.calibrated(), exact)
    yield canonical(transaction.told(noisy, ledger_head) | {"library": f"dpdist {__version__}"}).encode()


def drawn(calibrated: CalibratedHistogram, exact: Counts) -> Counts:
    """Return the counts with fresh noise: each call is a draw, and is charged before."""
    return calibrated.answer(exact, SYSTEM)
