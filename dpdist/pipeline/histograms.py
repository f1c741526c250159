"""Count rows on the workers, and draw their noisy histogram: a release of its own, or the stage of one."""

from __future__ import annotations

from typing import Any

from dpdist.errors import DataError, RefusedError
from dpdist.ledger.state import Part, State
from dpdist.moment.histograms import HistogramTask, partition_histogram
from dpdist.moment.layout import units_of
from dpdist.moment.total import add_partials
from dpdist.naming import parameter
from dpdist.release import histograms, stages, worth
from dpdist.release.histograms import HistogramTransaction
from dpdist.release.request import Choice
from dpdist.release.trusted import MomentTransaction
from dpdist.runtime.cluster import Cluster
from dpdist.runtime.local import Engine, Work
from dpdist.storage.arrays import ROOT


def draw_histogram(engine: Engine, transaction: HistogramTransaction[Any], label: str) -> None:
    """Count the rows, and commit a noisy histogram of them; what was reserved is refunded if rows fail."""
    table, counting = transaction.table, transaction.counting()
    task = HistogramTask(table, counting, range(table.chunks))
    units = units_of(
        table, row_seconds=counting.value_seconds * table.columns, entries=counting.bins,
        workers=engine.resources().slots,
    )  # fmt: skip
    work = Work("sum", partition_histogram, task, units, add_partials, nbytes=8 * counting.bins)
    try:
        engine.reduce(work, histograms.finalise, transaction, label=label)
    except DataError:
        engine.trusted(transaction.abort)
        raise


def draw_alone(transaction: HistogramTransaction[Any], cluster: Cluster, label: str) -> bool:
    """Charge a histogram that is a release of its own, draw and commit it; say whether it was not drawn before."""
    table = transaction.table
    with cluster.connected() as engine:
        engine.require_visible(table.probe, ROOT)
        fresh = engine.trusted(transaction.reserve) is State.RESERVED
        if fresh:
            draw_histogram(engine, transaction, label)
    return fresh


def draw_stages(engine: Engine, transaction: MomentTransaction) -> None:
    """Draw the stages of a release that are not committed yet, one after the other, as :func:`draw_histogram` does."""
    labels: dict[Choice, str] = {"scale": "Counting columns", "clip norm": "Counting norms"}
    for choice, part in zip(transaction.request.chooses, (Part.STAGE, Part.SECOND), strict=False):
        if not engine.trusted(transaction.has, part):
            draw_histogram(engine, engine.trusted(stages.stage_of, transaction, choice), labels[choice])


def _taken_from(choice: Choice) -> str:
    if choice == "scale":
        return f"that release, whose centre and scale are taken: {parameter('centre', 'PILOT.release.zarr')}"
    return f"its clip norm ({parameter('clip')})"


def require_choice(transaction: MomentTransaction) -> None:
    """Refuse a release that could choose nothing of these rows; it looks at what is public, and charges nothing."""
    table, chosen = transaction.table, transaction.request.chooses
    if table.seals:
        raise RefusedError(
            f"The rows come in periods, and one {chosen[0]} holds for all of them, also for those to come: a release "
            "cannot choose it. Choose it from what is publicly known; or release a table of rows that come in no "
            f"period once, and name {_taken_from(chosen[0])}."
        )
    if "scale" in chosen:
        stages.require_columns_seen(transaction)
    said = worth.choice_refused(transaction.request, table.columns, table.rows, table.max_rows)
    if said is not None:
        raise RefusedError(f"{said} Nothing was read or spent.")
