"""From rows and a model to scores."""

from __future__ import annotations

from functools import partial

from dpdist.pca import model as models
from dpdist.pca import projection
from dpdist.pipeline.components import made_from
from dpdist.rows.dataset import RowsTable, open_rows
from dpdist.runtime.cluster import Cluster
from dpdist.storage.arrays import ROOT
from dpdist.storage.atomic import make_once
from dpdist.storage.store import AnyStore, Store, store_at


def project_rows(
    rows: AnyStore, model: AnyStore, target: AnyStore, *, cluster: Cluster | None = None
) -> tuple[int, bool]:
    """Write scores.zarr, (n, k) float64, or float32 of float32 rows; they are private.

    Return n, and whether they were written now: scores of the same rows, release and number of components that stand
    there already are left alone.

    Raises
    ------
    DataError
        If something else stands at the target, or rows, model, cluster or target cannot be used.
    """
    where = cluster or Cluster()
    model, target = store_at(model), store_at(target)
    table, found = open_rows(rows), models.open_model(model)
    there = partial(
        made_from,
        target,
        "scores",
        format=projection.FORMAT,
        dataset_id=table.dataset_id,
        release_id=found.release_id,
        k=len(found.components.components),
    )
    fresh = make_once(there, partial(_project, table, found, model, target, where))
    if not fresh:
        projection.require_whole(target, table)
    return table.rows, fresh


def _project(table: RowsTable, found: models.Model, model: Store, target: Store, where: Cluster) -> None:
    target.require_new("scores")  # before there is any work
    with where.connected() as cluster_engine:
        tasks = 8 * len(cluster_engine.workers)
        with projection.scores_of(table, found, model, target, tasks) as work:
            for store in (table.probe, work[0].model, work[0].scores):
                cluster_engine.require_visible(store, ROOT)
            cluster_engine.map(projection.project_chunks, work, "Projecting rows")
