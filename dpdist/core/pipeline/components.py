"""Components of a release, written as a model, and scores of rows on the components."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dpdist.answers import eigen
from dpdist.answers import model as models
from dpdist.answers.alignment import components_above_noise
from dpdist.answers.captured import components_with_share
from dpdist.answers.components import Components, components
from dpdist.answers.correlation import correlation as correlation_of
from dpdist.core.errors import DataError, UsageError
from dpdist.core.ingest.registered import open_rows
from dpdist.core.moment.layout import BOUND_SECONDS, MULTIPLY_SECONDS, split_tasks
from dpdist.core.moment.operator import Matrix
from dpdist.core.naming import parameter
from dpdist.core.pipeline import projection
from dpdist.core.release.artefact import Release, open_release
from dpdist.core.rows.dataset import RowsTable
from dpdist.core.runtime.cluster import Cluster, chosen
from dpdist.core.runtime.local import Computation, Executor
from dpdist.core.storage.arrays import ROOT, attributes_of
from dpdist.core.storage.atomic import make_once
from dpdist.core.storage.store import AnyStore, Store, store_at
from dpdist.core.text import listed


class FittedModel(NamedTuple):
    """A model and its release."""

    model: models.Model
    release: Release
    fresh: bool
    """Whether it was written now; False if it already existed."""


def fit_components(
    release: AnyStore,
    model: AnyStore,
    components: float | None = None,
    *,
    correlation: bool = False,
    drop_first: bool = False,
    cluster: Cluster | None = None,
) -> FittedModel:
    """Write a model.zarr with the top principal components of a release: free post-processing.

    An existing model with as many components of the same release is kept; nothing else is replaced. A release that does
    not fit in memory is multiplied from the disk.

    Parameters
    ----------
    release : str or path-like
        The release.zarr, or its address.
    model : str or path-like
        The folder to write, or its address.
    components : int or float, default None
        Their number, from 1 to the number of columns; or, below 1, the share of the variance that they capture, by the
        lower end of its interval. None: those that can be distinguished from noise (:mod:`dpdist.answers.overlap`).
    correlation : bool, default False
        Whether to use the correlation matrix: columns are standardised by the release, without those below the noise.
        It needs a release with the mean, or with a centre.
    drop_first : bool, default False
        With ``correlation``, whether to omit the first column of each categorical variable of the schema.
    cluster : Cluster, default None
        Where to multiply a release that does not fit in memory. None: this process.

    Returns
    -------
    FittedModel
        The model, the release, and whether the model was written now. ``model.components`` is a
        :class:`dpdist.Components`.

    Raises
    ------
    UsageError
        If there are fewer components, none can be distinguished from the noise, or the share cannot be reached.
    DataError
        If there is no release, the target contains something else, or target or cluster cannot be used.

    See Also
    --------
    open_model : Read a model.
    project_rows : Project rows on the components.
    PrivatePCA.from_release : The same as an estimator, without a file.

    References
    ----------
    Dwork, Talwar, Thakurta & Zhang 2014 (components of a noisy second moment); Biane 1998 (their alignment with
    the exact ones: :mod:`dpdist.answers.overlap`).

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> release = f"{here.name}/release.zarr"
    >>> rows = np.random.default_rng(2).normal(size=(2000, 6))
    >>> _ = dpdist.PrivateCovariance(epsilon=1, delta=1e-6, clip=4, release=release).fit(rows)
    >>> fitted = dpdist.fit_components(release, f"{here.name}/model.zarr", 3)
    >>> fitted.model.components, fitted.fresh
    (Components(k=3, d=6, with eigenvalues), True)
    >>> here.cleanup()
    """
    release, target = store_at(release), store_at(model)
    opened = open_release(release)
    if drop_first and not correlation:
        raise UsageError(
            f"{parameter('drop_first')} requires components of the correlation matrix ({parameter('correlation')})."
        )
    attributes = {
        "format": models.FORMAT, "release_id": opened.release_id, "correlation": correlation or None,
        "drop_first": drop_first or None,
    }  # fmt: skip
    counted: dict[str, object] = {"k": components} if isinstance(components, int) else {}
    if not made_from(target, "model", **attributes, **counted):
        target.require_new("model")  # before any computation
    elif counted:
        return FittedModel(models.open_model(target), opened, fresh=False)
    standardised = correlation_of(opened, components, drop_first=drop_first) if correlation else None
    fitted_components = (
        standardised.components if standardised else _components_of(opened, release, components, cluster)
    )
    fitted = models.Model(opened.release_id, opened.names, fitted_components, opened.schema, correlation)
    exists = partial(made_from, target, "model", **attributes, k=len(fitted_components.components))
    fresh = make_once(exists, partial(models.save, fitted, opened, target, standardised))
    return FittedModel(fitted if fresh else models.open_model(target), opened, fresh)


def components_of(
    release: AnyStore, count: float | None, *, cluster: Cluster | None = None
) -> tuple[Release, Components]:
    """Return the top components of a release.zarr without writing them: see :func:`fit_components`."""
    release = store_at(release)
    opened = open_release(release)
    return opened, _components_of(opened, release, count, cluster)


def _components_of(opened: Release, release: Store, count: float | None, cluster: Cluster | None) -> Components:
    if count is not None and not isinstance(count, int):
        return components_with_share(opened, count)
    if opened.in_memory:
        return components_above_noise(opened) if count is None else components(opened, count)
    with chosen(cluster).connected() as executor:
        product = _release_product(release.absolute(), opened.bound.columns, executor)
        return components_above_noise(opened, product) if count is None else components(opened, count, product)


def _release_product(release: Store, size: int, executor: Executor) -> Callable[[Matrix], Matrix]:
    """Return a function that multiplies a released second moment by vectors."""
    resources = executor.resources()
    runs = eigen.tile_rows(size, resources.slots)
    keep = size * size * 8 <= resources.memory // 2  # any process may receive any rows
    executor.require_visible(release, ROOT)

    def product(vectors: Matrix) -> Matrix:
        task = eigen.ProductTask(release, range(size), vectors, keep)
        computation = Computation("multiply", eigen.rows_product, task, runs, eigen.joined)
        return executor.reduce(computation, eigen.stacked, label=None)

    return product


def made_from(location: AnyStore, kind: str, **expected: object) -> bool:
    """Return whether a model or scores exist with these attributes; refuse different ones."""
    store = store_at(location)
    if not store.exists():
        return False
    info = attributes_of(store) or {}
    if differing := [key for key, value in expected.items() if info.get(key) != value]:
        raise DataError(
            f"{store} exists already with another content, or is not a {kind}.zarr: its {listed(differing)} "
            f"{'differs' if len(differing) == 1 else 'differ'}. Choose another path."
        )
    return True


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


def project_rows(rows: AnyStore, model: AnyStore, scores: AnyStore, *, cluster: Cluster | None = None) -> ProjectedRows:
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
    cluster : Cluster, default None
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
    table, opened = open_rows(rows), models.open_model(model)
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


def _project(table: RowsTable, opened: models.Model, model: Store, target: Store, cluster: Cluster) -> None:
    target.require_new("scores")  # before any computation
    row_seconds = BOUND_SECONDS * table.columns + MULTIPLY_SECONDS * opened.components.components.size
    with cluster.connected() as executor:
        workers = executor.resources().slots
        tasks = split_tasks(table, row_seconds=row_seconds, entries=0, workers=workers)
        with projection.scores_of(table, opened, model, target) as task:
            for required in (table.probe, task.scores):
                executor.require_visible(required, ROOT)
            executor.map(Computation("project", projection.project_chunks, task, tasks), "Projecting rows")
