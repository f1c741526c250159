"""Scores of rows on the components of a model, written once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from dpdist.core.errors import DataError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.moment.layout import BOUND_SECONDS, MULTIPLY_SECONDS, split_tasks
from dpdist.core.naming import step
from dpdist.core.pipeline import projection, stored
from dpdist.core.pipeline.projection import StoredModel
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.runtime.cluster import AnyCluster, Cluster, chosen
from dpdist.core.runtime.local import Computation
from dpdist.core.storage.arrays import ROOT, made_from
from dpdist.core.storage.atomic import make_once
from dpdist.core.storage.store import AnyStore, Store, store_at


class ProjectedRows(NamedTuple):
    """Result of a projection."""

    rows: int
    """The number of rows, which is private under add-remove."""
    fresh: bool
    """Whether the scores were written now; False if they already existed."""


def scores_message(scores: AnyStore, *, fresh: bool) -> str:
    """Return a message about the scores."""
    status = "written" if fresh else "written before, and kept"
    return f"{scores}: {status}. PRIVATE: scores are private rows in fewer dimensions; do not publish them."


def project_rows(
    rows: AnyStore, model: AnyStore, scores: AnyStore, *, cluster: AnyCluster | None = None
) -> ProjectedRows:
    """Write a scores.zarr: the rows, projected on the components of a model. Scores are private.

    Existing scores of the same rows, release and number of components are kept.

    Parameters
    ----------
    rows : str or path-like
        The rows.zarr, or its address: n x d.
    model : str or path-like
        The model.zarr, or its address: k components of d columns.
    scores : str or path-like
        The folder to write, or its address: (n, k) float64, or float32 of float32 rows. They are as private as
        the rows.
    cluster : Cluster, dask.distributed.Client or cluster object, default None
        Where to compute. None: threads of this process.

    Returns
    -------
    ProjectedRows
        The number of rows, and whether the scores were written now.

    Raises
    ------
    DataError
        If the target contains something else, or rows, model, cluster or target cannot be used.
    ResumableError
        If the connection to the cluster was lost.

    See Also
    --------
    fit_components : Write a model.
    PrivatePCA.transform : The same for rows in memory.

    Examples
    --------
    Not run here:

    >>> import dpdist
    >>> dpdist.project_rows("rows.zarr", "model.zarr", "scores.zarr")  # doctest: +SKIP
    ProjectedRows(rows=1797, fresh=True)
    """
    cluster = chosen(cluster)
    model, target = store_at(model), store_at(scores)
    table = _rows_for(store_at(rows), model)
    opened = stored.module_of(stored.MODEL).open_model(model)
    exists = partial(
        made_from,
        target,
        "scores",
        format=projection.FORMAT,
        dataset_id=table.dataset_id,
        release_id=opened.release_id,
        k=len(opened.components.components),
    )
    fresh = make_once(exists, partial(_project, table, opened, model, target, cluster))
    if not fresh:
        projection.require_complete(target, table)
    return ProjectedRows(table.rows, fresh)


def _rows_for(rows: Store, model: Store) -> RowsTable:
    """Return rows; a file has to be read by the schema of the model first."""
    place = rows.address()
    try:
        return open_rows(rows)
    except DataError:
        if (
            not (isinstance(place, Path) and place.is_file())
            or place.with_suffix(".zarr").exists()
            or not model.exists()
        ):
            raise
    if stored.module_of(stored.MODEL).open_model(model).schema is None:
        return open_rows(rows)
    raise DataError(
        f"{rows} is a file, and its columns become numbers by the schema of {model}. Copy its rows with: "
        f"{step('ingest', rows, 'ROWS', schema=model)}; then project ROWS."
    )


def _project(table: RowsTable, opened: StoredModel, model: Store, target: Store, cluster: Cluster) -> None:
    target.require_new("scores")  # before any computation
    row_seconds = BOUND_SECONDS * table.columns + MULTIPLY_SECONDS * opened.components.components.size
    with cluster.connected() as executor:
        workers = executor.resources().slots
        tasks = split_tasks(table, row_seconds=row_seconds, entries=0, workers=workers)
        with projection.scores_of(table, opened, model, target) as task:
            for required in (table.probe, task.scores):
                executor.require_visible(required, ROOT)
            executor.map(Computation("project", projection.project_chunks, task, tasks), "Projecting rows")
