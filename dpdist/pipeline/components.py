"""From a release to its components, the model, and from rows and a model to scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dpdist._util.text import listed
from dpdist.answers.captured import holding
from dpdist.errors import DataError, UsageError
from dpdist.ingest.registered import open_rows
from dpdist.moment.layout import BOUND_SECONDS, MULTIPLY_SECONDS, units_of
from dpdist.moment.operator import Matrix
from dpdist.naming import parameter
from dpdist.pca import eigen, projection
from dpdist.pca import model as models
from dpdist.pca.alignment import counted_components
from dpdist.pca.components import Components, components
from dpdist.pca.correlation import correlation as correlation_of
from dpdist.release.artefact import Release, open_release
from dpdist.rows.dataset import RowsTable
from dpdist.runtime.cluster import Cluster, chosen
from dpdist.runtime.local import Engine, Work
from dpdist.storage.arrays import ROOT, attributes_of
from dpdist.storage.atomic import make_once
from dpdist.storage.store import AnyStore, Store, store_at


class FittedModel(NamedTuple):
    """A model that was written, and the release that it is of."""

    model: models.Model
    release: Release
    fresh: bool
    """Whether it was written now; False: as many components of the same release stood there already."""


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

    As many components of the same release that stand there already are left alone; nothing else is replaced. A release
    that is too large for memory is multiplied from the disk.

    Parameters
    ----------
    release : str or path-like
        The release.zarr, or its address.
    model : str or path-like
        The folder to write, or its address.
    components : int or float, default None
        How many, from 1 to the number of columns; or below 1 the share of the variance that they shall hold, by the
        lower end of its interval. None: those that can be told from noise (:mod:`dpdist.pca.overlap`).
    correlation : bool, default False
        Whether to take the components of the correlation matrix: of columns that are standardised by what was released,
        without those below the noise. It needs a release with its mean or of rows that were shifted by a centre.
    drop_first : bool, default False
        With ``correlation``, whether to leave out the first column of each categorical variable of the schema.
    cluster : Cluster, default None
        Where to multiply a release that is too large for memory. None: in this process.

    Returns
    -------
    FittedModel
        The model, the release it was taken from, and whether it was written now. ``model.components`` is a
        :class:`dpdist.Components`.

    Raises
    ------
    UsageError
        If there are not so many components, none can be told from the noise, or those that can hold no such share.
    DataError
        If there is no release, something else stands at the target, or target or cluster cannot be used.

    See Also
    --------
    open_model : Read it again.
    project_rows : Rows in the coordinates of the components.
    PrivatePCA.from_release : The same as an estimator, without a file.

    References
    ----------
    Dwork, Talwar, Thakurta & Zhang 2014 (components of a noisy second moment); Biane 1998 (how well each is aligned
    with the exact one: :mod:`dpdist.pca.overlap`).

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpdist
    >>> here = tempfile.TemporaryDirectory()
    >>> release = f"{here.name}/release.zarr"
    >>> rows = np.random.default_rng(2).normal(size=(2000, 6))
    >>> fitted = dpdist.PrivateCovariance(epsilon=1, delta=1e-6, clip=4, release=release).fit(rows)
    >>> found = dpdist.fit_components(release, f"{here.name}/model.zarr", 3)
    >>> found.model.components, found.fresh
    (Components(k=3, d=6, with eigenvalues), True)
    >>> here.cleanup()
    """
    release, target = store_at(release), store_at(model)
    opened = open_release(release)
    if drop_first and not correlation:
        raise UsageError(f"{parameter('drop_first')} is for components of the correlation matrix.")
    made = {
        "format": models.FORMAT, "release_id": opened.release_id, "correlation": correlation or None,
        "drop_first": drop_first or None,
    }  # fmt: skip
    counted: dict[str, object] = {"k": components} if isinstance(components, int) else {}
    if not made_from(target, "model", **made, **counted):
        target.require_new("model")  # before there is any work
    elif counted:
        return FittedModel(models.open_model(target), opened, fresh=False)
    standardised = correlation_of(opened, components, drop_first=drop_first) if correlation else None
    taken = standardised.components if standardised else _components_of(opened, release, components, cluster)
    found = models.Model(opened.release_id, opened.names, taken, opened.schema, correlation)
    there = partial(made_from, target, "model", **made, k=len(taken.components))
    fresh = make_once(there, partial(models.save, found, opened, target, standardised))
    return FittedModel(found if fresh else models.open_model(target), opened, fresh)


def components_of(
    release: AnyStore, count: float | None, *, cluster: Cluster | None = None
) -> tuple[Release, Components]:
    """Take the top components of a release.zarr, as :func:`fit_components`, and write nothing."""
    release = store_at(release)
    opened = open_release(release)
    return opened, _components_of(opened, release, count, cluster)


def _components_of(opened: Release, release: Store, count: float | None, cluster: Cluster | None) -> Components:
    if count is not None and not isinstance(count, int):
        return holding(opened, count)
    if opened.in_memory:
        return counted_components(opened) if count is None else components(opened, count)
    with chosen(cluster).connected() as engine:
        product = _release_product(release.absolute(), opened.bound.columns, engine)
        return counted_components(opened, product) if count is None else components(opened, count, product)


def _release_product(release: Store, size: int, engine: Engine) -> Callable[[Matrix], Matrix]:
    """Return the function that multiplies a released second moment."""
    resources = engine.resources()
    runs = eigen.tile_rows(size, resources.slots)
    keep = size * size * 8 <= resources.memory // 2  # any process may get any rows
    engine.require_visible(release, ROOT)

    def product(vectors: Matrix) -> Matrix:
        work = Work(
            "multiply", eigen.rows_product, eigen.ProductTask(release, range(size), vectors, keep), runs, eigen.joined
        )
        return engine.reduce(work, eigen.stacked, label=None)

    return product


def made_from(place: AnyStore, what: str, **expected: object) -> bool:
    """Say whether a model or scores in a store carry these attributes; refuse to take it for another's."""
    store = store_at(place)
    if not store.exists():
        return False
    info = attributes_of(store) or {}
    if other := [key for key, value in expected.items() if info.get(key) != value]:
        raise DataError(
            f"{store} exists already and was made from something else, or is no {what}: its {listed(other)} "
            f"{'differs' if len(other) == 1 else 'differ'}. Name another place."
        )
    return True


class ProjectedRows(NamedTuple):
    """What was projected."""

    rows: int
    """n, which under add-remove is private."""
    fresh: bool
    """Whether the scores were written now; False: the same ones stood there already."""


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
        projection.require_complete(target, table)
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
