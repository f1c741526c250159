"""From rows and a model to scores."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from dpdist.ingest.registered import open_rows
from dpdist.moment.layout import BOUND_SECONDS, MULTIPLY_SECONDS, units_of
from dpdist.pca import model as models
from dpdist.pca import projection
from dpdist.pipeline.components import made_from
from dpdist.rows.dataset import RowsTable
from dpdist.runtime.cluster import Cluster, chosen
from dpdist.runtime.local import Work
from dpdist.storage.arrays import ROOT
from dpdist.storage.atomic import make_once
from dpdist.storage.store import AnyStore, Store, store_at


class ProjectedRows(NamedTuple):
    """What was projected.

    Attributes
    ----------
    rows : int
        n, which under add-remove is private.
    fresh : bool
        Whether the scores were written now; False: the same ones stood there already.
    """

    rows: int
    fresh: bool


def scores_words(scores: AnyStore, *, fresh: bool) -> str:
    """Say that scores are there, and what they are."""
    how = "written" if fresh else "written before, and left alone"
    return f"{scores}: {how}. PRIVATE: scores are private rows in fewer dimensions; do not publish them."


def project_rows(rows: AnyStore, model: AnyStore, scores: AnyStore, *, cluster: Cluster | None = None) -> ProjectedRows:
    """Write a scores.zarr: the rows, projected on the components of a model. They are private.

    Scores of the same rows, release and number of components that stand there already are left alone.

    Parameters
    ----------
    rows : str or path-like
        The rows.zarr, or its address: n x d.
    model : str or path-like
        The model.zarr, or its address: k components of d columns.
    scores : str or path-like
        The folder to write, or its address: (n, k) float64, or float32 of float32 rows. They are as private as the
        rows.
    cluster : Cluster, default None
        Where to compute. None: threads of this process.

    Returns
    -------
    ProjectedRows
        n, and whether the scores were written now.

    Raises
    ------
    DataError
        If something else stands at the target, or rows, model, cluster or target cannot be used.
    ResumableError
        If the cluster was lost half-way.

    See Also
    --------
    fit_components : Makes the model.
    PrivatePCA.transform : The same of rows in memory.

    Examples
    --------
    Here it is not run.

    >>> import dpdist
    >>> dpdist.project_rows("rows.zarr", "model.zarr", "scores.zarr")  # doctest: +SKIP
    ProjectedRows(rows=1797, fresh=True)
    """
    where = chosen(cluster)
    model, target = store_at(model), store_at(scores)
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
    return ProjectedRows(table.rows, fresh)


def _project(table: RowsTable, found: models.Model, model: Store, target: Store, where: Cluster) -> None:
    target.require_new("scores")  # before there is any work
    row_seconds = BOUND_SECONDS * table.columns + MULTIPLY_SECONDS * found.components.components.size
    with where.connected() as cluster_engine:
        workers = cluster_engine.resources().slots
        units = units_of(table, row_seconds=row_seconds, entries=0, workers=workers)
        with projection.scores_of(table, found, model, target) as task:
            for store in (table.probe, task.scores):
                cluster_engine.require_visible(store, ROOT)
            cluster_engine.map(Work("project", projection.project_chunks, task, units), "Projecting rows")
