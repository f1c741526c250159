"""Count norms on the workers, and draw their noisy histogram: to choose a clip norm, or as the stage of a release."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from dpdist.errors import DataError, RefusedError
from dpdist.moment.norm_histogram import HistogramTask, partition_histogram
from dpdist.moment.pieces import BOUND_SECONDS, units_of
from dpdist.moment.total import add_partials
from dpdist.naming import parameter
from dpdist.release import norm_histogram, worth
from dpdist.release.norm_histogram import NormsTransaction
from dpdist.release.trusted import MomentTransaction
from dpdist.runtime.work import Work

if TYPE_CHECKING:
    from dpdist.runtime.engine import Engine
    from dpdist.runtime.here import Here


def draw_norms(engine: Engine | Here, transaction: NormsTransaction) -> None:
    """Count the norms of the rows, and commit a noisy histogram of them; what was reserved is refunded if rows fail.

    Raises
    ------
    DataError
        If a chunk of the rows cannot be used.
    """
    request, table, threads = transaction.request, transaction.table, engine.threads
    task = HistogramTask(table, request.bound(table.columns), request.grid.edges, range(table.chunks))
    units = units_of(
        table, row_seconds=BOUND_SECONDS * table.columns, entries=len(task.edges) + 1,
        workers=threads * len(engine.workers),
    )  # fmt: skip
    work = Work("count", partition_histogram, task, units, add_partials, threads)
    try:
        engine.reduce(work, norm_histogram.finalise, transaction, label="Counting norms")
    except DataError:
        engine.trusted(transaction.abort)
        raise


def require_choice(transaction: MomentTransaction) -> None:
    """Refuse a release that could choose no clip norm of these rows; it looks at what is public, and charges nothing.

    Raises
    ------
    RefusedError
        If the rows come in periods, or n is public and the noise would hide even the median of the norms.
    """
    table = transaction.table
    if table.seals:
        raise RefusedError(
            "The rows come in periods, and one clip norm holds for all of them, also for those to come: a release "
            f"cannot choose it. Choose it from what is publicly known, or from another table ({parameter('clip')})."
        )
    request = transaction.norms().request
    found = worth.worth_of(request, table, Fraction(1, 2))
    if found.tells is False:
        raise RefusedError(
            f"A clip norm would be chosen at {request.loss}, a part of the loss, where the noise moves ranks by up to "
            f"{found.error:.0f} rows; the table has {found.rows}. Nothing was read or spent. Ask for a larger epsilon, "
            f"or choose the clip norm from what is publicly known ({parameter('clip')})."
        )
